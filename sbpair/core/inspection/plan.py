"""From what exists to ordered steps, each with its reason and risk. The steps shown are the very values applied.

A plan for provisioning creates what is missing and, if asked, brings changeable properties to the documented values; a
plan for cleanup deletes extra backlog queues that are empty. Neither ever recreates a queue: where only that would help
the step says what a person would have to do. Source of the rules: "Paired Namespaces: Implementation Details and
Cost", its part on creating backlog queues.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

from sbpair.core.access import shown_name
from sbpair.core.durations import format_duration
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import SbpairError, StalePlanError, UsageError
from sbpair.core.inspection.snapshot import QueueSeen, Snapshot
from sbpair.core.names import Names, by_path, name_matches, parse_backlog_queue_path, same_name
from sbpair.core.outcome import Exit, Outcome, Report, Result, exit_for
from sbpair.core.pairing import Pair, backlog_settings
from sbpair.core.prices import Forecast
from sbpair.core.redact import quoted
from sbpair.core.serialization import Document, column, published
from sbpair.core.words import were
from sbpair.service import NEVER_DAYS, PARTITION_COUNT, QueueSettings, Tier

# Where a queue differs from the documented backlog-queue settings, field by field, normalised.
#
# Normalised means: a duration at or above TimeSpan.MaxValue in whole days is "never"; a partitioned queue read as 16
# times its configured size is not different; a property that the tier does not let be set is not compared; a property
# whose switch is off (the duplicate-detection window) is not compared. So there is no drift that nobody can fix.

_NEVER_SECONDS = NEVER_DAYS * 86_400.0


@dataclass(frozen=True, slots=True)
class SettableProperty:
    """How one settable property is compared and shown."""

    field: str
    label: str
    create_only: bool = False
    basic: bool = True
    """Whether tier Basic lets it be set."""
    show: Callable[[Any], str] = str


def _flag(value: bool) -> str:
    return "on" if value else "off"


def _size(value: int) -> str:
    return f"{value} MB"


def _text(value: str | None) -> str:
    return value or "none"


PROPERTIES = (
    SettableProperty("max_size_in_megabytes", "maximum size", show=_size),
    SettableProperty("max_delivery_count", "maximum delivery count"),
    SettableProperty("default_message_time_to_live_seconds", "default time to live", basic=False, show=format_duration),
    SettableProperty("auto_delete_on_idle_seconds", "auto-delete on idle", basic=False, show=format_duration),
    SettableProperty("lock_duration_seconds", "lock duration", show=format_duration),
    SettableProperty("dead_lettering_on_message_expiration", "dead-lettering on expiration", show=_flag),
    SettableProperty("enable_batched_operations", "batched operations", show=_flag),
    SettableProperty("forward_to", "forward to", show=_text),
    SettableProperty("forward_dead_lettered_messages_to", "forward dead letters to", show=_text),
    SettableProperty("requires_session", "sessions", create_only=True, show=_flag),
    SettableProperty("requires_duplicate_detection", "duplicate detection", create_only=True, show=_flag),
    SettableProperty("enable_express", "express", create_only=True, show=_flag),
)
PARTITIONING = SettableProperty("enable_partitioning", "partitioning", create_only=True, show=_flag)


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that is not as documented. `actual` and `wanted` are texts for people."""

    field: str
    label: str
    actual: str
    wanted: str
    create_only: bool

    def __str__(self) -> str:
        return f"{self.label} is {self.actual}, documented {self.wanted}"


def differences(actual: QueueSettings, tier: Tier | None, *, partitioned: bool | None = None) -> tuple[Difference, ...]:
    """Differences of a queue from the documented settings ("Paired Namespaces: Implementation Details and Cost") as
    `tier` allows them.

    `partitioned`: the wanted partitioning; None takes either, since the documents leave it to the service's default.
    """
    wanted = backlog_settings(tier, partitioned=bool(partitioned))
    found = normalised(actual, wanted)
    compared = PROPERTIES if partitioned is None else (*PROPERTIES, PARTITIONING)
    return tuple(
        Difference(one.field, one.label, one.show(value), one.show(target), one.create_only)
        for one in compared
        if (tier is not Tier.BASIC or one.basic)
        and (value := getattr(found, one.field)) != (target := getattr(wanted, one.field))
    )


