"""Peek-lock: deliveries, the four outcomes, lock expiry, order, fairness."""

import uuid

import pytest

from sbpair.amqp.sections import Section
from sbpair.engine.errors import MESSAGE_LOCK_LOST, BrokerError


async def test_messages_come_in_order_and_completing_deletes(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b", "c")
    inbox = bench.receive(queue)
    assert inbox.texts == ["a", "b", "c"]
    for token in inbox.tokens:
        queue.main.complete(token)
    counts = queue.counts()
    assert (counts.active, counts.size_in_bytes) == (0, 0)


async def test_a_waiting_receiver_gets_what_arrives(bench):
    queue = bench.queue()
    inbox = bench.receive(queue, 2)
    bench.send(queue, "a", "b", "c")
    assert inbox.texts == ["a", "b"]


async def test_abandoned_message_returns_to_its_old_place_and_counts(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    first = bench.receive(queue, 1)
    queue.main.abandon(first.token)
    again = bench.receive(queue)
    assert again.texts == ["a", "b"]
    assert [message.delivery_count for message, _ in again.got] == [1, 0]


async def test_released_message_is_not_counted(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    inbox = bench.receive(queue, 1)
    queue.main.release(inbox.token)
    assert bench.receive(queue).got[0][0].delivery_count == 0


async def test_expired_lock_redelivers_and_its_token_is_lost(bench):
    queue = bench.queue(lock_duration_seconds=30)
    bench.send(queue, "a", "b")
    first = bench.receive(queue, 1)
    bench.clock.advance(30)
    second = bench.receive(queue)
    assert second.texts == ["a", "b"]
    assert second.got[0][0].delivery_count == 1
    with pytest.raises(BrokerError) as caught:
        queue.main.complete(first.token)
    assert caught.value.condition == MESSAGE_LOCK_LOST


async def test_renewing_keeps_the_lock(bench):
    queue = bench.queue(lock_duration_seconds=30)
    bench.send(queue, "a")
    inbox = bench.receive(queue, 1)
    bench.clock.advance(20)
    assert queue.main.renew(inbox.token) == bench.clock.now() + 30
    bench.clock.advance(29)
    queue.main.complete(inbox.token)
    assert queue.counts().active == 0


async def test_unknown_token_is_lost(bench):
    queue = bench.queue()
    with pytest.raises(BrokerError) as caught:
        queue.main.complete(uuid.uuid4())
    assert caught.value.condition == MESSAGE_LOCK_LOST


async def test_too_many_deliveries_dead_letter(bench, sections_of):
    queue = bench.queue(max_delivery_count=3)
    bench.send(queue, "a")
    for _ in range(3):
        queue.main.abandon(bench.receive(queue, 1).token)
    assert (queue.counts().active, bench.receive(queue).texts) == (0, [])
    receiver = bench.receive(queue.dead_letters, 1)
    dead = receiver.got[0][0]
    properties = sections_of(dead.payload)[Section.APPLICATION_PROPERTIES]
    assert properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert dead.delivery_count == 3
    # A dead letter keeps the count with which it died.
    queue.dead_letters.abandon(receiver.token)
    assert bench.receive(queue.dead_letters).got[0][0].delivery_count == 3


async def test_documented_maximum_delivery_count_never_dead_letters(bench):
    queue = bench.queue(max_delivery_count=2147483647)
    bench.send(queue, "a")
    for _ in range(50):
        queue.main.abandon(bench.receive(queue, 1).token)
    assert (queue.counts().active, queue.counts().dead_letter) == (1, 0)


async def test_receive_and_delete_leaves_nothing(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    inbox = bench.receive(queue, 1, settled=True)
    assert inbox.got[0][1] is None
    assert queue.counts().active == 1


async def test_competing_receivers_take_turns(bench):
    queue = bench.queue()
    one, two = bench.receive(queue, 100), bench.receive(queue, 100)
    bench.send(queue, *"abcdef")
    assert one.texts == ["a", "c", "e"]
    assert two.texts == ["b", "d", "f"]


async def test_a_receiver_that_left_gets_nothing_and_keeps_its_locks(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    inbox = bench.receive(queue)
    queue.main.leave(inbox)
    bench.send(queue, "b")
    assert inbox.texts == ["a"]
    queue.main.complete(inbox.token)
    assert queue.counts().active == 1


async def test_properties_to_modify_are_added(bench, sections_of):
    queue = bench.queue()
    bench.send(queue, "a", properties={"kept": "as is"})
    queue.main.abandon(bench.receive(queue, 1).token, {"tried": "once"})
    message = bench.receive(queue).got[0][0]
    assert sections_of(message.payload)[Section.APPLICATION_PROPERTIES] == {"kept": "as is", "tried": "once"}
    assert queue.counts().size_in_bytes == len(message.payload)


async def test_the_bytes_of_an_entity_are_those_of_its_messages(bench):
    """Whatever settlements and reasons have added to them; and none are left when all are gone."""
    queue = bench.queue()
    bench.send(queue, "abandoned", "deferred", "dead", "expired")
    changed = {"why": "x" * 50}
    inbox = bench.receive(queue, 4)
    queue.main.abandon(inbox.tokens[0], changed)
    queue.main.defer(inbox.tokens[1], changed)
    queue.main.dead_letter(inbox.tokens[2], "a reason", "a description", changed)
    kept = [message for box in queue.mailboxes for message in box.log]
    assert len(kept) == 4
    assert queue.counts().size_in_bytes == sum(len(message.payload) for message in kept)
    bench.clock.advance(60)
    for box in (queue.main, queue.dead_letters):
        for token in bench.receive(box).tokens:
            box.complete(token)
    queue.main.receive_deferred([2], settled=True)
    assert queue.counts().size_in_bytes == 0


async def test_a_deferred_message_asked_for_twice_at_once_is_given_once(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    queue.main.defer(bench.receive(queue, 1).token)
    [(_, lock)] = queue.main.receive_deferred([1, 1], settled=False)
    queue.main.complete(lock.token)
    assert (len(queue.main.locks), queue.counts().total) == (0, 0)


async def test_a_dead_letter_that_is_dead_lettered_again_keeps_its_place(make_bench, text):
    """Where the law against it does not hold."""
    bench = make_bench(laws={"dead-letter-stays": "lax"})
    queue = bench.queue()
    bench.send(queue, "a", "b")
    for token in bench.receive(queue, 2).tokens:
        queue.main.dead_letter(token, "first", None)
    queue.dead_letters.dead_letter(bench.receive(queue.dead_letters, 1).token, "second", None)
    shown = bench.peek(queue.dead_letters)
    assert [text(message) for message in shown] == ["a", "b"]
    reasons = [message.section(Section.APPLICATION_PROPERTIES)["DeadLetterReason"] for message in shown]
    assert reasons == ["second", "first"]
