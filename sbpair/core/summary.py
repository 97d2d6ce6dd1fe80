"""What a person wants to see of a message: decoded for display, never to be encoded again."""

import math
from dataclasses import field
from typing import Any

from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Described
from sbpair.core import system_properties
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError
from sbpair.core.message import value_class
from sbpair.core.names import cut_path


@value_class
class MessageSummary:
    """Readable facts of one message. Where the backlog keeps a property under an alias (`x-ms-*`), the alias counts.

    Times are UTC epoch seconds. `application_properties` holds the decoded typed values, aliases included; it is empty
    with `unreadable` telling why when a section could not be parsed. A destination longer than any path is cut.
    """

    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    ttl_seconds: float | None = None
    scheduled_at: float | None = None
    destination: str | None = None
    application_properties: dict[str, Any] = field(default_factory=dict)
    body_kind: str = "none"
    """`data`, `value`, `sequence` or `none`."""
    body_size_bytes: int = 0
    size_bytes: int = 0
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    unreadable: str | None = None


def describe(payload: bytes) -> MessageSummary:
    """Look a message over for display; never raises for a bad one but says so in `unreadable`."""
    try:
        return describe_message(EncodedMessage(payload))
    except MalformedMessageError as error:
        return MessageSummary(size_bytes=len(payload), unreadable=error.message)


def describe_message(message: EncodedMessage) -> MessageSummary:
    """`describe` for a message whose sections were looked for already."""
    try:
        return _described(message)
    except MalformedMessageError as error:
        return MessageSummary(size_bytes=len(message.payload), unreadable=error.message)


_BODY_KINDS = {section: section.name.lower() for section in (Section.DATA, Section.SEQUENCE, Section.VALUE)}
_NO_FIELDS = (None,) * len(PropertyField)


def _described(message: EncodedMessage) -> MessageSummary:
    properties = {str(key): value for key, value in message.entries(Section.APPLICATION_PROPERTIES)}
    fields = [one if one is None else _string(one) for one in message.read(Section.PROPERTIES) or ()]
    fields += _NO_FIELDS[len(fields) :]
    message_id, _, to, subject, reply_to, correlation_id, content_type = fields[:7]
    spans = [span for span in message.spans if span[0] in _BODY_KINDS]
    return MessageSummary(
        message_id=message_id,
        session_id=_string(properties.get(system_properties.SESSION)) or fields[PropertyField.GROUP_ID],
        partition_key=_string(message.entry(Section.MESSAGE_ANNOTATIONS, "x-opt-partition-key")),
        correlation_id=correlation_id,
        content_type=content_type,
        subject=subject,
        to=to,
        reply_to=reply_to,
        ttl_seconds=_ttl_seconds(message, properties.get(system_properties.TIME_TO_LIVE)),
        scheduled_at=_scheduled_at(message, properties.get(system_properties.SCHEDULED)),
        destination=_destination(properties.get(system_properties.PATH)),
        application_properties=properties,
        body_kind=_BODY_KINDS[spans[0].section] if spans else "none",
        body_size_bytes=sum(span.end - span.value_start for span in spans),
        size_bytes=len(message.payload),
        dead_letter_reason=_string(properties.get("DeadLetterReason")),
        dead_letter_description=_string(properties.get("DeadLetterErrorDescription")),
    )


def _string(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _destination(value: Any) -> str | None:
    path = _string(value)
    return None if path is None else cut_path(path)


def _ttl_seconds(message: EncodedMessage, alias: Any) -> float | None:
    try:
        aliased = system_properties.time_to_live_ms(alias)
    except MalformedMessageError:
        aliased = None  # shown among the application properties as it is
    header = message.field(Section.HEADER, HeaderField.TTL)
    if aliased is None and _is_whole(header) and 0 <= header <= system_properties.MAX_HEADER_TTL_MS:
        aliased = int(header)
    return None if aliased is None else aliased / 1000


def _scheduled_at(message: EncodedMessage, alias: Any) -> float | None:
    try:
        aliased = system_properties.scheduled_ms(alias)
    except MalformedMessageError:
        aliased = None  # as above
    annotation = message.entry(Section.MESSAGE_ANNOTATIONS, "x-opt-scheduled-enqueue-time")
    milliseconds = aliased if aliased is not None else annotation
    return int(milliseconds) / 1000 if _is_whole(milliseconds) else None


def _is_whole(value: Any) -> bool:
    """Whether a field that ought to be a number is one: a sender may have put anything there."""
    return isinstance(value, int) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """A decoded AMQP value as JSON can show it: bytes as hex, a time span in seconds, times as epoch milliseconds,
    and as text the numbers that JSON has not (`nan`, `inf`)."""
    if isinstance(value, Described):
        if value.descriptor == system_properties.TIMESPAN and _is_whole(value.value):
            return {"timespan_seconds": int(value.value) / system_properties.TICKS_PER_MS / 1000}
        return {"descriptor": plain(value.descriptor), "value": plain(value.value)}
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)
