"""Queues, topics, subscriptions and rules: what a tier has, what a property may be, where messages go by themselves."""

from sbpair.emulator.laws.law import ANY_NUMBER, ByTier, Law, documented, fixed, limit, reported, rule
from sbpair.service import MAX_ENTITY_PATH_CHARACTERS, NEVER_SECONDS

_EXCEPTIONS = documented("Service Bus Resource Manager exceptions")
_TIERS = documented("Azure Service Bus pricing; Service Bus Resource Manager exceptions")
_REFERENCE = documented("QueueDescription, reference of the retired .NET library")
_BASIC_REFUSES = frozenset(
    {
        "requires_duplicate_detection",
        "duplicate_detection_history_time_window_seconds",
        "auto_delete_on_idle_seconds",
        "requires_session",
        "default_message_time_to_live_seconds",
        "enable_express",
        "forward_to",
        "forward_dead_lettered_messages_to",
    }
)


class EntityLaws:
    tier_has_topics = Law[bool](
        "The Basic tier has no topics.", _TIERS, "validation.py topic", strict=ByTier(False, True, True), lax=True
    )
    tier_has_transactions = Law[bool](
        "The Basic tier has no transactions.",
        documented("Overview of Service Bus transaction processing"),
        "endpoints.py Endpoints.attach",
        strict=ByTier(False, True, True),
        lax=True,
    )
    refused_features = Law[frozenset[str]](
        "The Basic tier refuses sessions, duplicate detection, forwarding, auto-delete, express and a time to live of "
        "one's own; the Premium tier refuses express and, in an ordinary namespace, partitioning.",
        _EXCEPTIONS,
        "validation.py _refuse_features",
        strict=ByTier(_BASIC_REFUSES, frozenset(), frozenset({"enable_express", "enable_partitioning"})),
        lax=frozenset(),
    )
    tier_ttl_seconds = Law[float | None](
        "A message of the Basic tier lives 14 days at most.",
        _EXCEPTIONS,
        "validation.py _with_tier_ttl",
        strict=ByTier(14 * 86_400.0, None, None),
        lax=None,
    )
    create_only = Law[tuple[str, ...]](
        "Sessions, duplicate detection and partitioning are chosen when an entity is made, and never changed.",
        documented("Service Bus FAQ; Service Bus Resource Manager exceptions"),
        "validation.py update",
        strict=("enable_partitioning", "requires_session", "requires_duplicate_detection"),
        lax=(),
    )
    min_lock_seconds = limit("A lock lasts 5 seconds at least.", _REFERENCE, "validation.py _check_times", 5.0, 0.001)
    max_lock_seconds = limit(
        "A lock lasts 5 minutes at most.",
        documented("Message transfers, locks, and settlement"),
        "validation.py _check_times",
        300.0,
        NEVER_SECONDS,
    )
    min_ttl_seconds = limit(
        "The time to live of an entity is 1 second at least.", _REFERENCE, "validation.py _check_times", 1.0, 0.001
    )
    min_auto_delete_seconds = limit(
        "An entity is deleted after 5 idle minutes at the earliest.",
        documented("Message expiration (time to live)"),
        "validation.py _check_times",
        300.0,
        0.001,
    )
    duplicate_window_seconds = Law[tuple[float, float]](
        "Duplicates are remembered for 20 seconds to 7 days.",
        documented("Duplicate detection"),
        "validation.py _check_duplicate_window",
        strict=(20.0, 7 * 86_400.0),
        lax=(0.001, NEVER_SECONDS),
    )
    max_delivery_count = Law[int](
        "The largest delivery count of an entity is any positive 32-bit number.",
        reported("Particular/NServiceBus.Transport.AzureServiceBus pull requests 688 and 1400; the portal takes 2,000"),
        "validation.py _check_delivery",
        strict=2**31 - 1,
        other=2000,
    )
    max_entity_path_characters = limit(
        "The path of a queue or topic has at most 260 characters.",
        documented("Service Bus quotas"),
        "validation.py entity_path",
        MAX_ENTITY_PATH_CHARACTERS,
        2**31 - 1,
    )
    max_child_name_characters = limit(
        "The name of a subscription or rule has at most 50 characters.",
        documented("Service Bus quotas"),
        "validation.py child_name",
        50,
        2**31 - 1,
    )


_FORWARDING = documented("Chaining Service Bus entities with autoforwarding")


class ForwardingLaws:
    max_forwarding_hops = limit(
        "A message is forwarded 4 times at most, and dead-lettered then.",
        _FORWARDING,
        "broker/forwarding.py Transfers.send",
        4,
        ANY_NUMBER,
    )
    forwarding_target_exists = rule(
        "An entity forwards to a queue or topic that exists when it is set.",
        _FORWARDING,
        "namespace.py Admission._target",
    )
    full_target_waits = Law[bool](
        "What a full destination does not take waits at its source until there is room.",
        _FORWARDING,
        "broker/forwarding.py Transfers._trying",
        strict=True,
        other=False,
        differs="counted as transfer messages; the document's dead-letter queue, where they wait, is the other form",
    )
    missing_target_dead_letters = fixed(
        "What a destination that is gone or disabled does not take is a transfer dead letter at its source.",
        _FORWARDING,
        "broker/forwarding.py Transfers._trying",
        differs="so it is here; users see the Premium tier deliver into SendDisabled queues (Azure/azure-service-bus "
        "issue 743)",
    )
    forwarded_entity_has_no_receiver = fixed(
        "An entity that forwards has no receivers.", _FORWARDING, "endpoints.py _attach_receiver"
    )
    sessions_do_not_forward = fixed(
        "Entities with sessions do not forward.", _FORWARDING, differs="they forward as others do"
    )
