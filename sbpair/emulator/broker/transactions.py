"""Transactions of a namespace: what is sent and settled in one happens at its commit, all of it or nothing.

Until then nothing is changed: messages sent are held here and seen by nobody, messages settled stay locked by their
receiver. So a rollback has nothing to undo: the lock and the delivery count of a settled message are what they were.
A message that is scheduled gets its sequence number at once, since the client is told; a rollback leaves a gap.
A commit first asks whether everything can still be done (locks held, entities there, enabled and with room), and then
does it in one turn of the loop, which is one transaction of a durable store as well.

A transaction belongs to the connection that declared it ("Transactions cannot span more than one connection context",
"AMQP transaction support and send via are now generally available", Service Bus blog). To any other connection its id
is unknown, and what it holds counts as held for its own.
"""

import secrets
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbpair.emulator import errors
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.budgets import Budget
from sbpair.emulator.clock import Clock, Timer
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.limits import MAX_MESSAGES_PER_TRANSACTION, MAX_OPEN_TRANSACTIONS, TRANSACTION_SECONDS

UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
TIMED_OUT = "amqp:transaction:timeout"
_REMEMBERED = 1000
_PART_BYTES = 512
"""What a message or a settlement takes in a transaction beside its bytes."""

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Send:
    """Messages for an entity; those that were scheduled by request have their numbers already."""

    entity: Queue | Topic
    messages: list[Message]
    reserved: Mapping[Message, int] | None = None


class Transaction:
    """What belongs to one open transaction. `budget` is that of the connection that declared it."""

    def __init__(self, transaction_id: bytes, budget: Budget) -> None:
        self.id = transaction_id
        self.budget = budget
        self.held_bytes = 0
        self.timer: Timer | None = None
        self._sends: list[_Send] = []
        self._settlements: dict[uuid.UUID, tuple[Mailbox, Step]] = {}
        self._cancelled: dict[Queue | Topic, list[int]] = {}
        self._changes: list[tuple[Step, Step]] = []
        self._partitions: dict[object, int] = {}
        self._failure: BrokerError | None = None

    def hold(self, size_bytes: int, parts: int = 0) -> None:
        """Count so many bytes, in so many messages or settlements, that are to be kept until the end.

        Raises BrokerError resource-limit-exceeded when that is too much for the connection. Nothing is counted then,
        and a commit is impossible.
        """
        total = size_bytes + parts * _PART_BYTES
        if not self.budget.has_room(total):
            error = BrokerError(errors.QUOTA, "The open transactions of this connection hold too many bytes.")
            self.fail(error)
            raise error
        self.held_bytes += total
        self.budget.hold(total)

    def send(self, entity: Queue | Topic, messages: list[Message]) -> None:
        """Hold messages for an entity. BrokerError when it refuses them; a commit is impossible then."""
        self._check_send(entity, messages)
        self.hold(sum(len(message.payload) for message in messages), len(messages))
        self._sends.append(_Send(entity, messages))

    def schedule(self, entity: Queue | Topic, messages: list[Message]) -> list[int]:
        """The same for messages with a time; the sequence numbers that they will have until then."""
        self._check_send(entity, messages)
        self.hold(0, len(messages))  # their bytes are those of the request
        reserved = {message: entity.reserve(message) for message in messages}
        self._sends.append(_Send(entity, messages, reserved))
        return list(reserved.values())

    def cancel_scheduled(self, entity: Queue | Topic, numbers: list[int]) -> None:
        """Note that scheduled messages are to be deleted. BrokerError message-not-found."""
        noted = [*self._cancelled.get(entity, ()), *dict.fromkeys(numbers)]
        entity.check_scheduled(noted)
        self.hold(0, len(numbers))
        if len(set(noted)) < len(noted):
            raise BrokerError(
                errors.MESSAGE_NOT_FOUND, "A scheduled message with that number is cancelled in this transaction."
            )
        self._cancelled[entity] = noted

    def settle(self, mailbox: Mailbox, token: uuid.UUID, apply: Step) -> None:
        """Note a settlement. BrokerError message-lock-lost, or not-allowed for one that is noted already."""
        lock = mailbox.check_lock(token)
        if token in self._settlements:
            raise BrokerError(errors.NOT_ALLOWED, "The message is settled in this transaction already.")
        if mailbox.entity.is_partitioned:
            self._check_partition(mailbox.entity, partition_of(lock.message.sequence_number))
        self.hold(0, 1)
        self._settlements[token] = (mailbox, apply)

    def change(self, check: Step, apply: Step) -> None:
        """Note something else. `check` raises BrokerError if it cannot be done (any more); asked now and again at the
        commit, where nothing of the transaction is done if it does."""
        check()
        self.hold(0, 1)
        self._changes.append((check, apply))

    def fail(self, error: BrokerError) -> None:
        """Something asked for in the transaction was refused: it cannot be committed as a whole any more."""
        self._failure = self._failure or error

    def commit(self) -> None:
        """Do it all. Raises BrokerError, with nothing done, if one part cannot be done any more."""
        try:
            self._check()
        except BrokerError as error:
            raise BrokerError(ROLLED_BACK, f"The transaction was rolled back: {error.description}") from error
        for _, apply in (*self._settlements.values(), *self._changes):
            apply()
        for entity, numbers in self._cancelled.items():
            entity.cancel_scheduled(numbers)
        for send in self._sends:
            send.entity.take(send.messages, send.reserved)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        for token, (mailbox, _) in self._settlements.items():
            mailbox.check_lock(token)
        for check, _ in self._changes:
            check()
        for entity, numbers in self._cancelled.items():
            _check_there(entity)
            entity.check_scheduled(numbers)
        sent: dict[Queue | Topic, list[Message]] = {}
        for send in self._sends:
            sent.setdefault(send.entity, []).extend(send.messages)
        for entity, messages in sent.items():
            _check_there(entity)
            entity.intake.check(messages)

    def _check_send(self, entity: Queue | Topic, messages: list[Message]) -> None:
        try:
            entity.intake.check(messages)
            self._check_count(len(messages))
            self._check_keys(entity, messages)
        except BrokerError as error:
            self.fail(error)
            raise

    def _check_count(self, more: int) -> None:
        if sum(len(send.messages) for send in self._sends) + more > MAX_MESSAGES_PER_TRANSACTION:
            raise BrokerError(
                errors.NOT_ALLOWED,
                f"Cannot send more than {MAX_MESSAGES_PER_TRANSACTION} messages in a single transaction.",
            )

    def _check_keys(self, entity: Queue | Topic, messages: list[Message]) -> None:
        """Messages of a transaction go to one partition of a partitioned entity ("Partitioned queues and topics")."""
        if not entity.description.enable_partitioning:
            return
        before = [message for send in self._sends if send.entity is entity for message in send.messages]
        keys = {
            message.head.session_id if message.head.session_id is not None else message.head.partition_key
            for message in [*before, *messages]
        }
        if None in keys or len(keys) > 1:
            raise BrokerError(
                errors.NOT_ALLOWED,
                f"All messages sent to the partitioned entity '{entity.path}' in one transaction must have the same "
                "partition key or session id.",
            )
        for key in keys:
            self._check_partition(entity, entity.numbering.of_key(key))

    def _check_partition(self, entity: object, partition: int) -> None:
        """What is sent to and settled at one partitioned entity belongs to one partition, as the service's clients
        test it."""
        if self._partitions.setdefault(entity, partition) != partition:
            raise BrokerError(
                errors.NOT_ALLOWED, "A transaction cannot work with messages of more than one partition of an entity."
            )


