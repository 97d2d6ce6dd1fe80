"""The short form of the campaign of killed moves; the long one is `python -m tests.soak.recover`."""

import pytest

from tests.soak.recover import campaign, report


@pytest.mark.parametrize("within", [False, True], ids=["between two namespaces", "within one"])
def test_a_killed_move_loses_nothing_of_any_kind(within: bool) -> None:
    result = campaign(3, messages=500, kills=2, say=print, within=within)
    assert result.holds, report(3, result)
    assert result.kills_after_moving >= 1
