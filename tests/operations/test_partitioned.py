"""Messages of a partitioned queue, moved within its namespace: in transactions of one key, none of them refused."""

from collections.abc import AsyncIterator

import pytest

from sbpair.connect import open_ends
from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from sbpair.emulator.entities import QueueDescription
from sbpair.operations.move import MoveRequest, move
from sbpair.operations.resubmit import ResubmitRequest, resubmit
from sbpair.ports import Ends
from tests.operations.conftest import World

SECONDS = 30.0
MESSAGES = 120


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    world.emulator.namespace("contoso").create_queue("parts", QueueDescription(enable_partitioning=True))
    async with open_ends(world.pair.primary) as opened:
        yield opened


async def fill(ends: Ends, keys: int) -> None:
    sender = ends.source.sender("parts")
    for number in range(MESSAGES):
        message = compose(body="x", message_id=f"m{number}", partition_key=f"k{number % keys}")
        await sender.send([message], timeout_seconds=SECONDS)
    await sender.close()


@pytest.mark.parametrize("keys", [MESSAGES, 7])
async def test_no_transaction_mixes_keys_so_that_none_is_refused_and_no_lock_lost(
    world: World, ends: Ends, keys: int
) -> None:
    await fill(ends, keys)
    sends = world.emulator.call(
        lambda emulator: emulator.faults("contoso").add("fail:op=send,entity=orders,after=9999")
    )
    done = await move(ends, MoveRequest("parts", "orders"))
    assert (done.report.forwarded, done.report.locks_lost, done.at_least_once_because) == (MESSAGES, 0, None)
    seen = {one.id: one.seen for one in world.emulator.call(lambda emulator: emulator.faults("contoso").list())}
    assert keys <= seen[sends] <= MESSAGES, "a transfer that is refused is sent once more"
    assert (world.waiting("parts"), world.waiting("orders")) == (0, MESSAGES)


async def test_dead_letters_go_back_to_their_partitioned_queue_in_transactions(world: World, ends: Ends) -> None:
    await fill(ends, MESSAGES)
    receiver = ends.source.receiver("parts")
    done = 0
    while done < MESSAGES:
        for one in await receiver.receive(MESSAGES, wait_seconds=SECONDS):
            await receiver.settle(one, Disposition.DEAD_LETTER, reason="Poison")
            done += 1
    await receiver.close()
    result = await resubmit(ends, ResubmitRequest("parts", "parts"))
    assert (result.report.forwarded, result.report.locks_lost, result.at_least_once_because) == (MESSAGES, 0, None)
    assert (world.waiting("parts"), world.waiting("parts", dead_letter=True)) == (MESSAGES, 0)


async def test_what_has_no_key_goes_to_a_partitioned_queue_without_a_transaction(world: World, ends: Ends) -> None:
    sender = ends.source.sender("orders")
    payloads = [compose(body="x", message_id=f"m{number}") for number in range(MESSAGES)]
    await sender.send(payloads, timeout_seconds=SECONDS)
    await sender.close()
    done = await move(ends, MoveRequest("orders", "parts"))
    assert (done.report.forwarded, done.report.in_transactions, done.report.locks_lost) == (MESSAGES, 0, 0)
    assert (done.report.completed, done.report.left) == (MESSAGES, ())
    assert (world.waiting("orders"), world.waiting("parts")) == (0, MESSAGES)
