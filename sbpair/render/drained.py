"""What became of a drain, a syphon or an incident, as tables, checks, metrics and the page for its readers."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sbpair.core.access import shown_name
from sbpair.core.durations import format_duration
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words
from sbpair.core.serialization import spoken_time
from sbpair.core.transfer.conclusion import ARCHIVED, LEFT, MOVED, TO_THE_PRIMARY, DrainResult, headline
from sbpair.core.transfer.ledger_report import IncidentReport, LedgerSeen, PossibleDouble, RunSeen
from sbpair.core.transfer.report import DEAD_LETTERED, OutcomeRow
from sbpair.core.words import counted
from sbpair.render.page import Bar, Bars, Card, Cards, Page, Section, Text, Tone, number
from sbpair.render.result import (
    Column,
    CommandResult,
    Grade,
    MonitoredCheck,
    Table,
    columns,
    concluded,
    metrics_of,
    table_of,
)

MOST_ROWS = 200


def incident_result(incident: IncidentReport) -> CommandResult:
    """All runs of some ledgers."""
    figures = tuple(incident.figures())
    page = Page(
        "Incident",
        tuple(incident_sections(incident)),
        lead=incident.closing,
        facts=figures,
        tone=Tone.BAD if incident.faults else Tone.WARN if incident.possible_doubles else Tone.GOOD,
    )
    return concluded(
        incident,
        table_of(RunSeen, incident.runs),
        screen=(
            table_of(RunSeen, incident.runs, "Runs"),
            Table("", columns("what", "value"), [{"what": what, "value": value} for what, value in figures]),
            *_tables(incident),
        ),
        page=page,
        page_only=True,
    )


def _tables(incident: IncidentReport) -> Iterator[Table]:
    for title, named in (("Sent to", incident.destinations), ("Dead-lettered for", incident.dead_letter_reasons)):
        if named:
            yield _counts(title, "what: Destination or reason", named)
    if doubles := incident.possible_doubles:
        more = f" (the first {MOST_ROWS} of {len(doubles):,}; all: -o json)" if len(doubles) > MOST_ROWS else ""
        yield table_of(PossibleDouble, doubles[:MOST_ROWS], f"Possibly twice at the destination{more}")


def incident_sections(incident: IncidentReport) -> Iterator[Section]:
    """What a page says of all runs."""
    dead = sum(messages for _, messages in incident.dead_letter_reasons)
    wait = incident.longest_wait_seconds
    yield Cards(
        (
            Card("Messages", number(incident.messages), f"in {counted(len(incident.runs), 'run')}"),
            Card("Sent", number(incident.sent), "", Tone.GOOD if incident.sent else Tone.PLAIN),
            Card("Dead-lettered", number(dead), "", Tone.WARN if dead else Tone.PLAIN),
            Card("Possibly twice", number(len(incident.possible_doubles)), "with the same MessageId"),
            Card("Longest wait", "unknown" if wait is None else format_duration(round(wait))),
        ),
        "All runs of the ledger",
    )
    if notes := tuple(incident.notes()):
        yield Text("Also in the ledger", notes)
    yield table_of(RunSeen, incident.runs, "Runs")
    yield from _tables(incident)
    yield table_of(LedgerSeen, incident.ledgers, "Evidence")
    for ledger in incident.ledgers:
        yield Text(f"Signature of {ledger.path}", _signature(ledger), literal=True)


def _signature(ledger: LedgerSeen) -> tuple[str, ...]:
    path = shlex.quote(ledger.path)
    if ledger.signature is None:
        return ("None. To sign it as it is now:", f"ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n sbpair {path}")
    check = f"ssh-keygen -Y check-novalidate -n sbpair -s {shlex.quote(f'{ledger.path}.sig')} < {path}"
    return (ledger.signature.rstrip(), "Not checked here. To check it:", check)


def _most_first(named: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(named, key=lambda one: (-one[1], one[0]))


def _counts(title: str, name: str, named: Iterable[tuple[str, int]]) -> Table:
    """Messages by name, the most first; `name` as `columns` takes it."""
    key = name.partition(":")[0]
    return Table(
        title, columns(name, "#messages"), [{key: one, "messages": count} for one, count in _most_first(named)]
    )


# A drain: what waited, where it went, what is left and why, for later readers of the incident too.


def drain_result(pair: Pair, result: DrainResult, *, verbose: bool = False) -> CommandResult:
    """A run of the pump as tables, data and exit code."""
    operations = result.used or result.forecast
    takes = "It took" if result.used else "Moving them would take"
    severity = Grade.OK if result.exit is Exit.OK else Grade.WARNING
    label = ("pair", pair.name)
    return concluded(
        result,
        table_of(OutcomeRow, result.rows()),
        notes=(*result.notes, *([f"{takes} {in_words(operations)}."] if verbose and operations else [])),
        checks=(MonitoredCheck("backlog", pair.name, severity, result.closing),),
        metrics=(*metrics_of(result.report, label), *metrics_of(result.left, label)),
    )


_BAD = (Exit.FAILED, Exit.DENIED, Exit.UNREACHABLE)
_MOST_BARS = 20


def page_of(
    pair: Pair, drained: DrainResult, result: CommandResult, began_at: float, incident: IncidentReport | None = None
) -> Page:
    """The page of a drain that has ended, well or not. `began_at` in UTC epoch seconds; `incident`: of all runs of its
    ledger."""
    of_all = () if incident is None else incident_sections(incident)
    return Page(
        f"{'Dry run of a drain' if drained.report.dry_run else 'Drain'} of {pair.name}",
        (*_sections(drained, result, last=incident is not None and len(incident.runs) > 1), *of_all),
        lead=headline(drained.report, drained.backlog, drained.asked),
        facts=tuple(_facts(pair, drained, began_at, incident)),
        tone=Tone.GOOD if result.exit is Exit.OK else Tone.BAD if result.exit in _BAD else Tone.WARN,
    )


def _facts(
    pair: Pair, drained: DrainResult, began_at: float, incident: IncidentReport | None
) -> Iterator[tuple[str, str]]:
    yield "From", shown_name(pair.secondary)
    yield "To", shown_name(pair.primary)
    if pair.environment:
        yield "Environment", pair.environment
    yield "Began", spoken_time(began_at)
    yield "Took", format_duration(drained.report.seconds)
    for ledger in () if incident is None else incident.ledgers:
        yield "Ledger", f"{ledger.path}, {counted(ledger.lines, 'line')}"
        yield "SHA-256 of the ledger", ledger.sha256
    yield from () if incident is None else incident.figures()


def _sections(drained: DrainResult, result: CommandResult, *, last: bool) -> Iterator[Section]:
    report = drained.report
    yield Cards(tuple(_cards(drained)), "Last run" if last else "")
    if result.notes:
        steps = [{"next": note} for note in result.notes]
        yield Table("What is left to do", (Column("next", "Next", advice=True),), steps)
    if report.per_destination:
        most_first = _most_first(report.per_destination)
        title = "Where messages would go" if report.dry_run else "Where messages went"
        rest = most_first[_MOST_BARS:]
        note = f"{len(rest):,} others with {sum(one[1] for one in rest):,} together." if rest else ""
        yield Bars(title, tuple(Bar(name, messages) for name, messages in most_first[:_MOST_BARS]), note)
    if report.dead_letter_reasons:
        title = "Would be dead-lettered" if report.dry_run else "Dead-lettered in this run"
        yield _counts(title, "why", report.dead_letter_reasons)
    if report.left:
        title = "Would be left in the backlog" if report.dry_run else "Left in the backlog"
        yield _counts(title, "why", [(one.reason, one.count) for one in report.left])
    if report.per_destination[_MOST_BARS:]:
        yield _counts("All destinations", "destination", report.per_destination)
    if rows := list(_queues(drained)):
        yield _queue_table(rows, dry_run=report.dry_run)
    shown = {ARCHIVED, MOVED, TO_THE_PRIMARY, LEFT, DEAD_LETTERED}
    if others := [row for row in result.tables[0].rows if row["what"] not in shown]:
        yield replace(result.tables[0], title="Also counted", rows=others)
    if not drained.before:
        yield Text("What is not known", ("The queues could not be counted before the run; that needs Manage.",))


_NUMBERS = {"before": "To move", "active": "Active", "dead_letter": "Dead letters", "deferred": "Deferred"}


def _queue_table(rows: Sequence[Mapping[str, Any]], *, dry_run: bool) -> Section:
    """The queues that held or hold anything; what was not counted may."""
    seen = [row for row in rows if any(row[key] for key in _NUMBERS)]
    when = "" if dry_run else ", before and after"
    if not seen:
        return Text("Backlog queues", (f"{counted(len(rows), 'queue')} with no message{when}.",))
    title = "Backlog queues"
    if empty := len(rows) - len(seen):
        title += f" ({counted(empty, 'other')} with no message{when})"
    moments = {key: "" if dry_run else ", before" if key == "before" else ", after" for key in _NUMBERS}
    numbers = (Column(key, name + moments[key], right=True) for key, name in _NUMBERS.items())
    return Table(title, (Column("queue", "Queue"), *numbers), seen)


def _cards(drained: DrainResult) -> Iterator[Card]:
    report, backlog = drained.report, drained.backlog
    if drained.before:
        filled = sum(bool(messages) for messages in drained.before.values())
        label = "To move" if report.dry_run else "To move, before"
        yield Card(label, number(sum(drained.before.values())), f"in {counted(filled, 'queue')}")
    if report.dry_run:
        would_be_left = sum(one.count for one in report.left)
        yield Card("Would be archived" if report.archive is not None else "Would be sent", number(report.forwarded))
        yield _amount("Would be dead-lettered", report.dead_lettered)
        yield _amount("Would be left", would_be_left, good=True)
        return
    taken = "archived" if report.archive is not None else "accepted at their destinations"
    yield Card("Moved", number(report.forwarded), taken, Tone.GOOD if report.forwarded else Tone.PLAIN)
    yield _amount("Dead-lettered", report.dead_lettered)
    yield _amount("Active, after", backlog.active if backlog else None, good=True)
    yield _amount("Dead letters, after", backlog.dead_letter if backlog else None, good=True)


def _amount(label: str, messages: int | None, *, good: bool = False) -> Card:
    """Messages that should be none; that there are none is good news where `good`. None: nobody counted them."""
    if messages is None:
        return Card(label, "unknown", "it was not counted", Tone.WARN)
    return Card(label, number(messages), "", Tone.WARN if messages else Tone.GOOD if good else Tone.PLAIN)


def _by_number(path: str) -> tuple[str, int]:
    """Backlog queue 10 comes after 9, whichever process drained it."""
    name = parse_backlog_queue_path(path)
    return (path, 0) if name is None else (name.primary_label, name.index)


def _queues(drained: DrainResult) -> Iterator[dict[str, Any]]:
    """Every queue that either look has seen; what was not counted is said to be unknown."""
    queues = drained.backlog.queues if drained.backlog is not None else ()
    after = {queue.queue: queue for queue in queues if not queue.missing}
    for path in sorted({*drained.before, *after}, key=_by_number):
        seen = after.get(path)
        found = {name: getattr(seen, name, None) for name in ("active", "dead_letter", "deferred")}
        known = {name: "unknown" if value is None else value for name, value in found.items()}
        yield {"queue": path, "before": drained.before.get(path, "not counted"), **known}
