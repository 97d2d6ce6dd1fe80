"""The syphon: the drain that never ends. Polls the backlog queues and sends back what comes, for as long as it runs.

Documented are polls of 15 minutes per queue ("Paired Namespaces: Implementation Details and Cost": 40 receives an hour
for 10 queues). Unlike the retired one it holds still while a destination is down, keeps the order within sessions, and
starts the moment the destination is back. Several may run at once: each message goes to one of them. How far the order
holds then: `core.transfer.order`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sbpair.concurrency import cancel_on, end
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import AccessDeniedError, IncompatibleSdkError, SbpairError, ServiceError, UsageError
from sbpair.core.events import BacklogCounted, QueueAppeared, Restarting
from sbpair.core.names import ByName, parse_backlog_queue_path
from sbpair.core.retry import SYPHON
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import DrainReport, Tally, together
from sbpair.core.transfer.state import Key
from sbpair.ports import Messaging, NamespaceAdmin, Observer, RuntimeClock
from sbpair.runtime.inspection.backlog import probe_others
from sbpair.runtime.transfer.drain import (
    DrainJob,
    TransferRequest,
    facts_until_stopped,
    listed_facts,
    make_classifier,
    make_limits,
    make_report,
    make_sink,
    make_sources,
)
from sbpair.runtime.transfer.pump import Pump

POLL_SECONDS = 900.0
"""4 receives an hour for each backlog queue ("Paired Namespaces: Implementation Details and Cost")."""
RECOUNT_SECONDS = 30.0
"""So soon what waits is counted again while messages move or are held back."""
SOON_SECONDS = 3.0
"""After the first message in a while: others come with it."""


async def syphon(job: DrainJob, *, poll_seconds: float = POLL_SECONDS) -> DrainReport:
    """Send back what is in the backlog queues and what comes into them, until the job's `stop` is set.

    A queue that cannot be read and a destination that cannot be reached are tried again for ever, with pauses from 1
    second to 2 minutes; the observer hears of each. After `stop` it ends within about 10 seconds: what is on its way is
    settled, what waits is released. Of the request, `max_messages`, `for_seconds`, `patience_seconds` and `dry_run` do
    not apply; of the job, `primary_admin` and `mover`.

    Raises:
        SbpairError: the ledger or archive cannot be written.
    """
    run = await syphon_until(job, poll_seconds=poll_seconds)
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
    job: DrainJob,
    *,
    poll_seconds: float = POLL_SECONDS,
    uncompleted: frozenset[Key] = frozenset(),
    recorded: Collection[Key] | None = None,
    totals: Tally | None = None,
) -> SyphonRun:
    """`syphon` that says what was done also when it breaks down.

    Args:
        uncompleted: what the run before, in this process, has sent and not completed.
        recorded: what earlier runs have sent, if less than all that the ledger has can come.
        totals: counts on over all runs.
    """
    request, clock = job.request, job.clock
    began = clock.monotonic()
    facts = job.facts
    if facts is None:
        facts = await facts_until_stopped(job.admin, request.queues, job.stop)
    sources = job.sources or make_sources(request, job.secondary, facts, wait_seconds=poll_seconds)
    known = recorded if recorded is not None or job.ledger is None else job.ledger.forwarded
    before = frozenset(known or ())
    limits = make_limits(request, patience_seconds=None, lock_wait_seconds=None)
    machine = Settlement(
        limits,
        undeliverable=job.undeliverable,
        leave_missing=request.leave_missing,
        leave_refused=request.leave_refused,
        forwarded=before | uncompleted,
        tally=Tally(totals),
    )
    sink = job.sink or make_sink(request, job.primary, clock)
    pump = Pump(
        sources,
        machine,
        job.judge or make_classifier(request, clock),
        sink,
        clock=clock,
        observer=job.observer,
        ledger=job.ledger,
        endless=True,
        patience_seconds=0.0,
    )
    queues = _Queues(request, facts, job.secondary, job.admin, pump, clock, job.observer, poll_seconds)
    pump.start()
    following = asyncio.create_task(queues.follow())
    try:
        await pump.settle_down(job.stop)
    finally:
        left = Counter(machine.custody.left().values())
        await end(following)
        await pump.finish()
        if job.sink is None:
            await sink.close()
    report = make_report(
        machine,
        pump.sources,
        left=left,
        sent_before=before - uncompleted,
        seconds=clock.monotonic() - began,
        confirmed_empty=False,
        ended_by="stop",
        sink=sink,
    )
    return SyphonRun(report, pump.fatal, machine.custody.uncompleted)


@dataclass(slots=True)
class _Queues:
    """Keeps up with the backlog queues while they are read: how much lies in them, and those that are made later."""

    request: TransferRequest
    facts: Mapping[str, QueueFacts | None]
    secondary: Messaging
    admin: NamespaceAdmin | None
    pump: Pump
    clock: RuntimeClock
    observer: Observer
    poll_seconds: float

    async def follow(self) -> None:
        """Look once a poll, soon after messages have come or moved, and as long as some are held back.

        One list of all queues each time, not a question for each: a syphon is billed for its polls, and this must not
        double them. Without the right to list, and with later queues wanted, the next indexes are opened instead: one
        that does not exist costs nothing.
        """
        while True:
            self._tell()
            if self.admin is None and not self.request.later_queues:
                return
            self.pump.moved.clear()
            await self.clock.sleep(min(RECOUNT_SECONDS, self.poll_seconds))
            if not (self.pump.moved.is_set() or self.pump.machine.custody.live):
                try:
                    async with asyncio.timeout(max(0.0, self.poll_seconds - RECOUNT_SECONDS)):
                        await self.pump.moved.wait()
                    await self.clock.sleep(SOON_SECONDS)
                except TimeoutError:
                    pass  # nothing moved: time for the next poll's count
            await self._look()

    def _tell(self) -> None:
        for path, known in self.facts.items():
            if known is not None:
                waiting = self.request.expected(known.counts)
                self.observer.notify(BacklogCounted(self.clock.now().timestamp(), path, waiting))

    async def _look(self) -> None:
        paths = self._paths()
        try:
            found = {} if self.admin is None else await self._listed(self.admin)
        except AccessDeniedError:
            self.admin, found = None, {}  # not asked again
        except ServiceError:
            self.facts = {}  # not now; the receives tell what is wrong with the namespace
            return
        if self.admin is None and self.request.later_queues:
            found = dict.fromkeys(await self._opened(paths))
        known = ByName((path, path) for path in paths)
        self.facts = {known.get(path, path): facts for path, facts in found.items()}
        for path in self.facts:
            if path not in known:
                self._add(path)

    def _paths(self) -> list[str]:
        return list(dict.fromkeys(source.path for source in self.pump.sources))

    async def _listed(self, admin: NamespaceAdmin) -> dict[str, QueueFacts | None]:
        """What one list says of the queues that are read, and of the others that belong to them."""
        paths = self._paths()
        if not self.request.later_queues:
            return {**await listed_facts(admin, paths)}
        prefix = f"{paths[0].rpartition('/')[0]}/"
        listed = [one async for one in admin.list_queues(prefix)]
        return {one.path.lower(): one for one in listed if parse_backlog_queue_path(one.path) is not None}

    async def _opened(self, paths: Sequence[str]) -> tuple[str, ...]:
        names = [name for path in paths if (name := parse_backlog_queue_path(path)) is not None]
        if not names:
            return ()
        found, _ = await probe_others(names[0].primary_label, {name.index for name in names}, self.secondary)
        return found

    def _add(self, path: str) -> None:
        request = replace(self.request, queues=(path,))
        for source in make_sources(request, self.secondary, self.facts, wait_seconds=self.poll_seconds):
            self.pump.add(source)
        self.observer.notify(QueueAppeared(self.clock.now().timestamp(), path))


# Keeps a syphon running as a service: starts it again after whatever broke it, adds up what its runs did.

Run = Callable[[frozenset[Key]], Coroutine[Any, Any, SyphonRun]]
"""One run until it is told to stop or breaks down, given what the runs before have sent but not completed."""

STEADY_SECONDS = 300.0
"""After a run of this length the pauses begin again with the shortest."""
_NO_USE_TRYING = (UsageError, IncompatibleSdkError)


async def serve(run: Run, *, stop: asyncio.Event, clock: RuntimeClock, observer: Observer) -> DrainReport:
    """Run again and again until `stop` is set; what all runs did together.

    After a breakdown it waits 1 second, growing to 2 minutes (the retired library's limits).

    Raises:
        UsageError, IncompatibleSdkError: of a run; another would end the same way. A filter that cannot be evaluated
            is told by the report instead, if anything had moved before.
        What broke down while it was stopping.
    """
    began = clock.monotonic()
    runs: list[SyphonRun] = []
    failures = 0
    while not stop.is_set():
        started = clock.monotonic()
        try:
            runs.append(await run(runs[-1].uncompleted if runs else frozenset()))
            broken = runs[-1].broken
        except Exception as error:  # noqa: BLE001 - raised, or told by the pause that follows
            broken = error
        if broken is None:
            break
        done = together([one.report for one in runs], seconds=clock.monotonic() - began)
        if isinstance(broken, FilterError) and done.has_moved:
            return replace(done, ended_by="filter", broken_off=broken.message)
        if stop.is_set() or isinstance(broken, _NO_USE_TRYING):
            raise broken
        failures = 1 if clock.monotonic() - started >= STEADY_SECONDS else failures + 1
        code = broken.code if isinstance(broken, SbpairError) else type(broken).__name__
        pause_seconds = SYPHON.seconds(failures)
        observer.notify(Restarting(clock.now().timestamp(), code, str(broken), pause_seconds))
        await cancel_on(stop, clock.sleep(pause_seconds))
    return together([one.report for one in runs], seconds=clock.monotonic() - began)
