"""What is accepted, what is refused, and that a refusal changes nothing."""

import uuid
from dataclasses import replace

import pytest

from sbpair.amqp.sections import PropertyField, build
from sbpair.emulator.broker.messages import BATCH_FORMAT, PING_CONTENT_TYPE
from sbpair.emulator.entities import EntityStatus, QueueDescription
from sbpair.engine.errors import ARGUMENT_ERROR, DECODE_ERROR, DISABLED, NOT_ALLOWED, QUOTA, SIZE_EXCEEDED, BrokerError
from sbpair.service import Tier


def refused(entity, payload, message_format=0):
    with pytest.raises(BrokerError) as caught:
        entity.send(payload, message_format)
    return caught.value.condition


async def test_a_batch_becomes_its_messages(bench):
    queue = bench.queue()
    bench.send_batch(queue, bench.message("a"), bench.message("b"))
    assert bench.receive(queue).texts == ["a", "b"]


async def test_an_ordinary_message_may_have_several_data_sections(bench):
    queue = bench.queue()
    payload = build(properties=["1"], data=[bench.message("a"), bench.message("b")])
    queue.send(payload)
    assert [message.payload for message in bench.peek(queue)] == [payload]


async def test_a_batch_with_one_bad_message_is_refused_whole(bench):
    queue = bench.queue(requires_session=True)
    batch = build(data=[bench.message("a", session="s"), bench.message("b")])
    assert refused(queue, batch, BATCH_FORMAT) == NOT_ALLOWED
    assert queue.counts().active == 0


@pytest.mark.parametrize("payload", [b"\x00", b"garbage", b"\x00\x53\x75\xa0\xff", b"\x00\x53\x99\x40"])
async def test_bytes_that_are_no_message(bench, payload):
    queue = bench.queue()
    assert refused(queue, payload) == DECODE_ERROR
    assert refused(queue, payload, BATCH_FORMAT) == DECODE_ERROR


@pytest.mark.parametrize("code", [0x71, 0x72, 0x73, 0x74])
@pytest.mark.parametrize("broken", [True, False])
async def test_what_is_before_the_body_can_be_decoded_or_is_refused(bench, code, broken):
    """Delivery annotations, annotations, properties, application properties: each may have to be edited later."""
    queue = bench.queue()
    value = b"\xff\xff" if broken else b"\xa1\x01x\xa1\x01y"  # two values of no type, or a pair of texts
    compound = b"\xc0" if code == 0x73 else b"\xc1"
    payload = b"\x00\x53" + bytes([code]) + compound + bytes([len(value) + 1, 2]) + value + bench.message("x")
    if broken:
        assert refused(queue, payload) == DECODE_ERROR
    else:
        queue.send(payload)
    assert queue.counts().active == int(not broken)


async def test_sizes(bench):
    queue = bench.queue()
    assert refused(queue, bench.message(b"x" * 262_144)) == SIZE_EXCEEDED
    queue.send(bench.message(b"x" * 262_000))
    assert queue.counts().active == 1


async def test_premium_takes_what_the_entity_allows_but_batches_of_one_megabyte(make_bench):
    bench = make_bench(Tier.PREMIUM)
    queue = bench.queue(max_message_size_in_kilobytes=2048)
    queue.send(bench.message(b"x" * 2_000_000))
    assert refused(queue, build(data=[bench.message(b"x" * 1_100_000)]), BATCH_FORMAT) == SIZE_EXCEEDED


async def test_headers_of_more_than_64_kilobytes(bench):
    queue = bench.queue()
    assert refused(queue, bench.message("a", properties={"p": "x" * 65_536})) == SIZE_EXCEEDED


@pytest.mark.parametrize("field", ["message_id", "session", "key"])
async def test_ids_of_more_than_128_characters(bench, field):
    queue = bench.queue()
    assert refused(queue, bench.message("a", **{field: "x" * 129})) == ARGUMENT_ERROR
    queue.send(bench.message("a", **{field: "x" * 128}))


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room(bench):
    queue = bench.queue()
    queue.quota.limit_bytes = 100
    queue.send(bench.message(b"x" * 60, message_id="1"))
    assert refused(queue, bench.message(b"x" * 60, message_id="2")) == QUOTA
    queue.main.complete(bench.receive(queue, 1).token)
    queue.send(bench.message(b"x" * 60, message_id="3"))


async def test_dead_letters_use_the_quota_of_their_queue(bench):
    queue = bench.queue()
    queue.quota.limit_bytes = 150
    queue.send(bench.message(b"x" * 60))
    queue.main.dead_letter(bench.receive(queue, 1).token, None, None)
    assert queue.counts().size_in_bytes == len(bench.peek(queue.dead_letters)[0].payload)
    assert refused(queue, bench.message(b"x" * 100)) == QUOTA


@pytest.mark.parametrize(
    ("status", "may_send"),
    [(EntityStatus.DISABLED, False), (EntityStatus.SEND_DISABLED, False), (EntityStatus.RECEIVE_DISABLED, True)],
)
async def test_status_decides_about_sending(bench, status, may_send):
    queue = bench.queue(status=status)
    if may_send:
        bench.send(queue, "a")
    else:
        assert refused(queue, bench.message("a")) == DISABLED
    assert queue.counts().active == may_send


async def test_a_receive_disabled_queue_delivers_when_enabled_again(bench):
    queue = bench.queue(status=EntityStatus.RECEIVE_DISABLED)
    bench.send(queue, "a")
    inbox = bench.receive(queue)
    assert inbox.texts == []
    bench.namespace.update_queue("orders", QueueDescription())
    assert inbox.texts == ["a"]


