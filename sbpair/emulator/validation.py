"""The rules a description must keep: names, ranges, what the tier refuses, what may be set only at creation.

Every check raises `EntityError` (HTTP 400, sub-code 40000) with the property and the bounds in the text; nothing here
touches the namespace. The rules are those of the service's tier limits and resource-manager error pages.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from sbpair.emulator.entities import (
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.emulator.filters import FilterSyntaxError, compile_action, compile_filter
from sbpair.emulator.laws import Laws
from sbpair.engine.errors import bad_request
from sbpair.service import NEVER_SECONDS

Sendable = QueueDescription | TopicDescription
Description = Sendable | SubscriptionDescription
AnyDescription = TypeVar("AnyDescription", bound=Description)

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RIGHTS = frozenset({"Manage", "Send", "Listen"})


def entity_path(laws: Laws, path: str) -> str:
    """The path as it will be stored: `\\` becomes `/`; letters, digits, `. - _` in segments, at most 260 characters."""
    path = path.replace("\\", "/")
    if not path:
        raise bad_request("The entity path must not be empty.")
    longest = laws.max_entity_path_characters
    if len(path) > longest:
        raise bad_request(f"The entity path of {len(path)} characters exceeds the limit of {longest} characters.")
    segments = path.split("/")
    if not all(_SEGMENT.fullmatch(segment) and segment.strip(".") for segment in segments):
        raise bad_request(
            f"'{path}' contains character(s) that is not allowed by Service Bus. Entity segments can contain only "
            "letters, numbers, periods (.), hyphens (-), and underscores (_)."
        )
    if any(segment.lower() == "subscriptions" for segment in segments):
        raise bad_request(f"'{path}' contains the reserved segment 'subscriptions'.")
    return path


def child_name(laws: Laws, name: str, *, kind: str) -> str:
    """A subscription's or rule's name: letters, digits, `. - _` (rules also `$`), at most 50 characters."""
    allowed = name[1:] if kind == "rule" and name.startswith("$") else name
    longest = laws.max_child_name_characters
    if not _NAME.fullmatch(allowed) or not allowed.strip(".") or len(name) > longest:
        raise bad_request(
            f"The {kind} name '{name}' is not valid: 1 to {longest} letters, numbers, periods (.), hyphens (-) and "
            "underscores (_)."
        )
    return name


def entity(description: Sendable, laws: Laws, named: Collection[str] = (), *, partitioned: bool = False) -> Sendable:
    """Check a queue's or topic's settings against the tier and fill in what the tier decides. Raises EntityError 400.

    `partitioned`: the namespace is a Premium one with partitions, which all its entities have too.
    """
    if isinstance(description, TopicDescription) and not laws.tier_has_topics:
        raise bad_request("Topics are not supported in the 'Basic' tier; use the 'Standard' or 'Premium' tier.")
    _refuse_features(description, laws, named, partitioned=partitioned)
    _check_message_size(description, laws, named)
    check_ranges(description, laws)
    _check_rules(description.authorization_rules, laws)
    return _sized(_with_tier_ttl(description, laws), laws)


def update(laws: Laws, old: AnyDescription, new: AnyDescription) -> AnyDescription:
    """Refuse a change of what may be set only at creation; a plain size on a partitioned entity is multiplied."""
    for name in laws.create_only:
        if getattr(old, name, None) != getattr(new, name, None):
            kind = type(old).__name__.removesuffix("Description")
            if name == "enable_partitioning":
                raise bad_request(f"Partitioning cannot be changed for {kind}.")
            raise bad_request(f"The value for the {_wire(name)} property of an existing {kind} cannot be changed.")
    return new


def rule(laws: Laws, description: RuleDescription) -> RuleDescription:
    """Check that filter and action can be compiled and keep their length limits. Raises EntityError 400."""
    condition = description.filter
    texts = [condition.expression] if isinstance(condition, SqlFilter) else []
    if description.action is not None:
        texts.append(description.action.expression)
    for text in texts:
        if len(text) > laws.max_sql_characters:
            raise bad_request(f"The expression exceeds the limit of {laws.max_sql_characters} characters.")
    if laws.empty_correlation_filter and condition == CorrelationFilter():
        raise bad_request("A correlation filter must compare at least one property.")
    try:
        compile_filter(condition)
        if description.action is not None:
            compile_action(description.action)
    except FilterSyntaxError as error:
        raise bad_request(str(error)) from error
    return description


def _refuse_features(description: Description, laws: Laws, named: Collection[str], *, partitioned: bool) -> None:
    defaults = type(description)()
    for name in sorted(laws.refused_features - ({"enable_partitioning"} if partitioned else set())):
        if not hasattr(description, name):
            continue
        value = getattr(description, name)
        if value == laws.tier_ttl_seconds and name == "default_message_time_to_live_seconds":
            continue
        spelled_out = name in named and name.endswith("_seconds")
        if value != getattr(defaults, name) or spelled_out:
            raise bad_request(
                f"The property '{_wire(name)}' can't be set when the namespace is using the '{laws.tier.value}' Tier."
            )


def _check_message_size(description: Sendable, laws: Laws, named: Collection[str]) -> None:
    size, ceiling = description.max_message_size_in_kilobytes, laws.max_message_kilobytes
    # What a description says by itself may be sent back: .NET's CreateQueueOptions(existing) clones it.
    own = laws.max_message_bytes // 1024
    if size not in (None, own) and ceiling is None and "max_message_size_in_kilobytes" in named:
        raise bad_request(
            f"The property 'MaxMessageSizeInKilobytes' can't be set when the namespace uses the '{laws.tier.value}' "
            "Tier."
        )
    if size is not None and ceiling is not None and not 1024 <= size <= ceiling:
        raise bad_request(f"'MaxMessageSizeInKilobytes' must lie between 1024 and {ceiling}, not {size}.")


def check_ranges(description: Description, laws: Laws) -> None:
    """Refuse what lies outside the limits of its setting; a setting that the kind of entity has not is none."""
    _range(description, "lock_duration_seconds", laws.min_lock_seconds, laws.max_lock_seconds)
    _range(description, "default_message_time_to_live_seconds", laws.min_ttl_seconds, None)
    _range(description, "auto_delete_on_idle_seconds", laws.min_auto_delete_seconds, None)
    _range(description, "duplicate_detection_history_time_window_seconds", *laws.duplicate_window_seconds)
    _range(description, "max_delivery_count", 1, laws.max_delivery_count)
    metadata = description.user_metadata
    if metadata is not None and len(metadata) > laws.max_user_metadata_characters:
        raise bad_request(f"'UserMetadata' exceeds {laws.max_user_metadata_characters} characters.")


def _range(description: Description, name: str, low: float, high: float | None) -> None:
    value = getattr(description, name, None)
    if value is None or low <= value <= (NEVER_SECONDS if high is None else high):
        return
    bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
    raise bad_request(f"The value {value:g} of the property '{_wire(name)}' is out of range: {bounds}.")


def _with_tier_ttl(description: Sendable, laws: Laws) -> Sendable:
    default = laws.tier_ttl_seconds
    if default is None or description.default_message_time_to_live_seconds is not None:
        return description
    return replace(description, default_message_time_to_live_seconds=default)


def _sized(description: Sendable, laws: Laws) -> Sendable:
    """The size as it reads back: one of the tier's sizes, times 16 when the entity is partitioned (Basic, Standard)."""
    allowed = laws.entity_sizes_megabytes
    size = description.max_size_in_megabytes
    factor = laws.partitioned_size_factor if description.enable_partitioning else 1
    if size not in allowed and size % factor == 0:
        size //= factor
    if size not in allowed:
        choices = ", ".join(str(choice) for choice in sorted(allowed))
        raise bad_request(f"'MaxSizeInMegabytes' must be one of {choices}, not {description.max_size_in_megabytes}.")
    kilobytes = description.max_message_size_in_kilobytes
    if kilobytes is None or laws.max_message_kilobytes is None:
        kilobytes = laws.max_message_bytes // 1024
    return replace(description, max_size_in_megabytes=size * factor, max_message_size_in_kilobytes=kilobytes)


