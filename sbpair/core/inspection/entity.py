"""What `sbpair entity` shows of queues, topics, subscriptions and rules, and says of a change of one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sbpair.core.durations import format_duration
from sbpair.core.entities import SETTINGS_OF, AccessRule, EntityFacts, EntityKind, EntitySettings, RuleFacts, Values
from sbpair.core.prices import Forecast
from sbpair.core.serialization import HIDDEN, column, metric, to_plain
from sbpair.service import EntityStatus


@dataclass(frozen=True, slots=True)
class Listed:
    """A queue, topic or subscription in one line."""

    kind: EntityKind = field(metadata=column("Kind"))
    path: str = field(metadata=column("Entity"))
    status: str = field(metadata=column("Status"))
    active: int = field(metadata=column("Active", counts=True) | metric("sbpair_entity_active_messages"))
    """With deferred ones."""
    dead_letter: int = field(metadata=column("Dead", counts=True) | metric("sbpair_entity_dead_letter_messages"))
    scheduled: int = field(metadata=column("Scheduled", counts=True) | metric("sbpair_entity_scheduled_messages"))
    transfer: int = field(metadata=metric("sbpair_entity_transfer_messages"))
    """On their way to where the entity forwards, those that failed included."""
    transfer_dead_letter: int = field(metadata=metric("sbpair_entity_transfer_dead_letter_messages"))
    """Those of them that could not be forwarded."""
    size_in_bytes: int = field(metadata=metric("sbpair_entity_size_bytes"))
    requires_session: bool = False


LISTED_COLUMNS = ("path", "kind", "status", "active", "dead_letter", "scheduled")


@dataclass(frozen=True, slots=True)
class ListedEntities:
    """What `entity list -o json` prints."""

    namespace: str
    entities: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class LettersRead:
    """The dead letters of an entity that were read for their causes."""

    by_cause: Mapping[str, int] = field(default_factory=dict)
    """By the words of `sbpair explain`, of which there are few."""
    next_number: int = 1
    """The sequence number from which it goes on."""
    counted: int | None = None
    """What the namespace counted when all were read; None: not all were."""

    @property
    def messages(self) -> int:
        return sum(self.by_cause.values())


NOT_READ = "(not read)"
"""The cause of dead letters that there was no time or right to read."""


@dataclass(frozen=True, slots=True)
class ScrapedNamespace:
    """What monitoring shows of a namespace's entities at a time. The mappings are by the paths of those that could be
    read."""

    listed: ListedEntities
    left_out: int
    """Entities for which there was no room."""
    taken_at: float
    """UTC epoch seconds."""
    oldest_age_seconds: Mapping[str, float]
    """Age of an entity's first message that is not scheduled."""
    sessions: Mapping[str, int]
    """Sessions that hold messages or a state."""
    letters: Mapping[str, LettersRead]
    used: Forecast
    """What reading all this has used."""

    def causes(self, entity: Listed) -> Mapping[str, int]:
        """An entity's dead letters by cause, as many as the namespace counts."""
        known = self.letters.get(entity.path, LettersRead())
        unread = entity.dead_letter - known.messages
        return {**known.by_cause, **({NOT_READ: unread} if unread > 0 else {})}

    def figures(self) -> "ScrapeFigures":
        with_sessions = sum(1 for one in self.listed.entities if one.requires_session and one.active)
        asked = sum(1 for one in self.listed.entities if one.active and one.path in self.sessions)
        return ScrapeFigures(1, len(self.listed.entities) + self.left_out, self.left_out, with_sessions - asked)

    def figures_of(self, entity: Listed) -> "EntityFigures":
        enabled = int(entity.status == EntityStatus.ACTIVE.value)
        sessions = self.sessions.get(entity.path, 0 if entity.requires_session and not entity.active else None)
        return EntityFigures(enabled, self.oldest_age_seconds.get(entity.path), self.causes(entity), sessions)


@dataclass(frozen=True, slots=True)
class ScrapeFigures:
    """The samples of a namespace that are not those of an entity."""

    up: int = field(metadata=metric("sbpair_entities_up"))
    entities: int | None = field(default=None, metadata=metric("sbpair_entities"))
    left_out: int | None = field(default=None, metadata=metric("sbpair_entities_left_out"))
    sessions_left_out: int | None = field(default=None, metadata=metric("sbpair_entities_sessions_not_read"))


@dataclass(frozen=True, slots=True)
class EntityFigures:
    """The samples of an entity that are not in `Listed`."""

    enabled: int = field(metadata=metric("sbpair_entity_enabled"))
    oldest_age_seconds: float | None = field(metadata=metric("sbpair_entity_oldest_age_seconds"))
    causes: Mapping[str, int] = field(metadata=metric("sbpair_entity_dead_letter_cause_messages", label="cause"))
    sessions: int | None = field(metadata=metric("sbpair_entity_sessions"))


