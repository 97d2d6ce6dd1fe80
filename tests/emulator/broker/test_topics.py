"""Topics: copies per subscription, rules with actions, filter errors, shared quota, time to live, scheduling."""

from dataclasses import replace

import pytest

from sbpair.amqp.sections import Section
from sbpair.amqp.types import Int, Symbol
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.entities import (
    EntityStatus,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.engine.errors import DISABLED, MESSAGE_NOT_FOUND, QUOTA, BrokerError, EntityError


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


@pytest.mark.parametrize(
    ("rules", "takes_steps"), [([], False), ([1, 1], False), ([2], False), ([3], True), ([1, 2], True), ([0] * 3, True)]
)
async def test_a_topic_with_more_than_two_rules_or_subscriptions_works_in_steps(bench, topic, rules, takes_steps):
    for number, count in enumerate(rules):
        subscription = subscribe(bench, f"s{number}")
        for rule in range(1, count):
            bench.namespace.create_rule("events", subscription.name, f"r{rule}", RuleDescription())
        if not count:
            bench.namespace.delete_rule("events", subscription.name, "$Default")
    assert topic.takes_steps is takes_steps


@pytest.mark.parametrize(("own", "cap", "lives"), [(None, 10, 10), (5, 10, 5), (20, 10, 10), (20, None, 20)])
async def test_a_copy_lives_as_long_as_the_shorter_of_its_own_time_and_the_topics(bench, own, cap, lives):
    topic = bench.namespace.create_topic("events", TopicDescription(default_message_time_to_live_seconds=cap))
    subscription = subscribe(bench, "s")
    bench.send(topic, "a", ttl=own)
    assert bench.peek(subscription)[0].expires_at == bench.clock.now() + lives


async def test_a_scheduled_message_in_a_topic_says_so_and_keeps_its_first_number(bench, topic):
    subscription = subscribe(bench, "S")
    bench.send(topic, "first")
    sent_at = bench.clock.now()
    bench.send(topic, "later", at=sent_at + 10)
    [kept] = topic.scheduled.log
    assert (kept.state, kept.enqueued_at, kept.sequence_number) == (MessageStateCode.SCHEDULED, sent_at, 2)
    bench.clock.advance(10)
    [_, later] = bench.peek(subscription)
    assert (later.state, later.enqueued_at) == (MessageStateCode.ACTIVE, sent_at + 10)
    assert (later.sequence_number, later.enqueued_sequence_number) == (2, 3)


async def test_what_is_scheduled_in_a_topic_goes_with_it(bench, topic):
    subscription = subscribe(bench, "s")
    bench.send(topic, "later", at=bench.clock.now() + 10)
    bench.namespace.delete_topic("events")
    bench.clock.advance(10)
    assert subscription.counts().total == 0


async def test_the_copies_of_one_transfer_have_room_together_or_are_refused(bench, topic):
    """Those of a subscription that takes nothing need none."""
    for name in ("one", "two"):
        subscribe(bench, name)
    subscribe(bench, "off", status=EntityStatus.DISABLED)
    messages = [message for _ in range(2) for message in topic.intake.read(bench.message("x" * 80, message_id="1"), 0)]
    topic.quota.limit_bytes = 4 * len(messages[0].payload) - 1
    with pytest.raises(BrokerError) as caught:
        list(topic.accepting(messages))
    assert (caught.value.condition, topic.counts().size_in_bytes) == (QUOTA, 0)
    topic.quota.limit_bytes += 1
    list(topic.accepting(messages))
    assert topic.counts().size_in_bytes == topic.quota.limit_bytes


async def test_transfers_without_keys_leave_nothing_to_the_next_message(bench):
    """Each transfer has a partition of its own, and so has what is sent after it."""
    topic = bench.namespace.create_topic("events", TopicDescription(enable_partitioning=True))
    subscribe(bench, "s")
    for _ in range(2):
        for _ in topic.accepting(topic.intake.read(bench.message("x"), 0)):
            assert topic.numbering.transfer_turn is None
    assert len({number >> 48 for number in topic.numbering.last}) == 2


@pytest.mark.parametrize("path", ["events", "events/Subscriptions/s", "q"])
@pytest.mark.parametrize("when", ["created", "updated", "changed"])
async def test_auto_delete_on_idle_of_every_kind_counts_from_creation_and_from_updates(bench, path, when):
    namespace, idle = bench.namespace, {"auto_delete_on_idle_seconds": 300}
    first = {} if when == "updated" else idle
    top, _, name = path.partition("/Subscriptions/")
    namespace.create_queue("q", QueueDescription(**first))
    namespace.create_topic("events", TopicDescription(**{} if name else first))
    if name:
        subscribe(bench, "s", **first)

    def found():
        return namespace.get_subscription(top, name) if name else namespace.find(top)

    entity = found()
    if when != "created":
        bench.clock.advance(299)
        description = replace(entity.description, user_metadata="changed", **idle)
        if name:
            namespace.update_subscription(top, name, description)
        else:
            namespace.update(top, description)
        assert entity.updated_at == bench.clock.now() > entity.created_at
    assert entity.used_at == (entity.created_at if name else None)  # a subscription is used by its making
    bench.clock.advance(299)
    assert found() is entity
    bench.clock.advance(1)
    assert found() is None


async def test_a_topic_that_is_disabled_or_made_smaller_is_so_at_once(bench, topic, make_inbox):
    link = make_inbox()
    topic.links[link] = None
    bench.namespace.update("events", replace(topic.description, max_size_in_megabytes=2048))
    assert topic.quota.limit_bytes == 2 * 1024**3
    assert link.detached is None
    for status, detached in (
        (EntityStatus.RECEIVE_DISABLED, None),
        (EntityStatus.SEND_DISABLED, DISABLED),
        (EntityStatus.DISABLED, DISABLED),
    ):
        link.detached = None
        topic.links[link] = None
        bench.namespace.update("events", replace(topic.description, status=status))
        assert link.detached == detached, status


async def test_a_subscription_that_may_receive_again_serves_who_waits(bench, topic, make_inbox):
    subscription = subscribe(bench, "s", status=EntityStatus.RECEIVE_DISABLED)
    bench.send(topic, "a")
    inbox, link = bench.receive(subscription), make_inbox()
    assert inbox.texts == []
    bench.namespace.update_subscription("events", "s", replace(subscription.description, status=EntityStatus.ACTIVE))
    assert inbox.texts == ["a"]
    subscription.links[link] = None
    work = topic.accepting(topic.intake.read(bench.message("while the rules are asked"), 0))
    next(work)
    off = replace(subscription.description, status=EntityStatus.DISABLED)
    bench.namespace.update_subscription("events", "s", off)
    assert link.detached == DISABLED
    list(work)
    assert subscription.counts().active == 1


@pytest.mark.parametrize(("failed_filter", "dead"), [("strict", 1), ("other", 0)])
async def test_dead_letters_that_a_subscription_makes_itself_are_numbered_and_dated(make_bench, failed_filter, dead):
    bench = make_bench(laws={"failed-filter": failed_filter})
    topic = bench.namespace.create_topic("events")
    failing = RuleDescription(filter=SqlFilter(expression="1 / size = 1"))
    subscribe(bench, "failing", failing, dead_lettering_on_filter_evaluation_exceptions=True)
    subscribe(bench, "sessions", requires_session=True)
    for number in (1, 2):
        bench.clock.advance(1)
        bench.send(topic, "a", properties={"size": Int(0)})
        for name, why, most in (("failing", "FilterEvaluationException", dead), ("sessions", "Session ID is null.", 1)):
            letters = bench.peek(bench.namespace.get_subscription("events", name).dead_letters)
            assert len(letters) == number * most
            for letter in letters[number - 1 :]:
                assert (letter.sequence_number, letter.enqueued_at) == (number, bench.clock.now())
                assert letter.section(Section.APPLICATION_PROPERTIES)["DeadLetterReason"] == why


async def test_a_subscription_takes_so_many_rules_with_proper_names(bench, topic):
    subscription = subscribe(bench, "s")
    default = subscription.rule("$default")
    subscription.rules.update({f"r{number}": default for number in range(1997)})
    bench.clock.advance(1)
    bench.namespace.create_rule("events", "s", "x" * 50, RuleDescription())
    assert subscription.updated_at == bench.clock.now()
    bench.namespace.create_rule("events", "s", "third", RuleDescription())
    for name, status in (("x" * 51, 400), ("bad name", 400), ("THIRD", 409), ("fourth", 403)):
        with pytest.raises(EntityError) as caught:
            bench.namespace.create_rule("events", "s", name, RuleDescription())
        assert caught.value.http_status == status
    assert len(subscription.rules) == 2000
