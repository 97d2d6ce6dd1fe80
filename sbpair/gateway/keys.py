"""Keys that only the gateway knows: names, rights, and the queues and topics they are for.

A file of keys is YAML, a list under `keys`:

    keys:
      - name: checkout
        key: {file: /run/secrets/checkout}      or {env: NAME}, or the key itself
        rights: [send]
        entities: [orders, "invoices/*"]        by default all
        pairs: [orders]                         of a gateway with several; by default all

It is read again when it has changed; links that stand on a key that is gone are detached.
"""

import json
import os
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import yaml

from sbpair.core.errors import ConfigurationError, UsageError
from sbpair.core.redact import quoted
from sbpair.engine.auth import ALL_RIGHTS, Signer

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,256}")
_RIGHTS: Final = {right.lower(): right for right in ALL_RIGHTS}
_BELOW: Final = re.compile(r"/(?:subscriptions/|\$)", re.IGNORECASE)
"""What follows is a part of the entity: subscriptions, dead letters, `$management`."""


class KeysError(ConfigurationError):
    """A key that is none, or a file of keys that is wrong."""

    hint = "How keys are written: sbpair help gateway"


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """One key. `entities` and `pairs` are patterns (`*` for any characters), compared in lower case."""

    name: str
    primary_key: str = field(repr=False)
    rights: frozenset[str] = frozenset({"Send", "Listen"})
    entities: tuple[str, ...] = ("*",)
    secondary_key: str = field(default="", repr=False)
    pairs: tuple[str, ...] = ("*",)

    def is_for(self, path: str) -> bool:
        """Whether an address is one of its entities, or a part of one; the namespace's own address is nobody's."""
        entity = _BELOW.split(path.strip("/"), maxsplit=1)[0]
        return _matches(entity, self.entities)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def random_key() -> str:
    """32 random bytes, as the service's keys have."""
    return b64encode(secrets.token_bytes(32)).decode()


def parse_key(text: str, environ: Mapping[str, str] = os.environ) -> GatewayKey:
    """`NAME=send,listen[@pattern,pattern]`, as an option has it, with the key in `SBPAIR_GATEWAY_KEY_NAME` or a random
    one.

    Raises:
        ConfigurationError: not of that form.
    """
    name, separator, rest = text.partition("=")
    rights, _, patterns = rest.partition("@")
    if not separator:
        raise KeysError(f"A key is NAME=RIGHTS, such as checkout=send, not {quoted(text)}.")
    value = environ.get(f"SBPAIR_GATEWAY_KEY_{re.sub('[^A-Z0-9]', '_', name.upper())}") or random_key()
    return _key(name, value, rights.split(","), patterns.split(",") if patterns else ["*"])


def read_keys(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[GatewayKey, ...]:
    """The keys of a file.

    Raises:
        ConfigurationError: it cannot be read, or is not what it should be. No key is repeated in the message.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        entries = found["keys"]
        keys = tuple(_of_entry(entry, environ) for entry in entries)
    except OSError as error:
        raise KeysError(f"The file of keys {path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise KeysError(
            f"The file of keys {path} is not a list under `keys:`.", hint="See: sbpair help gateway"
        ) from None
    if len({key.name for key in keys}) < len(keys) or not keys:
        raise KeysError(f"The file of keys {path} has no key, or two of one name.")
    return keys


def _of_entry(entry: Mapping[str, Any], environ: Mapping[str, str]) -> GatewayKey:
    unknown = set(entry) - {"name", "key", "rights", "entities", "pairs"}
    if unknown:
        raise KeysError(f"A key has no {quoted(sorted(map(str, unknown))[0])}.")
    return _key(
        str(entry["name"]),
        _secret(entry["key"], environ),
        list(entry.get("rights", ["send", "listen"])),
        list(entry.get("entities", ["*"])),
        list(entry.get("pairs", ["*"])),
    )


def _secret(given: Any, environ: Mapping[str, str]) -> str:
    if isinstance(given, str):
        return given
    if "file" in given:
        return Path(given["file"]).read_text(encoding="utf-8").strip()
    return environ.get(str(given["env"]), "")


def _key(
    name: str, value: str, rights: Sequence[str], entities: Sequence[str], pairs: Sequence[str] = ("*",)
) -> GatewayKey:
    chosen = frozenset(_RIGHTS.get(str(right).strip().lower(), "") for right in rights)
    if not NAME.fullmatch(name) or "" in chosen:
        raise KeysError(f"The key {quoted(name)} needs a plain name, and rights among send, listen and manage.")
    if len(value) < 16:
        raise KeysError(f"The key {quoted(name)} is missing, or shorter than 16 characters.")
    for what, patterns in (("entity", entities), ("pair", pairs)):
        if not all(isinstance(one, str) and one for one in patterns) or not patterns:
            text = f"The key {quoted(name)} is for no {what}: give patterns, or leave them out for all."
            raise KeysError(text)
    return GatewayKey(name, value, ALL_RIGHTS if "Manage" in chosen else chosen, tuple(entities), pairs=tuple(pairs))


class KeyRing:
    """The keys in force. `watchers` are told when they change."""

    def __init__(self, keys: Sequence[GatewayKey]) -> None:
        self.keys = tuple(keys)
        self.watchers: set[Callable[[], None]] = set()

    def signers(self, path: str, pair: str | None = None) -> list[Signer]:
        """The keys that may vouch for an address of a pair, or of any; all of the pair's for the namespace itself."""
        mine = (key for key in self.keys if pair is None or _matches(pair, key.pairs))
        return [Signer(key) for key in mine if not path or key.is_for(path)]

    def replace(self, keys: Sequence[GatewayKey]) -> bool:
        """Other keys are in force from now on; whether anything changed."""
        if tuple(keys) == self.keys:
            return False
        self.keys = tuple(keys)
        for watcher in tuple(self.watchers):
            watcher()
        return True


# What an application is given: a connection string, as its language or its platform wants it.

VARIABLE: Final = "SERVICEBUS_CONNECTION_STRING"
SNIPPETS: Final[Mapping[str, Callable[[str], str]]] = {
    "env": lambda text: f"{VARIABLE}='{text}'",
    "json": lambda text: json.dumps({"ConnectionStrings": {"ServiceBus": text}}, indent=2),
    "dotnet": lambda text: (
        "// Azure.Messaging.ServiceBus 7.20.1 or newer takes the port of this connection string in clear only;\n"
        "// older ones want 5672 (plain) or 5671 (TLS).\n"
        f'await using var client = new ServiceBusClient("{text}");'
    ),
    "java": lambda text: (
        "ServiceBusSenderClient sender = new ServiceBusClientBuilder()\n"
        f'    .connectionString("{text}")\n'
        '    .sender().queueName("orders").buildClient();'
    ),
    "go": lambda text: f'client, err := azservicebus.NewClientFromConnectionString("{text}", nil)',
    "javascript": lambda text: f'const client = new ServiceBusClient("{text}");',
    "spring": lambda text: f'spring:\n  cloud:\n    azure:\n      servicebus:\n        connection-string: "{text}"',
    "k8s": lambda text: (
        f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: servicebus\nstringData:\n  {VARIABLE}: {json.dumps(text)}"
    ),
}
"""By the name that `--snippet` has."""


def with_file(own: "tuple[GatewayKey, ...]", file: Path | None) -> "tuple[GatewayKey, ...]":
    """These keys and those of a file.

    Raises:
        UsageError: two have the same name, or as `read_keys`.
    """
    found = (*own, *(read_keys(file) if file is not None else ()))
    if len({one.name for one in found}) < len(found):
        raise UsageError("Two keys have the same name.")
    return found
