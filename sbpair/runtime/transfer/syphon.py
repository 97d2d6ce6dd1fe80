"""The syphon: the drain that never ends. Polls the backlog queues and sends back what comes, for as long as it runs.

Documented are polls of 15 minutes per queue ("Paired Namespaces: Implementation Details and Cost": 40 receives an hour
for 10 queues). Unlike the retired one it
holds still while a destination is down, keeps the order within sessions, and starts the moment the destination is back.
Several may run at once: each message goes to one of them, and sessions keep their order (`core.transfer.order`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from sbpair.concurrency import end
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import AccessDeniedError, IncompatibleSdkError, SbpairError, ServiceError, UsageError
from sbpair.core.events import BacklogCounted, Restarting
from sbpair.core.retry import SYPHON
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import DrainReport, together
from sbpair.core.transfer.state import Key
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Observer
from sbpair.runtime.transfer.drain import (
    DrainRequest,
    ToArchive,
    ToPrimary,
    ToQueue,
    drain,
    facts_unless_stopped,
    make_classifier,
    make_limits,
    make_report,
    make_sink,
    make_sources,
)
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.pump import Pump

__all__ = ["DrainRequest", "SyphonRun", "ToArchive", "ToPrimary", "ToQueue", "drain", "serve", "syphon", "syphon_until"]


POLL_SECONDS = 900.0
"""4 receives an hour for each backlog queue ("Paired Namespaces: Implementation Details and Cost")."""
RECOUNT_SECONDS = 30.0
"""So soon after messages have moved what waits is counted again."""


async def syphon(
    request: DrainRequest,
    *,
    secondary: Messaging,
    primary: Messaging,
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    stop: asyncio.Event,
    poll_seconds: float = POLL_SECONDS,
) -> DrainReport:
    """Send back what is in the backlog queues and what comes into them, until `stop` is set.

    A queue that cannot be read and a destination that cannot be reached are tried again for ever, with pauses from 1
    second to 2 minutes; the observer hears of each. After `stop` it ends within about 10 seconds: what is on its way is
    settled, what waits is released. Of the request, `max_messages`, `for_seconds`, `patience_seconds` and `dry_run`
    do not apply.

    Raises:
        OSError: the ledger or archive cannot be written.
    """
    run = await syphon_until(
        stop,
        request,
        secondary=secondary,
        primary=primary,
        admin=admin,
        clock=clock,
        observer=observer,
        ledger=ledger,
        poll_seconds=poll_seconds,
    )
    if run.broken is not None:
        raise run.broken
    return run.report


@dataclass(frozen=True, slots=True)
class SyphonRun:
    """What one run did, also when it broke down."""

    report: DrainReport
    broken: BaseException | None
    """The error that ended it; None if it was stopped."""
    uncompleted: frozenset[Key]
    """What was sent back and is still in the backlog: to be completed, not sent, by the next run."""


async def syphon_until(
    stop: asyncio.Event,
    request: DrainRequest,
    *,
    secondary: Messaging,
    primary: Messaging,
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    poll_seconds: float = POLL_SECONDS,
    uncompleted: frozenset[Key] = frozenset(),
) -> SyphonRun:
    """`syphon` that says what was done also when it breaks down. `uncompleted`: of the run before, in this process."""
    began = clock.monotonic()
    facts = await facts_unless_stopped(admin, request.queues, stop)
    sources = make_sources(request, secondary, facts, wait_seconds=poll_seconds)
    recorded = ledger.forwarded if ledger is not None else frozenset()
    limits = make_limits(request, patience_seconds=None, lock_wait_seconds=None)
    machine = Settlement(limits, can_dead_letter=not request.dead_letter, forwarded=recorded | uncompleted)
    classifier = make_classifier(request, clock)
    sink = make_sink(request, primary, clock)
    pump = Pump(
        sources,
        machine,
        classifier,
        sink,
        clock=clock,
        observer=observer,
        ledger=ledger,
        endless=True,
        patience_seconds=0.0,
    )
    counting = asyncio.create_task(_count(request, facts, admin, pump, clock, observer, poll_seconds))
    pump.start()
    try:
        await pump.settle_down(stop)
    finally:
        left = Counter(machine.left().values())
        await pump.finish()
        await end(counting)
        await sink.close()
    report = make_report(
        machine,
        classifier,
        sources,
        left=left,
        sent_before=recorded - uncompleted,
        seconds=clock.monotonic() - began,
        confirmed_empty=False,
        ended_by="stop",
        sink=sink,
    )
    return SyphonRun(report, pump.fatal, machine.uncompleted)


async def _count(
    request: DrainRequest,
    facts: dict[str, QueueFacts | None],
    admin: NamespaceAdmin | None,
    pump: Pump,
    clock: Clock,
    observer: Observer,
    poll_seconds: float,
) -> None:
    """Tell the observer how much lies in the queues: once a poll, and soon after messages have moved.

    One list of all queues each time, not a question for each: a syphon is billed for its polls, and this must not
    double them. Without the right to list it is never asked again.
    """
    while True:
        for path, known in facts.items():
            if known is not None:
                counts = known.counts
                waiting = counts.dead_letter if request.dead_letter else counts.active
                observer.notify(BacklogCounted(clock.now().timestamp(), path, waiting))
        if admin is None:
            return
        pump.moved.clear()
        await clock.sleep(min(RECOUNT_SECONDS, poll_seconds))
        try:
            async with asyncio.timeout(max(0.0, poll_seconds - RECOUNT_SECONDS)):
                await pump.moved.wait()
        except TimeoutError:
            pass  # nothing moved: time for the next poll's count
        try:
            facts = await _listed(admin, request.queues)
        except AccessDeniedError:
            return
        except ServiceError:
            facts = {}  # not now; the receives tell what is wrong with the namespace


async def _listed(admin: NamespaceAdmin, paths: Sequence[str]) -> dict[str, QueueFacts | None]:
    """What one list says of these queues."""
    wanted = {path.lower(): path for path in paths}
    folders = {path.rpartition("/")[0] for path in paths}
    prefix = f"{folders.pop()}/" if len(folders) == 1 else ""
    found = [one async for one in admin.list_queues(prefix)]
    return {wanted[one.path.lower()]: one for one in found if one.path.lower() in wanted}


# Keeps a syphon running as a service: starts it again after whatever broke it, adds up what its runs did.

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
