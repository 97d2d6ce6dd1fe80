"""A client's connection. While the primary is there, its links pass: the frames of the client go to the primary and
back with other handles, channels and delivery-ids, and what is unsettled is remembered. When the primary goes, the
links that send are served here, by the failover machine; what was unsettled goes through it too.

Tokens, `$cbs`, credit and windows towards the client are the engine's; a link that is served once is served until it
is detached. A client whose links only receive sees its connection cut, as without a gateway.
"""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.frames import AMQP_FRAME, ids_between
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    SASL_INIT,
    TRANSFER,
    Fields,
    accepted,
    perform,
    read_performative,
)
from sbpair.amqp.types import AmqpDecodeError, Described, Uint
from sbpair.azure.errors import WireError, translate
from sbpair.core.access import without_port
from sbpair.core.errors import ServiceError
from sbpair.engine.auth import Claims, claims_for
from sbpair.engine.connection import MAX_FRAME_SIZE, Connection
from sbpair.engine.link import Link, LinkState
from sbpair.engine.session import WINDOW, Session
from sbpair.gateway.passed import PassedLink
from sbpair.gateway.primary import PrimaryWire, error_of, open_primary
from sbpair.gateway.served import forgotten, refusal
from sbpair.gateway.tokens import CbsToken, PassingCbs
from sbpair.gateway.upward import WAITING_BYTES, Outstanding, TransferHead, Upward, put_head, read_accepted, read_head

if TYPE_CHECKING:
    from sbpair.gateway.server import GatewayFront, House

_LOOK_SECONDS: Final = 1.0
_FRAME_ROOM: Final = 16
"""A frame may grow on its way, by longer numbers."""
_WINDOW_TRANSFERS: Final = 4096
"""After this number of transfers the primary is given its window again."""
_MASK: Final = 0xFFFFFFFF


