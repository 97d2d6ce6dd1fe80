"""What one client may cost all others: memory that is kept for it, transactions, and time that is spent on it at a
stretch. Every handler spends from the `ClientBudget` of the connection that it serves.

Memory is counted where it is kept: unfinished messages and frames, links' properties, answers and deliveries that the
client does not take, what its open transactions hold. Each connection has a limit, a small one until its first token
that gives a right; all connections of an emulator together have another, and when that is reached, the connection that
holds the most has to go.

Time is given in slices. A connection's input is read as it arrives, up to one slice; what is left waits for its turn,
one connection's slice in each turn of the event loop, and meanwhile nothing more is read from its socket. A connection
that needed more than a slice is a busy one for a while: its input waits for turns from the start, so that any number of
busy connections together delay the others by one slice only.

What takes long is a generator that yields after each step of at most a few milliseconds (`Work`). A connection goes on
with the work of its last frame before it reads the next one. What no connection waits for, such as a scheduled message
whose time has come, is done in the `Background` of its namespace, which has a slice in each turn as well.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, Protocol, TypeVar

MAX_HELD_BYTES = 128 * 1024 * 1024
"""What one connection may make us hold of unfinished messages, or of answers that it does not read: more than the
largest message the service knows, which has 100 MB."""
MAX_HELD_BYTES_BEFORE_TOKEN = 512 * 1024
"""The same for a connection that has not shown a token yet: requests to `$cbs`, which have a few KB each."""
TRANSACTION_HEADROOM_BYTES = 8 * 1024 * 1024
"""Of the same: so much is left for messages that are still coming when open transactions hold as much as they may."""
MAX_HELD_BYTES_TOGETHER = 384 * 1024 * 1024
"""The same for all connections of an emulator together."""
MAX_LINKS_PER_CONNECTION = 5000
MAX_LINKS_BEFORE_TOKEN = 64
MAX_TOKENS_PER_CONNECTION = 20_000
"""Addresses that a connection has tokens for. All of them are gone through when the first of them runs out."""
MAX_PERFORMATIVE_BYTES = 16 * 1024
MAX_PERFORMATIVE_BYTES_BEFORE_TOKEN = 8 * 1024
"""Frames have up to 64 KB, but all of that is for messages: an attach with a session filter has some 500 bytes."""
MAX_SESSIONS_BEFORE_TOKEN = 64
MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN = 8
"""A client of .NET that begins inside a TransactionScope declares before it has put its first token."""
MAX_OPEN_TRANSACTIONS = 1000
"""Of a connection: our own bound."""


SLICE_SECONDS: Final = 0.002
SLICE_BEFORE_TOKEN_SECONDS: Final = 0.001
BUSY_SECONDS: Final = 1.0
"""For how long a connection counts as busy after it has needed more than a slice."""
TRANSACTION_BYTES: Final = 2048
"""What an open transaction takes before anything is in it."""


Work = Iterator[None]
"""What is done in steps, between which others may have their turn."""
Result = TypeVar("Result")


def finish(work: Generator[None, None, Result]) -> Result:
    """Do all of it at a stretch, where it is known to be short or has to be one step."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Memory:
    """The bytes that all connections of an emulator together make it keep."""

    def __init__(self, limit_bytes: int = MAX_HELD_BYTES_TOGETHER) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._budgets: set[ClientBudget] = set()

    def changed(self, budget: "ClientBudget", by_bytes: int) -> None:
        """A connection keeps that many bytes more (or less) than before."""
        self.used_bytes += by_bytes
        if by_bytes <= 0:
            return
        self._budgets.add(budget)
        if self.used_bytes > self.limit_bytes:
            # The connection that asks for the last byte is seldom the one that has taken all the others.
            max(self._budgets, key=lambda one: one.retained_bytes).give_way()

    def forget(self, budget: "ClientBudget") -> None:
        """The connection is gone. What it kept has been taken off already."""
        self._budgets.discard(budget)


class Client(Protocol):
    """A connection, as the side that pays with its end for what it takes too much of."""

    @property
    def is_closing(self) -> bool: ...
    def close(self, condition: str, description: str) -> None: ...
    def abort(self) -> None: ...


