"""The data sources in a session of Spark Connect, which needs `pip install 'pyspark[connect]'`: `.ci/dependency-ranges`
has it. PySpark keeps both kinds of sessions apart by the process."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sbpair.pipeline.spark.java import find_java, launcher_home
from sbpair.pipeline.spark.session import SparkUnavailableError, check_release
from tests.pipeline.stage import Stage, backlog, entity_options, messages

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("grpc") is None or find_spec("pandas") is None, reason="needs pyspark[connect]"),
]


def test_reads_and_writes_and_their_errors(stage: Stage, tmp_path: Path) -> None:
    stage.divert(messages(60, sessions=5))
    stage.divert(messages(40, prefix="q"), queue=1)
    target = entity_options(stage)
    java = str(launcher_home(find_java(), tmp_path / "java"))
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": java}
    environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    given = json.dumps([stage.options, target, str(tmp_path), backlog(1), _streams()])
    command = [sys.executable, "-m", "tests.pipeline.spark.test_connect"]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, env=environ, timeout=900)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["rows"] == 100
    assert found["of one queue"] == 40
    assert "Pair 'shop' has backlog queues 0 to 2; there is no 9." in found["error"]
    assert found["written"] == 30  # by two jobs with one ledger
    assert "1 message cannot be sent" in found["refused"]
    arrived = [one.message_id for one in stage.at_home()]
    assert sorted(arrived) == sorted(
        [f"n-{number}" for number in range(30)] + [f"m-{number}" for number in range(60)]
        + [f"q-{number}" for number in range(40)]
    )  # fmt: skip
    if _streams():
        assert found["streamed"] == 100


def _streams() -> bool:
    try:
        check_release((4, 2), "readStream")
    except SparkUnavailableError:
        return False
    return True


def _in_a_session(
    backlog_options: dict[str, str], target: dict[str, str], folder: str, queue: str, streams: bool
) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from sbpair.pipeline import register

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
    frame = spark.read.format("sbpair-backlog").options(**backlog_options).load()
    found: dict[str, Any] = {"rows": frame.count(), "of one queue": frame.filter(frame["queue"] == queue).count()}
    with pytest.raises(Exception, match="sbpair error") as raised:
        spark.read.format("sbpair-backlog").options(**backlog_options, queues="9").load().count()
    found["error"] = str(raised.value)
    rows = spark.createDataFrame([(f"n-{at}", "body") for at in range(30)], "message_id string, body string")
    for _ in range(2):
        rows.write.format("servicebus").mode("append").options(**target, ledger=f"{folder}/new").save()
    found["written"] = spark.read.format("servicebus").options(**target).load().count()
    bad = spark.createDataFrame([("x" * 200, "body")], "message_id string, body string")
    with pytest.raises(Exception, match="sbpair error") as raised:
        bad.write.format("servicebus").mode("append").options(**target, ledger=f"{folder}/new").save()
    found["refused"] = str(raised.value)
    ledger = f"{folder}/back"
    if streams:
        stream = spark.readStream.format("sbpair-backlog").options(**backlog_options).load()
        places = {"checkpointLocation": f"{folder}/first", "path": f"{folder}/streamed"}
        stream.writeStream.format("parquet").options(**places).trigger(availableNow=True).start().awaitTermination()
        found["streamed"] = spark.read.parquet(f"{folder}/streamed").count()
        sink = stream.writeStream.format("sbpair-backlog").options(**backlog_options, ledger=ledger)
        sink.option("checkpointLocation", f"{folder}/second").trigger(availableNow=True).start().awaitTermination()
    frame.write.format("sbpair-backlog").mode("append").options(**backlog_options, ledger=ledger).save()
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(_in_a_session(*json.load(sys.stdin))))
