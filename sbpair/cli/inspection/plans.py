"""What provision and cleanup share: plan files, plans and reports as tables."""

import getpass
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from sbpair.cli.inspection.saved import read_saved
from sbpair.core.access import NamespaceAccess, credential_name
from sbpair.core.errors import SbpairError
from sbpair.core.forecast import Forecast
from sbpair.core.inspection.plan import Plan, StepKind
from sbpair.core.outcome import Report, Result
from sbpair.core.pairing import Pair
from sbpair.core.redact import json_text
from sbpair.files import make_private_folder, open_private
from sbpair.render.console import write_file
from sbpair.render.result import Column, Table
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.runtime.inspection.apply import Applying


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the plan; exit 5 if it has changes.")]
PLAN_COLUMNS = (
    Column("pair", "Pair"),
    Column("step", "Step"),
    Column("queue", "Queue"),
    Column("risk", "Risk"),
    Column("reason", "Why"),
)
REPORT_COLUMNS = (
    Column("pair", "Pair"),
    Column("queue", "Queue"),
    Column("result", "Result"),
    Column("detail", "Detail"),
)


# What provision and cleanup print with -o json: one of these.


@dataclass(frozen=True, slots=True)
class Planned:
    """Nothing was changed; `forecast` is what applying the plans takes."""

    plans: tuple[Plan, ...]
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step; `error` is the error's code."""

    pair: str
    queue: str
    result: Result
    detail: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Applied:
    plans: tuple[Plan, ...]
    outcomes: tuple[StepOutcome, ...]
    used: Forecast
    """Retries not counted."""


Printed = Planned | Applied


def read_plans(path: Path) -> list[Plan]:
    """Plans of a file written by `write_plans`.

    Raises:
        UsageError: unreadable, not JSON, or not plans of this release's format.
    """
    return [Plan.from_dict(plan) for plan in read_saved(path, "plan")]


def write_plans(path: Path, plans: Iterable[Plan]) -> None:
    """Write plans to a file that `--plan` reads again."""
    write_file(path, json_text({"plans": [plan.to_dict() for plan in plans]}, indent=2) + "\n", private=True)


def plan_table(plans: Iterable[Plan]) -> Table:
    """Every step of every plan, and the queues that stay as they are."""
    rows: list[dict[str, Any]] = []
    for plan in plans:
        for step in plan.steps:
            rows.append(
                {
                    "pair": plan.pair,
                    "step": step.kind.value,
                    "queue": step.queue,
                    "risk": step.risk.value,
                    "reason": step.reason,
                }
            )
        for queue in plan.unchanged:
            rows.append(
                {"pair": plan.pair, "step": "unchanged", "queue": queue.queue, "risk": "none", "reason": queue.note}
            )
    return Table("", PLAN_COLUMNS, rows, style_key="step")


def step_outcomes(reports: Iterable[tuple[str, Report]]) -> tuple[StepOutcome, ...]:
    """Outcome of every step, by pair."""
    return tuple(
        StepOutcome(pair, one.item, one.result, one.detail, one.error_code)
        for pair, report in reports
        for one in report.outcomes
    )


def plan_summary(plans: Iterable[Plan]) -> str:
    """`3 to create, 7 unchanged` over all plans."""
    counts: dict[str, int] = {}
    for plan in plans:
        for step in plan.steps:
            counts[step.kind.value] = counts.get(step.kind.value, 0) + 1
        if plan.unchanged:
            counts["unchanged"] = counts.get("unchanged", 0) + len(plan.unchanged)
    words = {StepKind.CREATE: "to create", StepKind.UPDATE: "to update", StepKind.DELETE: "to delete"}
    parts = [
        f"{count} {words.get(StepKind(kind), kind) if kind != 'unchanged' else kind}" for kind, count in counts.items()
    ]
    return f"{', '.join(parts) or 'nothing to do'}."


def report_summary(reports: Iterable[tuple[str, Report]]) -> str:
    """`10 done, 1 failed` over all reports."""
    totals = dict.fromkeys(Result, 0)
    for _, report in reports:
        for result, count in report.counts().items():
            totals[result] += count
    parts = [f"{count} {result.value}" for result, count in totals.items() if count]
    return f"{', '.join(parts) or 'Nothing was done'}."


# The operations log: who changed what, when, with which credential. A namespace-level key leaves no trace in Azure.
#
# JSON Lines in the state folder, one line a step that was carried out, appended with one write each, so that several
# runs can share the file.

FILE_NAME = "operations.jsonl"


class OperationsLog:
    """Appends to the log. Opened before anything is changed: what cannot be logged is not done.

    Raises:
        SbpairError: the file cannot be opened or written.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = state_directory(environ) / FILE_NAME
        self._file = self._open()

    def _open(self) -> BinaryIO:
        try:
            make_private_folder(self.path.parent)
            return open_private(self.path, "ab")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def __enter__(self) -> "OperationsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        try:
            self._file.write(json_text(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _unwritable(path: Path, error: OSError) -> SbpairError:
    return SbpairError(
        f"Cannot write the operations log {path}: {error}", hint="Set XDG_STATE_HOME to a folder that can be written."
    )


def change_line(command: str, access: NamespaceAccess, action: str, entity: str, detail: str) -> dict[str, Any]:
    """A line of the log for a change of one entity: `result` and `error_code` are the caller's to add."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **_context(command, access),
        "namespace": access.host,
        "action": action,
        "entity": entity,
        "detail": detail,
    }


def _context(command: str, access: NamespaceAccess) -> dict[str, Any]:
    return {"who": who(), "command": command, "credential": credential_name(access)}


def how_to_apply(command: str, pair: Pair) -> "Applying":
    """How a plan is carried out for this command: today's protected patterns, and what each log line repeats."""
    from sbpair.runtime.inspection.apply import Applying

    return Applying(protected=pair.protected, context=_context(command, pair.secondary))


def who() -> str:
    """`user@host`, with the user behind sudo."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this user id, or no such thing on this platform
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    behind = os.environ.get("SUDO_USER")
    return f"{f'{behind} as {user}' if behind else user}@{socket.gethostname()}"
