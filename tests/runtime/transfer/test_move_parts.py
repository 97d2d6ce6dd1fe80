"""The parts of a move: which way an entity is read, what is deleted at once, and what becomes of what was browsed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import QueueFacts, QueueSettings
from sbpair.core.errors import (
    ArgumentRefusedError,
    EntityNotFoundError,
    LocksLostError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
    UsageError,
)
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.rewrite import compose
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.report import DrainReport, Left
from sbpair.core.transfer.resend import IN_DOUBT, NOT_REACHED, NOT_SCHEDULED
from sbpair.core.transfer.state import Forward, Leave, key_of
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.runtime.browse import PAGE_MESSAGES
from sbpair.runtime.transfer import move
from sbpair.runtime.transfer.drain import TransferRequest
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.move import _Browsed, _MovesBrowsed
from sbpair.runtime.transfer.moving import Ends, MoveJob, _DeferredOnly
from tests.fakes import EPOCH, FakeClock, FakeNamespace, RecordingObserver, virtual_time


class Receiver:
    """A receiver that deletes in batches, and knows sessions, as it is told."""

    def __init__(self, **how: Any) -> None:
        self.left, self.refuses, self.sessions = how.get("left", 0), how.get("refuses", ()), how.get("sessions", [])
        self.error: ServiceError | None = how.get("error")
        self.asked: list[tuple[int, float]] = []
        self.closed = 0

    async def session_ids(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return list(self.sessions)

    async def close(self) -> None:
        self.closed += 1


class Deleting(Receiver):
    async def delete_batch(self, most: int, *, before: float) -> int:
        self.asked.append((most, before))
        if most in self.refuses:
            raise ServerBusyError("busy")
        some = min(most, self.left)
        self.left -= some
        return some


def a_job(receiver: Receiver, *, requires_session: bool | None = False, **request: Any) -> Any:
    opened: list[tuple[str, bool]] = []

    def make(path: str, *, dead_letter: bool = False) -> Receiver:
        opened.append((path, dead_letter))
        return receiver

    facts = None if requires_session is None else QueueFacts("q", QueueSettings(requires_session=requires_session))
    return SimpleNamespace(
        request=TransferRequest(("q",), **request),
        path="q",
        facts={"q": facts},
        ends=SimpleNamespace(source=SimpleNamespace(receiver=make), transactions=None),
        stop=asyncio.Event(),
        clock=FakeClock(),
        opened=opened,
    )


@virtual_time
async def test_an_entity_is_read_by_session_if_it_says_so_or_has_some() -> None:
    for requires in (True, False):
        job = a_job(Receiver(), requires_session=requires)
        assert await move._by_session(job) is requires
        assert job.opened == []
    for sessions, error, by_session in (
        (["a"], None, True),
        ([], None, False),
        ([], ArgumentRefusedError("no sessions"), False),
        ([], EntityNotFoundError("gone"), False),
    ):
        receiver = Receiver(sessions=sessions, error=error)
        assert await move._by_session(a_job(receiver, requires_session=None)) is by_session
        assert receiver.closed == 1
    with pytest.raises(ServerBusyError):
        await move._by_session(a_job(Receiver(error=ServerBusyError("busy")), requires_session=None))


@virtual_time
async def test_the_service_deletes_in_batches_as_large_as_it_takes() -> None:
    large, *smaller = move.MOST_DELETED_AT_ONCE
    receiver = Deleting(left=2 * large + 1)
    report = await move._deleted_in_batches(a_job(receiver), 5.0)
    assert (report.purged, report.confirmed_empty, receiver.closed) == (2 * large + 1, True, 1)
    assert receiver.asked == [(large, 5.0)] * 4, "until none is left"
    receiver = Deleting(left=3, refuses=(large,))
    assert (await move._deleted_in_batches(a_job(receiver), 5.0)).purged == 3
    assert [most for most, _ in receiver.asked] == [large, smaller[0], smaller[0]]
    receiver = Deleting(left=3, refuses=move.MOST_DELETED_AT_ONCE)
    assert (await move._deleted_in_batches(a_job(receiver), 5.0)).purged == 0
    assert [most for most, _ in receiver.asked] == [*move.MOST_DELETED_AT_ONCE], "what is left is received"
    for job in (a_job(Receiver()), a_job(Deleting(left=3), requires_session=True)):
        assert await move._deleted_in_batches(job, 5.0) == DrainReport(confirmed_empty=True), "the rest counts"
    dead = a_job(receiver := Deleting(left=3), requires_session=True, dead_letter=True)
    assert (await move._deleted_in_batches(dead, 5.0)).purged == 3
    assert dead.opened == [("q", True)], "dead letters have no sessions"
    stopped = a_job(receiver := Deleting(left=3))
    stopped.stop.set()
    assert ((await move._deleted_in_batches(stopped, 5.0)).purged, receiver.asked) == (0, [])


@virtual_time
async def test_a_failure_does_not_hide_what_has_moved_before() -> None:
    error = ServerBusyError(f"busy {TransferRequest(('q',)).none_readable}")
    movers: list[tuple[str, bool]] = []
    drained: list[Any] = []

    async def fails(request: Any, mover: Any = None) -> DrainReport:
        drained.append(mover)
        raise error

    job = a_job(Receiver())
    job.drained = fails
    for before in ([], [DrainReport(left=(Left("why", 1),))]):
        with pytest.raises(ServerBusyError):
            await move._safely(job, job.request, before)
    job.ends.transactions = SimpleNamespace(
        mover=lambda path, *, dead_letter: movers.append((path, dead_letter)) or "mover"
    )
    report = await move._safely(job, replace(job.request, dead_letter=True), [DrainReport(), DrainReport(forwarded=1)])
    [failure] = report.failures
    assert (failure.queue, failure.error.message) == ("q", "busy")
    assert (movers, drained) == ([("q", True)], [None, None, "mover"])


def test_what_was_scheduled_is_reported_by_the_part_that_had_it() -> None:
    report = DrainReport(forwarded=2, left=(Left("scheduled", 3), Left("why", 1)))
    assert move._without_scheduled(report) == replace(report, left=(Left("why", 1),))


@virtual_time
async def test_a_run_ends_when_its_time_is_over_or_when_it_is_stopped() -> None:
    stop = asyncio.Event()
    async with move._ended_in_time(None, stop) as halt:
        assert halt is stop
    async with move._ended_in_time(5.0, stop) as halt:
        await asyncio.sleep(4.9)
        assert not halt.is_set()
        await asyncio.sleep(0.2)
        assert (halt.is_set(), stop.is_set()) == (True, False)
    async with move._ended_in_time(5.0, stop) as halt:
        stop.set()
        await asyncio.sleep(0.1)
        assert halt.is_set()


class Canceller:
    def __init__(self) -> None:
        self.cancelled: list[list[int]] = []

    async def cancel_scheduled(self, numbers: list[int], *, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        self.cancelled.append(numbers)


def lying(*numbers: int) -> list[tuple[Received, Forward]]:
    return [(Received(b"x", number, "q", message_id=str(number)), Forward(b"x", "to")) for number in numbers]


@virtual_time
async def test_what_was_browsed_is_cancelled_by_its_own_number_once_it_was_sent() -> None:
    canceller = Canceller()
    browsed = _Browsed(canceller)  # type: ignore[arg-type]
    assert await browsed.hand_over(lying(40, 41))
    assert await browsed.hand_over(lying(42))
    first, second, third = await browsed.receive(9, wait_seconds=0.0)
    assert (browsed.handed_over, first.sequence_number, key_of(first)[1]) == (3, 1, 40)
    assert isinstance(browsed.verdict_of(first), Forward)
    await browsed.settle(first, Disposition.COMPLETE)
    assert canceller.cancelled == [[40]]
    assert [key_of(one)[1] for one in await browsed.peek(9)] == [41, 42]
    assert browsed.verdict_of(first) == Leave(move._DEALT_WITH)
    await browsed.settle(second, Disposition.DEAD_LETTER)
    await browsed.settle(third, Disposition.RELEASE)
    assert canceller.cancelled == [[40]], "only what was sent is taken away"
    [again] = await browsed.receive(9, wait_seconds=0.0)
    assert key_of(again)[1] == 42
    copied = _Browsed(None)
    await copied.hand_over(lying(40))
    [one] = await copied.receive(1, wait_seconds=0.0)
    await copied.settle(one, Disposition.COMPLETE)


@pytest.mark.parametrize(("uncertain", "because"), [(True, IN_DOUBT), (False, NOT_SCHEDULED)])
def test_what_is_not_scheduled_any_more_is_left_for_that_reason(uncertain: bool, because: str) -> None:
    @virtual_time
    async def story() -> None:
        moved: list[list[int]] = []
        refuses: list[Exception] = []

        class Mover:
            async def max_message_bytes(self, entity: str) -> int:
                return 77

            async def move(
                self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
            ) -> None:
                moved.append([one.sequence_number for one in received])
                if refuses:
                    raise refuses.pop()

        browsed = _Browsed(None)
        mover = _MovesBrowsed(browsed, Mover())  # type: ignore[arg-type]
        assert await mover.max_message_bytes("to") == 77
        await browsed.hand_over(lying(40, 41))
        received = await browsed.receive(9, wait_seconds=0.0)
        error = LocksLostError("gone", lost=(1,))
        error.uncertain = uncertain
        refuses.append(error)
        with pytest.raises(LocksLostError):
            await mover.move(received, [b"", b""], "to", timeout_seconds=5.0)
        assert [browsed.verdict_of(one) for one in received] == [Forward(b"x", "to"), Leave(because)]
        [again] = await browsed.receive(9, wait_seconds=0.0)
        assert key_of(again)[1] == 41
        await mover.move(received[:1], [b""], "to", timeout_seconds=5.0)
        assert moved == [[40, 41], [40]], "by the numbers under which they lie"
        assert browsed.verdict_of(received[0]) == Leave(move._DEALT_WITH)

    story()


# The whole of it, in memory.


class World:
    """A queue whose messages move to another namespace, each as the test judges it."""

    def __init__(self, **request: Any) -> None:
        self.clock, self.observer, self.stop = FakeClock(), RecordingObserver(), asyncio.Event()
        self.source, self.target = FakeNamespace("source", self.clock), FakeNamespace("target", self.clock)
        self.source.add_queue("q")
        self.target.add_queue("to")
        self.verdicts: dict[str, Any] = {}
        self.ledger: Any = None
        self.request = TransferRequest(("q",), **request)

    def judge(self, received: Received) -> Any:
        return self.verdicts.get(received.message_id or "", Forward(received.payload, "to"))

    def raising(self, received: Received) -> Any:
        raise self.verdicts[received.message_id or ""]

    def job(self, **more: Any) -> MoveJob:
        return MoveJob(
            self.request,
            Ends(
                self.source.messaging(),
                self.target.messaging(),
                source_access=NamespaceAccess("source", self.source.host),
                target_access=NamespaceAccess("target", self.target.host),
            ),
            self.judge,
            **{
                "seen": DestinationSeen("to"),
                "facts": {"q": QueueFacts("q", QueueSettings())},
                "clock": self.clock,
                "observer": self.observer,
                "ledger": self.ledger,
                "stop": self.stop,
            }
            | more,
        )

    def put(self, *ids: str, later: bool = False) -> None:
        at = EPOCH + 1e6 if later else None
        self.source.put("q", *(compose(body=b"x", message_id=one, scheduled_at=at) for one in ids))

    def ids(self, namespace: FakeNamespace, path: str) -> list[str | None]:
        return [one.message_id for one in namespace.queue(path).messages.values()]


@virtual_time
async def test_scheduled_messages_go_first_and_are_cancelled_where_they_lay() -> None:
    world = World(scheduled=True)
    world.put("later", "left", later=True)
    world.put("now")
    world.verdicts["left"] = Leave("because")
    report = await move.move(world.job())
    assert (world.ids(world.target, "to"), world.ids(world.source, "q")) == (["later", "now"], ["left"])
    assert (report.forwarded, report.left, report.ended_by) == (2, (Left("because", 1),), "empty")
    assert world.source.calls["cancel", "q"] == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing goes on afterwards"


@virtual_time
async def test_without_a_wish_for_them_scheduled_messages_stay() -> None:
    world = World()
    world.put("later", later=True)
    world.put("now")
    report = await move.move(world.job())
    assert (world.ids(world.target, "to"), world.ids(world.source, "q")) == (["now"], ["later"])
    assert report.left == (Left("scheduled", 1),)


@virtual_time
async def test_a_copy_leaves_everything_where_it_is() -> None:
    world = World(scheduled=True, with_dead_letter=True, max_messages=3)
    world.put("later", later=True)
    world.put("now")
    world.source.put_dead_letter("q", compose(body=b"x", message_id="dead"), "reason")
    report = await move.move(world.job(copy=True))
    assert (report.forwarded, report.completed) == (3, 0)
    assert sorted(map(str, world.ids(world.target, "to"))) == ["dead", "later", "now"]
    assert world.ids(world.source, "q") == ["later", "now"]
    few = World(scheduled=True, max_messages=1)
    few.put("later", later=True)
    few.put("now")
    report = await move.move(few.job(copy=True))
    assert (report.forwarded, report.ended_by) == (1, "count")


@virtual_time
async def test_a_queue_that_cannot_be_browsed_moves_nothing_and_says_so() -> None:
    world = World(scheduled=True, patience_seconds=0.0)
    world.put("later", later=True)
    world.source.fail("peek", ServerBusyError("busy"))
    with pytest.raises(ServerBusyError, match=r"Nothing was moved\."):
        await move.move(world.job(copy=True))
    assert world.ids(world.target, "to") == []


@virtual_time
async def test_what_is_followed_and_not_completed_is_known_to_the_ledger_and_to_who_follows_next(
    tmp_path: Path,
) -> None:
    world = World()
    world.ledger = Ledger(tmp_path / "ledger.jsonl")
    world.put("sent", "known", "again")
    [sent, known, again] = (key_of(one) for one in await world.source.messaging().receiver("q").peek(3))
    world.source.fail("settle", ServerBusyError("busy"))
    world.ledger.forwarded = {again}
    recorded = {known}
    asyncio.get_running_loop().call_later(5.0, world.stop.set)
    await world.job().followed(recorded, stop=world.stop)
    assert world.ids(world.target, "to") == ["sent", "again"], "of what the ledger has, only what can be there is asked"
    assert recorded == {sent, known, again} == world.ledger.forwarded | {known}
    await world.ledger.close()
    broken = World()
    broken.put("first")
    broken.verdicts["first"] = UsageError("no verdict")
    broken.judge = broken.raising  # type: ignore[method-assign]
    with pytest.raises(UsageError):
        await broken.job().followed(set(), stop=broken.stop)


@virtual_time
async def test_a_time_of_its_own_ends_a_move_and_is_told_as_such() -> None:
    world = World(for_seconds=5.0)
    world.put("now")
    world.target.delays["send"] = 1000.0
    assert (await move.move(world.job())).ended_by == "time"
    assert world.clock.monotonic() < 30.0
    stopped = World(for_seconds=50.0)
    stopped.put("now")
    stopped.target.delays["send"] = 1000.0
    asyncio.get_running_loop().call_later(1.0, stopped.stop.set)
    assert (await move.move(stopped.job())).ended_by == "stop"
    dry = World(for_seconds=1.0, dry_run=True)
    dry.put("now")
    report = await move.move(dry.job())
    assert (report.dry_run, report.forwarded, dry.ids(dry.target, "to")) == (True, 1, [])


@virtual_time
async def test_dead_letters_come_after_the_rest_and_are_not_waited_for() -> None:
    world = World(with_dead_letter=True)
    world.put("now")
    world.source.put_dead_letter("q", compose(body=b"x", message_id="dead"), "reason")
    report = await move.move(world.job())
    assert (sorted(map(str, world.ids(world.target, "to"))), report.forwarded) == (["dead", "now"], 2)
    only = World(dead_letter=True)
    only.put("now")
    only.source.put_dead_letter("q", compose(body=b"x", message_id="dead"), "reason")
    await move.move(only.job())
    assert (only.ids(only.target, "to"), only.ids(only.source, "q")) == (["dead"], ["now"])
    topic = World()
    topic.put("now")
    await move.move(topic.job(topic=True))
    assert topic.ids(topic.target, "to") == [], "what is scheduled is all that can be seen of a topic"


# Its ways, in their order.


class Moves:
    """Jobs that note each drain of what can be received, and do as the test says instead."""

    def __init__(self, world: World, *reports: DrainReport, **more: Any) -> None:
        self.asked: list[tuple[tuple[bool, ...], float, int | None, Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        noted = self

        class Noted(MoveJob):
            async def drained(self, request: TransferRequest, source: Any = None, mover: Any = None) -> DrainReport:
                noted.asked.append((request.kinds, request.idle_seconds, request.max_messages, mover))
                noted.meanwhile()
                return reports[len(noted.asked) - 1] if len(noted.asked) <= len(reports) else DrainReport()

        job = replace(world.job(), **more)
        self.job = Noted(**{one.name: getattr(job, one.name) for one in fields(MoveJob)})


class Movers:
    """The transactions of a namespace: receivers that move, by what they were opened for."""

    def mover(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> str:
        return f"{path}, dead letters" if dead_letter else path


BOTH, ITSELF, DEAD = (False, True), (False,), (True,)


@pytest.mark.parametrize(
    ("wanted", "transactions", "reports", "asked"),
    [
        ({"with_dead_letter": True}, False, (), [(BOTH, 7.0, None, None)]),
        ({"dead_letter": True}, True, (), [(DEAD, 7.0, None, "q, dead letters")]),
        (
            {"with_dead_letter": True, "max_messages": 5},
            True,
            (DrainReport(forwarded=2, purged=1),),
            [(ITSELF, 7.0, 5, "q"), (DEAD, 0.0, 2, "q, dead letters")],
        ),
        ({"with_dead_letter": True, "max_messages": 3}, True, (DrainReport(forwarded=3),), [(ITSELF, 7.0, 3, "q")]),
    ],
)
def test_what_can_be_received_goes_kind_by_kind_in_transactions_and_together_otherwise(
    wanted: dict[str, Any], transactions: bool, reports: tuple[DrainReport, ...], asked: list[Any]
) -> None:
    @virtual_time
    async def story() -> None:
        world = World(idle_seconds=7.0, **wanted)
        job = world.job()
        moves = Moves(world, *reports, ends=replace(job.ends, transactions=Movers() if transactions else None))
        await asyncio.sleep(2.0)
        report = await move.move(moves.job)
        assert moves.asked == asked
        assert (report.forwarded, report.seconds) == (sum(one.forwarded for one in reports), 0.0)

    story()


@pytest.mark.parametrize(
    ("wanted", "asked", "seconds"),
    [
        ({}, [], 7.0),
        ({"with_dead_letter": True}, [(DEAD, 0.0, None, None)], 7.0),
        ({"dead_letter": True}, [(DEAD, 7.0, None, None)], 0.0),
    ],
)
def test_dead_letters_of_sessions_go_as_of_any_queue_once_the_sessions_are_done(
    wanted: dict[str, Any], asked: list[Any], seconds: float
) -> None:
    @virtual_time
    async def story() -> None:
        world = World(idle_seconds=7.0, **wanted)
        moves = Moves(world, facts={"q": QueueFacts("q", QueueSettings(requires_session=True))})
        report = await move.move(moves.job)
        assert (moves.asked, world.clock.monotonic(), report.seconds) == (asked, seconds, seconds)

    story()


@virtual_time
async def test_what_is_scheduled_meanwhile_goes_last_and_what_is_left_is_told_once() -> None:
    for idle, passes in ((7.0, 2), (0.0, 1)):
        world = World(scheduled=True, idle_seconds=idle)
        world.put("first", "left", later=True)
        world.verdicts["left"] = Leave("because")
        moves = Moves(world, DrainReport(left=(Left("scheduled", 9), Left("other", 1))))
        moves.meanwhile = partial(world.put, "second", later=True)
        report = await move.move(moves.job)
        assert world.ids(world.target, "to") == ["first", "second"][:passes]
        assert report.left == (Left("because", 1), Left("other", 1))
        assert (report.forwarded, moves.asked) == (passes, [(ITSELF, idle, None, None)])
    world = World(scheduled=True, idle_seconds=7.0)
    world.put("first", later=True)
    world.source.fail("peek", UnauthorizedError("no"), skip=1)
    moves = Moves(world, DrainReport(left=(Left("scheduled", 9),)))
    report = await move.move(moves.job)
    assert report.left == (Left("scheduled", 9),), "the first part did not see all of them"
    assert ([one.queue for one in report.failures], world.source.calls["peek", "q"]) == (["q"], 2)


@virtual_time
async def test_nothing_is_scheduled_in_a_subscription_and_among_dead_letters() -> None:
    for path, wanted in (("t/Subscriptions/s", {}), ("q", {"dead_letter": True})):
        world = World(scheduled=True, **wanted)
        world.source.add_queue(path)
        world.request = replace(world.request, queues=(path,))
        moves = Moves(world, facts={path: QueueFacts(path, QueueSettings())})
        await move.move(moves.job)
        assert (len(moves.asked), sum(world.source.calls.values())) == (1, 0)


@virtual_time
async def test_what_the_service_deletes_itself_is_deleted_before_the_rest_is_received() -> None:
    world = World()
    receiver = Deleting(left=5)
    source: Any = SimpleNamespace(receiver=lambda path, *, dead_letter=False: receiver)
    moves = Moves(world, ends=replace(world.job().ends, source=source), delete_before=EPOCH)
    report = await move.move(moves.job)
    assert (report.purged, receiver.asked[0][1], len(moves.asked)) == (5, EPOCH, 1)


@virtual_time
async def test_a_move_that_is_stopped_counts_what_it_had_in_hand_as_not_reached() -> None:
    world = World(scheduled=True, concurrency=1, in_flight_messages=1)
    world.put(*(str(number) for number in range(5)), later=True)
    sent = 0

    async def stop_at_the_second(operation: str, entity: str) -> None:
        nonlocal sent
        sent += operation == "send"
        if sent == 2:
            world.stop.set()

    world.target.hook = stop_at_the_second
    report = await move.move(world.job())
    lying = world.ids(world.source, "q")
    assert (report.ended_by, report.forwarded, report.confirmed_empty) == ("stop", 5 - len(lying), False)
    assert report.left == (Left(NOT_REACHED, len(lying)),)
    assert 0 < len(lying) < 5


@virtual_time
async def test_nothing_scheduled_is_sent_where_it_could_not_be_cancelled() -> None:
    world = World(scheduled=True)
    world.put("later", later=True)
    world.source.fail("limit", UnauthorizedError("no right to send"))
    moves = Moves(world)
    report = await move.move(moves.job)
    assert [one.error.message for one in report.failures] == ["no right to send"]
    assert (world.ids(world.target, "to"), world.ids(world.source, "q")) == ([], ["later"])


@virtual_time
async def test_all_pages_of_what_is_scheduled_go_up_to_the_limit() -> None:
    for most, forwarded in ((PAGE_MESSAGES + 50, PAGE_MESSAGES + 10), (5, 5)):
        world = World(scheduled=True, max_messages=most)
        world.put(*(str(number) for number in range(PAGE_MESSAGES + 10)), later=True)
        report = await move.move(Moves(world).job)
        assert (report.forwarded, len(world.ids(world.target, "to"))) == (forwarded, forwarded)


@virtual_time
async def test_a_judge_that_fails_at_what_is_scheduled_ends_the_move() -> None:
    class Odd(World):
        def judge(self, received: Received) -> Any:
            raise FilterError("odd")

    world = Odd(scheduled=True)
    world.put("later", later=True)
    with pytest.raises(FilterError):
        await move.move(Moves(world).job)


def test_what_is_still_asked_for_is_less_by_what_has_moved_and_nothing_once_a_part_broke_off() -> None:
    world = World(max_messages=5)
    job = world.job()
    for parts, left in (
        ([], 5),
        ([DrainReport(forwarded=2, purged=1), DrainReport(forwarded=1)], 1),
        ([DrainReport(forwarded=5)], None),
        ([DrainReport(broken_off="odd")], None),
    ):
        rest = job.less(job.request, parts)
        assert (None if rest is None else rest.max_messages) == left
    endless = replace(job.request, max_messages=None)
    assert job.less(endless, [DrainReport(forwarded=9)]) is endless
    world.stop.set()
    assert job.less(endless, []) is None


@virtual_time
async def test_what_is_deferred_is_browsed_past_the_rest_page_by_page() -> None:
    asked: list[int] = []

    class Mixed:
        async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
            asked.append(from_sequence_number)
            states = {
                1: MessageState.ACTIVE,
                2: MessageState.SCHEDULED,
                3: MessageState.ACTIVE,
                4: MessageState.ACTIVE,
                5: MessageState.DEFERRED,
            }
            found = [Received(b"", number, "q", state=state) for number, state in states.items()]
            return [one for one in found if one.sequence_number >= from_sequence_number][:2]

    receiver = _DeferredOnly(Mixed())  # type: ignore[arg-type]
    assert [one.sequence_number for one in await receiver.peek(9, from_sequence_number=1)] == [5]
    assert asked == [1, 3, 5]
    assert (await receiver.peek(9, from_sequence_number=6), await receiver.receive(9, wait_seconds=1.0)) == ([], [])
