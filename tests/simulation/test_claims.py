"""What is taken for a false claim, and what not."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.simulation.claims import Claims, of_consumer, of_drain, of_journal, of_record

LANE = ("sender-0", "orders", "s")
REPORT: dict[str, Any] = {"forwarded": 2, "dead_lettered": 1, "per_destination": (("Orders", 2),)}
LINES = [
    {"outcome": "forwarded", "destination": "orders"},
    {"outcome": "forwarded", "destination": "ORDERS"},
    {"outcome": "dead-lettered", "destination": "gone"},
]


def test_a_certain_send_that_was_stored_twice_is_a_false_claim() -> None:
    claims = Claims(holds=False)
    claims.copies["m1"], claims.arrived["m1"] = 1, 1
    assert list(claims.said(["m1"], accepted=True, certain=False)) == []
    assert len(list(claims.said(["m1"], accepted=True, certain=True))) == 1
    claims.moved["m1"] = 1  # it came from the backlog
    assert list(claims.said(["m1"], accepted=True, certain=True)) == []


def test_a_held_session_that_is_overtaken_is_a_false_claim() -> None:
    for holds, accepted in ((True, True), (True, False), (False, True)):
        claims = Claims(holds=holds)
        claims.sending(["m1", "m2"], LANE)
        claims.copies["m1"] = 1
        assert list(claims.said(["m1"], accepted=accepted, certain=accepted)) == []
        assert len(list(claims.came("m2"))) == holds
        assert list(claims.came("m1")) == []
        assert list(claims.came("m2")) == [], "a second copy comes at any time"


def test_a_send_that_failed_and_comes_late_may_come_before_what_was_sent_after_it_and_no_earlier() -> None:
    claims = Claims(holds=True)
    for key, accepted in (("m1", True), ("m2", False), ("m3", True)):
        claims.sending([key], LANE)
        assert list(claims.said([key], accepted=accepted, certain=accepted)) == []
    assert len(list(claims.came("m2"))) == 1, "m1 was held before"
    assert list(claims.came("m1")) == list(claims.came("m3")) == []
    late = Claims(holds=True)
    for key, accepted in (("m1", False), ("m2", True)):
        late.sending([key], LANE)
        assert list(late.said([key], accepted=accepted, certain=accepted)) == []
    assert list(late.came("m1")) == list(late.came("m2")) == []


def test_counts_of_a_report_are_those_of_the_ledger() -> None:
    assert list(of_drain(REPORT, LINES)) == list(of_drain(REPORT, None)) == []
    assert len(list(of_drain(REPORT, LINES[1:]))) == 2
    assert len(list(of_drain(REPORT, LINES[:2]))) == 1
    assert len(list(of_drain(REPORT | {"per_destination": (("invoices", 2),)}, LINES))) == 1
    assert len(list(of_drain(REPORT | {"per_destination": (("orders", 3),)}, None))) == 1


def test_more_was_completed_than_handlers_have_done() -> None:
    assert list(of_consumer({"completed": 2, "duplicate": 5}, 2)) == list(of_consumer({}, 0)) == []
    assert len(list(of_consumer({"completed": 3}, 2))) == 1


def test_a_copy_that_lies_where_its_record_says_it_is_settled() -> None:
    record = {"finished": {"message_id": "m1"}, "settled": ["primary"]}
    assert list(of_record(record, {("m1", "secondary"): 1, ("m2", "primary"): 1})) == []
    assert len(list(of_record(record, {("m1", "primary"): 1}))) == 1


def test_what_is_finished_is_in_the_journal(tmp_path: Path) -> None:
    documents = {
        "replicated-message": {"finished": {"message_id": "m1", "state": "completed"}},
        "replicated-session": {"recent": [{"message_id": "m2", "state": "failed"}]},
    }
    path = tmp_path / "journal.sqlite3"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE entries (kind TEXT, document TEXT)")
        rows = [(kind, json.dumps(document)) for kind, document in documents.items()]
        file.executemany("INSERT INTO entries VALUES (?, ?)", rows)
    file.close()
    assert list(of_journal(path, {"m1"}, {"m2"}, {"m1", "m2"})) == []
    assert len(list(of_journal(path, {"m1", "m3"}, {"m2"}, {"m3"}))) == 1
    assert len(list(of_journal(path, {"m2"}, {"m1"}, {"m1", "m2"}))) == 2


def test_what_the_journal_need_not_know_any_more_it_may_know_rightly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE entries (kind TEXT, document TEXT)")
        record = {"finished": {"message_id": "m1", "state": "completed"}}
        file.execute("INSERT INTO entries VALUES (?, ?)", ("replicated-message", json.dumps(record)))
    file.close()
    assert list(of_journal(path, {"m1", "m2"}, {"m1"}, set())) == []
    assert len(list(of_journal(path, set(), {"m1"}, set()))) == 1
