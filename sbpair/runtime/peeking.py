"""Whether a queue really is empty: counts may read 0 while a namespace throttles, a browse does not lie about that."""

from collections.abc import Awaitable, Callable

from sbpair.core.message import Received
from sbpair.core.snapshot import Peeked
from sbpair.ports import Messaging

Peek = Callable[[str], Awaitable[Peeked]]
"""Browses the head of a queue and of its dead-letter sub-queue, given the queue's path."""
PEEKS_PER_QUEUE = 2


def peeking(messaging: Messaging) -> Peek:
    """A `Peek` over the messaging side of a namespace. Takes no locks and raises no delivery counts."""

    async def peek(path: str) -> Peeked:
        head = await _head(messaging, path, dead_letter=False)
        dead = await _head(messaging, path, dead_letter=True)
        times = [message.enqueued_at for message in (*head, *dead) if message.enqueued_at is not None]
        return Peeked(active=bool(head), dead_letter=bool(dead), oldest_enqueued_at=min(times, default=None))

    return peek


async def _head(messaging: Messaging, path: str, *, dead_letter: bool) -> list[Received]:
    receiver = messaging.receiver(path, dead_letter=dead_letter)
    try:
        return await receiver.peek(1)
    finally:
        await receiver.close()