def normalised(actual: QueueSettings, wanted: QueueSettings) -> QueueSettings:
    """`actual` in the spelling of `wanted`: "never" is None, sizes of partitioned queues are per partition."""
    size = actual.max_size_in_megabytes
    if actual.enable_partitioning and size == wanted.max_size_in_megabytes * PARTITION_COUNT:
        size = wanted.max_size_in_megabytes
    return replace(
        actual,
        max_size_in_megabytes=size,
        default_message_time_to_live_seconds=_never(actual.default_message_time_to_live_seconds),
        auto_delete_on_idle_seconds=_never(actual.auto_delete_on_idle_seconds),
        lock_duration_seconds=round(actual.lock_duration_seconds, 3),
        forward_to=actual.forward_to or None,
        forward_dead_lettered_messages_to=actual.forward_dead_lettered_messages_to or None,
    )


def corrected(actual: QueueSettings, found: tuple[Difference, ...], tier: Tier | None) -> QueueSettings:
    """`actual` with the changeable ones of its differences set to the documented values; the rest stays untouched."""
    wanted = backlog_settings(tier)
    changes: dict[str, Any] = {one.field: getattr(wanted, one.field) for one in found if not one.create_only}
    return replace(actual, **changes)


def _never(seconds: float | None) -> float | None:
    return None if seconds is None or seconds >= _NEVER_SECONDS else seconds


FORMAT_VERSION = 1


