"""Room before record: nothing is sent without space for its lines, and after a kill it is known what is in doubt."""

import asyncio
import errno
import json
import math
import os
import resource
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import (
    ConnectionLostError,
    SbpairError,
    SendIncompleteError,
    ServerBusyError,
    UnauthorizedError,
    UsageError,
)
from sbpair.core.events import Doubtful, Paused
from sbpair.core.message import PARTITION_SHIFT
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.ledger import STATE_MOVED, LedgerEntry
from sbpair.core.transfer.report import DrainReport
from sbpair.files import AppendedFile
from sbpair.operations.drain import BacklogRequest, doubtful_of
from sbpair.operations.ledgers import VERIFY_SECONDS, LedgerRun, doubtful_file, open_ledger
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger, LedgerError, outcomes_in
from tests.core.snapshots import a_pair
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time

QUEUE = "primary/x-servicebus-transfer/0"
RUN = LedgerRun("drain", a_pair().secondary, a_pair().primary)
WAY = RUN.way


def entry(number: int, outcome: str = "forwarded") -> LedgerEntry:
    return LedgerEntry(QUEUE, number, f"m{number}", 5, "orders", None, outcome, "2026-11-24T00:00:00+00:00")


def key(number: int) -> tuple[str, int, str, int]:
    return QUEUE, number, f"m{number}", 5


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size, where this user may mount one; else files that cannot grow beyond it."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)], capture_output=True, check=False
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mounted.returncode:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield folder
    finally:
        if mounted.returncode:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        else:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Backlog:
    """A backlog of messages on fakes, drained as often as is asked for."""

    def __init__(self, messages: int) -> None:
        self.clock, self.observer = FakeClock(), RecordingObserver()
        self.primary, self.secondary = FakeNamespace("primary", self.clock), FakeNamespace("secondary", self.clock)
        self.orders = self.primary.add_queue("orders")
        self.queue = self.secondary.add_queue(QUEUE, QueueSettings(lock_duration_seconds=5.0))
        self.fill(messages)

    def fill(self, messages: int) -> None:
        for number in range(messages):
            self.secondary.put(QUEUE, for_backlog(compose(body=b"x", message_id=str(number)), "orders"))

    async def killed(self, path: Path) -> None:
        """A drain is killed between the sending of six messages and their lines; their locks are over."""
        ledger = Ledger(path, way=WAY)

        async def confirm(begun: object, places: object, *, certain: bool = True) -> None:
            raise LedgerError("killed")

        ledger.confirm = confirm  # type: ignore[method-assign,assignment]
        with pytest.raises(LedgerError, match="killed"):
            await self.drain(ledger, max_messages=6)
        await asyncio.sleep(6)

    def looking(self, stop: asyncio.Event | None = None) -> Callable[[Ledger], Awaitable[int]] | None:
        secondary, primary = self.secondary.messaging(), self.primary.messaging()
        request = BacklogRequest((QUEUE,))
        return doubtful_of(request, source=secondary, target=primary, clock=self.clock, stop=stop or asyncio.Event())

    async def drain(self, ledger: Ledger | None, **more: object) -> DrainReport:
        try:
            return await drain(
                DrainJob(
                    TransferRequest((QUEUE,), **more),  # type: ignore[arg-type]
                    secondary=self.secondary.messaging(),
                    primary=self.primary.messaging(),
                    clock=self.clock,
                    observer=self.observer,
                    ledger=ledger,
                    stop=asyncio.Event(),
                )
            )
        finally:
            if ledger is not None:
                await ledger.close()


