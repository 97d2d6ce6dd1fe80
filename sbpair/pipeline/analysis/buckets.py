"""Sizes and times to live in buckets: exact below 16, above with 16 buckets to each power of two (6 % wide at most).

A percentile out of buckets is their upper end, so it is never too small and at most 6 % too large. The SQL form and the
form for whole columns give the same bucket for every number from 0 to 2^53.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PARTS = 16
_PARTS_BITS = 4


def bucket_sql(number: str) -> str:
    """SQL expression of the bucket of a non-negative whole number."""
    rough = f"cast(floor(log2({number})) as int)"
    power = (
        f"case when shiftleft(1L, {rough}) > {number} then {rough} - 1 "
        f"when shiftleft(1L, {rough} + 1) <= {number} then {rough} + 1 else {rough} end"
    )
    part = f"(shiftright({number}, ({power}) - {_PARTS_BITS}) & {_PARTS - 1})"
    above = f"({_PARTS} + (({power}) - {_PARTS_BITS}) * {_PARTS} + {part})"
    return f"case when {number} < {_PARTS} then cast({number} as bigint) else cast({above} as bigint) end"


def bucket_of(numbers: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """The bucket of every number of a column."""
    import numpy as np

    _, exponents = np.frexp(numbers.astype(np.float64))
    shift = np.maximum(exponents.astype(np.int64) - 1 - _PARTS_BITS, 0)
    above = _PARTS + shift * _PARTS + ((numbers >> shift) & (_PARTS - 1))
    return np.where(numbers < _PARTS, numbers, above)


def lowest_sql(bucket: str) -> str:
    """SQL expression of the lowest number in a bucket."""
    shift = f"cast(floor(({bucket} - {_PARTS}) / {_PARTS}) as int)"
    return f"case when {bucket} < {_PARTS} then {bucket} else shiftleft({_PARTS}L + {bucket} % {_PARTS}, {shift}) end"


def highest_sql(bucket: str) -> str:
    """SQL expression of the highest number in a bucket."""
    return f"({lowest_sql(f'({bucket} + 1)')} - 1)"
