"""All that an entity holds, sent to another one, archived or deleted: what is active by the pump as in a drain, the
rest by ways of its own.

* A queue that hands out messages by session is emptied session by session, each in its order and with its state: the
  state is set at the destination before the first message goes, and cleared here once the session holds nothing more.
* Scheduled messages cannot be received. They are browsed, sent with their times, and cancelled here once the
  destination has them. What is due soon waits until it is active. A topic holds nothing else.
* Within a namespace that has transactions a message is sent and completed, or cancelled, in one: a crash leaves it in
  one place. Elsewhere it is completed or cancelled afterwards, and a crash in between leaves it in both.
* Deferred messages are received by their numbers, after all others, and are active at the destination.
* A copy browses only: nothing is locked, and what it sent stands in its ledger.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sbpair.concurrency import end
from sbpair.core.errors import Category, ServiceError
from sbpair.core.message import State
from sbpair.core.names import subscription_of
from sbpair.core.transfer.report import DrainReport, QueueFailure, parts_together
from sbpair.ports import DeletesInBatches
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.drain import ToArchive, TransferRequest, halt_in_time, make_archive
from sbpair.runtime.transfer.move_browsed import BrowsedMove
from sbpair.runtime.transfer.move_sessions import SessionMove, reported_later
from sbpair.runtime.transfer.moving import MoveJob

MOST_DELETED_AT_ONCE = (4_000, 500)
"""Messages that a request deletes at most in the Premium tier, and in the others."""


async def move(job: MoveJob) -> DrainReport:
    """Send what lies in the entity to where the job's judge says, and complete it.

    Raises:
        ServiceError: nothing could be read, and nothing was moved.
        FilterError: as `drain`.
        LedgerError: the ledger cannot be written.
    """
    request = job.request
    seconds = None if request.dry_run else request.for_seconds
    async with _ended_in_time(seconds, job.stop) as halt:
        timeless = replace(job, request=replace(request, for_seconds=None), stop=halt)
        if request.dry_run:
            return await timeless.drained(timeless.request)
        report = await (BrowsedMove(timeless).copied() if job.copy else _moved_or_archived(timeless))
    return replace(report, ended_by="time") if report.ended_by == "stop" and not job.stop.is_set() else report


@asynccontextmanager
async def _ended_in_time(seconds: float | None, stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """An event that `stop` or the end of `seconds` sets: a bound for all parts of a run, which end as when stopped."""
    if seconds is None:
        yield stop
        return
    halt = asyncio.Event()
    watching = asyncio.create_task(halt_in_time(halt, stop, seconds))
    try:
        yield halt
    finally:
        await end(watching)


async def _moved_or_archived(job: MoveJob) -> DrainReport:
    """All of it, with one archive for all parts where that is where they go."""
    if not isinstance(job.request.to, ToArchive):
        return await _moved(job)
    archive = make_archive(job.request.to, job.clock)
    try:
        return replace(await _moved(replace(job, archive=archive)), archive=archive.path)
    finally:
        await archive.close()


async def _moved(job: MoveJob) -> DrainReport:
    """Scheduled messages first, before they become active; then what can be received."""
    began = job.clock.monotonic()
    parts: list[DrainReport] = []
    of_the_queue = job.request.kinds != (True,)
    scheduled = job.request.scheduled and of_the_queue and subscription_of(job.path) is None
    if scheduled:
        parts.append(await BrowsedMove(job).scheduled(job.request))
    if job.delete_before is not None:
        parts.append(await _deleted_in_batches(job, job.delete_before))
    rest = None if job.topic else job.less(job.request, parts)
    if rest is not None and of_the_queue and await _by_session(job):
        parts += await SessionMove(job).moved_until_idle(rest)
        rest = job.less(job.request, parts)
        if rest is not None and True in job.request.kinds:
            rest = replace(rest, dead_letter=True, with_dead_letter=False, idle_seconds=0.0)
            parts.append(await _safely(job, rest, parts))
    elif rest is not None and job.ends.transactions is None:
        parts.append(await _safely(job, rest, parts))
    elif rest is not None:
        for dead_letter in rest.kinds:  # a transaction holds what one receiver has received
            if (request := job.less(job.request, parts)) is not None:
                request = replace(request, dead_letter=dead_letter, with_dead_letter=False)
                if dead_letter and len(rest.kinds) > 1:
                    request = replace(request, idle_seconds=0.0)
                parts.append(await _safely(job, request, parts))
    if scheduled and not parts[0].failures:
        parts[1:] = [_without_scheduled(part) for part in parts[1:]]
        if job.request.idle_seconds and (request := job.less(job.request, parts)) is not None:
            parts[0] = reported_later(parts[0])
            parts.append(await BrowsedMove(job).scheduled(request))  # what was scheduled meanwhile
    return parts_together(parts, seconds=job.clock.monotonic() - began)


async def _deleted_in_batches(job: MoveJob, before: float) -> DrainReport:
    """Let the service delete what is active. What it does not delete so is left to the ways below: sessions, and the
    entities and namespaces for which it refuses."""
    began, deleted = job.clock.monotonic(), 0
    dead_letter = job.request.dead_letter
    receiver = job.ends.source.receiver(job.path, dead_letter=dead_letter)
    try:
        if not isinstance(receiver, DeletesInBatches) or (not dead_letter and await _by_session(job)):
            return DrainReport(confirmed_empty=True)
        for most in MOST_DELETED_AT_ONCE:
            with suppress(ServiceError):  # the next ones are fewer, and then come one after another
                while not job.stop.is_set() and (some := await receiver.delete_batch(most, before=before)):
                    deleted += some
                break
    finally:
        await close_quietly(receiver)
    return DrainReport(purged=deleted, confirmed_empty=True, seconds=job.clock.monotonic() - began)


async def _by_session(job: MoveJob) -> bool:
    """Whether the entity hands out messages by session. Who may not ask for its settings asks for its sessions:
    only such an entity has some."""
    known = job.facts.get(job.path)
    if known is not None:
        return known.settings.requires_session
    receiver = job.ends.source.receiver(job.path)
    try:
        return bool(await receiver.session_ids())
    except ServiceError as error:
        if error.category in (Category.ARGUMENT, Category.NOT_FOUND):
            return False
        raise
    finally:
        await close_quietly(receiver)


async def _safely(job: MoveJob, request: TransferRequest, before: list[DrainReport]) -> DrainReport:
    """A drain whose failure does not hide what has moved before."""
    try:
        if job.ends.transactions is None:
            return await job.drained(request)
        mover = job.ends.transactions.mover(job.path, dead_letter=request.dead_letter)
        return await job.drained(request, mover=mover)
    except ServiceError as error:
        if not any(part.has_moved for part in before):
            raise
        return DrainReport(failures=(QueueFailure(job.path, error),))


def _without_scheduled(report: DrainReport) -> DrainReport:
    """Scheduled messages have had their turn: what the later part saw of them is reported there already."""
    return replace(report, left=tuple(left for left in report.left if left.reason != State.SCHEDULED.value))
