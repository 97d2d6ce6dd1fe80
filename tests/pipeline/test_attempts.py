"""Attempts of one task beside each other, as Spark runs them for a task that it takes for lost or slow."""

import threading
from pathlib import Path

import pyarrow.parquet as pq

from sbpair.core.message import Disposition
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.files import Archiving
from sbpair.pipeline.rows import STORED_COLUMNS, spark_schema
from sbpair.pipeline.runs import done_by, drop_locks, ledger_of, the_only_attempt
from sbpair.pipeline.source.writer import ReplayWriter, WriteOptions
from sbpair.pipeline.spans import NumberRange
from tests.pipeline.stage import Stage, backlog, messages

EACH = 300


def archived_by(stage: Stage) -> tuple[Path, int]:
    """One attempt: the file it wrote and its rows."""
    root = Path(stage.archive_path)
    (file,), _ = Archiving(stage.pair, root, "run").of(NumberRange(backlog(0), False, 1, EACH))
    return root / file.path, file.rows


def test_an_attempt_that_finds_less_replaces_nothing_that_counts(stage: Stage) -> None:
    """The first one is committed and completed in its queue while the other, given up, still looks at what is left."""
    stage.divert(messages(EACH))
    path, rows = archived_by(stage)
    assert rows == EACH
    with TaskConnection.to(stage.pair, "secondary") as connection:
        receiver = connection.receiver(backlog(0), dead_letter=False)
        completed = 0
        while completed < 100:  # a receive may give fewer than it was asked for
            for one in connection.run(receiver.receive(100 - completed, wait_seconds=10)):
                connection.run(receiver.settle(one, Disposition.COMPLETE))
                completed += 1
    late_path, late_rows = archived_by(stage)
    assert late_rows == EACH - 100
    assert late_path != path
    assert pq.ParquetFile(path).metadata.num_rows == EACH


def test_two_attempts_of_a_replay_send_each_message_once(stage: Stage) -> None:
    stage.divert(messages(EACH, sessions=5))
    path, _ = archived_by(stage)
    given = stage.options | {"ledger": str(stage.ledger), "reserve": "400"}
    writer = ReplayWriter(WriteOptions.parse(given, overwrite=False), spark_schema())
    tallies = []

    def attempt() -> None:
        with pq.ParquetFile(path) as file:
            tallies.append(writer.write(file.iter_batches(100, columns=list(STORED_COLUMNS))).tally)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived = [one.message_id for one in stage.at_home()]
    assert (len(arrived), set(arrived)) == (EACH, {f"m-{number}" for number in range(EACH)})
    # Spark keeps the answer of one of them only, so both say what was sent.
    assert sorted((one.per_destination["orders"], one.skipped) for one in tallies) == [(EACH, 0), (EACH, EACH)]
    writer.commit([])
    (ledger,) = stage.ledger.iterdir()  # an attempt that sent nothing leaves none, and the locks are gone
    assert ledger.suffix == ".jsonl"


def test_an_attempt_waits_until_the_one_before_has_ended(tmp_path: Path) -> None:
    began = threading.Event()
    order = []

    def second() -> None:
        began.set()
        with the_only_attempt(tmp_path, "run", "00000"):
            order.append("second")

    thread = threading.Thread(target=second)
    with the_only_attempt(tmp_path, "run", "00000"), the_only_attempt(tmp_path, "run", "00001"):
        thread.start()
        assert began.wait(60)
        thread.join(0.5)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    drop_locks(tmp_path, "run")
    assert list(tmp_path.iterdir()) == []


def line(number: int, outcome: str = "forwarded") -> LedgerEntry:
    return LedgerEntry("q/$deadletterqueue", number, "m", 5, "orders", None, outcome, "2026-11-21T00:00:00+00:00")


def test_what_an_attempt_sent_is_known_to_the_next(tmp_path: Path, stage: Stage) -> None:
    """It may have sent everything and been lost before it could say so."""
    with TaskConnection.to(stage.pair, "primary") as connection:
        for entries in ([line(1), line(2, "refused")], [line(3)]):
            with ledger_of(connection, tmp_path, stage.pair.way(), "run", "00003") as ledger:
                assert ledger is not None
                connection.run(ledger.record(entries))
    with next(tmp_path.glob("*.jsonl")).open("ab") as file:
        file.write(line(4).line()[:-5])  # cut off by a crash
    assert set(done_by(tmp_path, "run", "00003")) == {("q/$deadletterqueue", number, "m", 5) for number in (1, 3)}
    assert done_by(tmp_path, "run", "00004") == {}


def test_a_task_without_messages_leaves_nothing(tmp_path: Path, stage: Stage) -> None:
    folder = tmp_path / "ledger"
    with (
        TaskConnection.to(stage.pair, "primary") as connection,
        ledger_of(connection, folder, stage.pair.way(), "run", "00003") as ledger,
    ):
        assert ledger is not None
    assert list(folder.iterdir()) == []
