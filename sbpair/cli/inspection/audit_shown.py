"""An audit's findings as rows, as checks for monitoring formats, as metrics, and as a line of history."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpair.cli.inspection.snapshots import essential_unread
from sbpair.core.access import spoken_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import SbpairError
from sbpair.core.inspection import audit
from sbpair.core.inspection.audit import AuditReport, Severity
from sbpair.core.inspection.snapshot import NamespaceSnapshot, QueueSeen, Snapshot
from sbpair.core.serialization import AS_TIME, spoken_time
from sbpair.core.words import listed
from sbpair.render.page import Bar, Bars, Card, Cards, Finding, Findings, Page, Section, Text, Tone
from sbpair.render.result import Check, Column, Metric, Table
from sbpair.render.result import Severity as Shown

FINDING_COLUMNS = (
    Column("severity", "Severity"),
    Column("code", "Code"),
    Column("pair", "Pair"),
    Column("count", "Count", right=True),
    Column("subject", "Subject"),
    Column("message", "Finding"),
    Column("remedy", "What to do", advice=True),
)
SKIPPED_COLUMNS = (Column("pair", "Pair"), Column("code", "Code"), Column("reason", "Skipped, because"))


def findings_table(reports: Sequence[AuditReport], *, each: bool = False, lines: bool = False) -> Table:
    """Findings of all pairs, the worst first; one row for those of one check, or with `each` one row each. With `lines`
    each step of what to do is a line, so that a terminal keeps commands whole."""
    rows = [
        {
            "severity": some.first.severity.value,
            "code": some.first.code,
            "pair": report.pair,
            "count": len(some.findings),
            "subject": some.subject,
            "message": some.message,
            "remedy": some.remedy if lines else audit.in_one_line(some.remedy),
        }
        for report in reports
        for some in ([audit.Likes((one,)) for one in report.findings] if each else audit.alike(report.findings))
    ]
    rows.sort(key=lambda row: -Severity(str(row["severity"])).rank)
    return Table("", FINDING_COLUMNS, rows, style_key="severity")


def skipped_table(reports: Sequence[AuditReport]) -> Table:
    """What was not checked, one row for each reason: an unreachable namespace is the reason of twenty checks."""
    rows = []
    for report in reports:
        by_reason: dict[str, list[str]] = {}
        for one in report.skipped:
            by_reason.setdefault(one.reason, []).append(one.code)
        rows += [
            {"pair": report.pair, "code": ", ".join(codes), "reason": reason} for reason, codes in by_reason.items()
        ]
    return Table("Not checked", SKIPPED_COLUMNS, rows)


def calls_of(snapshots: Sequence[Snapshot]) -> str:
    """`24 management calls, 240 throttling credits.`"""
    management = counted(sum(one.calls.management for one in snapshots), "management call")
    return f"{management}, {counted(sum(one.calls.throttling_credits for one in snapshots), 'throttling credit')}."


def summary_of(reports: Sequence[AuditReport], snapshots: Sequence[Snapshot]) -> str:
    """`497 messages wait in 8 queues, the oldest for 10s. 2 errors, 1 warning in 3 pairs; 4 checks skipped.` What waits
    comes first: a check that calls young messages no more than a note must not hide them behind an "OK"."""
    pairs = [_Pair(snapshot, report) for snapshot, report in zip(snapshots, reports, strict=True)]
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    found = [counted(counts[severity], severity.value) for severity in reversed(Severity) if counts[severity]]
    skipped = sum(len(report.skipped) for report in reports)
    ignored = sum(report.ignored for report in reports)
    parts = [
        f"{', '.join(found) or 'No findings'} in {counted(len(reports), 'pair')}",
        f"{counted(skipped, 'check')} skipped" if skipped else "",
        f"{counted(ignored, 'finding')} ignored" if ignored else "",
    ]
    found_of_all = "; ".join(part for part in parts if part) + "."
    return " ".join(one for one in (_waiting_sentence(pairs), found_of_all) if one)


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`, `3 info`."""
    return f"{number:,} {noun}" if number == 1 or noun in ("info", "critical") else f"{number:,} {noun}s"


