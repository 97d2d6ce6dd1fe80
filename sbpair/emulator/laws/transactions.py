"""Transactions: what they span, how long they last."""

from sbpair.emulator.laws.law import Law, documented, fixed, rule, tested, unknown

_TRANSACTIONS = documented("Overview of Service Bus transaction processing")


class TransactionLaws:
    transaction_seconds = Law[float](
        "A transaction that is open for 2 minutes is rolled back.",
        _TRANSACTIONS,
        "broker/transactions.py Transactions.declare",
        strict=120.0,
        other=60.0,
    )
    transaction_single_entity = rule(
        "A transaction works at one queue or topic, its subscriptions included.",
        tested("azure-sdk-for-net, TransactionLiveTests"),
        "broker/transactions.py Transaction._bind",
    )
    transaction_single_connection = rule(
        "A transaction belongs to the connection that declared it.",
        tested("azure-sdk-for-net, TransactionCommitThrowsUsingDifferentClientsToSameEntity"),
        "broker/transactions.py Transactions.require",
    )
    transaction_needs_key = rule(
        "What a transaction sends to a partitioned entity has a key.",
        documented("Partitioned queues and topics"),
        "broker/transactions.py Transaction._check_keys",
    )
    cross_entity_transactions = fixed(
        "Links in the AMQP session of a coordinator that came first send through the first entity of them.",
        tested("azure-sdk-for-net, TransactionGroupReceivesFirst and TransactionGroupSendsFirst"),
        "broker/transactions.py TransactionGroup",
    )
    transactions_without_management = fixed(
        "Management and messaging are not mixed in a transaction.",
        _TRANSACTIONS,
        "requests/node.py RequestNode",
        differs="rules, deletion of many messages, and receive-and-delete of deferred ones are refused there, and the "
        "commit fails",
    )
    cancelled_elsewhere = fixed(
        "A transaction across entities cancels scheduled messages at its first entity.",
        unknown("none"),
        "broker/transactions.py Transaction.cancel_scheduled",
        differs="at any of its entities",
    )
    send_via_link = fixed(
        "A link with the property `viaEntityPath` sends through another entity.",
        documented("Overview of Service Bus transaction processing"),
        differs="it sends directly; cross-entity transactions have the service's rules",
    )
