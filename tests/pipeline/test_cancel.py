"""Cancelling a Spark job after a Ctrl-C that has spoilt the connection to the JVM: the Ctrl-C is what counts."""

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from sbpair.pipeline.spark.java import sizing_for
from sbpair.pipeline.spark.session import StartedSpark


class Context:
    """As much of a SparkContext as is asked for; its first `spoilt` calls fail."""

    def __init__(self, spoilt: int) -> None:
        self.spoilt = spoilt
        self.cancelled: list[str] = []

    def setJobGroup(self, *arguments: Any, **named: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    def statusTracker(self) -> Any:
        raise KeyboardInterrupt

    def cancelJobGroup(self, group: str) -> None:
        self.spoilt -= 1
        if self.spoilt >= 0:
            raise Py4JNetworkError("Answer from Java side is empty")
        self.cancelled.append(group)


def _no_sql() -> Any:
    raise AssertionError("a job of plain tasks does not load Spark SQL")


@pytest.mark.parametrize(("spoilt", "cancelled"), [(0, 1), (1, 1), (5, 0)])
def test_a_ctrl_c_comes_out_whatever_becomes_of_the_job(spoilt: int, cancelled: int) -> None:
    context: Any = Context(spoilt)
    session = StartedSpark(context, Path("log"), sizing_for(None), "Java", load=_no_sql)
    with pytest.raises(KeyboardInterrupt):
        session.run(lambda: None, "Archiving")
    assert len(context.cancelled) == cancelled
