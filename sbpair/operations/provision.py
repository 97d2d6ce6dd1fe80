"""Backlog queues that a pair needs on its secondary: `provision` creates them. And what it shares with `cleanup`:
reading the queues of the secondary, and applying a plan to them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.inspection.plan import Plan, Purpose, check_target, plan_provision
from sbpair.core.inspection.result import AppliedPlan
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.operations.log import OperationsLog, context_of
from sbpair.ports import Observer, Sides
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.apply import Applying, apply, check_fresh
from sbpair.runtime.inspection.gather import Scope, gather

__all__ = ["AppliedPlan", "ProvisionRequest", "provision"]

NOTHING_CHANGED = "Nothing was changed."


async def read_backlog_queues(sides: Sides, stop: asyncio.Event | None, *, browse: bool) -> Snapshot:
    """The secondary and its queues, all of which must be readable. `browse`: look into the backlog queues, too.

    Raises:
        ServiceError: something could not be read.
    """
    reading = gather(
        sides.pair,
        primary=sides.primary_admin,
        secondary=sides.secondary_admin,
        clock=SystemClock(),
        peek=peeking(sides.secondary) if browse else None,
        scope=Scope.BACKLOG,
        tolerant=False,
    )
    return await run_until(stop or asyncio.Event(), reading)


async def refuse_stale(sides: Sides, plan: Plan, *, stop: asyncio.Event | None = None) -> None:
    """Refuse a plan that was kept in a file if any of its queues was changed since.

    A queue to create that exists by now as it was going to be made is fine: another run did the step.

    Raises:
        StalePlanError: naming every queue that changed.
        ServiceError: a queue could not be read.
    """
    await run_until(stop or asyncio.Event(), check_fresh(plan, admin=sides.secondary_admin, clock=SystemClock()))


async def apply_plan(
    sides: Sides,
    plan: Plan,
    purpose: Purpose,
    *,
    log: Path | None,
    observer: Observer | None,
    stop: asyncio.Event | None,
) -> AppliedPlan:
    """Carry out a plan on the secondary; each step goes into the operations log.

    Raises:
        UsageError: a plan for something else, or for other namespaces.
        InterruptedWorkError: `stop` was set before the first step.
        SbpairError: the log cannot be written.
    """
    if plan.purpose is not purpose:
        raise UsageError(f"This is a plan for {plan.purpose.value}, not for {purpose.value}. {NOTHING_CHANGED}")
    check_target(plan, sides.pair)
    if stop is not None and stop.is_set():
        raise InterruptedWorkError("No step was carried out.")
    with OperationsLog(log) as operations:
        report = await apply(
            plan,
            admin=sides.secondary_admin,
            clock=SystemClock(),
            observer=observer,
            peek=peeking(sides.secondary),
            log=operations.write,
            how=Applying(protected=sides.pair.protected, context=context_of(purpose.value, sides.pair.secondary)),
        )
    return AppliedPlan(plan, report)


@dataclass(frozen=True, slots=True)
class ProvisionRequest:
    """Which queues are made, and how."""

    plan: Plan | None = None
    """The steps to carry out, for example those of a dry run; None: those that the queues need now."""
    update: bool = False
    """Change existing queues to the documented settings, too."""
    partitioned: bool = False
    """Make new queues partitioned."""
    dry_run: bool = False
    log: Path | None = None
    """Operations log, to which a line is appended for each step; None: nothing is recorded."""


async def provision(
    sides: Sides, request: ProvisionRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> AppliedPlan:
    """Create the backlog queues that are missing on the secondary, with the documented settings. Needs Manage there.

    The number of queues is that of the pair's options. A dry run gives the plan; a second call with that plan carries
    out those steps and no others.

    Args:
        observer: gets a `StepDone` event for each step.
        stop: ends the reading; a plan that was begun is carried out.

    Raises:
        ServiceError: the queues could not be read. Nothing was changed.
        UsageError: the plan is for other namespaces, or no plan for provisioning.
        InterruptedWorkError: `stop` was set before the first step.
        SbpairError: the operations log cannot be written.
    """
    plan = request.plan
    if plan is None:
        snapshot = await read_backlog_queues(sides, stop, browse=False)
        plan = plan_provision(snapshot, sides.pair, update=request.update, partitioned=request.partitioned)
    if request.dry_run:
        return AppliedPlan(plan)
    return await apply_plan(sides, plan, Purpose.PROVISION, log=request.log, observer=observer, stop=stop)
