"""Places in a session, and the journal entry's rules one by one."""

from dataclasses import replace

import pytest

from sbpair.core.errors import MalformedMessageError, UsageError
from sbpair.core.replication import ownership
from sbpair.core.replication.ordering import NO_ORDER, Chain, Frontier, Place, Stamp, keys_of, stamp_of, stamped
from sbpair.core.replication.ownership import (
    Because,
    Copy,
    DeadLetter,
    Decision,
    Done,
    Finished,
    GiveUp,
    Granularity,
    LookUp,
    MessageRecord,
    NotYet,
    Passed,
    SessionEntry,
    SessionState,
    Skip,
    Start,
    Terms,
    decide,
)
from sbpair.core.replication.ownership import judge as judge_copy
from sbpair.core.rewrite import compose
from sbpair.core.summary import describe

NOW = 1_000.0
TERMS = Terms(lease_seconds=10, margin_seconds=2, max_attempts=2)
NEW = SessionEntry("orders", "parcel-1")


class Nothing(dict[str, Finished | None]):
    """Records of messages of which none is finished."""

    def __contains__(self, message_id: object) -> bool:
        return True


def judge(
    entry: SessionEntry,
    which: Stamp | None,
    message_id: str,
    *,
    owner: str,
    now: float,
    terms: Terms,
    records: dict[str, Finished | None] | None = None,
) -> Decision:
    """Of one copy; by default no record is there but what the entry says."""
    known = Nothing() if records is None else records
    return judge_copy(entry, Copy(message_id, 1, which), known, owner=owner, now=now, terms=terms)


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
    follows = stamp_of(stamped(payload, Stamp(Place("a", 3), (Place("a", 2, 'm "2"'), Place("b", 9, "ü 9")))))
    assert follows is not None
    assert [place.message_id for place in follows.after] == ['m "2"', "ü 9"]
    assert stamp_of(payload) is None, "any other producer's message has no stamp"
    ids_left_out = {"x-sbpair-stream": "s", "x-sbpair-number": 2, "x-sbpair-after": "s:1"}
    payload = compose(body="x", message_id="1", session_id="s", application_properties=ids_left_out)
    assert stamp_of(payload) == Stamp(Place("s", 2), (Place("s", 1),))


@pytest.mark.parametrize(
    "properties",
    [{"x-sbpair-number": 1}, {"x-sbpair-stream": "s"}, {"x-sbpair-stream": "s", "x-sbpair-number": 0},
     {"x-sbpair-stream": "s", "x-sbpair-number": "1"},
     {"x-sbpair-stream": "s", "x-sbpair-number": 1, "x-sbpair-after": "seven"},
     {"x-sbpair-stream": "s", "x-sbpair-number": 2, "x-sbpair-after": "s:1", "x-sbpair-after-ids": "[]"},
     {"x-sbpair-stream": "s", "x-sbpair-number": 2, "x-sbpair-after": "s:1", "x-sbpair-after-ids": "["},
     {"x-sbpair-stream": "s", "x-sbpair-number": 2, "x-sbpair-after": "s:" + "9" * 5000}],
)  # fmt: skip
def test_a_place_that_makes_no_sense_is_a_reason_to_be_dead_lettered(properties: dict[str, object]) -> None:
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
    assert (begun.entry.state, begun.entry.owner, begun.entry.lease_until) == (SessionState.WORKING, "a", NOW + 10)
    assert (begun.claim.fence, begun.claim.attempt) == (NOW * 1000, 1)
    done = ownership.complete(begun.entry, begun.claim, now=NOW + 1, terms=TERMS)
    assert done is not None
    assert (done.state, done.head("s"), done.completed_count) == (SessionState.COMPLETED, 1, 1)
    assert judge(done, stamp(1), "m1", owner="b", now=NOW + 1, terms=TERMS) == Done()
    assert SessionEntry.from_dict(done.to_dict()) == done


