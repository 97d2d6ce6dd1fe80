"""Moves in a world: everything a queue or a subscription holds, sent to another queue, and dead letters sent again.

A message of an application is always somewhere. It lies in two places only after something was lost on the way; its
bytes, its session and the time for which it is scheduled stay; what was active of a session arrives in its order.
"""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sbpair.amqp import sections
from sbpair.amqp.sections import Section
from sbpair.amqp.types import Long
from sbpair.core.access import NamespaceAccess
from sbpair.core.pairing import MAX_DELIVERY_COUNT
from sbpair.core.rewrite import compose
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.resend import Planned, Resender, Selection
from sbpair.emulator.broker.mailbox import DEAD_LETTER, MAIN
from sbpair.emulator.broker.messages import Message, MessageStateCode
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.namespace import Namespace
from sbpair.ports import Ends, NamespaceAdmin
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.drain import ToQueue, TransferRequest, entity_facts
from sbpair.runtime.transfer.dry_run import ask_destinations
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.move import move
from sbpair.runtime.transfer.moving import MoveJob
from tests.simulation.determinism import wall
from tests.simulation.loop import Process
from tests.simulation.plan import HOUR, Burst, Trouble
from tests.simulation.truth import DOUBT_SECONDS, Lies, Violation, whole_lines

if TYPE_CHECKING:
    from tests.simulation.world import World

SOURCE_SIDE = "primary"
WORK, TOPIC, SUBSCRIPTION, PARKED = "work", "events", "events/Subscriptions/all", "parked"
LAST_MOVES = 8
AT_ONE_NAMESPACE = {
    *("throttle", "fail-sends", "refuse", "dark", "detach", "lose-settlement-reply", "short-locks", "store-full"),
    *("cut", "half-open", "crash-broker", "power-broker"),
}
"""Troubles that another namespace does not feel."""
MOST_DELAYS = 40
"""Links to a session and to its management are opened, and its state is read, before its lock is renewed first: a lock
that lasts for fewer delays of a packet may run out in between."""


@dataclass(slots=True)
class Filled:
    """A message as an application sent it."""

    number: int
    path: str
    """Where it was first."""
    session_id: str | None
    body: bytes
    scheduled_at: float | None
    state: str
    safe: bool = False


