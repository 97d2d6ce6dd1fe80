"""A namespace without a broker behind a real port, and a client that speaks frames."""

import asyncio
import base64
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Middleware

from sbpair.amqp.performatives import accepted
from sbpair.amqp.types import Described
from sbpair.emulator.throttling import Throttling
from sbpair.engine.auth import ALL_RIGHTS, LISTEN, SEND, Signer
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import rejected
from sbpair.engine.faults import Faults
from sbpair.engine.link import AttachService, IncomingDelivery, Link
from sbpair.engine.port import Port
from sbpair.engine.tls import TlsFiles
from sbpair.engine.wire import Trace
from tests.emulator.conftest import dialect, emulator, emulator_thread
from tests.engine.dialects import Dialect
from tests.engine.wire_client import Client

__all__ = ["dialect", "emulator", "emulator_thread"]


@dataclass(frozen=True)
class Key:
    name: str
    rights: frozenset[str]
    primary_key: str
    secondary_key: str = ""


ROOT_KEY = base64.b64encode(b"r" * 32).decode()
SEND_KEY = base64.b64encode(b"s" * 32).decode()


@dataclass
class PlainNamespace:
    """As much of a namespace as the engine asks for."""

    name: str = "plain"
    clock: ManualClock = field(default_factory=ManualClock)
    allow_entra: bool = True
    entra_rights: dict[str, frozenset[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    key_watchers: set[Callable[[], None]] = field(default_factory=set)
    trace: Trace | None = None
    throttling: Throttling | None = None
    capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.faults = Faults(self.clock, seed=7)
        self.rules = [Key("root", ALL_RIGHTS, ROOT_KEY), Key("sender", frozenset({SEND}), SEND_KEY)]
        self.rules.append(Key("both", frozenset({SEND, LISTEN}), "first", "second"))

    def signers(self, path: str) -> list[Signer]:
        return [Signer(rule) for rule in self.rules]

    def entity_exists(self, path: str) -> bool:
        return path.lower() not in self.missing


class Handler:
    """A link's end in the test: notes everything, accepts what is sent, delivers from `stock` while there is credit."""

    def __init__(self, link: Link, stock: deque[bytes]) -> None:
        self.link = link
        self.stock = stock
        self.deliveries: list[IncomingDelivery] = []
        self.dispositions: list[tuple[int, Any, bool]] = []
        self.detached: list[tuple[bool, bool]] = []
        self.settled_sends = False
        self.answer: Callable[[IncomingDelivery], Described | None] = lambda delivery: accepted()

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        self.deliveries.append(delivery)
        action = self.link.fault("send")
        if action is not None and action.fails:
            self.link.disposition(delivery, rejected(action.condition, action.description))
            return
        state = None if action is not None else self.answer(delivery)
        if state is not None:
            self.link.disposition(delivery, state)

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        self.dispositions.append((delivery_id, state, settled))
        if not settled:
            self.link.settle(delivery_id, state or accepted())

    def on_credit(self) -> None:
        while self.stock and self.link.credit > 0:
            payload = self.stock.popleft()
            self.link.send(payload, len(self.stock).to_bytes(16), settled=self.settled_sends)
        if self.link.drain:
            self.link.drained()

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self.detached.append((closed, connection_lost))


class Service:
    """Takes every link, unless told what to do with an address."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self.stock: dict[str, deque[bytes]] = defaultdict(deque)
        self.special: dict[str, Callable[[Link], None]] = {}

    def attach(self, link: Link) -> Handler:
        handler = Handler(link, self.stock[link.address.lower()])
        self.handlers.append(handler)
        special = self.special.get(link.address)
        if special is not None:
            special(link)
        else:
            link.open(max_message_size=200_000)
        return handler


@pytest.fixture
def namespace() -> PlainNamespace:
    return PlainNamespace()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path / "tls")


@asynccontextmanager
async def open_port(namespace: PlainNamespace, service: AttachService, tls: TlsFiles) -> AsyncIterator[Port]:
    """A port in front of the service, with an HTTP side that says hello."""

    async def make_runner(front: Middleware) -> web.AppRunner:
        async def hello(request: web.Request) -> web.Response:
            return web.Response(text=f"{request.scheme} {request.path}")

        app = web.Application(middlewares=[front])
        app.router.add_route("*", "/{path:.*}", hello)
        return web.AppRunner(app)

    opened = Port(namespace, service, tls, make_runner)
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def port(namespace: PlainNamespace, service: Service, tls: TlsFiles) -> AsyncIterator[Port]:
    async with open_port(namespace, service, tls) as opened:
        yield opened


@pytest.fixture
async def connect(port: Port, tls: TlsFiles, dialect: Dialect) -> AsyncIterator[Any]:
    """Opens connections to the port, with TLS if asked to."""
    clients: list[Client] = []

    async def open_client(*, secure: bool = False) -> Client:
        context = ssl.create_default_context(cafile=tls.ca_path) if secure else None
        name = "localhost" if secure else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=context, server_hostname=name)
        clients.append(Client(reader, writer, dialect))
        return clients[-1]

    yield open_client
    for client in clients:
        client.writer.close()


@pytest.fixture
def root_key() -> str:
    return ROOT_KEY
