"""Durations as the management APIs write them: ISO 8601, where TimeSpan.MaxValue stands for "never".

Arithmetic is exact: both SDKs lose the last digits of TimeSpan.MaxValue on the way out and the service refuses a
value above it, so "never" is left out of requests or written as this very text.
"""

from datetime import timedelta

from sbpair.core.durations import MOST_CHARACTERS, parse_iso_duration
from sbpair.core.redact import quoted
from sbpair.service import NEVER_DAYS


def seconds_of(value: timedelta | str | None) -> float | None:
    """Seconds of a duration in either client's form; None for "never" and for none at all."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return None if value.days >= NEVER_DAYS else value.total_seconds()
    seconds = parse_iso_duration(value) if isinstance(value, str) and len(value) <= MOST_CHARACTERS else None
    if seconds is None:
        raise ValueError(f"{quoted(value)} is not an ISO 8601 duration")
    return None if seconds >= NEVER_DAYS * 86_400 else seconds
