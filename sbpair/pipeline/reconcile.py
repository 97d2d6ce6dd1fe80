"""`pipeline reconcile`: every archived message has exactly one outcome in the ledgers given, or is listed.

    unaccounted   no ledger says what became of it (or only that its destination refused it)
    waiting       the same, and it lies in its backlog queue (or that queue's dead-letter queue): it was not drained yet
    arrived       the same, and a message with its id lies at its destination
    taken         the same, archive or ledger say that it was taken out of its queue, and it is in none of these places:
                  the archive alone has it, until it is replayed
    altered       a ledger or a second archive knows it with another id or content
    doubled       it has more than one final outcome: it was sent twice

Waiting, arrived and taken are only said when a pair is given, whose queues are then looked into. A destination that
cannot be browsed (a topic, a missing right) leaves its messages unaccounted.

Beside these: messages that were sent with an unacknowledged first try (`perhaps_doubled`; they carry the same message
id) and ledger lines of messages that no given archive has (`not_archived`). Neither is a finding.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.names import is_destination
from sbpair.pipeline.archive import open_store, read_files
from sbpair.pipeline.executors import Connection, PairByName
from sbpair.pipeline.ledgers import LEDGER_KEY, read_ledgers
from sbpair.pipeline.manifest import Manifest, check_archive, refuse_other_sides
from sbpair.pipeline.reports import FINDINGS, Finding, ReconcileReport
from sbpair.pipeline.source.reader import find_spans
from sbpair.pipeline.spans import LAST_SEQUENCE_NUMBER, Span
from sbpair.pipeline.waiting import ENQUEUED_MS, messages_in, stretches_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sbpair.pipeline.spark.session import Session

FINAL_OUTCOMES = ("forwarded", "dead-lettered", "ping", "duplicate")
LISTED = 1_000


def verdicts(archived: "DataFrame", outcomes: "DataFrame") -> "DataFrame":
    """One row per message of any of the two, with its verdict.

    `archived`: rows of archives, copies included; `outcomes`: rows of ledgers.
    """
    from pyspark.sql import functions as F

    joined = _archived_once(archived).join(_outcomes_once(outcomes), list(LEDGER_KEY), "full_outer")
    finals = F.coalesce("finals", F.lit(0))
    verdict = (
        F.when(~F.coalesce("in_archive", F.lit(False)), "not archived")
        .when((finals == 0), "unaccounted")
        .when(_altered(), "altered")
        .when(finals > 1, "doubled")
        .otherwise("ok")
    )
    return joined.withColumn("verdict", verdict)


def _archived_once(archived: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    keyed = archived.selectExpr(
        "queue", "dead_letter", "sequence_number", f"{ENQUEUED_MS} enqueued_at_ms", "pair", "destination", "message_id",
        "session_id", "digest",
    )  # fmt: skip
    return keyed.groupBy(*LEDGER_KEY).agg(
        F.lit(True).alias("in_archive"),
        F.min("pair").alias("pair"),
        F.min("destination").alias("destination"),
        F.min("message_id").alias("message_id"),
        F.min("session_id").alias("session_id"),
        F.min("digest").alias("digest"),
        (F.min("digest") != F.max("digest")).alias("copies_differ"),
    )


def _outcomes_once(outcomes: "DataFrame") -> "DataFrame":
    """A drain that finds its message sent by an earlier run says so; that counts where the earlier line is gone."""
    from pyspark.sql import functions as F

    final = F.sum(F.col("outcome").isin(*FINAL_OUTCOMES).cast("int"))
    sent_before = F.max((F.col("outcome") == "already-forwarded").cast("int"))
    sent = F.col("outcome").isin("forwarded", "already-forwarded")
    return outcomes.groupBy(*LEDGER_KEY).agg(
        F.greatest(final, sent_before).alias("finals"),
        F.max(F.when(F.col("outcome").isin(*FINAL_OUTCOMES, "already-forwarded"), F.col("outcome"))).alias("outcome"),
        F.max(F.when(F.col("outcome") == "refused", F.col("reason"))).alias("refused"),
        F.max("attempts").alias("attempts"),
        F.max(F.col("outcome") == "taken").alias("taken"),
        F.min(F.when(sent, F.col("message_id"))).alias("sent_message_id"),
        F.max(F.when(sent, F.col("message_id"))).alias("sent_message_id_last"),
        F.min(F.when(sent, F.col("session_id"))).alias("sent_session_id"),
        F.min("digest").alias("sent_digest"),
        F.max("digest").alias("sent_digest_last"),
        F.sort_array(F.collect_set("source")).alias("ledgers"),
    )


def _altered() -> "Column":
    from pyspark.sql import functions as F

    def differs(one: str, other: str) -> "Column":
        return F.coalesce(F.col(one) != F.col(other), F.lit(False))

    return (
        F.coalesce("copies_differ", F.lit(False))
        | differs("message_id", "sent_message_id")
        | differs("message_id", "sent_message_id_last")
        | F.coalesce(F.lower("session_id") != F.lower("sent_session_id"), F.lit(False))
        | differs("digest", "sent_digest")
        | differs("digest", "sent_digest_last")
    )


def reconcile(
    session: "Session",
    archives: Sequence[str],
    ledgers: Sequence[str],
    *,
    look: PairByName | None = None,
    config: Path | None = None,
    tell: Callable[[Any], None] | None = None,
    listed: int = LISTED,
) -> ReconcileReport:
    """Hold archives against ledgers. `look`: the pair whose queues are searched for what no ledger knows.

    Raises:
        UsageError: one of them is not there or not what it is said to be.
    """
    from pyspark.sql import functions as F

    spark = session.spark

    not_looked_at: dict[str, str] = {}

    def work() -> ReconcileReport:
        frame = every_copy(session, archives)
        judged = verdicts(frame, read_ledgers(spark, ledgers))
        if look is not None:
            manifests = [open_store(spark.sparkContext, uri).manifest() for uri in archives]
            judged = searched(spark, judged, look, config, manifests, not_looked_at)
        judged = judged.cache()
        try:
            groups = judged.groupBy("verdict", "outcome").agg(
                F.count("*").alias("messages"), F.sum((F.col("attempts") > 1).cast("int")).alias("resent")
            )
            rows = groups.collect()
            found = judged.where(F.col("verdict").isin(*FINDINGS)).orderBy(*LEDGER_KEY).limit(listed).collect()
        finally:
            judged.unpersist()
        return _report(rows, found, not_looked_at)

    return session.run(work, "Reconciling", tell=tell)


def searched(
    spark: "SparkSession",
    judged: "DataFrame",
    pair: PairByName,
    config: Path | None,
    manifests: Sequence[Manifest],
    not_looked_at: dict[str, str],
) -> "DataFrame":
    """With the verdicts on the pair's unaccounted messages that a look into backlog queues and destinations allows."""
    from pyspark.sql import functions as F

    here = (F.col("verdict") == "unaccounted") & (F.col("pair") == pair.name)
    open_ones = judged.where(here)
    destinations = [row["destination"] for row in open_ones.select("destination").distinct().collect()]
    if not destinations:
        return judged
    there = _in_backlog(spark, pair, config, manifests)
    numbers = there.select(*LEDGER_KEY).distinct().withColumn("same_place", F.lit(True))
    ids = there.where("message_id is not null").select("queue", "message_id").distinct()
    arrived, blind = _at_destinations(spark, pair, destinations, not_looked_at)
    taken, in_taken = stretches_of(spark, _taken(pair, manifests))
    known = (
        open_ones.join(numbers, list(LEDGER_KEY), "left")
        .join(ids.withColumn("same_id", F.lit(True)), ["queue", "message_id"], "left")
        .join(arrived.withColumn("at_destination", F.lit(True)), ["destination", "message_id"], "left")
        .join(taken.dropDuplicates(), in_taken, "left")
    )
    seen = ~F.coalesce(F.col("destination").isin(blind) | F.col("destination").isNull(), F.lit(True))
    verdict = (
        F.when(F.coalesce("same_place", "same_id", F.lit(False)), "waiting")
        .when(F.coalesce("at_destination", F.lit(False)), "arrived")
        .when((F.col("t_queue").isNotNull() | F.coalesce("taken", F.lit(False))) & seen, "taken")
        .otherwise("unaccounted")
    )
    found = known.withColumn("verdict", verdict).select(*judged.columns)
    return judged.where(~F.coalesce(here, F.lit(False))).unionByName(found)


