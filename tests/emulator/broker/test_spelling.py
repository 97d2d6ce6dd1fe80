"""Names, keys and addresses in whatever spelling: one entity, one rule, one partition, one session."""

import pytest

from sbpair.amqp.sections import Section
from sbpair.amqp.types import Symbol
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.entities import FalseFilter, QueueDescription, RuleDescription
from sbpair.engine.errors import EntityError

SPELLINGS = (str, str.lower, str.upper, str.swapcase)


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("/", ""), ("/", "/"), ("", "/")])
async def test_an_address_leads_to_the_same_place(bench, spell, before, after):
    namespace = bench.namespace
    queue = namespace.create_queue("Shop/Orders", QueueDescription())
    topic = namespace.create_topic("News")
    subscription = namespace.create_subscription("News", "All")
    places = {
        "Shop/Orders": (queue, "Shop/Orders", False),
        "Shop/Orders/$DeadLetterQueue": (queue, "Shop/Orders/$deadletterqueue", False),
        "Shop/Orders/$Transfer/$DeadLetterQueue/$management": (queue, "Shop/Orders/$transfer/$deadletterqueue", True),
        "News": (topic, "News", False),
        "News/Subscriptions/All": (subscription, "News/Subscriptions/All", False),
        "News/Subscriptions/All/$DeadLetterQueue/$management": (
            subscription,
            "News/Subscriptions/All/$deadletterqueue",
            True,
        ),
    }
    for address, expected in places.items():
        found = locate(namespace, before + spell(address) + after)
        assert found is not None
        assert (found.entity, found.path, found.management) == expected
    for address in ("Shop", "News/$DeadLetterQueue", "News/Subscriptions/Other", "Orders"):
        assert locate(namespace, spell(address)) is None


@pytest.mark.parametrize("spell", SPELLINGS)
async def test_rules_and_subscriptions_are_known_by_their_names_in_any_spelling(bench, spell):
    topic = bench.namespace.create_topic("News")
    subscription = bench.namespace.create_subscription("News", "All")
    subscription.add_rule("Big", RuleDescription(filter=FalseFilter()))
    assert subscription.rule(spell("Big")).name == "Big"
    with pytest.raises(EntityError):
        subscription.add_rule(spell("Big"), RuleDescription())
    bench.send(topic, "x")
    assert bench.receive(subscription).texts == ["x"]


@pytest.mark.parametrize("spell", SPELLINGS)
async def test_a_dead_letter_names_where_it_was_in_small_letters(bench, spell, sections_of):
    queue = bench.queue(spell("Orders"))
    bench.send(queue, "x")
    inbox = bench.receive(queue)
    queue.main.dead_letter(inbox.token, "why", None)
    (dead,) = bench.peek(queue.dead_letters)
    annotations = sections_of(dead.render())[Section.MESSAGE_ANNOTATIONS]
    assert annotations[Symbol("x-opt-deadletter-source")] == "orders"


async def test_messages_of_one_key_or_session_lie_in_one_partition_however_it_is_spelled(bench):
    queue = bench.queue(enable_partitioning=True)
    keys = [f"Key-{number}" for number in range(20)]
    found = {spell: [queue.numbering.of_key(spell(key)) for key in keys] for spell in SPELLINGS}
    assert len({tuple(one) for one in found.values()}) == 1
    assert len(set(found[str])) > 1
    for spell in SPELLINGS:
        bench.send(queue, spell("Key-0"), key=spell("Key-0"))
    numbers = [message.sequence_number >> 48 for message in bench.peek(queue)]
    assert numbers == [found[str][0]] * len(SPELLINGS)
