"""What one client may cost all others: memory that is kept for it, and time that is spent on it at a stretch.

Memory is counted where it is kept: unfinished messages and frames, links' properties, answers and deliveries that the
client does not take. Each connection has a limit, a small one until its first token; all connections of an emulator
together have another, and when that is reached, the connection that holds the most has to go.

Time is given in slices. A connection's input is read as it arrives, up to one slice; what is left waits for its turn,
one connection's slice in each turn of the event loop, and meanwhile nothing more is read from its socket. A connection
that needed more than a slice is a busy one for a while: its input waits for turns from the start, so that any number of
busy connections together delay the others by one slice only.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from sbpair.emulator.limits import MAX_HELD_BYTES_TOGETHER

SLICE_SECONDS: Final = 0.002
SLICE_BEFORE_TOKEN_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 1.0
"""For how long a connection counts as busy after it has needed more than a slice."""


class Holder(Protocol):
    """A connection, as the one who has memory."""

    @property
    def kept_bytes(self) -> int: ...
    def give_way(self) -> None:
        """Close, and let go of everything: there is no more room in the process."""


class Memory:
    """The bytes that all connections of an emulator together make it keep."""

    def __init__(self, limit_bytes: int = MAX_HELD_BYTES_TOGETHER) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._holders: set[Holder] = set()

    def changed(self, holder: Holder, by_bytes: int) -> None:
        """A connection keeps so many bytes more (or less) than before."""
        self.used_bytes += by_bytes
        if by_bytes <= 0:
            return
        self._holders.add(holder)
        if self.used_bytes > self.limit_bytes:
            # Whoever asks for the last byte is seldom the one who has taken all the others.
            max(self._holders, key=lambda one: one.kept_bytes).give_way()

    def forget(self, holder: Holder) -> None:
        """The connection is gone. What it kept has been taken off already."""
        self._holders.discard(holder)


class Reader(Protocol):
    """A connection, as the one whose input waits."""

    def read_on(self) -> bool:
        """Read for one slice; whether there is still more."""


class Turns:
    """The connections whose input waits, each for its slice."""

    def __init__(self) -> None:
        self._waiting: deque[Reader] = deque()

    def add(self, reader: Reader) -> None:
        """Line up at the end."""
        self._waiting.append(reader)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """One slice for the first in line. The sockets of all others are served before the next one."""
        reader = self._waiting[0]
        more = False
        try:
            more = reader.read_on()
        finally:
            self._waiting.popleft()
            if more:
                self._waiting.append(reader)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)
