"""An evacuation that follows: what comes is moved on, consumers go over, and the cut-over proves the source empty."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.connect import open_ends
from sbpair.core.entities import EntityKind, EntitySettings
from sbpair.core.errors import UsageError
from sbpair.core.events import Event, Paused, ReceiveFailed, StepDone
from sbpair.core.message import Disposition
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import as_sent, compose
from sbpair.operations import CopyRequest, Ends, EvacuateRequest, EvacuateResult, copy, evacuate
from sbpair.runtime.transfer.ledger import sent_in
from sbpair.service import EntityStatus
from tests.fakes import RecordingObserver
from tests.operations.conftest import World
from tests.operations.test_entities import dead_lettered, sent

LIMIT_SECONDS = 60.0


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.primary, world.pair.secondary) as opened:
        yield opened


@pytest.fixture
def request_(tmp_path: Path) -> EvacuateRequest:
    return EvacuateRequest(tmp_path / "evacuated.jsonl", log=tmp_path / "state" / "operations.jsonl", follow=True)


class Follows:
    """An evacuation under way; ended when the block is left."""

    def __init__(self, ends: Ends, request: EvacuateRequest) -> None:
        self.stop, self.seen = asyncio.Event(), RecordingObserver()
        self._work = evacuate(ends, request, observer=self.seen, stop=self.stop)

    async def __aenter__(self) -> "Follows":
        self.task = asyncio.create_task(self._work)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        self.result: EvacuateResult = await self.task


async def until(world: World, path: str, count: int) -> None:
    """Until TO has got so many."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            queue = world.emulator.namespace("fabrikam").get_queue(path)
            if queue is not None and queue.counts().active >= count:
                return
            await asyncio.sleep(0.05)


async def failed(follows: Follows) -> None:
    """Until the run has seen that a namespace is gone."""
    before = len(follows.seen.of(ReceiveFailed)) + len(follows.seen.of(Paused))
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(follows.seen.of(ReceiveFailed)) + len(follows.seen.of(Paused)) == before:
            await asyncio.sleep(0.05)


async def in_session(ends: Ends, session: str, first: int, count: int) -> None:
    sender = ends.source.sender("by-session")
    named = [f"{session}{n}" for n in range(first, first + count)]
    await sender.send([compose(body=one, message_id=one, session_id=session) for one in named], timeout_seconds=30)
    await sender.close()


async def ids(ends: Ends, path: str) -> list[str | None]:
    receiver = ends.target.receiver(path)
    page = await receiver.peek(250)
    await receiver.close()
    return [as_sent(one.payload).message_id for one in page]


