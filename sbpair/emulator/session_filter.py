"""Asking for a session at attach: the source filter `com.microsoft:session-filter`, null for the next available one."""

from typing import Any

from sbpair.amqp.types import Long
from sbpair.emulator import errors
from sbpair.emulator.errors import BrokerError
from sbpair.emulator.limits import MAX_ID_CHARACTERS, NEXT_SESSION_TIMEOUT_SECONDS

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL_PROPERTY = "com.microsoft:locked-until-utc"
_TIMEOUT_PROPERTY = "com.microsoft:timeout"
_TICKS_TO_1970 = 621_355_968_000_000_000


def session_wish(value: object) -> str | None:
    """The session asked for, None for the next available; BrokerError for anything that is no session id."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BrokerError(errors.INVALID_FIELD, f"The session id must be a string, not {type(value).__name__}.")
    if len(value) > MAX_ID_CHARACTERS:
        raise BrokerError(
            errors.ARGUMENT_ERROR, f"The session id has {len(value)} characters; the limit is {MAX_ID_CHARACTERS}."
        )
    return str(value)


def waiting_seconds(properties: dict[str, Any]) -> float:
    """How long the client will wait for the next available session (link property in milliseconds)."""
    timeout = properties.get(_TIMEOUT_PROPERTY)
    if isinstance(timeout, int) and not isinstance(timeout, bool):
        return int(timeout) / 1000
    return NEXT_SESSION_TIMEOUT_SECONDS


def ticks(instant: float) -> Long:
    """An instant (epoch seconds) in 100 ns since the year 1, as .NET counts."""
    return Long(round(instant * 1000) * 10_000 + _TICKS_TO_1970)
