"""The backlog form of a message, and the way back: a round trip that leaves every other byte alone.

What seed 000 and the retired library do, exactly, because their messages are still out there:

    on the way in                                         application property it is kept in
    destination                                           x-ms-path                     string
    group-id (the session), cleared                       x-ms-sessionid                string
    header ttl, cleared                                   x-ms-timetolive               com.microsoft:timespan, 100 ns
    x-opt-scheduled-enqueue-time, removed                 x-ms-scheduledenqueuetimeutc  timestamp, ms
    x-opt-partition-key, removed only if it equals the session: the two are tied, the session brings it back

An alias is written only for what is set; x-ms-path always. On the way home the aliases are read liberally (see
`core.aliases`), removed, and what they stand for is set again.

Time to live has a second form: SDKs write creation-time and absolute-expiry-time besides the header's ttl, and for a
time to live that 32 bits of milliseconds cannot say (over 49.7 days) only their difference is right. So the aliased
value is that difference where the header is at its maximum; in the backlog absolute-expiry-time says "never"; and on
the way home it is set again to creation-time plus time to live. creation-time is never touched.

Some fields belong to the broker that delivered the message: its annotations, the delivery count, and in a message
without x-ms-timetolive the time to live of the backlog queue. They stay behind. Everything else keeps its bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Described, Long, Symbol, Timestamp, Uint
from sbpair.core import aliases
from sbpair.core.compose import compose, ping_message
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError, NotABacklogMessageError, ReservedPropertyError
from sbpair.core.message import PING_CONTENT_TYPE, TtlMode
from sbpair.core.summary import MessageSummary, describe

__all__ = [
    "Homeward",
    "MessageSummary",
    "TtlMode",
    "compose",
    "describe",
    "for_backlog",
    "for_primary",
    "is_ping",
    "ping_message",
    "strip_broker_annotations",
]

BROKER_ANNOTATIONS = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-partition-id",
        "x-opt-message-state",
        "x-opt-deadletter-source",
    }
)
"""Message annotations that a broker adds to what it delivers and that mean nothing elsewhere."""

LOCK_TOKEN = frozenset({"x-opt-lock-token"})
"""Delivery annotation of a lock."""

DEAD_LETTER_PROPERTIES = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
PARTITION_KEY = "x-opt-partition-key"
SCHEDULED = "x-opt-scheduled-enqueue-time"

NEVER_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, what SDKs write for an expiry that never comes."""


@dataclass(frozen=True, slots=True)
class Homeward:
    """A message ready for its original destination, with what a sender wants to know about it."""

    payload: bytes
    destination: str
    session_id: str | None
    message_id: str | None
    partition_key: str | None
    scheduled_at: float | None
    """UTC epoch seconds, None if it is to be active at once."""


def for_backlog(payload: bytes, destination: str) -> bytes:
    """The message as it goes into a backlog queue instead of to `destination` (an entity path on the primary).

    The result can be larger than a backlog queue takes; the sender compares it with the link's limit.

    Raises:
        ReservedPropertyError: the application already uses one of the four x-ms-* names.
        MalformedMessageError: not an AMQP message, or a group-id that is not a string.
    """
    message = EncodedMessage(payload)
    _refuse_reserved(message)
    put: dict[str, Any] = {aliases.PATH: destination}
    put |= _take_session(message)
    put |= _take_time_to_live(message)
    put |= _take_schedule(message)
    message.edit_map(Section.APPLICATION_PROPERTIES, (), put)
    return message.result()


def _refuse_reserved(message: EncodedMessage) -> None:
    used = [key for key, _ in message.entries(Section.APPLICATION_PROPERTIES) if key in aliases.NAMES]
    if used:
        raise ReservedPropertyError(
            f"The message already has the application property {used[0]!r}, which the backlog form needs for itself.",
            hint=f"Rename the property; reserved are {', '.join(sorted(aliases.NAMES))}.",
        )


def _take_session(message: EncodedMessage) -> dict[str, Any]:
    session = message.field(Section.PROPERTIES, PropertyField.GROUP_ID)
    if session is None:
        return {}
    if not isinstance(session, str):
        raise MalformedMessageError(f"The group-id of the message is a {type(session).__name__}, not a string.")
    message.edit_fields(Section.PROPERTIES, {PropertyField.GROUP_ID: None})
    if message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY) == session:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (PARTITION_KEY,), {})
    return {aliases.SESSION: str(session)}


def _take_time_to_live(message: EncodedMessage) -> dict[str, Any]:
    ttl = message.field(Section.HEADER, HeaderField.TTL)
    if ttl is None:
        return {}
    if not isinstance(ttl, int):
        raise MalformedMessageError(f"The ttl in the message's header is a {type(ttl).__name__}, not a number.")
    created = _time(message, PropertyField.CREATION_TIME)
    expiry = _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME)
    ttl_ms = int(ttl)
    if ttl_ms >= aliases.MAX_HEADER_TTL_MS and created is not None and expiry is not None:
        ttl_ms = max(ttl_ms, expiry - created)
    message.edit_fields(Section.HEADER, {HeaderField.TTL: None})
    if expiry is not None:
        message.edit_fields(Section.PROPERTIES, {PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(NEVER_MS)})
    return {aliases.TIME_TO_LIVE: Described(Symbol(aliases.TIMESPAN), Long(ttl_ms * aliases.TICKS_PER_MS))}


def _take_schedule(message: EncodedMessage) -> dict[str, Any]:
    scheduled = message.entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED)
    if scheduled is None:
        return {}
    if not isinstance(scheduled, Timestamp):
        raise MalformedMessageError(f"The annotation {SCHEDULED} is a {type(scheduled).__name__}, not a timestamp.")
    message.edit_map(Section.MESSAGE_ANNOTATIONS, (SCHEDULED,), {})
    return {aliases.SCHEDULED: scheduled}


