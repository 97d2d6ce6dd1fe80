"""The operations log: who changed what, when, with which credential. A namespace-level key leaves no trace in Azure.

JSON Lines in the state folder, one line a step that was carried out, appended with one write each, so that several
runs can share the file.
"""

import getpass
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.access import credential_name
from sbpair.core.errors import SbpairError
from sbpair.core.pairing import Pair
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.runtime.apply import Applying

FILE_NAME = "operations.jsonl"


class OperationsLog:
    """Appends to the log. Opened before anything is changed: what cannot be logged is not done.

    Raises:
        SbpairError: the file cannot be opened or written.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = state_directory(environ) / FILE_NAME
        self._descriptor = self._open()

    def _open(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def __enter__(self) -> "OperationsLog":
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        try:
            os.write(self._descriptor, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _unwritable(path: Path, error: OSError) -> SbpairError:
    return SbpairError(
        f"Cannot write the operations log {path}: {error}", hint="Set XDG_STATE_HOME to a folder that can be written."
    )


def how_to_apply(command: str, pair: Pair) -> "Applying":
    """How a plan is carried out for this command: today's protected patterns, and what each log line repeats."""
    from sbpair.runtime.apply import Applying

    context = {"who": who(), "command": command, "credential": credential_name(pair.secondary)}
    return Applying(protected=pair.protected, context=context)


def who() -> str:
    """`user@host`, with the user behind sudo."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no name for this user id, or no such thing on this platform
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    behind = os.environ.get("SUDO_USER")
    return f"{f'{behind} as {user}' if behind else user}@{socket.gethostname()}"
