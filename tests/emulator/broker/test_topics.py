"""Topics: copies per subscription, rules with actions, filter errors, shared quota, time to live, scheduling."""

import pytest

from sbpair.amqp.sections import Section
from sbpair.amqp.types import Int, Symbol
from sbpair.emulator.entities import (
    EntityStatus,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.engine.errors import MESSAGE_NOT_FOUND, QUOTA, BrokerError


@pytest.fixture
def topic(bench):
    return bench.namespace.create_topic("events")


def subscribe(bench, name, rule=None, **settings):
    return bench.namespace.create_subscription("events", name, SubscriptionDescription(**settings), rule=rule)


async def test_every_matching_subscription_gets_a_copy_with_its_own_number(bench, topic, sections_of):
    one = subscribe(bench, "one")
    red = subscribe(bench, "red", RuleDescription(filter=SqlFilter(expression="color = 'red'")))
    none = subscribe(bench, "none", RuleDescription(filter=FalseFilter()))
    bench.send(topic, "a", properties={"color": "blue"})
    bench.send(topic, "b", properties={"color": "red"})
    assert bench.receive(one).texts == ["a", "b"]
    inbox = bench.receive(red)
    assert inbox.texts == ["b"]
    assert bench.receive(none).texts == []
    message = inbox.got[0][0]
    assert (message.sequence_number, message.enqueued_sequence_number) == (1, 2)
    annotations = sections_of(message.render())[Section.MESSAGE_ANNOTATIONS]
    assert annotations[Symbol("x-opt-enqueue-sequence-number")] == 2


async def test_settling_one_copy_leaves_the_other(bench, topic):
    one, two = subscribe(bench, "one"), subscribe(bench, "two")
    bench.send(topic, "a")
    one.main.complete(bench.receive(one).token)
    assert (one.counts().active, two.counts().active) == (0, 1)
    assert topic.quota.used_bytes == len(bench.peek(two)[0].payload)


@pytest.mark.law("copies-by-rule")
async def test_rules_with_actions_make_copies_of_their_own(bench, topic):
    subscription = subscribe(bench, "s")
    for name in ("first", "second"):
        action = SqlAction(expression=f"SET via = '{name}'")
        bench.namespace.create_rule("events", "s", name, RuleDescription(action=action))
    bench.send(topic, "a")
    found = [message.section(Section.APPLICATION_PROPERTIES) for message in bench.peek(subscription)]
    assert found == [None, {"via": "first", "RuleName": "first"}, {"via": "second", "RuleName": "second"}]


async def test_several_matching_rules_without_action_make_one_copy(bench, topic):
    subscription = subscribe(bench, "s")
    bench.namespace.create_rule("events", "s", "also", RuleDescription())
    bench.send(topic, "a")
    assert subscription.counts().active == 1


@pytest.mark.law("no-rule-no-copy")
async def test_without_rules_nothing_matches(bench, topic):
    subscription = subscribe(bench, "s")
    bench.namespace.delete_rule("events", "s", "$Default")
    bench.send(topic, "a")
    assert subscription.counts().active == 0


@pytest.mark.parametrize("dead_lettering", [True, False])
async def test_a_filter_that_fails(bench, topic, dead_lettering):
    rule = RuleDescription(filter=SqlFilter(expression="1 / size = 1"))
    subscription = subscribe(bench, "s", rule, dead_lettering_on_filter_evaluation_exceptions=dead_lettering)
    bench.send(topic, "a", properties={"size": Int(0)})
    assert (subscription.counts().active, subscription.counts().dead_letter) == (0, int(dead_lettering))


async def test_an_action_that_makes_too_long_an_id_dead_letters_the_copy(bench, topic):
    action = SqlAction(expression=f"SET sys.SessionId = '{'x' * 200}'")
    failing = subscribe(bench, "failing", RuleDescription(action=action))
    other = subscribe(bench, "other")
    bench.send(topic, "a")
    assert (failing.counts().dead_letter, other.counts().active) == (1, 1)


async def test_a_copy_without_session_for_a_session_subscription_is_dead_lettered(bench, topic):
    subscription = subscribe(bench, "s", requires_session=True)
    bench.send(topic, "a")
    bench.send(topic, "b", session="x")
    assert (subscription.counts().active, subscription.counts().dead_letter) == (1, 1)


async def test_the_topic_caps_the_time_to_live(bench):
    bench.namespace.create_topic("events", TopicDescription(default_message_time_to_live_seconds=10))
    subscription = subscribe(bench, "s")
    bench.send(bench.namespace.get_topic("events"), "a", ttl=100)
    bench.clock.advance(11)
    assert bench.receive(subscription).texts == []


async def test_subscriptions_share_the_quota(bench, topic):
    subscribe(bench, "one")
    subscribe(bench, "two")
    topic.quota.limit_bytes = 200
    topic.send(bench.message(b"x" * 80))
    with pytest.raises(BrokerError) as caught:
        topic.send(bench.message(b"x" * 80))
    assert caught.value.condition == QUOTA


async def test_scheduled_messages_wait_in_the_topic(bench, topic):
    subscription = subscribe(bench, "s")
    messages = [topic.intake.read(bench.message(text, at=bench.clock.now() + 10), 0)[0] for text in "ab"]
    topic.accept(messages)
    [kept, dropped] = [message.sequence_number for message in messages]
    assert (topic.counts().scheduled, subscription.counts().total) == (2, 0)
    topic.cancel_scheduled([dropped])
    with pytest.raises(BrokerError) as caught:
        topic.cancel_scheduled([dropped])
    assert caught.value.condition == MESSAGE_NOT_FOUND
    bench.clock.advance(10)
    inbox = bench.receive(subscription)
    assert inbox.texts == ["a"]
    assert inbox.got[0][0].enqueued_sequence_number > kept
    assert topic.counts().scheduled == 0


async def test_duplicates_are_dropped_at_the_topic(bench):
    topic = bench.namespace.create_topic("events", TopicDescription(requires_duplicate_detection=True))
    subscription = subscribe(bench, "s")
    bench.send(topic, "a", "b", message_id="1")
    assert subscription.counts().active == 1


async def test_a_disabled_subscription_gets_nothing(bench, topic):
    subscription = subscribe(bench, "s", status=EntityStatus.DISABLED)
    bench.send(topic, "a")
    assert subscription.counts().active == 0


async def test_partitioned_topics_number_their_copies_by_partition(bench):
    topic = bench.namespace.create_topic("events", TopicDescription(enable_partitioning=True))
    subscription = subscribe(bench, "s")
    bench.send(topic, *map(str, range(16)))
    assert {message.sequence_number >> 48 for message in subscription.main.log} == set(range(16))


async def test_deleting_a_topic_closes_the_links_of_its_subscriptions(bench, topic, make_inbox):
    link = make_inbox()
    subscribe(bench, "s").links[link] = None
    bench.namespace.delete_topic("events")
    assert link.detached == "amqp:resource-deleted"
    assert bench.namespace.get_subscription("events", "s") is None


async def test_a_subscription_that_is_deleted_gives_its_room_back(bench):
    """All subscriptions share the size of their topic. What waits to be forwarded is deleted as well."""
    topic = bench.namespace.create_topic("events")
    bench.queue("end").quota.limit_bytes = 1
    bench.namespace.create_subscription("events", "plain")
    bench.namespace.create_subscription("events", "on", SubscriptionDescription(forward_to="end"))
    bench.send(topic, "a", "dead")
    plain = bench.namespace.get_subscription("events", "plain")
    inbox = bench.receive(plain)
    plain.main.dead_letter(inbox.tokens[1], "why", None)
    bench.send(topic, "later", at=bench.clock.now() + 10)
    assert bench.namespace.get_subscription("events", "on").counts().transfer == 2
    size = topic.counts().size_in_bytes
    later = len(bench.message("later", at=bench.clock.now() + 10))
    assert size > later
    for name in ("plain", "on"):
        bench.namespace.delete_subscription("events", name)
    assert later <= topic.counts().size_in_bytes < size
    bench.clock.advance(10)
    assert topic.counts().size_in_bytes == 0
