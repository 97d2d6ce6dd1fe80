"""Messages out of a file or a table, as a receiver hands them out: the pump sends them like those of a queue.

Nobody else has them, so nothing is locked and nothing needs settling. They are numbered in the order in which they are
put in, which is the order in which a session's messages go; where they lay before is their `Origin`.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace

from sbpair.concurrency import each_answered
from sbpair.core.errors import ArgumentRefusedError, ServiceError
from sbpair.core.message import Disposition, Received

SOURCE = "archive"
AHEAD_MESSAGES = 4_000
"""What is read ahead of the sends: two windows of the pump."""
EMPTY_SECONDS = 0.02
"""How long a receive takes that brings nothing."""


class StoredMessages:
    """A `MessageReceiver` of messages that are put in by somebody else, or given at once."""

    source = SOURCE
    session_id = None

    def __init__(self, messages: Iterable[Received] | None = None) -> None:
        self._fresh: deque[Received] = deque()
        self._returned: list[tuple[int, Received]] = []
        self._out: dict[int, Received] = {}
        self._last_number = 0
        self._changed = asyncio.Condition()
        self._over = messages is not None
        self._closed = False
        self._add(messages or ())

    def _add(self, messages: Iterable[Received]) -> None:
        for one in messages:
            self._last_number += 1
            self._fresh.append(replace(one, source=SOURCE, sequence_number=self._last_number))

    async def put(self, messages: Sequence[Received]) -> bool:
        """Add messages at the end, as soon as there is room; False if nobody takes them any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._fresh) < AHEAD_MESSAGES)
            self._add(messages)
            self._changed.notify_all()
        return not self._closed

    async def end(self) -> None:
        """There are no more."""
        async with self._changed:
            self._over = True
            self._changed.notify_all()

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        """The next messages; none only if there are no more, or all that is left is in hand."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._fresh or self._returned or self._over or self._closed)
            taken = [heapq.heappop(self._returned)[1] for _ in range(min(max_messages, len(self._returned)))]
            taken += [self._fresh.popleft() for _ in range(min(max_messages - len(taken), len(self._fresh)))]
            self._out.update((one.sequence_number, one) for one in taken)
            self._changed.notify_all()
        if not taken:
            # A source that asks again at once, as some in hand may come back, must not keep all others from working.
            await asyncio.sleep(min(wait_seconds, EMPTY_SECONDS))
        return taken

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        return []

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        """What was handed out and is not settled: a message that was given back is among it until it is sent."""
        numbers = sorted(number for number in self._out if number >= from_sequence_number)
        return [self._out[number] for number in numbers[:max_messages]]

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        if disposition is not Disposition.RELEASE:
            self.forget(received)
            return
        await self.give_back([self._out[received.sequence_number]])  # what was left has lost its bytes

    async def give_back(self, messages: Iterable[Received]) -> None:
        """They are to be handed out again; nobody takes one before this returns."""
        async with self._changed:
            for one in messages:
                heapq.heappush(self._returned, (one.sequence_number, one))
            self._changed.notify_all()

    def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        return each_answered(received, lambda one: self.settle(one, disposition))

    def forget(self, received: Received) -> None:
        """It was dealt with."""
        self._out.pop(received.sequence_number, None)

    async def renew_lock(self, received: Received) -> float:
        return math.inf

    async def renew_session(self) -> float:
        return math.inf

    async def session_ids(self) -> list[str]:
        return []

    async def session_state(self) -> bytes | None:
        return None

    async def set_session_state(self, state: bytes | None) -> None:
        raise ArgumentRefusedError("Stored messages have no session to keep a state with.", entity=self.source)

    async def close(self) -> None:
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
