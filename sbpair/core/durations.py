"""Durations as people and the service write them: `1h30m`, `250ms`, `PT1M`, `P10675199DT2H48M5.4775807S` (never)."""

import math
import re
from datetime import UTC, datetime

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted

NEVER_DAYS = 10_675_199
"""Whole days of TimeSpan.MaxValue, which the service writes for "never"."""

MOST_CHARACTERS = 100
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_ISO = re.compile(
    "P"
    + "".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in "wd")
    + "(?:T(?=[0-9])"
    + "".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in "hms")
    + ")?",
    re.IGNORECASE | re.ASCII,
)


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `1h30m`, `250ms`, `2d`, or an ISO 8601 duration. `0` needs no unit.

    Raises:
        UsageError: anything else, in particular a number without a unit.
    """
    seconds = _parse(text.strip()) if len(text) <= MOST_CHARACTERS else None
    if seconds is None or seconds == math.inf:
        raise UsageError(f"{quoted(text)} is not a duration. Write 30s, 5m, 1h30m, 250ms, 2d or PT1M.")
    return seconds


def parse_moment(text: str, now: float) -> float:
    """UTC epoch seconds of an ISO 8601 time (without an offset: UTC), or of a duration, which means that long ago.

    Raises:
        UsageError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass  # then it is a duration
    else:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
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
    position, total = 0, 0.0
    for match in _PART.finditer(text):
        if match.start() != position:
            return None
        total += float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        position = match.end()
        while position < len(text) and text[position] == " ":
            position += 1
    return total if text and position == len(text) else None


def parse_iso_duration(text: str) -> float | None:
    """Seconds of an ISO 8601 duration, as the service and its clients write them; None if it is none."""
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    return sum(float(value) * _UNIT_SECONDS[unit] for unit, value in match.groupdict().items() if value is not None)


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
    for unit in ("d", "h", "m", "s"):
        amount, whole = divmod(whole, int(_UNIT_SECONDS[unit]))
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts[:2]) or "0s"
