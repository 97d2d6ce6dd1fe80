"""A namespace with `--data-dir` whose disk is full: everybody is answered, nothing that was confirmed is lost, and it
goes on by itself when there is room again. The disk of a real process is filled: the system limits its files' size."""

import asyncio
import contextlib
import sqlite3
import ssl
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
from sbpair.engine.auth import ROOT_KEY_NAME, make_sas_token
from sbpair.engine.errors import EmulatorError
from tests.emulator.process import Process
from tests.waiting import LIMIT_SECONDS

LARGE = 200_000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Process] = []

    def begin() -> Process:
        started.append(Process(tmp_path / "log", tmp_path / "data"))
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
    base = f"https://{process.endpoint}"
    token = make_sas_token(f"{base}/", ROOT_KEY_NAME, process.root_key, time.time() + 3600)
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


@pytest.mark.law("disk")
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
    async with asyncio.timeout(LIMIT_SECONDS):
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
