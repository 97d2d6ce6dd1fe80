"""What must hold for every value, every message and every piece of garbage."""

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import given as _given
from hypothesis import settings
from hypothesis import strategies as st

from sbpair.amqp.decoding import decode, decode_all, skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import (
    Section,
    Span,
    body_sections,
    edit,
    edit_fields,
    edit_map,
    read_span,
    scan,
    section_bytes,
)
from sbpair.amqp.types import (
    AmqpDecodeError,
    AmqpError,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Descriptors,
    Float,
    Int,
    Long,
    MapPairs,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    same,
)


def given(*strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Hypothesis's `given` without a deadline, as a shared machine may pause."""
    return lambda test: settings(deadline=None, max_examples=40)(_given(*strategies)(test))


# Values -------------------------------------------------------------------------------------------


def _between(kind: Callable[[int], Any], low: int, high: int) -> st.SearchStrategy[Any]:
    edges = st.sampled_from([low, -1 if low < 0 else 0, 0, 1, 127, 255, high]).filter(lambda n: low <= n <= high)
    return st.one_of(edges, st.integers(low, high)).map(kind)


def _bytes_of(width: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=width, max_size=width)


UBYTE = _between(Ubyte, 0, 2**8 - 1)
USHORT = _between(Ushort, 0, 2**16 - 1)
UINT = _between(Uint, 0, 2**32 - 1)
ULONG = _between(Ulong, 0, 2**64 - 1)
BYTE = _between(Byte, -(2**7), 2**7 - 1)
SHORT = _between(Short, -(2**15), 2**15 - 1)
INT = _between(Int, -(2**31), 2**31 - 1)
LONG = _between(Long, -(2**63), 2**63 - 1)
TIMESTAMP = _between(Timestamp, -(2**63), 2**63 - 1)
FLOAT = st.integers(0, 2**32 - 1).map(Float.from_bits)
DOUBLE = _bytes_of(8).map(lambda raw: struct.unpack(">d", raw)[0])
CHAR = st.integers(0, 0x10FFFF).map(lambda point: Char(chr(point)))
TEXT = st.one_of(st.text(max_size=20), st.text("ab", min_size=250, max_size=260))
SYMBOL = st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
BINARY = st.one_of(st.binary(max_size=20), st.binary(min_size=250, max_size=260))
DECIMAL32 = _bytes_of(4).map(Decimal32)
DECIMAL64 = _bytes_of(8).map(Decimal64)
DECIMAL128 = _bytes_of(16).map(Decimal128)
SCALARS = st.one_of(
    *(st.none(), st.booleans(), UBYTE, USHORT, UINT, ULONG, BYTE, SHORT, INT, LONG, TIMESTAMP, FLOAT, DOUBLE),
    *(CHAR, st.uuids(), TEXT, SYMBOL, BINARY, DECIMAL32, DECIMAL64, DECIMAL128),
)
ELEMENTS: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(),
    0x41: st.just(True),
    0x43: st.just(Uint(0)),
    0x45: st.builds(list),
    0x56: st.booleans(),
    0x50: UBYTE,
    0x51: BYTE,
    0x60: USHORT,
    0x61: SHORT,
    0x70: UINT,
    0x71: INT,
    0x80: ULONG,
    0x81: LONG,
    0x52: _between(Uint, 0, 255),
    0x55: _between(Long, -128, 127),
    0x72: FLOAT,
    0x82: DOUBLE,
    0x73: CHAR,
    0x74: DECIMAL32,
    0x84: DECIMAL64,
    0x94: DECIMAL128,
    0x83: TIMESTAMP,
    0x98: st.uuids(),
    0xA0: st.binary(max_size=9),
    0xA1: st.text(max_size=9),
    0xA3: SYMBOL,
    0xB0: BINARY,
    0xB1: TEXT,
    0xB3: SYMBOL,
}


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | MapPairs:
    """The form decoding chooses for these pairs."""
    try:
        as_dict = dict(pairs)
    except TypeError:
        return MapPairs(pairs)
    return as_dict if len(as_dict) == len(pairs) else MapPairs(pairs)


def _arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
    descriptor = st.one_of(
        st.none(),
        SYMBOL,
        ULONG,
        st.lists(SYMBOL, min_size=2, max_size=3).map(Descriptors),
        st.just(Descriptors((None,))),
    )
    flat = st.sampled_from(sorted(ELEMENTS)).flatmap(
        lambda code: st.builds(Array, st.just(code), st.lists(ELEMENTS[code], max_size=4).map(tuple), descriptor)
    )
    wide = {0xD0: st.lists(children, max_size=3), 0xD1: _maps(children), 0xF0: flat}
    deep = st.sampled_from(sorted(wide)).flatmap(
        lambda code: st.builds(Array, st.just(code), st.lists(wide[code], max_size=3).map(tuple), descriptor)
    )
    return flat | deep


def _maps(children: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any] | MapPairs]:
    return st.lists(st.tuples(children, children), max_size=4).map(_map_of)


