"""One session on one side, from the moment its lock is ours until nothing of it can be done here any more.

The copies received are held under the session's lock and judged against the journal's entry, lowest place first, until
all are settled or can only wait. Held copies may lie in the queue in any order; what must come first is looked for
among all of them. A visit that can only wait gives the session back after a while, so that others come to their turn.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from sbpair.core import ownership
from sbpair.core.errors import (
    JournalConflictError,
    JournalUnavailableError,
    LockLostError,
    MalformedMessageError,
    ServiceError,
)
from sbpair.core.events import MessageHandled, Paused
from sbpair.core.message import Disposition, Received
from sbpair.core.ordering import Stamp, stamp_of
from sbpair.core.ownership import (
    Bury,
    Claim,
    Decision,
    Done,
    GiveUp,
    Granularity,
    SessionEntry,
    Start,
    State,
    Terms,
    Wait,
    judge,
)
from sbpair.core.retry import Backoff
from sbpair.ports import Clock, Journal, MessageReceiver, Observer
from sbpair.runtime.handlers import Delivery, Handler
from sbpair.runtime.leases import JOURNAL_DOWN, Book, Failed, Known, Later, LeaseLost, Ran, Tenure, Worked
from sbpair.runtime.links import close_quietly
from sbpair.tasks import end

LOOK_AGAIN = Backoff(first_seconds=0.1, most_seconds=2.0)
"""Between looks at a session that can only wait."""
RETRY = Backoff(first_seconds=1.0, most_seconds=60.0)
"""Before the next attempt at a message that failed."""
MOST_RENEWAL_SECONDS = 20.0
LEAST_RENEWAL_SECONDS = 1.0
LOST = "lost"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all visits of a consumer share. Durations in seconds."""

    journal: Journal
    terms: Terms
    handler: Handler
    clock: Clock
    observer: Observer
    stop: asyncio.Event
    handlers: asyncio.Semaphore
    """How many handlers may run at once."""
    name: str
    """The consumer's, in owners; the rest of an owner makes it unique."""
    count: Callable[[str, str], None]
    """Told (side, result) of every copy."""
    window: int = 100
    """Copies of one session held at once."""
    idle_seconds: float = 1.0
    """How long an emptied session is kept for its next message."""
    hold_seconds: float = 5.0
    """How long a session is kept in which nothing can be done."""
    retry: Backoff = RETRY
    later_seconds: float = 5.0
    """Pause before a message whose handler asked for it again."""
    grace_seconds: float = 10.0
    """How long a running handler gets to end when the consumer stops."""


@dataclass(slots=True)
class _Held:
    received: Received
    stamp: Stamp
    message_id: str


