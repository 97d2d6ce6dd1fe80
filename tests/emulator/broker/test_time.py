"""Time to live, scheduling, auto-delete on idle."""

from dataclasses import replace

import pytest

from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Timestamp
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.entities import QueueDescription
from sbpair.engine.errors import MESSAGE_NOT_FOUND, BrokerError


@pytest.mark.law("expired-when-received")
async def test_an_expired_message_is_dropped_when_somebody_receives(bench):
    queue = bench.queue()
    bench.send(queue, "short", ttl=10)
    bench.send(queue, "long", ttl=100)
    bench.clock.advance(10)
    assert queue.counts().active == 2
    assert bench.receive(queue).texts == ["long"]
    assert (queue.counts().active, queue.counts().dead_letter) == (1, 0)


async def test_an_expired_message_is_dead_lettered_where_asked(bench, sections_of):
    queue = bench.queue(dead_lettering_on_message_expiration=True)
    bench.send(queue, "short", ttl=10)
    bench.clock.advance(11)
    bench.receive(queue)
    [dead] = bench.peek(queue.dead_letters)
    assert sections_of(dead.payload)[Section.APPLICATION_PROPERTIES]["DeadLetterReason"] == "TTLExpiredException"


async def test_the_entity_default_caps_the_messages_own(bench):
    queue = bench.queue(default_message_time_to_live_seconds=60)
    bench.send(queue, "a", ttl=3600)
    bench.send(queue, "b")
    bench.clock.advance(61)
    assert bench.receive(queue).texts == []


