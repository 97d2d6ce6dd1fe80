"""Browsed messages: the facts, the body as text or hex, the exact bytes; and messages grouped and counted."""

import base64
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from sbpair.amqp.sections import Section, read_span, scan
from sbpair.amqp.types import AmqpError
from sbpair.core.errors import ServiceError
from sbpair.core.message import MessageState, Received
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, INLINED, OMITTED_IF_NONE, Time, column, iso_time
from sbpair.core.summary import MessageSummary, plain
from sbpair.core.words import counted
from sbpair.service import session_key

# What a dead-letter reason of a backlog queue means: sbpair's own reasons, the service's, and the texts of the retired
# paired-namespaces library (WindowsAzure.ServiceBus).

_RETIRED = "The retired library's syphon put it there: "
_BY_REASON = {
    "Destination queue not indicated in message when fetched from backlog.": _RETIRED
    + "it has no destination (`x-ms-path`), so some other program put it into the backlog queue. No drain can know "
    "where it belongs; keep it with: sbpair drain {pair} --dlq --archive DIR",
    "The message cannot be delivered to the destination.": _RETIRED
    + "the destination refused it, most often because it did not exist. Create the destination, then: "
    "sbpair drain {pair} --dlq",
    "Invalid type in property.": _RETIRED
    + "one of its `x-ms-` properties has a type that the library does not write (the description names it). Keep it "
    "with: sbpair drain {pair} --dlq --archive DIR",
    "TTLExpiredException": "The service put it there: its time to live was over before anybody received it. To deliver "
    "it all the same: sbpair drain {pair} --dlq",
    "MaxDeliveryCountExceeded": "The service put it there: it was received and not settled too often. To try again: "
    "sbpair drain {pair} --dlq",
    "EntityNotFound": "Its destination did not exist. Create the destination, then: sbpair drain {pair} --dlq",
    "MessageTooLarge": "It is too large for its destination. Keep it with: sbpair drain {pair} --dlq --archive DIR",
    "ArgumentRefused": "Its destination refuses it as it is, for example without a session id where sessions are "
    "required (see the description). Keep it with: sbpair drain {pair} --dlq --archive DIR",
    "NotABacklogMessage": "It has no destination (`x-ms-path`): another program put it into the backlog queue. Keep it "
    "with: sbpair drain {pair} --dlq --archive DIR",
    "InvalidDestination": "Its destination is not the path of a queue or topic and is never opened. Keep it with: "
    "sbpair drain {pair} --dlq --archive DIR",
}
_MISSING = "MessagingEntityNotFoundException"


def meaning_of(reason: str | None, description: str | None) -> str | None:
    """A sentence with the command that helps (`{pair}`: the pair's name); None for a reason not known here."""
    text = _BY_REASON.get(reason or "")
    if text is not None and text.startswith(_RETIRED) and _MISSING in (description or ""):
        return _RETIRED + "its destination did not exist. Create the destination, then: sbpair drain {pair} --dlq"
    return text


