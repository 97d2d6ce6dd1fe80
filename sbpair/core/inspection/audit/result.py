"""The result of an audit: per pair what was read and what the checks say, and what follows from it for a reader."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbpair.core.durations import format_duration
from sbpair.core.errors import SbpairError, for_pair
from sbpair.core.inspection.audit.findings import AuditReport, Check, FindingGroup, Severity, alike, in_one_line
from sbpair.core.inspection.snapshot import Calls, QueueSeen, Snapshot, Unread
from sbpair.core.outcome import Exit, gravest
from sbpair.core.prices import Forecast
from sbpair.core.serialization import AS_TIME, HIDDEN, INLINED, column, metric, published
from sbpair.core.words import counted, with_hint
from sbpair.service import PAGE_ENTITIES


@dataclass(frozen=True, slots=True)
class UnreadPart:
    """A whole part of a namespace that could not be read."""

    namespace: str
    subject: str
    code: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class AuditedPair:
    """One pair: the snapshot that was taken, and what the checks say of it."""

    report: AuditReport = field(metadata=INLINED)
    snapshot: Snapshot = field(metadata=HIDDEN)

    @published
    def management_calls(self) -> int:
        return self.snapshot.calls.management

    @published
    def throttling_credits(self) -> int:
        return self.snapshot.calls.throttling_credits

    @published
    def not_read(self) -> tuple[UnreadPart, ...]:
        name = self.snapshot.pair.name
        return tuple(
            UnreadPart(host, entry.subject, entry.error_code, entry.reason, for_pair(entry.hint, name))
            for host, entry in self.snapshot.essential_unread()
        )

    @property
    def queues(self) -> list[QueueSeen]:
        """Its backlog queues as far as they were read."""
        return self.snapshot.own_backlog() or []

    @property
    def known(self) -> bool:
        """Whether its backlog queues could be read; otherwise nothing is known of their messages."""
        return self.snapshot.alone or self.snapshot.secondary.queues is not None

    @property
    def waiting(self) -> int:
        return sum(map(waiting_in, self.queues))

    @property
    def dead_letter(self) -> int:
        return sum(queue.facts.counts.dead_letter for queue in self.queues)

    @property
    def oldest_seconds(self) -> float | None:
        """Age of the oldest message when the snapshot was taken; None if there is none, or none was browsed."""
        times = [queue.peeked.oldest_enqueued_at for queue in self.queues if queue.peeked is not None]
        known = [time for time in times if time is not None]
        return max(0.0, self.snapshot.taken_at - min(known)) if known else None

    @property
    def verdict(self) -> str:
        """`ok`, the severity of the worst finding, or the exit code table's name of what kept it from being read."""
        unread = self.snapshot.essential_unread()
        if unread:
            return unread[0][1].exit_name
        worst = self.report.worst
        return worst.value if worst is not None else "ok"

    @property
    def rank(self) -> int:
        """How bad it is: what is not known first."""
        if self.snapshot.essential_unread():
            return len(Severity)
        return self.report.worst.rank if self.report.worst is not None else -1


def waiting_in(queue: QueueSeen) -> int:
    """Its messages of any kind but dead letters: scheduled ones wait, too."""
    return queue.facts.counts.total - queue.facts.counts.dead_letter


