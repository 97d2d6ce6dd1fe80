"""Transactions of a namespace: what is sent and settled in one happens at its commit, all of it or nothing.

Until then nothing is changed: messages sent are held here and seen by nobody, messages settled stay locked by their
receiver. So a rollback has nothing to undo: the lock and the delivery count of a settled message are what they were.
A message that is scheduled gets its sequence number at once, since the client is told; a rollback leaves a gap.
A commit first asks whether everything can still be done (locks held, entities there, enabled and with room), and then
does it in one turn of the loop, which is one transaction of a durable store as well.

A transaction belongs to the connection that declared it ("Transactions cannot span more than one connection context",
"AMQP transaction support and send via are now generally available", Service Bus blog). To any other connection its id
is unknown, and what it holds counts as held for its own.

A transaction works at one partition of one queue or topic, its subscriptions and dead letters included. Links that
share an AMQP session with the coordinator can do more: what they send to other entities goes through the first one
(`TransactionGroup`). Source: "Overview of Service Bus transaction processing" and azure-sdk-for-net's live tests
(TransactionLiveTests, current in November 2026); the words of the refusals are those that its users report.
"""

import secrets
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from sbpair.emulator.broker.intake import Prepared
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import Message, MessageHead
from sbpair.emulator.broker.partitions import key_of, partition_of
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.laws import Laws
from sbpair.engine import errors
from sbpair.engine.budgets import MAX_OPEN_TRANSACTIONS, ClientBudget
from sbpair.engine.clock import Clock, Timer
from sbpair.engine.errors import BrokerError
from sbpair.service import session_key

MAX_PARTS_PER_TRANSACTION = 2000
"""Messages, settlements and cancellations, which a commit does all at once: our own bound."""


UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLED_BACK = "amqp:transaction:rollback"
TIMED_OUT = "amqp:transaction:timeout"
_REMEMBERED = 1000
_PART_BYTES = 512
"""What a message or a settlement takes in a transaction beside its bytes."""

_UNKNOWN = "The transaction hasn't been declared yet, or has already been discharged."
_SPAN = "Local transactions cannot span multiple entities or partitions."

Step = Callable[[], object]


class TransactionGroup:
    """The links of an AMQP session whose first link is the coordinator's, as with .NET's EnableCrossEntityTransactions.

    `via` is the entity of the first of them; all others are sent to through it. Strength: shown by the live tests
    TransactionGroupReceivesFirst, -SendsFirst and -SendsFirstRollback. Unknown: what holds where the coordinator comes
    later; such a session is no group here.
    """

    def __init__(self) -> None:
        self.via: Queue | Topic | None = None

    def check_receiver(self, top_path: str) -> None:
        """BrokerError not-allowed for a receiver on another entity than `via`: a message can be sent through an entity,
        not received."""
        if self.via is not None and self.via.top_path != top_path:
            raise BrokerError(
                errors.NOT_ALLOWED, "Local transactions cannot span multiple top-level entities such as queue or topic."
            )


@dataclass(frozen=True, slots=True)
class _Send:
    """Messages for an entity; those that were scheduled by request have their numbers already."""

    entity: Queue | Topic
    messages: list[Message]
    reserved: Mapping[Message, int] | None = None


