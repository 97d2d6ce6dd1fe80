"""How fast a namespace may be sent to, learnt from its refusals: they say that a budget is used up, not its size.

Nothing is bounded until the namespace answers for the first time that it is too busy. What it accepted in a second
until then is the first estimate of its budget. From then on messages go out evenly. After each refusal the pace begins
a little lower and returns along a cubic curve, as the window of a TCP connection does (RFC 9438): fast while it is far
below the pace that was refused, slowly near it, and ever faster beyond, since others may have stopped to use a part of
the budget. So a good estimate is tested only two or three times a minute. The first one is rough, and so is what
refusals right after it teach: from there the pace grows at once, and ever faster, until it is refused after it had
held. Others may have used all but a little of the second in which it was made.

A first refusal says that a second's budget was used up a little early: everything pauses for a moment, what comes up
meanwhile is kept, and nothing but a small part of the pace is lost. One that follows within seconds says that the pace
was too high by much, or that a debt of the seconds before is paid off (a batch is taken whole, however little is
left). What was accepted since then tells the budget. The pause is a second then, and twice as long each time that
nothing was accepted since, up to the 10 seconds that the documents advise ("Asynchronous Messaging Patterns and High
Availability").
"""

import math
from collections import deque
from collections.abc import Iterator

from sbpair.core.errors import ServiceError
from sbpair.core.message import value_class
from sbpair.core.retry import SERVER_BUSY_SECONDS, Backoff, TokenBucket
from sbpair.core.transfer.order import Mode, QueueOrder, Queues
from sbpair.core.transfer.state import Limits, PauseBegan

BUSY = Backoff(first_seconds=1.0, most_seconds=SERVER_BUSY_SECONDS)
"""After refusals with nothing accepted between them."""
BELOW = 0.98
"""Of the pace that was refused: where the next one begins."""
RETURN_SECONDS = 20.0
"""From there back to the pace that was refused; in twice as long as much beyond it, in three times eight times."""
MOST_GROWTH = 1000.0
"""Times the pace that was refused, however long ago that was."""
_MOST_GROWTH_LOG = math.log(MOST_GROWTH)
GROWTH = 0.3
"""The logarithm of how much a rough estimate grows in `RETURN_SECONDS`, in twice as long eight times as much of it: a
third, 11 times."""
SURE_WAIT = 0.25
"""Of the pause, after a refusal at a pace that had held for a while: only the rest of a second is used up."""
AGAIN = 0.5
"""Of the pace, at the least, if it was refused again."""
TRUSTED = 0.25
"""Of what a pace was above what was accepted since: the pauses between took a part of that."""
HELD = 0.9
"""Of the pace: if so much was accepted since the last refusal, the next one is as the first."""
SERIES_SECONDS = 3.0
"""A refusal within so long of the last pause belongs to the one before."""
REMEMBERED_SECONDS = 60.0
"""What was accepted longer ago tells nothing; a debt of several seconds is paid off by then."""
SAVED_SECONDS = 0.25
"""So much can be saved up: budgets are counted by the second."""
BOUNDED_SAVED_SECONDS = 0.1
"""The same where the rest of a budget is left to others: it is theirs in every second."""
STEP_SECONDS = 0.05
"""Messages go out as many at a time as come up in so long: one by one they would cost much more."""


