"""The sections of an encoded message (AMQP 1.0 §3.2): found by skipping, changed by cutting.

`scan` says where each section lies without decoding its value. `edit` puts a message together again from the
untouched stretches and the changed sections, so whatever nobody asked to change leaves as the bytes it came
in. That matters because a message can hold what no decoder gives back exactly: long forms of descriptors and
lengths, decimals in a private layout, types that a client library does not know.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, TypedDict

from sbpair.amqp.decoding import Buffer, decode, skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.types import AmqpDecodeError, AmqpEncodeError, MapPairs, Symbol, Ulong

__all__ = [
    "ABSENT",
    "HeaderField",
    "PropertyField",
    "Section",
    "Span",
    "body_sections",
    "build",
    "edit",
    "edit_fields",
    "edit_map",
    "field",
    "read",
    "read_span",
    "replace",
    "scan",
    "section_bytes",
    "shrunk_map",
    "take_entries",
    "with_symbol_keys",
]


# Changing an encoded map or list entry by entry; what is not changed keeps its bytes.

_WIDE_HEAD = struct.Struct(">II")
_WIDE_HEAD_BYTES = 1 + _WIDE_HEAD.size
_NULL = b"\x40"
_DATA_8, _DATA_32 = b"\x00\x53\x75\xa0%c", b"\x00\x53\x75\xb0"
_NULL_CODE, _LIST0, _LIST8, _LIST32, _MAP8, _MAP32 = 0x40, 0x45, 0xC0, 0xD0, 0xC1, 0xD1
_SIZE_8 = frozenset({0xA0, 0xA1, 0xA3, _LIST8, _MAP8, 0xE0})
"""Values whose size is the byte behind their constructor,"""
_SIZE_32 = frozenset({0xB0, 0xB1, 0xB3, _LIST32, _MAP32, 0xF0})
"""and the four bytes."""
_WIDE = frozenset({_LIST32, _MAP32})
_SHORT_TEXT = frozenset({0xA1, 0xA3})
_STRINGS = frozenset({0xA1, 0xB1})
"""Constructors of strings; that of a symbol of the same width is two more."""


def edit_map(value: bytes, remove: Collection[Any], put: Mapping[Any, Any]) -> bytes:
    """An encoded map with the entries under the keys in `remove` gone and those in `put` set.

    Keys are compared as Python compares them, so "a" finds the string and the symbol. A key in `put` that is
    there keeps its place and its own bytes and gets the new value; a new one is appended; a key in both is
    set. Untouched entries keep their bytes and their order. A map that was in the 32 bit form without need keeps
    it; one that needed it takes the 8 bit form as soon as it fits, as its encoder would have written it, so that
    entries which are added and removed again leave no trace. Null is taken as an empty map.

    Raises AmqpDecodeError when value is not one map.
    """
    if not remove and not put:
        return value
    entries = _entries(value)
    kept: list[bytes] = []
    done: list[Any] = []
    for key, raw_key, raw_value in entries:
        if _has(put, key):
            kept += raw_key, encode(put[key])
            done.append(key)
        elif not _has(remove, key):
            kept += raw_key, raw_value
    for key, new in put.items():
        if key not in done:
            kept += encode(key), encode(new)
    wide_by_choice = value[0] in _WIDE and not _needs_wide(len(value) - _WIDE_HEAD_BYTES, 2 * len(entries))
    return _framed(_MAP32 if wide_by_choice else _MAP8, kept)


def with_symbol_keys(value: bytes) -> bytes:
    """An encoded map whose keys that are strings of ASCII became symbols; all other bytes stay.

    Raises AmqpDecodeError when value is not one map.
    """
    edited, position = bytearray(value), 0
    for key, raw_key, raw_value in reversed(_entries(value)):
        position += len(raw_value) + len(raw_key)
        code = raw_key[0]
        if code in _STRINGS and str(key).isascii():
            edited[len(value) - position] = code + 2
    return bytes(edited)


def take_entries(value: bytes, keys: Collection[bytes]) -> tuple[dict[bytes, bytes], bytes]:
    """Cut entries out of an encoded map: the encoded value of each that was there, and the map without them.

    `keys` are the UTF-8 of strings or symbols. The values are those that come first, where a key comes twice; all of
    them are cut. The rest is as from `edit_map`, no bytes if no entry is left; nothing of it is decoded.
    Raises AmqpDecodeError when value is not one map.
    """
    count, position = _head(value, _MAP8, _MAP32, "map")
    if count % 2:
        raise AmqpDecodeError(f"a map of {count} items: a key has no value")
    taken: dict[bytes, bytes] = {}
    kept: list[bytes] = []
    kept_from, left = position, count
    try:
        for _ in range(count // 2):
            start = position
            if value[position] in _SHORT_TEXT:
                value_start = position + 2 + value[position + 1]
                key = value[position + 2 : value_start]
            else:
                name, value_start = decode(value, position)
                key = name.encode() if isinstance(name, str) else b""
            position = value_start + 2 + value[value_start + 1] if value[value_start] in _SIZE_8 else 0
            position = position or skip(value, value_start)
            if key in keys:
                kept.append(value[kept_from:start])
                taken.setdefault(key, value[value_start:position])
                kept_from, left = position, left - 2
    except IndexError as error:
        raise AmqpDecodeError("the map is cut short") from error
    _check_end(value, position)
    if left == count:
        return taken, value
    if not left:
        return taken, b""
    kept.append(value[kept_from:])
    if value[0] in _WIDE:
        return taken, shrunk_map(kept, left, was=count, content_bytes=len(value) - _WIDE_HEAD_BYTES)
    return taken, _framed(_MAP8, kept, left)


def shrunk_map(entries: list[bytes], count: int, *, was: int, content_bytes: int) -> bytes:
    """A map of the encoded entries that are left of one in the 32 bit form, in the form that `edit_map` gives it.
    `was`, `content_bytes`: how many items that had, and how long they were."""
    return _framed(_MAP8 if _needs_wide(content_bytes, was) else _MAP32, entries, count)


def _has(keys: Collection[Any], key: Any) -> bool:
    try:
        return key in keys
    except TypeError:  # a key that cannot be hashed, which no set and no dict holds
        return False


def _entries(value: bytes) -> list[tuple[Any, bytes, bytes]]:
    """Each entry as decoded key, bytes of the key, bytes of the value."""
    count, position = _head(value, _MAP8, _MAP32, "map")
    if count % 2:
        raise AmqpDecodeError(f"a map of {count} items: a key has no value")
    entries = []
    size = len(value)
    for _ in range(count // 2):
        value_start = position + 2 + value[position + 1] if position + 1 < size else size
        if value_start < size and value[position] in _SHORT_TEXT and value[position + 2 : value_start].isascii():
            key: Any = str(value[position + 2 : value_start], "ascii")  # most keys, in fewer steps than decode takes
        else:
            key, value_start = decode(value, position)
        end = skip(value, value_start)
        entries.append((key, value[position:value_start], value[value_start:end]))
        position = end
    _check_end(value, position)
    return entries


def edit_fields(value: bytes, fields: Mapping[int, Any]) -> bytes:
    """An encoded list with the fields at these indexes set, None for null.

    The other fields keep their bytes, the list grows as far as needed, trailing nulls are dropped, and a list
    in the 32 bit form keeps that form. Null is taken as an empty list. Raises AmqpDecodeError when value is
    not one list, AmqpEncodeError for a negative index.
    """
    if not fields:
        return value
    raw = _fields(value)
    for index, new in fields.items():
        if index < 0:
            raise AmqpEncodeError(f"a field cannot have the index {index}")
        raw += [_NULL] * (index + 1 - len(raw))
        raw[index] = encode(new)
    while raw and raw[-1] == _NULL:
        raw.pop()
    if not raw:
        return bytes((_LIST0,))
    return _framed(_LIST32 if value[0] in _WIDE else _LIST8, raw)


def _fields(value: bytes) -> list[bytes]:
    count, position = _head(value, _LIST8, _LIST32, "list")
    fields = []
    for _ in range(count):
        end = skip(value, position)
        fields.append(value[position:end])
        position = end
    _check_end(value, position)
    return fields


def _head(value: bytes, small: int, large: int, kind: str) -> tuple[int, int]:
    """How many items there are and where the first starts."""
    try:
        code = value[0]
        if code == _NULL_CODE or (code == _LIST0 and small == _LIST8):
            return 0, 1
        if code == small:
            sized_from, size, count, start = 2, value[1], value[2], 3
        elif code == large:
            sized_from, size, count, start = 5, *_WIDE_HEAD.unpack_from(value, 1), 9
        else:
            raise AmqpDecodeError(f"0x{code:02x} does not start a {kind}")
    except (IndexError, struct.error) as error:
        raise AmqpDecodeError(f"the {kind} is cut short") from error
    if sized_from + size != len(value):
        raise AmqpDecodeError(f"the size of the {kind} does not reach its end")
    return count, start


def _check_end(value: bytes, position: int) -> None:
    if position != len(value):
        raise AmqpDecodeError(f"{len(value) - position} bytes follow the last item")


def _needs_wide(content_bytes: int, count: int) -> bool:
    return content_bytes >= 0xFF or count > 0xFF


def _framed(code: int, items: list[bytes], count: int | None = None) -> bytes:
    """The items in this constructor's form, or in the 32 bit one when they do not fit 8. `count`: of the items, where
    they are joined already."""
    content = b"".join(items)
    count = len(items) if count is None else count
    if code not in _WIDE and _needs_wide(len(content), count):
        code += 0x10
    if code in _WIDE:
        return bytes((code,)) + _WIDE_HEAD.pack(len(content) + 4, count) + content
    return bytes((code, len(content) + 1, count)) + content


class Section(IntEnum):
    """The sections by descriptor code, which is also their order in a message (AMQP 1.0 §3.2)."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


