"""Drains over queues with sessions, in any order of events: nothing overtakes, nothing is lost, nothing starves.

    python -m tests.core.transfer.drains --seed 1 --seeds 20000
    python -m tests.core.transfer.drains --defects --seeds 3000

The model is a namespace of plain dictionaries. Each drain is the pump's machine and what it has under way: every answer
(a page, a receipt, a confirmation) comes as late as the case wants, and what others did meanwhile has happened.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sbpair.core.errors import ConnectionLostError, LockLostError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES, Disposition, Received
from sbpair.core.transfer.custody import Custody
from sbpair.core.transfer.machine import Holding, Settlement
from sbpair.core.transfer.order import QueueOrder, Queues
from sbpair.core.transfer.state import Forward, Limits, Measure, Renew, Sample, Send, Settle, key_of

QUEUES = ("q/0", "q/1")
LOCK_SECONDS = 20.0
PAYLOAD = bytes(100)
BATCH_BYTES = BATCH_ENVELOPE_BYTES + 2 * (len(PAYLOAD) + BATCHED_MESSAGE_BYTES)
"""Two messages."""
DRAINS = 3
PAGE_MESSAGES = 50
PATIENCE_ROUNDS = 600
"""Half a second each: many times what locks and the patience with slow leaders take."""


@dataclass
class Stored:
    queue: str
    number: int
    session: str | None
    lock: int | None = None
    locked_until: float = 0.0

    @property
    def name(self):
        return f"{self.queue}#{self.number}"


@dataclass
class Receiving:
    """A receive whose messages are locked and not told to the machine yet."""

    queue: str
    received: list
    verdicts: list
    forgotten: int = 0
    skipped: list | None = None
    page: list | None = None
    mine: frozenset = frozenset()


@dataclass
class Drain:
    rate: float | None = None
    ledger: dict = field(default_factory=dict)
    """What it has recorded as sent; a drain that was killed is continued with it."""
    machine: Settlement = None
    receiving: dict = field(default_factory=dict)
    sending: list = field(default_factory=list)
    settling: list = field(default_factory=list)
    sampling: list = field(default_factory=list)
    confirming: list = field(default_factory=list)
    """Settlements that the broker has made, and their answers."""

    def begin(self):
        limits = Limits(in_flight_messages=6, sends=3, rate_per_second=self.rate)
        self.machine = Settlement(limits, forwarded=self.ledger)
        for queue in QUEUES:
            self.machine.queues.add(queue, LOCK_SECONDS)
        self.receiving, self.sending, self.settling, self.sampling, self.confirming = {}, [], [], [], []


class Namespaces:
    """The backlog queues, the destination, and the drains between them."""

    def __init__(self):
        self.now = 1.0
        self.queues = {queue: {} for queue in QUEUES}
        self.put_last = dict.fromkeys(QUEUES, 0)
        self.locks = 0
        self.arrived = []
        self.sent = []
        self.drains = [Drain() for _ in range(DRAINS)]
        for drain in self.drains:
            drain.begin()

    # The broker

    def put(self, queue, session):
        self.put_last[queue] += 1
        stored = Stored(queue, self.put_last[queue], None if session is None else f"{queue}/s{session}")
        self.queues[queue][stored.number] = stored
        self.sent.append(stored)

    def hand_out(self, queue, most):
        free = [one for one in self.queues[queue].values() if one.lock is None or one.locked_until <= self.now][:most]
        for one in free:
            self.locks += 1
            one.lock, one.locked_until = self.locks, self.now + LOCK_SECONDS
        return [self.shown(one, receipt=one.lock) for one in free]

    def shown(self, stored, receipt=None):
        return Received(b"", stored.number, stored.queue, stored.name, enqueued_at=1.0, receipt=receipt)

    def locked(self, received):
        stored = self.queues[received.source].get(received.sequence_number)
        held = stored is not None and stored.lock == received.receipt and stored.locked_until > self.now
        return stored if held else None

    def page(self, queue, first, last=None, most=PAGE_MESSAGES):
        found = [
            one for one in self.queues[queue].values() if one.number >= first and (last is None or one.number <= last)
        ]
        return [self.shown(one) for one in found[:most]]

    def verdict(self, received):
        """Where it goes; the senders of a session spell it in several ways."""
        sent = next(one for one in self.sent if one.name == received.message_id)
        return Forward(PAYLOAD, "orders", sent.session and (sent.session.upper() if sent.number % 2 else sent.session))

    # What a drain has under way, one answer at a time

    def poll(self, drain):
        for action in drain.machine.poll(self.now):
            match action:
                case Measure(destination):
                    drain.machine.destinations.limit_known(destination, BATCH_BYTES)
                case Send(batch):
                    drain.sending.append(batch)
                case Settle():
                    drain.settling.append(action)
                case Sample(queue, first):
                    in_hand = drain.machine.queues.in_hand(queue)
                    drain.sampling.append((action, in_hand, self.page(queue, first)))
                case Renew(_, received):
                    stored = self.locked(received)
                    if stored is None:
                        drain.machine.custody.renew_failed(action, LockLostError("gone"), self.now)
                    else:
                        stored.locked_until = self.now + LOCK_SECONDS
                        drain.machine.custody.renewed(action, stored.locked_until)

    def receive(self, drain, queue, most):
        if queue in drain.receiving or not (granted := drain.machine.grant(most, self.now, queue)):
            return
        received = self.hand_out(queue, granted)
        drain.machine.queues.tried(queue, received, self.now)
        drain.machine.window.returned(granted)
        if received:
            drain.receiving[queue] = Receiving(queue, received, [self.verdict(one) for one in received])

    def go_on_receiving(self, drain, queue):
        """One step of what `runtime.transfer.pump` does between a receive and `arrived`."""
        one = drain.receiving.get(queue)
        if one is None:
            return
        if one.page is not None:
            self.tell_page(drain, one)
            return
        if one.skipped is None:
            one.forgotten = drain.machine.queues.forgotten(queue)
            one.skipped = drain.machine.queues.skipped(one.received, one.verdicts)
        if one.skipped:
            one.mine = drain.machine.queues.in_hand(queue) | {received.sequence_number for received in one.received}
            one.page = self.page(queue, one.skipped[0].first, one.skipped[0].last, most=10_000)
        elif drain.machine.queues.forgotten(queue) != one.forgotten:
            one.skipped = None
        else:
            del drain.receiving[queue]
            for received, verdict in zip(one.received, one.verdicts, strict=True):
                until = self.until(received)
                drain.machine.arrived(received, verdict, lock_until=until, lock_seconds=LOCK_SECONDS, now=self.now)

    def tell_page(self, drain, one):
        machine, page, one.page = drain.machine, one.page, None
        for shown in page:
            if shown.sequence_number not in one.mine:
                machine.expect(shown, self.verdict(shown), self.now)
        if machine.queues.hopeless_now(one.received):
            machine.queues.gave_way(one.queue, self.now)
            del drain.receiving[one.queue]
            for received, verdict in zip(one.received, one.verdicts, strict=True):
                until = self.until(received)
                if verdict.session_id is not None:
                    machine.custody.refused(received, lock_until=until, lock_seconds=LOCK_SECONDS)
                else:
                    machine.arrived(received, verdict, lock_until=until, lock_seconds=LOCK_SECONDS, now=self.now)
        elif machine.queues.forgotten(one.queue) != one.forgotten:
            one.skipped = None
        else:
            machine.queues.proved(one.queue, one.skipped.pop(0))

    def until(self, received):
        stored = self.locked(received)
        return self.now if stored is None else stored.locked_until

    def finish_send(self, drain, *, fails=False):
        if not drain.sending:
            return
        batch = drain.sending.pop(0)
        if fails:
            drain.machine.destinations.send_failed(batch, ConnectionLostError("no link"), self.now)
            return
        self.accept(drain, batch)
        drain.machine.custody.remember(batch.items)
        drain.ledger |= dict.fromkeys(item.key for item in batch.items)
        drain.machine.destinations.sent(batch, self.now)

    def accept(self, drain, batch):
        for item in batch.items:
            assert item.key not in drain.ledger, "sent again although its own ledger has it"
            self.arrived.append(item.received.message_id)

    def finish_settle(self, drain, place=0):
        if not drain.settling:
            return
        settle = drain.settling.pop(place % len(drain.settling))
        stored = self.locked(settle.received)
        if stored is None:
            drain.confirming.append((settle, LockLostError("gone")))
            return
        if settle.disposition is Disposition.COMPLETE:
            assert key_of(settle.received) in drain.ledger, "completed without a line in the ledger"
            del self.queues[stored.queue][stored.number]
        else:
            stored.lock = None
        drain.confirming.append((settle, None))

    def confirm(self, drain, place=0):
        """The answer to a settlement arrives; meanwhile the message may have come again."""
        if not drain.confirming:
            return
        settle, error = drain.confirming.pop(place % len(drain.confirming))
        if error is None:
            drain.machine.custody.settled([settle])
        else:
            drain.machine.custody.settle_failed(settle, error, self.now)

    def finish_sample(self, drain):
        if drain.sampling:
            sample, in_hand, page = drain.sampling.pop(0)
            drain.machine.queues.sampled(sample, page, in_hand=in_hand, now=self.now)

    def work(self, drain):
        """Everything that can be done now."""
        for queue in QUEUES:
            self.receive(drain, queue, 4)
        for queue in QUEUES:
            for _ in range(6):
                self.go_on_receiving(drain, queue)
        self.poll(drain)
        while drain.sampling:
            self.finish_sample(drain)
        while drain.sending:
            self.finish_send(drain)
        self.poll(drain)
        while drain.settling or drain.confirming:
            self.finish_settle(drain)
            self.confirm(drain)

    def work_until(self, done):
        """Rounds of all drains until that is so."""
        for _ in range(PATIENCE_ROUNDS):
            if done():
                return
            self.work_round()
        assert done(), "something starves"

    def work_round(self):
        for drain in self.drains:
            self.work(drain)
        self.now += 0.5

    @property
    def left(self):
        return sum(map(len, self.queues.values()))

    def left_beside(self, held):
        """What is left and does not wait for that message, being of another session or before it."""
        return [
            one
            for queue in self.queues.values()
            for one in queue.values()
            if one is not held and (one.session is None or one.session != held.session or one.number < held.number)
        ]

    def overtaken(self):
        """The first message that came before an earlier one of its session had come for the first time."""
        order = {}
        for one in self.sent:
            if one.session is not None:
                order.setdefault(one.session, []).append(one.name)
        session_of = {one.name: one.session for one in self.sent}
        came = {}
        for name in dict.fromkeys(self.arrived):
            if (session := session_of[name]) is not None:
                came.setdefault(session, []).append(name)
        return [(session, names) for session, names in came.items() if names != order[session][: len(names)]]


# A history: events drawn by a seed, then peace, in which everything has to arrive.


class History:
    """One seed's. Fails with AssertionError."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.world = Namespaces()
        self.held = None
        """A message whose holder renews its lock until peace comes."""
        self.sessions = self.chance.choice([[0], [0, 0, 1, 2, None], [0, 1, None]])
        self.queues = self.chance.choice([QUEUES[:1], QUEUES])
        for drain in self.world.drains:
            drain.rate = self.chance.choice([None, None, 2.0])
            drain.begin()
        self.drains = self.world.drains[: self.chance.choice([2, DRAINS])]
        for _ in range(self.chance.randint(4, 24)):
            self.put()

    def live(self):
        steps = [getattr(self, name) for name in WEIGHTS]
        for step in self.chance.choices(steps, list(WEIGHTS.values()), k=self.chance.randint(10, 60)):
            step()
            self.check()
        self.rest()

    def check(self):
        assert not self.world.overtaken(), "overtaken"

    def drain(self):
        return self.chance.choice(self.drains)

    def queue(self):
        return self.chance.choice(self.queues)

    # What may happen

    def put(self):
        self.world.put(self.queue(), self.chance.choice(self.sessions))

    def receive(self):
        self.world.receive(self.drain(), self.queue(), self.chance.randint(1, 8))

    def go_on_receiving(self):
        drain, queue = self.drain(), self.queue()
        for _ in range(self.chance.randint(1, 6)):
            self.world.go_on_receiving(drain, queue)

    def take_in(self):
        """A receive with all that belongs to it, and nothing sent."""
        drain, queue = self.drain(), self.queue()
        self.world.receive(drain, queue, self.chance.randint(1, 4))
        for _ in range(6):
            self.world.go_on_receiving(drain, queue)

    def poll(self):
        self.world.poll(self.drain())

    def send(self):
        self.world.finish_send(self.drain(), fails=self.chance.random() < 0.25)

    def settle(self):
        drain = self.drain()
        self.world.finish_settle(drain, self.chance.randint(0, 5))
        if self.chance.random() < 0.6:
            self.world.confirm(drain)

    def confirm(self):
        self.world.confirm(self.drain(), self.chance.randint(0, 5))

    def sample(self):
        self.world.finish_sample(self.drain())

    def work(self):
        drain = self.drain()
        for _ in range(self.chance.randint(1, 3)):
            self.world.work(drain)

    def lock_elsewhere(self):
        self.world.hand_out(self.queue(), self.chance.randint(1, 3))

    def wait(self):
        self.world.now += self.chance.choice([0.1, 0.6, 3.0, 7.0, 7.0, LOCK_SECONDS + 1])

    def kill(self):
        """Perhaps with a batch that has arrived and has no line yet. Its locks stay."""
        drain = self.drain()
        if drain.sending and self.chance.random() < 0.5:
            self.world.accept(drain, drain.sending[0])
        drain.begin()

    def lock_elsewhere_for_good(self):
        """Somebody who renews; one message at the most."""
        if self.held is None and (received := self.world.hand_out(self.queue(), 1)):
            self.held = self.world.locked(received[0])
            self.held.locked_until = float("inf")

    # Peace

    def rest(self):
        """Left alone, the drains bring everything back: what does not wait for a lock that is renewed for ever at once,
        and the rest as soon as that has ended."""
        world, held = self.world, self.held
        if held is not None:
            for _ in range(40):
                world.work_round()
                self.check()
            self.put_many_beside()
            world.work_until(lambda: not world.left_beside(held))
            assert held.number in world.queues[held.queue]
            held.locked_until = world.now
        world.work_until(lambda: not world.left)
        assert set(world.arrived) == {one.name for one in world.sent}, "lost"
        self.check()

    def put_many_beside(self):
        """More than may be held, of the session that waits, and then something of another one."""
        session = None if self.held.session is None else int(self.held.session.rpartition("s")[2])
        for _ in range(self.chance.randint(0, 9)):
            self.world.put(self.held.queue, session)
        self.world.put(self.held.queue, 9)


