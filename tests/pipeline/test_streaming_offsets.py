"""How far a stream has read, and how much of what is there one micro-batch takes."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.message import PARTITION_SHIFT, MessageState, Received
from sbpair.pipeline.spans import NumberRange
from sbpair.pipeline.streaming import Poll, after, moved, next_number, shared, spans_between, up_to, within_bytes

THIRD = 3 << PARTITION_SHIFT


def span(queue: str, first: int, last: int, *, dead_letter: bool = False) -> NumberRange:
    return NumberRange(queue, dead_letter, first, last)


def test_each_partition_and_sub_queue_has_a_place_of_its_own_and_equal_offsets_are_equal_texts() -> None:
    spans = [span("Q", THIRD + 5, THIRD + 9), span("Q", 1, 4), span("a", 7, 7, dead_letter=True)]
    offset = after({}, spans)
    assert offset == {"a/$deadletterqueue": {"0": 8}, "q": {"0": 5, "3": THIRD + 10}}
    assert json.dumps(offset) == json.dumps(after({}, reversed(spans)))
    assert json.loads(json.dumps(offset)) == offset
    assert moved({}, [(one, one.first) for one in spans])["q"] == {"0": 1, "3": THIRD + 5}


def test_a_partition_that_gets_its_first_message_later_is_read_from_its_beginning() -> None:
    offset = after({}, [span("q", 1, 100)])
    assert next_number(offset, "q", 0) == 101
    assert next_number(offset, "q", 3) == THIRD
    assert next_number(offset, "other", 0) == 1


def test_a_batch_reads_what_lies_between_two_offsets() -> None:
    start = after({}, [span("q", 1, 10), span("done", 1, 3)])
    end = after(start, [span("q", 11, 20), span("q", THIRD + 2, THIRD + 2)])
    sources = [("Q", False), ("done", False), ("new", False)]
    assert spans_between(start, end, sources) == [span("Q", 11, 20), span("Q", THIRD, THIRD + 2)]
    assert spans_between(end, end, sources) == []
    assert spans_between(start, end, []) == [span("q", 11, 20), span("q", THIRD, THIRD + 2)]


def test_a_start_beyond_the_planned_end_reads_nothing() -> None:
    """The first batch was planned, and its messages were completed before it ran again."""
    assert spans_between(moved({}, [(span("q", 50, 60), 50)]), after({}, [span("q", 1, 20)]), [("q", False)]) == []


def test_what_came_after_the_end_was_fixed_is_left() -> None:
    end = after({}, [span("q", 1, 10)])
    present = [span("q", 5, 30), span("q", THIRD + 1, THIRD + 1), span("later", 1, 2)]
    assert up_to(present, end) == [span("q", 5, 10)]
    assert up_to([span("q", 11, 30)], end) == []


def test_moving_one_partition_leaves_the_others() -> None:
    offset = after({}, [span("q", 1, 10), span("r", 1, 5)])
    assert moved(offset, [(span("r", 6, 6), 7)]) == {"q": {"0": 11}, "r": {"0": 7}}
    assert offset == {"q": {"0": 11}, "r": {"0": 6}}


@given(st.lists(st.integers(1, 60), max_size=6), st.integers(0, 120))
def test_a_share_is_as_much_as_there_is_up_to_the_limit(widths: list[int], most: int) -> None:
    spans = [span(f"q{index}", 10, 9 + width) for index, width in enumerate(widths)]
    taken = {one.queue: one for one in shared(spans, most)}
    assert sum(one.width for one in taken.values()) == min(most, sum(widths))
    assert all(one.first == 10 for one in taken.values())
    cut = [taken[one.queue].width if one.queue in taken else 0 for one in spans]
    shortened = [got for got, width in zip(cut, widths, strict=True) if got < width]
    assert not shortened or max(cut) - min(shortened) <= 1


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8), min_size=1, max_size=4), st.integers(1, 200))
def test_bytes_are_kept_within_the_limit_and_something_always_moves(queues: list[list[int]], most: int) -> None:
    spans = [span(f"q{index}", 1, len(sizes)) for index, sizes in enumerate(queues)]
    known = {f"q{index}": sizes for index, sizes in enumerate(queues)}

    def sizes(one: NumberRange) -> list[tuple[int, int]]:
        return list(enumerate(known[one.queue], start=1))

    taken = within_bytes(spans, most, sizes)
    used = [known[one.queue][number - 1] for one in taken for number in range(one.first, one.last + 1)]
    assert used
    assert sum(used) <= most or len(used) == 1


def test_numbers_behind_the_last_message_are_read_with_it() -> None:
    """What lies there has vanished meanwhile; to come back for it would be a batch without a row."""
    assert within_bytes([span("q", 1, 100)], 50, lambda _: [(3, 10), (7, 10)]) == [span("q", 1, 100)]
    assert within_bytes([span("q", 1, 100)], 15, lambda _: [(3, 10), (7, 10)]) == [span("q", 1, 3)]


def found(number: int, at_ms: int) -> Received:
    return Received(b"", number, "q", None, enqueued_at=at_ms / 1000)


def test_a_queue_that_was_made_again_is_read_from_its_beginning() -> None:
    first = Poll({})
    for number in (1, 500):
        assert first.unread("q", False, found(number, 1_000 * number)) == 1
    offset = first.after([span("q", 1, 500)])
    assert offset == {"q": {"0": 501, "0@": 500_000}}
    again = Poll(offset)
    assert again.unread("q", False, found(1, 900_000)) == 1
    assert again.made_again == {("q", 0): (1, 900_000)}
    assert again.unread("q", False, found(600, 950_000)) == 1
    end = again.after([span("q", 1, 600)])
    assert end == {"q": {"0": 601, "0#": 1, "0@": 950_000}}
    assert [(one.first, one.last) for one in spans_between(offset, end, [("q", False)])] == [(1, 600)]
    assert Poll(end).unread("q", False, found(601, 960_000)) == 601


def test_an_old_message_that_still_lies_there_is_no_sign_of_another_queue() -> None:
    poll = Poll({"q": {"0": 501, "0@": 500_000}})
    assert poll.unread("q", False, found(3, 501_000)) == 501  # brokers' clocks differ a little
    assert poll.unread("q", False, replace(found(4, 900_000), state=MessageState.SCHEDULED)) == 501
    assert not poll.made_again
    assert Poll({"q": {"0": 501}}).unread("q", False, found(1, 900_000)) == 501  # an offset of before


def test_numbers_that_hold_nothing_any_more_are_counted() -> None:
    poll = Poll({"q": {"0": 11, "0!": 2}, "q/$deadletterqueue": {"0": 11}})
    dead = NumberRange("q", True, 15, 20)
    assert (poll.missed(span("q", 15, 20)), poll.missed(dead), poll.missed(span("new", 5, 9))) == (4, 0, 0)
    assert poll.after([span("q", 15, 20), dead]) == {"q": {"0": 21, "0!": 6}, "q/$deadletterqueue": {"0": 21}}
