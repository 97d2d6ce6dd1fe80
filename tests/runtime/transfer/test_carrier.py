"""The pump's carrier and its progress: what is written before what, and what the machine is told of each answer."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.core.errors import (
    LocksLostError,
    SbpairError,
    SendIncompleteError,
    ServerBusyError,
    ServiceError,
    UsageError,
)
from sbpair.core.events import DeadLettered, Forwarded, LedElsewhere, LockedElsewhere, PairingNoticed, Paused, Resumed
from sbpair.core.message import Disposition, Origin, Received
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.core.transfer.state import (
    Batch,
    Followed,
    Item,
    Leave,
    LockMet,
    Measure,
    PauseBegan,
    PauseEnded,
    PollAgain,
    Renew,
    Sample,
    Send,
    Settle,
    key_of,
)
from sbpair.runtime.transfer.ledger import Begun, Ledger, LedgerError, Recorder, accepted_in, known_in, ledgers_in
from sbpair.runtime.transfer.pump import PROGRESS_SECONDS, STOP_SECONDS, Carrier, Progress, Pump
from sbpair.runtime.transfer.reading import Source
from tests.fakes import EPOCH, FakeClock, RecordingObserver, virtual_time

QUEUE = "Primary/x-servicebus-transfer/0"


def item(number: int, destination: str = "orders", **more: Any) -> Item:
    received = Received(b"x", number, QUEUE, message_id=f"m{number}", **more)
    return Item(key_of(received), received, 0.0, 0.0, destination=destination, session_id="s", size_bytes=10 * number)


class Told:
    """Notes every call of every part, by name: a machine, whatever it is asked."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        if name in ("destinations", "custody"):
            return self

        def note(*arguments: Any, **named: Any) -> None:
            self._log.append((name, *arguments))

        return note


