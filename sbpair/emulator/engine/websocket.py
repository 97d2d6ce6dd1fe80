"""AMQP over WebSocket (the AMQP WebSocket binding): binary messages are pieces of the byte stream, cut anywhere."""

import asyncio
from typing import TYPE_CHECKING, Final

from sbpair.emulator.engine.wire import Wire, WireOwner
from sbpair.emulator.limits import MAX_HELD_BYTES

if TYPE_CHECKING:
    from aiohttp import web

PATH: Final = "/$servicebus/websocket"
PROTOCOLS: Final = ("AMQPWSB10", "amqp")
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_HIGH_WATER_BYTES: Final = 1024 * 1024


class SocketCarrier:
    """One client's WebSocket and the wire over it."""

    def __init__(self, owner: WireOwner, socket: "web.WebSocketResponse") -> None:
        self._owner = owner
        self._socket = socket
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._done = asyncio.Event()
        self.wire = Wire(owner.namespace, owner.service, send=self._put, end=self._end, cut=self._cut)

    async def run(self) -> None:
        """Carry bytes until one side is gone."""
        self._owner.adopt(self.wire)
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._done.wait())]
        try:
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

    async def _write(self) -> None:
        while (data := await self._outgoing.get()) is not None:
            await self._socket.send_bytes(data)
            self._waiting_bytes -= len(data)
            if self.wire.connection.write_paused and self._waiting_bytes < _HIGH_WATER_BYTES // 2:
                self.wire.connection.resume()

    def _put(self, data: bytes) -> None:
        if self._waiting_bytes > MAX_HELD_BYTES:
            self.wire.connection.abort()
            return
        self._waiting_bytes += len(data)
        self._outgoing.put_nowait(data)
        if self._waiting_bytes > _HIGH_WATER_BYTES:
            self.wire.connection.pause()

    def _end(self) -> None:
        self._outgoing.put_nowait(None)

    def _cut(self) -> None:
        self._done.set()


async def serve(request: "web.Request", owner: WireOwner) -> "web.StreamResponse":
    """Answer the upgrade and stay until the connection ends."""
    from aiohttp import web

    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_MAX_MESSAGE_BYTES, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text="This address speaks AMQP over WebSocket only.")
    await socket.prepare(request)
    carrier = SocketCarrier(owner, socket)
    await carrier.run()
    await socket.close()
    return socket
