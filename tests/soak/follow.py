"""Kills `sbpair pipeline follow` at random moments while messages come, and proves that the archive has each once.

    python -m tests.soak.follow --seed 7 --kills 50 --take

A kill takes the driver, at any moment from its first second on; its JVM and workers end when they miss it. Half of the
kills come after the run has committed something. The last run is left alone until nothing new comes. With --take the
queues have to be empty then.
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
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from sbpair.pipeline.manifest import LocalStore
from tests.pipeline.stage import QUEUES, Stage, messages, on_stage
from tests.pipeline.test_command_line import command, environment

MOST_SECONDS_UNTIL_A_COMMIT = 180.0
LAST_RUN_SECONDS = 600.0
MESSAGES_AT_ONCE = 20


@dataclass
class Result:
    """What is in the archive, and what should be."""

    sent: int
    kills: int
    kills_after_a_commit: int
    archived: Counter[str]
    left_in_queues: int

    @property
    def doubled(self) -> int:
        return sum(count > 1 for count in self.archived.values())

    @property
    def missing(self) -> int:
        return self.sent - len(self.archived)


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


def commits_in(stage: Stage) -> int:
    return len(list((Path(stage.archive_path) / "_commits").glob("*.json")))


def archived_in(stage: Stage) -> Counter[str]:
    root = Path(stage.archive_path)
    tables = (pq.ParquetFile(root / one.path).read(["message_id"]) for one in LocalStore(root).manifest().files)
    return Counter(name for table in tables for name in table["message_id"].to_pylist())


def started(stage: Stage, *more: str) -> "subprocess.Popen[bytes]":
    asked = command(stage, "follow", "shop", "--archive", stage.archive_path, "--every", "1s", *more, "-q")
    return subprocess.Popen(asked, env=environment(stage), stdout=subprocess.DEVNULL)


def kill_one(stage: Stage, chance: random.Random, *more: str) -> bool:
    """Whether the run had committed something before it was killed."""
    before, deadline = commits_in(stage), time.monotonic() + MOST_SECONDS_UNTIL_A_COMMIT
    process = started(stage, *more)
    try:
        if chance.random() < 0.5:
            time.sleep(chance.uniform(1.0, 20.0))
        else:
            while commits_in(stage) == before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 3.0))
        if process.poll() is not None:
            raise SystemExit(f"It ended by itself with {process.returncode}.")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return commits_in(stage) > before


def soak(seed: int, kills: int, *, take: bool, folder: Path) -> Result:
    """Carry it out; the progress goes to stdout."""
    chance = random.Random(seed)
    more = ("--take", "--yes") if take else ()
    after_a_commit = 0
    with on_stage(folder) as stage:
        with Senders(stage) as senders:
            for number in range(1, kills + 1):
                after_a_commit += kill_one(stage, chance, *more)
                print(f"kill {number}: {commits_in(stage)} commits, {senders.sent:,} sent", flush=True)
        process = started(stage, *more, "--until-idle", "10s")
        code = process.wait(LAST_RUN_SECONDS)
        if code:
            raise SystemExit(f"The last run ended with {code}.")
        return Result(senders.sent, kills, after_a_commit, archived_in(stage), stage.in_backlog())


def main() -> int:
    """0 if each message is in the archive once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--take", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbpair-follow-") as folder:
        result = soak(given.seed, given.kills, take=given.take, folder=Path(folder))
    print(
        f"{result.sent:,} sent, {result.kills} kills ({result.kills_after_a_commit} after a commit): "
        f"{result.doubled:,} in the archive twice, {result.missing:,} missing, {result.left_in_queues:,} in the queues."
    )
    right = not result.doubled and not result.missing
    return 0 if right and result.left_in_queues == (0 if given.take else result.sent) else 1


if __name__ == "__main__":
    sys.exit(main())
