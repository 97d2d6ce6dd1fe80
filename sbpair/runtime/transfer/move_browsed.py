"""Messages that a browse shows: copies, which stay where they are, and scheduled ones, which nothing can receive.

Scheduled messages are sent with their times, and cancelled here once the destination has them; within a namespace that
has transactions both happen in one.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from sbpair.concurrency import end
from sbpair.core.errors import LocksLostError, ServiceError
from sbpair.core.message import Disposition, Origin, Received, State
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import DrainReport, parts_together
from sbpair.core.transfer.resend import IN_DOUBT, NOT_REACHED, NOT_SCHEDULED
from sbpair.core.transfer.state import Finish, Forward, Key, Leave, Verdict, key_of
from sbpair.ports import MOST_MOVED_AT_ONCE, MessageSender, ScheduledMover
from sbpair.runtime.browse import pages
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.drain import TransferRequest, make_limits, make_report, make_sources
from sbpair.runtime.transfer.moving import MoveJob
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.restore import send_stored
from sbpair.runtime.transfer.sinks import LeftOpen, NamespaceSink, Sink, TransactionSink
from sbpair.runtime.transfer.stored import StoredMessages

CANCEL_SECONDS = 30.0
_DEALT_WITH = "dealt with while it was browsed"


class BrowsedMove:
    """See the module."""

    def __init__(self, job: MoveJob) -> None:
        self._job = job

    async def copied(self) -> DrainReport:
        """Everything that is asked for, sent and left where it is."""
        began = self._job.clock.monotonic()
        wanted = frozenset({State.ACTIVE}) | self._job.request.also
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
            return await self._browsed(source, request, frozenset({State.SCHEDULED}), sender, mover)
        finally:
            for opened in (receiver, sender, mover):
                if opened is not None:
                    await close_quietly(opened)

    async def _browsed(
        self,
        source: Source,
        request: TransferRequest,
        states: frozenset[State],
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
            limits = replace(limits, batch_messages=MOST_MOVED_AT_ONCE)
            sink = TransactionSink(_MovesBrowsed(stored, mover), self._job.ends.target)
        machine = Settlement(limits, undeliverable=None, leave_missing=True, forwarded=sent_before)
        feeding = asyncio.create_task(self._feed(source, stored, states, canceller))
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
        fed = await feeding
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
            confirmed_empty=not left and source.failed is None,
            ended_by="stop" if self._job.stop.is_set() else "count" if machine.total_reached else "empty",
            sink=sink,
        )
        if source.failed is not None and not source.was_read:
            raise source.failed.with_state("Nothing was moved.")
        return report

    async def _feed(
        self, source: Source, stored: "_Browsed", states: frozenset[State], canceller: MessageSender | None
    ) -> Counter[str]:
        """Browse, and hand over what may go; the rest by reason. A browse that fails is the source's failure."""
        left: Counter[str] = Counter()
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
        return left


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
        if disposition is Disposition.COMPLETE and self._canceller is not None and received.origin is not None:
            await self._canceller.cancel_scheduled([received.origin.sequence_number], timeout_seconds=CANCEL_SECONDS)
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
