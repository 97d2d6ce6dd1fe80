"""One session's worker against a journal in a file, in virtual time: what is recorded of a copy, and when."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import OperationTimeoutError
from sbpair.core.message import Disposition, Received
from sbpair.core.replication.ownership import DAY_SECONDS, SessionState, Terms
from sbpair.core.rewrite import compose
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication.consumer import ConsumeRequest
from sbpair.runtime.replication.handlers import Delivery
from sbpair.runtime.replication.session import SessionWorker, Setup
from sbpair.runtime.replication.store import MESSAGE, SessionStore
from tests.fakes import EPOCH, FakeClock, RecordingObserver, virtual_time

HOSTS = ("a.example.com", "b.example.com")
TERMS = Terms(lease_seconds=10.0, max_attempts=1)


class Copies:
    """The copies of one session on one side, behind one receiver; the session is its holder's."""

    source = "orders"
    session_id = "s"

    def __init__(self, *message_ids: str, confirms: bool = True) -> None:
        self._waiting = [
            Received(
                compose(body=b"", message_id=one, session_id="s"), number, "orders", message_id=one, session_id="s"
            )
            for number, one in enumerate(message_ids, 1)
        ]
        self._confirms = confirms
        self.settled: list[tuple[str | None, Disposition]] = []

    def first(self) -> list[Received]:
        return [self._waiting.pop(0)]

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        if not self._waiting:
            await asyncio.sleep(wait_seconds)
        found, self._waiting = self._waiting[:max_messages], self._waiting[max_messages:]
        return found

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        if not self._confirms:
            raise OperationTimeoutError("no answer")
        self.settled.append((received.message_id, disposition))

    async def renew_session(self) -> float:
        return EPOCH

    async def close(self) -> None:
        return


class Killed(BaseException):
    """The process is no more."""


class UpToTheRecord(SqliteJournal):
    """The journal of a process that is killed when it begins to write a record."""

    killed = False

    async def read(self, kind: str, key: str) -> Entry | None:
        if self.killed:
            raise Killed
        return await super().read(kind, key)

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        if self.killed or kind == MESSAGE:
            self.killed = True
            raise Killed
        return await super().create(kind, key, document, ttl_seconds=ttl_seconds)


class ChangedMeanwhile(SqliteJournal):
    """The journal of a process whose first write comes a moment after somebody else's."""

    conflicts = 0

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        if not self.conflicts:
            self.conflicts += 1
            await super().replace(entry, entry.document, ttl_seconds=ttl_seconds)
        return await super().replace(entry, document, ttl_seconds=ttl_seconds)


class Consumers:
    """Consumers of one session, one after another, and what their handler ran."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.clock = FakeClock()
        self.ran: list[str] = []

    def journal(self, kind: type[SqliteJournal] = SqliteJournal) -> SqliteJournal:
        return kind(self.path, now=lambda: self.clock.now().timestamp())

    async def work(
        self, side: str, copies: Copies, journal: SqliteJournal, *, fails: Sequence[str] = (), dies: bool = False
    ) -> list[str]:
        """Work through the copies; what was counted of them. `dies`: the process does, in its first handler."""
        results: list[str] = []

        async def handler(delivery: Delivery) -> None:
            self.ran.append(delivery.message_id)
            if dies:
                await journal.close()  # nothing of it writes any more
                raise Killed
            if delivery.message_id in fails:
                raise ValueError("no such parcel")

        setup = Setup(
            ConsumeRequest("orders", TERMS),
            store=SessionStore(journal, "orders", TERMS),
            handler=handler,
            clock=self.clock,
            observer=RecordingObserver(),
            stop=asyncio.Event(),
            handlers=asyncio.Semaphore(1),
            name="consumer",
            count=lambda side, session, message, result: results.append(f"{message} {result}"),
        )
        await SessionWorker(setup, side, "s", copies).run(copies.first())  # type: ignore[arg-type]
        return results

    async def settled(self, message_id: str) -> tuple[str, ...]:
        journal = self.journal()
        found = await SessionStore(journal, "orders", TERMS).settled("s", message_id)
        await journal.close()
        return found


def test_a_copy_whose_settlement_has_no_answer_keeps_its_record_as_long_as_one_that_is_out(tmp_path: Path) -> None:
    @virtual_time
    async def scenario() -> None:
        consumers = Consumers(tmp_path)
        journal = consumers.journal()
        await consumers.work("primary", Copies("m1", confirms=False), journal)
        assert await consumers.settled("m1") == ()
        assert await consumers.work("secondary", Copies("m1"), journal) == ["m1 duplicate"]
        assert await consumers.settled("m1") == ("secondary",)
        await asyncio.sleep(TERMS.remember_seconds + DAY_SECONDS)
        assert await consumers.work("primary", Copies("m1"), journal) == ["m1 duplicate"]
        assert consumers.ran == ["m1"]
        await journal.close()

    scenario()


@pytest.mark.parametrize("fails", [(), ("m1",)], ids=["completed", "failed"])
def test_what_an_owner_finished_and_did_not_record_is_recorded_before_the_session_goes_on(
    tmp_path: Path, fails: Sequence[str]
) -> None:
    """Nothing but the record tells a second copy without a stamp that its message is finished."""

    @virtual_time
    async def scenario() -> None:
        consumers = Consumers(tmp_path)
        dying, journal = consumers.journal(UpToTheRecord), consumers.journal()
        with pytest.raises(Killed):
            await consumers.work("primary", Copies("m1"), dying, fails=fails)
        await dying.close()
        ran = list(consumers.ran)
        await asyncio.sleep(2 * TERMS.lease_seconds)
        assert await consumers.work("primary", Copies("m2"), journal) == ["m2 completed"]
        second = Copies("m1")
        assert await consumers.work("secondary", second, journal) == ["m1 dead-lettered" if fails else "m1 duplicate"]
        assert consumers.ran == [*ran, "m2"]
        assert second.settled == [("m1", Disposition.DEAD_LETTER if fails else Disposition.COMPLETE)]
        await journal.close()

    scenario()


def test_what_could_not_be_written_since_somebody_else_was_faster_is_judged_again(tmp_path: Path) -> None:
    @virtual_time
    async def scenario() -> None:
        consumers = Consumers(tmp_path)
        with pytest.raises(BaseException):  # noqa: B017 - whatever a process without its journal ends with
            await consumers.work("primary", Copies("m1"), consumers.journal(), dies=True)
        await asyncio.sleep(2 * TERMS.lease_seconds)
        journal, copies = consumers.journal(ChangedMeanwhile), Copies("m1")
        assert await consumers.work("primary", copies, journal) == ["m1 failed"]
        assert consumers.ran == ["m1"], "its one attempt is used up"
        assert copies.settled == [("m1", Disposition.DEAD_LETTER)]
        entry = (await SessionStore(journal, "orders", TERMS).read("s")).entry
        outcome = entry.outcome("m1")
        assert outcome is not None
        assert outcome.state is SessionState.FAILED
        await journal.close()

    scenario()
