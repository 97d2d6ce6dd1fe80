"""Rules of the service that show on the wire: what a link, a connection and the administration say."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.amqp.performatives import ACCEPTED, ATTACH, DETACH, DISPOSITION, OPEN, TRANSFER
from sbpair.amqp.sections import Section, build, read, scan
from sbpair.amqp.types import Array, Described, Int, Long, Symbol, Uint, Ulong, Ushort
from sbpair.core.access import host_of
from sbpair.emulator import Emulator, NamespaceConfig, Tier
from sbpair.emulator.entities import QueueDescription
from sbpair.engine.faults import FaultError, parse_text
from tests.emulator.admin.conftest import ARM_TOKEN
from tests.engine.dialects import AZURE_SERVICEBUS
from tests.engine.wire_client import Client, seen

NON_EXCLUSIVE = Symbol("com.microsoft:non-exclusive-session-filter")


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator([NamespaceConfig("standard"), NamespaceConfig("premium", Tier.PREMIUM)]) as running:
        for name in ("standard", "premium"):
            namespace = running.namespace(name)
            namespace.create_queue("q")
            namespace.create_queue("sessions", QueueDescription(requires_session=True))
            namespace.create_topic("t")
            namespace.create_subscription("t", "s")
        yield running


@asynccontextmanager
async def connected(emulator: Emulator, name: str = "premium", **properties: Any) -> AsyncIterator[Client]:
    """A client with the root key's rights to everything, and these properties on each of its links."""
    host, _, port = emulator.endpoint(name).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    given = {Symbol(f"com.microsoft:{key.replace('_', '-')}"): value for key, value in properties.items()}
    client = Client(reader, writer, replace(AZURE_SERVICEBUS, link_properties=given))
    try:
        key = emulator.namespace(name).auth_rules["RootManageSharedAccessKey"].primary_key
        await client.login("PLAIN", b"\0RootManageSharedAccessKey\0" + key.encode())
        await client.open()
        await client.begin()
        yield client
    finally:
        writer.close()


async def attached(client: Client, address: str, *, sends: bool, handle: int = 0, **source: Any) -> tuple[Any, Any]:
    """The answer of an attach, and the error of the detach that follows one without a terminus."""
    client.attach(handle, address, sends=sends, **source)
    answer = await client.until(ATTACH)
    refused = answer.field(5) is None and answer.field(6) is None
    return answer, (await client.until(DETACH)).error[0] if refused else None


# -- The kind of entity that a client takes an address for


@pytest.mark.law("entity-type")
@pytest.mark.parametrize(
    ("kind", "address", "sends", "refused"),
    [
        (0, "q", True, False),
        (0, "q", False, False),
        (1, "t", True, False),
        (2, "t/Subscriptions/s", False, False),
        (1, "q", True, True),
        (2, "q", False, True),
        (0, "t", True, True),
        (0, "t/Subscriptions/s", False, True),
        (7, "q", True, False),
    ],
)
async def test_a_client_that_takes_an_entity_for_another_kind_is_refused(
    emulator: Emulator, kind: int, address: str, sends: bool, refused: bool
) -> None:
    async with connected(emulator, entity_type=Int(kind)) as client:
        _, error = await attached(client, address, sends=sends)
    assert error == ("amqp:not-allowed" if refused else None)


# -- The node for tokens


@pytest.mark.law("single-cbs-sender")
async def test_a_second_sender_to_the_node_for_tokens_is_refused_until_the_first_is_gone(emulator: Emulator) -> None:
    async with connected(emulator) as client:
        assert (await attached(client, "$cbs", sends=True, handle=0))[1] is None
        assert (await attached(client, "$cbs", sends=True, handle=1))[1] == "amqp:not-allowed"
        assert (await attached(client, "$cbs/other", sends=True, handle=2))[1] is None
        client.send(DETACH, [Uint(0), True])
        await client.until(DETACH)
        assert (await attached(client, "$cbs", sends=True, handle=3))[1] is None
    async with connected(emulator) as another:
        assert (await attached(another, "$cbs", sends=True))[1] is None


# -- JMS: the delivery delay


