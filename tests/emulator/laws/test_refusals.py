"""Laws by which the service refuses something: the embedded namespace refuses it, too, unless the law is lax."""

import pytest

from sbpair.amqp.types import Int
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.broker.transactions import Transaction
from sbpair.emulator.entities import CorrelationFilter, QueueDescription, RuleDescription, SqlFilter
from sbpair.emulator.namespace import new_auth_rule
from sbpair.emulator.requests.operations import (
    Call,
    delete_messages,
    receive_by_sequence_number,
    set_session_state,
    update_disposition,
)
from sbpair.engine.errors import BrokerError, EntityError
from sbpair.service import Tier
from tests.emulator.broker.conftest import Bench
from tests.emulator.laws.conftest import law
from tests.emulator.spender import Spender

KILOBYTE = 1024


def request(bench, path, perform, **body):
    """A management request to an entity, carried out to its end."""
    named = {name.replace("_", "-"): value for name, value in body.items()}
    steps = perform(Call(bench.namespace, locate(bench.namespace, path), named))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def sends(size, **settings):
    return lambda bench: bench.send(bench.queue(**settings), "x" * size)


def sends_batch(*fields, **settings):
    """A batch of messages with these fields to a queue with these settings."""

    def act(bench):
        bench.send_batch(
            bench.queue(**settings), *(bench.message("x" * one.pop("size", 1), **one) for one in map(dict, fields))
        )

    return act


def makes_and_sends(**settings):
    return lambda bench: bench.send(bench.queue(**settings), "x")


def dead_letters_twice(bench):
    queue = bench.queue()
    bench.send(queue, "x")
    queue.main.dead_letter(bench.receive(queue).token, "why", None)
    queue.dead_letters.dead_letter(bench.receive(queue.dead_letters).token, "again", None)
    assert queue.counts().dead_letter == 1


def makes(**settings):
    return lambda bench: bench.queue(**settings)


def partitioned_with(bench, **settings):
    """A partitioned queue with a message in two of its partitions."""
    queue = bench.queue(enable_partitioning=True, **settings)
    for key in "ab":
        bench.send(queue, key, key=key)
    assert len({message.sequence_number >> 48 for message in queue.main.log}) == 2
    return queue


def settles_across(bench):
    tokens = bench.receive(partitioned_with(bench)).tokens
    request(bench, "orders", update_disposition, disposition_status="completed", lock_tokens=tokens)
    assert bench.namespace.get_queue("orders").counts().active == 0


def receives_deferred_across(bench):
    queue = partitioned_with(bench)
    for token in bench.receive(queue).tokens:
        queue.main.defer(token)
    numbers = [message.sequence_number for message in queue.main.log]
    reply = request(bench, "orders", receive_by_sequence_number, sequence_numbers=numbers)
    assert len(reply.body["messages"]) == 2


def deletes(count, **settings):
    def act(bench):
        bench.send(bench.queue(**settings), "a", "b")
        bench.clock.advance(1)
        reply = request(bench, "orders", delete_messages, message_count=Int(count))
        assert reply.body["message-count"] == 2

    return act


def sets_state(size):
    def act(bench):
        queue = bench.queue(requires_session=True)
        bench.send(queue, "x", session="s")
        bench.accept(queue, "s")
        request(bench, "orders", set_session_state, session_id="s", session_state=b"x" * size)

    return act


def makes_rule(condition):
    def act(bench):
        subscribed(bench)
        bench.namespace.create_rule("events", "all", "one", RuleDescription(filter=condition))

    return act


def subscribed(bench, name="all"):
    bench.namespace.create_topic("events")
    return bench.namespace.create_subscription("events", name)


def sends_in_transaction(count, *keys, also=None, **settings):
    def act(bench):
        queue = bench.queue(**settings)
        transaction = bench.namespace.transactions.declare(Spender().budget)
        assert isinstance(transaction, Transaction)
        for index in range(count):
            payload = bench.message("x", key=keys[index % len(keys)] if keys else None)
            transaction.send(queue, queue.intake.read(payload, 0))
        if also is not None:
            other = bench.queue(also)
            transaction.send(other, other.intake.read(bench.message("x"), 0))

    return act


