"""Sessions: exclusive holders, next available, lock expiry, state, lists, delivery counts."""

import uuid

import pytest

from sbpair.amqp.sections import PropertyField, build
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import (
    MESSAGE_LOCK_LOST,
    NOT_ALLOWED,
    SESSION_CANNOT_BE_LOCKED,
    SESSION_LOCK_LOST,
    BrokerError,
)


@pytest.fixture
def queue(bench):
    return bench.queue(requires_session=True, lock_duration_seconds=30)


async def test_only_messages_of_the_session_come_in_order(bench, queue):
    bench.send(queue, "a1", session="a")
    bench.send(queue, "b1", session="b")
    inbox = bench.accept(queue, "a")
    bench.send(queue, "a2", session="a")
    assert inbox.texts == ["a1", "a2"]


async def test_a_message_without_session_is_refused(bench, queue):
    with pytest.raises(BrokerError) as caught:
        bench.send(queue, "x")
    assert caught.value.condition == NOT_ALLOWED


@pytest.mark.law("session-is-exclusive")
async def test_a_held_session_cannot_be_held_again(bench, queue):
    bench.accept(queue, "a")
    with pytest.raises(BrokerError) as caught:
        bench.accept(queue, "a")
    assert caught.value.condition == SESSION_CANNOT_BE_LOCKED


async def test_the_empty_string_is_a_session(bench, queue):
    bench.send(queue, "x", session="")
    assert bench.accept(queue, "").texts == ["x"]


async def test_next_available_takes_sessions_in_order_of_arrival(bench, queue, make_inbox):
    bench.send(queue, "b1", session="b")
    bench.send(queue, "a1", session="a")
    first, second, third = make_inbox(), make_inbox(), make_inbox()
    assert [queue.main.sessions.wait(one) for one in (first, second, third)] == [True, True, False]
    assert (first.session_id, second.session_id, third.session_id) == ("b", "a", None)
    bench.send(queue, "c1", session="c")
    assert third.session_id == "c"


async def test_a_waiter_that_gave_up_gets_nothing(bench, queue, make_inbox):
    waiter = make_inbox()
    queue.main.sessions.wait(waiter)
    queue.main.sessions.stop_waiting(waiter)
    bench.send(queue, "x", session="a")
    assert waiter.session_id is None


async def test_leaving_returns_messages_uncounted_and_in_order(bench, queue):
    bench.send(queue, "1", "2", "3", session="a")
    inbox = bench.accept(queue, "a", count=2)
    queue.main.leave(inbox)
    again = bench.accept(queue, "a")
    assert again.texts == ["1", "2", "3"]
    assert [message.delivery_count for message, _ in again.got] == [0, 0, 0]
    with pytest.raises(BrokerError) as caught:
        queue.main.complete(inbox.token)
    assert caught.value.condition == MESSAGE_LOCK_LOST


async def test_an_expired_session_lock_counts_and_detaches(bench, queue, make_inbox):
    bench.send(queue, "1", "2", session="a")
    inbox = bench.accept(queue, "a", count=1)
    waiter = make_inbox()
    queue.main.sessions.wait(waiter)
    bench.clock.advance(30)
    assert waiter.session_id == "a"
    with pytest.raises(BrokerError):
        queue.main.complete(inbox.token)
    assert inbox.detached is None  # its link goes a little later: a receiver that waits just as long ends by itself
    bench.clock.advance(2)
    assert inbox.detached == SESSION_LOCK_LOST
    queue.main.want(waiter)
    assert [(text, message.delivery_count) for text, (message, _) in zip(waiter.texts, waiter.got, strict=True)] == [
        ("1", 1),
        ("2", 0),
    ]


async def test_renewing_the_session_keeps_message_locks(bench, queue):
    bench.send(queue, "1", session="a")
    inbox = bench.accept(queue, "a")
    bench.clock.advance(20)
    assert queue.main.sessions.renew("a") == bench.clock.now() + 30
    bench.clock.advance(20)
    queue.main.complete(inbox.token)
    assert queue.counts().active == 0


async def test_state_is_kept_without_messages(bench, queue):
    inbox = bench.accept(queue, "a")
    queue.main.sessions.set_state("a", b"\x00state")
    queue.main.leave(inbox)
    bench.accept(queue, "a")
    assert queue.main.sessions.require_held("a").state == b"\x00state"


@pytest.mark.law("session-state-needs-lock")
async def test_only_a_held_session_can_be_renewed(bench, queue):
    with pytest.raises(BrokerError) as caught:
        queue.main.sessions.renew("nobody")
    assert caught.value.condition == SESSION_LOCK_LOST


@pytest.mark.law("listed-sessions")
async def test_listing_sessions(bench, queue):
    bench.send(queue, "x", session="with-message")
    inbox = bench.accept(queue, "with-state")
    queue.main.sessions.set_state("with-state", b"s")
    queue.main.leave(inbox)
    assert queue.main.sessions.listed(None) == ["with-message", "with-state"]
    assert queue.main.sessions.listed(bench.clock.now() - 1) == ["with-state"]


async def test_sessions_that_are_not_needed_are_forgotten(bench, queue):
    for index in range(100):
        bench.send(queue, "x", session=str(index))
        inbox = bench.accept(queue, str(index))
        queue.main.complete(inbox.token)
        queue.main.leave(inbox)
    assert list(queue.main.sessions) == []


