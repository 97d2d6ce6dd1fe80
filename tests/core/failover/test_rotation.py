"""The choice of backlog queues: random, stable per session, without the failed ones, with a way back."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.errors import PairingError
from sbpair.core.failover.sending import Rotation, stable_choice

QUEUES = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(10))


def rotation(count: int = 10) -> Rotation:
    return Rotation(QUEUES[:count], first_pause_seconds=1.0, max_pause_seconds=8.0)


def choose(made: Rotation, now: float = 0.0, *, draw: float = 0.0, session: str | None = None) -> str | None:
    return made.choose(session=None if session is None else ("orders", session), draw=draw, now=now)


def test_a_rotation_needs_a_queue() -> None:
    with pytest.raises(PairingError):
        Rotation(())


def test_a_sessionless_message_takes_the_drawn_queue() -> None:
    assert [choose(rotation(), draw=index / 10) for index in range(10)] == list(QUEUES)
    assert choose(rotation(), draw=0.999999999) == QUEUES[9]


@given(st.text(max_size=30))
def test_a_session_has_one_queue_whatever_is_drawn(session: str) -> None:
    assert len({choose(rotation(), draw=draw, session=session) for draw in (0.0, 0.3, 0.99)}) == 1


@given(st.text(st.characters(codec="ascii"), max_size=30))
def test_all_spellings_of_a_session_have_one_queue(session: str) -> None:
    spelled = {stable_choice(("orders", one), QUEUES) for one in (session, session.upper(), session.title())}
    assert spelled == {stable_choice(("orders", session.lower()), QUEUES)}


def test_a_session_without_capital_letters_keeps_the_queue_that_earlier_builds_chose() -> None:
    chosen = "".join(stable_choice(("orders", f"s{number}"), QUEUES)[-1] for number in range(8))
    assert chosen == "26931809"


@given(st.text(max_size=30), st.sampled_from(QUEUES))
def test_only_the_sessions_of_a_lost_queue_move(session: str, lost: str) -> None:
    before = stable_choice(("orders", session), QUEUES)
    after = stable_choice(("orders", session), [queue for queue in QUEUES if queue != lost])
    assert after == before or before == lost


def test_sessions_spread_over_all_queues() -> None:
    counted = Counter(stable_choice(("orders", f"s{number}"), QUEUES) for number in range(2000))
    assert set(counted) == set(QUEUES)
    assert max(counted.values()) < 300


def test_the_entity_is_part_of_the_key_and_its_case_is_not() -> None:
    sessions = [f"s{number}" for number in range(50)]
    by_entity = [[stable_choice((entity, session), QUEUES) for session in sessions] for entity in ("a", "A", "b")]
    assert by_entity[0] == by_entity[1] != by_entity[2]


def test_a_failed_queue_leaves_for_everybody() -> None:
    made = rotation(2)
    assert made.failed(QUEUES[0], 0.0) == 1.0
    assert {choose(made, 0.5, draw=draw) for draw in (0.0, 0.4, 0.99)} == {QUEUES[1]}
    assert {choose(made, 0.5, session=f"s{number}") for number in range(20)} == {QUEUES[1]}


def test_many_failures_at_once_are_one() -> None:
    made = rotation(2)
    assert made.failed(QUEUES[0], 0.0) == 1.0
    assert made.failed(QUEUES[0], 0.1) is None
    assert made.next_chance() == 1.0


def test_one_message_probes_a_queue_whose_pause_is_over() -> None:
    made = rotation(1)
    made.failed(QUEUES[0], 0.0)
    assert choose(made, 0.9) is None
    assert choose(made, 1.0) == QUEUES[0]
    assert choose(made, 1.0) is None
    assert made.next_chance() is None


def test_a_failed_probe_doubles_the_pause_up_to_the_bound() -> None:
    made = rotation(2)
    now, pauses = 0.0, [made.failed(QUEUES[0], 0.0)]
    for _ in range(5):
        now += pauses[-1] or 0.0
        assert choose(made, now) == QUEUES[0]
        pauses.append(made.failed(QUEUES[0], now))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_while_every_queue_is_out_some_queue_comes_up_every_second_and_the_first_back_brings_up_the_others() -> None:
    made = rotation(3)
    for queue in QUEUES[:3]:
        made.failed(queue, 0.0)
    now = 0.0
    for _ in range(50):
        chance = made.next_chance()
        assert chance is not None
        assert chance <= now + 1.0
        now = chance
        while (queue := choose(made, now)) is not None:
            made.failed(queue, now)
    made.succeeded(choose(made, now + 1.0) or "")
    assert made.candidates(now + 1.0) == QUEUES[:3]


def test_an_accepted_probe_brings_the_queue_back_with_a_fresh_pause() -> None:
    made = rotation(1)
    made.failed(QUEUES[0], 0.0)
    choose(made, 1.0)
    assert made.succeeded(QUEUES[0])
    assert not made.succeeded(QUEUES[0])
    assert choose(made, 1.0) == QUEUES[0]
    assert made.failed(QUEUES[0], 2.0) == 1.0


def test_a_probe_that_ends_without_an_answer_lets_another_try() -> None:
    made = rotation(1)
    made.failed(QUEUES[0], 0.0)
    choose(made, 1.0)
    made.released(QUEUES[0])
    made.released("not/in/rotation")
    assert choose(made, 1.0) == QUEUES[0]


def test_the_choice_can_be_restricted() -> None:
    made = rotation()
    among = (QUEUES[4],)
    assert made.choose(session=("orders", "s"), draw=0.0, now=0.0, among=among) == QUEUES[4]
    made.failed(QUEUES[4], 0.0)
    made.failed(QUEUES[5], 0.0)
    assert made.choose(session=("orders", "s"), draw=0.0, now=0.0, among=among) is None
    assert made.next_chance(among) == 1.0
    assert made.next_chance((QUEUES[0],)) is None


def test_standings_say_who_is_out_and_for_how_long() -> None:
    made = rotation(2)
    made.failed(QUEUES[1], 0.0)
    first, second = made.standings(0.25)
    assert (first.in_rotation, first.seconds_until_probe) == (None, None), "nothing was asked of it"
    assert (second.in_rotation, second.seconds_until_probe) == (False, 0.75)