def test_a_lease_holds_others_off_until_the_margin_is_over_too() -> None:
    begun = start(NEW, stamp(1)).entry
    for now in (NOW, NOW + 10, NOW + 11.9):
        assert judge(begun, stamp(1), "m1", owner="b", now=now, terms=TERMS) == NotYet(Because.OWNED, NOW + 12)
    taken = start(begun, stamp(1), owner="b", now=NOW + 12)
    assert (taken.claim.fence, taken.claim.attempt) == (NOW * 1000 + 1, 2)


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
    assert (again.claim.attempt, again.claim.fence) == (1, NOW * 1000 + 1)


def test_a_message_that_keeps_failing_is_failed_and_its_other_copy_dead_lettered() -> None:
    first = start(NEW, stamp(1))
    pending = ownership.fail(first.entry, first.claim, "exit 1", now=NOW, pause_seconds=5, terms=TERMS)
    assert pending is not None
    assert (pending.state, pending.owner) == (SessionState.PENDING, "")
    assert judge(pending, stamp(1), "m1", owner="b", now=NOW, terms=TERMS) == NotYet(Because.PAUSE, NOW + 5)
    second = start(pending, stamp(1), owner="b", now=NOW + 5)
    failed = ownership.fail(second.entry, second.claim, "exit 2", now=NOW + 5, pause_seconds=5, terms=TERMS)
    assert failed is not None
    assert (failed.state, failed.failed_count) == (SessionState.FAILED, 1)
    assert judge(failed, stamp(1), "m1", owner="a", now=NOW + 6, terms=TERMS) == DeadLetter("HandlerFailed", "exit 2")
    start(failed, stamp(2), now=NOW + 30)


def test_a_message_that_kills_its_consumers_is_given_up() -> None:
    first = start(NEW, stamp(1)).entry
    second = start(first, stamp(1), owner="b", now=NOW + 12).entry
    decision = judge(second, stamp(1), "m1", owner="c", now=NOW + 24, terms=TERMS)
    assert isinstance(decision, GiveUp)
    assert "died on it 2 times" in decision.finished.reason
    assert (decision.entry.state, decision.entry.owner) == (SessionState.FAILED, "")


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
    assert isinstance(decision, NotYet)
    assert (decision.because, decision.missing, decision.until) == (Because.GAP, "s:1", None)
    assert decision.note is not None
    repeated = judge(decision.note, stamp(2), "m2", owner="b", now=NOW + 9, terms=TERMS)
    assert repeated == NotYet(Because.GAP, None, "s:1"), "noted once"
    start(finished(decision.note, stamp(1)), stamp(2))


def test_nothing_begins_while_another_message_is_under_way_or_will_be_tried_again() -> None:
    begun = start(NEW, stamp(1))
    pending = ownership.fail(begun.entry, begun.claim, "x", now=NOW, pause_seconds=5, terms=TERMS)
    assert pending is not None
    other = judge(pending, stamp(1, stream="t"), "o", owner="b", now=NOW, terms=TERMS)
    assert isinstance(other, NotYet)
    assert other.because is Because.PAUSE


def test_a_predecessor_is_given_up_after_the_gap_time_and_its_copy_dead_lettered() -> None:
    terms = replace(TERMS, gap_seconds=60)
    waiting = judge(NEW, stamp(4), "m4", owner="a", now=NOW, terms=terms)
    assert isinstance(waiting, NotYet)
    assert waiting.until == NOW + 60
    assert waiting.note is not None
    begun = start(waiting.note, stamp(4), now=NOW + 60, terms=terms)
    assert begun.entry.passed == (Passed("s", 1, 3, NOW + 60),)
    late = judge(begun.entry, stamp(2), "m2", owner="a", now=NOW + 61, terms=terms)
    assert isinstance(late, DeadLetter)
    assert late.reason == "Overtaken"


