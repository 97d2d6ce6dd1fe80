"""Which backlog queue takes a diverted message, and which queues nobody uses for a while.

One rotation serves a whole pairing. A queue whose send failed leaves it for every sender at once (seed 000), comes up
for one probing message after a pause, and is back when that one is accepted; each failed probe doubles the pause up to
a bound. A sessionless message takes a random queue (the number is passed in); messages of one session share a queue,
chosen by rendezvous hashing of (path, session), so that a queue that leaves or returns moves only its own sessions.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sbpair.core.errors import PairingError

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 120.0


@dataclass(slots=True)
class _Absence:
    """A queue out of rotation: the pause it serves, when that ends, and whether a probe is under way."""

    pause_seconds: float
    until: float
    probing: bool = False


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """One queue as `state()` shows it; `seconds_until_probe` is None for a queue in rotation."""

    queue: str
    in_rotation: bool
    seconds_until_probe: float | None = None


class Rotation:
    """The usable backlog queues of one pairing.

    Raises:
        PairingError: no queue at all.
    """

    def __init__(
        self,
        queues: Sequence[str],
        *,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        max_pause_seconds: float = MAX_PAUSE_SECONDS,
    ) -> None:
        if not queues:
            raise PairingError("There is no usable backlog queue on the secondary namespace.")
        self._queues = tuple(queues)
        self._first_pause = first_pause_seconds
        self._max_pause = max_pause_seconds
        self._absent: dict[str, _Absence] = {}

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    def standings(self, now: float) -> tuple[QueueStanding, ...]:
        return tuple(
            QueueStanding(queue, True)
            if (absence := self._absent.get(queue)) is None
            else QueueStanding(queue, False, max(0.0, absence.until - now))
            for queue in self._queues
        )

    def candidates(self, now: float, among: Collection[str] | None = None) -> tuple[str, ...]:
        """The queues that may be tried now: those in rotation and those due for a probe that nobody makes yet."""
        return tuple(queue for queue in self._queues if (among is None or queue in among) and self._usable(queue, now))

    def choose(
        self, *, session: tuple[str, str] | None, draw: float, now: float, among: Collection[str] | None = None
    ) -> str | None:
        """A queue for one message, or None when none may be tried now.

        A queue that is due for its probe is taken as such: say `succeeded`, `failed` or `released` about it.

        Args:
            session: (entity path, session id) of a session message.
            draw: random number in [0, 1), used without a session.
            among: restricts the choice.
        """
        candidates = self.candidates(now, among)
        if not candidates:
            return None
        queue = candidates[int(draw * len(candidates))] if session is None else stable_choice(session, candidates)
        if (absence := self._absent.get(queue)) is not None:
            absence.probing = True
        return queue

    def failed(self, queue: str, now: float) -> float | None:
        """A send to the queue failed: it leaves. Returns its pause, or None if it was out already (a late failure)."""
        absence = self._absent.get(queue)
        if absence is not None and not absence.probing:
            return None
        pause = self._first_pause if absence is None else min(absence.pause_seconds * 2, self._max_pause)
        self._absent[queue] = _Absence(pause, now + pause)
        return pause

    def succeeded(self, queue: str) -> bool:
        """The queue accepted a message. True if that brought it back into rotation."""
        return self._absent.pop(queue, None) is not None

    def released(self, queue: str) -> None:
        """The attempt ended without saying anything about the queue: another message may probe it."""
        if (absence := self._absent.get(queue)) is not None:
            absence.probing = False

    def next_chance(self, among: Collection[str] | None = None) -> float | None:
        """The earliest moment a queue that is out comes up for its probe; None if every one of them is being probed."""
        due = [
            absence.until
            for queue, absence in self._absent.items()
            if not absence.probing and (among is None or queue in among)
        ]
        return min(due, default=None)

    def _usable(self, queue: str, now: float) -> bool:
        absence = self._absent.get(queue)
        return absence is None or (not absence.probing and now >= absence.until)


def stable_choice(session: tuple[str, str], queues: Sequence[str]) -> str:
    """The queue of a session among `queues`: the highest keyed hash wins, the same in every process."""
    entity, session_id = session
    key = f"{entity.lower()}\0{session_id}".encode()
    return max(queues, key=lambda queue: hashlib.blake2b(key + b"\0" + queue.lower().encode(), digest_size=8).digest())