class HeaderField(IntEnum):
    """Indexes into the header's list (AMQP 1.0 §3.2.1). TTL is in milliseconds."""

    DURABLE = 0
    PRIORITY = 1
    TTL = 2
    FIRST_ACQUIRER = 3
    DELIVERY_COUNT = 4


class PropertyField(IntEnum):
    """Indexes into the list of the properties (AMQP 1.0 §3.2.4). Times are timestamps in milliseconds."""

    MESSAGE_ID = 0
    USER_ID = 1
    TO = 2
    SUBJECT = 3
    REPLY_TO = 4
    CORRELATION_ID = 5
    CONTENT_TYPE = 6
    CONTENT_ENCODING = 7
    ABSOLUTE_EXPIRY_TIME = 8
    CREATION_TIME = 9
    GROUP_ID = 10
    GROUP_SEQUENCE = 11
    REPLY_TO_GROUP_ID = 12


class Span(NamedTuple):
    """Where a section lies: [start, end) with its descriptor, [value_start, end) its value alone."""

    section: Section
    start: int
    value_start: int
    end: int


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""No value section at all, where None means a value section that holds null."""


class TextProperties(TypedDict, total=False):
    """Properties that applications give as text, by the names that azure-servicebus has for them."""

    correlation_id: str | None
    subject: str | None
    content_type: str | None
    to: str | None
    reply_to: str | None
    reply_to_session_id: str | None


TEXT_FIELDS: Final[Mapping[str, PropertyField]] = {
    "message_id": PropertyField.MESSAGE_ID,
    "session_id": PropertyField.GROUP_ID,
    "correlation_id": PropertyField.CORRELATION_ID,
    "content_type": PropertyField.CONTENT_TYPE,
    "subject": PropertyField.SUBJECT,
    "to": PropertyField.TO,
    "reply_to": PropertyField.REPLY_TO,
    "reply_to_session_id": PropertyField.REPLY_TO_GROUP_ID,
}
"""All of them, with the two that have parameters of their own."""


def text_properties(message_id: str | None, session_id: str | None, given: TextProperties) -> dict[int, Any]:
    """The properties of a message by their indexes, for `build`.

    Raises:
        TypeError: a name that is not among them.
    """
    fields: dict[int, Any] = {PropertyField.MESSAGE_ID: message_id, PropertyField.GROUP_ID: session_id}
    for name, value in given.items():
        if name not in TEXT_FIELDS:
            raise TypeError(f"{name!r} is no property of a message; known: {', '.join(TEXT_FIELDS)}")
        fields[TEXT_FIELDS[name]] = value
    if (content_type := given.get("content_type")) is not None:
        fields[PropertyField.CONTENT_TYPE] = Symbol(content_type)
    return fields


Fields = Sequence[Any] | Mapping[int, Any]
AmqpMap = dict[Any, Any] | MapPairs

_BODY = frozenset({Section.DATA, Section.SEQUENCE, Section.VALUE})
_REPEATABLE = frozenset({Section.DATA, Section.SEQUENCE})

_new_span = tuple.__new__

_BY_CODE: dict[int, Section] = {int(section): section for section in Section}
_BY_SYMBOL = {
    "amqp:header:list": Section.HEADER,
    "amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Section.PROPERTIES,
    "amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    "amqp:data:binary": Section.DATA,
    "amqp:amqp-sequence:list": Section.SEQUENCE,
    "amqp:amqp-value:*": Section.VALUE,
    "amqp:footer:map": Section.FOOTER,
}

# What a section's value may start with. Null stands for an empty list or map.
_LIST = frozenset({0x40, 0x45, 0xC0, 0xD0})
_MAP = frozenset({0x40, 0xC1, 0xD1})
_ALLOWED = {
    Section.HEADER: _LIST,
    Section.DELIVERY_ANNOTATIONS: _MAP,
    Section.MESSAGE_ANNOTATIONS: _MAP,
    Section.PROPERTIES: _LIST,
    Section.APPLICATION_PROPERTIES: _MAP,
    Section.DATA: frozenset({0xA0, 0xB0}),
    Section.SEQUENCE: frozenset({0x45, 0xC0, 0xD0}),
    Section.VALUE: frozenset(range(256)),
    Section.FOOTER: _MAP,
}
_SIZED_8, _SIZED_32 = (
    {bytes((0x00, 0x53, section, code)): section for section, codes in _ALLOWED.items() for code in codes & sized}
    for sized in (_SIZE_8, _SIZE_32)
)
"""How a section begins that has a short descriptor, and whose size is one byte, or four."""


def scan(payload: Buffer, start: int = 0, before: int = 0) -> tuple[Span, ...]:
    """The sections of a message in their order, nothing decoded. Raises AmqpDecodeError.

    Args:
        start: where to begin, if what comes before is known: sections up to the kind `before`, in their order. If those
            from there on are not in order, all are given.

    Checked are descriptors, bounds, the kind of each value, that no section comes twice but data or sequence, and that
    there is one kind of body. A message without a body and sections in another order than §3.2 has are let through,
    because official clients send them: azure-servicebus writes delivery annotations last, rhea (@azure/service-bus) the
    footer before the body. The service takes both, and Microsoft.Azure.Amqp reads sections in whatever order they come.
    """
    spans: list[Span] = []
    position, size = start, len(payload)
    in_order = True
    while position < size:
        # Almost every section has a short descriptor and a size: no call of a function for those.
        begin = bytes(payload[position : position + 4])
        if begin in _SIZED_8 and position + 4 < size:
            section, end = _SIZED_8[begin], position + 5 + payload[position + 4]
        elif begin in _SIZED_32 and position + 8 <= size:
            section, end = _SIZED_32[begin], position + 8 + int.from_bytes(payload[position + 4 : position + 8], "big")
        else:
            section, end = Section.HEADER, size + 1
        if end <= size:
            spans.append(_new_span(Span, (section, position, position + 3, end)))
        else:
            spans.append(_section_at(payload, position))
            section, end = spans[-1].section, spans[-1].end
        position = end
        # A body of one section, after what comes before it: nothing is left to be checked.
        in_order = in_order and section > before and not (section in _BODY and before in _BODY)
        before = section
    if not in_order:
        if start:
            return scan(payload)
        _check_repeats(spans)
    return tuple(spans)


def _section_at(payload: Buffer, start: int) -> Span:
    try:
        if payload[start] == 0x00 and payload[start + 1] == 0x53:
            section, value_start = _BY_CODE.get(payload[start + 2]), start + 3
        else:
            section, value_start = _long_descriptor(payload, start)
        if section is None:
            raise AmqpDecodeError(f"the bytes at {start} are no message section")
        code = payload[value_start]
        if code not in _ALLOWED[section]:
            raise AmqpDecodeError(f"a {section.name} section cannot hold 0x{code:02x}")
        if code in _SIZE_8:
            end = value_start + 2 + payload[value_start + 1]
            if end <= len(payload):
                return Span(section, start, value_start, end)
    except IndexError as error:
        raise AmqpDecodeError(f"the section at byte {start} is cut short") from error
    return Span(section, start, value_start, skip(payload, value_start))


def _long_descriptor(payload: Buffer, start: int) -> tuple[Section | None, int]:
    """A descriptor that is not a smallulong: the full ulong or the symbolic name."""
    if payload[start] != 0x00:
        return None, start
    descriptor, value_start = decode(payload, start + 1)
    if isinstance(descriptor, Ulong):
        return _BY_CODE.get(descriptor), value_start
    if isinstance(descriptor, Symbol):
        return _BY_SYMBOL.get(descriptor), value_start
    return None, value_start


def _check_repeats(spans: Sequence[Span]) -> None:
    seen: set[Section] = set()
    for section in (span.section for span in spans):
        if section in seen and section not in _REPEATABLE:
            raise AmqpDecodeError(f"two {section.name} sections")
        seen.add(section)
    bodies = sorted(seen & _BODY)
    if len(bodies) > 1:
        raise AmqpDecodeError(f"a body of both {bodies[0].name} and {bodies[1].name}")


def read(payload: Buffer, spans: Sequence[Span], section: Section, *, max_items: int | None = None) -> Any:
    """The decoded value of a section, None when there is no such section.

    A list for header, properties and sequence, bytes for data, dict or MapPairs for the maps. Of several data
    or sequence sections it is the first; `body_sections` with `read_span` gives them all, and tells a null
    value from no value. `max_items` bounds the items of its lists, maps and arrays (AmqpDecodeError).
    """
    for span in spans:
        if span.section == section:
            if max_items is None:
                return read_span(payload, span)
            return decode(payload, span.value_start, max_items=max_items)[0]
    return None


def read_span(payload: Buffer, span: Span) -> Any:
    """The decoded value of the section that lies at span."""
    return decode(payload, span.value_start)[0]


def body_sections(payload: Buffer, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The sections of the body: any number of data, any number of sequence, or one value."""
    return tuple(span for span in spans if span.section in _BODY)


