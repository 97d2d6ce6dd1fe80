"""The primary goes: sends go on, and everything accepted is somewhere."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
import pytest
from azure.servicebus.exceptions import ServiceBusError

from sbpair.core.failover.machine import State
from sbpair.gateway.server import GatewaySettings
from tests.clients.conftest import World, wait_until
from tests.gateway.conftest import SEND_SECONDS, Running, gateway_of
from tests.gateway.test_passing import client_of
from tests.waiting import closing_at_once


def state_of(gateway: Running, entity: str = "orders") -> State | None:
    entities = gateway.call(lambda: gateway.gateway.house.pairing.state().entities)
    return next((one.state for one in entities if one.entity == entity), None)


def test_a_link_goes_on_when_the_primary_goes(world: World, gateway: Running) -> None:
    """The same sender, before, during and after; without a retry of the SDK."""
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("before"))
        world.dark()
        sender.send_messages(sdk.ServiceBusMessage("during"))
        sender.send_messages([sdk.ServiceBusMessage("a"), sdk.ServiceBusMessage("b")])
        assert sorted(world.backlog()) == ["a", "b", "during"]
        world.light()
        wait_until(lambda: state_of(gateway) is State.HEALTHY)
        sender.send_messages(sdk.ServiceBusMessage("after"))
    assert world.bodies("orders") == ["before", "after"]
    assert world.drain() == 3
    assert sorted(world.bodies("orders")) == ["a", "after", "b", "before", "during"]


def test_a_new_client_finds_the_backlog(world: World, gateway: Running) -> None:
    world.dark()
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("one", session_id="s", time_to_live=timedelta(hours=1)))
        later = datetime.now(UTC) + timedelta(hours=1)
        sender.send_messages(sdk.ServiceBusMessage("two", scheduled_enqueue_time_utc=later))
        sender.send_messages(sdk.ServiceBusMessage("three", partition_key="key"))
    (message,) = (
        m
        for index in range(3)
        for m in world.raw(f"contoso/x-servicebus-transfer/{index}", "fabrikam")
        if str(m) == "one"
    )
    assert message.application_properties is not None
    assert message.application_properties[b"x-ms-path"] == b"orders"
    assert message.application_properties[b"x-ms-sessionid"] == b"s"
    assert sorted(world.backlog()) == ["one", "three", "two"]


async def test_many_at_once_while_it_goes(world: World, gateway: Running) -> None:
    """Every message that was accepted is at the primary or in the backlog, those of a session in order."""
    accepted: list[str] = []
    client = closing_at_once(sdk_aio.ServiceBusClient).from_connection_string(gateway.text())
    async with client:

        async def send(session: str) -> None:
            async with client.get_queue_sender("orders") as sender:
                for number in range(40):
                    await sender.send_messages(sdk.ServiceBusMessage(f"{session}{number}", session_id=session))
                    accepted.append(f"{session}{number}")

        sending = [asyncio.create_task(send(session)) for session in "abcd"]
        while len(accepted) < 40:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(world.dark)
        await asyncio.gather(*sending)
    await asyncio.to_thread(world.light)
    assert len(accepted) == 160
    await asyncio.to_thread(world.drain)
    got: dict[str, list[int]] = {}
    for body in await asyncio.to_thread(world.bodies, "orders"):
        got.setdefault(body[0], []).append(int(body[1:]))
    assert {session: sorted(set(numbers)) for session, numbers in got.items()} == {s: list(range(40)) for s in "abcd"}
    for numbers in got.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)


def test_receivers_see_what_they_would_see(world: World, gateway: Running) -> None:
    with client_of(gateway, retry_total=0) as client:
        world.dark()
        with pytest.raises(ServiceBusError), client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(1, max_wait_time=2)
        world.light()
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("back"))
    with client_of(gateway) as client, client.get_queue_receiver("orders") as receiver:
        assert [str(message) for message in receiver.receive_messages(1, max_wait_time=30)] == ["back"]


def test_a_message_that_cannot_be_diverted_is_refused(world: World, gateway: Running) -> None:
    world.dark()
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(ServiceBusError) as caught:
            sender.send_messages(sdk.ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
        assert "x-ms-path" in str(caught.value)
        sender.send_messages(sdk.ServiceBusMessage("fine"))
    assert world.backlog() == ["fine"]
    total = gateway.gateway.house.total
    assert (total.refused, total.accepted, total.diverted) == (1, 1, 1)
    wait_until(lambda: gateway.gateway.house.sending == 0)


def test_neither_side_takes_it(world: World, gateway: Running) -> None:
    """The client is told, and nothing is counted as accepted."""
    world.dark()
    world.emulator.stop("fabrikam")
    with (
        client_of(gateway, retry_total=0) as client,
        pytest.raises(ServiceBusError),
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(sdk.ServiceBusMessage("nowhere"))
    assert gateway.gateway.house.total.accepted == 0


def test_a_hiccup_of_the_primary_diverts_nothing(world: World, tmp_path: Path) -> None:
    """A gateway tries again as the SDK would, before the failover interval counts."""
    settings = GatewaySettings(send_seconds=SEND_SECONDS)
    with (
        gateway_of(world.pair(), folder=tmp_path, settings=settings) as gateway,
        client_of(gateway, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        world.emulator.faults("contoso").add("fail:op=send,condition=amqp:internal-error,count=2")
        sender.send_messages(sdk.ServiceBusMessage("once more"))
    assert (world.bodies("orders"), world.backlog()) == (["once more"], [])


@pytest.mark.parametrize("fault", ["silent", "fail:op=send,condition=amqp:internal-error", "detach:op=send"])
def test_other_ways_to_fail(world: World, gateway: Running, fault: str) -> None:
    """No answer, an error of the service's own, and a link that is detached: each with the message under way."""
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("before"))
        number = world.emulator.faults("contoso").add(fault)
        sender.send_messages(sdk.ServiceBusMessage("during"))
        world.emulator.faults("contoso").remove(number)
    assert "during" in world.backlog()


def test_what_the_primary_refuses_for_want_of_time_is_not_offered_to_it_again(world: World, gateway: Running) -> None:
    """It may have been stored; with no failover interval the backlog takes it at once."""
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("before"))
        world.emulator.faults("contoso").add("fail:op=send,condition=com.microsoft:timeout,count=1")
        sender.send_messages(sdk.ServiceBusMessage("during"))
    assert (world.bodies("orders"), world.backlog()) == (["before"], ["during"])


def test_nothing_fails_while_the_failover_interval_runs(world: World, tmp_path: Path) -> None:
    """Links that are open, new links and new clients wait for it, without a retry of the SDK."""
    settings = GatewaySettings(send_seconds=40.0, retries=0)
    with gateway_of(world.pair(interval=3.0), folder=tmp_path, settings=settings) as gateway:
        with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("before"))
            world.dark()
            sender.send_messages(sdk.ServiceBusMessage("open"))
        assert state_of(gateway) is State.FAILED_OVER
        assert world.backlog() == ["open"]
        assert gateway.gateway.house.total.refused == 0


def test_a_new_client_waits_for_the_failover(world: World, tmp_path: Path) -> None:
    settings = GatewaySettings(send_seconds=40.0, retries=0)
    world.dark()
    with (
        gateway_of(world.pair(interval=2.0), folder=tmp_path, settings=settings) as gateway,
        client_of(gateway, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(sdk.ServiceBusMessage("new"))
        assert gateway.gateway.house.total.refused == 0
    assert world.backlog() == ["new"]
