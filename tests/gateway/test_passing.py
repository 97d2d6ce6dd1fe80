"""The healthy primary: everything passes, and comes back as it does without a gateway."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
import pytest
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError

from sbpair.emulator.entities import QueueDescription
from tests.clients.conftest import World
from tests.gateway.conftest import Running
from tests.waiting import closing_at_once

AtOnce = closing_at_once(sdk.ServiceBusClient)


def client_of(gateway: Running, key: str = "app", **options: Any) -> sdk.ServiceBusClient:
    return AtOnce.from_connection_string(gateway.text(key), **options)


def test_messages_pass_both_ways(world: World, gateway: Running) -> None:
    with client_of(gateway) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("one", application_properties={"n": 1}))
            sender.send_messages([sdk.ServiceBusMessage("two"), sdk.ServiceBusMessage("three")])
        assert world.bodies("orders") == ["one", "two", "three"]
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            first, second = receiver.receive_messages(2, max_wait_time=5), receiver.receive_messages(1, max_wait_time=5)
            got = [*first, *second]
            assert [str(message) for message in got] == ["one", "two", "three"]
            receiver.complete_message(got[0])
            receiver.abandon_message(got[1])
            receiver.dead_letter_message(got[2], reason="because")
        with client.get_queue_receiver("orders", sub_queue=sdk.ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert [str(message) for message in receiver.receive_messages(5, max_wait_time=5)] == ["three"]
    assert world.bodies("orders") == ["two"]
    assert world.backlog() == []


def test_a_message_with_a_property_of_the_backlogs_passes(world: World, gateway: Running) -> None:
    """Only a diverted message has no room for it."""
    with client_of(gateway) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
    assert world.bodies("orders") == ["x"]


def test_requests_pass(world: World, gateway: Running) -> None:
    """Peek, schedule, cancel, renew, defer: all of them go to `$management`."""
    with client_of(gateway) as client:
        with client.get_queue_sender("orders") as sender:
            later = datetime.now(UTC) + timedelta(hours=1)
            numbers = sender.schedule_messages([sdk.ServiceBusMessage("later"), sdk.ServiceBusMessage("never")], later)
            sender.cancel_scheduled_messages(numbers[1])
            sender.send_messages(sdk.ServiceBusMessage("now"))
        with client.get_queue_receiver("orders") as receiver:
            assert [str(message) for message in receiver.peek_messages(5)] == ["later", "now"]
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert receiver.renew_message_lock(message) is not None
            receiver.defer_message(message)
            (again,) = receiver.receive_deferred_messages(message.sequence_number)
            receiver.complete_message(again)
    assert world.bodies("orders") == ["later"]


def test_sessions_pass(world: World, gateway: Running) -> None:
    world.emulator.namespace("contoso").create_queue("sessions", QueueDescription(requires_session=True))
    with client_of(gateway) as client:
        with client.get_queue_sender("sessions") as sender:
            sender.send_messages([sdk.ServiceBusMessage(f"{n}", session_id="a") for n in range(3)])
        with client.get_queue_receiver("sessions", session_id=sdk.NEXT_AVAILABLE_SESSION) as receiver:
            assert receiver.session.session_id == "a"
            receiver.session.set_state(b"state")
            assert receiver.session.get_state() == b"state"
            for message in receiver.receive_messages(3, max_wait_time=5):
                receiver.complete_message(message)
    assert world.bodies("orders") == []


def test_large_messages_pass_in_frames(world: World, gateway: Running) -> None:
    body = bytes(range(256)) * 900
    with client_of(gateway) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage(body))
        with client.get_queue_receiver("orders") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert b"".join(message.body) == body
            receiver.complete_message(message)
    assert world.bodies("orders") == []


@pytest.mark.parametrize("websocket", [False, True])
async def test_over_tls(world: World, gateway: Running, websocket: bool) -> None:
    """TCP and WebSocket, with the gateway's own authority."""
    kind = sdk.TransportType.AmqpOverWebsocket if websocket else sdk.TransportType.Amqp
    text, address = gateway.text(plain=False), f"sb://{gateway.gateway.endpoint()}"
    client = sdk_aio.ServiceBusClient.from_connection_string(
        text, transport_type=kind, custom_endpoint_address=address, connection_verify=str(gateway.tls.ca_path)
    )
    async with client, client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        await asyncio.gather(*(sender.send_messages(sdk.ServiceBusMessage(str(n))) for n in range(20)))
        got: list[str] = []
        while len(got) < 20:
            for message in await receiver.receive_messages(20, max_wait_time=5):
                got.append(str(message))
                await receiver.complete_message(message)
    assert sorted(got, key=int) == [str(n) for n in range(20)]


def test_the_primarys_refusals_reach_the_client(world: World, gateway: Running) -> None:
    with client_of(gateway, retry_total=0) as client:
        with pytest.raises(ServiceBusError) as caught, client.get_queue_sender("nowhere") as sender:
            sender.send_messages(sdk.ServiceBusMessage("lost"))
        assert "could not be found" in str(caught.value)
        with client.get_queue_sender("orders") as sender, pytest.raises((ServiceBusError, ValueError)):
            sender.send_messages(sdk.ServiceBusMessage(b"x" * 300_000))


def test_a_key_gives_its_rights_and_no_more(world: World, gateway: Running) -> None:
    with client_of(gateway, "sender", retry_total=0) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("may"))
        with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(1, max_wait_time=1)
        with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
            client.get_queue_sender("invoices").__enter__()
        with client.get_queue_sender("orders") as sender, pytest.raises(ServiceBusError, match="claim"):
            sender._mgmt_request_response_with_retry(b"com.microsoft:peek-message", {}, lambda *_: None)
    assert world.bodies("orders") == ["may"]


def test_the_primarys_own_key_is_nobody_here(world: World, gateway: Running) -> None:
    theirs = world.connection_string().split(";", 1)[1]
    text = f"Endpoint=sb://{gateway.gateway.endpoint()};{theirs}"
    with (
        sdk.ServiceBusClient.from_connection_string(text, retry_total=0) as client,
        pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)),
    ):
        client.get_queue_sender("orders").__enter__()
