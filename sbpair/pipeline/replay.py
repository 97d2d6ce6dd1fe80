"""`pipeline replay`: from archives to the primary, each session in its order, what the ledger has left out.

A session's messages are in one task and go out one after another, by the time they were put into the backlog, then by
number. Messages without a session have no order; they are spread by queue and stretches of numbers, because one null
session would be one task. What ties it together over crashes is the ledger: rows that it has are not sent again.
"""

import asyncio
import tempfile
import time
import uuid
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.names import is_destination
from sbpair.core.rewrite import TtlMode
from sbpair.core.transfer.custody import REFUSED_OUTCOME
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.ledger import LedgerEntry, Way
from sbpair.core.transfer.verdict import MOST_NAMES, OTHERS
from sbpair.core.words import counted, merge_spellings
from sbpair.pipeline.archive import ENQUEUED_MS, Tell
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.manifest import Manifest, together
from sbpair.pipeline.reconcile import browse_backlog, inside, stretches, waiting
from sbpair.pipeline.reports import Dedupe, ReplayReport
from sbpair.pipeline.rows import STORED_COLUMNS
from sbpair.pipeline.runs import DONE_OUTCOMES, ledger_files, the_only_run
from sbpair.pipeline.source.new_messages import ROWS
from sbpair.pipeline.source.writer import read_tally
from sbpair.pipeline.tables import KEY, Tables, same
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.restore import not_known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sbpair.pipeline.spark.session import StartedSpark

COPIES_AT_ONCE = 1_000
LOOSE_NUMBERS = 100
"""Messages without session: that many numbers of a queue stay together, few enough for tasks of about the same size."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to send to the primary, and how."""

    pair: PairByName
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


def prepare(tables: Tables, request: ReplayRequest) -> tuple[Manifest, bool]:
    """Define the tables `matched`, `elsewhere` (for other destinations than those that may be sent to), `copies` (to be
    left out) and `todo`; nothing is sent. The archives' manifests as one, and whether rows of `matched` may be missing
    in `todo`. Raises UsageError: no archive, or none of the backlog."""
    manifests = tables.archived(request.archives, once=True)
    tables.filtered("wanted", "archived", request.wanted)
    way = request.pair.way()
    of_pair = (("name", "string"), ("namespace", "string"), ("target", "string"))
    tables.rows("of_pair", of_pair, [(request.pair.name, way.from_namespace, way.to_namespace)])
    tables.define("of_this_pair", "select w.* from wanted w join of_pair p on p.name = w.pair")
    tables.define("matched", "select * from of_this_pair")
    known = [*([request.ledger] if ledger_files(request.ledger) else []), *request.drained]
    tables.ledgers("known", [str(one) for one in known])
    outcomes = ", ".join(f"'{one}'" for one in DONE_OUTCOMES)
    tables.define(  # the same queue and number mean another message on another namespace; older lines do not say
        "done",
        f"select distinct {KEY} from known k join of_pair p on coalesce(k.from_namespace, p.namespace) in "
        f"(p.namespace, '{ROWS}') and coalesce(k.to_namespace, p.target) = p.target where k.outcome in ({outcomes})",
    )
    not_done = f"not exists (select 1 from done d where {same('d', 'm')})"
    if request.only is not None:
        tables.rows("allowed", (("name", "string"),), [(one.lower(),) for one in request.only])
        joined = "from of_this_pair m left join (select distinct name from allowed) a on a.name = lower(m.destination)"
        tables.define("matched", f"select m.* {joined} where m.destination is null or a.name is not null")
        others = f"{joined} where m.destination is not null and a.name is null and {not_done}"
        tables.define("elsewhere", f"select m.* {others}")
    chosen = "matched"
    if request.dedupe is Dedupe.CONTENT:
        chosen = "each_once"
        tables.define("ranked", RANKED)
        is_copy = "copy_rank > 1 and message_id is not null and content is not null"
        tables.define("copies", f"select * from ranked where {is_copy}")
        tables.define("each_once", f"select * from ranked where not ({is_copy})")
    tables.define("todo", f"select * from {chosen} m where {not_done}" if known else f"select * from {chosen}")
    return together(manifests), bool(known) or request.dedupe is Dedupe.CONTENT


