"""`sbpair report`: an incident over all runs of its ledgers, and whether their lines stand as they were written."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.context import run_and_show
from sbpair.cli.options import Options, command
from sbpair.core.durations import format_duration
from sbpair.core.transfer.ledger_report import IncidentReport, LedgerSeen, PossibleDouble, RunSeen
from sbpair.core.words import counted
from sbpair.render.page import Card, Cards, Page, Section, Text, Tone, number
from sbpair.render.result import CommandResult, Table, columns, table_of

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
