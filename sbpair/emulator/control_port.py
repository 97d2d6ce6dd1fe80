"""A port of the emulator's own, out of reach of every fault: also a namespace in the dark can be brought back.

https://HOST:PORT/{namespace}/$emulator/faults      as described in `admin.http.handle_control`, for that namespace
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from sbpair.emulator.namespace import Namespace
from sbpair.engine.budgets import Memory
from sbpair.engine.errors import EmulatorError, not_found
from sbpair.engine.port import PATIENCE_SECONDS, FirstRequests, closing

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.emulator.admin.calls import Call, Reply
    from sbpair.emulator.server import Emulator


class ControlPort:
    """Serves fault control for all namespaces of an emulator over HTTPS. Port 0: any free one."""

    def __init__(self, emulator: "Emulator", number: int = 0, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._emulator = emulator
        self._number = number
        self._patience_seconds = patience_seconds
        self._requests = FirstRequests(patience_seconds)
        self._memory = Memory()
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._making = asyncio.Lock()

    @property
    def endpoint(self) -> str:
        """`host:port`, once started."""
        return f"{self._emulator.host}:{self._number}"

    async def start(self) -> None:
        """Begin to listen; OSError if the port is taken."""
        self._listening = await asyncio.get_running_loop().create_server(
            lambda: _Client(self._web_server, self._requests),
            self._emulator.host,
            self._number,
            ssl=self._emulator.tls.server_context(),
            ssl_handshake_timeout=self._patience_seconds,
        )
        self._number = self._listening.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and end what is still connected."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        async with self._making:
            if self._runner is not None:
                await self._runner.cleanup()
                self._runner = None

    async def _web_server(self) -> "web.Server | None":
        """The web server, made when the first client asks; None when the port is closing."""
        async with self._making:
            if self._runner is None and self._listening is not None:
                # Its modules take longer to be imported than all else at the start of an emulator.
                await asyncio.to_thread(importlib.import_module, "sbpair.emulator.admin.http")
                from aiohttp import web

                from sbpair.emulator.admin.http import make_runner

                app = web.Application()
                app.router.add_route("*", "/{path:.*}", self._answer)
                self._runner = make_runner(app)
                await self._runner.setup()
            return None if self._runner is None else self._runner.server

    async def _answer(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        from sbpair.emulator.admin.calls import arm_error
        from sbpair.emulator.admin.http import budget_of, call_of, response_of

        self._requests.came(request)
        refused = self._emulator.own_names.refusal(
            request.headers.getall("Host", []), request.headers.getall("Origin", [])
        )
        if refused is not None:
            return closing(web.Response(status=refused[0], text=refused[1]))
        budget = budget_of(request, self._memory)
        try:
            call = await call_of(request, self._emulator.clock.client_now(), budget)
        finally:
            budget.end()
        name, *rest = call.segments
        call = replace(call, segments=tuple(rest))
        try:
            namespace = self._emulator.namespace(name)
        except EmulatorError as error:
            return response_of(arm_error(not_found(str(error)), call))
        return response_of(_reply(namespace, call))


def _reply(namespace: Namespace, call: "Call") -> "Reply":
    from sbpair.emulator.admin.calls import arm_error
    from sbpair.emulator.admin.http import handle_control, is_control_path

    if is_control_path(call.segments):
        return handle_control(namespace, call)
    return arm_error(not_found(f"The resource '{call.path}' does not exist."), call)


class _Client(asyncio.Protocol):
    """One connection: handed to the web server as soon as that is there, and cut if it never asks for anything."""

    def __init__(self, web_server: "Callable[[], Awaitable[web.Server | None]]", requests: FirstRequests) -> None:
        self._web_server = web_server
        self._requests = requests
        self._handing_over: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast(asyncio.Transport, transport)
        connected.pause_reading()
        self._handing_over = asyncio.get_running_loop().create_task(self._hand_over(connected))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()

    async def _hand_over(self, transport: asyncio.Transport) -> None:
        server = await self._web_server()
        if server is None:
            transport.abort()
            return
        protocol = cast(asyncio.Protocol, server())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._requests.expect(transport)
        transport.resume_reading()
