"""The failover machine of one entity: when its messages go to the primary, when to a backlog queue, when nowhere.

Theory of operation
===================
There is one machine per entity (queue or topic) and pairing; every sender of the entity shares it, and other entities
are not touched: a fault in one says nothing about its neighbours ("Asynchronous Messaging Patterns and High
Availability").

* HEALTHY: sends go to the primary. Nothing is pinged.
* SUSPECT: a send met an error that the policy counts, and the one-shot timer of the failover interval runs. Sends
  still go to the primary and failing ones still raise. A later failure does not restart the timer; any success stops
  it. A failure soon after that (CALM_SECONDS, or the failover interval if that is longer) goes on with what is left of
  the interval, and after a return of the primary there is nothing left of it: a primary that comes and goes costs its
  senders one interval of errors, however often it does so.
* FAILED_OVER: the timer fired. Sends go to a backlog queue on the secondary, and the primary entity is pinged once per
  ping interval until a ping succeeds; then new sends go to the primary again at once.
* ENTITY_INVALID: a ping said that the entity itself is wrong (not found, not authorised). A backlog would never
  drain, so sends raise, until a ping succeeds.
* FORCED: an operator sent the entity's messages to the backlog. Nothing is pinged, since a healthy primary would end
  the exercise within one interval; it lasts until an operator fails back.

A failover interval of 0 needs no rule of its own: its timer fires in the very call that started it, so that the message
whose failure started it is rerouted itself.

The machine does no I/O and has no clock. `now` (monotonic seconds) comes in; `next_deadline` says when to call
`advance` next. State changes are collected and handed out by `changes()`.

Rules for editors
=================
* What may happen is in TRANSITIONS and nowhere else. It is total: every state answers every signal.
* Timers belong to states: entering SUSPECT starts one, leaving it ends it. Never start one from a signal.
* Outcomes carry the ticket they were issued under. A failure that began before the last change to HEALTHY (or to
  FORCED) is old news and is no signal; a success is always good news.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sbpair.core.errors import Category, ServiceError, UsageError


class State(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed-over"
    ENTITY_INVALID = "entity-invalid"
    FORCED = "forced"


class Signal(StrEnum):
    """What can happen to an entity."""

    SENT = "send succeeds"
    FAILURE = "counted failure"
    TIMER = "interval over"
    PING_OK = "ping succeeds"
    PING_FAILED = "ping fails"
    PING_WRONG = "ping: entity wrong"
    FORCE = "forced"
    FAIL_BACK = "failed back by hand"


def _row(stays: State, **moves: State) -> Mapping[Signal, State]:
    return {signal: moves.get(signal.name, stays) for signal in Signal}


TRANSITIONS: Mapping[State, Mapping[Signal, State]] = {
    State.HEALTHY: _row(State.HEALTHY, FAILURE=State.SUSPECT, FORCE=State.FORCED),
    State.SUSPECT: _row(
        State.SUSPECT, SENT=State.HEALTHY, TIMER=State.FAILED_OVER, FORCE=State.FORCED, FAIL_BACK=State.HEALTHY
    ),
    State.FAILED_OVER: _row(
        State.FAILED_OVER,
        PING_OK=State.HEALTHY,
        PING_WRONG=State.ENTITY_INVALID,
        FORCE=State.FORCED,
        FAIL_BACK=State.HEALTHY,
    ),
    State.ENTITY_INVALID: _row(
        State.ENTITY_INVALID, PING_OK=State.HEALTHY, FORCE=State.FORCED, FAIL_BACK=State.HEALTHY
    ),
    State.FORCED: _row(State.FORCED, FAIL_BACK=State.HEALTHY),
}

PINGING = frozenset({State.FAILED_OVER, State.ENTITY_INVALID})
"""The states in which the primary entity is pinged."""


class Route(StrEnum):
    """Where a send goes now."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    NOWHERE = "nowhere"
    """The entity itself is wrong: the send raises."""


ROUTES: Mapping[State, Route] = {
    State.HEALTHY: Route.PRIMARY,
    State.SUSPECT: Route.PRIMARY,
    State.FAILED_OVER: Route.BACKLOG,
    State.ENTITY_INVALID: Route.NOWHERE,
    State.FORCED: Route.BACKLOG,
}


class ErrorAction(StrEnum):
    """What the policy wants done about an error of a send to the primary."""

    START_TIMER = "start the timer"
    WAIT_AND_RESEND = "wait and send again"
    RAISE = "raise"


