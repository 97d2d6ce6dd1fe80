"""One analysis: the units' partial results, merged; the tables made of them; the forecast of the drain.

found = analyse(SparkEngine.over_units(session, units_in(files)), Question(as_of=time.time()), rows=2_000_000)
found.tables["destinations"].to_pylist()
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import is_destination
from sbpair.core.prices import PriceTable, at_most_cents
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND
from sbpair.core.serialization import AS_TIME, HIDDEN, INLINED, Money, published, rounded
from sbpair.core.words import counted, size_in_words
from sbpair.pipeline.analysis import results
from sbpair.pipeline.analysis.partials import (
    HASH,
    SESSION,
    SMALL,
    Key,
    Question,
    Worst,
    equal_ids,
    in_shares,
    merged_sessions,
    merged_small,
    parts_of,
    perhaps_equal,
    repeated,
    sessions_found,
    worst,
    worst_of,
)
from sbpair.pipeline.analysis.units import Engine, LocalEngine, ReadUnit, SparkEngine, read_ids, together, units_in
from sbpair.pipeline.archive import Tell
from sbpair.pipeline.manifest import LocalStore, check_archive, rows_in
from sbpair.pipeline.tables import SparkTables

if TYPE_CHECKING:
    import pyarrow as pa

    from sbpair.core.inspection.snapshot import Snapshot
    from sbpair.pipeline.spark.session import StartedSpark

ROWS_PER_SHARE = 4_000_000
"""Messages whose sessions or hashes one task merges."""
SINGLE_TASK_ROWS = 500_000
"""Up to here one task is done before Spark has started a second."""


@dataclass(frozen=True, slots=True)
class AnalysisFrames:
    """The tables by name; of `sessions` (those in trouble) and `duplicates` the worst, and how many there are."""

    tables: "Mapping[str, pa.Table]"
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainForecast:
    """What bringing back a pair's messages needs."""

    pair: str
    messages: int
    bytes: int
    operations: int
    messages_per_second: float
    seconds: float = field(metadata=rounded(1))
    ends_at: float = field(metadata=AS_TIME)
    cost_at_most: Money
    """In cents; every operation at the price of the most expensive band."""
    currency: str

    @published
    def lasts(self) -> str:
        return format_duration(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is in archived backlogs, as `sbpair pipeline analyze -o json` prints it."""

    archives: tuple[str, ...]
    as_of: float = field(metadata=AS_TIME)
    sessions_in_trouble: int
    duplicate_ids: int
    messages_per_second: float = field(metadata=HIDDEN)
    """Assumed of a drain."""
    rows: results.AnalysisRows = field(metadata=INLINED)
    forecast: tuple[DrainForecast, ...]

    def notes(self) -> Iterator[str]:
        """What a person has to know before the messages are drained."""
        rows = self.rows.destinations
        if missing := [row for row in rows if row.exists is False]:
            have = _messages(missing, "has", "have")
            names = ", ".join(str(row.destination) for row in missing)
            yield f"{have} a destination that does not exist on the primary: {names}."
        if strange := [row for row in rows if row.destination is None]:
            yield f"{_messages(strange, 'names', 'name')} no destination: not sent there by a failover sender."
        expired, expiring = (sum(getattr(row, name) for row in rows) for name in ("expired", "expiring"))
        if expired or expiring:
            have = counted(expired, "message has", "messages have")
            yield f"{have} expired; {expiring:,} more will expire before being drained."
        if invalid := [row for row in rows if row.destination and not is_destination(row.destination)]:
            these = "it" if sum(row.messages for row in invalid) == 1 else "them"
            name = _messages(invalid, "names", "name")
            yield f"{name} a destination that cannot be a queue or topic: a drain dead-letters {these}."
        if near := sum(row.near_limit for row in rows):
            yield f"{counted(near, 'message is', 'messages are')} near the size limit."
        if sessions := self.sessions_in_trouble:
            yield f"{counted(sessions, 'session is', 'sessions are')} out of order or spread over several queues."
        if ids := self.duplicate_ids:
            yield f"{counted(ids, 'message id occurs', 'message ids occur')} more than once for one destination."

    def summary(self) -> str:
        totals, count = self.rows.totals, len(self.rows.destinations)
        if not any(total.messages for total in totals):
            return "No messages."
        lasts = format_duration(max(one.seconds for one in self.forecast))
        size = size_in_words(sum(total.bytes for total in totals))
        return (
            f"{counted(sum(total.messages for total in totals), 'message')} ({size}) for "
            f"{counted(count, 'destination')}; at {self.messages_per_second:g} a second a drain takes {lasts}."
        )


def _messages(rows: Sequence[results.DestinationRow], one: str, several: str) -> str:
    return counted(sum(row.messages for row in rows), f"message {one}", f"messages {several}")


def to_analysis(found: AnalysisFrames, archives: Sequence[str], question: Question, prices: PriceTable) -> Analysis:
    """What was found, with the forecast of each pair's drain."""
    rows = results.AnalysisRows.of(found.tables)
    return Analysis(
        archives=tuple(archives),
        as_of=question.as_of,
        sessions_in_trouble=found.counts["sessions"],
        duplicate_ids=found.counts["duplicates"],
        messages_per_second=question.messages_per_second,
        rows=rows,
        forecast=tuple(forecast(total, question, prices) for total in rows.totals),
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What tasks need to know."""

    question: Question
    top: int
    shares: int
    folder: Path | None
    """Where every session and duplicate goes, a file for each share; a folder that all tasks see."""


def analyse(
    engine: Engine,
    question: Question,
    *,
    rows: int,
    top: int = 20,
    snapshots: "Sequence[Snapshot]" = (),
    folder: Path | None = None,
) -> AnalysisFrames:
    """The analysis of an archive's messages. `folder`: write every table in full there, as Parquet."""
    shares = 1 if engine.units == 1 else max(engine.cores, -(-rows // ROWS_PER_SHARE))
    wanted = _Wanted(question, top, shares, folder)
    if not engine.units:
        parts: list[tuple[Key, Any]] = _empty(wanted)
    elif engine.units == 1:
        parts = engine.whole(partial(_alone, wanted), "Analysing")
    else:
        parts = _spread(engine, wanted)
    small = merged_small([part for (kind, _), part in parts if kind == SMALL])
    of_sessions = worst_of(SESSION, [part for (kind, _), part in parts if kind == SESSION], top)
    of_ids = worst_of(HASH, [part for (kind, _), part in parts if kind == HASH], top)
    counted = of_sessions.by_destination
    assert counted is not None  # noqa: S101 - of sessions there always is one
    tables = results.tables(small, counted, existing_paths(snapshots), question)
    tables |= {"sessions": results.in_utc(of_sessions.rows), "duplicates": results.in_utc(of_ids.rows)}
    names = results.spellings(small.size)
    tables = {name: results.spelled(table, names) for name, table in tables.items()}
    if folder is not None:
        for name in tables.keys() - {"sessions", "duplicates"}:
            _write_part(folder, name, 0, tables[name])
    return AnalysisFrames(
        {name: tables[name] for name in results.RESULTS}, {"sessions": of_sessions.count, "duplicates": of_ids.count}
    )


def analyse_archives(
    archives: Sequence[str],
    question: Question,
    *,
    spark: "AbstractContextManager[tuple[StartedSpark, Tell]] | None" = None,
    **how: Any,
) -> AnalysisFrames:
    """The analysis of whole archives. What lies in folders is opened by the tasks; what lies elsewhere Spark reads.

    Args:
        spark: opens Spark, if there is something to spread; None: all is done in this process.
        how: see `analyse`.

    Raises:
        UsageError: one of them is no archive; or not in a folder, and there is no Spark.
    """
    rows, cores = rows_in(archives), os.cpu_count() or 1
    units: Sequence[ReadUnit] = ()
    if rows is not None:
        stores = [LocalStore(Path(one)) for one in archives]
        files = [str(store.root / file.path) for store in stores for file in check_archive(store).files]
        units = units_in(files, at_least=cores)
    elif spark is None:
        raise UsageError("--engine local reads folders, not URIs.", hint="Leave --engine out: Spark reads them.")
    if spark is None or (rows is not None and not units):
        return analyse(LocalEngine(units, cores=cores), question, rows=rows or 0, **how)
    if units and sum(unit.rows for unit in units) <= SINGLE_TASK_ROWS:
        units = [together(units)]
    with spark as (session, tell):
        if rows is not None:
            return analyse(SparkEngine.over_units(session, units, tell), question, rows=rows, **how)
        manifests = SparkTables(session).archived(archives, once=True, of_backlog=False)
        rows = sum(manifest.rows for manifest in manifests)
        engine = SparkEngine.over_rows(session, session.spark.table("archived"), rows, tell)
        return analyse(engine, question, rows=rows, **how)


def _alone(wanted: _Wanted, messages: "pa.Table") -> list[tuple[Key, Any]]:
    """Everything of the only unit: no message has its like elsewhere, so nothing is shuffled."""
    done = [_reduced(wanted, key, [part]) for key, part in parts_of(messages, wanted.question, 1)]
    hashes = [part for (kind, _), part in done if kind == HASH]
    kept = [(key, part) for key, part in done if key[0] != HASH]
    equal = perhaps_equal(messages, hashes[0], wanted.question) if hashes else None
    if equal is not None and equal.num_rows:
        kept.append(_compared(wanted, (HASH, 0), [equal]))
    return _completed(kept, wanted)


def _spread(engine: Engine, wanted: _Wanted) -> list[tuple[Key, Any]]:
    """One pass over the units with one shuffle; a second look only at messages whose hashes occurred twice."""
    keys: list[Key] = [(SMALL, 0), *((kind, share) for kind in (SESSION, HASH) for share in range(wanted.shares))]
    split = partial(parts_of, question=wanted.question, shares=wanted.shares)
    done = engine.by_key(split, partial(_reduced, wanted), keys, "Analysing")
    kept = [(key, part) for key, part in done if key[0] != HASH]
    hashes = [part for (kind, _), part in done if kind == HASH and part.num_rows]
    if hashes:
        import pyarrow as pa

        look = partial(_equal_parts, wanted, pa.concat_tables(hashes))
        same = [key for key in keys if key[0] == HASH]
        kept += engine.by_key(look, partial(_compared, wanted), same, "Comparing ids", read=read_ids)
    return _completed(kept, wanted)


def _reduced(wanted: _Wanted, key: Key, parts: Sequence[Any]) -> tuple[Key, Any]:
    kind, share = key
    if kind == SMALL:
        return key, merged_small(parts)
    if kind == HASH:
        return key, repeated(parts)
    return key, _kept(wanted, SESSION, share, sessions_found(merged_sessions(parts)))


def _equal_parts(wanted: _Wanted, hashes: "pa.Table", messages: "pa.Table") -> Iterator[tuple[Key, Any]]:
    found = perhaps_equal(messages, hashes, wanted.question)
    return (((HASH, share), rows) for share, rows in in_shares(found, wanted.shares))


def _compared(wanted: _Wanted, key: Key, parts: Sequence["pa.Table"]) -> tuple[Key, Any]:
    return key, _kept(wanted, HASH, key[1], equal_ids(parts))


_FULL_TABLE: Final = {SESSION: "sessions", HASH: "duplicates"}


def _kept(wanted: _Wanted, kind: str, share: int, found: "pa.Table") -> Worst:
    if wanted.folder is not None:
        _write_part(wanted.folder, _FULL_TABLE[kind], share, found)
    return worst(kind, found, wanted.top)


def _completed(parts: list[tuple[Key, Any]], wanted: _Wanted) -> list[tuple[Key, Any]]:
    """With the empty result of a kind of which there was nothing."""
    there = {kind for (kind, _), _ in parts}
    if there == {SMALL, SESSION, HASH}:
        return parts
    return [*parts, *(part for part in _empty(wanted) if part[0][0] not in there)]


def _empty(wanted: _Wanted) -> list[tuple[Key, Any]]:
    """What an archive without messages gives: the columns without rows."""
    import pyarrow as pa

    from sbpair.pipeline.analysis.units import COLUMNS, with_folded_destinations
    from sbpair.pipeline.rows import arrow_schema

    schema = arrow_schema()
    nothing = with_folded_destinations(pa.schema([schema.field(name) for name in COLUMNS]).empty_table())
    parts = dict(parts_of(nothing, wanted.question, 1, empty=True))
    small, sessions = parts[SMALL, 0], sessions_found(parts[SESSION, 0])
    none = equal_ids([perhaps_equal(nothing, parts[HASH, 0], wanted.question)])
    return [
        ((SMALL, 0), small),
        ((SESSION, 0), worst(SESSION, sessions, wanted.top)),
        ((HASH, 0), worst(HASH, none, wanted.top)),
    ]


def _write_part(folder: Path, name: str, share: int, table: "pa.Table") -> None:
    import pyarrow.parquet as pq

    target = folder / name / f"part-{share:05d}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(results.in_utc(table), target, compression="zstd")


def existing_paths(snapshots: "Sequence[Snapshot]") -> list[tuple[str, str]] | None:
    """(pair, path in lower case) of queues and topics of the primaries; None if a snapshot could not list them all."""
    seen = [(one.pair.name, one.primary) for one in snapshots]
    if not seen or any(side.queues is None or side.topics is None for _, side in seen):
        return None
    return [
        (pair, path.lower())
        for pair, side in seen
        for path in (*(queue.path for queue in side.queues or ()), *(topic.path for topic in side.topics or ()))
    ]


def forecast(total: results.Total, question: Question, prices: PriceTable) -> DrainForecast:
    """What moving a pair's messages back needs: operations, time and money.

    Receive, complete and send: 2 operations for every started 64 KB and one for the completion. The time is that of
    the question's rate, and no less than the throttling credits of the secondary allow (receives and completions).
    """
    from sbpair.core.prices import Forecast  # tasks of Spark import this module and forecast nothing

    needed = Forecast(message_operations=2 * total.units + total.messages)
    on_secondary = Forecast(message_operations=total.units + total.messages)
    seconds = max(total.messages / question.messages_per_second, on_secondary.seconds(NAMESPACE_CREDITS_PER_SECOND))
    return DrainForecast(
        pair=total.pair,
        messages=total.messages,
        bytes=total.bytes,
        operations=needed.operations,
        messages_per_second=question.messages_per_second,
        seconds=seconds,
        ends_at=question.as_of + seconds,
        cost_at_most=at_most_cents(needed.money(prices)),
        currency=prices.currency,
    )
