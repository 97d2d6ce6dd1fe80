"""Active/active in a world: senders to both namespaces, consumers with a journal, and what must hold of a session.

Each message is processed at least once; a second time only after a crash, a stand-still or a journal that was away, and
never after its successor. Of one session one handler runs at a time, in the order in which its sender sent.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.amqp.sections import Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import JournalUnavailableError, ServiceError
from sbpair.core.pairing import MAX_DELIVERY_COUNT, Side
from sbpair.core.replication.ownership import FORGOTTEN, OVERTAKEN, Granularity, Terms
from sbpair.core.rewrite import compose
from sbpair.emulator.broker.mailbox import MAIN
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import Namespace
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry, MessageSender
from sbpair.runtime.clock import Quiet
from sbpair.runtime.replication.consumer import ConsumeRequest, consume
from sbpair.runtime.replication.handlers import Delivery, HandlerFailed, RetryLater
from sbpair.runtime.replication.sender import DualSender
from tests.simulation.claims import MESSAGES, of_consumer, of_journal, of_record
from tests.simulation.loop import Process
from tests.simulation.plan import HOUR
from tests.simulation.truth import Lies, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
QUEUE = "replicated"
SIDES = {Side.PRIMARY: "primary", Side.SECONDARY: "secondary"}
MOST_ATTEMPTS = 3


class DistantJournal:
    """The product's journal in a file, as a service over the network: it may be away, and its answers may be lost."""

    def __init__(self, world: "World", process: Process) -> None:
        self._world, self._process = world, process
        self._journal = SqliteJournal(world.replicated.journal_file, now=lambda: world.clock.now().timestamp())
        self.failures = 0
        self._full = False
        self.name = "simulated"
        process.on_end.append(self._process_ended)

    def _process_ended(self, power: bool) -> None:
        """What it had asked for may still be done."""
        for call in list(self._process.calls):
            if self._world.dice.random() < 0.5:
                with contextlib.suppress(Exception):  # nobody is there any more to hear of it
                    call.function(*call.arguments)

    async def _ask(self, what: Callable[[], Awaitable[T]]) -> T:
        world, room = self._world, self._world.replicated
        await asyncio.sleep(world.network.delay())
        if room.journal_down:
            await asyncio.sleep(1.0)
            raise self._unavailable()
        self._limit(room.journal_full)
        try:
            return await what()
        except JournalUnavailableError:
            self.failures += 1
            raise
        finally:
            await asyncio.sleep(world.network.delay())
            if room.answers_lost and world.loop.dice.random() < room.answers_lost:
                raise self._unavailable()

    def _limit(self, full: bool) -> None:
        """The file grows no further: what needs a new page is refused, and what fits into the old ones is not."""
        connection = self._journal._connection
        if connection is not None and full is not self._full:
            connection.execute(f"PRAGMA max_page_count = {1 if full else 2**30}")
            self._full = full

    def _unavailable(self) -> JournalUnavailableError:
        self.failures += 1
        return JournalUnavailableError("The journal does not answer.")

    async def read(self, kind: str, key: str) -> Entry | None:
        return await self._ask(lambda: self._journal.read(kind, key))

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        self._world.replicated.about_to_write(kind, document)
        return await self._ask(lambda: self._journal.create(kind, key, document, ttl_seconds=ttl_seconds))

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        self._world.replicated.about_to_write(entry.kind, document)
        return await self._ask(lambda: self._journal.replace(entry, document, ttl_seconds=ttl_seconds))

    async def scan(self, kind: str) -> AsyncIterator[Entry]:
        async for entry in self._journal.scan(kind):
            yield entry

    async def check(self) -> str:
        return await self._ask(self._journal.check)

    async def close(self) -> None:
        await self._journal.close()


@dataclass(slots=True, eq=False)
class Epoch:
    """What one process has sent of one session, in order."""

    before: "Epoch | None"
    keys: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    recorded: bool = False
    """Whether whoever sends next can know of the last one."""
    linked: bool = False
    """Whether this process knew where the one before it had stopped."""

    def predecessors(self, key: str) -> list[str]:
        """What has to be processed before it."""
        found = self.keys[: self.keys.index(key)]
        epoch = self
        while epoch.linked and epoch.before is not None:
            epoch = epoch.before
            found = [*epoch.accepted, *found]
        return found


@dataclass(slots=True, eq=False)
class Run:
    process: Process
    key: str
    began: float
    fence: int


