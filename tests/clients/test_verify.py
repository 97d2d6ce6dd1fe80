"""An application learns before an outage whether its failover exists."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

import sbpair.aio
from sbpair import ServiceBusClient, ServiceBusSender, open_pairing
from sbpair.azure.wire import lacks
from sbpair.core.errors import IncompatibleSdkError, PairingError
from sbpair.core.pairing import Condition
from sbpair.emulator import EmulatorThread, NamespaceConfig
from sbpair.emulator.namespace import new_auth_rule
from sbpair.events import NotReady, PairingNoticed, Ready
from sbpair.service import Tier
from tests.clients.conftest import FAST, QUEUES, World, backlog_queue, own_threads, wait_until


def a_client(world: World, verify: str, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(verify=verify), "on_event": world.events.append, **FAST} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


def take_away(world: World, count: int = QUEUES) -> None:
    for index in range(count):
        world.emulator.namespace("fabrikam").delete_queue(backlog_queue(index))


def test_nothing_is_said_of_what_was_not_seen(world: World) -> None:
    with a_client(world, "off") as client:
        state = client.state()
        assert (state.primary, state.secondary) == (Condition.UNKNOWN, Condition.UNKNOWN)
        assert {queue.in_rotation for queue in state.backlog} == {None}
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("1"))
        assert client.state().primary is Condition.OPEN
        assert client.verification is None


def test_all_is_there(world: World) -> None:
    with a_client(world, "off") as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("1"))
        found = client.verify()
        assert (found.ready, found.problems) == (True, ())
        assert found.usable_queues == tuple(map(backlog_queue, range(QUEUES)))
        state = client.state()
        assert (state.primary, state.secondary) == (Condition.OPEN, Condition.OPEN)
        assert {queue.in_rotation for queue in state.backlog} == {True}
    assert world.backlog() == []
    assert world.bodies("orders") == ["1"]
    assert world.of(NotReady) == []


def test_a_client_that_is_closed_at_once_verifies_no_more(world: World) -> None:
    """What its first sender has begun in the background may not be open yet."""
    clients = [a_client(world, "warn", verify_interval=0.2) for _ in range(10)]
    for client in clients:
        client.get_queue_sender("orders")
        client.close()
    wait_until(lambda: own_threads() == [])


async def test_so_does_the_asynchronous_client(world: World) -> None:
    arguments: dict[str, object] = {"pair": world.pair(verify="warn"), **FAST}
    clients = [
        sbpair.aio.ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]
        for _ in range(10)
    ]
    for client in clients:
        client.get_queue_sender("orders")
        await client.close()
    await asyncio.to_thread(wait_until, lambda: own_threads() == [])


def test_a_warning_comes_once_and_its_end_is_announced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    take_away(world)
    with a_client(world, "warn", verify_interval=0.2) as client:
        sender = client.get_queue_sender("orders")
        wait_until(lambda: world.of(NotReady) != [])
        sender.send_messages(ServiceBusMessage("1"))
        wait_until(lambda: client.state().secondary is Condition.FAULTED)
        assert client.verification is not None
        assert not client.verification.ready
        assert {queue.in_rotation for queue in client.state().backlog} == {False}
        for index in range(QUEUES):
            world.emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        wait_until(lambda: world.of(Ready) != [])
        wait_until(lambda: client.verification is not None and client.verification.ready)
        assert client.state().secondary is Condition.OPEN
    told = [event.problems for event in world.of(NotReady) if isinstance(event, NotReady)]
    assert len(told) == len(set(told)), "the same is not repeated"
    assert "created with: sbpair provision" in caplog.text
    assert "2 other queues as well" in caplog.text


@pytest.mark.parametrize("verify", ["warn", "require"])
def test_a_readiness_probe_needs_one_call_and_no_sender(world: World, verify: str) -> None:
    take_away(world)
    with a_client(world, verify) as client:
        assert not client.is_ready()
        wait_until(lambda: client.verification is not None)
        assert not client.is_ready()
        for index in range(QUEUES):
            world.emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        wait_until(client.is_ready)
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("1"))
    assert not client.is_ready()


def test_without_verification_readiness_is_not_claimed(world: World) -> None:
    with a_client(world, "off") as client:
        assert not client.is_ready()
        client.verify()
        assert client.is_ready()


@pytest.fixture
def without_failover(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A release of the SDK that has not what encodes messages for the backlog."""
    monkeypatch.delattr(PyamqpTransport, "encode_message")
    lacks.cache_clear()
    yield
    lacks.cache_clear()


@pytest.mark.usefixtures("without_failover")
def test_a_release_without_the_parts_costs_the_failover_and_says_so(world: World) -> None:
    with a_client(world, "warn") as client:
        with client.get_queue_sender("orders") as sender:
            assert not isinstance(sender, ServiceBusSender)
            sender.send_messages(ServiceBusMessage("1"))
        client.get_queue_sender("orders").close()
        assert not client.is_ready()
    (event,) = world.of(NotReady)
    assert "send without failover" in str(event)
    with a_client(world, "require") as client, pytest.raises(IncompatibleSdkError, match="send without failover"):
        client.get_queue_sender("orders")
    assert world.bodies("orders") == ["1"]


