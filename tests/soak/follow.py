"""Kills `sbpair pipeline follow`, and a stream that sends, at random moments while messages come; counts them all.

    python -m tests.soak.follow --seed 7 --kills 50 --cluster
    python -m tests.soak.follow --seed 7 --kills 50 --take --delta

A kill takes the driver, at any moment from its first second on; its JVM and workers end when they miss it. With
--cluster the work is done on a standalone cluster of two workers, and every second kill takes an executor, whose driver
has to go on. Half of the kills come after the program has committed something. Programs take turns: one that follows,
and a query that sends the backlog's stream to its destination. With --take nothing is left for such a query, so a
replay sends what the archive has in the end. With --delta the archive is a Delta table, too, with the same rows.

The last runs are left alone until nothing new comes. Then each message has to be in the archive once, at its
destination at least once, and in a ledger. With --take the queues have to be empty.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from sbpair.pipeline.manifest import LocalStore
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.pipeline.cluster import QUICK, Cluster
from tests.pipeline.stage import QUEUES, Stage, messages, on_stage
from tests.pipeline.test_command_line import command, environment

MOST_SECONDS_UNTIL_A_COMMIT = 180.0
LAST_RUN_SECONDS = 900.0
MESSAGES_AT_ONCE = 20
FOLLOW, SEND = "follow", "send"
SENDING = """
import sys
from sbpair.pipeline import register
from sbpair.pipeline.spark.session import open_spark

master, config, ledger, checkpoint, last, *conf = sys.argv[1:]
with open_spark(rows=1000, master=master, conf=dict(one.split("=", 1) for one in conf)) as session:
    register(session.spark)
    options = {"pair": "shop", "config": config}
    stream = session.spark.readStream.format("sbpair-backlog").options(**options).load()
    options |= {"ledger": ledger, "checkpointLocation": checkpoint}
    writer = stream.writeStream.format("sbpair-backlog").options(**options)
    trigger = {"availableNow": True} if last == "last" else {"processingTime": "1 second"}
    writer.trigger(**trigger).start().awaitTermination()
