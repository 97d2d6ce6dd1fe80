"""Texts of the administration APIs: ISO 8601 durations and times, as .NET writes them.

Both APIs carry time spans as ISO 8601 durations with .NET's resolution of 100 ns ("ticks"), and both write
"never" as `TimeSpan.MaxValue`. A value above it is refused by the service; values a hair below it are what the
official clients send back after reading "never" through floating point, so those mean "never" too.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal

NEVER_TEXT = "P10675199DT2H48M5.4775807S"
TICKS_PER_SECOND = 10_000_000
MAX_TICKS = 2**63 - 1
NEVER_FROM_TICKS = MAX_TICKS - TICKS_PER_SECOND
"""Durations within one second of the maximum count as "never": clients lose up to 42 microseconds on a round trip."""

_MOST_CHARACTERS = 1000
_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
)


def duration_ticks(text: str) -> int:
    """Ticks (100 ns) of an ISO 8601 duration of days, hours, minutes and seconds.

    Raises ValueError for anything else: years, months and weeks have no fixed or no documented length here.
    """
    text = text.strip()
    match = _DURATION.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"The string '{text[:_MOST_CHARACTERS]}' is not a valid TimeSpan value.")
    seconds = (
        Decimal(match["days"] or 0) * 86_400
        + Decimal(match["hours"] or 0) * 3_600
        + Decimal(match["minutes"] or 0) * 60
        + Decimal(match["seconds"] or 0)
    )
    ticks = int(seconds * TICKS_PER_SECOND)
    return -ticks if match["sign"] else ticks


def parse_duration(text: str) -> float | None:
    """Seconds of an ISO 8601 duration, None for "never" (`TimeSpan.MaxValue`); ValueError if it is out of range."""
    ticks = duration_ticks(text)
    if ticks > MAX_TICKS:
        raise ValueError(f"The string '{text}' is above the largest TimeSpan, {NEVER_TEXT}.")
    if ticks < 0:
        raise ValueError(f"The string '{text}' is negative.")
    return None if ticks >= NEVER_FROM_TICKS else ticks / TICKS_PER_SECOND


def format_duration(seconds: float | None) -> str:
    """The ISO 8601 text of a duration as the service writes it: `PT1M`, `P14D`, `PT0S`; None is "never"."""
    if seconds is None:
        return NEVER_TEXT
    whole, ticks = divmod(round(seconds * TICKS_PER_SECOND), TICKS_PER_SECOND)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    fraction = f".{ticks:07d}".rstrip("0").rstrip(".")
    clock = "".join(
        [f"{hour}H" if hour else "", f"{minute}M" if minute else "", f"{second}{fraction}S" if second or ticks else ""]
    )
    date = f"{days}D" if days else ""
    if not date and not clock:
        return "PT0S"
    return f"P{date}T{clock}" if clock else f"P{date}"


def format_time(epoch_seconds: float) -> str:
    """UTC time with seven decimals, as .NET's round-trip format writes it."""
    moment = datetime.fromtimestamp(epoch_seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0Z"


def format_log_time(epoch_seconds: float) -> str:
    """UTC time to the second, as the `Timestamp:` of an error text carries it."""
    return f"{datetime.fromtimestamp(epoch_seconds, UTC):%Y-%m-%dT%H:%M:%S}"
