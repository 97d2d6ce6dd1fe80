"""The parts of a move session by session: what is looked at, asked for, left, and when a state goes along."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sbpair.concurrency import waits
from sbpair.core.entities import QueueFacts, QueueSettings, TopicFacts
from sbpair.core.errors import (
    ArgumentRefusedError,
    EntityNotFoundError,
    LockLostError,
    ServerBusyError,
    ServiceError,
    SessionUnavailableError,
)
from sbpair.core.message import MessageState, Received
from sbpair.core.transfer.ledger import STATE_MOVED
from sbpair.core.transfer.report import FILTERED_OUT, DrainReport, Left
from sbpair.core.transfer.resend import HELD, NOT_REACHED, OTHER_STATE, STATE_STAYS
from sbpair.core.transfer.state import Forward, Leave, key_of
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.runtime.transfer import move_sessions
from sbpair.runtime.transfer.drain import TransferRequest
from sbpair.runtime.transfer.ledger import LedgerError
from sbpair.runtime.transfer.move_sessions import SessionMove, reported_later
from tests.fakes import FakeClock, virtual_time


@dataclass
class Entity:
    """An entity that hands out messages by session: what lies in it, and the states of its sessions."""

    messages: list[Received] = field(default_factory=list)
    states: dict[str, bytes] = field(default_factory=dict)
    spellings: list[str] = field(default_factory=list)
    error: ServiceError | None = None
    """Of whoever opens a session."""
    lock_lost: bool = False
    page: int = 100
    browsed: list[int] = field(default_factory=list)
    opened: list[str | None] = field(default_factory=list)
    closed: int = 0

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> "Session":
        self.opened.append(session_id)
        return Session(self, path, session_id)


@dataclass
class Session:
    entity: Entity
    source: str
    session_id: str | None

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        self.entity.browsed.append(from_sequence_number)
        found = [one for one in self.entity.messages if one.sequence_number >= from_sequence_number]
        return found[: self.entity.page]

    async def session_ids(self) -> list[str]:
        return self.entity.spellings

    async def session_state(self) -> bytes | None:
        if self.entity.error is not None:
            raise self.entity.error
        return self.entity.states.get(self.session_id or "")

    async def set_session_state(self, state: bytes | None) -> None:
        if state is None:
            self.entity.states.pop(self.session_id or "", None)
        else:
            self.entity.states[self.session_id or ""] = state

    async def renew_session(self) -> float:
        if self.entity.lock_lost:
            raise LockLostError("lost")
        return 0.0

    async def close(self) -> None:
        self.entity.closed += 1


class Lines:
    """A ledger: its lines, and what it has as sent."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.forwarded: set[Any] = set()
        self.full = False

    async def record(self, lines: Sequence[Any]) -> None:
        if self.full:
            raise LedgerError("full")
        self.lines += lines


class Job:
    """A `MoveJob` whose messages are moved by the test."""

    def __init__(self, source: Entity, target: Entity, **request: Any) -> None:
        self.request = TransferRequest(("q",), **request)
        self.path = "q"
        self.ends: Any = type("Ends", (), {"source": source, "target": target, "transactions": None})()
        self.clock, self.stop = FakeClock(), asyncio.Event()
        self.seen = DestinationSeen("to", queue=QueueFacts("to", QueueSettings(requires_session=True)))
        self.states_to: str | None = None
        self.session_states = True
        self.ledger: Any = None
        self.lock_seconds: float | None = 30.0
        self.recorded: set[Any] = set()
        self.moves: list[tuple[TransferRequest, Any]] = []
        self.report = DrainReport(forwarded=1, confirmed_empty=True)
        self.left: list[TransferRequest | None] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def judge(self, message: Received) -> Any:
        if message.content_type == "other":
            return Leave(FILTERED_OUT)
        return Leave("because") if message.content_type else Forward("to", b"")  # type: ignore[call-arg]

    def less(self, request: TransferRequest, parts: Sequence[DrainReport]) -> TransferRequest | None:
        return self.left.pop(0) if self.left else None if self.stop.is_set() else request

    async def drained(self, request: TransferRequest, source: Any, mover: Any) -> DrainReport:
        self.moves.append((request, source))
        self.meanwhile()
        return self.report


