"""What an analysis costs each node of a standalone cluster, with one worker and with two.

    python -m tests.benchmarks.cluster [--rows 10000000] [--folder DIR]

Master, workers and driver run on this machine, each worker with one core. CPU time is that of a worker's processes: its
executor and the executor's Python workers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.backlogs import make_archive
from tests.benchmarks.processes import Memory
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
_AS_OF = 1_793_491_200 + 9 * 3600


def run(quick: bool) -> list[dict[str, Any]]:
    """`quick` takes a minute, the whole some minutes."""
    with tempfile.TemporaryDirectory(prefix="sbpair-cluster-") as folder:
        return [row.as_dict() for row in measure(QUICK_ROWS if quick else FULL_ROWS, Path(folder))]


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
    from sbpair.pipeline.analysis.engines import SparkEngine
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import units_in
    from sbpair.pipeline.spark.session import SparkRequest, open_spark

    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": f"{EXECUTOR_MB}m",
    }
    with open_spark(SparkRequest(rows=100_000, master=master, conf=conf)) as session:
        engine = SparkEngine.over_units(session, units_in(files, at_least=max(WORKERS)))
        return dict(analyse(engine, Question(_AS_OF), rows=rows, top=20).counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--folder", type=Path, help="keep the archive here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(_child(given.child, sys.stdin.read().splitlines(), given.rows)))
        return
    with tempfile.TemporaryDirectory(prefix="sbpair-cluster-") as temporary:
        rows = measure(given.rows, given.folder or Path(temporary))
    print_rows([row.as_dict() for row in rows])


if __name__ == "__main__":
    main()
