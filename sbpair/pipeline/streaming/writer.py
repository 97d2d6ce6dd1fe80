"""Sends the rows of a stream: the writer of `sbpair-backlog` and `servicebus` for `writeStream`."""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sbpair.core.errors import UsageError
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.runs import drop_locks, fold_stream, ledgers_before, query_of, stream_run
from sbpair.pipeline.source.writer import ReplayMessage, ReplayWriter, Tally, WriteOptions, refused_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Where Spark tells a task of which query and micro-batch it is."""


class ReplayStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream, micro-batch after micro-batch. They have a ledger (`WriteOptions.parse` sees to it).

    Spark runs a micro-batch again that it is not sure of, after a crash with the same query id and number. These are
    the name of the run in the ledger, so what any task of the micro-batch has sent before is left out: by the place of
    each message, its MessageId and the time at which it was put there. So is what other queries, jobs and checkpoints
    have sent to the same destination with this ledger; a query's own earlier micro-batches hold other messages. A batch
    of messages that was sent but not acknowledged when a process died may arrive twice, with the same MessageId:
    duplicate detection at the destination covers that.

    Raises:
        UsageError: the frame's columns are not what that place takes.
    """

    def __init__(self, options: WriteOptions, schema: "StructType") -> None:
        assert options.ledger is not None  # noqa: S101
        self._folder = options.ledger
        self._writer = ReplayWriter(options, schema)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> ReplayMessage:
        run = _run_of_task()
        with marking_errors():
            before = ledgers_before(self._folder, of_run=None, without=f"stream-{query_of(run)}")
        return self._writer.write_in(run, iterator, whole_run=True, before=before)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._drop_locks(messages)
        total = Tally()
        for one in messages:
            if isinstance(one, ReplayMessage):
                total.add(one.tally)
        if total.refusals:
            refused = refused_rows(total)
            if self._writer.options.fail_on_refused:
                with marking_errors():
                    raise refused
            logging.getLogger("sbpair").warning("%s %s", refused.message, refused.hint)
        for query in {query_of(one.run) for one in messages if isinstance(one, ReplayMessage)}:
            fold_stream(self._folder, query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back; the ledger has what was sent. Tasks may still run, so their locks stay."""

    def _drop_locks(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for run in {one.run for one in messages if isinstance(one, ReplayMessage)}:
            drop_locks(self._folder, run)


def _run_of_task() -> str:
    """The run that this task's micro-batch is."""
    context = TaskContext.get()
    query, batch = (None if context is None else context.getLocalProperty(name) for name in (_QUERY, _BATCH))
    with marking_errors():
        if query is None or batch is None:
            raise UsageError("Spark does not say of which query and micro-batch this task is; nothing was sent.")
    return stream_run(query, batch)
