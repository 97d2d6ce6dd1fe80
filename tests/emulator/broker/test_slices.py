"""What takes long is done in steps: nothing of it is seen before its end, and nothing is lost when it is broken off."""

import asyncio
from dataclasses import replace

import pytest

from sbpair.emulator.broker.messages import MessageStateCode, parse
from sbpair.emulator.broker.transactions import ROLLED_BACK
from sbpair.emulator.entities import RuleDescription, SqlAction, SqlFilter
from sbpair.emulator.filters import MAX_FILTER_STEPS_PER_RULE, BrokerMessageView, FilterEvaluationError, Rule
from sbpair.emulator.laws import Laws
from sbpair.engine.budgets import Background
from sbpair.engine.errors import RESOURCE_DELETED, BrokerError
from tests.emulator.spender import Slow, Spender
from tests.engine.wire_client import seen

RULES = 40


@pytest.fixture
def slow(bench):
    """The bench with a namespace whose every step takes a millisecond."""
    bench.namespace.background = Background(Slow())
    return bench


@pytest.fixture
def topic(bench):
    """A topic whose subscription makes 40 copies and one more."""
    made = bench.namespace.create_topic("events")
    bench.namespace.create_subscription("events", "all")
    for number in range(RULES):
        action = SqlAction(expression=f"SET a = {number}; SET b = a + 1")
        bench.namespace.create_rule("events", "all", f"r{number}", RuleDescription(action=action))
    return made


def arrived(bench):
    return bench.namespace.get_subscription("events", "all").counts().active


def parsed(bench, entity, *bodies):
    return [message for body in bodies for message in entity.intake.read(bench.message(body), 0)]


async def test_each_rule_and_each_action_is_a_step_and_nothing_is_seen_before_the_last(bench, topic):
    work = topic.accepting(parsed(bench, topic, "x"))
    steps = 0
    for _ in work:
        steps += 1
        assert arrived(bench) == 0 or steps == 2 * RULES + 3
    assert steps == 2 * RULES + 3
    assert arrived(bench) == RULES + 1


async def test_a_publication_that_is_broken_off_has_changed_nothing(bench, topic):
    work = topic.accepting(parsed(bench, topic, "x"))
    for _ in range(RULES):
        next(work)
    work.close()
    assert arrived(bench) == 0
    topic.accept(parsed(bench, topic, "y"))
    assert arrived(bench) == RULES + 1


async def test_what_arrives_meanwhile_is_in_time_and_a_subscription_that_is_gone_takes_nothing(bench, topic):
    bench.namespace.create_subscription("events", "other")
    work = topic.accepting(parsed(bench, topic, "x"))
    next(work)
    topic.accept(parsed(bench, topic, "y"))
    bench.namespace.delete_subscription("events", "all")
    assert list(work)
    other = bench.namespace.get_subscription("events", "other")
    assert topic.counts().size_in_bytes == sum(len(message.payload) for message in bench.peek(other))
    assert bench.receive(other).texts == ["y", "x"]


async def test_a_topic_that_is_deleted_meanwhile_takes_nothing(bench, topic):
    work = topic.accepting(parsed(bench, topic, "x"))
    next(work)
    bench.namespace.delete_topic("events")
    with pytest.raises(BrokerError) as caught:
        list(work)
    assert caught.value.condition == RESOURCE_DELETED


async def test_a_commit_finds_that_a_lock_has_ended_while_the_rules_were_gone_through(bench, topic):
    bench.namespace.create_subscription("events", "work")
    work = bench.namespace.get_subscription("events", "work")
    bench.send(topic, "first")
    before, budget, token = arrived(bench), Spender().budget, bench.receive(work, 1).token
    transaction = bench.namespace.transactions.declare(budget)
    transaction.send(topic, parsed(bench, topic, "second"))
    transaction.settle(work.main, token, lambda: work.main.complete(token))
    steps = bench.namespace.transactions.committing(transaction.id, budget)
    next(steps)
    bench.clock.advance(work.lock_seconds)
    with pytest.raises(BrokerError) as caught:
        list(steps)
    assert caught.value.condition == ROLLED_BACK
    assert (arrived(bench), bench.receive(work).texts) == (before, ["first"])


