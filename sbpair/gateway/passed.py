"""A link whose other end is at the primary; what becomes of it when the primary goes."""

from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.performatives import (
    ACCEPTED,
    ATTACH,
    DETACH,
    FLOW,
    Fields,
    accepted,
    outcome_code,
    perform,
    transaction_of,
)
from sbpair.amqp.sections import Section, read, scan
from sbpair.amqp.types import AmqpError, Array, Described, Long, Uint
from sbpair.azure.errors import WireError, translate
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, rights_for
from sbpair.engine.connection import MANAGEMENT_SUFFIX
from sbpair.engine.errors import BrokerError, rejected
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler, LinkState
from sbpair.engine.replies import AnsweringNode, NodeRequest, status_of
from sbpair.engine.session import WINDOW
from sbpair.gateway.primary import error_of
from sbpair.gateway.served import Sends, ServedSender, forgotten, go_on_with, refusal
from sbpair.gateway.upward import Outstanding

if TYPE_CHECKING:
    from sbpair.gateway.door import DoorConnection, DoorSession

_LACKING: Final = "Unauthorized access. The key has not the claim that is required to perform this operation."
_MOST_ITEMS: Final = 1000
_MASK: Final = 0xFFFFFFFF


class PassedLink(LinkHandler):
    """A link whose other end is at the primary."""

    def __init__(self, link: Link, sends: Sends | None) -> None:
        """`sends`: what it sends to, or may schedule on; None for any other link."""
        self.link = link
        self.sends = sends
        self.primary_handle: int | None = None
        self.receiving = False
        self.is_management = link.address.lower().endswith(MANAGEMENT_SUFFIX)
        self.is_request = self.is_management or link.is_coordinator
        self.is_sender = link.client_sends and not self.is_request
        self._session: DoorSession = link.session  # type: ignore[assignment]
        self._connection: DoorConnection = self._session.connection
        self._values = self._session.last_attach
        self._pending: list[list[Any]] = []
        self._attached = False
        self._gone = False
        self._detaching = False
        self._refused: Fields | None = None

    # -- attach

    async def attach(self) -> None:
        """Have the primary take the link."""
        link = self.link
        try:
            wire = await self._connection.reach_primary()
            if not link.is_coordinator:
                await self._connection.authorize(wire, link.address)
        except ServiceError as error:
            await self._not_attached(error)
            return
        if link.state is not LinkState.ATTACHING or not wire.is_open:
            return
        self._session.attach_passed(self)
        wire.write(self._session.channel, perform(ATTACH, self._values))
        self._attached = True
        pending, self._pending = self._pending, []
        for fields in pending:
            self._write_flow(fields)

    async def _not_attached(self, error: ServiceError, outcome: Described | None = None) -> None:
        """The primary is not there, or does not take the link."""
        link = self.link
        if link.state is not LinkState.ATTACHING:
            return
        if self.sends is not None and (outcome is None or self.is_sender):
            if await self.sends.opening_failed(error, refused=outcome is not None) and self._connection.may_divert(
                link.address
            ):
                if link.state is LinkState.ATTACHING:
                    self.serve()
                return
        elif outcome is None and not any(other.client_sends and other.handler for other in self._connection.links()):
            self._connection.abort()
            return
        if link.state is LinkState.ATTACHING:
            if outcome is None:
                link.reject(*_words(error))
            else:
                self._session.write_refusal(link)
                self._detach_client(outcome)

    def attached_by_primary(self, fields: Fields, values: list[Any]) -> None:
        """The primary's answer to the attach."""
        link = self.link
        if fields.get(6 if link.client_sends else 5) is None:
            self._refused = fields  # the detach with the reason follows
            return
        values[1] = Uint(link.handle)
        link.state = LinkState.OPEN
        link.max_message_size = fields.get(10)
        if not link.client_sends:
            link.sent = fields.number(9) or 0
        elif self.sends is not None and not self.is_request:
            self._connection.prove(link.address)
            if isinstance(fields.get(10), int):
                self.sends.note_limit(fields.get(10))
        self._session._write(perform(ATTACH, values))

    # -- what comes of the client

    @property
    def ticket(self) -> int:
        return 0 if self.sends is None else self.sends.sender.ticket

    def takes(self, begun: bool) -> bool:
        """Whether the primary gets the next transfer. `begun`: it has got the beginning of the message."""
        if self.link.state is not LinkState.OPEN:
            return False
        if begun or self.is_request:
            return begun or not self.is_judged
        if self.sends is None or not self.sends.diverts:
            return True
        self.serve()
        return False

    @property
    def is_judged(self) -> bool:
        """Whether requests on this link have to be read: the client has not both rights."""
        link = self.link
        rights = rights_for(self._connection, link.address)
        return link.client_sends and self.is_management and not rights >= {SEND, LISTEN}

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        if self.is_judged and not self._may_ask(delivery.payload):
            self.link.disposition(delivery, rejected("amqp:unauthorized-access", _LACKING))
            return
        self._session.up.send_whole(self, delivery)

    def _may_ask(self, payload: bytes) -> bool:
        """Whether the client has the right that its request needs: Send to schedule, Listen for all else."""
        try:
            about = read(payload, scan(payload), Section.APPLICATION_PROPERTIES, max_items=_MOST_ITEMS)
        except AmqpError:
            return False
        asked = about.get("operation") if isinstance(about, dict) else None
        return (SEND if asked in SCHEDULING else LISTEN) in rights_for(self._connection, self.link.address)

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        self._session.settle_at_primary(delivery_id, state, settled)

    def pass_flow(self, fields: Fields) -> None:
        """The client's credit goes to the primary."""
        link_fields = [Uint(self.link.handle), *(fields.get(index) for index in range(5, 11))]
        if self._attached:
            self._write_flow(link_fields)
        else:
            self._pending.append(link_fields)

    def _write_flow(self, link_fields: list[Any]) -> None:
        wire = self._connection.primary
        if wire is not None:
            wire.write(self._session.channel, perform(FLOW, [*self._session.numbers(), *link_fields]))

    def pass_detach(self, frame: bytes) -> bool:
        """The client's detach goes to the primary, whose answer is awaited. False: there is nobody to answer."""
        wire = self._connection.primary
        if self._gone or self._detaching or not self._attached or wire is None or not self.link.is_open():
            return False
        self._detaching = True
        wire.write(self._session.channel, frame)
        return True

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        wire = self._connection.primary
        if wire is not None and self._attached and not self._gone and not connection_lost:
            wire.write(self._session.channel, perform(DETACH, [Uint(self.link.handle), True]))
        self._gone = True
        if self.sends is not None:
            self.sends.close()

    # -- what comes of the primary

    def flow_back(self, fields: Fields) -> None:
        link = self.link
        count, credit = fields.number(5) or 0, fields.number(6) or 0
        if link.client_sends:
            link.granted = credit
            link._credit = ((count + credit) - link.received) & _MASK
        else:
            link.sent, link._credit = count, credit
        session = self._session
        numbers: list[Any] = [Uint(session._next_incoming), Uint(WINDOW), Uint(session._next_outgoing), Uint(WINDOW)]
        rest = [fields.get(index) for index in range(5, 11)]
        session._write(perform(FLOW, [*numbers, Uint(link.handle), *rest]))

    def detached_by_primary(self, closed: bool, reason: Any) -> None:
        """The primary's detach: an answer, a refusal or its own wish."""
        link, wire = self.link, self._connection.primary
        self._session.forget_primary_handle(self)
        if self._gone:
            return
        if self._detaching:
            self._gone = True
            self._session._write(perform(DETACH, [Uint(link.handle), closed, reason]))
            link.finish(closed, False)
            return
        if wire is not None:
            wire.write(self._session.channel, perform(DETACH, [Uint(link.handle), closed]))
        self._gone = True
        condition, text = error_of(reason)
        error = translate(WireError(condition or "amqp:link:detach-forced", text), f"keep a link to {link.address}")
        if self._refused is not None:
            outcome = reason if isinstance(reason, Described) else None
            self._connection.house.spawn(self._not_attached(error, outcome))
        elif self.is_sender and self.sends is not None and self.sends.counts(error):
            self.primary_lost(error)
            for message in self._session.up.settled_of(self):
                self.send_here(message, error)
        else:
            self._detach_client(reason)

    def _detach_client(self, reason: Any) -> None:
        link = self.link
        link.state = LinkState.DETACHING
        link.drop_partial()
        self._session.forget_deliveries(link)
        self._session._write(perform(DETACH, [Uint(link.handle), True, reason]))

    def answered(self, message: Outstanding, state: Described | None) -> None:
        """What the primary did with a message of the client's."""
        link = self.link
        if self.sends is None or self.is_request or (state is not None and transaction_of(state) is not None):
            self._tell(message, state)
        elif outcome_code(state) == ACCEPTED:
            self.sends.taken(message)
            if link.state is LinkState.OPEN:
                self._session.write_disposition(True, message.delivery.delivery_id, accepted())
        else:
            condition, text = error_of(Fields(state.value).get(0)) if state is not None else (None, "")
            error = translate(WireError(condition, text), f"send to {link.address}")
            if condition is None or not self.sends.counts(error):
                self._tell(message, state)
            else:
                self.send_here(message, error, state)

    def _tell(self, message: Outstanding, state: Described | None) -> None:
        if self.link.state is LinkState.OPEN and state is not None:
            self._session.write_disposition(True, message.delivery.delivery_id, state)

    # -- without the primary

    def send_here(self, message: Outstanding, error: ServiceError, outcome: Described | None = None) -> None:
        """A message that the primary did not take goes through the failover machine."""
        if message.parts is None or self.sends is None:
            if self.link.is_open():
                self.link.disposition(message.delivery, outcome or refusal(forgotten(self.link.address)))
            return
        message.delivery.payload = b"".join(message.parts)
        self.sends.take(message.delivery, error, message.ticket, outcome, message.sent_at)

    def primary_lost(self, error: ServiceError) -> None:
        """The primary's end of the link is gone."""
        self._gone = True
        link = self.link
        if self._detaching:
            self._session._write(perform(DETACH, [Uint(link.handle), True]))
            link.finish(True, False)
        elif link.state is LinkState.ATTACHING:
            self._connection.house.spawn(self._not_attached(error))
        elif link.is_open() and self.sends is not None and not self._connection.asked[link.address.lower()]:
            self.serve()
        elif link.is_open():
            link.force_off("amqp:link:detach-forced", error.message)

    def serve(self) -> None:
        """Go on as the other end of a link that sends, or asks."""
        sends, link = self.sends, self.link
        if sends is None:
            return
        self._session.stop_passing(link.handle)
        if self.is_request:
            serve_requests(link, sends)
            return
        served = link.handler = ServedSender(link, sends)
        if link.is_open():
            go_on_with(link)
        else:
            served.open()


def _words(error: ServiceError) -> tuple[str, str]:
    state = refusal(error)
    condition, text = error_of(Fields(state.value).get(0))
    return condition or "amqp:internal-error", text


# `$management` while the primary is away: messages are scheduled in the backlog, all else has to be tried again.
#
# A request and its answer: `sbpair.emulator.requests.operations` has their form.


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
