"""Drains over queues with sessions, in any order of events: nothing overtakes, nothing is lost, nothing starves.

The model is a namespace of plain dictionaries. Each drain is the pump's machine and what it has under way: every answer
(a page, a receipt, a confirmation) comes as late as the case wants, and what others did meanwhile has happened.
"""

from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbpair.core.errors import ConnectionLostError, LockLostError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES, Disposition, Received
from sbpair.core.transfer.machine import Settlement
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
    ledger: dict = field(default_factory=dict)
    """What it has recorded as sent; a drain that was killed is continued with it."""
    machine: Settlement = None
    receiving: dict = field(default_factory=dict)
    sending: list = field(default_factory=list)
    settling: list = field(default_factory=list)
    sampling: list = field(default_factory=list)

    def begin(self):
        limits = Limits(in_flight_messages=6, sends=3)
        self.machine = Settlement(limits, forwarded=self.ledger)
        for queue in QUEUES:
            self.machine.add_queue(queue, LOCK_SECONDS)
        self.receiving, self.sending, self.settling, self.sampling = {}, [], [], []


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
        session = next(one.session for one in self.sent if one.name == received.message_id)
        return Forward(PAYLOAD, "orders", session)

    # What a drain has under way, one answer at a time

    def poll(self, drain):
        for action in drain.machine.poll(self.now):
            match action:
                case Measure(destination):
                    drain.machine.limit_known(destination, BATCH_BYTES, self.now)
                case Send(batch):
                    drain.sending.append(batch)
                case Settle():
                    drain.settling.append(action)
                case Sample(queue, first):
                    in_hand = drain.machine.in_hand(queue)
                    drain.sampling.append((action, in_hand, self.page(queue, first)))
                case Renew(_, received):
                    stored = self.locked(received)
                    if stored is None:
                        drain.machine.renew_failed(action, LockLostError("gone"), self.now)
                    else:
                        stored.locked_until = self.now + LOCK_SECONDS
                        drain.machine.renewed(action, stored.locked_until)

    def receive(self, drain, queue, most):
        if queue in drain.receiving or not (granted := drain.machine.grant(most, self.now, queue)):
            return
        received = self.hand_out(queue, granted)
        drain.machine.tried(queue, received, self.now)
        drain.machine.returned(granted)
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
            one.forgotten = drain.machine.forgotten(queue)
            one.skipped = drain.machine.skipped(one.received, one.verdicts)
        if one.skipped:
            one.mine = drain.machine.in_hand(queue) | {received.sequence_number for received in one.received}
            one.page = self.page(queue, one.skipped[0].first, one.skipped[0].last, most=10_000)
        elif drain.machine.forgotten(queue) != one.forgotten:
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
        if machine.hopeless_now(one.received):
            machine.gave_way(one.queue, self.now)
            del drain.receiving[one.queue]
            for received, verdict in zip(one.received, one.verdicts, strict=True):
                until = self.until(received)
                if verdict.session_id is not None:
                    machine.refused(received, lock_until=until, lock_seconds=LOCK_SECONDS)
                else:
                    machine.arrived(received, verdict, lock_until=until, lock_seconds=LOCK_SECONDS, now=self.now)
        elif machine.forgotten(one.queue) != one.forgotten:
            one.skipped = None
        else:
            machine.proved(one.queue, one.skipped.pop(0))

    def until(self, received):
        stored = self.locked(received)
        return self.now if stored is None else stored.locked_until

    def finish_send(self, drain, *, fails=False):
        if not drain.sending:
            return
        batch = drain.sending.pop(0)
        if fails:
            drain.machine.send_failed(batch, ConnectionLostError("no link"), self.now)
            return
        self.accept(drain, batch)
        drain.machine.remember(batch.items)
        drain.ledger |= dict.fromkeys(item.key for item in batch.items)
        drain.machine.sent(batch, self.now)

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
            drain.machine.settle_failed(settle, LockLostError("gone"), self.now)
            return
        if settle.disposition is Disposition.COMPLETE:
            assert key_of(settle.received) in drain.ledger, "completed without a line in the ledger"
            del self.queues[stored.queue][stored.number]
        else:
            stored.lock = None
        drain.machine.settled(settle, self.now)

    def finish_sample(self, drain):
        if drain.sampling:
            sample, in_hand, page = drain.sampling.pop(0)
            drain.machine.sampled(sample, page, in_hand=in_hand, now=self.now)

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
        while drain.settling:
            self.finish_settle(drain)

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


which = st.integers(0, DRAINS - 1)
queues = st.sampled_from(QUEUES)


class Order(RuleBasedStateMachine):
    @initialize(puts=st.lists(st.tuples(queues, st.sampled_from([0, 0, 1, 2, None])), min_size=6, max_size=24))
    def fill(self, puts):
        self.world, self.held = Namespaces(), None
        for queue, session in puts:
            self.world.put(queue, session)

    @rule(queue=queues, session=st.sampled_from([0, 1, None]))
    def put(self, queue, session):
        self.world.put(queue, session)

    @rule(place=which, queue=queues, most=st.integers(1, 8))
    def receive(self, place, queue, most):
        self.world.receive(self.world.drains[place], queue, most)

    @rule(place=which, queue=queues, steps=st.integers(1, 6))
    def go_on_receiving(self, place, queue, steps):
        for _ in range(steps):
            self.world.go_on_receiving(self.world.drains[place], queue)

    @rule(place=which)
    def poll(self, place):
        self.world.poll(self.world.drains[place])

    @rule(place=which, fails=st.sampled_from([False, False, False, True]))
    def send(self, place, fails):
        self.world.finish_send(self.world.drains[place], fails=fails)

    @rule(place=which, which_one=st.integers(0, 5))
    def settle(self, place, which_one):
        self.world.finish_settle(self.world.drains[place], which_one)

    @rule(place=which)
    def sample(self, place):
        self.world.finish_sample(self.world.drains[place])

    @rule(place=which)
    def work(self, place):
        self.world.work(self.world.drains[place])

    @rule(queue=queues, most=st.integers(1, 3))
    def lock_elsewhere(self, queue, most):
        self.world.hand_out(queue, most)

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 7.0, LOCK_SECONDS + 1]))
    def wait(self, seconds):
        self.world.now += seconds

    @rule(place=which, accepted=st.booleans())
    def kill(self, place, accepted):
        """Perhaps with a batch that has arrived and has no line yet. Its locks stay."""
        drain = self.world.drains[place]
        if accepted and drain.sending:
            self.world.accept(drain, drain.sending[0])
        drain.begin()

    @rule(queue=queues)
    def lock_elsewhere_for_good(self, queue):
        """Somebody who renews for ever; one message at the most."""
        if self.held is None and (received := self.world.hand_out(queue, 1)):
            self.held = self.world.locked(received[0])
            self.held.locked_until = float("inf")

    @invariant()
    def nothing_overtakes(self):
        if hasattr(self, "world"):
            assert not self.world.overtaken()

    def teardown(self):
        """Left alone, the drains bring everything back as soon as the last lock has ended."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if self.held is not None:
            for _ in range(60):
                world.work_round()
            assert self.held.number in world.queues[self.held.queue]
            self.held.locked_until = world.now
        world.work_until(lambda: not world.left)
        assert set(world.arrived) == {one.name for one in world.sent}, "lost"
        assert not world.overtaken()


TestOrder = Order.TestCase
# A case is a few dozen steps: making a failing one smaller takes minutes, and is for whoever looks into it.
TestOrder.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
