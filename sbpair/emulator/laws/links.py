"""Links and connections: what an attach says, what passes over it, what outlives it."""

from sbpair.emulator.laws.law import ByTier, Law, documented, fixed, inferred, rule, tested


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
        "../engine/cbs.py CbsNode.attach",
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
        "admin/atom_entities.py _runtime",
    )
    locks_outlive_connections = fixed(
        "The lock of a message without a session outlives the connection on which it was received; its token settles "
        "the message on another.",
        documented("Message transfers, locks, and settlement"),
        "broker/mailbox.py Mailbox.leave",
    )
