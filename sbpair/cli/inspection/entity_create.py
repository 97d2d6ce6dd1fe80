"""`sbpair entity create`: a queue, topic, subscription or rule, with every setting that its kind has."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.asking import YesOption, go_ahead
from sbpair.cli.context import load_settings
from sbpair.cli.inspection.entity_changes import Action, Changed, DryRunOption, change_it, told
from sbpair.cli.inspection.entity_shown import (
    EntityArgument,
    existing,
    find_entity,
    rule_text,
    setting_name,
    setting_text,
    with_topology,
)
from sbpair.cli.options import Options, OptionSet, command
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, refuse_unnamed
from sbpair.core.durations import parse_duration
from sbpair.core.entities import (
    CORRELATION_FIELDS,
    SETTINGS_OF,
    EntityKind,
    EntitySettings,
    RuleFacts,
)
from sbpair.core.errors import EntityExistsError, UsageError
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.ports import Topology

_NEVER = "never"


@dataclass(frozen=True, slots=True)
class SettingOptions(OptionSet):
    """The settings of an entity, as options; what is not given is the service's default."""

    max_size: Annotated[
        int | None,
        typer.Option(
            "--max-size",
            metavar="MB",
            min=1,
            help="Size of a queue or topic: 1024 to 5120; Premium to 81920.",
            show_default=False,
        ),
    ] = None
    max_message_size: Annotated[
        int | None,
        typer.Option(
            "--max-message-size", metavar="KB", min=1, help="Largest message; Premium only.", show_default=False
        ),
    ] = None
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl", metavar="DURATION", help="Default time to live of messages, e.g. 14d; never.", show_default=False
        ),
    ] = None
    lock: Annotated[
        str | None,
        typer.Option("--lock", metavar="DURATION", help="Lock duration of a message, up to 5m.", show_default=False),
    ] = None
    max_deliveries: Annotated[
        int | None,
        typer.Option(
            "--max-deliveries",
            metavar="N",
            min=1,
            help="Deliveries before a message is dead-lettered.",
            show_default=False,
        ),
    ] = None
    sessions: Annotated[bool, typer.Option("--sessions", help="Messages are handed out by session.")] = False
    duplicate_detection: Annotated[
        str | None,
        typer.Option(
            "--duplicate-detection",
            metavar="DURATION",
            help="Drop messages whose MessageId came within this time, e.g. 10m.",
            show_default=False,
        ),
    ] = None
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="Partition the queue or topic; not on Premium.")
    ] = False
    express: Annotated[bool, typer.Option("--express", help="Keep messages in memory first; not on Premium.")] = False
    dead_letter_expired: Annotated[
        bool, typer.Option("--dead-letter-expired", help="Dead-letter messages whose time to live is over.")
    ] = False
    drop_filter_errors: Annotated[
        bool,
        typer.Option("--drop-filter-errors", help="Drop, not dead-letter, messages for which a rule's filter fails."),
    ] = False
    forward_to: Annotated[
        str | None,
        typer.Option(
            "--forward-to", metavar="ENTITY", help="Send every message on to this queue or topic.", show_default=False
        ),
    ] = None
    forward_dead_letters_to: Annotated[
        str | None,
        typer.Option(
            "--forward-dead-letters-to",
            metavar="ENTITY",
            help="Send dead letters on to this queue or topic.",
            show_default=False,
        ),
    ] = None
    auto_delete: Annotated[
        str | None,
        typer.Option(
            "--auto-delete",
            metavar="DURATION",
            help="Delete the entity when it was idle for so long; at least 5m.",
            show_default=False,
        ),
    ] = None
    unbatched: Annotated[bool, typer.Option("--unbatched", help="No batched operations of the service.")] = False
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="TEXT",
            help="A note that stays with the entity, up to 1,024 characters.",
            show_default=False,
        ),
    ] = None


