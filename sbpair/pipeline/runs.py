"""One run of a replay at a time in a ledger's folder, also when tasks of an earlier one outlive it.

The file `run` names the run that may send, every task looks there before each batch, and a task's ledger stays claimed
while the task lives. Spark does not wait for the tasks of a job that failed; without this they would go on sending
beside the next run. Within a run `the_only_attempt` does the same for the attempts of a task, which Spark may start
beside one that it takes for lost or slow.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sbpair.core.errors import UsageError
from sbpair.core.transfer.machine import REFUSED_OUTCOME
from sbpair.core.transfer.state import Key
from sbpair.files import claim, is_claimed, make_private_folder, open_private
from sbpair.pipeline.errors import RUN_AGAIN, ReplayError
from sbpair.pipeline.executors import Connection
from sbpair.runtime.transfer.ledger import Ledger, Way, outcomes_in

RUN_FILE = "run"
ANY_TASK = "*"
TASKS_SECONDS = 40.0
"""How long tasks of a run that is over may take to notice: a little more than one send."""


@contextmanager
def ledger_of(connection: Connection, folder: Path | None, way: Way, run: str, task: str) -> Iterator[Ledger | None]:
    """A ledger that no other task or attempt writes; an empty one leaves no file.

    Raises:
        ReplayError: it cannot be written.
    """
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
    except OSError as error:
        raise ReplayError(f"Cannot write the ledger {path}: {error}.", hint=RUN_AGAIN) from error


def task_name(partition: int) -> str:
    return f"{partition:05d}"


def done_by(folder: Path, run: str, task: str) -> set[Key]:
    """What earlier attempts of a task, or of ANY_TASK, have sent or found to need no sending."""
    files = folder.glob(f"{run}-{task}-*.jsonl")
    return {key for path in files for key, outcome in outcomes_in(path) if outcome != REFUSED_OUTCOME}


def check_run(folder: Path, run: str) -> None:
    """Raises ReplayError when the run is over, or another one has begun."""
    if (folder / RUN_FILE).read_text() != run:
        raise ReplayError("This replay was ended; the ledger has what its tasks had sent by then.")


@contextmanager
def the_only_attempt(folder: Path, run: str, task: str) -> Iterator[None]:
    """Let one attempt of a task send at a time. Another one waits for its end, and finds in the ledger what it sent."""
    with _opened(folder / _lock_name(run, task)) as file:
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


def _lock_name(run: str, task: str) -> str:
    return f"{run}-{task}.lock"


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
