"""Stretches of sequence numbers: arithmetic that decides what is archived."""

import asyncio
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.message import PARTITION_SHIFT
from sbpair.pipeline.spans import NumberRange, Sharing, merged, occupied, overlapping, pieces, uncovered

numbers = st.integers(min_value=1, max_value=400)
spans = st.builds(lambda one, other: NumberRange("q", False, min(one, other), max(one, other)), numbers, numbers)


def held(found: list[NumberRange]) -> set[int]:
    return {number for span in found for number in range(span.first, span.last + 1)}


@given(spans, st.lists(spans, max_size=6))
def test_uncovered_is_what_nobody_has(wanted: NumberRange, covered: list[NumberRange]) -> None:
    missing = uncovered(wanted, covered)
    assert held(missing) == held([wanted]) - held(covered)
    assert not overlapping(missing)


@given(st.lists(spans, max_size=6))
def test_merging_keeps_the_numbers_and_ends_every_overlap(given_spans: list[NumberRange]) -> None:
    joined = merged(given_spans)
    assert held(joined) == held(given_spans)
    assert not overlapping(joined)


@given(spans, st.integers(min_value=1, max_value=50))
def test_pieces_are_the_span_in_order(span: NumberRange, most: int) -> None:
    cut = pieces([span], most)
    assert [number for piece in cut for number in range(piece.first, piece.last + 1)] == sorted(held([span]))
    assert max(piece.width for piece in cut) <= most


@given(spans, st.lists(spans, max_size=8))
def test_what_shares_numbers_is_found(wanted: NumberRange, there: list[NumberRange]) -> None:
    of_others = [NumberRange("p", False, 1, 400), NumberRange("q", True, 1, 400)]
    found = Sharing([*there, *of_others], lambda span: span)(NumberRange("Q", False, wanted.first, wanted.last))
    assert sorted(found) == sorted(span for span in there if held([span]) & held([wanted]))


def test_other_queues_dead_letters_and_partitions_cover_nothing() -> None:
    wanted = NumberRange("q", False, 1, 10)
    high = 1 << PARTITION_SHIFT
    others = [
        NumberRange("p", False, 1, 10),
        NumberRange("q", True, 1, 10),
        NumberRange("q", False, high + 1, high + 10),
    ]
    assert uncovered(wanted, others) == [wanted]
    assert uncovered(wanted, [NumberRange("Q", False, 1, 10)]) == []


@given(
    st.sets(st.integers(min_value=1, max_value=5_000), max_size=40),
    st.sets(st.integers(min_value=1, max_value=5_000), max_size=10),
)
def test_what_is_occupied_is_found_by_asking_few_questions(low: set[int], high: set[int]) -> None:
    present = sorted(low | {(3 << PARTITION_SHIFT) + number for number in high})
    asked = []

    async def first_from(number: int) -> int | None:
        asked.append(number)
        place = bisect_left(present, number)
        return present[place] if place < len(present) else None

    async def all_of() -> list[NumberRange]:
        return [one async for one in occupied("q", False, first_from)]

    found = asyncio.run(all_of())
    expected = [(min(part), max(part)) for part in (low, {(3 << PARTITION_SHIFT) + one for one in high}) if part]
    assert [(one.first, one.last) for one in found] == expected
    assert len(asked) < 150


async def test_millions_of_messages_cost_dozens_of_questions() -> None:
    asked = []

    async def first_from(number: int) -> int | None:
        asked.append(number)
        return max(number, 1_000_000) if number <= 43_000_000 else None

    assert [one async for one in occupied("q", False, first_from)] == [NumberRange("q", False, 1_000_000, 43_000_000)]
    assert len(asked) < 80


async def test_bounds_limit_what_is_looked_at() -> None:
    async def first_from(number: int) -> int | None:
        return number if number <= 100 else None

    assert [one async for one in occupied("q", False, first_from, first=20, last=50)] == [
        NumberRange("q", False, 20, 50)
    ]
    assert [one async for one in occupied("q", False, first_from, first=101)] == []
