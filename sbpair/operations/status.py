"""`status`: does each namespace of a pair answer, what waits in the backlog, and how fast does that change."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from sbpair.concurrency import run_until
from sbpair.core.inspection.status import PairStatus, StatusReport, report
from sbpair.ports import Observer, Sides
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.status import DEFAULT_TIMEOUT_SECONDS, StatusReader

__all__ = ["StatusReport", "StatusRequest", "status", "watch_status"]


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """How a status is read."""

    interval_seconds: float = 2.0
    """Between two samples, from which rates are computed; 0: a single sample, so no rate."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one call."""


async def status(
    sides: Sides, request: StatusRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> StatusReport:
    """Read the status of a pair from two samples. Changes nothing. Needs Listen on the secondary.

    What cannot be read is said in the result.

    Args:
        sides: the pair, opened.
        request: how to read.
        observer: gets nothing; a status has no events.
        stop: ends it; after the first sample the result is of that one.

    Raises:
        InterruptedWorkError: `stop` was set before the first sample.
    """
    async with aclosing(watch_status(sides, request, stop=stop, reuse_silence=True)) as samples:
        found = await anext(samples)
        return await anext(samples, found) if request.interval_seconds else found


async def watch_status(
    sides: Sides, request: StatusRequest, *, stop: asyncio.Event | None = None, reuse_silence: bool = False
) -> AsyncGenerator[StatusReport, None]:
    """A status for each sample, `request.interval_seconds` apart, until `stop`.

    Args:
        sides: the pair, opened.
        request: how to read.
        stop: ends the waiting and the reading.
        reuse_silence: a side that did not answer is not asked again.

    Raises:
        InterruptedWorkError: `stop` was set while a sample was read.
    """
    stop = stop or asyncio.Event()
    reader = StatusReader(
        sides.pair,
        primary=sides.primary_admin,
        secondary=sides.secondary_admin,
        messaging=sides.secondary,
        clock=SystemClock(),
        timeout_seconds=request.timeout_seconds,
    )
    before: PairStatus | None = None
    while True:
        after = await run_until(stop, reader.read(before if reuse_silence else None))
        yield report(before, after)
        before = after
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), request.interval_seconds)
        if stop.is_set():
            return
