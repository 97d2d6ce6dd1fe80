"""The backlog form of a message, and the way back: a round trip that leaves every other byte alone.

What "Paired Namespaces: Implementation Details and Cost" and the retired library do, exactly, because their messages
are still out there:

    on the way in                                         application property it is kept in
    destination                                           x-ms-path                     string
    group-id (the session), cleared                       x-ms-sessionid                string
    header ttl, cleared                                   x-ms-timetolive               com.microsoft:timespan, 100 ns
    x-opt-scheduled-enqueue-time, removed                 x-ms-scheduledenqueuetimeutc  timestamp, ms
    x-opt-partition-key, removed only if it equals the session: the two are tied, and come back together

An alias is written only for what is set; x-ms-path always. On the way back the aliases are read liberally (see
`core.system_properties`), removed, and what they stand for is set again.

Time to live has a second form: SDKs write creation-time and absolute-expiry-time besides the header's ttl, and for a
time to live that 32 bits of milliseconds cannot say (over 49.7 days) only their difference is right. So the aliased
value is that difference where the header is at its maximum, or has wrapped around as the retired library's did; in the
backlog absolute-expiry-time says "never"; and on the way back it is set again to creation-time plus time to live. The
sender's creation-time is never touched.

Some fields belong to the broker that delivered the message: its annotations, the delivery count, and the time to live
of the backlog queue with the times it stamps for it. They stay behind. A message id that the broker gave cannot be told
from a sender's, and stays: the primary would give one as well, and by this one a repeated message is known after a
crash. Everything else keeps its bytes.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Unpack

from sbpair.amqp import sections
from sbpair.amqp.decoding import decode, skip
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import AmqpError, Described, Int, Long, Symbol, Timestamp, Uint
from sbpair.core import system_properties
from sbpair.core.encoded import EncodedMessage, spans_of
from sbpair.core.errors import (
    InvalidDestinationError,
    MalformedMessageError,
    NotABacklogMessageError,
    ReservedPropertyError,
    UsageError,
)
from sbpair.core.message import PING_CONTENT_TYPE, Decoded, TtlMode, value_class
from sbpair.core.names import MAX_ID_CHARACTERS, is_destination
from sbpair.core.redact import quoted
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.system_properties import MAX_HEADER_TTL_MS

__all__ = [
    "AsSent",
    "Homeward",
    "MessageSummary",
    "TtlMode",
    "as_sent",
    "as_usual",
    "compose",
    "describe",
    "for_backlog",
    "for_primary",
    "is_ping",
    "ping_message",
    "strip_broker_annotations",
]


# New encoded messages: for `send`, the ping and the demo.

PING_TIME_TO_LIVE_SECONDS = 1.0
"""A ping lives for one second ("Paired Namespaces: Implementation Details and Cost")."""


TEXT_FIELDS = (*sections.TEXT_FIELDS, "partition_key")
"""What `compose` takes as texts."""


def compose(
    *,
    body: bytes | str,
    message_id: str,
    session_id: str | None = None,
    partition_key: str | None = None,
    application_properties: Mapping[str, Any] | None = None,
    ttl_seconds: float | None = None,
    scheduled_at: float | None = None,
    **properties: Unpack[sections.TextProperties],
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
    annotations: dict[Any, Any] = {}
    if scheduled_at is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(round(scheduled_at * 1000))
    if partition_key is not None:
        annotations[Symbol("x-opt-partition-key")] = partition_key
    return sections.build(
        header=None if ttl_seconds is None else {HeaderField.TTL: Uint(_ttl_ms(ttl_seconds))},
        message_annotations=annotations or None,
        properties=sections.text_properties(message_id, session_id, properties),
        application_properties={name: typed(value) for name, value in (application_properties or {}).items()} or None,
        data=body.encode() if isinstance(body, str) else body,
    )


def ping_message(*, message_id: str, session_id: str | None = None) -> bytes:
    """The documented ping: empty, its own content type, one second to live ("Paired Namespaces: Implementation
    Details and Cost").

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
_LOCK_TOKEN_ALONE = b"\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_LOCK_TOKEN_ALONE_BYTES = len(_LOCK_TOKEN_ALONE) + 16
"""A map with nothing but a lock token, as the service writes it: 16 bytes of any value follow. A map that is what all
messages have need not be decoded."""

DEAD_LETTER_PROPERTIES = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
_ALIASES = tuple(
    name.encode()
    for name in (
        system_properties.PATH,
        system_properties.SESSION,
        system_properties.TIME_TO_LIVE,
        system_properties.SCHEDULED,
    )
)
_PATH, _SESSION = _ALIASES[:2]
_REMOVED = frozenset(_ALIASES)
_REMOVED_FROM_DEAD_LETTERS = _REMOVED | {name.encode() for name in DEAD_LETTER_PROPERTIES}
ENQUEUED_TIME = "x-opt-enqueued-time"
PARTITION_KEY = "x-opt-partition-key"
VIA_PARTITION_KEY = "x-opt-via-partition-key"
SCHEDULED = "x-opt-scheduled-enqueue-time"

NEVER_MS = 253_402_214_400_000
"""9999-12-31T00:00:00Z, what the retired library writes for an expiry that never comes."""
LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last time that every SDK can read."""


@value_class
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
    put = _take_session(message) | _take_time_to_live(message) | _take_schedule(message)
    put[system_properties.PATH] = destination
    message.edit_map(Section.APPLICATION_PROPERTIES, (), put)
    return message.result()


def _refuse_reserved(message: EncodedMessage) -> None:
    used = [key for key, _ in message.entries(Section.APPLICATION_PROPERTIES) if key in system_properties.NAMES]
    if used:
        raise ReservedPropertyError(
            f"The message already has the application property {used[0]!r}, which the backlog form needs for itself.",
            hint=f"Rename the property; reserved are {', '.join(sorted(system_properties.NAMES))}.",
        )


def _take_session(message: EncodedMessage) -> dict[str, Any]:
    session = message.field(Section.PROPERTIES, PropertyField.GROUP_ID)
    if session is None:
        return {}
    if not isinstance(session, str):
        raise MalformedMessageError(f"The group-id of the message is a {type(session).__name__}, not a string.")
    message.edit_fields(Section.PROPERTIES, {PropertyField.GROUP_ID: None})
    _take_tied_key(message, session)
    return {system_properties.SESSION: str(session)}


def _take_tied_key(message: EncodedMessage, session: Any) -> None:
    if session and message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY) == session:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (PARTITION_KEY,), {})


def _take_time_to_live(message: EncodedMessage) -> dict[str, Any]:
    ttl = message.field(Section.HEADER, HeaderField.TTL)
    if ttl is None:
        return {}
    if not isinstance(ttl, int):
        raise MalformedMessageError(f"The ttl in the message's header is a {type(ttl).__name__}, not a number.")
    created = _time(message, PropertyField.CREATION_TIME)
    expiry = _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME)
    ttl_ms = int(ttl)
    if created is not None and expiry is not None and _says_less_than(ttl_ms, expiry - created):
        ttl_ms = expiry - created
    message.edit_fields(Section.HEADER, {HeaderField.TTL: None})
    if expiry is not None:
        message.edit_fields(Section.PROPERTIES, {PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(NEVER_MS)})
    return {
        system_properties.TIME_TO_LIVE: Described(
            Symbol(system_properties.TIMESPAN), Long(ttl_ms * system_properties.TICKS_PER_MS)
        )
    }


def _says_less_than(header_ms: int, really_ms: int) -> bool:
    """Whether a header's ttl stands for a longer time: at its maximum, or what the retired library's wrapped to."""
    if really_ms <= system_properties.MAX_HEADER_TTL_MS:
        return False
    return header_ms in (system_properties.MAX_HEADER_TTL_MS, really_ms & system_properties.MAX_HEADER_TTL_MS)


def _take_schedule(message: EncodedMessage) -> dict[str, Any]:
    scheduled = message.entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED)
    if scheduled is None:
        return {}
    if not isinstance(scheduled, Timestamp):
        raise MalformedMessageError(f"The annotation {SCHEDULED} is a {type(scheduled).__name__}, not a timestamp.")
    message.edit_map(Section.MESSAGE_ANNOTATIONS, (SCHEDULED,), {})
    return {system_properties.SCHEDULED: scheduled}


def for_primary(
    payload: bytes,
    *,
    now: float,
    enqueued_at: float | None,
    ttl: TtlMode = TtlMode.FULL,
    from_dead_letter: bool = False,
    decoded: Decoded | None = None,
) -> Homeward:
    """The message as it was before `for_backlog`, or before the retired library diverted it.

    `now` and `enqueued_at` (of the backlog copy) are UTC epoch seconds; they matter for TtlMode.REMAINING.
    `from_dead_letter` also takes off the reason and description that the dead-letter queue added. `decoded`: of
    its sections what was decoded before.

    Raises:
        NotABacklogMessageError: no string property x-ms-path.
        InvalidDestinationError: x-ms-path is not the path of a queue or topic; it must not be opened.
        MalformedMessageError: not an AMQP message, or an x-ms-* property of a type that says nothing.
        All have `reason` and `description` for the dead-letter queue.
    """
    removed = _REMOVED_FROM_DEAD_LETTERS if from_dead_letter else _REMOVED
    message = EncodedMessage(payload, {} if decoded is None else decoded.take(payload))
    taken = message.take(Section.APPLICATION_PROPERTIES, removed, _ALIASES)
    found = [taken.get(name) for name in _ALIASES]
    destination = _destination(found[0])
    session = system_properties.text(found[1], system_properties.SESSION)
    ttl_ms = system_properties.time_to_live_ms(found[2])
    scheduled_ms = system_properties.scheduled_ms(found[3])

    stamped = _drop_queue_stamps(message, has_own_time_to_live=ttl_ms is not None)
    _drop_broker_fields(message)
    if ttl is TtlMode.REMAINING and ttl_ms is not None and enqueued_at is not None:
        ttl_ms = max(1, ttl_ms - int(max(0.0, now - enqueued_at) * 1000))
    _restore_time_to_live(message, ttl_ms, int(now * 1000), stamped=stamped)
    if scheduled_ms is not None:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol(SCHEDULED): Timestamp(scheduled_ms)})
    partition_key = key_text(message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY))
    if session is not None:
        message.edit_fields(Section.PROPERTIES, {PropertyField.GROUP_ID: session})
        if session and partition_key is None:
            # The two are tied on a partitioned entity, and the retired library's syphon sets both.
            message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol(PARTITION_KEY): session})
            partition_key = session
    return Homeward(
        payload=message.result(),
        destination=destination,
        session_id=session or _text(message.field(Section.PROPERTIES, PropertyField.GROUP_ID)),
        message_id=_text(message.field(Section.PROPERTIES, PropertyField.MESSAGE_ID)),
        partition_key=partition_key,
        scheduled_at=None if scheduled_ms is None else scheduled_ms / 1000,
    )


def without_tied_key(payload: bytes) -> bytes:
    """The message without a partition key that is equal to its session id."""
    message = EncodedMessage(payload)
    _take_tied_key(message, message.field(Section.PROPERTIES, PropertyField.GROUP_ID))
    return message.result()


def sent_through(payload: bytes, source: bytes) -> bytes:
    """`payload` as a transaction sends it through the partition of `source`, a message of a partitioned entity: with
    its session id or partition key as transaction partition key, unless it has one ("TransactionPartitionKey",
    reference of ServiceBusMessage). Unchanged where the source has no key."""
    taken, message = EncodedMessage(source), EncodedMessage(payload)
    key = key_text(taken.field(Section.PROPERTIES, PropertyField.GROUP_ID)) or key_text(
        taken.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    )
    if key is None or message.entry(Section.MESSAGE_ANNOTATIONS, VIA_PARTITION_KEY) is not None:
        return payload
    message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol(VIA_PARTITION_KEY): key})
    return message.result()


def as_usual(payload: bytes, head: "Head", *, from_dead_letter: bool = False) -> Homeward | None:
    """`for_primary` of a message as brokers deliver most, if its destination, or that and its session, is all that was
    put aside: its time to live does not matter then. None for every other, and where anything is not as it should be:
    `for_primary` has the words.

    Args:
        head: of these very bytes.

    Raises:
        NotABacklogMessageError, InvalidDestinationError: as `for_primary`.
    """
    removed = _REMOVED_FROM_DEAD_LETTERS if from_dead_letter else _REMOVED
    header = _plain_header(payload[: head[0]]) if head[0] else b""
    if header is None:
        return None
    try:
        found = restored(payload, head, header, removed=removed, path_key=_PATH, session_key=_SESSION)
        if found is None:
            return None
        whole, path, session = found
        destination = _encoded_path(path)
    except (AmqpError, IndexError, UnicodeDecodeError):
        return None
    return Homeward(whole, destination, session if session is not None else head[5], head[4], session, None)


@lru_cache(maxsize=256)
def _plain_header(section: bytes) -> bytes | None:
    """A header section without the delivery count, empty if nothing else is in it; None if it has a time to live."""
    message = EncodedMessage(section)
    try:
        if message.field(Section.HEADER, HeaderField.TTL) is not None:
            return None
        _drop_broker_fields(message)
    except MalformedMessageError:
        return None
    return message.result()


@lru_cache(maxsize=1024)
def _encoded_path(value: bytes) -> str:
    """The destination that an encoded alias names: those of one backlog are few."""
    return _destination(decode(value)[0])


def _destination(value: Any) -> str:
    path = str(value).strip("/") if isinstance(value, str) else ""
    if not path:
        raise NotABacklogMessageError(
            f"The message has no string property {system_properties.PATH}: it was placed here by an agent that does "
            "not use send availability."
        )
    if not is_destination(path):
        raise InvalidDestinationError(
            f"The property {system_properties.PATH} is {quoted(path)}, which is not the path of a queue or topic. "
            "Nothing was sent to it."
        )
    return path


def _restore_time_to_live(message: EncodedMessage, ttl_ms: int | None, now_ms: int, *, stamped: bool) -> None:
    if ttl_ms is None:
        return
    created = None if stamped else _time(message, PropertyField.CREATION_TIME)
    expiry = None if stamped else _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME)
    message.edit_fields(Section.HEADER, {HeaderField.TTL: Uint(min(ttl_ms, system_properties.MAX_HEADER_TTL_MS))})
    times: dict[int, Any] = {}
    if expiry is not None or ttl_ms > system_properties.MAX_HEADER_TTL_MS:
        start = now_ms if created is None else created
        times[PropertyField.ABSOLUTE_EXPIRY_TIME] = Timestamp(min(start + ttl_ms, LAST_MS))
    if created is None and ttl_ms > system_properties.MAX_HEADER_TTL_MS:
        times[PropertyField.CREATION_TIME] = Timestamp(now_ms)
    message.edit_fields(Section.PROPERTIES, times)


def _drop_queue_stamps(message: EncodedMessage, *, has_own_time_to_live: bool) -> bool:
    """Drop what a backlog queue with a time to live of its own puts on the messages it delivers; whether it set both
    creation-time and absolute-expiry-time.

    That is the header's ttl, absolute-expiry-time, and, where the sender set none, creation-time equal to the time of
    arrival. A creation-time is known as the queue's by both: it is the enqueued time, and ttl leads from it to the
    expiry.
    """
    ttl_ms = message.field(Section.HEADER, HeaderField.TTL)
    if not isinstance(ttl_ms, int):
        return False
    created = _time(message, PropertyField.CREATION_TIME)
    expiry = _time(message, PropertyField.ABSOLUTE_EXPIRY_TIME)
    arrived = message.entry(Section.MESSAGE_ANNOTATIONS, ENQUEUED_TIME)
    stamped = created is not None and created == arrived and expiry == created + ttl_ms
    gone = [PropertyField.CREATION_TIME] if stamped else []
    if stamped or (expiry is not None and not has_own_time_to_live):
        gone.append(PropertyField.ABSOLUTE_EXPIRY_TIME)
    message.edit_fields(Section.PROPERTIES, dict.fromkeys(gone), drop_empty=True)
    if not has_own_time_to_live:
        message.edit_fields(Section.HEADER, {HeaderField.TTL: None}, drop_empty=True)
    return stamped


@dataclass(frozen=True, slots=True)
class AsSent:
    """A message as its application sent it, with what a second sender wants to know about it."""

    payload: bytes
    message_id: str | None
    session_id: str | None
    partition_key: str | None
    ttl_ms: int | None
    """Of the header, milliseconds; None: the destination's own."""
    scheduled_at: float | None = None
    """When it is, or was, to become active, UTC epoch seconds."""


def as_sent(payload: bytes, *, from_dead_letter: bool = False) -> AsSent:
    """A message of any queue or subscription, without what the service added on the way.

    Off come the broker's annotations, the lock token, the delivery count, and the times that an entity with a time to
    live of its own stamps; `from_dead_letter` also takes off the reason and the description that dead-lettering added
    ("Overview of Service Bus dead-letter queues"). The header's time to live stays, since the service's and the
    sender's cannot be told apart, and starts again. All other bytes are the same.

    Raises:
        MalformedMessageError: not an AMQP message.
    """
    message = EncodedMessage(payload)
    _drop_queue_stamps(message, has_own_time_to_live=True)
    _drop_broker_fields(message)
    message.drop_if_empty(Section.DELIVERY_ANNOTATIONS)  # where a browser is shown no lock token
    if from_dead_letter:
        message.edit_map(Section.APPLICATION_PROPERTIES, DEAD_LETTER_PROPERTIES, {})
    ttl_ms = message.field(Section.HEADER, HeaderField.TTL)
    scheduled = message.entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED)
    return AsSent(
        payload=message.result(),
        message_id=_text(message.field(Section.PROPERTIES, PropertyField.MESSAGE_ID)),
        session_id=_text(message.field(Section.PROPERTIES, PropertyField.GROUP_ID)),
        partition_key=key_text(message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)),
        ttl_ms=int(ttl_ms) if isinstance(ttl_ms, int) else None,
        scheduled_at=int(scheduled) / 1000 if isinstance(scheduled, Timestamp) else None,
    )


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
    if not message.drop_exact(Section.DELIVERY_ANNOTATIONS, _LOCK_TOKEN_ALONE, _LOCK_TOKEN_ALONE_BYTES):
        message.edit_map(Section.DELIVERY_ANNOTATIONS, LOCK_TOKEN, {})
    if message.field(Section.HEADER, HeaderField.DELIVERY_COUNT) is not None:
        message.edit_fields(Section.HEADER, {HeaderField.DELIVERY_COUNT: None}, drop_empty=True)


