"""Empties a backlog with real processes while everything goes wrong, then proves what became of each message.

    python -m tests.soak.drain --seed 7 --messages 5000 --minutes 5

Each chapter adds messages to the backlog, starts `sbpair drain` or `sbpair syphon`, lets one to three misfortunes
happen at random moments, and ends the process: kill -9, SIGTERM, or (a drain) when it thinks it is done. At the end all
faults are taken back and one more drain has to confirm that the backlog is empty.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.soak.proof import Proof, prove
from tests.soak.world import World

SLOWEST_STOP_SECONDS = 40.0
"""A SIGTERM is answered within about 10 seconds, and connections that do not answer are closed within 5 more; the
rest is for a busy machine."""

FAULTS = (
    ("both", "drop"),
    ("both", "silent:for={seconds}s"),
    ("both", "dark:for={seconds}s"),
    ("both", "throttle:count={count},for={seconds}s"),
    ("both", "delay:rtt=80ms,for={seconds}s"),
    ("primary", "fail:op=send,p=0.3,for={seconds}s"),
    ("primary", "drop:op=send,nth={count}"),
    ("primary", "detach:op=send,nth={count}"),
    ("primary", "quota:entity=orders,for={seconds}s"),
    ("secondary", "lose-settlement-reply:count={count}"),
    ("secondary", "expire-locks:lock=1s,for={seconds}s"),
    ("secondary", "drop:op=settle,nth={count}"),
    ("secondary", "detach:op=receive,nth={count}"),
    ("secondary", "fail:op=settle,p=0.2,for={seconds}s"),
)


class Campaign:
    """One seed's story."""

    def __init__(self, world: World, *, messages: int, chapters: int, deadline: float) -> None:
        self.world = world
        self._chance = world.chance
        self._messages = messages
        self._chapters = chapters
        self._deadline = deadline
        self.events: Counter[str] = Counter()
        self.slowest_stop = 0.0
        self.final: dict[str, object] = {}

    def run(self, say: Callable[[str], None]) -> Proof:
        share = self._messages // self._chapters
        for chapter in range(self._chapters):
            last = chapter == self._chapters - 1
            self.world.divert(self._messages - share * chapter if last else share)
            if time.monotonic() < self._deadline:
                say(f"{chapter + 1}/{self._chapters}: {self._chapter()}")
                self.world.heal()
        self._finish()
        return prove(self.world)

    def _chapter(self) -> str:
        """One life of a process; what happened in it."""
        chance = self._chance
        command = chance.choice(["drain", "syphon"])
        options = ["--concurrency", str(chance.choice([1, 3, 8]))]
        if chance.random() < 0.5:
            options += ["--rate", str(chance.choice([100, 300]))]
        if chance.random() < 0.3:
            self.world.secondary.strike("delay:rtt=30ms")
        process = self.world.start(command, *options)
        self._until_it_moves(process)
        happened = [self._misfortune(process) for _ in range(chance.randrange(1, 4))]
        time.sleep(chance.random() * 1.5)
        ways = ["kill -9", "SIGTERM"] if command == "syphon" else ["kill -9", "SIGTERM", "by itself"]
        happened.append(self._end(process, chance.choices(ways, weights=[3, 2, 1][: len(ways)])[0]))
        self.events.update(happened)
        return f"{command} {' '.join(options)}: {', '.join(happened)}"

    def _until_it_moves(self, process: "subprocess.Popen[str]") -> None:
        """Until it has recorded something new, or has had time to."""
        before = self._ledger_bytes()
        deadline = time.monotonic() + 8
        while self._ledger_bytes() == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def _ledger_bytes(self) -> int:
        ledger = self.world.ledger
        return ledger.stat().st_size if ledger.exists() else 0

    def _misfortune(self, process: "subprocess.Popen[str]") -> str:
        chance = self._chance
        time.sleep(chance.random() * 0.8)
        if chance.random() < 0.15:
            side = chance.choice([self.world.primary, self.world.secondary])
            side.kill()
            time.sleep(chance.random())
            side.start()
            return f"{side.name} kill -9"
        where, form = chance.choice(FAULTS)
        on_primary = where == "primary" or (where == "both" and chance.random() < 0.5)
        side = self.world.primary if on_primary else self.world.secondary
        side.strike(form.format(seconds=chance.randrange(1, 5), count=chance.randrange(1, 12)))
        return f"{side.name} {form.partition(':')[0]}"

    def _end(self, process: "subprocess.Popen[str]", how: str) -> str:
        number = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "by itself": None}[how]
        if number is None:
            self.world.heal()
        if process.poll() is not None:
            how, number = "by itself", None
        seconds = self.world.end(process, how, number)
        if how == "SIGTERM":
            self.slowest_stop = max(self.slowest_stop, seconds)
        return how

    def _finish(self) -> None:
        """The last drain, with nothing in its way."""
        process = self.world.start("drain")
        out, _ = process.communicate(timeout=300)
        self.final = json.loads(out)


def campaign(seed: int, *, messages: int, chapters: int, seconds: float, say: Callable[[str], None]) -> Campaign:
    """Play one seed's story in a folder of its own; asserts nothing."""
    with tempfile.TemporaryDirectory(prefix="sbpair-soak-") as folder:
        world = World(Path(folder), random.Random(seed))
        world.open()
        try:
            story = Campaign(world, messages=messages, chapters=chapters, deadline=time.monotonic() + seconds)
            proof = story.run(say)
            _report(seed, story, proof, say)
            check(story, proof)
            return story
        finally:
            world.close()


def _report(seed: int, story: Campaign, proof: Proof, say: Callable[[str], None]) -> None:
    say(f"seed {seed}: {proof.sent:,} sent, {proof.arrived:,} copies arrived, {proof.left} left in the backlog")
    say("ends and misfortunes: " + ", ".join(f"{count} x {what}" for what, count in sorted(story.events.items())))
    say(f"lost {len(proof.lost)}, altered {len(proof.altered)}, strange {len(proof.strange)}, "
        f"out of order {len(proof.disordered)}, not in the ledger {len(proof.unrecorded)}")  # fmt: skip
    doubles = ", ".join(f"{count} by {reason}" for reason, count in sorted(proof.doubles.items())) or "none"
    say(f"doubles: {doubles}; unexplained {len(proof.unexplained)}; "
        f"despite detection {proof.doubles_despite_detection}; slowest stop {story.slowest_stop:.1f} s")  # fmt: skip


def check(story: Campaign, proof: Proof) -> None:
    """Raises AssertionError with what does not hold."""
    assert proof.holds, proof.complaints()
    assert story.final["exit_code"] == 0, story.final
    assert story.final["data"]["confirmed_empty"], story.final  # type: ignore[index]
    assert story.slowest_stop < SLOWEST_STOP_SECONDS, story.slowest_stop


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.drain", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=5.0, help="no new chapter begins after this time")
    arguments = parser.parse_args()
    began = time.monotonic()
    chapters = max(4, int(arguments.minutes * 60 / 8))
    try:
        campaign(
            arguments.seed,
            messages=arguments.messages,
            chapters=chapters,
            seconds=arguments.minutes * 60,
            say=lambda text: print(text, flush=True),
        )
    except AssertionError as error:
        sys.exit(f"seed {arguments.seed} FAILED: {error}")
    print(f"holds, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