def test_a_copy_whose_number_is_finished_is_not_completed_once_the_journal_has_forgotten_why() -> None:
    terms = replace(TERMS, gap_seconds=60)
    waiting = judge(NEW, stamp(4), "m4", owner="a", now=NOW, terms=terms)
    assert isinstance(waiting, NotYet)
    assert waiting.note is not None
    begun = start(waiting.note, stamp(4), now=NOW + 60, terms=terms)
    finished_at = NOW + 61 + terms.retention_seconds
    entry = ownership.complete(begun.entry, begun.claim, now=finished_at, terms=terms)
    assert entry is not None
    assert entry.passed == ()
    late = judge(entry, stamp(2), "m2", owner="a", now=finished_at, terms=terms)
    assert isinstance(late, DeadLetter)
    assert late.reason == "Forgotten"


def test_of_several_gaps_the_first_of_the_stream_is_noted() -> None:
    later = judge(NEW, stamp(9), "m9", owner="a", now=NOW, terms=TERMS)
    assert isinstance(later, NotYet)
    assert later.note is not None
    earlier = judge(later.note, stamp(3), "m3", owner="b", now=NOW, terms=TERMS)
    assert isinstance(earlier, NotYet)
    assert earlier.note is not None
    assert earlier.note.gap is not None
    assert earlier.note.gap.missing == Place("s", 2)
    back = judge(earlier.note, stamp(9), "m9", owner="a", now=NOW, terms=TERMS)
    assert back == NotYet(Because.GAP, None, "s:8")


def test_a_number_nobody_named_is_passed_when_its_successor_is_finished() -> None:
    one = finished(NEW, stamp(1))
    third = finished(one, stamp(3, Place("s", 1)))
    assert isinstance(judge(third, stamp(2), "m2", owner="a", now=NOW, terms=TERMS), DeadLetter)


def test_what_is_older_than_the_retention_is_forgotten() -> None:
    one = finished(NEW, stamp(1, stream="old"))
    later = NOW + TERMS.retention_seconds + 1
    both = finished(ownership.recorded(one, {"m1"}), stamp(1, stream="new"), now=later)
    assert [head.stream for head in both.heads] == ["new"]


# Messages without a stamp, and messages sent twice


def test_a_message_without_a_stamp_is_looked_up_started_and_finished_by_its_id() -> None:
    asked = judge(NEW, None, "m1", owner="a", now=NOW, terms=TERMS, records={})
    assert asked == LookUp(("m1",))
    begun = judge(NEW, None, "m1", owner="a", now=NOW, terms=TERMS, records={"m1": None})
    assert isinstance(begun, Start)
    done = ownership.complete(begun.entry, begun.claim, now=NOW, terms=TERMS)
    assert done is not None
    assert judge(done, None, "m1", owner="b", now=NOW, terms=TERMS, records={}) == Done(), "the entry says so itself"
    forgotten = ownership.recorded(done, {"m1"})
    assert judge(forgotten, None, "m1", owner="b", now=NOW, terms=TERMS, records={}) == LookUp(("m1",))
    said = {"m1": Finished("m1", SessionState.COMPLETED, NOW)}
    assert judge(forgotten, None, "m1", owner="b", now=NOW, terms=TERMS, records={**said}) == Done()


def test_without_stamps_the_queue_goes_one_after_another_but_what_has_begun_goes_on() -> None:
    def first(entry: SessionEntry, *copies: Copy) -> object:
        decided = decide(entry, copies, Nothing(), owner="b", now=NOW, terms=TERMS)
        return decided if isinstance(decided, list) else (decided[0].message_id, type(decided[1]))

    one, two = Copy("m1", 1), Copy("m2", 2)
    assert first(NEW, two, one) == ("m1", Start)
    begun = judge(NEW, None, "m1", owner="a", now=NOW, terms=TERMS)
    assert isinstance(begun, Start)
    waits = first(begun.entry, two, one)
    assert isinstance(waits, list)
    assert [wait.because for wait in waits] == [Because.OWNED, Because.TURN]
    paused = ownership.fail(begun.entry, begun.claim, "x", now=NOW, pause_seconds=0, terms=TERMS)
    assert paused is not None
    assert first(paused, Copy("other", 1), Copy("m1", 2)) == ("m1", Start), "in the other region it may lie behind"


