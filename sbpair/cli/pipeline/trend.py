"""`sbpair pipeline trend`: what the audits of weeks say together."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.pipeline.session import HtmlOption, write_report
from sbpair.core.errors import UsageError
from sbpair.render.result import CommandResult


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
