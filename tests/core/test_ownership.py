"""Places in a session, and the journal entry's rules one by one."""

from dataclasses import replace

import pytest

from sbpair.core import ownership
from sbpair.core.compose import compose
from sbpair.core.errors import MalformedMessageError, UsageError
from sbpair.core.ordering import NO_ORDER, Chain, Frontier, Place, Stamp, keys_of, stamp_of, stamped
from sbpair.core.ownership import (
    Because,
    Bury,
    Done,
    GiveUp,
    Granularity,
    Passed,
    SessionEntry,
    Start,
    State,
    Terms,
    Wait,
    judge,
)
from sbpair.core.summary import describe

NOW = 1_000.0
TERMS = Terms(lease_seconds=10, margin_seconds=2, max_attempts=2)
NEW = SessionEntry("parcel-1")


def stamp(number: int, *after: Place, stream: str = "s") -> Stamp:
    return Stamp(Place(stream, number), after or ((Place(stream, number - 1),) if number > 1 else ()))


def start(entry: SessionEntry, which: Stamp, *, owner: str = "a", now: float = NOW, terms: Terms = TERMS) -> Start:
    decision = judge(entry, which, f"m{which.place.number}", owner=owner, now=now, terms=terms)
    assert isinstance(decision, Start), decision
    return decision


def finished(entry: SessionEntry, which: Stamp, *, terms: Terms = TERMS, now: float = NOW) -> SessionEntry:
    begun = start(entry, which, now=now, terms=terms)
    done = ownership.complete(begun.entry, begun.claim, now=now, terms=terms)
    assert done is not None
    return done


# Places


def test_a_stamp_survives_the_message_it_is_written_on() -> None:
    payload = compose(body="x", message_id="1", session_id="s", application_properties={"mine": 7})
    wanted = Stamp(Place("a", 3), (Place("a", 2), Place("b:c", 9)))
    written = stamped(payload, wanted, scheduled_at=1_790_000_000.0)
    assert stamp_of(written) == wanted
    assert keys_of(written).scheduled_at == 1_790_000_000.0
    assert describe(written).application_properties["mine"] == 7


@pytest.mark.parametrize(
    "properties",
    [{}, {"x-sbpair-stream": "s"}, {"x-sbpair-stream": "s", "x-sbpair-number": 0},
     {"x-sbpair-stream": "s", "x-sbpair-number": "1"},
     {"x-sbpair-stream": "s", "x-sbpair-number": 1, "x-sbpair-after": "seven"}],
)  # fmt: skip
def test_a_message_that_does_not_say_its_place_has_a_reason_to_be_dead_lettered(properties: dict[str, object]) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        stamp_of(compose(body="x", message_id="1", session_id="s", application_properties=properties))
    assert caught.value.reason == NO_ORDER


@pytest.mark.parametrize("missing", ["session_id", "message_id"])
def test_both_ids_are_needed(missing: str) -> None:
    ids = {"session_id": "s", "message_id": "m"} | {missing: ""}
    with pytest.raises(UsageError, match=missing.replace("_", " ")):
        keys_of(compose(body="x", **ids))  # type: ignore[arg-type]


def test_the_rules_of_the_numbers() -> None:
    chain = Chain.begin("s", Frontier((Place("older", 7),)))
    first = chain.stamp("m1")
    assert first == Stamp(Place("s", 1), (Place("older", 7),))
    chain.failed(first, "m1", in_doubt=False)
    assert chain.stamp("m2") == first, "refused for certain: the number is free"
    chain.accepted(first)
    second = chain.stamp("m3")
    assert second == Stamp(Place("s", 2), (Place("s", 1),))
    chain.failed(second, "m3", in_doubt=True)
    assert chain.stamp("m3") == second, "the same message keeps its number"
    third = chain.stamp("m4")
    assert third == Stamp(Place("s", 3), (Place("s", 1),)), "another one does not wait for what may not exist"
    chain.accepted(third)
    assert chain.stamp("m3").place == Place("s", 4), "too late to be the second"


def test_the_frontier_forgets_what_somebody_follows() -> None:
    both = Frontier((Place("a", 5), Place("b", 2)))
    assert both.moved(Place("c", 1), (Place("a", 5), Place("b", 2))).places == (Place("c", 1),)
    assert both.moved(Place("c", 1), (Place("a", 4),)).places == (Place("a", 5), Place("b", 2), Place("c", 1))
    assert both.moved(Place("a", 6), ()).places == (Place("b", 2), Place("a", 6))
    assert Frontier.from_dict(both.to_dict()) == both


# The entry


