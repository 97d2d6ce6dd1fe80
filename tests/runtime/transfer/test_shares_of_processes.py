"""A drain by several processes, seen from either end of their pipe: shares, events, lines, waits, ends."""

import asyncio
import multiprocessing
import queue
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.concurrency import end, waiting
from sbpair.core.entities import Counts, QueueFacts, QueueSettings
from sbpair.core.errors import ServerBusyError, ServiceError
from sbpair.core.events import BacklogCounted, Forwarded, ProcessLost
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.report import DrainReport, QueueFailure
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.usage import Usage
from sbpair.runtime.transfer import processes
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest
from sbpair.runtime.transfer.ledger import LedgerError
from sbpair.runtime.transfer.processes import Share, drain_in_processes, shares_of
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.runtime.transfer.works import EXIT_CODE, STOPPED, ByName
from tests.waiting import LIMIT_SECONDS


def test_queues_are_shared_so_that_each_process_has_about_as_many_messages() -> None:
    assert shares_of("abcd", 2, {"a": 1, "b": 9, "c": 5, "d": 4}) == [("b", "a"), ("c", "d")]
    assert shares_of("abc", 9, {}) == [("a",), ("b",), ("c",)]
    assert shares_of("abc", 2, {}) == [("a", "c"), ("b",)]
    assert shares_of("ab", 0, {}) == [("a", "b")]
    assert shares_of("", 3, {}) == [()]


class Lines:
    """A ledger: what was appended."""

    way = None
    forwarded = frozenset({("Q/1", 1, None, 0), ("q/1/$DeadLetterQueue", 2, None, 0), ("q/2", 3, None, 0)})

    def __init__(self) -> None:
        self.appended: list[tuple[list[bytes], int, bool]] = []
        self.error: Exception | None = None

    async def append(self, lines: list[bytes], room_bytes: int, *, synced: bool) -> None:
        self.appended.append((lines, room_bytes, synced))
        if self.error is not None:
            raise self.error


def a_job(ledger: Any = None, facts: Any = None) -> DrainJob:
    namespace = FakeNamespace("n", FakeClock())
    return DrainJob(
        TransferRequest(("q/1", "q/2")),
        secondary=namespace.messaging(),
        primary=namespace.messaging(),
        clock=namespace.clock,
        observer=RecordingObserver(),
        ledger=ledger,
        facts=facts,
        stop=asyncio.Event(),
    )


@virtual_time
async def test_a_share_has_what_is_known_of_its_queues_alone() -> None:
    facts = {path: QueueFacts(path, QueueSettings(), Counts(active=1)) for path in ("Q/1", "q/2")}
    share = processes._share(a_job(), ("q/1",))
    assert (share.request.queues, share.facts, share.has_ledger, share.forwarded) == (
        ("q/1",),
        None,
        False,
        frozenset(),
    )
    for spelled in ("q/1", "Q/1"):
        share = processes._share(a_job(Lines(), facts), (spelled,))
        assert (list(share.facts or ()), share.has_ledger) == (["Q/1"], True)
        assert {key[1] for key in share.forwarded} == {1, 2}


FAILURE = QueueFailure("q", ServerBusyError("first"))
OTHER = QueueFailure("r", ServerBusyError("second"))


@pytest.mark.parametrize(
    ("report", "lost", "raised"),
    [
        (DrainReport(broken_off="bad filter"), False, FilterError),
        (DrainReport(broken_off="bad filter"), True, None),
        (DrainReport(broken_off="bad filter", forwarded=1), False, None),
        (DrainReport(failures=(FAILURE, OTHER)), False, ServiceError),
        (DrainReport(failures=(FAILURE, OTHER)), True, None),
        (DrainReport(failures=(FAILURE,)), False, None),
        (DrainReport(failures=(FAILURE, OTHER), forwarded=1), False, None),
    ],
)
def test_a_run_of_several_ends_as_one_of_a_single_process(
    report: DrainReport, lost: bool, raised: type[Exception] | None
) -> None:
    request = TransferRequest(("q/1", "q/2"))
    if raised is not None:
        with pytest.raises(raised, match=r"bad filter|first"):
            processes._as_of_one(report, request, lost=lost)
        return
    told = processes._as_of_one(report, request, lost=lost)
    assert told.ended_by == ("filter" if report.broken_off else report.ended_by)


