"""One run of a replay at a time in a ledger's folder, also when tasks of an earlier one outlive it.

The file `run` names the run that may send, every task looks there before each batch, and a task's ledger stays claimed
while the task lives. Spark does not wait for the tasks of a job that failed; without this they would go on sending
beside the next run. Within a run `the_only_attempt` does the same for the attempts of a task, which Spark may start
beside one that it takes for lost or slow.

A job of a user's own has no such file. It leaves out what the ledger had before it began (`done_before`), by any job or
drain, and does not begin beside another job with the same ledger and destination (`the_only_job`).
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from sbpair.core.errors import UsageError
from sbpair.core.transfer.custody import REFUSED_OUTCOME
from sbpair.core.transfer.ledger import LedgerLine, Way
from sbpair.core.transfer.state import Key
from sbpair.files import claim, is_claimed, make_private_folder, open_private
from sbpair.pipeline.errors import RUN_AGAIN, ReplayError
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.source.new_messages import ROWS
from sbpair.runtime.transfer.ledger import Ledger, LedgerError, lines_in

RUN_FILE = "run"
ANY_TASK = "*"
TASKS_SECONDS = 40.0
"""How long tasks of a run that is over may take to notice: a little more than one send."""


@contextmanager
def ledger_of(
    connection: TaskConnection, folder: Path | None, way: Way, run: str, task: str
) -> Iterator[Ledger | None]:
    """A ledger that no other task or attempt writes; an empty one leaves no file. Raises ReplayError: it cannot be
    written."""
    if folder is None:
        yield None
        return
    path = folder / f"{run}-{task}-{os.urandom(3).hex()}.jsonl"
    try:
        make_private_folder(folder)
        ledger = Ledger(path, way=way)
        try:
            yield ledger
        finally:
            connection.run(ledger.close())
            if not path.stat().st_size:
                path.unlink()
    except LedgerError as error:
        raise ReplayError(error.message, hint=RUN_AGAIN) from error
    except OSError as error:
        raise ReplayError(f"Cannot write the ledger {path}: {error}.", hint=RUN_AGAIN) from error


DONE_OUTCOMES = ("forwarded", "already-forwarded", "dead-lettered", "ping", "duplicate")
"""Ledger outcomes after which a message is not sent again."""


def done_by(folder: Path, run: str, task: str) -> dict[Key, LedgerLine]:
    """What earlier attempts of a task, or of ANY_TASK, have sent or found to need no sending."""
    files = folder.glob(f"{run}-{task}-*.jsonl")
    return {line.key: line for path in files for line in lines_in(path) if line.outcome != REFUSED_OUTCOME}


def done_before(files: Iterable[tuple[Path, int]], way: Way, destination: str | None) -> frozenset[bytes]:
    """The `mark` of each message that ledgers, as `ledgers_before` finds them, have as done between these namespaces.
    Rows do not say on which namespace they lay: theirs match any. `destination`: only what went there counts; None: its
    destination is in the message."""
    wanted = None if destination is None else destination.lower()
    return frozenset().union(*(_done_in(path, size_bytes, way, wanted) for path, size_bytes in files))


@lru_cache(maxsize=4_096)
def _done_in(path: Path, _size_bytes: int, way: Way, wanted: str | None) -> frozenset[bytes]:
    """A worker of Spark reads a ledger once for all of its tasks, as long as nobody writes to it."""
    return frozenset(
        mark(line.key)
        for line in lines_in(path)
        if line.outcome in DONE_OUTCOMES
        and (line.way.get("from_namespace") in (None, way.from_namespace, ROWS) or way.from_namespace == ROWS)
        and line.way.get("to_namespace", way.to_namespace) == way.to_namespace
        and (wanted is None or str(line.destination).lower() == wanted)
    )


def mark(key: Key) -> bytes:
    """A key in 16 bytes: a worker keeps one for each message of the ledger, a third of what the key itself takes."""
    return hashlib.blake2b(repr(key).encode(), digest_size=16).digest()


def ledgers_before(folder: Path, *, of_run: str | None, without: str) -> tuple[tuple[Path, int], ...]:
    """The ledgers of a folder whose messages a job leaves out, with their sizes. `of_run`: only those that jobs of this
    run have written; None: all. `without`: those of the job itself begin with this."""
    own = re.compile(rf"{re.escape(of_run)}-[0-9a-f]{{8}}-\d{{5}}-[0-9a-f]{{6}}\.jsonl") if of_run is not None else None
    return tuple(
        (path, path.stat().st_size)
        for path in ledger_files(folder)
        if not path.name.startswith(f"{without}-") and (own is None or own.fullmatch(path.name))
    )


def the_only_job(folder: Path, run: str, job: str, *, tasks_seconds: float = TASKS_SECONDS) -> None:
    """Wait until no task of another job of this run is alive. Raises UsageError: one still is."""
    of_others = [path for path in folder.glob(f"{run}-*.jsonl") if not path.name.startswith(f"{run}-{job}-")]
    if not _ended(of_others, tasks_seconds):
        raise UsageError(
            f"Another job sends to the same destination with the ledger {folder}; this one sent nothing.",
            hint="Wait for its end, or stop it and what is left of it (its Spark executors); then run again.",
        )


# A stream has a run for each micro-batch, and each of its tasks a file. Those of micro-batches that are committed for
# good make one file together, or a stream of a day would leave some hundred thousand.

FOLDED_RUNS = 100
_OF_STREAM = re.compile(r"(?P<query>stream-.+)-(?P<batch>\d+)-\d{5}-[0-9a-f]{6}\.jsonl")
_FOLDED = re.compile(r"(?P<query>stream-.+)-to-(?P<last>\d+)\.jsonl")


def stream_run(query: str, batch: int | str) -> str:
    """The name of a micro-batch in the ledger's files, the same each time it runs."""
    return f"stream-{query}-{batch}"


