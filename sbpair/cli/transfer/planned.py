"""What restore, move, copy, purge, edit and `dlq resubmit` share: a dry run, the question, then exactly that."""

import logging
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.asking import go_ahead, go_ahead_by_name, will_ask
from sbpair.cli.context import Interrupted, Stop, move_progress, run_and_show, run_async
from sbpair.cli.inspection.saved import read_plans, write_plans
from sbpair.cli.options import ONCE, Options, OptionSet
from sbpair.cli.transfer.entity_ref import EntityRef, open_places
from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.transfer.report import DrainReport, OutcomeRow
from sbpair.core.transfer.resend import NOT_PLANNED, Planned
from sbpair.core.transfer.state import Key
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.connect import Where
    from sbpair.core.transfer.message_plan import MessagePlan
    from sbpair.core.transfer.summary import EditResult, MovePlan, MoveResult


# `--plan-out` and `--plan`: one person plans, another one applies it.


@dataclass(frozen=True, slots=True)
class PlanFiles(OptionSet):
    """The file of a plan, written or applied."""

    plan_out: Annotated[
        Path | None, typer.Option(help="Save what would be done to this file; change nothing."), ONCE
    ] = None
    plan: Annotated[
        Path | None,
        typer.Option(help="Do what this plan says with its messages and no others; refused if they are not all there."),
        ONCE,
    ] = None

    def opened(self, options: Options, *ends: NamespaceAccess | None) -> "PlanFile | None":
        """The file, checked before a namespace is contacted; None if there is none.

        Raises:
            UsageError: both options, or the file is no plan for this command line.
            SbpairError: it cannot be written.
        """
        if self.plan is not None and self.plan_out is not None:
            raise UsageError("--plan applies a plan, and --plan-out writes one. Give one of them.")
        hosts = tuple(dict.fromkeys(one.host for one in ends if one is not None))
        if self.plan_out is not None:
            check_writable(self.plan_out)
            return PlanFile(self.plan_out, options.go_on, hosts, None)
        if self.plan is None:
            return None
        from sbpair.core.transfer.message_plan import MessagePlan

        written = MessagePlan.parse(str(self.plan), read_plans(self.plan), command=options.go_on, hosts=hosts)
        return PlanFile(self.plan, options.go_on, hosts, written)


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan file of one command line. `written`: what it holds; None: it is to be written."""

    path: Path
    command: str
    hosts: Sequence[str]
    written: "MessagePlan | None"

    def held(self, planned: Planned) -> Planned:
        """What a dry run has found now, held to the plan's messages. Raises StalePlanError: they are not all there."""
        if self.written is None:
            return planned
        return planned.some(self.written.chosen(str(self.path), planned.keys), others=NOT_PLANNED)

    def write(self, keys: Sequence[Key], report: DrainReport, undo: str, result: CommandResult) -> CommandResult:
        """Save the plan for these messages, and say so in the result."""
        from sbpair.core.transfer.message_plan import MessagePlan

        plan = MessagePlan.of(keys, command=self.command, hosts=self.hosts, left=report.left, undo=undo)
        said = f"Plan for {counted(plan.messages, 'message')} {write_plans(self.path, [plan.to_dict()])}"
        note = f"{said}. {undo} Apply it: {self.command} --plan {shlex.quote(str(self.path))}"
        return replace(result, notes=(*result.notes, note), exit=Exit.OK)


