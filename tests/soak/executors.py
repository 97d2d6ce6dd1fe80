"""Kills executors of a standalone cluster while they archive with --take and while they replay; counts all messages.

    python -m tests.soak.executors

A master, two workers, a driver and their executors: six JVMs, which is why this is not part of the suite. What a stream
does when its executors die is the affair of `python -m tests.soak.follow --cluster`.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.pipeline.cluster import QUICK, Cluster
from tests.pipeline.processes import meanwhile
from tests.pipeline.stage import QUEUES, Stage, backlog, messages, on_stage

MESSAGES_PER_QUEUE = 100
ROOT = Path(__file__).parents[2]
DRIVER = """
import json, sys
from pathlib import Path
from sbpair.pipeline import register
from sbpair.pipeline.archive import ArchiveRequest, archive
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.reconcile import reconcile
from sbpair.pipeline.replay import ReplayRequest, replay
from sbpair.pipeline.tables import SparkTables
from sbpair.pipeline.spark.session import SparkRequest, open_spark

master, config, into, ledger, quick = sys.argv[1:]
pair = PairByName.load("shop", Path(config))
conf = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": quick,
}
with open_spark(SparkRequest(rows=1000, master=master, conf=conf)) as session:
    register(session.spark)
    archived = archive(session, ArchiveRequest(pair, Path(config), into, unit_messages=100, take=True))
    request = ReplayRequest(pair, Path(config), (into,), Path(ledger), rate=60.0, tasks=2)
    tables = SparkTables(session)
    replayed = replay(tables, request, session=session)
    held = reconcile(tables, [into], [ledger])
    taken = archived.rows, archived.settled, archived.gone, archived.left
    print(json.dumps([*taken, replayed.skipped_by_retry, held.messages, held.verdicts, held.findings]))
"""


def run_killed(cluster: Cluster, stage: Stage) -> tuple[list[Any], list[int]]:
    """Archive with --take, replay and reconcile, an executor killed in each of the first two: what the driver prints,
    and how many executors there were when the first one was killed."""
    for queue in range(QUEUES):
        stage.divert(messages(MESSAGES_PER_QUEUE, prefix=f"q{queue}", sessions=4), queue=queue)
        stage.emulator.faults("shop-neu").add(f"expire-locks:entity={backlog(queue)},lock=3s")
    stage.emulator.faults("shop-neu").add("delay:rtt=40ms")
    driver = stage.folder / "driver.py"
    driver.write_text(DRIVER)
    asked = [sys.executable, str(driver), cluster.master, str(stage.config), stage.archive_path, str(stage.ledger)]

    def some_completed() -> bool:
        return stage.active_in_backlog() < QUEUES * MESSAGES_PER_QUEUE

    def journals_with_lines() -> list[Path]:
        return [path for path in stage.ledger.glob("*.jsonl") if path.stat().st_size]

    with (
        meanwhile(some_completed, cluster.kill_an_executor) as taking,
        meanwhile(lambda: bool(journals_with_lines()), lambda: cluster.kill_an_executor(journals_with_lines()[0])),
    ):
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run([*asked, QUICK], capture_output=True, text=True, env=environ, timeout=600)
    if ran.returncode:
        raise SystemExit(ran.stderr[-3000:])
    stage.emulator.faults("shop-neu").clear()
    return json.loads(ran.stdout), taking


def complaints(stage: Stage, told: list[Any], executors: list[int]) -> list[str]:
    """What does not hold."""
    rows, settled, gone, left, skipped, held, counts, findings = told
    count = QUEUES * MESSAGES_PER_QUEUE
    sent = {f"q{queue}-{number}" for queue in range(QUEUES) for number in range(MESSAGES_PER_QUEUE)}
    arrived, in_backlog = {one.message_id for one in stage.at_home()}, stage.in_backlog()
    checks = {
        "no executor was killed while messages were taken": executors == [2],
        f"{rows} rows archived, {held} reconciled of {count}": rows == held == count,
        f"{settled} completed and {gone} found gone of {count}": settled + gone == count,
        f"left: {left}, verdicts {counts}, {findings} findings": (left, counts, findings) == ({}, {"ok": count}, 0),
        "the retried task sent again what the killed one had sent": skipped > 0,
        f"{in_backlog} still in the backlog queues": in_backlog == 0,
        f"{len(sent - arrived)} did not arrive, {len(arrived - sent)} came from nowhere": arrived == sent,
    }
    return [said for said, holds in checks.items() if not holds]


def main() -> int:
    """0 if everything is archived, completed, sent and accounted for."""
    with tempfile.TemporaryDirectory(prefix="sbpair-executors-") as name, on_stage(Path(name)) as stage:
        cluster = Cluster(stage.folder / "cluster")
        cluster.folder.mkdir()
        try:
            cluster.start()
            told, executors = run_killed(cluster, stage)
        finally:
            cluster.stop()
        found = complaints(stage, told, executors)
    print("\n".join(found) or f"{told[0]} messages archived, completed and replayed; {told[4]} not sent again. Holds.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
