"""The chain of a ledger's lines: everything that was changed, dropped, moved or added is found, and nothing else is."""

import json
import random
from collections.abc import Iterable, Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.serialization import spoken_time
from sbpair.core.transfer.ledger import (
    EMPTY_MARK,
    LINES_OF_A_MARK,
    NOT_SENT,
    RUN_BEGAN,
    RUN_ENDED,
    SENDING,
    LedgerEntry,
    batch_lines,
    chained,
    follow,
    run_line,
)
from sbpair.core.transfer.ledger_report import IncidentCounter, IncidentReport, LedgerChain

WAY = {"from_namespace": "b.example", "to_namespace": "a.example"}
QUEUE = "a/x-servicebus-transfer/0"
AT = "2026-11-24T08:00:{:02d}+00:00"
BEGAN_MS = 1_795_500_000_000


def entry(number: int, outcome: str = "forwarded", **more: object) -> LedgerEntry:
    values: dict[str, object] = {"destination": "orders", "session_id": None, "time": AT.format(number % 60)}
    values |= {"outcome": outcome, **more}
    return LedgerEntry(QUEUE, number, f"m{number}", BEGAN_MS + number, **values)  # type: ignore[arg-type]


def in_writes(lines: Sequence[bytes], sizes: Iterable[int] = (1, 1, 5), since: bytes = EMPTY_MARK) -> list[bytes]:
    """Lines as a run writes them: so many each time, and the rest at once."""
    before, written, begin = sha256(since), [], 0
    for size in (*sizes, len(lines)):
        data, before = chained(lines[begin : begin + size], before)
        written += data.splitlines(keepends=True)
        begin += size
    return written


def as_by_1_0_0(lines: Iterable[bytes], before: bytes = b"") -> list[bytes]:
    """Each line chained to the one before, as that release wrote them; behind `before`, which has no chain."""
    written, mark = [], sha256(before).hexdigest()[:32]
    for line in lines:
        mark = sha256(mark.encode() + line[:-2]).hexdigest()[:32]
        written.append(line[:-2] + f', "chain": "{mark}"}}\n'.encode())
    return written


def plain_lines(messages: int = 5) -> list[bytes]:
    """Of a run, without a chain."""
    lines = [run_line("r1", RUN_BEGAN, AT.format(0), WAY, {"who": "me@here", "command": "drain", "credentials": "key"})]
    entries = [entry(number) for number in range(1, messages + 1)]
    lines += batch_lines(entries, SENDING, WAY)
    lines += [one.line(WAY) for one in entries]
    lines.append(run_line("r1", RUN_ENDED, AT.format(59), WAY, {"ended_by": "empty", "left": {}, "waiting": None}))
    return lines


def read(data: bytes, *, put_together: bool = False) -> tuple[LedgerChain, IncidentReport]:
    chain, incident = LedgerChain(put_together=put_together), IncidentCounter()
    for text in data.splitlines(keepends=True):
        if (line := chain.add(text)) is not None:
            incident.add(line)
    seen = chain.seen("drain.jsonl", ended=incident.over(), signature=None)
    return chain, incident.report((seen,), verified=True)


def faults(data: bytes) -> Sequence[str]:
    return read(data)[1].faults


LEDGER = in_writes(plain_lines())
SHAPES = {
    "several writes": LEDGER,
    "marks in a long write": in_writes(plain_lines(LINES_OF_A_MARK), (1, 1)),
    "one write": in_writes(plain_lines(), ()),
    "release 1.0.0": as_by_1_0_0(plain_lines()),
}
of_every_shape = pytest.mark.parametrize("lines", SHAPES.values(), ids=SHAPES)
WHOLE = b"".join(LEDGER)


@of_every_shape
def test_a_ledger_as_it_was_written_has_no_fault(lines: list[bytes]) -> None:
    chain, told = read(b"".join(lines))
    assert (told.faults, tuple(told.notes()), int(told.exit)) == ((), (), 0)
    assert (chain.lines, chain.not_chained, told.sent) == (len(lines), 0, len(lines) - 3)
    assert f"No line of {len(lines)} was changed" in told.closing


@of_every_shape
def test_every_change_of_a_single_byte_is_found(lines: list[bytes]) -> None:
    chance, whole = random.Random(7), b"".join(lines)
    for place in {*range(0, len(whole), 3 if len(lines) < LINES_OF_A_MARK else 17), len(whole) - 1}:
        for other in {chance.choice((0, 0x0A, 0x20, 0x22)), whole[place] ^ 1} - {whole[place]}:
            data = whole[:place] + bytes([other]) + whole[place + 1 :]
            # The end of the last line alone may also have been lost with the rest of a block in a power cut.
            if place < len(whole) - 1 or other != 0:
                assert faults(data), (place, other)