class StepKind(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    SKIP = "skip"
    """Nothing is done although something could be; the reason says why."""
    RECREATE = "recreate-needed"
    """Only deleting and creating again would help; never done automatically."""


class Risk(StrEnum):
    """What can go wrong: nothing, a setting, or messages."""

    NONE = "none"
    LOW = "low"
    HIGH = "high"


class Purpose(StrEnum):
    PROVISION = "provision"
    CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the step's queue looked like when the plan was made; another look means the world has changed.

    Its settings and the time of its last update, since the service keeps that time to about 3 ms only. There is no use
    in its ETag: that is the same time in other digits, and only a single read over the data plane has one.
    """

    settings: QueueSettings
    updated_at: float | None = None
    messages: int | None = None
    """What it held, by its counts."""

    @classmethod
    def of(cls, facts: QueueFacts) -> "Expected":
        return cls(facts.settings, facts.updated_at, facts.counts.total)

    def matches(self, facts: QueueFacts) -> bool:
        """Whether `facts` is the version that was planned for: set as it was then, and not written since."""
        return self.changed(facts) is None

    def changed(self, facts: QueueFacts) -> str | None:
        """What is not as it was planned for: `max_delivery_count was changed`."""
        names = [one.name for one in fields(QueueSettings)]
        others = [name for name in names if getattr(self.settings, name) != getattr(facts.settings, name)]
        if others:
            return f"{', '.join(others)} {were(len(others))} changed"
        if self.updated_at is None or facts.updated_at is None:
            return None
        return None if abs(self.updated_at - facts.updated_at) < _SAME_UPDATE_SECONDS else "it was written since"


_SAME_UPDATE_SECONDS = 0.001
"""Less than the service's resolution, more than what two APIs may cut off the same time."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do with one queue. `settings` is the whole description for create and update."""

    kind: StepKind
    queue: str
    reason: str
    risk: Risk = Risk.NONE
    settings: QueueSettings | None = None
    changes: tuple[Difference, ...] = ()
    expected: Expected | None = None
    with_messages: bool = False
    """Delete although it holds messages: a person confirmed this queue by its name."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A queue that is left as it is; `note` says more where there is more to say."""

    queue: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan(Document):
    """Steps for the secondary of one pair, in the order they are carried out."""

    file: ClassVar = ("plan", FORMAT_VERSION)
    format_version: int
    purpose: Purpose
    pair: str
    primary_label: str
    secondary_host: str
    snapshot_digest: str
    taken_at: float
    """When the snapshot it was made from was taken, UTC epoch seconds."""
    steps: tuple[Step, ...]
    unchanged: tuple[Unchanged, ...] = ()
    protected: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether applying it would change anything."""
        return any(step.kind in (StepKind.CREATE, StepKind.UPDATE, StepKind.DELETE) for step in self.steps)

    @classmethod
    def from_dict(cls, data: Any) -> "Plan":
        """Read what `to_dict` wrote.

        Raises:
            UsageError: another format version, a wrong shape, a queue that is no backlog queue, a create or update
                without settings, or an update or deletion that does not say of what. A plan file may have been edited;
                it can never be made to touch any other queue, nor one that has changed.
        """
        plan = super(Plan, cls).from_dict(data)
        for index, step in enumerate(plan.steps):
            _check_step(step, f"plan.steps[{index}]")
        return plan


def _check_step(step: Step, where: str) -> None:
    if parse_backlog_queue_path(step.queue) is None:
        raise UsageError(f"{where}: {quoted(step.queue)} is not a backlog queue; a plan touches no other queue.")
    if step.kind in (StepKind.CREATE, StepKind.UPDATE) and step.settings is None:
        raise UsageError(f"{where}: a step of kind {step.kind} needs 'settings'.")
    if step.kind in (StepKind.UPDATE, StepKind.DELETE) and step.expected is None:
        raise UsageError(f"{where}: a step of kind {step.kind} needs 'expected'.")
    if not _is_as_shown(step):
        raise UsageError(f"{where}: {step.kind} {step.queue} would do something else than its reason says.")


def _is_as_shown(step: Step) -> bool:
    """Whether the step makes what people are shown of it, its reason and its changes. (What a deletion says does not
    matter: only an empty queue is deleted, or one whose name is typed again.)"""
    forms = [(tier, partitioned) for tier in (None, *Tier) for partitioned in (False, True)]
    if step.kind is StepKind.CREATE:
        made = [backlog_settings(tier, partitioned=partitioned) for tier, partitioned in forms]
        return step.reason == _IS_MISSING and step.settings in made
    if step.kind is StepKind.UPDATE and step.expected is not None:
        before = step.expected.settings
        for tier, partitioned in forms:
            found = differences(before, tier, partitioned=partitioned or None)
            changes = tuple(one for one in found if not one.create_only)
            if (step.changes, step.settings) == (changes, corrected(before, changes, tier)):
                return step.reason == _sentence(changes)
        return False
    return True


def check_target(plan: Plan, pair: Pair) -> None:
    """Refuse a plan made for another pair than the one it is about to be applied to.

    Raises:
        StalePlanError: primary label or secondary host differ from the configuration.
    """
    if not (same_name(plan.primary_label, pair.primary.label) and same_name(plan.secondary_host, pair.secondary.host)):
        raise StalePlanError(
            f"The plan is for the backlog queues of {plan.primary_label} on {plan.secondary_host}, but pair "
            f"{pair.name!r} has {pair.primary.label} on {pair.secondary.host}."
        )


def plan_provision(snapshot: Snapshot, pair: Pair, *, update: bool = False, partitioned: bool | None = None) -> Plan:
    """Create the missing backlog queues; with `update` bring different ones to the documented values.

    `partitioned`: True makes new queues partitioned and wants existing ones to be; None and False create plain ones and
    take existing ones either way.

    Raises:
        SbpairError: the snapshot does not know the secondary's queues.
    """
    tier = _tier(snapshot)
    existing = by_path(_secondary_queues(snapshot))
    steps: list[Step] = []
    unchanged: list[Unchanged] = []
    for path in pair.backlog_paths():
        queue = existing.get(path)
        if queue is None:
            steps.append(_create(path, backlog_settings(tier, partitioned=bool(partitioned))))
            continue
        found = differences(queue.facts.settings, tier, partitioned=partitioned or None)
        if found and update:
            steps.extend(_corrections(queue, found, tier))
        else:
            unchanged.append(Unchanged(queue.path, _left_alone(found)))
    return _plan(Purpose.PROVISION, snapshot, pair, steps, unchanged)


_IS_MISSING: Final = "it does not exist"


def _create(path: str, settings: QueueSettings) -> Step:
    return Step(StepKind.CREATE, path, _IS_MISSING, Risk.LOW, settings=settings)


def _corrections(queue: QueueSeen, found: tuple[Difference, ...], tier: Tier | None) -> Iterator[Step]:
    changeable = tuple(one for one in found if not one.create_only)
    create_only = tuple(one for one in found if one.create_only)
    if changeable:
        yield Step(
            StepKind.UPDATE,
            queue.path,
            _sentence(changeable),
            Risk.LOW,
            settings=corrected(queue.facts.settings, changeable, tier),
            changes=changeable,
            expected=Expected.of(queue.facts),
        )
    if create_only:
        yield Step(
            StepKind.RECREATE,
            queue.path,
            f"{_sentence(create_only)}; set at creation only: drain it, delete it and create it again",
            Risk.HIGH,
            changes=create_only,
            expected=Expected.of(queue.facts),
        )


def _left_alone(found: tuple[Difference, ...]) -> str:
    return f"used as it is; {_sentence(found)}" if found else ""


def _sentence(found: Iterable[Difference]) -> str:
    return "; ".join(str(one) for one in found)


def user_of(path: str, secondary_host: str, pairs: Iterable[Pair]) -> str | None:
    """Name of the first of these pairs that counts on this backlog queue on that secondary; None if none does."""
    return next(
        (
            pair.name
            for pair in pairs
            if same_name(pair.secondary.host, secondary_host) and path in Names(pair.backlog_paths())
        ),
        None,
    )


def plan_cleanup(
    snapshot: Snapshot,
    pair: Pair,
    *,
    confirmed: Collection[str] = (),
    also_primaries: Collection[str] = (),
    others: Collection[Pair] = (),
) -> Plan:
    """Delete the extra backlog queues (index not below the count of any configured pair) that are empty.

    `others`: all configured pairs; a queue that one of them counts on is not extra, whatever this pair's count is.
    Protected patterns always win, also over `confirmed`, which holds paths that a person named to be deleted although
    they hold messages. `also_primaries` adds all backlog queues left over from those primaries' labels.

    Raises:
        SbpairError: the snapshot does not know the secondary's queues.
    """
    _secondary_queues(snapshot)
    named, left_over = Names(confirmed), Names(also_primaries)
    own = pair.primary.label
    steps: list[Step] = []
    unchanged: list[Unchanged] = []
    for name, queue in snapshot.secondary.backlog():
        if name.primary_label == own and name.index >= pair.options.backlog_queue_count:
            reason = f"index {name.index} is not below the pair's {pair.options.backlog_queue_count} backlog queues"
        elif name.primary_label != own and name.primary_label in left_over:
            reason = f"left over from primary {name.primary_label}"
        else:
            continue
        user = user_of(queue.path, pair.secondary.host, others)
        if user is not None:
            unchanged.append(Unchanged(queue.path, f"pair {user!r} counts on it"))
            continue
        steps.append(_removal(queue, reason, pair.protected, queue.path in named))
    return _plan(Purpose.CLEANUP, snapshot, pair, steps, unchanged)


def _removal(queue: QueueSeen, reason: str, protected: Collection[str], named: bool) -> Step:
    pattern = protecting_pattern(queue.path, protected)
    if pattern is not None:
        return Step(StepKind.SKIP, queue.path, f"protected by the pattern {pattern!r}", Risk.NONE)
    if queue.empty:
        return Step(StepKind.DELETE, queue.path, f"{reason}; it is empty", Risk.LOW, expected=Expected.of(queue.facts))
    if not named:
        advice = "drain it first, or confirm it by its name"
        return Step(StepKind.SKIP, queue.path, f"it holds {queue.contents}: {advice}", Risk.HIGH)
    return Step(
        StepKind.DELETE,
        queue.path,
        f"{reason}; confirmed by name although it holds {queue.contents}",
        Risk.HIGH,
        expected=Expected.of(queue.facts),
        with_messages=True,
    )


def protecting_pattern(path: str, protected: Iterable[str]) -> str | None:
    """The first shell pattern that protects `path` from deletion; case does not matter."""
    return next((pattern for pattern in protected if name_matches(path, pattern)), None)


def _secondary_queues(snapshot: Snapshot) -> tuple[QueueSeen, ...]:
    queues = snapshot.secondary.queues
    if queues is None:
        reason = snapshot.secondary.why_unread("queues") or "they were not read"
        raise SbpairError(f"No plan without the queues of {snapshot.secondary.host}: {reason}")
    return queues


def _tier(snapshot: Snapshot) -> Tier | None:
    return snapshot.secondary.facts.tier if snapshot.secondary.facts else None


def _plan(purpose: Purpose, snapshot: Snapshot, pair: Pair, steps: list[Step], unchanged: list[Unchanged]) -> Plan:
    return Plan(
        format_version=FORMAT_VERSION,
        purpose=purpose,
        pair=pair.name,
        primary_label=pair.primary.label,
        secondary_host=pair.secondary.host,
        snapshot_digest=snapshot.digest(),
        taken_at=snapshot.taken_at,
        steps=tuple(steps),
        unchanged=tuple(unchanged),
        protected=pair.protected,
    )


_STEPS = {StepKind.CREATE: 1, StepKind.UPDATE: 4, StepKind.DELETE: 3, StepKind.SKIP: 0, StepKind.RECREATE: 0}
"""Calls of a step: an update reads to compare, to change what is there, and afterwards; a deletion confirms twice."""


def of_plan(plan: Plan) -> Forecast:
    """Management calls of applying a plan by the data plane, if every step succeeds at once."""
    return Forecast(sum(_STEPS[step.kind] for step in plan.steps))


def holds_messages(step: Step) -> bool:
    """Whether only a person can decide about it: it deletes messages, or would."""
    return step.with_messages or (step.kind is StepKind.SKIP and step.risk is Risk.HIGH)


def check_unused(pair: Pair, primaries: Collection[str], configured: Iterable[Pair]) -> None:
    """Refuse primaries (labels in lower case) whose backlog queues on the pair's secondary a configured pair uses.

    Raises:
        UsageError: the pair itself, or one of `configured`, uses them.
    """
    for other in (pair, *configured):
        label = other.primary.label
        if label in primaries and other.secondary.host == pair.secondary.host:
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
    primaries = {name.primary_label for name in names if name is not None} - {pair.primary.label}
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
    known = Names(step.queue for plan in plans for step in plan.steps)
    for path in confirmed:
        if path not in known:
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
    named = Names(confirmed)
    return replace(plan, steps=tuple(_as_confirmed(step, step.queue in named) for step in plan.steps))


def _as_confirmed(step: Step, named: bool) -> Step:
    if not holds_messages(step):
        return step
    if named:
        return replace(step, kind=StepKind.DELETE, with_messages=True, risk=Risk.HIGH)
    reason = step.reason if step.kind is StepKind.SKIP else f"{step.reason}; not confirmed in this run"
    return replace(step, kind=StepKind.SKIP, with_messages=False, reason=reason)


# What was made of plans: shown, or applied step by step.


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
class PlannedChanges:
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

    def summary(self) -> str:
        return f"Plan: {plan_summary(self.plans)} Nothing was changed."


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
        """`10 done, 1 failed.`; where nothing was to be done, that."""
        totals = Counter(outcome.result for outcome in self.outcomes)
        parts = [f"{totals[result]} {result.value}" for result in Result if totals[result]]
        return f"{', '.join(parts)}." if parts else f"Plan: {plan_summary(self.plans)}"


Printed = PlannedChanges | Applied


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
