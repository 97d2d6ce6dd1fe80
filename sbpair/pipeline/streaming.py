"""Queues as a stream: offsets, reader and writer of `readStream` and `writeStream`. What reads locks, receives and
changes nothing: sequence numbers are the offsets.

Spark asks how far a micro-batch goes, keeps the answer in its checkpoint and then has the batch read. A batch that is
read again after a crash covers the same numbers; what was completed, or expired, in the meantime is not in it. Offsets
say how many numbers held nothing when the stream came to them, and the log names them (`failOnDataLoss`).

A micro-batch has one task per queue and partition of it, unless `messagesPerPartition` says otherwise. A session lies
in one of these, so its messages are in one task, in the order of the backlog, and a later batch has only later ones.

How far a stream has read: for each queue and each of its partitions the next sequence number. Pure arithmetic.

    {"contoso-weu/x-servicebus-transfer/0": {"0": 1017, "0@": 1764000000000, "0!": 3}}

A partitioned entity counts in each of its partitions by itself, and the partition is in the top 16 bits of a number
("Message sequencing and timestamps"): a partition that an offset does not name has not been read at all, one that gets
its first message later is read from its beginning. Paths are in lower case, as names are compared without case; that of
a dead-letter sub-queue ends with `/$deadletterqueue`.

Beside the number of a partition stand facts, by which a later micro-batch sees what it cannot read any more:

    @   when the newest message seen there had been enqueued (UTC epoch milliseconds). A newer message with a number
        that was read already is of a queue that was deleted and made again, which counts from 1 again
    #   how often that happened
    !   how many numbers held no message when the stream came to them: it was completed, dead-lettered or expired before
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sbpair.core.errors import EntityNotFoundError, UsageError
from sbpair.core.message import PARTITION_SHIFT, MessageState, Received
from sbpair.core.names import dead_letter_path, split_source
from sbpair.core.redact import quoted
from sbpair.core.words import counted
from sbpair.pipeline.errors import DataLossError, marking_errors
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.rows import source_columns
from sbpair.pipeline.runs import drop_locks, fold_stream, ledgers_before, query_of, stream_run
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.source.reader import batches_of, find_spans
from sbpair.pipeline.source.writer import ReplayMessage, ReplayWriter, WriteOptions, refused_rows, total_of
from sbpair.pipeline.spans import NumberRange, pieces
from sbpair.pipeline.tasks import PLACES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


Offset = dict[str, dict[str, int]]
"""As Spark keeps it in a checkpoint: JSON whose keys are in order, so that equal offsets are equal texts."""
Known = Mapping[str, Mapping[str, int]]
"""An offset that is only read."""


def place_of(queue: str, dead_letter: bool) -> str:
    """The key of a queue in an offset."""
    return (dead_letter_path(queue) if dead_letter else queue).lower()


def _at(span: NumberRange) -> tuple[str, int]:
    """Where an offset has the span's partition."""
    return place_of(span.queue, span.dead_letter), span.partition


def next_number(offset: Known, place: str, partition: int) -> int:
    """The first number that was not read yet."""
    return offset.get(place, {}).get(str(partition), max(1, partition << PARTITION_SHIFT))


def moved(offset: Known, numbers: Iterable[tuple[NumberRange, int]]) -> Offset:
    """The offset with the next number of some spans' partitions set."""
    found = {place: dict(partitions) for place, partitions in offset.items()}
    for span, number in numbers:
        place, partition = _at(span)
        found.setdefault(place, {})[str(partition)] = number
    return _ordered(found)


def _ordered(offset: Offset) -> Offset:
    return {place: dict(sorted(offset[place].items())) for place in sorted(offset)}


def after(offset: Known, spans: Iterable[NumberRange]) -> Offset:
    """Where a stream stands that has read these spans as well."""
    return moved(offset, ((span, span.last + 1) for span in spans))


def spans_between(start: Known, end: Known, sources: Sequence[tuple[str, bool]]) -> list[NumberRange]:
    """What one micro-batch reads: all that its offsets name, also of a place that is not among the sources when it is
    carried out. `sources` give the places their own spelling."""
    spelled = {place_of(queue, dead_letter): (queue, dead_letter) for queue, dead_letter in sources}
    spans = []
    for place, partitions in end.items():
        for partition in filter(str.isdecimal, partitions):
            lives = {offset.get(place, {}).get(f"{partition}#", 0) for offset in (start, end)}
            first = next_number(start if len(lives) == 1 else {}, place, int(partition))
            spans.append(NumberRange(*(spelled.get(place) or split_source(place)), first, partitions[partition] - 1))
    return [span for span in spans if span.width > 0]


