"""The order within sessions, proven from what a queue shows: nothing is sent while something that comes first is there.

The law. One session goes one message after another in backlog order, through crashes, foreign locks, several processes
and backlogs larger than any window. A message may be held back; it is never overtaken.

How far that is proven. With one drain and with several: in virtual time, and by campaigns that killed some of up to 5
real processes (`python -m tests.soak.kills`) or let several work undisturbed (`python -m tests.soak.together`). The law
is about first arrivals. What was on the wire when its process died may arrive once more after its lock is over, behind
its successors: the destination knows nothing of locks here, and no one can call it back.

What makes it hard. A queue hands out what is free, lowest sequence number first, and skips what is locked: by another
drain, by a person, by a process that was killed a moment ago. A receive does not say what it skipped, a browse does not
say what is locked, and no timer proves anything: a lock may be renewed for ever.

Gaps. So every receive that skipped numbers is followed by a browse of just these numbers. What lies there, carries a
session and is not in our hands is a *gap*: its session waits behind it. A gap closes in two ways only: its message
comes to us, or a browse shows that it is not there any more (completed by another, dead-lettered, expired) or that it
is deferred, which takes it out of the line. A queue whose numbers come without a hole costs no browse at all.

Forgetting. What is released while others are at the queue is out of our hands at once: they may take any part of it. So
everything proven is forgotten then, and a browse that was under way at that moment proves nothing: it is made again, or
what it was made for goes back.

Sharing. Two drains that each hold what waits for the other's messages would wait until the locks run out. So the drain
that holds the lowest message of a queue *leads* and goes on, and there is one leader at a time. Each opens a queue with
a receive of one message. If something that others have comes before it, it goes back at once, whatever its
session: another leads. Who leads reads as much as there is room for. Who does not *stands back*: it receives nothing,
browses the first message of the queue every half second, and asks for one message when that has not moved for a while;
who asks sooner takes from a leader that is only slow, and both lose their place. A while is longer where others have
moved the head slowly, and where browses are answered slowly: a busy machine slows down the leader and those that watch.
A leader that finds a message in others' hands waits as long as two such whiles, since most likely they give it back. If
others have more of what comes before its own than it has itself, it gives way at once. The leader finishes, stops or
dies; the next who is handed the head leads. No one has to know of the others, and no right beyond Listen is needed.

    READING ── blocked, and others hold lower ones ──> STANDING_BACK ── handed the head, or a free session ──> READING
       ^                                                  │     ^
       │ what was missing came                  head does │     │ others move after all, or the
       └──────────────────── HOLDING <─ not move for long ┘     └ there is no room for held ones any more

Resting. A leader with a rate leaves its queue alone for `REST_SECONDS` in each `TURN_SECONDS`: it sends what it has in
hand, asks for nothing, and then begins again with a receive of one message. A drain that stands by finds the head free
meanwhile and leads from then on; without a rate to the end. So a slow syphon holds up nobody's drain, and a leader that
is alone loses no more than that share of its rate, in a pair with several busy queues nothing.

Holding. One message locked for long must not stop the sessions beside it. When the head has not moved for a while the
queue is read again and what is blocked is held, up to half of what may be in flight; the other half is never used for
what cannot go, so that what is waited for always finds room.

Parking. A queue hands out what is free from its lowest number on, so the sessions beside are reached only past all that
waits. What is blocked beyond that half is therefore *parked*: it stays locked, without its bytes, and counts as left.
When the last gap before it closes it goes back to the queue, behind a gap of its own, and comes again in its turn. So a
lock that is renewed for ever stops its own session and no other, unless more than `PARKED_MESSAGES` wait behind it.
"""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sbpair.core.message import PARTITION_SHIFT, MessageState, Received
from sbpair.core.retry import SYPHON
from sbpair.core.transfer.state import (
    DEFAULT_LOCK_SECONDS,
    Action,
    Followed,
    Forward,
    Item,
    Key,
    LaneKey,
    Limits,
    LockMet,
    PollAgain,
    Sample,
    Verdict,
    has_order,
)

