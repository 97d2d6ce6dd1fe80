"""The synchronous drop-in client, over real sockets."""

import asyncio
import datetime
import threading
import time

import azure.servicebus as sdk
import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

import sbpair.aio
from sbpair import ServiceBusClient, ServiceBusSender
from sbpair.amqp.sections import Section
from sbpair.amqp.types import Described, Long, Symbol
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.wire import Feature, encode_outgoing, lacks
from sbpair.clients.failover import LOOP_NAME
from sbpair.core.access import NamespaceAccess
from sbpair.core.encoded import EncodedMessage
from sbpair.core.failover.machine import State
from sbpair.core.pairing import SendAvailabilityOptions
from sbpair.core.rewrite import for_primary
from sbpair.engine.auth import make_sas_token
from sbpair.events import Diverted, FailedBack, FailedOver, SideFaulted
from tests.clients.conftest import FAST, QUEUES, World, backlog_queue, own_threads, state_of, wait_until

EMPTY_DELIVERY_ANNOTATIONS = b"\x00\x53\x71\xc1\x01\x00"
"""What a browse puts in front of a message."""
LATER = datetime.datetime(2035, 1, 1, tzinfo=datetime.UTC)


def a_client(world: World, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(), "on_event": world.events.append, **FAST} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


def test_while_all_is_well_the_sdk_sends_and_nothing_else_happens(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        assert isinstance(client, sdk.ServiceBusClient)
        assert isinstance(sender, sdk.ServiceBusSender)
        assert isinstance(sender, ServiceBusSender)
        sender.send_messages(ServiceBusMessage("single"))
        sender.send_messages([ServiceBusMessage("listed"), {"body": "as a dict"}])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        sender.send_messages(batch)
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"annotated"))
        sender.send_messages(ServiceBusMessage(str(number)) for number in range(2))  # type: ignore[arg-type]
        assert own_threads() == []
        assert client.state().entities == ()
    assert world.bodies("orders") == ["single", "listed", "as a dict", "batched", "annotated", "0", "1"]
    assert world.backlog() == []
    assert world.events == []


def test_while_all_is_well_messages_are_scheduled_and_cancelled_by_their_numbers(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        dropped, kept = sender.schedule_messages([ServiceBusMessage("dropped"), ServiceBusMessage("kept")], LATER)
        sender.cancel_scheduled_messages(dropped)
        (found,) = world.raw("orders")
    assert (str(found), found.sequence_number, found.scheduled_enqueue_time_utc) == ("kept", kept, LATER)


@pytest.mark.skipif(lacks(Feature.TIME_LIMITS) is not None, reason=str(lacks(Feature.TIME_LIMITS)))
def test_a_list_is_diverted_within_its_time_where_the_primary_never_opened_a_link(world: World) -> None:
    """The SDK opens the link for a list in a time of its own, 60 seconds."""
    with a_client(world) as client:
        client.force_failover("orders")
        with client.get_queue_sender("orders") as first:  # opens the way to the backlog: a busy machine takes its time
            first.send_messages(ServiceBusMessage("first"))
        client.fail_back("orders")
        sender = client.get_queue_sender("orders")
        world.emulator.faults("contoso").add("silent")
        started = time.monotonic()
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], timeout=8)
        assert time.monotonic() - started < 20
        world.emulator.faults("contoso").clear()
        sender.close()
    assert world.backlog() == ["first", "a", "b"]


def test_whatever_the_sdk_takes_is_diverted_while_the_primary_is_dark_and_comes_after_it_to_the_primary(
    world: World,
) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        world.dark()
        sender.send_messages(ServiceBusMessage("single"))
        sender.send_messages([ServiceBusMessage("listed"), {"body": "as a dict"}])
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        sender.send_messages(batch)
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"annotated"))
        sender.send_messages(ServiceBusMessage(str(number)) for number in range(2))  # type: ignore[arg-type]
        sender.send_messages([])
        numbers = sender.schedule_messages([ServiceBusMessage("scheduled")], LATER)
        assert numbers == [0]
        with pytest.raises(exceptions.MessageNotFoundError, match="cannot be cancelled"):
            sender.cancel_scheduled_messages(numbers)
        assert state_of(client.state()) is State.FAILED_OVER
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
        sender.send_messages(ServiceBusMessage("after"))
    assert world.bodies("orders") == ["before", "after"]
    # One sender, one queue: what it diverted is in order.
    assert [found for found in world.backlog_by_queue() if found] == [
        ["single", "listed", "as a dict", "batched", "annotated", "0", "1", "scheduled"]
    ]
    assert len(world.of(FailedOver)) == len(world.of(FailedBack)) == 1


