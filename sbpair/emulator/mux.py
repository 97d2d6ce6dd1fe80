"""Telling the protocols of a port apart by the first bytes of a connection."""

import asyncio
import os
import select
import socket
import struct
from collections.abc import Coroutine
from typing import Any, Final, Protocol, cast

from sbpair.emulator.wire import WireOwner, WireProtocol

TLS_HANDSHAKE: Final = b"\x16"
_AMQP: Final = b"AMQP"
_LINGER_NOT: Final = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


class FrontOwner(WireOwner, Protocol):
    """What the first bytes need of their port."""

    @property
    def patience_seconds(self) -> float: ...
    def track(self, transport: asyncio.Transport) -> None: ...
    def expect_request(self, transport: asyncio.Transport) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]": ...
    async def http_protocol(self) -> asyncio.Protocol: ...


async def peek(client: socket.socket) -> bytes:
    """The first byte without taking it; empty when the client has gone. Waits for it."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    number = client.fileno()
    try:
        loop.add_reader(number, _wake, readable)
    except NotImplementedError:  # a proactor loop (Windows) has no readiness, only completion
        await asyncio.to_thread(select.select, [client], [], [])
    else:
        try:
            await readable
        finally:
            loop.remove_reader(number)
    return client.recv(1, socket.MSG_PEEK)


def reset(client: socket.socket) -> None:
    """Refuse a connection that the system has accepted already: RST instead of a polite end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    client.close()


class FirstBytes(asyncio.Protocol):
    """Stands in until four bytes, in clear, say AMQP or HTTP; then the right protocol takes the connection over.

    A client that does not say so in time is cut off.
    """

    def __init__(self, owner: FrontOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._switching: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.track(self._transport)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(self._owner.patience_seconds, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        transport = self._transport
        if transport is None or self._switching is not None:
            return
        if self._buffer.startswith(_AMQP):
            self._stop_waiting()
            _hand_over(transport, WireProtocol(self._owner, transport), self._buffer)
        elif not _AMQP.startswith(self._buffer):
            self._stop_waiting()
            transport.pause_reading()
            self._switching = self._owner.spawn(self._to_http(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._switching is not None:
            self._switching.cancel()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def _to_http(self, transport: asyncio.Transport) -> None:
        protocol = await self._owner.http_protocol()
        protocol.connection_made(transport)
        self._owner.expect_request(transport)
        _hand_over(transport, protocol, self._buffer)
        transport.resume_reading()


def _hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol, data: bytes) -> None:
    transport.set_protocol(protocol)
    protocol.data_received(data)


def _wake(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
