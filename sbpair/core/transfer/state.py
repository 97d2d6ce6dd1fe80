"""What waits for one destination, in which order it may go, and what fits into one batch.

A lane is one session: its messages go one after another in backlog order. Messages without a session have no order
among each other. A batch is stored whole or not at all and in its order, so one session may have several messages in a
batch but never two batches on their way.

A message behind a gap waits: one that comes before it is in its queue and not in our hands (`core.transfer.order`).
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sbpair.core.errors import Category, ServiceError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES, Disposition, Received
from sbpair.core.values import value_class

# Lock expiries on the local clock, right even when the local clock is wrong.

DEFAULT_LOCK_SECONDS = 60.0
"""Lock duration of the documented backlog queues ("Paired Namespaces: Implementation Details and Cost")."""
LEAST_LOCK_SECONDS = 5.0
"""The shortest lock duration that the service lets a queue have."""


class LockClock:
    """Turns `locked until`, told in the broker's time, into a deadline on the local monotonic clock.

    A message that has just been handed out has its whole lock ahead of it. The freshest one seen therefore shows how
    far the two wall clocks are apart, which minutes of skew on a laptop or container would otherwise turn into
    "already expired" (never sent) or "still valid" (sent too late).

    Where nobody may ask for the queue's lock duration, the freshest lock is also all that is known of it: it counts as
    no longer than it says. A wall clock that is ahead makes it look shorter, and it is renewed more often; one that is
    behind makes it look longer, up to the documented duration.

    Args:
        lock_seconds: the queue's lock duration; None: not known.
    """

    def __init__(self, lock_seconds: float | None = None) -> None:
        self.lock_seconds = DEFAULT_LOCK_SECONDS if lock_seconds is None else lock_seconds
        self._known = lock_seconds is not None
        self._most_left: float | None = None

    def deadline(self, locked_until: float | None, *, now_utc: float, now: float) -> float:
        """Monotonic time at which the lock runs out. A lock without a stated end lasts its whole duration from now."""
        if locked_until is None:
            return now + self.lock_seconds
        left = locked_until - now_utc
        if self._most_left is None or left > self._most_left:
            self._most_left = left
            if not self._known and left > 0:
                self.lock_seconds = min(DEFAULT_LOCK_SECONDS, max(LEAST_LOCK_SECONDS, left))
        return now + min(self.lock_seconds, left + self.lock_seconds - self._most_left)


MAX_BATCH_BYTES = 1024 * 1024
"""Limit of a batch where single messages may be larger (Premium)."""
MAX_BATCH_MESSAGES = 1000
Key = tuple[str, int, str | None, int]
"""Source, sequence number, message id, enqueued time in ms (a queue deleted and made again counts from 1 again)."""


def key_of(received: Received) -> Key:
    """What tells one stored message from every other, also across deliveries."""
    if (origin := received.origin) is not None:
        return origin.queue, origin.sequence_number, origin.message_id, origin.enqueued_at_ms
    enqueued = -1 if received.enqueued_at is None else round(received.enqueued_at * 1000)
    return received.source, received.sequence_number, received.message_id, enqueued


class Stage(Enum):
    WAITING = "waiting"
    SENDING = "sending"
    SETTLING = "settling"
    LEFT = "left"


@dataclass(slots=True, eq=False)
class Item:
    """One message in the pump's hands, with the newest receipt for it."""

    key: Key
    received: Received
    lock_until: float
    lock_seconds: float
    payload: bytes = b""
    destination: str = ""
    session_id: str | None = None
    session: str | None = None
    """The session as it is compared (`service.session_key`)."""
    partition_key: str | None = None
    fault: str | None = None
    """Why it had been dead-lettered before, if it was."""
    stage: Stage = Stage.WAITING
    left_because: str = ""
    size_bytes: int = 0
    attempts: int = 0
    """Sends that may have arrived, the last one included; what was refused for certain does not count."""
    renewing: bool = False
    alone: bool = False
    """To be sent in a transfer of its own."""
    completed: bool = False
    """It was completed together with its send, in one transaction."""
    counted: bool = False
    """Whether it counts towards the number of messages wanted."""
    releasing: bool = False
    comes_again: Callable[[], None] | None = None
    """Takes in the delivery that came before its release was confirmed."""

    @property
    def group(self) -> str | None:
        """What a partitioned entity wants to be the same all over a batch."""
        return self.session_id if self.session_id is not None else self.partition_key

    def margin(self) -> float:
        """How long before the lock's end it has to be renewed."""
        return min(15.0, self.lock_seconds / 3)


