"""Cuts an archive's files into units: neighbouring row groups that one task reads at once.

Only the footers of the files are read here. Row groups whose numbers overlap (an archive run that was broken off and
repeated leaves the same messages twice) stand in one unit, which drops the repetitions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sbpair.core.errors import UsageError
from sbpair.pipeline.analysis.partials import Key
from sbpair.pipeline.errors import marking_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from sbpair.pipeline.spark.session import StartedSpark


MOST_UNIT_ROWS: Final = 1_000_000
"""A unit of this size takes about 250 MB while it is worked on; twice as many rows a unit save nothing."""
COLUMNS: Final = (
    "pair",
    "queue",
    "dead_letter",
    "sequence_number",
    "enqueued_at",
    "dead_letter_reason",
    "destination",
    "message_id",
    "session_id",
    "ttl_ms",
    "is_ping",
    "size_bytes",
)
"""The columns of a message that an analysis looks at; never the payload."""
ID_COLUMNS: Final = ("pair", "queue", "dead_letter", "enqueued_at", "destination", "message_id")
"""Those that tell which messages have equal ids."""
_FEW_VALUES: Final = ["pair", "queue", "dead_letter_reason", "destination", "session_id"]
_PLACE: Final = ("pair", "queue", "dead_letter")


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group with its range of numbers. `place`: pair, queue, dead letter, or None if it holds several."""

    path: str
    groups: tuple[int, ...]
    place: tuple[str, str, bool] | None
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """What is read at once: (path, row groups), by queue and number."""

    parts: tuple[tuple[str, tuple[int, ...]], ...]
    rows: int
    overlapping: bool
    """The same message may be in it more than once."""


