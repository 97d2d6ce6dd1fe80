"""Operations, not seconds: what a drain asks of the namespaces must not grow faster than the backlog."""

import asyncio
from collections.abc import Iterator

import pytest

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.events import Polled
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.syphon import DrainRequest, drain
from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.fakes import RecordingObserver

FEW, MANY = 500, 2500
RECEIVE_MESSAGES = 100


@pytest.fixture(scope="module")
def on() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


async def drained(on: Embedded) -> tuple[dict[str, dict[str, int]], int]:
    """Operations per namespace, and receives, of one drain with its confirmation."""
    observer = RecordingObserver()
    home, away, admin = AzureMessaging(on.primary), AzureMessaging(on.secondary), DataPlaneAdmin(on.secondary)
    report = await drain(
        DrainRequest(BACKLOG),
        secondary=away,
        primary=home,
        admin=admin,
        clock=SystemClock(),
        observer=observer,
        ledger=None,
        stop=asyncio.Event(),
    )
    for part in (home, away, admin):
        await part.close()
    assert report.confirmed_empty
    return on.watched(), len(observer.of(Polled))


async def test_operations_of_a_drain_stay_in_proportion(on: Embedded) -> None:
    seen = {}
    for count in (FEW, MANY):
        on.fill(count, 1000)
        on.watch()
        seen[count], receives = await drained(on)
        primary, secondary = seen[count]["primary"], seen[count]["secondary"]
        assert secondary["receive"] == secondary["settle"] == count, "each message once, and settled once"
        assert primary["send"] <= count / 40 + len(BACKLOG), "batches, not single messages"
        assert receives <= 4 * count / RECEIVE_MESSAGES + 4 * len(BACKLOG)
        assert primary["connect"] == 1
        assert primary["management"] == primary["receive"] == primary["http"] == 0
    few, many = seen[FEW]["secondary"], seen[MANY]["secondary"]
    for operation in ("connect", "attach", "management", "http"):
        assert many[operation] <= few[operation] + len(BACKLOG), f"{operation}: grows with the backlog"
    assert many["management"] <= 3 * len(BACKLOG), "browses of empty queues"