def _check_rules(rules: Iterable[AuthorizationRule], laws: Laws) -> None:
    listed = list(rules)
    if len(listed) > laws.max_authorization_rules:
        raise bad_request(f"At most {laws.max_authorization_rules} authorization rules are allowed per entity.")
    names = [rule.name.lower() for rule in listed]
    if len(set(names)) != len(names):
        raise bad_request("The names of authorization rules must differ.")
    for one in listed:
        authorization_rule(laws, one)


def authorization_rule(laws: Laws, rule: AuthorizationRule) -> AuthorizationRule:
    """Check one shared access rule: name of 1 to 50 characters, known rights, Manage only with Send and Listen."""
    if not _NAME.fullmatch(rule.name) or len(rule.name) > 50:
        raise bad_request(f"The authorization rule name '{rule.name}' is not valid.")
    if not rule.rights or not rule.rights <= _RIGHTS:
        raise bad_request(f"The rights of '{rule.name}' must be out of Manage, Send and Listen.")
    if "Manage" in rule.rights and rule.rights != _RIGHTS and laws.manage_has_all_rights:
        raise bad_request(f"The rule '{rule.name}' has Manage, so it must have Send and Listen as well.")
    return rule


def _wire(name: str) -> str:
    """`max_delivery_count` as the XML spells it: `MaxDeliveryCount`; units are not part of the wire name."""
    return "".join(word.capitalize() for word in name.removesuffix("_seconds").split("_"))