_FIELDS = {
    "max_size": "max_size_in_megabytes",
    "max_message_size": "max_message_size_in_kilobytes",
    "ttl": "default_message_time_to_live_seconds",
    "lock": "lock_duration_seconds",
    "max_deliveries": "max_delivery_count",
    "sessions": "requires_session",
    "duplicate_detection": "duplicate_detection_history_time_window_seconds",
    "partitioned": "enable_partitioning",
    "express": "enable_express",
    "dead_letter_expired": "dead_lettering_on_message_expiration",
    "drop_filter_errors": "dead_lettering_on_filter_evaluation_exceptions",
    "forward_to": "forward_to",
    "forward_dead_letters_to": "forward_dead_lettered_messages_to",
    "auto_delete": "auto_delete_on_idle_seconds",
    "unbatched": "enable_batched_operations",
    "metadata": "user_metadata",
}
"""Option -> the setting it is about."""
_DURATIONS = ("ttl", "lock", "duplicate_detection", "auto_delete")
_SWITCH_OFF = ("drop_filter_errors", "unbatched")


@command(output="cli.inspection.entity_changes:Changed")
def create(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    topic: Annotated[bool, typer.Option("--topic", help="Create a topic; without it a queue.")] = False,
    given: SettingOptions,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="SQL", help="Of a rule: its condition. Default: every message."),
    ] = None,
    correlation: Annotated[
        list[str] | None,
        typer.Option(
            "--correlation",
            metavar="NAME=VALUE",
            help="Of a rule: a value that has to be equal, e.g. label=invoice or user.country=DE; repeatable.",
            show_default=False,
        ),
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", metavar="SQL", help="Of a rule: what it changes.", show_default=False)
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> CommandResult:
    """Create a queue, a topic (--topic), a subscription or a rule: the form of the name says which.

    A new subscription has the rule $Default, which takes every message. What exists already is left as it is, and
    refused. Needs Manage.

    \b
    Examples:
      sbpair entity create orders-parked --ttl 14d --dead-letter-expired --max-deliveries 20 --dry-run
      sbpair entity create contoso-weu:news --topic --duplicate-detection 10m --yes
      sbpair entity create news/Subscriptions/audit --lock 2m --sessions --yes
      sbpair entity create news/Subscriptions/audit/Rules/german --filter "country = 'DE'" --yes
    """
    settings = load_settings(options)
    place, rule = find_entity(settings, on, entity)
    if not dry_run:
        refuse_unnamed(options, place, yes=yes)
    if rule is not None:
        _refuse_settings(given, "a rule")
        if topic:
            raise UsageError(f"{entity!r} is a rule, not a topic. Nothing was changed.")
        return _create_rule(options, place, _rule(rule, filter_, correlation or (), action), dry_run=dry_run, yes=yes)
    if filter_ is not None or correlation or action is not None:
        raise UsageError(
            "--filter, --correlation and --action are of a rule. Nothing was changed.",
            hint="Name it TOPIC/Subscriptions/NAME/Rules/RULE.",
        )
    if topic and place.is_subscription:
        raise UsageError(f"{entity!r} is a subscription, not a topic. Nothing was changed.")
    kind = EntityKind.SUBSCRIPTION if place.is_subscription else EntityKind.TOPIC if topic else EntityKind.QUEUE
    wanted = _settings(given, kind)
    return _create(options, place, kind, wanted, dry_run=dry_run, yes=yes)


def _create(
    options: Options, place: EntityRef, kind: EntityKind, wanted: EntitySettings, *, dry_run: bool, yes: bool
) -> CommandResult:
    found = with_topology(options, place.access, lambda topology: topology.entity(place.path))
    if found is not None:
        raise EntityExistsError(
            f"There is a {found.kind.value} {place} already. Nothing was changed.",
            hint=f"See how it is set up: sbpair entity show {place.access.label}:{place.path}",
            entity=place.path,
        )
    named = [
        f"{setting_name(name)} {setting_text(name, value)}"
        for name in SETTINGS_OF[kind]
        if (value := getattr(wanted, name)) != getattr(EntitySettings(), name)
    ]
    detail = f"{kind.value}; {', '.join(named) or 'default settings'}"
    change = Changed(place.access.label, place.path, Action.CREATE, dry_run, True, detail)
    if dry_run:
        return told(change, f"{place} would be created ({detail}). Nothing was changed.")
    go_ahead(options, f"Create {place} ({detail})", yes=yes, state="Nothing was changed.")
    change_it(options, place, change, lambda topology: topology.create(kind, place.path, wanted))
    return told(change, f"{place} is created ({detail}).")


def _create_rule(options: Options, place: EntityRef, rule: RuleFacts, *, dry_run: bool, yes: bool) -> CommandResult:
    async def look(topology: "Topology") -> tuple[RuleFacts, ...]:
        return (await existing(topology, place)).rules

    names = [one.name for one in with_topology(options, place.access, look)]
    path = f"{place.path}/Rules/{rule.name}"
    if rule.name.lower() in (name.lower() for name in names):
        raise EntityExistsError(f"{place} has a rule {rule.name} already. Nothing was changed.", entity=place.path)
    detail = f"rule; {rule_text(rule)}" + (f"; {rule.action}" if rule.action else "")
    if "$Default" in names:
        detail += "; beside $Default, which takes every message"
    change = Changed(place.access.label, path, Action.CREATE, dry_run, True, detail)
    if dry_run:
        return told(change, f"Rule {rule.name} of {place} would be created ({detail}). Nothing was changed.")
    go_ahead(options, f"Create rule {rule.name} of {place} ({detail})", yes=yes, state="Nothing was changed.")
    change_it(options, place, change, lambda topology: topology.create_rule(place.path, rule))
    return told(change, f"Rule {rule.name} of {place} is created ({detail}).")


def _settings(given: SettingOptions, kind: EntityKind) -> EntitySettings:
    """The settings that the options describe.

    Raises:
        UsageError: one that its kind does not have, or a duration that is none.
    """
    values: dict[str, Any] = {}
    for option, value in _given(given):
        name = _FIELDS[option]
        if name not in SETTINGS_OF[kind]:
            raise UsageError(f"A {kind.value} has no --{option.replace('_', '-')}. Nothing was changed.")
        if option in _DURATIONS:
            values[name] = _seconds(option, value)
        else:
            values[name] = value if option not in _SWITCH_OFF else False
    if given.duplicate_detection is not None:
        values["requires_duplicate_detection"] = True
    return EntitySettings(**values)


def _given(given: SettingOptions) -> list[tuple[str, Any]]:
    found = ((one.name, getattr(given, one.name)) for one in fields(given))
    return [(name, value) for name, value in found if value not in (None, False)]


def _refuse_settings(given: SettingOptions, what: str) -> None:
    if others := _given(given):
        raise UsageError(f"{what.capitalize()} has no --{others[0][0].replace('_', '-')}. Nothing was changed.")


def _seconds(option: str, text: str) -> float | None:
    name = f"--{option.replace('_', '-')}"
    if text.lower() == _NEVER and option in ("ttl", "auto_delete"):
        return None
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message} Nothing was changed.") from None


def _rule(name: str, sql: str | None, correlation: list[str] | tuple[()], action: str | None) -> RuleFacts:
    """A rule as the options describe it.

    Raises:
        UsageError: both kinds of filter, or a value without a name.
    """
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
            raise UsageError(f"--correlation takes NAME=VALUE, not {text!r}. Nothing was changed.")
        if key.lower().startswith("user."):
            properties[key[len("user.") :]] = value
        elif key.lower() in CORRELATION_FIELDS:
            own[key.lower()] = value
        else:
            raise UsageError(
                f"--correlation: there is no {key!r} of a message. Nothing was changed.",
                hint=f"There is {', '.join(CORRELATION_FIELDS)}; an application property is user.NAME.",
            )
    return RuleFacts(
        name, None, correlation=tuple(own.items()), properties=tuple(sorted(properties.items())), action=action
    )
