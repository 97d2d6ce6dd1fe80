"""Does what `core.transfer.machine` says: receives, sends, settles and renews, all at once within its bounds.

One task per source receives (`reading`); one loop polls the machine and starts a task for each thing it wants done
(`carrying`); every task reports to the machine how it went and wakes the loop.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from sbpair.concurrency import cancel_on, end
from sbpair.core.events import Event, LedElsewhere, LockedElsewhere, Paused, Resumed
from sbpair.core.message import Received
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import (
    Action,
    Followed,
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
from sbpair.ports import Clock, Observer
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.carrying import Carrier, Progress
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.reading import Patience, Reader, Room, Source
from sbpair.runtime.transfer.sinks import Sink

STOP_SECONDS = 10.0


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
        clock: Clock,
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

    async def take_deferred(self, source: Source, numbers: Sequence[int]) -> None:
        """Fetch deferred messages by their numbers and move them like the others. What cannot be had stays deferred."""
        await self._reader.take_deferred(source, numbers)

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
        try:
            while True:
                self._wake.clear()
                now = self._now()
                self._do_what_is_due()
                self._progress.announce_if_due(now)
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