def _check_there(entity: Queue | Topic) -> None:
    if entity.namespace.find(entity.path) is not entity:
        raise BrokerError(errors.RESOURCE_DELETED, f"The messaging entity '{entity.path}' has been deleted.")


class Transactions:
    """The open transactions of a namespace by their ids, which nobody can guess."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[bytes, Transaction] = {}
        self._timed_out: deque[bytes] = deque(maxlen=_REMEMBERED)

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, budget: Budget) -> Transaction:
        """Begin one for the connection with this budget. BrokerError resource-limit-exceeded when it has too many."""
        if not budget.begin_transaction():
            raise BrokerError(
                errors.QUOTA,
                f"The connection has as many open transactions as it may have: {MAX_OPEN_TRANSACTIONS} at most, fewer "
                "where they hold much.",
            )
        transaction = Transaction(secrets.token_bytes(16), budget)
        self._open[transaction.id] = transaction
        due = self._clock.now() + TRANSACTION_SECONDS
        transaction.timer = self._clock.call_at(due, lambda: self._time_out(transaction.id))
        return transaction

    def require(self, transaction_id: object, budget: Budget) -> Transaction:
        """The open transaction of that connection with that id, or BrokerError."""
        found = self._open.get(transaction_id) if isinstance(transaction_id, bytes) else None
        if found is not None and found.budget is budget:
            return found
        if transaction_id in self._timed_out:
            raise BrokerError(
                TIMED_OUT, f"The transaction was rolled back: it was open for more than {TRANSACTION_SECONDS:.0f} s."
            )
        raise BrokerError(UNKNOWN_ID, "The transaction is not known, or has ended already.")

    def commit(self, transaction_id: object, budget: Budget) -> None:
        """End one by doing all of it; BrokerError if it was rolled back instead."""
        transaction = self.require(transaction_id, budget)
        self._forget(transaction)
        transaction.commit()

    def roll_back(self, transaction_id: object, budget: Budget) -> None:
        """End one by doing none of it. BrokerError for an id that is not open."""
        self._forget(self.require(transaction_id, budget))

    def is_open(self, transaction_id: bytes) -> bool:
        return transaction_id in self._open

    def close(self) -> None:
        """The namespace goes: all are rolled back."""
        for transaction in list(self._open.values()):
            self._forget(transaction)

    def _time_out(self, transaction_id: bytes) -> None:
        self._timed_out.append(transaction_id)
        self._forget(self._open[transaction_id])

    def _forget(self, transaction: Transaction) -> None:
        del self._open[transaction.id]
        transaction.budget.release(transaction.held_bytes)
        transaction.budget.end_transaction()
        if transaction.timer is not None:
            transaction.timer.cancel()