def test_a_session_is_claimed_worked_on_and_finished() -> None:
    begun = start(NEW, stamp(1))
    assert (begun.entry.state, begun.entry.owner, begun.entry.lease_until) == (State.WORKING, "a", NOW + 10)
    assert (begun.claim.fence, begun.claim.attempt) == (1, 1)
    done = ownership.complete(begun.entry, begun.claim, now=NOW + 1, terms=TERMS)
    assert done is not None
    assert (done.state, done.head("s"), done.completed_count) == (State.COMPLETED, 1, 1)
    assert judge(done, stamp(1), "m1", owner="b", now=NOW + 1, terms=TERMS) == Done()
    assert SessionEntry.from_dict(done.to_dict()) == done


def test_a_lease_holds_others_off_until_the_margin_is_over_too() -> None:
    begun = start(NEW, stamp(1)).entry
    for now in (NOW, NOW + 10, NOW + 11.9):
        assert judge(begun, stamp(1), "m1", owner="b", now=now, terms=TERMS) == Wait(Because.OWNED, NOW + 12)
    taken = start(begun, stamp(1), owner="b", now=NOW + 12)
    assert (taken.claim.fence, taken.claim.attempt) == (2, 2)


def test_whoever_was_taken_over_from_has_lost() -> None:
    old = start(NEW, stamp(1))
    new = start(old.entry, stamp(1), owner="b", now=NOW + 12).entry
    assert ownership.renew(new, old.claim, now=NOW + 12, terms=TERMS) is None
    assert ownership.complete(new, old.claim, now=NOW + 12, terms=TERMS) is None
    assert ownership.fail(new, old.claim, "x", now=NOW + 12, pause_seconds=0, terms=TERMS) is None


def test_a_lapsed_lease_nobody_used_still_lets_its_owner_finish() -> None:
    begun = start(NEW, stamp(1))
    assert ownership.complete(begun.entry, begun.claim, now=NOW + 60, terms=TERMS) is not None


def test_a_renewed_lease_runs_from_now() -> None:
    begun = start(NEW, stamp(1))
    renewed = ownership.renew(begun.entry, begun.claim, now=NOW + 4, terms=TERMS)
    assert renewed is not None
    assert renewed.lease_until == NOW + 14


def test_a_start_whose_answer_was_lost_is_no_second_attempt() -> None:
    begun = start(NEW, stamp(1))
    again = start(begun.entry, stamp(1), now=NOW + 1)
    assert (again.claim.attempt, again.claim.fence) == (1, 2)


def test_a_message_that_keeps_failing_is_failed_and_its_other_copy_dead_lettered() -> None:
    first = start(NEW, stamp(1))
    pending = ownership.fail(first.entry, first.claim, "exit 1", now=NOW, pause_seconds=5, terms=TERMS)
    assert pending is not None
    assert (pending.state, pending.owner) == (State.PENDING, "")
    assert judge(pending, stamp(1), "m1", owner="b", now=NOW, terms=TERMS) == Wait(Because.PAUSE, NOW + 5)
    second = start(pending, stamp(1), owner="b", now=NOW + 5)
    failed = ownership.fail(second.entry, second.claim, "exit 2", now=NOW + 5, pause_seconds=5, terms=TERMS)
    assert failed is not None
    assert (failed.state, failed.failed_count) == (State.FAILED, 1)
    assert judge(failed, stamp(1), "m1", owner="a", now=NOW + 6, terms=TERMS) == Bury("HandlerFailed", "exit 2")
    start(failed, stamp(2), now=NOW + 30)


def test_a_message_that_kills_its_consumers_is_given_up() -> None:
    first = start(NEW, stamp(1)).entry
    second = start(first, stamp(1), owner="b", now=NOW + 12).entry
    decision = judge(second, stamp(1), "m1", owner="c", now=NOW + 24, terms=TERMS)
    assert isinstance(decision, GiveUp)
    assert "died on it 2 times" in decision.failure.reason
    assert (decision.entry.state, decision.entry.owner) == (State.FAILED, "")


def test_coming_again_later_counts_no_attempt() -> None:
    begun = start(NEW, stamp(1))
    pending = ownership.retry_later(begun.entry, begun.claim, now=NOW, pause_seconds=3)
    assert pending is not None
    assert start(pending, stamp(1), now=NOW + 3).claim.attempt == 1


