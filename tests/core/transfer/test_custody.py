"""Messages in our hands: what counts and is remembered, when a lock is renewed, what an answer of the broker means."""

from collections import deque
from dataclasses import replace

import pytest

from sbpair.core.errors import ConnectionLostError, LockLostError, ServerBusyError
from sbpair.core.message import Disposition, Received
from sbpair.core.names import dead_letter_path
from sbpair.core.retry import SERVER_BUSY_SECONDS
from sbpair.core.transfer.custody import (
    DEAD_LETTERED,
    LOCK_CHECK_SECONDS,
    MAX_REMEMBERED,
    PURGED,
    REFUSED_OUTCOME,
    TAKEN,
    Custody,
)
from sbpair.core.transfer.order import OrderGap, Queues
from sbpair.core.transfer.report import Tally
from sbpair.core.transfer.state import Finish, Item, Limits, PollAgain, Renew, Settle, Stage, key_of

QUEUE = "backlog/0"
LANE = ("orders", "s")


class Bench:
    """Custody, and the messages that it takes in."""

    def __init__(self, *, forwarded=(), undeliverable=DEAD_LETTERED):
        self.actions = deque()
        self.queues = Queues(Limits(), self.actions)
        self.queue = self.queues.of(QUEUE)
        self.tally = Tally()
        self.custody = Custody(self.queues, self.actions, self.tally, forwarded=forwarded, undeliverable=undeliverable)

    def take_in(self, number, *, lock=60.0, source=QUEUE, size=None, lane=None, stage=Stage.WAITING):
        message = received(number, source=source)
        item = self.custody.take_in(key_of(message), message, lock_until=lock, lock_seconds=60.0)
        self.queues.of(source).in_hand.add(number)
        self.queues.of(source).going.add(number)
        item.stage = stage
        if size is not None:
            self.custody.add_payload(item, bytes(size))
        if lane is not None:
            item.lane, item.destination = lane, lane[0]
        return item

    def done(self):
        """What is to be done, taken off the list."""
        actions = list(self.actions)
        self.actions.clear()
        return actions

    def expired(self, now):
        return list(self.custody.expired(now))


def received(number, *, receipt=1, source=QUEUE):
    return Received(
        payload=b"", sequence_number=number, source=source, message_id=f"m{number}", enqueued_at=1.0, receipt=receipt
    )


def settle_of(item, disposition, outcome=""):
    return Settle(item, item.received, disposition, outcome)


def test_what_is_to_be_sent_counts_and_is_weighed_until_it_is_left():
    bench = Bench()
    item = bench.take_in(1, size=1664)
    custody = bench.custody
    assert (custody.counted, custody.size_bytes, custody.mean_bytes, custody.live) == (1, 1664, 1034.0, 1)
    custody.leave(item, "filtered out")
    assert (custody.counted, custody.size_bytes, custody.live, custody.left_messages) == (0, 0, 0, 1)
    assert custody.left() == {item.key: "filtered out"}
    assert list(custody.left_behind("filtered out")) == [item]
    assert list(custody.left_behind("another reason")) == []
    assert bench.queue.in_hand == {1}, "it stays locked"
    assert len(bench.queue.going) == 0


def test_what_is_left_keeps_its_lock_and_not_its_bytes():
    bench = Bench()
    message = replace(received(1), payload=bytes(1000))
    item = bench.custody.take_in(key_of(message), message, lock_until=60.0, lock_seconds=60.0)
    bench.custody.leave(item, "filtered out")
    assert (item.received.payload, item.received.receipt, key_of(item.received)) == (b"", message.receipt, item.key)
    renewed = bench.take_in(2)
    renewed.renewing, answered = True, Renew(renewed, renewed.received)
    bench.custody.leave(renewed, "filtered out")
    bench.custody.renewed(answered, 90.0)
    assert renewed.lock_until == 90.0, "the answer belongs to the receipt as it was"


