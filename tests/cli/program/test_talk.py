"""What is said on stderr in the form that `--log-format` asks for, from the first line to the error at the end."""

import json
import logging

import pytest

from sbpair.cli.log import TalkHandler
from sbpair.core.events import BacklogQueueLeft, DeadLettered, Event, LockedElsewhere, ReceiveFailed
from tests.cli.process import Sbpair


def test_an_error_is_a_json_line_too(sbpair: Sbpair) -> None:
    ran = sbpair("peek", "nobody", "--log-format", "json")
    assert ran.code == 2
    (line,) = [json.loads(text) for text in ran.stderr.splitlines()]
    assert (line["level"], "'nobody'" in line["message"], "sbpair.yaml" in line["hint"]) == ("error", True, True)
    assert line["time"].startswith("20")


def test_what_is_said_after_the_work_is_json_too(local: Sbpair) -> None:
    """In a pipe the table's notes and summary are talk."""
    ran = local("audit", "local", "--log-format", "json")
    assert ran.code == 5
    lines = [json.loads(text) for text in ran.stderr.splitlines()]
    assert {line["level"] for line in lines} == {"info"}, "on a busy machine also what it waits for"
    assert "in 1 pair" in lines[-1]["message"]


def test_a_consumer_says_what_it_does_as_json(local: Sbpair) -> None:
    assert local("replicate", "provision", "local", "boxes").code == 0
    consume = ("replicate", "consume", "local", "boxes", "--exec", "true", "--journal", "sqlite:talk.db")
    ran = local(*consume, "--until-idle", "1s", "--log-format", "json")
    assert ran.code == 0
    said = [json.loads(text)["message"] for text in ran.stderr.splitlines()]
    assert any("boxes" in text and "local" in text for text in said[:-1]), said
    assert said[-1].startswith("0 completed, 0 failed")


def test_messages_dead_lettered_for_one_reason_are_told_once_and_then_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """40 undeliverable messages are no 40 lines."""
    handler = TalkHandler()
    for number in range(40):
        event = DeadLettered(0.0, "q/0", number, "EntityNotFound", "The entity does not exist.")
        handler.handle(record(f"Dead-lettered message {number}.", event))
    handler.handle(record("Dead-lettered message 40.", DeadLettered(0.0, "q/0", 40, "MessageTooLarge", "Too large.")))
    handler.flush()
    assert capsys.readouterr().err.splitlines() == [
        "Dead-lettered message 0.",
        "Dead-lettered message 40.",
        "39 more dead-lettered: EntityNotFound.",
    ]


def test_failures_of_backlog_queues_are_told_once_and_then_counted(capsys: pytest.CaptureFixture[str]) -> None:
    handler = TalkHandler()
    for number in range(10):
        handler.handle(record(f"Queue {number} failed.", BacklogQueueLeft(0.0, f"q/{number}", "connection-lost", 1.0)))
    handler.flush()
    handler.handle(record("Queue 1 failed.", BacklogQueueLeft(0.0, "q/1", "connection-lost", 1.0)))
    handler.flush()
    assert capsys.readouterr().err.splitlines() == [
        "Queue 0 failed.",
        "9 more times a backlog queue failed: connection-lost.",
        "1 more time a backlog queue failed: connection-lost.",
    ]


def test_with_verbose_each_dead_lettered_message_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    handler = TalkHandler(each=True)
    for number in range(3):
        handler.handle(record(f"Message {number}.", DeadLettered(0.0, "q/0", number, "EntityNotFound", "")))
    handler.flush()
    assert capsys.readouterr().err.splitlines() == ["Message 0.", "Message 1.", "Message 2."]


def record(text: str, event: Event) -> logging.LogRecord:
    made = logging.LogRecord("sbpair", logging.INFO, __file__, 1, text, (), None)
    made.event = event
    return made


def test_lines_of_a_writing_command_as_json_name_the_pair(local: Sbpair) -> None:
    assert local("provision", "local").code == 0
    ran = local("drain", "local", "--log-format", "json")
    assert ran.code == 0
    assert {json.loads(line)["pair"] for line in ran.stderr.splitlines()} == {"local"}


async def test_a_queue_that_still_cannot_be_read_is_told_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    handler = TalkHandler()
    why = "Could not receive from q/0: connection refused"
    for code, text, seconds in (("connection-lost", why, 1.0), ("connection-lost", why, 2.0), ("timeout", "", None)):
        handler.handle(record("", ReceiveFailed(0.0, "q/0", code, seconds, text)))
        handler.flush()
    for queue in ("q/0", "q/1", "q/1"):
        handler.handle(record("", LockedElsewhere(0.0, queue, 6, 60.0)))
    handler.handle(record("Going on.", Event(0.0)))
    assert capsys.readouterr().err.splitlines() == [
        f"Cannot read q/0 (connection-lost: {why}); next try in 1s.",
        "Still cannot read q/0 (connection-lost); next try in 2s.",
        "Cannot read q/0 (timeout); no further try.",
        "Waiting in q/0 and 1 more: the next message of each is locked by another receiver (a killed run keeps its "
        "locks) until 00:01:00 UTC at the latest, unless it renews them; sessions are not overtaken.",
        "Going on.",
    ]
