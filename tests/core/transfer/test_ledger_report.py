"""The chain of a ledger's lines: everything that was changed, dropped, moved or added is found, and nothing else is."""

import json
import random
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.transfer.ledger import (
    EMPTY_MARK,
    NOT_SENT,
    RUN_BEGAN,
    RUN_ENDED,
    SENDING,
    Entry,
    batch_lines,
    chained,
    mark_of,
    run_line,
)
from sbpair.core.transfer.ledger_report import Chain, IncidentCounter, IncidentReport

WAY = {"from_namespace": "b.example", "to_namespace": "a.example"}
QUEUE = "a/x-servicebus-transfer/0"
AT = "2026-11-24T08:00:{:02d}+00:00"
BEGAN_MS = 1_795_500_000_000


def entry(number: int, outcome: str = "forwarded", **more: object) -> Entry:
    values: dict[str, object] = {"destination": "orders", "session_id": None, "time": AT.format(number % 60)}
    values |= {"outcome": outcome, **more}
    return Entry(QUEUE, number, f"m{number}", BEGAN_MS + number, **values)  # type: ignore[arg-type]


def a_ledger(messages: int = 5) -> list[bytes]:
    """Lines as a run writes them, with their chain."""
    lines = [run_line("r1", RUN_BEGAN, AT.format(0), WAY, {"who": "me@here", "command": "drain", "credentials": "key"})]
    entries = [entry(number) for number in range(1, messages + 1)]
    lines += batch_lines(entries, SENDING, WAY)
    lines += [one.line(WAY) for one in entries]
    lines.append(run_line("r1", RUN_ENDED, AT.format(59), WAY, {"ended_by": "empty", "left": {}, "waiting": None}))
    return chained(lines, EMPTY_MARK)[0].splitlines(keepends=True)


def read(data: bytes, *, put_together: bool = False) -> tuple[Chain, IncidentReport]:
    chain, incident = Chain(put_together=put_together), IncidentCounter()
    for text in data.splitlines(keepends=True):
        if (line := chain.add(text)) is not None:
            incident.add(line)
    seen = chain.seen("drain.jsonl", ended=incident.over(), signature=None)
    return chain, incident.report((seen,), verified=True)


def faults(data: bytes) -> Sequence[str]:
    return read(data)[1].faults


LEDGER = a_ledger()
WHOLE = b"".join(LEDGER)


def test_a_ledger_as_it_was_written_has_no_fault() -> None:
    chain, told = read(WHOLE)
    assert (told.faults, tuple(told.notes()), int(told.exit)) == ((), (), 0)
    assert (chain.lines, chain.not_chained, told.sent) == (len(LEDGER), 0, 5)
    assert "No line of 8 was changed" in told.closing


def test_every_change_of_a_single_byte_is_found() -> None:
    chance = random.Random(7)
    for place in range(len(WHOLE)):
        for other in {chance.randrange(256), 0, 0x0A, 0x20, 0x22, WHOLE[place] ^ 1} - {WHOLE[place]}:
            data = WHOLE[:place] + bytes([other]) + WHOLE[place + 1 :]
            # The end of the last line alone may also have been lost with the rest of a block in a power cut.
            if place < len(WHOLE) - 1 or other != 0:
                assert faults(data), (place, other)


def test_every_dropped_repeated_added_or_swapped_line_is_found() -> None:
    last = len(LEDGER) - 1
    forged = entry(99).line(WAY)
    for place in range(len(LEDGER)):
        dropped = LEDGER[:place] + LEDGER[place + 1 :]
        repeated = LEDGER[: place + 1] + LEDGER[place:]
        added = [*LEDGER[: place + 1], forged, *LEDGER[place + 1 :]]
        chained_elsewhere = [*LEDGER[: place + 1], a_ledger(7)[3], *LEDGER[place + 1 :]]
        for data in (repeated, added, chained_elsewhere):
            assert faults(b"".join(data)), place
        if place < last:
            assert faults(b"".join(dropped)), place
            swapped = [*LEDGER[:place], LEDGER[place + 1], LEDGER[place], *LEDGER[place + 2 :]]
            assert faults(b"".join(swapped)), place


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 2000))
def test_what_is_cut_out_of_the_middle_is_found(begin: int, size: int) -> None:
    end = min(begin + size, len(WHOLE))
    if end < len(WHOLE):
        assert faults(WHOLE[:begin] + WHOLE[end:])


def test_a_last_line_that_a_crash_cut_off_is_no_fault_and_is_said() -> None:
    for size in range(len(WHOLE) - len(LEDGER[-1]) + 1, len(WHOLE)):
        for nuls in (b"", b"\0" * 9):
            _, told = read(WHOLE[:size] + nuls)
            assert not told.faults, size
            assert any("cut off by a crash" in note for note in told.notes()), size


def test_an_end_that_was_taken_away_is_told_as_a_run_without_an_end() -> None:
    for keep in range(1, len(LEDGER)):
        _, told = read(b"".join(LEDGER[:keep]))
        assert not told.faults
        assert any("the last run has no end" in note for note in told.notes()), keep


