"""Keeps a syphon running as a service: starts it again after whatever broke it, adds up what its runs did."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from sbpair.core.errors import IncompatibleSdkError, SbpairError, UsageError
from sbpair.core.events import Restarting
from sbpair.core.lanes import Key
from sbpair.core.retry import SYPHON
from sbpair.ports import Clock, Observer
from sbpair.runtime.draining import DrainReport, Left
from sbpair.runtime.syphon import SyphonRun

Run = Callable[[frozenset[Key]], Coroutine[Any, Any, SyphonRun]]
"""One run until it is told to stop or breaks down, given what the runs before have sent but not completed."""

STEADY_SECONDS = 300.0
"""After a run of this length the pauses begin again with the shortest."""
_NO_USE_TRYING = (UsageError, IncompatibleSdkError)


async def serve(run: Run, *, stop: asyncio.Event, clock: Clock, observer: Observer) -> DrainReport:
    """Run again and again until `stop` is set; what all runs did together.

    After a breakdown it waits 1 second, growing to 2 minutes (the retired library's limits).

    Raises:
        UsageError, IncompatibleSdkError: of a run; another would end the same way.
        What broke down while it was stopping.
    """
    began = clock.monotonic()
    runs: list[SyphonRun] = []
    failures = 0
    while not stop.is_set():
        started = clock.monotonic()
        broken = await _once(run, runs)
        if broken is None:
            break
        if stop.is_set() or isinstance(broken, _NO_USE_TRYING):
            raise broken
        failures = 1 if clock.monotonic() - started >= STEADY_SECONDS else failures + 1
        await _rest(broken, SYPHON.seconds(failures), stop=stop, clock=clock, observer=observer)
    return together([one.report for one in runs], seconds=clock.monotonic() - began)


async def _once(run: Run, runs: list[SyphonRun]) -> BaseException | None:
    try:
        done = await run(runs[-1].uncompleted if runs else frozenset())
    except Exception as error:  # noqa: BLE001 - raised, or told by the pause that follows
        return error
    runs.append(done)
    return done.broken


async def _rest(
    broken: BaseException, seconds: float, *, stop: asyncio.Event, clock: Clock, observer: Observer
) -> None:
    code = broken.code if isinstance(broken, SbpairError) else type(broken).__name__
    observer.notify(Restarting(clock.now().timestamp(), code, str(broken), seconds))
    stopped, rested = asyncio.create_task(stop.wait()), asyncio.ensure_future(clock.sleep(seconds))
    await asyncio.wait({stopped, rested}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, rested):
        task.cancel()


def together(reports: Iterable[DrainReport], *, seconds: float) -> DrainReport:
    """Several runs as one: sums; what was left and could not be read is the last one's."""
    runs = list(reports)
    last = runs[-1] if runs else None

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in runs)

    def counted(name: str) -> tuple[tuple[str, int], ...]:
        count: Counter[str] = Counter()
        for one in runs:
            count.update(dict(getattr(one, name)))
        return tuple(sorted(count.items()))

    left: tuple[Left, ...] = last.left if last is not None else ()
    return DrainReport(
        forwarded=total("forwarded"),
        completed=total("completed"),
        dead_lettered=total("dead_lettered"),
        released=total("released"),
        pings=total("pings"),
        left=left,
        per_destination=counted("per_destination"),
        seconds=seconds,
        confirmed_empty=False,
        forwarded_bytes=total("forwarded_bytes"),
        already_forwarded=total("already_forwarded"),
        uncompleted=last.uncompleted if last is not None else 0,
        locks_lost=total("locks_lost"),
        dead_letter_reasons=counted("dead_letter_reasons"),
        original_faults=counted("original_faults"),
        failures=last.failures if last is not None else (),
        ended_by="stop",
        archive=last.archive if last is not None else None,
    )
