"""What is said of conditions without a message: what none of them takes, whether one can be true at all; and with a
message, which part keeps it from being true.

A rule takes a message for which its condition is true. Unknown is not true, and its opposite is unknown as well, so the
complement of `x = 1` is `x <> 1 OR x IS NULL`. It is written in the documented language alone ("Subscription Rule SQL
Filter Syntax"), where IS NULL is of a property, not of a condition. Values of unlike kinds have no order, and the
language cannot ask for a kind: those are named as gaps.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sbpair.sqlfilter.expressions import (
    AllOf,
    AnyOf,
    Calculated,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    Indirect,
    IsNull,
    Like,
    MessageView,
    NewId,
    Not,
    Property,
    everything_in,
)
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError

EVERYTHING = Comparison("=", Constant(1), Constant(1))
NOTHING = Comparison("=", Constant(1), Constant(0))
_EQUAL, _UNEQUAL = ("=",), ("<>", "!=")
_CONDITIONS = (AllOf, AnyOf, Not, Comparison, IsNull, Exists, In, Like)


class NotWritable(ValueError):
    """The language has no complement of a condition; the text says of which part."""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """Messages that neither the conditions nor their complement take: this property is set, but not of that kind."""

    property: str
    kind: str

    def __str__(self) -> str:
        return f"{self.property} where it is set and not {self.kind}"


@dataclass(frozen=True, slots=True)
class Complement:
    """The condition that is true where none of others is."""

    condition: Expression

    @property
    def is_nothing(self) -> bool:
        return self.condition == NOTHING

    @property
    def sql(self) -> str:
        return str(self.condition)

    @property
    def parameters(self) -> dict[str, object]:
        """Values that the language cannot write, by the names that `sql` has for them."""
        constants = (part for part in everything_in(self.condition) if isinstance(part, Constant))
        return {str(constant): constant.value for constant in constants if not constant.is_literal}

    @property
    def gaps(self) -> tuple[Uncovered, ...]:
        return tuple(dict.fromkeys(gap for part in everything_in(self.condition) for gap in _gaps(part)))


def complement_of(conditions: Iterable[Expression]) -> Complement:
    """What none of the conditions takes.

    Raises:
        NotWritable: it cannot be said in the language.
    """
    return Complement(_other_than(AnyOf(tuple(conditions)), True))


def _other_than(condition: Expression, truth: bool) -> Expression:
    """True where the condition is anything but `truth`."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            kind = AllOf if isinstance(condition, AnyOf) is truth else AnyOf
            return _joined(kind, [_other_than(part, truth) for part in parts])
        case Not(inner):
            return _other_than(inner, not truth)
        case In(operand, choices) if not all(isinstance(one, Constant) and one.value is not None for one in choices):
            # unknown where one of its comparisons is
            return _other_than(AnyOf(tuple(Comparison("=", operand, choice) for choice in choices)), truth)
    return _or_unknown(condition, turned=truth)


def _or_unknown(condition: Expression, *, turned: bool) -> Expression:
    """A single condition or its opposite, or a property of it is not there."""
    _check_writable(condition)
    if isinstance(condition, IsNull):
        return IsNull(condition.operand, condition.turned is not turned)
    if isinstance(condition, Exists):
        return Not(condition) if turned else condition
    if not isinstance(condition, Comparison | In | Like):  # a value that is taken for a condition
        condition, turned = Comparison("=", condition, Constant(turned)), True
    operands = _operands(condition)
    if any(isinstance(one, Constant) and one.value is None for operand in operands for one in everything_in(operand)):
        return EVERYTHING  # what is compared with NULL is unknown for every message
    properties = [one for operand in operands for one in everything_in(operand) if isinstance(one, Property)]
    if not properties and isinstance(condition, Comparison | In):
        try:
            return EVERYTHING if (condition(_Nothing()) is True) is not turned else NOTHING
        except FilterEvaluationError as error:
            raise NotWritable(f"{condition} fails for every message: {error}") from error
    return _joined(AnyOf, [_opposite(condition) if turned else condition, *map(IsNull, properties)])