def test_what_was_left_is_on_its_way_again_once_it_is_released():
    bench = Bench()
    left, waiting = bench.take_in(1), bench.take_in(2, size=5)
    bench.custody.leave(left, "filtered out")
    bench.custody.release_left()
    [settle] = bench.done()
    assert (settle.item, settle.disposition) == (left, Disposition.RELEASE)
    assert (bench.custody.live, bench.custody.left_messages, bench.queue.in_hand) == (2, 0, {2})
    bench.custody.settled([settle])
    assert (bench.custody.live, bench.custody.find(left.key), bench.custody.find(waiting.key)) == (1, None, waiting)


def test_a_release_gives_up_the_place_in_the_total():
    bench = Bench()
    item = bench.take_in(1, size=10)
    bench.custody.release(item)
    assert (bench.custody.counted, item.releasing, item.stage) == (0, True, Stage.SETTLING)


@pytest.mark.parametrize(
    ("outcome", "taken", "completed"), [("forwarded", 0, 1), (TAKEN, 1, 0), ("already-forwarded", 0, 0), ("ping", 0, 0)]
)
def test_a_completion_ends_what_is_remembered_and_is_counted_by_its_outcome(outcome, taken, completed):
    message = received(1)
    bench = Bench(forwarded=[key_of(message)])
    item = bench.take_in(1, size=10)
    bench.custody.settled([settle_of(item, Disposition.COMPLETE, outcome)])
    assert (bench.custody.taken, bench.tally.numbers["completed"]) == (taken, completed)
    assert (bench.custody.uncompleted, bench.custody.find(item.key), bench.custody.size_bytes) == (frozenset(), None, 0)
    assert bench.done() == []


@pytest.mark.parametrize(
    ("disposition", "stopping", "again"),
    [
        (Disposition.RELEASE, False, True),
        (Disposition.ABANDON, False, True),
        (Disposition.DEAD_LETTER, False, False),
        (Disposition.RELEASE, True, False),
    ],
)
def test_a_queue_is_asked_again_for_what_went_back_to_it(disposition, stopping, again):
    bench = Bench()
    item = bench.take_in(1)
    bench.custody.remember([item])
    bench.custody.stopping = stopping
    bench.custody.settled([settle_of(item, disposition)])
    assert bench.done() == ([PollAgain(QUEUE)] if again else [])
    assert bench.custody.uncompleted == {item.key}, "it was sent, and lies in its queue"


@pytest.mark.parametrize(("outcome", "counted"), [("ping", 0), (TAKEN, 1), (PURGED, 1)])
def test_what_is_completed_unsent_counts_if_that_was_what_it_came_for(outcome, counted):
    bench = Bench()
    bench.custody.finish(bench.take_in(1), Finish(Disposition.COMPLETE, outcome))
    [settle] = bench.done()
    assert (settle.disposition, settle.outcome, bench.custody.counted) == (Disposition.COMPLETE, outcome, counted)


def test_what_can_never_be_sent_is_dead_lettered_and_counts():
    bench = Bench()
    item = bench.take_in(1, size=100)
    bench.custody.counted = 0
    bench.custody.finish(item, Finish(Disposition.DEAD_LETTER, "", "Why", "In detail."))
    [settle] = bench.done()
    assert (settle.disposition, settle.outcome) == (Disposition.DEAD_LETTER, DEAD_LETTERED)
    assert (settle.reason, settle.description) == ("Why", "In detail.")
    assert (bench.custody.counted, bench.custody.size_bytes) == (1, 0)


@pytest.mark.parametrize(("undeliverable", "source"), [(None, QUEUE), (DEAD_LETTERED, dead_letter_path(QUEUE))])
def test_what_can_go_no_further_is_left_where_it_lies(undeliverable, source):
    bench = Bench(undeliverable=undeliverable)
    item = bench.take_in(1, source=source)
    assert not bench.custody.dead_letter(item, "Why", "In detail.")
    assert (bench.done(), bench.custody.left()) == ([], {item.key: "undeliverable: Why"})


def test_what_could_only_be_left_gives_up_its_place_in_the_total():
    bench = Bench(undeliverable=None)
    bench.custody.finish(bench.take_in(1), Finish(Disposition.DEAD_LETTER, "", "Why"))
    assert (bench.custody.counted, bench.custody.left_messages) == (0, 1)


