"""Duplicate detection: a message id seen within the window is accepted and silently dropped.

On partitioned entities the partition key belongs to the identity. Memory is bounded by the window alone: expired ids
leave from the front whenever an id is checked.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from sbpair.emulator.broker.messages import Message

Identity = tuple[object, str | None]


class DuplicateHistory:
    """The ids of the last `window_seconds`."""

    def __init__(self, window_seconds: float, key_of: Callable[[Any], Any], *, by_partition_key: bool) -> None:
        self.window_seconds = window_seconds
        self._key_of = key_of
        self._by_partition_key = by_partition_key
        self._until: dict[Identity, float] = {}
        self._queue: deque[tuple[float, Identity]] = deque()

    def identity(self, message: Message) -> Identity | None:
        head = message.head
        if message.message_id is None:
            return None
        key = head.partition_key or head.session_id if self._by_partition_key else None
        return self._key_of(message.message_id), key

    def is_known(self, identity: Identity, now: float) -> bool:
        self._forget(now)
        return self._until.get(identity, now) > now

    def remember(self, identity: Identity, now: float) -> float:
        """Note an id; the instant until which it is known."""
        return self.restore(identity, now + self.window_seconds)

    def restore(self, identity: Identity, until: float) -> float:
        self._until[identity] = until
        self._queue.append((until, identity))
        return until

    def known(self) -> Iterator[tuple[Identity, float]]:
        return iter(self._until.items())

    def _forget(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            _, identity = self._queue.popleft()
            if self._until.get(identity, now + 1) <= now:
                del self._until[identity]
