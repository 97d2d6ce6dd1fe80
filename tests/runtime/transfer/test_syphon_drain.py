"""Draining fake namespaces in virtual time: everything home, in order, once; and what is left is explained."""

import asyncio
import base64
import json
import time
from dataclasses import replace

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import HeaderField, Section
from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.entities import Counts, QueueSettings
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityNotFoundError,
    LockLostError,
    OperationTimeoutError,
    QuotaExceededError,
    SendIncompleteError,
    ServerBusyError,
    TokenExpiredError,
    UnauthorizedError,
    UsageError,
)
from sbpair.core.events import BacklogCounted, DeadLettered, Forwarded, PairingNoticed, Paused, QueueAppeared, Resumed
from sbpair.core.message import Disposition
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import TtlMode, compose, describe, for_backlog, ping_message
from sbpair.core.transfer.conclusion import Asked, closing, exit_of
from sbpair.core.transfer.filters import FilterError, MessageFilter, Where
from sbpair.core.transfer.report import TOO_MANY_LEFT, Left
from sbpair.core.transfer.state import Limits
from sbpair.runtime.browse import PAGE_MESSAGES
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, ToQueue, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger, LedgerError, Recorder, outcomes_in
from sbpair.runtime.transfer.syphon import RECOUNT_SECONDS, SOON_SECONDS, syphon
from tests.fakes import EPOCH, FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.waiting import LIMIT_SECONDS


class World:
    """A pair of fake namespaces with backlog queues, and what is needed to drain them."""

    def __init__(self, queues=3, lock_seconds=60.0):
        self.clock = FakeClock()
        self.secondary = FakeNamespace("secondary", self.clock)
        self.primary = FakeNamespace("primary", self.clock)
        settings = QueueSettings(lock_duration_seconds=lock_seconds)
        self.paths = tuple(f"primary/x-servicebus-transfer/{index}" for index in range(queues))
        self.queues = [self.secondary.add_queue(path, settings) for path in self.paths]
        self.orders = self.primary.add_queue("orders")
        self.observer = RecordingObserver()
        self.ledger = None
        self.stop = asyncio.Event()
        self.admin = self.secondary.admin()

    def divert(self, payload, destination="orders", queue=0):
        self.secondary.put(self.paths[queue], for_backlog(payload, destination))

    async def drain(self, **options):
        return await self._run(drain, TransferRequest(self.paths, **options))

    async def syphon(self, **options):
        return await self._run(syphon, TransferRequest(self.paths, **options))

    async def _run(self, what, request):
        return await what(
            DrainJob(
                request,
                secondary=self.secondary.messaging(),
                primary=self.primary.messaging(),
                admin=self.admin,
                clock=self.clock,
                observer=self.observer,
                ledger=self.ledger,
                stop=self.stop,
            )
        )

    def remaining(self):
        return sum(len(queue.messages) for queue in self.queues)

    def dead_letters(self):
        return [payload for queue in self.queues for payload in queue.dead_letters.payloads]


def message(number, **kwargs):
    return compose(body=f"body {number}", message_id=f"m{number}", **kwargs)


def ids(payloads):
    return [describe(payload).message_id for payload in payloads]


@virtual_time
async def test_everything_goes_home_byte_for_byte():
    world = World()
    sent = [message(number, application_properties={"n": number}, ttl_seconds=60) for number in range(500)]
    for number, payload in enumerate(sent):
        world.divert(payload, queue=number % 3)
    report = await world.drain()
    assert sorted(world.orders.payloads) == sorted(sent)
    assert world.remaining() == 0
    assert (report.forwarded, report.completed, report.confirmed_empty, report.left) == (500, 500, True, ())
    assert report.per_destination == (("orders", 500),)
    assert len(world.primary.sent_batches) < 50
    assert sum(event.messages for event in world.observer.of(Forwarded)) == 500
    assert sum(event.messages for event in world.observer.of(BacklogCounted)) == 500
    world.divert(sent[0])
    await world.drain(wanted=MessageFilter(destination="nothing"))
    assert len(world.observer.of(BacklogCounted)) == 3, "how many match has not been counted"


@virtual_time
async def test_each_session_stays_in_order():
    world = World()
    world.primary.delays["send"] = 0.05
    for number in range(300):
        world.divert(message(number, session_id=f"s{number % 7}"), queue=(number % 7) % 3)
    await world.drain()
    by_session = {}
    for payload in world.orders.payloads:
        summary = describe(payload)
        by_session.setdefault(summary.session_id, []).append(int(summary.message_id[1:]))
    assert len(by_session) == 7
    for numbers in by_session.values():
        assert numbers == sorted(numbers)


@virtual_time
async def test_batches_fit_the_link():
    world = World()
    world.primary.max_message_bytes = 20_000
    for number in range(60):
        world.divert(compose(body=bytes(1500), message_id=f"m{number}"))
    await world.drain()
    assert len(world.orders.messages) == 60
    assert max(count for _, count in world.primary.sent_batches) > 5


@virtual_time
async def test_a_message_too_large_alone_is_dead_lettered_and_the_rest_goes_on():
    world = World()
    world.primary.max_message_bytes = 5_000
    world.divert(compose(body=bytes(6000), message_id="big"))
    world.divert(message(1))
    report = await world.drain()
    assert ids(world.orders.payloads) == ["m1"]
    [dead] = world.dead_letters()
    assert describe(dead).dead_letter_reason == "MessageTooLarge"
    assert describe(dead).destination == "orders"
    assert report.dead_letter_reasons == (("MessageTooLarge", 1),)
    assert [event.reason for event in world.observer.of(DeadLettered)] == ["MessageTooLarge"]


