"""Archives spans where the task runs: browse, write Parquet with PyArrow, tell the driver about the files.

Four times as fast as rows going through the JVM into its Parquet writer. A file is written under a temporary name and
renamed. Every attempt of a task writes files of its own: one that was given up and still runs may find less in the
queue than the one that counts, and must not replace what that wrote. A file counts only when the driver has put it into
the manifest; the others are removed by a later run.

The archive's folder has to be one that every executor and the driver see.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark import TaskContext

from sbpair.core.message import Received
from sbpair.core.pairing import Side
from sbpair.core.summary import describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.files import make_private_file, make_private_folder
from sbpair.pipeline.errors import RUN_AGAIN, ArchiveError, marking_errors
from sbpair.pipeline.executors import Connection, PairByName
from sbpair.pipeline.manifest import ArchiveFile
from sbpair.pipeline.pacing import pace_of
from sbpair.pipeline.paths import put_in_place
from sbpair.pipeline.rows import message_row, to_batch
from sbpair.pipeline.schemas import MESSAGE_COLUMNS, SCHEMA_VERSION, arrow_schema
from sbpair.pipeline.spans import Span
from sbpair.pipeline.task_log import logged_task, span_facts

UNKNOWN_DATE = "unknown"
ROW_GROUP_ROWS = 50_000
BUFFERED_BYTES = 32 * 1024 * 1024
_ENQUEUED = next(place for place, (name, *_) in enumerate(MESSAGE_COLUMNS) if name == "enqueued_at")
_SEQUENCE = next(place for place, (name, *_) in enumerate(MESSAGE_COLUMNS) if name == "sequence_number")


@dataclass(frozen=True, slots=True)
class Archiving:
    """What every task of an archiving knows. `run` is part of every file's name: what an earlier run left is never
    overwritten."""

    pair: PairByName
    root: Path
    run: str
    wanted: MessageFilter = EVERYTHING
    side: Side = Side.SECONDARY
    """The namespace that is browsed."""
    budget_per_second: float | None = None
    """What one task may browse in a second; None: as much as the namespace gives."""

    def of(self, span: Span) -> "ArchivedUnit":
        """Browse a span and write its files, in a task of Spark.

        Raises:
            TaskError: with one of our errors in its text.
        """
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        files = UnitFiles(self.root, self.run, self.pair.name, span)
        with marking_errors(), Connection.to(self.pair, self.side) as connection:
            pace = pace_of(connection.namespace, self.budget_per_second)
            with logged_task("archive", connection.namespace, pace, run=self.run, **span_facts(span)) as done, files:
                for page in connection.browse(span, pace):
                    done.count(page)
                    files.add([message_row(self.pair.name, one) for one in page if self._wants(one)])
        return ArchivedUnit(tuple(files.written), attempt, done.throttled)

    def _wants(self, received: Received) -> bool:
        return not self.wanted.is_set or self.wanted.wants(received, describe(received.payload))


@dataclass(frozen=True, slots=True)
class ArchivedUnit:
    """The files of a unit, which attempt of its task wrote them, and how often the namespace was too busy for it."""

    files: tuple[ArchiveFile, ...]
    attempt: int
    throttled: int


class UnitFiles:
    """The files of one unit, one per day on which messages were put into the queue."""

    def __init__(self, root: Path, run: str, pair: str, span: Span) -> None:
        self._root, self._run, self._pair, self._span = root, run, pair, span
        self._open: dict[str, _DayFile] = {}
        self.written: list[ArchiveFile] = []

    def __enter__(self) -> "UnitFiles":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self.written = [day.finish() for day in self._open.values()]
        finally:
            for day in self._open.values():
                day.discard()

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        by_date: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            by_date.setdefault(date_of(row[_ENQUEUED]), []).append(row)
        for date, same_day in by_date.items():
            if date not in self._open:
                self._open[date] = _DayFile(self._root, self._run, self._pair, self._span, date)
            self._open[date].add(same_day)


def date_of(microseconds: int | None) -> str:
    """The UTC day of a time, as in the archive's folder names."""
    if microseconds is None:
        return UNKNOWN_DATE
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).date().isoformat()


def folder_of(pair: str, queue: str, date: str) -> str:
    """Folder of an archive's files, escaped as Spark's own partitioned writer does it."""
    return f"data/pair={quote(pair, safe=' ')}/queue={quote(queue, safe=' ')}/date={date}"


def file_metadata() -> dict[str, str]:
    """What each Parquet file says of itself."""
    return {"sbpair.schema": str(SCHEMA_VERSION)}


class _DayFile:
    """One Parquet file in the making."""

    def __init__(self, root: Path, run: str, pair: str, span: Span, date: str) -> None:
        import pyarrow.parquet as pq

        kind = "dead-" if span.dead_letter else ""
        self._facts = pair, span.queue, span.dead_letter, date
        name = f"{kind}{span.first:020d}-{span.last:020d}-{run}-{os.urandom(4).hex()}.parquet"
        self._relative = f"{folder_of(pair, span.queue, date)}/{name}"
        self._final = root / self._relative
        self._temporary = self._final.with_name(f".{name}")
        self._schema = arrow_schema().with_metadata(file_metadata())
        self._rows: list[tuple[Any, ...]] = []
        self._buffered = 0
        self._count = 0
        self._numbers: list[int] = []
        self._times: list[int] = []
        with _as_archive_error(self._final):
            make_private_folder(self._final.parent)
            make_private_file(self._temporary)
            self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd", write_page_checksum=True)

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows += rows
        self._buffered += sum(len(row[-1]) for row in rows)
        if len(self._rows) >= ROW_GROUP_ROWS or self._buffered >= BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        batch = to_batch(self._rows, self._schema)
        with _as_archive_error(self._final):
            self._writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROW_GROUP_ROWS)
        self._count += len(self._rows)
        numbers = [row[_SEQUENCE] for row in self._rows]
        times = [row[_ENQUEUED] for row in self._rows if row[_ENQUEUED] is not None]
        self._numbers = [min([*self._numbers, *numbers]), max([*self._numbers, *numbers])]
        self._times = [min([*self._times, *times]), max([*self._times, *times])] if self._times or times else []
        self._rows, self._buffered = [], 0

    def finish(self) -> ArchiveFile:
        """On disk under its name."""
        self._flush()
        with _as_archive_error(self._final):
            self._writer.close()
            put_in_place(self._temporary, self._final)
            size = self._final.stat().st_size
        pair, queue, dead_letter, date = self._facts
        first, last = (one // 1000 for one in self._times) if self._times else (None, None)
        low, high = self._numbers
        return ArchiveFile(self._relative, pair, queue, dead_letter, date, self._count, size, low, high, first, last)

    def discard(self) -> None:
        """Leave nothing of it behind, unless it was finished."""
        with suppress(OSError):  # a full disk does not take the file's end either
            self._writer.close()
        self._temporary.unlink(missing_ok=True)


@contextmanager
def _as_archive_error(path: Path) -> Iterator[None]:
    """An error of the file system as ours."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"Cannot write {path}: {error}.", hint=RUN_AGAIN) from error
