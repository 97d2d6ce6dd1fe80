"""State that outlives a command, in the XDG state folder: running embedded namespaces, the remembered default pair."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sbpair.core.errors import ConfigurationError
from sbpair.settings.documents import DocumentError, parse_json, read_text
from sbpair.settings.files import home_folder, is_file
from sbpair.settings.keys import SIDES, Sourced

LOCAL_PAIR = "local"
_MOST_BYTES = 1024 * 1024


def state_directory(environ: Mapping[str, str]) -> Path:
    """Folder for state that outlives a command: running emulators, the chosen default pair."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "state") / "sbpair"


def local_pair(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """Settings of the pair `local` from the state file of a running `sbpair emulator`; empty when there is none."""
    path = state_directory(environ) / "emulator.json"
    if not is_file(path):
        return {}
    try:
        state = parse_json(read_text(path, most_bytes=_MOST_BYTES))
        return {
            f"pairs.{LOCAL_PAIR}.{side}.{key}": Sourced(value, str(path))
            for side, namespace in zip(SIDES, state["namespaces"], strict=False)
            for key, value in _side(namespace, state).items()
        }
    except (DocumentError, KeyError, TypeError) as error:
        why = error if isinstance(error, DocumentError) else "it is not the state of an emulator"
        raise ConfigurationError(
            f"Cannot read {path}: {why}.", hint="Delete it and start sbpair emulator again."
        ) from error


def _side(namespace: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of one side; what is not the state of an emulator raises what Python raises."""
    texts = (namespace["name"], namespace["connection_string_file"], state["ca_file"])
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise TypeError("texts are expected")
    name, connection_string_file, ca_file = texts
    return {"namespace": name, "connection_string": {"file": connection_string_file}, "ca_file": ca_file}


def remember_default_pair(name: str, environ: Mapping[str, str], write: Callable[[Path, str], None]) -> Path:
    """Store the pair that commands use when none is named; returns the file."""
    path = state_directory(environ) / "default-pair"
    write(path, name + "\n")
    return path


def remembered_default_pair(environ: Mapping[str, str]) -> dict[str, Sourced]:
    """The pair stored by `remember_default_pair`, or nothing."""
    path = state_directory(environ) / "default-pair"
    try:
        name = read_text(path, most_bytes=_MOST_BYTES).strip()
    except DocumentError:
        return {}
    return {"default_pair": Sourced(name, str(path))} if name else {}
