"""The official Python clients, asynchronous and synchronous, over plain AMQP, TLS and WebSocket."""

import asyncio
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
)

from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import new_auth_rule
from sbpair.emulator.server import Emulator
from sbpair.emulator.thread import EmulatorThread
from sbpair.engine.auth import SEND

KINDS = ["plain", "tls", "websocket", "secure-websocket"]


def secure_string(text: str) -> str:
    """A connection string as the real service gives it: TLS, the standard port."""
    return text.replace("127.0.0.1", "localhost").replace(";UseDevelopmentEmulator=true", "")


def options(emulator: Emulator | EmulatorThread, kind: str) -> tuple[str, dict[str, Any]]:
    text, endpoint = emulator.connection_string("primary"), emulator.endpoint("primary")
    if kind == "plain":
        return text, {}
    if kind == "websocket":
        return text, {"transport_type": TransportType.AmqpOverWebsocket, "custom_endpoint_address": f"sb://{endpoint}"}
    return secure_string(text), {
        "connection_verify": str(emulator.ca_path),
        "custom_endpoint_address": f"sb://{endpoint}",
        "transport_type": TransportType.AmqpOverWebsocket if kind == "secure-websocket" else TransportType.Amqp,
    }


def new_client(emulator: Emulator, kind: str = "plain", **more: Any) -> AsyncClient:
    text, keywords = options(emulator, kind)
    return AsyncClient.from_connection_string(text, retry_total=0, **keywords, **more)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_round_trip_asynchronous(emulator: Emulator, kind: str) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator, kind) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"m{number}") for number in range(20)])
            await sender.send_messages(ServiceBusMessage(b"z" * 150_000, message_id="big"))
        async with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            received: list[Any] = []
            while len(received) < 21:
                received += await receiver.receive_messages(30)
            for message in received:
                await receiver.complete_message(message)
    assert [str(message) for message in received[:20]] == [f"m{number}" for number in range(20)]
    assert b"".join(received[20].body) == b"z" * 150_000
    assert queue_counts(emulator)[0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_synchronous(emulator_thread: EmulatorThread, kind: str) -> None:
    if "websocket" in kind:
        pytest.importorskip("websocket", reason="the synchronous SDK needs websocket-client for WebSocket")
    emulator_thread.namespace("primary").create_queue("orders")
    text, keywords = options(emulator_thread, kind)
    with ServiceBusClient.from_connection_string(text, retry_total=0, **keywords) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"m{number}") for number in range(5)])
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            received: list[Any] = []
            while len(received) < 5:
                received += receiver.receive_messages(5)
            for message in received:
                receiver.complete_message(message)
    assert [str(message) for message in received] == [f"m{number}" for number in range(5)]


def queue_counts(emulator: Emulator, path: str = "orders") -> tuple[int, int]:
    queue = emulator.namespace("primary").get_queue(path)
    assert queue is not None
    counts = queue.counts()
    return counts.active, counts.dead_letter


async def test_every_settlement_is_confirmed(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(word) for word in ("abandon", "defer", "bury", "complete")])
        async with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            first, second, third, fourth = await receiver.receive_messages(4)
            await receiver.abandon_message(first)
            await receiver.defer_message(second)
            await receiver.dead_letter_message(third, reason="why", error_description="because")
            await receiver.complete_message(fourth)
            (again,) = await receiver.receive_messages(1)
            assert (str(again), again.delivery_count) == ("abandon", 1)
            await receiver.complete_message(again)
            (deferred,) = await receiver.receive_deferred_messages([second.sequence_number])
            assert str(deferred) == "defer"
            await receiver.complete_message(deferred)
        async with client.get_queue_receiver("orders", sub_queue="deadletter", max_wait_time=5) as burials:
            (buried,) = await burials.receive_messages(1)
            assert (str(buried), buried.dead_letter_reason) == ("bury", "why")
            await burials.complete_message(buried)
    assert queue_counts(emulator) == (0, 0)


