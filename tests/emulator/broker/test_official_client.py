"""The broker through the official asynchronous client, over a real socket."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from sbpair.emulator import Emulator, NamespaceConfig, Tier
from sbpair.emulator.entities import EntityStatus, QueueDescription, RuleDescription, SqlFilter
from sbpair.emulator.namespace import new_auth_rule
from tests.waiting import closing_at_once


@pytest.fixture
async def emulator():
    async with Emulator(["primary"]) as running:
        running.namespace("primary").create_queue("q")
        yield running


@pytest.fixture
async def namespace(emulator):
    return emulator.namespace("primary")


@pytest.fixture
async def client(emulator):
    async with closing_at_once(ServiceBusClient).from_connection_string(
        emulator.connection_string("primary"), retry_total=0
    ) as connected:
        yield connected


async def send(client, queue, *bodies, **fields):
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(body, **fields) for body in bodies])


def texts(messages):
    return [str(message) for message in messages]


async def test_all_ways_to_settle(client, namespace):
    await send(client, "q", *"abcde")
    async with client.get_queue_receiver("q") as receiver:
        messages = await receiver.receive_messages(5, max_wait_time=5)
        assert texts(messages) == list("abcde")
        await receiver.complete_message(messages[0])
        await receiver.abandon_message(messages[1])
        await receiver.defer_message(messages[2])
        await receiver.dead_letter_message(messages[3], reason="why", error_description="because")
        before = messages[4].locked_until_utc
        assert await receiver.renew_message_lock(messages[4]) >= before
        [deferred] = await receiver.receive_deferred_messages(messages[2].sequence_number)
        await receiver.complete_message(deferred)
        [again] = await receiver.receive_messages(1, max_wait_time=5)
        assert (str(again), again.delivery_count) == ("b", 1)
        await receiver.complete_message(again)
    async with client.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert texts(await receiver.peek_messages(1)) == ["d"]
        [dead] = await receiver.receive_messages(1, max_wait_time=5)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "because")
        await receiver.complete_message(dead)
    assert namespace.get_queue("q").counts().total == 1


async def test_closing_a_prefetching_receiver_returns_uncounted(client, namespace):
    await send(client, "q", *"abc")
    async with client.get_queue_receiver("q", prefetch_count=3) as receiver:
        await receiver.receive_messages(1, max_wait_time=5)
    assert namespace.get_queue("q").counts().active == 3


async def test_receive_and_delete_and_peek(client, namespace):
    await send(client, "q", *"abc")
    async with client.get_queue_receiver("q", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert texts(await receiver.peek_messages(2)) == ["a", "b"]
        assert texts(await receiver.receive_messages(3, max_wait_time=5)) == ["a", "b", "c"]
        assert await receiver.peek_messages(2, sequence_number=1) == []
    assert namespace.get_queue("q").counts().total == 0


async def test_schedule_and_cancel(client):
    soon = datetime.now(UTC) + timedelta(seconds=2)
    async with client.get_queue_sender("q") as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], soon)
        await sender.cancel_scheduled_messages(numbers[1])
    async with client.get_queue_receiver("q") as receiver:
        [message] = await receiver.receive_messages(2, max_wait_time=5)
        assert (str(message), message.sequence_number) == ("kept", 3)


async def test_sessions(client, namespace):
    namespace.create_queue("s", QueueDescription(requires_session=True))
    await send(client, "s", "1", "2", session_id="a")
    async with client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "a"
        await receiver.session.set_state(b"state")
        assert await receiver.session.get_state() == b"state"
        assert await receiver.session.renew_lock() > datetime.now(UTC)
        assert texts(await receiver.peek_messages(5)) == ["1", "2"]
        for message in await receiver.receive_messages(2, max_wait_time=5):
            await receiver.complete_message(message)
        with pytest.raises(SessionCannotBeLockedError):
            async with client.get_queue_receiver("s", session_id="a"):
                pass
    with pytest.raises(ServiceBusError, match="requires sessions"):
        async with client.get_queue_receiver("s") as plain:
            await plain.receive_messages(1, max_wait_time=1)
    with pytest.raises(ServiceBusError, match="does not require sessions"):
        async with client.get_queue_receiver("q", session_id="a"):
            pass
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        await send(client, "s", "x")


async def test_a_session_arrives_while_somebody_waits(client, namespace):
    namespace.create_queue("s", QueueDescription(requires_session=True))

    async def next_session():
        async with client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            return texts(await receiver.receive_messages(1, max_wait_time=5))

    waiting = asyncio.create_task(next_session())
    await asyncio.sleep(0.3)
    await send(client, "s", "x", session_id="late")
    assert await waiting == ["x"]


async def test_no_session_in_time(client, namespace):
    namespace.create_queue("s", QueueDescription(requires_session=True))
    with pytest.raises(OperationTimeoutError):
        async with client.get_queue_receiver("s", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
            pass


async def test_lost_locks_are_reported(client, namespace):
    namespace.create_queue("s", QueueDescription(requires_session=True))
    await send(client, "q", "x")
    await send(client, "s", "x", session_id="a")
    namespace.faults.add("expire-locks:lock=100ms")
    async with client.get_queue_receiver("q") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=5)
        await asyncio.sleep(0.2)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
    async with client.get_queue_receiver("s", session_id="a") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=5)
        await asyncio.sleep(0.2)
        with pytest.raises(SessionLockLostError):
            await receiver.session.renew_lock()


async def test_topic_with_a_rule(client, namespace):
    namespace.create_topic("t")
    namespace.create_subscription("t", "red", rule=RuleDescription(filter=SqlFilter(expression="color = 'red'")))
    async with client.get_topic_sender("t") as sender:
        for color in ("red", "blue"):
            await sender.send_messages(ServiceBusMessage(color, application_properties={"color": color}))
    async with client.get_subscription_receiver("t", "red") as receiver:
        messages = await receiver.receive_messages(2, max_wait_time=1)
        assert texts(messages) == ["red"]
        assert messages[0].enqueued_sequence_number == 1


async def test_refusals(client, namespace):
    with pytest.raises(ServiceBusAuthenticationError):
        await send(client, "missing", "x")
    with pytest.raises(MessageSizeExceededError):
        await send(client, "q", b"x" * 300_000)
    namespace.get_queue("q").quota.limit_bytes = 10
    with pytest.raises(ServiceBusQuotaExceededError):
        await send(client, "q", "x" * 100)
    namespace.update_queue("q", QueueDescription(status=EntityStatus.DISABLED))
    with pytest.raises(MessagingEntityDisabledError):
        await send(client, "q", "x")


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_an_entity_that_takes_nothing_answers_no_browse(client, namespace, status):
    """Requests are sent to the entity. This client does not tell why the links of its requests were refused."""
    await send(client, "q", "x")
    async with client.get_queue_receiver("q") as receiver:
        assert texts(await receiver.peek_messages(1)) == ["x"]
        namespace.update_queue("q", QueueDescription(status=status))
        with pytest.raises(ServiceBusError, match="Management Operation"):
            await receiver.peek_messages(1)
    namespace.update_queue("q", QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
    async with client.get_queue_sender("q") as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        await sender.cancel_scheduled_messages(await sender.schedule_messages(ServiceBusMessage("y"), later))


async def test_large_messages_pass_through_a_premium_namespace_with_partitions():
    body = bytes(range(256)) * 20_000
    async with Emulator([NamespaceConfig("big", Tier.PREMIUM, premium_partitions=2)]) as emulator:
        description = QueueDescription(max_message_size_in_kilobytes=6 * 1024, requires_session=True)
        emulator.namespace("big").create_queue("q", description)
        async with ServiceBusClient.from_connection_string(emulator.connection_string("big"), retry_total=0) as client:
            async with client.get_queue_sender("q") as sender:
                await sender.send_messages(ServiceBusMessage(body, session_id="s"))
            async with client.get_queue_receiver("q", session_id="s") as receiver:
                [message] = await receiver.receive_messages(1, max_wait_time=60)
                assert b"".join(message.body) == body
                await receiver.complete_message(message)
                assert await receiver.peek_messages(1) == []


async def test_rights(emulator, namespace):
    namespace.set_auth_rule(new_auth_rule("listener", {"Listen"}))
    text = emulator.connection_string("primary", "listener")
    async with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
        with pytest.raises(ServiceBusAuthorizationError):
            await send(client, "q", "x")
        async with client.get_queue_receiver("q") as receiver:
            assert await receiver.peek_messages(1) == []


async def test_injected_faults(client, namespace):
    throttle = namespace.faults.add("throttle:entity=q,operation=send")
    with pytest.raises(ServiceBusServerBusyError):
        await send(client, "q", "x")
    namespace.faults.remove(throttle)
    await send(client, "q", "x")
    namespace.faults.add("fail:entity=q,operation=settle,nth=1,condition=com.microsoft:server-busy")
    async with client.get_queue_receiver("q") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=5)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.complete_message(message)
    assert namespace.get_queue("q").counts().active == 1


async def test_deleting_the_queue_under_a_receiver(client, namespace):
    async with client.get_queue_receiver("q") as receiver:
        await receiver.peek_messages(1)
        namespace.delete_queue("q")
        with pytest.raises(ServiceBusError):
            await receiver.receive_messages(1, max_wait_time=2)


async def test_partitioned_queue(client, namespace):
    queue = namespace.create_queue("p", QueueDescription(enable_partitioning=True))
    for first in (0, 20):
        await send(client, "p", *map(str, range(first, first + 20)))
    async with client.get_queue_receiver("p") as receiver:
        assert len(await receiver.peek_messages(40)) == 20  # a transfer without keys goes to one partition
        got = []
        while len(got) < 40:
            for message in await receiver.receive_messages(40, max_wait_time=2):
                got.append(int(str(message)))
                await receiver.complete_message(message)
    assert sorted(got) == list(range(40))
    assert queue.counts().total == 0
