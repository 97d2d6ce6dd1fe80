"""A message as rules see it: `sys.*` properties and the application's own (`user.*`), decoded once and only if
asked."""

from collections.abc import Callable, Mapping

from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Long
from sbpair.emulator.broker.messages import Message, as_mapping, milliseconds
from sbpair.emulator.filters.errors import FilterEvaluationError


class _Unknown:
    """The third truth value: what comparing with an absent property gives."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("unknown is neither true nor false")


UNKNOWN = _Unknown()

FIELDS = {
    "messageid": PropertyField.MESSAGE_ID,
    "to": PropertyField.TO,
    "label": PropertyField.SUBJECT,
    "subject": PropertyField.SUBJECT,
    "replyto": PropertyField.REPLY_TO,
    "correlationid": PropertyField.CORRELATION_ID,
    "contenttype": PropertyField.CONTENT_TYPE,
    "sessionid": PropertyField.GROUP_ID,
    "replytosessionid": PropertyField.REPLY_TO_GROUP_ID,
}
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
        self._user: Mapping[str, object] | None = None
        self._fields: list[object] | None = None

    def user(self, name: str) -> object:
        """An application property by name, whatever its case; UNKNOWN if there is none."""
        if self._user is None:
            pairs = as_mapping(self.message.section(Section.APPLICATION_PROPERTIES))
            self._user = {str(key).lower(): value for key, value in pairs.items()}
        return self._user.get(name.lower(), UNKNOWN)

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

    def field(self, index: PropertyField) -> object:
        """A field of the properties section, None if absent."""
        if self._fields is None:
            value = self.message.section(Section.PROPERTIES)
            self._fields = value if isinstance(value, list) else []
        return self._fields[index] if index < len(self._fields) else None


def _time(instant: float | None) -> object:
    return None if instant is None else milliseconds(instant)
