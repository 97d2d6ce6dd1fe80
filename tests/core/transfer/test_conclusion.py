"""The exit code of a run says why messages are left, if that is one reason."""

from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.errors import ConnectionLostError, ServiceError, UnauthorizedError
from sbpair.core.outcome import Exit
from sbpair.core.transfer.conclusion import Asked, closing, further, hindered_by
from sbpair.core.transfer.report import DrainReport, QueueFailure, reasons

AWAY = "destination unavailable: orders (connection-lost)"
DENIED = "destination unavailable: orders (unauthorized)"


@pytest.mark.parametrize(
    ("left", "failures", "exit"),
    [
        ([], [], None),
        ([AWAY], [], Exit.UNREACHABLE),
        ([DENIED], [], Exit.DENIED),
        ([], [ConnectionLostError("gone")], Exit.UNREACHABLE),
        ([], [UnauthorizedError("no")], Exit.DENIED),
        ([AWAY], [ConnectionLostError("gone")], Exit.UNREACHABLE),
        ([AWAY, DENIED], [], Exit.PARTIAL),
        ([AWAY], [UnauthorizedError("no")], Exit.PARTIAL),
        (["locked"], [], Exit.PARTIAL),
        ([AWAY, "locked"], [], Exit.PARTIAL),
    ],
)
def test_one_reason_for_all_that_is_left_is_told(
    left: list[str], failures: list[ServiceError], exit: Exit | None
) -> None:
    report = DrainReport(
        left=reasons(dict.fromkeys(left, 3)), failures=tuple(QueueFailure("queue", error) for error in failures)
    )
    assert hindered_by(report) is exit
    assert hindered_by(replace(report, dead_lettered=1)) is Exit.PARTIAL


def test_what_the_run_was_asked_about_is_told_first() -> None:
    queue = QueueContents("contoso/x-servicebus-transfer/0", active=2, deferred=0, scheduled=0, dead_letter=3)
    left, waiting = Backlog("orders", 1000.0, (queue,)), "2 messages are waiting"
    asked = Asked("orders", "contoso", "sbpair drain orders", dead_letter=True)
    assert "3 dead letters remain" in closing(DrainReport(), left, asked)
    assert [waiting in one for one in further(DrainReport(), left, asked)] == [True]
    asked = replace(asked, dead_letter=False)
    assert waiting in closing(DrainReport(), left, asked)
    assert ["3 dead letters remain" in one for one in further(DrainReport(), left, asked)] == [True]


NEXT = "sbpair drain orders --destination x --ledger l.jsonl"
REST = [
    "2 messages are waiting in 1 queue. Run: sbpair drain orders --ledger l.jsonl",
    "3 dead letters remain in 1 queue. Run: sbpair drain orders --ledger l.jsonl; "
    "then: sbpair drain orders --dlq --ledger l.jsonl",
    "4 deferred messages remain in 1 queue. Run: sbpair drain orders --deferred --ledger l.jsonl",
]
GONE = "destination unavailable: x (entity-not-found)"


@pytest.mark.parametrize(
    ("done", "notes", "last"),
    [
        (DrainReport(forwarded=1, filtered_out=2), REST, "Nothing that matches the filter is left."),
        (
            DrainReport(filtered_out=2),
            [
                "Of 2 messages none matches the filter. Their destinations: sbpair peek orders --group-by destination",
                *REST,
            ],
            "Nothing that matches the filter is left.",
        ),
        (
            DrainReport(forwarded=1, filtered_out=2, left=reasons({"deferred": 4})),
            REST,
            f"Nothing that matches the filter is left but 4 deferred messages. Run: {NEXT} --deferred",
        ),
        (
            DrainReport(filtered_out=1, left=reasons({GONE: 1, "deferred": 4})),
            [
                "1 message is left (entity-not-found). The destination does not exist. Create it and drain again, or "
                "drain with --on-missing dead-letter.",
                REST[1].replace("sbpair drain orders --ledger l.jsonl", NEXT),
                REST[2],
            ],
            "2 messages are waiting in 1 queue, whether they match the filter or not. Make the changes above first, or "
            f"they are left again. Run: {NEXT}",
        ),
    ],
)
def test_a_filtered_run_names_one_command_for_what_it_was_asked_about(
    done: DrainReport, notes: list[str], last: str
) -> None:
    queue = QueueContents("contoso/x-servicebus-transfer/0", active=2, deferred=4, scheduled=0, dead_letter=3)
    left, ledger = Backlog("orders", 1000.0, (queue,)), Path("l.jsonl")
    asked = Asked("orders", "contoso", NEXT, filtered=True, ledger=ledger)
    assert list(further(done, left, asked)) == notes
    assert closing(done, left, asked).endswith(f" on contoso. {last}")


def test_an_archive_does_not_take_the_ledger_of_messages_that_were_sent() -> None:
    queue = QueueContents("contoso/x-servicebus-transfer/0", active=0, deferred=0, scheduled=0, dead_letter=3)
    left = Backlog("orders", 1000.0, (queue,))
    asked = Asked("orders", "contoso", "sbpair drain orders --dlq", dead_letter=True, ledger=Path("l.jsonl"))
    report = DrainReport(left=reasons({"undeliverable: NotABacklogMessage": 3}))
    for done in (report, replace(report, archive=Path("kept"))):
        assert "--ledger" not in closing(done, left, asked)
