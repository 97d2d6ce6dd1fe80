"""What exists at one moment: both namespaces of a pair, how each fact was obtained, and what could not be read.

Everything audit, plan, status and cost say comes from this value alone, so a saved snapshot can be
analysed later and elsewhere. It never holds a key; of a connection string only the rule's name is kept.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from sbpair.core.access import NamespaceAccess, spoken_name
from sbpair.core.entities import Counts, EntityFacts, NamespaceFacts, QueueFacts, TopicFacts
from sbpair.core.names import BacklogName, parse_backlog_queue_path, same_name
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.serialization import Document
from sbpair.service import CREDITS_PER_MANAGEMENT_CALL

FORMAT_VERSION = 1
ESSENTIAL_SUBJECTS = ("namespace", "queues", "topics", "entities")
"""What has to be readable of a namespace; the rest only leaves single checks out."""
NOT_ASKED = "not-asked"
"""Error code of a fact that nobody wanted to know."""


class How(StrEnum):
    """How a queue's facts were obtained, least sure first.

    Lists leave entities out or repeat old ones on large namespaces, so what would become a finding is read again.
    """

    LISTED = "listed"
    CONFIRMED = "confirmed"
    """Read again one by one."""


@dataclass(frozen=True, slots=True)
class Peeked:
    """What browsing a queue and its dead-letter sub-queue showed; a count of 0 can be wrong under throttling."""

    active: bool
    dead_letter: bool
    oldest_enqueued_at: float | None = None
    """When the oldest browsed message was put into the queue, UTC epoch seconds."""
    destinations: tuple[str, ...] = ()
    """Where those that were browsed are to go."""
    messages: int = 0
    """How many were browsed."""

    @property
    def empty(self) -> bool:
        return not (self.active or self.dead_letter)


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue with the sureness of its facts; `peeked` is None where nobody browsed it."""

    facts: QueueFacts
    how: How = How.LISTED
    peeked: Peeked | None = None

    @property
    def path(self) -> str:
        return self.facts.path

    @property
    def backlog_name(self) -> BacklogName | None:
        return parse_backlog_queue_path(self.facts.path)

    @property
    def empty(self) -> bool:
        """No message of any kind is known to be in it."""
        return self.facts.counts.total == 0 and (self.peeked is None or self.peeked.empty)

    @property
    def contents(self) -> str:
        """`3 active, 1 dead-letter`, or `nothing`; says so where only a browse saw messages."""
        if self.facts.counts.total == 0 and self.peeked is not None and not self.peeked.empty:
            return "messages that the counts do not show"
        return describe_counts(self.facts.counts)


@dataclass(frozen=True, slots=True)
class EntitySeen:
    """A queue, topic or subscription of a namespace that is looked at alone."""

    facts: EntityFacts
    oldest_enqueued_at: float | None = None
    """When its first message was put there, UTC epoch seconds; None: it has none, or was not browsed."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A fact that could not be read. `subject`: namespace, queues, topics, or an entity path."""

    subject: str
    error_code: str
    reason: str
    exit_name: str = "failed"
    """Name in the exit code table: denied, unreachable or failed."""
    hint: str = ""
    """The next step, a sentence."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Management calls made: one for an entity, and one for a page of a listing, which is 100 entities."""

    namespace_reads: int = 0
    list_pages: int = 0
    gets: int = 0
    peeks: int = 0
    """Browses are message operations, not management calls."""

    @property
    def management(self) -> int:
        return self.namespace_reads + self.list_pages + self.gets

    @property
    def throttling_credits(self) -> int:
        """Credits used: 10 a management call, 1 a browse (Service Bus throttling)."""
        return self.management * CREDITS_PER_MANAGEMENT_CALL + self.peeks

    def __add__(self, other: "Calls") -> "Calls":
        return Calls(
            self.namespace_reads + other.namespace_reads,
            self.list_pages + other.list_pages,
            self.gets + other.gets,
            self.peeks + other.peeks,
        )