@pytest.mark.law("delivery-delay")
@pytest.mark.parametrize(("name", "offered"), [("premium", True), ("standard", False)])
async def test_a_connection_that_asks_for_delayed_delivery_is_offered_it_by_premium(
    emulator: Emulator, name: str, offered: bool
) -> None:
    host, _, port = emulator.endpoint(name).rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port)), AZURE_SERVICEBUS)
    await client.login("ANONYMOUS")
    client.raw(b"AMQP\0\x01\0\0")
    await client.header()
    asked = Array(0xA3, (Symbol("sole-connection-for-container"), Symbol("DELAYED_DELIVERY")))
    client.send(OPEN, ["jms", "localhost", None, Ushort(100), None, None, None, None, asked])
    answer = await client.next()
    client.writer.close()
    assert answer.field(7) == (Array(0xA3, (Symbol("DELAYED_DELIVERY"),)) if offered else None)


async def test_a_delivery_time_schedules_the_message(emulator: Emulator) -> None:
    namespace = emulator.namespace("premium")
    queue = namespace.get_queue("q")
    assert queue is not None
    later = Long(round((namespace.clock.now() + 600) * 1000))
    async with connected(emulator) as client:
        await client.sender("q")
        client.transfer(0, build(message_annotations={Symbol("x-opt-delivery-time"): later}, data=b"x"))
        await client.next()
    assert (queue.counts().scheduled, queue.counts().active) == (1, 0)


# -- Sessions that are not exclusive


def asked(session_id: str | None, token: uuid.UUID | None = None) -> dict[Any, Any]:
    return {NON_EXCLUSIVE: Described(Ulong(0x13700000E), [session_id, token])}


def granted(answer: Any) -> tuple[str, uuid.UUID]:
    session_id, token = answer.field(5).value[7][NON_EXCLUSIVE].value
    return session_id, token


@pytest.mark.law("non-exclusive-sessions")
async def test_a_session_that_is_not_exclusive_is_taken_over_with_its_token(emulator: Emulator) -> None:
    queue = emulator.namespace("premium").get_queue("sessions")
    assert queue is not None
    sdk = ServiceBusClient.from_connection_string(emulator.connection_string("premium"))
    async with sdk, sdk.get_queue_sender("sessions") as sender:
        await sender.send_messages([ServiceBusMessage(body, session_id="a") for body in ("1", "2")])
    async with connected(emulator) as first, connected(emulator) as second, connected(emulator) as third:
        answer, _ = await attached(first, "sessions", sends=False, handle=1, filter=asked(None))
        session_id, token = granted(answer)
        assert session_id == "a"
        first.credit(1, 1)
        held = await first.until(TRANSFER)
        assert (await attached(third, "sessions", sends=False, filter=asked("a")))[1] is not None
        assert (await attached(third, "sessions", sends=False, handle=2, filter=asked("a", uuid.uuid4())))[
            1
        ] is not None
        answer, error = await attached(second, "sessions", sends=False, handle=1, filter=asked("a", token))
        assert (error, granted(answer)) == (None, ("a", token))
        assert (await first.until(DETACH)).error[0] == "com.microsoft:session-lock-lost"
        second.credit(5, 1)
        following = await second.until(TRANSFER)
        assert read(following.payload, scan(following.payload), Section.DATA) == b"2"  # the first is still locked
        queue.main.complete(uuid.UUID(bytes_le=held.field(2)))
    assert queue.counts().active == 1


async def test_what_is_no_token_and_other_tiers_are_refused(emulator: Emulator) -> None:
    async with connected(emulator) as client:
        wrong = {NON_EXCLUSIVE: Described(Ulong(0x13700000E), ["a", "token"])}
        assert (await attached(client, "sessions", sends=False, filter=wrong))[1] == "amqp:invalid-field"
        assert (await attached(client, "q", sends=False, handle=1, filter=asked("a")))[1] == "amqp:not-allowed"
    async with connected(emulator, "standard") as client:
        assert (await attached(client, "sessions", sends=False, filter=asked("a")))[1] == "amqp:not-implemented"


# -- Settled after the connection was cut


@pytest.mark.law("locks-outlive-connections")
async def test_a_message_is_completed_on_another_connection_than_it_came_on(emulator: Emulator) -> None:
    """The lock of a queue without sessions outlives its connection: its token settles the message on any other."""
    queue = emulator.namespace("premium").get_queue("q")
    assert queue is not None
    text = emulator.connection_string("premium")
    async with ServiceBusClient.from_connection_string(text) as sdk, sdk.get_queue_sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    async with connected(emulator) as cut:
        await cut.receiver("q", 1, credit=1)
        token = (await cut.until(TRANSFER)).field(2)
        cut.writer.transport.abort()
    async with connected(emulator) as client:
        await client.sender("q/$management", 0)
        await client.receiver("q/$management", 1, credit=1)
        body = {"disposition-status": "completed", "lock-tokens": Array(0x98, (uuid.UUID(bytes_le=token),))}
        request = build(
            properties=["r", None, None, None, "reply-1"],
            application_properties={"operation": "com.microsoft:update-disposition"},
            value=body,
        )
        client.transfer(0, request)
        answer = await client.until(TRANSFER)
        found = read(answer.payload, scan(answer.payload), Section.APPLICATION_PROPERTIES)
    assert found["statusCode"] == 200
    assert queue.counts().active == 0


