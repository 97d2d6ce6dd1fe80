"""A session's worker in virtual time: what it does with each copy, how long it stays, and how it leaves the session."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import (
    ConnectionLostError,
    JournalConflictError,
    JournalUnavailableError,
    LockLostError,
    ServerBusyError,
    ServiceError,
)
from sbpair.core.events import MessageHandled, Paused
from sbpair.core.message import Disposition, Received
from sbpair.core.replication.ordering import Place, Stamp, stamped
from sbpair.core.replication.ownership import Current, SessionEntry, SessionState, Terms
from sbpair.core.rewrite import compose
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication import session
from sbpair.runtime.replication.consumer import ConsumeRequest
from sbpair.runtime.replication.handlers import Delivery, RetryLater
from sbpair.runtime.replication.session import FAILED_PAUSE_SECONDS, NO_ID, SessionWorker, Setup
from sbpair.runtime.replication.store import SessionStore
from tests.fakes import EPOCH, FakeClock, RecordingObserver, virtual_time

TERMS = Terms(lease_seconds=10.0, max_attempts=2)


def copy(message_id: str | None, number: int, stamp: Stamp | None = None, payload: bytes | None = None) -> Received:
    text = compose(body=b"", message_id=message_id or "", session_id="s") if payload is None else payload
    text = text if stamp is None else stamped(text, stamp)
    return Received(text, number, "q", message_id=message_id, session_id="s", locked_until=EPOCH + 60.0)


@dataclass
class Receiver:
    """Gives copies as they come, and notes what is asked of it."""

    coming: list[Received] = field(default_factory=list)
    asked: list[tuple[int, float]] = field(default_factory=list)
    settled: list[tuple[str | None, Disposition, str]] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)
    lost_at: float = float("inf")
    refuses: ServiceError | None = None
    fails: ServiceError | None = None
    closed: int = 0

    async def receive(self, most: int, *, wait_seconds: float) -> list[Received]:
        self.asked.append((most, wait_seconds))
        if self.fails is not None:
            raise self.fails
        if not self.coming:
            await asyncio.sleep(wait_seconds)
        found, self.coming = self.coming[:most], self.coming[most:]
        return found

    async def settle(self, received: Received, disposition: Disposition, *, reason: str, description: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.settled.append((received.message_id, disposition, reason))

    async def renew_session(self) -> float:
        now = asyncio.get_running_loop().time()
        self.renewed.append(now)
        if now >= self.lost_at:
            raise LockLostError("lost")
        return 0.0

    async def close(self) -> None:
        self.closed += 1


class Journal(SqliteJournal):
    """Fails as long as it is said to be down, and has something newer for so many swaps."""

    down = False
    conflicts = 0

    async def read(self, kind: str, key: str) -> Entry | None:
        if self.down:
            raise JournalUnavailableError("down")
        return await super().read(kind, key)

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        if self.down:
            raise JournalUnavailableError("down")
        if self.conflicts:
            self.conflicts -= 1
            raise JournalConflictError("newer")
        return await super().replace(entry, document, ttl_seconds=ttl_seconds)


class World:
    def __init__(self, path: Path, **setup: Any) -> None:
        self.clock, self.observer, self.stop = FakeClock(), RecordingObserver(), asyncio.Event()
        self.journal = Journal(path / "journal.db", now=lambda: self.clock.now().timestamp())
        self.receiver, self.ran = Receiver(), list[tuple[str, float]]()
        self.acts: dict[str, Any] = {}
        request = ConsumeRequest("q", TERMS, idle_seconds=1.0, hold_seconds=4.0, later_seconds=2.0, grace_seconds=1.0)
        self.setup = Setup(
            replace(request, **setup.pop("request", {})),
            store=SessionStore(self.journal, "q", TERMS),
            handler=self.handle,
            clock=self.clock,
            observer=self.observer,
            stop=self.stop,
            handlers=asyncio.Semaphore(1),
            name="consumer",
            count=lambda *counted: None,
            **setup,
        )

    async def handle(self, delivery: Delivery) -> None:
        self.ran.append((delivery.message_id, self.clock.monotonic()))
        acts = self.acts.get(delivery.message_id)
        act = acts.pop(0) if isinstance(acts, list) and acts else None
        if isinstance(act, float):
            await asyncio.sleep(act)
        elif isinstance(act, Exception):
            raise act

    async def work(self, *copies: Received) -> list[tuple[str, str]]:
        """Work through these and what comes; message and result of each copy, as told."""
        before = len(self.observer.of(MessageHandled))
        worker = SessionWorker(self.setup, "primary", "s", self.receiver)  # type: ignore[arg-type]
        assert worker.owner.startswith("consumer/primary/")
        await worker.run(list(copies))
        assert self.receiver.closed == 1
        return [(one.message_id, one.result) for one in self.observer.of(MessageHandled)[before:]]


def story(path: Path, scenario: Callable[[World], Any], **setup: Any) -> None:
    @virtual_time
    async def told() -> None:
        world = World(path, **setup)
        await scenario(world)
        world.journal.down = False
        await world.journal.close()

    told()


def test_copies_are_worked_through_in_turn_and_the_session_is_let_go(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.receiver.coming = [copy("m2", 2)]
        assert await world.work(copy("m1", 1)) == [("m1", "completed"), ("m2", "completed")]
        assert world.receiver.settled == [(one, Disposition.COMPLETE, "") for one in ("m1", "m2")]
        assert world.receiver.asked == [(100, 1.0), (100, 1.0)], "an emptied session is kept for its next message"
        assert world.clock.monotonic() == 1.0
        entry = (await world.setup.store.read("s")).entry
        assert (entry.owner, entry.recent, entry.completed_count) == ("", (), 2)
        assert [await world.setup.store.settled("s", one) for one in ("m1", "m2")] == [("primary",)] * 2

    story(tmp_path, scenario)


def test_a_copy_that_cannot_be_told_from_others_is_dead_lettered(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        told = await world.work(copy(None, 1), copy("m2", 2), copy("odd", 3, payload=b"\x00\x53\x70\xff"))
        assert told == [("", "dead-lettered"), ("odd", "dead-lettered"), ("m2", "completed")]
        assert world.receiver.settled[0] == (None, Disposition.DEAD_LETTER, NO_ID)
        assert world.receiver.settled[1][:2] == ("odd", Disposition.DEAD_LETTER)
        details = [one.detail for one in world.observer.of(MessageHandled)]
        assert details[0] == f"{NO_ID} Without a MessageId its two copies are not known to be one."
        assert details[2] == ""

    story(tmp_path, scenario)


def follows(stream: str, number: int) -> Stamp:
    return Stamp(Place(stream, number), (Place(stream, number - 1),) if number > 1 else ())


def test_a_copy_that_waits_for_another_one_is_held_for_a_while(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        waits = copy("m2", 2, follows("a", 2))
        assert await world.work(waits) == []
        assert world.clock.monotonic() >= 4.0
        assert (world.ran, world.receiver.settled) == ([], [])
        assert (await world.setup.store.read("s")).entry.gap is not None
        pauses = [wait for _, wait in world.receiver.asked]
        assert pauses[:3] == [session.POLL_AGAIN.seconds(n) for n in (1, 2, 3)]
        again = World(tmp_path)
        again.journal = world.journal
        again.setup = replace(again.setup, store=world.setup.store)
        again.receiver.coming = [copy("m1", 3, follows("a", 1))]
        assert await again.work(waits) == [("m1", "completed"), ("m2", "completed")]

    story(tmp_path, scenario)


def test_no_more_copies_are_taken_than_may_be_held(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.work(*(copy(f"m{number}", number, follows("a", number)) for number in (3, 4)))
        assert {most for most, _ in world.receiver.asked} == {1}, "one more than are held, as they all wait"
        full = World(tmp_path, window=2, most_held=2)
        full.setup = replace(full.setup, store=world.setup.store)
        full.receiver = Receiver()
        await full.work(*(copy(f"m{number}", number, follows("a", number)) for number in (3, 4)))
        assert full.receiver.asked == []

    story(tmp_path, scenario, window=2, most_held=3)


def test_an_attempt_that_fails_is_made_again_and_the_last_one_is_dead_lettered(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.acts["m1"] = [ValueError("first"), RetryLater("not yet"), RetryLater(seconds=0.5), ValueError("second")]
        told = await world.work(copy("m1", 1))
        assert told == [("m1", "again")] * 3 + [("m1", "failed")]
        assert [one.detail for one in world.observer.of(MessageHandled)][:3] == ["first", "not yet", ""]
        at = [when for _, when in world.ran]
        assert at[1] - at[0] >= session.RETRY.seconds(1)
        assert at[2] - at[1] >= 2.0
        assert 0.5 <= at[3] - at[2] < 2.0
        assert [one[:2] for one in world.receiver.settled] == [("m1", Disposition.DEAD_LETTER)]

    story(tmp_path, scenario, request={"hold_seconds": 60.0})


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ServerBusyError("busy"), 10.0),
        (ConnectionLostError("silence"), FAILED_PAUSE_SECONDS),
        (LockLostError("lost"), 0.0),
    ],
)
@pytest.mark.parametrize("settling", [True, False])
def test_a_request_that_fails_ends_the_work_on_the_session_which_nobody_gets_again_at_once(
    tmp_path: Path, error: ServiceError, kept: float, settling: bool, stops: bool
) -> None:
    async def scenario(world: World) -> None:
        worked = [("m1", "completed")]
        if settling:
            world.receiver.refuses = error
        else:
            world.receiver.fails = error
        if stops:
            asyncio.get_running_loop().call_later(0.5, world.stop.set)
        assert await world.work(copy("m1", 1), *([copy("m2", 2)] if settling else [])) == worked
        assert await world.setup.store.settled("s", "m1") == (() if settling else ("primary",))
        assert (await world.setup.store.read("s")).entry.owner == "", "the other side may go on with it"
        told = [(one.entity, one.error_code, one.seconds) for one in world.observer.of(Paused)]
        assert told == ([("session s", error.code, kept)] if kept else [])
        assert world.clock.monotonic() == (min(kept, 0.5) if stops else kept)

    story(tmp_path, scenario)


def test_the_lock_is_renewed_in_time_and_its_loss_ends_the_work(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.acts["m1"], world.receiver.lost_at = [50.0], 30.0
        told = await world.work(copy("m1", 1), copy("m2", 2))
        assert world.receiver.renewed == [20.0, 40.0], "a third of a minute, and not while it was lost already"
        assert told == [("m1", "completed")], "a handler that runs goes on: its lease is in the journal"
        assert [one for one, _ in world.ran] == ["m1"]

    story(tmp_path, scenario)


@pytest.mark.parametrize(("locked", "pause"), [(None, 20.0), (30.0, 10.0), (0.5, 1.0), (600.0, 20.0)])
def test_a_lock_is_renewed_after_a_third_of_it(tmp_path: Path, locked: float | None, pause: float) -> None:
    async def scenario(world: World) -> None:
        world.acts["m1"] = [25.0]
        until = None if locked is None else EPOCH + locked
        await world.work(replace(copy("m1", 1), locked_until=until))
        assert world.receiver.renewed[0] == pause

    story(tmp_path, scenario)


def test_without_the_journal_nothing_is_done_until_it_answers_or_the_consumer_stops(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.journal.down = True
        asyncio.get_running_loop().call_later(2.5, lambda: setattr(world.journal, "down", False))
        assert await world.work(copy("m1", 1)) == [("m1", "completed")]
        paused = world.observer.of(Paused)
        assert [one.seconds for one in paused] == [session.JOURNAL_DOWN.seconds(n + 1) for n in range(len(paused))]
        assert world.ran[0][1] == sum(one.seconds for one in paused)
        stopping = World(tmp_path)
        stopping.journal.down = True
        asyncio.get_running_loop().call_later(0.01, stopping.stop.set)
        began = stopping.clock.monotonic()
        assert await stopping.work(copy("m2", 2)) == []
        assert stopping.clock.monotonic() == pytest.approx(began + 0.01)
        stopping.journal.down = False
        await stopping.journal.close()

    story(tmp_path, scenario)


def test_a_consumer_that_stops_begins_nothing_more(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.acts["m1"] = [0.5]
        asyncio.get_running_loop().call_later(0.1, world.stop.set)
        assert await world.work(copy("m1", 1), copy("m2", 2)) == [("m1", "completed")]
        waiting = World(tmp_path)
        await waiting.setup.handlers.acquire()
        asyncio.get_running_loop().call_later(3.0, waiting.stop.set)
        asyncio.get_running_loop().call_later(5.0, waiting.setup.handlers.release)
        assert await waiting.work(copy("m3", 3)) == []
        assert waiting.ran == [], "a handler that comes free after the stop is not used"
        await waiting.journal.close()

    story(tmp_path, scenario)


def test_a_message_whose_consumers_have_died_too_often_is_given_up(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = world.setup.store
        entry = SessionEntry(
            "q",
            "s",
            SessionState.WORKING,
            owner="consumer/primary/dead",
            fence=2,
            lease_until=EPOCH - 1.0,
            current=Current("m1", attempts=TERMS.max_attempts, since=EPOCH - 9.0),
        )
        await store.swap(await store.read("s"), entry)
        world.journal.conflicts = 1
        assert await world.work(copy("m1", 1), copy("m2", 2)) == [("m1", "failed"), ("m2", "completed")]
        assert world.receiver.settled[0][:2] == ("m1", Disposition.DEAD_LETTER)
        assert [one for one, _ in world.ran] == ["m2"]
        finished = await store.finished("s", "m1")
        assert finished is not None
        assert (finished.state, await store.settled("s", "m1")) == (SessionState.FAILED, ("primary",))

    story(tmp_path, scenario)


def test_a_message_that_was_sent_again_is_not_run_again_and_its_number_is_passed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        again, next_one = copy("m1", 2, follows("a", 2)), copy("m3", 3, follows("a", 3))
        world.receiver.coming = [again, next_one]
        told = await world.work(copy("m1", 1, follows("a", 1)))
        assert told == [("m1", "completed"), ("m1", "duplicate"), ("m3", "completed")]
        assert [one for one, _ in world.ran] == ["m1", "m3"]
        assert (await world.setup.store.read("s")).entry.head("a") == 3

    story(tmp_path, scenario)


def test_a_copy_of_what_failed_is_dead_lettered_and_its_side_noted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.acts["m1"] = [ValueError("first"), ValueError("second")]
        assert await world.work(copy("m1", 1)) == [("m1", "again"), ("m1", "failed")]
        other = SessionWorker(world.setup, "secondary", "s", receiver := Receiver())  # type: ignore[arg-type]
        await other.run([copy("m1", 1)])
        last = world.observer.of(MessageHandled)[-1]
        assert (last.side, last.result) == ("secondary", "dead-lettered")
        assert "second" in last.detail
        assert receiver.settled[0][:2] == ("m1", Disposition.DEAD_LETTER)
        assert set(await world.setup.store.settled("s", "m1")) == {"primary", "secondary"}

    story(tmp_path, scenario, request={"hold_seconds": 60.0})
