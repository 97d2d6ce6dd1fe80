"""The result of provisioning and of a clean-up: plans that were made, and what became of those that were applied."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sbpair.core.inspection.plan import Plan, StepKind, of_plan
from sbpair.core.outcome import Exit, Outcome, Report, Result, exit_for
from sbpair.core.prices import Forecast
from sbpair.core.serialization import column, published


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """The plan of one pair and what became of its steps. No report: it was only made."""

    plan: Plan
    report: Report | None = None

    @property
    def used(self) -> Forecast:
        """What the steps that were done took, retries not counted."""
        done = {outcome.item for outcome in self.outcomes if outcome.result is Result.DONE}
        return of_plan(replace(self.plan, steps=tuple(step for step in self.plan.steps if step.queue in done)))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return self.report.outcomes if self.report is not None else ()


@dataclass(frozen=True, slots=True)
class Planned:
    """Nothing was changed; `forecast` is what applying the plans takes."""

    plans: tuple[Plan, ...]

    @published
    def forecast(self) -> Forecast:
        return sum(map(of_plan, self.plans), Forecast())

    @property
    def has_changes(self) -> bool:
        return any(plan.has_changes for plan in self.plans)

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.has_changes else Exit.OK


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of one step; `error` is the error's code."""

    pair: str = field(metadata=column("Pair"))
    queue: str = field(metadata=column("Queue"))
    result: Result = field(metadata=column("Result", colours=True))
    detail: str = field(metadata=column("Detail"))
    error: str | None


@dataclass(frozen=True, slots=True)
class Applied:
    """Plans that were carried out. `used`: retries not counted."""

    plans: tuple[Plan, ...]
    outcomes: tuple[StepOutcome, ...]
    used: Forecast

    @classmethod
    def of(cls, plans: Iterable[Plan], applied: Iterable[AppliedPlan]) -> "Applied":
        """What became of `plans`, of which those in `applied` were begun."""
        begun = tuple(applied)
        outcomes = tuple(
            StepOutcome(pair.plan.pair, outcome.item, outcome.result, outcome.detail, outcome.error_code)
            for pair in begun
            for outcome in pair.outcomes
        )
        return cls(tuple(plans), outcomes, sum((pair.used for pair in begun), Forecast()))

    @property
    def exit(self) -> Exit:
        return exit_for(Outcome(outcome.queue, outcome.result) for outcome in self.outcomes)

    def summary(self) -> str:
        """`10 done, 1 failed.`"""
        totals = Counter(outcome.result for outcome in self.outcomes)
        parts = [f"{totals[result]} {result.value}" for result in Result if totals[result]]
        return f"{', '.join(parts) or 'Nothing was done'}."


Printed = Planned | Applied


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A step, or a queue that stays as it is."""

    pair: str = field(metadata=column("Pair"))
    step: str = field(metadata=column("Step", colours=True))
    queue: str = field(metadata=column("Queue"))
    risk: str = field(metadata=column("Risk"))
    reason: str = field(metadata=column("Why"))


def plan_rows(plans: Iterable[Plan]) -> list[PlanRow]:
    """Every step of every plan, and the queues that stay as they are."""
    rows = []
    for plan in plans:
        rows += [PlanRow(plan.pair, step.kind.value, step.queue, step.risk.value, step.reason) for step in plan.steps]
        rows += [PlanRow(plan.pair, "unchanged", queue.queue, "none", queue.note) for queue in plan.unchanged]
    return rows


_WORDS = {StepKind.CREATE: "to create", StepKind.UPDATE: "to update", StepKind.DELETE: "to delete"}


def plan_summary(plans: Iterable[Plan]) -> str:
    """`3 to create, 7 unchanged.` over all plans."""
    counts: Counter[str] = Counter()
    for plan in plans:
        counts.update(_WORDS.get(step.kind, step.kind.value) for step in plan.steps)
        counts.update({"unchanged": len(plan.unchanged)} if plan.unchanged else {})
    return f"{', '.join(f'{count} {words}' for words, count in counts.items()) or 'nothing to do'}."
