"""Links and connections: what an attach says, what passes over it, what outlives it. Transactions: what they span."""

from sbpair.emulator.laws.law import ByTier, Law, documented, fixed, inferred, rule, tested, unknown


class LinkRules:
    sections_in_any_order = fixed(
        "Sections of a message may come in any order: a footer before the body, as rhea writes it.",
        tested("azure-sdk-for-js, amqpAnnotatedMessage.spec.ts; Microsoft.Azure.Amqp reads them so"),
        "broker/messages.py parse",
    )
    footer_keys_are_symbols = rule(
        "Keys of a footer are delivered as symbols, whatever they were sent as.",
        tested("azure-sdk-for-java, ServiceBusReceiverAsyncClientIntegrationTest.receiveAndValidateProperties"),
        "broker/messages.py parse",
    )
    entity_type = rule(
        "A client that takes an entity for one of another kind (com.microsoft:entity-type) cannot attach to it.",
        tested("azure-service-bus-java, ClientValidationTests"),
        "endpoints.py _check_entity_type",
    )
    single_cbs_sender = fixed(
        "A connection has one link at most that sends to $cbs.",
        tested("azure-sdk-for-go, TestAMQPLinksCBSLinkStillOpen"),
        "../engine/replies.py CbsNode.attach",
    )
    non_exclusive_sessions = Law[bool](
        "Premium namespaces lend sessions that are not exclusive: the token of the lock takes the session over.",
        documented("Taking over a non-exclusive session (Azure.Messaging.ServiceBus 7.21)"),
        "endpoints.py _attach_receiver",
        strict=ByTier(False, False, True),
        lax=True,
        other=False,
        differs="refused with amqp:not-implemented outside Premium, where no document says what the answer is",
    )
    delivery_delay = Law[bool](
        "Premium namespaces offer DELAYED_DELIVERY, by which a JMS client sets x-opt-delivery-time.",
        inferred("Use Java Message Service 2.0 API with Azure Service Bus Premium"),
        "namespace.py Namespace.capabilities",
        strict=ByTier(False, False, True),
        lax=True,
        other=False,
    )
    forwarding_scheme = rule(
        "The target of a forwarding reads back with the scheme that it was given.",
        tested("azure-sdk-for-go, TestAdminClient_Queue_Forwarding"),
        "namespace.py Admission._target",
    )
    limited_while_partition_away = fixed(
        "The availability status of an entity is Limited while one of its partitions is away.",
        inferred("EntityAvailabilityStatus, reference of the retired .NET library"),
        "admin/atom.py _runtime",
    )
    locks_outlive_connections = fixed(
        "The lock of a message without a session outlives the connection on which it was received; its token settles "
        "the message on another.",
        documented("Message transfers, locks, and settlement"),
        "broker/mailbox.py Mailbox.leave",
    )


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
