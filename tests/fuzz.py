"""Random and damaged input against everything that reads what strangers wrote: `python -m tests.fuzz [TARGET ...]`, for
`--cases N` or `--minutes N`.

Every case must end in a value or in the error its reader is documented to raise, within a second. The seed is printed;
with `--seed` the same cases come again. A small share of it runs in the suite.
"""

import argparse
import asyncio
import base64
import copy
import faulthandler
import math
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType

from sbpair.amqp.frames import FrameBuffer, FramingError, transfer_head
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    COORDINATOR,
    DECLARE,
    DETACH,
    DISCHARGE,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SOURCE,
    TARGET,
    TRANSACTIONAL_STATE,
    TRANSFER,
    accepted,
    perform,
    read_performative,
    released,
)
from sbpair.amqp.sections import build, read, scan
from sbpair.amqp.types import AmqpError, Described, Symbol, Uint, Ulong
from sbpair.azure.errors import WireError
from sbpair.azure.frames import performative_end
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.message import Received, TtlMode
from sbpair.core.names import is_destination
from sbpair.core.redact import defused, json_text, printable, scrub
from sbpair.core.rewrite import compose, describe, for_backlog, for_primary, is_ping, strip_broker_annotations
from sbpair.core.summary import plain
from sbpair.core.transfer.ledger import Way
from sbpair.core.transfer.restored import Unsendable
from sbpair.core.transfer.verdict import Classifier
from sbpair.emulator.admin.calls import AdminCall
from sbpair.emulator.endpoints import Endpoints
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.seed import SeedError, is_microsoft_config, plant, seed_of
from sbpair.engine.auth import (
    ALL_RIGHTS,
    SERVICE_BUS_AUDIENCE,
    AuthError,
    Claims,
    authenticate,
    make_bearer_token,
    make_sas_token,
    read_token,
)
from sbpair.engine.budgets import Memory
from sbpair.engine.clock import ManualClock
from sbpair.engine.connection import Connection
from sbpair.engine.errors import EntityError, rejected
from sbpair.engine.link import Link, LinkHandler
from sbpair.gateway.door import DoorConnection
from sbpair.gateway.keys import KeyRing
from sbpair.gateway.passed import PassedLink
from sbpair.gateway.primary import PrimaryWire
from sbpair.gateway.server import GatewayView
from sbpair.gateway.tokens import Proofs, Tokens
from sbpair.gateway.upward import put_head, read_head
from sbpair.operations.lines import InputFormat, to_payload
from sbpair.operations.restore import read_archives
from sbpair.pipeline.manifest import Commit
from sbpair.runtime.replication.handlers import Delivery, environment_of
from sbpair.runtime.transfer.ledger import Ledger, outcomes_in
from sbpair.settings import parse_yaml_with_lines
from sbpair.settings.documents import DocumentError, parse_json
from sbpair.settings.files import read_file
from sbpair.sqlfilter.parser import parse_action, parse_filter
from sbpair.sqlfilter.values import UNKNOWN, FilterEvaluationError, FilterSyntaxError, like
from tests.hostile import SCALARS, json_bytes

SLOWEST_SECONDS = 3.0
HANGING_SECONDS = 600.0
Case = Callable[[random.Random], None]


class FuzzFailure(AssertionError):
    """A case that ended in anything but a value or its reader's own error; the text has the seed and the number."""


