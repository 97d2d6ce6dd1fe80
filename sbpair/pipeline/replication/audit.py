"""`pipeline replication-audit`: parts of archives and journal, brought together by session, judged, merged.

    parts = archive_parts(["archive/weu"], ["archive/neu"], at_least=2) + await journal_parts(journal)
    report = audit(parts, Asked(as_of=time.time()), journal=journal.name)

What the rows of some sessions say: every message with what archives and journal know of it, and what is wrong.

All rows of a session have to be here. What can be said, and from what:

    missing        needs a stamp: a message that waits names what was accepted before it. Without stamps nothing tells
                   of a message that neither side has.
    unprocessed    the journal has neither a record nor, by the numbers of stamps, a mark of it - and cannot have
                   forgotten one: a record outlives the last copy by `remember`, so it can only be gone for a message
                   that was put there longer ago than that. Such messages are `unknown`.
    out_of_order   fences grow with every start in a session, so the fences of finished messages give the order in
                   which they began, without any clock. With stamps the numbers say what comes first; without, the
                   numbers of the queue do, on each side: out of order is what is so on every side that has it.
                   A copy that came after its message was finished (one sent again) says nothing of order.
    sides_differ   without stamps the sides' orders are all there is: two messages that lie in one order here and in
                   the other there have no order that could be kept.
    twice          attempts that the journal counted. It does not know of a message that ran again after its record had
                   been forgotten.
    one_side       the other side's archive lacks it, and its record does not say that a copy was settled there.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.errors import JournalError, UsageError
from sbpair.core.replication.ownership import DAY_SECONDS, FAILED, FORGOTTEN, OVERTAKEN, SessionState
from sbpair.journal.sqlite import SqliteJournal, documents, key_ranges
from sbpair.pipeline.analysis.partials import MICROS, SESSION, Key, database
from sbpair.pipeline.analysis.units import Engine, LocalEngine, SparkEngine
from sbpair.pipeline.replication import sources
from sbpair.pipeline.reports import VERDICTS, AuditedDestination, ReplicationFinding, ReplicationReport, VerdictCounts
from sbpair.runtime.replication.store import MESSAGE
from sbpair.runtime.replication.store import SESSION as SESSION_ENTRY

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark
    from sbpair.ports import Journal


@dataclass(frozen=True, slots=True)
class AuditTerms:
    """`as_of`, `until`: UTC epoch seconds; durations in seconds."""

    as_of: float
    remember_seconds: float = DAY_SECONDS
    retention_seconds: float = 14 * DAY_SECONDS
    """What the consumers were given as --remember and --retention."""
    until: float | None = None
    """Only messages that were there by then; None: all."""
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class Judged:
    """Of a share of the sessions: a row for each destination, the first findings, and what was said of the rows."""

    destinations: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    copies: int
    left_out: int
    unreadable: tuple[str, ...]


_KEY: Final = "destination, session_id, message_id"
_FOUND: Final = (*_KEY.split(", "), "verdict", "why")
_COMPLETED: Final = f"state = '{SessionState.COMPLETED.value}'"
_FAILED: Final = f"state = '{SessionState.FAILED.value}'"
_IN_LINE: Final = "not dead_letter and state not in ('scheduled', 'deferred')"
"""What has a place in the queue's order."""


def judge(asked: AuditTerms, _: Key, parts: Sequence[sources.Rows]) -> Judged:
    """All findings of the sessions whose rows these are."""
    import pyarrow as pa

    with database() as base:
        for kind in sources.COLUMNS:
            tables = [one.table for one in parts if one.kind == kind]
            base.register(f"spelled_{kind}", pa.concat_tables([sources.table_of(kind, ()), *tables]))
            base.execute(  # as `session_key`: spellings of a session that differ in case are one session
                f"create view given_{kind} as select * replace (lower(session_id) as session_id) from spelled_{kind}"
            )
        as_of, until = asked.as_of, asked.as_of if asked.until is None else asked.until
        moments = as_of - asked.remember_seconds, as_of - asked.retention_seconds, until
        base.execute(
            "create table moments as select ? as remembered_from, ? as retained_from, ? as judged_until",
            [round(seconds * MICROS) for seconds in moments],
        )
        for name, query in _TABLES.items():
            base.execute(f"create table {name} as {query}")
        base.execute(f"create table found ({', '.join(f'{name} varchar' for name in _FOUND)})")
        for query in _FINDINGS.values():
            base.execute(f"insert into found {query}")
        destinations = base.sql(_DESTINATIONS).to_arrow_table().to_pylist()
        listed = base.sql(f"{_LISTED} limit {asked.limit}").to_arrow_table().to_pylist()
    copies = [one for one in parts if one.kind == sources.COPIES]
    unreadable = tuple(place for one in copies for place in one.unreadable)
    return Judged(
        destinations, listed, sum(one.rows for one in copies), sum(one.left_out for one in copies), unreadable
    )


