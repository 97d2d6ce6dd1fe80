"""What the tasks of a job tell and share. What each did: one line of JSON, as Spark's own structured log writes them.

It is in the log of the task's executor; with a local master, in the log of Spark that the commands name. Nothing of a
message is in it. And one pace for all tasks of a machine that work at one namespace.
"""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pyspark import SparkFiles, TaskContext

from sbpair.core.message import Received
from sbpair.core.transfer.pace import Pace
from sbpair.files import claim, make_private_file, open_private, write_private
from sbpair.pipeline.spans import NumberRange

LOGGER = "sbpair.task"
PLACES = {"group": "spark.jobGroup.id", "query": "sql.streaming.queryId", "batch": "streaming.sql.batchId"}
"""Local properties in which Spark tells a task what it is of."""


@dataclass
class TaskDone:
    """What a task counts on its way. `facts`: more that is said of it."""

    messages: int = 0
    size_bytes: int = 0
    attempt: int = 0
    """How often Spark had begun it before."""
    throttled: int = 0
    """Once it is over: how often the namespace was too busy for it."""
    waited_seconds: float = 0.0
    """And how long it waited for the namespace's limits, or for what a bound leaves to it."""
    facts: dict[str, int | str] = field(default_factory=dict)

    def count(self, page: Sequence[Received]) -> None:
        self.messages += len(page)
        self.size_bytes += sum(len(one.payload) for one in page)


def span_facts(span: NumberRange) -> dict[str, int | str]:
    """Where a task reads."""
    return {"queue": span.queue, "dead_letter": str(span.dead_letter).lower(), "first": span.first, "last": span.last}


@contextmanager
def logged_task(work: str, namespace: str, pace: Pace, **facts: int | str) -> Iterator[TaskDone]:
    """Write the line when this part of a task ends, and that it failed if it did. Outside of a task nothing is written.
    `work`: browse, archive, complete or send. `namespace`: its host. `pace`: counts how often that was too busy, and
    the waits."""
    context, began = TaskContext.get(), time.monotonic()
    done = TaskDone(attempt=0 if context is None else context.attemptNumber())
    refused_before, waited_before = pace.pauses, pace.waited.seconds
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
        done.throttled, done.waited_seconds = pace.pauses - refused_before, pace.waited.seconds - waited_before
        if context is not None:
            places = {name: context.getLocalProperty(key) for name, key in PLACES.items()}
            told: dict[str, int | float | str] = {
                "work": work,
                "namespace": namespace,
                **{name: one for name, one in places.items() if one is not None},
                "stage": context.stageId(),
                "partition": context.partitionId(),
                "attempt": done.attempt,
                **facts,
                **done.facts,
                "messages": done.messages,
                "bytes": done.size_bytes,
                "seconds": round(time.monotonic() - began, 3),
                "pauses": done.throttled,
                "waited_seconds": round(done.waited_seconds, 3),
            }
            from pyspark.logger import PySparkLogger

            logger = PySparkLogger.getLogger(LOGGER)
            logger.setLevel(logging.INFO)
            logger.info(said, **told)


# One pace for all tasks of a machine that work at one namespace.
#
# A namespace that is too busy refuses every task, and each task has a process of its own. If they learn apart, they
# are refused as often as there are tasks, get unequal shares, and the last one goes on with the share that it had
# beside the others. So the pace is in a file, in the folder that Spark makes on each machine for an application and
# removes with it. Tasks on other machines have other files, and share the budget as several drains do.

CLAIM_SECONDS = 0.0002
CLAIM_PATIENCE_SECONDS = 1.0
"""Somebody who has the file for longer was stopped, and keeps it: the others go on with a new one."""


def pace_of(namespace: str, most_per_second: float | None = None) -> Pace:
    """How fast this task may go. Where `most_per_second` bounds it, nothing has to be shared: it is the task's part."""
    if most_per_second is None and TaskContext.get() is not None:
        with suppress(OSError):
            name = f"pace-{sha256(namespace.encode()).hexdigest()[:16]}.json"
            return SharedPace(Path(SparkFiles.getRootDirectory()) / name)
    return Pace(most_per_second)


Method = TypeVar("Method", bound=Callable[..., Any])


def _shared(method: Method) -> Method:
    """A method of a pace, carried out on what all tasks have learnt."""

    @wraps(method)
    def shared(self: "SharedPace", *arguments: Any) -> Any:
        with self._held():
            return method(self, *arguments)

    return cast(Method, shared)


class SharedPace(Pace):
    """A pace whose state is in a file. It needs a clock that all processes of the machine share, as a monotonic one is.
    Raises OSError: the file cannot be made."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._kept = tuple(name for name in vars(self) if name not in ("pauses", "waited"))
        self._path, self._is_held = path, False
        make_private_file(path)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """With what all have learnt, and nobody else at it. What a full disk does not keep is learnt once more."""
        if self._is_held:
            yield
            return
        file = self._claimed()
        try:
            with suppress(ValueError):  # empty, or cut off
                for name, value in json.JSONDecoder().raw_decode(file.read().decode())[0].items():
                    setattr(self, name, deque(map(tuple, value)) if isinstance(value, list) else value)
            self._is_held = True
            yield
            file.seek(0)
            file.write(json.dumps({name: getattr(self, name) for name in self._kept}, default=list).encode())
        finally:
            self._is_held = False
            with suppress(OSError):
                file.close()

    def _claimed(self) -> BinaryIO:
        until = time.monotonic() + CLAIM_PATIENCE_SECONDS
        while not claim(file := open_private(self._path, "r+b")):
            file.close()
            if time.monotonic() > until:
                fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
                write_private(fresh, b"")
                fresh.replace(self._path)
            time.sleep(CLAIM_SECONDS)
        return file

    accepted = _shared(Pace.accepted)
    refused = _shared(Pace.refused)
    allowance = _shared(Pace.allowance)
    take = _shared(Pace.take)
    grant = _shared(Pace.grant)
    seconds_until_some = _shared(Pace.seconds_until_some)
