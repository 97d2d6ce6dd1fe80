"""What the runtime needs from the outside world, as Protocols. Adapters live in `azure/`, fakes in `tests/fakes.py`.

All methods raise `sbpair.core.errors.ServiceError` subclasses only, those of a journal JournalError; every call is
bounded by the time it is given.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import (
    EntityFacts,
    EntityKind,
    EntitySettings,
    NamespaceFacts,
    QueueFacts,
    RuleFacts,
    TopicFacts,
)
from sbpair.core.errors import JournalError, ServiceError
from sbpair.core.events import Event
from sbpair.core.message import Disposition, Received
from sbpair.core.pairing import Pair
from sbpair.service import QueueSettings

MOST_MOVED_AT_ONCE = 50
"""Messages in one transaction. It takes 100 operations, and each message is sent and completed."""


class RuntimeClock(Protocol):
    """Time for the runtime; the machines get numbers only."""

    def monotonic(self) -> float:
        """Seconds that never go back, for deadlines."""

    def now(self) -> datetime:
        """The present moment, aware, UTC."""

    async def sleep(self, seconds: float) -> None: ...


class MessageSender(Protocol):
    """Sends encoded messages to one queue or topic, as they are."""

    @property
    def entity(self) -> str: ...

    async def max_message_bytes(self) -> int:
        """Limit of one transfer (message or batch) as told by the link; opens it if need be."""

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        """Send one message, or several as one batch. Returns when the namespace accepted all of it; on an error
        nothing of the batch was stored, except after OperationTimeoutError and ConnectionLostError, when it may
        have been (`uncertain`)."""

    async def schedule(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> list[int]:
        """Hand in messages that carry x-opt-scheduled-enqueue-time; returns their sequence numbers."""

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_seconds: float) -> None: ...

    async def close(self) -> None: ...


class MessageReceiver(Protocol):
    """Receives from one queue, subscription or dead-letter sub-queue under peek-lock; or only browses it."""

    @property
    def source(self) -> str: ...

    @property
    def session_id(self) -> str | None: ...

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        """At least one message, as soon as there is one, up to `max_messages`; empty after `wait_seconds`."""

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]: ...

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        """Browse without locks; an empty list is the end (partitioned entities: of every partition)."""

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        """Settle one receipt and wait for the broker's confirmation. Raises LockLostError when the lock is gone.
        Reason and description go with DEAD_LETTER."""

    def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        """Settle several of its receipts in the same way. Gives the answers as they come: each receipt once, with what
        `settle` would have raised, or None."""

    async def renew_lock(self, received: Received) -> float:
        """Renew the message's lock (or the session's); returns the new expiry as UTC epoch seconds."""

    async def renew_session(self) -> float:
        """Renew the lock of the receiver's session, which it locks if need be, whether or not messages of it are in
        hand; returns the new expiry as UTC epoch seconds."""

    async def session_ids(self) -> list[str]:
        """Every session that holds messages or a state, sorted."""

    async def session_state(self) -> bytes | None:
        """What is kept with the receiver's session, which it locks if need be; None: nothing."""

    async def set_session_state(self, state: bytes | None) -> None:
        """Keep this with the receiver's session; None clears it."""

    async def close(self) -> None:
        """Release what came and nobody asked for, without raising delivery counts, then close."""


@runtime_checkable
class DeletesInBatches(Protocol):
    """A receiver whose service deletes messages without handing them out ("Batch delete messages in Azure Service
    Bus")."""

    async def delete_batch(self, most: int, *, before: float) -> int:
        """Delete up to `most` active messages that came before a moment, UTC epoch seconds, the oldest first; their
        number. Locked, deferred and scheduled ones stay. Raises ArgumentRefusedError where `most` is too large,
        or the service does not do it for this entity (a partitioned one)."""


class Moves(Protocol):
    """Takes messages from one entity to others of its namespace in transactions."""

    async def max_message_bytes(self, entity: str) -> int:
        """As `MessageSender.max_message_bytes`, for an entity that is moved to."""

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        """Send these messages, at most `MOST_MOVED_AT_ONCE`, and complete or cancel `received`: all of it or nothing.

        Raises:
            LocksLostError: with the places of those that are not to be had any more. Where it is `uncertain` it names
                all of them: they were moved, or are still there.
            ServiceError: nothing was moved.
        """


class MessageMover(Moves, MessageReceiver, Protocol):
    """A receiver whose messages go to other entities of its namespace in transactions."""

    async def why_not(self) -> ServiceError | None:
        """What the namespace says if it has no transactions; None if it has. Nothing is received for that."""


class ScheduledMover(Moves, Protocol):
    """Moves scheduled messages, as a browse has shown them."""

    async def close(self) -> None: ...


class Messaging(Protocol):
    """The messaging side of one namespace."""

    @property
    def host(self) -> str: ...

    def sender(self, entity: str) -> MessageSender: ...

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> MessageReceiver:
        """`path`: queue or `topic/Subscriptions/name`. Opened on first use; `session_id` asks for that session."""

    async def close(self) -> None: ...


