"""Arithmetic on whole columns: names as codes, rows in groups, sums and extremes per group. No loop over rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_DENSE_GROUPS = 1 << 22
"""Up to so many possible groups they are counted in a table; beyond, sorted."""
_ROW_BITS = 32


@dataclass(frozen=True, slots=True)
class Coded:
    """A column as codes from 0 to `size` - 1."""

    codes: "Numbers"
    size: int
    _values: Any
    """Arrow array of the names (the last code is null), or the number that code 0 stands for."""

    def decoded(self, codes: "Numbers") -> "pa.Array":
        """What the codes stand for."""
        import pyarrow as pa

        if isinstance(self._values, int):
            numbers = codes + self._values
            return pa.array(numbers, mask=codes == self.size - 1)
        return self._values.take(pa.array(codes))

    def picked(self, rows: "NDArray[Any] | slice") -> "Coded":
        """Some rows of the column."""
        return Coded(self.codes[rows], self.size, self._values)


def coded_names(column: "pa.ChunkedArray") -> Coded:
    """A column of texts or booleans."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    names = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
    codes = array.indices.cast(pa.int64()).fill_null(len(names) - 1).to_numpy()
    return Coded(codes, len(names), names)


def coded_numbers(numbers: "Numbers", there: "NDArray[np.bool_] | None" = None) -> Coded:
    """A column of whole numbers that lie close together; `there` is false where the value is null."""
    known = numbers if there is None else numbers[there]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    codes = numbers - low
    size = high - low + 2
    return Coded(codes if there is None else np.where(there, codes, size - 1), size, low)


class Groups:
    """Rows with equal keys together."""

    def __init__(self, keys: Sequence[Coded]) -> None:
        self._keys = keys
        combined = keys[0].codes
        possible = keys[0].size
        for key in keys[1:]:
            combined = combined * key.size + key.codes
            possible *= key.size
        if possible <= _DENSE_GROUPS:
            counted = np.bincount(combined, minlength=possible)
            present = np.flatnonzero(counted)
            places = np.empty(possible, dtype=np.int64)
            places[present] = np.arange(len(present))
            self.of_row: Numbers = places[combined]
        else:
            present, self.of_row = np.unique(combined, return_inverse=True)
        self._present: Numbers = present.astype(np.int64, copy=False)
        self.count = len(present)

    def keys(self) -> "list[pa.Array]":
        """The key columns, one value a group."""
        rest, found = self._present, []
        for key in reversed(self._keys):
            found.append(key.decoded(rest % key.size))
            rest = rest // key.size
        return found[::-1]

    def rows(self) -> "Numbers":
        """How many rows each group has."""
        return np.bincount(self.of_row, minlength=self.count)

    def sums(self, numbers: "NDArray[Any]") -> "Numbers":
        """Exact up to 2^53."""
        return np.bincount(self.of_row, weights=numbers, minlength=self.count).astype(np.int64)

    def lowest(self, numbers: "Numbers") -> "Numbers":
        found = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(found, self.of_row, numbers)
        return found

    def highest(self, numbers: "Numbers") -> "Numbers":
        found = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(found, self.of_row, numbers)
        return found

    def together(self) -> tuple["Numbers", "Numbers"]:
        """(rows, starts): all rows, those of a group together in their present order; where each group starts."""
        marked = (self.of_row << _ROW_BITS) | np.arange(len(self.of_row), dtype=np.int64)
        marked.sort()
        rows = marked & ((1 << _ROW_BITS) - 1)
        starts = np.concatenate(([0], np.cumsum(self.rows())[:-1]))
        return rows, starts.astype(np.int64)
