"""The small decisions beside the machine: time budget, held sessions, keys, sizes, percentiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.errors import ArgumentRefusedError, MessageTooLargeError, ReservedPropertyError, UsageError
from sbpair.core.failover.measured import Milliseconds, percentile
from sbpair.core.failover.sending import (
    Budget,
    MessageKeys,
    SessionHolds,
    check_partitioning,
    first_that_fit,
    is_scheduled,
    keys_of,
    refuse_reserved,
)
from sbpair.core.rewrite import compose

S = ("orders", "s1")


@given(st.floats(0.001, 86_400.0), st.floats(0.0, 86_400.0))
def test_the_primary_can_never_use_up_the_whole_budget(total: float, elapsed: float) -> None:
    budget = Budget.of(total, partitioned=False, now=100.0)
    now = 100.0 + min(elapsed, budget.for_primary(100.0))
    assert budget.left(now) >= budget.reserved_seconds * 0.999 > 0
    assert budget.for_primary(now) < budget.total_seconds


def test_the_default_is_sixty_seconds_of_which_fifteen_are_the_backlogs() -> None:
    budget = Budget.of(None, partitioned=False, now=0.0)
    assert (budget.total_seconds, budget.for_primary(0.0)) == (60.0, 45.0)


def test_a_partitioned_entity_gets_at_least_sixty_seconds() -> None:
    assert Budget.of(5.0, partitioned=True, now=0.0).total_seconds == 60.0
    assert Budget.of(90.0, partitioned=True, now=0.0).total_seconds == 90.0
    assert Budget.of(5.0, partitioned=False, now=0.0).total_seconds == 5.0


def test_one_backlog_queue_of_several_gets_half_of_what_is_left_the_last_gets_all() -> None:
    budget = Budget.of(60.0, partitioned=False, now=0.0)
    assert budget.for_backlog(40.0, alternatives=3) == 10.0
    assert budget.for_backlog(40.0, alternatives=0) == 20.0
    assert budget.for_backlog(90.0, alternatives=0) == 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_timeout_is_positive(seconds: float) -> None:
    with pytest.raises(UsageError):
        Budget.of(seconds, partitioned=False, now=0.0)


def test_a_session_is_held_from_its_diversion_until_a_scan_no_longer_sees_it() -> None:
    holds = SessionHolds()
    holds.begin(S, "q0")
    holds.end(S, stored=True)
    assert (holds.queue_of(S), holds.queues(), len(holds)) == ("q0", ("q0",), 1)
    assert holds.scanned("q0", {S}, holds.start_scan()) == ()
    assert holds.scanned("q1", set(), holds.start_scan()) == ()
    assert holds.scanned("q0", set(), holds.start_scan()) == (S,)
    assert holds.queue_of(S) is None


def test_a_scan_older_than_the_diversion_frees_nothing() -> None:
    holds = SessionHolds()
    holds.begin(S, "q0")
    holds.end(S, stored=True)
    moment = holds.start_scan()
    holds.begin(S, "q0")
    assert holds.scanned("q0", set(), moment) == ()
    holds.end(S, stored=True)
    assert holds.scanned("q0", set(), moment) == ()
    assert holds.scanned("q0", set(), holds.start_scan()) == (S,)


def test_a_diversion_that_stored_nothing_holds_nothing() -> None:
    holds = SessionHolds()
    holds.begin(S, "q0")
    holds.begin(S, "q0")
    holds.end(S, stored=False)
    assert holds.queue_of(S) == "q0"
    holds.end(S, stored=False)
    assert holds.queue_of(S) is None


def test_keys_are_read_from_the_encoded_message() -> None:
    assert keys_of(compose(body="x", message_id="1", session_id="s", partition_key="s")) == MessageKeys("s", "s")
    assert keys_of(compose(body="x", message_id="1", partition_key="p")).pin == "p"
    assert keys_of(compose(body="x", message_id="1")) == MessageKeys(None, None)
    assert is_scheduled(compose(body="x", message_id="1", scheduled_at=1_800_000_000.0))
    assert not is_scheduled(compose(body="x", message_id="1"))


def test_a_partition_key_other_than_the_session_id_is_refused() -> None:
    check_partitioning([MessageKeys("s", "s"), MessageKeys("s", None)], "orders")
    with pytest.raises(ArgumentRefusedError, match="differs from the session id"):
        check_partitioning([MessageKeys("s", "other")], "orders")


def test_a_batch_to_a_partitioned_entity_shares_its_key() -> None:
    check_partitioning([MessageKeys(None, "k"), MessageKeys(None, "k")], "orders")
    check_partitioning([MessageKeys(None, None)] * 3, "orders")
    with pytest.raises(ArgumentRefusedError, match="one batch"):
        check_partitioning([MessageKeys(None, "k"), MessageKeys(None, None)], "orders")


def test_a_reserved_property_is_found_before_the_outage() -> None:
    taken = compose(body="x", message_id="1", application_properties={"x-ms-path": "mine"})
    with pytest.raises(ReservedPropertyError):
        refuse_reserved(taken, "orders")
    refuse_reserved(compose(body="only text: x-ms-path", message_id="1"), "orders")


def test_transfers_are_cut_to_the_links_limit() -> None:
    payloads = [b"x" * 1000] * 5
    assert first_that_fit(payloads, 10_000, queue="q") == 5
    assert first_that_fit(payloads, 1024 + 3 * 1008, queue="q") == 3
    assert first_that_fit(payloads, 1000, queue="q") == 1
    with pytest.raises(MessageTooLargeError, match="the limit of q is 999"):
        first_that_fit(payloads, 999, queue="q")


def test_percentiles_are_times_that_were_measured() -> None:
    ordered = [float(number) for number in range(1, 101)]
    assert [percentile(ordered, percent) for percent in (0, 1, 50, 90, 99, 100)] == [1, 1, 50, 90, 99, 100]
    summary = Milliseconds.of([0.3, 0.1, 0.2])
    assert (summary.min_ms, summary.p50_ms, summary.max_ms) == (100, 200, 300)
    assert summary.quantiles == {"0.5": 0.2, "0.9": 0.3, "0.99": 0.3}
    assert Milliseconds.of([]) == Milliseconds()