@virtual_time
async def test_an_entity_that_does_not_exist_is_a_dead_letter():
    world = World()
    world.divert(message(1), "gone")
    world.divert(message(2))
    report = await world.drain()
    assert describe(world.dead_letters()[0]).dead_letter_reason == "EntityNotFound"
    assert (report.forwarded, report.dead_lettered) == (1, 1)


@virtual_time
async def test_what_was_placed_by_somebody_else_is_a_dead_letter():
    world = World()
    world.secondary.put(world.paths[0], message(1))
    world.secondary.put(world.paths[0], sections.build(application_properties={"x-ms-path": b"orders"}, data=b""))
    world.secondary.put(
        world.paths[0], sections.build(application_properties={"x-ms-path": "orders", "x-ms-timetolive": "?"}, data=b"")
    )
    report = await world.drain()
    assert dict(report.dead_letter_reasons) == {"NotABacklogMessage": 2, "InvalidBacklogProperty": 1}
    assert "does not use send availability" in describe(world.dead_letters()[0]).dead_letter_description


@virtual_time
async def test_pings_are_completed_and_counted():
    world = World()
    queue = world.queues[0]
    world.divert(message(1))
    stored = next(iter(queue.messages.values()))
    stored.payload = ping_message(message_id="p")
    report = await world.drain()
    assert (report.pings, report.forwarded, world.remaining()) == (1, 0, 0)


@virtual_time
async def test_one_refused_message_does_not_take_its_batch_along():
    world = World()
    for number in range(10):
        world.divert(message(number))
    world.primary.fail("send", ArgumentRefusedError("no session id"), times=2)
    report = await world.drain()
    assert (report.forwarded, report.dead_lettered) == (9, 1)
    assert report.dead_letter_reasons == (("ArgumentRefused", 1),)


@virtual_time
async def test_a_partitioned_destination_gets_batches_of_one_session():
    world = World()
    for number in range(40):
        world.divert(message(number, session_id=f"s{number % 2}"))
    seen = []

    accept = world.primary.accept

    def refuse_mixtures(entity, payloads):
        sessions = {describe(payload).session_id for payload in payloads}
        seen.append(len(payloads))
        if len(sessions) > 1:
            raise ArgumentRefusedError("mixed partition keys")
        accept(entity, payloads)

    world.primary.accept = refuse_mixtures
    report = await world.drain()
    assert (report.forwarded, report.dead_lettered) == (40, 0)
    assert len(seen) < 10


# Trouble at the destination


@virtual_time
async def test_an_unavailable_destination_is_waited_for_while_others_go_on():
    world = World()
    invoices = world.primary.add_queue("invoices")
    fault = world.primary.fail("send", ConnectionLostError("down"), entity="orders")
    for number in range(20):
        world.divert(message(number), "orders" if number % 2 else "invoices")

    async def heal_later():
        await world.clock.sleep(50)
        assert len(invoices.messages) == 10
        world.primary.heal(fault)

    healing = asyncio.create_task(heal_later())
    report = await world.drain(patience_seconds=300, unreached_seconds=300)
    await healing
    assert (report.forwarded, report.dead_lettered) == (20, 0)
    assert world.observer.of(Paused)[0].entity == "orders"
    assert [event.entity for event in world.observer.of(Resumed)] == ["orders"]
    assert report.seconds < 130


@virtual_time
async def test_an_outage_does_not_churn_delivery_counts():
    world = World(queues=1)
    fault = world.primary.go_dark()
    for number in range(300):
        world.divert(message(number))

    async def heal_later():
        await world.clock.sleep(3600)
        assert {stored.delivery_count for stored in world.queues[0].messages.values()} == {0}
        assert world.secondary.calls["receive", world.paths[0]] < 300
        world.primary.heal(fault)
        await world.clock.sleep(300)
        world.stop.set()

    healing = asyncio.create_task(heal_later())
    report = await world.syphon()
    await healing
    assert len(world.orders.messages) == 300
    assert world.remaining() == 0
    assert report.locks_lost == 0


@virtual_time
async def test_a_drain_leaves_what_cannot_be_delivered_in_time_and_says_so():
    world = World()
    world.primary.fail("send", QuotaExceededError("full"), entity="orders")
    world.primary.add_queue("invoices")
    world.divert(message(1))
    world.divert(message(2), "invoices")
    report = await world.drain(patience_seconds=60)
    assert report.left == (Left("destination unavailable: orders (quota-exceeded)", 1),)
    assert (report.confirmed_empty, report.dead_lettered, report.forwarded) == (False, 0, 1)
    stored = next(iter(world.queues[0].messages.values()))
    assert (stored.lock, stored.delivery_count) == (None, 0)


@virtual_time
async def test_unauthorised_is_never_a_dead_letter():
    world = World()
    world.primary.fail("limit", UnauthorizedError("no Send"))
    world.divert(message(1))
    report = await world.drain(patience_seconds=30)
    assert (report.dead_lettered, world.remaining()) == (0, 1)


