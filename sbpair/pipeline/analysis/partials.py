"""The roll-up that every result is computed from, and how Spark SQL makes it of any DataFrame of messages.

Four kinds of rows:

    size       per queue, dead-letter reason, destination and size bucket
    time       per destination, minute of arrival and time-to-live bucket
    session    per session and queue: its messages in the order of their numbers, for inversions
    duplicate  one row per message whose id occurs more than once for its destination

There may be several rows of a key; results add them up. A message without an arrival time counts as just arrived.
Inversions of a session are neighbours in the order of the queue's numbers whose arrival times go backwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbpair.pipeline.analysis.buckets import bucket_sql
from sbpair.pipeline.analysis.question import MICROS_PER_MINUTE, Question, units_sql
from sbpair.pipeline.schemas import struct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "pair": ("string", ""),
    "queue": ("string", ""),
    "dead_letter": ("boolean", ""),
    "reason": ("string", "dead-letter reason"),
    "destination": ("string", ""),
    "session_id": ("string", ""),
    "message_id": ("string", ""),
    "bucket": ("bigint", "of the size in bytes, or of the time to live in milliseconds"),
    "minute": ("bigint", "since 1970"),
    "messages": ("bigint", ""),
    "bytes": ("bigint", ""),
    "units": ("bigint", "steps of 64 KB"),
    "expired": ("bigint", "messages whose time to live is over"),
    "near_limit": ("bigint", "messages near the size limit"),
    "pings": ("bigint", "messages that are pings"),
    "largest": ("bigint", "bytes"),
    "first_at": ("bigint", "earliest arrival, microseconds since 1970"),
    "last_at": ("bigint", "latest arrival"),
    "entered_at": ("bigint", "arrival of the lowest number"),
    "left_at": ("bigint", "arrival of the highest number"),
    "first_number": ("bigint", "lowest sequence number"),
    "inversions": ("bigint", ""),
}

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "size": (
        *("pair", "queue", "dead_letter", "reason", "destination", "bucket"),
        *("messages", "bytes", "units", "near_limit", "pings", "largest", "first_at", "last_at"),
    ),
    "time": (
        *("pair", "destination", "dead_letter", "minute", "bucket"),
        *("messages", "bytes", "units", "expired", "first_at", "last_at"),
    ),
    "session": (
        *("pair", "queue", "dead_letter", "destination", "session_id"),
        *("messages", "bytes", "inversions", "first_at", "last_at", "entered_at", "left_at", "first_number"),
    ),
    "duplicate": ("pair", "destination", "message_id", "queue", "dead_letter", "first_at"),
}
"""The columns of each kind."""


def columns_of(kind: str) -> tuple[tuple[str, str, str], ...]:
    """Name, Spark type and meaning of a kind's columns."""
    return tuple((name, *_COLUMNS[name]) for name in KINDS[kind])


@dataclass(frozen=True, slots=True)
class Partials:
    """The roll-up: a DataFrame of each of `KINDS`. Nothing is computed before it is asked for."""

    size: "DataFrame"
    time: "DataFrame"
    session: "DataFrame"
    duplicate: "DataFrame"


SCANNED: Final = (
    "pair",
    "queue",
    "dead_letter",
    "sequence_number",
    "enqueued_at",
    "dead_letter_reason",
    "destination",
    "message_id",
    "session_id",
    "ttl_ms",
    "is_ping",
    "size_bytes",
)
"""The columns of a message that an analysis looks at; never the payload."""


def partials_by_sql(messages: "DataFrame", question: Question) -> Partials:
    """The roll-up of any DataFrame with the columns `SCANNED`, each message in it once."""
    looked_at = _prepared(messages, question)
    parts = {
        "size": _sizes(looked_at),
        "time": _times(looked_at),
        "session": _sessions(looked_at),
        "duplicate": _duplicates(looked_at),
    }
    return Partials(**{kind: _aligned(kind, part) for kind, part in parts.items()})


def _prepared(messages: "DataFrame", question: Question) -> "DataFrame":
    """The contract of what comes in, with the derived columns."""
    from pyspark.sql import functions as F

    now, near = question.as_of_micros, question.near_bytes
    at = f"coalesce(unix_micros(enqueued_at), {now}L)"
    return (
        messages.select(*SCANNED)
        .selectExpr(
            "pair",
            "queue",
            "dead_letter",
            "destination",
            "message_id",
            "session_id",
            "dead_letter_reason as reason",
            "sequence_number as number",
            "ttl_ms",
            "size_bytes",
            "coalesce(is_ping, false) as ping",
            f"{at} as at",
            f"{units_sql('size_bytes')} as steps",
            f"size_bytes >= {near} as near",
        )
        .withColumn("over", F.expr(f"ttl_ms is not null and at + ttl_ms * 1000 <= {now}L"))
    )


def _count(condition: str) -> "Column":
    from pyspark.sql import functions as F

    return F.count_if(F.expr(condition))


def _sizes(messages: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return (
        messages.withColumn("bucket", F.expr(bucket_sql("size_bytes")))
        .groupBy("pair", "queue", "dead_letter", "reason", "destination", "bucket")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            F.sum("steps").alias("units"),
            _count("near").alias("near_limit"),
            _count("ping").alias("pings"),
            F.max("size_bytes").alias("largest"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
    )


def _times(messages: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    lived = f"case when ttl_ms is null then null else {bucket_sql('ttl_ms')} end"
    return (
        messages.withColumn("bucket", F.expr(lived))
        .withColumn("minute", F.expr(f"cast(floor(at / {MICROS_PER_MINUTE}) as bigint)"))
        .groupBy("pair", "destination", "dead_letter", "minute", "bucket")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            F.sum("steps").alias("units"),
            _count("over").alias("expired"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
    )


def _sessions(messages: "DataFrame") -> "DataFrame":
    """Neighbours are compared in one window; its key is a hash, which costs half of what the names would."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = ("pair", "queue", "dead_letter", "destination", "session_id")
    in_order = Window.partitionBy(F.xxhash64(*keys)).orderBy("number", "at")
    return (
        messages.where("session_id is not null")
        .withColumn("before", F.lag("at").over(in_order))
        .groupBy(*keys)
        .agg(
            F.count("*").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            _count("at < before").alias("inversions"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.min_by("at", "number").alias("entered_at"),
            F.max_by("at", "number").alias("left_at"),
            F.min("number").alias("first_number"),
        )
    )


def _duplicates(messages: "DataFrame") -> "DataFrame":
    """By hash first: eight bytes a message go through the shuffle instead of the ids. Results compare the ids."""
    from pyspark.sql import functions as F

    hashed = messages.where("message_id is not null").withColumn(
        "hash", F.xxhash64("pair", "destination", "message_id")
    )
    several = hashed.groupBy("hash").count().where("count > 1").select("hash")
    return hashed.join(several, "hash", "left_semi").withColumnRenamed("at", "first_at")


def _aligned(kind: str, part: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    return part.select(
        *(F.col(field.name).cast(field.dataType).alias(field.name) for field in struct(columns_of(kind)).fields)
    )
