"""Failover over real sockets: the SDK's connections against embedded namespaces with injected faults."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.entities import EntityStatus
from sbpair.core.errors import AccessDeniedError, EntityNotFoundError, ServerBusyError, ServiceError
from sbpair.core.events import BacklogQueueLeft, FailedOver, PingSent
from sbpair.core.failover.machine import State
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose, for_primary
from sbpair.emulator import Emulator
from sbpair.ports import MessageReceiver
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import SentTo
from tests.fakes import RecordingObserver
from tests.waiting import LIMIT_SECONDS

QUEUES = 4
ENTITIES = ("orders", "invoices")


@dataclass
class Stage:
    """Two embedded namespaces and a pairing over them."""

    emulator: Emulator
    pairing: PairedNamespaces
    observer: RecordingObserver

    def break_primary(self, fault: str) -> str:
        return self.emulator.faults("primary").add(fault)

    def heal_primary(self) -> None:
        self.emulator.faults("primary").clear()

    def break_secondary(self, fault: str) -> str:
        return self.emulator.faults("secondary").add(fault)

    def state(self, entity: str = "orders") -> State:
        return next(one.state for one in self.pairing.state().entities if one.entity == entity)

    async def send(self, message_id: str, entity: str = "orders", *, timeout: float = 5.0) -> SentTo:
        result = await self.pairing.sender(entity).send(message(message_id), timeout_seconds=timeout)
        return result.where

    async def until(self, state: State, entity: str = "orders") -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while self.state(entity) is not state:
                await asyncio.sleep(0.02)

    async def stored(self, entity: str = "orders") -> list[str]:
        """Message ids in a queue of the primary."""
        messaging = AzureMessaging(access(self.emulator, "primary"))
        try:
            return [str(one.message_id) for one in await messaging.receiver(entity).peek(250)]
        finally:
            await messaging.close()

    async def diverted(self) -> list[tuple[str, str]]:
        """(destination, message id) of everything in the backlog."""
        messaging = AzureMessaging(access(self.emulator, "secondary"))
        try:
            found = [await browse(messaging.receiver(queue)) for queue in self.pairing.backlog_queues]
        finally:
            await messaging.close()
        return sorted(one for queue in found for one in queue)


async def browse(receiver: MessageReceiver) -> list[tuple[str, str]]:
    homes = [for_primary(one.payload, now=0.0, enqueued_at=None) for one in await receiver.peek(250)]
    return [(home.destination, str(home.message_id)) for home in homes]


def message(message_id: str, *, session: str | None = None) -> bytes:
    return compose(body="hello", message_id=message_id, session_id=session)


def access(emulator: Emulator, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(
        label=name,
        host=host_of(text),
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(text),
        ca_file=str(emulator.ca_path),
    )


def with_wrong_key(right: NamespaceAccess) -> NamespaceAccess:
    assert right.connection_string is not None
    text = right.connection_string.reveal().replace("SharedAccessKey=", "SharedAccessKey=d3Jvbmc", 1)
    return replace(right, connection_string=Secret(text))


@asynccontextmanager
async def stage(
    *, interval: float = 0.0, primary_key_wrong: bool = False, secondary_key_wrong: bool = False
) -> AsyncIterator[Stage]:
    async with Emulator(["primary", "secondary"], seed=1) as emulator:
        for entity in ENTITIES:
            emulator.namespace("primary").create_queue(entity)
        primary, secondary = access(emulator, "primary"), access(emulator, "secondary")
        primary = with_wrong_key(primary) if primary_key_wrong else primary
        secondary = with_wrong_key(secondary) if secondary_key_wrong else secondary
        options = SendAvailabilityOptions(QUEUES, interval, False, 1.0)
        observer = RecordingObserver()
        admin = DataPlaneAdmin(secondary)
        try:
            pairing = await PairedNamespaces.open(
                Pair("embedded", primary, secondary, options),
                PairingContext(
                    primary=AzureMessaging(primary),
                    secondary=AzureMessaging(secondary),
                    clock=LoopClock(),
                    observer=observer,
                ),
                secondary_admin=admin,
                create_missing=True,
            )
        finally:
            await admin.close()
        async with pairing:
            yield Stage(emulator, pairing, observer)


async def test_healthy_sends_go_to_the_primary_and_the_queues_are_there() -> None:
    async with stage() as on:
        assert on.pairing.backlog_queue_count == QUEUES
        assert await on.send("1") is SentTo.PRIMARY
        assert await on.stored() == ["1"]
        assert sorted(queue.path for queue in on.emulator.namespace("secondary").queues()) == [
            f"primary/x-servicebus-transfer/{index}" for index in range(QUEUES)
        ]


async def test_a_dark_primary_fails_over_and_back() -> None:
    async with stage() as on:
        await on.send("1")
        on.break_primary("dark")
        assert await on.send("2") is SentTo.BACKLOG
        assert await on.send("3", "invoices") is SentTo.BACKLOG
        on.heal_primary()
        await on.until(State.HEALTHY)
        assert await on.send("4") is SentTo.PRIMARY
        assert await on.diverted() == [("invoices", "3"), ("orders", "2")]
        assert await on.stored() == ["1", "4"]


async def test_one_dark_entity_does_not_take_the_others_along() -> None:
    async with stage() as on:
        on.break_primary("fail:entity=orders,condition=amqp:internal-error")
        assert await on.send("1") is SentTo.BACKLOG
        assert await on.send("2", "invoices") is SentTo.PRIMARY
        assert on.state("invoices") is State.HEALTHY


async def test_a_silent_primary_leaves_time_for_the_backlog_and_cannot_hang_the_pings() -> None:
    async with stage() as on:
        on.break_primary("silent")
        assert await on.send("1", timeout=8.0) is SentTo.BACKLOG
        async with asyncio.timeout(LIMIT_SECONDS):  # closing is bounded
            await on.pairing.close()


async def test_during_the_interval_sends_raise_and_after_it_they_are_diverted() -> None:
    async with stage(interval=0.5) as on:
        on.break_primary("dark")
        with pytest.raises(ServiceError):
            await on.send("1", timeout=0.4)
        assert on.state() is State.SUSPECT
        await on.until(State.FAILED_OVER)
        assert await on.send("2") is SentTo.BACKLOG
        assert await on.diverted() == [("orders", "2")]


async def test_a_throttled_entity_never_fails_over() -> None:
    async with stage() as on:
        on.break_primary("throttle:entity=orders,operation=send")
        with pytest.raises(ServerBusyError):
            await on.send("1", timeout=3.0)
        assert on.state() is State.HEALTHY
        assert await on.diverted() == []


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_disabled_entity_fails_over_until_it_is_enabled(status: EntityStatus) -> None:
    async with stage() as on:
        primary = DataPlaneAdmin(access(on.emulator, "primary"))
        facts = await primary.get_queue("orders")
        assert facts is not None
        await primary.update_queue("orders", replace(facts.settings, status=status))
        assert await on.send("1") is SentTo.BACKLOG
        await primary.update_queue("orders", facts.settings)
        await primary.close()
        await on.until(State.HEALTHY)
        assert await on.send("2") is SentTo.PRIMARY


async def test_a_deleted_entity_raises_and_never_fills_the_backlog() -> None:
    async with stage() as on:
        on.emulator.namespace("primary").delete_queue("orders")
        with pytest.raises(EntityNotFoundError):
            await on.send("1")
        assert on.state() is State.HEALTHY
        assert await on.diverted() == []


async def test_an_entity_deleted_during_the_outage_is_found_out_by_the_ping() -> None:
    async with stage() as on:
        on.break_primary("dark")
        assert await on.send("1") is SentTo.BACKLOG
        namespace = on.emulator.namespace("primary")
        namespace.delete_queue("orders")
        on.heal_primary()
        await on.until(State.ENTITY_INVALID)
        with pytest.raises(EntityNotFoundError):
            await on.send("2")
        namespace.create_queue("orders")
        await on.until(State.HEALTHY)
        assert await on.send("3") is SentTo.PRIMARY
        assert await on.diverted() == [("orders", "1")]


async def test_a_full_queue_fails_over() -> None:
    async with stage() as on:
        on.break_primary("quota:entity=orders")
        assert await on.send("1") is SentTo.BACKLOG
        (event,) = on.observer.of(FailedOver)
        assert event.cause == "quota-exceeded"


async def test_a_wrong_key_on_the_primary_raises_and_never_fails_over() -> None:
    async with stage(primary_key_wrong=True) as on:
        with pytest.raises(AccessDeniedError):
            await on.send("1")
        assert on.state() is State.HEALTHY
        assert await on.diverted() == []


async def test_a_wrong_key_on_the_secondary_is_told_when_opening() -> None:
    with pytest.raises(AccessDeniedError):
        async with stage(secondary_key_wrong=True):
            pass


async def test_backlog_queues_that_fail_one_after_another_leave_the_rotation() -> None:
    async with stage() as on:
        on.break_primary("dark")
        *bad, good = on.pairing.backlog_queues
        for queue in bad:
            on.break_secondary(f"disabled:entity={queue}")
            result = await on.pairing.sender("orders").send(message(queue, session=queue), timeout_seconds=5)
            assert result.where is SentTo.BACKLOG
        result = await on.pairing.sender("orders").send([message(str(number)) for number in range(20)])
        out = {event.queue for event in on.observer.of(BacklogQueueLeft)}
        assert out <= set(bad)
        assert good not in out
        on.emulator.faults("secondary").clear()
        assert len(await on.diverted()) == 20 + len(bad)
        assert result.diverted == 20


async def test_with_both_sides_dark_a_send_raises_in_time() -> None:
    async with stage() as on:
        on.break_primary("dark")
        on.break_secondary("dark")
        async with asyncio.timeout(30):
            with pytest.raises(ServiceError):
                await on.send("1", timeout=2.0)
        on.emulator.faults("secondary").clear()
        assert await on.send("2") is SentTo.BACKLOG


async def test_a_flapping_link_does_not_lose_or_double_what_is_certain() -> None:
    async with stage() as on:
        on.break_primary("drop:entity=orders,operation=send,every=7")
        on.break_secondary("detach:operation=send,every=5")
        sender = on.pairing.sender("orders")
        sent = {
            one.position: one
            async for one in sender.send_all([message(str(number)) for number in range(60)], overlap=8)
        }
        on.heal_primary()
        copies = await on.stored() + [message_id for _, message_id in await on.diverted()]
        for position, one in sent.items():
            count = copies.count(str(position))
            if one.result is not None:
                assert count == 1 or (one.result.uncertain and count > 1), f"{position}: {count} copies"
            else:
                assert count == 0 or (isinstance(one.error, ServiceError) and one.error.uncertain)
        assert sum(one.result is not None for one in sent.values()) > 50


async def test_a_thousand_concurrent_senders_open_few_connections() -> None:
    async with stage() as on:
        on.break_primary("quota:entity=orders")
        sends = [on.pairing.sender("orders").send(message(str(number)), timeout_seconds=120) for number in range(1000)]
        results = await asyncio.gather(*sends)
        assert {result.where for result in results} == {SentTo.BACKLOG}
        counts = [queue.counts().active for queue in on.emulator.namespace("secondary").queues()]
        assert sum(counts) == 1000


async def test_slow_pings_are_still_pings() -> None:
    async with stage() as on:
        on.break_primary("dark")
        await on.send("1")
        on.heal_primary()
        on.break_primary("delay:rtt=200ms")
        await on.until(State.HEALTHY)
        assert on.observer.of(PingSent)[-1].seconds > 0.2
