"""How far a stream has read: for each queue and each of its partitions the next sequence number. Pure arithmetic.

    {"contoso-weu/x-servicebus-transfer/0": {"0": 1017, "0@": 1764000000000, "0!": 3}}

A partitioned entity counts in each of its partitions by itself, and the partition is in the top 16 bits of a number
("Message sequencing and timestamps"): a partition that an offset does not name has not been read at all, one that gets
its first message later is read from its beginning. Paths are in lower case, as names are compared without case; that of
a dead-letter sub-queue ends with `/$deadletterqueue`.

Beside the number of a partition stand facts, by which a later micro-batch sees what it cannot read any more:

    @   when the newest message seen there had been enqueued (UTC epoch milliseconds). A newer message with a number
        that was read already is of a queue that was deleted and made again, which counts from 1 again
    #   how often that happened
    !   how many numbers held no message when the stream came to them: it was completed, dead-lettered or expired before
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sbpair.core.message import PARTITION_SHIFT, Received, State
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
    return _ordered(found)


def _ordered(offset: Offset) -> Offset:
    def turn(key: str) -> tuple[int, str]:
        return int(key.rstrip("@#!")), key

    return {place: {key: offset[place][key] for key in sorted(offset[place], key=turn)} for place in sorted(offset)}


def after(offset: Mapping[str, Mapping[str, int]], spans: Iterable[Span]) -> Offset:
    """Where a stream stands that has read these spans as well."""
    return moved(offset, ((span, span.last + 1) for span in spans))


def spans_between(
    start: Mapping[str, Mapping[str, int]],
    end: Mapping[str, Mapping[str, int]],
    sources: Sequence[tuple[str, bool]],
) -> list[Span]:
    """What one micro-batch reads: all that its offsets name, also of a place that is not among the sources when it is
    carried out. `sources` give the places their own spelling."""
    spelled = {place_of(queue, dead_letter): (queue, dead_letter) for queue, dead_letter in sources}
    spans = [
        Span(*(spelled.get(place) or split_source(place)), _first_of(start, end, place, int(partition)), number - 1)
        for place, partitions in end.items()
        for partition, number in partitions.items()
        if partition.isdecimal()
    ]
    return [span for span in spans if span.width > 0]


def _first_of(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]], place: str, of: int) -> int:
    lives = (offset.get(place, {}).get(f"{of}#", 0) for offset in (start, end))
    return next_number(start if len(set(lives)) == 1 else {}, place, of)


class Poll:
    """What one look into the queues finds beyond the numbers, compared with where the stream stands."""

    def __init__(self, offset: Mapping[str, Mapping[str, int]]) -> None:
        self._offset = offset
        self._newest: dict[tuple[str, int], int] = {}
        self.made_again: dict[tuple[str, int], tuple[int, int]] = {}
        """Partitions of a queue that was deleted and made again: the number and time of a message that shows it."""

    def unread(self, queue: str, dead_letter: bool, found: Received) -> int:
        """The first number of a message's partition that the stream has not read."""
        place, partition = place_of(queue, dead_letter), found.sequence_number >> PARTITION_SHIFT
        number = next_number(self._offset, place, partition)
        if found.enqueued_at is not None and found.state is not State.SCHEDULED:
            at_ms = round(found.enqueued_at * 1000)
            self._newest[place, partition] = max(at_ms, self._newest.get((place, partition), at_ms))
            known = self._offset.get(place, {}).get(f"{partition}@")
            if found.sequence_number < number and known is not None and at_ms > known + CLOCKS_DIFFER_MS:
                self.made_again[place, partition] = found.sequence_number, at_ms
        return next_number({}, place, partition) if (place, partition) in self.made_again else number

    def after(self, spans: Sequence[Span]) -> Offset:
        """Where a stream stands that has read these spans as well, with what is known of them."""
        offset = after(self._offset, spans)
        for span in spans:
            place, partition = place_of(span.queue, span.dead_letter), span.partition
            facts = offset[place]
            if (newest := self._newest.get((place, partition))) is not None:
                facts[f"{partition}@"] = max(newest, facts.get(f"{partition}@", newest))
            if (place, partition) in self.made_again:
                facts[f"{partition}#"] = facts.get(f"{partition}#", 0) + 1
            if missed := self.missed(span):
                facts[f"{partition}!"] = facts.get(f"{partition}!", 0) + missed
        return _ordered(offset)

    def missed(self, span: Span) -> int:
        """Numbers before a span that the stream has not read and that hold no message. Dead letters keep numbers of
        their queue, so that theirs have gaps."""
        place, partition = place_of(span.queue, span.dead_letter), span.partition
        known = self._offset.get(place, {}).get(str(partition))
        if span.dead_letter or known is None or (place, partition) in self.made_again:
            return 0
        return max(0, span.first - known)


CLOCKS_DIFFER_MS = 2_000
"""Two brokers of a namespace may differ by this much in the time that they stamp."""


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
