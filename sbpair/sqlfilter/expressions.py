"""Conditions and values of Service Bus SQL: called with a message they say what they are for it, and `str` writes them.

A condition is True, False or UNKNOWN for a message. All parts are looked at, whatever the first ones say.
"""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from sbpair.sqlfilter import values
from sbpair.sqlfilter.values import KEYWORDS, UNKNOWN


class MessageView(Protocol):
    """The message that an expression is asked about; the holder of messages says how its properties are found."""

    def user(self, name: str) -> object:
        """An application property by name, whatever its case; UNKNOWN if there is none."""

    def system(self, name: str) -> object:
        """A property of the message itself, UNKNOWN if not set; FilterEvaluationError if there is no such property."""

    def new_id(self) -> uuid.UUID:
        """What `newid()` gives: another one at each call; FilterEvaluationError where that would be of no use."""
        raise values.FilterEvaluationError("newid() gives another value at each call.")

    def spend(self, steps: int) -> None:
        """Told before long work, in characters to be looked at. FilterEvaluationError when it is too much for one
        message, where anybody may write the expressions; otherwise nothing happens."""
        return


@dataclass(frozen=True, slots=True)
class Constant:
    value: object

    def __call__(self, view: MessageView) -> object:
        return self.value

    def __str__(self) -> str:
        value = self.value
        if value is None or isinstance(value, bool):
            return "NULL" if value is None else str(value).upper()
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, int | float) and -(2**63) < value < 2**63:
            return repr(int(value) if isinstance(value, int) else float(value))
        return f"@{type(value).__name__}_{re.sub(r'[^0-9A-Za-z]', '_', str(value))}"

    @property
    def is_literal(self) -> bool:
        """The language can write it; what it cannot is the value of a parameter, which `str` names."""
        return not str(self).startswith("@")


@dataclass(frozen=True, slots=True)
class Property:
    """A named property: of the message (`sys.`) or of the application (`user.` or no scope)."""

    name: str
    system: bool

    def __call__(self, view: MessageView) -> object:
        return view.system(self.name) if self.system else view.user(self.name)

    def __str__(self) -> str:
        plain = _REGULAR.fullmatch(self.name) and self.name.upper() not in KEYWORDS
        name = self.name if plain else f"[{self.name.replace(']', ']]')}]"
        return f"sys.{name}" if self.system else name


_REGULAR = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Joined:
    parts: tuple["Expression", ...]
    decides: ClassVar[bool]
    """The answer of a part that is that of the whole, whatever the others say."""
    word: ClassVar[str]

    def __call__(self, view: MessageView) -> object:
        return values.joined([part(view) for part in self.parts], self.decides)

    def __str__(self) -> str:
        enclosed = (AnyOf, type(self))
        return f" {self.word} ".join(f"({part})" if isinstance(part, enclosed) else str(part) for part in self.parts)


class AllOf(_Joined):
    __slots__ = ()
    decides, word = False, "AND"


class AnyOf(_Joined):
    __slots__ = ()
    decides, word = True, "OR"


@dataclass(frozen=True, slots=True)
class Not:
    inner: "Expression"

    def __call__(self, view: MessageView) -> object:
        answer = self.inner(view)
        return not answer if isinstance(answer, bool) else UNKNOWN

    def __str__(self) -> str:
        if isinstance(self.inner, In | Like):
            return self.inner.written("NOT ")
        return f"NOT ({self.inner})" if isinstance(self.inner, AllOf | AnyOf | Not) else f"NOT {self.inner}"


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    left: "Expression"
    right: "Expression"

    def __call__(self, view: MessageView) -> object:
        return values.compare(self.operator, self.left(view), self.right(view))

    def __str__(self) -> str:
        return f"{_operand(self.left)} {self.operator} {_operand(self.right)}"


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Expression"
    turned: bool = False

    def __call__(self, view: MessageView) -> object:
        value = self.operand(view)
        return (value is None or value is UNKNOWN) is not self.turned

    def __str__(self) -> str:
        return f"{_operand(self.operand)} IS {'NOT ' if self.turned else ''}NULL"


@dataclass(frozen=True, slots=True)
class Exists:
    target: Property

    def __call__(self, view: MessageView) -> object:
        return self.target(view) is not UNKNOWN

    def __str__(self) -> str:
        return f"EXISTS({self.target})"


@dataclass(frozen=True, slots=True)
class In:
    operand: "Expression"
    choices: tuple["Expression", ...]

    def __call__(self, view: MessageView) -> object:
        value = self.operand(view)
        return values.joined([values.compare("=", value, choice(view)) for choice in self.choices], True)

    def __str__(self) -> str:
        return self.written()

    def written(self, turned: str = "") -> str:
        return f"{_operand(self.operand)} {turned}IN ({', '.join(map(_operand, self.choices))})"


@dataclass(frozen=True, slots=True)
class Like:
    operand: "Expression"
    pattern: "Expression"
    escape: "Expression | None"

    def __call__(self, view: MessageView) -> object:
        value, wanted = self.operand(view), self.pattern(view)
        escaping = None if self.escape is None else self.escape(view)
        view.spend(values.like_steps(value, wanted))
        return values.like(value, wanted, escaping)

    def __str__(self) -> str:
        return self.written()

    def written(self, turned: str = "") -> str:
        escape = "" if self.escape is None else f" ESCAPE {_operand(self.escape)}"
        return f"{_operand(self.operand)} {turned}LIKE {_operand(self.pattern)}{escape}"


@dataclass(frozen=True, slots=True)
class Calculated:
    operator: str
    left: "Expression"
    right: "Expression"

    def __call__(self, view: MessageView) -> object:
        steps = self._steps()
        result = steps[0].left(view)
        for step in steps:
            result = values.arithmetic(step.operator, result, step.right(view))
            if isinstance(result, str):
                view.spend(len(result))
        return result

    def __str__(self) -> str:
        text = ""
        for step in self._steps():
            left = f"({text})" if text else _operand(step.left)
            right = f"({step.right})" if isinstance(step.right, Calculated) else _operand(step.right)
            text = f"{left} {step.operator} {right}"
        return text

    def _steps(self) -> list["Calculated"]:
        """`1 + 1 + 1` is as deep as it is long: from the innermost one outwards, for a walk that needs no stack."""
        steps = [self]
        while isinstance(left := steps[-1].left, Calculated):
            steps.append(left)
        return steps[::-1]


@dataclass(frozen=True, slots=True)
class Indirect:
    """`property(name)`: the property whose name is the value of another expression."""

    name: "Expression"

    def __call__(self, view: MessageView) -> object:
        name = self.name(view)
        return view.user(name) if isinstance(name, str) else UNKNOWN

    def __str__(self) -> str:
        return f"property({self.name})"


@dataclass(frozen=True, slots=True)
class NewId:
    def __call__(self, view: MessageView) -> object:
        return view.new_id()

    def __str__(self) -> str:
        return "newid()"


Expression = (
    Constant | Property | AllOf | AnyOf | Not | Comparison | IsNull | Exists | In | Like | Calculated | Indirect | NewId
)


def _operand(value: Expression) -> str:
    return str(value) if isinstance(value, Constant | Property | Calculated | Indirect | NewId) else f"({value})"


def everything_in(expression: Expression) -> Iterator[Expression]:
    """The expression and all that it is made of."""
    waiting = [expression]
    while waiting:
        yield (part := waiting.pop())
        values_of = (getattr(part, field.name) for field in fields(part))
        parts = [each for value in values_of for each in (value if isinstance(value, tuple) else (value,))]
        waiting += [each for each in reversed(parts) if isinstance(each, Expression)]