@virtual_time
async def test_server_busy_pauses_the_whole_namespace():
    world = World()
    world.primary.add_queue("invoices")
    world.primary.fail("send", ServerBusyError("throttled"), times=1)
    times = []

    async def note(operation, entity):
        if operation == "send":
            times.append(world.clock.monotonic())

    world.primary.hook = note
    world.divert(message(1))
    world.divert(message(2), "invoices", queue=1)
    report = await world.drain()
    assert report.forwarded == 2
    assert all(time >= 1 for time in times[2:])
    assert world.observer.of(Paused)[0].seconds == 1


# The hard cases


@virtual_time
async def test_forwarded_but_not_completed_is_completed_later_and_not_sent_twice():
    world = World()
    world.divert(message(1))
    world.secondary.fail("settle", ConnectionLostError("gone"), times=1)
    report = await world.drain()
    assert ids(world.orders.payloads) == ["m1"]
    assert (report.already_forwarded, report.confirmed_empty, report.uncompleted) == (1, True, 0)
    assert 60 <= report.seconds < 80


@virtual_time
async def test_a_lost_answer_to_a_completion_is_harmless():
    world = World()
    for number in range(50):
        world.divert(message(number))
    world.secondary.fail("settle", OperationTimeoutError("no answer"), after=True, times=20)
    report = await world.drain()
    assert sorted(ids(world.orders.payloads)) == sorted(f"m{number}" for number in range(50))
    assert report.confirmed_empty


@virtual_time
async def test_a_send_whose_answer_is_lost_comes_twice_with_its_own_id():
    world = World()
    world.divert(message(1))
    world.primary.fail("send", OperationTimeoutError("no answer"), after=True, times=1)
    await world.drain()
    assert ids(world.orders.payloads) == ["m1", "m1"]


@virtual_time
async def test_with_duplicate_detection_it_comes_once():
    world = World()
    world.primary.add_queue("orders", QueueSettings(requires_duplicate_detection=True))
    world.divert(message(1))
    world.primary.fail("send", OperationTimeoutError("no answer"), after=True, times=1)
    await world.drain()
    assert ids(world.primary.queue("orders").payloads) == ["m1"]


@virtual_time
async def test_locks_are_renewed_while_messages_wait():
    world = World(lock_seconds=10)
    world.primary.delays["send"] = 25.0
    for number in range(5):
        world.divert(message(number, session_id="s"))
    report = await world.drain()
    assert ids(world.orders.payloads) == [f"m{number}" for number in range(5)]
    assert report.locks_lost == 0


@virtual_time
async def test_a_session_keeps_its_order_when_a_lock_is_lost():
    world = World(queues=1, lock_seconds=10)
    world.secondary.fail("renew", LockLostError("lost"), times=3)
    world.primary.fail("send", ConnectionLostError("down"), times=4)
    for number in range(8):
        world.divert(message(number, session_id="s"))
    report = await world.drain()
    assert ids(world.orders.payloads) == [f"m{number}" for number in range(8)]
    assert report.confirmed_empty


@virtual_time
async def test_a_wrong_local_clock_does_not_matter():
    for skew in (-600, 600):
        world = World()
        world.clock.skew_seconds = skew
        world.divert(message(1))
        report = await world.drain()
        assert (report.forwarded, report.locks_lost, report.seconds < 10) == (1, 0, True)


@virtual_time
async def test_stop_settles_what_is_on_its_way_and_gives_back_the_rest():
    world = World(queues=1)
    world.primary.delays["send"] = 2.0
    for number in range(3000):
        world.divert(message(number))

    async def stop_soon():
        await world.clock.sleep(3)
        world.stop.set()

    stopping = asyncio.create_task(stop_soon())
    report = await world.drain(concurrency=1)
    await stopping
    assert report.ended_by == "stop"
    assert report.seconds < 14
    assert 0 < report.forwarded < 3000
    assert report.forwarded == report.completed == len(world.orders.messages)
    assert world.remaining() == 3000 - report.forwarded
    assert all(stored.lock is None and stored.delivery_count == 0 for stored in world.queues[0].messages.values())
    assert world.secondary.closed_receivers == [world.paths[0]]


# What is left


@virtual_time
async def test_what_others_hold_is_waited_for_then_named():
    world = World(queues=1)
    world.divert(message(1))
    other = world.secondary.messaging().receiver(world.paths[0])
    [held] = await other.receive(1, wait_seconds=1)

    async def keep():
        while True:
            await other.renew_lock(held)
            await world.clock.sleep(20)

    keeping = asyncio.create_task(keep())
    report = await world.drain()
    keeping.cancel()
    assert report.left == (Left("locked elsewhere", 1),)
    assert not report.confirmed_empty
    assert 60 <= report.seconds <= 90


@virtual_time
async def test_locks_of_a_crashed_process_run_out_and_its_messages_go_home():
    world = World(queues=1)
    world.divert(message(1))
    await world.secondary.messaging().receiver(world.paths[0]).receive(1, wait_seconds=1)
    report = await world.drain()
    assert (report.forwarded, report.confirmed_empty) == (1, True)


