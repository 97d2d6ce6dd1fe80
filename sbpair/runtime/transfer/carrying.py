"""Carries out what the machine wants done, and reports each answer to it: sends, settlements, renewals, the ledger."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC

from sbpair.core.errors import LocksLostError, SbpairError, SendIncompleteError, ServiceError, UnknownServiceError
from sbpair.core.events import DeadLettered, Forwarded
from sbpair.core.message import Disposition
from sbpair.core.transfer.ledger import Entry
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import Batch, Item, Renew, Settle
from sbpair.ports import Clock, Observer
from sbpair.runtime.transfer.ledger import Begun, LedgerError, Recorder
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import Sink

PROGRESS_SECONDS = 0.5


class Progress:
    """Announces what was moved, every half second at the most. `moved` is set whenever messages leave their queue."""

    def __init__(self, clock: Clock, observer: Observer, moved: asyncio.Event) -> None:
        self._clock = clock
        self._observer = observer
        self._moved = moved
        self._messages: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._announced_at = 0.0

    def settled(self, settle: Settle) -> None:
        """The broker confirmed it."""
        if settle.disposition is Disposition.DEAD_LETTER:
            self._moved.set()
            queue, number = settle.item.key[0], settle.item.key[1]
            utc = self._clock.now().timestamp()
            self._observer.notify(DeadLettered(utc, queue, number, settle.reason, settle.description))
        else:
            self.completed([settle])

    def completed(self, settles: Sequence[Settle]) -> None:
        """The broker confirmed these."""
        self._moved.set()
        for settle in settles:
            if settle.outcome == "forwarded":
                item = settle.item
                place = item.key[0], item.destination
                self._messages[place] += 1
                self._bytes[place] += item.size_bytes

    def announce_if_due(self, now: float) -> None:
        """`announce`, if the last time is long enough ago."""
        if now - self._announced_at >= PROGRESS_SECONDS:
            self._announced_at = now
            self.announce()

    def announce(self) -> None:
        """Announce what was moved since the last time."""
        utc = self._clock.now().timestamp()
        for (queue, entity), messages in self._messages.items():
            self._observer.notify(Forwarded(utc, queue, entity, messages, self._bytes[queue, entity]))
        self._messages.clear()
        self._bytes.clear()


class Carrier:
    """See the module.

    Args:
        sources: by the lower-case name of what they receive from.
        break_down: called with an error that no retry mends; ends the run.
        changed: called when the machine has something new to decide.
    """

    def __init__(
        self,
        machine: Settlement,
        sources: Mapping[str, Source],
        sink: Sink,
        ledger: Recorder | None,
        *,
        clock: Clock,
        progress: Progress,
        break_down: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._by_path = sources
        self._sink = sink
        self._ledger = ledger
        self._clock = clock
        self._progress = progress
        self._break_down = break_down
        self._changed = changed
        self.reads_stored = False
        """Whether any source reads messages out of a file: most often none does, and no message is asked about it."""

    async def measure(self, destination: str) -> None:
        """Ask the link to a destination for its limit."""
        try:
            limit = await self._sink.limit_bytes(destination)
        except ServiceError as error:
            self._machine.destinations.limit_failed(destination, error, self._clock.monotonic())
        else:
            self._machine.destinations.limit_known(destination, limit)

    async def send(self, batch: Batch) -> None:
        """Send a batch once the ledger has room for it, and record what was accepted before anything is completed."""
        begun: Begun | None = None
        try:
            if self._ledger is not None:
                entries = self._entries(batch.items, "forwarded")
                begun = await self._ledger.begin(entries, in_doubt=self._sink.in_doubt)
        except LedgerError as error:
            self._break_down(error)
            self._machine.destinations.unrecorded(batch)
            return
        try:
            await self._sink.send(batch.destination, batch.items)
        except SendIncompleteError as error:
            self._machine.custody.remember([batch.items[place] for place in error.accepted])
            cause = error.__cause__ if isinstance(error.__cause__, ServiceError) else error
            if await self._recorded(batch, begun, error.accepted, certain=not cause.uncertain):
                self._machine.destinations.send_failed(batch, error, self._clock.monotonic())
        except LocksLostError as error:
            if await self._recorded(batch, begun, ()):
                self._machine.destinations.locks_lost(batch, error.lost, self._clock.monotonic())
        except ServiceError as error:
            if await self._recorded(batch, begun, (), certain=not error.uncertain):
                self._machine.destinations.send_failed(batch, error, self._clock.monotonic())
        except SbpairError as error:
            self._break_down(error)
            if await self._recorded(batch, begun, ()):
                failed = UnknownServiceError(error.message)
                self._machine.destinations.send_failed(batch, failed, self._clock.monotonic())
        else:
            self._machine.custody.remember(batch.items)
            if await self._recorded(batch, begun, range(len(batch.items))):
                self._machine.destinations.sent(batch, self._clock.monotonic())

    async def _recorded(
        self, batch: Batch, begun: Begun | None, sent: Collection[int], *, certain: bool = True
    ) -> bool:
        """Write what became of a batch; False if that failed, which ends the run. Arguments as of `confirm`."""
        if self._ledger is None or begun is None:
            return True
        try:
            await self._ledger.confirm(begun, sent, certain=certain)
        except LedgerError as error:
            self._break_down(error)
            self._machine.destinations.unrecorded(batch)
            return False
        return True

    async def complete(self, source: Source, settles: Sequence[Settle]) -> None:
        """Complete receipts of one source, all at once; what is said of their messages is in the ledger first."""
        without = [settle for settle in settles if not settle.has_line]
        try:
            for outcome in {settle.outcome for settle in without}:
                await self._record([settle.item for settle in without if settle.outcome == outcome], outcome)
        except LedgerError as unwritten:
            self._break_down(unwritten)
            for settle in without:
                self._machine.custody.not_recorded(settle)
            settles = [settle for settle in settles if settle.has_line]
        by_receipt = {id(settle.received): settle for settle in settles}
        async with aclosing(
            source.receiver.settle_all([settle.received for settle in settles], Disposition.COMPLETE)
        ) as answers:
            async for some in answers:
                now = self._clock.monotonic()
                done = [by_receipt[id(received)] for received, error in some if error is None]
                self._progress.completed(done)
                self._machine.custody.settled(done)
                for received, error in some:
                    if error is not None:
                        self._machine.custody.settle_failed(by_receipt[id(received)], error, now)
                self._changed()

    async def settle(self, settle: Settle) -> None:
        """Settle a receipt; what is said of its message is in the ledger first."""
        item = settle.item
        if not settle.has_line:
            try:
                await self._record([item], settle.outcome, settle.reason)
            except LedgerError as error:
                self._break_down(error)
                self._machine.custody.not_recorded(settle)
                return
        source = self._by_path[settle.received.source.lower()]
        try:
            await source.receiver.settle(
                settle.received, settle.disposition, reason=settle.reason, description=settle.description
            )
        except ServiceError as error:
            self._machine.custody.settle_failed(settle, error, self._clock.monotonic())
            return
        self._progress.settled(settle)
        self._machine.custody.settled([settle])

    async def renew(self, renew: Renew) -> None:
        """Renew a lock."""
        source = self._by_path[renew.received.source.lower()]
        try:
            until = await source.receiver.renew_lock(renew.received)
        except ServiceError as error:
            self._machine.custody.renew_failed(renew, error, self._clock.monotonic())
            return
        now_utc = self._clock.now().timestamp()
        self._machine.custody.renewed(renew, source.locks.deadline(until, now_utc=now_utc, now=self._clock.monotonic()))

    async def _record(self, items: Sequence[Item], outcome: str, reason: str = "") -> None:
        if self._ledger is not None:
            await self._ledger.record(self._entries(items, outcome, reason))

    def _entries(self, items: Sequence[Item], outcome: str, reason: str = "") -> list[Entry]:
        time = self._clock.now().astimezone(UTC).isoformat()
        return [
            Entry(
                queue=item.key[0],
                sequence_number=item.key[1],
                message_id=item.key[2],
                enqueued_at_ms=item.key[3],
                destination=item.destination,
                session_id=item.session_id,
                outcome=outcome,
                time=time,
                attempts=item.attempts,
                reason=reason,
                digest=None if item.received.origin is None else item.received.origin.digest,
            )
            for item in items
        ]

    def settled_at_once(self, settle: Settle) -> bool:
        """A stored message that was sent is settled by being forgotten, and one that was moved in a transaction is
        settled already; its line is in the ledger."""
        if settle.outcome != "forwarded":
            return False
        stored = self._by_path[settle.received.source.lower()].stored
        if stored is None and not settle.item.completed:
            return False
        if stored is not None:
            stored.forget(settle.received)
        self._progress.settled(settle)
        self._machine.custody.settled([settle])
        return True
