"""What a browse proves of the messages that a receive went past."""

import asyncio

from sbpair.core.entities import QueueSettings
from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import Forward, Leave, Limits, Send, key_of
from sbpair.runtime.transfer.reading import Patience, Reader, Room, Source
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
