"""A handler under a lease, in virtual time: when it is renewed, when it is over, and what ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError
from sbpair.core.replication import ownership
from sbpair.core.replication.ownership import Claim, Copy, SessionEntry, Start, Terms
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication.handlers import Delivery, RetryLater
from sbpair.runtime.replication.session import Failed, Later, LeaseHeldRun, LeaseLost, Ran, Worked
from sbpair.runtime.replication.store import MESSAGE, SESSION, SessionStore, destination_of, key_of
from tests.fakes import FakeClock, virtual_time

TERMS = Terms(lease_seconds=12.0, margin_seconds=1.0)
DELIVERY = Delivery(b"", "s", "m1", "", "primary", 1, 1, 0)


class Watched(SqliteJournal):
    """A journal that says when it was asked, and fails as told."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, now=lambda: clock.now().timestamp())
        self.clock = clock
        self.read_at: list[float] = []
        self.written_at: list[float] = []
        self.down: list[Exception] = []
        """Of the next calls, one after another; the last stays."""
        self.lost: list[Exception] = []
        """Answers to the next writes that get lost."""
        self.slow = 0.0

    async def _asked(self, when: list[float]) -> None:
        when.append(self.clock.monotonic())
        await asyncio.sleep(self.slow)
        if self.down:
            raise self.down[0] if len(self.down) == 1 else self.down.pop(0)

    async def read(self, kind: str, key: str) -> Entry | None:
        await self._asked(self.read_at)
        return await super().read(kind, key)

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        await self._asked(self.written_at)
        found = await super().replace(entry, document, ttl_seconds=ttl_seconds)
        if self.lost:
            raise self.lost.pop(0)
        return found


