"""`sbpair provision`, and what it shares with cleanup: plan files, plans and what became of them as tables."""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli.asking import AllPairsOption, agreed, pairs_to_write, side_named, will_ask
from sbpair.cli.context import Stop, event_log, load_settings, open_sides, run_and_show, run_async
from sbpair.cli.inspection.saved import read_plans, write_plans
from sbpair.cli.options import ONCE, Options, PairsArgument, command
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.inspection.plan import Plan, Purpose, check_target
from sbpair.core.inspection.result import Applied, Planned, PlanRow, StepOutcome, plan_rows, plan_summary
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words
from sbpair.core.redact import printable
from sbpair.render.console import check_writable, say
from sbpair.render.result import CommandResult, table_of
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.connect import Verb
    from sbpair.core.inspection.result import AppliedPlan

PlanOutOption = Annotated[Path | None, typer.Option(help="Save the plan to this file; change nothing."), ONCE]
PlanOption = Annotated[
    Path | None, typer.Option(help="Apply this plan; refused if the queues changed since it was made."), ONCE
]
DRY_RUN = "Only show the plan; exit 5 if it has changes."
PairPlans = Sequence[tuple[Pair, Plan]]


def operations_log() -> Path:
    """The file of the operations log, in the state folder."""
    from sbpair.operations.log import FILE_NAME

    return state_directory(os.environ) / FILE_NAME


def written(options: Options, path: Path, result: CommandResult, plans: PairPlans) -> CommandResult:
    """Save plans to a file that `--plan` reads again, and say so in their result."""
    where = write_plans(path, [plan.to_dict() for _, plan in plans])
    what = f"Plan with {plan_summary(plan for _, plan in plans).rstrip('.')}"
    note = f"{what} {where}. Apply it: {options.go_on} --plan {shlex.quote(str(path))}"
    return replace(result, notes=(*result.notes, note), exit=Exit.OK)


def plans_for(path: Path, purpose: Purpose, pairs: Sequence[Pair]) -> list[tuple[Pair, Plan]]:
    """Plans that `written` has saved, with the pairs they are for.

    Raises:
        UsageError: unreadable, not JSON, not plans of this release's format; a plan for another purpose, for a pair
            that is not among `pairs`, or for other namespaces.
        StalePlanError: it was changed by hand, or has expired.
    """
    by_name = {pair.name: pair for pair in pairs}
    plans = [Plan.from_dict(plan) for plan in read_plans(path)]
    for plan in plans:
        if plan.purpose is not purpose:
            raise UsageError(
                f"{path} holds a plan for {plan.purpose.value}. Nothing was changed.",
                hint=f"Apply it: sbpair {plan.purpose.value} {plan.pair} --plan {shlex.quote(str(path))}",
            )
        if plan.pair not in by_name:
            raise UsageError(f"{path} holds a plan for pair {plan.pair!r}, which was not named.")
        check_target(plan, by_name[plan.pair])
    return [(by_name[plan.pair], plan) for plan in plans]


def steps_agreed(options: Options, plans: PairPlans) -> bool:
    """Shows the steps on stderr and asks, where there is something to do and somebody who can answer."""
    if not will_ask(options) or not any(plan.has_changes for _, plan in plans):
        return True
    for pair, plan in plans:
        for step in plan.steps:
            say(printable(f"{side_named(pair)}: {step.kind.value} {step.queue}: {step.reason}"))
    where = ", ".join(dict.fromkeys(side_named(pair) for pair, _ in plans))
    summary = plan_summary(plan for _, plan in plans).rstrip(".").capitalize()
    return agreed(options, f"{summary} on {where}: go on?")


def made(
    options: Options, pairs: Sequence[Pair], verb: "Verb[Any, AppliedPlan]", request: Any
) -> list[tuple[Pair, Plan]]:
    """The plan of each pair, by a dry run of `verb`."""

    async def work(stop: Stop) -> list[tuple[Pair, Plan]]:
        plans = []
        for pair in pairs:
            with unchanged():
                async with open_sides(pair) as sides:
                    plans.append((pair, (await verb(sides, request, observer=None, stop=stop)).plan))
        return plans

    return run_async(options, work)


def carry_out(
    options: Options,
    plans: PairPlans,
    verb: "Verb[Any, AppliedPlan]",
    request: Any,
    *,
    from_file: bool,
    notes: Sequence[str] = (),
) -> CommandResult:
    """Call `verb` with each plan until a signal, and show what became of them. Those of a file are refused if the
    queues have changed since."""

    async def work(stop: Stop) -> "list[AppliedPlan]":
        from sbpair.operations.provision import refuse_stale

        if from_file:
            for pair, plan in plans:
                with unchanged():
                    async with open_sides(pair) as sides:
                        await refuse_stale(sides, plan, stop=stop)
        applied: list[AppliedPlan] = []
        for pair, plan in plans:
            if applied and stop.is_set():
                break
            async with open_sides(pair) as sides:
                asked = replace(request, plan=plan)
                applied.append(await verb(sides, asked, observer=event_log(options), stop=stop))
        return applied

    return run_and_show(options, work, lambda applied: _shown(plans, applied, notes))


def planned(plans: Iterable[Plan], *, notes: Sequence[str] = ()) -> CommandResult:
    """Result of a run that only planned: exit 5 if applying would change anything."""
    result = Planned(tuple(plans))
    return CommandResult(
        result,
        (table_of(PlanRow, plan_rows(result.plans)),),
        notes=tuple(notes),
        details=(f"Applying it takes {in_words(result.forecast)}.",) if result.has_changes else (),
        summary=f"Plan: {plan_summary(result.plans)} Nothing was changed.",
        closing=True,
        exit=result.exit,
    )


def _shown(plans: PairPlans, applied: "Sequence[AppliedPlan]", notes: Sequence[str]) -> CommandResult:
    """Result of a run that applied its plans."""
    result = Applied.of((plan for _, plan in plans), applied)
    rows, used = result.outcomes, result.used
    return CommandResult(
        result,
        (table_of(StepOutcome, rows) if rows else table_of(PlanRow, plan_rows(result.plans)),),
        notes=tuple(notes),
        details=(f"It took {in_words(used)}, retries not counted.",) if rows and used.operations else (),
        summary=result.summary() if rows else f"Plan: {plan_summary(result.plans)}",
        closing=True,
        exit=result.exit,
    )


# `sbpair provision`.


@command(output="core.inspection.result:Printed", asks=True, dry_run=DRY_RUN)
def provision(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
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
        return written(options, plan_out, planned(only_plans), plans)
    if options.dry_run or not steps_agreed(options, plans):
        return planned(only_plans)
    request = operations.ProvisionRequest(log=operations_log())
    return carry_out(options, plans, operations.provision, request, from_file=plan is not None)
