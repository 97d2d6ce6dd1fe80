"""Histories of drains over queues with sessions, by fixed seeds; and defects that they have to find."""

import pytest

from tests.core.transfer.drains import DEFECTS, failure_of, seeds_until_found

SEEDS = 300
MOST_SEEDS_UNTIL_FOUND = 200


def test_nothing_overtakes_nothing_is_lost_and_nothing_starves() -> None:
    failed = {seed: failure for seed in range(1, SEEDS + 1) if (failure := failure_of(seed))}
    assert not failed


@pytest.mark.parametrize("what", DEFECTS)
def test_a_planted_defect_is_found(what: str) -> None:
    assert seeds_until_found(what, MOST_SEEDS_UNTIL_FOUND) is not None
