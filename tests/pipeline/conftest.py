"""One Spark session for all tests of the pipeline: starting one takes longer than most tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbpair.pipeline import register
from sbpair.pipeline.spark.session import StartedSpark, open_spark
from tests.pipeline.stage import Stage, on_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedSpark]:
    """Two cores; a task that fails is tried four times, as on a cluster."""
    log: Path = tmp_path_factory.mktemp("spark-log")
    with open_spark(rows=10_000, master="local[2,4]", log_directory=log, prepare=register) as opened:
        assert opened.spark
        yield opened


@pytest.fixture(scope="session")
def plain(session: StartedSpark) -> StartedSpark:
    """The same for jobs of plain tasks: loading Spark SQL takes longer than Spark's start before it."""

    def refuse() -> "SparkSession":
        raise AssertionError("Spark SQL was asked for")

    return StartedSpark(session.context, session.log, session.sizing, session.java, load=refuse)


@pytest.fixture(scope="session")
def spark(session: StartedSpark) -> "SparkSession":
    return session.spark


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Two embedded namespaces with three backlog queues and the queue `orders`."""
    with on_stage(tmp_path) as opened:
        yield opened
