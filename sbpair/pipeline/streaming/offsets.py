"""How far a stream has read: for each queue and each of its partitions the next sequence number. Pure arithmetic.

    {"contoso-weu/x-servicebus-transfer/0": {"0": 1017}, "...": {"0": 1, "3": 844424930131977}}

A partitioned entity counts in each of its partitions by itself, and the partition is in the top 16 bits of a number
("Message sequencing and timestamps"): a partition that an offset does not name has not been read at all, one that gets
its first message later is read from its beginning. Paths are in lower case, as names are compared without case; that of
a dead-letter sub-queue ends with `/$deadletterqueue`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sbpair.core.message import PARTITION_SHIFT
from sbpair.core.names import dead_letter_path, split_source
from sbpair.pipeline.spans import Span

Offset = dict[str, dict[str, int]]
"""As Spark keeps it in a checkpoint: JSON whose keys are in order, so that equal offsets are equal texts."""


def place_of(queue: str, dead_letter: bool) -> str:
    """The key of a queue in an offset."""
    return (dead_letter_path(queue) if dead_letter else queue).lower()


def next_number(offset: Mapping[str, Mapping[str, int]], place: str, partition: int) -> int:
    """The first number that was not read yet."""
    return offset.get(place, {}).get(str(partition), max(1, partition << PARTITION_SHIFT))


def moved(offset: Mapping[str, Mapping[str, int]], numbers: Iterable[tuple[Span, int]]) -> Offset:
    """The offset with the next number of some spans' partitions set."""
    found = {place: dict(partitions) for place, partitions in offset.items()}
    for span, number in numbers:
        found.setdefault(place_of(span.queue, span.dead_letter), {})[str(span.partition)] = number
    return {place: {key: found[place][key] for key in sorted(found[place], key=int)} for place in sorted(found)}


def after(offset: Mapping[str, Mapping[str, int]], spans: Iterable[Span]) -> Offset:
    """Where a stream stands that has read these spans as well."""
    return moved(offset, ((span, span.last + 1) for span in spans))


def before(spans: Iterable[Span]) -> Offset:
    """Where a stream begins whose first messages are those of the spans."""
    return moved({}, ((span, span.first) for span in spans))


def spans_between(
    start: Mapping[str, Mapping[str, int]],
    end: Mapping[str, Mapping[str, int]],
    sources: Sequence[tuple[str, bool]],
) -> list[Span]:
    """What one micro-batch reads: all that its offsets name, also of a place that is not among the sources when it is
    carried out. `sources` give the places their own spelling."""
    spelled = {place_of(queue, dead_letter): (queue, dead_letter) for queue, dead_letter in sources}
    spans = [
        Span(*(spelled.get(place) or split_source(place)), next_number(start, place, int(partition)), number - 1)
        for place, partitions in end.items()
        for partition, number in partitions.items()
    ]
    return [span for span in spans if span.width > 0]


def up_to(spans: Iterable[Span], end: Mapping[str, Mapping[str, int]]) -> list[Span]:
    """The part of the spans that lies before `end`; nothing of a partition that it does not name."""
    cut = []
    for span in spans:
        number = end.get(place_of(span.queue, span.dead_letter), {}).get(str(span.partition))
        if number is not None and number > span.first:
            cut.append(replace(span, last=min(span.last, number - 1)))
    return cut


def shared(spans: Sequence[Span], most: int) -> list[Span]:
    """Up to `most` numbers of the spans together, from the beginning of each: as even as their widths allow, so that a
    long queue does not keep the others waiting."""
    taken: list[Span] = []
    left = most
    for rank, span in enumerate(narrow_first(spans)):
        width = min(span.width, left // (len(spans) - rank))
        if width:
            taken.append(replace(span, last=span.first + width - 1))
        left -= width
    return taken


def narrow_first(spans: Sequence[Span]) -> list[Span]:
    """In the order in which each may have its share of what is left: what a narrow one does not need, wider ones
    get."""
    return sorted(spans, key=lambda span: (span.width, span))


def within_bytes(spans: Sequence[Span], most: int, sizes: Callable[[Span], Iterable[tuple[int, int]]]) -> list[Span]:
    """The beginning of each span whose messages have up to `most` bytes together, but at least one message of all.

    Args:
        sizes: sequence number and bytes of each message of a span, in the order of numbers; asked no further than
            needed.
    """
    taken: list[Span] = []
    left = most
    ordered = narrow_first(spans)
    for rank, span in enumerate(ordered):
        share, used, last = left // (len(ordered) - rank), 0, None
        for number, size in sizes(span):
            alone = rank == len(ordered) - 1 and not taken and last is None
            if used + size > share and not alone:
                break
            used, last = used + size, number
        else:
            last = span.last
        left = max(0, left - used)
        if last is not None:
            taken.append(replace(span, last=last))
    return taken
