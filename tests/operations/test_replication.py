"""What a program is told of a journal, and has made on both sides: the same as by `sbpair replicate`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.errors import InterruptedWorkError, UsageError
from sbpair.core.outcome import Result
from sbpair.core.replication.ordering import Place
from sbpair.core.replication.ownership import Gap, SessionState, Terms
from sbpair.journal.sqlite import SqliteJournal
from sbpair.operations import JournalStatusRequest, ProvisionReplicatedRequest, journal_status, provision_replicated
from sbpair.ports import Sides
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


async def test_what_is_missing_is_made_on_both_sides_and_what_exists_is_judged(sides: Sides, tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    await sides.secondary_admin.create_queue("parcels", None)
    shown = await provision_replicated(sides, ProvisionReplicatedRequest("parcels", dry_run=True), journal=journal)
    assert [one.result for one in shown.outcomes] == [Result.SKIPPED, Result.UNCHANGED]
    assert await sides.primary_admin.get_queue("parcels") is None
    assert not (tmp_path / "journal.db").exists()
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(InterruptedWorkError):
        await provision_replicated(sides, ProvisionReplicatedRequest("parcels"), stop=stop)
    done = await provision_replicated(sides, ProvisionReplicatedRequest("parcels"), journal=journal)
    assert [one.result for one in done.outcomes] == [Result.DONE, Result.UNCHANGED]
    made = await sides.primary_admin.get_queue("parcels")
    assert made is not None and made.settings.requires_session
    assert (done.journal is not None, {one.side for one in done.problems}) == (True, {"secondary"})
    assert (await journal_status(journal, JournalStatusRequest())).sessions == (), "it is left open"
    await journal.close()
    of_topic = await provision_replicated(sides, ProvisionReplicatedRequest("news/Subscriptions/all"))
    assert [one.result for one in of_topic.outcomes] == [Result.DONE, Result.DONE]
    with pytest.raises(UsageError, match="is a topic on the primary"):
        await provision_replicated(sides, ProvisionReplicatedRequest("news"))
