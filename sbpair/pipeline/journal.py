"""A replay's ledger while it is written: JSON Lines, on disk before the next batch goes out.

One file per task attempt in the ledger's folder. When a task is done its lines go on as Parquet (`Journal.finish`); the
driver folds those of tasks that broke down (`ledgers.fold`), and what a crash left is read as it is. A line cut off by
the crash is no line: its message may be sent again, which the message id lets the destination notice.

One run writes at a time, and `the_only_run` sees to it: the file `run` names the run that may send, every task looks
there before each batch, and a journal stays claimed while its task lives. Spark does not wait for the tasks of a job
that failed; without this they would go on sending beside the next run. Within a run `the_only_attempt` does the same
for the attempts of a task, which Spark may start beside one that it takes for lost or slow.
"""

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from sbpair.core.errors import UsageError
from sbpair.core.redact import json_text
from sbpair.core.serialization import from_plain
from sbpair.files import AppendedFile, claim, is_claimed, make_private_file, make_private_folder, open_private
from sbpair.pipeline.errors import ReplayError
from sbpair.pipeline.paths import put_in_place
from sbpair.pipeline.rows import to_batch
from sbpair.pipeline.schemas import OUTCOME_COLUMNS, arrow_schema

Key = tuple[str, bool, int, int]
"""Queue, dead letter, sequence number, enqueued time in milliseconds (-1: none)."""
FORWARDED, PING, REFUSED = "forwarded", "ping", "refused"
KEY_NAMES = ("queue", "dead_letter", "sequence_number", "enqueued_at_ms")
FOLDED = "folded"
FOLD_ROWS = 20_000
RUN_FILE = "run"
_MOST_LINE_BYTES = 1024 * 1024
TASKS_SECONDS = 40.0
"""How long tasks of a run that is over may take to notice: a little more than one send."""


@dataclass(slots=True)
class Sent:
    """One line. `digest`: of the archived message, in base64; `time`: ISO 8601, UTC."""

    queue: str
    dead_letter: bool
    sequence_number: int
    enqueued_at_ms: int
    message_id: str | None
    session_id: str | None
    destination: str | None
    digest: str | None
    outcome: str
    time: str
    attempts: int = 1
    reason: str = ""

    @property
    def key(self) -> Key:
        return self.queue, self.dead_letter, self.sequence_number, self.enqueued_at_ms

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def outcome_row(self) -> tuple[Any, ...]:
        """In the order of OUTCOME_COLUMNS."""
        digest = None if self.digest is None else base64.b64decode(self.digest)
        at_us = round(datetime.fromisoformat(self.time).timestamp() * 1_000_000)
        return (*self.key, self.message_id, self.session_id, self.destination, digest, self.outcome, self.reason,
                self.attempts, at_us, None)  # fmt: skip


class Journal:
    """Appends what one task attempt has done. `only_run`: this is a run under `the_only_run`."""

    def __init__(self, folder: Path, run: str, partition: int, attempt: int, *, only_run: bool = False) -> None:
        self.path = folder / f"{run}-{partition:05d}-{attempt}-{os.urandom(3).hex()}.jsonl"
        self._run = run
        self._only_run = only_run
        try:
            make_private_folder(folder)
            self._file = AppendedFile(self.path, "xb")
        except OSError as error:
            raise ReplayError(f"Cannot write the ledger {self.path}: {error}.") from error
        self._file.claim()
        self._folded = _Folded(folder / FOLDED / f"{self.path.stem}.parquet")

    def check_run(self) -> None:
        """Raises ReplayError when the run is over, or another one has begun."""
        if self._only_run and _read_run(self.path.parent) != self._run:
            raise ReplayError("This replay was ended; the ledger has what its tasks had sent by then.")

    def record(self, lines: Iterable[Sent]) -> None:
        """Returns when the lines are on disk."""
        lines = list(lines)
        data = b"".join(json_text(one.plain()).encode() + b"\n" for one in lines)
        try:
            self._file.append(data)
        except OSError as error:
            raise ReplayError(f"Cannot write the ledger {self.path}: {error}.") from error
        self._folded.add(lines)

    def finish(self) -> None:
        """Everything is recorded: Parquet takes the place of the lines."""
        if self._folded.finish():
            self._file.close()
            self.path.unlink()

    def close(self) -> None:
        self._file.close()
        self._folded.discard()