class Lines(Recorder):
    """A ledger in memory; fails when told."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        super().__init__(None, ())
        self.log, self.fails = log, set[str]()

    async def append(self, lines: Sequence[bytes], room_bytes: int = 0, *, synced: bool = True) -> None:
        raise AssertionError("these are noted as a whole")

    async def record(self, entries: Sequence[Any]) -> None:
        self._note("record", [one.sequence_number for one in entries], entries[0].outcome, entries[0].reason)

    async def begin(self, entries: Sequence[Any], *, in_doubt: bool = True) -> Begun:
        self._note("begin", [one.sequence_number for one in entries], in_doubt)
        self.entries = list(entries)
        return Begun((), (), 0)

    async def confirm(self, begun: Begun, sent: Collection[int], *, certain: bool = True) -> None:
        assert isinstance(begun, Begun)
        self._note("confirm", list(sent), certain)

    def _note(self, what: str, *arguments: Any) -> None:
        self.log.append((what, *arguments))
        if what in self.fails:
            raise LedgerError("full")


class Sink:
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.error: Exception | None = None
        self.limit: Any = 77

    def in_doubt(self, destination: str, items: Sequence[Item]) -> bool:
        return len(items) > 1

    async def limit_bytes(self, destination: str) -> int:
        if isinstance(self.limit, Exception):
            raise self.limit
        return int(self.limit)

    async def send(self, destination: str, items: Sequence[Item]) -> None:
        self.log.append(("send", destination, [one.key[1] for one in items]))
        if self.error is not None:
            raise self.error


class Receiver:
    """Answers settlements as told."""

    source = QUEUE

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.errors: dict[int, ServiceError] = {}

    def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        self.log.append(("settle all", [one.sequence_number for one in received], disposition))

        async def answers() -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
            yield [(one, self.errors.get(one.sequence_number)) for one in received]

        return answers()

    async def settle(self, received: Received, disposition: Disposition, *, reason: str, description: str) -> None:
        self.log.append(("settle", received.sequence_number, disposition, reason, description))
        if received.sequence_number in self.errors:
            raise self.errors[received.sequence_number]

    async def renew_lock(self, received: Received) -> float:
        if received.sequence_number in self.errors:
            raise self.errors[received.sequence_number]
        return 500.0


class World:
    def __init__(self, *, ledger: bool = True) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.broken: list[BaseException] = []
        self.clock, self.observer, self.moved = FakeClock(), RecordingObserver(), asyncio.Event()
        self.ledger, self.sink, self.receiver = Lines(self.log), Sink(self.log), Receiver(self.log)
        self.progress = Progress(self.clock, self.observer, self.moved)
        self.source: Any = SimpleNamespace(
            receiver=self.receiver,
            stored=None,
            locks=SimpleNamespace(deadline=lambda until, *, now_utc, now: until - now),
        )
        self.carrier = Carrier(
            Told(self.log),  # type: ignore[arg-type]
            {QUEUE.lower(): self.source},
            self.sink,
            self.ledger if ledger else None,
            clock=self.clock,
            progress=self.progress,
            break_down=self.broken.append,
            changed=lambda: self.log.append(("changed",)),
        )

    closed = 0

    async def receiver_close(self) -> None:
        self.closed += 1

    def names(self) -> list[str]:
        return [one[0] for one in self.log]


def incomplete(*, uncertain: bool | None) -> SendIncompleteError:
    error = SendIncompleteError("some", accepted=(0,))
    if uncertain is not None:
        error.__cause__ = ServerBusyError("busy")
        error.__cause__.uncertain = uncertain
    return error


def busy(*, uncertain: bool) -> ServiceError:
    error = ServerBusyError("busy")
    error.uncertain = uncertain
    return error


def more(error: Exception | None) -> tuple[Any, ...]:
    """What the machine is told with a batch: the error or what is lost, and when; not of what ends the run."""
    if isinstance(error, LocksLostError):
        return error.lost, 0.0
    return (0.0,) if error is None else (error, 0.0) if isinstance(error, ServiceError) else ()


@pytest.mark.parametrize(
    ("error", "confirmed", "told", "broken"),
    [
        (None, ([0, 1], True), ["remember", "confirm", "sent"], 0),
        (busy(uncertain=False), ([], True), ["confirm", "send_failed"], 0),
        (busy(uncertain=True), ([], False), ["confirm", "send_failed"], 0),
        (incomplete(uncertain=False), ([0], True), ["remember", "confirm", "send_failed"], 0),
        (incomplete(uncertain=True), ([0], False), ["remember", "confirm", "send_failed"], 0),
        (LocksLostError("lost", lost=(1,)), ([], True), ["confirm", "locks_lost"], 0),
        (SbpairError("the disk of the archive"), ([], True), ["confirm", "unrecorded"], 1),
    ],
)
def test_a_batch_is_recorded_before_the_machine_hears_of_it(
    error: Exception | None, confirmed: tuple[list[int], bool], told: list[str], broken: int
) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        world.sink.error = error
        batch = Batch("orders", (item(1), item(2)))
        await world.carrier.send(batch)
        assert world.log[0] == ("begin", [1, 2], True)
        assert world.names() == ["begin", "send", *told]
        assert next(one[1:] for one in world.log if one[0] == "confirm") == confirmed
        assert len(world.broken) == broken
        entry = world.ledger.entries[0]
        assert (entry.destination, entry.session_id, entry.outcome, entry.queue) == ("orders", "s", "forwarded", QUEUE)
        assert (entry.time, entry.digest) == (world.clock.now().isoformat(), None)
        heard = {one[0]: one[1:] for one in world.log if one[0] in told and one[0] not in ("remember", "confirm")}
        assert heard == {told[-1]: (batch, *more(error))}
        [remembered] = [one[1] for one in world.log if one[0] == "remember"] or [[]]
        assert [one.key[1] for one in remembered] == [1, 2][: len(confirmed[0])]
        failing = World()
        failing.sink.error = error
        failing.ledger.fails = {"confirm"}
        await failing.carrier.send(batch)
        assert failing.names()[-1] == "unrecorded", "what is not written down has not been told to anybody"
        assert failing.names().count("unrecorded") == 1
        assert isinstance(failing.broken[-1], LedgerError)

    story()


@virtual_time
async def test_without_room_in_the_ledger_nothing_is_sent_and_without_a_ledger_nothing_is_written() -> None:
    world = World()
    world.ledger.fails = {"begin"}
    batch = Batch("orders", (item(1),))
    await world.carrier.send(batch)
    assert (world.names(), len(world.broken)) == (["begin", "unrecorded"], 1)
    assert world.log[0][2] is False, "as the sink says of its doubts"
    world = World(ledger=False)
    await world.carrier.send(batch)
    assert world.names() == ["send", "remember", "sent"]


@virtual_time
async def test_a_destination_tells_its_limit_or_why_not() -> None:
    world = World()
    await world.carrier.measure("orders")
    world.sink.limit = ServerBusyError("busy")
    await world.carrier.measure("orders")
    assert world.log == [("limit_known", "orders", 77), ("limit_failed", "orders", world.sink.limit, 0.0)]


def settles(*numbers: int, outcome: str = "forwarded", line: bool = True, **more: Any) -> list[Settle]:
    found = []
    for number in numbers:
        one = item(number)
        made = Settle(one, one.received, Disposition.COMPLETE, outcome, **more)
        assert made.has_line is line
        found.append(made)
    return found


def test_what_is_completed_has_its_line_first(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        world.receiver.errors = {2: ServerBusyError("busy")}
        forwarded, pings = settles(1, 2), settles(3, 4, outcome="ping", line=False)
        await world.carrier.complete(world.source, [*forwarded, *pings])
        written = [one for one in world.log if one[0] == "record"]
        assert written == [("record", [3, 4], "ping", "")]
        assert world.names() == ["record", "settle all", "settled", "settle_failed", "changed"]
        assert world.log[1] == ("settle all", [1, 2, 3, 4], Disposition.COMPLETE)
        assert [one.item.key[1] for one in world.log[2][1]] == [1, 3, 4]
        world.progress.announce()
        assert [one.messages for one in world.observer.of(Forwarded)] == [1], "only what was forwarded, and completed"
        assert world.log[3][1] is forwarded[1]
        failing = World()
        failing.ledger.fails = {"record"}
        await failing.carrier.complete(failing.source, [*forwarded, *pings])
        assert failing.names() == ["record", "not_recorded", "not_recorded", "settle all", "settled", "changed"]
        assert failing.log[3][1] == [1, 2], "what has a line already is completed"
        assert len(failing.broken) == 1

    story()


@virtual_time
async def test_a_message_is_settled_once_its_line_is_written() -> None:
    one = item(5)
    dead = Settle(one, one.received, Disposition.DEAD_LETTER, "dead_lettered", "reason", "why")
    world = World()
    await world.carrier.settle(dead)
    assert world.log == [
        ("record", [5], "dead_lettered", "reason"),
        ("settle", 5, Disposition.DEAD_LETTER, "reason", "why"),
        ("settled", [dead]),
    ]
    assert world.moved.is_set()
    [told] = world.observer.of(DeadLettered)
    assert (told.queue, told.sequence_number, told.reason, told.description) == (QUEUE, 5, "reason", "why")
    failing = World()
    failing.ledger.fails = {"record"}
    await failing.carrier.settle(dead)
    assert (failing.names(), len(failing.broken)) == (["record", "not_recorded"], 1)
    refused = World()
    refused.receiver.errors = {5: ServerBusyError("busy")}
    await refused.carrier.settle(dead)
    assert refused.names() == ["record", "settle", "settle_failed"]
    assert refused.log[-1] == ("settle_failed", dead, refused.receiver.errors[5], 0.0)
    assert not refused.observer.events
    await refused.carrier.settle(settles(5)[0])
    assert refused.names()[3:] == ["settle", "settle_failed"], "it has its line"


@virtual_time
async def test_locks_are_renewed_on_the_clock_that_only_goes_forward() -> None:
    world = World()
    one = item(5)
    renew = Renew(one, one.received)
    await asyncio.sleep(3.0)
    await world.carrier.renew(renew)
    world.receiver.errors = {5: ServerBusyError("busy")}
    await world.carrier.renew(renew)
    assert world.log == [("renewed", renew, 497.0), ("renew_failed", renew, world.receiver.errors[5], 3.0)]


@virtual_time
async def test_stored_messages_and_what_went_in_a_transaction_are_settled_at_once() -> None:
    world = World()
    [forwarded], [ping] = settles(1), settles(2, outcome="ping", line=False)
    assert not world.carrier.settled_at_once(ping)
    assert not world.carrier.settled_at_once(forwarded)
    ping.item.completed = True
    assert not world.carrier.settled_at_once(ping), "its line is not written yet"
    forwarded.item.completed = True
    assert world.carrier.settled_at_once(forwarded)
    forgotten: list[Received] = []
    world.source.stored = SimpleNamespace(forget=forgotten.append)
    [other] = settles(3)
    assert world.carrier.settled_at_once(other)
    assert (forgotten, world.log) == ([other.received], [("settled", [forwarded]), ("settled", [other])])
    world.progress.announce()
    [told] = world.observer.of(Forwarded)
    assert (told.messages, told.size_bytes, told.queue, told.entity) == (2, 40, QUEUE, "orders")


@virtual_time
async def test_progress_is_told_every_half_second_at_the_most() -> None:
    world = World()
    assert not world.moved.is_set()
    world.progress.completed(settles(1, outcome="ping", line=False))
    assert world.moved.is_set()
    world.progress.completed(settles(1, 2))
    for now, told in ((PROGRESS_SECONDS - 0.01, 0), (PROGRESS_SECONDS, 1)):
        world.progress.announce_if_due(now)
        assert len(world.observer.of(Forwarded)) == told
    world.progress.completed(settles(3))
    world.progress.announce_if_due(2 * PROGRESS_SECONDS - 0.01)
    assert len(world.observer.of(Forwarded)) == 1
    world.progress.announce_if_due(2 * PROGRESS_SECONDS)
    assert [(one.messages, one.size_bytes) for one in world.observer.of(Forwarded)] == [(2, 30), (1, 30)]
    world.progress.announce()
    assert len(world.observer.of(Forwarded)) == 2, "nothing new is no news"


@virtual_time
async def test_a_digest_of_where_it_came_from_goes_into_the_ledger() -> None:
    world = World()
    origin = Origin(QUEUE, 5, "m5", 7, digest="abc")
    one = item(9, origin=origin)
    await world.carrier.send(Batch("orders", (one,)))
    [entry] = world.ledger.entries
    assert (entry.digest, entry.sequence_number, entry.enqueued_at_ms) == ("abc", 5, 7)


# The ledger's own counts and files.


def test_messages_are_counted_by_their_queue_in_any_spelling_and_states_of_sessions_are_none() -> None:
    keys = [("Q", 1, None, 0), ("q", 2, None, 0), ("other", 3, None, 0), ("q", 0, "session", 0)]
    assert accepted_in(keys) == {"q": 2, "other": 1}


async def test_what_was_accepted_is_counted_by_its_queue(tmp_path: Path) -> None:
    entries = [
        LedgerEntry(
            queue=queue,
            sequence_number=number,
            message_id=None,
            enqueued_at_ms=0,
            destination="orders",
            session_id=None,
            outcome="forwarded",
            time="2026-11-28T00:00:00+00:00",
        )
        for number, queue in enumerate(("Q", "q", "other"), 1)
    ]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    begun = await ledger.begin(entries)
    await ledger.confirm(begun, [0, 1])
    assert ledger.accepted == {"q": 2}
    begun = await ledger.begin(entries[2:], in_doubt=False)
    await ledger.confirm(begun, [0])
    assert ledger.accepted == {"q": 2}, "one in a transaction was completed with its send"
    await ledger.record([])
    await ledger.close()
    for spelled in ("q", "Q"):
        sent, _ = known_in([tmp_path / "ledger.jsonl"], None, {spelled: "ORDERS"})
        assert {key[0] for key in sent} == {spelled, "other"}, "by the name that this run has for the queue"
    with pytest.raises(UsageError, match="this run sends to"):
        known_in([tmp_path / "ledger.jsonl"], None, {"q": "elsewhere"})
    assert ledgers_in(tmp_path) == [tmp_path / "ledger.jsonl"] == ledgers_in(tmp_path / "ledger.jsonl")
    assert ledgers_in(tmp_path / "none") == []


# The pump around it.


def added(world: World, pump: Pump, path: str, *, stored: Any = None) -> Source:
    receiver: Any = SimpleNamespace(source=path, close=world.receiver_close, settle_all=world.receiver.settle_all)
    source = Source(path, receiver, stored=stored)
    pump.add(source)
    return source


class Machine(Told):
    """A machine that has nothing to do unless the test says so."""

    total_reached = left_full = False
    live = 0
    actions: tuple[Any, ...] = ()

    def poll(self, now: float) -> tuple[Any, ...]:
        found, self.actions = self.actions, ()
        return found

    def deadline(self, now: float) -> float:
        return now + 1000.0

    @property
    def queues(self) -> Any:
        return self

    def stalled(self, source: str, now: float) -> bool:
        return False

    def in_hand(self, source: str) -> frozenset[int]:
        return frozenset()

    def standing_back(self, source: str) -> bool:
        return True

    def grant(self, *_: Any) -> int:
        return 0


def a_pump(world: World, *, endless: bool = False) -> tuple[Pump, Machine, Any]:
    machine = Machine(world.log)
    receiver: Any = SimpleNamespace(source=QUEUE, close=world.receiver_close)
    source = Source("as it was named", receiver)
    pump = Pump(
        [source],
        machine,  # type: ignore[arg-type]
        lambda received: Leave("why"),
        world.sink,
        clock=world.clock,
        observer=world.observer,
        ledger=None,
        endless=endless,
        patience_seconds=1.0,
    )
    return pump, machine, source


@virtual_time
async def test_what_the_machine_says_is_told_by_the_name_that_the_queue_was_given() -> None:
    world = World()
    pump, _, source = a_pump(world)
    await asyncio.sleep(5.0)
    for action in (
        LockMet(QUEUE.upper(), 7, 30.0),
        Followed((QUEUE, QUEUE.lower()), 2.5),
        PauseBegan("orders", "busy", 10.0, 60.0),
        PauseEnded("orders"),
    ):
        pump._begin(action)
    at = EPOCH + 5.0
    assert world.observer.events == [
        LockedElsewhere(at, "as it was named", 7, at + 30.0),
        LedElsewhere(at, ("as it was named",) * 2, 2.5),
        Paused(at, "orders", "busy", 10.0, 60.0),
        Resumed(at, "orders"),
    ]
    source.idle, source.wait_seconds = True, 3.0
    pump._begin(PollAgain(QUEUE.lower()))
    assert (source.idle, source.wait_seconds, source.poll_again.is_set()) == (False, 3.0, True)
    pump.poll_again([source], wait_seconds=9.0)
    assert source.wait_seconds == 9.0


@virtual_time
async def test_a_pump_has_settled_down_once_nothing_can_be_done_without_looking_again() -> None:
    for idle, failed, endless, live, reached, down in (
        (True, None, False, 0, False, True),
        (False, ServerBusyError("busy"), False, 0, False, True),
        (False, None, False, 0, False, False),
        (True, None, True, 0, False, False),
        (True, None, False, 1, False, False),
        (False, None, False, 0, True, True),
    ):
        pump, machine, source = a_pump(World(), endless=endless)
        source.idle, source.failed = idle, failed
        machine.live, machine.total_reached = live, reached
        assert pump._nothing_to_do() is down
    pump, machine, source = a_pump(World())
    pump.start()
    stop = asyncio.Event()
    settling = asyncio.create_task(pump.settle_down(stop))
    await asyncio.sleep(3.0)
    assert not settling.done()
    source.idle = True
    await asyncio.sleep(1.1)
    assert settling.done(), "it looks every second while a receiver waits for room"
    assert await settling
    stop.set()
    assert not await pump.settle_down(stop)
    pump._break_down(ValueError("first"))
    pump._break_down(ValueError("second"))
    assert not await pump.settle_down(asyncio.Event())
    assert str(pump.fatal) == "first"
    await pump.finish()


@virtual_time
async def test_a_pump_stops_its_machine_before_its_receivers_and_tells_the_last_of_its_progress() -> None:
    world = World()
    pump, machine, _ = a_pump(world)
    pump.start()
    await asyncio.sleep(1.0)
    world.log.clear()
    pump._progress.completed(settles(1))
    machine.live = 1
    machine.release_left = lambda: world.log.append(("release_left", [one.done() for one in pump._receiving]))  # type: ignore[method-assign]
    finishing = asyncio.create_task(pump.finish())
    await asyncio.sleep(STOP_SECONDS / 2)
    assert (finishing.done(), world.names()[0], "release_left" in world.names()) == (False, "stop", True)
    await finishing
    assert ("release_left", [True]) in world.log, "nothing more comes by then"
    assert world.clock.monotonic() == pytest.approx(1.0 + STOP_SECONDS), "what is not settled by then comes again"
    assert (len(world.observer.of(Forwarded)), world.closed) == (1, 1)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@virtual_time
async def test_completions_of_one_source_go_together_and_the_rest_one_by_one() -> None:
    world = World()
    pump, machine, source = a_pump(world)
    source.receiver.settle_all, source.receiver.settle = world.receiver.settle_all, world.receiver.settle
    one = item(9)
    machine.actions = (*settles(1, 2), Settle(one, one.received, Disposition.RELEASE))
    pump._do_what_is_due()
    await asyncio.gather(*pump._tasks)
    asked = [entry for entry in world.log if entry[0] in ("settle", "settle all")]
    assert sorted(asked, key=str) == [
        ("settle all", [1, 2], Disposition.COMPLETE),
        ("settle", 9, Disposition.RELEASE, "", ""),
    ]


@virtual_time
async def test_each_action_is_begun_for_what_it_is() -> None:
    world = World()
    pump, _, source = a_pump(world)
    peeked: list[tuple[int, int]] = []

    async def peek(most: int, *, from_sequence_number: int) -> list[Received]:
        peeked.append((most, from_sequence_number))
        return []

    for name in ("settle", "renew_lock"):
        setattr(source.receiver, name, getattr(world.receiver, name))
    source.receiver.peek = peek
    one = item(9)
    for action, told in (
        (Measure("orders"), "limit_known"),
        (Renew(one, one.received), "renewed"),
        (Settle(one, one.received, Disposition.RELEASE), "settled"),
        (Send(Batch("orders", (one,))), "sent"),
        (Sample(QUEUE, 5), "sampled"),
    ):
        pump._begin(action)
        assert len(pump._tasks) == 1
        await asyncio.gather(*pump._tasks)
        await asyncio.sleep(0)
        assert (world.names()[-1], pump._tasks, pump.fatal) == (told, set(), None)
    assert [first for _, first in peeked] == [5]


@virtual_time
async def test_what_is_to_be_released_when_a_pump_breaks_down_is_begun_and_waited_for() -> None:
    world = World()
    pump, machine, source = a_pump(world)
    released: list[float] = []

    async def settle(received: Received, disposition: Disposition, *, reason: str, description: str) -> None:
        await asyncio.sleep(3.0)
        released.append(world.clock.monotonic())

    source.receiver.settle = settle
    pump.start()
    await asyncio.sleep(1.0)
    one = item(9)
    machine.live = 1
    pump._break_down(ValueError("odd"))
    machine.release_left = lambda: setattr(machine, "actions", (Settle(one, one.received, Disposition.RELEASE),))  # type: ignore[method-assign]
    await pump.finish()
    assert (released, world.clock.monotonic()) == ([4.0], 4.0), "it is not waited for what nobody has begun"


@virtual_time
async def test_a_pump_whose_loop_broke_down_or_never_ran_asks_its_machine_for_nothing_more() -> None:
    world = World()
    pump, machine, _ = a_pump(world)

    def fails(now: float) -> Any:
        raise ValueError("odd")

    machine.poll = fails  # type: ignore[method-assign]
    pump._break_down(error := ValueError("before"))
    await pump.finish()
    assert pump.fatal is error
    pump, machine, _ = a_pump(world)
    machine.poll = fails  # type: ignore[method-assign]
    pump.start()
    assert not await pump.settle_down(asyncio.Event())
    machine.live = 1
    began = world.clock.monotonic()
    await pump.finish()
    assert (str(pump.fatal), world.clock.monotonic()) == ("odd", began)


@virtual_time
async def test_a_source_that_is_added_is_read_found_in_any_spelling_and_closed() -> None:
    world = World()
    pump, _, first = a_pump(world)
    pump.start()
    source = added(world, pump, "Q/Later")
    await asyncio.sleep(1.0)
    assert [one[1:] for one in world.log if one[0] == "add"] == [(QUEUE, 60.0), ("Q/Later", 60.0)]
    assert [one.done() for one in pump._receiving] == [False, False]
    pump._begin(PollAgain("q/LATER"))
    assert source.poll_again.is_set()
    first.idle = True
    assert not pump._nothing_to_do()
    source.idle = True
    assert pump._nothing_to_do()
    await pump.finish()
    assert world.closed == 2


@virtual_time
async def test_only_a_pump_of_stored_messages_asks_each_whether_it_is_stored() -> None:
    for stored, together in ((None, [1, 2]), (SimpleNamespace(forget=lambda received: None), [])):
        world = World()
        pump, machine, _ = a_pump(world)
        world.source.stored = stored
        source = added(world, pump, QUEUE, stored=stored)
        assert pump._carrier.reads_stored is (stored is not None)
        machine.actions = tuple(settles(1, 2))
        pump._wake.clear()
        pump._do_what_is_due()
        assert pump._wake.is_set() is (stored is not None), "what was settled at once is something new to decide"
        await asyncio.gather(*pump._tasks)
        assert [one[1] for one in world.log if one[0] == "settle all"] == [together][: len(together)]
        await asyncio.sleep(0.0)  # so that what is cancelled has begun
        for task in pump._receiving:
            task.cancel()
        assert source.stored is stored


@pytest.mark.parametrize(("endless", "told"), [(True, 1), (False, 0)])
def test_that_too_many_are_left_is_told_once_where_nobody_waits_for_an_end(endless: bool, told: int) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        pump, machine, _ = a_pump(world, endless=endless)
        machine.left_messages = 3  # type: ignore[attr-defined]
        machine.left = lambda: {1: "rare", 2: "often", 3: "often"}  # type: ignore[attr-defined]
        pump.start()
        await asyncio.sleep(3.0)
        assert not world.observer.of(PairingNoticed)
        machine.left_full = True
        await asyncio.sleep(5.0)
        notices = world.observer.of(PairingNoticed)
        assert [one.code for one in notices] == ["too-many-left"] * told
        assert all(
            "3 messages are left and stay locked, as many as can be (2: often)" in one.message for one in notices
        )
        assert pump._nothing_to_do() is not endless
        await pump.finish()

    story()
