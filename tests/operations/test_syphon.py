"""A syphon as a call: what it forwards, what ends it, and that it goes on after a breakdown with new connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.connect import open_sides
from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.events import BacklogCounted, Event, Forwarded, Restarting, SyphonBegan
from sbpair.core.outcome import Exit
from sbpair.core.transfer.report import Tally
from sbpair.operations import Sides, SyphonRequest, syphon
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.operations.conftest import QUEUES, World, backlog_queue


class Stopping:
    """Stops the service once so many messages have been forwarded."""

    def __init__(self, messages: int) -> None:
        self.stop = asyncio.Event()
        self.events: list[Event] = []
        self._left = messages

    def notify(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Forwarded):
            self._left -= event.messages
            if self._left <= 0:
                self.stop.set()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


async def test_it_forwards_what_waits_and_what_comes_until_it_is_stopped(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await world.strand(sides, "orders", 2)
    observer, totals = Stopping(5), Tally()
    serving = asyncio.create_task(
        syphon(
            sides,
            SyphonRequest(poll_seconds=5.0, ledger=tmp_path / "syphon.jsonl"),
            observer=observer,
            stop=observer.stop,
            totals=totals,
        )
    )
    await world.strand(sides, "invoices", 3, queue=2)
    result = await serving
    assert (result.report.forwarded, result.report.ended_by, totals.numbers["forwarded"]) == (5, "stop", 5)
    assert (world.waiting("orders"), world.waiting("invoices")) == (2, 3)
    (began,) = observer.of(SyphonBegan)
    assert isinstance(began, SyphonBegan) and began.queues == tuple(map(backlog_queue, range(QUEUES)))
    assert result.backlog is not None and result.backlog.confirmed_empty
    assert result.exit is Exit.OK
    assert len(list(outcomes_in(tmp_path / "syphon.jsonl"))) == 5


@pytest.mark.parametrize(
    ("request_", "ended_by"),
    [(SyphonRequest(for_seconds=4.0), "time"), (SyphonRequest(idle_seconds=4.0), "idle")],
    ids=["time", "idle"],
)
async def test_it_ends_by_itself_when_it_is_asked_to(
    world: World, sides: Sides, request_: SyphonRequest, ended_by: str
) -> None:
    await world.strand(sides, "orders", 2)
    result = await syphon(sides, replace(request_, poll_seconds=2.0))
    assert (result.report.forwarded, result.report.ended_by) == (2, ended_by)


async def test_only_the_queues_of_the_request_are_served_and_counted(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 3)
    await world.strand(sides, "orders", 2, queue=1)
    observer = Stopping(2)
    request = SyphonRequest(queues=(backlog_queue(1),), poll_seconds=2.0)
    result = await syphon(sides, request, observer=observer, stop=observer.stop)
    assert (result.report.forwarded, world.waiting(backlog_queue(0), "fabrikam")) == (2, 3)
    assert {event.queue for event in observer.events if isinstance(event, BacklogCounted)} == {backlog_queue(1)}


async def test_after_a_breakdown_it_goes_on_with_new_connections(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 2)
    opened = []

    @asynccontextmanager
    async def reopen() -> AsyncIterator[Sides]:
        async with open_sides(world.pair) as again:
            opened.append(again)
            yield again

    observer = Stopping(2)
    broken = replace(sides, secondary=_Broken(), secondary_admin=_Broken(), reopen=reopen)  # type: ignore[arg-type]
    result = await syphon(broken, SyphonRequest(poll_seconds=2.0), observer=observer, stop=observer.stop)
    assert (result.report.forwarded, len(opened), len(observer.of(Restarting))) == (2, 1, 1)


class _Broken:
    """A namespace whose adapter fails as none of ours would."""

    host = "fabrikam"

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("it broke down")


async def test_what_another_run_cannot_change_is_raised(sides: Sides) -> None:
    with pytest.raises(UsageError, match=r"There is no .*/7 on fabrikam"):
        await syphon(sides, SyphonRequest(queues=(backlog_queue(7),)))


async def test_one_that_is_stopped_before_it_has_found_its_queues_has_moved_nothing(world: World, sides: Sides) -> None:
    stop = asyncio.Event()
    silent = replace(sides, secondary=_Silent(stop), secondary_admin=_Silent(stop))  # type: ignore[arg-type]
    with pytest.raises(InterruptedWorkError):
        await syphon(silent, SyphonRequest(), stop=stop)


class _Silent:
    """A namespace that does not answer; the first question to it stops the service."""

    host = "fabrikam"

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    async def list_queues(self, prefix: str = "") -> AsyncIterator[object]:
        self._stop.set()
        await asyncio.Event().wait()
        yield
