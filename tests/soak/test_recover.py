"""The short form of the campaign of killed moves; the long one is `python -m tests.soak.recover`."""

import pytest

from tests.soak.recover import campaign, report


@pytest.mark.timeout(300)
def test_a_killed_move_loses_nothing_of_any_kind() -> None:
    result = campaign(3, messages=500, kills=2, say=print)
    assert result.holds, report(3, result)
    assert result.kills_after_moving >= 1
