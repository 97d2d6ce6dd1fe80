"""A pair of namespaces in use: opening, the entities' failover, forced failover, close and fault.

pairing = await PairedNamespaces.open(pair, PairingContext(primary=..., secondary=..., clock=..., observer=...))
async with pairing:
    result = await pairing.sender("orders").send(payload)
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from sbpair.concurrency import abandon_after, end
from sbpair.core.errors import (
    AccessDeniedError,
    ArgumentRefusedError,
    EntityExistsError,
    InterruptedWorkError,
    PairingError,
    SbpairError,
    ServiceError,
    UsageError,
)
from sbpair.core.events import NotReady, PairingNoticed, Ready, SideEnded, SideFaulted, SideRestored, StepDone
from sbpair.core.failover.machine import Policy, State
from sbpair.core.failover.sending import QueueStanding, Rotation, SessionHolds
from sbpair.core.inspection.diagnosis import Verification
from sbpair.core.outcome import Result
from sbpair.core.pairing import Condition, Coupling, Pair, Side, backlog_settings
from sbpair.core.retry import SDK_RETRIES
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.state import Key
from sbpair.ports import Messaging, NamespaceAdmin, Observer, RuntimeClock, Sides
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.failover.backlog import BacklogQueues, SessionKeeper
from sbpair.runtime.failover.entity import Member, MonitoredEntities, MonitoredEntity
from sbpair.runtime.failover.sender import FailoverSender, InFlightSends
from sbpair.runtime.inspection.application import verify
from sbpair.runtime.links import Links, close_quietly
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest
from sbpair.runtime.transfer.syphon import SyphonRun, serve, syphon_until
from sbpair.service import QueueSettings

# Makes the backlog queues of a pairing when it opens ("Paired Namespaces: Implementation Details and Cost"): list,
# create what is missing, three tries each.

TRIES = 3
PAUSE_SECONDS = 30.0
"""Between two tries; no longer than a call may take."""
CALL_SECONDS = 120.0

T = TypeVar("T")


async def ensure_backlog_queues(
    pair: Pair, *, admin: NamespaceAdmin, clock: RuntimeClock, observer: Observer, pause_seconds: float = PAUSE_SECONDS
) -> tuple[str, ...]:
    """Paths of the usable backlog queues, index 0 first.

    A queue that exists is used as it is, whatever its settings. A queue that cannot be made is left out. Queues beyond
    the wanted ones are neither used nor deleted.

    Raises:
        AccessDeniedError: the credential is wrong or lacks the Manage right.
        PairingError: no queue is usable.
        ServiceError: the secondary cannot be asked.
    """
    wanted = pair.backlog_paths()
    retry = _Retry(clock, min(pause_seconds, pair.secondary.call_seconds))
    existing = await retry.result(lambda: _list(pair, admin))
    missing = [path for path in wanted if path not in existing]
    if not missing:
        return wanted
    facts = await retry.result(admin.namespace)
    settings = backlog_settings(facts.tier)
    errors = await asyncio.gather(*(_create(path, settings, admin, retry, observer) for path in missing))
    failed = {path: error for path, error in zip(missing, errors, strict=True) if error is not None}
    usable = tuple(path for path in wanted if path not in failed)
    if not usable:
        raise _none_usable(pair, next(iter(failed.values())))
    return usable


def _none_usable(pair: Pair, error: ServiceError) -> PairingError | ServiceError:
    if isinstance(error, AccessDeniedError):
        return error
    failure = PairingError(
        f"None of the {pair.options.backlog_queue_count} backlog queues on {pair.secondary.host} could be created: "
        f"{error.message}",
        hint=error.hint or "See what is missing with: sbpair provision --dry-run",
    )
    failure.__cause__ = error
    return failure


async def _list(pair: Pair, admin: NamespaceAdmin) -> frozenset[str]:
    prefix = pair.backlog_paths()[0].rpartition("/")[0] + "/"
    return frozenset([queue.path.lower() async for queue in admin.list_queues(prefix)])


async def _create(
    path: str, settings: QueueSettings, admin: NamespaceAdmin, retry: "_Retry", observer: Observer
) -> ServiceError | None:
    """Create one queue; the error if it cannot be made."""
    clock = retry.clock
    try:
        await retry.result(lambda: admin.create_queue(path, settings))
    except EntityExistsError:
        outcome, detail = Result.UNCHANGED, "was created by another process meanwhile"
    except ServiceError as error:
        observer.notify(StepDone(clock.now().timestamp(), path, Result.FAILED, error.message))
        return error
    else:
        outcome, detail = Result.DONE, "created"
    observer.notify(StepDone(clock.now().timestamp(), path, outcome, detail))
    return None


@dataclass(frozen=True, slots=True)
class _Retry:
    """Tries up to three times unless trying again cannot help."""

    clock: RuntimeClock
    pause_seconds: float

    async def result(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for _ in range(TRIES - 1):
            try:
                return await _bounded(call())
            except (AccessDeniedError, ArgumentRefusedError, EntityExistsError):
                raise
            except ServiceError:
                await self.clock.sleep(self.pause_seconds)
        return await _bounded(call())


async def _bounded(call: Coroutine[Any, Any, T]) -> T:
    return await abandon_after(CALL_SECONDS, call, what="Preparing the backlog queues")


# Keeps a syphon running beside a pairing, and stops it within a bound.

SyphonFactory = Callable[[asyncio.Event], Coroutine[Any, Any, object]]
"""Makes a coroutine that empties the backlog until the event is set, through errors that pass."""

STOP_SECONDS = 10.0


class SyphonRunner:
    """One syphon task."""

    def __init__(self, factory: SyphonFactory, *, clock: RuntimeClock, observer: Observer) -> None:
        self._factory = factory
        self._clock = clock
        self._observer = observer
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="syphon")

    async def stop(self) -> None:
        """Ask it to stop; cancel it when it takes too long."""
        self._stop.set()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=STOP_SECONDS)
        if late:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_SECONDS)

    async def _run(self) -> None:
        try:
            await self._factory(self._stop)
        except SbpairError as error:
            # Sends go on without it; the backlog is left to another syphon, or a drain.
            said = f"The syphon of this process has ended: {error.message}"
            self._observer.notify(PairingNoticed(self._clock.now().timestamp(), "syphon-ended", said))


CLOSE_WAIT_SECONDS = 10.0
MOST_VERIFIED = 20
"""Entities of the primary to which a verification attaches links: each takes a connection for a moment."""


@dataclass(frozen=True, slots=True)
class EntityState:
    """One entity as the pairing sees it. `since` is UTC epoch seconds."""

    entity: str
    state: State
    since: float
    cause: str | None
    """Code of the error behind the state."""
    timer_seconds_left: float | None
    diverted_messages: int


@dataclass(frozen=True, slots=True)
class PairingState:
    """A pairing at one moment; entities that were never sent to do not appear."""

    entities: tuple[EntityState, ...]
    backlog: tuple[QueueStanding, ...]
    primary: Condition
    secondary: Condition
    sends_under_way: int
    held_sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingContext:
    """What a pairing works with: both namespaces, and whatever differs from what the pair's options say.

    Args:
        primary, secondary: the pairing takes them over: closing or faulting a side closes its `Messaging`.
        policy: which errors start a failover; by default the pair's.
        entities: what several pairings on this event loop share: the states of their entities, the pings, and the
            policy. By default the pairing has its own.
        shared_observer: hears in place of `observer` what `entities` announce to all who share them.
        retries: how often a send to the primary is tried again before the policy hears of its failure, at the
            distances of the SDK. 0 where something below retries already.
        syphon: makes the coroutine that empties the backlog, given the event that stops it, in place of the usual
            coroutine. It runs in this process when the pair's options enable the syphon.
        hold_sessions: keep order within a session across failover and failback; by default the pair's choice. A
            session with diverted messages stays with its backlog queue until these are back on the primary. Costs a
            look into every message and, while sessions are held, a browse of their queues every few seconds.
        draw: random numbers in [0, 1) for the choice of the backlog queue.
    """

    primary: Messaging
    secondary: Messaging
    clock: RuntimeClock
    observer: Observer
    policy: Policy | None = None
    entities: MonitoredEntities | None = None
    shared_observer: Observer | None = None
    syphon: SyphonFactory | None = None
    hold_sessions: bool | None = None
    retries: int = 0
    draw: Callable[[], float] = random.random

    @classmethod
    def over(cls, sides: Sides, observer: Observer | None, **more: Any) -> Self:
        """Over open sides, with as many retries as azure-servicebus has; `more` as the fields are named."""
        return cls(
            primary=sides.primary,
            secondary=sides.secondary,
            clock=LoopClock(),
            observer=observer or Quiet(),
            retries=SDK_RETRIES,
            **more,
        )


class PairedNamespaces:
    """An open pairing. Make it with `open`; it is ready when that returns ("Asynchronous Messaging Patterns and High
    Availability").

    It takes over both `Messaging`s: closing or faulting a side closes its own.
    """

    def __init__(
        self,
        pair: Pair,
        queues: tuple[str, ...],
        context: PairingContext,
        entities: MonitoredEntities,
        syphon: SyphonFactory | None,
    ) -> None:
        self._pair = pair
        self._messaging = {Side.PRIMARY: context.primary, Side.SECONDARY: context.secondary}
        self._clock = clock = context.clock
        self._observer = observer = context.observer
        self._holds = SessionHolds()
        holds = pair.options.hold_sessions if context.hold_sessions is None else context.hold_sessions
        self._keeper = SessionKeeper(self._holds, context.secondary, clock=clock) if holds else None
        self._backlog = BacklogQueues(
            context.secondary, Rotation(queues), clock=clock, observer=observer, draw=context.draw, keeper=self._keeper
        )
        self._backlog.on_refused = self._secondary_refused
        self._backlog.on_accepted = self._secondary_accepted
        self._secondary_fault: ServiceError | None = None
        self._probe: asyncio.Task[None] | None = None
        self._verifying: asyncio.Task[None] | None = None
        self._verification: Verification | None = None
        self._retries = context.retries
        self._primary_links = Links(context.primary)
        self._in_flight = InFlightSends()
        self._entities = entities
        self._member = Member(context.primary, observer if context.shared_observer is None else context.shared_observer)
        self._syphon = None if syphon is None else SyphonRunner(syphon, clock=clock, observer=observer)
        self._coupling = Coupling(with_syphon=syphon is not None)
        self._partner_watch: asyncio.Task[None] | None = None
        self._ending = {side: asyncio.Lock() for side in Side}
        if self._syphon is not None:
            self._syphon.start()

    @classmethod
    async def open(
        cls,
        pair: Pair,
        context: PairingContext,
        *,
        secondary_admin: NamespaceAdmin | None = None,
        create_missing: bool = False,
    ) -> Self:
        """Be ready to send. Nothing is asked of the secondary: its backlog queues are found by sending to them, when
        that is needed, with no other right than Send.

        The documents list and create the queues here ("Asynchronous Messaging Patterns and High Availability"), so
        that an application cannot start while the secondary is away; that is `sbpair provision`'s business now, or
        `create_missing`'s.

        Args:
            create_missing: list the backlog queues and create those that are missing first, with `secondary_admin` and
                the Manage right. Queues that cannot be created are not used.

        Raises:
            PairingError: primary and secondary are the same; either is in another pairing in a way that excludes this
                one; with `create_missing`, no backlog queue is usable.
            UsageError: `create_missing` without `secondary_admin`.
            AccessDeniedError: with `create_missing`: the credential is wrong, or lacks the Manage right.
            ServiceError: with `create_missing`: the secondary cannot be reached.
        """
        if create_missing and secondary_admin is None:
            raise UsageError("Backlog queues are created through the administration of the secondary: name it.")
        clock, observer = context.clock, context.observer
        _register(context.primary, context.secondary, observer, clock)
        queues = pair.backlog_paths()
        if secondary_admin is not None and create_missing:
            try:
                queues = await ensure_backlog_queues(pair, admin=secondary_admin, clock=clock, observer=observer)
            except BaseException:
                _unregister(context.primary)
                raise
        policy = context.policy or pair.options.failover_policy
        entities = context.entities or MonitoredEntities(pair.options, policy=policy, clock=clock)
        syphon = context.syphon or partial(_usual_syphon, queues, context)
        return cls(pair, queues, context, entities, syphon if pair.options.enable_syphon else None)

    @property
    def backlog_queue_count(self) -> int:
        """Backlog queues that messages may be diverted to, as far as is known: those of the pair, without those that
        were found to be missing or to refuse. After `verify` it is the number of usable queues."""
        return len(self._backlog.usable)

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        return self._backlog.queues

    def sender(self, entity: str, *, partitioned: bool | None = None) -> FailoverSender:
        """A sender for a queue or topic on the primary; all senders of an entity share link and state.

        Args:
            partitioned: the entity is partitioned: keys are checked before sending, time-outs are at least 60 s. By
                default what the primary refuses tells.

        Raises:
            InvalidNameError: not an entity path.
        """
        return FailoverSender(
            self._monitored(entity),
            self._primary_links,
            self._backlog,
            self._in_flight,
            clock=self._clock,
            observer=self._observer,
            partitioned=partitioned,
            hold_sessions=self._keeper is not None,
            retries=self._retries,
        )

    async def verify(self, entities: Sequence[str] | None = None) -> Verification:
        """Try beforehand what an outage will need: links to the backlog queues and the primary's entities. No message
        is written; only Send is needed. A queue that is missing or refuses leaves the rotation.

        Args:
            entities: by default those of the pair, and those that were sent to; MOST_VERIFIED of them at most.
        """
        known = (*self._pair.entities, *(one.entity for one in self._entities.all())) if entities is None else entities
        verification = await verify(
            self._pair,
            primary=self._messaging[Side.PRIMARY],
            secondary=self._messaging[Side.SECONDARY],
            entities=tuple({path.lower(): path for path in known}.values())[:MOST_VERIFIED],
            clock=self._clock,
            on_queue=self._backlog.tried,
            on_entity=self._entities.answered,
        )
        before, self._verification = self._verification, verification
        if verification.problems and (before is None or verification.problems != before.problems):
            self._observer.notify(NotReady(verification.at, verification.problems))
        elif before is not None and before.problems and not verification.problems:
            self._observer.notify(Ready(verification.at))
        return verification

    @property
    def verification(self) -> Verification | None:
        """The last one; None: there was none."""
        return self._verification

    def keep_verifying(self, entities: Callable[[], Sequence[str] | None] = lambda: None) -> None:
        """Verify now and at every `verify_interval` of the pair's options, in the background, until it is closed; at
        every `ping_interval` while no message could be diverted.
        `entities`: gives what `verify` takes, each time."""
        if self._verifying is None:
            self._verifying = asyncio.create_task(self._verify_again_and_again(entities), name="verification")

    async def _verify_again_and_again(self, entities: Callable[[], Sequence[str] | None]) -> None:
        options = self._pair.options
        while True:
            found = await self.verify(entities())
            if not (pause := options.verify_interval_seconds):
                return
            await self._clock.sleep(pause if found.ready else min(pause, options.ping_interval_seconds))

    def force_failover(self, entity: str) -> None:
        """Divert the entity's messages, healthy or not, until `fail_back`. It is not pinged meanwhile."""
        self._check_open()
        self._monitored(entity).force()

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again, whatever the pings say."""
        self._check_open()
        self._monitored(entity).fail_back()

    @property
    def holds_sessions(self) -> bool:
        """A session with diverted messages is held; to be read from any thread."""
        return len(self._holds) > 0

    def state(self) -> PairingState:
        return PairingState(
            entities=tuple(map(_entity_state, self._entities.all())),
            backlog=self._backlog.standings(),
            primary=self._condition(Side.PRIMARY, refused=self._entities.refused(), seen=self._entities.seen),
            secondary=self._condition(
                Side.SECONDARY, refused=self._secondary_fault is not None, seen=self._backlog.seen
            ),
            sends_under_way=len(self._in_flight),
            held_sessions=len(self._holds),
        )

    async def close(self, side: Side | None = None, *, wait_seconds: float = CLOSE_WAIT_SECONDS) -> None:
        """Close both sides, or one; a second call waits for the first.

        Sends under way get `wait_seconds`, then they are interrupted and raise. With a syphon in this process, a side
        left open for 5 seconds after its partner was closed is faulted ("Paired Namespaces: Implementation Details
        and Cost"). When close returns, nothing more is sent.
        """
        why = "the pairing is closed."
        if side is not Side.SECONDARY:
            self._in_flight.refuse(why)
            await self._in_flight.drain(wait_seconds)
        sides = tuple(Side) if side is None else (side,)
        await asyncio.gather(*(self._end(one, Condition.CLOSED, why) for one in sides))
        if side is None:
            await self._stop_partner_watch()

    async def fault(self, error: SbpairError, side: Side = Side.PRIMARY) -> None:
        """A side is beyond use: what is under way there is interrupted at once; see `close` for its partner."""
        await self._end(side, Condition.FAULTED, f"the {side} side is faulted: {error.message}", error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._coupling.condition(Side.PRIMARY) is not Condition.OPEN:
            raise InterruptedWorkError("The pairing is closed.")

    def _monitored(self, entity: str) -> MonitoredEntity:
        return self._entities.of(entity, self._member)

    def _condition(self, side: Side, *, refused: bool, seen: bool) -> Condition:
        condition = self._coupling.condition(side)
        if condition is not Condition.OPEN:
            return condition
        return Condition.FAULTED if refused else Condition.OPEN if seen else Condition.UNKNOWN

    def _secondary_refused(self, error: ServiceError) -> None:
        """The key is revoked, or the queues are gone. The side counts as faulted from now on, and is probed.

        Unlike a side that was faulted by hand it takes no partner with it: it may be back with the next ping, and until
        then the primary serves on.
        """
        if self._secondary_fault is None:
            self._observer.notify(SideFaulted(self._at(), Side.SECONDARY, error.code, error.message))
        self._secondary_fault = error
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._probe_secondary(), name="probe of the secondary")

    def _secondary_accepted(self) -> None:
        self._secondary_fault = None
        self._observer.notify(SideRestored(self._at(), Side.SECONDARY))

    async def _probe_secondary(self) -> None:
        while self._backlog.refused:
            await self._clock.sleep(self._pair.options.ping_interval_seconds)
            await self._backlog.probe()

    def _at(self) -> float:
        return self._clock.now().timestamp()

    async def _end(self, side: Side, condition: Condition, why: str, error: SbpairError | None = None) -> None:
        async with self._ending[side]:
            if self._coupling.condition(side) is not Condition.OPEN:
                return
            self._coupling.ended(side, condition, self._clock.monotonic())
            code = None if error is None else error.code
            self._observer.notify(SideEnded(self._clock.now().timestamp(), side, condition, code))
            self._watch_partner()
            if side is Side.PRIMARY:
                await self._end_primary(why)
            else:
                await self._end_secondary(why)
                await close_quietly(self._messaging[side])

    async def _end_primary(self, why: str) -> None:
        self._in_flight.refuse(why)
        await self._in_flight.interrupt()
        primary = self._messaging[Side.PRIMARY]
        _unregister(primary)
        still_pinged = await self._entities.leave(self._member)
        await self._primary_links.close()
        if not still_pinged:
            await close_quietly(primary)

    async def _end_secondary(self, why: str) -> None:
        self._backlog.refuse(why)
        if self._syphon is not None:
            await self._syphon.stop()
        if self._keeper is not None:
            await self._keeper.stop()
        if self._verifying is not None:
            await end(self._verifying)
        if self._probe is not None:
            await end(self._probe)
        await self._backlog.close()

    def _watch_partner(self) -> None:
        if self._partner_watch is None and self._coupling.next_deadline() is not None:
            self._partner_watch = asyncio.create_task(self._fault_partner(), name="coupling")

    async def _fault_partner(self) -> None:
        while (deadline := self._coupling.next_deadline()) is not None:
            await self._clock.sleep(max(0.0, deadline - self._clock.monotonic()))
            if (side := self._coupling.due(self._clock.monotonic())) is not None:
                await self.fault(PairingError(f"the {side.partner} side ended 5 seconds ago."), side)

    async def _stop_partner_watch(self) -> None:
        watch, self._partner_watch = self._partner_watch, None
        if watch is not None and watch is not asyncio.current_task():
            await end(watch)


def _usual_syphon(
    queues: tuple[str, ...], context: PairingContext, stop: asyncio.Event
) -> Coroutine[Any, Any, DrainReport]:
    async def run(uncompleted: frozenset[Key]) -> SyphonRun:
        return await syphon_until(
            DrainJob(
                TransferRequest(queues=queues),
                secondary=context.secondary,
                primary=context.primary,
                clock=context.clock,
                observer=context.observer,
                stop=stop,
            ),
            uncompleted=uncompleted,
        )

    return serve(run, stop=stop, clock=context.clock, observer=context.observer)


def _entity_state(failover: MonitoredEntity) -> EntityState:
    return EntityState(
        entity=failover.entity,
        state=failover.state,
        since=failover.since,
        cause=None if failover.cause is None else failover.cause.code,
        timer_seconds_left=failover.timer_seconds_left,
        diverted_messages=failover.diverted_messages,
    )


_paired: dict[int, tuple[Messaging, Messaging]] = {}
"""The open pairings of this process: primary and secondary by the identity of the primary."""


def _register(primary: Messaging, secondary: Messaging, observer: Observer, clock: RuntimeClock) -> None:
    """Enter a pairing, unless the old rules exclude it: each `Messaging` is what was one factory."""
    if primary is secondary or primary.host.lower() == secondary.host.lower():
        raise PairingError(f"Primary and secondary are the same namespace ({primary.host}).")
    if id(primary) in _paired:
        raise PairingError(f"{primary.host} is already paired.", hint="Close the other pairing, or share it.")
    if id(secondary) in _paired:
        raise PairingError(f"The secondary {secondary.host} is itself paired.")
    if any(primary is other for _, other in _paired.values()):
        raise PairingError(f"{primary.host} is the secondary of another pairing, it cannot be paired itself.")
    for other, _ in _paired.values():
        if other.host.lower() == secondary.host.lower():
            observer.notify(
                PairingNoticed(
                    clock.now().timestamp(),
                    "secondary-is-paired",
                    f"The secondary {secondary.host} is the primary of another pairing of this process: when it is "
                    "away, both pairings lose a side.",
                )
            )
            break
    _paired[id(primary)] = (primary, secondary)


def _unregister(primary: Messaging) -> None:
    _paired.pop(id(primary), None)
