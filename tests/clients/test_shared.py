"""What the clients of one process know together: an application may open a client for every message."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusMessage, exceptions

from sbpair import ServiceBusClient
from sbpair.aio import ServiceBusClient as AsyncServiceBusClient
from sbpair.clients.failover import PROCESS, BackgroundLoop
from sbpair.core.failover.machine import State
from sbpair.events import Diverted, FailedBack, FailedOver, SendFailed
from tests.clients.conftest import World, own_threads, state_of, wait_until

SLOW_RETRIES = {"retry_total": 3, "retry_backoff_factor": 1.0}
"""1, 2 and 4 seconds of pauses: whoever meets the dark primary waits for them."""


def a_client(world: World, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(), "retry_total": 0} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


def send(world: World, body: str, **more: object) -> None:
    """As an application does that keeps nothing."""
    with a_client(world, **more) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(body))


def queues_with_something(world: World) -> list[list[str]]:
    return [found for found in world.backlog_by_queue() if found]


def test_a_client_for_each_message_meets_the_outage_once_and_keeps_the_order(world: World) -> None:
    send(world, "before", on_event=world.events.append)
    world.dark()
    for number in range(5):
        send(world, str(number), on_event=world.events.append)
    assert len(world.of(SendFailed)) == len(world.of(FailedOver)) == 1
    assert len(world.of(Diverted)) == 5
    # Each took up the backlog queue of the one before.
    assert queues_with_something(world) == [["0", "1", "2", "3", "4"]]
    world.light()

    sent = iter(range(5, 1000))

    def arrives() -> bool:
        """Whoever comes first after the return is still diverted, and pings."""
        send(world, str(next(sent)))
        return len(world.bodies("orders")) > 1

    wait_until(arrives)
    back, waiting = world.bodies("orders"), queues_with_something(world)
    assert [len(waiting), back[0], len(back)] == [1, "before", 2]
    assert waiting[0] + back[1:] == [str(number) for number in range(len(waiting[0]) + 1)]
    assert own_threads() == []


def test_only_the_first_of_many_clients_waits_for_the_sdks_retries(world: World) -> None:
    world.dark()
    started = time.monotonic()
    send(world, "0", on_event=world.events.append, **SLOW_RETRIES)
    assert time.monotonic() - started >= 7
    assert len(world.of(SendFailed)) == 1
    for number in (1, 2):
        send(world, str(number), on_event=world.events.append, **SLOW_RETRIES)
    assert len(world.of(SendFailed)) == 1, "these do not try the primary at all"
    assert sorted(world.backlog()) == ["0", "1", "2"]


def test_a_client_that_lives_through_it_hears_from_the_one_that_met_it(world: World) -> None:
    # Its own connection is cut too, which the SDK notices at the next send, and tries again.
    tries = {"retry_total": 3, "retry_backoff_factor": 0.01}
    with a_client(world, on_event=world.events.append, **tries) as idle, idle.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        assert own_threads() == []
        world.dark()
        with a_client(world) as other, other.get_queue_sender("orders") as met:
            met.send_messages(ServiceBusMessage("met it"))
            assert state_of(idle.state()) is State.FAILED_OVER
            sender.send_messages(ServiceBusMessage("told of it"))
        # The one that met it is gone; the other goes on pinging.
        world.light()
        wait_until(lambda: state_of(idle.state()) is State.HEALTHY)
        assert len(world.of(FailedBack)) == 1
        assert world.of(SendFailed) == []
        sender.send_messages(ServiceBusMessage("after"))
    assert world.bodies("orders") == ["before", "after"]
    assert sorted(world.backlog()) == ["met it", "told of it"]


def test_the_failover_interval_runs_on_between_clients(world: World) -> None:
    world.dark()
    pair = world.pair(interval=3.0)
    started = time.monotonic()
    failures = 0
    while True:
        try:
            send(world, "diverted at last", pair=pair)
        except exceptions.ServiceBusError:
            failures += 1
            assert time.monotonic() - started < 90, "it never fails over"
        else:
            break
    assert failures >= 1
    assert time.monotonic() - started >= 3.0
    assert world.backlog() == ["diverted at last"]


def test_whoever_comes_after_the_interval_does_not_try_the_primary_again(world: World) -> None:
    """It takes part before it offers anything, and the timer that ran on between the clients has run out."""
    world.dark()
    pair = world.pair(interval=0.5)
    with pytest.raises(exceptions.ServiceBusError):
        send(world, "refused", pair=pair, on_event=world.events.append)
    (failed,) = world.of(SendFailed)
    wait_until(lambda: time.time() > failed.at + 0.5)
    send(world, "diverted", pair=pair, on_event=world.events.append)
    assert len(world.of(SendFailed)) == 1
    assert world.backlog() == ["diverted"]


def test_an_outage_is_remembered_for_a_time_and_nothing_else_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(PROCESS._remembered)
    with a_client(world) as client:
        client.verify()
    assert set(PROCESS._remembered) == before
    world.dark()
    send(world, "met it")
    (known,) = set(PROCESS._remembered) - before
    with a_client(world, pair=world.pair(interval=7.0)):
        assert known in PROCESS._remembered
    monkeypatch.setattr("sbpair.runtime.failover.entity.REMEMBERED_SECONDS", -1.0)
    with a_client(world, pair=world.pair(interval=8.0)):
        assert known not in PROCESS._remembered


def test_names_are_the_same_in_whatever_case(world: World) -> None:
    """Of entities, and of namespaces."""
    pair = world.pair()

    def known(primary: str, secondary: str) -> object:
        sides = {"primary": replace(pair.primary, host=primary), "secondary": replace(pair.secondary, host=secondary)}
        return PROCESS.entities(replace(pair, **sides), "key")

    first = known("contoso.example", "fabrikam.example")
    assert known("Contoso.example", "fabrikam.Example") is first
    assert known("contoso.example", "other.example") is not first
    with a_client(world) as client, client.get_queue_sender("Orders") as sender:
        client.force_failover("orders")
        sender.send_messages(ServiceBusMessage("diverted"))
        assert state_of(client.state()) is State.FORCED
        (one,) = client.state().entities
        assert one.diverted_messages == 1
    assert world.backlog() == ["diverted"]


def test_the_loop_does_not_end_while_something_is_asked_of_it() -> None:
    background, over = BackgroundLoop("asked", lambda: True), threading.Event()

    async def work() -> str:
        await asyncio.to_thread(over.wait)
        return "done"

    asked = background.begin(work())
    background.rest()
    over.set()
    assert asked.result(10) == "done"
    background.join()


def test_what_is_left_on_the_loop_is_cancelled_when_it_ends() -> None:
    background, ended, left = BackgroundLoop("left", lambda: True), threading.Event(), []

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def work() -> None:
        left.append(asyncio.create_task(stay()))
        await asyncio.sleep(0)

    background.begin(work()).result()
    assert ended.wait(10)
    wait_until(lambda: "left" not in [thread.name for thread in threading.enumerate()])
    assert left[0].cancelled()


def test_another_key_another_secondary_or_other_options_know_nothing_of_it(world: World) -> None:
    with a_client(world) as client:
        client.force_failover("orders")
        with a_client(world, pair=world.pair(interval=5.0)) as other:
            assert other.state().entities == ()
        named = client.from_connection_string(world.other_key(), pair=world.pair(), retry_total=0)
        with named:
            assert named.state().entities == ()
        with a_client(world) as same:
            assert state_of(same.state()) is State.FORCED
    # What was forced ends with the last client: nobody would be left to fail back.
    with a_client(world) as later:
        assert later.state().entities == ()


def test_asynchronous_and_synchronous_clients_know_the_same(world: World) -> None:
    async def asynchronously(body: str) -> None:
        client = AsyncServiceBusClient.from_connection_string(
            world.connection_string(), pair=world.pair(), on_event=world.events.append, retry_total=0
        )
        async with client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage(body))

    world.dark()
    send(world, "1", on_event=world.events.append)
    asyncio.run(asynchronously("2"))
    asyncio.run(asynchronously("3"))
    send(world, "4", on_event=world.events.append)
    assert len(world.of(SendFailed)) == 1
    assert queues_with_something(world) == [["1", "2", "3", "4"]]


def test_both_sides_dark_raise_the_primarys_error_also_in_a_client_that_did_not_meet_it(world: World) -> None:
    world.dark()
    world.emulator.stop("fabrikam")
    with a_client(world) as first, first.get_queue_sender("orders") as sender:
        with pytest.raises(exceptions.ServiceBusError):
            sender.send_messages(ServiceBusMessage("nowhere"), timeout=3)
        with a_client(world) as second, second.get_queue_sender("orders") as late:
            with pytest.raises(exceptions.ServiceBusError) as raised:
                late.send_messages(ServiceBusMessage("nowhere"), timeout=3)
            assert "The backlog did not take the message either" in raised.value.__notes__[0]


def test_senders_that_follow_one_another_keep_the_backlog_queue_and_those_side_by_side_draw(world: World) -> None:
    with a_client(world, on_event=world.events.append) as client:
        client.force_failover("orders")
        for number in range(6):
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(str(number)))
    assert queues_with_something(world) == [["0", "1", "2", "3", "4", "5"]]