@dataclass(frozen=True, slots=True)
class FailedPair:
    """A pair that could not be opened."""

    pair: str
    error: SbpairError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The audit of any number of pairs."""

    pairs: tuple[AuditedPair, ...]
    errors: tuple[FailedPair, ...] = ()

    @published
    def used(self) -> Forecast:
        return sum((of_calls(pair.snapshot.calls) for pair in self.pairs), Forecast())

    @property
    def reports(self) -> list[AuditReport]:
        return [pair.report for pair in self.pairs]

    def exit(self, fail_on: Severity) -> Exit:
        """What could not be read comes before what was found: unreachable, denied, findings, partial."""
        unread = [entry.exit_name for pair in self.pairs for _, entry in pair.snapshot.essential_unread()]
        failed = gravest([*unread, *(failed.error.exit_name for failed in self.errors)])
        if failed in (Exit.UNREACHABLE, Exit.DENIED):
            return failed
        return Exit.FINDINGS if any(report.at_least(fail_on) for report in self.reports) else failed

    def notes(self) -> Iterator[str]:
        """What could not be read or opened and what to do, once for each host and reason."""
        for pair in self.pairs:
            # By code, not by the reason's words: those differ by what was read and by the service's tracking id.
            unread: dict[tuple[str, str, str], list[Unread]] = {}
            for host, entry in pair.snapshot.essential_unread():
                unread.setdefault((host, entry.error_code, entry.hint), []).append(entry)
            for (host, _, hint), entries in unread.items():
                what = ", ".join(entry.subject for entry in entries)
                reason = with_hint(entries[0].reason, for_pair(hint, pair.snapshot.pair.name))
                yield f"Not read: {what} of {host}: {reason}"
        for failed in self.errors:
            yield f"{failed.pair}: {with_hint(failed.error.message, for_pair(failed.error.hint, failed.pair))}"

    def calls_sentence(self) -> str:
        """`24 management calls, 240 throttling credits.`"""
        management = counted(sum(pair.management_calls for pair in self.pairs), "management call")
        credits = counted(sum(pair.throttling_credits for pair in self.pairs), "throttling credit")
        return f"{management}, {credits}."

    def _what(self) -> str:
        alone = sum(pair.snapshot.alone for pair in self.pairs)
        return counted(alone, "namespace") if alone else counted(len(self.pairs), "pair")

    def summary(self) -> str:
        """`497 messages wait in 8 queues, the oldest for 10s. 2 errors, 1 warning in 3 pairs; 4 checks skipped.` What
        waits comes first: a check that calls young messages no more than a note must not hide them behind an "OK"."""
        skipped = sum(len(report.skipped) for report in self.reports)
        ignored = sum(report.ignored for report in self.reports)
        parts = [
            f"{', '.join(severities(self.reports)) or 'No findings'} in {self._what()}",
            f"{counted(skipped, 'check')} skipped" if skipped else "",
            f"{counted(ignored, 'finding')} ignored" if ignored else "",
        ]
        found = "; ".join(part for part in parts if part) + "."
        return " ".join(sentence for sentence in (waiting_sentence(self.pairs), found) if sentence)


def severities(reports: Sequence[AuditReport]) -> list[str]:
    """`2 errors`, `1 warning`: the findings by severity, the worst first."""
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return [graded(counts[severity], severity) for severity in reversed(Severity) if counts[severity]]


def graded(number: int, severity: Severity) -> str:
    """`1 error`, `2 errors`, `3 info`."""
    same = severity.value if severity in (Severity.INFO, Severity.CRITICAL) else None
    return counted(number, severity.value, same)


def oldest_seconds(pairs: Sequence[AuditedPair]) -> float | None:
    return max((age for pair in pairs if (age := pair.oldest_seconds) is not None), default=None)


def distinct_queues(pairs: Sequence[AuditedPair]) -> list[QueueSeen]:
    """The backlog queues of all pairs, those that two of them share once."""
    found: dict[tuple[str, str], QueueSeen] = {}
    for pair in pairs:
        for queue in pair.queues:
            found.setdefault((pair.snapshot.secondary.host, queue.path.lower()), queue)
    return list(found.values())


def waiting_sentence(pairs: Sequence[AuditedPair]) -> str:
    """`497 messages and 3 dead letters wait in 8 queues, the oldest for 10s.`; empty if none are known to wait."""
    found = distinct_queues(pairs)
    waiting, dead = sum(map(waiting_in, found)), sum(queue.facts.counts.dead_letter for queue in found)
    if not (waiting or dead):
        return ""
    queues = sum(bool(queue.facts.counts.total) for queue in found)
    amounts = [counted(waiting, "message")] if waiting else []
    amounts += [counted(dead, "dead letter")] if dead else []
    oldest = "" if (age := oldest_seconds(pairs)) is None else f", the oldest for {format_duration(age)}"
    verb = "waits" if waiting + dead == 1 else "wait"
    return f"{' and '.join(amounts)} {verb} in {counted(queues, 'queue')}{oldest}."


# Rows of its tables.


@dataclass(frozen=True, slots=True)
class FindingRow:
    """Findings of one check in one pair."""

    severity: Severity = field(metadata=column("Severity", colours=True))
    code: str = field(metadata=column("Code"))
    pair: str = field(metadata=column("Pair"))
    count: int = field(metadata=column("Count", right=True))
    subject: str = field(metadata=column("Subject"))
    message: str = field(metadata=column("Finding"))
    remedy: str = field(metadata=column("What to do", advice=True))


def finding_rows(reports: Sequence[AuditReport], *, each: bool, lines: bool = False) -> list[FindingRow]:
    """Findings of all pairs, the worst first; one row for those of one check, or with `each` one row each. With `lines`
    each step of what to do is a line, so that a terminal keeps commands whole."""
    rows = [
        FindingRow(
            group.first.severity,
            group.first.code,
            report.pair,
            len(group.findings),
            group.subject,
            group.message,
            group.remedy if lines else in_one_line(group.remedy),
        )
        for report in reports
        for group in ([FindingGroup((finding,)) for finding in report.findings] if each else alike(report.findings))
    ]
    return sorted(rows, key=lambda row: -row.severity.rank)


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """Checks that could not run in one pair, for one reason."""

    pair: str = field(metadata=column("Pair"))
    code: str = field(metadata=column("Code"))
    reason: str = field(metadata=column("Skipped, because"))


def skipped_rows(reports: Sequence[AuditReport]) -> list[SkippedRow]:
    """What was not checked, one row for each reason: an unreachable namespace is the reason of twenty checks."""
    rows = []
    for report in reports:
        by_reason: dict[str, list[str]] = {}
        for skipped in report.skipped:
            by_reason.setdefault(skipped.reason, []).append(skipped.code)
        rows += [SkippedRow(report.pair, ", ".join(codes), reason) for reason, codes in by_reason.items()]
    return rows


# Its figures: for monitoring, and for trends.


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """What monitoring shows of one pair's audit. None where the backlog queues could not be read."""

    findings: Mapping[str, int] = field(metadata=metric("sbpair_audit_findings", label="severity"))
    check_findings: Mapping[str, int] = field(metadata=metric("sbpair_audit_check_findings", label="code"))
    skipped_checks: int = field(metadata=metric("sbpair_audit_skipped_checks"))
    management_calls: int = field(metadata=metric("sbpair_audit_management_calls"))
    throttling_credits: int = field(metadata=metric("sbpair_audit_throttling_credits"))
    backlog_messages: Mapping[str, int] | None = field(metadata=metric("sbpair_backlog_messages", label="kind"))
    backlog_size_bytes: int | None = field(metadata=metric("sbpair_backlog_size_bytes"))


