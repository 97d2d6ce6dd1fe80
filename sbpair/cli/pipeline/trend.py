"""`sbpair pipeline trend`: what the audits of weeks say together."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.pipeline.session import HtmlOption, write_report
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.inspection import audit as checks
from sbpair.core.words import counted
from sbpair.render.formats import iso_time, utc_time
from sbpair.render.page import Card, Cards, Line, Lines, Page, Section, Text, Tone
from sbpair.render.result import Column, CommandResult, Table

Row = Mapping[str, Any]

FLAPPING_CHANGES = 3
"""So often come or gone, and a finding flaps."""
FINDING_COLUMNS = (
    Column("pair", "Pair"),
    Column("code", "Code"),
    Column("title", "What it finds"),
    Column("state", "State"),
    Column("latest", "Latest", right=True),
    Column("most", "Most", right=True),
    Column("seen", "Seen in", right=True),
    Column("first_seen", "First seen"),
    Column("last_seen", "Last seen"),
    Column("changes", "Changes", right=True),
)
GROWTH_COLUMNS = (
    Column("pair", "Pair"),
    Column("queue", "Queue"),
    Column("active", "Messages", right=True),
    Column("dead_letter", "Dead letters", right=True),
    Column("size_bytes", "Bytes", right=True),
    Column("messages_per_hour", "Messages an hour", right=True),
    Column("bytes_per_hour", "Bytes an hour", right=True),
    Column("full_in", "Full in", right=True),
)


@command
def trend(
    options: Options,
    history: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that audits wrote to with --history.")],
    last: Annotated[
        str | None, typer.Option("--last", help="Only audits of this last period, e.g. 14d.", show_default=False)
    ] = None,
    html: HtmlOption = None,
) -> CommandResult:
    """Show from audit histories how backlogs grow, when they will be full, and which findings come, go and flap.

    \b
    Examples:
      sbpair audit --history history/          # from cron, every hour
      sbpair pipeline trend history/ --last 14d --html trend.html
    """
    from sbpair.pipeline import trend as trends

    seconds = duration_option(last)
    since = None if seconds is None else datetime.now(UTC).timestamp() - seconds
    audits = trends.read_history(history, since=since)
    if not audits:
        raise UsageError(f"No audits in {history}{f' of the last {last}' if last else ''}.")
    result = trend_result(trends.readings(audits), trends.growth(audits), trends.findings(audits))
    write_report(result, html)
    return result


def trend_result(readings: Sequence[Row], growth: Sequence[Row], findings: Sequence[Row]) -> CommandResult:
    """Rows of `pipeline.trend` as tables and a page."""
    found = Table("Findings", FINDING_COLUMNS, [_finding(row) for row in findings], style_key="state")
    grown = Table("Queues", GROWTH_COLUMNS, [_growth(row) for row in growth])
    notes = list(_notes(growth, findings))
    times = [row["at"] for row in readings]
    opened = sum(1 for row in findings if row["open"])
    summary = (
        f"{counted(len(readings), 'audit')} from {_minute(min(times))} to {_minute(max(times))} UTC; "
        f"{opened} kind{'s' if opened != 1 else ''} of findings open, "
        f"{sum(1 for row in findings if _flaps(row))} flapping."
    )
    data = {
        "readings": [{**row, "at": iso_time(row["at"])} for row in readings],
        "queues": grown.rows,
        "findings": found.rows,
    }
    return CommandResult(
        "pipeline trend",
        data,
        (found, grown),
        notes=tuple(notes),
        summary=summary,
        page=_page(readings, found, grown, notes, summary),
    )


def _minute(seconds: float) -> str:
    return utc_time(seconds).strftime("%Y-%m-%d %H:%M")


def _flaps(row: Row) -> bool:
    return bool(row["changes"] >= FLAPPING_CHANGES)


def _finding(row: Row) -> dict[str, Any]:
    state = "flapping" if _flaps(row) else "open" if row["open"] else "gone"
    return {
        "pair": row["pair"],
        "code": row["code"],
        "title": _title(row["code"]),
        "state": state,
        "latest": row["latest"],
        "most": row["most"],
        "seen": f"{row['seen']} of {row['audits']}",
        "first_seen": iso_time(row["first_seen"]),
        "last_seen": iso_time(row["last_seen"]),
        "changes": row["changes"],
    }


def _title(code: str) -> str:
    """Of a check of this release; a history may hold codes of others."""
    try:
        return checks.explain(code).title
    except UsageError:
        return ""


def _growth(row: Row) -> dict[str, Any]:
    until_full = row["seconds_until_full"]
    return {
        **row,
        "first_at": iso_time(row["first_at"]),
        "last_at": iso_time(row["last_at"]),
        "messages_per_hour": round(row["messages_per_hour"], 1),
        "bytes_per_hour": round(row["bytes_per_hour"]),
        "full_in": None if until_full is None else format_duration(until_full),
    }


_SOON_SECONDS = 7 * 86_400


def _notes(growth: Sequence[Row], findings: Sequence[Row]) -> Iterator[str]:
    for row in growth:
        seconds = row["seconds_until_full"]
        if seconds is not None and seconds < _SOON_SECONDS:
            yield f"{row['queue']} is full in {format_duration(seconds)} at the present rate."
    for row in findings:
        if _flaps(row):
            yield f"{row['code']} of {row['pair']} came or went {row['changes']} times."


def _page(readings: Sequence[Row], found: Table, grown: Table, notes: Sequence[str], summary: str) -> Page:
    pairs = sorted({row["pair"] for row in readings})
    sections: list[Section] = [
        Cards([_card(pair, [row for row in readings if row["pair"] == pair]) for pair in pairs]),
        *([Text("What to know first", notes)] if notes else []),
        _chart("Messages in the backlog", "Messages", pairs, readings, "active"),
        _chart("Dead letters", "Messages", pairs, readings, "dead_letter"),
        found,
        grown,
    ]
    return Page("Backlogs over time", sections, lead=summary, tone=Tone.WARN if notes else Tone.GOOD)


def _card(pair: str, readings: Sequence[Row]) -> Card:
    change = readings[-1]["active"] - readings[0]["active"]
    tone = Tone.WARN if change > 0 else Tone.GOOD
    return Card(pair, f"{readings[-1]['active']:,}", f"messages, {change:+,} since the first audit", tone)


def _chart(title: str, what: str, pairs: Sequence[str], readings: Sequence[Row], key: str) -> Lines:
    lines = [Line(pair, [(row["at"], float(row[key])) for row in readings if row["pair"] == pair]) for pair in pairs]
    return Lines(title, lines, "Time (UTC)", what, x_text=_time_text)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M")
