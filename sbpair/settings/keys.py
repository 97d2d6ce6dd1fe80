"""The keys of sbpair.yaml as one table: their checks, their documentation, the JSON Schema made from them."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.core.access import HOST, AuthMethod, ControlPlane, Transport
from sbpair.core.durations import parse_duration
from sbpair.core.errors import ConfigurationError, SbpairError, UsageError
from sbpair.core.failover.machine import DOCUMENTED, POLICIES
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import DEFAULT_VERIFY_INTERVAL_SECONDS, MAX_BACKLOG_QUEUE_COUNT, Verify
from sbpair.core.redact import quoted

__all__ = ["EMULATOR_KEY", "FILE_NAME", "Sourced", "environment_names", "json_schema", "to_environment"]


FILE_NAME = "sbpair.yaml"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value and where it came from: a flag, `env SBPAIR_AUTH`, `sbpair.yaml:12`, or `default`."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration: how it is checked, what it is for, and its default."""

    name: str
    check: Callable[[Any], Any]
    doc: str
    schema: Mapping[str, Any]
    default: Any = None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError("is not a text")
    if not value.strip().isprintable():
        raise UsageError("has control characters in it")
    return value.strip()


def _namespace(value: Any) -> str:
    """A name or host; whatever else is not repeated, as a connection string is easily put here."""
    text = _text(value)
    if not _NAME_OR_HOST.fullmatch(text):
        raise UsageError("is neither the name nor the host of a namespace, such as contoso-weu")
    return text


def _of_arm(value: Any) -> str:
    """A subscription id or the name of a resource group: one segment of a path at the resource manager."""
    text = _text(value)
    if not _ARM_NAME.fullmatch(text):
        raise UsageError("is neither a subscription id nor the name of a resource group")
    return text


def _host(value: Any) -> str:
    text = _text(value)
    if not HOST.fullmatch(text):
        raise UsageError("is no host, such as contoso-alias.servicebus.windows.net or localhost")
    return text


_ARM_NAME = re.compile(r"[\w().-]{0,89}[\w()-]")
_NAME_OR_HOST = re.compile(rf"(?:[a-z]+://)?{HOST.pattern}/?")


def check_pair_name(name: str) -> str:
    """Return `name` if a pair can be called so.

    Raises:
        UsageError: not 1 to 100 letters, digits, hyphens and underscores. A dot separates keys, and whatever else a
            shell gives a meaning has no place in what a completion offers.
    """
    if not _PAIR_NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} is no name for a pair: 1 to {_MOST_NAME_CHARACTERS} letters, digits, hyphens and "
            "underscores, beginning with a letter or digit."
        )
    return name


_MOST_NAME_CHARACTERS = 100
_PAIR_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{_MOST_NAME_CHARACTERS - 1}}}")


def _count(most: int) -> Callable[[Any], int]:
    def run(value: Any) -> int:
        if isinstance(value, str) and value.isascii() and value.strip().isdigit() and len(value) <= _MOST_DIGITS:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError("is not a whole number of 1 or more")
        if value > most:
            raise UsageError(f"is more than {most:,}")
        return value

    return run


_MOST_DIGITS = 18


def _duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError("is not a duration: write 30s, 5m, 1h30m or PT1M")
    return parse_duration(value if isinstance(value, str) else quoted(value))


def _texts(check: Callable[[str], str]) -> Callable[[Any], tuple[str, ...]]:
    def run(value: Any) -> tuple[str, ...]:
        items = [piece.strip() for piece in value.split(",")] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise UsageError("is not a list of texts")
        return tuple(check(item) for item in items if item)

    return run


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise UsageError("is neither true nor false")
    return value


def _policy(value: Any) -> str:
    if value not in POLICIES:
        raise UsageError(f"is {quoted(value)}; known: {', '.join(POLICIES)}")
    return str(value)


