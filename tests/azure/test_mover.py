"""Messages moved in transactions: sent and completed together, or neither."""

import asyncio
import time
from dataclasses import replace

import pytest
from azure.servicebus._pyamqp.aio._session_async import Session

from sbpair.amqp.sections import Section
from sbpair.azure import wire
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.mover import AzureMover
from sbpair.azure.receiver import Receipt
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    LinkDetachedError,
    LocksLostError,
    MessageTooLargeError,
)
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.rewrite import as_sent, compose
from sbpair.emulator.entities import EntityStatus, QueueDescription, RuleDescription, SqlFilter
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.wire import Trace
from sbpair.service import Tier
from tests.azure.support import connections_of, message
from tests.contract.conftest import access_to
from tests.engine.wire_client import seen

CALL_SECONDS = 60.0


@pytest.fixture
def target(emulator: Emulator) -> str:
    emulator.namespace("primary").create_queue("parked")
    return "parked"


async def held(messaging: AzureMessaging, mover: AzureMover, count: int, session: str | None = None) -> list[Received]:
    """So many messages, sent to the mover's queue and received by it."""
    sender = messaging.sender(mover.source)
    await sender.send([message(f"m{n}", session_id=session) for n in range(count)], timeout_seconds=CALL_SECONDS)
    found: list[Received] = []
    while len(found) < count:
        found += await mover.receive(count - len(found), wait_seconds=CALL_SECONDS)
    return found


async def move(mover: AzureMover, received: list[Received], entity: str) -> None:
    await mover.move(received, [one.payload for one in received], entity, timeout_seconds=CALL_SECONDS)


def lie(emulator: Emulator, *queues: str) -> list[int]:
    namespace = emulator.namespace("primary")
    return [queue.counts().active for name in queues if (queue := namespace.get_queue(name)) is not None]


