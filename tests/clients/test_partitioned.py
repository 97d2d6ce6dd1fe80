"""Whatever the primary would have taken is diverted, also onto partitioned backlog queues and up to the last byte; and
comes back."""

import asyncio
from collections.abc import Iterator

import azure.servicebus as sdk
import pytest
from azure.servicebus import ServiceBusMessage, exceptions

import sbpair.aio
from sbpair import ServiceBusClient, open_pairing
from sbpair.azure.wire import encode_outgoing
from sbpair.core.errors import Category, MessageTooLargeError
from sbpair.core.rewrite import compose
from sbpair.emulator import EmulatorThread, NamespaceConfig
from sbpair.emulator.entities import QueueDescription
from sbpair.runtime.failover.sender import SentTo
from sbpair.service import Tier
from tests.clients.conftest import FAST, QUEUES, World, backlog_queue

LIMIT_BYTES = 256 * 1024
KEYS = ("a", "b", None, "a", "c", "b", "a")
"""Partition keys of a batch as an ordinary queue takes it."""


@pytest.fixture
def world() -> Iterator[World]:
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        emulator.namespace("contoso").create_queue("sessions", QueueDescription(requires_session=True))
        for index in range(QUEUES):
            emulator.namespace("fabrikam").create_queue(
                backlog_queue(index), QueueDescription(enable_partitioning=True)
            )
        yield World(emulator)


def a_client(world: World, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(), **FAST} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


def keyed() -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"{key}{number}", partition_key=key) for number, key in enumerate(KEYS)]


def test_the_embedded_namespace_refuses_a_batch_with_several_keys_on_a_partitioned_entity(world: World) -> None:
    with sdk.ServiceBusClient.from_connection_string(world.connection_string("fabrikam")) as client:
        sender = client.get_queue_sender(backlog_queue(0))
        for wrong in (
            keyed(),
            [ServiceBusMessage("x", session_id=one) for one in "ab"],
            [ServiceBusMessage("x", session_id="a"), ServiceBusMessage("x")],
        ):
            with pytest.raises(exceptions.ServiceBusError, match="distinct SessionId or PartitionKey"):
                sender.send_messages(wrong)
        sender.send_messages([ServiceBusMessage("x", partition_key="a") for _ in range(3)])
        sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
        sender.close()
    assert len(world.backlog()) == 6


def test_a_batch_with_several_keys_is_split_and_the_order_within_a_key_stays(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        for _ in range(2):
            sender.send_messages(keyed())
        batch = sender.create_message_batch()
        for one in keyed():
            batch.add_message(one)
        sender.send_messages(batch)
        client.fail_back("orders")
    assert world.drain() == 3 * len(KEYS)
    found = world.bodies("orders")
    for key in ("a", "b", "c", "None"):
        expected = [f"{key}{number}" for number, one in enumerate(KEYS) if str(one) == key] * 3
        assert [body for body in found if body.startswith(key)] == expected


async def test_so_does_the_asynchronous_client_with_sessions(world: World) -> None:
    client = sbpair.aio.ServiceBusClient.from_connection_string(world.connection_string(), pair=world.pair(), **FAST)
    async with client, client.get_queue_sender("sessions") as sender:
        await asyncio.to_thread(client.force_failover, "sessions")
        await sender.send_messages([ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(6)])
    assert await asyncio.to_thread(world.drain) == 6


def largest(session_id: str | None, *, spare_bytes: int = 0) -> ServiceBusMessage:
    """The largest message with this session that a link of the primary takes, less a few bytes."""
    size = LIMIT_BYTES - 400
    while True:
        message = ServiceBusMessage(b"x" * size, message_id="m", session_id=session_id)
        if not (missing := LIMIT_BYTES - spare_bytes - len(encode_outgoing(message)[0])):
            return message
        size += missing


def test_a_message_that_only_the_key_of_the_way_back_makes_too_large_comes_back_without_it(world: World) -> None:
    session = "s" * 128
    with a_client(world) as client, client.get_queue_sender("sessions") as sender:
        sender.send_messages(largest(session))
        client.force_failover("sessions")
        sender.send_messages(largest(session, spare_bytes=100))
        client.fail_back("sessions")
    assert world.drain() == 1
    reader = sdk.ServiceBusClient.from_connection_string(world.connection_string())
    with reader, reader.get_queue_receiver("sessions", session_id=session) as receiver:
        found = [one for number in (1, 2) for one in receiver.peek_messages(1, sequence_number=number)]
    assert [(one.session_id, one.partition_key) for one in found] == [(session, None)] * 2


def test_a_message_that_the_backlog_form_makes_too_large_is_refused_with_the_primarys_condition(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(largest(None))
    assert world.backlog() == []


@pytest.fixture
def larger_backlog() -> Iterator[World]:
    """The backlog queues take four times what the primary takes."""
    premium = NamespaceConfig("fabrikam", tier=Tier.PREMIUM)
    with EmulatorThread([NamespaceConfig("contoso", tier=Tier.STANDARD), premium]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        for index in range(QUEUES):
            emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        yield World(emulator)


def test_a_message_above_the_primarys_limit_is_refused_although_the_backlog_would_take_it(
    larger_backlog: World,
) -> None:
    with a_client(larger_backlog) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        with pytest.raises(exceptions.MessageSizeExceededError, match=f"is {LIMIT_BYTES}"):
            sender.send_messages(ServiceBusMessage(b"x" * (LIMIT_BYTES + 1)))
        sender.send_messages(largest(None))
    assert larger_backlog.drain() == 1


@pytest.mark.parametrize("known_by", ["a send", "a verification"])
async def test_so_does_a_pairing_of_ones_own(larger_backlog: World, known_by: str) -> None:
    async with open_pairing(larger_backlog.pair()) as pairing:
        if known_by == "a send":
            await pairing.sender("orders").send(compose(body=b"x", message_id="1"))
        else:
            await pairing.verify(["orders"])
        pairing.force_failover("orders")
        with pytest.raises(MessageTooLargeError, match=f"the limit of orders is {LIMIT_BYTES}") as raised:
            await pairing.sender("orders").send(compose(body=b"x" * (LIMIT_BYTES + 1), message_id="2"))
        assert raised.value.category is Category.TOO_LARGE
        diverted = await pairing.sender("orders").send(encode_outgoing(largest(None))[0], timeout_seconds=20)
        assert diverted.where is SentTo.BACKLOG
    assert await asyncio.to_thread(larger_backlog.drain) == 1
