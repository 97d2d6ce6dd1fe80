"""Arithmetic, comparison and pattern matching of rule values; UNKNOWN in, UNKNOWN out.

Integers are 64 bit, decimal and exponent constants are doubles; integers widen to doubles beside one. `+` joins
strings.
Values of unlike types are unequal and have no order (UNKNOWN). Strings compare by code point, with case.
"""

import re
from functools import lru_cache

from sbpair.emulator.filters.errors import FilterEvaluationError
from sbpair.emulator.filters.view import UNKNOWN


def negate(value: object) -> object:
    """NOT in three-valued logic."""
    return UNKNOWN if not isinstance(value, bool) else not value


def both(left: object, right: object) -> object:
    """AND: false wins over unknown."""
    if left is False or right is False:
        return False
    return True if left is True and right is True else UNKNOWN


def either(left: object, right: object) -> object:
    """OR: true wins over unknown."""
    if left is True or right is True:
        return True
    return False if left is False and right is False else UNKNOWN


def compare(operator: str, left: object, right: object) -> object:
    """One of = <> != < <= > >=."""
    if left is UNKNOWN or right is UNKNOWN or left is None or right is None:
        return UNKNOWN
    if not _alike(left, right):
        return {"=": False, "<>": True, "!=": True}.get(operator, UNKNOWN)
    if operator == "=":
        return left == right
    if operator in ("<>", "!="):
        return left != right
    if isinstance(left, bool) or not isinstance(left, int | float | str | bytes):
        return UNKNOWN
    return _ordered(operator, left, right)


def _ordered(operator: str, left: object, right: object) -> bool:
    less = left < right  # type: ignore[operator]
    if operator == "<":
        return bool(less)
    if operator == ">=":
        return left >= right  # type: ignore[operator, no-any-return]
    if operator == ">":
        return left > right  # type: ignore[operator, no-any-return]
    return left <= right  # type: ignore[operator, no-any-return]


def _alike(left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    for kinds in ((int, float), (str,), (bytes,)):
        if isinstance(left, kinds) and isinstance(right, kinds):
            return True
    return type(left) is type(right)


def arithmetic(operator: str, left: object, right: object) -> object:
    """One of + - * / %. FilterEvaluationError for other types and for division of integers by zero."""
    if left is UNKNOWN or right is UNKNOWN or left is None or right is None:
        return UNKNOWN
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return str(left) + str(right)
    if not (_is_number(left) and _is_number(right)):
        raise FilterEvaluationError(f"The operator '{operator}' cannot be applied to {left!r} and {right!r}.")
    if isinstance(left, float) or isinstance(right, float):
        return _float(operator, float(left), float(right))  # type: ignore[arg-type]
    return _integer(operator, int(left), int(right))  # type: ignore[call-overload]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(operator: str, left: int, right: int) -> int:
    if operator in "/%" and right == 0:
        raise FilterEvaluationError("Division by zero.")
    match operator:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case "/":
            result = _truncated(left, right)
        case _:
            result = left - right * _truncated(left, right)
    if not -(2**63) <= result < 2**63:
        raise FilterEvaluationError("The result does not fit into 64 bits.")
    return result


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _float(operator: str, left: float, right: float) -> float:
    try:
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
            case _:
                return left % right
    except ZeroDivisionError as error:
        raise FilterEvaluationError("Division by zero.") from error


def like(value: object, pattern: object, escape: object) -> object:
    """LIKE with `%` and `_`; `escape` is the character that takes their meaning away, or None."""
    if not isinstance(value, str) or not isinstance(pattern, str):
        return UNKNOWN
    return _pattern(pattern, escape if isinstance(escape, str) else None).fullmatch(value) is not None


@lru_cache(maxsize=1024)
def _pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    """The stretches between the `%`, each found where it comes first: that is never worse than any later place, so no
    pattern makes the search go back and try again (`%a%a%a%...` would do so for ever)."""
    stretches = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise FilterEvaluationError("The LIKE pattern ends with its escape character.")
            stretches[-1] += re.escape(following)
        elif character == "%":
            stretches.append("")
        elif character == "_":
            stretches[-1] += "."
        else:
            stretches[-1] += re.escape(character)
    if len(stretches) == 1:
        return re.compile(stretches[0], re.DOTALL)
    first, *middle, last = stretches
    found = "".join(f"(?>.*?{stretch})" for stretch in middle if stretch)
    return re.compile(f"{first}{found}.*{last}", re.DOTALL)
