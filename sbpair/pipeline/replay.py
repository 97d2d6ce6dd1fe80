"""`pipeline replay`: from archives to the primary, each session in its order, what the ledger has left out.

A session's messages are in one task and go out one after another, by the time they were put into the backlog, then by
number. Messages without a session have no order; they are spread by queue and stretches of numbers, because one null
session would be one task. What ties it together over crashes is the ledger: rows that it has are not sent again.
"""

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.core.names import is_destination
from sbpair.core.rewrite import TtlMode
from sbpair.core.transfer.custody import REFUSED_OUTCOME
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.verdict import MOST_NAMES, OTHERS
from sbpair.pipeline.archive import only_wanted, open_store, read_archives
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.ledgers import LEDGER_KEY, has_lines, read_ledgers
from sbpair.pipeline.manifest import refuse_other_sides, together
from sbpair.pipeline.reports import ReplayReport
from sbpair.pipeline.rows import STORED_COLUMNS
from sbpair.pipeline.runs import the_only_run
from sbpair.pipeline.source.writer import Tally, read_tally
from sbpair.pipeline.waiting import (
    ENQUEUED_MS,
    looked,
    refused_as_gone,
    refused_as_waiting,
    spans_in_queues,
    still_waiting,
    within,
)
from sbpair.runtime.transfer.ledger import Entry, Ledger, Way

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sbpair.pipeline.spark.session import Session

Item = TypeVar("Item")
COPIES_AT_ONCE = 1_000
DONE_OUTCOMES = ("forwarded", "already-forwarded", "dead-lettered", "ping", "duplicate")
"""Ledger outcomes after which a message is not sent again."""
LOOSE_NUMBERS = 100
"""Messages without session: that many numbers of a queue stay together, few enough for tasks of about the same size."""


class Dedupe(StrEnum):
    """What counts as the same message."""

    STORED = "stored"
    """The same place in the same queue: several archives may hold it."""
    CONTENT = "content"
    """Also other copies with the same message id, destination, session and content, as a sender leaves them that was
    not sure whether its send had arrived."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to send to the primary, and how."""

    pair: PairByName
    config: Path | None
    archives: tuple[str, ...]
    ledger: Path
    """Folder of this replay's own ledger."""
    drained: tuple[Path, ...] = ()
    """Ledgers of drains and syphons: what they have brought back is not sent again."""
    although_in_queues: bool = False
    """Also send messages that still lie in the backlog queues, or of which that cannot be seen: nobody looks."""
    although_gone: bool = False
    """Also send messages that have left the backlog queues although no archive took them out."""
    wanted: MessageFilter = EVERYTHING
    """Only these; asked in the tasks."""
    only: tuple[str, ...] | None = None
    """The only destinations that are sent to; what the archives hold for others is left, and named. None: all."""
    rate: float | None = None
    """Messages a second, of all tasks together."""
    reserve: int | None = None
    """Throttling credits a second of the primary that all tasks together leave to others."""
    ttl: TtlMode = TtlMode.FULL
    dedupe: Dedupe = Dedupe.STORED
    tasks: int | None = None
    """How many tasks send at the same time; None: as many as there are cores."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """The frames of a replay: what matched, copies to be left out, what is to be sent and in which order."""

    elsewhere: "DataFrame | None"
    """What is for destinations other than those that may be sent to."""
    matched: "DataFrame"
    duplicates: "DataFrame | None"
    todo: "DataFrame"
    ordered: "DataFrame"
    tasks: int


def prepare(spark: "SparkSession", request: ReplayRequest) -> Prepared:
    """Build the plan; nothing is read or sent yet.

    Raises:
        UsageError: no archive, or none of the backlog.
    """
    stores = [open_store(spark.sparkContext, one) for one in request.archives]
    for one in stores:
        refuse_other_sides(one.manifest(), one.uri)
    archived = read_archives(spark, request.archives, stores=stores)
    matched = only_wanted(archived.where(archived.pair == request.pair.name), request.wanted)
    elsewhere = None
    if request.only is not None:
        matched, others = _among(matched, request.only)
        elsewhere = not_done(spark, others, request.ledger, request.drained, request.pair.way().from_namespace)
    duplicates = None
    wanted = matched
    if request.dedupe is Dedupe.CONTENT:
        wanted, duplicates = without_copies(matched)
    todo = not_done(spark, wanted, request.ledger, request.drained, request.pair.way().from_namespace)
    tasks = request.tasks or max(1, spark.sparkContext.defaultParallelism)
    return Prepared(elsewhere, matched, duplicates, todo, in_order(todo, tasks), tasks)


def _among(frame: "DataFrame", destinations: Sequence[str]) -> "tuple[DataFrame, DataFrame]":
    """The rows for these destinations, whose case does not matter, together with those for none; and the others."""
    from pyspark.sql import functions as F

    is_there = F.lower("destination").isin([path.lower() for path in destinations])
    wanted = F.col("destination").isNull() | is_there
    return frame.where(wanted), frame.where(~wanted)


def without_copies(frame: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """One of each content, the oldest; and the others."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # Neither a destination's case nor a session's tells two of them apart (`service.session_key`).
    same = Window.partitionBy(F.lower("destination"), F.lower("session_id"), "message_id", "digest").orderBy(
        "enqueued_at", "queue", "sequence_number"
    )
    ranked = frame.withColumn("copy", F.row_number().over(same))
    is_copy = (F.col("copy") > 1) & F.col("message_id").isNotNull() & F.col("digest").isNotNull()
    return ranked.where(~is_copy).drop("copy"), ranked.where(is_copy).drop("copy")