@dataclass(slots=True, eq=False)
class Lane:
    """What waits of one session, from all queues: each queue in its order, the queues among each other by the time at
    which the messages were put there, as far as they are here."""

    session: str
    waiting: deque[Item] = field(default_factory=deque)
    busy: bool = False
    queued: bool = False

    def add(self, item: Item) -> None:
        """At the end, or before what came later (redelivered messages arrive late)."""
        behind: list[Item] = []
        while self.waiting and comes_before(item, self.waiting[-1]):
            behind.append(self.waiting.pop())
        self.waiting.append(item)
        self.waiting.extend(reversed(behind))

    def first(self, blocked: Callable[[Item], bool]) -> Item | None:
        """The first one that may go. What is blocked in one queue does not hold up another: it would for ever if two
        processes each held what comes next in the other's."""
        return next((item for item in self.waiting if not blocked(item)), None)

    def take(self, item: Item) -> None:
        if self.waiting[0] is item:
            self.waiting.popleft()
        else:
            self.waiting.remove(item)

    @property
    def spent(self) -> bool:
        return not (self.waiting or self.busy)


def comes_before(item: Item, other: Item) -> bool:
    """In the backlog's order, as far as there is one."""
    one, two = item.received, other.received
    if one.source == two.source:
        return one.sequence_number < two.sequence_number
    if one.enqueued_at is None or two.enqueued_at is None:
        return False
    # The source decides between equal times, so that this is one order of all.
    return (one.enqueued_at, one.source) < (two.enqueued_at, two.source)


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that go out in one transfer."""

    destination: str
    items: tuple[Item, ...]


class Destination:
    """One entity on the primary: its queue of what may go, its health."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.limit_bytes: int | None = None
        self.measuring = False
        self.sending = 0
        self.failures = 0
        self.failing_since: float | None = None
        """When the try began that failed first since it last took a message."""
        self.tried_at = 0.0
        """When it last took a message, or the oldest try under way began."""
        self.reached = False
        """Whether it has taken a message."""
        self.last_error: ServiceError | None = None
        self.paused_until = 0.0
        self.probe_at: float | None = None
        """When a paused destination is asked for a link; None if that would not help, or it is not paused for long."""
        self.abandoned: str | None = None
        """Why nothing more is sent there; None as long as it is tried."""
        self.mixed = True
        """Whether a batch may mix sessions and partition keys; a partitioned entity refuses that."""
        self.waiting_count = 0
        self._ready: deque[Item | Lane] = deque()
        self._lanes: dict[str, Lane] = {}

    def add(self, item: Item, *, front: bool = False) -> None:
        """Put a message where it waits; `front` for one whose send failed."""
        item.stage = Stage.WAITING
        self.waiting_count += 1
        if item.session is not None:
            lane = self._lanes.setdefault(item.session, Lane(item.session))
            lane.add(item)
            self._offer(lane)
        elif front:
            self._ready.appendleft(item)
        else:
            self._ready.append(item)

    def _offer(self, lane: Lane) -> None:
        if lane.waiting and not lane.busy and not lane.queued:
            lane.queued = True
            self._ready.append(lane)

    def release_lane(self, session: str | None) -> None:
        """The batch with this session's messages is through, well or not."""
        lane = self._lanes.get(session) if session is not None else None
        if lane is not None:
            lane.busy = False
            self._offer(lane)
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.spent and not lane.queued:
            self._lanes.pop(lane.session, None)

    def remove(self, item: Item) -> None:
        """Take one that waits out of the line."""
        self.waiting_count -= 1
        if item.session is None:
            self._ready.remove(item)
        else:
            self._lanes[item.session].waiting.remove(item)

    def waiting(self) -> list[Item]:
        """Everything that waits, sessions in their order."""
        loose = [entry for entry in self._ready if isinstance(entry, Item)]
        return loose + [item for lane in self._lanes.values() for item in lane.waiting]

    def next_batch(self, most: int, blocked: Callable[[Item], bool]) -> Batch | None:
        """Up to `most` messages within the link's limit; None if nothing may go now."""
        chosen = _Filling(self.limit_bytes or 0, min(most, MAX_BATCH_MESSAGES), self.mixed)
        deferred: list[Lane] = []
        while self._ready and not chosen.full:
            entry = self._ready[0]
            if isinstance(entry, Item):
                if not chosen.take(entry):
                    break
                self._ready.popleft()
                continue
            self._ready.popleft()
            entry.queued = False
            if entry.first(blocked) is None:
                deferred.append(entry)
            elif not self._take_from(entry, chosen, blocked):
                break
        for lane in deferred:
            self._offer(lane)
            self._forget(lane)
        self.waiting_count -= len(chosen.items)
        for item in chosen.items:
            item.stage = Stage.SENDING
            item.attempts += 1
        return Batch(self.path, tuple(chosen.items)) if chosen.items else None

    def _take_from(self, lane: Lane, chosen: "_Filling", blocked: Callable[[Item], bool]) -> bool:
        """Move the lane's first messages into the batch; False if the batch could not even take one."""
        taken = 0
        while (item := lane.first(blocked)) is not None and chosen.take(item):
            lane.take(item)
            taken += 1
        lane.busy = taken > 0
        if not taken:
            lane.queued = True
            self._ready.appendleft(lane)
        self._forget(lane)
        return taken > 0

    def lane(self, session: str) -> Sequence[Item]:
        """What waits of a session, in its order."""
        lane = self._lanes.get(session)
        return lane.waiting if lane is not None else ()

    def too_large(self, item: Item) -> bool:
        return self.limit_bytes is not None and len(item.payload) > self.limit_bytes

    def sessions_of(self, batch: Batch) -> Iterator[str]:
        yield from dict.fromkeys(item.session for item in batch.items if item.session is not None)