class Held:
    """A session's entry with a claim on its first message, held since 0 s."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.journal = Watched(path / "journal.db", self.clock)
        self.store = SessionStore(self.journal, "q", TERMS)
        self.stop = asyncio.Event()

    def now(self) -> float:
        return self.clock.now().timestamp()

    async def begin(self, owner: str = "me") -> LeaseHeldRun:
        known = await self.store.read("s")
        decided = ownership.decide(known.entry, [Copy("m1", 1)], {"m1": None}, owner=owner, now=self.now(), terms=TERMS)
        assert isinstance(decided, tuple)
        start = decided[1]
        assert isinstance(start, Start)
        since = self.clock.monotonic()
        known = await self.store.swap(known, start.entry)
        self.claim: Claim = start.claim
        self.journal.read_at.clear()
        self.journal.written_at.clear()
        return LeaseHeldRun(self.store, known, start.claim, since, self.clock, TERMS, self.stop)

    async def taken_over(self) -> None:
        """By another consumer, whatever the lease says."""
        known = await self.store.read("s")
        await self.store.swap(known, replace(known.entry, fence=known.entry.fence + 1, owner="other"))


@asynccontextmanager
async def held(path: Path) -> Any:
    one = Held(path)
    yield one
    one.journal.down.clear()
    await one.journal.close()


def story(scenario: Callable[[Held], Awaitable[None]], path: Path) -> None:
    @virtual_time
    async def told() -> None:
        async with held(path) as one:
            await scenario(one)

    told()


def takes(seconds: float, error: BaseException | None = None) -> Callable[[Delivery], Awaitable[None]]:
    async def handler(delivery: Delivery) -> None:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error

    return handler


def test_what_a_handler_ends_with_is_what_became_of_the_message(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        for error, ran in (
            (None, Worked()),
            (ValueError("odd"), Failed("odd")),
            (ValueError(), Failed("ValueError")),
            (RetryLater("not now", seconds=3.0), Later("not now", 3.0)),
            (asyncio.CancelledError(), Failed("the handler cancelled itself")),
        ):
            assert await run.run(takes(0.5, error), DELIVERY, grace_seconds=1.0) == ran
        assert one.journal.written_at == []

    story(scenario, tmp_path)


def test_a_lease_is_renewed_after_a_third_of_it(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        before = run.known.entry.lease_until
        assert await run.run(takes(30.0), DELIVERY, grace_seconds=1.0) == Worked()
        assert one.journal.written_at == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0]
        assert run.known.entry.lease_until == before + 28.0
        assert one.clock.monotonic() == 30.0
        assert await run.finish(lambda entry: ownership.complete(entry, one.claim, now=one.now(), terms=TERMS))
        assert (await one.store.read("s")).entry.outcome("m1") is not None

    story(scenario, tmp_path)


def test_a_lease_that_cannot_be_renewed_stops_the_handler_when_it_is_over(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        one.journal.down = [JournalUnavailableError("down")]
        assert await run.run(takes(30.0), DELIVERY, grace_seconds=1.0) == LeaseLost()
        assert one.clock.monotonic() == 12.0
        assert one.journal.written_at == [4.0 + n for n in range(8)], "it is tried again each second"
        assert len(one.journal.read_at) == 8

    story(scenario, tmp_path)


def test_a_handler_that_ends_while_its_lease_turns_out_to_be_lost_has_worked(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        await one.taken_over()
        one.journal.slow = 1.0
        assert await run.run(takes(5.5), DELIVERY, grace_seconds=1.0) == Worked()
        assert one.clock.monotonic() == 6.0, "the renewal of second 4 is refused, and the entry read"
        assert not await run.finish(lambda entry: ownership.complete(entry, one.claim, now=one.now(), terms=TERMS))

    story(scenario, tmp_path)


def test_a_handler_that_puts_in_order_what_it_has_when_it_is_stopped_has_worked(tmp_path: Path) -> None:
    async def finishes(delivery: Delivery) -> None:
        try:
            await asyncio.sleep(1000.0)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)

    async def over(one: Held) -> None:
        run = await one.begin()
        one.journal.down = [JournalUnavailableError("down")]
        assert await run.run(finishes, DELIVERY, grace_seconds=1.0) == Worked()
        assert one.clock.monotonic() == TERMS.lease_seconds + 0.5

    async def stopped(one: Held) -> None:
        run = await one.begin()
        asyncio.get_running_loop().call_later(1.0, one.stop.set)
        assert await run.run(finishes, DELIVERY, grace_seconds=2.0) == Worked()
        assert one.clock.monotonic() == 3.5

    for number, scenario in enumerate((over, stopped)):
        (folder := tmp_path / str(number)).mkdir()
        story(scenario, folder)


def test_a_claim_that_the_entry_has_no_longer_is_not_renewed(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        theirs = replace(run.known.entry, fence=run.known.entry.fence + 1, owner="other")
        run.known = replace(run.known, entry=theirs)
        assert await run.run(takes(30.0), DELIVERY, grace_seconds=1.0) == LeaseLost()
        assert (one.clock.monotonic(), one.journal.written_at, one.journal.read_at) == (4.0, [], [])

    story(scenario, tmp_path)


def test_a_journal_that_does_not_answer_at_all_holds_nobody_beyond_the_lease(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        one.journal.slow = 1000.0
        assert await run.run(takes(30.0), DELIVERY, grace_seconds=1.0) == LeaseLost()
        assert one.clock.monotonic() == 12.0

    story(scenario, tmp_path)


def test_a_renewal_that_came_back_in_time_counts_from_when_it_began(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        one.journal.down = [JournalUnavailableError("down")]
        asyncio.get_running_loop().call_later(6.5, one.journal.down.clear)
        one.journal.slow = 0.5
        asyncio.get_running_loop().call_later(7.9, lambda: setattr(one.journal, "down", [JournalUnavailableError("x")]))
        assert await run.run(takes(30.0), DELIVERY, grace_seconds=1.0) == LeaseLost()
        began = max(at for at in one.journal.written_at if at < 7.9)
        assert one.clock.monotonic() == pytest.approx(began + 12.0)

    story(scenario, tmp_path)


@pytest.mark.parametrize("meanwhile", [False, True], ids=["taken over", "written by somebody"])
def test_a_claim_that_somebody_took_over_stops_the_handler_at_the_next_renewal(tmp_path: Path, meanwhile: bool) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        if meanwhile:
            known = await one.store.read("s")
            await one.store.swap(known, replace(known.entry, updated_at=1.0))
        else:
            await one.taken_over()
        ran = await run.run(takes(30.0), DELIVERY, grace_seconds=1.0)
        assert (ran, one.clock.monotonic()) == ((Worked(), 30.0) if meanwhile else (LeaseLost(), 4.0))

    story(scenario, tmp_path)


@pytest.mark.parametrize(
    ("stop_at", "grace", "ends_at", "ran"),
    [
        (2.0, 3.0, 5.0, Later("its consumer is stopping")),
        (0.0, 0.0, 0.0, Later("its consumer is stopping")),
        (2.0, 100.0, 6.0, Worked()),
        (9.0, 100.0, 6.0, Worked()),
    ],
)
def test_a_stop_gives_the_handler_its_grace(
    tmp_path: Path, stop_at: float, grace: float, ends_at: float, ran: Ran
) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        if stop_at:
            asyncio.get_running_loop().call_later(stop_at, one.stop.set)
        else:
            one.stop.set()
        assert await run.run(takes(6.0), DELIVERY, grace_seconds=grace) == ran
        assert one.clock.monotonic() == ends_at

    story(scenario, tmp_path)


def test_a_handler_that_ends_by_itself_at_the_last_moment_has_worked(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        cleaned: list[float] = []

        async def stubborn(delivery: Delivery) -> None:
            try:
                await asyncio.sleep(100.0)
            except asyncio.CancelledError:
                await asyncio.sleep(2.0)
                cleaned.append(one.clock.monotonic())

        one.stop.set()
        assert await run.run(stubborn, DELIVERY, grace_seconds=1.0) == Worked()
        assert cleaned == [3.0]
        running = asyncio.create_task(run.run(takes(100.0), DELIVERY, grace_seconds=100.0))
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    story(scenario, tmp_path)


def test_an_end_is_written_however_long_the_journal_takes(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        def done(entry: SessionEntry) -> SessionEntry | None:
            return ownership.complete(entry, one.claim, now=one.now(), terms=TERMS)

        run = await one.begin()
        one.journal.down = [JournalUnavailableError("down")]
        asyncio.get_running_loop().call_later(60.0, one.journal.down.clear)
        assert await run.finish(done)
        pauses = [later - earlier for earlier, later in zip(one.journal.read_at, one.journal.read_at[1:], strict=False)]
        assert max(pauses) <= TERMS.lease_seconds / 6
        assert one.clock.monotonic() < 60.0 + TERMS.lease_seconds / 3
        assert one.journal.read_at[0] > 0.0, "it is paused before the journal is asked again"

    story(scenario, tmp_path)


def test_an_end_that_somebody_has_written_already_is_the_own_one_or_that_of_who_took_over(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        def done(entry: SessionEntry) -> SessionEntry | None:
            return ownership.complete(entry, one.claim, now=one.now(), terms=TERMS)

        run = await one.begin()
        one.journal.lost = [JournalUnavailableError("the answer is lost")]
        assert await run.finish(done)
        assert len(one.journal.written_at) == 1
        one.journal.written_at.clear()
        assert await run.finish(done), "what was lost was the answer alone"
        assert one.journal.written_at == []

    async def other(one: Held) -> None:
        def done(entry: SessionEntry) -> SessionEntry | None:
            return ownership.complete(entry, one.claim, now=one.now(), terms=TERMS)

        run = await one.begin()
        await one.taken_over()
        assert not await run.finish(done)
        assert one.clock.monotonic() == 0.0, "a conflict is judged again at once"

    story(scenario, tmp_path)
    (tmp_path / "other").mkdir()
    story(other, tmp_path / "other")


def test_a_consumer_that_stops_does_not_wait_for_a_journal_that_is_down(tmp_path: Path) -> None:
    async def scenario(one: Held) -> None:
        run = await one.begin()
        one.journal.down = [JournalUnavailableError("down")]
        one.stop.set()
        assert not await run.finish(lambda entry: replace(entry, updated_at=5.0))
        assert len(one.journal.written_at) == 1
        one.journal.down, one.journal.lost = [], [JournalConflictError("faster")]
        assert await run.finish(lambda entry: replace(entry, updated_at=6.0)), "somebody else's write is no outage"

    story(scenario, tmp_path)


# What the entries are kept under.


def test_keys_are_of_one_session_of_one_destination_however_it_is_spelled() -> None:
    assert destination_of("/A/Topic/") == "a/topic"
    assert key_of("a/b", "c%") == "a%2Fb/c%25"
    assert key_of("a", "b/c") != key_of("a/b", "c")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("A.example.com:5671", "b.example.com"), ("b.EXAMPLE.com:443", "a.example.com"), True),
        (("a.example.com", "b.example.com"), ("a.example.com", "c.example.com"), False),
        (("[::1]:x", "b"), ("[::1]", "b"), False),
    ],
)
def test_a_journal_belongs_to_two_namespaces_whatever_their_ports(
    tmp_path: Path, first: tuple[str, str], second: tuple[str, str], same: bool
) -> None:
    async def scenario(one: Held) -> None:
        await one.store.open(first)
        assert not one.store._has_spelled_keys
        again = SessionStore(one.journal, "/Q/", TERMS)
        if not same:
            with pytest.raises(JournalError, match="taken for each other's"):
                await again.open(second)
            return
        await again.open(second)
        assert not again._has_spelled_keys
        one.journal.lost = [JournalConflictError("faster")]
        await again.open(second)

    story(scenario, tmp_path)


def test_what_an_earlier_build_kept_under_a_spelling_is_found_until_the_journal_says_there_is_none(
    tmp_path: Path,
) -> None:
    async def scenario(one: Held) -> None:
        old = SessionEntry("q", "Some", fence=7)
        await one.journal.create(SESSION, key_of("q", "Some"), old.to_dict(), ttl_seconds=1e6)
        known = await one.store.read("Some")
        assert (known.entry.fence, known.raw) == (7, None)
        known = await one.store.swap(known, replace(old, fence=8))
        assert (await one.store.read("sOME")).entry.fence == 8, "the next version is made under the key"
        finished = ownership.Finished("m", ownership.SessionState.COMPLETED, 1.0)
        record = ownership.MessageRecord("q", "Some", finished)
        await one.journal.create(MESSAGE, key_of("q", "Some", "m"), record.to_dict(), ttl_seconds=1e6)
        assert await one.store.finished("Some", "m") == finished
        assert await one.store.finished("some", "m") is None
        await one.store.record("Some", finished, ("primary",), is_new=True)
        await one.store.record("SOME", finished, ("secondary",), is_new=True)
        assert await one.store.settled("some", "m") == ("primary", "secondary")
        one.journal.written_at.clear()
        await one.store.record("some", finished, ("primary",))
        assert one.journal.written_at == [], "nothing new is nothing to write"

    story(scenario, tmp_path)
