"""Two namespaces that can be killed, a backlog between them, and `sbpair` processes that empty it: all real."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpair.amqp.types import Char, Decimal64, Long
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of, parse_connection_string
from sbpair.core.message import Received
from sbpair.core.rewrite import compose, for_backlog
from sbpair.emulator.control import FaultControl
from tests.cli.process import Sbpair

START_SECONDS = 120.0
DESTINATIONS = {"orders": {}, "invoices": {"requires_session": True}, "once": {"requires_duplicate_detection": True}}
SESSIONS_ONLY = "invoices"
SESSIONS = 24
BACKLOG_QUEUES = 5
LOCK_SECONDS = 10
PAIR = "soak"
UNBOUNDED = 2**31 - 1
"""Deliveries of a message of a backlog queue as `sbpair provision` makes it. With the default of 10 the messages
that ten killed drains had locked are dead letters."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Side:
    """One durable namespace in an emulator process of its own, always on the same ports."""

    def __init__(self, name: str, folder: Path, queues: dict[str, dict[str, Any]]) -> None:
        self.name = name
        self._data = folder / name
        self._runner = Sbpair(folder)
        self._ports = free_port(), free_port()
        self._seed = folder / f"{name}.seed.json"
        self._seed.write_text(json.dumps({name: {"queues": queues}}))
        self._process: subprocess.Popen[str] | None = None
        self.connection_file = folder / f"{name}.connection"

    @property
    def ca_file(self) -> Path:
        return self._data / "tls" / "ca.pem"

    def start(self) -> None:
        port, admin = map(str, self._ports)
        arguments = ("--namespace", self.name, "--port", port, "--admin-port", admin, "--data-dir", str(self._data))
        process = self._runner.begin("emulator", *arguments, "--seed", str(self._seed), stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the embedded namespace did not start"
        self.connection_file.write_text(line.split("\t")[1])
        self._process = process

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def strike(self, fault: str) -> None:
        self._control().add(fault)

    def heal(self) -> None:
        self._control().clear()

    def _control(self) -> FaultControl:
        parts = parse_connection_string(self.connection_file.read_text().strip())
        return FaultControl(
            f"127.0.0.1:{self._ports[1]}",
            self.name,
            ca_file=str(self.ca_file),
            key_name=parts["sharedaccesskeyname"],
            key=parts["sharedaccesskey"],
        )

    def messaging(self) -> AzureMessaging:
        text = self.connection_file.read_text().strip()
        access = NamespaceAccess(
            self.name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text), ca_file=str(self.ca_file)
        )
        return AzureMessaging(access)


@dataclass(frozen=True)
class Sent:
    """One message as the application sent it."""

    destination: str
    session_id: str | None
    payload: bytes


@dataclass(frozen=True)
class ProcessEnd:
    """The end of one `sbpair` process: what its ledger said then."""

    how: str
    at: float
    recorded: frozenset[str]


