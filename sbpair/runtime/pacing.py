"""Keeps management calls within a share of a namespace's throttling credits.

A management call costs 10 credits, a namespace of tier Basic or Standard has 1,000 a second for everything, so an
unpaced audit slows the application down (Service Bus throttling).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sbpair.core.errors import ConflictError, ServerBusyError, ServiceError, ServiceInternalError
from sbpair.core.snapshot import CREDITS_PER_MANAGEMENT_CALL, calls_per_read
from sbpair.ports import Clock, NamespaceAdmin

T = TypeVar("T")

DEFAULT_CREDITS_PER_SECOND = 200.0
"""A fifth of a namespace: 20 management calls a second."""
BUSY_PAUSE_SECONDS = 10.0
"""What the documents ask for after ServerBusy (seed 001)."""
_OTHER_PAUSE_SECONDS = 1.0
_TRIES = 3
_WORTH_ANOTHER_TRY = (ServerBusyError, ConflictError, ServiceInternalError)


class CreditPacer:
    """Hands out throttling credits at a steady rate, in the order they are asked for. No rate: no limit."""

    def __init__(self, clock: Clock, credits_per_second: float | None = DEFAULT_CREDITS_PER_SECOND) -> None:
        self._clock = clock
        self._rate = credits_per_second
        self._free_at = clock.monotonic()

    async def spend(self, credits: int = CREDITS_PER_MANAGEMENT_CALL) -> None:
        """Wait until `credits` may be used."""
        if self._rate is None:
            return
        now = self._clock.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + credits / self._rate
        if start > now:
            await self._clock.sleep(start - now)

    async def spend_read(self, admin: NamespaceAdmin) -> None:
        """Wait until one entity may be read with everything about it."""
        await self.spend(calls_per_read(admin.control_plane) * CREDITS_PER_MANAGEMENT_CALL)


async def patiently(clock: Clock, call: Callable[[], Awaitable[T]]) -> T:
    """Run `call`, up to three times while the namespace says it is busy or stumbles; 10 s pause after "busy".

    Time-outs and lost connections are not tried again here: the adapter below already did, and an unreachable namespace
    should be reported soon.
    """
    for tried in range(1, _TRIES + 1):
        try:
            return await call()
        except _WORTH_ANOTHER_TRY as error:
            if tried == _TRIES:
                raise
            await clock.sleep(pause_after(error))
    raise AssertionError("unreachable: the last try returns or raises")


def pause_after(error: ServiceError) -> float:
    """Seconds to wait before the same call is tried again."""
    return BUSY_PAUSE_SECONDS if isinstance(error, ServerBusyError) else _OTHER_PAUSE_SECONDS
