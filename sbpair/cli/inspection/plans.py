"""`sbpair provision` and `sbpair cleanup`: create what a pair lacks, delete what no pair needs. And plan
files: plans, and what became of them, as tables.
"""

import logging
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli.asking import AllPairsOption, agreed, can_ask, forget_typed_ahead, pairs_to_write, side_named, will_ask
from sbpair.cli.context import Stop, call, event_log, load_settings, move_progress, open_sides, run_and_show
from sbpair.cli.inspection.saved import configured_pairs, read_plans, write_plans
from sbpair.cli.options import ONCE, Options, PairsArgument, command
from sbpair.cli.transfer.options import StatedReasonOption
from sbpair.core.access import shown_name
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.inspection.plan import (
    Applied,
    AppliedPlan,
    Plan,
    PlannedChanges,
    PlanRow,
    Purpose,
    StepOutcome,
    as_confirmed,
    check_confirmed,
    check_still_extra,
    check_target,
    holds_messages,
    plan_rows,
    plan_summary,
    without_queues,
)
from sbpair.core.names import Names, namespace_label, same_name
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words
from sbpair.core.redact import printable
from sbpair.render.console import check_writable, say
from sbpair.render.result import CommandResult, concluded, table_of
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.connect import Verb

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


def plans_for(path: Path, purpose: Purpose, pairs: Sequence[Pair]) -> list[tuple[Pair, Plan]]:
    """Plans that `planned` has saved, with the pairs they are for. Refuses one for another purpose, for a pair that is
    not among `pairs`, or for other namespaces."""
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
    with unchanged():
        return [(pair, call(options, pair, verb, request).plan) for pair in pairs]


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

    async def work(stop: Stop) -> list[AppliedPlan]:
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


def planned(options: Options, plans: PairPlans, plan_out: Path | None, notes: Sequence[str] = ()) -> CommandResult:
    """Result of a run that only planned: exit 5 if applying would change anything, or if there is something that only a
    person can decide. Saved to a file, which `--plan` reads again, plans are what was asked for."""
    result = PlannedChanges(tuple(plan for _, plan in plans))
    undecided = any(holds_messages(step) for plan in result.plans for step in plan.steps)
    exit = Exit.FINDINGS if undecided else result.exit
    if plan_out is not None:
        where = write_plans(plan_out, [plan.to_dict() for plan in result.plans])
        what = f"Plan with {plan_summary(result.plans).rstrip('.')}"
        notes = (*notes, f"{what} {where}. Apply it: {options.go_on} --plan {shlex.quote(str(plan_out))}")
        exit = Exit.OK
    details = (f"Applying it takes {in_words(result.forecast)}.",) if result.has_changes else ()
    rows = table_of(PlanRow, plan_rows(result.plans))
    return concluded(result, rows, notes=tuple(notes), details=details, exit=exit)


def _shown(plans: PairPlans, applied: Sequence[AppliedPlan], notes: Sequence[str]) -> CommandResult:
    """Result of a run that applied its plans."""
    result = Applied.of((plan for _, plan in plans), applied)
    rows, used = result.outcomes, result.used
    table = table_of(StepOutcome, rows) if rows else table_of(PlanRow, plan_rows(result.plans))
    details = (f"It took {in_words(used)}, retries not counted.",) if rows and used.operations else ()
    return concluded(result, table, notes=tuple(notes), details=details)


# `sbpair provision`.


@command(output="core.inspection.plan:Printed", asks=True, dry_run=DRY_RUN)
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
    if options.dry_run or not steps_agreed(options, plans):
        return planned(options, plans, plan_out)
    request = operations.ProvisionRequest(log=operations_log())
    return carry_out(options, plans, operations.provision, request, from_file=plan is not None)


