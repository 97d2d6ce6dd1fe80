"""Work in a copy of this process, which ends by itself and whose failure is its exit code."""

import os
import signal
import sys
from collections.abc import Callable

CHILD_SECONDS = 120
"""A child that waits for what it will never get is ended, and has failed."""


def begun(work: Callable[[], None]) -> int:
    """Do this in a forked process, which ends within a bound; its id."""
    if child := os.fork():
        return child
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's is for the parent
    signal.alarm(CHILD_SECONDS)
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - a child must not go on with the parent's tests
        print(f"in the child: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """Its exit code, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(work: Callable[[], None]) -> int:
    """Do this in a forked process; its exit code."""
    return ended(begun(work))
