"""All destinations: which batches go out, what a refused one means, and how long to go on trying.

    entity not found                      dead-letter, or leave where the destination's owner can cure it
    too large, argument refused           alone: dead-letter or leave; in a batch: find it by sending one by one
    server busy                           nothing is sent to the namespace for 1 s, growing to 10 s; then more slowly
                                          (`core.transfer.pace`)
    quota exceeded, unauthorised          the destination waits 10 s, growing to 2 min; never dead-lettered
    everything else                       the destination waits 1 s, growing to 2 min, and is tried with one batch

The retired library's syphon (WindowsAzure.ServiceBus) dead-lettered after every error that is not transient, a full
quota aside. Here a message is dead-lettered only where no later try can succeed.

*Destination down for long*: what waits for it is released and nothing is received until the next try is due, so that
neither locks nor delivery counts churn. Past the patience it is *abandoned*: what waits for it is left, and what comes.

A lane is one session: its messages go one after another in backlog order. Messages without a session have no order
among each other. A batch is stored whole or not at all and in its order, so one session may have several messages in a
batch but never two batches on their way. A message behind a gap waits: one that comes before it is in its queue and not
in our hands (`core.transfer.order`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sbpair.core.errors import Category, MalformedMessageError, SendIncompleteError, ServiceError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES, PARTITION_SHIFT
from sbpair.core.names import is_dead_letter_path, same_name
from sbpair.core.retry import REFUSED, SYPHON
from sbpair.core.rewrite import without_tied_key
from sbpair.core.transfer.custody import Custody
from sbpair.core.transfer.order import Queues
from sbpair.core.transfer.pace import Window
from sbpair.core.transfer.state import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    Action,
    Batch,
    Forward,
    Item,
    LaneKey,
    Limits,
    Measure,
    PauseBegan,
    PauseEnded,
    Send,
    Stage,
)
from sbpair.core.transfer.verdict import WAITS_IN_SESSION, refused_by

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

    def __init__(self, path: str, *, in_transactions: bool = False) -> None:
        self.path = path
        self._in_transactions = in_transactions
        self._one_key = False
        """Whether a batch has one session or partition key, as its messages lie in partitions of their entity."""
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
        self._one_key |= self._in_transactions and item.key[1] >> PARTITION_SHIFT > 0
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
        chosen = _Filling(self.limit_bytes or 0, min(most, MAX_BATCH_MESSAGES), self.mixed and not self._one_key)
        deferred: list[Lane] = []
        passed: list[Item] = []
        while self._ready and not chosen.full and len(passed) < MOST_PASSED:
            entry = self._ready.popleft()
            if isinstance(entry, Item):
                if chosen.take(entry):
                    continue
                passed.append(entry)
                if chosen.fits_beside(entry):
                    break
                continue
            entry.queued = False
            if entry.first(blocked) is None:
                deferred.append(entry)
            elif not self._take_from(entry, chosen, blocked):
                break
        self._ready.extendleft(reversed(passed))
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
            lane.waiting.remove(item)  # nearly always the first
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
        entity = self.path if error is None or error.entity is None else error.entity
        here = "destination" if same_name(entity, self.path) else "source"
        self.abandoned = f"{here} unavailable: {entity} ({error.code if error is not None else ''})"
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

    def fits_beside(self, item: Item) -> bool:
        """Whether what a partitioned entity wants to be the same is that of the others."""
        return not self.items or self._mixed or item.group == self.items[0].group

    def take(self, item: Item) -> bool:
        if self.full:
            return False
        needed = len(item.payload) + BATCHED_MESSAGE_BYTES
        if self.items and (item.alone or needed > self._room or not self.fits_beside(item)):
            return False
        self._room -= needed
        self.items.append(item)
        self._closed = item.alone
        return True


HOLD_SECONDS = 20.0
"""How long messages of an unavailable destination are held locked before they are released."""
CALM_SECONDS = 1.0
"""They are released only once nothing has come for so long."""
MOST_SPELLINGS = 10_000
MOST_TRANSACTIONS = 64
"""At a time: each takes three round trips, on one connection."""
MOST_PASSED = 256
"""Messages of other keys that are passed over for one batch."""

_HOPELESS = {
    Category.NOT_FOUND: "EntityNotFound",
    Category.TOO_LARGE: "MessageTooLarge",
    Category.ARGUMENT: "ArgumentRefused",
}
"""Categories of send errors that no retry helps, with their dead-letter reason."""


class _EndedSessions:
    """Sessions that go no further, with the message at which they end."""

    def __init__(self) -> None:
        self._ends: dict[LaneKey, Item] = {}

    def end_at(self, lane: LaneKey, item: Item) -> None:
        """The session ends here, if not before."""
        end = self._ends.get(lane)
        if end is None or comes_before(item, end):
            self._ends[lane] = item

    def is_past(self, item: Item) -> bool:
        """Whether its session goes no further than a message before it."""
        end = None if item.lane is None else self._ends.get(item.lane)
        return end is not None and comes_before(end, item)


@dataclass(slots=True, eq=False)
class Destinations:
    """See the module. Times are seconds of one monotonic clock."""

    limits: Limits
    custody: Custody
    queues: Queues
    window: Window
    actions: deque[Action]
    """Gets what is to be done."""
    _: KW_ONLY
    sessions_wait: bool
    """A session goes no further than a message of it that cannot be dead-lettered."""
    leave_missing: bool
    """Leave messages whose destination does not exist."""
    leave_refused: bool
    """Leave messages that their destination refuses as they are, and what follows in their sessions."""
    _by_name: dict[str, Destination] = field(default_factory=dict, init=False)
    _spelled: dict[str, Destination] = field(default_factory=dict, init=False)
    _ended: _EndedSessions = field(default_factory=_EndedSessions, init=False)
    _sending: int = field(default=0, init=False)
    _sending_messages: int = field(default=0, init=False)

    def of(self, path: str) -> Destination:
        """The destination of this path, in any spelling."""
        destination = self._spelled.get(path)
        if destination is None:
            destination = self._by_name.setdefault(
                path.lower(), Destination(path, in_transactions=self.limits.in_transactions)
            )
            if len(self._spelled) < MOST_SPELLINGS:
                self._spelled[path] = destination
        return destination

    # What waits

    def held(self, now: float) -> int:
        """Messages that wait for a destination that is down."""
        return sum(each.waiting_count for each in self._by_name.values() if each.paused_until > now)

    def waiting_in(self, lane: LaneKey) -> Sequence[Item]:
        """What waits of a session, in its order."""
        destination = self._by_name.get(lane[0])
        return () if destination is None else destination.lane(lane)

    def given_up(self) -> dict[str, ServiceError]:
        """The destinations that nothing more is sent to, and their last error."""
        return {
            destination.path: destination.last_error
            for destination in self._by_name.values()
            if destination.abandoned is not None and destination.last_error is not None
        }

    def add(self, item: Item, verdict: Forward) -> bool:
        """A message came that is to be sent; False if it will not be, and what becomes of it is decided."""
        destination = self.of(verdict.destination)
        item.destination = destination.path  # one spelling: one link, one metric series
        item.session_id, item.partition_key, item.fault = verdict.session_id, verdict.partition_key, verdict.fault
        item.lane = verdict.lane
        self.custody.add_payload(item, verdict.payload)
        if destination.abandoned is not None:
            self.custody.leave(item, destination.abandoned)
        elif self._ended.is_past(item):
            self.custody.leave(item, WAITS_IN_SESSION)
        elif not _fits(self.custody, destination, item):
            self._refuse(destination, item, Category.TOO_LARGE, _too_large(destination))
        else:
            destination.add(item)
            return True
        return False

    def release(self, item: Item, now: float, *, comes_first: bool = True) -> None:
        """Release a message that waits. `comes_first`: what lies behind it in its session waits until it is back."""
        self.of(item.destination).remove(item)
        if comes_first:
            self.queues.await_return(item, now)
        self.custody.release(item)

    def release_all(self, now: float) -> None:
        """Release everything that waits."""
        for destination in self._by_name.values():
            for item in destination.waiting():
                self.release(item, now)

    def lost(self, item: Item, now: float) -> None:
        """Its lock is gone and it was not sent: it will come again."""
        if item.stage is Stage.WAITING:
            self.of(item.destination).remove(item)
        self.custody.drop(item, now, lost=True)

    def _wait_again(self, destination: Destination, item: Item, now: float) -> None:
        """Its batch was not accepted."""
        if destination.abandoned is not None and not self.custody.stopping:
            self.custody.leave(item, destination.abandoned)
            return
        destination.add(item, front=True)
        if self.custody.stopping:
            self.release(item, now)

    def _refuse(self, destination: Destination, item: Item, category: Category, description: str) -> None:
        """The destination does not take the message as it is: the message is dead-lettered, or left."""
        if self.leave_refused and not is_dead_letter_path(item.received.source):
            self.custody.leave(item, refused_by(destination.path, category))
            self._end_session(item)
        else:
            self._dead_letter(item, _HOPELESS[category], description)

    def _dead_letter(self, item: Item, reason: str, description: str) -> None:
        if not self.custody.dead_letter(item, reason, description) and self.sessions_wait:
            self._end_session(item)

    def _end_session(self, item: Item) -> None:
        """It stays, so what comes after it in its session may not go either."""
        if item.lane is None:
            return
        self._ended.end_at(item.lane, item)
        destination = self.of(item.destination)
        for behind in list(destination.lane(item.lane)):
            if comes_before(item, behind):
                destination.remove(behind)
                self.custody.leave(behind, WAITS_IN_SESSION)

    # Batches

    def fill_batches(self, now: float) -> None:
        """Send what may go, the destinations in turn."""
        progress = True
        while progress:
            progress = False
            for destination in list(self._by_name.values()):
                if self._sends_enough:
                    return
                progress |= self._send_next(destination, now)

    @property
    def _sends_enough(self) -> bool:
        """Transactions of a few messages, as one key has, count by their messages."""
        limits = self.limits
        most = limits.sends * limits.batch_messages if limits.in_transactions else 0
        return self._sending >= (MOST_TRANSACTIONS if self._sending_messages < most else limits.sends)

    def _send_next(self, destination: Destination, now: float) -> bool:
        if not destination.may_send(now):
            return False
        if destination.limit_bytes is None:
            if not destination.measuring:
                destination.tried_at, destination.measuring = now, True
                self.actions.append(Measure(destination.path))
            return False
        if destination.failures and destination.sending:
            return False
        allowed = min(self.window.allowance(now), self.limits.batch_messages)
        batch = destination.next_batch(allowed, self.queues.is_blocked) if allowed else None
        if batch is None:
            return False
        self.window.take(len(batch.items))
        if not destination.sending:
            destination.tried_at = now
        destination.sending += 1
        self._sending += 1
        self._sending_messages += len(batch.items)
        self.actions.append(Send(batch))
        return True

    # What the destinations answer

    def limit_known(self, path: str, limit_bytes: int) -> None:
        """The link to the destination takes transfers of up to that many bytes."""
        destination = self.of(path)
        destination.opened(limit_bytes)
        self.window.receive_again()
        for item in destination.waiting():
            if item.stage is Stage.WAITING and not _fits(self.custody, destination, item):
                destination.remove(item)
                self._refuse(destination, item, Category.TOO_LARGE, _too_large(destination))

    def limit_failed(self, path: str, error: ServiceError, now: float) -> None:
        """The link could not be opened: means for everything that waits what it means for a batch."""
        destination = self.of(path)
        destination.measuring = False
        if now < destination.paused_until and error.category not in _HOPELESS:
            destination.probe_at = now + PROBE_SECONDS  # as before; the pause goes on
        elif error.category is Category.NOT_FOUND:
            waiting = destination.waiting()
            for item in waiting:
                destination.remove(item)
            self._missing(destination, waiting, error)
        else:
            self._trouble(destination, error, now)

    def sent(self, batch: Batch, now: float) -> None:
        """The namespace accepted the whole batch."""
        destination = self._over(batch)
        self.window.accepted(len(batch.items), now)
        if destination.took(now):
            self.actions.append(PauseEnded(destination.path))
        self._accepted(destination, batch.items)

    def unrecorded(self, batch: Batch) -> None:
        """The ledger or archive had no room for the batch, or the ledger could not be written after the namespace had
        accepted it."""
        self._over(batch)
        self.custody.unrecorded(batch.items)

    def send_failed(self, batch: Batch, error: ServiceError, now: float) -> None:
        """Nothing of the batch was accepted, as far as can be known, or a part of it (SendIncompleteError)."""
        destination = self.of(batch.destination)
        items = batch.items
        if isinstance(error, SendIncompleteError):
            done = set(error.accepted)
            self._accepted(destination, [item for place, item in enumerate(items) if place in done])
            items = tuple(item for place, item in enumerate(items) if place not in done)
            error = error.__cause__ if isinstance(error.__cause__, ServiceError) else error
        self._refused(destination, items, error, now)
        self._over(batch)

    def locks_lost(self, batch: Batch, lost: Iterable[int], now: float) -> None:
        """The batch was not sent as a whole because the locks of these places are gone: they come again, if they were
        not moved after all, and the others go with the next."""
        destination, gone = self.of(batch.destination), frozenset(lost)
        for place, item in enumerate(batch.items):
            item.attempts -= 1
            if place in gone:
                self.custody.drop(item, now, lost=True)
        for place, item in enumerate(batch.items):
            if place not in gone:
                self._wait_again(destination, item, now)
        self._over(batch)

    def _over(self, batch: Batch) -> Destination:
        destination = self.of(batch.destination)
        destination.over(batch)
        self._sending -= 1
        self._sending_messages -= len(batch.items)
        return destination

    def _accepted(self, destination: Destination, items: Sequence[Item]) -> None:
        self.custody.accepted(items, destination.path)
        for source in dict.fromkeys(item.received.source for item in items):
            self.queues.leads(source, self.custody.last_arrival)

    def _refused(self, destination: Destination, items: Sequence[Item], error: ServiceError, now: float) -> None:
        if not error.uncertain:
            for item in items:
                item.attempts -= 1
        reason = _HOPELESS.get(error.category)
        if reason is None:
            for item in items:
                self._wait_again(destination, item, now)
            self._trouble(destination, error, now)
        elif error.category is Category.NOT_FOUND:
            self._missing(destination, items, error)
        elif len(items) == 1:
            self._refuse(destination, items[0], error.category, error.message)
        else:
            self._send_apart(destination, items, error, now)

    def _send_apart(self, destination: Destination, items: Sequence[Item], error: ServiceError, now: float) -> None:
        """One message of several may be the reason, or their mixture."""
        mixture = len({item.group for item in items}) > 1
        if error.category is Category.ARGUMENT and destination.mixed and mixture:
            destination.mixed = False
        else:
            for item in items:
                item.alone = True
        for item in items:
            self._wait_again(destination, item, now)

    # Trouble

    def _missing(self, destination: Destination, items: Iterable[Item], error: ServiceError) -> None:
        """The destination does not exist: dead-lettered as the retired library did, or left until it is created."""
        if self.leave_missing:
            self._abandon(destination, error)
        for item in items:
            if destination.abandoned is not None:
                self.custody.leave(item, destination.abandoned)
            else:
                self._dead_letter(item, _HOPELESS[Category.NOT_FOUND], error.message)

    def _trouble(self, destination: Destination, error: ServiceError, now: float) -> None:
        if error.category is Category.BUSY:
            if (pause := self.window.too_busy(error, now)) is not None:
                self.actions.append(pause)
            return
        seconds = destination.failed(error, now)
        if error.category in self.limits.no_use_waiting:
            self._abandon(destination, error)
        else:
            left = destination.patience_left(self.limits, now)
            self.actions.append(PauseBegan(destination.path, error.code, seconds, left))

    def give_up(self, now: float) -> None:
        """Leave what waits for a destination that has failed for longer than the patience lasts, and everything once
        the namespace has been too busy for all of it for so long."""
        busy = self.window.busy_beyond_patience(now)
        for destination in self._by_name.values():
            if destination.abandoned is not None:
                continue
            if destination.outlasts_patience(self.limits, now):
                self._abandon(destination, destination.last_error)
            elif busy is not None and destination.waiting_count:
                self._abandon(destination, busy)

    def _abandon(self, destination: Destination, error: ServiceError | None) -> None:
        """Nothing more is sent there: what waits for it is left, and what still comes."""
        self.window.receive_again()  # what is in the queues for it is named too, and the others go on
        why = destination.abandon(error)
        for item in destination.waiting():
            destination.remove(item)
            self.custody.leave(item, why)

    def probe(self, now: float) -> None:
        """Ask the links of paused destinations whether they open again: no message is needed for that, and what waits
        goes on seconds after the destination is back, however long the pause has grown."""
        if self.custody.stopping:
            return
        for destination in self._by_name.values():
            if (probe_at := destination.next_probe(now)) is not None and probe_at <= now:
                destination.measuring = True
                self.actions.append(Measure(destination.path))

    def release_in_a_long_pause(self, now: float) -> None:
        """Nothing can move for long: give everything back and receive nothing until the next try is due."""
        waiting = [destination for destination in self._by_name.values() if destination.waiting_count]
        calm = now - self.custody.last_arrival >= CALM_SECONDS
        if self.custody.stopping or not waiting or self._sending or not calm:
            return
        if not self.window.receives(now):
            return  # what an open poll still brought is held: released, it would come straight round again
        resumes = min(max(each.paused_until, self.window.busy_until) for each in waiting)
        if resumes - now <= HOLD_SECONDS or any(each.measuring and each.probe_at is None for each in waiting):
            return
        self.window.pause_receiving(resumes)
        for destination in waiting:
            for item in destination.waiting():
                self.release(item, now)

    def deadlines(self, now: float) -> Iterator[float]:
        """When a destination may be tried or probed again, and when the window lets more go."""
        waiting = False
        for destination in self._by_name.values():
            waiting |= destination.waiting_count > 0
            if destination.waiting_count and destination.paused_until > now:
                yield destination.paused_until
            if not self.custody.stopping and (probe_at := destination.next_probe(now)) is not None:
                yield probe_at
        yield from self.window.deadlines(now, waiting=waiting)


def _fits(custody: Custody, destination: Destination, item: Item) -> bool:
    """Whether the destination takes the message: at the limit without the partition key that the way back adds,
    since a partitioned entity goes by the session id where there is no key ("Partitioned queues and topics")."""
    if not destination.too_large(item):
        return True
    if item.session_id is None:
        return False
    try:
        custody.replace_payload(item, without_tied_key(item.payload))
    except MalformedMessageError:
        return False  # nothing of it can be left out
    return not destination.too_large(item)


def _too_large(destination: Destination) -> str:
    return f"The message is larger than the {destination.limit_bytes} bytes that {destination.path} accepts."
