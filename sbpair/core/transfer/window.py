"""How much may be received and sent now: the window of what is in flight, the rates, and a namespace that is too busy.

In flight counts what is on its way. What cannot go does not count, or it would keep out what it waits for: messages for
a destination that is down have a bound of their own (`HELD_WINDOWS`), and those behind a gap are bounded where the
order is kept (`Holding` in `core.transfer.machine`).

A queue asks before each receive (`grant`) and says afterwards that it is over (`returned`); in between the number
counts as in flight. A poll of an empty queue may last a quarter of an hour, so no queue is granted more than its share,
and each may ask for one message whatever the others were granted.

Rates: `rate_per_second` bounds what is sent. `budget_per_second`, and what the refusals of a busy namespace teach
(`core.transfer.pace`), bound what is sent and what is received alike, since receiving costs credits as well.
"""

from collections.abc import Iterator

from sbpair.core.errors import ServiceError
from sbpair.core.message import value_class
from sbpair.core.retry import TokenBucket
from sbpair.core.transfer.order import Mode, QueueOrder, Queues
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.state import Limits, PauseBegan

FEW_OF_WINDOW = 32
"""A receive of less than this part of what may be in flight waits as long as its queue has more on its way."""
AHEAD_SECONDS = 5.0
"""With a rate no more is received than it lets go in so long."""
HELD_WINDOWS = 4
"""Windows that may be in hand together with what waits for destinations that are down. Which messages are for those is
not known before they come, so the other three are for what still can go."""


@value_class
class Load:
    """What is in hand when a queue asks for more."""

    live: int
    """Messages neither left nor done."""
    held: int
    """Of these, those that wait for a destination that is down."""
    size_bytes: int
    mean_bytes: float
    """Of a message lately: what is still to come is taken for as heavy."""
    counted: int
    """Messages that count towards `Limits.total_messages`."""