def test_a_refusal_without_a_dead_letter_queue_names_the_destination():
    bench = Bench(undeliverable=REFUSED_OUTCOME)
    item, unreadable = bench.take_in(1, lane=LANE), bench.take_in(2)
    assert bench.custody.dead_letter(item, "Why", "")
    assert bench.custody.dead_letter(unreadable, "Why", "")
    assert [settle.reason for settle in bench.done()] == ["orders: Why", "Why"]


def test_what_was_accepted_is_completed_and_remembered_until_that_is_confirmed():
    bench = Bench()
    items = [bench.take_in(number, size=10) for number in (1, 2)]
    bench.custody.accepted(items, "orders")
    assert (bench.tally.numbers["forwarded"], bench.tally.numbers["forwarded_bytes"]) == (2, 20)
    settles = bench.done()
    assert [(settle.item, settle.disposition, settle.outcome) for settle in settles] == [
        (item, Disposition.COMPLETE, "forwarded") for item in items
    ]
    assert (bench.custody.size_bytes, bench.custody.counted) == (0, 2)
    assert bench.custody.was_forwarded(items[0].key)
    bench.custody.settled(settles[:1])
    assert bench.custody.uncompleted == {items[1].key}


def test_the_oldest_is_forgotten_where_nothing_is_ever_confirmed():
    earlier = [key_of(received(number)) for number in (1, 2, 3)]
    bench = Bench(forwarded=earlier)
    message = received(0)
    many = [Item((QUEUE, number, None, 0), message, 0.0, 0.0) for number in range(10, MAX_REMEMBERED + 10)]
    bench.custody.accepted(many, "orders")
    assert len(bench.custody.uncompleted) == MAX_REMEMBERED + 3
    bench.custody.accepted([Item((QUEUE, 5, None, 0), message, 0.0, 0.0)], "orders")
    assert not bench.custody.was_forwarded(earlier[0])
    assert bench.custody.was_forwarded(earlier[1])


def test_nobody_else_has_what_is_in_our_hands_or_was_sent():
    bench = Bench(forwarded=[key_of(received(3))])
    item = bench.take_in(1)
    assert bench.custody.accounts_for(item.key)
    assert not bench.custody.accounts_for(key_of(received(2)))
    assert bench.custody.accounts_for(key_of(received(3)))
    bench.custody.release(item)
    assert not bench.custody.accounts_for(item.key), "whoever receives next may have it"


def test_without_a_line_in_the_ledger_nothing_is_completed_and_all_is_remembered():
    bench = Bench()
    moved, sent = bench.take_in(1), bench.take_in(2)
    moved.completed = True
    bench.custody.remember([moved, sent])
    bench.custody.unrecorded([moved, sent])
    assert [(settle.item, settle.disposition) for settle in bench.done()] == [(sent, Disposition.RELEASE)]
    assert (bench.custody.stopping, bench.custody.find(moved.key)) == (True, None)
    assert bench.custody.uncompleted == {moved.key, sent.key}


def test_a_settlement_without_a_line_becomes_a_release():
    bench = Bench()
    item = bench.take_in(1)
    bench.custody.not_recorded(settle_of(item, Disposition.DEAD_LETTER, DEAD_LETTERED))
    assert [settle.disposition for settle in bench.done()] == [Disposition.RELEASE]


def test_what_a_busy_namespace_did_not_settle_is_settled_later_if_its_lock_lasts():
    bench = Bench()
    lasting, ending = bench.take_in(1, lock=SERVER_BUSY_SECONDS + 0.1), bench.take_in(2, lock=SERVER_BUSY_SECONDS)
    bench.custody.settle_failed(settle_of(lasting, Disposition.COMPLETE), ServerBusyError("busy"), 0.0)
    assert bench.done() == []
    bench.custody.settle_failed(settle_of(ending, Disposition.COMPLETE), ServerBusyError("busy"), 0.0)
    assert bench.done() == [PollAgain(QUEUE)]
    assert bench.custody.find(ending.key) is None
    assert SERVER_BUSY_SECONDS in list(bench.custody.deadlines())
    bench.custody.settle_again(SERVER_BUSY_SECONDS - 0.1)
    assert bench.done() == []
    bench.custody.settle_again(SERVER_BUSY_SECONDS)
    assert [settle.item for settle in bench.done()] == [lasting]
    assert len(list(bench.custody.deadlines())) == 1


