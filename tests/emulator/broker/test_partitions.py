"""Partitioned entities: numbers, keys, turns, peeking, sizes."""

import pytest

from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.entities import QueueDescription
from sbpair.engine.errors import INTERNAL_ERROR, NOT_ALLOWED, BrokerError, EntityError
from sbpair.engine.faults import FaultError
from sbpair.service import Tier
from tests.emulator.spender import Spender


@pytest.fixture
def queue(bench):
    return bench.queue(enable_partitioning=True)


def partitions(messages):
    return {partition_of(message.sequence_number) for message in messages}


def numbers(queue):
    return [message.sequence_number for message in queue.main.log]


async def test_without_key_the_partitions_take_turns(bench, queue):
    bench.send(queue, *map(str, range(32)))
    found = numbers(queue)
    assert {number >> 48 for number in found} == set(range(16))
    assert {number & (1 << 48) - 1 for number in found} == {1, 2}


@pytest.mark.parametrize("field", ["key", "session"])
async def test_a_key_pins_to_one_partition_in_order(bench, queue, field):
    bench.send(queue, *"abcdef", **{field: "same"})
    assert len({number >> 48 for number in numbers(queue)}) == 1
    assert bench.receive(queue).texts == list("abcdef")


async def test_session_id_and_partition_key_go_to_the_same_place(bench, queue):
    bench.send(queue, "a", session="k")
    bench.send(queue, "b", key="k")
    bench.send(queue, "c", key="k", session="k")
    assert len({number >> 48 for number in numbers(queue)}) == 1


async def test_the_message_id_is_the_key_only_under_duplicate_detection(bench, queue):
    detecting = bench.queue("detecting", enable_partitioning=True, requires_duplicate_detection=True)
    for index in range(16):
        bench.send(queue, "a", message_id="same")
        bench.send(detecting, "a", message_id="same" if index == 0 else f"other-{index}")
    assert len({number >> 48 for number in numbers(queue)}) == 16
    bench.send(detecting, "dup", message_id="same")
    assert detecting.counts().active == 16


async def test_duplicates_are_told_apart_by_partition_key(bench):
    queue = bench.queue(enable_partitioning=True, requires_duplicate_detection=True)
    bench.send(queue, "a", message_id="1", key="x")
    bench.send(queue, "b", message_id="1", key="y")
    bench.send(queue, "c", message_id="1", key="x")
    assert sorted(bench.receive(queue).texts) == ["a", "b"]


async def test_different_session_and_key_are_refused(bench, queue):
    with pytest.raises(BrokerError) as caught:
        bench.send(queue, "a", session="s", key="k")
    assert caught.value.condition == NOT_ALLOWED
    assert queue.counts().active == 0


async def test_receiving_empties_all_partitions(bench, queue):
    bench.send(queue, *map(str, range(50)))
    assert sorted(map(int, bench.receive(queue).texts)) == list(range(50))


async def test_a_peek_page_comes_from_one_partition_and_not_always_the_oldest(bench, queue):
    bench.send(queue, *map(str, range(64)))
    pages = [bench.peek(queue) for _ in range(16)]
    assert all(len(page) == 4 and len(partitions(page)) == 1 for page in pages)
    assert set().union(*(partitions(page) for page in pages)) == set(range(16))


async def test_peeking_on_from_a_number_stays_in_its_partition_then_goes_up(bench, queue):
    bench.send(queue, *map(str, range(64)))
    start = 3 << 48
    first = bench.peek(queue, start, 3)
    rest = bench.peek(queue, first[-1].sequence_number + 1)
    beyond = bench.peek(queue, rest[-1].sequence_number + 1)
    assert (len(first), len(rest), len(beyond)) == (3, 1, 4)
    assert partitions(first) == partitions(rest) == {3}
    assert partitions(beyond) == {4}


async def test_walking_every_partition_finds_every_message(bench, queue):
    bench.send(queue, *map(str, range(100)))
    seen = set()
    for partition in range(16):
        since = max(partition << 48, 1)
        while (page := bench.peek(queue, since, 2)) and partitions(page) == {partition}:
            seen.update(message.sequence_number for message in page)
            since = page[-1].sequence_number + 1
    assert len(seen) == 100


