"""A standalone cluster out of the pip package: a master and two workers, whose executors can be killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.pipeline.processes import descendants, has_open
from tests.waiting import LIMIT_SECONDS

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that do not live long."""


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
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline and self.daemons[-1].poll() is None:
            found = re.search(ready, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace")[-2000:])

    def executors(self) -> int:
        """How many there are."""
        return len(self._executors())

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
