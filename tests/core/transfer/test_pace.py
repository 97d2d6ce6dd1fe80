"""The pace that a namespace's refusals teach: near its budget, and hardly ever beyond it."""

import math
import random
from collections import deque

import pytest

from sbpair.core.errors import ServerBusyError
from sbpair.core.transfer.order import Mode, OrderGap, Queues
from sbpair.core.transfer.pace import MOST_GROWTH, Load, Pace, Window
from sbpair.core.transfer.state import Limits, PauseBegan


class Budget:
    """A namespace that takes so many messages in each second of the clock, and refuses a batch beyond."""

    def __init__(self, per_second):
        self.per_second = per_second
        self.second, self.spent = 0, 0
        self.taken = self.refused = 0

    def send(self, messages, now):
        if math.floor(now) != self.second:
            self.spent = max(0, self.spent - self.per_second(now) * (math.floor(now) - self.second))
            self.second = math.floor(now)
        if self.spent >= self.per_second(now):
            self.refused += messages
            return False
        self.spent += messages
        self.taken += messages
        return True


def send_for(seconds, budget, *, pace=None, began=0.0, at_once=8, round_trip=0.05, stalls=None):
    """Send as the pump does, up to 8 batches of 100 on their way, from `began` on; the pace. `stalls` are the mean
    seconds between two, and the most that one lasts: whoever sends gets no processor then, and hears nothing."""
    draw = random.Random(f"{seconds}{began}{round_trip}")
    pace = pace or Pace()
    now, stalled_until, next_stall = began, 0.0, began
    travelling, answers = [], []
    while now < began + seconds:
        if stalls is not None and now >= next_stall:
            stalled_until = now + draw.uniform(0.0, stalls[1])
            next_stall = stalled_until + draw.expovariate(1 / stalls[0])
        for arrives, messages in sorted(one for one in travelling if one[0] <= now):
            travelling.remove((arrives, messages))
            answers.append((messages, budget.send(messages, arrives)))
        if now >= stalled_until:
            for messages, taken in answers:
                if taken:
                    pace.accepted(messages, now)
                else:
                    pace.refused(now)
            answers.clear()
            while len(travelling) < at_once and (messages := pace.grant(100, now)):
                travelling.append((now + round_trip * draw.uniform(0.7, 1.5), messages))
        now = round(now + 0.005, 3)
    return pace


@pytest.mark.parametrize("began", [0.13, 0.39, 0.65, 0.91])
def test_it_holds_95_percent_of_a_budget_wherever_in_a_second_it_begins(began):
    budget = Budget(lambda now: 1000)
    send_for(120.0, budget, began=began)
    assert budget.taken > 0.95 * 120_000
    assert budget.refused < 800 + 0.01 * budget.taken, "what was under way at the first refusal, and little besides"


@pytest.mark.parametrize("per_second", [60, 100, 200, 1000, 4000])
def test_it_holds_95_percent_of_a_budget_and_less_than_1_percent_is_refused(per_second):
    budget = Budget(lambda now: per_second)
    send_for(180.0, budget, began=0.39)
    assert budget.taken > 0.95 * 180 * per_second
    assert budget.refused < 800 + 0.01 * budget.taken, "what was under way at the first refusal, and little besides"


def test_waits_are_counted_once_however_often_somebody_asks():
    pace = Pace()
    pace.accepted(100, 0.0)
    pause = pace.refused(0.1)
    assert pace.waited.seconds == 0, "nobody has asked for anything"
    for now in (0.2, 0.3, 0.3, 0.5):
        assert pace.allowance(now) == 0
    until_the_first = pace.seconds_until_some(0.2)
    assert until_the_first >= pause - 0.1
    assert pace.waited.seconds == pytest.approx(until_the_first)
    assert pace.allowance(0.2 + until_the_first + 1.0)
    assert pace.waited.seconds == pytest.approx(until_the_first), "from then on nothing was held up"
    alone = Pace()
    assert alone.allowance(5.0) is None
    assert alone.waited.seconds == 0


