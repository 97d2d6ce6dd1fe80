"""Tests wait for what happens, not for a time: a slow machine makes them slow, never red."""

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_SECONDS = 600.0
"""Bounds every wait for something that has to come. Only what hangs takes so long, however busy the machine is."""
_LOOK_AGAIN_SECONDS = 0.02


def until(
    condition: Callable[[], T],
    process: "subprocess.Popen[str] | None" = None,
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> T:
    """The first true value of the condition.

    Raises:
        AssertionError: the process that should have met it has ended, or it was not met in time.
    """
    deadline = time.monotonic() + limit_seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(_LOOK_AGAIN_SECONDS)
    return value
