"""Does what `core.settlement` says: receives, sends, settles and renews, all at once within its bounds.

One task per source receives; one loop polls the machine and starts a task for each thing it wants done; every task
tells the machine how it went and wakes the loop. Nothing is decided here but when a source that cannot be read is tried
again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sbpair.core.errors import Category, SbpairError, SendIncompleteError, ServiceError, UnknownServiceError
from sbpair.core.events import DeadLettered, Event, Forwarded, Paused, Polled, ReceiveFailed, Resumed
from sbpair.core.lanes import GAP_GRACE_SECONDS, Batch, Item
from sbpair.core.locks import DEFAULT_LOCK_SECONDS, LockClock
from sbpair.core.message import Disposition, Received, State
from sbpair.core.moves import Action, LookAgain, Measure, PauseBegan, PauseEnded, Renew, Send, Settle, Verdict
from sbpair.core.retry import REFUSED, SERVER_BUSY_SECONDS, SYPHON
from sbpair.core.settlement import Settlement
from sbpair.ports import Clock, MessageReceiver, Observer
from sbpair.runtime.ledger import Entry, Ledger
from sbpair.runtime.links import close_quietly
from sbpair.runtime.outlets import Outlet
from sbpair.runtime.survey import NO_USE_WAITING, peek_patiently
from sbpair.tasks import end

RECEIVE_MESSAGES = 100
"""Batch size of the documented syphon."""
STOP_SECONDS = 10.0
PROGRESS_SECONDS = 0.5
IDLE_POLL_SECONDS = 5.0
PARTITION_SHIFT = 48
"""A sequence number's top 16 bits are its partition."""

MOST_BROWSE_PATIENCE_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class Source:
    """One backlog queue, or its dead-letter queue, being emptied."""

    path: str
    receiver: MessageReceiver
    locks: LockClock = field(default_factory=lambda: LockClock(DEFAULT_LOCK_SECONDS))
    idle: bool = False
    """The last receive brought nothing."""
    failed: ServiceError | None = None
    """Why it was given up."""
    was_read: bool = False
    """A receive has succeeded, be it with nothing."""
    last_error: ServiceError | None = None
    """Why the last receive failed; None once one has succeeded."""
    failures: int = 0
    failing_since: float | None = None
    look_again: asyncio.Event = field(default_factory=asyncio.Event)
    wait_seconds: float = 1.0
    highest: dict[int, int] = field(default_factory=dict)
    """Highest sequence number received so far, by partition."""
    foreign_locks_until: float = 0.0
    """Until then messages may be locked by a process or connection that is gone."""


