"""One entity of a pairing in use: runs its failover machine, keeps its timer and sends its pings. And all of them,
which the pairings of one process may share.

One background task per entity exists from the first counted failure until the entity is healthy again, so a healthy
pairing has none. The task only waits for the machine's next deadline; what happens then is the machine's decision.
"""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass

from sbpair.concurrency import end
from sbpair.core.errors import Category, CredentialError, ServiceError
from sbpair.core.events import (
    Diverted,
    EntityInvalid,
    Event,
    FailedBack,
    FailedOver,
    PingSent,
    SendFailed,
    SideFaulted,
    SideRestored,
)
from sbpair.core.failover.machine import ROUTES, Change, EntityFailover, FailureVerdict, Policy, Route, State
from sbpair.core.failover.sending import EntityRules
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import SendAvailabilityOptions, Side
from sbpair.ports import Messaging, Observer, RuntimeClock
from sbpair.runtime.failover.ping import Pinger
from sbpair.runtime.links import close_quietly

REMEMBERED_SECONDS = 300.0
"""How long the last that was known of an entity counts once nobody is there any more who sends to it."""

_WATCHED = frozenset({State.SUSPECT, State.FAILED_OVER, State.ENTITY_INVALID})
_REMEMBERED = frozenset({State.SUSPECT, State.FAILED_OVER})
"""What the next one to come has to know: that a timer runs, that the primary is away."""


