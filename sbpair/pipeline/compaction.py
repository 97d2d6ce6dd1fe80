"""Joins an archive's small files, and removes files that no longer belong to it.

What was replaced stays for a day: somebody may be reading it. The same day protects the files of a run that has not
committed yet.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sbpair.pipeline.manifest import ArchiveFile, Commit, LocalStore, Manifest, Store, append
from sbpair.pipeline.paths import put_in_place
from sbpair.pipeline.schemas import arrow_schema, message_schema
from sbpair.pipeline.units import ROW_GROUP_ROWS, file_metadata, folder_of

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import Session

SMALL_BYTES = 16 * 1024 * 1024
TARGET_BYTES = 128 * 1024 * 1024
SMALL_FILES = 8
"""This many small files of one day and queue are worth a compaction."""
KEEP_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Group:
    """Small files that become one."""

    files: tuple[ArchiveFile, ...]

    @property
    def joined(self) -> ArchiveFile:
        """The new file's facts, without path and size."""
        head = self.files[0]
        early = [one.first_enqueued_ms for one in self.files if one.first_enqueued_ms is not None]
        late = [one.last_enqueued_ms for one in self.files if one.last_enqueued_ms is not None]
        return replace(
            head,
            path="",
            rows=sum(one.rows for one in self.files),
            bytes=0,
            first=min(one.first for one in self.files),
            last=max(one.last for one in self.files),
            first_enqueued_ms=min(early, default=None),
            last_enqueued_ms=max(late, default=None),
        )


def groups_of(files: Sequence[ArchiveFile]) -> list[Group]:
    """Which small files to join: those of one queue and day, in the order of their numbers, up to the target size."""
    places: dict[tuple[str, str, bool, str], list[ArchiveFile]] = {}
    for one in files:
        if one.bytes < SMALL_BYTES:
            places.setdefault((one.pair, one.queue, one.dead_letter, one.date), []).append(one)
    found = (
        Group(tuple(part))
        for same in places.values()
        if len(same) >= SMALL_FILES
        for part in _up_to_target(sorted(same, key=lambda one: one.first))
    )
    return [group for group in found if len(group.files) > 1]


def _up_to_target(files: Sequence[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    part: list[ArchiveFile] = []
    for file in files:
        if part and sum(other.bytes for other in part) + file.bytes > TARGET_BYTES:
            yield part
            part = []
        part.append(file)
    if part:
        yield part


def compact(store: Store, session: "Session", run: str) -> int:
    """Join small files; how many were replaced. Somebody else's compaction at the same time wins."""
    groups = groups_of(store.manifest().files)
    for group in groups:
        joined = (
            _join_here(store, group, run) if isinstance(store, LocalStore) else _join_by_spark(store, session, group)
        )
        if joined is None:
            continue
        removed = tuple(one.path for one in group.files)
        commit = Commit(time.time(), run, added=(joined,), removed=removed)
        known = store.manifest()
        if set(removed) <= {one.path for one in known.files}:
            append(store, commit, still_valid=_unless_replaced(removed))
    return sum(len(group.files) for group in groups)


def _unless_replaced(removed: Sequence[str]) -> "object":
    from sbpair.pipeline.errors import ArchiveError

    def check(manifest: Manifest) -> None:
        if not set(removed) <= {one.path for one in manifest.files}:
            raise ArchiveError("Somebody else has compacted this archive at the same time; nothing is lost.")

    return check


def _join_here(store: LocalStore, group: Group, run: str) -> ArchiveFile:
    """Row group after row group, so that memory stays small."""
    import pyarrow.parquet as pq

    facts = group.joined
    kind = "dead-" if facts.dead_letter else ""
    name = f"{kind}{facts.first:020d}-{facts.last:020d}-{run}-joined.parquet"
    relative = f"{folder_of(facts.pair, facts.queue, facts.date)}/{name}"
    final = store.root / relative
    temporary = final.with_name(f".{name}")
    schema = arrow_schema().with_metadata(file_metadata())
    with pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as writer:
        for one in group.files:
            with pq.ParquetFile(store.root / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROW_GROUP_ROWS):
                    writer.write_batch(batch.cast(schema))
    put_in_place(temporary, final)
    return replace(facts, path=relative, bytes=final.stat().st_size)


def _join_by_spark(store: Store, session: "Session", group: Group) -> ArchiveFile | None:
    folder = f"data/run=joined-{uuid.uuid4().hex[:12]}"
    paths = [store.location(one.path) for one in group.files]
    frame = (
        session.spark.read.schema(message_schema()).parquet(*paths).coalesce(1).sortWithinPartitions("sequence_number")
    )
    session.run(lambda: frame.write.parquet(store.location(folder)), "Joining small files")
    written = [
        (path, size)
        for path, size, _ in store.list_data()
        if path.startswith(folder + "/") and path.endswith(".parquet")
    ]
    if len(written) != 1:
        return None
    return replace(group.joined, path=written[0][0], bytes=written[0][1])


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
