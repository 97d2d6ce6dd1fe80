"""Stretches of sequence numbers: what an archive covers, what it lacks, how it is cut into tasks. Pure arithmetic.

A sequence number carries its partition in the top 16 bits; a span never reaches into another partition. Numbers that
no message has any more (completed, expired) are covered like the others: that they were looked at is what counts.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from sbpair.core.message import PARTITION_SHIFT

T = TypeVar("T")
LAST_SEQUENCE_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class NumberRange:
    """Numbers `first` to `last`, both included, of one queue or its dead-letter sub-queue."""

    queue: str
    dead_letter: bool
    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    @property
    def partition(self) -> int:
        return self.first >> PARTITION_SHIFT

    @property
    def place(self) -> tuple[str, bool]:
        """Names of entities are compared without case."""
        return self.queue.lower(), self.dead_letter

    def same_place(self, other: "NumberRange") -> bool:
        return (*self.place, self.partition) == (*other.place, other.partition)


class Sharing(Generic[T]):
    """Finds which of many things, with a span each, share numbers with another span; by halving, since an archive of
    100 million messages has some 10,000 files."""

    def __init__(self, things: Iterable[T], span_of: Callable[[T], NumberRange]) -> None:
        places: dict[tuple[str, bool], list[tuple[NumberRange, T]]] = {}
        for thing in things:
            span = span_of(thing)
            places.setdefault(span.place, []).append((span, thing))
        self._places = {place: sorted(found, key=lambda one: one[0].first) for place, found in places.items()}
        self._reach = {
            place: list(itertools.accumulate((span.last for span, _ in found), max))
            for place, found in self._places.items()
        }

    def __call__(self, wanted: NumberRange) -> list[T]:
        found, reach = self._places.get(wanted.place, []), self._reach.get(wanted.place, [])
        end = bisect_right(found, wanted.last, key=lambda one: one[0].first)
        begin = bisect_left(reach, wanted.first, hi=end)
        return [thing for span, thing in found[begin:end] if span.last >= wanted.first]


def pieces(spans: Iterable[NumberRange], most: int) -> list[NumberRange]:
    """The spans cut into pieces of up to `most` numbers each."""
    return [
        replace(span, first=first, last=min(first + most - 1, span.last))
        for span in spans
        for first in range(span.first, span.last + 1, most)
    ]


def uncovered(wanted: NumberRange, covered: Iterable[NumberRange]) -> list[NumberRange]:
    """What of `wanted` no span of `covered` has."""
    missing: list[NumberRange] = []
    first = wanted.first
    for span in sorted((span for span in covered if span.same_place(wanted)), key=lambda span: span.first):
        if span.last < first:
            continue
        if span.first > wanted.last:
            break
        if span.first > first:
            missing.append(replace(wanted, first=first, last=span.first - 1))
        first = span.last + 1
    if first <= wanted.last:
        missing.append(replace(wanted, first=first))
    return missing


def overlaps(wanted: NumberRange, covered: Iterable[NumberRange]) -> list[NumberRange]:
    """What of `wanted` spans of `covered` have."""
    return [
        replace(wanted, first=max(wanted.first, one.first), last=min(wanted.last, one.last))
        for one in covered
        if one.same_place(wanted) and one.first <= wanted.last and wanted.first <= one.last
    ]


def merged(spans: Iterable[NumberRange]) -> list[NumberRange]:
    """The same numbers in as few spans as possible."""
    result: list[NumberRange] = []
    for span in sorted(spans, key=lambda one: (*one.place, one.first)):
        last = result[-1] if result else None
        if last is not None and last.same_place(span) and span.first <= last.last + 1:
            result[-1] = replace(last, last=max(last.last, span.last))
        else:
            result.append(span)
    return result


def overlapping(spans: Sequence[NumberRange]) -> bool:
    """Whether any number is in two of the spans."""
    ordered = sorted(spans, key=lambda one: (*one.place, one.first))
    return any(one.same_place(after) and after.first <= one.last for one, after in itertools.pairwise(ordered))


async def occupied(
    queue: str,
    dead_letter: bool,
    first_from: Callable[[int], Awaitable[int | None]],
    *,
    first: int = 1,
    last: int | None = None,
) -> AsyncIterator[NumberRange]:
    """The stretches that hold messages now, one per partition, between `first` and `last`.

    `first_from(n)` is the lowest number of a message from n on, None if there is none. The end of each stretch is
    found by doubling steps and halving: a few dozen questions for millions of messages.
    """
    limit = LAST_SEQUENCE_NUMBER if last is None else last
    number = first
    while (found := await first_from(number)) is not None and found <= limit:
        end = min(await _last_in_partition(found, first_from), limit)
        yield NumberRange(queue, dead_letter, found, end)
        number = ((found >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
        if number > limit:
            return


async def _last_in_partition(known: int, first_from: Callable[[int], Awaitable[int | None]]) -> int:
    """The highest number of a message in the partition of `known`, which has one."""
    ceiling = ((known >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
    step, empty_from = 1024, ceiling
    while known + step < empty_from:
        found = await first_from(known + step)
        if found is not None and found < ceiling:
            known, step = found, step * 2
        else:
            empty_from = known + step
    while known + 1 < empty_from:
        middle = (known + 1 + empty_from) // 2
        found = await first_from(middle)
        if found is not None and found < ceiling:
            known = found
        else:
            empty_from = middle
    return known
