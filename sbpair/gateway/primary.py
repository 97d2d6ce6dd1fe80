"""A connection to the primary, for one connection of a client: SASL, tokens, heartbeats, and frames both ways.

The gateway signs in with its own credential, as every command does: for each address that a client attaches to it puts
a token to `$cbs` on channel 0, before the attach goes on. The client's channels are one higher here.
"""

import asyncio
import itertools
import ssl
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.amqp.frames import MIN_MAX_FRAME_SIZE, SASL_FRAME, FrameBuffer, FramingError, Outbox
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    SOURCE,
    TARGET,
    TRANSFER,
    Fields,
    accepted,
    composite_fields,
    perform,
    read_performative,
)
from sbpair.amqp.sections import PropertyField, Section, build, field, read, scan
from sbpair.amqp.types import AmqpError, Described, Symbol, Timestamp, Ubyte, Uint, Ulong, Ushort
from sbpair.azure.client import authorities
from sbpair.azure.errors import WireError, translate
from sbpair.azure.messaging import tls_context
from sbpair.core.access import NamespaceAccess, Transport, is_plaintext, without_port
from sbpair.engine import websocket
from sbpair.engine.connection import AMQP_HEADER, MAX_FRAME_SIZE, SASL_HEADER
from sbpair.gateway.tokens import CbsToken, Tokens

if TYPE_CHECKING:
    from sbpair.gateway.door import DoorConnection

CONNECT_SECONDS: Final = 15.0
"""For the connection, TLS, SASL and the open together."""
TOKEN_SECONDS: Final = 15.0
RENEW_BEFORE_SECONDS: Final = 600.0
IDLE_SECONDS: Final = 60.0
"""The primary has to be heard of within this time; its own wish is kept as well."""
CLIENT_CHANNELS_FROM: Final = 1
_WINDOW: Final = 0x7FFFFFFF
_TOKENS_OUT, _TOKENS_IN = 0, 1
_ANSWERS: Final = "tokens-in"
_PORTS: Final = {True: 5672, False: 5671}