WEIGHTS = {
    "put": 2,
    "receive": 4,
    "go_on_receiving": 4,
    "take_in": 4,
    "poll": 5,
    "send": 4,
    "settle": 6,
    "confirm": 3,
    "sample": 3,
    "work": 4,
    "lock_elsewhere": 1,
    "wait": 4,
    "kill": 1,
    "lock_elsewhere_for_good": 1,
}


def failure_of(seed):
    """What goes wrong in this seed's history; empty if nothing does."""
    try:
        History(seed).live()
    except AssertionError as error:
        return str(error).partition("\n")[0] or "failed"
    return ""


# Defects to plant: histories that find none of them prove nothing.


def _nothing(*_, **__):
    """Do not do it."""


def _proof_outlives_release(self):
    self.forgotten += 1


def _early_gap_closed(self, first, page, now):
    for number in list(self.gaps):
        if self.unmoved_seconds(now) > LOCK_SECONDS:
            self.close_gap(number)
    _SAMPLED(self, first, page, now)


def _gaps_beyond_the_page_closed(self, first, page, now):
    there = {one.sequence_number for one in page[:1]}
    for number in [one for one in self.gaps if one >= first and one not in there]:
        self.close_gap(number)
    _SAMPLED(self, first, page, now)


def _blocked_only_next(self, lane, number):
    gaps = self.lanes.get(lane)
    lowest = gaps.lowest() if gaps is not None else None
    return lowest is not None and lowest == number - 1


