"""Steps of a resend and the watch over each: when a step is over, and when the run stops."""

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.transfer.summary import Follow, Looked, Steps, Watch


def test_the_last_size_goes_on_and_no_step_is_larger_than_what_is_left() -> None:
    assert list(Steps.parse("1, 2,5").of(14)) == [1, 2, 5, 5, 1]
    assert list(Steps.parse("2,all").of(14)) == [2, 12]
    assert list(Steps.parse("all").of(0)) == []
    for text in ("", "0", "1,,2", "all,1", "-1", "x"):
        with pytest.raises(UsageError):
            Steps.parse(text)


def test_a_step_is_over_once_nothing_of_it_waits() -> None:
    watch = Watch(5, 30.0, 0.0)
    assert not watch.observe(Looked(2, {}, {1: 0, 2: 0}), 1.0)
    assert (watch.result.taken, watch.result.waiting, watch.why) == (3, 2, None)
    assert watch.observe(Looked(0, {}, {}), 2.0)
    assert (watch.result.taken, watch.result.waiting, watch.result.seconds, watch.why) == (5, 0, 2.0, None)


def test_a_message_that_came_back_ends_the_run_whatever_waits() -> None:
    watch = Watch(5, 30.0, 0.0)
    assert watch.observe(Looked(2, {"Poison": 1}, {1: 0}), 1.0)
    assert watch.why == "1 of 5 messages came back to the dead letters (Poison 1)"
    assert (watch.result.taken, watch.result.returned, watch.result.waiting) == (2, 1, 2)


def test_consumers_that_do_nothing_for_the_time_of_the_watch_end_the_run() -> None:
    watch = Watch(2, 30.0, 0.0)
    waits = Looked(1, {}, {1: 0})
    assert not watch.observe(waits, 29.0)
    assert not watch.observe(Looked(1, {}, {1: 1}), 29.5), "it was tried once more"
    assert not watch.observe(Looked(1, {}, {1: 1}), 59.0)
    assert watch.observe(Looked(1, {}, {1: 1}), 59.5)
    assert watch.why is not None and "nothing was taken from the queue for 30s" in watch.why


def test_of_equal_ids_as_many_are_of_the_step_as_were_sent() -> None:
    follow = Follow({"a": 1, "b": 2}, frozenset({1}))
    assert follow.those_of([(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, None), (6, "b"), (7, "b")]) == [1, 3, 5]
