"""Kills executors of a standalone cluster while they archive with --take, while they replay and while they write new
messages with `format("servicebus")`; counts all messages, and the lines of every report.

    python -m tests.soak.executors [--times 4]

A master, two workers, a driver and their executors: six JVMs, which is why this is not part of the suite. What a stream
does when its executors die is the affair of `python -m tests.soak.follow --cluster`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.benchmarks.processes import answer
from tests.pipeline.cluster import QUICK, Cluster
from tests.pipeline.processes import meanwhile
from tests.pipeline.stage import QUEUES, Stage, backlog, entity_options, messages, on_stage
from tests.waiting import until

MESSAGES_PER_QUEUE = 100
WORKERS = 2
ROOT = Path(__file__).parents[2]
DRIVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from sbpair.pipeline import register
from sbpair.pipeline.archive import ArchiveRequest, archive
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.reconcile import reconcile
from sbpair.pipeline.replay import ReplayRequest, replay
from sbpair.pipeline.source.writer import read_tally
from sbpair.pipeline.tables import SparkTables
from sbpair.pipeline.spark.session import open_spark

master, config, quick, target = sys.argv[1:]
pair = PairByName.load("shop", Path(config))
conf = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": quick,
    "spark.deploy.maxExecutorRetries": "-1",
}
with open_spark(rows=1000, master=master, conf=conf) as session:
    register(session.spark)
    for line in sys.stdin:
        folder, rows = Path(json.loads(line)[0]), json.loads(line)[1]
        into, ledger, written = str(folder / "archive"), folder / "ledger", folder / "written"
        archived = archive(session, ArchiveRequest(pair, into, unit_messages=100, take=True))
        request = ReplayRequest(pair, (into,), ledger, rate=60.0, tasks=2)
        tables = SparkTables(session)
        replayed = replay(tables, request, session=session)
        held = reconcile(tables, [into], [str(ledger)])
        frame = session.spark.createDataFrame(rows, "message_id string, body string").repartition(2)
        report = str(folder / "report.json")
        options = json.loads(target) | {"ledger": str(written), "rate": "60", "tasks": "2", "report": report}
        frame.write.format("servicebus").mode("append").options(**options).save()
        tally = read_tally(Path(report))
        print(json.dumps({
            "archived": [archived.rows, archived.settled + archived.gone, archived.left],
            "replayed": [replayed.outcomes, replayed.per_destination, replayed.skipped_by_retry],
            "reconciled": [held.messages, held.verdicts, held.findings],
            "written": [tally.outcomes, tally.per_destination, tally.skipped],
        }), flush=True)
"""


def run_killed(cluster: Cluster, stage: Stage, driver: "subprocess.Popen[str]", time: int) -> Iterator[str]:
    """Archive with --take, replay, reconcile and write, an executor killed in each of the three that change something;
    what does not hold."""
    folder = stage.folder / f"time-{time}"
    folder.mkdir()
    for queue in range(QUEUES):
        stage.divert(messages(MESSAGES_PER_QUEUE, prefix=f"{time}-q{queue}", sessions=4), queue=queue)
    count = QUEUES * MESSAGES_PER_QUEUE
    rows = [(f"{time}-new-{number}", "body") for number in range(count)]

    def with_lines(ledger: str) -> list[Path]:
        return [path for path in (folder / ledger).glob("*.jsonl") if path.stat().st_size]

    def strike(ledger: str) -> "AbstractContextManager[list[object]]":
        return meanwhile(lambda: bool(with_lines(ledger)), lambda: cluster.kill_an_executor(with_lines(ledger)[0]))

    until(lambda: cluster.executors() >= WORKERS, driver)
    taking = meanwhile(lambda: stage.active_in_backlog() < count, cluster.kill_an_executor)
    with taking as taken, strike("ledger") as replaying, strike("written") as writing:
        assert driver.stdin is not None
        print(json.dumps([str(folder), rows]), file=driver.stdin, flush=True)
        told = answer(driver)
    sent = {f"{time}-q{queue}-{number}" for queue in range(QUEUES) for number in range(MESSAGES_PER_QUEUE)}
    arrived = Counter(str(one.message_id) for one in stage.at_home())
    of_now = {name for name in arrived if name.startswith(f"{time}-")}
    expected = {"forwarded": count}, {"orders": count}
    checks = {
        f"killed: {taken}, {replaying}, {writing}": all(map(bool, (taken, replaying, writing))),
        f"archived {told.get('archived')}": told.get("archived") == [count, count, {}],
        f"replayed {told.get('replayed')}": tuple(told["replayed"][:2]) == expected and told["replayed"][2] > 0,
        f"reconciled {told.get('reconciled')}": told.get("reconciled") == [count, {"ok": count}, 0],
        f"written {told.get('written')}": tuple(told["written"][:2]) == expected and told["written"][2] > 0,
        f"{stage.in_backlog()} still in the backlog queues": stage.in_backlog() == 0,
        f"{len(of_now)} of {2 * count} arrived": of_now == sent | {name for name, _ in rows},
    }
    doubled = sum(arrived[name] - 1 for name in of_now)
    print(f"{time}: {told}, {doubled} arrived twice", flush=True)
    yield from (said for said, holds in checks.items() if not holds)


def main() -> int:
    """0 if everything is archived, completed, sent, written and accounted for, each time."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.executors", description=__doc__)
    parser.add_argument("--times", type=int, default=4)
    times = parser.parse_args().times
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sbpair-executors-") as name, on_stage(Path(name)) as stage:
        for queue in range(QUEUES):
            stage.emulator.faults("shop-neu").add(f"expire-locks:entity={backlog(queue)},lock=3s")
        stage.emulator.faults("shop-neu").add("delay:rtt=40ms")
        target = entity_options(stage)
        script = stage.folder / "driver.py"
        script.write_text(DRIVER)
        cluster = Cluster(stage.folder / "cluster")
        cluster.folder.mkdir()
        try:
            cluster.start(workers=WORKERS)
            command = [sys.executable, str(script), cluster.master, str(stage.config), QUICK, json.dumps(target)]
            environ = os.environ | {"PYTHONPATH": str(ROOT)}
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
            ) as driver:
                for time in range(times):
                    found += [f"{time}: {said}" for said in run_killed(cluster, stage, driver, time)]
                assert driver.stdin is not None
                driver.stdin.close()
        finally:
            cluster.stop()
    print("\n".join(found) or f"{3 * times} executors killed; every message in one line of each report. Holds.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
