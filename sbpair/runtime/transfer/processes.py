"""A drain in several processes, for a backlog that one core cannot move as fast as the namespaces would.

Each process empties queues of its own, so that the order within a queue is what it is in one process. There is one
ledger, in the process that began the others: they send it their lines, and settle a message once they have been told
that its line is on disk. Signals are for that process alone, which asks the others to stop; if it is gone, so is the
pipe to them, and they stop by themselves.
"""

import asyncio
import itertools
import multiprocessing
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol

from sbpair.concurrency import Wait, end, waiting, waits
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import SbpairError, UnknownServiceError
from sbpair.core.events import Event, Forwarded, ProcessLost
from sbpair.core.names import DEAD_LETTER_SUFFIX, Names
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.ledger import Way
from sbpair.core.transfer.report import DrainReport, QueueFailure, in_order, parts_together
from sbpair.core.transfer.state import Key
from sbpair.ports import Observer
from sbpair.runtime.inspection.usage import Usage
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, halt_in_time
from sbpair.runtime.transfer.ledger import LedgerError, Recorder

STOP_SECONDS = 30.0
"""A process that has been told to stop is ended after this time: a drain stops within ten."""
_EXIT_SECONDS = 1.0
"""From the end of the pipe to that of its process."""
_LOOK_SECONDS = 0.5
"""How often a process tells what it waits for."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True, slots=True)
class Share:
    """What one process is to do."""

    request: TransferRequest
    """With its own queues."""
    facts: Mapping[str, QueueFacts | None] | None
    has_ledger: bool
    way: Way | None
    """That of the ledger."""
    forwarded: frozenset[Key]
    """What the ledger has of its queues."""


_Told = tuple[str, float, str, float | None, str, str]
"""The fields of a wait, and last its sentence. Its clock is that of the machine."""


class Work(Protocol):
    """Drains a share in a process of its own, as one `part` of a run. It is pickled to get there, so it holds no
    secret: it finds those as the process did that began it."""

    async def __call__(
        self, share: Share, observer: Observer, ledger: Recorder | None, stop: asyncio.Event
    ) -> tuple[DrainReport, Usage]: ...


def shares_of(queues: Sequence[str], processes: int, messages: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The queues of each process, with about as many messages for each where their numbers are known."""
    shares: list[list[str]] = [[] for _ in range(max(1, min(processes, len(queues))))]
    for path in sorted(queues, key=lambda one: -messages.get(one, 0)):
        min(shares, key=lambda share: (sum(messages.get(one, 0) for one in share), len(share))).append(path)
    return [tuple(share) for share in shares]


async def drain_in_processes(job: DrainJob, work: Work, processes: int, usage: Usage) -> DrainReport:
    """`drain` with the request's queues shared among that many processes, one for each queue at the most. Each has as
    many messages and batches under way as a single one would: with fewer a message takes more CPU time. `usage` gets
    what they asked of the namespaces. The job's ends are those of this process; the others open their own.

    Raises:
        ServiceError: no queue at all could be read; the first one's error.
        FilterError: the filter cannot be evaluated for a message, and nothing had moved; otherwise the report says so.
        LedgerError: the ledger cannot be written.
    """
    request, began = job.request, job.clock.monotonic()
    known = {path: request.expected(one.counts) for path, one in (job.facts or {}).items() if one is not None}
    halt = asyncio.Event()
    shares = shares_of(request.queues, processes, known)
    workers = [_Worker(number, job, _share(job, queues), halt) for number, queues in enumerate(shares, 1)]
    halting = asyncio.create_task(halt_in_time(halt, job.stop, None))
    try:
        await asyncio.gather(*(worker.run(work) for worker in workers))
    finally:
        await end(halting)
        for worker in workers:
            worker.kill()
    for worker in workers:
        usage.add(worker.usage)
        if worker.error is not None:
            raise worker.error
    report = parts_together([worker.report for worker in workers], seconds=job.clock.monotonic() - began)
    return _as_of_one(report, request, lost=any(worker.lost for worker in workers))


