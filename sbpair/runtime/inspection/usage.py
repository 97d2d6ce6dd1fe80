"""Counts what a run asks of the namespaces, so that its report tells operations that happened and not estimates."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sbpair.core.entities import EntityKind, NamespaceFacts, QueueFacts, TopicFacts
from sbpair.core.errors import ServiceError
from sbpair.core.inspection.entity import Listed
from sbpair.core.message import Disposition, Received
from sbpair.core.names import subscription_of
from sbpair.core.prices import Forecast
from sbpair.ports import MessageReceiver, MessageSender, Messaging, NamespaceAdmin
from sbpair.service import QueueSettings

PAGE_ENTITIES = 100
"""Entities of one page of a listing."""


@dataclass(slots=True)
class Usage:
    """Requests that are not told by what became of the messages. Each is one operation."""

    management_calls: int = 0
    browses: int = 0
    empty_receives: int = 0
    renewals: int = 0

    def add(self, other: "Usage") -> None:
        """What another process asked for."""
        self.management_calls += other.management_calls
        self.browses += other.browses
        self.empty_receives += other.empty_receives
        self.renewals += other.renewals

    def forecast(self) -> Forecast:
        return Forecast(self.management_calls, self.browses + self.empty_receives + self.renewals)


class CountedMessaging:
    """A `Messaging` whose receivers are counted."""

    def __init__(self, messaging: Messaging, usage: Usage) -> None:
        self._messaging = messaging
        self._usage = usage

    @property
    def host(self) -> str:
        return self._messaging.host

    def sender(self, entity: str) -> MessageSender:
        return self._messaging.sender(entity)

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> MessageReceiver:
        opened = self._messaging.receiver(path, dead_letter=dead_letter, session_id=session_id)
        return _CountedReceiver(opened, self._usage)

    async def close(self) -> None:
        await self._messaging.close()


class _CountedReceiver:
    def __init__(self, receiver: MessageReceiver, usage: Usage) -> None:
        self._receiver = receiver
        self._usage = usage

    @property
    def source(self) -> str:
        return self._receiver.source

    @property
    def session_id(self) -> str | None:
        return self._receiver.session_id

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        received = await self._receiver.receive(max_messages, wait_seconds=wait_seconds)
        self._usage.empty_receives += not received
        return received

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        return await self._receiver.receive_deferred(sequence_numbers)

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        self._usage.browses += 1
        return await self._receiver.peek(max_messages, from_sequence_number=from_sequence_number)

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        await self._receiver.settle(received, disposition, reason=reason, description=description)

    def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        return self._receiver.settle_all(received, disposition)

    async def renew_lock(self, received: Received) -> float:
        self._usage.renewals += 1
        return await self._receiver.renew_lock(received)

    async def renew_session(self) -> float:
        self._usage.renewals += 1
        return await self._receiver.renew_session()

    async def session_ids(self) -> list[str]:
        found = await self._receiver.session_ids()
        self._usage.browses += 1 + -(-len(found) // PAGE_ENTITIES)  # pages of sessions; the last one is empty
        return found

    async def session_state(self) -> bytes | None:
        return await self._receiver.session_state()

    async def set_session_state(self, state: bytes | None) -> None:
        await self._receiver.set_session_state(state)

    async def close(self) -> None:
        await self._receiver.close()


class CountedAdmin:
    """A `NamespaceAdmin` whose calls are counted."""

    def __init__(self, admin: NamespaceAdmin, usage: Usage) -> None:
        self._admin = admin
        self._usage = usage

    @property
    def control_plane(self) -> str:
        return self._admin.control_plane

    async def namespace(self) -> NamespaceFacts:
        self._usage.management_calls += 1
        return await self._admin.namespace()

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        self._usage.management_calls += 1
        async for number, facts in _numbered(self._admin.list_queues(prefix)):
            if number % PAGE_ENTITIES == 0:
                self._usage.management_calls += 1
            yield facts

    async def get_queue(self, path: str) -> QueueFacts | None:
        self._usage.management_calls += 1
        return await self._admin.get_queue(path)

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        self._usage.management_calls += 1
        return await self._admin.create_queue(path, settings)

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        self._usage.management_calls += 1
        return await self._admin.update_queue(path, settings)

    async def delete_queue(self, path: str) -> None:
        self._usage.management_calls += 1
        await self._admin.delete_queue(path)

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        self._usage.management_calls += 1
        async for number, facts in _numbered(self._admin.list_topics()):
            if number % PAGE_ENTITIES == 0:
                self._usage.management_calls += 1
            yield facts

    async def get_topic(self, path: str) -> TopicFacts | None:
        self._usage.management_calls += 1
        return await self._admin.get_topic(path)

    async def create_topic(self, path: str) -> TopicFacts:
        self._usage.management_calls += 1
        return await self._admin.create_topic(path)

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        self._usage.management_calls += 1
        return await self._admin.get_subscription(topic, name)

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        self._usage.management_calls += 1
        return await self._admin.create_subscription(topic, name, settings)

    async def close(self) -> None:
        await self._admin.close()


def calls_of_lists(listed: Iterable[Listed]) -> int:
    """Management calls of a whole listing: each page of queues, topics and the subscriptions of each topic."""
    below = Counter((one.kind, *(subscription_of(one.path) or ())[:1]) for one in listed)
    topics = below[EntityKind.TOPIC,]
    of_lists = sum(-(-max(1, below[kind,]) // PAGE_ENTITIES) for kind in (EntityKind.QUEUE, EntityKind.TOPIC))
    of_topics = [number for (kind, *_), number in below.items() if kind is EntityKind.SUBSCRIPTION]
    return of_lists + topics - len(of_topics) + sum(-(-number // PAGE_ENTITIES) for number in of_topics)


T = TypeVar("T")


async def _numbered(items: AsyncIterator[T]) -> AsyncIterator[tuple[int, T]]:
    number = 0
    async for item in items:
        number += 1
        yield number, item