class DoorConnection(Connection):
    """One client's connection; made by the port like any other. `house` is there from the moment that the client has
    said which host it wants, or at once where there is one pair only."""

    product = "sbpair gateway"
    house: "House"

    def __init__(self, namespace: Any, service: Any, transport: Any, **shared: Any) -> None:
        super().__init__(namespace, service, transport, **shared)
        self.primary: PrimaryWire | None = None
        self.remembered_bytes = 0
        self._front: GatewayFront = namespace
        self._settled = False
        self._cbs = PassingCbs(self)
        self.requests: dict[str, Any] = {}
        """What is asked of `$management` while the primary is away, by address."""
        self.asked: Counter[str] = Counter()
        """Requests that the primary has not answered, by address."""
        self._passed_tokens: dict[str, CbsToken] = {}
        """By the path that each is for, as the client gave them."""
        self._opening: asyncio.Task[PrimaryWire] | None = None
        self._primary_full = False
        self._reading = True
        self._looking: asyncio.TimerHandle | None = None
        self._channels: dict[int, DoorSession] = {}
        """By the primary's channel."""
        self._settle("")

    def now(self) -> float:
        return self._loop.time()

    # -- which pair

    def _settle(self, host: str) -> None:
        """The client wants this host: the pair that goes by the name, if there is one."""
        found = None if self._settled else self._front.house_of(without_port(host))
        if found is not None:
            self._settled = True
            self.house = self.namespace = self.tokens.namespace = found
            found.joined(self)

    def _on_sasl(self, code: int, init: Fields) -> None:
        if code == SASL_INIT:
            self._settle(init.text(2) or "")
        super()._on_sasl(code, init)

    def _on_open(self, fields: Fields) -> None:
        host = fields.text(1) or ""
        self._settle(host)
        super()._on_open(fields)
        if not self._settled:
            self.close("amqp:not-found", f"No pair of this gateway goes by the host name '{host}'.")

    # -- the client's side

    def receive(self, data: bytes) -> None:
        wire = self.primary
        if wire is None:
            super().receive(data)
        else:
            wire.hold_output()
            try:
                super().receive(data)
            finally:
                wire.give_output()
        if not self._reading and not self._lost:
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
        self.consider_reading()

    def resume(self) -> None:
        super().resume()
        self.consider_reading()

    def lost(self) -> None:
        super().lost()
        if self._looking is not None:
            self._looking.cancel()
        if self._opening is not None:
            self._opening.cancel()
        wire, self.primary = self.primary, None
        if wire is not None:
            wire.close()
        if self._settled:
            self.house.left(self)

    @property
    def door_sessions(self) -> "list[DoorSession]":
        return [one for one in self._sessions.values() if isinstance(one, DoorSession)]

    @property
    def is_settled(self) -> bool:
        """Nothing that the client has sent waits for the primary's answer."""
        return not any(session.up.outstanding for session in self.door_sessions)

    def consider_reading(self) -> None:
        """Read of each side only while the other one takes what has been read."""
        if self._lost:
            return
        sessions = self.door_sessions
        reads = not self._primary_full and all(one.up.waiting_bytes <= WAITING_BYTES for one in sessions)
        if reads != self._reading:
            self._reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()
        if self.primary is not None:
            takes = not self.write_paused and all(one.waiting_bytes <= WAITING_BYTES for one in sessions)
            self.primary.read(takes)

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
            session.pass_back(body)
            return
        code, values, _ = read_performative(body)
        begun = Fields(values).number(0) if code == BEGIN else None
        own = None if begun is None else self._sessions.get(begun - 1)
        if isinstance(own, DoorSession):
            self._channels[channel] = own
            own.primary_channel = channel
            own.up.opened(Fields(values).required_number(2), 0)

    def primary_full(self, full: bool) -> None:
        """The primary takes no more bytes for now, or takes them again."""
        self._primary_full = full
        self.consider_reading()

    def primary_lost(self, error: ServiceError) -> None:
        """The primary has gone. Links that send go on here; a client that only receives is cut."""
        self.primary = None
        self._primary_full = False
        self._channels.clear()
        if self._lost or self.is_closing:
            return
        passed = [link for link in self.links() if isinstance(link.handler, PassedLink)]
        if passed and not any(link.handler.is_sender for link in passed):  # type: ignore[union-attr]
            self.abort()
            return
        for session in self.door_sessions:
            session.primary_lost(error)

    def forget_channel(self, channel: int | None) -> None:
        if channel is not None:
            self._channels.pop(channel, None)

    # -- rights

    async def authorize(self, wire: PrimaryWire, address: str) -> None:
        """Have the primary know by whose right a link is attached: the client's own, or the gateway's.

        Raises:
            ServiceError: the primary does not take the token, or does not answer.
        """
        token = self._passed_token(address)
        if token is None:
            await wire.authorize(f"sb://{self.house.tokens.access.host}/{address}")
        elif token.put_on is not wire:
            await wire.put(token)
            token.put_on = wire

    def _passed_token(self, address: str) -> CbsToken | None:
        """The client's own token that decides about an address; None: a key of the gateway does."""
        claims = claims_for(self, address)
        return None if claims is None or claims.key is not None else self._passed_tokens.get(claims.path)

    async def pass_token(self, token: CbsToken, claims: Claims) -> None:
        """Have the primary judge a token of the client's. While it is away, one that it has taken before is good, and
        one that takes the place of such a one on this connection, for the same key or identity.

        Raises:
            ServiceError: the primary does not take it, or is away and has not taken it before.
        """
        proofs, before = self.house.proofs, self._passed_tokens.get(claims.path)
        try:
            wire = await self.reach_primary()
            await wire.put(token)
            token.put_on = wire
        except ServiceError as error:
            if not error.retryable or not proofs.knows(token, before):
                raise
        if before is not None:
            proofs.renew(before, token)
        replaced = self._passed_tokens.get(claims.path)
        self.budget.release(0 if replaced is None else len(replaced.text))
        self.budget.hold(len(token.text))
        self._passed_tokens[claims.path] = token
        self.add_claims(claims)

    def may_divert(self, address: str) -> bool:
        """Whether the client is known to have the right to send: by a key of the gateway, or as the primary has taken a
        link to the address with its token."""
        token = self._passed_token(address)
        return token is None or self.house.proofs.has(token, address)

    def prove(self, address: str) -> None:
        """The primary has taken a link that sends."""
        token = self._passed_token(address)
        if token is not None:
            self.house.proofs.add(token, address)

    # -- what is unsettled

    def watch_answers(self) -> None:
        """Something is unsettled: see from time to time whether the primary answers."""
        if self._looking is None and not self._lost:
            self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        for session in self.door_sessions:
            session.up.give_up_silent(self.now())
        if not self.is_settled:
            self.watch_answers()