def figures(pair: AuditedPair, before: Sequence[AuditedPair] = ()) -> AuditFigures:
    """`before`: pairs whose samples stand beside it. What it shares with them counts there, so that sums are right."""
    report, queues = pair.report, pair.snapshot.own_backlog()
    if queues is not None and before:
        queues = distinct_queues([*before, pair])[len(distinct_queues(before)) :]
    by_severity = Counter(finding.severity for finding in report.findings)
    by_code = Counter(finding.code for finding in report.findings)
    return AuditFigures(
        {severity.value: by_severity[severity] for severity in Severity},
        dict(sorted(by_code.items())),
        sum(not skipped.arm_only for skipped in report.skipped),
        pair.management_calls,
        pair.throttling_credits,
        None if queues is None else _by_kind(queues),
        None if queues is None else sum(queue.facts.size_in_bytes for queue in queues),
    )


def _by_kind(queues: Sequence[QueueSeen]) -> dict[str, int]:
    counts = [queue.facts.counts for queue in queues]
    return {
        "active": sum(count.active for count in counts),
        "dead-letter": sum(count.dead_letter for count in counts),
        "scheduled": sum(count.scheduled for count in counts),
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
    queues = snapshot.own_backlog()
    return HistoryLine(
        snapshot.taken_at,
        report.pair,
        Counter(finding.code for finding in report.findings),
        Counter(finding.severity.value for finding in report.findings),
        tuple(sorted({skipped.code for skipped in report.skipped})),
        None if queues is None else tuple(map(_queue_then, queues)),
    )


def _queue_then(queue: QueueSeen) -> QueueThen:
    counts = queue.facts.counts
    return QueueThen(queue.path, counts.active, counts.dead_letter, counts.scheduled, queue.facts.size_in_bytes)


@dataclass(frozen=True, slots=True)
class AllChecks:
    """What `sbpair audit --list-checks` shows."""

    checks: tuple[Check, ...]


Printed = AuditResult | AllChecks | Check


# What an audit is going to use, and what it used.


def of_audit(queues: int, *, expected: int = 0) -> Forecast:
    """An audit of a pair with `queues` queues on both sides together, by the data plane.

    Counted are two namespaces, the pages of their queues (the last one of each is never full) and one page of topics
    each, and a look at `expected` backlog queues and their dead letters.
    """
    pages = queues // PAGE_ENTITIES + 2 + 2
    return Forecast(2 + pages, 2 * expected)


def of_calls(calls: Calls) -> Forecast:
    """What a snapshot did use."""
    return Forecast(calls.management, calls.peeks)
