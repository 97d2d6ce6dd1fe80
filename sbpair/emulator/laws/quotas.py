"""How many there may be of anything."""

from sbpair.emulator.laws.law import ANY_NUMBER, ByTier, Law, documented, fixed, limit, rule

_QUOTAS = documented("Service Bus quotas")
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
        "requests/messages.py delete_messages",
        ByTier(500, 500, 4000),
        ANY_NUMBER,
    )
    max_peek_messages = Law[int](
        "A request browses at most 250 messages.",
        documented("Message browsing"),
        "requests/messages.py peek_message",
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