"""


@dataclass
class Result:
    """What is in the archive and at the destination, and what should be."""

    sent: int
    kills: Counter[str]
    """By what was killed: `follow driver`, `send executor`, ..."""
    kills_after_a_commit: int
    archived: Counter[str] = field(default_factory=Counter)
    in_table: Counter[str] | None = None
    """The same as the Delta table has it."""
    arrived: Counter[str] = field(default_factory=Counter)
    ledgered: set[str] = field(default_factory=set)
    left_in_queues: int = 0

    def complaints(self, *, take: bool) -> list[str]:
        counts = {
            "in the archive more than once": _often(self.archived),
            "missing in the archive": self.sent - len(self.archived),
            "other in the Delta table": 0 if self.in_table is None else (self.in_table - self.archived).total(),
            "missing in the Delta table": 0 if self.in_table is None else (self.archived - self.in_table).total(),
            "missing at the destination": self.sent - len(self.arrived),
            "at the destination without a line in a ledger": len(set(self.arrived) - self.ledgered),
            "too many or too few in the queues": self.left_in_queues - (0 if take else self.sent),
        }
        return [f"{count:,} {what}" for what, count in counts.items() if count]


def _often(counts: Counter[str]) -> int:
    return sum(count > 1 for count in counts.values())


class Senders:
    """Messages that keep coming, with ids `m0-0`, `m0-1`, ... in turns over the queues."""

    def __init__(self, stage: Stage) -> None:
        self.sent = 0
        self._stage, self._stop = stage, threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> "Senders":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        part = 0
        while not self._stop.is_set():
            self._stage.divert(messages(MESSAGES_AT_ONCE, prefix=f"m{part}", sessions=3), queue=part % QUEUES)
            self.sent += MESSAGES_AT_ONCE
            part += 1
            self._stop.wait(1.0)


def archived_in(stage: Stage) -> Counter[str]:
    root = Path(stage.archive_path)
    tables = (pq.ParquetFile(root / one.path).read(["message_id"]) for one in LocalStore(root).manifest().files)
    return Counter(name for table in tables for name in table["message_id"].to_pylist())


def in_table(stage: Stage) -> Counter[str]:
    from deltalake import DeltaTable

    rows = DeltaTable(stage.archive_path).to_pyarrow_table(columns=["message_id"])
    return Counter(rows["message_id"].to_pylist())


def ledgered_in(stage: Stage) -> set[str]:
    """Message ids that a ledger has as sent."""
    lines = (line for file in stage.ledger.glob("*.jsonl") for line in outcomes_in(file))
    return {str(key[2]) for key, outcome in lines if outcome == "forwarded"}


@dataclass
class Campaign:
    """Programs that are killed and started again."""

    stage: Stage
    chance: random.Random
    cluster: Cluster | None
    take: bool
    delta: bool
    process: "subprocess.Popen[bytes] | None" = None
    program: str = FOLLOW

    def commits(self) -> int:
        stage = self.stage
        folder = Path(stage.archive_path) / "_commits" if self.program == FOLLOW else self._checkpoint / "commits"
        return len([path for path in folder.glob("[0-9]*") if path.suffix in ("", ".json")])

    @property
    def _checkpoint(self) -> Path:
        return self.stage.folder / "checkpoint"

    def start(self, program: str, *, last: bool = False) -> None:
        stage, conf = self.stage, self._conf()
        self.program = program
        if program == FOLLOW:
            more = [*(("--take", "--yes") if self.take else ()), *(("--until-idle", "10s") if last else ())]
            more += ["--format", "delta"] if self.delta else []
            if self.cluster is not None:
                more += ["--master", self.cluster.master]
            more += [part for one in conf for part in ("--conf", one)]
            asked = command(stage, "follow", "shop", "--archive", stage.archive_path, "--every", "1s", *more, "-q")
        else:
            master = "local[2,4]" if self.cluster is None else self.cluster.master
            places = [str(stage.config), str(stage.ledger), str(self._checkpoint)]
            asked = [sys.executable, "-c", SENDING, master, *places, "last" if last else "on", *conf]
        log = (stage.folder / "programs.log").open("ab")
        with log:
            self.process = subprocess.Popen(asked, env=environment(stage), stdout=log, stderr=log)

    def _conf(self) -> list[str]:
        if self.cluster is None:
            return []
        return [
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={QUICK}",
        ]

    def kill_one(self) -> tuple[str, bool]:
        """What was killed, and whether its program had committed something since it began or the last kill."""
        if self.process is None:
            self.start(FOLLOW if self.take else self.chance.choice((FOLLOW, SEND)))
        assert self.process is not None
        before, deadline = self.commits(), time.monotonic() + MOST_SECONDS_UNTIL_A_COMMIT
        if self.chance.random() < 0.5:
            time.sleep(self.chance.uniform(1.0, 20.0))
        else:
            while self.commits() == before and self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(self.chance.uniform(0.0, 3.0))
        if self.process.poll() is not None:
            raise SystemExit(f"{self.program} ended by itself with {self.process.returncode}.\n{self.said()}")
        committed = self.commits() > before
        if self.cluster is not None and self.chance.random() < 0.5 and self.cluster.executors():
            self.cluster.kill_an_executor()
            return f"{self.program} executor", committed
        self.end()
        return f"{self.program} driver", committed

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def finish(self, program: str) -> None:
        """One more run, to its own end."""
        self.start(program, last=True)
        assert self.process is not None
        code = self.process.wait(LAST_RUN_SECONDS)
        self.process = None
        if code:
            raise SystemExit(f"The last run of {program} ended with {code}.\n{self.said()}")

    def said(self) -> str:
        return (self.stage.folder / "programs.log").read_text(errors="replace")[-4_000:]


def soak(seed: int, kills: int, *, take: bool, delta: bool, on_cluster: bool, folder: Path) -> Result:
    """Carry it out; the progress goes to stdout."""
    with ExitStack() as stack:
        stage = stack.enter_context(on_stage(folder))
        cluster = None
        if on_cluster:
            cluster = Cluster(folder / "cluster")
            cluster.folder.mkdir()
            stack.callback(cluster.stop)
            cluster.start()
        campaign = Campaign(stage, random.Random(seed), cluster, take, delta)
        stack.callback(campaign.end)
        killed: Counter[str] = Counter()
        after_a_commit = 0
        with Senders(stage) as senders:
            for number in range(1, kills + 1):
                what, committed = campaign.kill_one()
                killed[what] += 1
                after_a_commit += committed
                print(f"kill {number}: {what}, {senders.sent:,} sent", flush=True)
        campaign.end()
        campaign.finish(FOLLOW)
        left = stage.in_backlog()
        if take:
            asked = ["replay", "shop", "--archive", stage.archive_path, "--ledger", str(stage.ledger), "-q"]
            subprocess.run(command(stage, *asked), env=environment(stage), check=True, timeout=LAST_RUN_SECONDS)
        else:
            campaign.finish(SEND)
        arrived = Counter(str(one.message_id) for one in stage.at_home())
        return Result(
            senders.sent,
            killed,
            after_a_commit,
            archived_in(stage),
            in_table(stage) if delta else None,
            arrived,
            ledgered_in(stage),
            left,
        )


def main() -> int:
    """0 if each message is in the archive once, and sent with a line in a ledger."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--take", action="store_true")
    parser.add_argument("--delta", action="store_true")
    parser.add_argument("--cluster", action="store_true", help="a standalone cluster, whose executors are killed, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbpair-follow-") as folder:
        result = soak(
            given.seed, given.kills, take=given.take, delta=given.delta, on_cluster=given.cluster, folder=Path(folder)
        )
    complaints = result.complaints(take=given.take)
    print(
        f"{result.sent:,} sent, {result.kills.total()} kills ({result.kills_after_a_commit} after a commit): "
        f"{dict(result.kills)}. {len(result.archived):,} in the archive, {len(result.arrived):,} at the destination, "
        f"{_often(result.arrived):,} of them more than once. {'; '.join(complaints) or 'Holds'}."
    )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