@pytest.mark.law("partition-in-sequence-number")
async def test_an_ordinary_queue_peeks_in_order_with_zero_on_top(bench, text):
    queue = bench.queue("plain")
    bench.send(queue, "a", "b", "c")
    assert [text(message) for message in bench.peek(queue)] == ["a", "b", "c"]
    assert numbers(queue) == [1, 2, 3]


async def test_the_size_reads_back_sixteenfold_and_survives_an_update(bench):
    queue = bench.queue(enable_partitioning=True, max_size_in_megabytes=5120)
    assert queue.description.max_size_in_megabytes == 81920
    assert queue.quota.limit_bytes == 81920 * 1024 * 1024
    bench.namespace.update_queue("orders", queue.description)
    assert queue.description.max_size_in_megabytes == 81920
    again = QueueDescription(enable_partitioning=True, max_size_in_megabytes=1024)
    assert bench.namespace.update_queue("orders", again).description.max_size_in_megabytes == 16384


async def test_one_hundred_partitioned_entities_and_no_more(bench):
    for index in range(100):
        bench.queue(f"p{index}", enable_partitioning=True)
    with pytest.raises(EntityError) as caught:
        bench.queue("one-more", enable_partitioning=True)
    assert caught.value.http_status == 403
    bench.queue("plain")


@pytest.mark.law("premium-partitions")
@pytest.mark.parametrize("count", [2, 4])
async def test_all_entities_of_a_premium_namespace_with_partitions_have_them(make_bench, count):
    bench = make_bench(Tier.PREMIUM, count)
    queue = bench.queue(max_size_in_megabytes=5120)
    assert queue.description.enable_partitioning
    assert queue.description.max_size_in_megabytes == 5120
    bench.send(queue, *map(str, range(8)))
    assert {number >> 48 for number in numbers(queue)} == set(range(count))
    assert sorted(map(int, bench.receive(queue).texts)) == list(range(8))
    assert bench.namespace.messaging_units == count


async def test_what_a_premium_entity_is_told_of_partitioning_changes_nothing(make_bench):
    bench = make_bench(Tier.PREMIUM, 2)
    queue = bench.queue()
    bench.namespace.update_queue("orders", QueueDescription(max_delivery_count=3))
    assert (queue.description.enable_partitioning, queue.description.max_delivery_count) == (True, 3)
    for index in range(150):
        bench.queue(f"q{index}")


async def test_subscriptions_of_a_premium_namespace_count_in_its_partitions(make_bench):
    bench = make_bench(Tier.PREMIUM, 4)
    topic = bench.namespace.create_topic("events")
    subscription = bench.namespace.create_subscription("events", "all")
    bench.send(topic, *map(str, range(16)))
    assert {message.sequence_number >> 48 for message in subscription.main.log} == set(range(4))


@pytest.fixture
def four(make_bench):
    """A Premium namespace with four partitions, and a queue in it that holds eight messages."""
    bench = make_bench(Tier.PREMIUM, 4)
    bench.send(bench.queue(), *map(str, range(8)))
    return bench


def down(bench, partition, more=""):
    return bench.namespace.faults.add(f"partition-down:partition={partition}{more}")


def keys_of(queue, partition):
    """Keys that lead to a partition."""
    return [key for key in map(str, range(100)) if queue.numbering.of_key(key) == partition]


@pytest.mark.law("partition-unavailable")
async def test_while_a_partition_is_away_the_others_live(four):
    queue = four.namespace.get_queue("orders")
    fault = down(four, 2)
    assert partitions(m for m in queue.main.log if m.sequence_number >> 48 == 2)
    four.send(queue, *"abcdef")
    assert len([number for number in numbers(queue) if number >> 48 == 2]) == 2
    received = four.receive(queue)
    assert len(received.texts) == 12
    assert 2 not in {message.sequence_number >> 48 for message, _ in received.got}
    assert all(2 not in partitions(four.peek(queue)) for _ in range(8))
    assert four.peek(queue, 2 << 48)[0].sequence_number >> 48 == 3
    assert queue.counts().active == 14
    four.namespace.faults.remove(fault)
    assert len(received.texts) == 14


async def test_what_only_the_partition_away_could_take_is_refused(four):
    queue = four.namespace.get_queue("orders")
    down(four, 1)
    key, other = keys_of(queue, 1)[0], keys_of(queue, 3)[0]
    with pytest.raises(BrokerError, match="partition 1 is not available") as caught:
        four.send(queue, "x", key=key)
    assert caught.value.condition == INTERNAL_ERROR
    four.send(queue, "y", key=other)
    with pytest.raises(BrokerError, match="not available"):
        four.namespace.transactions.declare(Spender().budget).send(
            queue, queue.intake.read(four.message("x", key=key), 0)
        )