class Pipe:
    """An end of a pipe: what was sent; what comes, until nobody is there."""

    def __init__(self, *coming: Any) -> None:
        self.sent: list[Any] = []
        self.coming = list(coming)

    def send(self, value: Any) -> None:
        self.sent.append(value)

    def recv(self) -> Any:
        if not self.coming:
            raise EOFError
        return self.coming.pop(0)


class Process:
    """A process that has ended, ends while it is waited for (`ends_with`), or does not."""

    def __init__(self, exitcode: int | None, ends_with: int | None = None) -> None:
        self.exitcode = exitcode
        self.ends_with = ends_with
        self.killed = 0
        self.joined: list[float | None] = []

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.killed, self.exitcode = self.killed + 1, -9

    def join(self, timeout: float | None = None) -> None:
        self.joined.append(timeout)
        self.exitcode = self.ends_with if self.exitcode is None else self.exitcode


def a_worker(ledger: Any = None, exitcode: int | None = None) -> tuple[Any, Any, asyncio.Event, RecordingObserver]:
    job, halt = a_job(ledger), asyncio.Event()
    worker = processes._Worker(3, job, processes._share(job, ("q/1", "q/2")), halt)
    worker._process = process = Process(exitcode)
    assert isinstance(job.observer, RecordingObserver)
    return worker, process, halt, job.observer


def forwarded(entity: str, messages: int) -> Forwarded:
    return Forwarded(0.0, "q/1", entity, messages, 10 * messages)


@virtual_time
async def test_what_a_process_tells_is_taken_for_what_it_is() -> None:
    ledger, pipe = Lines(), Pipe()
    worker, process, halt, observer = a_worker(ledger)
    with waiting("") as worker._wait:
        worker._told(pipe, "wait", ("read q", 1.0, "busy", 2.0, "then", "It waits."))
        wait = worker._wait
        assert (wait.tried, wait.since, wait.error, wait.until, wait.afterwards, wait.sentence) == (
            *("read q", 1.0, "busy", 2.0, "then"),
            "It waits.",
        )
        worker._told(pipe, "wait", None)
        assert (wait.tried, wait.error, wait.until, wait.afterwards, wait.detail()) == ("", "", None, "", "")
    worker._told(pipe, "event", forwarded("orders", 2))
    worker._told(pipe, "event", BacklogCounted(0.0, "q/1", 5))
    worker._told(pipe, "lines", (7, [b"line"], 40, False))
    await asyncio.gather(*worker._recording)
    assert (ledger.appended, pipe.sent) == ([([b"line"], 40, False)], [("written", (7, None))])
    ledger.error = LedgerError("full")
    worker._told(pipe, "lines", (8, [b"line"], 0, True))
    await asyncio.gather(*worker._recording)
    assert pipe.sent[-1] == ("written", (8, ledger.error))
    assert (len(observer.events), worker.error, halt.is_set(), worker._recording) == (2, None, False, set())
    report, usage = DrainReport(forwarded=4), Usage()
    worker._told(pipe, "done", (report, usage))
    assert (worker.report, worker.usage, halt.is_set(), worker._over.is_set()) == (report, usage, False, True)
    worker._gone()
    assert (worker.lost, process.killed) == (False, 0), "it has said how it went"
    worker._told(pipe, "done", (DrainReport(broken_off="filter"), usage))
    assert halt.is_set(), "the others need not go on"