def test_a_message_with_a_stamp_does_not_wait_for_others_in_the_queue() -> None:
    copies = (Copy("theirs", 1, stamp(2, stream="t")), Copy("ours", 2, stamp(1)))
    decided = decide(NEW, copies, Nothing(), owner="a", now=NOW, terms=TERMS)
    assert isinstance(decided, tuple)
    assert decided[0].message_id == "ours"


def test_a_message_sent_again_under_another_number_is_not_run_and_its_number_counts() -> None:
    one = finished(NEW, stamp(1))
    again = judge(one, stamp(1, stream="rerun"), "m1", owner="a", now=NOW, terms=TERMS)
    assert isinstance(again, Skip)
    assert (again.then, again.entry.head("rerun"), again.entry.completed_count) == (Done(), 1, 1)
    start(again.entry, stamp(2, stream="rerun"))


def test_the_number_of_a_message_sent_again_does_not_stand_for_unfinished_ones_before_it() -> None:
    one = finished(NEW, stamp(1))
    early = judge(one, stamp(3, stream="rerun"), "m1", owner="a", now=NOW, terms=TERMS)
    assert isinstance(early, NotYet)
    assert early.missing == "rerun:2"


def test_a_gap_made_by_a_dropped_duplicate_closes_because_the_message_is_finished() -> None:
    one = ownership.recorded(finished(NEW, stamp(1)), {"m1"})
    follows = Stamp(Place("rerun", 2), (Place("rerun", 1, "m1"),))
    asked = judge(one, follows, "m2", owner="a", now=NOW, terms=TERMS, records={})
    assert asked == LookUp(("m1",))
    unfinished = judge(one, follows, "m2", owner="a", now=NOW, terms=TERMS, records={"m1": None})
    assert isinstance(unfinished, NotYet)
    records: dict[str, Finished | None] = {"m1": Finished("m1", SessionState.COMPLETED, NOW), "m2": None}
    begun = judge(one, follows, "m2", owner="a", now=NOW, terms=TERMS, records=records)
    assert isinstance(begun, Start)
    done = ownership.complete(begun.entry, begun.claim, now=NOW, terms=TERMS)
    assert done is not None
    assert done.head("rerun") == 2


def test_what_follows_a_dropped_duplicate_still_waits_for_what_lies_before_it_in_the_queue() -> None:
    """Number 2 waits for what is not here; 4 follows 3, which the brokers dropped: it does not overtake 2."""
    follows = Stamp(Place("s", 4), (Place("s", 3, "old"),))
    records = Nothing({"old": Finished("old", SessionState.COMPLETED, NOW)})
    waits = decide(NEW, (Copy("m2", 1, stamp(2)), Copy("m4", 2, follows)), records, owner="a", now=NOW, terms=TERMS)
    assert isinstance(waits, list)
    assert [wait.because for wait in waits] == [Because.GAP, Because.TURN]


def test_a_message_that_failed_is_dead_lettered_when_it_is_sent_again() -> None:
    records: dict[str, Finished | None] = {"m1": Finished("m1", SessionState.FAILED, NOW, "HandlerFailed", "exit 1")}
    assert judge(NEW, None, "m1", owner="a", now=NOW, terms=TERMS, records=records) == DeadLetter(
        "HandlerFailed", "exit 1"
    )


def test_a_begun_message_without_a_stamp_is_given_up_after_the_gap_time_and_never_run_later() -> None:
    terms = replace(TERMS, gap_seconds=60)
    begun = judge(NEW, None, "m1", owner="a", now=NOW, terms=terms)
    assert isinstance(begun, Start)
    paused = ownership.fail(begun.entry, begun.claim, "x", now=NOW, pause_seconds=0, terms=terms)
    assert paused is not None
    waiting = judge(paused, None, "m2", owner="b", now=NOW + 30, terms=terms)
    assert isinstance(waiting, NotYet)
    assert waiting.note is not None
    later = judge(waiting.note, None, "m2", owner="b", now=NOW + 90, terms=terms)
    assert isinstance(later, Start)
    late = judge(later.entry, None, "m1", owner="b", now=NOW + 90, terms=terms)
    assert isinstance(late, DeadLetter)
    assert late.reason == "Overtaken"


