"""What `sbpair drain --processes` gains where a core is the limit.

    python -m tests.benchmarks.drain_processes [--messages 40000] [--percent 10] [--processes 1,2,4,8]

Every process gets so many percent of a core, the first one too, which has the ledger: a control group of Linux keeps
each to it, so that a machine with two cores shows what one with many would do. Needs the right to make such groups.
The rate is that of the middle of the run, once all have started: a fifth of its messages at both ends is left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.embedded import BACKLOG, Embedded, embedded
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.table import Row, print_rows

_GROUPS = Path("/sys/fs/cgroup/cpu")
"""Control groups of the first version; a group of the second one is told its quota in another file."""
_PERIOD_MICROSECONDS = 20_000
SIZE_BYTES = 1000
SLOW_MILLISECONDS = 300
START_SECONDS = 4.0


class Limited:
    """Control groups, one for each process that is put into them."""

    def __init__(self, percent: float) -> None:
        self._quota = int(_PERIOD_MICROSECONDS * percent / 100)
        self._made: dict[int, Path] = {}

    def keep(self, pid: int) -> None:
        if pid in self._made:
            return
        group = _GROUPS / f"sbpair-benchmark-{pid}"
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(self._quota))
        (group / "cgroup.procs").write_text(str(pid))
        self._made[pid] = group

    def remove(self) -> None:
        for group in self._made.values():
            for _ in range(50):  # for a moment after the end of its process it counts as in use
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


@contextmanager
def limited(percent: float) -> Iterator[Limited]:
    groups = Limited(percent)
    try:
        yield groups
    finally:
        groups.remove()


def children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def measured(on: Embedded, messages: int, processes: int, percent: float) -> tuple[float, float]:
    """Messages a second, and microseconds of CPU of all processes for a message, in the middle of a run."""
    on.delay(0)
    on.fill(messages, SIZE_BYTES)
    on.delay(SLOW_MILLISECONDS)  # until all have started, which is not what is measured
    with tempfile.TemporaryDirectory() as folder, limited(percent) as groups:
        command = [sys.executable, "-m", "sbpair", "drain", "bench", "--yes", "--ledger", "drain.jsonl", "-q"]
        environ = {**os.environ, **_configured(on, Path(folder)), "PYTHONPATH": str(Path.cwd())}
        command += ["--processes", str(processes)]
        with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as process:
            while on.counts()["home"] == 0:
                assert process.poll() is None, process.returncode
                time.sleep(0.05)
            time.sleep(START_SECONDS)
            for pid in (process.pid, *children_of(process.pid)):
                groups.keep(pid)
            on.delay(0)
            marks: list[tuple[float, int, float]] = []
            while process.poll() is None:
                marks.append((time.monotonic(), on.counts()["home"], cpu_seconds(process.pid)))
                time.sleep(0.05)
            assert process.returncode == 0, process.returncode
    assert on.counts() == {"home": messages, "backlog": 0}
    begin = marks[0][1] + 0.2 * (messages - marks[0][1])
    middle = [mark for mark in marks if begin <= mark[1] <= 0.8 * messages]
    (began, first, spent), (ended, last, spent_then) = middle[0], middle[-1]
    return (last - first) / (ended - began), (spent_then - spent) * 1e6 / (last - first)


def _configured(on: Embedded, folder: Path) -> dict[str, str]:
    sides = {"primary": on.primary, "secondary": on.secondary}
    pair = {
        side: {
            "namespace": side,
            "host": "localhost",
            "connection_string": {"env": side.upper()},
            "ca_file": str(access.ca_file),
        }
        for side, access in sides.items()
    }
    document = {"version": 1, "pairs": {"bench": {**pair, "backlog_queues": len(BACKLOG)}}}
    (folder / "sbpair.yaml").write_text(json.dumps(document))
    return {
        side.upper(): access.connection_string.reveal() for side, access in sides.items() if access.connection_string
    }


def rows(messages: int, percent: float, counts: list[int]) -> Iterator[Row]:
    case = f"{messages:,} x 1 KB, {percent:g} % of a core each"
    first = 0.0
    with embedded() as on:
        for processes in counts:
            rate, microseconds = measured(on, messages, processes, percent)
            first = first or rate
            yield Row("drain", case, f"messages a second, --processes {processes}", round(rate))
            yield Row("drain", case, f"rate / one process, --processes {processes}", round(rate / first, 2), "x")
            yield Row("drain", case, f"CPU of a message, --processes {processes}", round(microseconds), "us")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.drain_processes")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--percent", type=float, default=10.0)
    parser.add_argument("--processes", default="1,2,4,8")
    given = parser.parse_args()
    counts = [int(one) for one in given.processes.split(",")]
    print_rows([row.as_dict() for row in rows(given.messages, given.percent, counts)])


if __name__ == "__main__":
    main()
