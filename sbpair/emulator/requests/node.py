"""`<entity>/$management`: requests on one link of a connection, answers on another.

Request   application-properties operation (string), com.microsoft:server-timeout, associated-link-name; body a map.
Response  properties.correlation-id = the request's message-id, with its type; application-properties statusCode (int),
          statusDescription, errorCondition (symbol, for errors); body always a map.
Goes to the receiver whose target address or name is the request's reply-to, else to the receiver of the same session.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from sbpair.amqp.sections import PropertyField, Section, build, field, read, scan
from sbpair.amqp.types import AmqpError, Described, Int, Symbol
from sbpair.emulator.broker.addresses import Location
from sbpair.emulator.broker.messages import as_mapping
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Topic
from sbpair.emulator.broker.transactions import Transaction
from sbpair.emulator.limits import MAX_REQUEST_ITEMS
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.requests import batch_delete, deferred, disposition, locks, peek, rules, schedule, sessions
from sbpair.emulator.requests.call import Answering, Call, Operation, Reply, WithinTransaction
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, rights_for
from sbpair.engine.errors import BrokerError
from sbpair.engine.faults import FaultKind
from sbpair.engine.link import IncomingDelivery, Link, LinkConnection, LinkHandler
from sbpair.engine.performatives import accepted, in_transaction, rejected, transaction_of
from sbpair.engine.replies import Replies

AT_COMMIT, REFUSED = WithinTransaction.AT_COMMIT, WithinTransaction.REFUSED

# All management operations by name.

OPERATIONS = {
    "com.microsoft:peek-message": Operation(peek.peek_message, LISTEN),
    "com.microsoft:renew-lock": Operation(locks.renew_lock, LISTEN),
    "com.microsoft:schedule-message": Operation(schedule.schedule_message, SEND, AT_COMMIT),
    "com.microsoft:cancel-scheduled-message": Operation(schedule.cancel_scheduled_message, SEND, AT_COMMIT),
    "com.microsoft:receive-by-sequence-number": Operation(deferred.receive_by_sequence_number, LISTEN),
    "com.microsoft:update-disposition": Operation(disposition.update_disposition, LISTEN, AT_COMMIT),
    "com.microsoft:renew-session-lock": Operation(sessions.renew_session_lock, LISTEN),
    "com.microsoft:get-session-state": Operation(sessions.get_session_state, LISTEN),
    "com.microsoft:set-session-state": Operation(sessions.set_session_state, LISTEN, AT_COMMIT),
    "com.microsoft:get-message-sessions": Operation(sessions.get_message_sessions, LISTEN),
    "com.microsoft:add-rule": Operation(rules.add_rule, LISTEN, REFUSED),
    "com.microsoft:remove-rule": Operation(rules.remove_rule, LISTEN, REFUSED),
    "com.microsoft:enumerate-rules": Operation(rules.enumerate_rules, LISTEN),
    "com.microsoft:batch-delete-messages": Operation(batch_delete.delete_messages, LISTEN, REFUSED),
}


class RequestNode:
    """The request node of one place of one entity for one connection."""

    def __init__(self, namespace: Namespace, connection: LinkConnection, location: Location) -> None:
        self.namespace = namespace
        self.connection = connection
        self.location = location
        self.replies: list[ReplyLink] = []
        self.users = 0
        self.when_unused: Callable[[], object] = lambda: None

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
        try:
            spans = scan(delivery.payload)
            headers = read(delivery.payload, spans, Section.PROPERTIES, max_items=MAX_REQUEST_ITEMS) or []
            application = as_mapping(
                read(delivery.payload, spans, Section.APPLICATION_PROPERTIES, max_items=MAX_REQUEST_ITEMS)
            )
            body = read(delivery.payload, spans, Section.VALUE, max_items=MAX_REQUEST_ITEMS)
        except AmqpError as failure:
            link.disposition(delivery, rejected(errors.DECODE_ERROR, str(failure)))
            return
        within = transaction_of(delivery.state)
        link.disposition(delivery, _outcome(within))
        if action is not None and action.fails and action.condition is not None:
            reply = Reply.failure(action.status, action.condition, action.description)
        else:
            transaction_id = None if within is None else within[0]
            reply = yield from self._perform(delivery, application, as_mapping(body), transaction_id)
        if action is not None and action.kind is FaultKind.LOSE_SETTLEMENT_REPLY:
            return
        message_id = field(headers, PropertyField.MESSAGE_ID)
        receiver = self._receiver_for(field(headers, PropertyField.REPLY_TO), link)
        if receiver is not None:
            self.namespace.when_durable(
                lambda: receiver.deliver(_response(message_id, reply)),
                lambda: receiver.deliver(_response(message_id, reply if reply.condition else _unknown())),
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

    def _check_right(self, operation: Operation, address: str) -> None:
        if operation.right not in rights_for(self.connection, address, self.namespace.clock.client_now()):
            raise BrokerError(
                errors.UNAUTHORIZED,
                f"Unauthorized access. '{operation.right}' claim(s) are required to perform this operation.",
            )

    def _receiver_for(self, reply_to: object, request_link: Link) -> "ReplyLink | None":
        named = [one for one in self.replies if reply_to and reply_to in (one.link.target_address, one.link.name)]
        near = [one for one in self.replies if one.link.session is request_link.session]
        return next(iter(named or near or self.replies), None)


def _unknown() -> Reply:
    return Reply.failure(errors.STATUSES[errors.TIMEOUT], errors.TIMEOUT, errors.UNKNOWN_OUTCOME)


def _outcome(within: tuple[object, Described | None] | None) -> Described:
    """A request has arrived, in a transaction or outside any."""
    if within is None or not isinstance(within[0], bytes):
        return accepted()
    return in_transaction(within[0], accepted())


def _perform_within(transaction: Transaction, operation: Operation, call: Call, size_bytes: int) -> Answering:
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


class _ManagementLink(LinkHandler):
    """What both directions share: they belong to the entity and to the node."""

    def __init__(self, node: RequestNode, link: Link) -> None:
        self.link = link
        self._node = node
        node.users += 1
        node.location.entity.links[self] = None

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        if not settled:
            self.link.settle(delivery_id, accepted())

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._leave()

    def detach(self, condition: str, description: str) -> None:
        """The entity closes the link."""
        self._leave()
        self.link.detach(condition, description)

    def _leave(self) -> None:
        node = self._node
        node.location.entity.links.pop(self, None)
        node.users -= 1
        if node.users <= 0:
            node.when_unused()


class RequestLink(_ManagementLink):
    """The link on which the client asks."""

    def on_transfer(self, delivery: IncomingDelivery) -> Iterator[None]:
        return self._node.answering(delivery)


class ReplyLink(_ManagementLink):
    """The link on which the client is answered. An answer waits for credit."""

    def __init__(self, node: RequestNode, link: Link) -> None:
        super().__init__(node, link)
        self._replies = Replies(link)
        node.replies.append(self)

    def deliver(self, payload: bytes) -> None:
        self._replies.deliver(payload)

    def on_credit(self) -> None:
        self._replies.on_credit()

    def _leave(self) -> None:
        self._replies.drop()
        if self in self._node.replies:
            self._node.replies.remove(self)
        super()._leave()


def _response(message_id: object, reply: Reply) -> bytes:
    properties = [None] * PropertyField.CORRELATION_ID + [message_id]
    status: dict[object, object] = {"statusCode": Int(reply.status), "statusDescription": reply.description}
    if reply.condition is not None:
        status["errorCondition"] = Symbol(reply.condition)
    return build(properties=properties, application_properties=status, value=dict(reply.body))
