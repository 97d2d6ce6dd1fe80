"""Two hundred messages of every AMQP type that the clients know, as JSON for their programs and as bytes of our own.

A value is `[type, text]`: numbers in decimal, floats as the hexadecimal of their bits, characters as code points,
timestamps in milliseconds, binaries in hexadecimal; a list holds values, a map pairs of a string and a value.
Each program builds the messages with its client's own types (`send`), and prints what its client shows of received
ones (`read`), as far as the client tells types at all.

Proof that messages pass between any two languages: what a client has sent lies in the namespace type for type and bit
for bit as the corpus says, and what a client reads of any other's message is what it reads of ours.
"""

import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import PropertyField, Section, build, read, scan
from sbpair.amqp.types import Byte, Char, Float, Int, Long, Short, Symbol, Timestamp, Ubyte, Uint, Ulong, Ushort

COUNT = 200
Value = list[Any]
"""`[type, text]`, or `["list", [...]]`, or `["map", [[key, value], ...]]`."""

_INTEGERS: dict[str, tuple[type[int], int, int]] = {
    "ubyte": (Ubyte, 0, 2**8 - 1),
    "ushort": (Ushort, 0, 2**16 - 1),
    "uint": (Uint, 0, 2**32 - 1),
    "ulong": (Ulong, 0, 2**64 - 1),
    "byte": (Byte, -(2**7), 2**7 - 1),
    "short": (Short, -(2**15), 2**15 - 1),
    "int": (Int, -(2**31), 2**31 - 1),
    "long": (Long, -(2**63), 2**63 - 1),
}
_FIELDS = {
    "to": PropertyField.TO,
    "subject": PropertyField.SUBJECT,
    "replyTo": PropertyField.REPLY_TO,
    "correlationId": PropertyField.CORRELATION_ID,
    "contentType": PropertyField.CONTENT_TYPE,
}
_TEXTS = ("", "a", "\u00fc\u00df", "\U0001f600 \u6f22\u5b57", "line\nbreak\ttab", "x" * 255, "\u20ac" * 300)


def _edges() -> Iterator[Value]:
    for name, (_, low, high) in _INTEGERS.items():
        for number in sorted({low, low + 1, -1 if low < 0 else 1, 0, 127, high - 1, high}):
            yield [name, str(number)]
    yield from (["boolean", "true"], ["boolean", "false"])
    for number in (0.0, -0.0, 1.5, -1e30, 1e-45, float("inf"), float("-inf")):
        yield ["float", struct.pack(">f", number).hex()]
    for number in (0.0, -0.0, 0.1, 1.7976931348623157e308, 5e-324, float("inf"), float("nan")):
        yield ["double", struct.pack(">d", number).hex()]
    yield from (["timestamp", str(ms)] for ms in (0, 1, -1, 1_790_000_000_123, -62_135_596_800_000))
    yield from (["uuid", str(uuid.UUID(int=number))] for number in (0, 1, 2**128 - 1, 2**127 + 12345))
    yield from (["string", text] for text in _TEXTS)
    yield from (["symbol", text] for text in ("a", "com.example:name", "s" * 300))
    yield from (["binary", bytes(range(256))[:size].hex()] for size in (0, 1, 255, 256))
    yield from (["char", str(ord(sign))] for sign in "A\u00e9\U0001f600")


def _nested(draw: random.Random, scalars: list[Value], depth: int) -> Value:
    if depth == 0 or draw.random() < 0.4:
        return draw.choice([*scalars, ["null", ""]])
    if draw.random() < 0.5:
        return ["list", [_nested(draw, scalars, depth - 1) for _ in range(draw.randint(0, 4))]]
    return ["map", [[f"k{index}", _nested(draw, scalars, depth - 1)] for index in range(draw.randint(0, 3))]]


def corpus() -> list[dict[str, Any]]:
    """The messages, always the same."""
    draw = random.Random(20260930)
    edges = list(_edges())
    small = [one for one in edges if one[0] != "char" and len(one[1]) < 100]
    made: list[dict[str, Any]] = []
    for edge in edges:
        made.append({"value": ["list", [edge]], "properties": {"p": edge}})
    for size in (0, 1, 255, 256, 65_535, 65_536, 100_000):
        made.append({"data": draw.randbytes(size).hex(), "properties": {}})
    for name in _FIELDS:
        for text in ("x", "\u00fc" if name != "contentType" else "text/plain", "y" * 100):
            made.append({"data": "00", "properties": {}, "fields": {name: text}})
    while len(made) < COUNT:
        properties = {f"p{index}": draw.choice(small) for index in range(draw.randint(0, 5))}
        made.append({"value": ["list", [_nested(draw, small, 4)]], "properties": properties})
    return [{"id": f"c{index:03}", "fields": {}, **one} for index, one in enumerate(made)]


def ours(value: Value) -> Any:
    """A value of the corpus in the types of our own encoder."""
    kind, text = value
    if kind in _INTEGERS:
        return _INTEGERS[kind][0](int(text))
    match kind:
        case "null":
            return None
        case "boolean":
            return text == "true"
        case "float":
            return Float.from_bits(int(text, 16))
        case "double":
            return struct.unpack(">d", bytes.fromhex(text))[0]
        case "timestamp":
            return Timestamp(int(text))
        case "uuid":
            return uuid.UUID(text)
        case "symbol":
            return Symbol(text)
        case "binary":
            return bytes.fromhex(text)
        case "char":
            return Char(chr(int(text)))
        case "list":
            return [ours(one) for one in text]
        case "map":
            return {key: ours(one) for key, one in text}
        case _:
            return text


def encoded(message: dict[str, Any]) -> bytes:
    """The message as we send it."""
    properties: dict[int, Any] = {_FIELDS[name]: text for name, text in message["fields"].items()}
    if "contentType" in message["fields"]:
        properties[PropertyField.CONTENT_TYPE] = Symbol(message["fields"]["contentType"])
    properties[PropertyField.MESSAGE_ID] = message["id"]
    body = {"data": bytes.fromhex(message["data"])} if "data" in message else {"value": ours(message["value"])}
    values = {name: ours(value) for name, value in message["properties"].items()}
    return build(properties=properties, application_properties=values or None, **body)


def canonical(payload: bytes) -> tuple[str, tuple[bytes, ...]]:
    """The message's id, and the parts of it that the corpus has: type for type, bit for bit, maps in one order.

    Encodings of one value differ between clients (a small list in the short or the long form); they are made one.
    """
    spans = scan(payload)
    listed = list(read(payload, spans, Section.PROPERTIES) or [])
    listed += [None] * (PropertyField.CONTENT_TYPE + 1 - len(listed))
    fields = [listed[_FIELDS[name]] for name in sorted(_FIELDS)]
    values = read(payload, spans, Section.APPLICATION_PROPERTIES) or {}
    body = [(int(one.section), read(payload, [one], one.section)) for one in spans if one.section in _BODIES]
    parts = (fields, values, [[Int(section), value] for section, value in body])
    return str(listed[PropertyField.MESSAGE_ID]), tuple(encode(_ordered(part)) for part in parts)


_BODIES = (Section.DATA, Section.SEQUENCE, Section.VALUE)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(one) for one in value] if isinstance(value, list) else value
