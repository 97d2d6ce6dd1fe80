"""Archives, ledgers and queues as named tables, and SQL over them: on Spark, or in this process by DuckDB.

The SQL is written once, in words that both engines know. Tables of messages:

    archived    the columns of `rows.MESSAGE_COLUMNS`, and `place`, `enqueued_at_ms`, `content`
    in queues   `place`, `dead_letter`, `sequence_number`, `enqueued_at_ms`, `message_id`
    ledgers     `place`, `dead_letter`, `sequence_number`, `enqueued_at_ms`, `message_id`, `session_id`, `destination`,
                `content`, `outcome`, `reason`, `attempts`, `source`, `from_namespace`, `to_namespace`: a line of any
                ledger each

`place` is the path of a queue in lower case, as names are compared, `content` the digest in Base64, and `source` the
number of the ledger among those given.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sbpair.core.errors import UsageError
from sbpair.core.names import DEAD_LETTER_SUFFIX
from sbpair.core.transfer.filters import MessageFilter
from sbpair.core.transfer.ledger import NO_MESSAGE_OUTCOMES
from sbpair.core.transfer.state import key_of
from sbpair.pipeline.archive import ENQUEUED_MS, LEDGER_KEY, Tell, only_wanted, open_store, read_files, read_spans
from sbpair.pipeline.executors import PairByName, TaskConnection
from sbpair.pipeline.manifest import (
    ArchiveFile,
    LocalStore,
    Manifest,
    Store,
    check_archive,
    is_folder,
    refuse_other_sides,
    spark_path,
)
from sbpair.pipeline.rows import FILTER_COLUMNS, KEY_COLUMNS, arrow_schema, spark_schema, to_table, wants_row
from sbpair.pipeline.runs import ledger_files
from sbpair.pipeline.spans import NumberRange, overlapping

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark

KEY = "place, dead_letter, sequence_number, enqueued_at_ms"
"""What tells one stored message from every other."""
PLACE_COLUMNS = (
    ("place", "string"),
    ("dead_letter", "boolean"),
    ("sequence_number", "bigint"),
    ("enqueued_at_ms", "bigint"),
    ("message_id", "string"),
)
_LINE_COLUMNS = (
    ("queue", "string"),
    *PLACE_COLUMNS[1:],
    *((name, "string") for name in ("session_id", "destination", "digest", "outcome", "reason")),
    ("attempts", "int"),
    ("from_namespace", "string"),
    ("to_namespace", "string"),
)
MOST_LOCAL_ROWS = 10_000_000


def same(left: str, right: str) -> str:
    """SQL: rows of these tables are the same stored message."""
    return " and ".join(f"{left}.{name} = {right}.{name}" for name in KEY.split(", "))


class Tables(ABC):
    """An engine and its tables. Names are replaced by those who define them again."""

    tell: Tell | None = None
    """Told how far a query is, where that is known."""

    @abstractmethod
    def open(self, uri: str) -> Store:
        """The archive at a path or URI; raises UsageError where this engine does not reach it."""

    @abstractmethod
    def query(self, sql: str, label: str) -> list[dict[str, Any]]:
        """The rows of a query."""

    @abstractmethod
    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        """A table out of others. `keep`: it is asked several times."""

    @abstractmethod
    def rows(self, name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        """A table of these rows."""

    @abstractmethod
    def in_queues(self, name: str, pair: PairByName, spans: Sequence[NumberRange]) -> None:
        """What lies in these stretches of queues now."""

    @abstractmethod
    def filtered(self, name: str, source: str, wanted: MessageFilter) -> None:
        """The rows of an archive that a filter wants."""

    @abstractmethod
    def _files(self, name: str, store: Store, files: Sequence[ArchiveFile]) -> None: ...

    @abstractmethod
    def _lines(self, name: str, files: Sequence[Path]) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Let go of what was kept."""

    def count(self, source: str, label: str) -> int:
        """How many rows there are. `source`: a table, or what else may stand behind `from`."""
        return int(self.query(f"select count(*) as n from {source}", label)[0]["n"])

    def archived(self, uris: Sequence[str], *, once: bool, of_backlog: bool = True) -> list[Manifest]:
        """The table `archived`: the messages of archives, whose manifests are returned. `once`: a message that several
        files hold is one row; else it is as many, to be compared with each other. `of_backlog`: only of the backlog,
        not of the primary. Raises UsageError: one of them is no archive, or one of the primary where the backlog is
        meant."""
        stores = [self.open(one) for one in uris]
        manifests = [check_archive(one) for one in stores]
        for number, (store, manifest) in enumerate(zip(stores, manifests, strict=True)):
            if of_backlog:
                refuse_other_sides(manifest, store.uri)
            self._files(f"archive_{number}", store, manifest.files)
        copies = " union all ".join(f"select * from archive_{number}" for number in range(len(stores)))
        spans = [
            NumberRange(f"{one.pair}/{one.queue}", one.dead_letter, one.first, one.last)
            for manifest in manifests
            for one in manifest.files
        ]
        if once and overlapping(spans):
            keys = ", ".join(("pair", *KEY_COLUMNS))
            ranked = (
                f"select *, row_number() over (partition by {keys} order by content) as copy_number from ({copies})"
            )
            copies = f"select * from ({ranked}) where copy_number = 1"
        self.define("archived", copies)
        return manifests

    def ledgers(self, name: str, paths: Sequence[str]) -> None:
        """The lines about messages of ledger files, and of folders of them. Raises UsageError: a path that is not
        there, or a file whose lines are not a ledger's."""
        parts = [self._ledger(f"{name}_{number}", number, path) for number, path in enumerate(paths)]
        if not parts:
            self._lines(f"{name}_none", ())
            parts = [_outcomes(f"{name}_none", 0)]
        self.define(name, " union all ".join(parts))

    def _ledger(self, name: str, number: int, path: str) -> str:
        place = Path(path).expanduser().absolute()
        if not place.exists():
            raise UsageError(f"There is no ledger {path}.")
        self._lines(name, ledger_files(place) if place.is_dir() else [place])
        read = _outcomes(name, number)
        if place.is_file() and place.stat().st_size and not self.query(f"{read} limit 1", "Reading ledgers"):
            raise UsageError(f"{path} is not a ledger: it has no line with queue, sequence number and outcome.")
        return read


