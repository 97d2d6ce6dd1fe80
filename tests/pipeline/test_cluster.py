"""A standalone cluster out of the pip package: a master, two workers, executors killed while messages move."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.processes import descendants, has_open, meanwhile
from tests.pipeline.stage import QUEUES, Stage, backlog, messages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420), pytest.mark.skipif(sys.platform != "linux", reason="/proc")]
START_SECONDS = 180.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that do not live long."""

DRIVER = """
import json, sys
from pathlib import Path
from sbpair.pipeline import register
from sbpair.pipeline.archive import ArchiveRequest, archive
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.reconcile import reconcile
from sbpair.pipeline.replay import ReplayRequest, replay
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
    replayed = replay(session, ReplayRequest(pair, Path(config), (into,), Path(ledger), rate=60.0, tasks=2))
    held = reconcile(session, [into], [ledger])
    taken = archived.rows, archived.settled, archived.gone, archived.left
    print(json.dumps([*taken, replayed.skipped_by_retry, held.messages, held.verdicts, held.findings]))
"""


class Cluster:
    """Daemons of a standalone cluster, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        from sbpair.pipeline.spark.java import find_java, launcher_home

        self.folder = folder
        self._environ = os.environ | {
            "JAVA_HOME": str(launcher_home(find_java(), folder / "java")),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self, *, workers: int = 2, memory_mb: int = 600) -> None:
        """Each worker has one core."""
        self.master = self._start("master.Master", ["--host", "127.0.0.1", "--port", "0"], r"at (spark://[\w.:-]+)")
        for _ in range(workers):
            self._start(
                "worker.Worker",
                ["--host", "127.0.0.1", "-c", "1", "-m", f"{memory_mb}m", self.master],
                "(registered with master)",
            )

    def _start(self, name: str, arguments: list[str], ready: str) -> str:
        import pyspark

        log = self.folder / f"{len(self.daemons)}.log"
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(script), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        with log.open("wb") as sink:
            self.daemons.append(
                subprocess.Popen(command, stdout=sink, stderr=sink, env=self._environ, start_new_session=True)
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.daemons[-1].poll() is None:
            found = re.search(ready, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    def has_executors(self) -> bool:
        return bool(self._executors())

    def _executors(self) -> list[int]:
        return [
            process
            for daemon in self.daemons
            for process, command in descendants(daemon.pid).items()
            if "CoarseGrainedExecutorBackend" in command
        ]

    def kill_an_executor(self, writing: Path | None = None) -> int:
        """Kill one executor's JVM, if need be the one whose worker writes this file; how many there were."""
        found = self._executors()
        chosen = next(
            one for one in found if writing is None or any(has_open(below, writing) for below in descendants(one))
        )
        os.kill(chosen, signal.SIGKILL)
        return len(found)

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster")
    made.folder.mkdir()
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_nothing_is_lost_when_executors_die(cluster: Cluster, stage: Stage) -> None:
    """One while the archived messages are completed in their queues, one while they are replayed."""
    for queue in range(QUEUES):
        stage.divert(messages(100, prefix=f"q{queue}", sessions=4), queue=queue)
        stage.emulator.faults("shop-neu").add(f"expire-locks:entity={backlog(queue)},lock=3s")
    stage.emulator.faults("shop-neu").add("delay:rtt=40ms")
    driver = stage.folder / "driver.py"
    driver.write_text(DRIVER)
    asked = [sys.executable, str(driver), cluster.master, str(stage.config), stage.archive_path, str(stage.ledger)]
    asked.append(QUICK)
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}

    def some_completed() -> bool:
        return stage.active_in_backlog() < QUEUES * 100

    def journals_with_lines() -> list[Path]:
        return [path for path in stage.ledger.glob("*.jsonl") if path.stat().st_size]

    with (
        meanwhile(some_completed, cluster.kill_an_executor) as taking,
        meanwhile(lambda: bool(journals_with_lines()), lambda: cluster.kill_an_executor(journals_with_lines()[0])),
    ):
        ran = subprocess.run(asked, capture_output=True, text=True, env=environ, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert taking == [2]
    rows, settled, gone, left, skipped, held, counts, findings = json.loads(ran.stdout)
    assert (rows, left, held, counts, findings) == (300, {}, 300, {"ok": 300}, 0)
    assert settled + gone == 300  # what a killed task had completed is found gone
    assert skipped > 0  # what a killed task had sent is not sent again
    stage.emulator.faults("shop-neu").clear()
    assert stage.in_backlog() == 0
    assert {one.message_id for one in stage.at_home()} == {
        f"q{queue}-{n}" for queue in range(QUEUES) for n in range(100)
    }
