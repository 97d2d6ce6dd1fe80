"""Peeking: pages of messages by sequence number, without locks, in whatever state they are.

An ordinary entity answers in the order of its numbers. A partitioned one answers each call with the messages of one
partition only, the one "that answered first": asked from the very start (0 or less) the partitions take turns;
asked from a number, the partition of that number answers, or if it has nothing more, the next one that has. So a page
may be short although there is more, and the first page is not the oldest messages of the entity. A page also ends
where its bytes would exceed what fits into one reply.
"""

from sbpair.emulator.broker.log import MessageLog
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.partitions import PARTITION_SHIFT, partition_of
from sbpair.emulator.limits import PARTITION_COUNT


def page(log: MessageLog, since: int, count: int, max_bytes: int, *, turn: int | None = None) -> list[Message]:
    """Up to `count` messages of at most `max_bytes` together (but always one); `turn` only for partitioned entities."""
    if turn is not None and since <= 0:
        since = _answering_partition(log, turn) << PARTITION_SHIFT
    chosen: list[Message] = []
    size = 0
    for message in log.since(since):
        size += len(message.payload)
        full = len(chosen) >= count or (chosen and size > max_bytes)
        if full or (turn is not None and chosen and _leaves_partition(chosen[0], message)):
            break
        chosen.append(message)
    return chosen


def _answering_partition(log: MessageLog, turn: int) -> int:
    """The partition whose turn it is, or the next one (round and round) that holds messages."""
    for step in range(PARTITION_COUNT):
        partition = (turn + step) % PARTITION_COUNT
        first = next(log.since(partition << PARTITION_SHIFT), None)
        if first is not None and partition_of(first.sequence_number) == partition:
            return partition
    return 0


def _leaves_partition(first: Message, other: Message) -> bool:
    return partition_of(first.sequence_number) != partition_of(other.sequence_number)
