"""`sbpair entity list`, `show`, `create`, `delete` and `set-status`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, go_ahead_by_name
from sbpair.cli.context import call, load_settings, run_and_show, work_of
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.inspection.saved import configured_pairs
from sbpair.cli.options import Options, OptionSet, command
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, find_entity_ref, find_namespace, refuse_unnamed
from sbpair.core.durations import parse_duration
from sbpair.core.entities import SETTINGS_OF, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.inspection.entity import (
    CHANGED_COLUMNS,
    LISTED_COLUMNS,
    AccessRuleRow,
    Changed,
    Listed,
    SettingRow,
    ShownRule,
    setting_rows,
)
from sbpair.core.names import rule_of
from sbpair.core.outcome import Exit
from sbpair.core.redact import quoted
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, metrics_of, table_of
from sbpair.service import CORRELATION_FIELDS, EntityStatus
from sbpair.settings import Settings

if TYPE_CHECKING:
    from sbpair.connect import Verb

# The settings of an entity and the parts of a rule, as options of `sbpair entity create`.


def _takes(flag: str, what: str, text: str) -> Any:
    least = 1 if what in ("MB", "KB", "N") else None
    return typer.Option(flag, metavar=what, min=least, help=text, show_default=False)


def _switch(flag: str, text: str) -> Any:
    return typer.Option(flag, help=text)


@dataclass(frozen=True, slots=True)
class SettingOptions(OptionSet):
    """The settings of an entity, each under its name in `EntitySettings`; what is not given is the service's default. A
    switch sets what is not the default."""

    max_size_in_megabytes: Annotated[
        int | None, _takes("--max-size", "MB", "Size of a queue or topic: 1024 to 5120; Premium to 81920.")
    ] = None
    max_message_size_in_kilobytes: Annotated[
        int | None, _takes("--max-message-size", "KB", "Largest message; Premium only.")
    ] = None
    default_message_time_to_live_seconds: Annotated[
        str | None, _takes("--ttl", "DURATION", "Default time to live of messages, e.g. 14d; never.")
    ] = None
    lock_duration_seconds: Annotated[
        str | None, _takes("--lock", "DURATION", "Lock duration of a message, up to 5m.")
    ] = None
    max_delivery_count: Annotated[
        int | None, _takes("--max-deliveries", "N", "Deliveries before a message is dead-lettered.")
    ] = None
    requires_session: Annotated[bool, _switch("--sessions", "Messages are handed out by session.")] = False
    duplicate_detection_history_time_window_seconds: Annotated[
        str | None,
        _takes("--duplicate-detection", "DURATION", "Drop messages whose MessageId came within this time, e.g. 10m."),
    ] = None
    enable_partitioning: Annotated[bool, _switch("--partitioned", "Partition the queue or topic; not on Premium.")] = (
        False
    )
    enable_express: Annotated[bool, _switch("--express", "Keep messages in memory first; not on Premium.")] = False
    dead_lettering_on_message_expiration: Annotated[
        bool, _switch("--dead-letter-expired", "Dead-letter messages whose time to live is over.")
    ] = False
    dead_lettering_on_filter_evaluation_exceptions: Annotated[
        bool, _switch("--drop-filter-errors", "Drop, not dead-letter, messages for which a rule's filter fails.")
    ] = False
    forward_to: Annotated[
        str | None, _takes("--forward-to", "ENTITY", "Send every message on to this queue or topic.")
    ] = None
    forward_dead_lettered_messages_to: Annotated[
        str | None, _takes("--forward-dead-letters-to", "ENTITY", "Send dead letters on to this queue or topic.")
    ] = None
    auto_delete_on_idle_seconds: Annotated[
        str | None, _takes("--auto-delete", "DURATION", "Delete the entity when it was idle for so long; at least 5m.")
    ] = None
    enable_batched_operations: Annotated[bool, _switch("--unbatched", "No batched operations of the service.")] = False
    user_metadata: Annotated[
        str | None, _takes("--metadata", "TEXT", "A note that stays with the entity, up to 1,024 characters.")
    ] = None

    def given(self) -> Iterator[tuple[str, str, Any]]:
        """Name, flag and value of each that was given."""
        for one in fields(self):
            if (value := getattr(self, one.name)) not in (None, False):
                yield one.name, get_args(one.type)[1].default, value

    def of_kind(self, kind: EntityKind) -> EntitySettings:
        """The settings of an entity of that kind. Raises UsageError for one that its kind does not have, and for a
        duration that is none."""
        values: dict[str, Any] = {}
        for name, flag, value in self.given():
            usual = getattr(EntitySettings(), name)
            if name not in SETTINGS_OF[kind]:
                raise UsageError(f"A {kind.value} has no {flag}. Nothing was changed.")
            values[name] = not usual if value is True else value
            if name.endswith("_seconds"):
                values[name] = None if usual is None and value.lower() == "never" else _duration(flag, value)
        if self.duplicate_detection_history_time_window_seconds is not None:
            values["requires_duplicate_detection"] = True
        return EntitySettings(**values)

    def refuse_for_a_rule(self) -> None:
        """Raises UsageError where one was given: a rule has none of them."""
        for _, flag, _ in self.given():
            raise UsageError(f"A rule has no {flag}. Nothing was changed.")


def _duration(flag: str, text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message} Nothing was changed.") from None


def rule_of_options(name: str, sql: str | None, correlation: Sequence[str], action: str | None) -> RuleFacts:
    """A rule as the options describe it. Raises UsageError for both kinds of filter, or a value without a name."""
    if sql is not None and correlation:
        raise UsageError("A rule has --filter or --correlation, not both. Nothing was changed.")
    if not correlation:
        return RuleFacts(name, sql or "1=1", action=action)
    own: dict[str, str] = {}
    properties: dict[str, str] = {}
    for text in correlation:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--correlation needs NAME=VALUE, not {text!r}. Nothing was changed.")
        if key.lower().startswith("user."):
            properties[key[len("user.") :]] = value
        elif key.lower() in CORRELATION_FIELDS:
            own[key.lower()] = value
        else:
            raise UsageError(
                f"--correlation: there is no {quoted(key if value else text)} of a message. Nothing was changed.",
                hint=f"There is {', '.join(CORRELATION_FIELDS)}; an application property is user.NAME.",
            )
    return RuleFacts(
        name, None, correlation=tuple(own.items()), properties=tuple(sorted(properties.items())), action=action
    )


# The commands.

EntityArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="A queue, topic, TOPIC/Subscriptions/NAME or .../Rules/RULE; NAMESPACE:ENTITY for another namespace.",
        autocompletion=suggestions.entities,
    ),
]

DRY_RUN = "Only say what would be done."


@command(output="core.inspection.entity:ListedEntities", checks=True)
def list_entities(
    options: Options,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Only paths that match, e.g. 'orders*'; case does not matter.")
    ] = "*",
    *,
    on: NamespaceOptions,
    kind: Annotated[EntityKind | None, typer.Option(help="Only these.")] = None,
    with_messages: Annotated[bool, typer.Option(help="Only what holds messages.")] = False,
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
    found = call(
        options, access, operations.list_entities, operations.ListEntitiesRequest(pattern, kind, with_messages)
    )
    entities = found.entities
    holding = sum(bool(entity.active + entity.dead_letter + entity.scheduled + entity.transfer) for entity in entities)
    such = f" with a path like {quoted(pattern)}" if pattern != "*" else ""
    return CommandResult(
        found,
        (table_of(Listed, entities, show=LISTED_COLUMNS),),
        summary=f"{counted(len(entities), 'entity', 'entities')}{such} on {found.namespace}, {holding} with messages.",
        closing=not entities,
        metrics=tuple(
            metric
            for entity in entities
            for metric in metrics_of(entity, ("namespace", found.namespace), ("entity", entity.path))
        ),
        checks=tuple(
            MonitoredCheck(
                "entity",
                entity.path,
                Grade.OK if entity.status == EntityStatus.ACTIVE else Grade.WARNING,
                entity.status,
            )
            for entity in entities
        ),
    )


@command(output="core.inspection.entity:ShownEntity")
def show(options: Options, entity: EntityArgument, *, on: NamespaceOptions) -> CommandResult:
    """Show the settings, message counts and rules of a queue, topic or subscription.

    Reads only. Its own shared access rules are shown with their rights, never with a key. Needs Manage.

    \b
    Examples:
      sbpair entity show orders
      sbpair entity show news/Subscriptions/audit --namespace contoso-weu -o json
    """
    place, rule = find_entity(load_settings(options), on, entity)
    found = call(
        options, place.access, operations.show_entity, operations.ShowEntityRequest(place.path, rule, place.namespace)
    )
    kind = found.entity.kind
    tables = [table_of(SettingRow, setting_rows(found))]
    if kind is EntityKind.SUBSCRIPTION:
        tables.append(table_of(ShownRule, found.rules, "Rules"))
    if found.access_rules:
        access = [AccessRuleRow(known.name, ", ".join(known.rights)) for known in found.access_rules]
        tables.append(table_of(AccessRuleRow, access, "Shared access rules"))
    return CommandResult(found, tuple(tables), summary=f"{kind.value.capitalize()} {place}.")


@command(output="core.inspection.entity:Changed", asks=True, dry_run=DRY_RUN)
def create(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    topic: Annotated[bool, typer.Option(help="Create a topic; without it a queue.")] = False,
    given: SettingOptions,
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="SQL", help="Of a rule: its condition. Default: every message.")
    ] = None,
    correlation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Of a rule: a value that has to be equal, e.g. label=invoice or user.country=DE; repeatable.",
        ),
    ] = None,
    action: Annotated[str | None, typer.Option(metavar="SQL", help="Of a rule: what it changes.")] = None,
) -> CommandResult:
    """Create a queue, a topic (--topic), a subscription or a rule: the form of the name says which.

    A new subscription has the rule $Default, which matches every message. An existing entity is left unchanged and
    the command fails. Needs Manage.

    \b
    Examples:
      sbpair entity create orders-parked --ttl 14d --dead-letter-expired --max-deliveries 20 --dry-run
      sbpair entity create contoso-weu:news --topic --duplicate-detection 10m --yes
      sbpair entity create news/Subscriptions/audit --lock 2m --sessions --yes
      sbpair entity create news/Subscriptions/audit/Rules/german --filter "country = 'DE'" --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    refuse_unnamed(options, place)
    if rule is not None:
        given.refuse_for_a_rule()
        if topic:
            raise UsageError(f"{entity!r} is a rule, not a topic. Nothing was changed.")
        facts = rule_of_options(rule, filter_, correlation or (), action)
        creation = operations.CreateRuleRequest(rule=facts, **asked_of(options, place))
        return make_change(options, place, operations.create_rule, creation)
    if filter_ is not None or correlation or action is not None:
        raise UsageError(
            "--filter, --correlation and --action are of a rule. Nothing was changed.",
            hint="Name it TOPIC/Subscriptions/NAME/Rules/RULE.",
        )
    if topic and place.is_subscription:
        raise UsageError(f"{entity!r} is a subscription, not a topic. Nothing was changed.")
    kind = EntityKind.SUBSCRIPTION if place.is_subscription else EntityKind.TOPIC if topic else EntityKind.QUEUE
    request = operations.CreateEntityRequest(kind=kind, settings=given.of_kind(kind), **asked_of(options, place))
    return make_change(options, place, operations.create_entity, request)


