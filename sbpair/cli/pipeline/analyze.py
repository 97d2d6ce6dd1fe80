"""`sbpair pipeline analyze`: what is in archived backlogs, as tables, notes and a page."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.cost import PriceOptions
from sbpair.cli.inspection.saved import read_snapshots
from sbpair.cli.options import Options, command, duration_option, moment_option
from sbpair.cli.pipeline.session import ArchivesArgument, EngineOptions, HtmlOption, check_folder, write_report
from sbpair.core.errors import UsageError
from sbpair.render.result import CommandResult


@command(output="pipeline.analysis.analyze:Analysis", page=True)
def analyze(
    options: Options,
    archives: ArchivesArgument,
    snapshot: Annotated[
        Path | None, typer.Option(help="Check the destinations against this snapshot (audit --snapshot-out).")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Ages are as of then: ISO 8601, or how long ago. Default: now.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--assume-rate", min=0.001, help="Messages a second that a drain would send.")
    ] = 200.0,
    max_size_kb: Annotated[int, typer.Option(min=1, help="Largest message that the primary accepts.")] = 256,
    quiet_gap: Annotated[
        str, typer.Option(metavar="DURATION", help="An outage ends after this long without a diverted message.")
    ] = "10m",
    top: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="List this many sessions and duplicates, the worst first.")
    ] = 20,
    html: HtmlOption = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every table in full to this folder.")
    ] = None,
    *,
    listed: PriceOptions,
    by: EngineOptions,
) -> CommandResult:
    """Report what is in archived backlogs: destinations, sizes, ages, sessions, duplicates, outages, drain forecast.

    Sends nothing and changes nothing.

    \b
    Examples:
      sbpair pipeline analyze backlog/ --html backlog.html
      sbpair pipeline analyze backlog/ --engine local
      sbpair pipeline analyze monday/ tuesday/ --snapshot today.json --assume-rate 500 -o json
    """
    by.check()
    from sbpair.pipeline.analysis.analyze import analyse_archives, to_analysis
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.render.reports import analysis_result

    prices, now = listed.table(), datetime.now(UTC).timestamp()
    question = Question(
        as_of=now if at is None else moment_option(at, "--at", now),
        limit_bytes=max_size_kb * 1024,
        messages_per_second=rate,
        quiet_minutes=max(1, round((duration_option(quiet_gap) or 0) / 60)),
    )
    for folder in [parquet] if parquet is not None else [html.parent] if html is not None else []:
        check_folder(folder)
    found = analyse_archives(
        archives,
        question,
        spark=None if by.local else by.job(options, name="analyze"),
        top=top,
        snapshots=read_snapshots(snapshot) if snapshot is not None else (),
        folder=parquet,
    )
    result = analysis_result(to_analysis(found, archives, question, prices))
    write_report(result, html)
    return result


# `sbpair pipeline trend`: what the audits of weeks say together.


@command(output="core.inspection.trend:Trend", page=True)
def trend(
    options: Options,
    history: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that audits wrote to with --history.")],
    last: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only audits of this last period, e.g. 14d.")
    ] = None,
    html: HtmlOption = None,
) -> CommandResult:
    """Show from audit histories how backlogs grow, when they will be full, and which findings come, go and flap.

    \b
    Examples:
      sbpair audit --history history/          # from cron, every hour
      sbpair pipeline trend history/ --last 14d --html trend.html
    """
    from sbpair.core.inspection import trend as trends
    from sbpair.operations.audit import read_history
    from sbpair.render.reports import trend_result

    seconds = duration_option(last)
    since = None if seconds is None else datetime.now(UTC).timestamp() - seconds
    audits = read_history(history, since=since)
    if not audits:
        raise UsageError(f"No audits in {history}{f' of the last {last}' if last else ''}.")
    result = trend_result(trends.trend(audits))
    write_report(result, html)
    return result
