"""Sessions of one mailbox: exclusive holders, lock times, state, and the line for the next available one.

A session exists as long as it has messages, a state or a holder. Its messages are locked by its one holder and for as
long as the session is; when the holder leaves by itself they go back uncounted, when the lock runs out they count as a
failed delivery (the service's table of delivery counts in sessions).
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from sbpair.emulator import errors
from sbpair.emulator.broker.consumers import Consumer
from sbpair.emulator.broker.locks import Lock
from sbpair.emulator.broker.log import MessageLog
from sbpair.emulator.broker.partitions import ReadyLine
from sbpair.emulator.clock import Clock, Timer
from sbpair.emulator.errors import BrokerError


class Session:
    """One session: its messages, its state bytes, its holder."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.log = MessageLog()
        self.ready = ReadyLine()
        self.state: bytes | None = None
        self.holder: Consumer | None = None
        self.locked_until = 0.0
        self.locks: dict[uuid.UUID, Lock] = {}
        self.changed_at = 0.0
        self.timer: Timer | None = None

    @property
    def is_needed(self) -> bool:
        return bool(len(self.log) or self.state is not None or self.holder is not None)


class SessionWaiter(Consumer, Protocol):
    """A consumer that wants the next available session."""

    def granted(self, session: Session) -> None:
        """The session is locked for this consumer."""


class Sessions:
    """All sessions of a mailbox. `has_ready` says whether a session has a deliverable message (dropping stale
    numbers)."""

    def __init__(
        self,
        clock: Clock,
        lock_seconds: Callable[[], float],
        has_ready: Callable[[Session], bool],
        on_lost: Callable[[Session, Consumer], None],
    ) -> None:
        self._clock = clock
        self._lock_seconds = lock_seconds
        self._has_ready = has_ready
        self._on_lost = on_lost
        self._sessions: dict[str, Session] = {}
        self._available: dict[str, Session] = {}
        self._waiters: deque[SessionWaiter] = deque()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def ensure(self, session_id: str) -> Session:
        """The session, made if need be."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(session_id)
        return session

    def hold(self, session_id: str, holder: Consumer) -> Session:
        """Lock the named session for one holder, or BrokerError session-cannot-be-locked."""
        session = self.ensure(session_id)
        if session.holder is not None:
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

    def stop_waiting(self, waiter: SessionWaiter) -> bool:
        """Leave the line; False if not in it."""
        if waiter not in self._waiters:
            return False
        self._waiters.remove(waiter)
        return True

    def noticed(self, session: Session) -> None:
        """A message became ready in the session: if nobody holds it, it is available."""
        if session.holder is None:
            self._available.setdefault(session.id, session)
            if self._waiters:
                self.match()

    def notice_all(self) -> None:
        """Look which sessions are available: after a restart."""
        for session in self._sessions.values():
            if session.holder is None and self._has_ready(session):
                self._available.setdefault(session.id, session)

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

    def require_held(self, session_id: str) -> Session:
        """The session if somebody holds it, or BrokerError session-lock-lost."""
        session = self._sessions.get(session_id)
        if session is None or session.holder is None:
            raise BrokerError(
                errors.SESSION_LOCK_LOST,
                f"The lock of the session '{session_id}' has expired. Accept the session again.",
            )
        return session

    def set_state(self, session_id: str, state: bytes | None) -> Session:
        """Keep bytes with the session; None clears them."""
        session = self.require_held(session_id)
        session.state = state
        session.changed_at = self._clock.now()
        return session

    def vacate(self, session: Session) -> None:
        """The session has no holder any more; nobody else is served yet."""
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        session.holder = None

    def freed(self, session: Session) -> None:
        """The session's messages are in line again: it is available, or not needed any more."""
        if self._has_ready(session):
            self.noticed(session)
        else:
            self.discard_if_unneeded(session)

    def discard_if_unneeded(self, session: Session) -> None:
        if not session.is_needed:
            self._sessions.pop(session.id, None)
            self._available.pop(session.id, None)

    def listed(self, changed_after: float | None) -> list[str]:
        """Ids of sessions with messages or state; with a time only those whose state was set after it."""
        chosen = (
            session.id
            for session in self._sessions.values()
            if (len(session.log) or session.state is not None)
            and (changed_after is None or (session.state is not None and session.changed_at > changed_after))
        )
        return sorted(chosen)

    def _grant(self, session: Session, holder: Consumer) -> None:
        self._available.pop(session.id, None)
        session.holder = holder
        self._lock(session)

    def shorten(self, session: Session, seconds: float) -> None:
        """Let the session's lock end earlier than its holder was told: for fault injection."""
        self._lock_for(session, seconds)

    def _lock(self, session: Session) -> None:
        self._lock_for(session, self._lock_seconds())

    def _lock_for(self, session: Session, seconds: float) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.locked_until = self._clock.now() + seconds
        session.timer = self._clock.call_at(session.locked_until, lambda: self._expire(session))

    def _expire(self, session: Session) -> None:
        holder = session.holder
        session.timer = None
        if holder is not None:
            self._on_lost(session, holder)
