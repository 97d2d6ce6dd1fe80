"""Receivers as a mailbox sees them."""

from collections import deque
from typing import Protocol

from sbpair.emulator.broker.locks import Lock
from sbpair.emulator.broker.messages import Message


class Consumer(Protocol):
    """Something that takes messages; the receiving link of a client, or a list in a test."""

    @property
    def settled(self) -> bool:
        """True for receive-and-delete: a message is gone with its delivery."""

    def room(self) -> int:
        """How many more messages it can take now."""

    def admit(self, lock_seconds: float) -> float | None:
        """Asked before each delivery: for how long to lock the message. None: not to be served now (it went away)."""

    def hand(self, message: Message, lock: Lock | None) -> None:
        """Take the message; `lock` is None for receive-and-delete."""

    def detach(self, condition: str, description: str) -> None:
        """The mailbox, its entity or the session's lock is gone."""


class Waiting:
    """Consumers with room, served in turns so that a large prefetch of one does not starve the others."""

    def __init__(self) -> None:
        self._turns: deque[Consumer] = deque()
        self._members: set[Consumer] = set()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, consumer: Consumer) -> None:
        if consumer not in self._members:
            self._members.add(consumer)
            self._turns.append(consumer)

    def discard(self, consumer: Consumer) -> None:
        if consumer in self._members:
            self._members.discard(consumer)
            self._turns.remove(consumer)

    def next(self) -> Consumer | None:
        """The one whose turn it is, with room for at least one message; it goes to the end of the line."""
        while self._turns:
            consumer = self._turns[0]
            if consumer.room() > 0:
                self._turns.rotate(-1)
                return consumer
            self._turns.popleft()
            self._members.discard(consumer)
        return None
