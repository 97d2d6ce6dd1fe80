"""Audits over time: how backlogs grow and when they are full, which findings come and go.

The history is what `sbpair audit --history DIR` appends: one line an audit and pair. A finding that flaps was there in
one audit and gone in the next, several times over; an audit that could not run its check says nothing about it.
"""

from typing import TYPE_CHECKING, Final

from sbpair.core.errors import UsageError
from sbpair.core.pairing import DOCUMENTED_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORY_SCHEMA: Final = (
    "taken_at string, pair string, findings map<string,bigint>, severities map<string,bigint>, skipped array<string>, "
    "queues array<struct<queue: string, active: bigint, dead_letter: bigint, scheduled: bigint, size_bytes: bigint>>"
)
QUEUE_CAPACITY_BYTES: Final = DOCUMENTED_SETTINGS.max_size_in_megabytes * 1024 * 1024
"""A backlog queue as the documents have it."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999: Spark reads more of them than a date has."""
_COUNTS = ("active", "dead_letter", "scheduled", "size_bytes")


def read_history(spark: "SparkSession", path: str, *, since: float | None = None) -> "DataFrame":
    """One row an audit, `at` its time in epoch seconds; from `since` on.

    Raises:
        UsageError: no such folder, or a line that is not of a history.
    """
    from pyspark.sql import functions as F

    try:
        lines = spark.read.schema(f"{HISTORY_SCHEMA}, broken string").json(
            path, columnNameOfCorruptRecord="broken", pathGlobFilter="*.jsonl"
        )
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error):
            raise UsageError(f"There is no {path}.", hint="sbpair audit --history DIR writes a history.") from error
        raise
    read = lines.withColumn("at", F.unix_micros(F.try_to_timestamp("taken_at")) / 1_000_000).persist()
    in_range = f"at between {_FIRST_SECOND} and {_LAST_SECOND}"
    wrong = read.where(f"broken is not null or pair is null or not coalesce({in_range}, false)").first()
    if wrong is not None:
        shown = str(wrong["broken"] or wrong["taken_at"])[:100]
        raise UsageError(f"{path} holds a line that is none of an audit's history: {shown!r}.")
    rows = read.drop("broken", "taken_at").dropDuplicates(["pair", "at"])
    return rows if since is None else rows.where(F.col("at") >= since)


def readings(history: "DataFrame") -> "DataFrame":
    """Per audit: what was in the pair's backlog queues."""
    from pyspark.sql import functions as F

    return (
        history.select("pair", "at", F.explode_outer("queues").alias("one"))
        .groupBy("pair", "at")
        .agg(*(F.coalesce(F.sum(f"one.{name}"), F.lit(0)).alias(name) for name in _COUNTS))
        .select("pair", "at", *_COUNTS)
        .orderBy("pair", "at")
    )


def growth(history: "DataFrame") -> "DataFrame":
    """Per queue: what it held first and last, how fast it grows, when it is full at that rate.

    The rate is the slope of the straight line through all readings (least squares).
    """
    from pyspark.sql import functions as F

    left = f"({QUEUE_CAPACITY_BYTES} - size_bytes)"
    return (
        history.select("pair", "at", F.explode("queues").alias("one"))
        .select("pair", "at", "one.*")
        .groupBy("pair", "queue")
        .agg(
            F.count("*").alias("readings"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.min_by("active", "at").alias("active_first"),
            F.max_by("active", "at").alias("active"),
            F.max_by("dead_letter", "at").alias("dead_letter"),
            F.max_by("size_bytes", "at").alias("size_bytes"),
            (F.regr_slope("active", "at") * 3600).alias("messages_per_hour"),
            (F.regr_slope("size_bytes", "at") * 3600).alias("bytes_per_hour"),
        )
        .selectExpr(
            "pair",
            "queue",
            "readings",
            "first_at",
            "last_at",
            "active_first",
            "active",
            "dead_letter",
            "size_bytes",
            "coalesce(messages_per_hour, 0D) as messages_per_hour",
            "coalesce(bytes_per_hour, 0D) as bytes_per_hour",
            f"case when bytes_per_hour > 0 then greatest(0D, {left} / bytes_per_hour * 3600) end as seconds_until_full",
        )
        .orderBy(F.asc_nulls_last("seconds_until_full"), F.desc("active"), "pair", "queue")
    )


def findings(history: "DataFrame") -> "DataFrame":
    """Per pair and code of a finding: in how many audits, first and last, and how often it came or went."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    codes = history.select("pair", F.explode(F.map_keys("findings")).alias("code")).distinct()
    audits = history.select("pair", "at", "findings", "skipped").join(codes, "pair")
    looked = audits.where("not coalesce(array_contains(skipped, code), false)").withColumn(
        "count", F.coalesce(F.try_element_at("findings", "code"), F.lit(0))
    )
    in_time = Window.partitionBy("pair", "code").orderBy("at")
    there = looked.withColumn("there", F.col("count") > 0)
    return (
        there.withColumn("changed", F.col("there") != F.lag("there").over(in_time))
        .groupBy("pair", "code")
        .agg(
            F.count("*").alias("audits"),
            F.count_if(F.col("there")).alias("seen"),
            F.min(F.when(F.col("there"), F.col("at"))).alias("first_seen"),
            F.max(F.when(F.col("there"), F.col("at"))).alias("last_seen"),
            F.count_if(F.col("changed")).alias("changes"),
            F.max_by("there", "at").alias("open"),
            F.max_by("count", "at").alias("latest"),
            F.max("count").alias("most"),
        )
        .select("pair", "code", "open", "latest", "most", "seen", "audits", "first_seen", "last_seen", "changes")
        .orderBy(F.desc("open"), F.desc("changes"), "pair", "code")
    )
