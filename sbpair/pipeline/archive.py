"""`pipeline archive`: a backlog into Parquet, as it lies (peek) or taken out of its queues (take).

A run covers the numbers that hold messages when it begins and that the manifest does not cover yet; running it again
adds nothing twice. A queue that was deleted and made again counts from 1 again: that is noticed by a message that is
newer than everything the manifest has up to its number, and what is covered then counts for nothing.

Taking goes in rounds: archive a stretch, commit, then complete in the queue exactly the messages that the committed
files hold. A crash in between leaves messages both archived and queued; the next run completes them first. No message
is completed that is not in a committed file.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.concurrency import side_by_side
from sbpair.core.errors import EntityNotFoundError, InterruptedWorkError, UsageError
from sbpair.core.message import PARTITION_SHIFT, Received
from sbpair.core.pairing import Side
from sbpair.core.redact import quoted
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.pipeline.delta import publish
from sbpair.pipeline.executors import PairByName, TaskConnection, first_from
from sbpair.pipeline.files import Archiving, compact, vacuum
from sbpair.pipeline.manifest import (
    ArchiveFile,
    Commit,
    Covered,
    HadoopStore,
    LocalStore,
    Manifest,
    Store,
    append,
    is_folder,
    refuse_overlap,
)
from sbpair.pipeline.reports import ArchiveReport
from sbpair.pipeline.rows import FILTER_COLUMNS, MESSAGE_COLUMNS, spark_schema, wants_row
from sbpair.pipeline.settling import Completing, SettledRows
from sbpair.pipeline.source.options import queue_paths, spans_to_json
from sbpair.pipeline.source.reader import find_spans
from sbpair.pipeline.spans import NumberRange, Sharing, merged, overlaps, pieces, uncovered
from sbpair.runtime.links import closing

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from sbpair.pipeline.spark.session import StartedSpark

UNIT_MESSAGES = 10_000
TAKE_ROUND_MESSAGES = 200_000
"""Per queue and round: what a task that completes messages has to keep in mind."""
Tell = Callable[[Any], None]
ENQUEUED_MS = "coalesce(unix_millis(enqueued_at), -1L)"
"""Spark SQL: a message's enqueued time as ledgers write it."""
_FACTS = """
    select file, pair, queue, dead_letter, count(*) as rows, min(sequence_number) as first,
        max(sequence_number) as last, unix_millis(min(enqueued_at)) as first_enqueued_ms,
        unix_millis(max(enqueued_at)) as last_enqueued_ms
    from {written} group by file, pair, queue, dead_letter"""
"""Spark SQL: what a manifest says of files."""
LEDGER_KEY = ("dead_letter", "sequence_number", f"{ENQUEUED_MS} enqueued_at_ms")
"""Spark SQL: what tells a message in its queue from all others there, as ledgers write it."""
_GONE = """
    with known as (
        select *, there is null as gone
        from {archived} left join {there} using (queue, dead_letter, sequence_number, enqueued_at_ms)),
    numbered as (
        select *, row_number() over (partition by queue, dead_letter order by sequence_number)
            - row_number() over (partition by queue, dead_letter, gone order by sequence_number) as stretch from known)
    select queue, dead_letter, min(sequence_number) as first, max(sequence_number) as last, count(*) as n
    from numbered where gone group by queue, dead_letter, stretch"""
"""Spark SQL: stretches of archived numbers that are not in their queues, and how many each is."""


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """What to archive, where to."""

    pair: PairByName
    into: str
    queues: tuple[str, ...] = ()
    """Indexes or paths; none: all that exist for the pair's primary."""
    entities: tuple[str, ...] = ()
    """Instead of backlog queues: queues and subscriptions of `side`, which have to exist. They are not taken from."""
    side: Side = Side.SECONDARY
    """The namespace of `entities`."""
    dead_letters: tuple[bool, ...] = (False,)
    first: int = 1
    last: int | None = None
    wanted: MessageFilter = EVERYTHING
    """Only these. An archive holds what one filter wants: what a number is covered by is never asked again."""
    take: bool = False
    ledger: Path | None = None
    """Folder for a ledger of what was taken; driver and executors share it."""
    unit_messages: int = UNIT_MESSAGES
    round_messages: int = TAKE_ROUND_MESSAGES
    compact: bool = True
    delta: bool = False
    """Make the archive, a folder, a Delta table as well. One that is stays one."""
    budget_per_second: float | None = None
    """Messages that all tasks together may browse in a second, and as many that they may take; None: what the namespace
    gives."""
    dry_run: bool = False