class Waited:
    """How long what was ready was held up. Waits at the same time count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._until = -math.inf

    def add(self, now: float, until: float) -> None:
        self.seconds += max(0.0, until - max(now, self._until))
        self._until = max(until, self._until)


class Pace:
    """See the module. Times are seconds of one monotonic clock. `most_per_second`: what may be used at all."""

    def __init__(self, most_per_second: float | None = None) -> None:
        self.pauses = 0
        """How often it was refused."""
        self.waited = Waited()
        """With something to send, for a pause as for the pace."""
        self._most = most_per_second
        self._accepted: deque[tuple[float, int]] = deque()
        self._refusals = 0
        self._start: float | None = None
        """Where the curve begins, and when; None before the first refusal."""
        self._start_at = 0.0
        self._refused = 1.0
        """The pace that the curve returns to."""
        self._is_rough = False
        self.paused_until = 0.0
        self._series_since = 0.0
        self._tokens = 0.0
        self._looked_at = 0.0

    def per_second(self, now: float) -> float | None:
        """Messages a second that may be sent; None for any number, as long as nothing was refused."""
        if self._start is None:
            return self._most
        beyond = max(0.0, now - self._start_at) / RETURN_SECONDS - (0.0 if self._is_rough else 1.0)
        if self._is_rough:
            growth = math.exp(min(_MOST_GROWTH_LOG, GROWTH * beyond**3))
        else:
            bend = 1.0 - (self._start / self._refused if beyond < 0.0 else BELOW)
            growth = min(MOST_GROWTH, 1.0 + bend * beyond**3)
        learnt = self._refused * growth
        return learnt if self._most is None else min(learnt, self._most)

    def accepted(self, messages: int, now: float) -> None:
        """The namespace took that many."""
        self._refusals = 0
        if self._accepted and now - self._accepted[-1][0] < STEP_SECONDS:
            at, before = self._accepted.pop()
            self._accepted.append((at, before + messages))
        else:
            self._accepted.append((now, messages))
        in_series = self._start is not None and now - self._start_at < SERIES_SECONDS
        needed = min(now - SERIES_SECONDS, self._series_since) if in_series else now - SERIES_SECONDS
        while self._accepted[0][0] < max(needed, now - REMEMBERED_SECONDS):
            self._accepted.popleft()

    def refused(self, now: float) -> float:
        """It was too busy; the seconds to wait before the next try. What was under way when the pause began teaches
        nothing more."""
        self.pauses += 1
        if now < self.paused_until:
            return self.paused_until - now
        self._refusals += 1
        pace, is_first = self.per_second(now), self._start is None
        is_again = not is_first and (self._refusals > 1 or now - self._start_at < SERIES_SECONDS)
        held = not is_first and not is_again
        if is_again and pace is not None:
            since = self._series_since
            measured = sum(messages for at, messages in self._accepted if at >= since) / max(1.0, now - since)
            held = self._refusals == 1 and measured >= HELD * pace
            start: float | None = max(AGAIN * pace, min(BELOW * pace, measured))
            refused: float | None = start + TRUSTED * (pace - start) if start is not None else None
        else:
            # What the namespace accepts in a second before it refuses is its budget, or more than that.
            peak = self._most_accepted_in_a_second(now)
            refused = min((one for one in (pace, peak) if one is not None), default=None)
            start = None if refused is None else BELOW * refused
            self._series_since = max(now - 1.0, self._accepted[0][0]) if self._accepted else now
        wait = BUSY.seconds(self._refusals) * (SURE_WAIT if held else 1.0)
        self.paused_until = now + wait
        self._is_rough = is_first or (is_again and self._is_rough)
        if start is not None and refused is not None:
            self._begin(start, refused, now + wait)
        if not held:
            self._tokens, self._looked_at = 0.0, now + wait
        return wait

    def _begin(self, start: float, refused: float, at: float) -> None:
        self._start = max(1.0, start)
        self._refused = max(refused, self._start / BELOW)
        self._start_at = at

    def _most_accepted_in_a_second(self, now: float) -> float | None:
        """Of the last seconds; None if nothing was accepted in them. A drain that was held up for a moment sends in the
        next one what is left, and may be told of both at once: so it is not what was accepted just now."""
        lately = [one for one in self._accepted if one[0] >= now - SERIES_SECONDS]
        window: deque[tuple[float, int]] = deque()
        most, within = 0, 0
        for at, messages in lately:
            window.append((at, messages))
            within += messages
            while window[0][0] <= at - 1.0:
                within -= window.popleft()[1]
            most = max(most, within)
        return float(most) if lately else None

    def allowance(self, now: float) -> int | None:
        """Messages that may be sent now; None without a bound."""
        allowed = self._allowed(now)
        if allowed == 0:
            self._waits(now)
        return allowed

    def _allowed(self, now: float) -> int | None:
        if now < self.paused_until:
            return 0
        if (pace := self.per_second(now)) is None:
            return None
        passed = max(0.0, now - self._looked_at)
        saved = SAVED_SECONDS if self._most is None else BOUNDED_SAVED_SECONDS
        self._tokens = min(max(1.0, saved * pace), self._tokens + passed * pace)
        self._looked_at = max(now, self._looked_at)
        return int(self._tokens + 1e-9) if self._tokens + 1e-9 >= self._step(pace) else 0

    def take(self, messages: int) -> None:
        """This many were sent."""
        self._tokens -= messages

    def grant(self, most: int, now: float) -> int:
        """How many messages may be asked for now; they count as sent, and what does not come is given back."""
        allowed = self.allowance(now)
        granted = most if allowed is None else min(most, allowed)
        self.take(granted)
        return granted

    def seconds_until_some(self, now: float) -> float:
        """How long until more may be sent; asked with something to send."""
        return self._waits(now)

    def _waits(self, now: float) -> float:
        seconds = max(0.0, self.paused_until - now)
        if not (seconds or self._allowed(now) or (pace := self.per_second(now)) is None):
            seconds = max(0.0, self._looked_at - now) + (self._step(pace) - self._tokens) / pace
        if seconds:
            self.waited.add(now, now + seconds)
        return seconds

    @staticmethod
    def _step(pace: float) -> float:
        return max(1.0, STEP_SECONDS * pace)


# How much may be received and sent now: the window of what is in flight, the rates, and a namespace that is too busy.
#
# In flight counts what is on its way. What cannot go does not count, or it would keep out what it waits for: messages
# for a destination that is down have a bound of their own (`HELD_WINDOWS`), and those behind a gap are bounded where
# the order is kept (`Holding` in `core.transfer.machine`).
#
# A queue asks before each receive (`grant`) and says afterwards that it is over (`returned`); in between the number
# counts as in flight. A poll of an empty queue may last a quarter of an hour, so no queue is granted more than its
# share, and each may ask for one message whatever the others were granted.
#
# Rates: `rate_per_second` bounds what is sent. `budget_per_second`, and what the refusals of a busy namespace teach
# (`Pace`), bound what is sent and what is received alike, since receiving costs credits as well.

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
        if self._receiving is not None:
            self._receiving.waited = self._sending.waited
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
