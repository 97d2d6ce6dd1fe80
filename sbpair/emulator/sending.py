"""A client's sending link on a queue or topic: each transfer is accepted wholly or rejected wholly.

The answer goes out only when the store has the messages.
"""

from sbpair.amqp.types import Described
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.faults import FaultKind
from sbpair.emulator.link import IncomingDelivery, Link
from sbpair.emulator.performatives import accepted, rejected


class Sender:
    """The handler of one sending link."""

    def __init__(self, entity: Queue | Topic, link: Link) -> None:
        self._entity = entity
        self._link = link
        entity.links.add(self)

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        action = self._link.fault("send")
        if action is not None and action.cuts:
            return
        if action is not None and action.fails and action.condition is not None:
            self._link.disposition(delivery, rejected(action.condition, action.description))
            return
        try:
            self._entity.send(delivery.payload, delivery.message_format)
        except BrokerError as error:
            self._link.disposition(delivery, rejected(error.condition, error.description))
            return
        if action is None or action.kind is not FaultKind.LOSE_SETTLEMENT_REPLY:
            self._entity.namespace.when_durable(lambda: self._link.disposition(delivery, accepted()))

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        """A client that sends has nothing to settle."""

    def on_credit(self) -> None:
        """A client that sends gives no credit."""

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._entity.links.discard(self)

    def detach(self, condition: str, description: str) -> None:
        """The entity closes the link."""
        self._entity.links.discard(self)
        self._link.detach(condition, description)
