"""The consumer of active/active as an application uses it: a loop or a callback, on real sockets."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from sbpair.aio import Consumer, ReplicatedMessage, RetryLater, consume
from sbpair.amqp.sections import build
from sbpair.core.errors import JournalError, JournalUnavailableError, LockLostError, UsageError
from sbpair.core.events import MessageHandled
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ownership import Terms
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication.handlers import Delivery
from tests.clients.test_processes import forked
from tests.runtime.replication.stage import BRISK, QUEUE, Stage, access_to, stage
from tests.waiting import LIMIT_SECONDS

LONG_ENOUGH = {"until_idle_seconds": 3.0, "terms": BRISK}


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as ready:
        yield ready


def pair(both: Stage) -> Pair:
    return Pair("boxes", access_to(both.emulator, "primary"), access_to(both.emulator, "secondary"))


def consumer(both: Stage, **options: Any) -> Consumer:
    return Consumer(QUEUE, **{"pair": pair(both), "journal": both.journal} | LONG_ENOUGH | options)


async def test_a_loop_gets_every_message_once_and_in_order(both: Stage) -> None:
    await both.send(*((f"s{number % 3}", f"m{number}") for number in range(9)))
    seen: list[tuple[str | None, str | None]] = []
    async with consumer(both) as messages:
        async for work in messages:
            async with work as message:
                assert isinstance(message, ServiceBusReceivedMessage)
                assert b"".join(message.body) == str(message.message_id).encode()
                assert (work.session_id, work.message_id, work.attempt) == (message.session_id, message.message_id, 1)
                seen.append((message.session_id, message.message_id))
    assert sorted(seen) == sorted((f"s{number % 3}", f"m{number}") for number in range(9))
    for session in ("s0", "s1", "s2"):
        ids = [str(message) for owner, message in seen if owner == session]
        assert ids == sorted(ids)
    assert messages.report is not None
    assert (messages.report.total("completed"), messages.report.ended_by) == (9, "idle")
    assert both.left(Side.PRIMARY) == both.left(Side.SECONDARY) == (0, 0)
    assert messages._given == set(), "what has ended is kept"


async def test_an_exception_is_a_failed_attempt_and_the_loop_goes_on(
    both: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await both.send(("s", "bad"), ("s", "good"))
    attempts: list[tuple[str, int]] = []
    told: list[object] = []
    with caplog.at_level(logging.WARNING, "sbpair"):
        async with consumer(both, on_event=told.append) as messages:
            async for work in messages:
                async with work as message:
                    attempts.append((str(message.message_id), work.attempt))
                    if message.message_id == "bad":
                        raise ValueError("cannot be booked")
    assert attempts == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    assert caplog.text.count("Message bad failed in attempt") == 3
    assert "cannot be booked" in caplog.text
    assert messages.report is not None
    assert (messages.report.total("failed"), messages.report.total("completed")) == (1, 1)
    assert any(isinstance(one, MessageHandled) for one in told)


async def test_retry_later_is_no_attempt(both: Stage) -> None:
    await both.send(("s", "m"))
    attempts = []
    async with consumer(both) as messages:
        async for work in messages:
            async with work:
                attempts.append(work.attempt)
                if len(attempts) < 3:
                    raise RetryLater("not yet", seconds=0.1)
    assert attempts == [1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_forked_workers_and_their_parent_with_one_journal_run_each_message_once(
    both: Stage, tmp_path: Path
) -> None:
    """The parent has used the journal before, and goes on with it beside them."""
    expected = [(f"s{number % 6}", f"m{number:02}") for number in range(24)]
    ran = tmp_path / "ran"

    def note(work: ReplicatedMessage) -> None:
        with ran.open("a") as file:
            file.write(f"{work.session_id} {work.message_id}\n")

    async def work() -> None:
        await consume(QUEUE, note, pair=pair(both), journal=both.journal, **LONG_ENOUGH)

    await both.send(*expected[:6])
    await work()
    await both.send(*expected[6:])
    workers = [asyncio.to_thread(forked, lambda: asyncio.run(work())) for _ in range(2)]
    *ends, _ = await asyncio.gather(*workers, work())
    assert ends == [0, 0]
    lines = [(session, message) for session, message in map(str.split, ran.read_text().splitlines())]
    assert sorted(lines) == sorted(expected)
    for session in {session for session, _ in expected}:
        assert [one for one in lines if one[0] == session] == [one for one in expected if one[0] == session]
    assert both.left(Side.PRIMARY) == both.left(Side.SECONDARY) == (0, 0)


async def test_several_tasks_share_a_loop_and_all_of_them_end(both: Stage) -> None:
    await both.send(*((f"s{number}", f"m{number}") for number in range(4)))
    seen: list[str] = []

    async def work(messages: Consumer) -> None:
        async for one in messages:
            async with one as message:
                seen.append(str(message.message_id))

    async with consumer(both, concurrency=3) as messages:
        await asyncio.wait_for(asyncio.gather(*(work(messages) for _ in range(3))), LIMIT_SECONDS)
    assert sorted(seen) == [f"m{number}" for number in range(4)]


async def test_a_task_that_is_cancelled_in_a_block_has_not_done_its_message(both: Stage) -> None:
    await both.send(("s", "m"))
    begun = asyncio.Event()

    async def first() -> None:
        async with consumer(both, until_idle_seconds=None) as messages:
            async for work in messages:
                async with work:
                    begun.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(first())
    await asyncio.wait_for(begun.wait(), LIMIT_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again: list[tuple[str, int]] = []
    async with consumer(both) as messages:
        async for work in messages:
            async with work as message:
                again.append((str(message.message_id), work.attempt))
    assert again == [("m", 1)]


async def test_leaving_the_loop_releases_what_was_not_begun(both: Stage) -> None:
    await both.send(*((f"s{number}", f"m{number}") for number in range(4)))
    async with consumer(both, concurrency=4, until_idle_seconds=None) as messages:
        first = await anext(messages)
        second = await anext(messages)
        async with first:
            pass
    assert not second.waits
    with pytest.raises(LockLostError):
        await second.__aenter__()
    report = await consume(QUEUE, lambda work: None, pair=pair(both), journal=both.journal, **LONG_ENOUGH)
    assert report.total("completed") == 3


def delivery() -> Delivery:
    return Delivery(build(data=[b"x"]), "s", "m", "primary:1", Side.PRIMARY, 1, 1, 1)


async def begun(
    work: ReplicatedMessage, *, cancelled: bool = False, cleaned: asyncio.Event | None = None
) -> asyncio.Task[None]:
    """An application in the block of a message. `cancelled`: it is so itself, while the block ends. `cleaned`: what its
    end waits for."""
    within = asyncio.Event()

    async def application() -> None:
        async with work:
            within.set()
            try:
                await asyncio.Event().wait()
            finally:
                if cancelled and (own := asyncio.current_task()) is not None:
                    own.cancel()
                if cleaned is not None:
                    await cleaned.wait()

    running = asyncio.create_task(application())
    await within.wait()
    return running


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_takeover_cancels_the_block_alone_and_an_applications_own_cancellation_goes_on(cancelled: bool) -> None:
    work = ReplicatedMessage(delivery())
    concluded = asyncio.create_task(work._concluded())
    running = await begun(work, cancelled=cancelled)
    concluded.cancel()
    await asyncio.wait({running, concluded})
    assert concluded.cancelled()
    assert running.cancelled() is cancelled
    assert running.cancelling() == int(cancelled)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_that_makes_something_else_of_a_takeover_leaves_nothing_cancelled(fails: bool) -> None:
    work, within = ReplicatedMessage(delivery()), asyncio.Event()
    concluded = asyncio.create_task(work._concluded())

    async def application() -> None:
        async with work:
            within.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if fails:
                    raise ValueError("its own") from None
        await asyncio.sleep(0)

    running = asyncio.create_task(application())
    await within.wait()
    concluded.cancel()
    await asyncio.wait({running, concluded})
    assert (running.cancelled(), running.cancelling(), running.exception()) == (False, 0, None)


async def test_a_takeover_is_over_once_the_block_has_ended() -> None:
    work, cleaned = ReplicatedMessage(delivery()), asyncio.Event()
    concluded = asyncio.create_task(work._concluded())
    running = await begun(work, cleaned=cleaned)
    concluded.cancel()
    assert not (await asyncio.wait({concluded}, timeout=0.2))[0]
    cleaned.set()
    await asyncio.wait({running, concluded})
    assert (concluded.cancelled(), running.cancelled()) == (True, False)


async def test_what_is_taken_over_before_it_was_begun_cannot_be_begun() -> None:
    work = ReplicatedMessage(delivery())
    concluded = asyncio.create_task(work._concluded())
    await asyncio.sleep(0)
    concluded.cancel()
    await asyncio.wait({concluded})
    assert (concluded.cancelled(), work.waits) == (True, False)
    assert isinstance(work._outcome.exception(), RetryLater)
    with pytest.raises(LockLostError):
        await work.__aenter__()


async def test_what_is_taken_over_in_the_queue_is_not_handed_out(both: Stage) -> None:
    messages = consumer(both)
    messages._running = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    first, second = [asyncio.create_task(messages._offer(delivery())) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    (left,) = messages._given
    assert await asyncio.wait_for(anext(messages), 10) is left
    async with left:
        pass
    await second
    assert messages._given == set()
    messages._running.cancel()


async def test_what_ends_in_the_moment_of_a_takeover_has_been_done() -> None:
    work = ReplicatedMessage(delivery())
    concluded = asyncio.create_task(work._concluded())
    await asyncio.sleep(0)
    async with work:
        concluded.cancel()
    await asyncio.wait({concluded})
    assert not concluded.cancelled()
    concluded.result()


async def test_a_stopped_consumer_takes_no_message(both: Stage) -> None:
    stopped = consumer(both)
    await stopped.stop()
    with pytest.raises(RetryLater):
        await asyncio.wait_for(stopped._offer(delivery()), 10)
    assert stopped._queue.empty()


async def test_what_another_consumer_took_over_is_cancelled_and_the_loop_goes_on(both: Stage) -> None:
    """The lease of the first one runs out because its journal is away; its block must not run beside the second's."""
    await both.send(("s", "m"))
    running = asyncio.Event()
    ended: list[str] = []

    async def first() -> None:
        cut_off = {"journal": _Failing(both), "sides": (Side.PRIMARY,), "until_idle_seconds": None}
        async with consumer(both, **cut_off) as messages:
            async for work in messages:
                async with work:
                    running.set()
                    try:
                        await asyncio.sleep(60)
                    finally:
                        ended.append("first")

    beginning = asyncio.create_task(first())
    await asyncio.wait_for(running.wait(), 90)
    _Failing.away = True
    try:
        other = {"sides": (Side.SECONDARY,), "max_messages": 1, "until_idle_seconds": None}
        async with consumer(both, **other) as messages:
            async for work in messages:
                async with work:
                    assert ended == ["first"], "two owners at once"
                    assert work.fence > 1
                    ended.append("second")
        assert ended == ["first", "second"]
        assert not beginning.done()
    finally:
        _Failing.away = False
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)


