"""Rows that are sent, by a stream and by a batch: what Spark repeats leaves out what the ledger has."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from sbpair.azure import make_messaging
from sbpair.core.errors import UsageError
from sbpair.core.rewrite import as_sent, describe
from sbpair.emulator.entities import QueueDescription
from sbpair.operations.restore import RestoreRequest, RestoreResult, restore
from sbpair.pipeline.errors import error_in
from sbpair.pipeline.source.writer import WriteOptions
from sbpair.ports import Ends
from tests.pipeline.stage import Stage, entity_options, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def send_all(spark: "SparkSession", stage: Stage, **more: str) -> int:
    """A query from the backlog to the primary, to the end of what is there; how many rows it had."""
    stream = spark.readStream.format("sbpair-backlog").options(**stage.options).load()
    options = stage.options | {"ledger": str(stage.ledger), "checkpointLocation": str(stage.folder / "checkpoint")}
    writer = stream.writeStream.format("sbpair-backlog").options(**(options | more))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90)
        return sum(one["numInputRows"] for one in query.recentProgress)
    finally:
        query.stop()


def at_home(stage: Stage, entity: str = "orders") -> list[str]:
    return [one.message_id or "" for one in stage.at_home(entity)]


@pytest.mark.spark
def test_a_repeated_micro_batch_sends_nothing_twice(spark: "SparkSession", stage: Stage) -> None:
    stage.divert(messages(30, sessions=1))
    stage.emulator.namespace("shop-weu").create_queue("elsewhere", QueueDescription())
    assert send_all(spark, stage) == 30
    assert at_home(stage) == [f"m-{number}" for number in range(30)]
    # As after a crash between the last send and Spark's own commit of the micro-batch.
    for path in (stage.folder / "checkpoint" / "commits").iterdir():
        path.unlink()
    stage.divert(messages(5, prefix="later"), queue=1)
    assert send_all(spark, stage, to="elsewhere") == 35
    assert at_home(stage) == [f"m-{number}" for number in range(30)]
    assert sorted(at_home(stage, "elsewhere")) == [f"later-{number}" for number in range(5)]
    assert not list(stage.ledger.glob("*.lock"))


def test_a_stream_needs_a_ledger_and_a_destination_that_stores(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs the option ledger"):
        WriteOptions.parse({}, overwrite=False, stream=True)
    for given, said in (
        ({"to": "orders/$management"}, "path of a queue or a topic"),
        ({"run": "mine"}, "no option 'run'"),
    ):
        with pytest.raises(UsageError, match=said):
            WriteOptions.parse({"ledger": str(tmp_path)} | given, overwrite=False, stream=True)


def test_no_more_can_be_left_to_others_than_there_is(stage: Stage) -> None:
    options = entity_options(stage)
    assert WriteOptions.parse(options | {"reserve": "400"}, overwrite=False, of_backlog=False).budget == 600
    with pytest.raises(UsageError, match="reserve is between 0 and 999, not 1000"):
        WriteOptions.parse(options | {"reserve": "1000"}, overwrite=False, of_backlog=False)


NEW = "body string, message_id string, session_id string, ttl_ms int, properties map<string,int>"


@pytest.mark.spark
def test_new_messages_of_any_frame_go_to_a_queue_each_once(spark: "SparkSession", stage: Stage) -> None:
    rows = [(f"body {n}", f"n-{n}", f"s-{n % 2}", 60_000 if n else None, {"number": n}) for n in range(20)]
    frame = spark.createDataFrame([*rows, rows[3]], NEW).coalesce(1)
    options = entity_options(stage) | {"ledger": str(stage.ledger)}
    for partitions in (1, 3):  # the second one stands for a job that an operator or a scheduler repeats
        frame.repartition(partitions).write.format("servicebus").mode("append").options(**options).save()
    found = stage.at_home()
    assert sorted(one.message_id or "" for one in found) == sorted(f"n-{n}" for n in range(20))
    for session in ("s-0", "s-1"):
        numbers = [int((one.message_id or "")[2:]) for one in found if one.session_id == session]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10
    summaries = {one.message_id: describe(one.payload) for one in found}
    assert summaries["n-0"].ttl_seconds is None
    assert summaries["n-7"].ttl_seconds == 60.0
    assert dict(summaries["n-7"].application_properties) == {"number": 7}


@pytest.mark.spark
def test_what_was_read_goes_to_another_entity_with_its_bytes(spark: "SparkSession", stage: Stage) -> None:
    stage.emulator.namespace("shop-weu").create_queue("elsewhere", QueueDescription())
    stage.send("primary", "orders", messages(12, sessions=2))
    stream = spark.readStream.format("servicebus").options(**entity_options(stage)).load()
    options = entity_options(stage, "elsewhere") | {"ledger": str(stage.ledger)}
    writer = stream.writeStream.format("servicebus").options(**options)
    query = writer.option("checkpointLocation", str(stage.folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    before = {one.message_id: as_sent(one.payload).payload for one in stage.at_home()}
    after = {one.message_id: as_sent(one.payload).payload for one in stage.at_home("elsewhere")}
    assert len(after) == 12
    assert after == before


@pytest.mark.spark
def test_a_bad_row_is_one_bad_row(spark: "SparkSession", stage: Stage) -> None:
    """Rows that cannot be sent hold up no other, are named and kept; a mended job sends them alone."""
    columns = "body string, message_id string"
    rows = [("x" * 300_000, "big"), ("no id", None), ("long", "l" * 129), *((f"{n}", f"n-{n}") for n in range(20))]
    options = entity_options(stage) | {"ledger": str(stage.ledger)}

    def write(rows: list[tuple[str, str | None]], **more: str) -> None:
        frame = spark.createDataFrame(rows, columns).repartition(4)
        frame.write.format("servicebus").mode("append").options(**(options | more)).save()

    for _ in range(2):  # the second time nothing is left to be sent, and the same rows are named
        with pytest.raises(PySparkException) as caught:
            write(rows)
        error = error_in(str(caught.value))
        assert error is not None
        assert error.message.startswith("3 messages cannot be sent: ")
        assert "NoMessage (2)" in error.message
        assert "'big'" in error.message
        assert sorted(at_home(stage)) == sorted(f"n-{n}" for n in range(20))
    unsent = sorted((stage.ledger / "unsent").iterdir())
    lines = [json.loads(line) for path in unsent for line in path.read_text().splitlines()]
    assert {line.get("message_id") or line["row"]["message_id"] for line in lines} == {"big", None, "l" * 129}
    write(rows, failOnRefused="false")
    write([("small", "big"), *rows[3:]])
    assert sorted(at_home(stage)) == sorted(["big", *(f"n-{n}" for n in range(20))])


@pytest.mark.spark
def test_what_cannot_be_sent_is_taken_by_restore(spark: "SparkSession", stage: Stage) -> None:
    sessions = QueueDescription(requires_session=True)
    stage.emulator.namespace("shop-weu").create_queue("sessions", sessions)
    rows = [("with", "a", "s"), ("without", "b", None)]
    frame = spark.createDataFrame(rows, "body string, message_id string, session_id string").coalesce(1)
    options = entity_options(stage, "sessions") | {"ledger": str(stage.ledger), "failOnRefused": "false"}
    frame.write.format("servicebus").mode("append").options(**options).save()
    assert at_home(stage, "sessions") == ["a"]
    (file,) = (stage.ledger / "unsent").iterdir()

    async def send() -> RestoreResult:
        target = make_messaging(stage.pair.resolve().primary)
        ends = Ends(
            target, target, source_access=stage.pair.resolve().primary, target_access=stage.pair.resolve().primary
        )
        try:
            return await restore(ends, RestoreRequest((file,), to="orders"))
        finally:
            await target.close()

    assert asyncio.run(send()).restored.sent == {"orders": 1}
    assert at_home(stage) == ["b"]


@pytest.mark.spark
def test_a_new_checkpoint_or_another_job_with_the_same_ledger_sends_nothing_twice(
    spark: "SparkSession", stage: Stage
) -> None:
    stage.divert(messages(30))
    assert send_all(spark, stage) == 30
    shutil.rmtree(stage.folder / "checkpoint")
    stage.divert(messages(5, prefix="later"), queue=1)
    assert send_all(spark, stage) == 35
    backlog = spark.read.format("sbpair-backlog").options(**stage.options).load()
    write = backlog.write.format("sbpair-backlog").mode("append").options(**stage.options, ledger=str(stage.ledger))
    write.save()
    ids = [*(f"m-{number}" for number in range(30)), *(f"later-{number}" for number in range(5))]
    assert sorted(at_home(stage)) == sorted(ids)
    write.option("run", "again").save()  # a name of its own sends once more, and once only
    write.option("run", "again").save()
    assert sorted(at_home(stage)) == sorted(2 * ids)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("body string", "The frame lacks"),
        ("body string, message_id string, sesion_id string", "nothing for the column 'sesion_id'"),
        ("body int, message_id string", "is string or binary, not int"),
    ],
)
def test_columns_that_are_no_message_are_refused_before_anything_is_sent(
    spark: "SparkSession", stage: Stage, columns: str, said: str
) -> None:
    frame = spark.createDataFrame([], columns)
    with pytest.raises(PySparkException, match=said):
        frame.write.format("servicebus").mode("append").options(**entity_options(stage)).save()


def test_a_write_to_an_entity_names_one_that_stores() -> None:
    for given, said in (
        ({"entity": "orders/Subscriptions/audit"}, "one queue or topic"),
        ({"entity": "a, b", "namespace": "shop"}, "one queue or topic"),
        ({"namespace": "shop"}, "one queue or topic"),
        ({"entity": "orders", "pair": "shop"}, "no option 'pair'"),
        ({"entity": "orders", "connectionString": "secret"}, "is a secret"),
        ({"entity": "orders", "run": "../elsewhere"}, "option run has"),
    ):
        with pytest.raises(UsageError, match=said):
            WriteOptions.parse(given, overwrite=False, of_backlog=False)
