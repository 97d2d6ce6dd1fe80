"""`sbpair evacuate`: all entities and messages of a namespace, moved to another one, and the proof that it is empty."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, named_in
from sbpair.cli.context import load_settings
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.inspection.saved import read_plans, write_plans
from sbpair.cli.options import ONCE, Options, OptionSet, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.cli.transfer.options import (
    DESPITE,
    ConcurrencyOption,
    RateOption,
    ReserveOption,
    StatedReasonOption,
    budget_of,
)
from sbpair.cli.transfer.planned import PlannedRun
from sbpair.core.errors import UsageError
from sbpair.core.inspection.contents import DeadLettersTo, LeftThere
from sbpair.core.inspection.evacuated import NOTHING_CHANGED, EvacuateResult, EvacuationPlan, Lag, LineRow, WrittenPlan
from sbpair.core.outcome import Exit
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult, table_of


@dataclass(frozen=True)
class ScopeOptions(OptionSet):
    """What is evacuated; a plan says it as well."""

    dead_letters: Annotated[
        DeadLettersTo,
        typer.Option(help="Dead letters: into queues that hold them, to their queue again, or leave them."),
    ] = DeadLettersTo.HOLD
    without: Annotated[
        list[str] | None, typer.Option("--except", metavar="PATTERN", help="Leave these entities out; repeatable.")
    ] = None
    despite_duplicate_detection: Annotated[
        bool, typer.Option(DESPITE, help="Send although a queue there may drop a MessageId that it got from elsewhere.")
    ] = False


@dataclass(frozen=True)
class FollowOptions(OptionSet):
    """While senders go on, and when they are cut off."""

    follow: Annotated[
        bool, typer.Option("--follow", help="Move what queues get as well, until stopped: consumers go over meanwhile.")
    ] = False
    when_lag: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Follow, and cut over once no message of a queue has waited in FROM for longer, e.g. 2s.",
        ),
    ] = None
    cut_over: Annotated[
        bool,
        typer.Option("--cut-over", help="Close FROM to senders (SendDisabled), move the rest, prove that it is empty."),
    ] = False
    status: Annotated[
        bool, typer.Option("--status", help="Only say what waits in FROM, and for how long; change nothing."), ONCE
    ] = False

    def request(self, *, paced: bool) -> dict[str, Any]:
        """The fields of an `EvacuateRequest` that these options are.

        Raises:
            UsageError: they do not go together, or the run is `paced`.
        """
        lag_seconds = duration_option(self.when_lag)
        if self.cut_over and (self.follow or self.when_lag):
            raise UsageError(f"--cut-over does it now: no --follow or --when-lag. {NOTHING_CHANGED}")
        if paced and (self.follow or self.cut_over or self.when_lag):
            raise UsageError(
                f"--rate and --reserve are for what lies there: what comes is followed as fast as it comes. "
                f"{NOTHING_CHANGED}",
                hint="To move a backlog slowly first, leave out --follow, --when-lag and --cut-over.",
            )
        follow = self.follow or lag_seconds is not None
        return {"follow": follow, "lag_seconds": math.inf if self.cut_over else lag_seconds, "status": self.status}


@command(
    output="core.inspection.evacuated:EvacuateResult", asks=True, dry_run="Compare, count, and say what would be done."
)
def evacuate(
    options: Options,
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="Namespace to empty.", autocompletion=suggestions.configured_namespaces),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="Namespace that takes its place.", autocompletion=suggestions.configured_namespaces
        ),
    ],
    *,
    auth: NamespaceAuthOption = None,
    scope: ScopeOptions,
    rate: RateOption = None,
    reserve: ReserveOption = None,
    concurrency: ConcurrencyOption = 8,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Record each message in this file; what it has is not sent again.",
            show_default="evacuate-FROM-TO.jsonl",
        ),
    ] = None,
    plan_out: Annotated[
        Path | None, typer.Option(help="Save the plan for the entities to this file; change nothing."), ONCE
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Do what this plan says; refused if an entity has changed since it was made.")
    ] = None,
    following: FollowOptions,
    stated_reason: StatedReasonOption = None,
) -> CommandResult:
    """Move everything from one namespace to another: entities and rules, then all messages; prove that FROM is empty.

    For the former primary after a Geo-DR failover, which keeps its messages, and for a move to another tier or region.
    What is missing on TO is created, adapted to its tier; what exists there is never changed, only compared. Messages
    of a queue go to the queue of that name. Those of a subscription, and dead letters, are held in queues of their own
    (evacuated/FROM/...), since a topic would give every subscription a copy, and a queue's consumers would take dead
    letters for new ones. Sessions keep their order and state, scheduled messages their time; those of a topic go to the
    topic. Each message keeps its bytes and is completed after TO has it: none is lost, and after a crash one may be
    there twice, with the same MessageId. Needs Manage on both. Step by step, also while senders go on: `sbpair help
    evacuation`

    \b
    Examples:
      sbpair evacuate contoso-weu contoso-neu --dry-run
      sbpair evacuate contoso-weu contoso-neu --except 'test-*' --rate 500
      sbpair evacuate contoso-weu contoso-neu --follow
      sbpair evacuate contoso-std contoso-premium --dead-letters resubmit --yes
    """
    settings = load_settings(options)
    here, there = settings.named_namespace(source, auth), settings.named_namespace(to, auth)
    written = None
    if plan is not None:
        if plan_out is not None or scope.words():
            raise UsageError(
                f"--plan does what a plan says: no --plan-out, --except, --dead-letters or {DESPITE}. {NOTHING_CHANGED}"
            )
        written = WrittenPlan.parse(str(plan), read_plans(plan), here.host, there.host)
    if plan_out is not None:
        check_writable(plan_out)
    request = operations.EvacuateRequest(
        ledger or Path(f"evacuate-{here.label}-{there.label}.jsonl"),
        without=tuple(scope.without or ()),
        dead_letters=scope.dead_letters,
        despite_duplicate_detection=scope.despite_duplicate_detection,
        rate_per_second=rate,
        budget_per_second=budget_of(reserve),
        concurrency=concurrency,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
        log=operations_log(),
        written=written,
        dry_run=options.dry_run or following.status,
        **following.request(paced=rate is not None or reserve is not None),
    )
    go_on = options.go_on if plan_out is None else options.go_on_with(scope, "--plan", str(plan_out))

    def agree(planned: EvacuateResult) -> None:
        planned.plan.refuse_conflicts()
        question = _question(planned.plan, named_in(settings, here), named_in(settings, there))
        go_ahead(options, question, state=NOTHING_CHANGED)

    def shown(done: EvacuateResult) -> CommandResult:
        result = _result(done, go_on, options.go_on_with(following, "--cut-over"))
        if plan_out is None:
            return result
        if done.conflicts:
            return replace(result, notes=(*result.notes, f"No plan was written to {plan_out}."))
        where = write_plans(plan_out, [done.plan.to_file(here.host, there.host)], valid_seconds=None)
        return replace(result, notes=(*result.notes, f"Plan {where}."), exit=Exit.OK)

    run = PlannedRun(options, operations.evacuate, (here, there), request, agree, shown, "evacuate", "")
    return run.carry_out()


def _question(plan: EvacuationPlan, source: str, target: str) -> str:
    if plan.scope.follows:
        created = counted(plan.creates, "entity", "entities")
        return f"Create {created} on {target} and move there what {source} holds and gets"
    if not plan.creates and not plan.messages:
        nothing = f"{plan.scope.source_shown} holds nothing that was counted"
        return f"{nothing}. Browse all of it, and move what is found or comes to {target}"
    created = f"Create {counted(plan.creates, 'entity', 'entities')} on {target}"
    return f"{created} and move {counted(plan.messages, 'message')} there from {source}"


_MESSAGES = {"entity": "From"} | dict.fromkeys(("to", "counted", "moved", "there_now"), "")
"""Columns of the table of messages on a screen, with the titles that are others."""


def _result(done: EvacuateResult, go_on: str, cut_over: str) -> CommandResult:
    lines = list(done.line_rows)
    screen = [
        table_of(LineRow, done.step_rows, "Entities", show=("entity", "action", "note")),
        table_of(LineRow, [line for line in lines if line.to], "Messages", show=_MESSAGES),
        *([table_of(Lag, done.lag, "Lag")] if done.lag else []),
        *([table_of(LeftThere, done.left, "Left")] if done.left else []),
    ]
    ahead = done.stopped and done.plan.scope.follows and not done.closed
    return CommandResult(
        done,
        (table_of(Lag, done.lag) if done.only_lag else table_of(LineRow, lines),),
        screen=(table_of(Lag, done.lag, "Lag"),) if done.only_lag else tuple(screen),
        notes=(*done.notes(), *((f"Or cut over: {cut_over}",) * ahead)),
        summary=done.closing(go_on),
        exit=done.exit,
        closing=True,
    )
