"""A namespace's first contents from plain data (`sbpair emulator --seed FILE`).

    contoso-weu:
      tier: Standard              # or Basic, Premium; Premium may have `partitions: 2` or 4
      queues:
        orders: {}
        invoices: {requires_session: true, lock_duration_seconds: 30}
      topics:
        events:
          subscriptions:
            all: {}
            big: {rules: {large: {sql: "amount > 1000"}}}
      keys:
        sender: [Send]
        reader: {rights: [Listen], key: {env: READER_KEY}}
        RootManageSharedAccessKey: {key: {env: ROOT_KEY}}

Property names are those of the descriptions in `entities.py`. What exists already is left as it is, so that a durable
namespace can be started with its seed again and again. A key that the seed gives is set each time.
"""

import difflib
import math
import re
import typing
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar

from sbpair.emulator.entities import (
    ROOT_KEY_NAME,
    CorrelationFilter,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.emulator.namespace import Namespace, new_auth_rule

_Description = TypeVar("_Description", QueueDescription, TopicDescription, SubscriptionDescription, CorrelationFilter)


class SeedError(ValueError):
    """The seed names something that does not exist or has the wrong form; the text says where."""


def plant(namespace: Namespace, seed: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
    """Create what the seed of one namespace lists and the namespace does not have. `environ` is where its keys may be.

    Raises:
        SeedError: an unknown key or a wrong form. EntityError: the namespace refuses an entity.
    """
    _only(_mapping(seed, namespace.name), ("tier", "partitions", "queues", "topics", "keys"), namespace.name)
    for path, fields in _mapping(seed.get("queues"), "queues").items():
        description = _build(QueueDescription, fields, path)
        if namespace.get_queue(path) is None:
            namespace.create_queue(path, description)
    for path, fields in _mapping(seed.get("topics"), "topics").items():
        _plant_topic(namespace, path, dict(_mapping(fields, path)))
    chosen = chosen_keys(seed, environ or {})
    for name, body in _mapping(seed.get("keys"), "keys").items():
        if name not in namespace.auth_rules:
            now, keys = namespace.clock.now(), namespace.key_source(name)
            namespace.set_auth_rule(new_auth_rule(name, _rights(body, name), now=now, keys=keys))
    namespace.choose_keys(chosen)


def chosen_keys(seed: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys that the seed of a namespace gives, by the name of their rule.

    Raises:
        SeedError: a wrong form, or a variable that is not set.
    """
    chosen = {}
    for name, body in _mapping(seed.get("keys"), "keys").items():
        where = f"keys.{name}"
        if not isinstance(body, Mapping):
            continue
        _only(_mapping(body, where), ("rights", "key"), where)
        key = body.get("key")
        if isinstance(key, Mapping):
            _only(_mapping(key, where), ("env",), f"{where}.key")
            variable = key.get("env")
            key = environ.get(variable, "") if isinstance(variable, str) else None
            if key == "":
                raise SeedError(f"{where}.key: the variable {str(variable)[:40]} is not set")
        if key is None and "key" not in body:
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise SeedError(f"{where}.key: a text of 1 to 256 printable characters without ; is expected")
        chosen[name] = key
    return chosen


_KEY = re.compile(r"[!-:<-~]{1,256}")
"""Whatever can stand in a connection string."""


def _plant_topic(namespace: Namespace, path: str, fields: dict[str, Any]) -> None:
    subscriptions = _mapping(fields.pop("subscriptions", None), f"{path}.subscriptions")
    description = _build(TopicDescription, fields, path)
    if namespace.get_topic(path) is None:
        namespace.create_topic(path, description)
    for name, subscription in subscriptions.items():
        _plant_subscription(namespace, path, name, dict(_mapping(subscription, f"{path}.{name}")))


def _plant_subscription(namespace: Namespace, topic: str, name: str, fields: dict[str, Any]) -> None:
    where = f"{topic}.subscriptions.{name}"
    rules = {
        rule: _rule(dict(_mapping(body, f"{where}.{rule}")), f"{where}.{rule}")
        for rule, body in _mapping(fields.pop("rules", None), f"{where}.rules").items()
    }
    description = _build(SubscriptionDescription, fields, where)
    if namespace.get_subscription(topic, name) is not None:
        return
    namespace.create_subscription(topic, name, description)
    for rule, rule_description in rules.items():
        namespace.create_rule(topic, name, rule, rule_description)
    if rules:
        namespace.delete_rule(topic, name, "$Default")


def _rule(fields: dict[str, Any], where: str) -> RuleDescription:
    _only(fields, ("sql", "correlation", "action"), where)
    for name in ("sql", "action"):
        if not isinstance(fields.get(name, ""), str):
            raise SeedError(f"{where}: `{name}` is a SQL text")
    action = SqlAction(expression=fields["action"]) if "action" in fields else None
    if "correlation" in fields:
        return RuleDescription(filter=_build(CorrelationFilter, fields["correlation"], where), action=action)
    if "sql" not in fields:
        raise SeedError(f"{where}: a rule has `sql` or `correlation`")
    return RuleDescription(filter=SqlFilter(expression=fields["sql"]), action=action)


def _build(kind: type[_Description], fields: object, where: str) -> _Description:
    values = dict(_mapping(fields, where))
    described: Any = kind
    kinds = _kinds(described)
    _only(values, tuple(kinds), where)
    checked: dict[str, Any] = {name: _value(value, kinds[name], f"{where}.{name}") for name, value in values.items()}
    return kind(**checked)


@cache
def _kinds(kind: Any) -> dict[str, Any]:
    """What a seed can set of a description, and of which type each is."""
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if name not in ("authorization_rules", "client_affine")}


def _value(value: object, hint: Any, where: str) -> object:
    """The value, if it is of the annotated type.

    Raises:
        SeedError: it is not.
    """
    kinds = set(typing.get_args(hint)) or {hint}
    if hint is EntityStatus and isinstance(value, str) and value in list(EntityStatus):
        return EntityStatus(value)
    if typing.get_origin(hint) is Mapping and isinstance(value, Mapping) and all(map(_is_plain, value.items())):
        return dict(value)
    if type(value) in kinds or (value is None and NoneType in kinds) or (float in kinds and type(value) is int):
        if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
            raise SeedError(f"{where}: the number is out of range")
        return value
    names = ", ".join(sorted(getattr(one, "__name__", str(one)) for one in kinds))
    raise SeedError(f"{where}: a value of type {type(value).__name__} where {names} is expected")


_MOST = 2**53
"""As far as whole numbers and seconds go; NaN and infinity are beyond it."""


def _is_plain(entry: tuple[object, object]) -> bool:
    name, value = entry
    return isinstance(name, str) and isinstance(value, str | int | float | bool) and not _is_odd(value)


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _rights(value: object, name: str) -> set[str]:
    known = {"Manage", "Send", "Listen"}
    if isinstance(value, Mapping):
        value = value.get("rights", list(known) if name == ROOT_KEY_NAME else None)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one in known for one in value):
        raise SeedError(f"keys.{name}: rights are a list out of Manage, Send, Listen")
    return known if "Manage" in value else set(value)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SeedError(f"{where}: a mapping of names to properties is expected")
    for name in value:
        if not isinstance(name, str):
            raise SeedError(f"{where}: a name is a text; put {str(name)[:40]!r} in quotes")
    return value


def _only(fields: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SeedError(f"{where}: unknown key {name[:40]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