def test_a_diverted_message_is_the_one_the_sdk_would_have_sent(world: World) -> None:
    def message() -> ServiceBusMessage:
        return ServiceBusMessage(
            b"\x00\xffbody",
            message_id="m1",
            session_id="s1",
            application_properties={"text": "é", "number": 7, "flag": True, "real": 1.5},
            time_to_live=datetime.timedelta(hours=1),
            subject="subject",
            correlation_id="c1",
            content_type="application/x",
            to="to",
            reply_to="reply",
            reply_to_session_id="rs",
            scheduled_enqueue_time_utc=LATER,
        )

    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(message())
        client.force_failover("orders")
        sender.send_messages(message())
    direct = world.raw("orders")[0]
    (diverted,) = [one for index in range(QUEUES) for one in world.raw(backlog_queue(index), "fabrikam")]
    properties = diverted.application_properties or {}
    assert properties[b"x-ms-path"] == b"orders"
    assert properties[b"x-ms-sessionid"] == b"s1"
    assert {b"x-ms-timetolive", b"x-ms-scheduledenqueuetimeutc"} <= set(properties)
    assert (diverted.session_id, diverted.message_id) == (None, "m1")
    for name in ("message_id", "subject", "correlation_id", "content_type", "to", "reply_to", "reply_to_session_id"):
        assert getattr(diverted, name) == getattr(direct, name)
    assert b"".join(diverted.body) == b"".join(direct.body) == b"\x00\xffbody"
    own = {name: value for name, value in properties.items() if not name.startswith(b"x-ms-")}
    assert own == direct.application_properties


def test_during_the_interval_the_sdks_own_error_is_raised_and_the_timer_fails_over(world: World) -> None:
    with a_client(world, pair=world.pair(interval=1.5)) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        world.dark()
        with pytest.raises(exceptions.ServiceBusError) as raised:
            sender.send_messages(ServiceBusMessage("raises"))
        assert type(raised.value).__module__ == "azure.servicebus.exceptions"
        assert not getattr(raised.value, "__notes__", [])
        wait_until(lambda: state_of(client.state()) is State.FAILED_OVER)
        sender.send_messages(ServiceBusMessage("diverted"))
    assert world.backlog() == ["diverted"]


def test_the_sdks_retries_come_first_and_cure_a_hiccup(world: World) -> None:
    world.emulator.faults("contoso").add("fail:entity=orders,op=send,count=2")
    retries = {"retry_total": 3, "retry_backoff_factor": 0.01}
    with a_client(world, **retries) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("once"))
        assert client.state().entities == ()
    assert (world.bodies("orders"), world.backlog(), world.events) == (["once"], [], [])


def test_both_sides_dark_raise_the_primarys_error_with_a_note(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        world.dark()
        world.emulator.stop("fabrikam")
        for _ in range(2):
            with pytest.raises(exceptions.ServiceBusError) as raised:
                sender.send_messages(ServiceBusMessage("nowhere"), timeout=3)
            (note,) = raised.value.__notes__
            assert "The backlog did not take the message either" in note


def test_it_starts_with_a_secondary_that_is_away_and_with_a_primary_that_is_away(world: World) -> None:
    world.emulator.stop("fabrikam")
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one"))
    world.emulator.start("fabrikam")
    world.dark()
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("two"))
        sender.send_messages(batch)
        assert state_of(client.state()) is State.FAILED_OVER
    assert world.backlog() == ["two"]


