"""A small filter over messages, safe to take from a command line: comparisons joined by `and` and `or`.

    subject = invoice and size_bytes > 1000
    properties.country in DE,FR or content_type ~ application/*
    enqueued_at < 2026-10-01T00:00:00Z and dead_letter_reason != TTLExpiredException

`and` binds closer than `or`. Operators: `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (shell pattern), `in` (comma list). Values
may stand in single or double quotes. A field that is not set matches only `!=`. Times are ISO 8601, UTC without offset.
"""

import fnmatch
import operator
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.redact import quoted
from sbpair.core.summary import MessageSummary

_TIMES = frozenset({"enqueued_at", "scheduled_at"})
_FROM_RECEIVED = frozenset({"sequence_number", "delivery_count", "enqueued_at", "source"})
_FROM_SUMMARY = frozenset(
    {
        "message_id",
        "session_id",
        "partition_key",
        "correlation_id",
        "content_type",
        "subject",
        "to",
        "reply_to",
        "ttl_seconds",
        "scheduled_at",
        "destination",
        "body_kind",
        "body_size_bytes",
        "size_bytes",
        "dead_letter_reason",
        "dead_letter_description",
    }
)
FIELDS = tuple(sorted(_FROM_RECEIVED | _FROM_SUMMARY))
"""Names a comparison may begin with, besides `properties.NAME`."""

_PROPERTIES = "properties."
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = frozenset({"=", "!=", "~", "in", *_ORDER})


@dataclass(frozen=True, slots=True)
class Comparison:
    field: str
    operator: str
    value: str

    def matches(self, summary: MessageSummary, received: Received) -> bool:
        found = _value_of(self.field, summary, received)
        if found is None:
            return self.operator == "!="
        if self.operator in _ORDER:
            return _ordered(self, found)
        if self.operator == "~":
            return fnmatch.fnmatchcase(str(found), self.value)
        if self.operator == "in":
            return any(_equal(found, choice.strip(), self.field) for choice in self.value.split(","))
        return _equal(found, self.value, self.field) == (self.operator == "=")


@dataclass(frozen=True, slots=True)
class Where:
    """A parsed filter: alternatives, each a row of comparisons that all have to hold."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    def matches(self, summary: MessageSummary, received: Received) -> bool:
        return any(all(one.matches(summary, received) for one in row) for row in self.alternatives)


def parse_where(text: str) -> Where:
    """Parse a filter.

    Raises:
        UsageError: not a row of comparisons, an unknown field or operator, or a value that does not fit the field.
    """
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars="=!<>~")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = list(lexer)
    except ValueError as error:
        raise UsageError(f"The filter {quoted(text)} cannot be read: {error}.") from error
    rows: list[tuple[Comparison, ...]] = []
    for row in _split(words, "or"):
        rows.append(tuple(_comparison(part, text) for part in _split(row, "and")))
    return Where(tuple(rows))


def _split(words: list[str], joint: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word.lower() == joint:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _comparison(words: list[str], text: str) -> Comparison:
    if len(words) != 3 or words[1].lower() not in _OPERATORS:
        raise UsageError(
            f"{quoted(' '.join(words))} in the filter {quoted(text)} is not `field operator value`.",
            hint=f"Operators are {' '.join(sorted(_OPERATORS))}; values with blanks need quotes.",
        )
    name, sign, value = words[0], words[1].lower(), words[2]
    if name not in FIELDS and not (name.startswith(_PROPERTIES) and len(name) > len(_PROPERTIES)):
        raise UsageError(
            f"The filter has no field {quoted(name)}.", hint=f"Fields are {', '.join(FIELDS)} and properties.NAME."
        )
    if name in _TIMES:
        _epoch(value)
    return Comparison(name, sign, value)


def _value_of(name: str, summary: MessageSummary, received: Received) -> Any:
    if name.startswith(_PROPERTIES):
        return summary.application_properties.get(name.removeprefix(_PROPERTIES))
    return getattr(received if name in _FROM_RECEIVED else summary, name)


def _ordered(comparison: Comparison, found: Any) -> bool:
    compare = _ORDER[comparison.operator]
    if comparison.field in _TIMES:
        return compare(found, _epoch(comparison.value))
    wanted = _number(comparison.value)
    if wanted is not None and isinstance(found, int | float) and not isinstance(found, bool):
        return compare(found, wanted)
    return compare(str(found), comparison.value)


def _equal(found: Any, value: str, name: str) -> bool:
    if name in _TIMES:
        return bool(found == _epoch(value))
    if isinstance(found, bool):
        return value.lower() == str(found).lower()
    if isinstance(found, int | float):
        return found == _number(value)
    return str(found) == value


def _number(text: str) -> float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _epoch(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{quoted(text)} in the filter is not an ISO 8601 time.") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