@dataclass
class World:
    folder: Path
    chance: random.Random
    sent: dict[str, Sent] = field(default_factory=dict)
    ends: list[ProcessEnd] = field(default_factory=list)
    queues: int = BACKLOG_QUEUES
    sessions: int = SESSIONS
    session_share: float = 0.6
    """How many of the messages have a session."""
    lock_seconds: int = LOCK_SECONDS

    def __post_init__(self) -> None:
        prefix = "soak-primary/x-servicebus-transfer"
        self.backlog = [f"{prefix}/{index}" for index in range(self.queues)]
        self.primary = Side("soak-primary", self.folder, DESTINATIONS)
        self.secondary = Side(
            "soak-secondary",
            self.folder,
            {
                path: {"lock_duration_seconds": self.lock_seconds, "max_delivery_count": UNBOUNDED}
                for path in self.backlog
            },
        )
        self.runner = Sbpair(self.folder)
        self.ledger = self.folder / "ledger.jsonl"

    def open(self) -> None:
        for side in (self.primary, self.secondary):
            side.start()
        sides = {
            place: {
                "namespace": side.name,
                "host": "localhost",
                "connection_string": {"file": str(side.connection_file)},
                "ca_file": str(side.ca_file),
            }
            for place, side in (("primary", self.primary), ("secondary", self.secondary))
        }
        config = {"version": 1, "pairs": {PAIR: {**sides, "backlog_queues": self.queues}}}
        (self.folder / "sbpair.yaml").write_text(json.dumps(config))

    def close(self) -> None:
        self.primary.kill()
        self.secondary.kill()

    def heal(self) -> None:
        self.primary.heal()
        self.secondary.heal()

    def divert(self, count: int) -> None:
        """Put so many new messages into the backlog, as a sender does: a session always into the same queue."""
        first = len(self.sent)
        queues: dict[str, list[bytes]] = {path: [] for path in self.backlog}
        for number in range(first, first + count):
            message_id = f"{number:06}"
            one = self._new(message_id)
            self.sent[message_id] = one
            place = int(one.session_id[1:]) if one.session_id else self.chance.randrange(self.queues)
            queues[self.backlog[place % self.queues]].append(for_backlog(one.payload, one.destination))
        asyncio.run(self._store(queues))

    def _new(self, message_id: str) -> Sent:
        chance = self.chance
        session = f"s{chance.randrange(self.sessions)}" if chance.random() < self.session_share else None
        names = sorted(DESTINATIONS) if session else sorted(set(DESTINATIONS) - {SESSIONS_ONLY})
        destination = names[int(session[1:]) % len(names)] if session else chance.choice(names)
        body = chance.randbytes(chance.choice([10, 100, 1000, 5000]))
        properties = {"n": Long(int(message_id)), "c": Char("€"), "d": Decimal64(body[:8])}
        payload = compose(body=body, message_id=message_id, session_id=session, application_properties=properties)
        return Sent(destination, session, payload)

    async def _store(self, queues: dict[str, list[bytes]]) -> None:
        messaging = self.secondary.messaging()
        for path, payloads in queues.items():
            sender = messaging.sender(path)
            for start in range(0, len(payloads), 30):
                await sender.send(payloads[start : start + 30], timeout_seconds=30)
        await messaging.close()

    def start(self, command: str, *options: str, ledger: Path | None = None) -> "subprocess.Popen[str]":
        arguments = (command, PAIR, "--ledger", str(ledger or self.ledger), "-o", "json", *options)
        with (self.folder / "talk.log").open("a") as talk:
            return self.runner.begin(*arguments, stderr=talk)

    def end(self, process: "subprocess.Popen[str]", how: str, number: signal.Signals | None) -> float:
        """End a process (None: it ends by itself); the seconds that took."""
        began = time.monotonic()
        if number is not None and process.poll() is None:
            process.send_signal(number)
        process.communicate(timeout=120)
        self.ends.append(ProcessEnd(how, time.time(), self.recorded()))
        return time.monotonic() - began

    def recorded(self) -> frozenset[str]:
        """Message ids of what the ledger says has been sent."""
        return frozenset(one["message_id"] for one in self.entries())

    def entries(self) -> list[dict[str, Any]]:
        """Whole lines of the ledger about messages that were sent."""
        if not self.ledger.exists():
            return []
        lines = self.ledger.read_bytes().splitlines(keepends=True)
        read = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [one for one in read if one["outcome"] in ("forwarded", "already-forwarded")]

    def arrived(self) -> dict[str, list[Received]]:
        """What lies in each destination, in its order."""

        async def read() -> dict[str, list[Received]]:
            messaging = self.primary.messaging()
            found = {name: await _browse(messaging, name) for name in DESTINATIONS}
            await messaging.close()
            return found

        return asyncio.run(read())

    def left(self) -> list[str]:
        """Ids of the messages in the backlog queues and their dead-letter queues."""

        async def read() -> list[str]:
            messaging = self.secondary.messaging()
            found: list[str] = []
            for path in self.backlog:
                for dead_letter in (False, True):
                    there = await _browse(messaging, path, dead_letter=dead_letter)
                    found += [str(one.message_id) for one in there]
            await messaging.close()
            return found

        return asyncio.run(read())


async def _browse(messaging: AzureMessaging, path: str, *, dead_letter: bool = False) -> list[Received]:
    receiver = messaging.receiver(path, dead_letter=dead_letter)
    found: list[Received] = []
    while page := await receiver.peek(250, from_sequence_number=found[-1].sequence_number + 1 if found else 1):
        found += page
    await receiver.close()
    return found