async def test_peeking_one_session(bench, queue, text):
    bench.send(queue, "a1", session="a")
    bench.send(queue, "b1", session="b")
    assert [text(message) for message in queue.main.peek(0, 10, 1000, "b")] == ["b1"]


async def test_a_deferred_message_belongs_to_its_session(bench, queue):
    bench.send(queue, "1", session="a")
    inbox = bench.accept(queue, "a")
    queue.main.defer(inbox.token)
    with pytest.raises(BrokerError):
        queue.main.receive_deferred([1], settled=True)
    assert len(queue.main.receive_deferred([1], settled=False, session_id="a")) == 1


async def test_dead_letters_of_sessions_are_received_without_session(bench, queue):
    bench.send(queue, "1", session="a")
    queue.main.dead_letter(bench.accept(queue, "a").token, None, None)
    assert bench.receive(queue.dead_letters).texts == ["1"]


async def test_an_expired_message_makes_no_session_available(bench, queue, make_inbox):
    bench.send(queue, "1", session="a", ttl=5)
    bench.clock.advance(6)
    queue.main.expire_due()
    waiter = make_inbox()
    assert not queue.main.sessions.wait(waiter)


async def test_a_session_has_many_spellings(bench, queue):
    for number, spelling in enumerate(("Order-7", "ORDER-7", "order-7", "oRDER-7")):
        bench.send(queue, str(number), session=spelling)
    inbox = bench.accept(queue, "order-7")
    assert inbox.texts == ["0", "1", "2", "3"]
    assert [message.head.session_id for message, _ in inbox.got] == ["Order-7", "ORDER-7", "order-7", "oRDER-7"]
    with pytest.raises(BrokerError) as caught:
        bench.accept(queue, "Order-7")
    assert caught.value.condition == SESSION_CANNOT_BE_LOCKED
    assert queue.main.sessions.listed(None) == ["Order-7"]


async def test_state_deferred_messages_and_browsing_belong_to_the_session_in_every_spelling(bench, queue):
    bench.send(queue, "x", session="Order-7")
    inbox = bench.accept(queue, "ORDER-7")
    queue.main.defer(inbox.token)
    number = inbox.got[0][0].sequence_number
    queue.main.sessions.set_state("order-7", b"half")
    assert queue.main.sessions.require_held("Order-7").state == b"half"
    assert [message.sequence_number for message in queue.main.peek(0, 9, 1 << 20, "oRDER-7")] == [number]
    ((_, lock),) = queue.main.receive_deferred([number], settled=False, session_id="order-7")
    queue.main.complete(lock.token)
    assert not len(queue.main.log)


async def test_spellings_of_a_session_share_a_partition(bench):
    queue = bench.queue("parted", requires_session=True, enable_partitioning=True)
    for spelling in ("Order-7", "ORDER-7", "order-7"):
        bench.send(queue, spelling, session=spelling)
    assert len({partition_of(message.sequence_number) for message in queue.main.log}) == 1


@pytest.mark.parametrize(("form", "sessions"), [("strict", 1), ("other", 2)])
async def test_how_letters_beyond_ascii_compare_is_a_choice(form, sessions):
    namespace = Namespace("bench", clock=ManualClock(), laws={"session-key": form})
    queue = namespace.create_queue("orders", QueueDescription(requires_session=True))
    for spelling in ("Ärger-X", "ärger-x"):
        queue.send(build(properties={PropertyField.GROUP_ID: spelling}, data=b"x"))
    assert len(queue.main.sessions.listed(None)) == sessions


async def test_a_session_that_is_taken_over_has_its_full_time_again(bench, queue, make_inbox):
    bench.send(queue, "1", session="a")
    first, second = make_inbox(), make_inbox()
    first.shares_session = second.shares_session = True
    session = queue.main.sessions.hold("a", first)
    bench.clock.advance(20)
    assert queue.main.sessions.hold("a", second, session.token) is session
    assert first.detached == SESSION_LOCK_LOST
    assert session.locked_until == bench.clock.now() + queue.lock_seconds
    bench.clock.advance(queue.lock_seconds - 1)
    assert session.holder is second


async def test_a_session_that_could_not_be_taken_over_is_not_kept(bench, queue, make_inbox):
    with pytest.raises(BrokerError):
        queue.main.sessions.hold("nobody's", make_inbox(), uuid.uuid4())
    assert list(queue.main.sessions) == []


async def test_a_session_whose_messages_have_expired_is_there_again_with_the_next_one(bench, queue, make_inbox):
    bench.send(queue, "old", session="a", ttl=10)
    bench.clock.advance(10)
    queue.main.expire_due()
    bench.send(queue, "new", session="a")
    waiter = make_inbox()
    assert queue.main.sessions.wait(waiter)
    queue.main.want(waiter)
    assert (waiter.session_id, waiter.texts) == ("a", ["new"])


async def test_sessions_are_listed_whose_state_was_set_after_a_time_and_not_at_it(bench, queue):
    bench.accept(queue, "a")
    queue.main.sessions.set_state("a", b"state")
    now = bench.clock.now()
    assert (queue.main.sessions.listed(now), queue.main.sessions.listed(now - 0.001)) == ([], ["a"])
