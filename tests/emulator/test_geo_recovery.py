"""An alias over two Premium namespaces: entities on both, messages on one, and clients that end up at the other."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from sbpair.emulator import AliasConfig, Emulator, EmulatorError, EmulatorThread, NamespaceConfig, Tier
from sbpair.emulator.entities import QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.errors import EntityError
from tests.waiting import LIMIT_SECONDS

PREMIUM = [NamespaceConfig(name, tier=Tier.PREMIUM) for name in ("here", "there")]
ALIAS = AliasConfig("contoso", "here", "there")


@pytest.fixture
def paired() -> Iterator[EmulatorThread]:
    with EmulatorThread(PREMIUM, aliases=[ALIAS]) as emulator:
        yield emulator


def entities(namespace: Namespace) -> dict[str, object]:
    """Everything that a namespace has, by path, with rules."""
    found: dict[str, object] = {queue.path: queue.description for queue in namespace.queues()}
    for topic in namespace.topics():
        found[topic.path] = topic.description
        for one in topic.subscriptions.values():
            rules = {rule.name: rule.description for rule in one.rules.values()}
            found[one.path] = (one.description, rules)
    return found


@pytest.mark.law("geo-recovery")
async def test_entities_are_on_both_whatever_becomes_of_them_and_no_message_is() -> None:
    async with Emulator(PREMIUM, aliases=[ALIAS]) as emulator:
        here, there = emulator.namespace("here"), emulator.namespace("there")
        here.create_queue("orders", QueueDescription(max_delivery_count=3))
        here.create_queue("onward", QueueDescription(forward_to="orders"))
        here.create_topic("news")
        here.create_subscription("news", "all", SubscriptionDescription(lock_duration_seconds=20.0))
        here.create_rule("news", "all", "big", RuleDescription(filter=SqlFilter(expression="amount > 5")))
        assert entities(there) == entities(here)
        here.update_queue("orders", replace(here.queues()[1].description, max_delivery_count=5))
        here.update_rule("news", "all", "big", RuleDescription(filter=SqlFilter(expression="amount > 6")))
        here.delete_rule("news", "all", "$Default")
        here.create_subscription("news", "gone")
        here.delete_subscription("news", "gone")
        assert entities(there) == entities(here)
        here.delete_queue("onward")
        here.delete_topic("news")
        assert list(entities(there)) == list(entities(here)) == ["orders"]
        emulator.fail_over("contoso")
        here.create_queue("later")
        assert there.get_queue("later") is None, "the pairing has ended"
        with pytest.raises(EntityError, match="not paired"):
            emulator.fail_over("contoso")


async def test_what_was_there_before_the_pairing_is_copied() -> None:
    async with Emulator(PREMIUM) as emulator:
        here, there = emulator.namespace("here"), emulator.namespace("there")
        here.create_queue("z")
        here.create_queue("a", QueueDescription(forward_to="z"))
        here.create_topic("news")
        here.create_subscription("news", "all", SubscriptionDescription(forward_to="a"))
        from sbpair.emulator.geo_recovery import first_pairing

        first_pairing(ALIAS, here, there)
        assert entities(there) == entities(here)


async def test_a_namespace_that_is_not_premium_or_not_empty_is_not_paired() -> None:
    with pytest.raises(EmulatorError, match="two Premium namespaces"):
        async with Emulator(["here", "there"], aliases=[ALIAS]):
            pass
    async with Emulator(PREMIUM) as emulator:
        from sbpair.emulator.geo_recovery import first_pairing

        emulator.namespace("there").create_queue("mine")
        with pytest.raises(EmulatorError, match="must be empty"):
            first_pairing(ALIAS, emulator.namespace("here"), emulator.namespace("there"))


def bodies(text: str) -> list[str]:
    with ServiceBusClient.from_connection_string(text) as client, client.get_queue_receiver("orders") as receiver:
        return [str(message) for message in receiver.peek_messages(10)]


def test_clients_of_the_alias_reach_the_other_namespace_with_the_same_connection_string(paired: EmulatorThread) -> None:
    paired.namespace("here").create_queue("orders")
    text = paired.alias_connection_string("contoso")
    client = ServiceBusClient.from_connection_string(text, retry_total=8, retry_backoff_factor=0.1)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        paired.fail_over("contoso")
        for _ in range(5):  # the connection is lost: an SDK's client may say so once
            try:
                sender.send_messages(ServiceBusMessage("after"))
            except (ServiceBusError, OSError):
                continue
            break
    assert paired.alias_connection_string("contoso") == text
    assert set(bodies(text)) == set(bodies(paired.connection_string("there"))) == {"after"}
    assert bodies(paired.connection_string("here")) == ["before"]


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the connection was closed or cut."""
    try:
        while await asyncio.wait_for(reader.read(100), LIMIT_SECONDS):
            pass
    except ConnectionError:
        pass  # cut


async def test_connections_of_the_alias_are_cut_and_those_of_the_namespace_stay() -> None:
    async with Emulator(PREMIUM, aliases=[ALIAS]) as emulator:
        fields = dict(part.partition("=")[::2] for part in emulator.alias_connection_string("contoso").split(";"))
        port = int(fields["Endpoint"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        assert await asyncio.wait_for(reader.read(8), LIMIT_SECONDS) == b"AMQP\x00\x01\x00\x00"
        own_reader, own_writer = await asyncio.open_connection("127.0.0.1", emulator.namespace("here").port)
        own_writer.write(b"AMQP\x00\x01\x00\x00")
        assert await asyncio.wait_for(own_reader.read(8), LIMIT_SECONDS) == b"AMQP\x00\x01\x00\x00"
        emulator.fail_over("contoso")
        await ended(reader)
        assert not own_reader.at_eof()
        for one in (writer, own_writer):
            one.close()
