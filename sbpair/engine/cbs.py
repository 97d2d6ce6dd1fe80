"""`$cbs`: a client puts a token for an entity before it attaches to it.

Request   application-properties operation="put-token", name=<resource URI>, type, expiration; body a string, the token.
          The type says "jwt" even for shared access signatures (Python SDK); the token itself tells.
Response  application-properties status-code (int) and status-description; correlation-id = the request's message-id.
          202 accepted, 400 not understood, 401 token refused, 404 no such entity; for these also errorCondition
          (symbol), by which com.microsoft.azure's older Java client tells its exceptions apart. Where it is spelled
          `error-condition`, azure-servicebus for Python drops the status, and takes what is missing for a refusal.
Goes to the receiver whose target address or name is the request's reply-to, else to the receiver of the same session.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from sbpair.amqp.sections import PropertyField, Section, build, field, read, scan
from sbpair.amqp.types import AmqpError, Described, Int, Symbol
from sbpair.engine import errors
from sbpair.engine.auth import AuthError, Claims, authenticate, resource_path, service_bus_audiences
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler, NamespaceView
from sbpair.engine.performatives import accepted, rejected
from sbpair.engine.replies import Replies

MAX_REQUEST_BYTES = 256 * 1024
"""Of a request, which everybody may send: a token has a few KB."""
MAX_REQUEST_ITEMS = 1000
"""In each section of it; four properties are what it takes."""
_STATUS_TEXT = {202: "Accepted", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
_CONDITIONS = {400: errors.ARGUMENT_ERROR, 401: errors.UNAUTHORIZED, 404: errors.NOT_FOUND}


class TokenHolder(Protocol):
    """Who keeps what tokens allow: a connection."""

    @property
    def namespace(self) -> NamespaceView: ...
    def add_claims(self, claims: Claims) -> None: ...


class CbsNode:
    """The `$cbs` node of one connection."""

    def __init__(self, connection: TokenHolder) -> None:
        self.connection = connection
        self._receivers: list[_Receiver] = []
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
        if link.client_sends:
            return _Sender(self, link)
        receiver = _Receiver(self, link)
        self._receivers.append(receiver)
        return receiver

    def forget(self, receiver: "_Receiver") -> None:
        self._receivers.remove(receiver)

    def sends_to(self, address: str, *, now: bool) -> None:
        """A client's sender to this address has been opened, or is gone."""
        (self._sending_to.add if now else self._sending_to.discard)(address.lower())

    def answering(self, delivery: IncomingDelivery) -> Iterator[None]:
        """Handle one request, in two steps: read it, and judge it."""
        try:
            spans = scan(delivery.payload)
            properties = read(delivery.payload, spans, Section.PROPERTIES, max_items=MAX_REQUEST_ITEMS)
            application = read(delivery.payload, spans, Section.APPLICATION_PROPERTIES, max_items=MAX_REQUEST_ITEMS)
            token = read(delivery.payload, spans, Section.VALUE, max_items=MAX_REQUEST_ITEMS)
        except AmqpError as failure:
            delivery.link.disposition(delivery, rejected("amqp:decode-error", str(failure)))
            return
        delivery.link.disposition(delivery, accepted())
        yield
        status, description = self._put_token(application if isinstance(application, dict) else {}, token)
        headers = properties if isinstance(properties, list) else []
        receiver = self._receiver_for(field(headers, PropertyField.REPLY_TO), delivery.link)
        if receiver is not None:
            receiver.deliver(_response(field(headers, PropertyField.MESSAGE_ID), status, description))

    def _put_token(self, request: dict[Any, Any], token: object) -> tuple[int, str]:
        if request.get("operation") != "put-token":
            return 400, "The operation must be put-token."
        name = request.get("name")
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
        return 202, _STATUS_TEXT[202]

    def _receiver_for(self, reply_to: object, request_link: Link) -> "_Receiver | None":
        named = [one for one in self._receivers if reply_to and reply_to in (one.link.target_address, one.link.name)]
        near = [one for one in self._receivers if one.link.session is request_link.session]
        return next(iter(named or near or self._receivers), None)


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


class _Receiver(LinkHandler):
    """The link on which the client is answered. An answer waits for credit."""

    def __init__(self, node: CbsNode, link: Link) -> None:
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
        self._node.forget(self)


def _response(message_id: object, status: int, description: str) -> bytes:
    properties = [None] * PropertyField.CORRELATION_ID + [message_id]
    statuses: dict[str, object] = {"status-code": Int(status), "status-description": description}
    if status in _CONDITIONS:
        statuses["errorCondition"] = Symbol(_CONDITIONS[status])
    return build(properties=properties, application_properties=statuses, value=None)
