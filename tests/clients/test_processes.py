"""Forks: what a gunicorn worker or a Celery pool does with a client that was made before."""

import asyncio
import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusMessage

from sbpair import ServiceBusClient, ServiceBusSender, aio
from sbpair.clients.failover import PROCESS
from sbpair.core.failover.machine import State
from tests.clients.conftest import FAST, World, own_threads, state_of, wait_until
from tests.forks import forked
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def messages(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def in_child(sender: ServiceBusSender, *bodies: str) -> int:
    """Send in a forked process; its exit code."""

    def send() -> None:
        for body in bodies:
            sender.send_messages(ServiceBusMessage(body), timeout=20)

    return forked(send)


def a_client(world: World, verify: str = "off") -> ServiceBusClient:
    pair = world.pair(verify=verify)
    return ServiceBusClient.from_connection_string(world.connection_string(), pair=pair, **FAST)  # type: ignore[arg-type]


def test_a_child_connects_by_itself_and_the_parents_connection_lives_on(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("parent 1"))
        assert in_child(sender, "child 1", "child 2") == 0
        sender.send_messages(ServiceBusMessage("parent 2"))
    assert world.bodies("orders") == ["parent 1", "child 1", "child 2", "parent 2"]


def test_a_child_does_not_wait_for_what_the_parents_threads_hold(world: World) -> None:
    """A thread that does not live in the child would hold it there for ever."""
    with a_client(world) as client, client.get_queue_sender("orders") as sender, ThreadPoolExecutor(1) as pool:
        sender.send_messages(ServiceBusMessage("parent"))
        holds, over = threading.Event(), threading.Event()
        under_way = PROCESS.background.begin(asyncio.sleep(LIMIT_SECONDS))

        def hold() -> None:
            with sender._turn, client._failover._lock, PROCESS._lock, PROCESS.background._lock:
                holds.set()
                over.wait()

        def divert_and_close() -> None:
            sender.send_messages(ServiceBusMessage("child 1"), timeout=20)
            client.force_failover("orders")
            sender.send_messages(ServiceBusMessage("child 2"), timeout=20)
            client.close()
            wait_until(lambda: own_threads() == [], seconds=20)

        holding = pool.submit(hold)
        holds.wait()
        try:
            assert forked(divert_and_close) == 0
        finally:
            over.set()
            under_way.cancel()
        holding.result()
    assert (world.bodies("orders"), world.backlog()) == (["parent", "child 1"], ["child 2"])


def test_a_child_verifies_by_itself(world: World) -> None:
    with a_client(world, verify="warn") as client:
        wait_until(client.is_ready)
        assert forked(lambda: wait_until(client.is_ready, seconds=20)) == 0


def test_a_child_of_a_diverting_parent_finds_out_by_itself_and_the_parent_goes_on_pinging(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("parent 1"))
        world.dark()
        sender.send_messages(ServiceBusMessage("parent 2"))
        assert in_child(sender, "child 1", "child 2") == 0
        sender.send_messages(ServiceBusMessage("parent 3"))
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
        assert in_child(sender, "child 3") == 0
    assert sorted(world.backlog()) == ["child 1", "child 2", "parent 2", "parent 3"]
    assert world.bodies("orders") == ["parent 1", "child 3"]


def test_a_child_that_has_failed_over_by_itself_pings_by_itself(world: World) -> None:
    """What its senders find out goes to what is known in this process, not to what the parent knew."""
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        world.dark()
        sender.send_messages(ServiceBusMessage("parent"))

        def divert_and_go_back() -> None:
            sender.send_messages(ServiceBusMessage("child 1"), timeout=20)
            assert state_of(client.state()) is State.FAILED_OVER
            os.write(diverted, b".")
            wait_until(lambda: state_of(client.state()) is State.HEALTHY)
            sender.send_messages(ServiceBusMessage("child 2"), timeout=20)

        read, diverted = os.pipe()
        with ThreadPoolExecutor(1) as pool:
            ends = pool.submit(forked, divert_and_go_back)
            wait_until(lambda: ends.done() or bool(select.select([read], [], [], 0)[0]))
            world.light()
            assert ends.result() == 0
        os.close(read)
        os.close(diverted)
    assert sorted(world.backlog()) == ["child 1", "parent"]
    assert world.bodies("orders") == ["child 2"]


def test_threads_children_and_an_outage_lose_and_double_nothing(world: World) -> None:
    """Workers are forked while threads of their parent send, so that locks are held and answers under way; before and
    during an outage."""
    sent: list[str] = []

    def send_on(name: str, sender: ServiceBusSender, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set() or number < 3:
            sender.send_messages(ServiceBusMessage(f"{name} {number}"), timeout=60)
            sent.append(f"{name} {number}")
            number += 1

    def children(when: str) -> None:
        stop, began = threading.Event(), len(sent)
        with ThreadPoolExecutor(6) as pool:
            threads = [pool.submit(send_on, f"thread {n} {when}", sender, stop) for n in range(2)]
            wait_until(lambda: len(sent) >= began + 4)
            workers = []
            for n in range(3):
                bodies = messages(f"child {n} {when}", 5)
                workers.append(pool.submit(in_child, sender, *bodies))
                sent.extend(bodies)
            assert [one.result() for one in workers] == [0, 0, 0]
            stop.set()
            for thread in threads:
                thread.result()

    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        children("before")
        world.dark()
        children("during")
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
    found = world.bodies("orders") + world.backlog()
    assert sorted(found) == sorted(sent)
    assert {body for body in found if "during" in body} == set(world.backlog())


async def test_an_asynchronous_client_that_was_made_before_the_fork_diverts_in_the_child(world: World) -> None:
    """As `gunicorn --preload` does with a module that makes its client."""
    primary = world.connection_string()
    client = aio.ServiceBusClient.from_connection_string(primary, pair=world.pair(), **FAST)  # type: ignore[arg-type]

    async def send(body: str) -> None:
        async with client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage(body), timeout=60)

    def both() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(lambda name: forked(lambda: asyncio.run(send(name))), ("child 1", "child 2"))]

    world.dark()
    assert await asyncio.to_thread(both) == [0, 0]
    await send("parent")
    assert sorted(world.backlog()) == ["child 1", "child 2", "parent"]