def _of(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in _KEY.split(", "))


_TABLES: Final[Mapping[str, str]] = {
    "copies": f"""
        select *, {_IN_LINE} as in_line, stream is not null and place is not null as stamped
        from given_copies qualify row_number() over (
            partition by side, destination, dead_letter, "number", enqueued_us, message_id) = 1""",
    "records": f"""
        select {_KEY}, any_value(state) as state, max(at_us) as at_us,
            any_value(code) as code, any_value(reason) as reason, max(attempts) as attempts, max(fence) as fence,
            bool_or(on_primary) as on_primary, bool_or(on_secondary) as on_secondary
        from given_records group by all""",
    "heads": """
        select destination, session_id, stream, max("number") as "number" from given_heads group by all""",
    "stamps": f"""
        select distinct {_KEY}, stream, place, after, after_ids from copies where stamped""",
    "by_number": f"""
        select {_of("s")}, bool_or(place <= coalesce(h."number", 0)) as finished,
            bool_or(p.first is not null) as passed
        from stamps s left join heads h using (destination, session_id, stream)
        left join given_passed p on (p.destination, p.session_id, p.stream) = (s.destination, s.session_id, s.stream)
            and s.place between p.first and p.last group by all""",
    "seen": f"""
        select {_KEY}, count(*) filter (side = 'primary') as primaries,
            count(*) filter (side = 'secondary') as secondaries,
            greatest(count(*) filter (side = 'primary' and in_line),
                count(*) filter (side = 'secondary' and in_line)) as most_in_line,
            min(enqueued_us) as first_us, bool_or(stamped) as stamped, bool_or(dead_letter) as dead,
            max(reason) filter (dead_letter) as dead_because from copies group by all""",
    "messages": f"""
        with joined as (
            select {_KEY}, seen.* exclude ({_KEY}), records.* exclude ({_KEY}),
                coalesce(by_number.finished, false) as finished, coalesce(by_number.passed, false) as passed
            from seen full join records using ({_KEY}) left join by_number using ({_KEY}))
        select joined.*, begun.attempts as begun, waits.missing_id, waits.missing_place,
            state is null and not finished as open,
            first_us >= case when coalesce(stamped, false) then retained_from else remembered_from end
                or begun.attempts is not null or waits.waiting_id is not null as sure
        from joined cross join moments
        left join (select destination, session_id, current_id, max(attempts) as attempts
            from given_entries where current_id is not null group by all) begun
            on (begun.destination, begun.session_id, begun.current_id)
                = (joined.destination, joined.session_id, joined.message_id)
        left join (select distinct on (destination, session_id, waiting_id) *
            from given_entries where waiting_id is not null) waits
            on (waits.destination, waits.session_id, waits.waiting_id)
                = (joined.destination, joined.session_id, joined.message_id)
        where coalesce(first_us, at_us, 0) <= judged_until""",
    "follows": f"""
        with words as (
            select {_KEY}, unnest(list_zip(string_split(trim(after), ' '),
                case when json_valid(after_ids) then json_extract_string(after_ids, '$[*]') end)) as pair
            from stamps where after is not null and trim(after) <> '')
        select {_KEY}, regexp_extract(pair[1], '^(.*):([0-9]+)$', 1) as stream,
            try_cast(regexp_extract(pair[1], '^(.*):([0-9]+)$', 2) as bigint) as place,
            coalesce(pair[2], '') as before_id from words""",
    "begun": f"""
        select {_KEY}, fence, at_us from messages where {_COMPLETED} and fence > 0""",
}
"""What the findings are made of, each out of those before it and what was given: what each part says of a message
(copies, the journal's records, places in their streams), and in `messages` one line for each with all that is known."""

