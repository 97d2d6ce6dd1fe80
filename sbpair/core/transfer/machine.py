"""The pump's decisions, sans-IO: what to send, complete, renew, release or dead-letter, and when to hold still.

The runtime tells what happened (`arrived`, `sent`, `send_failed`, `settled`, ...) and asks `poll(now)` what to do next;
`deadline()` says when to ask again if nothing happens. Times are seconds of one monotonic clock.

    arrived ── forward ──> WAITING ──> SENDING ──> SETTLING (complete) ──> gone
       │                      ^  │        │ failed
       │                      └──┼────────┘
       │                         └── lock too short: renew, or drop it (it comes again)
       ├── finish: ping, malformed ──────────────> SETTLING (complete, dead-letter) ──> gone
       └── leave: filtered, cannot be delivered ──> LEFT, lock kept so that it does not come again ──> released

What a refused send means (facts of the retired library, seeds 000 and 001):

    entity not found                      dead-letter
    too large, argument refused           alone: dead-letter; in a batch: find the culprit by sending one by one
    server busy                           nothing is sent to the namespace for 1 s, growing to 10 s; then more slowly
                                          (`core.transfer.pace`)
    quota exceeded, unauthorised          the destination waits 10 s, growing to 2 min; never dead-lettered
    everything else                       the destination waits 1 s, growing to 2 min, and is tried with one batch

The hard cases. *Lock already gone or about to go*: it is renewed before the message is sent, or the message is not
sent. *Forwarded but not completed*: remembered until the completion is confirmed; when it comes again it is completed,
not sent. *Unreadable*: dead-lettered with the reason, or left where that is impossible. *Stop*: what waits is given
back without raising its delivery count, what is on its way is settled. *Destination down for long*: what waits for it
is released and nothing is received until the next try is due, so that neither locks nor delivery counts churn.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from sbpair.core.errors import Category, LockLostError, SbpairError, SendIncompleteError, ServiceError
from sbpair.core.message import Disposition, Received, State
from sbpair.core.names import is_dead_letter_path
from sbpair.core.retry import REFUSED, SERVER_BUSY_SECONDS, SYPHON, TokenBucket
from sbpair.core.transfer.order import (
    FOLLOW_SECONDS,
    PARKED_MESSAGES,
    TELL_AGAIN_SECONDS,
    TURN_SECONDS,
    WAITS_BEHIND,
    Gap,
    LaneKey,
    Mode,
    QueueOrder,
    Skipped,
)
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.report import UNDELIVERABLE, Accepted, Moment, Tally, alike
from sbpair.core.transfer.state import (
    DEFAULT_LOCK_SECONDS,
    Action,
    Batch,
    Destination,
    Finish,
    Followed,
    Forward,
    Item,
    Key,
    Leave,
    Limits,
    LockMet,
    Measure,
    PauseBegan,
    PauseEnded,
    PollAgain,
    Renew,
    Sample,
    Send,
    Settle,
    Stage,
    Verdict,
    comes_before,
    key_of,
)
from sbpair.service import session_key

DEAD_LETTERED, REFUSED_OUTCOME = "dead-lettered", "refused"
"""The ledger's words for what cannot be delivered: put into the dead-letter queue, or left where it is stored."""
TAKEN = "taken"
"""The ledger's word for what an archive has and its queue has no more."""
PURGED = "purged"
"""The ledger's word for what was deleted because somebody asked for that."""
WAITS_IN_SESSION = "behind a message of its session that was not sent"
FEW_OF_WINDOW = 32
"""A receive of less than this part of what may be in flight waits as long as its queue has more on its way."""
AHEAD_SECONDS = 5.0
"""With a rate no more is received than it lets go in so long."""
HOLD_SECONDS = 20.0
"""How long messages of an unavailable destination are held locked before they are released."""
PROBE_SECONDS = 5.0
"""How often a paused destination is asked for a link. An attempt that fails is not billed."""
CHECK_SECONDS = 0.1
"""How often what is blocked is counted while nothing new comes."""
MAX_REMEMBERED = 200_000
MOST_SPELLINGS = 10_000

_FOR_GOOD = {
    Category.NOT_FOUND: "EntityNotFound",
    Category.TOO_LARGE: "MessageTooLarge",
    Category.ARGUMENT: "ArgumentRefused",
}
"""Categories of send errors that no retry helps, with their dead-letter reason."""
_SOMEBODY_HAS_TO_ACT = (Category.QUOTA, Category.UNAUTHORIZED)


