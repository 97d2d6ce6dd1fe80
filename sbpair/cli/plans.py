"""What provision and cleanup share: plan files, plans and reports as tables."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sbpair.core.errors import UsageError
from sbpair.core.outcome import Report, Result
from sbpair.core.plan import Plan, StepKind
from sbpair.render.console import write_file
from sbpair.render.result import Column, Table
from sbpair.settings import DocumentError, parse_json, read_text

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


def read_plans(path: Path) -> list[Plan]:
    """Plans of a file written by `write_plans`.

    Raises:
        UsageError: unreadable, not JSON, or not plans of this release's format.
    """
    try:
        document = parse_json(read_text(path))
    except DocumentError as error:
        raise UsageError(f"Cannot read the plan {path}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("plans"), list):
        raise UsageError(f"{path} is not a plan file: an object with a list `plans` is expected.")
    return [Plan.from_dict(plan) for plan in document["plans"]]


def write_plans(path: Path, plans: Iterable[Plan]) -> None:
    """Write plans to a file that `--plan` reads again."""
    write_file(path, json.dumps({"plans": [plan.to_dict() for plan in plans]}, indent=2) + "\n")


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


def report_table(reports: Iterable[tuple[str, Report]]) -> Table:
    """Outcome of every step, by pair."""
    rows = [
        {"pair": pair, "queue": one.item, "result": one.result.value, "detail": one.detail, "error": one.error_code}
        for pair, report in reports
        for one in report.outcomes
    ]
    return Table("", REPORT_COLUMNS, rows, style_key="result")


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