def for_primary(
    payload: bytes,
    *,
    now: float,
    enqueued_at: float | None,
    ttl: TtlMode = TtlMode.FULL,
    from_dead_letter: bool = False,
) -> Homeward:
    """The message as it was before `for_backlog`, or before the retired library diverted it.

    `now` and `enqueued_at` (of the backlog copy) are UTC epoch seconds; they matter for TtlMode.REMAINING.
    `from_dead_letter` also takes off the reason and description that the dead-letter queue added.

    Raises:
        NotABacklogMessageError: no string property x-ms-path.
        MalformedMessageError: not an AMQP message, or an x-ms-* property of a type that says nothing.
        Both have `reason` and `description` for the dead-letter queue.
    """
    message = EncodedMessage(payload)
    properties = message.read(Section.APPLICATION_PROPERTIES)
    found = dict.fromkeys(aliases.NAMES) if properties is None else _aliases_of(message)
    destination = _destination(found[aliases.PATH])
    session = aliases.text(found[aliases.SESSION], aliases.SESSION)
    ttl_ms = aliases.time_to_live_ms(found[aliases.TIME_TO_LIVE])
    scheduled_ms = aliases.scheduled_ms(found[aliases.SCHEDULED])

    _drop_broker_fields(message)
    removed = aliases.NAMES | DEAD_LETTER_PROPERTIES if from_dead_letter else aliases.NAMES
    message.edit_map(Section.APPLICATION_PROPERTIES, removed, {})
    if ttl is TtlMode.REMAINING and ttl_ms is not None and enqueued_at is not None:
        ttl_ms = max(1, ttl_ms - int(max(0.0, now - enqueued_at) * 1000))
    _restore_time_to_live(message, ttl_ms, int(now * 1000))
    if session is not None:
        message.edit_fields(Section.PROPERTIES, {PropertyField.GROUP_ID: session})
    if scheduled_ms is not None:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol(SCHEDULED): Timestamp(scheduled_ms)})
    return Homeward(
        payload=message.result(),
        destination=destination,
        session_id=session or _text(message.field(Section.PROPERTIES, PropertyField.GROUP_ID)),
        message_id=_text(message.field(Section.PROPERTIES, PropertyField.MESSAGE_ID)),
        partition_key=_text(message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)),
        scheduled_at=None if scheduled_ms is None else scheduled_ms / 1000,
    )


def _aliases_of(message: EncodedMessage) -> Mapping[str, Any]:
    return {name: message.entry(Section.APPLICATION_PROPERTIES, name) for name in aliases.NAMES}


def _destination(value: Any) -> str:
    path = str(value).strip("/") if isinstance(value, str) else ""
    if not path:
        raise NotABacklogMessageError(
            f"The message has no string property {aliases.PATH}: it was placed here by an agent that does not use send "
            "availability."
        )
    return path


def _restore_time_to_live(message: EncodedMessage, ttl_ms: int | None, now_ms: int) -> None:
    if ttl_ms is None:
        _drop_queue_time_to_live(message)
        return
    created = _time(message, PropertyField.CREATION_TIME)
    expiry = _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME)
    message.edit_fields(Section.HEADER, {HeaderField.TTL: Uint(min(ttl_ms, aliases.MAX_HEADER_TTL_MS))})
    times: dict[int, Any] = {}
    if expiry is not None or ttl_ms > aliases.MAX_HEADER_TTL_MS:
        start = now_ms if created is None else created
        times[PropertyField.ABSOLUTE_EXPIRY_TIME] = Timestamp(min(start + ttl_ms, NEVER_MS))
    if created is None and ttl_ms > aliases.MAX_HEADER_TTL_MS:
        times[PropertyField.CREATION_TIME] = Timestamp(now_ms)
    message.edit_fields(Section.PROPERTIES, times)


def _drop_queue_time_to_live(message: EncodedMessage) -> None:
    """A message that never expires may carry the backlog queue's own time to live: not its own, so it goes."""
    if message.field(Section.HEADER, HeaderField.TTL) is None:
        return
    message.edit_fields(Section.HEADER, {HeaderField.TTL: None}, drop_empty=True)
    if _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME) is not None:
        message.edit_fields(Section.PROPERTIES, {PropertyField.ABSOLUTE_EXPIRY_TIME: None}, drop_empty=True)


def strip_broker_annotations(payload: bytes) -> bytes:
    """The message without what the delivering broker added: its annotations, lock token and delivery count.

    Raises:
        MalformedMessageError: not an AMQP message.
    """
    message = EncodedMessage(payload)
    _drop_broker_fields(message)
    return message.result()


def _drop_broker_fields(message: EncodedMessage) -> None:
    message.edit_map(Section.MESSAGE_ANNOTATIONS, BROKER_ANNOTATIONS, {})
    message.edit_map(Section.DELIVERY_ANNOTATIONS, LOCK_TOKEN, {})
    if message.field(Section.HEADER, HeaderField.DELIVERY_COUNT) is not None:
        message.edit_fields(Section.HEADER, {HeaderField.DELIVERY_COUNT: None}, drop_empty=True)


def is_ping(payload: bytes) -> bool:
    """Whether the message is a ping of a failover sender (seed 000: by its content type).

    Raises:
        MalformedMessageError: not an AMQP message.
    """
    return EncodedMessage(payload).content_type == PING_CONTENT_TYPE


def _time(message: EncodedMessage, index: PropertyField) -> int | None:
    """A timestamp of the properties in epoch milliseconds; anything else counts as not set and is left alone."""
    value = message.field(Section.PROPERTIES, index)
    return int(value) if isinstance(value, Timestamp) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
