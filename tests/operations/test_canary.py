"""Dead letters sent again in growing steps: on virtual time with consumers that fail, and on a namespace."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from sbpair.connect import open_ends
from sbpair.core.errors import UsageError
from sbpair.core.message import Disposition
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import compose
from sbpair.core.transfer.summary import Grown, Looked, Steps
from sbpair.operations import Ends, ResubmitRequest, resubmit
from sbpair.operations.resubmit import grow
from tests.fakes import FakeClock, RecordingObserver, run_virtual
from tests.operations.conftest import World

WATCH_SECONDS = 30.0


class Consumers:
    """A queue on virtual time whose consumers take a message each `seconds`, oldest first, and fail `percent` of them:
    those come back to the dead letters after so many deliveries."""

    def __init__(self, seed: int, *, percent: float, seconds: float, ahead: int = 0, deliveries: int = 3) -> None:
        self.random = random.Random(seed)
        self.percent, self.seconds, self.deliveries = percent, seconds, deliveries
        self.number = 0
        self.queue: dict[int, list[object]] = {}
        self.dead: list[str] = []
        self.sent: list[str] = []
        for n in range(ahead):
            self._put(f"ahead-{n}")

    def _put(self, name: str) -> None:
        self.number += 1
        self.queue[self.number] = [name, 0, self.random.uniform(0, 100) < self.percent]

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            if not self.queue:
                continue
            number = min(self.queue)
            name, count, bad = self.queue[number]
            if not bad:
                del self.queue[number]
            elif count + 1 < self.deliveries:  # type: ignore[operator]
                self.queue[number][1] = count + 1  # type: ignore[operator]
            else:
                del self.queue[number]
                self.dead.append(str(name))

    async def send(self, first: int, size: int) -> dict[str, int]:
        ids = [f"m{n}" for n in range(first, first + size)]
        for one in ids:
            self._put(one)
        self.sent += ids
        return dict.fromkeys(ids, 1)

    async def sample(self, ids: dict[str, int]) -> Looked:
        ours = {number: entry for number, entry in self.queue.items() if entry[0] in ids}
        head = {number: self.queue[number] for number in sorted(self.queue)[:250]}
        deliveries = {number: int(entry[1]) for number, entry in (head | ours).items()}  # type: ignore[call-overload]
        returned = sum(name in ids for name in self.dead)
        return Looked(len(ours), {"Broken": returned} if returned else {}, deliveries)


def grown(consumers: Consumers, messages: int, steps: str = "1,2,5,20,100") -> Grown:
    async def run() -> Grown:
        working = asyncio.create_task(consumers.work())
        try:
            return await grow(
                Steps.parse(steps).of(messages),
                consumers.send,
                consumers.sample,
                watch_seconds=WATCH_SECONDS,
                clock=FakeClock(),
                observer=RecordingObserver(),
                stop=asyncio.Event(),
            )
        finally:
            working.cancel()

    return run_virtual(run())


CASES = [
    (seed, percent, random.Random(seed).uniform(0.05, 9.0), random.Random(-seed).choice([0, 0, 3, 300]))
    for seed in range(8)
    for percent in (0.0, 0.5, 5.0, 40.0, 100.0)
]


def test_no_more_than_one_step_fails_and_a_healthy_queue_is_never_stopped_on() -> None:
    sizes = [1, 2, 5, 20, 100, 100, 100]
    for seed, percent, seconds, ahead in CASES:
        consumers = Consumers(seed, percent=percent, seconds=seconds, ahead=ahead)
        found = grown(consumers, 328)
        case = (seed, percent, seconds, ahead, found)
        bad = {str(entry[0]) for entry in consumers.queue.values() if entry[2]} | set(consumers.dead)
        failing = bad & set(consumers.sent)
        last = sizes[len(found.steps) - 1]
        assert [step.sent for step in found.steps] == sizes[: len(found.steps)], case
        if not failing:
            assert found.stopped_because is None, case
            assert len(consumers.sent) == 328, case
        else:
            assert found.stopped_because is not None, case
            assert "came back to the dead letters (Broken" in found.stopped_because, case
            assert len(failing) <= last, case
            assert failing <= set(consumers.sent[-last:]), case


def test_a_queue_without_consumers_stops_it_after_the_first_step_and_the_time_of_the_watch() -> None:
    for ahead in (0, 300):
        consumers = Consumers(1, percent=0, seconds=10**9, ahead=ahead)
        found = grown(consumers, 50)
        assert len(consumers.sent) == 1
        assert found.stopped_because == ("nothing was taken from the queue for 30s, and 1 of 1 message waits there")
        assert WATCH_SECONDS <= found.steps[0].seconds <= WATCH_SECONDS + 1


def test_the_last_step_goes_on_and_all_is_the_rest() -> None:
    assert list(Steps.parse("1,2").of(6)) == [1, 2, 2, 1]
    assert list(Steps.parse("3, all").of(100)) == [3, 97]
    for wrong in ("", "0", "1,,2", "all,1", "a", "1,-2"):
        with pytest.raises(UsageError, match="--grow"):
            Steps.parse(wrong)


@pytest.fixture
def dead_letters(world: World) -> Iterator[World]:
    world.emulator.namespace("contoso").create_queue("repair")
    yield world


async def dead(ends: Ends, path: str, ids: list[str]) -> None:
    sender = ends.source.sender(path)
    await sender.send([compose(body=one, message_id=one) for one in ids], timeout_seconds=30)
    await sender.close()
    receiver = ends.source.receiver(path)
    left = len(ids)
    while left:
        for received in await receiver.receive(left, wait_seconds=5):
            await receiver.settle(received, Disposition.DEAD_LETTER, reason="Broken")
            left -= 1
    await receiver.close()


async def consume(ends: Ends, path: str, bad: set[str]) -> None:
    receiver = ends.source.receiver(path)
    try:
        while True:
            for received in await receiver.receive(10, wait_seconds=1):
                if received.message_id in bad:
                    await receiver.settle(received, Disposition.DEAD_LETTER, reason="StillBroken")
                else:
                    await receiver.settle(received, Disposition.COMPLETE)
    finally:
        await receiver.close()


async def test_on_a_namespace_it_stops_at_the_step_that_comes_back_and_goes_on_with_the_rest(
    dead_letters: World,
) -> None:
    world, ids = dead_letters, [f"m{n}" for n in range(20)]
    async with open_ends(world.pair.primary) as ends:
        await dead(ends, "orders", ids)
        request = ResubmitRequest("orders", grow=Steps.parse("1,2,5"), watch_seconds=20.0)
        consuming = asyncio.create_task(consume(ends, "orders", {"m4"}))
        try:
            stopped = await resubmit(ends, request)
        finally:
            consuming.cancel()
        assert stopped.grown is not None
        assert [(step.sent, step.returned) for step in stopped.grown.steps] == [(1, 0), (2, 0), (5, 1)]
        assert stopped.grown.stopped_because == "1 of 5 messages came back to the dead letters (StillBroken 1)"
        assert (stopped.report.forwarded, stopped.exit) == (8, Exit.PARTIAL)
        assert "12 are left. Go on with: sbpair dlq" in stopped.closing("sbpair dlq resubmit orders --grow 1,2,5")
        assert world.waiting("orders", dead_letter=True) == 13
        consuming = asyncio.create_task(consume(ends, "orders", set()))
        try:
            done = await resubmit(ends, request)
        finally:
            consuming.cancel()
        assert done.grown is not None
        assert ([step.sent for step in done.grown.steps], done.exit) == ([1, 2, 5, 5], Exit.OK)
        assert (world.waiting("orders"), world.waiting("orders", dead_letter=True)) == (0, 0)


async def test_without_consumers_one_message_waits_and_the_others_are_untouched(dead_letters: World) -> None:
    world = dead_letters
    async with open_ends(world.pair.primary) as ends:
        await dead(ends, "orders", ["a", "b", "c"])
        request = ResubmitRequest("orders", to="repair", grow=Steps.parse("1,all"), watch_seconds=1.0)
        stopped = await resubmit(ends, request)
        assert stopped.grown is not None
        assert "nothing was taken from the queue for 1s" in str(stopped.grown.stopped_because)
        assert (world.waiting("repair"), world.waiting("orders", dead_letter=True)) == (1, 2)
