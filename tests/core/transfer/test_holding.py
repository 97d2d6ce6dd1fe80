"""What is done about messages that may not go: how many are held, which are parked, and when all goes back."""

import pytest

from sbpair.core.message import Disposition, Received
from sbpair.core.transfer.machine import CHECK_SECONDS, Settlement
from sbpair.core.transfer.order import FOLLOW_SECONDS, PARKED_MESSAGES, TELL_AGAIN_SECONDS, WAITS_BEHIND, Mode, OrderGap
from sbpair.core.transfer.state import Followed, Forward, Limits, PollAgain, Sample, Settle, Stage, key_of

QUEUE, OTHER = "backlog/0", "backlog/1"
LANE = ("orders", "s")


class Bench:
    """A machine that reads queues in which others have the message with number 1 of session `s`."""

    def __init__(self, **limits):
        self.machine = Settlement(Limits(**limits))
        self.now = 10.0

    def queue(self, source=QUEUE):
        return self.machine.queues.of(source)

    def missing(self, number=1, *, source=QUEUE):
        queue = self.queue(source)
        queue.open_gap(number, OrderGap(LANE, foreign=True), self.now)
        queue.has_led = True
        queue.sample_at = 1e9

    def arrive(self, *numbers, source=QUEUE, size=100, session="s"):
        for number in numbers:
            received = Received(payload=b"wire", sequence_number=number, source=source)
            verdict = Forward(bytes(size), "orders", session)
            self.machine.arrived(received, verdict, lock_until=self.now + 60, lock_seconds=60.0, now=self.now)

    def item(self, number, source=QUEUE):
        return self.machine.custody.find(key_of(Received(payload=b"", sequence_number=number, source=source)))

    def keep(self):
        self.machine._holding.keep(self.now)
        return [action for action in self.done() if isinstance(action, Settle)]

    def done(self):
        actions = list(self.machine._actions)
        self.machine._actions.clear()
        return actions

    def holding(self):
        """The head has not moved for long: what is blocked is held."""
        self.queue().hold(self.now)
        self.queue().moved_at = self.now


def released(settles):
    assert all(settle.disposition is Disposition.RELEASE for settle in settles)
    return [settle.received.sequence_number for settle in settles]


def test_half_of_the_window_is_held_and_with_one_message_more_all_goes_back():
    bench = Bench(in_flight_messages=8)
    bench.missing()
    bench.arrive(2, 3, 4, 5)
    assert (bench.keep(), bench.queue().blocked, bench.queue().mode) == ([], 4, Mode.READING)
    bench.arrive(6)
    assert released(bench.keep()) == [6, 5, 4, 3, 2], "the last messages first"
    assert (bench.queue().mode, bench.queue().blocked) == (Mode.STANDING_BACK, 0)


def test_what_is_blocked_in_other_queues_uses_the_same_half():
    bench = Bench(in_flight_messages=8)
    bench.missing(source=OTHER)
    bench.missing()
    bench.queue(OTHER).check_at = 1e9
    bench.arrive(2, 3)
    bench.queue(OTHER).blocked = 2
    assert bench.keep() == []
    bench.queue(OTHER).blocked, bench.queue().check_at = 3, 0.0
    assert released(bench.keep()) == [3, 2]


def test_the_smallest_window_holds_a_message():
    bench = Bench(in_flight_messages=1)
    bench.missing()
    bench.arrive(2)
    assert (bench.keep(), bench.queue().blocked) == ([], 1)


def test_half_of_the_bytes_are_held_and_with_one_byte_more_all_goes_back():
    bench = Bench(in_flight_bytes=400)
    bench.missing()
    bench.arrive(2, 3)
    assert bench.keep() == []
    bench = Bench(in_flight_bytes=399)
    bench.missing()
    bench.arrive(2, 3)
    assert released(bench.keep()) == [3, 2]