RANKED = """select *, row_number() over (partition by lower(destination), lower(session_id), message_id, content
    order by enqueued_at_ms, place, sequence_number) as copy_rank from matched"""
"""Neither a destination's case nor a session's tells two of them apart (`service.session_key`)."""


def in_order(frame: "DataFrame", tasks: int) -> "DataFrame":
    """Whole sessions per partition, in order within it."""
    loose = f"concat('q', queue, '#', sequence_number div {LOOSE_NUMBERS})"
    lane = f"coalesce(concat('s', lower(session_id)), {loose}) AS lane"
    keyed = frame.selectExpr("destination", lane, *STORED_COLUMNS)
    ordered = keyed.repartition(tasks, "destination", "lane").sortWithinPartitions(
        "destination", "lane", "enqueued_at", "queue", "sequence_number"
    )
    return ordered.select(*STORED_COLUMNS)


def replay(
    tables: Tables, request: ReplayRequest, *, session: "StartedSpark | None" = None, tell: Tell | None = None
) -> ReplayReport:
    """Carry out a request. `session`: of Spark, which alone sends; a dry run needs none.

    Raises:
        SbpairError: the primary could not be reached for long, or the ledger cannot be written. What was sent until
            then is in the ledger; running the same command again goes on from there.
        UsageError: another replay has the ledger.
    """
    tables.tell, began = tell, time.monotonic()
    report = ReplayReport(request.pair.name, uuid.uuid4().hex[:12], str(request.ledger), dry_run=request.dry_run)
    with nullcontext() if request.dry_run else the_only_run(request.ledger, report.run):
        try:
            manifest, fewer = prepare(tables, request)
            _count(tables, request, report, fewer)
            _look(tables, request, manifest, report)
        finally:
            tables.close()
        if not request.dry_run and session is not None and report.matched > report.already_done:
            _send(session, request, report, tell)
    report.seconds = time.monotonic() - began
    return report


def _count(tables: Tables, request: ReplayRequest, report: ReplayReport, fewer: bool) -> None:
    groups = tables.query("select destination, is_ping, count(*) as n from todo group by 1, 2", "Counting")
    todo = sum(row["n"] for row in groups)
    report.matched = tables.count("matched", "Counting") if fewer else todo
    if request.dedupe is Dedupe.CONTENT:
        report.duplicates = tables.count("copies", "Counting")
    if request.only is not None:
        rows = tables.query("select destination, count(*) as n from elsewhere group by 1", "Counting what is left")
        report.elsewhere = _most(merge_spellings({row["destination"]: row["n"] for row in rows}))
    report.already_done = report.matched - report.duplicates - todo
    outcomes, places = Counter[str](), Counter[str]()
    for row in groups:
        kind = _expected_outcome(row["is_ping"], row["destination"])
        outcomes[kind] += row["n"]
        if kind == "forwarded":
            places[row["destination"]] += row["n"]
    report.outcomes, report.per_destination = outcomes, merge_spellings(places)


