import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.emulator.admin.fields import format_duration, format_time, parse_duration
from sbpair.service import NEVER


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60.0),
        ("PT01M00S", 60.0),
        ("P14D", 14 * 86400.0),
        ("P1DT2H3M4.5S", 93784.5),
        ("PT0.0000001S", 1e-7),
        ("PT0S", 0.0),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        NEVER,
        "P10675199DT2H48M5.47758S",  # what the data-plane SDK sends back after reading "never"
        "P10675199DT02H48M05.477539S",  # the resource manager SDK's floating-point version of it
    ],
)
def test_never_and_its_rounded_forms_are_never(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "P10675199DT2H48M5.477581S",
        "P999999999DT23H59M59.999999S",
        "P",
        "PT",
        "P1DT",
        "1M",
        "P1Y",
        "P1W",
        "-PT1S",
        "PT1S ago",
        "",
        "P" + "9" * 400 + "D",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^The string"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60.0, "PT1M"), (90.0, "PT1M30S"), (1209600.0, "P14D"), (86461.25, "P1DT1M1.25S"), (0.0, "PT0S"), (None, NEVER)],
)
def test_durations_are_written_like_the_service(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e8))
def test_a_written_duration_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_times_have_seven_decimals() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=datetime.UTC)
    assert format_time(moment.timestamp()) == "2026-01-02T03:04:05.6789000Z"
