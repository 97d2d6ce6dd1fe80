"""Counters and health of a running syphon."""

import pytest

from sbpair.core import events
from sbpair.core.transfer.report import Tally, numbers
from sbpair.render.service import SHOWN_IN_PARTS, ServiceMetrics

QUEUE = "p/x-servicebus-transfer/0"


class Watched:
    def __init__(self, poll_seconds: float = 900.0) -> None:
        self.now = 1000.0
        self.metrics = ServiceMetrics("orders", poll_seconds=poll_seconds, now=lambda: self.now)

    def hears(self, *heard: events.Event) -> None:
        for event in heard:
            self.metrics.notify(event)


def test_counters_add_up_and_keep_their_labels() -> None:
    watched = Watched()
    watched.hears(
        events.Forwarded(1001, QUEUE, "orders", 5, 500),
        events.Forwarded(1002, QUEUE, "orders", 2, 200),
        events.Forwarded(1002, QUEUE, 'odd"name', 1, 10),
        events.DeadLettered(1003, QUEUE, 7, "TooLarge", ""),
        events.Restarting(1004, "error", "text", 1.0),
    )
    text = watched.metrics.text()
    labels = f'pair="orders",queue="{QUEUE}"'
    assert f'sbpair_syphon_forwarded_messages_total{{{labels},entity="orders"}} 7' in text
    assert f'sbpair_syphon_forwarded_bytes_total{{{labels},entity="orders"}} 700' in text
    assert f'sbpair_syphon_forwarded_messages_total{{{labels},entity="odd\\"name"}} 1' in text
    assert f'sbpair_syphon_dead_lettered_messages_total{{{labels},reason="TooLarge"}} 1' in text
    assert 'sbpair_syphon_restarts_total{pair="orders",code="error"} 1' in text
    assert text.count("# TYPE sbpair_syphon_forwarded_messages_total counter") == 1


@pytest.mark.parametrize("name", Tally().numbers)
def test_every_counter_of_a_drain_is_told(name: str) -> None:
    watched = Watched()
    watched.metrics.totals.numbers[name] = 4711
    (counter,) = (one for one in numbers() if one.name == name)
    sample = f"sbpair_syphon_{counter.metadata['metric'].removeprefix('sbpair_')}_total"
    if name in SHOWN_IN_PARTS:
        assert "4711" not in watched.metrics.text()
    else:
        assert f'{sample}{{pair="orders"}} 4711\n' in watched.metrics.text()


def test_two_failures_in_a_row_are_borne_three_are_not_and_a_poll_mends_it() -> None:
    watched = Watched()
    failure = events.ReceiveFailed(1001, QUEUE, "timeout", 1.0)
    watched.hears(failure, failure)
    assert watched.metrics.troubles() == []
    watched.hears(failure)
    assert watched.metrics.troubles() == [f"{QUEUE} failed 3 times in a row (timeout)"]
    assert 'sbpair_syphon_healthy_ratio{pair="orders"} 0' in watched.metrics.text()
    watched.hears(events.Polled(1010, QUEUE, 0))
    assert watched.metrics.troubles() == []


def test_silence_of_two_polls_is_trouble() -> None:
    watched = Watched(poll_seconds=60)
    watched.now += 149
    assert watched.metrics.troubles() == []
    watched.now += 2
    assert watched.metrics.troubles() == ["no poll was answered for 2m31s"]
    watched.hears(events.Polled(watched.now, QUEUE, 3))
    assert watched.metrics.troubles() == []


def test_holding_still_for_a_destination_that_is_down_is_no_trouble() -> None:
    watched = Watched(poll_seconds=1)
    watched.hears(events.Paused(watched.now, "orders", "timeout", 120.0))
    watched.now += 140
    assert watched.metrics.troubles() == []
    assert 'sbpair_syphon_pause_left_seconds{pair="orders",entity="orders"} 0' in watched.metrics.text()
    watched.hears(events.Resumed(watched.now, "orders"))
    assert "pause_left_seconds" not in watched.metrics.text()
    watched.now += 100
    assert watched.metrics.troubles() != []