@command(output="core.inspection.plan:Printed", asks=True, dry_run=DRY_RUN)
def cleanup(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
    confirm: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE", help="Delete this queue even if it holds messages; repeatable.")
    ] = None,
    left_overs_of: Annotated[
        list[str] | None,
        typer.Option(metavar="PRIMARY", help="Include what this former primary left on the secondary; repeatable."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(metavar="DIR", help="First move the messages to a file in this folder.")
    ] = None,
    stated_reason: StatedReasonOption = None,
    drain: Annotated[bool, typer.Option(help="First return the messages to the primary.")] = False,
    plan_out: PlanOutOption = None,
    plan: PlanOption = None,
) -> CommandResult:
    """Delete backlog queues that are empty and that no configured pair uses.

    Shows the plan, then asks. Off a terminal it only shows the plan, unless --yes or --no-input is given. A queue is
    empty if two counts and a browse find no message of any kind. A queue with messages is deleted only with --confirm,
    or after its path was typed. Protected queues, and queues that another configured pair uses, are never deleted.
    Needs Manage and Listen on the secondary. Every deletion is recorded in the operations log.

    \b
    Examples:
      sbpair cleanup orders
      sbpair cleanup orders --yes --archive ./archive
      sbpair cleanup orders --yes --confirm contoso-weu/x-servicebus-transfer/12
      sbpair cleanup orders --left-overs-of contoso-old
    """
    settings = load_settings(options)
    chosen = pairs_to_write(options, settings, pairs, all_pairs=all_pairs, doing="Clean up")
    confirm = confirm or []
    others = _labels(left_overs_of or ())
    act = not options.dry_run and (options.yes or options.no_input or can_ask(options))
    if options.yes and options.dry_run:
        raise UsageError("--plan-out and --dry-run change nothing; they do not go with --yes.")
    if archive is not None and drain:
        raise UsageError("--archive and --drain both empty the queues; give one of them.")
    if (archive is not None or drain) and not act:
        raise UsageError("--archive and --drain move messages; they need --yes, or a terminal to ask.")
    if plan is not None and (plan_out is not None or archive is not None or drain or others):
        raise UsageError(
            "--plan uses a plan as it was written; it does not go with --plan-out, --archive, --drain or "
            "--left-overs-of."
        )
    if drain and others:
        raise UsageError(
            "--drain sends messages to the pair's own primary, where those of another one do not belong.",
            hint="Keep them with --archive DIR, or configure a pair with that primary and drain it.",
        )
    if plan_out is not None:
        check_writable(plan_out)
    configured, notes = configured_pairs(settings, "the check whose queues these are")
    request = operations.CleanupRequest(tuple(configured), tuple(confirm), others, dry_run=True)
    if plan is not None:
        plans = plans_for(plan, Purpose.CLEANUP, chosen)
        for pair, each in plans:
            check_still_extra(pair, each, configured)
    else:
        plans = made(options, chosen, operations.cleanup, request)
        for pair, found in plans:
            for missing in without_queues(found, shown_name(pair.secondary), others):
                logging.getLogger("sbpair").warning(missing)
    check_confirmed([each for _, each in plans], confirm)
    if not act and plan_out is None and any(each.has_changes for _, each in plans):
        notes = [*notes, "Delete them with --yes."]
    if not act or not steps_agreed(options, plans):
        return planned(options, plans, plan_out, notes)
    if archive is not None or drain:
        notes += _empty(options, plans, archive)
        plans = made(options, chosen, operations.cleanup, request)
    request = replace(request, confirm=(*confirm, *_ask(options, plans, confirm)), dry_run=False, log=operations_log())
    plans = [(pair, as_confirmed(each, request.confirm)) for pair, each in plans]

    from_file = plan is not None
    return carry_out(options, plans, operations.cleanup, request, from_file=from_file, notes=notes)


def _labels(names: Iterable[str]) -> tuple[str, ...]:
    """Labels of --left-overs-of: a namespace's name or host, or the subject of the audit's finding."""
    labels = tuple(dict.fromkeys(namespace_label(name) for name in names))
    if "" in labels:
        raise UsageError("--left-overs-of needs the name of a namespace, such as contoso-old.")
    return labels


def _empty(options: Options, plans: PairPlans, archive: Path | None) -> list[str]:
    """Empty the extra queues that hold messages and are not protected; what happened, in sentences."""
    notes: list[str] = []
    for pair, plan in plans:
        if queues := tuple(step.queue for step in plan.steps if holds_messages(step)):
            request = operations.EmptyRequest(queues, archive, operations_log())
            with move_progress(options, "drain") as progress:
                notes += call(options, pair, operations.empty, request, observer=progress).notes
    return notes


def _ask(options: Options, plans: PairPlans, confirm: Collection[str]) -> Iterator[str]:
    """Names that a person typed, in lower case. Nobody is asked where nobody can answer."""
    if not can_ask(options):
        return
    confirmed = Names(confirm)
    forget_typed_ahead()
    for pair, plan in plans:
        for step in plan.steps:
            if holds_messages(step) and step.queue not in confirmed:
                environment = f" [{pair.environment}]" if pair.environment else ""
                typer.secho(printable(f"{pair.name}{environment}: {step.queue}: {step.reason}"), fg="red", err=True)
                answer = typer.prompt(
                    "Type its name to delete it with its messages, or Enter to keep it",
                    default="",
                    show_default=False,
                    err=True,
                )
                if same_name(answer.strip(), step.queue):
                    yield step.queue.lower()
