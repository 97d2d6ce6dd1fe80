"""What every Messaging does, whoever implements it."""

import asyncio
import time
import uuid
from typing import Any

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField
from sbpair.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)
from sbpair.core.errors import (
    ArgumentRefusedError,
    EntityNotFoundError,
    LockLostError,
    MessageTooLargeError,
    ServiceError,
)
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.ports import MessageReceiver
from tests.azure.support import message, senders_part
from tests.contract.conftest import Bench
from tests.waiting import LIMIT_SECONDS

WAIT_SECONDS = 5.0

AWKWARD: dict[str, Any] = {
    "null": None,
    "true": True,
    "ubyte": Ubyte(255),
    "ushort": Ushort(65535),
    "uint": Uint(2**32 - 1),
    "ulong": Ulong(2**64 - 1),
    "byte": Byte(-128),
    "short": Short(-32768),
    "int": Int(-(2**31)),
    "long": Long(2**40),
    "float": Float(1.5),
    "double": 2.5,
    "char": Char("é"),
    "timestamp": Timestamp(1_700_000_000_000),
    "uuid": uuid.UUID(int=5),
    "binary": b"\xff\x00",
    "string": "ä",
    "symbol": Symbol("s"),
    "decimal32": Decimal32(b"\x22\x50\x00\x01"),
    "decimal64": Decimal64(b"\x22\x38" + bytes(5) + b"\x01"),
    "decimal128": Decimal128(b"\x30\x40" + bytes(13) + b"\x01"),
    "timespan": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
    "array": Array(0x81, (Long(1), Long(2))),
}


async def receive(receiver: MessageReceiver, count: int) -> list[Received]:
    got: list[Received] = []
    while len(got) < count:
        more = await receiver.receive(count - len(got), wait_seconds=WAIT_SECONDS)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


BODIES: tuple[dict[str, Any], ...] = (
    {"data": b"one"},
    {"data": [b"one", b"", b"three"]},
    {"value": None},
    {"value": False},
    {"value": ""},
    {"value": {}},
    {"value": Char("x")},
    {"sequences": [[Long(1), "a"], []]},
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body)[:30])
async def test_a_message_arrives_as_the_bytes_that_were_sent(bench: Bench, body: dict[str, Any]) -> None:
    path = await bench.queue()
    sent = sections.build(
        properties={PropertyField.MESSAGE_ID: Ulong(7), PropertyField.USER_ID: b"\x00\xff"},
        application_properties=AWKWARD,
        footer={Symbol("f"): Long(1)},
        **body,
    )
    await bench.messaging.sender(path).send([sent], timeout_seconds=WAIT_SECONDS)
    received = (await receive(bench.messaging.receiver(path), 1))[0]
    browsed = (await bench.messaging.receiver(path).peek(10))[0]
    assert senders_part(received.payload) == senders_part(sent)
    assert senders_part(browsed.payload) == senders_part(sent)
    assert received.message_id == "7"


async def test_what_is_received_says_who_and_when(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a", session_id="s")], timeout_seconds=WAIT_SECONDS)
    received = (await receive(bench.messaging.receiver(path), 1))[0]
    assert (received.message_id, received.session_id, received.source) == ("a", "s", path)
    assert received.sequence_number > 0
    assert received.delivery_count == 0
    assert received.state is MessageState.ACTIVE
    assert received.enqueued_at is not None
    assert received.locked_until is not None
    assert 50 < received.locked_until - received.enqueued_at < 70


async def test_a_batch_arrives_whole_and_in_order(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message(str(n)) for n in range(50)], timeout_seconds=WAIT_SECONDS)
    got = await receive(bench.messaging.receiver(path), 50)
    assert [one.message_id for one in got] == [str(n) for n in range(50)]


async def test_many_senders_at_once_share_a_link(bench: Bench) -> None:
    path = await bench.queue()
    sender = bench.messaging.sender(path)
    await asyncio.gather(*(sender.send([message(str(n))], timeout_seconds=30) for n in range(300)))
    got = await receive(bench.messaging.receiver(path), 300)
    assert {one.message_id for one in got} == {str(n) for n in range(300)}


