"""What an analysis costs each node of a standalone cluster, with one worker and with two; and what the driver plans
for 100 million messages.

    python -m tests.benchmarks.cluster [--rows 10000000] [--folder DIR]
    python -m tests.benchmarks.cluster --planning

Master, workers and driver run on this machine, each worker with one core. CPU time is that of a worker's processes: its
executor and the executor's Python workers.

Planning: a simulated namespace, which answers browses from nothing but the sizes of its queues, stands in for the
service; the first queue is the largest, the n-th has an n-th of it. Archived, it has the files, commits and ledgers
that as many units leave.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbpair.core.message import Received
from tests.benchmarks.backlogs import make_archive
from tests.benchmarks.processes import Memory, peak_rss_mb
from tests.benchmarks.table import Row, print_rows
from tests.pipeline.cluster import Cluster

QUICK_ROWS = 1_000_000
FULL_ROWS = 10_000_000
WORKERS = (1, 2)
EXECUTOR_MB = 1_024
HUGE_ROWS = 50_000_000
HALF = 0.6
"""Of the CPU time of the one node each of two takes at most, of `HUGE_ROWS`: what an executor costs to start is not
shared, and weighs more with fewer."""
_ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 100_000_000
QUEUES = (10, 100, 1_000)
COMMITS = 1_000
"""Of the archive: what a run, or one that follows a backlog, adds at a time."""
AT = 1_793_491_200
_AS_OF = 1_793_491_200 + 9 * 3600


def run(quick: bool) -> list[dict[str, Any]]:
    """`quick` takes a minute, the whole some minutes."""
    with tempfile.TemporaryDirectory(prefix="sbpair-cluster-") as folder:
        return [row.as_dict() for row in (*planning(), *measure(QUICK_ROWS if quick else FULL_ROWS, Path(folder)))]


def measure(rows: int, folder: Path) -> list[Row]:
    """The same for a chosen size; the archive is made in `folder`, or found there."""
    files = make_archive(folder / f"rows-{rows}", rows)
    found, case, highest = [], f"{rows:,} rows", []
    for workers in WORKERS:
        nodes, seconds = _on_cluster(files, rows, workers)
        print(f"{workers} workers: {nodes} CPU s, {seconds:.1f} s", file=sys.stderr, flush=True)
        highest.append(max(nodes))
        found.append(Row("cluster", case, f"time: {workers} workers", round(seconds, 1), "s"))
        found += [Row("cluster", case, f"CPU: node {at + 1} of {workers}", one, "s") for at, one in enumerate(nodes)]
    ratio = round(highest[1] / highest[0], 2)
    aim = HALF if rows >= HUGE_ROWS else None
    found.append(Row("cluster", case, "CPU of a node: two / one", ratio, "x", at_most=aim))
    return found


class SimulatedNamespace:
    """As a browse sees a namespace whose queues hold messages 1 to n."""

    host = "simulated"

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.browses = 0

    def receiver(self, queue: str, *, dead_letter: bool = False) -> "SimulatedQueue":
        return SimulatedQueue(self, queue)

    async def close(self) -> None:
        return


class SimulatedQueue:
    def __init__(self, namespace: SimulatedNamespace, path: str) -> None:
        self._namespace, self.source = namespace, path

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        self._namespace.browses += 1
        await asyncio.sleep(0)
        number = max(1, from_sequence_number)
        if number > self._namespace.sizes[self.source]:
            return []
        return [Received(b"", number, self.source, None, AT + number / 1000)]

    async def close(self) -> None:
        return


def planning() -> list[Row]:
    """Each size in a process of its own, whose memory is measured."""
    found = []
    for queues in QUEUES:
        command = [sys.executable, "-m", "tests.benchmarks.cluster", "--planned", str(queues)]
        figures = json.loads(subprocess.run(command, cwd=_ROOT, capture_output=True, check=True).stdout)
        case = f"{MESSAGES // 1_000_000} million messages, {queues:,} queues"
        for figure, (value, unit, at_most) in figures.items():
            found.append(Row("cluster", case, figure, value, unit, at_most=at_most))
    return found


def _planned(queues: int) -> dict[str, tuple[float, str, float | None]]:
    """Figures by name: the value, its unit and the most that it may be."""
    from sbpair.pipeline.archive import UNIT_MESSAGES, valid_covers
    from sbpair.pipeline.executors import TaskConnection
    from sbpair.pipeline.manifest import ArchiveFile, Commit, Covered, LocalStore
    from sbpair.pipeline.runs import ledgers_before
    from sbpair.pipeline.source.reader import find_spans
    from sbpair.pipeline.spans import pieces, uncovered

    largest = MESSAGES / sum(1 / (place + 1) for place in range(queues))
    sizes = {f"weu/x-servicebus-transfer/{place}": round(largest / (place + 1)) for place in range(queues)}
    namespace, took = SimulatedNamespace(sizes), Timed()
    with TaskConnection(namespace) as connection, tempfile.TemporaryDirectory(prefix="sbpair-planning-") as folder:
        with took("CPU: queues looked into"):
            spans = find_spans(connection, [(path, False) for path in sizes])
        units = pieces(spans, UNIT_MESSAGES)
        widths = sorted(unit.width for unit in units)
        assert sum(widths) == sum(sizes.values())
        store, ledgers = LocalStore(Path(folder) / "archive"), Path(folder) / "ledger"
        ledgers.mkdir()
        at_once = -(-len(units) // COMMITS)
        for number, first in enumerate(range(0, len(units), at_once), 1):
            some = units[first : first + at_once]
            files = tuple(
                ArchiveFile(f"data/{one.queue}/{one.first}.parquet", "shop", one.queue, False, "2026-11-24", one.width,
                            one.width * 200, one.first, one.last, 1000 * AT + one.first, 1000 * AT + one.last)
                for one in some
            )  # fmt: skip
            covered = tuple(
                Covered("shop", one.queue, False, one.first, one.last, 1000 * AT + one.last) for one in some
            )
            taken = covered if number % 2 else ()
            store.commit(Commit(AT + 10**6, f"run-{number}", files, covered=covered, taken=taken, number=number))
        for number in range(len(units)):
            (ledgers / f"to-orders-0a1b2c3d-{number:05d}-{number:06x}.jsonl").write_bytes(b"{}\n")
        with took("CPU: manifest read"):
            manifest = store.manifest()
        with took("CPU: what is missing"):
            covers = valid_covers(connection, "shop", spans, manifest)
            gaps = [
                gap for span, had in zip(spans, covers, strict=True) for gap in uncovered(span, [c.span for c in had])
            ]
        with took("CPU: what waits in the queues"):
            waits = manifest.left_in_queues("shop")
        with took("CPU: ledgers listed"):
            found = ledgers_before(ledgers, of_run=None, without="to-other")
    assert not gaps and waits and len(found) == len(units)
    return {
        "units": (len(units), "", None),
        "widest unit / median": (widths[-1] / widths[len(widths) // 2], "x", 1.5),
        "browses of a queue": (round(namespace.browses / queues), "", 100),
        **{name: (round(seconds, 2), "s", 5.0) for name, seconds in took.seconds.items()},
        "memory of the driver": (round(peak_rss_mb()), "MiB", 150),
    }


class Timed:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] = time.process_time() - began


def _on_cluster(files: Sequence[str], rows: int, workers: int) -> tuple[list[float], float]:
    """CPU seconds of each node, and the driver's time."""
    with tempfile.TemporaryDirectory(prefix="sbpair-cluster-") as temporary:
        cluster = Cluster(Path(temporary) / "cluster")
        cluster.folder.mkdir()
        watched: list[Memory] = []
        try:
            cluster.start(workers=workers, memory_mb=2 * EXECUTOR_MB)
            watched = [Memory(daemon.pid) for daemon in cluster.daemons[1:]]
            for one in watched:
                one.start()
            began = time.monotonic()
            command = [sys.executable, "-m", "tests.benchmarks.cluster", "--child", cluster.master, "--rows", str(rows)]
            subprocess.run(command, cwd=_ROOT, input="\n".join(files).encode(), check=True)
            seconds = time.monotonic() - began
        finally:
            for one in watched:
                one.stop()
            cluster.stop()
    return [round(one.cpu_seconds, 1) for one in watched], seconds


def _child(master: str, files: Sequence[str], rows: int) -> dict[str, Any]:
    """`pipeline analyze --master`."""
    from sbpair.pipeline.analysis.analyze import analyse
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import SparkEngine, units_in
    from sbpair.pipeline.spark.session import open_spark

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": f"{EXECUTOR_MB}m",
    }
    with open_spark(rows=100_000, master=master, conf=conf) as session:
        engine = SparkEngine.over_units(session, units_in(files, at_least=max(WORKERS)))
        return dict(analyse(engine, Question(_AS_OF), rows=rows, top=20).counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--folder", type=Path, help="keep the archive here")
    parser.add_argument("--planning", action="store_true", help="only what the driver plans")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--planned", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.planned:
        print(json.dumps(_planned(given.planned)))
        return
    if given.planning:
        print_rows([row.as_dict() for row in planning()])
        return
    if given.child:
        print(json.dumps(_child(given.child, sys.stdin.read().splitlines(), given.rows)))
        return
    with tempfile.TemporaryDirectory(prefix="sbpair-cluster-") as temporary:
        rows = measure(given.rows, given.folder or Path(temporary))
    print_rows([row.as_dict() for row in rows])


if __name__ == "__main__":
    main()
