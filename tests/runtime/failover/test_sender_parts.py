"""The parts of a failover sender: sends under way, the times of its attempts, and what it says that it waits for."""

import asyncio
import time
from itertools import accumulate, takewhile

import pytest

from sbpair.concurrency import Wait, waits
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityDisabledError,
    InterruptedWorkError,
    OperationTimeoutError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.failover.machine import State
from sbpair.core.failover.sending import Budget
from sbpair.core.retry import SDK, SENDER
from sbpair.core.rewrite import compose
from sbpair.runtime.failover.sender import UNWIND_SECONDS, InFlightSends, SendResult, SentTo, _Unreached
from tests.fakes import virtual_time
from tests.runtime.failover.pairs import World, message, opened

UNWINDS_SECONDS = UNWIND_SECONDS / 2


def attempts(world: World, entity: str = "orders") -> list[float]:
    """The moments of the sends to an entity of the primary, from now on."""
    times: list[float] = []

    async def note(operation: str, path: str) -> None:
        if (operation, path) == ("send", entity):
            times.append(world.clock.monotonic())

    world.primary.hook = note
    return times


@virtual_time
async def test_sends_under_way_are_waited_for_then_interrupted_and_no_new_one_begins() -> None:
    sends = InFlightSends()

    async def send(seconds: float) -> None:
        async with sends.admit():
            try:
                await asyncio.sleep(seconds)
            finally:
                await asyncio.sleep(UNWINDS_SECONDS)

    loop = asyncio.get_running_loop()
    under_way = [asyncio.create_task(send(seconds)) for seconds in (1.0, 9.0, 20.0)]
    await asyncio.sleep(0.0)
    assert len(sends) == 3
    sends.refuse("the pairing is closed.")
    sends.refuse("another reason.")
    assert await sends.drain(5.0) == 2
    assert loop.time() == 5.0 + UNWINDS_SECONDS, "an interrupted send unwinds first"
    assert len(sends) == 0
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    assert [type(one) for one in ended] == [type(None), InterruptedWorkError, InterruptedWorkError]
    assert "it may have been stored or not" in str(ended[1])
    with pytest.raises(InterruptedWorkError, match=r"^Nothing was sent: the pairing is closed\.$"):
        async with sends.admit():
            raise AssertionError("it began")
    assert (await sends.drain(5.0), len(sends), loop.time()) == (0, 0, 5.0 + UNWINDS_SECONDS)


@virtual_time
async def test_sends_that_end_in_time_are_not_interrupted_and_one_that_hangs_is_left() -> None:
    sends, loop = InFlightSends(), asyncio.get_running_loop()

    async def send(seconds: float, unwinds: float = 0.0) -> None:
        async with sends.admit():
            try:
                await asyncio.sleep(seconds)
            finally:
                await asyncio.sleep(unwinds)

    under_way = [asyncio.create_task(send(seconds)) for seconds in (1.0, 3.0)]
    await asyncio.sleep(0.0)
    assert (await sends.drain(5.0), loop.time()) == (0, 3.0)
    await asyncio.gather(*under_way)
    hangs = asyncio.create_task(send(100.0, unwinds=100.0))
    await asyncio.sleep(0.0)
    assert (await sends.interrupt(), loop.time()) == (1, 3.0 + UNWIND_SECONDS)
    with pytest.raises(InterruptedWorkError):
        await hangs


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (ConnectionLostError("down"), [SDK.seconds(1), SDK.seconds(2), SDK.seconds(3)]),
        (UnauthorizedError("no"), []),
        (EntityDisabledError("off"), []),
        (ServerBusyError("busy"), [10.0, 10.0, 10.0, 10.0]),
    ],
)
def test_a_send_is_retried_as_the_sdk_would_but_a_busy_server_has_its_own_pause(
    error: ServiceError, pauses: list[float]
) -> None:
    @virtual_time
    async def story() -> None:
        async with opened(interval=60, retries=3) as world:
            times = attempts(world)
            world.primary.fail("send", error)
            with pytest.raises(type(error)):
                await world.pairing.sender("orders").send(message("1"), timeout_seconds=60.0)
            assert times == pytest.approx([*accumulate(pauses, initial=0.0)])

    story()


@virtual_time
async def test_a_link_that_does_not_open_has_stored_nothing() -> None:
    async with opened(interval=60) as world:
        error = ConnectionLostError("down")
        error.uncertain = True
        world.primary.fail("limit", error)
        with pytest.raises(ConnectionLostError) as caught:
            await world.pairing.sender("orders").send(message("1"))
        assert not caught.value.uncertain
        assert world.primary.calls["send", "orders"] == 0


