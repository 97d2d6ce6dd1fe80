"""One look at a pair: which side answers, what waits in the backlog, how fast that changes, when it would be home."""

from dataclasses import dataclass
from typing import Any

from sbpair.core.durations import format_duration
from sbpair.core.entities import Tier
from sbpair.core.forecast import Forecast, of_messages
from sbpair.core.plain import to_plain

REACHABLE = "reachable"
MISSING = "missing"
WAITING = "waiting"
EMPTY = "empty"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SideLook:
    """One namespace. `state`: reachable, or the name in the exit code table of what came instead of an answer."""

    side: str
    host: str
    state: str
    tier: Tier | None = None
    answered_in_seconds: float | None = None
    error_code: str | None = None
    detail: str = ""
    hint: str = ""
    """The next step where it did not answer, a sentence."""


@dataclass(frozen=True, slots=True)
class QueueLook:
    """One backlog queue. Counts are None where they could not be read."""

    queue: str
    active: int | None = None
    dead_letter: int | None = None
    scheduled: int | None = None
    size_in_bytes: int | None = None
    oldest_enqueued_at: float | None = None
    """When the oldest message was put there, UTC epoch seconds; None if there is none or nobody could look."""
    missing: bool = False
    detail: str = ""

    @property
    def state(self) -> str:
        if self.missing:
            return MISSING
        if self.active is None:
            return WAITING if self.oldest_enqueued_at is not None else UNKNOWN
        return WAITING if self.active or self.dead_letter or self.oldest_enqueued_at is not None else EMPTY


@dataclass(frozen=True, slots=True)
class Look:
    """A pair at one moment (`taken_at`, UTC epoch seconds)."""

    pair: str
    taken_at: float
    primary: SideLook
    secondary: SideLook
    queues: tuple[QueueLook, ...]

    @property
    def active(self) -> int | None:
        """Messages waiting to go home; None if any queue's count is unknown."""
        counts = [queue.active for queue in self.queues if not queue.missing]
        if not self.queues or any(count is None for count in counts):
            return None
        return sum(count for count in counts if count is not None)

    @property
    def dead_letter(self) -> int:
        return sum(queue.dead_letter or 0 for queue in self.queues)

    @property
    def oldest_age_seconds(self) -> float | None:
        times = [queue.oldest_enqueued_at for queue in self.queues if queue.oldest_enqueued_at is not None]
        return max(0.0, self.taken_at - min(times)) if times else None

    @property
    def drain(self) -> Forecast:
        """What bringing home what waits would use, at the average size in each queue."""
        return sum((_of(queue) for queue in self.queues), Forecast())


def _of(queue: QueueLook) -> Forecast:
    if not queue.active:
        return Forecast()
    held = queue.active + (queue.dead_letter or 0) + (queue.scheduled or 0)
    return of_messages(queue.active, -(-(queue.size_in_bytes or 0) // held))


def rate_per_second(before: Look | None, after: Look) -> float | None:
    """How fast the backlog grows (above 0) or goes home (below 0); None without two counted looks."""
    if before is None or before.active is None or after.active is None:
        return None
    seconds = after.taken_at - before.taken_at
    return (after.active - before.active) / seconds if seconds > 0 else None


def empty_in_seconds(look: Look, rate: float | None) -> float | None:
    """When the backlog is empty at this rate; None if it does not shrink."""
    if not look.active or rate is None or rate >= 0:
        return None
    return look.active / -rate


def outlook(look: Look, rate: float | None) -> str:
    """What will become of the backlog, in one sentence."""
    if look.active is None:
        return "How much waits is not known."
    if not look.active:
        return "Nothing waits to go home."
    age = look.oldest_age_seconds
    oldest = f", the oldest since {format_duration(age)}" if age is not None else ""
    waiting = f"{look.active:,} message(s) wait to go home{oldest}"
    left = empty_in_seconds(look, rate)
    if left is not None and rate is not None:
        return f"{waiting}; {-rate:,.1f}/s go home: empty in about {format_duration(left)}."
    if rate:
        return f"{waiting}; {rate:,.1f}/s more come in."
    return f"{waiting}; none goes home{'' if rate is None else ' at the moment'}. Bring them: sbpair drain {look.pair}"


def to_dict(look: Look, rate: float | None) -> dict[str, Any]:
    """The look as data, with what follows from it."""
    plain: dict[str, Any] = to_plain(look)
    for side in ("primary", "secondary"):
        seconds = plain[side].pop("answered_in_seconds")
        plain[side]["answered_in_ms"] = None if seconds is None else round(seconds * 1000, 1)
    for described, queue in zip(plain["queues"], look.queues, strict=True):
        described["state"] = queue.state
    return plain | {
        "active": look.active,
        "dead_letter": look.dead_letter,
        "oldest_age_seconds": look.oldest_age_seconds,
        "rate_per_second": rate,
        "empty_in_seconds": empty_in_seconds(look, rate),
    }
