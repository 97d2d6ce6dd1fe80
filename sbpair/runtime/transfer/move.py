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
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import cast

from sbpair.concurrency import end
from sbpair.core.errors import Category, LocksLostError, ServiceError
from sbpair.core.message import Disposition, MessageState, Origin, Received
from sbpair.core.names import subscription_of
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import DrainReport, QueueFailure, parts_together
from sbpair.core.transfer.resend import IN_DOUBT, NOT_REACHED, NOT_SCHEDULED
from sbpair.core.transfer.state import Finish, Forward, Key, Leave, Verdict, key_of
from sbpair.ports import MOST_MOVED_AT_ONCE, DeletesInBatches, MessageSender, ScheduledMover
from sbpair.runtime.browse import pages
from sbpair.runtime.links import close_quietly, closing
from sbpair.runtime.transfer.drain import (
    ToArchive,
    TransferRequest,
    halt_in_time,
    make_archive,
    make_limits,
    make_report,
    make_sources,
)
from sbpair.runtime.transfer.move_sessions import SessionMove, reported_later
from sbpair.runtime.transfer.moving import MoveJob
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.restore import send_stored
from sbpair.runtime.transfer.sinks import LeftOpen, NamespaceSink, Sink, TransactionSink
from sbpair.runtime.transfer.stored import StoredMessages

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
    async with closing(job.ends.source.receiver(job.path, dead_letter=dead_letter)) as receiver:
        if not isinstance(receiver, DeletesInBatches) or (not dead_letter and await _by_session(job)):
            return DrainReport(confirmed_empty=True)
        for most in MOST_DELETED_AT_ONCE:
            with suppress(ServiceError):  # the next ones are fewer, and then come one after another
                while not job.stop.is_set() and (some := await receiver.delete_batch(most, before=before)):
                    deleted += some
                break
    return DrainReport(purged=deleted, confirmed_empty=True, seconds=job.clock.monotonic() - began)


async def _by_session(job: MoveJob) -> bool:
    """Whether the entity hands out messages by session. Who may not ask for its settings asks for its sessions:
    only such an entity has some."""
    known = job.facts.get(job.path)
    if known is not None:
        return known.settings.requires_session
    try:
        async with closing(job.ends.source.receiver(job.path)) as receiver:
            return bool(await receiver.session_ids())
    except ServiceError as error:
        if error.category in (Category.ARGUMENT, Category.NOT_FOUND):
            return False
        raise


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
        error.message = error.message.removesuffix(f" {request.none_readable}")
        return DrainReport(failures=(QueueFailure(job.path, error),))


def _without_scheduled(report: DrainReport) -> DrainReport:
    """Scheduled messages have had their turn: what the later part saw of them is reported there already."""
    return replace(report, left=tuple(left for left in report.left if left.reason != MessageState.SCHEDULED.value))


CANCEL_SECONDS = 30.0
_DEALT_WITH = "dealt with while it was browsed"


