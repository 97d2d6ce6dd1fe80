"""LIKE: the same answers as trying everything, and one pass over the value whatever the pattern."""

import time
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from sbpair.sqlfilter.values import like


def tried(value: str, pattern: str) -> bool:
    """Every way there is."""

    @cache
    def rest(at: int, of: int) -> bool:
        if of == len(pattern):
            return at == len(value)
        if pattern[of] == "%":
            return any(rest(later, of + 1) for later in range(at, len(value) + 1))
        return at < len(value) and pattern[of] in ("_", value[at]) and rest(at + 1, of + 1)

    return rest(0, 0)


@given(st.text(alphabet="ab\n", max_size=12), st.text(alphabet="ab\n%_", max_size=8))
def test_it_finds_what_trying_everything_finds(value: str, pattern: str) -> None:
    assert like(value, pattern, None) is tried(value, pattern)


def test_two_hundred_patterns_over_a_large_value_take_moments() -> None:
    value = "a" * 50_000
    patterns = ["%" + "a%" * 30 + f"{number}" for number in range(100)] + [f"%b%{number}%" for number in range(100)]
    begun = time.process_time()
    assert not any(like(value, pattern, None) for pattern in patterns)
    assert time.process_time() - begun < 1.0