class FailureVerdict(StrEnum):
    """What becomes of the message whose send failed."""

    RAISE = "raise"
    REROUTE = "reroute"
    WAIT_AND_RESEND = "wait and send again"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which errors count: a table from error category to action; a category that is missing raises.

    `entity_wrong`: categories that, met by a ping, say the entity itself is wrong.
    """

    name: str
    actions: Mapping[Category, ErrorAction]
    entity_wrong: frozenset[Category] = frozenset({Category.NOT_FOUND, Category.UNAUTHORIZED})

    def action(self, category: Category) -> ErrorAction:
        return self.actions.get(category, ErrorAction.RAISE)


_OUTAGE = {
    Category.TIMEOUT: ErrorAction.START_TIMER,
    Category.CONNECTION: ErrorAction.START_TIMER,
    Category.DETACHED: ErrorAction.START_TIMER,
    Category.INTERNAL: ErrorAction.START_TIMER,
}
_CALLER = {
    Category.UNAUTHORIZED: ErrorAction.RAISE,
    Category.NOT_FOUND: ErrorAction.RAISE,
    Category.TOO_LARGE: ErrorAction.RAISE,
    Category.ARGUMENT: ErrorAction.RAISE,
    Category.UNKNOWN: ErrorAction.RAISE,
}

DOCUMENTED = Policy(
    "documented",
    {
        **_OUTAGE,
        Category.DISABLED: ErrorAction.START_TIMER,
        Category.QUOTA: ErrorAction.START_TIMER,
        Category.BUSY: ErrorAction.WAIT_AND_RESEND,
        **_CALLER,
    },
)
"""What the documents say, with two differences ("Asynchronous Messaging Patterns and High Availability"): non-transient
errors and time-outs start the timer, a busy server never does. The differences: transient errors of connection, link
and service start it, too, once the SDK's retries have not cured them, since an outage looks like that; an entity that
is not found and a right that is missing do not, since a backlog for them could not be brought back.
"""

SDK = Policy(
    "sdk",
    {
        **_OUTAGE,
        Category.DISABLED: ErrorAction.RAISE,
        Category.QUOTA: ErrorAction.RAISE,
        Category.BUSY: ErrorAction.START_TIMER,
        **_CALLER,
    },
)
"""What the retired library did, which a field test in 2016 agrees with: transient errors and time-outs."""

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (DOCUMENTED, SDK)}

CALM_SECONDS = 60.0
"""A primary that has not failed for so long is in no need of caution any more."""

BUSY_PAUSE_SECONDS = 10.0
"""How long to leave a busy server alone before sending again ("Asynchronous Messaging Patterns and High
Availability")."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state. `seconds_away` and `diverted_messages` count from the failover; 0 when there was none."""

    before: State
    after: State
    signal: Signal
    cause: ServiceError | None
    seconds_away: float
    diverted_messages: int


class EntityFailover:
    """The machine. All times are monotonic seconds of one clock.

    Raises:
        UsageError: a negative failover interval, or a ping interval that is not positive.
    """

    def __init__(
        self, *, failover_interval_seconds: float, ping_interval_seconds: float, policy: Policy = DOCUMENTED
    ) -> None:
        if failover_interval_seconds < 0 or ping_interval_seconds <= 0:
            raise UsageError("The failover interval is 0 or more seconds, the ping interval more than 0.")
        self._policy = policy
        self._failover_interval = failover_interval_seconds
        self._ping_interval = ping_interval_seconds
        self._state = State.HEALTHY
        self._ticket = 0
        self._cause: ServiceError | None = None
        self._timer_due: float | None = None
        self._timer_started_at = 0.0
        self._spent_seconds = 0.0
        """Of the failover interval, by the failures of late."""
        self._trouble_ended_at = float("-inf")
        self._left_primary_at: float | None = None
        self._diverted = 0
        self._last_ping_at: float | None = None
        self._ping_running = False
        self._changes: list[Change] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def cause(self) -> ServiceError | None:
        """The error behind the present state; None while healthy and after a forced failover."""
        return self._cause

    @property
    def diverted_messages(self) -> int:
        """Messages diverted since the entity left its primary."""
        return self._diverted

    @property
    def ticket(self) -> int:
        """Given out with each attempt and handed back with its outcome; see the rules for editors."""
        return self._ticket

    def timer_seconds_left(self, now: float) -> float | None:
        return None if self._timer_due is None else max(0.0, self._timer_due - now)

    def next_deadline(self) -> float | None:
        """When `advance` wants to be called; None while only a signal can change anything."""
        if self._state is State.SUSPECT:
            return self._timer_due
        if self._state in PINGING and not self._ping_running:
            return self._next_ping_at()
        return None

    def advance(self, now: float) -> None:
        """Fire the timer if it is due."""
        if self._timer_due is not None and now >= self._timer_due:
            self._signal(Signal.TIMER, now)

    def route(self, now: float) -> Route:
        self.advance(now)
        return ROUTES[self._state]

    def sent(self, now: float) -> None:
        """A send to the primary succeeded: the timer stops. After a failover only a ping leads back."""
        self.advance(now)
        self._signal(Signal.SENT, now)

    def failed(self, error: ServiceError, ticket: int, now: float) -> FailureVerdict:
        """A send to the primary failed; what becomes of its message."""
        self.advance(now)
        action = self._policy.action(error.category)
        if action is ErrorAction.WAIT_AND_RESEND:
            return FailureVerdict.WAIT_AND_RESEND
        if action is ErrorAction.RAISE:
            return FailureVerdict.RAISE
        if ticket == self._ticket:
            self._signal(Signal.FAILURE, now, error)
            self.advance(now)
        return FailureVerdict.REROUTE if ROUTES[self._state] is Route.BACKLOG else FailureVerdict.RAISE

    def counts(self, error: ServiceError) -> bool:
        """Whether the policy does anything but raise about the error."""
        return self._policy.action(error.category) is not ErrorAction.RAISE

    def diverted(self, messages: int) -> None:
        """A backlog queue accepted messages of this entity."""
        self._diverted += messages

    def start_ping(self, now: float) -> int | None:
        """A ticket if a ping is to be sent now, else None. At most one ping runs, at most one starts per interval."""
        if self._state not in PINGING or self._ping_running or now < self._next_ping_at():
            return None
        self._last_ping_at = now
        self._ping_running = True
        return self._ticket

    def ping_succeeded(self, ticket: int, now: float) -> None:
        self._end_ping(ticket, Signal.PING_OK, now)

    def ping_failed(self, error: ServiceError, ticket: int, now: float) -> None:
        wrong = error.category in self._policy.entity_wrong
        self._end_ping(ticket, Signal.PING_WRONG if wrong else Signal.PING_FAILED, now, error if wrong else None)

    def ping_abandoned(self, ticket: int) -> None:
        """The ping was cancelled: no outcome."""
        if ticket == self._ticket:
            self._ping_running = False

    def force(self, now: float) -> None:
        """Divert until `fail_back`, whatever the primary says."""
        self._signal(Signal.FORCE, now)

    def fail_back(self, now: float) -> None:
        """Send to the primary again, whatever the pings say."""
        self._signal(Signal.FAIL_BACK, now)

    def changes(self) -> tuple[Change, ...]:
        """The state changes since the last call."""
        if not self._changes:
            return ()
        collected, self._changes = tuple(self._changes), []
        return collected

    def _end_ping(self, ticket: int, signal: Signal, now: float, error: ServiceError | None = None) -> None:
        if ticket == self._ticket:
            self._ping_running = False
            self._signal(signal, now, error)

    def _next_ping_at(self) -> float:
        """At once after the failover, but never sooner than one interval after the ping before."""
        return float("-inf") if self._last_ping_at is None else self._last_ping_at + self._ping_interval

    def _signal(self, signal: Signal, now: float, error: ServiceError | None = None) -> None:
        before, after = self._state, TRANSITIONS[self._state][signal]
        if before is after:
            return
        self._cause = error or (None if after in (State.HEALTHY, State.FORCED) else self._cause)
        self._state = after
        self._keep_timer(before, after, signal, now)
        if ROUTES[after] is not Route.PRIMARY and self._left_primary_at is None:
            self._left_primary_at = now
        away = 0.0 if self._left_primary_at is None else now - self._left_primary_at
        self._changes.append(Change(before, after, signal, self._cause, away, self._diverted))
        if after in (State.HEALTHY, State.FORCED):
            self._ticket += 1
            self._ping_running = False
        if after is State.HEALTHY:
            self._left_primary_at, self._diverted = None, 0

    def _keep_timer(self, before: State, after: State, signal: Signal, now: float) -> None:
        """Start the timer with what is left of the interval, or stop it and note what was spent."""
        self._timer_due = None
        if after is State.SUSPECT:
            if now - self._trouble_ended_at >= max(self._failover_interval, CALM_SECONDS):
                self._spent_seconds = 0.0
            self._timer_started_at = now
            self._timer_due = now + max(0.0, self._failover_interval - self._spent_seconds)
        elif signal is Signal.FAIL_BACK:
            self._spent_seconds = 0.0
        elif after is State.HEALTHY:
            spent = now - self._timer_started_at if before is State.SUSPECT else self._failover_interval
            self._spent_seconds += spent
            self._trouble_ended_at = now
