"""Between socket and connection: where a fault can delay bytes or hold them back.

A delay gives each piece of bytes half the round trip in each direction, in order, any number of pieces on their way at
once: a distance, not a queue. Silence holds bytes both ways; when it ends they go on, unless the client has gone.
The loop's timers go by whole milliseconds, rounded up. They are set half of one early and the rest is waited for turn
by turn of the loop, so that a round trip is never shorter than asked for and hardly longer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from sbpair.emulator.engine.connection import Connection
from sbpair.emulator.engine.link import AttachService, NamespaceView
from sbpair.emulator.limits import MAX_HELD_BYTES

_TIMER_BIAS_SECONDS: Final = 0.0005


class Line:
    """Hands items on a while after they were put in, in their order."""

    __slots__ = ("_deliver", "_held", "_items", "_loop", "_timer")

    def __init__(self, deliver: Callable[[bytes | None], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._held = False

    def put(self, item: bytes | None, delay_seconds: float) -> None:
        if delay_seconds <= 0 and not self._items and not self._held:
            self._deliver(item)
            return
        due = self._loop.time() + delay_seconds
        if self._items:
            due = max(due, self._items[-1][0])
        self._items.append((due, item))
        self._arm()

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._arm()

    def clear(self) -> None:
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if not self._items or self._timer is not None or self._held:
            return
        early = self._items[0][0] - _TIMER_BIAS_SECONDS
        if early > self._loop.time():
            self._timer = self._loop.call_at(early, self._run)
        else:
            self._timer = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._items and self._items[0][0] <= now and not self._held:
            self._deliver(self._items.popleft()[1])
        self._arm()


class Wire:
    """The transport of one AMQP connection, over whatever carries its bytes (`send`, `end` and `cut`)."""

    def __init__(
        self,
        namespace: NamespaceView,
        service: AttachService,
        *,
        send: Callable[[bytes], None],
        end: Callable[[], None],
        cut: Callable[[], None],
    ) -> None:
        self._faults = namespace.faults
        self._send = send
        self._end = end
        self._cut = cut
        self._silent = False
        self._inward = Line(self._arrive)
        self._outward = Line(self._depart)
        self.connection = Connection(namespace, service, self)

    # -- what the connection calls

    def write(self, data: bytes) -> None:
        self._outward.put(data, self._one_way_seconds())

    def close(self) -> None:
        self._outward.put(None, self._one_way_seconds())

    def abort(self) -> None:
        self._inward.clear()
        self._outward.clear()
        self._cut()

    # -- what the carrier calls

    def incoming(self, data: bytes) -> None:
        self._inward.put(data, self._one_way_seconds())

    def ended(self) -> None:
        """The client has gone. What it sent before still arrives, except from behind a silence."""
        self._outward.clear()
        if self._silent:
            self._inward.clear()
            self.connection.lost()
        else:
            self._inward.put(None, self._one_way_seconds())

    def reconsider(self) -> None:
        """Faults have changed: fall silent, or go on."""
        self._silent = self._faults.silent(self.connection.addresses)
        for line in (self._inward, self._outward):
            if self._silent:
                line.hold()
            else:
                line.release()

    def _one_way_seconds(self) -> float:
        if not self._faults.active:
            return 0.0
        if not self._silent:
            self.reconsider()
        return self._faults.round_trip_seconds(self.connection.addresses) / 2

    def _arrive(self, data: bytes | None) -> None:
        if data is None:
            self.connection.lost()
        else:
            self.connection.receive(data)

    def _depart(self, data: bytes | None) -> None:
        if data is None:
            self._end()
        else:
            self._send(data)


class WireOwner(Protocol):
    """Who keeps the wires of a namespace, to be able to cut them."""

    @property
    def namespace(self) -> NamespaceView: ...
    @property
    def service(self) -> AttachService: ...
    def adopt(self, wire: Wire) -> None: ...
    def release(self, wire: Wire) -> None: ...


def cut(transport: asyncio.Transport) -> None:
    """End a connection without a word."""
    # In the first releases of Python 3.11 a TLS transport that was closed twice has no protocol any more, and fails.
    with suppress(AttributeError):
        transport.abort()


class WireProtocol(asyncio.Protocol):
    """A wire over a socket, with or without TLS."""

    def __init__(self, owner: WireOwner, transport: asyncio.Transport) -> None:
        self._owner = owner
        self._transport = transport
        sever = partial(cut, transport)
        self._wire = Wire(owner.namespace, owner.service, send=self._send, end=transport.close, cut=sever)
        owner.adopt(self._wire)

    def data_received(self, data: bytes) -> None:
        self._wire.incoming(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.release(self._wire)
        self._wire.ended()

    def pause_writing(self) -> None:
        self._wire.connection.pause()

    def resume_writing(self) -> None:
        self._wire.connection.resume()

    def _send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_HELD_BYTES:
            self._wire.connection.abort()
            return
        self._transport.write(data)