_BEHIND = """max(fence) over before_it as latest, max_by(message_id, fence) over before_it as ahead"""

_FINDINGS: Final[Mapping[str, str]] = {
    "missing": f"""
        select distinct f.destination, f.session_id,
            coalesce(nullif(f.before_id, ''), f.stream || ':' || f.place), 'missing',
            f.message_id || ' names it (' || f.stream || ':' || f.place || ') as accepted before; no archive has it, '
            || 'and it was not processed'
        from follows f join messages m using ({_KEY})
        left join heads h on (h.destination, h.session_id, h.stream) = (f.destination, f.session_id, f.stream)
        left join records r on (r.destination, r.session_id, r.message_id)
            = (f.destination, f.session_id, nullif(f.before_id, ''))
        left join seen on (seen.destination, seen.session_id, seen.message_id)
            = (f.destination, f.session_id, nullif(f.before_id, ''))
        left join stamps s on (s.destination, s.session_id, s.stream, s.place)
            = (f.destination, f.session_id, f.stream, f.place)
        where m.open and m.sure and f.place is not null and f.place > coalesce(h."number", 0)
            and r.message_id is null and seen.message_id is null and s.message_id is null""",
    "unprocessed": f"""
        select {_KEY}, 'unprocessed',
            case when dead then 'dead-lettered without being processed: ' || coalesce(dead_because, 'no reason given')
                when begun is not null then 'begun ' || begun || case when begun = 1 then ' time' else ' times' end
                    || ' and not finished'
                when missing_id is not null or missing_place is not null
                    then 'waits for ' || coalesce(nullif(missing_id, ''), missing_place)
                else 'not begun' end
        from messages where open and sure and not coalesce(dead and {FAILED!r} = dead_because, false)
            and not coalesce(dead and {OVERTAKEN!r} = dead_because, false)""",
    "failed": f"""
        select {_KEY}, 'failed', case when {_FAILED} then code || ': ' || reason
            when passed then '{OVERTAKEN}: later messages of its session were processed without it'
            else 'dead-lettered: ' || dead_because end
        from messages where {_FAILED} or (state is null and passed)
            or (open and dead and dead_because in ('{FAILED}', '{OVERTAKEN}'))""",
    "out_of_order": f"""
        with numbered as (
            select {_KEY}, stream, fence, {_BEHIND}
            from (select {_KEY}, stream, min(place) as place from stamps group by all) join begun using ({_KEY})
            window before_it as (partition by destination, session_id, stream order by place
                rows between unbounded preceding and 1 preceding)),
        named as (
            select {_of("f")}, b.message_id as ahead from follows f join begun m using ({_KEY})
            join stamps s on (s.destination, s.session_id, s.stream, s.place)
                = (f.destination, f.session_id, f.stream, f.place)
            join begun b on (b.destination, b.session_id, b.message_id)
                = (s.destination, s.session_id, s.message_id) where b.fence > m.fence),
        lines as (
            select {_KEY}, side, stamped, fence, {_BEHIND}
            from (select {_KEY}, side, bool_or(stamped) as stamped, min("number") as "number",
                    min(enqueued_us) as enqueued_us from copies where in_line group by all)
            join begun using ({_KEY}) where coalesce(enqueued_us, 0) <= at_us
            window before_it as (partition by destination, session_id, side order by "number"
                rows between unbounded preceding and 1 preceding)),
        queued as (
            select {_KEY}, any_value(ahead) as ahead from lines group by {_KEY}
            having not bool_or(stamped) and bool_and(coalesce(latest > fence, false))),
        every as (
            select {_KEY}, ahead from numbered where latest > fence
            union all select * from named union all select * from queued)
        select {_KEY}, 'out_of_order', 'began before ' || min(ahead) || ', which comes before it'
        from every group by {_KEY}""",
    "sides_differ": f"""
        with twins as (
            select {_KEY}, min("number") filter (side = 'primary') as here,
                min("number") filter (side = 'secondary') as there
            from copies join messages using ({_KEY}) where in_line group by all
            having here is not null and there is not null and not bool_or(copies.stamped)),
        placed as (
            select {_KEY}, there, max(there) over before_it as latest, max_by(message_id, there) over before_it as ahead
            from twins window before_it as (partition by destination, session_id order by here
                rows between unbounded preceding and 1 preceding))
        select {_KEY}, 'sides_differ', 'behind ' || ahead || ' on the primary, before it on the secondary'
        from placed where latest > there""",
    "twice": f"""
        select {_KEY}, 'twice', 'its handler began ' || attempts || ' times; an earlier attempt may have had effect'
        from messages where {_COMPLETED} and attempts > 1""",
    "one_side": f"""
        select {_KEY}, 'one_side', case when secondaries = 0 then 'only on the primary' else 'only on the secondary' end
            || case when state is null then '' else '; ' || state || ', the other copy was not settled' end
        from messages where (state is not null or (open and sure))
            and ((primaries > 0 and secondaries = 0 and not coalesce(on_secondary, false))
                or (secondaries > 0 and primaries = 0 and not coalesce(on_primary, false)))""",
}
"""In the order of their gravity; see the module's text for what each can know."""

