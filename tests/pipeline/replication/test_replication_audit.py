"""The audit of active/active: what each story of a session is called, by every engine, and what cannot be known."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.core.errors import JournalError, UsageError
from sbpair.core.replication.ordering import Stamp
from sbpair.core.replication.ownership import Head, SessionEntry
from sbpair.journal.sqlite import SqliteJournal, documents, key_ranges
from sbpair.pipeline.replication.audit import AuditTerms, archive_parts, audit, journal_parts
from sbpair.pipeline.replication.sources import JournalRange, LineCopies
from sbpair.pipeline.reports import ReplicationReport
from sbpair.ports import Entry
from sbpair.runtime.replication.store import MESSAGE
from tests.pipeline.replication.replicated import DAY, DESTINATION, HOUR, NOW, Archives, done, journal_of, place, story

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark

WAYS = [("local", "lines"), ("local", "parquet"), ("spark", "parquet"), ("spark", "lines")]


@pytest.mark.spark
@pytest.mark.parametrize(("by", "kind"), WAYS)
def test_every_story_has_its_verdict(request: pytest.FixtureRequest, tmp_path: Path, by: str, kind: str) -> None:
    archives, records, entries, expected = story()
    written = archives.as_lines(tmp_path) if kind == "lines" else archives.as_parquet(tmp_path)
    journal = journal_of(tmp_path / "journal.db", records, entries)
    report = audited(request, written, journal, by=by)
    found: dict[tuple[str, str], set[str]] = {}
    for one in report.listed:
        found.setdefault((one.session_id, one.message_id), set()).add(one.verdict)
    assert found == expected
    (row,) = report.destinations
    assert row.unstamped == len({one["message_id"] for rows in archives.rows.values() for one in rows}) - 7
    assert (row.destination, row.unknown, row.sent_again, row.stamped) == (DESTINATION, 1, 1, 7)
    assert report.findings == len(report.listed) == sum(len(said) for said in expected.values())
    assert report.copies == sum(len(rows) for rows in archives.rows.values())


@pytest.mark.parametrize("kind", ["lines", "parquet"])
def test_the_journal_may_spell_a_session_in_another_way(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    archives, records, entries, expected = story()
    written = archives.as_lines(tmp_path) if kind == "lines" else archives.as_parquet(tmp_path)
    spelled = [replace(one, session_id=one.session_id.upper()) for one in records]
    twice = [*entries, *(replace(one, session_id=one.session_id.upper()) for one in entries)]
    report = audited(request, written, journal_of(tmp_path / "journal.db", spelled, twice))
    found: dict[tuple[str, str], set[str]] = {}
    for one in report.listed:
        found.setdefault((one.session_id.lower(), one.message_id), set()).add(one.verdict)
    assert found == {(session.lower(), message_id): said for (session, message_id), said in expected.items()}
    assert report.findings == len(report.listed) == sum(len(said) for said in expected.values())


def audited(
    request: pytest.FixtureRequest,
    written: dict[str, list[str]],
    journal: "Path | Elsewhere",
    *,
    by: str = "local",
    **asked: Any,
) -> ReplicationReport:
    parts = archive_parts(written["primary"], written["secondary"], at_least=2)
    store = SqliteJournal(journal) if isinstance(journal, Path) else journal
    parts += asyncio.run(journal_parts(store))  # type: ignore[arg-type]
    session: StartedSpark | None = None if by == "local" else request.getfixturevalue("session")
    return audit(parts, AuditTerms(as_of=NOW, **asked), journal="j", session=session)


def verdicts(report: ReplicationReport) -> set[tuple[str, str]]:
    return {(one.message_id, one.verdict) for one in report.listed}


def test_the_journal_may_have_forgotten_what_is_old(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Without a stamp after --remember, with one after --retention; what is younger is known for certain."""
    archives = Archives()
    archives.put("s", "plain", (1, 1), ago=2 * DAY)
    archives.put("t", "stamped", (2, 2), ago=2 * DAY, stamp=Stamp(place(1)))
    journal = journal_of(tmp_path / "journal.db", [], [])
    written = archives.as_lines(tmp_path)
    report = audited(request, written, journal)
    assert (verdicts(report), report.unknown) == ({("stamped", "unprocessed")}, 1)
    longer = audited(request, written, journal, remember_seconds=3 * DAY)
    assert (verdicts(longer), longer.unknown) == ({("stamped", "unprocessed"), ("plain", "unprocessed")}, 0)
    shorter = audited(request, written, journal, retention_seconds=DAY)
    assert (verdicts(shorter), shorter.unknown) == (set(), 2)


