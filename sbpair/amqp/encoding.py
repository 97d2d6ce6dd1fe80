"""Typed values to bytes, each in its shortest form (AMQP 1.0 §1.6).

Two tables: `_ENCODERS` by Python type writes a whole value and chooses the constructor, `_BODIES` by
constructor writes what follows it; arrays need the second, because there the constructor is given once.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from sbpair.amqp.decoding import MAX_DEPTH, MAX_ITEMS, NO_CONSTRUCTOR
from sbpair.amqp.types import (
    AmqpEncodeError,
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

_U16 = struct.Struct(">H").pack
_U32 = struct.Struct(">I").pack
_U64 = struct.Struct(">Q").pack
_I8 = struct.Struct(">b").pack
_I16 = struct.Struct(">h").pack
_I32 = struct.Struct(">i").pack
_I64 = struct.Struct(">q").pack
_F64 = struct.Struct(">d").pack

_Encoder = Callable[[bytearray, Any, int], None]
_Body = Callable[[Any, int], bytes | bytearray]


def encode(value: Any) -> bytes:
    """The value in its shortest form. Raises AmqpEncodeError, also for a plain int: say which width."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append the value to out in its shortest form; when it raises AmqpEncodeError, out is as before."""
    start = len(out)
    try:
        _write(out, value, 0)
    except AmqpEncodeError:
        del out[start:]
        raise
    except (struct.error, UnicodeEncodeError) as error:
        del out[start:]
        raise AmqpEncodeError(f"a value does not fit its AMQP type: {error}") from error


def _write(out: bytearray, value: Any, depth: int) -> None:
    kind = type(value)
    encoder = _ENCODERS.get(kind) or _ENCODERS[_wire_type(kind)]
    encoder(out, value, depth)


def _wire_type(kind: type) -> type:
    """The AMQP type a Python type stands for: itself or its nearest base that is one (StrEnum: string)."""
    for base in kind.__mro__:
        if base in _ENCODERS:
            return base
    if issubclass(kind, int):
        raise AmqpEncodeError(f"a plain int ({kind.__name__}) has no AMQP width: say Uint, Long, ...")
    raise AmqpEncodeError(f"{kind.__name__} has no AMQP 1.0 type")


# Scalars ------------------------------------------------------------------------------------------


def _null(out: bytearray, value: None, depth: int) -> None:
    out.append(0x40)


