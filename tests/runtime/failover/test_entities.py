"""What the pairings of one process know of an entity together: who takes part, who hears of it, what is kept."""

import asyncio

import pytest

from sbpair.core.errors import (
    ConnectionLostError,
    CredentialError,
    EntityNotFoundError,
    InvalidNameError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.events import (
    Diverted,
    EntityInvalid,
    FailedBack,
    FailedOver,
    PingSent,
    SendFailed,
    SideFaulted,
    SideRestored,
)
from sbpair.core.failover.machine import DOCUMENTED, Route, State
from sbpair.core.pairing import SendAvailabilityOptions, Side
from sbpair.runtime.failover.entity import REMEMBERED_SECONDS, Member, MonitoredEntities, MonitoredEntity
from tests.fakes import FakeClock, FakeMessaging, FakeNamespace, RecordingObserver, virtual_time

DOWN = ConnectionLostError("down")
DENIED = UnauthorizedError("no right")
PING_SECONDS = 10.0


class World:
    """A primary and the entities of it that are sent to."""

    def __init__(self, *, interval: float = 0.0, shared: bool = True) -> None:
        self.primary = FakeNamespace("contoso", FakeClock())
        self.primary.add_queue("orders")
        self.observer, self.rested = RecordingObserver(), list[float]()
        options = SendAvailabilityOptions(
            backlog_queue_count=1, failover_interval_seconds=interval, ping_interval_seconds=PING_SECONDS
        )
        self.entities = MonitoredEntities(
            options,
            policy=DOCUMENTED,
            clock=self.primary.clock,
            observer=self.observer,
            shared=shared,
            on_rest=lambda: self.rested.append(self.primary.clock.monotonic()),
        )

    def member(self) -> tuple[Member, RecordingObserver, FakeMessaging]:
        messaging, observer = self.primary.messaging(), RecordingObserver()
        return Member(messaging, observer), observer, messaging

    def fail(self, one: MonitoredEntity, error: ServiceError) -> RecordingObserver:
        observer = RecordingObserver()
        one.failed(error, one.ticket, observer)
        return observer


def kinds(observer: RecordingObserver) -> list[str]:
    return [type(event).__name__ for event in observer.events]


@virtual_time
async def test_an_entity_is_one_for_all_that_send_to_it_in_any_spelling() -> None:
    world = World()
    (first, own, _), (second, others, _) = world.member(), world.member()
    assert (world.entities.empty, world.entities.known("orders"), world.entities.resting) == (True, None, True)
    one = world.entities.of("Orders", first)
    assert world.entities.of("orders", second) is one is world.entities.known("orders")
    world.entities.of("a", first)
    assert [each.entity for each in world.entities.all()] == ["a", "Orders"]
    assert (one.quiet, one.route(), one.state, world.entities.refused()) == (True, Route.PRIMARY, State.HEALTHY, False)
    with pytest.raises(InvalidNameError):
        world.entities.of("", first)
    told = world.fail(one, DOWN)
    assert kinds(told) == ["SendFailed"]
    assert told.of(SendFailed)[0].entity == "Orders"
    for observer in (world.observer, own, others):
        assert kinds(observer) == ["FailedOver"], "a failed send concerns its sender, the rest all"
    assert (one.quiet, one.worth_remembering, one.cause, one.route()) == (False, True, DOWN, Route.BACKLOG)
    one.diverted("q", 3, told)
    assert (told.of(Diverted)[0].messages, one.diverted_messages, kinds(own)) == (3, 3, ["FailedOver"])
    await asyncio.gather(world.entities.leave(first), world.entities.leave(second))


@virtual_time
async def test_pings_go_over_the_connection_of_who_sends_longest_until_one_succeeds() -> None:
    world = World()
    (first, own, messaging), (second, _, later) = world.member(), world.member()
    one = world.entities.of("orders", first)
    world.entities.of("orders", second)
    outage = world.primary.go_dark()
    world.fail(one, DOWN)
    await asyncio.sleep(2.5 * PING_SECONDS)
    assert [event.succeeded for event in own.of(PingSent)] == [False, False, False]
    assert one.pinged is messaging
    await world.entities.leave(first)
    await asyncio.sleep(PING_SECONDS)
    assert one.pinged is later
    assert not world.entities.resting
    world.primary.heal(outage)
    await asyncio.sleep(PING_SECONDS)
    assert (one.state, one.resting, world.entities.resting, world.entities.seen) == (State.HEALTHY, True, True, True)
    [back] = world.observer.of(FailedBack)
    assert back.seconds_away == pytest.approx(4 * PING_SECONDS, abs=PING_SECONDS)
    assert one.since == back.at
    assert world.rested, "who waits for the end of all tasks is told"
    await world.entities.leave(second)


@virtual_time
async def test_an_outage_is_remembered_when_all_have_left_and_nothing_else_is() -> None:
    world = World()
    member, _, _ = world.member()
    away = world.entities.of("orders", member)
    world.primary.add_queue("invoices")
    world.entities.of("invoices", member)
    world.primary.go_dark()
    world.fail(away, DOWN)
    assert not await world.entities.leave(member)
    assert world.entities.all() == (away,)
    assert (away.resting, away.is_used, away.is_stale(world.primary.clock.monotonic())) == (True, False, False)
    pings = len(world.observer.of(PingSent))
    await asyncio.sleep(REMEMBERED_SECONDS)
    assert len(world.observer.of(PingSent)) == pings, "nobody is there to ping for"
    assert not away.is_stale(world.primary.clock.monotonic())
    assert world.entities.of("orders", world.member()[0]) is away, "the next goes on"
    other, _, _ = world.member()
    await world.entities.leave(away._users[0])
    await asyncio.sleep(REMEMBERED_SECONDS + 1.0)
    assert away.is_stale(world.primary.clock.monotonic())
    again = world.entities.of("orders", other)
    assert (again is away, again.state) == (False, State.HEALTHY)
    await world.entities.leave(other)
    assert world.entities.empty
    gone, _, _ = world.member()
    gone.has_left = True
    assert not world.entities.of("orders", gone).is_used


@virtual_time
async def test_of_one_pairing_alone_nothing_is_forgotten_and_no_ping_is_waited_for() -> None:
    world = World(shared=False)
    member, _, _ = world.member()
    one = world.entities.of("orders", member)
    world.primary.delays["limit"] = world.primary.delays["send"] = 50.0
    world.fail(one, DOWN)
    await asyncio.sleep(1.5 * PING_SECONDS)
    assert one.pinging
    assert not await world.entities.leave(member)
    assert (one.pinging, one.resting, world.entities.all()) == (False, True, (one,))


@virtual_time
async def test_a_connection_is_kept_until_the_ping_on_it_has_ended() -> None:
    world = World()
    member, _, messaging = world.member()
    one = world.entities.of("orders", member)
    world.primary.delays["send"] = 50.0
    world.fail(one, DOWN)
    await asyncio.sleep(1.5 * PING_SECONDS)
    assert one.pinging
    assert await world.entities.leave(member), "it is closed later"
    assert (messaging.closed, world.entities.resting) == (False, False)
    await asyncio.sleep(100.0)
    assert (messaging.closed, world.entities.resting, one.state) == (True, True, State.HEALTHY)
    assert len(world.rested) >= 1


@virtual_time
async def test_a_primary_that_refuses_is_told_once_and_asked_until_it_takes_the_key_again() -> None:
    world = World()
    member, own, _ = world.member()
    one = world.entities.of("orders", member)
    refusal = world.primary.fail("*", DENIED)
    assert one.resting
    for _ in range(2):
        assert kinds(world.fail(one, DENIED)) == []
        assert not one.resting, "it is pinged from the first refusal on"
    assert [(event.side, event.error_code) for event in own.of(SideFaulted)] == [(Side.PRIMARY, DENIED.code)]
    assert (one.quiet, one.route(), world.entities.refused(), one.state) == (False, Route.PRIMARY, True, State.HEALTHY)
    await asyncio.sleep(2.5 * PING_SECONDS)
    assert [event.succeeded for event in own.of(PingSent)] == [False, False]
    world.primary.heal(refusal)
    await asyncio.sleep(PING_SECONDS)
    assert [event.side for event in own.of(SideRestored)] == [Side.PRIMARY]
    assert (one.quiet, world.entities.refused(), one.resting) == (True, False, True)
    world.fail(one, DENIED)
    one.sent()
    one.sent()
    assert len(own.of(SideRestored)) == 2
    world.fail(one, CredentialError("no token"))
    assert len(own.of(SideFaulted)) == 2, "a credential that gives no token says nothing of the primary"
    await world.entities.leave(member)


@virtual_time
async def test_a_timer_that_a_success_cancels_is_no_way_back() -> None:
    world = World(interval=30.0)
    member, own, _ = world.member()
    one = world.entities.of("orders", member)
    world.fail(one, DOWN)
    assert (one.state, one.timer_seconds_left, one.worth_remembering) == (State.SUSPECT, 30.0, True)
    assert not one.resting
    await asyncio.sleep(10.0)
    assert one.timer_seconds_left == 20.0
    one.sent()
    assert (one.state, kinds(own), one.quiet) == (State.HEALTHY, [], True)
    await asyncio.sleep(1.0)
    assert one.resting
    world.primary.go_dark()
    world.fail(one, DOWN)
    await asyncio.sleep(31.0)
    assert (one.state, kinds(own)[0]) == (State.FAILED_OVER, "FailedOver")
    assert own.of(FailedBack) == []
    await world.entities.leave(member)


@virtual_time
async def test_what_is_done_by_hand_is_told_and_not_remembered() -> None:
    world = World()
    member, own, _ = world.member()
    one = world.entities.of("orders", member)
    one.force()
    [over] = own.of(FailedOver)
    assert (over.forced, over.cause, one.worth_remembering, one.resting) == (True, "forced", False, True)
    one.fail_back()
    assert kinds(own) == ["FailedOver", "FailedBack"]
    one.force()
    await world.entities.leave(member)
    assert world.entities.empty


@virtual_time
async def test_an_entity_that_is_gone_raises_what_the_ping_met_each_time_anew() -> None:
    world = World()
    member, own, _ = world.member()
    one = world.entities.of("orders", member)
    plain = one.refusal()
    assert (plain.entity, type(plain)) == ("orders", ServiceError)
    world.fail(one, DOWN)
    gone = EntityNotFoundError("gone")
    world.primary.fail("*", gone)
    await asyncio.sleep(1.5 * PING_SECONDS)
    assert (one.state, [event.entity for event in own.of(EntityInvalid)]) == (State.ENTITY_INVALID, ["orders"])
    first, second = one.refusal(), one.refusal()
    assert (first is second, type(first), first.__cause__, first.message) == (False, EntityNotFoundError, gone, "gone")
    assert not one.worth_remembering
    await world.entities.leave(member)


@virtual_time
async def test_a_sender_takes_up_the_queue_of_the_one_before() -> None:
    world = World()
    one = world.entities.of("orders", world.member()[0])
    assert one.take_queue() is None
    for queue in ("a", "b", "a"):
        one.give_queue_back(queue)
    assert [one.take_queue() for _ in range(3)] == ["b", "a", None]
    one.expect_sessions()
    assert one._pinger.with_session


@virtual_time
async def test_what_a_link_takes_is_known_before_and_after_the_first_sender() -> None:
    world = World()
    world.entities.answered("ORDERS", 100)
    one = world.entities.of("Orders", world.member()[0])
    assert (one.rules.max_message_bytes, world.entities.seen) == (100, True)
    world.entities.answered("Orders", 200)
    assert one.rules.max_message_bytes == 200
    assert one.worth_retrying(DOWN)
    assert not one.worth_retrying(EntityNotFoundError("gone"))


def test_nothing_is_pinged_for_nobody() -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        member, _, _ = world.member()
        one = world.entities.of("orders", member)
        await one.leave(member, ping_may_end=True)
        await one.leave(member, ping_may_end=True)
        with pytest.raises(RuntimeError, match="only for somebody"):
            one._pinged()

    story()
