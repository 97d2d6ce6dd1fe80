"""Browsed messages as rows: the facts, the body as text or hex, the exact bytes; and rows grouped and counted."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from sbpair.amqp import Section, read_span, scan
from sbpair.amqp.types import AmqpError
from sbpair.core.summary import plain
from sbpair.core.transfer.reasons import meaning_of
from sbpair.render.formats import iso_time
from sbpair.render.result import Column
from sbpair.runtime.browse import Browsed

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

    def of(self, row: Mapping[str, Any]) -> Any:
        return _GROUPS[self](row)


def _taken(key: str, characters: int | None = None) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: None if row[key] is None else str(row[key])[:characters]


_GROUPS: dict[GroupKey, Callable[[Mapping[str, Any]], Any]] = {
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


def message_row(message: Browsed, *, with_body: bool) -> dict[str, Any]:
    """Every fact of one message. `payload_base64` holds its exact bytes, which `sbpair send` takes again."""
    received, summary = message.received, message.summary
    row: dict[str, Any] = {
        "queue": message.queue,
        "sequence_number": received.sequence_number,
        "enqueued_at": iso_time(received.enqueued_at),
        "destination": summary.destination,
        "session_id": summary.session_id,
        "message_id": summary.message_id,
        "correlation_id": summary.correlation_id,
        "subject": summary.subject,
        "content_type": summary.content_type,
        "partition_key": summary.partition_key,
        "size_bytes": summary.size_bytes,
        "ttl_seconds": summary.ttl_seconds,
        "scheduled_at": iso_time(summary.scheduled_at),
        "state": received.state.value,
        "delivery_count": received.delivery_count,
        "reason": summary.dead_letter_reason,
        "description": summary.dead_letter_description,
        "unreadable": summary.unreadable,
        "application_properties": plain(summary.application_properties),
        "payload_base64": base64.b64encode(received.payload).decode(),
    }
    if with_body:
        row["body_encoding"], row["body"] = readable_body(received.payload)
    return row


def readable_body(payload: bytes) -> tuple[str, str]:
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
        Column("messages", "Messages", right=True),
        Column("size_bytes", "Bytes", right=True),
        Column("oldest", "Oldest"),
        Column("newest", "Newest"),
    )


def grouped(rows: Iterable[Mapping[str, Any]], keys: tuple[GroupKey, ...]) -> list[dict[str, Any]]:
    """One row a group with its number of messages, bytes and times; the biggest group first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        values = tuple(key.of(row) for key in keys)
        group = groups.setdefault(values, _empty_group(keys, values))
        group["messages"] += 1
        group["size_bytes"] += row["size_bytes"]
        at = row["enqueued_at"]
        if at is not None:
            group["oldest"] = min(group["oldest"] or at, at)
            group["newest"] = max(group["newest"] or at, at)
    return sorted(groups.values(), key=lambda group: -int(group["messages"]))


def _empty_group(keys: tuple[GroupKey, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    names = (key.value for key in keys)
    return dict(zip(names, values, strict=True)) | {"messages": 0, "size_bytes": 0, "oldest": None, "newest": None}


def explain_reasons(rows: Iterable[Mapping[str, Any]], pair: str) -> tuple[str, ...]:
    """What the dead-letter reasons among the rows mean, one sentence each."""
    count: dict[str, int] = {}
    for row in rows:
        meaning = meaning_of(row["reason"], row["description"])
        if meaning is not None:
            count[meaning] = count.get(meaning, 0) + 1
    return tuple(f"{number:,} of them: {text.format(pair=pair)}" for text, number in count.items())
