"""One session on one side, from the moment its lock is ours until nothing of it can be done here any more.

The copies received are held under the session's lock and judged against the journal until all are settled or can only
wait. What must come first is looked for among all of them: copies may lie in the queue in any order. A worker that can
only wait gives the session back after a while, so that others come to their turn.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.concurrency import end
from sbpair.core.errors import (
    Category,
    JournalConflictError,
    JournalUnavailableError,
    LockLostError,
    MalformedMessageError,
    ServiceError,
)
from sbpair.core.events import MessageHandled, Paused
from sbpair.core.message import Disposition, Received
from sbpair.core.replication import ownership
from sbpair.core.replication.ordering import stamp_of
from sbpair.core.replication.ownership import (
    Claim,
    Copy,
    DeadLetter,
    Decision,
    Done,
    Finished,
    GiveUp,
    LookUp,
    NotYet,
    SessionEntry,
    Skip,
    Start,
    Terms,
    decide,
)
from sbpair.core.retry import SERVER_BUSY_SECONDS, Backoff
from sbpair.ports import MessageReceiver, Observer, RuntimeClock
from sbpair.runtime.links import close_quietly, keep_session
from sbpair.runtime.replication.handlers import Delivery, Handler, RetryLater
from sbpair.runtime.replication.store import KnownSession, SessionStore

if TYPE_CHECKING:
    from sbpair.runtime.replication.consumer import ConsumeRequest

JOURNAL_DOWN = Backoff(first_seconds=0.5, most_seconds=30.0)


@dataclass(frozen=True, slots=True)
class Worked:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


@dataclass(frozen=True, slots=True)
class Later:
    """The handler asked for the message again, or was stopped because its consumer stops."""

    reason: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The handler was stopped: its lease is over or somebody else has it."""


Ran = Worked | Failed | Later | LeaseLost


@dataclass
class LeaseHeldRun:
    """One message under a claim: runs the handler, renews the lease, writes down the end.

    The lease counts from before the swap that took it, on a clock that never goes back; so it ends here before it ends
    for anybody who reads it, as long as the clocks are no further apart than the margin.
    """

    store: SessionStore
    known: KnownSession
    claim: Claim
    since: float
    """Monotonic time before the swap that began it, from which the lease counts."""
    clock: RuntimeClock
    terms: Terms
    stop: asyncio.Event

    def __post_init__(self) -> None:
        self._over_at = self.since + self.terms.lease_seconds
        self._renew_at = self.since + self.terms.lease_seconds / 3

    async def run(self, handler: Handler, delivery: Delivery, *, grace_seconds: float) -> Ran:
        """Run the handler to its end, or stop it when the lease is over or `grace_seconds` after `stop`."""
        working = asyncio.create_task(_call(handler, delivery))
        stopping = asyncio.create_task(self.stop.wait())
        leave_at = float("inf")
        try:
            while True:
                now = self.clock.monotonic()
                if self.stop.is_set():
                    leave_at = min(leave_at, now + grace_seconds)
                if now >= self._over_at:
                    return await _stopped(working) or LeaseLost()
                if now >= leave_at:
                    return await _stopped(working) or Later("its consumer is stopping")
                if now >= self._renew_at and not await self._renew():
                    return await _stopped(working) or LeaseLost()
                pause = min(self._renew_at, self._over_at, leave_at) - self.clock.monotonic()
                # Not `concurrency.cancel_on`: a stop does not end the work here, it starts the time it has left.
                waiting = {working} if stopping.done() else {working, stopping}
                await asyncio.wait(waiting, timeout=max(0.0, pause), return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return Failed("the handler cancelled itself") if working.cancelled() else working.result()
        finally:
            stopping.cancel()
            await _stopped(working)

    async def _renew(self) -> bool:
        """False if the claim is lost for certain; a journal that does not answer is asked again until the end."""
        began = self.clock.monotonic()
        self._renew_at = began + min(1.0, self.terms.lease_seconds / 6)
        try:
            async with asyncio.timeout(self._over_at - began):
                renewed = ownership.renew(self.known.entry, self.claim, now=self._now(), terms=self.terms)
                if renewed is None:
                    return False
                self.known = await self.store.swap(self.known, renewed)
        except JournalConflictError:
            return await self._read_again()
        except (JournalUnavailableError, TimeoutError):
            return await self._read_again()
        self._over_at = began + self.terms.lease_seconds
        self._renew_at = began + self.terms.lease_seconds / 3
        return True

    async def _read_again(self) -> bool:
        left = self._over_at - self.clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left)):
                self.known = await self.store.read(self._claim_session)
        except (JournalUnavailableError, TimeoutError):
            return True
        return ownership.holds(self.known.entry, self.claim)

    @property
    def _claim_session(self) -> str:
        return self.known.entry.session_id

    async def finish(self, change: Callable[[SessionEntry], SessionEntry | None]) -> bool:
        """Swap the end in, however long the journal takes to answer: until somebody takes over, it is right.

        False if somebody has, or if `stop` came while the journal does not answer.
        """
        failures = 0
        while True:
            changed = change(self.known.entry)
            if changed is None:
                return self._is_own_end()
            try:
                self.known = await self.store.swap(self.known, changed)
            except JournalConflictError:
                failures = await self._refresh(failures)
            except JournalUnavailableError:
                failures = await self._refresh(failures + 1)
            else:
                return True
            if failures and self.stop.is_set():
                return False

    def _is_own_end(self) -> bool:
        """The end was written although its answer was lost."""
        return ownership.ended(self.known.entry, self.claim)

    async def _refresh(self, failures: int) -> int:
        """Read the entry again, after a pause if the journal did not answer. Returns the failures in a row."""
        if failures:
            # More often than others poll: who waits longer than the lease finds the message taken over.
            await self.clock.sleep(min(JOURNAL_DOWN.seconds(failures), self.terms.lease_seconds / 6))
        try:
            self.known = await self.store.read(self._claim_session)
        except JournalUnavailableError:
            return failures + 1
        return 0

    def _now(self) -> float:
        return self.clock.now().timestamp()


