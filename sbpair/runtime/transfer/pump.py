"""Does what `core.transfer.machine` says: receives, sends, settles and renews, all at once within its bounds.

One task per source receives (`reading`); one loop polls the machine and starts a task for each thing it wants done
(`Carrier`); every task reports to the machine how it went and wakes the loop.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from datetime import UTC
from typing import Any

from sbpair.concurrency import cancel_on, end
from sbpair.core.errors import LocksLostError, SbpairError, SendIncompleteError, ServiceError
from sbpair.core.events import (
    DeadLettered,
    Event,
    Forwarded,
    LedElsewhere,
    LockedElsewhere,
    PairingNoticed,
    Paused,
    Resumed,
)
from sbpair.core.message import Disposition, Received
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import (
    Action,
    Batch,
    Followed,
    Item,
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
from sbpair.ports import Observer, RuntimeClock
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.ledger import Begun, LedgerError, Recorder
from sbpair.runtime.transfer.reading import Patience, Reader, Room, Source
from sbpair.runtime.transfer.sinks import Sink

PROGRESS_SECONDS = 0.5


class Progress:
    """Announces what was moved, every half second at the most. `moved` is set whenever messages leave their queue."""

    def __init__(self, clock: RuntimeClock, observer: Observer, moved: asyncio.Event) -> None:
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


@dataclass(slots=True, eq=False)
class Carrier:
    """See the module."""

    machine: Settlement
    sources: Mapping[str, Source]
    """By the lower-case name of what they receive from."""
    sink: Sink
    ledger: Recorder | None
    _: KW_ONLY
    clock: RuntimeClock
    progress: Progress
    break_down: Callable[[BaseException], None]
    """Called with an error that no retry mends; ends the run."""
    changed: Callable[[], None]
    """Called when the machine has something new to decide."""
    reads_stored: bool = False
    """Whether any source reads messages out of a file: most often none does, and no message is asked about it."""

    async def measure(self, destination: str) -> None:
        """Ask the link to a destination for its limit."""
        try:
            limit = await self.sink.limit_bytes(destination)
        except ServiceError as error:
            self.machine.destinations.limit_failed(destination, error, self.clock.monotonic())
        else:
            self.machine.destinations.limit_known(destination, limit)

    async def send(self, batch: Batch) -> None:
        """Send a batch once the ledger has room for it, and record what was accepted before anything is completed."""
        begun: Begun | None = None
        try:
            if self.ledger is not None:
                entries = self._entries(batch.items, "forwarded")
                begun = await self.ledger.begin(entries, in_doubt=self.sink.in_doubt(batch.destination, batch.items))
        except LedgerError as error:
            self.break_down(error)
            self.machine.destinations.unrecorded(batch)
            return
        try:
            await self.sink.send(batch.destination, batch.items)
        except SendIncompleteError as error:
            self.machine.custody.remember([batch.items[place] for place in error.accepted])
            cause = error.__cause__ if isinstance(error.__cause__, ServiceError) else error
            if await self._recorded(batch, begun, error.accepted, certain=not cause.uncertain):
                self.machine.destinations.send_failed(batch, error, self.clock.monotonic())
        except LocksLostError as error:
            if await self._recorded(batch, begun, ()):
                self.machine.destinations.locks_lost(batch, error.lost, self.clock.monotonic())
        except ServiceError as error:
            if await self._recorded(batch, begun, (), certain=not error.uncertain):
                self.machine.destinations.send_failed(batch, error, self.clock.monotonic())
        except SbpairError as error:
            self.break_down(error)
            if await self._recorded(batch, begun, ()):
                self.machine.destinations.unrecorded(batch)
        else:
            self.machine.custody.remember(batch.items)
            if await self._recorded(batch, begun, range(len(batch.items))):
                self.machine.destinations.sent(batch, self.clock.monotonic())

    async def _recorded(
        self, batch: Batch, begun: Begun | None, sent: Collection[int], *, certain: bool = True
    ) -> bool:
        """Write what became of a batch; False if that failed, which ends the run. Arguments as of `confirm`."""
        if self.ledger is None or begun is None:
            return True
        try:
            await self.ledger.confirm(begun, sent, certain=certain)
        except LedgerError as error:
            self.break_down(error)
            self.machine.destinations.unrecorded(batch)
            return False
        return True

    async def complete(self, source: Source, settles: Sequence[Settle]) -> None:
        """Complete receipts of one source, all at once; what is said of their messages is in the ledger first."""
        without = [settle for settle in settles if not settle.has_line]
        try:
            for outcome in {settle.outcome for settle in without}:
                await self._record([settle.item for settle in without if settle.outcome == outcome], outcome)
        except LedgerError as unwritten:
            self.break_down(unwritten)
            for settle in without:
                self.machine.custody.not_recorded(settle)
            settles = [settle for settle in settles if settle.has_line]
        by_receipt = {id(settle.received): settle for settle in settles}
        async with aclosing(
            source.receiver.settle_all([settle.received for settle in settles], Disposition.COMPLETE)
        ) as answers:
            async for some in answers:
                now = self.clock.monotonic()
                done = [by_receipt[id(received)] for received, error in some if error is None]
                self.progress.completed(done)
                self.machine.custody.settled(done)
                for received, error in some:
                    if error is not None:
                        self.machine.custody.settle_failed(by_receipt[id(received)], error, now)
                self.changed()

    async def settle(self, settle: Settle) -> None:
        """Settle a receipt; what is said of its message is in the ledger first."""
        item = settle.item
        if not settle.has_line:
            try:
                await self._record([item], settle.outcome, settle.reason)
            except LedgerError as error:
                self.break_down(error)
                self.machine.custody.not_recorded(settle)
                return
        source = self.sources[settle.received.source.lower()]
        try:
            await source.receiver.settle(
                settle.received, settle.disposition, reason=settle.reason, description=settle.description
            )
        except ServiceError as error:
            self.machine.custody.settle_failed(settle, error, self.clock.monotonic())
            return
        self.progress.settled(settle)
        self.machine.custody.settled([settle])

    async def renew(self, renew: Renew) -> None:
        source = self.sources[renew.received.source.lower()]
        try:
            until = await source.receiver.renew_lock(renew.received)
        except ServiceError as error:
            self.machine.custody.renew_failed(renew, error, self.clock.monotonic())
            return
        now_utc = self.clock.now().timestamp()
        self.machine.custody.renewed(renew, source.locks.deadline(until, now_utc=now_utc, now=self.clock.monotonic()))

    async def _record(self, items: Sequence[Item], outcome: str, reason: str = "") -> None:
        if self.ledger is not None:
            await self.ledger.record(self._entries(items, outcome, reason))

    def _entries(self, items: Sequence[Item], outcome: str, reason: str = "") -> list[LedgerEntry]:
        time = self.clock.now().astimezone(UTC).isoformat()
        return [
            LedgerEntry(
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
        stored = self.sources[settle.received.source.lower()].stored
        if stored is None and not settle.item.completed:
            return False
        if stored is not None:
            stored.forget(settle.received)
        self.progress.settled(settle)
        self.machine.custody.settled([settle])
        return True


STOP_SECONDS = 10.0


def _too_many(machine: Settlement) -> str:
    left, (why, number) = machine.custody.left_messages, Counter(machine.custody.left().values()).most_common(1)[0]
    return (
        f"{left:,} messages are left and stay locked, as many as can be ({number:,}: {why}): nothing more is received. "
        "Stop this run, move or delete them where they lie, and start it again."
    )


class Pump:
    """Moves messages from sources to a sink until it is to finish, or until nothing is left (`settle_down`).

    Args:
        endless: an empty source is polled again and an unreadable one never given up.
        patience_seconds: how long a source may fail before it is given up (not when endless).
        unreached_seconds: the same, if that is less, for a source that has not answered yet.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        machine: Settlement,
        classify: Callable[[Received], Verdict],
        sink: Sink,
        *,
        clock: RuntimeClock,
        observer: Observer,
        ledger: Recorder | None,
        endless: bool,
        patience_seconds: float,
        unreached_seconds: float = math.inf,
    ) -> None:
        self.sources = list(sources)
        self.machine = machine
        self._clock = clock
        self._observer = observer
        self._endless = endless
        self._by_path = {source.receiver.source.lower(): source for source in sources}
        self._wake = asyncio.Event()
        self._room = Room()
        self._settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: list[asyncio.Task[None]] = []
        self._looping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.moved = asyncio.Event()
        """Set whenever messages have come, or have left their queue."""
        self.fatal: BaseException | None = None
        self._progress = Progress(clock, observer, self.moved)
        self._reader = Reader(
            machine,
            classify,
            self._by_path,
            clock=clock,
            observer=observer,
            patience=Patience(endless, patience_seconds, unreached_seconds),
            room=self._room,
            moved=self.moved,
            changed=self._changed,
        )
        self._carrier = Carrier(
            machine,
            self._by_path,
            sink,
            ledger,
            clock=clock,
            progress=self._progress,
            break_down=self._break_down,
            changed=self._changed,
        )

    # What its user calls

    def start(self) -> None:
        for source in self.sources:
            self._read(source)
        self._looping = asyncio.create_task(self._loop())
        self._watching = asyncio.create_task(self._reader.awake.watch())

    def add(self, source: Source) -> None:
        """Read one more source from now on."""
        self.sources.append(source)
        self._by_path[source.receiver.source.lower()] = source
        self._read(source)

    def _read(self, source: Source) -> None:
        self._carrier.reads_stored |= source.stored is not None
        self.machine.queues.add(source.receiver.source, source.locks.lock_seconds)
        self._receiving.append(asyncio.create_task(self._guarded(self._reader.receive_from(source))))

    async def take_deferred(self, source: Source, numbers: Sequence[int], stop: asyncio.Event) -> None:
        await self._reader.take_deferred(source, numbers, stop)

    async def settle_down(self, stop: asyncio.Event) -> bool:
        """Until nothing more can be done without looking again (never when endless); False if it was stopped or broke
        down."""
        self._settled.clear()
        self._changed()
        await cancel_on(stop, self._settled.wait())
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
                    await self._room.next_round()
        except TimeoutError:
            pass  # what is not settled by now comes again when its lock runs out
        await self._end_tasks()
        self._progress.announce()
        await asyncio.gather(*(close_quietly(source.receiver) for source in self.sources))

    async def _end_tasks(self) -> None:
        loop = [task for task in (self._looping, self._watching) if task is not None]
        await end(*loop, *self._tasks)

    # Doing what the machine says

    async def _loop(self) -> None:
        noticed = False
        try:
            while True:
                self._wake.clear()
                now = self._now()
                self._do_what_is_due()
                self._progress.announce_if_due(now)
                if self._endless and not noticed and self.machine.left_full:
                    noticed = True
                    self._tell(PairingNoticed(self._utc(), "too-many-left", _too_many(self.machine)))
                self._room.open()
                if self._nothing_to_do():
                    self._settled.set()
                seconds = max(0.001, self.machine.deadline(self._now()) - self._now())
                await self._for_wake(min(seconds, 1.0) if self._room.waiting else seconds)
        except Exception as error:  # noqa: BLE001 - raised by the pump's user
            self._break_down(error)

    def _do_what_is_due(self) -> None:
        together: dict[str, list[Settle]] = {}
        for action in self.machine.poll(self._now()):
            if not isinstance(action, Settle) or not action.completes_only:
                self._begin(action)
            elif (self._carrier.reads_stored or action.item.completed) and self._carrier.settled_at_once(action):
                self._changed()
            elif (same := together.get(action.received.source)) is not None:
                same.append(action)
            else:
                together[action.received.source] = [action]
        for source, settles in together.items():
            self._spawn(self._carrier.complete(self._by_path[source.lower()], settles))

    async def _for_wake(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _begin(self, action: Action) -> None:
        match action:
            case Send(batch):
                self._spawn(self._carrier.send(batch))
            case Settle():
                self._spawn(self._carrier.settle(action))
            case Renew():
                self._spawn(self._carrier.renew(action))
            case Measure(destination):
                self._spawn(self._carrier.measure(destination))
            case Sample():
                self._spawn(self._reader.sample(action))
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - raised by the pump's user
            self._break_down(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed()

    def _break_down(self, error: BaseException) -> None:
        """Something that no retry mends (a full disk under the ledger, a bug): stop, and say so at the end."""
        self.fatal = self.fatal or error
        self.machine.stop(self._now())
        self._settled.set()
        self._room.open()
        self._changed()

    def _tell(self, event: Event) -> None:
        self._observer.notify(event)

    def _changed(self) -> None:
        self._wake.set()
        if self._looping is None or self._looping.done():
            self._room.open()  # otherwise the loop says so, once for all that has changed

    def _now(self) -> float:
        return self._clock.monotonic()

    def _utc(self) -> float:
        return self._clock.now().timestamp()
