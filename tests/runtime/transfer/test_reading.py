"""What a browse proves of the messages that a receive went past."""

import asyncio
from collections.abc import Sequence

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.events import ReceiveFailed
from sbpair.core.message import Disposition, Received
from sbpair.core.retry import SERVER_BUSY_SECONDS
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import Forward, Leave, Limits, Send, key_of
from sbpair.runtime.transfer.reading import Patience, Reader, Room, Source, _by_number
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.waiting import LIMIT_SECONDS

QUEUE = "primary/x-servicebus-transfer/0"


def forward(received: Received) -> Forward:
    return Forward(received.payload, "orders", "s")


@virtual_time
async def test_what_was_released_during_a_browse_is_not_overtaken() -> None:
    """The browse began while the first message was in hand, so that its place proves nothing once it was released."""
    clock = FakeClock()
    namespace = FakeNamespace("secondary", clock)
    namespace.add_queue(QUEUE, QueueSettings(lock_duration_seconds=60.0))
    payloads = [compose(body=b"x", message_id=str(number), session_id="s") for number in range(2)]
    namespace.put(QUEUE, *(for_backlog(payload, "orders") for payload in payloads))
    receiver = namespace.messaging().receiver(QUEUE)
    machine = Settlement(Limits(), sessions_wait=True)
    source = Source(QUEUE, receiver)
    reader = Reader(
        machine,
        forward,
        {QUEUE: source},
        clock=clock,
        observer=RecordingObserver(),
        patience=Patience(endless=True, seconds=60.0),
        room=Room(),
        moved=asyncio.Event(),
        changed=lambda: None,
    )
    machine.queues.add(QUEUE, 60.0)
    machine.destinations.limit_known("orders", namespace.max_message_bytes)
    (first,) = await receiver.receive(1, wait_seconds=1.0)
    machine.arrived(first, forward(first), lock_until=60.0, lock_seconds=60.0, now=clock.monotonic())
    machine.queues.of(QUEUE).forget()  # so that the next receive has to browse what it goes past
    item = machine.custody.find(key_of(first))
    assert item is not None

    async def release(operation: str, entity: str) -> None:
        if operation == "peek" and not item.releasing:
            machine.destinations.release(item, clock.monotonic(), comes_first=False)
            machine.queues.of(QUEUE).forget()

    namespace.hook = release
    await reader._receive_once(source, 1)
    assert item.releasing
    assert not [one for one in machine.poll(clock.monotonic()) if isinstance(one, Send)]


@virtual_time
async def test_no_more_deferred_messages_are_fetched_once_as_many_as_may_be_are_left() -> None:
    clock = FakeClock()
    namespace = FakeNamespace("secondary", clock)
    namespace.add_queue(QUEUE, QueueSettings(lock_duration_seconds=60.0))
    namespace.put(QUEUE, *(for_backlog(compose(body=b"x", message_id=str(n)), "orders") for n in range(300)))
    receiver = namespace.messaging().receiver(QUEUE)
    deferred = await receiver.receive(300, wait_seconds=1.0)
    for one in deferred:
        await receiver.settle(one, Disposition.DEFER)
    machine = Settlement(Limits(left_messages=150))
    source = Source(QUEUE, receiver)
    reader = Reader(
        machine,
        lambda received: Leave("not wanted"),
        {QUEUE: source},
        clock=clock,
        observer=RecordingObserver(),
        patience=Patience(endless=False, seconds=60.0),
        room=Room(),
        moved=asyncio.Event(),
        changed=lambda: None,
    )
    async with asyncio.timeout(LIMIT_SECONDS):
        await reader.take_deferred(source, [one.sequence_number for one in deferred], asyncio.Event())
    assert machine.left_full
    assert machine.custody.left_messages < len(deferred)


