"""Geo-Replication: what a promotion loses and brings back, and the time in which the namespace is read only."""

import aiohttp
import pytest

from sbpair.amqp.sections import PropertyField, build
from sbpair.emulator import Emulator, NamespaceConfig, Tier
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import SERVER_BUSY, BrokerError
from tests.emulator.admin.conftest import ARM_TOKEN

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
