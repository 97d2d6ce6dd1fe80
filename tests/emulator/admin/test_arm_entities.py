"""Queues, topics, subscriptions and rules through the official resource manager client."""

import datetime as dt

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.servicebus import ServiceBusManagementClient
from azure.mgmt.servicebus.models import SBQueue, SBSubscription, SBTopic

from .conftest import GROUP, SUBSCRIPTION_ID, AdminServer

NEVER_TEXT = "P10675199DT2H48M5.4775807S"
NAMESPACE_ID = (
    f"/subscriptions/{SUBSCRIPTION_ID}/resourceGroups/{GROUP}/providers/Microsoft.ServiceBus/namespaces/primary"
)


def test_a_queue_is_put_read_listed_and_deleted(arm: ServiceBusManagementClient) -> None:
    body = {
        "properties": {
            "maxSizeInMegabytes": 5120,
            "maxDeliveryCount": 2147483647,
            "defaultMessageTimeToLive": NEVER_TEXT,
            "autoDeleteOnIdle": NEVER_TEXT,
            "lockDuration": "PT1M",
            "deadLetteringOnMessageExpiration": True,
            "enableBatchedOperations": True,
            "userMetadata": None,
        }
    }
    arm.queues.create_or_update(GROUP, "primary", "primary~x-servicebus-transfer~0", body)
    queue = arm.queues.get(GROUP, "primary", "primary~x-servicebus-transfer~0")
    assert queue.id == f"{NAMESPACE_ID}/queues/primary~x-servicebus-transfer~0"
    assert queue.name == "primary~x-servicebus-transfer~0"
    assert queue.type == "Microsoft.ServiceBus/namespaces/queues"
    settings = queue.properties
    assert settings is not None
    assert settings.max_size_in_megabytes == 5120
    assert settings.max_delivery_count == 2147483647
    assert settings.default_message_time_to_live is not None
    assert settings.default_message_time_to_live.days == 10675199
    assert settings.lock_duration == dt.timedelta(minutes=1)
    assert settings.dead_lettering_on_message_expiration is True
    assert settings.status == "Active"
    assert settings.user_metadata is None
    assert [one.name for one in arm.queues.list_by_namespace(GROUP, "primary")] == [queue.name]
    arm.queues.delete(GROUP, "primary", "primary~x-servicebus-transfer~0")
    arm.queues.delete(GROUP, "primary", "primary~x-servicebus-transfer~0")
    assert list(arm.queues.list_by_namespace(GROUP, "primary")) == []


def test_an_escaped_slash_names_the_same_queue(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    arm.queues.create_or_update(GROUP, "primary", "a/b", SBQueue())
    assert server.run(lambda: server.namespace.get_queue("a/b")) is not None
    assert arm.queues.get(GROUP, "primary", "a/b").name == "a~b"
    assert arm.queues.get(GROUP, "primary", "A~B").name == "a~b"


def test_models_with_time_spans_are_understood(arm: ServiceBusManagementClient) -> None:
    queue = SBQueue(
        lock_duration=dt.timedelta(minutes=1),
        default_message_time_to_live=dt.timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580),
        requires_session=True,
        status="SendDisabled",
    )
    arm.queues.create_or_update(GROUP, "primary", "q", queue)
    read = arm.queues.get(GROUP, "primary", "q").properties
    assert read is not None
    assert read.lock_duration == dt.timedelta(minutes=1)
    assert read.default_message_time_to_live is not None
    assert read.default_message_time_to_live.days == 10675199
    assert (read.requires_session, read.status) == (True, "SendDisabled")