def _one_of(enum: type[AuthMethod] | type[ControlPlane] | type[Transport] | type[Verify]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        try:
            return enum(str(value))
        except ValueError:
            known = [member.value for member in enum]
            near = difflib.get_close_matches(str(value)[:_MOST_NAME_CHARACTERS], known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"is {_as_a_word(value)}none of {', '.join(known)}{meant}") from None

    return run


def _as_a_word(value: Any) -> str:
    """The value for a message, if it is a word, which no key is: keys are easily pasted where a name belongs."""
    return f"{value!r}, " if isinstance(value, str) and _WORD.fullmatch(value) else ""


_WORD = re.compile(r"[a-z-]{1,24}")


def secret_reference(value: Any) -> Mapping[str, str]:
    """`{env: NAME}` or `{file: PATH}`; the secret itself in the file is refused (and not repeated)."""
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in ("env", "file"):
        raise UsageError("must be {env: NAME} or {file: PATH}; a secret is never written into the configuration")
    return {str(kind): _text(name) for kind, name in value.items()}


_STRING = {"type": "string"}
_BOOLEAN = {"type": "boolean"}
_DURATION = {"type": "string", "examples": ["1m", "30s", "PT1M"]}
_SECRET = {
    "type": "object",
    "properties": {"env": _STRING, "file": _STRING},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}


def _choice(name: str, enum: Any, doc: str, default: Any = None) -> Key:
    return Key(name, _one_of(enum), doc, {"enum": [member.value for member in enum]}, default)


NAMESPACE_KEYS = (
    Key("namespace", _namespace, "Host or name of the namespace, e.g. contoso-weu.servicebus.windows.net", _STRING),
    Key(
        "host",
        _host,
        "Host, if it does not follow from the name: a Geo-DR alias, a custom endpoint, an embedded namespace",
        _STRING,
    ),
    Key(
        "connection_string",
        secret_reference,
        "Where the connection string is: {env: NAME} or {file: PATH}; one with EntityPath serves that entity alone",
        _SECRET,
    ),
    _choice("auth", AuthMethod, "Credential for this namespace"),
    _choice("management", ControlPlane, "Management API"),
    _choice("transport", Transport, "AMQP directly or over WebSocket"),
    Key("resource_group", _of_arm, "Resource group, for ARM", _STRING),
    Key("subscription", _of_arm, "Subscription id, for ARM", _STRING),
    Key("ca_file", _text, "PEM file of the certificate authority to trust instead of the system's", _STRING),
    Key("management_url", _text, "Base URL of ARM outside the public cloud", _STRING),
    Key(
        "allow_plaintext",
        _flag,
        "Let a connection string with UseDevelopmentEmulator=true send its token in clear beyond this machine",
        _BOOLEAN,
    ),
)
PAIR_KEYS = (
    Key("backlog_queues", _count(MAX_BACKLOG_QUEUE_COUNT), "Number of backlog queues",
        {"type": "integer", "minimum": 1, "maximum": MAX_BACKLOG_QUEUE_COUNT}, 10),
    Key("failover_interval", _duration, "How long failures are tolerated before failover, 0 to 60m", _DURATION, 60.0),
    Key("ping_interval", _duration, "Pause between pings of an unavailable entity, 1s to 30m", _DURATION, 60.0),
    Key("policy", _policy, "Which errors start a failover", {"enum": list(POLICIES)}, DOCUMENTED.name),
    Key("hold_sessions", _flag, "Keep order within a session across failover and failback", _BOOLEAN, False),
    Key("enable_syphon", _flag, "Applications that open the pair bring its backlog back to the primary", _BOOLEAN,
        False),
    _choice("verify", Verify, "Whether applications try beforehand what an outage will need", Verify.WARN),
    Key("verify_interval", _duration, "Pause between such tries, 0 for one only", _DURATION,
        DEFAULT_VERIFY_INTERVAL_SECONDS),
    Key("create_missing", _flag, "Applications create missing backlog queues, with the Manage right", _BOOLEAN, False),
    Key("entities", _texts(check_entity_path), "Queues and topics on the primary the applications send to",
        {"type": "array", "items": _STRING}, ()),
    Key("protected", _texts(_text), "Shell patterns of queues that are never deleted",
        {"type": "array", "items": _STRING}, ()),
    Key("environment", _text, "Shown in colour and in every destructive prompt", _STRING),
)  # fmt: skip
ROOT_KEYS = (
    Key("version", _count(10**9), "Version of this format", {"const": FORMAT_VERSION}, FORMAT_VERSION),
    _choice("auth", AuthMethod, "Credential for every namespace", AuthMethod.DEFAULT),
    Key("default_pair", _text, "The pair used when a command names none", _STRING),
)  # fmt: skip
SIDES = ("primary", "secondary")


def json_schema() -> dict[str, Any]:
    """JSON Schema of sbpair.yaml, for editors."""

    def properties(keys: tuple[Key, ...]) -> dict[str, Any]:
        return {key.name: {**key.schema, "description": key.doc} for key in keys}

    side = {"type": "object", "properties": properties(NAMESPACE_KEYS), "additionalProperties": False}
    pair = {
        "type": "object",
        "properties": {**dict.fromkeys(SIDES, side), **properties(PAIR_KEYS)},
        "required": list(SIDES),
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        "type": "object",
        "properties": {**properties(ROOT_KEYS), "pairs": {"type": "object", "additionalProperties": pair}},
        "required": ["version"],
        "additionalProperties": False,
    }


# Environment variables: every key has one; those of pairs and namespaces apply to the pair in use.

ENVIRONMENT_PAIR = "environment"
EMULATOR_KEY = "SBPAIR_EMULATOR_KEY"
"""Variable with the root key of the embedded namespaces."""


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
