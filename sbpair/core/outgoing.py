"""What the sender has to know about an encoded message before it sends it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbpair.amqp.sections import PropertyField, Section
from sbpair.core import aliases
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import ArgumentRefusedError, MessageTooLargeError
from sbpair.core.rewrite import PARTITION_KEY, SCHEDULED, for_backlog

BATCH_ENVELOPE_BYTES = 1024
"""Room for the properties that a batch repeats on its envelope."""
BATCH_ENTRY_BYTES = 8
"""Descriptor and length of one message inside a batch."""

_RESERVED = tuple(name.encode() for name in aliases.NAMES)


@dataclass(frozen=True, slots=True)
class Keys:
    """The session id and partition key of a message."""

    session_id: str | None
    partition_key: str | None

    @property
    def pin(self) -> str | None:
        """What pins the message to a partition."""
        return self.session_id if self.session_id is not None else self.partition_key


def keys_of(payload: bytes) -> Keys:
    """Raises MalformedMessageError for bytes that are not a message."""
    message = EncodedMessage(payload)
    session = message.field(Section.PROPERTIES, PropertyField.GROUP_ID)
    key = message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    return Keys(None if session is None else str(session), None if key is None else str(key))


def is_scheduled(payload: bytes) -> bool:
    """The message carries the annotation that schedules it."""
    return EncodedMessage(payload).entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED) is not None


def refuse_reserved(payload: bytes, entity: str) -> None:
    """Find out at once, not in the middle of an outage, that a message could not be diverted.

    Raises:
        ReservedPropertyError: the application uses one of the four x-ms-* names.
    """
    if any(name in payload for name in _RESERVED):
        for_backlog(payload, entity)


def check_partitioning(all_keys: Sequence[Keys], entity: str) -> None:
    """The rules of partitioned entities (seed 003).

    Raises:
        ArgumentRefusedError: a partition key that differs from the session id, or a batch with more than one key.
    """
    for keys in all_keys:
        if None not in (keys.session_id, keys.partition_key) and keys.session_id != keys.partition_key:
            raise ArgumentRefusedError(
                f"The partition key {keys.partition_key!r} differs from the session id {keys.session_id!r}.",
                hint="On a partitioned entity both are the same, or only one of them is set.",
                entity=entity,
            )
    if len({keys.pin for keys in all_keys}) > 1:
        raise ArgumentRefusedError(
            "The messages of one batch to a partitioned entity share their session id or partition key; these do not.",
            hint="Send them in one batch per key.",
            entity=entity,
        )


def first_that_fit(payloads: Iterable[bytes], limit_bytes: int, *, queue: str) -> int:
    """How many of the payloads (in backlog form) fit one transfer of at most `limit_bytes`; at least one.

    Raises:
        MessageTooLargeError: the first one alone does not fit: the x-ms-* properties took it over the limit, or the
            backlog queue takes less than the primary does.
    """
    count, size = 0, BATCH_ENVELOPE_BYTES
    for payload in payloads:
        if not count and len(payload) > limit_bytes:
            raise MessageTooLargeError(
                f"With the properties added for the backlog the message has {len(payload)} bytes; {queue} takes at "
                f"most {limit_bytes}. It was not sent.",
                hint="Make the message smaller, or raise the limit of the backlog queues (Premium).",
                entity=queue,
            )
        size += len(payload) + BATCH_ENTRY_BYTES
        if count and size > limit_bytes:
            break
        count += 1
    return count
