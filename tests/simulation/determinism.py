"""The clock and the random numbers of this Python process, while a history runs.

The SDK and the emulator read the time of the machine and draw keys and ids. Where they do so they get the simulated
time, with the error of the process that asks, and the seed's numbers. A history runs in a process of its own, so
nothing else sees it.
"""

import gc
import logging
import os
import random
import sys
import time
from datetime import UTC, datetime
from typing import Any

import azure.servicebus.aio

from tests.simulation.loop import PROCESS, SimulatedLoop

EPOCH = 1_790_000_000.0


def wall(loop: SimulatedLoop) -> float:
    """UTC epoch seconds as the process that asks has them."""
    process = PROCESS.get()
    return EPOCH + loop.time() + (0.0 if process is None else process.skew_seconds)


def _utc_now(loop: SimulatedLoop) -> datetime:
    return datetime.fromtimestamp(wall(loop), UTC)


def take_over(loop: SimulatedLoop, dice: random.Random) -> None:
    """For good: the Python process is of no other use afterwards."""
    gc.disable()  # what a dead process held must not wake up when it is collected
    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", lambda: wall(loop)),
        (time, "monotonic", loop.time),
        (time, "perf_counter", loop.time),
        (os, "urandom", dice.randbytes),
        (random, "_urandom", dice.randbytes),
    ]
    sdk = [module for name, module in sys.modules.items() if name.startswith(azure.servicebus.__name__)]
    replaced += [(module, "utc_now", lambda: _utc_now(loop)) for module in sdk if hasattr(module, "utc_now")]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    random.seed(dice.getrandbits(64))
    logging.disable(logging.CRITICAL)
