"""A replay's ledger: one run at a time, also when tasks of an earlier one outlive it."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sbpair.core.errors import UsageError
from sbpair.pipeline.errors import ReplayError
from sbpair.pipeline.journal import Journal, the_only_run


def test_a_task_stops_when_its_run_is_over(tmp_path: Path) -> None:
    with the_only_run(tmp_path, "one"):
        task = Journal(tmp_path, "one", 0, 0, only_run=True)
        task.check_run()
        task.close()
    with pytest.raises(ReplayError, match="was ended"):
        task.check_run()
    with the_only_run(tmp_path, "two"), pytest.raises(ReplayError, match="was ended"):
        task.check_run()


def test_a_run_ends_only_when_its_tasks_have(tmp_path: Path) -> None:
    """The task that still sends when the job has failed."""
    with the_only_run(tmp_path, "one"):
        task = Journal(tmp_path, "one", 0, 0, only_run=True)
        threading.Timer(0.5, task.close).start()
        began = time.monotonic()
    assert time.monotonic() - began >= 0.4


def test_a_run_does_not_begin_beside_a_task_of_another(tmp_path: Path) -> None:
    with (
        closing(Journal(tmp_path, "killed", 0, 0, only_run=True)) as task,
        pytest.raises(UsageError, match="earlier replay is still writing"),
        the_only_run(tmp_path, "next", tasks_seconds=0.3),
    ):
        raise AssertionError("it began")
    with pytest.raises(ReplayError):
        task.check_run()
    with the_only_run(tmp_path, "next"):
        pass


def test_two_runs_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        the_only_run(tmp_path, "one"),
        pytest.raises(UsageError, match="Another replay is writing"),
        the_only_run(tmp_path, "two"),
    ):
        raise AssertionError("it began")


def test_a_journal_outside_such_a_run_asks_nobody(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, "free", 0, 0)) as task:
        task.check_run()
