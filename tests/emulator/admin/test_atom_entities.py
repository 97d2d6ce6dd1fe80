"""Queues, topics and subscriptions through the official data-plane client."""

import base64
import datetime as dt
import secrets

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient, SqlRuleFilter

from sbpair.emulator.entities import EntityStatus
from sbpair.service import Tier

from .conftest import AdminServer

NEVER_DAYS = 10675199


def test_a_new_queue_has_the_documented_defaults(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders")
    queue = admin.get_queue("orders")
    assert queue.lock_duration == dt.timedelta(minutes=1)
    assert queue.max_size_in_megabytes == 1024
    assert queue.max_delivery_count == 10
    assert queue.requires_session is False
    assert queue.requires_duplicate_detection is False
    assert queue.duplicate_detection_history_time_window == dt.timedelta(minutes=10)
    assert queue.dead_lettering_on_message_expiration is False
    assert queue.enable_batched_operations is True
    assert queue.enable_partitioning is False
    assert queue.enable_express is False
    assert queue.status == "Active"
    assert queue.availability_status == "Available"
    assert queue.forward_to is None
    assert queue.user_metadata is None
    assert queue.default_message_time_to_live is not None
    assert queue.default_message_time_to_live.days == NEVER_DAYS
    assert queue.auto_delete_on_idle is not None
    assert queue.auto_delete_on_idle.days == NEVER_DAYS


def test_the_documented_backlog_settings_are_taken_and_read_back(
    server: AdminServer, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_queue(
        "primary/x-servicebus-transfer/0",
        max_size_in_megabytes=5120,
        max_delivery_count=2147483647,
        lock_duration=dt.timedelta(minutes=1),
        default_message_time_to_live=dt.timedelta(days=NEVER_DAYS, hours=2, minutes=48, seconds=5, microseconds=477580),
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )
    queue = admin.get_queue("primary/x-servicebus-transfer/0")
    assert queue.max_size_in_megabytes == 5120
    assert queue.max_delivery_count == 2147483647
    assert queue.dead_lettering_on_message_expiration is True
    assert queue.default_message_time_to_live is not None
    assert queue.default_message_time_to_live.days == NEVER_DAYS
    kept = server.run(lambda: server.namespace.get_queue("primary/x-servicebus-transfer/0"))
    assert kept is not None
    assert kept.description.default_message_time_to_live_seconds is None


def test_every_setting_of_a_queue_survives_the_round_trip(admin: ServiceBusAdministrationClient) -> None:
    key, made = base64.b64encode(secrets.token_bytes(32)).decode(), dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="own",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        primary_key=key,
        created_at_utc=made,
    )
    admin.create_topic("target")
    admin.create_queue(
        "full",
        authorization_rules=[rule],
        auto_delete_on_idle="PT10M1S",
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live="PT11M2S",
        duplicate_detection_history_time_window="PT12M3S",
        enable_batched_operations=False,
        enable_express=True,
        lock_duration="PT13S",
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        requires_duplicate_detection=True,
        forward_to="target",
        forward_dead_lettered_messages_to="target",
        user_metadata="<b>&amp; more",
        status="ReceiveDisabled",
    )
    queue = admin.get_queue("full")
    assert queue.auto_delete_on_idle == dt.timedelta(minutes=10, seconds=1)
    assert queue.dead_lettering_on_message_expiration is True
    assert queue.default_message_time_to_live == dt.timedelta(minutes=11, seconds=2)
    assert queue.duplicate_detection_history_time_window == dt.timedelta(minutes=12, seconds=3)
    assert queue.enable_batched_operations is False
    assert queue.enable_express is True
    assert queue.lock_duration == dt.timedelta(seconds=13)
    assert queue.max_delivery_count == 14
    assert queue.max_size_in_megabytes == 3072
    assert queue.requires_duplicate_detection is True
    assert queue.forward_to is not None
    assert queue.forward_to.endswith("/target")
    assert queue.forward_to == queue.forward_dead_lettered_messages_to
    assert queue.user_metadata == "<b>&amp; more"
    assert queue.status == "ReceiveDisabled"
    assert queue.authorization_rules is not None
    (read,) = queue.authorization_rules
    assert (read.key_name, read.primary_key, read.rights) == ("own", key, ["Send", "Listen"])
    assert (read.created_at_utc, read.modified_at_utc) == (made, None)  # what the client said, and nothing else
    assert read.secondary_key


def test_an_update_replaces_and_what_was_read_can_be_written_back(
    server: AdminServer, admin: ServiceBusAdministrationClient
) -> None:
    queue = admin.create_queue("orders", user_metadata="old", lock_duration=dt.timedelta(seconds=30))
    admin.update_queue(queue)
    queue.user_metadata = None
    queue.status = "SendDisabled"
    queue.max_delivery_count = 3
    admin.update_queue(queue)
    read = admin.get_queue("orders")
    assert (read.user_metadata, read.status, read.max_delivery_count) == (None, "SendDisabled", 3)
    assert read.lock_duration == dt.timedelta(seconds=30)
    kept = server.run(lambda: server.namespace.get_queue("orders"))
    assert kept is not None
    assert kept.description.status is EntityStatus.SEND_DISABLED
    assert kept.description.auto_delete_on_idle_seconds is None


@pytest.mark.parametrize("tier", list(Tier))
def test_get_and_put_back_works_in_every_tier(start, tier: Tier) -> None:
    admin = start(tier).admin()
    admin.update_queue(admin.create_queue("q"))
    assert admin.get_queue("q").max_delivery_count == 10


def test_a_partitioned_queue_reports_sixteen_times_its_size(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("wide", enable_partitioning=True, max_size_in_megabytes=3072)
    queue = admin.get_queue("wide")
    assert queue.max_size_in_megabytes == 3072 * 16
    admin.update_queue(queue, max_delivery_count=4)
    again = admin.get_queue("wide")
    assert (again.max_size_in_megabytes, again.max_delivery_count) == (3072 * 16, 4)


def test_names_may_have_slashes_and_any_case(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("txt/.-_123")
    assert admin.get_queue("TXT/.-_123").name == "TXT/.-_123"
    assert [queue.name for queue in admin.list_queues()] == ["txt/.-_123"]
    admin.delete_queue("txt/.-_123")
    assert list(admin.list_queues()) == []


@pytest.mark.parametrize("name", ["", "a~b", "a b", "@", "a?b", "x" * 261, "a//b"])
def test_bad_names_are_refused(admin: ServiceBusAdministrationClient, name: str) -> None:
    with pytest.raises(HttpResponseError) as caught:
        admin.create_queue(name)
    assert caught.value.status_code == 400
    assert "SubCode=40000" in str(caught.value)
    assert list(admin.list_queues()) == []


@pytest.mark.parametrize(
    "setting",
    [
        {"lock_duration": dt.timedelta(minutes=6)},
        {"lock_duration": dt.timedelta(days=NEVER_DAYS, seconds=10085)},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2**31},
        {"max_size_in_megabytes": 1025},
        {"default_message_time_to_live": "P10675199DT2H48M5.4775807S"},
        {"auto_delete_on_idle": dt.timedelta.max},
        {"auto_delete_on_idle": dt.timedelta(minutes=4)},
        {"duplicate_detection_history_time_window": dt.timedelta(days=25)},
        {"max_message_size_in_kilobytes": 1024},
        {"user_metadata": "x" * 1025},
        {"status": "Asleep"},
        {"forward_to": "nowhere"},
    ],
)
def test_settings_out_of_range_are_refused_and_change_nothing(
    admin: ServiceBusAdministrationClient, setting: dict[str, object]
) -> None:
    with pytest.raises(HttpResponseError) as caught:
        admin.create_queue("q", **setting)
    assert caught.value.status_code == 400
    assert list(admin.list_queues()) == []


def test_create_only_settings_cannot_be_changed(admin: ServiceBusAdministrationClient) -> None:
    queue = admin.create_queue("q")
    for name in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
        with pytest.raises(HttpResponseError) as caught:
            admin.update_queue(queue, **{name: True})
        assert caught.value.status_code == 400
        queue = admin.get_queue("q")
        assert getattr(queue, name) is False


def test_premium_takes_large_messages(start) -> None:
    admin = start(Tier.PREMIUM).admin()
    admin.create_queue("big", max_message_size_in_kilobytes=12345)
    assert admin.get_queue("big").max_message_size_in_kilobytes == 12345
    for size in (1023, 102401):
        with pytest.raises(HttpResponseError):
            admin.create_queue("other", max_message_size_in_kilobytes=size)


def test_what_is_not_there(admin: ServiceBusAdministrationClient) -> None:
    for look in (admin.get_queue, admin.get_queue_runtime_properties, admin.get_topic):
        with pytest.raises(ResourceNotFoundError):
            look("missing")
    for delete in (admin.delete_queue, admin.delete_topic):
        with pytest.raises(ResourceNotFoundError) as caught:
            delete("missing")
        assert caught.value.status_code == 404
    queue = admin.create_queue("q")
    queue.name = "missing"
    with pytest.raises(ResourceNotFoundError) as caught:
        admin.update_queue(queue)
    assert "could not be found" in str(caught.value)


def test_a_taken_name_is_a_conflict(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("taken")
    for create in (admin.create_queue, admin.create_topic):
        with pytest.raises(ResourceExistsError) as caught:
            create("Taken")
        assert caught.value.status_code == 409


def test_runtime_properties_of_a_queue(server: AdminServer, admin: ServiceBusAdministrationClient) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
    admin.create_queue("orders")
    runtime = admin.get_queue_runtime_properties("orders")
    counts = (
        runtime.total_message_count,
        runtime.active_message_count,
        runtime.dead_letter_message_count,
        runtime.scheduled_message_count,
        runtime.transfer_message_count,
        runtime.transfer_dead_letter_message_count,
        runtime.size_in_bytes,
    )
    assert counts == (0,) * 7
    for moment in (runtime.created_at_utc, runtime.updated_at_utc):
        assert moment is not None
        assert before < moment.replace(tzinfo=dt.UTC) < before + dt.timedelta(minutes=1)
    (listed,) = admin.list_queues_runtime_properties()
    assert listed.created_at_utc == runtime.created_at_utc


def test_what_nobody_has_used_was_accessed_in_the_year_1(
    server: AdminServer, admin: ServiceBusAdministrationClient
) -> None:
    admin.update_queue(admin.create_queue("orders"))
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    accessed = [
        admin.get_queue_runtime_properties("orders").accessed_at_utc,
        admin.get_topic_runtime_properties("events").accessed_at_utc,
        admin.get_subscription_runtime_properties("events", "all").accessed_at_utc,
    ]
    assert [None if moment is None else moment.year > 1 for moment in accessed] == [False, True, True]
    server.run(lambda: server.namespace.find("orders").touch())
    assert admin.get_queue_runtime_properties("orders").accessed_at_utc.year > 1


def test_what_cannot_be_changed_is_said_by_its_name(admin: ServiceBusAdministrationClient) -> None:
    queue, topic = admin.create_queue("orders"), admin.create_topic("events")
    subscription = admin.create_subscription("events", "all")
    queue.requires_session = subscription.requires_session = topic.enable_partitioning = True
    refused = {
        "The value for the RequiresSession property of an existing Queue cannot be changed.": lambda: (
            admin.update_queue(queue)
        ),
        "The value for the RequiresSession property of an existing Subscription cannot be changed.": lambda: (
            admin.update_subscription("events", subscription)
        ),
        "Partitioning cannot be changed for Topic.": lambda: admin.update_topic(topic),
    }
    for words, update in refused.items():
        with pytest.raises(HttpResponseError, match=words):
            update()


def test_topics(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic(
        "news",
        default_message_time_to_live="PT11M2S",
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window="PT5M",
        enable_batched_operations=False,
        auto_delete_on_idle="PT10M",
        enable_partitioning=True,
        user_metadata="about",
    )
    topic = admin.get_topic("news")
    assert topic.default_message_time_to_live == dt.timedelta(minutes=11, seconds=2)
    assert topic.max_size_in_megabytes == 2048 * 16
    assert topic.requires_duplicate_detection is True
    assert topic.enable_batched_operations is False
    assert topic.user_metadata == "about"
    admin.update_topic(topic, user_metadata="changed")
    assert admin.get_topic("news").user_metadata == "changed"
    assert [one.name for one in admin.list_topics()] == ["news"]
    assert list(admin.list_queues()) == []
    admin.delete_topic("news")
    assert list(admin.list_topics()) == []


def test_runtime_properties_of_a_topic_count_filters(admin: ServiceBusAdministrationClient) -> None:
    from azure.servicebus.management import CorrelationRuleFilter

    admin.create_topic("news")
    admin.create_subscription("news", "all")
    admin.create_rule("news", "all", "sql", filter=SqlRuleFilter("1=1"))
    admin.create_rule("news", "all", "correlation", filter=CorrelationRuleFilter(correlation_id="x"))
    runtime = admin.get_topic_runtime_properties("news")
    assert runtime.subscription_count == 1
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1)
    assert runtime.scheduled_message_count == 0
    (listed,) = admin.list_topics_runtime_properties()
    assert listed.subscription_count == 1


def test_older_api_versions_lack_newer_elements(server: AdminServer) -> None:
    admin = server.admin(api_version="2017-04")
    admin.create_topic("news")
    assert admin.get_topic_runtime_properties("news").sql_filter_count is None
    assert admin.get_topic("news").max_message_size_in_kilobytes is None


def test_subscriptions(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("target")
    admin.create_topic("a/b")
    admin.create_subscription(
        "a/b",
        "sub",
        lock_duration="PT30S",
        requires_session=False,
        default_message_time_to_live="P1D",
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=7,
        enable_batched_operations=False,
        forward_dead_lettered_messages_to="target",
        user_metadata="about",
        auto_delete_on_idle="PT10M",
    )
    read = admin.get_subscription("a/b", "sub")
    assert read.name == "sub"
    assert read.lock_duration == dt.timedelta(seconds=30)
    assert read.default_message_time_to_live == dt.timedelta(days=1)
    assert read.dead_lettering_on_message_expiration is True
    assert read.dead_lettering_on_filter_evaluation_exceptions is False
    assert read.max_delivery_count == 7
    assert read.enable_batched_operations is False
    assert read.forward_dead_lettered_messages_to is not None
    assert read.forward_dead_lettered_messages_to.endswith("/target")
    assert read.user_metadata == "about"
    assert read.auto_delete_on_idle == dt.timedelta(minutes=10)
    admin.update_subscription("a/b", read, max_delivery_count=8)
    assert admin.get_subscription("a/b", "sub").max_delivery_count == 8
    assert [one.name for one in admin.list_subscriptions("a/b")] == ["sub"]
    runtime = admin.get_subscription_runtime_properties("a/b", "sub")
    assert (runtime.total_message_count, runtime.active_message_count) == (0, 0)
    assert [one.name for one in admin.list_subscriptions_runtime_properties("a/b")] == ["sub"]
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("a/b", "sub")
    admin.delete_subscription("a/b", "sub")
    assert list(admin.list_subscriptions("a/b")) == []


def test_subscriptions_that_are_not_there(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("news")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription("news", "missing")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_subscription("news", "missing")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("missing", "sub")
    with pytest.raises(ResourceNotFoundError):
        list(admin.list_subscriptions("missing"))
    read = admin.create_subscription("news", "sub")
    for name, status in (("other", 404), ("", 400)):
        read.name = name
        with pytest.raises(HttpResponseError) as caught:
            admin.update_subscription("news", read)
        assert caught.value.status_code in (status, 404)


def test_the_namespace_tells_its_tier(start) -> None:
    for tier in Tier:
        properties = start(tier, name="mine").admin().get_namespace_properties()
        assert properties.messaging_sku == tier.value
        assert properties.name == "mine"
        assert properties.namespace_type == "Messaging"
        assert properties.messaging_units == (1 if tier is Tier.PREMIUM else None)
        assert properties.created_at_utc is not None
