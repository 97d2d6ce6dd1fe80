"""What each task of a job did: one line of JSON, as Spark's own structured log writes them.

It is in the log of the task's executor; with a local master, in the log of Spark that the commands name. Nothing of a
message is in it.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark import TaskContext

from sbpair.core.message import Received
from sbpair.core.transfer.pace import Pace
from sbpair.pipeline.spans import Span

LOGGER = "sbpair.task"
_PLACE = {
    "group": "spark.jobGroup.id",
    "query": "sql.streaming.queryId",
    "batch": "streaming.sql.batchId",
}


@dataclass
class TaskDone:
    """What a task counts on its way. `facts`: more that is said of it."""

    messages: int = 0
    size_bytes: int = 0
    throttled: int = 0
    """Once it is over: how often the namespace was too busy for it."""
    facts: dict[str, int | str] = field(default_factory=dict)

    def count(self, page: Sequence[Received]) -> None:
        self.messages += len(page)
        self.size_bytes += sum(len(one.payload) for one in page)


def span_facts(span: Span) -> dict[str, int | str]:
    """Where a task reads."""
    return {"queue": span.queue, "dead_letter": str(span.dead_letter).lower(), "first": span.first, "last": span.last}


@contextmanager
def logged_task(work: str, namespace: str, pace: Pace | None = None, **facts: int | str) -> Iterator[TaskDone]:
    """Write the line when this part of a task ends, and that it failed if it did. Outside of a task nothing is written.

    Args:
        work: browse, archive, complete or send.
        namespace: by its host.
        pace: counts how often the namespace was too busy.
    """
    context, done, began = TaskContext.get(), TaskDone(), time.monotonic()
    refused_before = 0 if pace is None else pace.pauses
    said = "task finished"
    try:
        yield done
    except GeneratorExit:
        said = "task ended early: Spark wants no more of its rows"
        raise
    except BaseException as failure:
        said = f"task failed: {getattr(failure, 'code', type(failure).__name__)}"
        raise
    finally:
        done.throttled = 0 if pace is None else pace.pauses - refused_before
        if context is not None:
            places = {name: context.getLocalProperty(key) for name, key in _PLACE.items()}
            told: dict[str, int | float | str] = {
                "work": work,
                "namespace": namespace,
                **{name: one for name, one in places.items() if one is not None},
                "stage": context.stageId(),
                "partition": context.partitionId(),
                "attempt": context.attemptNumber(),
                **facts,
                **done.facts,
                "messages": done.messages,
                "bytes": done.size_bytes,
                "seconds": round(time.monotonic() - began, 3),
                "pauses": done.throttled,
            }
            _log(said, told)


def _log(said: str, told: dict[str, int | float | str]) -> None:
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.info(said, **told)
