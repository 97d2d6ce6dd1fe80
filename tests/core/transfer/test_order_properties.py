"""Histories of drains over queues with sessions, by fixed seeds; and defects that they have to find.

One thing is no defect, and 6,000 histories with it find none: to take at once what comes again while its release is
under way. It comes only after the broker has released it, under a lock of its own. That it waits for the confirmation
keeps one message from being two items.
"""

import pytest

from tests.core.transfer.drains import (
    DEFECTS,
    UNLIKELY,
    failure_of,
    overtaken_amid_a_receive,
    planted,
    seeds_until_found,
)

SEEDS = 300
MOST_SEEDS_UNTIL_FOUND = 200


def test_nothing_overtakes_nothing_is_lost_and_nothing_starves() -> None:
    failed = {seed: failure for seed in range(1, SEEDS + 1) if (failure := failure_of(seed))}
    assert not failed


@pytest.mark.parametrize("what", DEFECTS)
def test_a_planted_defect_is_found(what: str) -> None:
    assert seeds_until_found(what, MOST_SEEDS_UNTIL_FOUND) is not None


@pytest.mark.parametrize("what", UNLIKELY)
def test_who_steps_back_amid_a_receive_looks_again_at_what_came(what: str) -> None:
    assert overtaken_amid_a_receive() == []
    with planted(what):
        assert overtaken_amid_a_receive() != []
