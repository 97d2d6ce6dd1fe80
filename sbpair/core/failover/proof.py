"""Sample messages with sessions, TTLs, scheduled times and every awkward property type; and the proof of what arrived.

A fingerprint covers what has to arrive byte for byte: properties, application properties, body and footer as they are,
the header fields the application set, and its own annotations. What the broker adds is left out.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sbpair.amqp import sections, types
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.core.message import Received
from sbpair.core.rewrite import BROKER_ANNOTATIONS

_APPLICATION_HEADER_FIELDS = (
    HeaderField.DURABLE,
    HeaderField.PRIORITY,
    HeaderField.TTL,
    HeaderField.FIRST_ACQUIRER,
)
_EXACT_SECTIONS = (
    Section.PROPERTIES,
    Section.APPLICATION_PROPERTIES,
    Section.DATA,
    Section.SEQUENCE,
    Section.VALUE,
    Section.FOOTER,
)


def sample(
    number: int,
    message_id: str,
    session: str | None,
    scheduled_at: float | None = None,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
    expires: bool = False,
) -> bytes:
    """A message that a careless relay would change: every kind of body, and property types that are seldom met.
    `scheduled_at`: UTC epoch seconds; `more`: further application properties; `expires`: it has a time to live in any
    case, as it must where an entity gives one to those that have none."""
    properties: dict[int, Any] = {
        PropertyField.MESSAGE_ID: message_id,
        PropertyField.SUBJECT: f"order {number}",
        PropertyField.CONTENT_TYPE: types.Symbol("application/json"),
    }
    if session is not None:
        properties[PropertyField.GROUP_ID] = session
    header: dict[int, Any] = {HeaderField.DURABLE: True}
    if expires or number % 5 == 2:
        header[HeaderField.TTL] = types.Uint(3_600_000 + number)
    annotations: dict[Any, Any] = {types.Symbol("x-opt-demo"): types.Long(number << 33)} if number % 4 == 1 else {}
    if scheduled_at is not None:
        annotations[types.Symbol("x-opt-scheduled-enqueue-time")] = types.Timestamp(round(scheduled_at * 1000))
    return sections.build(
        header=header,
        message_annotations=annotations or None,
        properties=properties,
        application_properties={**_awkward_properties(number), **more},
        footer={types.Symbol("demo-footer"): types.Ubyte(number % 256)} if number % 10 == 4 else None,
        **_body(number),
    )


def _awkward_properties(number: int) -> dict[Any, Any]:
    """Types that a careless relay loses: 64-bit integers, chars, decimals, described values, timestamps."""
    return {
        "number": types.Long(number + (1 << 40)),
        "small": types.Byte(number % 128 - 64),
        "price": types.Decimal128(number.to_bytes(16, "big")),
        "rate": types.Decimal64(number.to_bytes(8, "big")),
        "letter": types.Char(chr(0x4E00 + number % 500)),
        "due": types.Timestamp(1_790_000_000_000 + number),
        "span": types.Described(types.Symbol("com.microsoft:timespan"), types.Long(36_000_000_000 + number)),
        "id": uuid.UUID(int=number),
        "ratio": types.Float(number / 7),
        "name": f"Grüße №{number}",
        "flag": number % 2 == 0,
        "nothing": None,
    }


def _body(number: int) -> dict[str, Any]:
    text = f'{{"order": {number}, "note": "é"}}'.encode()
    match number % 6:
        case 0 | 1:
            return {"data": text}
        case 2:
            return {"data": [text, b"\x00\xff" * 20]}
        case 3:
            return {"value": {"order": types.Ulong(number), "lines": [types.Uint(1), "two", None]}}
        case 4:
            return {"sequences": [[types.Int(number), "a"], [types.Symbol("b")]]}
        case _:
            return {"value": (None, False, "", types.Long(0))[number // 6 % 4]}


def fingerprint(payload: bytes) -> str:
    """SHA-256 of everything in a message that has to arrive as it was sent."""
    spans = sections.scan(payload)
    digest = hashlib.sha256()
    for span in spans:
        if span.section in _EXACT_SECTIONS:
            digest.update(payload[span.start : span.end])
    header = sections.read(payload, spans, Section.HEADER)
    digest.update(encode([sections.field(header, index) for index in _APPLICATION_HEADER_FIELDS]))
    annotations = sections.read(payload, spans, Section.MESSAGE_ANNOTATIONS) or {}
    session = sections.field(sections.read(payload, spans, Section.PROPERTIES), PropertyField.GROUP_ID)
    for key, value in sorted(annotations.items()):
        # A message with a session comes back with a partition key that says the same, as from the retired library.
        says_the_session = key == "x-opt-partition-key" and value == session
        if key not in BROKER_ANNOTATIONS and not says_the_session:
            digest.update(encode([key, value]))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Proof:
    """What arrived at one place, held against what was sent there."""

    place: str
    expected: int
    arrived: int
    missing: tuple[str, ...]
    doubled: tuple[str, ...]
    altered: tuple[str, ...]
    out_of_order: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.missing or self.doubled or self.altered or self.out_of_order) and self.expected == self.arrived


def compare(place: str, expected: dict[str, str], arrived: Sequence[Received]) -> Proof:
    ids = [str(one.message_id) for one in arrived]
    counted = Counter(ids)
    altered = {name for name, one in zip(ids, arrived, strict=True) if expected.get(name) != fingerprint(one.payload)}
    return Proof(
        place=place,
        expected=len(expected),
        arrived=len(arrived),
        missing=tuple(sorted(set(expected) - set(ids))),
        doubled=tuple(sorted(name for name, count in counted.items() if count > 1)),
        altered=tuple(sorted(altered)),
        out_of_order=tuple(_out_of_order(zip(ids, arrived, strict=True))),
    )


def _out_of_order(arrived: Iterable[tuple[str, Received]]) -> Iterable[str]:
    """Messages of a session that came after a later one; ids grow in the order of sending."""
    last: dict[str, str] = {}
    for name, message in arrived:
        if message.session_id is None:
            continue
        latest = last.get(message.session_id, "")
        if name < latest:
            yield name
        last[message.session_id] = max(name, latest)
