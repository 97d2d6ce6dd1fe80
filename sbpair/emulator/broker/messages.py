"""A message as the broker keeps it: the sender's bytes plus what the broker knows about them.

The payload is never decoded and encoded again. On the way in only header, properties and message annotations are read;
on the way out exactly three sections are edited: the header's delivery count, the delivery annotations (lock token) and
the broker's own message annotations. Only dead-lettering, "properties to modify" and rule actions change more.
"""

import uuid
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section, Span
from sbpair.amqp.types import AmqpError, Long, MapPairs, Symbol, Timestamp, Uint
from sbpair.amqp.types import Int as AmqpInt
from sbpair.emulator.laws import Laws
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

BATCH_FORMAT = 0x80013700
PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"

LOCK_TOKEN = Symbol("x-opt-lock-token")
SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
ENQUEUED_TIME = Symbol("x-opt-enqueued-time")
LOCKED_UNTIL = Symbol("x-opt-locked-until")
ENQUEUE_SEQUENCE_NUMBER = Symbol("x-opt-enqueue-sequence-number")
MESSAGE_STATE = Symbol("x-opt-message-state")
DEAD_LETTER_SOURCE = Symbol("x-opt-deadletter-source")
SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
DELIVERY_TIME = Symbol("x-opt-delivery-time")
"""What a JMS client sets for its delivery delay, where the connection offers it."""
PARTITION_KEY = Symbol("x-opt-partition-key")
VIA_PARTITION_KEY = Symbol("x-opt-via-partition-key")
_BROKER_ANNOTATIONS = (
    SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    ENQUEUE_SEQUENCE_NUMBER,
    MESSAGE_STATE,
    DEAD_LETTER_SOURCE,
)
_HEAD_SECTIONS = frozenset(
    {
        Section.HEADER,
        Section.DELIVERY_ANNOTATIONS,
        Section.MESSAGE_ANNOTATIONS,
        Section.PROPERTIES,
        Section.APPLICATION_PROPERTIES,
    }
)
_EDITED_LATER = (Section.DELIVERY_ANNOTATIONS, Section.APPLICATION_PROPERTIES)
_MAX_TTL_MS = 2**32 - 1
_EMPTY_MAP = encode({})
_EMPTY_LIST = encode([])
_EDITED = frozenset({Section.HEADER, Section.DELIVERY_ANNOTATIONS, Section.MESSAGE_ANNOTATIONS})
_HEADER_START = sections.section_bytes(Section.HEADER, b"")
_DELIVERY_START = sections.section_bytes(Section.DELIVERY_ANNOTATIONS, b"")
_ANNOTATIONS_START = sections.section_bytes(Section.MESSAGE_ANNOTATIONS, b"")
_TOKEN_ALONE = encode({LOCK_TOKEN: uuid.UUID(int=0)})[:-16]
"""Delivery annotations with nothing but a lock token, up to its 16 bytes."""
_SHORT_HEADER_BYTES = 64
_LONGEST_ID = Laws().max_id_characters


class MessageStateCode(IntEnum):
    """The value of `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What the broker reads of a sent message beside its id. `scheduled_at` is epoch seconds, `ttl_seconds` is what
    the sender wishes. Messages that say the same share one."""

    session_id: str | None
    partition_key: str | None
    via_partition_key: str | None
    """Binds the message to a partition of the entity through which a transaction sends it."""
    content_type: str | None
    ttl_seconds: float | None
    scheduled_at: float | None

    @property
    def is_ping(self) -> bool:
        return self.content_type == PING_CONTENT_TYPE


