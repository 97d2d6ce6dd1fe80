"""The reports of `pipeline analyze` and `pipeline trend`: tables, and a page with charts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sbpair.core.durations import format_duration
from sbpair.core.serialization import spoken_time, to_plain
from sbpair.core.words import size_in_words
from sbpair.render.page import Bar, Bars, Card, Cards, ChartLine, LineChart, Page, Section, Text, Tone
from sbpair.render.result import CommandResult, Table, columns, concluded

if TYPE_CHECKING:
    from sbpair.core.inspection.trend import Reading, Trend
    from sbpair.pipeline.analysis.analyze import Analysis

Row = Mapping[str, Any]

_HOUR_SECONDS, _MINUTE_SECONDS = 3600, 60
_LINES = 5
"""Destinations with a line of their own in the chart."""
_BARS = 20
_PAGE_ROWS = 100
NO_DESTINATION = "(none)"


_COLUMNS = {
    "destinations": columns(
        "pair",
        "destination",
        "exists",
        ">messages",
        ">bytes",
        ">units: 64 KB units",
        ">dead_letters",
        ">sessions",
        "oldest_at: Oldest",
        ">age_p50",
        ">age_p95",
        ">size_p50: Bytes p50",
        ">size_p95: Bytes p95",
        ">size_max: Bytes max",
        ">near_limit",
        ">expired",
        ">expiring: Expires before drained",
    ),
    "outages": columns(
        "pair",
        "destination",
        "began_at: First diverted",
        "ended_at: Last diverted",
        ">lasted",
        ">messages",
        ">busiest_minute",
        "going_on: Ongoing",
    ),
    "forecast": columns(
        "pair",
        ">messages",
        ">operations",
        ">messages_per_second: Messages/s",
        ">lasts: Takes",
        "ends_at: Ends",
        ">cost_at_most",
        "currency",
    ),
    "time_to_live": columns(
        "pair", "destination", ">lives: Time to live", ">messages", ">expired", ">expiring: Expires before drained"
    ),
    "dead_letters": columns(
        "pair", "reason", "destination", ">messages", ">queues", "oldest_at: Oldest", "newest_at: Newest"
    ),
    "queues": columns(
        "pair", "queue", "dead_letter: Dead letters", ">messages", ">bytes", "oldest_at: Oldest", "newest_at: Newest"
    ),
    "sessions": columns(
        "pair", "destination", "session_id: Session", ">messages", ">queues", "interleaved", ">inversions"
    ),
    "duplicates": columns("pair", "destination", "message_id", ">copies", "queues", "first_at: First", "last_at: Last"),
}
"""By name in the data, in the order in which they are shown."""
_TITLES = {
    "forecast": "Drain forecast",
    "time_to_live": "Times to live",
    "sessions": "Sessions out of order or in several queues",
    "duplicates": "Message ids that occur more than once",
}
"""Where they are not the name in words."""


def analysis_result(analysis: "Analysis") -> CommandResult:
    """Tables for people, everything as data, the page."""
    shown = to_plain(analysis)
    tables = {
        name: Table(_TITLES.get(name, name.replace("_", " ").capitalize()), columns, shown[name])
        for name, columns in _COLUMNS.items()
    }
    for name, count in (("sessions", analysis.sessions_in_trouble), ("duplicates", analysis.duplicate_ids)):
        if (few := len(shown[name])) != count:
            tables[name] = replace(tables[name], title=f"{tables[name].title} (the worst {few} of {count:,})")
    first, *others = tables.values()
    found = [table for table in others if table.rows]
    return concluded(analysis, first, *found, page=_page(analysis, shown, tables))


def _sum(rows: Iterable[Row], key: str) -> int:
    return sum(int(row[key] or 0) for row in rows)


def _name(row: Row) -> str:
    return str(NO_DESTINATION if row["destination"] is None else row["destination"])


def _page(analysis: "Analysis", shown: Mapping[str, Sequence[Row]], tables: Mapping[str, Table]) -> Page:
    notes = list(analysis.notes())
    sections: list[Section] = [
        _cards(shown),
        *([Text("What to know first", notes)] if len(notes) > 1 else []),
        *_arrivals(shown),
        _bars("Messages by destination", shown["destinations"], _name),
        _narrow(tables["destinations"], "Destinations", _AMOUNTS),
        _narrow(tables["destinations"], "Sizes and expiry", _QUALITIES),
        _narrow(tables["outages"]),
        _narrow(tables["forecast"]),
        _bars("Spread over the queues", shown["queues"], _queue_name),
        Bars("Messages by size", _size_bars(shown["size_histogram"])),
        *(
            _narrow(tables[name])
            for name in ("time_to_live", "dead_letters", "sessions", "duplicates")
            if tables[name].rows
        ),
        Text("How to read this", _HOW_TO_READ),
    ]
    return Page(
        "What is in the backlog",
        sections,
        lead=" ".join([*notes[:1], analysis.summary()]),
        facts=(
            ("Archives", ", ".join(analysis.archives)),
            ("As of", spoken_time(analysis.as_of)),
            ("Assumed rate", f"{analysis.messages_per_second:g} messages a second"),
        ),
        tone=Tone.WARN if notes else Tone.GOOD,
    )


_AMOUNTS = ("exists", "messages", "bytes", "dead_letters", "sessions", "oldest_at", "age_p50", "age_p95")
_QUALITIES = ("units", "size_p50", "size_p95", "size_max", "near_limit", "expired", "expiring")
_PLACE = ("pair", "destination")


def _narrow(table: Table, title: str | None = None, keys: Sequence[str] | None = None) -> Table:
    """The table as it fits a page: these columns, without a name that is the same in all rows and without what nobody
    knows; times to the second, the first rows of many."""
    rows = table.rows[:_PAGE_ROWS]
    several = {row["pair"] for row in rows}
    columns = [
        column
        for column in table.columns
        if (keys is None or column.key in (*_PLACE, *keys))
        and (column.key != "pair" or len(several) > 1)
        and (not rows or any(row[column.key] is not None for row in rows))
    ]
    heading = title or table.title
    if len(table.rows) > len(rows):
        heading += f" (the first {len(rows)} of {len(table.rows):,})"
    return Table(heading, tuple(columns), [_readable(row) for row in rows])


def _readable(row: Row) -> dict[str, Any]:
    shown = {**row}
    for key, value in row.items():
        if key.endswith("_at") and isinstance(value, str):
            shown[key] = value[:19].replace("T", " ")
        elif isinstance(value, list):
            shown[key] = "\n".join(map(str, value))
    if "bytes" in row:
        shown["bytes"] = size_in_words(row["bytes"])
    if row.get("destination", "") is None:
        shown["destination"] = NO_DESTINATION
    return shown


_HOW_TO_READ = (
    "An outage begins with the first message of a destination that was diverted and ends with the last one before a "
    "quiet time. Messages that were drained before the archive was made are not in it.",
    "Sizes at a percentile are at most 6 % too large, ages are to the minute.",
    "Inversions are neighbours of a session whose times of arrival go backwards in the order of the queue. Interleaved "
    "sessions lie in several queues at the same time: drained queue by queue their order would change.",
    "The cost is an upper bound at list prices: every operation at the most expensive band.",
)


def _cards(shown: Mapping[str, Sequence[Row]]) -> Cards:
    destinations, forecasts = shown["destinations"], shown["forecast"]
    oldest = max((row["age_max_seconds"] for row in destinations), default=0.0)
    dead = _sum(shown["totals"], "dead_letters")
    over = _sum(destinations, "expired") + _sum(destinations, "expiring")
    lasts = max((row["seconds"] for row in forecasts), default=0.0)
    money = sum((Decimal(row["cost_at_most"]) for row in forecasts), Decimal(0))
    currency = forecasts[0]["currency"] if forecasts else ""
    return Cards(
        [
            Card("Messages", f"{_sum(shown['totals'], 'messages'):,}", size_in_words(_sum(shown["totals"], "bytes"))),
            Card("Oldest", format_duration(oldest), "ago"),
            Card("Drain forecast", format_duration(lasts), f"at most {money:,} {currency}".strip()),
            Card("Expired", f"{over:,}", "now or before they are drained", Tone.WARN if over else Tone.GOOD),
            Card("Dead letters", f"{dead:,}", tone=Tone.BAD if dead else Tone.GOOD),
        ]
    )


def _arrivals(shown: Mapping[str, Sequence[Row]]) -> Iterator[LineChart]:
    """Arrivals by hour, below a day by minute: the largest destinations, the rest together. Where nothing came is a
    zero. Of a single minute the bars below say as much."""
    unit, seconds = ("minute", _MINUTE_SECONDS) if shown["minutes"] else ("hour", _HOUR_SECONDS)
    amounts: dict[str, dict[float, int]] = {}
    for row in shown[f"{unit}s"]:
        own = amounts.setdefault(_name(row), {})
        at = datetime.fromisoformat(row[unit]).timestamp()
        own[at] = own.get(at, 0) + row["messages"]
    ranked = sorted(amounts, key=lambda name: (-sum(amounts[name].values()), name))
    everything = [at for own in amounts.values() for at in own]
    times = range(int(min(everything)), int(max(everything)) + 1, seconds) if everything else range(0)
    if len(times) < 2:
        return
    lines = [ChartLine(name, [(float(at), amounts[name].get(at, 0)) for at in times]) for name in ranked[:_LINES]]
    rest = ranked[_LINES:]
    if rest:
        together = [(float(at), sum(amounts[name].get(at, 0) for name in rest)) for at in times]
        lines.append(ChartLine(f"{len(rest)} others", together))
    per, shape = ("Messages an hour", "%m-%d %H:%M") if unit == "hour" else ("Messages a minute", "%H:%M")
    yield LineChart(
        f"Diverted messages by {unit}",
        lines,
        f"{unit.capitalize()} (UTC)",
        per,
        x_text=lambda at: datetime.fromtimestamp(at, UTC).strftime(shape),
    )


def _queue_name(row: Row) -> str:
    return f"{row['queue']}{' (dead letters)' if row['dead_letter'] else ''}"


def _bars(title: str, rows: Sequence[Row], name: Callable[[Row], str]) -> Bars:
    bars = [Bar(name(row), row["messages"], f"{row['messages']:,}") for row in rows[:_BARS]]
    rest = rows[_BARS:]
    return Bars(title, bars, f"{len(rest):,} others with {_sum(rest, 'messages'):,} together." if rest else "")


def _size_bars(rows: Sequence[Row]) -> list[Bar]:
    """Fine ranges joined to powers of two."""
    amounts: dict[int, int] = {}
    for row in rows:
        power = max(int(row["from_bytes"]), 1).bit_length()
        amounts[power] = amounts.get(power, 0) + row["messages"]
    return [
        Bar(f"below {size_in_words(2**power)}", amounts.get(power, 0), f"{amounts.get(power, 0):,}")
        for power in range(min(amounts, default=0), max(amounts, default=-1) + 1)
    ]


# A trend.

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


def trend_result(trend: "Trend") -> CommandResult:
    """A trend as tables and a page."""
    found = Table("Findings", FINDING_COLUMNS, to_plain(trend.findings), style_key="state")
    grown = Table("Queues", GROWTH_COLUMNS, to_plain(trend.queues))
    return concluded(trend, found, grown, page=_trend_page(trend, found, grown))


# What grows over weeks is seen in a chart or not at all: of all reports this one needs its page the most.
def _trend_page(trend: "Trend", found: Table, grown: Table) -> Page:
    notes, readings = list(trend.notes()), trend.readings
    pairs = sorted({one.pair for one in readings})
    sections: list[Section] = [
        Cards([_card(pair, [one for one in readings if one.pair == pair]) for pair in pairs]),
        *([Text("What to know first", notes)] if notes else []),
        _chart("Messages in the backlog", pairs, readings, lambda one: one.active),
        _chart("Dead letters", pairs, readings, lambda one: one.dead_letter),
        found,
        grown,
    ]
    lead = " ".join([*notes[:1], trend.summary()])
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
) -> LineChart:
    """A line a pair, through the audits that know the number."""
    lines = [
        ChartLine(
            pair,
            [(one.at, float(value)) for one in readings if one.pair == pair and (value := number(one)) is not None],
        )
        for pair in pairs
    ]
    return LineChart(title, lines, "Time (UTC)", "Messages", x_text=_time_text)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M")