def test_stop_puts_nothing_off():
    bench = Bench()
    first, second = bench.take_in(1), bench.take_in(2)
    bench.custody.settle_failed(settle_of(first, Disposition.COMPLETE), ServerBusyError("busy"), 0.0)
    bench.custody.stop()
    assert [settle.item for settle in bench.done()] == [first]
    bench.custody.settle_failed(settle_of(second, Disposition.COMPLETE), ServerBusyError("busy"), 0.0)
    assert (bench.done(), bench.custody.find(second.key)) == ([], None)


def test_a_refused_receipt_is_followed_by_the_newest_unless_we_stop():
    bench = Bench()
    item = bench.take_in(1)
    old = Settle(item, item.received, Disposition.DEAD_LETTER, DEAD_LETTERED, "Why", "In detail.")
    newest = received(1, receipt=2)
    bench.custody.received_again(item, newest, 90.0)
    assert (item.lock_until, item.renewing) == (90.0, False)
    bench.custody.settle_failed(old, LockLostError("gone"), 1.0)
    assert bench.done() == [Settle(item, newest, Disposition.DEAD_LETTER, DEAD_LETTERED, "Why", "In detail.")]
    bench.custody.stop()
    bench.custody.settle_failed(old, LockLostError("gone"), 1.0)
    assert (bench.done(), bench.custody.find(item.key)) == ([], None)


@pytest.mark.parametrize(("error", "lost"), [(LockLostError("gone"), 1), (ConnectionLostError("silence"), 0)])
def test_what_could_not_be_settled_comes_again_and_what_follows_it_waits(error, lost):
    bench = Bench()
    item = bench.take_in(1, size=10, lane=LANE)
    bench.custody.settle_failed(settle_of(item, Disposition.RELEASE), error, 5.0)
    assert (bench.custody.find(item.key), bench.custody.counted, bench.custody.size_bytes) == (None, 0, 0)
    assert (bench.queue.gaps, bench.queue.check_at) == ({1: OrderGap(LANE, foreign=False)}, 5.0)
    assert (bench.tally.numbers["locks_lost"], bench.queue.in_hand) == (lost, set())
    assert bench.done() == [PollAgain(QUEUE)]


def test_nothing_waits_for_what_was_sent_although_its_lock_is_lost():
    bench = Bench()
    item = bench.take_in(1, size=10, lane=LANE)
    bench.custody.remember([item])
    bench.custody.drop(item, 5.0, lost=True)
    assert (bench.queue.gaps, bench.custody.counted) == ({}, 1)


def test_what_was_parked_is_not_parked_any_more_once_its_lock_is_lost():
    bench = Bench()
    item = bench.take_in(1, lane=LANE)
    bench.queue.park(LANE, 1)
    bench.custody.leave(item, "behind")
    bench.custody.drop(item, 5.0, lost=True)
    assert (bench.queue.parked, bench.custody.left_messages, bench.custody.live) == ({}, 0, 0)


def test_a_lock_is_renewed_in_time_and_each_only_once():
    bench = Bench()
    soon, later = bench.take_in(1, lock=115.0), bench.take_in(2, lock=115.1)
    assert bench.expired(100.0) == []
    assert bench.done() == [Renew(soon, soon.received)], "a quarter of a minute before its end"
    assert bench.expired(100.0 + LOCK_CHECK_SECONDS) == []
    assert bench.done() == [Renew(later, later.received)]


def test_locks_are_checked_once_a_second():
    bench = Bench()
    assert bench.expired(100.0) == []
    item = bench.take_in(1, lock=100.2)
    assert bench.expired(100.9) == []
    assert list(bench.custody.deadlines()) == [101.0]
    assert bench.expired(101.0) == [item]


