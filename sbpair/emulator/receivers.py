"""A client's receiving link on a queue, subscription or sub-queue: deliveries out, settlements in.

Peek-lock: the delivery tag is the lock token (16 bytes, .NET order), and every settlement is confirmed with the same
outcome, or with `rejected` and the reason. A delivery whose lock has ended is still known by its id, so that its
settlement is answered too (message-lock-lost) instead of leaving the client to wait. Receive-and-delete: settled
deliveries with an empty tag. Locks of a plain queue outlive the link; a session's messages go back with its link.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    Fields,
    accepted,
    composite_fields,
    in_transaction,
    outcome_code,
    released,
    transaction_of,
)
from sbpair.amqp.types import Described, Long
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.mailbox import DELIVERIES_PER_TURN, MAIN, Mailbox
from sbpair.emulator.broker.messages import Message, as_mapping
from sbpair.emulator.broker.partitions import PARTITION_SHIFT, partition_of
from sbpair.emulator.broker.sessions import Lock, MessageSession
from sbpair.emulator.broker.transactions import Transactions
from sbpair.emulator.laws import Laws
from sbpair.emulator.senders import EntityLink
from sbpair.engine import errors
from sbpair.engine.clock import Timer
from sbpair.engine.errors import BrokerError, rejected, unknown_outcome
from sbpair.engine.faults import FaultKind
from sbpair.engine.link import Link
from sbpair.service import PARTITION_COUNT

# Asking for a session at attach: the source filter `com.microsoft:session-filter`, null for the next available one.

SESSION_FILTER = "com.microsoft:session-filter"
NON_EXCLUSIVE_FILTER = "com.microsoft:non-exclusive-session-filter"
LOCKED_UNTIL_PROPERTY = "com.microsoft:locked-until-utc"
_TIMEOUT_PROPERTY = "com.microsoft:timeout"
_TICKS_TO_1970 = 621_355_968_000_000_000


@dataclass(frozen=True, slots=True)
class RequestedSession:
    """The session a receiver asks for, None for the next available, by the filter of this name."""

    filter: str
    session_id: str | None
    is_exclusive: bool = True
    token: uuid.UUID | None = None
    """Of the lock of a session that is not exclusive: a receiver that has it takes the session over from its holder."""


def requested_session(filters: Mapping[str, Any], longest: int) -> RequestedSession | None:
    """What a link's filters ask for, None for no session; BrokerError for anything that is no session id, or no token.

    Sessions that are not exclusive: Azure.Messaging.ServiceBus 7.21, "Taking over a non-exclusive session".
    """
    if SESSION_FILTER in filters:
        return RequestedSession(SESSION_FILTER, _session_id(filters[SESSION_FILTER], longest))
    name = next((name for name in filters if name.removesuffix(":list") == NON_EXCLUSIVE_FILTER), None)
    if name is None:
        return None
    asked = Fields(filters[name] if isinstance(filters[name], list) else [])
    token = asked.get(1)
    if token is not None and (not isinstance(token, uuid.UUID) or asked.get(0) is None):
        raise BrokerError(errors.INVALID_FIELD, "The lock token must be a uuid, and the session id be given with it.")
    return RequestedSession(name, _session_id(asked.get(0), longest), is_exclusive=False, token=token)


def _session_id(value: object, longest: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BrokerError(errors.INVALID_FIELD, f"The session id must be a string, not {type(value).__name__}.")
    if len(value) > longest:
        text = f"The session id has {len(value)} characters; the limit is {longest}."
        raise BrokerError(errors.ARGUMENT_ERROR, text)
    return str(value)


def waiting_seconds(properties: dict[str, Any], laws: Laws) -> float:
    """How long the client will wait for the next available session (link property in milliseconds)."""
    timeout = properties.get(_TIMEOUT_PROPERTY)
    if isinstance(timeout, int) and not isinstance(timeout, bool):
        return int(timeout) / 1000
    return laws.next_session_timeout_seconds


def ticks(instant: float) -> Long:
    """An instant (epoch seconds) in 100 ns since the year 1, as .NET counts."""
    return Long(round(instant * 1000) * 10_000 + _TICKS_TO_1970)


_SETTLED_BY_SENDER = 1


class Receiver(EntityLink):
    """The handler of one receiving link, and a consumer of its mailbox."""

    def __init__(
        self,
        entity: MessageEntity,
        mailbox: Mailbox,
        link: Link,
        transactions: Transactions,
        requested: RequestedSession | None = None,
    ) -> None:
        super().__init__(entity, link)
        self.settled = link.snd_settle_mode == _SETTLED_BY_SENDER
        self.session_id: str | None = None
        self._session: MessageSession | None = None
        self.shares_session = requested is not None and not requested.is_exclusive
        self._requested = requested
        self._entity = entity
        self._mailbox = mailbox
        self._transactions = transactions
        self._tokens: dict[int, uuid.UUID] = {}
        self._pending = 0
        self._patience: Timer | None = None
        self._held_back: Timer | None = None

    # -- attaching

    def start(self) -> None:
        """Open the link: at once, or once a session is ours. Raises BrokerError when the session cannot be had."""
        sessions, requested = self._mailbox.sessions, self._requested
        if sessions is None or requested is None:
            # Without a largest size: a client would refuse what the entity takes, as soon as it is larger than the
            # tier's default (Premium) or grows over it by the broker's stamps.
            self._link.open()
            return
        if requested.session_id is not None:
            try:
                self._mailbox.check_session(requested.session_id)
                session = sessions.hold(requested.session_id, self, requested.token)
            except BrokerError:
                super().leave()
                raise
            self.session_id = requested.session_id
            self.granted(session)
            return
        self._mailbox.expire_due()
        if not sessions.wait(self):
            clock = self._entity.namespace.clock
            due = clock.now() + waiting_seconds(self._link.properties, self._entity.namespace.laws)
            self._patience = clock.call_at(due, self._gave_up)

    def granted(self, session: MessageSession) -> None:
        """A session is locked for us: answer the attach with its id, spelled as it was asked for, and its lock time."""
        self._stop_waiting()
        self._session = session
        self.session_id = session.id if self.session_id is None else self.session_id
        answer: object = [self.session_id, session.token] if self.shares_session else self.session_id
        self._link.open(
            properties={LOCKED_UNTIL_PROPERTY: ticks(session.locked_until)},
            filter_replies={SESSION_FILTER if self._requested is None else self._requested.filter: answer},
        )

    def _gave_up(self) -> None:
        self._patience = None
        self.leave()
        self._link.reject(errors.TIMEOUT, "The operation did not complete within the allotted time: no session.")

    # -- as a consumer

    def room(self) -> int:
        room = self._link.credit - self._pending
        return 0 if room > 0 and self._is_held_back() else room

    def _is_held_back(self) -> bool:
        """Whether this second's budget of the namespace is used up; then the next one begins with a look from here."""
        throttling = self._entity.namespace.throttling
        if throttling is None or throttling.is_open():
            return False
        if self._held_back is None:
            clock = self._entity.namespace.clock
            self._held_back = clock.call_at(throttling.next_second, self._go_on)
        return True

    def _go_on(self) -> None:
        self._held_back = None
        if self._link.is_open():
            self.on_credit()

    def admit(self, lock_seconds: float) -> float | None:
        action = self._link.fault("receive")
        if action is None:
            return lock_seconds
        if action.kind is FaultKind.EXPIRE_LOCKS:
            return action.lock_seconds
        if action.fails and action.condition is not None:
            self.detach(action.condition, action.description)
        return None if action.fails or action.cuts else lock_seconds

    def hand(self, message: Message, lock: Lock | None) -> None:
        token, until = (None, None) if lock is None else (lock.token, lock.until)
        payload = message.render_delivery(lock_token=token, locked_until=until)
        if self._entity.namespace.throttling is not None:
            self._entity.namespace.throttling.spend(1, len(payload))
        self._pending += 1
        self._entity.namespace.when_durable(lambda: self._transfer(payload, token))

    def _transfer(self, payload: bytes, token: uuid.UUID | None) -> None:
        self._pending -= 1
        if not self._link.is_open():
            return
        if token is None:
            self._link.send(payload, b"", settled=True)
        else:
            self._tokens[self._link.send(payload, token.bytes_le, settled=False)] = token

    # -- as a link handler

    def on_credit(self) -> None:
        self._mailbox.want(self)
        if self._link.drain:
            self._entity.namespace.when_durable(self._drained)

    def _drained(self) -> None:
        """Give the credit back that nothing is left for; not while the mailbox still hands messages out."""
        if not (self._link.is_open() and self._link.drain):
            return
        if self._held_back is not None:
            return  # the next second asks again
        if self._link.credit > 0 and self._mailbox.handout.is_serving(self):
            namespace = self._entity.namespace
            namespace.clock.call_at(namespace.clock.now(), lambda: namespace.when_durable(self._drained))
        else:
            self._link.drained()

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        try:
            self._entity.namespace.check_store()
        except BrokerError as error:
            self._answer(delivery_id, rejected(error.condition, error.description), settled=settled)
            return
        within = transaction_of(state)
        token = self._tokens.get(delivery_id) if within is not None else self._tokens.pop(delivery_id, None)
        if state is None and not settled:
            return
        action = self._link.fault("settle")
        if action is not None and action.cuts:
            return
        if action is not None and action.fails and action.condition is not None:
            self._answer(delivery_id, rejected(action.condition, action.description), settled=settled)
            return
        if within is not None:
            self._settle_within(delivery_id, token, *within, settled=settled)
            return
        reply = self._settle(token, state)
        delay_seconds = 0.0 if action is None else action.delay_seconds
        if action is None or action.kind is not FaultKind.LOSE_SETTLEMENT_REPLY:
            self._entity.namespace.when_durable(
                lambda: self._answer(delivery_id, reply, settled=settled, delay_seconds=delay_seconds),
                lambda: self._answer(delivery_id, unknown_outcome(), settled=settled),
            )

    # -- inside

    def _answer(self, delivery_id: int, reply: Described, *, settled: bool, delay_seconds: float = 0.0) -> None:
        if settled:
            return
        if delay_seconds:
            clock = self._entity.namespace.clock
            clock.call_at(clock.now() + delay_seconds, lambda: self._link.settle(delivery_id, reply))
        else:
            self._link.settle(delivery_id, reply)

    def _settle_within(
        self,
        delivery_id: int,
        token: uuid.UUID | None,
        transaction_id: object,
        outcome: Described | None,
        *,
        settled: bool,
    ) -> None:
        """Note a settlement in its transaction. The message stays locked here until that is committed."""
        if token is None:
            self._answer(delivery_id, self._settle(None, outcome), settled=settled)
            return
        try:
            transaction = self._transactions.require(transaction_id, self._link.connection.budget)
            transaction.check_link(self._link.session.transaction_group)
            try:
                self._check_outcome(outcome)
                transaction.hold(len(encode(outcome)))
                transaction.settle(
                    self._mailbox, token, lambda: self._commit(delivery_id, token, outcome, settled=settled)
                )
            except BrokerError as error:
                transaction.fail(error)
                raise
            confirmed = rejected() if outcome_code(outcome) == REJECTED else outcome or accepted()
        except BrokerError as error:
            confirmed = rejected(error.condition, error.description)
        if not settled:
            named = transaction_id if isinstance(transaction_id, bytes) else b""
            self._link.settle_for_now(delivery_id, in_transaction(named, confirmed))

    def _check_outcome(self, outcome: Described | None) -> None:
        """Refuse now what could not be done at the commit."""
        if outcome_code(outcome) not in (ACCEPTED, REJECTED, RELEASED, MODIFIED):
            raise BrokerError(errors.NOT_IMPLEMENTED, "The delivery state is not one of the four outcomes.")
        if outcome_code(outcome) == REJECTED and self._mailbox.place != MAIN:
            raise BrokerError(errors.NOT_ALLOWED, "A dead-lettered message cannot be dead-lettered again.")

    def _commit(self, delivery_id: int, token: uuid.UUID, outcome: Described | None, *, settled: bool) -> None:
        self._tokens.pop(delivery_id, None)
        reply = self._apply(token, outcome)
        self._entity.namespace.when_durable(
            lambda: self._answer(delivery_id, reply, settled=settled),
            lambda: self._answer(delivery_id, unknown_outcome(), settled=settled),
        )

    def _settle(self, token: uuid.UUID | None, state: Described | None) -> Described:
        """Do what the client says; the state that answers it."""
        if token is None:
            return rejected(errors.MESSAGE_LOCK_LOST, "The delivery is unknown or has been settled already.")
        try:
            return self._apply(token, state)
        except BrokerError as error:
            condition, session = error.condition, self._session
            if condition == errors.MESSAGE_LOCK_LOST and session is not None and session.holder is not self:
                condition = self._entity.namespace.laws.settled_after_session_lost
            return rejected(condition, error.description)

    def _apply(self, token: uuid.UUID, state: Described | None) -> Described:
        code = outcome_code(state)
        if state is None or code == RELEASED:
            self._mailbox.release(token)
        elif code == ACCEPTED:
            self._mailbox.complete(token)
        elif code == MODIFIED:
            fields = Fields(composite_fields(state))
            properties = plain_properties(fields.get(2))
            if fields.flag(1):
                self._mailbox.defer(token, properties)
            else:
                self._mailbox.abandon(token, properties)
        elif code == REJECTED and state is not None:
            return self._dead_letter(token, state)
        else:
            raise BrokerError(errors.NOT_IMPLEMENTED, "The delivery state is not one of the four outcomes.")
        return released() if state is None else state

    def _dead_letter(self, token: uuid.UUID, state: Described) -> Described:
        error = Fields(composite_fields(Fields(composite_fields(state)).get(0)))
        info = plain_properties(error.get(2))
        reason, text = info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None)
        condition = error.get(0)
        if condition is not None and condition != errors.DEAD_LETTER and reason is None:
            reason, text = str(condition), error.get(1)
        self._mailbox.dead_letter(token, reason, text, info)
        return rejected()

    def leave(self) -> None:
        self._stop_waiting()
        if self._held_back is not None:
            self._held_back.cancel()
            self._held_back = None
        if self._mailbox.sessions is not None:
            self._mailbox.sessions.stop_waiting(self)
        self._mailbox.leave(self)
        super().leave()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def plain_properties(value: object) -> dict[str, object]:
    """The entries of an annotations map as application properties: symbols become strings, values keep their type."""
    return {str(key): item for key, item in as_mapping(value).items()}