def damaged(random_: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, taken out, doubled or put in."""
    result = bytearray(data)
    for _ in range(random_.randint(1, 6)):
        at = random_.randrange(len(result) + 1)
        match random_.randrange(4):
            case 0:
                result[at : at + 1] = random_.randbytes(1)
            case 1:
                del result[at : at + random_.randint(1, 8)]
            case 2:
                result[at:at] = result[at : at + random_.randint(1, 16)]
            case _:
                result[at:at] = random_.choice((b"\xff" * 4, b"\x00", b"\xc0\x00", b"\xd1\xff\xff\xff\xff", b"%", b"&"))
    return bytes(result)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of a JSON document."""
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from places(document[key])


def twisted(random_: random.Random, document: Any) -> bytes:
    """A JSON document with values and keys exchanged for what readers trip over, or its text damaged."""
    if random_.random() < 0.3:
        return damaged(random_, json_bytes(document))
    changed = copy.deepcopy(document)
    for _ in range(random_.randint(1, 3)):
        holder, key = random_.choice(list(places(changed)) or [([changed], 0)])
        match random_.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[random_.choice(["", "x", "\ud800", f"{key} "])] = holder.pop(key)
            case 2:
                holder[key] = [holder[key]]
            case _:
                holder[key] = random_.choice(SCALARS)
    return json_bytes(changed)


MESSAGE = build(
    properties=["id", None, "to", "subject", None, "7"],
    application_properties={"x-ms-path": "orders", "n": Uint(1), "f": 2.5},
    data=b"body",
)


def message(random_: random.Random) -> None:
    payload = damaged(random_, MESSAGE)
    try:
        spans = scan(payload)
        for span in spans:
            read(payload, spans, span.section)
    except AmqpError:
        return


def backlog_message(random_: random.Random) -> None:
    """All that a drain does with a message before it sends it, and all that `peek` shows of it."""
    payload = damaged(random_, random_.choice((MESSAGE, _DIVERTED)))
    summary = describe(payload)
    json_text({name: plain(value) for name, value in summary.application_properties.items()})
    for work in (
        is_ping,
        strip_broker_annotations,
        lambda data: for_backlog(data, "orders"),
        lambda data: for_primary(data, now=1e9, enqueued_at=1.0, ttl=TtlMode.REMAINING, from_dead_letter=True),
    ):
        with suppress(SbpairError):
            work(payload)
    received = Received(payload, 1, random_.choice(("q/0", "q/0/$deadletterqueue")), enqueued_at=1.0)
    Classifier(now=lambda: 1e9, only=("orders",))(received)


_DIVERTED = for_backlog(
    compose(body=b"body", message_id="m", session_id="s", ttl_seconds=60, scheduled_at=2e9, partition_key="s"), "orders"
)


def frame(random_: random.Random) -> None:
    """What a server sends to a client."""
    buffer = FrameBuffer()
    data = damaged(random_, _DIALOGUE[8:])
    cut = random_.randrange(len(data))
    try:
        for piece in (data[:cut], data[cut:]):
            for _, body in buffer.feed(piece):
                if len(body):
                    performative_end(body)
    except (FramingError, WireError):
        return


class _View:
    """A message to ask a filter about."""

    def user(self, name: str) -> object:
        return {"a": 1, "b": "text", "c": 2.5, "d": None, "e": True}.get(name.lower(), UNKNOWN)

    def system(self, name: str) -> object:
        if name.lower() not in ("label", "messageid"):
            raise FilterEvaluationError(name)
        return "label"

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=1)

    def spend(self, steps: int) -> None:
        assert steps >= 0


