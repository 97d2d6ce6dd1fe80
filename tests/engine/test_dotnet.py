"""Recorded dialogues of the .NET client (Azure.Messaging.ServiceBus 7.19 and 7.20.2), said again frame by frame.

A line `C>` is what the client sent, `<S` what it was answered then; from that it goes on. Tokens, ids of transactions,
tags and numbers of deliveries are those of the answers of now. `= 1`: what follows is of the first connection again.
What is answered otherwise now is in `MENDED`.
"""

import ast
import asyncio
import re
import uuid
from collections import defaultdict, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_INIT,
    SASL_OUTCOME,
    TRANSFER,
)
from sbpair.amqp.sections import Section, build, read, scan
from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong, Ushort
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import Emulator
from sbpair.engine.auth import ROOT_KEY_NAME, make_sas_token
from sbpair.engine.errors import EntityError
from tests.engine.dialects import AZURE_SERVICEBUS
from tests.engine.wire_client import Client, Frame
from tests.waiting import LIMIT_SECONDS

FOLDER = Path(__file__).with_name("dotnet")
CODES = {
    "open": OPEN,
    "begin": BEGIN,
    "attach": ATTACH,
    "flow": FLOW,
    "transfer": TRANSFER,
    "disposition": DISPOSITION,
    "detach": DETACH,
    "end": END,
    "close": 0x18,
    "65": SASL_INIT,
}
_U, _M = Uint, "map"
TYPES: dict[str, list[Any]] = {
    "open": [None, None, _U, Ushort, _U, None, None, None, None, _M],
    "begin": [Ushort, _U, _U, _U, _U, None, None, _M],
    "attach": [None, _U, None, Ubyte, Ubyte, None, None, _M, None, _U, Ulong, None, None, _M],
    "flow": [_U, _U, _U, _U, _U, _U, _U, _U, None, None, _M],
    "transfer": [_U, _U, None, _U, None, None, Ubyte],
    "disposition": [None, _U, _U],
    "detach": [_U],
}
LATER = (4_102_444_800_000).to_bytes(8)
ACCEPTED, REJECTED = 0x24, 0x25
MENDED = {
    ("partitioned-batch.txt", 1, 0): REJECTED,  # two keys in one batch for a partitioned queue
    ("tx-partition-key.txt", 1, 2): ACCEPTED,  # a send through another entity, bound by the transaction's key
    ("tx.txt", 4, 0): REJECTED,  # a second queue without EnableCrossEntityTransactions
    ("tx.txt", 0, 3): REJECTED,  # and so its commit
}
"""By file, channel and delivery: the outcome of now, where it is not the recorded one."""
UNKNOWN_HERE = {("more.txt", 404), ("more.txt", 410)}
"""By file: the status of requests with a number or lock token that only the body of an answer told, which is not
recorded."""


def typed(value: Any, kind: Any = None) -> Any:
    match value:
        case ("@", code, inner):
            fields = [typed(one, _M if code == 40 and place == 7 else None) for place, one in enumerate(inner)]
            return Described(Ulong(code), fields)
        case list() if kind == _M:
            return {typed(key): typed(one) for key, one in zip(value[::2], value[1::2], strict=True)}
        case list():
            return [typed(one) for one in value]
        case str() if value.startswith(":"):
            return Symbol(value[1:])
        case bool() | None | str() | bytes():
            return value
        case int():
            return (Uint if kind in (None, _M) else kind)(value)
    raise TypeError(value)


def outcome_in(state: Any) -> tuple[int, bytes | None]:
    """The code of a delivery state's outcome, and the transaction's id that it names."""
    code, fields = (state[1], state[2]) if isinstance(state, tuple) else (state.descriptor, state.value)
    if code == 0x33:
        return code, fields[0]
    if code == 0x34:
        return (outcome_in(fields[1])[0] if len(fields) > 1 and fields[1] is not None else code), None
    return code, None


