"""What is read from frames and encoded messages past the SDK, and put around messages: receipts' facts, batches,
schedule requests, dead-lettering. The frames themselves are those of `amqp.frames`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from sbpair.amqp import sections
from sbpair.amqp.decoding import decode, skip
from sbpair.amqp.performatives import ERROR, REJECTED, perform
from sbpair.amqp.sections import HeaderField, PropertyField, Section, section_bytes
from sbpair.amqp.types import AmqpDecodeError, AmqpError, Described, MapPairs, Symbol, describe
from sbpair.azure.errors import WireError
from sbpair.core.message import Decoded, MessageState, Received
from sbpair.core.rewrite import MAX_DELIVERY_COUNT, MAX_SEQUENCE_NUMBER

MESSAGE_FORMAT = 0
BATCH_FORMAT = 0x80013700
"""Message format of a batch: the body has one Data section per message, each a whole encoded message."""

MOST_REASON_CHARACTERS = 4096
"""Service Bus quotas: the longest dead-letter reason and description."""
DEAD_LETTER_CONDITION = "com.microsoft:dead-letter"

_MAX_PERFORMATIVE_BYTES = 1 << 16
"""Far above any that a broker sends: the largest carry an error with its text."""
_DESCRIPTOR = b"\x00\x53"
_LIST_0, _LIST_8, _LIST_32 = 0x45, 0xC0, 0xD0


def rejected(reason: str, description: str) -> Described:
    """The outcome that dead-letters a message with a reason and a description.

    Both are cut to the 4,096 characters that the service keeps: they can repeat what a message said, and a frame larger
    than the peer takes would cost the connection, again at every attempt.
    """
    reason, description = reason[:MOST_REASON_CHARACTERS], description[:MOST_REASON_CHARACTERS]
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return describe(REJECTED, [describe(ERROR, [Symbol(DEAD_LETTER_CONDITION), description, info])])


def request_of(code: int, *fields: Any) -> bytes:
    """The message that asks the coordinator to declare a transaction (§4.5.2), or to end it (§4.5.3)."""
    return section_bytes(Section.VALUE, perform(code, list(fields)))


def performative_end(body: memoryview) -> int:
    """Where the performative of a frame ends and the payload starts.

    The SDK's decoder believes every count and heeds no size, so that a frame of some kilobytes can make it build
    gigabytes. It is to see nothing behind this end, and a long performative only if ours, which is bounded, reads it.

    Raises:
        WireError: it has another form than the SDK's decoder takes for granted, or is larger than any can be.
    """
    kind = body[3] if len(body) > 3 and body[:2] == _DESCRIPTOR else None
    if kind == _LIST_0:
        return 4
    if kind == _LIST_8 and 5 < len(body) >= 5 + body[4]:
        return 5 + body[4]
    if kind == _LIST_32 and 12 <= len(body) >= 8 + (size := int.from_bytes(body[4:8], "big")):
        return _checked(body[: 8 + size])
    start = bytes(body[:8])
    raise WireError("amqp:connection:framing-error", f"A frame starts with what no performative has: {start!r}...")


def _checked(performative: memoryview) -> int:
    if len(performative) > _MAX_PERFORMATIVE_BYTES:
        raise WireError("amqp:connection:framing-error", f"A performative of {len(performative):,} bytes came in.")
    try:
        decode(performative)
    except AmqpDecodeError as error:
        raise WireError("amqp:connection:framing-error", f"A frame cannot be read: {error}.") from error
    return len(performative)


_SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
_ENQUEUED_TIME = Symbol("x-opt-enqueued-time")
_LOCKED_UNTIL = Symbol("x-opt-locked-until")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_STATE = Symbol("x-opt-message-state")
_STATES = {1: MessageState.DEFERRED, 2: MessageState.SCHEDULED}
UNREADABLE = (AmqpError, AttributeError, IndexError, OverflowError, TypeError, ValueError)
"""What reading raises where a section or a field is not of the kind it should be."""
_PARTS = (Section.HEADER, Section.MESSAGE_ANNOTATIONS, Section.PROPERTIES)
_NO_MAP: Mapping[Any, Any] = {}


def read_received(payload: bytes, source: str, receipt: object = None, locked_until: float | None = None) -> Received:
    """A Received with what the broker wrote on the message; `locked_until` overrides (sessions, deferred messages).

    A payload that is no AMQP message still comes through, with sequence number 0 and nothing known: it is the
    caller's to dead-letter or leave, not ours to lose.
    """
    try:
        return _described(payload, source, receipt, locked_until)
    except UNREADABLE:
        return Received(payload=payload, sequence_number=0, source=source, locked_until=locked_until, receipt=receipt)


def _described(payload: bytes, source: str, receipt: object, locked_until: float | None) -> Received:
    found = _read(payload)
    header, annotations, properties = _parts(found)
    until = _seconds(annotations.get(_LOCKED_UNTIL)) if receipt is not None else None
    return Received(
        payload=payload,
        sequence_number=_count(annotations.get(_SEQUENCE_NUMBER), MAX_SEQUENCE_NUMBER),
        source=source,
        message_id=_id_text(sections.field(properties, PropertyField.MESSAGE_ID)),
        session_id=_id_text(sections.field(properties, PropertyField.GROUP_ID)),
        partition_key=_id_text(annotations.get(_PARTITION_KEY)),
        enqueued_at=_seconds(annotations.get(_ENQUEUED_TIME)),
        locked_until=until if locked_until is None else locked_until,
        delivery_count=_count(sections.field(header, HeaderField.DELIVERY_COUNT), MAX_DELIVERY_COUNT),
        state=_STATES.get(int(annotations.get(_STATE) or 0), MessageState.ACTIVE),
        receipt=receipt,
        decoded=Decoded(payload, found),
    )


def batch(payloads: Sequence[bytes]) -> bytes:
    """A batch (message format 0x80013700): one Data section per message, under an envelope with the message id,
    session and partition key of the first, by which the service places the batch."""
    annotations, properties = _placing(payloads[0])
    return sections.build(
        message_annotations={_PARTITION_KEY: annotations[_PARTITION_KEY]} if _PARTITION_KEY in annotations else None,
        properties=properties or None,
        data=payloads,
    )


def schedule_entry(payload: bytes) -> dict[str, Any]:
    """One message of a `schedule-message` request."""
    annotations, properties = _placing(payload)
    entry: dict[str, Any] = {"message-id": _id_text(properties.get(PropertyField.MESSAGE_ID))}
    if PropertyField.GROUP_ID in properties:
        entry["session-id"] = _id_text(properties[PropertyField.GROUP_ID])
    if _PARTITION_KEY in annotations:
        entry["partition-key"] = _id_text(annotations[_PARTITION_KEY])
    entry["message"] = bytearray(payload)
    return entry


def _placing(payload: bytes) -> tuple[Mapping[Any, Any], dict[int, Any]]:
    try:
        _, annotations, properties = _parts(_read(payload))
    except UNREADABLE:
        return _NO_MAP, {}
    wanted = (PropertyField.MESSAGE_ID, PropertyField.GROUP_ID)
    found = {int(index): sections.field(properties, index) for index in wanted}
    return annotations, {index: value for index, value in found.items() if value is not None}


def _read(payload: bytes) -> dict[int, Any]:
    """Header, annotations of the message, properties, by code. What follows them is not even skipped over, if all three
    come first."""
    found: dict[int, Any] = {}
    position = 0
    while payload[position : position + 2] == _DESCRIPTOR and payload[position + 2] <= Section.PROPERTIES:
        section = payload[position + 2]
        if section == Section.DELIVERY_ANNOTATIONS:
            position = skip(payload, position)
        else:
            found[section], position = decode(payload, position + 3)
    if position < len(payload):
        if payload[position : position + 2] != _DESCRIPTOR:
            return _read_anywhere(payload)
        if any(section not in found for section in _PARTS):
            with suppress(AmqpError):  # what is wrong further on takes nothing from what has been read
                return _read_anywhere(payload)
    return found


def _read_anywhere(payload: bytes) -> dict[int, Any]:
    """The same for a message with long forms of descriptors, or with these sections behind later ones."""
    spans = sections.scan(payload)
    return {int(section): sections.read(payload, spans, section) for section in _PARTS}


def _parts(found: Mapping[int, Any]) -> tuple[list[Any] | None, Mapping[Any, Any], list[Any] | None]:
    return found.get(Section.HEADER), _as_mapping(found.get(Section.MESSAGE_ANNOTATIONS)), found.get(Section.PROPERTIES)


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, MapPairs):
        return {key: item for key, item in value.items() if isinstance(key, Symbol)}
    return value or _NO_MAP


def _id_text(value: Any) -> str | None:
    """An id for people and comparisons; the encoded message keeps its type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value) if isinstance(value, UUID) else str(int(value))


def _count(value: Any, most: int) -> int:
    """A number of the broker's; 0 for one that it cannot have written."""
    number = int(value or 0)
    return number if 0 <= number <= most else 0


def _seconds(timestamp: Any) -> float | None:
    return None if timestamp is None else int(timestamp) / 1000
