"""The tables of an analysis, out of the merged partial results. All of them are small, so the driver computes them.

Every query ends in the columns that are its contract. Times are UTC timestamps, sizes are bytes. Percentiles come from
buckets and are at most 6 % too large (sizes), or to the minute (ages).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Final, get_args, get_type_hints

from sbpair.core.durations import format_duration
from sbpair.core.serialization import published
from sbpair.core.words import merge_spellings
from sbpair.pipeline.analysis.partials import (
    MICROS,
    MICROS_PER_MINUTE,
    Question,
    Small,
    database,
    highest_sql,
    lowest_sql,
)
from sbpair.pipeline.rows import arrow_schema, to_table

if TYPE_CHECKING:
    import pyarrow as pa

# The rows of the tables, as `sbpair pipeline analyze -o json` prints them. `destination` is None of messages that name
# none; `units` are billing units of 64 KB.


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDestination:
    pair: str
    destination: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationRow(_OfDestination):
    messages: int
    bytes: int
    units: int
    dead_letters: int
    pings: int
    sessions: int
    oldest_at: datetime | None
    newest_at: datetime | None
    age_p50_seconds: float
    age_p95_seconds: float
    age_max_seconds: float
    size_p50: int
    size_p95: int
    size_p99: int
    size_max: int
    near_limit: int
    """Messages near the size limit."""
    expired: int
    expiring: int
    """Not expired yet, but before they are drained."""
    exists: bool | None
    """None without a snapshot."""

    @published
    def age_p50(self) -> str:
        return format_duration(self.age_p50_seconds)

    @published
    def age_p95(self) -> str:
        return format_duration(self.age_p95_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour(_OfDestination):
    hour: datetime
    messages: int
    bytes: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute(_OfDestination):
    """As `Hour`; only where all messages were diverted within a day, which hours would show as a few points."""

    minute: datetime
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    pair: str
    queue: str
    dead_letter: bool
    messages: int
    bytes: int
    units: int
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(_OfDestination):
    """From the first diverted message to the last one before a quiet time."""

    began_at: datetime
    ended_at: datetime
    seconds: float
    messages: int
    bytes: int
    busiest_minute: int
    going_on: bool

    @published
    def lasted(self) -> str:
        return format_duration(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLive(_OfDestination):
    lives_seconds: float
    messages: int
    expired: int
    expiring: int

    @published
    def lives(self) -> str:
        return format_duration(self.lives_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    pair: str
    reason: str | None
    destination: str | None
    messages: int
    bytes: int
    queues: int
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInTrouble(_OfDestination):
    """Out of order, or in several queues."""

    session_id: str | None
    messages: int
    bytes: int
    queues: int
    inversions: int
    interleaved: bool
    oldest_at: datetime | None
    newest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(_OfDestination):
    """A message id that occurs more than once for one destination."""

    message_id: str
    copies: int
    queues: tuple[str, ...]
    dead_letters: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    pair: str
    from_bytes: int
    to_bytes: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    pair: str
    messages: int
    bytes: int
    units: int
    dead_letters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisRows:
    """Every table of an analysis, in the order they are shown; of sessions and duplicates the worst."""

    destinations: tuple[DestinationRow, ...]
    hours: tuple[Hour, ...]
    minutes: tuple[Minute, ...]
    queues: tuple[QueueRow, ...]
    outages: tuple[Outage, ...]
    time_to_live: tuple[TimeToLive, ...]
    dead_letters: tuple[DeadLetterRow, ...]
    sessions: tuple[SessionInTrouble, ...]
    duplicates: tuple[Duplicate, ...]
    size_histogram: tuple[SizeRange, ...]
    totals: tuple[Total, ...]

    @classmethod
    def of(cls, tables: "Mapping[str, pa.Table]") -> "AnalysisRows":
        """The tables' columns are the rows' fields."""
        hints = get_type_hints(cls)
        kinds = {name: get_args(hints[name])[0] for name in RESULTS}
        return cls(**{name: tuple(kind(**row) for row in tables[name].to_pylist()) for name, kind in kinds.items()})


RESULTS: Final = tuple(one.name for one in fields(AnalysisRows))
"""Names of the tables."""

_SIZE_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_AGE_SHARES: Final = {"p50": 0.5, "p95": 0.95}


def _sums(*columns: str) -> str:
    """SQL: each column's sum under its name. A plain sum would have more digits than a whole number of Arrow."""
    return ", ".join(f"sum({name})::bigint as {name}" for name in columns)


