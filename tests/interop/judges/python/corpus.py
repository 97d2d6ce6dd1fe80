"""The typed corpus with azure-servicebus: `corpus.py send QUEUE FILE` and `corpus.py read COUNT QUEUE...`."""

import json
import os
import struct
import sys
import uuid
from datetime import datetime
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

WAIT_SECONDS = 20
TYPED = {"ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "float", "double", "timestamp", "symbol"}
NUMBERS = TYPED - {"float", "double", "symbol"}


class Cannot(Exception):
    """The client has no such type."""


def built(value):
    kind, text = value
    if kind == "list":
        return [built(one) for one in text]
    if kind == "map":
        return {key: built(one) for key, one in text}
    if kind in NUMBERS:
        return {"TYPE": kind.upper(), "VALUE": int(text)}
    if kind in ("float", "double"):
        [number] = struct.unpack(">f" if kind == "float" else ">d", bytes.fromhex(text))
        return {"TYPE": kind.upper(), "VALUE": number}
    if kind == "symbol":
        return {"TYPE": "SYMBOL", "VALUE": text.encode()}
    plain = {
        "null": lambda: None,
        "boolean": lambda: text == "true",
        "uuid": lambda: uuid.UUID(text),
        "binary": lambda: bytes.fromhex(text),
        "string": lambda: text,
    }
    if kind not in plain:
        raise Cannot(kind)
    return plain[kind]()


def built_property(value):
    if value[0] == "binary":
        raise Cannot("binary property")  # it is sent as a string, or fails as none
    return built(value)


def message(one) -> AmqpAnnotatedMessage:
    body = {"data_body": bytes.fromhex(one["data"])} if "data" in one else {"value_body": built(one["value"])}
    fields = {"to": "to", "subject": "subject", "replyTo": "reply_to"}
    fields |= {"correlationId": "correlation_id", "contentType": "content_type"}
    named = {fields[name]: text for name, text in one["fields"].items()}
    return AmqpAnnotatedMessage(
        **body,
        properties=AmqpMessageProperties(message_id=one["id"], **named),
        application_properties={name: built_property(value) for name, value in one["properties"].items()},
    )


def view(value):
    if isinstance(value, dict):
        return {str(key): view(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [view(one) for one in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, float):
        return ["float", struct.pack(">d", value).hex()]
    if isinstance(value, datetime):
        return ["datetime", repr(value.timestamp())]
    return [type(value).__name__, str(value)]


def seen(received):
    raw = received.raw_amqp_message
    body = list(raw.body) if raw.body_type.value == "data" else raw.body
    names = ("to", "subject", "reply_to", "correlation_id", "content_type")
    return [view(body), view(raw.application_properties or {}), [view(getattr(received, name)) for name in names]]


def main() -> None:
    where = {"custom_endpoint_address": os.environ["ENDPOINT"], "connection_verify": os.environ["CA_FILE"]}
    text = os.environ["CONNECTION"].replace("UseDevelopmentEmulator=true", "").rstrip(";")
    with ServiceBusClient.from_connection_string(text, **where) as client:
        if sys.argv[1] == "send":
            with client.get_queue_sender(sys.argv[2]) as sender:
                for one in json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")):
                    try:
                        made = message(one)
                    except Cannot as reason:
                        print(json.dumps({"id": one["id"], "cannot": str(reason)}))
                        continue
                    sender.send_messages(made)
            return
        for queue in sys.argv[3:]:
            left = int(sys.argv[2])
            with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
                while left and (taken := receiver.receive_messages(left, max_wait_time=WAIT_SECONDS)):
                    left -= len(taken)
                    for one in taken:
                        print(json.dumps({"queue": queue, "id": one.message_id, "view": seen(one)}))


main()
