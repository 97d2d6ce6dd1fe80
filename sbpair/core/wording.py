"""What of a foreign value may stand in a message: shortened, and never a secret."""

import re

_SECRETS = (
    re.compile(r"((?:SharedAccess|Account)Key\s*=\s*)[^;\s'\"]+", re.IGNORECASE),
    re.compile(r"(SharedAccessSignature\s+)\S.*?(?=;|'|\"|$)", re.IGNORECASE),
    re.compile(r"(\bsig=)[^&\s;'\"]+", re.IGNORECASE),
    re.compile(r"(\bBearer\s+)[A-Za-z0-9._~+/=-]+", re.IGNORECASE),
    re.compile(r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
)
_MOST_CHARACTERS = 80


def scrub(text: str) -> str:
    """`text` without keys, signatures and tokens."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


def quoted(value: object) -> str:
    """The value as a message repeats it: its repr, cut where it gets too long to be read."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in a list in a list ...
        return f"a {type(value).__name__} too large to show"
    return shortened(text)


def shortened(text: str) -> str:
    """The text, cut where it gets too long to be read."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