class _Late:
    """A journal that does not answer the first times that a consumer opens it, for longer than it may be idle."""

    def __init__(self, both: Stage) -> None:
        self._journal = both.journal
        self.left = 3
        self.answered_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def scan(self, kind: str) -> AsyncIterator[Entry]:
        if self.left:
            self.left -= 1
            raise JournalUnavailableError("starting")
        self.answered_at = time.monotonic()
        async for entry in self._journal.scan(kind):
            yield entry


async def test_the_time_until_its_journal_answers_is_no_idle_time(both: Stage) -> None:
    late = _Late(both)
    options = {"pair": pair(both), "journal": late, "terms": BRISK, "until_idle_seconds": 3.0}
    report = await consume(QUEUE, lambda work: None, **options)
    assert (late.left, report.ended_by) == (0, "idle")
    assert time.monotonic() - late.answered_at >= 3.0


class _Failing:
    """The journal of a consumer that is cut off from it."""

    away = False

    def __init__(self, both: Stage) -> None:
        self._journal = both.journal

    def __getattr__(self, name: str) -> Any:
        if self.away and name in ("read", "create", "replace"):

            async def refuse(*_: object, **__: object) -> None:
                raise JournalUnavailableError("cut off")

            return refuse
        return getattr(self._journal, name)


