"""Messages as rows: the columns of `MESSAGE_COLUMNS` out of the exact bytes."""

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp import types
from sbpair.amqp.sections import Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError, UsageError
from sbpair.core.message import PING_CONTENT_TYPE, MessageState, Origin, Received
from sbpair.core.names import dead_letter_path, split_source
from sbpair.core.redact import quoted
from sbpair.core.rewrite import opened
from sbpair.core.summary import describe, describe_message, plain
from sbpair.core.transfer.filters import MessageFilter
from sbpair.pipeline.errors import marking_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


DIGEST_BYTES = 16
_STATES = {state: state.value for state in MessageState}
_EARLIEST_SECONDS, _LATEST_SECONDS = -62_135_596_800.0, 253_402_300_799.0
_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    bytes: "binary",
    float: "double",
    uuid.UUID: "uuid",
    list: "list",
    dict: "map",
    types.MapPairs: "map",
    types.Described: "described",
    types.Array: "array",
}


def message_row(pair: str, received: Received) -> tuple[Any, ...]:
    """One message in the order of MESSAGE_COLUMNS; times in epoch microseconds."""
    return _row(pair, received, _opened(received))


def _opened(received: Received) -> EncodedMessage | None:
    decoded, head = received.decoded, received.head
    try:
        if head is not None:
            return opened(received.payload, head)
        return EncodedMessage(received.payload, None if decoded is None else decoded.take(received.payload))
    except MalformedMessageError:
        return None


def _row(pair: str, received: Received, message: EncodedMessage | None) -> tuple[Any, ...]:
    queue, dead_letter = split_source(received.source)
    summary = describe(received.payload) if message is None else describe_message(message)
    digest = None if message is None else _digest_of(message)
    return (
        pair,
        queue,
        dead_letter,
        received.sequence_number,
        _microseconds(received.enqueued_at),
        _STATES[received.state],
        received.delivery_count,
        summary.dead_letter_reason,
        summary.dead_letter_description,
        summary.destination,
        received.message_id or summary.message_id,
        summary.session_id,
        summary.partition_key,
        None if summary.ttl_seconds is None else round(summary.ttl_seconds * 1000),
        _microseconds(summary.scheduled_at),
        summary.correlation_id,
        summary.content_type,
        summary.subject,
        summary.to,
        summary.reply_to,
        summary.content_type == PING_CONTENT_TYPE,
        [(name, typed_text(value)) for name, value in summary.application_properties.items()],
        summary.body_kind,
        summary.body_size_bytes,
        summary.size_bytes,
        digest,
        summary.unreadable,
        received.payload,
    )


_CHEAP: dict[str, Callable[[str, Received], Any]] = {
    "pair": lambda pair, _: pair,
    "queue": lambda _, one: split_source(one.source)[0],
    "dead_letter": lambda _, one: split_source(one.source)[1],
    "sequence_number": lambda _, one: one.sequence_number,
    "enqueued_at": lambda _, one: _microseconds(one.enqueued_at),
    "state": lambda _, one: one.state.value,
    "delivery_count": lambda _, one: one.delivery_count,
    "size_bytes": lambda _, one: len(one.payload),
    "payload": lambda _, one: one.payload,
    "body": lambda _, one: body_of(_opened(one))[0],
    "body_text": lambda _, one: body_of(_opened(one))[1],
}
"""Columns for which nothing else of a message has to be decoded."""


def rows_of(pair: str, columns: Sequence[str], without: Collection[str]) -> Callable[[Received], tuple[Any, ...]]:
    """What makes a row of these columns; those in `without` are null."""
    wanted = [None if name in without else _CHEAP.get(name) for name in columns]
    if all(one is not None or name in without for name, one in zip(columns, wanted, strict=True)):
        return lambda received: tuple(None if one is None else one(pair, received) for one in wanted)
    places = {name: place for place, (name, *_) in enumerate((*MESSAGE_COLUMNS, *BODY_COLUMNS))}
    chosen = [len(places) if name in without else places[name] for name in columns]
    has_body = any(name in columns and name not in without for name, *_ in BODY_COLUMNS)
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    pick = itemgetter(*chosen) if len(chosen) > 1 else lambda found: (found[chosen[0]],)

    def row(received: Received) -> tuple[Any, ...]:
        message = _opened(received)
        body = body_of(message) if has_body else (None, None)
        return pick((*_row(pair, received, message), *body, None))

    return row


