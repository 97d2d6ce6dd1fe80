"""The small parts around the pump: lock clock, back-off, filter."""

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.retry import REFUSED, SYPHON
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.state import LockClock
from sbpair.core.where import parse_where


def test_a_fresh_lock_lasts_its_whole_duration_whatever_the_local_clock_says():
    for skew in (-3600.0, 0.0, 3600.0):
        clock = LockClock(60.0)
        assert clock.deadline(1060.0, now_utc=1000.0 + skew, now=5.0) == 65.0


def test_an_aged_lock_is_shorter_by_its_age():
    clock = LockClock(60.0)
    clock.deadline(1060.0, now_utc=1300.0, now=5.0)
    assert clock.deadline(1060.0, now_utc=1345.0, now=50.0) == 65.0


def test_a_lock_without_an_end_lasts_from_now():
    assert LockClock(30.0).deadline(None, now_utc=0.0, now=7.0) == 37.0


def test_back_off_grows_to_its_bound():
    assert [SYPHON.seconds(failures) for failures in (0, 1, 2, 3, 8, 9, 10_000)] == [0, 1, 2, 4, 120, 120, 120]
    assert REFUSED.seconds(1) == 10
    assert SYPHON.seconds(3, jitter=1.0) == 2.0


MESSAGE = for_backlog(
    compose(
        body=b"12345",
        message_id="m-1",
        subject="invoice for DE",
        content_type="application/json",
        session_id="s",
        application_properties={"country": "DE", "amount": 1200, "urgent": True},
        ttl_seconds=60,
    ),
    "invoices/incoming",
)
RECEIVED = Received(MESSAGE, sequence_number=5, source="q", enqueued_at=1_790_000_000.0, delivery_count=2)


@pytest.mark.parametrize(
    "text",
    [
        "message_id = m-1",
        "message_id=m-1",
        "subject = 'invoice for DE'",
        'subject ~ "invoice*"',
        "destination = invoices/incoming and session_id = s",
        "content_type ~ application/*",
        "properties.country in DE,FR",
        "properties.amount > 1000 and properties.amount <= 1200",
        "properties.urgent = true",
        "delivery_count >= 2",
        "enqueued_at < 2027-01-01T00:00:00Z",
        "enqueued_at >= 2026-01-01",
        "ttl_seconds = 60",
        "message_id = other or sequence_number = 5",
        "subject = other and message_id = m-1 or session_id = s",
        "dead_letter_reason != TTLExpiredException",
        "size_bytes > 9",
    ],
)
def test_filters_that_match(text):
    assert parse_where(text).matches(describe(MESSAGE), RECEIVED)


@pytest.mark.parametrize(
    "text",
    [
        "message_id != m-1",
        "properties.country in FR,IT",
        "properties.missing = x",
        "properties.amount < 1000",
        "enqueued_at > 2027-01-01T00:00:00Z",
        "session_id = s and message_id = other",
        "partition_key ~ *",
    ],
)
def test_filters_that_do_not(text):
    assert not parse_where(text).matches(describe(MESSAGE), RECEIVED)


@pytest.mark.parametrize(
    "text",
    ["", "subject", "subject is x", "colour = red", "properties. = x", "enqueued_at < soon", "a = 'b", "subject = a b"],
)
def test_filters_that_are_none(text):
    with pytest.raises(UsageError):
        parse_where(text)
