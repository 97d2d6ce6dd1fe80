"""A stream that is sent to the primary: a micro-batch that Spark repeats leaves out what the ledger has."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbpair.core.errors import UsageError
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.schemas import message_schema
from sbpair.pipeline.streaming.writer import ReplayStreamWriter
from sbpair.pipeline.writer import WriteOptions
from tests.pipeline.stage import Stage, messages

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
@pytest.mark.timeout(240)
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
        ReplayStreamWriter(WriteOptions.parse({}, overwrite=False, stream=True), message_schema().names)
    for given, said in (
        ({"to": "orders/$management"}, "path of a queue or a topic"),
        ({"run": "mine"}, "no option 'run'"),
    ):
        with pytest.raises(UsageError, match=said):
            WriteOptions.parse({"ledger": str(tmp_path)} | given, overwrite=False, stream=True)