class Message:
    """One message in one place. Mutable; owned by the mailbox that holds it.

    Where its sections lie is not kept: to find them takes less time than most else that is done with a message, and a
    hundred thousand of them may be kept.
    """

    __slots__ = (
        "dead_letter_source",
        "delivery_count",
        "enqueued_at",
        "enqueued_sequence_number",
        "expires_at",
        "head",
        "hops",
        "locked",
        "locked_until",
        "message_id",
        "payload",
        "row",
        "sequence_number",
        "state",
    )

    def __init__(self, payload: bytes, message_id: object, head: MessageHead) -> None:
        self.payload = payload
        self.message_id = message_id
        self.head = head
        self.sequence_number = 0
        self.enqueued_at = 0.0
        self.expires_at: float | None = None
        self.delivery_count = 0
        self.state = MessageStateCode.ACTIVE
        self.locked = False
        self.locked_until: float | None = None
        """Of a deferred message: when the lock under which it was deferred would have ended."""
        self.enqueued_sequence_number: int | None = None
        self.dead_letter_source: str | None = None
        self.hops = 0
        self.row = 0

    def copy(self) -> "Message":
        """The same bytes for another place; what a place decides (number, times, counts) starts again."""
        twin = Message(self.payload, self.message_id, self.head)
        twin.hops = self.hops
        twin.enqueued_sequence_number = self.enqueued_sequence_number
        twin.dead_letter_source = self.dead_letter_source
        return twin

    def edit(self, changes: Mapping[Section, bytes | None]) -> None:
        """Replace whole sections of the stored bytes."""
        self.payload = sections.edit(self.payload, changes)

    def section(self, section: Section) -> object:
        """The decoded value of one section, or None."""
        return sections.read(self.payload, sections.scan(self.payload), section)

    def put_application_properties(self, properties: Mapping[str, object], removed: Collection[str] = ()) -> None:
        """Set application properties, and drop those that are named as removed; the other entries keep their bytes."""
        if properties or removed:
            value = self._value(Section.APPLICATION_PROPERTIES, _EMPTY_MAP)
            edited = sections.edit_map(value, removed, properties)
            section = sections.section_bytes(Section.APPLICATION_PROPERTIES, edited)
            self.edit({Section.APPLICATION_PROPERTIES: section})

    def set_properties(self, fields: Mapping[int, object], longest: int = _LONGEST_ID) -> None:
        """Set fields of the properties section; the others keep their bytes. BrokerError for an id that is too long."""
        if fields:
            edited = sections.edit_fields(self._value(Section.PROPERTIES, _EMPTY_LIST), fields)
            self.edit({Section.PROPERTIES: sections.section_bytes(Section.PROPERTIES, edited)})
            self.message_id, self.head = read_head(self.payload, sections.scan(self.payload), longest)

    def render_delivery(self, *, lock_token: uuid.UUID | None = None, locked_until: float | None = None) -> bytes:
        """The bytes of a delivery, which has the entity's time to live where that ends sooner than the sender's."""
        twin = self._with_time_to_live()
        return (twin or self).render(lock_token=lock_token, locked_until=locked_until)

    def _with_time_to_live(self) -> "Message | None":
        if self.expires_at is None:
            return None
        lives, own = self.expires_at - self.enqueued_at, self.head.ttl_seconds
        if own is not None and own <= lives + 0.001:
            return None
        header = sections.edit_fields(
            self._value(Section.HEADER, _EMPTY_LIST), {HeaderField.TTL: Uint(min(round(lives * 1000), _MAX_TTL_MS))}
        )
        properties = self.section(Section.PROPERTIES)
        created = sections.field(properties if isinstance(properties, list) else None, PropertyField.CREATION_TIME)
        times: dict[int, object] = {PropertyField.ABSOLUTE_EXPIRY_TIME: milliseconds(self.expires_at)}
        if created is None:
            times[PropertyField.CREATION_TIME] = milliseconds(self.enqueued_at)
        edited = sections.edit_fields(self._value(Section.PROPERTIES, _EMPTY_LIST), times)
        changes: dict[Section, bytes | None] = {
            Section.HEADER: sections.section_bytes(Section.HEADER, header),
            Section.PROPERTIES: sections.section_bytes(Section.PROPERTIES, edited),
        }
        twin = self.copy()
        twin.sequence_number, twin.enqueued_at, twin.state = self.sequence_number, self.enqueued_at, self.state
        twin.delivery_count = self.delivery_count
        twin.edit(changes)
        return twin

    def render(self, *, lock_token: uuid.UUID | None = None, locked_until: float | None = None) -> bytes:
        """The sender's bytes with the broker's annotations: what a browser sees. With a lock token for peek-lock."""
        payload, spans = self.payload, sections.scan(self.payload)
        stored = {span.section: payload[span.value_start : span.end] for span in spans if span.section in _EDITED}
        header = _counted(stored.get(Section.HEADER, _EMPTY_LIST), self.delivery_count)
        delivery = stored.get(Section.DELIVERY_ANNOTATIONS)
        if delivery is None and lock_token is not None:
            delivery = _TOKEN_ALONE + lock_token.bytes
        else:
            token = {} if lock_token is None else {LOCK_TOKEN: lock_token}
            delivery = sections.edit_map(delivery or _EMPTY_MAP, (LOCK_TOKEN,), token)
        stamps = self._stamps(locked_until)
        annotations = stored.get(Section.MESSAGE_ANNOTATIONS)
        if annotations is None:
            annotations = encode(stamps)
        else:
            stale = [name for name in _BROKER_ANNOTATIONS if name not in stamps]
            annotations = sections.edit_map(annotations, stale, stamps)
        # The edited sections come first in nearly every message, so that the rest is one slice of the stored bytes;
        # azure-servicebus writes delivery annotations last. The rest keeps the sender's order.
        first = next((index for index, span in enumerate(spans) if span.section not in _EDITED), len(spans))
        if first == len(stored):
            rest = payload[spans[first].start :] if first < len(spans) else b""
        else:
            rest = b"".join([payload[span.start : span.end] for span in spans if span.section not in _EDITED])
        return b"".join((_HEADER_START, header, _DELIVERY_START, delivery, _ANNOTATIONS_START, annotations, rest))

    def _stamps(self, locked_until: float | None) -> dict[object, object]:
        stamps: dict[object, object] = {
            SEQUENCE_NUMBER: Long(self.sequence_number),
            ENQUEUED_TIME: milliseconds(self.enqueued_at),
        }
        if locked_until is None and self.state is MessageStateCode.DEFERRED:
            # Browsed deferred messages have one (azure-sdk-for-net, CreateFromReceivedMessageCopiesPropertiesTopic);
            # which time it is there is unknown.
            locked_until = self.locked_until or self.enqueued_at
        if locked_until is not None:
            stamps[LOCKED_UNTIL] = milliseconds(locked_until)
        if self.enqueued_sequence_number is not None:
            stamps[ENQUEUE_SEQUENCE_NUMBER] = Long(self.enqueued_sequence_number)
        if self.state is not MessageStateCode.ACTIVE:
            stamps[MESSAGE_STATE] = AmqpInt(self.state)
        if self.dead_letter_source is not None:
            stamps[DEAD_LETTER_SOURCE] = self.dead_letter_source
        return stamps

    def _value(self, section: Section, default: bytes) -> bytes:
        for span in sections.scan(self.payload):
            if span.section == section:
                return self.payload[span.value_start : span.end]
        return default


