"""What the runtime announces to an `Observer`: plain frozen values, no text formatting.

`at` is UTC epoch seconds. Entities are paths on the primary unless the field says otherwise.
"""

from dataclasses import dataclass

from sbpair.core.errors import SbpairError


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    at: float


@dataclass(frozen=True, slots=True)
class SendFailed(Event):
    """A send to the primary failed with an error the policy counts; the failover timer may be running."""

    entity: str
    error_code: str
    timer_seconds_left: float | None


@dataclass(frozen=True, slots=True)
class FailedOver(Event):
    """From now on sends for the entity go to backlog queues."""

    entity: str
    cause: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class FailedBack(Event):
    """From now on sends for the entity go to the primary again."""

    entity: str
    seconds_away: float
    diverted_messages: int


@dataclass(frozen=True, slots=True)
class EntityInvalid(Event):
    """A ping said that the entity itself is wrong; sends raise until a ping succeeds."""

    entity: str
    error_code: str


@dataclass(frozen=True, slots=True)
class PingSent(Event):
    entity: str
    succeeded: bool
    seconds: float
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class MessageSent(Event):
    """A message of `operations.send` was accepted, or failed with `error`. `where`: primary, backlog or namespace;
    `queue`: the backlog queue it was diverted to."""

    position: int
    where: str = ""
    queue: str | None = None
    uncertain: bool = False
    """It may be stored twice."""
    error: SbpairError | None = None


@dataclass(frozen=True, slots=True)
class PingMeasured(Event):
    """A ping of `sbpair ping` ended. `detail`: the error's message."""

    side: str
    entity: str
    seconds: float
    error_code: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BacklogQueueLeft(Event):
    """A backlog queue failed and left the rotation of every sender of the pairing."""

    queue: str
    error_code: str
    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class BacklogQueueReturned(Event):
    queue: str


@dataclass(frozen=True, slots=True)
class NotReady(Event):
    """What an outage of the primary needs was tried beforehand, and is not as it should be."""

    problems: tuple[str, ...]
    """What is wrong and what to do, each."""


@dataclass(frozen=True, slots=True)
class Ready(Event):
    """It is as it should be after it was not."""


@dataclass(frozen=True, slots=True)
class Diverted(Event):
    """Messages for `entity` were accepted by a backlog queue."""

    entity: str
    queue: str
    messages: int


@dataclass(frozen=True, slots=True)
class Forwarded(Event):
    """Messages went back: accepted by the primary and completed on the backlog queue."""

    queue: str
    entity: str
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    queue: str
    sequence_number: int
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class BacklogCounted(Event):
    """How many messages a queue (or its dead-letter queue) was said to hold when the pump looked at it."""

    queue: str
    messages: int


@dataclass(frozen=True, slots=True)
class SyphonBegan(Event):
    """A syphon has found its backlog queues and reads them from now on; after a breakdown, once more."""

    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueAppeared(Event):
    """A backlog queue that was not there when the syphon started; it is read, too, from now on."""

    queue: str


@dataclass(frozen=True, slots=True)
class ProcessLost(Event):
    """One of the processes of a run ended without a word; nobody reads its queues any more."""

    queues: tuple[str, ...]
    how: str
    """What became of it, as a sentence."""


@dataclass(frozen=True, slots=True)
class Doubtful(Event):
    """An earlier run with the same ledger ended while it sent these messages; this one sends them again."""

    messages: int
    file: str
    """Names them."""
    found: int = 0
    """Others that were found at their destinations, and are not sent again."""


@dataclass(frozen=True, slots=True)
class Polled(Event):
    """A receive from a backlog queue (or its dead-letter queue) was answered, be it with nothing: a sign of life."""

    queue: str
    messages: int


@dataclass(frozen=True, slots=True)
class ReceiveFailed(Event):
    """A backlog queue could not be read; the pump waits, then tries again (None: it gives the queue up)."""

    queue: str
    error_code: str
    retry_after_seconds: float | None
    message: str = ""
    """The error in words."""


@dataclass(frozen=True, slots=True)
class LockedElsewhere(Event):
    """The next message of a backlog queue is locked by another receiver; its session waits for it, and is not
    overtaken. `until` is when the lock ends at the latest, in UTC epoch seconds, unless that receiver renews it."""

    queue: str
    sequence_number: int
    until: float


@dataclass(frozen=True, slots=True)
class LedElsewhere(Event):
    """Another drain or syphon empties these backlog queues, whose messages have sessions; this one stands by. The head
    of each queue moves on by that many messages a second, all queues together."""

    queues: tuple[str, ...]
    messages_per_second: float


@dataclass(frozen=True, slots=True)
class Paused(Event):
    """The pump holds a destination (or everything, `entity` empty) back for a while."""

    entity: str
    error_code: str
    seconds: float
    abandoned_in_seconds: float | None = None
    """When its messages are left if it goes on failing; None: never."""


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    entity: str


@dataclass(frozen=True, slots=True)
class Restarting(Event):
    """A service broke down with an error that it does not handle while running; it starts again after the pause."""

    error_code: str
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """A step of a plan was carried out (or failed)."""

    item: str
    result: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EntityCreated(Event):
    """An entity was created on a namespace."""

    entity: str
    kind: str
    namespace: str


@dataclass(frozen=True, slots=True)
class SideEnded(Event):
    """The pairing's connection to one namespace (`primary` or `secondary`) was closed or faulted."""

    side: str
    condition: str
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class SideFaulted(Event):
    """A namespace refuses the pairing permanently: the key is not accepted, or no backlog queue exists or may be used.

    Nobody closed anything here: the side is probed and comes back by itself (`SideRestored`).
    """

    side: str
    error_code: str
    message: str


@dataclass(frozen=True, slots=True)
class SideRestored(Event):
    """A namespace that had refused the pairing takes messages again."""

    side: str


@dataclass(frozen=True, slots=True)
class PairingNoticed(Event):
    """Something about the two namespaces weakens the pair without making it unusable."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GatherProgress(Event):
    """An inspection moved on. `stage`: listing, confirming, peeking; `total` is None while it is not known."""

    namespace: str
    stage: str
    done: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class NotIdleYet(Event):
    """Active/active: nothing comes any more, but messages are known that are still to come; the end waits for them."""

    source: str
    messages: int
    next_at: float | None
    """When the first of them comes, UTC epoch seconds; None: nobody can see it."""


@dataclass(frozen=True, slots=True)
class MessageHandled(Event):
    """Active/active: what became of one copy of a message.

    `result`: completed, duplicate (finished before), failed (permanently), dead-lettered (its other copy was), again
    (an attempt failed, or its handler asked for it later), lost (somebody else has taken over).
    """

    side: str
    session_id: str
    message_id: str
    result: str
    detail: str = ""