_GRAVITY: Final = f"list_position([{', '.join(repr(name) for name in VERDICTS)}], verdict)"
_LISTED: Final = f"""
    with spelled as (
        select destination, lower(session_id) as session_id, min(session_id) as spelling
        from (select destination, session_id from spelled_copies
            union all select destination, session_id from spelled_records) group by 1, 2)
    select verdict, destination, coalesce(spelling, found.session_id) as session_id, message_id, why
    from found left join spelled using (destination, session_id) order by {_GRAVITY}, {_of("found")}"""
_COUNTS: Final = tuple(one.name for one in fields(AuditedDestination) if one.name not in ("destination", "verdicts"))
_BY_NUMBER: Final = "state is null and finished and not passed"
"""The journal knows its number alone, of which it says that it is finished."""
_DEAD_AS_FORGOTTEN: Final = f"coalesce(dead_because = '{FORGOTTEN}', false)"
_DESTINATIONS: Final = f"""
    with counted as (
        select destination, count(*) as messages, count(*) filter (primaries > 0) as on_primary,
            count(*) filter (secondaries > 0) as on_secondary, count(*) filter (stamped) as stamped,
            count(*) filter (not stamped) as unstamped,
            count(*) filter ({_COMPLETED}
                or ({_BY_NUMBER} and not {_DEAD_AS_FORGOTTEN})) as completed,
            count(*) filter (most_in_line > 1) as sent_again,
            count(*) filter ((open and not coalesce(sure, false)
                and not coalesce(dead_because in ('{FAILED}', '{OVERTAKEN}'), false))
                or ({_BY_NUMBER} and {_DEAD_AS_FORGOTTEN})) as unknown
        from messages group by all),
    wrong as (select destination, {", ".join(f"count(*) filter (verdict = '{name}') as {name}" for name in VERDICTS)}
        from found group by all)
    select destination, {", ".join(f"coalesce({name}, 0) as {name}" for name in (*_COUNTS, *VERDICTS))}
    from counted full join wrong using (destination)"""


RANGE_RECORDS: Final = 250_000
"""Records that one task reads."""
ROWS_PER_SHARE: Final = 2_000_000
"""Rows whose sessions one task judges."""


def archive_parts(primary: Sequence[str], secondary: Sequence[str], *, at_least: int) -> list[sources.Part]:
    """Everything that is to be read of the archives of both sides; raises UsageError where one of them is none."""
    given = [(one, "primary") for one in primary] + [(one, "secondary") for one in secondary]
    return [part for one, side in given for part in sources.copies_in(one, side, at_least=at_least)]