def test_a_window_that_is_held_up_in_receiving_and_sending_waits_once():
    limits, pace = Limits(budget_per_second=10), Pace(10)
    window = Window(limits, Queues(limits, deque()), pace)
    now, got = 0.0, 0
    while now < 10.0:
        window.allowance(now)
        if granted := window.grant(100, Load(0, 0, 0, 1000.0, 0), now):
            got += granted
            window.take(min(granted, window.allowance(now)))
            window.returned(granted)
        now = round(now + 0.01, 2)
    assert 90 <= got <= 110
    assert 8.0 < pace.waited.seconds <= 10.1


def test_a_second_that_others_had_used_does_not_teach_a_low_pace_for_minutes():
    pace = Pace()
    pace.accepted(8, 0.5)
    since = 0.55 + pace.refused(0.55)
    grown = [(pace.per_second(since + seconds) or 0.0) / 8 for seconds in (5, 20, 45, 90)]
    assert grown[0] < 1.01, "a good estimate is not tested at once"
    assert grown[1] < 1.4
    assert 20 < grown[2] < 40
    assert grown[3] == pytest.approx(MOST_GROWTH, rel=0.03)


def test_a_machine_that_stalls_now_and_then_does_not_teach_a_low_pace():
    shares = []
    for began in (0.1, 0.4, 0.7):
        budget = Budget(lambda now: 1000)
        send_for(120.0, budget, began=began, stalls=(2.0, 0.3))
        shares.append(budget.taken / 120_000)
        assert budget.refused < 0.012 * budget.taken
    assert min(shares) > 0.9, "a twelfth of the time nothing can be sent at all"
    assert sum(shares) / len(shares) > 0.93


def test_what_is_left_to_others_is_left_from_the_first_second_on():
    budget = Budget(lambda now: 650)
    send_for(60.0, budget, pace=Pace(600.0))
    assert budget.refused == 0, "in no second much more than allowed, not even in the first"
    assert budget.taken > 0.95 * 60 * 600


def test_a_refusal_counts_although_there_is_a_bound():
    budget = Budget(lambda now: 300)
    pace = send_for(60.0, budget, pace=Pace(600.0))
    assert 250 < pace.per_second(60.0) < 330, "others use more than was left to them"
    assert budget.refused < 0.02 * budget.taken


def test_it_follows_a_budget_that_others_use_for_a_while():
    budget = Budget(lambda now: 300 if 60 <= now < 120 else 1000)
    pace = send_for(60.0, budget)
    send_for(60.0, budget, pace=pace, began=60.0)
    shared = budget.taken
    assert shared > 0.93 * 60_000 + 0.85 * 18_000
    send_for(240.0, budget, pace=pace, began=120.0)
    assert budget.taken - shared > 0.7 * 240_000
    assert budget.refused < 0.015 * budget.taken


def test_several_who_know_nothing_of_each_other_use_the_whole_budget_together():
    budget, paces = Budget(lambda now: 1000), [Pace() for _ in range(4)]
    now = 0.0
    while now < 120.0:
        for pace in paces:
            if not (messages := pace.grant(100, now)):
                continue
            if budget.send(messages, now):
                pace.accepted(messages, now)
            else:
                pace.refused(now)
        now = round(now + 0.01, 3)
    assert budget.taken > 0.95 * 120_000
    assert budget.refused < 0.01 * budget.taken


def learnt(*accepted, refused):
    """The pace after the last of these refusals; what was accepted are numbers of messages and times."""
    pace = Pace()
    for at, messages in sorted([*accepted, *((at, None) for at in refused)], key=lambda one: one[0]):
        if messages is None:
            pace.refused(at)
        else:
            pace.accepted(messages, at)
    return pace.per_second(pace.paused_until)


def test_the_most_of_a_second_is_looked_for_in_the_last_three():
    assert learnt((0.0, 50), (3.0, 1), refused=[3.0]) == 50
    assert learnt((0.0, 50), (3.1, 2), refused=[3.1]) == 2
    assert learnt((0.0, 50), (0.9, 50), refused=[0.9]) == 100
    assert learnt((0.0, 50), (1.0, 51), refused=[1.0]) == 51


