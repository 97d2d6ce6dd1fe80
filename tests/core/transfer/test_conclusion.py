"""The exit code of a run says why messages are left, if that is one reason."""

from dataclasses import replace

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
