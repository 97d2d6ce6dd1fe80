"""The `Config.json` of Microsoft's Service Bus emulator as a seed: the same entities under the same names.

    {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [...], "Topics": [...]}], "Logging": {...}}}

Its properties are those of the administration API in their .NET spelling; durations are ISO 8601 texts, and an empty
text means that a property is not set ("Configure the Azure Service Bus emulator").
"""

import re
from collections.abc import Mapping
from typing import Any

from sbpair.emulator.admin.fields import parse_duration
from sbpair.emulator.seed import SeedError

_DURATIONS = frozenset(
    {"lock_duration", "default_message_time_to_live", "duplicate_detection_history_time_window", "auto_delete_on_idle"}
)


def is_microsoft_config(document: object) -> bool:
    """Whether a document is such a file rather than a seed of ours."""
    return isinstance(document, Mapping) and "UserConfig" in document


def seed_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Seeds by namespace.

    Raises:
        SeedError: the file has another form; the text says where.
    """
    config = _object(document["UserConfig"], "UserConfig")
    return {
        name: {
            "queues": _entities(one.get("Queues"), f"{name}.Queues"),
            "topics": {
                topic: {**_properties(body, where), "subscriptions": _subscriptions(body, where)}
                for topic, body, where in _named(one.get("Topics"), f"{name}.Topics")
            },
        }
        for name, one, _ in _named(config.get("Namespaces"), "UserConfig.Namespaces")
    }


def _entities(listed: object, where: str) -> dict[str, dict[str, Any]]:
    found = {name: _properties(body, place) for name, body, place in _named(listed, where)}
    # What others forward to has to be there first.
    return dict(sorted(found.items(), key=lambda entry: any(name.startswith("forward_") for name in entry[1])))


def _subscriptions(topic: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    found = {}
    for name, body, place in _named(topic.get("Subscriptions"), f"{where}.Subscriptions"):
        rules = {rule: _rule(one, at) for rule, one, at in _named(body.get("Rules"), f"{place}.Rules")}
        found[name] = {**_properties(body, place), **({"rules": rules} if rules else {})}
    return found


def _rule(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = _object(body.get("Properties"), f"{where}.Properties")
    kind = given.get("FilterType", "Sql")
    rule: dict[str, Any] = {}
    if kind == "Correlation":
        told = _object(given.get("CorrelationFilter"), f"{where}.Properties.CorrelationFilter")
        rule["correlation"] = {_snake(name): value for name, value in told.items() if value != ""}
    elif kind == "Sql":
        rule["sql"] = _object(given.get("SqlFilter"), f"{where}.Properties.SqlFilter").get("SqlExpression", "1=1")
    else:
        raise SeedError(f"{where}.Properties.FilterType: Correlation or Sql, not {str(kind)[:40]!r}")
    if action := _object(given.get("Action"), f"{where}.Properties.Action").get("SqlExpression"):
        rule["action"] = action
    return rule


def _properties(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for spelled, value in _object(body.get("Properties"), f"{where}.Properties").items():
        name = _snake(spelled)
        if value == "":
            continue
        if name not in _DURATIONS:
            values[name] = value
            continue
        try:
            values[f"{name}_seconds"] = parse_duration(value)
        except (ValueError, AttributeError) as error:
            raise SeedError(f"{where}.Properties.{spelled}: an ISO 8601 duration such as PT1M is expected") from error
    return values


def _named(listed: object, where: str) -> list[tuple[str, Mapping[str, Any], str]]:
    """Name, object and place of each entry of a list."""
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise SeedError(f"{where}: a list is expected")
    found = []
    for index, one in enumerate(listed):
        body = _object(one, f"{where}[{index}]")
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise SeedError(f"{where}[{index}]: `Name` is missing")
        found.append((name, body, f"{where}.{name}"))
    return found


def _object(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SeedError(f"{where}: an object is expected")
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
