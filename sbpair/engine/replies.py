"""Answers on their way to a client that asked: each waits for the credit of the link it goes out on."""

from collections import deque
from typing import Final

from sbpair.engine import errors
from sbpair.engine.link import Link

MOST_WAITING: Final = 1000
"""A client that asks on and on and takes no answer is sent away."""


class Replies:
    """The answers of one link. Those that wait count as held for the client (`budgets`)."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._count = 0

    def deliver(self, payload: bytes) -> None:
        """Send an answer now or as soon as there is credit."""
        if not self._link.is_open():
            return
        self._waiting.append(payload)
        if not self._link.connection.budget.hold(len(payload)):
            return
        self.on_credit()
        if len(self._waiting) > MOST_WAITING:
            self.drop()
            self._link.force_off(errors.QUOTA, f"More than {MOST_WAITING} answers wait for credit on this link.")

    def on_credit(self) -> None:
        """The link has credit, or is drained."""
        while self._waiting and self._link.is_open() and self._link.credit > 0:
            self._count = (self._count + 1) & 0xFFFFFFFF
            payload = self._waiting.popleft()
            self._link.connection.budget.release(len(payload))
            self._link.send(payload, self._count.to_bytes(4), settled=True)
        if self._link.drain and self._link.is_open():
            self._link.drained()

    def drop(self) -> None:
        """Nobody waits for these answers any more."""
        self._link.connection.budget.release(sum(map(len, self._waiting)))
        self._waiting.clear()
