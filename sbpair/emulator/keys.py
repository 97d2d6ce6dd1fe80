"""Keys of shared access rules: fresh ones, or the same ones at each start.

A connection string in a settings file is of use only while its key stays. So a folder keeps one secret, 32 random bytes
for its owner's eyes alone, and every key follows from it and from the names of its namespace and rule.
"""

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from sbpair.files import make_private_folder, open_private

KeySource = Callable[[str], tuple[str, str]]
"""Name of a rule -> its primary and its secondary key, texts of base64 as the service makes them."""

_KEY_BYTES = 32


def random_keys(rule: str) -> tuple[str, str]:
    """Two keys that nobody has had before."""
    return _text(secrets.token_bytes(_KEY_BYTES)), _text(secrets.token_bytes(_KEY_BYTES))


class StoredKeys:
    """Keys that are the same whenever the same folder is given.

    Raises:
        OSError: the secret in the folder cannot be read or written, or others may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self._secret = _secret(folder)

    def of(self, namespace: str) -> KeySource:
        def keys(rule: str) -> tuple[str, str]:
            return self._derived(namespace, rule, "primary"), self._derived(namespace, rule, "secondary")

        return keys

    def _derived(self, namespace: str, rule: str, which: str) -> str:
        named = "\n".join((namespace.lower(), rule, which)).encode()
        return _text(hmac.new(self._secret, named, hashlib.sha256).digest())


def chosen_keys(chosen: Mapping[str, str], otherwise: KeySource) -> KeySource:
    """A source in which some rules have a primary key of somebody's choice."""

    def keys(rule: str) -> tuple[str, str]:
        primary, secondary = otherwise(rule)
        return chosen.get(rule, primary), secondary

    return keys


def _secret(folder: Path) -> bytes:
    path = folder / "secret"
    make_private_folder(folder)
    if not path.exists():
        _write_once(path, secrets.token_bytes(_KEY_BYTES))
    with open_private(path, "rb") as file:
        found = file.read(_KEY_BYTES + 1)
    if len(found) != _KEY_BYTES:
        raise OSError(f"{path} is not a secret of {_KEY_BYTES} bytes; delete it, and new keys are made")
    return found


def _write_once(path: Path, data: bytes) -> None:
    """Of several processes that start at once the first one decides, and none of them reads half a file."""
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
    finally:
        Path(fresh).unlink()


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()
