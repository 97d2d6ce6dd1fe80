"""Each constructor of the AMQP 1.0 type tables (§1.6), with bytes written down by hand."""

import copy
import pickle
from enum import IntEnum, StrEnum
from uuid import UUID

import pytest

from sbpair.amqp.decoding import decode, decode_all, skip
from sbpair.amqp.encoding import encode, encode_into
from sbpair.amqp.types import (
    AmqpDecodeError,
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
    describe,
    same,
)

SIXTEEN = bytes(range(16))

# (bytes, value) where the bytes are the shortest form, so that both directions must hold.
SHORTEST = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("50 ff", Ubyte(255)),
    ("60 0102", Ushort(258)),
    ("43", Uint(0)),
    ("52 01", Uint(1)),
    ("52 ff", Uint(255)),
    ("70 00000100", Uint(256)),
    ("70 ffffffff", Uint(2**32 - 1)),
    ("44", Ulong(0)),
    ("53 10", Ulong(16)),
    ("80 0000000000000100", Ulong(256)),
    ("80 ffffffffffffffff", Ulong(2**64 - 1)),
    ("51 80", Byte(-128)),
    ("61 8000", Short(-32768)),
    ("54 00", Int(0)),
    ("54 80", Int(-128)),
    ("71 ffffff7f", Int(-129)),
    ("71 7fffffff", Int(2**31 - 1)),
    ("55 ff", Long(-1)),
    ("81 0000000000000080", Long(128)),
    ("81 8000000000000000", Long(-(2**63))),
    ("72 3fc00000", Float(1.5)),
    ("72 ff800000", Float(float("-inf"))),
    ("72 7f800001", Float.from_bits(0x7F800001)),  # a signalling NaN, which a trip through double would change
    ("82 3ff8000000000000", 1.5),
    ("82 8000000000000000", -0.0),
    ("74 22500001", Decimal32(bytes.fromhex("22500001"))),
    ("84 2238000000000001", Decimal64(bytes.fromhex("2238000000000001"))),
    ("94 000102030405060708090a0b0c0d0e0f", Decimal128(SIXTEEN)),
    ("73 00000041", Char("A")),
    ("73 0001f600", Char("\U0001f600")),
    ("73 0000d83d", Char("\ud83d")),
    ("83 00000142ec8b9bdd", Timestamp(0x142EC8B9BDD)),
    ("83 ffffffffffffffff", Timestamp(-1)),
    ("98 000102030405060708090a0b0c0d0e0f", UUID(bytes=SIXTEEN)),
    ("a0 00", b""),
    ("a0 02 00ff", b"\x00\xff"),
    ("b0 00000100" + "07" * 256, b"\x07" * 256),
    ("a1 03 e282ac", "\u20ac"),
    ("b1 00000100" + "61" * 256, "a" * 256),
    ("a3 03 616263", Symbol("abc")),
    ("b3 00000100" + "61" * 256, Symbol("a" * 256)),
    ("45", []),
    ("c0 04 02 40 5205", [None, Uint(5)]),
    ("d0 00000104 00000100" + "40" * 256, [None] * 256),
    ("c1 01 00", {}),
    ("c1 06 02 a10161 5505", {"a": Long(5)}),
    ("c1 09 04 a10161 40 a30161 41", MapPairs((("a", None), (Symbol("a"), True)))),
    ("c1 06 02 c00201 40 40", MapPairs((([None], None),))),
    ("e0 06 02 a3 0161 0162", Array(0xA3, (Symbol("a"), Symbol("b")))),
    ("e0 02 00 a1", Array(0xA1, ())),
    ("e0 04 02 56 01 00", Array(0x56, (True, False))),
    ("e0 01 00", Array(0x00, ())),
    ("e0 02 ff 40", Array(0x40, (None,) * 255)),
    ("f0 00000005 00000100 43", Array(0x43, (Uint(0),) * 256)),
    ("e0 0a 02 e0 03 01 50 07 03 01 50 08", Array(0xE0, (Array(0x50, (Ubyte(7),)), Array(0x50, (Ubyte(8),))))),
    ("e0 06 01 00 5301 54 05", Array(0x54, (Int(5),), Ulong(1))),
    ("e0 09 01 00 5301 00 5302 54 05", Array(0x54, (Int(5),), Descriptors((Ulong(1), Ulong(2))))),
    ("e0 05 01 00 40 54 05", Array(0x54, (Int(5),), Descriptors((None,)))),
    ("00 5373 c0 02 01 40", Described(Ulong(0x73), [None])),
    ("00 a3 01 61 00 a3 01 62 40", Described(Symbol("a"), Described(Symbol("b"), None))),
]