def test_gaps_are_browsed_more_seldom_the_longer_nothing_moves():
    bench, there = Bench(), [Received(payload=b"", sequence_number=1, source=QUEUE)]
    bench.missing()
    queue, began, waits = bench.queue(), bench.now, []
    for page, since in ((there, 1.0), (there, 2.0), (there, 200.0), (there, 1000.0), ([], 1000.0), ([], 1000.0)):
        queue.gaps_sampled(1, page, began + since)
        waits.append(queue.sample_at - began - since)
    assert waits == [0.5, 0.5, 10.0, 15.0, 0.25, 0.5]


def test_how_fast_others_go_on_is_looked_for_and_told_from_time_to_time():
    bench = Bench()
    queues, queue = bench.machine.queues, bench.queue()
    queues.report_leaders(0.0)
    queue.mode, queue.head, queue.followed_since = Mode.STANDING_BACK, 41, (-FOLLOW_SECONDS, 1)
    told = []
    for now in (0.0, FOLLOW_SECONDS - 0.1, FOLLOW_SECONDS, FOLLOW_SECONDS + TELL_AGAIN_SECONDS - 0.1,
                FOLLOW_SECONDS + TELL_AGAIN_SECONDS):  # fmt: skip
        queues.report_leaders(now)
        told.append([(one.sources, one.messages_per_second) for one in bench.done() if isinstance(one, Followed)])
    first, again = (40 / (2 * FOLLOW_SECONDS), 40 / (2 * FOLLOW_SECONDS + TELL_AGAIN_SECONDS))
    assert told == [[], [], [((QUEUE,), first)], [], [((QUEUE,), again)]]


def test_what_is_blocked_is_counted_when_something_comes_and_else_from_time_to_time():
    bench = Bench(in_flight_messages=2)
    bench.missing()
    bench.arrive(2)
    assert (bench.keep(), bench.queue().check_at) == ([], bench.now + CHECK_SECONDS)
    bench.arrive(3)
    assert bench.queue().check_at == 0.0
    bench.queue().check_at = bench.now + CHECK_SECONDS
    bench.now += CHECK_SECONDS * 0.9
    assert bench.keep() == []
    bench.now += CHECK_SECONDS * 0.1
    assert released(bench.keep()) == [3, 2]


def test_a_drain_that_has_sent_nothing_here_stands_back_at_once():
    bench = Bench()
    bench.missing()
    bench.queue().has_led = False
    bench.arrive(2)
    assert released(bench.keep()) == [2]


def test_a_leader_waits_for_what_another_took_from_it_and_then_stands_back():
    bench = Bench()
    bench.missing()
    bench.arrive(2, 3)
    assert (bench.keep(), bench.queue().behind_since) == ([], 10.0)
    bench.now = 10.0 + bench.queue().hold_after_seconds - 0.1
    assert bench.keep() == []
    bench.now += 0.1
    assert released(bench.keep()) == [3, 2]


def test_a_leader_that_has_fewer_messages_than_others_have_before_them_gives_way():
    bench = Bench()
    bench.missing(1)
    bench.missing(2)
    bench.arrive(3)
    assert released(bench.keep()) == [3]


def test_the_drain_that_has_the_lowest_message_waits_for_ever():
    bench = Bench()
    bench.missing(5)
    bench.queue().has_led = False
    bench.arrive(2, session=None)
    bench.arrive(7)
    assert (bench.keep(), bench.queue().behind_since) == ([], None)
    bench.now += 1e6
    assert bench.keep() == []


def test_what_waits_for_nothing_any_more_is_not_counted():
    bench = Bench()
    bench.missing()
    bench.arrive(2)
    bench.keep()
    bench.queue().close_gap(1)
    assert (bench.keep(), bench.queue().blocked, bench.queue().behind_since) == ([], 0, None)
    bench.missing()
    bench.queue().blocked, bench.queue().behind_since, bench.queue().check_at = 7, 3.0, 0.0
    bench.queue().lanes, bench.queue().gaps[1] = {}, OrderGap(("orders", "another"), foreign=True)
    assert (bench.keep(), bench.queue().blocked, bench.queue().behind_since) == ([], 0, None)