class ClientBudget:
    """What one client may hold and compute. `held_bytes` is what is kept for it here, `unsent_bytes` what its transport
    could not write yet; `has_right` says whether a token of it has given a right."""

    def __init__(self, client: Client, memory: Memory) -> None:
        self.has_right = False
        self.held_bytes = 0
        self.unsent_bytes = 0
        self.open_transactions = 0
        self._client = client
        self._memory = memory
        self._ended = False

    # -- memory

    @property
    def retained_bytes(self) -> int:
        """All that the client makes this process keep."""
        return self.held_bytes + self.unsent_bytes

    @property
    def max_bytes(self) -> int:
        """The most that may be held for it, and the most that may be unsent."""
        return MAX_HELD_BYTES if self.has_right else MAX_HELD_BYTES_BEFORE_TOKEN

    def has_room(self, size_bytes: int) -> bool:
        """Whether open transactions may hold that many bytes more."""
        return self.held_bytes + size_bytes <= self.max_bytes - TRANSACTION_HEADROOM_BYTES

    def hold(self, size_bytes: int) -> bool:
        """This many bytes more are kept for the client. False: that was too much, and the connection is closing."""
        if self._ended:
            return False
        self.held_bytes += size_bytes
        self._memory.changed(self, size_bytes)
        if self.held_bytes > self.max_bytes:
            self._client.close(
                "amqp:resource-limit-exceeded", "This connection has too much that is unfinished or not taken."
            )
        return not self._client.is_closing

    def release(self, size_bytes: int) -> None:
        """This many bytes are not kept any more."""
        if not self._ended:
            self.held_bytes -= size_bytes
            self._memory.changed(self, -size_bytes)

    def unsent(self, size_bytes: int) -> None:
        """This many bytes wait to be written. A client that reads nothing would not read a close either: it is cut."""
        if self._ended:
            return
        more, self.unsent_bytes = size_bytes - self.unsent_bytes, size_bytes
        self._memory.changed(self, more)
        if self.unsent_bytes > self.max_bytes:
            self._client.abort()

    def give_way(self) -> None:
        """All connections together keep too much, and this one the most of it: it closes and lets go of everything."""
        if self.unsent_bytes > self.held_bytes or self._client.is_closing:
            self._client.abort()
        else:
            self._client.close("amqp:resource-limit-exceeded", "There is no more memory for connections.")

    def end(self) -> None:
        """The connection is gone, and everything with it."""
        self._ended = True
        self._memory.changed(self, -self.retained_bytes)
        self._memory.forget(self)
        self.held_bytes = self.unsent_bytes = 0

    # -- transactions

    def begin_transaction(self) -> bool:
        """Another transaction is open. False, with nothing changed, when that would be one too many."""
        most = MAX_OPEN_TRANSACTIONS if self.has_right else MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN
        if self.open_transactions >= most or (self.has_right and not self.has_room(TRANSACTION_BYTES)):
            return False
        self.open_transactions += 1
        if self.hold(TRANSACTION_BYTES):
            return True
        self.end_transaction()
        return False

    def end_transaction(self) -> None:
        """A transaction is over."""
        self.open_transactions -= 1
        self.release(TRANSACTION_BYTES)

    # -- time

    @property
    def slice_seconds(self) -> float:
        """How long the client may be served at a stretch."""
        return SLICE_SECONDS if self.has_right else SLICE_BEFORE_TOKEN_SECONDS


class WaitingWork(Protocol):
    """A connection, as the one whose input waits; or whatever else has work to do."""

    def read_on(self) -> bool:
        """Go on for one slice; whether there is still more."""


class _Waiter:
    """A coroutine in the line."""

    def __init__(self) -> None:
        self.come: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read_on(self) -> bool:
        if not self.come.done():
            self.come.set_result(None)
        return False


class Turns:
    """The connections whose input waits, each for its slice."""

    def __init__(self) -> None:
        self._waiting: deque[WaitingWork] = deque()

    def add(self, reader: WaitingWork) -> None:
        """Line up at the end."""
        self._waiting.append(reader)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    async def turn(self) -> None:
        """Wait for a turn of the event loop in which no other client of these has one."""
        waiter = _Waiter()
        self.add(waiter)
        await waiter.come

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


class Background:
    """The work of a namespace that no connection waits for, one after the other, in their order."""

    def __init__(self, time_of: Callable[[], float] = time.thread_time) -> None:
        self._time = time_of
        self._turns = Turns()
        self._waiting: deque[Work] = deque()
        self._in_line = False
        self._running = False
        self._spent_seconds = 0.0

    def do(self, work: Work) -> None:
        """Do it at once if it is short and nothing is before it, else in slices in later turns of the event loop."""
        self._waiting.append(work)
        if not (self._in_line or self._running):
            began = self._time()
            try:
                self._go_on(began + SLICE_SECONDS)
            finally:
                self._spent_seconds += self._time() - began
                if self._waiting or self._spent_seconds > SLICE_SECONDS:
                    self._in_line = True
                    self._turns.add(self)

    def read_on(self) -> bool:
        self._spent_seconds = 0.0
        try:
            self._go_on(self._time() + SLICE_SECONDS)
        finally:
            self._in_line = bool(self._waiting)
            if self._in_line:
                self._turns.add(self)  # here, as an error gives no answer
        return False

    def close(self) -> None:
        """Do nothing more."""
        self._waiting.clear()

    def _go_on(self, until: float) -> None:
        self._running = True  # what is done may bring more work
        finished = True
        try:
            while self._waiting and finished:
                finished = self._step(self._waiting[0], until)
        finally:
            self._running = False

    def _step(self, work: Work, until: float) -> bool:
        finished = True
        try:
            for _ in work:
                if self._time() >= until:
                    finished = False
                    break
        finally:
            if finished and self._waiting:
                self._waiting.popleft()
        return finished
