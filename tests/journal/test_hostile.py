"""A journal's file that is garbage, somebody else's, or ours with something exchanged: said so, and left alone."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.errors import JournalError, JournalUnavailableError, SbpairError
from sbpair.core.replication.ownership import SessionEntry, Terms
from sbpair.journal import open_journal
from sbpair.journal.sqlite import SqliteJournal
from sbpair.runtime.replication.store import SESSION, SessionStore, key_of
from tests.hostile import bounded, damaged, json_bytes, mutated, tame, within

HOUR = 3600.0
ENTRY = SessionEntry("q", "s", owner="x", updated_at=1.0).to_dict()


def use(path: Path) -> None:
    """Everything a journal is asked for."""

    async def ask() -> None:
        journal = open_journal(f"sqlite:{path}")
        try:
            await journal.check()
            await SessionStore(journal, "q", Terms()).read("s")
            async for entry in journal.scan(SESSION):
                assert isinstance(entry.document, dict)
            await journal.create(SESSION, "new", {"n": 1}, ttl_seconds=HOUR)
        finally:
            await journal.close()

    asyncio.run(ask())


def make(path: Path, document: str = json.dumps(ENTRY)) -> Path:
    """A journal with one entry whose document is that text."""

    async def fill() -> None:
        journal = open_journal(f"sqlite:{path}")
        await journal.create(SESSION, key_of("q", "s"), ENTRY, ttl_seconds=HOUR)
        await journal.close()

    asyncio.run(fill())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET document = ?", (document,))
    connection.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("journal") / "whole.db").read_bytes()


@bounded(60)
@given(data=st.data())
def test_a_damaged_file_is_a_journal_or_is_said_to_be_none(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    path = tmp_path / "damaged.db"
    for leftover in tmp_path.glob("damaged.db*"):
        leftover.unlink()
    path.write_bytes(data.draw(damaged(whole) | st.binary(max_size=300) | damaged(whole[:300])))
    with within(seconds=20):
        tame(lambda: use(path), JournalError)


@bounded(60)
@given(mutated(ENTRY).map(json_bytes) | damaged(json_bytes(ENTRY)) | st.just(b"[" * 100_000))
def test_an_entry_of_any_content_is_read_or_named(tmp_path: Path, document: bytes) -> None:
    path = tmp_path / "entry.db"
    for leftover in tmp_path.glob("entry.db*"):
        leftover.unlink()
    make(path, document.decode("utf-8", "replace"))
    with within(seconds=20):
        tame(lambda: use(path), JournalError)


FOREIGN = {
    "another program's": "CREATE TABLE places (url TEXT)",
    "of the same name": "CREATE TABLE entries (id INTEGER PRIMARY KEY, title TEXT)",
    "with a view of the name": "CREATE TABLE x (a); CREATE VIEW entries AS SELECT a AS kind FROM x",
}


@pytest.mark.parametrize("schema", FOREIGN.values(), ids=FOREIGN)
def test_a_database_of_somebody_else_is_refused_for_good_and_left_as_it_is(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "foreign.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(schema)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="is not a journal") as refused:
        use(path)
    assert not isinstance(refused.value, JournalUnavailableError)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def change(path: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE entries SET document = ?", b"\xff\xfe"),
        ("UPDATE entries SET document = CAST(? AS TEXT)", b"\xff\xfe"),
        ("UPDATE entries SET version = ?", "many"),
        ("UPDATE versions SET last = ?", "many"),
    ],
)
def test_columns_of_other_types_are_said_to_be_none_of_ours(tmp_path: Path, statement: str, value: Any) -> None:
    path = make(tmp_path / "typed.db")
    change(path, statement, value)
    with pytest.raises(JournalError) as refused:
        use(path)
    assert not isinstance(refused.value, JournalUnavailableError)


def test_a_journal_without_its_count_of_versions_gives_no_version_twice(tmp_path: Path) -> None:
    path = make(tmp_path / "counted.db")
    change(path, "DELETE FROM versions")

    async def version_of_the_next() -> int:
        journal = open_journal(f"sqlite:{path}")
        made = await journal.create(SESSION, "next", {"n": 1}, ttl_seconds=HOUR)
        await journal.close()
        return int(made.version)

    assert asyncio.run(version_of_the_next()) > 1


@pytest.mark.parametrize(
    "address", ["", "sqlite:", "x" * 5000, "cosmos:", "cosmos:https://a/b", "cosmos:http://[", "a:\x00"]
)
def test_an_address_of_no_journal_is_refused(address: str) -> None:
    told = tame(lambda: open_journal(address), SbpairError)
    assert isinstance(told, SbpairError)


def test_a_full_disk_is_a_journal_that_does_not_answer_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"

    async def fill() -> None:
        journal = SqliteJournal(path)
        first = await journal.create(SESSION, "first", ENTRY, ttl_seconds=HOUR)
        connection = journal._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 1")  # no page more than there are
        written = []
        with pytest.raises(JournalUnavailableError, match="disk is full"):
            for number in range(1000):
                written.append(await journal.create(SESSION, str(number), ENTRY, ttl_seconds=HOUR))
        refused = str(len(written))
        assert await journal.read(SESSION, refused) is None
        assert await journal.read(SESSION, "first") == first
        connection.execute("PRAGMA max_page_count = 1000000")
        after = await journal.create(SESSION, refused, ENTRY, ttl_seconds=HOUR)
        assert int(after.version) == max(int(one.version) for one in (first, *written)) + 1, "it was all or nothing"
        assert len([one async for one in journal.scan(SESSION)]) == len(written) + 2
        await journal.close()

    asyncio.run(fill())
