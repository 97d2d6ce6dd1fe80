"""From the text of a SQL filter or action to something that can be evaluated.

Precedence, loosest first: OR, AND, NOT, comparisons / IN / LIKE / IS NULL, + -, * / %, sign.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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
)
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError, Token, tokenize

_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_WORDS: Mapping[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_MAX_NESTING = 32


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an action: SET with a value, REMOVE without."""

    target: Property
    value: Expression | None


def parse_filter(text: str, parameters: Mapping[str, object]) -> Expression:
    """A condition. Raises FilterSyntaxError."""
    parser = _Parser(text, parameters)
    condition = parser.predicate()
    parser.expect_end()
    return condition


def parse_action(text: str, parameters: Mapping[str, object]) -> list[Statement]:
    """The statements of an action, with or without semicolons between them. Raises FilterSyntaxError."""
    return _Parser(text, parameters).statements()


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, object]) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0
        self._depth = 0
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}

    # -- words

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def _take(self, kind: str, *texts: str) -> Token | None:
        token = self._token
        if token.kind == kind and (not texts or token.text in texts):
            self._index += 1
            return token
        return None

    def _expect(self, kind: str, *texts: str) -> Token:
        token = self._take(kind, *texts)
        if token is None:
            raise self._error(" or ".join(f"'{text}'" for text in texts) or kind)
        return token

    def _error(self, expected: str) -> FilterSyntaxError:
        found = f"'{self._token.text}'" if self._token.kind != "end" else "the end"
        return FilterSyntaxError(
            f"There was an error parsing the SQL expression '{self._text}': expected {expected} but found {found} "
            f"at position {self._token.position}."
        )

    def expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._error("the end of the expression")

    # -- conditions

    def predicate(self) -> Expression:
        with self._one_level_deeper():
            return self._joined(AnyOf, lambda: self._joined(AllOf, self._negation))

    def _joined(self, kind: type[AllOf] | type[AnyOf], part: Callable[[], Expression]) -> Expression:
        parts = [part()]
        while self._take("keyword", kind.word):
            parts.append(part())
        return kind(tuple(parts)) if len(parts) > 1 else parts[0]

    @contextmanager
    def _one_level_deeper(self) -> Iterator[None]:
        if self._depth >= _MAX_NESTING:
            raise FilterSyntaxError(f"The expression is nested deeper than {_MAX_NESTING} levels.")
        self._depth += 1
        yield
        self._depth -= 1

    def _negation(self) -> Expression:
        turned = False
        while self._take("keyword", "NOT"):
            turned = not turned
        condition = self._condition()
        return Not(condition) if turned else condition

    def _condition(self) -> Expression:
        if self._take("keyword", "EXISTS"):
            self._expect("symbol", "(")
            target = self._property()
            self._expect("symbol", ")")
            return Exists(target)
        left = self._sum()
        token = self._take("symbol", *_COMPARISONS)
        if token is not None:
            return Comparison(token.text, left, self._sum())
        if self._take("keyword", "IS"):
            turned = self._take("keyword", "NOT") is not None
            self._expect("keyword", "NULL")
            return IsNull(left, turned)
        turned = self._take("keyword", "NOT") is not None
        if self._take("keyword", "IN"):
            found: Expression = self._in(left)
        elif self._take("keyword", "LIKE"):
            found = Like(left, self._sum(), self._sum() if self._take("keyword", "ESCAPE") else None)
        elif turned:
            raise self._error("'IN' or 'LIKE'")
        else:
            return left
        return Not(found) if turned else found

    def _in(self, operand: Expression) -> Expression:
        self._expect("symbol", "(")
        choices = [self._sum()]
        while self._take("symbol", ","):
            choices.append(self._sum())
        self._expect("symbol", ")")
        return In(operand, tuple(choices))

    # -- expressions

    def _sum(self) -> Expression:
        return self._calculated("+-", lambda: self._calculated("*/%", self._signed))

    def _calculated(self, signs: str, side: Callable[[], Expression]) -> Expression:
        left = side()
        while (token := self._take("symbol", *signs)) is not None:
            left = Calculated(token.text, left, side())
        return left

    def _signed(self) -> Expression:
        signs = []
        while (token := self._take("symbol", "+", "-")) is not None:
            signs.append(token.text)
        operand = self._operand()
        if not signs:
            return operand
        sign = -1 if signs.count("-") % 2 else 1
        if isinstance(operand, Constant) and type(operand.value) in (int, float):
            return Constant(sign * operand.value)  # type: ignore[operator]
        return Calculated("*", Constant(sign), operand)

    def _operand(self) -> Expression:
        if self._take("symbol", "("):
            inner = self.predicate()
            self._expect("symbol", ")")
            return inner
        token = self._token
        if token.kind in ("number", "string", "keyword", "parameter"):
            return self._literal(token)
        if token.kind == "word" and self._tokens[self._index + 1].text == "(":
            return self._function()
        if token.kind in ("word", "name"):
            return self._property()
        raise self._error("a value")

    def _literal(self, token: Token) -> Expression:
        if token.kind == "keyword" and token.text not in _WORDS:
            raise self._error("a value")
        self._index += 1
        if token.kind == "number":
            value = int(token.text) if token.text.isdigit() else float(token.text)
            if isinstance(value, int) and value >= 2**63:
                raise FilterSyntaxError(f"The number {token.text} does not fit into 64 bits.")
            return Constant(value)
        if token.kind != "parameter":
            return Constant(_WORDS[token.text] if token.kind == "keyword" else token.text)
        name = token.text[1:].lower()
        if name not in self._parameters:
            raise FilterSyntaxError(f"The parameter '{token.text}' has no value.")
        return Constant(self._parameters[name])

    def _function(self) -> Expression:
        name = self._expect("word").text.lower()
        self._expect("symbol", "(")
        if name == "newid":
            self._expect("symbol", ")")
            return NewId()
        if name in ("property", "p"):
            with self._one_level_deeper():
                inner = self._sum()
            self._expect("symbol", ")")
            return Indirect(inner)
        raise FilterSyntaxError(f"There is no function '{name}'.")

    def _property(self) -> Property:
        first = self._name()
        if not self._take("symbol", "."):
            return Property(first.text, system=False)
        second = self._name()
        scope = first.text.lower()
        if first.kind != "word" or scope not in ("sys", "user"):
            raise FilterSyntaxError(f"The scope '{first.text}' is neither 'sys' nor 'user'.")
        return Property(second.text, system=scope == "sys")

    def _name(self) -> Token:
        name = self._take("word") or self._take("name")
        if name is None:
            raise self._error("a property name")
        return name

    # -- actions

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        while True:
            while self._take("symbol", ";"):
                pass
            if self._token.kind == "end":
                break
            found.append(self._statement())
        if not found:
            raise self._error("'SET' or 'REMOVE'")
        return found

    def _statement(self) -> Statement:
        if self._expect("keyword", "SET", "REMOVE").text == "REMOVE":
            return Statement(self._property(), None)
        target = self._property()
        self._expect("symbol", "=")
        return Statement(target, self._sum())