class Moves:
    """The entities that are emptied, where to, and all that is known of their messages."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.target_side = "secondary" if world.plan.move_across else SOURCE_SIDE
        self.filled: dict[str, Filled] = {}
        self.copies: Counter[str] = Counter()
        """In how many places a message lies now."""
        self.parked: set[str] = set()
        self.resent: Counter[str] = Counter()
        self.last_in_session: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self.with_state: set[str] = set()
        """Sessions with which an application has kept something."""
        self.processes: list[Process] = []
        self.excused_until = 0.0
        """So long something may keep an operator from renewing the lock of a session."""
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for side, path in ((SOURCE_SIDE, WORK), (SOURCE_SIDE, TOPIC), (SOURCE_SIDE, SUBSCRIPTION)):
            world.truth.watchers[side, path.lower()] = self
        world.truth.watchers[self.target_side, PARKED] = self

    def make(self, namespace: Namespace) -> None:
        plan = self.world.plan
        parts = {"enable_partitioning": plan.partitioned}
        if namespace.name == self.target_side:
            namespace.create_queue(PARKED, QueueDescription(requires_session=plan.move_sessions, **parts))
        if namespace.name == SOURCE_SIDE:
            settings = {"lock_duration_seconds": plan.lock_seconds, "max_delivery_count": MAX_DELIVERY_COUNT}
            namespace.create_queue(WORK, QueueDescription(requires_session=plan.move_sessions, **settings, **parts))
            namespace.create_topic(TOPIC, TopicDescription(**parts))
            description = SubscriptionDescription(requires_session=plan.move_sessions, **settings)
            namespace.create_subscription(TOPIC, SUBSCRIPTION.rpartition("/")[2], description)

    # -- messages

    def fill(self, burst: Burst) -> None:
        """An application sends, and another one has dead-lettered and deferred some of it already."""
        plan, broker = self.world.plan, self.world.brokers[SOURCE_SIDE]
        if plan.moves and broker.process.alive:
            self._check_states()
            for _ in range(min(burst.count, 12)):
                broker.run(self._put)

    def _put(self) -> None:
        world, plan, dice = self.world, self.world.plan, self.world.dice
        namespace = world.brokers[SOURCE_SIDE].namespace
        world.number += 1
        key, number = f"m{world.number}", world.number
        subscription = dice.random() < 0.3
        states = ("active", "active", "active", "dead", "deferred", *(() if subscription else ("scheduled",)))
        state = dice.choice(states)
        session = f"q{dice.randrange(plan.sessions)}" if plan.move_sessions or dice.random() < 0.3 else None
        at = wall(world.loop) + dice.choice([5.0, 90.0, 1000.0]) if state == "scheduled" else None
        body = dice.randbytes(dice.choice(plan.body_bytes)) + number.to_bytes(4, "big")
        filled = self.filled[key] = Filled(number, SUBSCRIPTION if subscription else WORK, session, body, at, state)
        payload = compose(
            body=body, message_id=key, session_id=session, application_properties={"n": Long(number)}, scheduled_at=at
        )
        entity: Queue | Subscription | None = namespace.get_queue(WORK)
        if subscription:
            entity = namespace.get_subscription(TOPIC, SUBSCRIPTION.rpartition("/")[2])
            topic = namespace.get_topic(TOPIC)
            assert topic is not None
            topic.send(payload)
        else:
            cast(Queue, entity).send(payload)
        assert entity is not None
        message = next(one for one in entity.main.log if one.message_id == key)  # not the last: partitions number alone
        if state == "dead" and not message.locked:
            entity.to_dead_letters(entity.main, message, "Refused", "The application could not work on it.")
        elif state == "deferred" and not message.locked:
            message.state = MessageStateCode.DEFERRED
            namespace.journal.put_message(entity, MAIN, message)
        if session is not None and entity.main.sessions is not None and dice.random() < 0.3:
            self._keep_state(namespace, entity, session)
        namespace.when_durable(lambda: setattr(filled, "safe", True))

    def _keep_state(self, namespace: Namespace, entity: Queue | Subscription, session_id: str) -> None:
        """An application has begun with a session. What it keeps is always the same, wherever the session lies."""
        assert entity.main.sessions is not None
        session = entity.main.sessions.ensure(session_id)
        if session.holder is None:
            session.state, session.changed_at = _state_of(session_id), wall(self.world.loop)
            namespace.journal.put_session(entity, session)
            namespace.when_durable(lambda: self.with_state.add(session_id))

    def _states(self) -> dict[str, set[str]]:
        """Where the state of each session is kept now."""
        found: dict[str, set[str]] = defaultdict(set)
        for entity in (*self._sources(), self.world.brokers[self.target_side].namespace.get_queue(PARKED)):
            for session in (entity and entity.main.sessions) or ():
                if session.state is not None:
                    assert entity is not None
                    found[session.id].add(entity.path.lower())
                    if session.state != _state_of(session.id):
                        raise Violation(f"session {session.id} has another state at {entity.path}")
        return found

    def _check_states(self) -> None:
        """A state is always somewhere. While a namespace is away nobody knows."""
        if all(self.world.brokers[side].process.alive for side in (SOURCE_SIDE, self.target_side)):
            states = self._states()
            for session_id in self.with_state:
                if not states[session_id]:
                    raise Violation(f"the state of session {session_id} is nowhere: it is lost")

    def stored(self, before: Lies | None, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        filled = self.filled.get(key)
        if filled is None:
            raise Violation(f"message {key} came to {lies.path} and was never sent")
        if before is not None:
            return
        self.copies[key] += 1
        self.world.trace.note("at", key, lies.path, lies.place, message.state.name)
        self._same_content(key, filled, lies, message)
        if lies.path == PARKED:
            self._parked(key, filled, message)

    def _same_content(self, key: str, filled: Filled, lies: Lies, message: Message) -> None:
        if message.head.session_id != filled.session_id:
            raise Violation(f"message {key} had session {filled.session_id} and is at {lies.path} with another")
        span = next(one for one in sections.scan(message.payload) if one.section == Section.DATA)
        if not message.payload[span.start : span.end].endswith(filled.body):
            raise Violation(f"message {key} is at {lies.path} with another body")
        names = dict(message.section(Section.APPLICATION_PROPERTIES) or {})  # type: ignore[call-overload]
        if lies.place == MAIN and names != {"n": filled.number}:
            raise Violation(f"message {key} is at {lies.path} with the properties {names}")

    def _parked(self, key: str, filled: Filled, message: Message) -> None:
        if message.state is MessageStateCode.SCHEDULED:
            wanted, found = filled.scheduled_at or 0.0, message.head.scheduled_at or 0.0
            if abs(found - wanted) >= 0.001:  # either side of half a millisecond
                raise Violation(f"message {key} was for {wanted}, and is for {found}")
        if key in self.parked:
            if not any(at > self.world.loop.time() - 3000.0 for at, _ in self.world.truth.doubts):
                raise Violation(f"message {key} was moved twice, and no answer was lost")
            return
        self.parked.add(key)
        if filled.state == "active" and filled.session_id is not None and not self.resent[key]:
            session = filled.path, filled.session_id
            if filled.number < (last := self.last_in_session[session]):
                raise Violation(f"message {key} of session {filled.session_id} was overtaken by number {last}")
            self.last_in_session[session] = filled.number

    def dropped(self, lies: Lies, message: Message) -> None:
        key = str(message.message_id)
        self.copies[key] -= 1
        self.world.trace.note("gone", key, lies.path, lies.place)
        if self.copies[key] < 1:
            raise Violation(f"message {key} was taken from {lies.path}, and is nowhere else: it is lost")

    def written(self, path: Path) -> None:
        """A ledger has changed."""
        known = self.lines[path.name]
        for line in whole_lines(path):
            place = str(line["queue"]).lower(), int(line["sequence_number"])
            if place in known or line["outcome"] != "forwarded":
                continue
            known.add(place)
            key = str(line["message_id"])
            self.world.trace.note("line", path.name, key)
            if key not in self.parked and not self.resent[key] and self.copies[key] < 2:
                raise Violation(f"the ledger says that {key} was moved, which has not arrived")

    # -- locks of sessions

    def excuse(self, trouble: Trouble, side: str) -> None:
        """This has struck, at this namespace if at any."""
        if side == SOURCE_SIDE or trouble.kind not in AT_ONE_NAMESPACE:
            until = self.world.loop.time() + trouble.seconds + DOUBT_SECONDS
            self.excused_until = max(self.excused_until, until)

    def session_lost(self, side: str, path: str, session_id: str) -> None:
        """Whatever becomes of the destination, a move keeps the session it works on."""
        world, plan = self.world, self.world.plan
        if side != SOURCE_SIDE or world.loop.time() < self.excused_until:
            return
        if plan.slow_share or plan.lock_seconds < MOST_DELAYS * plan.latency_seconds:
            return
        world.wrong(Violation(f"a move lost session {session_id} of {path}, and nothing was wrong there"))

    # -- processes

    def begin(self) -> None:
        if self.world.plan.moves:
            self.world.loop.create_task(self._again_and_again())

    async def _again_and_again(self) -> None:
        """An operator who moves what there is, and runs the command again after a while."""
        world = self.world
        while not world.ending:
            process = self._start(world.dice.choice([WORK, WORK, SUBSCRIPTION]), again=world.dice.random() < 0.2)
            await process.ended
            await asyncio.sleep(world.dice.choice([2.0, 20.0, 200.0]) * world.dice.uniform(0.5, 1.5))

    def _start(self, path: str, *, again: bool, last: bool = False) -> Process:
        """`again`: send the dead letters to their queue once more."""
        process = self.world.process("operator")
        self.processes = [process]
        process.start(self.world.guarded(process, self._move(process, path, again=again and path == WORK, last=last)))
        return process

    async def _move(self, process: Process, path: str, *, again: bool, last: bool) -> None:
        world, stop = self.world, asyncio.Event()
        world.stops[process] = stop
        to, to_side = (path, SOURCE_SIDE) if again else (PARKED, self.target_side)
        source = world.messaging(SOURCE_SIDE)
        target = source if to_side == SOURCE_SIDE else world.messaging(to_side)
        admin, target_admin = (world.admin(side) if world.plan.manage else None for side in (SOURCE_SIDE, to_side))
        here, there = (NamespaceAccess(side, side) for side in (SOURCE_SIDE, to_side))
        ends = Ends(source, target, admin, target_admin, source_access=here, target_access=there)
        request = TransferRequest(
            (path,),
            dead_letter=again,
            with_dead_letter=not again and (last or world.dice.random() < 0.5),
            deferred=not again,
            scheduled=not again,
            to=ToQueue(to),
            leave_missing=True,
            in_flight_messages=world.plan.in_flight_messages,
        )
        ledger: Ledger | None = None
        file = world.folder / f"moved-{'again' if again else 'parked'}-{path.rpartition('/')[2]}.jsonl"
        try:
            seen = await self._seen(ends, to)
            facts = {path: await entity_facts(cast(NamespaceAdmin, admin), path)} if admin is not None else {}
            judge = Planned(Resender(seen, Selection(), same_entity=again, now=lambda: world.clock.now().timestamp()))

            async def run(wanted: TransferRequest, to_ledger: Ledger | None) -> DrainReport:
                return await move(
                    MoveJob(
                        wanted,
                        ends,
                        judge,
                        seen=seen,
                        facts=facts,
                        clock=world.clock,
                        observer=Quiet(),
                        ledger=to_ledger,
                        stop=stop,
                    )
                )

            await run(_dry(request), None)
            judge.settle()
            if again:
                self._note_resent()
            ledger = Ledger(file, resume=True, opened=world.disk.opened) if world.plan.ledgers else None
            before = len(whole_lines(file))
            report = await run(request, ledger)
            if ledger is not None:
                world.truth.same_as_ledger(report.forwarded, whole_lines(file)[before:])
        finally:
            if ledger is not None:
                await ledger.close()
            await source.close()
            await target.close()

    def _note_resent(self) -> None:
        """What is sent to its queue again comes there behind what was sent meanwhile."""
        queue = self.world.brokers[SOURCE_SIDE].namespace.get_queue(WORK)
        assert queue is not None
        self.resent.update(str(one.message_id) for one in queue.dead_letters.log)

    async def _seen(self, ends: Ends, to: str) -> Any:
        admin, stop = ends.target_admin, asyncio.Event()
        asked = await ask_destinations([to], messaging=ends.target, admin=admin, stop=stop)
        if asked[0].error is not None:
            raise asked[0].error
        return asked[0]

    async def come_to_rest(self) -> None:
        """Everything goes, in as many runs as scheduled messages need."""
        world = self.world
        if not world.plan.moves:
            return
        for process in [one for one in self.processes if one.alive]:
            world.stops[process].set()
            await world.ended_within(process, 900.0, "did not end within 15 minutes of being told to stop")
        for _ in range(LAST_MOVES):
            if not self._left() and all(found == {PARKED} for found in self._states().values()):
                break
            for path in (WORK, SUBSCRIPTION):
                process = self._start(path, again=False, last=True)
                await world.ended_within(process, HOUR, "did not end by itself, and nothing was wrong")
            await asyncio.sleep(180.0)
        if left := self._left():
            raise Violation(f"messages were left by {LAST_MOVES} runs without any trouble: {left}")
        self._check_states()
        if behind := sorted(one for one, found in self._states().items() if found != {PARKED}):
            raise Violation(f"states of sessions were left by {LAST_MOVES} runs without any trouble: {behind}")
        for key, filled in self.filled.items():
            if filled.safe and key not in self.parked:
                raise Violation(f"message {key} was accepted, and was never moved")

    def _left(self) -> dict[str, int]:
        boxes = [box for entity in self._sources() for box in entity.mailboxes if box.place in (MAIN, DEAD_LETTER)]
        return {box.path: len(box.log) for box in boxes if len(box.log)}

    def _sources(self) -> tuple[Queue, Subscription]:
        namespace = self.world.brokers[SOURCE_SIDE].namespace
        queue = namespace.get_queue(WORK)
        subscription = namespace.get_subscription(TOPIC, SUBSCRIPTION.rpartition("/")[2])
        assert queue is not None and subscription is not None
        return queue, subscription


def _state_of(session_id: str) -> bytes:
    return f"so far of {session_id}".encode()


def _dry(request: TransferRequest) -> TransferRequest:
    return replace(request, dry_run=True)
