"""Each task leaves a line of JSON in the log of its executor."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import SPARK_LOG_SCHEMA

from sbpair.core.transfer.pace import Pace
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.pipeline.tasks import CLAIM_PATIENCE_SECONDS, LOGGER, SharedPace, pace_of
from tests.pipeline.stage import Stage, backlog, messages


def lines_in(log: Path) -> list[dict[str, Any]]:
    """Of our tasks, with what they say."""
    rows = [json.loads(one) for one in log.read_text().splitlines() if one.startswith("{") and LOGGER in one]
    return [{"msg": row["msg"], **row["context"]} for row in rows if row["logger"] == LOGGER]


def test_archive_take_and_replay_say_what_each_task_did(session: StartedSpark, stage: Stage) -> None:
    before = len(lines_in(session.log))
    stage.divert(messages(150))
    stage.divert(messages(30, prefix="n"), queue=1)
    stage.archive(session, take=True)
    stage.emulator.faults("shop-weu").add("throttle:entity=orders,op=send,nth=1")
    report = stage.replay(session, tasks=2)
    found = lines_in(session.log)[before:]
    assert {one["msg"] for one in found} == {"task finished"}
    archived = [one for one in found if one["work"] == "archive"]
    assert sorted((one["queue"], one["first"], one["messages"]) for one in archived) == [
        (backlog(0), 1, 100),
        (backlog(0), 101, 50),
        (backlog(1), 1, 30),
    ]
    assert {(one["namespace"], one["attempt"], one["pauses"]) for one in archived} == {("shop-neu@localhost", 0, 0)}
    assert all(one["bytes"] > 100 * one["messages"] and one["seconds"] > 0 for one in archived)
    taken = [(one["queue"], one["messages"], one["gone"], one["left"]) for one in found if one["work"] == "complete"]
    assert sorted(taken) == [(backlog(0), 150, 0, 0), (backlog(1), 30, 0, 0)]
    sent = [one for one in found if one["work"] == "send"]
    assert sum(one["messages"] for one in sent) == report.forwarded == 180
    assert {one["run"] for one in sent} == {report.run}
    assert report.throttled == sum(one["pauses"] for one in sent) > 0, "the driver has the sum of its tasks"
    assert report.waited_seconds == pytest.approx(sum(one["waited_seconds"] for one in sent), abs=0.01)
    assert report.waited_seconds >= 0.2, "the refused batch waited for the end of its pause"
    assert {one["waited_seconds"] for one in archived} == {0}
    assert len({(one["stage"], one["partition"]) for one in sent}) == 2
    assert "body 7" not in json.dumps(found)


def test_an_attempt_that_fails_says_why(session: StartedSpark, stage: Stage) -> None:
    before = len(lines_in(session.log))
    stage.divert(messages(3))
    archive = Path(stage.archive_path)
    archive.mkdir()
    (archive / "data").write_text("in the way of the folder")
    with pytest.raises(ArchiveError):
        stage.archive(session)
    found = [one for one in lines_in(session.log)[before:] if one["work"] == "archive"]
    assert [one["attempt"] for one in found] == [0, 1, 2, 3]
    assert {(one["msg"], one["messages"]) for one in found} == {("task failed: archive", 3)}
    log = session.spark.read.schema(SPARK_LOG_SCHEMA).json(str(session.log)).where(f"logger = '{LOGGER}'")
    assert log.where("context['attempt'] = 3 and context['work'] = 'archive'").count(), "as the page reads it"


# What a task learns of a namespace's budget, all tasks of its machine know.

HOLDS = """
import pathlib, sys
from sbpair.pipeline.tasks import SharedPace
with SharedPace(pathlib.Path(sys.argv[1]))._held():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process in the middle of a change; it goes on when its input ends."""
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_one_learns_the_other_knows(tmp_path: Path) -> None:
    one, other = (SharedPace(tmp_path / "pace.json") for _ in range(2))
    assert (one.allowance(0.0), other.allowance(0.0)) == (None, None), "nobody was refused yet"
    one.accepted(200, 0.1)
    other.accepted(100, 0.2)
    pause = one.refused(0.3)
    assert other.allowance(0.4) == 0, "a pause is one of all"
    assert other.seconds_until_some(0.4) >= pause - 0.1
    assert other.refused(0.4) == pause - 0.1, "and what was under way is not refused a second time"
    assert (one.pauses, other.pauses) == (1, 1), "each counts its own"
    alone = Pace()
    alone.accepted(300, 0.2)
    alone.refused(0.3)
    for now in (2.0, 30.0):
        assert one.per_second(now) == other.per_second(now) == alone.per_second(now), (
            "both took part in the first second"
        )


def test_what_one_takes_the_other_lacks(tmp_path: Path) -> None:
    one, other = (SharedPace(tmp_path / "pace.json") for _ in range(2))
    one.accepted(100, 0.0)
    one.refused(0.1)
    some = one.allowance(3.0)
    assert some
    one.take(some)
    assert other.allowance(3.0) == 0
    assert 0 < other.seconds_until_some(3.0) < 0.2


def test_a_kill_in_the_middle_holds_nobody_up_and_what_is_cut_off_is_learnt_anew(tmp_path: Path) -> None:
    path = tmp_path / "pace.json"
    with holding(path) as process:
        process.send_signal(signal.SIGKILL)
    pace = SharedPace(path)
    pace.accepted(100, 0.0)
    pace.refused(0.1)
    path.write_bytes(path.read_bytes()[:-30])
    assert SharedPace(path).allowance(2.0) is None


def test_what_is_stopped_in_the_middle_holds_nobody_up_and_goes_on_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "pace.json"
    with holding(path) as process:
        process.send_signal(signal.SIGSTOP)
        began, one, other = time.monotonic(), SharedPace(path), SharedPace(path)
        one.accepted(100, 0.0)
        one.refused(0.1)
        assert (other.allowance(0.2), other.per_second(0.2)) == (0, 100.0), "both have a new file"
        assert time.monotonic() - began < CLAIM_PATIENCE_SECONDS + 5.0, "waited for once"
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        assert process.wait(30) == 0
    assert SharedPace(path).allowance(0.2) == 0, "what went on has changed its own file only"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_tasks_of_a_machine_share_a_pace_and_a_bound_is_a_part_of_its_own(session: StartedSpark) -> None:
    def learn(place: int) -> tuple[float | None, float | None]:
        pace = pace_of("shop-x", None)
        if place == 0:
            pace.accepted(100, 0.0)
            pace.refused(0.1)
        return pace.per_second(0.2), pace_of("shop-x", 50.0).per_second(0.2)

    (learnt,) = session.context.parallelize([0], 1).map(learn).collect()
    assert learnt == (100.0, 50.0)
    assert set(
        session.context.parallelize([1, 1], 2).map(lambda _: pace_of("shop-x").seconds_until_some(0.2) > 0).collect()
    ) == {True}
    assert type(pace_of("shop-x")) is Pace, "outside of a task nobody shares"
