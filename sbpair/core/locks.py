"""Lock expiries on the local clock, right even when the local clock is wrong."""

DEFAULT_LOCK_SECONDS = 60.0
"""Lock duration of the documented backlog queues (seed 000)."""


class LockClock:
    """Turns `locked until`, told in the broker's time, into a deadline on the local monotonic clock.

    A message that has just been handed out has its whole lock ahead of it. The freshest one seen therefore shows how
    far the two wall clocks are apart, which minutes of skew on a laptop or container would otherwise turn into
    "already expired" (never sent) or "still valid" (sent too late).

    Args:
        lock_seconds: the queue's lock duration.
    """

    def __init__(self, lock_seconds: float = DEFAULT_LOCK_SECONDS) -> None:
        self.lock_seconds = lock_seconds
        self._most_left: float | None = None

    def deadline(self, locked_until: float | None, *, now_utc: float, now: float) -> float:
        """Monotonic time at which the lock runs out. A lock without a stated end lasts its whole duration from now."""
        if locked_until is None:
            return now + self.lock_seconds
        left = locked_until - now_utc
        if self._most_left is None or left > self._most_left:
            self._most_left = left
        return now + min(self.lock_seconds, left + self.lock_seconds - self._most_left)
