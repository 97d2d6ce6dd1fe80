"""What management APIs answer, taken at its word only where it is of the right type.

An answer comes from whoever is at the other end: a proxy's error page, an emulator of somebody else's, a new API
version. Whatever does not fit raises ValueError with a sentence, which `translating` makes an error of ours.
"""

from collections.abc import Mapping
from typing import Any

from sbpair.core.wording import quoted

Json = Mapping[str, Any]
_MAX_COUNT = 2**63 - 1


def an_object(value: Any, what: str) -> Json:
    """A JSON object; empty for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(value, what, "an object")
    return value


def a_list(value: Any, what: str) -> list[Any]:
    """A JSON list; empty for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(value, what, "a list")
    return value


def a_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(value, what, "a text")
    return value


def a_text_or_none(value: Any, what: str) -> str | None:
    return a_text(value, what) if value else None


def a_count(value: Any, what: str, default: int = 0) -> int:
    """A whole number from 0; the default for null."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise _wrong(value, what, "a whole number")
    return value


def a_count_or_none(value: Any, what: str) -> int | None:
    return None if value is None else a_count(value, what)


def a_flag(value: Any, what: str, default: bool = False) -> bool:
    """True or false; the default for null."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(value, what, "true or false")
    return value


def _wrong(value: Any, what: str, wanted: str) -> ValueError:
    return ValueError(f"the answer has {quoted(value)} for `{what}`, which is not {wanted}")