def test_what_was_accepted_since_the_second_of_the_first_refusal_tells_the_pace_of_the_next():
    accepted = ((0.0, 10), (40.0, 100), (42.0, 60))
    assert learnt(*accepted, refused=[40.5]) == 100
    measured = 160 / (42.2 - 40.0)
    assert learnt(*accepted, refused=[40.5, 42.2]) == pytest.approx(measured + 0.25 * (100 - measured), rel=0.001)


def test_nothing_is_bounded_before_the_first_refusal():
    pace = Pace()
    assert pace.allowance(0.0) is None
    pace.take(5000)
    pace.accepted(5000, 0.1)
    assert (pace.per_second(0.2), pace.seconds_until_some(0.2)) == (None, 0.0)


def test_a_namespace_that_accepts_nothing_is_asked_ever_more_seldom():
    pace = Pace()
    assert [pace.refused(20.0 * place) for place in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert (pace.refused(104.0), pace.allowance(104.0), pace.seconds_until_some(104.0)) == (6.0, 0, 6.0)
    assert pace.per_second(10.0) is None


# The arithmetic of what may be received and sent: each bound alone, at its edge.

A, B, C, D = "backlog/0", "backlog/1", "backlog/2", "backlog/3"


class Bench:
    """A window, and queues that may be read without care."""

    def __init__(self, *queues, **limits):
        limits = Limits(**limits)
        self.queues = Queues(limits, deque())
        self.window = Window(limits, self.queues)
        for source in queues:
            self.queues.of(source).careful = False

    def grant(self, wanted=10_000, *, now=0.0, source=None, **load):
        return self.window.grant(wanted, in_hand(**load), now, source)


def in_hand(live=0, held=0, size_bytes=0, mean_bytes=1000.0, counted=0):
    return Load(live, held, size_bytes, mean_bytes, counted)


def test_what_is_on_its_way_takes_room_and_so_does_what_is_granted_until_it_is_returned():
    bench = Bench(in_flight_messages=100)
    assert bench.grant(live=30) == 70
    assert bench.grant(live=30) == 0
    bench.window.returned(70)
    assert (bench.grant(40), bench.grant(), bench.grant()) == (40, 60, 0)
    bench.window.returned(40)
    assert bench.grant() == 40


@pytest.mark.parametrize(
    ("live", "held", "room"),
    [
        (90, 90, 100),  # what is held takes no room of what moves
        (350, 350, 50),  # until four windows are in hand
        (400, 400, 0),
        (401, 401, 0),
        (360, 340, 40),  # 340 + 20 of 400
        (110, 50, 40),  # 60 of 100 move
    ],
)
def test_what_waits_for_a_destination_that_is_down_has_a_bound_of_its_own(live, held, room):
    assert Bench(in_flight_messages=100).grant(live=live, held=held) == room


def test_what_is_blocked_takes_no_room_in_whatever_queue_it_is():
    bench = Bench(A, B, in_flight_messages=100)
    bench.queues.of(A).blocked, bench.queues.of(B).blocked = 20, 10
    assert bench.grant(live=50) == 80


def test_a_count_of_blocked_messages_from_before_they_went_makes_no_room():
    bench = Bench(A, in_flight_messages=100)
    bench.queues.of(A).blocked = 30
    assert bench.grant(live=10) == 100


@pytest.mark.parametrize(("size_bytes", "mean", "room"), [(4000, 1000.0, 6), (4000, 1001.0, 5), (9001, 1000.0, 0)])
def test_what_is_to_come_is_taken_for_as_heavy_as_what_came(size_bytes, mean, room):
    assert Bench(in_flight_bytes=10_000).grant(size_bytes=size_bytes, mean_bytes=mean) == room


def test_no_queue_is_granted_more_than_its_share_of_those_that_are_asked():
    bench = Bench(A, B.upper(), C, D, in_flight_messages=100)
    assert bench.grant(source=A) == 25
    bench.window.rests(B)
    assert bench.grant(source=B) == 25, "once it asks it takes part again"
    bench.window.rests(C)
    bench.window.rests(D)
    bench.window.returned(25)
    assert bench.grant(source=A) == 50
    assert Bench(A, in_flight_messages=100).grant(source=A) == 100


def test_a_queue_may_ask_for_a_message_whatever_the_others_were_granted():
    bench = Bench(A, B, in_flight_messages=100)
    assert (bench.grant(source=A), bench.grant(source=B)) == (50, 50)
    assert bench.grant(source=A) == 1
    assert bench.grant(source=A, live=100) == 0, "there is no room at all"


def test_a_share_is_bounded_by_what_messages_weigh():
    assert Bench(A, B, in_flight_messages=100, in_flight_bytes=20_000).grant(source=A) == 10


@pytest.mark.parametrize(
    ("live", "going", "granted"),
    [
        (63, 2, 0),  # one message now, or more once the two are settled
        (63, 1, 1),  # nothing to wait for
        (62, 9, 2),  # two of 64 are no small part
    ],
)
def test_a_receive_of_few_messages_waits_for_more_room(live, going, granted):
    bench = Bench(A, in_flight_messages=64)
    for number in range(going):
        bench.queues.of(A).going.add(number)
    assert bench.grant(source=A, live=live) == granted


def test_a_receive_of_few_messages_is_made_where_few_are_wanted():
    bench = Bench(A, in_flight_messages=64)
    for number in range(9):
        bench.queues.of(A).going.add(number)
    assert bench.grant(1, source=A, live=63) == 1


@pytest.mark.parametrize("reason", ["held", "blocked", "gap", "parked", "holding"])
def test_a_receive_of_few_messages_is_made_where_what_is_on_its_way_may_not_go_soon(reason):
    bench = Bench(A, in_flight_messages=64)
    queue, lane = bench.queues.of(A), ("orders", "s")
    for number in range(1, 10):
        queue.going.add(number)
    held = 0
    match reason:
        case "held":
            held = 1
        case "blocked":
            queue.blocked = 1
        case "gap":
            queue.open_gap(20, OrderGap(lane, foreign=True), 0.0)
        case "parked":
            queue.park(lane, 5)
        case "holding":
            queue.mode = Mode.HOLDING
    assert bench.grant(source=A, live=63 + held + queue.blocked, held=held) == 1


def test_no_more_than_the_wanted_number_is_received_in_all():
    bench = Bench(total_messages=10)
    assert (bench.grant(2, counted=4), bench.grant(counted=4), bench.grant(counted=4)) == (2, 4, 0)
    assert Bench(total_messages=10).grant(counted=12) == 0


@pytest.mark.parametrize(("rate", "most"), [(2.0, 10), (0.1, 1), (1000.0, 100)])
def test_with_a_rate_no_more_is_received_than_goes_in_a_few_seconds(rate, most):
    assert Bench(in_flight_messages=100, rate_per_second=rate).grant() == most


def test_the_lower_of_rate_and_pace_bounds_what_is_received():
    bench = Bench(in_flight_messages=1000, rate_per_second=50.0)
    bench.window.accepted(8, 0.0)
    bench.window.too_busy(ServerBusyError("busy"), 0.0)
    assert bench.grant(now=2.0) == 40, "8 a second, five seconds ahead"


def test_a_queue_that_others_lead_is_asked_for_one_message_and_only_to_try():
    bench = Bench(A)
    queue = bench.queues.of(A)
    queue.stand_back(0.0)
    assert bench.grant(source=A) == 0
    queue.may_try = True
    assert (bench.grant(source=A), queue.may_try) == (1, False)


def test_a_try_that_finds_no_room_is_still_to_be_made():
    bench = Bench(A, in_flight_messages=10)
    queue = bench.queues.of(A)
    queue.stand_back(0.0)
    queue.may_try = True
    assert (bench.grant(source=A, live=10), queue.may_try) == (0, True)


def test_a_queue_is_opened_with_one_message_and_left_alone_while_it_rests():
    bench = Bench(A)
    queue = bench.queues.of(A)
    queue.careful = True
    assert bench.grant(source=A) == 1
    queue.rests_until = 5.0
    assert bench.grant(source=A, now=4.9) == 0
    assert bench.grant(source=A, now=5.0) == 1


def test_a_namespace_that_is_too_busy_is_left_alone_for_longer_each_time():
    bench = Bench(patience_seconds=30.0)
    first, second = ServerBusyError("first"), ServerBusyError("second")
    assert bench.window.too_busy(first, 10.0) == PauseBegan("", first.code, 1.0, 30.0)
    assert bench.window.too_busy(second, 10.9) is None, "of what was under way"
    assert (bench.grant(now=10.9), bench.window.busy_until) == (0, 11.0)
    assert bench.window.too_busy(second, 11.0) == PauseBegan("", second.code, 2.0, 29.0)
    assert bench.window.busy_beyond_patience(39.9) is None
    assert bench.window.busy_beyond_patience(40.0) is first
    assert bench.window.too_busy(second, 45.0) == PauseBegan("", second.code, 4.0, 0.0)
    bench.window.accepted(1, 50.0)
    assert bench.window.busy_beyond_patience(90.0) is None


def test_without_patience_no_end_of_a_pause_is_announced():
    window = Bench().window
    assert window.too_busy(ServerBusyError("busy"), 0.0) == PauseBegan("", ServerBusyError.code, 1.0, None)
    assert window.busy_beyond_patience(1e9) is None


def test_receiving_pauses_until_the_given_time_or_until_something_can_move():
    bench = Bench()
    bench.window.pause_receiving(20.0)
    assert (bench.window.receives(19.9), bench.grant(now=19.9)) == (False, 0)
    assert bench.window.receives(20.0)
    assert bench.grant(5, now=20.0) == 5
    bench.window.pause_receiving(50.0)
    bench.window.receive_again()
    assert bench.grant(5, now=21.0) == 5


def test_a_budget_bounds_what_is_received_and_what_did_not_come_is_given_back():
    bench = Bench(budget_per_second=100.0)
    assert bench.grant(now=1.0) == 10, "a tenth of a second is saved up"
    assert bench.grant(now=1.0) == 0
    bench.window.returned(10, came=4)
    assert bench.grant(now=1.0) == 6
    bench.window.returned(6)
    assert bench.grant(now=1.0) == 0, "all of them came"


def test_a_second_of_a_rate_is_saved_up_for_sending_and_a_debt_is_paid_off():
    slow = Bench(rate_per_second=0.5).window
    slow.allowance(0.0)
    assert slow.allowance(100.0) == 1, "a message at least"
    window = Bench(rate_per_second=5.0).window
    assert window.allowance(0.0) == 1
    assert window.allowance(3.0) == 5
    window.take(15)
    assert window.allowance(3.0) == 0
    assert window.allowance(5.19) == 0
    assert window.allowance(5.2) == 1


def test_no_more_is_sent_than_may_be_in_flight_and_a_budget_counts_for_sending_too():
    assert Bench(in_flight_messages=7).window.allowance(0.0) == 7
    window = Bench(in_flight_messages=70, budget_per_second=100.0, rate_per_second=8.0).window
    window.allowance(0.0)
    assert window.allowance(1.0) == 8
    window.take(8)
    assert window.allowance(1.0) == 0
    window = Bench(in_flight_messages=70, budget_per_second=100.0).window
    assert window.allowance(1.0) == 10
    window.take(9)
    assert window.allowance(1.04) == 5


def test_the_window_is_asked_again_when_a_pause_ends_or_a_rate_lets_more_go():
    window = Bench(rate_per_second=4.0).window
    assert list(window.deadlines(0.0, waiting=True)) == []
    window.take(1)
    window.allowance(0.0)
    window.take(1)
    assert list(window.deadlines(0.0, waiting=False)) == []
    assert list(window.deadlines(0.0, waiting=True)) == [0.5]
    window.too_busy(ServerBusyError("busy"), 0.0)
    window.pause_receiving(3.0)
    assert list(window.deadlines(0.5, waiting=False)) == [1.0, 3.0]
    assert list(window.deadlines(1.0, waiting=False)) == [3.0]
    assert list(window.deadlines(3.0, waiting=False)) == []


def test_a_learnt_pace_says_when_more_may_go():
    window = Bench(budget_per_second=10.0).window
    window.allowance(0.0)
    assert list(window.deadlines(0.0, waiting=True)) == pytest.approx([0.1])
