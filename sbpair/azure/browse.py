"""Browsing in pages, complete on partitioned entities too.

A sequence number carries its partition in the top 16 bits. The service answers each request with a page from one
partition, not necessarily that of the lowest number, and an empty page speaks for where it was asked only. `next_page`
gives the messages in the order of their numbers, so that "last number + 1" continues: a page keeps to the lowest
partition it holds, partitions that an answer passed over are asked by name, and an end is confirmed at the next
partition. Sources: message browsing and partitioning documents.
"""

from collections.abc import Awaitable, Callable

from sbpair.core.message import Received

PARTITION_SHIFT = 48
_MAX_PASSED_OVER = 16
"""Partitions of an entity: more than that are not passed over, the numbers just begin higher."""

Ask = Callable[[int], Awaitable[list[Received]]]


def partition_of(sequence_number: int) -> int:
    """Partition of a sequence number; 0 on entities without partitions."""
    return sequence_number >> PARTITION_SHIFT


class Browser:
    """Remembers between pages whether the entity has shown itself to be partitioned."""

    def __init__(self) -> None:
        self._partitioned = False

    async def next_page(self, ask: Ask, start: int) -> list[Received]:
        """Messages from `start` on, ascending, of one partition; empty at the end of the entity."""
        start = max(start, 1)
        page = await self._ask(ask, start)
        if not page and self._partitioned:
            start = (partition_of(start) + 1) << PARTITION_SHIFT
            page = await self._ask(ask, start)
        if not page:
            return []
        for partition in self._passed_over(start, page):
            earlier = _of(await self._ask(ask, max(start, partition << PARTITION_SHIFT)), partition)
            if earlier:
                return earlier
        return _of(page, partition_of(page[0].sequence_number))

    async def _ask(self, ask: Ask, start: int) -> list[Received]:
        page = sorted(
            (one for one in await ask(start) if one.sequence_number >= start), key=lambda one: one.sequence_number
        )
        self._partitioned = self._partitioned or any(partition_of(one.sequence_number) for one in page)
        return page

    def _passed_over(self, start: int, page: list[Received]) -> range:
        """Partitions between the one asked and the one that answered; its own partition is asked once more."""
        asked, answered = partition_of(start), partition_of(page[0].sequence_number)
        return range(asked, answered) if answered - asked <= _MAX_PASSED_OVER else range(asked, asked)


def _of(page: list[Received], partition: int) -> list[Received]:
    return [one for one in page if partition_of(one.sequence_number) == partition]
