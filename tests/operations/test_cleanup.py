"""A clean-up through the public call, on embedded namespaces."""

from dataclasses import replace

import pytest

import sbpair
from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.inspection.plan import StepKind
from sbpair.core.outcome import Result
from sbpair.operations import CleanupRequest, cleanup
from sbpair.ports import Sides
from tests.operations.conftest import QUEUES, World, backlog_queue

EXTRA, FULL = backlog_queue(QUEUES), backlog_queue(QUEUES + 1)


@pytest.fixture
async def crowded(world: World, sides: Sides) -> Sides:
    """Two extra queues: an empty one, and one with messages."""
    for path in (EXTRA, FULL):
        world.emulator.namespace("fabrikam").create_queue(path)
    await world.strand(sides, "orders", 2, queue=QUEUES + 1)
    return sides


async def test_an_empty_extra_queue_goes_and_one_with_messages_stays(world: World, crowded: Sides) -> None:
    done = await cleanup(crowded, CleanupRequest())
    assert {outcome.item: outcome.result for outcome in done.outcomes} == {EXTRA: Result.DONE, FULL: Result.SKIPPED}
    assert world.waiting(FULL, "fabrikam") == 2
    assert await crowded.secondary_admin.get_queue(backlog_queue(0)) is not None


async def test_a_plan_deletes_messages_only_if_the_call_that_carries_it_out_confirms_them(
    world: World, crowded: Sides
) -> None:
    shown = await cleanup(crowded, CleanupRequest(confirm=(FULL,), dry_run=True))
    assert [step.kind for step in shown.plan.steps] == [StepKind.DELETE, StepKind.DELETE]
    kept = await cleanup(crowded, CleanupRequest(plan=shown.plan))
    assert [outcome.result for outcome in kept.outcomes] == [Result.DONE, Result.SKIPPED]
    assert world.waiting(FULL, "fabrikam") == 2
    gone = await cleanup(crowded, CleanupRequest(plan=shown.plan, confirm=(FULL.upper(),)))
    assert [outcome.result for outcome in gone.outcomes] == [Result.UNCHANGED, Result.DONE]
    assert await crowded.secondary_admin.get_queue(FULL) is None


async def test_a_queue_that_another_pair_counts_on_by_now_is_not_deleted(crowded: Sides) -> None:
    plan = (await cleanup(crowded, CleanupRequest(dry_run=True))).plan
    pair = crowded.pair
    wider = replace(pair, name="wider", options=replace(pair.options, backlog_queue_count=QUEUES + 2))
    with pytest.raises(StalePlanError, match="'wider' uses by now"):
        await cleanup(crowded, CleanupRequest(others=(wider,), plan=plan))
    assert await crowded.secondary_admin.get_queue(EXTRA) is not None


def test_the_queues_of_a_primary_in_use_are_no_left_overs(world: World) -> None:
    with pytest.raises(UsageError, match="in use"):
        sbpair.run(cleanup, world.pair, CleanupRequest(left_overs_of=("contoso",)))
