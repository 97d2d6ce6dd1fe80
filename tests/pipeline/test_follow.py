"""`pipeline follow`: what is new is archived once, and every end leaves a whole archive."""

import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from sbpair.core.errors import InterruptedWorkError
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.archive import ArchiveRequest, anything_behind, plan_archive
from sbpair.pipeline.follow import FollowRequest, follow
from sbpair.pipeline.manifest import Commit, Covered, LocalStore, append
from sbpair.pipeline.reports import ArchiveReport
from tests.cli.schema_checks import check_document
from tests.pipeline.stage import Stage, backlog, messages
from tests.pipeline.test_command_line import command, environment
from tests.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark


def request(stage: Stage, *, take: bool = False, **ends: Any) -> FollowRequest:
    archiving = ArchiveRequest(stage.pair, stage.archive_path, take=take, budget_per_second=20.0)
    return FollowRequest(archiving, every_seconds=0.1, **ends)


def archived(stage: Stage) -> Counter[str]:
    """How often each message is in the archive."""
    root = Path(stage.archive_path)
    files = LocalStore(root).manifest().files
    tables = (pq.ParquetFile(root / one.path).read(["message_id"]) for one in files)
    return Counter(name for table in tables for name in table["message_id"].to_pylist())


def never() -> "StartedSpark":
    raise AssertionError("Spark was started for nothing")


@pytest.mark.parametrize("ends", [{"for_seconds": 0.3}, {"until_idle_seconds": 0.3}])
def test_without_a_message_no_spark_is_started(stage: Stage, ends: dict[str, float]) -> None:
    report = follow(never, request(stage, **ends))
    assert (report.ended, report.rounds, report.total_rows) == ("time" if "for_seconds" in ends else "idle", 0, 0)
    assert not Path(stage.archive_path).exists()


@pytest.mark.spark
@pytest.mark.parametrize("take", [False, True])
def test_what_comes_later_is_added_once(session: "StartedSpark", stage: Stage, take: bool) -> None:
    stage.divert(messages(20, prefix="first", sessions=3))
    rounds: list[int] = []
    waits: list[float] = []

    def more(done: ArchiveReport) -> None:
        rounds.append(done.rows)
        waits.append(done.waited_seconds)
        if len(rounds) == 1:
            stage.divert(messages(7, prefix="later"), queue=1)

    report = follow(lambda: session, request(stage, take=take, until_idle_seconds=1.0), added=more)
    assert rounds == [20, 7]
    assert (report.ended, report.rounds, report.rows, report.total_rows) == ("idle", 2, 27, 27)
    assert archived(stage) == Counter(
        [f"first-{number}" for number in range(20)] + [f"later-{number}" for number in range(7)]
    )
    assert stage.in_backlog() == (0 if take else 27)
    assert report.settled == (27 if take else 0)
    assert 0 < report.waited_seconds == pytest.approx(sum(waits)), "what a budget leaves"
    again = follow(lambda: session, request(stage, take=take, for_seconds=0.0))
    assert (again.ended, again.rows, again.total_rows) == ("time", 0, 27)


@pytest.mark.spark
def test_it_does_not_end_before_it_has_looked_for_new_queues(session: "StartedSpark", stage: Stage) -> None:
    """Most looks only ask the queues that were there; so do those of a run that has nothing to do for a while."""
    stage.divert(messages(5))

    def another(done: ArchiveReport) -> None:
        if done.total_rows == 5:
            stage.emulator.namespace("shop-neu").create_queue(backlog(9), QueueDescription())
            stage.divert(messages(3, prefix="other"), queue=9)

    report = follow(lambda: session, request(stage, until_idle_seconds=1.0), added=another)
    assert (report.ended, report.rounds, report.total_rows) == ("idle", 2, 8)


def test_a_cheap_look_sees_what_is_behind_the_archive(stage: Stage) -> None:
    stage.emulator.namespace("shop-neu").create_queue(backlog(9), QueueDescription(enable_partitioning=True))
    archiving = ArchiveRequest(stage.pair, stage.archive_path)
    store = LocalStore(Path(stage.archive_path))
    sources = [(backlog(0), False), (backlog(9), False)]

    def seen() -> bool:
        return anything_behind(archiving, store.manifest(), sources)

    def cover() -> None:
        covered = tuple(Covered("shop", *astuple(one)) for one in plan_archive(archiving, store.manifest()).missing)
        append(store, Commit(time.time(), "run", covered=covered))

    assert not seen()
    for queue in (0, 9, 0):
        stage.divert(messages(20, prefix=f"m{queue}", sessions=7), queue=queue)
        assert seen()
        cover()
        assert not seen()
    # One more in a partition whose numbers are lower than those of others.
    stage.divert(messages(1, prefix="more", sessions=1), queue=9)
    assert seen()


@pytest.mark.spark
@pytest.mark.parametrize(("number", "ended"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_it_with_what_is_committed(
    session: "StartedSpark", stage: Stage, number: signal.Signals, ended: str
) -> None:
    before = signal.getsignal(number)
    stage.divert(messages(5))
    report = follow(lambda: session, request(stage), added=lambda _: signal.raise_signal(number))
    assert (report.ended, report.rows, report.total_rows) == (ended, 5, 5)
    assert signal.getsignal(number) is before
    assert archived(stage).total() == 5


def test_a_signal_that_was_swallowed_where_it_arrived_still_ends_it(stage: Stage) -> None:
    """As in an import or a finalizer of a library, at the moment at which it came."""

    def swallow() -> None:
        with suppress(InterruptedWorkError):
            signal.raise_signal(signal.SIGTERM)

    report = follow(never, request(stage, for_seconds=60.0), begun=swallow)
    assert report.ended == "terminated"


@pytest.mark.parametrize(("number", "code"), [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_ends_in_good_order(stage: Stage, number: signal.Signals | None, code: int) -> None:
    """An empty backlog: nothing of it needs a JVM."""
    given = ("--for", "1s") if number is None else ()
    asked = command(stage, "follow", "shop", "--archive", stage.archive_path, "--every", "1s", *given, "-o", "json")
    with subprocess.Popen(
        asked, env=environment(stage), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert first.endswith(f"Following shop into {stage.archive_path}, every 1s.\n"), first
            if number is not None:
                process.send_signal(number)
            printed, said = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == code, said
    assert "Traceback" not in said
    document = check_document("pipeline follow", printed)
    assert document["exit_code"] == process.returncode
    assert (
        document["data"]["ended"] == {None: "time", signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    )
