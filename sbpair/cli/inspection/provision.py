"""`sbpair provision`: plan, show, apply the backlog queues of pairs."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import AllPairsOption, YesOption, agreed, can_ask, pairs_to_write, side_named
from sbpair.cli.context import (
    event_log,
    load_settings,
    open_sides,
    run_and_show,
    run_async,
    stoppable,
    system_clock,
    unchanged,
)
from sbpair.cli.inspection.plans import (
    REPORT_COLUMNS,
    Applied,
    DryRunOption,
    OperationsLog,
    Planned,
    how_to_apply,
    plan_summary,
    plan_table,
    read_plans,
    report_summary,
    step_outcomes,
    write_plans,
)
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.connect import gather_pair
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.forecast import Forecast, in_words
from sbpair.core.inspection.plan import Plan, Purpose, check_target, of_plan, plan_provision
from sbpair.core.outcome import Exit, Report, Result, exit_for
from sbpair.core.pairing import Pair
from sbpair.core.redact import printable
from sbpair.core.serialization import to_plain
from sbpair.render.console import check_writable, say
from sbpair.render.result import CommandResult, Table

if TYPE_CHECKING:
    import asyncio


@command(output="cli.inspection.plans:Printed")
def provision(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    plan_out: Annotated[
        Path | None,
        typer.Option("--plan-out", help="Save the plan to this file; change nothing.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Apply this plan; refused if the queues changed since it was made.", show_default=False),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Change existing queues to the documented settings.")
    ] = False,
    queues: Annotated[
        int | None,
        typer.Option(min=1, help="Number of backlog queues, instead of the configured one.", show_default=False),
    ] = None,
    partitioned: Annotated[bool, typer.Option("--partitioned", help="Make new queues partitioned.")] = False,
) -> CommandResult:
    """Create the backlog queues that a pair needs on its secondary namespace, with the documented settings.

    Shows the plan, then asks. Existing queues are left as they are unless --update is given. Needs Manage on the
    secondary.

    \b
    Examples:
      sbpair provision orders --dry-run
      sbpair provision orders --plan-out plan.json && sbpair provision orders --plan plan.json
    """
    settings = load_settings(options)
    chosen = [
        _with_count(pair, queues)
        for pair in pairs_to_write(options, settings, pairs, all_pairs=all_pairs, doing="Provision")
    ]
    if plan is not None:
        if plan_out is not None or update or partitioned or queues is not None:
            raise UsageError(
                "--plan applies a plan as it was written: no --plan-out, --update, --partitioned or --queues."
            )
        return _apply_file(options, chosen, plan, dry_run=dry_run, yes=yes)

    if plan_out is not None:
        check_writable(plan_out)

    async def look(stop: "asyncio.Event") -> list[Plan]:
        with unchanged():
            return [await stoppable(stop, make_plan(pair, update=update, partitioned=partitioned)) for pair in chosen]

    plans = run_async(options, look)
    if plan_out is not None:
        write_plans(plan_out, plans)
        return replace(planned("provision", plans, notes=(f"Plan written to {plan_out}.",)), exit=Exit.OK)
    if dry_run:
        return planned("provision", plans)
    if not _agreed(options, chosen, plans, yes=yes):
        return planned("provision", plans)

    async def work(stop: "asyncio.Event") -> list[tuple[str, Report]]:
        return await carry_out_all(options, "provision", list(zip(chosen, plans, strict=True)), stop)

    return run_and_show(options, work, lambda reports: applied("provision", plans, reports))


def _agreed(options: Options, pairs: Sequence[Pair], plans: Sequence[Plan], *, yes: bool) -> bool:
    """Shows the steps on stderr and asks, where somebody can answer."""
    if yes or not can_ask(options) or not any(plan.has_changes for plan in plans):
        return True
    for pair, plan in zip(pairs, plans, strict=True):
        for step in plan.steps:
            say(printable(f"{side_named(pair)}: {step.kind.value} {step.queue}: {step.reason}"))
    where = ", ".join(dict.fromkeys(side_named(pair) for pair in pairs))
    return agreed(options, f"{plan_summary(plans).rstrip('.').capitalize()} on {where}: go on?", yes=yes)


def _with_count(pair: Pair, count: int | None) -> Pair:
    return pair if count is None else replace(pair, options=replace(pair.options, backlog_queue_count=count))


async def make_plan(pair: Pair, *, update: bool = False, partitioned: bool = False) -> Plan:
    """Read the secondary and plan what its backlog queues need."""
    snapshot = await gather_pair(pair, backlog_only=True, browse=False)
    return plan_provision(snapshot, pair, update=update, partitioned=partitioned)


async def carry_out_all(
    options: Options, command_name: str, plans: Sequence[tuple[Pair, Plan]], stop: "asyncio.Event"
) -> list[tuple[str, Report]]:
    """Apply plans to their pairs' secondaries, one pair after the other until `stop`; each step goes into the log.

    Raises:
        InterruptedWorkError: `stop` was set before the first step.
    """
    if stop.is_set():
        raise InterruptedWorkError("No step was carried out.")
    with OperationsLog(os.environ) as log:
        return [
            (pair.name, await _carry_out(options, command_name, pair, plan, log))
            for pair, plan in plans
            if not stop.is_set()
        ]


async def _carry_out(options: Options, command_name: str, pair: Pair, plan: Plan, log: OperationsLog) -> Report:
    from sbpair.runtime.browse import peeking
    from sbpair.runtime.inspection.apply import apply

    async with open_sides(pair) as sides:
        return await apply(
            plan,
            admin=sides.secondary_admin,
            clock=system_clock(),
            observer=event_log(options),
            peek=peeking(sides.secondary),
            log=log.write,
            how=how_to_apply(command_name, pair),
        )


def _apply_file(options: Options, pairs: list[Pair], path: Path, *, dry_run: bool, yes: bool) -> CommandResult:
    written = plans_for(path, Purpose.PROVISION, pairs)
    plans = [plan for _, plan in written]
    if dry_run or not _agreed(options, [pair for pair, _ in written], plans, yes=yes):
        return planned("provision", plans)

    async def work(stop: "asyncio.Event") -> list[tuple[str, Report]]:
        with unchanged():
            await stoppable(stop, refuse_stale(written))
        return await carry_out_all(options, "provision", written, stop)

    return run_and_show(options, work, lambda reports: applied("provision", plans, reports))


def plans_for(path: Path, purpose: Purpose, pairs: Sequence[Pair]) -> list[tuple[Pair, Plan]]:
    """Plans of a file with the pairs they are for.

    Raises:
        UsageError: a plan for another purpose, for a pair that is not among `pairs`, or for other namespaces.
    """
    by_name = {pair.name: pair for pair in pairs}
    plans = read_plans(path)
    for plan in plans:
        if plan.purpose is not purpose:
            raise UsageError(
                f"{path} holds a plan for {plan.purpose.value}; apply it with: sbpair {plan.purpose.value}"
            )
        if plan.pair not in by_name:
            raise UsageError(f"{path} holds a plan for pair {plan.pair!r}, which was not named.")
        check_target(plan, by_name[plan.pair])
    return [(by_name[plan.pair], plan) for plan in plans]


async def refuse_stale(plans: Sequence[tuple[Pair, Plan]]) -> None:
    """Refuse plans of a file if any of their queues changed since.

    Raises:
        StalePlanError: see `runtime.apply.check_fresh`.
    """
    from sbpair.runtime.inspection.apply import check_fresh

    for pair, plan in plans:
        async with open_sides(pair) as sides:
            await check_fresh(plan, admin=sides.secondary_admin, clock=system_clock())


def planned(command_name: str, plans: list[Plan], *, notes: Sequence[str] = ()) -> CommandResult:
    """Result of a run that only planned: exit 5 if applying would change anything."""
    forecast = sum((of_plan(plan) for plan in plans), Forecast())
    takes = (f"Applying it takes {in_words(forecast)}.",) if any(plan.has_changes for plan in plans) else ()
    return CommandResult(
        command_name,
        Planned(tuple(plans), forecast),
        (plan_table(plans),),
        notes=tuple(notes),
        details=takes,
        summary=f"Plan: {plan_summary(plans)} Nothing was changed.",
        closing=True,
        exit=Exit.FINDINGS if any(plan.has_changes for plan in plans) else Exit.OK,
    )


def _done(plan: Plan, report: Report | None) -> Plan:
    """The plan with the steps only that were carried out."""
    done = {one.item for one in (report.outcomes if report else ()) if one.result is Result.DONE}
    return replace(plan, steps=tuple(step for step in plan.steps if step.queue in done))


def applied(command_name: str, plans: list[Plan], reports: list[tuple[str, Report]]) -> CommandResult:
    """Result of a run that applied its plans."""
    outcomes = step_outcomes(reports)
    table = Table("", REPORT_COLUMNS, to_plain(outcomes), style_key="result")
    used = sum((of_plan(_done(plan, dict(reports).get(plan.pair))) for plan in plans), Forecast())
    return CommandResult(
        command_name,
        Applied(tuple(plans), outcomes, used),
        (table,) if outcomes else (plan_table(plans),),
        details=(f"It took {in_words(used)}, retries not counted.",) if outcomes and used.operations else (),
        summary=report_summary(reports) if outcomes else f"Plan: {plan_summary(plans)}",
        closing=True,
        exit=exit_for(one for _, report in reports for one in report.outcomes),
    )
