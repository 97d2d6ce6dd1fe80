"""The gate for foreign text: what of a value from outside may stand in a sentence, a cell, a label or a line.

Messages, names, reasons, answers of servers and files are written by others. Before any of it is shown it passes one of
these: `printable` (no control character, so no new line and no escape of a terminal), `scrub` (no secret), `quoted`
(of a length that can be read), `json_text` (JSON for output, ledgers and archives), and, on its way out, `defused`
(nothing a build runner takes for a command).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_SECRETS = (
    re.compile(r"((?:SharedAccess|Account)Key\s*=\s*)[^;\s'\"]+", re.IGNORECASE),
    re.compile(r"(SharedAccessSignature\s+)\S.*?(?=;|'|\"|$)", re.IGNORECASE),
    re.compile(r"(\bsig=)[^&\s;'\"]+", re.IGNORECASE),
    re.compile(r"(\bBearer\s+)[A-Za-z0-9._~+/=-]+", re.IGNORECASE),
    re.compile(r"()(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{43}=(?![A-Za-z0-9+/=])"),  # a bare key: 32 bytes in base64
    re.compile(r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
)
_MOST_CHARACTERS = 80
_RUNNER_WORDS = re.compile(r"#(?=#(?:vso)?\[)", re.IGNORECASE)
"""`##[...]` and `##vso[...]`, which GitHub Actions and Azure Pipelines obey anywhere in a line."""
_RUNNER_LINES = re.compile(r"((?:\A|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])\s*:)(?=:)")
"""`::command::`, which GitHub Actions obeys at the start of a line."""


def printable(text: str) -> str:
    """`text` with control characters, line ends and signs that turn the direction of writing shown as escapes: one
    line, which cannot drive a terminal. For reading: a backslash that was there looks like one of these; JSON is exact.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def defused(text: str) -> str:
    """`text`, one line or several, with a space in what a build runner would take for a command."""
    return _RUNNER_LINES.sub(r"\1 ", _RUNNER_WORDS.sub("# ", text))


def json_text(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """JSON that drives neither a terminal nor a build runner, however it is looked at: `cat ledger.jsonl` is enough.

    Nothing is lost: a reader of JSON gets the value as it was.
    """
    if indent is None and default is None:
        text = _ENCODER.encode(value)
    else:
        text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    if text.isascii() and "\x7f" not in text and "##" not in text:
        return text  # almost every line of a ledger: the expression takes longer than the encoder
    return DRIVES_A_TERMINAL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_ENCODER = json.JSONEncoder(ensure_ascii=False)
"""Made once: `json.dumps` makes one for each call that wants other than ASCII."""
DRIVES_A_TERMINAL = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]|(?<=#)#(?=(?:vso)?\\[)",
    re.IGNORECASE,
)
"""What JSON leaves as it is: the second set of control characters, characters without a width, line ends beyond ASCII,
those that turn the writing direction, halves of surrogate pairs, which no file can hold, and the second `#` of a build
runner's `##[`."""


def in_build_runner(environ: Mapping[str, str]) -> bool:
    """Whether somebody reads the output who obeys lines of it."""
    return bool(environ.get("GITHUB_ACTIONS") or environ.get("TF_BUILD"))


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
