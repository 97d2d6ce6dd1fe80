"""How many there may be of anything."""

from sbpair.emulator.laws.law import ByTier, Law, documented, fixed, rule

_QUOTAS = documented("Service Bus quotas")
_ANY = 2**31 - 1


class Quotas:
    max_entities = Law[int](
        "A namespace has at most 10,000 queues and topics, in the Premium tier 1,000 a messaging unit.",
        _QUOTAS,
        "namespace.py Namespace._check_room",
        strict=ByTier(10_000, 10_000, 1_000),
        lax=_ANY,
    )
    max_partitioned_entities = Law[int](
        "A namespace of the Basic or Standard tier has at most 100 partitioned queues and topics.",
        _QUOTAS,
        "namespace.py Namespace._check_room",
        strict=100,
        lax=_ANY,
    )
    max_subscriptions_per_topic = Law[int](
        "A topic has at most 2,000 subscriptions.",
        _QUOTAS,
        "namespace.py Namespace.create_subscription",
        strict=2000,
        lax=_ANY,
    )
    max_rules_per_subscription = Law[int](
        "A subscription has at most 2,000 rules.",
        _QUOTAS,
        "namespace.py Namespace.create_rule",
        strict=2000,
        lax=_ANY,
    )
    max_authorization_rules = Law[int](
        "An entity has at most 12 shared access rules.", _QUOTAS, "validation.py _check_rules", strict=12, lax=_ANY
    )
    max_batch_delete_messages = Law[int](
        "A request deletes at most 500 messages, in the Premium tier 4,000.",
        documented("Batch delete messages in Azure Service Bus; MicrosoftDocs/azure-docs pull request 127665"),
        "requests/batch_delete.py delete_messages",
        strict=ByTier(500, 500, 4000),
        lax=_ANY,
    )
    max_peek_messages = Law[int](
        "A request browses at most 250 messages.",
        documented("Message browsing"),
        "requests/peek.py peek_message",
        strict=250,
        other=32,
    )
    max_transaction_messages = Law[int](
        "A transaction sends at most 100 messages.",
        _QUOTAS,
        "broker/transactions.py Transaction._check_count",
        strict=100,
        lax=_ANY,
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
