"""Addresses of journals; files that are read in stretches; what a closed journal leaves."""

import sqlite3
import threading
from pathlib import Path

import pytest

from sbpair.core.errors import JournalError, JournalUnavailableError, UsageError
from sbpair.journal import open_journal, open_with_key
from sbpair.journal.sqlite import SqliteJournal, documents, key_ranges
from tests.waiting import LIMIT_SECONDS

HERE = "cosmos:http://127.0.0.1:8081"


@pytest.mark.parametrize(
    "address",
    [
        "sqlite",
        "sqlite:",
        "postgres:x",
        "cosmos:",
        "cosmos:https:///database/container",
        "cosmos:https://account.example.net/database",
        "cosmos:https://account.example.net/database/container/more",
        "cosmos:https://account.example.net/database/container?key=x",
        "cosmos:http://account.example.net/database/container",
        "cosmos:ftp://localhost/database/container",
        "cosmos:https://[::1/database/container",
    ],
)
def test_an_address_of_no_known_form_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is no journal: write sqlite:FILE or cosmos:"):
        open_journal(address)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("sqlite:a:b", "sqlite:a:b"),
        (f"{HERE}//database/container/", f"{HERE}/database/container"),
        ("cosmos:http://localhost:1/d/c", "cosmos:http://localhost:1/d/c"),
        ("cosmos:account.example.net/d/c", "cosmos:https://account.example.net/d/c"),
    ],
)
def test_an_address_names_its_journal(address: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if address.startswith("cosmos"):
        pytest.importorskip("azure.cosmos", reason="azure-cosmos is not installed (extra cosmos)")
    monkeypatch.setenv("SBPAIR_COSMOS_KEY", "a2V5")
    assert open_with_key(address).name == name


def threads() -> int:
    return sum(thread.name.startswith("sbpair-journal") for thread in threading.enumerate())


async def test_a_journal_that_is_closed_leaves_no_thread_and_can_be_opened_again(tmp_path: Path) -> None:
    before, journal = threads(), SqliteJournal(tmp_path / "journal")
    says = f"SQLite {sqlite3.sqlite_version}, one writer at a time, {journal.path}; for processes of this host only."
    assert await journal.check() == says
    waiting = [thread for thread in threading.enumerate() if thread.name.startswith("sbpair-journal")]
    assert threads() == before + 1
    await journal.close()
    for thread in waiting[before:]:
        thread.join(LIMIT_SECONDS)
    assert threads() == before


async def test_a_link_to_elsewhere_is_not_followed_and_said_to_be_why(tmp_path: Path) -> None:
    (tmp_path / "journal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalUnavailableError, match="ymbolic link"):
        await SqliteJournal(tmp_path / "journal").check()
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_cannot_be_read_in_stretches_says_why(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailableError, match="does not answer"):
        key_ranges(tmp_path / "missing", "message", 1)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(JournalUnavailableError, match="does not answer"):
        next(documents(tmp_path / "missing", "message"))


async def test_a_document_that_is_no_text_is_of_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = SqliteJournal(path)
    await journal.create("message", "a", {}, ttl_seconds=60)
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET document = CAST(x'ff' AS TEXT)")
    connection.close()
    with pytest.raises(JournalError, match="is not a journal") as caught:
        next(documents(path, "message"))
    assert not isinstance(caught.value, JournalUnavailableError)