def not_done(
    spark: "SparkSession", frame: "DataFrame", ledger: Path, drained: tuple[Path, ...], from_namespace: str
) -> "DataFrame":
    """The rows that no ledger has as done. The same queue and number mean another message on another namespace."""
    known = [*([ledger] if has_lines(ledger) else []), *drained]
    if not known:
        return frame
    from pyspark.sql import functions as F

    lines = read_ledgers(spark, [str(one) for one in known])
    ours = F.coalesce(F.col("from_namespace") == from_namespace, F.lit(True))  # older lines do not say
    done = lines.where(ours & F.col("outcome").isin(*DONE_OUTCOMES)).select(*LEDGER_KEY).distinct()
    keyed = frame.withColumn("enqueued_at_ms", F.expr(ENQUEUED_MS))
    return keyed.join(done, list(LEDGER_KEY), "left_anti").select(*frame.columns)


def in_order(frame: "DataFrame", tasks: int) -> "DataFrame":
    """Whole sessions per partition, in order within it."""
    loose = f"concat('q', queue, '#', sequence_number div {LOOSE_NUMBERS})"
    lane = f"coalesce(concat('s', lower(session_id)), {loose}) AS lane"
    keyed = frame.selectExpr("destination", lane, *STORED_COLUMNS)
    ordered = keyed.repartition(tasks, "destination", "lane").sortWithinPartitions(
        "destination", "lane", "enqueued_at", "queue", "sequence_number"
    )
    return ordered.select(*STORED_COLUMNS)


def replay(session: "Session", request: ReplayRequest, *, tell: Callable[[Any], None] | None = None) -> ReplayReport:
    """Carry out a request.

    Raises:
        SbpairError: the primary could not be reached for long, or the ledger cannot be written. What was sent until
            then is in the ledger; running the same command again goes on from there.
        UsageError: another replay has the ledger.
    """
    began = time.monotonic()
    report = ReplayReport(uuid.uuid4().hex[:12], str(request.ledger), dry_run=request.dry_run)
    with nullcontext() if request.dry_run else the_only_run(request.ledger, report.run):
        prepared = prepare(session.spark, request)
        _count(session, prepared, report, tell)
        _look(session, request, prepared, report, tell)
        if not request.dry_run and report.matched > report.already_done:
            _send(session, request, prepared, report, tell)
    report.seconds = time.monotonic() - began
    return report


def _count(session: "Session", prepared: Prepared, report: ReplayReport, tell: Callable[[Any], None] | None) -> None:
    def count() -> tuple[int, int, list[Any]]:
        groups = prepared.todo.groupBy("destination", "is_ping").count().collect()
        if prepared.todo is prepared.matched:
            return sum(row["count"] for row in groups), 0, groups
        copies = prepared.duplicates.count() if prepared.duplicates is not None else 0
        return prepared.matched.count(), copies, groups

    report.matched, report.duplicates, groups = session.run(count, "Counting", tell=tell)
    if (others := prepared.elsewhere) is not None:
        report.elsewhere = session.run(lambda: _by_destination(others), "Counting what is left", tell=tell)
    todo = sum(row["count"] for row in groups)
    report.already_done = report.matched - report.duplicates - todo
    for row in groups:
        kind = _expected_outcome(row["is_ping"], row["destination"])
        report.outcomes[kind] = report.outcomes.get(kind, 0) + row["count"]
        if kind == "forwarded":
            place = row["destination"]
            report.per_destination[place] = report.per_destination.get(place, 0) + row["count"]