def _blocked_kept(self, order, blocked, now):
    order.stand_back(now)


def _never_holds(self, now):
    self.may_try = True


def _as_if_nothing_were_forgotten(self, source):
    return 0


_SAMPLED = QueueOrder.gaps_sampled
DEFECTS = {
    "what is released stays proven": (QueueOrder, "forget", _proof_outlives_release),
    "nothing waits for what was released or lost": (Queues, "await_return", _nothing),
    "what others have locked is not waited for": (Settlement, "expect", _nothing),
    "a gap closes after the time of a lock": (QueueOrder, "gaps_sampled", _early_gap_closed),
    "a gap closes if it is not on the first page": (QueueOrder, "gaps_sampled", _gaps_beyond_the_page_closed),
    "only the message right behind a gap waits": (QueueOrder, "blocks", _blocked_only_next),
    "what is blocked stays in hand when the gaps are forgotten": (Holding, "_step_back", _blocked_kept),
    "nothing goes past a message that is locked for good": (QueueOrder, "hold", _never_holds),
    "what was sent is not remembered": (Custody, "remember", _nothing),
}

UNLIKELY = {
    "a browse proves although something was released meanwhile": (Queues, "forgotten", _as_if_nothing_were_forgotten)
}
"""Defects that a history drawn by a seed hardly ever meets: `overtaken_amid_a_receive` is one that does."""