def test_a_put_replaces_but_keeps_the_keys(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    arm.queues.create_or_update(GROUP, "primary", "q", SBQueue(max_delivery_count=3, user_metadata="old"))
    rule = {"properties": {"rights": ["Send"]}}
    arm.queues.create_or_update_authorization_rule(GROUP, "primary", "q", "own", rule)
    read = arm.queues.get(GROUP, "primary", "q")
    arm.queues.create_or_update(GROUP, "primary", "q", read)
    arm.queues.create_or_update(GROUP, "primary", "q", SBQueue(lock_duration=dt.timedelta(seconds=10)))
    replaced = arm.queues.get(GROUP, "primary", "q").properties
    assert replaced is not None
    assert (replaced.max_delivery_count, replaced.user_metadata) == (10, None)
    assert [one.name for one in arm.queues.list_authorization_rules(GROUP, "primary", "q")] == ["own"]


def test_counts_dates_and_partitions(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    arm.queues.create_or_update(GROUP, "primary", "q", SBQueue(enable_partitioning=True, max_size_in_megabytes=2048))

    def fill() -> None:
        queue = server.namespace.get_queue("q")
        assert queue is not None
        queue.send(b"\x00\x53\x75\xa0\x01x")

    server.run(fill)
    properties = arm.queues.get(GROUP, "primary", "q").properties
    assert properties is not None
    assert properties.max_size_in_megabytes == 2048 * 16
    assert properties.message_count == 1
    assert properties.count_details is not None
    assert properties.count_details.active_message_count == 1
    assert properties.count_details.dead_letter_message_count == 0
    assert properties.count_details.transfer_dead_letter_message_count == 0
    assert properties.size_in_bytes is not None
    assert properties.size_in_bytes > 0
    assert properties.created_at is not None
    assert abs(dt.datetime.now(dt.UTC) - properties.created_at) < dt.timedelta(minutes=1)
    assert properties.updated_at is not None
    assert properties.accessed_at is not None


@pytest.mark.parametrize(
    "properties",
    [
        {"maxDeliveryCount": "ten"},
        {"maxDeliveryCount": True},
        {"requiresSession": "true"},
        {"lockDuration": 60},
        {"lockDuration": "PT10M"},
        {"defaultMessageTimeToLive": "P10675199DT2H48M5.477581S"},
        {"status": "Asleep"},
        {"maxSizeInMegabytes": 100},
        {"forwardTo": "nowhere"},
    ],
)
def test_settings_that_are_refused(arm: ServiceBusManagementClient, properties: dict[str, object]) -> None:
    with pytest.raises(HttpResponseError) as caught:
        arm.queues.create_or_update(GROUP, "primary", "q", {"properties": properties})
    assert caught.value.status_code == 400
    assert caught.value.error is not None
    assert caught.value.error.code == "BadRequest"
    assert "SubCode=40000" in str(caught.value)
    assert list(arm.queues.list_by_namespace(GROUP, "primary")) == []


def test_create_only_settings_cannot_be_changed(arm: ServiceBusManagementClient) -> None:
    arm.queues.create_or_update(GROUP, "primary", "q", SBQueue())
    with pytest.raises(HttpResponseError) as caught:
        arm.queues.create_or_update(GROUP, "primary", "q", SBQueue(requires_session=True))
    assert caught.value.status_code == 400


def test_missing_entities(arm: ServiceBusManagementClient) -> None:
    for look in (
        lambda: arm.queues.get(GROUP, "primary", "q"),
        lambda: arm.topics.get(GROUP, "primary", "t"),
        lambda: arm.subscriptions.get(GROUP, "primary", "t", "s"),
        lambda: arm.rules.get(GROUP, "primary", "t", "s", "r"),
        lambda: list(arm.subscriptions.list_by_topic(GROUP, "primary", "t")),
        lambda: list(arm.queues.list_authorization_rules(GROUP, "primary", "q")),
        lambda: arm.namespaces.get(GROUP, "elsewhere"),
    ):
        with pytest.raises(ResourceNotFoundError) as caught:
            look()
        assert caught.value.status_code == 404
        assert caught.value.error is not None


def test_topics_subscriptions_and_rules(arm: ServiceBusManagementClient) -> None:
    arm.topics.create_or_update(GROUP, "primary", "a~t", SBTopic(user_metadata="about", support_ordering=True))
    topic = arm.topics.get(GROUP, "primary", "a~t")
    assert topic.properties is not None
    assert (topic.name, topic.properties.user_metadata) == ("a~t", "about")
    assert [one.name for one in arm.topics.list_by_namespace(GROUP, "primary")] == ["a~t"]
    arm.subscriptions.create_or_update(GROUP, "primary", "a~t", "s", SBSubscription(max_delivery_count=5))
    arm.subscriptions.create_or_update(GROUP, "primary", "a~t", "s", SBSubscription(max_delivery_count=6))
    subscription = arm.subscriptions.get(GROUP, "primary", "a~t", "s")
    assert subscription.properties is not None
    assert subscription.properties.max_delivery_count == 6
    assert subscription.properties.message_count == 0
    assert subscription.id == f"{NAMESPACE_ID}/topics/a~t/subscriptions/s"
    assert [one.name for one in arm.subscriptions.list_by_topic(GROUP, "primary", "a~t")] == ["s"]
    again = arm.topics.get(GROUP, "primary", "a~t").properties
    assert again is not None
    assert again.subscription_count == 1
    sql = {"properties": {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "x = 1"}, "action": {}}}
    arm.rules.create_or_update(GROUP, "primary", "a~t", "s", "sql", sql)
    correlated = {
        "properties": {
            "filterType": "CorrelationFilter",
            "correlationFilter": {"correlationId": "c", "properties": {"k": "v"}},
            "action": {"sqlExpression": "SET y = 2"},
        }
    }
    arm.rules.create_or_update(GROUP, "primary", "a~t", "s", "corr", correlated)
    rules = {rule.name: rule for rule in arm.rules.list_by_subscriptions(GROUP, "primary", "a~t", "s")}
    assert sorted(str(name) for name in rules) == ["$Default", "corr", "sql"]
    read = arm.rules.get(GROUP, "primary", "a~t", "s", "corr").properties
    assert read is not None
    assert (read.filter_type, read.correlation_filter and read.correlation_filter.correlation_id) == (
        "CorrelationFilter",
        "c",
    )
    assert read.correlation_filter is not None
    assert read.correlation_filter.properties == {"k": "v"}
    assert read.action is not None
    assert read.action.sql_expression == "SET y = 2"
    default = rules["$Default"].properties
    assert default is not None
    assert default.sql_filter is not None
    assert default.sql_filter.sql_expression == "1=1"
    for body in ({"filterType": "Magic"}, {"sqlFilter": {"sqlExpression": "x ="}}, {"sqlFilter": "x"}):
        with pytest.raises(HttpResponseError) as caught:
            arm.rules.create_or_update(GROUP, "primary", "a~t", "s", "bad", {"properties": body})
        assert caught.value.status_code == 400
    arm.rules.delete(GROUP, "primary", "a~t", "s", "sql")
    arm.subscriptions.delete(GROUP, "primary", "a~t", "s")
    arm.topics.delete(GROUP, "primary", "a~t")
    assert list(arm.topics.list_by_namespace(GROUP, "primary")) == []


def test_a_topic_does_not_pass_for_a_queue(arm: ServiceBusManagementClient) -> None:
    arm.topics.create_or_update(GROUP, "primary", "t", SBTopic())
    with pytest.raises(ResourceNotFoundError):
        arm.queues.get(GROUP, "primary", "t")
    with pytest.raises(HttpResponseError) as caught:
        arm.queues.create_or_update(GROUP, "primary", "t", SBQueue())
    assert caught.value.status_code == 409
