"""How much of a throttled namespace's budget a drain uses, how much of what it asks for is refused, and what --reserve
leaves to others.

    python -m tests.benchmarks --only throttling [--quick]
    python -m tests.benchmarks.throttling [--credits 500] [--seconds 60] [--spark]

The second form takes another budget, where a machine with other work does not reach 1,000 messages a second, and with
--spark measures archiving and replaying, whose tasks learn together, or have a part each of what --reserve leaves.
There it counts from the first second to the last one in which anything was browsed or sent, and logs each of them.

The namespaces are a process of their own and have the credits of the Standard tier: both of them where some are left to
others; the primary alone where its budget has to be learnt, since a secondary with the same budget gives no more than
the primary takes. It is counted by the second of the clock there, the first seconds, in which a drain knows nothing
yet, among them.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from typing import Any

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND as CREDITS
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.benchmarks.pipeline import Bench, Cost, bench
from tests.benchmarks.table import Row, print_rows
from tests.fakes import RecordingObserver

RESERVE = 400
SIZE_BYTES = 100


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes about two minutes, the whole about six."""
    return [row.as_dict() for row in _of_drain(60 if quick else 180, CREDITS)]


def _of_drain(seconds: int, credits: int) -> list[Row]:
    with embedded() as on:
        return [*_learnt(on, seconds, credits), *_reserved(on, seconds // 2, credits)]


def _learnt(on: Embedded, seconds: int, credits: int) -> Iterator[Row]:
    spent = _drained(on, seconds, credits, secondary=None)["primary"]
    yield from _used(f"drain, {credits:,} credits a second, {seconds} s", spent, seconds * credits)


def _used(case: str, spent: dict[str, Any], budget: float) -> Iterator[Row]:
    yield Row("throttling", case, "budget used", _percent(spent["credits"], budget), "%", at_least=95)
    asked = spent["granted"] + spent["refused"]
    yield Row("throttling", case, "requests refused", _percent(spent["refused"], asked), "%", at_most=1)


def _reserved(on: Embedded, seconds: int, credits: int) -> Iterator[Row]:
    left = credits * (CREDITS - RESERVE) / CREDITS
    for name, spent in _drained(on, seconds, credits, secondary=credits, budget=left).items():
        case = f"drain, {left:,g} of {credits:,} left to it, {seconds} s, {name}"
        yield Row("throttling", case, "of the rest used", _percent(spent["credits"], seconds * left), "%", at_least=95)
        yield Row("throttling", case, "credits in the busiest second", spent["busiest"], "", at_most=1.1 * left)
        yield Row("throttling", case, "requests refused", spent["refused"], "", at_most=0)


def _of_spark(seconds: int, credits: int) -> Iterator[Row]:
    """Archiving from a secondary and replaying to a primary: so many credits are all there are, or all that --reserve
    leaves of a namespace of the Standard tier."""
    with bench() as on:
        on.on.fill(len(BACKLOG), SIZE_BYTES)
        on.archive()  # the first workers of a session take seconds to start
        for reserve in (None, CREDITS - credits):
            budget = credits if reserve is None else CREDITS
            said = f"{credits} credits a second" if reserve is None else f"--reserve {reserve}"
            on.on.fill(seconds * credits, SIZE_BYTES)
            archived = on.fresh()
            on.on.budget(None, budget)
            yield from _job(on, f"archive, {said}", credits, on.archive(into=archived, reserve=reserve), "secondary")
            on.on.budget(budget, None)
            yield from _job(on, f"replay, {said}", credits, on.replay(archived, reserve=reserve), "primary")


def _job(on: Bench, name: str, credits: int, cost: Cost, side: str) -> Iterator[Row]:
    spent = on.on.spent()[side]
    told = " ".join(f"{credits}/{refused}" if refused else str(credits) for credits, refused in spent["by_second"])
    print(f"{name}, credits/requests refused by the second: {told}", file=sys.stderr, flush=True)
    seconds = spent["last_second"] - spent["first_second"] + 1
    yield from _used(f"{name}, {seconds} of {cost.seconds:.0f} s", spent, seconds * credits)
    yield Row("throttling", name, "credits in the busiest second", spent["busiest"])


def _drained(
    on: Embedded, seconds: int, credits: int, *, secondary: int | None, budget: float | None = None
) -> dict[str, dict[str, Any]]:
    on.fill(int(seconds * credits * 1.2), SIZE_BYTES)
    on.budget(credits, secondary)
    asyncio.run(_drain(on, TransferRequest(BACKLOG, for_seconds=seconds, budget_per_second=budget)))
    return on.spent()


async def _drain(on: Embedded, request: TransferRequest) -> None:
    primary, secondary = AzureMessaging(on.primary), AzureMessaging(on.secondary)
    admin = DataPlaneAdmin(on.secondary)
    try:
        report = await drain(
            DrainJob(
                request,
                secondary=secondary,
                primary=primary,
                admin=admin,
                clock=LoopClock(),
                observer=RecordingObserver(),
                stop=asyncio.Event(),
            )
        )
    finally:
        await asyncio.gather(primary.close(), secondary.close(), admin.close())
    assert report.ended_by == "time", report


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.throttling", description=__doc__)
    parser.add_argument("--credits", type=int, default=CREDITS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    rows = (_of_spark if given.spark else _of_drain)(given.seconds, given.credits)
    print_rows([row.as_dict() for row in rows])
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