def _counted(header: bytes, delivery_count: int) -> bytes:
    """A header with this delivery count."""
    return (_cached_count if len(header) <= _SHORT_HEADER_BYTES else _count)(header, delivery_count)


def _count(header: bytes, delivery_count: int) -> bytes:
    return sections.edit_fields(header, {HeaderField.DELIVERY_COUNT: Uint(delivery_count)})


_cached_count = lru_cache(maxsize=256)(_count)
"""Nearly all messages have one of a few headers."""


def milliseconds(instant: float) -> Timestamp:
    """An instant in epoch seconds as an AMQP timestamp."""
    return Timestamp(round(instant * 1000))


def parse(payload: bytes, laws: Laws) -> Message:
    """A sent message, or BrokerError: bytes that are no message, a section before the body that cannot be decoded, ids
    that are none or have over 128 characters, headers over 64 KB.

    All that the broker may have to edit later (delivery annotations, application properties) is decoded here once: a
    message that could not be given out, dead-lettered or filtered would block its queue for ever.
    """
    try:
        spans = sections.scan(payload)
        _check_header_size(spans, laws.max_header_bytes)  # before anything of them is decoded
        message_id, head = read_head(payload, spans, laws.max_id_characters)
        for section in _EDITED_LATER:
            sections.read(payload, spans, section)
        footer = next((span for span in spans if span.section is Section.FOOTER), None)
        if footer is not None and laws.footer_keys_are_symbols:
            # Java writes the keys of a footer as strings and reads symbols: the service gives symbols back.
            keyed = sections.with_symbol_keys(payload[footer.value_start : footer.end])
            payload = payload[: footer.value_start] + keyed + payload[footer.end :]
    except AmqpError as error:
        raise BrokerError(errors.DECODE_ERROR, f"The message cannot be decoded: {error}") from error
    return Message(payload, message_id, head)


def _check_header_size(spans: tuple[Span, ...], limit: int) -> None:
    header_bytes = sum(span.end - span.start for span in spans if span.section in _HEAD_SECTIONS)
    if header_bytes > limit:
        raise BrokerError(
            errors.SIZE_EXCEEDED, f"The headers of the message take {header_bytes} bytes; the limit is {limit} bytes."
        )


def revive(payload: bytes) -> Message:
    """A message that was accepted before: the limits are not checked again (dead-lettering may have added to it)."""
    return Message(payload, *read_head(payload, sections.scan(payload), len(payload)))


