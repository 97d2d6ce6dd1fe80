"""The messaging adapter when the network, the service or the credential misbehave."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.azure import wire
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.sender import transfers as transfers_of
from sbpair.core import errors
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, Transport
from sbpair.core.message import NEXT_AVAILABLE_SESSION, Disposition, Received
from sbpair.emulator.entities import (
    AuthorizationRule,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.service import Tier
from tests.azure.support import FixedCredential, Relay, connections_of, message, senders_part
from tests.contract.conftest import access_to
from tests.engine.wire_client import seen
from tests.hostile import within
from tests.waiting import LIMIT_SECONDS

SECONDS = 60.0
"""For what is answered at once, however busy the machine."""


async def test_a_receiver_of_the_next_session_does_not_go_on_with_another_one(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    queue = emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    for session in "ab":
        queue.send(message(f"of {session}", session_id=session))
    receiver = messaging.receiver("sessions", session_id=NEXT_AVAILABLE_SESSION)
    [first] = await receiver.receive(1, wait_seconds=SECONDS)
    queue.detach_links("com.microsoft:session-lock-lost", "The session was moved.")
    for _ in range(2):
        with pytest.raises(errors.LockLostError):
            await receiver.receive(1, wait_seconds=SECONDS)
    with pytest.raises(errors.LockLostError):
        await receiver.settle(first, Disposition.COMPLETE)
    assert (receiver.session_id, queue.counts().active) == ("a", 2)


async def test_a_settlement_after_the_link_of_a_session_does_not_take_the_session_again(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    """The lock went with the link: who asks for the session now gets it."""
    queue = emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    queue.send(message("1", session_id="a"))
    receiver = messaging.receiver("sessions", session_id="a")
    [taken] = await receiver.receive(1, wait_seconds=SECONDS)
    for link in list(queue.links):
        link.detach("com.microsoft:session-lock-lost", "The session was moved.")
    with pytest.raises(errors.LockLostError):
        await receiver.receive(1, wait_seconds=SECONDS)
    with pytest.raises(errors.LockLostError, match="went with the connection"):
        await receiver.settle(taken, Disposition.COMPLETE)
    [again] = await messaging.receiver("sessions", session_id="a").receive(1, wait_seconds=SECONDS)
    assert (again.message_id, again.delivery_count) == ("1", 0)


@asynccontextmanager
async def relayed(emulator: Emulator) -> AsyncIterator[tuple[Relay, AzureMessaging]]:
    """A messaging whose connections go through a relay, and are closed at the end."""
    access = access_to(emulator)
    assert access.connection_string is not None
    relay = Relay(access.host)
    async with relay as host:
        text = access.connection_string.reveal().replace(access.host, host)
        adapter = AzureMessaging(replace(access, host=host, connection_string=Secret(text)))
        yield relay, adapter
        await adapter.close()


async def test_a_thousand_concurrent_sends_use_one_connection(emulator: Emulator) -> None:
    async with relayed(emulator) as (relay, adapter):
        sender = adapter.sender("orders")
        await asyncio.gather(*(sender.send([message(str(n))], timeout_seconds=30) for n in range(1000)))
    queue = emulator.namespace("primary").get_queue("orders")
    assert queue is not None
    assert queue.counts().active == 1000
    assert relay.connections == 1


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize("identity", ["plain", "tls", "entra"])
async def test_every_way_in(emulator: Emulator, transport: Transport, identity: str) -> None:
    access = replace(access_to(emulator), transport=transport)
    credential = None
    if identity != "plain":
        text = access.connection_string
        assert text is not None
        access = replace(access, connection_string=Secret(text.reveal().replace(";UseDevelopmentEmulator=true", "")))
    if identity == "entra":
        access = replace(access, auth=AuthMethod.AZURE_CLI, connection_string=None)
        credential = FixedCredential()
    adapter = AzureMessaging(access, credential=credential)
    await adapter.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    receiver = adapter.receiver("orders")
    got = await receiver.receive(1, wait_seconds=SECONDS)
    await receiver.settle(got[0], Disposition.COMPLETE)
    assert [one.message_id for one in got] == ["a"]
    await adapter.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_a_peer_that_accepts_and_says_nothing_cannot_hang_a_call(encrypted: bool) -> None:
    held: list[asyncio.StreamWriter] = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    flag = "" if encrypted else ";UseDevelopmentEmulator=true"
    text = f"Endpoint=sb://{host};SharedAccessKeyName=k;SharedAccessKey=a2V5{flag}"
    access = NamespaceAccess("silent", host, AuthMethod.CONNECTION_STRING, Secret(text))
    adapter = AzureMessaging(access)
    began = time.monotonic()
    with pytest.raises(errors.OperationTimeoutError) as caught:
        await adapter.sender("orders").send([message("a")], timeout_seconds=0.5)
    assert not caught.value.uncertain
    await adapter.close()
    assert time.monotonic() - began < 55  # the SDK's own patience is a minute
    for writer in held:
        writer.close()
    server.close()


async def test_nobody_listening_is_a_lost_connection_at_once() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    text = f"Endpoint=sb://{host};SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    adapter = AzureMessaging(NamespaceAccess("gone", host, AuthMethod.CONNECTION_STRING, Secret(text)))
    began = time.monotonic()
    with pytest.raises(errors.ConnectionLostError) as caught:
        await adapter.sender("orders").send([message("a")], timeout_seconds=600)
    assert not caught.value.uncertain
    assert time.monotonic() - began < 500
    await adapter.close()


async def test_an_untrusted_certificate_says_what_to_do(emulator: Emulator) -> None:
    access = access_to(emulator)
    text = access.connection_string
    assert text is not None
    strict = text.reveal().replace(";UseDevelopmentEmulator=true", "")
    adapter = AzureMessaging(replace(access, connection_string=Secret(strict), ca_file=None))
    with pytest.raises(errors.ConnectionLostError) as caught:
        await adapter.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    assert "ca_file" in caught.value.hint
    await adapter.close()


async def test_a_wrong_key_is_an_authentication_failure_without_the_key(emulator: Emulator) -> None:
    access = access_to(emulator)
    assert access.connection_string is not None
    key = access.connection_string.reveal().split("SharedAccessKey=")[1].split(";")[0]
    wrong = access.connection_string.reveal().replace(key, "d3JvbmcgYXMgY2FuIGJl")
    adapter = AzureMessaging(replace(access, connection_string=Secret(wrong)))
    with pytest.raises(errors.AuthenticationFailedError) as caught:
        await adapter.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    assert "send to orders on primary" in caught.value.message
    assert "d3JvbmcgYXMgY2FuIGJl" not in caught.value.message
    await adapter.close()


async def test_a_key_without_the_right_is_unauthorized(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    namespace.auth_rules["listener"] = AuthorizationRule(
        name="listener", rights=frozenset({"Listen"}), primary_key="a2V5", secondary_key="a2V5"
    )
    access = access_to(emulator)
    adapter = AzureMessaging(
        replace(access, connection_string=Secret(emulator.connection_string("primary", "listener")))
    )
    with pytest.raises(errors.UnauthorizedError):
        await adapter.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    assert await adapter.receiver("orders").peek(1) == []
    await adapter.close()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("throttle:operation=send", errors.ServerBusyError),
        ("quota:operation=send", errors.QuotaExceededError),
        ("disabled", errors.EntityDisabledError),
        ("unauthorized", errors.UnauthorizedError),
        ("fail:operation=send,condition=amqp:internal-error", errors.ServiceInternalError),
        ("fail:operation=send,condition=amqp:not-allowed", errors.ArgumentRefusedError),
    ],
)
async def test_refusals_keep_their_meaning(
    emulator: Emulator, messaging: AzureMessaging, fault: str, kind: type[errors.ServiceError]
) -> None:
    emulator.faults("primary").add(fault)
    with pytest.raises(kind) as caught:
        await messaging.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    assert not caught.value.uncertain
    emulator.faults("primary").clear()
    await messaging.sender("orders").send([message("b")], timeout_seconds=SECONDS)


async def test_a_disabled_queue_is_told_apart(emulator: Emulator, messaging: AzureMessaging) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("off", QueueDescription(status=EntityStatus.SEND_DISABLED))
    with pytest.raises(errors.EntityDisabledError):
        await messaging.sender("off").send([message("a")], timeout_seconds=SECONDS)


async def test_a_lost_connection_is_replaced_for_the_next_call(emulator: Emulator, messaging: AzureMessaging) -> None:
    sender, receiver = messaging.sender("orders"), messaging.receiver("orders")
    await sender.send([message("a")], timeout_seconds=SECONDS)
    (taken,) = await receiver.receive(1, wait_seconds=SECONDS)
    waiting = asyncio.create_task(receiver.receive(1, wait_seconds=600))
    await asyncio.sleep(0.1)
    await emulator.stop("primary")
    with pytest.raises((errors.ConnectionLostError, errors.LinkDetachedError)):
        await asyncio.wait_for(waiting, LIMIT_SECONDS)
    with pytest.raises(errors.ConnectionLostError):
        await sender.send([message("b")], timeout_seconds=SECONDS)
    await emulator.start("primary")
    await sender.send([message("b")], timeout_seconds=SECONDS)
    got = await receiver.receive(2, wait_seconds=SECONDS)
    assert "b" in {one.message_id for one in got}
    await receiver.settle(taken, Disposition.COMPLETE)


async def test_a_namespace_gone_silent_times_out_and_a_new_connection_is_tried(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was heard lately is kept."""
    async with relayed(emulator) as (relay, adapter):
        sender = adapter.sender("orders")
        await sender.send([message("a")], timeout_seconds=SECONDS)
        for silent_seconds, connections in ((LIMIT_SECONDS, 1), (0.1, 2)):
            monkeypatch.setattr("sbpair.azure.sender._SILENT_SECONDS", silent_seconds)
            relay.flowing.clear()
            with pytest.raises(errors.OperationTimeoutError) as caught:
                await sender.send([message("b")], timeout_seconds=0.5)
            assert caught.value.uncertain
            relay.flowing.set()
            await sender.send([message("c")], timeout_seconds=SECONDS)
            assert relay.connections == connections