def test_a_secondary_without_backlog_queues_is_named_and_the_message_not_lost(world: World) -> None:
    for index in range(QUEUES):
        world.emulator.namespace("fabrikam").delete_queue(backlog_queue(index))
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        world.dark()
        with pytest.raises(exceptions.ServiceBusError) as raised:
            sender.send_messages(ServiceBusMessage("nowhere"))
        assert "contoso/x-servicebus-transfer/" in raised.value.__notes__[0]
        assert len(world.of(SideFaulted)) == 1
        assert client.state().secondary == "faulted"


def test_errors_of_the_application_are_the_sdks(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(ValueError, match="timeout must be greater than 0"):
            sender.send_messages(ServiceBusMessage("x"), timeout=0)
        with pytest.raises(TypeError):
            sender.send_messages("text")  # type: ignore[arg-type]
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x" * 300_000))
        client.force_failover("orders")
        with pytest.raises(TypeError):
            sender.send_messages("text")  # type: ignore[arg-type]
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x" * 300_000))
        with pytest.raises(ValueError, match="already has the application property"):
            sender.send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "mine"}))
        sender.close()
        with pytest.raises(ValueError, match="shutdown"):
            sender.send_messages(ServiceBusMessage("x"))
    assert world.backlog() == []


def test_an_entity_that_is_not_there_never_fails_over(world: World) -> None:
    with a_client(world) as client:
        sender = client.get_queue_sender("nowhere")
        for _ in range(2):
            with pytest.raises(exceptions.ServiceBusError):
                sender.send_messages(ServiceBusMessage("x"))
        assert state_of(client.state(), "nowhere") is State.HEALTHY
    assert world.backlog() == []


def test_a_session_beside_another_partition_key_is_not_diverted(world: World) -> None:
    conflicting = AmqpAnnotatedMessage(
        data_body=b"x",
        properties=AmqpMessageProperties(group_id="A"),
        annotations={"x-opt-partition-key": "B"},
        header=AmqpMessageHeader(durable=True),
    )
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        with pytest.raises(exceptions.ServiceBusError, match="'B' differs from the session id 'A'"):
            sender.send_messages(conflicting)
    assert world.backlog() == []


def test_a_received_message_is_sent_again_into_the_backlog_and_comes_back_as_from_the_sdk(world: World) -> None:
    """The SDK keeps the partition key of a message that it received as binary, and sends it so."""
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("again", session_id="s", partition_key="s"))
        with client.get_queue_receiver("orders") as receiver:
            (received,) = receiver.receive_messages(1, 30)
            sender.send_messages(received)
            client.force_failover("orders")
            sender.send_messages(received)
            receiver.complete_message(received)
    assert world.drain() == 1
    directly, back = world.raw("orders")
    assert (str(back), back.session_id, back.partition_key) == (str(directly), "s", "s")


def test_what_the_sdk_writes_behind_the_body_comes_back(world: World) -> None:
    annotated = AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={"own": "mine"}, footer={"end": "there"})
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(annotated)
        client.force_failover("orders")
        sender.send_messages(annotated)
    assert world.drain() == 1
    directly, back = (one.raw_amqp_message for one in world.raw("orders"))
    assert directly.delivery_annotations == back.delivery_annotations == {b"own": b"mine"}
    assert directly.footer == back.footer == {b"end": b"there"}


def test_a_list_that_fits_no_batch_is_refused_as_by_the_sdk(world: World) -> None:
    half = [ServiceBusMessage("x" * 140_000) for _ in range(2)]
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(half)
        client.force_failover("orders")
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(half)
    assert world.backlog() == []


def test_a_file_of_authorities_that_is_not_there_is_the_sdks_error(world: World) -> None:
    client = ServiceBusClient(
        "contoso.servicebus.windows.net",
        AzureNamedKeyCredential("name", "key"),
        secondary=world.connection_string("fabrikam"),
        connection_verify="/nowhere/authorities.pem",
        **FAST,  # type: ignore[arg-type]
    )
    with client, pytest.raises(exceptions.ServiceBusError):
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=5)


def test_held_sessions_stay_in_order_across_failover_and_failback(world: World) -> None:
    with a_client(world, pair=world.pair(hold_sessions=True)) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        sender.send_messages(ServiceBusMessage("1", session_id="s"))
        client.fail_back("orders")
        sender.send_messages(ServiceBusMessage("2", session_id="s"))
        sender.send_messages(ServiceBusMessage("free", session_id="t"))
    assert world.backlog() == ["1", "2"]
    assert world.bodies("orders") == ["free"]