async def test_completed_messages_are_gone(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message(str(n)) for n in range(100)], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    got = await receive(receiver, 100)
    await asyncio.gather(*(receiver.settle(one, Disposition.COMPLETE) for one in got))
    assert await receiver.receive(1, wait_seconds=0.1) == []
    assert await receiver.peek(1) == []


@pytest.mark.parametrize(("disposition", "count"), [(Disposition.RELEASE, 0), (Disposition.ABANDON, 1)])
async def test_what_is_given_back_comes_again(bench: Bench, disposition: Disposition, count: int) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    await receiver.settle((await receive(receiver, 1))[0], disposition)
    again = (await receive(receiver, 1))[0]
    assert (again.message_id, again.delivery_count) == ("a", count)


async def test_dead_letters_carry_reason_and_description(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    taken = (await receive(receiver, 1))[0]
    await receiver.settle(taken, Disposition.DEAD_LETTER, reason="why", description="because " * 60)
    dead = (await receive(bench.messaging.receiver(path, dead_letter=True), 1))[0]
    spans = sections.scan(dead.payload)
    properties = sections.read(dead.payload, spans, sections.Section.APPLICATION_PROPERTIES)
    assert properties["DeadLetterReason"] == "why"
    assert properties["DeadLetterErrorDescription"] == "because " * 60
    assert dead.source == f"{path}/$deadletterqueue"
    assert await receiver.receive(1, wait_seconds=0.1) == []


async def test_deferred_messages_come_by_number_and_settle(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a"), message("b")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    for one in await receive(receiver, 2):
        await receiver.settle(one, Disposition.DEFER)
    seen = await receiver.peek(10)
    assert [one.state for one in seen] == [MessageState.DEFERRED, MessageState.DEFERRED]
    got = await receiver.receive_deferred([one.sequence_number for one in seen])
    assert [one.message_id for one in got] == ["a", "b"]
    await receiver.settle(got[0], Disposition.COMPLETE)
    assert [one.message_id for one in await receiver.peek(10)] == ["b"]


async def test_settling_after_the_lock_ran_out_says_so(bench: Bench) -> None:
    path = await bench.queue()
    seconds = bench.brief_locks(path)
    await bench.messaging.sender(path).send([message("a")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    taken = (await receive(receiver, 1))[0]
    await asyncio.sleep(seconds + 0.2)
    with pytest.raises(LockLostError):
        await receiver.settle(taken, Disposition.COMPLETE)
    with pytest.raises(LockLostError):
        await receiver.renew_lock(taken)
    assert (await receive(receiver, 1))[0].delivery_count == 1


async def test_renewing_moves_the_expiry(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    taken = (await receive(receiver, 1))[0]
    await asyncio.sleep(0.05)
    assert taken.locked_until is not None
    assert taken.locked_until < await receiver.renew_lock(taken) < taken.locked_until + 10


async def test_peek_walks_to_the_end_without_locks(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message(str(n)) for n in range(25)], timeout_seconds=WAIT_SECONDS)
    browser = bench.messaging.receiver(path)
    seen: list[str | None] = []
    start = 0
    while page := await browser.peek(10, from_sequence_number=start):
        assert len(page) <= 10
        assert all(one.receipt is None and one.locked_until is None for one in page) or page[0].receipt is None
        seen += [one.message_id for one in page]
        start = page[-1].sequence_number + 1
    assert seen == [str(n) for n in range(25)]
    assert len(await receive(browser, 25)) == 25


async def test_scheduled_messages_wait_and_can_be_cancelled(bench: Bench) -> None:
    path = await bench.queue()
    later = Timestamp(int((time.time() + 2_000_000_000) * 1000))
    payload = sections.build(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): later},
        properties={PropertyField.MESSAGE_ID: "a"},
        data=b"x",
    )
    sender, receiver = bench.messaging.sender(path), bench.messaging.receiver(path)
    numbers = await sender.schedule([payload, payload], timeout_seconds=WAIT_SECONDS)
    seen = await receiver.peek(10)
    assert [one.sequence_number for one in seen] == numbers
    assert {one.state for one in seen} == {MessageState.SCHEDULED}
    assert await receiver.receive(1, wait_seconds=0.1) == []
    await sender.cancel_scheduled(numbers, timeout_seconds=WAIT_SECONDS)
    assert await receiver.peek(10) == []
    with pytest.raises(ServiceError):
        await sender.cancel_scheduled(numbers, timeout_seconds=WAIT_SECONDS)


async def test_nobody_there_is_an_error_of_its_own(bench: Bench) -> None:
    with pytest.raises(EntityNotFoundError) as sending:
        await bench.messaging.sender("missing").send([message("a")], timeout_seconds=WAIT_SECONDS)
    with pytest.raises(EntityNotFoundError):
        await bench.messaging.receiver("missing").receive(1, wait_seconds=0.1)
    with pytest.raises(EntityNotFoundError):
        await bench.messaging.receiver("missing").peek(1)
    assert not sending.value.uncertain


async def test_too_large_is_refused(bench: Bench) -> None:
    path = await bench.queue()
    sender = bench.messaging.sender(path)
    limit = await sender.max_message_bytes()
    with pytest.raises(MessageTooLargeError) as caught:
        await sender.send([message("a", body=bytes(limit))], timeout_seconds=WAIT_SECONDS)
    assert not caught.value.uncertain
    with pytest.raises(MessageTooLargeError):
        half = message("a", body=bytes(limit // 2))
        await sender.send([half, half], timeout_seconds=WAIT_SECONDS)
    large = message("b", body=bytes(limit - 100))
    await sender.send([large], timeout_seconds=WAIT_SECONDS)
    assert senders_part((await receive(bench.messaging.receiver(path), 1))[0].payload) == large


async def test_an_empty_queue_gives_nothing_after_the_wait(bench: Bench) -> None:
    path = await bench.queue()
    receiver = bench.messaging.receiver(path)
    await receiver.receive(1, wait_seconds=0.01)
    began = time.monotonic()
    assert await receiver.receive(10, wait_seconds=0.3) == []
    assert 0.25 < time.monotonic() - began < 30


async def test_waiting_ends_when_a_message_comes(bench: Bench) -> None:
    path = await bench.queue()
    receiver, sender = bench.messaging.receiver(path), bench.messaging.sender(path)
    await sender.max_message_bytes()
    waiting = asyncio.create_task(receiver.receive(10, wait_seconds=600))
    await asyncio.sleep(0.3)
    await sender.send([message("a")], timeout_seconds=WAIT_SECONDS)
    got = await asyncio.wait_for(waiting, LIMIT_SECONDS)
    assert [one.message_id for one in got] == ["a"]


async def test_a_session_receiver_gets_its_session_only(bench: Bench) -> None:
    path = await bench.queue(requires_session=True)
    await bench.messaging.sender(path).send(
        [message("a", session_id="one"), message("b", session_id="two"), message("c", session_id="one")],
        timeout_seconds=WAIT_SECONDS,
    )
    receiver = bench.messaging.receiver(path, session_id="one")
    got = await receive(receiver, 2)
    assert [one.message_id for one in got] == ["a", "c"]
    assert receiver.session_id == "one"
    for one in got:
        await receiver.settle(one, Disposition.COMPLETE)
    assert await receiver.receive(1, wait_seconds=0.1) == []


async def test_a_browsed_message_cannot_be_settled(bench: Bench) -> None:
    path = await bench.queue()
    await bench.messaging.sender(path).send([message("a")], timeout_seconds=WAIT_SECONDS)
    receiver = bench.messaging.receiver(path)
    browsed = (await receiver.peek(1))[0]
    with pytest.raises((ArgumentRefusedError, LockLostError)):
        await receiver.settle(browsed, Disposition.COMPLETE)


async def test_closing_gives_back_what_nobody_asked_for(bench: Bench) -> None:
    path = await bench.queue()
    first = bench.messaging.receiver(path)
    await bench.messaging.sender(path).send([message("0")], timeout_seconds=WAIT_SECONDS)
    taken = (await first.receive(30, wait_seconds=WAIT_SECONDS))[0]  # with credit for 29 more, which come later
    rest = [message(str(n)) for n in range(1, 30)]
    await bench.messaging.sender(path).send(rest, timeout_seconds=WAIT_SECONDS)
    await first.settle(taken, Disposition.COMPLETE)
    await first.close()
    got = await receive(bench.messaging.receiver(path), 29)
    assert {one.delivery_count for one in got} == {0}
    assert [one.message_id for one in got] == [str(n) for n in range(1, 30)]