class _Folded:
    """The lines of a journal as a Parquet file, which counts when it has its name. Where it cannot be written the
    lines stay what they are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}")
        self._rows: list[tuple[Any, ...]] = []
        self._writer: Any = None
        self._failed = False

    def add(self, lines: Iterable[Sent]) -> None:
        self._rows += (one.outcome_row() for one in lines)
        if len(self._rows) >= FOLD_ROWS:
            self._write()

    def _write(self) -> None:
        import pyarrow.parquet as pq

        rows, self._rows = self._rows, []
        if self._failed:
            return
        schema = arrow_schema(OUTCOME_COLUMNS)
        try:
            if self._writer is None:
                make_private_folder(self._temporary.parent)
                make_private_file(self._temporary)
                self._writer = pq.ParquetWriter(self._temporary, schema, compression="zstd")
            self._writer.write_batch(to_batch(rows, schema))
        except OSError:
            self._failed = True

    def finish(self) -> bool:
        """Whether it is there."""
        if not self._rows and self._writer is None:
            return not self._failed
        self._write()
        if self._failed:
            return False
        try:
            self._writer.close()
            put_in_place(self._temporary, self._path)
        except OSError:
            return False
        return True

    def discard(self) -> None:
        """Leave nothing behind but a finished file."""
        if self._writer is not None:
            with suppress(OSError):  # a full disk does not take the file's end either
                self._writer.close()
            self._temporary.unlink(missing_ok=True)


@contextmanager
def the_only_attempt(folder: Path, run: str, partition: int) -> Iterator[None]:
    """Let one attempt of a task send at a time. Another one waits for its end, and finds in the ledger what it sent."""
    with _opened(folder / _lock_name(run, f"{partition:05d}")) as file:
        while not claim(file):
            time.sleep(0.1)
        yield


def _opened(path: Path) -> BinaryIO:
    try:
        make_private_folder(path.parent)
        return open_private(path, "a+b")
    except OSError as error:
        raise ReplayError(f"Cannot write the ledger {path.parent}: {error}.") from error


def drop_locks(folder: Path, run: str) -> None:
    """Remove what `the_only_attempt` locked for tasks that have ended."""
    for path in folder.glob(_lock_name(run, "*")):
        path.unlink(missing_ok=True)


def _lock_name(run: str, partition: str) -> str:
    return f"{run}-{partition}.lock"


@contextmanager
def the_only_run(folder: Path, run: str, *, tasks_seconds: float = TASKS_SECONDS) -> Iterator[None]:
    """Let this run send, and no other that uses the folder. On leaving nothing of it sends any more.

    Raises:
        UsageError: another run has the folder, or a task of one is still alive after `tasks_seconds`.
        ReplayError: the folder cannot be made or written.
    """
    with _opened(folder / RUN_FILE) as file:
        if not claim(file):
            raise UsageError(
                f"Another replay is writing the ledger {folder}.", hint="Wait for its end, or stop it; then run again."
            )
        _write_run(file, "")
        if not _tasks_ended(folder, tasks_seconds):
            raise UsageError(
                f"A task of an earlier replay is still writing the ledger {folder}.",
                hint="End what is left of it (its Spark executors), then run again.",
            )
        _write_run(file, run)
        try:
            yield
        finally:
            _write_run(file, "")
            _tasks_ended(folder, tasks_seconds)


def _tasks_ended(folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(is_claimed(path) for path in folder.glob("*.jsonl")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _write_run(file: BinaryIO, run: str) -> None:
    file.truncate(0)
    file.write(run.encode())
    file.flush()


def _read_run(folder: Path) -> str:
    return (folder / RUN_FILE).read_text()


def done_by(folder: Path, run: str, partition: int) -> set[Key]:
    """What earlier attempts of a task have sent, or found to need no sending."""
    found: set[Key] = set()
    for path in folder.glob(f"{run}-{partition:05d}-*.jsonl"):
        found |= {one.key for one in read_lines(path) if one.outcome != REFUSED}
    for path in (folder / FOLDED).glob(f"{run}-{partition:05d}-*.parquet"):
        found |= _done_in(path)
    return found


def _done_in(folded: Path) -> set[Key]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(folded) as file:
        columns = file.read([*KEY_NAMES, "outcome"]).to_pydict()
    keys = zip(*(columns[name] for name in KEY_NAMES), strict=True)
    return {key for key, outcome in zip(keys, columns["outcome"], strict=True) if outcome != REFUSED}


def read_lines(path: Path) -> Iterator[Sent]:
    """The whole lines of a journal."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
            if line.endswith(b"\n"):
                yield _sent(line, path, number)
            elif file.read(1):
                raise _no_ledger(path, number)


def _sent(line: bytes, path: Path, number: int) -> Sent:
    try:
        return from_plain(Sent, json.loads(line), "line")
    except (ValueError, RecursionError, UsageError) as error:
        raise _no_ledger(path, number) from error


def _no_ledger(path: Path, number: int) -> ReplayError:
    return ReplayError(
        f"Line {number} of {path} is not a line of a replay's ledger.",
        hint="Give the ledger of the run to continue, or another folder.",
    )


def digest_text(digest: bytes | None) -> str | None:
    return None if digest is None else base64.b64encode(digest).decode()
