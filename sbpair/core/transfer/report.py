"""What became of the messages of a drain or syphon: one list of counters.

The fields of `DrainReport` are that list. Sums over several runs, the JSON and its schema, metrics and table rows are
all read off the fields' metadata; a new counter is a new line here and nothing else.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sbpair.core.errors import ServiceError


class Kind(StrEnum):
    """How a counter is added up over several runs."""

    COUNT = "count"
    BY_NAME = "by name"
    """(name, number) pairs, added up name by name."""
    LAST = "last"
    """Only the last run's is still so."""


def _count(what: str, *, metric: str | None = None, row: str | None = None, last: bool = False) -> dict[str, Any]:
    """`row`: what a line of the table calls it; None: the table has no line for it."""
    return {"kind": Kind.LAST if last else Kind.COUNT, "what": what, "metric": metric, "row": row, "number": True}


def _by_name(row: str) -> dict[str, Any]:
    return {"kind": Kind.BY_NAME, "row": row}


Named = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Left:
    """Messages that are still in the backlog, and why."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueFailure:
    """A queue that could not be emptied because it could not be read."""

    queue: str
    error: ServiceError


@dataclass(frozen=True, slots=True)
class LockedQueue:
    """A queue that was waited for: its next message was locked by another receiver, which was not overtaken."""

    queue: str
    until: float
    """When that lock ends at the latest, UTC epoch seconds, unless its holder renews it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What became of the messages. In a dry run: what would become of them."""

    forwarded: int = field(
        default=0,
        metadata=_count("Messages accepted where they were sent in this run.", metric="sbpair_forwarded_messages"),
    )
    forwarded_bytes: int = field(default=0, metadata=_count("Their size."))
    completed: int = field(default=0, metadata=_count("Of these, completed in their backlog queue."))
    already_forwarded: int = field(
        default=0,
        metadata=_count(
            "Sent by an earlier attempt; completed now without being sent again.",
            metric="sbpair_already_forwarded_messages",
            row="sent before, completed now",
        ),
    )
    uncompleted: int = field(
        default=0, metadata=_count("Sent, but not confirmed as completed: they come again with the same id.", last=True)
    )
    dead_lettered: int = field(
        default=0, metadata=_count("Messages dead-lettered in this run.", metric="sbpair_dead_lettered_messages")
    )
    released: int = field(default=0, metadata=_count("Messages received and released again."))
    pings: int = field(default=0, metadata=_count("Ping messages completed.", row="ping messages completed"))
    locks_lost: int = field(default=0, metadata=_count("Locks that ran out while a message was held."))
    per_destination: Named = field(default=(), metadata=_by_name(""))
    dead_letter_reasons: Named = field(default=(), metadata=_by_name("dead-lettered"))
    original_faults: Named = field(default=(), metadata=_by_name("was dead-lettered for"))
    """Of messages sent on from a dead-letter queue: why they had been there."""
    left: tuple[Left, ...] = ()
    failures: tuple[QueueFailure, ...] = ()
    confirmed_empty: bool = False
    """The part of the queues that it was asked about holds nothing: a browse and the counts, where they could be had,
    say so. Whether the whole backlog is empty is another question: `core.inspection.backlog`."""
    ended_by: str = "empty"
    """`empty` (nothing more to do), `stop`, `time`, `count`."""
    archive: Path | None = None
    dry_run: bool = False
    locked: tuple[LockedQueue, ...] = ()
    """Queues whose next message another receiver had locked when the run ended."""
    unchecked: tuple[str, ...] = ()
    """Of a dry run: destinations of which nobody could say whether they are full or take sessions only."""
    seconds: float = 0.0


def fields_of(kind: Kind) -> Iterator["dataclasses.Field[Any]"]:
    """Fields that are added up in this way."""
    return (one for one in dataclasses.fields(DrainReport) if one.metadata.get("kind", Kind.LAST) is kind)


def numbers() -> Iterator["dataclasses.Field[Any]"]:
    """All fields that are plain numbers of messages or bytes."""
    return (one for one in dataclasses.fields(DrainReport) if one.metadata.get("number"))


def together(reports: Iterable[DrainReport], *, seconds: float) -> DrainReport:
    """Several runs as one: sums; what was left and could not be read is the last one's."""
    runs = list(reports)
    if not runs:
        return DrainReport(seconds=seconds, ended_by="stop")
    totals: dict[str, Any] = {one.name: sum(getattr(run, one.name) for run in runs) for one in fields_of(Kind.COUNT)}
    for one in fields_of(Kind.BY_NAME):
        count: Counter[str] = Counter()
        for run in runs:
            count.update(dict(getattr(run, one.name)))
        totals[one.name] = tuple(sorted(count.items()))
    return dataclasses.replace(runs[-1], **totals, seconds=seconds, confirmed_empty=False, ended_by="stop")


def as_data(report: DrainReport) -> dict[str, Any]:
    """The report for JSON."""
    data = {one.name: getattr(report, one.name) for one in numbers()}
    data |= {one.name: dict(getattr(report, one.name)) for one in fields_of(Kind.BY_NAME)}
    return data | {
        "dry_run": report.dry_run,
        "left": {one.reason: one.count for one in report.left},
        "failures": [
            {"queue": one.queue, "code": one.error.code, "message": one.error.message} for one in report.failures
        ],
        "unchecked": list(report.unchecked),
        "locked": [{"queue": one.queue, "until": one.until} for one in report.locked],
        "ended_by": report.ended_by,
        "archive": None if report.archive is None else str(report.archive),
        "seconds": round(report.seconds, 3),
    }
