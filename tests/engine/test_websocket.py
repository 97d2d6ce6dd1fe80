"""Bytes over a WebSocket: what waits to be sent is bounded, whichever side has asked for the WebSocket."""

import asyncio

import aiohttp
from aiohttp import web

from sbpair.engine.websocket import HIGH_WATER_BYTES, SocketPipe

LIMIT_SECONDS = 60.0
PIECE = b"x" * 65536


async def test_a_peer_that_does_not_read_stops_the_writer_until_it_does() -> None:
    may_read, told, found = asyncio.Event(), asyncio.Queue[str](), bytearray()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await may_read.wait()
        async for message in socket:
            found.extend(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    try:
        async with (
            asyncio.timeout(LIMIT_SECONDS),
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://{host}:{port}/") as socket,
        ):
            pipe = SocketPipe(socket, lambda: told.put_nowait("full"), lambda: told.put_nowait("drained"))
            writing = asyncio.create_task(pipe.writing())
            sent = 0
            while told.empty():
                pipe.send(PIECE)
                sent += len(PIECE)
                await asyncio.sleep(0)
            assert await told.get() == "full"
            assert HIGH_WATER_BYTES < pipe.unsent_bytes <= HIGH_WATER_BYTES + len(PIECE)
            pipe.send(PIECE)
            assert told.empty(), "it is said once"
            may_read.set()
            assert await told.get() == "drained"
            pipe.end()
            await writing
            await socket.close()
            assert len(found) == sent + len(PIECE)
            assert pipe.unsent_bytes == 0
    finally:
        await runner.cleanup()