def a_reader(patience: Patience, **errors: object) -> tuple[Reader, Source, RecordingObserver]:
    clock, observer = FakeClock(), RecordingObserver()
    namespace = FakeNamespace("secondary", clock)
    namespace.add_queue(QUEUE)
    machine = Settlement(Limits())
    machine.queues.add(QUEUE, 60.0)
    source = Source(QUEUE, namespace.messaging().receiver(QUEUE))
    reader = Reader(
        machine,
        forward,
        {QUEUE: source},
        clock=clock,
        observer=observer,
        patience=patience,
        room=Room(),
        moved=asyncio.Event(),
        changed=lambda: None,
    )
    reader.awake = clock  # type: ignore[assignment]  # the same time, which no sleep of the machine interrupts
    return reader, source, observer


async def fail(reader: Reader, source: Source, error: ServiceError, *, took: float = 0.0) -> float | None:
    """One receive that failed after so long; how long it is waited, None: the source is given up."""
    began = reader.clock.monotonic()
    await asyncio.sleep(took)
    await reader._receive_failed(source, error, since=began)
    told = reader.observer.of(ReceiveFailed)[-1]  # type: ignore[attr-defined]
    assert (told.queue, told.error_code) == (QUEUE, error.code)
    waited = reader.clock.monotonic() - began - took
    assert waited == (told.retry_after_seconds or 0.0)
    return told.retry_after_seconds  # type: ignore[no-any-return]


BUSY, DOWN, WRONG = ServerBusyError("busy"), ConnectionLostError("down"), UnauthorizedError("no")


@pytest.mark.parametrize(
    ("endless", "was_read", "error", "pauses"),
    [
        (False, True, DOWN, [1.0, 2.0, 4.0, 3.0, None]),
        (False, True, BUSY, [1.0, 2.0, 4.0, 3.0, None]),
        (False, False, BUSY, [1.0, 2.0, 4.0, 3.0, None]),
        (False, False, DOWN, [1.0, 2.0, None]),
        (False, True, WRONG, [None]),
        (True, True, WRONG, [10.0, 20.0]),
        (True, False, DOWN, [1.0, 2.0, 4.0, 8.0, 16.0]),
        (True, True, BUSY, [1.0, 2.0, 4.0, 8.0, SERVER_BUSY_SECONDS]),
    ],
)
def test_how_long_a_source_may_fail(
    endless: bool, was_read: bool, error: ServiceError, pauses: list[float | None]
) -> None:
    @virtual_time
    async def story() -> None:
        reader, source, _ = a_reader(Patience(endless=endless, seconds=10.0, unreached_seconds=3.0))
        source.was_read = was_read
        assert [await fail(reader, source, error) for _ in pauses] == pauses
        assert (source.failed is error, source.last_error, source.failing_since) == (pauses[-1] is None, error, 0.0)

    story()


@virtual_time
async def test_a_try_that_would_end_too_late_is_not_begun() -> None:
    for took, pause in ((4.9, 1.0), (5.1, None)):
        reader, source, _ = a_reader(Patience(endless=False, seconds=10.0))
        assert await fail(reader, source, DOWN, took=took) == pause


@virtual_time
async def test_messages_that_failed_together_are_fetched_one_by_one() -> None:
    class Deferred:
        """Has what it has; a request that names one that is gone fails as a whole."""

        def __init__(self) -> None:
            self.asked: list[list[int]] = []

        async def receive_deferred(self, numbers: Sequence[int]) -> list[Received]:
            self.asked.append(list(numbers))
            if 2 in numbers:
                raise EntityNotFoundError("gone")
            return [Received(b"", number, "q") for number in numbers]

    receiver = Deferred()
    found = await _by_number(receiver, [1, 2, 3])  # type: ignore[arg-type]
    assert ([one.sequence_number for one in found], receiver.asked) == ([1, 3], [[1, 2, 3], [1], [2], [3]])


@virtual_time
async def test_receivers_wait_for_a_round_and_are_counted() -> None:
    room = Room()
    room.open()
    waiting = [asyncio.create_task(room.wait()) for _ in range(2)]
    await asyncio.sleep(1.0)
    assert (room.waiting, [one.done() for one in waiting]) == (2, [False, False]), "a round before counts for nothing"
    room.open()
    await asyncio.gather(*waiting)
    assert room.waiting == 0
