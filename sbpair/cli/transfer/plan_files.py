"""`--plan-out` and `--plan` of commands that move or delete messages: one person plans, another one applies it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.inspection.saved import read_plans, write_plans
from sbpair.cli.options import ONCE, Options, OptionSet
from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.core.transfer.message_plan import MessagePlan
    from sbpair.core.transfer.report import DrainReport
    from sbpair.core.transfer.resend import Planned
    from sbpair.core.transfer.state import Key


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

    @property
    def only_plans(self) -> bool:
        return self.plan_out is not None

    def opened(self, options: Options, *ends: NamespaceAccess | None) -> "PlanFile | None":
        """The file, checked before a namespace is contacted; None if there is none.

        Raises:
            UsageError: both options, or the file is no plan for this command line.
            SbpairError: it cannot be written.
        """
        if self.plan is not None and self.plan_out is not None:
            raise UsageError("--plan applies a plan, and --plan-out writes one. Give one of them.")
        hosts = tuple(dict.fromkeys(one.host.lower() for one in ends if one is not None))
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

    def held(self, planned: "Planned") -> "Planned":
        """What a dry run has found now, held to the plan's messages.

        Raises:
            StalePlanError: they are not all there.
        """
        if self.written is None:
            return planned
        return planned.some(self.written.chosen(str(self.path), planned.keys))

    def write(self, keys: "Sequence[Key]", report: "DrainReport", undo: str, result: CommandResult) -> CommandResult:
        """Save the plan for these messages, and say so in the result."""
        from sbpair.core.transfer.message_plan import MessagePlan

        plan = MessagePlan.of(keys, command=self.command, hosts=self.hosts, left=report.left, undo=undo)
        said = f"Plan for {counted(plan.messages, 'message')} {write_plans(self.path, [plan.to_dict()])}"
        note = f"{said}. {undo} Apply it: {self.command} --plan {shlex.quote(str(self.path))}"
        return replace(result, notes=(*result.notes, note), exit=Exit.OK)
