"""`sbpair cleanup`: delete extra backlog queues; shows them, asks, and never deletes messages unasked."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import AllPairsOption, can_ask, pairs_to_write
from sbpair.cli.context import Stop, load_settings, move_progress, open_sides, run_async
from sbpair.cli.inspection import plans as planning
from sbpair.cli.inspection.saved import configured_pairs
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.cli.transfer.options import StatedReasonOption
from sbpair.core.access import shown_name
from sbpair.core.errors import UsageError
from sbpair.core.inspection.plan import (
    Purpose,
    as_confirmed,
    check_confirmed,
    check_still_extra,
    holds_messages,
    without_queues,
)
from sbpair.core.names import namespace_label
from sbpair.core.outcome import Exit
from sbpair.core.redact import printable
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult


@command(output="core.inspection.result:Printed", asks=True, dry_run=planning.DRY_RUN)
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
    plan_out: planning.PlanOutOption = None,
    plan: planning.PlanOption = None,
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
    _check_options(act=act, plan_out=plan_out, plan=plan, archive=archive, drain=drain, left_overs=bool(others))
    if plan_out is not None:
        check_writable(plan_out)
    configured, notes = configured_pairs(settings, "the check whose queues these are")
    request = operations.CleanupRequest(tuple(configured), tuple(confirm), others, dry_run=True)
    if plan is not None:
        plans = planning.plans_for(plan, Purpose.CLEANUP, chosen)
        for pair, each in plans:
            check_still_extra(pair, each, configured)
    else:
        plans = planning.made(options, chosen, operations.cleanup, request)
        for pair, found in plans:
            for missing in without_queues(found, shown_name(pair.secondary), others):
                logging.getLogger("sbpair").warning(missing)
    check_confirmed([each for _, each in plans], confirm)
    if not act:
        return _only_shown(options, plans, notes, plan_out)
    if not planning.steps_agreed(options, plans):
        return _shown(plans, notes)
    if archive is not None or drain:
        notes += _empty(options, plans, archive)
        plans = planning.made(options, chosen, operations.cleanup, request)
    request = replace(
        request, confirm=(*confirm, *_ask(options, plans, confirm)), dry_run=False, log=planning.operations_log()
    )
    plans = [(pair, as_confirmed(each, request.confirm)) for pair, each in plans]

    from_file = plan is not None
    return planning.carry_out(options, plans, operations.cleanup, request, from_file=from_file, notes=notes)


def _only_shown(options: Options, plans: planning.PairPlans, notes: list[str], plan_out: Path | None) -> CommandResult:
    if plan_out is not None:
        return planning.written(options, plan_out, _shown(plans, notes), plans)
    if any(plan.has_changes for _, plan in plans):
        notes = [*notes, "Delete them with --yes."]
    return _shown(plans, notes)


def _check_options(
    *, act: bool, plan_out: Path | None, plan: Path | None, archive: Path | None, drain: bool, left_overs: bool
) -> None:
    """Refuse options that contradict each other."""
    if archive is not None and drain:
        raise UsageError("--archive and --drain both empty the queues; give one of them.")
    if (archive is not None or drain) and not act:
        raise UsageError("--archive and --drain move messages; they need --yes, or a terminal to ask.")
    if plan is not None and (plan_out is not None or archive is not None or drain or left_overs):
        raise UsageError(
            "--plan uses a plan as it was written; it does not go with --plan-out, --archive, --drain or "
            "--left-overs-of."
        )
    if drain and left_overs:
        raise UsageError(
            "--drain sends messages to the pair's own primary, where those of another one do not belong.",
            hint="Keep them with --archive DIR, or configure a pair with that primary and drain it.",
        )


def _labels(names: Iterable[str]) -> tuple[str, ...]:
    """Labels of --left-overs-of: a namespace's name or host, or the subject of the audit's finding."""
    labels = tuple(dict.fromkeys(namespace_label(name) for name in names))
    if "" in labels:
        raise UsageError("--left-overs-of needs the name of a namespace, such as contoso-old.")
    return labels


def _empty(options: Options, plans: planning.PairPlans, archive: Path | None) -> list[str]:
    """Empty the extra queues that hold messages and are not protected; what happened, in sentences."""

    async def work(stop: Stop) -> list[str]:
        notes: list[str] = []
        for pair, plan in plans:
            queues = tuple(step.queue for step in plan.steps if holds_messages(step))
            if stop.is_set() or not queues:
                continue
            request = operations.EmptyRequest(queues, archive, planning.operations_log())
            with move_progress(options, "drain") as progress:
                async with open_sides(pair) as sides:
                    notes += (await operations.empty(sides, request, observer=progress, stop=stop)).notes
        return notes

    return run_async(options, work)


def _ask(options: Options, plans: planning.PairPlans, confirm: Collection[str]) -> Iterator[str]:
    """Names that a person typed, in lower case. Nobody is asked where nobody can answer."""
    if not can_ask(options):
        return
    confirmed = {path.lower() for path in confirm}
    for pair, plan in plans:
        for step in plan.steps:
            if holds_messages(step) and step.queue.lower() not in confirmed:
                environment = f" [{pair.environment}]" if pair.environment else ""
                typer.secho(printable(f"{pair.name}{environment}: {step.queue}: {step.reason}"), fg="red", err=True)
                answer = typer.prompt(
                    "Type its name to delete it with its messages, or Enter to keep it",
                    default="",
                    show_default=False,
                    err=True,
                )
                if answer.strip().lower() == step.queue.lower():
                    yield step.queue.lower()


def _shown(plans: planning.PairPlans, notes: Sequence[str]) -> CommandResult:
    """The plan; exit 5 also for queues that only a person can decide about."""
    result = planning.planned([plan for _, plan in plans], notes=notes)
    undecided = any(holds_messages(step) for _, plan in plans for step in plan.steps)
    return replace(result, exit=Exit.FINDINGS) if undecided else result