def changes_sessions(bench):
    bench.queue()
    bench.namespace.update_queue("orders", QueueDescription(requires_session=True))


def fills(bench):
    queue = bench.queue(max_size_in_megabytes=1024)
    queue.quota.limit_bytes = 100
    bench.send(queue, "x" * 200)


def makes_many(count, make, **law_value):
    """Sets the number that the law allows to `count`, since thousands of entities take minutes; then one too many."""

    def act(bench):
        for attribute, strict in law_value.items():
            if getattr(bench.namespace.laws, attribute) == strict:
                bench.namespace.laws.__dict__[attribute] = count
        for index in range(count + 1):
            make(bench, index)

    return act


def rules(count):
    def act(bench):
        found = tuple(new_auth_rule(f"r{index}", {"Send"}) for index in range(count))
        bench.queue(authorization_rules=found)

    return act


def one_rule_more(bench, index):
    if index == 0:
        subscribed(bench)  # with one rule
    else:
        bench.namespace.create_rule("events", "all", f"r{index}", RuleDescription())


def one_subscription_more(bench, index):
    if index == 0:
        subscribed(bench, "s0")
    else:
        bench.namespace.create_subscription("events", f"s{index}")


def unlike_keys(bench):
    bench.send(bench.queue(enable_partitioning=True), "x", session="s", key="k")


def headers(bench):
    bench.send(bench.queue(), "x", properties={"long": "x" * 65 * KILOBYTE})


