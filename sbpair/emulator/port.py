"""One namespace's port. The first bytes tell what a client wants: TLS (0x16) or not, then "AMQP", or else HTTP."""

import asyncio
import contextlib
import importlib
import os
import socket
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sbpair.emulator import websocket
from sbpair.emulator.faults import ActiveFault, FaultKind
from sbpair.emulator.link import AttachService, NamespaceView
from sbpair.emulator.mux import TLS_HANDSHAKE, FirstBytes, peek, reset
from sbpair.emulator.tls import TlsFiles
from sbpair.emulator.wire import Wire, cut

if TYPE_CHECKING:
    from aiohttp import web

PATIENCE_SECONDS: Final = 60.0
"""For the first byte of a connection, for its protocol, and for its first HTTP request."""
_BACKLOG: Final = 512
_ACCEPT_PAUSE_SECONDS: Final = 0.05


class AppFactory(Protocol):
    """Makes the administration's HTTP application (`http.make_app`)."""

    def __call__(self) -> "web.Application": ...


class Port:
    """Listens for one namespace, and can stop and start again under the same number."""

    def __init__(
        self,
        namespace: NamespaceView,
        service: AttachService,
        tls: TlsFiles,
        make_app: AppFactory,
        host: str = "127.0.0.1",
        number: int = 0,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.patience_seconds = patience_seconds
        self.namespace = namespace
        self.host = host
        self.number = number
        self.running = False
        self.service = service
        self._tls = tls
        self._make_app = make_app
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._asked: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._runner: web.AppRunner | None = None
        self._runner_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        namespace.faults.listen(self._faults_changed)

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

    async def close(self) -> None:
        """Stop for good and give the number back."""
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
            context = await asyncio.to_thread(self._tls.server_context) if first == TLS_HANDSHAKE else None
        except (OSError, TimeoutError):
            first = b""
        except BaseException:
            client.close()
            raise
        if not self.running or self.namespace.faults.refusing():
            reset(client)
            return
        if not first:
            client.close()
            return
        # A client that breaks off its handshake is no concern of ours; the socket is closed by then.
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(
                lambda: FirstBytes(self),
                client,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self.patience_seconds,
            )

    # -- connections

    def track(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)

    def expect_request(self, transport: asyncio.Transport) -> None:
        """Cut an HTTP client off that has not sent the head of a request in time: one line a minute would do else."""
        waiting = weakref.ref(transport)

        def look() -> None:
            late = waiting()
            if late is not None and late not in self._asked:
                cut(late)

        asyncio.get_running_loop().call_later(self.patience_seconds, look)

    async def http_protocol(self) -> asyncio.Protocol:
        """A protocol of the administration's web server, which is made when the first client asks."""
        async with self._runner_lock:
            if self._runner is None:
                self._runner = await self._make_runner()
        server = self._runner.server
        if server is None:
            raise ConnectionResetError("the port is closing")
        return cast(asyncio.Protocol, server())

    async def _make_runner(self) -> "web.AppRunner":
        await asyncio.to_thread(importlib.import_module, "aiohttp.web")
        from aiohttp import web

        from sbpair.emulator.http import http_logger

        app = self._make_app()
        app.middlewares.insert(0, self._middleware())
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1, logger=http_logger())
        await runner.setup()
        return runner

    def _middleware(self) -> Callable[..., Awaitable["web.StreamResponse"]]:
        from aiohttp import web

        @web.middleware
        async def front(
            request: "web.Request", handler: Callable[["web.Request"], Awaitable["web.StreamResponse"]]
        ) -> "web.StreamResponse":
            """WebSocket at its own path; delay and silence for the rest."""
            if request.transport is not None:
                self._asked.add(request.transport)
            if request.path == websocket.PATH:
                return await websocket.serve(request, self)
            if self.namespace.faults.active:
                await self._distance()
            return await handler(request)

        return front

    async def _distance(self) -> None:
        """Let a request wait for the added round trip, and for the end of a silence."""
        faults = self.namespace.faults
        await asyncio.sleep(faults.round_trip_seconds())
        while faults.silent():
            self._changed.clear()
            await self._changed.wait()

    def adopt(self, wire: Wire) -> None:
        """A wire belongs to this port until its connection is lost."""
        self._wires.add(wire)

    def release(self, wire: Wire) -> None:
        self._wires.discard(wire)

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
                if link.address != "$cbs" and fault.rule.matches_entity(link.address):
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
