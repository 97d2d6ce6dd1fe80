"""The keys of sbpair.yaml as one table: their checks, their documentation, the JSON Schema made from them."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sbpair.core.access import HOST, AuthMethod, ControlPlane, Transport
from sbpair.core.durations import parse_duration
from sbpair.core.errors import UsageError
from sbpair.core.failover.machine import DOCUMENTED, POLICIES
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import DEFAULT_VERIFY_INTERVAL_SECONDS, MAX_BACKLOG_QUEUE_COUNT, Verify
from sbpair.core.redact import quoted

__all__ = ["FILE_NAME", "Sourced", "json_schema"]

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