async def test_sessions_named_next_and_busy(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("rooms", QueueDescription(requires_session=True))
    async with new_client(emulator) as client:
        async with client.get_queue_sender("rooms") as sender:
            await sender.send_messages([ServiceBusMessage("hi", session_id=room) for room in ("a", "b")])
        async with client.get_queue_receiver("rooms", session_id="a", max_wait_time=5) as named:
            assert named.session.session_id == "a"
            await named.session.set_state(b"state")
            assert await named.session.get_state() == b"state"
            with pytest.raises(SessionCannotBeLockedError):
                await client.get_queue_receiver("rooms", session_id="a").__aenter__()
            (message,) = await named.receive_messages(1)
            await named.complete_message(message)
            async with client.get_queue_receiver("rooms", session_id=NEXT_AVAILABLE_SESSION) as following:
                assert following.session.session_id == "b"
                waiting = client.get_queue_receiver("rooms", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
                with pytest.raises(OperationTimeoutError):
                    await waiting.__aenter__()


async def test_schedule_peek_and_cancel(emulator: Emulator) -> None:
    from datetime import UTC, datetime, timedelta

    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator) as client, client.get_queue_sender("orders") as sender:
        (number,) = await sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
        async with client.get_queue_receiver("orders") as receiver:
            (peeked,) = await receiver.peek_messages(10)
            assert str(peeked) == "later"
        await sender.cancel_scheduled_messages(number)


async def test_wrong_keys_and_missing_rights(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("orders")
    namespace.set_auth_rule(new_auth_rule("sends", {SEND}))
    text = emulator.connection_string("primary")
    key = next(part for part in text.split(";") if part.startswith("SharedAccessKey="))
    wrong = AsyncClient.from_connection_string(text.replace(key, "SharedAccessKey=wrong"), retry_total=0)
    async with wrong:
        with pytest.raises(ServiceBusAuthenticationError):
            await wrong.get_queue_sender("orders").__aenter__()
    limited = AsyncClient.from_connection_string(emulator.connection_string("primary", "sends"), retry_total=0)
    async with limited:
        async with limited.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("allowed"))
        with pytest.raises(ServiceBusAuthorizationError):
            await limited.get_queue_receiver("orders").__aenter__()
    async with new_client(emulator) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            await client.get_queue_sender("nowhere").__aenter__()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("throttle:op=send", ServiceBusServerBusyError),
        ("quota", ServiceBusQuotaExceededError),
        ("disabled:op=send", MessagingEntityDisabledError),
        ("unauthorized:op=send", ServiceBusAuthorizationError),
        ("fail:op=send", ServiceBusError),
        ("drop:op=send", ServiceBusError),
        ("detach:op=send", ServiceBusError),
    ],
)
async def test_a_failing_send_is_shown_as_the_service_would(
    emulator: Emulator, fault: str, expected: type[Exception]
) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator) as client, client.get_queue_sender("orders") as sender:
        fault_id = emulator.faults("primary").add(fault)
        with pytest.raises(expected):
            await sender.send_messages(ServiceBusMessage("m"))
        emulator.faults("primary").remove(fault_id)
        await sender.send_messages(ServiceBusMessage("m"))
    assert queue_counts(emulator)[0] == 1


async def test_a_message_too_large_is_refused_as_such(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))
        await sender.send_messages(ServiceBusMessage(b"x" * 1000))


async def test_a_namespace_goes_dark_and_comes_back(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with new_client(emulator) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        fault_id = emulator.faults("primary").add("dark")
        with pytest.raises((ServiceBusConnectionError, ServiceBusError)):
            await sender.send_messages(ServiceBusMessage("meanwhile"))
        emulator.faults("primary").remove(fault_id)
        await sender.send_messages(ServiceBusMessage("after"))
    assert queue_counts(emulator)[0] == 2


async def test_stop_and_start_keep_port_and_messages(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("orders")
    text = emulator.connection_string("primary")
    async with new_client(emulator) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("kept"))
        await emulator.stop("primary")
        with pytest.raises(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("lost"))
        await emulator.start("primary")
    assert emulator.connection_string("primary") == text
    async with (
        AsyncClient.from_connection_string(text) as client,
        client.get_queue_receiver("orders", max_wait_time=5) as receiver,
    ):
        assert [str(message) for message in await receiver.receive_messages(5)] == ["kept"]


async def test_many_clients_at_once(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("orders")

    async def work(client: AsyncClient, number: int) -> None:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"{number}-{turn}") for turn in range(10)])

    async with new_client(emulator) as client:
        await asyncio.gather(*(work(client, number) for number in range(15)))
    assert queue_counts(emulator)[0] == 150
