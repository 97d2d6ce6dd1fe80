"""What is done about messages that may not go yet: hold them, park them, or release them and stand back.

The rules are in `core.transfer.order` (sharing, holding, parking). Half of what may be in flight is never used for
what cannot go, so that what is waited for always finds room.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from sbpair.core.transfer.custody import Custody
from sbpair.core.transfer.delivery import Destinations
from sbpair.core.transfer.order import PARKED_MESSAGES, WAITS_BEHIND, Mode, QueueOrder
from sbpair.core.transfer.queues import Queues
from sbpair.core.transfer.state import Action, Item, LaneKey, Limits, PollAgain, Stage

CHECK_SECONDS = 0.1
"""How often what is blocked is counted while nothing new comes."""


class Holding:
    """See the module. Times are seconds of one monotonic clock.

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
            if item.received.source == queue.path and self._queues.is_blocked(item)
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
                continue  # the answer belongs to the receipt as it is
            self._destinations.of(item.destination).remove(item)
            queue.park(item.lane, item.received.sequence_number)
            item.received = replace(item.received, payload=b"")
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
            if item.received.source == queue.path and item.lane in lanes
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
