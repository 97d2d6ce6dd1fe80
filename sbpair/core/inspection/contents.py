"""What a namespace has: its entities with their settings and rules, as a file keeps them, and two of those compared;
and what the second lacks so that it can take the place of the first.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from sbpair.core.entities import SETTINGS_OF, AccessRule, Counts, EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.inspection.entity import ShownRule, rule_shown, setting_name, setting_text
from sbpair.core.names import (
    ByName,
    Names,
    by_path,
    dead_letter_path,
    name_matches,
    same_name,
    subscription_of,
    subscription_path,
)
from sbpair.core.outcome import Exit
from sbpair.core.serialization import AS_TIME, HIDDEN, Document, column, published, to_plain
from sbpair.core.words import counted
from sbpair.service import ENTITY_SIZES_MEGABYTES, PARTITION_COUNT, EntityStatus, Tier

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FoundNamespace:
    """The entities of a namespace, as they were read at a time (UTC epoch seconds; None: out of a file of settings)."""

    namespace: str
    tier: Tier | None
    taken_at: float | None
    entities: tuple[EntityFacts, ...]

    @classmethod
    def of(
        cls, namespace: str, tier: Tier | None, taken_at: float | None, found: Iterable[EntityFacts]
    ) -> "FoundNamespace":
        """By path. How large a message may be is a setting on Premium alone; elsewhere the tier says it."""
        without: dict[str, Any] = {} if tier is Tier.PREMIUM else {"max_message_size_in_kilobytes": None}
        settled = (replace(one, settings=replace(one.settings, **without)) for one in found)
        return cls(namespace, tier, taken_at, tuple(sorted(settled, key=lambda one: one.path.lower())))


@dataclass(frozen=True, slots=True)
class SavedEntity:
    """A queue, topic or subscription; its rules as text, which tells types apart."""

    kind: EntityKind
    path: str
    settings: EntitySettings
    counts: Counts
    rules: tuple[ShownRule, ...]
    access_rules: tuple[AccessRule, ...]


@dataclass(frozen=True, slots=True)
class Contents(Document):
    """A namespace at a time (`taken_at`, UTC epoch seconds; None: a file of settings, which says nothing of messages).
    It holds no keys."""

    file: ClassVar = ("snapshot", FORMAT_VERSION)
    format_version: int
    namespace: str
    tier: Tier | None
    taken_at: float | None
    entities: tuple[SavedEntity, ...]

    @classmethod
    def of(cls, found: FoundNamespace) -> "Contents":
        kept = (
            SavedEntity(
                one.kind, one.path, one.settings, one.counts, tuple(map(comparable, one.rules)), one.access_rules
            )
            for one in found.entities
        )
        return cls(FORMAT_VERSION, found.namespace, found.tier, found.taken_at, tuple(kept))


def comparable(rule: RuleFacts) -> ShownRule:
    """A rule as text, a filter of equal values told from SQL."""
    shown = rule_shown(rule)
    return shown if rule.sql is not None else replace(shown, filter=f"correlation: {shown.filter}")


def setting_differences(
    kind: EntityKind, ours: EntitySettings, theirs: EntitySettings
) -> Iterator[tuple[str, Any, Any]]:
    """Name of each setting that differs, and both values."""
    for name in SETTINGS_OF[kind]:
        here, there = getattr(ours, name), getattr(theirs, name)
        unused = not (ours.requires_duplicate_detection or theirs.requires_duplicate_detection)
        if here != there and not (name == "duplicate_detection_history_time_window_seconds" and unused):
            yield name, here, there


def rule_differences(
    ours: Iterable[ShownRule], theirs: Iterable[ShownRule]
) -> Iterator[tuple[ShownRule | None, ShownRule | None]]:
    """Rules that are not the same, or on one side only."""
    here, there = (ByName((rule.name, rule) for rule in rules) for rules in (ours, theirs))
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield here.get(name), there.get(name)


@dataclass(frozen=True, slots=True)
class EntityDifference:
    """Something that is not the same in two namespaces. None: it is not there."""

    entity: str = field(metadata=column("Entity"))
    kind: EntityKind = field(metadata=column("Kind"))
    what: str = field(metadata=column("What"))
    """`entity`; the name of a setting; `rule NAME`; or `access rule NAME`."""
    a: str | None = field(metadata=column("A"))
    b: str | None = field(metadata=column("B"))


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison."""

    name: str
    entities: int
    taken_at: float | None = field(metadata=AS_TIME)