def open_store(context: "SparkContext", uri: str) -> Store:
    """The archive at a path or URI. A plain path is a folder that driver and executors share."""
    return LocalStore(Path(uri)) if is_folder(uri) else HadoopStore(context, uri)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What lies in the queues, and which of it is not archived yet."""

    present: tuple[NumberRange, ...]
    missing: tuple[NumberRange, ...]
    sources: tuple[tuple[str, bool], ...] = ()
    """Where was looked: paths, and whether their dead letters are meant."""


def plan_archive(request: ArchiveRequest, manifest: Manifest) -> ArchivePlan:
    """Look into the queues. Raises ServiceError: the namespace cannot be browsed; UsageError: a queue that does not
    exist, or an archive of another filter or side."""
    check_filter(request, manifest)
    resolved = request.pair.resolve()
    with TaskConnection.to(request.pair, request.side) as connection:
        paths = request.entities or queue_paths(resolved, request.queues, connection)
        sources = [(path, dead) for path in paths for dead in request.dead_letters]
        present = find_spans(
            connection, sources, first=request.first, last=request.last, missing_is_empty=not request.entities
        )
        covers = valid_covers(connection, request.pair.name, present, manifest)
    missing = (
        part
        for span, covered in zip(present, covers, strict=True)
        for part in uncovered(span, [one.span for one in covered])
    )
    return ArchivePlan(tuple(present), tuple(missing), tuple(sources))


def anything_behind(request: ArchiveRequest, manifest: Manifest, sources: Sequence[tuple[str, bool]]) -> bool:
    """Whether a message lies behind what the manifest covers of these places: one browse of a place that is empty, two
    of one that is not, where a plan takes a dozen. Of a queue that was made again it may see nothing. Raises
    ServiceError: the namespace cannot be browsed."""
    unread: dict[tuple[str, bool, int], int] = {}
    for one in manifest.covered:
        if one.pair == request.pair.name:
            place = *one.span.place, one.span.partition
            unread[place] = max(unread.get(place, 0), one.last + 1)

    def first_unread(queue: str, dead_letter: bool, found: Received) -> int:
        return unread.get((queue.lower(), dead_letter, found.sequence_number >> PARTITION_SHIFT), 0)

    with TaskConnection.to(request.pair, request.side) as connection:
        return bool(find_spans(connection, sources, unread=first_unread))


def valid_covers(
    connection: TaskConnection, pair: str, spans: Sequence[NumberRange], manifest: Manifest
) -> list[list[Covered]]:
    """What the manifest covers of each span as its queue is now; nothing of one that was deleted and made again."""
    known = manifest.covered_of(pair)

    async def valid(span: NumberRange) -> list[Covered]:
        if not (covered := known(span)):
            return []
        try:
            async with closing(connection.receiver(span.queue, dead_letter=span.dead_letter)) as receiver:
                head = await first_from(receiver, span.first)
        except EntityNotFoundError:
            return []  # deleted since it was looked at
        if head is None or head.enqueued_at is None:
            return covered
        # Numbers and times rise together, so a newer message with a lower number is of another life of the queue.
        number, at_ms = head.sequence_number, round(head.enqueued_at * 1000)
        return [one for one in covered if one.newest_ms is None or one.last < number or one.newest_ms >= at_ms]

    return connection.run(side_by_side(valid, spans))


def check_filter(request: ArchiveRequest, manifest: Manifest) -> None:
    """Raises UsageError: the archive was made with another filter or of another namespace, so its covered numbers say
    nothing for this one."""
    if others := {commit.side for commit in manifest.commits if commit.covered} - {request.side}:
        raise UsageError(
            f"The archive {request.into} holds messages of the {min(others)}; this run asks for those of the "
            f"{request.side}, whose numbers are others. Nothing was archived.",
            hint="Use another folder for this namespace.",
        )
    before = {commit.only for commit in manifest.commits if commit.covered}
    asked = request.wanted.text()
    if before - {asked}:
        holds = f"only messages with {quoted(min(before - {asked}))}" if min(before - {asked}) else "every message"
        raise UsageError(
            f"The archive {request.into} holds {holds} of the numbers it covers; this run asks for "
            f"{quoted(asked) if asked else 'every message'}. Nothing was archived.",
            hint="Use the same filter again (times written out, not as how long ago), or another folder.",
        )


def only_wanted(frame: "DataFrame", wanted: MessageFilter) -> "DataFrame":
    """The rows of an archive that a filter wants, asked in the tasks."""
    if not wanted.is_set:
        return frame
    from pyspark.sql import functions as F

    # Not by Arrow: that way Spark wants pandas.
    wants = F.udf(partial(wants_row, wanted), "boolean", useArrow=False)
    return frame.where(wants(*(F.expr(one) for one in FILTER_COLUMNS)))


def without_work(request: ArchiveRequest, plan: ArchivePlan) -> "ArchiveReport | None":
    """The report of a run that has nothing to do, or only shows what there is to do; None if Spark is needed."""
    nothing = not plan.missing and not (request.take and plan.present)
    if not nothing and not request.dry_run:
        return None
    store = LocalStore(Path(request.into))
    if not request.dry_run:
        publish(store, wanted=request.delta)
        vacuum(store, now=time.time())
    report = _report(request, store, plan)
    report.total_rows = store.manifest().rows
    return report


def _report(request: ArchiveRequest, store: Store, plan: ArchivePlan) -> ArchiveReport:
    """Of a run that has done nothing yet."""
    run = uuid.uuid4().hex[:12]
    dry, take = request.dry_run, request.take
    return ArchiveReport(request.pair.name, store.uri, run, plan.missing, dry_run=dry, take=take)


def archive(
    session: "StartedSpark", request: ArchiveRequest, *, plan: ArchivePlan | None = None, tell: Tell | None = None
) -> ArchiveReport:
    """Carry out a request, by a plan that was made for it before or a new one. Raises SbpairError; what was committed
    before it stays."""
    began = time.monotonic()
    store = open_store(session.context, request.into)
    found = plan if plan is not None else plan_archive(request, store.manifest())
    report = _report(request, store, found)
    if not request.dry_run:
        try:
            _Run(session, request, store, report, tell).carry_out(found)
        except (KeyboardInterrupt, InterruptedWorkError) as stopped:
            raise _interrupted(request, report, stopped) from stopped
    report.total_rows = store.manifest().rows
    report.seconds = time.monotonic() - began
    return report


def _interrupted(request: ArchiveRequest, report: ArchiveReport, stopped: BaseException) -> InterruptedWorkError:
    """Where the messages are now, and the command that goes on."""
    added = f"Interrupted. {report.archive} has {report.rows:,} more messages from this run"
    if not request.take:
        where = "all of them are still in their queues as well."
    elif report.rows or report.settled:
        where = (
            f"at least {report.settled:,} archived messages were removed from their queues, others may be in both "
            "places. Nothing was removed that the archive does not have."
        )
    else:
        where = "nothing was removed from the queues."
    command = f"sbpair pipeline archive {request.pair.name} --archive {request.into}{' --take' if request.take else ''}"
    error = InterruptedWorkError(f"{added}; {where}", hint=f"To go on: {command}")
    if isinstance(stopped, InterruptedWorkError):
        error.exit_name = stopped.exit_name
    return error


class _Run:
    """One archiving, with or without taking."""

    def __init__(
        self, session: "StartedSpark", request: ArchiveRequest, store: Store, report: ArchiveReport, tell: Tell | None
    ) -> None:
        self._session, self._request, self._store = session, request, store
        self._report, self._tell = report, tell

    def carry_out(self, plan: ArchivePlan) -> None:
        self._publish()  # what a run that was killed has committed
        if self._request.take:
            self._settle(plan.present, "Taking, earlier run")
            for part in _rounds(plan.missing, self._request.round_messages):
                self._add(part)
                self._settle(part, "Taking")
        elif plan.missing:
            self._add(plan.missing)
        if self._request.compact:
            self._report.compacted = compact(self._store, self._session, self._report.run)
            self._publish()
        self._report.unnamed = vacuum(self._store, now=time.time())

    def _add(self, spans: Sequence[NumberRange]) -> None:
        known = self._store.manifest()
        files = self._by_executors(self._store, spans) if isinstance(self._store, LocalStore) else self._by_spark(spans)
        for one in files:
            self._report.rows += one.rows
            self._report.bytes += one.bytes
            self._report.per_queue[one.queue] = self._report.per_queue.get(one.queue, 0) + one.rows
        self._report.files += len(files)
        asked, written = self._request, Sharing(files, lambda one: one.span)

        def newest(span: NumberRange) -> int | None:
            times = (one.last_enqueued_ms for one in written(span))
            return max((at for at in times if at is not None), default=None)

        covered = tuple(
            Covered(asked.pair.name, one.queue, one.dead_letter, one.first, one.last, newest(one)) for one in spans
        )
        run, only = self._report.run, asked.wanted.text()
        commit = Commit(time.time(), run, added=tuple(files), covered=covered, only=only, side=asked.side)
        append(self._store, commit, still_valid=partial(refuse_overlap, covered, known.next_number - 1))
        self._publish()

    def _publish(self) -> None:
        publish(self._store, wanted=self._request.delta)

    def _by_executors(self, store: LocalStore, spans: Sequence[NumberRange]) -> list[ArchiveFile]:
        """As plain tasks over spans: nothing of a message goes through the JVM."""
        asked = self._request
        cut = pieces(spans, self._request.unit_messages)
        budget = self._budget_of_one(len(cut))
        work = Archiving(asked.pair, store.root, self._report.run, asked.wanted, asked.side, budget)
        tasks = self._session.context.parallelize(cut, len(cut)).map(work.of)
        units = self._session.run(tasks.collect, "Archiving", tell=self._tell)
        for _, done in units:
            self._report.retried += bool(done.attempt)
            self._report.throttled += done.throttled
            self._report.waited_seconds += done.waited_seconds
        return [file for files, _ in units for file in files]

    def _budget_of_one(self, tasks: int) -> float | None:
        """Of that many tasks, as many at once as there are cores."""
        budget = self._request.budget_per_second
        return None if budget is None else budget / max(1, min(tasks, self._session.context.defaultParallelism))

    def _by_spark(self, spans: Sequence[NumberRange]) -> list[ArchiveFile]:
        """For file systems that only Spark reaches: its own writer, one folder a run, then a look at what it wrote."""
        asked = self._request
        folder = f"data/run={self._report.run}-{uuid.uuid4().hex[:6]}"
        options = {"side": str(asked.side), "messagesPerPartition": str(asked.unit_messages)}
        if (budget := self._budget_of_one(len(pieces(spans, asked.unit_messages)))) is not None:
            options["messagesPerSecond"] = str(max(1, int(budget)))

        def write() -> None:
            day = "coalesce(date_format(enqueued_at, 'yyyy-MM-dd'), 'unknown')"
            source = read_spans(self._session.spark, asked.pair, spans, **options)
            columns = (name for name, *_ in MESSAGE_COLUMNS)
            wanted = only_wanted(source, asked.wanted)
            placed = wanted.selectExpr(*columns, "pair p", "queue q", "dead_letter d", f"{day} date")
            partitioned = placed.write.partitionBy("p", "q", "d", "date")
            partitioned.mode("errorifexists").parquet(self._store.location(folder))

        self._session.run(write, "Archiving", tell=self._tell)
        written = {path: size for path, size, _ in self._store.list_data() if path.startswith(folder + "/")}
        return list(self._examine(written))

    def _examine(self, written: dict[str, int]) -> Iterator[ArchiveFile]:
        paths = [self._store.location(path) for path in written if path.endswith(".parquet")]
        if not paths:
            return
        spark = self._session.spark
        read = spark.read.schema(spark_schema()).parquet(*paths).selectExpr("_metadata.file_path file", "*")
        facts = spark.sql(_FACTS, written=read)
        for row in self._session.run(lambda: facts.collect(), "Checking files", tell=self._tell):
            found = row.asDict()
            name = found.pop("file").rsplit("/", 1)[1]
            path = next(one for one in written if one.endswith("/" + name))
            yield ArchiveFile(path, date=path.split("/date=")[1].split("/")[0], bytes=written[path], **found)

    def _settle(self, spans: Sequence[NumberRange], label: str) -> None:
        """Complete in the queues what committed files hold of these spans."""
        tasks = self._to_be_settled(spans)
        if tasks is None:
            return
        lie_there, left_before = self._without_gone(spans)
        run, begun = self._report.run, self._new(lie_there, lambda commit: (*commit.taken, *commit.taking))
        if begun:  # what a killed run has completed is not taken for what a drain has sent
            append(self._store, Commit(time.time(), run, taking=begun))
        settled = self._session.run(tasks.collect, label, tell=self._tell)
        gone, left = sum(one.gone for one in settled), sum((one.left for one in settled), Counter[str]())
        self._report.settled += sum(one.completed for one in settled)
        self._report.gone += gone
        self._report.waited_seconds += sum(one.waited_seconds for one in settled)
        self._report.left = dict(Counter(self._report.left) + left)
        if left or gone > left_before:
            return
        if taken := self._new(lie_there, lambda commit: commit.taken):
            append(self._store, Commit(time.time(), run, taken=taken))  # a replay need not look for these in the queues

    def _without_gone(self, spans: Sequence[NumberRange]) -> tuple[list[NumberRange], int]:
        """The spans without the archived numbers that are not in their queues any more, and how many these are: a drain
        may have sent them, so nobody may say that the archive took them."""
        spark, files_of = self._session.spark, self._store.manifest().files_of(self._request.pair.name)
        files = list(dict.fromkeys(one for span in spans for one in files_of(span)))

        def stretches() -> list[Any]:
            archived = within(spark, read_files(spark, self._store, files), spans)
            there = read_spans(spark, self._request.pair, spans, includePayload="false")
            keys = archived.selectExpr("queue", *LEDGER_KEY).distinct()
            waiting = there.selectExpr("queue", *LEDGER_KEY, "true there").distinct()
            return spark.sql(_GONE, archived=keys, there=waiting).collect()

        found = self._session.run(stretches, "Looking in queues", tell=self._tell)
        gone = [NumberRange(row["queue"], row["dead_letter"], row["first"], row["last"]) for row in found]
        return [part for span in spans for part in uncovered(span, gone)], sum(row["n"] for row in found)

    def _new(self, spans: Sequence[NumberRange], known: Callable[[Commit], Sequence[Covered]]) -> tuple[Covered, ...]:
        """What the archive covers of these spans, without what is known already."""
        pair, manifest = self._request.pair.name, self._store.manifest()
        of_pair = (one.span for commit in manifest.commits for one in known(commit) if one.pair == pair)
        before, covered = Sharing(of_pair, lambda one: one), manifest.covered_of(pair)
        archived = merged(part for span in spans for part in overlaps(span, (one.span for one in covered(span))))
        new = (part for span in archived for part in uncovered(span, before(span)))
        return tuple(Covered(pair, one.queue, one.dead_letter, one.first, one.last) for one in new)

    def _to_be_settled(self, spans: Sequence[NumberRange]) -> "RDD[SettledRows] | None":
        """A task for each place, the longest first; None if the archive holds nothing of these spans."""
        asked, manifest = self._request, self._store.manifest()
        with TaskConnection.to(asked.pair, "secondary") as connection:
            covers = valid_covers(connection, asked.pair.name, spans, manifest)
        files_of = manifest.files_of(asked.pair.name)
        files = dict.fromkeys(
            file
            for span, covered in zip(spans, covers, strict=True)
            for part in overlaps(span, (one.span for one in covered))
            for file in files_of(part)
        )
        if not files:
            return None
        widths: Counter[tuple[str, bool]] = Counter()
        for span in spans:
            widths[span.place] += span.width
        places = [place for place, _ in widths.most_common()]
        work = Completing(
            asked.pair, ledger=asked.ledger, run=self._report.run, budget_per_second=self._budget_of_one(len(places))
        )
        rows = within(self._session.spark, read_files(self._session.spark, self._store, list(files)), spans)
        rows = rows.select("queue", "dead_letter", "sequence_number", "digest")
        by_place = rows.rdd.keyBy(lambda row: (row[0].lower(), row[1])).partitionBy(len(places), places.index)
        return by_place.values().mapPartitions(work.of)


def _rounds(spans: Sequence[NumberRange], most: int) -> Iterator[list[NumberRange]]:
    """The spans in rounds of up to `most` numbers of each queue, lowest numbers first."""
    waiting: dict[tuple[str, bool], list[NumberRange]] = {}
    for one in pieces(sorted(spans), most):
        waiting.setdefault((one.queue, one.dead_letter), []).append(one)
    for part in zip_longest(*waiting.values()):
        yield [one for one in part if one is not None]


def read_files(spark: "SparkSession", store: Store, files: Sequence[ArchiveFile]) -> "DataFrame":
    """Some files of an archive, in the columns of `rows.MESSAGE_COLUMNS`."""
    if not files:
        return spark.createDataFrame([], spark_schema())
    paths = [store.location(one.path) for one in files]
    return spark.read.schema(spark_schema()).parquet(*paths).select(*(name for name, *_ in MESSAGE_COLUMNS))


def read_spans(spark: "SparkSession", pair: PairByName, spans: Sequence[NumberRange], **options: str) -> "DataFrame":
    """What lies in these stretches now, as `sbpair-backlog` reads it with these options, without bodies."""
    options |= pair.options | {"ranges": spans_to_json(spans), "includeBody": "false"}
    return spark.read.format("sbpair-backlog").options(**options).load()


def within(spark: "SparkSession", frame: "DataFrame", spans: Sequence[NumberRange]) -> "DataFrame":
    """The rows whose numbers are in these stretches."""
    from pyspark.sql import functions as F

    rows = [(*one.place, one.first, one.last) for one in spans]
    stretches = spark.createDataFrame(rows, "t_queue string, t_dead boolean, t_first long, t_last long")
    condition = (
        (F.lower("queue") == F.col("t_queue"))
        & (F.col("dead_letter") == F.col("t_dead"))
        & F.col("sequence_number").between(F.col("t_first"), F.col("t_last"))
    )
    return frame.join(stretches, condition, "left_semi")
