"""The failover machine against the sentences of the seeds."""

import itertools

import pytest

from sbpair.core.errors import (
    ArgumentRefusedError,
    AuthenticationFailedError,
    Category,
    ConnectionLostError,
    CredentialError,
    EntityDisabledError,
    EntityNotFoundError,
    LinkDetachedError,
    MessageTooLargeError,
    OperationTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    ServiceError,
    ServiceInternalError,
    UnauthorizedError,
    UnknownServiceError,
    UsageError,
)
from sbpair.core.failover.machine import (
    CALM_SECONDS,
    DOCUMENTED,
    POLICIES,
    ROUTES,
    SDK,
    TRANSITIONS,
    EntityFailover,
    ErrorAction,
    FailureVerdict,
    Policy,
    Route,
    Signal,
    State,
)
from tests.core.failover.drawn import diagram

LOST = ConnectionLostError("gone")


def machine(*, interval: float = 60.0, ping: float = 60.0, policy: Policy = DOCUMENTED) -> EntityFailover:
    return EntityFailover(failover_interval_seconds=interval, ping_interval_seconds=ping, policy=policy)


def failed_over(*, ping: float = 60.0, at: float = 0.0) -> EntityFailover:
    made = machine(interval=0.0, ping=ping)
    made.failed(LOST, made.ticket, at)
    assert made.state is State.FAILED_OVER
    return made


def ping(made: EntityFailover, now: float) -> int:
    ticket = made.start_ping(now)
    assert ticket is not None
    return ticket


def test_the_table_is_total_and_every_state_has_a_route() -> None:
    assert set(TRANSITIONS) == set(State) == set(ROUTES)
    assert all(set(row) == set(Signal) for row in TRANSITIONS.values())


def test_the_table_moves_where_the_seeds_say_and_nowhere_else() -> None:
    moves = {
        (State.HEALTHY, Signal.FAILURE): State.SUSPECT,
        (State.SUSPECT, Signal.SENT): State.HEALTHY,
        (State.SUSPECT, Signal.TIMER): State.FAILED_OVER,
        (State.FAILED_OVER, Signal.PING_OK): State.HEALTHY,
        (State.FAILED_OVER, Signal.PING_WRONG): State.ENTITY_INVALID,
        (State.ENTITY_INVALID, Signal.PING_OK): State.HEALTHY,
    }
    for state in State:
        for signal in Signal:
            wanted = moves.get((state, signal), state)
            if signal is Signal.FORCE:
                wanted = State.FORCED
            elif signal is Signal.FAIL_BACK:
                wanted = State.HEALTHY
            assert TRANSITIONS[state][signal] is wanted, f"{state}: {signal}"


def test_every_state_is_reachable_and_leads_back_to_healthy() -> None:
    def reach(start: State) -> set[State]:
        seen = {start}
        while more := {after for state in seen for after in TRANSITIONS[state].values()} - seen:
            seen |= more
        return seen

    assert all(reach(state) == set(State) for state in State)


def test_every_policy_answers_every_category() -> None:
    assert all(set(policy.actions) == set(Category) for policy in POLICIES.values())
    assert machine(policy=Policy("empty", {})).failed(LOST, 0, 0.0) is FailureVerdict.RAISE


