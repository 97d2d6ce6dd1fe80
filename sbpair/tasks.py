"""Ending asyncio tasks for certain."""

import asyncio
from typing import Any

AGAIN_SECONDS = 3.0
"""Long enough for what a task still has to put in order, which a second cancellation would cut short."""


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until all have ended, however they do.

    A cancellation can get lost: before Python 3.12 `asyncio.wait_for`, which the SDK uses, drops one that comes in the
    moment in which what it waits for is done. A task that loops would then go on for ever, so it is asked again.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asked for, so that asyncio does not complain that nobody did
