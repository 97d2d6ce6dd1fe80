"""Sessions of one mailbox: exclusive holders, lock times, state, and the line for the next available one.

A session exists as long as it has messages, a state or a holder. Its messages are locked by its one holder and for as
long as the session is; when the holder leaves by itself they go back uncounted, when the lock runs out they count as a
failed delivery (the service's table of delivery counts in sessions).
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from sbpair.emulator.broker.messages import Message, MessageLog
from sbpair.emulator.broker.partitions import ReadyLine, partition_of
from sbpair.engine import errors
from sbpair.engine.clock import Clock, Timer
from sbpair.engine.errors import BrokerError
from sbpair.service import session_key

# Receivers as a mailbox sees them.


class DeliveryTarget(Protocol):
    """Something that takes messages; the receiving link of a client, or a list in a test."""

    @property
    def settled(self) -> bool:
        """True for receive-and-delete: a message is gone with its delivery."""

    def room(self) -> int:
        """How many more messages it can take now."""

    def admit(self, lock_seconds: float) -> float | None:
        """Asked before each delivery: for how long to lock the message. None: not to be served now (it went away)."""

    def hand(self, message: Message, lock: "Lock | None") -> None:
        """Take the message; `lock` is None for receive-and-delete."""

    def detach(self, condition: str, description: str) -> None:
        """The mailbox, its entity or the session's lock is gone."""


class Waiting:
    """Consumers with room, served in turns so that a large prefetch of one does not starve the others."""

    def __init__(self) -> None:
        self._turns: deque[DeliveryTarget] = deque()
        self._members: set[DeliveryTarget] = set()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, consumer: DeliveryTarget) -> None:
        if consumer not in self._members:
            self._members.add(consumer)
            self._turns.append(consumer)

    def discard(self, consumer: DeliveryTarget) -> None:
        if consumer in self._members:
            self._members.discard(consumer)
            self._turns.remove(consumer)

    def next(self) -> DeliveryTarget | None:
        """The one whose turn it is, with room for at least one message; it goes to the end of the line."""
        while self._turns:
            consumer = self._turns[0]
            if consumer.room() > 0:
                self._turns.rotate(-1)
                return consumer
            self._turns.popleft()
            self._members.discard(consumer)
        return None


# Message locks: who holds a message, under which token, until when.


