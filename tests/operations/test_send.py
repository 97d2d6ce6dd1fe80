"""Sending through the public call, to a pair and to one namespace, on embedded namespaces."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import sbpair
from sbpair.connect import open_ends, open_sides
from sbpair.core.events import MessageSent
from sbpair.core.rewrite import compose
from sbpair.operations import SendRequest, send
from tests.fakes import RecordingObserver
from tests.operations.conftest import QUEUES, World, backlog_queue


async def messages(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield compose(body=f"{number}", message_id=f"m{number}")


def test_a_healthy_primary_takes_all(world: World) -> None:
    sent = sbpair.run(send, world.pair, SendRequest("orders", messages(20)))
    assert (sent.accepted, sent.diverted, sent.failed) == (20, 0, 0)
    assert world.waiting("orders") == 20


async def test_a_primary_that_is_down_is_replaced_by_the_backlog(world: World) -> None:
    world.emulator.faults("contoso").add("fail:operation=send")
    at_once = replace(world.pair.options, failover_interval_seconds=0.0)
    observer = RecordingObserver()
    async with open_sides(replace(world.pair, options=at_once)) as sides:
        sent = await send(sides, SendRequest("orders", messages(5)), observer=observer)
    assert (sent.accepted, sent.diverted, sent.failed) == (5, 5, 0)
    assert sum(world.waiting(backlog_queue(index), "fabrikam") for index in range(QUEUES)) == 5
    events = [event for event in observer.events if isinstance(event, MessageSent)]
    assert [event.position for event in events] == list(range(5))
    assert {event.where for event in events} == {"backlog"}


async def test_one_namespace_and_an_entity_that_is_not_there(world: World) -> None:
    async with open_ends(world.pair.primary) as ends:
        assert (await send(ends, SendRequest("orders", messages(3)))).accepted == 3
        observer = RecordingObserver()
        lost = await send(ends, SendRequest("nowhere", messages(2), retry_seconds=0), observer=observer)
    assert (lost.accepted, lost.failed) == (0, 2)
    errors = [event.error for event in observer.events if isinstance(event, MessageSent)]
    assert [error.code for error in errors if error is not None] == ["entity-not-found"] * 2


async def test_after_a_stop_no_more_messages_are_read(world: World) -> None:
    stop, read = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            if read == 30:
                stop.set()
            yield compose(body="x", message_id=f"m{read}")
            await asyncio.sleep(0)

    async with open_ends(world.pair.primary) as ends, asyncio.timeout(60):
        sent = await send(ends, SendRequest("orders", endless(), concurrency=2), stop=stop)
    assert sent.accepted + sent.failed <= read
    assert world.waiting("orders") >= sent.accepted > 0