class PrimaryWire(asyncio.Protocol):
    """One connection to the primary. Make it with `open_primary`."""

    def __init__(self, client: "DoorConnection", tokens: Tokens, max_frame_bytes: int) -> None:
        self.max_frame_bytes = MIN_MAX_FRAME_SIZE
        self._client = client
        self._tokens = tokens
        self._own_max_frame_bytes = max_frame_bytes
        self._host = without_port(tokens.access.host)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | Any = None
        self._outbox = Outbox()
        self._flush_due = False
        self._frames = FrameBuffer(most_bytes=max_frame_bytes + MAX_FRAME_SIZE)
        self._sasl = True
        self._header_due = True
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended = False
        self._reading = True
        self._heard_at = self._loop.time()
        self._timers: list[asyncio.TimerHandle] = []
        self._authorized: dict[str, asyncio.Task[float]] = {}
        self._requests: dict[str, asyncio.Future[tuple[int, str]]] = {}
        self._request_ids = itertools.count(1)
        self._next_delivery = 0
        self._tokens_ready: asyncio.Future[None] = self._loop.create_future()
        self._renewing: asyncio.Task[None] | None = None

    # -- for the client's connection

    def write(self, channel: int, body: bytes, payload: bytes = b"") -> None:
        """A frame on a channel of the client's."""
        self._outbox.frame(channel + CLIENT_CHANNELS_FROM, body, payload)
        self._write_soon()

    def write_disposition(self, channel: int, receiver: bool, delivery_id: int, state: Described | None) -> None:
        if state is None:
            fields = [receiver, Uint(delivery_id), None, True, None]
            self._outbox.frame(channel + CLIENT_CHANNELS_FROM, perform(DISPOSITION, fields))
        else:
            self._outbox.disposition(channel + CLIENT_CHANNELS_FROM, receiver, delivery_id, state)
        self._write_soon()

    async def authorize(self, resource: str) -> None:
        """Have a token of the gateway's own accepted for an address, now or before.

        Raises:
            ServiceError: the primary does not take it, or does not answer.
        """
        known = self._authorized.get(resource)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._authorized[resource] = self._loop.create_task(self._put_own(resource))
        await asyncio.shield(known)

    def read(self, on: bool) -> None:
        """Read of the primary, or leave it in its socket for now."""
        if on != self._reading and not self._ended:
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def hold_output(self) -> None:
        """Write nothing for now: `give_output` follows in the same turn of the loop."""
        self._flush_due = True

    def give_output(self) -> None:
        """Write what has been gathered. In the turn in which it came: another one would be another wait."""
        self._flush()

    def close(self) -> None:
        """The client is gone: say so, and go."""
        if not self._ended:
            self._end()
            if self._transport is not None:
                self._outbox.frame(0, perform(CLOSE, []))
                self._flush()
                self._transport.close()

    @property
    def is_open(self) -> bool:
        return self._opened.done() and not self._ended

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox.raw(SASL_HEADER)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._client.gather_answers()
        try:
            self._read(data)
        except (FramingError, AmqpError) as error:
            self._fail(WireError("amqp:connection:framing-error", str(error)))
        finally:
            self._client.write_answers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the primary closed the connection"))

    def pause_writing(self) -> None:
        self._client.primary_full(True)

    def resume_writing(self) -> None:
        self._client.primary_full(False)

    async def opened(self) -> None:
        """Wait until frames may go. Raises ServiceError."""
        await self._opened

    # -- reading

    def _read(self, data: bytes) -> None:
        for channel, body in self._frames.feed(data):
            if self._ended:
                return
            if self._header_due:
                self._on_header(bytes(body))
            elif not body:
                continue  # a heartbeat (§2.4.5), on whatever channel
            elif channel >= CLIENT_CHANNELS_FROM and not self._sasl:
                self._client.from_primary(channel, bytes(body))
            else:
                self._on_own_frame(bytes(body))

    def _on_header(self, header: bytes) -> None:
        self._header_due = False
        if header != (SASL_HEADER if self._sasl else AMQP_HEADER):
            raise FramingError(f"the primary answers with the protocol header {header!r}")
        if not self._sasl:
            idle = Uint(int(IDLE_SECONDS * 1000))
            container, most = f"sbpair-gateway-{uuid.uuid4().hex}", Uint(self._own_max_frame_bytes)
            self._outbox.frame(0, perform(OPEN, [container, self._host, most, Ushort(65535), idle]))
            self._flush()

    def _on_own_frame(self, body: bytes) -> None:
        code, values, start = read_performative(body)
        fields = Fields(values)
        if code == SASL_MECHANISMS:
            init = [Symbol("ANONYMOUS"), b"", self._host]
            self._outbox.frame(0, perform(SASL_INIT, init), kind=SASL_FRAME)
            self._flush()
        elif code == SASL_OUTCOME:
            if fields.number(0) != 0:
                raise FramingError("the primary does not take an anonymous login")
            self._sasl, self._header_due = False, True
            self._outbox.raw(AMQP_HEADER)
            self._flush()
        elif code == OPEN:
            self._on_open(fields)
        elif code == CLOSE:
            condition, text = error_of(fields.get(0))
            self._fail(WireError(condition or "amqp:connection:forced", text))
        elif code == ATTACH:
            # By its name: the primary has handles of its own.
            if fields.text(0) == _ANSWERS and not self._tokens_ready.done():
                self._tokens_ready.set_result(None)
        elif code in (DETACH, END):
            condition, text = error_of(fields.get(2 if code == DETACH else 0))
            self._fail(WireError(condition or "amqp:link:detach-forced", text or "the primary ended the link to $cbs"))
        elif code == TRANSFER:
            self._on_answer(fields, body[start:])

    def _on_open(self, fields: Fields) -> None:
        self.max_frame_bytes = fields.number(2) or 0xFFFFFFFF
        idle = fields.number(4)
        if idle:
            self._beat(max(idle / 2000, 0.05))
        self._watch()
        window = Uint(_WINDOW)
        self._outbox.frame(0, perform(BEGIN, [None, Uint(0), window, window, Uint(255)]))
        self._outbox.frame(0, perform(ATTACH, _attach("tokens-out", _TOKENS_OUT, False, "tokens", "$cbs")))
        self._outbox.frame(0, perform(ATTACH, _attach(_ANSWERS, _TOKENS_IN, True, "$cbs", "tokens")))
        credit = [Uint(0), window, Uint(0), window, Uint(_TOKENS_IN), Uint(0), Uint(1_000_000)]
        self._outbox.frame(0, perform(FLOW, credit))
        self._flush()
        if not self._opened.done():
            self._opened.set_result(None)

    # -- tokens

    async def put(self, token: CbsToken) -> None:
        """Have the primary take a token.

        Raises:
            ServiceError: it does not, or does not answer.
        """
        try:
            async with asyncio.timeout(TOKEN_SECONDS):
                await self._tokens_ready
                number = str(next(self._request_ids))
                answer = self._requests[number] = self._loop.create_future()
                properties = [number, None, None, None, "tokens"]
                expiration = Timestamp(int(token.until * 1000))
                about = {"operation": "put-token", "type": token.kind, "name": token.name, "expiration": expiration}
                payload = build(properties=properties, application_properties=about, value=token.text)
                numbers = Uint(self._next_delivery), self._next_delivery.to_bytes(4), Uint(0)
                self._next_delivery += 1
                self._outbox.frame(0, perform(TRANSFER, [Uint(_TOKENS_OUT), *numbers, True]), payload)
                self._flush()
                try:
                    status, text = await answer
                finally:
                    self._requests.pop(number, None)
        except TimeoutError as error:
            raise translate(error, f"put a token for {token.name}") from error
        if not 200 <= status < 300:
            raise translate(WireError(None, text, status=status), f"put a token for {token.name}")

    async def _put_own(self, resource: str) -> float:
        """Until when the gateway's own token is good, once the primary has taken it."""
        token = await self._tokens.token(resource)
        await self.put(token)
        if self._renewing is None:
            self._renewing = self._loop.create_task(self._renew())
        return token.until

    async def _renew(self) -> None:
        while not self._ended:
            await asyncio.sleep(60)
            for resource, task in list(self._authorized.items()):
                failed = task.done() and (task.cancelled() or task.exception() is not None)
                if task.done() and (failed or task.result() - time.time() < RENEW_BEFORE_SECONDS):
                    self._authorized[resource] = self._loop.create_task(self._put_own(resource))

    def _on_answer(self, fields: Fields, payload: bytes) -> None:
        if not fields.flag(4):
            self._outbox.disposition(0, True, fields.required_number(1), accepted())
            self._write_soon()
        spans = scan(payload)
        properties = read(payload, spans, Section.PROPERTIES)
        about = read(payload, spans, Section.APPLICATION_PROPERTIES) or {}
        number = field(properties or [], PropertyField.CORRELATION_ID)
        answer = self._requests.get(str(number))
        if answer is not None and not answer.done():
            answer.set_result((int(about.get("status-code", 500)), str(about.get("status-description", ""))))

    # -- time and end

    def _beat(self, seconds: float) -> None:
        if not self._ended:
            self._outbox.empty_frame()
            self._flush()
            self._timers.append(self._loop.call_later(seconds, self._beat, seconds))
            del self._timers[:-2]

    def _watch(self) -> None:
        quiet = self._loop.time() - self._heard_at
        if self._ended:
            return
        if quiet > IDLE_SECONDS:
            self._fail(TimeoutError(f"the primary has been silent for {quiet:.0f} s"))
            return
        self._timers.append(self._loop.call_later(IDLE_SECONDS / 4, self._watch))
        del self._timers[:-2]

    def _fail(self, cause: Exception) -> None:
        if self._ended:
            return
        error = translate(cause, f"reach {self._tokens.access.label}")
        self._end()
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
        self._client.primary_lost(error)

    def _end(self) -> None:
        self._ended = True
        for timer in self._timers:
            timer.cancel()
        for task in (self._renewing, *self._authorized.values()):
            if task is not None:
                task.cancel()
        if not self._tokens_ready.done():
            self._tokens_ready.cancel()

    def _write_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        data = self._outbox.take()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