# Forms that are right but not the shortest: they decode, and are written shorter.
LONGER = [
    ("56 01", True),
    ("56 00", False),
    ("70 00000000", Uint(0)),
    ("52 00", Uint(0)),
    ("80 0000000000000001", Ulong(1)),
    ("53 00", Ulong(0)),
    ("71 00000001", Int(1)),
    ("81 0000000000000001", Long(1)),
    ("b0 00000001 07", b"\x07"),
    ("b1 00000001 61", "a"),
    ("b3 00000001 61", Symbol("a")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000005 00000001 40", [None]),
    ("d1 00000006 00000002 40 41", {None: True}),
    ("f0 00000007 00000002 50 01 02", Array(0x50, (Ubyte(1), Ubyte(2)))),
]

# One array for each remaining element constructor.
ARRAYS = [
    ("e0 02 02 41", Array(0x41, (True, True))),
    ("e0 02 02 42", Array(0x42, (False, False))),
    ("e0 02 02 44", Array(0x44, (Ulong(0), Ulong(0)))),
    ("e0 02 02 45", Array(0x45, ([], []))),
    ("e0 03 01 51 ff", Array(0x51, (Byte(-1),))),
    ("e0 03 01 52 05", Array(0x52, (Uint(5),))),
    ("e0 03 01 53 05", Array(0x53, (Ulong(5),))),
    ("e0 03 01 54 ff", Array(0x54, (Int(-1),))),
    ("e0 03 01 55 ff", Array(0x55, (Long(-1),))),
    ("e0 04 01 60 0001", Array(0x60, (Ushort(1),))),
    ("e0 04 01 61 ffff", Array(0x61, (Short(-1),))),
    ("e0 06 01 70 00000001", Array(0x70, (Uint(1),))),
    ("e0 06 01 71 ffffffff", Array(0x71, (Int(-1),))),
    ("e0 06 01 72 7fa00001", Array(0x72, (Float.from_bits(0x7FA00001),))),
    ("e0 06 01 73 00000041", Array(0x73, (Char("A"),))),
    ("e0 06 01 74 01020304", Array(0x74, (Decimal32(b"\1\2\3\4"),))),
    ("e0 0a 01 80 0000000000000001", Array(0x80, (Ulong(1),))),
    ("e0 0a 01 81 ffffffffffffffff", Array(0x81, (Long(-1),))),
    ("e0 0a 01 82 3ff8000000000000", Array(0x82, (1.5,))),
    ("e0 0a 01 83 0000000000000001", Array(0x83, (Timestamp(1),))),
    ("e0 0a 01 84 0102030405060708", Array(0x84, (Decimal64(bytes(range(1, 9))),))),
    ("e0 12 01 94 000102030405060708090a0b0c0d0e0f", Array(0x94, (Decimal128(SIXTEEN),))),
    ("e0 12 01 98 000102030405060708090a0b0c0d0e0f", Array(0x98, (UUID(bytes=SIXTEEN),))),
    ("e0 04 01 a0 01 07", Array(0xA0, (b"\x07",))),
    ("e0 04 01 a1 01 61", Array(0xA1, ("a",))),
    ("e0 07 01 b0 00000001 07", Array(0xB0, (b"\x07",))),
    ("e0 07 01 b1 00000001 61", Array(0xB1, ("a",))),
    ("e0 07 01 b3 00000001 61", Array(0xB3, (Symbol("a"),))),
    ("e0 05 01 c0 02 01 40", Array(0xC0, ([None],))),
    ("e0 06 01 c1 03 02 40 41", Array(0xC1, ({None: True},))),
    ("e0 0b 01 d0 00000005 00000001 40", Array(0xD0, ([None],))),
    ("e0 0c 01 d1 00000006 00000002 40 41", Array(0xD1, ({None: True},))),
    ("e0 0c 01 f0 00000006 00000001 50 07", Array(0xF0, (Array(0x50, (Ubyte(7),)),))),
]


def _name(parameter: object) -> str:
    return parameter[:24] if isinstance(parameter, str) else type(parameter).__name__


@pytest.mark.parametrize(("golden", "value"), SHORTEST + LONGER + ARRAYS, ids=_name)
def test_bytes_decode_to_the_value(golden: str, value: object) -> None:
    raw = bytes.fromhex(golden)
    decoded = decode_all(raw)
    assert same(decoded, value), f"{decoded!r}"
    assert skip(raw, 0) == len(raw)
    assert same(decode_all(memoryview(raw)), value)


@pytest.mark.parametrize(("golden", "value"), SHORTEST + ARRAYS, ids=_name)
def test_the_value_encodes_to_the_shortest_bytes(golden: str, value: object) -> None:
    assert encode(value) == bytes.fromhex(golden)


@pytest.mark.parametrize(("golden", "value"), LONGER, ids=_name)
def test_a_longer_form_is_written_shorter(golden: str, value: object) -> None:
    assert len(encode(value)) < len(bytes.fromhex(golden))
    assert same(decode_all(encode(value)), value)


@pytest.mark.parametrize(("golden", "value"), SHORTEST + LONGER + ARRAYS, ids=_name)
def test_every_cut_is_refused(golden: str, value: object) -> None:
    raw = bytes.fromhex(golden)
    for size in range(len(raw)):
        with pytest.raises(AmqpDecodeError):
            decode_all(raw[:size])
        with pytest.raises(AmqpDecodeError):
            skip(raw[:size], 0)


def test_offsets() -> None:
    raw = bytes.fromhex("5201 a10161 40")
    assert decode(raw, 2) == ("a", 5)
    assert skip(raw, 2) == 5
    with pytest.raises(AmqpDecodeError, match="follow"):
        decode_all(raw)
    for offset in (-1, 6, 7):
        with pytest.raises(AmqpDecodeError):
            decode(raw, offset)
        with pytest.raises(AmqpDecodeError):
            skip(raw, offset)


@pytest.mark.parametrize(
    "golden",
    [
        "56 02",  # a boolean that is neither
        "a1 01 ff",  # not UTF-8
        "a1 03 eda080",  # a surrogate in UTF-8
        "a3 01 80",  # not ASCII
        "73 00110000",  # beyond Unicode
        "c1 04 03 40 40 40",  # a key without value
        "c0 03 01 40 40",  # more bytes than items
        "c0 01 01 40",  # an item past the end of the list
        "c0 00 00",  # a size that does not reach over the count
        "d0 00000003 00000000",
        "e0 03 01 3f 00",  # an unknown constructor of elements
        "e0 02 00 3f",
        "3f",
        "ff",
    ],
)
def test_wrong_bytes_are_refused(golden: str) -> None:
    with pytest.raises(AmqpDecodeError):
        decode_all(bytes.fromhex(golden))


@pytest.mark.parametrize(
    "value",
    [
        5,
        Ubyte(256),
        Ubyte(-1),
        Ushort(65536),
        Uint(2**32),
        Uint(-1),
        Ulong(2**64),
        Byte(128),
        Short(-32769),
        Int(2**31),
        Long(2**63),
        Timestamp(2**63),
        Char(""),
        Char("ab"),
        Symbol("\u20ac"),
        "\ud83d",
        Decimal32(b"123"),
        Decimal64(b""),
        Decimal128(b"\0" * 17),
        pytest.param(object(), id="object"),
        ("a", "tuple"),
        [5],
        {"a": 5},
        Array(0x3F, ()),
        Array(0x00, (None,)),
        Array(0x54, (Long(1),)),
        Array(0xA1, (Symbol("a"),)),
        Array(0x52, (Uint(256),)),
        Array(0xA1, ("a" * 256,)),
        Array(0xC0, ([None] * 256,)),
        Array(0x41, (False,)),
        Array(0x43, (Uint(1),)),
        Array(0x40, (None,) * 65_537),
    ],
    ids=repr,
)
def test_values_without_a_form_are_refused_and_leave_nothing(value: object) -> None:
    out = bytearray(b"before")
    with pytest.raises(AmqpEncodeError):
        encode_into(out, [None, value])
    assert out == b"before"


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(AmqpEncodeError, match="nested"):
        encode(endless)


def test_float_refuses_what_is_too_large() -> None:
    with pytest.raises(AmqpEncodeError, match="too large"):
        Float(1e300)


def test_enums_are_what_they_are_made_of() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Number(IntEnum):
        ONE = 1

    assert encode(Colour.RED) == bytes.fromhex("a103726564")
    with pytest.raises(AmqpEncodeError, match="width"):
        encode(Number.ONE)


def test_bytearray_and_memoryview_are_binary() -> None:
    assert encode(bytearray(b"a")) == encode(memoryview(b"a")) == encode(b"a")


def test_describe_makes_a_composite() -> None:
    assert encode(describe(0x24, [])) == bytes.fromhex("00 5324 45")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Uint(1), Ulong(1)),
        (Uint(1), True),
        ("a", Symbol("a")),
        (1.0, Float(1.0)),
        (0.0, -0.0),
        (Float(0.0), Float(-0.0)),
        (Float.from_bits(0x7FC00000), Float.from_bits(0x7FC00001)),
        ([Uint(1)], [Ulong(1)]),
        ([None], [None, None]),
        ({"a": None}, {Symbol("a"): None}),
        ({"a": None, "b": None}, {"b": None, "a": None}),
        (Described(Ulong(1), None), Described(Uint(1), None)),
        (Described(Ulong(1), None), Described(Ulong(1), False)),
        (Array(0x52, (Uint(1),)), Array(0x70, (Uint(1),))),
        (Array(0x52, (), Ulong(1)), Array(0x52, (), Ulong(2))),
        (Array(0x52, (), Ulong(1)), Array(0x52, (), Descriptors((Ulong(1),)))),
        (MapPairs(((None, None),)), {None: None}),
        (b"", Decimal32(b"")),
    ],
    ids=repr,
)
def test_same_tells_apart_what_python_may_not(a: object, b: object) -> None:
    assert not same(a, b)
    assert same(a, copy.deepcopy(a))
    assert same(b, pickle.loads(pickle.dumps(b)))


def test_typed_values_read_well_in_text() -> None:
    assert f"{Uint(5)} {Symbol('a')} {Float(1.5)}" == "5 a 1.5"
    assert repr([Uint(5), Symbol("a"), Float(1.5), Char("x")]) == "[Uint(5), Symbol('a'), Float(1.5), Char('x')]"
    assert repr(Decimal32(b"1234")) == "Decimal32(b'1234')"
