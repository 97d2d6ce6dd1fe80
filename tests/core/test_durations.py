"""Durations as people and the service write them."""

import pytest

from sbpair.core.durations import format_duration, parse_duration
from sbpair.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("250ms", 0.25),
        ("2d", 172_800.0),
        ("1.5h", 5400.0),
        ("PT1M", 60.0),
        ("P1DT2H", 93_600.0),
        ("pt0.5s", 0.5),
    ],
)
def test_reads_what_people_and_the_service_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "m", "5 minutes", "-5s", "1h30", "PT", "P", "P1DT", "1y", "5mm", "s5"])
def test_refuses_anything_else_and_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (10_675_199 * 86_400.0, "never"),
        (0, "0s"),
        (0.25, "250ms"),
        (2.5, "2.5s"),
        (60, "1m"),
        (5400, "1h30m"),
        (90_061, "1d1h"),
        (-60, "-1m"),
    ],
)
def test_shows_the_two_largest_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text
