"""The order in all queues that are read: what the runtime has to browse for it, and what the browses have shown.

One queue's order, and the law, is in `core.transfer.order`; what is done about messages that may not go is in
`core.transfer.holding`.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from sbpair.core.message import Received, State
from sbpair.core.retry import SYPHON
from sbpair.core.transfer.order import (
    FOLLOW_SECONDS,
    TELL_AGAIN_SECONDS,
    TURN_SECONDS,
    Gap,
    Mode,
    QueueOrder,
    Skipped,
)
from sbpair.core.transfer.state import (
    DEFAULT_LOCK_SECONDS,
    Action,
    Followed,
    Forward,
    Item,
    Limits,
    LockMet,
    PollAgain,
    Sample,
    Verdict,
    has_order,
)


class Queues:
    """The queues by their names, in any spelling. Times are seconds of one monotonic clock.

    Args:
        actions: gets what is to be done.
    """

    def __init__(self, limits: Limits, actions: deque[Action]) -> None:
        self._lock_wait_seconds = limits.lock_wait_seconds
        self._takes_turns = limits.rate_per_second is not None and limits.shared
        self._actions = actions
        self._by_name: dict[str, QueueOrder] = {}
        self._spelled: dict[str, QueueOrder] = {}
        """The same by the name as it was given: asked for several times for each message."""
        self._report_at = 0.0

    def __iter__(self) -> Iterator[QueueOrder]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, source: str) -> QueueOrder:
        """The queue of this name."""
        queue = self._spelled.get(source)
        if queue is None:
            queue = self._by_name.setdefault(source.lower(), QueueOrder(source, DEFAULT_LOCK_SECONDS))
            self._spelled[source] = queue
        return queue

    def add(self, source: str, lock_seconds: float) -> None:
        """Messages will come from this queue, whose locks last so long."""
        self.of(source).lock_seconds = lock_seconds

    # What is known of them

    @property
    def blocked(self) -> int:
        """Messages in our hands that wait behind a gap, as of the last check."""
        return sum(queue.blocked for queue in self._by_name.values())

    def is_blocked(self, item: Item) -> bool:
        """Whether a message that comes before this one in its session is in the queue and not in our hands."""
        if item.lane is None:
            return False
        queue = self.of(item.received.source)
        if not (queue.gaps or queue.parked):
            return False
        return queue.blocks(item.lane, item.received.sequence_number)

    def standing_back(self, source: str) -> bool:
        """Whether another drain leads in this queue: an empty receive says nothing of it."""
        return self.of(source).mode is Mode.STANDING_BACK

    def awaits(self, source: str, now: float) -> bool:
        """Whether messages of this queue will come although a receive brings none: others have locked them."""
        queue = self.of(source)
        return (queue.mode is not Mode.READING or queue.blocked > 0) and not self.stalled(source, now)

    def stalled(self, source: str, now: float) -> bool:
        """Whether a lock of another receiver, over which nothing here can go, has outlasted the patience."""
        patience, queue = self._lock_wait_seconds, self.of(source)
        return patience is not None and queue.mode is not Mode.READING and queue.unmoved_seconds(now) >= patience

    def led_elsewhere(self, source: str) -> bool:
        """Whether messages that others have locked stopped us in this queue, so that it was not read to its end."""
        return self.of(source).mode is not Mode.READING

    def known_locked(self, source: str) -> frozenset[int]:
        """Sequence numbers that others have locked, where that stopped us: what else lies there waits behind them."""
        queue = self.of(source)
        if queue.mode is Mode.READING:
            return frozenset()
        return queue.known_locked | ({queue.head} if queue.head is not None else frozenset())

    def foreign_locks(self, now: float) -> dict[str, float]:
        """Seconds until the lock ends that a queue waits for, if it is not renewed; by queue."""
        return {
            queue.path: queue.locked_until(now) - now
            for queue in self
            if queue.mode is not Mode.READING and queue.locked_since is not None
        }

    # A receive, and the browse of what it went past

    def tried(self, source: str, received: Sequence[Received], now: float) -> None:
        """A receive is over; what it brought (nothing, perhaps) shows who has the head of the queue."""
        queue = self.of(source)
        if queue.mode is Mode.STANDING_BACK:
            met_before = queue.locked_since is not None
            queue.tried([message.sequence_number for message in received], now)
            if queue.locked_since is not None and not met_before and queue.head is not None:
                self._actions.append(LockMet(source, queue.head, queue.lock_seconds))

    def skipped(self, received: Sequence[Received], verdicts: Sequence[Verdict]) -> list[Skipped]:
        """What has to be browsed before these messages, just received from one queue, may go to
        `Settlement.arrived`."""
        if not received:
            return []
        queue = self.of(received[0].source)
        return queue.skipped([message.sequence_number for message in received], ordered=any(map(has_order, verdicts)))

    def in_hand(self, source: str) -> frozenset[int]:
        """Numbers of our messages of this queue. Asked for before a browse: what is settled while it is under way is
        still in its answer."""
        return frozenset(self.of(source).in_hand)

    def expect(self, received: Received, verdict: Forward, now: float) -> None:
        """A browse of what a receive skipped showed this message, which is not in our hands."""
        if verdict.lane is not None and received.state is State.ACTIVE:
            self.of(received.source).open_gap(received.sequence_number, Gap(verdict.lane, foreign=True), now)

    def forgotten(self, source: str) -> int:
        """Asked for before and after a browse: if it has changed, the browse proves nothing."""
        return self.of(source).forgotten

    def proved(self, source: str, skipped: Skipped) -> None:
        """It was browsed to its end, what was there went to `Settlement.expect`, and nothing was forgotten
        meanwhile."""
        self.of(source).prove(skipped.last)

    def hopeless_now(self, received: Sequence[Received]) -> bool:
        """Whether these have to be released whatever else a browse shows: others lead, and are at work."""
        if not received:
            return False
        queue = self.of(received[0].source)
        if not queue.opening and queue.mode is not Mode.STANDING_BACK:
            return False
        return queue.met_before(min(message.sequence_number for message in received))

    def gave_way(self, source: str, now: float) -> None:
        """What came was `hopeless_now`, and goes back: others lead in this queue."""
        queue = self.of(source)
        if queue.mode is not Mode.STANDING_BACK:
            queue.stand_back(now)

    def handed_out(self, queue: QueueOrder, number: int, now: float) -> None:
        """A message of the queue came: if it was missing, nothing waits for it any more."""
        gap = queue.close_gap(number)
        if gap is not None and gap.foreign and queue.is_news(number):
            queue.moved(now)  # its lock ended, or was given up: from here on the queue is ours as far as we know
            if queue.mode is Mode.HOLDING:
                queue.lead()

    def await_return(self, item: Item, now: float) -> None:
        """It is in its queue again without having been sent: nothing of its session may go before it."""
        if item.lane is not None:
            queue = self.of(item.received.source)
            queue.open_gap(item.received.sequence_number, Gap(item.lane, foreign=False), now)
            queue.check_at = now

    # Samples of the head of a queue

    def sampled(self, sample: Sample, page: Sequence[Received], *, in_hand: frozenset[int], now: float) -> None:
        """A page of the queue was browsed. `in_hand`: what was ours when the browse began."""
        queue = self.of(sample.source)
        queue.sample_over(now)
        queue.check_at = now
        if queue.mode is Mode.STANDING_BACK and sample.first != queue.first_to_sample:
            queue.sample_at = now  # begun before we stood back, and not at the head
            return
        if queue.mode is Mode.HOLDING and not queue.gaps:
            reads_again = queue.head_sampled_again(page, in_hand, now)
        elif queue.mode is Mode.STANDING_BACK:
            reads_again = queue.head_sampled(page, in_hand, now)
        else:
            queue.gaps_sampled(sample.first, page, now)
            return
        if reads_again:
            self._actions.append(PollAgain(sample.source))

    def sample_failed(self, sample: Sample, now: float) -> None:
        """Nothing is learnt; what waits goes on waiting."""
        queue = self.of(sample.source)
        queue.sample_over(now)
        queue.sample_at = now + SYPHON.seconds(3)

    def sample_if_due(self, queue: QueueOrder, now: float) -> None:
        """Browse what the queue waits for, if it waits and it is time."""
        waits = queue.mode is not Mode.READING or queue.blocked
        if waits and now >= queue.sample_at and not queue.sampling:
            queue.sample(now)
            self._actions.append(Sample(queue.path, queue.first_to_sample))

    # Who leads

    def leads(self, source: str, now: float) -> None:
        """A message of this queue was sent. With a rate and other drains beside, its turn begins."""
        queue = self.of(source)
        queue.has_led = True
        if self._takes_turns and queue.ordered and queue.turn_ends_at is None:
            # The queues rest one after another, so that the others use the rate meanwhile.
            place = list(self).index(queue)
            queue.begin_turn(TURN_SECONDS * (1 - place / (2 * len(self))), now)

    def report_leaders(self, now: float) -> None:
        """Announce from time to time that others lead, and how fast they go on."""
        if now < self._report_at:
            return
        self._report_at = now + FOLLOW_SECONDS
        paces = {queue.path: pace for queue in self if (pace := queue.followed(now)) is not None}
        if paces:
            self._actions.append(Followed(tuple(paces), sum(paces.values())))
            self._report_at = now + TELL_AGAIN_SECONDS

    def deadlines(self) -> Iterator[float]:
        """When a queue is to be checked or browsed again."""
        for queue in self._by_name.values():
            if queue.blocked:
                yield queue.check_at
            if not queue.sampling and (queue.blocked or queue.mode is not Mode.READING):
                yield queue.sample_at
