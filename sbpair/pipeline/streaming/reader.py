"""Reads queues as a stream. Nothing is locked, received or changed: sequence numbers are the offsets.

Spark asks how far a micro-batch goes, keeps the answer in its checkpoint and then has the batch read. A batch that is
read again after a crash covers the same numbers; what was completed, or expired, in the meantime is not in it. Offsets
say how many numbers held nothing when the stream came to them, and the log names them (`failOnDataLoss`).

A micro-batch has one task per queue and partition of it, unless `messagesPerPartition` says otherwise. A session lies
in one of these, so its messages are in one task, in the order of the backlog, and a later batch has only later ones.
"""

import logging
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
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
from sbpair.core.redact import quoted
from sbpair.core.words import counted
from sbpair.pipeline.errors import DataLossError, marking_errors
from sbpair.pipeline.executors import Connection
from sbpair.pipeline.schemas import source_columns
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import SpanPartition, batches_of, find_spans, refuse_topics
from sbpair.pipeline.spans import Span, pieces
from sbpair.pipeline.streaming.offsets import (
    Offset,
    Poll,
    after,
    moved,
    place_of,
    shared,
    spans_between,
    up_to,
    within_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

POLL_AGAIN_SECONDS = 60.0


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages of queues in micro-batches."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options, self.columns = options, source_columns(schema)
        self._connection: Connection | None = None
        self._target: Offset | None = None
        """With `Trigger.AvailableNow`: where the stream ends."""
        self._latest: Offset | None = None
        self._waiting_since: float | None = None
        self._told: set[str] = set()
        self._found: list[tuple[str, bool]] = []
        self._look_again_at = -math.inf

    def initialOffset(self) -> Offset:
        with marking_errors():
            poll = Poll({})
            present = self._unread(poll)
            ends = poll.after(present)
            begin = self.options.begin.found(self._connected(), present)
            return moved(ends, ((span, number) for span, number in zip(present, begin, strict=True)))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.most_rows is not None:
            return ReadMaxRows(self.options.most_rows)
        if self.options.most_bytes is not None:
            return ReadMaxBytes(self.options.most_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with marking_errors():
            poll = Poll(start)
            spans = self._unread(poll)
            self._latest = poll.after(spans)
            self._tell(poll, spans)
            if self._target is not None:
                spans = up_to(spans, self._target)
            elif self._too_few(spans):
                return start
            # Spark knows one limit at a time, and asks without any where a trigger wants everything at once.
            if not isinstance(limit, ReadAllAvailable):
                spans = self._admitted(spans, limit)
            self._waiting_since = None
            return poll.after(spans)

    def _too_few(self, spans: list[Span]) -> bool:
        """Whether to wait for more, for up to `maxTriggerDelay`. A query to the end of what is there does not wait."""
        least, now = self.options.least_rows, time.monotonic()
        if least is None or not spans or sum(span.width for span in spans) >= least:
            return False
        since = self._waiting_since = now if self._waiting_since is None else self._waiting_since
        return now - since < self.options.most_delay_seconds

    def _tell(self, poll: Poll, spans: list[Span]) -> None:
        """Say, or refuse, what the stream will not have.

        Raises:
            DataLossError: a queue was deleted and made again, unless `failOnDataLoss` is false; or messages were taken
                or expired before they were read, and it is true.
        """
        fails = self.options.fails_on_data_loss
        for (place, _), (number, at_ms) in poll.made_again.items():
            at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
            what = (
                f"{quoted(place)} was deleted and made again: its message {number}, of {at}, is newer than all that "
                "this query has read, whose numbers were higher. What the query had not read of the old queue is gone."
            )
            if fails is not False:
                raise DataLossError(
                    what, hint="failOnDataLoss=false reads the new queue from its beginning; so does a new checkpoint."
                )
            self._warn(f"{what} The new queue is read from its beginning.")
        for span in spans:
            if not (missed := poll.missed(span)):
                continue
            place = place_of(span.queue, span.dead_letter)
            what = (
                f"{counted(missed, 'number')} of {quoted(place)} before {span.first} held no message when the query "
                "came to them: what had them was completed, dead-lettered or expired before."
            )
            if fails:
                raise DataLossError(what, hint="Without failOnDataLoss=true this is counted in the offsets (`!`).")
            self._warn(what)

    def _warn(self, text: str) -> None:
        if text not in self._told:  # an offset that waits for more is asked for again
            self._told.add(text)
            logging.getLogger("sbpair").warning(text)

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
            self._target = after({}, self._unread(Poll({})))

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
                yield from batches_of(self.options, partition.span, self.columns)
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

    def _unread(self, poll: Poll) -> list[Span]:
        """What lies in the queues that the stream has not read.

        Raises:
            EntityNotFoundError: an entity does not exist that is not made when it is needed.
            ServiceError: one cannot be browsed.
        """
        missing = self.options.place.made_when_needed
        found = find_spans(self._connected(), self._sources(), unread=poll.unread, missing_is_empty=missing)
        if not found and not missing:
            refuse_topics(self._connected(), self._sources())
        return found
