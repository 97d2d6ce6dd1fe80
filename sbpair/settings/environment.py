"""Environment variables: every key has one; those of pairs and namespaces apply to the pair in use."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from sbpair.core.errors import ConfigurationError, SbpairError, UsageError
from sbpair.core.redact import quoted
from sbpair.settings.keys import (
    NAMESPACE_KEYS,
    PAIR_KEYS,
    ROOT_KEYS,
    SIDES,
    Key,
    Sourced,
    check_pair_name,
    secret_reference,
)
from sbpair.settings.state import EMULATOR_KEY

__all__ = ["environment_names", "to_environment"]

ENVIRONMENT_PAIR = "environment"


def environment_names() -> dict[str, str]:
    """Environment variable -> what it sets. Pair and namespace variables apply to the pair in use."""
    names = {f"SBPAIR_{key.name.upper()}": key.doc for key in ROOT_KEYS if key.name != "version"}
    names |= {f"SBPAIR_{key.name.upper()}": key.doc for key in PAIR_KEYS}
    for side in SIDES:
        docs = {key.name: key.doc for key in NAMESPACE_KEYS} | {"connection_string": _CONNECTION_STRING}
        names |= {f"SBPAIR_{side.upper()}_{name.upper()}": f"{side}: {doc}" for name, doc in docs.items()}
    names |= {EMULATOR_KEY: "Key of RootManageSharedAccessKey of the embedded namespaces"}
    names |= _OF_COMMANDS
    return names | {"SBPAIR_CONFIG": "Path of the configuration file", "SBPAIR_PAIR": "The pair in use"}


CONNECTION_STRINGS = "SBPAIR_CONNECTION_STRING"
_CONNECTION_STRING = "The connection string itself; one with EntityPath serves that entity alone"
_OF_COMMANDS = {
    CONNECTION_STRINGS: "Connection strings of namespaces, one a line, as --connection-string-file reads them",
    "SBPAIR_TIMEOUT": "Time-out of one request, for commands that are given no --timeout",
    "SBPAIR_REASON": "Why something is done, for ledgers and the operations log, without --reason",
    "SBPAIR_JAVA": "Java that Spark runs on: its home folder or program",
    "SBPAIR_JOURNAL": "Journal of active/active consumers, as for `replicate consume --journal`",
    "SBPAIR_COSMOS_KEY": "Key of the Cosmos DB account of a journal, unless --journal-key names another variable",
}
"""Read by the commands that need them; no keys of a configuration file."""


def from_environment(environ: Mapping[str, str], base: Mapping[str, Sourced]) -> Iterator[tuple[str, Sourced]]:
    known = environment_names()
    for name in environ:
        if name.startswith("SBPAIR_") and name not in known and not name.startswith(_OTHER_VARIABLES):
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigurationError(
                f"Unknown environment variable {quoted(name)}.", hint=f"Did you mean {near[0]}?" if near else None
            )
    if environ.get("SBPAIR_PAIR"):
        try:
            check_pair_name(environ["SBPAIR_PAIR"])
        except UsageError as error:
            raise ConfigurationError(f"SBPAIR_PAIR: {error.message}") from error
        yield "default_pair", Sourced(environ["SBPAIR_PAIR"], "env SBPAIR_PAIR")
    for key in ROOT_KEYS[1:]:
        yield from _variable(environ, f"SBPAIR_{key.name.upper()}", key, key.name)
    target = _environment_target(environ, base)
    if target == ENVIRONMENT_PAIR and not _names_a_namespace(environ, base):
        return
    for key in PAIR_KEYS:
        yield from _variable(environ, f"SBPAIR_{key.name.upper()}", key, f"pairs.{target}.{key.name}")
    for side in SIDES:
        for key in NAMESPACE_KEYS:
            variable = f"SBPAIR_{side.upper()}_{key.name.upper()}"
            yield from _variable(environ, variable, key, f"pairs.{target}.{side}.{key.name}")


_OTHER_VARIABLES = (*_OF_COMMANDS, "SBPAIR_TEST_")


_STAY_HERE = ("connection_string", "auth", "ca_file", "allow_plaintext")
"""Of a namespace: secrets, and what is so on one machine alone."""


def to_environment(values: Mapping[str, Sourced], pair: str) -> dict[str, str]:
    """The variables that say what is configured of a pair, but for secrets, credentials and this machine's files."""
    keys = {f"SBPAIR_{key.name.upper()}": f"pairs.{pair}.{key.name}" for key in PAIR_KEYS}
    for side in SIDES:
        for key in NAMESPACE_KEYS:
            if key.name not in _STAY_HERE:
                keys[f"SBPAIR_{side.upper()}_{key.name.upper()}"] = f"pairs.{pair}.{side}.{key.name}"
    return {name: _as_text(values[key].value) for name, key in keys.items() if key in values}


def _as_text(value: Any) -> str:
    """A checked value in the words that its key's check reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".") + "s"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _environment_target(environ: Mapping[str, str], base: Mapping[str, Sourced]) -> str:
    """The pair that environment variables speak of: the chosen one, the only one, or one made of them alone."""
    chosen = environ.get("SBPAIR_PAIR") or (base["default_pair"].value if "default_pair" in base else None)
    names = {key.split(".")[1] for key in base if key.startswith("pairs.")}
    return str(chosen or (next(iter(names)) if len(names) == 1 else ENVIRONMENT_PAIR))


def _names_a_namespace(environ: Mapping[str, str], base: Mapping[str, Sourced]) -> bool:
    """Whether there is a pair for these variables: one of a file, or one that they say the namespaces of.

    A certificate or an interval alone makes no pair.
    """
    if any(key.startswith(f"pairs.{ENVIRONMENT_PAIR}.") for key in base):
        return True
    names = (f"SBPAIR_{side.upper()}_{key}" for side in SIDES for key in ("NAMESPACE", "CONNECTION_STRING"))
    return any(environ.get(name) for name in names)


def _variable(environ: Mapping[str, str], name: str, key: Key, target: str) -> Iterator[tuple[str, Sourced]]:
    raw = environ.get(name)
    if not raw:
        return
    if key.check is secret_reference:
        yield target, Sourced({"env": name}, f"env {name}")
        return
    try:
        yield target, Sourced(key.check(raw), f"env {name}")
    except SbpairError as error:
        raise ConfigurationError(f"{name} {error.message}") from error
