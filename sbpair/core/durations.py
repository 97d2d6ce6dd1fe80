"""Durations as people and the service write them: `1h30m`, `250ms`, `PT1M`, `P10675199DT2H48M5.4775807S` (never)."""

import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted
from sbpair.service import NEVER_DAYS, TICKS_PER_SECOND, duration_ticks, short_duration_seconds

MOST_CHARACTERS = 100
_UNIT_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `1h30m`, `250ms`, `2d`, or an ISO 8601 duration. `0` needs no unit.

    Raises:
        UsageError: anything else, in particular a number without a unit.
    """
    seconds = _parse(text.strip()) if len(text) <= MOST_CHARACTERS else None
    if seconds is None or seconds == math.inf:
        raise UsageError(f"{quoted(text)} is not a duration. Write 30s, 5m, 1h30m, 250ms, 2d or PT1M.")
    return seconds


def as_utc(moment: datetime) -> datetime:
    """The time; without an offset it is UTC."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def epoch_seconds(text: str) -> float:
    """UTC epoch seconds of an ISO 8601 time, as `as_utc`; raises ValueError for anything else."""
    return as_utc(datetime.fromisoformat(text)).timestamp()


def parse_moment(text: str, now: float) -> float:
    """UTC epoch seconds of an ISO 8601 time (without an offset: UTC), or of a duration, which means that long ago.

    Raises:
        UsageError: it is neither.
    """
    with suppress(ValueError):  # then it is a duration
        return epoch_seconds(text)
    try:
        return now - parse_duration(text)
    except UsageError:
        raise UsageError(
            f"{quoted(text)} is neither an ISO 8601 time (2026-11-21T08:00:00Z) nor a duration (2h, meaning ago)."
        ) from None


def _parse(text: str) -> float | None:
    if text == "0":
        return 0.0
    if text[:1] in "Pp" and len(text) > 2:
        return parse_iso_duration(text)
    return short_duration_seconds(text)


@lru_cache(maxsize=1024)
def parse_iso_duration(text: str) -> float | None:
    """Seconds of an ISO 8601 duration, as the service and its clients write them; None if it is none. Thousands of
    entities and messages have the same few."""
    ticks = None if text.startswith("-") else duration_ticks(text, of_anyone=True)
    try:
        return None if ticks is None else ticks / TICKS_PER_SECOND
    except OverflowError:  # hundreds of digits: no duration that anything could have
        return None


def format_duration(seconds: float | None) -> str:
    """Short text for people: `never`, `250ms`, `1m`, `1h30m`, `2d`."""
    if seconds is None or seconds >= NEVER_DAYS * _UNIT_SECONDS["d"]:
        return "never"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)}ms"
    whole = round(seconds)
    if whole < 60 and abs(seconds - whole) > 0.05:
        return f"{seconds:.1f}s"
    parts = []
    for unit, length in _UNIT_SECONDS.items():
        amount, whole = divmod(whole, length)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts[:2]) or "0s"
