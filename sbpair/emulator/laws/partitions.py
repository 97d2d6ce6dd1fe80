"""Partitioned entities: what pins a message to a partition, and what cannot span two of them."""

from sbpair.emulator.laws.law import Law, documented, fixed, inferred, reported, rule, tested, unknown
from sbpair.service import PARTITION_COUNT

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
        "requests/messages.py update_disposition",
    )
    deferred_one_partition = rule(
        "One request receives deferred messages of one partition only.",
        reported("Azure/azure-service-bus issue 287"),
        "requests/messages.py receive_by_sequence_number",
    )
    batch_delete_partitioned = rule(
        "Batch delete is refused on partitioned entities.",
        documented("Batch delete messages in Azure Service Bus"),
        "requests/messages.py delete_messages",
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
        "A partition that is unavailable takes nothing; messages without a key go to the others.",
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
