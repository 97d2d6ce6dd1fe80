"""Deferring and dead-lettering, and receiving what was put aside."""

import pytest

from sbpair.amqp.sections import Section, read, scan
from sbpair.amqp.types import Int, same
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.engine.errors import MESSAGE_NOT_FOUND, NOT_ALLOWED, BrokerError


async def test_a_deferred_message_is_had_by_number_only(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    inbox = bench.receive(queue, 1)
    queue.main.defer(inbox.token)
    assert bench.receive(queue).texts == ["b"]
    [(message, lock)] = queue.main.receive_deferred([1], settled=False)
    assert message.state is MessageStateCode.DEFERRED
    queue.main.complete(lock.token)
    assert queue.counts().active == 1


async def test_a_deferred_message_stays_deferred_when_abandoned(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    queue.main.defer(bench.receive(queue, 1).token)
    [(message, lock)] = queue.main.receive_deferred([1], settled=False)
    queue.main.abandon(lock.token)
    assert bench.receive(queue).texts == []
    [(message, lock)] = queue.main.receive_deferred([1], settled=False)
    assert message.delivery_count == 2


async def test_each_deferral_counts_and_the_last_allowed_delivery_dead_letters(bench):
    queue = bench.queue(max_delivery_count=3)
    bench.send(queue, "a")
    queue.main.defer(bench.receive(queue, 1).token)
    for count in (1, 2):
        [(message, lock)] = queue.main.receive_deferred([1], settled=False)
        assert message.delivery_count == count
        queue.main.defer(lock.token)
    [dead] = queue.dead_letters.log
    assert dead.delivery_count == 3
    assert dead.section(Section.APPLICATION_PROPERTIES)["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert not len(queue.main.log)


async def test_a_browsed_deferred_message_says_until_when_it_was_locked(bench):
    queue = bench.queue(lock_duration_seconds=30)
    bench.send(queue, "a")
    until = round((bench.clock.now() + 30) * 1000)
    queue.main.defer(bench.receive(queue, 1).token)
    [message] = bench.peek(queue)
    rendered = message.render()
    assert read(rendered, scan(rendered), Section.MESSAGE_ANNOTATIONS)["x-opt-locked-until"] == until


async def test_deferred_messages_can_be_received_and_deleted(bench):
    queue = bench.queue()
    bench.send(queue, "a")
    queue.main.defer(bench.receive(queue, 1).token)
    assert queue.main.receive_deferred([1], settled=True)[0][1] is None
    assert queue.counts().active == 0


async def test_a_deferred_message_that_is_locked_is_not_handed_out_again(bench):
    queue = bench.queue(lock_duration_seconds=30)
    bench.send(queue, "a")
    queue.main.defer(bench.receive(queue, 1).token)
    [(_, lock)] = queue.main.receive_deferred([1], settled=False)
    for settled in (False, True):
        with pytest.raises(BrokerError) as caught:
            queue.main.receive_deferred([1], settled=settled)
        assert caught.value.condition == MESSAGE_NOT_FOUND
    queue.main.complete(lock.token)
    assert queue.counts().active == 0


@pytest.mark.law("deferred-by-number-alone")
async def test_all_deferred_messages_asked_for_or_none(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    inbox = bench.receive(queue)
    queue.main.defer(inbox.tokens[0])
    with pytest.raises(BrokerError) as caught:
        queue.main.receive_deferred([1, 2], settled=True)
    assert caught.value.condition == MESSAGE_NOT_FOUND
    assert len(queue.main.receive_deferred([1], settled=True)) == 1


@pytest.mark.law("dead-letters-keep-their-count")
async def test_dead_letter_keeps_number_time_and_count(bench, sections_of):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    inbox = bench.receive(queue)
    enqueued = inbox.got[1][0].enqueued_at
    bench.clock.advance(5)
    queue.main.dead_letter(inbox.tokens[1], "reason", "description", {"more": True})
    [dead] = bench.peek(queue.dead_letters)
    assert (dead.sequence_number, dead.enqueued_at, dead.dead_letter_source) == (2, enqueued, "orders")
    assert sections_of(dead.payload)[Section.APPLICATION_PROPERTIES] == {
        "DeadLetterReason": "reason",
        "DeadLetterErrorDescription": "description",
        "more": True,
    }


async def test_dead_letters_come_in_order_and_can_be_completed(bench):
    queue = bench.queue()
    bench.send(queue, "a", "b", "c")
    for token in reversed(bench.receive(queue).tokens):
        queue.main.dead_letter(token, None, None)
    inbox = bench.receive(queue.dead_letters)
    assert inbox.texts == ["a", "b", "c"]
    for token in inbox.tokens:
        queue.dead_letters.complete(token)
    assert queue.counts().dead_letter == 0


async def test_a_dead_letter_is_not_dead_lettered_again(bench):
    queue = bench.queue(max_delivery_count=1)
    bench.send(queue, "a")
    queue.main.abandon(bench.receive(queue, 1).token)
    inbox = bench.receive(queue.dead_letters, 1)
    with pytest.raises(BrokerError) as caught:
        queue.dead_letters.dead_letter(inbox.token, "r", "d")
    assert caught.value.condition == NOT_ALLOWED
    queue.dead_letters.abandon(inbox.token)
    assert queue.counts().dead_letter == 1


async def test_the_source_of_a_dead_letter_is_in_lower_case_and_the_reason_keeps_its_type(bench, sections_of):
    queue = bench.queue("Orders/Incoming")
    queue.send(bench.message("x"))
    queue.main.dead_letter(bench.receive(queue, 1).token, Int(17), None)
    rendered = sections_of(bench.peek(queue.dead_letters)[0].render())
    assert rendered[Section.MESSAGE_ANNOTATIONS]["x-opt-deadletter-source"] == "orders/incoming"
    assert same(rendered[Section.APPLICATION_PROPERTIES], {"DeadLetterReason": Int(17)})