async def test_messages_go_and_are_completed_together(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover = messaging.mover("orders")
    assert await mover.why_not() is None
    await move(mover, await held(messaging, mover, 3), target)
    await move(mover, await held(messaging, mover, 1), target)
    assert lie(emulator, "orders", target) == [0, 4]
    assert len(emulator.namespace("primary").transactions) == 0


async def test_a_session_goes_in_its_order(emulator: Emulator, messaging: AzureMessaging, target: str) -> None:
    emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    mover = messaging.mover("sessions", session_id="a")
    received = await held(messaging, mover, 5, "a")
    await move(mover, received[:2], target)
    await move(mover, received[2:], target)
    found = await messaging.receiver(target).peek(10)
    assert [one.message_id for one in found] == [f"m{n}" for n in range(5)]


async def test_a_deferred_message_is_completed_by_its_lock_token(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover = messaging.mover("orders")
    deferred, active = await held(messaging, mover, 2)
    await mover.settle(deferred, Disposition.DEFER)
    found = await mover.receive_deferred([deferred.sequence_number])
    await move(mover, [active, *found], target)
    assert lie(emulator, "orders", target) == [0, 2]


async def test_one_lost_lock_keeps_all_of_them_here_and_is_named(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover = messaging.mover("orders")
    received = await held(messaging, mover, 3)
    receipt = received[1].receipt
    assert isinstance(receipt, Receipt)
    by_token = replace(received[1], receipt=Receipt(deferred_token=receipt.token))
    await messaging.receiver("orders").settle(by_token, Disposition.COMPLETE)
    with pytest.raises(LocksLostError) as caught:
        await move(mover, received, target)
    assert caught.value.lost == (1,)
    assert lie(emulator, "orders", target) == [2, 0]
    await move(mover, [received[0], received[2]], target)
    assert lie(emulator, "orders", target) == [0, 2]


async def test_what_came_on_a_lost_connection_goes_by_its_lock_token_or_comes_again(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    plain, session = messaging.mover("orders"), messaging.mover("sessions", session_id="a")
    received, of_session = await held(messaging, plain, 2), await held(messaging, session, 1, "a")
    emulator.faults("primary").add(f"drop:operation=send,entity={target},count=2")
    for mover, in_hand in ((plain, received), (session, of_session)):
        with pytest.raises(ConnectionLostError):
            await move(mover, in_hand, target)
    assert lie(emulator, "orders", "sessions", target) == [2, 1, 0]
    with pytest.raises(LocksLostError) as caught:
        await move(session, of_session, target)
    assert caught.value.lost == (0,)
    await plain.receive(1, wait_seconds=0.1)
    await move(plain, received, target)
    assert lie(emulator, "orders", target) == [0, 2]


async def test_a_refused_destination_leaves_everything_as_it_was(emulator: Emulator, messaging: AzureMessaging) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("closed", QueueDescription(status=EntityStatus.SEND_DISABLED))
    mover = messaging.mover("orders")
    received = await held(messaging, mover, 2)
    for entity, kind in (("closed", EntityDisabledError), ("missing", EntityNotFoundError)):
        with pytest.raises(kind) as caught:
            await move(mover, received, entity)
        assert not caught.value.uncertain
    with pytest.raises(MessageTooLargeError):
        await mover.move(received[:1], [bytes(300_000)], "orders", timeout_seconds=CALL_SECONDS)
    namespace.create_queue("open")
    await move(mover, received, "open")
    assert lie(emulator, "orders", "closed", "open") == [0, 0, 2]


async def test_a_destination_whose_link_ends_meanwhile_is_told_at_once_and_gets_another_link(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover = messaging.mover("orders")
    received = await held(messaging, mover, 2)
    emulator.faults("primary").add(f"detach:operation=send,entity={target},count=1")
    with pytest.raises(LinkDetachedError):
        await move(mover, received, target)
    assert lie(emulator, "orders", target) == [2, 0]
    await move(mover, received, target)
    assert lie(emulator, "orders", target) == [0, 2]


async def test_an_sdk_without_the_parts_for_transactions_is_named(
    messaging: AzureMessaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.lacks.cache_clear()
    monkeypatch.delattr(Session, "_outgoing_transfer")
    refused = await messaging.mover("orders").why_not()
    wire.lacks.cache_clear()
    assert refused is not None
    assert "With azure-servicebus" in refused.message
    assert "_outgoing_transfer" in refused.message


async def test_a_partitioned_destination_refuses_what_has_no_key(emulator: Emulator, messaging: AzureMessaging) -> None:
    emulator.namespace("primary").create_queue("parts", QueueDescription(enable_partitioning=True))
    mover = messaging.mover("orders")
    received = await held(messaging, mover, 1)
    with pytest.raises(ArgumentRefusedError):
        await move(mover, received, "parts")
    assert lie(emulator, "orders", "parts") == [1, 0]


async def scheduled(messaging: AzureMessaging, queue: str, count: int) -> list[Received]:
    """So many messages for tomorrow, as a browse shows them."""
    later = round(time.time()) + 86_400
    sender = messaging.sender(queue)
    await sender.send(
        [compose(body=b"", message_id=f"m{n}", scheduled_at=later + n) for n in range(count)],
        timeout_seconds=CALL_SECONDS,
    )
    return await messaging.receiver(queue).peek(100)


async def test_scheduled_messages_go_and_are_cancelled_together(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover = messaging.scheduled_mover("orders")
    found = await scheduled(messaging, "orders", 3)
    payloads = [as_sent(one.payload).payload for one in found]
    assert await mover.max_message_bytes(target) > 0
    await mover.move(found, payloads, target, timeout_seconds=CALL_SECONDS)
    assert await messaging.receiver("orders").peek(10) == []
    there = await messaging.receiver(target).peek(10)
    assert [as_sent(one.payload).payload for one in there] == payloads
    assert {one.state for one in there} == {MessageState.SCHEDULED}


async def test_scheduled_messages_are_sent_through_the_entity_where_they_lie(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    """The first link after the coordinator's says through which entity the service sends."""
    trace = emulator.namespace("primary").trace = Trace()
    mover = messaging.scheduled_mover("orders")
    found = await scheduled(messaging, "orders", 1)
    await mover.move(found, [found[0].payload], target, timeout_seconds=CALL_SECONDS)
    attached = [str(frame) for frame in trace.frames if " attach " in str(frame)]
    coordinator = next(place for place, text in enumerate(attached) if "coordinator" in text)
    of_entities = [text for text in attached[coordinator + 1 :] if "orders" in text or target in text]
    assert "orders/$management" in of_entities[0], of_entities
    assert any(target in text for text in of_entities)


async def test_messages_of_a_partitioned_queue_are_sent_through_their_partition(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    emulator.namespace("primary").create_queue("parts", QueueDescription(enable_partitioning=True))
    mover, plain = messaging.mover("parts"), messaging.mover("orders")
    payload = compose(body=b"x", message_id="m", partition_key="k")
    for one in (mover, plain):
        await messaging.sender(one.source).send([payload], timeout_seconds=CALL_SECONDS)
        received = await one.receive(1, wait_seconds=CALL_SECONDS)
        await one.move(received, [as_sent(found.payload).payload for found in received], target, timeout_seconds=60)
    bound, unbound = [
        EncodedMessage(found.payload).entry(Section.MESSAGE_ANNOTATIONS, "x-opt-via-partition-key")
        for found in await messaging.receiver(target).peek(10)
    ]
    assert (bound, unbound) == ("k", None)


async def test_what_is_scheduled_no_more_keeps_the_others_here_and_is_named_alone(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    mover, sender = messaging.scheduled_mover("orders"), messaging.sender("orders")
    found = await scheduled(messaging, "orders", 3)
    payloads = [as_sent(one.payload).payload for one in found]
    await sender.cancel_scheduled([found[1].sequence_number], timeout_seconds=CALL_SECONDS)
    with pytest.raises(ArgumentRefusedError):
        await mover.move(found, payloads, target, timeout_seconds=CALL_SECONDS)
    with pytest.raises(LocksLostError) as caught:
        await mover.move(found[1:2], payloads[1:2], target, timeout_seconds=CALL_SECONDS)
    assert (caught.value.lost, caught.value.uncertain) == ((0,), False)
    assert await messaging.receiver(target).peek(10) == []
    await mover.move([found[0], found[2]], [payloads[0], payloads[2]], target, timeout_seconds=CALL_SECONDS)
    assert len(await messaging.receiver(target).peek(10)) == 2
    assert len(emulator.namespace("primary").transactions) == 0


@pytest.mark.law("tier-has-transactions")
async def test_the_basic_tier_says_that_it_has_no_transactions() -> None:
    lax = NamespaceConfig("lax", tier=Tier.BASIC, laws={"tier-has-transactions": "lax"})
    async with Emulator([NamespaceConfig("small", tier=Tier.BASIC), lax], seed=1) as emulator:
        emulator.namespace("small").create_queue("orders")
        messaging = AzureMessaging(access_to(emulator, "small"))
        refused = await messaging.mover("orders").why_not()
        await messaging.close()
        emulator.namespace("lax").create_queue("orders")
        unbound = AzureMessaging(access_to(emulator, "lax"))
        assert await unbound.mover("orders").why_not() is None
        await unbound.close()
    assert refused is not None
    assert "Basic tier has no transactions" in refused.message


@pytest.mark.parametrize("how", ["connection lost", "time is up"])
async def test_a_commit_whose_answer_is_lost_is_in_doubt(
    emulator: Emulator, messaging: AzureMessaging, how: str
) -> None:
    """It was done here, its rules take long enough to cut the way back meanwhile. Nobody may rely on the receipts: the
    connection is given up, also one that is there still."""
    namespace = emulator.namespace("primary")
    namespace.create_topic("events")
    subscription = namespace.create_subscription("events", "all")
    for number in range(1000):
        namespace.create_rule("events", "all", f"r{number}", RuleDescription(filter=SqlFilter(expression="a = 1")))
    mover = messaging.mover("orders")
    received = await held(messaging, mover, 20)
    assert len(connections_of(emulator)) == 2, "the sender's and the mover's"
    payloads, seconds = [one.payload for one in received], 10.0 if how == "time is up" else CALL_SECONDS
    moving = asyncio.create_task(mover.move(received, payloads, "events", timeout_seconds=seconds))
    await seen(lambda: len(namespace.transactions))
    await seen(lambda: not len(namespace.transactions))
    silent = emulator.faults("primary").add("silent")
    await seen(lambda: subscription.counts().active)
    if how == "connection lost":
        emulator.faults("primary").add("drop")
    with pytest.raises(LocksLostError) as caught:
        await moving
    assert (caught.value.uncertain, caught.value.lost) == (True, tuple(range(20)))
    emulator.faults("primary").remove(silent)
    await seen(lambda: len(connections_of(emulator)) < 2)
    assert (lie(emulator, "orders"), subscription.counts().active) == ([0], 20)
    assert await mover.receive(1, wait_seconds=0.2) == []


async def test_a_message_with_no_room_for_its_partition_is_moved_as_it_is(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    emulator.namespace("primary").create_queue("parts", QueueDescription(enable_partitioning=True))
    mover = messaging.mover("parts")
    limit = await mover.max_message_bytes(target)
    spare = limit - len(compose(body=bytes(limit - 1000), message_id="m", partition_key="k"))
    largest = compose(body=bytes(limit - 1000 + spare), message_id="m", partition_key="k")
    assert len(largest) == limit
    await messaging.sender("parts").send([largest], timeout_seconds=CALL_SECONDS)
    received = await mover.receive(1, wait_seconds=CALL_SECONDS)
    assert received[0].sequence_number >> 48, "in the first partition there is nothing to be bound to"
    await mover.move(received, [as_sent(received[0].payload).payload], target, timeout_seconds=CALL_SECONDS)
    assert lie(emulator, "parts", target) == [0, 1]


async def test_without_a_connection_all_locks_are_named(
    emulator: Emulator, messaging: AzureMessaging, target: str
) -> None:
    """Also those of which the lock token alone is known: nothing can be done with them before a receive."""
    first, second = messaging.mover("orders"), messaging.mover("orders")
    received = await held(messaging, first, 2)
    with pytest.raises(LocksLostError) as caught:
        await move(second, received, target)
    assert caught.value.lost == (0, 1)
    assert lie(emulator, "orders", target) == [2, 0]
