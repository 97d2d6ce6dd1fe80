"""One entity of a pairing in use: runs its failover machine, keeps its timer and sends its pings.

One background task per entity exists from the first counted failure until the entity is healthy again, so a healthy
pairing has none. The task only waits for the machine's next deadline; what happens then is the machine's decision.
"""

import asyncio
import copy

from sbpair.concurrency import end
from sbpair.core.errors import ServiceError
from sbpair.core.events import Diverted, EntityInvalid, FailedBack, FailedOver, PingSent, SendFailed
from sbpair.core.failover.machine import Change, EntityFailover, Route, State, Verdict
from sbpair.core.failover.sending import EntityRules
from sbpair.ports import Clock, Observer
from sbpair.runtime.failover.ping import Pinger

_WATCHED = frozenset({State.SUSPECT, State.FAILED_OVER, State.ENTITY_INVALID})


class MonitoredEntity:
    """Where the sends of one entity go; shared by all its senders."""

    def __init__(
        self, entity: str, machine: EntityFailover, pinger: Pinger, *, clock: Clock, observer: Observer
    ) -> None:
        self.entity = entity
        self._machine = machine
        self._pinger = pinger
        self._clock = clock
        self._observer = observer
        self._watch: asyncio.Task[None] | None = None
        self._stopped = False
        self.rules = EntityRules()
        self.since = clock.now().timestamp()
        """UTC epoch seconds of the last change of state."""

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def cause(self) -> ServiceError | None:
        return self._machine.cause

    @property
    def diverted_messages(self) -> int:
        return self._machine.diverted_messages

    @property
    def timer_seconds_left(self) -> float | None:
        return self._machine.timer_seconds_left(self._clock.monotonic())

    @property
    def ticket(self) -> int:
        return self._machine.ticket

    def route(self) -> Route:
        route = self._machine.route(self._clock.monotonic())
        self._follow()
        return route

    def sent(self) -> None:
        self._machine.sent(self._clock.monotonic())
        self._follow()

    def worth_retrying(self, error: ServiceError) -> bool:
        """Whether the same send may succeed a little later: on the primary, or on the backlog after failover."""
        return error.retryable or self._machine.counts(error)

    def failed(self, error: ServiceError, ticket: int) -> Verdict:
        now = self._clock.monotonic()
        verdict = self._machine.failed(error, ticket, now)
        if self._machine.counts(error):
            left = self._machine.timer_seconds_left(now)
            self._observer.notify(SendFailed(self._at(), self.entity, error.code, left))
        self._follow()
        return verdict

    def diverted(self, queue: str, messages: int) -> None:
        self._machine.diverted(messages)
        self._observer.notify(Diverted(self._at(), self.entity, queue, messages))

    def expect_sessions(self) -> None:
        """The entity's messages carry session ids: pings do too."""
        self._pinger.with_session = True

    def force(self) -> None:
        self._machine.force(self._clock.monotonic())
        self._follow()

    def fail_back(self) -> None:
        self._machine.fail_back(self._clock.monotonic())
        self._follow()

    def refusal(self) -> ServiceError:
        """What a send raises while the entity is invalid: the error the ping met, anew for each send."""
        cause = self._machine.cause
        if cause is None:
            return ServiceError(f"The entity {self.entity!r} takes no messages.", entity=self.entity)
        refusal = copy.copy(cause)
        refusal.__traceback__ = None
        refusal.__cause__ = cause
        return refusal

    async def stop(self) -> None:
        """End the timer and the pings for good."""
        self._stopped = True
        watch, self._watch = self._watch, None
        if watch is not None:
            await end(watch)
        await self._pinger.close()

    def _follow(self) -> None:
        """Announce what changed, and see that the watch runs exactly while the machine has something to wait for."""
        changes = self._machine.changes()
        if not changes:
            return
        for change in changes:
            self._announce(change)
        wanted = self._machine.state in _WATCHED and not self._stopped
        running = self._watch is not None and not self._watch.done()
        if wanted and not running:
            self._watch = asyncio.create_task(self._run_watch(), name=f"failover of {self.entity}")
        elif running and not wanted and self._watch is not None and self._watch is not asyncio.current_task():
            self._watch.cancel()
            self._watch = None

    async def _run_watch(self) -> None:
        while self._machine.state in _WATCHED:
            while (deadline := self._machine.next_deadline()) is not None:
                await self._clock.sleep(max(0.0, deadline - self._clock.monotonic()))
                self._machine.advance(self._clock.monotonic())
                self._follow()
                if (ticket := self._machine.start_ping(self._clock.monotonic())) is not None:
                    await self._ping(ticket)
            # The next failure may come while the link is being closed: look again before ending.
            await self._pinger.close()

    async def _ping(self, ticket: int) -> None:
        started = self._clock.monotonic()
        error: ServiceError | None = None
        try:
            await self._pinger.ping()
        except ServiceError as caught:
            error = caught
        except asyncio.CancelledError:
            self._machine.ping_abandoned(ticket)
            raise
        now = self._clock.monotonic()
        if error is None:
            self._machine.ping_succeeded(ticket, now)
        else:
            self._machine.ping_failed(error, ticket, now)
        code = None if error is None else error.code
        self._observer.notify(PingSent(self._at(), self.entity, error is None, now - started, code))
        self._follow()

    def _announce(self, change: Change) -> None:
        at = self.since = self._at()
        code = "" if change.cause is None else change.cause.code
        if change.after is State.FORCED:
            self._observer.notify(FailedOver(at, self.entity, "forced", forced=True))
        elif change.after is State.FAILED_OVER:
            self._observer.notify(FailedOver(at, self.entity, code))
        elif change.after is State.ENTITY_INVALID:
            self._observer.notify(EntityInvalid(at, self.entity, code))
        elif change.after is State.HEALTHY and change.before is not State.SUSPECT:
            self._observer.notify(FailedBack(at, self.entity, change.seconds_away, change.diverted_messages))

    def _at(self) -> float:
        return self._clock.now().timestamp()