def test_lines_of_an_earlier_release_are_said_to_be_not_chained_and_are_covered_by_the_first_that_is() -> None:
    old = b"".join(entry(number).line(WAY) for number in range(100, 103))
    assert "Not chained" in read(old)[1].closing
    continued = old + chained([entry(1).line(WAY), entry(2).line(WAY)], mark_of(old))[0]
    _, told = read(continued)
    assert not told.faults
    assert any("lines 1-3 are of an earlier release" in note for note in told.notes())
    for place in range(0, len(old), 7):
        changed = old[:place] + bytes([old[place] ^ 1]) + old[place + 1 :]
        assert faults(changed + continued[len(old) :]), place
    later = WHOLE + entry(50).line(WAY)
    assert "earlier release wrote that, or it was added" in faults(later)[0]
    assert faults(later + chained([entry(51).line(WAY)], mark_of(later))[0]) == faults(later)


def test_ledgers_that_were_put_together_are_counted() -> None:
    _, told = read(WHOLE + WHOLE, put_together=True)
    assert not told.faults
    assert faults(WHOLE + WHOLE)
    assert "drain.jsonl: put together of 2 ledgers." in told.notes()


def told_of(lines: Iterable[bytes]) -> IncidentReport:
    return read(chained(lines, EMPTY_MARK)[0])[1]


def test_the_incident_is_told_over_all_runs() -> None:
    first, second = [entry(1), entry(2)], [entry(3), entry(4, destination="parcels")]
    told = told_of(
        [
            run_line("r1", RUN_BEGAN, AT.format(0), WAY, {"who": "ann@a", "command": "drain", "credentials": "k"}),
            *(one.line(WAY) for one in first),
            entry(5, "dead-lettered", reason="MessageTooLarge").line(WAY),
            run_line("r2", RUN_BEGAN, AT.format(30), WAY, {"who": "bob@b", "command": "syphon", "reason": "INC-1"}),
            *(one.line(WAY) for one in second),
            run_line(
                "r2",
                RUN_ENDED,
                AT.format(40),
                WAY,
                {"ended_by": "empty", "left": {"locked": 2}, "waiting": {"active": 2}},
            ),
        ]
    )
    assert [(run.who, run.command, run.reason, run.sent, run.dead_lettered) for run in told.runs] == [
        ("ann@a", "drain", "", 2, 1),
        ("bob@b", "syphon", "INC-1", 2, 0),
    ]
    assert (told.runs[0].ended, told.runs[1].ended_by) == (None, "empty")
    assert (told.messages, told.sent) == (5, 4)
    assert told.destinations == (("orders", 3), ("parcels", 1))
    assert told.dead_letter_reasons == (("MessageTooLarge", 1),)
    assert (told.first_enqueued_at, told.last_enqueued_at) == ((BEGAN_MS + 1) / 1000, (BEGAN_MS + 5) / 1000)
    assert told.left == (("locked", 2),)
    assert told.waiting == {"active": 2}
    assert told.longest_wait_seconds is not None
    assert told.possible_doubles == ()


def test_what_may_be_twice_at_its_destination_is_named_and_what_was_refused_is_not() -> None:
    lost, refused, found, open_one = entry(1), entry(2), entry(3), entry(4)
    told = told_of(
        [
            *batch_lines([lost, refused, found, open_one], SENDING, WAY),
            *batch_lines([refused], NOT_SENT, WAY),
            *batch_lines([lost, refused], SENDING, WAY),
            *(one.line(WAY) for one in (lost, refused, found)),
            entry(6, attempts=2).line(WAY),
            entry(7).line(WAY),
            entry(7, time=AT.format(50)).line(WAY),
            entry(8, "already-forwarded").line(WAY),
            entry(9, "dead-lettered", attempts=0).line(WAY),
        ]
    )
    assert {double.message_id: double.why for double in told.possible_doubles} == {
        "m1": "an earlier send of it was not answered",
        "m4": "an answer was lost, and no later line mentions the message",
        "m6": "an earlier send of it was not answered",
        "m7": "it was sent more than once",
    }


def test_messages_of_two_pairs_are_not_taken_for_one() -> None:
    """Queues of the same name, and the same numbers in them: two incidents side by side."""
    other = {"from_namespace": "d.example", "to_namespace": "c.example"}
    told = told_of(entry(number, attempts=2).line(way) for way in (WAY, other) for number in (1, 2))
    assert (told.messages, told.sent, len(told.possible_doubles)) == (4, 4, 4)


def test_no_line_makes_the_reader_fail() -> None:
    line = json.loads(entry(1).line(WAY))
    odd = [
        {**line, "time": "yesterday"},
        {**line, "attempts": None, "reason": 7, "destination": ["x"]},
        {**line, "outcome": RUN_BEGAN, "who": {"a": 1}},
        {**line, "outcome": RUN_ENDED, "left": {"x": "y"}, "waiting": [1]},
        {**line, "outcome": RUN_ENDED, "left": 5},
        {**line, "enqueued_at_ms": 10**30, "time": "0001-01-01T00:00:00+00:00"},
    ]
    for one in odd:
        _, told = read(json.dumps(one).encode() + b"\n")
        assert told.closing
        assert isinstance((*told.notes(), *(f"{a}{b}" for a, b in told.figures())), tuple)