def test_a_message_that_was_not_tried_is_in_no_doubt() -> None:
    error = ConnectionLostError("down")
    error.uncertain = True
    again = _Unreached(error, 5.0).again()
    assert (again.uncertain, error.uncertain, str(again), type(again)) == (False, True, str(error), ConnectionLostError)


RETRY_SECONDS = 20.0
TRIED = [*takewhile(lambda at: at <= RETRY_SECONDS, accumulate((SENDER.seconds(n) for n in range(1, 99)), initial=0.0))]


@virtual_time
async def test_an_item_is_tried_again_after_growing_pauses_within_its_time() -> None:
    async with opened(interval=600) as world:
        times = attempts(world)
        world.primary.fail("send", ConnectionLostError("down"))
        results = world.pairing.sender("orders").send_all([message("1")], retry_seconds=RETRY_SECONDS)
        [sent] = [one async for one in results]
        assert isinstance(sent.error, ConnectionLostError)
        assert times == pytest.approx(TRIED)
        assert world.clock.monotonic() == times[-1], "it is not waited for a try that is not made"


@virtual_time
async def test_nothing_is_tried_again_once_a_stop_is_set_or_where_it_is_no_use() -> None:
    async with opened(interval=600) as world:
        stop = asyncio.Event()
        times = attempts(world)
        world.primary.fail("send", ConnectionLostError("down"))
        asyncio.get_running_loop().call_later(1.0, stop.set)
        results = world.pairing.sender("orders").send_all([message("1")], retry_seconds=RETRY_SECONDS, stop=stop)
        assert [type(one.error) async for one in results] == [ConnectionLostError]
        assert times == pytest.approx([at for at in TRIED if at < 1.0] + [min(at for at in TRIED if at >= 1.0)])
        world.primary.heal()
        times.clear()
        world.primary.fail("send", UnauthorizedError("no"))
        results = world.pairing.sender("orders").send_all([message("2")], retry_seconds=RETRY_SECONDS)
        assert [type(one.error) async for one in results] == [UnauthorizedError]
        assert len(times) == 1


@virtual_time
async def test_a_send_within_a_time_leaves_a_part_of_it_to_the_backlog() -> None:
    async with opened(interval=600) as world:
        times = attempts(world)
        world.primary.fail("send", ConnectionLostError("down"))
        with pytest.raises(ConnectionLostError):
            await world.pairing.sender("orders").send_within(message("1"), 40.0, stop=asyncio.Event())
        assert times[-1] < 40.0 - SENDER.seconds(99)
        world.primary.heal()
        sent = await world.pairing.sender("orders").send_within(
            message("2", scheduled_at=2e9), 40.0, stop=asyncio.Event(), scheduled=True
        )
        assert (sent.where, len(sent.sequence_numbers)) == (SentTo.PRIMARY, 1)


def told() -> tuple[str, str, str, float | None]:
    """What is tried, why it failed last, what comes then, and in how many seconds."""
    [wait] = waits()
    return wait.tried, wait.error, wait.afterwards, _in_seconds(wait)


def _in_seconds(wait: Wait) -> float | None:
    return None if wait.until is None else wait.until - time.monotonic()


@pytest.mark.parametrize(
    ("interval", "afterwards", "seconds"), [(600.0, "given up", RETRY_SECONDS), (15.0, "sent to the backlog", 15.0)]
)
def test_what_becomes_of_a_message_that_the_primary_does_not_take_is_told(
    interval: float, afterwards: str, seconds: float
) -> None:
    @virtual_time
    async def story() -> None:
        async with opened(interval=interval) as world:
            world.primary.fail("send", ConnectionLostError("it is down"))

            async def send() -> list[SendResult | None]:
                results = world.pairing.sender("orders").send_all([message("1")], retry_seconds=RETRY_SECONDS)
                return [one.result async for one in results]

            sending = asyncio.create_task(send())
            await asyncio.sleep(10.0)
            tried, error, then, left = told()
            assert (tried, error, then) == ("", "it is down", afterwards)
            last = max(at for at in TRIED if at <= 10.0)
            assert left == pytest.approx(seconds - last, abs=1.0)
            [result] = await sending
            assert (result and result.where) == (SentTo.BACKLOG if interval < RETRY_SECONDS else None)

    story()