async def test_callbacks_may_be_coroutines_or_plain_functions_and_run_side_by_side(both: Stage) -> None:
    await both.send(*((f"s{number}", f"m{number}") for number in range(6)))
    together, most = 0, 0

    async def work(one: ReplicatedMessage) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.3)
        together -= 1

    report = await consume(QUEUE, work, pair=pair(both), journal=both.journal, **LONG_ENOUGH)
    assert (report.total("completed"), most > 1) == (6, True)
    await both.send(("plain", "p"))
    seen: list[str] = []
    report = await consume(
        QUEUE, lambda one: seen.append(one.message_id), pair=pair(both), journal=both.journal, **LONG_ENOUGH
    )
    assert (seen, report.total("completed")) == (["p"], 1)


async def test_cancelling_ends_it_in_good_order(both: Stage) -> None:
    await both.send(("s", "m1"), ("s", "m2"))
    begun = asyncio.Event()

    async def work(one: ReplicatedMessage) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        both.done.append((one.session_id, one.message_id, one.side))

    running = asyncio.create_task(
        consume(QUEUE, work, pair=pair(both), journal=both.journal, terms=BRISK, concurrency=1)
    )
    await asyncio.wait_for(begun.wait(), 90)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    first = [message for _, message, _ in both.done]
    assert first[:1] == ["m1"], "what was being processed has ended, not been cut off"
    report = await consume(QUEUE, lambda one: None, pair=pair(both), journal=both.journal, **LONG_ENOUGH)
    assert report.total("completed") == 2 - len(first)