class MonitoredEntity:
    """Where the sends of one entity go; shared by all its senders."""

    def __init__(
        self,
        entity: str,
        machine: EntityFailover,
        *,
        clock: RuntimeClock,
        observer: Observer | None,
        ping_interval_seconds: float,
        on_lull: Callable[[], None],
        on_seen: Callable[[], None],
    ) -> None:
        """`observer`: hears what concerns all users. `on_lull`: told when a ping, or the task that sends them, has
        ended. `on_seen`: told when the primary has accepted a message."""
        self.entity = entity
        self._machine = machine
        self._pinger = Pinger(self._pinged, entity)
        self._users: list[Member] = []
        self._unused_since: float | None = None
        self._clock = clock
        self._observer = observer
        self._ping_interval = ping_interval_seconds
        self._on_lull = on_lull
        self._on_seen = on_seen
        self._watch: asyncio.Task[None] | None = None
        self.pinging = False
        self.pinged: Messaging | None = None
        """What the last ping went over."""
        self._free_queues: list[str] = []
        self.refusal_of_primary: ServiceError | None = None
        """The primary does not accept the key, or the right is missing: what it said last."""
        self.rules = EntityRules()
        self.since = clock.now().timestamp()
        """UTC epoch seconds of the last change of state."""

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def quiet(self) -> bool:
        """Nobody waits to hear what becomes of a send; to be read from any thread."""
        return self._machine.state is State.HEALTHY and self.refusal_of_primary is None

    @property
    def resting(self) -> bool:
        """No task runs for this entity."""
        return self._watch is None or self._watch.done()

    @property
    def worth_remembering(self) -> bool:
        return self._machine.state in _REMEMBERED

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
        self._on_seen()
        self._accepted()
        self._follow()

    def worth_retrying(self, error: ServiceError) -> bool:
        """Whether the same send may succeed a little later: on the primary, or on the backlog after failover."""
        return error.retryable or self._machine.counts(error)

    def failed(self, error: ServiceError, ticket: int, observer: Observer) -> FailureVerdict:
        """`observer`: of the sender."""
        now = self._clock.monotonic()
        verdict = self._machine.failed(error, ticket, now)
        if self._machine.counts(error):
            left = self._machine.timer_seconds_left(now)
            observer.notify(SendFailed(self._at(), self.entity, error.code, left))
        self._note_refusal(error)
        self._follow()
        return verdict

    def diverted(self, queue: str, messages: int, observer: Observer) -> None:
        self._machine.diverted(messages)
        observer.notify(Diverted(self._at(), self.entity, queue, messages))

    def expect_sessions(self) -> None:
        """The entity's messages carry session ids: pings do too."""
        self._pinger.with_session = True

    def take_queue(self) -> str | None:
        """The backlog queue of a sender that was closed, for the next one: senders that follow one another, as where
        each message has its own, keep their order. None: draw one."""
        return self._free_queues.pop() if self._free_queues else None

    def give_queue_back(self, queue: str) -> None:
        """A sender that kept this queue was closed; from any thread."""
        if queue not in self._free_queues:
            self._free_queues.append(queue)

    def force(self) -> None:
        self._machine.force(self._clock.monotonic())
        self._follow()

    def fail_back(self) -> None:
        self._machine.fail_back(self._clock.monotonic())
        self._follow()

    def refusal(self) -> ServiceError:
        """What a send raises while the entity is invalid: the error the ping met, a new one for each send."""
        cause = self._machine.cause
        if cause is None:
            return ServiceError(f"The entity {self.entity!r} accepts no messages.", entity=self.entity)
        refusal = copy.copy(cause)
        refusal.__cause__ = cause
        return refusal

    def is_stale(self, now: float) -> bool:
        """Nobody has been there for so long that nothing of it counts any more. From any thread."""
        return self._unused_since is not None and now - self._unused_since > REMEMBERED_SECONDS

    def join(self, member: "Member") -> None:
        """A pairing sends to this entity from now on; the timer and the pings go on."""
        if member.has_left or member in self._users:
            return
        self._users.append(member)
        self._unused_since = None
        self._machine.advance(self._clock.monotonic())
        self._follow()

    async def leave(self, member: "Member", *, ping_may_end: bool) -> None:
        """It does so no more. The last one ends the pings, but for one under way if `ping_may_end`."""
        if member not in self._users:
            return
        self._users.remove(member)
        if self._users:
            return
        self._unused_since = self._clock.monotonic()
        watch = self._watch
        if watch is not None and not (self.pinging and ping_may_end):
            self._watch = None
            await end(watch)
        if self.resting:
            await self._pinger.close()

    @property
    def is_used(self) -> bool:
        return bool(self._users)

    def _pinged(self) -> Messaging:
        """What the next ping goes over: the connection of the sender that has sent to this entity longest."""
        if self._users:
            self.pinged = self._users[0].primary
        if self.pinged is None:
            raise RuntimeError("An entity is pinged only for somebody who sends to it.")
        return self.pinged

    def _follow(self) -> None:
        """Announce what changed, and see that the watch runs exactly while there is something to wait for."""
        for change in self._machine.changes():
            self._announce(change)
        self._see_to_watch()

    @property
    def _has_to_watch(self) -> bool:
        return bool(self._users) and (self._machine.state in _WATCHED or self.refusal_of_primary is not None)

    def _see_to_watch(self) -> None:
        if self._has_to_watch and self.resting:
            self._watch = asyncio.create_task(self._run_watch(), name=f"failover of {self.entity}")
        elif (
            self._users
            and not self._has_to_watch
            and self._watch is not None
            and self._watch is not asyncio.current_task()
        ):
            self._watch.cancel()
            self._watch = None

    async def _run_watch(self) -> None:
        try:
            while self._has_to_watch:
                await self._watch_machine()
                # The next failure may come while the link is being closed: look again before ending.
                await self._pinger.close()
        finally:
            if self._watch is asyncio.current_task():
                self._watch = None
            self._on_lull()

    async def _watch_machine(self) -> None:
        while self._has_to_watch:
            deadline = self._machine.next_deadline()
            if deadline is None and self.refusal_of_primary is None:
                return
            if deadline is None:
                await self._clock.sleep(self._ping_interval)
                if self.refusal_of_primary is not None and ROUTES[self._machine.state] is Route.PRIMARY:
                    await self._ping(None)
                continue
            await self._clock.sleep(max(0.0, deadline - self._clock.monotonic()))
            self._machine.advance(self._clock.monotonic())
            self._follow()
            if (ticket := self._machine.start_ping(self._clock.monotonic())) is not None:
                await self._ping(ticket)

    async def _ping(self, ticket: int | None) -> None:
        """`ticket`: the machine's. None for a probe of a primary that refused."""
        started = self._clock.monotonic()
        error: ServiceError | None = None
        self.pinging = True
        try:
            await self._pinger.ping()
        except ServiceError as caught:
            error = caught
        except asyncio.CancelledError:
            if ticket is not None:
                self._machine.ping_abandoned(ticket)
            raise
        finally:
            self.pinging = False
        now = self._clock.monotonic()
        if ticket is not None and error is None:
            self._machine.ping_succeeded(ticket, now)
        elif ticket is not None and error is not None:
            self._machine.ping_failed(error, ticket, now)
        code = None if error is None else error.code
        self._tell(PingSent(self._at(), self.entity, error is None, now - started, code))
        if error is None:
            self._on_seen()
            self._accepted()
        else:
            self._note_refusal(error)
        self._follow()
        self._on_lull()

    def _note_refusal(self, error: ServiceError) -> None:
        """The key is revoked, or the right taken away. Sends go on asking the primary, and raise what it says; the
        entity is pinged beside them, so that the end of it is noticed whether or not anybody sends."""
        if error.category is not Category.UNAUTHORIZED or isinstance(error, CredentialError):
            return
        first = self.refusal_of_primary is None
        self.refusal_of_primary = error
        if first:
            self._tell(SideFaulted(self._at(), Side.PRIMARY, error.code, error.message))

    def _accepted(self) -> None:
        if self.refusal_of_primary is not None:
            self.refusal_of_primary = None
            self._tell(SideRestored(self._at(), Side.PRIMARY))

    def _announce(self, change: Change) -> None:
        at = self.since = self._at()
        code = "" if change.cause is None else change.cause.code
        if change.after is State.FORCED:
            self._tell(FailedOver(at, self.entity, "forced", forced=True))
        elif change.after is State.FAILED_OVER:
            self._tell(FailedOver(at, self.entity, code))
        elif change.after is State.ENTITY_INVALID:
            self._tell(EntityInvalid(at, self.entity, code))
        elif change.after is State.HEALTHY and change.before is not State.SUSPECT:
            self._tell(FailedBack(at, self.entity, change.seconds_away, change.diverted_messages))

    def _tell(self, event: Event) -> None:
        if self._observer is not None:
            self._observer.notify(event)
        for user in tuple(self._users):
            user.observer.notify(event)

    def _at(self) -> float:
        return self._clock.now().timestamp()