def units_in(files: Sequence[str], *, at_least: int = 1) -> list[ReadUnit]:
    """The units of an archive's files: as few as hold `MOST_UNIT_ROWS` each, `at_least` of them if that is worth it."""
    pieces = pieces_in(files)
    rows = sum(piece.rows for piece in pieces)
    each = max(min(-(-rows // max(1, at_least)), MOST_UNIT_ROWS), MOST_UNIT_ROWS // 4)
    return units_of(pieces, each)


def pieces_in(files: Sequence[str]) -> list[Piece]:
    """The row groups of the files, by their footers."""
    import pyarrow.parquet as pq

    found = []
    for path in files:
        metadata = pq.read_metadata(path)
        columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        for group in range(metadata.num_row_groups):
            described = metadata.row_group(group)
            if described.num_rows:
                found.append(_piece(path, group, described, columns))
    return found


def _piece(path: str, group: int, described: Any, columns: dict[str, int]) -> Piece:
    ends = {}
    for name in (*_PLACE, "sequence_number"):
        statistics = described.column(columns[name]).statistics if name in columns else None
        if statistics is not None and statistics.has_min_max:
            ends[name] = (statistics.min, statistics.max)
    if "sequence_number" not in ends or any(name not in ends or ends[name][0] != ends[name][1] for name in _PLACE):
        return Piece(path, (group,), None, 0, 0, described.num_rows)
    place = (str(ends["pair"][0]), str(ends["queue"][0]), bool(ends["dead_letter"][0]))
    first, last = ends["sequence_number"]
    return Piece(path, (group,), place, first, last, described.num_rows)


def units_of(pieces: Sequence[Piece], most_rows: int) -> list[ReadUnit]:
    """Pieces in units of about `most_rows`; pieces that overlap are never parted, and stand alone. Row groups of which
    it is not known what they hold make everything one unit: any two of them may overlap."""
    if any(piece.place is None for piece in pieces):
        return [_unit(pieces, overlapping=True)]
    units: list[ReadUnit] = []
    waiting: list[Piece] = []
    for cluster in _clusters(pieces):
        alone = len(cluster) > 1
        rows = sum(piece.rows for piece in (*waiting, *cluster))
        if waiting and (alone or rows > most_rows):
            units.append(_unit(waiting))
            waiting = []
        if alone:
            units.append(_unit(cluster, overlapping=True))
        else:
            waiting += cluster
    return [*units, _unit(waiting)] if waiting else units


def _clusters(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces of one queue whose ranges of numbers overlap, together."""
    cluster: list[Piece] = []
    highest = 0
    for piece in sorted(pieces, key=lambda one: (one.place or (), one.first, one.last)):
        if cluster and (piece.place != cluster[0].place or piece.first > highest):
            yield cluster
            cluster = []
        highest = max(highest, piece.last) if cluster else piece.last
        cluster.append(piece)
    if cluster:
        yield cluster


def _unit(pieces: Sequence[Piece], *, overlapping: bool = False) -> ReadUnit:
    groups: dict[str, list[int]] = {}
    for piece in pieces:
        groups.setdefault(piece.path, []).extend(piece.groups)
    parts = tuple((path, tuple(chosen)) for path, chosen in groups.items())
    return ReadUnit(parts, sum(piece.rows for piece in pieces), overlapping)


def together(units: Sequence[ReadUnit]) -> ReadUnit:
    """Several units as one: what fits one task needs no shuffle."""
    return replace(
        units[0],
        parts=tuple(part for unit in units for part in unit.parts),
        rows=sum(unit.rows for unit in units),
        overlapping=any(unit.overlapping for unit in units),
    )


def read_unit(unit: ReadUnit, columns: Sequence[str] = COLUMNS) -> "pa.Table":
    """The unit's messages in these columns, each once."""
    table = row_groups(unit, columns, as_dictionaries=_FEW_VALUES)
    return with_folded_destinations(each_once(table) if unit.overlapping else table)


def row_groups(unit: ReadUnit, columns: Sequence[str], *, as_dictionaries: Sequence[str] = ()) -> "pa.Table":
    """All rows of a unit's row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path, groups in unit.parts:
        with pq.ParquetFile(path, read_dictionary=list(as_dictionaries), pre_buffer=False) as file:
            tables.append(file.read_row_groups(list(groups), columns=list(columns), use_threads=False))
    return pa.concat_tables(tables)


def with_folded_destinations(table: "pa.Table") -> "pa.Table":
    """Destinations in lower case, as names are compared, and as they were written in `spelled`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    place, column = table.schema.get_field_index("destination"), table["destination"]
    if column.num_chunks and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks() if column.num_chunks else pa.array([], pa.string())
    column = column.dictionary_encode() if not pa.types.is_dictionary(column.type) else column
    folded = pc.utf8_lower(column.dictionary).dictionary_encode()
    lower = pa.DictionaryArray.from_arrays(folded.indices.take(column.indices), folded.dictionary)
    return table.set_column(place, "destination", lower).append_column("spelled", column)


def read_ids(unit: ReadUnit) -> "pa.Table":
    """The unit's messages in `ID_COLUMNS`, each once."""
    return read_unit(unit, (*ID_COLUMNS, "sequence_number") if unit.overlapping else ID_COLUMNS)


def each_once(table: "pa.Table") -> "pa.Table":
    """A message is told from every other by its queue, number and enqueued time."""
    from sbpair.pipeline.analysis.partials import database

    with database() as base:
        base.register("messages", table)
        key = "pair, queue, dead_letter, sequence_number, enqueued_at"
        return base.sql(f"select * from messages qualify row_number() over (partition by {key}) = 1").to_arrow_table()


# Who works on the units: this process, or Spark. Both run the same functions on the same tables.
#
# Spark gets them as plain tasks over Python objects, not as a DataFrame: a task starts as soon as its Python worker
# does, and the JVM has neither a plan to compile nor rows to convert. Only an archive that nobody but Spark can open
# (a URI) is read by it; its narrow columns are then put in order by queue and number first, so that its parts do not
# overlap.

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
        self.units = len(units)

    def whole(self, work: Callable[[Any], T], label: str) -> T:
        """The result for the only unit there is."""
        return work(self._read(self._units[0]))

    def by_key(
        self, work: Work, reduce: Reduce[T], keys: Sequence[Key], label: str, *, read: Read | None = None
    ) -> list[T]:
        """The results of all keys for which there was a part. `read`: reads less of a unit, where units are read."""
        reading = read or self._read
        with ThreadPoolExecutor(self.cores) as pool:
            found = pool.map(lambda unit: list(work(reading(unit))), self._units)
            grouped = _grouped(chain.from_iterable(found))
            return list(pool.map(lambda item: reduce(*item), grouped.items()))


class SparkEngine:
    """Tasks of Spark, one for each unit and then one for each key."""

    def __init__(
        self, session: "StartedSpark", units: "RDD[Any]", tell: Callable[[Any], None] | None, *, read: Read | None
    ) -> None:
        """`read`: None if the units are tables already."""
        self._session, self._units, self._tell, self._read = session, units, tell, read
        self.units = units.getNumPartitions()
        self.cores = session.context.defaultParallelism

    @classmethod
    def over_units(
        cls,
        session: "StartedSpark",
        units: Sequence[Sized],
        tell: Callable[[Any], None] | None = None,
        *,
        read: Read = read_unit,
    ) -> "SparkEngine":
        """Tasks open the files by their paths: the archive's folder is one that all of them see."""
        return cls(session, session.context.parallelize(units, len(units)), tell, read=read)

    @classmethod
    def over_rows(
        cls, session: "StartedSpark", messages: "DataFrame", rows: int, tell: Callable[[Any], None] | None = None
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


Engine = LocalEngine | SparkEngine
"""Works on every unit of an archive."""


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

    from sbpair.pipeline.rows import arrow_schema, to_batch

    wanted = arrow_schema()
    schema = pa.schema([wanted.field(name) for name in COLUMNS])
    yield with_folded_destinations(pa.Table.from_batches([to_batch(list(rows), schema)]))
