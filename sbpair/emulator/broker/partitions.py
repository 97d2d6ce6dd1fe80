"""Which partition a message goes to, what number it gets there, and in which turn partitions are read.

A partitioned entity keeps the partition in the top 16 bits of every sequence number; an ordinary entity counts with
those bits zero. The session id pins a message to a partition, else the partition key, else (under duplicate detection)
the message id; without any of them the partitions take turns, a transfer each. Session id and partition key must not
differ.
"""

import zlib
from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappop, heappush

from sbpair.emulator.broker.messages import Message, MessageHead
from sbpair.emulator.laws import Laws
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError
from sbpair.service import session_key

PARTITION_SHIFT = 48


def partition_of(sequence_number: int) -> int:
    return sequence_number >> PARTITION_SHIFT


def check_open(partition: int | None, closed: Collection[int]) -> None:
    """Refuse what only a partition that is away could do (BrokerError); None: any partition would do."""
    if partition is not None and partition in closed:
        raise BrokerError(
            errors.INTERNAL_ERROR,
            f"The service was unable to process the request; partition {partition} is not available. Please retry the "
            "operation.",
        )


def check_keys(head: MessageHead) -> None:
    """Refuse a partition key that differs from the session id."""
    if head.session_id is not None and head.partition_key is not None and head.session_id != head.partition_key:
        raise BrokerError(
            errors.NOT_ALLOWED,
            f"The partition key '{head.partition_key}' must equal the session id '{head.session_id}' of the message.",
        )


def key_of(head: MessageHead) -> str | None:
    """What pins a message to a partition: the session id, else the partition key, else the transaction partition key.

    That the last one counts where there is no other is inferred: in azure-sdk-for-net's live test
    TransactionGroupReceivesFirst a message with nothing else is settled in the partition that its successors, sent
    through the same entity, belong to.
    """
    if head.session_id is not None:
        return head.session_id
    return head.partition_key if head.partition_key is not None else head.via_partition_key


def check_batch_keys(messages: Sequence[Message], laws: Laws, *, detecting: bool) -> None:
    """Refuse a batch for a partitioned entity whose messages do not belong to one partition.

    `detecting`: the entity detects duplicates. The words are the service's (the threads of the laws).
    """
    keys = {(message.head.session_id, message.head.partition_key) for message in messages}
    keyless = (None, None)
    if detecting and laws.partitioned_batch_message_id and len({message.message_id for message in messages}) > 1:
        what = "SessionId, PartitionKey, or MessageId  is not supported for an entity with partitioning and duplicate "
        raise BrokerError(errors.NOT_ALLOWED, f"Batching brokered messages with distinct {what}detection enabled.")
    distinct = laws.partitioned_batch_key and len(keys - {keyless}) > 1
    mixed = laws.partitioned_batch_keyless and keyless in keys and len(keys) > 1
    if distinct or mixed:
        raise BrokerError(
            errors.NOT_ALLOWED,
            "Batching brokered messages with distinct SessionId or PartitionKey is not supported for an entity with "
            "partitioning enabled.",
        )


class Numbering:
    """Hands out sequence numbers of one entity, ascending within each partition, starting at 1."""

    def __init__(self, *, partitions: int, laws: Laws, by_message_id: bool = False) -> None:
        self._by_message_id = by_message_id and laws.message_id_pins_partition
        self._last = [0] * partitions
        self._turn = 0
        self._keeps_transfers_together = laws.transfer_stays_together
        self.transfer_turn: int | None = None
        """Set while a message of a transfer is numbered."""

    @property
    def partitioned(self) -> bool:
        return len(self._last) > 1

    def next(self, message: Message, closed: Collection[int] = ()) -> int:
        """The next number for a message. Without a key to pin it, it goes to a partition that is not `closed`."""
        partition = self._choose(message, closed) if self.partitioned else 0
        self._last[partition] += 1
        return partition << PARTITION_SHIFT | self._last[partition]

    @property
    def last(self) -> list[int]:
        """The last number of each partition that has given one."""
        return [index << PARTITION_SHIFT | last for index, last in enumerate(self._last) if last]

    def seen(self, sequence_number: int) -> None:
        """A number in use from before a restart: never hand it out again."""
        partition = partition_of(sequence_number)
        local = sequence_number - (partition << PARTITION_SHIFT)
        if partition < len(self._last):
            self._last[partition] = max(self._last[partition], local)

    def check_open(self, message: Message, closed: Collection[int]) -> None:
        """Refuse a message (BrokerError) that no partition but closed ones could take."""
        pinned = self.pinned(message)
        if pinned is None and len(self._last) == len(closed):
            pinned = 0
        check_open(pinned, closed)

    def pinned(self, message: Message) -> int | None:
        """The partition that a message's session id, key or id chooses, if any does."""
        head = message.head
        key: object = key_of(head)
        if key is None and self._by_message_id:
            key = message.message_id
        return None if key is None else self.of_key(key)

    def of_key(self, key: object) -> int:
        """The partition of all messages with a key, or of a session, however it is spelled."""
        return zlib.crc32(session_key(str(key)).encode()) % len(self._last)

    def new_turn(self) -> int:
        """The partition for the messages of a transfer that have no key; see `transfer_turn`."""
        if self._keeps_transfers_together:
            self._turn = (self._turn + 1) % len(self._last)
        return self._turn

    def _choose(self, message: Message, closed: Collection[int]) -> int:
        pinned = self.pinned(message)
        if pinned is not None:
            return pinned
        if self.transfer_turn is not None and self._keeps_transfers_together and self.transfer_turn not in closed:
            return self.transfer_turn
        for _ in self._last:
            self._turn = (self._turn + 1) % len(self._last)
            if self._turn not in closed:
                break
        return self._turn


class ReadyLine:
    """Sequence numbers waiting for a receiver: oldest first within a partition, partitions in turns.

    Before a number is taken the message must still wait; numbers of removed messages simply stay behind.
    """

    def __init__(self) -> None:
        self._heaps: dict[int, list[int]] = {}
        self._turns: deque[int] = deque()

    def push(self, sequence_number: int) -> None:
        partition = partition_of(sequence_number)
        heap = self._heaps.setdefault(partition, [])
        if not heap:
            self._turns.append(partition)
        heappush(heap, sequence_number)

    def pop(self) -> int | None:
        """The next number, or None when the line is empty."""
        if not self._turns:
            return None
        partition = self._turns.popleft()
        heap = self._heaps[partition]
        number = heappop(heap)
        if heap:
            self._turns.append(partition)
        return number

    def peek(self, closed: Collection[int] = ()) -> int | None:
        """The number `pop` will give: of the first partition, from now on, that is not `closed`."""
        for _ in range(len(self._turns)):
            if self._turns[0] not in closed:
                return self._heaps[self._turns[0]][0]
            self._turns.rotate(-1)
        return None

    def __bool__(self) -> bool:
        return bool(self._turns)
