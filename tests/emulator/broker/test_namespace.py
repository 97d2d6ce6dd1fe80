"""Creating, replacing and deleting entities under the service's rules."""

import dataclasses

import pytest

from sbpair.emulator.entities import (
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from sbpair.engine.errors import EntityError
from sbpair.service import Tier

NEVER_ENDING = QueueDescription(
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    lock_duration_seconds=60,
    dead_lettering_on_message_expiration=True,
    enable_batched_operations=True,
)


def refused(call, *args, **kwargs):
    with pytest.raises(EntityError) as caught:
        call(*args, **kwargs)
    return caught.value.http_status, caught.value.sub_code


async def test_the_documented_backlog_queue(bench):
    queue = bench.namespace.create_queue("primary/x-servicebus-transfer/0", NEVER_ENDING)
    assert queue.description == dataclasses.replace(NEVER_ENDING, max_message_size_in_kilobytes=256)
    assert bench.namespace.get_queue("PRIMARY/X-ServiceBus-Transfer/0") is queue


async def test_basic_gives_fourteen_days_and_refuses_what_it_has_not(make_bench):
    namespace = make_bench(Tier.BASIC).namespace
    queue = namespace.create_queue("q", NEVER_ENDING)
    assert queue.description.default_message_time_to_live_seconds == 14 * 86400
    namespace.update_queue("q", queue.description)
    for settings in (
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"auto_delete_on_idle_seconds": 600.0},
        {"default_message_time_to_live_seconds": 60.0},
        {"enable_express": True},
        {"forward_to": "q"},
    ):
        assert refused(namespace.create_queue, "other", QueueDescription(**settings)) == (400, 40000)
    named = {"default_message_time_to_live_seconds"}
    assert refused(namespace.create_queue, "other", QueueDescription(), named=named) == (400, 40000)
    assert refused(namespace.create_topic, "t") == (400, 40000)
    assert [queue.path for queue in namespace.queues()] == ["q"]


@pytest.mark.law("names-of-few-letters")
@pytest.mark.parametrize(
    "path", ["", "/q", "q/", "a//b", "q?", "q#", "q*", "q@x", "q~x", "q x", "ü", "a/subscriptions/b", "x" * 261]
)
async def test_bad_names(bench, path):
    assert refused(bench.namespace.create_queue, path) == (400, 40000)


async def test_a_backslash_is_a_slash(bench):
    assert bench.namespace.create_queue("a\\b").path == "a/b"


@pytest.mark.parametrize(
    "settings",
    [
        {"lock_duration_seconds": 4.9},
        {"lock_duration_seconds": 300.1},
        {"max_size_in_megabytes": 1000},
        {"max_size_in_megabytes": 10240},
        {"max_size_in_megabytes": 16384},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2**31},
        {"default_message_time_to_live_seconds": 0.5},
        {"auto_delete_on_idle_seconds": 299.0},
        {"duplicate_detection_history_time_window_seconds": 19.0},
        {"duplicate_detection_history_time_window_seconds": 7 * 86400 + 1.0},
        {"user_metadata": "x" * 1025},
        {"forward_to": "nowhere"},
        {"forward_to": "bad"},
        {"forward_dead_lettered_messages_to": "nowhere"},
    ],
)
async def test_bad_settings_change_nothing(bench, settings):
    assert refused(bench.namespace.create_queue, "bad", QueueDescription(**settings)) == (400, 40000)
    assert bench.namespace.queues() == []


async def test_forwarding_takes_urls(bench):
    bench.queue("end")
    queue = bench.queue("start", forward_to="sb://host/end", forward_dead_lettered_messages_to="end")
    assert (queue.description.forward_to, queue.description.forward_dead_lettered_messages_to) == ("end", "end")


@pytest.mark.law("names-without-case")
async def test_a_taken_path(bench):
    bench.queue("Orders")
    assert refused(bench.namespace.create_queue, "orders") == (409, None)
    assert refused(bench.namespace.create_topic, "ORDERS") == (409, None)


async def test_what_is_missing(bench):
    namespace = bench.namespace
    namespace.create_topic("t")
    for call, args in (
        (namespace.update_queue, ("q", QueueDescription())),
        (namespace.delete_queue, ("q",)),
        (namespace.delete_queue, ("t",)),
        (namespace.delete_topic, ("x",)),
        (namespace.create_subscription, ("x", "s")),
        (namespace.delete_subscription, ("t", "s")),
        (namespace.subscriptions, ("x",)),
        (namespace.create_rule, ("t", "s", "r", RuleDescription())),
    ):
        assert refused(call, *args) == (404, 40400)


@pytest.mark.parametrize("name", ["enable_partitioning", "requires_session", "requires_duplicate_detection"])
async def test_create_only_settings(bench, name):
    queue = bench.queue("q")
    changed = dataclasses.replace(queue.description, **{name: True})
    assert refused(bench.namespace.update_queue, "q", changed) == (400, 40000)
    assert queue.description.max_delivery_count == 10


async def test_an_update_replaces_everything(bench):
    queue = bench.queue("q", max_delivery_count=5, user_metadata="x", lock_duration_seconds=30)
    bench.clock.advance(1)
    bench.namespace.update_queue("q", QueueDescription(lock_duration_seconds=20))
    description = queue.description
    assert (description.max_delivery_count, description.user_metadata, description.lock_duration_seconds) == (
        10,
        None,
        20,
    )
    assert queue.updated_at == queue.created_at + 1


async def test_a_smaller_size_than_the_contents_only_stops_sending(bench):
    queue = bench.queue("q", max_size_in_megabytes=2048)
    bench.send(queue, "a")
    queue.quota.used_bytes += 1500 * 1024 * 1024
    bench.namespace.update_queue("q", QueueDescription(max_size_in_megabytes=1024))
    assert not queue.quota.has_room(1)