class Transaction:
    """What belongs to one open transaction. `budget` is that of the connection that declared it."""

    def __init__(
        self, transaction_id: bytes, budget: ClientBudget, laws: Laws, group: TransactionGroup | None = None
    ) -> None:
        self.id = transaction_id
        self._laws = laws
        self.budget = budget
        self.held_bytes = 0
        self.parts = 0
        self.ended = False
        self.timer: Timer | None = None
        self._group = group
        self._top_path: str | None = None
        self._partition: int | None = None
        self._keys: set[str | None] = set()
        self._sends: list[_Send] = []
        self._settlements: dict[uuid.UUID, tuple[Mailbox, Step]] = {}
        self._cancelled: dict[Queue | Topic, list[int]] = {}
        self._changes: list[tuple[Step, Step]] = []
        self._failure: BrokerError | None = None

    def hold(self, size_bytes: int, parts: int = 0) -> None:
        """Count that many bytes, in that many messages or settlements, that are to be kept until the end.

        Raises BrokerError resource-limit-exceeded when that is too much for the connection or for one commit. Nothing
        is counted then, and a commit is impossible.
        """
        if self.ended:
            raise BrokerError(UNKNOWN_ID, "The transaction has ended while a request in it was worked on.")
        total = size_bytes + parts * _PART_BYTES
        if self.parts + parts > MAX_PARTS_PER_TRANSACTION:
            self._refuse(f"A transaction has {MAX_PARTS_PER_TRANSACTION} messages and settlements at most.")
        if not self.budget.has_room(total):
            self._refuse("The open transactions of this connection hold too many bytes.")
        self.parts += parts
        self.held_bytes += total
        self.budget.hold(total)

    @property
    def _via(self) -> Queue | Topic | None:
        return None if self._group is None else self._group.via

    def check_link(self, group: TransactionGroup | None) -> None:
        """BrokerError unknown-id for a link that is not in the group for which the transaction was declared, if there
        is one. Such a refusal does not keep the rest from being committed (live test TransactionGroupSendsFirst)."""
        if self._via is not None and group is not self._group:
            raise BrokerError(UNKNOWN_ID, _UNKNOWN)

    def _refuse(self, description: str) -> NoReturn:
        error = BrokerError(errors.QUOTA, description)
        self.fail(error)
        raise error

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
        """Note that scheduled messages are to be deleted. BrokerError message-not-found, or not-allowed at another
        entity. In a group the entity may be any: whether the service cancels at another than `via` is unknown."""
        if self._via is None:
            self._bind(entity.top_path, None)
        noted = [*self._cancelled.get(entity, ()), *dict.fromkeys(numbers)]
        entity.check_scheduled(noted)
        self.hold(0, len(numbers))
        if len(set(noted)) < len(noted):
            raise BrokerError(
                errors.MESSAGE_NOT_FOUND, "A scheduled message with that number is cancelled in this transaction."
            )
        self._cancelled[entity] = noted

    def settle(self, mailbox: Mailbox, token: uuid.UUID, apply: Step) -> None:
        """Note a settlement. BrokerError message-lock-lost, or not-allowed for one that is noted already.

        At another entity or partition it is refused, and the message goes back: "the service seems to abandon" it, says
        the live test TransactionThrowsWhenOperationsOfDifferentPartitionsAreInSameTransaction.
        """
        lock = mailbox.check_lock(token)
        if token in self._settlements:
            raise BrokerError(errors.NOT_ALLOWED, "The message is settled in this transaction already.")
        partition = partition_of(lock.message.sequence_number) if mailbox.entity.is_partitioned else None
        try:
            self._bind(mailbox.entity.top_path, partition)
        except BrokerError:
            mailbox.abandon(token)
            raise
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

    def committing(self) -> Iterator[None]:
        """Do it all, at once after steps that find out what topics make of it.

        Raises BrokerError, with nothing done, if one part cannot be done any more.
        """
        prepared: dict[Message, Prepared] = {}
        try:
            self._check()
            for send in self._sends:
                if send.reserved is None:
                    prepared.update((yield from send.entity.preparing(send.messages)))
            if prepared:
                self._check()
        except BrokerError as error:
            raise BrokerError(ROLLED_BACK, f"The transaction was rolled back: {error.description}") from error
        for _, apply in (*self._settlements.values(), *self._changes):
            apply()
        for entity, numbers in self._cancelled.items():
            entity.cancel_scheduled(numbers)
        for send in self._sends:
            send.entity.take(send.messages, send.reserved, prepared)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        for token, (mailbox, _) in self._settlements.items():
            mailbox.check_lock(token)
        for check, _ in self._changes:
            check()
        for entity, numbers in self._cancelled.items():
            entity.check_there()
            entity.check_scheduled(numbers)
        sent: dict[Queue | Topic, list[Message]] = {}
        for send in self._sends:
            sent.setdefault(send.entity, []).extend(send.messages)
        for entity, messages in sent.items():
            entity.check_there()
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
        most = self._laws.max_transaction_messages
        if sum(len(send.messages) for send in self._sends) + more > most:
            raise BrokerError(errors.NOT_ALLOWED, f"Cannot send more than {most} messages in a single transaction.")

    def _check_keys(self, entity: Queue | Topic, messages: list[Message]) -> None:
        """Messages of a transaction go to one partition of a partitioned entity ("Partitioned queues and topics").

        Through another entity the partition there counts, by the transaction partition key: functionally equivalent to
        the partition key, says the reference of ServiceBusMessage.TransactionPartitionKey. Unknown: whether a message
        without any key may go to a partitioned entity through another one; it is refused here.
        """
        through = entity if self._via is None else self._via
        direct, bound = through.top_path == entity.top_path, through.description.enable_partitioning
        keys = {_key(message.head, direct=direct) for message in messages}
        needed = self._laws.transaction_needs_key and (bound or entity.description.enable_partitioning)
        if None in keys and needed:
            raise BrokerError(
                errors.NOT_ALLOWED,
                f"A message without partition key or session id cannot be sent to '{entity.path}' in a transaction.",
            )
        if not bound:
            self._bind(through.top_path, None)
            return
        keys |= self._keys
        if len(keys) > 1 and self._laws.transaction_one_partition:
            raise BrokerError(
                errors.NOT_ALLOWED,
                f"{_SPAN} All messages sent {'to' if direct else 'through'} the partitioned entity '{through.path}' in "
                f"one transaction must have the same {'' if direct else 'transaction '}partition key or session id.",
            )
        self._bind(through.top_path, through.numbering.of_key(next(iter(keys))))
        self._keys = keys

    def _bind(self, top_path: str, partition: int | None) -> None:
        """BrokerError not-allowed unless everything is done at one partition of one entity."""
        via = self._via
        bound = self._top_path if via is None else via.top_path
        partitions = {self._partition, partition} - {None} if self._laws.transaction_one_partition else set()
        elsewhere = self._laws.transaction_single_entity and top_path != (bound or top_path)
        if elsewhere or len(partitions) > 1:
            raise BrokerError(errors.NOT_ALLOWED, _SPAN)
        self._top_path, self._partition = top_path, next(iter(partitions), None)


