"""`status`: does each namespace of a pair answer, what waits in the backlog, and how fast does that change."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from sbpair.concurrency import abandon_after, run_until
from sbpair.core.access import NamespaceAccess
from sbpair.core.backlog import Backlog, FoundBy, QueueContents
from sbpair.core.errors import ServiceError, UnauthorizedError
from sbpair.core.inspection.status import (
    LIMITED,
    REACHABLE,
    UNREACHABLE,
    PairStatus,
    SideStatus,
    StatusReport,
    report,
)
from sbpair.core.pairing import Pair
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Observer, Sides
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS, FoundQueues, find_queues, read_backlog

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


@dataclass(slots=True)
class StatusReader:
    """Reads the status of one pair again and again; the queues are searched for once.

    What cannot be read is said in the status; nothing is raised for it. `timeout_seconds` bounds each call.
    """

    pair: Pair
    _: KW_ONLY
    primary: NamespaceAdmin
    secondary: NamespaceAdmin
    messaging: Messaging
    clock: Clock
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    _found: FoundQueues | None = field(default=None, init=False)

    async def read(self, after: PairStatus | None = None) -> PairStatus:
        """The status now. A side that did not answer when `after` was read, a moment ago, is not waited for again."""
        taken_at = self.clock.now().timestamp()
        silent = [] if after is None else [one for one in (after.primary, after.secondary) if one.state == UNREACHABLE]
        first, second = await asyncio.gather(
            self._side("primary", self.pair.primary, self.primary, silent),
            self._side("secondary", self.pair.secondary, self.secondary, silent),
        )
        backlog = self._unread(taken_at, second) if second.state == UNREACHABLE else await self._backlog()
        # Words differ by what was tried, and the cause is the same: it is told of the side.
        alike = [
            replace(queue, detail=second.detail)
            if queue.error_code and queue.error_code == second.error_code
            else queue
            for queue in backlog.queues
        ]
        backlog = replace(backlog, queues=tuple(alike))
        if second.state == "denied" and any(queue.known for queue in backlog.existing):
            second = replace(second, state=LIMITED, detail=_NO_MANAGE["secondary"], hint="")
        return PairStatus(self.pair.name, taken_at, first, second, backlog, self.pair.environment)

    async def _side(
        self, role: str, access: NamespaceAccess, admin: NamespaceAdmin, silent: Sequence[SideStatus]
    ) -> SideStatus:
        for known in silent:
            if known.side == role:
                return known
        side = partial(SideStatus, role, access.host, label=access.label, embedded=access.embedded)
        began = self.clock.monotonic()
        try:
            facts = await abandon_after(self.timeout_seconds, admin.namespace(), what=f"Properties of {access.label}")
        except ServiceError as error:
            if isinstance(error, UnauthorizedError) and error.lacks == "Manage":
                # A namespace that asks for Manage has answered; only what it did not tell is missing.
                ms = (self.clock.monotonic() - began) * 1000
                return side(LIMITED, answered_in_ms=ms, error_code=error.code, detail=_NO_MANAGE[role])
            return side(error.exit_name, error_code=error.code, detail=error.message, hint=error.hint)
        return side(REACHABLE, facts.tier, (self.clock.monotonic() - began) * 1000)

    async def _backlog(self) -> Backlog:
        fresh = self._found is None or self._found.found_by is FoundBy.CONFIGURED
        if self._found is None or fresh:
            self._found = await find_queues(
                self.pair, messaging=self.messaging, admin=self.secondary, timeout_seconds=self.timeout_seconds
            )
        return await read_backlog(
            self.pair,
            self._found,
            messaging=self.messaging,
            admin=self.secondary,
            clock=self.clock,
            timeout_seconds=self.timeout_seconds,
            recount=not fresh,
        )

    def _unread(self, taken_at: float, side: SideStatus) -> Backlog:
        """A namespace that does not answer is not asked for each of its queues."""
        queues = tuple(
            QueueContents(path, error_code=side.error_code, exit_name=side.state, detail=side.detail)
            for path in self.pair.backlog_paths()
        )
        return Backlog(self.pair.name, taken_at, queues, FoundBy.CONFIGURED)


_NO_MANAGE = {
    "primary": "Reachable; tier unknown (needs Manage).",
    "secondary": "Reachable; tier unknown (needs Manage). Queues are opened to find them, and browsed.",
}
"""By role."""