PEEK_MODE_PROPERTY = "com.microsoft:peek-mode"


class BrowsingLink(EntityLink):
    """The handler of a link that browses: the retired library's and Service Bus Explorer's peek mode, JMS' copies.

    Every message is shown once, oldest first, in whatever state it is: not locked, not counted, not taken. Messages
    that come later follow as long as there is credit.
    """

    def __init__(self, entity: MessageEntity, mailbox: Mailbox, link: Link) -> None:
        super().__init__(entity, link)
        self._entity = entity
        self._mailbox = mailbox
        self._next: dict[int, int] = {}
        self._show_due = False

    def start(self) -> None:
        self._mailbox.watchers[self.on_credit] = None
        self._link.open()

    def on_credit(self) -> None:
        """Show what has not been shown, as far as the credit goes, some messages in each turn of the loop."""
        if self._show_due:
            return
        shown = 0
        while self._link.is_open() and self._link.credit > 0 and (message := self._following()) is not None:
            if shown == DELIVERIES_PER_TURN:
                clock = self._entity.namespace.clock
                self._show_due = True
                clock.call_at(clock.now(), self._show_on)
                return
            shown += 1
            self._next[partition_of(message.sequence_number)] = message.sequence_number + 1
            self._link.send(message.render(), b"", settled=True)
        if self._link.drain and self._link.is_open():
            self._link.drained()

    def _show_on(self) -> None:
        self._show_due = False
        self.on_credit()

    def _following(self) -> Message | None:
        """The first message not shown yet. Each partition counts for itself (`partitions`), so each has a place."""
        closed = self._entity.closed_partitions
        for partition in range(PARTITION_COUNT if self._entity.is_partitioned else 1):
            since = self._next.get(partition, partition << PARTITION_SHIFT)
            message = next(self._mailbox.log.since(since), None)
            if message is not None and partition_of(message.sequence_number) == partition and partition not in closed:
                return message
        return None

    def leave(self) -> None:
        self._mailbox.watchers.pop(self.on_credit, None)
        super().leave()
