"""Message locks: who holds a message, under which token, until when."""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.emulator import errors
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.clock import Clock, Timer
from sbpair.emulator.errors import BrokerError

if TYPE_CHECKING:
    from sbpair.emulator.broker.sessions import Session


class Lock:
    """One delivered, unsettled message. Inside a session the lock lasts as long as the session's."""

    __slots__ = ("_until", "message", "session", "timer", "token")

    def __init__(self, message: Message, until: float, session: "Session | None") -> None:
        self.token = uuid.uuid4()
        self.message = message
        self.session = session
        self.timer: Timer | None = None
        self._until = until

    @property
    def until(self) -> float:
        """The instant (epoch seconds) the lock ends by itself."""
        return self._until if self.session is None else self.session.locked_until

    def extend(self, until: float) -> None:
        self._until = until


class Locks:
    """The locks of one mailbox by token. `on_expiry` is called with a lock that ran out and is no longer in the
    book."""

    def __init__(self, clock: Clock, on_expiry: Callable[[Lock], None]) -> None:
        self._clock = clock
        self._on_expiry = on_expiry
        self._locks: dict[uuid.UUID, Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def issue(self, message: Message, seconds: float, session: "Session | None" = None) -> Lock:
        """Lock a message for so many seconds, or for as long as its session is held."""
        lock = Lock(message, self._clock.now() + seconds, session)
        message.locked = True
        self._locks[lock.token] = lock
        if session is None:
            self._arm(lock)
        else:
            session.locks[lock.token] = lock
        return lock

    def require(self, token: uuid.UUID) -> Lock:
        """The live lock behind a token, or BrokerError message-lock-lost."""
        lock = self._locks.get(token)
        if lock is None or lock.until <= self._clock.now():
            raise BrokerError(
                errors.MESSAGE_LOCK_LOST,
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed from "
                "the queue, or was received by a different receiver instance.",
            )
        return lock

    def renew(self, token: uuid.UUID, seconds: float) -> float:
        """Start the lock's time again; the new end. Raises BrokerError message-lock-lost."""
        lock = self.require(token)
        if lock.session is None:
            lock.extend(self._clock.now() + seconds)
            self._disarm(lock)
            self._arm(lock)
        return lock.until

    def end(self, lock: Lock) -> bool:
        """Take the lock away; False if it had ended already."""
        if self._locks.pop(lock.token, None) is None:
            return False
        lock.message.locked = False
        self._disarm(lock)
        if lock.session is not None:
            lock.session.locks.pop(lock.token, None)
        return True

    def clear(self) -> None:
        """End all locks without a word: the mailbox is going away."""
        for lock in list(self._locks.values()):
            self.end(lock)

    def _arm(self, lock: Lock) -> None:
        lock.timer = self._clock.call_at(lock.until, lambda: self._expire(lock))

    @staticmethod
    def _disarm(lock: Lock) -> None:
        if lock.timer is not None:
            lock.timer.cancel()
            lock.timer = None

    def _expire(self, lock: Lock) -> None:
        if self.end(lock):
            self._on_expiry(lock)
