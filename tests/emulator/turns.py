"""An event loop that knows how long its turns took, in time of its own thread: what others did meanwhile on the same
machine is not in it."""

import asyncio
import time


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A turn is all that the loop does between two looks at its sockets. `turns` has the seconds of each."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.turns.append(time.thread_time() - began)

    def taken(self) -> list[float]:
        """The turns since the last call, shortest first."""
        turns, self.turns = self.turns, []
        return sorted(turns)