def checks_of(
    reports: Sequence[AuditReport], snapshots: Sequence[Snapshot], errors: Sequence[tuple[str, SbpairError]]
) -> tuple[Check, ...]:
    """Every check with what it said, or that it found nothing; and what could not be read at all."""
    return (
        *_unreadable(snapshots, errors),
        *(check for report in reports for check in _checks(report)),
    )


def _unreadable(snapshots: Sequence[Snapshot], errors: Sequence[tuple[str, SbpairError]]) -> Iterator[Check]:
    for snapshot in snapshots:
        for host, entry in essential_unread(snapshot):
            yield Check(entry.error_code, f"{entry.subject} of {host}", Shown.UNKNOWN, entry.reason)
    for name, error in errors:
        yield Check(error.code, name, Shown.UNKNOWN, error.message)


def _checks(report: AuditReport) -> Iterator[Check]:
    for finding in report.findings:
        text = f"{finding.message} {audit.in_one_line(finding.remedy)}"
        yield Check(finding.code, finding.subject, Shown(finding.severity.value), text)
    for one in report.skipped:
        yield Check(one.code, report.pair, Shown.SKIPPED, f"Skipped, because {one.reason}")
    spoken = {finding.code for finding in report.findings} | {one.code for one in report.skipped}
    for code in report.checks:
        if code not in spoken:
            yield Check(code, report.pair, Shown.OK, audit.explain(code).title)


def metrics_of(reports: Sequence[AuditReport], snapshots: Sequence[Snapshot]) -> Iterator[Metric]:
    for report, snapshot in zip(reports, snapshots, strict=True):
        pair = ("pair", report.pair)
        counts = Counter(finding.severity for finding in report.findings)
        for severity in Severity:
            labels = (pair, ("severity", severity.value))
            yield Metric("sbpair_audit_findings", "Findings of the last audit.", counts[severity], labels)
        for code, number in sorted(Counter(finding.code for finding in report.findings).items()):
            yield Metric("sbpair_audit_check_findings", "Findings by check.", number, (pair, ("code", code)))
        skipped, calls = len(report.skipped), snapshot.calls
        yield Metric("sbpair_audit_skipped_checks", "Checks that could not run.", skipped, (pair,))
        yield Metric("sbpair_audit_management_calls", "Management calls of the audit.", calls.management, (pair,))
        yield Metric("sbpair_audit_throttling_credits", "Credits it used.", calls.throttling_credits, (pair,))
        queues = own_backlog(snapshot)
        if queues is None:
            continue
        for kind, count in _totals(queues).items():
            labels = (pair, ("kind", kind))
            yield Metric("sbpair_backlog_messages", "Messages in the pair's backlog queues.", count, labels)
        size = sum(queue.facts.size_in_bytes for queue in queues)
        yield Metric("sbpair_backlog_size_bytes", "Size of the pair's backlog queues.", size, (pair,))


def own_backlog(snapshot: Snapshot) -> list[QueueSeen] | None:
    """The backlog queues of the snapshot's own primary; None where the secondary's queues were not read."""
    if snapshot.secondary.queues is None:
        return None
    label = snapshot.pair.primary_label.lower()
    return [queue for name, queue in snapshot.secondary.backlog() if name.primary_label == label]


def _totals(queues: Sequence[QueueSeen]) -> dict[str, int]:
    counts = [queue.facts.counts for queue in queues]
    return {
        "active": sum(one.active for one in counts),
        "dead-letter": sum(one.dead_letter for one in counts),
        "scheduled": sum(one.scheduled for one in counts),
    }


