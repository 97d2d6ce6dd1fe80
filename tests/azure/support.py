"""What the tests of the adapters share."""

import asyncio
import time
from typing import Any

from azure.core.credentials import AccessToken

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField, Section
from sbpair.azure.credentials import NamedCredential
from sbpair.core.access import AuthMethod
from sbpair.emulator.server import Emulator
from sbpair.engine.auth import SERVICE_BUS_AUDIENCE, make_bearer_token
from sbpair.engine.connection import Connection


class FixedTokens:
    """An identity that always gives the same token; counts how often it was asked."""

    def __init__(self, lifetime_seconds: float = 3600.0) -> None:
        self.asked = 0
        self.closed = False
        self._lifetime_seconds = lifetime_seconds

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.asked += 1
        expires_at = time.time() + self._lifetime_seconds
        audience = SERVICE_BUS_AUDIENCE if "servicebus" in scopes[0] else "https://management.azure.com"
        return AccessToken(make_bearer_token(expires_at, audience=audience), int(expires_at))

    async def close(self) -> None:
        self.closed = True


class FixedCredential(NamedCredential):
    """A NamedCredential over `FixedTokens`."""

    def __init__(self) -> None:
        self.tokens = FixedTokens()
        super().__init__(AuthMethod.AZURE_CLI, self.tokens)


class Relay:
    """Passes bytes on to the emulator and counts the connections; stalls both ways while not `flowing`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._pumps: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._pumps.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self.flowing.wait()
            sink.write(data)
        sink.close()


def connections_of(emulator: Emulator) -> list[Connection]:
    """The AMQP connections that its namespace has."""
    return emulator._ports_of(emulator.namespace("primary"))[0].connections


def message(message_id: str, *, body: bytes = b"hello", session_id: str | None = None) -> bytes:
    """A small encoded message."""
    properties: dict[int, Any] = {PropertyField.MESSAGE_ID: message_id}
    if session_id is not None:
        properties[PropertyField.GROUP_ID] = session_id
    return sections.build(properties=properties, data=body)


def senders_part(payload: bytes) -> bytes:
    """The sections that are the sender's alone, as they are: properties, application properties, body, footer."""
    return b"".join(
        payload[span.start : span.end] for span in sections.scan(payload) if span.section >= Section.PROPERTIES
    )
