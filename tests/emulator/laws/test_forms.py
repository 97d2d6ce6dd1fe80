"""Laws that decide how the embedded namespace behaves: each form shows."""

import pytest

from sbpair.amqp.performatives import DISPOSITION, TRANSFER, accepted
from sbpair.amqp.sections import PropertyField, build
from sbpair.amqp.types import Uint, Ulong
from sbpair.emulator.broker.messages import PING_CONTENT_TYPE
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.broker.transactions import TIMED_OUT, TransactionGroup
from sbpair.emulator.entities import QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription
from sbpair.emulator.laws import Laws
from sbpair.emulator.receivers import waiting_seconds
from sbpair.emulator.requests.operations import peek_message, set_session_state
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import SESSION_LOCK_LOST, BrokerError, EntityError
from sbpair.service import NEVER_SECONDS, Tier
from tests.emulator.laws.test_refusals import request
from tests.emulator.spender import Spender
from tests.engine.dialects import AZURE_SERVICEBUS
from tests.engine.test_dialogues import lease_session, logged_in


def partitions(queue):
    return {partition_of(message.sequence_number) for message in queue.main.log}


@pytest.mark.law("partitioned-size-factor")
@pytest.mark.parametrize(("form", "tier", "megabytes"), [("strict", "Standard", 16), ("lax", "Standard", 1)])
async def test_a_partitioned_entity_reads_back_a_multiple(make_bench, form, tier, megabytes):
    bench = make_bench(tier=Tier(tier), laws={"partitioned-size-factor": form})
    assert bench.queue(enable_partitioning=True).description.max_size_in_megabytes == megabytes * 1024
    assert bench.queue("plain").description.max_size_in_megabytes == 1024


@pytest.mark.law("max-message-kilobytes", "largest-message")
async def test_the_largest_message_is_set_in_the_premium_tier_alone(make_bench):
    settings = {"max_message_size_in_kilobytes": 102_400}
    assert make_bench(tier=Tier.PREMIUM).queue(**settings).intake.max_message_bytes == 102_400 * 1024
    with pytest.raises(EntityError, match="between 1024 and 102400"):
        make_bench(tier=Tier.PREMIUM).queue(max_message_size_in_kilobytes=102_401)
    assert make_bench().queue(**settings).intake.max_message_bytes == 256 * 1024
    lax = make_bench(laws={"max-message-kilobytes": "lax"})
    assert lax.queue(**settings).intake.max_message_bytes == 102_400 * 1024


@pytest.mark.law("max-session-state-bytes")
async def test_the_state_of_a_premium_session_may_be_large(make_bench):
    bench = make_bench(tier=Tier.PREMIUM)
    queue = bench.queue(requires_session=True)
    bench.send(queue, "x", session="s")
    bench.accept(queue, "s")
    request(bench, "orders", set_session_state, session_id="s", session_state=b"x" * (2 << 20))
    assert len(queue.main.sessions.get("s").state) == 2 << 20


@pytest.mark.law("settled-after-session-lost")
@pytest.mark.parametrize(
    ("form", "condition"), [("strict", "com.microsoft:message-lock-lost"), ("other", "com.microsoft:session-lock-lost")]
)
async def test_what_a_settlement_is_told_whose_session_lock_has_run_out(form, condition):
    clock = ManualClock()
    configs = [NamespaceConfig("primary", laws={"settled-after-session-lost": form})]
    async with Emulator(configs, clock=clock, seed=1) as emulator:
        queue = emulator.namespace("primary").create_queue("orders", QueueDescription(requires_session=True))
        queue.send(build(properties={PropertyField.GROUP_ID: "blue"}, data=b"x"))
        async with logged_in(emulator, AZURE_SERVICEBUS, "orders") as client:
            lease_session(client, "orders")
            delivery = await client.until(TRANSFER)
            clock.advance(61)
            client.settle(delivery.field(1), None, accepted())
            refused = (await client.until(DISPOSITION)).field(4)
            assert refused.value[0].value[0] == condition
        assert queue.counts().active == 1


@pytest.mark.law("large-message-counts-twice")
async def test_a_large_message_counts_with_its_own_bytes(make_bench):
    bench = make_bench(tier=Tier.PREMIUM)
    queue = bench.queue(max_message_size_in_kilobytes=4096)
    bench.send(queue, "x" * (2 << 20))
    assert 2 << 20 < queue.counts().size_in_bytes < 3 << 20


@pytest.mark.law("tier-ttl-seconds")
@pytest.mark.parametrize(("form", "seconds"), [("strict", 14 * 86_400.0), ("lax", None)])
async def test_messages_of_the_basic_tier_live_two_weeks(make_bench, form, seconds):
    bench = make_bench(tier=Tier.BASIC, laws={"tier-ttl-seconds": form})
    assert bench.queue().description.default_message_time_to_live_seconds == seconds


