"""What a clean-up refuses and asks about: queues in use, queues that hold messages, names that nobody planned for."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from sbpair.core.access import shown_name
from sbpair.core.errors import StalePlanError, UsageError
from sbpair.core.inspection.plan import Plan, Risk, Step, StepKind, user_of
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.pairing import Pair


def holds_messages(step: Step) -> bool:
    """Whether only a person can decide about it: it deletes messages, or would."""
    return step.with_messages or (step.kind is StepKind.SKIP and step.risk is Risk.HIGH)


def check_unused(pair: Pair, primaries: Collection[str], configured: Iterable[Pair]) -> None:
    """Refuse primaries (labels in lower case) whose backlog queues on the pair's secondary a configured pair uses.

    Raises:
        UsageError: the pair itself, or one of `configured`, uses them.
    """
    for other in (pair, *configured):
        label = other.primary.label.lower()
        if label in primaries and other.secondary.host.lower() == pair.secondary.host.lower():
            raise UsageError(
                f"The backlog queues of {label} on {shown_name(pair.secondary)} are in use: they are those of pair "
                f"{other.name!r}.",
                hint=f"Its extra ones: sbpair cleanup {other.name}",
            )


def check_still_extra(pair: Pair, plan: Plan, configured: Iterable[Pair]) -> None:
    """Refuse a plan that was kept if it deletes what any configured pair uses by now.

    Raises:
        UsageError: the queues of another primary are in use.
        StalePlanError: a queue is.
    """
    pairs = tuple(configured)
    names = [parse_backlog_queue_path(step.queue) for step in plan.steps]
    primaries = {name.primary_label for name in names if name is not None} - {pair.primary.label.lower()}
    check_unused(pair, primaries, pairs)
    for step in plan.steps:
        user = user_of(step.queue, pair.secondary.host, (pair, *pairs))
        if step.kind is StepKind.DELETE and user is not None:
            raise StalePlanError(f"The plan deletes {step.queue}, which pair {user!r} uses by now.")


def check_confirmed(plans: Iterable[Plan], confirmed: Sequence[str]) -> None:
    """Refuse a name that is not in any plan: it is a typing error, and nothing should be done.

    Raises:
        UsageError: there is such a name.
    """
    known = {step.queue.lower() for plan in plans for step in plan.steps}
    for path in confirmed:
        if path.lower() not in known:
            raise UsageError(
                f"--confirm {path}: there is no extra backlog queue of that name.", hint="List them: sbpair cleanup"
            )


def without_queues(plan: Plan, secondary_label: str, primaries: Collection[str]) -> Iterator[str]:
    """Which of the other primaries have left nothing; a wrong name would look the same."""
    left = {parse_backlog_queue_path(step.queue) for step in plan.steps}
    for label in primaries:
        if not any(name is not None and name.primary_label == label for name in left):
            yield f"There is no backlog queue of {label} on {secondary_label}."


def as_confirmed(plan: Plan, confirmed: Collection[str]) -> Plan:
    """The plan with the queues that are confirmed now (paths in any case); what a file says was confirmed has to be
    confirmed again."""
    named = {path.lower() for path in confirmed}
    return replace(plan, steps=tuple(_as_confirmed(step, step.queue.lower() in named) for step in plan.steps))


def _as_confirmed(step: Step, named: bool) -> Step:
    if not holds_messages(step):
        return step
    if named:
        return replace(step, kind=StepKind.DELETE, with_messages=True, risk=Risk.HIGH)
    reason = step.reason if step.kind is StepKind.SKIP else f"{step.reason}; not confirmed in this run"
    return replace(step, kind=StepKind.SKIP, with_messages=False, reason=reason)
