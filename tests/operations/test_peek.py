"""A browse as a call: messages or groups of them, and what could not be read."""

import asyncio
from dataclasses import replace

import pytest

from sbpair.core.errors import InterruptedWorkError, SbpairError, ServiceError
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.transfer.filters import MessageFilter
from sbpair.core.transfer.peeked import GroupKey, Groups, Messages
from sbpair.operations import PeekRequest, Sides, peek
from tests.operations.conftest import World, backlog_queue


async def test_the_oldest_messages_of_every_backlog_queue(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "invoices", 2, queue=2)
    result = await peek(sides, PeekRequest(max_messages=4, with_body=True))
    assert isinstance(result, Messages)
    assert [(one.destination, one.message_id, one.body) for one in result.messages] == [
        ("orders", "m0", "0"),
        ("orders", "m1", "1"),
        ("orders", "m2", "2"),
        ("invoices", "m0", "0"),
    ]
    assert (result.left_off, result.exit) == (True, Exit.OK)
    assert result.closing == "4 messages shown of 4 browsed; there may be more, see --limit."
    assert world.waiting(backlog_queue(0), "fabrikam") == 3


async def test_messages_are_counted_by_key(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "invoices", 2, queue=2)
    result = await peek(sides, PeekRequest(group_by=(GroupKey.DESTINATION,), wanted=MessageFilter(destination="*o*s")))
    assert isinstance(result, Groups)
    assert [(one.values["destination"], one.messages) for one in result.groups] == [("orders", 3), ("invoices", 2)]
    assert result.shown == 5


async def test_a_queue_of_the_primary_is_browsed_by_its_path(world: World, sides: Sides) -> None:
    sender = sides.primary.sender("orders")
    await world.strand(sides, "orders", 1)
    page = await sides.secondary.receiver(backlog_queue(0)).peek(1)
    await sender.send([page[0].payload], timeout_seconds=30)
    await sender.close()
    result = await peek(sides, PeekRequest(queues=("orders",), side=Side.PRIMARY))
    assert result.shown == 1


async def test_what_cannot_be_browsed_is_named_and_is_an_error_where_it_is_all(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 1)
    result = await peek(sides, PeekRequest(queues=(backlog_queue(0), backlog_queue(7))))
    assert (result.shown, result.exit) == (1, Exit.PARTIAL)
    (note,) = result.notes
    assert note.startswith(f"Not read: {backlog_queue(7)}: ")
    with pytest.raises(ServiceError):
        await peek(sides, PeekRequest(queues=(backlog_queue(7),)))
    other = replace(sides, pair=replace(world.pair, primary=replace(world.pair.primary, label="adatum")))
    with pytest.raises(SbpairError, match=r"No backlog queue of adatum exists on fabrikam\."):
        await peek(other, PeekRequest())
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(InterruptedWorkError):
        await peek(sides, PeekRequest(), stop=stop)
