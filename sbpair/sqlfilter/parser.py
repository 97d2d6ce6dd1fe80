"""From the text of a SQL filter or action to something that can be evaluated.

Each parsing function returns a closure `MessageView -> value`; a predicate's value is True, False or UNKNOWN.
Precedence, loosest first: OR, AND, NOT, comparisons / IN / LIKE / IS NULL, + -, * / %, sign.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from sbpair.sqlfilter import values
from sbpair.sqlfilter.values import UNKNOWN, FilterSyntaxError, Token, tokenize


class MessageView(Protocol):
    """The message that an expression is asked about; the holder of messages says how its properties are found."""

    def user(self, name: str) -> object:
        """An application property by name, whatever its case; UNKNOWN if there is none."""

    def system(self, name: str) -> object:
        """A property of the message itself, UNKNOWN if not set; FilterEvaluationError if there is no such property."""

    def new_id(self) -> uuid.UUID:
        """What `newid()` gives: another one at each call."""

    def spend(self, steps: int) -> None:
        """Told before long work, in characters to be looked at. FilterEvaluationError when it is too much for one
        message, where anybody may write the expressions; otherwise nothing happens."""


Evaluator = Callable[[MessageView], object]
_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_MAX_NESTING = 32


@dataclass(frozen=True, slots=True)
class Property:
    """A named property: of the message (`sys.`) or of the application (`user.` or no scope)."""

    name: str
    system: bool

    def read(self, view: MessageView) -> object:
        return view.system(self.name) if self.system else view.user(self.name)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an action: SET with a value, REMOVE without."""

    target: Property
    value: Evaluator | None


