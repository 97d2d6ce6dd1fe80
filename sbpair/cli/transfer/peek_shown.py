"""Browsed messages as rows: the facts, the body as text or hex, the exact bytes; and rows grouped and counted."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from sbpair.amqp import Section, read_span, scan
from sbpair.amqp.types import AmqpError
from sbpair.core.message import State
from sbpair.core.serialization import INLINED, OMITTED_IF_NONE, Time, iso_time
from sbpair.core.summary import plain
from sbpair.core.transfer.reasons import meaning_of
from sbpair.render.result import Column
from sbpair.runtime.browse import Browsed, NotBrowsed

MESSAGE_COLUMNS = (
    Column("queue", "Queue"),
    Column("sequence_number", "Number", right=True),
    Column("enqueued_at", "Enqueued"),
    Column("destination", "Destination"),
    Column("session_id", "Session"),
    Column("message_id", "Message id"),
    Column("subject", "Subject"),
    Column("size_bytes", "Bytes", right=True),
    Column("ttl_seconds", "TTL s", right=True),
    Column("state", "State"),
    Column("reason", "Reason"),
)
BODY_COLUMN = Column("body", "Body")


# What `sbpair peek -o json` prints: messages, or with --group-by groups of them.

BodyEncoding = Literal["text", "hex", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """Every fact of one message. `payload_base64` holds its exact bytes, which `sbpair send` takes again."""

    queue: str
    sequence_number: int
    enqueued_at: Time | None
    destination: str | None
    session_id: str | None
    message_id: str | None
    correlation_id: str | None
    subject: str | None
    content_type: str | None
    partition_key: str | None
    size_bytes: int
    ttl_seconds: float | None
    scheduled_at: Time | None
    state: State
    delivery_count: int
    reason: str | None
    description: str | None
    unreadable: str | None
    """Why a part of it could not be read."""
    application_properties: Mapping[str, Any]
    payload_base64: str
    body_encoding: BodyEncoding | None = field(default=None, metadata=OMITTED_IF_NONE)
    body: str | None = field(default=None, metadata=OMITTED_IF_NONE)


@dataclass(frozen=True, slots=True)
class Group:
    """How many messages have these values of the keys that were asked for."""

    values: Mapping[str, str | None] = field(metadata=INLINED)
    messages: int
    size_bytes: int
    oldest: Time | None
    newest: Time | None


@dataclass(frozen=True, slots=True)
class Messages:
    pair: str
    looked_at: int
    left_off: bool
    """There may be more."""
    not_read: tuple[NotBrowsed, ...]
    messages: tuple[PeekedMessage, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    pair: str
    looked_at: int
    left_off: bool
    not_read: tuple[NotBrowsed, ...]
    groups: tuple[Group, ...]


Printed = Messages | Groups


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What `dlq peek -o json` prints. `left_off`: there may be more."""

    namespace: str
    entity: str
    looked_at: int
    left_off: bool
    messages: tuple[PeekedMessage, ...]


class GroupKey(StrEnum):
    """What messages can be grouped by."""

    DESTINATION = "destination"
    REASON = "reason"
    DESCRIPTION = "description"
    SESSION = "session"
    QUEUE = "queue"
    SUBJECT = "subject"
    CONTENT_TYPE = "content-type"
    STATE = "state"
    SCHEDULED = "scheduled"
    DAY = "day"
    HOUR = "hour"
    MINUTE = "minute"

    def of(self, message: PeekedMessage) -> str | None:
        return _GROUPS[self](message)


def _taken(name: str, characters: int | None = None) -> Callable[[PeekedMessage], str | None]:
    def taken(message: PeekedMessage) -> str | None:
        value = getattr(message, name)
        return None if value is None else str(value)[:characters]

    return taken


_GROUPS: dict[GroupKey, Callable[[PeekedMessage], str | None]] = {
    GroupKey.DESTINATION: _taken("destination"),
    GroupKey.REASON: _taken("reason"),
    GroupKey.DESCRIPTION: _taken("description"),
    GroupKey.SESSION: _taken("session_id"),
    GroupKey.QUEUE: _taken("queue"),
    GroupKey.SUBJECT: _taken("subject"),
    GroupKey.CONTENT_TYPE: _taken("content_type"),
    GroupKey.STATE: _taken("state"),
    GroupKey.SCHEDULED: _taken("scheduled_at", len("2026-01-01T00:00")),
    GroupKey.DAY: _taken("enqueued_at", len("2026-01-01")),
    GroupKey.HOUR: _taken("enqueued_at", len("2026-01-01T00")),
    GroupKey.MINUTE: _taken("enqueued_at", len("2026-01-01T00:00")),
}