async def test_what_comes_is_moved_on_and_the_end_says_what_waits(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    await dead_lettered(ends, "orders", ["Broken"])
    async with Follows(ends, request_) as follows:
        await sent(ends, "orders", 3, first=1)
        await until(world, "orders", 3)
        await sent(ends, "orders", 2, first=4)
        await until(world, "orders", 5)
        lag = await evacuate(ends, replace(request_, status=True, dry_run=True))
    done = follows.result
    assert (done.stopped, done.source_empty, done.closed, done.exit) == (True, False, False, Exit.PARTIAL)
    assert [(move.mailbox, move.moved, move.accepted) for move in done.moves] == [("orders", 5, 5)]
    assert world.waiting("orders", dead_letter=True) == 1, "dead letters wait for the cut-over"
    assert "contoso still accepts messages" in done.closing("the same")
    assert any("The way back is open" in note for note in done.notes())
    assert (lag.exit, lag.only_lag) == (Exit.OK, True)
    orders = next(one for one in lag.lag if one.entity == "orders")
    assert (orders.messages, orders.age_seconds, orders.there_now) == (0, 0.0, 5)
    assert (orders.followed, orders.status) == (True, EntityStatus.ACTIVE)
    assert len(sent_in(request_.ledger)) == 5


async def test_a_session_is_kept_once_it_was_moved_and_its_state_goes_first(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.topology is not None
    await ends.topology.create(EntityKind.QUEUE, "by-session", EntitySettings(requires_session=True))
    await in_session(ends, "a", 0, 3)
    held = ends.source.receiver("by-session", session_id="a")
    await held.set_session_state(b"seen 0")
    first = await held.receive(1, wait_seconds=5)
    async with Follows(ends, request_) as follows:
        await in_session(ends, "b", 0, 2)
        await until(world, "by-session", 2)
        await held.settle(first[0], Disposition.COMPLETE)
        await held.close()  # the consumer goes over
        await until(world, "by-session", 4)
        late = ends.source.receiver("by-session", session_id="a")
        with pytest.raises(Exception, match="session"):
            await late.session_state()
        await late.close()
        await in_session(ends, "a", 3, 2)
        await until(world, "by-session", 6)
    there = ends.target.receiver("by-session", session_id="a")
    assert await there.session_state() == b"seen 0"
    await there.close()
    assert [one for one in await ids(ends, "by-session") if one and one[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert follows.result.moves[0].accepted == 6
    done = await evacuate(ends, replace(request_, follow=False, lag_seconds=math.inf))
    assert (done.source_empty, done.closed, done.left, done.exit) == (True, True, (), Exit.OK)


async def test_the_cut_over_closes_moves_all_kinds_and_counts_once_more(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    await dead_lettered(ends, "orders", ["Broken"])
    await sent(ends, "orders", 1, first=1)
    receiver = ends.source.receiver("orders")
    for one in await receiver.receive(1, wait_seconds=5):
        await receiver.settle(one, Disposition.DEFER)
    await receiver.close()
    await sent(ends, "orders", 3, first=2)
    done_request = replace(request_, follow=True, lag_seconds=2.0)
    observer = RecordingObserver()
    done = await evacuate(ends, done_request, observer=observer)
    assert (done.source_empty, done.closed, done.exit, done.left) == (True, True, Exit.OK, ())
    assert "closed to senders, and was counted once more" in done.closing("")
    assert world.waiting("orders", "fabrikam") == 4
    assert world.waiting("evacuated/contoso/queues/orders/dead-letters", "fabrikam") == 1
    for path in ("orders", "invoices"):
        queue = world.emulator.namespace("contoso").get_queue(path)
        assert queue is not None
        assert queue.status is EntityStatus.SEND_DISABLED
    steps = [event.result for event in observer.of(StepDone) if event.item == "orders"]
    assert steps == ["SendDisabled", "Active", "SendDisabled"]
    assert request_.log is not None
    assert request_.log.read_text().count('"set-status"') == 6
    again = await evacuate(ends, done_request)
    assert (again.source_empty, again.closed, again.moves) == (True, True, done.moves[:0] or again.moves)


async def test_a_sender_that_does_not_give_up_is_named_and_loses_nothing(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    """It sends whenever the queue is open for the proof."""

    class SendsWhenOpen:
        def __init__(self) -> None:
            self.number = 0
            self.tasks: set[asyncio.Task[None]] = set()

        def notify(self, event: Event) -> None:
            if isinstance(event, StepDone) and (event.item, event.result) == ("invoices", "SendDisabled"):
                return
            if isinstance(event, StepDone) and (event.item, event.result) == ("orders", "Active"):
                self.number += 1
                task = asyncio.create_task(sent(ends, "orders", 1, first=self.number))
                self.tasks.add(task)

    sender = SendsWhenOpen()
    done = await evacuate(ends, replace(request_, lag_seconds=math.inf), observer=sender)
    await asyncio.gather(*sender.tasks)
    assert sender.number >= 1
    there = world.waiting("orders", "fabrikam") + world.waiting("orders")
    assert there == sender.number, "each message is in one place"
    if not done.source_empty:
        assert "senders still send to it" in done.left[0].reason


async def test_the_same_call_goes_on_after_a_stop_and_while_it_was_closed(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.topology is not None and ends.target_topology is not None
    await sent(ends, "orders", 4)
    for topology in (ends.topology, ends.target_topology):
        await topology.create(EntityKind.QUEUE, "Returns", EntitySettings())
    await sent(ends, "Returns", 3)
    await copy(ends, CopyRequest("Returns", "Returns", ledger=request_.ledger, max_messages=2))
    async with Follows(ends, request_):
        await until(world, "orders", 4)
        await until(world, "Returns", 3)
    for path in ("orders", "invoices", "Returns"):  # as a cut-over leaves it that was killed
        await ends.topology.update(path, {"status": EntityStatus.SEND_DISABLED})
    done = await asyncio.wait_for(evacuate(ends, request_), LIMIT_SECONDS)
    assert (done.source_empty, done.closed) == (True, True), "all queues are closed: the cut-over was asked for"
    assert (world.waiting("orders", "fabrikam"), world.waiting("Returns", "fabrikam")) == (4, 3)


async def test_an_outage_of_either_side_is_waited_for(world: World, ends: Ends, request_: EvacuateRequest) -> None:
    async with Follows(ends, request_) as follows:
        await sent(ends, "orders", 2)
        await until(world, "orders", 2)
        for count, name in enumerate(("fabrikam", "contoso"), 2):
            faults = world.emulator.faults(name)
            dark = faults.add("dark")
            if name == "fabrikam":
                await sent(ends, "orders", 1, first=10)
            await failed(follows)
            faults.remove(dark)
            await sent(ends, "orders", 1, first=count)
            await until(world, "orders", count + 2)
    assert follows.result.moves[0].accepted == 5
    assert sorted(one or "" for one in await ids(ends, "orders")) == ["m0", "m1", "m10", "m2", "m3"]


async def test_duplicates_are_refused_even_where_nothing_lies_yet(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.target_topology is not None
    await ends.target_topology.create(EntityKind.QUEUE, "orders", EntitySettings(requires_duplicate_detection=True))
    with pytest.raises(UsageError, match="it detects duplicates there"):
        await evacuate(ends, request_)
    planned = await evacuate(ends, replace(request_, follow=False, dry_run=True))
    assert planned.conflicts == ()


async def test_a_queue_that_is_disabled_does_not_hold_up_a_cut_over_from_another_process(
    ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.topology is not None
    await ends.topology.create(EntityKind.QUEUE, "shut", EntitySettings(status=EntityStatus.DISABLED))
    await ends.topology.update("invoices", {"status": EntityStatus.SEND_DISABLED})
    follows = Follows(ends, request_)
    async with asyncio.timeout(LIMIT_SECONDS), follows:
        await ends.topology.update("orders", {"status": EntityStatus.SEND_DISABLED})
        await asyncio.wait({follows.task})
    assert (follows.result.stopped, follows.result.closed) == (False, True)
    assert [one.entity for one in follows.result.left if "shut" in one.entity]


async def test_one_queue_that_takes_nothing_does_not_make_the_namespace_closed(
    ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.topology is not None
    await ends.topology.update("invoices", {"status": EntityStatus.SEND_DISABLED})
    asked = replace(request_, status=True, dry_run=True)
    some = await evacuate(ends, asked)
    assert (some.closed, "contoso accepts messages" in some.closing("")) == (False, True)
    await ends.topology.update("orders", {"status": EntityStatus.SEND_DISABLED})
    every = await evacuate(ends, asked)
    assert (every.closed, "contoso is closed to senders" in every.closing("")) == (True, True)
