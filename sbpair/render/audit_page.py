"""An audit of any number of pairs as one page: the fleet at a glance."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sbpair.core.access import spoken_name
from sbpair.core.durations import format_duration
from sbpair.core.inspection import audit
from sbpair.core.inspection.audit import AuditReport, Severity
from sbpair.core.inspection.audit import result as audited
from sbpair.core.inspection.snapshot import NamespaceSnapshot
from sbpair.core.serialization import column, spoken_time
from sbpair.core.words import counted, listed
from sbpair.render.page import Bar, Bars, Card, Cards, EqualFindings, Findings, Page, Section, Text, Tone
from sbpair.render.result import table_of

MOST_BARS = 30
MOST_HEADLINES = 3
"""Kinds of findings that the first sentence names."""
_TONES = {
    None: Tone.GOOD,
    Severity.INFO: Tone.GOOD,
    Severity.WARNING: Tone.WARN,
    Severity.ERROR: Tone.BAD,
    Severity.CRITICAL: Tone.BAD,
}


@dataclass(frozen=True, slots=True)
class _FleetRow:
    """A pair in the table of the fleet."""

    verdict: str = field(metadata=column("Verdict", colours=True))
    pair: str = field(metadata=column("Pair"))
    primary: str | None = field(default=None, metadata=column("Primary"))
    secondary: str | None = field(default=None, metadata=column("Secondary"))
    queues: str | None = field(default=None, metadata=column("Backlog queues", right=True))
    messages: int | str | None = field(default=None, metadata=column("Messages", counts=True))
    dead_letter: int | str | None = field(default=None, metadata=column("Dead letters", counts=True))
    oldest: str | None = field(default=None, metadata=column("Oldest", right=True))
    findings: str = field(default="", metadata=column("Findings"))


def audit_page(result: audited.AuditResult, notes: Sequence[str]) -> Page:
    """The page of an audit; what could not be opened or read comes first, then the pairs with the worst findings."""
    pairs, reports = result.pairs, result.reports
    skipped = table_of(audited.SkippedRow, audited.skipped_rows(reports), "Not checked")
    worst_first = sorted(pairs, key=lambda pair: (-pair.rank, -pair.waiting))
    failed = [_FleetRow(one.error.exit_name, one.pair, findings=one.error.message) for one in result.errors]
    sections: list[Section] = [
        Cards(tuple(_figures(result))),
        table_of(_FleetRow, [*failed, *map(_row, worst_first)], "Fleet"),
        *_waiting(pairs),
        Findings("Findings", tuple(_findings(reports))),
        *((skipped,) if skipped.rows else ()),
        *((Text("Notes", notes),) if notes else ()),
    ]
    names = ", ".join(report.pair for report in reports) if len(reports) <= 3 else f"{len(reports)} pairs"
    return Page(f"Audit of {names}", sections, lead=_lead(result), facts=tuple(_facts(pairs)), tone=_tone(result))


def _lead(result: audited.AuditResult) -> str:
    """The worst first: what could not be read, what is wrong, what waits."""
    counts = Counter((finding.severity, finding.code) for report in result.reports for finding in report.findings)
    grave = sorted((one for one in counts if one[0] is not Severity.INFO), key=lambda one: (-one[0].rank, one[1]))
    waiting = audited.waiting_sentence(result.pairs)
    told = []
    if silent := [one.pair for one in result.errors] + [one.report.pair for one in result.pairs if one.not_read]:
        told.append(f"{counted(len(silent), 'pair')} could not be read in full: {listed(silent)}.")
    for severity, code in grave[:MOST_HEADLINES]:
        title = audit.explain(code).title
        times = f" ({counts[severity, code]} times)" if counts[severity, code] > 1 else ""
        told.append(f"{severity.value.capitalize()}: {title[0].lower()}{title[1:]}{times}.")
    if len(grave) > MOST_HEADLINES:
        told.append(f"And {counted(len(grave) - MOST_HEADLINES, 'more kind')} of finding.")
    if waiting:
        told += [waiting] if told else [waiting, "No errors or warnings."]
    nothing = f"No {'errors or warnings' if counts else 'findings'}, and no message waits in a backlog queue."
    return " ".join(told) or nothing


def _facts(pairs: Sequence[audited.AuditedPair]) -> Iterator[tuple[str, str]]:
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


def _findings(reports: Sequence[AuditReport]) -> Iterator[EqualFindings]:
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
        yield EqualFindings(severity.value, code, audit.explain(code).title, where, places, steps)


def _tone(result: audited.AuditResult) -> Tone:
    if result.errors or any(pair.not_read for pair in result.pairs):
        return Tone.BAD
    found = [report.worst for report in result.reports if report.worst is not None]
    return _TONES[max(found, key=lambda severity: severity.rank, default=None)]


def _figures(result: audited.AuditResult) -> Iterator[Card]:
    pairs, errors = result.pairs, result.errors
    good = sum(pair.verdict in ("ok", "info") for pair in pairs)
    total = len(pairs) + len(errors)
    what = "Namespaces" if any(pair.snapshot.alone for pair in pairs) else "Pairs"
    yield Card(what, f"{total}", f"{good} without warnings", Tone.GOOD if good == total else Tone.PLAIN)
    counts = Counter(finding.severity for pair in pairs for finding in pair.report.findings)
    grave = counts[Severity.ERROR] + counts[Severity.CRITICAL]
    yield Card("Errors", f"{grave:,}", f"{counts[Severity.CRITICAL]} critical", Tone.BAD if grave else Tone.GOOD)
    warnings = counts[Severity.WARNING]
    notes = counted(counts[Severity.INFO], "note")
    yield Card("Warnings", f"{warnings:,}", notes, Tone.WARN if warnings else Tone.GOOD)
    blind = len(errors) + sum(not pair.known for pair in pairs)
    queues = audited.distinct_queues(pairs)
    messages = sum(map(audited.waiting_in, queues))
    oldest = "in backlog queues" if (age := audited.oldest_seconds(pairs)) is None else f"oldest {format_duration(age)}"
    yield _amount("Messages waiting", messages, oldest, blind, total)
    dead = sum(queue.facts.counts.dead_letter for queue in queues)
    yield _amount("Dead letters", dead, "of backlog queues", blind, total)


def _amount(title: str, number: int, note: str, blind: int, pairs: int) -> Card:
    """A total of all pairs; `blind` of them could not be read."""
    if blind == pairs and pairs:
        return Card(title, "unknown", "no backlog queue could be read", Tone.WARN)
    least = f"; unknown for {counted(blind, 'pair')}" if blind else ""
    text = f"{'at least ' if blind else ''}{number:,}"
    return Card(title, text, f"{note}{least}", Tone.WARN if number or blind else Tone.GOOD)


def _row(pair: audited.AuditedPair) -> _FleetRow:
    fields, known = pair.snapshot.pair, pair.known
    there = sum(pair.snapshot.secondary.queue(path) is not None for path in fields.to_pair().backlog_paths())
    skipped = len(pair.report.skipped)
    found = [*audited.severities([pair.report]), *([f"{skipped} skipped"] if skipped else [])]
    return _FleetRow(
        pair.verdict,
        f"{fields.name} ({fields.environment})" if fields.environment else fields.name,
        _named(pair.snapshot.primary, fields.primary_label),
        "" if pair.snapshot.alone else _named(pair.snapshot.secondary, fields.secondary_label),
        "" if pair.snapshot.alone else f"{there} of {fields.backlog_queue_count}" if known else "not read",
        pair.waiting if known else "unknown",
        pair.dead_letter if known else "unknown",
        None if pair.oldest_seconds is None else format_duration(pair.oldest_seconds),
        ", ".join(found) or "none",
    )


def _named(side: NamespaceSnapshot, label: str) -> str:
    name = spoken_name(label, side.host)
    tier = side.facts.tier if side.facts else None
    return f"{name} ({tier})" if tier else name


def _waiting(pairs: Sequence[audited.AuditedPair]) -> Iterator[Bars]:
    """Where messages wait: by pair, or by queue where there is one pair only; nothing where none wait."""
    if len(pairs) == 1:
        amounts = [(queue.path, audited.waiting_in(queue), queue.facts.counts.dead_letter) for queue in pairs[0].queues]
    else:
        amounts = [(pair.report.pair, pair.waiting, pair.dead_letter) for pair in pairs]
    filled = sorted((one for one in amounts if one[1] or one[2]), key=lambda one: -(one[1] + one[2]))
    if filled:
        left_off = len(filled) - MOST_BARS
        note = f"{left_off} more with fewer messages are not drawn." if left_off > 0 else ""
        bars = (
            Bar(
                name,
                active + dead,
                f"{active:,} + {dead:,} dead" if dead else f"{active:,}",
                tone=Tone.WARN if dead else Tone.PLAIN,
            )
            for name, active, dead in filled[:MOST_BARS]
        )
        yield Bars("Messages waiting", tuple(bars), note)
