"""AMQP over WebSocket (the AMQP WebSocket binding): binary messages are pieces of the byte stream, cut anywhere."""

import asyncio
from typing import TYPE_CHECKING, Final

from sbpair.engine.wire import Wire

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.engine.port import Port

PATH: Final = "/$servicebus/websocket"
PROTOCOLS: Final = ("AMQPWSB10", "amqp")
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_HIGH_WATER_BYTES: Final = 1024 * 1024


class SocketCarrier:
    """One client's WebSocket and the wire over it."""

    def __init__(self, owner: "Port", socket: "web.WebSocketResponse") -> None:
        self._owner = owner
        self._socket = socket
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.unsent_bytes = 0
        self._done = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.wire = Wire(owner, self)

    async def run(self) -> None:
        """Carry bytes until one side is gone."""
        self._owner.adopt(self.wire)
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._done.wait())]
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
        from aiohttp import WSMsgType

        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                self.wire.incoming(message.data)
            await self._may_read.wait()

    async def _write(self) -> None:
        while (data := await self._outgoing.get()) is not None:
            await self._socket.send_bytes(data)
            self.unsent_bytes -= len(data)
            if self.wire.connection.write_paused and self.unsent_bytes < _HIGH_WATER_BYTES // 2:
                self.wire.resume()

    # -- what the wire calls

    def send(self, data: bytes) -> None:
        self.unsent_bytes += len(data)
        self._outgoing.put_nowait(data)
        if self.unsent_bytes > _HIGH_WATER_BYTES:
            self.wire.pause()

    def end(self) -> None:
        self._outgoing.put_nowait(None)

    def cut(self) -> None:
        self._done.set()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()


async def serve(request: "web.Request", owner: "Port") -> "web.StreamResponse":
    """Answer the upgrade and stay until the connection ends."""
    from aiohttp import web

    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_MAX_MESSAGE_BYTES, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text="This address supports only AMQP over WebSocket.")
    await socket.prepare(request)
    carrier = SocketCarrier(owner, socket)
    await carrier.run()
    await socket.close()
    return socket