class _Filling:
    """A batch in the making. A message alone needs no envelope, so it may use the whole limit."""

    def __init__(self, limit_bytes: int, most: int, mixed: bool) -> None:
        self.items: list[Item] = []
        self._room = min(limit_bytes, MAX_BATCH_BYTES) - BATCH_ENVELOPE_BYTES
        self._most = most
        self._mixed = mixed
        self._closed = False

    @property
    def full(self) -> bool:
        return self._closed or len(self.items) >= self._most

    def take(self, item: Item) -> bool:
        if self.full:
            return False
        needed = len(item.payload) + BATCHED_MESSAGE_BYTES
        if self.items:
            unlike = not self._mixed and item.group != self.items[0].group
            if item.alone or unlike or needed > self._room:
                return False
        self._room -= needed
        self.items.append(item)
        self._closed = item.alone
        return True


# What the pump's machine is told and what it wants done: plain values. The machine is `core.transfer.machine`.


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the pump. None means none."""

    in_flight_messages: int = 2000
    in_flight_bytes: int = 64 * 1024 * 1024
    batch_messages: int = MAX_BATCH_MESSAGES
    sends: int = 8
    """Batches on their way at the same time."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """Messages a second that the throttling credits left to others allow: in no second more than that."""
    total_messages: int | None = None
    patience_seconds: float | None = None
    """How long a destination may fail before its messages are left; None: for ever."""
    unreached_seconds: float = math.inf
    """The same, if that is less, for one that has not taken a message yet."""
    lock_wait_seconds: float | None = None
    """How long to wait behind messages that somebody else has locked and does not move; None: for ever."""
    shared: bool = True
    """Whether others may empty the same queues."""
    left_messages: int = 20_000
    """Messages kept in hand although nothing is done with them, so that they do not come round again."""
    no_use_waiting: frozenset[Category] = frozenset()
    """Errors after which a destination is abandoned at once, whatever the patience."""


@value_class
class Forward:
    """Send it to its destination."""

    payload: bytes
    destination: str
    session_id: str | None = None
    partition_key: str | None = None
    fault: str | None = None
    """Why it had been dead-lettered, if it was."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Settle it without sending: a ping, or something that never can be sent."""

    disposition: Disposition
    outcome: str
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """Keep hands off, but keep the lock until the end so that it does not come round again."""

    because: str


Verdict = Forward | Finish | Leave


@dataclass(frozen=True, slots=True)
class Measure:
    """Ask the link to the destination for its message size limit."""

    destination: str


@dataclass(frozen=True, slots=True)
class Send:
    batch: Batch


@value_class
class Settle:
    """Settle this receipt. `outcome` is the ledger's word for it, empty if it says nothing about the message."""

    item: Item
    received: Received
    disposition: Disposition
    outcome: str = ""
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Renew:
    item: Item
    received: Received


@dataclass(frozen=True, slots=True)
class PollAgain:
    """A message of this source will be delivered again, even if the source seemed to be empty."""

    source: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Browse a page of this source from this number on, and tell `sampled`."""

    source: str
    first: int


@dataclass(frozen=True, slots=True)
class LockMet:
    """The first message of this source is locked by somebody else, for so long at the most unless renewed."""

    source: str
    sequence_number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Followed:
    """Others lead in these sources, and move their heads by so many messages a second together."""

    sources: tuple[str, ...]
    messages_per_second: float


@dataclass(frozen=True, slots=True)
class PauseBegan:
    """`entity` empty: the whole namespace."""

    entity: str
    error_code: str
    seconds: float
    abandoned_in_seconds: float | None = None
    """When its messages are left if it goes on failing; None: never."""


@dataclass(frozen=True, slots=True)
class PauseEnded:
    entity: str


Action = Measure | Send | Settle | Renew | PollAgain | Sample | LockMet | Followed | PauseBegan | PauseEnded
