"""Scenarios of azure-servicebus against a namespace: CONNECTION, ENDPOINT and CA_FILE say where. A JSON line each.

It runs in an environment of its own with the release under test, so it imports nothing else.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)

WAIT_SECONDS = 10


def take(receiver, count: int) -> list:
    taken: list = []
    while len(taken) < count:
        more = receiver.receive_messages(count - len(taken), max_wait_time=WAIT_SECONDS)
        assert more, f"{len(taken)} of {count} messages received"
        taken += more
    return taken


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def settle(client: ServiceBusClient) -> None:
    send(client, "orders", *(ServiceBusMessage(str(number)) for number in range(4)))
    with client.get_queue_receiver("orders") as receiver:
        taken = take(receiver, 4)
        receiver.renew_message_lock(taken[0])
        receiver.complete_message(taken[0])
        receiver.abandon_message(taken[1])
        receiver.defer_message(taken[2])
        receiver.dead_letter_message(taken[3], reason="bad")
        for message in receiver.receive_deferred_messages([taken[2].sequence_number]):
            receiver.complete_message(message)
        receiver.complete_message(take(receiver, 1)[0])


def dead_letters(client: ServiceBusClient) -> None:
    with client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        [message] = take(receiver, 1)
        assert message.dead_letter_reason == "bad"
        receiver.complete_message(message)


def peek_and_delete(client: ServiceBusClient) -> None:
    send(client, "orders", ServiceBusMessage("a"), ServiceBusMessage("b"))
    with client.get_queue_receiver("orders") as receiver:
        seen = receiver.peek_messages(5)
        assert len(seen) == 2, f"{len(seen)} messages seen"
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("orders", receive_mode=mode) as receiver:
        take(receiver, 2)


def schedule(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender:
        numbers = sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
        sender.cancel_scheduled_messages(numbers)


def sessions(client: ServiceBusClient) -> None:
    send(client, "sessions", ServiceBusMessage("x", session_id="blue"))
    with client.get_queue_receiver(
        "sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS
    ) as receiver:
        receiver.session.set_state(b"state")
        assert receiver.session.get_state() == b"state"
        receiver.session.renew_lock()
        receiver.complete_message(take(receiver, 1)[0])


def topic(client: ServiceBusClient) -> None:
    with client.get_topic_sender("events") as sender:
        sender.send_messages(ServiceBusMessage("t"))
    with client.get_subscription_receiver("events", "all") as receiver:
        receiver.complete_message(take(receiver, 1)[0])


SCENARIOS: dict[str, Callable[[ServiceBusClient], None]] = {
    "send, receive and settle": settle,
    "dead letters": dead_letters,
    "peek, receive and delete": peek_and_delete,
    "schedule and cancel": schedule,
    "sessions": sessions,
    "topic": topic,
}


def main() -> None:
    # Not every release knows a development emulator; to an endpoint that is given apart all go over WebSocket and TLS.
    where = {"custom_endpoint_address": os.environ["ENDPOINT"], "connection_verify": os.environ["CA_FILE"]}
    text = os.environ["CONNECTION"].replace("UseDevelopmentEmulator=true", "").rstrip(";")
    with ServiceBusClient.from_connection_string(text, **where) as client:
        for name, scenario in SCENARIOS.items():
            error = None
            try:
                scenario(client)
            except Exception as failure:  # noqa: BLE001 - whatever goes wrong is the finding
                error = f"{type(failure).__name__}: {failure}"
            print(json.dumps({"scenario": name, "error": error}), flush=True)


main()