async def _call(handler: Handler, delivery: Delivery) -> Ran:
    try:
        await handler(delivery)
    except RetryLater as later:
        return Later(str(later), later.seconds)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt, not ours
        return Failed(str(error) or type(error).__name__)
    return Worked()


async def _stopped(working: "asyncio.Task[Ran]") -> Ran | None:
    """Stop the handler and wait until it has stopped; its result if it ended by itself at the last moment."""
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
    return None if working.cancelled() else working.result()


POLL_AGAIN = Backoff(first_seconds=0.1, most_seconds=2.0)
"""Between polls of a session that can only wait."""
RETRY = Backoff(first_seconds=1.0, most_seconds=60.0)
"""Before the next attempt at a message that failed."""
FAILED_PAUSE_SECONDS = 1.0
"""How long a session is kept in which a request failed: who asks for the next session would get it at once again."""
MOST_RENEWAL_SECONDS = 20.0
LEAST_RENEWAL_SECONDS = 1.0
MOST_OUTCOMES = 1_000
"""Records kept in mind per session."""
LOST = "lost"
NO_ID = "MessageIdMissing"
"""Dead-letter reason of a message without the id by which its two copies would be known to be one."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all session workers of a consumer share."""

    request: "ConsumeRequest"
    store: SessionStore
    handler: Handler
    clock: RuntimeClock
    observer: Observer
    stop: asyncio.Event
    handlers: asyncio.Semaphore
    """How many handlers may run at once."""
    name: str
    """The consumer's, in owners; the rest of an owner makes it unique."""
    count: Callable[[str, str, str, str], None]
    """Told (side, session, message, result) of every copy."""
    window: int = 100
    """Copies of one session held at once, as long as something can be done with one of them."""
    most_held: int = 1_000
    """Copies held at once while all of them wait for one that may lie behind them."""


