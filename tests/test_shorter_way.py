"""The suite's share of `python -m tests.shorter_way`."""

import random

import pytest

from tests.shorter_way import run

KINDS = {
    "read the long way",
    "read the shorter way, restored the long way",
    "read the shorter way, restored so, too",
    "frames, some whole",
    "frames, none whole",
    "frames until the connection ended",
}


@pytest.mark.parametrize("seed", [1, random.randrange(10**9)], ids=["fixed", "random"])
async def test_the_shorter_way_says_and_makes_what_the_long_one_does(seed: int) -> None:
    """What differs is told with its seed and the number of its case."""
    counts = await run(4_000, seed)
    assert counts.keys() == KINDS
    assert min(counts.values()) >= 20
    assert counts["read the shorter way, restored so, too"] >= 200