SAMPLE_SECONDS = 0.5
"""How often the head of a queue is browsed while others lead; a twentieth of the wait so far if that is more."""
LONGEST_SAMPLE_SECONDS = 15.0
TRY_AFTER_SECONDS = 1.5
"""A head that stands still for so long is asked for: its leader may be gone."""
LONGEST_TRY_AFTER_SECONDS = 10.0
"""The same where everything is slow."""
PACES = 2.0
"""This many times as long as the head stood still before others moved it, nobody asks for a message."""
ROUND_TRIPS = 10.0
"""Nor for that many times as long as a browse takes: who gets slow answers sees slow leaders."""
RECHECK_SECONDS = 0.25
"""How often what blocks is browsed while something is held behind it; doubled up to `SAMPLE_SECONDS`."""
TURN_SECONDS = 45.0
"""A leader with a rate goes on for so long,"""
REST_SECONDS = 5.0
"""and leaves the queue alone for so long: longer than a drain that stands by waits for a head that stands still."""
FOLLOW_SECONDS = 5.0
"""A drain that stands by says so after this time, and at which pace the head moves,"""
TELL_AGAIN_SECONDS = 60.0
"""and again after this."""
PARKED_MESSAGES = 10_000
"""Of all queues, locked without their bytes at the same time. Their locks are renewed, one request each."""
LOCK_GRACE_SECONDS = 5.0
"""Waited beyond a queue's lock duration before a foreign lock counts as one that is being renewed."""


_MOST_STALE = 1000
"""How many numbers a heap may hold beyond twice those that are there."""


class Numbers:
    """Sequence numbers with the lowest at hand."""

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._heap: list[int] = []

    def add(self, number: int) -> None:
        if number not in self._all:
            self._all.add(number)
            heapq.heappush(self._heap, number)

    def discard(self, number: int) -> None:
        self._all.discard(number)
        if len(self._heap) > 2 * len(self._all) + _MOST_STALE:
            self._heap = sorted(self._all)  # a heap, too; nobody may ever ask for the lowest

    def lowest(self) -> int | None:
        while self._heap and self._heap[0] not in self._all:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def __len__(self) -> int:
        return len(self._all)


def _lowest(numbers: Mapping[LaneKey, Numbers], lane: LaneKey) -> int | None:
    some = numbers.get(lane)
    return None if some is None else some.lowest()


@dataclass(frozen=True, slots=True)
class OrderGap:
    """A message that is in the queue and not in our hands."""

    lane: LaneKey
    foreign: bool
    """Somebody else had it; False for what was released or lost by us and comes again."""


class Mode(Enum):
    READING = "reading"
    STANDING_BACK = "standing back"
    HOLDING = "holding"


@dataclass(frozen=True, slots=True)
class SkippedNumbers:
    """Sequence numbers of one partition that a receive went past: to be browsed before its messages count."""

    first: int
    last: int


