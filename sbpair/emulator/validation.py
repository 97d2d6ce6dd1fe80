"""The rules a description must keep: names, ranges, what the tier refuses, what may be set only at creation.

Every check raises `EntityError` (HTTP 400, sub-code 40000) with the property and the bounds in the text; nothing here
touches the namespace. The rules are those of the service's tier limits and resource-manager error pages.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TypeVar

from sbpair.emulator import limits
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
from sbpair.emulator.limits import LIMITS
from sbpair.engine.errors import bad_request
from sbpair.service import MAX_ENTITY_PATH_CHARACTERS, PARTITION_COUNT, Tier

Description = QueueDescription | TopicDescription | SubscriptionDescription
AnyDescription = TypeVar("AnyDescription", QueueDescription, TopicDescription, SubscriptionDescription)

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RIGHTS = frozenset({"Manage", "Send", "Listen"})
_CREATE_ONLY = ("enable_partitioning", "requires_session", "requires_duplicate_detection")


def entity_path(path: str) -> str:
    """The path as it will be stored: `\\` becomes `/`; letters, digits, `. - _` in segments, at most 260 characters."""
    path = path.replace("\\", "/")
    if not path:
        raise bad_request("The entity path must not be empty.")
    if len(path) > MAX_ENTITY_PATH_CHARACTERS:
        raise bad_request(
            f"The entity path of {len(path)} characters exceeds the limit of {MAX_ENTITY_PATH_CHARACTERS} characters."
        )
    segments = path.split("/")
    if not all(_SEGMENT.fullmatch(segment) and segment.strip(".") for segment in segments):
        raise bad_request(
            f"'{path}' contains character(s) that is not allowed by Service Bus. Entity segments can contain only "
            "letters, numbers, periods (.), hyphens (-), and underscores (_)."
        )
    if any(segment.lower() == "subscriptions" for segment in segments):
        raise bad_request(f"'{path}' contains the reserved segment 'subscriptions'.")
    return path


def child_name(name: str, *, kind: str) -> str:
    """A subscription's or rule's name: letters, digits, `. - _` (rules also `$`), at most 50 characters."""
    allowed = name[1:] if kind == "rule" and name.startswith("$") else name
    if not _NAME.fullmatch(allowed) or not allowed.strip(".") or len(name) > limits.MAX_SUBSCRIPTION_NAME_CHARACTERS:
        raise bad_request(
            f"The {kind} name '{name}' is not valid: 1 to {limits.MAX_SUBSCRIPTION_NAME_CHARACTERS} letters, numbers, "
            "periods (.), hyphens (-) and underscores (_)."
        )
    return name


def queue(
    description: QueueDescription, tier: Tier, named: Collection[str] = (), *, partitioned: bool = False
) -> QueueDescription:
    """Check a queue's settings against the tier and fill in what the tier decides. Raises EntityError 400.

    `partitioned`: the namespace is a Premium one with partitions, which all its entities have too.
    """
    _refuse_features(description, tier, named, partitioned=partitioned)
    _check_times(description)
    _check_duplicate_window(description)
    _check_delivery(description)
    _check_rules(description.authorization_rules)
    return _sized(_with_tier_ttl(description, tier), tier)


def topic(
    description: TopicDescription, tier: Tier, named: Collection[str] = (), *, partitioned: bool = False
) -> TopicDescription:
    """Check a topic's settings; the Basic tier has no topics at all."""
    if not LIMITS[tier].topics:
        raise bad_request("Topics are not supported in the 'Basic' tier; use the 'Standard' or 'Premium' tier.")
    _refuse_features(description, tier, named, partitioned=partitioned)
    _check_times(description)
    _check_duplicate_window(description)
    _check_rules(description.authorization_rules)
    return _sized(description, tier)


def subscription(description: SubscriptionDescription) -> SubscriptionDescription:
    """Check a subscription's settings."""
    _check_times(description)
    _check_delivery(description)
    return description


def update(old: AnyDescription, new: AnyDescription) -> AnyDescription:
    """Refuse a change of what may be set only at creation; a plain size on a partitioned entity is multiplied."""
    for name in _CREATE_ONLY:
        if getattr(old, name, None) != getattr(new, name, None):
            kind = type(old).__name__.removesuffix("Description")
            if name == "enable_partitioning":
                raise bad_request(f"Partitioning cannot be changed for {kind}.")
            raise bad_request(f"The value for the {_wire(name)} property of an existing {kind} cannot be changed.")
    return new


def rule(description: RuleDescription) -> RuleDescription:
    """Check that filter and action can be compiled and keep their length limits. Raises EntityError 400."""
    condition = description.filter
    texts = [condition.expression] if isinstance(condition, SqlFilter) else []
    if description.action is not None:
        texts.append(description.action.expression)
    for text in texts:
        if len(text) > limits.MAX_SQL_CHARACTERS:
            raise bad_request(f"The expression exceeds the limit of {limits.MAX_SQL_CHARACTERS} characters.")
    if isinstance(condition, CorrelationFilter) and condition == CorrelationFilter():
        raise bad_request("A correlation filter must compare at least one property.")
    try:
        compile_filter(condition)
        if description.action is not None:
            compile_action(description.action)
    except FilterSyntaxError as error:
        raise bad_request(str(error)) from error
    return description


