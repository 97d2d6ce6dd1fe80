"""Geo-Replication of one namespace ("Azure Service Bus Geo-Replication"): what another region does not have yet.

The secondary is as far behind as it may be (`maxReplicationLagDurationInSeconds`; 0: never), so that a forced promotion
loses as much as it can: messages of that time are gone, and those completed or deferred in it are there again. A
planned promotion waits until the secondary has everything; until then the namespace is read only. Either ends all
connections and locks. Not kept: dead-lettering and forwarding are not taken back, and sessions keep their states.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sbpair.emulator.broker.entity import Entity, MessageEntity
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import Message, State

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

ANSWER_SECONDS = 0.5
"""So long connections outlive a promotion: the request for it, which may be on one of them, is answered first."""


def mailboxes(namespace: "Namespace") -> list[Mailbox]:
    """All of a namespace."""
    entities: list[MessageEntity] = list(namespace.queues())
    entities += [one for topic in namespace.topics() for one in topic.subscriptions.values()]
    return [box for entity in entities for box in entity.mailboxes]


class GeoReplication:
    """Stands before a namespace's journal, and knows how to take back what was noted within the lag."""

    def __init__(self, namespace: "Namespace", lag_seconds: float) -> None:
        self.lag_seconds = lag_seconds
        self._namespace = namespace
        self.journal = namespace.journal
        self._places: dict[int, tuple[Mailbox, Message, State]] = {}
        self._tail: deque[tuple[float, Callable[[], None]]] = deque()
        for box in mailboxes(self._namespace):
            for message in box.log:
                self._places[id(message)] = (box, message, message.state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)

    def put_message(self, entity: Entity, place: str, message: Message) -> None:
        """A message is new, or has changed."""
        self.journal.put_message(entity, place, message)
        if not isinstance(entity, MessageEntity) or ":" in place:
            return  # on its way through a topic or a forwarding
        before = self._places.get(id(message))
        box = entity.mailbox(place)
        self._places[id(message)] = (box, message, message.state)
        if before is None:
            self._note(partial(self._lose, message))
        elif before[0] is box and before[2] is State.ACTIVE and message.state is State.DEFERRED:
            self._note(partial(self._make_active, box, message))

    def drop_message(self, message: Message) -> None:
        """A message is gone."""
        self.journal.drop_message(message)
        if (found := self._places.pop(id(message), None)) is not None:
            self._note(partial(self._bring_back, *found))

    def promote(self, promoted: Callable[[], None], *, forced: bool) -> None:
        """Make the secondary the primary: now, without what it does not have, or once it has everything."""
        clock = self._namespace.clock
        if forced:
            self._catch_up()
            for _, take_back in reversed(tuple(self._tail)):
                take_back()
            self._finish(promoted)
        elif self.lag_seconds:
            self._namespace.read_only = self._namespace.laws.planned_promotion_read_only
            clock.call_at(clock.now() + self.lag_seconds, lambda: self._finish(promoted))
        else:
            self._finish(promoted)

    def _finish(self, promoted: Callable[[], None]) -> None:
        self._tail.clear()
        self._namespace.read_only = False
        promoted()
        clock = self._namespace.clock
        clock.call_at(clock.now() + ANSWER_SECONDS, self._cut)

    def _cut(self) -> None:
        self._namespace.faults.remove(self._namespace.faults.add("drop"))
        for box in mailboxes(self._namespace):
            box.free_all()

    def _note(self, take_back: Callable[[], None]) -> None:
        self._catch_up()
        self._tail.append((self._namespace.clock.now(), take_back))

    def _catch_up(self) -> None:
        replicated = self._namespace.clock.now() - self.lag_seconds
        while self._tail and self._tail[0][0] <= replicated:
            self._tail.popleft()

    def _lose(self, message: Message) -> None:
        if (found := self._places.get(id(message))) is not None:
            found[0].free_all()
            found[0].remove(message)

    @staticmethod
    def _make_active(box: Mailbox, message: Message) -> None:
        if box.log.get(message.sequence_number) is message and message.state is State.DEFERRED:
            box.take_out(message)
            message.state = State.ACTIVE
            box.add(message)

    def _bring_back(self, box: Mailbox, message: Message, state: State) -> None:
        message.state = State.ACTIVE if state is State.DEFERRED else state
        box.add(message)
