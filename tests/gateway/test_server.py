"""Several pairs behind one port, pairs that change while it runs, and several gateways of one pair."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import azure.servicebus as sdk
import pytest
from azure.servicebus.exceptions import ServiceBusError

from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.failover.machine import State
from sbpair.core.pairing import Condition, Pair
from sbpair.gateway.keys import GatewayKey
from tests.clients.conftest import World, backlog_queue, wait_until
from tests.gateway.conftest import KEYS, Running, gateway_of
from tests.gateway.test_diverting import state_of
from tests.gateway.test_passing import AtOnce, client_of


def other_pair(world: World) -> Pair:
    """The same namespaces the other way round: what goes to the one pair is not at the other's primary."""

    def access(name: str) -> NamespaceAccess:
        text = Secret(world.connection_string(name))
        return NamespaceAccess(name, host_of(text.reveal()), AuthMethod.CONNECTION_STRING, text)

    pair = world.pair()
    return Pair("invoicing", access("fabrikam"), access("contoso"), pair.options)


@pytest.fixture
def both(world: World, tmp_path: Path) -> Iterator[Running]:
    world.emulator.namespace("fabrikam").create_queue("orders")
    only = GatewayKey("only", "a-key-for-one-of-the-two-pairs", frozenset({"Send", "Listen"}), pairs=("invoicing",))
    with gateway_of(world.pair(), other_pair(world), folder=tmp_path, keys=(*KEYS, only)) as running:
        running.warm()
        yield running


def by_name(gateway: Running, host: str, key: str = "app", **options: Any) -> sdk.ServiceBusClient:
    """A client that means this host, and finds it at the gateway's address."""
    endpoint = gateway.gateway.endpoint()
    text = gateway.text(key).replace(endpoint, f"{host}:{gateway.gateway.port.number}")
    return AtOnce.from_connection_string(text, custom_endpoint_address=f"sb://{endpoint}", **options)


def send(client: sdk.ServiceBusClient, body: str) -> None:
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage(body))


def test_the_host_name_says_which_pair(world: World, both: Running) -> None:
    """By the pair's name, or by that of its primary."""
    for host in ("embedded.localhost", "contoso.servicebus.windows.net"):
        send(by_name(both, host), host)
    send(by_name(both, "Invoicing.gateway.internal"), "elsewhere")
    send(by_name(both, "invoicing.localhost", "only"), "mine")
    assert world.bodies("orders") == ["embedded.localhost", "contoso.servicebus.windows.net"]
    assert world.bodies("orders", "fabrikam") == ["elsewhere", "mine"]
    with pytest.raises(ServiceBusError):
        send(by_name(both, "embedded.localhost", "only", retry_total=0), "never")
    for host in ("nobody.localhost", "127.0.0.1"):
        with pytest.raises(ServiceBusError):
            send(by_name(both, host, retry_total=0), "never")
    text = both.gateway.connection_string("app", pair="invoicing")
    assert f"sb://invoicing.localhost:{both.gateway.port.number};" in text


def test_each_pair_fails_over_by_itself(world: World, both: Running) -> None:
    world.dark()
    send(by_name(both, "embedded.localhost"), "diverted")
    send(by_name(both, "invoicing.localhost"), "passed")
    assert world.backlog() == ["diverted"]
    assert world.bodies("orders", "fabrikam") == ["passed"]


def test_pairs_change_and_links_stay(world: World, gateway: Running) -> None:
    """A pair with another key is for new connections; the one before goes on, and ends with its last connection."""
    pair = world.pair()
    text = Secret(world.other_key())
    rotated = replace(pair, primary=replace(pair.primary, connection_string=text))
    before = gateway.gateway.house

    def replaced(*pairs: Pair) -> list[str]:
        return asyncio.run_coroutine_threadsafe(gateway.gateway.replace_pairs(pairs), gateway.loop).result()

    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("before"))
        assert replaced(pair) == []
        assert gateway.gateway.house is before
        assert replaced(rotated) == ["embedded"]
        assert gateway.gateway.house is not before
        sender.send_messages(sdk.ServiceBusMessage("on the old link"))
        send(client_of(gateway, retry_total=0), "new")
        world.dark()
        sender.send_messages(sdk.ServiceBusMessage("diverted by the old"))
        assert not before.closing
    wait_until(lambda: before.closing)
    assert gateway.gateway.house.total.accepted == 1
    assert world.backlog() == ["diverted by the old"]


def test_a_healthy_primary_is_no_trouble_and_its_outage_without_backlog_queues_is(
    world: World, gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    house = gateway.gateway.house
    assert gateway.gateway.connection_string("app", pair="embedded") == gateway.gateway.connection_string("app")
    for index in range(3):
        world.emulator.namespace("fabrikam").delete_queue(backlog_queue(index))
    send(client_of(gateway), "passed")
    asyncio.run_coroutine_threadsafe(house.pairing.verify(["orders"]), gateway.loop).result()
    assert gateway.call(house.pairing.state).primary is Condition.OPEN
    assert gateway.call(house.troubles) == []
    gateway.call(lambda: house.pairing.force_failover("orders"))
    assert gateway.call(house.troubles)[-1] == "contoso accepts no messages."

    async def fails() -> None:
        raise RuntimeError("of a link")

    gateway.call(lambda: house.spawn(fails()))
    wait_until(lambda: "of a link" in caplog.text)
    assert house.sending == 0


def test_two_gateways_of_one_pair(world: World, gateway: Running, tmp_path: Path) -> None:
    """Each is a sender of its own; what both divert comes back, sessions in the order of each."""
    with gateway_of(world.pair(), folder=tmp_path / "second") as second:
        for side in (gateway, second):
            send(client_of(side), f"first {side is second}")
        world.dark()
        for number in range(5):
            for name, side in (("a", gateway), ("b", second)):
                with client_of(side, retry_total=0) as client, client.get_queue_sender("orders") as sender:
                    sender.send_messages(sdk.ServiceBusMessage(f"{name}{number}", session_id=name))
        world.light()
        for side in (gateway, second):
            wait_until(lambda side=side: state_of(side) is State.HEALTHY)
        assert len(world.backlog()) == 10
    world.drain()
    bodies = world.bodies("orders")
    assert len(bodies) == 12
    for name in "ab":
        assert [body for body in bodies if body.startswith(name)] == [f"{name}{number}" for number in range(5)]
