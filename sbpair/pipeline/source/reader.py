"""Reads a backlog in parallel: the driver finds which numbers hold messages, tasks browse a span of them each.

Nothing is locked, received or changed: Spark runs `read` again for every action and every retry, so it may only look.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sbpair.concurrency import side_by_side
from sbpair.core.errors import EntityNotFoundError
from sbpair.core.message import PARTITION_SHIFT
from sbpair.core.transfer.pace import Pace
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import Connection, first_from
from sbpair.pipeline.rows import message_row, record_batch
from sbpair.pipeline.source.options import MESSAGES_PER_PARTITION, ReadOptions
from sbpair.pipeline.spans import Span, occupied, pieces

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 2_000


@dataclass
class SpanPartition(InputPartition):
    """One task: a span to browse, and its place among the others."""

    index: int
    span: Span | None


class BacklogReader(DataSourceReader):
    """Messages of queues as Arrow batches."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        with marking_errors():
            spans = self.options.ranges if self.options.ranges is not None else self._occupied()
            cut = pieces(spans, self.options.messages_per_partition or MESSAGES_PER_PARTITION)
        return partitions_of(cut)

    def _occupied(self) -> list[Span]:
        options = self.options
        with options.place.connect() as connection:
            return find_spans(
                connection,
                options.sources(connection),
                first=options.first,
                last=options.last,
                missing_is_empty=options.place.made_when_needed,
            )

    def read(self, partition: Any) -> Iterator["pa.RecordBatch"]:
        if partition.span is None:
            return
        with marking_errors():
            yield from batches_of(self.options, partition.span)


def partitions_of(spans: Sequence[Span]) -> list[InputPartition]:
    """A task for each span. Spark reads one partition in any case; without a span that one is empty."""
    found: list[InputPartition] = [SpanPartition(index, span) for index, span in enumerate(spans)]
    return found or [SpanPartition(0, None)]


def batches_of(options: ReadOptions, span: Span) -> Iterator["pa.RecordBatch"]:
    """What lies in a span now, as rows."""
    name = options.place.name
    with options.place.connect() as connection:
        rows: list[tuple[Any, ...]] = []
        for page in connection.browse(span, Pace(options.most_per_second)):
            for one in page:
                row = message_row(name, one)
                rows.append(row if options.include_payload else (*row[:-1], None))
            if len(rows) >= BATCH_ROWS:
                yield record_batch(rows)
                rows = []
        if rows:
            yield record_batch(rows)


def find_spans(
    connection: Connection,
    sources: Sequence[tuple[str, bool]],
    *,
    first: int = 1,
    last: int | None = None,
    unread: Callable[[str, bool, int], int] | None = None,
    missing_is_empty: bool = True,
) -> list[Span]:
    """Where messages lie now, in all of the sources.

    Args:
        unread: for a queue, whether its dead letters are meant, and a partition of it, the first number that counts.

    Raises:
        EntityNotFoundError: one of them does not exist, unless that means that it is empty: backlog queues come into
            being when a sender fails over to them.
        ServiceError: one of them cannot be browsed.
    """

    async def spans_of(source: tuple[str, bool]) -> list[Span]:
        queue, dead_letter = source
        receiver = connection.receiver(queue, dead_letter=dead_letter)

        async def first_number(number: int) -> int | None:
            while (found := await first_from(receiver, number)) is not None:
                there = found.sequence_number
                wanted = 0 if unread is None else unread(queue, dead_letter, there >> PARTITION_SHIFT)
                if there >= wanted:
                    return there
                number = wanted
            return None

        try:
            return [one async for one in occupied(queue, dead_letter, first_number, first=max(first, 1), last=last)]
        except EntityNotFoundError:
            if not missing_is_empty:
                raise
            return []
        finally:
            await receiver.close()

    return list(chain.from_iterable(connection.run(side_by_side(spans_of, sources))))