class TransactedMessaging(Messaging, Protocol):
    """The messaging side of a namespace that may have transactions."""

    def mover(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> MessageMover:
        """As `receiver`."""

    def scheduled_mover(self, entity: str) -> ScheduledMover:
        """For what is scheduled on a queue or topic."""


class NamespaceAdmin(Protocol):
    """The control plane of one namespace: data-plane administration or ARM, same results."""

    @property
    def control_plane(self) -> str:
        """`data-plane` or `arm`."""

    async def namespace(self) -> NamespaceFacts: ...

    def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        """All queues whose path starts with `prefix` (case-insensitive), with settings, counts and times."""

    async def get_queue(self, path: str) -> QueueFacts | None:
        """The queue, with counts, or None if the namespace says it does not exist."""

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        """Raises EntityExistsError, ConflictError (another operation in progress), ArgumentRefusedError, ..."""

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts: ...

    async def delete_queue(self, path: str) -> None:
        """Raises EntityNotFoundError if it is already gone."""

    def list_topics(self) -> AsyncIterator[TopicFacts]: ...

    async def get_topic(self, path: str) -> TopicFacts | None: ...

    async def create_topic(self, path: str) -> TopicFacts:
        """With the service's defaults. Raises EntityExistsError, ..."""

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        """The subscription as what it is to its receivers, a queue; without counts."""

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        """As far as `settings` are a subscription's; the rest is the topic's. Raises EntityExistsError, ..."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ends:
    """Two open namespaces, or one twice. `admin`, `target_admin`, `topology`, `target_topology`: None where there is
    none."""

    source: Messaging
    target: Messaging
    admin: NamespaceAdmin | None = None
    target_admin: NamespaceAdmin | None = None
    transactions: TransactedMessaging | None = None
    """The namespace, if it is one that has transactions: a message is sent and completed in one."""
    topology: "Topology | None" = None
    target_topology: "Topology | None" = None
    _: KW_ONLY
    source_access: NamespaceAccess
    target_access: NamespaceAccess
    """How they are called, and by which hosts a ledger knows them."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Both namespaces of a pair, connected on first use and closed together."""

    pair: Pair
    primary: Messaging
    secondary: Messaging
    primary_admin: NamespaceAdmin
    secondary_admin: NamespaceAdmin
    reopen: "Callable[[], AbstractAsyncContextManager[Sides]] | None" = None
    """Opens the same sides once more: after a breakdown, or in another process, if it can be pickled to get there. With
    None they are used as they are, by one process."""
    topologies: "tuple[Topology, Topology] | None" = None
    """All entities of the primary and of the secondary. None: the sides were not opened by `open_sides`."""


class Topology(Protocol):
    """All entities of one namespace with all their settings, for commands that create, compare and delete them.

    Paths of subscriptions are `topic/Subscriptions/name`. A path that is no entity's raises EntityNotFoundError where
    something is changed.
    """

    async def namespace(self) -> NamespaceFacts: ...

    async def entities(self, *, rules: bool) -> list[EntityFacts]:
        """Queues, topics and subscriptions with counts, each kind by path; `rules`: of subscriptions as well."""

    async def subscriptions(self, topic: str, *, rules: bool) -> list[EntityFacts]:
        """Those of one topic, by name. Raises EntityNotFoundError, ..."""

    async def rules(self, subscription: EntityFacts) -> EntityFacts:
        """The subscription with its rules, for which one call is made."""

    async def entity(self, path: str) -> EntityFacts | None:
        """One entity with counts and rules, or None if the namespace says it does not exist."""

    async def create(self, kind: EntityKind, path: str, settings: EntitySettings) -> None:
        """Raises EntityExistsError, ConflictError (another operation in progress), ArgumentRefusedError, ..."""

    async def update(self, path: str, change: "Mapping[str, Any]") -> None:
        """Change settings, by the names of the fields of `EntitySettings`; the others stay as they are."""

    async def delete(self, path: str) -> None:
        """With all messages in it, and a topic's subscriptions."""

    async def create_rule(self, subscription: str, rule: RuleFacts) -> None: ...

    async def delete_rule(self, subscription: str, name: str) -> None: ...

    async def close(self) -> None: ...


class Observer(Protocol):
    """Is told what the runtime does: progress bars, logs, metrics, tests."""

    def notify(self, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A document of a journal as it was read. `version` is opaque; it changes with every write."""

    kind: str
    key: str
    document: Mapping[str, Any]
    version: str


def checked_entry(journal: str, kind: Any, key: Any, document: Any, version: Any) -> Entry:
    """The entry, if it is one.

    Raises:
        JournalError: the store holds something else under that key.
    """
    if not isinstance(document, dict) or not all(isinstance(text, str) for text in (kind, key, version)):
        raise JournalError(f"An entry of the journal {journal} is not an sbpair entry: it cannot be read.")
    return Entry(kind, key, document, version)


class Journal(Protocol):
    """Documents that are only changed by compare-and-swap: all that active/active asks of a store.

    A third one (a table with a version column, a blob with an ETag) needs no more than this. Documents are JSON
    objects; `kind` and `key` name one, `key` being a session id or beginning with one. `ttl_seconds`: the journal may
    forget the document so long after its last write, and must not before.

    All methods raise JournalUnavailableError when there is no answer in time, after which a write may have happened
    or not.
    """

    @property
    def name(self) -> str:
        """Where it is, for people; no secrets."""

    async def read(self, kind: str, key: str) -> Entry | None:
        """The document; at least as new as the last write this client knows of."""

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        """Raises JournalConflictError if it exists."""

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        """Raises JournalConflictError if it is no longer at the version of `entry`, or gone."""

    def scan(self, kind: str) -> AsyncIterator[Entry]:
        """All documents of a kind, in any order."""

    async def check(self) -> str:
        """Make sure that swaps are safe there; a sentence about it.

        Raises:
            JournalError: they are not (say, several regions that accept writes), or it is not set up.
        """

    async def close(self) -> None: ...
