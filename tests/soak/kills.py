"""Kills drains while messages move, one process or several over one backlog, and proves that sessions keep their order.

    python -m tests.soak.kills --seed 7 --messages 20000 --kills 25 --processes 3

Each process has a ledger of its own, which the one that replaces it continues: it looks for what the killed one had on
its way, so hardly anything comes twice. A kill counts only if its drain had moved something: the share of such kills is
printed.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sbpair.core.outcome import Exit
from tests.soak.proof import Proof, prove
from tests.soak.world import World

QUEUES = 10
SESSIONS = 12
LOCK_SECONDS = 20
"""Long enough for a busy machine, short enough to wait for after a kill."""
MOST_LAST_DRAINS = 3
DOUBLES_A_KILL = 20
"""So many at most, where nobody takes messages from the destinations meanwhile."""
MOST_SECONDS_UNTIL_IT_MOVES = 60.0
"""A drain waits for the locks of the one before it."""


@dataclass
class Worker:
    """One place for a process: a ledger, and who writes it now."""

    ledger: Path
    process: "subprocess.Popen[str] | None" = None
    began_with_bytes: int = 0

    def ledger_bytes(self) -> int:
        return self.ledger.stat().st_size if self.ledger.exists() else 0

    @property
    def has_moved(self) -> bool:
        return self.ledger_bytes() > self.began_with_bytes


@dataclass
class Result:
    proof: Proof
    kills: int
    kills_after_moving: int
    final: dict[str, object]

    @property
    def doubles(self) -> int:
        return self.proof.arrived - self.proof.sent

    @property
    def holds(self) -> bool:
        proof = self.proof
        wrong = proof.lost or proof.altered or proof.strange or proof.disordered or proof.left
        few = self.doubles <= self.kills * DOUBLES_A_KILL
        return not wrong and few and self.hit_home and self.final.get("exit_code") == 0

    @property
    def hit_home(self) -> bool:
        """Whether most kills hit a drain that had moved something: the others prove nothing."""
        return 2 * self.kills_after_moving >= self.kills


def campaign(seed: int, *, messages: int, kills: int, processes: int, say: Callable[[str], None]) -> Result:
    """Play one seed's story in a folder of its own."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sbpair-kills-") as folder:
        world = World(
            Path(folder), chance, queues=QUEUES, sessions=SESSIONS, session_share=1.0, lock_seconds=LOCK_SECONDS
        )
        world.open()
        try:
            world.divert(messages)
            return _play(world, chance, kills=kills, processes=processes, say=say)
        finally:
            world.close()


def _play(world: World, chance: random.Random, *, kills: int, processes: int, say: Callable[[str], None]) -> Result:
    workers = [Worker(world.folder / f"ledger-{index}.jsonl") for index in range(processes)]
    done = after_moving = 0
    try:
        while done < kills:
            for worker in workers:
                if worker.process is None:
                    worker.began_with_bytes = worker.ledger_bytes()
                    worker.process = world.start("drain", "--rate", "150", ledger=worker.ledger)
            if not _until_one_moves(workers):
                break  # the backlog is empty
            time.sleep(chance.random() * 1.5)
            moving = [worker for worker in workers if worker.has_moved]
            victim = chance.choice(moving if moving and chance.random() < 0.8 else workers)
            after_moving += victim.has_moved and victim.process is not None and victim.process.poll() is None
            _end(victim, signal.SIGKILL)
            done += 1
            say(f"kill {done}/{kills}: {'it had moved messages' if victim.has_moved else 'it had not moved anything'}")
    finally:
        for worker in workers:
            _end(worker, signal.SIGTERM)
    finals = [world.start("drain", ledger=worker.ledger) for worker in workers]
    outs = [process.communicate(timeout=600)[0] for process in finals]
    last = json.loads(outs[0])
    for _ in range(MOST_LAST_DRAINS):
        if last["exit_code"] == Exit.OK:
            break
        # What another had locked is left, as it says: drain again.
        last = json.loads(world.start("drain", ledger=workers[0].ledger).communicate(timeout=600)[0])
    return Result(prove(world), done, after_moving, last)


def _until_one_moves(workers: list[Worker]) -> bool:
    deadline = time.monotonic() + MOST_SECONDS_UNTIL_IT_MOVES
    while time.monotonic() < deadline:
        if any(worker.has_moved for worker in workers):
            return True
        if all(worker.process is not None and worker.process.poll() is not None for worker in workers):
            return False
        time.sleep(0.02)
    return True


def _end(worker: Worker, number: signal.Signals) -> None:
    if worker.process is not None:
        if worker.process.poll() is None:
            worker.process.send_signal(number)
        worker.process.communicate(timeout=120)
        worker.process = None


def report(seed: int, result: Result) -> str:
    """What became of the messages, in one line."""
    proof = result.proof
    failed = f"FAILED: {proof.complaints(one_ledger=False)}; the last drain: {result.final}"
    return (
        f"seed {seed}: {proof.sent:,} sent, {len(proof.lost)} lost, {len(proof.altered)} altered, "
        f"{len(proof.disordered)} sessions out of order, {result.doubles} doubles, {proof.left} left; "
        f"{result.kills_after_moving} of {result.kills} kills hit a drain that had moved something; "
        f"{'holds' if result.holds else failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after another")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    held = True
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        result = campaign(
            seed,
            messages=arguments.messages,
            kills=arguments.kills,
            processes=arguments.processes,
            say=lambda text: print(text, flush=True),
        )
        print(report(seed, result), flush=True)
        held &= result.holds
    sys.exit(not held)


if __name__ == "__main__":
    main()
