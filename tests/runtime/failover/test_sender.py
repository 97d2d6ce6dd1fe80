"""The failover sender over two namespaces in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from sbpair.core import system_properties
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    InterruptedWorkError,
    MessageTooLargeError,
    OperationTimeoutError,
    QuotaExceededError,
    ReservedPropertyError,
    SendIncompleteError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
    UsageError,
)
from sbpair.core.events import (
    BacklogQueueLeft,
    BacklogQueueReturned,
    Diverted,
    FailedBack,
    FailedOver,
    SendFailed,
    SideFaulted,
    SideRestored,
)
from sbpair.core.failover.machine import State
from sbpair.core.failover.sending import Budget
from sbpair.core.pairing import Condition
from sbpair.core.rewrite import compose, for_backlog, for_primary
from sbpair.runtime.failover.backlog import IDLE_SECONDS
from sbpair.runtime.failover.sender import SentTo
from tests.fakes import EPOCH, virtual_time
from tests.runtime.failover.pairs import World, a_pair, a_world, message, open_pairing, opened


def homeward(payload: bytes) -> tuple[str, str | None, str | None]:
    """(destination, session, message id) of a backlog message on its way back."""
    home = for_primary(payload, now=EPOCH, enqueued_at=None)
    return home.destination, home.session_id, home.message_id


async def fail_over(world: World, entity: str = "orders") -> None:
    """Let the entity fail over by itself, with an interval of 0 as the worlds below have."""
    result = await world.pairing.sender(entity).send(message("first diverted"))
    assert result.where is SentTo.BACKLOG


# Healthy


@virtual_time
async def test_while_healthy_nothing_changes() -> None:
    async with opened() as world:
        payload = message("1")
        result = await world.pairing.sender("orders").send(payload)
        assert (result.where, result.queue, result.uncertain, result.messages) == (SentTo.PRIMARY, None, False, 1)
        assert world.primary.queue("orders").payloads == [payload]
        assert world.diverted_payloads() == []
        await asyncio.sleep(3600)
        assert world.pings() == 0


@virtual_time
async def test_queues_and_topics_are_sent_to_alike() -> None:
    async with opened() as world:
        world.primary.add_queue("news/all", topic=True)
        assert (await world.pairing.sender("news/all").send(message("1"))).where is SentTo.PRIMARY
        assert len(world.primary.queue("news/all").payloads) == 1


@virtual_time
async def test_a_batch_is_one_transfer() -> None:
    async with opened() as world:
        result = await world.pairing.sender("orders").send([message("1"), message("2")])
        assert result.messages == 2
        assert world.primary.sent_batches == [("orders", 2)]


@virtual_time
async def test_an_empty_send_is_never_a_success() -> None:
    async with opened() as world:
        with pytest.raises(UsageError):
            await world.pairing.sender("orders").send([])


@virtual_time
async def test_all_senders_of_a_pairing_share_one_link_per_entity() -> None:
    async with opened() as world:
        senders = [world.pairing.sender(name) for name in ("orders", "Orders", "ORDERS") for _ in range(100)]
        await asyncio.gather(*(sender.send(message(str(number))) for number, sender in enumerate(senders)))
        assert world.links_opened == {"orders": 1}


@virtual_time
async def test_a_thousand_senders_fail_over_without_opening_a_thousand_links() -> None:
    async with opened() as world:
        world.primary.go_dark()
        sends = [world.pairing.sender("orders").send(message(str(number))) for number in range(1000)]
        results = await asyncio.gather(*sends)
        assert all(result.where is SentTo.BACKLOG for result in results)
        assert len(world.diverted_payloads()) == 1000
        assert sum(world.links_opened.values()) <= 2 + 10


# Failing over


@virtual_time
async def test_with_interval_zero_the_failing_message_itself_is_rerouted() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", EntityDisabledError("disabled"))
        result = await world.pairing.sender("orders").send(message("7", session="s"))
        assert (result.where, result.uncertain, result.diverted) == (SentTo.BACKLOG, False, 1)
        assert result.queue in world.pairing.backlog_queues
        (payload,) = world.diverted_payloads()
        assert homeward(payload) == ("orders", "s", "7")


@virtual_time
async def test_during_the_interval_failing_sends_raise_then_sends_are_diverted() -> None:
    async with opened(interval=60) as world:
        sender = world.pairing.sender("orders")
        world.primary.fail("*", EntityDisabledError("disabled"), entity="orders")
        for _ in range(6):
            with pytest.raises(EntityDisabledError):
                await sender.send(message("x"))
            await asyncio.sleep(9)
        assert world.diverted_payloads() == []
        await asyncio.sleep(6.1)
        assert (await sender.send(message("y"))).where is SentTo.BACKLOG
        assert [event.timer_seconds_left for event in world.events(SendFailed)] == [60, 51, 42, 33, 24, 15]
        (event,) = world.events(FailedOver)
        assert (event.entity, event.cause, event.forced) == ("orders", "entity-disabled", False)
        assert event.at == pytest.approx(EPOCH + 60, abs=0.01)


@virtual_time
async def test_a_success_during_the_interval_cancels_the_failover() -> None:
    async with opened(interval=60) as world:
        sender = world.pairing.sender("orders")
        world.primary.fail("send", EntityDisabledError("disabled"), times=1)
        with pytest.raises(EntityDisabledError):
            await sender.send(message("1"))
        await sender.send(message("2"))
        await asyncio.sleep(3600)
        assert world.state_of("orders") is State.HEALTHY
        assert world.events(FailedOver) == []


@virtual_time
async def test_failover_is_per_entity_and_shared_by_all_senders() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", ConnectionLostError("gone"), entity="orders")
        await fail_over(world)
        before = world.primary.calls["send", "orders"]
        assert (await world.pairing.sender("ORDERS").send(message("2"))).where is SentTo.BACKLOG
        assert (await world.pairing.sender("invoices").send(message("3"))).where is SentTo.PRIMARY
        assert world.primary.calls["send", "orders"] - before <= 1, "at most the ping went to the dark entity"


@virtual_time
async def test_after_a_successful_ping_new_sends_go_to_the_primary_at_once() -> None:
    async with opened(interval=0, ping=60) as world:
        fault = world.primary.go_dark()
        await fail_over(world)
        await asyncio.sleep(90)
        world.primary.heal(fault)
        await asyncio.sleep(29)
        assert world.state_of("orders") is State.FAILED_OVER
        await asyncio.sleep(2)
        assert (await world.pairing.sender("orders").send(message("2"))).where is SentTo.PRIMARY
        (event,) = world.events(FailedBack)
        assert (event.entity, event.diverted_messages) == ("orders", 1)
        assert event.seconds_away == pytest.approx(120, abs=1)


@pytest.mark.parametrize("error", [UnauthorizedError("no"), EntityNotFoundError("no"), ArgumentRefusedError("no")])
def test_errors_of_the_caller_never_fail_over(error: ServiceError) -> None:
    @virtual_time
    async def scenario() -> None:
        async with opened(interval=0) as world:
            world.primary.fail("send", error)
            with pytest.raises(type(error)):
                await world.pairing.sender("orders").send(message("1"))
            assert world.state_of("orders") is State.HEALTHY
            assert world.diverted_payloads() == []

    scenario()


@virtual_time
async def test_a_full_queue_fails_over() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", QuotaExceededError("full"), entity="orders")
        assert (await world.pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG


# Server busy


@virtual_time
async def test_a_busy_server_gets_ten_seconds_and_the_message_again() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", ServerBusyError("busy"), times=2)
        started = world.clock.monotonic()
        result = await world.pairing.sender("orders").send(message("1"), timeout_seconds=60)
        assert (result.where, result.uncertain) == (SentTo.PRIMARY, False)
        assert world.clock.monotonic() - started == pytest.approx(20)


@virtual_time
async def test_a_server_that_stays_busy_raises_within_the_callers_time_and_never_fails_over() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", ServerBusyError("busy"))
        started = world.clock.monotonic()
        with pytest.raises(ServerBusyError):
            await world.pairing.sender("orders").send(message("1"), timeout_seconds=30)
        assert world.clock.monotonic() - started <= 30
        assert world.primary.calls["send", "orders"] == 3
        assert world.state_of("orders") is State.HEALTHY


@virtual_time
async def test_a_message_that_waits_for_a_busy_server_follows_a_failover() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", ServerBusyError("busy"), times=1)
        waiting = asyncio.create_task(world.pairing.sender("orders").send(message("1")))
        await asyncio.sleep(5)
        world.pairing.force_failover("orders")
        assert (await waiting).where is SentTo.BACKLOG


# Time


@virtual_time
async def test_a_hanging_primary_leaves_time_for_the_backlog() -> None:
    async with opened(interval=0) as world:
        world.primary.hook = hang_on("send", "orders")
        started = world.clock.monotonic()
        result = await world.pairing.sender("orders").send(message("1"), timeout_seconds=20)
        assert (result.where, result.uncertain) == (SentTo.BACKLOG, True)
        assert world.clock.monotonic() - started == pytest.approx(15)


@virtual_time
async def test_a_hanging_primary_raises_in_time_during_the_interval() -> None:
    async with opened(interval=60) as world:
        world.primary.hook = hang_on("send", "orders")
        started = world.clock.monotonic()
        with pytest.raises(OperationTimeoutError) as caught:
            await world.pairing.sender("orders").send(message("1"), timeout_seconds=20)
        assert caught.value.uncertain
        assert world.clock.monotonic() - started <= 20


@virtual_time
async def test_a_hanging_backlog_queue_leaves_time_for_another() -> None:
    async with opened(interval=0) as world:
        first, _ = world.pairing.backlog_queues[:2]
        world.secondary.hook = hang_on("send", first)
        world.primary.go_dark()
        world.draws[:] = [0.0]
        result = await world.pairing.sender("orders").send(message("1"), timeout_seconds=20)
        assert (result.where, result.uncertain) == (SentTo.BACKLOG, True)
        assert result.queue != first


@virtual_time
async def test_both_sides_dark_raises_within_the_callers_time() -> None:
    async with opened(interval=0, queues=3) as world:
        world.primary.go_dark()
        world.secondary.go_dark()
        started = world.clock.monotonic()
        with pytest.raises(ConnectionLostError, match=r"contoso.*backlog did not take the message either: fabrikam"):
            await world.pairing.sender("orders").send(message("1"), timeout_seconds=30)
        assert world.clock.monotonic() - started <= 30.001


@virtual_time
async def test_one_hiccup_starts_no_failover_where_sends_are_retried() -> None:
    async with opened(interval=0, retries=3) as world:
        world.primary.fail("send", ConnectionLostError("blip"), times=2)
        result = await world.pairing.sender("orders").send(message("1"))
        assert (result.where, result.uncertain) == (SentTo.PRIMARY, True)
        assert world.clock.monotonic() == pytest.approx(1.6 + 3.2)
        assert world.events(SendFailed) == world.events(FailedOver) == []
        world.primary.go_dark()
        assert (await world.pairing.sender("orders").send(message("2"))).where is SentTo.BACKLOG
        assert world.primary.calls["send", "orders"] == 3 + 4


@virtual_time
async def test_no_retry_is_waited_for_that_leaves_no_time_for_another_attempt() -> None:
    async with opened(interval=0, retries=3) as world:
        world.primary.fail("send", ConnectionLostError("blip"))
        result = await world.pairing.sender("orders").send(message("1"), timeout_seconds=6)
        assert result.where is SentTo.BACKLOG
        assert (world.primary.calls["send", "orders"], world.clock.monotonic()) == (2, pytest.approx(1.6))


@virtual_time
async def test_cancelling_a_send_leaves_the_pairing_usable() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        world.secondary.hook = hang_on("send", "*")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await world.pairing.sender("orders").send(message("1"))
        world.secondary.hook = None
        assert (await world.pairing.sender("orders").send(message("2"))).where is SentTo.BACKLOG
        assert world.pairing.state().sends_under_way == 0


# Uncertain outcomes


@virtual_time
async def test_a_lost_answer_marks_the_diverted_copy_and_keeps_its_message_id() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", ConnectionLostError("answer lost"), times=1, after=True)
        result = await world.pairing.sender("orders").send(message("same-id"))
        assert (result.where, result.uncertain) == (SentTo.BACKLOG, True)
        (original,) = world.primary.queue("orders").messages.values()
        assert homeward(world.diverted_payloads()[0])[2] == original.message_id == "same-id"


@virtual_time
async def test_a_lost_answer_from_a_backlog_queue_is_marked_too() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        world.secondary.fail("send", OperationTimeoutError("answer lost"), times=1, after=True)
        result = await world.pairing.sender("orders").send(message("1"))
        assert (result.where, result.uncertain) == (SentTo.BACKLOG, True)
        assert len(world.diverted_payloads()) == 2


@virtual_time
async def test_an_error_says_that_the_message_may_have_been_stored() -> None:
    async with opened(interval=60) as world:
        world.primary.fail("send", ConnectionLostError("answer lost"), times=1, after=True)
        with pytest.raises(ConnectionLostError) as caught:
            await world.pairing.sender("orders").send(message("1"))
        assert caught.value.uncertain
        world.primary.fail("send", EntityDisabledError("disabled"), times=1)
        with pytest.raises(EntityDisabledError) as certain:
            await world.pairing.sender("orders").send(message("2"))
        assert not certain.value.uncertain


@virtual_time
async def test_a_lost_answer_is_remembered_when_later_attempts_fail_for_certain() -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        world.secondary.fail("send", OperationTimeoutError("answer lost"), times=1, after=True)
        world.secondary.fail("send", EntityDisabledError("disabled"), skip=1)
        with pytest.raises(EntityDisabledError) as caught:
            await world.pairing.sender("orders").send(message("1"), timeout_seconds=10)
        assert caught.value.uncertain
        assert len(world.diverted_payloads()) == 1


@virtual_time
async def test_a_lost_answer_is_remembered_when_a_later_attempt_on_the_primary_succeeds() -> None:
    async with opened(interval=0, retries=1) as world:
        world.primary.fail("send", ConnectionLostError("answer lost"), times=1, after=True)
        world.primary.fail("send", ServerBusyError("busy"), times=1, skip=1)
        result = await world.pairing.sender("orders").send(message("1"))
        assert (result.where, result.uncertain) == (SentTo.PRIMARY, True)
        assert [stored.message_id for stored in world.primary.queue("orders").messages.values()] == ["1", "1"]


# Rotation


@virtual_time
async def test_a_failing_backlog_queue_leaves_the_rotation_for_every_sender() -> None:
    async with opened(interval=0) as world:
        bad = world.pairing.backlog_queues[0]
        world.primary.go_dark()
        world.secondary.fail("send", EntityNotFoundError("deleted"), entity=bad)
        world.draws[:] = [0.0]
        assert (await world.pairing.sender("orders").send(message("1"))).queue != bad
        calls = world.secondary.calls["send", bad]
        for entity in ("orders", "invoices"):
            world.draws[:] = [0.0] * 2
            assert (await world.pairing.sender(entity).send(message("2"))).queue != bad
        assert world.secondary.calls["send", bad] == calls == 1
        (event,) = world.events(BacklogQueueLeft)
        assert (event.queue, event.error_code, event.retry_after_seconds) == (bad, "entity-not-found", 1.0)


@virtual_time
async def test_a_healed_backlog_queue_comes_back_by_its_probe() -> None:
    async with opened(interval=0, queues=2) as world:
        bad = world.pairing.backlog_queues[0]
        world.primary.go_dark()
        fault = world.secondary.fail("send", QuotaExceededError("full"), entity=bad)
        world.draws[:] = [0.0]
        await world.pairing.sender("orders").send(message("1"))
        world.secondary.heal(fault)
        await asyncio.sleep(1.5)
        world.draws[:] = [0.0]
        assert (await world.pairing.sender("orders").send(message("2"))).queue == bad
        assert [event.queue for event in world.events(BacklogQueueReturned)] == [bad]
        assert all(standing.in_rotation is not False for standing in world.pairing.state().backlog)


@virtual_time
async def test_queues_that_fail_one_after_another_are_all_tried() -> None:
    async with opened(interval=0) as world:
        *bad, good = world.pairing.backlog_queues
        world.primary.go_dark()
        for queue in bad:
            world.secondary.fail("send", EntityDisabledError("disabled"), entity=queue)
        assert (await world.pairing.sender("orders").send(message("1"))).queue == good
        assert (await world.pairing.sender("orders").send(message("2", session="s"))).queue == good


@virtual_time
async def test_with_all_queues_out_a_send_waits_for_the_next_probe() -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.go_dark()
        world.secondary.fail("send", ConnectionLostError("blip"), times=1)
        started = world.clock.monotonic()
        assert (await world.pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG
        assert world.clock.monotonic() - started == pytest.approx(1.0)


@virtual_time
async def test_a_busy_secondary_is_left_alone_for_ten_seconds_and_keeps_its_place() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        world.secondary.fail("send", ServerBusyError("busy"), times=1)
        started = world.clock.monotonic()
        assert (await world.pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG
        assert world.clock.monotonic() - started == pytest.approx(10)
        assert world.events(BacklogQueueLeft) == []


@virtual_time
async def test_one_session_stays_in_one_queue_and_in_order() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        sender = world.pairing.sender("orders")
        results = [await sender.send(message(str(number), session="s")) for number in range(20)]
        (queue,) = {result.queue for result in results}
        ids = [homeward(payload)[2] for payload in world.secondary.queue(queue or "").payloads]
        assert ids == [str(number) for number in range(20)]


@virtual_time
async def test_each_sender_draws_a_queue_and_keeps_it_while_it_works() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        world.draws[:] = [number / 10 for number in range(10)]
        senders = [world.pairing.sender("orders") for _ in range(10)]
        first = [(await sender.send(message("1"))).queue for sender in senders]
        assert first == list(world.pairing.backlog_queues)
        world.draws[:] = [0.99] * 10
        assert [(await sender.send(message("2"))).queue for sender in senders] == first
        world.secondary.fail("send", EntityDisabledError("disabled"), entity=first[0] or "")
        world.draws[:] = [0.5]
        moved = (await senders[0].send(message("3"))).queue
        assert moved != first[0]
        assert (await senders[0].send(message("4"))).queue == moved


# Backlog queues that nobody has looked at before


@virtual_time
async def test_opening_asks_nothing_of_a_dark_secondary_and_sends_to_the_primary() -> None:
    world = a_world()
    world.secondary.go_dark()
    async with await open_pairing(world, a_pair(), create_missing=False) as pairing:
        assert (await pairing.sender("orders").send(message("1"))).where is SentTo.PRIMARY
        assert not world.secondary.calls


@virtual_time
async def test_missing_queues_are_found_out_by_sending_and_only_send_is_needed() -> None:
    world = a_world()
    world.secondary.fail("admin", UnauthorizedError("Manage is needed"))
    there = a_pair().backlog_paths()[7]
    world.secondary.add_queue(there)
    world.primary.go_dark()
    async with await open_pairing(world, a_pair(), create_missing=False) as pairing:
        sender = pairing.sender("orders")
        assert (await sender.send(message("1"))).queue == there
        assert world.clock.monotonic() == 0
        asked = sum(world.secondary.calls.values())
        assert (await sender.send(message("2"))).queue == there
        assert sum(world.secondary.calls.values()) == asked + 2  # its limit, the message: nobody else was asked


@virtual_time
async def test_a_secondary_that_refuses_for_good_is_told_at_once_counts_as_faulted_and_is_probed() -> None:
    async with opened(interval=0, ping=30) as world:
        fault = world.secondary.fail("*", UnauthorizedError("the key is revoked"))
        world.primary.go_dark()
        sender = world.pairing.sender("orders")
        with pytest.raises(ConnectionLostError, match="either: the key is revoked"):
            await sender.send(message("1"))
        assert world.clock.monotonic() < 1
        assert world.pairing.state().secondary is Condition.FAULTED
        assert [(event.side, event.error_code) for event in world.events(SideFaulted)] == [
            ("secondary", "unauthorized")
        ]
        await asyncio.sleep(65)
        assert len(world.events(SideFaulted)) == 1
        world.secondary.heal(fault)
        await asyncio.sleep(30)
        assert [event.side for event in world.events(SideRestored)] == ["secondary"]
        assert world.pairing.state().secondary is Condition.OPEN
        assert (await sender.send(message("2"))).where is SentTo.BACKLOG


@virtual_time
async def test_a_refusing_secondary_does_not_touch_a_healthy_primary() -> None:
    async with opened(interval=0) as world:
        world.secondary.fail("*", UnauthorizedError("the key is revoked"))
        world.pairing.force_failover("orders")
        with pytest.raises(UnauthorizedError):
            await world.pairing.sender("orders").send(message("1"))
        assert (await world.pairing.sender("invoices").send(message("2"))).where is SentTo.PRIMARY
        await asyncio.sleep(600)
        assert (await world.pairing.sender("invoices").send(message("3"))).where is SentTo.PRIMARY


# Messages that the primary would refuse


@virtual_time
async def test_a_key_beside_another_session_is_diverted_only_where_it_is_known_to_be_taken() -> None:
    conflicting = compose(body="x", message_id="1", session_id="A", partition_key="B")
    async with opened(interval=0) as world:
        world.primary.go_dark()
        with pytest.raises(ArgumentRefusedError, match="'B' differs from the session id 'A'"):
            await world.pairing.sender("orders").send(conflicting)
        assert world.diverted_payloads() == []
        assert (await world.pairing.sender("invoices", partitioned=False).send(conflicting)).where is SentTo.BACKLOG


@virtual_time
async def test_that_an_entity_needs_sessions_is_learned_from_its_first_refusal() -> None:
    async with opened(interval=0) as world:
        sender = world.pairing.sender("orders")
        refusal = ArgumentRefusedError("The SessionId was not set on a message")
        world.primary.fail("send", refusal, entity="orders", times=1)
        with pytest.raises(ArgumentRefusedError, match="SessionId"):
            await sender.send(message("1"))
        world.primary.go_dark()
        with pytest.raises(ArgumentRefusedError, match="has no session id"):
            await sender.send(message("2"))
        assert (await sender.send(message("3", session="s"))).where is SentTo.BACKLOG


# Batches, sizes, schedules in the backlog


@virtual_time
async def test_all_spellings_of_a_session_are_diverted_to_one_queue_in_their_order() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        sender = world.pairing.sender("orders")
        for attempt in range(8):
            spellings = (f"Order-{attempt}", f"ORDER-{attempt}", f"order-{attempt}")
            batch = [message(f"{number}", session=spellings[number % 3]) for number in range(6)]
            (queue,) = (await sender.send(batch)).queues
            ids = [homeward(payload)[2] for payload in world.secondary.queue(queue).payloads]
            assert ids[-6:] == [f"{number}" for number in range(6)]


@virtual_time
async def test_a_diverted_batch_is_split_by_session() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        batch = [message(f"{session}{number}", session=session) for number in range(3) for session in "abc"]
        result = await world.pairing.sender("orders").send(batch)
        assert (result.messages, result.diverted) == (9, 9)
        assert result.queues[0] == result.queue
        for session in "abc":
            places = [
                queue
                for queue in result.queues
                for payload in world.secondary.queue(queue).payloads
                if homeward(payload)[1] == session
            ]
            assert len(set(places)) == 1
        assert sum(event.messages for event in world.events(Diverted)) == 9


@virtual_time
@pytest.mark.parametrize(("refusals", "transfers"), [(0, [3]), (1, [2, 1]), (2, [1, 1, 1])])
async def test_a_queue_that_refuses_a_batch_gets_one_key_at_a_time_and_then_one_message(
    refusals: int, transfers: list[int]
) -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        world.secondary.fail("send", ArgumentRefusedError("distinct PartitionKey"), times=refusals)
        batch = [compose(body="x", message_id=name, partition_key=name[0]) for name in ("a1", "b1", "a2")]
        result = await world.pairing.sender("orders").send(batch)
        assert [messages for _, messages in world.secondary.sent_batches] == transfers
        assert (result.diverted, result.uncertain) == (3, False)
        assert sorted(str(homeward(one)[2]) for one in world.diverted_payloads()) == ["a1", "a2", "b1"]
        await world.pairing.sender("orders").send(batch)
        learnt = [messages for _, messages in world.secondary.sent_batches[len(transfers) :]]
        assert learnt == ([2, 1] if refusals else [3]), "what it takes is known"
        assert world.events(BacklogQueueLeft) == [], "the queue is not at fault"


@virtual_time
async def test_a_message_that_a_queue_refuses_alone_is_at_fault() -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        world.secondary.fail("send", ArgumentRefusedError("no"))
        for batch in ([message("1")], [message("1"), message("2")]):
            with pytest.raises(ArgumentRefusedError):
                await world.pairing.sender("orders").send(batch)
        assert world.diverted_payloads() == []


@virtual_time
async def test_a_batch_that_grows_over_the_links_limit_is_cut_into_transfers() -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.go_dark()
        world.secondary.max_message_bytes = 3500
        batch = [compose(body=b"x" * 900, message_id=str(number)) for number in range(6)]
        result = await world.pairing.sender("orders").send(batch)
        assert [homeward(payload)[2] for payload in world.diverted_payloads()] == [str(number) for number in range(6)]
        assert (result.diverted, len(world.secondary.sent_batches)) == (6, 3)


@virtual_time
async def test_a_message_that_outgrows_the_backlog_is_refused_before_it_is_sent() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        payload = compose(body=b"x" * 3900, message_id="1", session_id="s")
        world.secondary.max_message_bytes = len(payload) + 10
        with pytest.raises(MessageTooLargeError, match="properties added"):
            await world.pairing.sender("orders").send(payload)
        assert world.diverted_payloads() == []
        assert world.secondary.calls["send", world.pairing.backlog_queues[0]] == 0
        assert world.events(BacklogQueueLeft) == [], "the queue is not at fault"


@virtual_time
async def test_what_the_primary_would_never_take_is_not_diverted() -> None:
    async with opened(interval=0) as world:
        world.primary.max_message_bytes = 4000
        await world.pairing.verify(["orders"])
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        await fail_over(world)
        large = compose(body=b"x" * 5000, message_id="1")
        with pytest.raises(MessageTooLargeError, match=r"the limit of orders is 4000\. It was not sent\."):
            await world.pairing.sender("orders").send(large)
        assert len(world.diverted_payloads()) == 1
        fits = compose(body=b"x" * 3500, message_id="2")
        assert (await world.pairing.sender("orders").send(fits)).where is SentTo.BACKLOG


@pytest.mark.parametrize("sends_before", [False, True])
@pytest.mark.parametrize(("asked", "sent"), [("orders", "Orders"), ("Orders", "orders")])
@virtual_time
async def test_the_size_that_an_entity_takes_is_known_in_every_spelling(
    asked: str, sent: str, sends_before: bool
) -> None:
    async with opened(interval=0) as world:
        world.primary.max_message_bytes = 4000
        if sends_before:
            world.pairing.sender(sent)
        await world.pairing.verify([asked])
        world.pairing.force_failover(sent)
        with pytest.raises(MessageTooLargeError, match="4000"):
            await world.pairing.sender(sent).send(compose(body=b"x" * 5000, message_id="1"))
        assert world.diverted_payloads() == []


@virtual_time
async def test_a_transfer_that_was_accepted_in_part_is_not_repeated_as_a_whole() -> None:
    async with opened(interval=0) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        batch = [message(str(number)) for number in range(4)]
        halves = [for_backlog(payload, "orders") for payload in batch[:2]]
        fault = world.secondary.fail("send", SendIncompleteError("2 of 4", accepted=(0, 1)), times=1)

        async def accept_half(operation: str, entity: str) -> None:
            if operation == "send" and fault.times:
                world.secondary.put(entity, *halves)

        world.secondary.hook = accept_half
        result = await world.pairing.sender("orders").send(batch)
        assert (result.diverted, result.uncertain) == (4, False)
        assert sorted(str(homeward(payload)[2]) for payload in world.diverted_payloads()) == ["0", "1", "2", "3"]


@virtual_time
async def test_an_incomplete_batch_says_what_was_accepted() -> None:
    async with opened(interval=0, queues=1) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), entity="orders")
        world.secondary.max_message_bytes = 3000
        batch = [message("a", session="a"), compose(body=b"x" * 4000, message_id="b", session_id="b")]
        with pytest.raises(SendIncompleteError, match="1 of 2") as caught:
            await world.pairing.sender("orders").send(batch)
        assert caught.value.accepted == (0,)
        assert [homeward(payload)[2] for payload in world.diverted_payloads()] == ["a"]


@virtual_time
async def test_a_reserved_property_is_refused_before_anything_is_sent() -> None:
    async with opened() as world:
        with pytest.raises(ReservedPropertyError):
            payload = compose(body="x", message_id="1", application_properties={system_properties.PATH: "mine"})
            await world.pairing.sender("orders").send(payload)
        assert world.primary.queue("orders").payloads == []


@virtual_time
async def test_scheduling_and_cancelling_on_the_primary() -> None:
    async with opened() as world:
        sender = world.pairing.sender("orders")
        result = await sender.schedule(message("1", scheduled_at=EPOCH + 600))
        assert (result.where, len(result.sequence_numbers)) == (SentTo.PRIMARY, 1)
        await sender.cancel_scheduled(result.sequence_numbers)
        assert world.primary.queue("orders").payloads == []
        for batch in (message("2"), [message("2"), message("3", scheduled_at=EPOCH + 600)]):
            with pytest.raises(UsageError):
                await sender.schedule(batch)


@virtual_time
async def test_a_scheduled_message_is_visible_in_the_backlog_at_once_with_its_time_kept() -> None:
    async with opened(interval=0) as world:
        world.primary.go_dark()
        result = await world.pairing.sender("orders").schedule(message("1", scheduled_at=EPOCH + 600))
        assert (result.where, result.sequence_numbers) == (SentTo.BACKLOG, ())
        (stored,) = world.secondary.queue(result.queue or "").messages.values()
        assert stored.scheduled_at is None
        assert for_primary(stored.payload, now=EPOCH, enqueued_at=None).scheduled_at == EPOCH + 600


# Partitioned entities ("Partitioned queues and topics")


@virtual_time
async def test_partitioned_entities_refuse_a_key_other_than_the_session() -> None:
    async with opened() as world:
        sender = world.pairing.sender("orders", partitioned=True)
        with pytest.raises(ArgumentRefusedError):
            await sender.send(compose(body="x", message_id="1", session_id="s", partition_key="p"))
        with pytest.raises(ArgumentRefusedError):
            await sender.send([message("1", session="a"), message("2", session="b")])
        assert world.primary.calls["send", "orders"] == 0
        await sender.send([message("1", session="a"), message("2", session="a")])


@virtual_time
async def test_a_partitioned_entity_gets_sixty_seconds_at_least() -> None:
    async with opened(interval=60) as world:
        world.primary.delays["send"] = 40.0
        await world.pairing.sender("orders", partitioned=True).send(message("1"), timeout_seconds=5)
        with pytest.raises(OperationTimeoutError):
            await world.pairing.sender("orders").send(message("1"), timeout_seconds=5)


# Entity invalid


@virtual_time
async def test_a_ping_that_finds_the_entity_gone_makes_sends_raise_until_one_succeeds() -> None:
    async with opened(interval=0, ping=60) as world:
        fault = world.primary.go_dark()
        await fail_over(world)
        world.primary.heal(fault)
        wrong = world.primary.fail("send", EntityNotFoundError("deleted"), entity="orders")
        await asyncio.sleep(61)
        sender = world.pairing.sender("orders")
        assert world.state_of("orders") is State.ENTITY_INVALID
        for number in range(3):
            with pytest.raises(EntityNotFoundError, match="deleted") as caught:
                await sender.send(message(str(number)))
            assert isinstance(caught.value.__cause__, EntityNotFoundError), "what the ping met"
        assert len(world.diverted_payloads()) == 1
        world.primary.heal(wrong)
        await asyncio.sleep(60)
        assert (await sender.send(message("back"))).where is SentTo.PRIMARY


# Many sends


@virtual_time
async def test_send_all_overlaps_within_its_bound_and_awaits_every_result() -> None:
    async with opened() as world:
        flying, most = 0, 0

        async def watch(operation: str, entity: str) -> None:
            nonlocal flying, most
            if operation != "send":
                return
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(1)
            flying -= 1

        world.primary.hook = watch
        started = world.clock.monotonic()
        sent = [one async for one in world.pairing.sender("orders").send_all(messages(100), overlap=10)]
        assert [one.position for one in sent] == list(range(100))
        assert all(one.result is not None and one.error is None for one in sent)
        assert (most, world.clock.monotonic() - started) == (10, 10.0)


@virtual_time
async def test_send_all_reports_each_failure_with_its_message() -> None:
    async with opened(interval=60) as world:
        world.primary.fail("send", EntityDisabledError("disabled"), skip=3, times=2)
        sent = [one async for one in world.pairing.sender("orders").send_all(messages(10), overlap=1)]
        assert [one.position for one in sent if isinstance(one.error, EntityDisabledError)] == [3, 4]
        assert len(world.primary.queue("orders").payloads) == 8


@virtual_time
async def test_send_all_keeps_the_order_of_each_session() -> None:
    async with opened() as world:
        delays = iter(range(40, 0, -1))

        async def slower_first(operation: str, entity: str) -> None:
            await asyncio.sleep(next(delays))

        world.primary.hook = slower_first
        payloads = [message(f"{number}", session="abAB"[number % 4]) for number in range(20)]
        async for _ in world.pairing.sender("orders").send_all(payloads, overlap=8):
            pass
        stored = world.primary.queue("orders").messages.values()
        for session in "ab":
            ids = [int(one.message_id or "") for one in stored if (one.session_id or "").lower() == session]
            assert ids == sorted(ids)
            assert len(ids) == 10


@virtual_time
async def test_send_all_yields_a_result_without_waiting_for_the_next_message() -> None:
    async with opened() as world:

        async def slow_source() -> AsyncIterator[bytes]:
            yield message("1")
            await asyncio.sleep(1000)
            yield message("2")

        moments = [world.clock.monotonic() async for _ in world.pairing.sender("orders").send_all(slow_source())]
        assert moments == [0.0, 1000.0]


@virtual_time
async def test_where_neither_side_was_ever_reached_many_messages_end_as_soon_as_one() -> None:
    async with opened() as world:
        world.primary.go_dark()
        world.secondary.go_dark()
        sender = world.pairing.sender("orders")
        began = world.clock.monotonic()
        results = sender.send_all(messages(200), overlap=10, timeout_seconds=30.0, retry_seconds=180.0)
        sent = [one async for one in results]
        assert all(isinstance(one.error, ConnectionLostError) for one in sent)
        assert len(sent) == 200
        assert 20.0 <= world.clock.monotonic() - began <= 60.0
        world.secondary.heal()
        await asyncio.sleep(60)
        results = sender.send_all(messages(5), timeout_seconds=30.0, retry_seconds=180.0)
        assert [one.result.where async for one in results if one.result] == [SentTo.BACKLOG] * 5


@virtual_time
@pytest.mark.parametrize("reached", ["by a send", "by another client's"])
async def test_where_a_side_was_reached_a_message_is_tried_for_as_long_as_was_asked(reached: str) -> None:
    async with opened() as world:
        sender = world.pairing.sender("orders")
        if reached == "by a send":
            world.primary.go_dark()
            assert (await sender.send(message("diverted"), timeout_seconds=30.0)).where is SentTo.BACKLOG
        else:
            sender.note_sent()
            world.primary.go_dark()
        world.secondary.go_dark()
        began = world.clock.monotonic()
        results = sender.send_all(messages(1), timeout_seconds=30.0, retry_seconds=180.0)
        assert [type(one.error) async for one in results] == [ConnectionLostError]
        assert world.clock.monotonic() - began >= 120.0


@virtual_time
async def test_send_all_reads_no_further_than_it_may() -> None:
    async with opened() as world:
        read = 0

        def source() -> Iterator[bytes]:
            nonlocal read
            for number in range(1000):
                read += 1
                yield message(str(number))

        results = world.pairing.sender("orders").send_all(source(), overlap=4)
        await anext(results)
        await asyncio.sleep(100)
        assert read <= 2 * 4 + 2
        await results.aclose()
        assert world.pairing.state().sends_under_way == 0


@virtual_time
async def test_a_lost_answer_is_remembered_when_send_all_tries_again() -> None:
    async with opened(interval=60) as world:
        world.primary.fail("send", ConnectionLostError("answer lost"), times=1, after=True)
        sent = [one async for one in world.pairing.sender("orders").send_all([message("1")], retry_seconds=30)]
        assert [one.result is not None and one.result.uncertain for one in sent] == [True]
        sent = [one async for one in world.pairing.sender("orders").send_all([message("2")], retry_seconds=30)]
        assert [one.result is not None and one.result.uncertain for one in sent] == [False]


@virtual_time
async def test_send_all_needs_room_for_one() -> None:
    async with opened() as world:
        with pytest.raises(UsageError):
            await anext(world.pairing.sender("orders").send_all([message("1")], overlap=0))


@virtual_time
async def test_a_closed_sender_sends_nothing() -> None:
    async with opened() as world:
        sender = world.pairing.sender("orders")
        await sender.close()
        with pytest.raises(InterruptedWorkError):
            await sender.send(message("1"))
        await world.pairing.sender("orders").send(message("2"))


@virtual_time
async def test_what_another_client_could_not_send_is_taken_over_as_the_policy_says() -> None:
    async with opened(interval=0) as world:
        sender = world.pairing.sender("orders")
        ticket, budget = sender.ticket, Budget.of(20, partitioned=False, now=world.clock.monotonic())
        with pytest.raises(MessageTooLargeError):
            await sender.take_over([message("1")], MessageTooLargeError("too large"), ticket, budget)
        taken = await sender.take_over([message("1")], ConnectionLostError("answer lost"), ticket, budget)
        assert taken is not None
        assert (taken.where, taken.uncertain, taken.diverted) == (SentTo.BACKLOG, True, 1)
        nothing = await sender.take_over(None, ConnectionLostError("no link"), ticket, budget)
        assert nothing is not None
        assert (nothing.where, nothing.messages) == (SentTo.BACKLOG, 0)


# Held sessions


@virtual_time
@pytest.mark.parametrize("entity", ["orders", "Orders"])
async def test_held_sessions_follow_their_diverted_messages_until_these_are_home(entity: str) -> None:
    async with opened(interval=0, ping=1, hold_sessions=True) as world:
        sender = world.pairing.sender(entity)
        fault = world.primary.go_dark()
        first = await sender.send(message("1", session="Order-7"))
        world.primary.heal(fault)
        await asyncio.sleep(5)
        assert world.state_of(entity) is State.HEALTHY
        second = await sender.send(message("2", session="ORDER-7"))
        other = await sender.send(message("3", session="free"))
        assert (second.where, second.queue, other.where) == (SentTo.BACKLOG, first.queue, SentTo.PRIMARY)
        await asyncio.sleep(60)
        later = await sender.send(message("5", session="Order-7"))
        assert (later.where, later.queue) == (SentTo.BACKLOG, first.queue), "its queue was browsed, and has them still"
        assert world.pairing.state().held_sessions == 1
        world.secondary.queue(first.queue or "").messages.clear()
        await asyncio.sleep(11)
        assert (await sender.send(message("4", session="s"))).where is SentTo.PRIMARY
        assert world.pairing.state().held_sessions == 0


@virtual_time
async def test_a_batch_of_held_and_free_sessions_is_parted() -> None:
    async with opened(interval=0, ping=1, hold_sessions=True) as world:
        sender = world.pairing.sender("orders")
        fault = world.primary.go_dark()
        await sender.send(message("1", session="s"))
        world.primary.heal(fault)
        await asyncio.sleep(2)
        result = await sender.send([message("2", session="free"), message("3", session="s")])
        assert (result.where, result.messages, result.diverted) == (SentTo.BACKLOG, 2, 1)
        assert [stored.message_id for stored in world.primary.queue("orders").messages.values()] == ["2"]


@virtual_time
async def test_a_parted_batch_that_fails_names_positions_in_the_callers_batch() -> None:
    async with opened(interval=60, ping=1, hold_sessions=True) as world:
        sender = world.pairing.sender("orders")
        world.pairing.force_failover("orders")
        await sender.send(message("1", session="s"))
        world.pairing.fail_back("orders")
        batch = [message("a"), message("b", session="s"), message("c"), message("d", session="s")]
        world.primary.fail("send", SendIncompleteError("1 of 2", accepted=(1,)), times=1)
        with pytest.raises(SendIncompleteError) as caught:
            await sender.send(batch)
        assert caught.value.accepted == (1, 2, 3)
        world.secondary.fail("send", SendIncompleteError("1 of 2", accepted=(1,)), times=1)
        world.secondary.fail("send", MessageTooLargeError("no"))
        with pytest.raises(SendIncompleteError) as caught:
            await sender.send(batch)
        assert caught.value.accepted == (3,)


@virtual_time
async def test_a_batch_that_the_primary_took_in_part_is_not_diverted_as_a_whole() -> None:
    async with opened(interval=0) as world:
        cut_short = SendIncompleteError("1 of 2", accepted=(0,))
        cut_short.__cause__ = ConnectionLostError("gone")
        world.primary.fail("send", cut_short, times=1)
        with pytest.raises(SendIncompleteError):
            await world.pairing.sender("orders").send([message("1"), message("2")])
        assert world.diverted_payloads() == []
        assert world.events(FailedOver)[0].cause == "connection-lost"


@virtual_time
async def test_a_held_session_does_not_jump_to_another_queue_when_its_own_fails() -> None:
    async with opened(interval=0, hold_sessions=True) as world:
        sender = world.pairing.sender("orders")
        world.primary.go_dark()
        queue = (await sender.send(message("1", session="s"))).queue or ""
        world.secondary.fail("send", EntityDisabledError("disabled"), entity=queue)
        with pytest.raises(ConnectionLostError, match="did not take the message either: disabled"):
            await sender.send(message("2", session="s"), timeout_seconds=5)
        assert len(world.diverted_payloads()) == 1


@virtual_time
async def test_a_session_is_held_while_it_is_in_doubt_whether_its_message_was_diverted() -> None:
    async with opened(interval=60, queues=1, hold_sessions=True) as world:
        sender = world.pairing.sender("orders")
        world.pairing.force_failover("orders")
        world.secondary.fail("send", OperationTimeoutError("answer lost"), times=1, after=True)
        world.secondary.fail("send", EntityDisabledError("disabled"), skip=1)
        with pytest.raises(EntityDisabledError) as caught:
            await sender.send(message("1", session="s"), timeout_seconds=5)
        assert caught.value.uncertain
        world.secondary.heal()
        world.pairing.fail_back("orders")
        assert (await sender.send(message("2", session="s"))).where is SentTo.BACKLOG
        assert [homeward(payload)[2] for payload in world.diverted_payloads()] == ["1", "2"]


@virtual_time
async def test_sessions_are_not_held_unless_asked() -> None:
    async with opened(interval=0, ping=1) as world:
        sender = world.pairing.sender("orders")
        fault = world.primary.go_dark()
        await sender.send(message("1", session="s"))
        world.primary.heal(fault)
        await asyncio.sleep(2)
        assert (await sender.send(message("2", session="s"))).where is SentTo.PRIMARY


def messages(number: int) -> list[bytes]:
    return [message(str(one)) for one in range(number)]


def hang_on(operation: str, entity: str) -> Callable[[str, str], "asyncio.Future[None]"]:
    """A hook that never returns from the operation on the entity (`*`: on any)."""

    async def hook(at: str, of: str) -> None:
        if at == operation and entity in ("*", of):
            await asyncio.get_running_loop().create_future()

    return hook  # type: ignore[return-value]


@virtual_time
@pytest.mark.parametrize("outage_seconds", [20.0, 150.0, 600.0])
async def test_after_a_double_outage_messages_go_out_within_two_seconds_of_the_secondarys_return(
    outage_seconds: float,
) -> None:
    world = a_world()
    async with await open_pairing(world, a_pair(interval=0)) as pairing:
        world.primary.go_dark()
        fault = world.secondary.go_dark()
        back_at: float | None = None
        accepted_at: list[float] = []

        async def customer(number: int) -> None:
            sender = pairing.sender("orders")
            while not accepted_at or back_at is None:
                try:
                    await sender.send(message(f"{number}"), timeout_seconds=10.0)
                except ServiceError:
                    continue
                accepted_at.append(world.clock.monotonic())
                return

        customers = [asyncio.create_task(customer(number)) for number in range(5)]
        await asyncio.sleep(outage_seconds)
        world.secondary.heal(fault)
        back_at = world.clock.monotonic()
        await asyncio.gather(*customers)
        assert max(accepted_at) - back_at <= 2.0


@virtual_time
async def test_links_to_the_backlog_are_closed_a_while_after_the_outage_and_opened_for_the_next() -> None:
    async with opened(interval=0) as world:
        sender = world.pairing.sender("orders")
        for outage in (1, 2):
            fault = world.primary.go_dark()
            for number in range(3):
                assert (await sender.send(message(f"{outage}{number}"))).where is SentTo.BACKLOG
                await asyncio.sleep(IDLE_SECONDS - 1)
            opened_links = {path: n for path, n in world.links_opened.items() if "transfer" in path}
            assert list(opened_links.values()) == [outage], "a link in use stays open"
            world.primary.heal(fault)
            await asyncio.sleep(10 * IDLE_SECONDS)
