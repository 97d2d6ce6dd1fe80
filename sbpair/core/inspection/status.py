"""The status of a pair: which side answers, what waits in the backlog, how fast that changes, when it will be empty."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbpair.core.access import has_own_host, spoken_name
from sbpair.core.backlog import Backlog, BacklogVerdict, QueueContents, advice, grade_of, headline, waiting_sentence
from sbpair.core.durations import format_duration
from sbpair.core.errors import for_pair
from sbpair.core.outcome import Exit, Severity, gravest
from sbpair.core.prices import Forecast, of_messages
from sbpair.core.serialization import HIDDEN, INLINED, column, iso_time, metric, published, rounded
from sbpair.core.words import with_hint
from sbpair.service import Tier

REACHABLE = "reachable"
LIMITED = "limited"
"""State of a side that answers, with a credential that may not manage it."""
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class SideStatus:
    """One namespace. `state`: reachable, limited, or the exit code table's name of what came instead of an answer."""

    side: str
    host: str
    state: str
    tier: Tier | None = None
    answered_in_ms: float | None = field(default=None, metadata=rounded(1))
    error_code: str | None = None
    detail: str = ""
    hint: str = ""
    """The next step where it did not answer, a sentence."""
    label: str = ""
    """Its configured name."""
    embedded: bool = field(default=False, metadata=HIDDEN)

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return spoken_name(self.label, self.host, embedded=self.embedded) if self.label else self.host

    @property
    def short_name(self) -> str:
        """The same for a column: the label alone where it tells the host."""
        return self.label if self.label and has_own_host(self.label, self.host) else self.name

    @property
    def answers(self) -> bool:
        return self.state in (REACHABLE, LIMITED)


@dataclass(frozen=True, slots=True)
class PairStatus:
    """A pair at one moment (`taken_at`, UTC epoch seconds)."""

    pair: str
    taken_at: float
    primary: SideStatus
    secondary: SideStatus
    backlog: Backlog = field(metadata=INLINED)
    environment: str | None = None

    @property
    def sides(self) -> tuple[SideStatus, SideStatus]:
        return self.primary, self.secondary

    @published
    def drain(self) -> Forecast:
        """What moving all that waits to the primary would use, at the average size in each queue."""
        return sum((_of(queue) for queue in self.backlog.queues), Forecast())