def test_topics_and_receivers_are_the_primarys(world: World) -> None:
    world.emulator.namespace("contoso").create_topic("events")
    world.emulator.namespace("contoso").create_subscription("events", "all")
    with a_client(world) as client:
        with client.get_topic_sender("events") as sender:
            sender.send_messages(ServiceBusMessage("told"))
            client.force_failover("events")
            sender.send_messages(ServiceBusMessage("told later"))
        with client.get_subscription_receiver("events", "all") as receiver:
            received = receiver.receive_messages(1, 5)
            assert [str(one) for one in received] == ["told"]
            receiver.complete_message(received[0])
    (event,) = [one for one in world.events if isinstance(one, Diverted)]
    assert (event.entity, event.messages) == ("events", 1)
    payload = world.raw(event.queue, "fabrikam")[0]
    assert (payload.application_properties or {})[b"x-ms-path"] == b"events"


def test_one_sender_serves_several_threads_through_an_outage(world: World) -> None:
    errors: list[Exception] = []

    with a_client(world) as client, client.get_queue_sender("orders") as sender:

        def work(worker: int) -> None:
            for number in range(30):
                try:
                    sender.send_messages(ServiceBusMessage(f"{worker}-{number}"))
                except Exception as error:  # noqa: BLE001 - whatever it is, the application would see it
                    errors.append(error)
                if worker == 0 and number == 10:
                    world.dark()

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
    stored = world.bodies("orders") + world.backlog()
    assert set(stored) == {f"{worker}-{number}" for worker in range(4) for number in range(30)}


def test_the_secondary_by_its_connection_string_alone(world: World) -> None:
    client = ServiceBusClient.from_connection_string(
        world.connection_string(),
        secondary=world.connection_string("fabrikam"),
        options=SendAvailabilityOptions(1, 0.0),
        **FAST,  # type: ignore[arg-type]
    )
    with client, client.get_queue_sender("orders") as sender:
        world.dark()
        sender.send_messages(ServiceBusMessage("diverted"))
    assert world.bodies(backlog_queue(0), "fabrikam") == ["diverted"]


@pytest.mark.parametrize("kind", ["named key", "signature"])
def test_a_key_or_signature_of_azure_core_as_the_credential(world: World, kind: str) -> None:
    parts = dict(part.partition("=")[::2] for part in world.connection_string().split(";"))
    name, key = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
    host = parts["Endpoint"].removeprefix("sb://").rstrip("/")
    credential: AzureNamedKeyCredential | AzureSasCredential = AzureNamedKeyCredential(name, key)
    if kind == "signature":
        credential = AzureSasCredential(make_sas_token(f"sb://{host}/orders", name, key, time.time() + 3600))
    client = ServiceBusClient(
        host,
        credential,
        secondary=world.connection_string("fabrikam"),
        options=SendAvailabilityOptions(1, 0.0, False, 1.0),
        use_tls=False,
        **FAST,  # type: ignore[arg-type]
    )
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        world.dark()
        sender.send_messages(ServiceBusMessage("diverted"))
        world.light()
        wait_until(lambda: state_of(client.state()) is State.HEALTHY)
    assert world.bodies(backlog_queue(0), "fabrikam") == ["diverted"]


def test_what_is_missing_or_contradicts_is_told_at_once(world: World) -> None:
    make = ServiceBusClient.from_connection_string
    with pytest.raises(TypeError, match="either secondary="):
        make(world.connection_string())
    with pytest.raises(TypeError, match="either secondary="):
        make(world.connection_string(), secondary=world.connection_string("fabrikam"), pair=world.pair())
    with pytest.raises(ValueError, match="this client is for"):
        make(world.connection_string("fabrikam"), pair=world.pair())
    with pytest.raises(ValueError, match="secondary_credential="):
        make(world.connection_string(), secondary="fabrikam.servicebus.windows.net")


