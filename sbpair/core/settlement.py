"""The pump's decisions, sans-IO: what to send, complete, renew, give back or dead-letter, and when to hold still.

The runtime tells what happened (`arrived`, `sent`, `send_failed`, `settled`, ...) and asks `poll(now)` what to do next;
`deadline()` says when to ask again if nothing happens. Times are seconds of one monotonic clock.

    arrived ── forward ──> WAITING ──> SENDING ──> SETTLING (complete) ──> gone
       │                      ^  │        │ failed
       │                      └──┼────────┘
       │                         └── lock too short: renew, or drop it (it comes again)
       ├── finish: ping, malformed ──────────────> SETTLING (complete, dead-letter) ──> gone
       └── leave: filtered, cannot be delivered ──> PARKED, lock kept so that it does not come again ──> given back

What a refused send means (facts of the retired library, seeds 000 and 001):

    entity not found                      dead-letter
    too large, argument refused           alone: dead-letter; in a batch: find the culprit by sending one by one
    server busy                           nothing is sent to the namespace for 10 seconds
    quota exceeded, unauthorised          the destination waits 10 s, growing to 2 min; never dead-lettered
    everything else                       the destination waits 1 s, growing to 2 min, and is tried with one batch

The hard cases. *Lock already gone or about to go*: it is renewed before the message is sent, or the message is not
sent. *Forwarded but not completed*: remembered until the completion is confirmed; when it comes again it is completed,
not sent. *Unreadable*: dead-lettered with the reason, or left where that is impossible. *Stop*: what waits is given
back without raising its delivery count, what is on its way is settled. *Destination down for long*: what waits for it
is given back and nothing is received until the next try is due, so that neither locks nor delivery counts churn.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from sbpair.core.errors import Category, LockLostError, SbpairError, SendIncompleteError, ServiceError
from sbpair.core.lanes import Batch, Destination, Item, Key, Stage, key_of
from sbpair.core.message import Disposition, Received
from sbpair.core.moves import (
    Action,
    Finish,
    Forward,
    Leave,
    Limits,
    LookAgain,
    Measure,
    PauseBegan,
    PauseEnded,
    Renew,
    Send,
    Settle,
    Tally,
    Verdict,
)
from sbpair.core.retry import REFUSED, SERVER_BUSY_SECONDS, SYPHON

HOLD_SECONDS = 20.0
"""How long messages of an unavailable destination are held locked before they are given back."""
MAX_PARKED = 20_000
MAX_REMEMBERED = 200_000

_FOR_GOOD = {
    Category.NOT_FOUND: "EntityNotFound",
    Category.TOO_LARGE: "MessageTooLarge",
    Category.ARGUMENT: "ArgumentRefused",
}
"""Categories of send errors that no retry helps, with their dead-letter reason."""
_SOMEBODY_HAS_TO_ACT = (Category.QUOTA, Category.UNAUTHORIZED)


class Settlement:
    """The machine. See the module."""

    def __init__(self, limits: Limits, *, can_dead_letter: bool = True, forwarded: Iterable[Key] = ()) -> None:
        self.limits = limits
        self.tally = Tally()
        self._can_dead_letter = can_dead_letter
        self._items: dict[Key, Item] = {}
        self._destinations: dict[str, Destination] = {}
        self._forwarded: dict[Key, None] = dict.fromkeys(forwarded)
        self._remember_most = MAX_REMEMBERED + len(self._forwarded)
        self._actions: deque[Action] = deque()
        self._later: list[tuple[float, int, Settle]] = []
        self._order = itertools.count()
        self._granted = 0
        self._taken = 0
        self._parked = 0
        self._bytes = 0
        self._mean_bytes = 1024.0
        self._sending = 0
        self._busy_until = 0.0
        self._gate_until = 0.0
        self._lock_check_at = 0.0
        self._last_arrival = 0.0
        self._tokens = 0.0
        self._tokens_at: float | None = None
        self.stopping = False

    # What the runtime wants to know

    def grant(self, wanted: int, now: float) -> int:
        """How many messages may be received now, up to `wanted`; give the number back with `returned`."""
        if self.stopping or now < self._gate_until or now < self._busy_until or self._parked >= MAX_PARKED:
            return 0
        held = sum(one.waiting_count for one in self._destinations.values() if one.paused_until > now)
        live = len(self._items) - self._parked - held + self._granted
        room = self.limits.in_flight_messages - live
        room = min(room, 4 * self.limits.in_flight_messages - held - live)
        room = min(room, int((self.limits.in_flight_bytes - self._bytes) / self._mean_bytes) - self._granted)
        if self.limits.rate_per_second is not None:
            room = min(room, max(1, int(self.limits.rate_per_second * HOLD_SECONDS)) - live)
        if self.limits.total_messages is not None:
            room = min(room, self.limits.total_messages - self._taken - self._granted)
        given = max(0, min(wanted, room))
        self._granted += given
        return given

    def returned(self, granted: int) -> None:
        """The receive for which `grant` gave this number is over; what came of it goes to `arrived`."""
        self._granted -= granted

    @property
    def total_reached(self) -> bool:
        """Whether as many messages as wanted are dealt with."""
        return self.limits.total_messages is not None and self._taken >= self.limits.total_messages

    @property
    def live(self) -> int:
        """Messages on their way: neither parked nor done."""
        return len(self._items) - self._parked

    @property
    def parked_full(self) -> bool:
        return self._parked >= MAX_PARKED

    @property
    def uncompleted(self) -> frozenset[Key]:
        """What was forwarded and whose completion was not confirmed; remembered so that it is not sent again."""
        return frozenset(self._forwarded)

    def left(self) -> dict[Key, str]:
        """The parked messages with why they stay."""
        return {key: item.left_because for key, item in self._items.items() if item.stage is Stage.PARKED}

    # What the runtime tells

    def arrived(
        self, received: Received, verdict: Verdict, *, lock_until: float, lock_seconds: float, now: float
    ) -> None:
        """A message was received. Its lock ends at `lock_until` on the machine's clock."""
        self._last_arrival = now
        key = key_of(received)
        known = self._items.get(key)
        if known is not None and known.releasing:
            again = partial(self.arrived, received, verdict, lock_until=lock_until, lock_seconds=lock_seconds, now=now)
            known.comes_again = again
            return
        if known is not None:
            # Its lock ran out while it was here: the newest receipt is the one that can be settled.
            known.received, known.lock_until, known.renewing = received, lock_until, False
            return
        item = Item(key, received, lock_until, lock_seconds)
        self._items[key] = item
        if key in self._forwarded:
            if isinstance(verdict, Forward) and verdict.session_id is not None:
                self._destination(verdict.destination).close_gap(verdict.session_id, received)
            self._settle(item, Disposition.COMPLETE, "already-forwarded")
        elif isinstance(verdict, Leave):
            self._park(item, verdict.because)
        elif isinstance(verdict, Finish):
            self._finish(item, verdict)
        else:
            self._await_sending(item, verdict)

    def expect(self, received: Received, verdict: Verdict, until: float) -> None:
        """A browse showed a message that somebody else has locked: its session waits for it up to `until`.

        Locks of a process that was killed, or of a connection that broke, outlive it; what lies behind them is handed
        out first and must not overtake.
        """
        key = key_of(received)
        if key in self._items or key in self._forwarded or not isinstance(verdict, Forward):
            return
        if verdict.session_id is not None:
            self._destination(verdict.destination).expect(verdict.session_id, received, until)

    def _finish(self, item: Item, verdict: Finish) -> None:
        if verdict.disposition is Disposition.DEAD_LETTER:
            self._count(item)
            self._bury(item, verdict.reason, verdict.description)
        else:
            self._settle(item, verdict.disposition, verdict.outcome)

    def _await_sending(self, item: Item, verdict: Forward) -> None:
        self._count(item)
        item.payload, item.destination = verdict.payload, verdict.destination
        item.session_id, item.partition_key = verdict.session_id, verdict.partition_key
        item.size_bytes = len(item.payload)
        self._bytes += item.size_bytes
        self._mean_bytes += (len(item.payload) - self._mean_bytes) / 64
        destination = self._destination(verdict.destination)
        if destination.abandoned is not None:
            self._park(item, destination.abandoned)
        elif destination.too_large(item):
            self._bury(item, *_too_large(destination))
        else:
            destination.add(item)

    def limit_known(self, path: str, limit_bytes: int, now: float) -> None:
        """The link to the destination takes transfers of up to so many bytes."""
        destination = self._destination(path)
        destination.measuring = False
        destination.limit_bytes = limit_bytes
        self._recovered(destination)
        for item in destination.waiting():
            if destination.too_large(item):
                destination.remove(item)
                self._bury(item, *_too_large(destination))

    def limit_failed(self, path: str, error: ServiceError, now: float) -> None:
        """The link could not be opened: means for everything that waits what it means for a batch."""
        destination = self._destination(path)
        destination.measuring = False
        if error.category is not Category.NOT_FOUND:
            self._trouble(destination, error, now)
            return
        for item in destination.waiting():
            destination.remove(item)
            self._bury(item, _FOR_GOOD[Category.NOT_FOUND], error.message)

    def remember(self, items: Iterable[Item]) -> None:
        """The namespace has these, whatever happens to us before `sent` is told: they must not go there again."""
        for item in items:
            self._forwarded[item.key] = None

    def sent(self, batch: Batch, now: float) -> None:
        """The namespace accepted the whole batch."""
        destination = self._over(batch)
        self._recovered(destination)
        self._accepted(destination, batch.items)

    def _accepted(self, destination: Destination, items: Sequence[Item]) -> None:
        self.remember(items)
        for item in items:
            self.tally.forwarded += 1
            self.tally.forwarded_bytes += len(item.payload)
            self._settle(item, Disposition.COMPLETE, "forwarded")
            self._forget_payload(item)
        self.tally.per_destination[destination.path] += len(items)
        while len(self._forwarded) > self._remember_most:
            del self._forwarded[next(iter(self._forwarded))]

    def send_failed(self, batch: Batch, error: ServiceError, now: float) -> None:
        """Nothing of the batch was accepted, as far as can be known, or a part of it (SendIncompleteError)."""
        destination = self._destination(batch.destination)
        items = batch.items
        if isinstance(error, SendIncompleteError):
            done = set(error.accepted)
            self._accepted(destination, [item for place, item in enumerate(items) if place in done])
            items = tuple(item for place, item in enumerate(items) if place not in done)
            error = error.__cause__ if isinstance(error.__cause__, ServiceError) else error
        self._refused(destination, items, error, now)
        self._over(batch)

    def _refused(self, destination: Destination, items: tuple[Item, ...], error: ServiceError, now: float) -> None:
        reason = _FOR_GOOD.get(error.category)
        if reason is None:
            for item in items:
                self._back_in_line(destination, item, now)
            self._trouble(destination, error, now)
        elif len(items) == 1 or error.category is Category.NOT_FOUND:
            for item in items:
                self._bury(item, reason, error.message)
        else:
            self._look_closer(destination, items, error, now)

    def _look_closer(self, destination: Destination, items: tuple[Item, ...], error: ServiceError, now: float) -> None:
        """One message of several may be the reason, or their mixture."""
        mixture = len({item.group for item in items}) > 1
        if error.category is Category.ARGUMENT and destination.mixed and mixture:
            destination.mixed = False
        else:
            for item in items:
                item.alone = True
        for item in items:
            self._back_in_line(destination, item, now)

    def settled(self, settle: Settle, now: float) -> None:
        """The broker confirmed."""
        item = settle.item
        self._discard(item)
        if settle.disposition is Disposition.COMPLETE:
            self._forwarded.pop(item.key, None)
            self._count_completion(settle)
        elif settle.disposition is Disposition.DEAD_LETTER:
            self.tally.dead_lettered += 1
            self.tally.finished[settle.reason] += 1
        else:
            self.tally.released += 1
            if not self.stopping:
                self._actions.append(LookAgain(settle.received.source))

    def _count_completion(self, settle: Settle) -> None:
        if settle.outcome == "forwarded":
            self.tally.completed += 1
        elif settle.outcome == "already-forwarded":
            self.tally.already_forwarded += 1
        elif settle.outcome == "ping":
            self.tally.pings += 1

    def settle_failed(self, settle: Settle, error: SbpairError, now: float) -> None:
        """The receipt was refused, or no confirmation came. What was forwarded stays remembered."""
        item = settle.item
        if isinstance(error, ServiceError) and error.category is Category.BUSY and not self.stopping:
            again = now + SERVER_BUSY_SECONDS
            if again < item.lock_until:
                heapq.heappush(self._later, (again, next(self._order), settle))
                return
        if settle.received is not item.received and not self.stopping:
            self._settle(item, settle.disposition, settle.outcome, settle.reason, settle.description)
            return
        self._drop(item, now, lost=isinstance(error, LockLostError))

    def renewed(self, renew: Renew, lock_until: float) -> None:
        """The lock holds until then."""
        if renew.item.received is renew.received:
            renew.item.lock_until = lock_until
        renew.item.renewing = False

    def renew_failed(self, renew: Renew, error: SbpairError, now: float) -> None:
        """A lock that is lost takes its message along; otherwise it is tried again until it has run out."""
        item = renew.item
        item.renewing = False
        if item.received is not renew.received or item.key not in self._items:
            return
        if isinstance(error, LockLostError):
            item.lock_until = now
            self._lock_check_at = now

    def stop(self, now: float) -> None:
        """Receive and send nothing more; give back what waits. `live` is 0 when all is settled."""
        self.stopping = True
        self._actions.extend(settle for _, _, settle in self._later)
        self._later.clear()
        for destination in self._destinations.values():
            for item in destination.waiting():
                self._give_back(destination, item, now)

    def release_parked(self) -> None:
        """Give back what was left, so that others see it without waiting for the locks to run out."""
        for item in list(self._items.values()):
            if item.stage is Stage.PARKED:
                self._parked -= 1
                self._settle(item, Disposition.RELEASE)

    # What is to be done

    def poll(self, now: float) -> list[Action]:
        """Everything that can be done now."""
        while self._later and self._later[0][0] <= now:
            self._actions.append(heapq.heappop(self._later)[2])
        if now >= self._lock_check_at:
            self._check_locks(now)
        self._give_up(now)
        self._open_gate_later(now)
        if not self.stopping and now >= self._busy_until:
            self._fill_batches(now)
        actions = list(self._actions)
        self._actions.clear()
        return actions

    def deadline(self, now: float) -> float:
        """When to poll again if nothing happens before."""
        times = [self._lock_check_at, *(when for when, _, _ in self._later[:1])]
        for destination in self._destinations.values():
            if destination.waiting_count and destination.paused_until > now:
                times.append(destination.paused_until)
        times += [when for when in (self._busy_until, self._gate_until) if when > now]
        if self.limits.rate_per_second is not None and self._tokens < 1 and self._any_waiting():
            times.append(now + (1 - self._tokens) / self.limits.rate_per_second)
        return max(now, min(times))

    def _any_waiting(self) -> bool:
        return any(destination.waiting_count for destination in self._destinations.values())

    def _fill_batches(self, now: float) -> None:
        progress = True
        while progress:
            progress = False
            for destination in list(self._destinations.values()):
                if self._sending >= self.limits.sends:
                    return
                progress |= self._send_next(destination, now)

    def _send_next(self, destination: Destination, now: float) -> bool:
        if not destination.waiting_count or destination.abandoned is not None or now < destination.paused_until:
            return False
        if destination.limit_bytes is None:
            if not destination.measuring:
                destination.measuring = True
                self._actions.append(Measure(destination.path))
            return False
        if destination.failures and destination.sending:
            return False
        allowed = self._allowance(now)
        batch = destination.next_batch(now, allowed) if allowed else None
        if batch is None:
            return False
        self._tokens -= len(batch.items)
        destination.sending += 1
        self._sending += 1
        self._actions.append(Send(batch))
        return True

    def _allowance(self, now: float) -> int:
        """How many messages the rate allows now; a second's worth can be saved up."""
        rate = self.limits.rate_per_second
        if rate is None:
            self._tokens = 0.0
            return self.limits.in_flight_messages
        most = max(rate, 1.0)
        if self._tokens_at is None:
            self._tokens = 1.0
        else:
            self._tokens = min(most, self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        return int(self._tokens + 1e-9)

    # Trouble

    def _trouble(self, destination: Destination, error: ServiceError, now: float) -> None:
        if error.category is Category.BUSY:
            self._busy_until = now + SERVER_BUSY_SECONDS
            self._actions.append(PauseBegan("", error.code, SERVER_BUSY_SECONDS))
            return
        destination.failures += 1
        if destination.failing_since is None:
            destination.failing_since = now
        backoff = REFUSED if error.category in _SOMEBODY_HAS_TO_ACT else SYPHON
        seconds = backoff.seconds(destination.failures)
        destination.paused_until = now + seconds
        destination.last_error = error.code
        self._actions.append(PauseBegan(destination.path, error.code, seconds))

    def _recovered(self, destination: Destination) -> None:
        if destination.failures:
            self._actions.append(PauseEnded(destination.path))
        destination.failures = 0
        destination.failing_since = None
        destination.paused_until = 0.0

    def _give_up(self, now: float) -> None:
        """Leave what waits for a destination that has failed for longer than the patience lasts."""
        patience = self.limits.patience_seconds
        if patience is None:
            return
        for destination in self._destinations.values():
            since = destination.failing_since
            if destination.abandoned is None and since is not None and now - since >= patience:
                destination.abandoned = f"destination unavailable: {destination.path} ({destination.last_error})"
                for item in destination.waiting():
                    destination.remove(item)
                    self._park(item, destination.abandoned)

    def _open_gate_later(self, now: float) -> None:
        """Nothing can move for long: give everything back and receive nothing until the next try is due."""
        waiting = [one for one in self._destinations.values() if one.waiting_count]
        if self.stopping or not waiting or self._sending or now - self._last_arrival < 1.0:
            return
        if now < self._gate_until:
            return  # what an open poll still brought is held: given back, it would come straight round again
        resumes = min(max(one.paused_until, self._busy_until) for one in waiting)
        if resumes - now <= HOLD_SECONDS or any(one.measuring for one in waiting):
            return
        self._gate_until = resumes
        for destination in waiting:
            for item in destination.waiting():
                self._give_back(destination, item, now)

    def _check_locks(self, now: float) -> None:
        """Renew what will run out soon; drop what has run out and was not sent."""
        self._lock_check_at = now + 1.0
        for item in list(self._items.values()):
            left = item.lock_until - now
            if item.stage is Stage.SETTLING:
                continue
            if left <= 0 and item.stage is not Stage.SENDING:
                self._out_of_hand(item, now)
            elif 0 < left <= item.margin() and not item.renewing:
                item.renewing = True
                self._actions.append(Renew(item, item.received))

    def _out_of_hand(self, item: Item, now: float) -> None:
        """Its lock is gone and it was not sent: it will come again."""
        if item.stage is Stage.WAITING:
            self._destination(item.destination).remove(item)
        self._drop(item, now, lost=True)

    # Bookkeeping

    def _destination(self, path: str) -> Destination:
        name = path.lower()
        if name not in self._destinations:
            self._destinations[name] = Destination(path)
        return self._destinations[name]

    def _over(self, batch: Batch) -> Destination:
        destination = self._destination(batch.destination)
        destination.sending -= 1
        self._sending -= 1
        for session in destination.sessions_of(batch):
            destination.release_lane(session)
        return destination

    def _back_in_line(self, destination: Destination, item: Item, now: float) -> None:
        if self.stopping:
            destination.add(item, front=True)
            self._give_back(destination, item, now)
        elif destination.abandoned is not None:
            self._park(item, destination.abandoned)
        else:
            destination.add(item, front=True)

    def _give_back(self, destination: Destination, item: Item, now: float) -> None:
        destination.remove(item)
        destination.mark_gap(item, now)
        self._uncount(item)
        self._settle(item, Disposition.RELEASE)

    def _bury(self, item: Item, reason: str, description: str) -> None:
        self._forget_payload(item)
        if self._can_dead_letter:
            self._settle(item, Disposition.DEAD_LETTER, "dead-lettered", reason, description)
        else:
            self._park(item, f"undeliverable: {reason}")

    def _park(self, item: Item, because: str) -> None:
        self._forget_payload(item)
        self._uncount(item)
        item.stage = Stage.PARKED
        item.left_because = because
        self._parked += 1

    def _settle(
        self, item: Item, disposition: Disposition, outcome: str = "", reason: str = "", description: str = ""
    ) -> None:
        item.stage = Stage.SETTLING
        item.releasing = disposition is Disposition.RELEASE
        self._actions.append(Settle(item, item.received, disposition, outcome, reason, description))

    def _drop(self, item: Item, now: float, *, lost: bool) -> None:
        """It is out of our hands without having been settled; the broker will deliver it again."""
        if item.stage is Stage.PARKED:
            self._parked -= 1
        if lost:
            self.tally.locks_lost += 1
        if item.key not in self._forwarded:
            self._uncount(item)
            if item.destination:
                self._destination(item.destination).mark_gap(item, now)
        self._discard(item)
        if not self.stopping:
            self._actions.append(LookAgain(item.received.source))

    def _discard(self, item: Item) -> None:
        self._forget_payload(item)
        self._items.pop(item.key, None)
        if item.comes_again is not None:
            item.comes_again()

    def _count(self, item: Item) -> None:
        item.counted = True
        self._taken += 1

    def _uncount(self, item: Item) -> None:
        if item.counted:
            item.counted = False
            self._taken -= 1

    def _forget_payload(self, item: Item) -> None:
        self._bytes -= len(item.payload)
        item.payload = b""


def _too_large(destination: Destination) -> tuple[str, str]:
    return (
        _FOR_GOOD[Category.TOO_LARGE],
        f"The message is larger than the {destination.limit_bytes} bytes that {destination.path} takes.",
    )
