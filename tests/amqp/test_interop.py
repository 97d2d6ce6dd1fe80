"""Our bytes read by the codec inside azure-servicebus, and its bytes read by ours, for the types it knows."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp._decode import _DECODE_BY_CONSTRUCTOR, decode_payload
from azure.servicebus._pyamqp._encode import encode_payload, encode_value
from azure.servicebus._pyamqp.message import Header, Message, Properties

from sbpair.amqp.decoding import decode_all
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section, build, edit, read, scan
from sbpair.amqp.types import (
    Array,
    Byte,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    same,
)

ID = UUID("12345678-1234-5678-1234-567812345678")


def _typed(kind: str, value: Any) -> dict[str, Any]:
    return {"TYPE": kind, "VALUE": value}


# (what their encoder takes, our value, what their decoder gives for it)
KNOWN = [
    (_typed("NULL", None), None, None),
    (_typed("BOOL", True), True, True),
    (_typed("BOOL", False), False, False),
    (_typed("UBYTE", 255), Ubyte(255), 255),
    (_typed("USHORT", 65535), Ushort(65535), 65535),
    (_typed("UINT", 0), Uint(0), 0),
    (_typed("UINT", 200), Uint(200), 200),
    (_typed("UINT", 70000), Uint(70000), 70000),
    (_typed("ULONG", 0), Ulong(0), 0),
    (_typed("ULONG", 200), Ulong(200), 200),
    (_typed("ULONG", 2**64 - 1), Ulong(2**64 - 1), 2**64 - 1),
    (_typed("BYTE", -128), Byte(-128), -128),
    (_typed("SHORT", -300), Short(-300), -300),
    (_typed("INT", -5), Int(-5), -5),
    (_typed("INT", 2**31 - 1), Int(2**31 - 1), 2**31 - 1),
    (_typed("LONG", -5), Long(-5), -5),
    (_typed("LONG", -(2**63)), Long(-(2**63)), -(2**63)),
    (_typed("FLOAT", 1.5), Float(1.5), 1.5),
    (_typed("DOUBLE", 0.1), 0.1, 0.1),
    (_typed("TIMESTAMP", 1_700_000_000_000), Timestamp(1_700_000_000_000), 1_700_000_000_000),
    (_typed("UUID", ID), ID, ID),
    (_typed("BINARY", b"\x00\xff"), b"\x00\xff", b"\x00\xff"),
    (_typed("BINARY", b"x" * 300), b"x" * 300, b"x" * 300),
    (_typed("STRING", "\u20ac"), "\u20ac", "\u20ac".encode()),
    (_typed("STRING", "x" * 300), "x" * 300, b"x" * 300),
    (_typed("SYMBOL", "abc"), Symbol("abc"), b"abc"),
    (_typed("LIST", []), [], []),
    (_typed("LIST", [_typed("UINT", 1), "a"]), [Uint(1), "a"], [1, b"a"]),
    (_typed("LIST", [None] * 300), [None] * 300, [None] * 300),
    (_typed("MAP", {}), {}, {}),
    (_typed("MAP", {"a": _typed("LONG", 1)}), {"a": Long(1)}, {b"a": 1}),
    (_typed("MAP", {"a": "x" * 300}), {"a": "x" * 300}, {b"a": b"x" * 300}),
    (_typed("ARRAY", [_typed("INT", 1), _typed("INT", 2)]), Array(0x71, (Int(1), Int(2))), [1, 2]),
    (_typed("ARRAY", [_typed("SYMBOL", "a")]), Array(0xB3, (Symbol("a"),)), [b"a"]),
    (_typed("ARRAY", []), Array(0x00, ()), []),
    (
        _typed("DESCRIBED", (_typed("SYMBOL", "com.microsoft:timespan"), _typed("LONG", 36_000_000_000))),
        Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
        36_000_000_000,
    ),
]


@pytest.mark.parametrize(("given", "ours", "theirs"), KNOWN, ids=lambda value: str(value)[:30])
def test_values_cross_in_both_directions(given: dict[str, Any], ours: object, theirs: object) -> None:
    sent = bytearray()
    encode_value(sent, given)
    assert same(decode_all(bytes(sent)), ours)
    raw = memoryview(encode(ours))
    rest, decoded = _DECODE_BY_CONSTRUCTOR[raw[0]](raw[1:])
    assert (bytes(rest), decoded) == (b"", theirs)


def test_a_decimal128_of_theirs_passes_unread() -> None:
    sent = bytearray()
    encode_value(sent, Decimal("12.5"))
    decoded = decode_all(bytes(sent))
    assert isinstance(decoded, Decimal128)
    assert encode(decoded) == sent


def test_their_message_read_by_us() -> None:
    sent = bytearray()
    message = Message(
        header=Header(durable=True, ttl=5000),
        delivery_annotations={"d": "late"},
        message_annotations={"x-opt-partition-key": "p"},
        properties=Properties(message_id="id", group_id="s", creation_time=1_700_000_000_000),
        application_properties={"a": 1, "b": _typed("LONG", 5)},
        data=[b"one", b"two"],
        footer={"f": True},
    )
    raw = bytes(encode_payload(sent, message))
    spans = scan(raw)
    assert spans[-1].section is Section.DELIVERY_ANNOTATIONS  # they write them last
    assert read(raw, spans, Section.DELIVERY_ANNOTATIONS) == {"d": "late"}
    assert same(read(raw, spans, Section.HEADER), [True, None, Uint(5000), None, None])
    properties = read(raw, spans, Section.PROPERTIES)
    assert properties[PropertyField.MESSAGE_ID] == "id"
    assert same(properties[PropertyField.CREATION_TIME], Timestamp(1_700_000_000_000))
    assert same(read(raw, spans, Section.APPLICATION_PROPERTIES), {"a": Int(1), "b": Long(5)})
    assert edit(raw, {}, spans) == raw


def test_our_message_read_by_them() -> None:
    raw = build(
        header={HeaderField.DELIVERY_COUNT: Uint(3)},
        delivery_annotations={Symbol("x-opt-lock-token"): ID},
        message_annotations={Symbol("x-opt-sequence-number"): Long(9)},
        properties={PropertyField.MESSAGE_ID: "id"},
        application_properties={"a": Ulong(1)},
        data=[b"one", b"two"],
        footer={Symbol("f"): True},
    )
    message = decode_payload(memoryview(raw))
    assert message.header == Header(None, None, None, None, 3)
    assert message.delivery_annotations == {b"x-opt-lock-token": ID}
    assert message.message_annotations == {b"x-opt-sequence-number": 9}
    assert message.properties == Properties(b"id")
    assert message.application_properties == {b"a": 1}
    assert message.data == [b"one", b"two"]
    assert message.footer == {b"f": True}
