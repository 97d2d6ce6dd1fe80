"""Real time for the runtime."""

import asyncio
from datetime import UTC, datetime


class SystemClock:
    """The machine's clock and the running loop's sleep."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Quiet:
    """An observer that nobody listens to."""

    def notify(self, event: object) -> None:
        """Do nothing."""