def _operands(condition: Comparison | In | Like) -> tuple[Expression, ...]:
    match condition:
        case Comparison(_, left, right):
            return (left, right)
        case In(operand, choices):
            return (operand, *choices)
        case Like(operand, pattern):
            return (operand, pattern)


def _opposite(condition: Comparison | In | Like) -> Expression:
    if isinstance(condition, Comparison) and condition.operator in _EQUAL:
        return Comparison("<>", condition.left, condition.right)
    if isinstance(condition, Comparison) and condition.operator in _UNEQUAL:
        return Comparison("=", condition.left, condition.right)
    return Not(condition)  # not `>=` for `<`: neither is true of a number that is none (NaN)


def _check_writable(condition: Expression) -> None:
    for part in everything_in(condition):
        if isinstance(part, NewId | Indirect):
            raise NotWritable(f"{part} gives what the language cannot ask about: whether it is NULL, or another value")
        if part is not condition and isinstance(part, _CONDITIONS):
            raise NotWritable(
                f"{condition} asks about a condition, of which the language cannot say that it is unknown"
            )


def _joined(kind: type[AllOf] | type[AnyOf], parts: Iterable[Expression]) -> Expression:
    """The parts, those of the same kind taken apart, each once. By their text: Python's 1 equals its True."""
    single = [one for part in parts for one in (part.parts if isinstance(part, kind) else (part,))]
    found = list({str(one): one for one in single}.values())
    deciding, needless = (EVERYTHING, NOTHING) if kind.decides else (NOTHING, EVERYTHING)
    if deciding in found:
        return deciding
    found = [part for part in found if part != needless]
    if kind is AllOf:
        found = _without_implied(_together(found))
    return (kind(tuple(found)) if len(found) > 1 else found[0]) if found else needless


def _together(parts: list[Expression]) -> list[Expression]:
    """`x <> 1 OR x IS NULL` of many values as one NOT IN: it is what most complements are made of."""
    merged: dict[str, list[Constant]] = {}
    found: dict[str, Expression] = {}
    for part in parts:
        unequal = _unequal(part)
        if unequal is None:
            found[str(part)] = part
            continue
        operand, constants = unequal
        known = merged.setdefault(str(operand), [])
        known += constants
        distinct = tuple({str(one): one for one in known}.values())
        opposite = Not(In(operand, distinct)) if len(distinct) > 1 else Comparison("<>", operand, distinct[0])
        found[f"{operand} IN"] = AnyOf((opposite, IsNull(operand)))
    return list(found.values())


def _unequal(part: Expression) -> tuple[Property, tuple[Constant, ...]] | None:
    """The property and the values it must not have, if that is all that is asked."""
    if not isinstance(part, AnyOf) or len(part.parts) != 2:
        return None
    match part.parts:
        case (Comparison("<>", Property() as one, Constant() as value), IsNull(Property() as same, False)):
            return (one, (value,)) if one == same else None
        case (Not(In(Property() as one, choices)), IsNull(Property() as same, False)):
            constants = tuple(choice for choice in choices if isinstance(choice, Constant))
            return (one, constants) if one == same and len(constants) == len(choices) else None
    return None


def _without_implied(parts: list[Expression]) -> list[Expression]:
    """Without those that follow from another: `a OR b` from `a`."""
    sets = [frozenset(map(str, part.parts if isinstance(part, AnyOf) else (part,))) for part in parts]
    implied = {
        index
        for index, wider in enumerate(sets)
        if len(wider) > 1 and any(narrower < wider for narrower in sets if len(narrower) < len(wider))
    }
    return [part for index, part in enumerate(parts) if index not in implied]


def _gaps(part: Expression) -> Iterator[Uncovered]:
    if isinstance(part, Like):
        yield from (Uncovered(str(one), "text") for one in (part.operand, part.pattern) if isinstance(one, Property))
    elif isinstance(part, Comparison) and part.operator not in (*_EQUAL, *_UNEQUAL):
        for one, other in ((part.left, part.right), (part.right, part.left)):
            if isinstance(one, Property):
                yield Uncovered(str(one), _kind(other))