def _in_backlog(
    spark: "SparkSession", pair: PairByName, config: Path | None, manifests: Sequence[Manifest]
) -> "DataFrame":
    """What lies in the queues that the archives are of, dead letters included."""
    queues = {one.queue for manifest in manifests for one in manifest.files if one.pair == pair.name}
    with Connection.to(pair, "secondary") as connection:
        spans = find_spans(connection, [(queue, dead) for queue in sorted(queues) for dead in (False, True)])
    return messages_in(spark, pair.name, config, spans)


def _at_destinations(
    spark: "SparkSession", pair: PairByName, destinations: Sequence[str | None], not_looked_at: dict[str, str]
) -> "tuple[DataFrame, list[str]]":
    """Ids of the messages that lie at these destinations now, and the destinations that could not be browsed."""
    rows: list[tuple[str, str]] = []
    blind: list[str] = []
    with Connection.to(pair, "primary") as connection:
        for destination in destinations:
            if destination is None:
                continue
            try:
                if not is_destination(destination.strip("/")):
                    raise UsageError("not the path of a queue")
                whole = Span(destination, False, 1, LAST_SEQUENCE_NUMBER)
                pages = connection.browse(whole)
                rows += [(destination, one.message_id) for page in pages for one in page if one.message_id is not None]
            except (ServiceError, UsageError) as error:
                blind.append(destination)
                not_looked_at[destination] = error.message
    frame = spark.createDataFrame(rows, "destination string, message_id string").distinct()
    return frame, blind


