"""Fault control of a running emulator: its client, for the command line and for other processes, and its port."""

import asyncio
import http.client
import importlib
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from sbpair.emulator.namespace import Namespace
from sbpair.engine.auth import make_sas_token
from sbpair.engine.budgets import Memory
from sbpair.engine.errors import EmulatorError, not_found
from sbpair.engine.port import PATIENCE_SECONDS, FirstRequests, closing

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.emulator.admin.calls import AdminCall, AdminReply
    from sbpair.emulator.server import Emulator


_TOKEN_SECONDS = 300
_MOST_BYTES = 16 * 1024 * 1024


class ControlError(Exception):
    """The emulator could not be asked, or refused; the text says which."""


class FaultControl:
    """Lists and changes the faults of one namespace over HTTPS.

    `endpoint` is the emulator's control port, `host:port`; `ca_file` its authority; the key is one of the namespace
    with the Manage right.

    Raises:
        ControlError: the authority's file cannot be used.
    """

    def __init__(self, endpoint: str, namespace: str, *, ca_file: str, key_name: str, key: str) -> None:
        self._resource = f"https://{endpoint}/$emulator/faults"
        self._url = f"https://{endpoint}/{namespace}/$emulator"
        try:
            trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))
        except OSError as error:
            raise ControlError(f"the certificate authority {ca_file} cannot be used: {error}") from error
        # The token goes to the emulator and nowhere else: through no proxy, and along with no redirect.
        self._opener = urllib.request.build_opener(trusting, urllib.request.ProxyHandler({}), _NoRedirects())
        self._key = (key_name, key)

    def list(self) -> "list[dict[str, Any]]":
        found = self._ask("GET", "/faults").get("value")
        if not isinstance(found, list):
            raise ControlError(f"{self._url} does not answer as an emulator does")
        return found

    def add(self, text: str) -> dict[str, Any]:
        """Add a fault in its text form, e.g. `throttle:entity=orders,for=30s`."""
        return self._ask("POST", "/faults", {"text": text})

    def remove(self, fault_id: str) -> None:
        self._ask("DELETE", f"/faults/{fault_id}")

    def fail_over(self, alias: str) -> str:
        """Have an alias lead to the other namespace of its pair; that namespace's name."""
        return str(self._ask("POST", f"/failover/{alias}").get("namespace", ""))

    def clear(self) -> None:
        self._ask("DELETE", "/faults")

    def _ask(self, method: str, tail: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        token = make_sas_token(self._resource, *self._key, time.time() + _TOKEN_SECONDS)
        request = urllib.request.Request(
            self._url + tail,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": token, "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=10) as answer:
                text = answer.read(_MOST_BYTES)
            return _object(text)
        except urllib.error.HTTPError as error:
            raise ControlError(_message_of(error.read(_MOST_BYTES)) or str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"no answer from {self._url}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ControlError(f"{self._url} does not answer as an emulator does") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other, and none that an emulator gives."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Do not follow."""


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty for none. ValueError for anything else."""
    read = json.loads(text) if text else {}
    if not isinstance(read, dict):
        raise ValueError("not an object")
    return read


def _message_of(body: bytes) -> str:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
    return _COSTUME.sub("", message)


_COSTUME = re.compile(r"^SubCode=\d+\. | To know more visit .*$", re.DOTALL)
"""What the resource manager puts around a sentence, which says nothing about a fault."""


# A port of the emulator's own, out of reach of every fault: also a namespace in the dark can be brought back.
#
# https://HOST:PORT/{namespace}/$emulator/faults      as described in `admin.http.handle_control`, for that namespace


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


def _reply(namespace: Namespace, call: "AdminCall") -> "AdminReply":
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
