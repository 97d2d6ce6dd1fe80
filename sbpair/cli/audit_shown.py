"""An audit's findings as rows, as checks for monitoring formats, as metrics, and as a line of history."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sbpair.cli.snapshots import essential_unread
from sbpair.core import audit
from sbpair.core.audit import AuditReport, Severity
from sbpair.core.errors import SbpairError
from sbpair.core.snapshot import QueueSeen, Snapshot
from sbpair.render.formats import iso_time
from sbpair.render.result import Check, Column, Metric, Table
from sbpair.render.result import Severity as Shown

FINDING_COLUMNS = (
    Column("severity", "Severity"),
    Column("code", "Code"),
    Column("pair", "Pair"),
    Column("subject", "Subject"),
    Column("message", "Finding"),
    Column("remedy", "What to do"),
)
SKIPPED_COLUMNS = (Column("pair", "Pair"), Column("code", "Code"), Column("reason", "Skipped, because"))


def findings_table(reports: Sequence[AuditReport], *, title: str = "") -> Table:
    """Findings of all pairs, the worst first."""
    rows = [
        {
            "severity": finding.severity.value,
            "code": finding.code,
            "pair": report.pair,
            "subject": finding.subject,
            "message": finding.message,
            "remedy": finding.remedy,
        }
        for report in reports
        for finding in report.findings
    ]
    rows.sort(key=lambda row: -Severity(row["severity"]).rank)
    return Table(title, FINDING_COLUMNS, rows, style_key="severity")


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


def summary_of(reports: Sequence[AuditReport], snapshots: Sequence[Snapshot]) -> str:
    """`2 errors, 1 warning in 3 pairs; 4 checks skipped; 24 management calls, 240 throttling credits.`"""
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    found = [counted(counts[severity], severity.value) for severity in reversed(Severity) if counts[severity]]
    skipped = sum(len(report.skipped) for report in reports)
    ignored = sum(report.ignored for report in reports)
    parts = [
        f"{', '.join(found) or 'No findings'} in {counted(len(reports), 'pair')}",
        f"{counted(skipped, 'check')} skipped" if skipped else "",
        f"{counted(ignored, 'finding')} ignored" if ignored else "",
        f"{sum(one.calls.management for one in snapshots)} management calls, "
        f"{sum(one.calls.throttling_credits for one in snapshots)} throttling credits",
    ]
    return "; ".join(part for part in parts if part) + "."


def counted(number: int, noun: str) -> str:
    """`1 error`, `2 errors`, `3 info`."""
    return f"{number} {noun}" if number == 1 or noun in ("info", "critical") else f"{number} {noun}s"


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
        yield Check(finding.code, finding.subject, Shown(finding.severity.value), f"{finding.message} {finding.remedy}")
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


def history_line(snapshot: Snapshot, report: AuditReport) -> dict[str, Any]:
    """One audit as a record for trends: findings by code and severity, and the contents of every backlog queue."""
    return {
        "taken_at": iso_time(snapshot.taken_at),
        "pair": report.pair,
        "findings": dict(Counter(finding.code for finding in report.findings)),
        "severities": dict(Counter(finding.severity.value for finding in report.findings)),
        "skipped": sorted({one.code for one in report.skipped}),
        "queues": [
            {
                "queue": queue.path,
                "active": queue.facts.counts.active,
                "dead_letter": queue.facts.counts.dead_letter,
                "scheduled": queue.facts.counts.scheduled,
                "size_bytes": queue.facts.size_in_bytes,
            }
            for queue in own_backlog(snapshot) or ()
        ],
    }