class Poll:
    """What one look into the queues finds beyond the numbers, compared with where the stream stands."""

    def __init__(self, offset: Known) -> None:
        self._offset = offset
        self._newest: dict[tuple[str, int], int] = {}
        self.made_again: dict[tuple[str, int], tuple[int, int]] = {}
        """Partitions of a queue that was deleted and made again: the number and time of a message that shows it."""

    def unread(self, queue: str, dead_letter: bool, found: Received) -> int:
        """The first number of a message's partition that the stream has not read."""
        place, partition = place_of(queue, dead_letter), found.sequence_number >> PARTITION_SHIFT
        number = next_number(self._offset, place, partition)
        if found.enqueued_at is not None and found.state is not MessageState.SCHEDULED:
            at_ms = round(found.enqueued_at * 1000)
            self._newest[place, partition] = max(at_ms, self._newest.get((place, partition), at_ms))
            known = self._offset.get(place, {}).get(f"{partition}@")
            if found.sequence_number < number and known is not None and at_ms > known + CLOCKS_DIFFER_MS:
                self.made_again[place, partition] = found.sequence_number, at_ms
        return next_number({}, place, partition) if (place, partition) in self.made_again else number

    def after(self, spans: Sequence[NumberRange]) -> Offset:
        """Where a stream stands that has read these spans as well, with what is known of them."""
        offset = after(self._offset, spans)
        for span in spans:
            place, partition = _at(span)
            facts = offset[place]
            if (newest := self._newest.get((place, partition))) is not None:
                facts[f"{partition}@"] = max(newest, facts.get(f"{partition}@", newest))
            if (place, partition) in self.made_again:
                facts[f"{partition}#"] = facts.get(f"{partition}#", 0) + 1
            if missed := self.missed(span):
                facts[f"{partition}!"] = facts.get(f"{partition}!", 0) + missed
        return _ordered(offset)

    def missed(self, span: NumberRange) -> int:
        """Numbers before a span that the stream has not read and that hold no message. Dead letters keep numbers of
        their queue, so that theirs have gaps."""
        place, partition = _at(span)
        known = self._offset.get(place, {}).get(str(partition))
        if span.dead_letter or known is None or (place, partition) in self.made_again:
            return 0
        return max(0, span.first - known)


CLOCKS_DIFFER_MS = 2_000
"""Two brokers of a namespace may differ by this much in the time that they stamp."""


def up_to(spans: Iterable[NumberRange], end: Known) -> list[NumberRange]:
    """The part of the spans that lies before `end`; nothing of a partition that it does not name."""
    cut = []
    for span in spans:
        place, partition = _at(span)
        number = end.get(place, {}).get(str(partition))
        if number is not None and number > span.first:
            cut.append(replace(span, last=min(span.last, number - 1)))
    return cut


