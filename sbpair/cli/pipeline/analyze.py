"""`sbpair pipeline analyze`: what is in archived backlogs, as tables, notes and a page."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.cost import price_table
from sbpair.cli.inspection.saved import read_snapshots
from sbpair.cli.options import Options, command, duration_option, moment_option
from sbpair.cli.pipeline.session import (
    ArchivesArgument,
    EngineOptions,
    HtmlOption,
    JobLog,
    check_folder,
    rows_in,
    write_report,
)
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.names import is_destination
from sbpair.core.serialization import spoken_time, to_plain
from sbpair.core.words import counted
from sbpair.render.page import Bar, Bars, Card, Cards, Line, Lines, Page, Section, Text, Tone
from sbpair.render.result import CommandResult, Table, columns

if TYPE_CHECKING:
    from sbpair.pipeline.analysis.analyze import Analysis, Found
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import Engine


_ONE_TASK_ROWS = 500_000
"""Up to here one task is done before Spark has started a second."""
_JVM_ROWS = 100_000
"""The JVM only passes partial results on, however many messages there are."""


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
    prices: Annotated[
        list[Path] | None, typer.Option(help="Price list: JSON of the Retail Prices API, or YAML.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Azure region of the prices.")] = None,
    *,
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
    from sbpair.pipeline.analysis.partials import Question

    if not rate < math.inf:  # typer takes `nan` for a number above any other
        raise UsageError(f"--assume-rate is a number of messages a second, not {rate}.")
    now = datetime.now(UTC).timestamp()
    question = Question(
        as_of=now if at is None else moment_option(at, "--at", now),
        limit_bytes=max_size_kb * 1024,
        messages_per_second=rate,
        quiet_minutes=max(1, round((duration_option(quiet_gap) or 0) / 60)),
    )
    table = price_table(prices or (), region=region, currency=None, egress_per_gigabyte=None)
    wanted = _Wanted(question, top, read_snapshots(snapshot) if snapshot is not None else (), parquet)
    for folder in [parquet] if parquet is not None else [html.parent] if html is not None else []:
        check_folder(folder)
    found = _by_spark(options, archives, wanted, by) if not by.local else _here(archives, wanted)
    from sbpair.pipeline.analysis.analyze import to_analysis

    result = result_of(to_analysis(found, archives, question, table), question)
    write_report(result, html)
    return result


@dataclass(frozen=True, slots=True)
class _Wanted:
    question: "Question"
    top: int
    snapshots: Sequence[Snapshot]
    parquet: Path | None

    def of(self, engine: "Engine", rows: int) -> "Found":
        from sbpair.pipeline.analysis.analyze import analyse

        return analyse(engine, self.question, rows=rows, top=self.top, snapshots=self.snapshots, folder=self.parquet)


def _here(archives: list[str], wanted: _Wanted) -> "Found":
    """In this process, without Spark and Java."""
    from sbpair.pipeline.analysis.units import LocalEngine, units_in

    rows = rows_in(archives)
    if rows is None:
        raise UsageError("--engine local reads folders, not URIs.", hint="Leave --engine out: Spark reads them.")
    cores = os.cpu_count() or 1
    units = units_in(_files(archives), at_least=cores)
    return wanted.of(LocalEngine(units, cores=cores), rows)


def _by_spark(options: Options, archives: list[str], wanted: _Wanted, by: EngineOptions) -> "Found":
    """Archives in folders are opened by the tasks; what lies elsewhere Spark reads for them."""
    from sbpair.pipeline.analysis.units import LocalEngine, SparkEngine, together, units_in
    from sbpair.pipeline.tables import SparkTables

    rows = rows_in(archives)
    units = units_in(_files(archives), at_least=os.cpu_count() or 1) if rows is not None else []
    if rows is not None and not units:
        return wanted.of(LocalEngine((), cores=1), 0)  # nothing to spread
    if units and sum(unit.rows for unit in units) <= _ONE_TASK_ROWS:
        units = [together(units)]
    spark = by.session(options, rows=_JVM_ROWS, name="analyze", sources=False)
    with spark as session, JobLog(options) as log:
        if rows is not None:
            return wanted.of(SparkEngine.over_units(session, units, log), rows)
        manifests = SparkTables(session).archived(archives, once=True, of_backlog=False)
        rows = sum(manifest.rows for manifest in manifests)
        return wanted.of(SparkEngine.over_rows(session, session.spark.table("archived"), rows, log), rows)


def _files(archives: Sequence[str]) -> list[str]:
    from sbpair.pipeline.manifest import LocalStore, check_archive

    stores = [LocalStore(Path(one)) for one in archives]
    return [str(store.root / file.path) for store in stores for file in check_archive(store).files]


# An analysis as tables, notes and a page.

Row = Mapping[str, Any]

_HOUR_SECONDS, _MINUTE_SECONDS = 3600, 60
_LINES = 5
"""Destinations with a line of their own in the chart."""
_BARS = 20
_PAGE_ROWS = 100
NO_DESTINATION = "(none)"


DESTINATION_COLUMNS = columns(
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
)
OUTAGE_COLUMNS = columns(
    "pair",
    "destination",
    "began_at: First diverted",
    "ended_at: Last diverted",
    ">lasted",
    ">messages",
    ">busiest_minute",
    "going_on: Ongoing",
)
FORECAST_COLUMNS = columns(
    "pair",
    ">messages",
    ">operations",
    ">messages_per_second: Messages/s",
    ">lasts: Takes",
    "ends_at: Ends",
    ">cost_at_most",
    "currency",
)
LIFE_COLUMNS = columns(
    "pair", "destination", ">lives: Time to live", ">messages", ">expired", ">expiring: Expires before drained"
)
DEAD_LETTER_COLUMNS = columns(
    "pair", "reason", "destination", ">messages", ">queues", "oldest_at: Oldest", "newest_at: Newest"
)
SESSION_COLUMNS = columns(
    "pair", "destination", "session_id: Session", ">messages", ">queues", "interleaved", ">inversions"
)
DUPLICATE_COLUMNS = columns(
    "pair", "destination", "message_id", ">copies", "queues", "first_at: First", "last_at: Last"
)
QUEUE_COLUMNS = columns(
    "pair", "queue", "dead_letter: Dead letters", ">messages", ">bytes", "oldest_at: Oldest", "newest_at: Newest"
)


def result_of(analysis: "Analysis", question: "Question") -> CommandResult:
    """Tables for people, everything as data, the page."""
    shown = to_plain(analysis)
    tables = _tables(shown, analysis)
    notes = list(_notes(shown, analysis))
    return CommandResult(
        analysis,
        (tables["destinations"], *(table for name, table in tables.items() if name != "destinations" and table.rows)),
        notes=tuple(notes),
        closing=True,
        summary=_summary(shown),
        page=_page(shown, tables, notes, analysis.archives, question),
    )


def _tables(shown: Mapping[str, Sequence[Row]], analysis: "Analysis") -> dict[str, Table]:
    return {
        "destinations": Table("Destinations", DESTINATION_COLUMNS, shown["destinations"]),
        "outages": Table("Outages", OUTAGE_COLUMNS, shown["outages"]),
        "forecast": Table("Drain forecast", FORECAST_COLUMNS, shown["forecast"]),
        "time_to_live": Table("Times to live", LIFE_COLUMNS, shown["time_to_live"]),
        "dead_letters": Table("Dead letters", DEAD_LETTER_COLUMNS, shown["dead_letters"]),
        "queues": Table("Queues", QUEUE_COLUMNS, shown["queues"]),
        "sessions": Table(
            _of("Sessions out of order or in several queues", shown["sessions"], analysis.sessions_in_trouble),
            SESSION_COLUMNS,
            shown["sessions"],
        ),
        "duplicates": Table(
            _of("Message ids that occur more than once", shown["duplicates"], analysis.duplicate_ids),
            DUPLICATE_COLUMNS,
            shown["duplicates"],
        ),
    }


def _of(title: str, rows: Sequence[Row], count: int) -> str:
    return title if len(rows) == count else f"{title} (the worst {len(rows)} of {count:,})"


def _notes(shown: Mapping[str, Sequence[Row]], analysis: "Analysis") -> Iterator[str]:
    """What a person has to know before the messages are drained."""
    rows = shown["destinations"]
    if missing := [row for row in rows if row["exists"] is False]:
        have = counted(_sum(missing, "messages"), "message has", "messages have")
        yield f"{have} a destination that does not exist on the primary: {', '.join(map(_name, missing))}."
    if strange := [row for row in rows if row["destination"] is None]:
        name = counted(_sum(strange, "messages"), "message names", "messages name")
        yield f"{name} no destination: not sent there by a failover sender."
    expired, expiring = _sum(rows, "expired"), _sum(rows, "expiring")
    if expired or expiring:
        have = counted(expired, "message has", "messages have")
        yield f"{have} expired; {expiring:,} more will expire before being drained."
    if invalid := [row for row in rows if row["destination"] and not is_destination(row["destination"])]:
        number = _sum(invalid, "messages")
        name = counted(number, "message names", "messages name")
        these = "it" if number == 1 else "them"
        yield f"{name} a destination that cannot be a queue or topic: a drain dead-letters {these}."
    if near := _sum(rows, "near_limit"):
        yield f"{counted(near, 'message is', 'messages are')} near the size limit."
    if sessions := analysis.sessions_in_trouble:
        yield f"{counted(sessions, 'session is', 'sessions are')} out of order or spread over several queues."
    if ids := analysis.duplicate_ids:
        yield f"{counted(ids, 'message id occurs', 'message ids occur')} more than once for one destination."


def _summary(shown: Mapping[str, Sequence[Row]]) -> str:
    messages, size = _sum(shown["totals"], "messages"), _sum(shown["totals"], "bytes")
    if not messages:
        return "No messages."
    lasts, rate = max((row["seconds"], row["messages_per_second"]) for row in shown["forecast"])
    count = len(shown["destinations"])
    return (
        f"{counted(messages, 'message')} ({_bytes(size)}) for {counted(count, 'destination')}; "
        f"at {rate:g} a second a drain takes {format_duration(lasts)}."
    )


def _sum(rows: Iterable[Row], key: str) -> int:
    return sum(int(row[key] or 0) for row in rows)


def _name(row: Row) -> str:
    return str(row["destination"]) if row["destination"] is not None else NO_DESTINATION


def _bytes(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"


def _page(
    shown: Mapping[str, Sequence[Row]],
    tables: Mapping[str, Table],
    notes: Sequence[str],
    archives: Sequence[str],
    question: "Question",
) -> Page:
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
        lead=" ".join([*notes[:1], _summary(shown)]),
        facts=(
            ("Archives", ", ".join(archives)),
            ("As of", spoken_time(question.as_of)),
            ("Assumed rate", f"{question.messages_per_second:g} messages a second"),
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
        shown["bytes"] = _bytes(row["bytes"])
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
            Card("Messages", f"{_sum(shown['totals'], 'messages'):,}", _bytes(_sum(shown["totals"], "bytes"))),
            Card("Oldest", format_duration(oldest), "ago"),
            Card("Drain forecast", format_duration(lasts), f"at most {money:,} {currency}".strip()),
            Card("Expired", f"{over:,}", "now or before they are drained", Tone.WARN if over else Tone.GOOD),
            Card("Dead letters", f"{dead:,}", tone=Tone.BAD if dead else Tone.GOOD),
        ]
    )


def _arrivals(shown: Mapping[str, Sequence[Row]]) -> Iterator[Lines]:
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
    lines = [Line(name, [(float(at), amounts[name].get(at, 0)) for at in times]) for name in ranked[:_LINES]]
    rest = ranked[_LINES:]
    if rest:
        together = [(float(at), sum(amounts[name].get(at, 0) for name in rest)) for at in times]
        lines.append(Line(f"{len(rest)} others", together))
    per, shape = ("Messages an hour", "%m-%d %H:%M") if unit == "hour" else ("Messages a minute", "%H:%M")
    yield Lines(
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
        Bar(f"below {_bytes(2**power)}", amounts.get(power, 0), f"{amounts.get(power, 0):,}")
        for power in range(min(amounts, default=0), max(amounts, default=-1) + 1)
    ]