@dataclass(slots=True)
class Visit:
    """Works through one session with its open receiver."""

    setup: Setup
    side: str
    session_id: str
    receiver: MessageReceiver
    owner: str = ""
    _held: list[_Held] = field(default_factory=list)
    _known: Known | None = None
    _owned: bool = False
    _lost: bool = False
    _waits: int = 0

    def __post_init__(self) -> None:
        self.owner = f"{self.setup.name}/{self.side}/{uuid.uuid4().hex[:12]}"

    @property
    def _book(self) -> Book:
        return Book(self.setup.journal, self.setup.terms)

    async def run(self, first: list[Received]) -> None:
        """Until the session is empty, can only wait, its lock is lost or the consumer stops.

        Raises:
            JournalError: the journal refuses for good. ServiceError: the namespace does.
        """
        renewing = asyncio.create_task(self._keep_lock(first[0]))
        try:
            await self._take_in(first)
            await self._work()
        except LockLostError:
            self._lost = True  # its messages come again, to whoever takes the session next
        finally:
            await end(renewing)
            await self._give_up_session()
            await close_quietly(self.receiver)

    async def _work(self) -> None:
        clock, failures = self.setup.clock, 0
        patient_until = clock.monotonic() + self.setup.hold_seconds
        while not self._over:
            try:
                moved = await self._step()
            except JournalUnavailableError as error:
                failures += 1
                self._known = None
                await self._rest(error.code, JOURNAL_DOWN.seconds(failures))
                continue
            failures = 0
            if moved:
                self._waits, patient_until = 0, clock.monotonic() + self.setup.hold_seconds
            elif not self._held:
                if not await self._receive(self.setup.idle_seconds):
                    return
            elif clock.monotonic() >= patient_until:
                return
            else:
                self._waits += 1
                await self._receive(LOOK_AGAIN.seconds(self._waits))

    @property
    def _over(self) -> bool:
        return self._lost or self.setup.stop.is_set()

    async def _rest(self, code: str, seconds: float) -> None:
        """Nothing is done without the journal."""
        self.setup.observer.notify(Paused(self._now(), f"session {self.session_id}", code, seconds))
        try:
            async with asyncio.timeout(seconds):
                await self.setup.stop.wait()
        except TimeoutError:
            return

    # Copies in hand

    async def _receive(self, wait_seconds: float) -> bool:
        room = self.setup.window - len(self._held)
        if room <= 0:
            await self.setup.clock.sleep(wait_seconds)
            return False
        received = await self.receiver.receive(room, wait_seconds=wait_seconds)
        await self._take_in(received)
        return bool(received)

    async def _take_in(self, received: list[Received]) -> None:
        for one in received:
            try:
                stamp = stamp_of(one.payload)
            except MalformedMessageError as error:
                await self._settle(one, Disposition.DEAD_LETTER, "dead-lettered", error.reason, error.description)
                continue
            self._held.append(_Held(one, stamp, one.message_id or str(stamp.place)))
        self._held.sort(key=lambda held: held.stamp.place)

    async def _settle(
        self, received: Received, disposition: Disposition, result: str, reason: str = "", description: str = ""
    ) -> None:
        """What cannot be settled comes again, and is then known to be finished."""
        try:
            await self.receiver.settle(received, disposition, reason=reason, description=description)
        except ServiceError:
            self._lost = True
        self._tell(received.message_id or "", result, f"{reason} {description}".strip())

    def _tell(self, message_id: str, result: str, detail: str = "") -> None:
        self.setup.count(self.side, result)
        self.setup.observer.notify(MessageHandled(self._now(), self.side, self.session_id, message_id, result, detail))

    async def _keep_lock(self, first: Received) -> None:
        """Renew the session's lock. Once it is lost a running handler goes on: its lease is in the journal."""
        left = MOST_RENEWAL_SECONDS * 3 if first.locked_until is None else first.locked_until - self._now()
        pause = min(MOST_RENEWAL_SECONDS, max(LEAST_RENEWAL_SECONDS, left / 3))
        while not self._lost:
            await self.setup.clock.sleep(pause)
            try:
                await self.receiver.renew_lock(first)
            except LockLostError:
                self._lost = True
            except ServiceError:
                continue  # asked again; if it stays away, settling says that the lock is lost

    # Decisions

    async def _step(self) -> bool:
        """Do the first thing that can be done with a held copy; False if all of them can only wait."""
        if not self._held:
            return False
        fresh = self._known is None
        while True:
            if self._known is None:
                self._known = await self._book.read(self.session_id)
            waits: list[Wait] = []
            for held in self._held:
                decision = self._judge(held)
                if not isinstance(decision, Wait):
                    await self._do(held, decision)
                    return True
                waits.append(decision)
            if fresh:
                await self._note(waits)
                return False
            self._known, fresh = None, True  # nothing to do as far as we know: look again before believing it

    def _judge(self, held: _Held) -> Decision:
        entry = self._known.entry if self._known is not None else SessionEntry(self.session_id)
        return judge(entry, held.stamp, held.message_id, owner=self.owner, now=self._now(), terms=self.setup.terms)

    async def _note(self, waits: list[Wait]) -> None:
        note = next((wait.note for wait in waits if wait.note is not None), None)
        known, self._known = self._known, None
        if note is not None and known is not None:
            try:
                await self._book.swap(known, note)
            except JournalConflictError:
                return  # something has happened, so the gap may be gone; the next look tells

    async def _do(self, held: _Held, decision: Decision) -> None:
        match decision:
            case Done():
                self._held.remove(held)
                await self._settle(held.received, Disposition.COMPLETE, "duplicate")
            case Bury(reason=reason, description=description):
                self._held.remove(held)
                await self._settle(held.received, Disposition.DEAD_LETTER, "dead-lettered", reason, description)
            case GiveUp(entry=entry, failure=failure):
                if await self._swap(entry):
                    self._held.remove(held)
                    await self._settle(
                        held.received, Disposition.DEAD_LETTER, "failed", ownership.FAILED, failure.reason
                    )
            case Start():
                async with self.setup.handlers:
                    if not self._over:
                        await self._begin(held)

    async def _swap(self, entry: SessionEntry) -> bool:
        """False if somebody else was faster: judge again."""
        known, self._known = self._known, None
        if known is None:
            return False
        try:
            self._known = await self._book.swap(known, entry)
        except JournalConflictError:
            return False
        return True

    async def _begin(self, held: _Held) -> None:
        """Judge once more, because it may have taken a while until a handler was free; then run."""
        decision = self._judge(held)
        if not isinstance(decision, Start):
            return
        since = self.setup.clock.monotonic()
        if not await self._swap(decision.entry) or self._known is None:
            return
        self._owned = True
        tenure = Tenure(
            self._book,
            self._known,
            decision.claim,
            since=since,
            clock=self.setup.clock,
            terms=self.setup.terms,
            stop=self.setup.stop,
        )
        await self._process(held, decision.claim, tenure)

    # One message

    async def _process(self, held: _Held, claim: Claim, tenure: Tenure) -> None:
        delivery = Delivery(
            payload=held.received.payload,
            session_id=self.session_id,
            message_id=held.message_id,
            place=str(claim.place),
            region=self.side,
            attempt=claim.attempt,
            fence=claim.fence,
            delivery_count=held.received.delivery_count,
        )
        await self._record(delivery, State.WORKING)
        ran = await tenure.run(self.setup.handler, delivery, grace_seconds=self.setup.grace_seconds)
        written = not isinstance(ran, LeaseLost) and await tenure.finish(lambda entry: self._end(entry, claim, ran))
        self._known = tenure.known if written else None
        if not written:
            self._tell(held.message_id, LOST, "Its lease is over or another consumer has it.")
            self._lost = isinstance(ran, LeaseLost) or self._lost
            return
        await self._follow_up(held, claim, ran, delivery)

    def _end(self, entry: SessionEntry, claim: Claim, ran: Ran) -> SessionEntry | None:
        now, terms = self._now(), self.setup.terms
        match ran:
            case Worked():
                return ownership.complete(entry, claim, now=now, terms=terms)
            case Failed(reason=reason):
                pause = self.setup.retry.seconds(claim.attempt)
                return ownership.fail(entry, claim, reason, now=now, pause_seconds=pause, terms=terms)
            case Later(seconds=seconds):
                pause = 0.0 if self.setup.stop.is_set() else self.setup.later_seconds if seconds is None else seconds
                return ownership.retry_later(entry, claim, now=now, pause_seconds=pause)
            case LeaseLost():
                return None

    async def _follow_up(self, held: _Held, claim: Claim, ran: Ran, delivery: Delivery) -> None:
        """Settle the copy as the journal says now."""
        entry = self._known.entry if self._known is not None else SessionEntry(self.session_id)
        if isinstance(ran, Worked):
            self._held.remove(held)
            await self._record(delivery, State.COMPLETED)
            await self._settle(held.received, Disposition.COMPLETE, "completed")
            return
        reason = ran.reason if isinstance(ran, Failed | Later) else ""
        if not entry.finished(claim.place):
            await self._record(delivery, State.PENDING, reason)
            self._tell(held.message_id, "again", reason)
            return
        self._held.remove(held)
        await self._record(delivery, State.FAILED, reason)
        await self._settle(held.received, Disposition.DEAD_LETTER, "failed", ownership.FAILED, reason[:400])

    async def _record(self, delivery: Delivery, state: State, reason: str = "") -> None:
        """The message's own entry, for people to read: the session's entry decides, so this one may fail."""
        if self.setup.terms.granularity is not Granularity.MESSAGE:
            return
        try:
            await self._book.record(delivery, state, self.owner, reason, self._now())
        except JournalUnavailableError as error:
            self.setup.observer.notify(Paused(self._now(), f"entry of {delivery.message_id}", error.code, 0.0))

    async def _give_up_session(self) -> None:
        """Let the session go at once instead of when the lease is over."""
        if not self._owned:
            return
        try:
            known = await self._book.read(self.session_id)
            released = ownership.release(known.entry, self.owner, now=self._now())
            if released is not None:
                await self._book.swap(known, released)
        except (JournalConflictError, JournalUnavailableError):
            return  # the lease ends by itself

    def _now(self) -> float:
        return self.setup.clock.now().timestamp()
