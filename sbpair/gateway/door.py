"""A client's connection. While the primary is there, its links pass: the frames of the client go to the primary and
back with other handles, channels and delivery-ids, and what is unsettled is remembered. When the primary goes, the
links that send are served here, by the failover machine; what was unsettled goes through it too.

Tokens, `$cbs`, credit and windows towards the client are the engine's; a link that is served once is served until it
is detached. A client whose links only receive sees its connection cut, as without a gateway.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sbpair.amqp.sections import Section, read, scan
from sbpair.amqp.types import AmqpDecodeError, AmqpError, Described, Uint
from sbpair.azure.errors import WireError, translate
from sbpair.core.errors import OperationTimeoutError, ServiceError
from sbpair.engine.auth import LISTEN, SEND, rights_for
from sbpair.engine.connection import MANAGEMENT_SUFFIX, MAX_FRAME_SIZE, Connection
from sbpair.engine.frames import AMQP_FRAME, transfer_continuation, transfer_head
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler, LinkState
from sbpair.engine.performatives import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    Fields,
    accepted,
    outcome_code,
    perform,
    read_performative,
    rejected,
    transaction_of,
)
from sbpair.engine.session import WINDOW, Session
from sbpair.gateway.heads import put_head, read_accepted, read_head
from sbpair.gateway.primary import PrimaryWire, Tokens, error_of, open_primary
from sbpair.gateway.served import Sends, SendsHouse, ServedSender, refusal

REMEMBERED_BYTES: Final = 8 * 1024 * 1024
"""So much of what is unsettled is remembered for a connection, and for a message. What is more has to be sent again by
the client when the primary goes."""
LATE_SECONDS: Final = 5.0
"""For so long the primary may take for the answer to a message once the entity's sends go to the backlog."""
_LOOK_SECONDS: Final = 1.0
_FRAME_ROOM: Final = 16
"""A frame may grow on its way, by longer numbers."""
_MASK: Final = 0xFFFFFFFF
_SCHEDULING: Final = ("com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message")
_LACKING: Final = "Unauthorized access. The key has not the claim that is required to perform this operation."
_MOST_ITEMS: Final = 1000


class House(SendsHouse, Protocol):
    """What stands behind the connections of a gateway: the pair."""

    answer_seconds: float
    """For so long the primary may take for the answer to a message."""

    @property
    def tokens(self) -> Tokens: ...


@dataclass(slots=True, eq=False)
class Outstanding:
    """A message on its way to the primary."""

    delivery: IncomingDelivery
    passed: "PassedLink"
    sent_at: float
    ticket: int
    parts: list[bytes] | None = field(default_factory=list)
    """None: too much to be remembered."""
    size: int = 0