async def test_a_second_cancellation_waits_no_longer(both: Stage) -> None:
    await both.send(("s", "m"))
    begun, cut = asyncio.Event(), asyncio.Event()

    async def work(_: ReplicatedMessage) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    messages = consumer(both)
    running = asyncio.create_task(messages.run(work))
    await asyncio.wait_for(begun.wait(), 90)
    running.cancel()
    await asyncio.wait_for(messages._stop.wait(), 10)
    assert not cut.is_set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.wait_for(cut.wait(), 30)


async def test_what_is_configured_wrongly_is_said_when_it_opens(both: Stage, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        await consume(QUEUE, lambda one: None, pair=pair(both), journal="redis:host")
    with pytest.raises(JournalError):
        async with Consumer(QUEUE, pair=pair(both), journal=f"sqlite:{tmp_path}/no/such/folder/j.db"):
            pass
    with pytest.raises(RuntimeError, match="async with"):
        await anext(Consumer(QUEUE, pair=pair(both), journal=both.journal))


async def test_a_journal_by_its_address_is_closed_and_one_of_the_application_stays_open(
    both: Stage, tmp_path: Path
) -> None:
    await both.send(("s", "m"), journal=None)
    report = await consume(
        QUEUE,
        lambda one: None,
        pair=pair(both),
        journal=f"sqlite:{tmp_path}/own.db",
        terms=Terms(),
        until_idle_seconds=3,
    )
    assert report.total("completed") == 1
    assert isinstance(both.journal, SqliteJournal)
    assert [one async for one in both.journal.scan("session")] == []
