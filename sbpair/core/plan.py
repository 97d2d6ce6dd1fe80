"""From what exists to ordered steps, each with its reason and risk. The steps shown are the very values applied.

A plan for provisioning creates what is missing and, if asked, brings changeable properties to the documented values; a
plan for cleanup deletes extra backlog queues that are empty. Neither ever recreates a queue: where only that would help
the step says what a person would have to do. Source of the rules: seed 000, "creating backlog queues".
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from sbpair.core.drift import Difference, corrected, differences
from sbpair.core.entities import QueueFacts, QueueSettings, Tier
from sbpair.core.errors import SbpairError, StalePlanError, UsageError
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.pairing import Pair, backlog_settings
from sbpair.core.plain import from_plain, to_plain
from sbpair.core.snapshot import QueueSeen, Snapshot, check_format_version
from sbpair.core.wording import quoted

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

    @classmethod
    def of(cls, facts: QueueFacts) -> "Expected":
        return cls(facts.settings, facts.updated_at)

    def matches(self, facts: QueueFacts) -> bool:
        """Whether `facts` is the version that was planned for: set as it was then, and not written since."""
        if self.settings != facts.settings:
            return False
        if self.updated_at is None or facts.updated_at is None:
            return True
        return abs(self.updated_at - facts.updated_at) < _SAME_UPDATE_SECONDS


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
class Plan:
    """Steps for the secondary of one pair, in the order they are carried out."""

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
    def empty(self) -> bool:
        """Nothing to do and nothing left undone."""
        return not self.steps

    @property
    def has_changes(self) -> bool:
        """Whether applying it would change anything."""
        return any(step.kind in (StepKind.CREATE, StepKind.UPDATE, StepKind.DELETE) for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Any) -> "Plan":
        """Read what `to_dict` wrote.

        Raises:
            UsageError: another format version, a wrong shape, a queue that is no backlog queue, a create or update
                without settings, or an update or deletion that does not say of what. A plan file may have been edited;
                it can never be made to touch any other queue, nor one that has changed.
        """
        check_format_version(data, "plan", FORMAT_VERSION)
        plan = from_plain(cls, data, "plan")
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


def check_target(plan: Plan, pair: Pair) -> None:
    """Refuse a plan made for another pair than the one it is about to be applied to.

    Raises:
        StalePlanError: primary label or secondary host differ from the configuration.
    """
    planned = (plan.primary_label.lower(), plan.secondary_host.lower())
    configured = (pair.primary.label.lower(), pair.secondary.host.lower())
    if planned != configured:
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
    existing = {queue.path.lower(): queue for queue in _secondary_queues(snapshot)}
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


def _create(path: str, settings: QueueSettings) -> Step:
    return Step(StepKind.CREATE, path, "it does not exist", Risk.LOW, settings=settings)


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


def plan_cleanup(
    snapshot: Snapshot, pair: Pair, *, confirmed: Collection[str] = (), also_primaries: Collection[str] = ()
) -> Plan:
    """Delete the extra backlog queues (index not below the pair's count) that are empty.

    Protected patterns always win, also over `confirmed`, which holds paths that a person named to be deleted although
    they hold messages. `also_primaries` adds all backlog queues left over from those primaries' labels.

    Raises:
        SbpairError: the snapshot does not know the secondary's queues.
    """
    _secondary_queues(snapshot)
    named = {path.lower() for path in confirmed}
    others = {label.lower() for label in also_primaries}
    own = pair.primary.label.lower()
    steps = []
    for name, queue in snapshot.secondary.backlog():
        if name.primary_label == own and name.index >= pair.options.backlog_queue_count:
            reason = f"index {name.index} is not below the pair's {pair.options.backlog_queue_count} backlog queues"
        elif name.primary_label != own and name.primary_label in others:
            reason = f"left over from primary {name.primary_label}"
        else:
            continue
        steps.append(_removal(queue, reason, pair.protected, queue.path.lower() in named))
    return _plan(Purpose.CLEANUP, snapshot, pair, steps, [])


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
    return next((pattern for pattern in protected if fnmatchcase(path.lower(), pattern.lower())), None)


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
