"""`sbpair-backlog` as a data source: rows are the messages, options are strict, secrets stay where they are."""

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from sbpair.core.errors import UsageError
from sbpair.pipeline.errors import error_in
from sbpair.pipeline.source.options import ReadOptions
from sbpair.pipeline.spark.session import StartedSpark, explained
from tests.pipeline.stage import Stage, backlog, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: "SparkSession", stage: Stage, **options: Any) -> "DataFrame":
    given = stage.options | {name: str(value) for name, value in options.items()}
    return spark.read.format("sbpair-backlog").options(**given).load()


def test_a_backlog_is_a_frame(spark: "SparkSession", stage: Stage) -> None:
    for queue in range(2):
        stage.divert(messages(250, prefix=f"q{queue}", sessions=5, application_properties={"n": 1}), queue=queue)
    frame = load(spark, stage, messagesPerPartition=100)
    assert frame.rdd.getNumPartitions() == 6
    rows = frame.select("queue", "sequence_number", "message_id", "payload", "properties.n.value").collect()
    stored = {
        (backlog(queue), one.sequence_number): one
        for queue in range(2)
        for one in stage.browse("secondary", backlog(queue))
    }
    assert len(rows) == len(stored) == 500
    assert all(bytes(row["payload"]) == stored[row["queue"], row["sequence_number"]].payload for row in rows)
    assert {row["message_id"] for row in rows} == {f"q{queue}-{number}" for queue in range(2) for number in range(250)}
    assert {row["value"] for row in rows} == {"1"}
    assert stage.in_backlog() == 500


def test_options_choose_queues_numbers_and_dead_letters(spark: "SparkSession", stage: Stage) -> None:
    stage.divert(messages(5), queue=1)
    stage.dead_letter_all(1, "Broken")
    stage.divert(messages(20, prefix="later"), queue=1)
    stage.divert(messages(3, prefix="other"), queue=2)
    numbers = [row[0] for row in load(spark, stage, queues="1", firstSequence=10, lastSequence=12).select(
        "sequence_number").collect()]  # fmt: skip
    assert numbers == [10, 11, 12]
    dead = load(spark, stage, queues=backlog(1), deadLetters="true", includePayload="false")
    assert [tuple(row) for row in dead.select("dead_letter", "dead_letter_reason", "payload").distinct().collect()] == [
        (True, "Broken", None)
    ]
    assert load(spark, stage, deadLetters="both").count() == 28
    assert load(spark, stage, queues="0").count() == 0


def test_no_secret_is_in_a_plan_or_a_log(spark: "SparkSession", session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(1))
    frame = load(spark, stage)
    text = explained(frame)
    frame.count()
    for name in ("shop-weu", "shop-neu"):
        assert stage.key(name) not in text
        assert stage.key(name) not in session.log.read_text()
        assert all(stage.key(name) not in value for _, value in spark.sparkContext.getConf().getAll())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "1"}, "has no option 'queue'"),
        ({"deadLetters": "perhaps"}, "deadLetters is true, false or both"),
        ({"firstSequence": "one"}, "firstSequence is a whole number"),
        ({"ranges": "[[1]]"}, "ranges is not a list"),
        ({"includePayload": "maybe"}, "includePayload is true or false"),
        ({"side": "both"}, "option side is primary or secondary, not 'both'"),
        ({"side": "primary"}, "on the primary the option queues selects what is read"),
    ],
)
def test_options_are_strict(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ReadOptions.parse(options)


def test_an_error_in_a_worker_comes_home_as_what_it_was(spark: "SparkSession", stage: Stage) -> None:
    with pytest.raises(PySparkException) as raised:
        load(spark, stage, queues="7").count()
    error = error_in(str(raised.value))
    assert isinstance(error, UsageError)
    assert error.message == "Pair 'shop' has backlog queues 0 to 2; there is no 7."


def test_rows_can_be_written_home_and_a_row_that_comes_again_is_left_out(spark: "SparkSession", stage: Stage) -> None:
    stage.divert(messages(30, sessions=2))
    twice = load(spark, stage).selectExpr("*", "explode(array(1, 2)) AS again").drop("again")
    twice.write.format("sbpair-backlog").mode("append").options(**stage.options).save()
    assert sorted(one.message_id or "" for one in stage.at_home()) == sorted(f"m-{number}" for number in range(30))


@pytest.mark.parametrize(
    ("columns", "mode", "said"),
    [(["queue"], "append", "The frame lacks"), (["*"], "overwrite", "cannot be overwritten")],
)
def test_a_write_that_makes_no_sense_is_refused(
    spark: "SparkSession", stage: Stage, columns: list[str], mode: str, said: str
) -> None:
    writer = load(spark, stage).select(*columns).write.format("sbpair-backlog").mode(mode).options(**stage.options)
    with pytest.raises(PySparkException, match=said):
        writer.save()
