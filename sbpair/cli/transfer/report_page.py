"""A drain as a page, for whoever reads of the incident later: what waited, where it went, what is left and why."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sbpair.cli.transfer.report import Drained
from sbpair.core.durations import format_duration
from sbpair.core.inspection.backlog import Backlog
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.serialization import spoken_time
from sbpair.core.words import counted
from sbpair.render.page import Bar, Bars, Card, Cards, Page, Section, Text, Tone, number
from sbpair.render.result import Column, CommandResult, Table

_BAD = (Exit.FAILED, Exit.DENIED, Exit.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """The ledger as it was after the run, so that it can be told later whether it is still the same."""

    path: Path
    lines: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "LedgerFile":
        """Read the file once.

        Raises:
            OSError: it cannot be read.
        """
        digest, lines = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                lines += block.count(b"\n")
        return cls(path, lines, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Course:
    """What a run's report does not know: `began_at` in UTC epoch seconds, and what each queue held before it."""

    began_at: float
    before: Mapping[str, int] = field(default_factory=dict)
    """Messages that the run was to move, by queue, as they were counted at its beginning."""
    ledger: LedgerFile | None = None


def page_of(pair: Pair, drained: Drained, result: CommandResult, course: Course) -> Page:
    """The page of a drain that has ended, well or not."""
    return Page(
        f"{'Dry run of a drain' if drained.report.dry_run else 'Drain'} of {pair.name}",
        tuple(_sections(drained, result, course)),
        lead=result.summary,
        facts=tuple(_facts(pair, drained, course)),
        tone=Tone.GOOD if result.exit is Exit.OK else Tone.BAD if result.exit in _BAD else Tone.WARN,
    )


def _facts(pair: Pair, drained: Drained, course: Course) -> Iterator[tuple[str, str]]:
    yield "From", pair.secondary.label
    yield "To", pair.primary.label
    if pair.environment:
        yield "Environment", pair.environment
    yield "Began", spoken_time(course.began_at)
    yield "Took", format_duration(drained.report.seconds)
    if course.ledger is not None:
        yield "Ledger", f"{course.ledger.path}, {counted(course.ledger.lines, 'line')}"
        yield "SHA-256 of the ledger", course.ledger.sha256


def _sections(drained: Drained, result: CommandResult, course: Course) -> Iterator[Section]:
    report, backlog = drained.report, drained.backlog
    yield Cards(tuple(_cards(drained, course)))
    if result.notes:
        steps = [{"next": note} for note in result.notes]
        yield Table("What is left to do", (Column("next", "Next", advice=True),), steps)
    if report.per_destination:
        most_first = sorted(report.per_destination, key=lambda one: (-one[1], one[0]))
        yield Bars("Where messages went", tuple(Bar(name, messages) for name, messages in most_first))
    why = (Column("why", "Why"), Column("messages", "Messages", right=True))
    if report.dead_letter_reasons:
        dead = [{"why": reason, "messages": messages} for reason, messages in report.dead_letter_reasons]
        yield Table("Dead-lettered in this run", why, dead)
    left = [{"why": one.reason, "messages": one.count} for one in report.left]
    if left:
        yield Table("Left in the backlog", why, left)
    rows = list(_queues(backlog, course))
    if rows:
        yield Table("Backlog queues", _QUEUE_COLUMNS, rows)
    yield replace(result.tables[0], title="Everything that was counted")
    if not course.before:
        yield Text("What is not known", ("The queues could not be counted before the run; that needs Manage.",))


_QUEUE_COLUMNS = (
    Column("queue", "Queue"),
    Column("before", "To move, before", right=True),
    Column("active", "Active, after", right=True),
    Column("dead_letter", "Dead letters, after", right=True),
    Column("deferred", "Deferred, after", right=True),
)


def _cards(drained: Drained, course: Course) -> Iterator[Card]:
    report, backlog = drained.report, drained.backlog
    if course.before:
        yield Card("To move, before", number(sum(course.before.values())), f"in {counted(len(course.before), 'queue')}")
    taken = "archived" if report.archive is not None else "accepted at their destinations"
    yield Card("Moved", number(report.forwarded), taken, Tone.GOOD if report.forwarded else Tone.PLAIN)
    yield Card("Dead-lettered", number(report.dead_lettered), "", Tone.WARN if report.dead_lettered else Tone.PLAIN)
    if backlog is None or backlog.active is None:
        yield Card("Active, after", "unknown", "it was not counted", Tone.WARN)
    else:
        yield Card("Active, after", number(backlog.active), "", Tone.WARN if backlog.active else Tone.GOOD)


def _queues(backlog: Backlog | None, course: Course) -> Iterator[dict[str, Any]]:
    """Every queue that either look has seen; what was not counted is said to be unknown."""
    after = {one.queue: one for one in backlog.queues if not one.missing} if backlog is not None else {}
    for path in dict.fromkeys((*course.before, *after)):
        seen = after.get(path)
        found = {name: getattr(seen, name, None) for name in ("active", "dead_letter", "deferred")}
        known = {name: "unknown" if value is None else value for name, value in found.items()}
        yield {"queue": path, "before": course.before.get(path, "not counted"), **known}
