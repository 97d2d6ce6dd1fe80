"""`<entity>/$management`: requests on one link of a connection, answers on another.

Request   application-properties operation (string), com.microsoft:server-timeout, associated-link-name; body a map.
Response  properties.correlation-id = the request's message-id, with its type; application-properties statusCode (int),
          statusDescription, errorCondition (symbol, for errors); body always a map.
Goes to the receiver whose target address or name is the request's reply-to, else to the receiver of the same session.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from sbpair.amqp.performatives import accepted, in_transaction, transaction_of
from sbpair.amqp.types import Described
from sbpair.emulator.broker.addresses import Location
from sbpair.emulator.broker.messages import as_mapping
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.broker.transactions import Transaction
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.requests import operations
from sbpair.emulator.requests.operations import Answering, Call, ManagementOperation, Reply, WithinTransaction
from sbpair.emulator.senders import EntityLink
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, rights_for
from sbpair.engine.connection import Connection
from sbpair.engine.errors import BrokerError, rejected
from sbpair.engine.faults import FaultKind
from sbpair.engine.link import IncomingDelivery, Link
from sbpair.engine.replies import AnsweringNode, AnswerLink, NodeRequest, status_of

MAX_REQUEST_ITEMS = 65_536
"""Our own bound of the items in a management request: some thousand messages to schedule, or as many lock tokens."""


AT_COMMIT, REFUSED = WithinTransaction.AT_COMMIT, WithinTransaction.REFUSED

# All management operations by name.

OPERATIONS = {
    "com.microsoft:peek-message": ManagementOperation(operations.peek_message, LISTEN),
    "com.microsoft:renew-lock": ManagementOperation(operations.renew_lock, LISTEN),
    "com.microsoft:schedule-message": ManagementOperation(operations.schedule_message, SEND, AT_COMMIT),
    "com.microsoft:cancel-scheduled-message": ManagementOperation(operations.cancel_scheduled_message, SEND, AT_COMMIT),
    "com.microsoft:receive-by-sequence-number": ManagementOperation(operations.receive_by_sequence_number, LISTEN),
    "com.microsoft:update-disposition": ManagementOperation(operations.update_disposition, LISTEN, AT_COMMIT),
    "com.microsoft:renew-session-lock": ManagementOperation(operations.renew_session_lock, LISTEN),
    "com.microsoft:get-session-state": ManagementOperation(operations.get_session_state, LISTEN),
    "com.microsoft:set-session-state": ManagementOperation(operations.set_session_state, LISTEN, AT_COMMIT),
    "com.microsoft:get-message-sessions": ManagementOperation(operations.get_message_sessions, LISTEN),
    "com.microsoft:add-rule": ManagementOperation(operations.add_rule, LISTEN, REFUSED),
    "com.microsoft:remove-rule": ManagementOperation(operations.remove_rule, LISTEN, REFUSED),
    "com.microsoft:enumerate-rules": ManagementOperation(operations.enumerate_rules, LISTEN),
    "com.microsoft:batch-delete-messages": ManagementOperation(operations.delete_messages, LISTEN, REFUSED),
}


class RequestNode(AnsweringNode):
    """The request node of one place of one entity for one connection."""

    most_items = MAX_REQUEST_ITEMS

    def __init__(self, namespace: Namespace, connection: Connection, location: Location) -> None:
        super().__init__()
        self.namespace = namespace
        self.connection = connection
        self.location = location
        self.users = 0
        self.when_unused: Callable[[], object] = lambda: None

    def join(self, link: "RequestLink | ReplyLink") -> None:
        """A link to the node, which the entity closes with it."""
        self.users += 1
        self.location.entity.links[link] = None

    def leave(self, link: "RequestLink | ReplyLink") -> None:
        self.location.entity.links.pop(link, None)
        self.users -= 1
        if self.users <= 0:
            self.when_unused()

    @property
    def _most_bytes(self) -> int:
        """The largest request: one that schedules as much as may be sent at once, and what is around it."""
        entity = self.location.entity
        largest = entity.intake.max_message_bytes if isinstance(entity, Queue | Topic) else 0
        return max(largest, self.namespace.laws.max_batch_bytes) + self.namespace.laws.max_header_bytes

    def answering(self, delivery: IncomingDelivery) -> Iterator[None]:
        """Handle one request in steps and send its answer, once what it changed is safe."""
        link = delivery.link
        action = link.fault("management")
        if action is not None and action.cuts:
            return
        if len(delivery.payload) > self._most_bytes:
            text = f"The request of {len(delivery.payload)} bytes exceeds the limit of {self._most_bytes} bytes."
            link.disposition(delivery, rejected(errors.SIZE_EXCEEDED, text))
            return
        within = transaction_of(delivery.state)
        asked = self.asked(delivery, _outcome(within))
        if asked is None:
            return
        if action is not None and action.fails and action.condition is not None:
            reply = Reply.failure(action.status, action.condition, action.description)
        else:
            transaction_id = None if within is None else within[0]
            reply = yield from self._perform(delivery, asked.application, as_mapping(asked.body), transaction_id)
        if action is not None and action.kind is FaultKind.LOSE_SETTLEMENT_REPLY:
            return
        self.namespace.when_durable(
            lambda: _answer(asked, reply), lambda: _answer(asked, reply if reply.condition else _unknown())
        )

    def _perform(
        self,
        delivery: IncomingDelivery,
        application: Mapping[object, object],
        body: Mapping[object, object],
        transaction_id: object,
    ) -> Answering:
        name = application.get("operation")
        operation = OPERATIONS.get(name) if isinstance(name, str) else None
        try:
            if operation is None:
                raise BrokerError(errors.NOT_IMPLEMENTED, f"The operation {name!r} is not known.")
            self._check_right(operation, delivery.link.address)
            self.namespace.check_store()
            self.namespace.charge(1)
            self.location.entity.touch()
            call = Call(self.namespace, self.location, {str(key): body[key] for key in body})
            if transaction_id is None:
                return (yield from operation.perform(call))
            transaction = self.namespace.transactions.require(transaction_id, self.connection.budget)
            return (yield from _perform_within(transaction, operation, call, len(delivery.payload)))
        except BrokerError as error:
            return Reply.failure(errors.STATUSES.get(error.condition, 400), error.condition, error.description)

    def _check_right(self, operation: ManagementOperation, address: str) -> None:
        if operation.right not in rights_for(self.connection, address, self.namespace.clock.client_now()):
            raise BrokerError(
                errors.UNAUTHORIZED,
                f"Unauthorized access. '{operation.right}' claim(s) are required to perform this operation.",
            )


def _unknown() -> Reply:
    return Reply.failure(errors.STATUSES[errors.TIMEOUT], errors.TIMEOUT, errors.UNKNOWN_OUTCOME)


def _outcome(within: tuple[object, Described | None] | None) -> Described:
    """A request has arrived, in a transaction or outside any."""
    if within is None or not isinstance(within[0], bytes):
        return accepted()
    return in_transaction(within[0], accepted())


def _perform_within(transaction: Transaction, operation: ManagementOperation, call: Call, size_bytes: int) -> Answering:
    """A request in a transaction: done at its commit, or refused, and then the commit will fail; or done at once."""
    call = replace(call, transaction=transaction)
    if operation.within_transaction is WithinTransaction.AT_ONCE:
        return (yield from operation.perform(call))
    try:
        if operation.within_transaction is WithinTransaction.REFUSED:
            raise BrokerError(
                errors.NOT_ALLOWED, "Mixing management and messaging operations in a transaction is not supported."
            )
        transaction.hold(size_bytes)
        return (yield from operation.perform(call))
    except BrokerError as error:
        transaction.fail(error)
        raise


class RequestNodes:
    """The request nodes of a namespace that are in use."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._nodes: dict[tuple[str, str, str], RequestNode] = {}

    def attach(self, link: Link, location: Location) -> "RequestLink | ReplyLink":
        """Open a link to the node that a connection's links to one address share; the link's handler."""
        key = (link.connection.id, location.entity.path.lower(), location.place)
        node = self._nodes.get(key)
        if node is None or node.location.entity is not location.entity:
            node = self._nodes[key] = RequestNode(self._namespace, link.connection, location)
            node.when_unused = partial(self._forget, key, node)
        link.open()
        return RequestLink(node, link) if link.client_sends else ReplyLink(node, link)

    def _forget(self, key: tuple[str, str, str], node: RequestNode) -> None:
        """The last link is gone. An entity that was deleted and made again has another node by then."""
        if self._nodes.get(key) is node:
            del self._nodes[key]


class RequestLink(EntityLink):
    """The link on which the client asks."""

    def __init__(self, node: RequestNode, link: Link) -> None:
        super().__init__(node.location.entity, link)
        self._node = node
        node.join(self)

    def on_transfer(self, delivery: IncomingDelivery) -> Iterator[None]:
        return self._node.answering(delivery)

    def leave(self) -> None:
        self._node.leave(self)


class ReplyLink(AnswerLink):
    """The link on which the client is answered. An answer waits for credit."""

    def __init__(self, node: RequestNode, link: Link) -> None:
        super().__init__(node, link)
        self._requests = node
        node.receivers.append(self)
        node.join(self)

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        super().on_detach(closed, connection_lost)
        self._requests.leave(self)

    def detach(self, condition: str, description: str) -> None:
        self.on_detach(True, False)
        self.link.detach(condition, description)


def _answer(asked: NodeRequest, reply: Reply) -> None:
    names = ("statusCode", "statusDescription")
    asked.answer(status_of(reply.status, reply.description, reply.condition, names=names), dict(reply.body))
