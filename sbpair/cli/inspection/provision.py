"""`sbpair provision`: plan, show, apply the backlog queues of pairs."""

from dataclasses import replace
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import AllPairsOption, YesOption, pairs_to_write
from sbpair.cli.context import load_settings
from sbpair.cli.inspection.plans import (
    DryRunOption,
    PlanOption,
    PlanOutOption,
    carry_out,
    made,
    operations_log,
    planned,
    plans_for,
    steps_agreed,
    written,
)
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.core.errors import UsageError
from sbpair.core.inspection.plan import Purpose
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult


@command(output="core.inspection.result:Printed")
def provision(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    plan_out: PlanOutOption = None,
    plan: PlanOption = None,
    update: Annotated[bool, typer.Option(help="Change existing queues to the documented settings.")] = False,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Number of backlog queues, instead of the configured one.")
    ] = None,
    partitioned: Annotated[
        bool,
        typer.Option(
            help="Make new queues partitioned, which keep no order within a session: diverted messages have no key."
        ),
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
        pair if queues is None else replace(pair, options=replace(pair.options, backlog_queue_count=queues))
        for pair in pairs_to_write(options, settings, pairs, all_pairs=all_pairs, doing="Provision")
    ]
    if plan is not None:
        if plan_out is not None or update or partitioned or queues is not None:
            raise UsageError(
                "--plan applies a plan as it was written: no --plan-out, --update, --partitioned or --queues."
            )
        plans = plans_for(plan, Purpose.PROVISION, chosen)
    else:
        if plan_out is not None:
            check_writable(plan_out)
        request = operations.ProvisionRequest(update=update, partitioned=partitioned, dry_run=True)
        plans = made(options, chosen, operations.provision, request)
    only_plans = [each for _, each in plans]
    if plan_out is not None:
        return written(options, plan_out, planned("provision", only_plans), plans)
    if dry_run or not steps_agreed(options, plans, yes=yes):
        return planned("provision", only_plans)
    request = operations.ProvisionRequest(log=operations_log())
    return carry_out(options, "provision", plans, operations.provision, request, from_file=plan is not None)