@dataclass(slots=True, eq=False)
class QueueOrder:
    """What is known of the order in one queue. Times are seconds of the machine's clock."""

    path: str
    lock_seconds: float
    mode: Mode = Mode.READING
    careful: bool = True
    """The next receive asks for one message only: whether nobody else leads here is not known yet."""
    came: int = 0
    came_blocked: int = 0
    """Messages that came to be sent since the last receive began, and those of them that wait behind a gap."""
    opening: bool = True
    """Nothing has come from here yet that was to be sent: a drain that leads already is given way to at once."""
    in_hand: set[int] = field(default_factory=set)
    """Numbers of the messages that we have under lock, also of those that were left on purpose."""
    going: Numbers = field(default_factory=Numbers)
    """Those of them that are on their way."""
    gaps: dict[int, OrderGap] = field(default_factory=dict)
    lanes: dict[LaneKey, Numbers] = field(default_factory=dict)
    """The numbers of the gaps by what waits behind them."""
    parked: dict[LaneKey, Numbers] = field(default_factory=dict)
    """Numbers of messages that we keep locked without their bytes: what follows them waits as for a gap."""
    proven: dict[int, int] = field(default_factory=dict)
    """By partition: up to this number every message is in our hands, a gap, or gone."""
    forgotten: int = 0
    """How often that was forgotten: a browse proves something only if this is the same before and after it."""
    has_led: bool = False
    blocked: int = 0
    """Messages in our hands that wait behind a gap, as of the last check."""
    check_at: float = 0.0
    behind_since: float | None = None
    holding_since: float = 0.0
    moved_at: float = 0.0
    """When others were last seen to make progress, or a gap came to us."""
    budget_used_up: bool = False
    head: int | None = None
    """Lowest number of the last sample that was not in our hands."""
    sample_at: float = 0.0
    """When to browse again: the head (standing back), or the gaps."""
    sampling: bool = False
    sample_from: int = 0
    sample_pause_seconds: float = RECHECK_SECONDS
    may_try: bool = False
    """The head has not moved: one message may be asked for."""
    pace_seconds: float = 0.0
    """How long the head has stood still lately before others moved it: they may be slow, or the machine is."""
    round_trip_seconds: float = 0.0
    """How long browses have taken lately."""
    sampled_since: float = 0.0
    locked_since: float | None = None
    """Since when the head is known to be locked elsewhere: it was not handed out although it came first."""
    ordered: bool = False
    """Messages with a session have come from here: there is something to lead."""
    turn_ends_at: float | None = None
    """Of a leader with a rate: when it rests next."""
    rests_until: float = 0.0
    followed_since: tuple[float, int] | None = None
    """While standing back: when the head was seen first, and its number."""
    known_locked: frozenset[int] = frozenset()
    """Numbers that were not handed out although they came first, as of the last time we stood back."""

    # How many to ask for

    def next_receive(self) -> bool:
        """A receive begins. Whether it may ask for more than one message: only if most of what came last can go."""
        most_can_go = 2 * self.came_blocked <= self.came or self.mode is Mode.HOLDING
        if self.came and most_can_go and self.mode is not Mode.STANDING_BACK:
            self.careful = False
        self.came = self.came_blocked = 0
        return not self.careful

    # Resting

    def begin_turn(self, seconds: float, now: float) -> None:
        """It leads from now on, for so long at first; nothing if its turn has begun."""
        if self.turn_ends_at is None:
            self.turn_ends_at = now + seconds

    def rests(self, now: float) -> bool:
        """Whether nothing may be asked for, so that others can take the lead."""
        if self.turn_ends_at is not None and now >= self.turn_ends_at:
            if len(self.going):
                return True  # it finishes what it has first
            self.turn_ends_at, self.rests_until = None, now + REST_SECONDS
            self.careful, self.opening, self.has_led = True, True, False
        return now < self.rests_until

    def followed(self, now: float) -> float | None:
        """Messages a second by which others move the head; None if it is not known, or does not move."""
        if self.mode is not Mode.STANDING_BACK or self.followed_since is None or self.head is None:
            return None
        since, number = self.followed_since
        if now - since < FOLLOW_SECONDS or not 0 < self.head - number < 1 << PARTITION_SHIFT:
            return None
        return (self.head - number) / (now - since)

    # What a receive has skipped

    def skipped(self, numbers: Collection[int], *, ordered: bool) -> list[SkippedNumbers]:
        """What has to be browsed before messages with these numbers count as in order.

        Nothing if they continue what is proven without a hole. `ordered`: whether any of them carries a session;
        without one there is no order to prove, and the numbers are proven when it matters.
        """
        by_partition: dict[int, list[int]] = {}
        for number in numbers:
            by_partition.setdefault(number >> PARTITION_SHIFT, []).append(number)
        missing = []
        for partition, some in by_partition.items():
            first = self.proven.get(partition, partition << PARTITION_SHIFT) + 1
            last = max(some)
            if last < first:
                continue  # they were here before, or are gaps that close by coming
            if last - first + 1 == sum(number >= first for number in some):
                self.proven[partition] = last
            elif ordered:
                missing.append(SkippedNumbers(first, last))
        return missing

    def prove(self, last: int) -> None:
        """Everything up to here has been browsed."""
        partition = last >> PARTITION_SHIFT
        self.proven[partition] = max(last, self.proven.get(partition, 0))

    def forget(self) -> None:
        """Something that was in our hands can be taken by others from now on."""
        self.proven.clear()
        self.forgotten += 1

    def out_of_hand(self, number: int) -> None:
        """The message is settled, or may be taken by others from now on."""
        self.in_hand.discard(number)
        self.going.discard(number)

    # Gaps

    def open_gap(self, number: int, gap: OrderGap, now: float) -> None:
        """The message is in the queue, not in our hands, and comes before others of its lane."""
        if not self.gaps:
            self.sample_at, self.sample_pause_seconds, self.sample_from = now + RECHECK_SECONDS, RECHECK_SECONDS, 0
            if self.head is None:
                self.moved_at = now
        self.close_gap(number)
        self.gaps[number] = gap
        self.lanes.setdefault(gap.lane, Numbers()).add(number)

    def close_gap(self, number: int) -> OrderGap | None:
        """The message has come, or is not there any more."""
        gap = self.gaps.pop(number, None)
        if gap is not None:
            lane = self.lanes[gap.lane]
            lane.discard(number)
            if not lane:
                del self.lanes[gap.lane]
        return gap

    def blocks(self, lane: LaneKey, number: int) -> bool:
        """Whether a message of the lane with this number has to wait."""
        lowest = _lowest(self.lanes, lane)
        if self.parked and (lowest is None or lowest >= number):
            lowest = _lowest(self.parked, lane)
        return lowest is not None and lowest < number

    def park(self, lane: LaneKey, number: int) -> None:
        """It stays locked, without its bytes."""
        self.parked.setdefault(lane, Numbers()).add(number)

    def not_parked(self, lane: LaneKey, number: int) -> None:
        """Its lock is lost, or it goes back."""
        if (numbers := self.parked.get(lane)) is not None:
            numbers.discard(number)
            if not numbers:
                del self.parked[lane]

    def free_lanes(self) -> list[LaneKey]:
        """Lanes of which something is parked, and waits for nothing any more."""
        return [
            lane
            for lane, numbers in self.parked.items()
            if (gap := _lowest(self.lanes, lane)) is None or gap > (numbers.lowest() or 0)
        ]

    @property
    def leads(self) -> bool:
        """Whether the lowest message that is known to be there is in our hands."""
        ours = self.going.lowest()
        return not self.gaps or (ours is not None and ours < min(self.gaps))

    def met_before(self, number: int) -> bool:
        """Whether others have, or had a moment ago, what comes before this one."""
        return any(gap.foreign and known < number for known, gap in self.gaps.items())

    @property
    def outweighs(self) -> bool:
        """Whether others are known to have no more messages before ours than ours are: of two that each wait for a part
        of what the other has, the one with the smaller part gives way."""
        ours = self.going.lowest()
        before = len(self.gaps) if ours is None else sum(number < ours for number in self.gaps)
        return before <= len(self.going)

    def gaps_sampled(self, first: int, page: Sequence[Received], now: float) -> None:
        """The queue was browsed from `first` on: gaps whose messages are not there are closed, and no others."""
        there = {one.sequence_number for one in page if one.state is MessageState.ACTIVE}
        covered = max((one.sequence_number for one in page), default=None)
        over = [
            number
            for number in self.gaps
            if number >= first and (covered is None or number <= covered) and number not in there
        ]
        for number in over:
            self.close_gap(number)
        if any(map(self.is_news, over)):
            self.moved(now)
        if over:
            self.sample_pause_seconds = RECHECK_SECONDS
        else:
            self.sample_pause_seconds = min(SAMPLE_SECONDS, 2 * self.sample_pause_seconds)
        later = [number for number in self.gaps if covered is not None and number > covered]
        self.sample_from = min(later, default=0)
        waited = 0.0 if later else max(self.sample_pause_seconds, self.unmoved_seconds(now) / 20)
        self.sample_at = now + min(LONGEST_SAMPLE_SECONDS, waited)

    @property
    def first_to_sample(self) -> int:
        """Where the next browse begins."""
        if self.mode is Mode.STANDING_BACK:
            return 1
        return self.sample_from or min(self.gaps, default=1)

    # Standing back

    def stand_back(self, now: float) -> None:
        """Forget what is known: who leads now changes it. Nothing that is still in our hands waits for a gap."""
        locked = frozenset(number for number, gap in self.gaps.items() if gap.foreign)
        self.known_locked = locked or self.known_locked
        self.mode, self.has_led, self.careful = Mode.STANDING_BACK, False, True
        self.gaps.clear()
        self.lanes.clear()
        self.forget()
        self.blocked, self.behind_since, self.may_try, self.opening = 0, None, False, False
        if self.head is None:
            self.moved_at = now
        self.sample_at = now + SAMPLE_SECONDS

    def lead(self) -> None:
        """The head is ours, or nobody else's is left."""
        self.mode, self.has_led = Mode.READING, True
        self.head, self.locked_since, self.known_locked = None, None, frozenset()
        self.followed_since = None
        self.budget_used_up = self.may_try = False

    def read(self) -> None:
        """There are sessions that nobody else is at: read on, without knowing more of the head."""
        self.mode, self.may_try = Mode.READING, False

    def is_news(self, number: int) -> bool:
        """Whether it matters who leads that others no longer have this one. While the head is held elsewhere, what lies
        behind it changes hands for a moment whenever another drain asks for a message."""
        return self.mode is not Mode.HOLDING or self.head is None or number <= self.head

    def hold(self, now: float) -> None:
        """The head does not move: go on past it, and hold what is blocked."""
        self.mode, self.holding_since, self.may_try = Mode.HOLDING, now, False

    def moved(self, now: float) -> None:
        self.pace_seconds = max(now - self.moved_at, self.pace_seconds / 2) if self.moved_at else 0.0
        self.moved_at = now
        self.budget_used_up = False
        self.locked_since = None

    @property
    def try_after_seconds(self) -> float:
        """How long the head has to stand still before one message is asked for."""
        slow = max(PACES * self.pace_seconds, ROUND_TRIPS * self.round_trip_seconds)
        return min(max(slow, TRY_AFTER_SECONDS), LONGEST_TRY_AFTER_SECONDS)

    @property
    def hold_after_seconds(self) -> float:
        """How long it has to stand still before the others go on past it; how long a leader waits for what another has
        just taken, and most likely releases at once."""
        return 2 * self.try_after_seconds

    def sample(self, now: float) -> None:
        """A page is being browsed."""
        self.sampling, self.sampled_since = True, now

    def sample_over(self, now: float) -> None:
        self.sampling = False
        self.round_trip_seconds = max(now - self.sampled_since, self.round_trip_seconds / 2)

    def unmoved_seconds(self, now: float) -> float:
        return now - self.moved_at

    def head_sampled(self, page: Sequence[Received], in_hand: Collection[int], now: float) -> bool:
        """The head of the queue was browsed while others lead. `in_hand`: what was ours when the browse began. Whether
        the queue is read again, with or without its head."""
        lowest = self._lowest_of_others(page, in_hand)
        if lowest is None:
            self.lead()
            return True
        if self.followed_since is None:
            self.followed_since = now, lowest
        if lowest != self.head:
            if self.head is not None:
                self.moved(now)
            self.head = lowest
        elif self.unmoved_seconds(now) >= self.try_after_seconds:
            self.may_try = True
            if self.unmoved_seconds(now) >= self.hold_after_seconds and not self.budget_used_up:
                self.hold(now)
        self.sample_at = now + min(LONGEST_SAMPLE_SECONDS, max(SAMPLE_SECONDS, self.unmoved_seconds(now) / 20))
        return self.mode is Mode.HOLDING

    def head_sampled_again(self, page: Sequence[Received], in_hand: Collection[int], now: float) -> bool:
        """The head was browsed while nothing is held behind it: others may take all that is left, and then no message
        comes that would tell. Whether nobody else's is left."""
        lowest = self._lowest_of_others(page, in_hand)
        if lowest is None:
            self.lead()
            return True
        if lowest != self.head:
            self.moved(now)
            self.head = lowest
        self.sample_at = now + min(LONGEST_SAMPLE_SECONDS, max(SAMPLE_SECONDS, self.unmoved_seconds(now) / 20))
        return False

    def _lowest_of_others(self, page: Sequence[Received], in_hand: Collection[int]) -> int | None:
        """The first active message that is not ours, and was not when the browse began."""
        numbers = (one.sequence_number for one in page if one.state is MessageState.ACTIVE)
        return min((one for one in numbers if one not in in_hand and one not in self.in_hand), default=None)

    def tried(self, numbers: Collection[int], now: float) -> None:
        """One message was asked for while standing back: what came tells who has the head, and nothing of what lies
        before it: that may have been ours when the head was browsed, and somebody else's since."""
        if self.head is None:
            return
        if numbers and min(numbers) <= self.head:
            self.lead()
        elif self.locked_since is None:
            self.locked_since = now

    def locked_until(self, now: float) -> float:
        """When the lock that is waited for ends at the latest, unless its holder renews it."""
        return (self.locked_since if self.locked_since is not None else now) + self.lock_seconds