def overtaken_amid_a_receive():
    """A drain steps back between the browse of what a receive skipped and its answer; who overtook."""
    world, (queue, *_) = Namespaces(), QUEUES
    drain = world.drains[0]
    for session in (0, 0, 0, None, 0, 0, 0, 0):
        world.put(queue, session)
    _take(world, drain, queue, 1)
    _send_all(world, drain)
    (held,) = world.hand_out(queue, 1)
    world.locked(held).locked_until = float("inf")
    _take(world, drain, queue, 1)  # what waits for that one
    (gone,) = world.hand_out(queue, 1)  # somebody else's, of no session, and brought back by now
    del world.queues[queue][gone.sequence_number]
    world.receive(drain, queue, 4)
    world.go_on_receiving(drain, queue)
    assert drain.receiving[queue].page, "browsed, and not told yet"
    for _ in range(3):
        world.poll(drain)
        world.now += 4.0
    assert drain.machine.queues.standing_back(queue), "somebody else has what comes first"
    for _ in range(6):
        world.go_on_receiving(drain, queue)
    _send_all(world, drain)
    return world.overtaken()


def _take(world, drain, queue, most):
    world.receive(drain, queue, most)
    for _ in range(6):
        world.go_on_receiving(drain, queue)


def _send_all(world, drain):
    for _ in range(3):
        world.poll(drain)
        while drain.sending:
            world.finish_send(drain)
        while drain.settling or drain.confirming:
            world.finish_settle(drain)
            world.confirm(drain)


@contextmanager
def planted(what: str) -> Iterator[None]:
    """The product with one of the defects."""
    owner, name, instead = (DEFECTS | UNLIKELY)[what]
    kept = getattr(owner, name)
    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def seeds_until_found(what: str, most: int) -> int | None:
    """How many histories it takes to notice the defect; None if these do not."""
    with planted(what):
        return next((seed for seed in range(1, most + 1) if failure_of(seed)), None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.core.transfer.drains", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--defects", action="store_true", help="plant each, and count the seeds until it is found")
    chosen = parser.parse_args()
    failed = 0
    if chosen.defects:
        for what in DEFECTS:
            found = seeds_until_found(what, chosen.seeds)
            failed += found is None
            print(f"{what}: {f'seed {found}' if found else 'NOT FOUND'}", flush=True)
    else:
        for seed in range(chosen.seed, chosen.seed + chosen.seeds):
            if failure := failure_of(seed):
                failed += 1
                print(f"seed {seed}: {failure}", flush=True)
        print(f"{chosen.seeds} histories, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
