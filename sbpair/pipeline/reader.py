"""Reads a backlog in parallel: the driver finds which numbers hold messages, tasks browse a span of them each.

Nothing is locked, received or changed: Spark runs `read` again for every action and every retry, so it may only look.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sbpair.concurrency import side_by_side
from sbpair.core.errors import EntityNotFoundError
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import Connection, PairByName, first_from
from sbpair.pipeline.rows import message_row, record_batch
from sbpair.pipeline.source_options import ReadOptions
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
    """Messages of backlog queues as Arrow batches."""

    def __init__(self, options: ReadOptions) -> None:
        with marking_errors():
            self.options = options
            self.pair = PairByName.load(options.pair, options.config)

    def partitions(self) -> list[InputPartition]:
        with marking_errors():
            spans = self.options.ranges if self.options.ranges is not None else self._occupied()
            cut = pieces(spans, self.options.messages_per_partition)
        found: list[InputPartition] = [SpanPartition(index, span) for index, span in enumerate(cut)]
        # Spark reads one partition in any case; without a span that one is empty.
        return found or [SpanPartition(0, None)]

    def _occupied(self) -> list[Span]:
        with Connection.to(self.pair, "secondary") as connection:
            sources = self.options.sources(self.pair.resolve())
            return find_spans(connection, sources, first=self.options.first, last=self.options.last)

    def read(self, partition: Any) -> Iterator["pa.RecordBatch"]:
        if partition.span is None:
            return
        with marking_errors(), Connection.to(self.pair, "secondary") as connection:
            rows: list[tuple[Any, ...]] = []
            for page in connection.browse(partition.span):
                rows += [self._row(one) for one in page]
                if len(rows) >= BATCH_ROWS:
                    yield record_batch(rows)
                    rows = []
            if rows:
                yield record_batch(rows)

    def _row(self, received: Any) -> tuple[Any, ...]:
        row = message_row(self.pair.name, received)
        return row if self.options.include_payload else (*row[:-1], None)


def find_spans(
    connection: Connection, sources: Sequence[tuple[str, bool]], *, first: int = 1, last: int | None = None
) -> list[Span]:
    """Where messages lie now, in all of the sources. A queue that does not exist holds none."""

    async def spans_of(source: tuple[str, bool]) -> list[Span]:
        queue, dead_letter = source
        receiver = connection.receiver(queue, dead_letter=dead_letter)

        async def first_number(number: int) -> int | None:
            found = await first_from(receiver, number)
            return None if found is None else found.sequence_number

        try:
            return [one async for one in occupied(queue, dead_letter, first_number, first=max(first, 1), last=last)]
        except EntityNotFoundError:
            return []  # backlog queues come into being when a sender fails over to them
        finally:
            await receiver.close()

    return list(chain.from_iterable(connection.run(side_by_side(spans_of, sources))))