@dataclass(slots=True)
class SessionWorker:
    """Works through one session with its open receiver."""

    setup: Setup
    side: str
    session_id: str
    receiver: MessageReceiver
    owner: str = ""
    _held: dict[Copy, Received] = field(default_factory=dict)
    _known: KnownSession | None = None
    _outcomes: dict[str, Finished | None] = field(default_factory=dict)
    _recorded: set[str] = field(default_factory=set)
    """Messages in the entry's `recent` whose records are written."""
    _owned: bool = False
    _lost: bool = False
    _failed: ServiceError | None = None
    _waits: int = 0

    def __post_init__(self) -> None:
        self.owner = f"{self.setup.name}/{self.side}/{uuid.uuid4().hex[:12]}"

    async def run(self, first: list[Received]) -> None:
        """Until the session is empty, can only wait, its lock is lost, the namespace fails or the consumer stops.

        Raises:
            JournalError: the journal refuses permanently.
        """
        renewing = asyncio.create_task(self._keep_lock(first[0]))
        try:
            try:
                await self._take_in(first)
                await self._work()
            except ServiceError as error:
                self._failed = error  # its messages come again, to the next owner of the session
            finally:
                await self._give_up_session()
            if self._failed is not None and not isinstance(self._failed, LockLostError):
                busy = self._failed.category is Category.BUSY
                await self._rest(self._failed.code, SERVER_BUSY_SECONDS if busy else FAILED_PAUSE_SECONDS)
        finally:
            await end(renewing)
            await close_quietly(self.receiver)

    async def _work(self) -> None:
        clock, failures = self.setup.clock, 0
        patient_until = clock.monotonic() + self.setup.request.hold_seconds
        while not self._over:
            try:
                moved = await self._step()
            except JournalUnavailableError as error:
                failures += 1
                self._forget()
                await self._rest(error.code, JOURNAL_DOWN.seconds(failures))
                continue
            failures = 0
            if moved:
                self._waits, patient_until = 0, clock.monotonic() + self.setup.request.hold_seconds
            elif not self._held:
                if not await self._receive(self.setup.request.idle_seconds):
                    return
            elif clock.monotonic() >= patient_until:
                return
            else:
                self._waits += 1
                await self._receive(POLL_AGAIN.seconds(self._waits))

    @property
    def _over(self) -> bool:
        return self._lost or self.setup.stop.is_set()

    async def _rest(self, code: str, seconds: float) -> None:
        """Nothing is done without the journal, nor where the namespace fails."""
        self.setup.observer.notify(Paused(self._now(), f"session {self.session_id}", code, seconds))
        try:
            async with asyncio.timeout(seconds):
                await self.setup.stop.wait()
        except TimeoutError:
            return

    # Copies in hand

    async def _receive(self, wait_seconds: float) -> bool:
        """More copies. While all that are held wait, what they wait for may lie behind them: then up to `most_held`."""
        most = self.setup.window if not self._waits else self.setup.most_held
        room = min(self.setup.window, most - len(self._held))
        if room <= 0:
            await self.setup.clock.sleep(wait_seconds)
            return False
        received = await self.receiver.receive(room, wait_seconds=wait_seconds)
        await self._take_in(received)
        return bool(received)

    async def _take_in(self, received: list[Received]) -> None:
        if len(self._outcomes) > MOST_OUTCOMES:
            self._outcomes.clear()  # they are read again where they matter
        for message in received:
            if not message.message_id:
                text = "Without a MessageId its two copies are not known to be one."
                await self._settle(message, Disposition.DEAD_LETTER, "dead-lettered", NO_ID, text)
                continue
            try:
                stamp = stamp_of(message.payload)
            except MalformedMessageError as error:
                await self._settle(message, Disposition.DEAD_LETTER, "dead-lettered", error.reason, error.description)
                continue
            self._held[Copy(message.message_id, message.sequence_number, stamp)] = message

    async def _settle(
        self, received: Received, disposition: Disposition, result: str, reason: str = "", description: str = ""
    ) -> bool:
        """False if that is not certain: the copy may come again, and is then known to be finished."""
        settled = True
        try:
            await self.receiver.settle(received, disposition, reason=reason, description=description)
        except ServiceError as error:
            self._lost, self._failed, settled = True, error, False
        self._tell(received.message_id or "", result, f"{reason} {description}".strip())
        return settled

    def _tell(self, message_id: str, result: str, detail: str = "") -> None:
        self.setup.count(self.side, self.session_id, message_id, result)
        self.setup.observer.notify(MessageHandled(self._now(), self.side, self.session_id, message_id, result, detail))

    async def _keep_lock(self, first: Received) -> None:
        """Renew the session's lock. Once it is lost a running handler goes on: its lease is in the journal."""
        left = MOST_RENEWAL_SECONDS * 3 if first.locked_until is None else first.locked_until - self._now()
        pause = min(MOST_RENEWAL_SECONDS, max(LEAST_RENEWAL_SECONDS, left / 3))
        await keep_session(self.receiver, self.setup.clock, pause_seconds=pause)
        self._lost = True

    # What is known of the session

    async def _entry(self) -> SessionEntry:
        if self._known is None:
            self._known = await self.setup.store.read(self.session_id)
        return self._known.entry

    def _forget(self) -> None:
        """The entry may have changed. So may every record that was not there when it was read; the others stay."""
        self._known = None
        for message_id in [one for one, finished in self._outcomes.items() if finished is None]:
            del self._outcomes[message_id]

    async def _swap(self, entry: SessionEntry) -> bool:
        """False if somebody else was faster: judge again. What is not known to be written is read again."""
        known = self._known
        if known is None:
            return False
        self._known = None
        try:
            self._known = await self.setup.store.swap(known, entry)
        except JournalConflictError:
            self._forget()
            return False
        return True

    # Decisions

    async def _step(self) -> bool:
        """Do the first thing that can be done with a held copy; False if all of them can only wait."""
        if not self._held:
            return False
        fresh = self._known is None
        while True:
            entry = await self._entry()
            decided = decide(
                entry,
                list(self._held),
                self._outcomes,
                owner=self.owner,
                now=self._now(),
                terms=self.setup.request.terms,
            )
            if isinstance(decided, tuple):
                copy, decision = decided
                if not isinstance(decision, LookUp):
                    await self._do(copy, decision)
                    return True
                for message_id in decision.message_ids:
                    self._outcomes[message_id] = await self.setup.store.finished(self.session_id, message_id)
            elif fresh:
                await self._note(decided)
                return False
            else:
                self._forget()  # nothing to do as far as we know: read again before believing it
                fresh = True

    async def _note(self, waits: list[NotYet]) -> None:
        note = next((wait.note for wait in waits if wait.note is not None), None)
        if note is not None:
            await self._swap(note)  # if that fails something has happened, so the gap may be gone
        self._forget()

    async def _do(self, copy: Copy, decision: Decision) -> None:
        match decision:
            case Done() | DeadLetter():
                await self._settle_copy(copy, decision)
            case Skip(entry=entry, then=then):
                if await self._swap(entry):
                    await self._settle_copy(copy, then)
            case GiveUp(entry=entry, finished=finished):
                if await self._swap(entry):
                    await self._end(copy, finished, Disposition.DEAD_LETTER, "failed")
            case Start():
                async with self.setup.handlers:
                    if not self._over:
                        await self._begin(copy)

    async def _settle_copy(self, copy: Copy, then: Done | DeadLetter) -> None:
        """The copy of a message that is finished already."""
        received = self._held.pop(copy)
        if isinstance(then, Done):
            settled = await self._settle(received, Disposition.COMPLETE, "duplicate")
        else:
            settled = await self._settle(
                received, Disposition.DEAD_LETTER, "dead-lettered", then.reason, then.description
            )
        finished = self._finished(copy.message_id)
        if settled and finished is not None:
            await self.setup.store.record(self.session_id, finished, (self.side,))

    def _finished(self, message_id: str) -> Finished | None:
        entry = None if self._known is None else self._known.entry
        return (entry and entry.outcome(message_id)) or self._outcomes.get(message_id)

    async def _begin(self, copy: Copy) -> None:
        """Judge once more, because it may have taken a while until a handler was free; then run."""
        entry = await self._entry()
        decided = decide(
            entry, list(self._held), self._outcomes, owner=self.owner, now=self._now(), terms=self.setup.request.terms
        )
        if not isinstance(decided, tuple) or decided[0] != copy or not isinstance(decided[1], Start):
            return
        start = decided[1]
        for finished in start.entry.recent:
            if finished.message_id not in self._recorded:  # left by an owner that died before it wrote the record
                await self.setup.store.record(self.session_id, finished)
                self._recorded.add(finished.message_id)
        since = self.setup.clock.monotonic()
        if not await self._swap(ownership.recorded(start.entry, self._recorded)) or self._known is None:
            return
        self._recorded.clear()
        self._owned = True
        shared = self.setup
        run = LeaseHeldRun(
            shared.store, self._known, start.claim, since, shared.clock, shared.request.terms, shared.stop
        )
        await self._process(copy, start.claim, run)

    # One message

    async def _process(self, copy: Copy, claim: Claim, run: LeaseHeldRun) -> None:
        received = self._held[copy]
        delivery = Delivery(
            payload=received.payload,
            session_id=self.session_id,
            message_id=copy.message_id,
            place="" if copy.place is None else str(copy.place),
            region=self.side,
            attempt=claim.attempt,
            fence=claim.fence,
            delivery_count=received.delivery_count,
        )
        ran = await run.run(self.setup.handler, delivery, grace_seconds=self.setup.request.grace_seconds)
        written = not isinstance(ran, LeaseLost) and await run.finish(lambda entry: self._changed(entry, claim, ran))
        if not written:
            self._forget()
            self._tell(copy.message_id, LOST, "Its lease is over or another consumer has it.")
            self._lost = isinstance(ran, LeaseLost) or self._lost
            return
        self._known = run.known
        await self._follow_up(copy, ran)

    def _changed(self, entry: SessionEntry, claim: Claim, ran: Ran) -> SessionEntry | None:
        now, request = self._now(), self.setup.request
        match ran:
            case Worked():
                return ownership.complete(entry, claim, now=now, terms=request.terms)
            case Failed(reason=reason):
                pause = request.retry.seconds(claim.attempt)
                return ownership.fail(entry, claim, reason, now=now, pause_seconds=pause, terms=request.terms)
            case Later(seconds=seconds):
                pause = 0.0 if self.setup.stop.is_set() else request.later_seconds if seconds is None else seconds
                return ownership.retry_later(entry, claim, now=now, pause_seconds=pause)
            case LeaseLost():
                return None

    async def _follow_up(self, copy: Copy, ran: Ran) -> None:
        """Settle the copy as the journal says now."""
        finished = self._finished(copy.message_id)
        if finished is None:
            self._tell(copy.message_id, "again", ran.reason if isinstance(ran, Failed | Later) else "")
        elif isinstance(ran, Worked):
            await self._end(copy, finished, Disposition.COMPLETE, "completed")
        else:
            await self._end(copy, finished, Disposition.DEAD_LETTER, "failed")

    async def _end(self, copy: Copy, finished: Finished, disposition: Disposition, result: str) -> None:
        """Settle the copy, then write the record: until then the session's entry says what became of it."""
        received = self._held.pop(copy)
        settled = await self._settle(received, disposition, result, finished.code, finished.reason)
        self._outcomes[copy.message_id] = finished
        await self.setup.store.record(self.session_id, finished, (self.side,) if settled else (), is_new=True)
        self._recorded.add(copy.message_id)

    async def _give_up_session(self) -> None:
        """Let the session go at once instead of when the lease is over, without what is recorded by now."""
        if not self._owned:
            return
        try:
            known = await self.setup.store.read(self.session_id)
            released = ownership.release(known.entry, self.owner, now=self._now()) or known.entry
            tidied = released if released.owner else ownership.recorded(released, self._recorded)
            if tidied != known.entry:
                await self.setup.store.swap(known, tidied)
        except (JournalConflictError, JournalUnavailableError):
            return  # the lease ends by itself

    def _now(self) -> float:
        return self.setup.clock.now().timestamp()
