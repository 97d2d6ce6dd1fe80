"""Messages as sbpair moves them: the sender's bytes, plus what the broker said about them.

Bytes are the truth. Nothing that passes through is decoded and encoded again; readable fields are looked up on demand
by `sbpair.amqp.sections`.
"""

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from sbpair.core.rewrite import Head


_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value_class(kind: type[_Value]) -> type[_Value]:
    """A dataclass with slots, compared and hashed by its fields, for values that are made for every message. Nobody may
    change one: mypy says who does. (A frozen dataclass sets each field by way of `object.__setattr__`, which costs a
    `Received` three times what the rest of its making does.)"""
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(kind)


PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"

PARTITION_SHIFT = 48
"""The top 16 bits of a sequence number are its partition ("Partitioned queues and topics")."""

BATCH_ENVELOPE_BYTES = 1024
"""Room kept in a batch for its envelope: a copy of the first message's id, session and partition key."""
BATCHED_MESSAGE_BYTES = 8
"""Each message of a batch is a data section: 3 bytes of descriptor, 5 of a long binary (AMQP 1.0 §3.2.6)."""

NEXT_AVAILABLE_SESSION = "next available session".ljust(129, ".")
"""Given as a receiver's session id: whichever session waits and nobody holds. Longer than the service lets an id be."""


class MessageState(StrEnum):
    """Message state as a browse reports it (annotation `x-opt-message-state`)."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message out of a file or an archive lay: by this a ledger names it. `digest`: of its content, in base64,
    if the archive keeps one."""

    queue: str
    sequence_number: int
    message_id: str | None
    enqueued_at_ms: int
    digest: str | None = None


class Decoded:
    """Sections of a message that its receiver had to decode, for the next reader.

    Args:
        values: by descriptor code, as `sbpair.amqp.sections.read` gives them; they are the taker's then.
    """

    __slots__ = ("_payload", "_values")

    def __init__(self, payload: bytes, values: dict[int, Any]) -> None:
        self._payload = payload
        self._values = values

    def take(self, payload: bytes) -> dict[int, Any]:
        """The sections of these bytes, once: messages may be kept in hand for long. Nothing of other bytes."""
        if payload is not self._payload:
            return {}
        taken, self._values = self._values, {}
        return taken


@value_class
class Received:
    """One message received or browsed, with its exact bytes.

    `payload` is the whole encoded message as it came over the wire, broker annotations included. `receipt` is opaque to
    everybody but the receiver that made it; None for a browsed message. Times are UTC epoch seconds.
    """

    payload: bytes
    sequence_number: int
    source: str
    """Entity path the message came from, `contoso/x-servicebus-transfer/3` or the same with `/$deadletterqueue`."""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    enqueued_at: float | None = None
    locked_until: float | None = None
    delivery_count: int = 0
    state: MessageState = MessageState.ACTIVE
    receipt: Any = field(default=None, compare=False, repr=False)
    origin: Origin | None = None
    """Of a message out of a file, whose number and source are only its place in the file; otherwise None."""
    decoded: Decoded | None = field(default=None, compare=False, repr=False)
    """What was decoded for the fields above, so that the next reader need not. None of a message that came in the usual
    form, of which less is read."""
    head: "Head | None" = field(default=None, compare=False, repr=False)
    """Where the sections of these bytes begin, if a broker has delivered or shown it as most."""

    @property
    def queue(self) -> str:
        """Where it lies; of a message out of a file: where it lay."""
        return self.source if self.origin is None else self.origin.queue


class Disposition(StrEnum):
    """What is to be done with a receipt."""

    COMPLETE = "complete"
    RELEASE = "release"
    """Give it back without raising the delivery count (AMQP `released`)."""
    ABANDON = "abandon"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"


class TtlMode(StrEnum):
    """What becomes of the time to live when a message goes back to the primary."""

    FULL = "full"
    """It starts again, as the retired library did it."""
    REMAINING = "remaining"
    """The time spent in the backlog is taken off, down to a millisecond: the destination then expires the message by
    its own rules, dead-letters it or drops it."""