def _outcomes(lines: str, source: int) -> str:
    """SQL: the whole lines about messages; one that a crash cut off reads as nothing. The dead-letter sub-queue is part
    of the path, or in older ones a field."""
    suffix = f"/{DEAD_LETTER_SUFFIX}"
    is_dead = f"lower(queue) like '%{suffix}'"
    batches = ", ".join(f"'{one}'" for one in NO_MESSAGE_OUTCOMES)
    return (
        f"select case when {is_dead} then substring(lower(queue), 1, length(queue) - {len(suffix)}) "
        f"else lower(queue) end as place, coalesce(dead_letter, false) or {is_dead} as dead_letter, sequence_number, "
        "enqueued_at_ms, message_id, session_id, destination, digest as content, outcome, reason, "
        f"coalesce(attempts, 1) as attempts, {source} as source, from_namespace, to_namespace from {lines} where "
        f"queue is not null and sequence_number is not null and outcome is not null and outcome not in ({batches})"
    )


class SparkTables(Tables):
    """Temporary views of a session."""

    def __init__(self, session: "StartedSpark") -> None:
        self._session, self._kept = session, list[Any]()

    def open(self, uri: str) -> Store:
        return open_store(self._session.context, uri)

    def query(self, sql: str, label: str) -> list[dict[str, Any]]:
        spark = self._session.spark
        return [row.asDict() for row in self._session.run(lambda: spark.sql(sql).collect(), label, tell=self.tell)]

    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        frame = self._session.spark.sql(sql)
        if keep:
            frame = frame.cache()
            self._kept.append(frame)
        frame.createOrReplaceTempView(name)

    def rows(self, name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        self._session.spark.createDataFrame(list(rows), spark_schema(columns)).createOrReplaceTempView(name)

    def in_queues(self, name: str, pair: PairByName, spans: Sequence[NumberRange]) -> None:
        frame = read_spans(self._session.spark, pair, spans, includePayload="false")
        frame.selectExpr("lower(queue) place", *LEDGER_KEY, "message_id").createOrReplaceTempView(name)

    def filtered(self, name: str, source: str, wanted: MessageFilter) -> None:
        only_wanted(self._session.spark.table(source), wanted).createOrReplaceTempView(name)

    def _files(self, name: str, store: Store, files: Sequence[ArchiveFile]) -> None:
        frame = read_files(self._session.spark, store, files)
        more = ("lower(queue) place", f"{ENQUEUED_MS} enqueued_at_ms", "base64(digest) content")
        frame.selectExpr("*", *more).createOrReplaceTempView(name)

    def _lines(self, name: str, files: Sequence[Path]) -> None:
        read = self._session.spark.read.schema(spark_schema(_LINE_COLUMNS))
        if files:
            read.json([spark_path(path) for path in files]).createOrReplaceTempView(name)
        else:
            self.rows(name, _LINE_COLUMNS, ())

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()


class LocalTables(Tables):
    """DuckDB in this process, over archives in folders."""

    def __init__(self) -> None:
        import duckdb

        self._base: duckdb.DuckDBPyConnection = duckdb.connect(config={"threads": os.cpu_count() or 1})
        self._base.execute("set timezone = 'UTC'")

    def open(self, uri: str) -> Store:
        if not is_folder(uri):
            raise UsageError("--engine local reads folders, not URIs.", hint="Leave --engine out: Spark reads them.")
        return LocalStore(Path(uri))

    def query(self, sql: str, label: str) -> list[dict[str, Any]]:
        found = self._base.execute(sql)
        names = [one[0] for one in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        self._base.execute(f"create or replace temp {'table' if keep else 'view'} {name} as {sql}")

    def rows(self, name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> None:
        self._base.register(name, to_table(rows, arrow_schema(columns)))

    def in_queues(self, name: str, pair: PairByName, spans: Sequence[NumberRange]) -> None:
        with TaskConnection.to(pair, "secondary") as connection:
            found = [(span, key_of(one)) for span in spans for page in connection.browse(span) for one in page]
        rows = [(*span.place, number, at_ms, message_id) for span, (_, number, message_id, at_ms) in found]
        self.rows(name, PLACE_COLUMNS, rows)

    def filtered(self, name: str, source: str, wanted: MessageFilter) -> None:
        columns = ", ".join(one.replace("unix_micros(", "epoch_us(") for one in FILTER_COLUMNS)
        if wanted.is_set:
            kinds: list[Any] = ["varchar", "boolean", "bigint", "bigint", "varchar", "blob", "varchar", "integer"]

            def wants(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> bool:
                return wants_row(wanted, a, b, c, d, e, f, g, h)

            self._base.create_function("wants", wants, kinds, "boolean", null_handling=cast(Any, "special"))
        self.define(name, f"select * from {source}{f' where wants({columns})' if wanted.is_set else ''}")

    def _files(self, name: str, store: Store, files: Sequence[ArchiveFile]) -> None:
        if sum(one.rows for one in files) > MOST_LOCAL_ROWS:
            raise UsageError(
                f"{store.uri} has more than {MOST_LOCAL_ROWS:,} messages.", hint="Leave --engine out: Spark reads them."
            )
        # As a dataset, which takes a path as it is: DuckDB's own reader would take a bracket for a pattern.
        from pyarrow import dataset

        paths = [str(Path(store.uri) / one.path) for one in files]
        read = dataset.dataset(paths, format="parquet") if paths else arrow_schema().empty_table()
        self._base.register(f"{name}_read", read)
        more = "to_base64(digest) as content, coalesce(epoch_ms(enqueued_at), -1) as enqueued_at_ms"
        self.define(name, f"select *, lower(queue) as place, {more} from {name}_read")

    def _lines(self, name: str, files: Sequence[Path]) -> None:
        read = (_fields_of(line) for path in files for line in path.read_bytes().splitlines())
        self.rows(name, _LINE_COLUMNS, [fields for fields in read if fields is not None])

    def close(self) -> None:
        self._base.close()


_PYTHON = {"string": str, "boolean": bool, "bigint": int, "int": int}
_BITS = {"bigint": 63, "int": 31}


def _fields_of(text: bytes) -> list[Any] | None:
    """The columns of a ledger's line; None for what is none, or cut off. What no column takes is not there."""
    try:
        read = json.loads(text)
        return [value if _fits(value := read.get(name), kind) else None for name, kind in _LINE_COLUMNS]
    except (ValueError, RecursionError, AttributeError):
        return None


def _fits(value: Any, kind: str) -> bool:
    if type(value) is not _PYTHON[kind]:
        return False
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value  # or half a character
    return not isinstance(value, int) or value.bit_length() <= _BITS.get(kind, 1)
