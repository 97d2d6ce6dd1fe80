"""Rules of subscriptions through the official data-plane client."""

import datetime as dt
from collections.abc import Callable

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from sbpair.amqp.types import Described, Timestamp

from .conftest import AdminServer

TYPED = {
    "text": "str1",
    "int": 2,
    "long": 2**31 + 3,
    "negative": -5,
    "bool": False,
    "double": 1.5,
    "when": dt.datetime(2020, 7, 5, 11, 12, 13),
    "span": dt.timedelta(days=1, hours=2, minutes=3),
}


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> ServiceBusAdministrationClient:
    admin.create_topic("news")
    admin.create_subscription("news", "sub")
    return admin


def test_a_new_subscription_has_the_default_rule(topic: ServiceBusAdministrationClient) -> None:
    (rule,) = topic.list_rules("news", "sub")
    assert rule.name == "$Default"
    assert type(rule.filter) is TrueRuleFilter
    assert rule.action is None
    assert rule.created_at_utc is not None


def test_correlation_filters_keep_their_typed_properties(topic: ServiceBusAdministrationClient) -> None:
    given = CorrelationRuleFilter(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        label="l",
        session_id="s",
        reply_to_session_id="rs",
        content_type="ct",
        properties=TYPED,
    )
    topic.create_rule("news", "sub", "r", filter=given)
    read = topic.get_rule("news", "sub", "r").filter
    assert type(read) is CorrelationRuleFilter
    for name in ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "content_type"):
        assert getattr(read, name) == getattr(given, name)
    assert read.reply_to_session_id == "rs"
    assert dict(read.properties or {}) == TYPED


def test_sql_filters_and_actions_keep_their_parameters(topic: ServiceBusAdministrationClient) -> None:
    topic.create_rule(
        "news",
        "sub",
        "r",
        filter=SqlRuleFilter("Priority = @p AND a < 'b&c'", parameters={"@p": "high"}),
        action=SqlRuleAction("SET Priority = @q", parameters={"@q": 7}),
    )
    rule = topic.get_rule("news", "sub", "r")
    assert type(rule.filter) is SqlRuleFilter
    assert rule.filter.sql_expression == "Priority = @p AND a < 'b&c'"
    assert dict(rule.filter.parameters or {}) == {"@p": "high"}
    assert type(rule.action) is SqlRuleAction
    assert rule.action.sql_expression == "SET Priority = @q"
    assert dict(rule.action.parameters or {}) == {"@q": 7}


@pytest.mark.parametrize("kind", [TrueRuleFilter, FalseRuleFilter])
def test_constant_filters(topic: ServiceBusAdministrationClient, kind: Callable[[], SqlRuleFilter]) -> None:
    topic.create_rule("news", "sub", "r", filter=kind())
    assert type(topic.get_rule("news", "sub", "r").filter) is kind


def test_a_rule_is_replaced_deleted_and_listed_in_order(topic: ServiceBusAdministrationClient) -> None:
    for name in ("b", "a"):
        topic.create_rule("news", "sub", name, filter=SqlRuleFilter("x = 1"), action=SqlRuleAction("SET y = 2"))
    assert [rule.name for rule in topic.list_rules("news", "sub")] == ["$Default", "a", "b"]
    rule = topic.get_rule("news", "sub", "a")
    rule.filter, rule.action = CorrelationRuleFilter(correlation_id="new"), None
    topic.update_rule("news", "sub", rule)
    changed = topic.get_rule("news", "sub", "a")
    assert isinstance(changed.filter, CorrelationRuleFilter)
    assert (changed.filter.correlation_id, changed.action) == ("new", None)
    topic.delete_rule("news", "sub", "a")
    assert [one.name for one in topic.list_rules("news", "sub")] == ["$Default", "b"]


def test_rules_that_are_refused(topic: ServiceBusAdministrationClient) -> None:
    topic.create_rule("news", "sub", "r", filter=SqlRuleFilter("x = 1"))
    with pytest.raises(ResourceExistsError):
        topic.create_rule("news", "sub", "r")
    with pytest.raises(ResourceNotFoundError):
        topic.get_rule("news", "sub", "missing")
    with pytest.raises(ResourceNotFoundError):
        topic.delete_rule("news", "sub", "missing")
    rule = topic.get_rule("news", "sub", "r")
    rule.name = "missing"
    with pytest.raises(ResourceNotFoundError):
        topic.update_rule("news", "sub", rule)
    for expression in ("x = ", "x == 1"):
        with pytest.raises(HttpResponseError) as caught:
            topic.create_rule("news", "sub", "bad", filter=SqlRuleFilter(expression))
        assert caught.value.status_code == 400
    with pytest.raises(HttpResponseError):
        topic.create_rule("news", "sub", "bad", filter=CorrelationRuleFilter())
    assert [one.name for one in topic.list_rules("news", "sub")] == ["$Default", "r"]


def test_the_broker_gets_the_values_with_their_types(
    server: AdminServer, topic: ServiceBusAdministrationClient
) -> None:
    topic.create_rule("news", "sub", "r", filter=CorrelationRuleFilter(properties=TYPED))
    kept = server.run(lambda: server.namespace.get_rule("news", "sub", "r"))
    assert kept is not None
    properties = getattr(kept.description.filter, "properties", {})
    assert {name: properties[name] for name in ("text", "int", "long", "negative", "bool", "double")} == {
        name: TYPED[name] for name in ("text", "int", "long", "negative", "bool", "double")
    }
    assert properties["bool"] is False
    assert properties["when"] == Timestamp(1593947533000)
    assert properties["span"] == Described("com.microsoft:timespan", 937800000000)
