"""What the documents say a sender does, sentence by sentence, and the test that holds it.

Seeds: 000 implementation details and cost, 001 asynchronous patterns, 002 transfers and settlement, 003 partitioning.
Sentences are shortened. What cannot apply to the modern service is listed below with the reason.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

SENTENCES = [
    # Creating the backlog queues
    (
        "000",
        "pairing creates the backlog queues with the listed properties",
        "runtime/failover/test_pairing.py::test_opening_creates_the_documented_queues_and_reports_their_number",
    ),
    (
        "000",
        "the code first checks whether a queue exists; an existing one is not changed; extra ones stay unused",
        "runtime/failover/test_pairing.py::test_existing_queues_are_used_as_they_are_and_extra_ones_left_alone",
    ),
    (
        "001",
        "wrong credentials are thrown when the task completes",
        "runtime/failover/test_pairing.py::test_wrong_credentials_raise_at_once_and_leave_nothing_paired",
    ),
    (
        "001",
        "a failure to create the queues is thrown when the task completes",
        "runtime/failover/test_pairing.py::test_no_usable_queue_is_an_error_that_says_why",
    ),
    (
        "001",
        "BacklogQueueCount tells how many queues were found or created",
        "runtime/failover/test_pairing.py::test_a_queue_that_could_not_be_made_lowers_the_usable_count",
    ),
    (
        "001",
        "the namespace manager needs the Manage claim",
        "runtime/failover/test_pairing.py::test_a_lack_of_the_right_to_create_is_told_as_such",
    ),
    # Failing over
    (
        "000",
        "while the primary entity is healthy, nothing changes",
        "runtime/failover/test_sender.py::test_while_healthy_nothing_changes",
    ),
    (
        "000",
        "after FailoverInterval without a successful send, sends are diverted",
        "runtime/failover/test_sender.py::test_during_the_interval_failing_sends_raise_then_sends_are_diverted",
    ),
    (
        "000",
        "the timer starts at the first non-transient fault and needs an interval without any success",
        "runtime/failover/test_sender.py::test_a_success_during_the_interval_cancels_the_failover",
    ),
    (
        "001",
        "TimeSpan.Zero fails over at the first failure",
        "runtime/failover/test_sender.py::test_with_interval_zero_the_failing_message_itself_is_rerouted",
    ),
    (
        "001",
        "failover happens per entity; a fault in one does not imply a fault in another",
        "runtime/failover/test_sender.py::test_failover_is_per_entity_and_shared_by_all_senders",
    ),
    ("001", "which errors start the timer", "core/failover/test_failover.py::test_policy_table"),
    (
        "001",
        "UnauthorizedAccessException does not fail over: the client is misconfigured",
        "runtime/failover/test_sender.py::test_errors_of_the_caller_never_fail_over",
    ),
    (
        "001",
        "ServerBusyException does not fail over: wait 10 seconds and send again",
        "runtime/failover/test_sender.py::test_a_busy_server_gets_ten_seconds_and_the_message_again",
    ),
    # Choosing a backlog queue
    (
        "000",
        "a random backlog queue is chosen",
        "runtime/failover/test_sender.py::test_each_sender_draws_a_queue_and_keeps_it_while_it_works",
    ),
    (
        "000",
        "a queue whose send fails leaves the rotation, another is chosen, and all senders learn of it",
        "runtime/failover/test_sender.py::test_a_failing_backlog_queue_leaves_the_rotation_for_every_sender",
    ),
    (
        "001",
        "with one queue only, a failing queue means that the message is not sent",
        "runtime/failover/test_sender.py::test_both_sides_dark_raises_within_the_callers_time",
    ),
    # The diverted message
    (
        "000",
        "session, time to live and scheduled time are cleared and kept under new names, the path is added",
        "runtime/failover/test_sender.py::test_with_interval_zero_the_failing_message_itself_is_rerouted",
    ),
    (
        "000",
        "several entities share one backlog queue",
        "runtime/failover/test_failover_emulator.py::test_a_dark_primary_fails_over_and_back",
    ),
    (
        "000",
        "a message near the limit meets trouble in the backlog",
        "runtime/failover/test_sender.py::test_a_message_that_outgrows_the_backlog_is_refused_before_it_is_sent",
    ),
    # Ping
    (
        "000",
        "a ping is an empty message with its content type and a time to live of one second",
        "runtime/failover/test_ping.py::test_a_ping_is_the_documented_message",
    ),
    (
        "000",
        "each entity that is unavailable is pinged, once per interval",
        "runtime/failover/test_ping.py::test_one_ping_per_interval_per_unavailable_entity",
    ),
    (
        "000",
        "pings stop as soon as the entity is available",
        "runtime/failover/test_ping.py::test_pings_stop_with_the_first_success",
    ),
    (
        "000",
        "when a ping succeeds, all senders of the entity use the primary again at once",
        "runtime/failover/test_sender.py::test_after_a_successful_ping_new_sends_go_to_the_primary_at_once",
    ),
    # Syphon, close and fault
    (
        "000",
        "at least one process runs the syphon, which moves the messages to their entities",
        "runtime/failover/test_pairing.py::test_with_the_syphon_enabled_diverted_messages_go_home_by_themselves",
    ),
    (
        "000",
        "a side whose partner closed or faulted has five seconds, then it is faulted",
        "core/failover/test_coupling.py::test_the_partner_is_faulted_five_seconds_after_a_close_or_fault",
    ),
    (
        "000",
        "that happens in applications that host the syphon",
        "core/failover/test_coupling.py::test_without_the_syphon_the_sides_are_independent",
    ),
    # Transfers (002)
    (
        "002",
        "a send ends when the broker's answer is there",
        "runtime/failover/test_sender_simulation.py::test_every_accepted_message_has_exactly_one_home",
    ),
    (
        "002",
        "a rejection is raised to the caller with its text",
        "runtime/failover/test_sender.py::test_errors_of_the_caller_never_fail_over",
    ),
    (
        "002",
        "sends overlap, bounded by a semaphore, and every result is fetched",
        "runtime/failover/test_sender.py::test_send_all_overlaps_within_its_bound_and_awaits_every_result",
    ),
    (
        "002",
        "sends started without awaiting fill memory",
        "runtime/failover/test_sender.py::test_send_all_reads_no_further_than_it_may",
    ),
    # Partitioned entities (003)
    (
        "003",
        "session id and partition key are the same if both are set",
        "runtime/failover/test_sender.py::test_partitioned_entities_refuse_a_key_other_than_the_session",
    ),
    (
        "003",
        "messages sent together share their key",
        "core/failover/test_failover_parts.py::test_a_batch_to_a_partitioned_entity_shares_its_key",
    ),
    (
        "003",
        "the time-out of a send is over 15 seconds, 60 by default",
        "runtime/failover/test_sender.py::test_a_partitioned_entity_gets_sixty_seconds_at_least",
    ),
]

NOT_APPLICABLE = {
    "000: the server never hands out a ping": "the service's doing; drains know pings by their content type",
    "000: pings are charged as ordinary messages": "a bill, see the cost model",
    "001: session state is kept on the primary only": "sbpair neither reads nor writes session state",
    "001: exceptions with IsTransient = false": "the modern SDKs have no such flag; the policy table replaces it",
    "002: pre-settled transfers": "the sender never uses them: nothing would be confirmed",
    "003: messages of a transaction share their key": "no transactions here: they end at a namespace",
    "003: a partition that is down fails only its keys": "the service's doing; a send without a key goes elsewhere",
}


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("where", sorted({where for _, _, where in SENTENCES}))
def test_the_test_of_a_sentence_exists(where: str) -> None:
    path, _, name = where.partition("::")
    assert name in names_in(TESTS / path)


def test_every_seed_about_sending_is_covered() -> None:
    assert {seed for seed, _, _ in SENTENCES} == {"000", "001", "002", "003"}
    assert all(reason for reason in NOT_APPLICABLE.values())
