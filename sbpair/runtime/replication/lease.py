"""A handler run for no longer than its lease in the journal."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sbpair.core.errors import JournalConflictError, JournalUnavailableError
from sbpair.core.replication import ownership
from sbpair.core.replication.ownership import Claim, SessionEntry, Terms
from sbpair.core.retry import Backoff
from sbpair.ports import Clock
from sbpair.runtime.replication.handlers import Delivery, Handler, RetryLater
from sbpair.runtime.replication.store import Known, SessionStore

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
    known: Known
    claim: Claim
    since: float
    """Monotonic time before the swap that began it, from which the lease counts."""
    clock: Clock
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
