"""Changing an encoded map or list entry by entry; what is not changed keeps its bytes."""

import struct
from collections.abc import Collection, Mapping
from typing import Any

from sbpair.amqp.decoding import decode, skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.types import AmqpDecodeError, AmqpEncodeError

_WIDE_HEAD = struct.Struct(">II")
_WIDE_HEAD_BYTES = 1 + _WIDE_HEAD.size
_NULL = b"\x40"
_NULL_CODE, _LIST0, _LIST8, _LIST32, _MAP8, _MAP32 = 0x40, 0x45, 0xC0, 0xD0, 0xC1, 0xD1
_WIDE = frozenset({_LIST32, _MAP32})
_SHORT_TEXT = frozenset({0xA1, 0xA3})


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


def _framed(code: int, items: list[bytes]) -> bytes:
    """The items in this constructor's form, or in the 32 bit one when they do not fit 8."""
    content = b"".join(items)
    count = len(items)
    if code not in _WIDE and _needs_wide(len(content), count):
        code += 0x10
    if code in _WIDE:
        return bytes((code,)) + _WIDE_HEAD.pack(len(content) + 4, count) + content
    return bytes((code, len(content) + 1, count)) + content