@dataclass(frozen=True, slots=True)
class ShownRule:
    """A rule, its filter and action as text."""

    name: str = field(metadata=column("Rule"))
    filter: str = field(metadata=column("Filter"))
    action: str | None = field(metadata=column("Action"))


@dataclass(frozen=True, slots=True)
class ShownEntity:
    """What `entity show -o json` prints. `settings`: those that its kind has, by their names; null is never or none."""

    namespace: str
    entity: Listed
    settings: Mapping[str, Any]
    rules: tuple[ShownRule, ...]
    access_rules: tuple[AccessRule, ...]
    """Its own shared access rules, without keys; those of the namespace are not among them."""


def listed(facts: EntityFacts) -> Listed:
    """An entity in one line."""
    counts = facts.counts
    return Listed(
        facts.kind,
        facts.path,
        facts.settings.status.value,
        counts.active,
        counts.dead_letter,
        counts.scheduled,
        counts.transfer + counts.transfer_dead_letter,
        counts.transfer_dead_letter,
        facts.size_in_bytes,
        facts.settings.requires_session,
    )


def shown(namespace: str, facts: EntityFacts, rules: tuple[RuleFacts, ...]) -> ShownEntity:
    settings = {name: getattr(facts.settings, name) for name in SETTINGS_OF[facts.kind]}
    return ShownEntity(namespace, listed(facts), to_plain(settings), tuple(map(rule_shown, rules)), facts.access_rules)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting or a count, for people."""

    setting: str = field(metadata=column("Setting"))
    value: str = field(metadata=column("Value"))


def setting_rows(found: ShownEntity) -> Iterator[SettingRow]:
    entity = found.entity
    counts = {"active": entity.active, "dead letters": entity.dead_letter, "scheduled": entity.scheduled}
    for name, count in (counts | {"in transfer": entity.transfer}).items():
        yield SettingRow(f"messages {name}", f"{count:,}")
    yield SettingRow("size in bytes", f"{entity.size_in_bytes:,}")
    for name, value in found.settings.items():
        yield SettingRow(setting_name(name), setting_text(name, value))


@dataclass(frozen=True, slots=True)
class AccessRuleRow:
    name: str = field(metadata=column("Name"))
    rights: str = field(metadata=column("Rights"))


def setting_name(name: str) -> str:
    """A setting's name for people, who see the unit in the value."""
    return name.removesuffix("_seconds").replace("_", " ")


def setting_text(name: str, value: Any) -> str:
    """A setting for people: durations with units, and words for what is not set."""
    if name.endswith("_seconds"):
        return format_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(getattr(value, "value", value))


def settings_text(kind: EntityKind, settings: EntitySettings) -> str:
    """The settings that are not the service's defaults, in one line."""
    named = [
        f"{setting_name(name)} {setting_text(name, value)}"
        for name in SETTINGS_OF[kind]
        if (value := getattr(settings, name)) != getattr(EntitySettings(), name)
    ]
    return ", ".join(named) or "default settings"


def rule_text(rule: RuleFacts) -> str:
    """The filter of a rule, as one condition."""
    if rule.sql is not None:
        return rule.sql + _parameters(rule.parameters)
    return " AND ".join([*_equal(rule.correlation), *(f"user.{text}" for text in _equal(rule.properties))])


def rule_shown(facts: RuleFacts) -> ShownRule:
    action = None if facts.action is None else facts.action + _parameters(facts.action_parameters)
    return ShownRule(facts.name, rule_text(facts), action)


def _parameters(values: Values) -> str:
    return f" ({', '.join(_equal(values))})" if values else ""


def _equal(values: Values) -> list[str]:
    return [f"{name} = {value!r}" for name, value in values]


# Changes.


class EntityAction(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    SET_STATUS = "set-status"


@dataclass(frozen=True, slots=True)
class Changed:
    """What `entity create`, `delete` and `set-status` print with -o json."""

    namespace: str
    entity: str = field(metadata=column("Entity"))
    action: EntityAction = field(metadata=column("Action"))
    dry_run: bool
    changed: bool
    """Something was changed, or would be."""
    detail: str = field(metadata=column("Detail"))
    sentence: str = field(metadata=HIDDEN)
    """What was done, or would be."""
    doing: str = field(metadata=HIDDEN)
    """The question before it is done, without its mark."""


CHANGED_COLUMNS = ("action", "entity", "detail")
STATUS_MEANS = {
    EntityStatus.ACTIVE: "messages can be sent and received",
    EntityStatus.DISABLED: "messages can be neither sent nor received",
    EntityStatus.SEND_DISABLED: "senders and browsing are rejected; messages can be received",
    EntityStatus.RECEIVE_DISABLED: "messages can be sent, but not received",
}
"""Source: "Suspend and reactivate messaging entities"."""


def has_status(kind: EntityKind, status: EntityStatus) -> bool:
    """Whether an entity of that kind can have that status."""
    if kind is EntityKind.QUEUE:
        return True
    return status is not (EntityStatus.RECEIVE_DISABLED if kind is EntityKind.TOPIC else EntityStatus.SEND_DISABLED)
