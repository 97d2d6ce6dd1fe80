"""Measures how long several drains of one pair take together, against one alone; messages with and without sessions.

    python -m tests.soak.together --messages 10000 --drains 2,3,5

Real processes over two embedded namespaces that are processes, too; the time is from the first drain's start to the
last one's end. What arrived is proven as after the campaigns: nothing lost, nothing twice, each session in its order.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.proof import Proof, prove
from tests.soak.world import World

QUEUES = 10
SESSIONS = 200
LOCK_SECONDS = 60
"""As documented."""
ALLOWED = 1.5
"""Times as long as one drain alone."""


@dataclass
class Run:
    """So many drains of one backlog, begun at once."""

    drains: int
    seconds: float
    cpu_seconds: float
    """Of all drains together."""
    forwarded: list[int]
    codes: list[int]
    proof: Proof

    @property
    def holds(self) -> bool:
        proof = self.proof
        wrong = proof.lost or proof.altered or proof.strange or proof.disordered or proof.left
        return not wrong and proof.arrived == proof.sent and set(self.codes) == {0}


def run(drains: int, *, messages: int, sessions: bool, options: tuple[str, ...] = ()) -> Run:
    """Fill a fresh world, drain it, prove it."""
    with tempfile.TemporaryDirectory(prefix="sbpair-together-") as folder:
        share = 1.0 if sessions else 0.0
        world = World(
            Path(folder),
            random.Random(7),
            queues=QUEUES,
            sessions=SESSIONS,
            session_share=share,
            lock_seconds=LOCK_SECONDS,
        )
        world.open()
        try:
            world.divert(messages)
            ledgers = [world.folder / f"ledger-{index}.jsonl" for index in range(drains)]
            began, cpu = time.monotonic(), _cpu_seconds()
            running = [world.start("drain", *options, ledger=ledger) for ledger in ledgers]
            outs = [json.loads(process.communicate(timeout=900)[0]) for process in running]
            seconds, cpu = time.monotonic() - began, _cpu_seconds() - cpu
            forwarded = [out["data"]["forwarded"] for out in outs]
            return Run(drains, seconds, cpu, forwarded, [out["exit_code"] for out in outs], prove(world))
        finally:
            world.close()


def line(one: Run, alone: Run | None, sessions: bool) -> str:
    """What came of a run, in one line."""
    kind = "with sessions" if sessions else "without sessions"
    ratio = f", {one.seconds / alone.seconds:.2f} x one alone" if alone is not None else ""
    verdict = "holds" if one.holds else f"FAILED: exit codes {one.codes} {one.proof.complaints(one_ledger=False)}"
    spent = f"{one.seconds:.1f} s{ratio}, CPU {one.cpu_seconds:.1f} s"
    return f"{kind}, {one.drains} at once: {spent}, moved {one.forwarded}; {verdict}"


def _cpu_seconds() -> float:
    """Of the processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.together", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--drains", default="2,3,5")
    parser.add_argument("--rate", help="of each drain, messages a second")
    arguments = parser.parse_args()
    options = ("--rate", arguments.rate) if arguments.rate else ()
    good = True
    for sessions in (True, False):
        alone: Run | None = None
        for drains in (1, *map(int, arguments.drains.split(","))):
            one = run(drains, messages=arguments.messages, sessions=sessions, options=options)
            print(line(one, alone, sessions), flush=True)
            alone = alone or one
            good &= one.holds and one.seconds <= ALLOWED * alone.seconds
    sys.exit(not good)


if __name__ == "__main__":
    main()
