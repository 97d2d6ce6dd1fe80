"""Sessions keep their order whatever is locked by whom, and drains that share a pair do not wait for each other."""

import asyncio
import json
import random

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import ConnectionLostError, ServerBusyError
from sbpair.core.events import LedElsewhere, LockedElsewhere
from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.report import Left
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.syphon import syphon
from tests.fakes import FakeClock, FakeNamespace, FakeProcessor, RecordingObserver, run_virtual, virtual_time


class World:
    """Backlog queues that count their messages one by one, and as many drains over them as are wanted."""

    def __init__(self, queues=4, lock_seconds=60.0):
        self.clock = FakeClock()
        self.secondary = FakeNamespace("secondary", self.clock)
        self.primary = FakeNamespace("primary", self.clock)
        self.secondary.delays = {"receive": 0.01, "settle": 0.005, "peek": 0.005}
        self.primary.delays = {"send": 0.02}
        settings = QueueSettings(lock_duration_seconds=lock_seconds)
        self.paths = tuple(f"primary/x-servicebus-transfer/{index}" for index in range(queues))
        self.queues = [self.secondary.add_queue(path, settings) for path in self.paths]
        self.orders = self.primary.add_queue("orders")
        self.sent = 0

    def fill(self, messages, sessions):
        """`sessions` 0: none."""
        queues = {path: [] for path in self.paths}
        for number in range(messages):
            session = number % sessions if sessions else None
            queue = (session if session is not None else number) % len(self.paths)
            payload = compose(
                body=b"x", message_id=f"{number:06}", session_id=None if session is None else f"s{session}"
            )
            queues[self.paths[queue]].append(for_backlog(payload, "orders"))
        for path, payloads in queues.items():
            self.secondary.put(path, *payloads)  # one after another: a queue's numbers come without a hole
        self.sent += messages

    def start(self, what=drain, *, ledger=None, stop=None, **options):
        """A drain in a process of its own: its client can be killed."""
        secondary, primary, observer = self.secondary.messaging(), self.primary.messaging(), RecordingObserver()
        work = asyncio.create_task(
            what(
                DrainJob(
                    TransferRequest(self.paths, **options),
                    secondary=secondary,
                    primary=primary,
                    clock=self.clock,
                    observer=observer,
                    ledger=ledger,
                    stop=stop or asyncio.Event(),
                )
            )
        )
        work.observer = observer

        async def kill():
            secondary.kill()
            primary.kill()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

        work.kill = kill
        return work

    def arrived(self):
        return [describe(payload) for payload in self.orders.payloads]

    def check(self, *, doubles=0):
        """Nothing lost, each session in its order, and no more doubles than allowed."""
        arrived = [summary.message_id for summary in self.arrived()]
        assert len(set(arrived)) == self.sent, "lost"
        assert len(arrived) - self.sent <= doubles, "doubles"
        by_session = {}
        for summary in self.arrived():
            if summary.session_id is not None:
                by_session.setdefault(summary.session_id, {})[summary.message_id] = None
        for session, numbers in by_session.items():
            assert list(numbers) == sorted(numbers), f"{session} lost its order"

    def remaining(self):
        return sum(len(queue.messages) for queue in self.queues)


async def seconds_of(drains, messages, sessions):
    world = World()
    world.primary.delays["send"] = 0.25
    world.fill(messages, sessions)
    began = world.clock.monotonic()
    reports = await asyncio.gather(*(world.start(in_flight_messages=200) for _ in range(drains)))
    seconds = world.clock.monotonic() - began
    world.check()
    assert all(report.confirmed_empty for report in reports), reports
    return seconds


@pytest.mark.parametrize("sessions", [0, 12, 200])
@pytest.mark.parametrize("drains", [2, 3, 5])
def test_drains_that_share_a_pair_take_hardly_longer_than_one(drains, sessions):
    alone = run_virtual(seconds_of(1, 1600, sessions))
    together = run_virtual(seconds_of(drains, 1600, sessions))
    assert together <= 1.5 * alone, (alone, together)


async def busy_seconds_of(drains, messages, sessions, slow=4):
    """As `seconds_of`, where everything that is asked for takes its share of one processor: nothing is for free."""
    world = World(queues=10)
    processor = FakeProcessor(
        world.clock, receive=slow * 0.0003, peek=slow * 0.00016, settle=slow * 0.0002, send=slow * 0.0002
    )
    world.secondary.processor = world.primary.processor = processor
    world.fill(messages, sessions)

    async def one(index):
        await asyncio.sleep(0.05 * index)
        return await world.start()

    reports = await asyncio.gather(*(one(index) for index in range(drains)))
    seconds = world.clock.monotonic()
    world.check()
    assert all(report.confirmed_empty for report in reports), reports
    return seconds


@pytest.mark.parametrize("sessions", [12, 200])
def test_drains_do_not_cost_each_other_what_all_of_them_need(sessions):
    alone = run_virtual(busy_seconds_of(1, 1600, sessions))
    for drains in (2, 3, 5):
        together = run_virtual(busy_seconds_of(drains, 1600, sessions))
        # One that is alone asks for no messages one by one; who opens a queue that others lead in has to.
        assert together <= 1.6 * alone, (drains, alone, together)


