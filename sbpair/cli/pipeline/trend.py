"""`sbpair pipeline trend`: what the audits of weeks say together."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.pipeline.session import HtmlOption, write_report
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.serialization import to_plain, utc_time
from sbpair.core.words import counted
from sbpair.render.page import Card, Cards, Line, Lines, Page, Section, Text, Tone
from sbpair.render.result import CommandResult, Table, columns

if TYPE_CHECKING:
    from sbpair.core.inspection.trend import Reading, Trend

FINDING_COLUMNS = columns(
    "pair",
    "code",
    "title: What it finds",
    "state",
    ">latest",
    ">most",
    ">seen: Seen in",
    "first_seen",
    "last_seen",
    ">changes",
)
GROWTH_COLUMNS = columns(
    "pair",
    "queue",
    "#active: Messages",
    "#dead_letter: Dead letters",
    ">size_bytes: Bytes",
    ">messages_per_hour: Messages an hour",
    ">bytes_per_hour: Bytes an hour",
    ">full_in",
)


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

    seconds = duration_option(last)
    since = None if seconds is None else datetime.now(UTC).timestamp() - seconds
    audits = read_history(history, since=since)
    if not audits:
        raise UsageError(f"No audits in {history}{f' of the last {last}' if last else ''}.")
    result = trend_result(trends.trend(audits))
    write_report(result, html)
    return result


def trend_result(trend: "Trend") -> CommandResult:
    """A trend as tables and a page."""
    found = Table("Findings", FINDING_COLUMNS, to_plain(trend.findings), style_key="state")
    grown = Table("Queues", GROWTH_COLUMNS, to_plain(trend.queues))
    notes = list(_notes(trend))
    times = [one.at for one in trend.readings]
    summary = (
        f"{counted(len(times), 'audit')} from {_minute(min(times))} to {_minute(max(times))} UTC; "
        f"{counted(sum(one.open for one in trend.findings), 'kind')} of findings open, "
        f"{sum(one.flaps for one in trend.findings)} flapping."
    )
    return CommandResult(
        trend,
        (found, grown),
        notes=tuple(notes),
        closing=True,
        summary=summary,
        page=_page(trend.readings, found, grown, notes, summary),
    )


def _minute(seconds: float) -> str:
    return utc_time(seconds).strftime("%Y-%m-%d %H:%M")


_SOON_SECONDS = 7 * 86_400


def _notes(trend: "Trend") -> Iterator[str]:
    for queue in trend.queues:
        seconds = queue.seconds_until_full
        if seconds is not None and seconds < _SOON_SECONDS:
            yield f"{queue.queue} is full in {format_duration(seconds)} at the present rate."
    for one in trend.findings:
        if one.flaps:
            yield f"{one.code} of {one.pair} came or went {one.changes} times."
    blind = sum(one.active is None for one in trend.readings)
    if blind:
        yield f"What was in the queues is unknown for {counted(blind, 'audit')}: they could not be read."


# What grows over weeks is seen in a chart or not at all: of all reports this one needs its page the most.
def _page(readings: Sequence["Reading"], found: Table, grown: Table, notes: Sequence[str], summary: str) -> Page:
    pairs = sorted({one.pair for one in readings})
    sections: list[Section] = [
        Cards([_card(pair, [one for one in readings if one.pair == pair]) for pair in pairs]),
        *([Text("What to know first", notes)] if notes else []),
        _chart("Messages in the backlog", pairs, readings, lambda one: one.active),
        _chart("Dead letters", pairs, readings, lambda one: one.dead_letter),
        found,
        grown,
    ]
    lead = " ".join([*notes[:1], summary])
    return Page("Backlogs over time", sections, lead=lead, tone=Tone.WARN if notes else Tone.GOOD)


def _card(pair: str, readings: Sequence["Reading"]) -> Card:
    known = [one.active for one in readings if one.active is not None]
    if not known:
        return Card(pair, "unknown", "messages: no audit could read the queues", Tone.WARN)
    change = known[-1] - known[0]
    tone = Tone.WARN if change > 0 else Tone.GOOD
    return Card(pair, f"{known[-1]:,}", f"messages, {change:+,} since the first audit", tone)


def _chart(
    title: str, pairs: Sequence[str], readings: Sequence["Reading"], number: Callable[["Reading"], int | None]
) -> Lines:
    """A line a pair, through the audits that know the number."""
    lines = [
        Line(
            pair,
            [(one.at, float(value)) for one in readings if one.pair == pair and (value := number(one)) is not None],
        )
        for pair in pairs
    ]
    return Lines(title, lines, "Time (UTC)", "Messages", x_text=_time_text)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M")
