"""`drain`: one pass over the backlog of a pair, back to the primary, until it is confirmed empty. `syphon`: a drain
that goes on until it is stopped, as a service: started again after whatever broke it.

What drain and syphon share: a request for the backlog of a pair, and which queues and ledger it means.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.concurrency import end, run_until
from sbpair.core.access import shown_name
from sbpair.core.backlog import Backlog, FoundBy
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import InterruptedWorkError, OperationTimeoutError, SbpairError, UsageError
from sbpair.core.events import Event, Forwarded, Polled, SyphonBegan
from sbpair.core.pairing import Pair
from sbpair.core.transfer.conclusion import Asked, DrainResult
from sbpair.core.transfer.report import DrainReport, Tally
from sbpair.core.transfer.resend import Planned
from sbpair.core.transfer.state import Key
from sbpair.core.words import are, counted
from sbpair.operations.ledgers import LedgerRun, Verify, looking_for, open_ledger
from sbpair.ports import Messaging, NamespaceAdmin, Observer, RuntimeClock, Sides
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.inspection.backlog import FoundQueues, find_queues, is_own, read_backlog
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, counted_admin
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, ToPrimary, ToQueue, TransferRequest, make_classifier
from sbpair.runtime.transfer.drain import drain as drain_backlog
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.syphon import POLL_SECONDS, SyphonRun, serve, syphon_until

if TYPE_CHECKING:
    from sbpair.runtime.transfer.processes import Share

__all__ = ["DrainRequest", "DrainResult", "SyphonRequest", "ToArchive", "ToPrimary", "ToQueue", "drain", "syphon"]


@dataclass(frozen=True, slots=True)
class BacklogRequest(TransferRequest):
    """What to move out of a backlog, where to, and how hard. Durations in seconds."""

    queues: tuple[str, ...] = ()
    """Paths of backlog queues on the secondary; none: every one that exists, configured or not."""
    ledger: Path | None = None
    """The file that records each message. What it already has is completed without being sent again."""
    new_ledger: bool = False
    """Begin a new ledger; the old file stays beside it as FILE.N."""
    verify_doubtful: bool = True
    """Browse the destinations first for messages that an earlier run may have sent; what is there is not sent again.
    Needs Listen there; without it, and for what was consumed meanwhile, they are sent again."""


def asked_of(pair: Pair, request: BacklogRequest) -> Asked:
    """The request as the sentences at the end of a run need it."""
    return Asked(
        pair=pair.name,
        primary=shown_name(pair.primary),
        go_on=f"sbpair drain {pair.name}{' --dlq' if request.dead_letter else ''}",
        dead_letter=request.dead_letter,
        filtered=request.wanted.is_set,
        ledger=request.ledger,
        queue=request.to.queue if isinstance(request.to, ToQueue) else None,
    )


def chosen_queues(
    pair: Pair, found: FoundQueues, only: tuple[str, ...]
) -> tuple[tuple[str, ...], Mapping[str, QueueFacts]]:
    """The paths of the queues to empty, and what the listing said of them.

    Raises:
        SbpairError: there is none.
        UsageError: a queue that was named does not exist.
    """
    if not found.existing:
        raise no_queue(pair).with_state("Nothing was moved.")
    for path in only:
        if path not in found.existing and not (path in pair.backlog_paths() and path not in found.missing):
            there = ", ".join(existing.rpartition("/")[2] for existing in found.existing)
            raise UsageError(
                f"There is no {path} on {shown_name(pair.secondary)}; the backlog queues that exist are {there}."
            )
    paths = only or found.existing
    return paths, {path: facts for path, facts in found.facts.items() if path in paths}


async def refuse_reversed(sides: Sides, found: FoundQueues, timeout_seconds: float) -> None:
    """Stop where the pair is named the wrong way round, instead of advice to create queues on the primary.

    Raises:
        UsageError: the pair has no backlog queue, and the pair of its sides exchanged has some.
    """
    pair = sides.pair
    if found.existing:
        return
    reverse = replace(pair, primary=pair.secondary, secondary=pair.primary)
    there = await find_queues(
        reverse, messaging=sides.primary, admin=sides.primary_admin, timeout_seconds=timeout_seconds
    )
    if there.found_by is not FoundBy.CONFIGURED and there.existing:
        here, other, number = shown_name(pair.primary), shown_name(pair.secondary), len(there.existing)
        seen = f"{counted(number, 'queue')} of {other} {are(number)} on {here}"
        raise UsageError(
            f"No backlog queue of {here} exists on {other}, but {seen}: the pair is reversed. Nothing was moved.",
            hint=f"Run: sbpair drain {other}:{here}",
        )


async def what_is_left(
    pair: Pair, only: tuple[str, ...], *, messaging: Messaging, admin: NamespaceAdmin, timeout_seconds: float
) -> Backlog:
    """What the backlog holds once a run is over. The queues are searched for again: one that was made meanwhile belongs
    to it too. `only`: read these queues and name the others."""
    return await read_backlog(
        pair,
        await find_queues(pair, messaging=messaging, admin=admin, timeout_seconds=timeout_seconds),
        messaging=messaging,
        admin=admin,
        clock=LoopClock(),
        timeout_seconds=timeout_seconds,
        only=only or None,
        recount=False,
    )


def no_queue(pair: Pair) -> SbpairError:
    return SbpairError(
        f"No backlog queue of {shown_name(pair.primary)} exists on {shown_name(pair.secondary)}.",
        hint=f"Create them: sbpair provision {pair.name}",
    )


def doubtful_of(
    request: BacklogRequest, *, source: Messaging, target: Messaging, clock: RuntimeClock, stop: asyncio.Event
) -> Verify | None:
    """How to look for what an earlier run may have sent; None where the request does not ask for it, or the messages go
    into an archive."""
    if not request.verify_doubtful or isinstance(request.to, ToArchive):
        return None
    return looking_for(make_classifier(request, clock), source=source, target=target, clock=clock, stop=stop)


def ledger_run(command: str, pair: Pair, request: BacklogRequest) -> LedgerRun:
    """The run as its ledger has it."""
    return LedgerRun(command, pair.secondary, None if isinstance(request.to, ToArchive) else pair.primary)


AFTER_SECONDS = 10.0
"""How long a run that has ended may take to count what is left."""


@dataclass(frozen=True, slots=True)
class DrainRequest(BacklogRequest):
    """What to drain, where to, and how hard. Durations in seconds."""

    plan: Planned | None = None
    """What a dry run has decided: these messages are moved, and none that came since. By one process."""
    processes: int = 1
    """Share the queues among this many processes, where one core is too slow. A dry run takes one."""

    def of_one_process(self) -> tuple[str, ...]:
        """Fields with a value that several processes cannot keep together."""
        bounds = ("plan", "max_messages", "rate_per_second", "budget_per_second", "idle_seconds")
        return tuple(name for name in bounds if getattr(self, name)) + ("to",) * isinstance(self.to, ToArchive)


async def drain(
    sides: Sides, request: DrainRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DrainResult:
    """Return the messages of a pair's backlog queues to the primary, then read what the whole backlog holds.

    Several drains and syphons may work on one pair at once. Needs Listen on the secondary and Send on the primary;
    with Manage on the secondary the queues are listed and counted, without it they are opened and browsed.

    Args:
        request: what to do. With `dry_run` the queues are browsed and the destinations asked, and the result says what
            a drain would do.
        stop: ends the run within about 10 seconds once it is set: messages in flight are settled or released, and the
            result says what was done until then.

    Returns:
        What became of the messages, and what the backlog holds afterwards.

    Raises:
        SbpairError: no backlog queue exists, or the ledger or archive cannot be written.
        UsageError: a queue of the request does not exist, the pair is reversed, the ledger is that of other namespaces,
            or the request asks several processes to keep what only one can keep.
        ServiceError: no queue at all could be read; the first one's error.
        FilterError: the filter cannot be evaluated for a message, and nothing had moved; otherwise the result says so.
        InterruptedWorkError: `stop` was set before the queues had been found. Nothing was moved.
    """
    reopen, pair = _reopen_of(sides, request), sides.pair
    observer, stop, usage, clock = observer or Quiet(), stop or asyncio.Event(), Usage(), LoopClock()
    secondary, admin = CountedMessaging(sides.secondary, usage), counted_admin(sides.secondary_admin, usage)
    seconds = min(request.patience_seconds, AFTER_SECONDS)

    only, facts = request.queues, None
    run, told = ledger_run("drain", pair, request), None if request.dry_run else observer
    looking = doubtful_of(request, source=secondary, target=sides.primary, clock=clock, stop=stop)
    async with open_ledger(request.ledger, run, told, new=request.new_ledger, verify=looking) as ledger:
        # Queues of another primary were listed before they were named: no search under this pair's prefix finds them.
        if own := all(is_own(path, pair) for path in only):
            searching = find_queues(pair, messaging=secondary, admin=admin, timeout_seconds=seconds)
            found = await run_until(stop, searching)
            await run_until(stop, refuse_reversed(sides, found, seconds))
            paths, facts = chosen_queues(pair, found, only)
            request = replace(request, queues=paths)
        planned = Planned(make_classifier(request, clock)) if request.dry_run else request.plan
        job = _job(
            sides,
            usage,
            request,
            judge=planned,
            primary_admin=counted_admin(sides.primary_admin, usage),
            observer=observer,
            ledger=ledger,
            stop=stop,
            facts=facts,
        )
        if reopen is not None and len(request.queues) > 1:
            from sbpair.runtime.transfer.processes import drain_in_processes

            report = await drain_in_processes(job, _InProcess(reopen), request.processes, usage)
        else:
            report = await drain_backlog(job)
        backlog = None
        if own:
            backlog = await what_is_left(pair, only, messaging=secondary, admin=admin, timeout_seconds=seconds)
        await run.ended(ledger, report, backlog)
    before = {path: request.expected(known.counts) for path, known in (facts or {}).items()}
    if planned is not None:
        planned.settle()
    return DrainResult.of(asked_of(pair, request), report, backlog, usage.forecast(), before, plan=planned)


def _job(sides: Sides, usage: Usage, request: TransferRequest, **more: Any) -> DrainJob:
    """A drain between these sides, whose operations on the secondary are counted; `more` as `DrainJob` takes it."""
    secondary, admin = CountedMessaging(sides.secondary, usage), counted_admin(sides.secondary_admin, usage)
    return DrainJob(request, secondary=secondary, primary=sides.primary, admin=admin, clock=LoopClock(), **more)


# Several processes.


Reopen = Callable[[], AbstractAsyncContextManager[Sides]]


def _reopen_of(sides: Sides, request: DrainRequest) -> Reopen | None:
    """What opens the sides in another process; None for a run in this one.

    Raises:
        UsageError: the request asks several processes for what they cannot do.
    """
    if request.processes == 1 or request.dry_run:
        return None
    if given := request.of_one_process():
        raise UsageError(f"Only one process can keep {', '.join(given)}; the request asks for {request.processes}.")
    try:
        pickle.dumps(sides.reopen)
    except TypeError as error:
        raise UsageError(f"Another process cannot open {sides.pair.name}: {error}.") from error
    return sides.reopen


@dataclass(frozen=True, slots=True)
class _InProcess:
    """`sbpair.runtime.transfer.processes.Work`: drains a share with sides of its own."""

    reopen: Reopen

    async def __call__(
        self, share: "Share", observer: Observer, ledger: Recorder | None, stop: asyncio.Event
    ) -> tuple[DrainReport, Usage]:
        usage = Usage()
        async with self.reopen() as sides:
            request, facts = share.request, share.facts
            job = _job(sides, usage, request, observer=observer, ledger=ledger, stop=stop, facts=facts, part=True)
            return await drain_backlog(job), usage


LEFT_SECONDS = 3.0
"""A service that is stopped counts what is left only if that is answered at once."""


@dataclass(frozen=True, slots=True)
class SyphonRequest(BacklogRequest):
    """What to drain continuously, where to, and how hard. Durations in seconds. `max_messages`, `patience_seconds` and
    `dry_run` do not apply."""

    poll_seconds: float = POLL_SECONDS
    """How long one receive waits for a message; an empty queue costs one receive in this time."""


async def syphon(
    sides: Sides,
    request: SyphonRequest,
    *,
    observer: Observer | None = None,
    stop: asyncio.Event | None = None,
    totals: Tally | None = None,
) -> DrainResult:
    """Forward what the backlog queues of a pair hold, and what comes into them, until it is stopped.

    Without `queues` in the request, a queue that is made later is served too. What breaks a run is announced as
    `Restarting`; the next run begins after 1 second, later after up to 2 minutes, with new connections where the sides
    can be opened again. Several syphons may share the work of one pair.

    Args:
        request: what to do; `for_seconds` and `idle_seconds` end the service by themselves.
        stop: ends the service within about 10 seconds once it is set: messages in flight are settled or released.
        totals: counts on over all runs, for a display while the service works.

    Returns:
        What all runs did, and what the backlog holds afterwards if that was answered in 3 seconds.

    Raises:
        SbpairError: no backlog queue exists, or the ledger or archive cannot be written, when the service ends.
        UsageError: a queue of the request does not exist, or the ledger is that of other namespaces.
        FilterError: the filter cannot be evaluated for a message, and nothing had moved; otherwise the result says so.
        OperationTimeoutError: the secondary had not answered when `for_seconds` or `idle_seconds` were over.
        InterruptedWorkError: `stop` was set before the queues had been found. Nothing was moved.
    """
    service = _Service(sides, request, observer or Quiet(), stop or asyncio.Event(), totals)
    return await service.carry_out()


class _Service:
    """One syphon: its runs one after another, and when they end. It is the observer of its runs."""

    def __init__(
        self, sides: Sides, request: SyphonRequest, observer: Observer, stop: asyncio.Event, totals: Tally | None
    ) -> None:
        self._sides = sides
        self._request = replace(request, later_queues=not request.queues)
        self._observer = observer
        self._stop = stop
        self._totals = totals
        self._clock = LoopClock()
        self._usage = Usage()
        self._runs = 0
        self._backlog: Backlog | None = None
        self._end = asyncio.Event()
        self._ended_by = "stop"
        self._came_at = self._clock.monotonic()

    def notify(self, event: Event) -> None:
        if isinstance(event, Forwarded) or (isinstance(event, Polled) and event.messages):
            self._came_at = self._clock.monotonic()
        self._observer.notify(event)

    async def carry_out(self) -> DrainResult:
        async with self._ending():
            report = await serve(self._run, stop=self._end, clock=self._clock, observer=self)
        if not self._stop.is_set() and report.broken_off is None:
            report = replace(report, ended_by=self._ended_by)
        asked = asked_of(self._sides.pair, self._request)
        return DrainResult.of(asked, report, self._backlog, self._usage.forecast())

    async def _run(self, uncompleted: frozenset[Key]) -> SyphonRun:
        request, pair, again = self._request, self._sides.pair, self._runs > 0
        self._runs += 1
        async with AsyncExitStack() as stack:
            new = request.new_ledger and not again
            sides = self._sides
            if again and sides.reopen is not None:
                sides = await stack.enter_async_context(sides.reopen())
            secondary = CountedMessaging(sides.secondary, self._usage)
            admin = counted_admin(sides.secondary_admin, self._usage)
            looking = doubtful_of(request, source=secondary, target=sides.primary, clock=self._clock, stop=self._end)
            recorded = ledger_run("syphon", pair, request)
            opening = open_ledger(request.ledger, recorded, self._observer, new=new, verify=looking)
            ledger = await stack.enter_async_context(opening)
            try:
                found = await run_until(self._end, find_queues(pair, messaging=secondary, admin=admin))
            except InterruptedWorkError as ended:
                if self._stop.is_set():
                    raise
                where = f"{shown_name(pair.secondary)} had not answered when the time was up"
                raise OperationTimeoutError(f"{where}. Nothing was moved.") from ended
            await run_until(self._end, refuse_reversed(sides, found, request.patience_seconds))
            paths, facts = chosen_queues(pair, found, request.queues)
            self.notify(SyphonBegan(self._clock.now().timestamp(), paths))
            request_now = replace(request, queues=paths)
            job = _job(sides, self._usage, request_now, observer=self, ledger=ledger, facts=facts, stop=self._end)
            done = await syphon_until(
                job, poll_seconds=request.poll_seconds, uncompleted=uncompleted, totals=self._totals
            )
            if done.broken is None:
                self._backlog = await what_is_left(
                    pair, request.queues, messaging=secondary, admin=admin, timeout_seconds=LEFT_SECONDS
                )
                await recorded.ended(ledger, done.report, self._backlog)
            return done

    @asynccontextmanager
    async def _ending(self) -> AsyncIterator[None]:
        """`_end` is set when the service is stopped, when its time is up, or when nothing has come for long enough."""
        tasks = [asyncio.create_task(waiting) for waiting in (self._until_stopped(), self._until_late(), self._idle())]
        try:
            yield
        finally:
            await end(*tasks)

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        self._because("stop")

    async def _until_late(self) -> None:
        if self._request.for_seconds is not None:
            await self._clock.sleep(self._request.for_seconds)
            self._because("time")

    async def _idle(self) -> None:
        if not self._request.idle_seconds:
            return
        left = self._request.idle_seconds
        while left > 0:
            await self._clock.sleep(left)
            left = self._came_at + self._request.idle_seconds - self._clock.monotonic()
        self._because("idle")

    def _because(self, why: str) -> None:
        if not self._end.is_set():
            self._ended_by = why
            self._end.set()
