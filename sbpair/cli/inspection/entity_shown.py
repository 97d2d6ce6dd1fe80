"""`sbpair entity list` and `sbpair entity show`: what exists on a namespace, and how it is set up."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, run_async, stoppable, unchanged
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, find_entity_ref, find_namespace
from sbpair.core.durations import format_duration
from sbpair.core.entities import SETTINGS_OF, AccessRule, EntityFacts, EntityKind, RuleFacts, Values
from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.names import rule_of
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.access import NamespaceAccess
    from sbpair.ports import Topology
    from sbpair.settings import Settings

T = TypeVar("T")
EntityArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="A queue, topic, TOPIC/Subscriptions/NAME or .../Rules/RULE; NAMESPACE:ENTITY for another namespace.",
        autocompletion=suggestions.entities,
    ),
]


@dataclass(frozen=True, slots=True)
class Listed:
    """A queue, topic or subscription in one line."""

    kind: EntityKind
    path: str
    status: str
    active: int
    """With deferred ones."""
    dead_letter: int
    scheduled: int
    transfer: int
    """On their way to where the entity forwards, those that failed included."""
    size_in_bytes: int


@dataclass(frozen=True, slots=True)
class ListedEntities:
    """What `entity list -o json` prints."""

    namespace: str
    entities: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, its filter and action as text."""

    name: str
    filter: str
    action: str | None


@dataclass(frozen=True, slots=True)
class Shown:
    """What `entity show -o json` prints. `settings`: those that its kind has, by their names; null is never or none."""

    namespace: str
    entity: Listed
    settings: Mapping[str, Any]
    rules: tuple[Rule, ...]
    access_rules: tuple[AccessRule, ...]
    """Its own shared access rules, without keys; those of the namespace are not among them."""


COLUMNS = (
    Column("path", "Entity"),
    Column("kind", "Kind"),
    Column("status", "Status"),
    Column("active", "Active", right=True, counts=True),
    Column("dead_letter", "Dead", right=True, counts=True),
    Column("scheduled", "Scheduled", right=True, counts=True),
)


@command(output="cli.inspection.entity_shown:ListedEntities")
def list_entities(
    options: Options,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Only paths that match, e.g. 'orders*'; case does not matter.")
    ] = "*",
    *,
    on: NamespaceOptions,
    kind: Annotated[EntityKind | None, typer.Option("--kind", help="Only these.", show_default=False)] = None,
    with_messages: Annotated[bool, typer.Option("--with-messages", help="Only what holds messages.")] = False,
) -> CommandResult:
    """List the queues, topics and subscriptions of a namespace with their status and message counts.

    Reads only. A topic's own messages are scheduled ones. Needs Manage.

    \b
    Examples:
      sbpair entity list
      sbpair entity list 'news*' --kind subscription --side secondary
      sbpair entity list --namespace contoso-weu --with-messages -o json
    """
    access, _ = find_namespace(load_settings(options), on)

    async def work(topology: "Topology") -> list[EntityFacts]:
        return await topology.entities(rules=False)

    found = [
        one
        for one in with_topology(options, access, work)
        if fnmatchcase(one.path.lower(), pattern.lower())
        and kind in (None, one.kind)
        and (one.counts.total or not with_messages)
    ]
    found.sort(key=lambda one: one.path.lower())
    entities = tuple(map(listed, found))
    holding = sum(1 for one in found if one.counts.total)
    return CommandResult(
        "entity list",
        ListedEntities(access.label, entities),
        (Table("", COLUMNS, to_plain(entities)),),
        summary=f"{counted(len(entities), 'entity', 'entities')} on {access.label}, {holding} with messages.",
    )