@dataclass(frozen=True, slots=True)
class NamespaceDiff:
    """What `diff -o json` prints."""

    a: ComparedSide
    b: ComparedSide
    differences: tuple[EntityDifference, ...]
    ignored: int
    """Differences that --ignore left out."""

    @published
    def same(self) -> bool:
        """Nothing differs that was not ignored."""
        return not self.differences

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.differences else Exit.OK

    def summary(self) -> str:
        left_out = f" ({counted(self.ignored, 'difference')} ignored)" if self.ignored else ""
        if not self.differences:
            return f"{self.a.name} and {self.b.name} have the same entities, settings and rules{left_out}."
        found = counted(len(self.differences), "difference")
        entities = counted(len(Names(one.entity for one in self.differences)), "entity", "entities")
        return f"{found} in {entities}{left_out}: {self.a.name} (A), {self.b.name} (B)."


def compare(a: Contents, b: Contents, ignore: Sequence[str] = ()) -> NamespaceDiff:
    """Entities, settings, rules and rights of shared access rules that are not the same; messages are not compared.

    `ignore`: patterns of entities, or of an entity and what differs in it, `ENTITY:WHAT`; case does not matter.
    """
    found = list(_differences(a, b))
    kept = tuple(one for one in found if not any(_is_ignored(one, pattern) for pattern in ignore))
    first, second = (ComparedSide(side.namespace, len(side.entities), side.taken_at) for side in (a, b))
    return NamespaceDiff(first, second, kept, len(found) - len(kept))


def _is_ignored(one: EntityDifference, pattern: str) -> bool:
    entity, colon, what = pattern.partition(":")
    return name_matches(one.entity, entity) and (not colon or name_matches(one.what, what))


def _differences(a: Contents, b: Contents) -> Iterator[EntityDifference]:
    here, there = (by_path(side.entities) for side in (a, b))
    for path in sorted(here.keys() | there.keys()):
        ours, theirs = here.get(path), there.get(path)
        if ours is None or theirs is None or ours.kind is not theirs.kind:
            one = ours or theirs
            assert one is not None  # noqa: S101 - the path is of one of them
            kinds = (side.kind.value if side else None for side in (ours, theirs))
            yield EntityDifference(one.path, one.kind, "entity", *kinds)
            continue
        for name, *values in setting_differences(ours.kind, ours.settings, theirs.settings):
            yield EntityDifference(
                ours.path, ours.kind, setting_name(name), *(setting_text(name, value) for value in values)
            )
        for rules in rule_differences(ours.rules, theirs.rules):
            name = next(rule.name for rule in rules if rule)
            yield EntityDifference(ours.path, ours.kind, f"rule {name}", *map(_rule_text, rules))
        rights = [{rule.name: ", ".join(sorted(rule.rights)) for rule in side.access_rules} for side in (ours, theirs)]
        for name in sorted(rights[0] | rights[1]):
            if rights[0].get(name) != rights[1].get(name):
                yield EntityDifference(
                    ours.path, ours.kind, f"access rule {name}", *(side.get(name) for side in rights)
                )


def _rule_text(rule: ShownRule | None) -> str | None:
    return None if rule is None else rule.filter + (f"; {rule.action}" if rule.action else "")


# The entities of two namespaces compared: what has to be created on the second one so that it can take the place of
# the first, what the tiers make different, and what stands in the way.
#
# What exists on the second namespace is never changed: it may be in use.

PLAN_VERSION = 1
LEAST_PREMIUM_KILOBYTES = 1024
STANDARD_KILOBYTES = 256
UNFINISHED = "Not yet evacuated by sbpair"
"""User metadata of what was created until all messages are there, so that a run after a crash knows its own entities: a
subscription may lack rules, and what a queue takes for duplicates can only have come from an earlier run."""
DEFAULT_RULE = "$Default"
_NOT_BASIC = (
    "requires_session",
    "requires_duplicate_detection",
    "forward_to",
    "forward_dead_lettered_messages_to",
    "auto_delete_on_idle_seconds",
)
_MAY_DIFFER = ("status", "max_message_size_in_kilobytes", "support_ordering")
"""Settings that are not compared: the first is not copied, the others are the tier's or follow from partitioning."""


class Action(StrEnum):
    CREATE = "create"
    FINISH = "finish"
    """It was created by a run that ended before all was moved."""
    KEEP = "keep"
    """It exists; what is different is in the notes, and stays."""
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class EntityStep:
    """What becomes of one entity on the second namespace."""

    action: Action
    kind: EntityKind
    path: str
    settings: EntitySettings = field(metadata=HIDDEN)
    """What it is created with; otherwise what it should be."""
    rules: tuple[RuleFacts, ...] = field(default=(), metadata=HIDDEN)
    notes: tuple[str, ...] = ()