class Replicated:
    """The replicated queue of a world, and all that is known of its messages."""

    def __init__(self, world: "World") -> None:
        self.world = world
        plan = world.plan
        terms = Terms(
            lease_seconds=plan.lease_seconds,
            margin_seconds=5.0,
            max_attempts=MOST_ATTEMPTS,
            granularity=Granularity.MESSAGE if plan.message_leases else Granularity.SESSION,
        )
        if plan.forgets_early:
            seconds = 2 * (terms.lease_seconds + terms.margin_seconds)
            # What comes later than that may wait for a predecessor that nobody knows any more.
            terms = replace(terms, remember_seconds=seconds, retention_seconds=seconds, gap_seconds=seconds / 2)
        self.terms = terms
        self.journal_down = self.journal_full = False
        self.answers_lost = 0.0
        self.consumers: list[Process] = []
        self.senders: list[Process] = []
        self.epochs: dict[str, Epoch] = {}
        """The last of each session."""
        self.epoch_of: dict[str, Epoch] = {}
        self.sent: set[str] = set()
        """What a sender was told to be accepted."""
        self.lying: Counter[str] = Counter()
        self.lying_on: Counter[tuple[str, str]] = Counter()
        """The same by message and side."""
        self.copies: Counter[tuple[str, str]] = Counter()
        """How often a message was stored on a side."""
        self.effects: Counter[str] = Counter()
        """How many messages the handlers of a process have processed."""
        self.journal_file = world.folder / "journal.sqlite3"
        self.worked: dict[str, float] = {}
        self.failed: dict[str, float] = {}
        self.overtaken: set[str] = set()
        """Of these the dead letter says what became of them: they were never begun, and the journal has no record."""
        self.starts: Counter[str] = Counter()
        self.fences: Counter[str] = Counter()
        self.last: dict[str, str] = {}
        """The message of each session that was processed last for the first time."""
        self.running: dict[str, list[Run]] = {}
        for side in SIDES.values():
            world.truth.watchers[side, QUEUE] = self

    def make(self, namespace: Namespace) -> None:
        if namespace.name in SIDES.values():
            namespace.create_queue(
                QUEUE,
                QueueDescription(
                    requires_session=True,
                    lock_duration_seconds=self.world.plan.lock_seconds,
                    max_delivery_count=MAX_DELIVERY_COUNT,
                ),
            )

    def begin(self) -> None:
        for number in range(self.world.plan.consumers):
            self.world.loop.create_task(self._again_and_again(self.consumers, f"consumer-{number}", self._consume))
        for number in range(self.world.plan.dual_senders):
            work = partial(self._send, number=number)
            self.world.loop.create_task(self._again_and_again(self.senders, f"dual-sender-{number}", work))

    async def _again_and_again(
        self, all_of_them: list[Process], name: str, work: Callable[[Process], Awaitable[None]]
    ) -> None:
        world = self.world
        while not world.ending:
            process = self._start(all_of_them, name, work)
            await process.ended
            await asyncio.sleep(world.dice.choice([0.1, 5.0, 60.0]) * world.dice.uniform(0.5, 1.5))

    def _start(self, all_of_them: list[Process], name: str, work: Callable[[Process], Awaitable[None]]) -> Process:
        # Within the margin of the terms: no further apart are the clocks of consumers allowed to be.
        process = self.world.process(name, skew_seconds=self.world.dice.uniform(-2.0, 2.0))
        all_of_them[:] = [one for one in all_of_them if one.alive] + [process]
        process.start(self.world.guarded(process, work(process)))
        return process

    async def come_to_rest(self) -> None:
        """Everything that was accepted is processed; then the consumers end when they are told to."""
        world, until = self.world, self.world.loop.time() + 2 * HOUR
        self.journal_down, self.journal_full, self.answers_lost = False, False, 0.0
        for process in [one for one in self.senders if one.alive]:
            await world.ended_within(process, 900.0, "did not close within 15 minutes")
        while self.lying.total():
            if not any(one.alive for one in self.consumers):
                self._start(self.consumers, "last-consumer", self._consume)
            await asyncio.sleep(10.0)
            if world.loop.time() > until:
                raise Violation(f"consumers have run for two hours without any trouble, and {+self.lying} wait")
        for process in [one for one in self.consumers if one.alive]:
            world.stops[process].set()
            await world.ended_within(process, 600.0, "did not end within 10 minutes of being told to stop")
        for key in self.sent:
            if key not in self.worked and key not in self.failed:
                raise Violation(f"replicated message {key} was accepted, and never processed")
        if self.worked or self.failed:
            finished = self.failed | self.worked
            known = {key for key, since in finished.items() if self._remembered(since)} - self.overtaken
            for claim in of_journal(self.journal_file, set(self.worked), set(self.failed), known):
                raise Violation(claim)

    def _remembered(self, since: float) -> bool:
        """Whether the journal still has to know what was finished then."""
        return self.world.loop.time() - since < self.terms.remember_seconds - self.terms.margin_seconds

    # -- what the brokers tell

    def stored(self, before: Lies | None, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        came = (lies.place == MAIN) - (before is not None and before.place == MAIN)
        self.lying[key] += came
        self.lying_on[key, lies.side] += came
        self.copies[key, lies.side] += before is None
        if before == lies:
            return
        self.world.trace.note("copy", key, lies.side, lies.place)
        if lies.place != MAIN:
            # Of what is completed and forgotten, a late copy becomes a dead letter: whoever completes it may lose it.
            forgotten = key in self.worked and not self._remembered(self.worked[key])
            if self.starts[key] < MOST_ATTEMPTS and not forgotten and not self._doubtful(0.0):
                raise Violation(f"replicated message {key} was dead-lettered after {self.starts[key]} attempts")
            self.failed.setdefault(key, self.world.loop.time())
            properties = EncodedMessage(message.payload)
            if properties.entry(Section.APPLICATION_PROPERTIES, "DeadLetterReason") in (OVERTAKEN, FORGOTTEN):
                self.overtaken.add(key)

    def dropped(self, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        self.lying[key] -= 1
        self.lying_on[key, lies.side] -= 1
        self.world.trace.note("copy done", key, lies.side)
        # Of a message that has failed the dead letter remains. Its other copy follows it there as long as the journal
        # knows of that; one that comes later is of a place that is finished, and completed.
        forgotten = key in self.failed and not self._remembered(self.failed[key])
        if key not in self.worked and not forgotten:
            raise Violation(f"replicated message {key} was completed, and nobody has processed it: it is lost")

    def about_to_write(self, kind: str, document: Mapping[str, Any]) -> None:
        """A consumer writes this into the journal."""
        if kind != MESSAGES:
            return
        once = {place: lying for place, lying in self.lying_on.items() if self.copies[place] == 1}
        for claim in of_record(document, once):
            self.world.wrong(Violation(claim))

    def _doubtful(self, since: float) -> bool:
        return any(at >= since for at, _ in self.world.truth.doubts)

    # -- consumers

    async def _consume(self, process: Process) -> None:
        world, plan = self.world, self.world.plan
        stop = world.stops[process] = asyncio.Event()
        journal = DistantJournal(world, process)
        primary, secondary = (world.messaging(side) for side in SIDES.values())
        request = ConsumeRequest(
            QUEUE, terms=self.terms, name=process.name, sessions=plan.open_sessions, concurrency=4, acceptors=2
        )

        async def work(delivery: Delivery) -> None:
            await self._work(process, delivery)

        report = await consume(
            request,
            primary=primary,
            secondary=secondary,
            journal=journal,
            handler=work,
            clock=world.clock,
            observer=Quiet(),
            stop=stop,
        )
        counts = Counter[str]()
        for one in report.counts:
            counts[one.result] += one.copies
        for claim in of_consumer(counts, self.effects[process.name]):
            raise Violation(claim)
        await journal.close()
        await primary.close()
        await secondary.close()

    async def _work(self, process: Process, delivery: Delivery) -> None:
        dice, plan = self.world.loop.dice, self.world.plan
        run = self._begun(process, delivery)
        try:
            await asyncio.sleep(dice.expovariate(1 / plan.handler_seconds))
            fate = dice.random()
            if fate < plan.handler_failures:
                raise HandlerFailed("simulated")
            if fate < 2 * plan.handler_failures:
                raise RetryLater("simulated")
            self._effect(delivery)
            self.effects[process.name] += 1
        except Violation as violation:
            self.world.wrong(violation)  # to the consumer it is a handler that failed
            raise
        finally:
            self.running[delivery.session_id].remove(run)

    def _begun(self, process: Process, delivery: Delivery) -> Run:
        key, session, now = delivery.message_id, delivery.session_id, self.world.loop.time()
        self.world.trace.note("handler", process.name, key, delivery.attempt, delivery.fence)
        self.starts[key] += 1
        others = self.running.setdefault(session, [])
        for other in others:
            if other.process.alive and other.process.frozen_until < other.began:
                self.world.wrong(
                    Violation(f"{process.name} begins {key} of {session} while {other.process.name} is at {other.key}")
                )
        run = Run(process, key, now, delivery.fence)
        others.append(run)
        return run

    def _effect(self, delivery: Delivery) -> None:
        """A store that refuses smaller fences takes the result."""
        key, session = delivery.message_id, delivery.session_id
        if delivery.fence < self.fences[session]:
            raise HandlerFailed("somebody with a greater fence has written meanwhile")
        self.fences[session] = delivery.fence
        self.world.trace.note("worked", key)
        epoch = self.epoch_of[key]
        if key in self.worked:
            if not self._remembered(self.worked[key]):
                return
            if self.last[session] != key:
                raise Violation(f"replicated message {key} was processed again after {self.last[session]}")
            if not self._doubtful(self.worked[key] - 400.0):
                raise Violation(f"replicated message {key} was processed twice, and nothing had happened")
            return
        if key in self.failed and self._remembered(self.failed[key]):
            raise Violation(f"replicated message {key} was processed after it had failed for good")
        # What is forgotten is not waited for, so the order is judged where nothing is.
        for other in () if self.world.plan.forgets_early else epoch.predecessors(key):
            if other not in self.worked and other not in self.failed:
                raise Violation(f"replicated message {key} of {session} was processed before {other}")
        self.worked[key], self.last[session] = self.world.loop.time(), key

    # -- senders

    async def _send(self, process: Process, *, number: int) -> None:
        world, plan, dice = self.world, self.world.plan, self.world.dice
        journal = DistantJournal(world, process)
        primary, secondary = (world.messaging(side) for side in SIDES.values())
        sender = DualSender(
            QUEUE,
            primary=primary,
            secondary=secondary,
            clock=world.clock,
            journal=journal,
            delay_seconds=plan.copy_delay_seconds,
            terms=self.terms,
        )
        mine: dict[str, Epoch] = {}
        while not world.ending:
            wanted = world.wanted
            for _ in range(dice.choice([1, 3, 8])):
                session = f"{number}-{dice.randrange(plan.sessions)}"
                if plan.unstamped and number == 0:
                    await self._send_unstamped([primary.sender(QUEUE), secondary.sender(QUEUE)], f"u{session}")
                else:
                    await self._send_one(sender, journal, mine, f"r{session}")
                await asyncio.sleep(dice.expovariate(1.0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dice.choice([5.0, 60.0, 300.0])):
                    await wanted.wait()
        await sender.close()
        await journal.close()
        await primary.close()
        await secondary.close()

    async def _send_unstamped(self, senders: Sequence[MessageSender], session: str) -> None:
        """As a producer that knows nothing of all this: to one side after the other, until one has it. It has no order
        but that of each queue."""
        self.world.number += 1
        key, accepted = f"m{self.world.number}", False
        self.epoch_of[key] = Epoch(None, keys=[key])
        payload = compose(body=self.world.dice.randbytes(10), message_id=key, session_id=session)
        while not accepted:
            for sender in senders:
                try:
                    await sender.send([payload], timeout_seconds=20.0)
                    accepted = True
                except ServiceError:
                    await asyncio.sleep(self.world.dice.uniform(0.5, 5.0))
        for sender in senders:
            await sender.close()
        self.sent.add(key)
        self.world.trace.note("unstamped", key)

    async def _send_one(
        self, sender: DualSender, journal: DistantJournal, mine: dict[str, Epoch], session: str
    ) -> None:
        """Until it is accepted: nothing else of its session may be sent before."""
        world = self.world
        world.number += 1
        key = f"m{world.number}"
        epoch = mine.get(session)
        failures, is_first = journal.failures, epoch is None
        if epoch is None:
            epoch = mine[session] = self.epochs[session] = Epoch(self.epochs.get(session))
        epoch.keys.append(key)
        self.epoch_of[key] = epoch
        payload = compose(body=world.dice.randbytes(10), message_id=key, session_id=session)
        while True:
            try:
                result = await sender.send(payload, timeout_seconds=20.0)
                break
            except ServiceError:
                await asyncio.sleep(world.dice.uniform(0.5, 5.0))
        if is_first and epoch.before is not None:
            epoch.linked = epoch.before.recorded and journal.failures == failures
        epoch.recorded = result.recorded
        epoch.accepted.append(key)
        self.sent.add(key)
        world.trace.note("replicated", key, *result.accepted)
