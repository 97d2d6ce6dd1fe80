"""A gateway between a client and the embedded namespace that it takes for its own.

The gateway's keys are those of the namespace, also the ones that a test adds later, so that one connection string fits
both; tokens that clients bring themselves are passed. Clients that know no port but the service's own find the gateway
there, on an address that is its alone.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.emulator import Emulator, EmulatorThread
from sbpair.emulator.server import AMQPS_PORT
from sbpair.engine.tls import TlsFiles
from sbpair.gateway.keys import GatewayKey
from sbpair.gateway.server import Gateway, GatewaySettings, open_gateway

BACKLOG_QUEUES = 3
_KEYS_SECONDS = 0.05


class Namespaces(Protocol):
    """What a client is led by: an emulator, or gateways in front of its namespaces."""

    @property
    def ca_path(self) -> Path: ...
    def connection_string(self, name: str, key_name: str | None = None) -> str: ...
    def endpoint(self, name: str) -> str: ...


class Running:
    """A gateway on an event loop and a thread of its own."""

    gateway: Gateway
    loop: asyncio.AbstractEventLoop

    def __init__(self, opening: AbstractAsyncContextManager[Gateway]) -> None:
        self._opening = opening
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="gateway")
        self._thread.start()
        self._ready.result()

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._opening as self.gateway:
                self._ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def call(self, function: Callable[[], object]) -> None:
        """Run a function on the gateway's loop."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@dataclass
class Gateways:
    """Gateways by the name of their primary, as `Namespaces`."""

    ca_path: Path
    running: dict[str, Running] = field(default_factory=dict)

    def endpoint(self, name: str) -> str:
        return self.running[name].gateway.endpoint()

    def connection_string(self, name: str, key_name: str | None = None) -> str:
        """As the namespace itself would give it; on the service's own port one for clients that use TLS."""
        gateway = self.running[name].gateway
        text = gateway.connection_string(key_name or "RootManageSharedAccessKey", plain=True)
        if gateway.port.number == AMQPS_PORT:
            return text.replace(f":{AMQPS_PORT};", "/;").removesuffix(";UseDevelopmentEmulator=true")
        return text


def pair_of(emulator: EmulatorThread, primary: str, secondary: str, *, interval_seconds: float = 10.0) -> Pair:
    """A pair of embedded namespaces, whose backlog queues are made."""
    sides = []
    for name in (primary, secondary):
        text = emulator.connection_string(name)
        kind = AuthMethod.CONNECTION_STRING
        sides.append(NamespaceAccess(name, host_of(text), kind, Secret(text), ca_file=str(emulator.ca_path)))
    options = SendAvailabilityOptions(BACKLOG_QUEUES, interval_seconds, False, 1.0, verify="off")
    pair = Pair(primary, *sides, options)
    for path in pair.backlog_paths():
        if emulator.namespace(secondary).get_queue(path) is None:
            emulator.namespace(secondary).create_queue(path)
    return pair


@contextmanager
def gateway_before(
    emulator: EmulatorThread,
    pair: Pair,
    gateways: Gateways,
    *,
    host: str = "127.0.0.1",
    ports: Sequence[int] = (0,),
    names: Sequence[str] = (),
) -> Iterator[Running]:
    """A gateway for a pair on the first of these ports; what comes to the others is led there.

    The emulator's certificate has to be good for `host` and `names`.
    """
    tls, name = TlsFiles(gateways.ca_path.parent), pair.primary.label
    keys, settings = _keys(emulator, name), GatewaySettings(names=names, pass_tokens=True)
    running = Running(open_gateway([pair], keys, tls, settings, host=host, number=ports[0]))
    gateways.running[name] = running
    with ExitStack() as stack:
        stack.callback(running.close)
        stack.enter_context(_keys_follow(emulator, name, running))
        for port in ports[1:]:
            stack.enter_context(_led_there(running, host, port))
        yield running


def _keys(emulator: EmulatorThread, name: str) -> tuple[GatewayKey, ...]:
    def of(emulator: Emulator) -> tuple[GatewayKey, ...]:
        rules = emulator.namespace(name).auth_rules.values()
        return tuple(GatewayKey(one.name, one.primary_key, one.rights, ("*",), one.secondary_key) for one in rules)

    return emulator.call(of)


@contextmanager
def _keys_follow(emulator: EmulatorThread, name: str, running: Running) -> Iterator[None]:
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(_KEYS_SECONDS):
            running.call(partial(running.gateway.front.ring.replace, _keys(emulator, name)))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _led_there(running: Running, host: str, port: int) -> Iterator[None]:
    """A port whose connections are passed to the gateway's, byte by byte."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        further = await asyncio.open_connection(host, running.gateway.port.number)
        await asyncio.gather(_pass(reader, further[1]), _pass(further[0], writer))

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(accept, host, port)

    server = asyncio.run_coroutine_threadsafe(listen(), running.loop).result()
    try:
        yield
    finally:
        running.call(server.close)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