@command(output="cli.inspection.entity_shown:Shown")
def show(options: Options, entity: EntityArgument, *, on: NamespaceOptions) -> CommandResult:
    """Show the settings, message counts and rules of a queue, topic or subscription.

    Reads only. Its own shared access rules are shown with their rights, never with a key. Needs Manage.

    \b
    Examples:
      sbpair entity show orders
      sbpair entity show news/Subscriptions/audit --namespace contoso-weu -o json
    """
    place, rule = find_entity(load_settings(options), on, entity)
    facts = with_topology(options, place.access, lambda topology: existing(topology, place))
    rules = tuple(_rule(one) for one in facts.rules if rule is None or one.name.lower() == rule.lower())
    if rule is not None and not rules:
        raise EntityNotFoundError(f"{place} has no rule {rule}.", entity=place.path)
    settings = {name: getattr(facts.settings, name) for name in SETTINGS_OF[facts.kind]}
    shown = Shown(place.access.label, listed(facts), to_plain(settings), rules, facts.access_rules)
    rows = [{"setting": setting_name(name), "value": setting_text(name, value)} for name, value in settings.items()]
    tables = [Table("", (Column("setting", "Setting"), Column("value", "Value")), [*_count_rows(facts), *rows])]
    if facts.kind is EntityKind.SUBSCRIPTION:
        columns = (Column("name", "Rule"), Column("filter", "Filter"), Column("action", "Action"))
        tables.append(Table("Rules", columns, to_plain(rules)))
    if facts.access_rules:
        access = [{"name": one.name, "rights": ", ".join(one.rights)} for one in facts.access_rules]
        tables.append(Table("Shared access rules", (Column("name", "Name"), Column("rights", "Rights")), access))
    return CommandResult("entity show", shown, tuple(tables), summary=f"{facts.kind.value.capitalize()} {place}.")


def _count_rows(facts: EntityFacts) -> list[dict[str, str]]:
    counts = facts.counts
    named = {"active": counts.active, "dead letters": counts.dead_letter, "scheduled": counts.scheduled}
    named["in transfer"] = counts.transfer + counts.transfer_dead_letter
    rows = [{"setting": f"messages {name}", "value": f"{count:,}"} for name, count in named.items()]
    return [*rows, {"setting": "size in bytes", "value": f"{facts.size_in_bytes:,}"}]


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


def rule_text(rule: RuleFacts) -> str:
    """The filter of a rule, as one condition."""
    if rule.sql is not None:
        given = ", ".join(f"{name} = {value!r}" for name, value in rule.parameters)
        return f"{rule.sql} ({given})" if given else rule.sql
    own = [f"{name} = {value!r}" for name, value in rule.correlation]
    return " AND ".join([*own, *(f"user.{name} = {value!r}" for name, value in rule.properties)])


def _rule(facts: RuleFacts) -> Rule:
    action = None if facts.action is None else facts.action + _parameters(facts.action_parameters)
    return Rule(facts.name, rule_text(facts), action)


def _parameters(values: Values) -> str:
    return f" ({', '.join(f'{name} = {value!r}' for name, value in values)})" if values else ""


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
        facts.size_in_bytes,
    )


# What the commands on entities share.


def find_entity(settings: "Settings", on: NamespaceOptions, text: str) -> tuple[EntityRef, str | None]:
    """The entity that was named, and the rule of it, if it is one.

    Raises:
        UsageError: no path of an entity.
    """
    rule = rule_of(text)
    if rule is not None and (len(rule[1]) > MOST_RULE_CHARACTERS or not rule[1].isprintable()):
        raise UsageError(f"The name of a rule has up to {MOST_RULE_CHARACTERS} printable characters.")
    return find_entity_ref(settings, on, text if rule is None else rule[0]), None if rule is None else rule[1]


MOST_RULE_CHARACTERS = 50


def with_topology(options: Options, access: "NamespaceAccess", work: "Callable[[Topology], Awaitable[T]]") -> T:
    """What `work` finds out about the entities of a namespace."""

    async def connected(stop: "asyncio.Event") -> T:
        from sbpair.connect import open_topology

        async def awaited() -> T:
            return await work(topology)

        async with open_topology(access) as topology:
            with unchanged():
                return await stoppable(stop, awaited())

    return run_async(options, connected)


async def existing(topology: "Topology", place: EntityRef) -> EntityFacts:
    """The entity of that path.

    Raises:
        EntityNotFoundError: there is none.
    """
    found = await topology.entity(place.path)
    if found is None:
        raise EntityNotFoundError(
            f"There is no entity {place.path} on {place.access.label}.",
            hint=f"List them: sbpair entity list --namespace {place.access.label}",
            entity=place.path,
        )
    return found
