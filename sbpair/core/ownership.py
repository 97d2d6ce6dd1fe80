"""Who may process which message of a session, in two regions at once: the machine of active/active (seed 004).

Every message lies in both namespaces. The two copies, and the messages of one session, are kept apart by one journal
entry per session that is only ever changed by compare-and-swap. The entry says what is finished (one number per
stream, see `core.ordering`), what is under way, who does it, and until when.

    state of a message   what the entry says                       who may act
    pending              not finished, nobody's lease              whoever wins the swap of `judge`'s Start
    working              `current` is it, lease runs               its owner alone
    working, lapsed      `current` is it, lease + margin over      whoever wins the swap: the owner is dead or stopped
    completed            number <= head of its stream              nobody; copies are completed unprocessed
    failed               in `failures`                             nobody; copies are dead-lettered with the reason

The state of the entry is that of its newest message.

How a consumer goes about it; `=swap=>` is a write that succeeds only if nobody wrote since the read:

    read, judge ──Start──=swap=> run the handler ──Completed=swap=> complete the copy
       │                            │    └─Failed, attempts used up=swap=> dead-letter the copy
       │                            ├─Failed or RetryLater=swap=> pending again, not before a pause
       │                            └─renew=swap=> every third of the lease; lost, or over: stop the handler
       ├──Done──> complete the copy     ├──Bury──> dead-letter the copy, reason of the other copy
       ├──Wait──> leave the copy, look again later (owned by another, predecessor missing, pause after a failure)
       └──GiveUp=swap=> failed: its owners died on it too often; dead-letter

A swap that fails means: read and judge again. A swap whose answer was lost means the same, and is harmless, because
owner and fence tell the loser's entry from one's own.

Why it is right
* Order. `judge` starts nothing while a named predecessor is unfinished or another message of the session is current.
  Finished numbers only grow. So n+1 starts nowhere before n is completed or failed, whatever either queue shows.
* One at a time. Start needs the lease free, lapsed or one's own. The owner stops its handler at `lease_until` on its
  own clock; others wait until `lease_until + margin` on theirs. With clocks at most a margin apart they never overlap.
* Exactly once, as far as that exists. Completed is written before the copy is settled, and a copy of a finished number
  is never run. A message runs twice only if its owner died, or was cut off from the journal for longer than the lease,
  between the handler's effect and the swap. The fence grows with every start: a store that refuses smaller
  ones shuts the old owner out even then.
* Nothing lost. A copy is settled only after the entry says completed or failed. No journal, no start.

The gap rule. A predecessor that is named was accepted by a side (see `core.ordering`); it may be in a namespace that
is dark. The session waits for it for ever by default (`gap_seconds` None) and says so in `gap`, for `status`. With
`gap_seconds` the predecessor is given up so long after it was first missed: its numbers become `passed`, the session
goes on, and a copy that turns up later is dead-lettered, not run out of order. A number in doubt that was not named
by its successor is passed at once: its sender was told that it failed.

Rules for editors: no clock, no I/O here; `now` is UTC epoch seconds of the caller. Every function returns a new
entry and leaves the old one; whoever calls writes it by swap or forgets it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sbpair.core.errors import UsageError
from sbpair.core.ordering import Place, Stamp
from sbpair.core.plain import from_plain, to_plain

MAX_REASON_CHARACTERS = 400
OVERTAKEN = "Overtaken"
"""Dead-letter reason of a copy whose successors were processed without it."""
FAILED = "HandlerFailed"
"""Dead-letter reason of a message that failed as often as is allowed."""
DAY_SECONDS = 86_400.0


class State(StrEnum):
    PENDING = "pending"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"


class Granularity(StrEnum):
    """For how long a consumer claims a session (the article's choice of what to lock)."""

    SESSION = "session"
    """Until no message of it waits: the session's messages stay in one region."""
    MESSAGE = "message"
    """For one message; each message also gets an entry of its own that tells what became of it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all consumers of a queue have to agree on. Durations in seconds.

    Raises:
        UsageError: a margin that leaves nothing of the lease, or a number out of range.
    """

    lease_seconds: float = 30.0
    margin_seconds: float = 5.0
    """How far the clocks of the regions may be apart."""
    max_attempts: int = 5
    gap_seconds: float | None = None
    """After this time a missing predecessor is given up; None: never."""
    retention_seconds: float = 14 * DAY_SECONDS
    """For so long the journal knows what is finished; copies must not turn up later."""
    granularity: Granularity = Granularity.SESSION

    def __post_init__(self) -> None:
        if self.lease_seconds <= 0 or self.margin_seconds < 0 or self.max_attempts < 1:
            raise UsageError("The lease is longer than 0 s, the margin 0 s or longer, attempts 1 or more.")
        if self.margin_seconds > self.lease_seconds:
            raise UsageError("The clock margin is at most as long as the lease.")
        if self.retention_seconds < 2 * (self.lease_seconds + self.margin_seconds):
            raise UsageError("The retention is much longer than the lease.")


@dataclass(frozen=True, slots=True)
class Head:
    """All of a stream up to this number is finished."""

    stream: str
    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Current:
    """The message that has begun and is not finished."""

    place: Place
    message_id: str
    attempts: int
    """Begun so often, the running one included; tries that asked to come again later do not count."""
    since: float
    """When it first began."""
    not_before: float = 0.0
    reason: str = ""
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that ended as failed; its copies are dead-lettered with this reason."""

    place: Place
    message_id: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Passed:
    """Numbers `first` to `last` of a stream were left out; copies that turn up are not run."""

    stream: str
    first: int
    last: int
    at: float


@dataclass(frozen=True, slots=True)
class Gap:
    """The session waits for `missing`, a predecessor of `waiting`, since then."""

    missing: Place
    waiting: Place
    since: float


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """The journal's entry of one session. Times are UTC epoch seconds."""

    session_id: str
    state: State = State.PENDING
    owner: str = ""
    fence: int = 0
    lease_until: float = 0.0
    current: Current | None = None
    heads: tuple[Head, ...] = ()
    failures: tuple[Failure, ...] = ()
    passed: tuple[Passed, ...] = ()
    gap: Gap | None = None
    completed_count: int = 0
    failed_count: int = 0
    updated_at: float = 0.0

    def head(self, stream: str) -> int:
        """The last finished number of a stream; 0 if there is none."""
        return next((head.number for head in self.heads if head.stream == stream), 0)

    def finished(self, place: Place) -> bool:
        return place.number <= self.head(place.stream)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SessionEntry":
        """Raises UsageError for anything but what `to_dict` gives."""
        return from_plain(cls, data, "session entry")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to process one message, for as long as the entry carries this fence."""

    owner: str
    fence: int
    place: Place
    message_id: str
    attempt: int


# What `judge` decides


@dataclass(frozen=True, slots=True)
class Start:
    """Swap the entry in; then the message may be run under the claim."""

    entry: SessionEntry
    claim: Claim


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Swap the entry in; then the copy is dead-lettered."""

    entry: SessionEntry
    failure: Failure


@dataclass(frozen=True, slots=True)
class Done:
    """It is completed already: complete the copy unprocessed."""


@dataclass(frozen=True, slots=True)
class Bury:
    """Dead-letter the copy."""

    reason: str
    description: str


class Because(StrEnum):
    OWNED = "owned"
    GAP = "gap"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now. Look again at `until` at the latest, or as soon as something may have changed."""

    because: Because
    until: float | None
    """None: nobody knows."""
    missing: Place | None = None
    note: SessionEntry | None = None
    """To be swapped in, so that everybody knows of the gap; nothing is lost if that fails."""


Decision = Start | GiveUp | Done | Bury | Wait


def judge(entry: SessionEntry, stamp: Stamp, message_id: str, *, owner: str, now: float, terms: Terms) -> Decision:
    """What `owner`, who holds a copy of the message, is to do with it."""
    if entry.finished(stamp.place):
        return _of_finished(entry, stamp.place)
    if (busy_until := _leased_to_another(entry, owner, now, terms)) is not None:
        return Wait(Because.OWNED, busy_until)
    missing = _missing(entry, stamp)
    while missing is not None:
        if (wait := _wait_for(missing, entry, stamp.place, now, terms)) is not None:
            return wait
        entry = _without(entry, missing, now)
        missing = _missing(entry, stamp)
    return _start(entry, stamp, message_id, owner, now, terms)


def _of_finished(entry: SessionEntry, place: Place) -> Decision:
    for failure in entry.failures:
        if failure.place == place:
            return Bury(FAILED, failure.reason)
    for passed in entry.passed:
        if passed.stream == place.stream and passed.first <= place.number <= passed.last:
            return Bury(OVERTAKEN, "Later messages of its session were processed without it; see its number.")
    return Done()


def _leased_to_another(entry: SessionEntry, owner: str, now: float, terms: Terms) -> float | None:
    if not entry.owner or entry.owner == owner:
        return None
    free_at = entry.lease_until + terms.margin_seconds
    return free_at if now < free_at else None


def _missing(entry: SessionEntry, stamp: Stamp) -> Place | None:
    """The first message that has to be finished before this one may begin."""
    if entry.current is not None and entry.current.place != stamp.place:
        return entry.current.place
    return next((place for place in stamp.after if not entry.finished(place)), None)


def _wait_for(missing: Place, entry: SessionEntry, waiting: Place, now: float, terms: Terms) -> Wait | None:
    """None once the predecessor is to be given up."""
    current = entry.current
    if current is not None and current.place == missing:
        due = max(current.not_before, entry.lease_until) + terms.lease_seconds
        if now < due:
            return Wait(Because.PAUSE, due)  # somebody has a copy and is about to go on with it
    known = entry.gap if entry.gap is not None and not entry.finished(entry.gap.missing) else None
    if known is None or _earlier(missing, known.missing):
        until = None if terms.gap_seconds is None else now + terms.gap_seconds
        return Wait(Because.GAP, until, missing, replace(entry, gap=Gap(missing, waiting, now), updated_at=now))
    if known.missing != missing or terms.gap_seconds is None:
        return Wait(Because.GAP, None, missing)
    until = known.since + terms.gap_seconds
    return Wait(Because.GAP, until, missing) if now < until else None


def _earlier(missing: Place, known: Place) -> bool:
    """One gap is noted at a time, the first of its stream: notes that replaced each other would never grow old."""
    return missing.stream == known.stream and missing.number < known.number


def _without(entry: SessionEntry, missing: Place, now: float) -> SessionEntry:
    """The entry once everything of the stream up to `missing` is given up."""
    current = entry.current if entry.current is not None and entry.current.place != missing else None
    left_out = Passed(missing.stream, entry.head(missing.stream) + 1, missing.number, now)
    return replace(
        entry, current=current, heads=_raised(entry, missing, now), passed=(*entry.passed, left_out), gap=None
    )


def _start(entry: SessionEntry, stamp: Stamp, message_id: str, owner: str, now: float, terms: Terms) -> Decision:
    before = entry.current
    if before is not None and now < before.not_before:
        return Wait(Because.PAUSE, before.not_before)
    # An owner that asks runs nothing: its own start was written, but it never learned of it.
    begun = entry.state is State.WORKING and entry.owner == owner
    if before is not None and before.attempts >= terms.max_attempts and not begun:
        reason = before.reason or f"Its consumers died on it {before.attempts} times."
        failed = _failed(replace(entry, state=State.PENDING), stamp.place, message_id, reason, now, terms)
        return GiveUp(failed, failed.failures[-1])
    attempt = (0 if before is None else before.attempts) + (0 if begun and before is not None else 1)
    current = Current(
        stamp.place,
        message_id,
        attempt,
        now if before is None else before.since,
        reason="" if before is None else before.reason,
    )
    started = replace(
        entry,
        state=State.WORKING,
        owner=owner,
        fence=entry.fence + 1,
        lease_until=now + terms.lease_seconds,
        current=current,
        gap=None,
        updated_at=now,
    )
    return Start(started, Claim(owner, started.fence, stamp.place, message_id, attempt))


# What the owner of a claim does. None: the claim is lost, somebody else has taken over.


def holds(entry: SessionEntry, claim: Claim) -> bool:
    """The entry is still the one that the claim began. The lease may be over: nobody has used that."""
    begun = entry.current is not None and entry.current.place == claim.place
    return begun and entry.fence == claim.fence and entry.state is State.WORKING


def renew(entry: SessionEntry, claim: Claim, *, now: float, terms: Terms) -> SessionEntry | None:
    """The lease from now on."""
    if not holds(entry, claim):
        return None
    return replace(entry, lease_until=now + terms.lease_seconds, updated_at=now)


def complete(entry: SessionEntry, claim: Claim, *, now: float, terms: Terms) -> SessionEntry | None:
    """The handler has done its work."""
    if not holds(entry, claim):
        return None
    done = replace(_finish(entry, claim.place, now, terms), state=State.COMPLETED)
    return replace(done, completed_count=entry.completed_count + 1)


def fail(
    entry: SessionEntry, claim: Claim, reason: str, *, now: float, pause_seconds: float, terms: Terms
) -> SessionEntry | None:
    """An attempt failed: pending again after a pause, or failed for good when it was the last allowed."""
    if not holds(entry, claim) or entry.current is None:
        return None
    if entry.current.attempts >= terms.max_attempts:
        return _failed(entry, claim.place, claim.message_id, reason, now, terms)
    return _pending(entry, entry.current, now, pause_seconds, entry.current.attempts, reason)


def retry_later(entry: SessionEntry, claim: Claim, *, now: float, pause_seconds: float) -> SessionEntry | None:
    """The handler asks for the message again later, or its consumer stops: no attempt is counted."""
    if not holds(entry, claim) or entry.current is None:
        return None
    return _pending(entry, entry.current, now, pause_seconds, entry.current.attempts - 1, entry.current.reason)


def release(entry: SessionEntry, owner: str, *, now: float) -> SessionEntry | None:
    """Give the session up; None if there is nothing to give up. For SESSION granularity, between messages."""
    if entry.owner != owner or entry.state is State.WORKING:
        return None
    return replace(entry, owner="", lease_until=0.0, updated_at=now)


def is_stuck(entry: SessionEntry, *, now: float, terms: Terms) -> str | None:
    """Why a person should look at this session; None if all is well."""
    if entry.updated_at > now + terms.margin_seconds:
        return f"its last writer's clock is {entry.updated_at - now:.0f} s ahead of this one"
    if entry.gap is not None and now > entry.gap.since + 2 * terms.lease_seconds:
        return f"message {entry.gap.waiting} waits for {entry.gap.missing}, which is in neither queue that is read"
    if entry.current is not None and now > max(entry.lease_until, entry.current.not_before) + 2 * terms.lease_seconds:
        return f"message {entry.current.message_id} began and nobody goes on with it"
    return None


def _pending(
    entry: SessionEntry, current: Current, now: float, pause_seconds: float, attempts: int, reason: str
) -> SessionEntry:
    waiting = replace(current, attempts=attempts, not_before=now + pause_seconds, reason=reason[:MAX_REASON_CHARACTERS])
    return replace(entry, state=State.PENDING, owner="", lease_until=0.0, current=waiting, updated_at=now)


def _failed(entry: SessionEntry, place: Place, message_id: str, reason: str, now: float, terms: Terms) -> SessionEntry:
    failure = Failure(place, message_id, reason[:MAX_REASON_CHARACTERS], now)
    done = replace(_finish(entry, place, now, terms), state=State.FAILED)
    return replace(done, failures=(*done.failures, failure), failed_count=entry.failed_count + 1)


def _finish(entry: SessionEntry, place: Place, now: float, terms: Terms) -> SessionEntry:
    """The message is finished, and the numbers before it that nobody named are passed."""
    keeps = terms.granularity is Granularity.SESSION and entry.state is State.WORKING
    head, passed = entry.head(place.stream), entry.passed
    if place.number > head + 1:
        passed = (*passed, Passed(place.stream, head + 1, place.number - 1, now))
    since = now - terms.retention_seconds
    raised = _raised(entry, place, now)
    return replace(
        entry,
        owner=entry.owner if keeps else "",
        lease_until=entry.lease_until if keeps else 0.0,
        current=None,
        heads=tuple(one for one in raised if one.at >= since),
        failures=tuple(one for one in entry.failures if one.at >= since),
        passed=tuple(one for one in passed if one.at >= since),
        gap=None,
        updated_at=now,
    )


def _raised(entry: SessionEntry, place: Place, now: float) -> tuple[Head, ...]:
    others = tuple(head for head in entry.heads if head.stream != place.stream)
    return (*others, Head(place.stream, place.number, now))
