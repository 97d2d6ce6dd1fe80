"""The short form of the campaign of kills; the long one is `python -m tests.soak.kills`."""

from tests.soak.kills import campaign, report


def test_sessions_keep_their_order_through_kills() -> None:
    result = campaign(5, messages=1200, kills=2, processes=2, say=print)
    assert result.holds, report(5, result)
    assert result.kills_after_moving >= 1
