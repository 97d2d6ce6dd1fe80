"""What a syphon and a drain ask of the namespace, counted by the namespace itself, against what the estimate says."""

import asyncio

from sbpair.core.cost.model import Kind, Month, Workload, operations, polling_syphon
from sbpair.core.events import Polled
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, counted_admin
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.syphon import syphon
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.runtime.transfer.test_drain_emulator import Stage, stage
from tests.waiting import LIMIT_SECONDS

NEVER = 10**9
POLL_SECONDS = 2
POLLS = 3
IDLE_HOURS = 3


def count_requests(on: Stage) -> str:
    """A fault that never strikes, but counts what it might have struck: management requests to the secondary."""
    return on.emulator.faults("secondary").add(f"fail:op=http,after={NEVER}")


def requests(on: Stage, fault: str) -> int:
    return next(one.seen for one in on.emulator.faults("secondary").list() if one.id == fault)


@virtual_time
async def test_idle_hours_of_a_syphon_are_what_the_estimate_counts() -> None:
    clock, stop, usage = FakeClock(), asyncio.Event(), Usage()
    primary, secondary = FakeNamespace("primary", clock), FakeNamespace("secondary", clock)
    queues = tuple(f"primary/x-servicebus-transfer/{index}" for index in range(10))
    for path in queues:
        secondary.add_queue(path)
    asyncio.get_running_loop().call_later(IDLE_HOURS * 3600 + 1, stop.set)
    await syphon(
        DrainJob(
            TransferRequest(queues, later_queues=True),
            secondary=CountedMessaging(secondary.messaging(), usage),
            primary=primary.messaging(),
            admin=counted_admin(secondary.admin(), usage),
            clock=clock,
            observer=RecordingObserver(),
            stop=stop,
        )
    )
    hours = Workload(syphon=polling_syphon(900), month=Month("some hours", IDLE_HOURS))
    counted = {line.kind: line.count for line in operations(hours)}
    assert usage.empty_receives == counted[Kind.SYPHON_POLL] == 120
    assert usage.management_calls == counted[Kind.MANAGEMENT] + 1 == 13  # one list for the start
    assert (usage.browses, usage.renewals) == (0, 0)


async def test_the_namespace_itself_counts_no_more_than_that() -> None:
    async with stage(6) as on:
        fault, usage, clock = count_requests(on), Usage(), LoopClock()
        began = clock.monotonic()
        running = asyncio.create_task(
            syphon(
                DrainJob(
                    TransferRequest(on.queues, later_queues=True),
                    secondary=CountedMessaging(on.secondary, usage),
                    primary=on.primary,
                    admin=counted_admin(on.admin, usage),
                    clock=clock,
                    observer=on.observer,
                    stop=on.stop,
                ),
                poll_seconds=POLL_SECONDS,
            )
        )
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(on.observer.of(Polled)) < 6 * POLLS:
                await asyncio.sleep(0.1)
        on.stop.set()
        await running
        most = (clock.monotonic() - began) / POLL_SECONDS + 1
        asked = requests(on, fault)
        assert asked <= usage.management_calls <= most + 1
        assert usage.management_calls - asked <= 1  # the stop may end a list that is on its way
        assert asked >= 2
        assert usage.empty_receives <= 6 * most


async def test_a_drain_lists_its_queues_once_before_and_once_after() -> None:
    async with stage(5) as on:
        fault, usage = count_requests(on), Usage()
        report = await drain(
            DrainJob(
                TransferRequest(on.queues),
                secondary=CountedMessaging(on.secondary, usage),
                primary=on.primary,
                admin=counted_admin(on.admin, usage),
                clock=LoopClock(),
                observer=on.observer,
                stop=on.stop,
            )
        )
        assert report.confirmed_empty
        assert requests(on, fault) == usage.management_calls == 2
        assert usage.browses == 5
        assert usage.empty_receives >= 5
