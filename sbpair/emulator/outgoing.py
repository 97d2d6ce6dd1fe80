"""A message as a client would send it, from plain Python values."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Unpack

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField
from sbpair.amqp.types import Int, Long, Uint
from sbpair.emulator.broker.messages import SCHEDULED_TIME, milliseconds


class MessageFields(sections.TextProperties, total=False):
    """What a message may have beside its body; `properties` are application's."""

    message_id: str | None
    session_id: str | None
    properties: Mapping[str, Any] | None
    time_to_live: timedelta | None
    scheduled_enqueue_time: datetime | None


def payload(
    body: bytes | str | Any = b"",
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    properties: Mapping[str, Any] | None = None,
    time_to_live: timedelta | None = None,
    scheduled_enqueue_time: datetime | None = None,
    **texts: Unpack[sections.TextProperties],
) -> bytes:
    """The encoded message. A body that is neither bytes nor text is sent as JSON; `properties` are application's.

    Raises:
        OverflowError, TypeError, ValueError: a value that a message cannot have.
    """
    header: Mapping[int, Any] | None = None
    if time_to_live is not None:
        header = {HeaderField.TTL: Uint(min(round(time_to_live.total_seconds() * 1000), 2**32 - 1))}
    annotations = None
    if scheduled_enqueue_time is not None:
        annotations = {SCHEDULED_TIME: milliseconds(scheduled_enqueue_time.timestamp())}
    return sections.build(
        header=header,
        message_annotations=annotations,
        properties=sections.text_properties(message_id, session_id, texts),
        application_properties={name: _amqp(value) for name, value in properties.items()} if properties else None,
        data=_bytes(body),
    )


def _amqp(value: Any) -> Any:
    """A Python value as azure-servicebus would send it: an int where it fits 32 bits, else a long."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Int(value) if -(2**31) <= value < 2**31 else Long(value)
    return milliseconds(value.timestamp()) if isinstance(value, datetime) else value


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