def _compounds(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=5),
        _maps(children),
        _arrays(children),
        st.builds(Described, st.one_of(SYMBOL, ULONG), children),
    )


VALUES = st.recursive(SCALARS, _compounds, max_leaves=15)


@given(VALUES)
def test_a_value_comes_back_the_same(value: object) -> None:
    raw = encode(value)
    assert same(decode_all(raw), value)
    assert skip(raw, 0) == len(raw)


@given(VALUES, VALUES)
def test_values_in_a_row_keep_their_borders(first: object, second: object) -> None:
    raw = encode(first) + encode(second)
    value, border = decode(raw)
    assert same(value, first)
    assert border == skip(raw, 0) == len(encode(first))
    assert same(decode(raw, border)[0], second)


# Messages, in every form an encoder may choose --------------------------------------------------------

SYMBOLIC = {
    Section.HEADER: "amqp:header:list",
    Section.DELIVERY_ANNOTATIONS: "amqp:delivery-annotations:map",
    Section.MESSAGE_ANNOTATIONS: "amqp:message-annotations:map",
    Section.PROPERTIES: "amqp:properties:list",
    Section.APPLICATION_PROPERTIES: "amqp:application-properties:map",
    Section.DATA: "amqp:data:binary",
    Section.SEQUENCE: "amqp:amqp-sequence:list",
    Section.VALUE: "amqp:amqp-value:*",
    Section.FOOTER: "amqp:footer:map",
}
MAPS = (Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS, Section.APPLICATION_PROPERTIES, Section.FOOTER)


def _wide(small: int, count: int, content: bytes) -> bytes:
    return bytes((small + 0x10,)) + struct.pack(">II", len(content) + 4, count) + content


def _descriptors(section: Section) -> st.SearchStrategy[bytes]:
    name = SYMBOLIC[section].encode()
    return st.sampled_from(
        [
            bytes((0x00, 0x53, section)),
            b"\x00\x80" + struct.pack(">Q", section),
            b"\x00\xa3" + bytes((len(name),)) + name,
            b"\x00\xb3" + struct.pack(">I", len(name)) + name,
        ]
    )


ODD_FIELDS = st.sampled_from(
    [
        bytes.fromhex(odd)
        for odd in ("70 00000001", "80 0000000000000007", "56 01", "b1 00000001 61", "d0 00000004 00000000")
    ]
)
RAW_FIELDS = st.one_of(ODD_FIELDS, SCALARS.map(encode), VALUES.map(encode))


@st.composite
def _raw_lists(draw: st.DrawFn) -> bytes:
    items = draw(st.lists(RAW_FIELDS, max_size=6))
    content = b"".join(items)
    if draw(st.booleans()) or len(content) > 254:
        return _wide(0xC0, len(items), content)
    return bytes((0xC0, len(content) + 1, len(items))) + content


@st.composite
def _raw_maps(draw: st.DrawFn) -> bytes:
    entries = draw(st.lists(st.tuples(st.one_of(TEXT, SYMBOL).map(encode), RAW_FIELDS), max_size=5))
    content = b"".join(part for entry in entries for part in entry)
    if draw(st.booleans()) or len(content) > 254:
        return _wide(0xC1, 2 * len(entries), content)
    return bytes((0xC1, len(content) + 1, 2 * len(entries))) + content


RAW_DATA = st.one_of(
    BINARY.map(encode), st.binary(max_size=9).map(lambda raw: b"\xb0" + struct.pack(">I", len(raw)) + raw)
)
RAW_BODIES = {Section.DATA: RAW_DATA, Section.SEQUENCE: _raw_lists(), Section.VALUE: RAW_FIELDS}


@st.composite
def _sections(draw: st.DrawFn) -> list[tuple[Section, bytes]]:
    body = draw(st.sampled_from(sorted(RAW_BODIES)))
    repeats = 1 if body is Section.VALUE else draw(st.integers(0, 3))
    chosen = [section for section in Section if section not in RAW_BODIES and draw(st.booleans())]
    whole = []
    for section in sorted(chosen + [body] * repeats):
        values = RAW_BODIES.get(section, _raw_maps() if section in MAPS else _raw_lists())
        whole.append((section, draw(_descriptors(section)) + draw(values)))
    return whole


SECTIONS = _sections()
MESSAGES = SECTIONS.map(lambda sections: b"".join(raw for _, raw in sections))


@given(SECTIONS)
def test_scan_finds_each_section_where_it_lies(sections: list[tuple[Section, bytes]]) -> None:
    payload = b"".join(raw for _, raw in sections)
    spans = scan(payload)
    assert [(span.section, payload[span.start : span.end]) for span in spans] == sections
    assert scan(memoryview(payload)) == spans
    for span in spans:
        assert same(read_span(payload, span), decode_all(payload[span.value_start : span.end]))


