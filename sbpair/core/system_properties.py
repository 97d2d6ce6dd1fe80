"""The four x-ms-* application properties of a message in the backlog: names, and how to read them liberally.

Written exactly as the retired library wrote them, read in every form that has been seen or is harmless to guess:
strings also as symbols; a time to live also as a number of milliseconds or as ISO 8601 text (`P1DT2H`); a time also as
ISO 8601 text (no offset means UTC).
"""

from typing import Any

from sbpair.amqp.types import Described, Int, Long, Timestamp, Uint, Ulong
from sbpair.core.durations import epoch_seconds, parse_iso_duration
from sbpair.core.errors import MalformedMessageError

PATH = "x-ms-path"
SESSION = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
NAMES = frozenset({PATH, SESSION, TIME_TO_LIVE, SCHEDULED})

TIMESPAN = "com.microsoft:timespan"
TICKS_PER_MS = 10_000
MAX_TICKS = 2**63 - 1
"""TimeSpan.MaxValue: never."""
_MAX_SECONDS = MAX_TICKS / TICKS_PER_MS / 1000
MAX_HEADER_TTL_MS = 2**32 - 1
"""What the header's ttl can say, 49.7 days; a longer one needs creation-time and absolute-expiry-time."""
INVALID_PROPERTY = "InvalidBacklogProperty"
"""Dead-letter reason of an alias that says nothing."""


def text(value: Any, name: str) -> str | None:
    """A string alias; None if it is not there.

    Raises:
        MalformedMessageError: it is something else than a string or symbol.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise _invalid(name, value, "a string")
    return str(value)


def time_to_live_ms(value: Any) -> int | None:
    """The original time to live in milliseconds; None if it is not there or means never.

    Raises:
        MalformedMessageError: not a time span in any known form, or negative.
    """
    if value is None:
        return None
    ticks = _ticks(value)
    if ticks is None or ticks < 0:
        raise _invalid(TIME_TO_LIVE, value, "a time span")
    if ticks >= MAX_TICKS:
        return None
    return max(1, ticks // TICKS_PER_MS) if ticks else 0


def _ticks(value: Any) -> int | None:
    if isinstance(value, Described):
        known = value.descriptor == TIMESPAN and isinstance(value.value, Long)
        return int(value.value) if known else None
    if isinstance(value, Long | Int | Uint | Ulong):
        return int(value) * TICKS_PER_MS
    if isinstance(value, str):
        seconds = parse_iso_duration(value.strip())
        if seconds is None:
            return None
        return round(seconds * 1000) * TICKS_PER_MS if seconds < _MAX_SECONDS else MAX_TICKS
    return None


def scheduled_ms(value: Any) -> int | None:
    """The original scheduled time in epoch milliseconds; None if it is not there.

    Raises:
        MalformedMessageError: neither a timestamp nor ISO 8601 text.
    """
    if value is None:
        return None
    if isinstance(value, Timestamp):
        return int(value)
    try:
        if isinstance(value, str):
            return round(epoch_seconds(value.strip()) * 1000)
    except ValueError:
        pass
    raise _invalid(SCHEDULED, value, "a time")


def _invalid(name: str, value: Any, wanted: str) -> MalformedMessageError:
    return MalformedMessageError(
        f"The application property {name} is not {wanted} but {type(value).__name__} {str(value)[:64]!r}.",
        reason=INVALID_PROPERTY,
    )
