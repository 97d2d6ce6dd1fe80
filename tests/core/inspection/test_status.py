"""What follows from samples of a pair: rates, the end of the backlog, one sentence."""

from dataclasses import replace

import pytest

from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.inspection.status import PairStatus, SideStatus, StatusReport
from sbpair.core.serialization import to_plain

SIDE = SideStatus("primary", "contoso", "reachable")
QUEUE = QueueContents(
    "q/0", active=100, deferred=0, dead_letter=1, scheduled=0, size_in_bytes=640_000, oldest_enqueued_at=400.0
)
STATUS = PairStatus("orders", 1000.0, SIDE, replace(SIDE, side="secondary"), Backlog("orders", 1000.0, (QUEUE,)))


def later(active: int | None, seconds: float = 10.0, **values: object) -> PairStatus:
    at = STATUS.taken_at + seconds
    queue = replace(QUEUE, active=active, dead_letter=0, oldest_enqueued_at=400.0 if active else None)
    return replace(STATUS, taken_at=at, backlog=Backlog("orders", at, (replace(queue, **values),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "rate", "left"),
    [
        (later(50), -5.0, 10.0),
        (later(100), 0.0, None),
        (later(130), 3.0, None),
        (later(0), -10.0, None),
        (later(None), None, None),
        (later(50, 0.0), None, None),
    ],
)
def test_rate_and_end(after: PairStatus, rate: float | None, left: float | None) -> None:
    found = StatusReport(after, STATUS)
    assert (found.rate_per_second, found.empty_in_seconds) == (rate, left)


def test_one_sample_has_no_rate() -> None:
    assert StatusReport(STATUS).rate_per_second is None


@pytest.mark.parametrize(
    ("status", "before", "words"),
    [
        (later(0), None, "The backlog is empty"),
        (later(None), None, "Not read: q/0"),
        (
            later(50),
            100,
            "50 messages are waiting in 1 queue, the oldest for 10m10s. Draining at 5.0/s, empty in about ",
        ),
        (later(50), 30, "Growing by 2.0/s."),
        (later(50), 50, "Nothing is draining them. Run: sbpair drain orders"),
        (later(0, dead_letter=3), 0, "3 dead letters remain in 1 queue. Run: sbpair peek orders --dlq"),
        (replace(later(5), primary=replace(SIDE, state="unreachable")), 5, "drain when it is back: sbpair drain"),
    ],
)
def test_the_sentence_says_what_will_become_of_it(status: PairStatus, before: int | None, words: str) -> None:
    assert words in StatusReport(status, None if before is None else later(before, 0.0)).outlook()


def test_what_comes_after_the_first_sentence_is_told_too() -> None:
    (note,) = StatusReport(STATUS).notes()
    assert note.endswith("sbpair drain orders --dlq")


def test_a_drain_is_reckoned_at_the_average_size() -> None:
    """101 messages of 640,000 bytes together are 6,337 bytes each: one step of 64 KB, so 3 operations each."""
    assert STATUS.drain.message_operations == 300


def test_data() -> None:
    told = to_plain(StatusReport(STATUS))
    assert told["oldest_age_seconds"] == 600.0
    assert (told["verdict"], told["confirmed_empty"], told["queues"][0]["state"]) == ("waiting", False, "waiting")
    assert told["next_commands"][0] == "sbpair drain orders"
    assert (told["pair"], told["active"], told["drain"]["message_operations"]) == ("orders", 100, 300)
