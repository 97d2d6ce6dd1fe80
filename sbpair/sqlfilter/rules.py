"""The other parts of a rule: a correlation filter as a condition, and what an action changes of a message."""

import uuid
from collections.abc import Mapping, Sequence

from sbpair.sqlfilter.expressions import AllOf, Comparison, Constant, Expression, MessageView, Property
from sbpair.sqlfilter.parser import Statement, parse_action
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError

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
