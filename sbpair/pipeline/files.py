"""Archives spans where the task runs: browse, write Parquet with PyArrow, tell the driver about the files.

Four times as fast as rows going through the JVM into its Parquet writer. A file is written under a temporary name and
renamed. Every attempt of a task writes files of its own: one that was given up and still runs may find less in the
queue than the one that counts, and must not replace what that wrote. A file counts only when the driver has put it into
the manifest; the others are removed by a later run.

The archive's folder has to be one that every executor and the driver see.
"""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sbpair.core.message import Received
from sbpair.core.pairing import Side
from sbpair.core.summary import describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.files import make_private_file, make_private_folder
from sbpair.pipeline.errors import RUN_AGAIN, ArchiveError, marking_errors
from sbpair.pipeline.executors import PairByName, TaskConnection
from sbpair.pipeline.manifest import ArchiveFile, Commit, LocalStore, Manifest, Store, append, put_in_place
from sbpair.pipeline.rows import MESSAGE_COLUMNS, SCHEMA_VERSION, arrow_schema, message_row, spark_schema, to_batch
from sbpair.pipeline.spans import NumberRange
from sbpair.pipeline.tasks import TaskDone, logged_task, pace_of, span_facts

if TYPE_CHECKING:
    import pyarrow as pa

    from sbpair.pipeline.spark.session import StartedSpark


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

    def of(self, span: NumberRange) -> tuple[list[ArchiveFile], TaskDone]:
        """Browse a span and write its files, in a task of Spark; raises our errors as TaskError."""
        files = UnitFiles(self.root, self.run, self.pair.name, span)
        with marking_errors(), TaskConnection.to(self.pair, self.side) as connection:
            pace = pace_of(connection.namespace, self.budget_per_second)
            with logged_task("archive", connection.namespace, pace, run=self.run, **span_facts(span)) as done, files:
                for page in connection.browse(span, pace):
                    done.count(page)
                    files.add([message_row(self.pair.name, one) for one in page if self._wants(one)])
        return files.written, done

    def _wants(self, received: Received) -> bool:
        return not self.wanted.is_set or self.wanted.wants(received, describe(received.payload))


class UnitFiles:
    """The files of one unit, one per day on which messages were put into the queue."""

    def __init__(self, root: Path, run: str, pair: str, span: NumberRange) -> None:
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
                day.file.discard()

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        by_date: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            by_date.setdefault(_date_of(row[_ENQUEUED]), []).append(row)
        for date, same_day in by_date.items():
            if date not in self._open:
                self._open[date] = _DayFile(self._root, self._run, self._pair, self._span, date)
            self._open[date].add(same_day)


def _date_of(microseconds: int | None) -> str:
    """The UTC day of a time, as in the archive's folder names."""
    if microseconds is None:
        return UNKNOWN_DATE
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).date().isoformat()


def _placed(facts: ArchiveFile, name: str) -> ArchiveFile:
    """With the file's path, in folders that are escaped as Spark's own partitioned writer does it."""
    folder = f"data/pair={quote(facts.pair, safe=' ')}/queue={quote(facts.queue, safe=' ')}/date={facts.date}"
    kind = "dead-" if facts.dead_letter else ""
    return replace(facts, path=f"{folder}/{kind}{facts.first:020d}-{facts.last:020d}-{name}.parquet")


class _ParquetFile:
    """A file in the making, under a temporary name until it is whole. An error of the disk is an ArchiveError."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._path, self._temporary = path, path.with_name(f".{path.name}")
        self.schema = arrow_schema().with_metadata({"sbpair.schema": str(SCHEMA_VERSION)})
        with _as_archive_error(path):
            make_private_folder(path.parent)
            make_private_file(self._temporary)
            self._writer = pq.ParquetWriter(self._temporary, self.schema, compression="zstd", write_page_checksum=True)

    def write(self, batch: "pa.RecordBatch") -> None:
        with _as_archive_error(self._path):
            self._writer.write_batch(batch, ROW_GROUP_ROWS)

    def finish(self) -> int:
        """On disk under its name; its bytes."""
        with _as_archive_error(self._path):
            self._writer.close()
            put_in_place(self._temporary, self._path)
            return self._path.stat().st_size

    def discard(self) -> None:
        """Leave nothing of it behind, unless it was finished."""
        with suppress(OSError):  # a full disk does not take the file's end either
            self._writer.close()
        self._temporary.unlink(missing_ok=True)


class _DayFile:
    """The file of the messages of one day."""

    def __init__(self, root: Path, run: str, pair: str, span: NumberRange, date: str) -> None:
        facts = ArchiveFile("", pair, span.queue, span.dead_letter, date, 0, 0, span.first, span.last)
        self._facts = _placed(facts, f"{run}-{os.urandom(4).hex()}")
        self.file = _ParquetFile(root / self._facts.path)
        self._rows: list[tuple[Any, ...]] = []
        self._buffered = 0
        self._written: list[ArchiveFile] = []
        """What each write says of its rows."""

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows += rows
        self._buffered += sum(len(row[-1]) for row in rows)
        if len(self._rows) >= ROW_GROUP_ROWS or self._buffered >= BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        self.file.write(to_batch(self._rows, self.file.schema))
        numbers = [row[_SEQUENCE] for row in self._rows]
        times = [row[_ENQUEUED] // 1000 for row in self._rows if row[_ENQUEUED] is not None]
        found = replace(self._facts, rows=len(self._rows), first=min(numbers), last=max(numbers))
        ends = min(times, default=None), max(times, default=None)
        self._written.append(replace(found, first_enqueued_ms=ends[0], last_enqueued_ms=ends[1]))
        self._rows, self._buffered = [], 0

    def finish(self) -> ArchiveFile:
        """On disk under its name."""
        self._flush()
        return replace(joined(self._written), bytes=self.file.finish())


@contextmanager
def _as_archive_error(path: Path) -> Iterator[None]:
    """An error of the file system as ours."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"Cannot write {path}: {error}.", hint=RUN_AGAIN) from error