async def journal_parts(journal: "Journal") -> list[sources.Part]:
    """Everything that is to be read of a journal; entries are read here and now, before any record. An SQLite file is
    then read by the tasks. The records of another journal pass through this process. Raises JournalError: it cannot be
    read."""
    if isinstance(journal, SqliteJournal):
        return _in_file(journal.path)
    entries = sources.entries_rows([one async for one in _scanned(journal, SESSION_ENTRY)])
    parts: list[sources.Part] = [*entries]
    waiting: list[Any] = []
    async for document in _scanned(journal, MESSAGE):
        waiting.append(document)
        if len(waiting) == RANGE_RECORDS:
            parts.append(sources.record_rows(waiting))
            waiting = []
    return [*parts, sources.record_rows(waiting)] if waiting else parts


async def _scanned(journal: "Journal", kind: str) -> Any:
    async with aclosing(journal.scan(kind)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            yield entry.document


def _in_file(path: Path) -> list[sources.Part]:
    if not path.exists():
        raise UsageError(f"There is no journal {path}.", hint="Name the file that the consumers were given.")
    try:
        with closing(documents(path, SESSION_ENTRY)) as texts:
            entries = sources.entries_rows(json.loads(text) for text in texts)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"An entry of the journal {path} cannot be read.") from error
    ranges = key_ranges(path, MESSAGE, RANGE_RECORDS)
    return [*entries, *(sources.JournalRange(str(path.absolute()), one) for one in ranges)]


def audit(
    parts: Sequence[sources.Part],
    asked: AuditTerms,
    *,
    journal: str,
    session: "StartedSpark | None" = None,
    tell: Callable[[Any], None] | None = None,
) -> ReplicationReport:
    """Hold archives and journal together, by Spark or in this process. `journal`: what the report calls it."""
    engine: Engine
    read = methodcaller("read")
    if session is not None and parts:
        engine = SparkEngine.over_units(session, parts, tell, read=read)
    else:
        engine = LocalEngine(parts, cores=os.cpu_count() or 1, read=read)
    rows = sum(part.rows for part in parts)
    shares = 1 if not engine.units else max(engine.cores, -(-rows // ROWS_PER_SHARE))
    keys: list[Key] = [(SESSION, share) for share in range(shares)]
    judged = engine.by_key(partial(_by_session, shares), partial(judge, asked), keys, "Auditing") if rows else []
    return ReplicationReport(
        journal=journal,
        as_of=asked.as_of,
        copies=sum(one.copies for one in judged),
        without_ids=sum(one.left_out for one in judged),
        unreadable=tuple(sorted(place for one in judged for place in one.unreadable)),
        destinations=tuple(_destinations(judged)),
        listed=tuple(_listed(judged, asked.limit)),
    )


def _by_session(shares: int, parts: Sequence[sources.Rows]) -> Iterator[tuple[Key, Any]]:
    """The rows of one unit, by the share of their sessions. What is said of all of them goes with the first."""
    for part in parts:
        if shares == 1:
            yield (SESSION, 0), part
            continue
        with database() as base:
            base.register("given", part.table)
            base.execute(
                f"create table placed as select *, hash(destination, lower(session_id)) % {shares} as share from given"
            )
            for share in range(shares):
                table = base.sql(f"select * exclude (share) from placed where share = {share}").to_arrow_table()
                if not share:
                    yield (SESSION, 0), replace(part, table=table)
                elif table.num_rows:
                    yield (SESSION, share), sources.Rows(part.kind, table)


def _destinations(judged: Sequence[Judged]) -> Iterator[AuditedDestination]:
    sums: dict[str, Counter[str]] = {}
    for row in (row for one in judged for row in one.destinations):
        sums.setdefault(row.pop("destination"), Counter()).update(row)
    for name, total in sorted(sums.items()):
        verdicts = VerdictCounts(**{one: total.pop(one) for one in VERDICTS})
        yield AuditedDestination(destination=name, verdicts=verdicts, **total)


def _listed(judged: Sequence[Judged], limit: int) -> list[ReplicationFinding]:
    found = [ReplicationFinding(**row) for one in judged for row in one.findings]
    found.sort(key=lambda one: (list(VERDICTS).index(one.verdict), one.destination, one.session_id, one.message_id))
    return found[:limit]
