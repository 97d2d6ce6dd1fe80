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


@command(output="core.inspection.audit.result:Printed", checks=True, page=True)
def audit(
    options: Options,
    pairs: PairsArgument = None,
    snapshot_out: Annotated[
        Path | None,
        typer.Option("--snapshot-out", help="Save what was read to this file; it holds no keys.", show_default=False),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option("--snapshot", help="Check this saved snapshot instead; contacts nothing.", show_default=False),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="CODE",
            help="Run only this check; repeatable.",
            show_default=False,
            autocompletion=suggestions.check_codes,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODE[:PATTERN]",
            help="Ignore these findings; repeatable.",
            show_default=False,
            autocompletion=suggestions.check_codes,
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Append one line per pair to a file in this folder.", show_default=False),
    ] = None,
    fail_on: Annotated[
        Severity, typer.Option("--fail-on", help="Minimum severity that yields exit code 5.")
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
    """Find stranded messages, and backlog queues that are missing, extra or set up wrong.

    Reads only, and reads twice before it reports a finding. A check that cannot run is reported as skipped, with the
    reason. Exit code: 5 findings, 6 a namespace cannot be reached, 4 access denied.

    \b
    Examples:
      sbpair audit orders
      sbpair audit --snapshot-out today.json && sbpair audit --snapshot today.json
      sbpair audit --explain SBP001
      sbpair audit --ignore 'SBP002:contoso-old/*' --fail-on error -o prometheus --outfile sbpair.prom
    """
    from sbpair.cli.inspection import audit_run

    if list_checks:
        return audit_run.listed()
    if explain is not None:
        return audit_run.explained(explain, pairs[0] if pairs and len(pairs) == 1 else None)
    for path in (snapshot_out, history / "a pair.jsonl" if history else None):
        if path is not None:
            check_writable(path)
    if snapshot is not None and snapshot_out is not None:
        raise UsageError("--snapshot reads a saved snapshot; there is nothing to save with --snapshot-out.")
    request = audit_run.Request(pairs, snapshot, snapshot_out, history, check, ignore or (), fail_on)
    return audit_run.run(options, request)