def parse_filter(text: str, parameters: Mapping[str, object]) -> Evaluator:
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

    def predicate(self) -> Evaluator:
        with self._one_level_deeper():
            left = self._conjunction()
            while self._take("keyword", "OR"):
                left = _joined(values.either, left, self._conjunction())
            return left

    @contextmanager
    def _one_level_deeper(self) -> Iterator[None]:
        if self._depth >= _MAX_NESTING:
            raise FilterSyntaxError(f"The expression is nested deeper than {_MAX_NESTING} levels.")
        self._depth += 1
        yield
        self._depth -= 1

    def _conjunction(self) -> Evaluator:
        left = self._negation()
        while self._take("keyword", "AND"):
            left = _joined(values.both, left, self._negation())
        return left

    def _negation(self) -> Evaluator:
        turned = False
        while self._take("keyword", "NOT"):
            turned = not turned
        condition = self._condition()
        return (lambda view: values.negate(condition(view))) if turned else condition

    def _condition(self) -> Evaluator:
        if self._take("keyword", "EXISTS"):
            return self._exists()
        left = self._sum()
        token = self._take("symbol", *_COMPARISONS)
        if token is not None:
            return _compared(token.text, left, self._sum())
        if self._take("keyword", "IS"):
            return self._is_null(left)
        turned = self._take("keyword", "NOT") is not None
        if self._take("keyword", "IN"):
            found = self._in(left)
        elif self._take("keyword", "LIKE"):
            found = self._like(left)
        elif turned:
            raise self._error("'IN' or 'LIKE'")
        else:
            return left
        return (lambda view: values.negate(found(view))) if turned else found

    def _exists(self) -> Evaluator:
        self._expect("symbol", "(")
        target = self._property()
        self._expect("symbol", ")")
        return lambda view: target.read(view) is not UNKNOWN

    def _is_null(self, operand: Evaluator) -> Evaluator:
        turned = self._take("keyword", "NOT") is not None
        self._expect("keyword", "NULL")

        def is_null(view: MessageView) -> object:
            value = operand(view)
            return (value is None or value is UNKNOWN) is not turned

        return is_null

    def _in(self, operand: Evaluator) -> Evaluator:
        self._expect("symbol", "(")
        choices = [self._sum()]
        while self._take("symbol", ","):
            choices.append(self._sum())
        self._expect("symbol", ")")

        def is_in(view: MessageView) -> object:
            value = operand(view)
            answer: object = False
            for choice in choices:
                answer = values.either(answer, values.compare("=", value, choice(view)))
            return answer

        return is_in

    def _like(self, operand: Evaluator) -> Evaluator:
        pattern = self._sum()
        escape: Evaluator = self._sum() if self._take("keyword", "ESCAPE") else _constant(None)

        def like(view: MessageView) -> object:
            value, wanted, escaping = operand(view), pattern(view), escape(view)
            view.spend(values.like_steps(value, wanted))
            return values.like(value, wanted, escaping)

        return like

    # -- expressions

    def _sum(self) -> Evaluator:
        left = self._product()
        while (token := self._take("symbol", "+", "-")) is not None:
            left = _calculated(token.text, left, self._product())
        return left

    def _product(self) -> Evaluator:
        left = self._signed()
        while (token := self._take("symbol", "*", "/", "%")) is not None:
            left = _calculated(token.text, left, self._signed())
        return left

    def _signed(self) -> Evaluator:
        sign = 1
        signed = False
        while (token := self._take("symbol", "+", "-")) is not None:
            signed = True
            sign = -sign if token.text == "-" else sign
        operand = self._operand()
        return _calculated("*", _constant(sign), operand) if signed else operand

    def _operand(self) -> Evaluator:
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
            return self._property().read
        raise self._error("a value")

    def _literal(self, token: Token) -> Evaluator:
        if token.kind == "keyword" and token.text not in ("TRUE", "FALSE", "NULL"):
            raise self._error("a value")
        self._index += 1
        if token.kind == "string":
            return _constant(token.text)
        if token.kind == "number":
            return _constant(self._number(token.text))
        if token.kind == "parameter":
            return self._parameter(token)
        return _constant({"TRUE": True, "FALSE": False, "NULL": None}[token.text])

    def _number(self, text: str) -> int | float:
        if not text.isdigit():
            return float(text)
        value = int(text)
        if value >= 2**63:
            raise FilterSyntaxError(f"The number {text} does not fit into 64 bits.")
        return value

    def _parameter(self, token: Token) -> Evaluator:
        name = token.text[1:].lower()
        if name not in self._parameters:
            raise FilterSyntaxError(f"The parameter '{token.text}' has no value.")
        return _constant(self._parameters[name])

    def _function(self) -> Evaluator:
        name = self._expect("word").text.lower()
        self._expect("symbol", "(")
        if name == "newid":
            self._expect("symbol", ")")
            return lambda view: view.new_id()
        if name in ("property", "p"):
            with self._one_level_deeper():
                inner = self._sum()
            self._expect("symbol", ")")
            return lambda view: _by_name(view, inner(view))
        raise FilterSyntaxError(f"There is no function '{name}'.")

    def _property(self) -> Property:
        first = self._take("word") or self._take("name")
        if first is None:
            raise self._error("a property name")
        if not self._take("symbol", "."):
            return Property(first.text, system=False)
        second = self._take("word") or self._take("name")
        if second is None:
            raise self._error("a property name")
        scope = first.text.lower()
        if first.kind != "word" or scope not in ("sys", "user"):
            raise FilterSyntaxError(f"The scope '{first.text}' is neither 'sys' nor 'user'.")
        return Property(second.text, system=scope == "sys")

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


def _constant(value: object) -> Evaluator:
    return lambda _view: value


def _joined(operation: Callable[[object, object], object], left: Evaluator, right: Evaluator) -> Evaluator:
    return lambda view: operation(left(view), right(view))


def _compared(operator: str, left: Evaluator, right: Evaluator) -> Evaluator:
    return lambda view: values.compare(operator, left(view), right(view))


def _calculated(operator: str, left: Evaluator, right: Evaluator) -> Evaluator:
    def calculate(view: MessageView) -> object:
        result = values.arithmetic(operator, left(view), right(view))
        if isinstance(result, str):
            view.spend(len(result))
        return result

    return calculate


def _by_name(view: MessageView, name: object) -> object:
    return view.user(name) if isinstance(name, str) else UNKNOWN