_WORDS = (
    *("a", "b", "sys.Label", "user.c", "[x]", "@p", "1", "0", "-9223372036854775808", "1e308", "2.5", "'x'", "'it''s'"),
    *("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "newid()", "SET", "REMOVE", ";"),
    *("=", "<>", "<", ">=", "+", "-", "*", "/", "%", "(", ")", ",", "'%_'", "'"),
)


def sql(random_: random.Random) -> None:
    words = " ".join(random_.choice(_WORDS) for _ in range(random_.randint(1, 14)))
    with suppress(FilterSyntaxError, FilterEvaluationError):
        parse_filter(words, {"@p": 1})(_View())
    with suppress(FilterSyntaxError, FilterEvaluationError):
        for statement in parse_action(f"SET q = {words}", {}):
            if statement.value is not None:
                statement.value(_View())


_LEDGER_LINE = {
    "queue": "contoso/x-servicebus-transfer/0",
    "sequence_number": 7,
    "message_id": "m-7",
    "enqueued_at_ms": 1,
    "destination": "orders",
    "session_id": None,
    "outcome": "forwarded",
    "time": "2026-11-01T00:00:00Z",
    "attempts": 1,
    "reason": "",
    "from_namespace": "b",
    "to_namespace": "a",
}


def ledger(random_: random.Random, path: Path) -> None:
    path.write_bytes(twisted(random_, _LEDGER_LINE) + random_.choice((b"\n", b"", b"\n{", b"\r\n")))
    with suppress(UsageError):
        found = Ledger(path, resume=True, way=Way("b", "a"))
        found._file.close()
        assert all(isinstance(key[0], str) and isinstance(key[1], int) for key in found.forwarded)


_ARCHIVE_LINE = {
    "queue": "contoso/x-servicebus-transfer/0",
    "sequence_number": 7,
    "message_id": "m-7",
    "enqueued_at": 1.5,
    "destination": "orders",
    "payload_base64": base64.b64encode(_DIVERTED).decode(),
}


def archive(random_: random.Random, path: Path) -> None:
    """A file for `restore`, and the same line as input of `send`."""
    line = _ARCHIVE_LINE | {"payload_base64": base64.b64encode(damaged(random_, _DIVERTED)).decode()}
    data = twisted(random_, random_.choice((line, _ARCHIVE_LINE, _RECORD)))
    path.write_bytes(data + b"\n")
    with suppress(UsageError):
        for one in read_archives([path]):
            assert isinstance(one, Unsendable) or is_destination(one.forward.destination)
    with suppress(SbpairError):
        to_payload(data, InputFormat.JSONL, now=1e9)


_RECORD = {
    "body": {"n": 1},
    "message_id": "m",
    "session_id": "s",
    "ttl": "1h",
    "scheduled_at": "2026-12-01T08:00:00Z",
    "application_properties": {"a": 1, "b": [1, {"c": None}]},
    "subject": "s",
}


_COMMIT = {
    "at": 1.0,
    "run": "r",
    "added": [],
    "removed": ["a/b"],
    "taken": [],
    "covered": [{"queue": "q", "dead_letter": False, "first": 1, "last": 9}],
    "versions": {"format": 1, "schema": 1},
}


def manifest(random_: random.Random) -> None:
    """A step of a Spark archive's history."""
    with suppress(SbpairError):
        Commit.from_json(twisted(random_, _COMMIT), 1, "here")


def old_ledger_line(random_: random.Random, path: Path) -> None:
    """The ledger of a replay before ledgers had one format."""
    path.write_bytes(twisted(random_, _LEDGER_LINE | {"dead_letter": False, "digest": "eA=="}) + b"\n")
    with suppress(SbpairError):
        for one in outcomes_in(path):
            hash(one)


def variables(random_: random.Random) -> None:
    """The environment of a command that processes a message."""
    payload = damaged(random_, MESSAGE)
    found = environment_of(Delivery(payload, "s\0", "m", "p:1", "primary", 1, 1, 1))
    assert all("\0" not in name + value and "=" not in name for name, value in found.items())


class Nowhere:
    def write(self, data: bytes) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


_DIALOGUE = b"AMQP\x00\x01\x00\x00" + b"".join(
    (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body
    for body in (
        perform(OPEN, ["c", "h"]),
        perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]),
        perform(ATTACH, ["l", Uint(0), True, None, None, None, None, {Symbol("a"): Uint(1)}]),
        perform(FLOW, [Uint(1), Uint(9), Uint(0), Uint(9), Uint(0), Uint(0), Uint(5)]),
        perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, True]) + b"\x00Sw\xa1\x01x",
        perform(DISPOSITION, [True, Uint(0), Uint(99), True]),
    )
)


def dialogue(random_: random.Random) -> None:
    from tests.engine.conftest import PlainNamespace, Service

    connection = Connection(PlainNamespace(), Service(), Nowhere())
    data = damaged(random_, _DIALOGUE)
    try:
        cut = random_.randrange(len(data))
        connection.receive(data[:cut])
        connection.receive(data[cut:])
    except (AmqpError, FramingError):
        return
    finally:
        connection.lost()


def _frames(*bodies: bytes) -> bytes:
    return b"".join((len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body for body in bodies)


_OPENED = b"AMQP\x00\x01\x00\x00" + _frames(
    perform(OPEN, ["c", "h"]),
    perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]),
    perform(
        ATTACH, ["c", Uint(0), False, None, None, None, Described(Ulong(COORDINATOR), [None]), None, None, Uint(0)]
    ),
    perform(ATTACH, ["s", Uint(1), False, None, None, None, Described(Ulong(TARGET), ["orders"]), None, None, Uint(0)]),
    perform(ATTACH, ["r", Uint(2), True, None, None, Described(Ulong(SOURCE), ["orders"]), None]),
    perform(FLOW, [Uint(1), Uint(9), Uint(0), Uint(9), Uint(2), Uint(0), Uint(5)]),
)
"""A client with a coordinator, a sender and a receiver, to which the messages that lie there have been delivered."""