BodyEncoding = Literal["text", "hex", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """Every fact of one message. `payload_base64` holds its exact bytes, which `sbpair send` takes again."""

    queue: str = field(metadata=column("Queue"))
    sequence_number: int = field(metadata=column("Number", right=True))
    enqueued_at: Time | None = field(metadata=column("Enqueued"))
    destination: str | None = field(metadata=column("Destination"))
    session_id: str | None = field(metadata=column("Session"))
    message_id: str | None = field(metadata=column("Message id"))
    correlation_id: str | None
    subject: str | None = field(metadata=column("Subject"))
    content_type: str | None
    partition_key: str | None
    size_bytes: int = field(metadata=column("Bytes", right=True))
    ttl_seconds: float | None = field(metadata=column("TTL s", right=True))
    scheduled_at: Time | None
    state: MessageState = field(metadata=column("State"))
    delivery_count: int
    reason: str | None = field(metadata=column("Reason"))
    description: str | None
    unreadable: str | None
    """Why a part of it could not be read."""
    application_properties: Mapping[str, Any]
    payload_base64: str
    body_encoding: BodyEncoding | None = field(default=None, metadata=OMITTED_IF_NONE)
    body: str | None = field(default=None, metadata={**OMITTED_IF_NONE, **column("Body")})


@dataclass(frozen=True, slots=True)
class Group:
    """How many messages have these values of the keys that were asked for."""

    values: Mapping[str, str | None] = field(metadata=INLINED)
    messages: int = field(metadata=column("Messages", counts=True))
    size_bytes: int = field(metadata=column("Bytes", right=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    newest: Time | None = field(metadata=column("Newest"))


@dataclass(frozen=True, slots=True)
class NotBrowsed:
    """A queue that could not be browsed (to its end)."""

    queue: str
    error: ServiceError = field(metadata=INLINED)


class _Browsed:
    """What a browse has shown."""

    __slots__ = ()
    looked_at: int
    left_off: bool
    noun = "message"

    @property
    def shown(self) -> int:
        """Messages that are in the result, one by one or in groups."""
        raise NotImplementedError

    @property
    def closing(self) -> str:
        """The last sentence: how many messages, of how many."""
        more = "; there may be more, see --limit" if self.left_off else ""
        return f"{counted(self.shown, self.noun)} shown of {self.looked_at:,} browsed{more}."


@dataclass(frozen=True, slots=True)
class _Peek(_Browsed):
    pair: str
    looked_at: int
    left_off: bool
    """There may be more."""
    not_read: tuple[NotBrowsed, ...]
    explained: tuple[str, ...] = field(metadata=HIDDEN)
    """What the reasons of dead letters among them mean."""

    @property
    def exit(self) -> Exit:
        """Partial if a queue could not be browsed."""
        return Exit.PARTIAL if self.not_read else Exit.OK

    @property
    def notes(self) -> tuple[str, ...]:
        """What reasons mean, and why a queue was not read, one sentence each."""
        return (*self.explained, *(f"Not read: {queue.queue}: {queue.error.message}" for queue in self.not_read))


@dataclass(frozen=True, slots=True)
class Messages(_Peek):
    """What `peek -o json` prints."""

    messages: tuple[PeekedMessage, ...]

    @property
    def shown(self) -> int:
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Groups(_Peek):
    """What `peek --group-by -o json` prints."""

    groups: tuple[Group, ...]

    @property
    def shown(self) -> int:
        return sum(group.messages for group in self.groups)


PeekResult = Messages | Groups


@dataclass(frozen=True, slots=True)
class DeadLetters(_Browsed):
    """What `dlq peek` and `entity peek -o json` print. `left_off`: there may be more."""

    namespace: str
    entity: str
    looked_at: int
    left_off: bool
    messages: tuple[PeekedMessage, ...]
    groups: tuple[Group, ...] | None
    """With `--group-by`: how many there are of each kind, and no messages."""
    noun: str = field(metadata=HIDDEN)
    notes: tuple[str, ...] = field(metadata=HIDDEN)
    """Why nothing can be seen."""
    exit = Exit.OK

    @property
    def shown(self) -> int:
        return len(self.messages) + sum(group.messages for group in self.groups or ())


def of_a_topic(path: str, namespace: str = "") -> str:
    """What can be seen of the messages of a topic. `namespace`: as it is typed, for the command that lists the rest."""
    where = f"The others are in its subscriptions, {path}/Subscriptions/NAME."
    if namespace:
        where += f" List them: {shlex.join(['sbpair', 'entity', 'list', f'{path}/*', '--namespace', namespace])}"
    return f"{path} is a topic: only its scheduled messages lie in it. {where}"


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
        name, characters = _TAKEN.get(self, (self.value.replace("-", "_"), None))
        value = getattr(message, name)
        return None if value is None else str(value)[:characters]


_TAKEN: dict[GroupKey, tuple[str, int | None]] = {
    GroupKey.SESSION: ("session_id", None),
    GroupKey.SCHEDULED: ("scheduled_at", len("2026-01-01T00:00")),
    GroupKey.DAY: ("enqueued_at", len("2026-01-01")),
    GroupKey.HOUR: ("enqueued_at", len("2026-01-01T00")),
    GroupKey.MINUTE: ("enqueued_at", len("2026-01-01T00:00")),
}
"""Keys that are not named after the field of a message, or are its beginning."""


def peeked(queue: str, received: Received, summary: MessageSummary, *, with_body: bool) -> PeekedMessage:
    """One message as it is shown. `queue`: path of the queue; a dead-letter queue ends in `/$deadletterqueue`."""
    body_encoding, body = readable_body(received.payload) if with_body else (None, None)
    return PeekedMessage(
        queue=queue,
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


def grouped(messages: Iterable[PeekedMessage], keys: tuple[GroupKey, ...]) -> tuple[Group, ...]:
    """The messages by these keys; the biggest group first. Destinations and sessions are compared without case, and
    have the spelling that came first."""
    spellings: dict[tuple[GroupKey, str], str] = {}
    groups: dict[tuple[str | None, ...], list[PeekedMessage]] = {}

    def value(key: GroupKey, message: PeekedMessage) -> str | None:
        found = key.of(message)
        if key not in (GroupKey.DESTINATION, GroupKey.SESSION) or found is None:
            return found
        return spellings.setdefault((key, session_key(found)), found)

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


def columns_without_body() -> tuple[str, ...]:
    """The fields of a message that a table without bodies shows."""
    return tuple(one.name for one in fields(PeekedMessage) if "column" in one.metadata and one.name != "body")


# The sessions of an entity: what they hold, and their states.


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session with messages or a state."""

    session_id: str = field(metadata=column("Session"))
    active: int = field(metadata=column("Active", counts=True))
    deferred: int = field(metadata=column("Deferred", counts=True))
    scheduled: int = field(metadata=column("Scheduled", counts=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    locked: bool | None = field(default=None, metadata=column("Locked"))
    """By a receiver; None: nobody has tried."""
    state_bytes: int | None = field(default=None, metadata=column("State bytes", right=True))
    """0: it has none; None: nobody has looked, or it is locked."""


@dataclass(frozen=True, slots=True)
class SessionList:
    """The sessions of an entity, as `session list -o json` prints them."""

    namespace: str
    entity: str
    sessions: tuple[SessionFacts, ...]

    @property
    def closing(self) -> str:
        """The last sentence."""
        locked = sum(one.locked is True for one in self.sessions)
        active = sum(one.active for one in self.sessions)
        tried = "" if all(one.locked is None for one in self.sessions) else f", {locked:,} of them locked by receivers"
        sessions = counted(len(self.sessions), "session")
        return f"{self.entity} has {sessions} with {counted(active, 'active message')}{tried}."


@dataclass(frozen=True, slots=True)
class ShownSession:
    """One session with its state, and what it was before a command changed it."""

    namespace: str
    entity: str
    session: SessionFacts
    state_text: str | None
    """As text, where it is UTF-8; otherwise `state_hex` has it."""
    state_hex: str | None
    changed: bool = False
    previous_hex: str | None = None
    """What the command has replaced."""


def sessions_of(received: Iterable[Received], with_state: Iterable[str]) -> dict[str, SessionFacts]:
    """By `session_key`: those that messages belong to, and those that only have a state."""
    found: dict[str, SessionFacts] = {}
    counts: dict[str, list[Received]] = {}
    for message in received:
        if message.session_id is not None:
            counts.setdefault(session_key(message.session_id), []).append(message)
    for key, messages in counts.items():
        times = [message.enqueued_at for message in messages if message.enqueued_at is not None]
        states = [message.state for message in messages]
        found[key] = SessionFacts(
            messages[0].session_id or "",
            states.count(MessageState.ACTIVE),
            states.count(MessageState.DEFERRED),
            states.count(MessageState.SCHEDULED),
            iso_time(min(times, default=None)),
        )
    for spelled in with_state:
        found.setdefault(session_key(spelled), SessionFacts(spelled, 0, 0, 0, None))
    return found