@dataclass(frozen=True)
class Message:
    """A browsed message."""

    sequence_number: int
    session_id: str | None
    state: MessageState = MessageState.ACTIVE
    content_type: str = ""
    source: str = "q"
    message_id: str | None = None
    enqueued_at: float | None = None
    origin: None = None


def message(number: int, session: str | None, state: MessageState = MessageState.ACTIVE, kind: str = "") -> Any:
    return Message(number, session, state, kind)


@virtual_time
async def test_messages_are_counted_by_session_whatever_its_spelling_and_state() -> None:
    source = Entity(
        [
            message(1, "A"),
            message(2, "a"),
            message(3, "b", kind="why"),
            message(4, "b", kind="other"),
            message(5, "c", MessageState.DEFERRED),
            message(6, "a", MessageState.SCHEDULED),
            message(7, "A", kind="why"),
            message(8, None),
            message(9, "xY"),
        ],
        spellings=["a", "D", "XY"],
    )
    job = Job(source, Entity())
    look = await SessionMove(job)._look_for_sessions()  # type: ignore[arg-type]
    assert look.held == {"A": 2, "": 1, "xY": 1, "D": 0}
    assert {key[1] for key in look.going} == {1, 2, 8, 9}
    assert look.unopened == DrainReport(left=(Left("because", 1),), filtered_out=1)
    job.request = replace(job.request, deferred=True, scheduled=True)
    job.session_states = False
    look = await SessionMove(job)._look_for_sessions()  # type: ignore[arg-type]
    assert look.held == {"A": 2, "": 1, "xY": 1, "c": 1}, "what is scheduled goes by another way"
    source.messages = [message(1, "a")]
    assert (await SessionMove(job)._look_for_sessions()).unopened is None  # type: ignore[arg-type]


@virtual_time
async def test_sessions_of_the_next_messages_are_found_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_sessions, "PAGES_AT_ONCE", 2)
    source = Entity([message(n, "Aa" if n % 2 else "aA") for n in range(1, 8)], page=2)
    source.messages[1:1] = []
    source.messages.append(message(8, "late"))
    source.messages.append(message(9, "gone", MessageState.DEFERRED))
    move = SessionMove(Job(source, Entity()))  # type: ignore[arg-type]
    found, number = await move._sessions_from(1)
    assert ([*found], number, source.closed) == (["aa"], 5, 1)
    found, number = await move._sessions_from(number)
    assert ([*found], number) == (["aa", "late"], 9)
    assert await move._sessions_from(number) == ({}, 1), "then from the first again"
    keys = {key_of(one) for one in source.messages[:3]}
    gone = {("q", 99, None, -1)}
    assert await SessionMove(job_with(source, keys | gone))._recorded_here() == keys  # type: ignore[arg-type]
    source.browsed.clear()
    assert await SessionMove(job_with(source, {("q", 2, None, -1)}))._recorded_here() != set()  # type: ignore[arg-type]
    assert max(source.browsed) <= 2, "it is browsed to the last that is recorded"


def job_with(source: Entity, recorded: set[Any]) -> Job:
    job = Job(source, Entity())
    job.recorded = recorded
    return job


@virtual_time
async def test_sessions_go_side_by_side_unless_a_limit_is_for_all_of_them() -> None:
    source = Entity()
    job = Job(source, Entity())
    look = move_sessions._Look({"b": 2, "a": 1}, frozenset(), DrainReport(filtered_out=3))
    parts = await SessionMove(job)._sessions(job.request, look)  # type: ignore[arg-type]
    assert [one.filtered_out for one in parts] == [3, 0, 0]
    assert sorted(source.opened, key=str) == ["a", "b"]
    nothing = move_sessions._Look({}, frozenset(), None)
    for limits in ({}, {"max_messages": 5}):
        request = replace(job.request, **limits)
        assert await SessionMove(job)._sessions(request, nothing) == [DrainReport(confirmed_empty=True)]  # type: ignore[arg-type]
    for limits in ({"max_messages": 5}, {"rate_per_second": 1.0}, {"budget_per_second": 1.0}):
        job.moves.clear()
        job.left = [replace(job.request, max_messages=4), None]
        parts = await SessionMove(job)._sessions(replace(job.request, **limits), look)  # type: ignore[arg-type]
        assert [one.max_messages for one, _ in job.moves] == [4], "what is left of the limit"
        assert [one.ended_by for one in parts] == [parts[0].ended_by, parts[1].ended_by, "count"]
    job.stop.set()
    job.left = [None]
    parts = await SessionMove(job)._sessions(replace(job.request, max_messages=5), look)  # type: ignore[arg-type]
    assert parts[-1].ended_by == "stop"


