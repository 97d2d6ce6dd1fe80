"""AMQP over WebSocket (the AMQP WebSocket binding): binary messages are pieces of the byte stream, cut anywhere."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from sbpair.engine.wire import ServerWire

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse, web

    from sbpair.engine.port import Port

PATH: Final = "/$servicebus/websocket"
PROTOCOLS: Final = ("AMQPWSB10", "amqp")
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
HIGH_WATER_BYTES: Final = 1024 * 1024


class SocketPipe:
    """The bytes of a connection over a WebSocket, whichever side has asked for that."""

    def __init__(
        self,
        socket: "web.WebSocketResponse | ClientWebSocketResponse",
        full: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        """`full`: called when the other end takes too little; `drained`: when it takes bytes again."""
        self._socket = socket
        self._full, self._drained = full, drained
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_full = False
        self.unsent_bytes = 0
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def reading(self) -> AsyncIterator[bytes]:
        """What comes, until the other end is gone."""
        from aiohttp import WSMsgType

        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                yield message.data
            await self._may_read.wait()

    async def writing(self) -> None:
        """Send what is written, until `end`."""
        while (data := await self._outgoing.get()) is not None:
            await self._socket.send_bytes(data)
            self.unsent_bytes -= len(data)
            if self._is_full and self.unsent_bytes < HIGH_WATER_BYTES // 2:
                self._is_full = False
                self._drained()

    def send(self, data: bytes) -> None:
        self.unsent_bytes += len(data)
        self._outgoing.put_nowait(data)
        if self.unsent_bytes > HIGH_WATER_BYTES and not self._is_full:
            self._is_full = True
            self._full()

    def end(self) -> None:
        self._outgoing.put_nowait(None)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()


class SocketCarrier(SocketPipe):
    """One client's WebSocket and the wire over it."""

    def __init__(self, owner: "Port", socket: "web.WebSocketResponse") -> None:
        super().__init__(socket, lambda: self.wire.pause(), lambda: self.wire.resume())
        self._owner = owner
        self._done = asyncio.Event()
        self.wire = ServerWire(owner, self)

    async def run(self) -> None:
        """Carry bytes until one side is gone."""
        self._owner.adopt(self.wire)
        tasks = [asyncio.create_task(work) for work in (self._read(), self.writing(), self._done.wait())]
        try:
            # What the rest of the house has for this is not shared with the embedded namespace.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._owner.release(self.wire)
            self.wire.ended()

    async def _read(self) -> None:
        async for data in self.reading():
            self.wire.incoming(data)

    def cut(self) -> None:
        self._done.set()


async def serve(request: "web.Request", owner: "Port") -> "web.StreamResponse":
    """Answer the upgrade and stay until the connection ends."""
    from aiohttp import web

    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text="This address supports only AMQP over WebSocket.")
    await socket.prepare(request)
    carrier = SocketCarrier(owner, socket)
    await carrier.run()
    await socket.close()
    return socket
