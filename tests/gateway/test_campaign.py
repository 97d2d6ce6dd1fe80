"""The gateway is killed, ten times, while clients send: first beside a healthy primary, then while it is dark.

What a client was told to be accepted is at the primary or in the backlog, comes home, and sessions are in order.
"""

import asyncio
import socket
from pathlib import Path

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
from azure.servicebus.exceptions import ServiceBusError

from tests.clients.conftest import World
from tests.gateway.test_command import started

KILLS = 10
SESSIONS = "abcd"
KEYS = "keys: [{name: app, key: a-secret-that-outlives-kills, rights: [send]}]"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Senders:
    """One for each session; each sends its next number once the last one was accepted."""

    def __init__(self, text: str) -> None:
        self.accepted: dict[str, int] = dict.fromkeys(SESSIONS, 0)
        self._text = text
        self._stop = asyncio.Event()

    @property
    def total(self) -> int:
        return sum(self.accepted.values())

    async def run(self) -> None:
        await asyncio.gather(*map(self._send, SESSIONS))

    def stop(self) -> None:
        self._stop.set()

    async def _send(self, session: str) -> None:
        while not self._stop.is_set():
            try:
                client = sdk_aio.ServiceBusClient.from_connection_string(self._text, retry_total=0)
                async with client, client.get_queue_sender("orders") as sender:
                    while not self._stop.is_set():
                        body = f"{session}{self.accepted[session]}"
                        await sender.send_messages(sdk.ServiceBusMessage(body, session_id=session))
                        self.accepted[session] += 1
            except (ServiceBusError, OSError):
                await asyncio.sleep(0.05)


async def more(senders: Senders, by: int) -> None:
    goal = senders.total + by
    while senders.total < goal:
        await asyncio.sleep(0.01)


async def test_nothing_that_was_accepted_is_lost(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    listen = f"127.0.0.1:{free_port()}"
    text = f"Endpoint=sb://{listen};SharedAccessKeyName=app;SharedAccessKey=a-secret-that-outlives-kills"
    senders = Senders(f"{text};UseDevelopmentEmulator=true")
    sending = asyncio.create_task(senders.run())
    try:
        for kill in range(KILLS):
            if kill == KILLS // 2:
                await asyncio.to_thread(world.dark)
            starting = started(world, tmp_path, "--keys", str(file), listen=listen)
            process, _ = await asyncio.to_thread(starting.__enter__)
            await more(senders, 20)
            process.kill()
            await asyncio.to_thread(starting.__exit__, None, None, None)
    finally:
        senders.stop()
        await sending
    await asyncio.to_thread(world.light)
    home, waiting = await asyncio.to_thread(world.bodies, "orders"), await asyncio.to_thread(world.backlog)
    assert home
    assert waiting
    await asyncio.to_thread(world.drain)
    assert await asyncio.to_thread(world.backlog) == []
    found: dict[str, list[int]] = {session: [] for session in SESSIONS}
    for body in await asyncio.to_thread(world.bodies, "orders"):
        found[body[0]].append(int(body[1:]))
    for session, numbers in found.items():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
        assert set(range(senders.accepted[session])) <= set(numbers)
