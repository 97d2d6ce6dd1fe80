"""What a journal knows of the sessions of active/active, for people and for `sbpair replicate status -o json`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbpair.core.durations import format_duration
from sbpair.core.replication.ownership import SessionEntry, SessionState, Terms
from sbpair.core.serialization import HIDDEN, column


@dataclass(frozen=True, slots=True)
class JournalStatusRequest:
    """Which sessions are told; all are counted."""

    destination: str | None = None
    """Only those of this queue or TOPIC/Subscriptions/NAME, also in what is counted. None: of all."""
    state: SessionState | None = None
    only_stuck: bool = False
    limit: int = 100
    terms: Terms = field(default_factory=Terms)
    """Those of the consumers: by them a session is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShown:
    """A session of the journal; `lease` and `since` are durations in words."""

    destination: str = field(metadata=column("Queue"))
    session: str = field(metadata=column("Session"))
    state: SessionState = field(metadata=column("State"))
    message: str | None = field(metadata=column("Message"))
    """Id of the one being processed."""
    attempts: int | None = field(metadata=column("Attempts", right=True))
    owner: str | None = field(metadata=column("Owner"))
    lease: str | None = field(metadata=column("Lease"))
    """What is left of it."""
    completed: int = field(metadata=column("Completed", right=True))
    failed: int = field(metadata=column("Failed", right=True))
    since: str = field(metadata=column("Since"))
    """How long ago it last changed."""
    stuck: str | None = field(metadata=column("Stuck because"))
    """Why somebody should look at it."""

    @classmethod
    def of(cls, entry: SessionEntry, stuck: str | None, now: float) -> "SessionShown":
        current = entry.current
        return cls(
            destination=entry.destination,
            session=entry.session_id,
            state=entry.state,
            message=None if current is None else current.message_id,
            attempts=None if current is None else current.attempts,
            owner=entry.owner or None,
            lease=format_duration(max(0.0, entry.lease_until - now)) if entry.owner else None,
            completed=entry.completed_count,
            failed=entry.failed_count,
            since=format_duration(max(0.0, now - entry.updated_at)),
            stuck=stuck,
        )


@dataclass(frozen=True, slots=True)
class JournalStatus:
    journal: str
    by_state: Mapping[SessionState, int]
    completed_messages: int
    failed_messages: int
    stuck: int
    """Sessions that somebody should look at."""
    sessions: tuple[SessionShown, ...]
    about: str = field(default="", metadata=HIDDEN)
    """What the journal says of itself."""
    not_shown: int = field(default=0, metadata=HIDDEN)
    """Sessions beyond the limit."""
    stuck_because: tuple[tuple[str, str], ...] = field(default=(), metadata=HIDDEN)
    """Every stuck session, shown or not, and why it is."""
