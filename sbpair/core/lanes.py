"""What waits for one destination, in which order it may go, and what fits into one batch.

A lane is one session: its messages go one after another in backlog order. Messages without a session have no order
among each other. A batch is stored whole or not at all and in its order, so one session may have several messages in a
batch but never two batches on their way.

A lane with a gap waits: a message of it was given back or its lock was lost, and will come again *behind* those that
wait here. After a while a gap counts as closed, because another consumer may have taken the message.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from sbpair.core.message import Received

BATCH_ENVELOPE_BYTES = 1024
"""Room kept in a batch for its envelope: a copy of the first message's id, session and partition key."""
BATCHED_MESSAGE_BYTES = 8
"""Each message of a batch is a data section: 3 bytes of descriptor, 5 of a long binary (AMQP 1.0 §3.2.6)."""
MAX_BATCH_BYTES = 1024 * 1024
"""Limit of a batch where single messages may be larger (Premium)."""
MAX_BATCH_MESSAGES = 1000
GAP_GRACE_SECONDS = 30.0
"""How much longer than a lock a gap stays open."""

Key = tuple[str, int, str | None, int]
"""Source, sequence number, message id, enqueued time in ms (a queue deleted and made again counts from 1 again)."""


def key_of(received: Received) -> Key:
    """What tells one stored message from every other, also across deliveries."""
    enqueued = -1 if received.enqueued_at is None else round(received.enqueued_at * 1000)
    return received.source, received.sequence_number, received.message_id, enqueued


class Stage(Enum):
    WAITING = "waiting"
    SENDING = "sending"
    SETTLING = "settling"
    PARKED = "parked"


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
    partition_key: str | None = None
    stage: Stage = Stage.WAITING
    left_because: str = ""
    size_bytes: int = 0
    attempts: int = 0
    renewing: bool = False
    alone: bool = False
    """To be sent in a transfer of its own."""
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
    session_id: str
    waiting: deque[Item] = field(default_factory=deque)
    busy: bool = False
    queued: bool = False
    gaps: dict[tuple[str, int], float] = field(default_factory=dict)
    """(source, sequence number) of what has to come first, with the time at which it no longer does."""

    def add(self, item: Item) -> None:
        """At the end, or before what came later in the same queue (redelivered messages arrive late)."""
        self.gaps.pop((item.received.source, item.received.sequence_number), None)
        behind: list[Item] = []
        while self.waiting and _comes_before(item, self.waiting[-1]):
            behind.append(self.waiting.pop())
        self.waiting.append(item)
        self.waiting.extend(reversed(behind))

    def blocked(self, now: float) -> bool:
        """Whether the first one waiting has to wait for one that was given back."""
        for place, until in list(self.gaps.items()):
            if until <= now:
                del self.gaps[place]
        head = self.waiting[0].received if self.waiting else None
        return head is not None and any(
            source == head.source and number < head.sequence_number for source, number in self.gaps
        )

    @property
    def spent(self) -> bool:
        return not (self.waiting or self.busy or self.gaps)


def _comes_before(item: Item, other: Item) -> bool:
    same_source = item.received.source == other.received.source
    return same_source and item.received.sequence_number < other.received.sequence_number


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
        self.last_error = ""
        self.paused_until = 0.0
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
        if item.session_id is not None:
            lane = self._lanes.setdefault(item.session_id, Lane(item.session_id))
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

    def release_lane(self, session_id: str | None) -> None:
        """The batch with this session's messages is through, well or not."""
        lane = self._lanes.get(session_id) if session_id is not None else None
        if lane is not None:
            lane.busy = False
            self._offer(lane)
            self._forget(lane)

    def mark_gap(self, item: Item, now: float) -> None:
        """The message goes back to its queue without having been sent."""
        if item.session_id is not None:
            self.expect(item.session_id, item.received, now + item.lock_seconds + GAP_GRACE_SECONDS)

    def expect(self, session_id: str, received: Received, until: float) -> None:
        """This message of the session will still come; those behind it wait for it up to `until`."""
        lane = self._lanes.setdefault(session_id, Lane(session_id))
        lane.gaps[received.source, received.sequence_number] = until

    def close_gap(self, session_id: str, received: Received) -> None:
        """The expected message has come and needs no sending."""
        lane = self._lanes.get(session_id)
        if lane is not None:
            lane.gaps.pop((received.source, received.sequence_number), None)
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.spent and not lane.queued:
            self._lanes.pop(lane.session_id, None)

    def remove(self, item: Item) -> None:
        """Take one that waits out of the line."""
        self.waiting_count -= 1
        if item.session_id is None:
            self._ready.remove(item)
        else:
            self._lanes[item.session_id].waiting.remove(item)

    def waiting(self) -> list[Item]:
        """Everything that waits, sessions in their order."""
        loose = [entry for entry in self._ready if isinstance(entry, Item)]
        return loose + [item for lane in self._lanes.values() for item in lane.waiting]

    def next_batch(self, now: float, most: int) -> Batch | None:
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
            if entry.blocked(now):
                deferred.append(entry)
            elif not self._take_from(entry, chosen, now):
                break
        for lane in deferred:
            self._offer(lane)
            self._forget(lane)
        self.waiting_count -= len(chosen.items)
        for item in chosen.items:
            item.stage = Stage.SENDING
            item.attempts += 1
        return Batch(self.path, tuple(chosen.items)) if chosen.items else None

    def _take_from(self, lane: Lane, chosen: "_Filling", now: float) -> bool:
        """Move the lane's first messages into the batch; False if the batch could not even take one."""
        taken = 0
        while lane.waiting and not lane.blocked(now) and chosen.take(lane.waiting[0]):
            lane.waiting.popleft()
            taken += 1
        lane.busy = taken > 0
        if not taken and lane.waiting:
            lane.queued = True
            self._ready.appendleft(lane)
        self._forget(lane)
        return taken > 0 or not lane.waiting

    def too_large(self, item: Item) -> bool:
        return self.limit_bytes is not None and len(item.payload) > self.limit_bytes

    def sessions_of(self, batch: Batch) -> Iterator[str]:
        yield from {item.session_id for item in batch.items if item.session_id is not None}


class _Filling:
    """A batch in the making. A message alone needs no envelope, so it may use the whole limit."""

    def __init__(self, limit_bytes: int, most: int, mixed: bool) -> None:
        self.items: list[Item] = []
        self._left = min(limit_bytes, MAX_BATCH_BYTES) - BATCH_ENVELOPE_BYTES
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
            if item.alone or unlike or needed > self._left:
                return False
        self._left -= needed
        self.items.append(item)
        self._closed = item.alone
        return True