async def open_primary(client: "DoorConnection", tokens: Tokens, max_frame_bytes: int) -> PrimaryWire:
    """Connect, sign in and open.

    Raises:
        ServiceError: the primary is not reached, or refuses.
    """
    access = tokens.access
    host = without_port(access.host)
    plain = is_plaintext(access)
    wire = PrimaryWire(client, tokens, max_frame_bytes)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if access.transport is Transport.WEBSOCKET:
                await _over_websocket(wire, access, plain)
            else:
                port = int(access.host.rpartition(":")[2]) if access.host != host else _PORTS[plain]
                context = None if plain else tls_context(authorities(access.ca_file))
                await asyncio.get_running_loop().create_connection(lambda: wire, host, port, ssl=context)
            await wire.opened()
    except (OSError, TimeoutError) as error:
        wire.close()
        raise translate(error, f"reach {access.label}") from error
    return wire


async def _over_websocket(wire: PrimaryWire, access: NamespaceAccess, plain: bool) -> None:
    import aiohttp

    context: ssl.SSLContext | bool = False if plain else tls_context(authorities(access.ca_file))
    session = aiohttp.ClientSession(trust_env=True)
    url = f"{'ws' if plain else 'wss'}://{access.host}{websocket.PATH}"
    most = websocket.MAX_MESSAGE_BYTES
    try:
        socket = await session.ws_connect(
            url, protocols=websocket.PROTOCOLS[:1], ssl=context or True, max_msg_size=most
        )
    except BaseException as error:
        await session.close()
        if isinstance(error, aiohttp.ClientError):
            raise ConnectionError(str(error)) from error
        raise
    carrier = _WebSocket(wire, session, socket)
    wire.connection_made(cast(asyncio.BaseTransport, carrier))


class _WebSocket(websocket.SocketPipe):
    """A WebSocket to the primary in the place of a transport."""

    def __init__(self, wire: PrimaryWire, session: Any, socket: Any) -> None:
        super().__init__(socket, wire.pause_writing, wire.resume_writing)
        self._wire, self._session = wire, session
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        writing = asyncio.create_task(self._write())
        try:
            async for data in self.reading():
                self._wire.data_received(data)
        finally:
            writing.cancel()
            await self._session.close()
            self._wire.connection_lost(None)

    async def _write(self) -> None:
        await self.writing()
        await self._socket.close()

    write = websocket.SocketPipe.send

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self.end()

    def abort(self) -> None:
        self._closing = True
        self._task.cancel()


def error_of(value: object) -> tuple[str | None, str]:
    """Condition and description of an AMQP error; (None, "") where there is none."""
    fields = Fields(composite_fields(value))
    condition = fields.get(0)
    return (None if condition is None else str(condition)), fields.text(1) or ""


def _attach(name: str, handle: int, receiver: bool, source: str, target: str) -> list[Any]:
    ends = Described(Ulong(SOURCE), [source]), Described(Ulong(TARGET), [target])
    count = None if receiver else Uint(0)
    return [name, Uint(handle), receiver, Ubyte(2), Ubyte(0), *ends, None, None, count]