class DoorSession(Session):
    """A session of the client's, and the numbers that it has at the primary."""

    connection: DoorConnection

    def __init__(self, connection: DoorConnection, channel: int, begin: Fields) -> None:
        super().__init__(connection, channel, begin)
        self.primary_channel: int | None = None
        self.up = Upward(self)
        self.last_attach: list[Any] = []
        """The fields of the client's newest attach."""
        self._passed: dict[int, PassedLink] = {}
        self._by_primary: dict[int, PassedLink] = {}
        self._began = False
        self._refused: dict[int, int] = {}
        """Delivery-ids of messages that were refused half-way, by handle: their other frames are nothing to anybody."""
        self._seen_transfers = 0
        self._theirs: dict[int, int] = {}
        """The primary's delivery-id by ours, of what the client has to settle."""
        self._ours: dict[int, int] = {}

    # -- links

    def on_frame(self, code: int, values: list[Any], payload: bytes) -> Any:
        if code == FLOW:
            fields = Fields(values)
            handle = fields.number(4)
            link = None if handle is None else self.links.get(handle)
            # Also of a link whose attach waits for the primary: .NET's client gives credit before it is answered.
            if link is not None and isinstance(link.handler, PassedLink):
                link.handler.pass_flow(fields)
                values = [*values[:9], False, *values[10:]]
        elif code == DETACH:
            passed = self._passed.get(Fields(values).required_number(0))
            if passed is not None and passed.pass_detach(perform(DETACH, values)):
                return None
        elif code == ATTACH:
            self.last_attach = values
        return super().on_frame(code, values, payload)

    def attach_passed(self, passed: PassedLink) -> None:
        """From now on the link's frames go to the primary."""
        wire = self.connection.primary
        if wire is None:
            return
        if not self._began:
            self._began = True
            window = Uint(WINDOW)
            wire.write(self.channel, perform(BEGIN, [None, Uint(0), window, window, Uint(0xFFFF)]))
        self._passed[passed.link.handle] = passed

    @property
    def waiting_bytes(self) -> int:
        """What waits for the client's window."""
        return self._waiting_bytes

    def stop_passing(self, handle: int) -> None:
        """The link is served here from now on."""
        self._passed.pop(handle, None)

    def forget_link(self, link: Link) -> None:
        super().forget_link(link)
        passed = self._passed.get(link.handle)
        if passed is not None and passed.link is link:
            del self._passed[link.handle]
            self.up.sending.pop(link.handle, None)
            self.forget_primary_handle(passed)

    def forget_primary_handle(self, passed: PassedLink) -> None:
        if passed.primary_handle is not None:
            self._by_primary.pop(passed.primary_handle, None)

    def end(self, connection_lost: bool) -> None:
        super().end(connection_lost)
        wire = self.connection.primary
        if wire is not None and self._began:
            wire.write(self.channel, perform(END, []))
            self.connection.forget_channel(self.primary_channel)
        self._began = False
        self.up.begin_again()

    def primary_lost(self, error: ServiceError) -> None:
        """Serve what can be served; what only the primary has is detached."""
        outstanding = list(self.up.outstanding.values())
        sending = self.up.begin_again()
        self._began = False
        self.connection.forget_channel(self.primary_channel)
        self._by_primary.clear()
        self._theirs.clear()
        self._ours.clear()
        self._seen_transfers = 0
        for passed in list(self._passed.values()):
            passed.primary_lost(error)
        for handle, (_, one) in sending.items():
            link = self.links.get(handle)
            if one is not None and link is not None:
                self._finish_here(link, one)
        for one in outstanding:
            if one.whole:
                one.passed.send_here(one, error)

    def _finish_here(self, link: Link, begun: Outstanding) -> None:
        """A message of which not all has come yet: its rest is awaited here."""
        if begun.parts is None:
            link.partial = None
            self._refused[link.handle] = begun.delivery.delivery_id
            link.disposition(begun.delivery, refusal(forgotten(link.address)))
            return
        partial = self._begun_message(
            Fields([None, begun.delivery.delivery_id, begun.delivery.tag, begun.delivery.message_format, False])
        )
        partial.payload += b"".join(begun.parts)
        partial.size = begun.size
        link.partial = partial
        self.connection.budget.hold(begun.size)

    # -- frames of the client

    def pass_transfer(self, body: bytes) -> bool:
        """Take a transfer on to the primary. False: it is not for the primary, or unusually spelled."""
        head = read_head(body)
        if head is None:
            return False
        if self._refused and self._drops(head):
            return True
        passed = self._passed.get(head.handle)
        if passed is None or not passed.takes(head.handle in self.up.sending):
            return False
        self._next_incoming = (self._next_incoming + 1) & _MASK
        self.up.take(passed, head, body[head.payload_start :])
        return True

    def _drops(self, head: TransferHead) -> bool:
        """Whether a transfer is of a message that was refused half-way."""
        refused, link = self._refused.get(head.handle), self.links.get(head.handle)
        if refused is None or link is None or head.delivery_id not in (None, refused):
            self._refused.pop(head.handle, None)
            return False
        self._next_incoming = (self._next_incoming + 1) & _MASK
        if head.aborted or not head.more:
            del self._refused[head.handle]
            link.count_transfer()
        return True

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
            wire.write(self.channel, perform(DISPOSITION, [True, Uint(number), None, False, state]))

    # -- frames of the primary

    def pass_back(self, body: bytes) -> None:
        """A frame of the primary goes to the client; the usual ones, transfers and answers to one message, are read in
        a quick way."""
        code = body[2] if body[:2] == b"\x00\x53" and len(body) > 2 else 0
        if code == TRANSFER and (head := read_head(body)) is not None:
            self._transfer_back(head, body[head.payload_start :])
            return
        if code == DISPOSITION and (told := read_accepted(body)) is not None:
            for one in self.up.among(*told):
                one.passed.answered(one, accepted())
            return
        code, values, _ = read_performative(body)
        fields = Fields(values)
        if code == DISPOSITION:
            self._disposition_back(fields)
        elif code == FLOW:
            self._flow_back(fields)
        elif code == ATTACH:
            self._attach_back(fields, values)
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

    def numbers(self) -> list[Any]:
        """The session's part of a flow to the primary."""
        return self.up.numbers(self._seen_transfers)

    def _transfer_back(self, head: TransferHead, payload: bytes) -> None:
        self._seen_transfers = (self._seen_transfers + 1) & _MASK
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
            if passed.is_management:
                self.connection.asked[link.address.lower()] -= 1
            if not head.settled and head.delivery_id is not None:
                self._unsettled[number] = link
                self._theirs[number] = head.delivery_id
                self._ours[head.delivery_id] = number
        passed.receiving = head.more and not head.aborted
        wire = self.connection.primary
        if wire is not None and self._seen_transfers % _WINDOW_TRANSFERS == 0:
            wire.write(self.channel, perform(FLOW, self.numbers()))
        self._write_transfer(put_head(head, link.handle, number), payload)

    def _wait(self, head: bytes, payload: bytes) -> None:
        super()._wait(head, payload)
        self.connection.consider_reading()

    def _write_waiting(self) -> None:
        super()._write_waiting()
        self.connection.consider_reading()

    def _flow_back(self, fields: Fields) -> None:
        self.up.opened(fields.required_number(1), fields.number(0) or 0)
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
        if fields.flag(0):
            self.up.answered(fields)
            return
        first, last = fields.required_number(1), fields.number(2)
        state, settled = fields.get(4), fields.flag(3)
        for number in ids_between(self._ours, first, last):
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
                self._write(perform(DISPOSITION, [False, Uint(delivery_id), None, settled, None]))
            else:
                self.write_disposition(False, delivery_id, state, settled=settled)
