"""Real time for the runtime."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime


class LoopClock:
    """The machine's clock and the running loop's sleep."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


TICK_SECONDS = 0.5
STOPPED_SECONDS = 2.0
"""A tick that comes so much too late was not late by load: the process was stopped (SIGSTOP), or its machine slept."""


class Awake:
    """A monotonic clock without the time in which this process was stopped: what it did not wait for is nobody's
    silence. Locks run out meanwhile, so they go by the other clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._stopped_seconds = 0.0
        self._ticked_at = math.inf

    def monotonic(self) -> float:
        now = self._now()
        return now - self._stopped_seconds - self._late(now)

    def _late(self, now: float) -> float:
        """How much too late the next tick is, if that is too much."""
        late = now - self._ticked_at - TICK_SECONDS
        return late if late >= STOPPED_SECONDS else 0.0

    async def watch(self) -> None:
        """Take notice of stops until it is cancelled."""
        while True:
            self._ticked_at = self._now()
            await asyncio.sleep(TICK_SECONDS)
            self._stopped_seconds += self._late(self._now())


class Quiet:
    """An observer that nobody listens to."""

    def notify(self, event: object) -> None:
        """Do nothing."""
