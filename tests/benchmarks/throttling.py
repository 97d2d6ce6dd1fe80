"""How much of a throttled namespace's budget a drain uses, how much of what it asks for is refused, and what --reserve
leaves to others.

    python -m tests.benchmarks --only throttling [--quick]

The namespaces are a process of their own and have the credits of the Standard tier: both of them where some are left to
others; the primary alone where its budget has to be learnt, since a secondary with the same budget gives no more than
the primary takes. It is counted by the second of the clock there, the first seconds, in which a drain knows nothing
yet, among them.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND as CREDITS
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.transfer.syphon import DrainRequest, drain
from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.benchmarks.table import Row
from tests.fakes import RecordingObserver

RESERVE = 400
SIZE_BYTES = 100


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes about two minutes, the whole about six."""
    seconds = 60 if quick else 180
    with embedded() as on:
        rows = [*_learnt(on, seconds), *_reserved(on, seconds // 2)]
    return [row.as_dict() for row in rows]


def _learnt(on: Embedded, seconds: int) -> Iterator[Row]:
    spent = _drained(on, seconds, secondary=None)["primary"]
    case = f"{CREDITS:,} credits a second, {seconds} s"
    yield Row("throttling", case, "budget used", _percent(spent["credits"], seconds * CREDITS), "%", at_least=95)
    asked = spent["granted"] + spent["refused"]
    yield Row("throttling", case, "requests refused", _percent(spent["refused"], asked), "%", at_most=1)


def _reserved(on: Embedded, seconds: int) -> Iterator[Row]:
    left = CREDITS - RESERVE
    for name, spent in _drained(on, seconds, secondary=CREDITS, budget=left).items():
        case = f"--reserve {RESERVE}, {seconds} s, {name}"
        yield Row("throttling", case, "of the rest used", _percent(spent["credits"], seconds * left), "%", at_least=95)
        yield Row("throttling", case, "credits in the busiest second", spent["busiest"], "", at_most=1.1 * left)
        yield Row("throttling", case, "requests refused", spent["refused"], "", at_most=0)


def _drained(
    on: Embedded, seconds: int, *, secondary: int | None, budget: float | None = None
) -> dict[str, dict[str, int]]:
    on.fill(int(seconds * CREDITS * 1.2), SIZE_BYTES)
    on.budget(CREDITS, secondary)
    asyncio.run(_drain(on, DrainRequest(BACKLOG, for_seconds=seconds, budget_per_second=budget)))
    return on.spent()


async def _drain(on: Embedded, request: DrainRequest) -> None:
    primary, secondary = AzureMessaging(on.primary), AzureMessaging(on.secondary)
    admin = DataPlaneAdmin(on.secondary)
    try:
        report = await drain(
            request,
            secondary=secondary,
            primary=primary,
            admin=admin,
            clock=SystemClock(),
            observer=RecordingObserver(),
            ledger=None,
            stop=asyncio.Event(),
        )
    finally:
        await asyncio.gather(primary.close(), secondary.close(), admin.close())
    assert report.ended_by == "time", report


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2)