def body_of(message: EncodedMessage | None) -> tuple[bytes | None, str | None]:
    """The body as bytes, where it has any, and as text, where it is one: see `BODY_COLUMNS`."""
    if message is None:
        return None, None
    try:
        kinds = {span[0] for span in message.spans}
        section = next((one for one in (Section.VALUE, Section.SEQUENCE, Section.DATA) if one in kinds), None)
        value = b"" if section is None else message.read(section)
        data = value.encode() if isinstance(value, str) else value
        if not isinstance(data, bytes):
            return None, json.dumps(plain(value), ensure_ascii=False)
        return data, data.decode()
    except UnicodeDecodeError:
        return data, None
    except MalformedMessageError:
        return None, None


STORED_COLUMNS = ("queue", "dead_letter", "sequence_number", "enqueued_at", "message_id", "digest", "payload")
"""What a message that goes on from an archive needs."""


def messages_in(batch: "pa.RecordBatch") -> Iterator[Received]:
    """The messages of rows with STORED_COLUMNS, as they lay in their queues."""
    names = batch.schema.names
    columns = [values_of(batch.column(names.index(name))) for name in STORED_COLUMNS]
    for queue, dead_letter, number, enqueued_at_us, message_id, digest, payload in zip(*columns, strict=True):
        text = None if digest is None else base64.b64encode(digest).decode()
        yield _stored(queue, dead_letter, number, enqueued_at_us, message_id, payload, digest=text)


def _stored(
    queue: str,
    dead_letter: bool,
    number: int,
    enqueued_at_us: int | None,
    message_id: str | None,
    payload: bytes,
    *,
    digest: str | None = None,
    state: MessageState = MessageState.ACTIVE,
    delivery_count: int = 0,
) -> Received:
    source = dead_letter_path(queue) if dead_letter else queue
    enqueued_ms = -1 if enqueued_at_us is None else enqueued_at_us // 1000
    return Received(
        payload,
        number,
        source,
        message_id,
        enqueued_at=None if enqueued_at_us is None else enqueued_at_us / 1_000_000,
        delivery_count=delivery_count,
        state=state,
        origin=Origin(source, number, message_id, enqueued_ms, digest),
    )


def values_of(column: "pa.Array") -> list[Any]:
    """A column's values; times as epoch microseconds, many times faster than as objects."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


FILTER_COLUMNS = (*STORED_COLUMNS[:3], "unix_micros(enqueued_at)", "message_id", "payload", "state", "delivery_count")
"""What a filter looks at, in Spark SQL. The time as a number: a Python time would be in the worker's own zone."""


def wants_row(wanted: MessageFilter, *row: Any) -> bool:
    """Whether a filter wants the message of a row with FILTER_COLUMNS; raises our errors as TaskError."""
    queue, dead_letter, number, enqueued_at_us, message_id, payload, state, count = row
    with marking_errors():
        stored = queue, dead_letter, number, enqueued_at_us, message_id, bytes(payload)
        message = _stored(*stored, state=MessageState(state), delivery_count=count)
        return wanted.wants(message, describe(message.payload))


def content_digest(payload: bytes) -> bytes | None:
    """What stays the same of a message however it is delivered: a digest of the sender's own part, that is properties,
    application properties, body and footer. Header and annotations are the broker's to change (a browse and a receive
    of one message differ there). None for bytes that are no AMQP message."""
    try:
        return _digest_of(EncodedMessage(payload))
    except MalformedMessageError:
        return None


def _digest_of(message: EncodedMessage) -> bytes:
    parts = [message.payload[start:end] for section, start, _, end in message.spans if section >= Section.PROPERTIES]
    return hashlib.sha256(b"".join(parts)).digest()[:DIGEST_BYTES]