def _refuse_features(description: Description, tier: Tier, named: Collection[str], *, partitioned: bool) -> None:
    defaults = type(description)()
    for name in sorted(LIMITS[tier].refused_features - ({"enable_partitioning"} if partitioned else set())):
        if not hasattr(description, name):
            continue
        value = getattr(description, name)
        if value == LIMITS[tier].default_ttl_seconds and name == "default_message_time_to_live_seconds":
            continue
        spelled_out = name in named and name.endswith("_seconds")
        if value != getattr(defaults, name) or spelled_out:
            raise bad_request(
                f"The property '{_wire(name)}' can't be set when the namespace is using the '{tier.value}' Tier."
            )
    size = getattr(description, "max_message_size_in_kilobytes", None)
    ceiling = LIMITS[tier].max_message_kilobytes
    # What a description says by itself may be sent back: .NET's CreateQueueOptions(existing) clones it.
    own = LIMITS[tier].max_message_bytes // 1024
    if size not in (None, own) and ceiling is None and "max_message_size_in_kilobytes" in named:
        raise bad_request(
            f"The property 'MaxMessageSizeInKilobytes' can't be set when the namespace uses the '{tier.value}' Tier."
        )
    if size is not None and ceiling is not None and not 1024 <= size <= ceiling:
        raise bad_request(f"'MaxMessageSizeInKilobytes' must lie between 1024 and {ceiling}, not {size}.")


def _check_times(description: Description) -> None:
    _range(description, "lock_duration_seconds", limits.MIN_LOCK_SECONDS, limits.MAX_LOCK_SECONDS)
    _range(description, "default_message_time_to_live_seconds", limits.MIN_TTL_SECONDS, None)
    _range(description, "auto_delete_on_idle_seconds", limits.MIN_AUTO_DELETE_SECONDS, None)
    metadata = description.user_metadata
    if metadata is not None and len(metadata) > limits.MAX_USER_METADATA_CHARACTERS:
        raise bad_request(f"'UserMetadata' exceeds {limits.MAX_USER_METADATA_CHARACTERS} characters.")


def _check_duplicate_window(description: QueueDescription | TopicDescription) -> None:
    _range(
        description,
        "duplicate_detection_history_time_window_seconds",
        limits.MIN_DUPLICATE_WINDOW_SECONDS,
        limits.MAX_DUPLICATE_WINDOW_SECONDS,
    )


def _check_delivery(description: QueueDescription | SubscriptionDescription) -> None:
    _range(description, "max_delivery_count", 1, limits.MAX_DELIVERY_COUNT)


def _range(description: Description, name: str, low: float, high: float | None) -> None:
    value = getattr(description, name, None)
    if value is None or low <= value <= (limits.MAX_TIME_SPAN_SECONDS if high is None else high):
        return
    bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
    raise bad_request(f"The value {value:g} of the property '{_wire(name)}' is out of range: {bounds}.")


def _with_tier_ttl(description: QueueDescription, tier: Tier) -> QueueDescription:
    default = LIMITS[tier].default_ttl_seconds
    if default is None or description.default_message_time_to_live_seconds is not None:
        return description
    return replace(description, default_message_time_to_live_seconds=default)


_Sized = TypeVar("_Sized", QueueDescription, TopicDescription)


def _sized(description: _Sized, tier: Tier) -> _Sized:
    """The size as it reads back: one of the tier's sizes, times 16 when the entity is partitioned (Basic, Standard)."""
    allowed = LIMITS[tier].entity_sizes_megabytes
    size = description.max_size_in_megabytes
    multiplied = description.enable_partitioning and tier is not Tier.PREMIUM
    if multiplied and size not in allowed and size % PARTITION_COUNT == 0:
        size //= PARTITION_COUNT
    if size not in allowed:
        choices = ", ".join(str(choice) for choice in sorted(allowed))
        raise bad_request(f"'MaxSizeInMegabytes' must be one of {choices}, not {description.max_size_in_megabytes}.")
    if multiplied:
        size *= PARTITION_COUNT
    kilobytes = description.max_message_size_in_kilobytes
    if kilobytes is None or LIMITS[tier].max_message_kilobytes is None:
        kilobytes = LIMITS[tier].max_message_bytes // 1024
    return replace(description, max_size_in_megabytes=size, max_message_size_in_kilobytes=kilobytes)


def _check_rules(rules: Iterable[AuthorizationRule]) -> None:
    listed = list(rules)
    if len(listed) > limits.MAX_AUTHORIZATION_RULES:
        raise bad_request(f"At most {limits.MAX_AUTHORIZATION_RULES} authorization rules are allowed per entity.")
    names = [rule.name.lower() for rule in listed]
    if len(set(names)) != len(names):
        raise bad_request("The names of authorization rules must differ.")
    for one in listed:
        authorization_rule(one)


def authorization_rule(rule: AuthorizationRule) -> AuthorizationRule:
    """Check one shared access rule: name of 1 to 50 characters, known rights, Manage only with Send and Listen."""
    if not _NAME.fullmatch(rule.name) or len(rule.name) > 50:
        raise bad_request(f"The authorization rule name '{rule.name}' is not valid.")
    if not rule.rights or not rule.rights <= _RIGHTS:
        raise bad_request(f"The rights of '{rule.name}' must be out of Manage, Send and Listen.")
    if "Manage" in rule.rights and rule.rights != _RIGHTS:
        raise bad_request(f"The rule '{rule.name}' has Manage, so it must have Send and Listen as well.")
    return rule


def _wire(name: str) -> str:
    """`max_delivery_count` as the XML spells it: `MaxDeliveryCount`; units are not part of the wire name."""
    return "".join(word.capitalize() for word in name.removesuffix("_seconds").split("_"))
