"""`$cbs`: a client puts a token for an entity before it attaches to it.

Request   application-properties operation="put-token", name=<resource URI>, type, expiration; body a string, the token.
          The type says "jwt" even for shared access signatures (Python SDK); the token itself tells.
Response  application-properties status-code (int) and status-description; correlation-id = the request's message-id.
          202 accepted, 400 not understood, 401 token refused, 404 no such entity; for these also errorCondition
          (symbol), by which com.microsoft.azure's older Java client tells its exceptions apart. Where it is spelled
          `error-condition`, azure-servicebus for Python drops the status, and takes what is missing for a refusal.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbpair.engine import errors
from sbpair.engine.auth import AuthError, authenticate, resource_path, service_bus_audiences
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler
from sbpair.engine.replies import AnsweringNode, NodeRequest, status_of

if TYPE_CHECKING:
    from sbpair.engine.connection import Connection

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
