"""A client's link to the transaction coordinator (AMQP 1.0 §4.5): declare and discharge.

The link needs no token: a transaction can do nothing that the links in it may not. Its transactions end with it.
"""

from sbpair.amqp.sections import Section, read, scan
from sbpair.amqp.types import AmqpError, Described
from sbpair.emulator import errors
from sbpair.emulator.broker.transactions import Transactions
from sbpair.emulator.engine.link import IncomingDelivery, Link
from sbpair.emulator.engine.performatives import (
    DECLARE,
    DISCHARGE,
    Fields,
    accepted,
    code_of,
    declared,
    rejected,
    unknown_outcome,
)
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.namespace import Namespace

_MAX_REQUEST_BYTES = 1024


class Coordinator:
    """The handler of one coordinator link."""

    def __init__(self, namespace: Namespace, link: Link) -> None:
        self._namespace = namespace
        self._transactions: Transactions = namespace.transactions
        self._link = link
        self._mine: set[bytes] = set()

    def start(self) -> None:
        """Open the link."""
        self._link.open(max_message_size=_MAX_REQUEST_BYTES)

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        try:
            self._namespace.check_store()
            outcome = self._answer(delivery.payload)
        except AmqpError as error:
            outcome = rejected(errors.DECODE_ERROR, str(error))
        except BrokerError as error:
            outcome = rejected(error.condition, error.description)
        # A commit is confirmed when the store has it.
        self._namespace.when_durable(
            lambda: self._link.disposition(delivery, outcome),
            lambda: self._link.disposition(delivery, unknown_outcome()),
        )

    def _answer(self, payload: bytes) -> Described:
        request = read(payload, scan(payload), Section.VALUE)
        code = code_of(request.descriptor) if isinstance(request, Described) else None
        if code == DECLARE:
            transaction = self._transactions.declare()
            self._mine.add(transaction.id)
            return declared(transaction.id)
        if code != DISCHARGE or not isinstance(request.value, list):
            raise BrokerError(errors.NOT_IMPLEMENTED, "The coordinator takes declare and discharge.")
        fields = Fields(request.value)
        transaction_id, failed = fields.binary(0), fields.flag(1)
        self._mine.discard(transaction_id or b"")
        if failed:
            self._transactions.roll_back(transaction_id)
        else:
            self._transactions.commit(transaction_id)
        return accepted()

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        """A client that sends has nothing to settle."""

    def on_credit(self) -> None:
        """A client that sends gives no credit."""

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        for transaction_id in self._mine:
            if self._transactions.is_open(transaction_id):
                self._transactions.roll_back(transaction_id)
        self._mine.clear()
