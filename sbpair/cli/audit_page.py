"""The fleet at a glance: an audit of any number of pairs as one page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sbpair.cli.audit_shown import counted, findings_table, own_backlog, skipped_table, summary_of
from sbpair.cli.snapshots import essential_unread
from sbpair.core.audit import AuditReport, Severity
from sbpair.core.durations import format_duration
from sbpair.core.errors import SbpairError
from sbpair.core.snapshot import NamespaceSnapshot, QueueSeen, Snapshot
from sbpair.render.formats import iso_time
from sbpair.render.page import Bar, Bars, Card, Cards, Page, Section, Text, Tone
from sbpair.render.result import Column, Table

MOST_BARS = 30
_FLEET_COLUMNS = (
    Column("verdict", "Verdict"),
    Column("pair", "Pair"),
    Column("primary", "Primary"),
    Column("secondary", "Secondary"),
    Column("queues", "Backlog queues", right=True),
    Column("messages", "Messages", right=True),
    Column("dead_letter", "Dead letters", right=True),
    Column("oldest", "Oldest", right=True),
    Column("findings", "Findings"),
)
_TONES = {
    None: Tone.GOOD,
    Severity.INFO: Tone.GOOD,
    Severity.WARNING: Tone.WARN,
    Severity.ERROR: Tone.BAD,
    Severity.CRITICAL: Tone.BAD,
}

Errors = Sequence[tuple[str, SbpairError]]


@dataclass(frozen=True, slots=True)
class _Pair:
    """One pair with what the page says of it."""

    snapshot: Snapshot
    report: AuditReport

    @property
    def queues(self) -> list[QueueSeen]:
        return own_backlog(self.snapshot) or []

    @property
    def active(self) -> int:
        return sum(queue.facts.counts.active for queue in self.queues)

    @property
    def dead_letter(self) -> int:
        return sum(queue.facts.counts.dead_letter for queue in self.queues)

    @property
    def oldest_seconds(self) -> float | None:
        """Age of the oldest message when the snapshot was taken; None if there is none, or nobody looked."""
        times = [queue.peeked.oldest_enqueued_at for queue in self.queues if queue.peeked is not None]
        known = [time for time in times if time is not None]
        return max(0.0, self.snapshot.taken_at - min(known)) if known else None

    @property
    def verdict(self) -> str:
        unread = essential_unread(self.snapshot)
        if unread:
            return unread[0][1].exit_name
        worst = self.report.worst
        return worst.value if worst is not None else "ok"


def audit_page(
    reports: Sequence[AuditReport], snapshots: Sequence[Snapshot], errors: Errors, notes: Sequence[str]
) -> Page:
    """The page of an audit; pairs in the order given, then those that could not be opened."""
    pairs = [_Pair(snapshot, report) for snapshot, report in zip(snapshots, reports, strict=True)]
    skipped = skipped_table(reports)
    sections: list[Section] = [
        Cards(tuple(_figures(pairs, errors))),
        Table("Fleet", _FLEET_COLUMNS, [*map(_row, pairs), *map(_failed_row, errors)], style_key="verdict"),
        *_waiting(pairs),
        findings_table(reports, title="Findings"),
        *((skipped,) if skipped.rows else ()),
        *((Text("Notes", notes),) if notes else ()),
    ]
    taken = sorted(snapshot.taken_at for snapshot in snapshots)
    names = [report.pair for report in reports]
    return Page(
        "Audit of " + (", ".join(names) if len(names) <= 3 else f"{len(names)} pairs"),
        sections,
        lead=summary_of(reports, snapshots),
        facts=(("Taken", iso_time(taken[0]) or ""), ("Checks", str(len(reports[0].checks)))) if taken else (),
        tone=_tone(pairs, errors),
    )


def _tone(pairs: Sequence[_Pair], errors: Errors) -> Tone:
    if errors or any(essential_unread(pair.snapshot) for pair in pairs):
        return Tone.BAD
    found = [pair.report.worst for pair in pairs if pair.report.worst is not None]
    return _TONES[max(found, key=lambda severity: severity.rank, default=None)]


def _figures(pairs: Sequence[_Pair], errors: Errors) -> Iterator[Card]:
    good = sum(pair.verdict in ("ok", "info") for pair in pairs)
    total = len(pairs) + len(errors)
    yield Card("Pairs", f"{total}", f"{good} without warnings", Tone.GOOD if good == total else Tone.PLAIN)
    counts = Counter(finding.severity for pair in pairs for finding in pair.report.findings)
    grave = counts[Severity.ERROR] + counts[Severity.CRITICAL]
    yield Card("Errors", f"{grave:,}", f"{counts[Severity.CRITICAL]} critical", Tone.BAD if grave else Tone.GOOD)
    warnings = counts[Severity.WARNING]
    known = f"{counts[Severity.INFO]} only to know"
    yield Card("Warnings", f"{warnings:,}", known, Tone.WARN if warnings else Tone.GOOD)
    messages = sum(pair.active for pair in pairs)
    ages = [age for pair in pairs if (age := pair.oldest_seconds) is not None]
    oldest = f"oldest {format_duration(max(ages))}" if ages else "in backlog queues"
    yield Card("Messages waiting", f"{messages:,}", oldest, Tone.WARN if messages else Tone.GOOD)
    dead = sum(pair.dead_letter for pair in pairs)
    yield Card("Dead letters", f"{dead:,}", "of backlog queues", Tone.WARN if dead else Tone.GOOD)


def _row(pair: _Pair) -> dict[str, Any]:
    fields, known = pair.snapshot.pair, pair.snapshot.secondary.queues is not None
    there = sum(pair.snapshot.secondary.queue(path) is not None for path in fields.to_pair().backlog_paths())
    counts = Counter(finding.severity for finding in pair.report.findings)
    found = [counted(counts[severity], severity.value) for severity in reversed(Severity) if counts[severity]]
    skipped = len(pair.report.skipped)
    return {
        "verdict": pair.verdict,
        "pair": f"{fields.name} ({fields.environment})" if fields.environment else fields.name,
        "primary": _named(pair.snapshot.primary),
        "secondary": _named(pair.snapshot.secondary),
        "queues": f"{there} of {fields.backlog_queue_count}" if known else "not read",
        "messages": pair.active if known else None,
        "dead_letter": pair.dead_letter if known else None,
        "oldest": None if pair.oldest_seconds is None else format_duration(pair.oldest_seconds),
        "findings": ", ".join([*found, *([f"{skipped} skipped"] if skipped else [])]) or "none",
    }


def _named(side: NamespaceSnapshot) -> str:
    tier = side.facts.tier if side.facts else None
    return f"{side.host} ({tier})" if tier else side.host


def _failed_row(failed: tuple[str, SbpairError]) -> dict[str, Any]:
    name, error = failed
    return {"verdict": error.exit_name, "pair": name, "findings": error.message}


def _waiting(pairs: Sequence[_Pair]) -> Iterator[Bars]:
    """Where messages wait: by pair, or by queue where there is one pair only; nothing where none wait."""
    if len(pairs) == 1:
        amounts = [(queue.path, queue.facts.counts.active, queue.facts.counts.dead_letter) for queue in pairs[0].queues]
    else:
        amounts = [(pair.report.pair, pair.active, pair.dead_letter) for pair in pairs]
    filled = sorted((one for one in amounts if one[1] or one[2]), key=lambda one: -(one[1] + one[2]))
    if filled:
        left_off = len(filled) - MOST_BARS
        note = f"{left_off} more with fewer messages are not drawn." if left_off > 0 else ""
        yield Bars("Messages waiting to go home", [_bar(*one) for one in filled[:MOST_BARS]], note)


def _bar(name: str, active: int, dead: int) -> Bar:
    text = f"{active:,} + {dead:,} dead" if dead else f"{active:,}"
    return Bar(name, active + dead, text, tone=Tone.WARN if dead else Tone.PLAIN)