def peeked(message: Browsed, *, with_body: bool) -> PeekedMessage:
    received, summary = message.received, message.summary
    body_encoding, body = readable_body(received.payload) if with_body else (None, None)
    return PeekedMessage(
        queue=message.queue,
        sequence_number=received.sequence_number,
        enqueued_at=iso_time(received.enqueued_at),
        destination=summary.destination,
        session_id=summary.session_id,
        message_id=summary.message_id,
        correlation_id=summary.correlation_id,
        subject=summary.subject,
        content_type=summary.content_type,
        partition_key=summary.partition_key,
        size_bytes=summary.size_bytes,
        ttl_seconds=summary.ttl_seconds,
        scheduled_at=iso_time(summary.scheduled_at),
        state=received.state,
        delivery_count=received.delivery_count,
        reason=summary.dead_letter_reason,
        description=summary.dead_letter_description,
        unreadable=summary.unreadable,
        application_properties=plain(summary.application_properties),
        payload_base64=base64.b64encode(received.payload).decode(),
        body_encoding=body_encoding,
        body=body,
    )


def readable_body(payload: bytes) -> tuple[BodyEncoding, str]:
    """The body as (`text`, its text), (`hex`, its bytes), or (`json`, an AMQP value or sequence shown as JSON).

    A body that cannot be decoded is shown as `hex` of the whole message.
    """
    try:
        spans = scan(payload)
        data = [read_span(payload, span) for span in spans if span.section is Section.DATA]
        others = [read_span(payload, span) for span in spans if span.section in (Section.VALUE, Section.SEQUENCE)]
    except AmqpError:
        return "hex", payload.hex()
    if others:
        return "json", json.dumps(plain(others if len(others) > 1 else others[0]), ensure_ascii=False)
    joined = b"".join(data)
    try:
        return "text", joined.decode()
    except UnicodeDecodeError:
        return "hex", joined.hex()


def group_columns(keys: Iterable[GroupKey]) -> tuple[Column, ...]:
    return (
        *(Column(key.value, key.value.capitalize()) for key in keys),
        Column("messages", "Messages", right=True, counts=True),
        Column("size_bytes", "Bytes", right=True),
        Column("oldest", "Oldest"),
        Column("newest", "Newest"),
    )


def grouped(messages: Iterable[PeekedMessage], keys: tuple[GroupKey, ...]) -> tuple[Group, ...]:
    """The messages by these keys; the biggest group first. A destination has the spelling that came first."""
    spellings: dict[str, str] = {}
    groups: dict[tuple[str | None, ...], list[PeekedMessage]] = {}

    def value(key: GroupKey, message: PeekedMessage) -> str | None:
        found = key.of(message)
        if key is not GroupKey.DESTINATION or found is None:
            return found
        return spellings.setdefault(found.lower(), found)

    for message in messages:
        groups.setdefault(tuple(value(key, message) for key in keys), []).append(message)
    found = [_group(keys, values, members) for values, members in groups.items()]
    return tuple(sorted(found, key=lambda group: -group.messages))


def _group(keys: tuple[GroupKey, ...], values: tuple[str | None, ...], members: list[PeekedMessage]) -> Group:
    times = [one.enqueued_at for one in members if one.enqueued_at is not None]
    return Group(
        dict(zip((key.value for key in keys), values, strict=True)),
        len(members),
        sum(one.size_bytes for one in members),
        min(times, default=None),
        max(times, default=None),
    )


def explain_reasons(messages: Iterable[PeekedMessage], pair: str) -> tuple[str, ...]:
    """What the dead-letter reasons among the messages mean, one sentence each."""
    count: dict[str, int] = {}
    for message in messages:
        meaning = meaning_of(message.reason, message.description)
        if meaning is not None:
            count[meaning] = count.get(meaning, 0) + 1
    return tuple(f"{number:,} of them: {text.format(pair=pair)}" for text, number in count.items())
