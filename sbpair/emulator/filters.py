"""A rule ready for use: its filter and action compiled once."""

import uuid
from collections.abc import Callable

from sbpair.amqp.sections import TEXT_FIELDS, PropertyField, Section
from sbpair.amqp.types import Long
from sbpair.emulator.broker.messages import Message, as_mapping, milliseconds
from sbpair.emulator.entities import (
    CORRELATION_NAMES,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from sbpair.emulator.limits import MAX_FILTER_STEPS_PER_MESSAGE, MAX_FILTER_STEPS_PER_RULE
from sbpair.engine.errors import BrokerError
from sbpair.sqlfilter import values
from sbpair.sqlfilter.parser import Property, parse_action, parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError

__all__ = ["FilterEvaluationError", "FilterSyntaxError", "MessageView", "Rule", "compile_action", "compile_filter"]


# A message as rules see it: `sys.*` properties and the application's own (`user.*`), decoded once and only if
# asked.


FIELDS = {name.replace("_", ""): index for name, index in TEXT_FIELDS.items()} | {"label": PropertyField.SUBJECT}
"""System properties that are fields of the properties section, by lower-case name; these can also be set."""

_FACTS: dict[str, Callable[[Message], object]] = {
    "partitionkey": lambda message: message.head.partition_key,
    "sequencenumber": lambda message: Long(message.sequence_number),
    "enqueuedsequencenumber": lambda message: message.enqueued_sequence_number,
    "deliverycount": lambda message: message.delivery_count,
    "deadlettersource": lambda message: message.dead_letter_source,
    "enqueuedtimeutc": lambda message: milliseconds(message.enqueued_at),
    "scheduledenqueuetimeutc": lambda message: _time(message.head.scheduled_at),
    "expiresatutc": lambda message: _time(message.expires_at),
    "timetolive": lambda message: message.head.ttl_seconds,
    "size": lambda message: len(message.payload),
    "state": lambda message: int(message.state),
}


class MessageView:
    """One message to many rules."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._user: dict[str, object] | None = None
        self._spellings: dict[str, list[str]] = {}
        self._fields: list[object] | None = None
        self._steps_left = MAX_FILTER_STEPS_PER_MESSAGE
        self._rule_steps_left = MAX_FILTER_STEPS_PER_RULE

    def user(self, name: str) -> object:
        """An application property by name, whatever its case; UNKNOWN if there is none."""
        return self._properties().get(name.lower(), UNKNOWN)

    def spellings(self, lowered: str) -> list[str]:
        """How a property of that lower-case name is spelled in the message; empty if there is none."""
        self._properties()
        return self._spellings.get(lowered, [])

    def _properties(self) -> dict[str, object]:
        if self._user is None:
            self._user = {}
            for key, value in as_mapping(self.message.section(Section.APPLICATION_PROPERTIES)).items():
                name = str(key)
                self._user[name.lower()] = value
                self._spellings.setdefault(name.lower(), []).append(name)
        return self._user

    def system(self, name: str) -> object:
        """A property of the message itself, UNKNOWN if not set; FilterEvaluationError if there is no such property."""
        key = name.lower()
        if key in FIELDS:
            value = self.field(FIELDS[key])
        elif key in _FACTS:
            value = _FACTS[key](self.message)
        else:
            raise FilterEvaluationError(f"There is no system property '{name}'.")
        return UNKNOWN if value is None else value

    def new_id(self) -> uuid.UUID:
        """What `newid()` gives: another one at each call."""
        return uuid.uuid4()

    def next_rule(self) -> None:
        """Another rule begins: each has its own share of what may be spent, since it is gone through at a stretch."""
        self._rule_steps_left = MAX_FILTER_STEPS_PER_RULE

    def spend(self, steps: int) -> None:
        """Filters and actions of all rules share what may be spent on one message."""
        self._steps_left -= steps
        self._rule_steps_left -= steps
        if self._steps_left < 0 or self._rule_steps_left < 0:
            self._steps_left += steps  # they are not taken
            raise FilterEvaluationError("The rules compare too much text for one message.")

    def field(self, index: PropertyField) -> object:
        """A field of the properties section, None if absent."""
        if self._fields is None:
            value = self.message.section(Section.PROPERTIES)
            self._fields = value if isinstance(value, list) else []
        return self._fields[index] if index < len(self._fields) else None


class Draft:
    """A message as the statements of an action leave it, one after the other. The message itself changes once, at the
    end: to encode 64 KB again after each of a hundred statements would take a hundred times as long."""

    def __init__(self, view: MessageView) -> None:
        self._view = view
        self._values: dict[str, object] = {}
        self._names: dict[str, str] = {}
        self._removed: set[str] = set()
        self._fields: dict[int, object] = {}

    def user(self, name: str) -> object:
        lowered = name.lower()
        return self._values[lowered] if lowered in self._values else self._view.user(name)

    def system(self, name: str) -> object:
        index = FIELDS.get(name.lower())
        if index is None or index not in self._fields:
            return self._view.system(name)
        value = self._fields[index]
        return UNKNOWN if value is None else value

    def new_id(self) -> uuid.UUID:
        return self._view.new_id()

    def spend(self, steps: int) -> None:
        self._view.spend(steps)

    def put(self, target: Property, value: object) -> None:
        """Carry out SET. Names are compared without regard to case; one that is there keeps its spelling."""
        if target.system:
            self._fields[FIELDS[target.name.lower()]] = _text(value)
            return
        lowered = target.name.lower()
        self._values[lowered] = value
        self._names.setdefault(lowered, target.name)

    def remove(self, target: Property) -> None:
        """Carry out REMOVE."""
        if target.system:
            self._fields[FIELDS[target.name.lower()]] = None
            return
        lowered = target.name.lower()
        self._values[lowered] = UNKNOWN
        self._names.pop(lowered, None)
        self._removed.add(lowered)

    def write(self, message: Message, **properties: object) -> None:
        """Give a message all that was set and removed, and these properties."""
        put: dict[str, object] = {}
        for lowered, value in self._values.items():
            if value is not UNKNOWN:
                there = () if lowered in self._removed else self._view.spellings(lowered)
                put.update(dict.fromkeys(there or (self._names[lowered],), value))
        removed = [name for lowered in self._removed for name in self._view.spellings(lowered)]
        message.set_properties(self._fields)
        message.put_application_properties(put | properties, removed)


def _time(instant: float | None) -> object:
    return None if instant is None else milliseconds(instant)


Condition = Callable[[MessageView], bool]
Change = Callable[[Draft], None]


class Rule:
    """A named rule of a subscription. `created_at` is in epoch seconds."""

    def __init__(self, name: str, description: RuleDescription, created_at: float) -> None:
        self.name = name
        self.description = description
        self.created_at = created_at
        self.filter: RuleFilter = description.filter
        self.action: SqlAction | None = description.action
        self._condition = compile_filter(description.filter)
        self._change = compile_action(description.action) if description.action is not None else None

    def matches(self, view: MessageView) -> bool:
        """Whether the filter says true; unknown counts as no. Raises FilterEvaluationError."""
        view.next_rule()
        return self._condition(view)

    def changed(self, view: MessageView) -> Message:
        """A copy of the message, changed as the action says and with the name of the rule. FilterEvaluationError."""
        copy = view.message.copy()
        view.next_rule()
        draft = Draft(view)
        try:
            if self._change is not None:
                self._change(draft)
            draft.write(copy, RuleName=self.name)
        except BrokerError as error:
            raise FilterEvaluationError(error.description) from error
        return copy


def compile_filter(description: RuleFilter) -> Condition:
    """The condition of any kind of filter. Raises FilterSyntaxError for SQL that cannot be parsed."""
    if isinstance(description, TrueFilter):
        return lambda _view: True
    if isinstance(description, FalseFilter):
        return lambda _view: False
    if isinstance(description, CorrelationFilter):
        return _correlation(description)
    return _sql(description)


def compile_action(description: SqlAction) -> Change:
    """The change an action makes. Raises FilterSyntaxError."""
    statements = parse_action(description.expression, description.parameters)
    for statement in statements:
        if statement.target.system and statement.target.name.lower() not in FIELDS:
            raise FilterSyntaxError(f"The system property '{statement.target.name}' cannot be set.")

    def change(draft: Draft) -> None:
        for statement in statements:
            if statement.value is None:
                draft.remove(statement.target)
            else:
                draft.put(statement.target, _settable(statement.value(draft)))

    return change


def _sql(description: SqlFilter) -> Condition:
    condition = parse_filter(description.expression, description.parameters)
    return lambda view: condition(view) is True


def _correlation(description: CorrelationFilter) -> Condition:
    wanted = [
        (FIELDS[name.replace("_", "")], str(getattr(description, name)))
        for name in CORRELATION_NAMES
        if getattr(description, name) is not None
    ]
    properties = list(description.properties.items())

    def matches(view: MessageView) -> bool:
        for index, text in wanted:
            value = view.field(index)
            if value is None or str(value) != text:
                return False
        return all(values.compare("=", view.user(name), expected) is True for name, expected in properties)

    return matches


def _settable(value: object) -> object:
    if value is UNKNOWN:
        raise FilterEvaluationError("The value to set refers to a property the message does not have.")
    if type(value) is int:
        return Long(value)
    return value


def _text(value: object) -> object:
    """Fields of the properties section that actions can set are strings; an id may also be a uuid."""
    return value if value is None or isinstance(value, str | uuid.UUID) else str(value)


# Rules of subscriptions: SQL filters and actions, correlation filters, and the view of a message they look at.