def shared(spans: Sequence[NumberRange], most: int) -> list[NumberRange]:
    """Up to `most` numbers of the spans together, from the beginning of each: as even as their widths allow, so that a
    long queue does not keep the others waiting."""
    taken: list[NumberRange] = []
    left = most
    for rank, span in enumerate(sorted(spans, key=_width)):
        width = min(span.width, left // (len(spans) - rank))
        if width:
            taken.append(replace(span, last=span.first + width - 1))
        left -= width
    return taken


def _width(span: NumberRange) -> tuple[int, NumberRange]:
    """For the order in which each may have its share of what is left: what a narrow one does not need, wider ones
    get."""
    return span.width, span


def within_bytes(
    spans: Sequence[NumberRange], most: int, sizes: Callable[[NumberRange], Iterable[tuple[int, int]]]
) -> list[NumberRange]:
    """The beginning of each span whose messages have up to `most` bytes together, but at least one message of all.
    `sizes`: sequence number and bytes of each message of a span, in the order of numbers; asked no further than needed.
    """
    taken: list[NumberRange] = []
    left = most
    for rank, span in enumerate(sorted(spans, key=_width)):
        share, used, last = left // (len(spans) - rank), 0, None
        for number, size in sizes(span):
            alone = rank == len(spans) - 1 and not taken and last is None
            if used + size > share and not alone:
                break
            used, last = used + size, number
        else:
            last = span.last
        left = max(0, left - used)
        if last is not None:
            taken.append(replace(span, last=last))
    return taken


POLL_AGAIN_SECONDS = 60.0


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages of queues in micro-batches."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options, self.columns = options, source_columns(schema)
        self._connection: TaskConnection | None = None
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

    def _too_few(self, spans: list[NumberRange]) -> bool:
        """Whether to wait for more, for up to `maxTriggerDelay`. A query to the end of what is there does not wait."""
        least, now = self.options.least_rows, time.monotonic()
        if least is None or not spans or sum(span.width for span in spans) >= least:
            return False
        since = self._waiting_since = now if self._waiting_since is None else self._waiting_since
        return now - since < self.options.most_delay_seconds

    def _tell(self, poll: Poll, spans: list[NumberRange]) -> None:
        """Say, or refuse, what the stream will not have. Raises DataLossError: a queue was deleted and made again,
        unless `failOnDataLoss` is false; or messages were taken or expired before they were read, and it is true."""
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
            what = (
                f"{counted(missed, 'number')} of {quoted(_at(span)[0])} before {span.first} held no message when the "
                "query came to them: what had them was completed, dead-lettered or expired before."
            )
            if fails:
                raise DataLossError(what, hint="Without failOnDataLoss=true this is counted in the offsets (`!`).")
            self._warn(what)

    def _warn(self, text: str) -> None:
        if text not in self._told:  # an offset that waits for more is asked for again
            self._told.add(text)
            logging.getLogger("sbpair").warning(text)

    def _admitted(self, spans: list[NumberRange], limit: ReadLimit) -> list[NumberRange]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most_rows
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.most_bytes
        if rows is not None:
            spans = shared(spans, rows)
        return spans if most_bytes is None else within_bytes(spans, most_bytes, self._sizes)

    def _sizes(self, span: NumberRange) -> Iterator[tuple[int, int]]:
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
        most = self.options.messages_per_partition
        return [InputPartition(span) for span in (spans if most is None else pieces(spans, most))]

    def read(self, partition: InputPartition | None) -> Iterator["pa.RecordBatch"]:
        if partition is None:
            return
        with marking_errors():
            try:
                yield from batches_of(self.options, partition.value, self.columns)
            except EntityNotFoundError:
                return  # deleted since the batch was planned, and all that it held with it

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__()
            self._connection = None

    def _connected(self) -> TaskConnection:
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

    def _unread(self, poll: Poll) -> list[NumberRange]:
        """What lies in the queues that the stream has not read; raises as `find_spans`."""
        missing = self.options.place.made_when_needed
        return find_spans(self._connected(), self._sources(), unread=poll.unread, missing_is_empty=missing)


# Sends the rows of a stream: the writer of `sbpair-backlog` and `servicebus` for `writeStream`.


class ReplayStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream, micro-batch after micro-batch. They have a ledger (`WriteOptions.parse` sees to it).

    Spark runs a micro-batch again that it is not sure of, after a crash with the same query id and number. These are
    the name of the run in the ledger, so what any task of the micro-batch has sent before is left out: by the place of
    each message, its MessageId and the time at which it was put there. So is what other queries, jobs and checkpoints
    have sent to the same destination with this ledger; a query's own earlier micro-batches hold other messages. A batch
    of messages that was sent but not acknowledged when a process died may arrive twice, with the same MessageId:
    duplicate detection at the destination covers that. Raises UsageError: the frame's columns are not what that place
    takes."""

    def __init__(self, options: WriteOptions, schema: "StructType") -> None:
        assert options.ledger is not None  # noqa: S101
        self._folder = options.ledger
        self._writer = ReplayWriter(options, schema)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> ReplayMessage:
        context = TaskContext.get()
        query, batch = (
            None if context is None else context.getLocalProperty(PLACES[one]) for one in ("query", "batch")
        )
        with marking_errors():
            if query is None or batch is None:
                raise UsageError("Spark does not say of which query and micro-batch this task is; nothing was sent.")
            run = stream_run(query, batch)
            before = ledgers_before(self._folder, of_run=None, without=f"stream-{query_of(run)}")
        return self._writer.write_in(run, iterator, whole_run=True, before=before)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        total, runs = total_of(messages), {one.run for one in messages if isinstance(one, ReplayMessage)}
        for run in runs:
            drop_locks(self._folder, run)
        if total.refusals:
            refused = refused_rows(total)
            if self._writer.options.fail_on_refused:
                with marking_errors():
                    raise refused
            logging.getLogger("sbpair").warning("%s %s", refused.message, refused.hint)
        for query in {query_of(run) for run in runs}:
            fold_stream(self._folder, query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back; the ledger has what was sent. Tasks may still run, so their locks stay."""
