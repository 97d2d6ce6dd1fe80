"""The exit code of a run says why messages are left, if that is one reason."""

from dataclasses import replace

import pytest

from sbpair.core.errors import ConnectionLostError, ServiceError, UnauthorizedError
from sbpair.core.outcome import Exit
from sbpair.core.transfer.conclusion import hindered_by
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
