"""Counts what a run asks of the namespaces, so that its report tells operations that happened and not estimates."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sbpair.core.entities import EntityKind, QueueFacts, TopicFacts
from sbpair.core.inspection.entity import Listed
from sbpair.core.message import Received
from sbpair.core.names import subscription_of
from sbpair.core.prices import Forecast
from sbpair.ports import MessageReceiver, MessageSender, Messaging, NamespaceAdmin
from sbpair.service import PAGE_ENTITIES

T = TypeVar("T")


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
        return cast(MessageReceiver, _CountedReceiver(opened, self._usage))

    async def close(self) -> None:
        await self._messaging.close()


class _CountedReceiver:
    def __init__(self, receiver: MessageReceiver, usage: Usage) -> None:
        self._receiver = receiver
        self._usage = usage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receiver, name)

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        received = await self._receiver.receive(max_messages, wait_seconds=wait_seconds)
        self._usage.empty_receives += not received
        return received

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        self._usage.browses += 1
        return await self._receiver.peek(max_messages, from_sequence_number=from_sequence_number)

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


def counted_admin(admin: NamespaceAdmin, usage: Usage) -> NamespaceAdmin:
    """The same administration, whose calls are counted: one each, and one for each page of a list."""
    return cast(NamespaceAdmin, _CountedAdmin(admin, usage))


class _CountedAdmin:
    def __init__(self, admin: NamespaceAdmin, usage: Usage) -> None:
        self._admin = admin
        self._usage = usage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._admin, name)
        if name in ("control_plane", "close"):
            return found

        async def counted(*arguments: Any, **named: Any) -> Any:
            self._usage.management_calls += 1
            return await found(*arguments, **named)

        return counted

    def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        return self._in_pages(self._admin.list_queues(prefix))

    def list_topics(self) -> AsyncIterator[TopicFacts]:
        return self._in_pages(self._admin.list_topics())

    async def _in_pages(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        self._usage.management_calls += 1
        number = 0
        async for item in items:
            number += 1
            if number % PAGE_ENTITIES == 0:
                self._usage.management_calls += 1
            yield item


def calls_of_lists(listed: Iterable[Listed]) -> int:
    """Management calls of a whole listing: each page of queues, topics and the subscriptions of each topic."""
    below = Counter((one.kind, *(subscription_of(one.path) or ())[:1]) for one in listed)
    topics = below[EntityKind.TOPIC,]
    of_lists = sum(-(-max(1, below[kind,]) // PAGE_ENTITIES) for kind in (EntityKind.QUEUE, EntityKind.TOPIC))
    of_topics = [number for (kind, *_), number in below.items() if kind is EntityKind.SUBSCRIPTION]
    return of_lists + topics - len(of_topics) + sum(-(-number // PAGE_ENTITIES) for number in of_topics)
