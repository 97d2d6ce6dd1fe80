"""Nodes that are asked on one link and answer on another; an answer waits for the credit of the link it goes out on."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.performatives import accepted
from sbpair.amqp.sections import PropertyField, Section, build, field, read, scan
from sbpair.amqp.types import AmqpError, Described, Int, MapPairs, Symbol
from sbpair.engine import errors
from sbpair.engine.auth import AuthError, authenticate, resource_path, service_bus_audiences
from sbpair.engine.errors import rejected
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler

if TYPE_CHECKING:
    from sbpair.engine.connection import Connection

MOST_WAITING: Final = 1000
"""A client that asks on and on and takes no answer is sent away."""


class Replies:
    """The answers of one link. Those that wait count as held for the client (`budgets`)."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._count = 0

    def deliver(self, payload: bytes) -> None:
        """Send an answer now or as soon as there is credit."""
        if not self._link.is_open():
            return
        self._waiting.append(payload)
        if not self._link.connection.budget.hold(len(payload)):
            return
        self.on_credit()
        if len(self._waiting) > MOST_WAITING:
            self.drop()
            self._link.force_off(errors.QUOTA, f"More than {MOST_WAITING} answers wait for credit on this link.")

    def on_credit(self) -> None:
        """The link has credit, or is drained."""
        while self._waiting and self._link.is_open() and self._link.credit > 0:
            self._count = (self._count + 1) & 0xFFFFFFFF
            payload = self._waiting.popleft()
            self._link.connection.budget.release(len(payload))
            self._link.send(payload, self._count.to_bytes(4), settled=True)
        if self._link.drain and self._link.is_open():
            self._link.drained()

    def drop(self) -> None:
        """Nobody waits for these answers any more."""
        self._link.connection.budget.release(sum(map(len, self._waiting)))
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request that has been read. `reply` takes the bytes of the answer."""

    link: Link
    message_id: object
    application: Mapping[Any, Any]
    body: object
    reply: Callable[[bytes], None]

    def answer(self, status: dict[str, object], body: object = None) -> None:
        """Answer with these application properties."""
        properties = [None] * PropertyField.CORRELATION_ID + [self.message_id]
        self.reply(build(properties=properties, application_properties=status, value=body))


def status_of(
    code: int, description: str, condition: str | None = None, *, names: tuple[str, str]
) -> dict[str, object]:
    """The application properties of an answer; `names` of the code and of the description, which nodes differ in."""
    status: dict[str, object] = {names[0]: Int(code), names[1]: description}
    return status if condition is None else status | {"errorCondition": Symbol(condition)}


class AnsweringNode:
    """What requests and answers of one address meet in, for one connection. An answer goes to the receiver whose target
    address or name is the request's reply-to, else to the receiver of the same session."""

    most_items = 1000
    """In each section of a request."""

    def __init__(self) -> None:
        self.receivers: list[AnswerLink] = []

    def receiver(self, link: Link) -> "AnswerLink":
        """The handler of a link on which the client is answered."""
        made = AnswerLink(self, link)
        self.receivers.append(made)
        return made

    def asked(self, delivery: IncomingDelivery, outcome: Described | None = None) -> NodeRequest | None:
        """Read a request and settle it, as accepted by default; None for one that cannot be read, which is rejected."""
        payload = delivery.payload
        try:
            spans = scan(payload)
            properties = read(payload, spans, Section.PROPERTIES, max_items=self.most_items)
            application = read(payload, spans, Section.APPLICATION_PROPERTIES, max_items=self.most_items)
            body = read(payload, spans, Section.VALUE, max_items=self.most_items)
        except AmqpError as failure:
            delivery.link.disposition(delivery, rejected(errors.DECODE_ERROR, str(failure)))
            return None
        delivery.link.disposition(delivery, outcome or accepted())
        headers = properties if isinstance(properties, list) else []
        reply_to = field(headers, PropertyField.REPLY_TO)

        def reply(answer: bytes) -> None:
            receiver = self._receiver_for(reply_to, delivery.link)
            if receiver is not None:
                receiver.deliver(answer)

        pairs = application.items() if isinstance(application, dict | MapPairs) else ()
        known = {name: value for name, value in pairs if isinstance(name, str)}
        return NodeRequest(delivery.link, field(headers, PropertyField.MESSAGE_ID), known, body, reply)

    def _receiver_for(self, reply_to: object, request_link: Link) -> "AnswerLink | None":
        named = [one for one in self.receivers if reply_to and reply_to in (one.link.target_address, one.link.name)]
        near = [one for one in self.receivers if one.link.session is request_link.session]
        return next(iter(named or near or self.receivers), None)


