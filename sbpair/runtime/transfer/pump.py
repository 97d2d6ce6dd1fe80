"""Does what `core.transfer.machine` says: receives, sends, settles and renews, all at once within its bounds.

One task per source receives; one loop polls the machine and starts a task for each thing it wants done; every task
tells the machine how it went and wakes the loop. Nothing is decided here but when a source that cannot be read is tried
again.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sbpair.concurrency import NO_USE_WAITING, end, unless
from sbpair.core.entities import Counts
from sbpair.core.errors import (
    Category,
    LocksLostError,
    SbpairError,
    SendIncompleteError,
    ServiceError,
    UnknownServiceError,
)
from sbpair.core.events import (
    DeadLettered,
    Event,
    Forwarded,
    LedElsewhere,
    LockedElsewhere,
    Paused,
    Polled,
    ReceiveFailed,
    Resumed,
)
from sbpair.core.message import Disposition, Received
from sbpair.core.names import is_dead_letter_path
from sbpair.core.retry import REFUSED, SYPHON, ends_in_time
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.order import Skipped
from sbpair.core.transfer.pace import BUSY
from sbpair.core.transfer.state import (
    Action,
    Batch,
    Followed,
    Forward,
    Item,
    LockClock,
    LockMet,
    Measure,
    PauseBegan,
    PauseEnded,
    PollAgain,
    Renew,
    Sample,
    Send,
    Settle,
    Verdict,
)
from sbpair.ports import Clock, MessageReceiver, Observer
from sbpair.runtime.browse import pages
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.ledger import Entry, Recorder
from sbpair.runtime.transfer.sinks import Sink
from sbpair.runtime.transfer.stored import StoredMessages

RECEIVE_MESSAGES = 100
"""Batch size of the documented syphon."""
STOP_SECONDS = 10.0
PROGRESS_SECONDS = 0.5
IDLE_POLL_SECONDS = 5.0
MOST_BROWSE_PATIENCE_SECONDS = 15.0
TRY_SECONDS = 0.5
"""How long a receive waits in a queue in which somebody else leads."""
SAMPLE_MESSAGES = 50
"""Page of a browse that only asks whether what comes first is still there."""


@dataclass(slots=True, eq=False)
class Source:
    """One backlog queue, or its dead-letter queue, being emptied."""

    path: str
    receiver: MessageReceiver
    locks: LockClock = field(default_factory=LockClock)
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
    poll_again: asyncio.Event = field(default_factory=asyncio.Event)
    wait_seconds: float = 1.0
    receive_messages: int = RECEIVE_MESSAGES
    stored: StoredMessages | None = None
    """The receiver, if it reads messages out of a file: there is nobody to wait for when one is settled."""

    def counted(self, counts: Counts) -> int:
        """Messages in it, of those the service counts in its queue."""
        return counts.dead_letter if is_dead_letter_path(self.receiver.source) else counts.active


class Pump:
    """Moves messages from sources to an sink until told to stop, or until there is nothing left (`settle_down`).

    Args:
        endless: an empty source is polled again and an unreadable one never given up.
        patience_seconds: how long a source may fail before it is given up (not when endless).
        unreached_seconds: the same, if that is less, for a source that nobody has answered for yet.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        machine: Settlement,
        classify: Callable[[Received], Verdict],
        sink: Sink,
        *,
        clock: Clock,
        observer: Observer,
        ledger: Recorder | None,
        endless: bool,
        patience_seconds: float,
        unreached_seconds: float = math.inf,
    ) -> None:
        self.sources = list(sources)
        self.machine = machine
        self._classify = classify
        self._sink = sink
        self._clock = clock
        self._observer = observer
        self._ledger = ledger
        self._endless = endless
        self._patience_seconds = patience_seconds
        self._unreached_seconds = unreached_seconds
        self._by_path = {source.receiver.source.lower(): source for source in sources}
        self._reads_stored = any(source.stored is not None for source in sources)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._wanting_room = 0
        self._settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: list[asyncio.Task[None]] = []
        self._looping: asyncio.Task[None] | None = None
        self._done: Counter[tuple[str, str]] = Counter()
        self._done_bytes: Counter[tuple[str, str]] = Counter()
        self._progress_at = 0.0
        self.moved = asyncio.Event()
        """Set whenever messages have come, or have left their queue."""
        self.fatal: BaseException | None = None

    # For whoever runs it

    def start(self) -> None:
        for source in self.sources:
            self._read(source)
        self._looping = asyncio.create_task(self._loop())

    def add(self, source: Source) -> None:
        """Read one more source from now on."""
        self.sources.append(source)
        self._reads_stored |= source.stored is not None
        self._by_path[source.receiver.source.lower()] = source
        self._read(source)

    def _read(self, source: Source) -> None:
        self.machine.queues.add(source.receiver.source, source.locks.lock_seconds)
        self._receiving.append(asyncio.create_task(self._receive_from(source)))

    async def settle_down(self, stop: asyncio.Event) -> bool:
        """Until nothing more can be done without looking again (never when endless); False if it was stopped or broke
        down."""
        self._settled.clear()
        self._changed()
        await unless(stop, self._settled.wait())
        return not stop.is_set() and self.fatal is None

    def _nothing_to_do(self) -> bool:
        if self._endless or self.machine.custody.live:
            return False
        nothing_wanted = self.machine.total_reached or self.machine.left_full
        return nothing_wanted or all(self._is_done(source) for source in self.sources)

    def _is_done(self, source: Source) -> bool:
        return (
            source.idle or source.failed is not None or self.machine.queues.stalled(source.receiver.source, self._now())
        )

    def poll_again(self, sources: Iterable[Source], *, wait_seconds: float) -> None:
        """Poll these idle sources once more."""
        for source in sources:
            source.idle = False
            source.wait_seconds = wait_seconds
            source.poll_again.set()

    async def finish(self) -> None:
        """Settle or release everything within a bound, then close the receivers, which release the rest."""
        self.machine.stop(self._now())
        await end(*self._receiving)
        self.machine.custody.release_left()
        self._wake.set()
        if self.fatal is not None and self._looping is not None and not self._looping.done():
            self._do_what_is_due()  # below nobody waits for what has not been begun when something broke down
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self.machine.custody.live and (self.fatal is None or self._tasks):
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
                granted = self.machine.grant(source.receive_messages, self._now(), source.receiver.source)
                if not granted:
                    await self._for_room()
                    continue
                await self._receive_once(source, granted)
                if source.idle and not self._endless:
                    source.poll_again.clear()
                    self.machine.window.rests(source.receiver.source)
                    self._changed()
                    await self._for_another_look(source)
        except Exception as error:  # noqa: BLE001 - told to whoever runs the pump
            self._break_down(error)

    async def _receive_once(self, source: Source, granted: int) -> None:
        path = source.receiver.source
        patience = (
            min(source.wait_seconds, TRY_SECONDS) if self.machine.queues.standing_back(path) else source.wait_seconds
        )
        began = self._now()
        try:
            received = await source.receiver.receive(granted, wait_seconds=patience)
        except ServiceError as error:
            self.machine.window.returned(granted, 0)
            await self._receive_failed(source, error, since=began)
            return
        except BaseException:
            self.machine.window.returned(granted, 0)
            raise
        source.was_read, source.last_error = True, None
        self.machine.queues.tried(path, received, self._now())
        source.idle = not received and not self.machine.queues.awaits(path, self._now())
        self._tell(Polled(self._utc(), source.path, len(received)))
        verdicts = self._verdicts(source, received)
        try:
            proven = await self._browse_skipped(source, received, verdicts)
        except ServiceError as error:
            self._refuse(source, received, verdicts)
            await self._receive_failed(source, error, since=began)
            return
        finally:
            self.machine.window.returned(granted, len(received))
        source.failures, source.failing_since = 0, None
        if proven:
            self._arrived(source, received, verdicts)
        else:
            self._refuse(source, received, verdicts)

    def _verdicts(self, source: Source, received: Sequence[Received]) -> list[Verdict]:
        """A filter that cannot be evaluated ends the run: what has come goes back, or it would stay locked."""
        try:
            return [self._classify(one) for one in received]
        except FilterError:
            until = self._now() + source.locks.lock_seconds
            for one in received:
                self.machine.custody.refused(one, lock_until=until, lock_seconds=source.locks.lock_seconds)
            raise

    def _arrived(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> None:
        now = self._now()
        now_utc = self._clock.now().timestamp()
        for one, verdict in zip(received, verdicts, strict=True):
            until = source.locks.deadline(one.locked_until, now_utc=now_utc, now=now)
            lock_seconds = source.locks.lock_seconds
            self.machine.arrived(one, verdict, lock_until=until, lock_seconds=lock_seconds, now=now)
        if received:
            self.moved.set()
        self._changed()

    def _refuse(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> None:
        """What comes before these was not browsed to its end: those of sessions go back, the others have no order."""
        ordered = [isinstance(verdict, Forward) and verdict.session_id is not None for verdict in verdicts]
        until = self._now() + source.locks.lock_seconds
        for one, of_session in zip(received, ordered, strict=True):
            if of_session:
                self.machine.custody.refused(one, lock_until=until, lock_seconds=source.locks.lock_seconds)
        rest = [
            (one, verdict)
            for one, verdict, of_session in zip(received, verdicts, ordered, strict=True)
            if not of_session
        ]
        self._arrived(source, [one for one, _ in rest], [verdict for _, verdict in rest])

    async def take_deferred(self, source: Source, numbers: Sequence[int]) -> None:
        """Fetch deferred messages by their numbers and move them like the others. What cannot be had stays deferred."""
        rest = list(numbers)
        while rest and not self.machine.custody.stopping:
            granted = self.machine.grant(min(len(rest), RECEIVE_MESSAGES), self._now())
            if not granted:
                await self._for_room()
                continue
            some, rest = rest[:granted], rest[granted:]
            try:
                found = await _by_number(source.receiver, some)
                self._arrived(source, found, [self._classify(one) for one in found])
            finally:
                self.machine.window.returned(granted)
            self._changed()

    async def _browse_skipped(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> bool:
        """Browse the numbers that a receive went past, and tell the machine what lies there. False if what was received
        has to be released whatever else lies there."""
        path = source.receiver.source
        while True:
            forgotten = self.machine.queues.forgotten(path)
            for skipped in self.machine.queues.skipped(received, verdicts):
                if not await self._browse(source, skipped, received):
                    self.machine.queues.gave_way(path, self._now())
                    return False
                if self.machine.queues.forgotten(path) != forgotten:
                    break  # something of ours was released meanwhile: what was seen before may have another holder now
                self.machine.queues.proved(path, skipped)
            if self.machine.queues.forgotten(path) == forgotten:
                return True

    async def _browse(self, source: Source, skipped: Skipped, received: Sequence[Received]) -> bool:
        patience = min(MOST_BROWSE_PATIENCE_SECONDS, source.locks.lock_seconds / 3)
        # Our own messages may be settled while the browse is under way, and still be in its answer.
        mine = self.machine.queues.in_hand(source.receiver.source) | {one.sequence_number for one in received}
        # Most often the first message tells enough: it is the one that has come, or one that holds up what has come.
        browsed = pages(
            source.receiver,
            skipped.first,
            skipped.last,
            clock=self._clock,
            patience_seconds=patience,
            first_page_messages=1,
        )
        async for page in browsed:
            for one in page:
                if one.sequence_number not in mine:
                    self.machine.expect(one, self._classify(one), self._now())
            if self.machine.queues.hopeless_now(received):
                return False  # the rest of what lies before them does not matter
        return True

    async def _sample(self, sample: Sample) -> None:
        in_hand = self.machine.queues.in_hand(sample.source)
        receiver = self._by_path[sample.source.lower()].receiver
        try:
            # Nothing of ours lies there while others lead: the first message is all that is asked for.
            most = SAMPLE_MESSAGES if in_hand or not self.machine.queues.standing_back(sample.source) else 1
            page = await receiver.peek(most, from_sequence_number=sample.first)
        except ServiceError:
            self.machine.queues.sample_failed(sample, self._now())  # the receives tell what is wrong with the queue
        else:
            self.machine.queues.sampled(sample, page, in_hand=in_hand, now=self._now())

    async def _receive_failed(self, source: Source, error: ServiceError, *, since: float) -> None:
        """`since`: when what failed was begun, which may have been a while ago where nobody answers."""
        now = self._now()
        source.failures += 1
        source.last_error = error
        source.failing_since = source.failing_since if source.failing_since is not None else since
        hopeless = error.category in NO_USE_WAITING
        answered = source.was_read or error.category is Category.BUSY
        patience = self._patience_seconds if answered else min(self._patience_seconds, self._unreached_seconds)
        in_time = ends_in_time(now - source.failing_since, now - since, patience)
        if not self._endless and (hopeless or not in_time):
            source.failed = error
            self.machine.window.rests(source.receiver.source)
            self._tell(ReceiveFailed(self._utc(), source.path, error.code, None, error.message))
            self._changed()
            return
        seconds = (REFUSED if hopeless else SYPHON).seconds(source.failures)
        if error.category is Category.BUSY:
            seconds = BUSY.seconds(source.failures)
        if not self._endless:
            seconds = min(seconds, patience - (now - source.failing_since))
        self._tell(ReceiveFailed(self._utc(), source.path, error.code, seconds, error.message))
        await self._clock.sleep(seconds)

    async def _for_another_look(self, source: Source) -> None:
        """Until told, or every few seconds as long as messages are held that may wait for one from here."""
        while True:
            try:
                async with asyncio.timeout(IDLE_POLL_SECONDS):
                    await source.poll_again.wait()
                return
            except TimeoutError:
                if self.machine.custody.live:
                    return

    async def _for_room(self) -> None:
        """Until the loop has been round, which it is at least every second as long as somebody waits here."""
        self._room.clear()
        self._wanting_room += 1
        try:
            await self._room.wait()
        finally:
            self._wanting_room -= 1

    # Doing what the machine says

    async def _loop(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = self._now()
                self._do_what_is_due()
                self._announce_now_and_then(now)
                self._room.set()
                if self._nothing_to_do():
                    self._settled.set()
                seconds = max(0.001, self.machine.deadline(self._now()) - self._now())
                await self._for_wake(min(seconds, 1.0) if self._wanting_room else seconds)
        except Exception as error:  # noqa: BLE001 - told to whoever runs the pump
            self._break_down(error)

    def _do_what_is_due(self) -> None:
        together: dict[str, list[Settle]] = {}
        for action in self.machine.poll(self._now()):
            if not isinstance(action, Settle) or not self._only_completes(action):
                self._begin(action)
            elif self._settled_at_once(action):
                self._changed()
            elif (same := together.get(action.received.source)) is not None:
                same.append(action)
            else:
                together[action.received.source] = [action]
        for source, settles in together.items():
            self._spawn(self._complete(self._by_path[source.lower()], settles))

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
            case Sample():
                self._spawn(self._sample(action))
            case LockMet(path, number, seconds):
                queue = self._by_path[path.lower()].path
                self._tell(LockedElsewhere(self._utc(), queue, number, self._utc() + seconds))
            case Followed(paths, pace):
                queues = tuple(self._by_path[path.lower()].path for path in paths)
                self._tell(LedElsewhere(self._utc(), queues, pace))
            case PollAgain(path):
                source = self._by_path[path.lower()]
                self.poll_again([source], wait_seconds=source.wait_seconds)
            case PauseBegan(entity, code, seconds, abandoned_in):
                self._tell(Paused(self._utc(), entity, code, seconds, abandoned_in))
            case PauseEnded(entity):
                self._tell(Resumed(self._utc(), entity))

    def _settled_at_once(self, settle: Settle) -> bool:
        """A stored message that was sent is settled by being forgotten, and one that was moved in a transaction is
        settled already; its line is in the ledger."""
        if settle.outcome != "forwarded" or not (self._reads_stored or settle.item.completed):
            return False
        stored = self._by_path[settle.received.source.lower()].stored
        if stored is None and not settle.item.completed:
            return False
        if stored is not None:
            stored.forget(settle.received)
        self._note(settle)
        self.machine.custody.settled([settle])
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told to whoever runs the pump
            self._break_down(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    def _break_down(self, error: BaseException) -> None:
        """Something that no retry mends (a full disk under the ledger, a bug): stop, and say so at the end."""
        self.fatal = self.fatal or error
        self.machine.stop(self._now())
        self._settled.set()
        self._room.set()
        self._changed()

    async def _measure(self, destination: str) -> None:
        try:
            limit = await self._sink.limit_bytes(destination)
        except ServiceError as error:
            self.machine.destinations.limit_failed(destination, error, self._now())
        else:
            self.machine.destinations.limit_known(destination, limit)

    async def _send(self, batch: Batch) -> None:
        try:
            await self._sink.send(batch.destination, batch.items)
        except SendIncompleteError as error:
            accepted = [batch.items[place] for place in error.accepted]
            self.machine.custody.remember(accepted)
            if await self._recorded(batch, accepted):
                self.machine.destinations.send_failed(batch, error, self._now())
        except LocksLostError as error:
            self.machine.destinations.locks_lost(batch, error.lost, self._now())
        except ServiceError as error:
            self.machine.destinations.send_failed(batch, error, self._now())
        except SbpairError as error:
            self._break_down(error)
            self.machine.destinations.send_failed(batch, UnknownServiceError(error.message), self._now())
        else:
            self.machine.custody.remember(batch.items)
            if await self._recorded(batch, batch.items):
                self.machine.destinations.sent(batch, self._now())

    async def _recorded(self, batch: Batch, items: Sequence[Item]) -> bool:
        """Write the lines of what was sent; False if that failed, which ends the run."""
        try:
            await self._record(items, "forwarded")
        except OSError as error:
            self._break_down(error)
            self.machine.destinations.unrecorded(batch)
            return False
        return True

    def _only_completes(self, settle: Settle) -> bool:
        """Whether nothing is left to be said of it but that it is done: the ledger has its line since it was sent."""
        return settle.disposition is Disposition.COMPLETE and settle.outcome in ("", "forwarded")

    async def _complete(self, source: Source, settles: Sequence[Settle]) -> None:
        """Complete what was forwarded from one source, all of it at once."""
        by_receipt = {id(settle.received): settle for settle in settles}
        async with aclosing(
            source.receiver.settle_all([settle.received for settle in settles], Disposition.COMPLETE)
        ) as answers:
            async for some in answers:
                now = self._now()
                done = [by_receipt[id(received)] for received, error in some if error is None]
                self._note_all(done)
                self.machine.custody.settled(done)
                for received, error in some:
                    if error is not None:
                        self.machine.custody.settle_failed(by_receipt[id(received)], error, now)
                self._changed()

    async def _settle(self, settle: Settle) -> None:
        item = settle.item
        if settle.outcome and settle.outcome != "forwarded":
            try:
                await self._record([item], settle.outcome, settle.reason)
            except OSError as error:
                self._break_down(error)
                self.machine.custody.not_recorded(settle)
                return
        source = self._by_path[settle.received.source.lower()]
        try:
            await source.receiver.settle(
                settle.received, settle.disposition, reason=settle.reason, description=settle.description
            )
        except ServiceError as error:
            self.machine.custody.settle_failed(settle, error, self._now())
            return
        self._note(settle)
        self.machine.custody.settled([settle])

    async def _renew(self, renew: Renew) -> None:
        source = self._by_path[renew.received.source.lower()]
        try:
            until = await source.receiver.renew_lock(renew.received)
        except ServiceError as error:
            self.machine.custody.renew_failed(renew, error, self._now())
            return
        now_utc = self._clock.now().timestamp()
        self.machine.custody.renewed(renew, source.locks.deadline(until, now_utc=now_utc, now=self._now()))

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
                    digest=None if item.received.origin is None else item.received.origin.digest,
                )
                for item in items
            ]
        )

    # Telling

    def _note(self, settle: Settle) -> None:
        self.moved.set()
        if settle.disposition is Disposition.DEAD_LETTER:
            queue, number = settle.item.key[0], settle.item.key[1]
            self._tell(DeadLettered(self._utc(), queue, number, settle.reason, settle.description))
        else:
            self._note_all([settle])

    def _note_all(self, completed: Sequence[Settle]) -> None:
        self.moved.set()
        for settle in completed:
            if settle.outcome == "forwarded":
                item = settle.item
                place = item.key[0], item.destination
                self._done[place] += 1
                self._done_bytes[place] += item.size_bytes

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
        if self._looping is None or self._looping.done():
            self._room.set()  # otherwise the loop says so, once for all that has changed

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
