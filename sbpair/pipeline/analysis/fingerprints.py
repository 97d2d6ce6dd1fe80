"""64-bit hashes of whole columns of texts, and which of them occur more than once.

Eight bytes of every text are mixed in at a time. Two different texts with the same hash are possible and harmless: the
hash only chooses the rows that are then compared by their texts.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xD6E8FEB86659FD93)
_WORD = 8
_LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(_WORD)] + [2**64 - 1], dtype=np.uint64)
"""Masks that keep the first 0 to 8 bytes of a little-endian word."""


def hashes_of(texts: "pa.Array") -> "Hashes":
    """The hash of every text; none may be null."""
    import pyarrow as pa

    if not len(texts):
        return np.empty(0, dtype=np.uint64)
    _, offsets, data = texts.cast(pa.large_string()).buffers()
    places = np.frombuffer(offsets, dtype=np.int64, count=len(texts) + 1, offset=texts.offset * _WORD)
    held = np.zeros((data.size if data is not None else 0) + _WORD, dtype=np.uint8)
    if data is not None:
        held[: data.size] = np.frombuffer(data, dtype=np.uint8)
    words = np.ndarray((len(held) - _WORD + 1,), dtype="<u8", buffer=held, strides=(1,))
    starts, lengths = places[:-1], np.diff(places)
    found = lengths.astype(np.uint64) * _ODD
    for done in range(0, int(lengths.max()), _WORD):
        _mix_in(found, words, starts + done, lengths - done)
    return mixed(found)


def _mix_in(found: "Hashes", words: "Hashes", places: "NDArray[np.int64]", left: "NDArray[np.int64]") -> None:
    """Mix the word at each place into the hashes of the texts that are not over yet."""
    shortest = int(left.min())
    if shortest >= _WORD:
        found ^= words[places]
        found[:] = mixed(found)
    elif shortest > 0:
        found ^= words[places] & _LOW_BYTES[np.minimum(left, _WORD)]
        found[:] = mixed(found)
    else:
        rows = np.flatnonzero(left > 0)
        found[rows] = mixed(found[rows] ^ (words[places[rows]] & _LOW_BYTES[np.minimum(left[rows], _WORD)]))


def mixed(numbers: "Hashes") -> "Hashes":
    """The numbers with every bit spread over all bits."""
    spread = (numbers ^ (numbers >> np.uint64(32))) * _OTHER_ODD
    return spread ^ (spread >> np.uint64(29))


def share_of(hashes: "Hashes", shares: int) -> "NDArray[np.int64]":
    """Which of `shares` equal parts each hash belongs to, by its upper bits."""
    return ((hashes >> np.uint64(33)) * np.uint64(shares) >> np.uint64(31)).astype(np.int64)


def repeated(hashes: "Hashes") -> "Hashes":
    """Those that occur more than once, rising. The array is sorted in its place."""
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
