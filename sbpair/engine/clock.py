"""Time for the emulator: one clock per emulator, so that a test can turn an hour into an instant."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has been arranged."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has been made already."""


class Clock(Protocol):
    """What the namespace takes as the present. Instants are UTC seconds since 1970."""

    def now(self) -> float:
        """The present instant in epoch seconds."""

    def client_now(self) -> float:
        """The present of the clients, by which they date their tokens; they do not notice when time is moved on."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once, on the emulator's loop, as soon as `now()` has reached `when` (never within this call)."""


class SystemClock:
    """Real time, which never runs backwards while the emulator lives (a step of the wall clock is not followed)."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._order = itertools.count()

    def now(self) -> float:
        return self._offset + time.monotonic()

    def client_now(self) -> float:
        return self.now()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        # An event loop keeps no order among timers of the same time: messages scheduled for one instant would become
        # active in any order. So each timer is a nanosecond later than the one arranged before it.
        turn = next(self._order) % 1_000_000 * 1e-9
        return asyncio.get_running_loop().call_at(when - self._offset + turn, callback)


class ManualClock:
    """Time that stands still until told: `advance` makes the due calls in their order, each at its own instant."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def now(self) -> float:
        return self._now

    def client_now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if when <= self._now:
            asyncio.get_running_loop().call_soon(self.advance, 0.0)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by that many seconds, making every call that falls due on the way (also those arranged meanwhile)."""
        if seconds < 0:
            raise ValueError("time cannot be turned back")
        target = self._now + seconds
        while self._timers and self._timers[0][0] <= target:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            timer.run()
        self._now = max(self._now, target)


class AdvancingClock:
    """Real time that can be moved on: `advance(3600)` makes what falls due within that hour happen at once.

    The due calls are made in their order, each at its own instant, so that of two scheduled messages the earlier one
    becomes active first. Expiry is no call: the next read of a mailbox sees to it. Clients stay in real time.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._ahead_seconds = 0.0
        self._instant: float | None = None
        """The instant of the call that is being made while time is moved on."""
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._alarm: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return self.client_now() + self._ahead_seconds if self._instant is None else self._instant

    def client_now(self) -> float:
        return self._offset + time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if self._timers[0][2] is timer:
            self._arm()
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by that many seconds; on the emulator's loop only."""
        if seconds < 0:
            raise ValueError("time cannot be turned back")
        self._run_until(self.now() + seconds)
        self._ahead_seconds += seconds
        self._arm()

    def close(self) -> None:
        """Make no more calls."""
        self._timers.clear()
        self._arm()

    def _run_until(self, target: float) -> None:
        while self._timers and self._timers[0][0] <= target:
            when, _, timer = heapq.heappop(self._timers)
            self._instant = max(when, self.now() if self._instant is None else self._instant)
            timer.run()
        self._instant = None

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while self._timers and not self._timers[0][2].waiting:
            heapq.heappop(self._timers)
        if self._timers:
            self._alarm = asyncio.get_running_loop().call_later(self._timers[0][0] - self.now(), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].run()
        self._arm()


class _ManualTimer:
    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    @property
    def waiting(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
