"""The typed corpus with python-qpid-proton: `corpus.py send QUEUE FILE` and `corpus.py read COUNT QUEUE...`."""

import json
import struct
import sys
import uuid
from pathlib import Path

import proton
from where import connected

NUMBERS = {
    "ubyte": proton.ubyte,
    "ushort": proton.ushort,
    "uint": proton.uint,
    "ulong": proton.ulong,
    "byte": proton.byte,
    "short": proton.short,
    "int": proton.int32,
    "long": int,
    "timestamp": proton.timestamp,
}
FIELDS = {"to": "address", "subject": "subject", "replyTo": "reply_to"}
FIELDS |= {"correlationId": "correlation_id", "contentType": "content_type"}


def built(value):
    kind, text = value
    if kind == "list":
        return [built(one) for one in text]
    if kind == "map":
        return {key: built(one) for key, one in text}
    if kind in NUMBERS:
        return NUMBERS[kind](int(text))
    plain = {
        "null": lambda: None,
        "boolean": lambda: text == "true",
        "float": lambda: proton.float32(struct.unpack(">f", bytes.fromhex(text))[0]),
        "double": lambda: struct.unpack(">d", bytes.fromhex(text))[0],
        "uuid": lambda: uuid.UUID(text),
        "binary": lambda: bytes.fromhex(text),
        "char": lambda: proton.char(chr(int(text))),
        "string": lambda: text,
        "symbol": lambda: proton.symbol(text),
    }
    return plain[kind]()


def message(one) -> proton.Message:
    data = "data" in one
    return proton.Message(
        body=bytes.fromhex(one["data"]) if data else built(one["value"]),
        inferred=data,
        id=one["id"],
        properties={name: built(value) for name, value in one["properties"].items()} or None,
        **{FIELDS[name]: text for name, text in one["fields"].items()},
    )


def view(value):
    if isinstance(value, dict):
        return {str(key): view(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [view(one) for one in value]
    if isinstance(value, bytes | memoryview):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, float):
        return [type(value).__name__, struct.pack(">d", value).hex()]
    return [type(value).__name__, str(value)]


def main() -> None:
    connection = connected()
    if sys.argv[1] == "send":
        sender = connection.create_sender(sys.argv[2])
        for one in json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")):
            sender.send(message(one))
    else:
        for queue in sys.argv[3:]:
            receiver = connection.create_receiver(queue, credit=50)
            for _ in range(int(sys.argv[2])):
                one = receiver.receive()
                receiver.accept()
                seen = [one.inferred, view(one.body), view(one.properties or {})]
                seen.append([view(getattr(one, name)) for name in FIELDS.values()])
                print(json.dumps({"queue": queue, "id": one.id, "view": seen}))
            receiver.close()
    connection.close()


main()