class Replay:
    """One dialogue with a namespace."""

    client: Client

    def __init__(self, name: str, emulator: Emulator) -> None:
        self.name = name
        self.endpoint = emulator.endpoint("primary")
        self.connections: list[tuple[Client, defaultdict[tuple[int, int], deque[Frame]]]] = []
        self.key = emulator.namespace("primary").auth_rules[ROOT_KEY_NAME].primary_key
        self.numbers: dict[tuple[int, int], int] = {}
        self.bytes: dict[bytes, bytes] = {}
        self.answers = 0
        self.differing: list[str] = []

    async def connect(self) -> None:
        host, _, port = self.endpoint.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.connections.append((Client(reader, writer, AZURE_SERVICEBUS), defaultdict(deque)))
        self.go_on_at(len(self.connections))

    def go_on_at(self, number: int) -> None:
        """The next lines are of this connection, from 1."""
        self.client, self.came = self.connections[number - 1]

    def close(self) -> None:
        for client, _ in self.connections:
            client.writer.transport.abort()

    async def say(self, line: str) -> None:
        if line.startswith("C> header"):
            if "\\x03" in line:  # SASL: a connection begins
                await self.connect()
            self.client.raw(ast.literal_eval(line.removeprefix("C> header ")))
            await self.client.header()
            return
        channel, name, fields, payload = self._parts(line)
        kinds = TYPES.get(name, [])
        sent = [typed(one, kinds[place] if place < len(kinds) else None) for place, one in enumerate(fields)]
        if name == "disposition":
            sent[1:3] = [None if one is None else Uint(self.numbers[channel, one]) for one in sent[1:3]]
        if name in ("disposition", "transfer"):
            place = 4 if name == "disposition" else 7
            if isinstance(sent[place], Described) and sent[place].descriptor == 0x34:
                sent[place].value[0] = self.bytes[sent[place].value[0]]
        self.client.send(CODES[name], sent, self._payload(payload), channel, kind=int(name == "65"))
        if name == "65":
            assert (await self.client.until(SASL_OUTCOME)).field(0) == 0

    def _payload(self, text: str) -> bytes:
        if text.startswith("put-token "):
            _, number, reply_to, entity = text.split(" ", 3)
            token = make_sas_token(f"amqp://localhost/{entity}", ROOT_KEY_NAME, self.key, 4e9)
            return build(
                properties=[number, None, None, None, reply_to],
                application_properties={
                    "operation": "put-token",
                    "type": "servicebus.windows.net:sastoken",
                    "name": f"amqp://localhost/{entity}",
                },
                value=token,
            )
        payload: bytes = ast.literal_eval(text) if text else b""
        for then, now in self.bytes.items():
            payload = payload.replace(then, now)
        # "All that came before now": what was sent a moment ago was sent after the recording.
        return re.sub(rb"(?s)(enqueued-time-utc\x83).{8}", lambda found: found[1] + LATER, payload)

    async def hear(self, line: str) -> None:
        """The answer of now to what was answered then."""
        channel, name, fields, rest = self._parts(line)
        if name == "disposition":
            await self._hear_outcome(line, channel, fields)
            return
        frame = await self._next(channel, CODES[name])
        if name == "transfer":
            self.numbers[channel, fields[1]] = frame.field(1)
            self._learn(fields[2], frame.field(2))
            if rest.startswith("status="):
                said = read(frame.payload, scan(frame.payload), Section.APPLICATION_PROPERTIES)
                status = said.get("status-code", said.get("statusCode"))
                self._compare(line, int(rest.removeprefix("status=")), status)

    async def _hear_outcome(self, line: str, channel: int, fields: list[Any]) -> None:
        frame = await self._next(channel, DISPOSITION)
        then, declared = outcome_in(fields[4])
        now, identity = outcome_in(frame.field(4))
        if declared is not None and identity is not None:
            self.bytes[declared] = identity
        self._compare(line, MENDED.get((self.name, channel, fields[1]), then), now)

    def _compare(self, line: str, then: int, now: int) -> None:
        self.answers += 1
        if then != now and (self.name, now) not in UNKNOWN_HERE:
            self.differing.append(f"{line[:150]}: {now} now")

    def _learn(self, then: bytes, now: bytes) -> None:
        """A lock token is a delivery's tag, and in requests the UUID that it is the little-endian form of."""
        if len(then) == len(now) == 16:
            self.bytes[then] = now
            self.bytes[uuid.UUID(bytes_le=then).bytes] = uuid.UUID(bytes_le=now).bytes

    async def _next(self, channel: int, code: int) -> Frame:
        waiting = self.came[channel, code]
        while not waiting:
            async with asyncio.timeout(LIMIT_SECONDS):
                frame = await self.client.next()
            if frame.code == DISPOSITION:
                for number in range(frame.field(1), (frame.field(2) or frame.field(1)) + 1):
                    self.came[frame.channel, DISPOSITION].append(
                        Frame(frame.code, [frame.field(0), number, None, *frame.fields[3:]], b"", frame.channel)
                    )
                continue
            self.came[frame.channel, frame.code].append(frame)
        return waiting.popleft()

    def _parts(self, line: str) -> tuple[int, str, list[Any], str]:
        found = re.fullmatch(r"(?:C>|<S) ch(\d+) (\S+) (\[.*?\])(?: (put-token .*|status=\d+|b['\"].*))?", line)
        assert found is not None, line
        channel, name, fields, rest = found.groups()
        return int(channel), name, ast.literal_eval(fields), rest or ""


def make_entities(emulator: Emulator, lines: list[str]) -> None:
    """Those that the client has attached to."""
    namespace = emulator.namespace("primary")
    found = {
        name.strip("/").split("/")[0]
        for line in lines
        if line.startswith("C>") and " attach " in line
        for name in re.findall(r"\('@', 4[01], \['(/?[^'$]+?(?:/[^']+)?)', None", line)
        if name.startswith("/") or name.endswith("/$management")
    }
    topics = {name for name in found if any(f"{name}/Subscriptions/" in line for line in lines)}
    for name in sorted(found - topics):
        sessions = name == "sessions" or name.endswith("-s")
        namespace.create_queue(name, QueueDescription(requires_session=sessions, enable_partitioning=name == "parts"))
    for name in sorted(topics):
        namespace.create_topic(name)
        for line in lines:
            for subscription in re.findall(rf"{name}/Subscriptions/([^'/]+)", line):
                with suppress(EntityError):  # named more than once
                    namespace.create_subscription(name, subscription)


async def dialogue(replay: Replay, file: Path, emulator: Emulator) -> None:
    """Say and hear a recording's lines, with a namespace that has the entities."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    make_entities(emulator, lines)
    try:
        for line in lines:
            if "amqp:resource-deleted" in line or line.endswith(" cut"):
                break  # the program has deleted its entity; or the recording has not the whole frame
            if line.startswith("= "):
                replay.go_on_at(int(line[2:]))
                continue
            await (replay.say(line) if line.startswith("C>") else replay.hear(line))
    finally:
        replay.close()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
async def test_a_recorded_dialogue_of_dotnet_is_answered_as_it_was(emulator: Emulator, file: Path) -> None:
    replay = Replay(file.name, emulator)
    await dialogue(replay, file, emulator)
    assert replay.differing == []
    assert replay.answers > 1