@virtual_time
async def test_a_session_that_cannot_be_had_is_told_and_closed() -> None:
    source = Entity()
    job = Job(source, Entity())
    for error, left in ((SessionUnavailableError("held"), (Left(HELD, 2),)), (ServerBusyError("busy"), ())):
        source.error = error
        report = await SessionMove(job)._one_session("a", 2, job.request)  # type: ignore[arg-type]
        assert report.left == left
        assert [(one.queue, one.error) for one in report.failures] == [("session a of q", error)] * (not left)
    source.error = SessionUnavailableError("held")
    report = await SessionMove(job)._one_session("a", 0, job.request)  # type: ignore[arg-type]
    assert report.left == (Left(HELD, 1),), "its state is there at least"
    assert source.closed == 3
    job.stop.set()
    report = await SessionMove(job)._one_session("a", 2, job.request)  # type: ignore[arg-type]
    assert (report.ended_by, report.left, len(source.opened)) == ("stop", (Left(NOT_REACHED, 2),), 3)


@virtual_time
async def test_a_state_goes_before_the_messages_and_is_cleared_once_nothing_is_left() -> None:
    source, target = Entity(states={"a": b"s"}), Entity()
    job = Job(source, target, with_dead_letter=True, in_flight_messages=9_999)
    job.ledger = Lines()

    def seen_by_the_move() -> None:
        assert (target.states, source.states) == ({"a": b"s"}, {"a": b"s"})

    job.meanwhile = seen_by_the_move
    report = await SessionMove(job)._one_session("a", 2, job.request)  # type: ignore[arg-type]
    assert (report.session_states, report.forwarded, report.confirmed_empty) == (1, 1, True)
    assert (source.states, target.states) == ({}, {"a": b"s"})
    [(request, moved_from)] = job.moves
    assert (request.in_flight_messages, request.with_dead_letter, request.idle_seconds) == (250, False, 0.0)
    assert moved_from.wait_seconds == move_sessions.SESSION_IDLE_SECONDS
    [line] = job.ledger.lines
    assert (line.message_id, line.session_id, line.outcome, line.destination) == ("a", "a", STATE_MOVED, "to")


@virtual_time
async def test_a_state_that_changed_or_belongs_to_messages_that_are_left_is_not_cleared() -> None:
    for meanwhile, empty, states, left in (
        (b"other", True, b"other", (Left(OTHER_STATE, 1),)),
        (b"s", False, b"s", ()),
    ):
        source, target = Entity(states={"a": b"s"}), Entity()
        job = Job(source, target)
        job.report = DrainReport(forwarded=1, confirmed_empty=empty)
        job.meanwhile = lambda source=source, state=meanwhile: source.states.update(a=state)  # type: ignore[misc]
        report = await SessionMove(job)._one_session("a", 2, job.request)  # type: ignore[arg-type]
        assert (source.states, report.left) == ({"a": states}, left)
        assert report.session_states == (not left)
    source, target = Entity(states={"a": b"s"}), Entity(states={"a": b"mine"})
    job = Job(source, target)
    for messages, count in ((2, 2), (0, 1)):
        report = await SessionMove(job)._one_session("a", messages, job.request)  # type: ignore[arg-type]
        assert (report.left, job.moves) == ((Left(OTHER_STATE, count),), [])
    job.session_states = False
    report = await SessionMove(job)._one_session("a", 2, job.request)  # type: ignore[arg-type]
    assert (report, source.states) == (job.report, {"a": b"s"})


