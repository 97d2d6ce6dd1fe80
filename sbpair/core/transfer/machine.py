"""The pump's decisions, sans-IO: what to send, complete, renew, release or dead-letter, and when to hold still.

The runtime says what happened (`arrived`, `destinations.sent`, `custody.settled`, ...) and asks `poll(now)` what to do
next; `deadline()` says when to ask again if nothing happens. Times are seconds of one monotonic clock.

    arrived ── forward ──> WAITING ──> SENDING ──> SETTLING (complete) ──> gone
       │                      ^  │        │ failed
       │                      └──┼────────┘
       │                         └── lock too short: renew, or drop it (it comes again)
       ├── finish: ping, malformed ──────────────> SETTLING (complete, dead-letter) ──> gone
       └── leave: filtered, cannot be delivered ──> LEFT, lock kept so that it does not come again ──> released

Five parts decide, each from its own state; this module wires them:

    window         how many messages may be received and sent now: what is in flight, rates, a namespace that is busy
    destinations   which batches go out, and what a refused one means (`core.transfer.delivery`)
    queues         the order within sessions, proven from what the queues show (law: `core.transfer.order`)
    holding        what is done about messages that may not go yet
    custody        locks, settlements, and what is remembered so that it is not sent twice

The hard cases. *Lock already gone or about to go*: it is renewed before the message is sent, or the message is not
sent. *Forwarded but not completed*: remembered until the completion is confirmed; when it comes again it is completed,
not sent. *Unreadable*: dead-lettered with the reason, or left where that is impossible. *Stop*: what waits is given
back without raising its delivery count, what is on its way is settled. *Destination down for long*: what waits for it
is released and nothing is received until the next try is due, so that neither locks nor delivery counts churn.
"""

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial

from sbpair.core.message import Received
from sbpair.core.transfer.custody import DEAD_LETTERED, Custody
from sbpair.core.transfer.delivery import Destinations
from sbpair.core.transfer.order import PARKED_MESSAGES, WAITS_BEHIND, Mode, OrderGap, QueueOrder, Queues
from sbpair.core.transfer.pace import Load, Pace, Window
from sbpair.core.transfer.report import Tally
from sbpair.core.transfer.state import (
    Action,
    Forward,
    Item,
    Key,
    LaneKey,
    Leave,
    Limits,
    PollAgain,
    Stage,
    Verdict,
    has_order,
    key_of,
)

CHECK_SECONDS = 0.1
"""How often what is blocked is counted while nothing new comes."""


