"""What an audit says: findings with a severity, checks that could not run, and how a check is described."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.core.access import spoken_name
from sbpair.core.entities import NamespaceFacts, TopicFacts
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import EntitySeen, NamespaceSnapshot, QueueSeen, Snapshot
from sbpair.core.names import BacklogName, ByName, by_path, name_matches, parse_backlog_queue_path, same_name
from sbpair.core.outcome import Severity as Severity
from sbpair.core.pairing import Pair
from sbpair.core.serialization import AS_TIME, HIDDEN, column
from sbpair.core.words import counted, listed, ranges
from sbpair.service import Tier


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. `subject` is a queue path, an entity, or a namespace host."""

    code: str
    severity: Severity
    subject: str
    message: str
    remedy: str
    command: str | None = field(init=False)
    """What to run first, of the remedy; None if no command helps."""
    advice: str = field(init=False)
    """The rest of the remedy, in words."""

    def __post_init__(self) -> None:
        first, *more = self.remedy.splitlines() or [""]
        command = first if first.startswith("sbpair ") else None
        object.__setattr__(self, "command", command)
        object.__setattr__(self, "advice", " ".join(more if command else (first, *more)))


def in_one_line(remedy: str) -> str:
    """A remedy for a cell or a line: what is no command is a comment behind it, so that the whole can be pasted."""
    first, *more = remedy.splitlines() or [""]
    return f"{first}  # {' '.join(more)}" if more and first.startswith("sbpair ") else " ".join((first, *more))


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings of one check and severity in one pair: ten missing queues are one thing to do."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def subject(self) -> str:
        """`contoso-weu/x-servicebus-transfer/0-9`, or the first few by name."""
        names = [parse_backlog_queue_path(one.subject) for one in self.findings]
        backlog = [name for name in names if name is not None]
        if len(backlog) == len(self.findings) and len({name.primary_label for name in backlog}) == 1:
            return f"{backlog[0].path.rpartition('/')[0]}/{ranges([name.index for name in backlog])}"
        return listed(dict.fromkeys(one.subject for one in self.findings))

    @property
    def message(self) -> str:
        """The common one; the first one's with how many there are besides, where they differ."""
        if all(one.message == self.first.message for one in self.findings):
            return self.first.message
        others = counted(len(self.findings) - 1, "similar finding")
        return f"{self.first.message.rstrip('.')}. And {others}."

    @property
    def remedy(self) -> str:
        """The common one; else the first one's, with where the others are told."""
        if all(one.remedy == self.first.remedy for one in self.findings):
            return self.first.remedy
        return f"{self.first.remedy} (the others with -v)"


def alike(findings: Sequence[Finding]) -> tuple[FindingGroup, ...]:
    """Findings of one check and severity together, in the order of the first of each."""
    found: dict[tuple[str, Severity], list[Finding]] = {}
    for one in findings:
        found.setdefault((one.code, one.severity), []).append(one)
    return tuple(FindingGroup(tuple(one)) for one in found.values())


@dataclass(frozen=True, slots=True)
class Skipped:
    """A check (or part of it) that could not run; never to be read as a pass."""

    code: str
    reason: str
    arm_only: bool = False
    """The API that was asked never tells the fact; the next audit by it is skipped as well."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit: findings, worst first, then what could not be checked."""

    pair: str
    taken_at: float = field(metadata=AS_TIME)
    """When the snapshot was taken, UTC epoch seconds."""
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    checks: tuple[str, ...]
    """Codes of the checks that ran, in part or in full."""
    ignored: int = 0
    """Findings left out because of `ignore`."""

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity.at_least(severity))

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), key=lambda one: one.rank, default=None)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where checks begin to complain. Durations in seconds, shares between 0 and 1."""

    stranded_warning_seconds: float = 3600.0
    """Four of the syphon's documented 15-minute polls without anybody fetching the message."""
    stranded_error_seconds: float = 86_400.0
    near_full_share: float = 0.8
    full_share: float = 0.95
    partitioned_entities: int = 90
    clock_skew_warning_seconds: float = 5.0
    clock_skew_error_seconds: float = 60.0
    near_quota_share: float = 0.9
    near_time_to_live_share: float = 0.8
    short_duplicate_window_seconds: float = 60.0
    """A sender's own retries take so long: `azure-servicebus` waits up to a minute for one answer."""
    unused_key_seconds: float = 90 * 86_400.0


class CannotRun(Exception):
    """Raised by a check for want of a fact; what it found before stands."""


class OnlyArmTells(CannotRun):
    """The fact is one that the data-plane administration API does not have."""


