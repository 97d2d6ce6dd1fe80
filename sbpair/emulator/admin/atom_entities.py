"""Queue, topic and subscription descriptions and their authorization rules, to and from XML.

The elements are written in the order of the service's data contracts, because readers built on them skip what comes
out of order. Reading follows the same leniency as the service: unknown and read-only elements are ignored.
"""

from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from sbpair.emulator.admin.atom_xml import COUNTS_NS, Node, child, child_text, local_name, node, text_node
from sbpair.emulator.admin.atom_xml import description as description_node
from sbpair.emulator.admin.fields import (
    FIELDS,
    RIGHTS,
    Description,
    Runtime,
    counts_of,
    facts_of,
    setting_from_text,
    setting_to_text,
)
from sbpair.emulator.entities import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.emulator.namespace import new_auth_rule
from sbpair.engine.errors import bad_request

FIRST_VERSION_WITH_MESSAGE_SIZE = "2021-05"
FIRST_VERSION_WITH_FILTER_COUNTS = "2024-05"
NEWEST_VERSION = "2024-05"

QUEUE_ORDER = (
    "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
    "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations "
    "SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo CreatedAt UpdatedAt "
    "AccessedAt UserMetadata SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning "
    "EntityAvailabilityStatus ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes"
)
TOPIC_ORDER = (
    "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow "
    "EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules "
    "Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails SubscriptionCount "
    "SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus "
    "EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes"
)
SUBSCRIPTION_ORDER = (
    "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
    "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status ForwardTo "
    "CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle "
    "EntityAvailabilityStatus"
)


@dataclass(frozen=True, slots=True)
class Style:
    """How one answer is written: the API version asked for, and the URL base put before forwarding targets."""

    forward_base: str
    api_version: str = NEWEST_VERSION


def describe(description: Description, runtime: Runtime, style: Style) -> Node:
    """The description element of an entity with its runtime facts."""
    known = _settings(description, style) | _runtime(description, runtime) | _kind_specific(description, runtime, style)
    tag, order = _tag_and_order(description)
    return description_node(tag, *(known[name] for name in order if name in known))


def read_settings(element: Element, kind: type[Description]) -> dict[str, object]:
    """The settings given in a description element; EntityError 40000 for a value that does not fit."""
    given = {}
    for field in FIELDS[kind]:
        text = child_text(element, field.element)
        if text is not None:
            given[field.attribute] = setting_from_text(field, text)
    return given


def read_authorization_rules(element: Element) -> tuple[AuthorizationRule, ...]:
    """The authorization rules of a queue or topic description; keys left out are made up, as the service does."""
    rules = child(element, "AuthorizationRules")
    return () if rules is None else tuple(_read_rule(rule) for rule in rules)


def _settings(description: Description, style: Style) -> dict[str, Node]:
    nodes = {}
    for field in FIELDS[type(description)]:
        text = setting_to_text(field, getattr(description, field.attribute), style.forward_base)
        if text is not None:
            nodes[field.element] = text_node(field.element, text)
    if style.api_version < FIRST_VERSION_WITH_MESSAGE_SIZE:
        nodes.pop("MaxMessageSizeInKilobytes", None)
    return nodes


def _runtime(description: Description, runtime: Runtime) -> dict[str, Node]:
    facts = facts_of(description, runtime)
    facts["EntityAvailabilityStatus"] = "Limited" if runtime.is_limited else "Available"
    if not isinstance(description, SubscriptionDescription):
        facts["IsAnonymousAccessible"] = False
    counts = (text_node(f"d2p1:{name}", number) for name, number in counts_of(runtime.counts).items())
    details = Node("CountDetails", tuple(counts), {"xmlns:d2p1": COUNTS_NS})
    return {name: text_node(name, value) for name, value in facts.items()} | {"CountDetails": details}


def _kind_specific(description: Description, runtime: Runtime, style: Style) -> dict[str, Node]:
    if isinstance(description, SubscriptionDescription):
        return {}
    nodes = {
        "AuthorizationRules": node("AuthorizationRules", *map(_write_rule, description.authorization_rules)),
    }
    if isinstance(description, QueueDescription):
        return nodes | {"SupportOrdering": text_node("SupportOrdering", not description.enable_partitioning)}
    nodes["EnableSubscriptionPartitioning"] = text_node("EnableSubscriptionPartitioning", False)
    if style.api_version >= FIRST_VERSION_WITH_FILTER_COUNTS:
        nodes["SqlFilterCount"] = text_node("SqlFilterCount", runtime.sql_filter_count)
        nodes["CorrelationFilterCount"] = text_node("CorrelationFilterCount", runtime.correlation_filter_count)
    return nodes


def _tag_and_order(description: Description) -> tuple[str, list[str]]:
    if isinstance(description, QueueDescription):
        return "QueueDescription", QUEUE_ORDER.split()
    if isinstance(description, TopicDescription):
        return "TopicDescription", TOPIC_ORDER.split()
    return "SubscriptionDescription", SUBSCRIPTION_ORDER.split()


def _write_rule(rule: AuthorizationRule) -> Node:
    times = {"CreatedTime": rule.created_time, "ModifiedTime": rule.modified_time}
    return Node(
        "AuthorizationRule",
        (
            text_node("ClaimType", "SharedAccessKey"),
            text_node("ClaimValue", "None"),
            node("Rights", *(text_node("AccessRights", right) for right in RIGHTS if right in rule.rights)),
            *(text_node(name, time) for name, time in times.items() if time is not None),
            text_node("KeyName", rule.name),
            text_node("PrimaryKey", rule.primary_key),
            text_node("SecondaryKey", rule.secondary_key),
        ),
        {"i:type": "SharedAccessAuthorizationRule"},
    )


def _read_rule(element: Element) -> AuthorizationRule:
    name = child_text(element, "KeyName")
    rights = child(element, "Rights")
    if local_name(element) != "AuthorizationRule" or not name or rights is None:
        raise bad_request("An authorization rule needs a key name and rights.")
    rule = new_auth_rule(name, [(right.text or "").strip() for right in rights])
    return replace(
        rule,
        primary_key=child_text(element, "PrimaryKey") or rule.primary_key,
        secondary_key=child_text(element, "SecondaryKey") or rule.secondary_key,
        created_time=child_text(element, "CreatedTime"),
        modified_time=child_text(element, "ModifiedTime"),
    )