def plan_entities(
    source: Sequence[EntityFacts],
    target: Sequence[EntityFacts],
    target_tier: Tier | None,
    *,
    despite_duplicate_detection: bool = False,
    follows: bool = False,
) -> tuple[EntityStep, ...]:
    """A step for each entity of `source` (with rules), those first that others need: topics before subscriptions, and
    what is forwarded to before what forwards.

    `follows`: messages come while they are moved. `despite_duplicate_detection`: queues that were there before may drop
    a message whose id they got from elsewhere.
    """
    there = by_path(target)
    steps = [_step(one, there.get(one.path), target_tier, despite_duplicate_detection, follows) for one in source]
    return tuple(_in_order(steps, present=set(there)))


def _step(
    one: EntityFacts, there: EntityFacts | None, target_tier: Tier | None, despite: bool, follows: bool
) -> EntityStep:
    action, (settings, notes, obstacles) = Action.CREATE, _fitted(one, target_tier)
    if one.access_rules:
        notes.append(f"its own access rules are not copied, nor their keys: {', '.join(map(str, one.access_rules))}")
    if there is None:
        if settings.status is not EntityStatus.ACTIVE:
            notes.append(f"created active; it is {settings.status.value} at the source")
        settings = replace(settings, status=EntityStatus.ACTIVE)
    elif there.kind is not one.kind:
        obstacles, notes = [f"it is a {there.kind.value} there, and a {one.kind.value} here"], []
    elif there.settings.user_metadata == UNFINISHED:
        action, obstacles = Action.FINISH, []
    else:
        action, obstacles = Action.KEEP, list(_obstacles(one, there, despite, follows))
        notes = [*_setting_notes(one.kind, settings, there.settings), *_rule_differences(one, there)]
    action = Action.CONFLICT if obstacles else action
    return EntityStep(action, one.kind, one.path, settings, one.rules, (*obstacles, *notes))


def as_planned(steps: Iterable[EntityStep]) -> list[dict[str, Any]]:
    """The steps as a plan file keeps them. What a run after a crash finishes is what the first one was to create."""
    return [_planned(step) for step in sorted(steps, key=lambda step: step.path.lower())]


def _planned(step: EntityStep, *, created: bool = False) -> dict[str, Any]:
    """A step as it stands in a plan. `created`: as it stood there if an earlier run of the plan has created it."""
    if step.action in (Action.CREATE, Action.FINISH) or created:
        settings = replace(step.settings, status=EntityStatus.ACTIVE)
        step = EntityStep(Action.CREATE, step.kind, step.path, settings, step.rules)
    whole = to_plain(step) | {"settings": to_plain(step.settings), "rules": to_plain(step.rules)}
    plain: dict[str, Any] = json.loads(json.dumps(whole, default=str))
    return plain


def changed_since(planned: Sequence[Mapping[str, Any]], steps: Iterable[EntityStep]) -> tuple[str, ...]:
    """Paths of the entities for which something else would be done now than a plan says. What is there just as the plan
    creates it was created by an earlier run of it, which may have ended on its very last step."""
    now, before = by_path(steps), ByName((str(one.get("path")), one) for one in planned)
    differ = (path for path in {**now, **before} if not _still_meant(before.get(path), now.get(path)))
    return tuple(now[path].path if path in now else str(before[path]["path"]) for path in differ)


def _still_meant(planned: Mapping[str, Any] | None, step: EntityStep | None) -> bool:
    if planned is None or step is None:
        return False
    as_it_should_be = step.action is Action.KEEP and not step.notes
    return planned in (_planned(step), _planned(step, created=True) if as_it_should_be else None)


def _obstacles(one: EntityFacts, there: EntityFacts, despite: bool, follows: bool) -> Iterable[str]:
    """Why the messages of an entity cannot go to the one of its name."""
    if one.kind is not EntityKind.TOPIC and one.settings.requires_session != there.settings.requires_session:
        yield f"it {'requires' if there.settings.requires_session else 'does not require'} sessions there"
    if one.kind is EntityKind.SUBSCRIPTION:
        return
    if not same_name(one.settings.forward_to or "", there.settings.forward_to or ""):
        to, ours = there.settings.forward_to or "nothing", one.settings.forward_to or "nothing"
        yield f"it forwards to {to} there, to {ours} here"
    comes = follows or one.counts.total > 0
    if comes and there.settings.status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
        yield f"it is {there.settings.status.value} there"
    if comes and there.settings.requires_duplicate_detection and not despite:
        yield (
            "it detects duplicates there, and would drop a message whose MessageId it has got from elsewhere "
            "(--despite-duplicate-detection allows it)"
        )


