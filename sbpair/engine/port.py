"""One namespace's port. The first bytes tell what a client wants: TLS (0x16) or not, then "AMQP", or else HTTP."""

import asyncio
import contextlib
import importlib
import os
import select
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sbpair.engine import websocket
from sbpair.engine.auth import OwnNames, is_loopback
from sbpair.engine.budgets import Memory, Turns
from sbpair.engine.connection import Connection
from sbpair.engine.faults import ActiveFault, FaultKind
from sbpair.engine.link import AttachService, NamespaceView
from sbpair.engine.wire import ServerWire, WireProtocol, cut

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware


# Telling the protocols of a port apart by the first bytes of a connection.

TLS_HANDSHAKE: Final = b"\x16"
_AMQP: Final = b"AMQP"
_LINGER_NOT: Final = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


_LOOPBACK_SEGMENT_BYTES = 1448
"""The segment of an Ethernet. That of loopback, 32 to 64 KB, is larger than the window of a client with a receive
buffer of 8 KB (Microsoft.Azure.Amqp 2.5, so Azure.Messaging.ServiceBus 7.10 and MassTransit 8.0): the system then sends
by timer, and 15 messages a second arrive."""


async def peek(client: socket.socket) -> bytes:
    """The first byte without taking it; empty when the client has gone. Waits for it."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    number = client.fileno()
    try:
        loop.add_reader(number, _wake, readable)
    except NotImplementedError:  # a proactor loop (Windows) has no readiness, only completion
        await asyncio.to_thread(select.select, [client], [], [])
    else:
        try:
            await readable
        finally:
            loop.remove_reader(number)
    return client.recv(1, socket.MSG_PEEK)


def closing(response: "web.Response") -> "web.Response":
    """The answer after which the connection ends: a client that was refused has nothing more to say on it."""
    response.force_close()
    return response


def reset(client: socket.socket) -> None:
    """Refuse a connection that the system has accepted already: RST instead of a polite end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    client.close()


