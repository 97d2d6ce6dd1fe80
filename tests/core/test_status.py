"""What follows from looks at a pair: rates, the end of the backlog, one sentence."""

from dataclasses import replace

import pytest

from sbpair.core.status import Look, QueueLook, SideLook, empty_in_seconds, outlook, rate_per_second, to_dict

SIDE = SideLook("primary", "contoso", "reachable")
LOOK = Look("orders", 1000.0, SIDE, replace(SIDE, side="secondary"), (QueueLook("q/0", 100, 1, 0, 640_000, 400.0),))


def later(active: int | None, seconds: float = 10.0) -> Look:
    return replace(LOOK, taken_at=LOOK.taken_at + seconds, queues=(QueueLook("q/0", active, 0, 0, 0, 400.0),))


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
def test_rate_and_end(after: Look, rate: float | None, left: float | None) -> None:
    assert rate_per_second(LOOK, after) == rate
    assert empty_in_seconds(after, rate) == left


def test_one_look_has_no_rate() -> None:
    assert rate_per_second(None, LOOK) is None


@pytest.mark.parametrize(
    ("look", "rate", "words"),
    [
        (later(0), None, "Nothing waits"),
        (later(None), None, "is not known"),
        (later(50), -5.0, "50 message(s) wait to go home, the oldest since 10m10s; 5.0/s go home: empty in about 10s."),
        (later(50), 2.0, "2.0/s more come in"),
        (later(50), 0.0, "none goes home at the moment. Bring them: sbpair drain orders"),
    ],
)
def test_the_sentence_says_what_will_become_of_it(look: Look, rate: float | None, words: str) -> None:
    assert words in outlook(look, rate)


def test_a_drain_is_reckoned_at_the_average_size() -> None:
    """101 messages of 640,000 bytes together are 6,337 bytes each: one step of 64 KB, so 3 operations each."""
    assert LOOK.drain.message_operations == 300


def test_states_and_unknown_counts() -> None:
    queues = (
        QueueLook("a", missing=True),
        QueueLook("b", 0, 0),
        QueueLook("c"),
        QueueLook("d", oldest_enqueued_at=1.0),
    )
    assert [queue.state for queue in queues] == ["missing", "empty", "unknown", "waiting"]
    look = replace(LOOK, queues=queues)
    assert look.active is None
    assert replace(LOOK, queues=queues[:2]).active == 0
    assert to_dict(look, None)["oldest_age_seconds"] == 999.0
