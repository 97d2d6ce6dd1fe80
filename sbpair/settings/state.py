"""State that outlives a command, in the XDG state folder: running embedded namespaces, the remembered default pair."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from sbpair.core.errors import ConfigurationError
from sbpair.settings.keys import SIDES, Sourced

LOCAL_PAIR = "local"


def state_directory(environ: Mapping[str, str]) -> Path:
    """Folder for state that outlives a command: running emulators, the chosen default pair."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(base) / "sbpair"


def local_pair(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Settings of the pair `local` from the state file of a running `sbpair emulator`; empty when there is none."""
    path = state_directory(environ) / "emulator.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"Cannot read {path}: {error}", hint="Delete it and start sbpair emulator again."
        ) from error
    values: dict[str, Sourced] = {}
    for side, namespace in zip(SIDES, state["namespaces"], strict=False):
        for key, value in {
            "namespace": namespace["name"],
            "connection_string": {"file": namespace["connection_string_file"]},
            "ca_file": state["ca_file"],
        }.items():
            values[f"pairs.{LOCAL_PAIR}.{side}.{key}"] = Sourced(value, str(path))
    return values


def remember_default_pair(name: str, environ: Mapping[str, str], write: Callable[[Path, str], None]) -> Path:
    """Store the pair that commands use when none is named; returns the file."""
    path = state_directory(environ) / "default-pair"
    write(path, name + "\n")
    return path


def remembered_default_pair(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """The pair stored by `remember_default_pair`, or nothing."""
    path = state_directory(environ) / "default-pair"
    try:
        name = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return {}
    return {"default_pair": Sourced(name, str(path))} if name else {}