class BrowsedMove:
    """See the module."""

    def __init__(self, job: MoveJob) -> None:
        self._job = job

    async def copied(self) -> DrainReport:
        """Everything that is asked for, sent and left where it is."""
        began = self._job.clock.monotonic()
        wanted = frozenset({MessageState.ACTIVE}) | self._job.request.also
        parts: list[DrainReport] = []
        for source in make_sources(self._job.request, self._job.ends.source, self._job.facts, wait_seconds=0.0):
            try:
                rest = self._job.less(self._job.request, parts)
                if rest is not None:
                    parts.append(await self._browsed(source, rest, wanted, None))
            finally:
                await close_quietly(source.receiver)
        # Nothing was completed: the counter of the pump says that it was told to.
        return replace(parts_together(parts, seconds=self._job.clock.monotonic() - began), completed=0)

    async def scheduled(self, request: TransferRequest) -> DrainReport:
        receiver, sender = self._job.ends.source.receiver(self._job.path), self._job.ends.source.sender(self._job.path)
        mover = (
            None if self._job.ends.transactions is None else self._job.ends.transactions.scheduled_mover(self._job.path)
        )
        source = Source(self._job.path, receiver)
        try:
            return await self._browsed(source, request, frozenset({MessageState.SCHEDULED}), sender, mover)
        finally:
            for opened in (receiver, sender, mover):
                if opened is not None:
                    await close_quietly(opened)

    async def _browsed(
        self,
        source: Source,
        request: TransferRequest,
        states: frozenset[MessageState],
        canceller: MessageSender | None,
        mover: ScheduledMover | None = None,
    ) -> DrainReport:
        """Send what a browse shows in these states; `canceller` takes it away then, or `mover` does both at once."""
        began = self._job.clock.monotonic()
        sent_before = self._job.ledger.forwarded if self._job.ledger is not None else frozenset()
        limits = make_limits(request, patience_seconds=request.patience_seconds, lock_wait_seconds=None)
        stored = _Browsed(canceller)
        sink: Sink = NamespaceSink(self._job.ends.target)
        if self._job.archive is not None:
            sink = cast(Sink, LeftOpen(self._job.archive))
        elif mover is not None:
            limits = replace(limits, batch_messages=MOST_MOVED_AT_ONCE, in_transactions=True)
            sink = TransactionSink(_MovesBrowsed(stored, mover), self._job.ends.target)
        machine = Settlement(limits, undeliverable=None, leave_missing=True, forwarded=sent_before)
        fed: Counter[str] = Counter()
        feeding = asyncio.create_task(self._feed(source, stored, states, canceller, fed))
        try:
            left = await send_stored(
                stored,
                stored.verdict_of,
                machine,
                sink,
                ledger=self._job.ledger,
                clock=self._job.clock,
                observer=self._job.observer,
                stop=self._job.stop,
                settled_by_us=canceller is None,
            )
        except BaseException:
            await end(feeding)
            raise
        if self._job.stop.is_set():
            await end(feeding)  # a run that was told to stop does not count to the end what it leaves
        if not feeding.cancelled():
            await feeding
        if not machine.total_reached:
            numbers = machine.tally.numbers
            dealt_with = numbers["forwarded"] + numbers["already_forwarded"] + numbers["purged"] + left.total()
            left[NOT_REACHED] += max(0, stored.handed_over - dealt_with)
        left += fed
        report = make_report(
            machine,
            [source],
            left=left,
            sent_before=sent_before,
            seconds=self._job.clock.monotonic() - began,
            confirmed_empty=not (left or feeding.cancelled()) and source.failed is None,
            ended_by="stop" if self._job.stop.is_set() else "count" if machine.total_reached else "empty",
            sink=sink,
        )
        if source.failed is not None and not source.was_read:
            raise source.failed.with_state(self._job.request.undone)
        return report

    async def _feed(
        self,
        source: Source,
        stored: "_Browsed",
        states: frozenset[MessageState],
        canceller: MessageSender | None,
        left: Counter[str],
    ) -> None:
        """Browse, and hand over what may go; the rest is `left` by reason. A browse that fails is the source's
        failure."""
        may_cancel: bool | None = None if canceller is not None else True
        try:
            browsed = pages(source.receiver, clock=self._job.clock, patience_seconds=self._job.request.patience_seconds)
            async for page in browsed:
                source.was_read = True
                going: list[tuple[Received, Forward | Finish]] = []
                for message in page:
                    if message.state not in states:
                        continue
                    verdict = self._job.judge(message)
                    if isinstance(verdict, Leave):
                        left[verdict.because] += 1
                    else:
                        going.append((message, verdict))
                if going and may_cancel is None and canceller is not None:
                    # Before the first message is sent: without the right to cancel it here it would be in both places.
                    await canceller.max_message_bytes()
                    may_cancel = True
                if not await stored.hand_over(going) and self._job.request.max_messages is not None:
                    break
            source.was_read = True
        except ServiceError as error:
            source.failed = error
        finally:
            await stored.end()


class _Browsed(StoredMessages):
    """Messages that a browse has shown, with what was decided of each. Once a message is dealt with, `canceller` takes
    it out of its queue; None: it stays there."""

    def __init__(self, canceller: MessageSender | None) -> None:
        super().__init__()
        self._canceller = canceller
        self._verdicts: dict[Key, Verdict] = {}
        self.handed_over = 0

    async def hand_over(self, going: Sequence[tuple[Received, Verdict]]) -> bool:
        """As `put`, with what is to become of each; `handed_over` counts also what nobody takes any more."""
        browsed = [replace(message, origin=_origin(message)) for message, _ in going]
        self._verdicts.update((key_of(message), verdict) for message, (_, verdict) in zip(browsed, going, strict=True))
        self.handed_over += len(going)
        return await self.put(browsed)

    def verdict_of(self, received: Received) -> Verdict:
        return self._verdicts.get(key_of(received)) or Leave(_DEALT_WITH)

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        if disposition is Disposition.COMPLETE and self._canceller is not None:
            await self._canceller.cancel_scheduled([key_of(received)[1]], timeout_seconds=CANCEL_SECONDS)
        await super().settle(received, disposition, reason=reason, description=description)

    def forget(self, received: Received) -> None:
        self._verdicts.pop(key_of(received), None)
        super().forget(received)

    async def leave(self, messages: Sequence[Received], because: str) -> None:
        """They are handed out again, to be left for this reason."""
        self._verdicts.update((key_of(message), Leave(because)) for message in messages)
        await self.give_back(messages)


class _MovesBrowsed:
    """`sbpair.ports.Moves` for what a browse has shown: by the numbers under which it lies in its queue."""

    def __init__(self, browsed: _Browsed, mover: ScheduledMover) -> None:
        self._browsed = browsed
        self._mover = mover

    async def max_message_bytes(self, entity: str) -> int:
        return await self._mover.max_message_bytes(entity)

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        there = [replace(message, sequence_number=key_of(message)[1]) for message in received]
        try:
            await self._mover.move(there, payloads, entity, timeout_seconds=timeout_seconds)
        except LocksLostError as error:
            lost = [received[place] for place in error.lost]
            await self._browsed.leave(lost, IN_DOUBT if error.uncertain else NOT_SCHEDULED)
            raise
        for message in received:
            self._browsed.forget(message)


def _origin(message: Received) -> Origin:
    queue, number, message_id, enqueued_ms = key_of(message)
    return Origin(queue, number, message_id, enqueued_ms)