_MESSAGES: Final = _sums("messages")
_SIZES: Final = _sums("messages", "bytes", "units")
_ENDS: Final = "make_timestamp(min(first_at)) as oldest_at, make_timestamp(max(last_at)) as newest_at"
_DEAD: Final = "coalesce(sum(messages) filter (dead_letter), 0)::bigint as dead_letters"

_HOURS = f"""select pair, destination, make_timestamp((minute // 60) * {60 * MICROS_PER_MINUTE}) as hour, {_SIZES}
    from times group by all order by pair, hour, destination"""

_MINUTES = f"""select pair, destination, make_timestamp(minute * {MICROS_PER_MINUTE}) as minute, {_MESSAGES}
    from times where (select max(minute) - min(minute) from times) < {24 * 60}
    group by all order by pair, minute, destination"""

_QUEUES = f"""select pair, queue, dead_letter, {_SIZES}, {_ENDS}
    from sizes group by pair, queue, dead_letter order by pair, length(queue), queue, dead_letter"""

_DEAD_LETTERS = f"""select pair, reason, destination, {_sums("messages", "bytes")},
        count(distinct queue) as queues, {_ENDS}
    from sizes where dead_letter group by all
    order by messages desc, pair, reason nulls first, destination nulls first"""

_SIZE_HISTOGRAM = f"""select pair, {lowest_sql("bucket")} as from_bytes, {highest_sql("bucket")} as to_bytes,
        {_sums("messages", "bytes")} from sizes group by all order by pair, from_bytes"""

_TOTALS = f"select pair, {_SIZES}, {_DEAD} from sizes group by all order by pair"

_TIME_TO_LIVE = f"""select pair, destination, {lowest_sql("bucket")} / 1000.0 as lives_seconds,
        {_sums("messages", "expired", "expiring")}
    from turns where bucket is not null group by all order by pair, destination nulls first, lives_seconds"""
"""Lengths are the lower end of their bucket, so a life that ends close to its message's turn counts as over."""


def _turns(question: Question) -> str:
    """With the number of messages that expire before they are drained, but have not yet. The backlog is taken to be
    drained oldest minute first at the question's rate."""
    each = max(1, round(MICROS / question.messages_per_second))
    return f"""create view turns as
        with drained as (
            select *, sum(messages) over (partition by pair order by minute
                range between unbounded preceding and current row) * {each} + {question.as_of_micros} as turn
            from times)
        select *, case when first_at + {lowest_sql("bucket")} * 1000 <= turn then messages - expired else 0
            end as expiring from drained"""


def _outages(question: Question) -> str:
    """When diversion of each destination began and ended: runs of minutes with diverted messages, parted by the
    question's quiet time. What was drained before the archive was made does not show."""
    going_on = question.as_of_micros - question.quiet_minutes * MICROS_PER_MINUTE
    return f"""
        with minutes as (
            select pair, destination, minute, {_sums("messages", "bytes")},
                min(first_at) as first_at, max(last_at) as last_at from times group by all),
        gaps as (
            select *, coalesce(minute - lag(minute) over (partition by pair, destination order by minute)
                > {question.quiet_minutes}, false) as gap from minutes),
        runs as (
            select *, sum(gap::int) over (partition by pair, destination order by minute) as run from gaps)
        select pair, destination, make_timestamp(min(first_at)) as began_at, make_timestamp(max(last_at)) as ended_at,
            (max(last_at) - min(first_at)) / {MICROS}.0 as seconds, {_sums("messages", "bytes")},
            max(messages) as busiest_minute, max(last_at) > {going_on} as going_on
        from runs group by pair, destination, run order by pair, began_at, destination nulls first"""


def _percentile(value: str, table: str, share: float) -> str:
    """The smallest value that at least this share of the messages does not exceed, by destination."""
    return f"""(select pair, destination, min({value}) as found from (
            select pair, destination, {value}, sum(messages) over w as so_far,
                sum(messages) over (partition by pair, destination) as everything
            from (select pair, destination, {value}, sum(messages) as messages from {table} group by all)
            window w as (partition by pair, destination order by {value}))
        where so_far >= everything * {share} group by all)"""


