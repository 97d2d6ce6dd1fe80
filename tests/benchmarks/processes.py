"""Other processes of a benchmark: those that take orders by lines of JSON, and what a tree of them costs."""

import json
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def ask(process: "subprocess.Popen[str]", what: str, **values: Any) -> Any:
    """Give an order and wait for the answer, one line of JSON each."""
    tell(process, what, **values)
    return answer(process)


def tell(process: "subprocess.Popen[str]", what: str, **values: Any) -> None:
    """Give an order."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"what": what} | values) + "\n")
    process.stdin.flush()


def answer(process: "subprocess.Popen[str]") -> Any:
    """The next line that the process says; RuntimeError when it ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args} ended with {process.wait()}")
    return json.loads(line)


def peak_rss_mb() -> float:
    """Of this program alone: getrusage would count what the parent held when it started us."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Memory(threading.Thread):
    """Samples the memory and CPU time of a process with all its descendants."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root, self._over = root, threading.Event()
        self.highest = 0
        """Bytes."""
        self._cpu: dict[int, float] = {}

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.highest = max(self.highest, self._sample())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _sample(self) -> int:
        resident = 0
        for pid, facts in _tree(self._root):
            resident += facts.resident_bytes
            self._cpu[pid] = facts.cpu_seconds
        return resident


def cpu_seconds(root: int) -> float:
    """CPU time so far of a process and its descendants, of those too that have ended and were waited for."""
    return sum(facts.cpu_seconds + facts.ended_cpu_seconds for _, facts in _tree(root))


def resident_bytes(root: int) -> int:
    """Memory of a process and its descendants."""
    return sum(facts.resident_bytes for _, facts in _tree(root))


class _Facts:
    """What /proc says of a process."""

    def __init__(self, entry: Path) -> None:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        self.parent = int(fields[1])
        self.resident_bytes = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        self.cpu_seconds = (int(fields[11]) + int(fields[12])) / ticks
        self.ended_cpu_seconds = (int(fields[13]) + int(fields[14])) / ticks


def _tree(root: int) -> Iterator[tuple[int, _Facts]]:
    facts: dict[int, _Facts] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                facts[int(entry.name)] = _Facts(entry)
            except OSError:
                continue  # it has ended meanwhile
    for pid, found in facts.items():
        line = pid
        while line in facts and line != root:
            line = facts[line].parent
        if line == root:
            yield pid, found
