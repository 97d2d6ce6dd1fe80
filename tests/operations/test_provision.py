"""Provisioning through the public call, on embedded namespaces."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

import sbpair
from sbpair.core.errors import AccessDeniedError, InterruptedWorkError, SbpairError, UsageError
from sbpair.core.inspection.plan import StepKind
from sbpair.core.outcome import Result
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.operations import CleanupRequest, ProvisionRequest, cleanup, provision
from sbpair.ports import Sides
from tests.fakes import RecordingObserver
from tests.operations.conftest import QUEUES, World, backlog_queue


async def test_the_steps_of_a_dry_run_are_the_steps_of_the_second_call(sides: Sides, tmp_path: Path) -> None:
    for index in range(QUEUES - 1):
        await sides.secondary_admin.delete_queue(backlog_queue(index))
    shown = await provision(sides, ProvisionRequest(dry_run=True))
    assert shown.report is None
    assert [(step.kind, step.queue) for step in shown.plan.steps] == [
        (StepKind.CREATE, backlog_queue(index)) for index in range(QUEUES - 1)
    ]
    assert await sides.secondary_admin.get_queue(backlog_queue(0)) is None
    # The world changes between the calls: only what was shown is done.
    await sides.secondary_admin.delete_queue(backlog_queue(QUEUES - 1))
    observer, log = RecordingObserver(), tmp_path / "state" / "operations.jsonl"
    done = await provision(sides, ProvisionRequest(plan=shown.plan, log=log), observer=observer)
    results = {outcome.item: outcome.result for outcome in done.outcomes}
    assert [results[step.queue] for step in shown.plan.steps] == [Result.DONE, Result.DONE]
    assert await sides.secondary_admin.get_queue(backlog_queue(QUEUES - 1)) is None
    made = await sides.secondary_admin.get_queue(backlog_queue(0))
    assert made is not None and made.settings.max_delivery_count == DOCUMENTED_SETTINGS.max_delivery_count
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {(line["command"], line["action"], line["queue"]) for line in lines} == {
        ("provision", "create", backlog_queue(index)) for index in range(QUEUES - 1)
    }
    assert len(observer.events) == len(lines)
    assert done.used.management_calls == QUEUES - 1


def test_it_is_done_at_once_from_code_that_is_not_asynchronous(world: World) -> None:
    more = replace(world.pair, options=replace(world.pair.options, backlog_queue_count=QUEUES + 1))
    done = sbpair.run(provision, more, ProvisionRequest())
    assert [outcome.item for outcome in done.outcomes if outcome.result is Result.DONE] == [backlog_queue(QUEUES)]


async def test_a_plan_for_something_else_is_refused(sides: Sides) -> None:
    plan = (await cleanup(sides, CleanupRequest(dry_run=True))).plan
    with pytest.raises(UsageError, match="plan for cleanup"):
        await provision(sides, ProvisionRequest(plan=plan))


async def test_a_stop_before_the_first_step_leaves_all_as_it_is(sides: Sides) -> None:
    await sides.secondary_admin.delete_queue(backlog_queue(0))
    plan = (await provision(sides, ProvisionRequest(dry_run=True))).plan
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(InterruptedWorkError):
        await provision(sides, ProvisionRequest(plan=plan), stop=stop)
    assert await sides.secondary_admin.get_queue(backlog_queue(0)) is None


async def test_what_cannot_be_logged_is_not_done(sides: Sides, tmp_path: Path) -> None:
    await sides.secondary_admin.delete_queue(backlog_queue(0))
    (tmp_path / "file").write_text("")
    with pytest.raises(SbpairError, match="operations log"):
        await provision(sides, ProvisionRequest(log=tmp_path / "file" / "operations.jsonl"))
    assert await sides.secondary_admin.get_queue(backlog_queue(0)) is None


async def test_queues_that_cannot_be_read_are_an_error(world: World, sides: Sides) -> None:
    world.emulator.faults("fabrikam").add("fail:operation=http,status=401")
    with pytest.raises(AccessDeniedError):
        await provision(sides, ProvisionRequest())
