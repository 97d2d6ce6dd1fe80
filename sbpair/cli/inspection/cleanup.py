"""`sbpair cleanup`: delete extra backlog queues; shows them, asks, and never deletes messages unasked."""

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.asking import AllPairsOption, YesOption, agreed, can_ask, pairs_to_write, side_named
from sbpair.cli.context import load_settings, run_and_show, run_async, stoppable, unchanged
from sbpair.cli.inspection.plans import DryRunOption, OperationsLog, plan_summary, write_plans
from sbpair.cli.inspection.provision import applied, carry_out_all, planned, plans_for, refuse_stale
from sbpair.cli.inspection.saved import configured_pairs
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.connect import gather_pair
from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.inspection.plan import Plan, Purpose, Risk, Step, StepKind, plan_cleanup, user_of
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.names import namespace_label, parse_backlog_queue_path
from sbpair.core.outcome import Exit, Report
from sbpair.core.pairing import Pair
from sbpair.core.redact import printable
from sbpair.render.console import check_writable, say
from sbpair.render.result import CommandResult

Planned = list[tuple[Pair, Plan]]


@command(output="cli.inspection.plans:Printed")
def cleanup(
    options: Options,
    pairs: PairsArgument = None,
    all_pairs: AllPairsOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm",
            metavar="QUEUE",
            help="Delete this queue even if it holds messages; repeatable.",
            show_default=False,
        ),
    ] = None,
    left_overs_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIMARY",
            help="Include what this former primary left on the secondary; repeatable.",
            show_default=False,
        ),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="First move the messages to a file in this folder.", show_default=False),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="First return the messages to the primary.")] = False,
    plan_out: Annotated[
        Path | None,
        typer.Option("--plan-out", help="Save the plan to this file; change nothing.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Apply this plan; refused if the queues changed since it was made.", show_default=False),
    ] = None,
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
    act = not dry_run and plan_out is None and (yes or options.no_input or can_ask(options))
    if yes and (plan_out is not None or dry_run):
        raise UsageError("--plan-out and --dry-run change nothing; they do not go with --yes.")
    _check_options(act=act, plan_out=plan_out, plan=plan, archive=archive, drain=drain, left_overs=bool(others))
    if plan_out is not None:
        check_writable(plan_out)
    configured, notes = configured_pairs(settings, "the check whose queues these are")
    if plan is not None:
        plans = plans_for(plan, Purpose.CLEANUP, chosen)
        for one in plans:
            _check_unused(configured, one[:1], _other_primaries(*one))
        _check_still_extra(plans, configured)
    else:
        _check_unused(configured, chosen, others)
        plans = _make_plans(options, chosen, confirm, others, configured)
        for none in _nothing_of(plans, others):
            logging.getLogger("sbpair").warning(none)
    _check_confirmed(plans, confirm)
    if not act:
        return _only_shown(plans, notes, plan_out)
    if not _agreed(options, plans, yes=yes):
        return _shown(plans, notes)
    if archive is not None or drain:
        notes += _empty(options, plans, archive)
        plans = _make_plans(options, chosen, confirm, others, configured)
    named = {path.lower() for path in confirm} | set(_ask(options, plans, confirm))
    plans = [(pair, _as_confirmed(one, named)) for pair, one in plans]

    async def work(stop: asyncio.Event) -> list[tuple[str, Report]]:
        if plan is not None:
            with unchanged():
                await stoppable(stop, refuse_stale(plans))
        return await carry_out_all(options, "cleanup", plans, stop)

    def shown(reports: list[tuple[str, Report]]) -> CommandResult:
        result = applied("cleanup", [one for _, one in plans], reports)
        return replace(result, notes=(*notes, *result.notes))

    return run_and_show(options, work, shown)


def _only_shown(plans: Planned, notes: list[str], plan_out: Path | None) -> CommandResult:
    if plan_out is not None:
        write_plans(plan_out, [one for _, one in plans])
        return replace(_shown(plans, [*notes, f"Plan written to {plan_out}."]), exit=Exit.OK)
    if any(one.has_changes for _, one in plans):
        notes = [*notes, "Delete them with --yes."]
    return _shown(plans, notes)


def _agreed(options: Options, plans: Planned, *, yes: bool) -> bool:
    """Shows the steps on stderr and asks, where there is something to do and somebody who can answer."""
    if yes or not can_ask(options) or not any(plan.has_changes for _, plan in plans):
        return True
    for pair, plan in plans:
        for step in plan.steps:
            say(printable(f"{side_named(pair)}: {step.kind.value} {step.queue}: {step.reason}"))
    where = ", ".join(dict.fromkeys(side_named(pair) for pair, _ in plans))
    words = plan_summary([plan for _, plan in plans]).rstrip(".").capitalize()
    return agreed(options, f"{words} on {where}: go on?", yes=yes)


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
        raise UsageError("--left-overs-of takes the name of a namespace, such as contoso-old.")
    return labels


