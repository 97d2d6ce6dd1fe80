"""Descriptions of entities to and from JSON, for the durable store. Lossless, AMQP types in rules included."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sbpair.amqp.codec import decode_all, encode
from sbpair.emulator.entities import (
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

Description = QueueDescription | TopicDescription | SubscriptionDescription
AnyDescription = TypeVar("AnyDescription", QueueDescription, TopicDescription, SubscriptionDescription)
Json = dict[str, Any]

_FILTERS: dict[str, type[RuleFilter]] = {
    kind.__name__: kind for kind in (SqlFilter, TrueFilter, FalseFilter, CorrelationFilter)
}
_PLAIN = (bool, int, float, str, type(None))


def description_to_json(description: Description) -> Json:
    """Any description as a JSON object."""
    fields = {name: getattr(description, name) for name in description.__dataclass_fields__}
    rules = fields.pop("authorization_rules", None)
    if rules is not None:
        fields["authorization_rules"] = [rule_to_json(rule) for rule in rules]
    if "client_affine" in fields:
        fields["client_affine"] = _values_to_json(fields["client_affine"])
    return fields


def description_from_json(kind: type[AnyDescription], stored: Json) -> AnyDescription:
    """The description of that kind."""
    fields = dict(stored)
    fields["status"] = EntityStatus(fields["status"])
    if "authorization_rules" in fields:
        fields["authorization_rules"] = tuple(rule_from_json(rule) for rule in fields["authorization_rules"])
    if "client_affine" in fields:
        fields["client_affine"] = _values_from_json(fields["client_affine"])
    return kind(**fields)


def rule_to_json(rule: AuthorizationRule) -> Json:
    """A shared access rule."""
    return {**asdict(rule), "rights": sorted(rule.rights)}


def rule_from_json(stored: Json) -> AuthorizationRule:
    """The shared access rule."""
    return AuthorizationRule(**{**stored, "rights": frozenset(stored["rights"])})


def filter_rule_to_json(description: RuleDescription) -> Json:
    """A subscription's rule without its name."""
    action = description.action
    return {
        "kind": type(description.filter).__name__,
        "filter": _part_to_json(description.filter),
        "action": None if action is None else _part_to_json(action),
    }


def filter_rule_from_json(stored: Json) -> RuleDescription:
    """The subscription's rule."""
    action = stored["action"]
    return RuleDescription(
        filter=_FILTERS[stored["kind"]](**_part_from_json(stored["filter"])),
        action=None if action is None else SqlAction(**_part_from_json(action)),
    )


def _part_to_json(part: RuleFilter | SqlAction) -> Json:
    fields = {name: getattr(part, name) for name in part.__dataclass_fields__}
    return {name: _values_to_json(value) if isinstance(value, Mapping) else value for name, value in fields.items()}


def _part_from_json(stored: Json) -> Json:
    return {name: _values_from_json(value) if isinstance(value, dict) else value for name, value in stored.items()}


def _values_to_json(values: Mapping[str, object]) -> Json:
    return {name: _value_to_json(value) for name, value in values.items()}


def _values_from_json(stored: Json) -> dict[str, object]:
    return {name: _value_from_json(value) for name, value in stored.items()}


def _value_to_json(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, timedelta):
        return {"microseconds": value // timedelta(microseconds=1)}
    return {"amqp": encode(value).hex()}


def _value_from_json(stored: object) -> object:
    if not isinstance(stored, dict):
        return stored
    if "datetime" in stored:
        return datetime.fromisoformat(stored["datetime"])
    if "microseconds" in stored:
        return timedelta(microseconds=stored["microseconds"])
    return decode_all(bytes.fromhex(stored["amqp"]))
