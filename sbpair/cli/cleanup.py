"""`sbpair cleanup`: delete extra backlog queues; shows them unless told to act, and never deletes messages unasked."""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.context import choose_pairs, load_settings, run_async, stoppable, unchanged
from sbpair.cli.operations import OperationsLog
from sbpair.cli.options import Options, PairsArgument, command
from sbpair.cli.plans import write_plans
from sbpair.cli.provision import applied, carry_out_all, planned, plans_for, refuse_stale
from sbpair.cli.snapshots import configured_pairs
from sbpair.connect import gather_pair
from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.names import namespace_label, parse_backlog_queue_path
from sbpair.core.outcome import Exit, Report
from sbpair.core.pairing import Pair
from sbpair.core.plan import Plan, Purpose, Risk, Step, StepKind, plan_cleanup
from sbpair.core.snapshot import Snapshot
from sbpair.render.console import check_writable
from sbpair.render.formats import printable
from sbpair.render.result import CommandResult
from sbpair.settings import Settings

Planned = list[tuple[Pair, Plan]]


@command
def cleanup(
    options: Options,
    pairs: PairsArgument = None,
    apply: Annotated[bool, typer.Option("--apply", help="Delete; without it nothing is changed.")] = False,
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            "--confirm",
            metavar="QUEUE",
            help="Delete this queue although it holds messages; repeatable.",
            show_default=False,
        ),
    ] = None,
    left_overs_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIMARY",
            help="Also all that this former primary has left on the secondary; repeatable.",
            show_default=False,
        ),
    ] = None,
    archive_to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="First move their messages into a file in this folder.", show_default=False),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="First send their messages home.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan to this file; nothing is changed.", show_default=False)
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Use this plan file; refused when the world changed.", show_default=False)
    ] = None,
) -> CommandResult:
    """Show the extra backlog queues of pairs, and delete those that are empty with --apply. [writes with --apply]

    Empty means no message of any kind, seen twice and browsed. A queue with messages is deleted only if its path is
    given with --confirm, or typed when asked on a terminal. Protected patterns always win. Needs the Manage and Listen
    rights on the secondary. What was done is kept in the operations log. Lines of an archive go into `sbpair send`.
    --left-overs-of is for primaries that no configured pair with this secondary has any more.

    \b
    Examples:
      sbpair cleanup orders
      sbpair cleanup orders --apply --archive-to ./archive
      sbpair cleanup orders --apply --confirm contoso-weu/x-servicebus-transfer/12
      sbpair cleanup orders --left-overs-of contoso-old
    """
    settings = load_settings(options)
    chosen = choose_pairs(settings, pairs)
    confirm = confirm or []
    others = _labels(left_overs_of or ())
    _check_options(apply=apply, out=out, plan=plan, archive_to=archive_to, drain=drain, left_overs=bool(others))
    if out is not None:
        check_writable(out)
    if plan is not None:
        plans = plans_for(plan, Purpose.CLEANUP, chosen)
        _check_still_extra(plans)
        notes = [note for one in plans for note in _check_unused(settings, one[:1], _other_primaries(*one))]
    else:
        notes = _check_unused(settings, chosen, others)
        plans = _make_plans(options, chosen, confirm, others)
        for none in _nothing_of(plans, others):
            logging.getLogger("sbpair").warning(none)
    _check_confirmed(plans, confirm)
    if not apply:
        if out is not None:
            write_plans(out, [one for _, one in plans])
        notes.append(f"Plan written to {out}." if out is not None else "Delete them with: --apply")
        return _shown(plans, notes)
    if archive_to is not None or drain:
        notes += _empty(options, plans, archive_to)
        plans = _make_plans(options, chosen, confirm, others)
    named = {path.lower() for path in confirm} | set(_ask(options, plans, confirm))
    plans = [(pair, _as_confirmed(one, named)) for pair, one in plans]

    async def work(stop: asyncio.Event) -> list[tuple[str, Report]]:
        if plan is not None:
            with unchanged():
                await stoppable(stop, refuse_stale(plans))
        return await carry_out_all(options, "cleanup", plans, stop)

    result = applied("cleanup", [one for _, one in plans], run_async(options, work))
    return replace(result, notes=(*notes, *result.notes))