async def test_lists_are_sorted_and_deleting_detaches(bench, make_inbox):
    for name in ("b", "a/x", "C"):
        bench.queue(name)
    assert [queue.path for queue in bench.namespace.queues()] == ["a/x", "b", "C"]
    link = make_inbox()
    bench.namespace.get_queue("b").links[link] = None
    bench.namespace.delete_queue("B")
    assert link.detached == "amqp:resource-deleted"
    assert not bench.namespace.entity_exists("b")


async def test_addresses_that_lead_somewhere(bench):
    namespace = bench.namespace
    bench.queue("a/q")
    namespace.create_topic("t")
    namespace.create_subscription("t", "s")
    for address in (
        "",
        "a/q",
        "A/Q/$DeadLetterQueue",
        "a/q/$Transfer/$DeadLetterQueue",
        "a/q/$management",
        "a/q/$deadletterqueue/$management",
        "t",
        "t/$management",
        "T/Subscriptions/S",
        "t/subscriptions/s/$deadletterqueue",
    ):
        assert namespace.entity_exists(address), address
    for address in ("q", "a", "t/$deadletterqueue", "t/subscriptions/x", "a/q/subscriptions/s"):
        assert not namespace.entity_exists(address), address


async def test_a_new_subscription_has_the_default_rule(bench):
    namespace = bench.namespace
    namespace.create_topic("t")
    namespace.create_subscription("t", "s")
    [rule] = namespace.rules("t", "s")
    assert (rule.name, rule.filter, rule.action) == ("$Default", TrueFilter(), None)
    assert refused(namespace.create_subscription, "t", "S") == (409, None)
    assert refused(namespace.create_subscription, "t", "bad name") == (400, 40000)
    assert refused(namespace.create_subscription, "t", "x" * 51) == (400, 40000)


async def test_rules_are_checked_before_anything_changes(bench):
    namespace = bench.namespace
    namespace.create_topic("t")
    namespace.create_subscription("t", "s")
    for description in (
        RuleDescription(filter=SqlFilter(expression="color =")),
        RuleDescription(filter=SqlFilter(expression="x" * 1025)),
        RuleDescription(filter=CorrelationFilter()),
        RuleDescription(action=SqlAction(expression="SET")),
    ):
        assert refused(namespace.create_rule, "t", "s", "r", description) == (400, 40000)
    namespace.create_rule("t", "s", "r", RuleDescription(filter=SqlFilter(expression="a = 1")))
    assert refused(namespace.create_rule, "t", "s", "R", RuleDescription()) == (409, None)
    bench.clock.advance(5)
    updated = namespace.update_rule("t", "s", "r", RuleDescription(filter=SqlFilter(expression="a = 2")))
    assert updated.created_at == bench.clock.now() - 5
    namespace.delete_rule("t", "s", "r")
    assert refused(namespace.delete_rule, "t", "s", "r") == (404, 40400)


async def test_premium(make_bench):
    namespace = make_bench(Tier.PREMIUM).namespace
    queue = namespace.create_queue("q", QueueDescription(max_size_in_megabytes=81920))
    assert queue.description.max_message_size_in_kilobytes == 1024
    for settings in (
        {"enable_partitioning": True},
        {"enable_express": True},
        {"max_message_size_in_kilobytes": 102_401},
        {"max_message_size_in_kilobytes": 100},
    ):
        assert refused(namespace.create_queue, "x", QueueDescription(**settings)) == (400, 40000)
    for index in range(999):
        namespace.create_queue(f"q{index}")
    assert refused(namespace.create_queue, "one-more") == (403, None)


async def test_standard_does_not_let_the_message_size_be_set(bench):
    description = QueueDescription(max_message_size_in_kilobytes=1024)
    named = {"max_message_size_in_kilobytes"}
    assert refused(bench.namespace.create_queue, "q", description, named=named) == (400, 40000)


async def test_keys_of_namespace_and_entity(bench):
    rule = AuthorizationRule(name="listener", rights=frozenset({"Listen"}), primary_key="a", secondary_key="b")
    bench.queue("q", authorization_rules=(rule,))
    assert set(bench.namespace.access.rules_for("q/$management")) == {"RootManageSharedAccessKey", "listener"}
    assert set(bench.namespace.access.rules_for("other")) == {"RootManageSharedAccessKey"}
    for bad in (
        dataclasses.replace(rule, rights=frozenset({"Manage"})),
        dataclasses.replace(rule, rights=frozenset()),
        dataclasses.replace(rule, rights=frozenset({"Fly"})),
        dataclasses.replace(rule, name=""),
    ):
        assert refused(bench.namespace.set_auth_rule, bad) == (400, 40000)
    many = tuple(dataclasses.replace(rule, name=f"r{index}") for index in range(13))
    assert refused(bench.namespace.create_queue, "x", QueueDescription(authorization_rules=many)) == (400, 40000)
    assert refused(bench.namespace.access.delete, "nobody") == (404, 40400)


async def test_topic_settings(bench):
    topic = bench.namespace.create_topic("t", TopicDescription(enable_partitioning=True, max_size_in_megabytes=2048))
    assert topic.description.max_size_in_megabytes == 32768
    changed = dataclasses.replace(topic.description, requires_duplicate_detection=True)
    assert refused(bench.namespace.update, "t", changed) == (400, 40000)
    bench.namespace.create_subscription("t", "s")
    sessions = SubscriptionDescription(requires_session=True)
    assert refused(bench.namespace.update_subscription, "t", "s", sessions) == (400, 40000)
    bench.namespace.update_subscription("t", "s", SubscriptionDescription(max_delivery_count=3))
    assert len(bench.namespace.rules("t", "s")) == 1