@virtual_time
async def test_deferred_and_scheduled_messages_are_named():
    world = World(queues=1)
    world.divert(message(1))
    receiver = world.secondary.messaging().receiver(world.paths[0])
    [received] = await receiver.receive(1, wait_seconds=1)
    await receiver.settle(received, Disposition.DEFER)
    later = compose(body=b"", message_id="later", scheduled_at=world.secondary.epoch() + 900)
    world.secondary.put(world.paths[0], later)
    report = await world.drain()
    assert report.left == (Left("deferred", 1), Left("scheduled", 1))


@virtual_time
async def test_a_drain_that_has_left_all_that_it_can_keep_locked_does_not_say_that_nothing_matches():
    world = World(queues=1)
    unlike = for_backlog(message(1), "orders")
    world.secondary.put(world.paths[0], *([unlike] * (Limits().left_messages + 5_000)))
    world.divert(message(2))
    report = await world.drain(wanted=MessageFilter(where=Where("sys.MessageId = 'm2'")))
    assert (report.forwarded, report.left, report.ended_by) == (0, (), TOO_MANY_LEFT)
    asked = Asked("orders", "primary", "sbpair drain orders --where ...", filtered=True)
    queue = QueueContents(world.paths[0], active=world.remaining(), deferred=0, scheduled=0, dead_letter=0)
    backlog = Backlog("orders", 0.0, (queue,))
    assert exit_of(report, backlog, asked) is Exit.PARTIAL
    assert closing(report, backlog, asked) == (
        "0 messages are back on primary; as many were left as can be kept locked, and none behind them was read. "
        "25,001 messages are waiting in 1 queue, whether they match the filter or not. Run: sbpair drain orders"
    )


@virtual_time
async def test_a_syphon_that_can_receive_no_more_because_of_what_it_leaves_says_so():
    world = World(queues=1)
    world.secondary.put(world.paths[0], *([for_backlog(message(1), "elsewhere")] * (Limits().left_messages + 5_000)))
    running = asyncio.create_task(world.syphon(only=("orders",)))
    async with asyncio.timeout(LIMIT_SECONDS):
        while not (noticed := world.observer.of(PairingNoticed)):
            await asyncio.sleep(0.1)
    world.stop.set()
    await running
    [told] = noticed
    assert (told.code, "not among the pair's entities: elsewhere" in told.message) == ("too-many-left", True)
    assert world.remaining() == Limits().left_messages + 5_000


@virtual_time
async def test_counts_that_disagree_are_said():
    world = World(queues=1)
    world.divert(message(1))

    class Counting(type(world.admin)):
        async def get_queue(self, path):
            return replace(await super().get_queue(path), counts=Counts(active=3))

    world.admin = Counting(world.secondary)
    report = await world.drain()
    assert report.left == (Left("counted by the service, but not visible to a browse", 3),)


@virtual_time
async def test_without_a_right_to_administer_a_browse_is_enough():
    world = World(queues=1)
    world.divert(message(1))
    world.secondary.fail("admin", UnauthorizedError("no Manage"))
    report = await world.drain()
    assert report.confirmed_empty


@virtual_time
async def test_a_queue_that_is_gone_is_a_failure_among_others_and_an_error_alone():
    world = World(queues=2)
    world.divert(message(1), queue=1)
    del world.secondary.entities[world.paths[0]]
    report = await world.drain()
    assert report.forwarded == 1
    assert [failure.queue for failure in report.failures] == [world.paths[0]]
    assert not report.confirmed_empty
    del world.secondary.entities[world.paths[1]]
    with pytest.raises(EntityNotFoundError):
        await world.drain()


# Options


@virtual_time
async def test_filters_leave_the_rest_untouched():
    world = World()
    world.primary.add_queue("invoices/incoming")
    for number in range(300):
        destination = "invoices/incoming" if number % 3 == 0 else "orders"
        world.divert(message(number, session_id=f"s{number % 2}"), destination, queue=number % 3)
    report = await world.drain(
        wanted=MessageFilter("INVOICES/*", session_id="s0", where=Where("sys.MessageId <> 'm0'"))
    )
    assert report.forwarded == 49
    assert (report.left, report.filtered_out) == ((), 251)
    untouched = [stored for queue in world.queues for stored in queue.messages.values()]
    assert all(stored.lock is None and stored.delivery_count == 0 for stored in untouched)


@virtual_time
async def test_max_messages_is_exact():
    world = World()
    for number in range(300):
        world.divert(message(number), queue=number % 3)
    report = await world.drain(max_messages=70)
    assert (report.forwarded, report.ended_by, world.remaining()) == (70, "count", 230)


@virtual_time
async def test_the_time_limit_ends_it():
    world = World(queues=1)
    world.primary.delays["send"] = 1.0
    for number in range(5000):
        world.divert(message(number))
    report = await world.drain(for_seconds=5, concurrency=1)
    assert report.ended_by == "time"
    assert 5 <= report.seconds < 16
    assert world.remaining() == 5000 - report.forwarded


@pytest.mark.parametrize("stopped", [False, True])
@virtual_time
async def test_a_queue_that_fails_still_when_the_time_is_up_could_not_be_read(stopped):
    world = World(queues=2)
    world.divert(message(1))
    world.secondary.fail("receive", ServerBusyError("busy"), entity=world.paths[1])
    if stopped:
        asyncio.get_running_loop().call_later(5.0, world.stop.set)
    report = await world.drain(for_seconds=None if stopped else 5.0)
    assert (report.forwarded, report.ended_by) == (1, "stop" if stopped else "time")
    assert [one.queue for one in report.failures] == ([] if stopped else [world.paths[1]])