@pytest.mark.parametrize(
    ("stage", "lock_until", "expired"),
    [
        (Stage.WAITING, 100.0, True),
        (Stage.LEFT, 99.0, True),
        (Stage.SENDING, 99.0, False),
        (Stage.SETTLING, 99.0, False),
        (Stage.WAITING, 100.1, False),
    ],
)
def test_what_was_not_sent_before_its_lock_ran_out_comes_again(stage, lock_until, expired):
    bench = Bench()
    item = bench.take_in(1, lock=lock_until, stage=stage)
    assert bench.expired(100.0) == ([item] if expired else [])
    assert bench.done() == ([Renew(item, item.received)] if lock_until > 100.0 else [])


def test_a_message_on_its_way_is_renewed_and_one_that_is_being_settled_is_not():
    bench = Bench()
    sending = bench.take_in(1, lock=105.0, stage=Stage.SENDING)
    bench.take_in(2, lock=105.0, stage=Stage.SETTLING)
    assert bench.expired(100.0) == []
    assert bench.done() == [Renew(sending, sending.received)]


def test_a_renewal_holds_for_the_receipt_that_was_renewed():
    bench = Bench()
    item = bench.take_in(1, lock=60.0)
    renew = Renew(item, item.received)
    item.renewing = True
    bench.custody.renewed(renew, 120.0)
    assert (item.lock_until, item.renewing) == (120.0, False)
    bench.custody.received_again(item, received(1, receipt=2), 100.0)
    item.renewing = True
    bench.custody.renewed(renew, 180.0)
    assert (item.lock_until, item.renewing) == (100.0, False)


def test_a_lock_that_is_lost_is_noticed_at_once_and_another_failure_is_tried_again():
    bench = Bench()
    item = bench.take_in(1, lock=60.0)
    renew = Renew(item, item.received)
    bench.expired(50.0)
    bench.custody.renew_failed(renew, ConnectionLostError("silence"), 50.2)
    assert (item.renewing, item.lock_until, bench.expired(50.4)) == (False, 60.0, [])
    bench.custody.renew_failed(renew, LockLostError("gone"), 50.5)
    assert list(bench.custody.deadlines()) == [50.5]
    assert bench.expired(50.5) == [item]


def test_the_lost_lock_of_an_old_receipt_or_of_a_settled_message_means_nothing():
    bench = Bench()
    item = bench.take_in(1, lock=60.0)
    old = Renew(item, item.received)
    bench.custody.received_again(item, received(1, receipt=2), 90.0)
    bench.custody.renew_failed(old, LockLostError("gone"), 50.0)
    assert item.lock_until == 90.0
    bench.custody.settled([settle_of(item, Disposition.COMPLETE)])
    bench.custody.renew_failed(Renew(item, item.received), LockLostError("gone"), 50.0)
    assert item.lock_until == 90.0


def test_what_may_not_be_kept_goes_back_and_what_was_proven_is_forgotten():
    bench = Bench()
    bench.queue.prove(7)
    bench.custody.refused(received(8), lock_until=60.0, lock_seconds=60.0)
    [settle] = bench.done()
    assert (settle.received, settle.disposition) == (received(8), Disposition.RELEASE)
    assert (bench.queue.proven, bench.queue.forgotten) == ({}, 1)


def test_what_may_not_be_kept_and_is_here_already_gets_the_new_receipt():
    bench = Bench()
    item = bench.take_in(1)
    newest = received(1, receipt=2)
    bench.custody.refused(newest, lock_until=99.0, lock_seconds=60.0)
    assert (item.received, item.lock_until, bench.done()) == (newest, 99.0, [])


def test_what_may_not_be_kept_goes_back_once_more_after_its_release_is_confirmed():
    bench = Bench()
    item = bench.take_in(1)
    bench.custody.release(item)
    [settle] = bench.done()
    newest = received(1, receipt=2)
    bench.custody.refused(newest, lock_until=99.0, lock_seconds=60.0)
    assert bench.done() == []
    bench.custody.settled([settle])
    assert bench.done()[0].received is newest