@of_every_shape
def test_every_dropped_repeated_added_or_swapped_line_is_found(lines: list[bytes]) -> None:
    last = len(lines) - 1
    forged = entry(99).line(WAY)
    for place in range(len(lines)):
        dropped = lines[:place] + lines[place + 1 :]
        repeated = lines[: place + 1] + lines[place:]
        added = [*lines[: place + 1], forged, *lines[place + 1 :]]
        chained_elsewhere = [*lines[: place + 1], as_by_1_0_0(plain_lines(7))[3], *lines[place + 1 :]]
        for data in (repeated, added, chained_elsewhere):
            assert faults(b"".join(data)), place
        if place < last:
            assert faults(b"".join(dropped)), place
            swapped = [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]]
            assert faults(b"".join(swapped)), place


def test_a_change_is_found_to_within_the_lines_of_a_mark() -> None:
    lines = SHAPES["marks in a long write"]
    lines = [*lines[:5], lines[5].replace(b"orders", b"others"), *lines[6:]]
    assert faults(b"".join(lines)) == (
        f"drain.jsonl: lines 3-{2 + LINES_OF_A_MARK} are not as written, or lines were dropped, moved or added there",
    )


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


@of_every_shape
def test_an_end_that_was_taken_away_is_told_as_a_run_without_an_end(lines: list[bytes]) -> None:
    for keep in range(1, len(lines)):
        _, told = read(b"".join(lines[:keep]))
        at_mark = b'"chain"' in lines[keep - 1]
        assert at_mark != any("not chained: their write was cut off" in fault for fault in told.faults)
        if at_mark:
            assert any("the last run has no end" in note for note in told.notes()), keep


@of_every_shape
def test_what_a_cut_off_write_left_is_covered_by_the_next_run(lines: list[bytes]) -> None:
    for keep in range(len(lines)):
        since = sha256(EMPTY_MARK)
        for text in lines[:keep]:
            since = follow(text, since)
        more = chained([entry(50).line(WAY), entry(51).line(WAY)], since)[0]
        assert not faults(b"".join(lines[:keep]) + more), keep
        for place in range(keep):
            changed = [*lines[:place], lines[place].replace(b"b.example", b"c.example"), *lines[place + 1 : keep]]
            assert faults(b"".join(changed) + more), (keep, place)


def test_lines_from_before_the_chain_are_said_to_be_not_chained_and_are_covered_by_the_first_mark() -> None:
    old = [entry(number).line(WAY) for number in range(100, 103)]
    whole = b"".join(old)
    assert faults(whole) == (
        "drain.jsonl: lines 1-3 are not chained: their write was cut off, they were added, or they are from before the "
        "chain",
    )
    more = [entry(1).line(WAY), entry(2).line(WAY)]
    for continued in (in_writes([*old, *more], ()), [*old, *as_by_1_0_0(more, before=whole)]):
        assert not faults(b"".join(continued))
        behind = b"".join(continued[3:])
        for place in range(0, len(whole), 7):
            changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            assert faults(changed + behind), place


def test_ledgers_that_were_put_together_are_counted() -> None:
    for lines in SHAPES.values():
        whole = b"".join(lines)
        _, told = read(whole + WHOLE + whole, put_together=True)
        assert not told.faults
        assert faults(whole + WHOLE)
        assert "drain.jsonl: put together of 3 ledgers." in told.notes()


def test_of_ledgers_put_together_the_end_that_was_cut_off_is_said() -> None:
    first = in_writes(plain_lines(), ())[:3]
    _, told = read(b"".join([*first, *LEDGER]), put_together=True)
    assert ["lines 1-3 are not chained" in fault for fault in told.faults] == [True]
    assert (told.ledgers[0].parts, told.ledgers[0].not_chained) == (2, 3)
    _, told = read(b"".join([*first, *LEDGER, *first[:2]]), put_together=True)
    assert told.ledgers[0].not_chained == 5, "those at the end too"


def told_of(lines: Iterable[bytes]) -> IncidentReport:
    return read(b"".join(in_writes(list(lines))))[1]


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
    figures = dict(told.figures())
    assert figures["First message waited since"] == spoken_time((BEGAN_MS + 1) / 1000)
    assert figures["Last message waited since"] == spoken_time((BEGAN_MS + 5) / 1000)
    assert (figures["First sent"], figures["Last sent"]) == ("2026-11-24 08:00:01 UTC", "2026-11-24 08:00:04 UTC")


def test_a_destination_counts_once_in_whatever_spelling() -> None:
    told = told_of(entry(n, destination=name).line(WAY) for n, name in enumerate(("Orders", "orders", "parcels"), 1))
    assert [(name.lower(), messages) for name, messages in told.destinations] == [("orders", 2), ("parcels", 1)]


def test_ledgers_without_a_message_have_no_times() -> None:
    assert not [what for what, _ in told_of([]).figures() if "since" in what or "sent" in what]


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
