"""Keeps a syphon running beside a pairing: starts it, starts it again after an error, stops it within a bound."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sbpair.core.errors import SbpairError
from sbpair.core.events import Paused, Resumed
from sbpair.ports import Clock, Observer

SyphonFactory = Callable[[asyncio.Event], Coroutine[Any, Any, object]]
"""Makes a coroutine that brings the backlog home until the event is set."""

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 120.0
STEADY_SECONDS = 300.0
"""A syphon that ran this long starts again with the first pause."""
STOP_SECONDS = 10.0


class SyphonRunner:
    """One syphon task."""

    def __init__(self, factory: SyphonFactory, *, clock: Clock, observer: Observer) -> None:
        self._factory = factory
        self._clock = clock
        self._observer = observer
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="syphon")

    async def stop(self) -> None:
        """Ask it to stop; cancel it when it takes too long."""
        self._stop.set()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=STOP_SECONDS)
        if late:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_SECONDS)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            started = self._clock.monotonic()
            try:
                await self._factory(self._stop)
            except SbpairError as error:
                if self._clock.monotonic() - started >= STEADY_SECONDS:
                    pause = FIRST_PAUSE_SECONDS
                await self._rest(error, pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
            else:
                return

    async def _rest(self, error: SbpairError, seconds: float) -> None:
        self._observer.notify(Paused(self._clock.now().timestamp(), "", error.code, seconds))
        stopped = asyncio.create_task(self._stop.wait())
        rested = asyncio.create_task(self._sleep(seconds))
        await asyncio.wait({stopped, rested}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, rested):
            task.cancel()
        self._observer.notify(Resumed(self._clock.now().timestamp(), ""))

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