@dataclass(frozen=True, slots=True)
class CheckedSide:
    """One namespace for a check: asking for a fact that was not read ends the check as skipped, with the reason."""

    role: str
    seen: NamespaceSnapshot
    name: str
    """For people: see `spoken_name`."""
    _by_path: ByName[QueueSeen] = field(repr=False)

    @classmethod
    def of(cls, role: str, seen: NamespaceSnapshot, label: str) -> "CheckedSide":
        return cls(role, seen, spoken_name(label, seen.host), by_path(seen.queues or ()))

    def unread(self, subject: str) -> CannotRun:
        """Why something was not read; in the same words for all of a namespace that does not answer."""
        parts = ("namespace", "queues", "topics", "entities")
        silent = (entry for entry in self.seen.unread if entry.exit_name == "unreachable" and entry.subject in parts)
        whole = next(silent, None)
        if whole is not None:
            return CannotRun(f"the {self.role} {self.name} does not answer: {whole.reason}")
        reason = self.seen.why_unread(subject) or self.seen.why_unread("namespace") or "it was not read"
        return CannotRun(f"{subject} of the {self.role} {self.name}: {reason}")

    def facts(self) -> NamespaceFacts:
        if self.seen.facts is None:
            raise self.unread("namespace")
        return self.seen.facts

    def tier(self) -> Tier:
        tier = self.facts().tier
        if tier is None:
            raise CannotRun(f"the {self.facts().control_plane} API does not include the tier of {self.name}")
        return tier

    def tier_if_known(self) -> Tier | None:
        return self.seen.facts.tier if self.seen.facts else None

    def queues(self) -> tuple[QueueSeen, ...]:
        if self.seen.queues is None:
            raise self.unread("queues")
        return self.seen.queues

    def topics(self) -> tuple[TopicFacts, ...]:
        if self.seen.topics is None:
            raise self.unread("topics")
        return self.seen.topics

    def queue(self, path: str) -> QueueSeen | None:
        self.queues()
        return self._by_path.get(path)

    def topic(self, path: str) -> TopicFacts | None:
        self.topics()
        return self.seen.topic(path)

    def backlog(self, label: str) -> list[tuple[BacklogName, QueueSeen]]:
        """Backlog-looking queues named for that primary."""
        self.queues()
        return [(name, queue) for name, queue in self.seen.backlog() if same_name(name.primary_label, label)]


@dataclass(frozen=True, slots=True)
class View:
    """What a check looks at."""

    snapshot: Snapshot
    pair: Pair
    primary: CheckedSide
    secondary: CheckedSide
    others: Sequence[Pair]
    """The other pairs of the configuration."""
    thresholds: Thresholds
    found: tuple[EntitySeen, ...] | None = None
    """All entities, of a namespace that is looked at alone; there is no secondary then."""

    def entities(self) -> tuple[EntitySeen, ...]:
        if self.found is None:
            raise self.primary.unread("entities")
        return self.found

    def expected(self) -> list[QueueSeen]:
        """The pair's backlog queues that exist, index 0 first."""
        found = (self.secondary.queue(path) for path in self.pair.backlog_paths())
        return [queue for queue in found if queue is not None]

    def own_backlog(self) -> list[tuple[BacklogName, QueueSeen]]:
        """All backlog queues named for this primary on the secondary, also the extra ones."""
        return self.secondary.backlog(self.pair.primary.label)


@dataclass(frozen=True, slots=True)
class Found:
    """What a check yields; code, and severity unless given, come from the check."""

    subject: str
    message: str
    severity: Severity | None = None
    remedy: str | None = None


class Scope(StrEnum):
    """What a check is of."""

    PAIR = "pair"
    NAMESPACE = "namespace"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Check:
    """A check as data. `remedy` may use `{pair}` and `{subject}`; its first line is the command to run, if any."""

    code: str = field(metadata=column("Code"))
    title: str = field(metadata=column("What it finds"))
    severity: Severity = field(metadata=column("Severity", colours=True))
    explanation: str
    remedy: str
    find: Callable[[View], Iterator[Found]] = field(repr=False, metadata=HIDDEN)
    scope: Scope = field(default=Scope.PAIR, metadata=column("Of"))

    def run(self, view: View) -> tuple[list[Finding], Skipped | None]:
        """Findings, and the reason if it had to stop for want of a fact."""
        findings: list[Finding] = []
        try:
            for found in self.find(view):
                findings.append(self._finding(found, view))
        except CannotRun as stop:
            return findings, Skipped(self.code, str(stop), isinstance(stop, OnlyArmTells))
        return findings, None

    def _finding(self, found: Found, view: View) -> Finding:
        remedy = found.remedy or self.remedy
        if view.snapshot.alone:  # these commands look at pairs
            remedy = re.sub(r"sbpair (doctor|config show) \{pair\}", r"sbpair \1", remedy)
        remedy = remedy.format(pair=view.pair.name, subject=found.subject)
        return Finding(self.code, found.severity or self.severity, found.subject, found.message, remedy)


@dataclass(frozen=True, slots=True)
class Ignore:
    """A known finding to leave out: a code and a shell pattern of subjects."""

    code: str
    pattern: str = "*"

    @classmethod
    def parse(cls, text: str, known: Collection[str]) -> "Ignore":
        """Of `SBP002` or `SBP002:contoso/*`.

        Raises:
            UsageError: no such check.
        """
        code, _, pattern = text.partition(":")
        code = code.strip().upper()
        if code not in known:
            raise UsageError(f"There is no check {code!r}.", hint="List them with: sbpair audit --list-checks")
        return cls(code, pattern.strip() or "*")

    def covers(self, finding: Finding) -> bool:
        return finding.code == self.code and name_matches(finding.subject, self.pattern)
