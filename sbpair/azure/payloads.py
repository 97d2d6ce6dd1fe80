"""What the adapters read from and put around encoded messages: receipts' facts, batches, schedule requests."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from sbpair.amqp import codec, sections
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import AmqpError, MapPairs, Symbol
from sbpair.core.message import Decoded, Received, State

_SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
_ENQUEUED_TIME = Symbol("x-opt-enqueued-time")
_LOCKED_UNTIL = Symbol("x-opt-locked-until")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_STATE = Symbol("x-opt-message-state")
_STATES = {1: State.DEFERRED, 2: State.SCHEDULED}
_SHORT_DESCRIPTOR = b"\x00\x53"
_UNREADABLE = (AmqpError, AttributeError, IndexError, OverflowError, TypeError, ValueError)
"""What reading raises where a section or a field is not of the kind it should be."""
_PARTS = (Section.HEADER, Section.MESSAGE_ANNOTATIONS, Section.PROPERTIES)
_NO_MAP: Mapping[Any, Any] = {}
_MAX_SEQUENCE_NUMBER = 2**63 - 1
_MAX_DELIVERY_COUNT = 2**32 - 1


def to_received(payload: bytes, source: str, receipt: object = None, locked_until: float | None = None) -> Received:
    """A Received with what the broker wrote on the message; `locked_until` overrides (sessions, deferred messages).

    A payload that is no AMQP message still comes through, with sequence number 0 and nothing known: it is the
    caller's to dead-letter or leave, not ours to lose.
    """
    try:
        return _described(payload, source, receipt, locked_until)
    except _UNREADABLE:
        return Received(payload=payload, sequence_number=0, source=source, locked_until=locked_until, receipt=receipt)


_AS_USUAL = re.compile(
    rb"(?:\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98.{16})?"
    rb"\x00\x53\x72\xc1(?P<size>.)(?P<count>.)(?P<entries>(?:"
    rb"\xa3\x15x-opt-sequence-number(?:\x55(?P<short_number>[\x00-\x7f])|\x81(?P<number>[\x00-\x7f].{7}))|"
    rb"\xa3\x13x-opt-enqueued-time\x83(?P<enqueued>.{8})|"
    rb"\xa3\x12x-opt-locked-until\x83(?P<locked>.{8})){1,3})"
    rb"(?=\x00\x53)",
    re.DOTALL,
)
"""The annotations of a message under lock if nobody has set any but the broker, in the form that services write them:
an expression reads them in a sixth of the time of a decoder."""
_HEADER_8 = b"\x00\x53\x70\xc0"
_PROPERTIES = b"\x00\x53\x73"


def _as_usual(payload: bytes, source: str, receipt: object, locked_until: float | None) -> Received | None:
    """What `_described` says of most messages under lock; None for every other."""
    start = 5 + payload[4] if payload.startswith(_HEADER_8) else 0
    found = _AS_USUAL.match(payload, start)
    if found is None:
        return None
    size, count, entries, short_number, number, enqueued, locked = found.groups()
    there = (25 if short_number else 32 if number else 0) + (30 if enqueued else 0) + (29 if locked else 0)
    keys = ((short_number or number) is not None) + (enqueued is not None) + (locked is not None)
    if size[0] != len(entries) + 1 or count[0] != 2 * keys or there != len(entries):
        return None  # one of them twice, or it is not the map that it looks like
    delivery_count = _delivery_count(payload[:start]) if start else 0
    position = found.end()
    values: dict[int, Any] = {}
    message_id = session_id = None
    if payload.startswith(_PROPERTIES, position):
        properties = values[Section.PROPERTIES] = codec.decode(payload, position + 3)[0]
        message_id = _id_text(sections.field(properties, PropertyField.MESSAGE_ID))
        session_id = _id_text(sections.field(properties, PropertyField.GROUP_ID))
    if locked_until is None and locked is not None:
        locked_until = int.from_bytes(locked, "big", signed=True) / 1000
    return Received(
        payload,
        int.from_bytes(short_number or number or b"", "big"),
        source,
        message_id,
        session_id,
        None,
        None if enqueued is None else int.from_bytes(enqueued, "big", signed=True) / 1000,
        locked_until,
        delivery_count,
        State.ACTIVE,
        receipt,
        None,
        Decoded(payload, values, of_broker=True),
    )


@lru_cache(maxsize=256)
def _delivery_count(header: bytes) -> int:
    """Of a whole header section; headers differ in little else."""
    return _count(sections.field(codec.decode(header, 3)[0], HeaderField.DELIVERY_COUNT), _MAX_DELIVERY_COUNT)


def _described(payload: bytes, source: str, receipt: object, locked_until: float | None) -> Received:
    if receipt is not None and (usual := _as_usual(payload, source, receipt, locked_until)) is not None:
        return usual
    found = _read(payload)
    header, annotations, properties = _parts(found)
    until = _seconds(annotations.get(_LOCKED_UNTIL)) if receipt is not None else None
    return Received(
        payload=payload,
        sequence_number=_count(annotations.get(_SEQUENCE_NUMBER), _MAX_SEQUENCE_NUMBER),
        source=source,
        message_id=_id_text(sections.field(properties, PropertyField.MESSAGE_ID)),
        session_id=_id_text(sections.field(properties, PropertyField.GROUP_ID)),
        partition_key=_id_text(annotations.get(_PARTITION_KEY)),
        enqueued_at=_seconds(annotations.get(_ENQUEUED_TIME)),
        locked_until=until if locked_until is None else locked_until,
        delivery_count=_count(sections.field(header, HeaderField.DELIVERY_COUNT), _MAX_DELIVERY_COUNT),
        state=_STATES.get(int(annotations.get(_STATE) or 0), State.ACTIVE),
        receipt=receipt,
        decoded=Decoded(payload, found) if receipt is not None else None,
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
    except _UNREADABLE:
        return _NO_MAP, {}
    wanted = (PropertyField.MESSAGE_ID, PropertyField.GROUP_ID)
    found = {int(index): sections.field(properties, index) for index in wanted}
    return annotations, {index: value for index, value in found.items() if value is not None}


def _read(payload: bytes) -> dict[int, Any]:
    """Header, annotations of the message, properties, by code. What follows them is not even skipped over."""
    found: dict[int, Any] = {}
    position = 0
    while payload[position : position + 2] == _SHORT_DESCRIPTOR and payload[position + 2] <= Section.PROPERTIES:
        section = payload[position + 2]
        if section == Section.DELIVERY_ANNOTATIONS:
            position = codec.skip(payload, position + 3)
        else:
            found[section], position = codec.decode(payload, position + 3)
    if payload[position : position + 2] != _SHORT_DESCRIPTOR and position < len(payload):
        return _read_spelled_out(payload)
    return found


def _read_spelled_out(payload: bytes) -> dict[int, Any]:
    """The same for a message with long forms of descriptors."""
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