@virtual_time
async def test_one_queue_without_hope_does_not_end_the_wait_for_the_locks_of_another():
    world = World(queues=2, lock_seconds=300.0)
    for number in range(2):
        world.divert(message(number, session_id="s"))
        world.divert(message(f"x{number}"), queue=1)
    [first, _] = world.queues[0].messages.values()
    first.lock, first.locked_until = -1, EPOCH + 900.0
    for number, stored in enumerate(world.queues[1].messages.values(), 1):
        stored.lock, stored.locked_until = -1, EPOCH + 4.0 * number
    report = await world.drain(lock_wait_seconds=5.0)
    assert sorted(ids(world.orders.payloads)) == ["mx0", "mx1"]
    assert sum(one.count for one in report.left) == 2


@virtual_time
async def test_the_rate_is_kept():
    world = World()
    for number in range(100):
        world.divert(message(number), queue=number % 3)
    report = await world.drain(rate_per_second=10)
    assert report.forwarded == 100
    assert 9 <= report.seconds <= 13


@virtual_time
async def test_to_another_queue():
    world = World()
    parking = world.primary.add_queue("parking")
    world.divert(message(1), "orders")
    report = await world.drain(to=ToQueue("parking"))
    assert (ids(parking.payloads), report.per_destination) == (["m1"], (("parking", 1),))


def test_to_an_archive(tmp_path):
    @virtual_time
    async def scenario():
        world = World(queues=1)
        world.divert(message(1, session_id="s"), "orders")
        world.secondary.put(world.paths[0], message(2))
        stored = {one.message_id: one.payload for one in world.queues[0].messages.values()}
        report = await world.drain(to=ToArchive(tmp_path))
        lines = [json.loads(line) for line in report.archive.read_text().splitlines()]
        assert [line["message_id"] for line in lines] == ["m1", "m2"]
        assert [line["destination"] for line in lines] == ["orders", "(unknown)"]
        for line in lines:
            kept = base64.b64decode(line["payload_base64"])
            assert sections.read(kept, sections.scan(kept), Section.DATA) == b"body " + line["message_id"][1:].encode()
            assert line["message_id"] in stored
        assert (world.remaining(), report.confirmed_empty) == (0, True)

    scenario()


@virtual_time
async def test_remaining_time_to_live():
    world = World()
    world.divert(message(1, ttl_seconds=100))
    await world.clock.sleep(30)
    await world.drain(ttl=TtlMode.REMAINING)
    [payload] = world.orders.payloads
    header = sections.read(payload, sections.scan(payload), Section.HEADER)
    assert 69_000 <= header[HeaderField.TTL] <= 70_000


@virtual_time
async def test_a_dry_run_touches_nothing():
    world = World()
    for number in range(600):
        world.divert(message(number), "orders" if number % 2 else "gone", queue=number % 3)
    world.secondary.put(world.paths[0], message(601))
    report = await world.drain(dry_run=True)
    assert report.dry_run
    assert report.per_destination == (("orders", 300),)
    assert report.dead_letter_reasons == (("EntityNotFound", 300), ("NotABacklogMessage", 1))
    left = await world.drain(dry_run=True, leave_missing=True)
    assert left.left == (Left("destination unavailable: gone (entity-not-found)", 300),)
    assert report.unchecked == ("orders",)
    assert world.remaining() == 601
    assert not any(operation in ("receive", "settle") for operation, _ in world.secondary.calls)


@virtual_time
async def test_messages_for_a_missing_destination_stay_where_they_are_on_wish_and_go_once_it_is_made():
    world = World()
    for number in range(30):
        world.divert(message(number, session_id=f"s{number % 3}" if number % 2 else None), "gone", queue=number % 3)
    world.divert(message(99))
    report = await world.drain(leave_missing=True)
    assert report.left == (Left("destination unavailable: gone (entity-not-found)", 30),)
    assert (report.forwarded, report.dead_lettered, world.remaining(), world.dead_letters()) == (1, 0, 30, [])
    gone = world.primary.add_queue("gone")
    assert (await world.drain(leave_missing=True)).forwarded == 30
    assert sorted(ids(gone.payloads)) == sorted(f"m{number}" for number in range(30))


@virtual_time
async def test_dead_letters_go_home_without_their_reason_and_the_rest_stays():
    world = World()
    world.secondary.put_dead_letter(world.paths[0], for_backlog(message(1), "orders"), "EntityNotFound", "gone")
    world.secondary.put_dead_letter(world.paths[1], for_backlog(message(2), "still-gone"), "EntityNotFound", "gone")
    world.secondary.put_dead_letter(world.paths[1], message(3), "NotABacklogMessage", "agent")
    report = await world.drain(dead_letter=True)
    assert world.orders.payloads == [message(1)]
    assert report.original_faults == (("EntityNotFound", 1),), "of what was sent on"
    assert report.left == (Left("undeliverable: EntityNotFound", 1), Left("undeliverable: NotABacklogMessage", 1))
    kept = world.queues[1].dead_letters.payloads
    assert [describe(payload).dead_letter_reason for payload in kept] == ["EntityNotFound", "NotABacklogMessage"]


# The ledger


