"""Arithmetic, comparison and pattern matching of rule values; UNKNOWN in, UNKNOWN out.

Integers are 64 bit, decimal and exponent constants are doubles; integers widen to doubles beside one. `+` joins
strings.
Values of unlike types are unequal and have no order (UNKNOWN). Strings compare by code point, with case.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


class FilterSyntaxError(ValueError):
    """The text of a filter or action cannot be parsed; the message says where and what was expected."""


class FilterEvaluationError(Exception):
    """A filter or action cannot be evaluated for a message: unknown system property, division by zero, wrong type."""


# Words of a SQL rule expression: constants, names (plain, [delimited], "delimited"), operators, parameters.

KEYWORDS = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE", "SET", "REMOVE"}
)

_TOKEN = re.compile(
    r"""\s+
    | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>\[(?:[^\]]|\]\])+\]|"(?:[^"]|"")+")
    | (?P<parameter>@[^\W\d]\w*)
    | (?P<word>[^\W\d]\w*)
    | (?P<symbol><>|!=|<=|>=|[=<>+\-*/%(),.;])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word. `kind`: number, string, name (delimited), parameter, word (plain name), keyword, symbol, end."""

    kind: str
    text: str
    position: int


def tokenize(text: str) -> list[Token]:
    """All words with a final `end`; FilterSyntaxError at the first character that starts none."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise FilterSyntaxError(f"Unexpected character '{text[position]}' at position {position} in '{text}'.")
        if match.lastgroup is not None:
            tokens.append(_token(match.lastgroup, match.group(), position))
        position = match.end()
    tokens.append(Token("end", "", position))
    return tokens


def _token(kind: str, text: str, position: int) -> Token:
    if kind == "string":
        return Token(kind, text[1:-1].replace("''", "'"), position)
    if kind == "name":
        closing = text[-1]
        return Token(kind, text[1:-1].replace(closing * 2, closing), position)
    if kind == "word" and text.upper() in KEYWORDS:
        return Token("keyword", text.upper(), position)
    return Token(kind, text, position)


class _Unknown:
    """The third truth value: what comparing with an absent property gives."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("unknown is neither true nor false")


UNKNOWN = _Unknown()


def joined(answers: Sequence[object], decides: bool) -> object:
    """AND, where one that is false decides over unknown; or OR, where one that is true does."""
    if any(answer is decides for answer in answers):
        return decides
    return not decides if all(answer is (not decides) for answer in answers) else UNKNOWN


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_CALCULATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod
}  # fmt: skip


def compare(sign: str, left: object, right: object) -> object:
    """One of = <> != < <= > >=."""
    if left is UNKNOWN or right is UNKNOWN or left is None or right is None:
        return UNKNOWN
    kind = _kind(left)
    alike = kind is _kind(right)
    if sign not in _ORDERS:
        return (alike and bool(left == right)) is (sign == "=")
    return _ORDERS[sign](left, right) if alike and kind in (float, str, bytes) else UNKNOWN


def _kind(value: object) -> type:
    """Its type, of which Python may have kinds; all numbers are of one."""
    found = next((one for one in (bool, int, float, str, bytes) if isinstance(value, one)), type(value))
    return float if found is int else found


def arithmetic(sign: str, left: Any, right: Any) -> object:
    """One of + - * / %. FilterEvaluationError for other types and for division of integers by zero."""
    if left is UNKNOWN or right is UNKNOWN or left is None or right is None:
        return UNKNOWN
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return str(left) + str(right)
    if not _kind(left) is _kind(right) is float:
        raise FilterEvaluationError(f"The operator '{sign}' cannot be applied to {left!r} and {right!r}.")
    try:
        if isinstance(left, float) or isinstance(right, float):
            return _CALCULATES[sign](float(left), float(right))
        result = _integer(sign, int(left), int(right))
    except ZeroDivisionError as error:
        raise FilterEvaluationError("Division by zero.") from error
    if not -(2**63) <= result < 2**63:
        raise FilterEvaluationError("The result does not fit into 64 bits.")
    return result


def _integer(sign: str, left: int, right: int) -> int:
    """Division is cut towards zero, and its remainder has the sign of `left`."""
    if sign not in "/%":
        return int(_CALCULATES[sign](left, right))
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return quotient if sign == "/" else left - right * quotient


def like(value: object, pattern: object, escape: object) -> object:
    """LIKE with `%` and `_`; `escape` is the character that takes their meaning away, or None."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return UNKNOWN
    return _matches(_stretches(pattern, escape if isinstance(escape, str) else None), str(value))


def like_steps(value: object, pattern: object) -> int:
    """The most characters that `like` has to look at: all of the value, and where the pattern has `_`, as many as the
    pattern is long at each of them."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return 0
    return len(value) * (len(pattern) if "_" in pattern else 1)


_ANY_ONE = None
"""Stands for `_` among the characters of a stretch."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What stands between two `%`: always of one length. Plain text is looked for as such; only `_` needs a pattern."""

    text: str
    pattern: re.Pattern[str] | None

    @property
    def length(self) -> int:
        return len(self.text)

    def at(self, value: str, position: int) -> bool:
        if self.pattern is None:
            return value.startswith(self.text, position)
        return self.pattern.match(value, position) is not None

    def find(self, value: str, start: int, end: int) -> int:
        if self.pattern is None:
            return value.find(self.text, start, end)
        found = self.pattern.search(value, start, end)
        return -1 if found is None else found.start()


def _matches(stretches: "tuple[_Stretch, ...]", value: str) -> bool:
    """Each stretch is taken where it comes first: that is never worse than any later place, so the search never goes
    back and tries again (`%a%a%a%...` would do so for ever), and reads the value once."""
    first, last = stretches[0], stretches[-1]
    if len(stretches) == 1:
        return len(value) == first.length and first.at(value, 0)
    position, end = first.length, len(value) - last.length
    if position > end or not first.at(value, 0) or not last.at(value, end):
        return False
    for stretch in stretches[1:-1]:
        found = stretch.find(value, position, end)
        if found < 0:
            return False
        position = found + stretch.length
    return True


@lru_cache(maxsize=1024)
def _stretches(pattern: str, escape: str | None) -> tuple[_Stretch, ...]:
    """The pattern, cut at its `%`."""
    stretches: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise FilterEvaluationError("The LIKE pattern ends with its escape character.")
            stretches[-1].append(following)
        elif character == "%":
            stretches.append([])
        else:
            stretches[-1].append(_ANY_ONE if character == "_" else character)
    return tuple(map(_stretch, stretches))


def _stretch(characters: list[str | None]) -> _Stretch:
    text = "".join("_" if one is None else one for one in characters)
    if None not in characters:
        return _Stretch(text, None)
    return _Stretch(text, re.compile("".join("." if one is None else re.escape(one) for one in characters), re.DOTALL))
