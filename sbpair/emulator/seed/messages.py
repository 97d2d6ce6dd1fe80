"""Messages that a seed puts into a queue, topic or subscription it makes.

    messages:
      - {body: {number: 7}, message_id: order-7, session_id: anna, subject: new, properties: {amount: 12}}
      - {body: later, scheduled_in_seconds: 3600, time_to_live_seconds: 60}
      - {body: broken, dead_letter: {reason: NotJson, description: The body cannot be read.}}
      - {body: many of them, count: 100}

`body` is a text, bytes (`!!binary`), or anything else, which is sent as JSON.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sbpair.amqp.types import AmqpError
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.outgoing import payload
from sbpair.emulator.seed.reading import SeedError, mapping_of, only
from sbpair.engine.errors import BrokerError
from sbpair.lines import line_of

_TEXTS: Final = (
    "message_id",
    "session_id",
    "correlation_id",
    "subject",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)
_SECONDS: Final = ("time_to_live_seconds", "scheduled_in_seconds")
_KNOWN: Final = ("body", *_TEXTS, *_SECONDS, "scheduled_enqueue_time", "properties", "dead_letter", "count")
_MOST_SECONDS: Final = 2**32
MOST_MESSAGES: Final = 100_000
"""Of one entry."""


def put_messages(entity: Queue | Topic | Subscription, listed: object, where: str) -> None:
    """Have the entity take in what is listed, as if clients had sent it.

    Raises:
        SeedError: a wrong form, or a message that the entity refuses.
    """
    if listed is None:
        return
    if not isinstance(listed, list):
        raise SeedError(f"{where}: a list of messages is expected")
    for index, described in enumerate(listed):
        place, line = f"{where}[{index}]", line_of(listed, index)
        fields = mapping_of(described, place, line)
        only(fields, _KNOWN, place)
        count = fields.get("count", 1)
        if type(count) is not int or not 0 <= count <= MOST_MESSAGES:
            raise _wrong(fields, "count", place, f"a number from 0 to {MOST_MESSAGES:,}")
        dead_letter = fields.get("dead_letter")
        if dead_letter is not None:
            only(
                mapping_of(dead_letter, f"{place}.dead_letter", line), ("reason", "description"), f"{place}.dead_letter"
            )
        encoded = _encoded(fields, entity.namespace.clock.now(), place, line)
        try:
            for _ in range(count):
                _put(entity, encoded, dead_letter)
        except BrokerError as error:
            raise SeedError(f"{place}: {error.description}", line) from error
        except TypeError as error:
            raise SeedError(f"{place}: {error}", line) from error


def _put(entity: Queue | Topic | Subscription, encoded: bytes, dead_letter: Mapping[str, Any] | None) -> None:
    if dead_letter is None and not isinstance(entity, Subscription):
        entity.send(encoded)
        return
    if not isinstance(entity, MessageEntity):
        raise TypeError("a topic has no dead letters; put them into a subscription")
    parent = entity.topic if isinstance(entity, Subscription) else entity
    for message in parent.intake.read(encoded, 0):
        if isinstance(entity, Queue):
            entity.intake.check([message])
        if dead_letter is None:
            entity.arrive(message)
        else:
            _bury(entity, message, dead_letter)


def _bury(entity: MessageEntity, message: Message, dead_letter: Mapping[str, Any]) -> None:
    message.sequence_number = entity.numbering.next(message)
    message.enqueued_at = entity.namespace.clock.now()
    texts = {name: None if text is None else str(text) for name, text in dead_letter.items()}
    entity.dead_letter(message, texts.get("reason"), texts.get("description"))


def _encoded(fields: Mapping[str, Any], now: float, place: str, line: int | None) -> bytes:
    for name in _TEXTS:
        if not isinstance(fields.get(name, ""), str):
            raise _wrong(fields, name, place, "a text (put a number in quotes)")
    for name in _SECONDS:
        value = fields.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_SECONDS:
            raise _wrong(fields, name, place, "a number of seconds")
    properties = mapping_of(fields.get("properties"), f"{place}.properties", line)
    for name, value in properties.items():
        if not isinstance(value, str | bool | int | float | bytes | datetime):
            raise _wrong(properties, name, f"{place}.properties", "a text, number, boolean, time or bytes")
    scheduled = _scheduled(fields, now, place)
    lifetime = fields.get("time_to_live_seconds")
    try:
        return payload(
            fields.get("body", b""),
            **{name: fields[name] for name in _TEXTS if name in fields},
            properties={name: _aware(value) for name, value in properties.items()},
            time_to_live=None if lifetime is None else timedelta(seconds=lifetime),
            scheduled_enqueue_time=scheduled,
        )
    except (AmqpError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise SeedError(f"{place}: {error}", line) from error


def _scheduled(fields: Mapping[str, Any], now: float, place: str) -> datetime | None:
    if "scheduled_in_seconds" in fields:
        return datetime.fromtimestamp(now, UTC) + timedelta(seconds=fields["scheduled_in_seconds"])
    value = fields.get("scheduled_enqueue_time")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _wrong(fields, "scheduled_enqueue_time", place, "a time such as 2027-01-31T12:00:00Z") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if value is not None and not isinstance(value, datetime):
        raise _wrong(fields, "scheduled_enqueue_time", place, "a time such as 2027-01-31T12:00:00Z")
    return None if value is None else _aware(value)


def _aware(value: Any) -> Any:
    """Times without a zone are in UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _wrong(fields: Mapping[str, Any], name: str, place: str, expected: str) -> SeedError:
    return SeedError(f"{place}.{name}: {expected} is expected", line_of(fields, name))