async def test_a_batch_that_was_accepted_arrives_whole_although_its_sender_is_gone(bench):
    queue = bench.queue()
    work = queue.accepting(parsed(bench, queue, *"abcdef"))
    next(work)
    next(work)
    work.close()
    assert bench.receive(queue).texts == list("abcdef")


async def test_a_queue_that_is_deleted_meanwhile_takes_no_more(bench):
    queue = bench.queue()
    work = queue.accepting(parsed(bench, queue, *"abc"))
    next(work)
    bench.namespace.delete_queue("orders")
    assert list(work) == []


async def test_scheduled_messages_that_are_due_together_are_published_in_slices(slow, topic):
    bench = slow
    for body in "ab":
        bench.send(topic, body, at=bench.clock.now() + 10)
    bench.clock.advance(10)
    assert (arrived(bench), topic.counts().scheduled) == (0, 2)
    topic.cancel_scheduled([next(iter(topic.scheduled.log)).sequence_number])
    await seen(lambda: arrived(bench))
    assert (arrived(bench), topic.counts().scheduled) == (RULES + 1, 0)
    assert set(bench.receive(bench.namespace.get_subscription("events", "all")).texts) == {"b"}


async def test_a_message_on_its_way_into_a_topic_has_a_place_until_it_is_there(slow, topic):
    bench = slow
    queue = bench.queue(forward_to="events")
    bench.send(queue, "x")
    assert (queue.counts().transfer, arrived(bench)) == (1, 0)
    await seen(lambda: arrived(bench))
    assert (queue.counts().transfer, queue.counts().size_in_bytes, arrived(bench)) == (0, 0, RULES + 1)


async def test_forwarding_that_is_switched_on_moves_what_waits_in_slices(slow, text):
    bench = slow
    queue, target = bench.queue(), bench.queue("target")
    bench.send(queue, *map(str, range(100)))
    held = bench.receive(queue, 1)
    await asyncio.sleep(0)
    bench.namespace.update_queue("orders", replace(queue.description, forward_to="target"))
    assert 0 < target.counts().active < 10
    await seen(lambda: target.counts().active == 99)
    assert [message.state for message, _ in held.got] == [MessageStateCode.ACTIVE]
    assert [text(message) for message in bench.peek(target)] == [str(number) for number in range(1, 100)]


@pytest.mark.law("filters-at-any-cost")
def test_a_rule_may_look_at_so_much_and_the_next_one_has_a_share_of_its_own(bench):
    view = BrokerMessageView(parse(bench.message("x", properties={"p": "a" * 30_000}), Laws()))
    wild = Rule("r", RuleDescription(filter=SqlFilter(expression="p LIKE '%a" + "_" * 300 + "b%'")), 0.0)
    doubling = Rule("d", RuleDescription(action=SqlAction(expression="SET p = p + p; " * 8)), 0.0)
    for rule in (wild.matches, doubling.changed, wild.matches):
        with pytest.raises(FilterEvaluationError, match="too much text"):
            rule(view)
    assert MAX_FILTER_STEPS_PER_RULE < 30_000 * 2**7
    assert Rule("p", RuleDescription(filter=SqlFilter(expression="p LIKE '%a%'")), 0.0).matches(view)


async def test_a_batch_of_several_keys_is_refused_in_steps_as_well(bench):
    queue = bench.queue(enable_partitioning=True)
    messages = [one for key in "ab" for one in queue.intake.read(bench.message("x", key=key), 0)]
    with pytest.raises(BrokerError):
        list(queue.accepting(messages))
    assert len(list(queue.accepting(messages, in_one_transfer=False))) == 2
