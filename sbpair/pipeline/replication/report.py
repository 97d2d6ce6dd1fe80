"""What `sbpair pipeline replication-audit -o json` prints. Needs neither Spark nor Arrow."""

from dataclasses import dataclass, field, fields

from sbpair.core.serialization import AS_TIME, INLINED, published


@dataclass(frozen=True, slots=True)
class VerdictCounts:
    """Messages by what is wrong with them, the gravest first; one message may be counted under several."""

    missing: int = 0
    """A later message names it as accepted; it is in no archive and was not processed."""
    unprocessed: int = 0
    """It is in an archive, and the journal knows that it is not finished."""
    failed: int = 0
    """Its handler failed permanently, or the session went on without it."""
    out_of_order: int = 0
    """It began before a message that comes before it."""
    sides_differ: int = 0
    """It has no stamp, and the sides have it in different places of their order."""
    twice: int = 0
    """Its handler began more than once before it was completed."""
    one_side: int = 0
    """Only one side's archive has it, and the other side's copy was not settled either."""


VERDICTS = tuple(one.name for one in fields(VerdictCounts))


@dataclass(frozen=True, slots=True)
class AuditedDestination:
    """The messages of one queue or subscription, in archives or journal."""

    destination: str
    messages: int
    on_primary: int
    """Messages of which the primary's archives have a copy."""
    on_secondary: int
    stamped: int
    """Messages in the archives of sbpair's own senders."""
    unstamped: int
    """Messages in the archives of anybody else."""
    completed: int
    sent_again: int
    """Messages that one side has more than once."""
    unknown: int
    """Messages of which the journal may have forgotten that they were processed."""
    verdicts: VerdictCounts = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class ReplicationFinding:
    verdict: str
    destination: str
    session_id: str
    message_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationReport:
    """`as_of`: when the journal was read."""

    journal: str
    as_of: float = field(metadata=AS_TIME)
    copies: int
    """Messages in the archives, those without a session or message id left out."""
    without_ids: int
    """Messages without a session id or message id: nothing can be said of them."""
    unreadable: tuple[str, ...]
    """Where lines lie that are no messages: file and byte. What stands there counts as missing in that archive."""
    destinations: tuple[AuditedDestination, ...]
    listed: tuple[ReplicationFinding, ...]

    @published
    def messages(self) -> int:
        return sum(one.messages for one in self.destinations)

    @published
    def completed(self) -> int:
        return sum(one.completed for one in self.destinations)

    @published
    def unknown(self) -> int:
        return sum(one.unknown for one in self.destinations)

    @published
    def counts(self) -> VerdictCounts:
        every = (one.verdicts for one in self.destinations)
        rows = list(every)
        return VerdictCounts(**{name: sum(getattr(one, name) for one in rows) for name in VERDICTS})

    @published
    def findings(self) -> int:
        counts = self.counts
        return sum(getattr(counts, name) for name in VERDICTS)