class Mover:
    """Moves messages from sources to an outlet until told to stop, or until there is nothing left (`settle_down`).

    Args:
        endless: an empty source is polled again and an unreadable one never given up.
        patience_seconds: how long a source may fail before it is given up (not when endless).
    """

    def __init__(
        self,
        sources: Sequence[Source],
        machine: Settlement,
        classify: Callable[[Received], Verdict],
        outlet: Outlet,
        *,
        clock: Clock,
        observer: Observer,
        ledger: Ledger | None,
        endless: bool,
        patience_seconds: float,
    ) -> None:
        self.sources = sources
        self.machine = machine
        self._classify = classify
        self._outlet = outlet
        self._clock = clock
        self._observer = observer
        self._ledger = ledger
        self._endless = endless
        self._patience_seconds = patience_seconds
        self._by_path = {source.receiver.source.lower(): source for source in sources}
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: list[asyncio.Task[None]] = []
        self._looping: asyncio.Task[None] | None = None
        self._done: Counter[tuple[str, str]] = Counter()
        self._done_bytes: Counter[tuple[str, str]] = Counter()
        self._progress_at = 0.0
        self.fatal: BaseException | None = None

    # For whoever runs it

    def start(self) -> None:
        for source in self.sources:
            source.foreign_locks_until = self._now() + source.locks.lock_seconds
        self._receiving = [asyncio.create_task(self._receive_from(source)) for source in self.sources]
        self._looping = asyncio.create_task(self._loop())

    async def settle_down(self, stop: asyncio.Event) -> bool:
        """Until nothing more can be done without looking again (never when endless); False if it was stopped or broke
        down."""
        self._settled.clear()
        self._changed()
        settled, stopped = asyncio.create_task(self._settled.wait()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({settled, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return not stop.is_set() and self.fatal is None
        finally:
            settled.cancel()
            stopped.cancel()

    def _nothing_to_do(self) -> bool:
        if self._endless or self.machine.live:
            return False
        nothing_wanted = self.machine.total_reached or self.machine.parked_full
        return nothing_wanted or all(source.idle or source.failed is not None for source in self.sources)

    def look_again(self, sources: Iterable[Source], *, wait_seconds: float) -> None:
        """Poll these idle sources once more."""
        for source in sources:
            source.idle = False
            source.wait_seconds = wait_seconds
            source.look_again.set()

    async def finish(self) -> None:
        """Settle or give back everything within a bound, then close the receivers, which give back the rest."""
        self.machine.stop(self._now())
        await end(*self._receiving)
        self.machine.release_parked()
        self._wake.set()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self.machine.live and (self.fatal is None or self._tasks):
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            pass  # what is not settled by now comes again when its lock runs out
        await self._end_tasks()
        self._announce_progress()
        await asyncio.gather(*(close_quietly(source.receiver) for source in self.sources))

    async def _end_tasks(self) -> None:
        loop = [] if self._looping is None else [self._looping]
        await end(*loop, *self._tasks)

    # Receiving

    async def _receive_from(self, source: Source) -> None:
        try:
            while source.failed is None:
                granted = self.machine.grant(RECEIVE_MESSAGES, self._now())
                if not granted:
                    await self._for_room()
                    continue
                await self._receive_once(source, granted)
                if source.idle and not self._endless:
                    source.look_again.clear()
                    self._changed()
                    await self._for_another_look(source)
        except Exception as error:  # noqa: BLE001 - told to whoever runs the mover
            self._break_down(error)

    async def _receive_once(self, source: Source, granted: int) -> None:
        try:
            received = await source.receiver.receive(granted, wait_seconds=source.wait_seconds)
            await self._expect_overtaken(source, received)
        except ServiceError as error:
            self.machine.returned(granted)
            await self._receive_failed(source, error)
            return
        except BaseException:
            self.machine.returned(granted)
            raise
        self.machine.returned(granted)
        source.failures, source.failing_since = 0, None
        source.was_read, source.last_error = True, None
        source.idle = not received
        self._tell(Polled(self._utc(), source.path, len(received)))
        self._arrived(source, received)

    def _arrived(self, source: Source, received: Iterable[Received]) -> None:
        now = self._now()
        now_utc = self._clock.now().timestamp()
        for one in received:
            until = source.locks.deadline(one.locked_until, now_utc=now_utc, now=now)
            lock_seconds = source.locks.lock_seconds
            self.machine.arrived(one, self._classify(one), lock_until=until, lock_seconds=lock_seconds, now=now)
        self._changed()

    async def take_deferred(self, source: Source, numbers: Sequence[int]) -> None:
        """Fetch deferred messages by their numbers and move them like the others. What cannot be had stays deferred."""
        rest = list(numbers)
        while rest and not self.machine.stopping:
            granted = self.machine.grant(min(len(rest), RECEIVE_MESSAGES), self._now())
            if not granted:
                await self._for_room()
                continue
            some, rest = rest[:granted], rest[granted:]
            try:
                self._arrived(source, await _by_number(source.receiver, some))
            finally:
                self.machine.returned(granted)
            self._changed()

    async def _expect_overtaken(self, source: Source, received: Sequence[Received]) -> None:
        """Browse the numbers that a receive skipped, for messages that are locked and must not be overtaken."""
        by_partition: dict[int, set[int]] = {}
        for one in received:
            by_partition.setdefault(one.sequence_number >> PARTITION_SHIFT, set()).add(one.sequence_number)
        for partition, numbers in by_partition.items():
            first = source.highest.get(partition, partition << PARTITION_SHIFT) + 1
            last = max(numbers)
            source.highest[partition] = max(last, first - 1)
            skipped = last - first + 1 > sum(number >= first for number in numbers)
            if skipped and self._now() < source.foreign_locks_until:
                await self._browse_skipped(source, first, last)

    async def _browse_skipped(self, source: Source, first: int, last: int) -> None:
        until = source.foreign_locks_until + GAP_GRACE_SECONDS
        patience = min(MOST_BROWSE_PATIENCE_SECONDS, source.locks.lock_seconds / 3)
        while first <= last:
            try:
                page = await peek_patiently(source.receiver, first, sleep=self._clock.sleep, patience_seconds=patience)
            except ServiceError as error:
                # Without the browse the order may suffer, no message does; the receives go on and tell of the trouble.
                self._tell(ReceiveFailed(self._utc(), source.path, error.code, 0.0, error.message))
                return
            for one in page:
                if one.sequence_number <= last and one.state is State.ACTIVE:
                    self.machine.expect(one, self._classify(one), until)
            if not page:
                return
            first = max(one.sequence_number for one in page) + 1

    async def _receive_failed(self, source: Source, error: ServiceError) -> None:
        now = self._now()
        source.foreign_locks_until = now + source.locks.lock_seconds
        source.failures += 1
        source.last_error = error
        source.failing_since = source.failing_since if source.failing_since is not None else now
        hopeless = error.category in NO_USE_WAITING
        if not self._endless and (hopeless or now - source.failing_since >= self._patience_seconds):
            source.failed = error
            self._tell(ReceiveFailed(self._utc(), source.path, error.code, None, error.message))
            self._changed()
            return
        seconds = (REFUSED if hopeless else SYPHON).seconds(source.failures)
        if error.category is Category.BUSY:
            seconds = SERVER_BUSY_SECONDS
        if not self._endless:
            seconds = min(seconds, self._patience_seconds - (now - source.failing_since))
        self._tell(ReceiveFailed(self._utc(), source.path, error.code, seconds, error.message))
        await self._clock.sleep(seconds)

    async def _for_another_look(self, source: Source) -> None:
        """Until told, or every few seconds as long as messages are held that may wait for one from here."""
        while True:
            try:
                async with asyncio.timeout(IDLE_POLL_SECONDS):
                    await source.look_again.wait()
                return
            except TimeoutError:
                if self.machine.live:
                    return

    async def _for_room(self) -> None:
        """Until the machine has moved, or a second has passed."""
        self._room.clear()
        try:
            async with asyncio.timeout(1.0):
                await self._room.wait()
        except TimeoutError:
            return

    # Doing what the machine says

    async def _loop(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = self._now()
                for action in self.machine.poll(now):
                    self._begin(action)
                self._announce_now_and_then(now)
                self._room.set()
                if self._nothing_to_do():
                    self._settled.set()
                seconds = max(0.001, self.machine.deadline(self._now()) - self._now())
                await self._for_wake(seconds)
        except Exception as error:  # noqa: BLE001 - told to whoever runs the mover
            self._break_down(error)

    async def _for_wake(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _begin(self, action: Action) -> None:
        match action:
            case Send(batch):
                self._spawn(self._send(batch))
            case Settle():
                self._spawn(self._settle(action))
            case Renew():
                self._spawn(self._renew(action))
            case Measure(destination):
                self._spawn(self._measure(destination))
            case LookAgain(path):
                source = self._by_path[path.lower()]
                self.look_again([source], wait_seconds=source.wait_seconds)
            case PauseBegan(entity, code, seconds):
                self._tell(Paused(self._utc(), entity, code, seconds))
            case PauseEnded(entity):
                self._tell(Resumed(self._utc(), entity))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told to whoever runs the mover
            self._break_down(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    def _break_down(self, error: BaseException) -> None:
        """Something that no retry mends (a full disk under the ledger, a bug): stop, and say so at the end."""
        self.fatal = self.fatal or error
        self.machine.stop(self._now())
        self._settled.set()
        self._changed()

    async def _measure(self, destination: str) -> None:
        try:
            limit = await self._outlet.limit_bytes(destination)
        except ServiceError as error:
            self.machine.limit_failed(destination, error, self._now())
        else:
            self.machine.limit_known(destination, limit, self._now())

    async def _send(self, batch: Batch) -> None:
        try:
            await self._outlet.send(batch.destination, batch.items)
        except SendIncompleteError as error:
            accepted = [batch.items[place] for place in error.accepted]
            self.machine.remember(accepted)
            await self._record(accepted, "forwarded")
            self.machine.send_failed(batch, error, self._now())
        except ServiceError as error:
            self.machine.send_failed(batch, error, self._now())
        except SbpairError as error:
            self._break_down(error)
            self.machine.send_failed(batch, UnknownServiceError(error.message), self._now())
        else:
            self.machine.remember(batch.items)
            await self._record(batch.items, "forwarded")
            self.machine.sent(batch, self._now())

    async def _settle(self, settle: Settle) -> None:
        item = settle.item
        if settle.outcome and settle.outcome != "forwarded":
            await self._record([item], settle.outcome, settle.reason)
        source = self._by_path[settle.received.source.lower()]
        try:
            await source.receiver.settle(
                settle.received, settle.disposition, reason=settle.reason, description=settle.description
            )
        except ServiceError as error:
            self.machine.settle_failed(settle, error, self._now())
            return
        self._note(settle)
        self.machine.settled(settle, self._now())

    async def _renew(self, renew: Renew) -> None:
        source = self._by_path[renew.received.source.lower()]
        try:
            until = await source.receiver.renew_lock(renew.received)
        except ServiceError as error:
            self.machine.renew_failed(renew, error, self._now())
            return
        now_utc = self._clock.now().timestamp()
        self.machine.renewed(renew, source.locks.deadline(until, now_utc=now_utc, now=self._now()))

    async def _record(self, items: Sequence[Item], outcome: str, reason: str = "") -> None:
        if self._ledger is None:
            return
        time = self._clock.now().astimezone(UTC).isoformat()
        await self._ledger.record(
            [
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
                )
                for item in items
            ]
        )

    # Telling

    def _note(self, settle: Settle) -> None:
        if settle.disposition is Disposition.DEAD_LETTER:
            queue, number = settle.item.key[0], settle.item.key[1]
            self._tell(DeadLettered(self._utc(), queue, number, settle.reason, settle.description))
        elif settle.outcome == "forwarded":
            place = settle.item.key[0], settle.item.destination
            self._done[place] += 1
            self._done_bytes[place] += settle.item.size_bytes

    def _announce_now_and_then(self, now: float) -> None:
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self._announce_progress()

    def _announce_progress(self) -> None:
        for (queue, entity), messages in self._done.items():
            self._tell(Forwarded(self._utc(), queue, entity, messages, self._done_bytes[queue, entity]))
        self._done.clear()
        self._done_bytes.clear()

    def _tell(self, event: Event) -> None:
        self._observer.notify(event)

    def _changed(self) -> None:
        self._wake.set()
        self._room.set()

    def _now(self) -> float:
        return self._clock.monotonic()

    def _utc(self) -> float:
        return self._clock.now().timestamp()


async def _by_number(receiver: MessageReceiver, numbers: Sequence[int]) -> list[Received]:
    """Deferred messages under lock. One that is gone, or that somebody else holds, fails its whole request: then
    each is asked for alone."""
    try:
        return await receiver.receive_deferred(numbers)
    except ServiceError:
        if len(numbers) == 1:
            return []
    return [one for number in numbers for one in await _by_number(receiver, [number])]
