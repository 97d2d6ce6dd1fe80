"""The journal knows a session in every spelling, and what an earlier build has written by its spelling."""

from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.errors import JournalError
from sbpair.core.replication.ordering import Place
from sbpair.core.replication.ownership import Finished, Head, SessionEntry, SessionState, Terms
from sbpair.journal.sqlite import SqliteJournal
from sbpair.runtime.replication.store import DESTINATION, MESSAGE, SESSION, SessionStore, entries_in, key_of

HOSTS = ("a.example.com", "b.example.com")
DONE = Finished("m-1", SessionState.COMPLETED, 1_000.0)


async def opened(journal: SqliteJournal) -> SessionStore:
    store = SessionStore(journal, "orders", Terms())
    await store.open(HOSTS)
    return store


async def test_all_spellings_of_a_session_have_one_entry_and_its_records(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal", now=lambda: 1_000.0)
    store = await opened(journal)
    known = await store.read("Order-7")
    await store.swap(known, replace(known.entry, owner="one", fence=3))
    await store.record("ORDER-7", DONE)
    assert (await store.read("order-7")).entry.fence == 3
    assert await store.finished("Order-7", "m-1") == DONE
    assert (await store.read("oRDER-7")).entry.session_id == "Order-7"
    await journal.close()


async def test_all_spellings_of_a_destination_share_their_entries(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal", now=lambda: 1_000.0)
    store = await opened(journal)
    await store.swap(await store.read("s"), replace((await store.read("s")).entry, fence=3))
    for spelled in ("Orders", "/orders", "ORDERS/"):
        other = SessionStore(journal, spelled, Terms())
        await other.open(HOSTS)
        assert (await other.read("s")).entry.fence == 3, spelled
    await journal.close()


@pytest.mark.parametrize("spelled", [("B.example.com", "A.EXAMPLE.com"), ("a.example.com:5671", "B.example.com:443")])
async def test_the_namespaces_are_the_same_in_every_spelling_and_at_any_port(
    tmp_path: Path, spelled: tuple[str, str]
) -> None:
    journal = SqliteJournal(tmp_path / "journal", now=lambda: 1_000.0)
    await opened(journal)
    await SessionStore(journal, "orders", Terms()).open(spelled)
    with pytest.raises(JournalError, match="namespaces"):
        await SessionStore(journal, "orders", Terms()).open(("a.example.com", "c.example.com"))
    await journal.close()


async def test_what_an_earlier_build_wrote_by_its_spelling_goes_on(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal", now=lambda: 1_000.0)
    entry = SessionEntry("orders", "Order-7", fence=5, heads=(Head("stream", 4, 900.0),))
    namespaces = {"destination": "orders", "namespaces": list(HOSTS)}
    await journal.create(DESTINATION, "orders", namespaces, ttl_seconds=1e6)
    await journal.create(SESSION, key_of("orders", "Order-7"), entry.to_dict(), ttl_seconds=1e6)
    finished = {"message_id": "m-1", "state": "completed", "at": 1_000.0}
    record = {"destination": "orders", "session_id": "Order-7", "finished": finished}
    await journal.create(MESSAGE, key_of("orders", "Order-7", "m-1"), record, ttl_seconds=1e6)
    store = await opened(journal)
    known = await store.read("Order-7")
    assert known.entry.has_finished(Place("stream", 4))
    assert await store.finished("Order-7", "m-1") == DONE
    await store.swap(known, replace(known.entry, fence=6))
    # From now on every spelling leads to it, and a writer that has read less is refused.
    assert (await store.read("ORDER-7")).entry.fence == 6
    # It is one session, although the entry of the earlier build is still there.
    assert [entry.fence for entry in await entries_in(journal)] == [6]
