"""A share of the simulated histories: fixed and random seeds that hold, the same history twice, a defect that is found.

So few that the suite stays short: `.ci/run` lives through more of them before it, five minutes of one core.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 600


def simulate(*options: str) -> "subprocess.CompletedProcess[str]":
    # Another order of sets of words each time, which the simulation has to take away itself.
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    command = [sys.executable, "-m", "tests.simulation", *options]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


def test_fixed_seeds_hold() -> None:
    ran = simulate("--seed", "1", "--seeds", "2", "--hours", "0.1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 seeds from 1 on, 0 failed" in ran.stdout


@pytest.mark.parametrize(
    ("seed", "hours", "more"),
    [
        # A move's report left out a session whose lock was lost when its state was to be cleared.
        ("80100", "0.1", ()),
        # A drain left messages, another one took them, and the first called them left in a backlog that it saw empty.
        ("102458", "0.07", ()),
        # The world deferred the message with the greatest number: in a partitioned queue that is not the last one sent.
        ("10", "0.04", ("--bend",)),
    ],
)
def test_seeds_that_have_found_something_hold(seed: str, hours: str, more: tuple[str, ...]) -> None:
    ran = simulate("--seed", seed, "--hours", hours, *more)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_random_seeds_hold() -> None:
    """What fails prints its seed and the line that replays it. A busy machine lives through fewer."""
    ran = simulate("--seed", "random", "--seeds", "2", "--hours", "0.1", "--minutes", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^[1-9]\d* seeds from \d+ on, 0 failed", ran.stdout, re.MULTILINE), ran.stdout


def test_the_same_seed_is_the_same_history() -> None:
    first, again, other = (simulate("--seed", seed, "--hours", "0.02").stdout for seed in ("2", "2", "3"))
    digests = [re.findall(r"digest ([0-9a-f]{16})", told) for told in (first, again, other)]
    assert len(digests[0]) == 1
    assert digests[0] == digests[1] != digests[2]


def test_a_planted_defect_is_found_and_its_line_replays_it() -> None:
    ran = simulate("--seed", "4", "--seeds", "1", "--hours", "0.1", "--defect", "message-left-out")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    line = next(one for one in ran.stdout.splitlines() if one.startswith("Replay: python -m tests.simulation "))
    again = simulate(*line.removeprefix("Replay: python -m tests.simulation ").split())
    assert again.returncode == 1, again.stdout + again.stderr
    told = [one for one in ran.stdout.splitlines() if one.startswith("seed 4: ")][-1].removeprefix("seed 4: ")
    # The shortest schedule breaks the same rule, perhaps with another message.
    rule, after = told.split(" message ")[0], told.partition(", ")[2]
    assert any(one.startswith(f"seed 4: {rule} message ") and after in one for one in again.stdout.splitlines())