@virtual_time
async def test_a_pause_for_a_busy_server_says_why_and_the_backlog_is_waited_for_by_its_name() -> None:
    async with opened(interval=0) as world:
        sender = world.pairing.sender("orders")
        world.primary.fail("send", ServerBusyError("it is busy"), times=1)
        sending = asyncio.create_task(sender.send(message("1")))
        await asyncio.sleep(5.0)
        assert told()[:2] == ("", "it is busy")
        await sending
        world.primary.go_dark()
        world.secondary.delays["send"] = 5.0

        async def send() -> list[SendResult | None]:
            return [one.result async for one in sender.send_all([message("2")], retry_seconds=RETRY_SECONDS)]

        sending_all = asyncio.create_task(send())
        await asyncio.sleep(3.0)
        assert told() == ("send to the backlog for orders", "", "tried again", None)
        [result] = await sending_all
        assert (result and result.where) == SentTo.BACKLOG


# What an entity is known to take, and senders that share it.


@virtual_time
async def test_that_an_entity_is_partitioned_is_known_to_all_of_its_senders() -> None:
    conflicting = compose(body="x", message_id="1", session_id="a", partition_key="b")
    for partitioned, taken in ((None, False), (True, False), (False, True)):
        async with opened() as world:
            world.pairing.sender("orders", partitioned=partitioned)
            world.pairing.force_failover("orders")
            if taken:
                assert (await world.pairing.sender("orders").send(conflicting)).where is SentTo.BACKLOG
            else:
                with pytest.raises(ArgumentRefusedError):
                    await world.pairing.sender("orders").send(conflicting)
    async with opened(interval=600) as world:
        sender, ticket = world.pairing.sender("orders"), world.pairing.sender("orders").ticket
        budget = Budget.of(20, partitioned=False, now=0.0)
        refusal = ArgumentRefusedError("The SessionId was not set on a message")
        with pytest.raises(ArgumentRefusedError):
            await sender.take_over([message("1")], refusal, ticket, budget)
        world.pairing.force_failover("orders")
        with pytest.raises(ArgumentRefusedError, match="has no session id"):
            await sender.send(message("2"))


@virtual_time
async def test_what_another_client_sent_is_a_sign_of_life_of_the_primary() -> None:
    async with opened(interval=5) as world:
        sender = world.pairing.sender("orders")
        assert not sender.answered
        world.primary.go_dark()
        with pytest.raises(ConnectionLostError):
            await sender.send(message("1"))
        await asyncio.sleep(1.0)
        sender.note_sent()
        assert sender.answered
        await asyncio.sleep(60.0)
        assert world.state_of("orders") is State.HEALTHY, "no timer runs any more"
        budget = Budget.of(20, partitioned=False, now=world.clock.monotonic())
        diverted = await world.pairing.sender("invoices").divert([message("2")], budget)
        [(queue, _)] = world.secondary.sent_batches
        assert diverted == SendResult(SentTo.BACKLOG, queue=queue, diverted=1, queues=(queue,))


@virtual_time
async def test_a_closed_sender_gives_its_queue_back_and_neither_cancels_nor_diverts() -> None:
    async with opened() as world:
        sender = world.pairing.sender("orders")
        await sender.close()
        await sender.close()
        with pytest.raises(InterruptedWorkError):
            await sender.cancel_scheduled([1])
        with pytest.raises(InterruptedWorkError):
            await sender.divert([message("1")], Budget.of(20, partitioned=False, now=0.0))
        assert sum(world.primary.calls.values()) == 0
        world.pairing.force_failover("orders")
        first = world.pairing.sender("orders")
        used = (await first.send(message("1"))).queue
        await first.close()
        assert (await world.pairing.sender("orders").send(message("2"))).queue == used


@virtual_time
async def test_a_batch_is_held_if_any_of_its_sessions_is_and_in_doubt_if_either_part_is() -> None:
    for lost in ("primary", "secondary", None):
        async with opened(interval=600, hold_sessions=True, retries=1) as world:
            sender = world.pairing.sender("orders")
            world.pairing.force_failover("orders")
            await sender.send(message("1", session="s"))
            world.pairing.fail_back("orders")
            batch = [message("2"), message("3", session="S")]
            assert (sender.holds(batch), sender.holds(batch[:1])) == (True, False)
            if lost is not None:
                error = OperationTimeoutError("answer lost")
                getattr(world, lost).fail("send", error, times=1, after=True)
            result = await sender.send(batch)
            assert (result.uncertain, result.messages, result.diverted) == (lost is not None, 2, 1)
