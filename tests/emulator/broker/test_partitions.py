"""Partitioned entities: numbers, keys, turns, peeking, sizes."""

import pytest

from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.errors import NOT_ALLOWED, BrokerError, EntityError
from sbpair.emulator.limits import Tier


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
