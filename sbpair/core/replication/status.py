"""What a journal knows of the sessions of active/active, and what became of the copies that a consumer received: for
people, and for `sbpair replicate status` and `consume` with -o json.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sbpair.core.durations import format_duration
from sbpair.core.errors import ServiceError
from sbpair.core.outcome import Exit, gravest
from sbpair.core.replication.ownership import SessionEntry, SessionState, Terms
from sbpair.core.serialization import AS_TIME, HIDDEN, INLINED, column, iso_time, metric, published, rounded
from sbpair.core.words import counted, with_hint


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
    by_state: Mapping[SessionState, int] = field(metadata=metric("sbpair_replicated_sessions", label="state"))
    completed_messages: int = field(metadata=metric("sbpair_replicated_completed_messages"))
    failed_messages: int = field(metadata=metric("sbpair_replicated_failed_messages"))
    stuck: int = field(metadata=metric("sbpair_replicated_stuck_sessions"))
    """Sessions that somebody should look at."""
    sessions: tuple[SessionShown, ...]
    about: str = field(default="", metadata=HIDDEN)
    """What the journal says of itself."""
    not_shown: int = field(default=0, metadata=HIDDEN)
    """Sessions beyond the limit."""
    stuck_because: tuple[tuple[str, str], ...] = field(default=(), metadata=HIDDEN)
    """Every stuck session, shown or not, and why it is."""


# What a consumer did.

_DEAD_LETTERED = ("failed", "dead-lettered")


@dataclass(frozen=True, slots=True)
class Copies:
    """How many copies from this side had this result (see `core.events.MessageHandled`)."""

    side: str = field(metadata=column("Side"))
    result: str = field(metadata=column("Result"))
    copies: int = field(metadata=column("Copies", counts=True))


@dataclass(frozen=True, slots=True)
class NotRead:
    """A side that did not answer in the end: that nothing came from it means nothing."""

    side: str
    error: ServiceError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What became of the copies that were received."""

    counts: tuple[Copies, ...]
    seconds: float = field(metadata=rounded(3))
    ended_by: str
    """`stop`, `idle`, `count`, `time`."""
    not_read: tuple[NotRead, ...] = ()
    second_copies_out: int | None = None
    """Messages finished here whose second copy is still to come. Where a side or a topic could not be browsed to its
    end: was not met, so some may never have had one. None: not counted, because one side alone was read, or the run had
    no end of its own."""
    scheduled: int | None = None
    """Other messages that lie scheduled in the queues or topics. None: not known."""
    next_scheduled_at: float | None = field(default=None, metadata=AS_TIME)
    """When the first scheduled message comes, UTC epoch seconds; None: none that is known of."""
    session_requests: int = field(default=0, metadata=HIDDEN)
    """How often a namespace was asked for the next session."""

    def total(self, result: str) -> int:
        return sum(one.copies for one in self.counts if one.result == result)

    @published
    def completed(self) -> int:
        return self.total("completed")

    @published
    def failed(self) -> int:
        return self.total("failed")

    @published
    def dead_lettered(self) -> int:
        """Copies that went to a dead-letter queue: they failed permanently, came too late or are malformed."""
        return sum(map(self.total, _DEAD_LETTERED))

    @property
    def dead_lettered_on(self) -> tuple[str, ...]:
        """The sides in whose dead-letter queues these copies are."""
        return tuple(sorted({one.side for one in self.counts if one.result in _DEAD_LETTERED and one.copies}))

    @property
    def exit(self) -> Exit:
        """Where idleness or the time ended it, what was not read comes before what was dead-lettered: unreachable,
        denied, partial; failed if nothing was read at all. A second copy that is still to come is left: partial."""
        unread = gravest(one.error.exit_name for one in self.not_read if self.ended_by in ("idle", "time"))
        if unread in (Exit.UNREACHABLE, Exit.DENIED):
            return unread
        if unread and not self.counts:
            return Exit.FAILED
        return Exit.PARTIAL if unread or self.dead_lettered or self.second_copies_out else Exit.OK


@dataclass(frozen=True, slots=True)
class Consumed:
    """What `replicate consume -o json` prints."""

    pair: str
    queue: str
    report: ConsumeReport = field(metadata=INLINED)

    def summary(self) -> str:
        """What became of all, and where the dead letters are."""
        report = self.report
        said = f"{report.completed:,} completed, {report.failed:,} failed, "
        said += f"{report.total('duplicate'):,} settled without processing, because they were finished."
        if report.dead_lettered:
            copies = "1 copy was" if report.dead_lettered == 1 else f"{report.dead_lettered:,} copies were"
            looks = {
                "primary": f"sbpair peek {self.pair} --entity {self.queue} --side primary --dlq",
                "secondary": f"sbpair peek {self.pair} --entity {self.queue} --side secondary --dlq",
            }
            said += f" {copies} dead-lettered; see why: {' and '.join(looks[side] for side in report.dead_lettered_on)}"
        return said

    def notes(self) -> Iterator[str]:
        """What was not read; what is still to come, and what settles it."""
        report = self.report
        out, scheduled = report.second_copies_out, report.scheduled
        for one in report.not_read:
            yield f"Not read: {one.side}: {with_hint(one.error.message, one.error.hint)}"
        if out:
            copies = "The second copy of 1 message" if out == 1 else f"The second copies of {out:,} messages"
            state = f"{'is' if out == 1 else 'are'} still to come"
            if scheduled is None:
                state = (
                    f"{'was' if out == 1 else 'were'} not met: scheduled for later, or accepted by one side only; not "
                    "every queue or topic could be browsed"
                )
            yield f"{copies} {state}. The same command settles what comes."
        if scheduled:
            yield f"{counted(scheduled, 'other message' if out else 'message')} of {self.queue} will come later."
        if (out or scheduled) and report.next_scheduled_at is not None:
            yield f"The first scheduled message comes at {iso_time(report.next_scheduled_at)}."