@dataclass(frozen=True, slots=True)
class QueueThen:
    """What one backlog queue held."""

    queue: str
    active: int
    dead_letter: int
    scheduled: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One audit for trends: findings by code and severity, and the contents of every backlog queue; None where the
    queues could not be read."""

    taken_at: float = field(metadata=AS_TIME)
    pair: str
    findings: Mapping[str, int]
    severities: Mapping[str, int]
    skipped: tuple[str, ...]
    queues: tuple[QueueThen, ...] | None


def history_line(snapshot: Snapshot, report: AuditReport) -> HistoryLine:
    queues = own_backlog(snapshot)
    return HistoryLine(
        snapshot.taken_at,
        report.pair,
        Counter(finding.code for finding in report.findings),
        Counter(finding.severity.value for finding in report.findings),
        tuple(sorted({one.code for one in report.skipped})),
        None if queues is None else tuple(map(_queue_then, queues)),
    )


def _queue_then(queue: QueueSeen) -> QueueThen:
    counts = queue.facts.counts
    return QueueThen(queue.path, counts.active, counts.dead_letter, counts.scheduled, queue.facts.size_in_bytes)


# The fleet at a glance: an audit of any number of pairs as one page.

MOST_BARS = 30
MOST_HEADLINES = 3
"""Kinds of findings that the first sentence names."""
_FLEET_COLUMNS = (
    Column("verdict", "Verdict"),
    Column("pair", "Pair"),
    Column("primary", "Primary"),
    Column("secondary", "Secondary"),
    Column("queues", "Backlog queues", right=True),
    Column("messages", "Messages", right=True, counts=True),
    Column("dead_letter", "Dead letters", right=True, counts=True),
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


def _waiting_in(queue: QueueSeen) -> int:
    """Its messages of any kind but dead letters: scheduled ones wait, too."""
    return queue.facts.counts.total - queue.facts.counts.dead_letter


@dataclass(frozen=True, slots=True)
class _Pair:
    """One pair with what the page says of it."""

    snapshot: Snapshot
    report: AuditReport

    @property
    def queues(self) -> list[QueueSeen]:
        return own_backlog(self.snapshot) or []

    @property
    def known(self) -> bool:
        """Whether its backlog queues could be read; otherwise nothing is known of their messages."""
        return self.snapshot.secondary.queues is not None

    @property
    def waiting(self) -> int:
        return sum(map(_waiting_in, self.queues))

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

    @property
    def rank(self) -> int:
        """How bad it is: what is not known first."""
        if essential_unread(self.snapshot):
            return len(Severity)
        return self.report.worst.rank if self.report.worst is not None else -1


def audit_page(
    reports: Sequence[AuditReport], snapshots: Sequence[Snapshot], errors: Errors, notes: Sequence[str]
) -> Page:
    """The page of an audit; what could not be opened or read comes first, then the pairs with the worst findings."""
    pairs = [_Pair(snapshot, report) for snapshot, report in zip(snapshots, reports, strict=True)]
    skipped = skipped_table(reports)
    worst_first = sorted(pairs, key=lambda pair: (-pair.rank, -pair.waiting))
    sections: list[Section] = [
        Cards(tuple(_figures(pairs, errors))),
        Table("Fleet", _FLEET_COLUMNS, [*map(_failed_row, errors), *map(_row, worst_first)], style_key="verdict"),
        *_waiting(pairs),
        Findings("Findings", tuple(_findings(reports))),
        *((skipped,) if skipped.rows else ()),
        *((Text("Notes", notes),) if notes else ()),
    ]
    names = [report.pair for report in reports]
    return Page(
        "Audit of " + (", ".join(names) if len(names) <= 3 else f"{len(names)} pairs"),
        sections,
        lead=_lead(pairs, errors),
        facts=tuple(_facts(pairs)),
        tone=_tone(pairs, errors),
    )


def _lead(pairs: Sequence[_Pair], errors: Errors) -> str:
    """The worst first: what could not be read, what is wrong, what waits."""
    if told := " ".join(_headlines(pairs, errors)):
        return told
    noted = any(pair.report.findings for pair in pairs)
    return f"No {'errors or warnings' if noted else 'findings'}, and no message waits in a backlog queue."


def _headlines(pairs: Sequence[_Pair], errors: Errors) -> Iterator[str]:
    silent = [name for name, _ in errors] + [one.report.pair for one in pairs if essential_unread(one.snapshot)]
    if silent:
        yield f"{counted(len(silent), 'pair')} could not be read in full: {listed(silent)}."
    counts: Counter[tuple[Severity, str]] = Counter()
    for pair in pairs:
        counts.update((finding.severity, finding.code) for finding in pair.report.findings)
    grave = sorted((one for one in counts if one[0] is not Severity.INFO), key=lambda one: (-one[0].rank, one[1]))
    for severity, code in grave[:MOST_HEADLINES]:
        title = audit.explain(code).title
        times = f" ({counts[severity, code]} times)" if counts[severity, code] > 1 else ""
        yield f"{severity.value.capitalize()}: {title[0].lower()}{title[1:]}{times}."
    if len(grave) > MOST_HEADLINES:
        yield f"And {counted(len(grave) - MOST_HEADLINES, 'more kind')} of finding."
    if waiting := _waiting_sentence(pairs):
        yield waiting
        if not grave and not silent:
            yield "No errors or warnings."


def _oldest_seconds(pairs: Sequence[_Pair]) -> float | None:
    return max((age for pair in pairs if (age := pair.oldest_seconds) is not None), default=None)


def _waiting_sentence(pairs: Sequence[_Pair]) -> str:
    """`497 messages and 3 dead letters wait in 8 queues, the oldest for 10s.`; empty if none are known to wait."""
    waiting, dead = sum(pair.waiting for pair in pairs), sum(pair.dead_letter for pair in pairs)
    if not (waiting or dead):
        return ""
    queues = sum(bool(one.facts.counts.total) for pair in pairs for one in pair.queues)
    amounts = [counted(waiting, "message")] if waiting else []
    amounts += [counted(dead, "dead letter")] if dead else []
    oldest = "" if (age := _oldest_seconds(pairs)) is None else f", the oldest for {format_duration(age)}"
    verb = "waits" if waiting + dead == 1 else "wait"
    return f"{' and '.join(amounts)} {verb} in {counted(queues, 'queue')}{oldest}."


def _facts(pairs: Sequence[_Pair]) -> Iterator[tuple[str, str]]:
    if not pairs:
        return
    yield "Taken", spoken_time(min(pair.snapshot.taken_at for pair in pairs))
    yield "Checks", str(len(pairs[0].report.checks))
    if skipped := sum(len(pair.report.skipped) for pair in pairs):
        yield "Skipped", f"{skipped:,}"
    if ignored := sum(pair.report.ignored for pair in pairs):
        yield "Ignored findings", str(ignored)
    yield "Management calls", f"{sum(pair.snapshot.calls.management for pair in pairs):,}"
    yield "Throttling credits", f"{sum(pair.snapshot.calls.throttling_credits for pair in pairs):,}"


def _findings(reports: Sequence[AuditReport]) -> Iterator[Finding]:
    """The findings of all pairs, the worst first; those of one check and severity are told once."""
    together: dict[tuple[Severity, str], list[tuple[str, audit.Finding]]] = {}
    for report in reports:
        for finding in report.findings:
            together.setdefault((finding.severity, finding.code), []).append((report.pair, finding))
    for (severity, code), equal in sorted(together.items(), key=lambda one: -one[0][0].rank):
        pairs = dict.fromkeys(pair for pair, _ in equal)
        places = [(f"{pair}: {one.subject}" if len(pairs) > 1 else one.subject, one.message) for pair, one in equal]
        steps = tuple(dict.fromkeys(line for _, one in equal for line in one.remedy.splitlines()))
        where = f"{'Pair' if len(pairs) == 1 else 'Pairs'} {listed(pairs)}"
        yield Finding(severity.value, code, audit.explain(code).title, where, places, steps)


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
    notes = counted(counts[Severity.INFO], "note")
    yield Card("Warnings", f"{warnings:,}", notes, Tone.WARN if warnings else Tone.GOOD)
    blind = len(errors) + sum(not pair.known for pair in pairs)
    messages = sum(pair.waiting for pair in pairs)
    oldest = "in backlog queues" if (age := _oldest_seconds(pairs)) is None else f"oldest {format_duration(age)}"
    yield _amount("Messages waiting", messages, oldest, blind, total)
    dead = sum(pair.dead_letter for pair in pairs)
    yield _amount("Dead letters", dead, "of backlog queues", blind, total)


def _amount(title: str, number: int, note: str, blind: int, pairs: int) -> Card:
    """A total of all pairs; `blind` of them could not be read."""
    if blind == pairs and pairs:
        return Card(title, "unknown", "no backlog queue could be read", Tone.WARN)
    least = f"; unknown for {counted(blind, 'pair')}" if blind else ""
    text = f"{'at least ' if blind else ''}{number:,}"
    return Card(title, text, f"{note}{least}", Tone.WARN if number or blind else Tone.GOOD)


def _row(pair: _Pair) -> dict[str, Any]:
    fields, known = pair.snapshot.pair, pair.known
    there = sum(pair.snapshot.secondary.queue(path) is not None for path in fields.to_pair().backlog_paths())
    counts = Counter(finding.severity for finding in pair.report.findings)
    found = [counted(counts[severity], severity.value) for severity in reversed(Severity) if counts[severity]]
    skipped = len(pair.report.skipped)
    return {
        "verdict": pair.verdict,
        "pair": f"{fields.name} ({fields.environment})" if fields.environment else fields.name,
        "primary": _named(pair.snapshot.primary, fields.primary_label),
        "secondary": _named(pair.snapshot.secondary, fields.secondary_label),
        "queues": f"{there} of {fields.backlog_queue_count}" if known else "not read",
        "messages": pair.waiting if known else "unknown",
        "dead_letter": pair.dead_letter if known else "unknown",
        "oldest": None if pair.oldest_seconds is None else format_duration(pair.oldest_seconds),
        "findings": ", ".join([*found, *([f"{skipped} skipped"] if skipped else [])]) or "none",
    }


def _named(side: NamespaceSnapshot, label: str) -> str:
    name = spoken_name(label, side.host)
    tier = side.facts.tier if side.facts else None
    return f"{name} ({tier})" if tier else name


def _failed_row(failed: tuple[str, SbpairError]) -> dict[str, Any]:
    name, error = failed
    return {"verdict": error.exit_name, "pair": name, "findings": error.message}


def _waiting(pairs: Sequence[_Pair]) -> Iterator[Bars]:
    """Where messages wait: by pair, or by queue where there is one pair only; nothing where none wait."""
    if len(pairs) == 1:
        amounts = [(queue.path, _waiting_in(queue), queue.facts.counts.dead_letter) for queue in pairs[0].queues]
    else:
        amounts = [(pair.report.pair, pair.waiting, pair.dead_letter) for pair in pairs]
    filled = sorted((one for one in amounts if one[1] or one[2]), key=lambda one: -(one[1] + one[2]))
    if filled:
        left_off = len(filled) - MOST_BARS
        note = f"{left_off} more with fewer messages are not drawn." if left_off > 0 else ""
        yield Bars("Messages waiting", [_bar(*one) for one in filled[:MOST_BARS]], note)


def _bar(name: str, active: int, dead: int) -> Bar:
    text = f"{active:,} + {dead:,} dead" if dead else f"{active:,}"
    return Bar(name, active + dead, text, tone=Tone.WARN if dead else Tone.PLAIN)
