"""The backlog of a pair at one moment, and the only functions that may call it empty.

A backlog is every queue under the transfer prefix of the primary (`<primary>/x-servicebus-transfer/<i>`) that exists on
the secondary, whether the configuration counts on it or not: an application may have run with more queues than anybody
remembers. A queue is empty when nothing is in it that is active, dead-lettered, deferred or scheduled, by count and by
browse. What could not be read is part of the value, so that no sentence goes further than what was seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.core.durations import format_duration
from sbpair.core.outcome import Severity
from sbpair.core.serialization import named, published
from sbpair.core.words import counted

MISSES = 2
"""This many indexes in a row without a queue end the search upwards where nobody lists the queues."""


class FoundBy(StrEnum):
    """How the queues of a backlog were found."""

    LISTED = "listed"
    """The namespace listed them (needs Manage)."""
    PROBED = "probed"
    """Opened one after another, upwards, until two in a row did not exist."""
    CONFIGURED = "configured"
    """Neither was possible: these are the configured ones, and there may be more."""


class QueueState(StrEnum):
    MISSING = "missing"
    UNKNOWN = "unknown"
    WAITING = "waiting"
    DEAD_LETTERS = "dead letters"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class QueueContents:
    """One backlog queue. A number is None where it is not known; an unread queue has `error_code`."""

    queue: str
    configured: bool = True
    """Whether its index is below the pair's number of backlog queues."""
    missing: bool = False
    active: int | None = None
    """Messages a drain can receive. Where `deferred` is not known they are included, as the service counts them."""
    deferred: int | None = None
    scheduled: int | None = None
    dead_letter: int | None = None
    at_least: bool = False
    """The numbers were browsed and there are more; nobody counted them."""
    size_in_bytes: int | None = None
    oldest_enqueued_at: float | None = None
    """When the oldest message was put there, UTC epoch seconds; None if there is none or nobody could browse."""
    error_code: str | None = None
    exit_name: str = ""
    """Name in the exit code table of what kept it from being read."""
    detail: str = ""

    @property
    def known(self) -> bool:
        """Whether all that may lie in it has been counted or browsed."""
        return self.missing or (self.error_code is None and None not in (self.active, self.scheduled, self.dead_letter))

    @published
    def state(self) -> QueueState:
        if self.missing:
            return QueueState.MISSING
        if self.active or (self.active is None and self.oldest_enqueued_at is not None):
            return QueueState.WAITING
        if not self.known:
            return QueueState.UNKNOWN
        for number, state in (
            (self.dead_letter, QueueState.DEAD_LETTERS),
            (self.deferred, QueueState.DEFERRED),
            (self.scheduled, QueueState.SCHEDULED),
        ):
            if number:
                return state
        return QueueState.WAITING if self.oldest_enqueued_at is not None else QueueState.EMPTY


