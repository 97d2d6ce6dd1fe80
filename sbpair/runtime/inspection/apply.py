"""Carries out the steps of a plan, item by item, and says what became of each.

A run that meets another run doing the same is a success. Nothing is deleted that was not seen empty twice just before
(and browsed, where a `Peek` is given), that changed since the plan was made, or that a protected pattern covers.
Up to 3 tries per step with 30 s between them, as the retired library did when it created backlog queues.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.concurrency import retried, side_by_side
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import EntityExistsError, EntityNotFoundError, ServerBusyError, ServiceError, StalePlanError
from sbpair.core.events import StepDone
from sbpair.core.inspection.plan import Plan, Step, StepKind, differences, protecting_pattern
from sbpair.core.inspection.snapshot import describe_counts
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.outcome import Outcome, Report, Result
from sbpair.core.words import counted
from sbpair.ports import NamespaceAdmin, Observer, RuntimeClock
from sbpair.runtime.browse import Peek
from sbpair.runtime.inspection.gather import (
    BUSY_PAUSE_SECONDS,
    DEFAULT_CONCURRENCY,
    DEFAULT_CREDITS_PER_SECOND,
    CreditPacer,
    patiently,
)
from sbpair.service import QueueSettings

DEFAULT_TRIES = 3
DEFAULT_PAUSE_SECONDS = 30.0

OperationsLog = Callable[[Mapping[str, Any]], None]
"""Takes one line (a plain dict) per step that was carried out."""


@dataclass(frozen=True, slots=True)
class Applying:
    """How a plan is carried out. `context` (who, credential, ...) is repeated in every line of the operations log."""

    concurrency: int = DEFAULT_CONCURRENCY
    tries: int = DEFAULT_TRIES
    pause_seconds: float = DEFAULT_PAUSE_SECONDS
    credits_per_second: float | None = DEFAULT_CREDITS_PER_SECOND
    protected: tuple[str, ...] = ()
    """Patterns on top of those in the plan, e.g. of today's configuration."""
    context: Mapping[str, Any] | None = None


async def check_fresh(plan: Plan, *, admin: NamespaceAdmin, clock: RuntimeClock) -> None:
    """Refuse a plan that was kept in a file if any of its queues was changed since.

    A queue to create that exists by now as it was going to be made is fine: another run did the step.

    Raises:
        StalePlanError: naming every queue that changed.
        ServiceError: a queue could not be read.
    """
    pacer = CreditPacer(clock, DEFAULT_CREDITS_PER_SECOND)

    async def look(step: Step) -> str | None:
        await pacer.spend()
        return _staleness(step, await patiently(clock, lambda: admin.get_queue(step.queue)))

    acting = [step for step in plan.steps if step.kind in (StepKind.CREATE, StepKind.UPDATE, StepKind.DELETE)]
    stale = [reason for reason in await side_by_side(look, acting, at_once=DEFAULT_CONCURRENCY) if reason is not None]
    if stale:
        raise StalePlanError("The plan is stale: " + "; ".join(stale) + ".")


def _staleness(step: Step, facts: QueueFacts | None) -> str | None:
    if step.kind is StepKind.CREATE:
        return f"{step.queue} exists by now, and differently" if facts is not None and _unlike(facts, step) else None
    if facts is None:
        return None if step.kind is StepKind.DELETE else f"{step.queue} is gone"
    if step.expected is None:
        return None
    held, now = step.expected.messages, facts.counts.total
    if step.kind is StepKind.DELETE and held is not None and now > held:
        return f"{step.queue} holds {counted(now, 'message')} now, not {held:,}"
    changed = step.expected.changed(facts)
    return None if changed is None else f"{step.queue} was changed ({changed})"


def _unlike(facts: QueueFacts, step: Step) -> bool:
    """Whether an existing queue differs, as documented settings go, from the one the step would have made."""
    return differences(facts.settings, None) != differences(_settings_of(step), None)


async def apply(
    plan: Plan,
    *,
    admin: NamespaceAdmin,
    clock: RuntimeClock,
    observer: Observer | None = None,
    peek: Peek | None = None,
    log: OperationsLog | None = None,
    how: Applying | None = None,
) -> Report:
    """Carry out `plan` on the secondary; one outcome per queue of the plan, in the plan's order.

    A step's failure never stops the others. `peek` confirms emptiness before a deletion. For a plan read from a file
    call `check_fresh` first.
    """
    worker = _Worker(plan, admin, clock, observer, peek, log, how or Applying())
    untouched = [Outcome(one.queue, Result.UNCHANGED, one.note) for one in plan.unchanged]
    done = await side_by_side(worker.carry_out, plan.steps, at_once=worker.how.concurrency)
    return Report(outcomes=(*untouched, *done))


