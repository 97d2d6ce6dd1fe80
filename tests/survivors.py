"""Ends every process that a test run has started, however the run itself ends: emulators, JVMs, workers, children.

A run marks its environment, which every process below it inherits, also one in a session of its own. A guard waits for
the end of the run, whether it is over, was interrupted or killed, and kills what still has the mark. A test that gives
a process an environment of its own passes `mark()` on.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "PYTEST_RUN_OF_SBPAIR"
CAN_GUARD = hasattr(os, "pidfd_open") and Path("/proc/self/environ").exists()
"""Elsewhere than on Linux an interrupted run may leave processes behind."""
MOST_SECONDS = 30.0
"""A process that cannot be killed for so long hangs in the kernel."""
_guard: "subprocess.Popen[bytes] | None" = None
"""Referred to, because nobody waits for it: it ends after this process."""


def guard_run() -> None:
    """Mark the processes that this one starts from now on, and have them killed once this one has ended.

    Called once in each run, by the process that the others belong to. A run within a run is a part of its mark.
    """
    if not CAN_GUARD:
        return
    before = dict(os.environ)
    own = f"{os.environ.get(VARIABLE, '')}/{os.getpid()}."
    os.environ[VARIABLE] = own
    global _guard
    _guard = subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid()), own],
        env=before,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the run
    )


def mark() -> dict[str, str]:
    """The variable that a process needs to be ended with the run."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def marked(mark: str) -> Iterator[int]:
    """Ids of the processes whose mark begins so."""
    wanted = f"{VARIABLE}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if any(variable.startswith(wanted) for variable in environment.split(b"\0")):
            yield int(entry.name)


def _kill_after(run: int, mark: str) -> None:
    try:
        ends = os.pidfd_open(run)
    except ProcessLookupError:
        pass
    else:
        if os.getppid() == run:  # otherwise the id is somebody else's by now
            select.select([ends], [], [])
    deadline = time.monotonic() + MOST_SECONDS
    while (left := list(marked(mark))) and time.monotonic() < deadline:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


if __name__ == "__main__":
    _kill_after(int(sys.argv[1]), sys.argv[2])