@pytest.mark.parametrize(
    ("error", "documented", "sdk"),
    [
        (OperationTimeoutError("x"), ErrorAction.START_TIMER, ErrorAction.START_TIMER),
        (ConnectionLostError("x"), ErrorAction.START_TIMER, ErrorAction.START_TIMER),
        (LinkDetachedError("x"), ErrorAction.START_TIMER, ErrorAction.START_TIMER),
        (ServiceInternalError("x"), ErrorAction.START_TIMER, ErrorAction.START_TIMER),
        (EntityDisabledError("x"), ErrorAction.START_TIMER, ErrorAction.RAISE),
        (QuotaExceededError("x"), ErrorAction.START_TIMER, ErrorAction.RAISE),
        (ServerBusyError("x"), ErrorAction.WAIT_AND_RESEND, ErrorAction.START_TIMER),
        (UnauthorizedError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (AuthenticationFailedError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (CredentialError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (EntityNotFoundError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (MessageTooLargeError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (ArgumentRefusedError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
        (UnknownServiceError("x"), ErrorAction.RAISE, ErrorAction.RAISE),
    ],
)
def test_policy_table(error: ServiceError, documented: ErrorAction, sdk: ErrorAction) -> None:
    assert DOCUMENTED.action(error.category) is documented
    assert SDK.action(error.category) is sdk


def test_during_the_interval_failing_sends_raise_and_go_on_to_the_primary() -> None:
    made = machine(interval=60)
    assert made.failed(LOST, made.ticket, 0.0) is FailureVerdict.RAISE
    assert made.state is State.SUSPECT
    assert made.route(59.9) is Route.PRIMARY
    assert made.failed(LOST, made.ticket, 59.9) is FailureVerdict.RAISE


def test_after_the_interval_without_success_sends_go_to_the_backlog() -> None:
    made = machine(interval=60)
    made.failed(LOST, made.ticket, 0.0)
    assert made.next_deadline() == 60.0
    assert made.route(60.0) is Route.BACKLOG
    (first, second) = made.changes()
    assert (first.after, second.after, second.signal) == (State.SUSPECT, State.FAILED_OVER, Signal.TIMER)
    assert second.cause is LOST


def test_later_failures_do_not_restart_the_timer() -> None:
    made = machine(interval=60)
    for now in (0.0, 20.0, 40.0, 59.0):
        made.failed(LOST, made.ticket, now)
    assert made.next_deadline() == 60.0


@pytest.mark.parametrize(("next_failure", "deadline"), [(50.0, 80.0), (89.9, 119.9), (90.0, 150.0), (500.0, 560.0)])
def test_any_success_cancels_the_timer_and_soon_afterwards_the_next_failure_goes_on_with_what_is_left(
    next_failure: float, deadline: float
) -> None:
    made = machine(interval=60)
    made.failed(LOST, made.ticket, 0.0)
    made.sent(30.0)
    assert (made.state, made.next_deadline(), made.cause) == (State.HEALTHY, None, None)
    made.failed(LOST, made.ticket, next_failure)
    assert made.next_deadline() == deadline


def test_a_primary_that_fails_again_right_after_its_return_is_left_without_an_error() -> None:
    made = machine(interval=60, ping=60)
    made.failed(LOST, made.ticket, 0.0)
    made.advance(60.0)
    made.ping_succeeded(ping(made, 60.0), 60.0)
    assert made.failed(LOST, made.ticket, 119.0) is FailureVerdict.REROUTE
    made.ping_succeeded(ping(made, 120.0), 120.0)
    assert made.failed(LOST, made.ticket, 120.0 + CALM_SECONDS) is FailureVerdict.RAISE, (
        "an interval of calm begins a new one"
    )


def test_a_fail_back_by_hand_begins_a_new_interval() -> None:
    made = machine(interval=60)
    made.failed(LOST, made.ticket, 0.0)
    made.advance(60.0)
    made.fail_back(61.0)
    assert made.failed(LOST, made.ticket, 62.0) is FailureVerdict.RAISE


@pytest.mark.parametrize("interval", [0.0, 1.0, 15.0, 60.0])
@pytest.mark.parametrize("ping_interval", [1.0, 7.0, 60.0])
@pytest.mark.parametrize("half", [1.0, 3.0, 10.0])
def test_a_flapping_primary_costs_no_more_errors_than_one_outage(
    interval: float, ping_interval: float, half: float
) -> None:
    """Up and down in turns for ten minutes, four sends a second that nothing retries."""
    made = machine(interval=interval, ping=ping_interval)
    errors = 0
    for quarter in range(4 * 600):
        now = quarter / 4
        is_up = int(now / half) % 2 == 0
        if (ticket := made.start_ping(now)) is not None:
            made.ping_succeeded(ticket, now) if is_up else made.ping_failed(LOST, ticket, now)
        if made.route(now) is not Route.PRIMARY:
            continue
        if is_up:
            made.sent(now)
        else:
            errors += made.failed(LOST, made.ticket, now) is FailureVerdict.RAISE
    assert errors <= 4 * interval


def test_with_interval_zero_the_failing_message_itself_is_rerouted() -> None:
    made = machine(interval=0)
    assert made.failed(LOST, made.ticket, 7.0) is FailureVerdict.REROUTE
    assert made.state is State.FAILED_OVER


def test_a_failure_that_arrives_after_the_failover_is_rerouted_too() -> None:
    made = machine(interval=10)
    ticket = made.ticket
    made.failed(LOST, ticket, 0.0)
    made.advance(10.0)
    assert made.failed(LOST, ticket, 12.0) is FailureVerdict.REROUTE


@pytest.mark.parametrize("error", [UnauthorizedError("x"), EntityNotFoundError("x"), MessageTooLargeError("x")])
def test_a_misconfigured_client_never_fails_over(error: ServiceError) -> None:
    made = machine(interval=0)
    assert made.failed(error, made.ticket, 0.0) is FailureVerdict.RAISE
    assert made.state is State.HEALTHY
    assert not made.counts(error)


def test_a_busy_server_is_left_alone_and_never_starts_the_timer() -> None:
    made = machine(interval=0)
    assert made.failed(ServerBusyError("x"), made.ticket, 0.0) is FailureVerdict.WAIT_AND_RESEND
    assert made.state is State.HEALTHY
    assert made.counts(ServerBusyError("x"))


def test_under_the_sdk_policy_a_busy_server_fails_over() -> None:
    made = machine(interval=0, policy=SDK)
    assert made.failed(ServerBusyError("x"), made.ticket, 0.0) is FailureVerdict.REROUTE


def test_nothing_is_pinged_while_healthy_suspect_or_forced() -> None:
    made = machine(interval=60)
    assert made.start_ping(0.0) is None
    made.failed(LOST, made.ticket, 0.0)
    assert made.start_ping(1.0) is None
    made.force(2.0)
    assert (made.start_ping(500.0), made.next_deadline()) == (None, None)


def test_one_ping_per_interval_until_one_succeeds() -> None:
    made = failed_over(ping=60)
    ticket = ping(made, 0.0)
    assert (made.start_ping(1.0), made.next_deadline()) == (None, None)
    made.ping_failed(LOST, ticket, 5.0)
    assert made.next_deadline() == 60.0
    assert made.start_ping(59.0) is None
    made.ping_succeeded(ping(made, 60.0), 61.0)
    assert made.route(61.0) is Route.PRIMARY
    assert made.next_deadline() is None


def test_a_flapping_entity_is_not_pinged_more_often_than_once_per_interval() -> None:
    made = failed_over(ping=60)
    made.ping_succeeded(ping(made, 0.0), 0.1)
    made.failed(LOST, made.ticket, 1.0)
    assert made.state is State.FAILED_OVER
    assert made.next_deadline() == 60.0


def test_a_ping_longer_than_the_interval_is_the_only_one() -> None:
    made = failed_over(ping=1)
    ticket = ping(made, 0.0)
    assert made.start_ping(100.0) is None
    made.ping_failed(LOST, ticket, 120.0)
    assert made.start_ping(120.0) is not None


@pytest.mark.parametrize("error", [EntityNotFoundError("x"), UnauthorizedError("x"), AuthenticationFailedError("x")])
def test_a_ping_that_finds_the_entity_wrong_makes_sends_raise_until_a_ping_succeeds(error: ServiceError) -> None:
    made = failed_over(ping=60)
    made.ping_failed(error, ping(made, 0.0), 1.0)
    assert (made.state, made.route(2.0), made.cause) == (State.ENTITY_INVALID, Route.NOWHERE, error)
    made.ping_failed(LOST, ping(made, 60.0), 61.0)
    assert made.state is State.ENTITY_INVALID
    made.ping_succeeded(ping(made, 120.0), 121.0)
    assert (made.state, made.cause) == (State.HEALTHY, None)


def test_a_success_after_the_failover_does_not_lead_back() -> None:
    made = failed_over()
    made.sent(1.0)
    assert made.state is State.FAILED_OVER


def test_a_failure_from_before_the_failback_is_old_news() -> None:
    made = machine(interval=0)
    old = made.ticket
    made.failed(LOST, old, 0.0)
    made.ping_succeeded(ping(made, 0.0), 1.0)
    assert made.failed(LOST, old, 2.0) is FailureVerdict.RAISE
    assert made.state is State.HEALTHY


def test_forced_failover_lasts_until_it_is_failed_back() -> None:
    made = machine()
    made.force(0.0)
    made.sent(1.0)
    assert made.route(10_000.0) is Route.BACKLOG
    made.fail_back(10_000.0)
    assert made.route(10_000.0) is Route.PRIMARY


def test_forcing_makes_the_outcome_of_a_running_ping_void() -> None:
    made = failed_over()
    ticket = ping(made, 0.0)
    made.force(1.0)
    made.ping_succeeded(ticket, 2.0)
    made.ping_failed(EntityNotFoundError("x"), ticket, 2.0)
    made.ping_abandoned(ticket)
    assert made.state is State.FORCED


def test_an_abandoned_ping_makes_room_for_the_next() -> None:
    made = failed_over(ping=60)
    made.ping_abandoned(ping(made, 0.0))
    assert made.next_deadline() == 60.0


def test_failback_reports_how_long_and_how_much() -> None:
    made = failed_over(at=10.0)
    made.diverted(3)
    made.diverted(4)
    made.changes()
    made.ping_succeeded(ping(made, 70.0), 75.0)
    (change,) = made.changes()
    assert (change.seconds_away, change.diverted_messages, made.diverted_messages) == (65.0, 7, 0)


def test_the_time_away_spans_the_states_away() -> None:
    made = failed_over(at=10.0)
    made.ping_failed(EntityNotFoundError("x"), ping(made, 10.0), 20.0)
    made.fail_back(110.0)
    assert made.changes()[-1].seconds_away == 100.0


@pytest.mark.parametrize(("interval", "ping_interval"), [(-1.0, 60.0), (60.0, 0.0)])
def test_intervals_out_of_range_are_refused(interval: float, ping_interval: float) -> None:
    with pytest.raises(UsageError):
        machine(interval=interval, ping=ping_interval)


def test_the_diagram_shows_every_transition_of_the_table() -> None:
    text = diagram()
    for before, after in itertools.permutations(State, 2):
        arrow = f"    {before.name} --> {after.name}: "
        drawn = [line.removeprefix(arrow) for line in text.splitlines() if line.startswith(arrow)]
        signals = [signal.value.replace(":", ",") for signal in Signal if TRANSITIONS[before][signal] is after]
        assert drawn == ([" / ".join(signals)] if signals else [])
    assert text.startswith("stateDiagram-v2\n    [*] --> HEALTHY\n")
