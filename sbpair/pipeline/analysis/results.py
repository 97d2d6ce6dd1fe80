"""The tables of an analysis, each a function from a kind of the roll-up (`Partials`) to a DataFrame.

Every function ends in a `select`: that is its contract. Times are timestamps, sizes are bytes. Percentiles come from
buckets and are at most 6 % too large (sizes), or to the minute (ages).
"""

from typing import TYPE_CHECKING, Final

from sbpair.pipeline.analysis.buckets import highest_sql, lowest_sql
from sbpair.pipeline.analysis.question import MICROS, MICROS_PER_MINUTE, Question

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

_PLACE: Final = ("pair", "destination")
_MINUTES_PER_HOUR: Final = 60
_SIZE_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _moment(micros: str) -> str:
    return f"timestamp_micros({micros})"


def sizes(parts: "DataFrame") -> "DataFrame":
    """Rows of kind size, added up."""
    from pyspark.sql import functions as F

    keys = ("pair", "queue", "dead_letter", "reason", "destination", "bucket")
    return parts.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "units", "near_limit", "pings")),
        F.max("largest").alias("largest"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )


def times(parts: "DataFrame") -> "DataFrame":
    """Rows of kind time, added up."""
    from pyspark.sql import functions as F

    return parts.groupBy("pair", "destination", "dead_letter", "minute", "bucket").agg(
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "units", "expired")),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )


