"""`pipeline warm`: an archive of the classes that Spark loads, which halves the start of every later command.

About 200 MB, for one Java and one PySpark; made by a short session that does what the commands do.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.pipeline.errors import SparkUnavailableError
from sbpair.pipeline.java import find_java
from sbpair.pipeline.jvm import Training, class_archive
from sbpair.pipeline.session import Session, SparkRequest, check_installed, open_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SAMPLE_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class Warmed:
    """The archive of classes and what it took."""

    file: Path
    bytes: int
    java: str
    seconds: float
    existed: bool
    """It was there already; nothing was done."""


def warm(*, again: bool = False, log_directory: Path | None = None) -> Warmed:
    """Make the archive of classes for the Java and PySpark in use.

    Raises:
        SparkUnavailableError: Spark cannot run here, or the JVM wrote no archive.
    """
    began = time.monotonic()
    check_installed()
    java = find_java()
    said = f"Java {java.version_text} ({java.origin})"
    file = class_archive(java)
    if file.exists() and not again:
        return Warmed(file, file.stat().st_size, said, 0.0, True)
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.stem}-{os.getpid()}{file.suffix}")
    request = SparkRequest(
        rows=SAMPLE_ROWS, name="sbpair pipeline warm", log_directory=log_directory, training=Training(fresh)
    )
    with open_spark(request) as session:
        session.run(lambda: _work(session), "Warming up")
    _await_file(fresh, session.log)
    fresh.replace(file)
    return Warmed(file, file.stat().st_size, said, time.monotonic() - began, False)


WRITING_SECONDS = 120.0


def _await_file(file: Path, log: Path) -> None:
    """The JVM leaves the writing to a process of its own, which may outlive it: until the size stays."""
    deadline, size = time.monotonic() + WRITING_SECONDS, -1
    while time.monotonic() < deadline:
        now = file.stat().st_size if file.exists() else -1
        if now > 0 and now == size:
            return
        size = now
        time.sleep(1.0)
    raise SparkUnavailableError("Java wrote no archive of classes.", hint=f"Its log: {log}")


def _work(session: Session) -> None:
    """What the commands do, small: a Python source that is read and written, Parquet and JSON both ways, grouping,
    joining, sorting."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )

    from sbpair.core.message import Received
    from sbpair.core.rewrite import compose, for_backlog
    from sbpair.pipeline.rows import message_row, record_batch
    from sbpair.pipeline.schemas import message_schema

    class SampleReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(2)]

        def read(self, partition: Any) -> Iterator[Any]:
            queue = f"sample/x-servicebus-transfer/{partition.value}"
            payload = for_backlog(compose(body="sample", message_id="1", session_id="s"), "orders")
            numbers = range(1, SAMPLE_ROWS // 2)
            yield record_batch(
                [message_row("sample", Received(payload, number, queue, enqueued_at=1.0)) for number in numbers]
            )

    class SampleWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Sample(DataSource):
        @classmethod
        def name(cls) -> str:
            return "sbpair-warm"

        def schema(self) -> "StructType":
            return message_schema()

        def reader(self, schema: "StructType") -> DataSourceReader:
            return SampleReader()

        def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:
            return SampleWriter()

    spark = session.spark
    spark.dataSource.register(Sample)
    with tempfile.TemporaryDirectory(prefix="sbpair-warm-") as folder:
        spark.read.format("sbpair-warm").load().write.parquet(f"{folder}/rows")
        rows = spark.read.schema(message_schema()).parquet(f"{folder}/rows")
        counted = rows.groupBy("queue", "destination").agg({"size_bytes": "sum", "enqueued_at": "max"})
        counted.write.json(f"{folder}/counted")
        known = spark.read.json(f"{folder}/counted").select("queue").distinct()
        joined = rows.join(known, "queue", "left_anti").dropDuplicates(["queue", "sequence_number"])
        placed = joined.repartition(2, "session_id").sortWithinPartitions("enqueued_at")
        placed.write.format("sbpair-warm").mode("append").save()