class Lock:
    """One delivered, unsettled message. Inside a session the lock lasts as long as the session's."""

    __slots__ = ("_until", "message", "session", "timer", "token")

    def __init__(self, message: Message, until: float, session: "MessageSession | None") -> None:
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
    """The locks of one mailbox by token. `on_expiry` is called with a lock that ran out and counts no longer."""

    def __init__(self, clock: Clock, on_expiry: Callable[[Lock], None]) -> None:
        self._clock = clock
        self._on_expiry = on_expiry
        self._locks: dict[uuid.UUID, Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def issue(self, message: Message, seconds: float, session: "MessageSession | None" = None) -> Lock:
        """Lock a message for that many seconds, or for as long as its session is held."""
        lock = Lock(message, self._clock.now() + seconds, session)
        message.locked = True
        self._locks[lock.token] = lock
        if session is None:
            self._arm(lock)
        else:
            session.locks[lock.token] = lock
        return lock

    def partition_of(self, token: uuid.UUID) -> int | None:
        """The partition of a locked message; None for a token that locks nothing."""
        lock = self._locks.get(token)
        return None if lock is None else partition_of(lock.message.sequence_number)

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

    def tokens(self) -> list[uuid.UUID]:
        """Of all locks that have not ended."""
        return [token for token, lock in self._locks.items() if lock.until > self._clock.now()]

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


class MessageSession:
    """One session: its messages, its state bytes, its holder."""

    def __init__(self, session_id: str, key: str) -> None:
        self.id = session_id
        """As the first message, or the first receiver, spelled it."""
        self.key = key
        self.log = MessageLog()
        self.ready = ReadyLine()
        self.state: bytes | None = None
        self.holder: DeliveryTarget | None = None
        self.token: uuid.UUID | None = None
        """Of its lock, if the holder shares it: a receiver that shows it takes the session over."""
        self.locked_until = 0.0
        self.locks: dict[uuid.UUID, Lock] = {}
        self.changed_at = 0.0
        self.timer: Timer | None = None
        self.pump_due = False

    @property
    def is_needed(self) -> bool:
        return bool(len(self.log) or self.state is not None or self.holder is not None)


class SessionWaiter(DeliveryTarget, Protocol):
    """A consumer that wants the next available session."""

    def granted(self, session: MessageSession) -> None:
        """The session is locked for this consumer."""


class Sessions:
    """All sessions of a mailbox. `has_ready` says whether a session has a deliverable message (dropping stale
    numbers); `key_of` gives what the spellings of one session have in common."""

    def __init__(
        self,
        clock: Clock,
        lock_seconds: Callable[[], float],
        has_ready: Callable[[MessageSession], bool],
        on_lost: Callable[[MessageSession, DeliveryTarget], None],
        key_of: Callable[[str], str] = session_key,
    ) -> None:
        self.key_of = key_of
        self._clock = clock
        self._lock_seconds = lock_seconds
        self._has_ready = has_ready
        self._on_lost = on_lost
        self._sessions: dict[str, MessageSession] = {}
        self._available: dict[str, MessageSession] = {}
        self._waiters: deque[SessionWaiter] = deque()

    def __iter__(self) -> Iterator[MessageSession]:
        return iter(self._sessions.values())

    def get(self, session_id: str) -> MessageSession | None:
        return self._sessions.get(self.key_of(session_id))

    def ensure(self, session_id: str) -> MessageSession:
        """The session, made if need be."""
        key = self.key_of(session_id)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = MessageSession(session_id, key)
        return session

    def hold(self, session_id: str, holder: DeliveryTarget, token: uuid.UUID | None = None) -> MessageSession:
        """Lock the named session for one holder, or BrokerError session-cannot-be-locked. With the token of the lock
        that another shares, it is taken over: messages under lock stay so, and the other loses its link."""
        session = self.ensure(session_id)
        if token is not None and session.token == token and (before := session.holder) is not None:
            session.holder = holder
            self._lock(session)
            before.detach(errors.SESSION_LOCK_LOST, f"The session '{session_id}' has been taken over.")
            return session
        if session.holder is not None or token is not None:
            self.discard_if_unneeded(session)
            raise BrokerError(
                errors.SESSION_CANNOT_BE_LOCKED,
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.",
            )
        self._grant(session, holder)
        return session

    def wait(self, waiter: SessionWaiter) -> bool:
        """Give the waiter an available session at once (True) or put it at the end of the line (False)."""
        self._waiters.append(waiter)
        self.match()
        return waiter not in self._waiters

    def stop_waiting(self, waiter: SessionWaiter) -> None:
        """Leave the line, if in it."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def noticed(self, session: MessageSession) -> None:
        """A message became ready in the session: if nobody holds it, it is available."""
        if session.holder is None:
            self._available.setdefault(session.key, session)
            if self._waiters:
                self.match()

    def notice_all(self) -> None:
        """Look which sessions are available: after a restart."""
        for session in self._sessions.values():
            if session.holder is None and self._has_ready(session):
                self._available.setdefault(session.key, session)

    def match(self) -> None:
        """Give available sessions to waiters, both in their order."""
        while self._waiters and self._available:
            session = self._available.pop(next(iter(self._available)))
            if session.holder is None and self._has_ready(session):
                waiter = self._waiters.popleft()
                self._grant(session, waiter)
                waiter.granted(session)

    def renew(self, session_id: str) -> float:
        """Start the session lock's time again; the new end. Raises BrokerError session-lock-lost."""
        session = self.require_held(session_id)
        self._lock(session)
        return session.locked_until

    def require_held(self, session_id: str) -> MessageSession:
        """The session if somebody holds it, or BrokerError session-lock-lost."""
        session = self.get(session_id)
        if session is None or session.holder is None:
            raise BrokerError(
                errors.SESSION_LOCK_LOST,
                f"The lock of the session '{session_id}' has expired. Accept the session again.",
            )
        return session

    def set_state(self, session_id: str, state: bytes | None) -> MessageSession:
        """Keep bytes with the session; None clears them."""
        session = self.require_held(session_id)
        session.state = state
        session.changed_at = self._clock.now()
        return session

    def vacate(self, session: MessageSession) -> None:
        """The session has no holder any more; nobody else is served yet."""
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        session.holder = session.token = None

    def freed(self, session: MessageSession) -> None:
        """The session's messages are in line again: it is available, or not needed any more."""
        if self._has_ready(session):
            self.noticed(session)
        else:
            self.discard_if_unneeded(session)

    def discard_if_unneeded(self, session: MessageSession) -> None:
        if not session.is_needed:
            self._sessions.pop(session.key, None)
            self._available.pop(session.key, None)

    def listed(self, changed_after: float | None) -> list[str]:
        """Ids of sessions with messages or state; with a time only those whose state was set after it."""
        chosen = (
            session.id
            for session in self._sessions.values()
            if (len(session.log) or session.state is not None)
            and (changed_after is None or (session.state is not None and session.changed_at > changed_after))
        )
        return sorted(chosen)

    def _grant(self, session: MessageSession, holder: DeliveryTarget) -> None:
        self._available.pop(session.key, None)
        session.holder = holder
        session.token = uuid.uuid4() if getattr(holder, "shares_session", False) else None
        self._lock(session)

    def shorten(self, session: MessageSession, seconds: float) -> None:
        """Let the session's lock end earlier than its holder was told: for fault injection."""
        self._lock_for(session, seconds)

    def _lock(self, session: MessageSession) -> None:
        self._lock_for(session, self._lock_seconds())

    def _lock_for(self, session: MessageSession, seconds: float) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.locked_until = self._clock.now() + seconds
        session.timer = self._clock.call_at(session.locked_until, lambda: self._expire(session))

    def _expire(self, session: MessageSession) -> None:
        holder = session.holder
        session.timer = None
        if holder is not None:
            self._on_lost(session, holder)
