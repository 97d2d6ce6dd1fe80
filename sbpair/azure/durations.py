"""Durations as the management APIs write them: ISO 8601, where TimeSpan.MaxValue stands for "never".

Arithmetic is exact: both SDKs lose the last digits of TimeSpan.MaxValue on the way out and the service refuses a
value above it, so "never" is left out of requests or written as this very text.
"""

from datetime import timedelta
from functools import lru_cache

from sbpair.core.durations import MOST_CHARACTERS, NEVER_DAYS, parse_iso_duration
from sbpair.core.redact import quoted

NEVER = "P10675199DT2H48M5.4775807S"
"""TimeSpan.MaxValue."""


def seconds_of(value: timedelta | str | None) -> float | None:
    """Seconds of a duration in either client's form; None for "never" and for none at all."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return None if value.days >= NEVER_DAYS else value.total_seconds()
    seconds = _seconds(value) if isinstance(value, str) and len(value) <= MOST_CHARACTERS else None
    if seconds is None:
        raise ValueError(f"{quoted(value)} is not an ISO 8601 duration")
    return None if seconds >= NEVER_DAYS * 86_400 else seconds


_seconds = lru_cache(maxsize=1024)(parse_iso_duration)
"""Thousands of entities have the same few durations."""


def to_iso(seconds: float) -> str:
    """ISO 8601 text of a duration: 90.5 is `PT1M30.5S`."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    whole, milliseconds = divmod(rest, 1000)
    clock = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number)
    if rest or not (days or clock):
        fraction = f".{milliseconds:03d}".rstrip("0") if milliseconds else ""
        clock += f"{whole}{fraction}S"
    return f"P{f'{days}D' if days else ''}{f'T{clock}' if clock else ''}"
