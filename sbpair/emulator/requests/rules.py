"""add-rule, remove-rule, enumerate-rules: the rules of a subscription over AMQP (the JavaScript rule manager).

add         rule-name, rule-description {sql-filter {expression} | correlation-filter {…} | true-filter | false-filter,
            [sql-rule-action {expression}]} -> 200; 409 entity-already-exists.
remove      rule-name -> 200; 404.
enumerate   skip int, top int -> 200 rules: [{rule-description: described list (filter, action, name, created)}];
            204 when there is none from `skip` on.
"""

from collections.abc import Mapping

from sbpair.amqp.types import Described, Int, Ulong
from sbpair.emulator.broker.messages import as_mapping, milliseconds
from sbpair.emulator.broker.topics import Subscription
from sbpair.emulator.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from sbpair.emulator.filters import Rule
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError, EntityError
from sbpair.service import CORRELATION_FIELDS

_RULE, _EMPTY_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER, _CORRELATION_FILTER = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
_SQL_COMPATIBILITY = Int(20)
_CONDITIONS = {400: errors.ARGUMENT_ERROR, 404: errors.NOT_FOUND, 409: errors.ENTITY_EXISTS}


def add_rule(call: Call) -> Answering:
    yield
    owner = _subscription(call)
    description = _description(as_mapping(call.body.get("rule-description")))
    try:
        call.namespace.create_rule(owner.topic.path, owner.name, call.text("rule-name"), description)
    except EntityError as error:
        raise _translated(error) from error
    return Reply.ok()


def remove_rule(call: Call) -> Answering:
    yield
    owner = _subscription(call)
    try:
        call.namespace.delete_rule(owner.topic.path, owner.name, call.text("rule-name"))
    except EntityError as error:
        raise _translated(error) from error
    return Reply.ok()


def enumerate_rules(call: Call) -> Answering:
    """A page of rules, by name."""
    owner = _subscription(call)
    skip, top = max(call.number("skip", 0), 0), max(call.number("top", 100), 0)
    listed = call.namespace.rules(owner.topic.path, owner.name)[skip : skip + top]
    if not listed:
        return Reply.nothing()
    shown = []
    for rule in listed:
        shown.append({"rule-description": _described(rule)})
        yield
    return Reply.ok(rules=shown)


def _subscription(call: Call) -> Subscription:
    entity = call.location.entity
    if isinstance(entity, Subscription):
        return entity
    raise BrokerError(errors.NOT_ALLOWED, f"'{entity.path}' is no subscription and has no rules.")


def _translated(error: EntityError) -> BrokerError:
    return BrokerError(_CONDITIONS.get(error.http_status, errors.NOT_ALLOWED), error.message)


def _description(given: Mapping[object, object]) -> RuleDescription:
    action = as_mapping(given.get("sql-rule-action")).get("expression")
    return RuleDescription(
        filter=_filter(given), action=SqlAction(expression=str(action)) if isinstance(action, str) and action else None
    )


def _filter(given: Mapping[object, object]) -> RuleFilter:
    if "sql-filter" in given:
        return SqlFilter(expression=str(as_mapping(given["sql-filter"]).get("expression", "")))
    if "correlation-filter" in given:
        return _correlation(as_mapping(given["correlation-filter"]))
    return FalseFilter() if "false-filter" in given else TrueFilter()


def _correlation(given: Mapping[object, object]) -> CorrelationFilter:
    texts = {name: given.get(name.replace("_", "-")) for name in CORRELATION_FIELDS}
    properties = {str(key): value for key, value in as_mapping(given.get("properties")).items()}
    return CorrelationFilter(
        **{name: str(value) for name, value in texts.items() if value is not None}, properties=properties
    )


def _described(rule: Rule) -> Described:
    action = rule.action
    encoded_action = (
        _list(_EMPTY_ACTION) if action is None else _list(_SQL_ACTION, action.expression, _SQL_COMPATIBILITY)
    )
    created = milliseconds(rule.created_at)
    return _list(_RULE, _described_filter(rule.filter), encoded_action, rule.name, created)


def _described_filter(condition: RuleFilter) -> Described:
    if isinstance(condition, TrueFilter):
        return _list(_TRUE_FILTER)
    if isinstance(condition, FalseFilter):
        return _list(_FALSE_FILTER)
    if isinstance(condition, SqlFilter):
        return _list(_SQL_FILTER, condition.expression, _SQL_COMPATIBILITY)
    values = [getattr(condition, name) for name in CORRELATION_FIELDS]
    return _list(_CORRELATION_FILTER, *values, dict(condition.properties))


def _list(code: int, *values: object) -> Described:
    return Described(Ulong(code), list(values))
