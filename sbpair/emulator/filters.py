"""A rule ready for use: its filter and action compiled once."""

import uuid
from collections.abc import Callable

from sbpair.amqp.sections import TEXT_FIELDS, PropertyField, Section
from sbpair.amqp.types import Long
from sbpair.emulator.broker.messages import Message, as_mapping, milliseconds
from sbpair.emulator.entities import CorrelationFilter, FalseFilter, RuleDescription, RuleFilter, SqlAction, TrueFilter
from sbpair.engine.errors import BrokerError
from sbpair.service import CORRELATION_FIELDS
from sbpair.sqlfilter.parser import Draft, Statement, correlation, parse_changes, parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError

MAX_FILTER_STEPS_PER_MESSAGE = 5_000_000
"""Our own bound on what the rules of all subscriptions may look at of one message: some 20 ms."""
MAX_FILTER_STEPS_PER_RULE = 1_250_000
"""The same for a single rule, which is gone through at a stretch: some 5 ms."""


__all__ = [
    "BrokerMessageView",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "Rule",
    "compile_action",
    "compile_filter",
]


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


class BrokerMessageView:
    """One message to many rules. Properties of the message itself are texts, also where it has a UUID as id."""

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
            value = value if value is None or isinstance(value, str) else str(value)
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


def _time(instant: float | None) -> object:
    return None if instant is None else milliseconds(instant)


Condition = Callable[[BrokerMessageView], bool]


class Rule:
    """A named rule of a subscription. `created_at` is in epoch seconds."""

    def __init__(self, name: str, description: RuleDescription, created_at: float) -> None:
        self.name = name
        self.description = description
        self.created_at = created_at
        self.filter: RuleFilter = description.filter
        self.action: SqlAction | None = description.action
        self._condition = compile_filter(description.filter)
        self._changes = compile_action(description.action) if description.action is not None else []

    def matches(self, view: BrokerMessageView) -> bool:
        """Whether the filter says true; unknown counts as no. Raises FilterEvaluationError."""
        view.next_rule()
        return self._condition(view)

    def changed(self, view: BrokerMessageView) -> Message:
        """A copy of the message, changed as the action says and with the name of the rule. FilterEvaluationError."""
        copy = view.message.copy()
        view.next_rule()
        draft = Draft(view)
        try:
            draft.carry_out(self._changes)
            _write(draft, view, copy, RuleName=self.name)
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
        own = {name: value for name in CORRELATION_FIELDS if (value := getattr(description, name)) is not None}
        condition = correlation(own, description.properties)
    else:
        condition = parse_filter(description.expression, description.parameters)
    return lambda view: condition(view) is True


def compile_action(description: SqlAction) -> list[Statement]:
    """The change an action makes. Raises FilterSyntaxError."""
    return parse_changes(description.expression, description.parameters)


def _write(draft: Draft, view: BrokerMessageView, message: Message, **properties: object) -> None:
    """Give a message all that was set and removed, and these properties."""
    put: dict[str, object] = {}
    for lowered, (name, value) in draft.properties.items():
        there = () if lowered in draft.removed else view.spellings(lowered)
        put.update(dict.fromkeys(there or (name,), Long(value) if type(value) is int else value))
    removed = [name for lowered in draft.removed for name in view.spellings(lowered)]
    message.set_properties({FIELDS[name]: value for name, value in draft.fields.items()})
    message.put_application_properties(put | properties, removed)