CASES = [
    law("max-message-bytes", sends(256 * KILOBYTE), "exceeds the limit"),
    law("max-message-bytes", sends(KILOBYTE * KILOBYTE), "exceeds the limit", tier=Tier.PREMIUM),
    law("max-batch-bytes", sends_batch({"size": 200 * KILOBYTE}, {"size": 100 * KILOBYTE}), "The received batch of"),
    law("max-header-bytes", headers, "headers of the message"),
    law("max-id-characters", sends_batch({"message_id": "x" * 129}), "The MessageId has 129"),
    law("max-id-characters", sends_batch({"session": "x" * 129}), "The SessionId has 129"),
    law("entity-sizes-megabytes", makes(max_size_in_megabytes=1500), "must be one of 1024"),
    law("max-session-state-bytes", sets_state(256 * KILOBYTE + 1), "too large"),
    law("max-sql-characters", makes_rule(SqlFilter(expression="a = '" + "x" * 1024 + "'")), "1024 characters"),
    law("max-user-metadata-characters", makes(user_metadata="x" * 1025), "1024 characters"),
    law("max-entities", makes_many(2, lambda bench, n: bench.queue(f"q{n}"), max_entities=10_000), "maximum of 2"),
    law("max-entities", makes_many(2, lambda b, n: b.queue(f"q{n}"), max_entities=1_000), "of 2", tier=Tier.PREMIUM),
    law(
        "max-partitioned-entities",
        makes_many(2, lambda b, n: b.queue(f"q{n}", enable_partitioning=True), max_partitioned_entities=100),
        "maximum of 2 partitioned",
    ),
    law("max-subscriptions-per-topic", makes_many(2, one_subscription_more, max_subscriptions_per_topic=2000), "its 2"),
    law("max-rules-per-subscription", makes_many(2, one_rule_more, max_rules_per_subscription=2000), "has its 2 rules"),
    law("max-authorization-rules", rules(13), "At most 12"),
    law("max-batch-delete-messages", deletes(501), "between 1 and 500"),
    law("max-batch-delete-messages", deletes(4001), "between 1 and 4000", tier=Tier.PREMIUM),
    law("max-transaction-messages", sends_in_transaction(101), "more than 100 messages"),
    law("full-entity-refuses", fills, "maximum entity size"),
    law("tier-has-topics", lambda bench: bench.namespace.create_topic("events"), "Topics are not", tier=Tier.BASIC),
    law("refused-features", makes(requires_session=True), "RequiresSession", tier=Tier.BASIC),
    law("refused-features", makes(enable_partitioning=True), "EnablePartitioning", tier=Tier.PREMIUM),
    law("create-only", changes_sessions, "RequiresSession"),
    law("min-lock-seconds", makes(lock_duration_seconds=4.0), "out of range"),
    law("max-lock-seconds", makes(lock_duration_seconds=301.0), "out of range"),
    law("min-ttl-seconds", makes(default_message_time_to_live_seconds=0.5), "out of range"),
    law("min-auto-delete-seconds", makes(auto_delete_on_idle_seconds=299.0), "out of range"),
    law("duplicate-window-seconds", makes(duplicate_detection_history_time_window_seconds=19.0), "out of range"),
    law("duplicate-window-seconds", makes(duplicate_detection_history_time_window_seconds=8 * 86400.0), "out of range"),
    law("max-entity-path-characters", makes(path="x" * 261), "261 characters exceeds"),
    law("max-child-name-characters", lambda bench: subscribed(bench, "x" * 51), "1 to 50 letters"),
    law(
        "partitioned-batch-key",
        sends_batch({"key": "a"}, {"key": "b"}, enable_partitioning=True),
        "PartitionKey is not",
    ),
    law(
        "partitioned-batch-key",
        sends_batch({"session": "a"}, {"session": "b"}, enable_partitioning=True, requires_session=True),
        "distinct SessionId or PartitionKey",
    ),
    law("partitioned-batch-keyless", sends_batch({"key": "a"}, {}, enable_partitioning=True), "PartitionKey is not"),
    law(
        "partitioned-batch-message-id",
        sends_batch(
            {"message_id": "a", "key": "k"},
            {"message_id": "b", "key": "k"},
            enable_partitioning=True,
            requires_duplicate_detection=True,
        ),
        "PartitionKey, or MessageId  is not supported for an entity with partitioning and duplicate detection",
    ),
    law("settle-one-partition", settles_across, "Batching lock tokens for different partitions"),
    law("deferred-one-partition", receives_deferred_across, "sequence numbers from different partitions"),
    law("batch-delete-partitioned", deletes(2, enable_partitioning=True), "partitioned entity cannot be deleted"),
    law("partition-key-is-session-id", unlike_keys, "must equal the session id"),
    law("dead-letter-stays", dead_letters_twice, "cannot be dead-lettered again"),
    law("session-id-needed", makes_and_sends(requires_session=True), "SessionId was not set"),
    law("empty-correlation-filter", makes_rule(CorrelationFilter()), "at least one property"),
    law("transaction-single-entity", sends_in_transaction(1, also="results"), "multiple entities"),
    law("transaction-needs-key", sends_in_transaction(1, enable_partitioning=True), "without partition key"),
    law("forwarding-target-exists", makes(forward_to="nowhere"), "does not exist; create it first"),
    law(
        "manage-has-all-rights", lambda bench: bench.namespace.set_auth_rule(new_auth_rule("m", {"Manage"})), "Send and"
    ),
    law("transaction-one-partition", sends_in_transaction(2, "a", "b", enable_partitioning=True), "span"),
]


@pytest.mark.parametrize(("name", "act", "refusal", "bench"), CASES)
async def test_it_is_refused_unless_the_law_is_lax(name, act, refusal, bench):
    with pytest.raises((BrokerError, EntityError), match=refusal):
        act(Bench(**bench))
    act(Bench(**bench, laws={name: "lax"}))


async def test_a_refused_batch_leaves_nothing(make_bench):
    bench = make_bench()
    queue = bench.queue(enable_partitioning=True)
    with pytest.raises(BrokerError):
        bench.send_batch(queue, bench.message("a", key="a"), bench.message("b", key="b"))
    assert queue.counts().total == 0
    bench.send_batch(queue, bench.message("a", key="a"), bench.message("b", key="a"))
    assert queue.counts().active == 2