def _by_destination(frame: "DataFrame") -> dict[str, int]:
    """How many rows each destination has; those with the fewest together, where strangers have named very many."""
    rows = frame.groupBy("destination").count().orderBy("count", ascending=False).limit(MOST_NAMES).collect()
    named = {row["destination"]: row["count"] for row in rows}
    rest = frame.count() - sum(named.values()) if len(named) == MOST_NAMES else 0
    return named | ({OTHERS: rest} if rest else {})


def _look(
    session: "Session",
    request: ReplayRequest,
    prepared: Prepared,
    report: ReplayReport,
    tell: Callable[[Any], None] | None,
) -> None:
    """Refuse what a drain would send again, or may have sent. A dry run says what the real one will meet."""
    todo = report.matched - report.already_done - report.duplicates
    if request.although_in_queues:
        report.waiting = report.gone = None
        return
    if not todo:
        return
    archives = together(open_store(session.context, one).manifest() for one in request.archives)
    asked, left = archives.perhaps_queued(request.pair.name), archives.left_in_queues(request.pair.name)
    if not asked:
        return
    spans = looked(lambda: spans_in_queues(request.pair, asked))

    def count() -> tuple[int, int]:
        not_taken = within(session.spark, prepared.todo, left)
        if not spans:
            return 0, not_taken.count()
        there = still_waiting(session.spark, prepared.todo, request.pair, request.config, spans).cache()
        try:
            return there.count(), not_taken.count() - within(session.spark, there, left).count()
        finally:
            there.unpersist()

    report.waiting, report.gone = session.run(count, "Looking in queues", tell=tell)
    if request.dry_run:
        return
    if report.waiting:
        raise refused_as_waiting(report.waiting, todo, request.pair.name, request.archives)
    if report.gone and not request.although_gone:
        raise refused_as_gone(report.gone, todo, request.pair.name, request.archives)


def _expected_outcome(is_ping: bool, destination: str | None) -> str:
    """What the writer will make of rows like this one, as far as their columns tell."""
    if is_ping:
        return "ping"
    if destination is None:
        return "unreadable"
    return "forwarded" if is_destination(destination.strip("/")) else REFUSED_OUTCOME


def _send(
    session: "Session",
    request: ReplayRequest,
    prepared: Prepared,
    report: ReplayReport,
    tell: Callable[[Any], None] | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="sbpair-replay-") as folder:
        file = Path(folder) / "report.json"
        options = {
            "pair": request.pair.name,
            "ledger": str(request.ledger.absolute()),
            "tasks": str(prepared.tasks),
            "ttl": request.ttl.value,
            "run": report.run,
            "onlyRun": "true",
            "report": str(file),
        }
        if request.config is not None:
            options["config"] = str(request.config)
        if request.rate is not None:
            options["rate"] = str(request.rate)
        if request.reserve is not None:
            options["reserve"] = str(request.reserve)
        writer = prepared.ordered.write.format("sbpair-backlog").mode("append").options(**options)
        session.run(lambda: writer.save(), "Replaying", tell=tell)
        _take_tally(report, read_tally(file))
    if report.duplicates and prepared.duplicates is not None:
        copies = prepared.duplicates
        way = request.pair.way()
        session.run(lambda: _record_copies(copies, request.ledger, way, report.run), "Recording copies", tell=tell)


def _record_copies(copies: "DataFrame", folder: Path, way: Way, run: str) -> None:
    rows = copies.selectExpr(
        "if(dead_letter, concat(queue, '/$deadletterqueue'), queue)",
        "sequence_number",
        "message_id",
        f"{ENQUEUED_MS}",
        "coalesce(destination, '')",
        "session_id",
        "base64(digest)",
    )
    time = datetime.now(UTC).isoformat()

    async def write() -> None:
        ledger = Ledger(folder / f"{run}-duplicates.jsonl", way=way)
        try:
            for some in batched(rows.toLocalIterator(), COPIES_AT_ONCE):
                await ledger.record([_copy(row, time, run) for row in some])
        finally:
            await ledger.close()

    asyncio.run(write())


def _copy(row: Any, time: str, run: str) -> Entry:
    queue, number, message_id, enqueued_ms, destination, session_id, digest = row
    return Entry(
        queue,
        number,
        message_id,
        enqueued_ms,
        destination,
        session_id,
        "duplicate",
        time,
        reason=f"run {run}",
        digest=digest,
    )


def batched(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """The items in lists of up to `most` (`itertools.batched` is of Python 3.12)."""
    left = iter(items)
    while some := list(islice(left, most)):
        yield some


def _take_tally(report: ReplayReport, tally: Tally) -> None:
    report.outcomes = tally.outcomes
    report.refusals = tally.refusals
    report.per_destination = tally.per_destination
    report.resent = tally.resent
    report.skipped_by_retry = tally.skipped
