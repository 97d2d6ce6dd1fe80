"""One link that is opened on first use, shared by everybody who asks, and replaced when it is gone."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from sbpair.azure.wire import Wire, self_test
from sbpair.concurrency import end
from sbpair.core.errors import ConnectionLostError

W = TypeVar("W", bound=Wire)

OPEN_SECONDS = 15.0
"""Bound of one attempt to connect, authenticate and attach: an attempt that hangs must not hold up the next."""


class SharedWire(Generic[W]):
    """Opens a wire once for any number of callers; after it failed, the next caller gets a new one."""

    def __init__(self, make: Callable[[], W], *, open_seconds: float = OPEN_SECONDS) -> None:
        self._make = make
        self._open_seconds = open_seconds
        self._wire: W | None = None
        self._opening: asyncio.Task[W] | None = None
        self._closed = False

    @property
    def current(self) -> W | None:
        """The wire if it is open and alive."""
        return self._wire if self._wire is not None and not self._wire.failed else None

    async def get(self, *, timeout_seconds: float) -> W:
        """The open wire.

        Raises:
            TimeoutError: it is not open in time. What went wrong with opening it otherwise, as it was raised.
        """
        if self._closed:
            raise ConnectionLostError("It has been closed here.")
        if (wire := self.current) is not None:
            return wire
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        await asyncio.wait({opening}, timeout=timeout_seconds)
        if not opening.done():
            raise TimeoutError(f"no connection within {timeout_seconds:.1f} seconds")
        return opening.result()

    async def _open(self) -> W:
        self_test()
        if self._wire is not None:
            await self._wire.abort()
        wire = self._make()
        try:
            async with asyncio.timeout(self._open_seconds):
                await wire.open()
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {self._open_seconds:.1f} seconds") from error
        self._wire = wire
        return wire

    def _opened(self, task: "asyncio.Task[W]") -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()

    async def drop(self) -> None:
        """Give the present wire up: its peer does not answer."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.abort()

    async def close(self) -> None:
        """Close the wire in good order; nothing can be opened afterwards."""
        self._closed = True
        if self._opening is not None:
            await end(self._opening)
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()