@virtual_time
async def test_a_full_disk_under_an_archive_is_no_failure_of_a_destination(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    world, folder = Backlog(1200), tmp_path_factory.mktemp("disk")
    with small_disk(folder, 16 * 1024), pytest.raises(SbpairError, match="Cannot write the archive"):
        await world.drain(None, to=ToArchive(folder / "archive"))
    assert world.observer.of(Paused) == []
    assert all(one.lock is None for one in world.queue.messages.values()), "locks stayed behind"
    assert len(world.queue.messages) == 1200


@virtual_time
async def test_repeated_starts_on_a_full_disk_double_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = Backlog(1200)
    folder = tmp_path_factory.mktemp("disk")
    path = folder / "ledger.jsonl"
    with small_disk(folder, 64 * 1024):
        for start in range(5):
            ledger = Ledger(path, resume=True, way=WAY)
            with pytest.raises(LedgerError, match=r"no room for the ledger .*nothing more was sent"):
                await world.drain(ledger)
            sent = [one for one, outcome in outcomes_in(path) if outcome == "forwarded"]
            assert len(world.orders.messages) == len(sent), start
            assert len(world.queue.messages) == 1200 - len(sent)
        left = path.read_bytes()
    path.write_bytes(left)
    ledger = Ledger(path, resume=True, way=WAY)
    report = await world.drain(ledger)
    assert report.confirmed_empty
    assert len(world.orders.messages) == 1200


class Failing(AppendedFile):
    """Raises what it is given, at the next call of a method."""

    fail: tuple[str, int] | None = None

    def _raise(self, name: str) -> None:
        if self.fail is not None and self.fail[0] == name:
            raise OSError(self.fail[1], os.strerror(self.fail[1]))

    def _allocate(self, end_bytes: int) -> None:
        self._raise("allocate")
        super()._allocate(end_bytes)

    def write(self, data: bytes) -> None:
        self._raise("write")
        super().write(data)

    def sync(self) -> None:
        self._raise("sync")
        super().sync()


@virtual_time
async def test_lines_of_what_is_on_its_way_fit_when_the_disk_fills_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, opened=Failing)
    begun = await ledger.begin([entry(number) for number in range(20_000)])
    file = ledger._file
    assert isinstance(file, Failing)
    file.fail = ("allocate", errno.ENOSPC)
    with pytest.raises(LedgerError, match="no room"):
        await ledger.begin([entry(number) for number in range(20_000, 40_000)])
    await ledger.confirm(begun, range(20_000))
    with pytest.raises(LedgerError, match="no room"):
        await ledger.record([entry(number, "dead-lettered") for number in range(20_000, 40_000)])
    await ledger.close()
    assert len(dict(outcomes_in(path))) == 20_000
    assert path.stat().st_blocks * 512 < path.stat().st_size + 64 * 1024, "unused space was given back"


@virtual_time
@pytest.mark.parametrize(
    ("failing", "said"),
    [("write", "All that was sent is recorded, and nothing more was sent"), ("sync", "may send it a second time")],
)
async def test_a_disk_that_breaks_ends_the_drain_and_completes_nothing_unrecorded(
    tmp_path_factory: pytest.TempPathFactory, failing: str, said: str
) -> None:
    world = Backlog(30)
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, opened=Failing)
    file = ledger._file
    assert isinstance(file, Failing)
    file.fail = (failing, errno.EIO)
    with pytest.raises(LedgerError, match=f"Cannot write the ledger .*{said}"):
        await world.drain(ledger)
    assert len(world.queue.messages) == 30
    assert len(world.orders.messages) == (0 if failing == "write" else 30)