def _destinations(question: Question) -> str:
    """Per destination: how much, how large, how old, what is wrong with it. `exists` is null without a snapshot."""
    joins = [
        *((f"size_{name}", _percentile("bucket", "sizes", share)) for name, share in _SIZE_SHARES.items()),
        *((f"age_{name}", _percentile("age", "ages", share)) for name, share in _AGE_SHARES.items()),
    ]
    joined = "\n".join(
        f"left join {query} as {name} on {name}.pair = s.pair and {name}.destination is not distinct from s.destination"
        for name, query in joins
    )
    now = question.as_of_micros
    oldest = f"greatest(0.0, ({now} - s.first_at) / {MICROS}.0)"  # ages are counted by the minute, this one is not
    sizes = ", ".join(f"least({highest_sql(f'size_{name}.found')}, s.largest) as size_{name}" for name in _SIZE_SHARES)
    return f"""
        with ages as (
            select pair, destination, greatest(0, {now // MICROS_PER_MINUTE} - minute) as age, messages from times),
        s as (
            select pair, destination, {_SIZES}, {_DEAD}, {_sums("pings", "near_limit")}, max(largest) as largest,
                min(first_at) as first_at, max(last_at) as last_at
            from sizes group by all),
        t as (select pair, destination, {_sums("expired", "expiring")} from turns group by all),
        n as (select pair, destination, {_sums("sessions")} from counted group by all)
        select s.pair, s.destination, s.messages, s.bytes, s.units, s.dead_letters, s.pings,
            coalesce(n.sessions, 0) as sessions, make_timestamp(s.first_at) as oldest_at,
            make_timestamp(s.last_at) as newest_at, least(age_p50.found * 60.0::double, {oldest}) as age_p50_seconds,
            least(age_p95.found * 60.0::double, {oldest}) as age_p95_seconds,
            {oldest} as age_max_seconds, {sizes}, s.largest as size_max,
            s.near_limit, t.expired, t.expiring,
            case when s.destination is null or not (select looked from existence) then null
                else exists (select 1 from known where known.pair = s.pair and known.path = lower(s.destination))
            end as "exists"
        from s
        left join t on t.pair = s.pair and t.destination is not distinct from s.destination
        left join n on n.pair = s.pair and n.destination is not distinct from s.destination
        {joined}
        order by s.messages desc, s.pair, s.destination nulls first"""


def tables(
    small: Small, sessions_by_destination: "pa.Table", existing: Sequence[tuple[str, str]] | None, question: Question
) -> "dict[str, pa.Table]":
    """The tables that are made of sums. `existing`: (pair, path in lower case) of all queues and topics, if known."""
    known = to_table(existing or (), arrow_schema((("pair", "string"), ("path", "string"))))
    queries: Mapping[str, str] = {
        "destinations": _destinations(question),
        "hours": _HOURS,
        "minutes": _MINUTES,
        "queues": _QUEUES,
        "outages": _outages(question),
        "time_to_live": _TIME_TO_LIVE,
        "dead_letters": _DEAD_LETTERS,
        "size_histogram": _SIZE_HISTOGRAM,
        "totals": _TOTALS,
    }
    with database() as base:
        base.register("sizes", small.size)
        base.register("times", small.time)
        base.register("counted", sessions_by_destination)
        base.register("known", known)
        base.execute(f"create view existence as select {str(existing is not None).lower()} as looked")
        base.execute(_turns(question))
        return {name: in_utc(base.sql(query).to_arrow_table()) for name, query in queries.items()}


def spellings(sizes: "pa.Table") -> dict[str, str]:
    """For each destination in lower case the spelling that most messages have."""
    rows = sizes.group_by("spelled").aggregate([("messages", "sum")]).to_pylist()
    counts = {row["spelled"]: row["messages_sum"] for row in rows if row["spelled"] is not None}
    return {name.lower(): name for name in merge_spellings(counts)}


def spelled(table: "pa.Table", names: Mapping[str, str]) -> "pa.Table":
    """The table with destinations as they are written."""
    import pyarrow as pa

    place = table.schema.get_field_index("destination")
    if place < 0:
        return table
    shown = [None if one is None else names.get(one, one) for one in table["destination"].to_pylist()]
    return table.set_column(place, "destination", pa.array(shown, pa.string()))


def in_utc(table: "pa.Table") -> "pa.Table":
    """Timestamps without a zone are UTC here; now they say so. Decimals become numbers."""
    import pyarrow as pa

    def of(kind: "pa.DataType") -> "pa.DataType":
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", "UTC")
        return pa.float64() if pa.types.is_decimal(kind) else kind

    return table.cast(pa.schema([field.with_type(of(field.type)) for field in table.schema]))