class DoorConnection(Connection):
    """One client's connection; made by the port like any other."""

    product = "sbpair gateway"

    def __init__(self, namespace: Any, service: Any, transport: Any, **shared: Any) -> None:
        super().__init__(namespace, service, transport, **shared)
        self.house: House = namespace.house
        self.primary: PrimaryWire | None = None
        self.remembered_bytes = 0
        self._opening: asyncio.Task[PrimaryWire] | None = None
        self._primary_full = False
        self._looking: asyncio.TimerHandle | None = None
        self._channels: dict[int, DoorSession] = {}
        """By the primary's channel."""

    # -- the client's side

    def receive(self, data: bytes) -> None:
        super().receive(data)
        if self._primary_full and not self._lost:
            self._transport.pause_reading()

    def _on_frame(self, kind: int, channel: int, body: bytes) -> None:
        if kind == AMQP_FRAME and body[1:3] == b"\x53\x14" and not self._close_sent:
            session = self._sessions.get(channel)
            if isinstance(session, DoorSession) and session.pass_transfer(body):
                return
        super()._on_frame(kind, channel, body)

    def _make_session(self, channel: int, begin: Fields) -> Session:
        return DoorSession(self, channel, begin)

    def pause(self) -> None:
        super().pause()
        if self.primary is not None:
            self.primary.pause_reading()

    def resume(self) -> None:
        super().resume()
        if self.primary is not None:
            self.primary.resume_reading()

    def lost(self) -> None:
        super().lost()
        self._let_primary_go()

    @property
    def is_settled(self) -> bool:
        """Nothing that the client has sent waits for the primary's answer."""
        return not any(isinstance(one, DoorSession) and one.outstanding for one in self._sessions.values())

    def _let_primary_go(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._opening is not None:
            self._opening.cancel()
        wire, self.primary = self.primary, None
        if wire is not None:
            wire.close()

    # -- the primary's side

    async def reach_primary(self) -> PrimaryWire:
        """The connection to the primary, opened now if need be.

        Raises:
            ServiceError: the primary is not reached.
        """
        if self.primary is not None and self.primary.is_open:
            return self.primary
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_primary())
        return await asyncio.shield(self._opening)

    async def _open_primary(self) -> PrimaryWire:
        most = max(min(self.remote_max_frame_size, MAX_FRAME_SIZE) - _FRAME_ROOM, 512)
        wire = await open_primary(self, self.house.tokens, most)
        if self._lost:
            wire.close()
        self.primary = wire
        return wire

    def from_primary(self, channel: int, body: bytes) -> None:
        """A frame of the primary on one of the client's channels."""
        session = self._channels.get(channel)
        if session is not None:
            if session.pass_back_fast(body):
                return
            code, values, start = read_performative(body)
            session.pass_back(code, Fields(values), body, start)
            return
        code, values, _ = read_performative(body)
        begun = Fields(values).number(0) if code == BEGIN else None
        own = None if begun is None else self._sessions.get(begun - 1)
        if isinstance(own, DoorSession):
            self._channels[channel] = own
            own.primary_channel = channel
            own.on_begun(Fields(values))

    def primary_full(self, full: bool) -> None:
        """The primary takes no more bytes for now, or takes them again."""
        self._primary_full = full
        if self._lost:
            return
        if full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def primary_lost(self, error: ServiceError) -> None:
        """The primary has gone. Links that send go on here; a client that only receives is cut."""
        self.primary = None
        self._channels.clear()
        if self._lost or self.is_closing:
            return
        passed = [link for link in self.links() if isinstance(link.handler, PassedLink)]
        if passed and not any(link.client_sends and not link.handler.is_request for link in passed):  # type: ignore[union-attr]
            self.abort()
            return
        for session in list(self._sessions.values()):
            if isinstance(session, DoorSession):
                session.primary_lost(error)

    def forget_channel(self, channel: int | None) -> None:
        if channel is not None:
            self._channels.pop(channel, None)

    # -- what is unsettled

    def look_out(self) -> None:
        """Something is unsettled: see from time to time whether the primary answers."""
        if self._looking is None and not self._lost:
            self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        now = self._loop.time()
        left = False
        for session in list(self._sessions.values()):
            if isinstance(session, DoorSession):
                session.give_up_silent(now)
                left = left or bool(session.outstanding)
        if left:
            self.look_out()