def _share(job: DrainJob, queues: tuple[str, ...]) -> Share:
    request, ledger, own = replace(job.request, queues=queues), job.ledger, Names(queues)
    known = None if job.facts is None else {path: one for path, one in job.facts.items() if path in own}
    if ledger is None:
        return Share(request, known, has_ledger=False, way=None, forwarded=frozenset())
    forwarded = frozenset(key for key in ledger.forwarded if key[0].lower().removesuffix(_DEAD_LETTERS) in own)
    return Share(request, known, has_ledger=True, way=ledger.way, forwarded=forwarded)


_DEAD_LETTERS = f"/{DEAD_LETTER_SUFFIX}".lower()


def _as_of_one(report: DrainReport, request: TransferRequest, *, lost: bool) -> DrainReport:
    """The report that one process would have made, which raises what ended it before anything had moved. `lost`: not
    every process lived to tell what it moved."""
    if report.broken_off is not None:
        if not report.has_moved and not lost:
            raise FilterError(report.broken_off).with_state(request.undone)
        return replace(report, ended_by="filter")
    if not report.has_moved and not lost and len(report.failures) == len(request.queues) * len(request.kinds):
        raise report.failures[0].error.with_state(request.none_readable)
    return report


class _Worker:
    """One process, as the one sees it that began it."""

    def __init__(self, number: int, job: DrainJob, share: Share, halt: asyncio.Event) -> None:
        self.report = DrainReport()
        self.usage = Usage()
        self.error: BaseException | None = None
        self.lost = False
        """It ended without a word."""
        self._number = number
        self._job = job
        self._share = share
        self._halt = halt
        self._over = asyncio.Event()
        self._recording: set[asyncio.Task[None]] = set()
        self._told_messages: Counter[str] = Counter()
        self._told_bytes = 0
        self._process: Any = None
        self._wait = Wait("", 0.0)

    async def run(self, work: Work) -> None:
        """Until the process has said how it went, or is gone."""
        connection = self._start(work)
        loop = asyncio.get_running_loop()
        reading = threading.Thread(target=self._read, args=(connection, loop), daemon=True)
        reading.start()
        stopping = asyncio.create_task(self._stop(connection))
        try:
            with waiting("") as self._wait:
                await self._over.wait()
            await asyncio.gather(*self._recording)
        finally:
            await end(stopping)
        await asyncio.to_thread(self._process.join, STOP_SECONDS)

    def _start(self, work: Work) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, work, self._share), daemon=True)
        with _signals_held():
            self._process.start()
        theirs.close()
        return ours

    def kill(self) -> None:
        """End the process if it has not ended."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()

    async def _stop(self, connection: Connection) -> None:
        await self._halt.wait()
        with suppress(OSError):
            connection.send(("stop", None))
        await asyncio.sleep(STOP_SECONDS)
        self._process.kill()

    def _read(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: what the process says, until it says no more."""
        with suppress(RuntimeError):  # the loop is over: nobody listens any more
            try:
                with suppress(EOFError, OSError):
                    while True:
                        loop.call_soon_threadsafe(self._guarded, self._told, connection, *connection.recv())
            finally:
                loop.call_soon_threadsafe(self._guarded, self._gone)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Nobody else would hear of an error here."""
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where the processes were begun
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._halt.set()
        self._over.set()

    def _told(self, connection: Connection, kind: str, value: Any) -> None:
        match kind:
            case "lines":
                task = asyncio.create_task(self._record(connection, *value))
                self._recording.add(task)
                task.add_done_callback(self._recording.discard)
            case "event":
                self._notify(value)
            case "wait":
                self._waits_for(value)
            case "done":
                self.report, self.usage = value
                if self.report.broken_off is not None:
                    self._halt.set()
                self._over.set()
            case "failed":
                self._fail(value)

    async def _record(
        self, connection: Connection, number: int, lines: Sequence[bytes], room_bytes: int, synced: bool
    ) -> None:
        error = None
        try:
            if self._job.ledger is None:
                raise RuntimeError("a process without a ledger sent lines for one")
            await self._job.ledger.append(lines, room_bytes, synced=synced)
        except LedgerError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - as in `_guarded`
            self._fail(raised)
            return
        with suppress(OSError):
            connection.send(("written", (number, error)))

    def _notify(self, event: Event) -> None:
        if isinstance(event, Forwarded):
            self._told_messages[event.entity] += event.messages
            self._told_bytes += event.size_bytes
        self._job.observer.notify(event)

    def _waits_for(self, told: _Told | None) -> None:
        """What it waits for is what this one waits for."""
        wait, nothing = self._wait, ("", 0.0, "", None, "", "")
        wait.tried, wait.since, wait.error, wait.until, wait.afterwards, sentence = nothing if told is None else told
        wait.detail = partial(str, sentence)

    def _gone(self) -> None:
        """The process has ended without a word. What it told of is all that is known."""
        if self._over.is_set():
            return
        self._waits_for(None)
        self._process.join(_EXIT_SECONDS)
        self.kill()
        code = self._process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        moved = self._told_messages.total()
        said = (
            f"Process {self._number} of this drain {how}. What it held stays locked until its locks run out, and what "
            "it moved in its last half second is not counted."
        )
        error, queues = UnknownServiceError(said), self._share.request.queues
        self._job.observer.notify(ProcessLost(self._job.clock.now().timestamp(), queues, said))
        self.lost = True
        self.report = DrainReport(
            forwarded=moved,
            forwarded_bytes=self._told_bytes,
            completed=moved,
            per_destination=in_order(self._told_messages, entities=True),
            failures=tuple(QueueFailure(path, error) for path in queues),
        )
        self._over.set()


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process that is begun here has the signals blocked that stop this one: a terminal and a service manager send
    them to both. One that comes meanwhile is delivered afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: `_main` ignores them once it runs
        yield
        return
    resource_tracker.ensure_running()  # the first process would start it, which takes the block off again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the other process.


def _main(connection: Connection, work: Work, share: Share) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # nobody is there to be told
        connection.send(asyncio.run(_in_process(connection, work, share)))


async def _in_process(connection: Connection, work: Work, share: Share) -> tuple[str, Any]:
    there = _There(connection, share)
    threading.Thread(target=there.read, args=(asyncio.get_running_loop(),), daemon=True).start()
    telling = asyncio.create_task(there.tell_waits())
    try:
        return "done", await work(share, there, there if share.has_ledger else None, there.stop)
    except Exception as error:  # noqa: BLE001 - raised in the process that began this one
        if not isinstance(error, SbpairError | OSError):
            error.add_note("".join(traceback.format_exception(error)))
        return "failed", error
    finally:
        await end(telling)


class _There(Recorder):
    """The process that began this one: it is told what happens, and has the ledger."""

    def __init__(self, connection: Connection, share: Share) -> None:
        super().__init__(share.way, share.forwarded)
        self.stop = asyncio.Event()
        self._connection = connection
        self._numbers = itertools.count()
        self._unwritten: dict[int, asyncio.Future[None]] = {}
        self._gone = False

    def notify(self, event: Event) -> None:
        self._send("event", event)

    async def append(self, lines: Sequence[bytes], room_bytes: int = 0, *, synced: bool = True) -> None:
        if self._gone:
            raise _nobody_writes()
        number = next(self._numbers)
        written = self._unwritten[number] = asyncio.get_running_loop().create_future()
        self._send("lines", (number, lines, room_bytes, synced))
        try:
            await written
        finally:
            del self._unwritten[number]

    async def tell_waits(self) -> None:
        """What is waited for here, whenever that is another thing than before."""
        told: _Told | None = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            known = [(one.tried, one.since, one.error, one.until, one.afterwards, one.sentence) for one in waits()[:1]]
            if (wait := next(iter(known), None)) != told:
                told = wait
                self._send("wait", told)

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: what is said there, until nobody is there."""
        act: Callable[..., None]
        with suppress(RuntimeError):  # the loop is over, and so is the work
            with suppress(EOFError, OSError):
                while True:
                    kind, value = self._connection.recv()
                    act = self.stop.set if kind == "stop" else self._written
                    loop.call_soon_threadsafe(act, *(() if value is None else value))
            loop.call_soon_threadsafe(self._left_alone)

    def _written(self, number: int, error: LedgerError | None) -> None:
        written = self._unwritten.get(number)
        if written is None or written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)

    def _left_alone(self) -> None:
        self._gone = True
        self.stop.set()
        for written in self._unwritten.values():
            if not written.done():
                written.set_exception(_nobody_writes())

    def _send(self, kind: str, value: object) -> None:
        with suppress(OSError):  # `read` notices that nobody is there
            self._connection.send((kind, value))


def _nobody_writes() -> LedgerError:
    return LedgerError("The process that writes the ledger is gone.")
