"""The short form of the drain's campaign; the long one is `python -m tests.soak.drain`."""

import pytest

from tests.soak.drain import campaign


@pytest.mark.parametrize("seed", [3])
def test_a_backlog_comes_home_through_kills_and_faults(seed: int) -> None:
    campaign(seed, messages=800, chapters=4, seconds=40.0, say=print)
