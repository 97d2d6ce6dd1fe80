"""Queues, topics, subscriptions, rules and partitions: what a tier has, what a property may be, where messages go; and
how large and how many anything may be.
"""

from collections.abc import Collection

from sbpair.emulator.laws.law import (
    ANY_NUMBER,
    ByTier,
    Law,
    documented,
    fixed,
    inferred,
    limit,
    reported,
    rule,
    tested,
    unknown,
)
from sbpair.service import (
    ENTITY_SIZES_MEGABYTES,
    MAX_ENTITY_PATH_CHARACTERS,
    MAX_MESSAGE_KILOBYTES,
    NEVER_SECONDS,
    PARTITION_COUNT,
    Tier,
)

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
        "The Basic tier has no topics.", _TIERS, "validation.py entity", strict=ByTier(False, True, True), lax=True
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
    min_lock_seconds = limit("A lock lasts 5 seconds at least.", _REFERENCE, "validation.py check_ranges", 5.0, 0.001)
    max_lock_seconds = limit(
        "A lock lasts 5 minutes at most.",
        documented("Message transfers, locks, and settlement"),
        "validation.py check_ranges",
        300.0,
        NEVER_SECONDS,
    )
    min_ttl_seconds = limit(
        "The time to live of an entity is 1 second at least.", _REFERENCE, "validation.py check_ranges", 1.0, 0.001
    )
    min_auto_delete_seconds = limit(
        "An entity is deleted after 5 idle minutes at the earliest.",
        documented("Message expiration (time to live)"),
        "validation.py check_ranges",
        300.0,
        0.001,
    )
    duplicate_window_seconds = Law[tuple[float, float]](
        "Duplicates are remembered for 20 seconds to 7 days.",
        documented("Duplicate detection"),
        "validation.py check_ranges",
        strict=(20.0, 7 * 86_400.0),
        lax=(0.001, NEVER_SECONDS),
    )
    max_delivery_count = Law[int](
        "The largest delivery count of an entity is any positive 32-bit number.",
        reported("Particular/NServiceBus.Transport.AzureServiceBus pull requests 688 and 1400; the portal takes 2,000"),
        "validation.py check_ranges",
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


_PARTITIONED = documented("Partitioned queues and topics")
_PREMIUM = documented("Enable partitioning in Azure Service Bus")


class PartitionLaws:
    partitioned_batch_key = rule(
        "A batch to a partitioned entity is refused if its messages have distinct session ids or partition keys.",
        reported(
            "Azure/amqpnetlite issue 120, JasperFx/wolverine issue 2000; Enable partitioning in Azure Service Bus"
        ),
        "broker/partitions.py check_batch_keys",
    )
    partitioned_batch_keyless = Law[bool](
        "A batch to a partitioned entity does not mix messages with a key and messages without.",
        unknown("none; only distinct keys are reported"),
        "broker/partitions.py check_batch_keys",
        strict=True,
        lax=False,
        differs="refused as a batch with distinct keys is, which the service may not do",
    )
    partitioned_batch_message_id = rule(
        "With duplicate detection a batch to a partitioned entity is refused if its message ids are distinct.",
        reported("Azure/azure-sdk-for-python issues 21955 and 37744, Azure/azure-amqp issue 118"),
        "broker/partitions.py check_batch_keys",
    )
    settle_one_partition = rule(
        "One request settles messages of one partition only.",
        reported("google/go-cloud issue 2362, Azure/azure-service-bus-dotnet issue 386"),
        "requests/operations.py update_disposition",
    )
    deferred_one_partition = rule(
        "One request receives deferred messages of one partition only.",
        reported("Azure/azure-service-bus issue 287"),
        "requests/operations.py receive_by_sequence_number",
    )
    batch_delete_partitioned = rule(
        "Batch delete is refused on partitioned entities.",
        documented("Batch delete messages in Azure Service Bus"),
        "requests/operations.py delete_messages",
    )
    partition_key_is_session_id = rule(
        "A message with a session id and a partition key has the same in both.",
        _PARTITIONED,
        "broker/intake.py Intake._check",
    )
    message_id_pins_partition = rule(
        "Under duplicate detection the message id chooses the partition of a message without session id and key.",
        _PARTITIONED,
        "broker/partitions.py Numbering",
    )
    transfer_stays_together = Law[bool](
        "The messages of a transfer that have no key go to one partition.",
        inferred("azure-sdk-for-net, PeekAsyncTest(partitioned-queue)"),
        "broker/partitions.py Numbering",
        strict=True,
        other=False,
    )
    peek_one_partition = rule(
        "A page of a browsed partitioned entity has messages of one partition, not always the oldest ones.",
        documented("Message browsing"),
        "broker/mailbox.py Mailbox.peek",
        differs="the partitions take turns to answer; the service gives no rule which is first",
    )
    partition_count = Law[int](
        "A partitioned entity of the Basic or Standard tier has 16 partitions.",
        _PARTITIONED,
        "namespace.py Namespace.partition_count",
        strict=PARTITION_COUNT,
        other=4,
    )
    premium_partitions = fixed(
        "A Premium namespace is made with 1, 2 or 4 partitions; all its entities have them, or none has.",
        _PREMIUM,
        "server.py NamespaceConfig",
        differs="made by a seed (`partitions: 2` or 4); an entity may grow to its whole size in one partition",
    )
    partition_in_sequence_number = fixed(
        "The top 16 bits of a sequence number are the partition; numbers ascend within each partition.",
        documented("Message sequencing and timestamps"),
        "broker/partitions.py Numbering.next",
    )
    transaction_one_partition = rule(
        "A transaction at a partitioned entity works in one partition.",
        tested("azure-sdk-for-net, TransactionThrowsWhenOperationsOfDifferentPartitionsAreInSameTransaction"),
        "broker/transactions.py Transaction._bind",
    )
    partition_unavailable = fixed(
        "A partition that is unavailable accepts nothing; messages without a key go to the others.",
        _PARTITIONED,
        "broker/partitions.py check_open",
        differs="only by the fault `partition-down:partition=3`; counts include what waits there",
    )
    receive_order_of_partitions = fixed(
        "Messages of a partitioned entity come in no order across its partitions.",
        _PARTITIONED,
        "broker/partitions.py ReadyLine",
        differs="one message from each partition that has any, in turns",
    )


# Sizes of messages, batches, ids and entities, and how many there may be of anything.

_QUOTAS = documented("Service Bus quotas")
_PREMIUM_BYTES = MAX_MESSAGE_KILOBYTES[Tier.PREMIUM] * 1024


class SizeLaws:
    max_message_bytes = limit(
        "A message has 256 KB at most, in the Premium tier 1 MB where its entity is not set to more.",
        _QUOTAS,
        "validation.py _sized",
        ByTier(256 * 1024, 256 * 1024, 1024 * 1024),
        _PREMIUM_BYTES,
    )
    max_batch_bytes = limit(
        "A batch has 256 KB at most, in the Premium tier 1 MB, whatever its entity is set to.",
        _QUOTAS,
        "broker/intake.py Intake.max_batch_bytes",
        ByTier(256 * 1024, 256 * 1024, 1024 * 1024),
        _PREMIUM_BYTES,
    )
    max_message_kilobytes = Law[int | None](
        "The largest message of an entity can be set in the Premium tier alone, to 100 MB at most.",
        documented("Azure Service Bus premium messaging tier"),
        "validation.py _check_message_size",
        strict=ByTier(None, None, MAX_MESSAGE_KILOBYTES[Tier.PREMIUM]),
        lax=MAX_MESSAGE_KILOBYTES[Tier.PREMIUM],
    )
    max_header_bytes = limit(
        "All sections in front of a message's body have 64 KB together at most.",
        _QUOTAS,
        "broker/messages.py parse",
        64 * 1024,
        _PREMIUM_BYTES,
    )
    max_id_characters = limit(
        "A message id, a session id and a partition key have at most 128 characters.",
        _QUOTAS,
        "broker/messages.py parse",
        128,
        _PREMIUM_BYTES,
    )
    entity_sizes_megabytes = Law[Collection[int]](
        "A queue or topic has one of a few sizes: 1 to 5 GB, in the Premium tier also 10, 20, 40 and 80 GB.",
        documented("Service Bus Resource Manager exceptions"),
        "validation.py _sized",
        strict=ByTier(*(frozenset(ENTITY_SIZES_MEGABYTES[tier]) for tier in Tier)),
        lax=range(1, 81_921),
    )
    partitioned_size_factor = limit(
        "A partitioned entity of the Basic or Standard tier reads back, and may hold, 16 times the size asked for.",
        documented("Partitioned queues and topics; azure-sdk-for-python, test_mgmt_queues"),
        "validation.py _sized",
        ByTier(PARTITION_COUNT, PARTITION_COUNT, 1),
        1,
    )
    max_session_state_bytes = limit(
        "The state of a session is as large as a message may be at most: 256 KB, in the Premium tier 100 MB.",
        documented("Message sessions"),
        "requests/operations.py set_session_state",
        ByTier(256 * 1024, 256 * 1024, _PREMIUM_BYTES),
        _PREMIUM_BYTES,
    )
    max_sql_characters = limit(
        "The text of an SQL filter or action has at most 1,024 characters.",
        _QUOTAS,
        "validation.py rule",
        1024,
        _PREMIUM_BYTES,
    )
    max_user_metadata_characters = limit(
        "The user metadata of an entity has at most 1,024 characters.",
        documented("QueueDescription.UserMetadata, reference of the retired .NET library"),
        "validation.py check_ranges",
        1024,
        _PREMIUM_BYTES,
    )
    large_message_counts_twice = fixed(
        "A message of more than 1 MB counts twice against the size of its entity.",
        _QUOTAS,
        differs="counted once, with its own bytes",
    )
    largest_message = fixed(
        "No message has more than 100 MB; over HTTP, which sends and receives as well, none has more than 1 MB.",
        _QUOTAS,
        differs="refused alike; messages go over AMQP only, there is no HTTP send and receive",
    )


_THROTTLING = documented("Throttling operations on Azure Service Bus")


class QuotaLaws:
    max_entities = limit(
        "A namespace has at most 10,000 queues and topics, in the Premium tier 1,000 a messaging unit.",
        _QUOTAS,
        "namespace.py Admission._check_room",
        ByTier(10_000, 10_000, 1_000),
        ANY_NUMBER,
    )
    max_partitioned_entities = limit(
        "A namespace of the Basic or Standard tier has at most 100 partitioned queues and topics.",
        _QUOTAS,
        "namespace.py Admission._check_room",
        100,
        ANY_NUMBER,
    )
    max_subscriptions_per_topic = limit(
        "A topic has 2,000 subscriptions at most.",
        _QUOTAS,
        "namespace.py Namespace.create_subscription",
        2000,
        ANY_NUMBER,
    )
    max_rules_per_subscription = limit(
        "A subscription has 2,000 rules at most.", _QUOTAS, "broker/topics.py Subscription.add_rule", 2000, ANY_NUMBER
    )
    max_authorization_rules = limit(
        "An entity has 12 shared access rules at most.", _QUOTAS, "validation.py _check_rules", 12, ANY_NUMBER
    )
    max_batch_delete_messages = limit(
        "A request deletes 500 messages at most, in the Premium tier 4,000.",
        documented("Batch delete messages in Azure Service Bus; MicrosoftDocs/azure-docs pull request 127665"),
        "requests/operations.py delete_messages",
        ByTier(500, 500, 4000),
        ANY_NUMBER,
    )
    max_peek_messages = Law[int](
        "A request browses at most 250 messages.",
        documented("Message browsing"),
        "requests/operations.py peek_message",
        strict=250,
        other=32,
    )
    max_transaction_messages = limit(
        "A transaction sends 100 messages at most.",
        _QUOTAS,
        "broker/transactions.py Transaction._check_count",
        100,
        ANY_NUMBER,
    )
    full_entity_refuses = rule(
        "An entity that holds as many bytes as its size allows refuses what is sent to it.",
        _QUOTAS,
        "broker/entity.py Quota",
    )
    connections = fixed(
        "A namespace has at most 5,000 connections, an entity 5,000 concurrent receivers (a topic: over all its "
        "subscriptions), a Premium namespace 1 TB a messaging unit.",
        _QUOTAS,
        "throttling.py Throttling.connected",
        differs="connections and receivers are counted with --throttling (receivers of each subscription by itself), "
        "sizes of entities always, the size of the namespace never",
    )
    throttling = fixed(
        "A namespace has 1,000 credits a second, in the Premium tier bytes for each messaging unit; a message costs 1 "
        "credit, the evaluation of a filter 1, a management call 10.",
        _THROTTLING,
        "throttling.py limits_of",
        differs="only with --throttling; a filter and a settlement cost nothing, deliveries wait for the next second",
    )
    any_number_of_clients = fixed(
        "What clients ask for has no bounds but the quotas.",
        _QUOTAS,
        differs="what a connection makes the emulator keep is bounded (128 MB, 512 KB before its first token, 512 MB "
        "for all together), its input is read some milliseconds at a time, and an attach has 16 KB at most",
    )