@pytest.mark.parametrize(("condition", "uncertain"), [("com.microsoft:timeout", True), ("amqp:internal-error", False)])
async def test_a_service_that_ran_out_of_time_does_not_say_whether_it_has_the_message(
    emulator: Emulator, messaging: AzureMessaging, condition: str, uncertain: bool
) -> None:
    emulator.faults("primary").add(f"fail:op=send,condition={condition},count=1")
    with pytest.raises(errors.ServiceError) as caught:
        await messaging.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    assert caught.value.uncertain is uncertain


async def test_a_lost_settlement_reply_times_out_as_uncertain(
    emulator: Emulator, messaging: AzureMessaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpair.azure.receiver.SETTLE_SECONDS", 0.5)
    await messaging.sender("orders").send([message("a")], timeout_seconds=SECONDS)
    receiver = messaging.receiver("orders")
    (taken,) = await receiver.receive(1, wait_seconds=SECONDS)
    emulator.faults("primary").add("lose-settlement-reply:count=1")
    with pytest.raises(errors.OperationTimeoutError) as caught:
        await receiver.settle(taken, Disposition.COMPLETE)
    assert caught.value.uncertain
    assert await receiver.peek(1) == []


async def test_of_several_settled_at_once_each_has_its_own_answer(
    emulator: Emulator, messaging: AzureMessaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpair.azure.receiver.SETTLE_SECONDS", 2.0)
    taken = await received_of_many(messaging, 30)
    receiver = messaging.receiver("orders")
    emulator.faults("primary").add("fail:op=settle,after=3,count=1,condition=com.microsoft:message-lock-lost")
    emulator.faults("primary").add("lose-settlement-reply:after=9,count=1")
    answers = [answer async for some in receiver.settle_all(taken, Disposition.COMPLETE) for answer in some]
    assert sorted(one.message_id or "" for one, _ in answers) == sorted(one.message_id or "" for one in taken)
    refused = {one.message_id: error for one, error in answers if error is not None}
    assert sorted(type(error).__name__ for error in refused.values()) == ["LockLostError", "OperationTimeoutError"]
    assert [error.uncertain for error in refused.values() if isinstance(error, errors.OperationTimeoutError)] == [True]
    assert len(await receiver.peek(30)) == 1  # the one that was refused


async def test_several_are_settled_although_their_connection_is_gone(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    taken = await received_of_many(messaging, 5)
    receiver = messaging.receiver("orders")
    emulator.faults("primary").add("drop:op=settle,count=1")
    lost = [error async for some in receiver.settle_all(taken, Disposition.COMPLETE) for _, error in some]
    assert all(isinstance(error, errors.ConnectionLostError) and error.uncertain for error in lost)
    assert len(lost) == 5
    again = [error async for some in receiver.settle_all(taken, Disposition.COMPLETE) for _, error in some]
    assert again == [None] * 5
    assert await receiver.peek(5) == []


async def test_messages_of_an_earlier_connection_are_settled_behind_those_of_this_one(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    """Deliveries are numbered for each link: a number of the other one would settle another message."""
    receiver = messaging.receiver("orders")
    sender = messaging.sender("orders")
    await sender.send([message(str(number)) for number in range(4)], timeout_seconds=SECONDS)
    earlier = [await receiver.receive(1, wait_seconds=SECONDS) for _ in range(2)]
    for link in list(emulator.namespace("primary").find("orders").links):
        link.detach("amqp:link:detach-forced", "The link was moved.")
    with pytest.raises(errors.LinkDetachedError):
        await receiver.receive(1, wait_seconds=SECONDS)
    now = [await receiver.receive(1, wait_seconds=SECONDS) for _ in range(2)]
    together = [now[1][0], earlier[0][0]]
    answers = [answer async for some in receiver.settle_all(together, Disposition.COMPLETE) for answer in some]
    assert sorted(one.message_id for one, error in answers if error is None) == ["0", "3"]
    assert [one.message_id for one in await receiver.peek(4)] == ["1", "2"]


async def test_the_time_of_a_renewed_session_holds_for_all_that_comes_after(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    queue = emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    for number in "12":
        queue.send(message(number, session_id="a"))
    receiver = messaging.receiver("sessions", session_id="a")
    [first] = await receiver.receive(1, wait_seconds=SECONDS)
    await asyncio.sleep(0.01)  # the lock's time is told in milliseconds
    until = await receiver.renew_lock(first)
    [second] = await receiver.receive(1, wait_seconds=SECONDS)
    assert first.locked_until is not None
    assert (second.locked_until, first.locked_until < until) == (until, True)


async def test_what_was_accepted_of_several_batches_is_named() -> None:
    """Premium: batches of 1 MB, so that four messages of 600 KB are four transfers."""
    async with Emulator([NamespaceConfig("premium", tier=Tier.PREMIUM)]) as premium:
        settings = QueueDescription(max_message_size_in_kilobytes=2048)
        queue = premium.namespace("premium").create_queue("orders", settings)
        queue.quota.limit_bytes = 2_000_000
        adapter = AzureMessaging(access_to(premium, "premium"))
        sent = [message(str(number), body=bytes(600_000)) for number in range(4)]
        with pytest.raises(errors.SendIncompleteError) as caught:
            await adapter.sender("orders").send(sent, timeout_seconds=SECONDS)
        assert caught.value.accepted == (0, 1, 2)
        assert queue.counts().active == 3
        await adapter.close()


async def received_of_many(messaging: AzureMessaging, count: int) -> list[Received]:
    sent = [message(str(number)) for number in range(count)]
    await messaging.sender("orders").send(sent, timeout_seconds=SECONDS)
    receiver = messaging.receiver("orders")
    taken: list[Received] = []
    while len(taken) < count:
        taken += await receiver.receive(count - len(taken), wait_seconds=SECONDS)
    return taken


async def test_a_detached_link_is_told_and_replaced(emulator: Emulator, messaging: AzureMessaging) -> None:
    sender = messaging.sender("orders")
    await sender.send([message("a")], timeout_seconds=SECONDS)
    emulator.faults("primary").add("detach:operation=send,count=1")
    [connection] = connections_of(emulator)
    with pytest.raises(errors.LinkDetachedError) as caught:
        await sender.send([message("b")], timeout_seconds=SECONDS)
    assert caught.value.uncertain
    assert connections_of(emulator) == [connection]
    await sender.send([message("c")], timeout_seconds=SECONDS)
    await seen(lambda: connection not in connections_of(emulator))


async def test_a_cancelled_send_leaves_the_link_whole(emulator: Emulator, messaging: AzureMessaging) -> None:
    sender = messaging.sender("orders")
    await sender.send([message("a")], timeout_seconds=SECONDS)
    sending = [asyncio.create_task(sender.send([message("x")], timeout_seconds=SECONDS)) for _ in range(50)]
    await asyncio.sleep(0)
    for task in sending:
        task.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    await sender.send([message("b")], timeout_seconds=SECONDS)
    found = await messaging.receiver("orders").peek(100)
    assert [one.message_id for one in found] == ["a", "b"], "what nobody waits for was not written yet"


async def test_the_next_available_session_is_taken_and_named(emulator: Emulator, messaging: AzureMessaging) -> None:
    emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    await messaging.sender("sessions").send([message("a", session_id="s1")], timeout_seconds=SECONDS)
    receiver = messaging.receiver("sessions", session_id=NEXT_AVAILABLE_SESSION)
    (taken,) = await receiver.receive(1, wait_seconds=SECONDS)
    assert receiver.session_id == "s1"
    assert taken.locked_until is not None
    assert await receiver.renew_lock(taken) >= taken.locked_until - 1
    with pytest.raises(errors.SessionUnavailableError):
        await messaging.receiver("sessions", session_id="s1").receive(1, wait_seconds=1)


async def test_no_session_that_waits_is_no_failure_of_the_namespace(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    adapter = AzureMessaging(access_to(emulator), next_session_seconds=0.5)
    with pytest.raises(errors.SessionUnavailableError, match="No session of sessions waits"):
        await adapter.receiver("sessions", session_id=NEXT_AVAILABLE_SESSION).receive(1, wait_seconds=1)
    await adapter.close()


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_browse_of_an_entity_that_takes_nothing_says_why(
    emulator: Emulator, messaging: AzureMessaging, status: EntityStatus
) -> None:
    emulator.namespace("primary").update_queue("orders", QueueDescription(status=status))
    with pytest.raises(errors.EntityDisabledError, match=str(status)):
        await messaging.receiver("orders").peek(1)


async def test_a_partitioned_queue_is_browsed_to_its_end(emulator: Emulator, messaging: AzureMessaging) -> None:
    emulator.namespace("primary").create_queue("parts", QueueDescription(enable_partitioning=True))
    sender = messaging.sender("parts")
    for n in range(200):
        await sender.send([message(str(n))], timeout_seconds=SECONDS)
    receiver = messaging.receiver("parts")
    found: list[int] = []
    start = 0
    while page := await receiver.peek(7, from_sequence_number=start):
        found += [one.sequence_number for one in page]
        start = found[-1] + 1
    assert found == sorted(set(found))
    assert len(found) == 200
    assert len({number >> 48 for number in found}) > 4


async def test_all_sessions_are_listed_however_many(emulator: Emulator, messaging: AzureMessaging) -> None:
    """The service tells 100 at a time."""
    queue = emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    names = [f"s{number:03}" for number in range(250)]
    for name in names:
        queue.send(message("m", session_id=name))
    async with asyncio.timeout(SECONDS):
        assert await messaging.receiver("sessions").session_ids() == names


async def test_credit_is_taken_back_where_nothing_came_and_left_for_what_is_under_way(
    emulator: Emulator, messaging: AzureMessaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpair.azure.receiver._IDLE_SECONDS", 10 * LIMIT_SECONDS)
    queue = emulator.namespace("primary").find("orders")
    receiver = messaging.receiver("orders")
    for messages, credit in ((0, 0), (1, 9)):
        for number in range(messages):
            queue.send(message(str(number)))
        got = await receiver.receive(10, wait_seconds=SECONDS if messages else 0.1)
        for _ in range(2):
            await receiver.peek(1)  # requests on the same connection come behind it
        assert len(got) == messages
        links = [link for connection in connections_of(emulator) for link in connection.links()]
        assert [link.credit for link in links if link.address == "orders"] == [credit]


async def test_late_messages_are_given_back_when_nobody_asks_again(messaging: AzureMessaging) -> None:
    await messaging.sender("orders").send([message(str(n)) for n in range(4)], timeout_seconds=SECONDS)
    idle = messaging.receiver("orders")
    taken = await idle.receive(10, wait_seconds=SECONDS)  # with credit for six more
    await messaging.sender("orders").send([message(str(n)) for n in range(4, 40)], timeout_seconds=SECONDS)
    await asyncio.sleep(1.5)
    other = messaging.receiver("orders")
    got = list(taken)
    while more := await other.receive(100, wait_seconds=0.5):
        got += more
    assert len(got) == 40
    assert {one.delivery_count for one in got} == {0}


async def test_closing_is_quick_and_final(messaging: AzureMessaging) -> None:
    sender, receiver = messaging.sender("orders"), messaging.receiver("orders")
    await sender.send([message("a")], timeout_seconds=SECONDS)
    await receiver.receive(1, wait_seconds=SECONDS)
    with within(seconds=3):
        await messaging.close()
    with pytest.raises(errors.ConnectionLostError):
        await sender.send([message("b")], timeout_seconds=SECONDS)


async def test_a_key_bound_to_an_entity_serves_that_entity_and_no_other(emulator: Emulator) -> None:
    text = emulator.connection_string("primary") + ";EntityPath=Orders"
    adapter = AzureMessaging(
        replace(access_to(emulator), connection_string=Secret(text), ca_file=str(Path(emulator.ca_path)))
    )
    await adapter.sender("ORDERS").send([message("a")], timeout_seconds=SECONDS)
    assert len(await adapter.receiver("orders").receive(1, wait_seconds=SECONDS)) == 1
    assert await adapter.receiver("orders", dead_letter=True).peek(1) == []
    emulator.namespace("primary").create_queue("orders2", QueueDescription())
    with pytest.raises(errors.UnauthorizedError, match="EntityPath=Orders") as refused:
        await adapter.sender("orders2").send([message("a")], timeout_seconds=SECONDS)
    assert "of the namespace" in refused.value.hint
    with pytest.raises(errors.UnauthorizedError, match="receive from orders2"):
        await adapter.receiver("orders2").peek(1)
    await adapter.close()


async def test_the_sdk_s_own_clients_work_as_ever_beside_the_adapter(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    ours = messaging.receiver("orders")
    await ours.receive(1, wait_seconds=0.1)
    emulator.namespace("primary").create_queue("theirs", QueueDescription())
    async with ServiceBusClient.from_connection_string(emulator.connection_string("primary")) as client:
        async with client.get_queue_sender("theirs") as sender:
            await sender.send_messages(ServiceBusMessage("plain"))
        async with client.get_queue_receiver("theirs") as receiver:
            (received,) = await receiver.receive_messages(1, max_wait_time=SECONDS)
            assert str(received) == "plain"
            await receiver.complete_message(received)


async def test_heartbeats_keep_an_idle_connection_and_silence_ends_it(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "IDLE_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(wire, "_SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(wire, "_HOUSEKEEPING_SECONDS", 0.1)
    adapter = AzureMessaging(access_to(emulator))
    receiver = adapter.receiver("orders")
    assert await receiver.receive(1, wait_seconds=3) == []
    emulator.faults("primary").add("silent")
    with pytest.raises(errors.ConnectionLostError):
        async with asyncio.timeout(LIMIT_SECONDS):
            await receiver.receive(1, wait_seconds=600)
    await adapter.close()


async def test_a_stalled_connection_hangs_no_call(emulator: Emulator) -> None:
    async with relayed(emulator) as (relay, adapter):
        sender, receiver = adapter.sender("orders"), adapter.receiver("orders")
        await sender.send([message("a")], timeout_seconds=SECONDS)
        await receiver.receive(1, wait_seconds=SECONDS)
        relay.flowing.clear()
        began = time.monotonic()
        large = message("b", body=bytes(200_000))
        sends = [sender.send([large], timeout_seconds=2) for _ in range(100)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(result) for result in results} == {errors.OperationTimeoutError}
        assert {result.uncertain for result in results if isinstance(result, errors.ServiceError)} == {True, False}
        assert await receiver.receive(1, wait_seconds=0.2) == []
        await adapter.close()
        assert time.monotonic() - began < 150  # one after the other they would take 200 s


class Limits:
    """What a link said about sizes."""

    def __init__(self, max_message_bytes: int, max_batch_bytes: int | None) -> None:
        self.max_message_bytes = max_message_bytes
        self.max_batch_bytes = max_batch_bytes


@pytest.mark.parametrize(
    ("limits", "expected"),
    [(Limits(256 * 1024, None), [10]), (Limits(100 << 20, 3000), [2, 3, 2, 3]), (Limits(100 << 20, 100), [1] * 10)],
)
def test_batches_are_split_only_where_single_messages_may_be_larger(limits: Limits, expected: list[int]) -> None:
    messages = [message(str(n), body=bytes(900)) for n in range(10)]
    transfers = list(transfers_of(limits, messages))  # type: ignore[arg-type]
    assert [count for count, _, _ in transfers] == expected
    if max(expected) == 1:
        assert [payload for _, payload, _ in transfers] == messages


async def test_concurrent_settlements_are_not_paced_by_a_poll(messaging: AzureMessaging) -> None:
    sender, receiver = messaging.sender("orders"), messaging.receiver("orders")
    await asyncio.gather(*(sender.send([message(str(n)) for n in range(100)], timeout_seconds=30) for _ in range(10)))
    taken = []
    while len(taken) < 1000:
        taken += await receiver.receive(1000 - len(taken), wait_seconds=SECONDS)
    with within(seconds=8):  # the SDK reads its connection every 50 ms at best
        await asyncio.gather(*(receiver.settle(one, Disposition.COMPLETE) for one in taken[:500]))
        async for answers in receiver.settle_all(taken[500:], Disposition.COMPLETE):
            assert all(error is None for _, error in answers)


async def test_messages_nobody_asked_for_are_given_back_over_tls_too(emulator: Emulator) -> None:
    access = access_to(emulator)
    assert access.connection_string is not None
    text = access.connection_string.reveal().replace(";UseDevelopmentEmulator=true", "")
    adapter = AzureMessaging(replace(access, connection_string=Secret(text)))
    await adapter.sender("orders").send([message("first")], timeout_seconds=SECONDS)
    first = adapter.receiver("orders")
    await first.receive(50, wait_seconds=SECONDS)  # with credit for 49 more
    await adapter.sender("orders").send([message(str(n)) for n in range(49)], timeout_seconds=SECONDS)
    await first.close()
    second = adapter.receiver("orders")
    got = []
    while len(got) < 49:
        got += await second.receive(50, wait_seconds=SECONDS)
    assert {one.delivery_count for one in got} == {0}
    await adapter.close()


async def test_a_subscription_and_its_dead_letters_are_received_from(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_topic("a/events", TopicDescription())
    namespace.create_subscription("a/events", "all", SubscriptionDescription())
    await messaging.sender("a/events").send([message("a")], timeout_seconds=SECONDS)
    path = "a/events/Subscriptions/all"
    receiver = messaging.receiver(path)
    assert [one.message_id for one in await receiver.peek(5)] == ["a"]
    (taken,) = await receiver.receive(1, wait_seconds=SECONDS)
    await receiver.settle(taken, Disposition.DEAD_LETTER, reason="r", description="d")
    (dead,) = await messaging.receiver(path, dead_letter=True).receive(1, wait_seconds=SECONDS)
    assert (taken.source, dead.source) == (path, f"{path}/$deadletterqueue")


async def test_a_session_queue_refuses_what_has_no_session_and_can_be_browsed(
    emulator: Emulator, messaging: AzureMessaging
) -> None:
    emulator.namespace("primary").create_queue("sessions", QueueDescription(requires_session=True))
    sender = messaging.sender("sessions")
    with pytest.raises(errors.ArgumentRefusedError):
        await sender.send([message("a")], timeout_seconds=SECONDS)
    await sender.send([message("b", session_id="s")], timeout_seconds=SECONDS)
    receiver = messaging.receiver("sessions")
    assert [one.session_id for one in await receiver.peek(5)] == ["s"]
    with pytest.raises(errors.ArgumentRefusedError):
        await receiver.receive(1, wait_seconds=0.1)


async def test_a_message_of_many_frames_passes_whole(messaging: AzureMessaging) -> None:
    large = message("a", body=bytes(range(256)) * 1000)
    sender, receiver = messaging.sender("orders"), messaging.receiver("orders")
    await asyncio.gather(*(sender.send([large], timeout_seconds=SECONDS) for _ in range(8)))
    got = []
    while len(got) < 8:
        got += await receiver.receive(8, wait_seconds=SECONDS)
    assert {senders_part(one.payload) for one in got} == {large}
