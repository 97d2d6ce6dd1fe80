"""What is to become of one received message: sent to the primary, settled as it is, or left alone."""

import fnmatch
from collections import Counter
from collections.abc import Callable

from sbpair.core.errors import MessageError
from sbpair.core.message import PING_CONTENT_TYPE, Disposition, Received
from sbpair.core.rewrite import TtlMode, for_primary, is_ping
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.state import Finish, Forward, Leave, Verdict
from sbpair.core.where import Where

FILTERED_OUT = "filtered out"
NO_REASON = "(no reason)"
UNREADABLE_PATH = "(unknown)"
_PING_BYTES = PING_CONTENT_TYPE.encode()


class Classifier:
    """Judges messages by the options of one run.

    Args:
        now: the present moment in UTC epoch seconds.
        verbatim: keep the exact bytes (an archive) instead of restoring the message.
        destination: send everything there instead of to where it was to go.
        path: shell pattern of destinations, `session` a session id, `where` a filter; all have to match.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        ttl: TtlMode = TtlMode.FULL,
        from_dead_letter: bool = False,
        verbatim: bool = False,
        destination: str | None = None,
        path: str | None = None,
        session: str | None = None,
        where: Where | None = None,
    ) -> None:
        self._now = now
        self._ttl = ttl
        self._from_dead_letter = from_dead_letter
        self._verbatim = verbatim
        self._destination = destination
        self._path = path.lower() if path is not None else None
        self._session = session
        self._where = where
        self._filtering = path is not None or session is not None or where is not None
        self._noted: set[tuple[str, int]] = set()
        self.original_faults: Counter[str] = Counter()
        """Why the messages that could be sent on from a dead-letter queue had been put there."""

    def __call__(self, received: Received) -> Verdict:
        looked_up = describe(received.payload) if self._filtering or self._verbatim or self._from_dead_letter else None
        if self._filtering and looked_up is not None and not self._wanted(looked_up, received):
            return Leave(FILTERED_OUT)
        if self._verbatim and looked_up is not None:
            return Forward(received.payload, looked_up.destination or UNREADABLE_PATH)
        try:
            verdict = self._for_primary(received)
        except MessageError as error:
            return Finish(Disposition.DEAD_LETTER, "dead-lettered", error.reason, error.description)
        if self._from_dead_letter and looked_up is not None and isinstance(verdict, Forward):
            self._note_fault(received, looked_up)
        return verdict

    def _note_fault(self, received: Received, summary: MessageSummary) -> None:
        """Count each message once, however often it is received or browsed."""
        place = received.source, received.sequence_number
        if place not in self._noted:
            self._noted.add(place)
            self.original_faults[summary.dead_letter_reason or NO_REASON] += 1

    def _for_primary(self, received: Received) -> Verdict:
        # Cheap test first: to look into every message twice would cost more than sending it.
        if _PING_BYTES in received.payload and is_ping(received.payload):
            return Finish(Disposition.COMPLETE, "ping")
        restored = for_primary(
            received.payload,
            now=self._now(),
            enqueued_at=received.enqueued_at,
            ttl=self._ttl,
            from_dead_letter=self._from_dead_letter,
        )
        return Forward(
            restored.payload, self._destination or restored.destination, restored.session_id, restored.partition_key
        )

    def _wanted(self, summary: MessageSummary, received: Received) -> bool:
        if self._path is not None and not fnmatch.fnmatchcase((summary.destination or "").lower(), self._path):
            return False
        if self._session is not None and summary.session_id != self._session:
            return False
        return self._where is None or self._where.matches(summary, received)
