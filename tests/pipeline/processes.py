"""Processes that a test has started, found by descent, so that it can kill what Spark runs for it and nothing else."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def descendants(ancestor: int) -> dict[int, str]:
    """Process ids below `ancestor` with their command lines, by /proc."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for process in parents:
        line = process
        while line in parents and line != ancestor:
            line = parents[line]
        if line == ancestor and process != ancestor:
            found[process] = commands[process]
    return found


def has_open(process: int, path: Path) -> bool:
    """Whether a process has the file open."""
    try:
        return any(entry.readlink() == path for entry in (Path("/proc") / str(process) / "fd").iterdir())
    except OSError:
        return False  # it has ended meanwhile


def kill_python_workers() -> int:
    """Kill the Python workers of this process's Spark (not the daemon that makes them); how many there were."""
    mine = {process for process, command in descendants(os.getpid()).items() if "pyspark.daemon" in command}
    workers = [process for process in mine if _parent(process) in mine]
    for process in workers:
        _kill(process)
    return len(workers)


def _parent(process: int) -> int:
    try:
        return int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def meanwhile(ready: Callable[[], bool], strike: Callable[[], object]) -> Iterator[list[object]]:
    """While the block runs: as soon as `ready()`, `strike()` once. What it gave is in the list."""
    struck: list[object] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if ready():
                struck.append(strike())
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield struck
    finally:
        over.set()
        thread.join()
