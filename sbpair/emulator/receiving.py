"""A client's receiving link on a queue, subscription or sub-queue: deliveries out, settlements in.

Peek-lock: the delivery tag is the lock token (16 bytes, .NET order), and every settlement is confirmed with the same
outcome, or with `rejected` and the reason. A delivery whose lock has ended is still known by its id, so that its
settlement is answered too (message-lock-lost) instead of leaving the client to wait. Receive-and-delete: settled
deliveries with an empty tag. Locks of a plain queue outlive the link; a session's messages go back with its link.
"""

import uuid

from sbpair.amqp.types import Described
from sbpair.emulator import errors
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.locks import Lock
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import Message, as_mapping
from sbpair.emulator.broker.sessions import Session
from sbpair.emulator.clock import Timer
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.faults import FaultKind
from sbpair.emulator.link import IncomingDelivery, Link
from sbpair.emulator.performatives import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    Fields,
    composite_fields,
    outcome_code,
    rejected,
    released,
)
from sbpair.emulator.session_filter import LOCKED_UNTIL_PROPERTY, SESSION_FILTER, ticks, waiting_seconds

_SETTLED_BY_SENDER = 1


class Receiver:
    """The handler of one receiving link, and a consumer of its mailbox."""

    def __init__(self, entity: MessageEntity, mailbox: Mailbox, link: Link) -> None:
        self.settled = link.snd_settle_mode == _SETTLED_BY_SENDER
        self.session_id: str | None = None
        self._entity = entity
        self._mailbox = mailbox
        self._link = link
        self._tokens: dict[int, uuid.UUID] = {}
        self._pending = 0
        self._patience: Timer | None = None
        entity.links.add(self)

    # -- attaching

    def start(self, session_id: str | None, *, wished: bool) -> None:
        """Open the link: at once, or once a session is ours. Raises BrokerError when the session cannot be had."""
        sessions = self._mailbox.sessions
        if sessions is None or not wished:
            self._link.open(max_message_size=self._entity.namespace.limits.max_message_bytes)
            return
        if session_id is not None:
            try:
                session = sessions.hold(session_id, self)
            except BrokerError:
                self._entity.links.discard(self)
                raise
            self.granted(session)
            return
        self._mailbox.expire_due()
        if not sessions.wait(self):
            clock = self._entity.namespace.clock
            due = clock.now() + waiting_seconds(self._link.properties)
            self._patience = clock.call_at(due, self._gave_up)

    def granted(self, session: Session) -> None:
        """A session is locked for us: answer the attach with its id and lock time."""
        self._stop_waiting()
        self.session_id = session.id
        self._link.open(
            properties={LOCKED_UNTIL_PROPERTY: ticks(session.locked_until)},
            filter_replies={SESSION_FILTER: session.id},
            max_message_size=self._entity.namespace.limits.max_message_bytes,
        )

    def _gave_up(self) -> None:
        self._patience = None
        self._leave()
        self._link.reject(errors.TIMEOUT, "The operation did not complete within the allotted time: no session.")

    # -- as a consumer

    def room(self) -> int:
        return self._link.credit - self._pending

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
        payload = message.render(lock_token=token, locked_until=until)
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

    def detach(self, condition: str, description: str) -> None:
        """The broker closes the link."""
        self._leave()
        self._link.detach(condition, description)

    # -- as a link handler

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        """A client that receives sends nothing."""

    def on_credit(self) -> None:
        self._mailbox.want(self)
        if self._link.drain:
            self._entity.namespace.when_durable(self._drained)

    def _drained(self) -> None:
        if self._link.is_open() and self._link.drain:
            self._link.drained()

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        token = self._tokens.pop(delivery_id, None)
        if state is None and not settled:
            return
        action = self._link.fault("settle")
        if action is not None and action.cuts:
            return
        if action is not None and action.fails and action.condition is not None:
            self._answer(delivery_id, rejected(action.condition, action.description), settled=settled)
            return
        reply = self._settle(token, state)
        if action is None or action.kind is not FaultKind.LOSE_SETTLEMENT_REPLY:
            self._entity.namespace.when_durable(lambda: self._answer(delivery_id, reply, settled=settled))

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._leave()

    # -- inside

    def _answer(self, delivery_id: int, reply: Described, *, settled: bool) -> None:
        if not settled:
            self._link.settle(delivery_id, reply)

    def _settle(self, token: uuid.UUID | None, state: Described | None) -> Described:
        """Do what the client says; the state that answers it."""
        if token is None:
            return rejected(errors.MESSAGE_LOCK_LOST, "The delivery is unknown or has been settled already.")
        try:
            return self._apply(token, state)
        except BrokerError as error:
            return rejected(error.condition, error.description)

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
        self._mailbox.dead_letter(token, _text(reason), _text(text), info)
        return rejected()

    def _leave(self) -> None:
        self._stop_waiting()
        if self._mailbox.sessions is not None:
            self._mailbox.sessions.stop_waiting(self)
        self._mailbox.leave(self)
        self._entity.links.discard(self)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def plain_properties(value: object) -> dict[str, object]:
    """The entries of an annotations map as application properties: symbols become strings, values keep their type."""
    return {str(key): item for key, item in as_mapping(value).items()}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
