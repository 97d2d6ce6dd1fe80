"""Who works on the units: this process, or Spark. Both run the same functions on the same tables.

Spark gets them as plain tasks over Python objects, not as a DataFrame: a task starts as soon as its Python worker does,
and the JVM has neither a plan to compile nor rows to convert. Only an archive that nobody but Spark can open (a URI)
is read by it; its narrow columns are then put in order by queue and number first, so that its parts do not overlap.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sbpair.core.errors import UsageError
from sbpair.pipeline.analysis.partials import Key
from sbpair.pipeline.analysis.units import COLUMNS, read_unit, with_folded_destinations
from sbpair.pipeline.errors import marking_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from sbpair.pipeline.spark.session import Session

T = TypeVar("T")
Read = Callable[[Any], Any]
"""Reads a unit: `read_unit` for the messages of an archive, as a table."""
Work = Callable[[Any], Iterable[tuple[Key, Any]]]
"""Turns what a unit holds into parts, each with the key of those that belong together."""
Reduce = Callable[[Key, Sequence[Any]], T]
"""Turns all parts of a key into one result."""

MOST_LOCAL_ROWS = 10_000_000
"""What the local engine takes: sessions and hashes of all messages are in the memory of this process."""
ROWS_PER_PARTITION = 500_000


class Sized(Protocol):
    """A unit: what a task reads at once, of about that many rows."""

    @property
    def rows(self) -> int: ...


class Engine(Protocol):
    """Works on every unit of an archive."""

    @property
    def units(self) -> int: ...

    @property
    def cores(self) -> int: ...

    def whole(self, work: Callable[[Any], T], label: str) -> T:
        """The result for the only unit there is."""

    def by_key(
        self, work: Work, reduce: Reduce[T], keys: Sequence[Key], label: str, *, read: Read | None = None
    ) -> list[T]:
        """The results of all keys for which there was a part. `read`: reads less of a unit, where units are read."""


class LocalEngine:
    """In this process, a thread for each core; the library below works outside of Python's lock."""

    def __init__(self, units: Sequence[Sized], *, cores: int, read: Read = read_unit) -> None:
        rows = sum(unit.rows for unit in units)
        if rows > MOST_LOCAL_ROWS:
            raise UsageError(
                f"The archive has {rows:,} messages; --engine local takes up to {MOST_LOCAL_ROWS:,}.",
                hint="Leave --engine out: Spark keeps what does not fit into memory on disk.",
            )
        self._units, self.cores, self._read = units, cores, read

    @property
    def units(self) -> int:
        return len(self._units)

    def whole(self, work: Callable[[Any], T], label: str) -> T:
        return work(self._read(self._units[0]))

    def by_key(
        self, work: Work, reduce: Reduce[T], keys: Sequence[Key], label: str, *, read: Read | None = None
    ) -> list[T]:
        reading = read or self._read
        with ThreadPoolExecutor(self.cores) as pool:
            found = pool.map(lambda unit: list(work(reading(unit))), self._units)
            grouped = _grouped(chain.from_iterable(found))
            return list(pool.map(lambda item: reduce(*item), grouped.items()))


class SparkEngine:
    """Tasks of Spark, one for each unit and then one for each key."""

    def __init__(
        self, session: "Session", units: "RDD[Any]", tell: Callable[[Any], None] | None, *, read: Read | None
    ) -> None:
        """`read`: None if the units are tables already."""
        self._session, self._units, self._tell, self._read = session, units, tell, read
        self.units = units.getNumPartitions()
        self.cores = session.context.defaultParallelism

    @classmethod
    def over_units(
        cls,
        session: "Session",
        units: Sequence[Sized],
        tell: Callable[[Any], None] | None = None,
        *,
        read: Read = read_unit,
    ) -> "SparkEngine":
        """Tasks open the files by their paths: the archive's folder is one that all of them see."""
        return cls(session, session.context.parallelize(units, len(units)), tell, read=read)

    @classmethod
    def over_rows(
        cls, session: "Session", messages: "DataFrame", rows: int, tell: Callable[[Any], None] | None = None
    ) -> "SparkEngine":
        """Of messages that only Spark can read, each once in the frame."""
        from pyspark.sql import functions as F

        place = ("pair", "queue", "dead_letter", "sequence_number")
        narrow = messages.select(*COLUMNS).withColumn("enqueued_at", F.expr("unix_micros(enqueued_at)"))
        parts = max(1, -(-rows // ROWS_PER_PARTITION))
        ordered = narrow.repartitionByRange(parts, *place) if parts > 1 else narrow.coalesce(1)
        return cls(session, ordered.rdd.mapPartitions(_as_table), tell, read=None)

    def _tables(self, read: Read | None = None) -> "RDD[Any]":
        return self._units if self._read is None else self._units.map(partial(_read_in_task, read or self._read))

    def whole(self, work: Callable[[Any], T], label: str) -> T:
        found: list[T] = self._session.run(self._tables().map(work).collect, label, tell=self._tell)
        return found[0]

    def by_key(
        self, work: Work, reduce: Reduce[T], keys: Sequence[Key], label: str, *, read: Read | None = None
    ) -> list[T]:
        places = {key: place for place, key in enumerate(keys)}
        parts = self._tables(read).flatMap(work).partitionBy(len(keys), places.__getitem__)
        reduced = parts.mapPartitions(partial(_reduced, reduce))
        found: list[T] = self._session.run(reduced.collect, label, tell=self._tell)
        return found


def _read_in_task(read: Read, unit: Any) -> Any:
    with marking_errors():
        return read(unit)


def _reduced(reduce: Reduce[T], pairs: Iterable[tuple[Key, Any]]) -> Iterator[T]:
    for key, parts in _grouped(pairs).items():
        yield reduce(key, parts)


def _grouped(pairs: Iterable[tuple[Key, Any]]) -> dict[Key, list[Any]]:
    grouped: dict[Key, list[Any]] = {}
    for key, part in pairs:
        grouped.setdefault(key, []).append(part)
    return grouped


def _as_table(rows: Iterable[Any]) -> "Iterator[pa.Table]":
    import pyarrow as pa

    from sbpair.pipeline.rows import to_batch
    from sbpair.pipeline.schemas import arrow_schema

    wanted = arrow_schema()
    schema = pa.schema([wanted.field(name) for name in COLUMNS])
    yield with_folded_destinations(pa.Table.from_batches([to_batch(list(rows), schema)]))
