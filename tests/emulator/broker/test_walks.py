"""Random walks through a namespace: after each step its accounts agree, and after each restart all is as it was."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from itertools import chain

import pytest

from sbpair.amqp.types import Int
from sbpair.emulator.broker.messages import Message, MessageStateCode
from sbpair.emulator.entities import QueueDescription as Queue
from sbpair.emulator.entities import RuleDescription, SqlAction, SqlFilter, SubscriptionDescription, TopicDescription
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.store import open_store
from sbpair.engine.budgets import Background
from sbpair.engine.errors import BrokerError

QUEUES = {
    "plain": Queue(max_delivery_count=3, lock_duration_seconds=30, dead_lettering_on_message_expiration=True),
    "sessions": Queue(max_delivery_count=2, lock_duration_seconds=30, requires_session=True),
    "parts": Queue(enable_partitioning=True, requires_duplicate_detection=True, lock_duration_seconds=30),
    "narrow": Queue(lock_duration_seconds=30),
    "on": Queue(forward_to="narrow"),
    "dead-on": Queue(max_delivery_count=1, forward_dead_lettered_messages_to="plain", lock_duration_seconds=30),
    "to-topic": Queue(forward_to="events"),
}
FAILING, ACTING = SqlFilter(expression="1 / number > 0"), SqlAction(expression="SET seen = 'yes'")
SUBSCRIPTIONS = {
    "all": SubscriptionDescription(max_delivery_count=2, lock_duration_seconds=30),
    "some": SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=True),
    "sessions": SubscriptionDescription(requires_session=True, lock_duration_seconds=30),
    "on": SubscriptionDescription(forward_to="narrow"),
}
NARROW_BYTES = 600


def facts(message: Message) -> tuple[object, ...]:
    """All that a message is, but for its locks."""
    numbers = message.sequence_number, message.enqueued_sequence_number, message.delivery_count, message.hops
    times = message.enqueued_at, message.expires_at
    sent = message.payload, message.message_id, message.head
    return *sent, message.state, message.dead_letter_source, *numbers, *times


class Walk:
    """One namespace on a file, and what is done with it."""

    def __init__(self, bench, folder, seed: int) -> None:
        self.bench, self.folder, self.dice = bench, folder, random.Random(seed)
        self.inboxes: list[tuple[object, object]] = []
        self.open()
        self.namespace.create_topic(
            "events", TopicDescription(default_message_time_to_live_seconds=500, enable_partitioning=seed % 2 == 0)
        )
        for path, description in QUEUES.items():
            self.namespace.create_queue(path, description)
        for name, description in SUBSCRIPTIONS.items():
            rule = RuleDescription(filter=FAILING) if name == "some" else None
            self.namespace.create_subscription("events", name, description, rule=rule)
        self.namespace.create_rule("events", "all", "acting", RuleDescription(action=ACTING))
        self.namespace.get_queue("narrow").quota.limit_bytes = NARROW_BYTES

    def open(self) -> None:
        store = open_store(self.folder)
        self.bench.namespace = self.namespace = Namespace("bench", clock=self.bench.clock, store=store)
        self.namespace.background = Background(lambda: 0.0)  # all its work is short
        for queue in self.namespace.queues():
            queue.quota.limit_bytes = NARROW_BYTES if queue.path == "narrow" else queue.quota.limit_bytes

    @property
    def receivable(self) -> list:
        subscriptions = [self.namespace.get_subscription("events", name) for name in SUBSCRIPTIONS]
        return [*self.namespace.queues(), *subscriptions]

    def step(self) -> None:
        names = ("send", "send", "send", "receive", "receive", "settle", "settle", "settle", "numbers", "state", "time")
        with contextlib.suppress(BrokerError):  # what is refused has changed nothing, as the accounts tell
            getattr(self, self.dice.choice(names))()

    def send(self) -> None:
        dice, now = self.dice, self.bench.clock.now()
        entity = dice.choice([*self.namespace.queues(), self.namespace.get_topic("events")])
        payload = self.bench.message(
            "x" * dice.randrange(50),
            message_id=f"m{dice.randrange(500)}",
            session=dice.choice([None, "s", "S", "t"]),
            ttl=dice.choice([None, None, 20, 1000]),
            at=dice.choice([None, None, now + 40]),
            properties=dice.choice([None, {"number": Int(0)}, {"number": Int(1)}]),
        )
        entity.send(payload)

    def receive(self) -> None:
        entity = self.dice.choice(self.receivable)
        box = self.dice.choice(entity.mailboxes) if self.dice.random() < 0.3 else entity.main
        settled = self.dice.random() < 0.2
        if box.sessions is None:
            inbox = self.bench.receive(box, self.dice.randrange(1, 4), settled=settled)
        else:
            inbox = self.bench.accept(entity, self.dice.choice("st"), 2)
        self.inboxes.append((box, inbox))

    def settle(self) -> None:
        box, inbox = self.dice.choice(self.inboxes or [(None, None)])
        if box is None:
            return
        if self.dice.random() < 0.2:
            box.leave(inbox)
        elif inbox.tokens:
            verb = self.dice.choice(["complete", "abandon", "release", "defer", "dead_letter", "renew"])
            more = ("why", None, {"tried": verb}) if verb == "dead_letter" else ()
            getattr(box, verb)(self.dice.choice(inbox.tokens), *more)

    def numbers(self) -> None:
        entity = self.dice.choice(self.receivable)
        kept = [one for one in entity.main.log if one.state is MessageStateCode.DEFERRED]
        if kept and self.dice.random() < 0.7:
            got = entity.main.receive_deferred([kept[0].sequence_number], settled=self.dice.random() < 0.3)
            if got[0][1] is not None and self.dice.random() < 0.5:
                entity.main.abandon(got[0][1].token, {"again": "1"})
        for sent_to in (self.namespace.get_topic("events"), self.namespace.get_queue("plain")):
            log = sent_to.scheduled.log if hasattr(sent_to, "scheduled") else sent_to.main.log
            waiting = [one.sequence_number for one in log if one.state is MessageStateCode.SCHEDULED]
            if waiting and self.dice.random() < 0.3:
                sent_to.cancel_scheduled([self.dice.choice(waiting)])

    def state(self) -> None:
        queue, name = self.namespace.get_queue("sessions"), self.dice.choice("st")
        state = self.dice.choice([b"one", b"two", None])
        self.namespace.journal.put_session(queue, queue.main.sessions.set_state(name, state))

    def time(self) -> None:
        self.bench.clock.advance(self.dice.choice([0, 1, 6, 15, 31]))

    def check(self) -> None:
        """What is counted while messages come and go is what is found by counting."""
        topic = self.namespace.get_topic("events")
        used = {id(one.quota): sum(map(size, held(one))) for one in self.namespace.queues()}
        used[id(topic.quota)] = sum(size(one) for entity in topic.subscriptions.values() for one in held(entity))
        used[id(topic.quota)] += sum(map(size, topic.scheduled.log))
        assert topic.counts().scheduled == len(list(topic.scheduled.log))
        assert topic.counts().size_in_bytes == used[id(topic.quota)]
        for entity in self.receivable:
            assert entity.quota.used_bytes == used[id(entity.quota)], entity.path
            scheduled = sum(one.state is MessageStateCode.SCHEDULED for one in entity.main.log)
            counts = entity.counts()
            assert counts.scheduled == scheduled
            assert counts.active == len(list(entity.main.log)) - scheduled
            assert (counts.dead_letter, counts.transfer_dead_letter) == tuple(
                len(list(box.log)) for box in (entity.dead_letters, entity.transfer_dead_letters)
            )
            for box in entity.mailboxes:
                self.check_sessions(box)

    @staticmethod
    def check_sessions(box) -> None:
        locked = {lock.message for lock in map(box.locks.require, box.locks.tokens())}
        assert locked <= {one for one in box.log if one.locked}
        for session in box.sessions or ():
            assert session.is_needed
            assert list(session.log) == [
                one for one in box.log if box.sessions.key_of(one.head.session_id or "") == session.key
            ]

    def kept(self) -> dict[str, object]:
        """All that a store has to keep."""
        topic = self.namespace.get_topic("events")
        found: dict[str, object] = {
            "topic": (topic.description, topic.numbering.last, [facts(one) for one in topic.scheduled.log])
        }
        for entity in self.receivable:
            sessions = {one.key: one.state for one in entity.main.sessions or () if one.state is not None}
            found[entity.path] = (
                (entity.description, entity.numbering.last, entity.counts(), sessions),
                [[facts(one) for one in box.log] for box in entity.mailboxes],
                sorted(facts(one)[0] for one, _ in chain(entity.transfers._waiting, entity.transfers._refused)),
            )
        return found

    def restart(self) -> None:
        before = self.kept()
        self.close()
        self.open()
        assert self.kept() == before

    def close(self) -> None:
        self.inboxes.clear()
        self.namespace.close()


def held(entity) -> Iterator[Message]:
    yield from chain.from_iterable(box.log for box in entity.mailboxes)
    yield from (message for message, _ in chain(entity.transfers._waiting, entity.transfers._refused))


def size(message: Message) -> int:
    return len(message.payload)


@pytest.mark.parametrize("seed", range(6))
async def test_accounts_agree_after_each_step_and_all_is_there_after_each_restart(bench, tmp_path, seed):
    walk = Walk(bench, tmp_path / "bench", seed)
    for number in range(1, 241):
        walk.step()
        await asyncio.sleep(0)
        walk.check()
        if number % 40 == 0:
            walk.restart()
            walk.check()
    walk.close()
