"""What holds for the machine in every history: hypothesis plays sends, failures, pings, operators and time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbpair.core.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    MessageTooLargeError,
    OperationTimeoutError,
    ServerBusyError,
)
from sbpair.core.failover.machine import PINGING, TRANSITIONS, EntityFailover, FailureVerdict, Route, State

INTERVAL, PING = 60.0, 30.0
COUNTED = st.sampled_from([ConnectionLostError("x"), OperationTimeoutError("x")])
UNCOUNTED = st.sampled_from([ServerBusyError("x"), MessageTooLargeError("x"), EntityNotFoundError("x")])


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machine = EntityFailover(failover_interval_seconds=INTERVAL, ping_interval_seconds=PING)
        self.first_failure: float | None = None
        """Model: when the first counted failure since the last success happened."""
        self.pings: list[float] = []
        self.running: int | None = None
        self.tickets: list[int] = []

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.machine.advance(self.now)

    @rule()
    def a_send_begins(self) -> None:
        self.machine.route(self.now)
        self.tickets.append(self.machine.ticket)

    @precondition(lambda self: self.tickets)
    @rule(error=COUNTED)
    def a_send_fails(self, error: ConnectionLostError) -> None:
        before, ticket = self.machine.state, self.tickets.pop(0)
        verdict = self.machine.failed(error, ticket, self.now)
        if before is State.HEALTHY and self.machine.state is State.SUSPECT:
            self.first_failure = self.now
        assert (verdict is FailureVerdict.REROUTE) == (self.machine.route(self.now) is Route.BACKLOG)

    @precondition(lambda self: self.tickets)
    @rule(error=UNCOUNTED)
    def a_send_fails_without_counting(self, error: ServerBusyError) -> None:
        before = self.machine.state
        verdict = self.machine.failed(error, self.tickets.pop(0), self.now)
        assert verdict is not FailureVerdict.REROUTE
        assert self.machine.state is before

    @precondition(lambda self: self.tickets)
    @rule()
    def a_send_succeeds(self) -> None:
        self.tickets.pop()
        self.machine.sent(self.now)
        assert self.machine.state is not State.SUSPECT

    @rule()
    def a_ping_starts_if_wanted(self) -> None:
        ticket = self.machine.start_ping(self.now)
        if ticket is not None:
            assert self.machine.state in PINGING
            assert not self.pings or self.now - self.pings[-1] >= PING
            self.pings.append(self.now)
            self.running = ticket

    @precondition(lambda self: self.running is not None)
    @rule(outcome=st.sampled_from(["ok", "fails", "wrong", "abandoned"]))
    def a_ping_ends(self, outcome: str) -> None:
        assert self.running is not None
        if outcome == "ok":
            self.machine.ping_succeeded(self.running, self.now)
        elif outcome == "abandoned":
            self.machine.ping_abandoned(self.running)
        else:
            error = EntityNotFoundError("x") if outcome == "wrong" else ConnectionLostError("x")
            self.machine.ping_failed(error, self.running, self.now)
        self.running = None

    @rule()
    def the_operator_forces(self) -> None:
        self.machine.force(self.now)

    @rule()
    def the_operator_fails_back(self) -> None:
        self.machine.fail_back(self.now)
        assert self.machine.state is State.HEALTHY

    @invariant()
    def the_timer_runs_only_while_suspect_and_from_the_first_failure(self) -> None:
        left = self.machine.timer_seconds_left(self.now)
        assert (left is not None) == (self.machine.state is State.SUSPECT)
        if left is not None:
            assert self.first_failure is not None
            assert self.machine.next_deadline() == self.first_failure + INTERVAL

    @invariant()
    def every_change_is_in_the_table(self) -> None:
        for change in self.machine.changes():
            assert TRANSITIONS[change.before][change.signal] is change.after

    @invariant()
    def only_states_with_something_to_wait_for_have_a_deadline(self) -> None:
        if self.machine.state in (State.HEALTHY, State.FORCED):
            assert self.machine.next_deadline() is None
            assert self.machine.cause is None


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
