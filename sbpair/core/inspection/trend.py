"""Audits over time: how backlogs grow and when they are full, which findings come and go.

The history is what `sbpair audit --history DIR` appends: one line an audit and pair, a few thousand lines after a year
of hourly audits. A finding that flaps was there in one audit and gone in the next, several times over; an audit that
could not run its check says nothing about it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from sbpair.core.durations import format_duration
from sbpair.core.entities import capacity_bytes
from sbpair.core.errors import UsageError
from sbpair.core.inspection import audit as checks
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.serialization import AS_TIME, HIDDEN, published, rounded, utc_time
from sbpair.core.words import counted

QUEUE_CAPACITY_BYTES: Final = capacity_bytes(DOCUMENTED_SETTINGS)
"""Size of a backlog queue ("Paired Namespaces: Implementation Details and Cost")."""
FLAPPING_CHANGES: Final = 3
"""So often come or gone, and a finding flaps."""
SOON_SECONDS: Final = 7 * 86_400
"""A queue that is full within this time is worth a note."""
COUNTS: Final = ("active", "dead_letter", "scheduled", "size_bytes")


@dataclass(frozen=True, slots=True)
class Audit:
    """One line of a history. `at`: UTC epoch seconds."""

    pair: str
    at: float
    findings: Mapping[str, int]
    """Messages or queues concerned, by code of the finding."""
    skipped: frozenset[str]
    """Codes of the checks that could not run."""
    queues: Mapping[str, Mapping[str, int]] | None
    """Counts (`active`, `dead_letter`, `scheduled`, `size_bytes`) by queue; None: the queues could not be read."""


# What `sbpair pipeline trend -o json` prints.


@dataclass(frozen=True, slots=True)
class Reading:
    """What was in the pair's backlog queues at one audit; None: not known."""

    pair: str
    at: float = field(metadata=AS_TIME)
    active: int | None
    dead_letter: int | None
    scheduled: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One queue over time. The rates are the slopes of the straight line through all readings (least squares)."""

    pair: str
    queue: str
    readings: int
    first_at: float = field(metadata=AS_TIME)
    last_at: float = field(metadata=AS_TIME)
    active_first: int
    active: int
    dead_letter: int
    size_bytes: int
    messages_per_hour: float = field(metadata=rounded(1))
    bytes_per_hour: int
    seconds_until_full: float | None
    """At that rate; None if it does not grow."""

    @published
    def full_in(self) -> str | None:
        return None if self.seconds_until_full is None else format_duration(self.seconds_until_full)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSeen:
    """One kind of finding of a pair over time."""

    pair: str
    code: str
    open: bool = field(metadata=HIDDEN)
    """Whether the last audit that looked has it."""
    latest: int
    most: int
    seen_in: int = field(metadata=HIDDEN)
    audits: int = field(metadata=HIDDEN)
    """Those that ran its check."""
    first_seen: float | None = field(metadata=AS_TIME)
    last_seen: float | None = field(metadata=AS_TIME)
    changes: int
    """How often it came or went."""

    @property
    def flaps(self) -> bool:
        return self.changes >= FLAPPING_CHANGES

    @published
    def state(self) -> Literal["open", "gone", "flapping"]:
        return "flapping" if self.flaps else "open" if self.open else "gone"

    @published
    def seen(self) -> str:
        return f"{self.seen_in} of {self.audits}"

    @published
    def title(self) -> str:
        """Of a check of this release; a history may hold codes of others."""
        try:
            return checks.explain(self.code).title
        except UsageError:
            return ""


@dataclass(frozen=True, slots=True)
class Trend:
    readings: tuple[Reading, ...]
    queues: tuple[Growth, ...]
    """The most urgent first."""
    findings: tuple[FindingSeen, ...]
    """Open ones first, then those that changed most."""

    def notes(self) -> Iterator[str]:
        for queue in self.queues:
            seconds = queue.seconds_until_full
            if seconds is not None and seconds < SOON_SECONDS:
                yield f"{queue.queue} is full in {format_duration(seconds)} at the present rate."
        for one in self.findings:
            if one.flaps:
                yield f"{one.code} of {one.pair} came or went {one.changes} times."
        if blind := sum(one.active is None for one in self.readings):
            yield f"What was in the queues is unknown for {counted(blind, 'audit')}: they could not be read."

    def summary(self) -> str:
        times = [utc_time(one.at).strftime("%Y-%m-%d %H:%M") for one in self.readings]
        kinds = counted(sum(one.open for one in self.findings), "kind")
        return (
            f"{counted(len(times), 'audit')} from {min(times)} to {max(times)} UTC; {kinds} of findings open, "
            f"{sum(one.flaps for one in self.findings)} flapping."
        )


def trend(history: Sequence[Audit]) -> Trend:
    return Trend(readings(history), growth(history), findings(history))


def readings(history: Iterable[Audit]) -> tuple[Reading, ...]:
    """Per audit: what was in the pair's backlog queues."""

    def summed(one: Audit) -> list[int | None]:
        if one.queues is None:
            return [None] * len(COUNTS)
        return [sum(queue[name] for queue in one.queues.values()) for name in COUNTS]

    return tuple(Reading(one.pair, one.at, *summed(one)) for one in history)