@virtual_time
async def test_a_state_without_messages_goes_alone_and_a_failure_to_clear_it_is_told() -> None:
    source, target = Entity(states={"a": b"s"}), Entity()
    job = Job(source, target)
    report = await SessionMove(job)._one_session("a", 0, job.request)  # type: ignore[arg-type]
    assert (report.session_states, report.confirmed_empty, job.moves) == (1, True, [])
    source, target = Entity(states={"a": b"s"}), Entity()
    job = Job(source, target)
    job.meanwhile = lambda: setattr(source, "error", ServerBusyError("busy"))
    report = await SessionMove(job)._one_session("a", 1, job.request)  # type: ignore[arg-type]
    assert (report.forwarded, report.confirmed_empty) == (1, False)
    assert [one.queue for one in report.failures] == ["session a of q"]
    assert report.session_states == 0


@virtual_time
async def test_where_a_state_is_placed() -> None:
    async def placed(job: Job) -> str | None:
        return await SessionMove(job)._place_state("A", b"s")  # type: ignore[arg-type]

    def job_to(target: Entity, seen: DestinationSeen, states_to: str | None = None) -> Job:
        job = Job(Entity(), target)
        job.seen, job.states_to = seen, states_to
        return job

    plain = DestinationSeen("to", queue=QueueFacts("to", QueueSettings()))
    ordered = DestinationSeen("to", queue=QueueFacts("to", QueueSettings(requires_session=True)))
    topic = DestinationSeen("to", topic=TopicFacts("to"))
    unknown = DestinationSeen("to")
    assert await placed(job_to(Entity(), plain)) == STATE_STAYS
    assert await placed(job_to(Entity(), topic)) == STATE_STAYS
    target = Entity()
    assert await placed(job_to(target, topic, "to/Subscriptions/s")) is None
    assert target.states == {"A": b"s"}
    for there, stays in ((b"s", None), (b"mine", OTHER_STATE)):
        target = Entity(states={"A": there})
        assert await placed(job_to(target, ordered)) == stays
        assert target.states == {"A": there}
    for seen, error, stays in (
        (unknown, ArgumentRefusedError("no sessions"), STATE_STAYS),
        (unknown, EntityNotFoundError("gone"), STATE_STAYS),
        (unknown, ServerBusyError("busy"), "cannot be set at the destination"),
        (ordered, ArgumentRefusedError("no"), "cannot be set at the destination"),
    ):
        assert stays in (await placed(job_to(Entity(error=error), seen)) or "")
    job = job_to(target := Entity(), ordered)
    job.ledger = Lines()
    assert await placed(job) is None
    target.states["A"] = b"changed by a receiver"
    assert await placed(job) is None, "the ledger has it"
    [line] = job.ledger.lines
    assert (line.message_id, target.states["A"]) == ("a", b"changed by a receiver")
    full = job_to(Entity(), ordered)
    full.ledger = Lines()
    full.ledger.full = True
    with pytest.raises(LedgerError):
        await placed(full)
    assert full.ledger.forwarded == set(), "what is not written down is done again"
    job.ledger.forwarded = {move_sessions._key_of_line(replace(line, message_id="A"))}
    assert await placed(job) is None, "nor the line of an earlier build"
    assert len(job.ledger.lines) == 1


@virtual_time
async def test_sessions_are_looked_for_again_as_long_as_messages_come() -> None:
    source = Entity([message(1, "a")])
    job = Job(source, Entity(), idle_seconds=5.0)
    job.session_states = False
    loop, sentences = asyncio.get_running_loop(), list[str]()
    loop.call_later(1.0, lambda: sentences.extend(one.sentence for one in waits()))
    loop.call_later(3.0, lambda: source.messages.append(message(2, "b")))
    job.report = DrainReport(forwarded=1, left=(Left("why", 1),), confirmed_empty=True)
    parts = await SessionMove(job).moved_until_idle(job.request)  # type: ignore[arg-type]
    assert [one.left for one in parts] == [(), (Left("why", 1),), (Left("why", 1),)], "the last pass tells what is left"
    assert loop.time() == pytest.approx(4.0 + 5.0)
    assert [bool(one) for one in sentences] == [True], "what it waits for is told from the first pause on"
    assert [session for session in source.opened if session] == ["a", "a", "b"]
    job.left = [None]
    began = loop.time()
    await SessionMove(job).moved_until_idle(job.request)  # type: ignore[arg-type]
    assert loop.time() == began, "nothing more is asked for"