@dataclass(eq=False, slots=True)
class Member:
    """One pairing: its connection to the primary, over which pings may go, and who hears of its entities."""

    primary: Messaging
    observer: Observer
    has_left: bool = False


class MonitoredEntities:
    """The entities of one pairing, or (`shared`) of the pairings of one process with the same namespaces and options.

    A shared entity outlives the pairings: the last one leaves behind what it knows of an outage, so that an application
    that opens a client for every message does not find out each time, and fails over at all when the interval is
    longer than a client lives. Nothing is pinged while nobody is there; the next sender goes on, or begins again
    when that was more than REMEMBERED_SECONDS ago.
    """

    def __init__(
        self,
        options: SendAvailabilityOptions,
        *,
        policy: Policy,
        clock: RuntimeClock,
        observer: Observer | None = None,
        shared: bool = False,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`observer`: hears once what each pairing's own hears as well. `on_rest`: told when no task runs any more."""
        self._options = options
        self._policy = policy
        self._clock = clock
        self._observer = observer
        self._shared = shared
        self._on_rest = on_rest
        self._entities: dict[str, MonitoredEntity] = {}
        self._max_message_bytes: dict[str, int] = {}
        """By path in lower case, of the entities that answered beforehand."""
        self._kept: list[Messaging] = []
        self._closing: asyncio.Task[None] | None = None
        self.seen = False
        """The primary has answered somebody; from any thread."""

    @property
    def resting(self) -> bool:
        """No task runs."""
        return not self._kept and self._closing is None and all(one.resting for one in self.all())

    @property
    def empty(self) -> bool:
        return not self._entities

    def known(self, entity: str) -> MonitoredEntity | None:
        """The entity of a path (in lower case) if somebody has sent to it; it may be stale. From any thread."""
        return self._entities.get(entity)

    def answered(self, entity: str, max_message_bytes: int) -> None:
        """The primary has attached a link to the entity, which takes messages up to this size."""
        self.seen = True
        self._max_message_bytes[entity.lower()] = max_message_bytes
        if (known := self.known(entity.lower())) is not None:
            known.rules.max_message_bytes = max_message_bytes

    def all(self) -> tuple[MonitoredEntity, ...]:
        """By path."""
        return tuple(one for _, one in sorted(self._entities.items()))

    def refused(self) -> bool:
        """The primary refuses the key, or the right, for an entity."""
        return any(one.refusal_of_primary is not None for one in self.all())

    def of(self, entity: str, member: Member) -> MonitoredEntity:
        """An entity that the member sends to from now on.

        Raises:
            InvalidNameError: not an entity path.
        """
        path = check_entity_path(entity)
        one = self._entities.get(path.lower())
        if one is None or one.is_stale(self._clock.monotonic()):
            machine = EntityFailover(
                failover_interval_seconds=self._options.failover_interval_seconds,
                ping_interval_seconds=self._options.ping_interval_seconds,
                policy=self._policy,
            )
            one = self._entities[path.lower()] = MonitoredEntity(
                path,
                machine,
                clock=self._clock,
                observer=self._observer,
                ping_interval_seconds=self._options.ping_interval_seconds,
                on_lull=self._lull,
                on_seen=self._note_seen,
            )
            one.rules.max_message_bytes = self._max_message_bytes.get(path.lower())
        one.join(member)
        return one

    async def leave(self, member: Member) -> bool:
        """A pairing is closed. True: a ping under way still needs its connection, which is closed here later."""
        member.has_left = True
        await asyncio.gather(*(one.leave(member, ping_may_end=self._shared) for one in self.all()))
        if self._shared:
            self._entities = {
                path: one
                for path, one in self._entities.items()
                if one.is_used or one.worth_remembering or not one.resting
            }
        if self._is_pinged(member.primary):
            self._kept.append(member.primary)
            return True
        return False

    def _is_pinged(self, primary: Messaging) -> bool:
        return any(one.pinging and one.pinged is primary for one in self.all())

    def _note_seen(self) -> None:
        self.seen = True

    def _lull(self) -> None:
        """A ping has ended, or no more are sent."""
        if self._closing is None and any(not self._is_pinged(one) for one in self._kept):
            self._closing = asyncio.create_task(self._close_kept(), name="connection of a ping that has ended")
        elif self.resting:
            self._on_rest()

    async def _close_kept(self) -> None:
        try:
            while free := [one for one in self._kept if not self._is_pinged(one)]:
                await close_quietly(free[0])
                self._kept.remove(free[0])
        finally:
            self._closing = None
            if self.resting:
                self._on_rest()
