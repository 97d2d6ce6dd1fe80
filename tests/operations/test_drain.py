"""A drain as a call: the result of a dry run and of a real one, what stops it, what it refuses, and the synchronous
door."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import sbpair
from sbpair.connect import open_sides
from sbpair.core.errors import InterruptedWorkError, SbpairError, UsageError
from sbpair.core.events import BacklogCounted, Event, Forwarded
from sbpair.core.outcome import Exit
from sbpair.emulator.entities import QueueDescription
from sbpair.operations import DrainRequest, Sides, ToArchive, drain
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.fakes import RecordingObserver
from tests.operations.conftest import World, backlog_queue


async def test_a_dry_run_returns_what_a_drain_would_do_and_changes_nothing(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "no-such-queue", 2, queue=1)
    ledger = tmp_path / "drain.jsonl"
    result = await drain(sides, DrainRequest(dry_run=True, leave_missing=True, ledger=ledger))
    assert not ledger.exists()
    assert (result.report.forwarded, result.exit, result.used) == (3, Exit.FINDINGS, None)
    assert result.forecast is not None and result.forecast.message_operations == 9
    assert "3 messages would go back to contoso" in result.closing
    assert (world.waiting(backlog_queue(0), "fabrikam"), world.waiting("orders")) == (3, 0)


async def test_a_drain_returns_what_became_of_the_messages_and_what_is_left(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "no-such-queue", 2, queue=1)
    observer = RecordingObserver()
    request = DrainRequest(ledger=tmp_path / "drain.jsonl", leave_missing=True)
    result = await drain(sides, request, observer=observer)
    assert (result.report.forwarded, result.report.completed) == (3, 3)
    assert result.before == {backlog_queue(0): 3, backlog_queue(1): 2, backlog_queue(2): 0}
    assert result.backlog is not None and result.backlog.active == 2
    assert (result.exit, result.confirmed_empty) == (Exit.PARTIAL, False)
    assert any("does not exist. Create it" in note for note in result.notes)
    assert sum(event.messages for event in observer.of(Forwarded)) == 3
    outcomes = [outcome for _, outcome in outcomes_in(tmp_path / "drain.jsonl")]
    assert outcomes == ["forwarded"] * 3
    assert world.waiting("orders") == 3
    world.emulator.namespace("contoso").create_queue("no-such-queue")
    again = await drain(sides, request)
    assert (again.report.forwarded, again.exit, again.confirmed_empty) == (2, Exit.OK, True)


async def test_what_a_destination_refuses_is_left_until_it_is_changed_or_dead_lettered_on_request(
    world: World, sides: Sides
) -> None:
    world.emulator.namespace("contoso").create_queue("visits", QueueDescription(requires_session=True))
    await world.strand(sides, "visits", 2)
    await world.strand(sides, "orders", 1, queue=1)
    request = DrainRequest(leave_refused=True)
    planned = await drain(sides, replace(request, dry_run=True))
    left = [("refused by visits (argument-refused)", 2)]
    assert [(one.reason, one.count) for one in planned.report.left] == left
    assert planned.closing == (
        "1 message would go back to contoso; 2 would stay (refused by visits (argument-refused)). Nothing was changed."
    )
    result = await drain(sides, request)
    assert [(one.reason, one.count) for one in result.report.left] == left
    assert (result.report.forwarded, result.exit, world.waiting(backlog_queue(0), "fabrikam")) == (1, Exit.PARTIAL, 2)
    assert any("Change the destination and drain again" in note for note in result.notes)
    assert result.closing.endswith("--on-refused dead-letter"), result.closing
    behind = await drain(sides, replace(request, leave_refused=False, dry_run=True))
    assert "2 would be dead-lettered (ArgumentRefused 2)" in behind.closing
    assert (await drain(sides, replace(request, leave_refused=False))).report.dead_lettered == 2
    later = await drain(sides, replace(request, dry_run=True))
    assert "2 dead letters would stay where they are" in later.closing


async def test_a_pair_the_wrong_way_round_is_recognised_and_nothing_is_created(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 3)
    pair = replace(world.pair, primary=world.pair.secondary, secondary=world.pair.primary)
    async with open_sides(pair) as turned:
        with pytest.raises(UsageError, match=r"3 queues of contoso.* are on fabrikam.*the pair is reversed") as refused:
            await drain(turned, DrainRequest())
        assert (refused.value.hint or "").startswith("Run: sbpair drain contoso")


async def test_only_the_queues_of_the_request_are_drained(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "orders", 2, queue=1)
    observer = RecordingObserver()
    result = await drain(sides, DrainRequest(queues=(backlog_queue(1),)), observer=observer)
    assert result.before == {backlog_queue(1): 2}
    assert [event.queue for event in observer.of(BacklogCounted)] == [backlog_queue(1)]
    assert (result.report.forwarded, world.waiting(backlog_queue(0), "fabrikam")) == (2, 3)
    assert result.backlog is not None and result.backlog.not_asked == (backlog_queue(0), backlog_queue(2))
    with pytest.raises(UsageError, match=r"There is no .*/7 on fabrikam; the backlog queues that exist are 0, 1, 2"):
        await drain(sides, DrainRequest(queues=(backlog_queue(7),)))


async def test_a_drain_that_is_stopped_returns_what_was_done_until_then(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 40)
    stop = asyncio.Event()

    class StopsAfterTheFirst:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded):
                stop.set()

    request = DrainRequest(rate_per_second=5.0, concurrency=1)
    result = await drain(sides, request, observer=StopsAfterTheFirst(), stop=stop)
    assert result.report.ended_by == "stop"
    assert 0 < result.report.forwarded < 40
    assert result.report.forwarded + world.waiting(backlog_queue(0), "fabrikam") == 40
    with pytest.raises(InterruptedWorkError):
        await drain(sides, request, stop=stop)
    assert result.report.forwarded == world.waiting("orders")


async def test_no_backlog_queue_and_no_ledger_are_errors_and_nothing_moves(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await world.strand(sides, "orders", 1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(SbpairError, match=r"Cannot write .*: Not a directory\."):
        await drain(sides, DrainRequest(ledger=tmp_path / "file" / "drain.jsonl"))
    other = replace(sides, pair=replace(world.pair, primary=replace(world.pair.primary, label="adatum")))
    with pytest.raises(SbpairError, match=r"No backlog queue of adatum exists on fabrikam\. Nothing was moved"):
        await drain(other, DrainRequest())
    assert world.waiting(backlog_queue(0), "fabrikam") == 1


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (DrainRequest(processes=2, max_messages=1), "max_messages"),
        (DrainRequest(processes=2, to=ToArchive(Path("folder")), rate_per_second=1), "rate_per_second, to"),
    ],
)
async def test_several_processes_are_refused_what_only_one_can_keep(
    sides: Sides, request_: DrainRequest, named: str
) -> None:
    with pytest.raises(UsageError, match=f"Only one process can keep {named};"):
        await drain(sides, request_)


async def test_no_secret_goes_to_another_process(sides: Sides) -> None:
    with pytest.raises(UsageError, match="Another process cannot open embedded: a Secret is not pickled"):
        await drain(sides, DrainRequest(processes=2))


def test_code_that_is_not_asynchronous_drains_too(world: World) -> None:
    world.strand_now("orders", 3)
    result = sbpair.run(drain, world.pair, DrainRequest())
    assert (result.report.forwarded, result.confirmed_empty, world.waiting("orders")) == (3, True, 3)


def test_the_synchronous_door_settles_what_is_in_flight_before_it_lets_an_interrupt_through(world: World) -> None:
    world.strand_now("orders", 40)

    class InterruptsAfterTheFirst:
        interrupted = False

        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded) and not self.interrupted:
                self.interrupted = True
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sbpair.run(
            drain, world.pair, DrainRequest(rate_per_second=5.0, concurrency=1), observer=InterruptsAfterTheFirst()
        )
    back = world.waiting("orders")
    assert 0 < back < 40
    assert back + world.waiting(backlog_queue(0), "fabrikam") == 40
