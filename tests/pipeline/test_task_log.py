"""Each task leaves a line of JSON in the log of its executor."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import SPARK_LOG_SCHEMA

from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.spark.session import Session
from sbpair.pipeline.task_log import LOGGER
from tests.pipeline.stage import Stage, backlog, messages


def lines_in(log: Path) -> list[dict[str, Any]]:
    """Of our tasks, with what they say."""
    rows = [json.loads(one) for one in log.read_text().splitlines() if one.startswith("{") and LOGGER in one]
    return [{"msg": row["msg"], **row["context"]} for row in rows if row["logger"] == LOGGER]


def test_archive_take_and_replay_say_what_each_task_did(session: Session, stage: Stage) -> None:
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
    assert len({(one["stage"], one["partition"]) for one in sent}) == 2
    assert "body 7" not in json.dumps(found)


def test_an_attempt_that_fails_says_why(session: Session, stage: Stage) -> None:
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