async def test_a_locked_message_of_the_partition_away_stays_locked_and_unsettled(four):
    queue = four.namespace.get_queue("orders")
    inbox = four.receive(queue)
    away = [lock.token for message, lock in inbox.got if message.sequence_number >> 48 == 0]
    fault = down(four, 0)
    for settle in (queue.main.complete, queue.main.release, queue.main.defer, queue.main.renew):
        with pytest.raises(BrokerError, match="not available"):
            settle(away[0])
    four.namespace.faults.remove(fault)
    queue.main.complete(away[0])
    assert queue.counts().active == 7


async def test_sessions_of_the_partition_away_wait_and_come_back_in_order(four, make_inbox):
    queue = four.queue("sessions", requires_session=True)
    key, other = keys_of(queue, 1)[0], keys_of(queue, 3)[0]
    four.send(queue, *"abc", session=key)
    four.send(queue, "x", session=other)
    fault = down(four, 1)
    with pytest.raises(BrokerError, match="not available"):
        queue.main.check_session(key)
    first, second = make_inbox(), make_inbox()
    assert queue.main.sessions.wait(first)
    assert first.session_id == other
    assert not queue.main.sessions.wait(second)
    four.namespace.faults.remove(fault)
    assert second.session_id == key
    queue.main.want(second)
    assert second.texts == list("abc")


async def test_a_partition_comes_back_by_itself_and_only_named_entities_lose_it(four):
    queue, other = four.namespace.get_queue("orders"), four.queue("other")
    down(four, 2, ",entity=other,for=30s")
    four.send(other, *"abcdefgh")
    assert partitions(other.main.log) == {0, 1, 3}
    assert partitions(queue.main.log) == {0, 1, 2, 3}
    four.clock.advance(31)
    four.send(other, *"ijkl")
    assert partitions(other.main.log) == {0, 1, 2, 3}


async def test_with_all_partitions_away_nothing_is_taken(make_bench):
    bench = make_bench(Tier.PREMIUM, 2)
    queue = bench.queue()
    down(bench, 0)
    down(bench, 1)
    with pytest.raises(BrokerError, match="not available"):
        bench.send(queue, "x")
    assert bench.peek(queue) == []


@pytest.mark.parametrize("text", ["partition-down", "partition-down:partition=16", "throttle:partition=1"])
async def test_a_partition_fault_names_one_partition(bench, text):
    with pytest.raises(FaultError, match="partition"):
        bench.namespace.faults.add(text)


@pytest.mark.law("transfer-stays-together")
@pytest.mark.parametrize(("form", "used"), [("strict", 1), ("other", 8)])
async def test_messages_of_one_transfer_without_keys_share_a_partition(make_bench, form, used):
    """azure-sdk-for-net's PeekAsyncTest browses such a batch from each page's last number on, and finds all of it."""
    bench = make_bench(laws={"transfer-stays-together": form})
    queue = bench.queue(enable_partitioning=True)
    bench.send_batch(queue, *(bench.message(text) for text in "abcdefgh"))
    assert len(partitions(queue.main.log)) == used
    found = []
    while len(found) < 8 and (page := queue.main.peek(found[-1] + 1 if found else 0, 3, 1 << 20)):
        found += [message.sequence_number for message in page]
    assert found == numbers(queue) or form == "other"
    bench.send_batch(queue, bench.message("next"))
    assert len(partitions(queue.main.log)) == used + 1


async def test_who_holds_a_session_of_the_partition_away_gets_its_messages_when_it_is_back(four):
    queue = four.queue("sessions", requires_session=True)
    key = keys_of(queue, 1)[0]
    four.send(queue, *"ab", session=key)
    held = four.accept(queue, key, count=1)
    fault = down(four, 1)
    held.credit = 2
    queue.main.want(held)
    assert held.texts == ["a"]
    four.namespace.faults.remove(fault)
    assert held.texts == ["a", "b"]


async def test_partitions_take_turns_to_be_received_from(four):
    received = four.receive(four.namespace.get_queue("orders"))
    turns = [message.sequence_number >> 48 for message, _ in received.got]
    assert sorted(turns[:4]) == sorted(turns[4:]) == [0, 1, 2, 3]
