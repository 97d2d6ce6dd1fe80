"""The queues of a namespace followed by another one: what comes is moved on, until the first is closed to senders."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sbpair.concurrency import abandon_after, cancel_on, end, patiently, side_by_side
from sbpair.core.entities import EntityFacts, EntityKind, QueueFacts
from sbpair.core.errors import ServiceError
from sbpair.core.events import StepDone
from sbpair.core.inspection.contents import Action, EntityStep
from sbpair.core.inspection.evacuated import EvacuationPlan, Lag, is_closed
from sbpair.core.message import MessageState
from sbpair.core.names import ByName, Names, by_path
from sbpair.core.transfer.resend import follower
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.operations.log import OperationsLog
from sbpair.ports import Ends, Observer, Topology
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.drain import ToQueue, TransferRequest
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.move_sessions import SessionMove
from sbpair.runtime.transfer.moving import MoveJob
from sbpair.service import EntityStatus

POLL_SECONDS = 1.0
"""How often it is looked for how far TO lags behind."""
LOOKED_AT_ONCE = 8
FIRST_MESSAGES = 50
"""As many are browsed to find the oldest that is neither deferred nor scheduled."""
AT_ONCE_SECONDS = 5.0
FOLLOW_IN_FLIGHT_MESSAGES = 1_000
T = TypeVar("T")


@dataclass(slots=True)
class Following:
    """One run.

    Args:
        plan: which queues go where.
        concurrency: batches of an entity that are sent at a time.
        patience_seconds: how long a namespace may fail to answer where entities are closed, opened or counted.
    """

    ends: Ends
    here: Topology
    there: Topology
    plan: EvacuationPlan
    concurrency: int
    patience_seconds: float
    observer: Observer
    stop: asyncio.Event
    clock: LoopClock
    ledger: Ledger | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What queues hold and get is moved on inside. Outages are waited for; what nothing mends ends it.

        Raises:
            SbpairError: the ledger cannot be written.
        """
        halt = asyncio.Event()
        self._tasks = [asyncio.create_task(self._follow(one, halt)) for one in self._followed(self.plan.seen.source)]
        try:
            yield
            halt.set()
            await asyncio.gather(*self._tasks)
        finally:
            halt.set()
            await end(*self._tasks)

    def _followed(self, entities: Iterable[EntityFacts]) -> list[EntityFacts]:
        """Queues whose messages are to go, whether or not there are any. Those of a subscription are held, and go last;
        so do dead letters, and what is deferred or scheduled, which somebody here may still ask for by its number."""
        steps = self._steps
        return [
            one
            for one in entities
            if one.kind is EntityKind.QUEUE and one.path in steps and not one.settings.forward_to
        ]

    @property
    def _steps(self) -> ByName[EntityStep]:
        return by_path(step for step in self.plan.steps if step.action is not Action.CONFLICT)

    async def _follow(self, queue: EntityFacts, halt: asyncio.Event) -> None:
        request = TransferRequest(
            (queue.path,),
            to=ToQueue(queue.path),
            leave_missing=True,
            leave_refused=True,
            concurrency=self.concurrency,
            in_flight_messages=FOLLOW_IN_FLIGHT_MESSAGES,
        )
        job = MoveJob(
            request,
            replace(self.ends, admin=None, target_admin=None, transactions=None, topology=None, target_topology=None),
            follower,
            seen=DestinationSeen(queue.path),
            facts={queue.path: QueueFacts(queue.path, queue.settings)},
            clock=self.clock,
            observer=self.observer,
            ledger=self.ledger,
            stop=halt,
        )
        if queue.settings.requires_session:
            await SessionMove(job).followed()
            return
        await job.followed(job.recorded, stop=halt)

    # How far TO lags behind.

    async def lags(self) -> tuple[Lag, ...]:
        """What waits in each queue and subscription here, and since when.

        Raises:
            ServiceError: a namespace does not say what is there.
        """
        service_time = (await self.here.namespace()).service_time
        now = self.clock.now().timestamp() if service_time is None else service_time
        here = await self.here.entities(rules=False)
        there = ByName((one.path, one.counts.active) for one in await self.there.entities(rules=False))
        followed = Names(one.path for one in self._followed(here))
        mine = [one for one in here if one.kind is not EntityKind.TOPIC and one.path in self._steps]

        async def lag(one: EntityFacts) -> Lag:
            age = await self._oldest_age(one.path, now) if one.counts.active else 0.0
            status, follows = one.settings.status, one.path in followed
            return Lag(one.path, one.counts.active, age, there.get(one.path), status, follows)

        return tuple(await side_by_side(lag, mine, at_once=LOOKED_AT_ONCE))

    async def lags_at_once(self) -> tuple[Lag, ...]:
        """`lags`, if they are told soon: a run that was interrupted does not wait."""
        try:
            return await abandon_after(AT_ONCE_SECONDS, self.lags(), what="Counting")
        except ServiceError:
            return ()

    async def _oldest_age(self, path: str, now: float) -> float | None:
        try:
            async with closing(self.ends.source.receiver(path)) as receiver:
                page = await receiver.peek(FIRST_MESSAGES)
        except ServiceError:
            return None
        times = (one.enqueued_at for one in page if one.state is MessageState.ACTIVE and one.enqueued_at is not None)
        return max(0.0, now - min(times, default=now))

    async def until_lag(self, seconds: float) -> None:
        """Wait until no followed message has waited longer, twice in a row."""
        good = 0
        while not self.stop.is_set() and good < 2:
            await self._pause()
            try:
                lags = await cancel_on(self.stop, self.lags())
            except ServiceError:
                lags = None
            ages = [one.age_seconds for one in lags or () if one.followed]
            near = lags is not None and all(age is not None and age <= seconds for age in ages)
            good = good + 1 if near or seconds == math.inf else 0

    async def until_quiet(self) -> None:
        """Wait until what is counted in the followed queues is nothing, or no longer becomes less."""
        before: int | None = None
        while before != 0 and not self.stop.is_set():
            await self._pause()
            number = sum(one.counts.active for one in self._followed(await self._told(self._entities)))
            if number == before:
                return
            before = number

    async def until_closed(self) -> None:
        """Wait until another process has closed all queues to senders, which asks for the cut-over."""
        closed = False
        while not (closed or self.stop.is_set()):
            await self._pause()
            with suppress(ServiceError):
                closed = is_closed(one.settings.status for one in self._followed(await self._entities()))

    async def _pause(self) -> None:
        """Raises what has broken a task that follows a queue."""
        await cancel_on(self.stop, self.clock.sleep(POLL_SECONDS))
        for task in self._tasks:
            if task.done():
                task.result()

    async def _entities(self) -> Sequence[EntityFacts]:
        return await self.here.entities(rules=False)

    async def _told(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await patiently(call, patience_seconds=self.patience_seconds)

    # Senders.

    async def set_senders(self, status: EntityStatus, log_path: Path | None) -> None:
        """Close the plan's queues and topics to senders, or open those that are closed; each is in the operations log.
        What forwards is closed before what it forwards to.

        Raises:
            ServiceError: the namespace refuses that, or does not answer.
        """
        before = EntityStatus.ACTIVE if status is EntityStatus.SEND_DISABLED else EntityStatus.SEND_DISABLED
        found = by_path(await self._told(self._entities))
        steps = [step for step in self.plan.steps if step.kind is not EntityKind.SUBSCRIPTION]
        steps.sort(key=lambda step: step.kind is EntityKind.TOPIC)
        with OperationsLog(log_path) as log:
            for step in reversed(steps):
                one = found.get(step.path)
                if one is None or one.settings.status is not before:
                    continue
                await self._told(lambda path=one.path: self.here.update(path, {"status": status}))  # type: ignore[misc]
                log.changed("evacuate", self.ends.source_access, "set-status", one.path, status.value)
                self.observer.notify(StepDone(self.clock.now().timestamp(), one.path, status.value))

    async def counted(self) -> dict[str, int]:
        """What the service counts in each entity of the plan, if anything."""
        found = await self._told(self._entities)
        return {one.path: one.counts.total for one in found if one.counts.total and one.path in self._steps}