@virtual_time
async def test_a_line_of_what_was_sent_that_cannot_be_written_is_told_as_such(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl", opened=Failing)
    begun = await ledger.begin([entry(1)])
    file = ledger._file
    assert isinstance(file, Failing)
    file.fail = ("write", errno.EIO)
    for write in (ledger.confirm(begun, [0]), ledger.record([entry(2, "dead-lettered")])):
        with pytest.raises(LedgerError, match="may send it a second time"):
            await write
    await ledger.close()


@virtual_time
async def test_what_was_on_its_way_is_in_doubt_until_it_has_a_line_or_was_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, way=WAY)
    confirmed = await ledger.begin([entry(1), entry(2)])
    await ledger.confirm(confirmed, range(2))
    refused = await ledger.begin([entry(3), entry(4)])
    await ledger.confirm(refused, ())
    half = await ledger.begin([entry(5), entry(6)])
    await ledger.confirm(half, [0])
    lost = await ledger.begin([entry(7)])
    await ledger.confirm(lost, (), certain=False)
    again = await ledger.begin([entry(7), entry(8)])
    await ledger.confirm(again, ())
    await ledger.begin([entry(9)], in_doubt=False)
    await ledger.record([entry(10, STATE_MOVED), entry(11, "dead-lettered")])
    await ledger.begin([entry(number) for number in range(1000, 2200)])
    await ledger.close()  # as a kill leaves it

    read = Ledger(path, resume=True, way=WAY)
    await read.close()
    assert read.forwarded == {key(1), key(2), key(5), key(10)}, "a session's state is sent once as well"
    assert set(read.doubtful) == {key(7), *(key(number) for number in range(1000, 2200))}
    assert set(read.doubtful.values()) == {"orders"}
    assert [one for one, _ in outcomes_in(path)] == [key(1), key(2), key(5), key(10), key(11)], "not the rest"


@virtual_time
async def test_errors_of_the_destination_leave_in_doubt_what_may_have_arrived(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for error, doubtful in (
        (ServerBusyError("busy"), 0),
        (ConnectionLostError("cut"), 10),
        (SendIncompleteError("half", accepted=(0, 1, 2)), 0),
    ):
        world = Backlog(10)
        path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
        world.primary.fail("send", error)
        ledger = Ledger(path, way=WAY)
        await world.drain(ledger, for_seconds=2.0)
        read = Ledger(path, resume=True, way=WAY)
        assert len(read.doubtful) == doubtful, error
        await read.close()


@virtual_time
async def test_the_next_run_names_each_message_in_doubt_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, way=WAY)
    await ledger.begin([entry(1), entry(2)])
    await ledger.close()
    observer = RecordingObserver()
    for _ in range(2):
        async with open_ledger(path, RUN, observer) as again:
            assert again is not None
            assert {key(1), key(2)} <= set(again.doubtful)
            begun = await again.begin([entry(3)])
            await again.confirm(begun, (), certain=False)
    told = [(one.messages, one.file) for one in observer.of(Doubtful)]
    assert told == [(2, str(doubtful_file(path))), (1, str(doubtful_file(path)))]
    named = [json.loads(line)["message_id"] for line in doubtful_file(path).read_text().splitlines()]
    assert named == ["m1", "m2", "m3"]


