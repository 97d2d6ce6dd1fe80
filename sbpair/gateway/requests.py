"""`$management` while the primary is away: messages are scheduled in the backlog, all else has to be tried again.

A request and its answer: `sbpair.emulator.requests.messages` has their form.
"""

from typing import Any, Final

from sbpair.amqp.performatives import Fields
from sbpair.amqp.types import Array, Long
from sbpair.core.errors import SbpairError
from sbpair.engine import errors
from sbpair.engine.auth import SEND, rights_for
from sbpair.engine.errors import BrokerError
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler
from sbpair.engine.replies import AnsweringNode, NodeRequest, status_of
from sbpair.gateway.primary import error_of
from sbpair.gateway.served import Sends, go_on_with, refusal

SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"
SCHEDULING: Final = (SCHEDULE, CANCEL)
NOT_CANCELLABLE: Final = 0
"""Sequence number of a message that is in the backlog: it gets one when it is back on the primary."""
_LONG: Final = 0x81
_AROUND_BYTES: Final = 64 * 1024
"""Of a request, around its messages."""
_NAMES: Final = ("statusCode", "statusDescription")


def serve_requests(link: Link, sends: Sends) -> LinkHandler:
    """Take one of the two links of a client's requests in the place of the primary; the link's handler."""
    nodes: dict[str, _Requests] = link.connection.requests  # type: ignore[attr-defined]
    node = nodes.setdefault(link.address.lower(), _Requests())
    handler = link.handler = _Asking(node, sends) if link.client_sends else node.receiver(link)
    if not link.is_open():
        link.open(max_message_size=sends.largest_bytes + _AROUND_BYTES)
    elif link.client_sends:
        go_on_with(link)
    return handler


class _Requests(AnsweringNode):
    """The requests of one connection for one entity."""

    async def perform(self, asked: NodeRequest, sends: Sends) -> None:
        status, description, body, condition = 200, "OK", dict[str, Any](), None
        try:
            body = await self._perform(asked, sends)
        except BrokerError as error:
            condition, description = error.condition, error.description
        except SbpairError as error:
            told, description = error_of(Fields(refusal(error).value).get(0))
            condition = told or errors.INTERNAL_ERROR
        if condition is not None:
            status = errors.STATUSES.get(condition, 400)
            description = errors.tracked(description)
        asked.answer(status_of(status, description, condition, names=_NAMES), body)

    async def _perform(self, asked: NodeRequest, sends: Sends) -> dict[str, Any]:
        operation = asked.application.get("operation")
        if operation not in SCHEDULING:
            if not sends.diverts:
                self._send_away(asked)
            raise BrokerError(errors.TIMEOUT, "The primary is away: receive, peek and change things once it is back.")
        if SEND not in rights_for(asked.link.connection, asked.link.address):
            raise BrokerError(errors.UNAUTHORIZED, "Unauthorized access. 'Send' claim(s) are required.")
        body = asked.body if isinstance(asked.body, dict) else {}
        if operation == SCHEDULE:
            entries = _items(body, "messages")
            found = [entry.get("message") for entry in entries if isinstance(entry, dict)]
            messages = [one for one in found if isinstance(one, bytes)]
            if not messages or len(messages) < len(entries):
                raise BrokerError(errors.ARGUMENT_ERROR, "Each entry of 'messages' must hold the bytes of a message.")
            numbers = await sends.schedule(messages)
            return {"sequence-numbers": Array(_LONG, tuple(map(Long, numbers or [NOT_CANCELLABLE] * len(messages))))}
        numbers = [int(one) for one in _items(body, "sequence-numbers") if isinstance(one, int)]
        if NOT_CANCELLABLE in numbers:
            text = (
                "A message that was scheduled while the primary was away has no sequence number. Nothing is cancelled."
            )
            raise BrokerError(errors.MESSAGE_NOT_FOUND, text)
        if sends.diverts:
            raise BrokerError(errors.TIMEOUT, "The primary, which holds the scheduled messages, is away.")
        await sends.sender.cancel_scheduled(numbers)
        return {}

    def _send_away(self, asked: NodeRequest) -> None:
        """The primary is back, and can do more than what is served here: the client is to attach again."""
        for link in (asked.link, *(one.link for one in self.receivers)):
            link.force_off("amqp:link:detach-forced", "The primary is back.")


def _items(body: dict[Any, Any], name: str) -> list[Any]:
    found = body.get(name)
    return list(found.items) if isinstance(found, Array) else found if isinstance(found, list) else []


class _Asking(LinkHandler):
    """The link on which the client asks."""

    def __init__(self, node: _Requests, sends: Sends) -> None:
        self._node = node
        self._sends = sends

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        asked = self._node.asked(delivery)
        if asked is not None:
            self._sends.in_turn(None, lambda: self._node.perform(asked, self._sends))

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._sends.close()