class BacklogVerdict(StrEnum):
    """What may be said of a backlog."""

    EMPTY = "empty"
    """Every queue that exists was read and holds nothing of any kind."""
    NO_QUEUES = "no-queues"
    WAITING = "waiting"
    """Messages that a drain would move."""
    SET_ASIDE = "set-aside"
    """No active messages; dead letters, deferred or scheduled ones remain."""
    UNKNOWN = "unknown"
    """Nothing was seen, and not everything could be read."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Every backlog queue of a pair at one moment (`taken_at`, UTC epoch seconds)."""

    pair: str
    taken_at: float
    queues: tuple[QueueContents, ...]
    found_by: FoundBy = field(default=FoundBy.LISTED, metadata=named("queues_found_by"))
    whole: bool = True
    """False where only some queues were asked for."""
    not_asked: tuple[str, ...] = ()
    """Queues that exist and were not asked for."""

    @property
    def existing(self) -> tuple[QueueContents, ...]:
        return tuple(queue for queue in self.queues if not queue.missing)

    @property
    def missing(self) -> tuple[QueueContents, ...]:
        return tuple(queue for queue in self.queues if queue.missing and queue.configured)

    @property
    def unread(self) -> tuple[QueueContents, ...]:
        return tuple(queue for queue in self.queues if not queue.known)

    @published
    def verdict(self) -> BacklogVerdict:
        """What may be said of the backlog as a whole."""
        states = {queue.state for queue in self.existing}
        if QueueState.WAITING in states:
            return BacklogVerdict.WAITING
        if not self.existing and not self.unread:
            return BacklogVerdict.NO_QUEUES if self.found_by is not FoundBy.CONFIGURED else BacklogVerdict.UNKNOWN
        if self.unread or self.found_by is FoundBy.CONFIGURED:
            return BacklogVerdict.UNKNOWN
        if states - {QueueState.EMPTY}:
            return BacklogVerdict.SET_ASIDE
        return BacklogVerdict.EMPTY if self.whole else BacklogVerdict.UNKNOWN

    @published
    def confirmed_empty(self) -> bool:
        """Whether every queue under the transfer prefix was read and holds nothing of any kind."""
        return self.verdict is BacklogVerdict.EMPTY

    @published
    def active(self) -> int | None:
        """Messages a drain can receive, in all queues; None if any queue's number is not known."""
        return self._in_all("active")

    @published
    def dead_letter(self) -> int | None:
        """None if any queue's number is not known, as with the next two."""
        return self._in_all("dead_letter")

    @published
    def deferred(self) -> int | None:
        return self._in_all("deferred")

    @published
    def scheduled(self) -> int | None:
        return self._in_all("scheduled")

    @published
    def at_least(self) -> bool:
        """Whether the totals are lower bounds."""
        return any(queue.at_least for queue in self.queues)

    @published
    def oldest_age_seconds(self) -> float | None:
        times = [queue.oldest_enqueued_at for queue in self.queues if queue.oldest_enqueued_at is not None]
        return max(0.0, self.taken_at - min(times)) if times else None

    @published
    def next_commands(self) -> tuple[str, ...]:
        """What deals with all that is there, in its order."""
        return tuple(command for one in advice(self) for command in one.commands)

    def _in_all(self, kind: str) -> int | None:
        numbers = [getattr(queue, kind) for queue in self.existing]
        return None if None in numbers else sum(numbers)

    def known(self, kind: str) -> int:
        """How many of that kind (`active`, `dead_letter`, `deferred`, `scheduled`) are in the queues of which it is
        known."""
        return sum(getattr(queue, kind) or 0 for queue in self.queues)

    @property
    def seen(self) -> int:
        """All messages that were seen or counted."""
        return sum(map(self.known, ("active", "dead_letter", "deferred", "scheduled")))