@virtual_time
async def test_messages_and_dead_letters_in_one_pass():
    world = World()
    for number in range(4):
        world.divert(message(number), queue=number % 3)
        backlog = for_backlog(message(10 + number), "orders")
        world.secondary.put_dead_letter(world.paths[number % 3], backlog, "Expired")
    world.secondary.put_dead_letter(world.paths[0], compose(body="stray", message_id="m9"), "Odd")
    report = await world.drain(with_dead_letter=True)
    assert sorted(ids(world.orders.payloads)) == ["m0", "m1", "m10", "m11", "m12", "m13", "m2", "m3"]
    assert report.original_faults == (("Expired", 4),)
    assert report.left == (Left("undeliverable: NotABacklogMessage", 1),)
    assert not report.confirmed_empty
    assert world.remaining() == 0
    assert len(world.dead_letters()) == 1


@virtual_time
async def test_a_dry_run_of_both_tells_what_stays_where():
    world = World(queues=1)
    world.divert(message(1))
    world.divert(compose(body="x" * 300_000, message_id="large"))
    large = for_backlog(compose(body="x" * 300_000, message_id="m3"), "orders")
    world.secondary.put_dead_letter(world.paths[0], large, "Expired")
    world.secondary.put_dead_letter(world.paths[0], for_backlog(message(2), "orders"), "Expired")
    report = await world.drain(with_dead_letter=True, dry_run=True)
    assert (report.forwarded, report.per_destination) == (2, (("orders", 2),))
    assert report.dead_letter_reasons == (("MessageTooLarge", 1),)
    assert report.left == (Left("undeliverable: MessageTooLarge", 1),)


@virtual_time
async def test_until_idle_waits_for_what_still_comes():
    world = World(queues=2)
    world.divert(message(1))

    async def produce():
        for number in (2, 3, 4):
            await world.clock.sleep(25)
            world.divert(message(number), queue=number % 2)
        return world.clock.monotonic()

    producing = asyncio.create_task(produce())
    began = world.clock.monotonic()
    report = await world.drain(idle_seconds=30)
    assert ids(world.orders.payloads) == ["m1", "m2", "m3", "m4"]
    assert report.confirmed_empty
    assert 30 <= world.clock.monotonic() - await producing < 70
    assert world.clock.monotonic() - began < 150
    assert world.secondary.calls["receive", world.paths[0]] < 20


@virtual_time
async def test_a_drain_asks_for_the_counts_with_one_list():
    world = World(queues=3)
    for number in range(6):
        world.divert(message(number), queue=number % 3)
    await world.drain()
    calls = sum(count for (operation, _), count in world.secondary.calls.items() if operation == "admin")
    assert calls == 2  # before, and to compare with what the browse shows


@pytest.mark.parametrize("may_list", [True, False])
def test_the_syphon_finds_queues_that_are_made_later(may_list):
    @virtual_time
    async def scenario():
        world = World(queues=2)
        if not may_list:
            world.secondary.fail("admin", UnauthorizedError("Manage is needed."))
        running = asyncio.create_task(world.syphon(later_queues=True))
        await asyncio.sleep(100)
        for index in (3, 7):
            world.paths += (f"primary/x-servicebus-transfer/{index}",)
            world.queues.append(world.secondary.add_queue(world.paths[-1]))
        world.secondary.add_queue("elsewhere/x-servicebus-transfer/0")
        world.divert(message(1, session_id="s"), queue=2)
        world.divert(message(2), queue=3)
        await asyncio.sleep(1000)
        found = ["m1", "m2"] if may_list else ["m1"]  # 7 is more than two indexes above the highest
        assert sorted(ids(world.orders.payloads)) == found
        new = [event.queue for event in world.observer.of(QueueAppeared)]
        assert new == [f"primary/x-servicebus-transfer/{index}" for index in ((3, 7) if may_list else (3,))]
        assert world.secondary.calls["receive", "elsewhere/x-servicebus-transfer/0"] == 0
        world.stop.set()
        report = await running
        assert report.forwarded == len(found)

    scenario()


def test_the_ledger_is_on_disk_before_the_receipt_is_settled(tmp_path):
    @virtual_time
    async def scenario():
        world = World()
        path = tmp_path / "ledger.jsonl"
        world.ledger = Ledger(path)
        world.divert(message(1, session_id="s"))
        world.divert(message(2), "gone")
        lines_at_settle = []

        async def look(operation, entity):
            if operation == "settle":
                lines_at_settle.append(len(path.read_text().splitlines()))

        world.secondary.hook = look
        await world.drain()
        await world.ledger.close()
        entries = {entry["message_id"]: entry for entry in map(json.loads, path.read_text().splitlines())}
        assert lines_at_settle[0] >= 1
        assert entries["m1"]["outcome"] == "forwarded"
        assert (entries["m1"]["destination"], entries["m1"]["session_id"]) == ("orders", "s")
        assert (entries["m2"]["outcome"], entries["m2"]["reason"]) == ("dead-lettered", "EntityNotFound")

    scenario()


