"""The dual sender in virtual time: which side gets what and when, order, sides that fail, the journal's frontier."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import (
    InterruptedWorkError,
    JournalUnavailableError,
    MessageTooLargeError,
    OperationTimeoutError,
    ServerBusyError,
    UsageError,
)
from sbpair.core.pairing import Side
from sbpair.core.replication.ordering import Place, Stamp, stamp_of
from sbpair.core.rewrite import compose
from sbpair.core.summary import describe
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication.sender import SENDER, DualSender, NeitherSideError
from sbpair.runtime.replication.store import key_of
from tests.fakes import EPOCH, FakeClock, FakeNamespace, virtual_time

QUEUE = "orders"


class World:
    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.sides = {side: FakeNamespace(side.value, self.clock) for side in Side}
        for namespace in self.sides.values():
            namespace.add_queue(QUEUE)
        self.sender = self.make_sender(**options)

    def make_sender(self, **options: Any) -> DualSender:
        return DualSender(
            QUEUE,
            primary=self.sides[Side.PRIMARY].messaging(),
            secondary=self.sides[Side.SECONDARY].messaging(),
            clock=self.clock,
            **options,
        )

    def stored(self, side: Side) -> list[bytes]:
        return self.sides[side].queue(QUEUE).payloads

    def stamps(self, side: Side) -> dict[str, Stamp]:
        """Message id -> what is written on it."""
        return {describe(one).message_id or "": stamp_of(one) for one in self.stored(side)}


def message(message_id: str, session: str = "s", **fields: Any) -> bytes:
    return compose(body=message_id, message_id=message_id, session_id=session, **fields)


@virtual_time
async def test_both_sides_get_the_same_message_and_the_other_one_later() -> None:
    world = World(delay_seconds=15.0, preferred=Side.SECONDARY)
    result = await world.sender.send(message("m1", subject="hello"))
    assert result.accepted == (Side.SECONDARY, Side.PRIMARY)
    assert (result.errors, result.uncertain, result.recorded) == ({}, False, False)
    preferred, other = (describe(world.stored(side)[0]) for side in (Side.SECONDARY, Side.PRIMARY))
    assert (preferred.message_id, preferred.session_id, preferred.subject) == ("m1", "s", "hello")
    assert (other.message_id, other.session_id, other.subject) == ("m1", "s", "hello")
    assert (preferred.scheduled_at, other.scheduled_at) == (None, EPOCH + 15)
    assert world.stamps(Side.PRIMARY) == world.stamps(Side.SECONDARY) == {"m1": Stamp(result.place)}


@virtual_time
async def test_a_time_of_the_application_is_kept_and_the_delay_comes_on_top() -> None:
    world = World(delay_seconds=15.0)
    await world.sender.send(message("m1", scheduled_at=EPOCH + 100))
    assert [describe(world.stored(side)[0]).scheduled_at for side in Side] == [EPOCH + 100, EPOCH + 115]


@virtual_time
async def test_one_side_is_enough_and_the_result_says_which() -> None:
    world = World()
    world.sides[Side.PRIMARY].go_dark()
    result = await world.sender.send(message("m1"))
    assert result.accepted == (Side.SECONDARY,)
    assert result.errors == {Side.PRIMARY: "connection-lost"}
    assert result.uncertain


@virtual_time
async def test_a_side_in_the_dark_slows_down_only_the_first_send() -> None:
    world = World()
    world.sides[Side.PRIMARY].delays["send"] = 1e6
    began = world.clock.monotonic()
    results = [await world.sender.send(message(f"m{n}"), timeout_seconds=10) for n in range(5)]
    assert world.clock.monotonic() - began == 10
    assert results[0].errors == {Side.PRIMARY: "timeout"}
    assert [one.errors[Side.PRIMARY] for one in results[1:]] == ["side-down"] * 4
    assert not results[1].uncertain
    world.sides[Side.PRIMARY].delays["send"] = 0
    await asyncio.sleep(2)
    assert (await world.sender.send(message("m9"))).accepted == (Side.PRIMARY, Side.SECONDARY)


@virtual_time
async def test_a_side_that_was_left_out_is_asked_when_the_other_one_fails() -> None:
    world = World()
    primary = world.sides[Side.PRIMARY].go_dark()
    await world.sender.send(message("m1"))
    world.sides[Side.PRIMARY].heal(primary)
    world.sides[Side.SECONDARY].go_dark()
    assert (await world.sender.send(message("m2"))).accepted == (Side.PRIMARY,)


@virtual_time
async def test_neither_side_is_an_error_that_says_whether_the_message_may_be_there() -> None:
    world = World()
    world.sides[Side.PRIMARY].go_dark()
    world.sides[Side.SECONDARY].fail("send", OperationTimeoutError("late"), after=True, times=1)
    with pytest.raises(NeitherSideError, match=r"primary: .*cannot be reached.*; secondary: late") as caught:
        await world.sender.send(message("m1"))
    assert caught.value.uncertain
    result = await world.sender.send(message("m1"))
    assert result.place.number == 1, "the same message keeps its place"
    assert len(world.stored(Side.SECONDARY)) == 2
    assert len(world.stamps(Side.SECONDARY)) == 1


@virtual_time
async def test_what_comes_after_a_doubtful_message_does_not_wait_for_it() -> None:
    world = World()
    first = await world.sender.send(message("m1"))
    faults = [world.sides[side].go_dark() for side in Side]
    with pytest.raises(NeitherSideError):
        await world.sender.send(message("m2"))
    for side, fault in zip(Side, faults, strict=True):
        world.sides[side].heal(fault)
    third = await world.sender.send(message("m3"))
    stamp = world.stamps(Side.SECONDARY)["m3"]
    assert (stamp.place.number, stamp.after) == (3, (first.place,))
    assert third.place == stamp.place


@virtual_time
async def test_what_both_refuse_raises_their_own_error() -> None:
    world = World()
    with pytest.raises(MessageTooLargeError):
        await world.sender.send(_large())
    assert (await world.sender.send(message("m2"))).place.number == 1, "the number is free again"


@virtual_time
async def test_one_that_refuses_for_good_beside_one_that_may_take_it_later_is_neither() -> None:
    world = World()
    world.sides[Side.PRIMARY].fail("send", MessageTooLargeError("large"))
    world.sides[Side.SECONDARY].fail("send", ServerBusyError("busy"))
    with pytest.raises(NeitherSideError) as caught:
        await world.sender.send(message("m1"))
    assert (caught.value.retryable, caught.value.uncertain) == (True, False)


def _large() -> bytes:
    return compose(body=b"x" * 300_000, message_id="m1", session_id="s")


@virtual_time
async def test_messages_of_a_session_are_sent_one_after_another_and_sessions_side_by_side() -> None:
    world = World()
    world.sides[Side.PRIMARY].delays["send"] = 1.0
    payloads = [message(f"s{n % 4}-{n:02}", f"s{n % 4}") for n in range(20)]
    began = world.clock.monotonic()
    results = [sent.result async for sent in world.sender.send_all(payloads)]
    assert world.clock.monotonic() - began == 5
    assert [one.message_id for one in results if one] == [f"s{n % 4}-{n:02}" for n in range(20)]
    for side in Side:
        for session in ("s0", "s1", "s2", "s3"):
            numbers = [stamp_of(one).place.number for one in world.stored(side) if describe(one).session_id == session]
            assert numbers == [1, 2, 3, 4, 5]


@virtual_time
async def test_errors_of_single_messages_do_not_end_the_run() -> None:
    world = World()
    payloads = [message("m1"), compose(body="", message_id="no session"), _large(), message("m4")]
    results = [sent async for sent in world.sender.send_all(payloads)]
    assert [type(sent.error) for sent in results] == [type(None), UsageError, MessageTooLargeError, type(None)]


@virtual_time
async def test_a_cancelled_send_leaves_its_number_in_doubt() -> None:
    world = World()
    world.sides[Side.PRIMARY].delays["send"] = world.sides[Side.SECONDARY].delays["send"] = 5.0
    sending = asyncio.create_task(world.sender.send(message("m1")))
    await asyncio.sleep(1)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await world.sender.send(message("m2"))).place.number == 2


@virtual_time
async def test_a_closed_sender_sends_nothing() -> None:
    world = World()
    await world.sender.close()
    with pytest.raises(InterruptedWorkError):
        await world.sender.send(message("m1"))
    assert world.stored(Side.PRIMARY) == []


@virtual_time
async def test_a_sender_that_is_being_closed_sends_nothing_any_more() -> None:
    world = World()
    await world.sender.send(message("m1"))
    closing = asyncio.create_task(world.sender.close())
    await asyncio.sleep(0)
    with pytest.raises(InterruptedWorkError):
        await world.sender.send(message("m2"))
    await closing


@virtual_time
async def test_sessions_that_nobody_uses_are_forgotten_after_a_while_and_not_at_each_send() -> None:
    world = World()
    memory = world.sender._memory_seconds
    await world.sender.send(message("m1", "old"))
    await asyncio.sleep(memory)
    await world.sender.send(message("m2", "new"))
    assert set(world.sender._sessions) == {"old", "new"}, "as old as it may be"
    await asyncio.sleep(memory / 20)
    await world.sender.send(message("m3", "new"))
    assert set(world.sender._sessions) == {"old", "new"}, "they were looked through a moment ago"
    await asyncio.sleep(memory / 10)
    await world.sender.send(message("m4", "new"))
    assert set(world.sender._sessions) == {"new"}
    world.sides[Side.PRIMARY].delays["send"] = 10.0
    sending = asyncio.create_task(world.sender.send(message("m5", "used"), timeout_seconds=60.0))
    await asyncio.sleep(1.0)
    world.sender._sessions["used"].used_at -= 2 * memory
    world.sender._swept_at -= memory
    await world.sender.send(message("m6", "new"))
    assert "used" in world.sender._sessions
    await sending


# With a journal


def test_a_sender_that_starts_again_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    @virtual_time
    async def play() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        world = World(journal=journal)
        await world.sender.send(message("m1"))
        last = await world.sender.send(message("m2"))
        assert last.recorded
        second = world.make_sender(journal=journal)
        first_again = await second.send(message("m3"))
        stamps = world.stamps(Side.PRIMARY)
        assert stamps["m3"] == Stamp(Place(first_again.place.stream, 1), (last.place,))
        assert first_again.place.stream != last.place.stream
        await journal.close()

    play()


def test_two_senders_at_once_are_both_followed_by_the_next(tmp_path: Path) -> None:
    @virtual_time
    async def play() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        world = World(journal=journal)
        others = [world.make_sender(journal=journal) for _ in range(2)]
        both = await asyncio.gather(*(sender.send(message(f"m{n}")) for n, sender in enumerate(others)))
        await world.sender.send(message("m9"))
        assert set(world.stamps(Side.PRIMARY)["m9"].after) == {one.place for one in both}
        await journal.close()

    play()


class Away(SqliteJournal):
    async def read(self, kind: str, key: str) -> Entry | None:
        raise JournalUnavailableError("gone")

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        raise JournalUnavailableError("gone")


def test_a_journal_that_is_away_keeps_nothing_from_being_sent(tmp_path: Path) -> None:
    @virtual_time
    async def play() -> None:
        world = World(journal=Away(tmp_path / "journal.db"))
        result = await world.sender.send(message("m1"))
        assert (len(result.accepted), result.recorded) == (2, False)

    play()


@virtual_time
async def test_a_session_that_was_idle_for_long_begins_anew() -> None:
    """Consumers forget what is older than the retention: nobody may be asked to wait for it."""
    world = World()
    old = await world.sender.send(message("m1"))
    await asyncio.sleep(8 * 86_400)
    new = await world.sender.send(message("m2"))
    assert new.place.stream != old.place.stream
    assert world.stamps(Side.PRIMARY)["m2"].after == ()


def test_a_session_is_one_in_every_spelling(tmp_path: Path) -> None:
    """Its messages go one after another and follow each other, also across senders and an earlier build's journal."""

    @virtual_time
    async def story() -> None:
        world = World()
        journal = SqliteJournal(tmp_path / "journal", now=lambda: world.clock.now().timestamp())
        sender = world.make_sender(journal=journal)
        for namespace in world.sides.values():
            namespace.delays["send"] = 1.0
        first, second = await asyncio.gather(
            sender.send(message("m1", "Order-7")), sender.send(message("m2", "ORDER-7"))
        )
        assert world.clock.monotonic() == 2.0
        assert world.stamps(Side.PRIMARY)["m2"].after == (first.place,)
        other = world.make_sender(journal=journal)
        await other.send(message("m3", "order-7"))
        assert world.stamps(Side.PRIMARY)["m3"].after == (second.place,)
        older = await journal.read(SENDER, key_of(QUEUE, "order-7"))
        assert older is not None
        await journal.create(SENDER, key_of(QUEUE, "Order-8"), older.document, ttl_seconds=1e6)
        await world.make_sender(journal=journal).send(message("m4", "Order-8"))
        assert world.stamps(Side.PRIMARY)["m4"].after == (world.stamps(Side.PRIMARY)["m3"].place,)
        began = world.clock.monotonic()
        async for sent in sender.send_all([message("m5", "Order-9"), message("m6", "ORDER-9")]):
            assert sent.error is None
        assert [one for one in world.stamps(Side.PRIMARY) if one in ("m5", "m6")] == ["m5", "m6"]
        assert world.clock.monotonic() == began + 2.0
        await journal.close()

    story()
