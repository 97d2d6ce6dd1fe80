"""The last value that is taken, and the first one that is not."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from sbpair.core.cost.model import Flow, Workload, polling_syphon
from sbpair.core.durations import MOST_CHARACTERS, parse_duration
from sbpair.core.editing import Repair, as_document, edited
from sbpair.core.errors import UsageError
from sbpair.core.failover.machine import EntityFailover
from sbpair.core.failover.sending import Budget
from sbpair.core.pairing import (
    MAX_BACKLOG_QUEUE_COUNT,
    MAX_FAILOVER_INTERVAL_SECONDS,
    MAX_PING_INTERVAL_SECONDS,
    MIN_PING_INTERVAL_SECONDS,
    SendAvailabilityOptions,
)
from sbpair.core.rewrite import compose
from sbpair.core.transfer.state import Limited

OPTIONS, LAST_TTL = SendAvailabilityOptions, 2**32 - 1


@dataclass
class Limit(Limited):
    concurrency: int | None = None
    rate_per_second: float | None = None


def changed(name: str, value: Any) -> Any:
    payload = compose(body="", message_id="m", session_id="s", ttl_seconds=1)
    return edited(payload, {**as_document(payload), name: value})


EDGES: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "few queues": (lambda n: OPTIONS(backlog_queue_count=n), 1, 0),
    "many queues": (lambda n: OPTIONS(backlog_queue_count=n), MAX_BACKLOG_QUEUE_COUNT, MAX_BACKLOG_QUEUE_COUNT + 1),
    "a failover at once": (lambda n: OPTIONS(failover_interval_seconds=n), 0, -0.1),
    "a late failover": (
        lambda n: OPTIONS(failover_interval_seconds=n),
        MAX_FAILOVER_INTERVAL_SECONDS,
        MAX_FAILOVER_INTERVAL_SECONDS + 0.1,
    ),
    "many pings": (
        lambda n: OPTIONS(ping_interval_seconds=n),
        MIN_PING_INTERVAL_SECONDS,
        MIN_PING_INTERVAL_SECONDS - 0.1,
    ),
    "few pings": (
        lambda n: OPTIONS(ping_interval_seconds=n),
        MAX_PING_INTERVAL_SECONDS,
        MAX_PING_INTERVAL_SECONDS + 0.1,
    ),
    "one verification": (lambda n: OPTIONS(verify_interval_seconds=n), 0, -0.1),
    "an endless verification": (lambda n: OPTIONS(verify_interval_seconds=n), 1e300, float("inf")),
    "a machine's failover": (lambda n: EntityFailover(failover_interval_seconds=n, ping_interval_seconds=1), 0, -0.1),
    "a machine's pings": (lambda n: EntityFailover(failover_interval_seconds=0, ping_interval_seconds=n), 0.1, 0),
    "a time-out": (lambda n: Budget.of(n, partitioned=False, now=0.0), 0.1, 0),
    "a poll": (polling_syphon, 1, 0),
    "all redelivered": (lambda n: Workload(redelivered_share=n), Fraction(1), Fraction(11, 10)),
    "none diverted": (lambda n: Workload(diverted_share=n), Fraction(0), Fraction(-1, 10)),
    "no consumer": (lambda n: Workload(consumers=n), 0, -1),
    "no look": (lambda n: Workload(follow_every_seconds=n), 0, -1),
    "a ping a second": (lambda n: Workload(ping_interval_seconds=n), 1, 0),
    "no message": (lambda n: Workload((Flow("orders", n, 0, 0),)), 0, -1),
    "empty messages": (lambda n: Workload((Flow("orders", 0, n, 0),)), 0, -1),
    "no copy": (lambda n: Workload((Flow("orders", 0, 0, n),)), 0, -1),
    "a message id": (lambda n: compose(body="", message_id="x" * n), 128, 129),
    "a session id": (lambda n: compose(body="", message_id="m", session_id="x" * n), 128, 129),
    "a partition key": (lambda n: compose(body="", message_id="m", partition_key="x" * n), 128, 129),
    "no time to live": (lambda n: compose(body="", message_id="m", ttl_seconds=n), 0, -0.001),
    "a long time to live": (lambda n: compose(body="", message_id="m", ttl_seconds=n), LAST_TTL / 1000, LAST_TTL + 1),
    "an edited id": (lambda n: changed("message_id", "x" * n), 128, 129),
    "an edited session": (lambda n: changed("session_id", "x" * n), 128, 129),
    "no edited time to live": (lambda n: changed("time_to_live_ms", n), 0, -1),
    "an edited time to live": (lambda n: changed("time_to_live_ms", n), LAST_TTL, LAST_TTL + 1),
    "a repaired time to live": (lambda n: Repair({"sys.TimeToLive": f"{n}ms"}), LAST_TTL, LAST_TTL + 1),
    "at once": (lambda n: Limit(concurrency=n), 1, 0),
    "a rate": (lambda n: Limit(rate_per_second=n), 0.1, 0),
    "a long text of a duration": (lambda n: parse_duration("0" * (n - 2) + "1s"), MOST_CHARACTERS, MOST_CHARACTERS + 1),
}


@pytest.mark.parametrize("name", EDGES)
def test_the_last_value_is_taken_and_the_next_one_refused(name: str) -> None:
    call, last, beyond = EDGES[name]
    call(last)
    with pytest.raises(UsageError):
        call(beyond)