async def test_disabling_detaches_links_at_once(bench, make_inbox):
    queue = bench.queue()
    link = make_inbox()
    queue.links[link] = None
    bench.namespace.update_queue("orders", QueueDescription(status=EntityStatus.DISABLED))
    assert link.detached == DISABLED


async def test_pings_are_accepted_and_never_seen(bench):
    queue = bench.queue(requires_session=True)
    inbox = bench.accept(queue, "s")
    queue.send(bench.message("ping", content_type=PING_CONTENT_TYPE, session="s"))
    bench.send_batch(
        queue, bench.message("p", content_type=PING_CONTENT_TYPE, session="s"), bench.message("a", session="s")
    )
    assert inbox.texts == ["a"]
    assert queue.counts().active == 1


async def test_a_ping_meets_a_full_or_disabled_queue(bench):
    queue = bench.queue()
    queue.quota.limit_bytes = 10
    assert refused(queue, bench.message("ping", content_type=PING_CONTENT_TYPE)) == QUOTA
    bench.namespace.update_queue("orders", QueueDescription(status=EntityStatus.SEND_DISABLED))
    assert refused(queue, bench.message("ping", content_type=PING_CONTENT_TYPE)) == DISABLED


async def test_duplicates_are_dropped_within_the_window(bench):
    queue = bench.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window_seconds=60)
    bench.send(queue, "first", message_id="1")
    bench.send(queue, "second", message_id="1")
    bench.send(queue, "other", message_id="2")
    bench.clock.advance(61)
    bench.send(queue, "third", message_id="1")
    assert bench.receive(queue).texts == ["first", "other", "third"]


async def test_duplicates_inside_one_batch(bench):
    queue = bench.queue(requires_duplicate_detection=True)
    bench.send_batch(queue, bench.message("a", message_id="1"), bench.message("b", message_id="1"))
    assert bench.receive(queue).texts == ["a"]


async def test_a_completed_message_is_still_known(bench):
    queue = bench.queue(requires_duplicate_detection=True)
    bench.send(queue, "a", message_id="1")
    queue.main.complete(bench.receive(queue, 1).token)
    bench.send(queue, "again", message_id="1")
    assert queue.counts().active == 0


async def test_a_refused_message_is_not_remembered(bench):
    queue = bench.queue(requires_duplicate_detection=True)
    queue.quota.limit_bytes = 10
    assert refused(queue, bench.message("a", message_id="1")) == QUOTA
    queue.quota.limit_bytes = 1000
    bench.send(queue, "a", message_id="1")
    assert queue.counts().active == 1


async def test_history_does_not_grow_beyond_its_window(bench):
    queue = bench.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window_seconds=20)
    for index in range(100):
        bench.send(queue, "a", message_id=str(index))
        bench.clock.advance(1)
    assert len(list(queue.intake.history.known())) <= 20


async def test_a_message_without_an_id_is_given_one_of_its_own(bench, property_of):
    queue = bench.queue()
    queue.send(bench.message("a"))
    bench.send_batch(queue, bench.message("b"), bench.message("c", message_id="mine"))
    ids = [property_of(message, PropertyField.MESSAGE_ID) for message in bench.peek(queue)]
    assert ids[2] == "mine"
    assert len({*ids}) == 3
    assert all(uuid.UUID(hex=one) for one in ids[:2])


async def test_all_subscriptions_see_the_id_the_broker_gave(bench, property_of):
    topic = bench.namespace.create_topic("news")
    first, second = (bench.namespace.create_subscription("news", name) for name in ("a", "b"))
    topic.send(bench.message("x"))
    ids = {property_of(bench.peek(one)[0], PropertyField.MESSAGE_ID) for one in (first, second)}
    assert len(ids) == 1
    assert None not in ids


async def test_a_queue_takes_messages_to_its_last_byte(bench):
    queue = bench.queue()
    payload = bench.message("a", message_id="1")
    queue.quota.limit_bytes = 2 * len(payload)
    queue.send(payload)
    queue.send(payload)
    assert refused(queue, payload) == QUOTA
    assert queue.counts().active == 2


async def test_a_window_that_was_made_shorter_is_over_when_it_ends(bench):
    """An id of the longer one is still in front of it in the line of those that are forgotten."""
    settings = QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window_seconds=600)
    queue = bench.namespace.create_queue("orders", settings)
    bench.send(queue, "long", message_id="1")
    shorter = replace(settings, duplicate_detection_history_time_window_seconds=20)
    bench.namespace.update_queue("orders", shorter)
    bench.send(queue, "short", message_id="2")
    bench.clock.advance(21)
    bench.send(queue, "short again", message_id="2")
    bench.clock.advance(570)
    bench.send(queue, "long, dropped", message_id="1")
    bench.send(queue, "the last", message_id="2")
    bench.clock.advance(10)
    bench.send(queue, "dropped", message_id="2")
    assert bench.receive(queue).texts == ["long", "short", "short again", "the last"]


@pytest.mark.parametrize("seconds_ahead", [-1, 0])
async def test_a_message_whose_time_has_come_is_ready_at_once(bench, seconds_ahead):
    queue = bench.queue()
    bench.send(queue, "a", at=bench.clock.now() + seconds_ahead)
    assert queue.counts().scheduled == 0
    assert bench.receive(queue).texts == ["a"]


async def test_a_batch_of_texts_is_none(bench):
    """Its sections hold encoded messages, which are binary."""
    queue = bench.queue()
    batch = build(data=[bench.message("a")]) + b"\x00\x53\x75\xa1\x04text"
    assert refused(queue, batch, BATCH_FORMAT) == DECODE_ERROR
    assert queue.counts().active == 0