@dataclass(frozen=True, slots=True)
class NamespaceSnapshot:
    """One namespace. None means "not read" (the reason is in `unread`), which is not the same as "none there"."""

    label: str
    host: str
    auth: str
    """Name of the credential used."""
    key_name: str | None = None
    """Name of the shared access rule, for a connection string; never its key."""
    facts: NamespaceFacts | None = None
    observed_at: float | None = None
    """Our clock when the namespace answered, to compare with its `service_time`."""
    queues: tuple[QueueSeen, ...] | None = None
    topics: tuple[TopicFacts, ...] | None = None
    absent: tuple[str, ...] = ()
    """Paths that a get confirmed not to exist."""
    unread: tuple[Unread, ...] = ()
    calls: Calls = Calls()

    def queue(self, path: str) -> QueueSeen | None:
        """The queue of that path, whatever the case."""
        return next((queue for queue in self.queues or () if same_name(queue.path, path)), None)

    def topic(self, path: str) -> TopicFacts | None:
        return next((topic for topic in self.topics or () if same_name(topic.path, path)), None)

    def backlog(self) -> Iterator[tuple[BacklogName, QueueSeen]]:
        """Every queue with the name of a backlog queue, of whichever primary, ordered by primary and index."""
        named = [(name, queue) for queue in self.queues or () if (name := queue.backlog_name) is not None]
        return iter(sorted(named, key=lambda item: (item[0].primary_label, item[0].index)))

    def why_unread(self, subject: str) -> str | None:
        """Reason why `subject` could not be read, if so."""
        return next((entry.reason for entry in self.unread if entry.subject == subject), None)


@dataclass(frozen=True, slots=True)
class PairFields:
    """The pair as configured when the snapshot was taken, without credentials."""

    name: str
    primary_host: str
    secondary_host: str
    primary_label: str
    secondary_label: str
    backlog_queue_count: int
    entities: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    environment: str | None = None

    @classmethod
    def of(cls, pair: Pair) -> "PairFields":
        return cls(
            name=pair.name,
            primary_host=pair.primary.host,
            secondary_host=pair.secondary.host,
            primary_label=pair.primary.label,
            secondary_label=pair.secondary.label,
            backlog_queue_count=pair.options.backlog_queue_count,
            entities=pair.entities,
            protected=pair.protected,
            environment=pair.environment,
        )

    def to_pair(self) -> Pair:
        """A pair for analysing a saved snapshot where no configuration is at hand. It cannot connect to anything."""
        return Pair(
            name=self.name,
            primary=NamespaceAccess(label=self.primary_label, host=self.primary_host),
            secondary=NamespaceAccess(label=self.secondary_label, host=self.secondary_host),
            options=SendAvailabilityOptions(backlog_queue_count=self.backlog_queue_count),
            entities=self.entities,
            protected=self.protected,
            environment=self.environment,
        )


@dataclass(frozen=True, slots=True)
class Snapshot(Document):
    """Both namespaces of a pair at one moment (`taken_at`, UTC epoch seconds)."""

    file: ClassVar = ("snapshot", FORMAT_VERSION)
    format_version: int
    taken_at: float
    pair: PairFields
    primary: NamespaceSnapshot
    secondary: NamespaceSnapshot

    @property
    def calls(self) -> Calls:
        return self.primary.calls + self.secondary.calls

    @property
    def alone(self) -> bool:
        """It is of one namespace, which stands as its primary, and of no pair."""
        return not self.pair.secondary_host

    def essential_unread(self) -> list[tuple[str, Unread]]:
        """(namespace, what) of whole parts of a namespace that could not be read."""
        sides = ((self.pair.primary_label, self.primary), (self.pair.secondary_label, self.secondary))
        return [
            (spoken_name(label, side.host), entry)
            for label, side in sides
            for entry in side.unread
            if entry.subject in ESSENTIAL_SUBJECTS
        ]

    def own_backlog(self) -> list[QueueSeen] | None:
        """The backlog queues of its own primary; None where the secondary's queues were not read."""
        if self.secondary.queues is None:
            return None
        label = self.pair.primary_label.lower()
        return [queue for name, queue in self.secondary.backlog() if name.primary_label == label]

    def digest(self) -> str:
        """SHA-256 of the canonical JSON form: ties a plan to the snapshot it was made from."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def describe_counts(counts: Counts) -> str:
    """`3 active, 1 dead-letter`, or `nothing`."""
    named = {
        "active": counts.active,
        "dead-letter": counts.dead_letter,
        "scheduled": counts.scheduled,
        "transfer": counts.transfer,
        "transfer dead-letter": counts.transfer_dead_letter,
    }
    return ", ".join(f"{count:,} {name}" for name, count in named.items() if count) or "nothing"