class Holding:
    """What is done about messages that may not go yet: hold them, park them, or release them and stand back.

    The rules are in `core.transfer.order` (sharing, holding, parking). Half of what may be in flight is never used for
    what cannot go, so that what is waited for always finds room.

    Args:
        actions: gets what is to be done.
    """

    def __init__(
        self, limits: Limits, queues: Queues, custody: Custody, destinations: Destinations, actions: deque[Action]
    ) -> None:
        self._limits = limits
        self._queues = queues
        self._custody = custody
        self._destinations = destinations
        self._actions = actions

    def came(self, item: Item, queue: QueueOrder) -> None:
        """A message came that is to be sent. While others lead in its queue it goes back if it is blocked; if it is
        not, nobody else is at its session, and the queue is read on."""
        queue.going.add(item.received.sequence_number)
        has_session = item.lane is not None
        blocked = has_session and self._queues.is_blocked(item)
        queue.opening = False
        queue.ordered |= has_session
        queue.came += 1
        queue.came_blocked += blocked
        if queue.gaps:
            queue.check_at = 0.0
        if queue.mode is not Mode.STANDING_BACK or not has_session:
            return
        if blocked:
            # What came with it may make us read on: then whatever follows it in its session has to wait for it.
            self._destinations.release(item, self._custody.last_arrival)
            queue.forget()  # it is out of our hands again: who takes it may not be overtaken unnoticed
        else:
            queue.read()  # a session that nobody else is at
            self._actions.append(PollAgain(item.received.source))

    def keep(self, now: float) -> None:
        """Decide about what is blocked, in every queue, and browse what it waits for."""
        for queue in self._queues:
            lanes = queue.free_lanes() if queue.mode is Mode.HOLDING else list(queue.parked)
            if lanes:
                self._unpark(queue, lanes, now, comes_first=True)
            if queue.mode is Mode.READING and not queue.gaps:
                queue.blocked, queue.behind_since = 0, None
                continue
            if now >= queue.check_at:
                queue.check_at = now + CHECK_SECONDS
                self._hold_or_release(queue, now)
            self._queues.sample_if_due(queue, now)

    def _hold_or_release(self, queue: QueueOrder, now: float) -> None:
        blocked = self._blocked_items(queue)
        queue.blocked = len(blocked)
        if not (blocked or queue.parked):
            queue.behind_since = None
            return
        # What is left of the half window for this queue.
        budget = max(1, self._limits.in_flight_messages // 2) - (self._queues.blocked - queue.blocked)
        size_bytes = sum(item.size_bytes for item in blocked)
        too_many = len(blocked) > budget or 2 * size_bytes > self._limits.in_flight_bytes
        if queue.mode is Mode.HOLDING:
            if self._holds_on(queue, now) and (not too_many or self._park(queue, blocked, budget)):
                return
            queue.budget_used_up |= too_many or self._queues.stalled(queue.path, now)
        elif not too_many and _waits(queue, now):
            return
        self._step_back(queue, blocked, now)

    def _holds_on(self, queue: QueueOrder, now: float) -> bool:
        """Whether going past the head still helps: others have not moved since, and are not past all patience."""
        return queue.moved_at <= queue.holding_since and not self._queues.stalled(queue.path, now)

    def _blocked_items(self, queue: QueueOrder) -> list[Item]:
        """What waits behind gaps of this queue, by lane; the lowest of a lane first."""
        return [
            item
            for lane in queue.lanes | queue.parked
            for item in self._destinations.waiting_in(lane)
            if self._queues.of(item.received.source) is queue and self._queues.is_blocked(item)
        ]

    def _park(self, queue: QueueOrder, blocked: Sequence[Item], budget: int) -> bool:
        """Drop the bytes of what is blocked until half of what may be held is free again, and keep the locks. False if
        too many are parked."""
        most_bytes = self._limits.in_flight_bytes // 4
        messages, size_bytes = len(blocked), sum(item.size_bytes for item in blocked)
        parked = sum(len(numbers) for each in self._queues for numbers in each.parked.values())
        for item in sorted(blocked, key=_number, reverse=True):
            if messages <= budget // 2 and size_bytes <= most_bytes:
                break
            if parked >= PARKED_MESSAGES:
                return False
            if item.renewing or item.lane is None:
                continue  # it would keep its bytes
            self._destinations.of(item.destination).remove(item)
            queue.park(item.lane, item.received.sequence_number)
            self._custody.leave(item, WAITS_BEHIND)
            messages, size_bytes, parked = messages - 1, size_bytes - item.size_bytes, parked + 1
            queue.blocked -= 1
        return True

    def _unpark(self, queue: QueueOrder, lanes: Collection[LaneKey], now: float, *, comes_first: bool) -> None:
        """Release what is parked of these lanes, the last messages first. `comes_first`: what follows waits until it is
        back."""
        parked = [
            item
            for item in self._custody.left_behind(WAITS_BEHIND)
            if self._queues.of(item.received.source) is queue and item.lane in lanes
        ]
        for item in sorted(parked, key=_number, reverse=True):
            if comes_first:
                self._queues.await_return(item, now)
            self._custody.release(item)
        for lane in lanes:
            del queue.parked[lane]

    def _step_back(self, queue: QueueOrder, blocked: Sequence[Item], now: float) -> None:
        """Others lead: what is blocked or parked goes back, and nothing is received but to try."""
        self._unpark(queue, list(queue.parked), now, comes_first=False)
        # The last messages first: their places in the queue are free before the leader gets there.
        for item in reversed(blocked):
            if item.stage is Stage.WAITING:  # it has not just been parked
                self._destinations.release(item, now, comes_first=False)
        queue.stand_back(now)


def _waits(queue: QueueOrder, now: float) -> bool:
    """Whether what is blocked in a queue that is read, or stood back from, is held a while longer."""
    if queue.mode is not Mode.READING:
        return False
    if queue.leads:
        queue.behind_since = None
        return True
    if not queue.has_led:
        return False
    queue.behind_since = now if queue.behind_since is None else queue.behind_since
    return queue.outweighs and now - queue.behind_since < queue.hold_after_seconds


def _number(item: Item) -> int:
    return item.received.sequence_number


class Settlement:
    """The machine. See the module.

    Args:
        undeliverable: the ledger's word for a message that is dead-lettered because it cannot be delivered; None where
            it can only be left, as it is in a dead-letter queue.
        sessions_wait: a session goes no further than a message of it that cannot be dead-lettered.
        leave_missing: leave messages whose destination does not exist.
        leave_refused: leave messages that their destination refuses as they are, and what follows in their sessions.
        forwarded: what earlier runs have sent.
        pace: of sending, as others on this machine know it; None: nobody knows of one.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        undeliverable: str | None = DEAD_LETTERED,
        sessions_wait: bool = False,
        leave_missing: bool = False,
        leave_refused: bool = False,
        forwarded: Collection[Key] = (),
        tally: Tally | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._limits = limits
        self._actions: deque[Action] = deque()
        self.tally = Tally() if tally is None else tally
        self.queues = Queues(limits, self._actions)
        self.window = Window(limits, self.queues, pace)
        self.custody = Custody(self.queues, self._actions, self.tally, forwarded=forwarded, undeliverable=undeliverable)
        self.destinations = Destinations(
            limits,
            self.custody,
            self.queues,
            self.window,
            self._actions,
            sessions_wait=sessions_wait,
            leave_missing=leave_missing,
            leave_refused=leave_refused,
        )
        self._holding = Holding(limits, self.queues, self.custody, self.destinations, self._actions)

    # Receiving

    def grant(self, wanted: int, now: float, source: str | None = None) -> int:
        """How many messages may be received now, up to `wanted`; give the number back with `window.returned`."""
        custody = self.custody
        if custody.stopping or self.left_full:
            return 0
        held = self.destinations.held(now)
        load = Load(custody.live, held, custody.size_bytes, custody.mean_bytes, custody.counted)
        return self.window.grant(wanted, load, now, source)

    @property
    def total_reached(self) -> bool:
        """Whether as many messages as wanted are dealt with."""
        return self._limits.total_messages is not None and self.custody.counted >= self._limits.total_messages

    @property
    def left_full(self) -> bool:
        """Whether no more may be left under lock, so that nothing more is received."""
        return self.custody.left_messages >= self._limits.left_messages

    def arrived(
        self, received: Received, verdict: Verdict, *, lock_until: float, lock_seconds: float, now: float
    ) -> None:
        """A message was received, and what it skipped was browsed. Its lock ends at `lock_until`."""
        custody, number = self.custody, received.sequence_number
        custody.last_arrival = now
        key = key_of(received)
        queue = self.queues.of(received.source)
        known = custody.find(key)
        if known is not None and known.releasing:
            arrives = partial(self.arrived, received, verdict, lock_until=lock_until, lock_seconds=lock_seconds)
            returns = partial(custody.refused, received, lock_until=lock_until, lock_seconds=lock_seconds)
            forgotten = queue.forgotten
            if isinstance(verdict, Forward) and (lane := verdict.lane) is not None:
                # Until it is here for certain it is a message that comes first, and not one that has come.
                queue.open_gap(number, OrderGap(lane, foreign=False), now)

            def comes_again() -> None:
                """The release before this delivery is confirmed. If what was proven when it came is forgotten, it goes
                back."""
                if has_order(verdict) and queue.forgotten != forgotten:
                    returns()
                else:
                    arrives(now=now)

            known.comes_again = comes_again
            return
        if queue.gaps:
            self.queues.handed_out(queue, number, now)
        if known is not None:
            custody.received_again(known, received, lock_until)
            return
        item = custody.take_in(key, received, lock_until=lock_until, lock_seconds=lock_seconds)
        queue.in_hand.add(number)
        if custody.was_forwarded(key):
            custody.complete_again(item)
        elif isinstance(verdict, Forward):
            if self.destinations.add(item, verdict):
                self._holding.came(item, queue)
            return
        elif isinstance(verdict, Leave):
            custody.leave(item, verdict.because)
        else:
            custody.finish(item, verdict)
        if not queue.gaps:
            queue.came += 1  # nobody else has what comes before it: the next receive may ask for many

    def expect(self, received: Received, verdict: Verdict, now: float) -> None:
        """A browse of what a receive skipped showed this message: it is locked by another receiver, or was, and comes
        first in its session. Locks of a killed process or a broken connection outlive it."""
        if isinstance(verdict, Forward) and not self.custody.accounts_for(key_of(received)):
            self.queues.expect(received, verdict, now)

    # What is to be done

    def poll(self, now: float) -> list[Action]:
        """Everything that can be done now."""
        self.custody.settle_again(now)
        for item in self.custody.expired(now):
            self.destinations.lost(item, now)
        self.destinations.give_up(now)
        self.destinations.release_in_a_long_pause(now)
        self.destinations.probe(now)
        if not self.custody.stopping:
            if now >= self.window.busy_until:
                self.destinations.fill_batches(now)
            self._holding.keep(now)
            self.queues.report_leaders(now)
        actions = list(self._actions)
        self._actions.clear()
        return actions

    def deadline(self, now: float) -> float:
        """When to poll again if nothing happens before."""
        times = (*self.custody.deadlines(), *self.destinations.deadlines(now), *self.queues.deadlines())
        return max(now, min(times))

    def stop(self, now: float) -> None:
        """Receive and send nothing more; release what waits. `custody.live` is 0 when all is settled."""
        self.custody.stop()
        self.destinations.release_all(now)
