"""What can go wrong with a rule: when it is made, and when it meets a message."""

import re
from dataclasses import dataclass


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