class Status(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@command(output="core.inspection.entity:Changed", asks=True, dry_run=DRY_RUN)
def set_status(
    options: Options,
    entity: EntityArgument,
    status: Annotated[Status, typer.Argument(help="What it may do from now on.", case_sensitive=False)],
    *,
    on: NamespaceOptions,
) -> CommandResult:
    """Enable or disable a queue, topic or subscription for senders, receivers or both. Messages in it stay.

    Needs Manage.

    \b
    Examples:
      sbpair entity set-status orders SendDisabled --dry-run
      sbpair entity set-status contoso-weu:news/Subscriptions/audit ReceiveDisabled --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    if rule is not None:
        raise UsageError(f"{entity!r} is a rule, which has no status. Nothing was changed.")
    refuse_unnamed(options, place)
    request = operations.SetStatusRequest(status=EntityStatus(status.value), **asked_of(options, place))
    return make_change(options, place, operations.set_status, request)


@command(output="core.inspection.entity:Changed", asks=True, dry_run=DRY_RUN)
def delete(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    with_messages: Annotated[bool, typer.Option(help="Also if it holds messages, which are lost.")] = False,
) -> CommandResult:
    """Delete a queue, a topic with its subscriptions, a subscription or a rule. Asks for its name.

    What holds messages is refused without --with-messages: it is counted and browsed first, dead letters and the
    subscriptions of a topic too. What the configuration protects, and backlog queues that a configured pair counts on,
    are refused always. Needs Manage, and Listen to browse.

    \b
    Examples:
      sbpair entity delete orders-old --dry-run
      sbpair entity delete contoso-weu:news/Subscriptions/audit/Rules/all --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    refuse_unnamed(options, place)
    asked = asked_of(options, place)
    if rule is not None:
        deletion = operations.DeleteRuleRequest(rule=rule, **asked)
        return make_change(options, place, operations.delete_rule, deletion, by_name=rule)
    pairs = tuple(configured_pairs(settings)[0])
    request = operations.DeleteEntityRequest(with_messages=with_messages, pairs=pairs, **asked)
    return make_change(options, place, operations.delete_entity, request, by_name=place.path)


# What the commands share.


def find_entity(settings: Settings, on: NamespaceOptions, text: str) -> tuple[EntityRef, str | None]:
    """The entity that was named, and the rule of it, if it is one."""
    rule = rule_of(text)
    if rule is not None and (len(rule[1]) > MOST_RULE_CHARACTERS or not rule[1].isprintable()):
        raise UsageError(f"The name of a rule has up to {MOST_RULE_CHARACTERS} printable characters.")
    return find_entity_ref(settings, on, text if rule is None else rule[0]), None if rule is None else rule[1]


MOST_RULE_CHARACTERS = 50


def asked_of(options: Options, place: EntityRef) -> dict[str, Any]:
    """What every change is asked."""
    return {"path": place.path, "dry_run": options.dry_run, "log": operations_log(), "namespace": place.namespace}


def make_change(
    options: Options, place: EntityRef, verb: "Verb[Any, Changed]", request: Any, *, by_name: str = ""
) -> CommandResult:
    """Make a change, after it was looked at and agreed to; `by_name`: what has to be typed to agree."""
    state = "Nothing was deleted." if by_name else "Nothing was changed."
    if options.dry_run or not options.yes:
        with unchanged(state):
            change = call(options, place.access, verb, replace(request, dry_run=True))
        if options.dry_run or not change.changed:
            return _told(replace(change, dry_run=options.dry_run))
        if by_name:
            go_ahead_by_name(options, change.doing, by_name, state=state)
        else:
            go_ahead(options, change.doing, state=state)
    return run_and_show(options, work_of(place.access, verb, request), _told, nothing=state)


def _told(change: Changed) -> CommandResult:
    """A change, or what it would be."""
    return CommandResult(
        change,
        (table_of(Changed, [change], show=CHANGED_COLUMNS),),
        summary=change.sentence,
        exit=Exit.FINDINGS if change.dry_run and change.changed else Exit.OK,
        closing=True,
    )