def _setting_notes(kind: EntityKind, wanted: EntitySettings, found: EntitySettings) -> Iterable[str]:
    for name, ours, theirs in setting_differences(kind, wanted, found):
        if name not in _MAY_DIFFER:
            yield f"{setting_name(name)} is {setting_text(name, theirs)} there, {setting_text(name, ours)} here"


def _rule_differences(one: EntityFacts, there: EntityFacts) -> Iterable[str]:
    for ours, theirs in rule_differences(map(comparable, one.rules), map(comparable, there.rules)):
        if ours is None or theirs is None:
            yield f"rule {ours.name} is missing there" if ours else f"rule {theirs.name if theirs else ''} is not here"
        else:
            yield f"rule {ours.name} is another one there"


def _fitted(one: EntityFacts, target_tier: Tier | None) -> tuple[EntitySettings, list[str], list[str]]:
    """The settings as the second namespace's tier takes them, what had to be changed for it, and what cannot be."""
    settings, notes, obstacles = one.settings, [], []
    change: dict[str, Any] = {}
    size = settings.max_size_in_megabytes
    if target_tier is Tier.PREMIUM and settings.enable_partitioning:
        change["enable_partitioning"] = False
        size = _size_for(Tier.PREMIUM, size * PARTITION_COUNT)
        notes.append(f"not partitioned: Premium has no partitioned entities; one of {size:,} MB instead")
    if target_tier is Tier.PREMIUM and settings.enable_express:
        change["enable_express"] = False
        notes.append("not express: Premium has no express entities")
    if one.kind is not EntityKind.SUBSCRIPTION and target_tier is not None:
        change["max_size_in_megabytes"] = allowed = _size_for(target_tier, size)
        if allowed < size:
            notes.append(f"at most {allowed:,} MB on {target_tier.value} instead of {size:,} MB")
        change["max_message_size_in_kilobytes"] = _message_size(settings, target_tier, notes)
    if target_tier is Tier.BASIC:
        if one.kind is not EntityKind.QUEUE:
            obstacles.append("Basic has no topics")
        obstacles += [f"Basic has no {setting_name(name)}" for name in _NOT_BASIC if getattr(settings, name)]
    return replace(settings, **change), notes, obstacles


def _size_for(tier: Tier, megabytes: int) -> int:
    """The smallest size of the tier that is enough; its largest if none is."""
    return next((size for size in ENTITY_SIZES_MEGABYTES[tier] if size >= megabytes), ENTITY_SIZES_MEGABYTES[tier][-1])


def _message_size(settings: EntitySettings, tier: Tier, notes: list[str]) -> int | None:
    size = settings.max_message_size_in_kilobytes
    if size is None:
        return None
    if tier is Tier.PREMIUM:
        return size if size >= LEAST_PREMIUM_KILOBYTES else None
    if size > STANDARD_KILOBYTES:
        notes.append(f"messages above {STANDARD_KILOBYTES} KB cannot be moved to {tier.value}, and stay")
    return None


def _in_order(steps: Sequence[EntityStep], present: set[str]) -> Iterable[EntityStep]:
    """Each step after those it needs; in a circle of forwarding, which the service would refuse, as they come."""
    waiting = sorted(steps, key=lambda step: (step.kind is EntityKind.SUBSCRIPTION, step.path.lower()))
    done = set(present)
    while waiting:
        index = next((at for at, step in enumerate(waiting) if _needs(step) <= done), 0)
        step = waiting.pop(index)
        done.add(step.path.lower())
        yield step


def _needs(step: EntityStep) -> AbstractSet[str]:
    targets = (step.settings.forward_to, step.settings.forward_dead_lettered_messages_to)
    needed = Names(target for target in targets if target and not same_name(target, step.path))
    below = subscription_of(step.path)
    return needed | Names(below[:1] if below is not None else ())


# Where the messages of each entity go.

NOT_ASKED_FOR = "excluded"
SET_ACTIVE = "set it to Active"
"""How a reason ends that is gone once the entity has another status."""


