"""A namespace with `--data-dir` whose disk is full: everybody is answered, nothing that was confirmed is lost, and it goes
on by itself when there is room again. The disk is full for a real process: the system limits the size of its files."""

import asyncio
import contextlib
import resource
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from sbpair.emulator import Emulator
from sbpair.emulator.auth import ROOT_KEY_NAME, make_sas_token
from sbpair.emulator.errors import EmulatorError

PROGRAM = """
import asyncio, logging, sys
from pathlib import Path
from sbpair.emulator import Emulator

async def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    async with Emulator(["primary"], data_dir=sys.argv[1]) as running:
        namespace = running.namespace("primary")
        if namespace.get_queue("orders") is None:
            namespace.create_queue("orders")
        print(running.connection_string("primary"), running.endpoint("primary"), running.ca_path, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
LARGE = 200_000


class Process:
    """An emulator in a process of its own, on a disk that can be filled."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.log = log
        self.folder = folder
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        self.connection_string, self.endpoint, self.ca_file = self._process.stdout.readline().split()

    def fill_disk(self) -> None:
        """No file of the process can grow beyond what the largest has now."""
        largest = max(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        self._limit(largest)

    def make_room(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Process] = []

    def begin() -> Process:
        started.append(Process(tmp_path / "data", tmp_path / "log"))
        return started[-1]

    yield begin
    for one in started:
        one.close()


async def send(process: Process, body: str, *, retries: int = 0) -> str | None:
    """Send one message; the condition that it was refused with, None if it was accepted."""
    client = ServiceBusClient.from_connection_string(process.connection_string, retry_total=retries)
    async with client, client.get_queue_sender("orders") as sender:
        try:
            await sender.send_messages(ServiceBusMessage(body))
        except ServiceBusError as error:
            return str(error)
    return None


async def received(process: Process) -> list[str]:
    client = ServiceBusClient.from_connection_string(process.connection_string)
    bodies: list[str] = []
    async with client, client.get_queue_receiver("orders", max_wait_time=3) as receiver:
        async for message in receiver:
            bodies.append(str(message))
            await receiver.complete_message(message)
    return bodies


async def make_queue(process: Process, name: str) -> tuple[int, str, str | None]:
    key = process.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    base = f"https://{process.endpoint}"
    token = make_sas_token(f"{base}/", ROOT_KEY_NAME, key, time.time() + 3600)
    trusting = ssl.create_default_context(cafile=process.ca_file)
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.put(
            f"{base}/{name}?api-version=2021-05", data=body, headers={"Authorization": token}, ssl=trusting
        ) as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Retry-After")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the file size of another process")
async def test_a_full_disk_is_answered_and_loses_nothing(start) -> None:
    process = start()
    assert await send(process, "before") is None
    process.fill_disk()
    first = await send(process, "x" * LARGE)
    assert first is not None
    assert "timeout" in first  # nobody knows: it is tried again as soon as there is room
    second = await send(process, "y" * LARGE)
    assert second is not None
    assert "Nothing was changed" in second
    status, text, retry_after = await make_queue(process, "more")
    assert (status, retry_after) == (503, "2")
    assert "cannot write to its disk" in text
    process.make_room()
    # It goes on by itself: the client's own retries get a message through.
    async with asyncio.timeout(120):
        while await send(process, "after") is not None:
            continue
    assert (await make_queue(process, "more"))[0] == 201
    process.kill()
    told = process.log.read_text()
    assert told.count("cannot be written") == 1, told
    assert "Traceback" not in told
    again = start()
    assert await received(again) == ["before", "x" * LARGE, "after"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the file size of another process")
async def test_what_is_settled_on_a_full_disk_stays_locked_and_comes_again(start) -> None:
    process = start()
    assert await send(process, "one") is None
    client = ServiceBusClient.from_connection_string(process.connection_string, retry_total=0)
    async with client, client.get_queue_receiver("orders", max_wait_time=30) as receiver:
        (message,) = await receiver.receive_messages()
        process.fill_disk()
        assert await send(process, "x" * LARGE) is not None
        with pytest.raises(ServiceBusError):
            await receiver.complete_message(message)
    process.kill()
    assert "one" in await received(start())


async def test_a_store_that_is_damaged_is_named(tmp_path: Path) -> None:
    async with Emulator(["primary"], data_dir=tmp_path) as running:
        running.namespace("primary").create_queue("orders")
    file = tmp_path / "primary" / "namespace.sqlite3"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE entities SET body = 'nonsense'")
    with pytest.raises(EmulatorError, match=r"namespace\.sqlite3' is damaged"):
        async with Emulator(["primary"], data_dir=tmp_path):
            pytest.fail("a damaged store was opened")
