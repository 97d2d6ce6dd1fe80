"""`provision`: create the backlog queues that a pair needs on its secondary namespace."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sbpair.core.inspection.plan import Plan, Purpose, plan_provision
from sbpair.core.inspection.result import AppliedPlan
from sbpair.operations.plans import apply_plan, read_backlog_queues
from sbpair.ports import Observer, Sides

__all__ = ["AppliedPlan", "ProvisionRequest", "provision"]


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