def _boolean(out: bytearray, value: bool, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _plain(code: int, body: _Body) -> _Encoder:
    """A type with only one constructor."""

    def write(out: bytearray, value: Any, depth: int) -> None:
        out.append(code)
        out += body(value, depth)

    return write


def _unsigned(zero: int, small: int, large: int, pack: Callable[[int], bytes]) -> _Encoder:
    """A type with a form for 0, one for a byte and one in full width."""

    def write(out: bytearray, value: int, depth: int) -> None:
        if value == 0:
            out.append(zero)
        elif 0 < value <= 0xFF:
            out.append(small)
            out.append(value)
        else:
            out.append(large)
            out += pack(value)

    return write


def _signed(small: int, large: int, pack: Callable[[int], bytes]) -> _Encoder:
    """A type with a form for a byte and one in full width."""

    def write(out: bytearray, value: int, depth: int) -> None:
        if -0x80 <= value <= 0x7F:
            out.append(small)
            out += _I8(value)
        else:
            out.append(large)
            out += pack(value)

    return write


def _sized(small: int, to_bytes: Callable[[Any], bytes]) -> _Encoder:
    """Binary, string or symbol: a length in 8 or 32 bits (constructor + 0x10), then the bytes."""

    def write(out: bytearray, value: Any, depth: int) -> None:
        raw = to_bytes(value)
        if len(raw) <= 0xFF:
            out.append(small)
            out.append(len(raw))
        else:
            out.append(small + 0x10)
            out += _U32(len(raw))
        out += raw

    return write


def _utf8(text: str) -> bytes:
    return text.encode("utf-8")


def _ascii(text: str) -> bytes:
    return text.encode("ascii")


def _uuid(value: UUID, depth: int) -> bytes:
    return value.bytes


def _char(value: Char, depth: int) -> bytes:
    if len(value) != 1:
        raise AmqpEncodeError(f"a char is one code point, not {len(value)}")
    return _U32(ord(value))


def _float(value: Float, depth: int) -> bytes:
    return _U32(value.bits)


def _packed(pack: Callable[[Any], bytes]) -> _Body:
    return lambda value, depth: pack(value)


def _decimal(width: int) -> _Body:
    def body(value: bytes, depth: int) -> bytes:
        if len(value) != width:
            raise AmqpEncodeError(f"a decimal{8 * width} is {width} bytes, not {len(value)}")
        return value

    return body


# Compounds ----------------------------------------------------------------------------------------


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise AmqpEncodeError(f"nested deeper than {MAX_DEPTH} levels")
    return depth + 1


def _joined(values: Iterable[Any], depth: int) -> bytearray:
    out = bytearray()
    for value in values:
        _write(out, value, depth)
    return out


def _frame(out: bytearray, small: int, count: int, content: bytearray) -> None:
    """Constructor, size, count and content; 8 bits where both numbers fit, else 32 (constructor + 0x10)."""
    if len(content) < 0xFF and count <= 0xFF:
        out += bytes((small, len(content) + 1, count))
    else:
        out.append(small + 0x10)
        out += _U32(len(content) + 4)
        out += _U32(count)
    out += content


def _list(out: bytearray, value: list[Any], depth: int) -> None:
    if value:
        _frame(out, 0xC0, len(value), _joined(value, _deeper(depth)))
    else:
        out.append(0x45)


def _flat(value: dict[Any, Any] | MapPairs) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _map(out: bytearray, value: dict[Any, Any] | MapPairs, depth: int) -> None:
    _frame(out, 0xC1, 2 * len(value), _joined(_flat(value), _deeper(depth)))


def _described(out: bytearray, value: Described, depth: int) -> None:
    inside = _deeper(depth)
    out.append(0x00)
    _write(out, value.descriptor, inside)
    _write(out, value.value, inside)


def _array(out: bytearray, value: Array, depth: int) -> None:
    _frame(out, 0xE0, len(value.items), _elements(value, _deeper(depth)))


def _elements(array: Array, depth: int) -> bytearray:
    """The constructor of an array's elements, then their bodies."""
    if array.code == NO_CONSTRUCTOR and not array.items and array.descriptor is None:
        return bytearray()
    if array.code not in _BODIES:
        raise AmqpEncodeError(f"0x{array.code:02x} is no constructor of array elements")
    kind, body = _BODIES[array.code]
    out = bytearray()
    for descriptor in _descriptors(array.descriptor):
        out.append(0x00)
        _write(out, descriptor, depth)
    out.append(array.code)
    start = len(out)
    for item in array.items:
        if not _is_wire(item, kind):
            raise AmqpEncodeError(f"{item!r} cannot be an element of an array of 0x{array.code:02x}")
        out += body(item, depth)
    if len(out) == start and len(array.items) > MAX_ITEMS:
        raise AmqpEncodeError(f"more than {MAX_ITEMS} array elements without width")
    return out


def _descriptors(descriptor: Any) -> Sequence[Any]:
    if descriptor is None:
        return ()
    return descriptor if isinstance(descriptor, Descriptors) else (descriptor,)


def _is_wire(item: Any, kind: tuple[type, ...]) -> bool:
    return type(item) in kind or _wire_type(type(item)) in kind


# Bodies of array elements: what follows the constructor -------------------------------------------


def _nothing(only: Any) -> _Body:
    """An element without width: the constructor is the value."""

    def body(value: Any, depth: int) -> bytes:
        if value != only:
            raise AmqpEncodeError(f"{value!r} cannot be an element of an array of {only!r} only")
        return b""

    return body


def _sized_body(to_bytes: Callable[[Any], bytes], *, wide: bool) -> _Body:
    def body(value: Any, depth: int) -> bytes:
        raw = to_bytes(value)
        return (_U32(len(raw)) if wide else _octet(len(raw))) + raw

    return body


def _framed_body(content: Callable[[Any, int], tuple[int, bytearray]], *, wide: bool) -> _Body:
    def body(value: Any, depth: int) -> bytes:
        count, inner = content(value, _deeper(depth))
        if wide:
            return _U32(len(inner) + 4) + _U32(count) + inner
        return _octet(len(inner) + 1) + _octet(count) + inner

    return body


def _octet(number: int) -> bytes:
    if not 0 <= number <= 0xFF:
        raise AmqpEncodeError(f"{number} does not fit the 8 bits that the constructor of the array gives it")
    return bytes((number,))


def _one_octet(value: int, depth: int) -> bytes:
    return _octet(value)


def _list_content(value: list[Any], depth: int) -> tuple[int, bytearray]:
    return len(value), _joined(value, depth)


def _map_content(value: dict[Any, Any] | MapPairs, depth: int) -> tuple[int, bytearray]:
    return 2 * len(value), _joined(_flat(value), depth)


def _array_content(value: Array, depth: int) -> tuple[int, bytearray]:
    return len(value.items), _elements(value, depth)


# The tables ---------------------------------------------------------------------------------------

_ENCODERS: dict[type, _Encoder] = {
    type(None): _null,
    bool: _boolean,
    Ubyte: _plain(0x50, _one_octet),
    Ushort: _plain(0x60, _packed(_U16)),
    Uint: _unsigned(0x43, 0x52, 0x70, _U32),
    Ulong: _unsigned(0x44, 0x53, 0x80, _U64),
    Byte: _plain(0x51, _packed(_I8)),
    Short: _plain(0x61, _packed(_I16)),
    Int: _signed(0x54, 0x71, _I32),
    Long: _signed(0x55, 0x81, _I64),
    Float: _plain(0x72, _float),
    float: _plain(0x82, _packed(_F64)),
    Decimal32: _plain(0x74, _decimal(4)),
    Decimal64: _plain(0x84, _decimal(8)),
    Decimal128: _plain(0x94, _decimal(16)),
    Char: _plain(0x73, _char),
    Timestamp: _plain(0x83, _packed(_I64)),
    UUID: _plain(0x98, _uuid),
    bytes: _sized(0xA0, bytes),
    bytearray: _sized(0xA0, bytes),
    memoryview: _sized(0xA0, bytes),
    str: _sized(0xA1, _utf8),
    Symbol: _sized(0xA3, _ascii),
    list: _list,
    dict: _map,
    MapPairs: _map,
    Array: _array,
    Described: _described,
}

_BINARY = (bytes, bytearray, memoryview)
_MAP = (dict, MapPairs)

_BODIES: dict[int, tuple[tuple[type, ...], _Body]] = {
    0x40: ((type(None),), _nothing(None)),
    0x41: ((bool,), _nothing(True)),
    0x42: ((bool,), _nothing(False)),
    0x43: ((Uint,), _nothing(0)),
    0x44: ((Ulong,), _nothing(0)),
    0x45: ((list,), _nothing([])),
    0x50: ((Ubyte,), _one_octet),
    0x51: ((Byte,), _packed(_I8)),
    0x52: ((Uint,), _one_octet),
    0x53: ((Ulong,), _one_octet),
    0x54: ((Int,), _packed(_I8)),
    0x55: ((Long,), _packed(_I8)),
    0x56: ((bool,), _one_octet),
    0x60: ((Ushort,), _packed(_U16)),
    0x61: ((Short,), _packed(_I16)),
    0x70: ((Uint,), _packed(_U32)),
    0x71: ((Int,), _packed(_I32)),
    0x72: ((Float,), _float),
    0x73: ((Char,), _char),
    0x74: ((Decimal32,), _decimal(4)),
    0x80: ((Ulong,), _packed(_U64)),
    0x81: ((Long,), _packed(_I64)),
    0x82: ((float,), _packed(_F64)),
    0x83: ((Timestamp,), _packed(_I64)),
    0x84: ((Decimal64,), _decimal(8)),
    0x94: ((Decimal128,), _decimal(16)),
    0x98: ((UUID,), _uuid),
    0xA0: (_BINARY, _sized_body(bytes, wide=False)),
    0xA1: ((str,), _sized_body(_utf8, wide=False)),
    0xA3: ((Symbol,), _sized_body(_ascii, wide=False)),
    0xB0: (_BINARY, _sized_body(bytes, wide=True)),
    0xB1: ((str,), _sized_body(_utf8, wide=True)),
    0xB3: ((Symbol,), _sized_body(_ascii, wide=True)),
    0xC0: ((list,), _framed_body(_list_content, wide=False)),
    0xC1: (_MAP, _framed_body(_map_content, wide=False)),
    0xD0: ((list,), _framed_body(_list_content, wide=True)),
    0xD1: (_MAP, _framed_body(_map_content, wide=True)),
    0xE0: ((Array,), _framed_body(_array_content, wide=False)),
    0xF0: ((Array,), _framed_body(_array_content, wide=True)),
}
