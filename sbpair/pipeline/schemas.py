"""The columns of an archived message: the contract of the data source, of the archive's files and of the analysis.

Version 1. A change that adds a column at the end keeps the major number; readers ask files for columns by name. All
columns may be null in the schema (Spark checks Arrow batches for exactly that), those marked * never are.

Times are UTC with microseconds. What the backlog keeps of the original message under an alias (`x-ms-*`) stands in the
column of what it was: `destination`, `session_id`, `ttl_ms`, `scheduled_at`.
"""

from typing import TYPE_CHECKING, Final

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA_VERSION: Final = 1

PROPERTIES_TYPE = "map<string,struct<type:string,value:string>>"

MESSAGE_COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("pair", "string", "* Name of the pair."),
    ("queue", "string", "* Path of the backlog queue, without `/$deadletterqueue`."),
    ("dead_letter", "boolean", "* It lies in the queue's dead-letter sub-queue."),
    ("sequence_number", "bigint", "* Given by the broker; the top 16 bits are the partition."),
    ("enqueued_at", "timestamp", "When it was put into the backlog queue."),
    ("state", "string", "* active, deferred or scheduled."),
    ("delivery_count", "int", "* Deliveries before this look at it."),
    ("dead_letter_reason", "string", "Why it was dead-lettered."),
    ("dead_letter_description", "string", "The same in words."),
    ("destination", "string", "Path it was sent to on the primary; null: not a message of a failover sender."),
    ("message_id", "string", "As the sender set it."),
    ("session_id", "string", "The original one."),
    ("partition_key", "string", "The original one."),
    ("ttl_ms", "bigint", "Original time to live in milliseconds; null: for ever."),
    ("scheduled_at", "timestamp", "When it was to become active at its destination."),
    ("correlation_id", "string", ""),
    ("content_type", "string", ""),
    ("subject", "string", ""),
    ("to", "string", ""),
    ("reply_to", "string", ""),
    ("is_ping", "boolean", "* A ping of a failover sender: to be completed, never forwarded."),
    ("properties", PROPERTIES_TYPE, "Application properties, aliases included: AMQP type and value as text or JSON."),
    ("body_kind", "string", "* data, value, sequence or none."),
    ("body_bytes", "bigint", "* Size of the body sections."),
    ("size_bytes", "bigint", "* Size of the payload."),
    ("digest", "binary", "First 16 bytes of SHA-256 over properties, application properties, body and footer."),
    ("unreadable", "string", "Why the payload could not be parsed; the columns out of it are null then."),
    ("payload", "binary", "* The whole encoded message as it came over the wire."),
)  # fmt: skip
"""Name, Spark SQL type, meaning."""

BODY_COLUMNS: Final = (
    ("body", "binary", "The data sections, joined; a text value as UTF-8; null for other values."),
    ("body_text", "string", "The body as text; null if it is not UTF-8. Another AMQP value or sequence as JSON."),
)
"""What the sources have beside MESSAGE_COLUMNS. An archive keeps the payload only."""

KEY_COLUMNS: Final = ("queue", "dead_letter", "sequence_number", "enqueued_at")
"""What tells one stored message from every other (a queue deleted and made again counts from 1 again)."""


def message_schema() -> "StructType":
    """Spark's schema of an archived message."""
    return struct(MESSAGE_COLUMNS)


def source_columns(schema: "StructType | None" = None) -> tuple[tuple[str, str, str], ...]:
    """The columns of the sources, or those of them that a reader's schema asks for.

    Raises:
        UsageError: it asks for one that there is not, or with another type.
    """
    known = {column[0]: column for column in (*MESSAGE_COLUMNS[:-1], *BODY_COLUMNS, MESSAGE_COLUMNS[-1])}
    chosen = []
    for field in known if schema is None else schema.fields:
        name, kind = (field, known[field][1]) if isinstance(field, str) else (field.name, field.dataType.simpleString())
        if name not in known:
            raise UsageError(f"A message has no column {quoted(name)}.", hint=f"Columns are {', '.join(known)}.")
        if kind != known[name][1]:
            raise UsageError(f"The column {name} is {known[name][1]}, not {kind}.")
        chosen.append(known[name])
    return tuple(chosen)


def struct(columns: tuple[tuple[str, ...], ...]) -> "StructType":
    """The columns as Spark's type, without a JVM."""
    from pyspark.sql import types

    def of(kind: str) -> types.DataType:
        if kind == PROPERTIES_TYPE:
            entry = types.StructType().add("type", types.StringType()).add("value", types.StringType())
            return types.MapType(types.StringType(), entry)
        return {
            "string": types.StringType(),
            "boolean": types.BooleanType(),
            "bigint": types.LongType(),
            "int": types.IntegerType(),
            "double": types.DoubleType(),
            "timestamp": types.TimestampType(),
            "binary": types.BinaryType(),
        }[kind]

    return types.StructType([types.StructField(name, of(kind), True) for name, kind, *_ in columns])


def arrow_schema(columns: tuple[tuple[str, ...], ...] = MESSAGE_COLUMNS) -> "pa.Schema":
    """The columns as Arrow, exactly as every release of Spark wants them."""
    import pyarrow as pa

    entry = pa.struct([("type", pa.string()), ("value", pa.string())])
    kinds = {
        PROPERTIES_TYPE: pa.map_(pa.string(), entry),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
    }
    return pa.schema([(name, kinds[kind]) for name, kind, *_ in columns])