@virtual_time
async def test_the_first_error_ends_the_others() -> None:
    ledger = Lines()
    worker, _, halt, _ = a_worker(ledger)
    ledger.error = OSError("unexpected")
    await worker._record(Pipe(), 1, [b""], 0, True)
    worker._told(Pipe(), "failed", ServerBusyError("later"))
    assert (worker.error, halt.is_set(), worker._over.is_set()) == (ledger.error, True, True)
    without, _, halt, _ = a_worker()
    await without._record(Pipe(), 1, [b""], 0, True)
    assert (type(without.error), halt.is_set()) == (RuntimeError, True)
    other, _, halt, _ = a_worker()
    other._guarded(other._told, Pipe(), "done", None)
    assert (type(other.error), halt.is_set()) == (TypeError, True)


@pytest.mark.parametrize(
    ("exitcode", "ends_with", "how", "killed"),
    [
        (-15, None, "was ended by SIGTERM", 0),
        (3, None, "ended with 3", 0),
        (0, None, "ended with 0", 0),
        (None, 4, "ended with 4", 0),
        (None, None, "by SIGKILL", 1),
    ],
)
def test_a_process_that_is_gone_without_a_word_is_told_with_what_it_had_moved(
    exitcode: int | None, ends_with: int | None, how: str, killed: int
) -> None:
    @virtual_time
    async def story() -> None:
        worker, process, halt, observer = a_worker(exitcode=exitcode)
        process.ends_with = ends_with
        for entity, messages in (("orders", 2), ("invoices", 1), ("Orders", 3)):
            worker._notify(forwarded(entity, messages))
        with waiting("") as worker._wait:
            worker._wait.tried = "read q"
            worker._gone()
            assert worker._wait.tried == ""
        report = worker.report
        assert (report.forwarded, report.completed, report.forwarded_bytes) == (6, 6, 60)
        assert dict(report.per_destination) == {"Orders": 5, "invoices": 1}
        assert [one.queue for one in report.failures] == ["q/1", "q/2"]
        [lost] = observer.of(ProcessLost)
        assert how in lost.how
        assert "Process 3 of this drain" in lost.how
        assert (worker.lost, worker._over.is_set(), halt.is_set(), process.killed) == (True, True, False, killed)

    story()


@virtual_time
async def test_a_process_that_does_not_stop_in_time_is_ended() -> None:
    worker, process, halt, _ = a_worker()
    pipe = Pipe()
    stopping = asyncio.create_task(worker._stop(pipe))
    await asyncio.sleep(1000.0)
    assert (pipe.sent, process.killed) == ([], 0)
    halt.set()
    await asyncio.sleep(processes.STOP_SECONDS / 2)
    assert (pipe.sent, process.killed) == ([("stop", None)], 0)
    await stopping
    assert process.killed == 1
    worker.kill()
    assert process.killed == 1, "it has ended"
    process.exitcode = None
    worker.kill()
    assert (process.killed, process.joined) == (2, [None]), "it is waited for"
    worker._process = None
    worker.kill()


def there(pipe: Pipe) -> processes._There:
    return processes._There(pipe, Share(TransferRequest(("q",)), None, True, None, frozenset()))  # type: ignore[arg-type]


async def until_sent(pipe: Pipe, count: int) -> None:
    while len(pipe.sent) < count:
        await asyncio.sleep(0)


