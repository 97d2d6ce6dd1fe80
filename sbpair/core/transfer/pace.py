"""How fast a namespace may be sent to, learnt from its refusals: they say that a budget is used up, not its size.

Nothing is bounded until the namespace answers for the first time that it is too busy. What it accepted in a second
until then is the first estimate of its budget. From then on messages go out evenly. After each refusal the pace begins
a little lower and returns along a cubic curve, as the window of a TCP connection does (RFC 9438): fast while it is far
below the pace that was refused, slowly near it, and ever faster beyond, since others may have stopped to use a part of
the budget. So a good estimate is tested only two or three times a minute. The first one is rough, and so is what
refusals right after it teach: from there the pace grows at once, until it is refused after it had held.

A first refusal says that a second's budget was used up a little early: everything pauses for a moment, what comes up
meanwhile is kept, and nothing but a small part of the pace is lost. One that follows within seconds says that the pace
was too high by much, or that a debt of the seconds before is paid off (a batch is taken whole, however little is
left). What was accepted since then tells the budget. The pause is a second then, and twice as long each time that
nothing was accepted since, up to the 10 seconds that the documents advise ("Asynchronous Messaging Patterns and High
Availability").
"""

import math
from collections import deque

from sbpair.core.retry import SERVER_BUSY_SECONDS, Backoff

BUSY = Backoff(first_seconds=1.0, most_seconds=SERVER_BUSY_SECONDS)
"""After refusals with nothing accepted between them."""
BELOW = 0.98
"""Of the pace that was refused: where the next one begins."""
RETURN_SECONDS = 20.0
"""From there back to the pace that was refused; in twice as long as much beyond it, in three times eight times."""
MOST_GROWTH = 1000.0
"""Times the pace that was refused, however long ago that was."""
GROWTH = 0.2
"""Of a rough estimate, in `RETURN_SECONDS`; in half of them an eighth of it."""
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


class Pace:
    """See the module. Times are seconds of one monotonic clock. `most_per_second`: what may be used at all."""

    def __init__(self, most_per_second: float | None = None) -> None:
        self.pauses = 0
        """How often it was refused."""
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
        bend = GROWTH if self._is_rough else 1.0 - (self._start / self._refused if beyond < 0.0 else BELOW)
        learnt = self._refused * min(MOST_GROWTH, 1.0 + bend * math.pow(beyond, 3))
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
        """How long until more may be sent."""
        pause = max(0.0, self.paused_until - now)
        if pause or self.allowance(now) or (pace := self.per_second(now)) is None:
            return pause
        return max(0.0, self._looked_at - now) + (self._step(pace) - self._tokens) / pace

    @staticmethod
    def _step(pace: float) -> float:
        return max(1.0, STEP_SECONDS * pace)
