"""The pace that a namespace's refusals teach: near its budget, and hardly ever beyond it."""

import math
import random

import pytest

from sbpair.core.transfer.pace import Pace


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
