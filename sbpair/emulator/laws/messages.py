"""What becomes of a message and of a session: deliveries, dead letters, time, duplicates, copies, who holds it; and
what links and transactions carry.
"""

from collections.abc import Callable
from typing import Any

from sbpair.emulator.laws.law import ByTier, Law, documented, fixed, inferred, reported, rule, tested, unknown
from sbpair.engine import errors
from sbpair.service import ascii_session_key, session_key

_SETTLING = documented("Message transfers, locks, and settlement")
_DEAD_LETTERS = documented("Overview of Service Bus dead-letter queues")
_EXPIRATION = documented("Message expiration (time to live)")
_DUPLICATES = documented("Duplicate detection")
_RULES = documented("Topic filters and actions")


def _as_given(message_id: Any) -> Any:
    return message_id


def _without_case(message_id: Any) -> Any:
    return message_id.lower() if isinstance(message_id, str) else message_id


class MessageLaws:
    deferral_counts = rule(
        "A deferral counts as a delivery, and the last one allowed dead-letters the message.",
        reported("Azure/azure-service-bus issue 375; TopicClientPeekLockDeferTestCase of Microsoft.Azure.ServiceBus"),
        "broker/mailbox.py Mailbox.defer",
    )
    expired_lock_counts = rule(
        "A lock that runs out counts as a delivery that failed.", _SETTLING, "broker/mailbox.py Mailbox._lock_expired"
    )
    last_delivery_dead_letters = rule(
        "A message that was delivered as often as its entity allows is dead-lettered.",
        _DEAD_LETTERS,
        "broker/mailbox.py Mailbox._count_failure",
    )
    dead_letter_stays = rule(
        "A dead letter cannot be dead-lettered again.",
        inferred("Overview of Service Bus dead-letter queues"),
        "broker/mailbox.py Mailbox.dead_letter",
    )
    dead_letters_never_expire = rule(
        "The time to live of a message ends with its dead-lettering.",
        _DEAD_LETTERS,
        "broker/entity.py MessageEntity.dead_letter",
    )
    dead_letters_keep_their_count = fixed(
        "A dead letter has the delivery count with which it died, however often it is delivered.",
        tested("azure-sdk-for-go, live tests of azservicebus"),
        "broker/mailbox.py Mailbox._count_failure",
    )
    entity_ttl_is_the_longest = rule(
        "The default time to live of an entity is the longest that its messages have.",
        _EXPIRATION,
        "broker/entity.py MessageEntity._expiry",
    )
    expired_when_received = fixed(
        "An expired message goes when somebody receives from its entity, or some time later.",
        _EXPIRATION,
        "broker/mailbox.py Mailbox.expire_due",
        differs="it stays and counts until somebody receives",
    )
    longest_own_ttl = fixed(
        "A time to live beyond 49.7 days is said by creation time and absolute expiry time.",
        inferred("AMQP 1.0 in Azure Service Bus protocol guide"),
        differs="expiry goes by the header's ttl; the two times are carried, not read",
    )
    scheduled_messages_are_numbered_again = fixed(
        "A scheduled message gets another sequence number when its time comes.",
        documented("Message sequencing and timestamps"),
        "broker/mailbox.py Mailbox._activate",
    )
    deferred_by_number_alone = fixed(
        "A deferred message is received by its sequence number alone; a request gets all that it names, or none.",
        documented("Message deferral"),
        "broker/mailbox.py Mailbox.receive_deferred",
    )
    locks_survive_restart = fixed(
        "Locks outlast whatever the service does with its machines.",
        inferred("Message transfers, locks, and settlement"),
        differs="after a restart (`--data-dir`) all messages are free, with the delivery count they had",
    )
    pings_vanish = Law[bool](
        "Ping messages of the retired paired-namespace library are accepted and never delivered.",
        inferred("Paired namespace implementation details and cost implications"),
        "broker/intake.py Intake.admit",
        strict=True,
        other=False,
        differs="so it is here; the service of today may deliver them",
    )
    id_given = Law[bool](
        "A message without an id is given one.",
        inferred("the clients' suites receive ids that nobody set"),
        "broker/intake.py Intake.reading",
        strict=True,
        other=False,
    )
    duplicates_dropped = rule(
        "With duplicate detection a message whose id is known is accepted and not stored.",
        _DUPLICATES,
        "broker/intake.py Intake._without_duplicates",
    )
    duplicate_has_same_key = rule(
        "In a partitioned entity a duplicate has the same partition key as well.",
        _DUPLICATES,
        "broker/intake.py Intake.describe",
    )
    message_id_key = Law[Callable[[Any], Any]](
        "Message ids that differ in case alone are two.",
        unknown("none"),
        "broker/intake.py Intake.describe",
        strict=_as_given,
        other=_without_case,
        differs="two here, as are partition keys and the session ids that rules compare",
    )
    copies_by_rule = fixed(
        "A subscription takes one copy for all rules without an action that match, and one for each with an action.",
        _RULES,
        "broker/topics.py Subscription.evaluating",
    )
    no_rule_no_copy = fixed(
        "A subscription is made with a rule that matches all; without rules it gets nothing.",
        _RULES,
        "namespace.py Namespace.create_subscription",
    )
    failed_filter = Law[bool](
        "A copy whose filter cannot be evaluated is dead-lettered, where the subscription asks for that.",
        _DEAD_LETTERS,
        "broker/topics.py Subscription.take",
        strict=True,
        other=False,
    )
    empty_correlation_filter = rule(
        "A correlation filter compares one property at least.", _RULES, "validation.py rule"
    )
    properties_without_case = fixed(
        "Filters and actions find a property whatever the case of its name, and compare values with case.",
        unknown("none; the syntax of SQL filters does not say"),
        "filters.py BrokerMessageView.user",
        differs="so it is here",
    )
    filters_at_any_cost = fixed(
        "A filter is evaluated however long the properties are.",
        inferred("Topic filters and actions"),
        "filters.py BrokerMessageView.spend",
        differs="rules that have to look at more than 5,000,000 characters of one message fail to evaluate",
    )
    sections_encoded_again = fixed(
        "The service decodes sections and encodes them again.",
        reported("Azure/azure-amqp; a live test of azure-sdk-for-python on decimals passes only so"),
        differs="stored bytes stay the sender's, so odd encodings survive",
    )
    message_formats = fixed(
        "A message has the format 0, or that of a batch.",
        unknown("none; no client of the service's sets or shows another"),
        differs="any other is accepted, and delivered as format 0",
    )
    flags_without_effect = fixed(
        "Express entities, and the priority, durability and first acquirer of a message, change nothing.",
        documented("AMQP 1.0 in Azure Service Bus protocol guide"),
        "broker/messages.py Message.render",
        differs="of an express entity the flag is kept, and has no effect at all",
    )


