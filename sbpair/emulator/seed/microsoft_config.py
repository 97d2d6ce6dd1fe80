"""The `Config.json` of Microsoft's Service Bus emulator as a seed: the same entities under the same names.

    {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [...], "Topics": [...]}], "Logging": {...}}}

Its properties are those of the administration API in their .NET spelling; durations are ISO 8601 texts, and an empty
text means that a property is not set ("Configure the Azure Service Bus emulator").
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sbpair.emulator.admin.fields import capitalized, parse_duration
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.seed import SeedError, below, checked, mapping_of, only, settable, wrong
from sbpair.lines import LinedMapping, like, line_of

_Kind = Any
"""The class of a description."""
_SECONDS = "_seconds"
_NAMED = ("Name", "Properties")


def is_microsoft_config(document: object) -> bool:
    """Whether a document is such a file rather than a seed of ours."""
    return isinstance(document, Mapping) and "UserConfig" in document


def seed_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Seeds by namespace.

    Raises:
        SeedError: the file has another form; the text says where.
    """
    config = below(document, "UserConfig", "UserConfig")
    only(config, ("Namespaces", "Logging"), "UserConfig")
    return {
        name: {
            "queues": _by_name(
                (queue, _properties(body, where, QueueDescription), line)
                for queue, body, where, line in _named(one.get("Queues"), f"{name}.Queues")
            ),
            "topics": _by_name(
                (topic, _topic(body, where), line)
                for topic, body, where, line in _named(one.get("Topics"), f"{name}.Topics", (*_NAMED, "Subscriptions"))
            ),
        }
        for name, one, _, _ in _named(
            config.get("Namespaces"), "UserConfig.Namespaces", ("Name", "Type", "Queues", "Topics")
        )
    }


def _by_name(entries: Iterable[tuple[str, Any, int | None]]) -> LinedMapping:
    """Entries by their names, with the lines that the file has them in."""
    listed = list(entries)
    made = LinedMapping((name, value) for name, value, _ in listed)
    made.lines = {name: line for name, _, line in listed if line is not None}
    return made


def _topic(body: Mapping[str, Any], where: str) -> LinedMapping:
    topic = _properties(body, where, TopicDescription)
    topic["subscriptions"] = _by_name(
        (name, _subscription(one, place), line)
        for name, one, place, line in _named(body.get("Subscriptions"), f"{where}.Subscriptions", (*_NAMED, "Rules"))
    )
    return topic


def _subscription(body: Mapping[str, Any], where: str) -> LinedMapping:
    subscription = _properties(body, where, SubscriptionDescription)
    rules = [(rule, _rule(one, at), line) for rule, one, at, line in _named(body.get("Rules"), f"{where}.Rules")]
    if rules:
        subscription["rules"] = _by_name(rules)
    return subscription


def _rule(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = below(body, "Properties", f"{where}.Properties")
    kind = given.get("FilterType", "Sql")
    rule: dict[str, Any] = {}
    if kind == "Correlation":
        told = below(given, "CorrelationFilter", f"{where}.Properties.CorrelationFilter")
        spelled = {_snake(name): name for name, value in told.items() if value != ""}
        rule["correlation"] = like(told, {name: told[original] for name, original in spelled.items()}, spelled)
    elif kind == "Sql":
        rule["sql"] = below(given, "SqlFilter", f"{where}.Properties.SqlFilter").get("SqlExpression", "1=1")
    else:
        line = line_of(given, "FilterType")
        raise SeedError(f"{where}.Properties.FilterType: Correlation or Sql, not {str(kind)[:40]!r}", line)
    if action := below(given, "Action", f"{where}.Properties.Action").get("SqlExpression"):
        rule["action"] = action
    return rule


def _properties(body: Mapping[str, Any], where: str, kind: _Kind) -> LinedMapping:
    types = settable(kind)
    known = {capitalized(name.removesuffix(_SECONDS)): name for name in types}
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    given = below(body, "Properties", f"{where}.Properties")
    only(given, tuple(known), f"{where}.Properties")
    for spelled, value in given.items():
        name, place = known[spelled], f"{where}.Properties.{spelled}"
        if value == "":
            continue
        if name.endswith(_SECONDS):
            try:
                value = parse_duration(value)
            except (ValueError, AttributeError) as error:
                duration = "an ISO 8601 duration such as PT1M"
                raise wrong(given, spelled, f"{where}.Properties", duration) from error
        values[name] = checked(value, types[name], place, line_of(given, spelled))
        names[name] = spelled
    return like(given, values, names)


def _named(
    listed: object, where: str, known: tuple[str, ...] = _NAMED
) -> list[tuple[str, Mapping[str, Any], str, int | None]]:
    """Name, object, place and line of each entry of a list; in an entry only these are `known`."""
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise SeedError(f"{where}: a list is expected")
    found: list[tuple[str, Mapping[str, Any], str, int | None]] = []
    for index, described in enumerate(listed):
        line = line_of(listed, index)
        body = mapping_of(described, f"{where}[{index}]", line)
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise SeedError(f"{where}[{index}]: `Name` is missing", line)
        if name.lower() in {other[0].lower() for other in found}:
            raise SeedError(f"{where}.{name}: there are two of this name", line)
        only(body, known, f"{where}.{name}")
        found.append((name, body, f"{where}.{name}", line))
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
