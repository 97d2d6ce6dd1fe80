"""Order across failback: sessions that keep going to their backlog queue until what was diverted has gone home.

Without it, the first message after failback reaches the primary while older messages of its session still wait in a
backlog queue. With `hold_sessions` a session that has diverted messages stays with its queue: a scan of the queue says
which sessions still wait there, and a session that no longer does goes to the primary again. A message that is diverted
while a scan runs is newer than the scan, so that scan cannot free its session. A session that never pauses, so that
every scan finds something of it on its way, stays with its queue: in order, one detour longer.
"""

from collections.abc import Collection
from dataclasses import dataclass

SessionKey = tuple[str, str]
"""(entity path in lower case, session id)"""


@dataclass(slots=True)
class _Hold:
    queue: str
    in_flight: int
    changed_at: int
    stored: bool = False
    """Something of the session was stored in the queue, or may have been."""


class SessionHolds:
    """The held sessions of one pairing."""

    def __init__(self) -> None:
        self._holds: dict[SessionKey, _Hold] = {}
        self._moment = 0

    def __len__(self) -> int:
        return len(self._holds)

    def queue_of(self, session: SessionKey) -> str | None:
        """The backlog queue the session is bound to; None if it is free."""
        hold = self._holds.get(session)
        return hold.queue if hold else None

    def queues(self) -> tuple[str, ...]:
        """The backlog queues that hold a session."""
        return tuple(sorted({hold.queue for hold in self._holds.values()}))

    def begin(self, session: SessionKey, queue: str) -> None:
        """A message of the session is about to be sent to the queue."""
        hold = self._holds.setdefault(session, _Hold(queue, 0, self._tick()))
        hold.in_flight += 1
        hold.changed_at = self._tick()

    def end(self, session: SessionKey, *, stored: bool) -> None:
        """That send ended. `stored`: the message was accepted, or may have been."""
        hold = self._holds[session]
        hold.in_flight -= 1
        hold.stored = hold.stored or stored
        hold.changed_at = self._tick()
        if not hold.in_flight and not hold.stored:
            del self._holds[session]

    def start_scan(self) -> int:
        """The moment to hand to `scanned` when the scan that starts now is complete."""
        return self._tick()

    def scanned(self, queue: str, waiting: Collection[SessionKey], started: int) -> tuple[SessionKey, ...]:
        """A complete scan of the queue found messages of the `waiting` sessions; returns the sessions it frees."""
        freed = tuple(
            session
            for session, hold in self._holds.items()
            if hold.queue == queue and not hold.in_flight and hold.changed_at < started and session not in waiting
        )
        for session in freed:
            del self._holds[session]
        return freed

    def _tick(self) -> int:
        self._moment += 1
        return self._moment
