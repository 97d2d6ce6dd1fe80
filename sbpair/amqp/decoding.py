"""Bytes to typed values, and over them without looking (AMQP 1.0 §1.2, §1.6).

A table with one function per constructor byte: each takes the buffer, the position behind the constructor
and the state of this call, and returns the value and the position behind it. Reading past the end of the
buffer surfaces as IndexError or struct.error and becomes AmqpDecodeError in `decode`; only slices, which
Python cuts short in silence, need a check of their own. A child that runs over the end of its parent is found
when the parent compares positions.

Bounds for hostile input: nesting stops at MAX_DEPTH; every item costs at least one byte of input, except the
elements of an array whose constructor has no width (null, true, uint0, list0 ...), and of those one call
yields at most MAX_ITEMS. A byte may become an object of 60: who decodes for strangers says how many items of lists,
maps and arrays there may be (`max_items`).
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

from sbpair.amqp.types import (
    AmqpDecodeError,
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
)

Buffer = bytes | bytearray | memoryview

NO_CONSTRUCTOR = 0x00
"""The code of an empty array that names no constructor for its elements, as some clients write it."""

MAX_DEPTH = 64
"""How deep lists, maps, arrays and descriptors may nest."""

MAX_ITEMS = 65_536
"""How many array elements without any width one call to decode may yield."""

_ANY_NUMBER = 2**63

_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_TWO_U32 = struct.Struct(">II").unpack_from
_I8 = struct.Struct(">b").unpack_from
_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_I64 = struct.Struct(">q").unpack_from
_F64 = struct.Struct(">d").unpack_from

_LAST_CODE_POINT = 0x10FFFF
_NULL, _STRING_8, _SYMBOL_8 = 0x40, 0xA1, 0xA3
_SHORT_TEXT = frozenset({_STRING_8, _SYMBOL_8})


class _State:
    """What one call to decode has used up."""

    __slots__ = ("depth", "items_left", "weightless")

    def __init__(self, max_items: int) -> None:
        self.depth = 0
        self.weightless = 0
        self.items_left = max_items

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise AmqpDecodeError(f"nested deeper than {MAX_DEPTH} levels")

    def charge(self, count: int) -> None:
        self.weightless += count
        if self.weightless > MAX_ITEMS:
            raise AmqpDecodeError(f"more than {MAX_ITEMS} array elements without width")


_Decoder = Callable[[Buffer, int, _State], tuple[Any, int]]


def decode(buf: Buffer, offset: int = 0, *, max_items: int = _ANY_NUMBER) -> tuple[Any, int]:
    """The value that starts at offset, and the offset behind it. Raises AmqpDecodeError."""
    if offset < 0:
        raise AmqpDecodeError(f"offset {offset} is negative")
    try:
        return _DECODERS[buf[offset]](buf, offset + 1, _State(max_items))
    except (IndexError, struct.error) as error:
        raise AmqpDecodeError(f"the value at byte {offset} is cut short") from error
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(f"the value at byte {offset} is not {error.encoding} text") from error


def decode_all(buf: Buffer) -> Any:
    """The one value that fills buf to its last byte. Raises AmqpDecodeError."""
    value, end = decode(buf)
    if end != len(buf):
        raise AmqpDecodeError(f"{len(buf) - end} bytes follow the value")
    return value


def skip(buf: Buffer, offset: int) -> int:
    """The offset behind the value that starts at offset; nothing is decoded.

    The constructors passed on the way must be known and the value must end inside buf, else
    AmqpDecodeError; what is inside lists, maps, arrays and text is not looked at.
    """
    if offset < 0:
        raise AmqpDecodeError(f"offset {offset} is negative")
    position = offset
    pending = 1
    try:
        while pending:
            width = _WIDTHS[buf[position]]
            position += 1
            if width >= 0:
                position += width
            elif width == _SIZE_8:
                position += 1 + buf[position]
            elif width == _SIZE_32:
                position += 4 + _U32(buf, position)[0]
            elif width == _DESCRIBED:
                pending += 1  # in place of one value come two: the descriptor and what it describes
                continue
            else:
                raise AmqpDecodeError(f"unknown constructor 0x{buf[position - 1]:02x} at byte {position - 1}")
            pending -= 1
    except (IndexError, struct.error) as error:
        raise AmqpDecodeError(f"the value at byte {offset} is cut short") from error
    if position > len(buf):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short")
    return position


# One function per shape of value ------------------------------------------------------------------


def _unknown(buf: Buffer, position: int, state: _State) -> tuple[Any, int]:
    raise AmqpDecodeError(f"unknown constructor 0x{buf[position - 1]:02x} at byte {position - 1}")


def _constant(value: Any) -> _Decoder:
    return lambda buf, position, state: (value, position)


def _one_byte(kind: Callable[[int], Any]) -> _Decoder:
    return lambda buf, position, state: (kind(buf[position]), position + 1)


_Unpack = Callable[[Buffer, int], tuple[Any, ...]]


def _fixed(unpack: _Unpack, width: int, kind: Callable[[Any], Any]) -> _Decoder:
    return lambda buf, position, state: (kind(unpack(buf, position)[0]), position + width)


def _raw(width: int, kind: Callable[[bytes], Any]) -> _Decoder:
    def decode_raw(buf: Buffer, position: int, state: _State) -> tuple[Any, int]:
        end = position + width
        return kind(bytes(buf[position : _within(buf, end)])), end

    return decode_raw


def _within(buf: Buffer, end: int) -> int:
    if end > len(buf):
        raise AmqpDecodeError(f"a value should end at byte {end}, but the bytes end at {len(buf)}")
    return end


def _null(buf: Buffer, position: int, state: _State) -> tuple[None, int]:
    return None, position


def _boolean(buf: Buffer, position: int, state: _State) -> tuple[bool, int]:
    byte = buf[position]
    if byte > 1:
        raise AmqpDecodeError(f"a boolean is 0 or 1, not {byte}, at byte {position}")
    return byte == 1, position + 1


def _char(code_point: int) -> Char:
    if code_point > _LAST_CODE_POINT:
        raise AmqpDecodeError(f"0x{code_point:x} is not a Unicode code point")
    return Char(chr(code_point))


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _binary8(buf: Buffer, position: int, state: _State) -> tuple[bytes, int]:
    end = position + 1 + buf[position]
    return bytes(buf[position + 1 : _within(buf, end)]), end


def _binary32(buf: Buffer, position: int, state: _State) -> tuple[bytes, int]:
    end = position + 4 + _U32(buf, position)[0]
    return bytes(buf[position + 4 : _within(buf, end)]), end


def _string8(buf: Buffer, position: int, state: _State) -> tuple[str, int]:
    end = position + 1 + buf[position]
    if end > len(buf):
        _within(buf, end)
    return str(buf[position + 1 : end], "utf-8"), end


def _string32(buf: Buffer, position: int, state: _State) -> tuple[str, int]:
    end = position + 4 + _U32(buf, position)[0]
    return str(buf[position + 4 : _within(buf, end)], "utf-8"), end


@lru_cache(maxsize=1024)
def _symbol(raw: bytes) -> Symbol:
    """Most symbols are names out of a small set, as annotations have them."""
    return Symbol(str(raw, "ascii"))


def _symbol8(buf: Buffer, position: int, state: _State) -> tuple[Symbol, int]:
    end = position + 1 + buf[position]
    if end > len(buf):
        _within(buf, end)
    return _symbol(bytes(buf[position + 1 : end])), end


def _symbol32(buf: Buffer, position: int, state: _State) -> tuple[Symbol, int]:
    end = position + 4 + _U32(buf, position)[0]
    return Symbol(str(buf[position + 4 : _within(buf, end)], "ascii")), end


def _described(buf: Buffer, position: int, state: _State) -> tuple[Described, int]:
    state.enter()
    descriptor, position = _DECODERS[buf[position]](buf, position + 1, state)
    value, position = _DECODERS[buf[position]](buf, position + 1, state)
    state.depth -= 1
    return Described(descriptor, value), position


# Compounds: the frame (size and count, in 8 or 32 bits) is separate from what it holds ------------

_Content = Callable[[Buffer, int, int, int, _State], tuple[Any, int]]


def _framed(content: _Content, *, wide: bool) -> _Decoder:
    def decode_framed(buf: Buffer, position: int, state: _State) -> tuple[Any, int]:
        if wide:
            size, count = _TWO_U32(buf, position)
            end, start = position + 4 + size, position + 8
        else:
            end, count, start = position + 1 + buf[position], buf[position + 1], position + 2
        if end > len(buf):
            _within(buf, end)
        state.items_left -= count
        if state.items_left < 0:
            raise AmqpDecodeError("more items of lists, maps and arrays than there may be here")
        state.enter()
        value, reached = content(buf, start, end, count, state)
        state.depth -= 1
        if reached != end:
            raise AmqpDecodeError(f"{count} items end at byte {reached}, but their size says {end}")
        return value, end

    return decode_framed


def _empty_list(buf: Buffer, position: int, state: _State) -> tuple[list[Any], int]:
    return [], position


def _items(buf: Buffer, position: int, end: int, count: int, state: _State) -> tuple[list[Any], int]:
    decoders = _DECODERS
    size = len(buf)
    items: list[Any] = []
    for _ in range(count):
        code = buf[position]
        # Of most items the next three are all: a call of a function for each would cost more than what it does.
        if code == _NULL:
            position += 1
            items.append(None)
        elif code in _SHORT_TEXT:
            start = position + 2
            position = start + buf[position + 1]
            if position > size:
                _within(buf, position)
            raw = buf[start:position]
            items.append(str(raw, "utf-8") if code == _STRING_8 else _symbol(bytes(raw)))
        else:
            item, position = decoders[code](buf, position + 1, state)
            items.append(item)
    return items, position


def _map(buf: Buffer, position: int, end: int, count: int, state: _State) -> tuple[dict[Any, Any] | MapPairs, int]:
    if count % 2:
        raise AmqpDecodeError(f"a map of {count} items: a key has no value")
    items, position = _items(buf, position, end, count, state)
    keys, values = items[::2], items[1::2]
    try:
        as_dict = dict(zip(keys, values, strict=True))
    except TypeError:  # a key that cannot be hashed
        return MapPairs(zip(keys, values, strict=True)), position
    if len(as_dict) < len(keys):
        return MapPairs(zip(keys, values, strict=True)), position
    return as_dict, position


def _array(buf: Buffer, position: int, end: int, count: int, state: _State) -> tuple[Array, int]:
    if position == end and count == 0:
        return Array(NO_CONSTRUCTOR, ()), position
    descriptors = []
    levels = state.depth
    while buf[position] == 0:
        state.enter()
        descriptor, position = _DECODERS[buf[position + 1]](buf, position + 2, state)
        descriptors.append(descriptor)
    state.depth = levels
    code = buf[position]
    items, position = _elements(buf, position + 1, count, code, state)
    return Array(code, items, _joined(descriptors)), position


def _elements(buf: Buffer, position: int, count: int, code: int, state: _State) -> tuple[tuple[Any, ...], int]:
    decoder = _DECODERS[code]
    if _WIDTHS[code] == 0:
        state.charge(count)
    elif count > len(buf) - position:
        raise AmqpDecodeError(f"{count} array elements cannot fit the bytes that are there")
    elif _WIDTHS[code] == _UNKNOWN:
        raise AmqpDecodeError(f"unknown constructor 0x{code:02x} of an array at byte {position - 1}")
    items = []
    for _ in range(count):
        item, position = decoder(buf, position, state)
        items.append(item)
    return tuple(items), position


def _joined(descriptors: list[Any]) -> Any:
    if not descriptors:
        return None
    if len(descriptors) == 1 and descriptors[0] is not None:
        return descriptors[0]
    return Descriptors(descriptors)


# The tables ---------------------------------------------------------------------------------------

_UNKNOWN, _DESCRIBED, _SIZE_8, _SIZE_32 = -4, -3, -2, -1

_BY_CODE: dict[int, tuple[int, _Decoder]] = {
    0x00: (_DESCRIBED, _described),
    0x40: (0, _null),
    0x41: (0, _constant(True)),
    0x42: (0, _constant(False)),
    0x43: (0, _constant(Uint(0))),
    0x44: (0, _constant(Ulong(0))),
    0x45: (0, _empty_list),
    0x50: (1, _one_byte(Ubyte)),
    0x51: (1, _fixed(_I8, 1, Byte)),
    0x52: (1, _one_byte(Uint)),
    0x53: (1, _one_byte(Ulong)),
    0x54: (1, _fixed(_I8, 1, Int)),
    0x55: (1, _fixed(_I8, 1, Long)),
    0x56: (1, _boolean),
    0x60: (2, _fixed(_U16, 2, Ushort)),
    0x61: (2, _fixed(_I16, 2, Short)),
    0x70: (4, _fixed(_U32, 4, Uint)),
    0x71: (4, _fixed(_I32, 4, Int)),
    0x72: (4, _fixed(_U32, 4, Float.from_bits)),
    0x73: (4, _fixed(_U32, 4, _char)),
    0x74: (4, _raw(4, Decimal32)),
    0x80: (8, _fixed(_U64, 8, Ulong)),
    0x81: (8, _fixed(_I64, 8, Long)),
    0x82: (8, _fixed(_F64, 8, float)),
    0x83: (8, _fixed(_I64, 8, Timestamp)),
    0x84: (8, _raw(8, Decimal64)),
    0x94: (16, _raw(16, Decimal128)),
    0x98: (16, _raw(16, _uuid)),
    0xA0: (_SIZE_8, _binary8),
    0xA1: (_SIZE_8, _string8),
    0xA3: (_SIZE_8, _symbol8),
    0xB0: (_SIZE_32, _binary32),
    0xB1: (_SIZE_32, _string32),
    0xB3: (_SIZE_32, _symbol32),
    0xC0: (_SIZE_8, _framed(_items, wide=False)),
    0xC1: (_SIZE_8, _framed(_map, wide=False)),
    0xD0: (_SIZE_32, _framed(_items, wide=True)),
    0xD1: (_SIZE_32, _framed(_map, wide=True)),
    0xE0: (_SIZE_8, _framed(_array, wide=False)),
    0xF0: (_SIZE_32, _framed(_array, wide=True)),
}

_WIDTHS = [_BY_CODE[code][0] if code in _BY_CODE else _UNKNOWN for code in range(256)]
_DECODERS: list[_Decoder] = [_BY_CODE[code][1] if code in _BY_CODE else _unknown for code in range(256)]
