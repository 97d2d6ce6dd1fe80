"""A syphon that breaks down is started again; what it did and what it must not do twice is carried over."""

import asyncio
from dataclasses import replace

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import ConfigurationError, IncompatibleSdkError, SbpairError
from sbpair.core.events import BacklogCounted, Restarting
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.report import DrainReport, Left, together
from sbpair.core.transfer.state import Key
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest
from sbpair.runtime.transfer.ledger import Ledger, LedgerError
from sbpair.runtime.transfer.sinks import NamespaceSink
from sbpair.runtime.transfer.syphon import STEADY_SECONDS, SyphonRun, serve, syphon, syphon_until
from tests.fakes import FakeClock, FakeMessaging, FakeNamespace, FakeSender, RecordingObserver, virtual_time

QUEUE = "primary/x-servicebus-transfer/0"
REPORT = DrainReport(forwarded=1, completed=1, per_destination=(("orders", 1),), seconds=1.0)


class Runs:
    """Runs that break down as told, each after a time; the last one is stopped."""

    def __init__(self, stop: asyncio.Event, *broken: BaseException | None, seconds: float = 0.0) -> None:
        self._stop = stop
        self._broken = list(broken)
        self._seconds = seconds
        self.given: list[frozenset[Key]] = []

    async def __call__(self, uncompleted: frozenset[Key]) -> SyphonRun:
        self.given.append(uncompleted)
        await asyncio.sleep(self._seconds)
        broken = self._broken.pop(0)
        if broken is None:
            self._stop.set()
        return SyphonRun(REPORT, broken, frozenset({(QUEUE, len(self.given), None, 0)}))


@virtual_time
async def test_it_starts_again_with_growing_pauses_and_adds_up() -> None:
    stop, observer = asyncio.Event(), RecordingObserver()
    runs = Runs(stop, OSError("disk"), SbpairError("archive"), OSError("disk"), None)
    report = await serve(runs, stop=stop, clock=FakeClock(), observer=observer)
    assert [(one.error_code, one.seconds) for one in observer.of(Restarting)] == [
        ("OSError", 1.0),
        ("error", 2.0),
        ("OSError", 4.0),
    ]
    assert (report.forwarded, report.per_destination, report.seconds) == (4, (("orders", 4),), 7.0)
    assert [len(one) for one in runs.given] == [0, 1, 1, 1]


@virtual_time
async def test_after_a_steady_run_the_pauses_begin_anew() -> None:
    stop, observer = asyncio.Event(), RecordingObserver()
    runs = Runs(stop, OSError(), OSError(), OSError(), None, seconds=STEADY_SECONDS)
    await serve(runs, stop=stop, clock=FakeClock(), observer=observer)
    assert [one.seconds for one in observer.of(Restarting)] == [1.0, 1.0, 1.0]


@virtual_time
async def test_a_stop_during_the_pause_ends_it() -> None:
    stop, clock = asyncio.Event(), FakeClock()
    runs = Runs(stop, *[OSError() for _ in range(20)])
    asyncio.get_running_loop().call_later(100.0, stop.set)
    await serve(runs, stop=stop, clock=clock, observer=RecordingObserver())
    assert clock.monotonic() == pytest.approx(100.0)


@virtual_time
async def test_what_breaks_a_run_that_is_stopping_is_raised() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)
    with pytest.raises(OSError, match="disk"):
        await serve(
            Runs(stop, OSError("disk"), seconds=1.0), stop=stop, clock=FakeClock(), observer=RecordingObserver()
        )


@pytest.mark.parametrize("error", [ConfigurationError("wrong"), IncompatibleSdkError("moved")])
def test_what_no_restart_mends_is_raised(error: SbpairError) -> None:
    @virtual_time
    async def story() -> None:
        stop = asyncio.Event()
        with pytest.raises(type(error)):
            await serve(Runs(stop, error), stop=stop, clock=FakeClock(), observer=RecordingObserver())

    story()


def test_reports_together_keep_the_last_ones_leftovers() -> None:
    first = replace(REPORT, left=(Left("old", 3),), uncompleted=5, pings=1)
    last = replace(REPORT, left=(Left("new", 1),), uncompleted=2, dead_letter_reasons=(("x", 1),))
    report = together([first, last], seconds=9.0)
    assert (report.left, report.uncompleted, report.pings, report.seconds) == ((Left("new", 1),), 2, 1, 9.0)
    assert together([], seconds=0.0).forwarded == 0


class FullDisk(Ledger):
    """Fails while it is full."""

    full = True

    async def append(self, lines: bytes, room_bytes: int = 0, *, synced: bool = True) -> None:
        if self.full and synced:
            raise LedgerError("the disk is broken")
        await super().append(lines, room_bytes, synced=synced)