def test_two_syphons_share_a_pair_too():
    @virtual_time
    async def scenario():
        world = World()
        world.fill(2000, 100)
        stop = asyncio.Event()
        running = [world.start(syphon, stop=stop) for _ in range(2)]
        async with asyncio.timeout(15):
            while world.remaining():
                await asyncio.sleep(0.1)
        stop.set()
        await asyncio.gather(*running)
        world.check()

    scenario()


def test_a_drain_ends_soon_after_others_have_taken_all_that_it_waited_for():
    @virtual_time
    async def scenario():
        world = World(queues=1)
        world.fill(4, 1)
        others = world.secondary.messaging().receiver(world.paths[0])
        taken = await others.receive(1, wait_seconds=1)
        running = world.start()
        await asyncio.sleep(2)  # it has met the others' lock, released the rest and stands back
        assert world.remaining() == 4
        taken += await others.receive(3, wait_seconds=1)
        await asyncio.sleep(6)  # the head has not moved: it reads on, and nothing is free
        for one in taken:
            await others.settle(one, Disposition.COMPLETE)
        done = world.clock.monotonic()
        report = await running
        assert report.confirmed_empty
        assert world.clock.monotonic() - done < 10

    scenario()


@pytest.mark.parametrize("in_flight", [50, 2000])
def test_a_kill_costs_no_order_when_the_backlog_is_larger_than_the_window(in_flight, tmp_path):
    @virtual_time
    async def scenario():
        world = World(queues=2, lock_seconds=20.0)
        world.fill(2400, 12)
        ledger = Ledger(tmp_path / "ledger.jsonl")
        for life in range(4):
            running = world.start(ledger=ledger, in_flight_messages=in_flight)
            before = len(world.orders.messages)
            while len(world.orders.messages) < before + 200:
                await asyncio.sleep(0.01)
            await running.kill()
            await ledger.close()
            ledger = Ledger(tmp_path / "ledger.jsonl", resume=True)
            assert world.remaining() > in_flight or life > 0
        began = world.clock.monotonic()
        report = await world.start(ledger=ledger, in_flight_messages=in_flight)
        await ledger.close()
        assert report.confirmed_empty
        # Not before the killed one's locks end, and soon after.
        assert world.clock.monotonic() - began < 20 + 10 + 2400 / in_flight
        # Doubles: no more than what the killed ones had sent without having recorded it.
        world.check(doubles=4 * min(in_flight, 8 * 1000))
        lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
        recorded = {line["message_id"] for line in lines if line["outcome"] == "forwarded"}
        arrived = [summary.message_id for summary in world.arrived()]
        doubled = {one for one in arrived if arrived.count(one) > 1} if len(arrived) > world.sent else set()
        assert doubled <= recorded

    scenario()


@virtual_time
async def test_one_locked_message_stops_its_session_and_no_other():
    world = World(queues=1)
    world.fill(900, 30)
    other = world.secondary.messaging().receiver(world.paths[0])
    held = (await other.receive(40, wait_seconds=1))[-1]
    await asyncio.sleep(61)

    async def keep():
        again = await other.receive(40, wait_seconds=1)
        mine = next(one for one in again if one.sequence_number == held.sequence_number)
        for one in again:
            if one is not mine:
                await other.settle(one, "release")
        while True:
            await other.renew_lock(mine)
            await asyncio.sleep(20)

    keeping = asyncio.create_task(keep())
    await asyncio.sleep(1)
    world.paths = (world.paths[0].title(),)  # another spelling than that of its messages
    running = world.start()
    await asyncio.sleep(20)
    assert len(world.orders.messages) == 871, "29 messages of the session come after the locked one or are it"
    began = world.clock.now().timestamp()
    report = await running
    keeping.cancel()
    [locked] = report.locked
    assert locked.queue == world.paths[0]
    [event, *_] = running.observer.of(LockedElsewhere)
    assert (event.queue, event.sequence_number) == (world.paths[0], held.sequence_number)
    assert event.until <= began + 60
    assert report.left == (Left("behind a message that is locked elsewhere", 28), Left("locked elsewhere", 1))
    assert report.seconds < 90
    assert all(stored.delivery_count <= 1 for stored in world.queues[0].messages.values())
    arrived = [summary.message_id for summary in world.arrived()]
    assert len(arrived) == len(set(arrived)) == 871


@virtual_time
async def test_a_drain_takes_over_from_a_syphon_with_a_rate_and_says_who_leads_until_then():
    world = World(queues=4)
    world.fill(6000, 24)
    stop = asyncio.Event()
    slow = world.start(syphon, stop=stop, rate_per_second=20.0)
    await asyncio.sleep(3)
    running = world.start()
    report = await running
    assert report.confirmed_empty
    assert report.forwarded > 4000
    assert report.seconds < 100, "the syphon alone takes 300"
    told = running.observer.of(LedElsewhere)
    assert set(told[0].queues) <= set(world.paths)
    assert 1 < told[0].messages_per_second < 40
    stop.set()
    await slow
    world.check()


