"""Queues as a stream: offsets that a checkpoint keeps, limits of a micro-batch, and what a restart reads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import ConfigurationError, EntityNotFoundError, UsageError
from sbpair.core.message import PARTITION_SHIFT, Disposition
from sbpair.core.summary import describe
from sbpair.emulator.entities import QueueDescription, TopicDescription
from sbpair.pipeline.errors import TaskError, error_in
from sbpair.pipeline.executors import TaskConnection
from sbpair.pipeline.rows import body_of, source_columns, spark_schema
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.pipeline.streaming import CLOCKS_DIFFER_MS, Offset, QueueStreamReader
from tests.pipeline.stage import Stage, backlog, entity_options, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def reading(options: dict[str, str], *, of_backlog: bool = True, **more: Any) -> Iterator[QueueStreamReader]:
    """A reader as Spark's process has it."""
    given = options | {name: str(value) for name, value in more.items()}
    reader = QueueStreamReader(
        ReadOptions.parse(given, of_backlog=of_backlog, stream=True), spark_schema(source_columns())
    )
    try:
        yield reader
    finally:
        reader.stop()


def step(reader: QueueStreamReader, start: Offset) -> tuple[Offset, list[str]]:
    """The next micro-batch: where it ends, and the ids of its messages."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return end, ids(reader, start, end)


def numbers(offset: Offset) -> Offset:
    """Without what an offset knows beside the next numbers."""
    return {place: {key: one for key, one in found.items() if key.isdecimal()} for place, found in offset.items()}


def ids(reader: QueueStreamReader, start: Offset, end: Offset) -> list[str]:
    batches = (batch for one in reader.partitions(start, end) for batch in reader.read(one))
    return [one for batch in batches for one in batch.column("message_id").to_pylist()]


def test_batches_keep_to_the_limit_of_rows_and_no_queue_keeps_another_waiting(stage: Stage) -> None:
    stage.divert(messages(40, prefix="long"), queue=0)
    stage.divert(messages(3, prefix="short"), queue=1)
    with reading(stage.options, maxOffsetsPerTrigger=10) as reader:
        start = reader.initialOffset()
        end, first = step(reader, start)
        assert first == [*(f"long-{n}" for n in range(7)), *(f"short-{n}" for n in range(3))]
        everything = reader.latestOffset(end, ReadAllAvailable())
        assert ids(reader, end, everything) == [f"long-{n}" for n in range(7, 40)]
        assert step(reader, everything) == (everything, [])
        assert reader.reportLatestOffset() == everything


def test_queues_beyond_the_configured_ones_belong_to_the_stream(stage: Stage) -> None:
    """An application that ran with more queues than the file says."""
    stage.emulator.namespace("shop-neu").create_queue(backlog(17), QueueDescription())
    stage.divert(messages(3), queue=0)
    stage.divert(messages(4, prefix="beyond"), queue=17)
    with reading(stage.options) as reader:
        end, found = step(reader, reader.initialOffset())
    assert sorted(found) == [*(f"beyond-{n}" for n in range(4)), *(f"m-{n}" for n in range(3))]
    assert numbers(end)[backlog(17)] == {"0": 5}


def test_batches_keep_to_the_limit_of_bytes_but_one_message_always_goes(stage: Stage) -> None:
    stage.divert([*messages(4), *messages(1, prefix="large", application_properties={"x": "x" * 3000})])
    size = len(stage.browse("secondary", backlog(0))[0].payload)
    with reading(stage.options, maxBytesPerTrigger=2 * size + 1) as reader:
        first, one = step(reader, reader.initialOffset())
        second, two = step(reader, first)
        _, three = step(reader, second)
    assert [one, two, three] == [["m-0", "m-1"], ["m-2", "m-3"], ["large-0"]]


def test_what_was_completed_after_planning_is_no_error_and_the_rest_is_read(stage: Stage) -> None:
    stage.divert(messages(5))
    with reading(stage.options) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        with TaskConnection.to(stage.pair, "secondary") as connection:
            receiver = connection.receiver(backlog(0), dead_letter=False)
            for one in connection.run(receiver.receive(2, wait_seconds=5)):
                connection.run(receiver.settle(one, Disposition.COMPLETE))
        left = [one.message_id for one in stage.browse("secondary", backlog(0))]
        assert ids(reader, start, end) == left
        stage.emulator.namespace("shop-neu").delete_queue(backlog(0))
        assert ids(reader, start, end) == []


def test_available_now_ends_where_the_queues_ended_when_it_began(stage: Stage) -> None:
    stage.divert(messages(4))
    with reading(stage.options, maxOffsetsPerTrigger=3) as reader:
        reader.prepareForTriggerAvailableNow()
        stage.divert(messages(9, prefix="late"))
        stage.divert(messages(9, prefix="late"), queue=1)
        offset, first = step(reader, reader.initialOffset())
        offset, second = step(reader, offset)
        assert first + second == [f"m-{n}" for n in range(4)]
        assert step(reader, offset) == (offset, [])


def test_only_what_comes_later_with_dead_letters(stage: Stage) -> None:
    stage.divert(messages(3))
    stage.dead_letter_all(0, "Broken")
    stage.divert(messages(3, prefix="before"))
    with reading(stage.options, startingOffsets="latest", deadLetters="both") as reader:
        start = reader.initialOffset()
        assert numbers(start) == {backlog(0): {"0": 7}, f"{backlog(0)}/$deadletterqueue": {"0": 4}}
        stage.divert(messages(2, prefix="after"))
        assert step(reader, start)[1] == ["after-0", "after-1"]


def test_a_partitioned_queue_is_read_once_whatever_order_its_partitions_fill_in(stage: Stage) -> None:
    """Each partition counts for itself, so a later message may have a lower number than one that was read."""
    stage.emulator.namespace("shop-weu").create_queue("split", QueueDescription(enable_partitioning=True))
    read: list[str] = []
    with reading(entity_options(stage, "split"), of_backlog=False, maxOffsetsPerTrigger=4) as reader:
        offset = reader.initialOffset()
        for part in range(5):
            for payload in messages(6, prefix=f"p{part}", sessions=6):  # a batch has one partition key
                stage.send("primary", "split", [payload])
            offset, some = step(reader, offset)
            assert 0 < len(some) <= 4
            read += some
        while some:
            offset, some = step(reader, offset)
            read += some
    assert sorted(read) == sorted(f"p{part}-{n}" for part in range(5) for n in range(6))
    (partitions,) = numbers(offset).values()
    assert len(partitions) > 1
    assert all(number >> PARTITION_SHIFT == int(partition) for partition, number in partitions.items())


def test_an_entity_that_is_not_there_is_an_error_and_a_backlog_queue_is_empty(stage: Stage) -> None:
    with reading(entity_options(stage, "nowhere"), of_backlog=False) as reader:
        with pytest.raises(TaskError) as raised:
            reader.initialOffset()
        assert isinstance(error_in(str(raised.value)), EntityNotFoundError)
    stage.emulator.namespace("shop-neu").delete_queue(backlog(2))
    with reading(stage.options) as reader:
        assert reader.initialOffset() == {}


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"entity": "orders", "connectionString": "Endpoint=sb://x/;SharedAccessKey=hush"}, UsageError, "is a secret"),
        ({"entity": "orders", "namespace": "Endpoint=sb://x/;SharedAccessKey=hush"}, UsageError, "name or the host"),
        ({"namespace": "contoso-weu"}, UsageError, "entity is missing"),
        ({"entity": "orders", "namespace": "contoso-weu", "auth": "magic"}, UsageError, "auth is connection-string, "),
        ({"entity": "orders", "namespace": "contoso-weu", "pair": "shop"}, UsageError, "no option 'pair'"),
        ({"entity": "orders", "namespace": "contoso-weu", "startingOffsets": "5"}, UsageError, "earliest, latest"),
        ({"entity": "orders", "namespace": "contoso-weu", "maxOffsetsPerTrigger": "0"}, UsageError, "at least 1"),
        ({"entity": "orders", "maxRowsPerBatch": "5"}, UsageError, "no option 'maxRowsPerBatch'"),
        ({"entity": "orders", "namespace": "contoso-weu", "startingOffsets": "[1]"}, UsageError, "JSON by queue"),
        ({"entity": "orders", "namespace": "contoso-weu", "startingTimestamp": "noon"}, UsageError, "is ISO 8601"),
        ({"entity": "orders", "namespace": "contoso-weu", "firstSequence": "7"}, UsageError, "no option"),
        ({"entity": "orders", "connectionStringEnv": "A", "connectionStringFile": "b"}, UsageError, "not both"),
        ({"entity": "orders"}, ConfigurationError, "which namespace"),
        ({"entity": "orders", "connectionStringEnv": "SBPAIR_NOT_SET"}, ConfigurationError, "SBPAIR_NOT_SET is empty"),
    ],
)
def test_options_are_strict_and_no_secret_is_repeated(
    options: dict[str, str], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as raised:
        ReadOptions.parse(options, of_backlog=False, stream=True).place.connect()
    assert "hush" not in str(raised.value)


def run_to_the_end(frame: "DataFrame", stage: Stage) -> list[list[str]]:
    """A query to the end of what is there; the message ids of each micro-batch that had rows."""
    batches: list[list[str]] = []

    def take(batch: "DataFrame", _: int) -> None:
        batches.append([row[0] for row in batch.select("message_id").collect()])

    checkpoint = str(stage.folder / "checkpoint")
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    return batches


@pytest.mark.spark
def test_a_query_restarted_from_its_checkpoint_continues_exactly(
    spark: "SparkSession", session: StartedSpark, stage: Stage
) -> None:
    for queue in range(2):
        stage.divert(messages(20, prefix=f"q{queue}"), queue=queue)
    given = stage.options | {"maxOffsetsPerTrigger": "25"}
    stream = spark.readStream.format("sbpair-backlog").options(**given).load()
    first, second = run_to_the_end(stream, stage)
    assert len(first) == 25
    assert sorted(first + second) == sorted(f"q{queue}-{n}" for queue in range(2) for n in range(20))
    stage.divert(messages(5, prefix="later"), queue=2)
    assert run_to_the_end(stream, stage) == [[f"later-{n}" for n in range(5)]]
    assert stage.in_backlog() == 45
    kept = [path.read_bytes() for path in (stage.folder / "checkpoint").rglob("*") if path.is_file()]
    for name in ("shop-weu", "shop-neu"):
        key = stage.key(name)
        assert all(key.encode() not in data for data in kept)
        assert key not in session.log.read_text()


@pytest.mark.spark
def test_any_entity_of_a_namespace_is_a_frame(spark: "SparkSession", stage: Stage) -> None:
    stage.send("primary", "orders", messages(7, sessions=2))
    frame = spark.read.format("servicebus").options(**entity_options(stage, "orders")).load()
    rows = frame.select("pair", "queue", "message_id", "session_id", "destination").collect()
    assert sorted(row["message_id"] for row in rows) == [f"m-{n}" for n in range(7)]
    assert {(row["pair"], row["queue"], row["destination"]) for row in rows} == {("shop-weu", "orders", None)}
    assert {row["session_id"] for row in rows} == {"s-0", "s-1"}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("servicebus").options(**entity_options(stage, "nowhere")).load().count()
    assert isinstance(error_in(str(raised.value)), EntityNotFoundError)


def remake(stage: Stage, entity: str) -> None:
    namespace = stage.emulator.namespace("shop-weu")
    namespace.delete_queue(entity)
    namespace.create_queue(entity, QueueDescription())


def test_a_queue_that_was_deleted_and_made_again_is_noticed(stage: Stage) -> None:
    stage.send("primary", "orders", messages(5, prefix="old"))
    options = entity_options(stage, "orders")
    with reading(options, of_backlog=False) as reader:
        start, _ = step(reader, reader.initialOffset())
    time.sleep(CLOCKS_DIFFER_MS / 1000 + 0.5)  # what the broker stamps differs by more than two clocks may
    remake(stage, "orders")
    stage.send("primary", "orders", messages(7, prefix="new"))
    with reading(options, of_backlog=False) as reader, pytest.raises(TaskError, match="deleted and made again"):
        reader.latestOffset(start, ReadAllAvailable())
    with reading(options, of_backlog=False, failOnDataLoss="false") as reader:
        end, found = step(reader, start)
        assert found == [f"new-{number}" for number in range(7)]
        assert step(reader, end) == (end, [])


def test_what_was_taken_between_two_batches_is_counted_or_fails(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.send("primary", "orders", messages(5))
    options = entity_options(stage, "orders")
    with reading(options, of_backlog=False) as reader:
        start, _ = step(reader, reader.initialOffset())
        stage.send("primary", "orders", messages(4, prefix="later"))
        with TaskConnection.to(stage.pair, "primary") as connection:
            receiver = connection.receiver("orders", dead_letter=False)
            for one in connection.run(receiver.receive(8, wait_seconds=10)):
                connection.run(receiver.settle(one, Disposition.COMPLETE))
        end, found = step(reader, start)
        assert found == ["later-3"]
        assert end["orders"]["0!"] == 3
        assert "3 numbers of" in caplog.text
    failing = reading(options, of_backlog=False, failOnDataLoss="true")
    with failing as reader, pytest.raises(TaskError, match="held no message"):
        reader.latestOffset(start, ReadAllAvailable())


def test_where_a_stream_begins(stage: Stage) -> None:
    stage.send("primary", "orders", messages(5))
    at = stage.at_home()[-1].enqueued_at or 0.0
    time.sleep(0.05)
    stage.send("primary", "orders", messages(3, prefix="later"))
    for option, value, expected in (
        ("startingOffsets", '{"ORDERS": 4}', 5),
        ("startingOffsets", '{"orders": {"0": -1}}', 0),
        ("startingOffsets", "latest", 0),
        ("startingTimestamp", str(round(at * 1000) + 1), 3),
    ):
        with reading(entity_options(stage, "orders"), of_backlog=False, **{option: value}) as reader:
            assert len(step(reader, reader.initialOffset())[1]) == expected, option


def test_a_small_batch_waits_for_more_but_not_for_ever(stage: Stage) -> None:
    stage.send("primary", "orders", messages(5))
    more = {"minOffsetsPerTrigger": "8", "maxTriggerDelay": "1h"}
    with reading(entity_options(stage, "orders"), of_backlog=False, **more) as reader:
        begin = reader.initialOffset()
        assert step(reader, begin) == (begin, [])
        stage.send("primary", "orders", messages(3, prefix="later"))
        assert len(step(reader, begin)[1]) == 8
    with reading(entity_options(stage, "orders"), of_backlog=False, **(more | {"maxTriggerDelay": "0s"})) as reader:
        assert len(step(reader, begin)[1]) == 8


def test_a_topic_is_refused(stage: Stage) -> None:
    stage.emulator.namespace("shop-weu").create_topic("events", TopicDescription())
    topic = reading(entity_options(stage, "events"), of_backlog=False)
    with topic as reader, pytest.raises(TaskError, match="is a topic"):
        reader.initialOffset()
    with reading(entity_options(stage, "orders"), of_backlog=False) as reader:  # empty, and no topic
        assert reader.initialOffset() == {}


@pytest.mark.spark
def test_a_batch_reads_what_its_schema_filter_and_offsets_ask_for(spark: "SparkSession", stage: Stage) -> None:
    stage.send("primary", "orders", messages(20, application_properties={"number": 7, "name": "n"}))

    def load(schema: str | None = None, **more: str) -> "DataFrame":
        reader = spark.read.format("servicebus").options(**entity_options(stage, "orders"), **more)
        return (reader if schema is None else reader.schema(schema)).load()

    narrow = load("sequence_number bigint, body_text string").where("sequence_number > 17")
    assert sorted((row[0], row[1]) for row in narrow.collect()) == [(n, f"body {n - 1}") for n in (18, 19, 20)]
    assert load().where("queue = 'elsewhere'").count() == 0
    assert load().where("queue in ('orders') and enqueued_at >= '2026-01-01'").count() == 20
    assert load().where("enqueued_at < '2026-01-01'").count() == 0
    assert load(startingOffsets='{"orders": 5}', endingOffsets='{"orders": 9}').count() == 4
    for schema, said in (("message_id string, boddy string", "no column 'boddy'"), ("body string", "is binary, not")):
        with pytest.raises(PySparkException, match=said):
            load(schema).collect()
    stage.emulator.namespace("shop-weu").create_queue("copies", QueueDescription())
    frame = load().select("message_id", "body", "properties")
    frame.write.format("servicebus").mode("append").options(**entity_options(stage, "copies")).save()
    before, after = (
        {
            one.message_id: (body_of(EncodedMessage(one.payload)), dict(describe(one.payload).application_properties))
            for one in found
        }
        for found in (stage.at_home(), stage.at_home("copies"))
    )
    assert len(after) == 20
    assert after == before