def test_a_sender_that_was_closed_asks_nobody(world: World) -> None:
    with a_client(world) as client:
        sender = client.get_queue_sender("orders")
        sender.close()
        world.dark()
        with pytest.raises(ValueError, match="shutdown"):
            sender.__enter__()
        assert client.state().entities == ()


def test_an_observer_that_breaks_or_sends_does_not_stop_anything(world: World) -> None:
    tried: list[Exception] = []
    senders: list[ServiceBusSender] = []

    def on_event(event: object) -> None:
        try:
            if isinstance(event, Diverted):
                senders[0].send_messages(ServiceBusMessage("from the callback"))
        except RuntimeError as error:
            tried.append(error)
        raise KeyError("broken")

    with a_client(world, on_event=on_event) as client, client.get_queue_sender("orders") as sender:
        senders.append(sender)
        client.force_failover("orders")
        sender.send_messages(ServiceBusMessage("diverted"))
    assert "must not send" in str(tried[0])
    assert world.backlog() == ["diverted"]


def test_it_can_take_the_sdks_place_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an application whose imports cannot be changed: what the failover itself needs of the SDK stays the SDK's."""
    monkeypatch.setattr("azure.servicebus.ServiceBusClient", ServiceBusClient)
    monkeypatch.setattr("azure.servicebus.aio.ServiceBusClient", sbpair.aio.ServiceBusClient)
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        sender.send_messages(ServiceBusMessage("diverted"))
    monkeypatch.undo()
    assert world.backlog() == ["diverted"]


def test_a_closed_client_opens_nothing_again_until_it_is_used_again(world: World) -> None:
    client = a_client(world, pair=world.pair(verify="warn"))
    with a_client(world) as other:
        other.force_failover("invoices")
        with client, client.get_queue_sender("orders"):
            wait_until(client.is_ready)
        for refused in (lambda: client.force_failover("orders"), lambda: client.fail_back("orders"), client.verify):
            with pytest.raises(ValueError, match="The client is closed"):
                refused()
        assert not client.is_ready()
        assert client.state().entities == ()
        assert not client._failover.is_open
    wait_until(lambda: own_threads() == [])
    with client:
        client.force_failover("orders")
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
        wait_until(client.is_ready)
    client.get_queue_sender("orders")
    client.force_failover("orders")
    client.close()
    assert (world.backlog(), own_threads()) == (["diverted"], [])


def test_closing_ends_the_pings_and_the_thread(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        world.dark()
        sender.send_messages(ServiceBusMessage("diverted"))
        assert own_threads() == [LOOP_NAME]
    seen = len(world.events)
    time.sleep(1.5)
    assert len(world.events) == seen
    assert own_threads() == []


def test_the_bytes_that_come_back_are_those_the_sdk_would_have_sent(world: World) -> None:
    message = ServiceBusMessage(
        "body", message_id="m1", partition_key="p1", application_properties={"n": 7, "t": "text"}, subject="subject"
    )
    timed = ServiceBusMessage("x", message_id="m2", session_id="s1", time_to_live=datetime.timedelta(hours=1))
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        sender.send_messages(message)
        sender.send_messages(timed)
    payloads = asyncio.run(browsed(world.pair().secondary))
    came_back = for_primary(payloads["m1"], now=0.0, enqueued_at=None)
    assert [came_back.payload.removeprefix(EMPTY_DELIVERY_ANNOTATIONS)] == encode_outgoing(message)
    # The retired library's types: a string each, and 100 ns ticks described as com.microsoft:timespan.
    properties = dict(EncodedMessage(payloads["m2"]).entries(Section.APPLICATION_PROPERTIES))
    assert (properties["x-ms-path"], properties["x-ms-sessionid"]) == ("orders", "s1")
    assert properties["x-ms-timetolive"] == Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000))


async def browsed(access: NamespaceAccess) -> dict[str, bytes]:
    """Backlog messages by their id."""
    messaging = AzureMessaging(access)
    try:
        found = [one for index in range(QUEUES) for one in await messaging.receiver(backlog_queue(index)).peek(250)]
    finally:
        await messaging.close()
    return {str(one.message_id): one.payload for one in found}
