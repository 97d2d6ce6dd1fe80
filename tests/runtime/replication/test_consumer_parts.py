"""The parts of a consumer: what it counts, what it still waits for, whom it asks whether anything is left."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.concurrency import end
from sbpair.core.errors import (
    ConnectionLostError,
    JournalError,
    JournalUnavailableError,
    LockLostError,
    ServerBusyError,
    ServiceError,
    SessionUnavailableError,
)
from sbpair.core.events import NotIdleYet, Paused, ReceiveFailed
from sbpair.core.message import NEXT_AVAILABLE_SESSION, MessageState, Received
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import Finished, Terms
from sbpair.core.replication.ownership import SessionState as Became
from sbpair.core.replication.status import Copies, NotRead
from sbpair.core.rewrite import compose
from sbpair.journal.sqlite import SqliteJournal
from sbpair.runtime.replication import consumer
from sbpair.runtime.replication.consumer import ConsumeRequest, Remaining, browse_remaining
from sbpair.runtime.replication.store import SESSION
from tests.fakes import EPOCH, FakeClock, RecordingObserver, virtual_time

TOPIC = "news/Subscriptions/all"


class Shelf:
    """A namespace: what lies in its entities, and which of them cannot be browsed."""

    host = "contoso.example.com"

    def __init__(self, **lying: list[Received]) -> None:
        self.lying = {path.replace("_", "/"): found for path, found in lying.items()}
        self.errors: dict[str, ServiceError] = {}
        self.browsed: list[str] = []
        self.closed = 0

    def receiver(self, path: str, **_: Any) -> Any:
        return Reader(self, path)


class Reader:
    def __init__(self, shelf: Shelf, path: str) -> None:
        self.shelf, self.path, self.source = shelf, path, path

    async def peek(self, most: int, *, from_sequence_number: int = 0) -> list[Received]:
        self.shelf.browsed.append(self.path)
        if self.path in self.shelf.errors:
            raise self.shelf.errors[self.path]
        found = self.shelf.lying.get(self.path, [])
        return [one for one in found if one.sequence_number >= from_sequence_number][:2]

    async def close(self) -> None:
        self.shelf.closed += 1


def lying(number: int, session: str | None, message_id: str | None, at: float | None = None) -> Received:
    payload = compose(body=b"", message_id=message_id or "", session_id=session, scheduled_at=at)
    state = MessageState.ACTIVE if at is None else MessageState.SCHEDULED
    return Received(payload, number, "q", message_id=message_id, session_id=session, state=state)


FINISHED = {("s", "done"), ("s", "later"), ("", "plain")}


async def test_what_lies_on_both_sides_is_counted_once_by_what_it_is() -> None:
    primary = Shelf(
        q=[lying(1, "S", "done"), lying(2, "s", "new"), lying(3, "s", "later", EPOCH + 9), lying(4, None, "plain")]
    )
    secondary = Shelf(q=[lying(1, "S", "done"), lying(2, "s", "other", EPOCH + 5), lying(3, "s", "other", EPOCH + 7)])
    sides: Any = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
    found = await browse_remaining("q", sides, FINISHED, page_seconds=60.0)
    assert found == Remaining(
        complete=True, second_copies=3, active_second_copies=2, scheduled=2, next_at=EPOCH + 5, errors={}
    )
    assert (primary.closed, secondary.closed, set(primary.browsed)) == (1, 1, {"q"})
    assert (await browse_remaining("q", {Side.PRIMARY: primary}, (), page_seconds=60.0)).second_copies == 0  # type: ignore[dict-item]


async def test_a_subscription_is_looked_at_with_its_topic_and_only_its_own_silence_is_the_side_s() -> None:
    shelf = Shelf()
    shelf.lying = {TOPIC: [lying(1, "s", "done")], "news": [lying(1, "s", "x", EPOCH + 3)]}
    sides: Any = {Side.PRIMARY: shelf}
    found = await browse_remaining(TOPIC, sides, FINISHED, page_seconds=60.0)
    assert (found.complete, found.scheduled, found.active_second_copies, found.next_at) == (True, 1, 1, EPOCH + 3)
    shelf.errors["news"] = ServerBusyError("no right")
    found = await browse_remaining(TOPIC, sides, FINISHED, page_seconds=60.0)
    assert (found.complete, dict(found.errors), found.next_at) == (False, {}, None)
    shelf.errors = {TOPIC: ServerBusyError("busy")}
    found = await browse_remaining(TOPIC, sides, FINISHED, page_seconds=60.0)
    assert (found.complete, dict(found.errors)) == (False, {Side.PRIMARY: shelf.errors[TOPIC]})
    assert found.not_seen(4) == Remaining(False, 4, 0, None, EPOCH + 3, found.errors)


class Consumers:
    """A consumer on two shelves with a journal in memory."""

    def __init__(self, path: Path, **request: Any) -> None:
        self.clock, self.observer, self.stop = FakeClock(), RecordingObserver(), asyncio.Event()
        self.shelves = {side: Shelf() for side in Side}
        self.journal = SqliteJournal(path / "journal.db", now=lambda: self.clock.now().timestamp())
        self.request = ConsumeRequest("q", **{"terms": Terms(), "until_idle_seconds": 5.0} | request)
        sides: Any = self.shelves
        self.one = consumer._Consumer(self.request, sides, self.journal, _nothing, self.clock, self.observer, self.stop)


async def _nothing(delivery: Any) -> None:
    return None


def virtual(scenario: Any, path: Path, **request: Any) -> None:
    @virtual_time
    async def told() -> None:
        made = Consumers(path, **request)
        await scenario(made)
        await made.journal.close()

    told()


def test_a_finished_message_has_a_second_copy_out_until_that_is_met(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        one = made.one
        for side, session, message, result in (
            ("primary", "S", "m1", "completed"),
            ("primary", "s", "m2", "failed"),
            ("primary", "s", "m3", "again"),
            ("secondary", "s", "m1", "duplicate"),
            ("secondary", "s", "m2", "lost"),
        ):
            one._count(side, session, message, result)
        assert one._single == {("s", "m2")}
        assert not one._stop.is_set()
        await asyncio.sleep(3.0)
        one._count("secondary", "s", "m2", "dead-lettered")
        assert (one._single, one._active_at, one._stop.is_set()) == (set(), 3.0, False)
        one._count("primary", "s", "m4", "completed")
        assert (one._stop.is_set(), one._ended_by) == (True, "count")
        one._end("idle")
        assert one._ended_by == "count", "the first reason is the one"

    virtual(scenario, tmp_path, max_messages=3)


def test_second_copies_are_minded_only_where_both_sides_are_read_and_it_ends_by_itself(tmp_path: Path) -> None:
    for number, (request, minded) in enumerate(
        (
            ({}, True),
            ({"until_idle_seconds": None}, False),
            ({"until_idle_seconds": None, "for_seconds": 5.0}, True),
            ({"sides": (Side.PRIMARY,)}, False),
        )
    ):

        async def scenario(made: Consumers, minded: bool = minded) -> None:
            assert (made.one._single is not None) is minded
            made.one._count("primary", "s", "m", "completed")

        (folder := tmp_path / str(number)).mkdir()
        virtual(scenario, folder, **request)


@pytest.mark.parametrize(
    ("remaining", "after", "until"),
    [
        (Remaining(True), 0.0, None),
        (Remaining(True, scheduled=1), 0.0, None),
        (Remaining(True, scheduled=1, next_at=EPOCH + 299.0), 0.0, 300.0),
        (Remaining(True, scheduled=1, next_at=EPOCH + 300.0), 0.0, None),
        (Remaining(True, active_second_copies=1), 0.0, 300.0),
        (Remaining(True, active_second_copies=1), 299.0, 300.0),
        (Remaining(True, active_second_copies=1), 300.0, None),
        (Remaining(False, second_copies=1, scheduled=None), 29.0, 30.0),
        (Remaining(False, second_copies=1, scheduled=None), 30.0, None),
        (Remaining(False, second_copies=0, scheduled=None), 0.0, None),
    ],
)
def test_how_long_what_is_still_to_come_is_worth_waiting_for(
    tmp_path: Path, remaining: Remaining, after: float, until: float | None
) -> None:
    async def scenario(made: Consumers) -> None:
        await asyncio.sleep(after)
        made.one._active_at = 0.0
        assert made.one._worth_waiting_for(remaining) == until

    virtual(scenario, tmp_path)


def test_it_is_idle_once_nothing_has_come_no_session_is_open_and_nothing_is_to_come(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        one, loop = made.one, asyncio.get_running_loop()
        working = asyncio.create_task(asyncio.sleep(3.0))
        one._workers.add(working)
        working.add_done_callback(one._workers.discard)
        at = loop.time() + 20.0
        made.shelves[Side.PRIMARY].lying = {"q": [lying(1, "s", "x", EPOCH + at)]}
        loop.call_later(20.5, lambda: made.shelves[Side.PRIMARY].lying.clear())
        loop.call_later(20.5, lambda: one._count("primary", "s", "x", "completed"))
        await one._wait_until_idle()
        assert (one._ended_by, one._stop.is_set()) == ("idle", True)
        assert loop.time() == pytest.approx(20.5 + 5.0, abs=0.3)
        told = made.observer.of(NotIdleYet)
        assert [(event.messages, event.next_at) for event in told] == [(1, EPOCH + at)], "each state is told once"
        assert told[0].at == pytest.approx(EPOCH + 8.0, abs=0.5)

    virtual(scenario, tmp_path)


def test_a_side_that_was_never_heard_is_asked_once_in_the_end(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        one, error = made.one, ServerBusyError("busy")
        one._heard(Side.PRIMARY)
        await one._confirm(Side.PRIMARY)
        assert made.shelves[Side.PRIMARY].browsed == []
        made.shelves[Side.SECONDARY].errors["q"] = error
        await one._confirm(Side.SECONDARY)
        await one._confirm(Side.SECONDARY)
        assert (one._unread, made.shelves[Side.SECONDARY].browsed) == ({Side.SECONDARY: error}, ["q"])
        remaining = await one._look()
        assert (remaining.scheduled, made.shelves[Side.SECONDARY].browsed) == (None, ["q"]), "it is not asked again"
        one._heard(Side.SECONDARY)
        assert one._unread == {}
        remaining = await one._look()
        assert (one._unread, remaining.complete) == ({}, False), "it has answered before"

    virtual(scenario, tmp_path)


def test_what_other_consumers_met_is_asked_of_the_journal_where_a_side_cannot_be_seen(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        one = made.one
        for name in ("both", "one"):
            one._count("primary", "s", name, "completed")
        store = one._setup.store
        await store.record("s", Finished("both", Became.COMPLETED, EPOCH), ("primary", "secondary"))
        await store.record("s", Finished("one", Became.COMPLETED, EPOCH), ("primary",))
        assert (await one._look()).second_copies == 0
        assert one._single == {("s", "both"), ("s", "one")}, "where all was seen nobody else is asked"
        made.shelves[Side.SECONDARY].errors["q"] = ConnectionLostError("gone")
        remaining = await one._look()
        assert (remaining.second_copies, one._single) == (1, {("s", "one")})
        assert one._remaining is remaining

    virtual(scenario, tmp_path)


def test_a_journal_that_is_down_is_tried_until_the_consumer_is_stopped(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        tries: list[float] = []

        async def fails(hosts: list[str]) -> None:
            tries.append(made.clock.monotonic())
            if len(tries) < 3:
                raise JournalUnavailableError("down")

        made.one._setup = SimpleNamespace(store=SimpleNamespace(open=fails))  # type: ignore[assignment]
        await made.one._open_journal()
        paused = made.observer.of(Paused)
        assert [one.seconds for one in paused] == [consumer.JOURNAL_DOWN.seconds(n) for n in (1, 2)]
        assert tries[1:] == [paused[0].seconds, paused[0].seconds + paused[1].seconds]
        tries.clear()
        asyncio.get_running_loop().call_later(0.01, made.stop.set)
        began = made.clock.monotonic()
        await made.one._open_journal()
        assert made.clock.monotonic() == pytest.approx(began + 0.01), "a stop ends the pause"
        await made.one._open_journal()
        assert len(tries) == 1

    virtual(scenario, tmp_path)


def test_a_side_that_fails_is_paused_longer_each_time_up_to_a_bound(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        for failures in (1, 4, 9):
            await made.one._pause(Side.PRIMARY, ServerBusyError("busy"), failures)
        paused = [one.retry_after_seconds for one in made.observer.of(ReceiveFailed)]
        assert paused == [consumer.SYPHON.seconds(n) for n in (1, 4, 4)]
        assert made.clock.monotonic() == pytest.approx(sum(one or 0.0 for one in paused))

    virtual(scenario, tmp_path)


def test_a_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        await made.one._wait_until_over()
        assert (made.one._ended_by, made.clock.monotonic()) == ("time", 7.0)

    virtual(scenario, tmp_path, for_seconds=7.0)


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"concurrency": 0}, {"acceptors": 0}, {"sides": ()}])
def test_a_consumer_has_at_least_one_of_each(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="1 or more"):
        ConsumeRequest("q", **wrong)
    ConsumeRequest("q", sessions=1, concurrency=1, acceptors=1)


class Script:
    """A side whose receivers of the next session do what the script says, one after another; then they wait."""

    host = "contoso.example.com"

    def __init__(self, *script: Any) -> None:
        self.script, self.asked, self.closed = list(script), list[float](), 0

    def receiver(self, path: str, *, session_id: str | None = None) -> Any:
        assert session_id == NEXT_AVAILABLE_SESSION
        return self

    async def receive(self, most: int, *, wait_seconds: float) -> list[Received]:
        self.asked.append(asyncio.get_running_loop().time())
        if not self.script:
            await asyncio.Event().wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def close(self) -> None:
        self.closed += 1


def test_sessions_are_asked_for_by_one_until_some_come_and_then_by_all(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        one, worked = made.one, list[tuple[Side, list[Received]]]()
        message = lying(1, "s", "m")
        none, busy = SessionUnavailableError("none waits"), ServerBusyError("busy")
        script = Script(none, busy, busy, LockLostError("lost"), [], [message])
        one._sides[Side.PRIMARY] = script  # type: ignore[assignment]
        over = asyncio.Event()

        async def work_on(side: Side, receiver: Any, first: list[Received]) -> None:
            worked.append((side, first))
            await over.wait()
            one._room[side].release()

        one._work_on = work_on  # type: ignore[method-assign]
        asking = [asyncio.create_task(one._accept_on(Side.PRIMARY, always=always)) for always in (True, False)]
        await asyncio.sleep(0.05)
        assert len(script.asked) == 1, "the other one waits until sessions come"
        await asyncio.sleep(10.0)
        first, second = consumer.SYPHON.seconds(1), consumer.SYPHON.seconds(2)
        again = consumer.ASK_AGAIN_SECONDS
        assert script.asked[:5] == pytest.approx(
            [0.0, again, again + first, again + first + second, 2 * again + first + second]
        )
        assert [
            (event.queue, event.error_code, event.retry_after_seconds) for event in made.observer.of(ReceiveFailed)
        ] == [("q (primary)", "server-busy", first), ("q (primary)", "server-busy", second)]
        assert (worked, one._unread, one._answered) == ([(Side.PRIMARY, [message])], {}, {Side.PRIMARY})
        assert one._session_requests == len(script.asked) == 7, "what is left of the room is asked for"
        assert (script.closed, len(one._workers), one._busy[Side.PRIMARY].is_set()) == (5, 1, True)
        over.set()
        await asyncio.sleep(1.0)
        assert len(script.asked) == 8, "a place is free again"
        for task in asking:
            task.cancel()

    virtual(scenario, tmp_path, sessions=2)


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (JournalError("refused"), True),
        (ValueError("a bug"), True),
        (ConnectionLostError("silence"), False),
        (LockLostError("lost"), False),
    ],
)
def test_a_session_that_ends_gives_its_place_back_whatever_ended_it(
    tmp_path: Path, error: Exception, fatal: bool
) -> None:
    class Failing:
        async def read(self, session_id: str) -> Any:
            assert (session_id, one_of[0]._room[Side.PRIMARY].locked()) == ("", True)
            raise error

    class Held:
        async def close(self) -> None:
            return

    one_of: list[Any] = []

    async def scenario(made: Consumers) -> None:
        one = made.one
        one_of.append(one)
        one._setup = replace(one._setup, store=Failing())  # type: ignore[arg-type]
        await one._room[Side.PRIMARY].acquire()
        await asyncio.sleep(3.0)
        await one._work_on(Side.PRIMARY, Held(), [lying(1, None, "m")])  # type: ignore[arg-type]
        assert not one._room[Side.PRIMARY].locked()
        assert (one._active_at, one._fatal is error, one._stop.is_set()) == (3.0, fatal, fatal)

    virtual(scenario, tmp_path, sessions=1)


def test_a_place_is_free_for_another_request_before_a_link_has_closed(tmp_path: Path) -> None:
    async def scenario(made: Consumers) -> None:
        class Slow(Script):
            async def close(self) -> None:
                await super().close()
                await asyncio.sleep(5.0)

        made.one._sides[Side.PRIMARY] = script = Slow([], [])  # type: ignore[assignment]
        asking = [asyncio.create_task(made.one._accept_on(Side.PRIMARY, always=True)) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert (script.asked, script.closed) == ([0.0, 0.0], 2)
        await asyncio.sleep(5.0)
        assert script.asked == [0.0, 0.0, 5.0], "and there is one place"
        await end(*asking)

    virtual(scenario, tmp_path, sessions=1)


# The whole of it: two sides, a handler, an end.


class Namespace:
    """A side whose sessions are handed out one after another; then none waits, or it does not answer."""

    host = "contoso.example.com"

    def __init__(self, *sessions: list[Received], error: Exception | None = None, **lying: list[Received]) -> None:
        self.sessions, self.shelf = list(sessions), Shelf(**lying)
        self.error = error or SessionUnavailableError("none waits")
        self.settled: list[tuple[str | None, str]] = []

    def receiver(self, path: str, *, session_id: str | None = None) -> Any:
        return Reader(self.shelf, path) if session_id is None else Link(self)


class Link:
    def __init__(self, side: Namespace) -> None:
        self.side, self.opened = side, False

    async def receive(self, most: int, *, wait_seconds: float) -> list[Received]:
        if self.opened:
            await asyncio.sleep(wait_seconds)
            return []
        if not self.side.sessions:
            await asyncio.sleep(1.0)
            raise self.side.error
        self.opened = True
        return self.side.sessions.pop(0)

    async def settle(self, received: Received, disposition: Any, *, reason: str, description: str) -> None:
        self.side.settled.append((received.message_id, disposition.value))

    async def renew_session(self) -> float:
        return 0.0

    async def close(self) -> None:
        return


def running(path: Path, primary: Namespace, secondary: Namespace, then: Any, **request: Any) -> None:
    """Run a consumer over both sides to its end, and tell `then` what was handled and reported."""

    async def scenario(made: Consumers) -> None:
        handled: list[str] = []

        async def handle(delivery: Any) -> None:
            handled.append(f"{delivery.session_id}/{delivery.message_id} from {delivery.region}")

        def run() -> Any:
            return consumer.consume(
                made.request,
                primary=primary,  # type: ignore[arg-type]
                secondary=secondary,  # type: ignore[arg-type]
                journal=made.journal,
                handler=handle,
                clock=made.clock,
                observer=made.observer,
                stop=made.stop,
            )

        asyncio.get_running_loop().call_later(1000.0, made.stop.set)  # whatever is wrong, it ends
        await then(made, run, handled)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing goes on afterwards"

    virtual(scenario, path, **request)


def test_each_message_is_handled_once_and_both_copies_are_settled(tmp_path: Path) -> None:
    primary = Namespace([lying(1, "S", "m1")], [lying(2, None, "m2")])
    secondary = Namespace(q=[lying(9, None, "m2", EPOCH + 500.0)])

    async def then(made: Consumers, run: Any, handled: list[str]) -> None:
        asyncio.get_running_loop().call_later(6.0, secondary.sessions.append, [lying(1, "s", "m1")])
        report = await run()
        assert sorted(handled) == ["/m2 from primary", "S/m1 from primary"]
        assert report.counts == (Copies("primary", "completed", 2), Copies("secondary", "duplicate", 1))
        assert (report.ended_by, report.not_read, report.seconds) == ("time", (), 30.0)
        assert (report.second_copies_out, report.scheduled, report.next_scheduled_at) == (1, 0, EPOCH + 500.0)
        assert report.session_requests > 3
        assert sorted(primary.settled) == [("m1", "complete"), ("m2", "complete")]

    running(tmp_path, primary, secondary, then, for_seconds=30.0, until_idle_seconds=None)


def test_a_side_that_never_answers_is_told_and_what_lies_there_is_not_known(tmp_path: Path) -> None:
    error = ServerBusyError("busy")
    primary, secondary = Namespace([lying(1, "s", "m1")]), Namespace(error=error)
    secondary.shelf.errors["q"] = error

    async def then(made: Consumers, run: Any, handled: list[str]) -> None:
        report = await run()
        assert (report.ended_by, report.not_read) == ("idle", (NotRead("secondary", error),))
        assert (report.second_copies_out, report.scheduled, report.next_scheduled_at) == (1, None, None)
        assert made.clock.monotonic() >= 30.0, "its second copy is waited for"

    running(tmp_path, primary, secondary, then)


@pytest.mark.parametrize(
    ("request_", "ended_by", "out"),
    [
        ({"max_messages": 1}, "count", None),
        ({"until_idle_seconds": None}, "stop", None),
        ({"sides": (Side.PRIMARY,)}, "idle", None),
        ({"sides": (Side.PRIMARY,), "for_seconds": 9.0, "until_idle_seconds": None}, "time", None),
    ],
)
def test_what_ends_a_consumer_is_told_and_second_copies_only_where_both_sides_are_read(
    tmp_path: Path, request_: dict[str, Any], ended_by: str, out: int | None
) -> None:
    primary, secondary = Namespace([lying(1, "s", "m1")], q=[lying(5, "s", "m9", EPOCH + 1e5)]), Namespace()

    async def then(made: Consumers, run: Any, handled: list[str]) -> None:
        asyncio.get_running_loop().call_later(12.0, made.stop.set)
        report = await run()
        assert (report.ended_by, handled, report.second_copies_out) == (ended_by, ["s/m1 from primary"], out)
        looked = ended_by in ("idle", "time")
        assert (report.scheduled, report.next_scheduled_at) == ((1, EPOCH + 1e5) if looked else (None, None))
        assert bool(secondary.shelf.browsed) is False

    running(tmp_path, primary, secondary, then, **request_)


@pytest.mark.parametrize("error", [ValueError("a bug"), JournalError("refused")])
def test_what_breaks_an_acceptor_or_the_journal_is_raised(tmp_path: Path, error: Exception) -> None:
    primary = Namespace([lying(1, "s", "m1")])

    async def then(made: Consumers, run: Any, handled: list[str]) -> None:
        if isinstance(error, JournalError):

            async def read(kind: str, key: str) -> Any:
                if kind == SESSION:
                    raise error
                return await type(made.journal).read(made.journal, kind, key)

            made.journal.read = read  # type: ignore[method-assign]
        else:
            primary.error = error
        with pytest.raises(type(error), match=str(error)):
            await run()

    running(tmp_path, primary, Namespace(), then, until_idle_seconds=None)


def test_a_handler_gets_its_time_when_a_consumer_is_stopped(tmp_path: Path) -> None:
    primary = Namespace([lying(1, "s", "m1")])

    async def then(made: Consumers, run: Any, handled: list[str]) -> None:
        asyncio.get_running_loop().call_later(3.0, made.stop.set)
        slow = asyncio.Event()

        async def handle(delivery: Any) -> None:
            await asyncio.sleep(8.0)
            slow.set()

        report = await consumer.consume(
            made.request,
            primary=primary,  # type: ignore[arg-type]
            secondary=Namespace(),  # type: ignore[arg-type]
            journal=made.journal,
            handler=handle,
            clock=made.clock,
            observer=made.observer,
            stop=made.stop,
        )
        assert (slow.is_set(), report.counts, made.clock.monotonic()) == (
            True,
            (Copies("primary", "completed", 1),),
            8.0,
        )

    running(tmp_path, primary, Namespace(), then, until_idle_seconds=None)