@pytest.mark.parametrize("session_id", [None, "s"])
def test_what_was_accepted_of_a_batch_is_in_the_ledger_before_it_is_settled(tmp_path, session_id):
    @virtual_time
    async def scenario():
        world = World(queues=1)
        path = tmp_path / "ledger.jsonl"
        world.ledger = Ledger(path)
        sent = [message(number, session_id=session_id) for number in range(4)]
        for payload in sent:
            world.divert(payload)
        world.primary.fail("send", SendIncompleteError("2 of 4", accepted=(0, 1)), times=1)
        recorded_at_settle = []

        async def look(operation, entity):
            if operation == "send" and not world.orders.messages:
                world.primary.put(entity, *sent[:2])

        async def look_at_ledger(operation, entity):
            if operation == "settle":
                recorded_at_settle.append(len(list(outcomes_in(path))))

        world.primary.hook, world.secondary.hook = look, look_at_ledger
        report = await world.drain()
        await world.ledger.close()
        assert sorted(ids(world.orders.payloads)) == ["m0", "m1", "m2", "m3"]
        assert recorded_at_settle[0] >= 2
        entries = [(key[2], outcome) for key, outcome in outcomes_in(path)]
        assert sorted(entries) == [(f"m{number}", "forwarded") for number in range(4)]
        assert (report.forwarded, report.completed, report.confirmed_empty) == (4, 4, True)

    scenario()


def test_resuming_completes_what_was_sent_and_does_not_send_it_again(tmp_path):
    @virtual_time
    async def scenario():
        world = World(queues=1)
        path = tmp_path / "ledger.jsonl"
        world.divert(message(1))
        world.ledger = Ledger(path)
        world.secondary.fail("settle", ConnectionLostError("killed"))
        report = await world.drain(for_seconds=5)
        assert report.uncompleted == 1
        await world.ledger.close()
        with path.open("ab") as file:
            file.write(b'{"queue": "cut of')

        world.secondary.heal()
        world.ledger = Ledger(path, resume=True)
        report = await world.drain()
        await world.ledger.close()
        assert ids(world.orders.payloads) == ["m1"]
        assert (report.already_forwarded, report.forwarded, report.confirmed_empty) == (1, 0, True)
        assert all(json.loads(line) for line in path.read_text().splitlines())

    scenario()


@virtual_time
async def test_queues_come_back_when_a_wrong_clock_is_right_again():
    world = World()
    for number in range(6):
        world.divert(message(number), queue=number % 3)
    fault = world.secondary.fail("receive", TokenExpiredError("The token is expired."))
    asyncio.get_running_loop().call_later(12.0, world.secondary.heal, fault)
    report = await world.drain()
    assert (report.forwarded, report.confirmed_empty, report.failures) == (6, True, ())


async def test_time_in_which_the_process_was_stopped_is_not_the_silence_of_the_service():
    """The loop stands still, as with SIGSTOP, while a first receive is under way; its time is over when it goes on."""
    world = World(queues=1)
    world.clock = LoopClock()
    healed = asyncio.Event()
    world.divert(message(1))
    times_out = world.secondary.fail("receive", OperationTimeoutError("no answer in time"))

    async def stopped(operation, entity):
        if operation == "receive" and not healed.is_set():
            healed.set()
            await asyncio.sleep(0.1)
            time.sleep(5.0)
            asyncio.get_running_loop().call_later(0.5, world.secondary.heal, times_out)

    world.secondary.hook = stopped
    report = await world.drain(patience_seconds=4.0, unreached_seconds=4.0)
    assert (report.forwarded, report.confirmed_empty, report.failures) == (1, True, ())


@virtual_time
async def test_a_clock_that_stays_wrong_ends_the_drain_in_time():
    world = World()
    world.divert(message(1))
    world.secondary.fail("receive", TokenExpiredError("The token is expired."))
    with pytest.raises(TokenExpiredError):
        await world.drain()
    assert world.clock.monotonic() < 30.0


def test_a_ledger_is_not_overwritten_and_must_be_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="exists already"):
        Ledger(path)
    with pytest.raises(UsageError, match="Line 1"):
        Ledger(path, resume=True)


@virtual_time
async def test_a_ledger_that_cannot_be_written_ends_the_drain():
    class Full(Recorder):
        async def append(self, lines, room_bytes=0, *, synced=True):
            raise LedgerError("No space left on device")

    world = World()
    world.ledger = Full(None, frozenset())
    for number in range(600):
        world.divert(message(number), queue=number % 3)
    world.divert(message(600), "gone")
    with pytest.raises(LedgerError, match="No space left"):
        await world.drain()
    assert world.remaining() == 601
    assert not world.orders.messages, "sent without room for a record"
    stored = [one for queue in world.queues for one in queue.messages.values()]
    assert all(one.lock is None and one.delivery_count == 0 for one in stored), "locks stayed behind"


# The syphon


@virtual_time
async def test_the_syphon_brings_home_what_comes_later_and_polls_rarely():
    world = World(queues=2)

    async def produce():
        await world.clock.sleep(2000)
        world.divert(message(1), queue=1)
        await world.clock.sleep(5)
        assert ids(world.orders.payloads) == ["m1"]
        await world.clock.sleep(1600)
        world.stop.set()

    producing = asyncio.create_task(produce())
    report = await world.syphon()
    await producing
    assert (report.forwarded, report.ended_by) == (1, "stop")
    assert world.secondary.calls["receive", world.paths[0]] <= 5


