"""What waits for one destination, in which order it may go, and what fits into one batch; the destination's health.

A lane is one session: its messages go one after another in backlog order. Messages without a session have no order
among each other. A batch is stored whole or not at all and in its order, so one session may have several messages in a
batch but never two batches on their way.

A message behind a gap waits: one that comes before it is in its queue and not in our hands (`core.transfer.order`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sbpair.core.errors import Category, ServiceError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES
from sbpair.core.retry import REFUSED, SYPHON
from sbpair.core.transfer.state import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Batch, Item, LaneKey, Limits, Stage

PROBE_SECONDS = 5.0
"""How often a paused destination is asked for a link. An attempt that fails is not billed."""
_NEEDS_ACTION = (Category.QUOTA, Category.UNAUTHORIZED)
"""Errors that last until a person acts: the destination waits longer, and opening a link shows nothing."""


@dataclass(slots=True, eq=False)
class Lane:
    """What waits of one session, from all queues: each queue in its order, the queues among each other by the time at
    which the messages were put there, as far as they are here."""

    key: LaneKey
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
        """The first message that may go. What is blocked in one queue does not hold up another: it would for ever if
        two processes each held what comes next in the other's."""
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
    first, second = item.received, other.received
    if first.source == second.source:
        return first.sequence_number < second.sequence_number
    if first.enqueued_at is None or second.enqueued_at is None:
        return False
    # The source decides between equal times, so that this orders all messages.
    return (first.enqueued_at, first.source) < (second.enqueued_at, second.source)


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
        self._lanes: dict[LaneKey, Lane] = {}

    def add(self, item: Item, *, front: bool = False) -> None:
        """Put a message where it waits; `front`: its send failed, so it goes before those without a session."""
        item.stage = Stage.WAITING
        self.waiting_count += 1
        if item.lane is not None:
            lane = self._lanes.get(item.lane)
            if lane is None:
                lane = self._lanes[item.lane] = Lane(item.lane)
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

    def over(self, batch: Batch) -> None:
        """The batch was answered, accepted or not: its sessions may go on."""
        self.sending -= 1
        for key in dict.fromkeys(item.lane for item in batch.items if item.lane is not None):
            if (lane := self._lanes.get(key)) is not None:
                lane.busy = False
                self._offer(lane)
                self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.spent and not lane.queued:
            self._lanes.pop(lane.key, None)

    def remove(self, item: Item) -> None:
        """Take a message out that waits."""
        self.waiting_count -= 1
        if item.lane is None:
            self._ready.remove(item)
        else:
            self._lanes[item.lane].waiting.remove(item)

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

    def lane(self, key: LaneKey) -> Sequence[Item]:
        """What waits of a session, in its order."""
        lane = self._lanes.get(key)
        return lane.waiting if lane is not None else ()

    def too_large(self, item: Item) -> bool:
        return self.limit_bytes is not None and len(item.payload) > self.limit_bytes

    # Health

    def opened(self, limit_bytes: int) -> None:
        """The link was opened. That is no accepted message: the next send is a single batch, and only its success ends
        the trouble."""
        self.measuring = False
        self.limit_bytes = limit_bytes
        self.paused_until, self.probe_at = 0.0, None

    def failed(self, error: ServiceError, now: float) -> float:
        """A batch or a link was refused; the seconds until the next try."""
        self.failures += 1
        if self.failing_since is None:
            self.failing_since = self.tried_at
        needs_action = error.category in _NEEDS_ACTION
        seconds = (REFUSED if needs_action else SYPHON).seconds(self.failures)
        self.paused_until = now + seconds
        self.probe_at = None if needs_action or seconds <= PROBE_SECONDS else now + PROBE_SECONDS
        self.last_error = error
        return seconds

    def took(self, now: float) -> bool:
        """It accepted a batch; whether that ends a trouble."""
        ended = self.failures > 0
        self.reached, self.tried_at = True, now
        self.failures, self.failing_since = 0, None
        self.paused_until, self.probe_at = 0.0, None
        return ended

    def patience_seconds(self, limits: Limits) -> float | None:
        """How long it may fail; None: for ever."""
        if limits.patience_seconds is None or self.reached:
            return limits.patience_seconds
        return min(limits.patience_seconds, limits.unreached_seconds)

    def patience_left(self, limits: Limits, now: float) -> float | None:
        """Seconds until it is given up if it goes on failing; None: never."""
        bound = self.patience_seconds(limits)
        return bound if bound is None or self.failing_since is None else max(0.0, self.failing_since + bound - now)

    def outlasts_patience(self, limits: Limits, now: float) -> bool:
        """Whether it has failed for longer than that."""
        bound = self.patience_seconds(limits)
        return bound is not None and self.failing_since is not None and now - self.failing_since >= bound

    def abandon(self, error: ServiceError | None) -> str:
        """Nothing more is sent there; the reason for which its messages are left."""
        self.last_error = error
        self.abandoned = f"destination unavailable: {self.path} ({error.code if error is not None else ''})"
        return self.abandoned

    def may_send(self, now: float) -> bool:
        """Whether messages wait, and the destination is neither paused nor abandoned."""
        return self.waiting_count > 0 and self.abandoned is None and now >= self.paused_until

    def next_probe(self, now: float) -> float | None:
        """When it is to be asked for a link; None: not as things are."""
        if self.abandoned is not None or self.paused_until <= now or self.measuring:
            return None
        return self.probe_at


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