def test_a_dead_letter_of_a_finished_number_that_the_journal_has_forgotten_is_unknown(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    archives = Archives()
    given_up = {"dead_letter": True, "dead_letter_reason": "Forgotten"}
    archives.put("s", "late", (None, 2), stamp=Stamp(place(2)), **given_up)
    entry = SessionEntry(DESTINATION, "s", heads=(Head("st", 5, NOW),), updated_at=NOW)
    report = audited(request, archives.as_lines(tmp_path), journal_of(tmp_path / "journal.db", [], [entry]))
    (row,) = report.destinations
    assert (row.completed, row.unknown, verdicts(report)) == (0, 1, set())


def test_only_what_was_there_by_then(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    archives = Archives()
    archives.put("s", "early", (1, 1), ago=2 * HOUR)
    archives.put("s", "late", (2, 2), ago=HOUR / 60)
    journal = journal_of(tmp_path / "journal.db", [], [])
    report = audited(request, archives.as_lines(tmp_path), journal, until=NOW - HOUR)
    assert (verdicts(report), report.messages) == ({("early", "unprocessed")}, 1)


def test_messages_without_stamps_give_no_sign_of_one_that_neither_side_has(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The very story in which a stamp tells: `w1` was accepted, and is gone."""
    archives = Archives()
    archives.put("s", "w2", (1, 1))
    journal = journal_of(tmp_path / "journal.db", [done("s", "w2", 1)], [])
    report = audited(request, archives.as_lines(tmp_path), journal)
    assert (report.findings, report.destinations[0].unstamped) == (0, 1)


def test_the_same_copies_in_two_archives_count_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    archives, records, entries, _ = story()
    journal = journal_of(tmp_path / "journal.db", records, entries)
    once = audited(request, archives.as_lines(tmp_path), journal)
    twice = {side: files * 2 for side, files in archives.as_lines(tmp_path).items()}
    again = audited(request, twice, journal)
    assert replace(again, copies=0) == replace(once, copies=0)


def test_records_of_any_journal_are_read_through_its_port(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    archives, records, entries, _ = story()
    in_file = journal_of(tmp_path / "journal.db", records, entries)
    written = archives.as_lines(tmp_path)
    elsewhere = audited(request, written, Elsewhere(SqliteJournal(in_file)))
    assert elsewhere == audited(request, written, in_file)
    assert elsewhere.findings


class Elsewhere:
    """A journal that is no file of this machine: only what the port gives is known of it."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal

    def scan(self, kind: str) -> "AsyncIterator[Entry]":
        return self._journal.scan(kind)


def test_what_is_no_journal_or_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an archive"):
        archive_parts([str(tmp_path / "nowhere")], [], at_least=1)
    file = tmp_path / "lines.jsonl"
    file.write_text('{"a": 1}\n' * 3)
    with pytest.raises(UsageError, match="is not an archive"):
        archive_parts([str(file)], [], at_least=1)
    with pytest.raises(UsageError, match="There is no journal"):
        asyncio.run(journal_parts(SqliteJournal(tmp_path / "journal.db")))
    assert not (tmp_path / "journal.db").exists()


BAD_LINES = {
    "no JSON": "{",
    "no message": '{"a": 1}',
    "too deep": "[" * 100_000,
    "no base64": {"payload_base64": "?"},
    "a number no column takes": {"sequence_number": 10**30},
    "a time no column takes": {"enqueued_at": 1e300},
    "half a character": {"message_id": "\ud800"},
    "a state that is half a character": {"state": "\udfff"},
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_is_one_bad_line(request: pytest.FixtureRequest, tmp_path: Path, bad: str) -> None:
    archives, records, entries, _ = story()
    journal = journal_of(tmp_path / "journal.db", records, entries)
    written = archives.as_lines(tmp_path)
    clean = audited(request, written, journal)
    (file,) = written["primary"]
    path = Path(file) if Path(file).is_file() else next(Path(file).glob("*.jsonl"))
    first, *rest = path.read_bytes().splitlines(keepends=True)
    line = BAD_LINES[bad]
    if isinstance(line, dict):
        line = json.dumps(json.loads(first) | {"session_id": "x"} | line)
    ends = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b"".join((first, ends, b"\n", *rest)))
    report = audited(request, written, journal)
    assert report.unreadable == (f"{path} at byte {len(first):,}",)
    assert replace(report, unreadable=()) == clean


@pytest.mark.parametrize("text", ["m", 7, None, ["m"]])
def test_a_message_id_that_is_no_text_is_taken_from_the_message(tmp_path: Path, text: object) -> None:
    archives = Archives()
    archives.put("s", "m", (1, None))
    (file,) = archives.as_lines(tmp_path)["primary"]
    path = Path(file) if Path(file).is_file() else next(Path(file).glob("*.jsonl"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"message_id": text}) + "\n")
    (part,) = archive_parts([str(path)], [], at_least=1)
    assert part.read()[0].table.column("message_id").to_pylist() == ["m"]


@pytest.mark.parametrize("document", ["{", "[]", "{}", '{"finished": 1, "settled": []}', "[" * 100_000])
def test_a_record_that_is_none_is_told(tmp_path: Path, document: str) -> None:
    path = journal_of(tmp_path / "journal.db", [done("s", "m", 1)], [SessionEntry(DESTINATION, "s")])
    with sqlite3.connect(path) as file:
        file.execute("UPDATE entries SET document = ? WHERE kind = ?", (document, MESSAGE))
    (part,) = (one for one in asyncio.run(journal_parts(SqliteJournal(path))) if isinstance(one, JournalRange))
    with pytest.raises(JournalError, match="A message record"):
        part.read()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE entries SET document = ?", (document,))
    with pytest.raises(JournalError, match="An entry of the journal"):
        asyncio.run(journal_parts(SqliteJournal(path)))


def test_every_record_is_in_one_stretch(tmp_path: Path) -> None:
    path = journal_of(tmp_path / "journal.db", [done("s", f"m{number}", number + 1) for number in range(10)], [])
    whole = list(documents(path, MESSAGE))
    assert len(whole) == 10
    for most in (1, 3, 5, 10, 11):
        stretches = key_ranges(path, MESSAGE, most)
        assert [one.rows for one in stretches] == [most] * (10 // most) + ([10 % most] if 10 % most else [])
        assert [text for one in stretches for text in documents(path, MESSAGE, one)] == whole


def test_every_line_is_in_one_stretch(tmp_path: Path) -> None:
    archives = Archives()
    for number in range(7):
        archives.put("s", f"m{number}" + "long" * number, (number, None))
    (file,) = archives.as_lines(tmp_path)["primary"]
    with Path(file).open("a") as opened:
        opened.write(json.dumps({"cut": "off"})[:-3])
    size = Path(file).stat().st_size
    for each in (1, 50, 333, size // 2, size):
        parts = [LineCopies("primary", file, first, min(size, first + each)) for first in range(0, size, each)]
        numbers = [number for part in parts for one in part.read() for number in one.table["number"].to_pylist()]
        assert numbers == list(range(7)), each
