"""A replay's ledger: one run at a time, also when tasks of an earlier one outlive it."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sbpair.core.errors import UsageError
from sbpair.files import AppendedFile
from sbpair.pipeline.errors import ReplayError
from sbpair.pipeline.runs import check_run, the_only_run


def task_of(folder: Path, run: str) -> AppendedFile:
    """The ledger of a task, claimed as long as it is open."""
    file = AppendedFile(folder / f"{run}-00000-abc.jsonl")
    assert file.claim()
    return file


def test_a_task_stops_when_its_run_is_over(tmp_path: Path) -> None:
    with the_only_run(tmp_path, "one"):
        check_run(tmp_path, "one")
    with pytest.raises(ReplayError, match="was ended"):
        check_run(tmp_path, "one")
    with the_only_run(tmp_path, "two"), pytest.raises(ReplayError, match="was ended"):
        check_run(tmp_path, "one")


def test_a_run_ends_only_when_its_tasks_have(tmp_path: Path) -> None:
    """The task that still sends when the job has failed."""
    with the_only_run(tmp_path, "one"):
        task = task_of(tmp_path, "one")
        threading.Timer(0.5, task.close).start()
        began = time.monotonic()
    assert time.monotonic() - began >= 0.4


def test_a_run_does_not_begin_beside_a_task_of_another(tmp_path: Path) -> None:
    with (
        closing(task_of(tmp_path, "killed")),
        pytest.raises(UsageError, match="earlier replay is still writing"),
        the_only_run(tmp_path, "next", tasks_seconds=0.3),
    ):
        raise AssertionError("it began")
    with pytest.raises(ReplayError):
        check_run(tmp_path, "killed")
    with the_only_run(tmp_path, "next"):
        pass


def test_two_runs_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        the_only_run(tmp_path, "one"),
        pytest.raises(UsageError, match="Another replay is writing"),
        the_only_run(tmp_path, "two"),
    ):
        raise AssertionError("it began")