LOCKED_ELSEWHERE = "locked elsewhere"
WAITS_BEHIND = "behind a message that is locked elsewhere"
NOT_COMPLETED = "forwarded, completion not confirmed"


def why_left(
    unexplained: Collection[Key], *, forwarded: Collection[Key], locked: Collection[int] | None
) -> Counter[str]:
    """Why messages are still in a queue that was asked for them in vain.

    `locked`: where somebody else leads, the numbers that are known to be locked; the others may be free, and wait
    behind those. None where the queue was read to its end: what was not handed out then is locked.
    """
    reasons: Counter[str] = Counter()
    for key in unexplained:
        if key in forwarded:
            reasons[NOT_COMPLETED] += 1
        elif locked is None or key[1] in locked:
            reasons[LOCKED_ELSEWHERE] += 1
        else:
            reasons[WAITS_BEHIND] += 1
    return reasons


class LockPatience:
    """How long to go on for messages that are there and not handed out: as long as a lock lasts, from the last change,
    and until they were asked for once more after that. Longer, and their holder renews it.

    Args:
        seconds: how long, if not as long as a lock lasts.
    """

    def __init__(self, seconds: float | None, now: float) -> None:
        self._seconds = seconds
        self._since = self._asked_at = now
        self._seen: Mapping[Any, frozenset[Key]] = {}
        self._polls = 0

    @property
    def since(self) -> float:
        """When what is there was seen to be there first: no lock that was taken before lasts longer from then on than
        the queue's locks do."""
        return self._since

    def exhausted(self, unexplained: Mapping[Any, frozenset[Key]], lock_seconds: float, now: float) -> bool:
        """Whether to give up; if not, the caller asks for the messages again now. `unexplained`: by queue."""
        if unexplained != self._seen:
            self._seen, self._since, self._asked_at, self._polls = unexplained, now, now, 0
        self._polls += 1
        seconds = self._seconds if self._seconds is not None else lock_seconds + LOCK_GRACE_SECONDS
        if self._polls > 2 and self._asked_at - self._since >= seconds:
            return True
        self._asked_at = now
        return False


class Queues:
    """The order in all queues that are read: what the runtime has to browse for it, and what the browses have shown.

    By their names, in any spelling. Times are seconds of one monotonic clock.

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

    def skipped(self, received: Sequence[Received], verdicts: Sequence[Verdict]) -> list[SkippedNumbers]:
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
        if verdict.lane is not None and received.state is MessageState.ACTIVE:
            self.of(received.source).open_gap(received.sequence_number, OrderGap(verdict.lane, foreign=True), now)

    def forgotten(self, source: str) -> int:
        """Asked for before and after a browse: if it has changed, the browse proves nothing."""
        return self.of(source).forgotten

    def proved(self, source: str, skipped: SkippedNumbers) -> None:
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
            queue.open_gap(item.received.sequence_number, OrderGap(item.lane, foreign=False), now)
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