@virtual_time
async def test_the_syphon_resumes_within_seconds_of_the_primary_however_long_it_was_away():
    world = World(queues=2)
    fault = world.primary.go_dark()
    for number in range(200):
        world.divert(message(number, session_id=f"s{number % 7}"), queue=number % 2)
    running = asyncio.create_task(world.syphon())
    await asyncio.sleep(610)
    assert {one.delivery_count for queue in world.queues for one in queue.messages.values()} == {0}
    world.primary.heal(fault)
    await asyncio.sleep(8)
    assert len(world.orders.messages) == 200
    world.stop.set()
    await running
    assert [event.entity for event in world.observer.of(Resumed)] == ["orders"]


@virtual_time
async def test_a_link_that_opens_is_no_recovery():
    """A destination whose sends fail is given up in time, although its link opens whenever it is asked for."""
    world = World(queues=1)
    world.primary.fail("send", ConnectionLostError("broken"))
    world.divert(message(1))
    report = await world.drain(patience_seconds=60)
    assert report.left == (Left("destination unavailable: orders (connection-lost)", 1),)
    assert report.seconds < 80
    assert world.primary.calls["send", "orders"] < 20


@virtual_time
async def test_the_syphon_counts_what_waits_with_one_management_call_for_all_queues():
    world = World(queues=3)
    for number in range(30):
        world.divert(message(number), queue=number % 3)
    running = asyncio.create_task(world.syphon())
    await asyncio.sleep(2000)
    calls = sum(count for (operation, _), count in world.secondary.calls.items() if operation == "admin")
    assert calls <= 3 + 2000 / 900 + 3
    last = {event.queue: event.messages for event in world.observer.of(BacklogCounted)}
    assert last == dict.fromkeys(world.paths, 0)
    world.divert(message(100))
    await asyncio.sleep(45)
    assert world.observer.of(BacklogCounted)[-1].at >= EPOCH + 2000
    world.stop.set()
    await running


@virtual_time
async def test_the_syphon_counts_what_waits_while_the_primary_is_dark():
    """Who looks at the metric in an outage sees the backlog grow."""
    world = World(queues=1)
    running = asyncio.create_task(world.syphon())
    await asyncio.sleep(400)
    world.primary.go_dark()
    for number in range(100):
        world.divert(message(number))
    await asyncio.sleep(SOON_SECONDS + 1)
    assert world.observer.of(BacklogCounted)[-1].messages == 100
    for number in range(100, 5000):
        world.divert(message(number))
    await asyncio.sleep(RECOUNT_SECONDS + 1)
    assert world.observer.of(BacklogCounted)[-1].messages == 5000, "more than it holds under lock"
    world.stop.set()
    await running


@virtual_time
async def test_the_syphon_survives_the_secondary():
    world = World(queues=1)
    fault = world.secondary.go_dark()
    world.secondary.put(world.paths[0], for_backlog(message(1), "orders"))

    async def heal():
        await world.clock.sleep(1000)
        assert world.secondary.calls["receive", world.paths[0]] < 20
        world.secondary.heal(fault)
        await world.clock.sleep(200)
        world.stop.set()

    healing = asyncio.create_task(heal())
    await world.syphon()
    await healing
    assert ids(world.orders.payloads) == ["m1"]


@virtual_time
async def test_a_service_that_is_slow_for_a_moment_makes_nobody_browse_a_large_backlog():
    world = World(queues=1)
    for number in range(6000):
        world.divert(message(number))
    world.secondary.gives_nothing_until = world.clock.monotonic() + 2.5
    report = await world.drain()
    assert (report.forwarded, report.confirmed_empty, report.left) == (6000, True, ())
    browsed = world.secondary.calls["peek", world.paths[0]]
    assert browsed < 6000 / PAGE_MESSAGES, browsed


@virtual_time
async def test_a_large_backlog_that_others_have_locked_is_counted_at_the_end():
    world = World(queues=1, lock_seconds=5.0)
    for number in range(3000):
        world.divert(message(number))
    for stored in world.queues[0].messages.values():
        stored.lock, stored.locked_until = -1, world.secondary.epoch() + 600.0
    report = await world.drain()
    assert (report.forwarded, report.confirmed_empty) == (0, False)
    assert sum(left.count for left in report.left) == 3000


@virtual_time
async def test_a_filter_that_cannot_be_evaluated_ends_the_run_with_a_report_and_without_locks():
    world = World()
    wanted = MessageFilter(where=Where("amount + 1 > 1"))
    for number in range(10):
        world.divert(message(number, application_properties={"amount": 0}), queue=2)
    text = [message(number, application_properties={"amount": "five"}) for number in range(10, 20)]
    world.divert(text[0], queue=1)
    with pytest.raises(FilterError, match=r"cannot be evaluated for message \d+: .* Nothing was moved\."):
        await world.drain(wanted=wanted)
    assert all(stored.lock is None for queue in world.queues for stored in queue.messages.values())
    world.queues[1].messages.clear()
    for number in range(300):
        world.divert(message(number, application_properties={"amount": 5}))
    running = asyncio.create_task(world.drain(wanted=wanted, idle_seconds=100.0))
    await world.clock.sleep(30.0)
    for payload in text:
        world.divert(payload, queue=1)
    report = await running
    assert (report.ended_by, report.forwarded, report.filtered_out) == ("filter", 300, 10)
    assert "cannot be evaluated for message" in (report.broken_off or "")
    assert len(world.orders.payloads) == 300
    assert world.remaining() == 20
    assert all(stored.lock is None for queue in world.queues for stored in queue.messages.values())