@virtual_time
async def test_the_lock_of_a_session_is_kept_until_its_end() -> None:
    source = Entity(states={"a": b"s"})
    job = Job(source, Entity())
    job.lock_seconds = 9.0
    renewed: list[float] = []

    class Renewing(Session):
        async def renew_session(self) -> float:
            renewed.append(asyncio.get_running_loop().time())
            return 0.0

    async def slow(request: Any, source: Any, mover: Any) -> DrainReport:
        await asyncio.sleep(7.0)
        return DrainReport(confirmed_empty=True)

    job.drained = slow  # type: ignore[method-assign]
    receiver = Renewing(source, "q", "a")
    await SessionMove(job)._held_session(receiver, "a", 1, job.request, None)  # type: ignore[arg-type]
    await asyncio.sleep(100.0)
    assert renewed == [3.0, 6.0]


@virtual_time
async def test_sessions_are_followed_one_link_each_until_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_sessions, "MOST_SESSIONS", 2)
    source = Entity([message(1, "a"), message(2, "A"), message(3, "b"), message(4, "c")], states={"A": b"s"})
    target = Entity()
    job, gone = Job(source, target), {("q", 99, None, -1)}
    job.recorded = {("q", 1, None, -1)} | gone
    following: list[tuple[set[Any], str | None, asyncio.Event]] = []
    open_sinks: list[bool] = []

    async def followed(recorded: set[Any], sources: Any, sink: Any, *, stop: asyncio.Event) -> None:
        following.append((recorded, sources[0].receiver.session_id, stop))
        sink._sender("to")
        try:
            await stop.wait()
        finally:
            open_sinks.append(not closed)

    closed: list[str] = []

    class Sender:
        async def close(self) -> None:
            closed.append("closed")

    target.sender = lambda entity: Sender()  # type: ignore[attr-defined]
    job.followed = followed  # type: ignore[attr-defined]
    move = SessionMove(job)  # type: ignore[arg-type]
    running = asyncio.create_task(move.followed())
    await asyncio.sleep(3.5)
    assert sorted(str(session) for _, session, _ in following) == ["A", "b"], "as many as are held at a time"
    assert target.states == {"A": b"s"}
    source.lock_lost = True
    await asyncio.sleep(30.0)
    sessions = [session for _, session, _ in following]
    assert len(sessions) > 2, "a session whose lock is lost is taken again"
    assert all(recorded == {("q", 1, None, -1)} for recorded, _, _ in following)
    job.stop.set()
    await running
    assert all(stop.is_set() for _, _, stop in following)
    assert (closed, set(open_sinks)) == (["closed"], {True}), "the sink outlives all that send to it"


@virtual_time
async def test_an_entity_that_cannot_be_browsed_keeps_the_sessions_that_are_held() -> None:
    source = Entity()
    job = Job(source, Entity())
    looks: list[float] = []

    class Busy(Session):
        async def peek(self, most: int, *, from_sequence_number: int = 0) -> list[Received]:
            looks.append(asyncio.get_running_loop().time())
            raise ServerBusyError("busy")

    source.receiver = lambda path, **_: Busy(source, path, None)  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(SessionMove(job).followed())  # type: ignore[arg-type]
    await asyncio.sleep(3.5)
    assert looks == [0.0, 1.0, 2.0, 3.0]
    job.stop.set()
    await running
    assert asyncio.get_running_loop().time() == 3.5


def test_a_part_that_is_reported_later_says_what_it_did_alone() -> None:
    report = DrainReport(forwarded=3, left=(Left("why", 1),), filtered_out=2, confirmed_empty=False)
    later = reported_later(report)
    assert (later.forwarded, later.left, later.filtered_out, later.locked, later.confirmed_empty) == (
        3,
        (),
        0,
        (),
        True,
    )