def _check_options(
    *, apply: bool, out: Path | None, plan: Path | None, archive_to: Path | None, drain: bool, left_overs: bool
) -> None:
    """Refuse options that contradict each other."""
    if apply and out is not None:
        raise UsageError("--out writes a plan and changes nothing; it does not go with --apply.")
    if archive_to is not None and drain:
        raise UsageError("--archive-to and --drain both empty the queues; give one of them.")
    if (archive_to is not None or drain) and not apply:
        raise UsageError("--archive-to and --drain move messages; they need --apply.")
    if plan is not None and (out is not None or archive_to is not None or drain or left_overs):
        raise UsageError(
            "--plan uses a plan as it was written; it does not go with --out, --archive-to, --drain or --left-overs-of."
        )
    if drain and left_overs:
        raise UsageError(
            "--drain sends messages to the pair's own primary, where those of another one do not belong.",
            hint="Keep them with --archive-to DIR, or configure a pair with that primary and drain it.",
        )


def _labels(names: Iterable[str]) -> tuple[str, ...]:
    """Labels of --left-overs-of: a namespace's name or host, or the subject of the audit's finding."""
    labels = tuple(dict.fromkeys(namespace_label(name) for name in names))
    if "" in labels:
        raise UsageError("--left-overs-of takes the name of a namespace, such as contoso-old.")
    return labels


def _check_still_extra(plans: Planned) -> None:
    """Refuse a plan file that deletes what the pair uses by now."""
    for pair, plan in plans:
        used = set(pair.backlog_paths())
        for step in plan.steps:
            if step.queue.lower() in used:
                raise StalePlanError(f"The plan deletes {step.queue}, which pair {pair.name!r} uses by now.")


def _other_primaries(pair: Pair, plan: Plan) -> set[str]:
    """Labels of primaries other than the pair's whose queues the plan deletes."""
    names = [parse_backlog_queue_path(step.queue) for step in plan.steps]
    return {name.primary_label for name in names if name is not None} - {pair.primary.label.lower()}


def _empty(options: Options, plans: Planned, archive: Path | None) -> list[str]:
    """Empty the extra queues that hold messages and are not protected; what happened, in sentences."""
    from sbpair.cli.emptying import Emptied, empty_queues

    async def work(stop: asyncio.Event) -> list[Emptied]:
        with OperationsLog(os.environ) as log:
            return [
                await empty_queues(options, pair, queues, archive, stop, log)
                for pair, plan in plans
                if not stop.is_set() and (queues := [step.queue for step in plan.steps if _holds_messages(step)])
            ]

    return [note for emptied in run_async(options, work) for note in emptied.notes()]


def _make_plans(options: Options, pairs: Sequence[Pair], confirm: Collection[str], others: Collection[str]) -> Planned:
    async def work(stop: asyncio.Event) -> list[Snapshot]:
        with unchanged():
            return [await stoppable(stop, gather_pair(pair, backlog_only=True)) for pair in pairs]

    snapshots = run_async(options, work)
    return [
        (pair, plan_cleanup(snapshot, pair, confirmed=confirm, also_primaries=others))
        for pair, snapshot in zip(pairs, snapshots, strict=True)
    ]


def _check_unused(settings: Settings, pairs: Iterable[Pair], primaries: Collection[str]) -> list[str]:
    """Refuse primaries whose backlog queues on these secondaries somebody uses; which pairs could not be asked."""
    configured, notes = configured_pairs(settings, "the check whose queues these are") if primaries else ([], [])
    for pair in pairs:
        for other in (pair, *configured):
            label = other.primary.label.lower()
            if label in primaries and other.secondary.host.lower() == pair.secondary.host.lower():
                raise UsageError(
                    f"The backlog queues of {label} on {pair.secondary.host} are in use: they are those of pair "
                    f"{other.name!r}.",
                    hint=f"Its extra ones: sbpair cleanup {other.name}",
                )
    return notes


def _nothing_of(plans: Planned, primaries: Collection[str]) -> Iterator[str]:
    """Which of the other primaries have left nothing; a wrong name would look the same."""
    for pair, plan in plans:
        left = {parse_backlog_queue_path(step.queue) for step in plan.steps}
        for label in primaries:
            if not any(name is not None and name.primary_label == label for name in left):
                yield f"There is no backlog queue of {label} on {pair.secondary.host}."


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
    if options.no_input or not sys.stdin.isatty():
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
