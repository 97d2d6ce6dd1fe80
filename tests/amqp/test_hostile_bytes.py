"""Small inputs that try to cost much: they must fail fast, with AmqpDecodeError and in little memory."""

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from sbpair.amqp.decoding import MAX_DEPTH, MAX_ITEMS, decode_all, skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import scan
from sbpair.amqp.types import AmqpDecodeError, Array, Described

MEGABYTE = 1_000_000


def _nested(levels: int, wrap: Callable[[bytes], bytes]) -> bytes:
    raw = b"\x40"
    for _ in range(levels):
        raw = wrap(raw)
    return raw


def _in_list(raw: bytes) -> bytes:
    return b"\xd0" + struct.pack(">II", len(raw) + 4, 1) + raw


def _in_map(raw: bytes) -> bytes:
    return b"\xd1" + struct.pack(">II", len(raw) + 5, 2) + b"\x41" + raw


def _in_described(raw: bytes) -> bytes:
    return b"\x00\x41" + raw


def _as_descriptor(raw: bytes) -> bytes:
    return b"\x00" + raw + b"\x41"


def _in_array(raw: bytes) -> bytes:
    constructor, body = raw[:1], raw[1:]
    return b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + constructor + body


WRAPS = [_in_list, _in_map, _in_described, _as_descriptor, _in_array]


@pytest.mark.parametrize("wrap", WRAPS)
def test_depth_is_bounded_and_the_bound_is_reached(wrap: Callable[[bytes], bytes]) -> None:
    deepest = _nested(MAX_DEPTH, wrap)
    assert encode(decode_all(deepest))
    with pytest.raises(AmqpDecodeError, match="nested"):
        decode_all(_nested(MAX_DEPTH + 1, wrap))


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_depth_bomb_is_refused(wrap: Callable[[bytes], bytes]) -> None:
    bomb = _nested(3_000, wrap)
    with pytest.raises(AmqpDecodeError, match="nested"):
        decode_all(bomb)
    assert skip(bomb, 0) == len(bomb)


@pytest.mark.parametrize("start", ["00", "c0ffff", "e00300", "e0ff0100"])
def test_endless_openings_are_refused(start: str) -> None:
    bomb = bytes.fromhex(start) * 10_000 + b"\x00" * MEGABYTE
    with pytest.raises(AmqpDecodeError):
        decode_all(bomb)
    with pytest.raises(AmqpDecodeError):
        scan(bomb)
    with pytest.raises(AmqpDecodeError):
        skip(b"\x00" * MEGABYTE, 0)


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_an_array_of_nothing_is_bounded(code: int) -> None:
    def array_of(count: int) -> bytes:
        return b"\xf0" + struct.pack(">IIB", 5, count, code)

    decoded = decode_all(array_of(MAX_ITEMS))
    assert isinstance(decoded, Array)
    assert len(decoded.items) == MAX_ITEMS
    for count in (MAX_ITEMS + 1, 2**32 - 1):
        with pytest.raises(AmqpDecodeError, match="width"):
            decode_all(array_of(count))


def test_many_arrays_of_nothing_share_one_bound() -> None:
    one = b"\xf0" + struct.pack(">IIB", 5, MAX_ITEMS, 0x45)
    count = MEGABYTE // len(one)
    bomb = b"\xd0" + struct.pack(">II", 4 + count * len(one), count) + one * count
    assert _peak_memory_bytes_of_refusing(bomb) < 30 * MEGABYTE


def test_small_arrays_of_nothing_share_the_bound_too() -> None:
    element = b"\x02\xff\x40"  # size 2, 255 nulls
    count = MEGABYTE // len(element)
    bomb = b"\xf0" + struct.pack(">IIB", 5 + count * len(element), count, 0xE0) + element * count
    assert _peak_memory_bytes_of_refusing(bomb) < 30 * MEGABYTE


@pytest.mark.parametrize("code", [0x50, 0x98, 0xA1, 0xB0, 0xC0, 0xD1, 0xE0, 0xF0])
def test_a_count_beyond_the_bytes_is_refused_before_anything_is_made(code: int) -> None:
    bomb = b"\xf0" + struct.pack(">IIB", 5, 2**32 - 1, code)
    assert _peak_memory_bytes_of_refusing(bomb) < MEGABYTE


@pytest.mark.parametrize("code", [0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0])
def test_a_size_beyond_the_bytes_is_refused_before_anything_is_made(code: int) -> None:
    bomb = struct.pack(">BII", code, 2**32 - 1, 2**32 - 2)
    assert _peak_memory_bytes_of_refusing(bomb) < MEGABYTE
    with pytest.raises(AmqpDecodeError):
        skip(bomb, 0)


def test_a_list_of_a_million_nulls_is_no_bomb() -> None:
    raw = b"\xd0" + struct.pack(">II", MEGABYTE + 4, MEGABYTE) + b"\x40" * MEGABYTE
    assert decode_all(raw) == [None] * MEGABYTE


def test_an_array_with_many_descriptors_is_bounded() -> None:
    levels = 10_000
    content = b"\x00\x41" * levels + b"\x40"
    raw = b"\xf0" + struct.pack(">II", len(content) + 4, 1) + content
    with pytest.raises(AmqpDecodeError, match="nested"):
        decode_all(raw)


def test_a_described_key_that_cannot_be_hashed_is_kept() -> None:
    raw = encode([Described("a", [])])
    as_map = b"\xc1\x07\x02" + raw[3:] + b"\x40"
    assert decode_all(as_map) == ((Described("a", []), None),)


def _peak_memory_bytes_of_refusing(bomb: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(AmqpDecodeError):
            decode_all(bomb)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