def transactions(random_: random.Random) -> None:
    """Sends, settlements and discharges within a transaction; whatever becomes of them, nothing is held afterwards."""
    namespace = Namespace("contoso", clock=ManualClock())
    queue = namespace.create_queue("orders")
    for _ in range(3):
        queue.send(MESSAGE)
    memory = Memory()
    connection = Connection(namespace, Endpoints(namespace), Nowhere(), memory=memory)
    try:
        connection.add_claims(Claims("", ALL_RIGHTS, 4e9))
        connection.receive(_OPENED)
        for number in range(2):
            declare = build(value=Described(Ulong(DECLARE), []))
            connection.receive(_frames(perform(TRANSFER, [Uint(0), Uint(number), b"t", Uint(0), False]) + declare))
        open_ones = list(namespace.transactions._open) or [b"none"]  # a busy machine ends the slice before

        def within(outcome: Described | None) -> Described:
            return Described(Ulong(TRANSACTIONAL_STATE), [random_.choice((*open_ones, b"none")), outcome])

        def asked(number: int) -> bytes:
            kind = random_.randrange(4)
            if kind == 0:
                state = within(None)
                return perform(TRANSFER, [Uint(1), Uint(number), b"t", Uint(0), False, False, None, state]) + MESSAGE
            if kind == 1:
                outcome = random_.choice((accepted(), rejected(), released()))
                first, last = random_.randrange(4), random_.randrange(4)
                return perform(DISPOSITION, [True, Uint(first), Uint(last), random_.random() < 0.3, within(outcome)])
            ends = [random_.choice(open_ones), random_.random() < 0.3]
            request = Described(Ulong(DISCHARGE), ends) if kind == 2 else Described(Ulong(DECLARE), [])
            return perform(TRANSFER, [Uint(0), Uint(number), b"t", Uint(0), False]) + build(value=request)

        data = _frames(*(asked(number) for number in range(2, random_.randint(3, 10))))
        if random_.random() < 0.7:
            data = damaged(random_, data)
        cut = random_.randrange(len(data) + 1)
        connection.receive(data[:cut])
        connection.receive(data[cut:])
    except (AmqpError, FramingError):
        pass
    finally:
        connection.lost()
        left = len(namespace.transactions), connection.budget.held_bytes, memory.used_bytes
        namespace.close()
    assert left == (0, 0, 0), left


def _web_frame(opcode: int, data: bytes, *, last: bool = True) -> bytes:
    """One frame of a client, masked with zeros (RFC 6455, 5.2)."""
    size = bytes((0x80 | len(data),)) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    return bytes((opcode | (0x80 if last else 0),)) + size + bytes(4) + data


def websocket(random_: random.Random) -> None:
    """AMQP in WebSocket messages, cut anywhere, with damaged frames of either kind."""
    from aiohttp._websocket.reader import WebSocketDataQueue
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.http_websocket import WebSocketError, WebSocketReader

    from tests.engine.conftest import PlainNamespace, Service

    loop = asyncio.get_event_loop()
    queue = WebSocketDataQueue(BaseProtocol(loop), 1 << 20, loop=loop)
    reader = WebSocketReader(queue, 1 << 20, False, False)
    connection = Connection(PlainNamespace(), Service(), Nowhere())
    amqp = damaged(random_, _DIALOGUE) if random_.random() < 0.5 else _DIALOGUE
    cut = random_.randrange(len(amqp) + 1)
    frames = [_web_frame(2, amqp[:cut], last=random_.random() < 0.7), _web_frame(random_.choice((0, 2)), amqp[cut:])]
    frames.insert(random_.randrange(3), _web_frame(random_.choice((1, 8, 9, 10)), b"\x03\xe8" + random_.randbytes(4)))
    data = b"".join(frames)
    try:
        reader.feed_data(damaged(random_, data) if random_.random() < 0.7 else data)
        while queue._buffer:
            message = queue._buffer.popleft()[0]
            if message.type is WSMsgType.BINARY:
                connection.receive(message.data)
    except (AmqpError, FramingError, WebSocketError):
        return
    finally:
        connection.lost()