def is_ping(payload: bytes) -> bool:
    """Whether the message is a ping of a failover sender ("Paired Namespaces: Implementation Details and Cost": by
    its content type).

    Raises:
        MalformedMessageError: not an AMQP message.
    """
    return EncodedMessage(payload).content_type == PING_CONTENT_TYPE


def _time(message: EncodedMessage, index: PropertyField) -> int | None:
    """A timestamp of the properties in epoch milliseconds; anything else counts as not set and is left alone."""
    value = message.field(Section.PROPERTIES, index)
    return int(value) if isinstance(value, Timestamp) else None


def key_text(value: Any) -> str | None:
    """A session id or partition key as text: when azure-servicebus sends a message again that it has received, the
    partition key is binary."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else _text(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# Messages as brokers deliver and show most of them, read and restored in one walk over what comes before the body.
#
# Most have a header, a lock token (in a browse none, or an empty map), the three annotations that a broker writes and
# none of their own, then properties, application properties and one section of data. Of such a message nothing is
# decoded but what somebody asks for: `read_delivered` finds the broker's facts and where the sections begin, `opened`
# reads on from there, `restored` cuts the backlog's additions out of the very bytes. The first and
# the last answer None to every other message, and to whatever is not as it should be: `sbpair.azure.frames` and what is
# above have the long way, which takes every form there is, and the words for what is wrong.

Head = tuple[int, int, int, int, str | None, str | None]
"""Where in a message the header ends, the properties begin, and end; how many properties are written, -1 where there is
no such section; message id and session id. The lock token and the annotations lie between the first two."""

Facts = tuple[int, float | None, float | None, int, Head]
"""Sequence number, enqueued and locked until (UTC epoch seconds), delivery count, head."""

MAX_SEQUENCE_NUMBER = 2**63 - 1
MAX_DELIVERY_COUNT = 2**32 - 1

_BROKERS_OWN = (
    rb"\x00\x53\x72\xc1(.)(.)((?:"
    rb"\xa3\x15x-opt-sequence-number(?:\x55([\x00-\x7f])|\x81([\x00-\x7f].{7}))|"
    rb"\xa3\x13x-opt-enqueued-time\x83(.{8})|"
    rb"\xa3\x12x-opt-locked-until\x83(.{8})){1,3})"
    rb"(?=\x00\x53)"
)
_TOKEN = rb"\x24\x02\xa3\x10x-opt-lock-token\x98.{16}"
_ANNOTATIONS, _ANNOTATIONS_OF_BROWSED = (
    re.compile(rb"(?:\x00\x53\x71\xc1" + delivery + rb")?" + _BROKERS_OWN, re.DOTALL)
    for delivery in (_TOKEN, rb"(?:\x01\x00|" + _TOKEN + rb")")
)
"""The annotations of a message under lock, and of one that is browsed and may have an empty map in the place of its
token, if nobody has set any but the broker, in the form that services write them: an expression reads them in a sixth
of the time of a decoder. A state is among them only if the message is not active."""
_HEADER_8 = b"\x00\x53\x70\xc0"
_PROPERTIES_8 = b"\x00\x53\x73\xc0"
_PROPERTIES, _NO_PROPERTIES = b"\x00\x53\x73", b"\x00\x53\x73\x45"
_APPLICATION_PROPERTIES_8 = b"\x00\x53\x74\xc1"
_APPLICATION_PROPERTIES_32 = b"\x00\x53\x74\xd1"
_DATA_8, _DATA_32, _VALUE = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0", b"\x00\x53\x77"
_WHAT_FOLLOWS = tuple(b"\x00\x53" + bytes((section,)) for section in Section if section > Section.PROPERTIES)
"""Beginnings of what may stand behind the properties. A section that comes twice is not noticed here."""
_EARLY = frozenset({Section.HEADER, Section.PROPERTIES})
_NULL, _BINARY_8, _STRING_8, _SYMBOL_8, _TIMESTAMP = 0x40, 0xA0, 0xA1, 0xA3, 0x83
_SHORT_TEXT = frozenset({_STRING_8, _SYMBOL_8})
_SIZED_8 = _SHORT_TEXT | {_BINARY_8}
_MESSAGE_ID, _GROUP_ID = int(PropertyField.MESSAGE_ID), int(PropertyField.GROUP_ID)
_IDS = frozenset({_MESSAGE_ID, _GROUP_ID})
_RESERVED = b"x-ms-"
_PARTITION_KEY = b"\xa3\x13x-opt-partition-key"
_TIED_KEY = b"\x00\x53\x72\xc1%c\x02" + _PARTITION_KEY + b"%b"
_NULLS = bytes((_NULL,)) * _GROUP_ID
_MOST_8 = 0xFF
"""What a list or map in the short form holds is smaller."""
_MOST_SESSION_BYTES = 2 + 128
"""As encoded; the service takes ids of 128 characters."""


def read_delivered(payload: bytes, *, browsed: bool = False) -> Facts | None:
    """What the broker and the sender say of a message; None for one that is to be read the long way.

    Args:
        browsed: it is no delivery, so that it may have no lock token.

    Raises:
        AmqpError, IndexError: so is this one.
    """
    header_end = 5 + payload[4] if payload.startswith(_HEADER_8) else 0
    found = (_ANNOTATIONS_OF_BROWSED if browsed else _ANNOTATIONS).match(payload, header_end)
    if found is None:
        return None
    size, count, entries, short_number, number, enqueued, locked = found.groups()
    there = (25 if short_number else 32 if number else 0) + (30 if enqueued else 0) + (29 if locked else 0)
    keys = ((short_number or number) is not None) + (enqueued is not None) + (locked is not None)
    if size[0] != len(entries) + 1 or count[0] != 2 * keys or there != len(entries):
        return None  # one of them twice, or it is not the map that it looks like
    begin = found.end()
    if payload.startswith(_PROPERTIES_8, begin):
        end, fields = begin + 5 + payload[begin + 4], payload[begin + 5]
        if (ids := _ids(payload, begin + 6, end, fields)) is None:
            return None
        message_id, session_id = ids
    elif payload.startswith(_NO_PROPERTIES, begin):
        end, fields, message_id, session_id = begin + len(_NO_PROPERTIES), 0, None, None
    elif payload.startswith(_PROPERTIES, begin):
        return None
    else:
        end, fields, message_id, session_id = begin, -1, None, None
    if not payload.startswith(_WHAT_FOLLOWS, end) and end != len(payload):
        return None
    if (not header_end or fields < 0) and _comes_late(payload, end):
        return None
    return (
        int.from_bytes(short_number or number or b"", "big"),
        None if enqueued is None else int.from_bytes(enqueued, "big", signed=True) / 1000,
        None if locked is None else int.from_bytes(locked, "big", signed=True) / 1000,
        _delivery_count(payload[:header_end]) if header_end else 0,
        (header_end, begin, end, fields, message_id, session_id),
    )


def _comes_late(payload: bytes, end: int) -> bool:
    """Whether a header or properties stand behind what comes after them in most messages."""
    try:
        return any(span.start >= end and span.section in _EARLY for span in sections.scan(payload))
    except AmqpError:
        return False


def _ids(payload: bytes, position: int, end: int, fields: int) -> tuple[str | None, str | None] | None:
    """Message id and session id out of a list of properties with that many fields; None if one of them is of a rare
    type, is no text, or the list does not end where it says."""
    message_id = session_id = None
    try:
        for index in range(fields):
            code = payload[position]
            if code == _NULL:
                position += 1
            elif code == _STRING_8:
                start = position + 2
                position = start + payload[position + 1]
                text = str(payload[start:position], "utf-8")
                if index == _MESSAGE_ID:
                    message_id = text
                elif index == _GROUP_ID:
                    session_id = text
            elif index in _IDS:
                return None
            elif code == _TIMESTAMP:
                position += 9
            elif code == _SYMBOL_8:
                start = position + 2
                position = start + payload[position + 1]
                if not payload[start:position].isascii():
                    return None
            elif code == _BINARY_8:
                position += 2 + payload[position + 1]
            else:
                return None
    except UnicodeDecodeError:
        return None
    return (message_id, session_id) if position == end <= len(payload) else None


@lru_cache(maxsize=256)
def header_of(section: bytes) -> Any:
    """What a whole header section says; few differ in more than the delivery count."""
    return decode(section, 3)[0]


@lru_cache(maxsize=256)
def _delivery_count(section: bytes) -> int:
    count = int(sections.field(header_of(section), HeaderField.DELIVERY_COUNT) or 0)
    return count if 0 <= count <= MAX_DELIVERY_COUNT else 0


def opened(payload: bytes, head: Head) -> EncodedMessage:
    """The message to be read, not edited: what `head` tells of these very bytes is not looked for again, and the
    broker's annotations, which are all that there are, are none.

    Raises:
        MalformedMessageError: the sections behind them are not those of a message.
    """
    header_end, begin, *_ = head
    known: dict[int, Any] = {
        Section.HEADER: header_of(payload[:header_end]) if header_end else None,
        Section.MESSAGE_ANNOTATIONS: None,
    }
    return EncodedMessage(payload, known, spans_of(payload, begin, Section.MESSAGE_ANNOTATIONS))


def restored(
    payload: bytes, head: Head, header: bytes, *, removed: Collection[bytes], path_key: bytes, session_key: bytes
) -> tuple[bytes, bytes, str | None] | None:
    """The message without the application properties whose keys are `removed` (their UTF-8): its bytes, the encoded
    value of the one called `path_key`, and the session that the one called `session_key` names, if there is one.

    The session is set again, and with it the partition key that is tied to it; what the broker wrote is left out. None
    for a message that has to go the long way: one without the path, with a third property of a reserved name, or of
    another form.

    Args:
        head: as `read` found it in these very bytes.
        header: takes the place of the header section.

    Raises:
        AmqpError, IndexError, UnicodeDecodeError: it has to go the long way as well, which says what is wrong.
    """
    _, begin, end, _, _, _ = head
    start = payload[end : end + 4]
    if start == _APPLICATION_PROPERTIES_8:
        tail, count, first = end + 5 + payload[end + 4], payload[end + 5], end + 6
    elif start == _APPLICATION_PROPERTIES_32:
        tail = end + 8 + int.from_bytes(payload[end + 4 : end + 8], "big")
        count, first = int.from_bytes(payload[end + 8 : end + 12], "big"), end + 12
    else:
        return None
    path = session = None
    kept: list[bytes] = []
    left, kept_from, position = count, first, first
    for _ in range(count // 2):
        entry = position
        if payload[entry] not in _SHORT_TEXT:
            return None
        value = entry + 2 + payload[entry + 1]
        position = value + 2 + payload[value + 1] if payload[value] in _SIZED_8 else skip(payload, value)
        key = payload[entry + 2 : value]
        if key not in removed:
            continue
        if key == path_key and path is None:
            path = payload[value:position]
        elif key == session_key and session is None:
            session = payload[value:position]
        elif key.startswith(_RESERVED):
            return None
        kept.append(payload[kept_from:entry])
        kept_from, left = position, left - 2
    if path is None or position != tail or count % 2 or not _ends_with_body(payload, tail):
        return None
    before = payload[begin:end]
    name = None
    if session is not None:
        if (tied := _with_session(payload, head, session)) is None:
            return None
        before, name = tied
    if not left:
        return b"".join((header, before, payload[tail:])), path, name
    kept.append(payload[kept_from:tail])
    if start == _APPLICATION_PROPERTIES_8:
        content = b"".join(kept)
        properties = _APPLICATION_PROPERTIES_8 + bytes((len(content) + 1, left)) + content
    else:
        properties = sections.section_bytes(
            Section.APPLICATION_PROPERTIES, sections.shrunk_map(kept, left, was=count, content_bytes=tail - first)
        )
    return b"".join((header, before, properties, payload[tail:])), path, name


def _ends_with_body(payload: bytes, tail: int) -> bool:
    """Whether one section of data, one value, or nothing stands from there to the end."""
    start = payload[tail : tail + 4]
    if start == _DATA_32:
        return tail + 8 + int.from_bytes(payload[tail + 4 : tail + 8], "big") == len(payload)
    if start == _DATA_8:
        return tail + 5 + payload[tail + 4] == len(payload)
    if start.startswith(_VALUE):
        return skip(payload, tail + 3) == len(payload)
    return tail == len(payload)


def _with_session(payload: bytes, head: Head, session: bytes) -> tuple[bytes, str] | None:
    """Annotations and properties with an encoded session id set, and the id; None where this is not simply the next
    field."""
    _, begin, end, fields, _, _ = head
    if not 0 <= fields <= _GROUP_ID or session[0] != _STRING_8 or not session[1]:
        return None
    content = payload[begin + 6 : end] + _NULLS[: _GROUP_ID - fields] + session
    if len(content) >= _MOST_8 or len(session) > _MOST_SESSION_BYTES:
        return None
    annotations = _TIED_KEY % (len(_PARTITION_KEY) + len(session) + 1, session)
    properties = b"%b%c%c%b" % (_PROPERTIES_8, len(content) + 1, _GROUP_ID + 1, content)
    return annotations + properties, str(session[2:], "utf-8")