@virtual_time
async def test_a_rate_that_nobody_waits_for_is_kept():
    world = World(queues=4)
    world.fill(2000, 24)
    report = await world.start(rate_per_second=20.0)
    assert report.confirmed_empty
    assert 99 < report.seconds < 112
    world.check()


class Budget:
    """Of the messages that a namespace takes in a second of the clock; what is beyond is refused."""

    def __init__(self, clock, per_second):
        self._clock, self._per_second = clock, per_second
        self._second = self._spent = self.refused = 0

    async def spend(self, operation, messages):
        if operation != "send":
            return
        second = int(self._clock.monotonic())
        if second != self._second:
            self._spent = max(0, self._spent - self._per_second * (second - self._second))
            self._second = second
        if self._spent >= self._per_second:
            self.refused += messages
            raise ServerBusyError("throttled")
        self._spent += messages


@pytest.mark.parametrize("sessions", [0, 40])
@virtual_time
async def test_a_throttled_primary_gets_what_its_budget_allows_and_hardly_more(sessions):
    world = World(queues=4)
    world.primary.processor = budget = Budget(world.clock, 200)
    world.fill(6000, sessions)
    report = await world.start()
    assert report.confirmed_empty
    assert report.seconds < 45, "30 at least; what the budget is has to be learnt first"
    assert budget.refused <= 1000, "hardly more than was under way at the first refusal"
    world.check()


@virtual_time
async def test_what_a_leader_cannot_send_does_not_keep_others_waiting_for_ever():
    """Two drains of which one cannot reach the primary: the other takes over what that one releases."""
    world = World(queues=2)
    world.fill(600, 12)
    cut_off = world.start(patience_seconds=30.0)
    cut_off_primary = world.primary.fail("send", ConnectionLostError("down"), times=6)
    await asyncio.sleep(0.5)
    other = world.start()
    await asyncio.gather(cut_off, other)
    world.primary.heal(cut_off_primary)
    await world.start()
    world.check()
    assert world.remaining() == 0


@virtual_time
async def test_a_browse_that_fails_overtakes_nothing():
    world = World(queues=1, lock_seconds=20.0)
    world.fill(300, 3)
    dead = world.secondary.messaging().receiver(world.paths[0])
    await dead.receive(50, wait_seconds=1)
    world.secondary.fail("peek", ConnectionLostError("no answer"), times=8)
    report = await world.start(patience_seconds=1000, unreached_seconds=1000)
    assert report.confirmed_empty
    world.check()


@pytest.mark.parametrize("seed", range(8))
def test_several_drains_with_kills_keep_every_session_in_order(seed, tmp_path):
    """Processes come and go at random over one backlog, each with a ledger of its own."""

    @virtual_time
    async def scenario():
        chance = random.Random(seed)
        world = World(queues=3, lock_seconds=chance.choice([5.0, 20.0]))
        world.primary.delays["send"] = chance.choice([0.01, 0.3])
        world.fill(1200, chance.choice([3, 12, 60]))
        running, ledgers, kills = [], [], 0
        while world.remaining() and kills < 8:
            while len(running) < 3:
                ledgers.append(Ledger(tmp_path / f"{len(ledgers)}.jsonl"))
                running.append(world.start(ledger=ledgers[-1], in_flight_messages=chance.choice([20, 200, 2000])))
            await asyncio.sleep(chance.random() * 4)
            victim = running.pop(chance.randrange(3))
            if not victim.done():
                await victim.kill()
                kills += 1
        await asyncio.gather(*running)
        report = await world.start()
        assert report.confirmed_empty
        world.check(doubles=world.sent)
        for ledger in ledgers:
            await ledger.close()

    scenario()


@pytest.mark.parametrize("seed", [101, 102])
def test_several_drains_with_kills_keep_every_session_in_order_however_slow_an_answer_is(seed):
    """Each answer takes a time of its own: what one drain browses changes under it, as others take and release."""

    @virtual_time
    async def scenario():
        chance = random.Random(seed)
        world = World(queues=chance.choice([1, 2]), lock_seconds=chance.choice([5.0, 20.0]))
        world.primary.delays["send"] = chance.choice([0.01, 0.1, 0.3])
        slowest = chance.choice([0.02, 0.2, 0.5])

        async def slow(operation, entity):
            await asyncio.sleep(chance.random() ** 3 * slowest)

        world.secondary.hook = world.primary.hook = slow
        world.fill(400, chance.choice([3, 6, 30]))
        running, kills = [], 0
        while world.remaining() and kills < 8:
            while len(running) < 3:
                running.append(world.start(in_flight_messages=chance.choice([20, 200, 2000])))
            await asyncio.sleep(chance.random() * 4)
            victim = running.pop(chance.randrange(3))
            if not victim.done():
                await victim.kill()
                kills += 1
        await asyncio.gather(*running)
        report = await world.start()
        assert report.confirmed_empty
        world.check(doubles=world.sent)

    scenario()