def _most(counts: dict[str, int]) -> dict[str, int]:
    """The largest by name, and the rest together, where strangers have named very many."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(number for _, number in ordered[MOST_NAMES:])
    return dict(ordered[:MOST_NAMES]) | ({OTHERS: rest} if rest else {})


def _look(tables: Tables, request: ReplayRequest, archives: Manifest, report: ReplayReport) -> None:
    """Refuse what a drain would send again, or may have sent. A dry run says what the real one will meet.

    Only an archive's own record of a taking spares the question. An archive that left the queues as they are says
    nothing about what a drain has done since: what it has and its queue lacks has gone somewhere, to its destination as
    a rule.
    """
    todo = report.matched - report.already_done - report.duplicates
    if request.although_in_queues:
        report.waiting = report.gone = None
        return
    asked, left = archives.perhaps_queued(request.pair.name), archives.left_in_queues(request.pair.name)
    if not todo or not asked:
        return
    try:
        browse_backlog(tables, request.pair, {one.queue for one in asked})
    except ServiceError as error:
        raise not_known(error) from error
    stretches(tables, "asked", asked)
    stretches(tables, "left_there", left)
    tables.define("perhaps", f"select m.* from todo m join asked a on {inside('m', 'a')}")
    tables.define("waiting", waiting("perhaps"), keep=True)
    report.waiting = tables.count("waiting", "Looking in queues")
    left_there = f"todo m join left_there a on {inside('m', 'a')}"
    not_waiting = f"not exists (select 1 from waiting w where {same('w', 'm')})"
    report.gone = tables.count(f"{left_there} where {not_waiting}", "Looking in queues")
    if request.dry_run:
        return
    pair, archive = request.pair.name, request.archives[0]
    if report.waiting:
        raise UsageError(
            f"{report.waiting:,} of {counted(todo, 'message')} still wait in the backlog queues or in their "
            "dead-letter queues; a drain would send them a second time. Nothing was sent.",
            hint=f"Drain them (sbpair drain {pair}, and again with --dlq), or take them out first (sbpair pipeline "
            f"archive {pair} --archive {archive} --take). --although-in-the-queues sends them nevertheless.",
        )
    if report.gone and not request.although_gone:
        raise UsageError(
            f"{report.gone:,} of {counted(todo, 'message')} have left the backlog queues, and the archive did not "
            "take them out: a drain or syphon may have sent them back already. Nothing was sent.",
            hint="Name its ledger as well (--ledger drain.jsonl): what it has is left out. See what has arrived "
            f"(sbpair pipeline reconcile {archive} --pair {pair}). --although-gone sends them nevertheless.",
        )


def _expected_outcome(is_ping: bool, destination: str | None) -> str:
    """What the writer will make of rows like this one, as far as their columns tell."""
    if is_ping:
        return "ping"
    if destination is None:
        return "unreadable"
    return "forwarded" if is_destination(destination.strip("/")) else REFUSED_OUTCOME


def tasks_of(session: "StartedSpark", request: ReplayRequest) -> int:
    """How many tasks send at a time."""
    return request.tasks or max(1, session.context.defaultParallelism)


def _send(session: "StartedSpark", request: ReplayRequest, report: ReplayReport, tell: Tell | None) -> None:
    tasks = tasks_of(session, request)
    with tempfile.TemporaryDirectory(prefix="sbpair-replay-") as folder:
        file = Path(folder) / "report.json"
        options = {
            **request.pair.options,
            "ledger": str(request.ledger.absolute()),
            "tasks": str(tasks),
            "ttl": request.ttl.value,
            "run": report.run,
            "onlyRun": "true",
            "failOnRefused": "false",
            "report": str(file),
        }
        limits = {"rate": request.rate, "reserve": request.reserve}
        options |= {name: str(limit) for name, limit in limits.items() if limit is not None}
        rows = in_order(session.spark.table("todo"), tasks)
        writer = rows.write.format("sbpair-backlog").mode("append").options(**options)
        session.run(writer.save, "Replaying", tell=tell)
        tally = read_tally(file)
    report.outcomes, report.refusals = tally.outcomes, tally.refusals
    report.per_destination = merge_spellings(tally.per_destination)
    report.refused_files, report.skipped_by_retry = tuple(tally.refused_files), tally.skipped
    report.resent, report.throttled, report.waited_seconds = tally.resent, tally.throttled, tally.waited_seconds
    if report.duplicates:
        copies = session.spark.table("copies")
        way = request.pair.way()
        session.run(lambda: _record_copies(copies, request.ledger, way, report.run), "Recording copies", tell=tell)


def _record_copies(copies: "DataFrame", folder: Path, way: Way, run: str) -> None:
    lines = copies.selectExpr(
        "if(dead_letter, concat(queue, '/$deadletterqueue'), queue)",
        "sequence_number",
        "message_id",
        ENQUEUED_MS,
        "coalesce(destination, '')",
        "session_id",
        *("'duplicate'", f"'{datetime.now(UTC).isoformat()}'", "1", f"'run {run}'"),
        "base64(digest)",
    )
    coming = lines.toLocalIterator()

    async def write() -> None:
        ledger = Ledger(folder / f"{run}-duplicates.jsonl", way=way)
        try:
            while some := list(islice(coming, COPIES_AT_ONCE)):
                await ledger.record([LedgerEntry(*row) for row in some])
        finally:
            await ledger.close()

    asyncio.run(write())
