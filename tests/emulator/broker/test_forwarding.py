"""Auto-forwarding: of messages and of dead letters, its hop limit, and destinations that do not take them."""

import pytest

from sbpair.amqp.sections import Section
from sbpair.emulator.entities import EntityStatus, QueueDescription, SubscriptionDescription


def reason(message):
    return message.section(Section.APPLICATION_PROPERTIES)["DeadLetterReason"]


async def test_messages_move_on_and_keep_where_they_came_from(bench):
    end = bench.queue("end")
    start = bench.queue("start", forward_to="end")
    bench.send(end, "own")
    bench.send(start, "a")
    assert start.counts().total == 0
    inbox = bench.receive(end)
    assert inbox.texts == ["own", "a"]
    assert (inbox.got[1][0].sequence_number, inbox.got[1][0].enqueued_sequence_number) == (2, 1)


async def test_a_subscription_forwards_to_a_queue(bench):
    end = bench.queue("end")
    topic = bench.namespace.create_topic("t")
    bench.namespace.create_subscription("t", "s", SubscriptionDescription(forward_to="end"))
    bench.send(topic, "a")
    assert bench.receive(end).texts == ["a"]


async def test_dead_letters_are_forwarded_with_their_reason(bench):
    end = bench.queue("end")
    queue = bench.queue("q", forward_dead_lettered_messages_to="end")
    bench.send(queue, "a")
    queue.main.dead_letter(bench.receive(queue).token, "why", None)
    [message] = bench.peek(end)
    assert (reason(message), message.dead_letter_source) == ("why", "q")
    assert queue.counts().dead_letter == 0


async def test_four_hops_and_no_more(bench):
    queues = [bench.queue("q5")]
    for index in (4, 3, 2, 1, 0):
        queues.insert(0, bench.queue(f"q{index}", forward_to=f"q{index + 1}"))
    bench.send(queues[1], "four hops")
    bench.send(queues[0], "five hops")
    assert bench.receive(queues[5]).texts == ["four hops"]
    [dead] = bench.peek(queues[4].dead_letters)
    assert dead.section(Section.APPLICATION_PROPERTIES) == {
        "DeadLetterReason": "MaxTransferHopCountExceeded",
        "DeadLetterErrorDescription": "The message has been forwarded 4 times; the limit is 4.",
    }


async def test_a_circle_ends(bench):
    bench.queue("a")
    second = bench.queue("b", forward_to="a")
    bench.namespace.update_queue("a", QueueDescription(forward_to="b"))
    bench.send(second, "round")
    dead = [queue.counts().dead_letter for queue in bench.namespace.queues()]
    assert sum(dead) == 1


@pytest.mark.law("missing-target-dead-letters")
@pytest.mark.parametrize("how", ["deleted", "disabled"])
async def test_a_destination_that_is_gone(bench, how):
    bench.queue("end")
    start = bench.queue("start", forward_to="end")
    if how == "deleted":
        bench.namespace.delete_queue("end")
    else:
        bench.namespace.update_queue("end", QueueDescription(status=EntityStatus.SEND_DISABLED))
    bench.send(start, "a")
    assert bench.receive(start.transfer_dead_letters).texts == ["a"]
    counts = start.counts()
    assert (counts.transfer_dead_letter, counts.dead_letter, counts.transfer) == (1, 0, 0)


async def test_a_full_destination_is_tried_again(bench):
    end = bench.queue("end")
    start = bench.queue("start", forward_to="end")
    end.quota.limit_bytes = 1
    bench.send(start, "a", "b")
    assert start.counts().transfer == 2
    assert start.counts().size_in_bytes > 0
    end.quota.limit_bytes = 1000
    bench.clock.advance(6)
    assert bench.receive(end).texts == ["a", "b"]
    assert (start.counts().transfer, start.counts().size_in_bytes) == (0, 0)


async def test_a_destination_that_wants_sessions(bench):
    bench.queue("end", requires_session=True)
    start = bench.queue("start", forward_to="end")
    bench.send(start, "a")
    [dead] = bench.peek(start.dead_letters)
    assert reason(dead) == "Session ID is null."


async def test_switching_forwarding_on_moves_what_waits(bench):
    end, start = bench.queue("end"), bench.queue("start")
    bench.send(start, "a", "b")
    bench.namespace.update_queue("start", QueueDescription(forward_to="end"))
    assert bench.receive(end).texts == ["a", "b"]
    assert start.counts().active == 0


async def test_the_destinations_duplicate_detection_applies(bench):
    end = bench.queue("end", requires_duplicate_detection=True)
    start = bench.queue("start", forward_to="end")
    bench.send(start, "a", "b", message_id="1")
    assert end.counts().active == 1


async def test_an_entity_may_forward_to_itself_until_the_hop_limit(bench):
    queue = bench.queue("own")
    bench.namespace.update_queue("own", QueueDescription(forward_to="own"))
    bench.send(queue, "round")
    assert (queue.counts().active, queue.counts().dead_letter) == (0, 1)
    [dead] = bench.peek(queue.dead_letters)
    assert reason(dead) == "MaxTransferHopCountExceeded"


@pytest.mark.law("sessions-do-not-forward")
async def test_an_entity_with_sessions_may_forward(bench):
    end = bench.queue("end")
    start = bench.queue("start", requires_session=True, forward_to="end")
    bench.send(start, "a", group_id="s")
    assert bench.receive(end).texts == ["a"]


async def test_messages_that_wait_for_a_full_destination_keep_their_order(bench):
    """However often it was full, and whichever came meanwhile."""
    end = bench.queue("end")
    start = bench.queue("start", forward_to="end")
    end.quota.limit_bytes = 1
    bench.send(start, "a", "b", "c")
    for _ in range(3):
        bench.clock.advance(6)
    bench.send(start, "d")
    end.quota.limit_bytes = 1000
    bench.clock.advance(6)
    assert bench.receive(end).texts == ["a", "b", "c", "d"]