# -- Faults


async def test_a_settlement_is_done_at_once_and_confirmed_later(emulator: Emulator) -> None:
    queue = emulator.namespace("premium").get_queue("q")
    assert queue is not None
    for number in range(12):
        queue.send(build(data=b"%d" % number))
    emulator.faults("premium").add("settle-delay:rtt=900ms,p=0.5")
    emulator.faults("premium").add("settle-delay:rtt=200ms")
    async with connected(emulator) as client:
        await client.receiver("q", 1, credit=12)
        held = [(await client.until(TRANSFER)).field(1) for _ in range(12)]
        began = asyncio.get_running_loop().time()
        client.settle(held[0], held[-1], Described(Ulong(ACCEPTED), []))
        await seen(lambda: queue.counts().active == 0)
        waits = []
        while len(waits) < len(held):
            confirmed = await client.until(DISPOSITION)
            wait = asyncio.get_running_loop().time() - began
            waits += [wait] * ((confirmed.field(2) or confirmed.field(1)) - confirmed.field(1) + 1)
    assert min(waits) >= 0.2
    assert sum(wait >= 0.9 for wait in waits) in range(1, 12)


@pytest.mark.parametrize("text", ["settle-delay", "settle-delay:rtt=1s,op=send", "throttle:rtt=1s"])
def test_a_delay_of_settlements_has_a_time_and_no_other_operation(text: str) -> None:
    with pytest.raises(FaultError):
        parse_text(text)


# -- Administration


def administration(emulator: Emulator, name: str) -> ServiceBusAdministrationClient:
    transport = AioHttpTransport(connection_verify=str(emulator.ca_path))
    text = emulator.connection_string(name)
    return ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)


@pytest.mark.law("forwarding-scheme")
async def test_a_forwarding_target_reads_back_with_the_scheme_it_was_given(emulator: Emulator) -> None:
    given = f"https://{host_of(emulator.connection_string('premium'))}/q"
    async with administration(emulator, "premium") as admin:
        made = await admin.create_queue("start", forward_to=given, forward_dead_lettered_messages_to="q")
        assert made.forward_to == (await admin.get_queue("start")).forward_to == given
        assert str(made.forward_dead_lettered_messages_to).startswith("sb://")
    namespace = emulator.namespace("premium")
    start, target = namespace.get_queue("start"), namespace.get_queue("q")
    assert start is not None
    assert target is not None
    start.send(build(data=b"x"))
    await seen(lambda: target.counts().active == 1)


@pytest.mark.law("limited-while-partition-away")
async def test_an_entity_with_a_partition_away_is_limited(emulator: Emulator) -> None:
    namespace = emulator.namespace("standard")
    namespace.create_queue("parts", QueueDescription(enable_partitioning=True))
    async with administration(emulator, "standard") as admin:
        assert (await admin.get_queue("parts")).availability_status == "Available"
        emulator.faults("standard").add("partition-down:partition=3")
        assert (await admin.get_queue("parts")).availability_status == "Limited"
        assert (await admin.get_queue("q")).availability_status == "Available"


async def test_on_the_services_own_port_the_resource_manager_names_each_namespaces_address() -> None:
    """Whatever address the resource manager itself was reached at."""
    configs = [
        NamespaceConfig("one", port=5671, host="127.0.83.2"),
        NamespaceConfig("two", port=5671, host="127.0.83.3"),
    ]
    async with Emulator(configs) as running:
        path = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg/providers/Microsoft.ServiceBus"
        root = f"http://127.0.83.2:5671{path}/namespaces/two"
        headers = {"Authorization": f"Bearer {ARM_TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{root}?api-version=2024-01-01") as answer:
                found = json.loads(await answer.text())
            keys = f"{root}/authorizationRules/RootManageSharedAccessKey/listKeys?api-version=2024-01-01"
            async with session.post(keys) as answer:
                text = json.loads(await answer.text())["primaryConnectionString"]
        assert found["properties"]["serviceBusEndpoint"] == "https://127.0.83.3/"
        assert text == running.connection_string("two")