def test_beyond_half_the_window_the_last_messages_are_parked_until_half_of_it_is_free_again():
    bench = Bench(in_flight_messages=8)
    bench.missing()
    bench.holding()
    bench.arrive(2, 3, 4, 5)
    assert (bench.keep(), bench.queue().parked) == ([], {})
    bench.arrive(6)
    assert bench.keep() == []
    assert [bench.item(number).stage for number in (2, 3, 4, 5, 6)] == [Stage.WAITING] * 2 + [Stage.LEFT] * 3
    assert bench.machine.custody.left() == {bench.item(number).key: WAITS_BEHIND for number in (4, 5, 6)}
    assert (bench.item(6).payload, bench.item(6).received.payload) == (b"", b"")
    assert (len(bench.queue().parked[LANE]), bench.queue().blocked, bench.queue().mode) == (3, 2, Mode.HOLDING)


def test_messages_are_parked_until_a_quarter_of_the_bytes_is_used():
    bench = Bench(in_flight_bytes=800)
    bench.missing()
    bench.holding()
    bench.arrive(2, 3, 4, 5, 6)
    assert bench.keep() == []
    assert [bench.item(number).stage for number in (2, 3, 4)] == [Stage.WAITING, Stage.WAITING, Stage.LEFT]


def test_a_message_whose_lock_is_being_renewed_is_not_parked():
    bench = Bench(in_flight_messages=2)
    bench.missing()
    bench.holding()
    bench.arrive(2, 3)
    bench.item(3).renewing = True
    assert bench.keep() == []
    assert (bench.item(2).stage, bench.item(3).stage) == (Stage.LEFT, Stage.WAITING)


def test_where_too_many_are_parked_all_goes_back_and_the_head_is_not_passed_again():
    bench = Bench(in_flight_messages=2, left_messages=PARKED_MESSAGES * 2)
    bench.missing()
    bench.holding()
    for number in range(100, 100 + PARKED_MESSAGES):
        bench.queue(OTHER).park(("orders", "t"), number)
    bench.queue(OTHER).gaps[1] = OrderGap(("orders", "t"), foreign=True)
    bench.queue(OTHER).lanes[("orders", "t")] = bench.queue().lanes[LANE]
    bench.queue(OTHER).hold(bench.now)
    bench.queue(OTHER).check_at = 1e9
    bench.arrive(2, 3)
    assert released(bench.keep()) == [3, 2]
    assert (bench.queue().mode, bench.queue().budget_used_up) == (Mode.STANDING_BACK, True)


def browsed(*numbers):
    return [Received(payload=b"", sequence_number=number, source=QUEUE) for number in numbers]


def test_where_nobody_elses_is_left_the_queue_is_led_and_a_new_head_is_passed_again():
    bench = Bench()
    queue = bench.queue()
    queue.stand_back(bench.now)
    queue.budget_used_up = True
    for _ in range(2):
        assert not queue.head_sampled(browsed(1, 2), (), bench.now)
        bench.now += 2 * queue.hold_after_seconds
    assert (queue.mode, queue.may_try) == (Mode.STANDING_BACK, True)
    assert queue.head_sampled(browsed(2), (2,), bench.now)
    assert (queue.mode, queue.head, queue.may_try) == (Mode.READING, None, False)
    queue.stand_back(bench.now)
    assert not queue.head_sampled(browsed(3), (), bench.now)
    bench.now += 2 * queue.hold_after_seconds
    assert queue.head_sampled(browsed(3), (), bench.now)
    assert queue.mode is Mode.HOLDING


