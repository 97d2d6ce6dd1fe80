"""The official Python client, asynchronous and synchronous, over plain AMQP, TLS and WebSocket.

One emulator serves all tests; each has entities of its own. The entities are made by the official administration
client too. Closing something synchronous costs the client up to a second, so the synchronous tests are few and long.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from sbpair.emulator import EmulatorThread

NAMESPACE = "sdk"
KINDS = ["plain", "tls", "websocket"]
# WebSocket goes through TLS here as it does in the service, so what is long is tried over these two.
FEWER_KINDS = pytest.mark.parametrize("kind", ["plain", "websocket"])
SETTLEMENTS = ("complete", "abandon", "defer", "bury")
WAIT_SECONDS = 10


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorThread]:
    with EmulatorThread([NAMESPACE]) as running:
        yield running


@pytest.fixture(scope="module")
def admin(emulator: EmulatorThread) -> Iterator[ServiceBusAdministrationClient]:
    text = emulator.connection_string(NAMESPACE)
    with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=str(emulator.ca_path)) as client:
        yield client


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(emulator: EmulatorThread, kind: str) -> dict[str, Any]:
    """How to make a client of this kind."""
    text = emulator.connection_string(NAMESPACE)
    if kind == "plain":
        return {"conn_str": text}
    return {
        "conn_str": text.replace("127.0.0.1", "localhost").replace(";UseDevelopmentEmulator=true", ""),
        "custom_endpoint_address": f"sb://{emulator.endpoint(NAMESPACE)}",
        "connection_verify": str(emulator.ca_path),
        "transport_type": TransportType.AmqpOverWebsocket if kind == "websocket" else TransportType.Amqp,
    }


@pytest.fixture
def name() -> str:
    """A name no other test has."""
    return f"e{uuid.uuid4().hex}"


def new_async_client(options: dict[str, Any]) -> AsyncClient:
    return AsyncClient.from_connection_string(retry_total=1, **options)


def by_body(messages: list[Any]) -> dict[str, Any]:
    return {str(message): message for message in messages}


async def take(receiver: Any, count: int) -> list[Any]:
    """Exactly so many messages, however many calls it takes."""
    taken: list[Any] = []
    while len(taken) < count:
        received = await receiver.receive_messages(count - len(taken), max_wait_time=WAIT_SECONDS)
        assert received, f"{count - len(taken)} messages are missing"
        taken += received
    return taken


def take_now(receiver: Any, count: int) -> list[Any]:
    """`take` for the synchronous client."""
    taken: list[Any] = []
    while len(taken) < count:
        received = receiver.receive_messages(count - len(taken), max_wait_time=WAIT_SECONDS)
        assert received, f"{count - len(taken)} messages are missing"
        taken += received
    return taken


async def test_what_was_sent_arrives(options: dict[str, Any], admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_queue(name)
    sent = ServiceBusMessage(
        b"one\x00two",
        application_properties={"text": "ü", "whole": 2**30, "real": 1.5, "truth": True, "raw": b"\x00\x7f"},
        message_id="id",
        correlation_id="correlated",
        subject="subject",
        content_type="application/octet-stream",
        partition_key="key",
        reply_to="answers",
        reply_to_session_id="there",
        to="here",
        time_to_live=timedelta(minutes=5),
    )
    async with new_async_client(options) as client, client.get_queue_sender(name) as sender:
        await sender.send_messages(sent)
        async with client.get_queue_receiver(name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            [got] = await take(receiver, 1)
            assert await receiver.receive_messages(max_wait_time=0.3) == []
    assert b"".join(got.body) == b"one\x00two"
    assert got.application_properties == {
        b"text": "ü".encode(),
        b"whole": 2**30,
        b"real": 1.5,
        b"truth": True,
        b"raw": b"\x00\x7f",
    }
    assert (got.message_id, got.correlation_id, got.subject, got.to) == ("id", "correlated", "subject", "here")
    assert (got.content_type, got.partition_key) == ("application/octet-stream", "key")
    assert (got.reply_to, got.reply_to_session_id) == ("answers", "there")
    assert (got.time_to_live, got.delivery_count, got.sequence_number) == (timedelta(minutes=5), 0, 1)
    assert abs(got.enqueued_time_utc - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_full_batch_and_every_way_to_settle(
    options: dict[str, Any], admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_queue(name, max_delivery_count=2)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(new_async_client(options))
        sender = await stack.enter_async_context(client.get_queue_sender(name))
        batch = await sender.create_message_batch()
        for body in SETTLEMENTS:
            batch.add_message(ServiceBusMessage(body, message_id=body))
        with pytest.raises(ValueError, match="size limit"):
            batch.add_message(ServiceBusMessage(b"x" * batch.max_size_in_bytes))
        await sender.send_messages(batch)
        receiver = await stack.enter_async_context(client.get_queue_receiver(name))
        messages = by_body(await take(receiver, 4))
        await receiver.complete_message(messages["complete"])
        await receiver.abandon_message(messages["abandon"])
        await receiver.defer_message(messages["defer"])
        await receiver.dead_letter_message(messages["bury"], reason="why", error_description="because")

        [again] = await take(receiver, 1)
        assert (str(again), again.delivery_count) == ("abandon", 1)
        before = again.locked_until_utc
        await asyncio.sleep(0.05)
        assert await receiver.renew_message_lock(again) > before
        await receiver.abandon_message(again)

        [deferred] = await receiver.receive_deferred_messages([messages["defer"].sequence_number])
        assert (str(deferred), deferred.state) == ("defer", ServiceBusMessageState.DEFERRED)
        await receiver.dead_letter_message(deferred, reason="late")

        burials = await stack.enter_async_context(
            client.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        )
        dead = by_body(await take(burials, 3))
        assert {body: message.dead_letter_reason for body, message in dead.items()} == {
            "bury": "why",
            "abandon": "MaxDeliveryCountExceeded",
            "defer": "late",
        }
        assert dead["bury"].dead_letter_error_description == "because"
        for message in dead.values():
            await burials.complete_message(message)
    counts = admin.get_queue_runtime_properties(name)
    assert (counts.total_message_count, counts.dead_letter_message_count) == (0, 0)


@FEWER_KINDS
async def test_sessions(options: dict[str, Any], admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_queue(name, requires_session=True)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(new_async_client(options))
        sender = await stack.enter_async_context(client.get_queue_sender(name))
        await sender.send_messages([ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(6)])

        first = await stack.enter_async_context(client.get_queue_receiver(name, session_id="a"))
        await first.session.set_state(b"half way")
        assert await first.session.get_state() == b"half way"
        before = first.session.locked_until_utc or datetime.max.replace(tzinfo=UTC)
        await asyncio.sleep(0.05)
        assert await first.session.renew_lock() > before
        assert [str(message) for message in await first.peek_messages(10)] == ["0", "2", "4"]
        messages = await take(first, 3)
        assert [str(message) for message in messages] == ["0", "2", "4"]
        await first.defer_message(messages[0])
        for message in messages[1:]:
            await first.complete_message(message)
        [deferred] = await first.receive_deferred_messages(messages[0].sequence_number)
        await first.complete_message(deferred)

        second = await stack.enter_async_context(client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION))
        assert second.session.session_id == "b"
        assert [str(message) for message in await take(second, 3)] == ["1", "3", "5"]
        assert sorted([one async for one in client.list_queue_sessions(name)]) == ["a", "b"]


@FEWER_KINDS
async def test_schedule_cancel_and_peek(
    options: dict[str, Any], admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_queue(name)
    async with new_async_client(options) as client, client.get_queue_sender(name) as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        bodies = ("kept", "cancelled")
        kept, cancelled = await sender.schedule_messages([ServiceBusMessage(body) for body in bodies], later)
        await sender.cancel_scheduled_messages([cancelled])
        async with client.get_queue_receiver(name) as receiver:
            [peeked] = await receiver.peek_messages(5)
            assert (str(peeked), peeked.state) == ("kept", ServiceBusMessageState.SCHEDULED)
            assert peeked.sequence_number == kept
            soon = datetime.now(UTC) + timedelta(seconds=1)
            await sender.schedule_messages(ServiceBusMessage("due"), soon)
            [message] = await take(receiver, 1)
            assert datetime.now(UTC) >= soon
            assert (str(message), message.state) == ("due", ServiceBusMessageState.ACTIVE)
            await receiver.complete_message(message)


@FEWER_KINDS
async def test_rules_and_forwarding(options: dict[str, Any], admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.create_queue(name)
    topic = f"{name}-topic"
    admin.create_topic(topic)
    for subscription in ("sql", "correlated"):
        admin.create_subscription(topic, subscription, forward_to=name if subscription == "correlated" else None)
        admin.delete_rule(topic, subscription, "$Default")
    many = SqlRuleFilter("amount > @least AND colour IN ('red', 'blue')", parameters={"@least": 10})
    admin.create_rule(topic, "sql", "many", filter=many, action=SqlRuleAction("SET checked = 'yes'"))
    admin.create_rule(topic, "correlated", "red", filter=CorrelationRuleFilter(properties={"colour": "red"}))
    sent = {"few": (5, "red"), "many": (50, "blue"), "green": (50, "green")}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(new_async_client(options))
        sender = await stack.enter_async_context(client.get_topic_sender(topic))
        await sender.send_messages(
            [
                ServiceBusMessage(body, application_properties={"amount": amount, "colour": colour})
                for body, (amount, colour) in sent.items()
            ]
        )
        filtered = await stack.enter_async_context(client.get_subscription_receiver(topic, "sql"))
        [message] = await take(filtered, 1)
        assert (str(message), message.application_properties[b"checked"]) == ("many", b"yes")
        await filtered.complete_message(message)
        forwarded = await stack.enter_async_context(client.get_queue_receiver(name))
        [message] = await take(forwarded, 1)
        assert (str(message), message.enqueued_sequence_number) == ("few", 1)
        await forwarded.complete_message(message)
        assert await filtered.receive_messages(max_wait_time=0.3) == []


def test_synchronous_work(options: dict[str, Any], kind: str, admin: ServiceBusAdministrationClient, name: str) -> None:
    if kind == "websocket":
        pytest.importorskip("websocket", reason="the synchronous client needs websocket-client for WebSocket")
    admin.create_queue(name)
    with (
        ServiceBusClient.from_connection_string(retry_total=1, **options) as client,
        client.get_queue_sender(name) as sender,
        client.get_queue_receiver(name) as receiver,
    ):
        batch = sender.create_message_batch()
        for body in SETTLEMENTS:
            batch.add_message(ServiceBusMessage(body))
        sender.send_messages(batch)
        assert [str(message) for message in receiver.peek_messages(10)] == list(SETTLEMENTS)
        messages = by_body(take_now(receiver, 4))
        receiver.renew_message_lock(messages["complete"])
        receiver.complete_message(messages["complete"])
        receiver.abandon_message(messages["abandon"])
        receiver.defer_message(messages["defer"])
        receiver.dead_letter_message(messages["bury"], reason="why", error_description="because")
        [again] = take_now(receiver, 1)
        assert (str(again), again.delivery_count) == ("abandon", 1)
        receiver.complete_message(again)
        [deferred] = receiver.receive_deferred_messages(messages["defer"].sequence_number)
        receiver.complete_message(deferred)

        soon = datetime.now(UTC) + timedelta(seconds=1)
        kept, cancelled = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], soon)
        sender.cancel_scheduled_messages(cancelled)
        [scheduled] = take_now(receiver, 1)
        assert (str(scheduled), datetime.now(UTC) >= soon) == ("kept", True)
        receiver.complete_message(scheduled)
        with client.get_queue_receiver(
            name, sub_queue="deadletter", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as burials:
            [dead] = take_now(burials, 1)
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("bury", "why", "because")
    assert admin.get_queue_runtime_properties(name).total_message_count == 0
    assert kept < cancelled


def test_synchronous_sessions(
    options: dict[str, Any], kind: str, admin: ServiceBusAdministrationClient, name: str
) -> None:
    if kind == "websocket":
        pytest.importorskip("websocket", reason="the synchronous client needs websocket-client for WebSocket")
    admin.create_queue(name, requires_session=True)
    with (
        ServiceBusClient.from_connection_string(retry_total=1, **options) as client,
        client.get_queue_sender(name) as sender,
    ):
        sender.send_messages([ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(4)])
        with client.get_queue_receiver(name, session_id="b") as named:
            named.session.set_state("half way")
            assert named.session.get_state() == b"half way"
            named.session.renew_lock()
            for message in take_now(named, 2):
                named.complete_message(message)
            with client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION) as following:
                assert following.session.session_id == "a"
                assert [str(message) for message in take_now(following, 2)] == ["0", "2"]
