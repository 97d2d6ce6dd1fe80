"""How fast a namespace may be sent to, learnt from its refusals: they say that a budget is used up, not its size.

Nothing is bounded until the namespace answers for the first time that it is too busy. What it had accepted lately is
the first estimate of its budget. From then on messages go out evenly, a little slower than that; the pace creeps up,
since others may have used a part of the budget, until the next refusal corrects it. Everything pauses after a refusal:
for a second, and twice as long each time that nothing was accepted since, up to the 10 seconds that the documents
advise ("Asynchronous Messaging Patterns and High Availability"). Where the pace had held until then, a refusal says
that the end of one second was reached a little early, and a quarter of that is enough.
"""

import math
from collections import deque

from sbpair.core.retry import SERVER_BUSY_SECONDS, Backoff

BUSY = Backoff(first_seconds=1.0, most_seconds=SERVER_BUSY_SECONDS)
"""After refusals with nothing accepted between them."""
BELOW = 0.985
"""Of the estimate: where the pace begins after a refusal."""
SURE_WAIT = 0.25
"""Of the pause, after a refusal at a pace that had held for a while: only the rest of a second is used up."""
LONG_WINDOW_SECONDS = 30.0
"""Where a debt of many seconds is paid off, what was accepted in so long does."""
AGAIN = 0.5
"""Of the pace, at the least, if it was refused again within the short window."""
CREEP_PER_SECOND = 0.0004
"""The pace's growth for a minute, as a share of what it is."""
UNSURE_CREEP_PER_SECOND = 0.05
"""The same as long as the estimate comes from a burst or from refusals in a row."""
CREEP_SECONDS = 60.0
DOUBLE_SECONDS = 30.0
"""A minute without a refusal means that there is much more room: from then on the pace doubles in so long."""
SAVED_SECONDS = 0.25
"""So much can be saved up: budgets are counted by the second."""
BOUNDED_SAVED_SECONDS = 0.1
"""The same where the rest of a budget is left to others: it is theirs in every second."""
STEP_SECONDS = 0.05
"""Messages go out as many at a time as come up in so long: one by one they would cost much more."""
WINDOW_SECONDS = 3.0
"""What was accepted in so long tells the budget."""


class Pace:
    """See the module. Times are seconds of one monotonic clock. `most_per_second`: what may be used at all."""

    def __init__(self, most_per_second: float | None = None) -> None:
        self._most = most_per_second
        self._accepted: deque[tuple[float, int]] = deque()
        self._refusals = 0
        self._start: float | None = None
        self._start_at = 0.0
        self._sure = False
        self._tokens = 0.0
        self._looked_at = 0.0

    def per_second(self, now: float) -> float | None:
        """Messages a second that may be sent; None for any number, as long as nothing was refused."""
        if self._start is None:
            return self._most
        seconds = now - self._start_at
        creep = CREEP_PER_SECOND if self._sure else UNSURE_CREEP_PER_SECOND
        grown = math.pow(1.0 + creep, min(max(0.0, seconds), CREEP_SECONDS))
        doublings: float = min(30.0, max(0.0, seconds - CREEP_SECONDS) / DOUBLE_SECONDS)
        learnt: float = self._start * grown * math.pow(2.0, doublings)
        return learnt if self._most is None else min(learnt, self._most)

    def accepted(self, messages: int, now: float) -> None:
        """The namespace took so many."""
        self._refusals = 0
        self._accepted.append((now, messages))
        while self._accepted[0][0] < now - LONG_WINDOW_SECONDS:
            self._accepted.popleft()

    def refused(self, now: float) -> float:
        """It was too busy; the seconds to wait before the next try. Refusals of what was under way together are one:
        ask for no more than the first one's."""
        self._refusals += 1
        pace, measured = self.per_second(now), self._measured(now, WINDOW_SECONDS)
        if self._start is None or pace is None:
            pace = measured
        elif now - self._start_at < WINDOW_SECONDS:
            # Too fast by much, or a debt of the seconds before: a batch is taken whole, however little is left.
            pace = max(AGAIN * pace, min(pace, self._measured(now, LONG_WINDOW_SECONDS) or 0.0))
            self._sure = False
        elif measured is not None:
            pace = min(pace, measured)
            self._sure = True
        if pace is not None:
            self._start, self._start_at = max(1.0, BELOW * pace), now
        wait = BUSY.seconds(self._refusals) * (SURE_WAIT if self._sure else 1.0)
        self._tokens, self._looked_at = 0.0, now + wait
        return wait

    def _measured(self, now: float, window_seconds: float) -> float | None:
        """Messages a second that were accepted lately; None if there were none."""
        lately = [(at, messages) for at, messages in self._accepted if at >= now - window_seconds]
        if not lately:
            return None
        return sum(messages for _, messages in lately) / max(1.0, now - lately[0][0])

    def allowance(self, now: float) -> int | None:
        """Messages that may be sent now; None without a bound."""
        if (pace := self.per_second(now)) is None:
            return None
        passed = max(0.0, now - self._looked_at)
        saved = SAVED_SECONDS if self._most is None else BOUNDED_SAVED_SECONDS
        self._tokens = min(max(1.0, saved * pace), self._tokens + passed * pace)
        self._looked_at = max(now, self._looked_at)
        return int(self._tokens + 1e-9) if self._tokens + 1e-9 >= self._step(pace) else 0

    def take(self, messages: int) -> None:
        """So many were sent."""
        self._tokens -= messages

    def seconds_until_some(self, now: float) -> float:
        """How long until more may be sent."""
        if self.allowance(now) or (pace := self.per_second(now)) is None:
            return 0.0
        return max(0.0, self._looked_at - now) + (self._step(pace) - self._tokens) / pace

    @staticmethod
    def _step(pace: float) -> float:
        return max(1.0, STEP_SECONDS * pace)
