"""The backlog without a pairing around it: which queue is tried when, refusals and probes, held sessions."""

import asyncio
from typing import Any

import pytest

from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityNotFoundError,
    HostNotFoundError,
    OperationTimeoutError,
    SendIncompleteError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.events import BacklogQueueLeft, BacklogQueueReturned
from sbpair.core.failover.sending import ALL_OUT_PAUSE_SECONDS, Budget, Rotation, SessionHolds
from sbpair.core.rewrite import compose, for_backlog
from sbpair.runtime.failover import backlog as backlogs
from sbpair.runtime.failover.backlog import BacklogQueues, SessionKeeper, StickyQueue, sessions_waiting, waiting_session
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.runtime.failover.pairs import message

QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))


class World:
    """A backlog of some queues, whose draws take the first that may be had."""

    def __init__(self, queues: int = 3, *, holds: bool = False) -> None:
        self.clock, self.observer = FakeClock(), RecordingObserver()
        self.namespace = FakeNamespace("fabrikam", self.clock)
        self.queues = QUEUES[:queues]
        for queue in self.queues:
            self.namespace.add_queue(queue)
        self.keeper = SessionKeeper(SessionHolds(), self.namespace.messaging(), clock=self.clock) if holds else None
        self.backlog = BacklogQueues(
            self.namespace.messaging(),
            Rotation(self.queues),
            clock=self.clock,
            observer=self.observer,
            draw=lambda: 0.0,
            keeper=self.keeper,
        )
        self.told: list[Any] = []
        self.backlog.on_refused = lambda error: self.told.append(error)
        self.backlog.on_accepted = lambda: self.told.append("accepted")

    def tried(self) -> list[tuple[float, str]]:
        """When which queue is sent to, by its index, from now on."""
        times: list[tuple[float, str]] = []

        async def note(operation: str, entity: str) -> None:
            if operation == "send":
                times.append((self.clock.monotonic(), entity[-1]))

        self.namespace.hook = note
        return times

    async def divert(self, *payloads: bytes, seconds: float = 60.0, sticky: StickyQueue | None = None) -> Any:
        budget = Budget.of(seconds, partitioned=False, now=self.clock.monotonic())
        return await self.backlog.divert("orders", payloads, budget, lambda queue, messages: None, sticky)


@pytest.mark.parametrize(
    "refusal", [UnauthorizedError("no"), EntityNotFoundError("gone"), HostNotFoundError("no name")]
)
def test_a_backlog_that_refuses_for_good_is_told_at_once_and_once_a_try(refusal: ServiceError) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        refusal.uncertain = True
        world.namespace.fail("limit", refusal)
        with pytest.raises(type(refusal)) as caught:
            await world.divert(message("1"))
        assert (world.clock.monotonic(), caught.value.uncertain) == (0.0, False)
        assert (world.backlog.refused, world.backlog.usable, world.told) == (True, (), [refusal])
        assert {one.queue for one in world.observer.of(BacklogQueueLeft)} == {*QUEUES}
        refusal.uncertain = True
        with pytest.raises(type(refusal)) as caught:
            await world.divert(message("1"))
        assert (caught.value is not refusal, caught.value.uncertain) == (True, False), (
            "nothing was tried, so nothing stored"
        )

    story()


@virtual_time
async def test_queues_that_refused_are_probed_one_after_another_until_one_opens() -> None:
    world = World()
    world.namespace.fail("limit", first := UnauthorizedError("no"))
    with pytest.raises(UnauthorizedError):
        await world.divert(message("1"))
    opened = world.namespace.calls["limit", QUEUES[0]]
    assert not await world.backlog.probe()
    assert world.namespace.calls["limit", QUEUES[0]] == opened + 1
    world.namespace.heal()
    world.namespace.fail("limit", ConnectionLostError("down"))
    assert not await world.backlog.probe()
    with pytest.raises(UnauthorizedError):
        await world.divert(message("1"))
    world.namespace.heal()
    world.namespace.fail("limit", again := EntityNotFoundError("gone"))
    assert not await world.backlog.probe()
    with pytest.raises(EntityNotFoundError):
        await world.divert(message("1"))
    world.namespace.heal()
    world.namespace.fail("limit", again, entity=QUEUES[0])
    assert world.told == [first]
    assert await world.backlog.probe()
    assert (world.told, world.backlog.usable, world.backlog.refused) == ([first, "accepted"], (QUEUES[1],), False)
    assert [one.queue for one in world.observer.of(BacklogQueueReturned)] == [QUEUES[1]]
    assert await world.backlog.probe()
    assert (world.told[1:], world.backlog.usable) == (["accepted"], QUEUES[1:]), "told only once all had refused"


