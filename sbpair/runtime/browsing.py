"""Browses queues without locks: pages through each, and merges several into one stream, oldest message first.

Nothing is received, so no delivery count rises and nobody has to wait for a lock. A page may be short although there is
more, and a partitioned queue answers from one partition at a time, so only an empty page is the end; and it is asked
from number 1, since from 0 its partitions take turns and the lower ones would be left out.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sbpair.core.coupling import Side
from sbpair.core.errors import ServiceError
from sbpair.core.message import Received
from sbpair.core.summary import MessageSummary, describe
from sbpair.ports import MessageReceiver, Messaging
from sbpair.runtime.bounded import abandoning
from sbpair.runtime.links import close_quietly
from sbpair.runtime.ping import PING_TIMEOUT_SECONDS, PingTarget

PAGE_MESSAGES = 100
DEFAULT_TIMEOUT_SECONDS = 60.0
FIRST_SEQUENCE_NUMBER = 1


@dataclass(frozen=True, slots=True)
class Browsed:
    """A message as it lies in its queue, with the facts a person reads."""

    queue: str
    """Path of the queue; its dead-letter sub-queue ends in `/$deadletterqueue`."""
    received: Received
    summary: MessageSummary


@dataclass(frozen=True, slots=True)
class NotBrowsed:
    """A queue that could not be browsed (to its end)."""

    queue: str
    error: ServiceError


@dataclass(frozen=True, slots=True)
class BrowseReport:
    """Messages that were wanted, the oldest first; `looked_at` counts the others too."""

    messages: tuple[Browsed, ...]
    looked_at: int
    left_off: bool
    """The limit was reached; there may be more."""
    failed: tuple[NotBrowsed, ...] = ()


@dataclass
class _Queue:
    """One queue being paged through."""

    path: str
    receiver: MessageReceiver
    timeout_seconds: float
    next_number: int
    buffer: deque[Received] = field(default_factory=deque)
    at_end: bool = False
    error: ServiceError | None = None

    async def fill(self) -> None:
        """Fetch the next page, if the last one is used up; an error ends the queue and is kept."""
        if self.buffer or self.at_end:
            return
        fetch = self.receiver.peek(PAGE_MESSAGES, from_sequence_number=self.next_number)
        try:
            page = await abandoning(self.timeout_seconds, fetch, what=f"Browse of {self.path}", entity=self.path)
        except ServiceError as error:
            self.error, self.at_end = error, True
            return
        self.buffer.extend(page)
        self.at_end = not page
        if page:
            self.next_number = max(message.sequence_number for message in page) + 1

    @property
    def age_key(self) -> float:
        return self.buffer[0].enqueued_at or 0.0


async def browse(
    messaging: Messaging,
    queues: Sequence[str],
    *,
    dead_letter: bool = False,
    max_messages: int,
    from_sequence_number: int = FIRST_SEQUENCE_NUMBER,
    wanted: Callable[[Browsed], bool] = lambda message: True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> BrowseReport:
    """Up to `max_messages` wanted messages of the queues, by the time they were put there.

    A queue that cannot be browsed does not stop the others. `timeout_seconds` bounds each page.
    """
    opened = [
        _Queue(
            path,
            messaging.receiver(path, dead_letter=dead_letter),
            timeout_seconds,
            max(from_sequence_number, FIRST_SEQUENCE_NUMBER),
        )
        for path in queues
    ]
    try:
        await asyncio.gather(*(queue.fill() for queue in opened))
        found, looked_at = await _merged(opened, max_messages, wanted)
    finally:
        await asyncio.gather(*(close_quietly(queue.receiver) for queue in opened))
    failed = tuple(NotBrowsed(queue.path, queue.error) for queue in opened if queue.error is not None)
    return BrowseReport(tuple(found), looked_at, any(queue.buffer for queue in opened), failed)


async def _merged(queues: Sequence[_Queue], limit: int, wanted: Callable[[Browsed], bool]) -> tuple[list[Browsed], int]:
    heap = [(queue.age_key, index) for index, queue in enumerate(queues) if queue.buffer]
    heapq.heapify(heap)
    found: list[Browsed] = []
    looked_at = 0
    while heap and len(found) < limit:
        _, index = heapq.heappop(heap)
        queue = queues[index]
        received = queue.buffer.popleft()
        looked_at += 1
        message = Browsed(received.source, received, describe(received.payload))
        if wanted(message):
            found.append(message)
        await queue.fill()
        if queue.buffer:
            heapq.heappush(heap, (queue.age_key, index))
    return found, looked_at


def browse_target(
    side: Side, messaging: Messaging, path: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
) -> PingTarget:
    """Measure by browsing the head of a queue: needs the Listen right, sends nothing.

    For backlog queues: a ping message whose second is over would be dead-lettered there, as documented queues do with
    what expires.
    """
    receiver = messaging.receiver(path)

    async def probe() -> None:
        await abandoning(timeout_seconds, receiver.peek(1), what=f"Browse of {path}", entity=path)

    async def close() -> None:
        await close_quietly(receiver)

    return PingTarget(side, path, probe, close)
