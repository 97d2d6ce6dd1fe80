"""`pipeline reconcile`: every archived message has exactly one outcome in the ledgers given, or is listed.

    lost      no ledger says what became of it (or only that its destination refused it)
    altered   a ledger or a second archive knows it with another id or content
    doubled   it has more than one final outcome: it was sent twice

Beside these: messages that were sent with an unacknowledged first try (`perhaps_doubled`; they carry the same message
id) and ledger lines of messages that no given archive has (`not_archived`). Neither is a finding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair.pipeline.archive import open_store, read_files
from sbpair.pipeline.ledgers import LEDGER_KEY, read_ledgers
from sbpair.pipeline.manifest import check_archive
from sbpair.pipeline.replay import ENQUEUED_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sbpair.pipeline.session import Session

FINAL_OUTCOMES = ("forwarded", "dead-lettered", "ping", "duplicate")
FINDINGS = ("lost", "altered", "doubled")
LISTED = 1_000


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """Messages by verdict, outcomes of the good ones, and the findings (up to a number) one by one."""

    messages: int
    counts: dict[str, int]
    outcomes: dict[str, int]
    perhaps_doubled: int
    not_archived: int
    listed: tuple[dict[str, Any], ...]

    @property
    def findings(self) -> int:
        return sum(self.counts.get(kind, 0) for kind in FINDINGS)


def verdicts(archived: "DataFrame", outcomes: "DataFrame") -> "DataFrame":
    """One row per message of any of the two, with its verdict.

    `archived`: rows of archives, copies included; `outcomes`: rows of ledgers.
    """
    from pyspark.sql import functions as F

    joined = _archived_once(archived).join(_outcomes_once(outcomes), list(LEDGER_KEY), "full_outer")
    finals = F.coalesce("finals", F.lit(0))
    verdict = (
        F.when(~F.coalesce("in_archive", F.lit(False)), "not archived")
        .when((finals == 0), "lost")
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
        | differs("session_id", "sent_session_id")
        | differs("digest", "sent_digest")
        | differs("digest", "sent_digest_last")
    )


def reconcile(
    session: "Session",
    archives: Sequence[str],
    ledgers: Sequence[str],
    *,
    tell: Callable[[Any], None] | None = None,
    listed: int = LISTED,
) -> ReconcileReport:
    """Hold archives against ledgers.

    Raises:
        UsageError: one of them is not there or not what it is said to be.
    """
    from pyspark.sql import functions as F

    spark = session.spark

    def work() -> ReconcileReport:
        frame = every_copy(session, archives)
        judged = verdicts(frame, read_ledgers(spark, ledgers)).cache()
        try:
            groups = judged.groupBy("verdict", "outcome").agg(
                F.count("*").alias("messages"), F.sum((F.col("attempts") > 1).cast("int")).alias("resent")
            )
            rows = groups.collect()
            found = judged.where(F.col("verdict").isin(*FINDINGS)).orderBy(*LEDGER_KEY).limit(listed).collect()
        finally:
            judged.unpersist()
        return _report(rows, found)

    return session.run(work, "Reconciling", tell=tell)


def every_copy(session: "Session", archives: Sequence[str]) -> "DataFrame":
    """The rows of all archives, a message as often as they hold it: copies are compared with each other."""
    spark = session.spark
    stores = [open_store(spark, uri) for uri in archives]
    frames = [read_files(spark, store, check_archive(store).files) for store in stores]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionByName(other)
    return frame


def _report(rows: Sequence[Any], found: Sequence[Any]) -> ReconcileReport:
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + row["messages"]
        if row["verdict"] == "ok":
            outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + row["messages"]
    not_archived = counts.pop("not archived", 0)
    return ReconcileReport(
        messages=sum(counts.values()),
        counts=counts,
        outcomes=outcomes,
        perhaps_doubled=sum(row["resent"] or 0 for row in rows if row["verdict"] == "ok"),
        not_archived=not_archived,
        listed=tuple(_listed(row) for row in found),
    )


def _listed(row: Any) -> dict[str, Any]:
    why = {
        "lost": f"refused: {row['refused']}" if row["refused"] else "no ledger knows it",
        "altered": "another id, session or content than in the archive",
        "doubled": f"{row['finals']} final outcomes",
    }[row["verdict"]]
    return {
        "verdict": row["verdict"],
        "pair": row["pair"],
        "queue": row["queue"],
        "dead_letter": row["dead_letter"],
        "sequence_number": row["sequence_number"],
        "message_id": row["message_id"],
        "session_id": row["session_id"],
        "destination": row["destination"],
        "why": why,
        "ledgers": list(row["ledgers"] or ()),
    }
