"""Pings: of an open pairing, and measurements."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import pytest

from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityNotFoundError,
    OperationTimeoutError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.events import PingSent
from sbpair.core.failover.machine import State
from sbpair.core.failover.measured import Milliseconds
from sbpair.core.message import PING_CONTENT_TYPE
from sbpair.core.pairing import Side
from sbpair.ports import MessageSender
from sbpair.runtime.failover.ping import (
    PING_ID_PREFIX,
    Pinger,
    PingResult,
    PingRow,
    PingTarget,
    control_plane_target,
    measure,
    message_target,
)
from sbpair.runtime.failover.sender import SentTo
from tests.fakes import FakeClock, FakeMessaging, FakeNamespace, FakeSender, virtual_time
from tests.runtime.failover.pairs import a_pair, a_world, message, open_pairing, opened


class Recorder(FakeMessaging):
    """Keeps what is sent, refuses messages without a session if told so, and may never answer."""

    def __init__(self, namespace: FakeNamespace, *, close_seconds: float = 0.0) -> None:
        super().__init__(namespace)
        self.payloads: list[bytes] = []
        self.needs_session = False
        self.deaf = False
        self.links = 0
        self.close_seconds = close_seconds

    def sender(self, entity: str) -> MessageSender:  # type: ignore[override]
        self.links += 1
        return RecordingSender(self, super().sender(entity))


class RecordingSender:
    """A sender of `Recorder`: what it does not do itself, the fake does."""

    def __init__(self, recorder: Recorder, fake: FakeSender) -> None:
        self._recorder = recorder
        self._fake = fake
        self.entity = fake.entity
        self.max_message_bytes = fake.max_message_bytes
        self.schedule = fake.schedule
        self.cancel_scheduled = fake.cancel_scheduled

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        self._recorder.payloads.extend(payloads)
        while self._recorder.deaf:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                continue
        if self._recorder.needs_session and session_of(payloads[0]) is None:
            raise ArgumentRefusedError("a session id is needed")
        await self._fake.send(payloads, timeout_seconds=timeout_seconds)

    async def close(self) -> None:
        await asyncio.sleep(self._recorder.close_seconds)
        await self._fake.close()


def recorder() -> Recorder:
    namespace = FakeNamespace("contoso", FakeClock())
    namespace.add_queue("orders")
    return Recorder(namespace)


def session_of(payload: bytes) -> object:
    return EncodedMessage(payload).field(Section.PROPERTIES, PropertyField.GROUP_ID)


# The message


@virtual_time
async def test_a_ping_is_the_documented_message() -> None:
    messaging = recorder()
    await Pinger(lambda: messaging, "orders").ping()
    (payload,) = messaging.payloads
    ping = EncodedMessage(payload)
    assert ping.content_type == PING_CONTENT_TYPE == "application/vnd.ms-servicebus-ping"
    assert ping.field(Section.HEADER, HeaderField.TTL) == 1000
    assert str(ping.field(Section.PROPERTIES, PropertyField.MESSAGE_ID)).startswith(PING_ID_PREFIX)
    assert ping.read(Section.DATA) in (None, b"")
    assert session_of(payload) is None


@virtual_time
async def test_an_entity_that_requires_sessions_gets_pings_with_one() -> None:
    messaging = recorder()
    messaging.needs_session = True
    pinger = Pinger(lambda: messaging, "orders")
    await pinger.ping()
    await pinger.ping()
    assert [session_of(payload) is None for payload in messaging.payloads] == [True, False, False]


@virtual_time
async def test_a_refusal_that_a_session_does_not_cure_is_raised() -> None:
    messaging = recorder()
    messaging.namespace.fail("send", ArgumentRefusedError("no"))
    with pytest.raises(ArgumentRefusedError):
        await Pinger(lambda: messaging, "orders").ping()
    assert len(messaging.payloads) == 2


@virtual_time
async def test_a_ping_ends_after_two_minutes_even_if_the_call_cannot_be_cancelled() -> None:
    messaging = recorder()
    messaging.deaf = True
    with pytest.raises(OperationTimeoutError):
        await Pinger(lambda: messaging, "orders").ping()
    assert asyncio.get_running_loop().time() == pytest.approx(120)
    messaging.deaf = False
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


@virtual_time
async def test_after_a_failed_ping_the_next_uses_a_new_link() -> None:
    messaging = recorder()
    pinger = Pinger(lambda: messaging, "orders")
    await pinger.ping()
    await pinger.ping()
    assert messaging.links == 1
    messaging.namespace.fail("send", ConnectionLostError("gone"), times=1)
    with pytest.raises(ConnectionLostError):
        await pinger.ping()
    await pinger.ping()
    assert messaging.links == 2


# Of a pairing


@virtual_time
async def test_one_ping_per_interval_per_unavailable_entity() -> None:
    async with opened(interval=0, ping=60) as world:
        world.primary.go_dark()
        for entity in ("orders", "invoices"):
            await asyncio.gather(*(world.pairing.sender(entity).send(message(str(number))) for number in range(5)))
        await asyncio.sleep(601)
        for entity in ("orders", "invoices"):
            moments = [event.at for event in world.events(PingSent) if event.entity == entity]
            assert len(moments) == 11
            gaps = [later - sooner for sooner, later in pairwise(moments)]
            assert gaps == pytest.approx([60] * 10, abs=0.01)


@virtual_time
async def test_pings_stop_with_the_first_success() -> None:
    async with opened(interval=0, ping=60) as world:
        fault = world.primary.go_dark()
        await world.pairing.sender("orders").send(message("1"))
        await asyncio.sleep(100)
        world.primary.heal(fault)
        await asyncio.sleep(3600)
        assert [event.succeeded for event in world.events(PingSent)] == [False, False, True]
        assert world.events(PingSent)[0].error_code == "connection-lost"


@virtual_time
async def test_a_hanging_ping_does_not_stop_the_pings() -> None:
    async with opened(interval=0, ping=60) as world:
        fault = world.primary.go_dark()
        await world.pairing.sender("orders").send(message("1"))
        await asyncio.sleep(1)
        world.primary.heal(fault)
        world.primary.delays["send"] = 1e9
        await asyncio.sleep(239)
        world.primary.delays.clear()
        await asyncio.sleep(121)
        assert world.state_of("orders") is State.HEALTHY
        assert [round(event.seconds) for event in world.events(PingSent)] == [0, 120, 120, 0]


@virtual_time
async def test_no_ping_during_the_failover_interval() -> None:
    async with opened(interval=600, ping=1) as world:
        world.primary.go_dark()
        with pytest.raises(ConnectionLostError):
            await world.pairing.sender("orders").send(message("1"))
        await asyncio.sleep(599)
        assert world.pings() == 0


@virtual_time
async def test_pings_carry_a_session_once_session_messages_were_diverted() -> None:
    world = a_world()
    world.primary_messaging = messaging = Recorder(world.primary)
    async with await open_pairing(world, a_pair(interval=0, ping=60)) as pairing:
        world.primary.go_dark()
        await pairing.sender("orders").send(message("1", session="s"))
        await asyncio.sleep(200)
    pings = messaging.payloads
    assert len(pings) == 4
    assert all(session_of(payload) is not None for payload in pings)


@virtual_time
async def test_a_failure_while_the_pings_are_being_closed_is_pinged_too() -> None:
    world = a_world()
    world.primary_messaging = Recorder(world.primary, close_seconds=3)
    async with await open_pairing(world, a_pair(interval=10, ping=60)) as pairing:
        fault = world.primary.go_dark()
        sender = pairing.sender("orders")
        with pytest.raises(ConnectionLostError):
            await sender.send(message("1"))
        await asyncio.sleep(65)
        world.primary.heal(fault)
        while pairing.state().entities[0].state is not State.HEALTHY:
            await asyncio.sleep(0.1)
        fault = world.primary.go_dark()
        assert (await sender.send(message("2"))).where is SentTo.BACKLOG
        world.primary.heal(fault)
        await asyncio.sleep(61)
        assert pairing.state().entities[0].state is State.HEALTHY


# Measuring


@virtual_time
async def test_measuring_gives_percentiles_per_entity_and_side() -> None:
    clock = FakeClock()
    primary, secondary = FakeNamespace("contoso", clock), FakeNamespace("fabrikam", clock)
    for namespace, seconds in ((primary, 0.1), (secondary, 0.3)):
        namespace.add_queue("orders")
        namespace.delays["send"] = seconds
    targets = [
        message_target(Side.PRIMARY, primary.messaging(), "orders"),
        message_target(Side.SECONDARY, secondary.messaging(), "orders"),
        message_target(Side.PRIMARY, primary.messaging(), "missing"),
    ]
    told: list[PingResult] = []
    report = await measure(targets, clock=clock, count=5, interval_seconds=1, on_result=told.append)
    first, second, third = report
    assert (first.side, first.entity, first.sent, first.accepted) == (Side.PRIMARY, "orders", 5, 5)
    assert first.latency.p50_ms == pytest.approx(100)
    assert second.latency.p99_ms == pytest.approx(300)
    assert (third.accepted, third.latency, type(third.last_error)) == (0, Milliseconds(), EntityNotFoundError)
    assert not all(row.ok for row in report)
    assert len(told) == 15
    assert clock.monotonic() == pytest.approx(4.3)


@virtual_time
async def test_the_time_to_connect_stands_apart_from_the_answers_after_it() -> None:
    clock = FakeClock()
    namespace = FakeNamespace("contoso", clock)
    namespace.add_queue("orders")
    namespace.delays["send"] = 2.0

    def faster(result: PingResult) -> None:
        namespace.delays["send"] = 0.1

    target = message_target(Side.PRIMARY, namespace.messaging(), "orders")
    (row,) = await measure([target], clock=clock, count=3, interval_seconds=5, on_result=faster)
    assert (row.accepted, row.connecting_seconds) == (3, pytest.approx(2.0))
    assert row.latency.p99_ms == pytest.approx(100)


@virtual_time
async def test_who_never_answers_is_not_asked_as_often_as_wanted() -> None:
    clock = FakeClock()
    silent, flaky = FakeNamespace("contoso", clock), FakeNamespace("fabrikam", clock)
    for namespace in (silent, flaky):
        namespace.add_queue("orders")
    silent.go_dark()
    flaky.fail("send", ConnectionLostError("gone"), times=1)
    targets = [
        message_target(Side.PRIMARY, silent.messaging(), "orders"),
        message_target(Side.SECONDARY, flaky.messaging(), "orders"),
    ]
    report = await measure(targets, clock=clock, count=30, interval_seconds=5)
    assert [(row.sent, row.accepted) for row in report] == [(6, 0), (30, 29)]


@virtual_time
async def test_measuring_until_ok() -> None:
    clock = FakeClock()
    namespace = FakeNamespace("contoso", clock)
    namespace.add_queue("orders")
    namespace.fail("send", ConnectionLostError("gone"), times=4)
    target = message_target(Side.PRIMARY, namespace.messaging(), "orders")
    report = await measure([target], clock=clock, interval_seconds=10, until_ok=True)
    (row,) = report
    assert (row.sent, row.accepted, row.last_error, all(row.ok for row in report)) == (5, 1, None, True)
    assert clock.monotonic() == pytest.approx(40)


@virtual_time
async def test_measuring_ends_when_its_time_is_over() -> None:
    clock = FakeClock()
    namespace = FakeNamespace("contoso", clock)
    namespace.add_queue("orders")
    namespace.go_dark()
    target = message_target(Side.PRIMARY, namespace.messaging(), "orders")
    report = await measure([target], clock=clock, interval_seconds=10, until_ok=True, total_seconds=45)
    assert (report[0].sent, all(row.ok for row in report)) == (5, False)
    assert clock.monotonic() == pytest.approx(45)


@virtual_time
async def test_the_control_plane_is_asked_without_sending_a_message() -> None:
    clock = FakeClock()
    namespace = FakeNamespace("contoso", clock)
    namespace.add_queue("orders")
    namespace.add_queue("news", topic=True)
    targets = [control_plane_target(Side.PRIMARY, namespace.admin(), name) for name in ("orders", "news", "missing")]
    report = await measure(targets, clock=clock)
    assert [row.accepted for row in report] == [1, 1, 0]
    assert isinstance(report[2].last_error, EntityNotFoundError)
    namespace.fail("admin", UnauthorizedError("no"))
    report = await measure(targets[:1], clock=clock)
    assert isinstance(report[0].last_error, UnauthorizedError)
    assert all(operation == "admin" for operation, _ in namespace.calls)


@virtual_time
async def test_a_series_of_pings_is_summed_up_by_how_each_ended_and_what_came_before_it() -> None:
    """Every series of three, against a model: accepted, refused, or without an answer."""
    errors = {"refused": UnauthorizedError("no"), "lost": ConnectionLostError("down"), "accepted": None}
    for outcomes in product(errors, repeat=3):
        clock = FakeClock()
        coming = iter([(errors[one], 1.0 + number) for number, one in enumerate(outcomes)])

        async def probe(coming: Iterator[tuple[ServiceError | None, float]] = coming) -> None:
            error, seconds = next(coming)
            await asyncio.sleep(seconds)
            if error is not None:
                raise error

        report = await measure([PingTarget(Side.PRIMARY, "orders", probe)], clock=clock, count=3, interval_seconds=0.0)
        [row] = report
        before = ("none", *outcomes)
        connected = [1.0 + n for n, one in enumerate(outcomes) if one == before[n] == "accepted"]
        connecting = [1.0 + n for n, one in enumerate(outcomes) if one == "accepted" != before[n]]
        assert (row.sent, row.accepted) == (3, outcomes.count("accepted"))
        assert (row.last_error, all(row.ok for row in report)) == (errors[outcomes[-1]], outcomes[-1] == "accepted")
        assert row.connecting_seconds == next(iter(connecting), None)
        assert row.latency == Milliseconds.of(connected or connecting)


@virtual_time
async def test_all_targets_have_to_answer_and_each_is_closed() -> None:
    clock, closed = FakeClock(), list[str]()

    def target(name: str, error: ServiceError | None) -> PingTarget:
        async def probe() -> None:
            if error is not None:
                raise error

        async def close() -> None:
            closed.append(name)

        return PingTarget(Side.PRIMARY, name, probe, close)

    wrong = UnauthorizedError("no")
    for failing, ok in ((None, True), (wrong, False)):
        closed.clear()
        report = await measure([target("a", failing), target("b", None)], clock=clock)
        assert (all(row.ok for row in report), sorted(closed), [row.sent for row in report]) == (ok, ["a", "b"], [1, 1])
    assert not PingRow(Side.PRIMARY, "a", 0, 0, None, Milliseconds(), None).ok, "none was accepted yet"


@virtual_time
async def test_pings_leave_no_link_open_once_they_are_over() -> None:
    class Keeping(FakeMessaging):
        def __init__(self, namespace: FakeNamespace) -> None:
            super().__init__(namespace)
            self.senders: list[FakeSender] = []

        def sender(self, entity: str) -> FakeSender:
            self.senders.append(super().sender(entity))
            return self.senders[-1]

    world = a_world()
    world.primary_messaging = messaging = Keeping(world.primary)
    async with await open_pairing(world, a_pair(interval=0, ping=1)) as pairing:
        fault = world.primary.go_dark()
        assert (await pairing.sender("orders").send(message("1"))).where is SentTo.BACKLOG
        world.primary.heal(fault)
        await asyncio.sleep(30.0)
        assert pairing.state().entities[0].state is State.HEALTHY
        assert len(messaging.senders) > 1
        assert [one.closed for one in messaging.senders].count(False) == 1, "the one that messages are sent on"
