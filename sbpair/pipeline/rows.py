"""Messages as rows: the columns of `schemas` out of the exact bytes."""

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sbpair.amqp import types
from sbpair.amqp.sections import Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError
from sbpair.core.message import PING_CONTENT_TYPE, Origin, Received, State
from sbpair.core.names import dead_letter_path, split_source
from sbpair.core.summary import MessageSummary, describe, describe_message, plain
from sbpair.core.transfer.filters import MessageFilter
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.schemas import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

DIGEST_BYTES = 16
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
    queue, dead_letter = split_source(received.source)
    try:
        message = EncodedMessage(received.payload)
        summary, digest = describe_message(message), _digest_of(message)
    except MalformedMessageError:
        summary, digest = describe(received.payload), None
    return (
        pair,
        queue,
        dead_letter,
        received.sequence_number,
        _microseconds(received.enqueued_at),
        received.state.value,
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
        _properties(summary),
        summary.body_kind,
        summary.body_size_bytes,
        summary.size_bytes,
        digest,
        summary.unreadable,
        received.payload,
    )


STORED_COLUMNS = ("queue", "dead_letter", "sequence_number", "enqueued_at", "message_id", "digest", "payload")
"""What a message that goes on from an archive needs."""


def messages_in(batch: "pa.RecordBatch") -> Iterator[Received]:
    """The messages of rows with STORED_COLUMNS, as they lay in their queues."""
    names = batch.schema.names
    columns = [_values(batch.column(names.index(name))) for name in STORED_COLUMNS]
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
    state: State = State.ACTIVE,
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


def _values(column: "pa.Array") -> list[Any]:
    """A column's values; times as epoch microseconds, many times faster than as objects."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


FILTER_COLUMNS = (
    "queue",
    "dead_letter",
    "sequence_number",
    "unix_micros(enqueued_at)",
    "message_id",
    "payload",
    "state",
    "delivery_count",
)
"""What a filter looks at, in Spark SQL. The time as a number: a Python time would be in the worker's own zone."""


def wants_row(wanted: MessageFilter, *row: Any) -> bool:
    """Whether a filter wants the message of a row with FILTER_COLUMNS.

    Raises:
        TaskError: with one of our errors in its text.
    """
    queue, dead_letter, number, enqueued_at_us, message_id, payload, state, delivery_count = row
    payload = bytes(payload)
    with marking_errors():
        message = _stored(
            queue,
            dead_letter,
            number,
            enqueued_at_us,
            message_id,
            payload,
            state=State(state),
            delivery_count=delivery_count,
        )
        return wanted.wants(message, describe(payload))


def content_digest(payload: bytes) -> bytes | None:
    """What stays the same of a message however it is delivered: a digest of the sender's own part, that is properties,
    application properties, body and footer. Header and annotations are the broker's to change (a browse and a receive
    of one message differ there). None for bytes that are no AMQP message."""
    try:
        return _digest_of(EncodedMessage(payload))
    except MalformedMessageError:
        return None


def _digest_of(message: EncodedMessage) -> bytes:
    hashed = hashlib.sha256()
    for span in message.spans:
        if span.section >= Section.PROPERTIES:
            hashed.update(message.payload[span.start : span.end])
    return hashed.digest()[:DIGEST_BYTES]


def record_batch(rows: Sequence[tuple[Any, ...]]) -> "pa.RecordBatch":
    """Rows of `message_row` as one Arrow batch."""
    return to_batch(rows, arrow_schema())


def to_batch(rows: Iterable[tuple[Any, ...]], schema: "pa.Schema") -> "pa.RecordBatch":
    """Rows in the schema's column order as one Arrow batch."""
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(seconds: float | None) -> int | None:
    """Epoch microseconds from seconds that came as milliseconds: rounded there first, so that no digit is invented.
    None for a time outside the years that a timestamp column can show (0001 to 9999)."""
    if seconds is None or not _EARLIEST_SECONDS <= seconds <= _LATEST_SECONDS:
        return None
    return round(seconds * 1000) * 1000


def _properties(summary: MessageSummary) -> list[tuple[str, dict[str, str | None]]]:
    return [(name, typed_text(value)) for name, value in summary.application_properties.items()]


def typed_text(value: Any) -> dict[str, str | None]:
    """An AMQP value as its type's name and a text: strings as they are, anything else as JSON."""
    if type(value) is str:
        return {"type": "string", "value": value}
    kind = _TYPE_NAMES.get(type(value)) or type(value).__name__.lower()
    if value is None:
        return {"type": kind, "value": None}
    shown = plain(value)
    return {"type": kind, "value": shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)}
