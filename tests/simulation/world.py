"""Two brokers, the processes that move messages between them, and everything that goes wrong."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from sbpair.amqp.types import Long
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.entities import Counts, QueueFacts, QueueSettings
from sbpair.core.errors import ConnectionLostError, SbpairError, SendIncompleteError, ServiceError
from sbpair.core.message import Disposition
from sbpair.core.names import backlog_queue_path
from sbpair.core.pairing import MAX_DELIVERY_COUNT, Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.report import DrainReport
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.connection import IDLE_TIMEOUT_SECONDS
from sbpair.ports import MessageReceiver, MessageSender, Messaging, NamespaceAdmin
from sbpair.runtime.clock import Quiet
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.transfer import reading
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.syphon import SyphonRun, serve, syphon_until
from tests.simulation.brokers import Broker, beyond_ascii
from tests.simulation.determinism import take_over, wall
from tests.simulation.disk import Disk
from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.moves import Moves
from tests.simulation.network import Network
from tests.simulation.plan import HOUR, Burst, Plan, Trouble
from tests.simulation.replicated import Replicated
from tests.simulation.trace import Trace
from tests.simulation.truth import Sent, Truth, Violation, whole_lines

PORTS = {"primary": 5671, "secondary": 5672, "other": 5673}
DESTINATIONS = ("orders", "invoices")
SESSIONS_ONLY = "invoices"
SECONDARY = "secondary"
MOVERS = {"primary": "mover", "other": "other-mover"}
"""How the processes are called that empty the backlog of a primary."""
LONGEST_DRAIN_SECONDS = 2 * HOUR
"""Without any trouble a drain ends by itself long before."""
LONGEST_PAUSE_SECONDS = 600.0
"""After any trouble a syphon is back at work long before: a poll, which may last for 15 minutes, must not keep it."""


class Clock:
    """The runtime's clock, with the error of its process."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def now(self) -> datetime:
        return datetime.fromtimestamp(wall(self._loop), UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class WatchedSender:
    """Tells the truth what is about to be sent. Of some batches a destination takes the first half only."""

    def __init__(
        self,
        inner: MessageSender,
        truth: Truth,
        ledger: str,
        wrong: Callable[[BaseException], None],
        takes_half: Callable[[], bool],
    ) -> None:
        self._inner, self._truth, self._ledger, self._wrong = inner, truth, ledger, wrong
        self._takes_half = takes_half

    @property
    def entity(self) -> str:
        return self._inner.entity

    async def max_message_bytes(self) -> int:
        return await self._inner.max_message_bytes()

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        half = len(payloads) // 2
        if half and self._takes_half():
            await self._send(payloads[:half], timeout_seconds)
            raise SendIncompleteError("The rest was refused.", accepted=tuple(range(half))) from ServiceError(
                "simulated"
            )
        await self._send(payloads, timeout_seconds)

    async def _send(self, payloads: Sequence[bytes], timeout_seconds: float) -> None:
        for payload in payloads:
            try:
                self._truth.about_to_send(self._ledger, str(describe(payload).message_id))
            except Violation as violation:
                self._wrong(violation)  # whoever called may catch it
                raise
        try:
            await self._inner.send(payloads, timeout_seconds=timeout_seconds)
        except ServiceError as error:
            if error.uncertain:
                self._truth.doubt("a send without an answer")
            raise

    async def schedule(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> list[int]:
        return await self._inner.schedule(payloads, timeout_seconds=timeout_seconds)

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_seconds: float) -> None:
        await self._inner.cancel_scheduled(sequence_numbers, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        await self._inner.close()


class WatchedMessaging:
    """A messaging whose senders are watched."""

    def __init__(
        self,
        inner: AzureMessaging,
        truth: Truth,
        ledger: str,
        wrong: Callable[[BaseException], None],
        takes_half: Callable[[], bool],
    ) -> None:
        self._inner, self._watched = inner, (truth, ledger, wrong, takes_half)

    @property
    def host(self) -> str:
        return self._inner.host

    def sender(self, entity: str) -> MessageSender:
        return WatchedSender(self._inner.sender(entity), *self._watched)

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> MessageReceiver:
        return self._inner.receiver(path, dead_letter=dead_letter, session_id=session_id)

    async def close(self) -> None:
        await self._inner.close()


class LosingSender:
    """Of some sends the answer is lost: the messages are stored, and whoever sent them is told that nobody knows. Of
    some batches the first half is taken, and the rest refused."""

    def __init__(
        self, inner: MessageSender, truth: Truth, loses: Callable[[], bool], takes_half: Callable[[], bool]
    ) -> None:
        self._inner, self._truth, self._loses, self._takes_half = inner, truth, loses, takes_half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        half = len(payloads) // 2
        if half and self._takes_half():
            await self._send(payloads[:half], timeout_seconds)
            raise SendIncompleteError("The rest was refused.", accepted=tuple(range(half))) from ServiceError(
                "simulated"
            )
        await self._send(payloads, timeout_seconds)
        if self._loses():
            raise ConnectionLostError("The answer was lost.")

    async def _send(self, payloads: Sequence[bytes], timeout_seconds: float) -> None:
        """One attempt of a client, which makes the next one before it says what it knows."""
        try:
            await self._inner.send(payloads, timeout_seconds=timeout_seconds)
        except (asyncio.CancelledError, ServiceError) as error:
            if not isinstance(error, ServiceError) or error.uncertain:
                self._truth.doubt("an attempt without an answer")
            raise


class LosingMessaging:
    """A messaging of whose senders some answers are lost."""

    def __init__(
        self,
        inner: AzureMessaging,
        truth: Truth,
        loses: Callable[[], bool] = lambda: False,
        takes_half: Callable[[], bool] = lambda: False,
    ) -> None:
        self._inner, self._answers = inner, (truth, loses, takes_half)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sender(self, entity: str) -> MessageSender:
        return cast(MessageSender, LosingSender(self._inner.sender(entity), *self._answers))


class Admin:
    """What the administration says of a namespace's queues, over the same network."""

    control_plane = "data-plane"

    def __init__(self, world: "World", broker: Broker) -> None:
        self._world, self._broker = world, broker

    async def _ask(self) -> None:
        network, me = self._world.network, PROCESS.get() or self._world.loop.world
        await asyncio.sleep(2 * network.delay())
        process, faults = self._broker.process, self._broker.namespace.faults
        if not process.alive or network.are_apart(me, process) or faults.refusing():
            await asyncio.sleep(30.0)
            raise ServiceError("The administration did not answer.")

    def _facts(self, path: str) -> QueueFacts | None:
        queue = self._broker.namespace.get_queue(path)
        return None if queue is None else _facts_of(queue)

    async def get_queue(self, path: str) -> QueueFacts | None:
        await self._ask()
        return self._facts(path)

    async def get_topic(self, path: str) -> None:
        await self._ask()

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        await self._ask()
        found = self._broker.namespace.get_subscription(topic, name)
        return None if found is None else _facts_of(found)

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        await self._ask()
        for queue in self._broker.namespace.queues():
            if queue.path.startswith(prefix) and (facts := self._facts(queue.path)) is not None:
                yield facts

    async def close(self) -> None:
        """Nothing is open."""


def _facts_of(entity: MessageEntity) -> QueueFacts:
    counts = entity.counts()
    settings = QueueSettings(
        lock_duration_seconds=entity.lock_seconds,
        max_delivery_count=entity.max_delivery_count,
        requires_session=entity.requires_session,
    )
    return QueueFacts(entity.path, settings, Counts(active=counts.active, dead_letter=counts.dead_letter))


class World:
    """Everything there is. `run` lives through the plan and gives the digest."""

    def __init__(self, plan: Plan, folder: Path, *, follow: Any = None) -> None:
        self.plan = plan
        self.folder = folder
        dice = random.Random(f"{plan.seed} run")
        self.dice = random.Random(f"{plan.seed} world")
        self.loop = SimulatedLoop(dice)
        take_over(self.loop, dice)
        self.trace = Trace(self.loop.time, follow=follow)
        # On a partitioned backlog queue messages of a session lie in several partitions, which have no common order:
        # their backlog form, which is that of the retired library, has no key.
        self.truth = Truth(
            self.trace, strict_order=not plan.partitioned, with_ledgers=plan.ledgers, holds_sessions=plan.hold_sessions
        )
        self.truth.now, self.truth.wrong = self.loop.time, self.wrong
        self.loop.on_call = lambda process: self.trace.note("writing", process.name)
        self.disk = Disk(self.loop)
        self.disk.synced = self._synced
        self.network = Network(self.loop, self.trace)
        self.network.latency_seconds = plan.latency_seconds
        self.network.slow_share, self.network.slow_seconds = plan.slow_share, plan.slow_seconds
        self.clock = Clock(self.loop)
        self.failure: BaseException | None = None
        self.brokers: dict[str, Broker] = {}
        self.movers: list[Process] = []
        self.senders: list[Process] = []
        self.wanted = asyncio.Event()
        """Set, and replaced, when messages are put into the backlog: time for senders to send, too."""
        self.stops: dict[Process, asyncio.Event] = {}
        self.endless: set[Process] = set()
        self.queues = {
            side: tuple(backlog_queue_path(side, number) for number in range(plan.queues)) for side in plan.primaries
        }
        """The backlog queues of each primary."""
        self.ending = False
        self.struck = 0
        """Troubles that have met something they can strike."""
        self.number = 0
        self.runs = 0
        self._failed = asyncio.Event()
        self.replicated = Replicated(self)
        self.moves = Moves(self)

    def _synced(self, path: Path) -> None:
        try:
            (self.moves if path.name.startswith("moved-") else self.truth).written(path)
        except Violation as violation:
            self.wrong(violation)

    # -- making it

    def _make_brokers(self) -> None:
        for name in (*self.plan.primaries, SECONDARY):
            self.brokers[name] = Broker(
                name,
                PORTS[name],
                seed=self.plan.seed,
                loop=self.loop,
                network=self.network,
                trace=self.trace,
                witness=self.truth,
                file=self.folder / f"{name}.sqlite3" if self.plan.durable else None,
                make=self._make_entities,
                lock_expired=self._lock_expired,
                session_lost=self._session_lost,
                laws=dict(self.plan.laws),
            )
            self._start_broker(self.brokers[name])

    def _start_broker(self, broker: Broker) -> None:
        if broker.starts == 0 or not broker.process.alive:
            skews = self.plan.broker_skews
            broker.start(skew_seconds=skews[(broker.port + broker.starts) % len(skews)])

    def _make_entities(self, namespace: Namespace) -> None:
        if namespace.name != SECONDARY:
            for destination in DESTINATIONS:
                sessions = destination == SESSIONS_ONLY
                description = QueueDescription(requires_session=sessions, enable_partitioning=self.plan.partitioned)
                namespace.create_queue(destination, description)
        self.replicated.make(namespace)
        self.moves.make(namespace)
        if namespace.name != SECONDARY:
            return
        description = QueueDescription(
            lock_duration_seconds=self.plan.lock_seconds,
            max_delivery_count=MAX_DELIVERY_COUNT,
            enable_partitioning=self.plan.partitioned,
        )
        for queues in self.queues.values():
            for path in queues:
                namespace.create_queue(path, description)

    def _lock_expired(self, message: Message) -> None:
        self.trace.note("lock expired", message.message_id)
        self.truth.doubt("a lock that ran out")

    def _session_lost(self, side: str, path: str, session_id: str) -> None:
        self.trace.note("session lost", side, path, session_id)
        self.truth.doubt("the lock of a session that ran out")  # what was being sent then is sent once more
        if self.truth.watchers.get((side, path.lower())) is self.moves:
            self.moves.session_lost(side, path, session_id)

    def admin(self, name: str) -> NamespaceAdmin:
        return cast(NamespaceAdmin, Admin(self, self.brokers[name]))

    def messaging(self, name: str) -> AzureMessaging:
        return AzureMessaging(self.brokers[name].access())

    # -- living

    def run(self) -> str:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._life())
        if self.failure is not None:
            raise self.failure
        return self.trace.digest

    def wrong(self, violation: BaseException) -> None:
        if self.failure is None:
            self.failure = violation
            self.trace.note("VIOLATION", violation)
            self._failed.set()

    async def _life(self) -> None:
        self._make_brokers()
        living = self.loop.create_task(self._live())
        failed = self.loop.create_task(self._failed.wait())
        await asyncio.wait({living, failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.failure is None:
            living.result()

    async def _live(self) -> None:
        plan = self.plan
        for side in plan.primaries:
            for number in range(plan.movers):
                self.loop.create_task(self._again_and_again(side, number, endless=number >= plan.drains))
        for number in range(plan.senders):
            self.loop.create_task(self._sending_again_and_again(number))
        self.replicated.begin()
        self.moves.begin()
        happening: list[tuple[float, int, Burst | Trouble]] = sorted(
            (one.at, order, one) for order, one in enumerate((*plan.bursts, *plan.troubles))
        )
        for at, _, one in happening:
            await asyncio.sleep(max(0.0, at - self.loop.time()))
            self.truth.check()
            if isinstance(one, Burst):
                self._fill(one)
                self.moves.fill(one)
                self._want()
            else:
                self._arm(one)
        await asyncio.sleep(max(0.0, plan.hours * HOUR - self.loop.time()))
        await self._come_to_rest()

    def _want(self) -> None:
        self.wanted.set()
        self.wanted = asyncio.Event()

    async def _come_to_rest(self) -> None:
        """No more trouble: those that run are stopped, the last drain must find and return everything."""
        self.ending = True
        self._want()
        self.network.join_all()
        self.network.slow_share = 0.0  # a late packet may cost a short lock
        self.disk.full = self.disk.failing = False
        for broker in self.brokers.values():
            broker.disk_full(False)
            self._start_broker(broker)
            broker.namespace.faults.clear()
        self.trace.note("rest")
        asleep = [one.frozen_until - self.loop.time() for one in self._processes()]
        await asyncio.sleep(max([0.0, *asleep]))
        for process in [one for one in self.senders if one.alive]:
            await self.ended_within(process, 900.0, "did not close within 15 minutes")
        running = [one for one in self.movers if one.alive]
        if serving := [one for one in running if one in self.endless and not self.stops[one].is_set()]:
            self._fill_each()
            await self._emptied_within(LONGEST_PAUSE_SECONDS, serving)
        if self.dice.random() < 0.5:
            for process in [one for one in running if one not in self.endless]:
                await self.ended_within(process, LONGEST_DRAIN_SECONDS, "did not end by itself at rest")
        for process in running:
            self.stops[process].set()
        for process in running:
            await self.ended_within(process, 600.0, "did not end within 10 minutes of being told to stop")
        await self.replicated.come_to_rest()
        await self.moves.come_to_rest()
        await asyncio.sleep(2 * self.plan.lock_seconds + IDLE_TIMEOUT_SECONDS + 60.0)
        for side in self.plan.primaries:
            process, _ = self._start(side, 0, endless=False, last=True)
            await self.ended_within(process, LONGEST_DRAIN_SECONDS, "did not end by itself, and nothing was wrong")
        await asyncio.sleep(2 * self.plan.lock_seconds)
        self.truth.check_end(*(one.namespace for one in self.brokers.values()))

    def _processes(self) -> list[Process]:
        return [
            *self.movers,
            *self.senders,
            *self.replicated.consumers,
            *self.replicated.senders,
            *self.moves.processes,
        ]

    async def _emptied_within(self, seconds: float, serving: list[Process]) -> None:
        """These syphons run, and nothing is wrong any more. One that has ended by itself has said why."""
        until = self.loop.time() + seconds
        for side in self.plan.primaries:
            of_this = [one for one in serving if one.name.startswith(f"{MOVERS[side]}-")]
            while of_this and (left := self.truth.backlog_counts(side)):
                await asyncio.sleep(10.0)
                if self.loop.time() >= until and any(one.alive for one in of_this):
                    raise Violation(f"a syphon ran for {seconds:.0f} s, nothing was wrong, and {left} messages wait")
                of_this = [one for one in of_this if one.alive]

    async def ended_within(self, process: Process, seconds: float, otherwise: str) -> None:
        done, _ = await asyncio.wait({process.ended}, timeout=seconds)
        if not done:
            raise Violation(f"{process.name} {otherwise}")

    # -- messages

    def _fill(self, burst: Burst) -> None:
        plan, dice = self.plan, self.dice
        broker = self.brokers[SECONDARY]
        for _ in range(burst.count if broker.process.alive else 0):
            side = dice.choice(plan.primaries)
            session = f"s{dice.randrange(plan.sessions)}" if dice.random() < plan.session_share else None
            destination = dice.choice(DESTINATIONS) if session is not None else DESTINATIONS[0]
            place = dice.randrange(plan.queues) if session is None else int(session[1:]) % plan.queues
            key, payload = self._message(side, destination, session, backlog=True)
            self._put(self.queues[side][place], for_backlog(payload, destination), self.truth.sent[key])

    def _fill_each(self) -> None:
        """A message into each backlog queue: one who serves has to notice, whatever has become of a connection."""
        for side, paths in self.queues.items():
            for path in paths:
                key, payload = self._message(side, DESTINATIONS[0], None, backlog=True)
                self._put(path, for_backlog(payload, DESTINATIONS[0]), self.truth.sent[key])

    def _put(self, path: str, payload: bytes, sent: Sent) -> None:
        """Into a queue of the secondary, by its own process."""
        broker, sent.accepted = self.brokers[SECONDARY], False
        queue = broker.namespace.get_queue(path)
        assert queue is not None

        def put() -> None:
            queue.send(payload)
            broker.namespace.when_durable(lambda: setattr(sent, "accepted", True))

        broker.run(put)

    def _message(self, side: str, destination: str, session: str | None, *, backlog: bool = False) -> tuple[str, bytes]:
        """A new message: its id and its bytes. Senders spell a session in two ways, in some worlds beyond ASCII."""
        self.number += 1
        if session is not None and beyond_ascii(self.plan.seed):
            session = f"é{session}"
        if session is not None and self.number % 2:
            session = session.upper()
        number, key = self.number, f"m{self.number}"
        body = self.dice.randbytes(self.dice.choice(self.plan.body_bytes)) + number.to_bytes(4, "big")
        self.truth.sent[key] = Sent(number, side, destination, session, body, backlog)
        return key, compose(body=body, message_id=key, session_id=session, application_properties={"n": Long(number)})

    # -- processes

    def process(self, name: str, *, skew_seconds: float = 0.0) -> Process:
        """A new one of this name."""
        self.runs += 1
        process = Process(self.loop, f"{name}-{self.runs}", skew_seconds=skew_seconds)
        process.on_end.append(lambda power: self._ended(process, power))
        self.trace.note("start", process.name)
        return process

    async def _again_and_again(self, side: str, number: int, *, endless: bool) -> None:
        """As an operator's timer or service manager does: started again a while after it has ended."""
        while not self.ending:
            process, _ = self._start(side, number, endless=endless)
            await process.ended
            await asyncio.sleep(self.dice.choice([0.1, 2.0, 30.0, 300.0]) * self.dice.uniform(0.5, 1.5))

    def _start(
        self, side: str, number: int, *, endless: bool, last: bool = False
    ) -> "tuple[Process, asyncio.Task[None]]":
        process = self.process(f"{MOVERS[side]}-{number}", skew_seconds=0.0 if last else self.plan.skews[number])
        self.movers = [one for one in self.movers if one.alive] + [process]
        self.stops[process] = asyncio.Event()
        if endless:
            self.endless.add(process)
        work = self._move(process, side, number, endless=endless, last=last)
        return process, process.start(self.guarded(process, work))

    def _ended(self, process: Process, power: bool) -> None:
        self.trace.note("end", process.name, "power" if power else "")
        self.network.process_ended(process, power)

    async def guarded(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (SbpairError, OSError) as error:
            self.trace.note("error", process.name, repr(error))
        except Exception as error:  # noqa: BLE001 - a bug, or a broken invariant: told at the end
            self.wrong(error)
        if process.alive:
            self.network.process_ended(process, False)
            process.alive = False
            self.trace.note("exit", process.name)
            if not process.ended.done():
                process.ended.set_result(None)

    async def _move(self, process: Process, side: str, number: int, *, endless: bool, last: bool) -> None:
        stop, path = self.stops[process], self.folder / f"ledger-{side}-{number}.jsonl"
        ledger = Ledger(path, resume=True, opened=self.disk.opened) if self.plan.ledgers else None
        began = self.truth.now()
        lines_before, dropped_before = len(whole_lines(path)), self.truth.dropped[side]
        failed_before = self.disk.failed_syncs
        secondary = self.messaging(SECONDARY)
        primary = WatchedMessaging(self.messaging(side), self.truth, path.name, self.wrong, self._takes_half)
        request = TransferRequest(self.queues[side], in_flight_messages=self.plan.in_flight_messages)
        admin = self.admin(SECONDARY)
        try:
            if endless:
                report = await self._syphon(request, secondary, primary, admin, ledger, stop)
            else:
                report = await drain(
                    DrainJob(
                        request,
                        secondary=secondary,
                        primary=primary,
                        admin=admin,
                        clock=self.clock,
                        observer=Quiet(),
                        ledger=ledger,
                        stop=stop,
                    )
                )
        finally:
            if ledger is not None:
                await ledger.close()
        alone = self.plan.movers == 1
        self.truth.ended(
            report,
            began=began,
            lines_before=lines_before,
            unsynced=self.disk.failed_syncs > failed_before,
            dropped_before=dropped_before,
            ledger=path if ledger is not None else None,
            alone=alone,
            side=side,
        )
        if last and not report.confirmed_empty:
            raise Violation(f"the last drain could not confirm that the backlog is empty: {report.left}")
        await secondary.close()
        await primary.close()

    def _loses_answer(self) -> bool:
        share = 0.0 if self.ending else self.plan.answers_lost
        if not share or self.loop.dice.random() >= share:
            return False
        self.truth.doubt("an answer that was lost")
        return True

    def _takes_half(self) -> bool:
        share = 0.0 if self.ending else self.plan.half_accepted
        return share > 0 and self.loop.dice.random() < share  # where nothing is taken in half, no dice are thrown

    async def _syphon(
        self,
        request: TransferRequest,
        secondary: AzureMessaging,
        primary: WatchedMessaging,
        admin: NamespaceAdmin,
        ledger: Ledger | None,
        stop: asyncio.Event,
    ) -> DrainReport:
        async def once(uncompleted: Any) -> SyphonRun:
            return await syphon_until(
                DrainJob(
                    request,
                    secondary=secondary,
                    primary=primary,
                    admin=admin,
                    clock=self.clock,
                    observer=Quiet(),
                    ledger=ledger,
                    stop=stop,
                ),
                uncompleted=uncompleted,
            )

        return await serve(once, stop=stop, clock=self.clock, observer=Quiet())

    # -- senders

    async def _sending_again_and_again(self, number: int) -> None:
        while not self.ending:
            process = self.process(f"sender-{number}")
            self.senders = [one for one in self.senders if one.alive] + [process]
            process.start(self.guarded(process, self._send(number)))
            await process.ended
            await asyncio.sleep(self.dice.choice([0.1, 30.0]))

    async def _send(self, number: int) -> None:
        """An application with a pairing: sends what it has, one batch after another, until the end."""
        plan = self.plan
        side = plan.primaries[number % plan.pairs]
        options = SendAvailabilityOptions(
            backlog_queue_count=plan.queues,
            failover_interval_seconds=plan.failover_seconds,
            ping_interval_seconds=plan.ping_seconds,
            hold_sessions=plan.hold_sessions,
        )
        pair = Pair("simulated", self.brokers[side].access(), self.brokers[SECONDARY].access(), options)
        pairing = await PairedNamespaces.open(
            pair,
            PairingContext(
                primary=cast(
                    Messaging, LosingMessaging(self.messaging(side), self.truth, self._loses_answer, self._takes_half)
                ),
                secondary=cast(Messaging, LosingMessaging(self.messaging(SECONDARY), self.truth)),
                clock=self.clock,
                observer=Quiet(),
                draw=self.loop.dice.random,
                retries=plan.retries,
            ),
        )
        try:
            while not self.ending:
                wanted = self.wanted
                for _ in range(self.dice.choice([1, 3, 8])):
                    await self._send_some(pairing, side, f"p{number}")
                    await asyncio.sleep(self.dice.expovariate(0.5))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(60.0):
                        await wanted.wait()
        finally:
            await pairing.close()

    async def _send_some(self, pairing: PairedNamespaces, side: str, session: str) -> None:
        destination = self.dice.choice(DESTINATIONS)
        session_id = session if destination == SESSIONS_ONLY or self.dice.random() < 0.3 else None
        made = [self._message(side, destination, session_id) for _ in range(self.dice.choice([1, 1, 4]))]
        keys = [key for key, _ in made]
        for key in keys:
            self.truth.sent[key].accepted = False
        if session_id is not None and (process := PROCESS.get()) is not None:
            self.truth.claims.sending(keys, (process.name, destination, session_id))
        spelled = destination if self.number % 2 else destination.title()  # the same to the service
        try:
            result = await pairing.sender(spelled).send(
                [payload for _, payload in made], timeout_seconds=self.dice.choice([5.0, 20.0, 60.0])
            )
        except SendIncompleteError as error:
            self.truth.doubt("a send in part")
            accepted = [keys[place] for place in error.accepted]
            self.truth.told(accepted, accepted=True, certain=not error.uncertain)
            rest = [key for key in keys if key not in accepted]
            self.truth.told(rest, accepted=False, certain=not error.uncertain)
        except ServiceError as error:
            self.truth.told(keys, accepted=False, certain=not error.uncertain)
        else:
            self.truth.told(keys, accepted=True, certain=not result.uncertain)

    # -- trouble

    def _arm(self, trouble: Trouble) -> None:
        def strike() -> None:
            if not self.ending:
                self.trace.note("trouble", trouble)
                self.struck += self._strike(trouble)

        if trouble.after:
            soon = partial(self.loop.call_soon, strike, context=self.loop.world.context)
            self.trace.when(trouble.after, trouble.count, soon)
        else:
            strike()

    def _strike(self, trouble: Trouble) -> bool:
        """Whether it met anything: a crash of a process that does not run at that moment strikes nobody."""
        movers = [one for one in self.movers if one.alive]
        process = movers[trouble.place % len(movers)] if movers else None
        consumers = [one for one in self.replicated.consumers if one.alive]
        senders = [one for one in (*self.senders, *self.replicated.senders) if one.alive]
        operators = [one for one in self.moves.processes if one.alive]
        broker = self.brokers.get(trouble.side, self.brokers["primary"])
        self.truth.doubt(trouble.kind)
        self.moves.excuse(trouble, broker.name)
        match trouble.kind:
            case "crash" | "power" if process is not None:
                process.end(power=trouble.kind == "power")
            case "crash-sender" if senders:
                senders[trouble.place % len(senders)].end(power=trouble.place % 2 == 0)
            case "stop" if process is not None:
                self.stops[process].set()
            case "freeze" if (frozen := broker.process if trouble.place >= 6 else process) is not None:
                frozen.frozen_until = self.loop.time() + trouble.seconds
                self._later(trouble.seconds, trouble.kind, lambda: None)
            case "cut" | "half-open" if found := self.network.of(broker.process):
                connection = found[trouble.place % len(found)]
                (connection.reset if trouble.kind == "cut" else connection.die)()
            case "part" if movers or consumers:
                able = movers + consumers + operators
                name = able[trouble.place % len(able)].name
                self.network.part(name, broker.name)
                self._later(trouble.seconds, trouble.kind, lambda: self.network.join(name, broker.name))
            case "forgotten" if process is not None:
                for connection in self.network.of(process):
                    connection.die()
            case "disk-full" | "disk-error":
                name = "full" if trouble.kind == "disk-full" else "failing"
                setattr(self.disk, name, True)
                self._later(trouble.seconds, trouble.kind, lambda: setattr(self.disk, name, False))
            case "foreign":
                self._foreign(trouble)
            case "crash-consumer" | "freeze-consumer" | "stop-consumer" if consumers:
                consumer = consumers[trouble.place % len(consumers)]
                if trouble.kind == "crash-consumer":
                    consumer.end(power=trouble.place % 2 == 0)
                elif trouble.kind == "stop-consumer":
                    self.stops[consumer].set()
                else:
                    consumer.frozen_until = self.loop.time() + trouble.seconds
                    self._later(trouble.seconds, trouble.kind, lambda: None)
            case "crash-move" | "power-move" | "stop-move" if operators:
                for operator in operators:
                    if trouble.kind == "stop-move":
                        self.stops[operator].set()
                    else:
                        operator.end(power=trouble.kind == "power-move")
            case "journal-down" if trouble.place % 2:
                self.replicated.journal_full = True
                self._later(trouble.seconds, trouble.kind, partial(setattr, self.replicated, "journal_full", False))
            case "journal-down":
                self.replicated.journal_down = True
                self._later(trouble.seconds, trouble.kind, partial(setattr, self.replicated, "journal_down", False))
            case "journal-answers-lost":
                self.replicated.answers_lost = (0.05, 0.3)[trouble.place % 2]
                self._later(trouble.seconds, trouble.kind, partial(setattr, self.replicated, "answers_lost", 0.0))
            case "clock-step" if consumers and trouble.place >= 6:
                # Never further apart than their terms allow.
                consumers[trouble.place % len(consumers)].skew_seconds = (-2.0, 2.0)[trouble.place % 2]
            case "clock-step" if process is not None:
                process.skew_seconds += (-300.0, -2.0, 2.0, 300.0)[trouble.place % 4]
            case "crash-broker" | "power-broker":
                broker.process.end(power=trouble.kind == "power-broker")
                self._later(trouble.seconds, trouble.kind, lambda: self._start_broker(broker))
            case "store-full":
                broker.disk_full(True)
                self._later(trouble.seconds, trouble.kind, lambda: broker.disk_full(False))
            case "throttle" | "fail-sends" | "refuse" | "lose-settlement-reply" | "short-locks" | "detach" | "dark":
                broker.run(broker.namespace.faults.add, self._fault(trouble))
                self._later(trouble.seconds, trouble.kind, lambda: None)
            case _:
                return False
        return True

    def _later(self, seconds: float, kind: str, undo: Any) -> None:
        def end() -> None:
            undo()
            self.truth.doubt(f"the end of {kind}")

        self.loop.call_later(seconds, end)

    def _fault(self, trouble: Trouble) -> str:
        span = f"for={trouble.seconds:.3f}s"
        share = ("0.1", "0.3", "0.7", "1")[trouble.place % 4]
        match trouble.kind:
            case "throttle":
                return f"throttle:{span},probability={share}"
            case "fail-sends":
                return f"fail:op=send,{span},probability={share}"
            case "refuse" | "dark":
                return f"{trouble.kind}:{span}"
            case "lose-settlement-reply":
                return f"lose-settlement-reply:{span},probability={share}"
            case "short-locks":
                return f"expire-locks:lock={0.05 * (1 + trouble.place)}s,{span},probability={share}"
            case _:
                return "detach"

    def _foreign(self, trouble: Trouble) -> None:
        """Somebody else takes some of the messages, keeps them for a while, and gives them back or lets go."""
        process = Process(self.loop, f"foreign-{self.loop.steps}")
        process.on_end.append(lambda power: self.network.process_ended(process, power))

        async def hold() -> None:
            messaging = self.messaging(SECONDARY)
            queues = [path for paths in self.queues.values() for path in paths]
            receiver = messaging.receiver(queues[trouble.place % len(queues)])
            taken = await receiver.receive(1 + trouble.place, wait_seconds=5.0)
            self.trace.note("foreign", len(taken))
            await asyncio.sleep(trouble.seconds)
            if trouble.place % 2:
                for one in taken:
                    await receiver.settle(one, Disposition.ABANDON)
                await messaging.close()
            process.end()

        async def quietly() -> None:
            try:
                await hold()
            except ServiceError as error:
                self.trace.note("error", process.name, type(error).__name__)
                process.end()

        process.start(quietly())


def live(plan: Plan, *, follow: Any = None) -> World:
    """A world that has lived through the plan; its `failure` says what was wrong, if anything."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=memory if memory.is_dir() else None) as folder:
        world = World(plan, Path(folder), follow=follow)
        reading.RECEIVE_MESSAGES = plan.receive_messages
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - it is what was looked for
            world.wrong(error)
        return world
