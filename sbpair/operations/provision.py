"""Backlog queues that a pair needs on its secondary: `provision` creates them. And what it shares with `cleanup`:
reading the queues of the secondary, and applying a plan to them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.inspection.plan import (
    AppliedPlan,
    Plan,
    Purpose,
    as_confirmed,
    check_still_extra,
    check_target,
    check_unused,
    plan_cleanup,
    plan_provision,
)
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.summary import Emptied
from sbpair.operations.drain import DrainRequest, ToArchive, ToPrimary, drain
from sbpair.operations.log import OperationsLog, context_of
from sbpair.ports import Observer, Sides
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.apply import Applying, apply, check_fresh
from sbpair.runtime.inspection.gather import GatherScope, gather

__all__ = ["AppliedPlan", "CleanupRequest", "EmptyRequest", "ProvisionRequest", "cleanup", "empty", "provision"]


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
        clock=LoopClock(),
        peek=peeking(sides.secondary) if browse else None,
        scope=GatherScope.BACKLOG,
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
    await run_until(stop or asyncio.Event(), check_fresh(plan, admin=sides.secondary_admin, clock=LoopClock()))


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
            clock=LoopClock(),
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


# `cleanup`: delete the backlog queues that no configured pair needs; and before that empty them.


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """Which queues go."""

    others: tuple[Pair, ...] = ()
    """All configured pairs: a queue that one of them counts on stays."""
    confirm: tuple[str, ...] = ()
    """Paths of queues that are deleted with the messages they hold. Without that a queue with messages stays."""
    left_overs_of: tuple[str, ...] = ()
    """Labels of former primaries, in lower case, whose queues are extra, too."""
    plan: Plan | None = None
    """The steps to carry out, for example those of a dry run; None: those for what is extra now."""
    dry_run: bool = False
    log: Path | None = None
    """Operations log, to which a line is appended for each step; None: nothing is recorded."""


async def cleanup(
    sides: Sides, request: CleanupRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> AppliedPlan:
    """Delete the extra backlog queues of a pair that are empty. Needs Manage and Listen on the secondary.

    A queue is empty if two counts and a browse find no message of any kind. Protected queues, and queues that a
    configured pair counts on, are never deleted. A dry run gives the plan; a second call with that plan carries out
    those steps and no others, and deletes a queue with messages only if that call confirms it.

    Args:
        observer: gets a `StepDone` event for each step.
        stop: ends the reading; a plan that was begun is carried out.

    Raises:
        ServiceError: the queues could not be read. Nothing was changed.
        UsageError: the queues of a former primary are in use; or the plan is for other namespaces or no clean-up.
        StalePlanError: the plan deletes a queue that is in use by now.
        InterruptedWorkError: `stop` was set before the first step.
        SbpairError: the operations log cannot be written.
    """
    plan = request.plan
    if plan is not None:
        check_still_extra(sides.pair, plan, request.others)
    else:
        check_unused(sides.pair, request.left_overs_of, request.others)
        plan = plan_cleanup(
            await read_backlog_queues(sides, stop, browse=True),
            sides.pair,
            confirmed=request.confirm,
            also_primaries=request.left_overs_of,
            others=request.others,
        )
    if request.dry_run:
        return AppliedPlan(plan)
    plan = as_confirmed(plan, request.confirm)
    return await apply_plan(sides, plan, Purpose.CLEANUP, log=request.log, observer=observer, stop=stop)


# Before that: the messages of such queues.


@dataclass(frozen=True, slots=True)
class EmptyRequest:
    """Which queues are emptied before they are deleted, and where to."""

    queues: tuple[str, ...]
    """Their paths on the secondary."""
    archive: Path | None = None
    """The folder where files with the messages are written; None: the messages go to the primary."""
    log: Path | None = None
    """The operations log. None: nothing is recorded."""


async def empty(
    sides: Sides, request: EmptyRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Emptied:
    """Move what queues hold into files, or to the primary: first the messages, then the dead letters.

    Returns:
        What became of the messages and of the dead letters.

    Raises:
        As `drain`; and SbpairError: the operations log cannot be written.
    """
    to = ToPrimary() if request.archive is None else ToArchive(request.archive)
    reports = []
    with OperationsLog(request.log) as log:
        for dead_letter in (False, True):
            asked = DrainRequest(queues=request.queues, dead_letter=dead_letter, to=to)
            report = (await drain(sides, asked, observer=observer, stop=stop)).report
            action = "drain" if request.archive is None else "archive"
            log.write(_line(sides.pair, request.queues, action, dead_letter, report))
            reports.append(report)
    return Emptied(sides.pair.name, shown_name(sides.pair.primary), *reports)


def _line(pair: Pair, queues: Sequence[str], action: str, dead_letter: bool, report: DrainReport) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **context_of("cleanup", pair.secondary),
        "pair": pair.name,
        "namespace": pair.secondary.host,
        "action": action,
        "queues": list(queues),
        "dead_letter": dead_letter,
        "result": "done" if report.confirmed_empty else "partial",
        "messages": report.completed,
        "archive": None if report.archive is None else str(report.archive),
    }
