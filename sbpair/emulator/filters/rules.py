"""A rule ready for use: its filter and action compiled once."""

import uuid
from collections.abc import Callable

from sbpair.amqp.sections import PropertyField
from sbpair.amqp.types import Long
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.filters import values
from sbpair.emulator.filters.errors import FilterEvaluationError, FilterSyntaxError
from sbpair.emulator.filters.parser import Property, parse_action, parse_filter
from sbpair.emulator.filters.view import FIELDS, UNKNOWN, MessageView

Condition = Callable[[MessageView], bool]
Change = Callable[[Message], None]

_CORRELATED = (
    ("correlation_id", PropertyField.CORRELATION_ID),
    ("message_id", PropertyField.MESSAGE_ID),
    ("to", PropertyField.TO),
    ("reply_to", PropertyField.REPLY_TO),
    ("label", PropertyField.SUBJECT),
    ("session_id", PropertyField.GROUP_ID),
    ("reply_to_session_id", PropertyField.REPLY_TO_GROUP_ID),
    ("content_type", PropertyField.CONTENT_TYPE),
)


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
        return self._condition(view)

    def apply(self, message: Message) -> None:
        """Change a copy as the action says. Raises FilterEvaluationError."""
        if self._change is None:
            return
        try:
            self._change(message)
        except BrokerError as error:
            raise FilterEvaluationError(error.description) from error


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

    def change(message: Message) -> None:
        for statement in statements:
            value = None if statement.value is None else _settable(statement.value(MessageView(message)))
            _write(message, statement.target, value, remove=statement.value is None)

    return change


def _sql(description: SqlFilter) -> Condition:
    condition = parse_filter(description.expression, description.parameters)
    return lambda view: condition(view) is True


def _correlation(description: CorrelationFilter) -> Condition:
    wanted = [
        (index, str(getattr(description, name)))
        for name, index in _CORRELATED
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


def _write(message: Message, target: Property, value: object, *, remove: bool) -> None:
    if target.system:
        message.set_property(FIELDS[target.name.lower()], _text(value))
    elif remove:
        message.remove_application_properties([target.name])
    else:
        message.put_application_properties({target.name: value})


def _text(value: object) -> object:
    """Fields of the properties section that actions can set are strings; an id may also be a uuid."""
    return value if value is None or isinstance(value, str | uuid.UUID) else str(value)
