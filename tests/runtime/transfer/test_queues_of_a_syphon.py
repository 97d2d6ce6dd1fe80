"""How a syphon keeps up with its queues: when it counts them, whom it asks, and which are added."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.core.entities import Counts, QueueFacts, QueueSettings
from sbpair.core.errors import ServerBusyError, UnauthorizedError
from sbpair.core.events import BacklogCounted, QueueAppeared
from sbpair.core.rewrite import compose
from sbpair.runtime.transfer.drain import TransferRequest
from sbpair.runtime.transfer.syphon import RECOUNT_SECONDS, SOON_SECONDS, _Queues
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time

QUEUE = "Primary/x-servicebus-transfer/0"
LATER = "primary/x-servicebus-transfer/2"
POLL_SECONDS = 900.0


class World:
    """A secondary with one backlog queue, which is read."""

    def __init__(self, *, later_queues: bool = True, admin: bool = True, poll_seconds: float = POLL_SECONDS) -> None:
        self.namespace = FakeNamespace("secondary", FakeClock())
        self.namespace.add_queue(QUEUE)
        self.observer = RecordingObserver()
        self.pump: Any = SimpleNamespace(
            moved=asyncio.Event(),
            machine=SimpleNamespace(custody=SimpleNamespace(live=0)),
            sources=[SimpleNamespace(path=QUEUE), SimpleNamespace(path=QUEUE)],
            add=lambda source: self.pump.sources.append(source),
        )
        self.queues = _Queues(
            TransferRequest((QUEUE,), later_queues=later_queues),
            {},
            self.namespace.messaging(),
            self.namespace.admin() if admin else None,
            self.pump,
            self.namespace.clock,
            self.observer,
            poll_seconds,
        )

    @property
    def lists(self) -> int:
        return sum(count for (operation, _), count in self.namespace.calls.items() if operation == "admin")


@virtual_time
async def test_it_counts_once_a_poll_soon_after_something_moved_and_while_something_is_held() -> None:
    world, loop = World(), asyncio.get_running_loop()
    counted: list[float] = []

    async def noting(operation: str, entity: str) -> None:
        counted.append(loop.time())

    world.namespace.hook = noting
    following = asyncio.create_task(world.queues.follow())
    loop.call_later(100.0, world.pump.moved.set)
    await asyncio.sleep(100.0 + SOON_SECONDS + 1.0)
    assert counted == [pytest.approx(100.0 + SOON_SECONDS)]
    await asyncio.sleep(POLL_SECONDS)
    assert counted[1:] == [pytest.approx(counted[0] + POLL_SECONDS)], "nothing has moved since"
    world.pump.moved.set()
    world.pump.machine.custody.live = 1
    began = len(counted)
    await asyncio.sleep(POLL_SECONDS + 3.5 * RECOUNT_SECONDS)
    assert len(counted) - began > 3, "as long as something is held back, it is counted more often"
    following.cancel()


@virtual_time
async def test_a_short_poll_is_not_made_longer() -> None:
    world = World(poll_seconds=RECOUNT_SECONDS / 4)
    following = asyncio.create_task(world.queues.follow())
    await asyncio.sleep(RECOUNT_SECONDS + 1.0)
    following.cancel()
    assert world.lists == 4


@virtual_time
async def test_who_may_not_list_and_wants_no_later_queues_counts_once() -> None:
    world = World(admin=False, later_queues=False)
    world.queues.facts = {QUEUE: QueueFacts(QUEUE, QueueSettings(), Counts(active=3, dead_letter=1)), LATER: None}
    async with asyncio.timeout(POLL_SECONDS):
        await world.queues.follow()
    assert [(one.queue, one.messages) for one in world.observer.of(BacklogCounted)] == [(QUEUE, 3)]


@virtual_time
async def test_a_queue_that_comes_later_is_added_once_and_others_under_the_prefix_are_not() -> None:
    for admin in (True, False):
        world = World(admin=admin)
        await world.queues._look()
        assert len(world.pump.sources) == 2
        world.namespace.add_queue(LATER.replace("primary", "PRIMARY"))
        world.namespace.add_queue("primary/x-servicebus-transfer/other")
        world.namespace.put(LATER, compose(body=b"x", message_id="a"))
        for _ in range(2):
            await world.queues._look()
        assert [one.path for one in world.pump.sources[2:]] == [LATER]
        assert [one.queue for one in world.observer.of(QueueAppeared)] == [LATER]
        known = world.queues.facts
        assert set(known) >= ({QUEUE, LATER} if admin else set())
        if admin:
            counts = known[LATER]
            assert counts is not None
            assert counts.counts.active == 1


@virtual_time
async def test_only_the_queues_that_are_read_are_asked_for_where_later_ones_are_not_wanted() -> None:
    world = World(later_queues=False)
    world.namespace.add_queue(LATER)
    await world.queues._look()
    assert (len(world.pump.sources), [path for path, one in world.queues.facts.items() if one]) == (2, [QUEUE])


@virtual_time
async def test_without_the_right_to_list_it_does_not_ask_again_and_an_outage_is_nothing_known() -> None:
    world = World()
    await world.queues._look()
    world.namespace.fail("admin", ServerBusyError("busy"), times=1)
    await world.queues._look()
    assert (world.queues.facts, world.queues.admin is None) == ({}, False)
    world.namespace.fail("admin", UnauthorizedError("no right"), times=1)
    world.namespace.add_queue(LATER)
    await world.queues._look()
    assert world.queues.admin is None
    assert [one.queue for one in world.observer.of(QueueAppeared)] == [LATER], "it is opened instead"
    asked = world.lists
    await world.queues._look()
    assert world.lists == asked
    world.queues.request = TransferRequest(("other",))
    world.pump.sources = [SimpleNamespace(path="other")]
    assert await world.queues._opened(["other"]) == ()
