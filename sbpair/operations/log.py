"""The operations log: who changed what, when, with which credential. A namespace-level key leaves no trace in Azure.

JSON Lines, one line a step that was carried out, appended with one write each, so that several runs can share the file.
"""

import errno
import getpass
import os
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from sbpair.core.access import NamespaceAccess, credential_name
from sbpair.core.errors import SbpairError
from sbpair.core.redact import json_text
from sbpair.files import make_private_folder, open_private

FILE_NAME = "operations.jsonl"
REASON: ContextVar[str] = ContextVar("reason", default="")
"""Why what is done is done, in the words of who does it: it goes into this log, and into ledgers."""
REASON_VARIABLE = "SBPAIR_REASON"


class OperationsLog:
    """Appends to the log. Opened before anything is changed: what cannot be logged is not done.

    Args:
        path: its file; None: nothing is recorded.

    Raises:
        SbpairError: the file cannot be opened or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file = None if path is None else _opened(path)

    def __enter__(self) -> "OperationsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        if self._file is None or self.path is None:
            return
        try:
            # Not through a buffer, which would be written once more, and fail again, when the file is closed.
            written = os.write(self._file.fileno(), text := json_text(line).encode() + b"\n")
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def changed(
        self,
        command: str,
        access: NamespaceAccess,
        action: str,
        entity: str,
        detail: str,
        error_code: str | None = None,
    ) -> None:
        """Append the line of a change of one entity, or with an error of one that failed."""
        self.write(
            {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                **context_of(command, access),
                "namespace": access.host,
                "action": action,
                "entity": entity,
                "detail": detail,
                "result": "done" if error_code is None else "failed",
                "error_code": error_code,
            }
        )


def _opened(path: Path) -> BinaryIO:
    try:
        make_private_folder(path.parent)
        return open_private(path, "ab")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> SbpairError:
    return SbpairError(
        f"Cannot write the operations log {path}: {error.strerror or error}.",
        hint="Set XDG_STATE_HOME to a folder that can be written and has room.",
    )


def context_of(command: str, access: NamespaceAccess) -> dict[str, Any]:
    """What every line of a run repeats: who runs it, which command, with which credential, and why if that was said."""
    reason = stated_reason()
    return {"who": who(), "command": command, "credential": credential_name(access)} | (
        {"reason": reason} if reason else {}
    )


def stated_reason() -> str:
    """Why, in the words of who runs it; empty if nobody said."""
    return REASON.get() or os.environ.get(REASON_VARIABLE, "")


def who() -> str:
    """`user@host`, with the user behind sudo."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this user id, or no such thing on this platform
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    behind = os.environ.get("SUDO_USER")
    return f"{f'{behind} as {user}' if behind else user}@{socket.gethostname()}"