@given(MESSAGES)
def test_editing_nothing_changes_nothing(payload: bytes) -> None:
    spans = scan(payload)
    assert edit(payload, {}) == payload
    whole = {span.section: b"" for span in spans}
    for span in spans:
        whole[span.section] += payload[span.start : span.end]
    assert edit(payload, whole, spans) == payload


@given(SECTIONS, st.sampled_from(sorted(set(Section) - set(RAW_BODIES))), st.booleans())
def test_editing_one_section_keeps_every_other_byte(
    sections: list[tuple[Section, bytes]], edited: Section, removed: bool
) -> None:
    payload = b"".join(raw for _, raw in sections)
    change = None if removed else section_bytes(edited, encode({}) if edited in MAPS else encode([]))
    before = [raw for section, raw in sections if section < edited]
    after = [raw for section, raw in sections if section > edited]
    assert edit(payload, {edited: change}) == b"".join([*before, change or b"", *after])


# Entries and fields -------------------------------------------------------------------------------------


def _raw_entries(value: bytes) -> list[tuple[Any, bytes]]:
    """Key and bytes of each entry, found by walking in another way than edit_map does."""
    position = 3 if value[0] == 0xC1 else 9
    entries = []
    while position < len(value):
        key, middle = decode(value, position)
        _, end = decode(value, middle)
        entries.append((key, value[position:end]))
        position = end
    return entries


@given(_raw_maps(), st.data())
def test_edit_map_keeps_the_bytes_of_the_others(value: bytes, data: st.DataObject) -> None:
    entries = _raw_entries(value)
    keys = st.sampled_from([key for key, _ in entries] or ["nobody"])
    removed = data.draw(st.sets(keys))
    put = data.draw(st.dictionaries(st.one_of(keys, TEXT), SCALARS, max_size=3))
    edited = edit_map(value, removed, put)
    kept = [raw for key, raw in entries if key not in removed and key not in put]
    assert [raw for key, raw in _raw_entries(edited) if key not in put] == kept
    decoded = decode_all(edited)
    for key, new in put.items():
        assert all(same(found, new) for name, found in decoded.items() if name == key)
        assert any(name == key for name, _ in decoded.items())
    assert edit_map(value, (), {}) == value


@given(_raw_lists(), st.dictionaries(st.integers(0, 9), SCALARS, max_size=4))
def test_edit_fields_keeps_the_bytes_of_the_others(value: bytes, fields: dict[int, Any]) -> None:
    before = _raw_fields(value)
    after = _raw_fields(edit_fields(value, fields))
    for index in range(max(len(before), len(after), *fields, 0) + 1):
        raw = after[index] if index < len(after) else b"\x40"
        old = before[index] if index < len(before) else b"\x40"
        assert raw == (encode(fields[index]) if index in fields else old)
    assert not fields or not after or after[-1] != b"\x40"


def _raw_fields(value: bytes) -> list[bytes]:
    position = {0x45: 1, 0xC0: 3, 0xD0: 9}[value[0]]
    fields = []
    while position < len(value):
        _, end = decode(value, position)
        fields.append(value[position:end])
        position = end
    return fields


# Garbage --------------------------------------------------------------------------------------------------


def _survives(raw: bytes) -> None:
    """Everything that reads bytes either works or says AmqpDecodeError."""
    for attempt in (decode_all, lambda raw: skip(raw, 0), _read_all, _edit_value):
        try:
            attempt(raw)
        except AmqpDecodeError as error:
            assert str(error)


def _read_all(raw: bytes) -> list[Any]:
    spans: tuple[Span, ...] = scan(raw)
    assert len(body_sections(raw, spans)) <= len(spans)
    return [read_span(raw, span) for span in spans]


def _edit_value(raw: bytes) -> None:
    for attempt in (lambda: edit_map(raw, {"a"}, {"b": None}), lambda: edit_fields(raw, {1: True})):
        try:
            assert decode_all(attempt()) is not None
        except AmqpDecodeError as error:
            assert str(error)


@given(st.binary(max_size=60))
def test_random_bytes(raw: bytes) -> None:
    _survives(raw)


@given(st.sampled_from([b"\xc0", b"\xc1", b"\xd0", b"\xd1", b"\xe0", b"\xf0", b"\x00", b"\x00\x53\x74"]), st.binary())
def test_random_bytes_behind_a_promising_start(start: bytes, raw: bytes) -> None:
    _survives(start + raw)


@given(MESSAGES, st.data())
def test_truncated_messages(payload: bytes, data: st.DataObject) -> None:
    _survives(payload[: data.draw(st.integers(0, len(payload)))])


@given(MESSAGES, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_messages(payload: bytes, mutations: list[tuple[int, int]]) -> None:
    mutated = bytearray(payload)
    for index, byte in mutations if mutated else ():
        mutated[index % len(mutated)] = byte
    _survives(bytes(mutated))


@given(st.binary(max_size=40))
def test_what_decodes_can_be_encoded_again(raw: bytes) -> None:
    try:
        value, end = decode(raw)
    except AmqpError:
        return
    assert end == skip(raw, 0)
    assert same(decode_all(encode(value)), value)