class Settlement:
    """The machine. See the module.

    Args:
        undeliverable: the ledger's word for a message that is dead-lettered because it cannot be delivered; None where
            it can only be left, as it is in a dead-letter queue.
        sessions_wait: a session goes no further than a message of it that had to be left.
        leave_missing: leave messages whose destination does not exist.
        forwarded: what earlier runs have sent.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        undeliverable: str | None = DEAD_LETTERED,
        sessions_wait: bool = False,
        leave_missing: bool = False,
        forwarded: Iterable[Key] = (),
        tally: Tally | None = None,
    ) -> None:
        self.limits = limits
        self._undeliverable = undeliverable
        self._sessions_wait = sessions_wait
        self._ended: dict[tuple[str, str], Item] = {}
        """Sessions that go no further, with the message at which they end."""
        self._leave_missing = leave_missing
        self.tally = Tally() if tally is None else tally
        self._items: dict[Key, Item] = {}
        self._destinations: dict[str, Destination] = {}
        self._named: dict[str, Destination] = {}
        """The same by the name as a message gives it."""
        self._orders: dict[str, QueueOrder] = {}
        self._spelled: dict[str, QueueOrder] = {}
        """The same by the name as it was given: asked for several times for each message."""
        self._resting: set[str] = set()
        self._forwarded: dict[Key, None] = dict.fromkeys(forwarded)
        self._remember_most = MAX_REMEMBERED + len(self._forwarded)
        self._actions: deque[Action] = deque()
        self._later: list[tuple[float, int, Settle]] = []
        self._tie = itertools.count()
        self._granted = 0
        self._taken = 0
        self._left = 0
        self._bytes = 0
        self._mean_bytes = 1024.0
        self._sending = 0
        self._busy_until = 0.0
        self._busy: tuple[float, ServiceError] | None = None
        """Since when the namespace, too busy, has taken nothing at all, and what it said first."""
        self._receive_again_at = 0.0
        self._lock_check_at = 0.0
        self._tell_at = 0.0
        self._last_arrival = 0.0
        rate = limits.rate_per_second
        self._bucket = None if rate is None else TokenBucket(rate, most=max(rate, 1.0), tokens=1.0)
        """A second's worth can be saved up."""
        self._pace = Pace(limits.budget_per_second)
        self._receiving = None if limits.budget_per_second is None else Pace(limits.budget_per_second)
        """Of the namespace that gives the messages: what it gives costs as much as what the other one takes."""
        self.stopping = False
        self.taken = 0
        """Completed because an archive has them."""

    # What the runtime wants to know

    def add_queue(self, source: str, lock_seconds: float) -> None:
        """Messages will come from this queue, whose locks last so long."""
        self._order(source).lock_seconds = lock_seconds

    def grant(self, wanted: int, now: float, source: str | None = None) -> int:
        """How many messages may be received now, up to `wanted`; give the number back with `returned`."""
        if self.stopping or now < self._receive_again_at or now < self._busy_until or self.left_full:
            return 0
        if source is not None:
            self._resting.discard(source.lower())
            order = self._order(source)
            if order.mode is Mode.STANDING_BACK and not order.may_try:
                return 0
            if order.mode is Mode.READING and order.rests(now):
                return 0
            if not order.next_receive():
                wanted = min(wanted, 1)  # enough to learn who has the head, and hardly in the way of whoever leads
        # What waits for a destination that is down has a bound of its own, so that the others go on: three more
        # windows, since it cannot be known beforehand whom the next messages are for.
        held = sum(one.waiting_count for one in self._destinations.values() if one.paused_until > now)
        # What is blocked does not count either: what it waits for always has to find room. `_keep_order` bounds it.
        blocked = sum(order.blocked for order in self._orders.values())
        live = max(0, len(self._items) - self._left - held - blocked)
        most = self.limits.in_flight_messages
        rates = [one for one in (self.limits.rate_per_second, self._pace.per_second(now)) if one is not None]
        if rates:
            # What would only wait is left to others, and free when this one rests.
            most = min(most, max(1, int(min(rates) * AHEAD_SECONDS)))
        room = min(most - live, 4 * self.limits.in_flight_messages - held - live)
        # Only what has come can be weighed: what is still to come is taken for as heavy as the mean.
        room = min(room, int((self.limits.in_flight_bytes - self._bytes) / self._mean_bytes))
        if source is None:
            room -= self._granted
        elif room > 0:
            # A poll of an empty queue may keep what it was granted for a quarter of an hour, and then asks at once
            # again. So no queue is granted more than its share, and each may ask for one message, whatever the others
            # have been granted.
            most = min(most, int(self.limits.in_flight_bytes / self._mean_bytes))
            share = most // max(1, len(self._orders) - len(self._resting))
            room = max(1, min(share, room - self._granted))
            if (
                not held
                and not blocked
                and room < min(wanted, most // FEW_OF_WINDOW)
                and self._makes_room(source, room)
            ):
                return 0
        if self.limits.total_messages is not None:
            room = min(room, self.limits.total_messages - self._taken - self._granted)
        if self._receiving is not None and (allowed := self._receiving.allowance(now)) is not None:
            room = min(room, allowed)
        given = max(0, min(wanted, room))
        if self._receiving is not None:
            self._receiving.take(given)
        if given and source is not None:
            self._order(source).may_try = False
        self._granted += given
        return given

    def _makes_room(self, source: str, room: int) -> bool:
        """Whether more of this queue is on its way than there is room for now: then a receive of a few messages, which
        costs as much as one of many, is not worth while. Once those are settled it is asked for again."""
        order = self._order(source)
        return order.mode is Mode.READING and not (order.gaps or order.parked) and len(order.going) > room

    def rests(self, source: str) -> None:
        """Nothing is received from this queue until `grant` is asked for it again."""
        self._resting.add(source.lower())

    def returned(self, granted: int, came: int | None = None) -> None:
        """The receive for which `grant` gave this number is over; what came of it, all if not told, goes to
        `arrived`."""
        self._granted -= granted
        if self._receiving is not None and came is not None:
            self._receiving.take(came - granted)

    @property
    def total_reached(self) -> bool:
        """Whether as many messages as wanted are dealt with."""
        return self.limits.total_messages is not None and self._taken >= self.limits.total_messages

    @property
    def live(self) -> int:
        """Messages on their way: neither left nor done."""
        return len(self._items) - self._left

    @property
    def last_arrival(self) -> float:
        """When a message came last, on the machine's clock; 0 if none has."""
        return self._last_arrival

    @property
    def left_full(self) -> bool:
        return self._left >= self.limits.left_messages

    def standing_back(self, source: str) -> bool:
        """Whether somebody else leads in this queue: an empty receive says nothing of it."""
        return self._order(source).mode is Mode.STANDING_BACK

    def awaits(self, source: str, now: float) -> bool:
        """Whether messages of this queue will come although a receive brings none: others have locked them."""
        order = self._order(source)
        return (order.mode is not Mode.READING or order.blocked > 0) and not self.stalled(source, now)

    def stalled(self, source: str, now: float) -> bool:
        """Whether a lock of somebody else, over which nothing here can go, has outlasted the patience."""
        patience, order = self.limits.lock_wait_seconds, self._order(source)
        return patience is not None and order.mode is not Mode.READING and order.unmoved_seconds(now) >= patience

    def led_elsewhere(self, source: str) -> bool:
        """Whether messages that others have locked stopped us in this queue, so that it was not read to its end."""
        return self._order(source).mode is not Mode.READING

    def known_locked(self, source: str) -> frozenset[int]:
        """Sequence numbers that others have locked, where that stopped us: what else lies there waits behind them."""
        order = self._order(source)
        if order.mode is Mode.READING:
            return frozenset()
        return order.known_locked | ({order.head} if order.head is not None else frozenset())

    def foreign_locks(self, now: float) -> dict[str, float]:
        """Seconds until the lock ends that a queue waits for, if it is not renewed; by queue."""
        return {
            order.path: order.locked_until(now) - now
            for order in self._orders.values()
            if order.mode is not Mode.READING and order.locked_since is not None
        }

    @property
    def uncompleted(self) -> frozenset[Key]:
        """What was forwarded and whose completion was not confirmed; remembered so that it is not sent again."""
        return frozenset(self._forwarded)

    def left(self) -> dict[Key, str]:
        """The messages that were left, with why they stay."""
        return {key: item.left_because for key, item in self._items.items() if item.stage is Stage.LEFT}

    def given_up(self) -> dict[str, ServiceError]:
        """The destinations that nothing more is sent to, and their last error."""
        return {
            one.path: one.last_error
            for one in self._destinations.values()
            if one.abandoned is not None and one.last_error is not None
        }

    # What the runtime tells

    def arrived(
        self, received: Received, verdict: Verdict, *, lock_until: float, lock_seconds: float, now: float
    ) -> None:
        """A message was received. Its lock ends at `lock_until` on the machine's clock."""
        self._last_arrival = now
        key = key_of(received)
        order = self._order(received.source)
        known = self._items.get(key)
        if known is not None and known.releasing:
            known.comes_again = partial(
                self._arrived_again,
                received,
                verdict,
                lock_until=lock_until,
                lock_seconds=lock_seconds,
                now=now,
                forgotten=order.forgotten,
            )
            if isinstance(verdict, Forward) and verdict.session_id is not None:
                # Until it is here for certain it is one that comes first, and not one that has come.
                lane = (verdict.destination.lower(), session_key(verdict.session_id))
                order.open_gap(received.sequence_number, Gap(lane, foreign=False), now)
            return
        gap = order.close_gap(received.sequence_number) if order.gaps else None
        if gap is not None and gap.foreign and order.is_news(received.sequence_number):
            order.moved(now)  # its lock ended, or was given up: from here on the queue is ours as far as we know
            if order.mode is Mode.HOLDING:
                order.lead()
        if known is not None:
            # Its lock ran out while it was here: the newest receipt is the one that can be settled.
            known.received, known.lock_until, known.renewing = received, lock_until, False
            return
        item = Item(key, received, lock_until, lock_seconds)
        self._items[key] = item
        order.in_hand.add(received.sequence_number)
        if key in self._forwarded:
            self._settle(item, Disposition.COMPLETE, "already-forwarded")
        elif isinstance(verdict, Forward):
            self._await_sending(item, verdict, order)
        elif isinstance(verdict, Leave):
            self._leave(item, verdict.because)
        else:
            self._finish(item, verdict)

    def _arrived_again(
        self,
        received: Received,
        verdict: Verdict,
        *,
        lock_until: float,
        lock_seconds: float,
        now: float,
        forgotten: int,
    ) -> None:
        """The release before this delivery is confirmed. If what was proven when it came is forgotten, it goes back."""
        has_order = isinstance(verdict, Forward) and verdict.session_id is not None
        if has_order and self.forgotten(received.source) != forgotten:
            self.refused(received, lock_until=lock_until, lock_seconds=lock_seconds)
        else:
            self.arrived(received, verdict, lock_until=lock_until, lock_seconds=lock_seconds, now=now)

    def skipped(self, received: Sequence[Received], verdicts: Sequence[Verdict]) -> list[Skipped]:
        """What has to be browsed before these messages, just received from one queue, may be told to `arrived`."""
        if not received:
            return []
        order = self._order(received[0].source)
        ordered = [isinstance(verdict, Forward) and verdict.session_id is not None for verdict in verdicts]
        return order.skipped([one.sequence_number for one in received], ordered=any(ordered))

    def in_hand(self, source: str) -> frozenset[int]:
        """Numbers of our messages of this queue. Asked for before a browse: what is settled while it is under way is
        still in its answer."""
        return frozenset(self._order(source).in_hand)

    def expect(self, received: Received, verdict: Verdict, now: float) -> None:
        """A browse of what a receive skipped showed this message: it is locked by somebody else, or was, and comes
        first in its session. Locks of a killed process or a broken connection outlive it."""
        key = key_of(received)
        order = self._order(received.source)
        ours = self._items.get(key)
        held = ours is not None and not ours.releasing
        if held or key in self._forwarded or not isinstance(verdict, Forward):
            return
        if verdict.session_id is not None and received.state is State.ACTIVE:
            lane = (verdict.destination.lower(), session_key(verdict.session_id))
            order.open_gap(received.sequence_number, Gap(lane, foreign=True), now)

    def forgotten(self, source: str) -> int:
        """Asked for before and after a browse: if it has changed, the browse proves nothing."""
        return self._order(source).forgotten

    def proved(self, source: str, skipped: Skipped) -> None:
        """It was browsed to its end, what was there was told to `expect`, and nothing was forgotten meanwhile."""
        self._order(source).prove(skipped.last)

    def hopeless_now(self, received: Sequence[Received]) -> bool:
        """Whether these have to be released whatever else a browse shows: others lead, and are at work."""
        if not received:
            return False
        order = self._order(received[0].source)
        if not order.opening and order.mode is not Mode.STANDING_BACK:
            return False
        return order.met_before(min(one.sequence_number for one in received))

    def gave_way(self, source: str, now: float) -> None:
        """What came was `hopeless_now`, and goes back: others lead in this queue."""
        order = self._order(source)
        if order.mode is not Mode.STANDING_BACK:
            order.stand_back(now)

    def tried(self, source: str, received: Sequence[Received], now: float) -> None:
        """A receive is over; what it brought (nothing, perhaps) tells who has the head of the queue."""
        order = self._order(source)
        if order.mode is Mode.STANDING_BACK:
            met_before = order.locked_since is not None
            order.tried([one.sequence_number for one in received], now)
            if order.locked_since is not None and not met_before and order.head is not None:
                self._actions.append(LockMet(source, order.head, order.lock_seconds))

    def sampled(self, sample: Sample, page: Sequence[Received], *, in_hand: frozenset[int], now: float) -> None:
        """A page of the queue was browsed. `in_hand`: what was ours when the browse began."""
        order = self._order(sample.source)
        order.sample_over(now)
        order.check_at = now
        if order.mode is Mode.STANDING_BACK and sample.first != order.first_to_sample:
            order.sample_at = now  # begun before we stood back, and not at the head
            return
        if order.mode is Mode.HOLDING and not order.gaps:
            if order.head_sampled_again(page, in_hand, now):
                self._actions.append(PollAgain(sample.source))
            return
        if order.mode is not Mode.STANDING_BACK:
            order.gaps_sampled(sample.first, page, now)
            return
        if order.head_sampled(page, in_hand, now):
            self._actions.append(PollAgain(sample.source))

    def sample_failed(self, sample: Sample, now: float) -> None:
        """Nothing is learnt; what waits goes on waiting."""
        order = self._order(sample.source)
        order.sample_over(now)
        order.sample_at = now + SYPHON.seconds(3)

    def refused(self, received: Received, *, lock_until: float, lock_seconds: float) -> None:
        """What it skipped could not be browsed, or need not be: it goes back, since it may not overtake."""
        key = key_of(received)
        order = self._order(received.source)
        order.forget()  # what of it somebody else takes now has to be noticed when the rest comes again
        known = self._items.get(key)
        if known is None:
            item = self._items[key] = Item(key, received, lock_until, lock_seconds)
            self._settle(item, Disposition.RELEASE)
        elif known.releasing:
            known.comes_again = partial(self.refused, received, lock_until=lock_until, lock_seconds=lock_seconds)
        else:
            # Its lock ran out while it was here, as in `arrived`.
            known.received, known.lock_until, known.renewing = received, lock_until, False

    def _finish(self, item: Item, verdict: Finish) -> None:
        if verdict.disposition is Disposition.DEAD_LETTER:
            self._count(item)
            self._dead_letter(item, verdict.reason, verdict.description)
        else:
            if verdict.outcome in (TAKEN, PURGED):
                self._count(item)
            self._settle(item, verdict.disposition, verdict.outcome)

    def _await_sending(self, item: Item, verdict: Forward, order: QueueOrder) -> None:
        self._count(item)
        destination = self._destination(verdict.destination)
        item.payload, item.destination = verdict.payload, destination.path  # one spelling: one link, one metric series
        item.session_id, item.partition_key, item.fault = verdict.session_id, verdict.partition_key, verdict.fault
        item.session = None if verdict.session_id is None else session_key(verdict.session_id)
        item.size_bytes = size_bytes = len(verdict.payload)
        self._bytes += size_bytes
        self._mean_bytes += (size_bytes - self._mean_bytes) / 64
        if destination.abandoned is not None:
            self._leave(item, destination.abandoned)
        elif self._ended and self._is_past_the_end(item):
            self._leave(item, WAITS_IN_SESSION)
        elif destination.too_large(item):
            self._dead_letter(item, *_too_large(destination))
        else:
            self._add_in_order(destination, item, order)

    def _is_past_the_end(self, item: Item) -> bool:
        """Whether its session goes no further than a message before it."""
        end = self._ended.get(_lane_of(item) or ("", ""))
        return end is not None and comes_before(end, item)

    def _add_in_order(self, destination: Destination, item: Item, order: QueueOrder) -> None:
        order.going.add(item.received.sequence_number)
        destination.add(item)
        blocked = item.session_id is not None and self._is_blocked(item)
        order.opening = False
        order.ordered |= item.session_id is not None
        order.came += 1
        order.came_blocked += blocked
        if order.gaps:
            order.check_at = 0.0
        if order.mode is not Mode.STANDING_BACK or item.session_id is None:
            return
        if blocked:
            # What came with it may make us read on: then whatever follows it in its session has to wait for it.
            self._release(destination, item, self._last_arrival)
            order.forget()  # it is out of our hands again: whoever takes it may not be overtaken unnoticed
        else:
            order.read()  # a session that nobody else is at
            self._actions.append(PollAgain(item.received.source))

    def limit_known(self, path: str, limit_bytes: int, now: float) -> None:
        """The link to the destination takes transfers of up to so many bytes."""
        destination = self._destination(path)
        destination.measuring = False
        destination.limit_bytes = limit_bytes
        # An open link is no accepted message: the next send is a single one, and only its success ends the trouble.
        destination.paused_until, destination.probe_at = 0.0, None
        self._receive_again_at = 0.0
        for item in destination.waiting():
            if item.stage is Stage.WAITING and destination.too_large(item):
                destination.remove(item)
                self._dead_letter(item, *_too_large(destination))

    def limit_failed(self, path: str, error: ServiceError, now: float) -> None:
        """The link could not be opened: means for everything that waits what it means for a batch."""
        destination = self._destination(path)
        destination.measuring = False
        if now < destination.paused_until and error.category not in _FOR_GOOD:
            destination.probe_at = now + PROBE_SECONDS  # as before; the pause goes on
            return
        if error.category is not Category.NOT_FOUND:
            self._trouble(destination, error, now)
            return
        waiting = destination.waiting()
        for item in waiting:
            destination.remove(item)
        self._missing(destination, waiting, error)

    def _missing(self, destination: Destination, items: Iterable[Item], error: ServiceError) -> None:
        """The destination does not exist: dead-lettered as the retired library did, or left for whoever makes it."""
        if self._leave_missing:
            self._abandon(destination, error)
        for item in items:
            if destination.abandoned is not None:
                self._leave(item, destination.abandoned)
            else:
                self._dead_letter(item, _FOR_GOOD[Category.NOT_FOUND], error.message)

    def remember(self, items: Iterable[Item]) -> None:
        """The namespace has these, whatever happens to us before `sent` is told: they must not go there again."""
        for item in items:
            self._forwarded[item.key] = None

    def sent(self, batch: Batch, now: float) -> None:
        """The namespace accepted the whole batch."""
        destination = self._over(batch)
        self._recovered(destination, now)
        self._pace.accepted(len(batch.items), now)
        self._accepted(destination, batch.items)

    def unrecorded(self, batch: Batch, now: float) -> None:
        """The namespace accepted the batch, and the ledger could not be written: what has no line is not completed. It
        goes back at once instead of staying locked. It stays remembered: the next run of this process completes it, and
        only another one sends it again, with the same message ids."""
        self.stopping = True
        self._over(batch)
        for item in batch.items:
            if item.completed:
                self._discard(item)
            else:
                self._settle(item, Disposition.RELEASE)

    def not_recorded(self, settle: Settle) -> None:
        """The ledger could not be written: the message goes back instead."""
        self._settle(settle.item, Disposition.RELEASE)

    def _accepted(self, destination: Destination, items: Sequence[Item]) -> None:
        self.remember(items)
        self.tally.note(Moment.ACCEPTED, Accepted(items, destination.path))
        actions = self._actions
        for item in items:
            item.stage = Stage.SETTLING
            item.releasing = False
            actions.append(Settle(item, item.received, Disposition.COMPLETE, "forwarded"))
            self._forget_payload(item)
        for source in dict.fromkeys(item.received.source for item in items):
            self._leads(self._order(source))
        while len(self._forwarded) > self._remember_most:
            del self._forwarded[next(iter(self._forwarded))]

    def _leads(self, order: QueueOrder) -> None:
        """Something of this queue was sent."""
        order.has_led = True
        if self._bucket is not None and self.limits.shared and order.ordered and order.turn_ends_at is None:
            # The queues rest one after another, so that the others use the rate meanwhile.
            place = list(self._orders.values()).index(order)
            order.begin_turn(TURN_SECONDS * (1 - place / (2 * len(self._orders))), self._last_arrival)

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

    def locks_lost(self, batch: Batch, lost: Iterable[int], now: float) -> None:
        """The batch was not sent as a whole because the locks of these places are gone: they come again, if they were
        not moved after all, and the others go with the next."""
        destination, gone = self._destination(batch.destination), frozenset(lost)
        for place, item in enumerate(batch.items):
            item.attempts -= 1
            if place in gone:
                self._drop(item, now, lost=True)
        for place, item in enumerate(batch.items):
            if place not in gone:
                self._back_in_line(destination, item, now)
        self._over(batch)

    def _refused(self, destination: Destination, items: tuple[Item, ...], error: ServiceError, now: float) -> None:
        for item in items if not error.uncertain else ():
            item.attempts -= 1
        reason = _FOR_GOOD.get(error.category)
        if reason is None:
            for item in items:
                self._back_in_line(destination, item, now)
            self._trouble(destination, error, now)
        elif error.category is Category.NOT_FOUND:
            self._missing(destination, items, error)
        elif len(items) == 1:
            for item in items:
                self._dead_letter(item, reason, error.message)
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
        self.all_settled([settle], now)

    def all_settled(self, settles: Sequence[Settle], now: float) -> None:
        """The broker confirmed all of these."""
        self.tally.note(Moment.SETTLED, *alike(settles))
        for settle in settles:
            item = settle.item
            self._discard(item)
            if settle.disposition is Disposition.COMPLETE:
                self._forwarded.pop(item.key, None)
                if settle.outcome == TAKEN:
                    self.taken += 1
            elif settle.disposition is not Disposition.DEAD_LETTER and not self.stopping:
                self._actions.append(PollAgain(settle.received.source))

    def settle_failed(self, settle: Settle, error: SbpairError, now: float) -> None:
        """The receipt was refused, or no confirmation came. What was forwarded stays remembered."""
        item = settle.item
        if isinstance(error, ServiceError) and error.category is Category.BUSY and not self.stopping:
            again = now + SERVER_BUSY_SECONDS
            if again < item.lock_until:
                heapq.heappush(self._later, (again, next(self._tie), settle))
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
        """Receive and send nothing more; release what waits. `live` is 0 when all is settled."""
        self.stopping = True
        self._actions.extend(settle for _, _, settle in self._later)
        self._later.clear()
        for destination in self._destinations.values():
            for item in destination.waiting():
                self._release(destination, item, now)

    def release_left(self) -> None:
        """Release what was left, so that others see it without waiting for the locks to run out."""
        for item in list(self._items.values()):
            if item.stage is Stage.LEFT:
                self._left -= 1
                self._settle(item, Disposition.RELEASE)

    # What is to be done

    def poll(self, now: float) -> list[Action]:
        """Everything that can be done now."""
        while self._later and self._later[0][0] <= now:
            self._actions.append(heapq.heappop(self._later)[2])
        if now >= self._lock_check_at:
            self._check_locks(now)
        self._give_up(now)
        self._release_in_a_long_pause(now)
        self._probe(now)
        if not self.stopping and now >= self._busy_until:
            self._fill_batches(now)
        if not self.stopping:
            self._keep_order(now)
            self._tell_who_leads(now)
        actions = list(self._actions)
        self._actions.clear()
        return actions

    def deadline(self, now: float) -> float:
        """When to poll again if nothing happens before."""
        times = [self._lock_check_at, *(when for when, _, _ in self._later[:1])]
        for destination in self._destinations.values():
            if destination.waiting_count and destination.paused_until > now:
                times.append(destination.paused_until)
            if (probe_at := self._next_probe(destination, now)) is not None:
                times.append(probe_at)
        for order in self._orders.values():
            if order.blocked:
                times.append(order.check_at)
            if not order.sampling and (order.blocked or order.mode is not Mode.READING):
                times.append(order.sample_at)
        times += [when for when in (self._busy_until, self._receive_again_at) if when > now]
        if self._bucket is not None and self._any_waiting() and (wait := self._bucket.seconds_until(1, now)):
            times.append(now + wait)
        if self._any_waiting() and (wait := self._pace.seconds_until_some(now)):
            times.append(now + wait)
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
                destination.tried_at = now
                self._actions.append(Measure(destination.path))
            return False
        if destination.failures and destination.sending:
            return False
        allowed = min(self._allowance(now), self.limits.batch_messages)
        batch = destination.next_batch(allowed, self._is_blocked) if allowed else None
        if batch is None:
            return False
        if self._bucket is not None:
            self._bucket.take(len(batch.items))
        self._pace.take(len(batch.items))
        if not destination.sending:
            destination.tried_at = now
        destination.sending += 1
        self._sending += 1
        self._actions.append(Send(batch))
        return True

    def _allowance(self, now: float) -> int:
        """How many messages the rate allows now."""
        allowed = [self.limits.in_flight_messages]
        if self._bucket is not None:
            allowed.append(int(self._bucket.tokens(now) + 1e-9))
        if (paced := self._pace.allowance(now)) is not None:
            allowed.append(paced)
        return max(0, min(allowed))

    # Trouble

    def _trouble(self, destination: Destination, error: ServiceError, now: float) -> None:
        if error.category is Category.BUSY:
            if self._busy is None:
                self._busy = now, error
            if now >= self._busy_until:
                seconds = self._pace.refused(now)
                self._busy_until = now + seconds
                patience = self.limits.patience_seconds
                left = None if patience is None else max(0.0, self._busy[0] + patience - now)
                self._actions.append(PauseBegan("", error.code, seconds, left))
            return
        destination.failures += 1
        if destination.failing_since is None:
            destination.failing_since = destination.tried_at
        backoff = REFUSED if error.category in _SOMEBODY_HAS_TO_ACT else SYPHON
        seconds = backoff.seconds(destination.failures)
        destination.paused_until = now + seconds
        destination.probe_at = None
        if error.category not in _SOMEBODY_HAS_TO_ACT and seconds > PROBE_SECONDS:
            destination.probe_at = now + PROBE_SECONDS
        destination.last_error = error
        if error.category in self.limits.no_use_waiting:
            self._abandon(destination, error)
            return
        bound = self._patience_with(destination)
        left = None if bound is None else max(0.0, destination.failing_since + bound - now)
        self._actions.append(PauseBegan(destination.path, error.code, seconds, left))

    def _recovered(self, destination: Destination, now: float) -> None:
        self._busy = None
        destination.reached = True
        destination.tried_at = now
        if destination.failures:
            self._actions.append(PauseEnded(destination.path))
        destination.failures = 0
        destination.failing_since = None
        destination.paused_until, destination.probe_at = 0.0, None

    def _give_up(self, now: float) -> None:
        """Leave what waits for a destination that has failed for longer than the patience lasts, and everything once
        the namespace has been too busy for all of it for so long."""
        patience = self.limits.patience_seconds
        refused = None
        if patience is not None and self._busy is not None and now - self._busy[0] >= patience:
            refused = self._busy[1]
        for destination in self._destinations.values():
            bound, since = self._patience_with(destination), destination.failing_since
            if bound is None or destination.abandoned is not None:
                continue
            if since is not None and now - since >= bound:
                self._abandon(destination, destination.last_error)
            elif refused is not None and destination.waiting_count:
                self._abandon(destination, refused)

    def _patience_with(self, destination: Destination) -> float | None:
        """How long the destination may fail; None: for ever."""
        patience = self.limits.patience_seconds
        if patience is None or destination.reached:
            return patience
        return min(patience, self.limits.unreached_seconds)

    def _abandon(self, destination: Destination, error: ServiceError | None) -> None:
        """Nothing more is sent there: what waits for it is left, and what still comes."""
        self._receive_again_at = 0.0  # what is in the queues for it is named too, and the others go on
        code = error.code if error is not None else ""
        destination.last_error = error
        destination.abandoned = f"destination unavailable: {destination.path} ({code})"
        for item in destination.waiting():
            destination.remove(item)
            self._leave(item, destination.abandoned)

    def _probe(self, now: float) -> None:
        """Ask the links of paused destinations whether they open again: no message is needed for that, and what waits
        goes on seconds after the destination is back, however long the pause has grown."""
        for destination in self._destinations.values():
            probe_at = self._next_probe(destination, now)
            if probe_at is not None and probe_at <= now:
                destination.measuring = True
                self._actions.append(Measure(destination.path))

    def _next_probe(self, destination: Destination, now: float) -> float | None:
        over = self.stopping or destination.abandoned is not None or destination.paused_until <= now
        return None if over or destination.measuring else destination.probe_at

    def _release_in_a_long_pause(self, now: float) -> None:
        """Nothing can move for long: give everything back and receive nothing until the next try is due."""
        waiting = [one for one in self._destinations.values() if one.waiting_count]
        if self.stopping or not waiting or self._sending or now - self._last_arrival < 1.0:
            return
        if now < self._receive_again_at:
            return  # what an open poll still brought is held: released, it would come straight round again
        resumes = min(max(one.paused_until, self._busy_until) for one in waiting)
        if resumes - now <= HOLD_SECONDS or any(one.measuring and one.probe_at is None for one in waiting):
            return
        self._receive_again_at = resumes
        for destination in waiting:
            for item in destination.waiting():
                self._release(destination, item, now)

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

    # Order (see `core.transfer.order`)

    def _order(self, source: str) -> QueueOrder:
        order = self._spelled.get(source)
        if order is None:
            order = self._orders.setdefault(source.lower(), QueueOrder(source, DEFAULT_LOCK_SECONDS))
            self._spelled[source] = order
        return order

    def _is_blocked(self, item: Item) -> bool:
        if item.session is None:
            return False
        order = self._order(item.received.source)
        if not (order.gaps or order.parked):
            return False
        return order.blocks((item.destination.lower(), item.session), item.received.sequence_number)

    def _blocked_items(self, order: QueueOrder) -> list[Item]:
        """What waits behind gaps of this queue, by lane; the lowest of a lane first."""
        found = []
        for name, session in order.lanes | order.parked:
            if (destination := self._destinations.get(name)) is not None:
                found += [
                    item
                    for item in destination.lane(session)
                    if item.received.source == order.path and self._is_blocked(item)
                ]
        return found

    def _keep_order(self, now: float) -> None:
        """Decide about what is blocked: hold it, or release it and stand back; browse what it waits for."""
        budget = max(1, self.limits.in_flight_messages // 2)
        for order in self._orders.values():
            if lanes := order.free_lanes() if order.mode is Mode.HOLDING else list(order.parked):
                self._unpark(order, lanes, now, comes_first=True)
            if order.mode is Mode.READING and not order.gaps:
                order.blocked, order.behind_since = 0, None
                continue
            if now >= order.check_at:
                order.check_at = now + CHECK_SECONDS
                self._hold_or_release(order, budget, now)
            wants = order.mode is not Mode.READING or order.blocked
            if wants and now >= order.sample_at and not order.sampling:
                order.sample(now)
                self._actions.append(Sample(order.path, order.first_to_sample))

    def _tell_who_leads(self, now: float) -> None:
        if now < self._tell_at:
            return
        self._tell_at = now + FOLLOW_SECONDS
        paces = {order.path: pace for order in self._orders.values() if (pace := order.followed(now)) is not None}
        if paces:
            self._actions.append(Followed(tuple(paces), sum(paces.values())))
            self._tell_at = now + TELL_AGAIN_SECONDS

    def _hold_or_release(self, order: QueueOrder, budget: int, now: float) -> None:
        blocked = self._blocked_items(order)
        order.blocked = len(blocked)
        if not (blocked or order.parked):
            order.behind_since = None
            return
        elsewhere = sum(other.blocked for other in self._orders.values() if other is not order)
        size_bytes = sum(item.size_bytes for item in blocked)
        too_many = len(blocked) + elsewhere > budget or 2 * size_bytes > self.limits.in_flight_bytes
        if order.mode is Mode.HOLDING:
            keep = order.moved_at <= order.holding_since and not self.stalled(order.path, now)
            if keep and too_many:
                keep = not (too_many := not self._park(order, blocked, budget - elsewhere))
        elif order.mode is Mode.READING and not too_many and order.leads:
            order.behind_since = None
            keep = True
        elif order.mode is Mode.READING and not too_many and order.has_led:
            order.behind_since = now if order.behind_since is None else order.behind_since
            keep = order.outweighs and now - order.behind_since < order.hold_after_seconds
        else:
            keep = False
        if not keep:
            if order.mode is Mode.HOLDING and (too_many or self.stalled(order.path, now)):
                order.budget_used_up = True
            self._step_back(order, blocked, now)

    def _park(self, order: QueueOrder, blocked: Sequence[Item], budget: int) -> bool:
        """Drop the bytes of what is blocked until half of what may be held is free again, and keep the locks. False if
        too many are parked."""
        most_bytes = self.limits.in_flight_bytes // 4
        messages, size_bytes = len(blocked), sum(item.size_bytes for item in blocked)
        parked = sum(len(numbers) for one in self._orders.values() for numbers in one.parked.values())
        for item in sorted(blocked, key=lambda item: item.received.sequence_number, reverse=True):
            if messages <= budget // 2 and size_bytes <= most_bytes:
                break
            if parked >= PARKED_MESSAGES:
                return False
            if item.renewing or (lane := _lane_of(item)) is None:
                continue  # the answer belongs to the receipt as it is
            self._destination(item.destination).remove(item)
            order.park(lane, item.received.sequence_number)
            item.received = replace(item.received, payload=b"")
            self._leave(item, WAITS_BEHIND)
            messages, size_bytes, parked = messages - 1, size_bytes - item.size_bytes, parked + 1
            order.blocked -= 1
        return True

    def _unpark(self, order: QueueOrder, lanes: Sequence[LaneKey], now: float, *, comes_first: bool) -> None:
        """Release what is parked of these lanes, the last ones first. `comes_first`: what follows waits until it is
        back."""
        parked = [
            item
            for item in self._items.values()
            if item.stage is Stage.LEFT
            and item.left_because == WAITS_BEHIND
            and item.received.source == order.path
            and _lane_of(item) in lanes
        ]
        for item in sorted(parked, key=_number, reverse=True):
            self._left -= 1
            if comes_first:
                self._await_return(item, now)
            self._settle(item, Disposition.RELEASE)
        for one in lanes:
            del order.parked[one]

    def _step_back(self, order: QueueOrder, blocked: Sequence[Item], now: float) -> None:
        self._unpark(order, list(order.parked), now, comes_first=False)
        # The last ones first: their places in the queue are free before the leader gets there.
        for item in reversed(blocked):
            if item.stage is Stage.WAITING:
                self._release(self._destination(item.destination), item, now, comes_first=False)
        order.stand_back(now)

    # Bookkeeping

    def _destination(self, path: str) -> Destination:
        destination = self._named.get(path)
        if destination is None:
            name = path.lower()
            if name not in self._destinations:
                self._destinations[name] = Destination(path)
            destination = self._destinations[name]
            if len(self._named) < MOST_SPELLINGS:
                self._named[path] = destination
        return destination

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
            self._release(destination, item, now)
        elif destination.abandoned is not None:
            self._leave(item, destination.abandoned)
        else:
            destination.add(item, front=True)

    def _release(self, destination: Destination, item: Item, now: float, *, comes_first: bool = True) -> None:
        """Release one that waits. `comes_first`: what lies behind it in its session waits until it is back."""
        destination.remove(item)
        if comes_first:
            self._await_return(item, now)
        self._uncount(item)
        self._settle(item, Disposition.RELEASE)

    def _await_return(self, item: Item, now: float) -> None:
        """It is in its queue again without having been sent: nothing of its session may go before it."""
        if item.session is not None:
            lane = (item.destination.lower(), item.session)
            order = self._order(item.received.source)
            order.open_gap(item.received.sequence_number, Gap(lane, foreign=False), now)
            order.check_at = now

    def _dead_letter(self, item: Item, reason: str, description: str) -> None:
        self._forget_payload(item)
        if self._undeliverable is None or is_dead_letter_path(item.received.source):
            self._leave(item, f"{UNDELIVERABLE}{reason}")  # it lies where it belongs
            self._end_session(item)
            return
        if self._undeliverable == REFUSED_OUTCOME and item.destination:
            reason = f"{item.destination}: {reason}"  # no dead-letter queue keeps it together with its message
        self._settle(item, Disposition.DEAD_LETTER, self._undeliverable, reason, description)

    def _end_session(self, item: Item) -> None:
        """It stays, so what comes after it in its session may not go either."""
        lane = _lane_of(item)
        if not self._sessions_wait or lane is None:
            return
        end = self._ended.get(lane)
        self._ended[lane] = item if end is None or comes_before(item, end) else end
        destination = self._destination(item.destination)
        for behind in list(destination.lane(lane[1])):
            if comes_before(item, behind):
                destination.remove(behind)
                self._leave(behind, WAITS_IN_SESSION)

    def _leave(self, item: Item, because: str) -> None:
        self._forget_payload(item)
        self._uncount(item)
        item.stage = Stage.LEFT
        self._order(item.received.source).going.discard(item.received.sequence_number)
        item.left_because = because
        self._left += 1

    def _settle(
        self, item: Item, disposition: Disposition, outcome: str = "", reason: str = "", description: str = ""
    ) -> None:
        item.stage = Stage.SETTLING
        item.releasing = disposition is Disposition.RELEASE
        if item.releasing:
            # From now on somebody else may have it, long before the release is confirmed.
            order = self._order(item.received.source)
            order.in_hand.discard(item.received.sequence_number)
            order.going.discard(item.received.sequence_number)
        self._actions.append(Settle(item, item.received, disposition, outcome, reason, description))

    def _drop(self, item: Item, now: float, *, lost: bool) -> None:
        """It is out of our hands without having been settled; the broker will deliver it again."""
        if item.stage is Stage.LEFT:
            self._left -= 1
            if (lane := _lane_of(item)) is not None:
                self._order(item.received.source).not_parked(lane, item.received.sequence_number)
        if lost:
            self.tally.note(Moment.LOCK_LOST, item)
        if item.key not in self._forwarded:
            self._uncount(item)
            if item.destination:
                self._await_return(item, now)
        self._discard(item)
        if not self.stopping:
            self._actions.append(PollAgain(item.received.source))

    def _discard(self, item: Item) -> None:
        if item.payload:
            self._forget_payload(item)
        self._items.pop(item.key, None)
        received = item.received
        order = self._order(received.source)
        order.in_hand.discard(received.sequence_number)
        order.going.discard(received.sequence_number)
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


def _number(item: Item) -> int:
    return item.received.sequence_number


def _lane_of(item: Item) -> tuple[str, str] | None:
    return None if item.session is None else (item.destination.lower(), item.session)


def _too_large(destination: Destination) -> tuple[str, str]:
    return (
        _FOR_GOOD[Category.TOO_LARGE],
        f"The message is larger than the {destination.limit_bytes} bytes that {destination.path} takes.",
    )
