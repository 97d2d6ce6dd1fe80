"""Reads queues as a stream. Nothing is locked, received or changed: sequence numbers are the offsets.

Spark asks how far a micro-batch goes, keeps the answer in its checkpoint and then has the batch read. A batch that is
read again after a crash covers the same numbers; what was completed, or expired, in the meantime is not in it.

A micro-batch has one task per queue and partition of it, unless `messagesPerPartition` says otherwise. A session lies
in one of these, so its messages are in one task, in the order of the backlog, and a later batch has only later ones.
"""

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sbpair.core.errors import EntityNotFoundError
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import Connection
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import SpanPartition, batches_of, find_spans
from sbpair.pipeline.spans import Span, pieces
from sbpair.pipeline.streaming.offsets import (
    Offset,
    after,
    before,
    next_number,
    place_of,
    shared,
    spans_between,
    up_to,
    within_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

POLL_AGAIN_SECONDS = 60.0


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages of queues in micro-batches."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._connection: Connection | None = None
        self._target: Offset | None = None
        """With `Trigger.AvailableNow`: where the stream ends."""
        self._latest: Offset | None = None
        self._found: list[tuple[str, bool]] = []
        self._look_again_at = -math.inf

    def initialOffset(self) -> Offset:
        with marking_errors():
            present = self._unread({})
            return after({}, present) if self.options.only_new else before(present)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.most_rows is not None:
            return ReadMaxRows(self.options.most_rows)
        if self.options.most_bytes is not None:
            return ReadMaxBytes(self.options.most_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with marking_errors():
            spans = self._unread(start)
            self._latest = after(start, spans)
            if self._target is not None:
                spans = up_to(spans, self._target)
            # Spark knows one limit at a time, and asks without any where a trigger wants everything at once.
            if not isinstance(limit, ReadAllAvailable):
                spans = self._admitted(spans, limit)
            return after(start, spans)

    def _admitted(self, spans: list[Span], limit: ReadLimit) -> list[Span]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most_rows
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.most_bytes
        if rows is not None:
            spans = shared(spans, rows)
        return spans if most_bytes is None else within_bytes(spans, most_bytes, self._sizes)

    def _sizes(self, span: Span) -> Iterator[tuple[int, int]]:
        for page in self._connected().browse(span):
            for one in page:
                yield one.sequence_number, len(one.payload)

    def reportLatestOffset(self) -> Offset | None:
        """For the lag in the query's progress: the end of the queues when they were last looked at."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        with marking_errors():
            self._target = after({}, self._unread({}))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with marking_errors():
            spans = spans_between(start, end, self._sources())
        cut = (
            spans if self.options.messages_per_partition is None else pieces(spans, self.options.messages_per_partition)
        )
        return [SpanPartition(index, span) for index, span in enumerate(cut)]

    def read(self, partition: Any) -> Iterator["pa.RecordBatch"]:
        if partition is None or partition.span is None:
            return
        with marking_errors():
            try:
                yield from batches_of(self.options, partition.span)
            except EntityNotFoundError:
                return  # deleted since the batch was planned, and all that it held with it

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None

    def _connected(self) -> Connection:
        """One connection for the life of the stream: this object stays in one process, tasks have their own."""
        if self._connection is None:
            self._connection = self.options.place.connect()
        return self._connection

    def _sources(self) -> list[tuple[str, bool]]:
        """The queues; those of a backlog are searched again every while, since senders may have made more."""
        now = time.monotonic()
        if now >= self._look_again_at:
            self._found, self._look_again_at = self.options.sources(self._connected()), now + POLL_AGAIN_SECONDS
        return self._found

    def _unread(self, offset: Offset) -> list[Span]:
        """What lies in the queues from an offset on.

        Raises:
            EntityNotFoundError: an entity does not exist that is not made when it is needed.
            ServiceError: one cannot be browsed.
        """
        return find_spans(
            self._connected(),
            self._sources(),
            unread=lambda queue, dead_letter, partition: next_number(offset, place_of(queue, dead_letter), partition),
            missing_is_empty=self.options.place.made_when_needed,
        )
