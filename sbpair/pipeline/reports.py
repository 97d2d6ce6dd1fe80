"""What archive, replay, reconcile and replication-audit report and print with -o json; without Spark and Arrow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from sbpair.core.serialization import AS_TIME, HIDDEN, INLINED, named, published, rounded
from sbpair.pipeline.spans import Span


@dataclass(slots=True)
class ArchiveReport:
    """What a run did. `spans`: what it found not yet covered."""

    pair: str
    archive: str
    run: str
    spans: tuple[Span, ...] = field(default=(), metadata=named("not_archived_before"))
    rows: int = 0
    bytes: int = 0
    files: int = 0
    retried: int = 0
    """Units that needed more than one attempt."""
    throttled: int = 0
    """How often the namespace refused a page because it was too busy; not counted into a URI, where Spark writes."""
    waited_seconds: float = field(default=0.0, metadata=rounded(3))
    """Of all tasks together: how long they waited for the namespace's limits, or for what --reserve leaves."""
    settled: int = 0
    gone: int = 0
    """Archived messages that somebody else had taken out of their queue before they were completed here."""
    left: dict[str, int] = field(default_factory=dict)
    """Archived messages that could not be completed, by reason."""
    compacted: int = 0
    unnamed: int = 0
    """Files under `data/` that do not belong to the archive, or no longer: replaced ones, and those of a run that was
    killed. They stay for a day; a glob over `data/` reads their messages too."""
    per_queue: dict[str, int] = field(default_factory=dict)
    total_rows: int = 0
    seconds: float = field(default=0.0, metadata=rounded(3))
    dry_run: bool = False


@dataclass(slots=True)
class FollowReport:
    """What a run that kept an archive up to date has done."""

    pair: str
    archive: str
    rounds: int = 0
    """That archived or removed something."""
    rows: int = 0
    settled: int = 0
    """Archived messages that were removed from their queues."""
    left: dict[str, int] = field(default_factory=dict)
    """Archived messages that the last round could not remove, by reason."""
    total_rows: int = 0
    ended: str = ""
    """time (`--for`), idle (`--until-idle`), interrupted or terminated."""
    seconds: float = field(default=0.0, metadata=rounded(3))


@dataclass(frozen=True, slots=True)
class Imported:
    """A file of a drain that was added; no rows if it had been added before."""

    archive: str
    imported: Path
    rows: int
    files: int
    unreadable: int = 0
    """Lines that held no message; they are in the folder `unsent` beside the file."""


ArchivePrinted = ArchiveReport | Imported


@dataclass(slots=True)
class ReplayReport:
    """What became of the rows that matched. In a dry run `outcomes` says what would."""

    pair: str
    run: str
    ledger: str
    matched: int = 0
    already_done: int = 0
    """In the ledger from earlier runs."""
    duplicates: int = 0
    waiting: int | None = 0
    """Of those to be sent: still in their backlog queues or these's dead-letter queues. None: nobody looked."""
    gone: int | None = 0
    """Of those to be sent: no longer in their queues, although no archive took them out. None: nobody looked."""
    outcomes: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    per_destination: dict[str, int] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    """By destination, what was left because only the pair's configured entities are sent to."""
    refused_files: tuple[str, ...] = ()
    """Files of the ledger's folder that hold what was refused, as `restore` takes it."""
    resent: int = 0
    throttled: int = 0
    """How often the namespace refused a batch because it was too busy."""
    waited_seconds: float = field(default=0.0, metadata=rounded(3))
    """As of an archive."""
    skipped_by_retry: int = 0
    seconds: float = field(default=0.0, metadata=rounded(3))
    dry_run: bool = False

    @property
    def forwarded(self) -> int:
        return self.outcomes.get("forwarded", 0)


@dataclass(frozen=True, slots=True)
class Explained:
    plan: str
    """Spark's."""


ReplayPrinted = ReplayReport | Explained


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """Messages by the verdicts that are findings, the gravest first."""

    unaccounted: int = 0
    taken: int = 0
    waiting: int = 0
    altered: int = 0
    doubled: int = 0


FINDINGS = tuple(one.name for one in fields(FindingCounts))


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that has not exactly one outcome."""

    verdict: str
    pair: str
    queue: str
    dead_letter: bool
    sequence_number: int
    message_id: str | None
    session_id: str | None
    destination: str | None
    why: str
    ledgers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """Messages by verdict, outcomes of the good ones, and the findings (up to a number) one by one, as
    `pipeline reconcile -o json` prints it."""

    messages: int
    verdicts: Mapping[str, int] = field(metadata=HIDDEN)
    """Those that are no finding as well: `ok`, `arrived`."""
    outcomes: Mapping[str, int]
    perhaps_doubled: int
    not_archived: int
    not_looked_at: Mapping[str, str]
    """Places that could not be looked into, and why."""
    listed: tuple[Finding, ...]

    @published
    def counts(self) -> FindingCounts:
        return FindingCounts(**{kind: self.verdicts.get(kind, 0) for kind in FINDINGS})

    @published
    def findings(self) -> int:
        return sum(self.verdicts.get(kind, 0) for kind in FINDINGS)


# What `sbpair pipeline replication-audit -o json` prints. Needs neither Spark nor Arrow.


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
        rows = [one.verdicts for one in self.destinations]
        return VerdictCounts(**{name: sum(getattr(one, name) for one in rows) for name in VERDICTS})

    @published
    def findings(self) -> int:
        counts = self.counts
        return sum(getattr(counts, name) for name in VERDICTS)