def query_of(run: str) -> str:
    """The query whose micro-batch a run is."""
    return run.removeprefix("stream-").rpartition("-")[0]


def refuse_folded(folder: Path, run: str) -> None:
    """For a task that has its ledger open, so that nothing is folded from now on. Raises ReplayError: the run is a
    micro-batch whose lines were folded, and what it has sent is not found by its name."""
    if int(run.rpartition("-")[2]) <= _folded_to(folder).get(f"stream-{query_of(run)}", -1):
        raise ReplayError("This task belongs to a micro-batch that is over; it sent nothing.")


def fold_stream(folder: Path, query: str, batch: int) -> None:
    """Put the ledgers of a query's micro-batches before `batch` into one file, once there are FOLDED_RUNS of them.

    `batch` was just sent, so Spark has noted that those before it are committed, and runs none of them again. A file
    that a task of a lost executor still has stays, and all after it. Raises ReplayError: the folder cannot be written;
    nothing was lost."""
    folded = _folded_to(folder).get(f"stream-{query}", -1)
    files = sorted(
        (int(found["batch"]), path)
        for path in folder.glob(f"stream-{query}-*.jsonl")
        if (found := _OF_STREAM.fullmatch(path.name)) and found["query"] == f"stream-{query}"
    )
    whole = [(number, path) for number, path in files if folded < number < batch]
    if claimed := [number for number, path in whole if is_claimed(path)]:
        whole = [(number, path) for number, path in whole if number < min(claimed)]
    if len({number for number, _ in whole}) < FOLDED_RUNS:
        return
    try:
        for number, path in files:
            if number <= folded:  # a crash came before it was removed
                path.unlink(missing_ok=True)
        target = folder / f"stream-{query}-to-{whole[-1][0]}.jsonl"
        part = target.with_suffix(".part")
        with open_private(part, "wb") as file:
            for _, path in whole:
                lines = path.read_bytes()
                file.write(lines[: lines.rfind(b"\n") + 1])  # without a line that the end of a process cut off
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        for _, path in whole:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ReplayError(f"Cannot write the ledger {folder}: {error}.", hint=RUN_AGAIN) from error


def ledger_files(folder: Path) -> list[Path]:
    """The ledgers of a folder, each line once: without those that are in a folded file and not removed yet."""
    covered = _folded_to(folder)
    return [
        path
        for path in sorted(folder.glob("*.jsonl"))
        if not ((found := _OF_STREAM.fullmatch(path.name)) and int(found["batch"]) <= covered.get(found["query"], -1))
    ]


def _folded_to(folder: Path) -> dict[str, int]:
    """The last micro-batch of each query whose lines are in a folded file."""
    last: dict[str, int] = {}
    for path in folder.glob("stream-*-to-*.jsonl"):
        if found := _FOLDED.fullmatch(path.name):
            last[found["query"]] = max(int(found["last"]), last.get(found["query"], -1))
    return last


def check_run(folder: Path, run: str) -> None:
    """Raises ReplayError when the run is over, or another one has begun."""
    if (folder / RUN_FILE).read_text() != run:
        raise ReplayError("This replay was ended; the ledger has what its tasks had sent by then.")


@contextmanager
def the_only_attempt(folder: Path, run: str, task: str) -> Iterator[None]:
    """Let one attempt of a task send at a time. Another one waits for its end, and finds in the ledger what it sent."""
    with _opened(folder / f"{run}-{task}.lock") as file:
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
    """Remove what `the_only_attempt` locked for tasks that have ended. `run` may be a pattern."""
    for path in folder.glob(f"{run}-*.lock"):
        path.unlink(missing_ok=True)


@contextmanager
def the_only_run(folder: Path, run: str, *, tasks_seconds: float = TASKS_SECONDS) -> Iterator[None]:
    """Let this run send, and no other that uses the folder. On leaving nothing of it sends any more. Raises UsageError:
    another run has the folder, or a task of one is still alive after `tasks_seconds`; ReplayError: the folder cannot be
    made or written."""
    with _opened(folder / RUN_FILE) as file:
        if not claim(file):
            raise UsageError(
                f"Another replay is writing the ledger {folder}.", hint="Wait for its end, or stop it; then run again."
            )
        _write_run(file, "")
        if not _ended(folder.glob("*.jsonl"), tasks_seconds):
            raise UsageError(
                f"A task of an earlier replay is still writing the ledger {folder}.",
                hint="End what is left of it (its Spark executors), then run again.",
            )
        _write_run(file, run)
        try:
            yield
        finally:
            _write_run(file, "")
            _ended(folder.glob("*.jsonl"), tasks_seconds)


def _ended(ledgers: Iterable[Path], seconds: float) -> bool:
    """Whether nobody writes them any more, after up to that long."""
    deadline, paths = time.monotonic() + seconds, list(ledgers)
    while any(is_claimed(path) for path in paths):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _write_run(file: BinaryIO, run: str) -> None:
    file.truncate(0)
    file.write(run.encode())
    file.flush()