# A dry run, the question, then exactly that.


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One command: its verb, which takes a `plan` and a `dry_run` in its request, and how it is shown.

    Args:
        where: what the verb works on, or what opens that.
        agree: is given the result of the dry run. Asks on a terminal, without --yes, and raises if the answer is no.
        shown: the result as the command shows it.
        title: what the progress is of.
        nothing: how things stand after an interruption before the first message: "Nothing was sent."; empty where the
            verb says that.
    """

    options: Options
    verb: Callable[..., Any]
    where: "Where | Callable[[], AbstractAsyncContextManager[Any]]"
    request: Any
    agree: Callable[[Any], None]
    shown: Callable[[Any], CommandResult]
    title: str
    nothing: str
    hold: Callable[[Any], Any] = lambda plan: plan
    """Given the plan of the dry run, says which part of it is to be done."""
    count_planned: Callable[[Any], int | None] = lambda plan: None
    """Given that, how many messages are planned, where that is not all that can be counted."""

    def carry_out(self) -> CommandResult:
        """Plan, ask, and do what was planned. The connections stay open in between, unless somebody is asked: an answer
        may take longer than the service keeps them.

        Raises:
            InterruptedWorkError: a signal came before the first message.
        """
        if self.request.dry_run:
            return run_and_show(self.options, self._plan, self.shown, nothing=self.nothing)
        planned = None
        if will_ask(self.options):
            try:
                planned = run_async(self.options, self._plan)
            except Interrupted as interrupted:
                raise (interrupted.with_state(self.nothing) if self.nothing else interrupted) from None
            self.agree(planned)
        return run_and_show(self.options, partial(self._do, planned), self.shown, nothing=self.nothing)

    def _opened(self) -> AbstractAsyncContextManager[Any]:
        from sbpair.connect import opened

        return self.where() if callable(self.where) else opened(self.where)

    async def _plan(self, stop: Stop) -> Any:
        async with self._opened() as ends:
            return await self.verb(ends, replace(self.request, dry_run=True), stop=stop)

    async def _do(self, planned: Any, stop: Stop) -> Any:
        """`planned`: what was agreed to; None: that is to be found first."""
        async with self._opened() as ends:
            if planned is None:
                planned = await self.verb(ends, replace(self.request, dry_run=True), stop=stop)
                self.agree(planned)
            plan = self.hold(planned.plan)
            with move_progress(self.options, self.title, max_messages=self.count_planned(plan)) as progress:
                return await self.verb(ends, replace(self.request, plan=plan), observer=progress, stop=stop)


def carry_out(
    options: Options,
    verb: Callable[..., Any],
    request: Any,
    source: EntityRef,
    target: EntityRef | None,
    doing: tuple[str, str],
    *,
    what: str = "",
    deletes: bool = False,
    files: PlanFiles = PlanFiles(),
) -> CommandResult:
    """The whole of a command on one entity.

    Args:
        target: where the messages of `source` go, if anywhere.
        doing: the question, before and after the number of messages: "Send" and "of orders to parked".
        what: in the place of that number, such as "message 12".
        deletes: the answer is the name of the entity.
    """
    said: list[str] = []
    file = files.opened(options, source.access, None if target is None else target.access)
    request = replace(request, dry_run=options.dry_run)

    def hold(plan: "MovePlan") -> "MovePlan":
        return plan if file is None else replace(plan, judge=file.held(plan.judge))

    def agree(planned: "MoveResult | EditResult") -> None:
        moved = planned.moved
        if not moved.plan.has_work and not getattr(request, "idle_seconds", 0.0):
            return
        if will_ask(options):
            said.extend((*moved.differences, *moved.notes))
        for line in said:
            logging.getLogger("sbpair").info(line)
        number = moved.planned_messages if file is None else hold(moved.plan).judge.chosen
        question = f"{doing[0]} {what or counted(number, moved.act.noun)}{moved.completing} {doing[1]}"
        state = f"Nothing was {moved.act.verb}."
        if deletes:
            go_ahead_by_name(options, question, source.path, state=state)
        else:
            go_ahead(options, question, state=state)

    def shown(done: "MoveResult | EditResult") -> CommandResult:
        moved = done.moved
        chosen = getattr(request, "selection", None)
        advice = () if chosen is None or moved.planned_messages else chosen.advice
        differences = moved.differences if moved.report.dry_run else ()
        again = moved.copied_again if getattr(request, "ledger", None) is None else ()
        notes = (*moved.remarks, *advice, *differences, *moved.notes, *again)
        result = CommandResult(
            done,
            (table_of(OutcomeRow, moved.rows),),
            notes=tuple(note for note in notes if note not in said),
            summary=moved.closing("" if again else options.go_on),
            exit=moved.exit,
            closing=True,
        )
        if file is None or file.written is not None:
            return result
        keys = moved.plan.judge.keys[: getattr(request, "max_messages", None)]
        return file.write(keys, moved.report, moved.undo(getattr(request, "archive", None)), result)

    connect = partial(open_places, source, target)
    run = PlannedRun(
        options, verb, connect, request, agree, shown, source.path, "", hold, lambda plan: plan.judge.chosen
    )
    return run.carry_out()