@virtual_time
async def test_lines_are_written_by_the_process_that_has_the_ledger_and_waited_for() -> None:
    pipe = Pipe()
    recorder = there(pipe)
    recorder.notify(BacklogCounted(0.0, "q", 5))
    writing = [asyncio.create_task(recorder.append([b"line"], 40, synced=synced)) for synced in (True, False)]
    await until_sent(pipe, 3)
    assert [one[0] for one in pipe.sent] == ["event", "lines", "lines"]
    assert [one[1] for one in pipe.sent[1:]] == [(0, [b"line"], 40, True), (1, [b"line"], 40, False)]
    recorder._written(1, None)
    recorder._written(9, None)
    await writing[1]
    assert not writing[0].done()
    recorder._written(0, LedgerError("full"))
    recorder._written(0, None)
    with pytest.raises(LedgerError, match="full"):
        await writing[0]
    assert recorder._unwritten == {}
    waits = asyncio.create_task(recorder.append([b"line"]))
    await until_sent(pipe, 4)
    assert pipe.sent[-1][1][2:] == (0, True)
    assert not recorder.stop.is_set()
    recorder._left_alone()
    recorder._left_alone()
    with pytest.raises(LedgerError, match="is gone"):
        await waits
    with pytest.raises(LedgerError, match="is gone"):
        await recorder.append([b"line"])
    assert (recorder.stop.is_set(), len(pipe.sent)) == (True, 4)


async def test_what_is_said_there_is_done_until_nobody_is_there() -> None:
    pipe = Pipe(("written", (0, None)), ("stop", None))
    recorder = there(pipe)
    writing = asyncio.create_task(recorder.append([b"line"]))
    await until_sent(pipe, 1)
    await asyncio.to_thread(recorder.read, asyncio.get_running_loop())
    async with asyncio.timeout(60):
        await writing
        await recorder.stop.wait()
        while not recorder._gone:
            await asyncio.sleep(0)


@virtual_time
async def test_a_wait_is_told_when_it_is_another_one() -> None:
    pipe = Pipe()
    recorder = there(pipe)
    telling = asyncio.create_task(recorder.tell_waits())
    for tried in ("read q", "read r"):
        with waiting(tried):
            await asyncio.sleep(5 * processes._LOOK_SECONDS)
    await asyncio.sleep(5 * processes._LOOK_SECONDS)
    telling.cancel()
    assert [value and value[0] for _, value in pipe.sent] == ["read q", "read r", None]


@virtual_time
async def test_errors_of_the_other_process_come_back_with_where_they_were_raised() -> None:
    async def fails(share: Share, observer: Any, ledger: Any, stop: asyncio.Event) -> Any:
        assert ledger is (observer if share.has_ledger else None)
        raise error

    for error, notes in ((ValueError("odd"), 1), (OSError("disk"), 0), (ServerBusyError("busy"), 0)):
        for has_ledger in (True, False):
            pipe: Any = SimpleNamespace(send=lambda value: None, recv=_nothing)
            share = Share(TransferRequest(("q",)), None, has_ledger, None, frozenset())
            if has_ledger:
                found = await processes._in_process(pipe, fails, share)
                assert found == ("failed", error)
                assert len(getattr(error, "__notes__", [])) == notes


def _nothing() -> Sequence[Any]:
    raise EOFError


# Real processes.


class Book(Lines):
    """A ledger whose lines are what a process wrote of itself."""

    forwarded = frozenset()

    @property
    def written(self) -> list[bytes]:
        return sorted(line for lines, _, _ in self.appended for line in lines)


def a_real_job(*queues: str, observer: Any = None, messages: Sequence[int | None] | None = None) -> DrainJob:
    known = zip(queues, messages or (), strict=False)
    facts = {path: one if one is None else QueueFacts(path, QueueSettings(), Counts(active=one)) for path, one in known}
    job = a_job(Book(), facts or None)
    return replace(job, request=TransferRequest(queues), clock=LoopClock(), observer=observer or RecordingObserver())


def counted(job: DrainJob) -> list[tuple[str, int]]:
    assert isinstance(job.observer, RecordingObserver)
    return sorted((one.queue, one.messages) for one in job.observer.of(BacklogCounted))


