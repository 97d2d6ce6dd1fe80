"""What one unit of messages says, small enough to be sent around, and how such partial results become one.

Four kinds of rows:

    size       per queue, dead-letter reason, destination and size bucket
    time       per destination, minute of arrival and time-to-live bucket
    session    per session and queue: its messages in the order of their numbers, for inversions
    hash       a 32-bit hash of destination and id of every message that has an id

Merging is associative, so it may be done anywhere: in tasks, then on the driver. The two summed kinds grow with
destinations and minutes, not with messages. The other two grow with the messages, so they are cut into shares by the
hash of their key, and each share is merged by itself. A hash only chooses the messages that are then compared by their
ids: two ids with the same hash are possible and harmless (of ten million, some twenty thousand have one).

A message without an enqueued time counts as just arrived. Inversions of a session are neighbours in the order of the
queue's numbers whose enqueued times go backwards.

Sizes and times to live stand in buckets: exact below 16, above with 16 buckets to each power of two (6 % wide at most).
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.prices import STEP_BYTES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


MICROS = 1_000_000
MICROS_PER_MINUTE = 60 * MICROS
STANDARD_LIMIT_BYTES = 256 * 1024
"""Largest message of tiers Basic and Standard (Service Bus quotas)."""


@dataclass(frozen=True, slots=True)
class Question:
    """The moment (UTC epoch seconds) ages are measured at, and where things begin to be worth a word."""

    as_of: float
    limit_bytes: int = STANDARD_LIMIT_BYTES
    """Largest message the primary takes."""
    near_share: float = 0.9
    """From this share of the limit on a message is near it."""
    messages_per_second: float = 200.0
    """The rate the backlog is drained at."""
    quiet_minutes: int = 10
    """So long without a diverted message, and an outage of a destination is taken to be over."""

    @property
    def as_of_micros(self) -> int:
        return round(self.as_of * MICROS)

    @property
    def near_bytes(self) -> int:
        """Smallest size that is near the limit."""
        return math.ceil(self.limit_bytes * self.near_share)


MEMORY_LIMIT: Final = "1GB"
"""Of one task; beyond, DuckDB goes to the disk."""
SMALL, SESSION, HASH = "small", "session", "hash"
Key = tuple[str, int]
"""Kind of a part, and its share; the small kinds have one."""


@contextmanager
def database() -> "Iterator[duckdb.DuckDBPyConnection]":
    """An empty database in memory, on one thread: there is one for each core's task."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="sbpair-analyze-") as folder:
        settings: dict[str, Any] = {
            "threads": 1,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(config=settings) as base:
            yield base


def bucket_sql(number: str) -> str:
    """SQL of the bucket of a whole number from 0 to 2^53. The logarithm may be off by one next to a power of two."""
    rough = f"cast(floor(log2(greatest({number}, 1))) as bigint)"
    return _bucket_sql(
        number,
        f"(case when (1::bigint << {rough}) > {number} then {rough} - 1 "
        f"when (1::bigint << ({rough} + 1)) <= {number} then {rough} + 1 else {rough} end)",
    )


def size_bucket_sql(number: str) -> str:
    """The same below 2^46, for three quarters of the time: half a unit more keeps the logarithm off the powers."""
    return _bucket_sql(number, f"cast(floor(log2({number} + 0.5)) as bigint)")


def _bucket_sql(number: str, power: str) -> str:
    shift = f"greatest({power} - 4, 0)"
    return f"(case when {number} < 16 then {number} else 16 + {shift} * 16 + (({number} >> {shift}) & 15) end)"


def lowest_sql(bucket: str) -> str:
    """SQL of the lowest number in a bucket."""
    return (
        f"(case when {bucket} < 16 then {bucket} "
        f"else (16::bigint + {bucket} % 16) << cast(greatest({bucket} - 16, 0) // 16 as bigint) end)"
    )


def highest_sql(bucket: str) -> str:
    """SQL of the highest number in a bucket; a percentile out of buckets is never too small and at most 6 % too
    large."""
    return f"({lowest_sql(f'({bucket} + 1)')} - 1)"


_HASH_OF_ID: Final = "(hash(pair, destination, message_id) >> 32)::uinteger"
_SIZE_KEYS: Final = "pair, queue, dead_letter, reason, destination, spelled, bucket"
_TIME_KEYS: Final = "pair, destination, dead_letter, minute, bucket"
_LANE_KEYS: Final = "pair, queue, dead_letter, destination"
_SESSION_KEYS: Final = f"{_LANE_KEYS}, session_id"


def _prepare(base: "duckdb.DuckDBPyConnection", messages: "pa.Table", question: Question) -> None:
    base.register("messages", messages)
    base.execute(
        f"""create view m as select *, {_moment_sql(question)} as moment,
        greatest(1, ceil(size_bytes / {STEP_BYTES}.0))::bigint as steps from messages"""
    )


def _moment_sql(question: Question) -> str:
    return f"coalesce(epoch_us(enqueued_at), {question.as_of_micros})"


def with_sessions(messages: "pa.Table", most_numbers: int = 2**62) -> "pa.Table":
    """The messages with a number for each session of each queue, `session`: equal numbers are equal names. No number
    reaches `most_numbers` unless there are that many messages. `row` is the place of the message in the table, and
    `spelling` the place of its session's id among all of them in order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    number, numbers = pa.repeat(pa.scalar(0, pa.int64()), messages.num_rows), 1
    for name in _SESSION_KEYS.split(", "):
        column = messages[name].unify_dictionaries().combine_chunks()
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        if name == "session_id":  # as `session_key`: spellings of a session that differ in case are one session
            order = pc.rank(column.dictionary).cast(pa.int64())
            messages = messages.append_column("spelling", order.take(column.indices))
            folded = pc.utf8_lower(column.dictionary).dictionary_encode()
            column = pa.DictionaryArray.from_arrays(folded.indices.take(column.indices), folded.dictionary)
        elif len(column.dictionary) == 1 and not column.null_count:
            continue
        values = len(column.dictionary) + 1  # one more for null
        if numbers * values > most_numbers:
            known = number.dictionary_encode()
            number, numbers = known.indices.cast(pa.int64()), len(known.dictionary)
        place = pc.fill_null(column.indices.cast(pa.int64()), values - 1)
        number, numbers = pc.add(pc.multiply(number, values), place), numbers * values
    rows = pa.array(np.arange(messages.num_rows))
    return messages.append_column("session", number).append_column("row", rows)


def _size_sql(question: Question) -> str:
    return f"""select pair, queue, dead_letter, dead_letter_reason as reason, destination, spelled,
        {size_bucket_sql("size_bytes")} as bucket, count(*) as messages, sum(size_bytes)::bigint as bytes,
        sum(steps)::bigint as units, count(*) filter (size_bytes >= {question.near_bytes}) as near_limit,
        count(*) filter (is_ping) as pings, max(size_bytes) as largest, min(moment) as first_at, max(moment) as last_at
        from m group by all"""


def _time_sql(question: Question) -> str:
    """Times to live are few, so each one's bucket is looked for once."""
    return f"""with times as (
            select pair, destination, dead_letter, moment // {MICROS_PER_MINUTE} as minute, ttl_ms,
                count(*) as messages, sum(size_bytes)::bigint as bytes, sum(steps)::bigint as units,
                count(*) filter (moment + ttl_ms * 1000 <= {question.as_of_micros}) as expired,
                min(moment) as first_at, max(moment) as last_at from m group by all)
        select pair, destination, dead_letter, minute,
            case when ttl_ms is not null then {bucket_sql("ttl_ms")} end as bucket,
            sum(messages)::bigint as messages, sum(bytes)::bigint as bytes, sum(units)::bigint as units,
            sum(expired)::bigint as expired, min(first_at) as first_at, max(last_at) as last_at
        from times group by all"""


_SESSIONS_OF_MESSAGES: Final = """
    with neighbours as (
        select session, spelling, row, size_bytes, sequence_number, moment,
            moment < lag(moment) over (partition by session order by sequence_number, moment) as back
        from m where session_id is not null)
    select arg_min(row, spelling) as row, count(*) as messages, sum(size_bytes)::bigint as bytes,
        count(*) filter (back) as inversions, min(moment) as first_at, max(moment) as last_at,
        arg_min(moment, sequence_number) as entered_at, arg_max(moment, sequence_number) as left_at,
        min(sequence_number) as first_number, max(sequence_number) as last_number
    from neighbours group by session"""
"""Ordering by one number takes half the time of ordering by a session's five names; those are read from one row."""

_PLACE_KEYS: Final = "pair, queue, dead_letter"
_MERGED_SESSIONS: Final = f"""
    with shared as (select {_PLACE_KEYS} from parts group by all having min(part) < max(part)),
    neighbours as (
        select *, entered_at < lag(left_at) over (
            partition by {_LANE_KEYS}, lower(session_id) order by first_number, first_at) as back
        from parts semi join shared using ({_PLACE_KEYS}))
    select {_LANE_KEYS}, min(session_id) as session_id, sum(messages)::bigint as messages, sum(bytes)::bigint as bytes,
        (sum(inversions) + count(*) filter (back))::bigint as inversions,
        min(first_at) as first_at, max(last_at) as last_at,
        arg_min(entered_at, first_number) as entered_at, arg_max(left_at, last_number) as left_at,
        min(first_number) as first_number, max(last_number) as last_number
    from neighbours group by {_LANE_KEYS}, lower(session_id)
    union all by name select * exclude (part) from parts anti join shared using ({_PLACE_KEYS})"""
"""Where the next part of a session was entered before the one ahead of it was left, there is one more inversion. Most
queues are in one unit, and their sessions are whole already."""

_SAME_SESSION: Final = """a.pair = b.pair and a.destination is not distinct from b.destination
    and lower(a.session_id) = lower(b.session_id)"""
_SESSIONS_FOUND: Final = f"""
    with whole as (
        select pair, destination, min(session_id) as session_id, sum(messages)::bigint as messages,
            sum(bytes)::bigint as bytes, sum(inversions)::bigint as inversions, min(first_at) as first_at,
            max(last_at) as last_at, count(*) as places
        from parts group by pair, destination, lower(session_id)),
    spread as (
        select a.*, first_at < max(last_at) over (partition by pair, destination, lower(session_id)
            order by first_at, last_at rows between unbounded preceding and 1 preceding) as mixed
        from parts as a semi join (select * from whole where places > 1) as b on {_SAME_SESSION}),
    told as (
        select pair, destination, lower(session_id) as session_id, count(distinct queue) as queues,
            coalesce(bool_or(mixed), false) as interleaved
        from spread group by all)
    select a.pair, a.destination, a.session_id, messages, bytes, coalesce(queues, 1) as queues, inversions,
        coalesce(interleaved, false) as interleaved,
        make_timestamp(first_at) as oldest_at, make_timestamp(last_at) as newest_at
    from whole as a left join told as b on {_SAME_SESSION}"""
"""Ordering the places of a session, and telling its queues apart, is dear: only of those that have several."""

_MERGED_SIZES: Final = f"""select {_SIZE_KEYS}, sum(messages)::bigint as messages, sum(bytes)::bigint as bytes,
    sum(units)::bigint as units, sum(near_limit)::bigint as near_limit, sum(pings)::bigint as pings,
    max(largest) as largest, min(first_at) as first_at, max(last_at) as last_at from parts group by all"""
_MERGED_TIMES: Final = f"""select {_TIME_KEYS}, sum(messages)::bigint as messages, sum(bytes)::bigint as bytes,
    sum(units)::bigint as units, sum(expired)::bigint as expired,
    min(first_at) as first_at, max(last_at) as last_at from parts group by all"""


@dataclass(frozen=True, slots=True)
class Small:
    """The summed kinds."""

    size: "pa.Table"
    time: "pa.Table"


def parts_of(
    messages: "pa.Table", question: Question, shares: int, *, empty: bool = False
) -> Iterator[tuple[Key, Any]]:
    """The partial result of one unit: the summed kinds, and of each share the sessions and the hashes of ids. A share
    without rows is left out, unless `empty`."""
    with database() as base:
        _prepare(base, with_sessions(messages), question)
        yield (
            (SMALL, 0),
            Small(base.sql(_size_sql(question)).to_arrow_table(), base.sql(_time_sql(question)).to_arrow_table()),
        )
        base.register("sessions", _named_sessions(base.sql(_SESSIONS_OF_MESSAGES).to_arrow_table(), messages))
        for share in range(shares):
            mine = f"hash(pair, destination, lower(session_id)) % {shares} = {share}"
            found = base.sql(f"select * from sessions where {mine}").to_arrow_table()
            if found.num_rows or empty:
                yield (SESSION, share), found
        base.execute(f"create table ids as select {_HASH_OF_ID} as hash from m where message_id is not null")
        for share in range(shares):
            found = base.sql(f"select hash from ids where hash % {shares} = {share}").to_arrow_table()
            if found.num_rows or empty:
                yield (HASH, share), found


def _named_sessions(sessions: "pa.Table", messages: "pa.Table") -> "pa.Table":
    """With the names of each, as the message in its `row` has them."""
    found = messages.select(_SESSION_KEYS.split(", ")).take(sessions["row"])
    for name in sessions.column_names[1:]:
        found = found.append_column(name, sessions[name])
    return found


def merged_small(parts: Sequence[Small]) -> Small:
    if len(parts) == 1:
        return parts[0]
    return Small(
        _merged(_MERGED_SIZES, [one.size for one in parts]), _merged(_MERGED_TIMES, [one.time for one in parts])
    )


def merged_sessions(parts: "Sequence[pa.Table]") -> "pa.Table":
    """The sessions of one share; parts of a queue must not overlap in their numbers."""
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    numbered = [part.append_column("part", pa.repeat(place, part.num_rows)) for place, part in enumerate(parts)]
    return _merged(_MERGED_SESSIONS, numbered)


def _merged(query: str, tables: "Sequence[pa.Table]") -> "pa.Table":
    import pyarrow as pa

    with database() as base:
        base.register("parts", pa.concat_tables(tables))
        return base.sql(query).to_arrow_table()


def repeated(parts: "Sequence[pa.Table]") -> "pa.Table":
    """The hashes of one share that occur more than once, each at least once. Grouping takes ten times as long."""
    import numpy as np
    import pyarrow as pa

    hashes = np.sort(np.concatenate([part["hash"].to_numpy() for part in parts]))
    return pa.table({"hash": hashes[1:][hashes[1:] == hashes[:-1]]})


def perhaps_equal(messages: "pa.Table", hashes: "pa.Table", question: Question) -> "pa.Table":
    """The messages of a unit whose ids have one of these hashes, with the hash. Needs the columns `ID_COLUMNS`."""
    with database() as base:
        base.register("messages", messages)
        base.register("wanted", hashes)
        return base.sql(
            f"""with hashed as (select {_HASH_OF_ID} as hash, pair, destination, message_id,
                queue, dead_letter, {_moment_sql(question)} as moment from messages where message_id is not null)
            select * from hashed semi join wanted using (hash)"""
        ).to_arrow_table()


def in_shares(rows: "pa.Table", shares: int) -> "Iterator[tuple[int, pa.Table]]":
    """Rows with a hash, by their share."""
    with database() as base:
        base.register("found", rows)
        for share in range(shares):
            mine = base.sql(f"select * from found where hash % {shares} = {share}").to_arrow_table()
            if mine.num_rows:
                yield share, mine


def equal_ids(parts: "Sequence[pa.Table]") -> "pa.Table":
    """Ids that occur more than once for one destination; here the ids are compared, not their hashes."""
    return _merged(
        """select pair, destination, message_id, count(*) as copies, list_sort(list(distinct queue)) as queues,
            count(*) filter (dead_letter) as dead_letters,
            make_timestamp(min(moment)) as first_at, make_timestamp(max(moment)) as last_at
        from parts group by pair, destination, message_id having count(*) > 1""",
        parts,
    )


def sessions_found(sessions: "pa.Table") -> "pa.Table":
    """Per session: inversions, and the queues it is spread over. `interleaved`: messages of one queue arrived while
    others of the session went to another one, so draining queue by queue would change their order."""
    return _merged(_SESSIONS_FOUND, [sessions])


@dataclass(frozen=True, slots=True)
class Worst:
    """Of a share of sessions or duplicates: how many there are, the worst of them, and sessions by destination."""

    count: int
    rows: "pa.Table"
    by_destination: "pa.Table | None" = None


_WORST_FIRST: Final = {
    SESSION: "inversions desc, queues desc, messages desc, pair, destination, session_id",
    HASH: "copies desc, last_at desc, pair, destination, message_id",
}


def worst(kind: str, found: "pa.Table", top: int) -> Worst:
    """`found`: sessions, of which those out of order or in several queues count; or duplicates, which all do."""
    with database() as base:
        base.register("found", found)
        troubled = "where inversions > 0 or queues > 1" if kind == SESSION else ""
        ((count,),) = base.sql(f"select count(*) from found {troubled}").fetchall()
        rows = base.sql(f"select * from found {troubled} order by {_WORST_FIRST[kind]} limit {top}").to_arrow_table()
        by_destination = None
        if kind == SESSION:
            by_destination = base.sql(
                "select pair, destination, count(*) as sessions from found group by all"
            ).to_arrow_table()
        return Worst(int(count), rows, by_destination)


def worst_of(kind: str, shares: Iterable[Worst], top: int) -> Worst:
    """The worst of all shares."""
    import pyarrow as pa

    given = list(shares)
    rows = pa.concat_tables([one.rows for one in given])
    with database() as base:
        base.register("found", rows)
        first = base.sql(f"select * from found order by {_WORST_FIRST[kind]} limit {top}").to_arrow_table()
    counted = [one.by_destination for one in given if one.by_destination is not None]
    return Worst(sum(one.count for one in given), first, pa.concat_tables(counted) if counted else None)
