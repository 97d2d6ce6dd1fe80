"""Between socket and connection: where a fault can delay bytes or hold them back.

A delay gives each piece of bytes half the round trip in each direction, in order, any number of pieces on their way at
once: a distance, not a queue. Silence holds bytes both ways; when it ends they go on, unless the client has gone.
The loop's timers go by whole milliseconds, rounded up. They are set half of one early and the rest is waited for turn
by turn of the loop, so that a round trip is never shorter than asked for and hardly longer.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sbpair.amqp.frames import FrameBuffer
from sbpair.amqp.performatives import COMPOSITES, code_of, read_performative
from sbpair.amqp.types import AmqpError, Described

if TYPE_CHECKING:
    from sbpair.engine.port import Port


_TIMER_BIAS_SECONDS: Final = 0.0005
_MOST_DELAYED_BYTES: Final = 1024 * 1024
"""So much of a client is taken into a delay or a silence; the rest stays in its socket, as on a long line."""


class DelayedItems:
    """Hands items on a while after they were put in, in their order."""

    __slots__ = ("_deliver", "_held", "_items", "_loop", "_timer", "size_bytes")

    def __init__(self, deliver: Callable[[bytes | None], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._held = False
        self.size_bytes = 0

    def put(self, item: bytes | None, delay_seconds: float) -> None:
        if delay_seconds <= 0 and not self._items and not self._held:
            self._deliver(item)
            return
        due = self._loop.time() + delay_seconds
        if self._items:
            due = max(due, self._items[-1][0])
        self._items.append((due, item))
        self.size_bytes += len(item or b"")
        self._arm()

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._arm()

    def clear(self) -> None:
        self._items.clear()
        self.size_bytes = 0
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
            item = self._items.popleft()[1]
            self.size_bytes -= len(item or b"")
            self._deliver(item)
        self._arm()


class ByteStream(Protocol):
    """What carries a wire's bytes: a socket, or a WebSocket."""

    @property
    def unsent_bytes(self) -> int: ...
    def send(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def cut(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ServerWire:
    """The transport of one AMQP connection, over whatever carries its bytes."""

    def __init__(self, owner: "Port", carrier: ByteStream) -> None:
        self._faults = owner.namespace.faults
        self._carrier = carrier
        self._silent = False
        self._inward = DelayedItems(self._arrive)
        self._outward = DelayedItems(self._depart)
        self._reading_paused = False
        self.connection = owner.connect(self)

    # -- what the connection calls

    def write(self, data: bytes) -> None:
        self._outward.put(data, self._one_way_seconds())
        self._count_unsent()

    def close(self) -> None:
        self._outward.put(None, self._one_way_seconds())

    def abort(self) -> None:
        self._inward.clear()
        self._outward.clear()
        self._carrier.cut()

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._carrier.pause_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        if self._inward.size_bytes <= _MOST_DELAYED_BYTES:
            self._carrier.resume_reading()

    # -- what the carrier calls

    def incoming(self, data: bytes) -> None:
        self._inward.put(data, self._one_way_seconds())
        if self._inward.size_bytes > _MOST_DELAYED_BYTES:
            self._carrier.pause_reading()

    def pause(self) -> None:
        """The carrier is full."""
        self.connection.pause()

    def resume(self) -> None:
        """The carrier takes bytes again."""
        self._count_unsent()
        self.connection.resume()

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
            self.connection.ended()
            return
        self.connection.receive(data)
        if not self._reading_paused and self._inward.size_bytes <= _MOST_DELAYED_BYTES:
            self._carrier.resume_reading()

    def _depart(self, data: bytes | None) -> None:
        if data is None:
            self._carrier.end()
        else:
            self._carrier.send(data)

    def _count_unsent(self) -> None:
        self.connection.budget.unsent(self._outward.size_bytes + self._carrier.unsent_bytes)


def cut(transport: asyncio.Transport) -> None:
    """End a connection without a word."""
    # In the first releases of Python 3.11 a TLS transport that was closed twice has no protocol any more, and fails.
    with suppress(AttributeError):
        transport.abort()


class WireProtocol(asyncio.Protocol):
    """A wire over a socket, with or without TLS."""

    def __init__(self, owner: "Port", transport: asyncio.Transport) -> None:
        self._owner = owner
        self._transport = transport
        self._wire = ServerWire(owner, self)
        owner.adopt(self._wire)

    # -- what the event loop calls

    def data_received(self, data: bytes) -> None:
        self._wire.incoming(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.release(self._wire)
        self._wire.ended()

    def pause_writing(self) -> None:
        self._wire.pause()

    def resume_writing(self) -> None:
        self._wire.resume()

    # -- what the wire calls

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def end(self) -> None:
        self._transport.close()

    def cut(self) -> None:
        cut(self._transport)

    # A TLS transport that was closed twice has no protocol any more (see `cut`); nothing is read from it anyway.

    def pause_reading(self) -> None:
        with suppress(AttributeError):
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        with suppress(AttributeError):
            self._transport.resume_reading()


# The last frames of a namespace's connections, as text that a person reads after a test has failed.

MOST_FRAMES: Final = 200
_MOST_VALUE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `at` is epoch seconds; `connection` counts from 1; `payload_bytes` is the message's part of it."""

    at: float
    connection: int
    came: bool
    channel: int
    code: int
    fields: list[Any]
    payload_bytes: int

    def __str__(self) -> str:
        name, names = COMPOSITES.get(self.code, (f"0x{self.code:x}", ()))
        shown = [(field, value) for field, value in zip(names, self.fields, strict=False) if value is not None]
        said = " ".join(f"{field}={_shown(_role(value) if field == 'role' else value)}" for field, value in shown)
        payload = f"  + {self.payload_bytes} bytes" if self.payload_bytes else ""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at)) + f".{int(self.at * 1000) % 1000:03d}"
        arrow = "client ->" if self.came else "client <-"
        return f"{clock} {self.connection}.{self.channel} {arrow} {name} {said}{payload}".rstrip()


class Trace:
    """The last frames of all connections of a namespace, oldest first."""

    def __init__(self, most_frames: int = MOST_FRAMES) -> None:
        self.frames: deque[Frame] = deque(maxlen=most_frames)
        self._numbers = itertools.count(1)

    def of_connection(self) -> "ConnectionTrace":
        """For a connection that has just been made."""
        return ConnectionTrace(self, next(self._numbers))


class ConnectionTrace:
    """Writes down the frames of one connection."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._frames = trace.frames
        self._number = number

    def came(self, channel: int, code: int, fields: list[Any], payload_bytes: int) -> None:
        """A frame from the client."""
        self._frames.append(Frame(time.time(), self._number, True, channel, code, fields, payload_bytes))

    def went(self, data: bytes) -> None:
        """Whole frames to the client, and perhaps protocol headers between them."""
        for channel, found in FrameBuffer(most_bytes=len(data)).feed(data):
            body = bytes(found)
            try:
                code, fields, start = read_performative(body)
            except AmqpError:
                continue
            self._frames.append(Frame(time.time(), self._number, False, channel, code, fields, len(body) - start))


def _role(value: object) -> object:
    return "receiver" if value is True else "sender"


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case Described():
            code = code_of(value.descriptor)
            name = (
                str(value.descriptor) if code is None else COMPOSITES[code][0] if code in COMPOSITES else f"0x{code:x}"
            )
            inner = ", ".join(map(_shown, value.value)) if isinstance(value.value, list) else str(value.value)
            text = f"{name}({inner.rstrip(', -')})".removesuffix("()")
        case bytes():
            text = value.hex()
        case _:
            text = str(value)
    return text if len(text) <= _MOST_VALUE_CHARACTERS else text[: _MOST_VALUE_CHARACTERS - 3] + "..."
