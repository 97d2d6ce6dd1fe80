"""Reads a backlog in parallel: the driver finds which numbers hold messages, tasks browse a span of them each.

Nothing is locked, received or changed: Spark runs `read` again for every action and every retry, so it may only look.
"""

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sbpair.concurrency import side_by_side
from sbpair.core.durations import as_utc
from sbpair.core.errors import EntityNotFoundError, ServiceError, UsageError
from sbpair.core.message import Received
from sbpair.core.redact import quoted
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import TaskConnection, first_from
from sbpair.pipeline.rows import arrow_schema, rows_of, source_columns, to_batch
from sbpair.pipeline.source.options import EARLIEST, LATEST, MESSAGES_PER_PARTITION, Position, ReadOptions
from sbpair.pipeline.spans import NumberRange, occupied, pieces
from sbpair.pipeline.tasks import logged_task, pace_of, span_facts
from sbpair.runtime.links import closing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

BATCH_ROWS = 2_000
CLOCKS_DIFFER_MS = 60_000


class BacklogReader(DataSourceReader):
    """Messages of queues as Arrow batches."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options, self.columns = options, source_columns(schema)

    def partitions(self) -> list[InputPartition]:
        with marking_errors():
            spans = self.options.ranges if self.options.ranges is not None else self._occupied()
            cut = pieces(spans, self.options.messages_per_partition or MESSAGES_PER_PARTITION)
        # A task for each span. Spark reads one partition in any case; without a span that one is empty.
        return [InputPartition(span) for span in cut] or [InputPartition(None)]

    def _occupied(self) -> list[NumberRange]:
        options = self.options
        with options.place.connect() as connection:
            sources, missing_is_empty = options.sources(connection), options.place.made_when_needed
            first, last = options.first, options.last
            found = find_spans(connection, sources, first=first, last=last, missing_is_empty=missing_is_empty)
            begin = map(max, *(one.found(connection, found) for one in (options.begin, options.since)))
            end = map(min, *(one.found(connection, found) for one in (options.end, options.until)))
        cut = (replace(span, first=b, last=e - 1) for span, b, e in zip(found, begin, end, strict=True))
        return [span for span in cut if span.width > 0]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if partition.value is None:
            return
        with marking_errors():
            yield from batches_of(self.options, partition.value, self.columns)

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":
        """Look only where filters let messages be; Spark filters again what it gets."""
        from pyspark.sql import datasource as spark

        options = self.options
        for condition in filters:
            column, value = ".".join(getattr(condition, "attribute", ())), getattr(condition, "value", None)
            below, above = isinstance(condition, spark.LessThan), isinstance(condition, spark.GreaterThan)
            up = isinstance(condition, spark.EqualTo | spark.GreaterThan | spark.GreaterThanOrEqual)
            down = isinstance(condition, spark.EqualTo | spark.LessThan | spark.LessThanOrEqual)
            if column == "sequence_number" and isinstance(value, int):
                if up:
                    options = replace(options, first=max(options.first, value + above))
                if down:
                    options = replace(options, last=min(options.last, value - below))
            elif column == "enqueued_at" and isinstance(value, datetime):
                at_ms = math.floor(as_utc(value).timestamp() * 1000)  # times rise with numbers but for brokers' clocks
                if up:
                    options = replace(options, since=Position(EARLIEST, at_ms=at_ms - CLOCKS_DIFFER_MS))
                if down:
                    options = replace(options, until=Position(LATEST, at_ms=at_ms + CLOCKS_DIFFER_MS))
            elif column == "queue" and isinstance(condition, spark.EqualTo | spark.In):
                paths = condition.value if isinstance(condition, spark.In) else [value]
                wanted = {str(path).lower() for path in paths}
                options = replace(options, only=wanted if options.only is None else options.only & wanted)
            elif column == "dead_letter" and isinstance(condition, spark.EqualTo):
                options = replace(options, dead_letters=tuple(dead for dead in options.dead_letters if dead is value))
            yield condition
        self.options = options


def batches_of(
    options: ReadOptions, span: NumberRange, columns: tuple[tuple[str, str, str], ...]
) -> Iterator["pa.RecordBatch"]:
    """What lies in a span now, as rows of these columns."""
    without = {"payload"} if not options.include_payload else set[str]()
    without |= {"body", "body_text"} if not options.include_body else set()
    row_of = rows_of(options.place.name, [name for name, *_ in columns], without)
    schema = arrow_schema(columns)
    with options.place.connect() as connection:
        rows: list[tuple[Any, ...]] = []
        pace = pace_of(connection.namespace, options.most_per_second)
        with logged_task("browse", connection.namespace, pace, **span_facts(span)) as done:
            for page in connection.browse(span, pace):
                done.count(page)
                with uncollected():
                    rows += map(row_of, page)
                if len(rows) >= BATCH_ROWS:
                    yield to_batch(rows, schema)
                    rows = []
            if rows:
                yield to_batch(rows, schema)


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles, of which decoding makes none: it would look through all that a page has become, many times
    while it becomes that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refuse_topics(connection: TaskConnection, sources: Sequence[tuple[str, bool]]) -> None:
    """A topic can be browsed (for what is scheduled in it) and shows nothing. Asked for a deferred message, of which it
    has none either, it says what it is."""

    async def check(source: tuple[str, bool]) -> None:
        try:
            async with closing(connection.receiver(source[0], dead_letter=source[1])) as receiver:
                await receiver.receive_deferred([1])
        except ServiceError as error:
            if "topic" in error.message.lower().replace(source[0].lower(), ""):
                raise UsageError(
                    f"{quoted(source[0])} is a topic, which holds no messages.",
                    hint=f"Read one of its subscriptions: {source[0]}/Subscriptions/NAME.",
                ) from error

    connection.run(side_by_side(check, [source for source in sources if "/subscriptions/" not in source[0].lower()]))


def find_spans(
    connection: TaskConnection,
    sources: Sequence[tuple[str, bool]],
    *,
    first: int = 1,
    last: int | None = None,
    unread: Callable[[str, bool, Received], int] | None = None,
    missing_is_empty: bool = True,
) -> list[NumberRange]:
    """Where messages lie now, in all of the sources. `unread`: for a queue, whether its dead letters are meant, and a
    message there, the first number of the message's partition that counts. It is asked of the first messages of each
    partition, and of the last one.

    Raises:
        UsageError: nothing lies in any of them, and one is a topic.
        EntityNotFoundError: one of them does not exist, unless that means that it is empty: backlog queues come into
            being when a sender fails over to them.
        ServiceError: one of them cannot be browsed.
    """

    async def spans_of(source: tuple[str, bool]) -> list[NumberRange]:
        queue, dead_letter = source

        async def first_number(number: int) -> int | None:
            while (found := await first_from(receiver, number)) is not None:
                there = found.sequence_number
                wanted = 0 if unread is None else unread(queue, dead_letter, found)
                if there >= wanted:
                    return there
                number = wanted
            return None

        try:
            async with closing(connection.receiver(queue, dead_letter=dead_letter)) as receiver:
                return [one async for one in occupied(queue, dead_letter, first_number, first=max(first, 1), last=last)]
        except EntityNotFoundError:
            if not missing_is_empty:
                raise
            return []

    found = list(chain.from_iterable(connection.run(side_by_side(spans_of, sources))))
    if not found and not missing_is_empty:
        _refuse_topics(connection, sources)
    return found