@dataclass
class _Worker:
    plan: Plan
    admin: NamespaceAdmin
    clock: RuntimeClock
    observer: Observer | None
    peek: Peek | None
    log: OperationsLog | None
    how: Applying

    def __post_init__(self) -> None:
        self._pacer = CreditPacer(self.clock, self.how.credits_per_second)

    async def carry_out(self, step: Step) -> Outcome:
        if step.kind in (StepKind.SKIP, StepKind.RECREATE):
            return self._tell(step, Outcome(step.queue, Result.SKIPPED, step.reason), tries=0)
        action = {StepKind.CREATE: self._create, StepKind.UPDATE: self._update, StepKind.DELETE: self._delete}[
            step.kind
        ]
        return await self._with_tries(step, action)

    async def _with_tries(self, step: Step, action: Callable[[Step], Awaitable[Outcome]]) -> Outcome:
        tried = 0

        async def attempt() -> Outcome:
            nonlocal tried
            tried += 1
            return await action(step)

        try:
            done = await retried(attempt, self._pause, sleep=self.clock.sleep)
        except ServiceError as error:
            detail = error.message if tried == 1 else f"{error.message} ({tried} tries)"
            return self._tell(step, Outcome(step.queue, Result.FAILED, detail, error.code), tried)
        return self._tell(step, done, tried)

    def _pause(self, error: ServiceError, failures: int) -> float | None:
        if not _worth_another_try(error) or failures >= self.how.tries:
            return None
        return max(self.how.pause_seconds, BUSY_PAUSE_SECONDS if isinstance(error, ServerBusyError) else 0.0)

    async def _get(self, path: str) -> QueueFacts | None:
        await self._pacer.spend()
        return await self.admin.get_queue(path)

    # The three kinds of step

    async def _create(self, step: Step) -> Outcome:
        settings = _settings_of(step)
        await self._pacer.spend()
        try:
            await self.admin.create_queue(step.queue, settings)
        except ServiceError as error:
            if not _worth_another_try(error):
                raise
            facts = await self._get(step.queue)
            if facts is None:
                raise
            return self._already_there(step, facts)
        return Outcome(step.queue, Result.DONE, "created")

    def _already_there(self, step: Step, facts: QueueFacts) -> Outcome:
        if _unlike(facts, step):
            return Outcome(
                step.queue, Result.UNCHANGED, "already there, used as it is; its settings are not the documented ones"
            )
        return Outcome(step.queue, Result.UNCHANGED, "already there: made by another run or by an earlier try")

    async def _update(self, step: Step) -> Outcome:
        settings = _settings_of(step)
        facts = await self._get(step.queue)
        if facts is None:
            raise EntityNotFoundError(f"{step.queue} is gone since the plan was made.", entity=step.queue)
        if facts.settings == settings:
            return Outcome(
                step.queue, Result.UNCHANGED, "already as planned: changed by another run or by an earlier try"
            )
        if step.expected is not None and not step.expected.matches(facts):
            return Outcome(step.queue, Result.SKIPPED, "it was changed since the plan was made")
        await self._pacer.spend()
        await self.admin.update_queue(step.queue, settings)
        return Outcome(
            step.queue, Result.DONE, "; ".join(f"{one.label} {one.actual} -> {one.wanted}" for one in step.changes)
        )

    async def _delete(self, step: Step) -> Outcome:
        refusal = self._refusal(step)
        if refusal is not None:
            return Outcome(step.queue, Result.SKIPPED, refusal)
        for _ in range(2):
            facts = await self._get(step.queue)
            if facts is None:
                return Outcome(step.queue, Result.UNCHANGED, "already gone")
            if step.expected is not None and not step.expected.matches(facts):
                return Outcome(step.queue, Result.SKIPPED, "it was changed since the plan was made")
            if facts.counts.total and not step.with_messages:
                return Outcome(step.queue, Result.SKIPPED, f"no longer empty: it holds {describe_counts(facts.counts)}")
        if not step.with_messages and self.peek is not None and not (await self.peek(step.queue)).empty:
            return Outcome(step.queue, Result.SKIPPED, "a browse found messages that the counts do not show")
        await self._pacer.spend()
        try:
            await self.admin.delete_queue(step.queue)
        except EntityNotFoundError:
            return Outcome(step.queue, Result.UNCHANGED, "already gone")
        return Outcome(step.queue, Result.DONE, "deleted")

    def _refusal(self, step: Step) -> str | None:
        """Reasons that no plan can overrule."""
        pattern = protecting_pattern(step.queue, (*self.plan.protected, *self.how.protected))
        if pattern is not None:
            return f"protected by the pattern {pattern!r}"
        return None if parse_backlog_queue_path(step.queue) else "it is no backlog queue"

    def _tell(self, step: Step, outcome: Outcome, tries: int) -> Outcome:
        now = self.clock.now()
        if self.observer is not None:
            self.observer.notify(StepDone(now.timestamp(), outcome.item, outcome.result.value, outcome.detail))
        if self.log is not None:
            line = {
                "at": now.isoformat(timespec="milliseconds"),
                **(self.how.context or {}),
                "pair": self.plan.pair,
                "namespace": self.plan.secondary_host,
                "action": step.kind.value,
                "queue": outcome.item,
                "result": outcome.result.value,
                "detail": outcome.detail,
                "error_code": outcome.error_code,
                "tries": tries,
            }
            self.log(line)
        return outcome


def _worth_another_try(error: ServiceError) -> bool:
    """Retryable ones, and "exists already" for a queue that a get does not find yet or no longer."""
    return error.retryable or isinstance(error, EntityExistsError)


def _settings_of(step: Step) -> QueueSettings:
    if step.settings is None:
        raise ValueError(f"a step of kind {step.kind} without settings: {step.queue}")
    return step.settings
