"""What a program is told of a journal: the same that `sbpair replicate status` shows."""

from dataclasses import replace
from pathlib import Path

from sbpair.core.replication.ordering import Place
from sbpair.core.replication.ownership import Gap, SessionState, Terms
from sbpair.journal.sqlite import SqliteJournal
from sbpair.operations import JournalStatusRequest, journal_status
from sbpair.runtime.replication.store import SessionStore

LONG_AGO = 1_000.0


async def put(journal: SqliteJournal, destination: str, session: str, **facts: object) -> None:
    store = SessionStore(journal, destination, Terms())
    await store.open(("a.example.com", "b.example.com"))
    known = await store.read(session)
    await store.swap(known, replace(known.entry, updated_at=LONG_AGO, **facts))  # type: ignore[arg-type]


async def test_sessions_are_counted_and_those_in_trouble_come_first(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    waits = Gap(Place("st", 1), "m-1", "m-2", LONG_AGO)
    await put(journal, "orders", "fine", state=SessionState.COMPLETED, completed_count=3)
    await put(journal, "orders", "waits", gap=waits, completed_count=1)
    await put(journal, "events/Subscriptions/two", "other", state=SessionState.FAILED, failed_count=2)
    status = await journal_status(journal, JournalStatusRequest())
    assert (status.completed_messages, status.failed_messages, status.stuck) == (4, 2, 1)
    assert sum(status.by_state.values()) == len(status.sessions) == 3
    assert (status.sessions[0].session, status.not_shown) == ("waits", 0)
    assert "m-2 waits for" in (status.sessions[0].stuck or "")
    assert status.stuck_because == (("waits", status.sessions[0].stuck),)
    few = await journal_status(journal, JournalStatusRequest(limit=1))
    assert ([one.session for one in few.sessions], few.not_shown, few.stuck) == (["waits"], 2, 1)
    failed = await journal_status(journal, JournalStatusRequest(state=SessionState.FAILED))
    assert [one.session for one in failed.sessions] == ["other"]
    of_orders = await journal_status(journal, JournalStatusRequest(destination="/Orders", only_stuck=True))
    assert ([one.session for one in of_orders.sessions], sum(of_orders.by_state.values())) == (["waits"], 2)
    patient = JournalStatusRequest(terms=Terms(lease_seconds=1e9, remember_seconds=1e12, retention_seconds=1e13))
    assert (await journal_status(journal, patient)).stuck == 0
    await journal.close()
