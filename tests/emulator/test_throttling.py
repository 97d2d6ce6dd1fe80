"""A namespace that is held to what the service gives one: credits a second, bytes a second, connections, receivers."""

import asyncio
import math
import time
from collections.abc import AsyncIterator

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from sbpair.emulator import Emulator, ManualClock, NamespaceConfig, Tier
from sbpair.emulator.receivers import Receiver
from sbpair.emulator.throttling import Throttling, ThrottlingLimits, limits_of
from sbpair.engine.errors import QUOTA, SERVER_BUSY, BrokerError, EntityError
from tests.waiting import LIMIT_SECONDS

START = 1_800_000_000.0
LIMITS = ThrottlingLimits(credits_per_second=20, max_connections=3, max_receivers=1)


@pytest.mark.law("throttling")
def test_a_second_has_its_credits_and_no_more() -> None:
    clock = ManualClock(START)
    throttling = Throttling("contoso", limits_of(Tier.STANDARD), clock)
    for _ in range(999):
        throttling.charge(1)
    throttling.charge(100)  # a batch that begins within the budget goes through
    with pytest.raises(BrokerError, match=r"contoso is being throttled. Error code: 50009") as refused:
        throttling.charge(1)
    assert refused.value.condition == SERVER_BUSY
    with pytest.raises(EntityError) as answered:
        throttling.charge_management()
    assert answered.value.http_status == 429
    assert (throttling.granted, throttling.refused, throttling.credits_spent) == (1000, 2, 1099)
    clock.advance(1)
    throttling.charge(900)
    assert throttling.is_open()  # 99 are overdrawn, so 1 is left
    throttling.charge_management()
    assert not throttling.is_open()
    clock.advance(2)
    throttling.charge(999)
    assert throttling.is_open()
    assert throttling.busiest_credits == 1099


def test_premium_counts_bytes_in_both_directions() -> None:
    clock = ManualClock(START)
    throttling = Throttling("contoso", limits_of(Tier.PREMIUM, 2), clock)
    throttling.charge(1, 7 * 1024 * 1024)
    throttling.spend(1, 2 * 1024 * 1024)
    with pytest.raises(BrokerError):
        throttling.charge(1, 1)
    clock.advance(1)
    throttling.charge(1_000_000, 1)


@pytest.mark.law("connections")
def test_receivers_and_connections_have_limits() -> None:
    throttling = Throttling("contoso", LIMITS, ManualClock(START))
    assert [throttling.connected(number) for number in range(4)] == [True, True, True, False]
    throttling.disconnected(1)
    assert throttling.connected(4)
    throttling.check_receivers(0, "orders")
    with pytest.raises(BrokerError) as refused:
        throttling.check_receivers(1, "orders")
    assert refused.value.condition == QUOTA


@pytest.fixture
async def throttled() -> AsyncIterator[tuple[Emulator, ManualClock]]:
    """A namespace whose seconds pass when the test says so."""
    clock = ManualClock(math.floor(time.time()))  # the tokens of real clients are to be valid
    async with Emulator([NamespaceConfig("contoso", throttling=LIMITS)], clock=clock) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        yield emulator, clock


async def test_a_browse_costs_what_its_messages_cost(throttled: tuple[Emulator, ManualClock]) -> None:
    emulator, _ = throttled
    orders, throttling = emulator.namespace("contoso").get_queue("orders"), emulator.namespace("contoso").throttling
    assert orders is not None
    assert throttling is not None
    for _ in range(5):
        orders.send(b"\x00\x53\x75\xa0\x01x")
    async with (
        ServiceBusClient.from_connection_string(emulator.connection_string("contoso")) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        before = throttling.credits_spent
        assert len(await receiver.peek_messages(250)) == 5
    assert throttling.credits_spent - before == 5


async def test_a_client_is_told_to_wait_and_loses_nothing(throttled: tuple[Emulator, ManualClock]) -> None:
    emulator, clock = throttled
    orders = emulator.namespace("contoso").get_queue("orders")
    assert orders is not None
    async with (
        ServiceBusClient.from_connection_string(emulator.connection_string("contoso"), retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(25)])
        with pytest.raises(ServiceBusServerBusyError, match="being throttled"):
            await sender.send_messages(ServiceBusMessage("refused"))
        assert orders.counts().active == 25
        async with client.get_queue_receiver("orders") as receiver:
            waiting = asyncio.create_task(receiver.receive_messages(40, max_wait_time=60))
            async with asyncio.timeout(LIMIT_SECONDS):
                while not any(isinstance(link, Receiver) for link in orders.links):
                    await asyncio.sleep(0.01)
            with pytest.raises(ServiceBusError, match="concurrent receivers"):
                async with client.get_queue_receiver("orders"):
                    pass
            assert not waiting.done()  # nothing is handed out before the next second
            clock.advance(1)
            received = list(await waiting)
            for _ in range(3):
                for message in received:
                    await receiver.complete_message(message)
                if orders.counts().active == 0:
                    break
                clock.advance(1)
                received = list(await receiver.receive_messages(40, max_wait_time=60))
    assert orders.counts().active == 0


async def test_administration_costs_ten_credits_a_call(throttled: tuple[Emulator, ManualClock]) -> None:
    emulator, clock = throttled
    async with ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string("contoso"), connection_verify=str(emulator.ca_path), retry_total=0
    ) as administration:
        await administration.get_queue("orders")
        await administration.get_queue("orders")
        with pytest.raises(HttpResponseError) as refused:
            await administration.get_queue("orders")
        assert refused.value.status_code == 429
        assert refused.value.response is not None
        assert refused.value.response.headers["Retry-After"] == "2"
        clock.advance(1)
        assert (await administration.get_queue("orders")).name == "orders"