@virtual_time
async def test_what_a_link_showed_beforehand_is_judged_as_a_send_would_be() -> None:
    world = World(2)
    assert not world.backlog.seen
    world.backlog.tried(QUEUES[0], ServerBusyError("busy"))
    assert (world.backlog.usable, world.observer.events) == (QUEUES[:2], [])
    world.backlog.tried(QUEUES[0], ConnectionLostError("down"))
    assert (world.backlog.usable, world.backlog.seen) == (QUEUES[:2], True)
    [left] = world.observer.of(BacklogQueueLeft)
    assert (left.queue, left.error_code) == (QUEUES[0], "connection-lost")
    world.backlog.tried(QUEUES[0], None)
    assert [one.queue for one in world.observer.of(BacklogQueueReturned)] == [QUEUES[0]]
    assert world.told == []


@virtual_time
async def test_a_busy_queue_is_tried_again_and_a_failed_one_left_for_the_next() -> None:
    world = World(2)
    times = world.tried()
    world.namespace.fail("send", ServerBusyError("busy"), times=1)
    world.namespace.fail("send", ConnectionLostError("down"), times=1)
    diversion = await world.divert(message("1"))
    busy = backlogs.BUSY_PAUSE_SECONDS
    assert times == [(0.0, "0"), (busy, "0"), (busy, "1")]
    assert (diversion.queues, diversion.accepted) == ([QUEUES[1]], [0])
    world.namespace.fail("send", ServerBusyError("busy"))
    with pytest.raises(ServerBusyError):
        await world.divert(message("2"), seconds=busy)
    assert world.clock.monotonic() < 2 * busy, "a pause that leaves no time is not begun"


@virtual_time
async def test_while_others_probe_the_only_queue_it_is_looked_at_again_and_again() -> None:
    world = World(1)
    world.namespace.delays["send"] = 3.0
    world.namespace.fail("send", ConnectionLostError("down"), times=1)
    probing = asyncio.create_task(world.divert(message("1")))
    await asyncio.sleep(3.0 + ALL_OUT_PAUSE_SECONDS + 0.5)
    diversion = await world.divert(message("2"))
    assert (diversion.accepted, probing.done()) == ([0], True)
    waited = world.clock.monotonic() - (3.0 + ALL_OUT_PAUSE_SECONDS + 2 * 3.0)
    assert 0.0 <= waited <= backlogs.PROBE_POLL_SECONDS


@virtual_time
async def test_a_batch_that_a_queue_refuses_as_such_goes_key_by_key_and_one_of_which_a_part_went_goes_on() -> None:
    world = World(1)
    keyed = [compose(body=b"x", message_id=str(n), partition_key="ab"[n % 2]) for n in range(4)]
    world.namespace.fail("send", ArgumentRefusedError("one key at a time"), times=1)
    diversion = await world.divert(*keyed)
    assert [messages for _, messages in world.namespace.sent_batches] == [2, 2]
    assert sorted(diversion.accepted) == [0, 1, 2, 3]
    world.namespace.sent_batches.clear()
    assert sorted((await world.divert(*keyed)).accepted) == [0, 1, 2, 3]
    assert [messages for _, messages in world.namespace.sent_batches] == [2, 2], "it is remembered of the queue"
    part = SendIncompleteError("1 of 2", accepted=(0,))
    part.uncertain = False
    world.namespace.fail("send", part, times=1)
    diversion = await world.divert(*keyed[:1], *keyed[2:3])
    assert (diversion.accepted, diversion.queues) == ([0, 1], [QUEUES[0]])