def test_a_lock_is_waited_for_from_when_it_was_met():
    bench = Bench()
    queue = bench.queue()
    queue.stand_back(bench.now)
    queue.head_sampled(browsed(1), (), bench.now)
    assert bench.machine.queues.foreign_locks(bench.now) == {}
    bench.machine.queues.tried(QUEUE, browsed(2), bench.now)
    assert bench.machine.queues.foreign_locks(bench.now + 4.0) == {QUEUE: queue.lock_seconds - 4.0}
    bench.machine.queues.tried(QUEUE, browsed(2), bench.now + 4.0)
    assert bench.machine.queues.foreign_locks(bench.now + 4.0) == {QUEUE: queue.lock_seconds - 4.0}


def test_others_that_move_after_all_get_everything_back():
    bench = Bench()
    bench.missing()
    bench.holding()
    bench.arrive(2)
    assert bench.keep() == []
    bench.queue().moved_at = bench.now + 1.0
    bench.now += 2.0
    assert released(bench.keep()) == [2]
    assert not bench.queue().budget_used_up


def test_a_lock_past_all_patience_ends_the_holding():
    bench = Bench(lock_wait_seconds=30.0)
    bench.missing()
    bench.holding()
    bench.arrive(2)
    bench.now += 29.9
    assert bench.keep() == []
    bench.now += 0.1
    assert released(bench.keep()) == [2]
    assert bench.queue().budget_used_up


def test_what_is_parked_comes_again_when_nothing_comes_before_it_and_the_rest_waits_for_it():
    bench = Bench(in_flight_messages=2)
    bench.missing()
    bench.holding()
    bench.arrive(2, 3, 4)
    bench.keep()
    bench.queue().close_gap(1)
    bench.now += 1.0
    settles = bench.keep()
    assert released(settles) == [4, 3, 2]
    assert (bench.queue().parked, bench.machine.custody.left_messages) == ({}, 0)
    assert set(bench.queue().gaps) == {2, 3, 4}
    assert all(not gap.foreign for gap in bench.queue().gaps.values())


def test_stepping_back_releases_what_is_parked_too():
    bench = Bench(in_flight_messages=4)
    bench.missing()
    bench.holding()
    bench.arrive(2, 3, 4)
    bench.keep()
    assert bench.item(4).stage is Stage.LEFT
    bench.queue().moved_at = bench.now + 1.0
    bench.now += 2.0
    assert released(bench.keep()) == [4, 3, 2]
    assert bench.queue().gaps == {}, "nothing is known of what others do now"


def test_while_others_lead_what_is_blocked_goes_back_as_it_comes():
    bench = Bench()
    queue = bench.queue()
    queue.stand_back(bench.now)
    bench.missing()
    bench.arrive(2)
    assert released([action for action in bench.done() if isinstance(action, Settle)]) == [2]
    assert (queue.mode, queue.forgotten, queue.came, queue.came_blocked) == (Mode.STANDING_BACK, 2, 1, 1)


def test_a_session_that_nobody_else_is_at_lets_the_queue_be_read_again():
    bench = Bench()
    queue = bench.queue()
    queue.stand_back(bench.now)
    bench.arrive(2, session=None)
    assert (queue.mode, queue.ordered, bench.done()) == (Mode.STANDING_BACK, False, [])
    bench.arrive(3)
    assert (queue.mode, queue.ordered, queue.opening) == (Mode.READING, True, False)
    assert bench.done() == [PollAgain(QUEUE)]
    assert (queue.came, queue.came_blocked) == (2, 0)


@pytest.mark.parametrize(("sampling", "at", "asked"), [(False, 10.0, True), (False, 10.1, False), (True, 10.0, False)])
def test_what_is_waited_for_is_browsed_when_that_is_due(sampling, at, asked):
    bench = Bench()
    bench.missing(4)
    bench.arrive(5)
    bench.queue().sample_at, bench.queue().sampling = at, sampling
    bench.machine._holding.keep(bench.now)
    assert [action for action in bench.done() if isinstance(action, Sample)] == [Sample(QUEUE, 4)] * asked


def test_a_gap_that_nothing_waits_for_is_not_browsed():
    bench = Bench()
    bench.missing(4)
    bench.queue().sample_at = 0.0
    assert bench.keep() == []
    assert not bench.queue().sampling
