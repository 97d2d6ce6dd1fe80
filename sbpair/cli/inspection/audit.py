"""`sbpair audit`: snapshot, checks, findings."""

from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Severity
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult


@command
def audit(
    options: Options,
    pairs: PairsArgument = None,
    save: Annotated[
        Path | None, typer.Option(help="Write what was seen to this file; it holds no keys.", show_default=False)
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="Check a file written by --save; contacts nobody.", show_default=False)
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            help="Only this check; repeatable.",
            show_default=False,
            autocompletion=suggestions.check_codes,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODE[:PATTERN]",
            help="Leave known findings out; repeatable.",
            show_default=False,
            autocompletion=suggestions.check_codes,
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Append one line a pair to files in this folder.", show_default=False)
    ] = None,
    fail_on: Annotated[
        Severity, typer.Option("--fail-on", help="Findings from here on make the exit code 5.")
    ] = Severity.WARNING,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="List the checks and exit.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Explain one check and exit.",
            show_default=False,
            autocompletion=suggestions.check_codes,
        ),
    ] = None,
) -> CommandResult:
    """Check that pairs are as they should be: backlog queues missing, extra, different, stranded, rights, drift.

    Reads only. What would become a finding is read twice. A check that cannot run is reported as skipped, with the
    reason. Exit code 5 on findings, 6 when a namespace cannot be reached, 4 when access is denied.

    \b
    Examples:
      sbpair audit orders
      sbpair audit --save today.json -o nagios && sbpair audit --from today.json --explain SBP001
      sbpair audit --ignore 'SBP002:contoso-old/*' --fail-on error -o prometheus --outfile sbpair.prom
    """
    from sbpair.cli.inspection import audit_run

    if list_checks:
        return audit_run.listed()
    if explain is not None:
        return audit_run.explained(explain)
    for path in (save, history / "a pair.jsonl" if history else None):
        if path is not None:
            check_writable(path)
    if from_file is not None and save is not None:
        raise UsageError("--from reads a saved snapshot; there is nothing to --save.")
    request = audit_run.Request(pairs, from_file, save, history, check, ignore or (), fail_on)
    return audit_run.run(options, request)