def _check_still_extra(plans: Planned, configured: Sequence[Pair]) -> None:
    """Refuse a plan file that deletes what any configured pair uses by now."""
    for pair, plan in plans:
        for step in plan.steps:
            user = user_of(step.queue, pair.secondary.host, (pair, *configured))
            if step.kind is StepKind.DELETE and user is not None:
                raise StalePlanError(f"The plan deletes {step.queue}, which pair {user!r} uses by now.")


def _other_primaries(pair: Pair, plan: Plan) -> set[str]:
    """Labels of primaries other than the pair's whose queues the plan deletes."""
    names = [parse_backlog_queue_path(step.queue) for step in plan.steps]
    return {name.primary_label for name in names if name is not None} - {pair.primary.label.lower()}


def _empty(options: Options, plans: Planned, archive: Path | None) -> list[str]:
    """Empty the extra queues that hold messages and are not protected; what happened, in sentences."""
    from sbpair.cli.transfer.emptying import Emptied, empty_queues

    async def work(stop: asyncio.Event) -> list[Emptied]:
        with OperationsLog(os.environ) as log:
            return [
                await empty_queues(options, pair, queues, archive, stop, log)
                for pair, plan in plans
                if not stop.is_set() and (queues := [step.queue for step in plan.steps if _holds_messages(step)])
            ]

    return [note for emptied in run_async(options, work) for note in emptied.notes()]


def _make_plans(
    options: Options,
    pairs: Sequence[Pair],
    confirm: Collection[str],
    others: Collection[str],
    configured: Collection[Pair],
) -> Planned:
    async def work(stop: asyncio.Event) -> list[Snapshot]:
        with unchanged():
            return [await stoppable(stop, gather_pair(pair, backlog_only=True)) for pair in pairs]

    snapshots = run_async(options, work)
    return [
        (pair, plan_cleanup(snapshot, pair, confirmed=confirm, also_primaries=others, others=configured))
        for pair, snapshot in zip(pairs, snapshots, strict=True)
    ]


def _check_unused(configured: Sequence[Pair], pairs: Iterable[Pair], primaries: Collection[str]) -> None:
    """Refuse primaries whose backlog queues on these secondaries a configured pair uses."""
    for pair in pairs:
        for other in (pair, *configured):
            label = other.primary.label.lower()
            if label in primaries and other.secondary.host.lower() == pair.secondary.host.lower():
                raise UsageError(
                    f"The backlog queues of {label} on {pair.secondary.label} are in use: they are those of pair "
                    f"{other.name!r}.",
                    hint=f"Its extra ones: sbpair cleanup {other.name}",
                )


def _nothing_of(plans: Planned, primaries: Collection[str]) -> Iterator[str]:
    """Which of the other primaries have left nothing; a wrong name would look the same."""
    for pair, plan in plans:
        left = {parse_backlog_queue_path(step.queue) for step in plan.steps}
        for label in primaries:
            if not any(name is not None and name.primary_label == label for name in left):
                yield f"There is no backlog queue of {label} on {pair.secondary.label}."


def _check_confirmed(plans: Planned, confirm: Sequence[str]) -> None:
    """A name that is not in any plan is a slip of the finger; better nothing is done."""
    known = {step.queue.lower() for _, plan in plans for step in plan.steps}
    for path in confirm:
        if path.lower() not in known:
            raise UsageError(
                f"--confirm {path}: there is no extra backlog queue of that name.", hint="List them: sbpair cleanup"
            )


def _ask(options: Options, plans: Planned, confirm: Collection[str]) -> Iterator[str]:
    """Names that a person typed, in lower case. Nobody is asked where nobody can answer."""
    if not can_ask(options):
        return
    confirmed = {path.lower() for path in confirm}
    for pair, plan in plans:
        for step in plan.steps:
            if _holds_messages(step) and step.queue.lower() not in confirmed:
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


def _holds_messages(step: Step) -> bool:
    return step.with_messages or (step.kind is StepKind.SKIP and step.risk is Risk.HIGH)


def _as_confirmed(plan: Plan, named: Collection[str]) -> Plan:
    """The plan with the queues that a person named now; what a file says was confirmed has to be named again."""
    return replace(plan, steps=tuple(_step_as_confirmed(step, step.queue.lower() in named) for step in plan.steps))


def _step_as_confirmed(step: Step, named: bool) -> Step:
    if not _holds_messages(step):
        return step
    if named:
        return replace(step, kind=StepKind.DELETE, with_messages=True, risk=Risk.HIGH)
    reason = step.reason if step.kind is StepKind.SKIP else f"{step.reason}; not confirmed in this run"
    return replace(step, kind=StepKind.SKIP, with_messages=False, reason=reason)


def _shown(plans: Planned, notes: Sequence[str]) -> CommandResult:
    """The plan; exit 5 also for queues that only a person can decide about."""
    result = planned("cleanup", [plan for _, plan in plans], notes=notes)
    undecided = any(_holds_messages(step) for _, plan in plans for step in plan.steps)
    return replace(result, exit=Exit.FINDINGS) if undecided else result
