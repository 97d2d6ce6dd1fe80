"""The status of a pair: which side answers, what waits in the backlog, how fast that changes, when it will be empty."""

from dataclasses import dataclass, field

from sbpair.core.backlog import Advice, Backlog, QueueContents, Verdict, advice, headline, verdict, waiting_sentence
from sbpair.core.durations import format_duration
from sbpair.core.entities import Tier
from sbpair.core.forecast import Forecast, of_messages
from sbpair.core.serialization import INLINED, rounded

REACHABLE = "reachable"
LIMITED = "limited"
"""State of a side that answers, with a credential that may not manage it."""
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class SideStatus:
    """One namespace. `state`: reachable, limited, or the exit code table's name of what came instead of an answer."""

    side: str
    host: str
    state: str
    tier: Tier | None = None
    answered_in_ms: float | None = field(default=None, metadata=rounded(1))
    error_code: str | None = None
    detail: str = ""
    hint: str = ""
    """The next step where it did not answer, a sentence."""
    label: str = ""
    """Its configured name."""


@dataclass(frozen=True, slots=True)
class PairStatus:
    """A pair at one moment (`taken_at`, UTC epoch seconds)."""

    pair: str
    taken_at: float
    primary: SideStatus
    secondary: SideStatus
    backlog: Backlog
    environment: str | None = None

    @property
    def drain(self) -> Forecast:
        """What moving all that waits to the primary would use, at the average size in each queue."""
        return sum((_of(queue) for queue in self.backlog.queues), Forecast())


def _of(queue: QueueContents) -> Forecast:
    if not queue.active:
        return Forecast()
    held = queue.active + (queue.deferred or 0) + (queue.dead_letter or 0) + (queue.scheduled or 0)
    return of_messages(queue.active, -(-(queue.size_in_bytes or 0) // held))


def rate_per_second(before: PairStatus | None, after: PairStatus) -> float | None:
    """How fast the backlog grows (above 0) or shrinks (below 0); None without two counted samples."""
    if before is None or before.backlog.active is None or after.backlog.active is None:
        return None
    seconds = after.taken_at - before.taken_at
    return (after.backlog.active - before.backlog.active) / seconds if seconds > 0 else None


def empty_in_seconds(status: PairStatus, rate: float | None) -> float | None:
    """When no active message is left at this rate; None if they do not become fewer."""
    if not status.backlog.active or rate is None or rate >= 0:
        return None
    return status.backlog.active / -rate


def outlook(status: PairStatus, rate: float | None) -> str:
    """What is in the backlog and what becomes of it, the most urgent thing first, in one or two sentences."""
    if verdict(status.backlog) is not Verdict.WAITING:
        return headline(status.backlog)
    waiting = waiting_sentence(status.backlog)
    left = empty_in_seconds(status, rate)
    if left is not None and rate is not None:
        return f"{waiting} {-rate:,.1f} a second are leaving: none waits in about {format_duration(left)}."
    if rate:
        return f"{waiting} {rate:,.1f} a second are added."
    if status.primary.state == UNREACHABLE:
        return f"{waiting} The primary cannot be reached; drain when it is back: sbpair drain {status.pair}"
    unchanged = " No change." if rate == 0 else ""
    return f"{waiting}{unchanged} Run: sbpair drain {status.pair}"


def further(status: PairStatus) -> tuple[Advice, ...]:
    """What else there is to do, after what `outlook` says."""
    return advice(status.backlog)[1:]


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A status with what follows from it, as `status -o json` prints it."""

    primary: SideStatus
    secondary: SideStatus
    environment: str | None
    backlog: Backlog = field(metadata=INLINED)
    rate_per_second: float | None
    """See `rate_per_second`."""
    empty_in_seconds: float | None
    drain: Forecast
    """What moving all that waits to the primary would use."""


def report(before: PairStatus | None, after: PairStatus) -> StatusReport:
    """The last of two samples; without a first one no rate is known."""
    rate = rate_per_second(before, after)
    return StatusReport(
        after.primary,
        after.secondary,
        after.environment,
        after.backlog,
        rate,
        empty_in_seconds(after, rate),
        after.drain,
    )
