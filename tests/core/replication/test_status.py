"""What a consumer of active/active says of its run."""

from sbpair.core.errors import ConnectionLostError, UnauthorizedError
from sbpair.core.outcome import Exit
from sbpair.core.replication.status import Consumed, ConsumeReport, Copies, NotRead
from sbpair.core.serialization import to_plain


def test_what_a_report_sums_up() -> None:
    counts = (
        Copies("primary", "completed", 3),
        Copies("secondary", "completed", 2),
        Copies("primary", "failed", 1),
        Copies("secondary", "dead-lettered", 4),
        Copies("primary", "dead-lettered", 0),
    )
    report = ConsumeReport(counts, 1.0, "stop")
    assert (report.total("completed"), report.dead_lettered, report.dead_lettered_on) == (
        5,
        5,
        ("primary", "secondary"),
    )
    assert ConsumeReport((Copies("secondary", "failed", 0),), 1.0, "stop").dead_lettered_on == ()


def test_what_is_left_is_told_with_the_command_that_shows_it() -> None:
    lost = NotRead("secondary", ConnectionLostError("No answer."))
    counts = (Copies("primary", "completed", 1200), Copies("primary", "failed", 1))
    done = Consumed("orders", "parcels", ConsumeReport(counts, 1.0, "idle", (lost,), 2, 1, 0.0))
    assert done.summary() == (
        "1,200 completed, 1 failed, 0 settled without processing, because they were finished. 1 copy was "
        "dead-lettered; see why: sbpair peek orders --entity parcels --side primary --dlq"
    )
    unread, copies, later, first = done.notes()
    assert unread.startswith("Not read: secondary: No answer.")
    assert copies == "The second copies of 2 messages are still to come. The same command settles what comes."
    assert later == "1 other message of parcels will come later."
    assert first == "The first scheduled message comes at 1970-01-01T00:00:00.000Z."
    plain = to_plain(done)
    assert (plain["pair"], plain["completed"], plain["not_read"][0]["side"]) == ("orders", 1200, "secondary")
    assert "session_requests" not in plain


def test_a_copy_that_was_not_met_is_not_said_to_come() -> None:
    (told,) = Consumed("orders", "parcels", ConsumeReport((), 1.0, "idle", (), 1)).notes()
    assert told.startswith("The second copy of 1 message was not met: ")


def test_what_was_not_read_comes_before_what_was_dead_lettered() -> None:
    lost, denied = ConnectionLostError("No answer."), UnauthorizedError("No.")
    one = (Copies("primary", "completed", 1),)
    assert ConsumeReport(one, 1.0, "idle").exit is Exit.OK
    assert ConsumeReport(one, 1.0, "idle", second_copies_out=1).exit is Exit.PARTIAL
    assert ConsumeReport((Copies("primary", "failed", 1),), 1.0, "idle").exit is Exit.PARTIAL
    assert ConsumeReport(one, 1.0, "time", (NotRead("primary", denied),)).exit is Exit.DENIED
    assert (
        ConsumeReport(one, 1.0, "idle", (NotRead("primary", denied), NotRead("secondary", lost))).exit
        is Exit.UNREACHABLE
    )
    assert ConsumeReport(one, 1.0, "count", (NotRead("secondary", lost),)).exit is Exit.OK