@virtual_time
async def test_what_was_sent_before_the_ledger_failed_is_completed_and_not_sent_by_the_next_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    clock, stop = FakeClock(), asyncio.Event()
    primary, secondary = FakeNamespace("primary", clock), FakeNamespace("secondary", clock)
    primary.add_queue("orders")
    secondary.add_queue(QUEUE, QueueSettings(lock_duration_seconds=5.0))
    for number in range(20):
        secondary.put(QUEUE, for_backlog(compose(body=b"x", message_id=str(number)), "orders"))
    ledger = FullDisk(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")
    asyncio.get_running_loop().call_later(60.0, stop.set)

    async def run(uncompleted: frozenset[Key]) -> SyphonRun:
        ledger.full = not uncompleted
        return await syphon_until(
            DrainJob(
                TransferRequest((QUEUE,)),
                secondary=secondary.messaging(),
                primary=primary.messaging(),
                clock=clock,
                observer=RecordingObserver(),
                ledger=ledger,
                stop=stop,
            ),
            uncompleted=uncompleted,
        )

    report = await serve(run, stop=stop, clock=clock, observer=RecordingObserver())
    await ledger.close()
    assert len(primary.queue("orders").payloads) == 20
    assert not secondary.queue(QUEUE).messages
    assert (report.already_forwarded, report.uncompleted) == (20, 0)


@virtual_time
async def test_the_queues_are_counted_once_a_poll() -> None:
    clock, stop, observer = FakeClock(), asyncio.Event(), RecordingObserver()
    primary, secondary = FakeNamespace("primary", clock), FakeNamespace("secondary", clock)
    primary.add_queue("orders")
    secondary.add_queue(QUEUE)
    asyncio.get_running_loop().call_later(3.5 * 900, stop.set)
    report = await syphon(
        DrainJob(
            TransferRequest((QUEUE,)),
            secondary=secondary.messaging(),
            primary=primary.messaging(),
            admin=secondary.admin(),
            clock=clock,
            observer=observer,
            stop=stop,
        )
    )
    assert [one.messages for one in observer.of(BacklogCounted)] == [0, 0, 0, 0]
    assert (report.forwarded, report.ended_by, report.confirmed_empty) == (0, "stop", False)


@virtual_time
async def test_a_syphon_closes_the_links_that_it_has_opened_and_no_others() -> None:
    clock, stop = FakeClock(), asyncio.Event()
    primary, secondary = FakeNamespace("primary", clock), FakeNamespace("secondary", clock)
    primary.add_queue("orders")
    secondary.add_queue(QUEUE)
    made: list[FakeSender] = []

    class Messaging(FakeMessaging):
        def sender(self, entity: str) -> FakeSender:
            made.append(super().sender(entity))
            return made[-1]

    secondary.put(QUEUE, for_backlog(compose(body=b"x", message_id="a"), "orders"))
    own = NamespaceSink(Messaging(primary))
    job = DrainJob(
        TransferRequest((QUEUE,)),
        secondary=secondary.messaging(),
        primary=Messaging(primary),
        clock=clock,
        observer=RecordingObserver(),
        stop=stop,
    )
    for sink, closed in ((None, True), (own, False)):
        stop.clear()
        asyncio.get_running_loop().call_later(30.0, stop.set)
        secondary.put(QUEUE, for_backlog(compose(body=b"x", message_id=str(sink)), "orders"))
        await syphon(replace(job, sink=sink))
        assert made[-1].closed is closed
    await own.close()
    assert [one.closed for one in made] == [True, True]


@pytest.mark.parametrize("request_", [{"rate_per_second": 5.0}, {"in_flight_messages": 2}], ids=["rate", "window"])
def test_polls_of_empty_queues_leave_every_other_queue_its_turn(request_: dict[str, float]) -> None:
    """What may be in flight is less than what the polls of all queues together ask for."""
    queues = tuple(f"primary/x-servicebus-transfer/{number}" for number in range(4))

    @virtual_time
    async def story() -> None:
        clock, stop = FakeClock(), asyncio.Event()
        primary, secondary = FakeNamespace("primary", clock), FakeNamespace("secondary", clock)
        primary.add_queue("orders")
        for queue in queues:
            secondary.add_queue(queue)

        def divert() -> None:
            for queue in queues[1:]:
                secondary.put(queue, for_backlog(compose(body=b"x", message_id=queue), "orders"))

        loop = asyncio.get_running_loop()
        loop.call_later(60.0, divert)
        loop.call_later(120.0, stop.set)
        report = await syphon(
            DrainJob(
                TransferRequest(queues, **request_),
                secondary=secondary.messaging(),
                primary=primary.messaging(),
                clock=clock,
                observer=RecordingObserver(),
                stop=stop,
            )
        )
        assert report.completed == 3

    story()