class FirstBytes(asyncio.Protocol):
    """Stands in until four bytes, in clear, say AMQP or HTTP; then the right protocol takes the connection over.

    A client that does not say so in time is cut off.
    """

    def __init__(self, owner: "Port") -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._switching: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.track(self._transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(self._owner.patience_seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        transport = self._transport
        if transport is None or self._switching is not None:
            return
        if self._buffer.startswith(_AMQP):
            self._stop_waiting()
            _hand_over(transport, WireProtocol(self._owner, transport), self._buffer)
        elif not _AMQP.startswith(self._buffer):
            self._stop_waiting()
            transport.pause_reading()
            self._switching = self._owner.spawn(self._to_http(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._switching is not None:
            self._switching.cancel()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _to_http(self, transport: asyncio.Transport) -> None:
        protocol = await self._owner.http_protocol()
        protocol.connection_made(transport)
        self._owner.expect_request(transport)
        _hand_over(transport, protocol, self._buffer)
        transport.resume_reading()


def _hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, data: bytes) -> None:
    transport.set_protocol(protocol)
    protocol.data_received(data)


def _wake(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)


PATIENCE_SECONDS: Final = 60.0
"""For the first byte of a connection, for its protocol, and for its first HTTP request."""
_BACKLOG: Final = 512
_ACCEPT_PAUSE_SECONDS: Final = 0.05


class ServerTls(Protocol):
    """What the server side of TLS is made from."""

    def server_context(self) -> ssl.SSLContext:
        """Called in a thread of its own."""


class RunnerFactory(Protocol):
    """Makes the administration's web server, with a middleware in front of it. What it imports takes long: in another
    thread."""

    async def __call__(self, front: "Middleware") -> "web.AppRunner": ...


class FirstRequests:
    """HTTP clients that have not sent the head of a request yet: one line a minute would do else."""

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self._asked: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    def expect(self, transport: asyncio.Transport) -> None:
        """Cut this client off if it does not ask in time."""
        waiting = weakref.ref(transport)

        def check() -> None:
            late = waiting()
            if late is not None and late not in self._asked:
                cut(late)

        asyncio.get_running_loop().call_later(self.patience_seconds, check)

    def came(self, request: "web.Request") -> None:
        """A whole head is there."""
        if request.transport is not None:
            self._asked.add(request.transport)


class Handshakes:
    """Places for TLS handshakes: each takes 300 KB, however little the client says.

    Who finds no place waits, and the newest is served first: it is the likeliest to be there still. While places are
    scarce a handshake has to be over soon.
    """

    MOST: Final = 128
    HASTE_SECONDS: Final = 5.0

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self._taken = 0
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[float]:
        """A place, and how long (seconds) the handshake may take in it. Raises TimeoutError where none gets free."""
        if self._taken >= self.MOST:
            await self._wait()
        else:
            self._taken += 1
        try:
            scarce = self._taken > self.MOST // 2
            yield min(self.patience_seconds, self.HASTE_SECONDS) if scarce else self.patience_seconds
        finally:
            self._give_on()

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self.patience_seconds):
                await waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled():
                self._give_on()
            raise

    def _give_on(self) -> None:
        """A place is free: for the newest of those who wait."""
        while self._waiting:
            waiter = self._waiting.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._taken -= 1


class Port:
    """Listens for one namespace, and can stop and start again under the same number."""

    def __init__(
        self,
        namespace: NamespaceView,
        service: AttachService,
        tls: ServerTls,
        make_runner: RunnerFactory,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        names: Iterable[str] = (),
        memory: Memory | None = None,
        turns: Turns | None = None,
        connection: type[Connection] = Connection,
        in_clear: bool = True,
    ) -> None:
        """`address`: host and number, 0 for any free one. `names`: what HTTP clients may call this port beyond
        localhost and its addresses. `memory` and `turns` are shared with the other ports of an emulator. `connection`
        serves AMQP; `in_clear`: without TLS as well."""
        self.memory = Memory() if memory is None else memory
        self.turns = Turns() if turns is None else turns
        self._requests = FirstRequests(PATIENCE_SECONDS)
        self._handshakes = Handshakes(PATIENCE_SECONDS)
        self.namespace = namespace
        self.host, self.number = address
        self.running = False
        self._service = service
        self._connection = connection
        self._in_clear = in_clear
        self._tls = tls
        self._names = OwnNames(names)
        self._make_runner = make_runner
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: dict[ServerWire, None] = {}
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._runner: web.AppRunner | None = None
        self._runner_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        namespace.faults.listen(self._faults_changed)

    @property
    def patience_seconds(self) -> float:
        """How long a client may take to say what it wants."""
        return self._handshakes.patience_seconds

    @patience_seconds.setter
    def patience_seconds(self, seconds: float) -> None:
        self._handshakes.patience_seconds = self._requests.patience_seconds = seconds

    async def start(self) -> None:
        """Listen. The first time this settles the number, if it was 0."""
        self.running = True
        self._bind()
        self._reconsider()

    async def stop(self) -> None:
        """Refuse new connections and cut those that exist. The number stays reserved."""
        self.running = False
        self._reconsider()
        self.cut_all()
        await self._finish_tasks()

    def take_no_more(self) -> None:
        """Refuse new connections; those that exist go on."""
        self.running = False
        self._reconsider()

    @property
    def connections(self) -> list[Connection]:
        """The AMQP connections that exist."""
        return [wire.connection for wire in self._wires]

    async def close(self) -> None:
        """Stop, and give the number back."""
        await self.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut_all(self) -> None:
        """Cut every connection without a word."""
        for wire in list(self._wires):
            wire.connection.abort()
        for transport in list(self._transports):
            cut(transport)

    # -- listening

    def _bind(self) -> None:
        """Take the port without listening yet: until then the system refuses connections to it."""
        if self._socket is not None:
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setblocking(False)
            if os.name == "posix":  # elsewhere it would let two processes have the same port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_loopback(self.host) and hasattr(socket, "TCP_MAXSEG"):
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _LOOPBACK_SEGMENT_BYTES)
            bound.bind((self.host, self.number))
        except OSError:
            bound.close()
            raise
        self.number = bound.getsockname()[1]
        self._socket = bound

    def _reconsider(self) -> None:
        """Listen or not, as running state and faults want it."""
        wanted = self.running and not self.namespace.faults.refusing()
        if wanted and self._accepting is None:
            self._bind()
            listening = cast(socket.socket, self._socket)
            listening.listen(_BACKLOG)
            self._accepting = self.spawn(self._accept(listening))
        elif not wanted and self._accepting is not None:
            listening = cast(socket.socket, self._socket)
            # A client that asks at this very moment would be accepted from a socket that is closed by then.
            asyncio.get_running_loop().remove_reader(listening)
            self._accepting.cancel()
            self._accepting = None
            listening.close()
            self._socket = None
            self._bind()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError:
                # This client was gone already, or descriptors have run out; the next one may fare better.
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            if self.namespace.faults.check("connect", "*") is not None:
                reset(client)
                continue
            self.spawn(self._welcome(client))

    async def _welcome(self, client: socket.socket) -> None:
        """Find out whether the client speaks TLS, without taking a byte, and hand it to the protocol for that."""
        loop = asyncio.get_running_loop()
        client.setblocking(False)
        try:
            async with asyncio.timeout(self.patience_seconds):
                first = await peek(client)
        except (OSError, TimeoutError):
            first = b""
        except BaseException:
            client.close()
            raise
        if not self.running or self.namespace.faults.refusing():
            reset(client)
        elif not first:
            client.close()
        elif first == TLS_HANDSHAKE:
            await self._shake_hands(client)
        elif not self._in_clear:
            reset(client)
        else:
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(lambda: FirstBytes(self), client)

    async def _shake_hands(self, client: socket.socket) -> None:
        """TLS with a client, as soon as there is a place for it."""
        loop = asyncio.get_running_loop()
        handed_over = False
        try:
            async with self._handshakes.place() as seconds:
                context = await asyncio.to_thread(self._tls.server_context)
                handed_over = True
                await loop.connect_accepted_socket(
                    lambda: FirstBytes(self), client, ssl=context, ssl_handshake_timeout=seconds
                )
        except OSError:
            # A client that breaks off its handshake, or waits for a place in vain, is no concern of ours.
            if not handed_over:
                client.close()
        except BaseException:
            if not handed_over:
                client.close()
            raise

    # -- connections

    def track(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)

    def expect_request(self, transport: asyncio.Transport) -> None:
        """Cut an HTTP client off that has not sent the head of a request in time."""
        self._requests.expect(transport)

    async def http_protocol(self) -> asyncio.Protocol:
        """A protocol of the administration's web server, which is made when the first client asks."""
        async with self._runner_lock:
            if self._runner is None:
                # The web server's modules take a while to be imported, and nobody else waits for them.
                await asyncio.to_thread(importlib.import_module, "aiohttp.web")
                self._runner = await self._make_runner(self._middleware())
                await self._runner.setup()
        server = self._runner.server
        if server is None:
            raise ConnectionResetError("the port is closing")
        return cast(asyncio.Protocol, server())

    def _middleware(self) -> "Middleware":
        from aiohttp import web

        @web.middleware
        async def front(request: "web.Request", handler: "Handler") -> "web.StreamResponse":
            return await self._front(request, handler)

        return front

    async def _front(self, request: "web.Request", handler: "Handler") -> "web.StreamResponse":
        """WebSocket at its own path; delay and silence for the rest. No page of a browser gets to either."""
        from aiohttp import web

        self._requests.came(request)
        refused = self._names.refusal(request.headers.getall("Host", []), request.headers.getall("Origin", []))
        if refused is not None:
            return closing(web.Response(status=refused[0], text=refused[1]))
        if request.path.removesuffix("/") == websocket.PATH:  # .NET asks with a slash at the end
            return await websocket.serve(request, self)
        if self.namespace.faults.active:
            await self._distance()
        return await handler(request)

    async def _distance(self) -> None:
        """Let a request wait for the added round trip, and for the end of a silence."""
        faults = self.namespace.faults
        await asyncio.sleep(faults.round_trip_seconds())
        while faults.silent():
            self._changed.clear()
            await self._changed.wait()

    def connect(self, transport: ServerWire) -> Connection:
        """Serve AMQP over a transport."""
        return self._connection(self.namespace, self._service, transport, memory=self.memory, turns=self.turns)

    def adopt(self, wire: ServerWire) -> None:
        """A wire belongs to this port until its connection is lost."""
        self._wires[wire] = None

    def release(self, wire: ServerWire) -> None:
        self._wires.pop(wire, None)

    # -- faults

    def _faults_changed(self, begun: ActiveFault | None) -> None:
        self._changed.set()
        self._reconsider()
        for wire in list(self._wires):
            wire.reconsider()
        if begun is None:
            return
        if begun.rule.kind is FaultKind.DARK:
            self.cut_all()
        elif begun.rule.immediate and begun.rule.kind is FaultKind.DROP:
            self._drop(begun)
        elif begun.rule.immediate and begun.rule.kind is FaultKind.DETACH:
            self._detach(begun)

    def _drop(self, fault: ActiveFault) -> None:
        if fault.rule.entity == "*":
            self.cut_all()
            return
        for wire in list(self._wires):
            if any(fault.rule.matches_entity(address) for address in wire.connection.addresses):
                wire.connection.abort()

    def _detach(self, fault: ActiveFault) -> None:
        condition = fault.rule.condition or "amqp:link:detach-forced"
        description = fault.rule.description or "The link was detached by the broker because of a transient condition."
        for wire in list(self._wires):
            for link in wire.connection.links():
                if not link.is_cbs and fault.rule.matches_entity(link.address):
                    link.force_off(condition, description)

    # -- tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