class Window:
    """See the module. Times are seconds of one monotonic clock. `pace`: one that has learnt something already."""

    def __init__(self, limits: Limits, queues: Queues, pace: Pace | None = None) -> None:
        self._limits = limits
        self._queues = queues
        self._granted = 0
        self._resting: set[str] = set()
        rate = limits.rate_per_second
        self._bucket = None if rate is None else TokenBucket(rate, most=max(rate, 1.0), tokens=1.0)
        """A second's worth can be saved up."""
        self._sending = pace or Pace(limits.budget_per_second)
        self._receiving = None if limits.budget_per_second is None else Pace(limits.budget_per_second)
        """Of the namespace that gives the messages: what it gives costs as much as what the other namespace takes."""
        self._busy: tuple[float, ServiceError] | None = None
        """Since when the namespace, too busy, has taken nothing at all, and what it answered first."""
        self._receive_again_at = 0.0

    @property
    def busy_until(self) -> float:
        """Nothing is sent or received before."""
        return self._sending.paused_until

    # Receiving

    def grant(self, wanted: int, load: Load, now: float, source: str | None = None) -> int:
        """How many messages may be received now.

        Args:
            wanted: the most that the caller takes.
            source: the queue that asks; None: numbers of deferred messages, fetched for no queue's share.

        Returns:
            At most `wanted`; the caller gives the number back with `returned`.
        """
        if not self.receives(now) or now < self.busy_until:
            return 0
        queue = None if source is None else self._queues.of(source)
        if queue is not None:
            self._resting.discard(queue.path.lower())
            wanted = _may_ask_for(queue, wanted, now)
            if not wanted:
                return 0
        blocked, most = self._queues.blocked, self._most(now)
        room = self._room(load, blocked, most)
        if queue is None:
            room -= self._granted
        elif room > 0:
            most = min(most, int(self._limits.in_flight_bytes / load.mean_bytes))
            room = max(1, min(self._share(most), room - self._granted))
            few = room < min(wanted, most // FEW_OF_WINDOW)
            if few and not load.held and not blocked and _makes_room(queue, room):
                return 0
        granted = max(0, min(wanted, self._within_totals(room, load, now)))
        if self._receiving is not None:
            self._receiving.take(granted)
        if granted and queue is not None:
            queue.may_try = False
        self._granted += granted
        return granted

    def _most(self, now: float) -> int:
        """Messages that may be in flight: what would only wait for a rate is left to others, and free when we rest."""
        most = self._limits.in_flight_messages
        rates = [rate for rate in (self._limits.rate_per_second, self._sending.per_second(now)) if rate is not None]
        return min(most, max(1, int(min(rates) * AHEAD_SECONDS))) if rates else most

    def _room(self, load: Load, blocked: int, most: int) -> int:
        """Messages that fit beside what is in hand. Only what has come can be weighed; what is to come counts as
        heavy as the mean."""
        moving = max(0, load.live - load.held - blocked)
        in_windows = HELD_WINDOWS * self._limits.in_flight_messages - load.held - moving
        in_bytes = int((self._limits.in_flight_bytes - load.size_bytes) / load.mean_bytes)
        return min(most - moving, in_windows, in_bytes)

    def _share(self, most: int) -> int:
        """What one queue may be granted of `most`: as much as each other that is asked for messages."""
        return most // max(1, len(self._queues) - len(self._resting))

    def _within_totals(self, room: int, load: Load, now: float) -> int:
        if self._limits.total_messages is not None:
            room = min(room, self._limits.total_messages - load.counted - self._granted)
        if self._receiving is not None and (allowed := self._receiving.allowance(now)) is not None:
            room = min(room, allowed)
        return room

    def returned(self, granted: int, came: int | None = None) -> None:
        """The receive for which `grant` gave this number is over.

        Args:
            came: how many messages it brought; None: as many as were granted.
        """
        self._granted -= granted
        if self._receiving is not None and came is not None:
            self._receiving.take(came - granted)

    def rests(self, source: str) -> None:
        """Nothing is received from this queue until `grant` is asked for it again."""
        self._resting.add(source.lower())

    def receives(self, now: float) -> bool:
        """Whether anything is received: not during a pause of all destinations (`pause_receiving`)."""
        return now >= self._receive_again_at

    def pause_receiving(self, until: float) -> None:
        """Nothing can move for long: no queue is asked until then."""
        self._receive_again_at = until

    def receive_again(self) -> None:
        """Something can move again, or is to be named although it cannot."""
        self._receive_again_at = 0.0

    # Sending

    def allowance(self, now: float) -> int:
        """How many messages the rates let go now."""
        allowed = self._limits.in_flight_messages
        if self._bucket is not None:
            allowed = min(allowed, int(self._bucket.tokens(now) + 1e-9))
        if (paced := self._sending.allowance(now)) is not None:
            allowed = min(allowed, paced)
        return max(0, allowed)

    def take(self, messages: int) -> None:
        """This many go out now."""
        if self._bucket is not None:
            self._bucket.take(messages)
        self._sending.take(messages)

    def accepted(self, messages: int, now: float) -> None:
        """The namespace took that many: it is not too busy."""
        self._busy = None
        self._sending.accepted(messages, now)

    # A namespace that is too busy

    def too_busy(self, error: ServiceError, now: float) -> PauseBegan | None:
        """The namespace refused a send because it is too busy. The pause that begins; None if it is under way."""
        if self._busy is None:
            self._busy = now, error
        is_new, seconds = now >= self.busy_until, self._sending.refused(now)
        if not is_new:
            return None
        patience = self._limits.patience_seconds
        left = None if patience is None else max(0.0, self._busy[0] + patience - now)
        return PauseBegan("", error.code, seconds, left)

    def busy_beyond_patience(self, now: float) -> ServiceError | None:
        """The first refusal, if the namespace has been too busy for all messages for longer than the patience lasts."""
        patience = self._limits.patience_seconds
        if patience is None or self._busy is None or now - self._busy[0] < patience:
            return None
        return self._busy[1]

    # When to ask again

    def deadlines(self, now: float, *, waiting: bool) -> Iterator[float]:
        """When something changes by time alone. `waiting`: whether there is anything to be sent."""
        yield from (when for when in (self.busy_until, self._receive_again_at) if when > now)
        if not waiting:
            return
        if self._bucket is not None and (wait := self._bucket.seconds_until(1, now)):
            yield now + wait
        if wait := self._sending.seconds_until_some(now):
            yield now + wait


def _may_ask_for(queue: QueueOrder, wanted: int, now: float) -> int:
    """How many messages the order in the queue lets us ask for."""
    if queue.mode is Mode.STANDING_BACK and not queue.may_try:
        return 0
    if queue.mode is Mode.READING and queue.rests(now):
        return 0
    if not queue.next_receive():
        return min(wanted, 1)  # enough to learn who has the head, and hardly in the way of the drain that leads
    return wanted


def _makes_room(queue: QueueOrder, room: int) -> bool:
    """Whether more of this queue is on its way than there is room for now: then a receive of a few messages, which
    costs as much as one of many, is not worth while. Once those are settled it is asked for again."""
    return queue.mode is Mode.READING and not (queue.gaps or queue.parked) and len(queue.going) > room
