"""What restore, move, copy, purge, edit and `dlq resubmit` share: a dry run, the question, then exactly that."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sbpair.cli.asking import can_ask
from sbpair.cli.context import EventLog, Interrupted, Stop, run_and_show, run_async
from sbpair.cli.options import Options
from sbpair.cli.transfer.entity_ref import EntityRef, open_places
from sbpair.cli.transfer.plan_files import PlanFiles
from sbpair.core.prices import in_words
from sbpair.core.transfer.conclusion import operations_of
from sbpair.core.transfer.report import OutcomeRow
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.connect import Where
    from sbpair.core.transfer.summary import EditResult, MovePlan, MoveResult


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One command: its verb, which takes a `plan` and a `dry_run` in its request, and how it is shown.

    Args:
        where: what the verb works on, or what opens that.
        agree: is given the result of the dry run. Asks on a terminal, where `yes` was not given, and raises if the
            answer is no.
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

    def carry_out(self, *, yes: bool) -> CommandResult:
        """Plan, ask, and do what was planned. The connections stay open in between, unless somebody is asked: an answer
        may take longer than the service keeps them.

        Raises:
            InterruptedWorkError: a signal came before the first message.
        """
        if self.request.dry_run:
            return run_and_show(self.options, self._plan, self.shown, nothing=self.nothing)
        if yes or not can_ask(self.options):
            return run_and_show(self.options, self._plan_and_do, self.shown, nothing=self.nothing)
        try:
            planned = run_async(self.options, self._plan)
        except Interrupted as interrupted:
            raise (interrupted.with_state(self.nothing) if self.nothing else interrupted) from None
        self.agree(planned)

        async def do(stop: Stop) -> Any:
            async with self._opened() as ends:
                return await self._do(ends, planned, stop)

        return run_and_show(self.options, do, self.shown, nothing=self.nothing)

    def _opened(self) -> AbstractAsyncContextManager[Any]:
        from sbpair.connect import opened

        return self.where() if callable(self.where) else opened(self.where)

    async def _plan(self, stop: Stop) -> Any:
        async with self._opened() as ends:
            return await self.verb(ends, replace(self.request, dry_run=True), stop=stop)

    async def _plan_and_do(self, stop: Stop) -> Any:
        async with self._opened() as ends:
            planned = await self.verb(ends, replace(self.request, dry_run=True), stop=stop)
            self.agree(planned)
            return await self._do(ends, planned, stop)

    async def _do(self, ends: Any, planned: Any, stop: Stop) -> Any:
        from sbpair.render.progress import MoveProgress

        options = self.options
        log = None if options.quiet else EventLog(verbose=options.verbose).notify
        with MoveProgress(self.title, quiet=options.quiet, color=not options.no_color, log=log) as progress:
            request = replace(self.request, plan=self.hold(planned.plan))
            return await self.verb(ends, request, observer=progress, stop=stop)


def carry_out(
    command: str,
    options: Options,
    verb: Callable[..., Any],
    request: Any,
    between: tuple[EntityRef, EntityRef | None],
    ask: Callable[[str], object],
    *,
    yes: bool,
    files: PlanFiles | None = None,
) -> CommandResult:
    """The whole of a command on one entity. `between`: it, and where its messages go, if anywhere. `ask` puts the
    question, given what it is about, such as "3 dead letters", and raises where the answer is no."""
    source, target = between
    said: list[str] = []
    files = files or PlanFiles()
    file = files.opened(options, source.access, None if target is None else target.access)
    if files.only_plans:
        request = replace(request, dry_run=True)

    def hold(plan: "MovePlan") -> "MovePlan":
        return plan if file is None else replace(plan, judge=file.held(plan.judge))

    def connect() -> AbstractAsyncContextManager[Any]:
        return open_places(source, target)

    def agree(planned: "MoveResult | EditResult") -> None:
        moved = _moved(planned)
        if not moved.plan.has_work and not getattr(request, "idle_seconds", 0.0):
            return
        if can_ask(options) and not yes:
            said.extend((*moved.differences, *moved.notes))
        for line in said:
            logging.getLogger("sbpair").info(line)
        number = moved.planned_messages if file is None else hold(moved.plan).judge.meant
        messages, before = counted(number, moved.act.noun), moved.report.already_forwarded
        ask(f"{messages} (and complete {before:,} that had been sent before)" if before else messages)

    def shown(done: "MoveResult | EditResult") -> CommandResult:
        moved = _moved(done)
        chosen = getattr(request, "selection", None)
        advice = () if chosen is None or moved.planned_messages else chosen.advice
        differences = moved.differences if moved.report.dry_run else ()
        result = CommandResult(
            command,
            done,
            (table_of(OutcomeRow, moved.rows),),
            notes=tuple(note for note in (*moved.remarks, *advice, *differences, *moved.notes) if note not in said),
            summary=moved.closing(options.go_on),
            exit=moved.exit,
            closing=True,
        )
        if file is None or not files.only_plans:
            return result
        keys = moved.plan.judge.keys[: getattr(request, "max_messages", None)]
        return file.write(keys, moved.report, _undo(moved, getattr(request, "archive", None)), result)

    run = PlannedRun(options, verb, connect, request, agree, shown, source.path, "Nothing was moved.", hold)
    return run.carry_out(yes=yes)


def _undo(moved: "MoveResult", archive: "Path | None") -> str:
    """What it takes to take it back."""
    if moved.to is None:
        return "It cannot be undone." if archive is None else f"Undo it with: sbpair restore {archive}"
    back = in_words(operations_of(moved.report))
    return f"To undo it, move them back from {moved.to}, if nobody has taken them by then, with {back}."


def _moved(done: "MoveResult | EditResult") -> "MoveResult":
    from sbpair.core.transfer.summary import EditResult

    return done.moved if isinstance(done, EditResult) else done