def _key(head: MessageHead, *, direct: bool) -> str | None:
    """What binds a message to a partition of the entity that it is sent to or, if not `direct`, through."""
    key = head.via_partition_key if not direct and head.via_partition_key is not None else key_of(head)
    return None if key is None else session_key(key)


class Transactions:
    """The open transactions of a namespace by their ids, which nobody can guess."""

    def __init__(self, clock: Clock, laws: Laws) -> None:
        self._clock, self._laws = clock, laws
        self._open: dict[bytes, Transaction] = {}
        self._timed_out: deque[bytes] = deque(maxlen=_REMEMBERED)

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, budget: ClientBudget, group: TransactionGroup | None = None) -> Transaction:
        """Begin one for the connection with this budget, and for the links of a group if there is one. BrokerError
        resource-limit-exceeded when the connection has too many."""
        if not budget.begin_transaction():
            raise BrokerError(
                errors.QUOTA,
                f"The connection has as many open transactions as it may have: {MAX_OPEN_TRANSACTIONS} at most, fewer "
                "where they hold much.",
            )
        transaction = Transaction(secrets.token_bytes(16), budget, self._laws, group)
        self._open[transaction.id] = transaction
        due = self._clock.now() + self._laws.transaction_seconds
        transaction.timer = self._clock.call_at(due, lambda: self._time_out(transaction.id))
        return transaction

    def require(self, transaction_id: object, budget: ClientBudget) -> Transaction:
        """The open transaction of that connection with that id, or BrokerError."""
        found = self._open.get(transaction_id) if isinstance(transaction_id, bytes) else None
        if found is not None and (found.budget is budget or not self._laws.transaction_single_connection):
            return found
        if transaction_id in self._timed_out:
            seconds = self._laws.transaction_seconds
            raise BrokerError(TIMED_OUT, f"The transaction was rolled back: it was open for more than {seconds:.0f} s.")
        raise BrokerError(UNKNOWN_ID, _UNKNOWN)

    def committing(self, transaction_id: object, budget: ClientBudget) -> Iterator[None]:
        """End one by doing all of it, in steps of which only the last changes anything; BrokerError if it was rolled
        back instead."""
        transaction = self.require(transaction_id, budget)
        self._forget(transaction)
        yield from transaction.committing()

    def roll_back(self, transaction_id: object, budget: ClientBudget) -> None:
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
        transaction.ended = True
        transaction.budget.release(transaction.held_bytes)
        transaction.budget.end_transaction()
        if transaction.timer is not None:
            transaction.timer.cancel()