@pytest.mark.law("max-delivery-count")
async def test_a_delivery_count_has_no_bound_of_its_own(make_bench):
    make_bench().queue(max_delivery_count=2**31 - 1)
    with pytest.raises(EntityError, match="between 1 and 2000"):
        make_bench(laws={"max-delivery-count": "other"}).queue(max_delivery_count=2001)


@pytest.mark.law("max-lock-seconds", "duplicate-window-seconds")
async def test_a_lax_time_is_a_time_span_still(make_bench):
    bench = make_bench(laws={"max-lock-seconds": "lax"})
    with pytest.raises(EntityError, match="out of range"):
        bench.queue(lock_duration_seconds=NEVER_SECONDS * 2)


@pytest.mark.law("message-id-pins-partition")
@pytest.mark.parametrize(("form", "used"), [("strict", 1), ("lax", 4)])
async def test_the_message_id_pins_under_duplicate_detection(make_bench, form, used):
    bench = make_bench(laws={"message-id-pins-partition": form})
    queue = bench.queue(
        enable_partitioning=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window_seconds=20.0,
    )
    for _ in range(4):
        bench.send(queue, "x", message_id="same")
        bench.clock.advance(21)
    assert queue.counts().active == 4
    assert len(partitions(queue)) == used


@pytest.mark.law("peek-one-partition")
@pytest.mark.parametrize(("form", "found"), [("strict", 1), ("lax", 4)])
async def test_a_page_of_a_partitioned_entity_is_of_one_partition(make_bench, form, found):
    bench = make_bench(laws={"peek-one-partition": form})
    queue = bench.queue(enable_partitioning=True)
    bench.send(queue, *"abcd")
    assert len(partitions(queue)) == 4
    assert len(bench.peek(queue)) == found


@pytest.mark.law("partition-count")
@pytest.mark.parametrize(("form", "used"), [("strict", 16), ("other", 4)])
async def test_a_partitioned_entity_has_that_many_partitions(make_bench, form, used):
    bench = make_bench(laws={"partition-count": form})
    queue = bench.queue(enable_partitioning=True)
    bench.send(queue, *map(str, range(64)))
    assert len(partitions(queue)) == used


@pytest.mark.law("session-key")
@pytest.mark.parametrize(("form", "sessions"), [("strict", 1), ("lax", 3), ("other", 2)])
async def test_spellings_of_a_session(make_bench, form, sessions):
    bench = make_bench(laws={"session-key": form})
    queue = bench.queue(requires_session=True)
    for spelling in ("Ärger-7", "ärger-7", "ÄRGER-7"):
        bench.send(queue, "x", session=spelling)
    assert len(queue.main.sessions.listed(None)) == sessions


@pytest.mark.law("transaction-seconds")
@pytest.mark.parametrize(("form", "seconds"), [("strict", 120), ("other", 60)])
async def test_a_transaction_ends_by_itself(make_bench, form, seconds):
    bench, client = make_bench(laws={"transaction-seconds": form}), Spender()
    transaction = bench.namespace.transactions.declare(client.budget)
    bench.clock.advance(seconds - 1)
    assert bench.namespace.transactions.is_open(transaction.id)
    bench.clock.advance(2)
    with pytest.raises(BrokerError, match=f"more than {seconds} s") as caught:
        bench.namespace.transactions.require(transaction.id, client.budget)
    assert caught.value.condition == TIMED_OUT


@pytest.mark.law("max-peek-messages")
@pytest.mark.parametrize(("form", "found"), [("strict", 250), ("other", 32)])
async def test_a_request_browses_so_many(make_bench, form, found):
    bench = make_bench(laws={"max-peek-messages": form})
    bench.send(bench.queue(), *map(str, range(260)))
    reply = request(bench, "orders", peek_message, from_sequence_number=0, message_count=1000)
    assert len(reply.body["messages"]) == found


@pytest.mark.law("receive-order-of-partitions")
async def test_partitions_are_received_in_turns(make_bench):
    bench = make_bench()
    queue = bench.queue(enable_partitioning=True)
    for key in ("a", "a", "b", "b"):
        bench.send(queue, key, key=key)
    assert len(partitions(queue)) == 2
    assert bench.receive(queue).texts in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


@pytest.mark.law("next-session-timeout-seconds")
@pytest.mark.parametrize(("form", "seconds"), [("strict", 60.0), ("other", 30.0)])
def test_a_receiver_waits_so_long_for_the_next_session(form, seconds):
    laws = Laws(bent={"next-session-timeout-seconds": form})
    assert waiting_seconds({}, laws) == seconds
    assert waiting_seconds({"com.microsoft:timeout": Uint(5000)}, laws) == 5.0


FAILED_DELIVERIES = {"strict": 1, "lax": 0, "other": 1}


