"""Attempts of one task beside each other, as Spark runs them for a task that it takes for lost or slow."""

import threading
from pathlib import Path

import pyarrow.parquet as pq

from sbpair.core.message import Disposition
from sbpair.pipeline.executors import Connection
from sbpair.pipeline.journal import FOLDED, Journal, Sent, done_by, drop_locks, the_only_attempt
from sbpair.pipeline.spans import Span
from sbpair.pipeline.units import Archiving
from sbpair.pipeline.writer import NEEDED_COLUMNS, ReplayWriter, WriteOptions
from tests.pipeline.stage import Stage, backlog, messages

EACH = 300


def archived_by(stage: Stage) -> tuple[Path, int]:
    """One attempt: the file it wrote and its rows."""
    root = Path(stage.archive_path)
    (file,) = Archiving(stage.pair, root, "run").of(Span(backlog(0), False, 1, EACH)).files
    return root / file.path, file.rows


def test_an_attempt_that_finds_less_replaces_nothing_that_counts(stage: Stage) -> None:
    """The first one is committed and completed in its queue while the other, given up, still looks at what is left."""
    stage.divert(messages(EACH))
    path, rows = archived_by(stage)
    assert rows == EACH
    with Connection.to(stage.pair, "secondary") as connection:
        receiver = connection.receiver(backlog(0), dead_letter=False)
        for one in connection.run(receiver.receive(100, wait_seconds=1)):
            connection.run(receiver.settle(one, Disposition.COMPLETE))
    late_path, late_rows = archived_by(stage)
    assert late_rows == EACH - 100
    assert late_path != path
    assert pq.ParquetFile(path).metadata.num_rows == EACH


def test_two_attempts_of_a_replay_send_each_message_once(stage: Stage) -> None:
    stage.divert(messages(EACH, sessions=5))
    path, _ = archived_by(stage)
    given = stage.options | {"ledger": str(stage.ledger), "run": "run", "rate": "600"}
    writer = ReplayWriter(WriteOptions.parse(given, overwrite=False), NEEDED_COLUMNS)
    tallies = []

    def attempt() -> None:
        with pq.ParquetFile(path) as file:
            tallies.append(writer.write(file.iter_batches(100, columns=list(NEEDED_COLUMNS))).tally)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived = [one.message_id for one in stage.at_home()]
    assert (len(arrived), set(arrived)) == (EACH, {f"m-{number}" for number in range(EACH)})
    assert sorted((one.outcomes.get("forwarded", 0), one.skipped) for one in tallies) == [(0, EACH), (EACH, 0)]
    writer.commit([])
    assert [path.name for path in stage.ledger.iterdir()] == [FOLDED]


def test_an_attempt_waits_until_the_one_before_has_ended(tmp_path: Path) -> None:
    began = threading.Event()
    order = []

    def second() -> None:
        began.set()
        with the_only_attempt(tmp_path, "run", 0):
            order.append("second")

    thread = threading.Thread(target=second)
    with the_only_attempt(tmp_path, "run", 0), the_only_attempt(tmp_path, "run", 1):
        thread.start()
        assert began.wait(10)
        thread.join(0.5)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    drop_locks(tmp_path, "run")
    assert list(tmp_path.iterdir()) == []


def line(number: int, outcome: str = "forwarded") -> Sent:
    return Sent("q", False, number, 5, "m", None, "orders", "AAAA", outcome, "2026-11-21T00:00:00+00:00")


def test_what_an_attempt_finished_is_known_to_the_next(tmp_path: Path) -> None:
    """It may have sent everything and been lost before it could say so."""
    journal = Journal(tmp_path, "run", 3, 0)
    journal.record([line(1), line(2, "refused")])
    journal.record([line(3)])
    journal.finish()
    journal.close()
    assert not journal.path.exists()
    assert done_by(tmp_path, "run", 3) == {line(1).key, line(3).key}
    assert done_by(tmp_path, "run", 4) == set()


def test_where_no_parquet_can_be_written_the_lines_stay(tmp_path: Path) -> None:
    (tmp_path / FOLDED).write_text("in the way")
    journal = Journal(tmp_path, "run", 3, 0)
    journal.record([line(1)])
    journal.finish()
    journal.close()
    assert journal.path.exists()
    assert done_by(tmp_path, "run", 3) == {line(1).key}


def test_a_task_without_messages_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "run", 3, 0)
    journal.finish()
    journal.close()
    assert list(tmp_path.iterdir()) == []
