"""What `provision` and `cleanup` share: reading the secondary's queues, and applying a plan to them."""

import asyncio
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.inspection.plan import Plan, Purpose, check_target
from sbpair.core.inspection.result import AppliedPlan
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.operations.log import OperationsLog, context_of
from sbpair.ports import Observer, Sides
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.apply import Applying, apply, check_fresh
from sbpair.runtime.inspection.gather import Scope, gather

NOTHING_CHANGED = "Nothing was changed."


async def read_backlog_queues(sides: Sides, stop: asyncio.Event | None, *, browse: bool) -> Snapshot:
    """The secondary and its queues, all of which must be readable. `browse`: look into the backlog queues, too.

    Raises:
        ServiceError: something could not be read.
        InterruptedWorkError: `stop` was set.
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
        InterruptedWorkError: `stop` was set.
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