_HEADS = (
    transfer_head(1, 300, b"tag", 0x80013700, settled=False, more=True),
    perform(TRANSFER, [Uint(0), Uint(0), b"t" * 32, Uint(0), False, False, None, accepted(), False, None, False]),
)


def gateway_head(random_: random.Random) -> None:
    """A transfer on its way through: read in the quick way or the whole one, its other fields are what they were."""
    body = damaged(random_, random_.choice(_HEADS))
    try:
        head = read_head(body)
        if head is not None:
            _, values, start = read_performative(put_head(head, 7, 9) + body[head.payload_start :])
            _, before, payload_at = read_performative(body)
            assert values[:2] == [7, 9]
            assert values[2:] == before[2:]
            assert body[payload_at:] == body[head.payload_start :]
            assert start
    except AmqpError:
        return


_PRIMARY = (
    perform(ATTACH, ["s", Uint(5), True, None, None, Described(Ulong(SOURCE), ["s"]), Described(Ulong(TARGET), ["q"])]),
    perform(ATTACH, ["r", Uint(6), False, None, None, Described(Ulong(SOURCE), ["q"]), None, None, None, Uint(0)]),
    perform(FLOW, [Uint(0), Uint(2), Uint(0), Uint(9), Uint(5), Uint(0), Uint(5)]),
    perform(DISPOSITION, [True, Uint(0), Uint(1), True, accepted()]),
    perform(DISPOSITION, [True, Uint(1), None, True, rejected("amqp:internal-error", "x")]),
    perform(TRANSFER, [Uint(6), Uint(0), b"t", Uint(0), False, False]) + MESSAGE,
    perform(DETACH, [Uint(5), True, None]),
    perform(END, []),
)
_CLIENT = (
    perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, True]) + b"\x00Sw\xa1\x02x",
    perform(TRANSFER, [Uint(0), None, None, None, None, False]) + b"y",
    perform(TRANSFER, [Uint(0), Uint(1), b"u", Uint(0), False, False]) + MESSAGE,
    perform(FLOW, [Uint(1), Uint(9), Uint(0), Uint(9), Uint(1), Uint(0), Uint(5)]),
    perform(DISPOSITION, [True, Uint(1), Uint(9), True, accepted()]),
    perform(DETACH, [Uint(0), True]),
)


def gateway(random_: random.Random) -> None:
    """Frames of a client and of the primary, in any order and damaged; nothing is held for the client afterwards."""
    house, memory = House(), Memory()
    connection = DoorConnection(house, house, Nowhere(), memory=memory)
    wire = PrimaryWire(connection, house.tokens, 65536)  # type: ignore[arg-type]
    wire._sasl = wire._header_due = False
    wire._opened.set_result(None)
    wire._transport = Taking()
    wire.max_frame_bytes = random_.choice((512, 65536))
    try:
        connection.add_claims(Claims("", ALL_RIGHTS, 4e9))
        connection.receive(THROUGH)
        connection.primary = wire
        for link in connection.links():
            passed = link.handler = PassedLink(link, None)
            link.session.attach_passed(passed)  # type: ignore[attr-defined]
            passed._attached = True
        frames = [(True, perform(BEGIN, [Uint(1), Uint(0), Uint(2), Uint(9)]))]
        frames += [(True, body) for body in _PRIMARY[:2]]
        rest = [(True, body) for body in _PRIMARY[2:]] + [(False, body) for body in _CLIENT]
        frames += random_.sample(rest, random_.randint(3, len(rest)))
        for of_primary, body in frames:
            data = damaged(random_, body) if random_.random() < 0.3 else body
            if of_primary and connection.primary is wire:
                wire.data_received((len(data) + 8).to_bytes(4) + b"\x02\x00\x00\x01" + data)
            elif not of_primary:
                connection.receive((len(data) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + data)
    finally:
        connection.lost()
        wire._end()
    left = connection.budget.held_bytes, memory.used_bytes, connection.remembered_bytes
    assert left == (0, 0, 0), left


THROUGH = b"AMQP\x00\x01\x00\x00" + _frames(
    perform(OPEN, ["c", "h"]),
    perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]),
    perform(ATTACH, ["s", Uint(0), False, None, None, None, Described(Ulong(TARGET), ["q"]), None, None, Uint(0)]),
    perform(ATTACH, ["r", Uint(1), True, None, None, Described(Ulong(SOURCE), ["q"]), None]),
)


