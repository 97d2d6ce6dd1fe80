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

from sbpair.amqp.sections import Section, build, read, scan
from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong, Ushort
from sbpair.emulator.auth import ALL_RIGHTS, LISTEN, SEND, make_sas_token
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.faults import Faults
from sbpair.emulator.frames import read_header
from sbpair.emulator.link import AttachService, IncomingDelivery, Link
from sbpair.emulator.performatives import (
    ATTACH,
    BEGIN,
    DISPOSITION,
    FLOW,
    OPEN,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
    accepted,
    perform,
    read_performative,
    rejected,
)
from sbpair.emulator.port import Port
from sbpair.emulator.tls import TlsFiles


@dataclass(frozen=True)
class Key:
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

    def __post_init__(self) -> None:
        self.faults = Faults(self.clock, seed=7)
        self.rules = {"root": Key(ALL_RIGHTS, ROOT_KEY), "sender": Key(frozenset({SEND}), SEND_KEY)}
        self.rules["both"] = Key(frozenset({SEND, LISTEN}), "first", "second")

    def auth_rules_for(self, path: str) -> dict[str, Key]:
        return self.rules

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


@dataclass(frozen=True)
class Frame:
    code: int
    fields: list[Any]
    payload: bytes
    channel: int

    def field(self, index: int) -> Any:
        return self.fields[index] if index < len(self.fields) else None

    @property
    def error(self) -> tuple[str, str]:
        found = next(value for value in self.fields if isinstance(value, Described) and value.descriptor == 0x1D)
        return found.value[0], found.value[1]


class Client:
    """Frames over a stream, nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.empty_frames = 0

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, code: int, fields: list[Any], payload: bytes = b"", channel: int = 0, kind: int = 0) -> None:
        body = perform(code, fields) + payload
        self.raw((len(body) + 8).to_bytes(4) + bytes((2, kind)) + channel.to_bytes(2) + body)

    async def header(self) -> bytes:
        return await self.reader.readexactly(8)

    async def next(self) -> Frame:
        """The next frame that is not empty."""
        while True:
            head = await asyncio.wait_for(self.reader.readexactly(8), 5)
            size, start, _, channel = read_header(head, 0, 1 << 30)
            body = (await self.reader.readexactly(size - 8))[start - 8 :]
            if not body:
                self.empty_frames += 1
                continue
            code, fields, position = read_performative(body)
            return Frame(code, fields, body[position:], channel)

    async def until(self, *codes: int) -> Frame:
        """The next frame of these kinds; others are passed over."""
        while True:
            frame = await self.next()
            if frame.code in codes:
                return frame

    async def login(self, mechanism: str = "ANONYMOUS", response: bytes | None = None) -> Frame:
        self.raw(b"AMQP\x03\x01\x00\x00")
        assert await self.header() == b"AMQP\x03\x01\x00\x00"
        mechanisms = await self.next()
        assert "ANONYMOUS" in mechanisms.field(0).items
        self.send(SASL_INIT, [Symbol(mechanism), response], kind=1)
        return await self.next()

    async def open(self, *, max_frame_size: int | None = None, idle_ms: int | None = None) -> Frame:
        self.raw(b"AMQP\x00\x01\x00\x00")
        assert await self.header() == b"AMQP\x00\x01\x00\x00"
        frame_size = None if max_frame_size is None else Uint(max_frame_size)
        self.send(OPEN, ["test", "localhost", frame_size, Ushort(100), None if idle_ms is None else Uint(idle_ms)])
        return await self.next()

    async def begin(self, *, window: int = 2048, channel: int = 0) -> Frame:
        self.send(BEGIN, [None, Uint(0), Uint(window), Uint(2048), Uint(255)], channel=channel)
        return await self.next()

    async def session(self, *, max_frame_size: int | None = None, window: int = 2048) -> None:
        """All that comes before the first link."""
        await self.login()
        await self.open(max_frame_size=max_frame_size)
        await self.begin(window=window)

    def attach(self, handle: int, address: str | None, *, sends: bool, target: Any = None, **source: Any) -> None:
        ours = Described(Ulong(SOURCE), [None if sends else address, *[None] * 6, *source.values()])
        theirs = target or Described(Ulong(TARGET), [address if sends else f"reply-{handle}"])
        count = Uint(0) if sends else None
        mode = [Ubyte(0), Ubyte(0 if sends else 1)]
        self.send(ATTACH, [f"link-{handle}", Uint(handle), not sends, *mode, ours, theirs, None, None, count])

    async def sender(self, address: str, handle: int = 0) -> Frame:
        self.attach(handle, address, sends=True)
        reply = await self.until(ATTACH)
        await self.until(FLOW)
        return reply

    async def receiver(self, address: str, handle: int = 1, credit: int = 0) -> Frame:
        self.attach(handle, address, sends=False)
        reply = await self.until(ATTACH)
        if credit:
            self.credit(credit, handle)
        return reply

    def credit(
        self, credit: int, handle: int = 1, *, count: int = 0, window: int = 2048, next_in: int = 1, drain: bool = False
    ) -> None:
        link = [Uint(handle), Uint(count), Uint(credit), None, drain]
        self.send(FLOW, [Uint(next_in), Uint(window), Uint(0), Uint(2048), *link])

    def transfer(
        self, delivery_id: int, payload: bytes, handle: int = 0, *, settled: bool = False, more: bool = False
    ) -> None:
        tag = delivery_id.to_bytes(4)
        self.send(TRANSFER, [Uint(handle), Uint(delivery_id), tag, Uint(0), settled, more], payload)

    def settle(self, first: int, last: int | None, state: Described, *, settled: bool = False) -> None:
        self.send(DISPOSITION, [True, Uint(first), None if last is None else Uint(last), settled, state])

    async def closed(self) -> bytes:
        """What comes until the emulator closes."""
        return await asyncio.wait_for(self.reader.read(), 5)

    async def put_token(
        self, resource: str, key_name: str = "root", key: str = ROOT_KEY, expires_at: float = 2e9
    ) -> tuple[int, str]:
        """A token over `$cbs` on handles 20 and 21; gives (status, description)."""
        token = make_sas_token(resource, key_name, key, expires_at)
        await self.sender("$cbs", 20)
        await self.receiver("$cbs", 21, credit=5)
        request = build(
            properties=["id-1", None, None, None, "reply-21"],
            application_properties={"operation": "put-token", "name": resource, "type": "jwt"},
            value=token,
        )
        self.transfer(0, request, 20)
        answer = await self.until(TRANSFER)
        statuses = read(answer.payload, scan(answer.payload), Section.APPLICATION_PROPERTIES)
        assert read(answer.payload, scan(answer.payload), Section.PROPERTIES)[5] == "id-1"
        return statuses["status-code"], statuses["status-description"]


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

    def make_app() -> web.Application:
        async def hello(request: web.Request) -> web.Response:
            return web.Response(text=f"{request.scheme} {request.path}")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", hello)
        return app

    opened = Port(namespace, service, tls, make_app)
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
async def connect(port: Port, tls: TlsFiles) -> AsyncIterator[Any]:
    """Opens connections to the port, with TLS if asked to."""
    clients: list[Client] = []

    async def open_client(*, secure: bool = False) -> Client:
        context = ssl.create_default_context(cafile=tls.ca_path) if secure else None
        name = "localhost" if secure else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=context, server_hostname=name)
        clients.append(Client(reader, writer))
        return clients[-1]

    yield open_client
    for client in clients:
        client.writer.close()


@pytest.fixture
def root_key() -> str:
    return ROOT_KEY