def to_batch(rows: Iterable[Sequence[Any]], schema: "pa.Schema") -> "pa.RecordBatch":
    """Rows in the schema's column order as one Arrow batch."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_table(rows: Iterable[Sequence[Any]], schema: "pa.Schema") -> "pa.Table":
    """Rows in the schema's column order as an Arrow table."""
    import pyarrow as pa

    return pa.Table.from_batches([to_batch(rows, schema)])


def _microseconds(seconds: float | None) -> int | None:
    """Epoch microseconds from seconds that came as milliseconds: rounded there first, so that no digit is invented.
    None for a time outside the years that a timestamp column can show (0001 to 9999)."""
    if seconds is None or not _EARLIEST_SECONDS <= seconds <= _LATEST_SECONDS:
        return None
    return round(seconds * 1000) * 1000


def from_typed(kind: str, text: str | None) -> Any:
    """The AMQP value that `typed_text` shows. Raises ValueError: the text is none of that type, or a type that only the
    payload keeps exactly."""
    if text is None or kind == "null":
        return None
    if (made := _FROM_TEXT.get(kind)) is None:
        raise ValueError(f"a property of type {kind} is only in the payload")
    return made(text)


def _whole(kind: Callable[[int], Any]) -> Callable[[str], Any]:
    return lambda text: kind(int(text))


_WHOLE = (types.Byte, types.Short, types.Int, types.Long, types.Ubyte, types.Ushort, types.Uint, types.Ulong)
_WHOLE_NAMES: dict[type, str] = {kind: kind.__name__.lower() for kind in _WHOLE}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": lambda text: {"true": True, "false": False}[text],
    "double": lambda text: float(json.loads(text)),
    "uuid": uuid.UUID,
    "symbol": types.Symbol,
    **{name: _whole(kind) for kind, name in _WHOLE_NAMES.items()},
}


def typed_text(value: Any) -> dict[str, str | None]:
    """An AMQP value as its type's name and a text: strings as they are, anything else as JSON."""
    if type(value) is str:
        return {"type": "string", "value": value}
    if (name := _WHOLE_NAMES.get(type(value))) is not None:
        return {"type": name, "value": int.__repr__(value)}
    kind = _TYPE_NAMES.get(type(value)) or type(value).__name__.lower()
    if value is None:
        return {"type": kind, "value": None}
    shown = plain(value)
    return {"type": kind, "value": shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)}


# The columns of an archived message: the contract of the data source, of the archive's files and of the analysis.
#
# Version 1. A change that adds a column at the end keeps the major number; readers ask files for columns by name. All
# columns may be null in the schema (Spark checks Arrow batches for exactly that), those marked * never are.
#
# Times are UTC with microseconds. What the backlog keeps of the original message under an alias (`x-ms-*`) stands in
# the column of what it was: `destination`, `session_id`, `ttl_ms`, `scheduled_at`.

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


def source_columns(schema: "StructType | None" = None) -> tuple[tuple[str, str, str], ...]:
    """The columns of the sources, or those of them that a reader's schema asks for. Raises UsageError: it asks for one
    that there is not, or with another type."""
    known = {column[0]: column for column in (*MESSAGE_COLUMNS[:-1], *BODY_COLUMNS, MESSAGE_COLUMNS[-1])}
    if schema is None:
        return tuple(known.values())
    for field in schema.fields:
        if field.name not in known:
            raise UsageError(f"A message has no column {quoted(field.name)}.", hint=f"Columns are {', '.join(known)}.")
        if (kind := field.dataType.simpleString()) != known[field.name][1]:
            raise UsageError(f"The column {field.name} is {known[field.name][1]}, not {kind}.")
    return tuple(known[field.name] for field in schema.fields)


def spark_schema(columns: Sequence[tuple[str, ...]] = MESSAGE_COLUMNS) -> "StructType":
    """The columns as Spark's type, without a JVM."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(columns))


def arrow_schema(columns: Sequence[tuple[str, ...]] = MESSAGE_COLUMNS) -> "pa.Schema":
    """The columns as Arrow, exactly as every release of Spark wants them."""
    import pyarrow as pa

    entry = pa.struct([("type", pa.string()), ("value", pa.string())])
    kinds = {
        PROPERTIES_TYPE: pa.map_(pa.string(), entry),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
    }
    return pa.schema([(name, kinds[kind]) for name, kind, *_ in columns])