class Taking(Nowhere):
    """A transport to a primary that takes everything."""

    def is_closing(self) -> bool:
        return False


class House(GatewayView):
    """What stands behind a connection: a primary that is there, and a link for every address."""

    passes_tokens = False
    answer_seconds = 1.0

    def __init__(self) -> None:
        super().__init__("contoso", KeyRing(()))
        self.proofs = Proofs()
        text = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"
        access = NamespaceAccess("contoso", "localhost", AuthMethod.CONNECTION_STRING, Secret(text))
        self.tokens = Tokens(access)

    def house_of(self, host: str) -> "House":
        return self

    def joined(self, connection: DoorConnection) -> None:
        """Nobody counts."""

    left = joined

    def attach(self, link: Link) -> LinkHandler:
        return LinkHandler()

    def spawn(self, work: Any) -> None:
        work.close()


_TOKENS = (
    make_bearer_token(4102444800, oid="me").encode(),
    make_sas_token("sb://h/orders", "root", "key", 4102444800).encode(),
)


def token(random_: random.Random) -> None:
    text = damaged(random_, random_.choice(_TOKENS)).decode("utf-8", "replace")
    for read_it in (
        lambda: authenticate((), text, "sb://h/orders", 0.0),
        lambda: read_token(text, "sb://h/orders", 0.0, host="h", audiences=(SERVICE_BUS_AUDIENCE,)),
    ):
        with suppress(AuthError):
            read_it()


_JSON = b'{"properties": {"sqlFilter": {"sqlExpression": "a = 1"}, "n": [1, 2.5e3, "\\u00e9", null, true]}}'


def http_body(random_: random.Random) -> None:
    body = damaged(random_, _JSON)
    with suppress(EntityError):
        AdminCall("PUT", ("x",), {}, {}, body, "http://h", 0.0).json_object()
    with suppress(DocumentError):
        parse_json(body)


_CONFIGURATION = b"""version: 1
pairs:
  orders: {primary: {namespace: a}, secondary: {namespace: b, connection_string: {env: X}}, protected: ["*"]}
auth: azure-cli
"""


def configuration(random_: random.Random, path: Path) -> None:
    path.write_bytes(damaged(random_, _CONFIGURATION))
    try:
        read_file(path)
    except SbpairError as error:
        assert "Traceback" not in str(error)


_SEED = b"""queues:
  orders: {requires_duplicate_detection: true, messages: [{body: {n: 7}, message_id: m, properties: {amount: 12}}]}
  late: {lock_duration_seconds: 30, messages: [{body: x, scheduled_in_seconds: 7200}], forward_to: orders}
topics:
  events: {subscriptions: {big: {rules: {large: {sql: "amount > 1000", action: "SET a = 1"}}}}}
keys: {sender: [Send]}
"""
_MICROSOFT_SEED = b"""{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties":
 {"LockDuration": "PT1M", "MaxDeliveryCount": 3}}], "Topics": [{"Name": "t", "Subscriptions": [{"Name": "s",
 "Rules": [{"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1"}}}]}]}]}]}}"""


def seed(random_: random.Random) -> None:
    """A seed of ours, or Microsoft's Config.json: entities and messages of a namespace, or one error with the place."""
    text = damaged(random_, random_.choice((_SEED, _MICROSOFT_SEED)))
    namespace = Namespace("contoso", clock=ManualClock())
    with suppress(SeedError, EntityError, DocumentError, UnicodeDecodeError):
        read = parse_yaml_with_lines(text.decode())
        contents = seed_of(read) if is_microsoft_config(read) else {"contoso": read}
        for body in contents.values():
            plant(namespace, body, {})
    namespace.close()


def pattern(random_: random.Random) -> None:
    def text(size: int) -> str:
        return "".join(random_.choice("ab%_\\\n") for _ in range(random_.randrange(size)))

    try:
        like(text(400), text(60), random_.choice((None, "\\")))
    except FilterEvaluationError:
        return