@pytest.mark.law("deferral-counts")
@pytest.mark.parametrize("form", ["strict", "lax"])
async def test_whether_a_deferral_counts(make_bench, form):
    bench = make_bench(laws={"deferral-counts": form})
    queue = bench.queue()
    bench.send(queue, "x")
    queue.main.defer(bench.receive(queue).token)
    (message,) = queue.main.log
    assert message.delivery_count == FAILED_DELIVERIES[form]


@pytest.mark.law("expired-lock-counts")
@pytest.mark.parametrize("form", ["strict", "lax"])
async def test_whether_an_expired_lock_counts(make_bench, form):
    bench = make_bench(laws={"expired-lock-counts": form})
    queue = bench.queue()
    bench.send(queue, "x")
    bench.receive(queue, 1)
    bench.clock.advance(61)
    (message,) = queue.main.log
    assert message.delivery_count == FAILED_DELIVERIES[form]
    assert bench.receive(queue).texts == ["x"]


@pytest.mark.law("last-delivery-dead-letters")
@pytest.mark.parametrize(("form", "dead"), [("strict", 1), ("lax", 0)])
async def test_whether_the_last_delivery_dead_letters(make_bench, form, dead):
    bench = make_bench(laws={"last-delivery-dead-letters": form})
    queue = bench.queue(max_delivery_count=1)
    bench.send(queue, "x")
    queue.main.abandon(bench.receive(queue, 1).token)
    assert (queue.counts().dead_letter, queue.counts().active) == (dead, 1 - dead)


@pytest.mark.law("dead-letters-never-expire")
@pytest.mark.parametrize(("form", "left"), [("strict", ["x"]), ("lax", [])])
async def test_whether_dead_letters_expire(make_bench, form, left):
    bench = make_bench(laws={"dead-letters-never-expire": form})
    queue = bench.queue()
    bench.send(queue, "x", ttl=30)
    queue.main.dead_letter(bench.receive(queue).token, "why", None)
    bench.clock.advance(31)
    assert bench.receive(queue.dead_letters).texts == left


@pytest.mark.law("entity-ttl-is-the-longest")
@pytest.mark.parametrize(("form", "left"), [("strict", []), ("lax", ["x"])])
async def test_whether_the_default_caps_the_time_to_live(make_bench, form, left):
    bench = make_bench(laws={"entity-ttl-is-the-longest": form})
    queue = bench.queue(default_message_time_to_live_seconds=10.0)
    bench.send(queue, "x", ttl=60)
    bench.clock.advance(11)
    assert bench.receive(queue).texts == left


@pytest.mark.law("pings-vanish")
@pytest.mark.parametrize(("form", "stored"), [("strict", 0), ("other", 1)])
async def test_whether_pings_are_delivered(make_bench, form, stored):
    bench = make_bench(laws={"pings-vanish": form})
    queue = bench.queue()
    bench.send(queue, "ping", content_type=PING_CONTENT_TYPE)
    assert queue.counts().active == stored


@pytest.mark.law("id-given")
@pytest.mark.parametrize(("form", "given"), [("strict", True), ("other", False)])
async def test_whether_a_message_without_an_id_is_given_one(make_bench, form, given):
    bench = make_bench(laws={"id-given": form})
    queue = bench.queue()
    bench.send(queue, "x")
    (message,) = queue.main.log
    assert (message.message_id is not None) is given


@pytest.mark.law("duplicates-dropped")
@pytest.mark.parametrize(("form", "stored"), [("strict", 1), ("lax", 2)])
async def test_whether_duplicates_are_dropped(make_bench, form, stored):
    bench = make_bench(laws={"duplicates-dropped": form})
    queue = bench.queue(requires_duplicate_detection=True)
    bench.send(queue, "a", "b", message_id="same")
    assert queue.counts().active == stored


@pytest.mark.law("duplicate-has-same-key")
@pytest.mark.parametrize(("form", "stored"), [("strict", 2), ("lax", 1)])
async def test_whether_a_duplicate_has_the_same_key(make_bench, form, stored):
    bench = make_bench(laws={"duplicate-has-same-key": form})
    queue = bench.queue(requires_duplicate_detection=True, enable_partitioning=True)
    for key in "ab":
        bench.send(queue, "x", message_id="same", key=key)
    assert queue.counts().active == stored


@pytest.mark.law("message-id-key")
@pytest.mark.parametrize(("form", "stored"), [("strict", 3), ("other", 2)])
async def test_whether_message_ids_compare_with_case(make_bench, form, stored):
    bench = make_bench(laws={"message-id-key": form})
    queue = bench.queue(requires_duplicate_detection=True)
    for message_id in ("Order-7", "ORDER-7", Ulong(7)):
        bench.send(queue, "x", message_id=message_id)
    assert queue.counts().active == stored


