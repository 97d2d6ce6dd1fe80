"""Every metric there is, in one table: its name, which ends in its unit, its labels, and what it says.

A sample of another name, or with other labels, cannot be made. Numbers of a drain's report are declared with the report
(`sbpair.core.transfer.report`), whose names and texts they take; the service that drains adds them up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from sbpair.core.serialization import column


@dataclass(frozen=True, slots=True)
class Series:
    """A metric, as `sbpair help metrics` shows it."""

    name: str = field(metadata=column("Metric"))
    labels: tuple[str, ...] = field(metadata=column("Labels"))
    help: str = field(metadata=column("What it says"))
    counter: bool = False
    """It only rises while its process lives; otherwise a value of now."""


_NAMESPACE, _ENTITY, _PAIR = ("namespace",), ("namespace", "entity"), ("pair",)
_PING, _GATEWAY, _DRILL = ("pair", "side", "entity"), ("pair", "entity"), ("pair", "entity", "outage")
_GAUGES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("sbpair_entities_up", _NAMESPACE, "1 if the entities of a namespace were read, else 0."),
    ("sbpair_entities", _NAMESPACE, "Queues, topics and subscriptions of a namespace."),
    ("sbpair_entities_left_out", _NAMESPACE, "Entities beyond --most-entities, of which there are no samples."),
    ("sbpair_entities_sessions_not_read", _NAMESPACE, "Entities with messages whose sessions were not read."),
    ("sbpair_entity_enabled", _ENTITY, "1 if an entity is Active, 0 if it is disabled."),
    ("sbpair_entity_active_messages", _ENTITY, "Active messages of an entity, deferred ones included."),
    ("sbpair_entity_dead_letter_messages", _ENTITY, "Dead letters of an entity."),
    (
        "sbpair_entity_dead_letter_cause_messages",
        (*_ENTITY, "cause"),
        "Dead letters of an entity by cause, a word of `sbpair explain`.",
    ),
    ("sbpair_entity_scheduled_messages", _ENTITY, "Scheduled messages of an entity."),
    ("sbpair_entity_transfer_messages", _ENTITY, "Messages on their way to where an entity forwards, or stuck."),
    ("sbpair_entity_transfer_dead_letter_messages", _ENTITY, "Messages that could not be forwarded."),
    ("sbpair_entity_size_bytes", _ENTITY, "Size of an entity, dead letters included."),
    ("sbpair_entity_oldest_age_seconds", _ENTITY, "Age of the first message of a queue or subscription."),
    ("sbpair_entity_sessions", _ENTITY, "Sessions of an entity that hold messages or a state."),
    ("sbpair_listed_dead_letter_messages", _ENTITY, "Dead letters of an entity that a list has shown."),
    ("sbpair_namespace_up", (*_PAIR, "side"), "1 if it answered."),
    ("sbpair_backlog_active_messages", _PAIR, "Messages that a drain would move to the primary."),
    ("sbpair_backlog_dead_letter_messages", _PAIR, "Dead letters of the backlog queues."),
    ("sbpair_backlog_deferred_messages", _PAIR, "Deferred messages, where they are known."),
    ("sbpair_backlog_scheduled_messages", _PAIR, "Scheduled messages."),
    ("sbpair_backlog_queues", _PAIR, "Backlog queues that exist."),
    ("sbpair_backlog_queue_active_messages", (*_PAIR, "index"), "Messages of a backlog queue that a drain would move."),
    ("sbpair_backlog_queue_dead_letter_messages", (*_PAIR, "index"), "Dead letters of a backlog queue."),
    ("sbpair_backlog_oldest_age_seconds", _PAIR, "Age of the oldest message."),
    ("sbpair_backlog_growth_messages_per_second", _PAIR, "Change of the backlog."),
    ("sbpair_backlog_messages", (*_PAIR, "kind"), "Messages in the pair's backlog queues."),
    ("sbpair_backlog_size_bytes", _PAIR, "Size of the pair's backlog queues."),
    ("sbpair_audit_findings", (*_PAIR, "severity"), "Findings of the last audit."),
    ("sbpair_audit_check_findings", (*_PAIR, "code"), "Findings by check."),
    (
        "sbpair_audit_skipped_checks",
        _PAIR,
        "Checks that could not run, but for those whose facts the API in use never has.",
    ),
    ("sbpair_audit_management_calls", _PAIR, "Management calls of the audit."),
    ("sbpair_audit_throttling_credits", _PAIR, "Credits it used."),
    ("sbpair_last_success_timestamp_seconds", ("command", "pair"), "When this command last ran to its end."),
    ("sbpair_left_messages", _PAIR, "Messages of any kind in the backlog after this run."),
    ("sbpair_left_dead_letter_messages", _PAIR, "Dead letters in the backlog after this run."),
    ("sbpair_ping_up", _PING, "1 if the last ping was accepted."),
    ("sbpair_ping_tries", _PING, "Pings of the last run."),
    ("sbpair_ping_accepted", _PING, "Accepted pings of the last run."),
    ("sbpair_ping_connect_seconds", _PING, "The first accepted ping, which connects."),
    ("sbpair_ping_latency_seconds", (*_PING, "quantile"), "Time to acceptance on an open connection, by nearest rank."),
    ("sbpair_drill_divert_seconds", _DRILL, "From the outage to the first diverted message of a drill."),
    ("sbpair_drill_fail_back_seconds", _DRILL, "From the end of the outage to the failback."),
    ("sbpair_drill_first_back_seconds", _DRILL, "From the start of the drain to the first message back."),
    ("sbpair_drill_back_messages_per_second", _DRILL, "Messages that the drain sent back a second."),
    ("sbpair_gateway_entity_state", (*_GATEWAY, "state"), "1 for the state of an entity's sends."),
    ("sbpair_gateway_connections", _PAIR, "Connections of clients."),
    ("sbpair_gateway_ready", _PAIR, "1 if messages can be accepted."),
    ("sbpair_syphon_start_timestamp_seconds", _PAIR, "When the service started."),
    ("sbpair_syphon_healthy_ratio", _PAIR, "1 while /healthz says so, else 0."),
    ("sbpair_syphon_pause_left_seconds", (*_PAIR, "entity"), "Until a held back destination is tried."),
    ("sbpair_syphon_last_poll_timestamp_seconds", (*_PAIR, "queue"), "When a poll was last answered."),
    ("sbpair_syphon_waiting_messages", (*_PAIR, "queue"), "Messages in it, as last counted."),
    ("sbpair_replicated_sessions", ("state",), "Sessions in the journal by state."),
    ("sbpair_replicated_stuck_sessions", (), "Sessions that somebody should look at."),
    ("sbpair_replication_audit_findings", ("verdict",), "Findings of the audit by kind."),
    ("sbpair_reconcile_messages", ("verdict",), "Archived messages by verdict."),
    ("sbpair_cost_month_total", (*_PAIR, "currency"), "Estimated cost of a month in the labelled currency."),
)
_COUNTERS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("sbpair_exporter_management_calls_total", _NAMESPACE, "Management calls of this exporter."),
    (
        "sbpair_exporter_credits_total",
        _NAMESPACE,
        "Throttling credits that this exporter has used: 10 a management call, 1 a browse.",
    ),
    ("sbpair_gateway_messages_total", (*_GATEWAY, "outcome"), "Messages of clients, by what became of them."),
    ("sbpair_gateway_send_seconds_total", _GATEWAY, "Time from a send's arrival until it was accepted, together."),
    ("sbpair_gateway_sends_total", (*_GATEWAY, "le"), "Sends that were accepted, by the time they took at most."),
    ("sbpair_syphon_forwarded_messages_total", (*_PAIR, "queue", "entity"), "Messages sent back to the primary."),
    ("sbpair_syphon_forwarded_bytes_total", (*_PAIR, "queue", "entity"), "Bytes sent back to the primary."),
    (
        "sbpair_syphon_dead_lettered_messages_total",
        (*_PAIR, "queue", "reason"),
        "Messages put into dead-letter queues.",
    ),
    ("sbpair_syphon_receive_failures_total", (*_PAIR, "queue", "code"), "Receives that failed."),
    (
        "sbpair_syphon_pauses_total",
        (*_PAIR, "entity", "code"),
        "Times a destination was held back; an empty entity is the whole namespace.",
    ),
    ("sbpair_syphon_restarts_total", (*_PAIR, "code"), "Times the service started again after an error."),
    ("sbpair_replicated_completed_messages", (), "Messages completed."),
    ("sbpair_replicated_failed_messages", (), "Messages that failed permanently."),
)


@cache
def series() -> Mapping[str, Series]:
    """All of them by name."""
    every = [*(Series(*one) for one in _GAUGES), *(Series(*one, counter=True) for one in _COUNTERS)]
    by_name = {one.name: one for one in _of_reports()} | {one.name: one for one in every}
    return {name: by_name[name] for name in sorted(by_name)}


def of_a_service(metric: str) -> str:
    """The name of what a service adds up of a number in the reports of its runs."""
    return f"{metric.replace('sbpair_', 'sbpair_syphon_', 1)}_total"


def _of_reports() -> Iterator[Series]:
    from sbpair.core.transfer.report import numbers

    for number in numbers():
        name, what = number.metadata["metric"], number.metadata["what"]
        yield Series(name, _PAIR, what)
        yield Series(of_a_service(name), _PAIR, what, counter=True)
