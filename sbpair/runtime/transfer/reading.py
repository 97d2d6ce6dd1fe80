"""Receives from sources, and shows the machine what has come and what it went past.

Nothing is decided here but when a source that cannot be read is tried again.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sbpair.concurrency import passes
from sbpair.core.entities import Counts
from sbpair.core.errors import Category, ServiceError
from sbpair.core.events import Polled, ReceiveFailed
from sbpair.core.message import Received
from sbpair.core.names import is_dead_letter_path
from sbpair.core.retry import REFUSED, SYPHON, ends_in_time
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.order import SkippedNumbers
from sbpair.core.transfer.pace import BUSY
from sbpair.core.transfer.state import LockClock, Sample, Verdict, has_order
from sbpair.ports import MessageReceiver, Observer, RuntimeClock
from sbpair.runtime.browse import pages
from sbpair.runtime.clock import Awake
from sbpair.runtime.transfer.stored import StoredMessages

RECEIVE_MESSAGES = 100
"""Batch size of the documented syphon."""
IDLE_POLL_SECONDS = 5.0
MOST_BROWSE_PATIENCE_SECONDS = 15.0
TRY_SECONDS = 0.5
"""How long a receive waits in a queue in which another drain leads."""
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


class Room:
    """Wakes the receivers that wait for the machine to let them receive, once in each round of the pump's loop."""

    def __init__(self) -> None:
        self._round = asyncio.Event()
        self.waiting = 0
        """Receivers that wait."""

    def open(self) -> None:
        """A round is over."""
        self._round.set()

    async def next_round(self) -> None:
        """Until the loop has been round, which may take long where nothing happens."""
        self._round.clear()
        await self._round.wait()

    async def wait(self) -> None:
        """Until the loop has been round, which it is at least every second as long as a receiver waits here."""
        self.waiting += 1
        try:
            await self.next_round()
        finally:
            self.waiting -= 1


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a source may fail.

    Args:
        endless: an empty source is polled again and an unreadable one never given up.
        seconds: after so long it is given up (not when endless).
        unreached_seconds: the same, if that is less, for a source that has not answered yet.
    """

    endless: bool
    seconds: float
    unreached_seconds: float = math.inf


@dataclass(slots=True, eq=False)
class Reader:
    """Reads sources into the machine."""

    machine: Settlement
    classify: Callable[[Received], Verdict]
    sources: Mapping[str, Source]
    """By the lower-case name of what they receive from; the pump adds to them."""
    _: KW_ONLY
    clock: RuntimeClock
    observer: Observer
    patience: Patience
    room: Room
    """Where to wait for the machine to let more come."""
    moved: asyncio.Event
    """Set whenever messages have come."""
    changed: Callable[[], None]
    """Called when the machine has something new to decide."""
    awake: Awake = field(init=False)

    def __post_init__(self) -> None:
        self.awake = Awake(self.clock.monotonic)

    async def receive_from(self, source: Source) -> None:
        """Receive until the source is given up; an idle one only when it is to be polled again."""
        while source.failed is None:
            granted = self.machine.grant(source.receive_messages, self.clock.monotonic(), source.receiver.source)
            if not granted:
                await self.room.wait()
                continue
            await self._receive_once(source, granted)
            if source.idle and not self.patience.endless:
                source.poll_again.clear()
                self.machine.window.rests(source.receiver.source)
                self.changed()
                await self._until_polled_again(source)

    async def _receive_once(self, source: Source, granted: int) -> None:
        path = source.receiver.source
        wait_seconds = source.wait_seconds
        if self.machine.queues.standing_back(path):
            wait_seconds = min(wait_seconds, TRY_SECONDS)
        began = self.awake.monotonic()
        try:
            received = await source.receiver.receive(granted, wait_seconds=wait_seconds)
        except ServiceError as error:
            self.machine.window.returned(granted, 0)
            await self._receive_failed(source, error, since=began)
            return
        except BaseException:
            self.machine.window.returned(granted, 0)
            raise
        source.was_read, source.last_error = True, None
        self.machine.queues.tried(path, received, self.clock.monotonic())
        source.idle = not received and not self.machine.queues.awaits(path, self.clock.monotonic())
        self.observer.notify(Polled(self._utc(), source.path, len(received)))
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
            return [self.classify(message) for message in received]
        except FilterError:
            until = self.clock.monotonic() + source.locks.lock_seconds
            for message in received:
                self.machine.custody.refused(message, lock_until=until, lock_seconds=source.locks.lock_seconds)
            raise

    def _arrived(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> None:
        now = self.clock.monotonic()
        now_utc = self._utc()
        for message, verdict in zip(received, verdicts, strict=True):
            until = source.locks.deadline(message.locked_until, now_utc=now_utc, now=now)
            lock_seconds = source.locks.lock_seconds
            self.machine.arrived(message, verdict, lock_until=until, lock_seconds=lock_seconds, now=now)
        if received:
            self.moved.set()
        self.changed()

    def _refuse(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> None:
        """What comes before these was not browsed to its end: those of sessions go back, the others have no order."""
        until = self.clock.monotonic() + source.locks.lock_seconds
        rest = []
        for message, verdict in zip(received, verdicts, strict=True):
            if has_order(verdict):
                self.machine.custody.refused(message, lock_until=until, lock_seconds=source.locks.lock_seconds)
            else:
                rest.append((message, verdict))
        self._arrived(source, [message for message, _ in rest], [verdict for _, verdict in rest])

    async def take_deferred(self, source: Source, numbers: Sequence[int], stop: asyncio.Event) -> None:
        """Fetch deferred messages by their numbers, until `stop`, and move them like the others. What cannot be had
        stays deferred."""
        rest, machine = list(numbers), self.machine
        while rest and not (stop.is_set() or machine.custody.stopping or machine.total_reached or machine.left_full):
            granted = machine.grant(min(len(rest), RECEIVE_MESSAGES), self.clock.monotonic())
            if not granted:
                await self.room.wait()
                continue
            some, rest = rest[:granted], rest[granted:]
            try:
                found = await _by_number(source.receiver, some)
                self._arrived(source, found, [self.classify(message) for message in found])
            finally:
                machine.window.returned(granted)
            self.changed()

    async def _browse_skipped(self, source: Source, received: Sequence[Received], verdicts: Sequence[Verdict]) -> bool:
        """Browse the numbers that a receive went past, and tell the machine what lies there. False if what was received
        has to be released whatever else lies there."""
        path = source.receiver.source
        while True:
            forgotten = self.machine.queues.forgotten(path)
            for skipped in self.machine.queues.skipped(received, verdicts):
                if not await self._browse(source, skipped, received):
                    self.machine.queues.gave_way(path, self.clock.monotonic())
                    return False
                if self.machine.queues.forgotten(path) != forgotten:
                    break  # something of ours was released meanwhile: what was seen before may have another holder now
                self.machine.queues.proved(path, skipped)
            if self.machine.queues.forgotten(path) == forgotten:
                return True

    async def _browse(self, source: Source, skipped: SkippedNumbers, received: Sequence[Received]) -> bool:
        patience = min(MOST_BROWSE_PATIENCE_SECONDS, source.locks.lock_seconds / 3)
        # Our own messages may be settled while the browse is under way, and still be in its answer.
        mine = self.machine.queues.in_hand(source.receiver.source) | {message.sequence_number for message in received}
        # Most often the first message tells enough: it is the one that has come, or one that holds up what has come.
        browsed = pages(
            source.receiver,
            skipped.first,
            skipped.last,
            clock=self.clock,
            patience_seconds=patience,
            first_page_messages=1,
        )
        async for page in browsed:
            for message in page:
                if message.sequence_number not in mine:
                    self.machine.expect(message, self.classify(message), self.clock.monotonic())
            if self.machine.queues.hopeless_now(received):
                return False  # the rest of what lies before them does not matter
        return True

    async def sample(self, sample: Sample) -> None:
        """Browse a page of a queue that the machine asks for."""
        in_hand = self.machine.queues.in_hand(sample.source)
        receiver = self.sources[sample.source.lower()].receiver
        try:
            # Nothing of ours lies there while others lead: the first message is all that is asked for.
            most = SAMPLE_MESSAGES if in_hand or not self.machine.queues.standing_back(sample.source) else 1
            page = await receiver.peek(most, from_sequence_number=sample.first)
        except ServiceError:
            # The receives show what is wrong with the queue.
            self.machine.queues.sample_failed(sample, self.clock.monotonic())
        else:
            self.machine.queues.sampled(sample, page, in_hand=in_hand, now=self.clock.monotonic())

    async def _receive_failed(self, source: Source, error: ServiceError, *, since: float) -> None:
        """`since`: when what failed was begun, which may have been a while ago where nobody answers; by `awake`."""
        now = self.awake.monotonic()
        source.failures += 1
        source.last_error = error
        source.failing_since = source.failing_since if source.failing_since is not None else since
        hopeless = not passes(error)
        answered = source.was_read or error.category is Category.BUSY
        patience = self.patience.seconds if answered else min(self.patience.seconds, self.patience.unreached_seconds)
        failing = now - source.failing_since
        in_time = failing < patience and ends_in_time(failing, now - since, patience)
        if not self.patience.endless and (hopeless or not in_time):
            source.failed = error
            self.machine.window.rests(source.receiver.source)
            self.observer.notify(ReceiveFailed(self._utc(), source.path, error.code, None, error.message))
            self.changed()
            return
        seconds = (REFUSED if hopeless else SYPHON).seconds(source.failures)
        if error.category is Category.BUSY:
            seconds = BUSY.seconds(source.failures)
        if not self.patience.endless:
            seconds = min(seconds, patience - failing)
        self.observer.notify(ReceiveFailed(self._utc(), source.path, error.code, seconds, error.message))
        await self.clock.sleep(seconds)

    async def _until_polled_again(self, source: Source) -> None:
        """Until it is to be polled, or every few seconds as long as messages are held that may wait for one of it."""
        while True:
            try:
                async with asyncio.timeout(IDLE_POLL_SECONDS):
                    await source.poll_again.wait()
                return
            except TimeoutError:
                if self.machine.custody.live:
                    return

    def _utc(self) -> float:
        return self.clock.now().timestamp()


async def _by_number(receiver: MessageReceiver, numbers: Sequence[int]) -> list[Received]:
    """Deferred messages under lock. One message that is gone, or that another receiver holds, fails its whole request:
    then each is asked for alone."""
    try:
        return await receiver.receive_deferred(numbers)
    except ServiceError:
        if len(numbers) == 1:
            return []
    return [message for number in numbers for message in await _by_number(receiver, [number])]
