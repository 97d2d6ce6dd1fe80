"""Sends under way: counted so that close can wait for them, interrupted when it has waited long enough."""

import asyncio
from types import TracebackType

from sbpair.core.errors import InterruptedWorkError

LANDING_SECONDS = 1.0
"""How long an interrupted send gets to unwind."""


class Flights:
    """All sends of one pairing that have begun and not ended."""

    def __init__(self) -> None:
        self._aloft: set[Flight] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._refusal: str | None = None

    def __len__(self) -> int:
        return len(self._aloft)

    def admit(self) -> "Flight":
        """`async with flights.admit():` around one send.

        Raises:
            InterruptedWorkError: on entry once `refuse` was called, and on exit if the send was interrupted.
        """
        return Flight(self)

    def refuse(self, why: str) -> None:
        """Let no new send begin. The first reason stands."""
        self._refusal = self._refusal or why

    async def land(self, seconds: float) -> int:
        """Wait for the sends under way, interrupt those that take longer. Returns how many were interrupted."""
        if await self._wait(seconds):
            return 0
        return await self.interrupt()

    async def interrupt(self) -> int:
        """End every send under way now; each raises InterruptedWorkError."""
        flying = tuple(self._aloft)
        for flight in flying:
            flight.interrupt()
        await self._wait(LANDING_SECONDS)
        return len(flying)

    async def _wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def began(self, flight: "Flight") -> None:
        if self._refusal is not None:
            raise InterruptedWorkError(f"Nothing was sent: {self._refusal}")
        self._aloft.add(flight)
        self._empty.clear()

    def ended(self, flight: "Flight") -> None:
        self._aloft.discard(flight)
        if not self._aloft:
            self._empty.set()


class Flight:
    """One send under way; see `Flights.admit`."""

    __slots__ = ("_flights", "_scope")

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._scope = asyncio.timeout(None)

    def interrupt(self) -> None:
        self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        self._flights.began(self)
        await self._scope.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._flights.ended(self)
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise InterruptedWorkError(
                "The pairing was closed while the message was being sent; it may have been stored or not."
            ) from None