def grade_of(backlog: Backlog) -> Severity | None:
    """How bad that is: nothing where it is empty, an error where a failover would have no queue to go to."""
    if backlog.verdict is BacklogVerdict.EMPTY:
        return None
    return Severity.ERROR if backlog.verdict is BacklogVerdict.NO_QUEUES else Severity.WARNING


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is so, with the commands that deal with it, in their order."""

    sentence: str
    commands: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.sentence} Run: {'; then: '.join(self.commands)}" if self.commands else self.sentence


def advice(backlog: Backlog, *, drain: str | None = None, recorded: str = "") -> tuple[Advice, ...]:
    """What is in the backlog, one entry per kind, each with the command that handles it. Empty if nothing remains.

    `drain`: the command that goes on where messages wait; `sbpair drain PAIR` if not given. `recorded`: the option, if
    any, with which every other drain keeps its ledger.
    """
    return tuple(_advice(backlog, drain or f"sbpair drain {backlog.pair}{recorded}", recorded))


def _advice(backlog: Backlog, drain: str, recorded: str) -> Iterator[Advice]:
    pair = backlog.pair
    if backlog.verdict is BacklogVerdict.NO_QUEUES:
        yield Advice("No backlog queue exists. Create them.", (f"sbpair provision {pair}",))
        return
    waiting = [queue for queue in backlog.existing if queue.state is QueueState.WAITING]
    if waiting:
        yield Advice(waiting_sentence(backlog), (drain,))
    if number := backlog.known("dead_letter"):
        first = drain if waiting else f"sbpair peek {pair} --dlq --group-by reason,destination"
        yield Advice(
            f"{_number(backlog, 'dead_letter', 'dead letter')} {_verb(number, 'remains', 'remain')} in "
            f"{_queues(backlog, 'dead_letter')}.",
            (first, f"sbpair drain {pair} --dlq" + recorded),
        )
    if number := backlog.known("deferred"):
        yield Advice(
            f"{_number(backlog, 'deferred', 'deferred message')} {_verb(number, 'remains', 'remain')} in "
            f"{_queues(backlog, 'deferred')}.",
            (f"sbpair drain {pair} --deferred" + recorded,),
        )
    if number := backlog.known("scheduled"):
        yield Advice(
            f"{_number(backlog, 'scheduled', 'scheduled message')} "
            f"{_verb(number, 'waits for the time it is', 'wait for the time they are')} scheduled for in "
            f"{_queues(backlog, 'scheduled')}; drain again after that.",
            (f"sbpair peek {pair} --group-by state,scheduled",),
        )
    yield from _not_known(backlog)


def _not_known(backlog: Backlog) -> Iterator[Advice]:
    if backlog.unread:
        first = backlog.unread[0]
        more = f" and {len(backlog.unread) - 1} more" if len(backlog.unread) > 1 else ""
        why = f": {first.detail.rstrip('.')}." if first.detail else "."
        yield Advice(f"Not read: {first.queue}{more}{why}", (f"sbpair doctor {backlog.pair}",))
    elif backlog.found_by is FoundBy.CONFIGURED:
        yield Advice("Whether other backlog queues exist is not known.", (f"sbpair doctor {backlog.pair}",))
    if backlog.missing and backlog.existing:
        names = ", ".join(queue.queue.rpartition("/")[2] for queue in backlog.missing)
        count = len(backlog.missing)
        yield Advice(
            f"{count} backlog {_verb(count, 'queue is', 'queues are')} missing: {names}.",
            (f"sbpair provision {backlog.pair}",),
        )


def waiting_sentence(backlog: Backlog) -> str:
    """`500 messages are waiting in 10 queues, the oldest for 9 s.`"""
    waiting = [queue for queue in backlog.existing if queue.state is QueueState.WAITING]
    number = backlog.known("active")
    age = backlog.oldest_age_seconds
    oldest = f", the oldest for {format_duration(age)}" if age is not None else ""
    extra = [queue.queue.rpartition("/")[2] for queue in waiting if not queue.configured]
    beyond = f" ({', '.join(extra)} not configured)" if extra else ""
    if not number:
        return f"Messages are waiting in {counted(len(waiting), 'queue')}{beyond}{oldest}; how many is not known."
    return (
        f"{_number(backlog, 'active', 'message')} {_verb(number, 'is', 'are')} waiting in "
        f"{counted(len(waiting), 'queue')}{beyond}{oldest}."
    )


def empty_sentence(backlog: Backlog) -> str:
    """Said only where `verdict` is EMPTY."""
    read = f"The backlog is empty: {counted(len(backlog.existing), 'queue')} read, no message of any kind."
    if backlog.found_by is not FoundBy.PROBED:
        return read
    highest = max(int(queue.queue.rpartition("/")[2]) for queue in backlog.queues) + MISSES
    return f"{read} Queues above number {highest} were not looked for: listing them needs Manage."


def headline(backlog: Backlog) -> str:
    """The backlog in one sentence, the most urgent thing first."""
    found = advice(backlog)
    if found:
        return str(found[0])
    return empty_sentence(backlog) if backlog.verdict is BacklogVerdict.EMPTY else "How much waits is not known."


def _number(backlog: Backlog, kind: str, noun: str) -> str:
    least = backlog.at_least or getattr(backlog, kind) is None
    return f"{'At least ' if least else ''}{counted(backlog.known(kind), noun)}"


def _verb(number: int, one: str, several: str) -> str:
    return one if number == 1 else several


def _queues(backlog: Backlog, kind: str) -> str:
    return counted(sum(1 for queue in backlog.queues if getattr(queue, kind)), "queue")