# Joins an archive's small files, and removes files that no longer belong to it.
#
# What was replaced stays for a day: somebody may be reading it. The same day protects the files of a run that has not
# committed yet.

SMALL_BYTES = 16 * 1024 * 1024
TARGET_BYTES = 128 * 1024 * 1024
SMALL_FILES = 8
"""This many small files of one day and queue are worth a compaction."""
KEEP_SECONDS = 86_400.0


def joined(files: Sequence[ArchiveFile]) -> ArchiveFile:
    """The facts of a file with the rows of all of these, which are of one day and queue; its size is not known yet."""
    early = [one.first_enqueued_ms for one in files if one.first_enqueued_ms is not None]
    late = [one.last_enqueued_ms for one in files if one.last_enqueued_ms is not None]
    return replace(
        files[0],
        rows=sum(one.rows for one in files),
        bytes=0,
        first=min(one.first for one in files),
        last=max(one.last for one in files),
        first_enqueued_ms=min(early, default=None),
        last_enqueued_ms=max(late, default=None),
    )


def groups_of(files: Sequence[ArchiveFile]) -> list[list[ArchiveFile]]:
    """Which small files to join: those of one queue and day, in the order of their numbers, up to the target size."""
    places: dict[tuple[str, str, bool, str], list[ArchiveFile]] = {}
    for one in sorted(files, key=lambda file: file.first):
        if one.bytes < SMALL_BYTES:
            places.setdefault((one.pair, one.queue, one.dead_letter, one.date), []).append(one)
    groups: list[list[ArchiveFile]] = []
    for same in places.values():
        if len(same) < SMALL_FILES:
            continue
        groups.append([])
        for one in same:
            if sum(other.bytes for other in groups[-1]) + one.bytes > TARGET_BYTES:
                groups.append([])
            groups[-1].append(one)
    return [group for group in groups if len(group) > 1]


def compact(store: Store, session: "StartedSpark", run: str) -> int:
    """Join small files; how many were replaced. Somebody else's compaction at the same time wins."""
    groups = groups_of(store.manifest().files)
    for group in groups:
        if isinstance(store, LocalStore):
            one: ArchiveFile | None = _join_here(store, group, run)
        else:
            one = _join_by_spark(store, session, group)
        if one is None:
            continue
        removed = tuple(file.path for file in group)
        if set(removed) <= {file.path for file in store.manifest().files}:
            commit = Commit(time.time(), run, added=(one,), removed=removed)
            append(store, commit, still_valid=partial(_refuse_replaced, removed))
    return sum(map(len, groups))


def _refuse_replaced(removed: Sequence[str], manifest: Manifest) -> None:
    if not set(removed) <= {one.path for one in manifest.files}:
        raise ArchiveError("Somebody else has compacted this archive at the same time; nothing is lost.")


def _join_here(store: LocalStore, group: Sequence[ArchiveFile], run: str) -> ArchiveFile:
    """Row group after row group, so that memory stays small."""
    import pyarrow.parquet as pq

    facts = _placed(joined(group), f"{run}-joined")
    made = _ParquetFile(store.root / facts.path)
    try:
        for one in group:
            with pq.ParquetFile(store.root / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROW_GROUP_ROWS):
                    made.write(batch.cast(made.schema))
        return replace(facts, bytes=made.finish())
    finally:
        made.discard()


def _join_by_spark(store: Store, session: "StartedSpark", group: Sequence[ArchiveFile]) -> ArchiveFile | None:
    folder = f"data/run=joined-{uuid.uuid4().hex[:12]}"
    paths = [store.location(one.path) for one in group]
    frame = session.spark.read.schema(spark_schema()).parquet(*paths).coalesce(1)
    ordered = frame.sortWithinPartitions("sequence_number")
    session.run(lambda: ordered.write.parquet(store.location(folder)), "Joining small files")
    files = ((path, size) for path, size, _ in store.list_data() if path.startswith(folder + "/"))
    written = [(path, size) for path, size in files if path.endswith(".parquet")]
    return replace(joined(group), path=written[0][0], bytes=written[0][1]) if len(written) == 1 else None


def vacuum(store: Store, *, now: float) -> int:
    """Delete data files that the manifest does not name and that nobody has touched for a day; how many there are still
    that it does not name."""
    manifest = store.manifest()
    current = {one.path for one in manifest.files}
    replaced = {path: commit.at for commit in manifest.commits for path in commit.removed}
    unnamed = 0
    for path, _, changed_at in store.list_data():
        if path in current:
            continue
        if max(changed_at, replaced.get(path, 0.0)) < now - KEEP_SECONDS:
            store.delete(path)
        else:
            unnamed += 1
    return unnamed
