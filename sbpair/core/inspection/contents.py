"""What a namespace has: its entities with their settings and rules, as a file keeps them, and two of those compared."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from sbpair.core.entities import SETTINGS_OF, AccessRule, Counts, EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.inspection.entity import Rule, rule_shown, setting_name, setting_text
from sbpair.core.outcome import Exit
from sbpair.core.serialization import AS_TIME, Document, column, published
from sbpair.core.words import counted
from sbpair.service import Tier

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
    rules: tuple[Rule, ...]
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


def comparable(rule: RuleFacts) -> Rule:
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


def rule_differences(ours: Iterable[Rule], theirs: Iterable[Rule]) -> Iterator[tuple[Rule | None, Rule | None]]:
    """Rules that are not the same, or on one side only."""
    here, there = ({rule.name.lower(): rule for rule in rules} for rules in (ours, theirs))
    for name in sorted(here | there):
        if here.get(name) != there.get(name):
            yield here.get(name), there.get(name)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same in two namespaces. None: it is not there."""

    entity: str = field(metadata=column("Entity"))
    kind: EntityKind = field(metadata=column("Kind"))
    what: str = field(metadata=column("What"))
    """`entity`; the name of a setting; `rule NAME`; or `access rule NAME`."""
    a: str | None = field(metadata=column("A"))
    b: str | None = field(metadata=column("B"))


@dataclass(frozen=True, slots=True)
class Described:
    """One side of a comparison."""

    name: str
    entities: int
    taken_at: float | None = field(metadata=AS_TIME)


@dataclass(frozen=True, slots=True)
class NamespaceDiff:
    """What `diff -o json` prints."""

    a: Described
    b: Described
    differences: tuple[Difference, ...]
    ignored: int
    """Differences that --ignore left out."""

    @published
    def same(self) -> bool:
        """Nothing differs that was not ignored."""
        return not self.differences

    @property
    def exit(self) -> Exit:
        return Exit.FINDINGS if self.differences else Exit.OK

    @property
    def summary(self) -> str:
        left_out = f" ({counted(self.ignored, 'difference')} ignored)" if self.ignored else ""
        if not self.differences:
            return f"{self.a.name} and {self.b.name} have the same entities, settings and rules{left_out}."
        found = counted(len(self.differences), "difference")
        entities = counted(len({one.entity.lower() for one in self.differences}), "entity", "entities")
        return f"{found} in {entities}{left_out}: {self.a.name} (A), {self.b.name} (B)."


def compare(a: Contents, b: Contents, ignore: Sequence[str] = ()) -> NamespaceDiff:
    """Entities, settings, rules and rights of shared access rules that are not the same; messages are not compared.

    `ignore`: patterns of entities, or of an entity and what differs in it, `ENTITY:WHAT`; case does not matter.
    """
    found = list(_differences(a, b))
    kept = tuple(one for one in found if not any(_is_ignored(one, pattern.lower()) for pattern in ignore))
    first, second = (Described(side.namespace, len(side.entities), side.taken_at) for side in (a, b))
    return NamespaceDiff(first, second, kept, len(found) - len(kept))


def _is_ignored(one: Difference, pattern: str) -> bool:
    entity, colon, what = pattern.partition(":")
    return fnmatchcase(one.entity.lower(), entity) and (not colon or fnmatchcase(one.what.lower(), what))


def _differences(a: Contents, b: Contents) -> Iterator[Difference]:
    here, there = ({one.path.lower(): one for one in side.entities} for side in (a, b))
    for path in sorted(here | there):
        ours, theirs = here.get(path), there.get(path)
        if ours is None or theirs is None or ours.kind is not theirs.kind:
            one = ours or theirs
            assert one is not None  # noqa: S101 - the path is of one of them
            kinds = (side.kind.value if side else None for side in (ours, theirs))
            yield Difference(one.path, one.kind, "entity", *kinds)
            continue
        for name, *values in setting_differences(ours.kind, ours.settings, theirs.settings):
            yield Difference(ours.path, ours.kind, setting_name(name), *(setting_text(name, value) for value in values))
        for rules in rule_differences(ours.rules, theirs.rules):
            name = next(rule.name for rule in rules if rule)
            yield Difference(ours.path, ours.kind, f"rule {name}", *map(_rule_text, rules))
        rights = [{rule.name: ", ".join(sorted(rule.rights)) for rule in side.access_rules} for side in (ours, theirs)]
        for name in sorted(rights[0] | rights[1]):
            if rights[0].get(name) != rights[1].get(name):
                yield Difference(ours.path, ours.kind, f"access rule {name}", *(side.get(name) for side in rights))


def _rule_text(rule: Rule | None) -> str | None:
    return None if rule is None else rule.filter + (f"; {rule.action}" if rule.action else "")
