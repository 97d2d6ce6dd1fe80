"""Sizes of messages, batches, ids and entities, and how many there may be of anything."""

from collections.abc import Collection

from sbpair.emulator.laws.law import ANY_NUMBER, ByTier, Law, documented, fixed, limit, rule
from sbpair.service import ENTITY_SIZES_MEGABYTES, MAX_MESSAGE_KILOBYTES, PARTITION_COUNT, Tier

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