@virtual_time
async def test_what_lies_at_its_destination_is_recorded_and_the_rest_is_sent(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    world = Backlog(10)
    for body in (b"one", b"two"):  # of two messages with one MessageId nobody can tell which has arrived
        world.secondary.put(QUEUE, for_backlog(compose(body=body, message_id="same"), "orders"))
    await world.killed(path)
    assert len(world.orders.messages) == 6
    taken = next(iter(world.orders.messages))
    del world.orders.messages[taken]  # a consumer was faster
    observer = RecordingObserver()
    async with open_ledger(path, RUN, observer, verify=world.looking()) as again:
        assert again is not None
        assert len(again.doubtful) == 6
        report = await world.drain(again)
    assert [(one.messages, one.found) for one in observer.of(Doubtful)] == [(1, 5)]
    assert (report.already_forwarded, report.forwarded, report.confirmed_empty) == (5, 7, True)
    assert len(world.orders.messages) == 5 + 7
    observer = RecordingObserver()
    async with open_ledger(path, RUN, observer, verify=world.looking()):
        assert not observer.of(Doubtful)


@virtual_time
@pytest.mark.parametrize("unreadable", ["destination", "backlog"])
async def test_where_nobody_may_browse_what_is_in_doubt_is_sent_again(
    tmp_path_factory: pytest.TempPathFactory, unreadable: str
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    world = Backlog(10)
    await world.killed(path)
    side = world.primary if unreadable == "destination" else world.secondary
    side.fail("peek", UnauthorizedError("no Listen"))
    observer = RecordingObserver()
    async with open_ledger(path, RUN, observer, verify=world.looking()) as again:
        assert [(one.messages, one.found) for one in observer.of(Doubtful)] == [(6, 0)]
        side.heal()
        assert again is not None
        await world.drain(again)
    assert len(world.orders.messages) == 10 + 6


@virtual_time
async def test_a_destination_that_does_not_answer_is_not_waited_for_for_long(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    world = Backlog(10)
    await world.killed(path)
    for stop_seconds, most_seconds in ((math.inf, VERIFY_SECONDS), (2.0, 2.0)):
        began, stop = world.clock.monotonic(), asyncio.Event()
        if stop_seconds < VERIFY_SECONDS:
            asyncio.get_running_loop().call_later(stop_seconds, stop.set)
        world.primary.delays["peek"] = 3600.0
        async with open_ledger(path, RUN, RecordingObserver(), verify=world.looking(stop)):
            assert world.clock.monotonic() - began == pytest.approx(most_seconds, abs=0.1)


@virtual_time
async def test_what_was_there_long_before_is_passed_over(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    world = Backlog(0)
    world.primary.put("orders", *(compose(body=b"x", message_id=f"old {number}") for number in range(20_000)))
    await asyncio.sleep(600)
    world.fill(10)
    await world.killed(path)
    async with open_ledger(path, RUN, RecordingObserver(), verify=world.looking()) as again:
        assert again is not None
        assert len(again.forwarded) == 6
    assert world.primary.calls["peek", "orders"] < 50


@virtual_time
async def test_each_partition_of_a_destination_is_looked_at(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    world = Backlog(0)
    world.primary.put("orders", *(compose(body=b"x", message_id=f"old {number}") for number in range(20_000)))
    await asyncio.sleep(600)
    world.fill(10)
    await world.killed(path)
    there = list(world.orders.messages.values())
    world.orders.messages.clear()
    for partition in range(3):  # every third message, the old ones first
        for number, stored in enumerate(there[partition::3], 1):
            stored.sequence_number = (partition << PARTITION_SHIFT) + number
            world.orders.messages[stored.sequence_number] = stored
    async with open_ledger(path, RUN, RecordingObserver(), verify=world.looking()) as again:
        assert again is not None
        assert len(again.forwarded) == 6
    assert world.primary.calls["peek", "orders"] < 150


@virtual_time
async def test_a_dry_run_writes_no_file_of_doubtful_messages(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, way=WAY)
    await ledger.begin([entry(1)])
    await ledger.close()
    async with open_ledger(path, RUN, None):
        assert not doubtful_file(path).exists()


@virtual_time
async def test_a_new_ledger_does_not_rename_one_that_a_process_writes(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    running = Ledger(path, way=WAY)
    await running.record([entry(1)])
    with pytest.raises(UsageError, match="being written by another process"):
        async with open_ledger(path, RUN, Quiet(), new=True):
            raise AssertionError("it was opened")
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    await running.close()
    async with open_ledger(path, RUN, Quiet(), new=True) as fresh:
        assert fresh is not None
        assert not fresh.forwarded
    assert path.with_name("ledger.jsonl.1").exists()


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0", b'{"queue": "x' + b"\0" * 5000, b"\0" * 3_000_000])
@virtual_time
async def test_a_ledger_that_ends_in_nuls_loses_only_them(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, way=WAY)
    await ledger.record([entry(1), entry(2)])
    await ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert len(list(outcomes_in(path))) == 2
    read = Ledger(path, resume=True, way=WAY)
    await read.close()
    assert read.forwarded == {key(1), key(2)}
    assert path.read_bytes() == whole


@virtual_time
async def test_nuls_in_the_middle_are_refused_and_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path, way=WAY)
    await ledger.record([entry(1)])
    await ledger.close()
    broken = path.read_bytes() + b"\0" * 4096 + entry(2).line()
    path.write_bytes(broken)
    with pytest.raises(UsageError, match="Line 2"):
        Ledger(path, resume=True, way=WAY)
    assert path.read_bytes() == broken