def _taken(pair: PairByName, manifests: Sequence[Manifest]) -> list[Span]:
    return [
        one.span
        for manifest in manifests
        for commit in manifest.commits
        for one in commit.taken
        if one.pair == pair.name
    ]


def every_copy(session: "Session", archives: Sequence[str]) -> "DataFrame":
    """The rows of all archives, a message as often as they hold it: copies are compared with each other."""
    spark = session.spark
    stores = [open_store(spark.sparkContext, uri) for uri in archives]
    for one in stores:
        refuse_other_sides(one.manifest(), one.uri)
    frames = [read_files(spark, store, check_archive(store).files) for store in stores]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionByName(other)
    return frame


def _report(rows: Sequence[Any], found: Sequence[Any], not_looked_at: dict[str, str]) -> ReconcileReport:
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + row["messages"]
        if row["verdict"] in ("ok", "arrived"):
            name = row["outcome"] or "arrived"
            outcomes[name] = outcomes.get(name, 0) + row["messages"]
    not_archived = counts.pop("not archived", 0)
    return ReconcileReport(
        messages=sum(counts.values()),
        verdicts=counts,
        outcomes=outcomes,
        perhaps_doubled=sum(row["resent"] or 0 for row in rows if row["verdict"] == "ok"),
        not_archived=not_archived,
        not_looked_at=not_looked_at,
        listed=tuple(_listed(row) for row in found),
    )


def _listed(row: Any) -> Finding:
    unknown = f"refused: {row['refused']}" if row["refused"] else "no ledger knows it"
    why = {
        "taken": f"{unknown}; taken out of its queue and not at its destination: the archive has it",
        "unaccounted": unknown,
        "waiting": f"{unknown}; still in the backlog",
        "altered": "another id, session or content than in the archive",
        "doubled": f"{row['finals']} final outcomes",
    }[row["verdict"]]
    return Finding(
        verdict=row["verdict"],
        pair=row["pair"],
        queue=row["queue"],
        dead_letter=row["dead_letter"],
        sequence_number=row["sequence_number"],
        message_id=row["message_id"],
        session_id=row["session_id"],
        destination=row["destination"],
        why=why,
        ledgers=tuple(row["ledgers"] or ()),
    )