def edit(payload: bytes, changes: Mapping[Section, bytes | None], spans: Sequence[Span] | None = None) -> bytes:
    """The message with whole sections replaced, inserted at their place, or removed (None).

    A change is a whole section, descriptor included (`section_bytes`), for data and sequence also several
    in a row, which take the place of all there were. Every byte of the other sections stays what it is.
    Raises AmqpEncodeError when a change is not such a section or leaves two kinds of body.
    """
    found = scan(payload) if spans is None else spans
    for section, raw in changes.items():
        if raw is not None:
            _check(section, raw)
    left = {span.section for span in found} - changes.keys() | {one for one, raw in changes.items() if raw is not None}
    if len(left & _BODY) > 1:
        raise AmqpEncodeError("a message has one kind of body")
    return replace(payload, changes, found)


def replace(payload: bytes, changes: Mapping[Section, bytes | None], spans: Sequence[Span]) -> bytes:
    """`edit` without a look at the changes: for those that were made here, and touch no body."""
    if not changes:
        return payload
    pieces = [(span.section, payload[span.start : span.end]) for span in spans if span.section not in changes]
    for section, raw in changes.items():
        if raw is not None:
            pieces.insert(_place(section, pieces), (section, raw))
    return b"".join([raw for _, raw in pieces])


