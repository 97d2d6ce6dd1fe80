"""The consumer of active/active without namespaces: what it asks for, how a callback is called, how it ends."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sbpair.aio import Consumer, ReplicatedMessage, RetryLater, Terms
from sbpair.amqp.sections import build
from sbpair.clients.consumer import opened
from sbpair.core.errors import JournalError, UsageError
from sbpair.core.pairing import Side
from sbpair.journal.sqlite import SqliteJournal
from sbpair.runtime.replication.consumer import ConsumeRequest
from sbpair.runtime.replication.handlers import Delivery
from tests.clients.test_behind_calls import PAIR


def delivery(message_id: str = "m") -> Delivery:
    return Delivery(build(data=[b"x"]), "s", message_id, "primary:1", Side.PRIMARY, 1, 1, 1)


class Alone(Consumer):
    """Its runtime hands out some messages, one after another, and then ends as it is told."""

    def __init__(self, *messages: str, ends: BaseException | None = None) -> None:
        super().__init__("boxes", pair=PAIR, journal="sqlite:journal.db")
        self.messages, self.ends = messages, ends
        self.outcomes: dict[str, BaseException | None] = {}

    async def _start(self, handler: Any) -> Any:
        self._running = asyncio.create_task(self._each(handler))
        self._running.add_done_callback(lambda _: self._queue.put_nowait(None))
        return self._running

    async def _each(self, handler: Any) -> Any:
        for message in self.messages:
            self.outcomes[message] = None
            try:
                await handler(delivery(message))
            except Exception as error:  # noqa: BLE001 - what the test looks at
                self.outcomes[message] = error
        if self.ends is not None:
            raise self.ends
        return "report"


def test_what_is_given_is_what_the_runtime_is_asked_for() -> None:
    plain = Consumer("boxes", pair=PAIR, journal="sqlite:j")
    assert plain._request == ConsumeRequest("boxes", sessions=64, concurrency=1)
    terms = Terms(max_attempts=2)
    given: dict[str, Any] = {
        "terms": terms, "sides": (Side.SECONDARY,), "sessions": 3, "concurrency": 4, "until_idle_seconds": 5.0,
        "max_messages": 6, "name": "me",
    }  # fmt: skip
    named = Consumer("news/Subscriptions/all", pair=PAIR, journal="sqlite:j", **given)
    assert named._request == ConsumeRequest("news/Subscriptions/all", **given)
    with pytest.raises(UsageError):
        Consumer("boxes", pair=PAIR, journal="sqlite:j", sides=())


async def test_a_callback_is_a_coroutine_function_or_runs_in_a_thread_and_may_give_something_to_wait_for() -> None:
    ran: list[tuple[str, bool]] = []
    here = threading.get_ident()

    def note(work: ReplicatedMessage) -> None:
        ran.append((work.message_id, threading.get_ident() == here))

    async def coroutine(work: ReplicatedMessage) -> None:
        note(work)

    def giving(work: ReplicatedMessage) -> Any:
        note(work)
        return coroutine(work)

    for process, expected in (
        (note, [("m", False)]),
        (coroutine, [("m", True)]),
        (giving, [("m", False), ("m", True)]),
    ):
        consumer = Alone("m")
        assert await consumer.run(process) == "report"
        assert (ran, consumer.report, consumer._stop.is_set()) == (expected, "report", True)
        ran.clear()

    def failing(work: ReplicatedMessage) -> None:
        raise OSError("why")

    consumer = Alone("m", "n")
    await consumer.run(failing)
    assert [str(one) for one in consumer.outcomes.values()] == ["why", "why"]


async def test_an_end_by_an_error_is_raised_by_the_loop_and_by_the_callback_form_alone() -> None:
    with pytest.raises(JournalError, match="refused"):
        await Alone(ends=JournalError("refused")).run(lambda work: None)
    async with Alone("m", ends=JournalError("refused")) as consumer:
        async with await anext(consumer):
            pass
        for _ in range(2):
            with pytest.raises(JournalError, match="refused"):
                await anext(consumer)
            consumer._queue.put_nowait(None)
    assert consumer.report is None


async def test_leaving_the_block_gives_back_what_waits_and_waits_for_what_was_begun() -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    consumer = Alone("m")
    consumer._stack.push_async_callback(close)
    async with consumer:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (isinstance(consumer.outcomes["m"], RetryLater), consumer.report, closed) == (True, "report", ["closed"])
    assert [one async for one in consumer] == []


async def test_a_message_s_block_ends_with_what_became_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def of(error: BaseException | None) -> Any:
        work = ReplicatedMessage(delivery())
        assert (work.session_id, work.message_id, work.side, work.attempt, work.fence) == ("s", "m", Side.PRIMARY, 1, 1)
        assert b"".join(work.message.body) == b"x"
        try:
            async with work:
                assert not work.waits
                if error is not None:
                    raise error
        except BaseException as raised:  # noqa: BLE001 - what the test looks at
            return raised, work._outcome.exception()
        return None, work._outcome.exception()

    assert await of(None) == (None, None)
    failed, later, ended = OSError("why"), RetryLater("not yet"), SystemExit(1)
    assert await of(failed) == (None, failed)
    assert [one.getMessage() for one in caplog.records] == ["Message m failed in attempt 1."]
    caplog.clear()
    assert await of(later) == (None, later)
    raised, told = await of(ended)
    assert (raised, type(told), caplog.records) == (ended, RetryLater, [])
    cancelled = asyncio.CancelledError()
    raised, told = await of(cancelled)
    assert (raised, type(told)) == (cancelled, RetryLater), "nobody has taken it over"


class Journal:
    def __init__(self, error: JournalError | None = None) -> None:
        self.error, self.asked = error, 0

    async def check(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


async def test_a_journal_is_asked_first_and_closed_by_whoever_opened_it(tmp_path: Path) -> None:
    ended: list[str] = []
    journal: Any = Journal()
    async with AsyncExitStack() as stack:
        sides, found = await opened(stack, PAIR, journal)
        assert (sides.pair, found, journal.asked) == (PAIR, journal, 1)
        _, nothing = await opened(stack, PAIR, None)
        assert nothing is None
        _, named = await opened(stack, PAIR, f"sqlite:{tmp_path / 'journal.db'}")
        assert isinstance(named, SqliteJournal)
        assert named._connection is not None
    assert named._connection is None
    stack = AsyncExitStack()
    stack.callback(ended.append, "closed")
    refusing: Any = Journal(JournalError("refused"))
    with pytest.raises(JournalError, match="refused"):
        await opened(stack, PAIR, refusing)
    assert ended == ["closed"], "nothing is left open"