# How long it is kept


def test_a_record_is_kept_for_less_once_both_copies_are_settled() -> None:
    record = MessageRecord("orders", "parcel-1", Finished("m1", SessionState.COMPLETED, NOW))
    assert record.forget_after_seconds(TERMS) == TERMS.retention_seconds
    assert record.also_settled(["primary"]).forget_after_seconds(TERMS) == TERMS.retention_seconds
    both = record.also_settled(["primary"]).also_settled(["secondary"])
    assert both.forget_after_seconds(TERMS) == TERMS.remember_seconds
    assert MessageRecord.from_dict(both.to_dict()) == both


def test_an_entry_that_knows_nothing_senders_may_name_is_kept_for_less() -> None:
    begun = judge(NEW, None, "m1", owner="a", now=NOW, terms=TERMS)
    assert isinstance(begun, Start)
    done = ownership.complete(begun.entry, begun.claim, now=NOW, terms=TERMS)
    assert done is not None
    assert ownership.forget_after_seconds(done, TERMS) == TERMS.retention_seconds, "its record may not be written yet"
    released = ownership.release(ownership.recorded(done, {"m1"}), "a", now=NOW)
    assert released is not None
    assert ownership.forget_after_seconds(released, TERMS) == TERMS.remember_seconds
    stamps = ownership.release(ownership.recorded(finished(NEW, stamp(1)), {"m1"}), "a", now=NOW)
    assert stamps is not None
    assert ownership.forget_after_seconds(stamps, TERMS) == TERMS.retention_seconds


def test_the_fence_of_a_session_that_was_forgotten_is_higher_than_before() -> None:
    entry, now = NEW, NOW
    for _ in range(1_000):
        begun = judge(entry, None, "m", owner="a", now=now, terms=TERMS)
        assert isinstance(begun, Start)
        entry, now = replace(begun.entry, current=None, state=SessionState.PENDING, owner=""), now + 0.01
    fresh = judge(NEW, None, "m", owner="a", now=now + TERMS.remember_seconds, terms=TERMS)
    assert isinstance(fresh, Start)
    assert fresh.claim.fence > entry.fence


# What a person should see


def test_stuck_sessions_say_why() -> None:
    assert ownership.is_stuck(finished(NEW, stamp(1)), now=NOW, terms=TERMS) is None
    begun = start(NEW, stamp(1)).entry
    assert ownership.is_stuck(begun, now=NOW + 5, terms=TERMS) is None
    assert "nobody goes on" in (ownership.is_stuck(begun, now=NOW + 31, terms=TERMS) or "")
    gap = judge(NEW, stamp(2), "m2", owner="a", now=NOW, terms=TERMS)
    assert isinstance(gap, NotYet)
    assert gap.note is not None
    assert "m2 waits for s:1" in (ownership.is_stuck(gap.note, now=NOW + 21, terms=TERMS) or "")
    assert "clock" in (ownership.is_stuck(begun, now=NOW - 100, terms=TERMS) or "")


@pytest.mark.parametrize(
    "wrong",
    [{"lease_seconds": 0}, {"margin_seconds": -1}, {"max_attempts": 0}, {"lease_seconds": 1, "margin_seconds": 2},
     {"remember_seconds": 10}, {"remember_seconds": 900_000, "retention_seconds": 800_000},
     {"gap_seconds": 14 * 86_400}],
)  # fmt: skip
def test_terms_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Terms(**wrong)  # type: ignore[arg-type]


def test_terms_that_just_work_are_taken() -> None:
    edge = Terms(20, 20, 1, gap_seconds=60, retention_seconds=80, remember_seconds=80)
    assert (edge.margin_seconds, Terms(margin_seconds=0).margin_seconds) == (edge.lease_seconds, 0)
    with pytest.raises(UsageError):
        replace(edge, gap_seconds=60.1)
