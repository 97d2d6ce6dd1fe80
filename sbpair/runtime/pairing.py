"""A pair of namespaces in use: opening, the entities' gates, forced failover, close and fault.

pairing = await PairedNamespaces.open(pair, primary=..., secondary=..., secondary_admin=..., clock=..., observer=...)
async with pairing:
    result = await pairing.sender("orders").send(payload)
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from sbpair.core.coupling import Condition, Coupling, Side
from sbpair.core.errors import InterruptedWorkError, PairingError, SbpairError
from sbpair.core.events import SideEnded
from sbpair.core.failover import DOCUMENTED, EntityFailover, Policy, State
from sbpair.core.holding import SessionHolds
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair
from sbpair.core.rotation import QueueStanding, Rotation
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Observer
from sbpair.runtime.backlog import Backlog
from sbpair.runtime.backlog_queues import ensure_backlog_queues
from sbpair.runtime.flights import Flights
from sbpair.runtime.gate import EntityGate
from sbpair.runtime.holding import BrowsedPosition, SessionKeeper, SyphonedPosition
from sbpair.runtime.links import Links, close_quietly
from sbpair.runtime.ping import Pinger
from sbpair.runtime.pump import SyphonFactory, SyphonRunner
from sbpair.runtime.sender import FailoverSender
from sbpair.runtime.syphon import DrainReport, DrainRequest
from sbpair.runtime.syphon import syphon as syphon_home
from sbpair.tasks import end

CLOSE_WAIT_SECONDS = 10.0


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


class PairedNamespaces:
    """An open pairing. Make it with `open`; it is ready when that returns (seed 001).

    It takes over both `Messaging`s: closing or faulting a side closes the one that belongs to it.
    """

    def __init__(
        self,
        pair: Pair,
        queues: tuple[str, ...],
        *,
        primary: Messaging,
        secondary: Messaging,
        clock: Clock,
        observer: Observer,
        policy: Policy,
        syphon: SyphonFactory | None,
        hold_sessions: bool,
        position: SyphonedPosition | None,
        draw: Callable[[], float],
    ) -> None:
        self._pair = pair
        self._messaging = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self._clock = clock
        self._observer = observer
        self._policy = policy
        self._holds = SessionHolds()
        browsed = position or BrowsedPosition(secondary)
        self._keeper = SessionKeeper(self._holds, browsed, clock=clock) if hold_sessions else None
        self._backlog = Backlog(
            secondary, Rotation(queues), clock=clock, observer=observer, draw=draw, keeper=self._keeper
        )
        self._primary_links = Links(primary)
        self._flights = Flights()
        self._gates: dict[str, EntityGate] = {}
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
        *,
        primary: Messaging,
        secondary: Messaging,
        secondary_admin: NamespaceAdmin,
        clock: Clock,
        observer: Observer,
        policy: Policy = DOCUMENTED,
        syphon: SyphonFactory | None = None,
        hold_sessions: bool = False,
        position: SyphonedPosition | None = None,
        draw: Callable[[], float] = random.random,
    ) -> Self:
        """Verify or create the backlog queues, then be ready.

        Args:
            syphon: makes the coroutine that brings the backlog home, given the event that stops it, in place of the
                usual one. It runs in this process when the pair's options enable the syphon.
            hold_sessions: keep order within a session across failover and failback: a session with diverted messages
                stays with its backlog queue until these have gone home. Costs a look into every message and, while
                sessions are held, a browse of their queues every few seconds.
            position: tells which sessions still wait in a queue; by default the queue is browsed.
            draw: random numbers in [0, 1) for the choice of the backlog queue.

        Raises:
            PairingError: primary and secondary are the same; either is in another pairing in a way that excludes this
                one; no backlog queue is usable.
            AccessDeniedError: the credential is wrong, or lacks the Manage right on the secondary.
            ServiceError: the secondary cannot be reached.
        """
        _register(primary, secondary)
        try:
            queues = await ensure_backlog_queues(pair, admin=secondary_admin, clock=clock, observer=observer)
        except BaseException:
            _unregister(primary)
            raise
        usual = partial(_usual_syphon, queues, primary, secondary, clock, observer)
        return cls(
            pair,
            queues,
            primary=primary,
            secondary=secondary,
            clock=clock,
            observer=observer,
            policy=policy,
            syphon=(syphon or usual) if pair.options.enable_syphon else None,
            hold_sessions=hold_sessions,
            position=position,
            draw=draw,
        )

    @property
    def backlog_queue_count(self) -> int:
        """Backlog queues that were found or created; less than asked for if some could not be."""
        return len(self._backlog.queues)

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        return self._backlog.queues

    def sender(self, entity: str, *, partitioned: bool = False) -> FailoverSender:
        """A sender for a queue or topic on the primary; all senders of an entity share link and state.

        Args:
            partitioned: the entity is partitioned: keys are checked before sending, time-outs are at least 60 s.

        Raises:
            InvalidNameError: not an entity path.
        """
        return FailoverSender(
            self._gate(entity),
            self._primary_links,
            self._backlog,
            self._flights,
            clock=self._clock,
            partitioned=partitioned,
            hold_sessions=self._keeper is not None,
        )

    def force_failover(self, entity: str) -> None:
        """Divert the entity's messages, healthy or not, until `fail_back`. It is not pinged meanwhile."""
        self._check_open()
        self._gate(entity).force()

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again, whatever the pings say."""
        self._check_open()
        self._gate(entity).fail_back()

    def state(self) -> PairingState:
        return PairingState(
            entities=tuple(_entity_state(gate) for _, gate in sorted(self._gates.items())),
            backlog=self._backlog.standings(),
            primary=self._coupling.condition(Side.PRIMARY),
            secondary=self._coupling.condition(Side.SECONDARY),
            sends_under_way=len(self._flights),
            held_sessions=len(self._holds),
        )

    async def close(self, side: Side | None = None, *, wait_seconds: float = CLOSE_WAIT_SECONDS) -> None:
        """Close both sides, or one; a second call waits for the first.

        Sends under way get `wait_seconds`, then they are interrupted and raise. With a syphon in this process, a side
        left open for 5 seconds after its partner was closed is faulted (seed 000). When close returns, nothing more is
        sent.
        """
        why = "the pairing is closed."
        if side is not Side.SECONDARY:
            self._flights.refuse(why)
            await self._flights.land(wait_seconds)
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

    def _gate(self, entity: str) -> EntityGate:
        path = check_entity_path(entity)
        if (gate := self._gates.get(path.lower())) is None:
            options = self._pair.options
            machine = EntityFailover(
                failover_interval_seconds=options.failover_interval_seconds,
                ping_interval_seconds=options.ping_interval_seconds,
                policy=self._policy,
            )
            pinger = Pinger(self._messaging[Side.PRIMARY], path)
            gate = EntityGate(path, machine, pinger, clock=self._clock, observer=self._observer)
            self._gates[path.lower()] = gate
        return gate

    def _check_open(self) -> None:
        if self._coupling.condition(Side.PRIMARY) is not Condition.OPEN:
            raise InterruptedWorkError("The pairing is closed.")

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
        self._flights.refuse(why)
        await self._flights.interrupt()
        await asyncio.gather(*(gate.stop() for gate in self._gates.values()))
        await self._primary_links.close()
        _unregister(self._messaging[Side.PRIMARY])

    async def _end_secondary(self, why: str) -> None:
        self._backlog.refuse(why)
        if self._syphon is not None:
            await self._syphon.stop()
        if self._keeper is not None:
            await self._keeper.stop()
        await self._backlog.links.close()

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
    queues: tuple[str, ...],
    primary: Messaging,
    secondary: Messaging,
    clock: Clock,
    observer: Observer,
    stop: asyncio.Event,
) -> Coroutine[Any, Any, DrainReport]:
    return syphon_home(
        DrainRequest(queues=queues),
        secondary=secondary,
        primary=primary,
        admin=None,
        clock=clock,
        observer=observer,
        ledger=None,
        stop=stop,
    )


def _entity_state(gate: EntityGate) -> EntityState:
    return EntityState(
        entity=gate.entity,
        state=gate.state,
        since=gate.since,
        cause=None if gate.cause is None else gate.cause.code,
        timer_seconds_left=gate.timer_seconds_left,
        diverted_messages=gate.diverted_messages,
    )


_paired: dict[int, tuple[Messaging, Messaging]] = {}
"""The open pairings of this process: primary and secondary by the identity of the primary."""


def _register(primary: Messaging, secondary: Messaging) -> None:
    """Enter a pairing, unless the old rules exclude it: each `Messaging` is what was one factory."""
    if primary is secondary or primary.host.lower() == secondary.host.lower():
        raise PairingError(f"Primary and secondary are the same namespace ({primary.host}).")
    if id(primary) in _paired:
        raise PairingError(f"{primary.host} is already paired.", hint="Close the other pairing, or share it.")
    if id(secondary) in _paired:
        raise PairingError(f"The secondary {secondary.host} is itself paired.")
    if any(primary is other for _, other in _paired.values()):
        raise PairingError(f"{primary.host} is the secondary of another pairing, it cannot be paired itself.")
    _paired[id(primary)] = (primary, secondary)


def _unregister(primary: Messaging) -> None:
    _paired.pop(id(primary), None)
