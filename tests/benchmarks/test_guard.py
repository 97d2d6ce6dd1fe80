"""Operations, not seconds: what a drain asks of the namespaces must not grow faster than the backlog."""

import asyncio
from collections.abc import Iterator

import pytest

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.events import Polled
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.benchmarks.scrape import scraped
from tests.fakes import RecordingObserver

FEW, MANY = 500, 2500
SCRAPED = 350
"""Three topics with 99 subscriptions each, and 50 queues beside the one that is there."""
RECEIVE_MESSAGES = 100
MOST_RUNS = 8
"""What comes a second after the receive that asked for it is released and comes again. That is the machine being busy
with something else, so such a run is repeated; a drain that asks twice by itself does so in every run."""


@pytest.fixture(scope="module")
def on() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


async def drained(on: Embedded) -> tuple[dict[str, dict[str, int]], list[int]]:
    """Operations per namespace, and what each receive brought, of one drain with its confirmation."""
    observer = RecordingObserver()
    home, away, admin = AzureMessaging(on.primary), AzureMessaging(on.secondary), DataPlaneAdmin(on.secondary)
    report = await drain(
        DrainJob(
            TransferRequest(BACKLOG),
            secondary=away,
            primary=home,
            admin=admin,
            clock=LoopClock(),
            observer=observer,
            stop=asyncio.Event(),
        )
    )
    for part in (home, away, admin):
        await part.close()
    assert report.confirmed_empty
    return on.watched(), [event.messages for event in observer.of(Polled)]


async def drained_without_late_ones(on: Embedded, count: int) -> tuple[dict[str, dict[str, int]], int]:
    """The same of so many messages in a run in which none came late, or in the last one; receives are counted."""
    for _ in range(MOST_RUNS):
        on.fill(count, 1000)
        on.watch()
        operations, brought = await drained(on)
        assert sum(brought) == count, "the drain is handed each message once"
        assert operations["secondary"]["receive"] == operations["secondary"]["settle"], "each delivery is settled once"
        if operations["secondary"]["receive"] == count:
            break
    return operations, len(brought)


async def test_operations_of_a_drain_stay_in_proportion(on: Embedded) -> None:
    seen = {}
    for count in (FEW, MANY):
        seen[count], receives = await drained_without_late_ones(on, count)
        primary, secondary = seen[count]["primary"], seen[count]["secondary"]
        assert secondary["receive"] == secondary["settle"] == count, "each message once, and settled once"
        assert primary["send"] <= count / 40 + len(BACKLOG), "batches, not single messages"
        assert receives <= 4 * count / RECEIVE_MESSAGES + 5 * len(BACKLOG), (
            "each queue is opened with one for one message"
        )
        assert primary["connect"] == 1
        assert primary["management"] == primary["receive"] == primary["http"] == 0
    few, many = seen[FEW]["secondary"], seen[MANY]["secondary"]
    for operation in ("connect", "attach", "management", "http"):
        assert many[operation] <= few[operation] + len(BACKLOG), f"{operation}: grows with the backlog"
    assert many["management"] <= 3 * len(BACKLOG), "browses of empty queues"


async def test_a_scrape_asks_a_namespace_no_more_than_it_says() -> None:
    """A call for each page of entities and each topic, and fewer credits than it allows itself; what it tells of both
    is what the namespace has counted."""
    with embedded() as empty:
        empty.entities(SCRAPED)
        rows = {(row.case.split()[0], row.figure): row.value for row in await scraped(empty, SCRAPED)}
    for case in ("first", "second"):
        figures = {figure: value for (told, figure), value in rows.items() if told == case}
        assert figures["management calls"] == figures["management calls, as told"] == 1 + 1 + 3
        assert figures["credits of browses"] == figures["credits of browses, as told"] <= 1_000
        assert (figures["ages"], figures["dead letters not read"]) == (25, 0)
        assert figures["entities with sessions"] == 5
    letters = 3 * 10
    assert rows["first", "credits of browses"] - rows["second", "credits of browses"] == letters
