"""Which archived messages still wait in the backlog queues: asked of the queues themselves, not of the archive.

Only an archive's own record of a taking spares the question. An archive that left the queues as they are says nothing
about what a drain has done since: what it has and its queue lacks has gone somewhere, to its destination as a rule.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.errors import UsageError
from sbpair.core.words import counted
from sbpair.pipeline.source.options import spans_to_json
from sbpair.pipeline.spans import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEDGER_KEY = ("queue", "dead_letter", "sequence_number", "enqueued_at_ms")
ENQUEUED_MS = "coalesce(unix_millis(enqueued_at), -1L)"
"""Spark SQL: a message's enqueued time as ledgers write it."""


def messages_in(spark: "SparkSession", pair: str, config: Path | None, spans: Sequence[Span]) -> "DataFrame":
    """The messages of these stretches as `sbpair-backlog` reads them, without payloads, and their `enqueued_at_ms`."""
    from pyspark.sql import functions as F

    options = {"pair": pair, "ranges": spans_to_json(spans), "includePayload": "false", "includeBody": "false"}
    if config is not None:
        options["config"] = str(config)
    frame = spark.read.format("sbpair-backlog").options(**options).load()
    return frame.withColumn("enqueued_at_ms", F.expr(ENQUEUED_MS))


def within(spark: "SparkSession", frame: "DataFrame", spans: Sequence[Span]) -> "DataFrame":
    """The rows whose numbers are in these stretches."""
    from pyspark.sql import functions as F

    rows = [(one.queue.lower(), one.dead_letter, one.first, one.last) for one in spans]
    stretches = spark.createDataFrame(rows, "t_queue string, t_dead boolean, t_first long, t_last long")
    condition = (
        (F.lower("queue") == F.col("t_queue"))
        & (F.col("dead_letter") == F.col("t_dead"))
        & F.col("sequence_number").between(F.col("t_first"), F.col("t_last"))
    )
    return frame.join(stretches, condition, "left_semi")


def refused_as_waiting(waiting: int, todo: int, pair: str, archives: Sequence[str]) -> UsageError:
    """Sending these would double them as soon as the backlog is drained."""
    return UsageError(
        f"{waiting:,} of {counted(todo, 'message')} still wait in the backlog queues or in their dead-letter queues; a "
        "drain would send them a second time. Nothing was sent.",
        hint=f"Drain them (sbpair drain {pair}, and again with --dlq), or take them out first (sbpair pipeline archive "
        f"{pair} --archive {archives[0]} --take). --although-in-the-queues sends them nevertheless.",
    )


def refused_as_gone(gone: int, todo: int, pair: str, archives: Sequence[str]) -> UsageError:
    """Sending these would double what a drain has sent back since they were archived."""
    return UsageError(
        f"{gone:,} of {counted(todo, 'message')} have left the backlog queues, and the archive did not take them out: "
        "a drain or syphon may have sent them back already. Nothing was sent.",
        hint="Name its ledger as well (--ledger drain.jsonl): what it has is left out. See what has arrived (sbpair "
        f"pipeline reconcile {archives[0]} --pair {pair}). --although-gone sends them nevertheless.",
    )