async def test_processes_drain_their_shares_and_are_one_run() -> None:
    job = a_real_job("a", "b writes", "c writes", "d", "none", messages=[1, 9, 5, 4, None])
    usage, signals = Usage(browses=100), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    async with asyncio.timeout(LIMIT_SECONDS):
        report = await drain_in_processes(job, ByName(), 2, usage)
    assert isinstance(job.ledger, Book)
    sheltered = b"SIGINT SIGTERM SIGHUP SIGINT SIGTERM SIGHUP daemon"
    assert job.ledger.written == [b"b writes a " + sheltered, b"c writes d none " + sheltered]
    assert counted(job) == [("a", 2), ("b writes", 2), ("c writes", 3), ("d", 3), ("none", 3)]
    assert (report.forwarded, report.ended_by, report.failures) == (5, "empty", ())
    assert 0.0 < report.seconds < LIMIT_SECONDS
    assert usage == Usage(2, 104, 6, 8)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == signals
    assert multiprocessing.active_children() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_in_one_process_stops_the_others_and_is_raised() -> None:
    job = a_real_job("a waits", "b fails")
    async with asyncio.timeout(LIMIT_SECONDS):
        with pytest.raises(ServerBusyError, match="busy"):
            await drain_in_processes(job, ByName(), 9, Usage())
    assert ("a waits", STOPPED) in counted(job), "it was asked to stop, and told to its end"
    assert multiprocessing.active_children() == []


async def test_a_drain_that_is_cancelled_leaves_no_process() -> None:
    began = Setting(BacklogCounted)
    draining = asyncio.create_task(drain_in_processes(a_real_job("a waits", observer=began), ByName(), 1, Usage()))
    async with asyncio.timeout(LIMIT_SECONDS):
        await began.event.wait()
        await end(draining)
    assert draining.cancelled()
    assert multiprocessing.active_children() == []


class Setting(RecordingObserver):
    """Sets an event once it is told of something."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind, self.event = kind, asyncio.Event()

    def notify(self, event: Any) -> None:
        super().notify(event)
        if isinstance(event, self.kind):
            self.event.set()


async def test_the_others_go_on_without_a_process_that_is_gone() -> None:
    observer = Setting(ProcessLost)
    job = replace(a_real_job("a waits", "b gone", observer=observer), stop=observer.event)
    async with asyncio.timeout(LIMIT_SECONDS):
        report = await drain_in_processes(job, ByName(), 2, Usage())
    [lost] = observer.of(ProcessLost)
    assert lost.how.startswith(f"Process 2 of this drain ended with {EXIT_CODE}.")
    assert [one.queue for one in report.failures] == ["a waits", "b gone"], "nothing moved, as far as is known"


class OnThread(processes._Worker):
    """A process whose end of the pipe the test holds."""

    def _start(self, work: Any) -> Any:
        self._process = Process(0)
        return work


async def test_lines_of_a_process_that_is_gone_are_written_before_its_run_ends() -> None:
    writing, may_end, said = asyncio.Event(), asyncio.Event(), queue.SimpleQueue[Any]()

    class Slow(Lines):
        async def append(self, lines: list[bytes], room_bytes: int, *, synced: bool) -> None:
            writing.set()
            await may_end.wait()
            await super().append(lines, room_bytes, synced=synced)

    def recv() -> Any:
        if (value := said.get()) is None:
            raise EOFError
        return value

    job = a_job(ledger := Slow())
    worker = OnThread(1, job, processes._share(job, ("q/1",)), asyncio.Event())
    pipe: Any = SimpleNamespace(recv=recv, send=lambda value: None)
    running = asyncio.create_task(worker.run(pipe))
    said.put(("lines", (1, [b"line"], 0, True)))
    async with asyncio.timeout(LIMIT_SECONDS):
        await writing.wait()
        assert [one.daemon for one in threading.enumerate() if one.name.endswith("(_read)")] == [True]
        assert not running.done()
        said.put(None)
        await worker._over.wait()
        may_end.set()
        await running
    assert (ledger.appended, worker.lost) == ([([b"line"], 0, True)], True)
    assert worker._process.joined[-1] == processes.STOP_SECONDS
