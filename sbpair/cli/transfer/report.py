"""`sbpair incident`: the commands of a recovery one after another, each printed before it runs. `sbpair report`: an
incident over all runs of its ledgers, and whether their lines stand as they were written."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sbpair import operations
from sbpair.cli.asking import agreed, can_ask
from sbpair.cli.context import load_settings, run_and_show
from sbpair.cli.options import Options, PairArgument, command
from sbpair.core.access import shown_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.serialization import HIDDEN, column, spoken_time
from sbpair.core.transfer.conclusion import ARCHIVED, LEFT, MOVED, TO_THE_PRIMARY, DrainResult, headline
from sbpair.core.transfer.ledger_report import IncidentReport, LedgerSeen, PossibleDouble, RunSeen
from sbpair.core.transfer.report import DEAD_LETTERED
from sbpair.core.words import counted, listed
from sbpair.files import make_private_folder
from sbpair.render.console import say
from sbpair.render.page import Bar, Bars, Card, Cards, Page, Section, Text, Tone, number
from sbpair.render.result import Column, CommandResult, Table, columns, table_of

_ENDS_IT = (Exit.FAILED, Exit.USAGE, Exit.DENIED, Exit.UNREACHABLE, Exit.INTERRUPTED, Exit.TERMINATED)


@dataclass(frozen=True, slots=True)
class Step:
    """A command that was run."""

    number: int = field(metadata=column("Step", right=True))
    purpose: str = field(metadata=column("What for"))
    command: str = field(metadata=column("Command"))
    exit_name: str = field(metadata=column("Ended with"))
    exit: Exit = field(metadata=HIDDEN)
    drains: bool = field(default=False, metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class Incident:
    """The steps of one recovery, as `incident -o json` prints them."""

    pair: str
    steps: tuple[Step, ...]

    def closing(self, planned: int) -> str:
        """The last sentence. `planned`: how many steps there are."""
        run = f"{counted(len(self.steps), 'step')} of {planned} for {self.pair}"
        if len(self.steps) == planned:
            short = [one for one in self.steps if one.exit not in (Exit.OK, Exit.FINDINGS)]
            without = listed([f"step {one.number} ({one.exit_name}), {one.command}" for one in short], most=planned)
            return f"{run}: done{f', but not complete: {without}' if short else ''}."
        last = self.steps[-1].exit_name if self.steps else "nothing"
        return f"{run}: ended after {last}. The others run alone as well: sbpair incident {self.pair} --script"


@command(output="cli.transfer.report:Incident", asks=True)
def incident(
    options: Options,
    pair: PairArgument = None,
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the ledger and the report of this incident.")
    ] = Path("incident"),
    script: Annotated[bool, typer.Option(help="Print the commands, and run none.")] = False,
) -> CommandResult:
    """Guide through the recovery of a pair after an outage, one command after another.

    Finds waiting messages, checks what the drain needs, shows a dry run, asks, drains with ledger and report, then
    shows what is left and the dead letters of the primary. Each step is a command of its own, printed before it runs;
    each can be run alone. Ends if a namespace cannot be reached or refuses, or if you answer no. Run it again to
    continue: the ledger prevents messages from being sent again. Exit code: that of the drain.

    \b
    Examples:
      sbpair incident orders
      sbpair incident orders --script > recover.sh
    """
    settings = load_settings(options)
    chosen = settings.pair(pair)
    if not (script or options.yes or can_ask(options)):
        raise UsageError(
            "An incident asks before it drains, and there is no terminal to confirm on. Nothing was done.",
            hint="--script prints the commands, --yes runs them without asking.",
        )
    steps = list(_steps(options, chosen.name, chosen.secondary.label, into))
    if script:
        text = "\n".join(line for what, words in steps for line in (f"# {what}", shlex.join(words))) + "\n"
        return CommandResult(Incident(chosen.name, ()), text=f"#!/bin/sh\n{text}")
    make_private_folder(into)
    done = tuple(_run(options, steps))
    code = next((step.exit for step in done if step.drains), done[-1].exit if done else Exit.OK)
    result = Incident(chosen.name, done)
    return CommandResult(result, (table_of(Step, done),), summary=result.closing(len(steps)), exit=code, closing=True)


def _steps(options: Options, pair: str, secondary: str, into: Path) -> Iterator[tuple[str, list[str]]]:
    """What each step is for, and its command."""
    common = [
        *(["--config", str(options.config)] if options.config else []),
        *(["--no-color"] if options.no_color else []),
    ]
    kept = ["--ledger", str(into / "ledger.jsonl")]
    steps = (
        ("What waits, and for whom", ["discover", secondary]),
        ("What a drain needs", ["doctor", pair]),
        ("What a drain would do", ["drain", pair, "--dry-run", *kept]),
        ("The drain", ["drain", pair, *kept, "--report", str(into / "report.html"), "--yes"]),
        ("What is left in the backlog", ["status", pair]),
        ("Dead letters of the backlog", ["peek", pair, "--dlq", "--group-by", "reason,destination"]),
        ("Dead letters of the primary", ["dlq", "list", "--pair", pair]),
    )
    for step, (what, words) in enumerate(steps, 1):
        # With -o the result of this command is the list of its steps; theirs are kept beside the ledger.
        shown = [] if options.output is None else ["--outfile", str(into / f"step-{step}.txt")]
        yield what, ["sbpair", *words, *common, *shown]


def _run(options: Options, steps: list[tuple[str, list[str]]]) -> Iterator[Step]:
    from sbpair.cli.running import run

    for step, (what, words) in enumerate(steps, 1):
        drains = "--yes" in words
        for line in ("", f"Step {step} of {len(steps)}: {what}", f"$ {shlex.join(words)}"):
            say(line)
        if drains and not agreed(options, "Run it?"):
            return
        code = Exit(run(words[1:]))
        yield Step(step, what, shlex.join(words), code.label, code, drains)
        if code in _ENDS_IT:
            return


# `sbpair report`.

MOST_ROWS = 200


@command(output="core.transfer.ledger_report:IncidentReport", page=True)
def report(
    options: Options,
    ledgers: Annotated[list[Path], typer.Argument(metavar="LEDGER...", help="Ledgers, or folders of them.")],
    *,
    verify: Annotated[bool, typer.Option(help="Exit 5 if a line was changed, dropped, moved or added since.")] = False,
) -> CommandResult:
    """Report an incident from its ledgers: who ran which command, where messages went, what may be duplicated or left.

    Reads files only; the numbers follow from the ledgers alone. Each sixteenth line of a write, and its last one, has a
    hash of all before it, so that --verify finds what was changed, dropped, moved or added. A last line that a crash
    cut off is none of these. A user who can write the file can also chain it again: sign it, or keep its SHA-256
    elsewhere.

    \b
    Sign a ledger, and check the signature:
      ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n sbpair drain.jsonl
      ssh-keygen -Y check-novalidate -n sbpair -s drain.jsonl.sig < drain.jsonl

    \b
    Examples:
      sbpair report drain.jsonl
      sbpair report drain.jsonl replayed/ --verify
      sbpair report drain.jsonl -o html --outfile incident.html
    """
    request = operations.ReportRequest(tuple(ledgers), verify)

    def shown(incident: IncidentReport) -> CommandResult:
        figures = tuple(incident.figures())
        page = Page(
            "Incident",
            tuple(incident_sections(incident)),
            lead=incident.closing,
            facts=figures,
            tone=Tone.BAD if incident.faults else Tone.WARN if incident.possible_doubles else Tone.GOOD,
        )
        return CommandResult(
            incident,
            (table_of(RunSeen, incident.runs),),
            notes=tuple(incident.notes()),
            summary=incident.closing,
            exit=incident.exit,
            screen=(
                table_of(RunSeen, incident.runs, "Runs"),
                Table("", columns("what", "value"), [{"what": what, "value": value} for what, value in figures]),
                *_tables(incident),
            ),
            page=page,
            page_only=True,
            closing=True,
        )

    return run_and_show(options, lambda stop: operations.report(request, stop=stop), shown)


def _tables(incident: IncidentReport) -> Iterator[Table]:
    of_all = columns("what: Destination or reason", "#messages")
    for title, named in (("Sent to", incident.destinations), ("Dead-lettered for", incident.dead_letter_reasons)):
        if named:
            most_first = sorted(named, key=lambda one: (-one[1], one[0]))
            yield Table(title, of_all, [{"what": what, "messages": messages} for what, messages in most_first])
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


# A drain as a page, for later readers of the incident: what waited, where it went, what is left and why.

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
        most_first = sorted(report.per_destination, key=lambda one: (-one[1], one[0]))
        title = "Where messages would go" if report.dry_run else "Where messages went"
        rest = most_first[_MOST_BARS:]
        note = f"{len(rest):,} others with {sum(one[1] for one in rest):,} together." if rest else ""
        yield Bars(title, tuple(Bar(name, messages) for name, messages in most_first[:_MOST_BARS]), note)
    why = columns("why", "#messages")
    if report.dead_letter_reasons:
        dead = [{"why": reason, "messages": messages} for reason, messages in report.dead_letter_reasons]
        yield Table("Would be dead-lettered" if report.dry_run else "Dead-lettered in this run", why, dead)
    ordered = sorted(report.left, key=lambda one: (-one.count, one.reason))
    left = [{"why": one.reason, "messages": one.count} for one in ordered]
    if left:
        yield Table("Would be left in the backlog" if report.dry_run else "Left in the backlog", why, left)
    if report.per_destination[_MOST_BARS:]:
        went = [{"destination": name, "messages": messages} for name, messages in most_first]
        yield Table("All destinations", columns("destination", "#messages"), went)
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
