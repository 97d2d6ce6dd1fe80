"""Connections in memory: bytes keep their order within one, and come late, never, or to an end that has gone.

A pair of processes can be kept apart: bytes wait and go on afterwards, as TCP sends them again. A connection can be
reset, at each end at its own moment, and it can die unnoticed: what is written into it is lost, and nobody is told.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.simulation.trace import Trace

CONNECT_SECONDS = 127.0
"""After so long a system gives up a connection that is not answered."""
_FIN, _RESET = object(), object()


class Network:
    def __init__(self, loop: SimulatedLoop, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.dice = loop.dice
        self.latency_seconds = 0.01
        self.slow_share = 0.0
        """How many of the packets come late,"""
        self.slow_seconds = 1.0
        """by up to so much."""
        self.connections: list[Connection] = []
        self._listening: dict[int, tuple[Process, Callable[[], asyncio.Protocol], Callable[[], bool]]] = {}
        self._apart: set[frozenset[str]] = set()
        self._count = 0
        loop.connect = self.connect

    def listen(
        self, port: int, process: Process, protocol: Callable[[], asyncio.Protocol], refusing: Callable[[], bool]
    ) -> None:
        self._listening[port] = process, protocol, refusing

    def delay(self) -> float:
        seconds = self.dice.expovariate(1 / self.latency_seconds)
        if self.slow_share and self.dice.random() < self.slow_share:
            seconds += self.dice.random() * self.slow_seconds
        return seconds

    async def connect(self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any) -> Any:
        client = PROCESS.get() or self.loop.world
        began = self.loop.time()
        await asyncio.sleep(self.delay())
        server, serve, refusing = self._listening[port]
        while self.are_apart(client, server):
            await asyncio.sleep(1.0)
            if self.loop.time() - began > CONNECT_SECONDS:
                raise TimeoutError(110, "Connection timed out")
        if not server.alive or refusing():
            raise ConnectionRefusedError(111, "Connection refused")
        self._count += 1
        connection = Connection(self, self._count, client, server)
        self.connections.append(connection)
        near, far = connection.ends
        self.loop.call_soon(_accept, far, serve, context=server.context)
        await asyncio.sleep(self.delay())
        if near.lost:
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = factory()
        near.set_protocol(protocol)
        protocol.connection_made(near)
        near.begin()
        return near, protocol

    # -- trouble

    def are_apart(self, one: Process, other: Process) -> bool:
        return bool(self._apart) and frozenset((one.name, other.name)) in self._apart

    def part(self, one: str, other: str) -> None:
        self._apart.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        self._apart.discard(frozenset((one, other)))
        for connection in list(self.connections):
            connection.go_on()

    def join_all(self) -> None:
        self._apart.clear()
        for connection in list(self.connections):
            connection.go_on()

    def of(self, process: Process) -> "list[Connection]":
        return [one for one in self.connections if process in (one.ends[0].process, one.ends[1].process)]

    def process_ended(self, process: Process, power: bool) -> None:
        for connection in self.of(process):
            own = connection.ends[0] if connection.ends[0].process is process else connection.ends[1]
            if power:
                connection.die()
            else:
                own.abort()


def _accept(end: "End", serve: Callable[[], asyncio.Protocol]) -> None:
    if not end.lost:
        protocol = serve()
        end.set_protocol(protocol)
        protocol.connection_made(end)
        end.begin()


class Connection:
    def __init__(self, network: Network, number: int, client: Process, server: Process) -> None:
        self.network = network
        self.number = number
        self.ends = End(self, client, "c"), End(self, server, "s")
        self.ends[0].peer, self.ends[1].peer = self.ends[1], self.ends[0]
        self.dead = False

    def reset(self) -> None:
        """Both ends hear of it, each when it does."""
        for end in self.ends:
            end.inbox.clear()
            end.expect(_RESET)

    def die(self) -> None:
        """Nobody hears of it."""
        self.dead = True
        for end in self.ends:
            end.inbox.clear()

    def go_on(self) -> None:
        for end in self.ends:
            end.arm()

    def forget(self) -> None:
        if all(end.lost for end in self.ends) and self in self.network.connections:
            self.network.connections.remove(self)


class End(asyncio.Transport):
    """One end of a connection, as its process has it."""

    peer: "End"

    def __init__(self, connection: Connection, process: Process, name: str) -> None:
        super().__init__()
        self.connection = connection
        self.process = process
        self.name = name
        self.inbox: deque[tuple[float, Any]] = deque()
        self.lost = False
        self._loop = connection.network.loop
        self._protocol: asyncio.Protocol | None = None
        self._begun = False
        self._closing = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    # -- from the network

    def begin(self) -> None:
        self._begun = True
        self.arm()

    def expect(self, item: Any) -> None:
        """Something is on its way here."""
        if self.lost or self.connection.dead:
            return
        due = self._loop.time() + self.connection.network.delay()
        if self.inbox:
            due = max(due, self.inbox[-1][0])
        self.inbox.append((due, item))
        self.arm()

    def arm(self) -> None:
        if self._timer is None and self.inbox and self._begun and not self._paused and not self.lost:
            when = max(self.inbox[0][0], self._loop.time())
            self._timer = self._loop.call_at(when, self._arrive, context=self.process.context)

    def _arrive(self) -> None:
        self._timer = None
        if self.connection.network.are_apart(self.process, self.peer.process):
            return
        now = self._loop.time()
        while self.inbox and self.inbox[0][0] <= now and not (self._paused or self.lost):
            self._take(self.inbox.popleft()[1])
        self.arm()

    def _take(self, item: Any) -> None:
        protocol = self._protocol
        assert protocol is not None
        if item is _RESET:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
        elif item is _FIN:
            if not self._closing and not protocol.eof_received():
                self.close()
        elif not self._closing:
            trace = self.connection.network.trace
            trace.note("packet", self.connection.number, self.name, len(item), zlib.crc32(item))
            protocol.data_received(item)

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self._closing = True
        self.inbox.clear()
        if self._begun and self.process.alive and self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.process.context)
        self.connection.forget()

    # -- what the protocol calls

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self.peer.expect(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer.expect(_FIN)
            self._lose(None)

    def abort(self) -> None:
        if not self.lost:
            self.peer.expect(_RESET)
            self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.arm()

    def is_reading(self) -> bool:
        return not self._paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False
