"""A client that speaks frames, nothing more, in the dialect of one library (`dialects`)."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sbpair.amqp.encoding import encode
from sbpair.amqp.frames import read_header
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DISPOSITION,
    FLOW,
    MODIFIED,
    OPEN,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
    read_performative,
)
from sbpair.amqp.sections import Section, build, read, scan
from sbpair.amqp.types import Described, Symbol, Uint, Ulong, Ushort
from sbpair.engine.auth import make_sas_token
from tests.engine.dialects import AZURE_SERVICEBUS, Dialect
from tests.waiting import LIMIT_SECONDS

"""For what has to come, on a machine that has much else to do."""


async def seen(condition: Callable[[], object]) -> None:
    """Until the emulator, in the same loop, has got that far; TimeoutError if it never does."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


def modified(delivery_failed: bool | None = None, undeliverable_here: bool | None = None) -> Described:
    """The message goes back changed: failed once more (abandon), or not deliverable here (defer)."""
    return Described(Ulong(MODIFIED), [delivery_failed, undeliverable_here, None])


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
    """Frames over a stream, in one library's dialect, nothing more."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialect: Dialect = AZURE_SERVICEBUS
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.dialect = dialect
        self.empty_frames = 0
        self.cbs_condition: object = None
        self._held: bytearray | None = None
        self._channel = 0

    @contextmanager
    def on_channel(self, channel: int) -> Iterator[None]:
        """What is sent in the block goes out on the session with this channel."""
        before, self._channel = self._channel, channel
        try:
            yield
        finally:
            self._channel = before

    def raw(self, data: bytes) -> None:
        if self._held is None:
            self.writer.write(data)
        else:
            self._held += data

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is sent in the block goes out in one piece at its end."""
        self._held = held = bytearray()
        try:
            yield
        finally:
            self._held = None
            self.writer.write(bytes(held))

    def send(
        self, code: int, fields: list[Any], payload: bytes = b"", channel: int | None = None, kind: int = 0
    ) -> None:
        body = encode(Described(Ulong(code), self.dialect.written(code, fields))) + payload
        self.raw(
            (len(body) + 8).to_bytes(4)
            + bytes((2, kind))
            + (self._channel if channel is None else channel).to_bytes(2)
            + body
        )

    async def header(self) -> bytes:
        return await self.reader.readexactly(8)

    async def next(self) -> Frame:
        """The next frame that is not empty."""
        while True:
            head = await asyncio.wait_for(self.reader.readexactly(8), LIMIT_SECONDS)
            size, start, _, channel = read_header(head, 0, 1 << 30)
            body = (await self.reader.readexactly(size - 8))[start - 8 :]
            if not body:
                self.empty_frames += 1
                continue
            code, fields, position = read_performative(body)
            self.dialect.check_read(code, fields)
            return Frame(code, fields, body[position:], channel)

    async def until(self, *codes: int) -> Frame:
        """The next frame of these kinds; others are passed over."""
        while True:
            frame = await self.next()
            if frame.code in codes:
                return frame

    async def login(self, mechanism: str | None = None, response: bytes | None = None) -> Frame:
        self.raw(b"AMQP\x03\x01\x00\x00")
        assert await self.header() == b"AMQP\x03\x01\x00\x00"
        mechanisms = await self.next()
        chosen = mechanism or self.dialect.mechanism
        assert chosen in mechanisms.field(0).items
        self.send(SASL_INIT, [Symbol(chosen), response], kind=1)
        return await self.next()

    async def open(self, *, max_frame_size: int | None = None, idle_ms: int | None = None) -> Frame:
        self.raw(b"AMQP\x00\x01\x00\x00")
        assert await self.header() == b"AMQP\x00\x01\x00\x00"
        frame_size = None if max_frame_size is None else Uint(max_frame_size)
        self.send(OPEN, ["test", "localhost", frame_size, Ushort(100), None if idle_ms is None else Uint(idle_ms)])
        return await self.next()

    async def begin(self, *, window: int | None = None, channel: int = 0) -> Frame:
        self.send(BEGIN, [None, Uint(0), self._window(window), Uint(2048), Uint(255)], channel=channel)
        return await self.next()

    def _window(self, asked_for: int | None) -> Uint:
        return Uint(self.dialect.window if asked_for is None else asked_for)

    async def session(self, *, max_frame_size: int | None = None, window: int | None = None) -> None:
        """All that comes before the first link."""
        await self.login()
        await self.open(max_frame_size=max_frame_size)
        await self.begin(window=window)

    def attach(self, handle: int, address: str | None, *, sends: bool, target: Any = None, **source: Any) -> None:
        named = None if address is None else self.dialect.address(address)
        ours = Described(Ulong(SOURCE), [None if sends else named, *[None] * 6, *source.values()])
        theirs = target or Described(Ulong(TARGET), [named if sends else f"reply-{handle}"])
        count = Uint(0) if sends else None
        mode = self.dialect.send_modes if sends else self.dialect.receive_modes
        unsaid = [None] * 3
        properties = self.dialect.link_properties or None
        fields = [
            f"link-{handle}",
            Uint(handle),
            not sends,
            *mode,
            ours,
            theirs,
            None,
            None,
            count,
            *unsaid,
            properties,
        ]
        self.send(ATTACH, fields)

    async def sender(self, address: str, handle: int = 0) -> Frame:
        self.attach(handle, address, sends=True)
        reply = await self.until(ATTACH)
        await self.until(FLOW)
        return reply

    async def receiver(self, address: str, handle: int = 1, credit: int = 0) -> Frame:
        self.attach(handle, address, sends=False)
        early = self.dialect.credit_before_attach_is_answered
        if credit and early:
            self.credit(credit, handle)
        reply = await self.until(ATTACH)
        if credit and not early:
            self.credit(credit, handle)
        return reply

    def credit(
        self,
        credit: int,
        handle: int = 1,
        *,
        count: int = 0,
        window: int | None = None,
        next_in: int = 1,
        drain: bool = False,
    ) -> None:
        link = [Uint(handle), Uint(count), Uint(credit), None, drain]
        self.send(FLOW, [Uint(next_in), self._window(window), Uint(0), Uint(2048), *link])

    def transfer(
        self, delivery_id: int, payload: bytes, handle: int = 0, *, settled: bool = False, more: bool = False
    ) -> None:
        tag = delivery_id.to_bytes(4)
        self.send(TRANSFER, [Uint(handle), Uint(delivery_id), tag, Uint(0), settled, more], payload)

    def settle(self, first: int, last: int | None, state: Described, *, settled: bool = False) -> None:
        self.send(DISPOSITION, [True, Uint(first), None if last is None else Uint(last), settled, state])

    async def closed(self) -> bytes:
        """What comes until the emulator closes."""
        return await asyncio.wait_for(self.reader.read(), LIMIT_SECONDS)

    async def put_token(self, resource: str, key_name: str, key: str, expires_at: float = 2e9) -> tuple[int, str]:
        """A token over `$cbs` on handles 20 and 21; gives (status, description). An error has its condition, too."""
        token = make_sas_token(resource, key_name, key, expires_at)
        await self.sender(self.dialect.cbs_address, 20)
        await self.receiver(self.dialect.cbs_address, 21, credit=5)
        request = build(
            properties=["id-1", None, None, None, "reply-21"],
            application_properties={"operation": "put-token", "name": resource, "type": "jwt"},
            value=token,
        )
        self.transfer(0, request, 20)
        answer = await self.until(TRANSFER)
        statuses = read(answer.payload, scan(answer.payload), Section.APPLICATION_PROPERTIES)
        assert read(answer.payload, scan(answer.payload), Section.PROPERTIES)[5] == "id-1"
        self.cbs_condition = statuses.get("errorCondition")
        return statuses["status-code"], statuses["status-description"]
