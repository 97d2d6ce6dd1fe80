"""The links that clients send on: to a queue or topic, and to the transaction coordinator.

Each transfer is accepted wholly or rejected wholly. The answer goes out only when the store has the messages.
"""

from collections.abc import Callable, Generator, Iterator

from sbpair.amqp.performatives import (
    DECLARE,
    DECLARED,
    DISCHARGE,
    Fields,
    accepted,
    code_of,
    declared,
    in_transaction,
    transaction_of,
)
from sbpair.amqp.sections import Section, read, scan
from sbpair.amqp.types import AmqpError, Described
from sbpair.emulator.broker.entity import Entity
from sbpair.emulator.broker.messages import BATCH_FORMAT, Message
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.broker.transactions import Transactions
from sbpair.emulator.namespace import Namespace
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError, rejected, unknown_outcome
from sbpair.engine.faults import FaultAction, FaultKind
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler


class EntityLink(LinkHandler):
    """The handler of a link that its entity closes with itself."""

    def __init__(self, entity: Entity, link: Link) -> None:
        self._link = link
        self._attached = entity.links
        self._attached[self] = None

    def leave(self) -> None:
        """The link is gone, or about to be."""
        self._attached.pop(self, None)

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self.leave()

    def detach(self, condition: str, description: str) -> None:
        """The broker closes the link."""
        self.leave()
        self._link.detach(condition, description)


class Sender(EntityLink):
    """The handler of one sending link."""

    def __init__(self, entity: Queue | Topic, link: Link, transactions: Transactions) -> None:
        super().__init__(entity, link)
        self._entity = entity
        self._transactions = transactions

    def on_transfer(self, delivery: IncomingDelivery) -> Iterator[None] | None:
        action = self._link.fault("send")
        if action is not None and action.cuts:
            return None
        if action is not None and action.fails and action.condition is not None:
            self._link.disposition(delivery, rejected(action.condition, action.description))
            return None
        in_steps = delivery.message_format == BATCH_FORMAT or self._entity.takes_steps
        if in_steps and transaction_of(delivery.state) is None:
            return self._accepting(delivery, action)
        self._answer(delivery, action, lambda: self._take(delivery))
        return None

    def _accepting(self, delivery: IncomingDelivery, action: FaultAction | None) -> Iterator[None]:
        """Read a transfer message by message, and take them in. Nothing changes before all are read."""
        entity = self._entity
        try:
            entity.namespace.check_store()
            messages: list[Message] = []
            for message in entity.intake.reading(delivery.payload, delivery.message_format):
                messages.append(message)
                yield
            # The entity may have been deleted or disabled since the first step, and its links have gone with that.
            if not self._link.is_open():
                return
            entity.namespace.charge(len(messages), len(delivery.payload))
            yield from entity.accepting(messages)
        except BrokerError as error:
            self._link.disposition(delivery, rejected(error.condition, error.description))
        else:
            self._confirm(delivery, action, accepted())

    def _answer(self, delivery: IncomingDelivery, action: FaultAction | None, take: Callable[[], Described]) -> None:
        """Take a transfer in, and tell the client as soon as that is safe."""
        try:
            self._entity.namespace.check_store()
            outcome = take()
        except BrokerError as error:
            self._link.disposition(delivery, rejected(error.condition, error.description))
            return
        self._confirm(delivery, action, outcome)

    def _confirm(self, delivery: IncomingDelivery, action: FaultAction | None, outcome: Described) -> None:
        if action is None or action.kind is not FaultKind.LOSE_SETTLEMENT_REPLY:
            self._entity.namespace.when_durable(
                lambda: self._link.disposition(delivery, outcome),
                lambda: self._link.disposition(delivery, unknown_outcome()),
            )

    def _take(self, delivery: IncomingDelivery) -> Described:
        """Accept a transfer, or hold it in its transaction; the outcome."""
        within = transaction_of(delivery.state)
        if within is None:
            self._entity.namespace.charge(1, len(delivery.payload))
            self._entity.send(delivery.payload, delivery.message_format)
            return accepted()
        transaction = self._transactions.require(within[0], self._link.connection.budget)
        transaction.check_link(self._link.session.transaction_group)
        try:
            messages = self._entity.intake.read(delivery.payload, delivery.message_format)
            self._entity.namespace.charge(len(messages), len(delivery.payload))
            transaction.send(self._entity, messages)
        except BrokerError as error:
            # The client may have settled the transfer and not hear of it, so the commit has to fail as well.
            transaction.fail(error)
            return in_transaction(transaction.id, rejected(error.condition, error.description))
        return in_transaction(transaction.id, accepted())


_MAX_REQUEST_BYTES = 1024


class Coordinator(LinkHandler):
    """The handler of one link to the transaction coordinator (AMQP 1.0 §4.5): declare and discharge.

    Neither the link nor the first few transactions need a token, since .NET declares one before it has put any; what is
    done in them does. Transactions end with the link (§4.2), and only their connection can end them (`transactions`).
    """

    def __init__(self, namespace: Namespace, link: Link) -> None:
        self._namespace = namespace
        self._transactions: Transactions = namespace.transactions
        self._link = link
        self._mine: set[bytes] = set()

    def start(self) -> None:
        self._link.open(max_message_size=_MAX_REQUEST_BYTES)

    def on_transfer(self, delivery: IncomingDelivery) -> Iterator[None]:
        try:
            self._namespace.check_store()
            outcome = yield from self._answering(delivery.payload)
        except AmqpError as error:
            outcome = rejected(errors.DECODE_ERROR, str(error))
        except BrokerError as error:
            outcome = rejected(error.condition, error.description)
        if code_of(outcome.descriptor) == DECLARED:
            self._link.answer_declare(delivery, outcome)
            return
        # A commit is confirmed when the store has it.
        self._namespace.when_durable(
            lambda: self._link.disposition(delivery, outcome),
            lambda: self._link.disposition(delivery, unknown_outcome()),
        )

    def _answering(self, payload: bytes) -> Generator[None, None, Described]:
        budget = self._link.connection.budget
        request = read(payload, scan(payload), Section.VALUE)
        code = code_of(request.descriptor) if isinstance(request, Described) else None
        if code == DECLARE:
            transaction = self._transactions.declare(budget, self._link.session.transaction_group)
            self._mine.add(transaction.id)
            return declared(transaction.id)
        if code != DISCHARGE or not isinstance(request.value, list):
            raise BrokerError(errors.NOT_IMPLEMENTED, "The coordinator takes declare and discharge.")
        fields = Fields(request.value)
        transaction_id, failed = fields.binary(0), fields.flag(1)
        self._mine.discard(transaction_id or b"")
        if failed:
            self._transactions.roll_back(transaction_id, budget)
        else:
            yield from self._transactions.committing(transaction_id, budget)
        return accepted()

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        for transaction_id in self._mine:
            if self._transactions.is_open(transaction_id):
                self._transactions.roll_back(transaction_id, self._link.connection.budget)
        self._mine.clear()