def _kind(value: Expression) -> str:
    if isinstance(value, Constant) and not isinstance(value.value, bool):
        if isinstance(value.value, str):
            return "text"
        if isinstance(value.value, int | float):
            return "a number"
    return "a number" if isinstance(value, Calculated) else f"of the kind of {value}"


# Whether a condition can be true.


def never(condition: Expression) -> bool:
    """It is true for no message, as far as can be seen; False says nothing."""
    match condition:
        case AnyOf(parts):
            return all(map(never, parts))
        case AllOf(parts):
            return any(map(never, parts)) or _contradicting(parts)
        case Comparison(_, left, right) if Constant(None) in (left, right):
            return True
    if any(isinstance(one, Property | Indirect | NewId | Calculated) for one in everything_in(condition)):
        return False
    try:
        return condition(_Nothing()) is not True
    except FilterEvaluationError:
        return True  # nor can it be evaluated for any other message


def _contradicting(parts: Sequence[Expression]) -> bool:
    """Some property would need a value that is none: two at a time, or one beyond its bounds."""
    asked: dict[str, list[Comparison | In]] = {}
    null: set[str] = set()
    for part in parts:
        match part:
            case IsNull(Property() as one, False):
                null.add(str(one).lower())
            case Comparison(_, Property() as one, Constant()) | In(Property() as one, _):
                asked.setdefault(str(one).lower(), []).append(part)
    return any(name in null or not _possible(conditions) for name, conditions in asked.items())


def _possible(conditions: Sequence[Comparison | In]) -> bool:
    """Whether some value satisfies all: one of those that are named, or a number beside or between them."""
    choices = [one for condition in conditions if isinstance(condition, In) for one in condition.choices]
    if not all(isinstance(choice, Constant) for choice in choices):
        return True
    named = [operand.value for one in conditions for operand in _operands(one) if isinstance(operand, Constant)]
    numbers = sorted(one for one in named if isinstance(one, int | float) and not isinstance(one, bool))
    between = [low / 2 + high / 2 for low, high in pairwise(numbers)]
    beside = [-math.inf, math.inf, *(int(one) + 1 for one in numbers if math.isfinite(one))]
    limits = [one for one in conditions if isinstance(one, In) or one.operator in _EQUAL]
    if not limits and len(numbers) < len(named):
        return True  # of texts there is always another one between two, or there may be
    return any(
        all(condition(_Nothing(value)) is True for condition in conditions) for value in (*named, *between, *beside)
    )


class _Nothing(MessageView):
    """A message whose properties are all alike: not there, or of one value."""

    def __init__(self, value: object = UNKNOWN) -> None:
        self._value = value

    def user(self, name: str) -> object:
        return self._value

    system = user


# Which part keeps a condition from being true.


def failing_parts(condition: Expression, view: MessageView) -> Iterator[str]:
    """The smallest parts that are not true, where the whole is not, with what their properties are.

    Raises:
        FilterEvaluationError: it cannot be evaluated for the message.
    """
    truth = condition(view)
    if truth is True:
        return
    if isinstance(condition, AllOf | AnyOf):
        for part in condition.parts:
            yield from failing_parts(part, view)
        return
    properties = {str(one): one for one in everything_in(condition) if isinstance(one, Property)}
    shown = ", ".join(f"{name} is {value_text(one(view))}" for name, one in properties.items())
    yield f"{condition} is {'false' if truth is False else 'unknown'}" + (f": {shown}" if shown else "")


def value_text(value: object) -> str:
    """A property's value for people."""
    if value is UNKNOWN or value is None:
        return "not set" if value is UNKNOWN else "NULL"
    return str(Constant(value)) if Constant(value).is_literal else str(value)


def can_fail(condition: Expression) -> bool:
    """It may be impossible to evaluate for a message: it calculates. Then a subscription dead-letters a copy or drops
    it, as it is set up ("Topic filters and actions")."""
    return any(isinstance(one, Calculated) for one in everything_in(condition))