# The other parts of a rule: a correlation filter as a condition, and what an action changes of a message.

SETTABLE = frozenset(
    ("messageid", "to", "label", "subject", "replyto", "correlationid", "contenttype", "sessionid", "replytosessionid")
)
"""What an action may set of a message itself, by lower-case name. All are texts."""


def correlation(own: Mapping[str, object], properties: Mapping[str, object]) -> Expression:
    """All that a correlation filter names has to be equal. `own`: properties of the message itself, as
    `reply_to`."""
    named = [(Property(name.title().replace("_", ""), system=True), value) for name, value in own.items()]
    named += [(Property(name, system=False), value) for name, value in properties.items()]
    parts = tuple(Comparison("=", target, Constant(value)) for target, value in named)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def parse_changes(text: str, parameters: Mapping[str, object]) -> list[Statement]:
    """The statements of an action.

    Raises:
        FilterSyntaxError: it cannot be parsed, or sets what cannot be set.
    """
    statements = parse_action(text, parameters)
    for statement in statements:
        if statement.target.system and statement.target.name.lower() not in SETTABLE:
            raise FilterSyntaxError(f"The system property '{statement.target.name}' cannot be set.")
    return statements


class Draft:
    """A message as the statements of an action leave it, one after the other. The message itself changes once, at the
    end: to encode 64 KB again after each of a hundred statements would take a hundred times as long."""

    def __init__(self, view: MessageView) -> None:
        self._view = view
        self.fields: dict[str, object] = {}
        """Properties of the message itself, by lower-case name; None: removed."""
        self.properties: dict[str, tuple[str, object]] = {}
        """Application properties by lower-case name: as it is written and its value."""
        self.removed: set[str] = set()
        """Application properties that were there or not, by lower-case name; some are set again."""

    def user(self, name: str) -> object:
        lowered = name.lower()
        if lowered in self.properties:
            return self.properties[lowered][1]
        return UNKNOWN if lowered in self.removed else self._view.user(name)

    def system(self, name: str) -> object:
        value = self.fields.get(_field(name), self)
        if value is self:
            return self._view.system(name)
        return UNKNOWN if value is None else value

    def new_id(self) -> uuid.UUID:
        return self._view.new_id()

    def spend(self, steps: int) -> None:
        self._view.spend(steps)

    def carry_out(self, statements: Sequence[Statement]) -> None:
        """Names are compared without regard to case; one that is there keeps its spelling.

        Raises:
            FilterEvaluationError: a value cannot be told.
        """
        for statement in statements:
            target, value = statement.target, None if statement.value is None else statement.value(self)
            if value is UNKNOWN:
                raise FilterEvaluationError("The value to set refers to a property the message does not have.")
            if target.system:
                text = value is None or isinstance(value, str | uuid.UUID)
                self.fields[_field(target.name)] = value if text else str(value)
            elif statement.value is None:
                self.properties.pop(target.name.lower(), None)
                self.removed.add(target.name.lower())
            else:
                spelling = self.properties.get(target.name.lower(), (target.name, None))[0]
                self.properties[target.name.lower()] = (spelling, value)


def _field(name: str) -> str:
    return "label" if name.lower() == "subject" else name.lower()
