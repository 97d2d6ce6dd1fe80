"""Fault rules as text (command line) and as JSON (control endpoint)."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from sbpair.emulator.faults import ActiveFault, FaultError, FaultKind, FaultRule, Operation

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


_MOST_SECONDS = 10 * 365 * 86_400.0
_MOST_COUNTED = 2**63
_MOST_CHARACTERS = 80


def _text_of(value: object) -> str:
    """The text of a JSON value; too long is as good as wrong."""
    if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) > _MOST_COUNTED):
        return ""
    return str(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_NAME_CHARACTERS:
        raise FaultError(f"{_shown(value)} is not a text of up to {_MOST_NAME_CHARACTERS} characters")
    return value


_MOST_NAME_CHARACTERS = 1024


def _shown(value: object) -> str:
    """The value in a message, cut where it gets too long to be read."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "what is there"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _duration(value: object) -> float:
    """Seconds of `30`, `30s`, `250ms`, `2m`, `1h`."""
    match = _DURATION.fullmatch(_text_of(value).strip())
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match is not None else math.inf
    if seconds > _MOST_SECONDS:
        raise FaultError(f"{_shown(value)} is not a duration such as 30s, 250ms or 2m")
    return seconds


def _whole(value: object) -> int:
    try:
        number = int(_text_of(value))
    except ValueError:
        raise FaultError(f"{_shown(value)} is not a whole number") from None
    if abs(number) > _MOST_COUNTED:
        raise FaultError(f"{_shown(value)} is more than is ever counted")
    return number


def _number(value: object) -> float:
    try:
        return float(_text_of(value))
    except ValueError:
        raise FaultError(f"{_shown(value)} is not a number") from None


def _operation(value: object) -> Operation:
    try:
        return Operation(str(value))
    except ValueError:
        raise FaultError(f"unknown operation {_shown(value)}; one of {', '.join(Operation)}") from None


_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "entity": ("entity", _name),
    "operation": ("operation", _operation),
    "after": ("after", _whole),
    "nth": ("nth", _whole),
    "every": ("every", _whole),
    "probability": ("probability", _number),
    "count": ("count", _whole),
    "at": ("at_seconds", _duration),
    "for": ("duration_seconds", _duration),
    "rtt": ("round_trip_seconds", _duration),
    "lock": ("lock_seconds", _duration),
    "condition": ("condition", _name),
    "description": ("description", _name),
    "status": ("status", _whole),
}
"""The word of the text and JSON forms -> field and reader. Durations in JSON are seconds or such texts."""

_ALIASES = {"op": "operation", "p": "probability"}


def parse_text(text: str) -> FaultRule:
    """`kind[:key=value,...]` -> rule. A comma inside a value is written `\\,`."""
    kind, _, rest = text.strip().partition(":")
    fields: dict[str, object] = {"kind": kind}
    for part in filter(None, (piece.strip() for piece in re.split(r"(?<!\\),", rest))):
        key, equals, value = part.partition("=")
        key = _ALIASES.get(key.strip(), key.strip())
        if not equals:
            raise FaultError(f"{_shown(part)} is not key=value")
        if key in fields:
            raise FaultError(f"{_shown(key)} is given twice")
        fields[key] = value.strip().replace("\\,", ",")
    return parse_json(fields)


def parse_json(fields: Mapping[str, object]) -> FaultRule:
    """A mapping with `kind` and the words of the text form -> rule; FaultError says what is wrong with it."""
    if not isinstance(fields, Mapping):
        raise FaultError("a fault is an object with a kind")
    values = dict(fields)
    kind = values.pop("kind", None)
    if kind not in list(FaultKind):
        raise FaultError(f"unknown fault {_shown(kind)}; one of {', '.join(FaultKind)}")
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _KEYS:
            raise FaultError(f"unknown key {_shown(key)}; known are {', '.join(_KEYS)}")
        name, read = _KEYS[key]
        if value is not None:
            arguments[name] = read(value)
    return FaultRule(FaultKind(str(kind)), **arguments)


def rule_to_json(rule: FaultRule) -> dict[str, object]:
    """The mapping that `parse_json` takes back; only what was said."""
    default = {"entity": "*", "operation": Operation.ANY, "after": 0, "at_seconds": 0.0}
    said = {key: getattr(rule, name) for key, (name, _) in _KEYS.items() if getattr(rule, name) != default.get(name)}
    return {"kind": str(rule.kind), **{key: _plain(value) for key, value in said.items()}}


def rule_to_text(rule: FaultRule) -> str:
    """The text form that `parse_text` takes back."""
    fields = rule_to_json(rule)
    kind = str(fields.pop("kind"))
    pairs = ",".join(f"{key}={_text(key, value)}" for key, value in fields.items())
    return f"{kind}:{pairs}" if pairs else kind


def fault_to_json(fault: ActiveFault) -> dict[str, object]:
    """A rule in force with its id, its text and what it has seen and hit."""
    ends_at = None if fault.ends_at == float("inf") else fault.ends_at
    return {
        "id": fault.id,
        "text": rule_to_text(fault.rule),
        "rule": rule_to_json(fault.rule),
        "begins_at": fault.begins_at,
        "ends_at": ends_at,
        "seen": fault.seen,
        "hits": fault.hits,
    }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Operation) else value


def _text(key: str, value: object) -> str:
    if _KEYS[key][1] is _duration:
        return f"{value:g}s" if float(str(value)) >= 1 else f"{float(str(value)) * 1000:g}ms"
    return str(value).replace(",", "\\,")