def growth(history: Iterable[Audit]) -> tuple[Growth, ...]:
    """Per queue: what it held first and last, how fast it grows, when it is full; the most urgent first."""
    series: dict[tuple[str, str], list[tuple[float, Mapping[str, int]]]] = {}
    for one in history:
        for queue, counts in (one.queues or {}).items():
            series.setdefault((one.pair, queue), []).append((one.at, counts))
    grown = [_grown(pair, queue, points) for (pair, queue), points in series.items()]

    def urgency(one: Growth) -> tuple[Any, ...]:
        left = one.seconds_until_full
        return left is None, left or 0.0, -one.active, one.pair, one.queue

    return tuple(sorted(grown, key=urgency))


def _grown(pair: str, queue: str, points: Sequence[tuple[float, Mapping[str, int]]]) -> Growth:
    (first_at, first), (last_at, last) = points[0], points[-1]
    bytes_per_second = _slope([(at, counts["size_bytes"]) for at, counts in points])
    room = QUEUE_CAPACITY_BYTES - last["size_bytes"]
    return Growth(
        pair=pair,
        queue=queue,
        readings=len(points),
        first_at=first_at,
        last_at=last_at,
        active_first=first["active"],
        active=last["active"],
        dead_letter=last["dead_letter"],
        size_bytes=last["size_bytes"],
        messages_per_hour=_slope([(at, counts["active"]) for at, counts in points]) * 3600,
        bytes_per_hour=round(bytes_per_second * 3600),
        seconds_until_full=max(0.0, room / bytes_per_second) if bytes_per_second > 0 else None,
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through the points, a second; 0 where all were read at the same time."""
    middle = sum(at for at, _ in points) / len(points)
    average = sum(value for _, value in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (value - average) for at, value in points) / spread if spread else 0.0


def findings(history: Sequence[Audit]) -> tuple[FindingSeen, ...]:
    """Per pair and code of a finding: in how many audits, first and last, and how often it came or went; open ones
    first, then those that changed most."""
    codes = sorted({(one.pair, code) for one in history for code in one.findings})
    found = (_seen(pair, code, [one for one in history if one.pair == pair]) for pair, code in codes)
    return tuple(sorted((one for one in found if one is not None), key=lambda one: (not one.open, -one.changes)))


def _seen(pair: str, code: str, audits: Iterable[Audit]) -> FindingSeen | None:
    checked = [(one.at, one.findings.get(code, 0)) for one in audits if code not in one.skipped]
    if not checked:
        return None
    at = [when for when, count in checked if count > 0]
    return FindingSeen(
        pair=pair,
        code=code,
        open=checked[-1][1] > 0,
        latest=checked[-1][1],
        most=max(count for _, count in checked),
        seen_in=len(at),
        audits=len(checked),
        first_seen=min(at, default=None),
        last_seen=max(at, default=None),
        changes=sum((before > 0) != (after > 0) for (_, before), (_, after) in pairwise(checked)),
    )