async def test_without_limits_a_message_lives_for_ever(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    bench.clock.advance(10 * 365 * 86400)
    assert bench.receive(queue).texts == ["a"]


async def test_a_locked_message_expires_only_after_its_lock(bench):
    queue = bench.queue(lock_duration_seconds=60)
    bench.send(queue, "a", ttl=10)
    inbox = bench.receive(queue, 1)
    bench.clock.advance(20)
    bench.receive(queue)
    assert queue.counts().active == 1
    queue.main.abandon(inbox.token)
    assert queue.counts().active == 0


async def test_dead_letters_and_deferred_messages_do_not_expire(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b", ttl=10)
    inbox = bench.receive(queue)
    queue.main.dead_letter(inbox.tokens[0], None, None)
    queue.main.defer(inbox.tokens[1])
    bench.clock.advance(100)
    bench.receive(queue)
    assert bench.receive(queue.dead_letters).texts == ["a"]
    assert len(queue.main.receive_deferred([2], settled=True)) == 1


@pytest.mark.law("scheduled-messages-are-numbered-again")
async def test_a_scheduled_message_appears_in_time_with_a_new_number(bench):
    queue = bench.queue()
    inbox = bench.receive(queue)
    queue.send(bench.message("later", at=bench.clock.now() + 50))
    bench.send(queue, "now")
    [scheduled, _] = bench.peek(queue)
    assert (scheduled.state, scheduled.sequence_number) == (MessageStateCode.SCHEDULED, 1)
    assert (queue.counts().active, queue.counts().scheduled) == (1, 1)
    bench.clock.advance(50)
    assert inbox.texts == ["now", "later"]
    message = inbox.got[1][0]
    assert (message.sequence_number, message.enqueued_at, message.state) == (
        3,
        bench.clock.now(),
        MessageStateCode.ACTIVE,
    )
    assert queue.counts().scheduled == 0


async def test_the_time_to_live_of_a_scheduled_message_starts_at_activation(bench):
    queue = bench.queue()
    queue.send(bench.message("later", at=bench.clock.now() + 60, ttl=30))
    bench.clock.advance(80)
    assert bench.receive(queue).texts == ["later"]


async def test_a_time_in_the_past_means_now(bench):
    queue = bench.queue()
    queue.send(bench.message("a", at=bench.clock.now() - 1))
    assert bench.receive(queue).texts == ["a"]


async def test_cancelling_is_all_or_nothing(bench):
    queue = bench.queue()
    queue.send(bench.message("later", at=bench.clock.now() + 60))
    with pytest.raises(BrokerError) as caught:
        queue.cancel_scheduled([1, 2])
    assert caught.value.condition == MESSAGE_NOT_FOUND
    queue.cancel_scheduled([1])
    bench.clock.advance(61)
    assert queue.counts().active == 0


@pytest.mark.law("auto-delete-on-idle")
async def test_an_idle_queue_deletes_itself(bench):
    queue = bench.queue(auto_delete_on_idle_seconds=300)
    bench.clock.advance(200)
    bench.send(queue, "a")
    bench.clock.advance(299)
    assert bench.namespace.get_queue("orders") is queue
    bench.clock.advance(2)
    assert bench.namespace.get_queue("orders") is None


async def test_an_attached_link_keeps_an_idle_queue_alive(bench, make_inbox):
    queue = bench.queue(auto_delete_on_idle_seconds=300)
    link = make_inbox()
    queue.links[link] = None
    bench.clock.advance(1000)
    assert bench.namespace.get_queue("orders") is queue
    queue.links.pop(link)
    bench.clock.advance(601)
    assert bench.namespace.get_queue("orders") is None


async def test_switching_auto_delete_off(bench):
    bench.queue(auto_delete_on_idle_seconds=300)
    bench.namespace.update_queue("orders", QueueDescription())
    bench.clock.advance(10_000)
    assert bench.namespace.get_queue("orders") is not None


async def test_the_queues_time_to_live_is_stamped_on_a_delivery_and_not_on_a_peek(bench, sections_of):
    queue = bench.queue(default_message_time_to_live_seconds=60.0)
    queue.send(bench.message("x", message_id="1"))
    assert sections_of(bench.peek(queue)[0].render())[Section.PROPERTIES] == ["1"]
    message, _ = bench.receive(queue, 1).got[0]
    delivered = sections_of(message.render_delivery())
    assert delivered[Section.HEADER][HeaderField.TTL] == 60_000
    now = round(bench.clock.now() * 1000)
    assert delivered[Section.PROPERTIES][PropertyField.CREATION_TIME] == now
    assert delivered[Section.PROPERTIES][PropertyField.ABSOLUTE_EXPIRY_TIME] == now + 60_000
    assert delivered[Section.MESSAGE_ANNOTATIONS]["x-opt-enqueued-time"] == now


async def test_the_shorter_of_the_two_times_to_live_is_what_a_receiver_sees(bench, sections_of):
    queue = bench.queue(default_message_time_to_live_seconds=60.0)
    queue.send(bench.message("long", ttl=3600, creation_time=Timestamp(5)))
    queue.send(bench.message("short", ttl=10, message_id="2"))
    long, short = (sections_of(message.render_delivery()) for message, _ in bench.receive(queue, 2).got)
    assert (long[Section.HEADER][HeaderField.TTL], short[Section.HEADER][HeaderField.TTL]) == (60_000, 10_000)
    assert long[Section.PROPERTIES][PropertyField.CREATION_TIME] == 5
    assert short[Section.PROPERTIES] == ["2"]


async def test_an_update_is_no_use_of_a_queue(bench):
    """It keeps an idle queue alive, and yet nobody has sent, received or asked."""
    queue = bench.queue(auto_delete_on_idle_seconds=300)
    bench.clock.advance(200)
    bench.namespace.update_queue("orders", replace(queue.description, max_delivery_count=3))
    bench.clock.advance(200)
    assert (queue.used_at, queue.accessed_at) == (None, bench.clock.now() - 200)
    assert bench.namespace.find("orders") is queue
    bench.clock.advance(200)
    assert bench.namespace.find("orders") is None


async def test_a_settlement_is_a_use_of_a_queue(bench):
    queue = bench.queue(auto_delete_on_idle_seconds=300, lock_duration_seconds=300)
    bench.send(queue, "a")
    inbox = bench.receive(queue, 1)
    bench.clock.advance(200)
    queue.main.complete(inbox.token)
    bench.clock.advance(200)
    assert bench.namespace.find("orders") is queue
    bench.clock.advance(100)
    assert bench.namespace.find("orders") is None


async def test_a_dead_letter_that_expires_is_gone(make_bench):
    """Where the law against it does not hold: there is no other place for it."""
    bench = make_bench(laws={"dead-letters-never-expire": "lax"})
    queue = bench.queue(dead_lettering_on_message_expiration=True)
    bench.send(queue, "a", ttl=10)
    queue.main.dead_letter(bench.receive(queue, 1).token, "why", None)
    bench.clock.advance(10)
    assert bench.receive(queue.dead_letters).texts == []
    assert queue.counts().total == 0
