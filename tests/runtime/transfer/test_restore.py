"""Messages out of a file through the pump: in order, each once, whatever the destinations do. Virtual time."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbpair.core.errors import (
    ConnectionLostError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
    UnknownServiceError,
)
from sbpair.core.message import Disposition, Origin, Received
from sbpair.core.rewrite import compose, describe
from sbpair.core.transfer.restored import Restorable, Restored
from sbpair.core.transfer.state import Forward, Limits
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.ledger import Ledger, outcomes_in
from sbpair.runtime.transfer.restore import INTERRUPTED, restore
from sbpair.runtime.transfer.stored import StoredMessages
from tests.fakes import FakeClock, FakeNamespace, virtual_time


def stored(count: int, *, sessions: int = 0, destination: str = "orders", first: int = 1) -> list[Restorable]:
    """Messages of one queue, numbered from `first`; with sessions they take turns."""
    found = []
    for number in range(first, first + count):
        session = f"s{number % sessions}" if sessions else None
        payload = compose(body=b"x", message_id=f"m-{number}", session_id=session)
        received = Received(payload, number, "q", origin=Origin("q", number, f"m-{number}", number))
        found.append(Restorable(received, Forward(payload, destination, session, session)))
    return found


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.primary = FakeNamespace("primary", self.clock)
        self.primary.add_queue("orders")
        self.stop = asyncio.Event()

    async def restore(
        self,
        messages: Sequence[Restorable],
        *,
        ledger: Ledger | None = None,
        patience_seconds: float = 120.0,
        unreached_seconds: float = 30.0,
    ) -> Restored:
        return await restore(
            messages,
            primary=self.primary.messaging(),
            ledger=ledger,
            clock=self.clock,
            observer=Quiet(),
            stop=self.stop,
            limits=Limits(patience_seconds=patience_seconds, unreached_seconds=unreached_seconds),
        )

    def arrived(self, queue: str = "orders") -> list[int]:
        return [int(str(describe(one).message_id).split("-")[1]) for one in self.primary.queue(queue).payloads]

    def in_order(self, sessions: int) -> bool:
        """Whether every session arrived in its order, copies aside."""
        by_session: dict[int, list[int]] = {}
        for number in self.arrived():
            by_session.setdefault(number % sessions, []).append(number)
        return all(sorted(set(some)) == list(dict.fromkeys(some)) for some in by_session.values())


@virtual_time
async def test_everything_arrives_with_sessions_in_order() -> None:
    world = World()
    report = await world.restore(stored(5_000, sessions=7))
    assert (report.sent, report.left) == ({"orders": 5_000}, {})
    assert sorted(world.arrived()) == list(range(1, 5_001))
    assert world.in_order(7)


@virtual_time
async def test_a_long_outage_breaks_no_order_and_loses_nothing() -> None:
    """Long enough that what waits is given back to the file and read again."""
    world = World()
    fault = world.primary.go_dark()

    async def back_later() -> None:
        await world.clock.sleep(300)
        world.primary.heal(fault)

    healing = asyncio.create_task(back_later())
    report = await world.restore(stored(3_000, sessions=5), patience_seconds=1_000, unreached_seconds=1_000)
    await healing
    assert (report.sent, report.left) == ({"orders": 3_000}, {})
    assert sorted(set(world.arrived())) == list(range(1, 3_001))
    assert world.in_order(5)


@virtual_time
async def test_the_ledger_has_one_line_for_each_and_nothing_is_sent_again(tmp_path: Path) -> None:
    world, path, messages = World(), tmp_path / "l.jsonl", stored(300, sessions=3)
    ledger = Ledger(path)
    assert (await world.restore(messages[:100], ledger=ledger)).sent == {"orders": 100}
    await ledger.close()
    ledger = Ledger(path, resume=True)
    report = await world.restore(messages, ledger=ledger)
    await ledger.close()
    assert (report.sent, report.already_sent) == ({"orders": 200}, 100)
    lines = list(outcomes_in(path))
    assert len(lines) == 300
    assert {key for key, _ in lines} == {("q", number, f"m-{number}", number) for number in range(1, 301)}
    assert len(world.arrived()) == 300


@virtual_time
async def test_a_missing_destination_leaves_its_own_messages_only() -> None:
    world = World()
    both = [*stored(30_000, destination="gone"), *stored(50, first=40_000)]
    report = await world.restore(both)
    assert report.sent == {"orders": 50}
    assert report.left == {"destination unavailable: gone (entity-not-found)": 30_000}


@virtual_time
async def test_a_session_ends_at_the_message_that_is_refused() -> None:
    """It stays in the file, and a later restore sends it: what comes after it may not be there before."""
    world = World()
    messages = stored(20, sessions=2)
    big = messages[9].forward
    messages[9] = Restorable(
        messages[9].received, Forward(big.payload + bytes(300_000), big.destination, big.session_id, big.partition_key)
    )
    report = await world.restore(messages)
    assert sorted(world.arrived()) == sorted([*range(1, 20, 2), *range(2, 10, 2)])
    assert report.sent == {"orders": 14}
    assert sum(report.left.values()) == 6
    assert any("MessageTooLarge" in reason for reason in report.left)


@pytest.mark.parametrize("error", [UnauthorizedError("no"), UnknownServiceError("odd")])
@virtual_time
async def test_what_waiting_does_not_help_is_told_at_once(error: ServiceError) -> None:
    world = World()
    world.primary.fail("send", error=error)
    began = world.clock.monotonic()
    report = await world.restore(stored(10), patience_seconds=60)
    assert (report.sent, sum(report.left.values())) == ({}, 10)
    assert isinstance(report.first_error, type(error))
    waited = world.clock.monotonic() - began
    assert waited < 5 if isinstance(error, UnauthorizedError) else 30 <= waited < 200


@virtual_time
async def test_a_busy_namespace_is_waited_for_and_told_nothing_twice() -> None:
    world = World()
    world.primary.fail("send", error=ServerBusyError("busy"), times=2)
    report = await world.restore(stored(100))
    assert (report.sent, report.sent_again) == ({"orders": 100}, 0)
    assert len(world.arrived()) == 100


@virtual_time
async def test_what_may_have_arrived_twice_is_in_the_ledger(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "l.jsonl"
    world.primary.fail("send", error=ConnectionLostError("gone"), times=1, after=True)
    ledger = Ledger(path)
    report = await world.restore(stored(10), ledger=ledger)
    await ledger.close()
    assert (report.sent, report.sent_again) == ({"orders": 10}, 10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["attempts"] for line in lines if line["outcome"] == "forwarded"} == {2}


@virtual_time
async def test_stopped_it_says_how_many_are_left() -> None:
    world = World()
    world.primary.go_dark()
    asyncio.get_running_loop().call_later(5, world.stop.set)
    report = await world.restore(stored(100, sessions=2))
    assert (report.sent, report.left) == ({}, {INTERRUPTED: 100})


async def test_what_is_given_back_comes_first_and_is_seen_until_it_is_dealt_with() -> None:
    source = StoredMessages(one.received for one in stored(10))
    first = await source.receive(4, wait_seconds=0)
    await source.settle(first[2], Disposition.RELEASE)
    await source.settle(first[1], Disposition.RELEASE)
    source.forget(first[0])
    assert [one.sequence_number for one in await source.peek(10)] == [2, 3, 4]
    again = await source.receive(3, wait_seconds=0)
    assert [one.sequence_number for one in again] == [2, 3, 5]
    rest = [one.sequence_number for one in await source.receive(100, wait_seconds=0)]
    assert rest == list(range(6, 11))
    assert await source.receive(1, wait_seconds=0) == []


async def test_whoever_puts_in_waits_for_room_and_learns_of_the_end() -> None:
    source, numbers = StoredMessages(), itertools.count(1)
    some = [one.received for one in stored(3_000)]

    async def fill() -> int:
        while await source.put(some):
            next(numbers)
        return next(numbers) - 1

    filling = asyncio.create_task(fill())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not filling.done()
    assert len(await source.receive(10_000, wait_seconds=0)) == 6_000
    await source.close()
    assert await filling >= 2
