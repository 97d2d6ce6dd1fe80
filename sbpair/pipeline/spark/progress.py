"""How far a Spark job is, read from the status tracker while another thread waits for the job."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import StatusTracker

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Tasks of one action. `total` is 0 while Spark still plans."""

    label: str
    done: int
    total: int
    failed: int
    """Attempts that failed; Spark tries them again where it may."""
    seconds: float


def watch(
    tracker: "StatusTracker",
    group: str,
    label: str,
    future: "Future[Any]",
    tell: Callable[[JobProgress], None] | None,
) -> None:
    """Until `future` is done; tells how far its job group is."""
    began = time.monotonic()
    counts: dict[int, tuple[int, int, int]] = {}
    while not _done(future):
        if tell is not None:
            _count(tracker, group, counts)
            tasks, completed, failed = (sum(one[place] for one in counts.values()) for place in range(3))
            tell(JobProgress(label, completed, tasks, failed, time.monotonic() - began))


def _done(future: "Future[Any]") -> bool:
    """Wait a moment; an error of the future is raised where its result is asked for."""
    try:
        future.exception(POLL_SECONDS)
    except FutureTimeoutError:
        return False
    return True


def _count(tracker: "StatusTracker", group: str, counts: dict[int, tuple[int, int, int]]) -> None:
    """Tasks, completed and failed of every stage seen so far; Spark forgets stages, this does not."""
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            known = tracker.getStageInfo(stage)
            if known is not None:
                counts[stage] = known.numTasks, known.numCompletedTasks, known.numFailedTasks
