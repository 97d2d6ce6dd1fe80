"""One receive after another: what the machine is asked and told of each, in which order, and when a source rests."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.core.errors import ConnectionLostError, EntityNotFoundError, ServerBusyError, UnauthorizedError
from sbpair.core.events import Polled, ReceiveFailed
from sbpair.core.message import Received
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.order import SkippedNumbers
from sbpair.core.transfer.state import Forward, LockClock, Sample, Verdict
from sbpair.runtime.transfer import reading
from sbpair.runtime.transfer.reading import RECEIVE_MESSAGES, Patience, Reader, Room, Source
from tests.fakes import EPOCH, FakeClock, RecordingObserver, virtual_time

CHANGED = ("changed",)
PATH = "Q/$deadletterqueue"
LOCK_SECONDS = 30.0
RECEIVE_SECONDS = 2.0


def lying(number: int, session_id: str | None = None, **more: Any) -> Received:
    return Received(b"x", number, PATH, session_id=session_id, **more)


def verdict_of(received: Received) -> Verdict:
    if received.session_id == "odd":
        raise FilterError("odd")
    return Forward(received.payload, "orders", received.session_id)


def plain(value: object) -> Any:
    """Messages by their numbers."""
    if isinstance(value, Received):
        return value.sequence_number
    return [plain(one) for one in value] if isinstance(value, list) else value


class Machine:
    """Answers as it is told, and notes what it is told itself."""

    total_reached = left_full = stopping = False
    live = 0

    def __init__(self, log: list[Any], **answers: list[Any]) -> None:
        self.log, self.answers = log, answers
        self.custody = self.queues = self.window = self

    def _answer(self, question: str, otherwise: Any) -> Any:
        answers = self.answers.get(question, [])
        return answers.pop(0) if answers else otherwise

    def grant(self, wanted: int, now: float, source: str | None = None) -> int:
        self.log.append(("grant", wanted, now, source))
        return int(self._answer("grant", wanted))

    def standing_back(self, path: str) -> bool:
        assert path == PATH
        return bool(self._answer("standing_back", False))

    def awaits(self, path: str, now: float) -> bool:
        self.log.append(("awaits", path, now))
        return bool(self._answer("awaits", False))

    def forgotten(self, path: str) -> int:
        assert path == PATH
        return int(self._answer("forgotten", 0))

    def skipped(self, received: Sequence[Received], verdicts: Sequence[Verdict]) -> list[SkippedNumbers]:
        assert [*verdicts] == [*map(verdict_of, received)]
        return [SkippedNumbers(*bounds) for bounds in self._answer("skipped", [])]

    def in_hand(self, path: str) -> set[int]:
        assert path == PATH
        return set(self._answer("in_hand", ()))

    def hopeless_now(self, received: Sequence[Received]) -> bool:
        return bool(self._answer("hopeless", False))

    def __getattr__(self, name: str) -> Any:
        def note(*told: Any, **named: Any) -> None:
            # What is in a verdict follows from the message, and that `skipped` is asked with both.
            self.log.append((name, *(plain(one) for one in told if not isinstance(one, Forward)), *named.values()))

        return note


class Receiver:
    """Hands out these messages, receive by receive, and shows those that lie there."""

    source = PATH

    def __init__(self, log: list[Any], *coming: Any) -> None:
        self.log, self.coming = log, [*coming]
        self.there: dict[int, Received] = {}
        self.peeks_fail: Exception | None = None
        self.gone: set[int] = set()

    async def receive(self, most: int, *, wait_seconds: float) -> list[Received]:
        self.log.append(("receive", most, wait_seconds))
        await asyncio.sleep(RECEIVE_SECONDS)
        came = self.coming.pop(0) if self.coming else asyncio.CancelledError()
        if isinstance(came, BaseException):
            raise came
        return list(came)

    async def peek(self, most: int, *, from_sequence_number: int = 0) -> list[Received]:
        self.log.append(("peek", most, from_sequence_number))
        if self.peeks_fail is not None:
            raise self.peeks_fail
        return [one for number, one in self.there.items() if number >= from_sequence_number][:most]

    async def receive_deferred(self, numbers: Sequence[int]) -> list[Received]:
        self.log.append(("deferred", *numbers))
        if self.gone & {*numbers}:
            raise EntityNotFoundError("gone")
        return [lying(number) for number in numbers]


class World:
    """A reader of one source, and the notes of everything around it."""

    def __init__(self, *coming: Any, endless: bool = False, patience: float = 60.0, **answers: list[Any]) -> None:
        self.log: list[Any] = []
        self.clock, self.observer, self.moved = FakeClock(), RecordingObserver(), asyncio.Event()
        self.machine, self.receiver, self.room = Machine(self.log, **answers), Receiver(self.log, *coming), Room()
        self.source = Source("named", self.receiver, LockClock(LOCK_SECONDS))  # type: ignore[arg-type]
        self.reader = Reader(
            self.machine,  # type: ignore[arg-type]
            verdict_of,
            {PATH.lower(): self.source},
            clock=self.clock,
            observer=self.observer,
            patience=Patience(endless, patience),
            room=self.room,
            moved=self.moved,
            changed=lambda: self.log.append(CHANGED),
        )
        self.reader.awake = self.clock  # type: ignore[assignment]  # the same time, which nothing interrupts

    async def receive(self) -> list[Any]:
        """What one receive does, begun at second 5."""
        await asyncio.sleep(5.0 - self.clock.monotonic())
        await self.reader._receive_once(self.source, 4)
        return self.log


BACK = 5.0 + RECEIVE_SECONDS
BEGUN = [("receive", 4, 1.0)]


def arrived(number: int, *, now: float = BACK, until: float | None = None) -> tuple[Any, ...]:
    return ("arrived", number, now + LOCK_SECONDS if until is None else until, LOCK_SECONDS, now)


@virtual_time
async def test_what_comes_is_given_to_the_machine_with_the_rest_of_the_grant() -> None:
    known = lying(2, "s", locked_until=EPOCH + BACK + 20.0)
    world = World([lying(1), known], forgotten=[7, 7])
    world.source.failures, world.source.failing_since, world.source.idle = 3, 1.0, True
    assert await world.receive() == [
        *BEGUN,
        ("tried", PATH, [1, 2], BACK),
        ("returned", 4, 2),
        arrived(1),
        arrived(2),
        CHANGED,
    ]
    assert (world.source.failures, world.source.failing_since, world.source.idle) == (0, None, False)
    assert (world.source.was_read, world.moved.is_set()) == (True, True)
    assert world.observer.events == [Polled(EPOCH + BACK, "named", 2)]


@pytest.mark.parametrize("awaits", [True, False])
def test_a_source_that_gives_nothing_is_idle_unless_something_of_it_is_waited_for(awaits: bool) -> None:
    @virtual_time
    async def story() -> None:
        world = World([], awaits=[awaits], standing_back=[not awaits])
        world.source.last_error = ServerBusyError("before")
        wait = 1.0 if awaits else reading.TRY_SECONDS
        asked = [("tried", PATH, [], BACK), ("awaits", PATH, BACK), ("returned", 4, 0), CHANGED]
        assert await world.receive() == [("receive", 4, wait), *asked]
        assert (world.source.idle, world.moved.is_set(), world.source.last_error) == (not awaits, False, None)
        short = World([], standing_back=[True])
        short.source.wait_seconds = 0.1
        assert (await short.receive())[0] == ("receive", 4, 0.1)

    story()


@pytest.mark.parametrize("error", [ServerBusyError("busy"), UnauthorizedError("no"), asyncio.CancelledError()])
def test_a_receive_that_fails_gives_its_grant_back_first(error: BaseException) -> None:
    @virtual_time
    async def story() -> None:
        world = World(error)
        if isinstance(error, asyncio.CancelledError):
            with pytest.raises(asyncio.CancelledError):
                await world.receive()
            assert world.log == [*BEGUN, ("returned", 4, 0)]
            return
        await world.receive()
        given_up = error if isinstance(error, UnauthorizedError) else None
        assert world.log == [*BEGUN, ("returned", 4, 0), *([("rests", PATH), CHANGED] if given_up else [])]
        assert (world.source.failed, world.source.last_error, world.source.was_read) == (given_up, error, False)
        assert world.source.failing_since == 5.0, "when it was begun"
        [told] = world.observer.of(ReceiveFailed)
        assert (told.at, told.queue, told.message) == (EPOCH + BACK, "named", str(error))

    story()


@virtual_time
async def test_what_a_filter_cannot_judge_goes_back_before_the_run_ends() -> None:
    world = World([lying(1), lying(2, "odd")])
    with pytest.raises(FilterError):
        await world.receive()
    back = [("refused", number, BACK + LOCK_SECONDS, LOCK_SECONDS) for number in (1, 2)]
    assert world.log == [*BEGUN, ("tried", PATH, [1, 2], BACK), *back]


OF_A_SESSION = [lying(20, "s"), lying(21), lying(22, "s")]
TRIED = ("tried", PATH, [20, 21, 22], BACK)


def released() -> list[Any]:
    """Those of sessions go back, the other one is moved."""
    back = [("refused", number, BACK + LOCK_SECONDS, LOCK_SECONDS) for number in (20, 22)]
    return [*back, arrived(21), CHANGED]


@virtual_time
async def test_what_a_receive_went_past_is_browsed_until_all_of_it_is_proved() -> None:
    world = World(OF_A_SESSION, skipped=[[(3, 20), (40, 41)]], in_hand=[{5}, {5}])
    world.receiver.there = {number: lying(number, "s") for number in (3, 4, 5, 6, 20, 41, 50)}
    assert await world.receive() == [
        *BEGUN,
        TRIED,
        *(("peek", 1, 3), ("expect", 3, BACK)),
        *(("peek", 16, 4), ("expect", 4, BACK), ("expect", 6, BACK)),
        ("proved", PATH, SkippedNumbers(3, 20)),
        *(("peek", 1, 40), ("expect", 41, BACK)),
        ("proved", PATH, SkippedNumbers(40, 41)),
        ("returned", 4, 3),
        *map(arrived, (20, 21, 22)),
        CHANGED,
    ]


@virtual_time
async def test_what_can_only_wait_gives_way_without_the_rest_of_the_browse() -> None:
    world = World(OF_A_SESSION, skipped=[[(3, 20)]], hopeless=[False, True])
    world.receiver.there = {number: lying(number, "s") for number in range(3, 20)}
    world.source.failures = 2
    log = await world.receive()
    assert [one for one in log if one[0] == "peek"] == [("peek", 1, 3), ("peek", 16, 4)]
    after = log[log.index(("gave_way", PATH, BACK)) :]
    assert after == [("gave_way", PATH, BACK), ("returned", 4, 3), *released()]
    assert ("proved", PATH, SkippedNumbers(3, 20)) not in log
    assert (world.source.failures, world.moved.is_set()) == (0, True)


@virtual_time
async def test_what_was_seen_before_a_release_is_browsed_again() -> None:
    world = World(OF_A_SESSION, skipped=[[(3, 3), (9, 9)], [(3, 3)]], forgotten=[0, 1, 1, 1, 1, 1])
    log = await world.receive()
    browsed = [one for one in log if one[0] in ("peek", "proved")]
    assert browsed == [("peek", 1, 3), ("peek", 1, 3), ("proved", PATH, SkippedNumbers(3, 3))]
    assert log[-5:] == [("returned", 4, 3), *map(arrived, (20, 21, 22)), CHANGED]


@pytest.mark.parametrize(("lock_seconds", "patience"), [(30.0, 10.0), (300.0, reading.MOST_BROWSE_PATIENCE_SECONDS)])
def test_what_cannot_be_browsed_in_a_third_of_the_locks_goes_back(lock_seconds: float, patience: float) -> None:
    @virtual_time
    async def story() -> None:
        world = World(OF_A_SESSION, skipped=[[(3, 20)]], endless=True)
        world.source.locks.lock_seconds = lock_seconds
        world.receiver.peeks_fail = ConnectionLostError("down")
        log = await world.receive()
        now = log[-3][-1]
        assert patience / 2 < now - BACK <= patience
        assert [one[0] for one in log if one[0] != "peek"] == [
            *("receive", "tried", "refused", "refused", "arrived", "changed", "returned")
        ]
        assert (world.source.failing_since, world.source.failures, world.source.failed) == (5.0, 1, None)
        assert world.source.was_read
        [told] = world.observer.of(ReceiveFailed)
        assert told.at == EPOCH + now, "before the pause, in which their locks would run out"

    story()


@pytest.mark.parametrize(
    ("in_hand", "standing_back", "most"), [((4,), True, 50), ((4,), False, 50), ((), False, 50), ((), True, 1)]
)
def test_a_sample_is_of_one_message_where_nothing_of_ours_can_lie(
    in_hand: tuple[int, ...], standing_back: bool, most: int
) -> None:
    @virtual_time
    async def story() -> None:
        world = World(in_hand=[in_hand], standing_back=[standing_back])
        world.receiver.there = {7: lying(7), 8: lying(8)}
        sample = Sample(PATH, 7)
        await world.reader.sample(sample)
        assert world.log == [("peek", most, 7), ("sampled", sample, [7, 8][:most], {*in_hand}, 0.0)]
        world.log.clear()
        world.receiver.peeks_fail = ServerBusyError("busy")
        await world.reader.sample(sample)
        assert world.log[1:] == [("sample_failed", sample, 0.0)]

    story()


@virtual_time
async def test_deferred_messages_are_fetched_as_many_as_are_granted() -> None:
    world = World(grant=[0, 60, RECEIVE_MESSAGES, 90])
    world.receiver.gone = {150, 151}
    taking = asyncio.create_task(world.reader.take_deferred(world.source, range(250), asyncio.Event()))
    await asyncio.sleep(3.0)
    assert (world.log, world.room.waiting) == ([("grant", RECEIVE_MESSAGES, 0.0, None)], 1)
    world.room.open()
    await taking
    granted = [(one[1], one[2]) for one in world.log if one[0] == "grant"]
    assert granted == [(RECEIVE_MESSAGES, 0.0), (RECEIVE_MESSAGES, 3.0), (RECEIVE_MESSAGES, 3.0), (90, 3.0)]
    asked = [one[1:] for one in world.log if one[0] == "deferred"]
    assert asked[:2] == [(*range(60),), (*range(60, 160),)]
    assert asked[2:-1] == [(number,) for number in range(60, 160)], "one that is gone fails all: each alone"
    came = [one[1] for one in world.log if one[0] == "arrived"]
    assert came == [number for number in range(250) if number not in world.receiver.gone]
    assert [one for one in world.log if one[0] == "returned"] == [("returned", some) for some in (60, 100, 90)]
    assert world.log[-3:] == [CHANGED, ("returned", 90), CHANGED]


@pytest.mark.parametrize("why", ["stop", "stopping", "total_reached", "left_full"])
def test_no_more_deferred_messages_are_fetched_than_are_wanted(why: str) -> None:
    @virtual_time
    async def story() -> None:
        world, stop = World(), asyncio.Event()
        if why == "stop":
            stop.set()
        else:
            setattr(world.machine, why, True)
        await world.reader.take_deferred(world.source, [1], stop)
        assert world.log == []

    story()


@virtual_time
async def test_what_a_fetch_of_deferred_messages_took_is_given_back_when_it_fails() -> None:
    world = World()
    world.reader.classify = lambda received: verdict_of(lying(1, "odd"))
    with pytest.raises(FilterError):
        await world.reader.take_deferred(world.source, [1], asyncio.Event())
    assert world.log == [("grant", 1, 0.0, None), ("deferred", 1), ("returned", 1)]


@pytest.mark.parametrize("endless", [True, False])
def test_a_source_is_read_until_it_is_given_up_and_rests_when_idle(endless: bool) -> None:
    @virtual_time
    async def story() -> None:
        world = World([], [lying(1)], UnauthorizedError("no"), endless=endless, grant=[0])
        world.source.receive_messages = 9
        world.source.poll_again.set()
        reading = asyncio.create_task(world.reader.receive_from(world.source))
        await asyncio.sleep(1.0)
        assert (world.log, world.room.waiting) == ([("grant", 9, 0.0, PATH)], 1)
        world.room.open()
        await asyncio.sleep(RECEIVE_SECONDS + 0.5)
        rested = ("rests", PATH) in world.log
        assert (rested, world.source.poll_again.is_set()) == (not endless, endless)
        if not endless:
            assert world.log[-2:] == [("rests", PATH), CHANGED]
            await asyncio.sleep(100.0)
            assert len([one for one in world.log if one[0] == "receive"]) == 1
            world.source.idle = False
            world.source.poll_again.set()
        await asyncio.sleep(2 * RECEIVE_SECONDS + 1.0)
        assert [one[1] for one in world.log if one[0] == "receive"][:3] == [9, 9, 9]
        assert reading.done() is not endless, "an endless one is never given up"
        reading.cancel()

    story()


async def asleep(waiting: "asyncio.Task[None]") -> bool:
    await asyncio.sleep(0)
    return not waiting.done()


@virtual_time
async def test_an_idle_source_is_polled_after_a_while_only_where_something_is_held() -> None:
    world = World()
    for live, seconds in ((0, 10 * reading.IDLE_POLL_SECONDS), (1, reading.IDLE_POLL_SECONDS)):
        world.machine.live = live
        began = world.clock.monotonic()
        waiting = asyncio.create_task(world.reader._until_polled_again(world.source))
        if not live:
            asyncio.get_running_loop().call_later(seconds, world.source.poll_again.set)
        await waiting
        assert world.clock.monotonic() - began == seconds
        world.source.poll_again.clear()


def test_a_source_counts_the_messages_of_its_own_queue() -> None:
    counts: Any = SimpleNamespace(active=3, dead_letter=8)
    for path, messages in (("q", 3), (PATH, 8)):
        receiver: Any = SimpleNamespace(source=path)
        assert Source("q", receiver).counted(counts) == messages