@pytest.mark.parametrize(("granularity", "owner"), [(Granularity.SESSION, "a"), (Granularity.MESSAGE, "")])
def test_between_messages_a_session_stays_claimed_or_not(granularity: Granularity, owner: str) -> None:
    done = finished(NEW, stamp(1), terms=replace(TERMS, granularity=granularity))
    assert done.owner == owner
    released = ownership.release(done, "a", now=NOW)
    assert (released is None) is (owner == "")
    assert released is None or released.owner == ""


# Order and gaps


def test_nothing_begins_before_what_it_follows() -> None:
    decision = judge(NEW, stamp(2), "m2", owner="a", now=NOW, terms=TERMS)
    assert isinstance(decision, Wait)
    assert (decision.because, decision.missing, decision.until) == (Because.GAP, Place("s", 1), None)
    assert decision.note is not None
    repeated = judge(decision.note, stamp(2), "m2", owner="b", now=NOW + 9, terms=TERMS)
    assert repeated == Wait(Because.GAP, None, Place("s", 1)), "noted once"
    start(finished(decision.note, stamp(1)), stamp(2))


def test_nothing_begins_while_another_message_is_under_way_or_will_be_tried_again() -> None:
    begun = start(NEW, stamp(1))
    pending = ownership.fail(begun.entry, begun.claim, "x", now=NOW, pause_seconds=5, terms=TERMS)
    assert pending is not None
    other = judge(pending, stamp(1, stream="t"), "o", owner="b", now=NOW, terms=TERMS)
    assert isinstance(other, Wait)
    assert other.because is Because.PAUSE


def test_a_predecessor_is_given_up_after_the_gap_time_and_its_copy_buried() -> None:
    terms = replace(TERMS, gap_seconds=60)
    waiting = judge(NEW, stamp(4), "m4", owner="a", now=NOW, terms=terms)
    assert isinstance(waiting, Wait)
    assert waiting.until == NOW + 60
    assert waiting.note is not None
    begun = start(waiting.note, stamp(4), now=NOW + 60, terms=terms)
    assert begun.entry.passed == (Passed("s", 1, 3, NOW + 60),)
    late = judge(begun.entry, stamp(2), "m2", owner="a", now=NOW + 61, terms=terms)
    assert isinstance(late, Bury)
    assert late.reason == "Overtaken"


def test_of_several_gaps_the_first_of_the_stream_is_noted() -> None:
    later = judge(NEW, stamp(9), "m9", owner="a", now=NOW, terms=TERMS)
    assert isinstance(later, Wait)
    assert later.note is not None
    earlier = judge(later.note, stamp(3), "m3", owner="b", now=NOW, terms=TERMS)
    assert isinstance(earlier, Wait)
    assert earlier.note is not None
    assert earlier.note.gap is not None
    assert earlier.note.gap.missing == Place("s", 2)
    back = judge(earlier.note, stamp(9), "m9", owner="a", now=NOW, terms=TERMS)
    assert back == Wait(Because.GAP, None, Place("s", 8))


def test_a_number_nobody_named_is_passed_when_its_successor_is_finished() -> None:
    one = finished(NEW, stamp(1))
    third = finished(one, stamp(3, Place("s", 1)))
    assert isinstance(judge(third, stamp(2), "m2", owner="a", now=NOW, terms=TERMS), Bury)


def test_what_is_older_than_the_retention_is_forgotten() -> None:
    one = finished(NEW, stamp(1, stream="old"))
    later = NOW + TERMS.retention_seconds + 1
    both = finished(one, stamp(1, stream="new"), now=later)
    assert [head.stream for head in both.heads] == ["new"]


# What a person should see


def test_stuck_sessions_say_why() -> None:
    assert ownership.is_stuck(finished(NEW, stamp(1)), now=NOW, terms=TERMS) is None
    begun = start(NEW, stamp(1)).entry
    assert ownership.is_stuck(begun, now=NOW + 5, terms=TERMS) is None
    assert "nobody goes on" in (ownership.is_stuck(begun, now=NOW + 31, terms=TERMS) or "")
    gap = judge(NEW, stamp(2), "m2", owner="a", now=NOW, terms=TERMS)
    assert isinstance(gap, Wait)
    assert gap.note is not None
    assert "waits for s:1" in (ownership.is_stuck(gap.note, now=NOW + 21, terms=TERMS) or "")
    assert "clock" in (ownership.is_stuck(begun, now=NOW - 100, terms=TERMS) or "")


@pytest.mark.parametrize(
    "wrong",
    [{"lease_seconds": 0}, {"margin_seconds": -1}, {"max_attempts": 0}, {"lease_seconds": 1, "margin_seconds": 2},
     {"retention_seconds": 10}],
)  # fmt: skip
def test_terms_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Terms(**wrong)  # type: ignore[arg-type]