def split_batch(payload: bytes) -> Iterator[bytes]:
    """The messages inside a batch (message format 0x80013700): one complete message per data section.

    The envelope's own properties and annotations repeat the first message's and are dropped. Raises BrokerError
    decode-error, with or without having given some of them.
    """
    found = False
    try:
        for span in sections.scan(payload):
            if span.section == Section.DATA:
                found = True
                yield sections.read_span(payload, span)
    except AmqpError as error:
        raise BrokerError(errors.DECODE_ERROR, f"The batch cannot be decoded: {error}") from error
    if not found:
        raise BrokerError(errors.DECODE_ERROR, "A batch must hold its messages in data sections.")


def read_head(payload: bytes, spans: tuple[Span, ...], longest: int = _LONGEST_ID) -> tuple[object, MessageHead]:
    """A message's id, and the few fields that steer it. Ids have `longest` characters at most.

    Raises AmqpDecodeError, or BrokerError for ids that are too long.
    """
    header = _list(sections.read(payload, spans, Section.HEADER))
    properties = _list(sections.read(payload, spans, Section.PROPERTIES))
    annotations = as_mapping(sections.read(payload, spans, Section.MESSAGE_ANNOTATIONS))
    ttl = sections.field(header, HeaderField.TTL)
    message_id = _identifier(sections.field(properties, PropertyField.MESSAGE_ID), longest)
    return message_id, _head(
        _text(sections.field(properties, PropertyField.GROUP_ID), "SessionId", longest),
        _text(annotations.get(PARTITION_KEY), "PartitionKey", longest),
        _text(annotations.get(VIA_PARTITION_KEY), "TransactionPartitionKey", longest),
        _plain_text(sections.field(properties, PropertyField.CONTENT_TYPE)),
        ttl / 1000 if isinstance(ttl, int) and not isinstance(ttl, bool) else None,
        _instant(annotations.get(SCHEDULED_TIME) or annotations.get(DELIVERY_TIME)),
    )


@lru_cache(maxsize=1024)
def _head(*fields: Any) -> MessageHead:
    return MessageHead(*fields)


def as_mapping(value: object) -> Mapping[object, object]:
    """A decoded map section as a mapping, also when equal keys forced pairs; empty for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, MapPairs):
        return {key: item for key, item in value if isinstance(key, str)}
    return {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object, what: str, longest: int) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is not None and not isinstance(value, str):
        raise BrokerError(errors.DECODE_ERROR, f"The {what} is of the type {type(value).__name__}, not a string.")
    short = _short(value, what, longest)
    return None if short is None else str(short)


def _identifier(value: object, longest: int) -> object:
    """A message id in one of its four types (§3.2.4)."""
    if value is not None and not isinstance(value, str | bytes | uuid.UUID | int):
        raise BrokerError(errors.DECODE_ERROR, f"The MessageId is of the type {type(value).__name__}.")
    return _short(value, "MessageId", longest)


def _plain_text(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None


def _short(value: object, what: str, longest: int) -> object:
    if isinstance(value, str | bytes) and len(value) > longest:
        raise BrokerError(errors.ARGUMENT_ERROR, f"The {what} has {len(value)} characters; the limit is {longest}.")
    return value


def _instant(value: object) -> float | None:
    return int(value) / 1000 if isinstance(value, int) and not isinstance(value, bool) else None


class MessageLog:
    """A mapping of sequence number to message that can be read in order from any point.

    Removing leaves a hole in the order, and the order is rebuilt when holes outnumber messages: adding at the end,
    removing and looking up take constant time on average.
    """

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return self.since(0)

    def get(self, sequence_number: int) -> Message | None:
        return self._messages.get(sequence_number)

    def add(self, message: Message) -> None:
        number = message.sequence_number
        if self._order and number <= self._order[-1]:
            self._insert(number)
        else:
            self._order.append(number)
        self._messages[number] = message

    def remove(self, message: Message) -> bool:
        """Take the message out; False if it was not (or no longer) here."""
        if self._messages.get(message.sequence_number) is not message:
            return False
        del self._messages[message.sequence_number]
        if len(self._order) > 2 * len(self._messages) + 64:
            self._order = [number for number in self._order if number in self._messages]
        return True

    def since(self, sequence_number: int) -> Iterator[Message]:
        """Messages with at least this number, ascending. The log must not change while the iterator is used."""
        order, messages = self._order, self._messages
        for index in range(bisect_left(order, sequence_number), len(order)):
            message = messages.get(order[index])
            if message is not None:
                yield message

    def first(self) -> Message | None:
        """The message with the lowest number."""
        return next(iter(self), None)

    def _insert(self, number: int) -> None:
        position = bisect_left(self._order, number)
        if position == len(self._order) or self._order[position] != number:
            insort(self._order, number)
