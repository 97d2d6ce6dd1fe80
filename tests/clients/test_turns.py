"""Calls that overlap on one sender take turns, each within its own time."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusMessage, exceptions

import sbpair.aio
from sbpair import ServiceBusClient
from sbpair.azure.wire import Feature, lacks
from sbpair.clients.shared import LateTurnError
from sbpair.engine.faults import parse_text
from tests.clients.conftest import FAST, World, wait_until

HANGS_SECONDS = 4.0
"""Time of the call that all others wait for: three quarters of it are the primary's."""


def silence(world: World) -> None:
    world.emulator.faults("contoso").add(parse_text("silent"))


def arguments(world: World) -> dict[str, object]:
    return {"pair": world.pair(interval=60.0), **FAST}


def test_threads_that_wait_too_long_say_so_and_nothing_about_the_primary(world: World) -> None:
    client = ServiceBusClient.from_connection_string(world.connection_string(), **arguments(world))  # type: ignore[arg-type]
    with client, client.get_queue_sender("orders") as sender, ThreadPoolExecutor(1) as pool:
        sender.send_messages(ServiceBusMessage("before"))
        holds, over = threading.Event(), threading.Event()

        def hold() -> None:
            with sender._turn:
                holds.set()
                over.wait()

        holding = pool.submit(hold)
        holds.wait()
        with pytest.raises(LateTurnError, match="Nothing was asked"):
            sender.send_messages(ServiceBusMessage("late"), timeout=1)
        with pytest.raises(LateTurnError):
            sender.cancel_scheduled_messages(7, timeout=1)
        over.set()
        holding.result()
        assert client.state().entities == ()
        sender.send_messages(ServiceBusMessage("after"))
    assert world.bodies("orders") == ["before", "after"]


def test_a_cancellation_in_a_thread_spends_its_time_once(world: World) -> None:
    client = ServiceBusClient.from_connection_string(world.connection_string(), **arguments(world))  # type: ignore[arg-type]
    with client, client.get_queue_sender("orders") as sender, ThreadPoolExecutor(1) as pool:
        sender.send_messages(ServiceBusMessage("before"))
        silence(world)
        holds = threading.Event()

        def hold() -> None:
            with sender._turn:
                holds.set()
                time.sleep(0.75 * HANGS_SECONDS)

        holding = pool.submit(hold)
        holds.wait()
        started = time.monotonic()
        with pytest.raises(exceptions.ServiceBusError):
            sender.cancel_scheduled_messages(7, timeout=HANGS_SECONDS)
        assert time.monotonic() - started < 1.5 * HANGS_SECONDS, "it waited for its turn, and then as long again"
        holding.result()
        world.emulator.faults("contoso").clear()


async def test_coroutines_that_wait_too_long_say_so_and_nothing_about_the_primary(world: World) -> None:
    client = sbpair.aio.ServiceBusClient.from_connection_string(
        world.connection_string(),
        **arguments(world),  # type: ignore[arg-type]
    )
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        assert sender._turn.take_if_free()
        with pytest.raises(LateTurnError, match="Nothing was asked"):
            await sender.send_messages(ServiceBusMessage("late"), timeout=1)
        with pytest.raises(LateTurnError):
            await sender.cancel_scheduled_messages(7, timeout=1)
        sender._turn.release()
        assert client.state().entities == ()
        await sender.send_messages(ServiceBusMessage("after"))
    assert await asyncio.to_thread(world.bodies, "orders") == ["before", "after"]


@pytest.mark.skipif(lacks(Feature.TIME_LIMITS) is not None, reason=str(lacks(Feature.TIME_LIMITS)))
async def test_a_cancellation_of_scheduled_messages_spends_its_time_once(world: World) -> None:
    client = sbpair.aio.ServiceBusClient.from_connection_string(
        world.connection_string(),
        **arguments(world),  # type: ignore[arg-type]
    )
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        silence(world)
        first = asyncio.create_task(sender.send_messages(ServiceBusMessage("first"), timeout=HANGS_SECONDS))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        with pytest.raises(exceptions.ServiceBusError):
            await sender.cancel_scheduled_messages(7, timeout=1.5 * HANGS_SECONDS)
        assert time.monotonic() - started < 2 * HANGS_SECONDS, "it waited for its turn, and then as long again"
        await asyncio.wait({first})
        assert isinstance(first.exception(), exceptions.ServiceBusError)
        world.emulator.faults("contoso").clear()
        await sender.send_messages(ServiceBusMessage("after"))


@pytest.mark.parametrize("retries", [0, 1])
def test_a_send_that_a_close_breaks_off_says_nothing_about_the_primary(world: World, retries: int) -> None:
    """It is not diverted, and leaves no connection open, even if the SDK's retries have opened one."""
    more = {"pair": world.pair(), "on_event": world.events.append, "retry_total": retries, "retry_backoff_factor": 0.01}
    client = ServiceBusClient.from_connection_string(world.connection_string(), **more)  # type: ignore[arg-type]
    with client, client.get_queue_sender("orders") as sender, ThreadPoolExecutor(1) as pool:
        sender.send_messages(ServiceBusMessage("before"))
        world.emulator.faults("contoso").add(parse_text("delay:rtt=2"))
        sending = pool.submit(sender.send_messages, ServiceBusMessage("broken off"))
        wait_until(lambda: "broken off" in world.bodies("orders"))
        client.close()
        error = sending.exception()
        assert sender._handler is None
    assert world.events == []
    assert world.backlog() == []
    assert "shutdown" in str(error) if not retries else error is None


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_send_of_a_task_that_a_close_breaks_off_says_nothing_about_the_primary(
    world: World, retries: int
) -> None:
    more = {"pair": world.pair(), "on_event": world.events.append, "retry_total": retries, "retry_backoff_factor": 0.01}
    client = sbpair.aio.ServiceBusClient.from_connection_string(world.connection_string(), **more)  # type: ignore[arg-type]
    async with client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        world.emulator.faults("contoso").add(parse_text("delay:rtt=2"))
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("broken off")))
        await asyncio.to_thread(wait_until, lambda: "broken off" in world.bodies("orders"))
        await client.close()
        await asyncio.wait({sending})
        assert sender._handler is None
    assert world.events == []
    assert await asyncio.to_thread(world.backlog) == []
