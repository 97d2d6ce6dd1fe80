"""Laws that decide how the embedded namespace behaves: each form shows."""

import pytest

from sbpair.amqp.sections import PropertyField, build
from sbpair.amqp.types import Uint
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.broker.transactions import TIMED_OUT
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.laws import Laws
from sbpair.emulator.receivers import waiting_seconds
from sbpair.emulator.requests.peek import peek_message
from sbpair.emulator.requests.sessions import set_session_state
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import BrokerError, EntityError
from sbpair.engine.performatives import DISPOSITION, TRANSFER, accepted
from sbpair.service import NEVER_SECONDS, Tier
from tests.emulator.engine.dialects import AZURE_SERVICEBUS
from tests.emulator.engine.test_dialogues import lease_session, logged_in
from tests.emulator.laws.test_refusals import request
from tests.emulator.spender import Spender


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
    ("form", "condition"),
    [("strict", "com.microsoft:message-lock-lost"), ("other", "com.microsoft:session-lock-lost")],
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
