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
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from sbpair.core.errors import Category, MalformedMessageError, SendIncompleteError, ServiceError
from sbpair.core.names import is_dead_letter_path
from sbpair.core.rewrite import without_tied_key
from sbpair.core.transfer.custody import Custody
from sbpair.core.transfer.destinations import WAITS_IN_SESSION, refused_by
from sbpair.core.transfer.lanes import PROBE_SECONDS, Destination, comes_before
from sbpair.core.transfer.queues import Queues
from sbpair.core.transfer.state import (
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
from sbpair.core.transfer.window import Window

HOLD_SECONDS = 20.0
"""How long messages of an unavailable destination are held locked before they are released."""
CALM_SECONDS = 1.0
"""They are released only once nothing has come for so long."""
MOST_SPELLINGS = 10_000

_HOPELESS = {
    Category.NOT_FOUND: "EntityNotFound",
    Category.TOO_LARGE: "MessageTooLarge",
    Category.ARGUMENT: "ArgumentRefused",
}
"""Categories of send errors that no retry helps, with their dead-letter reason."""


class Destinations:
    """See the module. Times are seconds of one monotonic clock.

    Args:
        actions: gets what is to be done.
        sessions_wait: a session goes no further than a message of it that cannot be dead-lettered.
        leave_missing: leave messages whose destination does not exist.
        leave_refused: leave messages that their destination refuses as they are, and what follows in their sessions.
    """

    def __init__(
        self,
        limits: Limits,
        custody: Custody,
        queues: Queues,
        window: Window,
        actions: deque[Action],
        *,
        sessions_wait: bool,
        leave_missing: bool,
        leave_refused: bool,
    ) -> None:
        self._limits = limits
        self._custody = custody
        self._queues = queues
        self._window = window
        self._actions = actions
        self._sessions_wait = sessions_wait
        self._leave_missing = leave_missing
        self._leave_refused = leave_refused
        self._by_name: dict[str, Destination] = {}
        self._spelled: dict[str, Destination] = {}
        self._ended = _EndedSessions()
        self._sending = 0

    def of(self, path: str) -> Destination:
        """The destination of this path, in any spelling."""
        destination = self._spelled.get(path)
        if destination is None:
            destination = self._by_name.setdefault(path.lower(), Destination(path))
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
        self._custody.add_payload(item, verdict.payload)
        if destination.abandoned is not None:
            self._custody.leave(item, destination.abandoned)
        elif self._ended.is_past(item):
            self._custody.leave(item, WAITS_IN_SESSION)
        elif not _fits(self._custody, destination, item):
            self._refuse(destination, item, Category.TOO_LARGE, _too_large(destination))
        else:
            destination.add(item)
            return True
        return False

    def release(self, item: Item, now: float, *, comes_first: bool = True) -> None:
        """Release a message that waits. `comes_first`: what lies behind it in its session waits until it is back."""
        self.of(item.destination).remove(item)
        if comes_first:
            self._queues.await_return(item, now)
        self._custody.release(item)

    def release_all(self, now: float) -> None:
        """Release everything that waits."""
        for destination in self._by_name.values():
            for item in destination.waiting():
                self.release(item, now)

    def lost(self, item: Item, now: float) -> None:
        """Its lock is gone and it was not sent: it will come again."""
        if item.stage is Stage.WAITING:
            self.of(item.destination).remove(item)
        self._custody.drop(item, now, lost=True)

    def _wait_again(self, destination: Destination, item: Item, now: float) -> None:
        """Its batch was not accepted."""
        if destination.abandoned is not None and not self._custody.stopping:
            self._custody.leave(item, destination.abandoned)
            return
        destination.add(item, front=True)
        if self._custody.stopping:
            self.release(item, now)

    def _refuse(self, destination: Destination, item: Item, category: Category, description: str) -> None:
        """The destination does not take the message as it is: the message is dead-lettered, or left."""
        if self._leave_refused and not is_dead_letter_path(item.received.source):
            self._custody.leave(item, refused_by(destination.path, category))
            self._end_session(item)
        else:
            self._dead_letter(item, _HOPELESS[category], description)

    def _dead_letter(self, item: Item, reason: str, description: str) -> None:
        if not self._custody.dead_letter(item, reason, description) and self._sessions_wait:
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
                self._custody.leave(behind, WAITS_IN_SESSION)

    # Batches

    def fill_batches(self, now: float) -> None:
        """Send what may go, the destinations in turn."""
        progress = True
        while progress:
            progress = False
            for destination in list(self._by_name.values()):
                if self._sending >= self._limits.sends:
                    return
                progress |= self._send_next(destination, now)

    def _send_next(self, destination: Destination, now: float) -> bool:
        if not destination.may_send(now):
            return False
        if destination.limit_bytes is None:
            if not destination.measuring:
                destination.tried_at, destination.measuring = now, True
                self._actions.append(Measure(destination.path))
            return False
        if destination.failures and destination.sending:
            return False
        allowed = min(self._window.allowance(now), self._limits.batch_messages)
        batch = destination.next_batch(allowed, self._queues.is_blocked) if allowed else None
        if batch is None:
            return False
        self._window.take(len(batch.items))
        if not destination.sending:
            destination.tried_at = now
        destination.sending += 1
        self._sending += 1
        self._actions.append(Send(batch))
        return True

    # What the destinations answer

    def limit_known(self, path: str, limit_bytes: int) -> None:
        """The link to the destination takes transfers of up to that many bytes."""
        destination = self.of(path)
        destination.opened(limit_bytes)
        self._window.receive_again()
        for item in destination.waiting():
            if item.stage is Stage.WAITING and not _fits(self._custody, destination, item):
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
        self._window.accepted(len(batch.items), now)
        if destination.took(now):
            self._actions.append(PauseEnded(destination.path))
        self._accepted(destination, batch.items)

    def unrecorded(self, batch: Batch) -> None:
        """The ledger had no room for the batch, or could not be written after the namespace had accepted it."""
        self._over(batch)
        self._custody.unrecorded(batch.items)

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
                self._custody.drop(item, now, lost=True)
        for place, item in enumerate(batch.items):
            if place not in gone:
                self._wait_again(destination, item, now)
        self._over(batch)

    def _over(self, batch: Batch) -> Destination:
        destination = self.of(batch.destination)
        destination.over(batch)
        self._sending -= 1
        return destination

    def _accepted(self, destination: Destination, items: Sequence[Item]) -> None:
        self._custody.accepted(items, destination.path)
        for source in dict.fromkeys(item.received.source for item in items):
            self._queues.leads(source, self._custody.last_arrival)

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
        if self._leave_missing:
            self._abandon(destination, error)
        for item in items:
            if destination.abandoned is not None:
                self._custody.leave(item, destination.abandoned)
            else:
                self._dead_letter(item, _HOPELESS[Category.NOT_FOUND], error.message)

    def _trouble(self, destination: Destination, error: ServiceError, now: float) -> None:
        if error.category is Category.BUSY:
            if (pause := self._window.too_busy(error, now)) is not None:
                self._actions.append(pause)
            return
        seconds = destination.failed(error, now)
        if error.category in self._limits.no_use_waiting:
            self._abandon(destination, error)
        else:
            left = destination.patience_left(self._limits, now)
            self._actions.append(PauseBegan(destination.path, error.code, seconds, left))

    def give_up(self, now: float) -> None:
        """Leave what waits for a destination that has failed for longer than the patience lasts, and everything once
        the namespace has been too busy for all of it for so long."""
        busy = self._window.busy_beyond_patience(now)
        for destination in self._by_name.values():
            if destination.abandoned is not None:
                continue
            if destination.outlasts_patience(self._limits, now):
                self._abandon(destination, destination.last_error)
            elif busy is not None and destination.waiting_count:
                self._abandon(destination, busy)

    def _abandon(self, destination: Destination, error: ServiceError | None) -> None:
        """Nothing more is sent there: what waits for it is left, and what still comes."""
        self._window.receive_again()  # what is in the queues for it is named too, and the others go on
        why = destination.abandon(error)
        for item in destination.waiting():
            destination.remove(item)
            self._custody.leave(item, why)

    def probe(self, now: float) -> None:
        """Ask the links of paused destinations whether they open again: no message is needed for that, and what waits
        goes on seconds after the destination is back, however long the pause has grown."""
        if self._custody.stopping:
            return
        for destination in self._by_name.values():
            if (probe_at := destination.next_probe(now)) is not None and probe_at <= now:
                destination.measuring = True
                self._actions.append(Measure(destination.path))

    def release_in_a_long_pause(self, now: float) -> None:
        """Nothing can move for long: give everything back and receive nothing until the next try is due."""
        waiting = [destination for destination in self._by_name.values() if destination.waiting_count]
        calm = now - self._custody.last_arrival >= CALM_SECONDS
        if self._custody.stopping or not waiting or self._sending or not calm:
            return
        if not self._window.receives(now):
            return  # what an open poll still brought is held: released, it would come straight round again
        resumes = min(max(each.paused_until, self._window.busy_until) for each in waiting)
        if resumes - now <= HOLD_SECONDS or any(each.measuring and each.probe_at is None for each in waiting):
            return
        self._window.pause_receiving(resumes)
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
            if not self._custody.stopping and (probe_at := destination.next_probe(now)) is not None:
                yield probe_at
        yield from self._window.deadlines(now, waiting=waiting)


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
    return f"The message is larger than the {destination.limit_bytes} bytes that {destination.path} takes."