def _place(section: Section, pieces: Sequence[tuple[Section, bytes]]) -> int:
    """Where the section belongs: before the first later one and before annotations that come late."""
    before: Section = Section.HEADER
    for index, (other, _) in enumerate(pieces):
        if other > section or other < before:
            return index
        before = other
    return len(pieces)


def _check(section: Section, raw: bytes) -> None:
    try:
        spans = scan(raw)
    except AmqpDecodeError as error:
        raise AmqpEncodeError(f"the change is no {Section(section).name} section: {error}") from error
    if not spans or any(span.section != section for span in spans):
        raise AmqpEncodeError(f"the change is no {Section(section).name} section")


def section_bytes(section: Section, value: bytes) -> bytes:
    """A whole section: the short descriptor, then the value, which is already encoded."""
    return bytes((0x00, 0x53, section)) + value


def field(fields: Sequence[Any] | None, index: int) -> Any:
    """The field at index, None when the list is shorter or absent: trailing nulls need not be sent."""
    return fields[index] if fields is not None and index < len(fields) else None


def build(
    *,
    header: Fields | None = None,
    delivery_annotations: AmqpMap | None = None,
    message_annotations: AmqpMap | None = None,
    properties: Fields | None = None,
    application_properties: AmqpMap | None = None,
    data: Sequence[bytes] | bytes | None = None,
    value: Any = ABSENT,
    sequences: Sequence[list[Any]] | None = None,
    footer: AmqpMap | None = None,
) -> bytes:
    """A message from typed values; sections that are None are left out.

    Header and properties are lists in the order of HeaderField and PropertyField, or maps from those indexes.
    The body is data (one or several sections), a value (None is null) or sequences; AmqpEncodeError when more
    than one kind is given.
    """
    several = _several(data)
    if (len(several) > 0) + bool(sequences) + (value is not ABSENT) > 1:
        raise AmqpEncodeError("a message has one kind of body")
    parts = [
        (Section.HEADER, _fields_value(header)),
        (Section.DELIVERY_ANNOTATIONS, _map_value(delivery_annotations)),
        (Section.MESSAGE_ANNOTATIONS, _map_value(message_annotations)),
        (Section.PROPERTIES, _fields_value(properties)),
        (Section.APPLICATION_PROPERTIES, _map_value(application_properties)),
    ]
    bodies = [
        *_data_sections(several),
        *(section_bytes(Section.SEQUENCE, encode(part)) for part in sequences or ()),
        *(() if value is ABSENT else (section_bytes(Section.VALUE, encode(value)),)),
        *(() if footer is None else (section_bytes(Section.FOOTER, encode(footer)),)),
    ]
    return b"".join([*(section_bytes(section, raw) for section, raw in parts if raw is not None), *bodies])


def _data_sections(several: Collection[bytes]) -> list[bytes]:
    """Pieces of the data sections that hold these: a batch is large, and is copied once."""
    pieces: list[bytes] = []
    for part in several:
        size = len(part)
        pieces += (_DATA_8 % size if size <= 0xFF else _DATA_32 + size.to_bytes(4, "big"), part)
    return pieces


def _several(data: Sequence[bytes] | bytes | None) -> Collection[bytes]:
    if data is None:
        return ()
    return (data,) if isinstance(data, bytes) else data


def _fields_value(fields: Fields | None) -> bytes | None:
    if fields is None:
        return None
    by_index = fields if isinstance(fields, Mapping) else dict(enumerate(fields))
    return edit_fields(b"\x45", by_index)


def _map_value(value: AmqpMap | None) -> bytes | None:
    return None if value is None else encode(value)