class DeadLettersTo(StrEnum):
    """Where dead letters go."""

    HOLD = "hold"
    """Into a queue of their own, where no consumer takes them."""
    RESUBMIT = "resubmit"
    """To the queue of their name, as if sent again."""
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class MailboxMove:
    """The messages of a queue or subscription, or its dead letters, where they go, and how many went."""

    entity: str
    dead_letter: bool
    to: str
    held: bool = field(metadata=HIDDEN)
    """`to` is a queue that is there for them only."""
    counted: int
    """How many the service counted when this run began, scheduled ones too."""
    by_session: bool = field(default=False, metadata=HIDDEN)
    """They are handed out by session, so a queue that holds them has to do that as well."""
    moved: int = 0
    """In this run."""
    accepted: int = 0
    """In all runs of this ledger."""
    there_now: int | None = None
    """What `to` counts at the end, from wherever; fewer than were accepted if consumers take them. None: not
    counted."""

    @property
    def mailbox(self) -> str:
        """Path of the queue or subscription, or of its dead letters."""
        return dead_letter_path(self.entity) if self.dead_letter else self.entity


@dataclass(frozen=True, slots=True)
class LeftThere:
    """Messages that are not moved, and why."""

    entity: str = field(metadata=column("Left in"))
    """Path of the queue or subscription, or of its dead letters."""
    messages: int = field(metadata=column("Messages", counts=True))
    """0: they could not be counted."""
    reason: str = field(metadata=column("Why"))


def plan_moves(
    source: Iterable[EntityFacts], steps: ByName[EntityStep], label: str, dead_letters: DeadLettersTo
) -> tuple[tuple[MailboxMove, ...], tuple[LeftThere, ...]]:
    """What is moved from each entity of the namespace `label`, and what is not."""
    moves: list[MailboxMove] = []
    left: list[LeftThere] = []
    for mailbox in source:
        counts = mailbox.counts
        if on_the_way := counts.transfer + counts.transfer_dead_letter:
            left.append(LeftThere(mailbox.path, on_the_way, "on their way to where the entity forwards"))
        step = steps.get(mailbox.path)
        for dead_letter, number in ((False, counts.active + counts.scheduled), (True, counts.dead_letter)):
            if dead_letter and mailbox.kind is EntityKind.TOPIC:
                continue  # what is scheduled is all that it holds
            why = _why_left(mailbox, step, dead_letter, dead_letters)
            if why is None:
                to = _destination(mailbox, label, dead_letter, dead_letters)
                held = not same_name(to, mailbox.path)
                by_session = mailbox.settings.requires_session and not dead_letter
                moves.append(MailboxMove(mailbox.path, dead_letter, to, held, number, by_session))
            elif number:
                left.append(LeftThere(dead_letter_path(mailbox.path) if dead_letter else mailbox.path, number, why))
    return tuple(moves), tuple(left)


def _why_left(one: EntityFacts, step: EntityStep | None, dead_letter: bool, dead_letters: DeadLettersTo) -> str | None:
    if step is None:
        return NOT_ASKED_FOR
    if one.settings.status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED, EntityStatus.SEND_DISABLED):
        return f"it is {one.settings.status.value}, so that it cannot be browsed or received from; {SET_ACTIVE}"
    if dead_letter:
        return "dead letters were to be left" if dead_letters is DeadLettersTo.LEAVE else None
    if one.settings.forward_to:
        return f"forwarded by the service to {one.settings.forward_to}"
    return None


def _destination(one: EntityFacts, label: str, dead_letter: bool, dead_letters: DeadLettersTo) -> str:
    """A subscription cannot be sent to, and its topic would give every subscription a copy: such messages are held."""
    below = subscription_of(one.path)
    if below is None and (not dead_letter or dead_letters is DeadLettersTo.RESUBMIT):
        return one.path
    kind, name = ("queues", one.path) if below is None else ("topics", "/".join(below))
    return f"{_HELD}/{label}/{kind}/{name}{'/dead-letters' if dead_letter else ''}"


def is_holding(path: str, label: str) -> bool:
    """Whether a queue is there for messages of the namespace `label` that have no other place."""
    return path.lower().startswith(f"{_HELD}/{label}/".lower())


def held_for(path: str, label: str) -> str | None:
    """The subscription for which such a queue holds messages; None: it holds dead letters."""
    topic, _, name = path[len(f"{_HELD}/{label}/topics/") :].rpartition("/")
    topics = path.lower().startswith(f"{_HELD}/{label}/topics/".lower())
    return subscription_path(topic, name) if topics and topic and name != "dead-letters" else None


_HELD = "evacuated"
HOLDING_PREFIX = f"{_HELD}/"
"""How the path of a queue begins where an evacuation holds messages."""


def holding_settings(tier: Tier | None, *, by_session: bool) -> EntitySettings:
    """A queue where messages wait for somebody to decide: as large as can be, and none is dropped for its age."""
    return EntitySettings(
        max_size_in_megabytes=ENTITY_SIZES_MEGABYTES[tier][-1] if tier is not None else 1024,
        dead_lettering_on_message_expiration=True,
        requires_session=by_session,
    )