def test_one_missing_queue_is_a_problem_and_no_obstacle(world: World) -> None:
    take_away(world, 1)
    with a_client(world, "require") as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("1"))
        assert client.verification is not None
        (problem,) = client.verification.problems
        assert backlog_queue(0) in problem
        assert problem.endswith("(status 404). Missing backlog queues are created with: sbpair provision")


def test_a_key_that_may_not_send_is_found(world: World) -> None:
    rule = new_auth_rule("listener", {"Listen"})
    world.emulator.namespace("fabrikam").set_auth_rule(rule)
    secondary = world.emulator.connection_string("fabrikam", "listener")
    client = ServiceBusClient.from_connection_string(
        world.connection_string(), secondary=secondary, backlog_queues=QUEUES, verify="off", **FAST
    )
    with client:
        found = client.verify()
    assert not found.ready
    assert "Send" in " ".join(found.problems)


def test_an_entity_that_is_missing_is_named(world: World) -> None:
    with a_client(world, "off") as client:
        found = client._failover.call(client._failover.verify(["missing"]))
    assert found.ready
    assert "missing" in " ".join(found.problems)


def test_entities_with_a_sender_are_tried_in_the_background(world: World) -> None:
    with a_client(world, "warn", verify_interval=0.2) as client:
        client.get_queue_sender("missing")
        wait_until(lambda: any("missing" in str(event) for event in world.of(NotReady)))


def test_a_backlog_that_takes_less_than_the_primary_is_named() -> None:
    with EmulatorThread([NamespaceConfig("contoso", tier=Tier.PREMIUM), "fabrikam"]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        for index in range(QUEUES):
            emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        with a_client(World(emulator), "off") as client:
            found = client._failover.call(client._failover.verify(["orders"]))
    assert found.ready
    assert "larger ones cannot be diverted" in " ".join(found.problems)


@pytest.mark.parametrize("simple", [True, False])
def test_require_raises_at_the_first_call_until_all_is_there(world: World, simple: bool) -> None:
    take_away(world)
    with a_client(world, "require") as client:
        sender = client.get_queue_sender("orders")
        message = ServiceBusMessage("1")
        with pytest.raises(exceptions.ServiceBusError, match="verify='require'"):
            sender.send_messages(message if simple else [message])
        world.emulator.namespace("fabrikam").create_queue(backlog_queue(1))
        sender.send_messages(message)
    assert world.bodies("orders") == ["1"]


async def test_the_asynchronous_client_as_well(world: World) -> None:
    await asyncio.to_thread(take_away, world)
    client = sbpair.aio.ServiceBusClient.from_connection_string(
        world.connection_string(), pair=world.pair(verify="require"), **FAST
    )
    async with client:
        assert not (await client.verify()).ready
        sender = client.get_queue_sender("orders")
        with pytest.raises(exceptions.ServiceBusError, match="verify='require'"):
            await sender.send_messages(ServiceBusMessage("1"))


def test_missing_queues_are_created_where_that_is_asked_for(world: World) -> None:
    take_away(world)
    pair = world.pair(verify="require")
    pair = replace(pair, secondary=replace(pair.secondary, ca_file=str(world.emulator.ca_path)))
    with (
        a_client(world, "require", pair=pair, create_missing=True) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("1"))
        assert client.verify().usable_queues == tuple(map(backlog_queue, range(QUEUES)))


def test_queues_that_cannot_be_created_hold_no_message_up(world: World) -> None:
    """The reason comes with what helps; queues that are there serve. (Here: nothing says which authority to trust.)"""
    pair = replace(world.pair(), options=replace(world.pair().options, create_missing=True))
    with a_client(world, "off", pair=pair) as client, client.get_queue_sender("orders") as sender:
        world.dark()
        sender.send_messages(ServiceBusMessage("1"), timeout=30)
    (noticed,) = world.of(PairingNoticed)
    assert isinstance(noticed, PairingNoticed)
    assert "not trusted" in noticed.message
    assert "ca_file" in noticed.message
    assert world.backlog() == ["1"]


def test_the_authority_that_the_client_is_given_is_that_of_the_secondarys_administration(world: World) -> None:
    take_away(world)
    pair = world.pair()
    with ServiceBusClient.from_connection_string(
        world.connection_string(),
        secondary=world.connection_string("fabrikam"),
        connection_verify=str(world.emulator.ca_path),
        backlog_queues=QUEUES,
        create_missing=True,
    ) as client:
        assert client.verify().usable_queues == pair.backlog_paths()


async def test_a_pairing_of_ones_own_requires_it_too(world: World) -> None:
    await asyncio.to_thread(take_away, world)
    with pytest.raises(PairingError, match="would lose messages"):
        async with open_pairing(world.pair(verify="require")):
            pass
    async with open_pairing(world.pair(verify="off")) as pairing:
        assert pairing.backlog_queue_count == QUEUES
        await pairing.verify()
        assert pairing.backlog_queue_count == 0