@virtual_time
async def test_a_sender_keeps_its_queue_and_each_session_its_own() -> None:
    world = World()
    kept = StickyQueue(QUEUES[2])
    assert (await world.divert(message("1"), sticky=kept)).queues == [QUEUES[2]]
    world.namespace.fail("send", ConnectionLostError("down"), entity=QUEUES[2])
    assert (await world.divert(message("2"), sticky=kept)).queues == [QUEUES[0]]
    assert kept.queue == QUEUES[0]
    of_a_session = await world.divert(message("3", session="s"), sticky=kept)
    assert kept.queue == QUEUES[0], "a session's queue is not the sender's"
    assert of_a_session.queues == (await world.divert(message("4", session="S"))).queues


@virtual_time
async def test_a_refused_backlog_takes_nothing_and_an_idle_one_closes_its_links() -> None:
    world = World()
    await world.divert(message("1"))
    links = world.backlog._links
    await asyncio.sleep(backlogs.IDLE_SECONDS / 2)
    await world.divert(message("2"))
    await asyncio.sleep(backlogs.IDLE_SECONDS - 1.0)
    assert not links.empty
    await asyncio.sleep(2.0)
    assert links.empty
    world.namespace.delays["send"] = backlogs.IDLE_SECONDS + 5.0
    slow = asyncio.create_task(world.divert(message("3"), seconds=120.0))
    await asyncio.sleep(backlogs.IDLE_SECONDS + 2.0)
    assert not links.empty, "it is in use"
    await slow
    world.backlog.refuse("it is closed.")
    with pytest.raises(Exception, match="Nothing was diverted: it is closed"):
        await world.divert(message("4"))
    await world.backlog.close()
    assert links.empty
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Held sessions


def test_only_a_backlog_message_of_a_session_has_one_that_waits() -> None:
    held = for_backlog(message("1", session="s"), "orders")
    assert waiting_session(held) == ("orders", "s")
    for payload in (for_backlog(message("1"), "orders"), message("1", session="s"), b"\x00\x53\x70\xff"):
        assert waiting_session(payload) is None


@virtual_time
async def test_sessions_are_looked_for_as_long_as_one_is_held_with_time_between_long_looks() -> None:
    world = World(holds=True)
    keeper = world.keeper
    assert keeper is not None
    keeper.watch()
    assert keeper._task is None, "nothing is held"
    looks: list[float] = []

    async def note(operation: str, entity: str) -> None:
        if operation == "peek":
            looks.append(world.clock.monotonic())

    world.namespace.hook = note
    world.namespace.delays["peek"] = 1.0
    diversion = await world.divert(message("1", session="s"))
    [queue] = diversion.queues
    first = keeper._task
    keeper.watch()
    assert (keeper._task is first, world.backlog.is_held(("orders", "s"))) == (True, True)
    await asyncio.sleep(60.0)
    browse = 2.0
    poll, pause = backlogs.POLL_SECONDS, backlogs.SCAN_SHARE * browse
    assert looks[:4] == [poll + 1.0, poll + 2.0, poll + browse + pause + 1.0, poll + browse + pause + 2.0]
    assert await sessions_waiting(world.namespace.messaging(), queue) == {("orders", "s")}
    world.namespace.queue(queue).messages.clear()
    await asyncio.sleep(60.0)
    assert (world.backlog.is_held(("orders", "s")), first is not None and first.done()) == (False, True)
    await world.divert(message("2", session="s"))
    assert keeper._task is not first
    await keeper.stop()
    await world.divert(message("3", session="s"))
    assert keeper._task is not None
    assert keeper._task.done(), "nothing is looked for once it is stopped"
    world.namespace.fail("peek", ConnectionLostError("down"))
    assert await sessions_waiting(world.namespace.messaging(), queue) is None


@virtual_time
async def test_a_session_is_held_by_what_may_have_been_stored() -> None:
    world = World(1, holds=True)
    for error, held in ((ConnectionLostError("down"), False), (OperationTimeoutError("answer lost"), True)):
        error.uncertain = held
        world.namespace.fail("send", error)
        with pytest.raises(ServiceError):
            await world.divert(message("1", session="s"), seconds=2.0)
        assert world.backlog.is_held(("orders", "s")) is held
        world.namespace.heal()
        await asyncio.sleep(100.0)
    await world.keeper.stop()  # type: ignore[union-attr]
