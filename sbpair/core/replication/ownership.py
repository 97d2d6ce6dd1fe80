"""Who may process which message of a session, in two regions at once: the machine of active/active.

Every message lies in both namespaces, as in "Azure Service Bus active/active with guaranteed order". The two copies,
and the messages of one session, are kept apart by a journal: one entry per session of a destination, which alone
decides and is only ever changed by compare-and-swap, and one record per finished message, by its MessageId (the
article's `SessionId_MessageId`). The entry says what is under way, who does it and until when, and which numbers of our
senders' streams are finished (`core.replication.ordering`).

    state of a message   what the journal says                      who may act
    pending              nothing, or `current` without a lease      the winner of the swap of `judge`'s Start
    working              `current` is it, lease runs                its owner alone
    working, lapsed      `current` is it, lease + margin over       the winner of the swap: the owner is dead or stopped
    completed            in `recent`, or a record says so           nobody; copies are completed unprocessed
    failed               in `recent`, or a record says so           nobody; copies are dead-lettered with the reason

The state of the entry is that of its newest message.

How a consumer goes about it; `=swap=>` is a write that succeeds only if nobody wrote since the read:

    read, judge ──Start──=swap=> run the handler ──Completed=swap=> complete the copy, then write the record
       │                            │    └─Failed, attempts used up=swap=> dead-letter the copy, then write the record
       │                            ├─Failed or RetryLater=swap=> pending again, not before a pause
       │                            └─renew=swap=> every third of the lease; lost, or over: stop the handler
       ├──LookUp──> read the records of these message ids, judge again
       ├──Done──> complete the copy     ├──DeadLetter──> dead-letter the copy, reason of the other copy
       ├──Skip=swap=> its number is finished too; then as Done or DeadLetter
       ├──Wait──> leave the copy, poll again later (owned by another, predecessor missing, pause after a failure)
       └──GiveUp=swap=> failed: its owners died on it too often; dead-letter

A swap that fails means: read and judge again. A swap whose answer was lost means the same, and is harmless, because
owner and fence tell the loser's entry from one's own.

Entry and records are two documents, written one after the other. What is finished therefore stands in the entry's
`recent` from the very swap that finishes it, and leaves `recent` only once its record is written. A reader takes the
entry first and the records afterwards: what it finds in neither was unfinished when it read the entry, and if that has
changed, its swap fails.

Why it is right
* Order. `judge` starts nothing while a named predecessor is unfinished or another message of the session is current;
  `decide` starts nothing without a stamp while a copy before it in the queue is unfinished.
* One at a time. Start needs the lease free, lapsed or one's own. The owner stops its handler at `lease_until` on its
  own clock; others wait until `lease_until + margin` on theirs. With clocks at most a margin apart they never overlap.
* Exactly once, as far as that exists. Completed is written before the copy is settled, and a copy of a finished message
  is never run. A message runs twice only if its owner died, or was cut off from the journal for longer than the lease,
  between the handler's effect and the swap. The fence grows with every start, also over the time when an old entry is
  forgotten: a store that refuses smaller ones shuts the old owner out even then.
* Nothing lost. A copy is settled only after the entry says completed or failed. No journal, no start.

The gap rule. A predecessor that is named was accepted by a side (see `ordering`); it may be in a namespace that is
dark. The session waits for it for ever by default (`gap_seconds` None) and says so in `gap`, for `status`. It need not
come under its number: if its MessageId is finished, because it was sent twice and the brokers dropped the second one,
the gap is closed. With `gap_seconds` the predecessor is given up so long after it was first missed: its numbers become
`passed`, the session goes on, and a copy that turns up later is dead-lettered, not run out of order. A number in doubt
that was not named by its successor is passed at once: its sender was told that it failed. After the retention nobody
can tell a number that was passed from one that was processed: a copy that comes so late is dead-lettered as well.

Rules for editors: no clock, no I/O here; `now` is UTC epoch seconds of the caller. Every function returns a new
entry and leaves the old one; the caller writes it by swap or forgets it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sbpair.core.errors import UsageError
from sbpair.core.replication.ordering import Place, Stamp
from sbpair.core.serialization import Document

MAX_REASON_CHARACTERS = 400
OVERTAKEN = "Overtaken"
"""Dead-letter reason of a copy whose successors were processed without it."""
FORGOTTEN = "Forgotten"
"""Dead-letter reason of a copy that comes when the journal no longer knows what became of its message."""
FAILED = "HandlerFailed"
"""Dead-letter reason of a message that failed as often as is allowed."""
_OVERTAKEN_BECAUSE = "Later messages of its session were processed without it; see its number."
_FORGOTTEN_BECAUSE = "It came later than the journal remembers: it was processed, had failed, or was given up."
DAY_SECONDS = 86_400.0


class SessionState(StrEnum):
    PENDING = "pending"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"


class Granularity(StrEnum):
    """For how long a consumer claims a session (the article's choice of what to lock)."""

    SESSION = "session"
    """Until no message of it waits: the session's messages stay in one region."""
    MESSAGE = "message"
    """For one message; the next one goes to whichever region is faster."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all consumers of a destination have to agree on. Durations in seconds.

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
    """For so long the journal knows a finished message of which a copy is still out; none may turn up later."""
    remember_seconds: float = DAY_SECONDS
    """For so long it knows a message whose two copies are settled, so that one sent again does not run again."""
    granularity: Granularity = Granularity.SESSION

    def __post_init__(self) -> None:
        if self.lease_seconds <= 0 or self.margin_seconds < 0 or self.max_attempts < 1:
            raise UsageError("The lease is longer than 0 s, the margin 0 s or longer, attempts 1 or more.")
        if self.margin_seconds > self.lease_seconds:
            raise UsageError("The clock margin is at most as long as the lease.")
        if self.remember_seconds < 2 * (self.lease_seconds + self.margin_seconds):
            raise UsageError("What is finished is remembered for much longer than the lease.")
        if self.retention_seconds < self.remember_seconds:
            raise UsageError("The retention is at least as long as what is finished is remembered.")
        if self.gap_seconds is not None and self.gap_seconds + self.lease_seconds > self.retention_seconds:
            # The note of a gap is kept for the retention: a longer gap would be forgotten, noted again, and never end.
            raise UsageError("A gap is shorter than the retention, by a lease or more.")


@dataclass(frozen=True, slots=True)
class Copy:
    """A received copy of a message, as far as it matters here."""

    message_id: str
    sequence_number: int
    """Its place in the queue it came from."""
    stamp: Stamp | None = None
    """None: its producer does not stamp."""

    @property
    def place(self) -> Place | None:
        return None if self.stamp is None else self.stamp.place


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a message, by its MessageId."""

    message_id: str
    state: SessionState
    """COMPLETED or FAILED."""
    at: float
    code: str = ""
    """Dead-letter reason of its copies if it failed."""
    reason: str = ""
    attempts: int = 0
    """Begun so often; tries that asked to come again later do not count. 0: never begun, or not known."""
    fence: int = 0
    """Of its last start: within a session it grows with every start, by any clock. 0: as above."""


@dataclass(frozen=True, slots=True)
class Head:
    """All of a stream up to this number is finished."""

    stream: str
    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Current:
    """The message that has begun and is not finished."""

    message_id: str
    attempts: int
    """Begun so often, the running one included; tries that asked to come again later do not count."""
    since: float
    """When it first began."""
    not_before: float = 0.0
    reason: str = ""
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Numbers `first` to `last` of a stream were left out; copies that turn up are not run."""

    stream: str
    first: int
    last: int
    at: float


@dataclass(frozen=True, slots=True)
class Gap:
    """The session waits for a message since then, before it can go on with another."""

    missing: Place | None
    """None: it has no place, only an id."""
    missing_id: str
    waiting_id: str
    since: float

    def __str__(self) -> str:
        return " at ".join(str(one) for one in (self.missing_id, self.missing) if one)


@dataclass(frozen=True, slots=True)
class SessionEntry(Document):
    """The journal's entry of one session of a destination. Times are UTC epoch seconds."""

    destination: str
    """What is consumed: a queue, or `topic/subscriptions/name`, in lower case."""
    session_id: str
    state: SessionState = SessionState.PENDING
    owner: str = ""
    fence: int = 0
    lease_until: float = 0.0
    current: Current | None = None
    recent: tuple[Finished, ...] = ()
    """Finished messages whose records may not be written yet."""
    heads: tuple[Head, ...] = ()
    passed: tuple[Passed, ...] = ()
    gap: Gap | None = None
    completed_count: int = 0
    failed_count: int = 0
    updated_at: float = 0.0

    def head(self, stream: str) -> int:
        """The last finished number of a stream; 0 if there is none."""
        return next((head.number for head in self.heads if head.stream == stream), 0)

    def has_finished(self, place: Place) -> bool:
        return place.number <= self.head(place.stream)

    def outcome(self, message_id: str) -> Finished | None:
        """What became of a message, if it is so recent that the entry still says so."""
        return next((one for one in self.recent if one.message_id == message_id), None)


@dataclass(frozen=True, slots=True)
class MessageRecord(Document):
    """The journal's record of one finished message."""

    destination: str
    session_id: str
    finished: Finished
    settled: tuple[str, ...] = ()
    """Sides whose copy is settled for certain."""

    def also_settled(self, sides: Iterable[str]) -> "MessageRecord":
        return replace(self, settled=tuple(sorted({*self.settled, *sides})))

    def forget_after_seconds(self, terms: Terms) -> float:
        """How long the journal keeps it from its last write on."""
        return terms.remember_seconds if len(self.settled) > 1 else terms.retention_seconds


Outcomes = Mapping[str, Finished | None]
"""Records that were looked up after the entry was read, by message id; None: there was none."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to process one message, for as long as the entry carries this fence."""

    owner: str
    fence: int
    message_id: str
    place: Place | None
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
    finished: Finished


@dataclass(frozen=True, slots=True)
class LookUp:
    """Read the records of these messages and judge again."""

    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """It is completed already: complete the copy unprocessed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """It will not be processed: dead-letter the copy."""

    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A message that is finished came again under another number: swap the entry in, then settle the copy."""

    entry: SessionEntry
    then: Done | DeadLetter


class Because(StrEnum):
    OWNED = "owned"
    GAP = "gap"
    PAUSE = "pause"
    TURN = "turn"
    """Something before it in the queue is unfinished."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Not now. Poll again at `until` at the latest, or as soon as something may have changed."""

    because: Because
    until: float | None
    """None: nobody knows."""
    missing: str = ""
    note: SessionEntry | None = None
    """To be swapped in, so that everybody knows of the gap; nothing is lost if that fails."""


Settled = Done | DeadLetter
Decision = Start | GiveUp | LookUp | Done | DeadLetter | Skip | NotYet


@dataclass(frozen=True, slots=True)
class _Missing:
    """A message that has to be finished before another begins."""

    message_id: str
    place: Place | None = None

    def __str__(self) -> str:
        return " at ".join(str(one) for one in (self.message_id, self.place) if one)


def decide(
    entry: SessionEntry, copies: Sequence[Copy], outcomes: Outcomes, *, owner: str, now: float, terms: Terms
) -> tuple[Copy, Decision] | list[NotYet]:
    """The first thing to do with copies of one side, all that are held of the session; or why all of them wait."""
    waits: list[NotYet] = []
    waiting: list[Copy] = []
    for copy in sorted(copies, key=lambda one: one.sequence_number):
        begun = entry.current is not None and entry.current.message_id == copy.message_id
        if not begun and any(_in_turn(earlier, copy) for earlier in waiting):
            decision: Decision = NotYet(Because.TURN, None)
        else:
            decision = judge(entry, copy, outcomes, owner=owner, now=now, terms=terms)
        if not isinstance(decision, NotYet):
            return copy, decision
        waits.append(decision)
        waiting.append(copy)
    return waits


def _in_turn(earlier: Copy, copy: Copy) -> bool:
    """Whether `copy` has to wait because one before it in the queue does. With a stamp only for its own sender's: one
    that follows a message the brokers dropped as a duplicate does not name what that message would have waited for."""
    if copy.place is None:
        return True
    return earlier.place is not None and earlier.place.stream == copy.place.stream and earlier.place < copy.place


def judge(entry: SessionEntry, copy: Copy, outcomes: Outcomes, *, owner: str, now: float, terms: Terms) -> Decision:
    """What `owner`, who holds a copy of the message, is to do with it; the queue's order is up to `decide`."""
    finished = entry.outcome(copy.message_id) or outcomes.get(copy.message_id)
    unknown = finished is None and copy.message_id not in outcomes
    if finished is not None:
        return _of_finished(entry, copy, finished, outcomes, owner, now, terms)
    if copy.place is not None and entry.has_finished(copy.place):
        return LookUp((copy.message_id,)) if unknown else _of_finished_place(entry, copy.place)
    if copy.stamp is None and unknown:
        return LookUp((copy.message_id,))
    if (busy_until := _leased_to_another(entry, owner, now, terms)) is not None:
        return NotYet(Because.OWNED, busy_until)
    missing = _current_other(entry, copy) or _predecessor(entry, copy, outcomes)
    while missing is not None:
        if isinstance(missing, LookUp):
            return missing
        if (wait := _wait_for(missing, entry, copy, now, terms)) is not None:
            return wait
        entry = _without(entry, missing, now)
        missing = _current_other(entry, copy) or _predecessor(entry, copy, outcomes)
    if unknown:
        return LookUp((copy.message_id,))
    return _start(entry, copy, owner, now, terms)


def _of_finished(
    entry: SessionEntry, copy: Copy, finished: Finished, outcomes: Outcomes, owner: str, now: float, terms: Terms
) -> Decision:
    then = Done() if finished.state is SessionState.COMPLETED else DeadLetter(finished.code, finished.reason)
    if copy.place is None or entry.has_finished(copy.place):
        return then
    # Sent again, it has a number of its own, which others may wait for; and that stands for all numbers before it.
    if (busy_until := _leased_to_another(entry, owner, now, terms)) is not None:
        return NotYet(Because.OWNED, busy_until)
    missing = _predecessor(entry, copy, outcomes)
    if isinstance(missing, LookUp):
        return missing
    if missing is not None and (wait := _wait_for(missing, entry, copy, now, terms)) is not None:
        return wait
    return Skip(_number_finished(entry, copy.place, now), then)


def _of_finished_place(entry: SessionEntry, place: Place) -> DeadLetter:
    for passed in entry.passed:
        if passed.stream == place.stream and passed.first <= place.number <= passed.last:
            return DeadLetter(OVERTAKEN, _OVERTAKEN_BECAUSE)
    # Its record is gone, or the note that its number was passed. Who completes it may lose it.
    return DeadLetter(FORGOTTEN, _FORGOTTEN_BECAUSE)


def _leased_to_another(entry: SessionEntry, owner: str, now: float, terms: Terms) -> float | None:
    if not entry.owner or entry.owner == owner:
        return None
    free_at = entry.lease_until + terms.margin_seconds
    return free_at if now < free_at else None


def _current_other(entry: SessionEntry, copy: Copy) -> _Missing | None:
    """The message that has begun, if it is not this one: it comes first."""
    if entry.current is None or entry.current.message_id == copy.message_id:
        return None
    return _Missing(entry.current.message_id)


def _predecessor(entry: SessionEntry, copy: Copy, outcomes: Outcomes) -> _Missing | LookUp | None:
    """The first named message that is neither finished by its number nor by its id."""
    for place in () if copy.stamp is None else copy.stamp.after:
        if entry.has_finished(place):
            continue
        name = place.message_id
        if name and name not in outcomes and entry.outcome(name) is None:
            return LookUp((name,))
        if name and (entry.outcome(name) or outcomes.get(name)) is not None:
            continue  # sent twice, and finished under its other number
        return _Missing(name, place)
    return None


def _wait_for(missing: _Missing, entry: SessionEntry, copy: Copy, now: float, terms: Terms) -> NotYet | None:
    """None once the predecessor is to be given up."""
    current = entry.current
    if current is not None and missing.place is None and current.message_id == missing.message_id:
        due = max(current.not_before, entry.lease_until) + terms.lease_seconds
        if now < due:
            return NotYet(Because.PAUSE, due)  # somebody has a copy and is about to go on with it
    known = entry.gap
    if known is None or _earlier(missing, known):
        until = None if terms.gap_seconds is None else now + terms.gap_seconds
        gap = Gap(missing.place, missing.message_id, copy.message_id, now)
        return NotYet(Because.GAP, until, str(missing), replace(entry, gap=gap, updated_at=now))
    if (known.missing, known.missing_id) != (missing.place, missing.message_id) or terms.gap_seconds is None:
        return NotYet(Because.GAP, None, str(missing))
    until = known.since + terms.gap_seconds
    return NotYet(Because.GAP, until, str(missing)) if now < until else None


def _earlier(missing: _Missing, known: Gap) -> bool:
    """One gap is noted at a time, the first of its stream: notes that replaced each other would never grow old."""
    if missing.place is None or known.missing is None:
        return False
    return missing.place.stream == known.missing.stream and missing.place.number < known.missing.number


def _without(entry: SessionEntry, missing: _Missing, now: float) -> SessionEntry:
    """The entry once the missing message, and everything of its stream before it, is given up."""
    if missing.place is None:
        lost = Finished(missing.message_id, SessionState.FAILED, now, OVERTAKEN, _OVERTAKEN_BECAUSE)
        return replace(entry, current=None, recent=(*entry.recent, lost), gap=None)
    left_out = Passed(missing.place.stream, entry.head(missing.place.stream) + 1, missing.place.number, now)
    heads = _raised(entry, missing.place, now)
    return replace(entry, heads=heads, passed=(*entry.passed, left_out), gap=None)


def _start(entry: SessionEntry, copy: Copy, owner: str, now: float, terms: Terms) -> Decision:
    before = entry.current
    if before is not None and now < before.not_before:
        return NotYet(Because.PAUSE, before.not_before)
    # An owner that asks runs nothing: its own start was written, but it never learned of it.
    begun = entry.state is SessionState.WORKING and entry.owner == owner
    if before is not None and before.attempts >= terms.max_attempts and not begun:
        reason = before.reason or f"Its consumers died on it {before.attempts} times."
        failed = _failed(replace(entry, state=SessionState.PENDING), copy.message_id, copy.place, reason, now, terms)
        return GiveUp(failed, failed.recent[-1])
    attempt = (0 if before is None else before.attempts) + (0 if begun and before is not None else 1)
    current = Current(
        copy.message_id,
        attempt,
        now if before is None else before.since,
        reason="" if before is None else before.reason,
    )
    started = replace(
        entry,
        state=SessionState.WORKING,
        owner=owner,
        fence=entry.fence + 1 if entry.fence else max(1, int(now * 1000)),
        lease_until=now + terms.lease_seconds,
        current=current,
        gap=None,
        updated_at=now,
    )
    return Start(started, Claim(owner, started.fence, copy.message_id, copy.place, attempt))


# What the owner of a claim does. None: the claim is lost, somebody else has taken over.


def holds(entry: SessionEntry, claim: Claim) -> bool:
    """The entry is still the one that the claim began. The lease may be over: nobody has used that."""
    begun = entry.current is not None and entry.current.message_id == claim.message_id
    return begun and entry.fence == claim.fence and entry.state is SessionState.WORKING


def ended(entry: SessionEntry, claim: Claim) -> bool:
    """The claim's own end was written, although its answer was lost."""
    return entry.fence == claim.fence and entry.outcome(claim.message_id) is not None


def renew(entry: SessionEntry, claim: Claim, *, now: float, terms: Terms) -> SessionEntry | None:
    """The lease from now on."""
    if not holds(entry, claim):
        return None
    return replace(entry, lease_until=now + terms.lease_seconds, updated_at=now)


def complete(entry: SessionEntry, claim: Claim, *, now: float, terms: Terms) -> SessionEntry | None:
    """The handler has done its work."""
    if not holds(entry, claim):
        return None
    attempts = 0 if entry.current is None else entry.current.attempts
    finished = Finished(claim.message_id, SessionState.COMPLETED, now, attempts=attempts, fence=claim.fence)
    done = replace(_finish(entry, finished, claim.place, now, terms), state=SessionState.COMPLETED)
    return replace(done, completed_count=entry.completed_count + 1)


def fail(
    entry: SessionEntry, claim: Claim, reason: str, *, now: float, pause_seconds: float, terms: Terms
) -> SessionEntry | None:
    """An attempt failed: pending again after a pause, or failed permanently when it was the last allowed."""
    if not holds(entry, claim) or entry.current is None:
        return None
    if entry.current.attempts >= terms.max_attempts:
        return _failed(entry, claim.message_id, claim.place, reason, now, terms)
    return _pending(entry, entry.current, now, pause_seconds, entry.current.attempts, reason)


def retry_later(entry: SessionEntry, claim: Claim, *, now: float, pause_seconds: float) -> SessionEntry | None:
    """The handler asks for the message again later, or its consumer stops: no attempt is counted."""
    if not holds(entry, claim) or entry.current is None:
        return None
    return _pending(entry, entry.current, now, pause_seconds, entry.current.attempts - 1, entry.current.reason)


def release(entry: SessionEntry, owner: str, *, now: float) -> SessionEntry | None:
    """Give the session up; None if there is nothing to give up. For SESSION granularity, between messages."""
    if entry.owner != owner or entry.state is SessionState.WORKING:
        return None
    return replace(entry, owner="", lease_until=0.0, updated_at=now)


def recorded(entry: SessionEntry, message_ids: Collection[str]) -> SessionEntry:
    """The entry without what is recorded for certain. Not while somebody works: a swap whose answer was lost is
    recognised by what `recent` says."""
    return replace(entry, recent=tuple(one for one in entry.recent if one.message_id not in message_ids))


def forget_after_seconds(entry: SessionEntry, terms: Terms) -> float:
    """How long the journal keeps the entry from its last write on: senders may name the streams it knows."""
    says_something = entry.current or entry.recent or entry.heads or entry.gap or entry.owner
    return terms.retention_seconds if says_something else terms.remember_seconds


def is_stuck(entry: SessionEntry, *, now: float, terms: Terms) -> str | None:
    """Why a person should look at this session; None if all is well."""
    if entry.updated_at > now + terms.margin_seconds:
        return f"its last writer's clock is {entry.updated_at - now:.0f} s ahead of this one"
    if entry.gap is not None and now > entry.gap.since + 2 * terms.lease_seconds:
        return f"message {entry.gap.waiting_id} waits for {entry.gap}, which is in neither queue that is read"
    if entry.current is not None and now > max(entry.lease_until, entry.current.not_before) + 2 * terms.lease_seconds:
        return f"message {entry.current.message_id} began and nobody goes on with it"
    return None


def _pending(
    entry: SessionEntry, current: Current, now: float, pause_seconds: float, attempts: int, reason: str
) -> SessionEntry:
    waiting = replace(current, attempts=attempts, not_before=now + pause_seconds, reason=reason[:MAX_REASON_CHARACTERS])
    return replace(entry, state=SessionState.PENDING, owner="", lease_until=0.0, current=waiting, updated_at=now)


def _failed(
    entry: SessionEntry, message_id: str, place: Place | None, reason: str, now: float, terms: Terms
) -> SessionEntry:
    attempts = 0 if entry.current is None else entry.current.attempts
    because = reason[:MAX_REASON_CHARACTERS]
    finished = Finished(message_id, SessionState.FAILED, now, FAILED, because, attempts=attempts, fence=entry.fence)
    done = replace(_finish(entry, finished, place, now, terms), state=SessionState.FAILED)
    return replace(done, failed_count=entry.failed_count + 1)


def _finish(entry: SessionEntry, finished: Finished, place: Place | None, now: float, terms: Terms) -> SessionEntry:
    """The message is finished, and the numbers before it that nobody named are passed."""
    keeps = terms.granularity is Granularity.SESSION and entry.state is SessionState.WORKING
    if place is not None:
        entry = _number_finished(entry, place, now)
    since = now - terms.retention_seconds
    return replace(
        entry,
        owner=entry.owner if keeps else "",
        lease_until=entry.lease_until if keeps else 0.0,
        current=None,
        recent=(*(one for one in entry.recent if one.message_id != finished.message_id), finished),
        heads=tuple(one for one in entry.heads if one.at >= since),
        passed=tuple(one for one in entry.passed if one.at >= since),
        gap=None,
        updated_at=now,
    )


def _number_finished(entry: SessionEntry, place: Place, now: float) -> SessionEntry:
    head, passed = entry.head(place.stream), entry.passed
    if place.number <= head:
        return entry
    if place.number > head + 1:
        passed = (*passed, Passed(place.stream, head + 1, place.number - 1, now))
    raised = replace(entry, heads=_raised(entry, place, now), passed=passed, updated_at=now)
    closed = entry.gap is not None and entry.gap.missing is not None and raised.has_finished(entry.gap.missing)
    return replace(raised, gap=None) if closed else raised


def _raised(entry: SessionEntry, place: Place, now: float) -> tuple[Head, ...]:
    others = tuple(head for head in entry.heads if head.stream != place.stream)
    return (*others, Head(place.stream, place.number, now))
