"""`sbpair provision`: plan, show, apply the backlog queues of pairs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import AllPairsOption, YesOption, pairs_to_write
from sbpair.cli.context import load_settings, open_sides, run_async, unchanged
from sbpair.cli.inspection.plans import (
    DryRunOption,
    PairPlans,
    carry_out,
    operations_log,
    planned,
    plans_for,
    steps_agreed,
    write_plans,
)
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.core.errors import UsageError
from sbpair.core.inspection.plan import Plan, Purpose
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.inspection.result import AppliedPlan
    from sbpair.operations.ends import Sides
    from sbpair.ports import Observer


@command(output="core.inspection.result:Printed")
def provision(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    plan_out: Annotated[Path | None, typer.Option(help="Save the plan to this file; change nothing.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Apply this plan; refused if the queues changed since it was made.")
    ] = None,
    update: Annotated[bool, typer.Option(help="Change existing queues to the documented settings.")] = False,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Number of backlog queues, instead of the configured one.")
    ] = None,
    partitioned: Annotated[
        bool, typer.Option(help="Make new queues partitioned, which keep no order within a session.")
    ] = False,
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
        written = plans_for(plan, Purpose.PROVISION, chosen)
        return _carried_out(options, written, from_file=True, dry_run=dry_run, yes=yes)
    if plan_out is not None:
        check_writable(plan_out)
    plans = _planned(options, chosen, update=update, partitioned=partitioned)
    if plan_out is not None:
        write_plans(plan_out, plans)
        return replace(planned("provision", plans, notes=(f"Plan written to {plan_out}.",)), exit=Exit.OK)
    return _carried_out(options, list(zip(chosen, plans, strict=True)), from_file=False, dry_run=dry_run, yes=yes)


def _with_count(pair: Pair, count: int | None) -> Pair:
    return pair if count is None else replace(pair, options=replace(pair.options, backlog_queue_count=count))


def _planned(options: Options, pairs: Sequence[Pair], *, update: bool, partitioned: bool) -> list[Plan]:
    async def work(stop: "asyncio.Event") -> list[Plan]:
        from sbpair.operations.provision import ProvisionRequest
        from sbpair.operations.provision import provision as provision_pair

        request = ProvisionRequest(update=update, partitioned=partitioned, dry_run=True)
        plans = []
        for pair in pairs:
            with unchanged():
                async with open_sides(pair) as sides:
                    plans.append((await provision_pair(sides, request, stop=stop)).plan)
        return plans

    return run_async(options, work)


def _carried_out(options: Options, plans: PairPlans, *, from_file: bool, dry_run: bool, yes: bool) -> CommandResult:
    if dry_run or not steps_agreed(options, plans, yes=yes):
        return planned("provision", [plan for _, plan in plans])

    async def verb(
        sides: "Sides", pair: Pair, plan: Plan, observer: "Observer | None", stop: "asyncio.Event"
    ) -> "AppliedPlan":
        from sbpair.operations.provision import ProvisionRequest
        from sbpair.operations.provision import provision as provision_pair

        request = ProvisionRequest(plan, log=operations_log())
        return await provision_pair(sides, request, observer=observer, stop=stop)

    return carry_out(options, "provision", plans, verb, from_file=from_file)
