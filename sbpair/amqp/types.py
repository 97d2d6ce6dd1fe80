"""The AMQP 1.0 type system as Python values that forget nothing (AMQP 1.0 §1.1, §1.6).

Types that Python has are used as they are: `None`, `bool`, `str` (string), `bytes` (binary), `uuid.UUID`,
`float` (double), `list` and `dict` (map). Everything else gets a thin class of its own, mostly a subclass of
what it resembles, so that `Uint(5) == 5` and `Symbol("a") == "a"` hold and look-ups in maps stay simple.
Where the AMQP type matters, compare with `same`, which is strict about type and bits.

A plain `int` is not an AMQP value: it does not say how wide it is.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_BITS32 = struct.Struct(">I")


class AmqpError(ValueError):
    """Something is wrong with an AMQP value or with the bytes that claim to be one."""


class AmqpDecodeError(AmqpError):
    """The bytes are not what AMQP 1.0 says they must be."""


class AmqpEncodeError(AmqpError):
    """The value has no AMQP 1.0 form, or does not fit the type it names."""


class _Integer(int):
    """An integer that knows its AMQP width. Its range is checked when it is encoded."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int.__repr__(self)})"

    __str__ = int.__repr__


class Ubyte(_Integer):
    """Unsigned, 8 bits."""

    __slots__ = ()


class Ushort(_Integer):
    """Unsigned, 16 bits."""

    __slots__ = ()


class Uint(_Integer):
    """Unsigned, 32 bits."""

    __slots__ = ()


class Ulong(_Integer):
    """Unsigned, 64 bits."""

    __slots__ = ()


class Byte(_Integer):
    """Signed, 8 bits."""

    __slots__ = ()


class Short(_Integer):
    """Signed, 16 bits."""

    __slots__ = ()


class Int(_Integer):
    """Signed, 32 bits."""

    __slots__ = ()


class Long(_Integer):
    """Signed, 64 bits."""

    __slots__ = ()


class Timestamp(_Integer):
    """Milliseconds since 1970-01-01T00:00:00Z, signed, 64 bits (AMQP 1.0 §1.6.17)."""

    __slots__ = ()


class Float(float):
    """A 32 bit float. `bits` are its exact bits, because the way through a double changes some NaNs.

    `Float(x)` rounds x to the nearest 32 bit float and raises AmqpEncodeError when x is too large for one.
    """

    __slots__ = ("bits",)
    bits: int

    def __new__(cls, value: float) -> Self:
        if isinstance(value, Float):
            return cls.from_bits(value.bits)
        try:
            return cls.from_bits(_BITS32.unpack(_FLOAT.pack(value))[0])
        except OverflowError as error:
            raise AmqpEncodeError(f"{value!r} is too large for a 32 bit float") from error

    @classmethod
    def from_bits(cls, bits: int) -> Self:
        """The float with these 32 bits."""
        made = super().__new__(cls, _FLOAT.unpack(_BITS32.pack(bits))[0])
        made.bits = bits
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bits, (self.bits,)

    def __repr__(self) -> str:
        return f"Float({float.__repr__(self)})"

    __str__ = float.__repr__


class Char(str):
    """One Unicode code point (AMQP 1.0 §1.6.16).

    A lone surrogate is allowed: a .NET `char` is a UTF-16 unit and travels as one.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


class Symbol(str):
    """A symbolic name in ASCII (AMQP 1.0 §1.6.21)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str.__repr__(self)})"


class _Decimal(bytes):
    """An IEEE 754 decimal as its bytes, big endian. Never read as a number, so never changed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes.__repr__(self)})"


class Decimal32(_Decimal):
    """4 bytes."""

    __slots__ = ()


class Decimal64(_Decimal):
    """8 bytes."""

    __slots__ = ()


class Decimal128(_Decimal):
    """16 bytes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that says what it means (AMQP 1.0 §1.2)."""

    descriptor: Any
    value: Any


def describe(code: int, fields: list[Any]) -> Described:
    """The composite (AMQP 1.0 §1.4) with this ulong as descriptor; fields may leave out trailing nulls."""
    return Described(Ulong(code), fields)


class Descriptors(tuple[Any, ...]):
    """What `Array.descriptor` is when one bare one will not do: several, outermost first, or null."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Array:
    """Values that share one constructor (AMQP 1.0 §1.6.24).

    `code` is the constructor of the elements (0xA1 string up to 255 bytes, 0x98 uuid, ...), `items` are the
    elements as bare values, and `descriptor` describes each of them when it is not None. An empty array may
    come without any constructor, as some clients write it; its code is 0x00.
    """

    code: int
    items: tuple[Any, ...]
    descriptor: Any = None


class MapPairs(tuple[tuple[Any, Any], ...]):
    """A map that a `dict` cannot hold, because two keys are equal in Python or one cannot be hashed.

    For example a map with the keys string "a" and symbol "a". It is a tuple of (key, value) pairs.
    """

    __slots__ = ()

    def items(self) -> Iterable[tuple[Any, Any]]:
        """The pairs in their order, the way `dict.items` gives them."""
        return self


def same(a: object, b: object) -> bool:
    """True when both are the same AMQP value: same type and same value all the way down.

    Floats are compared by their bits, so a NaN equals itself and 0.0 differs from -0.0. Maps are ordered
    (AMQP 1.0 §1.6.23), so the same entries in another order make another map.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, Float) and isinstance(b, Float):
        return a.bits == b.bits
    if isinstance(a, float) and isinstance(b, float):
        return _DOUBLE.pack(a) == _DOUBLE.pack(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return _all_same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return _all_same(a, b)
    if isinstance(a, Described) and isinstance(b, Described):
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    if isinstance(a, Array) and isinstance(b, Array):
        return a.code == b.code and same(a.descriptor, b.descriptor) and _all_same(a.items, b.items)
    return a == b


def _all_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))
