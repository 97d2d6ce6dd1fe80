"""A replay's ledger: one run at a time, also when tasks of an earlier one outlive it."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from sbpair.core.errors import UsageError
from sbpair.files import AppendedFile
from sbpair.pipeline.errors import ReplayError
from sbpair.pipeline.runs import (
    FOLDED_RUNS,
    check_run,
    done_before,
    fold_stream,
    ledger_files,
    ledgers_before,
    mark,
    query_of,
    refuse_folded,
    stream_run,
    the_only_job,
    the_only_run,
)
from sbpair.runtime.transfer.ledger import LedgerEntry, Way, between


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


QUERY = "87f1a3c2-0000-4000-8000-123456789012"


def micro_batches(folder: Path, numbers: range) -> None:
    """A line for each of two tasks, of which the second was cut off while it wrote the next one."""
    for number in numbers:
        for task, cut in ((0, b""), (1, b'{"queue": "half a li')):
            path = folder / f"{stream_run(QUERY, number)}-{task:05d}-abc{task:03d}.jsonl"
            path.write_bytes(f'{{"line": "{number}/{task}"}}\n'.encode() + cut)


def lines_in(folder: Path) -> list[str]:
    return sorted(line for path in ledger_files(folder) for line in path.read_text().splitlines() if "half" not in line)


def test_ledgers_of_a_stream_become_one_file_of_each_line_once(tmp_path: Path) -> None:
    other = tmp_path / f"{stream_run('other', 1)}-00000-abc000.jsonl"
    other.write_text('{"line": "other"}\n')
    micro_batches(tmp_path, range(FOLDED_RUNS))
    fold_stream(tmp_path, QUERY, FOLDED_RUNS - 1)  # too few that are committed for good
    assert len(ledger_files(tmp_path)) == 2 * FOLDED_RUNS + 1
    before = lines_in(tmp_path)
    fold_stream(tmp_path, QUERY, FOLDED_RUNS)
    assert [path.name for path in ledger_files(tmp_path)] == [f"stream-{QUERY}-to-{FOLDED_RUNS - 1}.jsonl", other.name]
    assert lines_in(tmp_path) == before
    with pytest.raises(ReplayError, match="is over"):
        refuse_folded(tmp_path, stream_run(QUERY, 7))
    refuse_folded(tmp_path, stream_run(QUERY, FOLDED_RUNS))
    assert query_of(stream_run(QUERY, 12)) == QUERY


def test_a_crash_between_folding_and_removing_doubles_nothing(tmp_path: Path) -> None:
    micro_batches(tmp_path, range(FOLDED_RUNS))
    before = lines_in(tmp_path)
    fold_stream(tmp_path, QUERY, FOLDED_RUNS)
    micro_batches(tmp_path, range(FOLDED_RUNS))  # as if they had not been removed
    assert lines_in(tmp_path) == before
    fold_stream(tmp_path, QUERY, FOLDED_RUNS)
    assert lines_in(tmp_path) == before
    micro_batches(tmp_path, range(FOLDED_RUNS, 2 * FOLDED_RUNS))
    everything = lines_in(tmp_path)
    fold_stream(tmp_path, QUERY, 2 * FOLDED_RUNS)
    assert len(ledger_files(tmp_path)) == 2
    assert lines_in(tmp_path) == everything


def test_what_a_task_still_writes_is_not_folded(tmp_path: Path) -> None:
    micro_batches(tmp_path, range(FOLDED_RUNS + 20))
    with closing(AppendedFile(tmp_path / f"{stream_run(QUERY, 5)}-00001-abc001.jsonl")) as file:
        assert file.claim()
        fold_stream(tmp_path, QUERY, FOLDED_RUNS + 20)
        assert len(ledger_files(tmp_path)) == 2 * (FOLDED_RUNS + 20)
    fold_stream(tmp_path, QUERY, FOLDED_RUNS + 20)
    assert len(ledger_files(tmp_path)) == 1


def test_what_a_job_leaves_out_went_the_same_way_to_the_same_destination(tmp_path: Path) -> None:
    way = Way("rows", "shop-weu@localhost")
    entries = [
        LedgerEntry("rows", 0, message_id, -1, destination, None, outcome, "2026-11-21T00:00:00+00:00")
        for message_id, destination, outcome in (
            ("sent", "Orders", "forwarded"),
            ("elsewhere", "news", "forwarded"),
            ("refused", "orders", "refused"),
        )
    ]
    path = tmp_path / "to-x-00000000-00000-abcdef.jsonl"
    path.write_bytes(b"".join(entry.line(between(way)) for entry in entries))
    files = ledgers_before(tmp_path, of_run=None, without="to-x-11111111")
    assert done_before(files, way, "orders") == {mark(("rows", 0, "sent", -1))}
    assert len(done_before(files, way, None)) == 2
    assert done_before(files, Way("rows", "other"), None) == frozenset()
    assert ledgers_before(tmp_path, of_run=None, without="to-x-00000000") == ()
    assert [one.name for one, _ in ledgers_before(tmp_path, of_run="to-x", without="none")] == [path.name]
    assert ledgers_before(tmp_path, of_run="to", without="none") == ()


def test_a_job_does_not_begin_beside_another_one_to_the_same_destination(tmp_path: Path) -> None:
    with closing(AppendedFile(tmp_path / "to-x-00000000-00000-abcdef.jsonl")) as file:
        assert file.claim()
        with pytest.raises(UsageError, match="Another job sends to the same destination"):
            the_only_job(tmp_path, "to-x", "11111111", tasks_seconds=0.2)
        the_only_job(tmp_path, "to-x", "00000000", tasks_seconds=0.2)
    the_only_job(tmp_path, "to-x", "11111111", tasks_seconds=0.2)
