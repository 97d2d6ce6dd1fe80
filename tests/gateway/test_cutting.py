"""A line to the primary that is cut in the middle of a frame, again and again."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio

from sbpair.core.access import Secret, host_of
from tests.clients.conftest import World
from tests.gateway.conftest import gateway_of

CUTS = (7, 300, 1500, 4001, 9000, 20_011)
"""After so many bytes of the gateway's, in turn; none of them is the end of a frame for long."""


class CuttingProxy:
    """Passes bytes on, and cuts each connection after the next number of `CUTS`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._cuts = itertools.cycle(CUTS)
        self.cut = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._cuts)
        there, back = await asyncio.open_connection(*self._target)

        async def answers() -> None:
            while data := await there.read(65536):
                writer.write(data)

        answering = asyncio.create_task(answers())
        try:
            while left > 0 and (data := await reader.read(min(left, 65536))):
                back.write(data)
                left -= len(data)
            self.cut += left <= 0
        finally:
            answering.cancel()
            back.transport.abort()
            writer.transport.abort()


async def test_cut_frames_lose_nothing(world: World, tmp_path: Path) -> None:
    pair = world.pair()
    text = world.connection_string()
    proxy = CuttingProxy(host_of(text))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cut = replace(pair.primary, host=host, connection_string=Secret(text.replace(host_of(text), host)))
    accepted: list[str] = []
    with gateway_of(replace(pair, primary=cut), folder=tmp_path) as gateway:
        client = sdk_aio.ServiceBusClient.from_connection_string(gateway.text())
        async with client, client.get_queue_sender("orders") as sender:
            for number in range(60):
                await sender.send_messages(sdk.ServiceBusMessage(f"{number}", application_properties={"x": "y" * 400}))
                accepted.append(f"{number}")
    server.close()
    assert proxy.cut > 0
    await asyncio.to_thread(world.drain)
    assert set(await asyncio.to_thread(world.bodies, "orders")) == set(accepted)
