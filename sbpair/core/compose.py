"""New encoded messages: for `send`, the ping and the demo."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, PropertyField
from sbpair.amqp.types import Int, Long, Symbol, Timestamp, Uint
from sbpair.core.aliases import MAX_HEADER_TTL_MS
from sbpair.core.errors import UsageError
from sbpair.core.message import PING_CONTENT_TYPE
from sbpair.core.names import MAX_ID_CHARACTERS

PING_TIME_TO_LIVE_SECONDS = 1.0
"""Seed 000: a ping lives for one second."""


def compose(
    *,
    body: bytes | str,
    message_id: str,
    session_id: str | None = None,
    partition_key: str | None = None,
    correlation_id: str | None = None,
    content_type: str | None = None,
    subject: str | None = None,
    to: str | None = None,
    reply_to: str | None = None,
    reply_to_session_id: str | None = None,
    application_properties: Mapping[str, Any] | None = None,
    ttl_seconds: float | None = None,
    scheduled_at: float | None = None,
) -> bytes:
    """A message with one data section. Text is encoded as UTF-8; `scheduled_at` is UTC epoch seconds.

    Application properties are AMQP values (`sbpair.amqp.types`), or a plain int, which becomes an int where it fits 32
    bits and a long otherwise, or an aware datetime, which becomes a timestamp.

    Raises:
        UsageError: an id over 128 characters, or a time to live that is negative or over 49.7 days (what the header
            can say).
    """
    for name, value in (("message id", message_id), ("session id", session_id), ("partition key", partition_key)):
        if value is not None and len(value) > MAX_ID_CHARACTERS:
            raise UsageError(f"A {name} has up to {MAX_ID_CHARACTERS} characters, not {len(value)}.")
    fields: dict[int, Any] = {
        PropertyField.MESSAGE_ID: message_id,
        PropertyField.TO: to,
        PropertyField.SUBJECT: subject,
        PropertyField.REPLY_TO: reply_to,
        PropertyField.CORRELATION_ID: correlation_id,
        PropertyField.CONTENT_TYPE: Symbol(content_type) if content_type is not None else None,
        PropertyField.GROUP_ID: session_id,
        PropertyField.REPLY_TO_GROUP_ID: reply_to_session_id,
    }
    annotations: dict[Any, Any] = {}
    if scheduled_at is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(round(scheduled_at * 1000))
    if partition_key is not None:
        annotations[Symbol("x-opt-partition-key")] = partition_key
    return sections.build(
        header=None if ttl_seconds is None else {HeaderField.TTL: Uint(_ttl_ms(ttl_seconds))},
        message_annotations=annotations or None,
        properties=fields,
        application_properties={name: typed(value) for name, value in (application_properties or {}).items()} or None,
        data=body.encode() if isinstance(body, str) else body,
    )


def ping_message(*, message_id: str, session_id: str | None = None) -> bytes:
    """The documented ping: empty, its own content type, one second to live (seed 000).

    With a session id it is accepted by entities that require sessions as well.
    """
    return compose(
        body=b"",
        message_id=message_id,
        session_id=session_id,
        content_type=PING_CONTENT_TYPE,
        ttl_seconds=PING_TIME_TO_LIVE_SECONDS,
    )


def typed(value: Any) -> Any:
    """A Python value as an AMQP value: see `compose`."""
    if type(value) is int:
        return Int(value) if -(2**31) <= value < 2**31 else Long(value)
    if isinstance(value, datetime):
        return Timestamp(round(value.timestamp() * 1000))
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return value


def _ttl_ms(seconds: float) -> int:
    milliseconds = round(seconds * 1000)
    if not 0 <= milliseconds <= MAX_HEADER_TTL_MS:
        raise UsageError(f"A time to live is 0 seconds to 49.7 days, not {seconds:g} s.")
    return milliseconds
