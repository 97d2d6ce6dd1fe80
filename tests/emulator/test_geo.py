"""An alias over two Premium namespaces: entities on both, messages on one, and clients that end up at the other."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from sbpair.amqp.sections import PropertyField, build
from sbpair.emulator import AliasConfig, Emulator, EmulatorError, EmulatorThread, NamespaceConfig, Tier
from sbpair.emulator.entities import QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import SERVER_BUSY, BrokerError, EntityError
from tests.emulator.admin.conftest import ARM_TOKEN
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
        from sbpair.emulator.geo import first_pairing

        first_pairing(ALIAS, here, there)
        assert entities(there) == entities(here)


async def test_a_namespace_that_is_not_premium_or_not_empty_is_not_paired() -> None:
    with pytest.raises(EmulatorError, match="two Premium namespaces"):
        async with Emulator(["here", "there"], aliases=[ALIAS]):
            pass
    async with Emulator(PREMIUM) as emulator:
        from sbpair.emulator.geo import first_pairing

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


# Geo-Replication: what a promotion loses and brings back, and the time in which the namespace is read only.

LAG_SECONDS = 30.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def namespace(clock: ManualClock) -> Namespace:
    made = Namespace("primary", clock=clock)
    made.create_queue("q", QueueDescription(lock_duration_seconds=300))
    return made


class Inbox:
    """Takes what it is handed."""

    settled = False
    session_id = None

    def __init__(self) -> None:
        self.got = []

    def room(self) -> int:
        return 100 - len(self.got)

    def admit(self, lock_seconds):
        return lock_seconds

    def hand(self, message, lock) -> None:
        self.got.append((message.message_id, lock.token))

    def detach(self, condition: str, description: str) -> None:
        """It is not asked again."""


def send(namespace: Namespace, *names: str) -> None:
    for name in names:
        namespace.get_queue("q").send(build(properties={PropertyField.MESSAGE_ID: name}, data=b"x"))


def receive(namespace: Namespace) -> dict[str, object]:
    inbox = Inbox()
    box = namespace.get_queue("q").main
    box.want(inbox)
    box.leave(inbox)
    return dict(inbox.got)


def there(namespace: Namespace) -> dict[str, str]:
    return {message.message_id: message.state.name for message in namespace.get_queue("q").main.log}


@pytest.mark.law("forced-promotion-loses-tail", "completions-come-back")
def test_a_forced_promotion_loses_the_tail_and_brings_completions_back(
    namespace: Namespace, clock: ManualClock
) -> None:
    send(namespace, "before it was replicated")
    namespace.replicate_geo(LAG_SECONDS)
    send(namespace, "completed long ago", "completed", "deferred", "held")
    box = namespace.get_queue("q").main
    tokens = receive(namespace)
    box.complete(tokens["completed long ago"])
    clock.advance(LAG_SECONDS + 1)
    box.complete(tokens["completed"])
    box.complete(tokens["before it was replicated"])
    box.defer(tokens["deferred"])
    send(namespace, "lost")
    done = []
    namespace.geo_replication.promote(lambda: done.append(True), forced=True)
    assert done == [True]
    clock.advance(1)
    assert there(namespace) == dict.fromkeys(("before it was replicated", "completed", "deferred", "held"), "ACTIVE")
    assert set(receive(namespace)) == set(there(namespace))  # no lock is known there
    assert box.entity.quota.used_bytes == sum(len(message.payload) for message in box.log)


def test_what_was_sent_and_completed_within_the_lag_is_lost_with_both(namespace: Namespace) -> None:
    namespace.replicate_geo(LAG_SECONDS)
    send(namespace, "a", "b")
    namespace.get_queue("q").main.complete(receive(namespace)["a"])
    namespace.geo_replication.promote(list, forced=True)
    assert there(namespace) == {}


@pytest.mark.law("planned-promotion-read-only")
def test_a_planned_promotion_is_read_only_until_the_other_region_has_everything(
    namespace: Namespace, clock: ManualClock
) -> None:
    namespace.replicate_geo(LAG_SECONDS)
    send(namespace, "a")
    done = []
    namespace.geo_replication.promote(lambda: done.append(True), forced=False)
    with pytest.raises(BrokerError) as caught:
        namespace.check_store()
    assert (caught.value.condition, done) == (SERVER_BUSY, [])
    clock.advance(LAG_SECONDS)
    namespace.check_store()
    assert (done, there(namespace)) == ([True], {"a": "ACTIVE"})


def test_synchronous_replication_loses_nothing(namespace: Namespace) -> None:
    namespace.replicate_geo(0.0)
    send(namespace, "a", "b")
    namespace.get_queue("q").main.complete(receive(namespace)["a"])
    namespace.geo_replication.promote(list, forced=True)
    assert there(namespace) == {"b": "ACTIVE"}
    namespace.replicate_geo(None)
    send(namespace, "c")
    assert (namespace.geo_replication, len(there(namespace))) == (None, 2)


async def test_the_resource_manager_replicates_and_promotes() -> None:
    """With a lag, as a client of the management SDK asks for it; a planned promotion refuses changes of entities."""
    async with Emulator([NamespaceConfig("premium", Tier.PREMIUM)]) as running:
        namespace = running.namespace("premium")
        namespace.create_queue("q")
        path = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg/providers/Microsoft.ServiceBus"
        root = f"http://{running.endpoint('premium')}{path}/namespaces/premium"
        version, headers = "?api-version=2024-01-01", {"Authorization": f"Bearer {ARM_TOKEN}"}
        places = [{"locationName": "westeurope", "roleType": "Primary"}, {"locationName": "eastus"}]
        replication = {"maxReplicationLagDurationInSeconds": 300, "locations": places}
        async with aiohttp.ClientSession(headers=headers) as session:

            async def ask(method: str, rest: str, body: object) -> int:
                async with session.request(method, f"{root}{rest}{version}", json=body) as answer:
                    return answer.status

            replicated = {"properties": {"geoDataReplication": replication}}
            assert await ask("PATCH", "", replicated) == 200
            send(namespace, "lost")
            wanted = {"properties": {"primaryLocation": "East US", "force": True}}
            assert await ask("POST", "/failover", wanted) == 202
            assert there(namespace) == {}
            back = {"properties": {"primaryLocation": "westeurope"}}
            assert await ask("POST", "/failover", back) == 202
            assert namespace.read_only
            assert await ask("PUT", "/queues/new", {"properties": {}}) == 503
            assert await ask("PATCH", "", {"properties": {"geoDataReplication": {"locations": []}}}) == 503
