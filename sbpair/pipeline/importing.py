"""Takes the JSON Lines file that `sbpair drain --archive DIR` writes into a Parquet archive.

One process wrote it, so one process reads it. A file is taken in once: the commit bears a
digest of it. A line that holds no message is copied into the folder `unsent` beside the file, as `restore` does.
"""

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.names import split_source
from sbpair.core.serialization import from_plain
from sbpair.core.transfer.restored import Unsendable
from sbpair.operations.restore import NO_MESSAGE, keep_lines
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.manifest import ArchiveFile, Commit, Covered, LocalStore, Manifest, append
from sbpair.pipeline.rows import message_row
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, Span
from sbpair.pipeline.units import UnitFiles

_MOST_LINE_BYTES = 256 * 1024 * 1024
"""Of a line with a message of 100 MB, the largest there is, in base64."""


class Added(NamedTuple):
    """What became of a file: what was written, its lines that hold no message, and the files that keep these."""

    files: list[ArchiveFile]
    unreadable: tuple[Unsendable, ...]
    kept_in: tuple[Path, ...]


def import_drained(store: LocalStore, pair: str, file: Path) -> Added:
    """Add the messages of a drain's archive; nothing if the same file was added before.

    Raises:
        UsageError: not such a file: no line of it is a message.
        SbpairError: the lines without a message cannot be kept. Nothing was added.
        ArchiveError: the archive cannot be written.
    """
    run = f"import-{_digest(file)}"
    if any(commit.run == run for commit in store.manifest().commits):
        return Added([], (), ())
    by_source: dict[str, UnitFiles] = {}
    unreadable: list[Unsendable] = []
    for received in _messages(file, unreadable):
        if received.source not in by_source:
            queue, dead_letter = split_source(received.source)
            span = Span(queue, dead_letter, 0, LAST_SEQUENCE_NUMBER)
            by_source[received.source] = UnitFiles(store.root, run, pair, span)
        by_source[received.source].add([message_row(pair, received)])
    if unreadable and not by_source:
        raise UsageError(f"Line {unreadable[0].line} of {file}, and all others, are no lines of a drain's archive.")
    kept_in = keep_lines(unreadable)
    added: list[ArchiveFile] = []
    for files in by_source.values():
        with files:
            pass
        added += files.written
    taken = tuple(Covered(one.pair, one.queue, one.dead_letter, one.first, one.last) for one in added)
    append(store, Commit(time.time(), run, added=tuple(added), taken=taken), still_valid=_once(run))
    return Added(added, tuple(unreadable), kept_in)


def _once(run: str) -> Any:
    def check(manifest: Manifest) -> None:
        if any(commit.run == run for commit in manifest.commits):
            raise ArchiveError("Somebody else has added the same file meanwhile; nothing was added twice.")

    return check


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error}.") from error


def _messages(file: Path, unreadable: list[Unsendable]) -> Iterator[Received]:
    """The whole lines; one that a crash cut off was never settled, so its message is still in the queue."""
    with file.open("rb") as opened:
        offset = 0
        for number, line in enumerate(iter(lambda: opened.readline(_MOST_LINE_BYTES), b""), 1):
            begins_at, offset = offset, offset + len(line)
            if not line.endswith(b"\n") and not opened.peek(1):
                return
            try:
                yield _message(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError, UsageError):
                why = "It is not a line of a drain's archive."
                unreadable.append(Unsendable(file, number, begins_at, len(line), NO_MESSAGE, why))


def _message(read: Any) -> Received:
    return Received(
        payload=base64.b64decode(read["payload_base64"], validate=True),
        sequence_number=from_plain(int, read["sequence_number"], "sequence_number"),
        source=from_plain(str, read["queue"], "queue"),
        message_id=None if read["message_id"] is None else from_plain(str, read["message_id"], "message_id"),
        enqueued_at=None if read["enqueued_at"] is None else from_plain(float, read["enqueued_at"], "enqueued_at"),
    )
