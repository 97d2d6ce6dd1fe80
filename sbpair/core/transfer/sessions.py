"""The sessions of an entity: what they hold, and their states."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sbpair.core.message import Received, State
from sbpair.core.serialization import Time, column, iso_time
from sbpair.core.words import counted
from sbpair.service import session_key


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session with messages or a state."""

    session_id: str = field(metadata=column("Session"))
    active: int = field(metadata=column("Active", counts=True))
    deferred: int = field(metadata=column("Deferred", counts=True))
    scheduled: int = field(metadata=column("Scheduled", counts=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    locked: bool | None = field(default=None, metadata=column("Locked"))
    """By a receiver; None: nobody has tried."""
    state_bytes: int | None = field(default=None, metadata=column("State bytes", right=True))
    """0: it has none; None: nobody has looked, or it is locked."""


@dataclass(frozen=True, slots=True)
class SessionList:
    """The sessions of an entity, as `session list -o json` prints them."""

    namespace: str
    entity: str
    sessions: tuple[SessionFacts, ...]

    @property
    def closing(self) -> str:
        """The last sentence."""
        locked = sum(one.locked is True for one in self.sessions)
        active = sum(one.active for one in self.sessions)
        tried = "" if all(one.locked is None for one in self.sessions) else f", {locked:,} of them locked by receivers"
        sessions = counted(len(self.sessions), "session")
        return f"{self.entity} has {sessions} with {counted(active, 'active message')}{tried}."


@dataclass(frozen=True, slots=True)
class SessionState:
    """One session with its state, and what it was before a command changed it."""

    namespace: str
    entity: str
    session: SessionFacts
    state_text: str | None
    """As text, where it is UTF-8; otherwise `state_hex` has it."""
    state_hex: str | None
    changed: bool = False
    previous_hex: str | None = None
    """What the command has replaced."""


def sessions_of(received: Iterable[Received], with_state: Iterable[str]) -> dict[str, SessionFacts]:
    """By `session_key`: those that messages belong to, and those that only have a state."""
    found: dict[str, SessionFacts] = {}
    counts: dict[str, list[Received]] = {}
    for message in received:
        if message.session_id is not None:
            counts.setdefault(session_key(message.session_id), []).append(message)
    for key, messages in counts.items():
        times = [message.enqueued_at for message in messages if message.enqueued_at is not None]
        states = [message.state for message in messages]
        found[key] = SessionFacts(
            messages[0].session_id or "",
            states.count(State.ACTIVE),
            states.count(State.DEFERRED),
            states.count(State.SCHEDULED),
            iso_time(min(times, default=None)),
        )
    for spelled in with_state:
        found.setdefault(session_key(spelled), SessionFacts(spelled, 0, 0, 0, None))
    return found