_SESSIONS = documented("Message sessions")


class SessionLaws:
    session_key = Law[Callable[[str], str]](
        "Session ids that differ in case alone name one session.",
        tested(
            "azure-sdk-for-net, CancelingDoesNotLoseSessionMessages; Azure/azure-sdk-for-java pull request 48759, "
            "Azure/durabletask pull request 1334"
        ),
        "broker/mailbox.py Mailbox.__init__",
        strict=session_key,
        lax=str,
        other=ascii_session_key,
        differs="letters beyond ASCII as well, of which nothing is known",
    )
    session_id_needed = rule(
        "An entity with sessions refuses a message without a session id.", _SESSIONS, "broker/intake.py Intake._check"
    )
    session_receivers_match = fixed(
        "An entity with sessions has receivers of sessions alone, any other has none.",
        _SESSIONS,
        "endpoints.py _attach_receiver",
    )
    session_is_exclusive = fixed(
        "A session that is held cannot be accepted by another receiver.", _SESSIONS, "broker/sessions.py Sessions.hold"
    )
    settled_after_session_lost = Law[str](
        "Once the lock of a session has run out, a settlement over its link is refused as message-lock-lost.",
        unknown("none for the moment before the link is detached; afterwards the clients say session-lock-lost"),
        "receivers.py Receiver._settle",
        strict=errors.MESSAGE_LOCK_LOST,
        other=errors.SESSION_LOCK_LOST,
        differs="so for 2 seconds, after which the link is detached with session-lock-lost",
    )
    next_session_timeout_seconds = Law[float](
        "A receiver of the next available session waits 60 seconds unless it says how long.",
        tested("azure-sdk-for-python, test_session_by_conn_str_receive_handler_with_no_session"),
        "receivers.py waiting_seconds",
        strict=60.0,
        other=30.0,
    )
    lost_session_counts = rule(
        "The messages of a session whose lock ran out count as deliveries that failed.",
        _SESSIONS,
        "broker/mailbox.py Mailbox._session_lost",
    )
    left_session_counts = Law[bool](
        "The messages of a session that its receiver left are not counted.",
        _SESSIONS,
        "broker/mailbox.py Mailbox.leave",
        strict=False,
        other=True,
    )
    session_detach_seconds = Law[float](
        "A receiver whose session's lock has ended is detached some time later.",
        unknown("none"),
        "broker/mailbox.py Mailbox._session_lost",
        strict=2.0,
        other=0.0,
        differs="after 2 seconds; until then what it settles is answered with message-lock-lost",
    )
    listed_sessions = fixed(
        "Sessions with messages or a state are listed; with a time those whose state was set after it.",
        tested("azure-sdk-for-net pull request 58761"),
        "broker/sessions.py Sessions.listed",
    )
    session_state_needs_lock = fixed(
        "The state of a session is read and set by its holder alone.",
        _SESSIONS,
        "broker/sessions.py Sessions.require_held",
    )


# Links and connections: what an attach says, what passes over it, what outlives it. Transactions: what they span.


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