def session_places(parts: "DataFrame") -> "DataFrame":
    """One row per session and queue, those of a session together (`hash`). Parts that were read apart are joined by the
    order of their numbers: where the next part began before the last one ended, there is one more inversion. The one
    shuffle, by a hash of the session, also serves `sessions`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = ("pair", "queue", "dead_letter", "destination", "session_id")
    in_queue = Window.partitionBy("hash", "queue", "dead_letter").orderBy("first_number", "first_at")
    return (
        parts.withColumn("hash", F.xxhash64("pair", "destination", "session_id"))
        .repartition("hash")
        .withColumn("before", F.lag("left_at").over(in_queue))
        .groupBy("hash", *keys)
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            (F.sum("inversions") + F.count_if(F.expr("entered_at < before"))).alias("inversions"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
    )


def destinations(
    partials_sizes: "DataFrame",
    partials_times: "DataFrame",
    of_sessions: "DataFrame",
    existing: "DataFrame | None",
    question: Question,
) -> "DataFrame":
    """Per destination: how much, how large, how old, what is wrong with it. `exists` is null without a snapshot.

    The three sources are laid one under the other and added up in one go: cheaper than joins, and a destination that
    is null needs no care.
    """
    from pyspark.sql import functions as F

    parts = _by_size(partials_sizes).unionByName(_by_time(partials_times, question), allowMissingColumns=True)
    counted = of_sessions.groupBy(*_PLACE).agg(F.count("*").alias("sessions"))
    parts = parts.unionByName(counted, allowMissingColumns=True)
    names = [name for name in parts.columns if name not in _PLACE]
    joined = parts.groupBy(*_PLACE).agg(*(F.max(name).alias(name) for name in names))
    return (
        _with_existence(joined, existing)
        .selectExpr(
            *_PLACE,
            "messages",
            "bytes",
            "units",
            "dead_letters",
            "pings",
            "coalesce(sessions, 0) as sessions",
            f"{_moment('first_at')} as oldest_at",
            f"{_moment('last_at')} as newest_at",
            "ages[0] * 60D as age_p50_seconds",
            "ages[1] * 60D as age_p95_seconds",
            f"greatest(0D, ({question.as_of_micros}L - first_at) / {MICROS}D) as age_max_seconds",
            *(
                f"least({highest_sql(f'buckets[{place}]')}, largest) as size_{name}"
                for place, name in enumerate(_SIZE_SHARES)
            ),
            "largest as size_max",
            "near_limit",
            "expired",
            "expiring",
            "exists",
        )
        .orderBy(F.desc("messages"), *_PLACE)
    )


def _by_size(partials_sizes: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return partials_sizes.groupBy(*_PLACE).agg(
        *(F.sum(name).alias(name) for name in ("messages", "bytes", "units", "near_limit", "pings")),
        F.sum(F.when(F.col("dead_letter"), F.col("messages")).otherwise(0)).alias("dead_letters"),
        F.max("largest").alias("largest"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        _percentiles("bucket", _SIZE_SHARES.values()).alias("buckets"),
    )


def _by_time(partials_times: "DataFrame", question: Question) -> "DataFrame":
    from pyspark.sql import functions as F

    now = question.as_of_micros // MICROS_PER_MINUTE
    return (
        _with_turns(partials_times, question)
        .withColumn("age", F.greatest(F.lit(0), F.lit(now) - F.col("minute")))
        .groupBy(*_PLACE)
        .agg(
            F.sum("expired").alias("expired"),
            F.sum("expiring").alias("expiring"),
            _percentiles("age", (0.5, 0.95)).alias("ages"),
        )
    )


def _percentiles(value: str, shares: "Iterable[float]") -> "Column":
    """Values that at least those shares of the messages do not exceed."""
    from pyspark.sql import functions as F

    wanted = ", ".join(f"{share}D" for share in shares)
    found = F.expr(f"percentile({value}, array({wanted}), messages)")
    return F.transform(found, lambda one: F.ceil(one).cast("bigint"))


def _with_existence(frame: "DataFrame", existing: "DataFrame | None") -> "DataFrame":
    from pyspark.sql import functions as F

    if existing is None:
        return frame.withColumn("exists", F.lit(None).cast("boolean"))
    known = existing.selectExpr("pair as known_pair", "lower(path) as known_path").distinct()
    same = [F.col("pair") == F.col("known_pair"), F.lower("destination") == F.col("known_path")]
    found = "case when destination is null then null else known_path is not null end"
    joined = frame.join(F.broadcast(known), same, "left").withColumn("exists", F.expr(found))
    return joined.drop("known_pair", "known_path")


def hours(partials_times: "DataFrame") -> "DataFrame":
    """Per destination and hour of arrival."""
    from pyspark.sql import functions as F

    hour = f"cast(floor(minute / {_MINUTES_PER_HOUR}) as bigint) * {_MINUTES_PER_HOUR * MICROS_PER_MINUTE}"
    return (
        partials_times.withColumn("hour", F.expr(_moment(hour)))
        .groupBy(*_PLACE, "hour")
        .agg(*(F.sum(name).alias(name) for name in ("messages", "bytes", "units")))
        .select(*_PLACE, "hour", "messages", "bytes", "units")
        .orderBy("pair", "hour", "destination")
    )


def queues(partials_sizes: "DataFrame") -> "DataFrame":
    """Per backlog queue, dead letters apart: how evenly the senders spread."""
    from pyspark.sql import functions as F

    return (
        partials_sizes.groupBy("pair", "queue", "dead_letter")
        .agg(
            *(F.sum(name).alias(name) for name in ("messages", "bytes", "units")),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
        .selectExpr(
            "pair",
            "queue",
            "dead_letter",
            "messages",
            "bytes",
            "units",
            f"{_moment('first_at')} as oldest_at",
            f"{_moment('last_at')} as newest_at",
        )
        .orderBy("pair", F.length("queue"), "queue", "dead_letter")
    )


def dead_letters(partials_sizes: "DataFrame") -> "DataFrame":
    """Per reason and destination."""
    from pyspark.sql import functions as F

    return (
        partials_sizes.where("dead_letter")
        .groupBy("pair", "reason", "destination")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.count_distinct("queue").alias("queues"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
        .selectExpr(
            "pair",
            "reason",
            "destination",
            "messages",
            "bytes",
            "queues",
            f"{_moment('first_at')} as oldest_at",
            f"{_moment('last_at')} as newest_at",
        )
        .orderBy(F.desc("messages"), "pair", "reason", "destination")
    )


def size_histogram(partials_sizes: "DataFrame") -> "DataFrame":
    """Messages per range of sizes."""
    from pyspark.sql import functions as F

    return (
        partials_sizes.groupBy("pair", "bucket")
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
        .selectExpr(
            "pair", f"{lowest_sql('bucket')} as from_bytes", f"{highest_sql('bucket')} as to_bytes", "messages", "bytes"
        )
        .orderBy("pair", "from_bytes")
    )


def time_to_live(partials_times: "DataFrame", question: Question) -> "DataFrame":
    """Per destination and length of life: how many lives are over, and how many will be before the message's turn.

    The backlog is taken to be drained oldest minute first at the question's rate. Lengths are the lower end of their
    bucket, so a life that ends close to its message's turn counts as over.
    """
    from pyspark.sql import functions as F

    return (
        _with_turns(partials_times, question)
        .where("bucket is not null")
        .withColumn("lives_ms", F.expr(lowest_sql("bucket")))
        .groupBy(*_PLACE, "lives_ms")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("expired").alias("expired"),
            F.sum("expiring").alias("expiring"),
        )
        .selectExpr(*_PLACE, "lives_ms / 1000D as lives_seconds", "messages", "expired", "expiring")
        .orderBy(*_PLACE, "lives_seconds")
    )


def _with_turns(partials_times: "DataFrame", question: Question) -> "DataFrame":
    """With the number of messages whose lives are over by the time they are drained, but not yet."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    so_far = Window.partitionBy("pair").orderBy("minute").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    turn = F.sum("messages").over(so_far) * _micros_each(question) + question.as_of_micros
    ends = f"first_at + ({lowest_sql('bucket')}) * 1000"
    return partials_times.withColumn("turn", turn).withColumn(
        "expiring", F.expr(f"case when {ends} <= turn then messages - expired else 0 end")
    )


