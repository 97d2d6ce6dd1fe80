"""Opening, forcing, closing and faulting a pairing."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from sbpair.core.entities import QueueSettings, Tier
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConflictError,
    ConnectionLostError,
    IncompatibleSdkError,
    InterruptedWorkError,
    InvalidNameError,
    OperationTimeoutError,
    PairingError,
    ServerBusyError,
    UnauthorizedError,
)
from sbpair.core.events import FailedBack, FailedOver, PairingNoticed, Restarting, SideEnded, StepDone
from sbpair.core.failover.machine import DOCUMENTED, SDK, State
from sbpair.core.pairing import DOCUMENTED_SETTINGS, Condition, Side
from sbpair.runtime.failover.entity import MonitoredEntities
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import SentTo
from tests.fakes import EPOCH, FakeMessaging, FakeNamespace, virtual_time
from tests.runtime.failover.pairs import World, a_pair, a_world, message, open_pairing, opened

PATHS = [f"contoso/x-servicebus-transfer/{index}" for index in range(10)]


# Opening


@virtual_time
async def test_opening_creates_the_documented_queues_and_reports_their_number() -> None:
    async with opened() as world:
        assert world.pairing.backlog_queue_count == 10
        assert sorted(world.secondary.entities) == PATHS
        assert all(queue.settings == DOCUMENTED_SETTINGS for queue in world.secondary.entities.values())
        assert [(event.item, event.result) for event in world.events(StepDone)] == [(path, "done") for path in PATHS]


@virtual_time
async def test_opening_in_basic_leaves_out_what_basic_does_not_allow() -> None:
    world = a_world()
    world.secondary.tier = Tier.BASIC
    async with await open_pairing(world, a_pair(queues=1)):
        settings = world.secondary.queue(PATHS[0]).settings
        assert settings.default_message_time_to_live_seconds == 14 * 86_400


@virtual_time
async def test_existing_queues_are_used_as_they_are_and_extra_ones_left_alone() -> None:
    world = a_world()
    own = QueueSettings(max_delivery_count=3)
    world.secondary.add_queue("Contoso/X-ServiceBus-Transfer/0", own)
    world.secondary.add_queue(PATHS[7])
    async with await open_pairing(world, a_pair(queues=2)) as pairing:
        assert pairing.backlog_queues == tuple(PATHS[:2])
        assert world.secondary.queue(PATHS[0]).settings == own
        assert sorted(world.secondary.entities) == [PATHS[0], PATHS[1], PATHS[7]]


@virtual_time
async def test_queues_that_exist_are_found_in_every_spelling_and_not_made_again() -> None:
    world = a_world()
    for path in (PATHS[0], PATHS[1].title()):
        world.secondary.add_queue(path)
    pair = a_pair(queues=2)
    pair = replace(pair, primary=replace(pair.primary, label="Contoso"))
    async with await open_pairing(world, pair) as pairing:
        assert pairing.backlog_queues == tuple(PATHS[:2])
        made = [entity for operation, entity in world.secondary.calls if operation == "admin" and entity[-1].isdigit()]
        assert made == []
        assert world.events(StepDone) == []


@virtual_time
async def test_a_verification_learns_what_the_primary_takes_and_which_queues_refuse() -> None:
    async with opened(interval=0, queues=2) as world:
        world.secondary.fail("limit", UnauthorizedError("no Send"), entity=PATHS[0])
        verification = await world.pairing.verify(["orders", "Orders"])
        assert len(verification.problems) == 1
        assert [standing.in_rotation for standing in world.pairing.state().backlog] == [False, True]
        assert world.pairing.sender("ORDERS").max_message_bytes == world.primary.max_message_bytes
        assert world.pairing.state().primary is Condition.OPEN


@virtual_time
async def test_a_queue_that_could_not_be_made_lowers_the_usable_count() -> None:
    world = a_world()
    world.secondary.fail("admin", ArgumentRefusedError("no"), entity=PATHS[1])
    async with await open_pairing(world, a_pair(queues=3)) as pairing:
        assert pairing.backlog_queue_count == 2
        assert pairing.backlog_queues == (PATHS[0], PATHS[2])


@virtual_time
async def test_each_queue_gets_three_tries_thirty_seconds_apart_side_by_side() -> None:
    world = a_world()
    for path in PATHS:
        world.secondary.fail("admin", ServerBusyError("busy"), entity=path, times=2)
    async with await open_pairing(world, a_pair()) as pairing:
        assert pairing.backlog_queue_count == 10
        assert world.clock.monotonic() == pytest.approx(60)
        assert {world.secondary.calls["admin", path] for path in PATHS} == {3}


@virtual_time
async def test_after_the_third_try_a_queue_is_left_out() -> None:
    world = a_world()
    world.secondary.fail("admin", ConflictError("busy"), entity=PATHS[0], times=3)
    async with await open_pairing(world, a_pair(queues=2)) as pairing:
        assert pairing.backlog_queues == (PATHS[1],)


@virtual_time
async def test_a_queue_somebody_else_makes_meanwhile_is_usable() -> None:
    world = a_world()
    world.secondary.fail("admin", OperationTimeoutError("answer lost"), entity=PATHS[0], times=1, after=True)
    async with await open_pairing(world, a_pair(queues=1)) as pairing:
        assert pairing.backlog_queue_count == 1


@virtual_time
async def test_no_usable_queue_is_an_error_that_says_why() -> None:
    world = a_world()
    world.secondary.fail("admin", ServerBusyError("throttled hard"), entity="contoso/x-servicebus-transfer/?")
    with pytest.raises(PairingError, match=r"None of the 2 .* throttled hard"):
        await open_pairing(world, a_pair(queues=2))


@virtual_time
async def test_wrong_credentials_raise_at_once_and_leave_nothing_paired() -> None:
    world = a_world()
    fault = world.secondary.fail("admin", UnauthorizedError("Manage is needed"))
    with pytest.raises(UnauthorizedError):
        await open_pairing(world, a_pair())
    assert world.clock.monotonic() < 1
    world.secondary.heal(fault)
    async with await open_pairing(world, a_pair()) as pairing:
        assert pairing.backlog_queue_count == 10


@virtual_time
async def test_a_lack_of_the_right_to_create_is_told_as_such() -> None:
    world = a_world()
    world.secondary.fail("admin", UnauthorizedError("Manage is needed"), entity="contoso/x-servicebus-transfer/?")
    with pytest.raises(UnauthorizedError):
        await open_pairing(world, a_pair(queues=1))


@virtual_time
async def test_a_hung_control_plane_does_not_hang_the_opening() -> None:
    world = a_world()
    world.secondary.delays["admin"] = 1e9
    with pytest.raises(OperationTimeoutError):
        await open_pairing(world, a_pair())
    assert world.clock.monotonic() == pytest.approx(3 * 120 + 2 * 30)


@pytest.mark.parametrize(
    ("primary", "secondary"), [("contoso", "contoso"), ("CONTOSO", "contoso"), ("contoso", "CONTOSO")]
)
@virtual_time
async def test_primary_and_secondary_are_two_namespaces_in_every_spelling(primary: str, secondary: str) -> None:
    world = a_world()
    world.primary_messaging = FakeMessaging(FakeNamespace(primary, world.clock))
    world.secondary_messaging = FakeMessaging(FakeNamespace(secondary, world.clock))
    with pytest.raises(PairingError, match="same namespace"):
        await open_pairing(world, a_pair())


@virtual_time
async def test_a_messaging_is_paired_once() -> None:
    async with opened() as world:
        with pytest.raises(PairingError, match="already paired"):
            await open_pairing(world, a_pair())


@virtual_time
async def test_a_secondary_that_is_itself_paired_is_refused_both_ways() -> None:
    async with opened() as world:
        third = FakeMessaging(FakeNamespace("third", world.clock))
        with pytest.raises(PairingError, match="itself paired"):
            await reopened(world, primary=third, secondary=world.primary_messaging)
        with pytest.raises(PairingError, match="secondary of another"):
            await reopened(world, primary=world.secondary_messaging, secondary=third)


@pytest.mark.parametrize(("mine", "theirs"), [(str.upper, str.lower), (str.lower, str.upper)])
def test_a_secondary_that_is_the_primary_of_another_pairing_is_named_in_every_spelling(
    mine: Callable[[str], str], theirs: Callable[[str], str]
) -> None:
    @virtual_time
    async def story() -> None:
        async with opened() as world:
            same = FakeMessaging(FakeNamespace("contoso", world.clock))  # another client of the same namespace
            world.primary.host, same.namespace.host = mine(world.primary.host), theirs(world.primary.host)
            third = FakeMessaging(FakeNamespace("third", world.clock))
            again = await reopened(world, primary=third, secondary=same)
            (noticed,) = world.events(PairingNoticed)
            assert noticed.code == "secondary-is-paired"
            await again.close()

    story()


@virtual_time
async def test_after_closing_the_namespaces_can_be_paired_again() -> None:
    async with opened() as world:
        await world.pairing.close()
        await (await open_pairing(world, a_pair())).close()


@virtual_time
async def test_with_the_syphon_enabled_diverted_messages_go_home_by_themselves() -> None:
    world = a_world()
    async with await open_pairing(world, a_pair(interval=0, ping=1, syphon=True)) as pairing:
        fault = world.primary.go_dark()
        results = [await pairing.sender("orders").send(message(str(number))) for number in range(20)]
        assert {result.where for result in results} == {SentTo.BACKLOG}
        world.primary.heal(fault)
        await asyncio.sleep(300)
        stored = world.primary.queue("orders").messages.values()
        assert sorted(int(one.message_id or "") for one in stored) == list(range(20))
        assert world.diverted_payloads() == []


@virtual_time
async def test_held_sessions_keep_their_order_across_failover_and_failback() -> None:
    world = a_world()
    pair = a_pair(interval=0, ping=5, syphon=True)
    async with await open_pairing(world, pair, hold_sessions=True) as pairing:
        sender = pairing.sender("orders")
        wheres = []
        for number in range(200):
            if number == 20:
                fault = world.primary.go_dark()
            if number == 60:
                world.primary.heal(fault)
            result = await sender.send(message(str(number), session="s"))
            wheres.append(result.where)
            await asyncio.sleep(1.37)
        await asyncio.sleep(300)
        ids = [int(one.message_id or "") for one in world.primary.queue("orders").messages.values()]
        assert ids == list(range(200))
        assert {wheres[0], wheres[-1]} == {SentTo.PRIMARY}
        assert wheres.count(SentTo.BACKLOG) > 40, "some were held after the failback"


@virtual_time
async def test_a_sender_needs_a_legal_path() -> None:
    async with opened() as world:
        with pytest.raises(InvalidNameError):
            world.pairing.sender("no spaces allowed")


# Forcing, state, policy


@virtual_time
async def test_failover_can_be_forced_and_undone() -> None:
    async with opened(ping=1) as world:
        sender = world.pairing.sender("orders")
        world.pairing.force_failover("Orders")
        assert (await sender.send(message("1"))).where is SentTo.BACKLOG
        await asyncio.sleep(3600)
        assert world.state_of("orders") is State.FORCED
        assert world.pings() == 0
        world.pairing.fail_back("orders")
        assert (await sender.send(message("2"))).where is SentTo.PRIMARY
        (over,) = world.events(FailedOver)
        (back,) = world.events(FailedBack)
        assert (over.forced, back.diverted_messages, back.seconds_away) == (True, 1, pytest.approx(3600))


@virtual_time
async def test_what_is_forced_twice_is_undone_by_hand_alone() -> None:
    async with opened(ping=1) as world:
        world.pairing.force_failover("orders")
        world.pairing.force_failover("orders")
        await asyncio.sleep(60)
        assert (world.state_of("orders"), world.pings()) == (State.FORCED, 0)
        assert (await world.pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG


@virtual_time
async def test_failing_back_by_hand_ends_the_pings() -> None:
    async with opened(interval=0, ping=1) as world:
        world.primary.go_dark()
        await world.pairing.sender("orders").send(message("1"))
        await asyncio.sleep(10)
        world.pairing.fail_back("orders")
        pings = world.pings()
        await asyncio.sleep(100)
        assert world.pings() == pings > 0


@virtual_time
async def test_the_state_tells_what_is_going_on() -> None:
    async with opened(interval=60, queues=2) as world:
        world.primary.fail("send", ConnectionLostError("gone"), entity="orders")
        await world.pairing.sender("invoices").send(message("1"))
        with pytest.raises(ConnectionLostError):
            await world.pairing.sender("orders").send(message("2"))
        await asyncio.sleep(20)
        state = world.pairing.state()
        invoices, orders = state.entities
        assert (invoices.entity, invoices.state, invoices.cause) == ("invoices", State.HEALTHY, None)
        assert (orders.state, orders.cause) == (State.SUSPECT, "connection-lost")
        assert orders.timer_seconds_left == pytest.approx(40)
        assert orders.since == pytest.approx(EPOCH, abs=0.1)
        assert (state.primary, state.secondary) == (Condition.OPEN, Condition.UNKNOWN)
        assert [standing.in_rotation for standing in state.backlog] == [None, None]


@virtual_time
async def test_a_side_is_unknown_until_any_part_of_it_has_answered() -> None:
    async with opened(interval=0, queues=2) as world:
        state = world.pairing.state()
        assert (state.primary, state.secondary) == (Condition.UNKNOWN, Condition.UNKNOWN)
        world.primary.fail("send", ConnectionLostError("gone"), entity="orders")
        await world.pairing.sender("orders").send(message("1"))
        assert world.pairing.state().secondary is Condition.OPEN, "one of its queues has answered"
        await world.pairing.sender("invoices").send(message("2"))
        assert world.pairing.state().primary is Condition.OPEN
        assert not world.pairing._entities.resting, "one of two entities is pinged"


@virtual_time
async def test_the_sdk_policy_fails_over_on_a_busy_server() -> None:
    async with opened(interval=0, policy=SDK) as world:
        world.primary.fail("send", ServerBusyError("busy"), entity="orders")
        assert (await world.pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG


# Close


@virtual_time
async def test_close_waits_for_the_sends_under_way() -> None:
    async with opened() as world:
        world.primary.delays["send"] = 5.0
        sending = asyncio.create_task(world.pairing.sender("orders").send(message("1")))
        await asyncio.sleep(1)
        await world.pairing.close()
        assert world.clock.monotonic() == pytest.approx(5)
        assert (await sending).where is SentTo.PRIMARY


@virtual_time
async def test_close_interrupts_what_takes_longer_than_its_bound() -> None:
    async with opened() as world:
        world.primary.delays["send"] = 40.0
        sending = asyncio.create_task(world.pairing.sender("orders").send(message("1")))
        await asyncio.sleep(1)
        await world.pairing.close(wait_seconds=3)
        assert world.clock.monotonic() == pytest.approx(4)
        with pytest.raises(InterruptedWorkError, match="may have been stored"):
            await sending


@virtual_time
async def test_nothing_is_sent_or_pinged_after_the_close() -> None:
    async with opened(interval=0, ping=1) as world:
        fault = world.primary.go_dark()
        sender = world.pairing.sender("orders")
        await sender.send(message("1"))
        await world.pairing.close()
        world.primary.heal(fault)
        calls = world.primary.calls.total() + world.secondary.calls.total()
        for attempt in (sender.send, sender.schedule):
            with pytest.raises(InterruptedWorkError):
                await attempt(message("2", scheduled_at=EPOCH + 5))
        with pytest.raises(InterruptedWorkError):
            world.pairing.force_failover("orders")
        await asyncio.sleep(3600)
        assert world.primary.calls.total() + world.secondary.calls.total() == calls
        assert world.primary_messaging.closed
        assert world.secondary_messaging.closed


@virtual_time
async def test_what_is_shared_keeps_a_connection_until_the_ping_on_it_has_ended() -> None:
    """A pairing of several that is closed while the primary is pinged over its connection."""
    world, rests = a_world(), list[float]()
    pair = a_pair(interval=0, ping=1)
    entities = MonitoredEntities(
        pair.options, policy=DOCUMENTED, clock=world.clock, shared=True, on_rest=lambda: rests.append(1.0)
    )
    pairing = await open_pairing(world, pair, entities=entities)
    world.primary.fail("send", ConnectionLostError("gone"), entity="orders", times=1)
    assert (await pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG
    world.primary.delays["send"] = 5.0
    await asyncio.sleep(2)
    await pairing.close()
    assert not world.primary_messaging.closed
    assert not entities.resting
    await asyncio.sleep(30)
    assert world.primary_messaging.closed
    assert entities.resting
    assert rests


@virtual_time
async def test_closing_twice_at_once_waits_for_the_same_end() -> None:
    async with opened() as world:
        await asyncio.gather(world.pairing.close(), world.pairing.close())
        assert [event.side for event in world.events(SideEnded)] == ["primary", "secondary"]


@virtual_time
async def test_a_link_that_hangs_on_close_does_not_hang_the_close() -> None:
    async with opened() as world:

        class Stuck(FakeMessaging):
            async def close(self) -> None:
                await asyncio.get_running_loop().create_future()

        pairing = await reopened(world, primary=Stuck(world.primary), secondary=Stuck(world.secondary))
        await pairing.close()
        assert world.clock.monotonic() == pytest.approx(5)


# Coupling


async def idle_syphon(stop: asyncio.Event) -> None:
    await stop.wait()


@virtual_time
async def test_with_the_syphon_the_partner_of_a_closed_side_is_faulted_after_five_seconds() -> None:
    world = a_world()
    pairing = await open_pairing(world, a_pair(syphon=True), syphon=idle_syphon)
    await pairing.close(Side.SECONDARY)
    await asyncio.sleep(4.9)
    assert (await pairing.sender("orders").send(message("1"))).where is SentTo.PRIMARY
    await asyncio.sleep(0.2)
    with pytest.raises(InterruptedWorkError, match="faulted"):
        await pairing.sender("orders").send(message("2"))
    conditions = [(event.side, event.condition) for event in world.events(SideEnded)]
    assert conditions == [("secondary", "closed"), ("primary", "faulted")]
    await pairing.close()


@virtual_time
async def test_a_partner_closed_within_five_seconds_is_not_faulted() -> None:
    world = a_world()
    pairing = await open_pairing(world, a_pair(syphon=True), syphon=idle_syphon)
    await pairing.fault(ConnectionLostError("gone"))
    await asyncio.sleep(4)
    await pairing.close()
    await asyncio.sleep(100)
    conditions = [(event.side, event.condition) for event in world.events(SideEnded)]
    assert conditions == [("primary", "faulted"), ("secondary", "closed")]


@virtual_time
async def test_without_the_syphon_a_closed_secondary_only_ends_diverting() -> None:
    async with opened(interval=0) as world:
        await world.pairing.close(Side.SECONDARY)
        await asyncio.sleep(100)
        sender = world.pairing.sender("orders")
        assert (await sender.send(message("1"))).where is SentTo.PRIMARY
        world.primary.go_dark()
        with pytest.raises(InterruptedWorkError):
            await sender.send(message("2"))


@virtual_time
async def test_a_fault_interrupts_at_once() -> None:
    async with opened() as world:
        world.primary.delays["send"] = 40.0
        sending = asyncio.create_task(world.pairing.sender("orders").send(message("1")))
        await asyncio.sleep(1)
        await world.pairing.fault(ConnectionLostError("gone"))
        assert world.clock.monotonic() == pytest.approx(1)
        with pytest.raises(InterruptedWorkError):
            await sending


@virtual_time
async def test_a_syphon_that_breaks_down_starts_again_and_sends_nothing_twice() -> None:
    world = a_world()
    broken: list[str] = []

    async def breaks(operation: str, entity: str) -> None:
        if operation == "settle" and not broken:
            broken.append(entity)
            raise RuntimeError("planted")

    async with await open_pairing(world, a_pair(interval=0, ping=1, syphon=True)) as pairing:
        fault = world.primary.go_dark()
        for number in range(20):
            await pairing.sender("orders").send(message(str(number)))
        world.secondary.hook = breaks
        world.primary.heal(fault)
        await asyncio.sleep(2000)
        stored = world.primary.queue("orders").messages.values()
        assert sorted(int(one.message_id or "") for one in stored) == list(range(20))
        assert world.diverted_payloads() == []
    assert broken
    assert [event.seconds for event in world.events(Restarting)] == [1]


@virtual_time
async def test_close_does_not_wait_for_the_pause_of_a_broken_syphon() -> None:
    async def breaks(operation: str, entity: str) -> None:
        if operation == "receive":
            raise RuntimeError("planted")

    world = a_world()
    world.secondary.hook = breaks
    pairing = await open_pairing(world, a_pair(syphon=True))
    await asyncio.sleep(200)
    assert world.events(Restarting)
    await pairing.close()
    assert world.clock.monotonic() == pytest.approx(200)


@virtual_time
async def test_a_syphon_that_no_restart_mends_is_told_of() -> None:
    async def outdated(stop: asyncio.Event) -> None:
        raise IncompatibleSdkError("moved")

    world = a_world()
    async with await open_pairing(world, a_pair(syphon=True), syphon=outdated) as pairing:
        await asyncio.sleep(1)
        assert (await pairing.sender("orders").send(message("1"))).where is SentTo.PRIMARY
    (told,) = [event for event in world.events(PairingNoticed) if event.code == "syphon-ended"]
    assert "moved" in told.message


@virtual_time
async def test_a_syphon_that_does_not_stop_is_cancelled() -> None:
    async def deaf(stop: asyncio.Event) -> None:
        await asyncio.sleep(1e9)

    world = a_world()
    pairing = await open_pairing(world, a_pair(syphon=True), syphon=deaf)
    await asyncio.sleep(1)
    await pairing.close()
    assert world.clock.monotonic() == pytest.approx(11)


async def reopened(world: World, *, primary: FakeMessaging, secondary: FakeMessaging) -> PairedNamespaces:
    pair = a_pair()
    admin = secondary.namespace.admin()
    return await PairedNamespaces.open(
        pair,
        PairingContext(primary=primary, secondary=secondary, clock=world.clock, observer=world.observer),
        secondary_admin=admin,
    )
