"""A restore as a call: a dry run and exactly its plan, what the ledger has, what is refused, and the synchronous
door."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import sbpair
from sbpair.connect import open_ends
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.events import Event, Forwarded
from sbpair.core.outcome import Exit
from sbpair.core.transfer.filters import EVERYTHING
from sbpair.operations import RestoreRequest, Sides, restore
from sbpair.runtime.clock import Quiet, SystemClock
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, TransferRequest, drain
from tests.operations.conftest import World, backlog_queue


async def archived(world: World, sides: Sides, folder: Path, entity: str, count: int) -> None:
    """Write messages of the backlog into a file, as a drain does with an archive."""
    await world.strand(sides, entity, count)
    request = TransferRequest((backlog_queue(0),), to=ToArchive(folder))
    job = DrainJob(
        request,
        secondary=sides.secondary,
        primary=sides.primary,
        clock=SystemClock(),
        observer=Quiet(),
        stop=asyncio.Event(),
    )
    assert (await drain(job)).forwarded == count


async def test_a_dry_run_says_what_would_be_sent_and_its_plan_sends_exactly_that(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 3)
    request = RestoreRequest((tmp_path,), only=("orders",))
    planned = await restore(sides, replace(request, dry_run=True))
    assert (planned.restored.sent, planned.exit, world.waiting("orders")) == ({"orders": 3}, Exit.FINDINGS, 0)
    assert planned.closing == "3 of 3 messages would be sent to the primary."
    await archived(world, sides, tmp_path, "orders", 2)  # came after the plan
    done = await restore(sides, replace(request, plan=planned.plan))
    assert (done.restored.sent, done.exit, world.waiting("orders")) == ({"orders": 3}, Exit.OK, 3)
    assert [(row.what, row.where, row.messages) for row in done.rows] == [("sent", "orders", 3)]


async def test_what_the_ledger_has_is_not_sent_again(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path / "files", "orders", 5)
    request = RestoreRequest((tmp_path / "files",), ledger=tmp_path / "restored.jsonl")
    some = await restore(sides, replace(request, max_messages=2))
    assert (some.messages, some.restored.sent) == (2, {"orders": 2})
    rest = await restore(sides, request)
    assert (rest.restored.sent, rest.restored.already_sent) == ({"orders": 3}, 2)
    assert rest.closing == "3 of 5 messages sent to the primary; 2 left out, because a ledger has them."


async def test_messages_for_other_entities_than_those_allowed_are_left(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 2)
    await archived(world, sides, tmp_path, "invoices", 1)
    done = await restore(sides, RestoreRequest((tmp_path,), only=("ORDERS",)))
    assert (done.restored.sent, done.exit) == ({"orders": 2}, Exit.PARTIAL)
    assert done.restored.left == {"not among the pair's entities: invoices": 1}
    assert world.waiting("invoices") == 0


async def test_it_sends_to_a_namespace_that_belongs_to_no_pair(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path, "orders", 2)
    world.emulator.namespace("fabrikam").create_queue("orders")
    async with open_ends(world.pair.secondary) as ends:
        done = await restore(ends, RestoreRequest((tmp_path,)))
    assert (done.pair, done.namespace, done.restored.sent) == (None, "fabrikam", {"orders": 2})
    assert (world.waiting("orders", "fabrikam"), world.waiting("orders")) == (2, 0)
    assert done.closing == "2 of 2 messages sent to fabrikam."


async def test_a_file_that_is_missing_or_holds_something_else_is_refused(sides: Sides, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no"):
        await restore(sides, RestoreRequest((tmp_path / "absent",)))
    (tmp_path / "other.jsonl").write_text('{"queue": 1}\n')
    with pytest.raises(UsageError, match=r"Line 1 of .* is not a message .* Nothing was sent"):
        await restore(sides, RestoreRequest((tmp_path,), wanted=EVERYTHING))


async def test_a_restore_that_is_stopped_returns_what_was_sent_until_then(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 40)
    stop = asyncio.Event()

    class StopsAfterTheFirst:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded):
                stop.set()

    request = RestoreRequest((tmp_path,), rate_per_second=5.0, concurrency=1)
    done = await restore(sides, request, observer=StopsAfterTheFirst(), stop=stop)
    sent = sum(done.restored.sent.values())
    assert 0 < sent == world.waiting("orders") < 40
    assert done.restored.left == {"interrupted": 40 - sent}
    with pytest.raises(InterruptedWorkError):
        await restore(sides, request, stop=stop)
    assert world.waiting("orders") == sent


def test_code_that_is_not_asynchronous_restores_by_the_same_call(world: World, tmp_path: Path) -> None:
    async def write() -> None:
        async with sbpair.open_sides(world.pair) as sides:
            await archived(world, sides, tmp_path, "orders", 2)

    asyncio.run(write())
    assert sbpair.run(restore, world.pair, RestoreRequest((tmp_path,))).restored.sent == {"orders": 2}
