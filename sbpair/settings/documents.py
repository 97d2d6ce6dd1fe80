"""Text of unknown origin, read within bounds, which `core.documents` reads on; and where a user's files are.

Snapshots, plans and price tables are passed around between people; reading one must neither exhaust memory nor end in
anything but a sentence. YAML is read in `files`, within bounds of its own.
"""

from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path

from sbpair.core.documents import DocumentError, parse_json
from sbpair.core.errors import ConfigurationError
from sbpair.core.redact import shortened

__all__ = ["DocumentError", "parse_json", "read_text"]

MOST_BYTES = 256 * 1024 * 1024
"""A snapshot of a full namespace (10,000 queues) is about 10 MB."""
_CHUNK_BYTES = 1024 * 1024


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