class AnswerLink(LinkHandler):
    """The link on which the client is answered."""

    def __init__(self, node: AnsweringNode, link: Link) -> None:
        self.link = link
        self._node = node
        self._replies = Replies(link)

    def deliver(self, payload: bytes) -> None:
        self._replies.deliver(payload)

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        if not settled:
            self.link.settle(delivery_id, accepted())

    def on_credit(self) -> None:
        self._replies.on_credit()

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._replies.drop()
        self._node.receivers.remove(self)


# `$cbs`: a client puts a token for an entity before it attaches to it.
#
# Request application-properties operation="put-token", name=<resource URI>, type, expiration; body a string, the token.
# The type says "jwt" even for shared access signatures (Python SDK); the token itself tells. Response application-
# properties status-code (int) and status-description; correlation-id = the request's message-id. 202 accepted, 400 not
# understood, 401 token refused, 404 no such entity; for these also errorCondition (symbol), by which
# com.microsoft.azure's older Java client tells its exceptions apart. Where it is spelled `error-condition`, azure-
# servicebus for Python drops the status, and takes what is missing for a refusal.


MAX_REQUEST_BYTES = 256 * 1024
"""Of a request, which everybody may send: a token has a few KB."""
_NAMES = ("status-code", "status-description")
_CONDITIONS = {400: errors.ARGUMENT_ERROR, 401: errors.UNAUTHORIZED, 404: errors.NOT_FOUND, 503: errors.SERVER_BUSY}


class CbsNode(AnsweringNode):
    """The `$cbs` node of one connection."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__()
        self.connection = connection
        self._sending_to: set[str] = set()

    def attach(self, link: Link) -> LinkHandler:
        """Open a link, unless it is the second to send to this address on the connection: Go's client takes the
        refusal for the sign that a link of its own was left open, and connects again (azure-sdk-for-go,
        TestAMQPLinksCBSLinkStillOpen)."""
        if link.client_sends and link.address.lower() in self._sending_to:
            link.reject(
                errors.NOT_ALLOWED, f"A link that sends to '{link.address}' is open on this connection already."
            )
            return LinkHandler()
        link.open(max_message_size=MAX_REQUEST_BYTES)
        return _Sender(self, link) if link.client_sends else self.receiver(link)

    def sends_to(self, address: str, *, now: bool) -> None:
        """A client's sender to this address has been opened, or is gone."""
        (self._sending_to.add if now else self._sending_to.discard)(address.lower())

    def answering(self, delivery: IncomingDelivery) -> Iterator[None]:
        """Handle one request, in two steps: read it, and judge it."""
        asked = self.asked(delivery)
        if asked is None:
            return
        yield
        self.judge(asked)

    def judge(self, asked: NodeRequest) -> None:
        """Take or refuse a token, and say so."""
        self.answer(asked, *self.put_token(asked))

    @staticmethod
    def answer(asked: NodeRequest, status: int, description: str) -> None:
        asked.answer(status_of(status, description, _CONDITIONS.get(status), names=_NAMES))

    def put_token(self, asked: NodeRequest) -> tuple[int, str]:
        """The status of a request, by the namespace's own keys and rules."""
        if asked.application.get("operation") != "put-token":
            return 400, "The operation must be put-token."
        name, token = asked.application.get("name"), asked.body
        if not isinstance(name, str) or not isinstance(token, str):
            return 400, "The name and the token must be strings."
        namespace, path = self.connection.namespace, resource_path(name)
        try:
            claims = authenticate(
                namespace.signers(path),
                token,
                name,
                namespace.clock.client_now(),
                allow_entra=namespace.allow_entra,
                entra_rights=namespace.entra_rights,
                audiences=service_bus_audiences(namespace.name),
            )
        except AuthError as failure:
            return AuthError.status, str(failure)
        if not namespace.entity_exists(path):
            return 404, f"The messaging entity '{name}' could not be found."
        self.connection.add_claims(claims)
        return 202, "Accepted"


class _Sender(LinkHandler):
    """The link on which the client asks."""

    def __init__(self, node: CbsNode, link: Link) -> None:
        self._node = node
        self._address = link.address
        node.sends_to(self._address, now=True)

    def on_transfer(self, delivery: IncomingDelivery) -> Iterator[None]:
        return self._node.answering(delivery)

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._node.sends_to(self._address, now=False)