class DoorSession(Session):
    """A session of the client's, and the numbers that it has at the primary."""

    connection: DoorConnection

    def __init__(self, connection: DoorConnection, channel: int, begin: Fields) -> None:
        super().__init__(connection, channel, begin)
        self.primary_channel: int | None = None
        self.outstanding: dict[int, Outstanding] = {}
        """What is unsettled of the client's messages, by the primary's delivery-id."""
        self._passed: dict[int, PassedLink] = {}
        self._by_primary: dict[int, PassedLink] = {}
        self._began = False
        self.last_attach: list[Any] = []
        """The fields of the client's newest attach."""
        self._reset_numbers()

    def _reset_numbers(self) -> None:
        self._out_transfers = 0
        self._out_deliveries = 0
        self._out_window = 0
        self._in_transfers = 0
        self._out_waiting: deque[tuple[bytes, bytes]] = deque()
        self._sending: dict[int, tuple[int, Outstanding | None]] = {}
        self._theirs: dict[int, int] = {}
        self._ours: dict[int, int] = {}

    # -- links

    def on_frame(self, code: int, values: list[Any], payload: bytes) -> Any:
        if code == FLOW:
            fields = Fields(values)
            handle = fields.number(4)
            passed = None if handle is None else self._passed.get(handle)
            if passed is not None:
                passed.pass_flow(fields)
                values = [*values[:9], False, *values[10:]]
        elif code == DETACH:
            passed = self._passed.get(Fields(values).required_number(0))
            if passed is not None and passed.pass_detach(perform(DETACH, values)):
                return None
        elif code == ATTACH:
            self.last_attach = values
        return super().on_frame(code, values, payload)

    def attach_passed(self, passed: "PassedLink") -> None:
        """From now on the link's frames go to the primary."""
        wire = self.connection.primary
        if wire is None:
            return
        if not self._began:
            self._began = True
            window = Uint(WINDOW)
            wire.write(self.channel, perform(BEGIN, [None, Uint(0), window, window, Uint(0xFFFF)]))
        self._passed[passed.link.handle] = passed

    def on_begun(self, fields: Fields) -> None:
        """The primary has answered the begin."""
        self._out_window = fields.required_number(2)
        self._flush_waiting()

    def forget_link(self, link: Link) -> None:
        super().forget_link(link)
        passed = self._passed.get(link.handle)
        if passed is not None and passed.link is link:
            del self._passed[link.handle]
            self._sending.pop(link.handle, None)
            if passed.primary_handle is not None:
                self._by_primary.pop(passed.primary_handle, None)

    def end(self, connection_lost: bool) -> None:
        super().end(connection_lost)
        wire = self.connection.primary
        if wire is not None and self._began:
            wire.write(self.channel, perform(END, []))
            self.connection.forget_channel(self.primary_channel)
        self._began = False
        self._forget_outstanding()

    def _forget_outstanding(self) -> None:
        self.connection.remembered_bytes -= sum(one.size for one in self.outstanding.values() if one.parts is not None)
        self.outstanding.clear()

    def primary_lost(self, error: ServiceError) -> None:
        """Serve what can be served; what only the primary has is detached."""
        outstanding = list(self.outstanding.values())
        unfinished = {id(one) for _, one in self._sending.values() if one is not None}
        self._forget_outstanding()
        self._began = False
        self.connection.forget_channel(self.primary_channel)
        self._by_primary.clear()
        sending = self._sending
        self._reset_numbers()
        for passed in list(self._passed.values()):
            passed.primary_lost(error)
        for handle, (_, one) in sending.items():
            link = self.links.get(handle)
            if one is not None and link is not None:
                self._finish_here(link, one)
        for one in outstanding:
            if id(one) not in unfinished:
                one.passed.send_here(one, error)

    def _finish_here(self, link: Link, one: Outstanding) -> None:
        """A message of which not all has come yet: its rest is awaited here."""
        if one.parts is None:
            link.partial = None
            link.disposition(one.delivery, refusal(_forgotten(link.address)))
            return
        begun = self._begun_message(
            Fields([None, one.delivery.delivery_id, one.delivery.tag, one.delivery.message_format, False])
        )
        begun.payload += b"".join(one.parts)
        begun.size = one.size
        link.partial = begun
        self.connection.budget.hold(one.size)

    # -- transfers of the client

    def pass_transfer(self, body: bytes) -> bool:
        """Take a transfer on to the primary. False: it is not for the primary, or unusually spelled."""
        head = read_head(body)
        if head is None:
            return False
        passed = self._passed.get(head.handle)
        if passed is None or not passed.takes(head.handle in self._sending):
            return False
        link = passed.link
        self._next_incoming = (self._next_incoming + 1) & _MASK
        payload = body[head.payload_start :]
        begun = self._sending.get(head.handle)
        number: int | None = None
        if begun is None:
            if head.delivery_id is None:
                raise AmqpDecodeError("the first transfer of a delivery has a delivery-id")
            number = self._out_deliveries
            self._out_deliveries = (number + 1) & _MASK
            link.received = (link.received + 1) & _MASK
            link._credit -= 1
            one = None
            if not head.settled:
                delivery = IncomingDelivery(link, head.delivery_id, b"", head.message_format, False, head.tag)
                one = Outstanding(delivery, passed, self.connection._loop.time(), passed.ticket)
                if head.in_transaction or passed.is_request:
                    one.parts = None
                self.outstanding[number] = one
                self.connection.look_out()
        else:
            number, one = begun[0], begun[1]
        if one is not None and one.parts is not None:
            self._remember(one, payload)
        if head.more and not head.aborted:
            self._sending[head.handle] = number, one
        else:
            self._sending.pop(head.handle, None)
            if head.aborted:
                self._settled(number)
        first = begun is None
        self._write_up(put_head(head, head.handle, number if first or head.delivery_id is not None else None), payload)
        return True

    def _remember(self, one: Outstanding, payload: bytes) -> None:
        size = len(payload)
        if one.size + size > REMEMBERED_BYTES or self.connection.remembered_bytes + size > REMEMBERED_BYTES:
            self.connection.remembered_bytes -= one.size
            one.parts = None
            return
        one.parts.append(payload)  # type: ignore[union-attr]
        one.size += size
        self.connection.remembered_bytes += size

    def send_whole(self, passed: "PassedLink", delivery: IncomingDelivery) -> None:
        """A message whose transfers were unusually spelled: sent on as ours are."""
        number = self._out_deliveries
        self._out_deliveries = (number + 1) & _MASK
        if not delivery.settled:
            one = Outstanding(delivery, passed, self.connection._loop.time(), passed.ticket)
            self._remember(one, delivery.payload)
            self.outstanding[number] = one
            self.connection.look_out()
        handle, wire = passed.link.handle, self.connection.primary
        room = (MAX_FRAME_SIZE if wire is None else min(wire.max_frame_bytes, MAX_FRAME_SIZE)) - 128
        parts = [delivery.payload[at : at + room] for at in range(0, max(len(delivery.payload), 1), room)]
        for index, part in enumerate(parts):
            more = index < len(parts) - 1
            if index:
                head = transfer_continuation(handle, settled=delivery.settled, more=more)
            else:
                head = transfer_head(
                    passed.link.handle,
                    number,
                    delivery.tag,
                    delivery.message_format,
                    settled=delivery.settled,
                    more=more,
                )
            self._write_up(head, part)

    def _write_up(self, head: bytes, payload: bytes) -> None:
        if self._out_window <= 0:
            self._out_waiting.append((head, payload))
            self.connection.budget.hold(len(payload))
            return
        wire = self.connection.primary
        if wire is None:
            return
        most = wire.max_frame_bytes - 8
        if len(head) + len(payload) > most:
            self._write_in_two(wire, head, payload, most)
            return
        self._out_window -= 1
        self._out_transfers = (self._out_transfers + 1) & _MASK
        wire.write(self.channel, head, payload)

    def _write_in_two(self, wire: PrimaryWire, head: bytes, payload: bytes, most: int) -> None:
        """A frame that has grown, or is longer than the primary takes, goes as several."""
        code, values, _ = read_performative(head)
        values += [None] * (11 - len(values))
        last_more, values[5] = values[5], True
        while payload:
            room = most - len(head) - 16
            part, payload = payload[:room], payload[room:]
            values[5] = True if payload else last_more
            self._out_window -= 1
            self._out_transfers = (self._out_transfers + 1) & _MASK
            wire.write(self.channel, perform(code, values), part)

    def _flush_waiting(self) -> None:
        while self._out_waiting and self._out_window > 0:
            head, payload = self._out_waiting.popleft()
            self.connection.budget.release(len(payload))
            self._write_up(head, payload)

    # -- settlements of the client

    def settle_at_primary(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        """The client says what is to become of a delivery of the primary's."""
        number = self._theirs.get(delivery_id)
        wire = self.connection.primary
        if number is None or wire is None:
            return
        if settled:
            del self._theirs[delivery_id]
            del self._ours[number]
        if settled or state is None:
            wire.write_disposition(self.channel, True, number, state)
        else:
            fields = [True, Uint(number), None, False, state]
            wire.write(self.channel, perform(DISPOSITION, fields))

    # -- frames of the primary

    def pass_back_fast(self, body: bytes) -> bool:
        """The usual answer to one message, and transfers."""
        code = body[2] if body[1] == 0x53 else 0
        if code == TRANSFER:
            head = read_head(body)
            if head is not None:
                self._transfer_back(head, body[head.payload_start :])
                return True
        elif code == DISPOSITION and (told := read_accepted(body)) is not None:
            for number in self._among_outstanding(*told):
                self._answered(number, accepted())
            return True
        return False

    def _among_outstanding(self, first: int, last: int) -> list[int]:
        """The numbers from the first to the last that are unsettled."""
        span = (last - first) & _MASK
        if span <= len(self.outstanding):
            return [n for step in range(span + 1) if (n := (first + step) & _MASK) in self.outstanding]
        return [n for n in self.outstanding if (n - first) & _MASK <= span]

    def pass_back(self, code: int, fields: Fields, body: bytes, start: int) -> None:
        """A frame of the primary goes to the client."""
        if code == DISPOSITION:
            self._disposition_back(fields)
        elif code == FLOW:
            self._flow_back(fields)
        elif code == ATTACH:
            self._attach_back(fields, read_performative(body)[1])
        elif code == DETACH:
            passed = self._by_primary.get(fields.required_number(0))
            if passed is not None:
                passed.detached_by_primary(fields.flag(1), fields.get(2))
        elif code == END:
            condition, text = error_of(fields.get(0))
            error = WireError(condition or "amqp:session:errant-link", text)
            wire = self.connection.primary
            if wire is not None and self._began:
                wire.write(self.channel, perform(END, []))
            self.primary_lost(translate(error, "keep a session with the primary"))
        elif code == TRANSFER:
            raise AmqpDecodeError("a transfer of the primary is spelled in an unusual way")

    def _transfer_back(self, head: Any, payload: bytes) -> None:
        self._in_transfers = (self._in_transfers + 1) & _MASK
        passed = self._by_primary.get(head.handle)
        if passed is None:
            return
        link = passed.link
        number: int | None = None
        if not passed.receiving:
            number = self._next_delivery
            self._next_delivery = (number + 1) & _MASK
            link.sent = (link.sent + 1) & _MASK
            link._credit -= 1
            if not head.settled and head.delivery_id is not None:
                self._unsettled[number] = link
                self._theirs[number] = head.delivery_id
                self._ours[head.delivery_id] = number
        passed.receiving = head.more and not head.aborted
        if self._in_transfers & 0xFFF == 0:
            self._tell_window()
        self._write_transfer(put_head(head, link.handle, number), payload)

    def _tell_window(self) -> None:
        """The primary's window is given again every 4096 transfers."""
        wire = self.connection.primary
        if wire is not None:
            wire.write(self.channel, perform(FLOW, self._numbers()))

    def _numbers(self) -> list[Any]:
        window = Uint(WINDOW)
        return [Uint(self._in_transfers), window, Uint(self._out_transfers), window]

    def _flow_back(self, fields: Fields) -> None:
        seen = fields.number(0)
        self._out_window = fields.required_number(1) - ((self._out_transfers - (seen or 0)) & _MASK)
        self._flush_waiting()
        handle = fields.number(4)
        passed = None if handle is None else self._by_primary.get(handle)
        if passed is not None:
            passed.flow_back(fields)

    def _attach_back(self, fields: Fields, values: list[Any]) -> None:
        name, receiver = fields.text(0), fields.flag(2)
        for passed in self._passed.values():
            link = passed.link
            if link.name == name and receiver == link.client_sends and link.state is LinkState.ATTACHING:
                passed.primary_handle = fields.required_number(1)
                self._by_primary[passed.primary_handle] = passed
                passed.attached_by_primary(fields, values)
                return

    def _disposition_back(self, fields: Fields) -> None:
        first = fields.required_number(1)
        last = fields.number(2)
        state = fields.get(4)
        settled = fields.flag(3)
        span = 0 if last is None else (last - first) & _MASK
        if fields.flag(0):
            if settled or state is not None:
                for number in self._among_outstanding(first, (first + span) & _MASK):
                    self._answered(number, state)
            return
        ours = [first] if not span else [n for n in self._ours if (n - first) & _MASK <= span]
        for number in ours:
            self._settled_by_primary(number, state, settled)

    def _settled_by_primary(self, number: int, state: Described | None, settled: bool) -> None:
        delivery_id = self._ours.get(number)
        if delivery_id is None:
            return
        link = self._unsettled.get(delivery_id)
        if settled:
            self._ours.pop(number, None)
            self._theirs.pop(delivery_id, None)
            self._unsettled.pop(delivery_id, None)
        if link is not None and link.is_open():
            if state is None:
                fields = [False, Uint(delivery_id), None, settled, None]
                self._write(perform(DISPOSITION, fields))
            else:
                self.write_disposition(False, delivery_id, state, settled=settled)

    def _settled(self, number: int) -> Outstanding | None:
        one = self.outstanding.pop(number, None)
        if one is not None and one.parts is not None:
            self.connection.remembered_bytes -= one.size
        return one

    def _answered(self, number: int, state: Described | None) -> None:
        """The primary has said what it did with a message."""
        one = self._settled(number)
        if one is not None:
            one.passed.answered(one, state)

    def give_up_silent(self, now: float) -> None:
        """What the primary has not answered for long is taken over."""
        for number, transfer in list(self.outstanding.items()):
            passed = transfer.passed
            if passed.is_request or passed.sends is None or id(transfer) in {id(o) for _, o in self._sending.values()}:
                continue
            most = self.connection.house.answer_seconds
            late = min(LATE_SECONDS, most) if passed.sends.diverts else most
            if now - transfer.sent_at > late:
                self._settled(number)
                error = OperationTimeoutError(
                    f"The primary has not answered for {now - transfer.sent_at:.0f} s", entity=passed.link.address
                )
                error.uncertain = True
                passed.send_here(transfer, error)


class PassedLink(LinkHandler):
    """A link whose other end is at the primary."""

    def __init__(self, link: Link, sends: "Sends | None") -> None:
        self.link = link
        self.sends = sends
        self.primary_handle: int | None = None
        self.receiving = False
        self.is_request = sends is None
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
                await wire.authorize(f"sb://{self._connection.house.tokens.access.host}/{link.address}")
        except ServiceError as error:
            await self._not_attached(error)
            return
        if link.state is not LinkState.ATTACHING or self._gone or not wire.is_open:
            return
        self._session.attach_passed(self)
        wire.write(self._session.channel, perform(ATTACH, self._values))
        self._attached = True
        pending, self._pending = self._pending, []
        for fields in pending:
            self._write_flow(fields)

    async def _not_attached(self, error: ServiceError, told: Described | None = None) -> None:
        """The primary is not there, or does not take the link."""
        link = self.link
        if link.state is not LinkState.ATTACHING:
            return
        if self.sends is not None:
            try:
                if await self.sends.opening_failed(error):
                    self.serve()
                    return
            except ServiceError:
                pass
        elif told is None and not any(other.client_sends and other.handler for other in self._connection.links()):
            self._connection.abort()
            return
        if link.state is LinkState.ATTACHING:
            if told is None:
                link.reject(*_words(error))
            else:
                self._session.write_refusal(link)
                self._detach_client(told)

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
        elif self.sends is not None and isinstance(fields.get(10), int):
            self.sends.note_limit(fields.get(10))
        self._session._write(perform(ATTACH, values))

    # -- what comes of the client

    @property
    def ticket(self) -> int:
        return 0 if self.sends is None else self.sends.sender.ticket

    def takes(self, begun: bool) -> bool:
        """Whether the primary gets the next transfer. `begun`: it has got the beginning of the message."""
        if self._gone or self.link.state is not LinkState.OPEN or self._detaching:
            return False
        if begun:
            return True
        if self.sends is None or not self.sends.diverts:
            return not self.is_request or not self.is_judged
        self.serve()
        return False

    @property
    def is_judged(self) -> bool:
        """Whether requests on this link have to be read: the client has not both rights."""
        link = self.link
        management = link.client_sends and link.address.lower().endswith(MANAGEMENT_SUFFIX)
        return management and not rights_for(self._connection, link.address) >= {SEND, LISTEN}

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        if self.is_judged and not self._may_ask(delivery.payload):
            self.link.disposition(delivery, rejected("amqp:unauthorized-access", _LACKING))
            return
        self._session.send_whole(self, delivery)

    def _may_ask(self, payload: bytes) -> bool:
        """Whether the client has the right that its request needs: Send to schedule, Listen for all else."""
        try:
            about = read(payload, scan(payload), Section.APPLICATION_PROPERTIES, max_items=_MOST_ITEMS)
        except AmqpError:
            return False
        asked = about.get("operation") if isinstance(about, dict) else None
        return (SEND if asked in _SCHEDULING else LISTEN) in rights_for(self._connection, self.link.address)

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
            wire.write(self._session.channel, perform(FLOW, [*self._session._numbers(), *link_fields]))

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
        if self.primary_handle is not None:
            self._session._by_primary.pop(self.primary_handle, None)
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
            told = reason if isinstance(reason, Described) else None
            self._connection.house.spawn(self._not_attached(error, told))
        elif self.sends is not None and self.sends.counts(error):
            self.primary_lost(error)
            for number, one in list(self._session.outstanding.items()):
                if one.passed is self:
                    self._session._settled(number)
                    self.send_here(one, error)
        else:
            self._detach_client(reason)

    def _detach_client(self, reason: Any) -> None:
        link = self.link
        link.state = LinkState.DETACHING
        link.drop_partial()
        self._session.forget_deliveries(link)
        self._session._write(perform(DETACH, [Uint(link.handle), True, reason]))

    def answered(self, one: Outstanding, state: Described | None) -> None:
        """What the primary did with a message of the client's."""
        link = self.link
        if self.sends is None or (state is not None and transaction_of(state) is not None):
            self._tell(one, state)
        elif outcome_code(state) == ACCEPTED:
            self.sends.taken()
            if link.state is LinkState.OPEN:
                self._session.write_disposition(True, one.delivery.delivery_id, accepted())
        else:
            condition, text = error_of(Fields(state.value).get(0)) if state is not None else (None, "")
            error = translate(WireError(condition, text), f"send to {link.address}")
            if condition is None or not self.sends.counts(error):
                self._tell(one, state)
            else:
                self.send_here(one, error, state)

    def _tell(self, one: Outstanding, state: Described | None) -> None:
        if self.link.state is LinkState.OPEN and state is not None:
            self._session.write_disposition(True, one.delivery.delivery_id, state)

    # -- without the primary

    def send_here(self, one: Outstanding, error: ServiceError, told: Described | None = None) -> None:
        """A message that the primary did not take goes through the failover machine."""
        if one.parts is None or self.sends is None:
            if self.link.is_open():
                self.link.disposition(one.delivery, told or refusal(_forgotten(self.link.address)))
            return
        one.delivery.payload = b"".join(one.parts)
        self.sends.take(one.delivery, error, one.ticket, told)

    def primary_lost(self, error: ServiceError) -> None:
        """The primary's end of the link is gone."""
        self._gone = True
        link = self.link
        if self._detaching:
            self._session._write(perform(DETACH, [Uint(link.handle), True]))
            link.finish(True, False)
        elif link.state is LinkState.ATTACHING:
            self._connection.house.spawn(self._not_attached(error))
        elif link.is_open() and self.sends is not None:
            self.serve()
        elif link.is_open():
            link.force_off("amqp:link:detach-forced", error.message)

    def serve(self) -> None:
        """Go on as the other end of a link that sends."""
        sends, link = self.sends, self.link
        if sends is None:
            return
        was_open = link.is_open()
        self._session._passed.pop(link.handle, None)
        served = link.handler = ServedSender(link, sends)
        if was_open:
            served.begin()
        else:
            served.open()


def _forgotten(address: str) -> ServiceError:
    error = OperationTimeoutError(
        "The primary went away before it answered, and the message is too large to be kept meanwhile: send it again",
        entity=address,
    )
    error.uncertain = True
    return error


def _words(error: ServiceError) -> tuple[str, str]:
    state = refusal(error)
    condition, text = error_of(Fields(state.value).get(0))
    return condition or "amqp:internal-error", text
