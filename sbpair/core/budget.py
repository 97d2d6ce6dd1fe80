"""How the time a caller gives one send is shared between the primary and the backlog.

The retired library let the primary attempt use up everything, so that the backlog was never tried. Here a part is set
aside that the primary attempt can never touch.
"""

from dataclasses import dataclass

from sbpair.core.errors import UsageError

DEFAULT_SEND_SECONDS = 60.0
"""The service's recommended time-out (seed 003)."""
MIN_PARTITIONED_SEND_SECONDS = 60.0
"""A partitioned entity needs more than 15 s to reach its partitions; 60 s are recommended (seed 003)."""
RESERVED_SHARE = 0.25
MAX_RESERVED_SECONDS = 15.0
MIN_ATTEMPT_SECONDS = 0.05
"""Less than this is not worth an attempt."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The time of one send, from `started_at` (monotonic seconds) on."""

    started_at: float
    total_seconds: float

    @classmethod
    def of(cls, timeout_seconds: float | None, *, partitioned: bool, now: float) -> "Budget":
        """The caller's time; the default when none is given; at least 60 s for a partitioned entity.

        Raises:
            UsageError: a time-out that is not positive.
        """
        total = DEFAULT_SEND_SECONDS if timeout_seconds is None else timeout_seconds
        if not total > 0:
            raise UsageError(f"A time-out is more than 0 seconds, not {total:g}.")
        return cls(now, max(total, MIN_PARTITIONED_SEND_SECONDS) if partitioned else total)

    @property
    def reserved_seconds(self) -> float:
        """What only the backlog attempt may use."""
        return min(self.total_seconds * RESERVED_SHARE, MAX_RESERVED_SECONDS)

    def left(self, now: float) -> float:
        return max(0.0, self.started_at + self.total_seconds - now)

    def for_primary(self, now: float) -> float:
        """Time an attempt on the primary may take."""
        return max(0.0, self.left(now) - self.reserved_seconds)

    def for_backlog(self, now: float, *, alternatives: int) -> float:
        """Time an attempt on one backlog queue may take: half of the rest while there are other queues to try."""
        left = self.left(now)
        return left / 2 if alternatives > 0 else left

    def allows_pause(self, seconds: float, left_seconds: float) -> bool:
        """Whether after a pause of `seconds` enough of `left_seconds` remains for another attempt."""
        return left_seconds - seconds >= MIN_ATTEMPT_SECONDS
