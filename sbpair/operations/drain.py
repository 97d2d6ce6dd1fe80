"""One pass over the backlog of a pair, back to the primary, until it is confirmed empty."""

import asyncio
import pickle
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sbpair.concurrency import run_until
from sbpair.core.errors import UsageError
from sbpair.core.transfer.conclusion import DrainResult
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.resend import Planned
from sbpair.operations.backlog import (
    BacklogRequest,
    asked_of,
    chosen_queues,
    doubtful_of,
    ledger_run,
    refuse_reversed,
    what_is_left,
)
from sbpair.operations.ledgers import open_ledger
from sbpair.ports import Observer, Sides
from sbpair.runtime.clock import Quiet, SystemClock
from sbpair.runtime.inspection.backlog import find_queues, is_own
from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging, Usage
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, ToPrimary, ToQueue, make_classifier
from sbpair.runtime.transfer.drain import drain as drain_backlog
from sbpair.runtime.transfer.ledger import Recorder

if TYPE_CHECKING:
    from sbpair.runtime.transfer.processes import Share

__all__ = ["DrainRequest", "DrainResult", "ToArchive", "ToPrimary", "ToQueue", "drain"]

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
    observer, stop, usage, clock = observer or Quiet(), stop or asyncio.Event(), Usage(), SystemClock()
    secondary, admin = CountedMessaging(sides.secondary, usage), CountedAdmin(sides.secondary_admin, usage)
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
        job = DrainJob(
            request,
            secondary=secondary,
            primary=sides.primary,
            judge=planned,
            admin=admin,
            primary_admin=CountedAdmin(sides.primary_admin, usage),
            clock=clock,
            observer=observer,
            ledger=ledger,
            stop=stop,
            facts=facts,
        )
        if reopen is not None and len(request.queues) > 1:
            report = await _drain_in_processes(job, reopen, ledger, usage)
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


async def _drain_in_processes(job: DrainJob, reopen: Reopen, ledger: Recorder | None, usage: Usage) -> DrainReport:
    from sbpair.runtime.transfer.processes import drain_in_processes

    assert isinstance(job.request, DrainRequest)  # noqa: S101 - of this verb
    return await drain_in_processes(
        job.request,
        _InProcess(reopen),
        job.request.processes,
        clock=job.clock,
        observer=job.observer,
        ledger=ledger,
        stop=job.stop,
        facts=job.facts,
        usage=usage,
    )


@dataclass(frozen=True, slots=True)
class _InProcess:
    """`sbpair.runtime.transfer.processes.Work`: drains a share with sides of its own."""

    reopen: Reopen

    async def __call__(
        self, share: "Share", observer: Observer, ledger: Recorder | None, stop: asyncio.Event
    ) -> tuple[DrainReport, Usage]:
        usage = Usage()
        async with self.reopen() as sides:
            job = DrainJob(
                share.request,
                secondary=CountedMessaging(sides.secondary, usage),
                primary=sides.primary,
                admin=CountedAdmin(sides.secondary_admin, usage),
                clock=SystemClock(),
                observer=observer,
                ledger=ledger,
                stop=stop,
                facts=share.facts,
                part=True,
            )
            return await drain_backlog(job), usage
