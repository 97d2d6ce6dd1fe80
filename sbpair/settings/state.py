"""State that outlives a command, in the XDG state folder: running embedded namespaces, the remembered default pair."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.access import host_of, is_loopback
from sbpair.core.errors import ConfigurationError
from sbpair.files import make_private_folder, write_private
from sbpair.service import EMBEDDED_NAMES
from sbpair.settings.documents import DocumentError, home_folder, is_file, parse_json, read_text

if TYPE_CHECKING:
    from sbpair.settings.keys import Sourced

__all__ = [
    "LOCAL_NAMESPACES",
    "LOCAL_PAIR",
    "data_directory",
    "emulator_state",
    "first_use",
    "local_pair",
    "remember_causes",
    "remember_default_pair",
    "remembered_causes",
    "state_directory",
]

LOCAL_PAIR = "local"
LOCAL_NAMESPACES = ("local-primary", "local-secondary")
"""Of that pair, where nobody gave them other names."""
EMULATOR_STATE_FILE = "emulator.json"
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EmulatorState:
    """What a running `sbpair emulator` has written down: where it is reached, and with what."""

    path: Path
    pid: int
    connection_string_files: Mapping[str, str]
    """Namespace -> file with its connection string."""
    ca_file: str
    control: str | None
    """`host:port` of the fault control, if there is one."""


def state_directory(environ: Mapping[str, str]) -> Path:
    """Folder for state that outlives a command: running emulators, the chosen default pair."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "state") / "sbpair"


def data_directory(environ: Mapping[str, str]) -> Path:
    """Folder for what a user keeps: what the keys and certificates of the embedded namespaces are made from."""
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else home_folder(environ) / ".local" / "share") / "sbpair"


def emulator_state(environ: Mapping[str, str]) -> EmulatorState | None:
    """The state file of a running `sbpair emulator`; None when there is none.

    Raises:
        ConfigurationError: it cannot be read, or is not such a file.
    """
    path = state_directory(environ) / EMULATOR_STATE_FILE
    if not is_file(path):
        return None
    try:
        state = parse_json(read_text(path, most_bytes=_MOST_BYTES))
        files = {_text(one["name"]): _text(one["connection_string_file"]) for one in state["namespaces"]}
        control = None if state["control"] is None else _text(state["control"])
        return EmulatorState(path, _pid(state["pid"]), files, _text(state["ca_file"]), control)
    except (DocumentError, KeyError, TypeError) as error:
        why = error if isinstance(error, DocumentError) else "it is not the state of an emulator"
        raise ConfigurationError(
            f"Cannot read {path}: {why}.", hint="Delete it and start sbpair emulator again."
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError("a text is expected")
    return value


def _pid(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise TypeError("a process id is expected")
    return value


def local_pair(environ: Mapping[str, str]) -> "dict[str, Sourced]":
    """Settings of the pair `local`, the first two namespaces of a running `sbpair emulator`; empty when there are none.

    Raises:
        ConfigurationError: see `emulator_state`.
    """
    from sbpair.settings.keys import SIDES, Sourced

    state = emulator_state(environ)
    if state is None or len(state.connection_string_files) < len(SIDES):
        return {}
    return {
        f"pairs.{LOCAL_PAIR}.{side}.{key}": Sourced(value, str(state.path))
        for side, (name, file) in zip(SIDES, state.connection_string_files.items(), strict=False)
        for key, value in (
            ("namespace", name),
            ("host", "localhost"),
            ("connection_string", {"file": file}),
            ("ca_file", state.ca_file),
        )
    }


def authority_of_embedded(host: str, environ: Mapping[str, str]) -> str | None:
    """The certificate authority of the running embedded namespace at `host` (`127.0.0.1:5680`), which a connection
    string does not tell; None if no running one of this user is there.

    Raises:
        ConfigurationError: see `emulator_state`.
    """
    found = _embedded_at(host, environ)
    return None if found is None else found[1].ca_file


def name_of_embedded(host: str, environ: Mapping[str, str]) -> str | None:
    """The name of the embedded namespace at `host` (`127.0.0.1:5680`), in this process or as `sbpair emulator`; None if
    none of this user is there.

    Raises:
        ConfigurationError: see `emulator_state`.
    """
    if (name := EMBEDDED_NAMES.get(host.lower())) is not None:
        return name
    found = _embedded_at(host, environ)
    return None if found is None else found[0]


def _embedded_at(host: str, environ: Mapping[str, str]) -> tuple[str, EmulatorState] | None:
    """Name of the namespace, and the state of the emulator."""
    if not is_loopback(host.rpartition(":")[0]):
        return None
    state = emulator_state(environ)
    if state is None:
        return None
    for name, file in state.connection_string_files.items():
        try:
            known = host_of(read_text(Path(file), most_bytes=_MOST_BYTES).strip())
        except DocumentError:
            continue  # left by an emulator that was killed; users of the pair `local` are told so
        if known.lower() == host.lower():
            return name, state
    return None


MOST_REMEMBERED_FILES = 1000


def first_use(file: Path, environ: Mapping[str, str]) -> bool:
    """Whether a configuration file with these contents is used for the first time by this user, and from now on not.

    Raises:
        OSError: the file cannot be read, or that it was used cannot be written down.
        ConfigurationError: there is no state folder.
    """
    digest = hashlib.sha256(bytes(file.absolute()) + b"\0" + file.read_bytes()).hexdigest()
    path = state_directory(environ) / "project-files"
    try:
        known = read_text(path, most_bytes=_MOST_BYTES).split()
    except DocumentError:
        known = []
    if digest in known:
        return False
    _write(path, "\n".join([*known[1 - MOST_REMEMBERED_FILES :], digest]) + "\n")
    return True


def remember_default_pair(name: str, environ: Mapping[str, str]) -> Path:
    """Store the pair that commands use when none is named; returns the file.

    Raises:
        OSError: it cannot be written.
    """
    path = state_directory(environ) / "default-pair"
    _write(path, name + "\n")
    return path


def _write(path: Path, text: str) -> None:
    """A person who could write here would choose the namespaces that commands work on."""
    make_private_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(fresh, text.encode())
    fresh.replace(path)


def remembered_default_pair(environ: Mapping[str, str]) -> "dict[str, Sourced]":
    """The pair stored by `remember_default_pair`, or nothing."""
    from sbpair.settings.keys import Sourced

    path = state_directory(environ) / "default-pair"
    try:
        name = read_text(path, most_bytes=_MOST_BYTES).strip()
    except DocumentError:
        return {}
    return {"default_pair": Sourced(name, str(path))} if name else {}


def remembered_causes(host: str, environ: Mapping[str, str]) -> dict[str, int]:
    """How many dead letters of each cause a namespace had at the last look; nothing if nobody has looked."""
    try:
        found = json.loads(read_text(_causes_file(host, environ), most_bytes=_MOST_BYTES))
    except (DocumentError, ValueError):
        return {}
    return {str(key): int(count) for key, count in found.items()} if isinstance(found, dict) else {}


def remember_causes(host: str, causes: Mapping[str, int], environ: Mapping[str, str]) -> None:
    """Keep them for the next look.

    Raises:
        OSError: they cannot be written.
    """
    _write(_causes_file(host, environ), json.dumps(causes))


def _causes_file(host: str, environ: Mapping[str, str]) -> Path:
    name = hashlib.sha256(host.lower().encode()).hexdigest()[:16]
    return state_directory(environ) / "dead-letters" / f"{name}.json"