def _of(queue: QueueContents) -> Forecast:
    if not queue.active:
        return Forecast()
    held = queue.active + (queue.deferred or 0) + (queue.dead_letter or 0) + (queue.scheduled or 0)
    return of_messages(queue.active, -(-(queue.size_in_bytes or 0) // held))


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A status with what follows from it, as `status -o json` prints it."""

    status: PairStatus = field(metadata=INLINED)
    before: PairStatus | None = field(default=None, metadata=HIDDEN)
    """The sample before it; without that no rate is known."""

    @property
    def backlog(self) -> Backlog:
        return self.status.backlog

    @published
    def rate_per_second(self) -> float | None:
        """How fast the backlog grows (above 0) or shrinks (below 0); None without two counted samples."""
        before, after = self.before, self.status
        if before is None or before.backlog.active is None or after.backlog.active is None:
            return None
        seconds = after.taken_at - before.taken_at
        return (after.backlog.active - before.backlog.active) / seconds if seconds > 0 else None

    @published
    def empty_in_seconds(self) -> float | None:
        """When no active message is left at this rate; None if they do not become fewer."""
        active, rate = self.backlog.active, self.rate_per_second
        return None if not active or rate is None or rate >= 0 else active / -rate

    def outlook(self) -> str:
        """What is in the backlog and what becomes of it, the most urgent thing first, in one or two sentences."""
        if self.backlog.verdict is not BacklogVerdict.WAITING:
            return headline(self.backlog)
        pair, waiting, rate = self.status.pair, waiting_sentence(self.backlog), self.rate_per_second
        left = self.empty_in_seconds
        if left is not None and rate is not None:
            return f"{waiting} Draining at {-rate:,.1f}/s, empty in about {format_duration(left)}."
        if rate:
            return f"{waiting} Growing by {rate:,.1f}/s."
        if self.status.primary.state == UNREACHABLE:
            return f"{waiting} The primary cannot be reached; drain when it is back: sbpair drain {pair}"
        unchanged = " Nothing is draining them." if rate == 0 else ""
        return f"{waiting}{unchanged} Run: sbpair drain {pair}"

    def exit(self, fail_on: Severity = Severity.ERROR) -> Exit:
        """Unreachable, then denied; other troubles of a side or queue make it partial; what the backlog holds is a
        finding if it is graded `fail_on` or worse."""
        troubles = [side.state for side in self.status.sides if not side.answers]
        troubles += [queue.exit_name for queue in self.backlog.unread if queue.exit_name]
        if troubles:
            return gravest(troubles)
        grade = grade_of(self.backlog)
        return Exit.FINDINGS if grade is not None and grade.at_least(fail_on) else Exit.OK

    def notes(self) -> list[str]:
        """Each side's trouble once, with what to do, then what else there is to do after what `outlook` says."""
        status = self.status
        troubled = [side for side in status.sides if side.detail]
        last_with = {side.hint: side.side for side in troubled}
        notes = [
            f"{side.side.capitalize()} {side.name}: "
            + with_hint(side.detail, for_pair(side.hint, status.pair) if last_with[side.hint] == side.side else "")
            for side in troubled
        ]
        return notes + [self._without_reasons(str(advised)) for advised in advice(self.backlog)[1:]]

    def summary(self) -> str:
        return self._without_reasons(self.outlook())

    def _without_reasons(self, sentence: str) -> str:
        """The sentence without the reasons that the notes give of a side."""
        for side in self.status.sides:
            if side.detail:
                sentence = sentence.replace(f": {side.detail.rstrip('.')}", "")
        return sentence

    def line(self) -> str:
        """`2026-11-21T08:30:00.000Z orders primary=reachable secondary=denied messages=12 dead=0 oldest=4m
        rate=-3.1/s`, as one line."""
        age, rate = self.backlog.oldest_age_seconds, self.rate_per_second
        parts = [
            iso_time(self.status.taken_at),
            self.status.pair,
            *(f"{side.side}={side.state}" for side in self.status.sides),
            f"messages={in_words(self.backlog.active)}",
            f"dead={in_words(self.backlog.dead_letter)}",
            f"oldest={'none' if age is None else format_duration(age)}",
            f"rate={'unknown' if rate is None else f'{rate:+.1f}/s'}",
        ]
        return " ".join(parts)


def in_words(number: int | None) -> int | str:
    """For a person: a number that is not known says so."""
    return "unknown" if number is None else number


@dataclass(frozen=True, slots=True)
class StatusRow:
    """A namespace, or a backlog queue."""

    what: str = field(metadata=column("What"))
    name: str = field(metadata=column("Name"))
    state: str = field(metadata=column("State", colours=True))
    tier: Tier | None = field(default=None, metadata=column("Tier"))
    active: int | str | None = field(default=None, metadata=column("Messages", counts=True))
    drawn: int | None = field(default=None, metadata=column("", drawn=True))
    dead_letter: int | str | None = field(default=None, metadata=column("Dead letters", counts=True))
    oldest: str | None = field(default=None, metadata=column("Oldest", right=True))
    answered_in_ms: int | None = field(default=None, metadata=column("ms", right=True))
    detail: str | None = field(default=None, metadata=column("Detail"))


def side_rows(status: PairStatus) -> list[StatusRow]:
    return [
        StatusRow(
            side.side,
            side.name,
            side.state,
            side.tier,
            answered_in_ms=None if side.answered_in_ms is None else round(side.answered_in_ms),
            detail=side.error_code,
        )
        for side in status.sides
    ]


def queue_rows(status: PairStatus) -> list[StatusRow]:
    rows = []
    for queue in status.backlog.queues:
        at = queue.oldest_enqueued_at
        oldest = None if at is None else format_duration(max(0.0, status.taken_at - at))
        rows.append(
            StatusRow(
                "backlog queue",
                queue.queue,
                queue.state.value,
                active=queue.active,
                drawn=queue.active,
                dead_letter=queue.dead_letter,
                oldest=oldest,
                detail=_detail(queue),
            )
        )
    return rows


def _detail(queue: QueueContents) -> str:
    details = [
        "not configured" if not queue.configured else "",
        _deferred(queue),
        f"{queue.scheduled:,} scheduled" if queue.scheduled else "",
        "or more; browsed, not counted" if queue.at_least else "",
        queue.error_code or queue.detail,
    ]
    return "; ".join(detail for detail in details if detail)


def _deferred(queue: QueueContents) -> str:
    """Said too where the service counts deferred messages among the others."""
    if queue.deferred is None:
        return "" if queue.missing or not queue.active else "deferred: unknown"
    return f"{queue.deferred:,} deferred" if queue.deferred else ""


@dataclass(frozen=True, slots=True)
class StatusFigures:
    """What monitoring shows of a status; None where it is not known."""

    up: Mapping[str, float] = field(metadata=metric("sbpair_namespace_up", label="side"))
    active: int | None = field(metadata=metric("sbpair_backlog_active_messages"))
    dead_letter: int | None = field(metadata=metric("sbpair_backlog_dead_letter_messages"))
    deferred: int | None = field(metadata=metric("sbpair_backlog_deferred_messages"))
    scheduled: int | None = field(metadata=metric("sbpair_backlog_scheduled_messages"))
    queues: int = field(metadata=metric("sbpair_backlog_queues"))
    queue_active: Mapping[str, int] = field(metadata=metric("sbpair_backlog_queue_active_messages", label="index"))
    queue_dead_letter: Mapping[str, int] = field(
        metadata=metric("sbpair_backlog_queue_dead_letter_messages", label="index")
    )
    oldest_age_seconds: float | None = field(metadata=metric("sbpair_backlog_oldest_age_seconds"))
    rate_per_second: float | None = field(metadata=metric("sbpair_backlog_growth_messages_per_second"))


def _index(queue: QueueContents) -> str:
    return queue.queue.rpartition("/")[2]


def figures(found: StatusReport) -> StatusFigures:
    backlog = found.backlog
    return StatusFigures(
        {side.side: float(side.answers) for side in found.status.sides},
        backlog.active,
        backlog.dead_letter,
        backlog.deferred,
        backlog.scheduled,
        len(backlog.existing),
        {_index(one): one.active for one in backlog.existing if one.active is not None},
        {_index(one): one.dead_letter for one in backlog.existing if one.dead_letter is not None},
        backlog.oldest_age_seconds,
        found.rate_per_second,
    )