def _micros_each(question: Question) -> int:
    return max(1, round(MICROS / question.messages_per_second))


def sessions(places: "DataFrame") -> "DataFrame":
    """Per session: inversions, and the queues it is spread over. `interleaved`: messages of one queue arrived while
    others of the session went to another one, so draining queue by queue would change their order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = ("pair", "destination", "session_id")
    by_start = Window.partitionBy("hash").orderBy("first_at", "last_at")
    latest = F.max("last_at").over(by_start.rowsBetween(Window.unboundedPreceding, -1))
    return (
        places.withColumn("others_until", latest)
        .groupBy("hash", *keys)
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.size(F.collect_set("queue")).alias("queues"),
            F.sum("inversions").alias("inversions"),
            F.max(F.coalesce(F.col("first_at") < F.col("others_until"), F.lit(False))).alias("interleaved"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
        .selectExpr(
            *keys,
            "messages",
            "bytes",
            "queues",
            "inversions",
            "interleaved",
            f"{_moment('first_at')} as oldest_at",
            f"{_moment('last_at')} as newest_at",
        )
    )


def duplicates(parts: "DataFrame") -> "DataFrame":
    """Ids that occur more than once for one destination; here the ids are compared, not their hashes."""
    from pyspark.sql import functions as F

    return (
        parts.groupBy(*_PLACE, "message_id")
        .agg(
            F.count("*").alias("copies"),
            F.array_sort(F.collect_set("queue")).alias("queues"),
            F.count_if(F.col("dead_letter")).alias("dead_letters"),
            F.min("first_at").alias("first_at"),
            F.max("first_at").alias("last_at"),
        )
        .where("copies > 1")
        .selectExpr(
            *_PLACE,
            "message_id",
            "copies",
            "queues",
            "dead_letters",
            f"{_moment('first_at')} as first_at",
            f"{_moment('last_at')} as last_at",
        )
    )


def outages(partials_times: "DataFrame", question: Question) -> "DataFrame":
    """When diversion of each destination began and ended: runs of minutes with diverted messages, parted by the
    question's quiet time. What was drained before the archive was made does not show."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by_minute = partials_times.groupBy(*_PLACE, "minute").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )
    in_time = Window.partitionBy(*_PLACE).orderBy("minute")
    gap = F.col("minute") - F.lag("minute").over(in_time) > question.quiet_minutes
    return (
        by_minute.withColumn("run", F.sum(F.coalesce(gap.cast("int"), F.lit(0))).over(in_time))
        .groupBy(*_PLACE, "run")
        .agg(
            F.min("first_at").alias("began"),
            F.max("last_at").alias("ended"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.max("messages").alias("busiest_minute"),
        )
        .selectExpr(
            *_PLACE,
            f"{_moment('began')} as began_at",
            f"{_moment('ended')} as ended_at",
            f"(ended - began) / {MICROS}D as seconds",
            "messages",
            "bytes",
            "busiest_minute",
            f"ended > {question.as_of_micros}L - {question.quiet_minutes * MICROS_PER_MINUTE}L as going_on",
        )
        .orderBy("pair", "began_at", "destination")
    )


def totals(partials_sizes: "DataFrame") -> "DataFrame":
    """Per pair: what a drain has to carry."""
    from pyspark.sql import functions as F

    return (
        partials_sizes.groupBy("pair")
        .agg(
            *(F.sum(name).alias(name) for name in ("messages", "bytes", "units")),
            F.sum(F.when(F.col("dead_letter"), F.col("messages")).otherwise(0)).alias("dead_letters"),
        )
        .select("pair", "messages", "bytes", "units", "dead_letters")
        .orderBy("pair")
    )
