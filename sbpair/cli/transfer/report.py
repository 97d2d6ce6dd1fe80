"""`sbpair incident`: the commands of a recovery one after another, each printed before it runs. `sbpair report`: an
incident over all runs of its ledgers, and whether their lines stand as they were written."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import agreed, can_ask
from sbpair.cli.context import load_settings, run_and_show
from sbpair.cli.options import Options, PairArgument, command
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, column
from sbpair.core.words import counted, listed
from sbpair.files import make_private_folder
from sbpair.render.console import say
from sbpair.render.result import CommandResult, table_of

_ENDS_IT = (Exit.FAILED, Exit.USAGE, Exit.DENIED, Exit.UNREACHABLE, Exit.INTERRUPTED, Exit.TERMINATED)


@dataclass(frozen=True, slots=True)
class IncidentStep:
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
    steps: tuple[IncidentStep, ...]

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
    return CommandResult(
        result, (table_of(IncidentStep, done),), summary=result.closing(len(steps)), exit=code, closing=True
    )


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


def _run(options: Options, steps: list[tuple[str, list[str]]]) -> Iterator[IncidentStep]:
    from sbpair.cli.running import run

    for step, (what, words) in enumerate(steps, 1):
        drains = "--yes" in words
        for line in ("", f"Step {step} of {len(steps)}: {what}", f"$ {shlex.join(words)}"):
            say(line)
        if drains and not agreed(options, "Run it?"):
            return
        code = Exit(run(words[1:]))
        yield IncidentStep(step, what, shlex.join(words), code.label, code, drains)
        if code in _ENDS_IT:
            return


# `sbpair report`.


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

    from sbpair.render.drained import incident_result

    return run_and_show(options, lambda stop: operations.report(request, stop=stop), incident_result)
