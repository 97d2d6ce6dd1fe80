"""JSON and text of unknown origin, read within bounds: size and depth; and where a user's files are.

Snapshots, plans and price tables are passed around between people; reading one must neither exhaust memory nor end in
anything but a sentence. YAML is read in `files`, within bounds of its own.
"""

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from typing import Any

from sbpair.core.errors import ConfigurationError
from sbpair.core.redact import shortened

__all__ = ["DocumentError", "parse_json", "read_text"]

MOST_BYTES = 256 * 1024 * 1024
"""A snapshot of a full namespace (10,000 queues) is about 10 MB."""
MOST_JSON_DEPTH = 100
_CHUNK_BYTES = 1024 * 1024


class DocumentError(ValueError):
    """The file cannot be read as the document it should be; the text says why, without naming the file."""


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Text of a file in UTF-8, with or without a byte order mark.

    Raises:
        DocumentError: not there, not readable, too large, not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = _read_at_most(file, most_bytes + 1)
    except (OSError, ValueError) as error:  # a ValueError: a name with a null in it
        raise DocumentError(getattr(error, "strerror", None) or str(error)) from error
    if len(data) > most_bytes:
        raise DocumentError(f"it is larger than {most_bytes // (1024 * 1024)} MB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"byte {error.start} is not UTF-8") from error


def _read_at_most(file: BufferedReader, most_bytes: int) -> bytes:
    """Piece by piece: asked for all at once, Python reserves the bound's memory for a file of any size."""
    chunks: list[bytes] = []
    left = most_bytes
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def parse_json(text: str | bytes, *, exact: bool = False) -> Any:
    """Value of a JSON document; with `exact`, numbers with a fraction as Decimal.

    Raises:
        DocumentError: not JSON, NaN or infinity, a number that is too long, half a character, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_float=Decimal if exact else None, parse_constant=_refuse_constant)
        _check_json(value)
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"not valid JSON: {error}") from error
    return value


def _check_json(value: Any) -> None:
    """Refuse with ValueError what no later reader has to reckon with: depth, 1e999, and lone halves of a surrogate
    pair, which cannot be written anywhere again."""
    level: list[Any] = [value]
    for _ in range(MOST_JSON_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                check_texts(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                check_texts((item,))
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("a number is too large")
        if not below:
            return
        level = below
    raise ValueError("it is nested too deeply")


def check_texts(texts: Iterable[str]) -> None:
    """Raises ValueError for half a character, which cannot be written anywhere again."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError("a text has half a character (a lone surrogate) in it") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's home.

    Raises:
        ConfigurationError: HOME is not set and the system knows of none (a container's made-up user id).
    """
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigurationError(
            "This user has no home folder, and HOME is not set.",
            hint="Set HOME, or XDG_CONFIG_HOME and XDG_STATE_HOME.",
        ) from error


def is_file(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        ConfigurationError: it cannot be told: a name no file can have, or a folder that may not be looked into.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {shortened(str(path))}: {error.strerror or error}.") from error