@pytest.mark.law("failed-filter")
@pytest.mark.parametrize(("form", "dead"), [("strict", 1), ("other", 0)])
async def test_whether_a_failed_filter_dead_letters(make_bench, form, dead):
    bench = make_bench(laws={"failed-filter": form})
    topic = bench.namespace.create_topic("events")
    description = SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=True)
    wrong = RuleDescription(filter=SqlFilter(expression="size + 1 > 0"))
    subscription = bench.namespace.create_subscription("events", "all", description, rule=wrong)
    bench.send(topic, "x", properties={"size": "not a number"})
    assert subscription.counts().dead_letter == dead
    assert subscription.counts().active == 0


@pytest.mark.law("lost-session-counts", "left-session-counts")
@pytest.mark.parametrize(
    ("lost", "left", "counts"),
    [("strict", "strict", (1, 1)), ("lax", "strict", (0, 0)), ("strict", "other", (1, 2)), ("lax", "other", (0, 1))],
)
async def test_what_the_end_of_a_session_counts(make_bench, lost, left, counts):
    bench = make_bench(laws={"lost-session-counts": lost, "left-session-counts": left})
    queue = bench.queue(requires_session=True)
    bench.send(queue, "x", session="s")
    bench.accept(queue, "s")
    bench.clock.advance(61)
    (message,) = queue.main.log
    first = message.delivery_count
    queue.main.leave(bench.accept(queue, "s"))
    assert (first, message.delivery_count) == counts


@pytest.mark.law("session-detach-seconds")
@pytest.mark.parametrize(("form", "told"), [("strict", None), ("other", SESSION_LOCK_LOST)])
async def test_when_a_receiver_hears_of_its_lost_session(make_bench, form, told):
    bench = make_bench(laws={"session-detach-seconds": form})
    queue = bench.queue(requires_session=True)
    bench.send(queue, "x", session="s")
    inbox = bench.accept(queue, "s")
    bench.clock.advance(60.5)
    assert inbox.detached == told
    bench.clock.advance(2)
    assert inbox.detached == SESSION_LOCK_LOST


@pytest.mark.law("transaction-single-connection")
@pytest.mark.parametrize("form", ["strict", "lax"])
async def test_whose_a_transaction_is(make_bench, form):
    bench = make_bench(laws={"transaction-single-connection": form})
    transaction = bench.namespace.transactions.declare(Spender().budget)
    other = Spender().budget
    if form == "lax":
        assert bench.namespace.transactions.require(transaction.id, other) is transaction
    else:
        with pytest.raises(BrokerError, match="hasn't been declared"):
            bench.namespace.transactions.require(transaction.id, other)


@pytest.mark.law("full-target-waits")
@pytest.mark.parametrize(("form", "waits"), [("strict", 1), ("other", 0)])
async def test_where_waits_what_a_full_destination_does_not_take(make_bench, form, waits):
    bench = make_bench(laws={"full-target-waits": form})
    bench.queue("results").quota.limit_bytes = 10
    queue = bench.queue(forward_to="results")
    bench.send(queue, "x" * 20)
    assert (queue.counts().transfer, queue.counts().transfer_dead_letter) == (waits, 1 - waits)


@pytest.mark.law("max-forwarding-hops")
@pytest.mark.parametrize(("form", "arrived"), [("strict", 0), ("lax", 1)])
async def test_how_often_a_message_is_forwarded(make_bench, form, arrived):
    bench = make_bench(laws={"max-forwarding-hops": form})
    last = bench.queue("q5")
    for index in range(4, -1, -1):
        bench.queue(f"q{index}", forward_to=f"q{index + 1}")
    bench.send(bench.namespace.get_queue("q0"), "x")
    assert last.counts().active == arrived
    assert bench.namespace.get_queue("q4").counts().dead_letter == 1 - arrived


@pytest.mark.law("deferred-count-as-active")
async def test_deferred_messages_count_as_active(make_bench):
    bench = make_bench()
    queue = bench.queue()
    bench.send(queue, "x")
    queue.main.defer(bench.receive(queue).token)
    assert queue.counts().active == 1


@pytest.mark.law("cancelled-elsewhere")
async def test_a_transaction_across_entities_cancels_at_any_of_them(make_bench):
    bench = make_bench()
    first, second = bench.queue("first"), bench.queue("second")
    for queue in (first, second):
        bench.send(queue, "x", at=bench.clock.now() + 60)
    group = TransactionGroup()
    group.via = first
    client = Spender()
    transaction = bench.namespace.transactions.declare(client.budget, group)
    for queue in (first, second):
        transaction.cancel_scheduled(queue, [message.sequence_number for message in queue.main.log])
    list(bench.namespace.transactions.committing(transaction.id, client.budget))
    assert (first.counts().scheduled, second.counts().scheduled) == (0, 0)