def text(random_: random.Random) -> None:
    value = "".join(chr(random_.choice((random_.randrange(128), random_.randrange(0xD800)))) for _ in range(40))
    line = defused(printable(scrub(value)))
    assert line.isprintable()
    assert "##[" not in line
    assert not line.lstrip().startswith("::")


def targets_in(folder: Path) -> dict[str, Case]:
    """What can be fuzzed, by name; files that a reader wants are written into the folder."""
    return {
        "message": message,
        "backlog_message": backlog_message,
        "frame": frame,
        "sql": sql,
        "ledger": lambda random_: ledger(random_, folder / "ledger.jsonl"),
        "archive": lambda random_: archive(random_, folder / "archive.jsonl"),
        "manifest": manifest,
        "old_ledger_line": lambda random_: old_ledger_line(random_, folder / "replayed.jsonl"),
        "variables": variables,
        "dialogue": dialogue,
        "gateway": gateway,
        "gateway_head": gateway_head,
        "transactions": transactions,
        "websocket": websocket,
        "token": token,
        "http_body": http_body,
        "configuration": lambda random_: configuration(random_, folder / "sbpair.yaml"),
        "seed": seed,
        "pattern": pattern,
        "text": text,
    }


class Decisions(random.Random):
    """Takes every decision from bytes, so that a fuzzer which watches the code's branches can steer the cases."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._left = int.from_bytes(data, "little")

    def getrandbits(self, k: int) -> int:
        taken = self._left & ((1 << k) - 1)
        self._left >>= k
        return taken

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)


async def run(
    cases: int,
    seed: int,
    folder: Path,
    told: Callable[[int], None] = lambda number: None,
    *,
    targets: Sequence[str] = (),
    until: float = math.inf,
) -> dict[str, int]:
    """The number of cases of each kind that were run: `cases`, or until this process has used `until` seconds.

    Raises:
        FuzzFailure: one ended in something else than a value or its reader's error, or took too long.
    """
    kinds = targets_in(folder)
    names = list(targets or kinds)
    if unknown := set(names) - set(kinds):
        raise SystemExit(f"No target {', '.join(sorted(unknown))}; there are {', '.join(kinds)}.")
    counts = dict.fromkeys(names, 0)
    for number in range(cases):
        if time.process_time() > until:
            break
        name = names[number % len(names)]
        random_ = random.Random(f"{seed}:{number}")
        begun = time.process_time()
        try:
            kinds[name](random_)
        except Exception as error:
            raise FuzzFailure(f"seed {seed}, case {number} ({name}): {type(error).__name__}: {error}") from error
        if time.process_time() - begun > SLOWEST_SECONDS:
            raise FuzzFailure(f"seed {seed}, case {number} ({name}) took more than {SLOWEST_SECONDS} s of CPU time")
        counts[name] += 1
        if number % 100 == 0:
            told(number)
            await asyncio.sleep(0)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="what reads the input; default: all in turn")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--minutes", type=float, help="minutes of a processor")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    import tempfile

    memory: list[float] = []

    def told(number: int) -> None:
        faulthandler.dump_traceback_later(HANGING_SECONDS, exit=True)  # a case that does not end is shown where it is
        if number % step == 0:
            memory.append(resident_megabytes())

    minutes = math.inf if options.minutes is None else options.minutes
    cases = options.cases or (100_000 if options.minutes is None else sys.maxsize)
    step = 20_000 if options.minutes else cases // 20 // 500 * 500 or 500
    until = time.process_time() + minutes * 60
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts = asyncio.run(run(cases, options.seed, Path(folder), told, targets=options.targets, until=until))
    faulthandler.cancel_dump_traceback_later()
    seconds = time.monotonic() - begun
    print(
        f"seed {options.seed}: {sum(counts.values()):,} cases in {seconds:.1f} s, "
        f"memory in MB along the way: {[round(one) for one in [*memory, resident_megabytes()]]}: {counts}"
    )
    return 0


def resident_megabytes() -> float:
    """Memory that this process has now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
    except OSError:
        return 0.0


if __name__ == "__main__":
    sys.exit(main())
