"""A destination's health, and what fits into a batch."""

import pytest

from sbpair.core.errors import ConnectionLostError, OperationTimeoutError, QuotaExceededError, UnauthorizedError
from sbpair.core.message import BATCH_ENVELOPE_BYTES, BATCHED_MESSAGE_BYTES, Received
from sbpair.core.transfer.delivery import PROBE_SECONDS, Destination, comes_before
from sbpair.core.transfer.state import MAX_BATCH_BYTES, Item, Limits, Stage, key_of

SILENCE = ConnectionLostError("silence")


def message(number, *, session=None, size=100, source="backlog/0", enqueued_at=1.0, **fields):
    received = Received(payload=b"", sequence_number=number, source=source, enqueued_at=enqueued_at)
    lane = None if session is None else ("orders", session)
    return Item(key_of(received), received, 60.0, 60.0, payload=bytes(size), session_id=session, lane=lane, **fields)


def destination(*items, limit_bytes=100_000):
    made = Destination("orders")
    made.limit_bytes = limit_bytes
    for item in items:
        made.add(item)
    return made


def numbers(batch):
    return [item.received.sequence_number for item in batch.items]


def never(item):
    return False


def test_waits_grow_and_a_probe_is_made_before_the_long_ones_are_over():
    made = Destination("orders")
    made.tried_at = 3.0
    assert [made.failed(SILENCE, 10.0 + n) for n in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert (made.paused_until, made.probe_at, made.last_error) == (21.0, 13.0 + PROBE_SECONDS, SILENCE)
    assert made.failing_since == 3.0, "when the try began that failed first"


def test_a_short_wait_needs_no_probe():
    made = Destination("orders")
    for _ in range(3):
        made.failed(SILENCE, 0.0)
    assert (made.paused_until, made.probe_at) == (4.0, None)


@pytest.mark.parametrize("error", [QuotaExceededError("full"), UnauthorizedError("no")])
def test_what_a_person_has_to_mend_is_tried_slowly_and_never_probed(error):
    made = Destination("orders")
    assert [made.failed(error, 0.0), made.failed(error, 10.0)] == [10.0, 20.0]
    assert made.probe_at is None


def test_an_accepted_batch_ends_the_trouble():
    made = Destination("orders")
    assert not made.took(1.0)
    made.failed(SILENCE, 2.0)
    assert made.took(30.0)
    assert (made.failures, made.failing_since, made.paused_until, made.probe_at) == (0, None, 0.0, None)
    assert (made.reached, made.tried_at) == (True, 30.0)


def test_an_open_link_ends_the_pause_and_not_the_trouble():
    made = Destination("orders")
    for _ in range(4):
        made.failed(SILENCE, 0.0)
    made.measuring = True
    made.opened(500)
    assert (made.limit_bytes, made.measuring, made.paused_until, made.probe_at) == (500, False, 0.0, None)
    assert made.failures == 4


def test_the_patience_with_a_destination_that_took_nothing_yet_is_shorter():
    limits = Limits(patience_seconds=100.0, unreached_seconds=20.0)
    made = Destination("orders")
    made.tried_at = 10.0
    made.failed(SILENCE, 12.0)
    assert (made.patience_left(limits, 25.0), made.patience_left(limits, 40.0)) == (5.0, 0.0)
    assert [made.outlasts_patience(limits, now) for now in (29.9, 30.0)] == [False, True]
    made.reached = True
    assert made.patience_left(limits, 25.0) == 85.0
    assert [made.outlasts_patience(limits, now) for now in (109.9, 110.0)] == [False, True]


def test_without_a_bound_or_a_failure_no_patience_ends():
    made = Destination("orders")
    assert not made.outlasts_patience(Limits(patience_seconds=1.0), 1e9)
    made.failed(SILENCE, 0.0)
    assert (made.patience_left(Limits(), 5.0), made.outlasts_patience(Limits(), 1e9)) == (None, False)


def test_a_probe_is_made_during_a_pause_only_and_one_at_a_time():
    made = Destination("orders")
    for _ in range(4):
        made.failed(SILENCE, 0.0)
    assert made.next_probe(7.9) == PROBE_SECONDS
    assert made.next_probe(8.0) is None, "the pause is over"
    made.measuring = True
    assert made.next_probe(7.0) is None
    made.measuring = False
    made.abandon(SILENCE)
    assert made.next_probe(7.0) is None


def test_nothing_is_sent_while_nothing_waits_or_during_a_pause_or_once_it_is_abandoned():
    made = Destination("orders")
    assert not made.may_send(0.0)
    made.add(message(1))
    assert made.may_send(0.0)
    made.failed(SILENCE, 0.0)
    assert [made.may_send(now) for now in (0.9, 1.0)] == [False, True]
    timeout = OperationTimeoutError("no answer")
    assert made.abandon(timeout) == f"destination unavailable: orders ({timeout.code})"
    assert (made.may_send(9.0), made.last_error) == (False, timeout)
    source = OperationTimeoutError("no answer", entity="from")
    assert Destination("orders").abandon(source) == f"source unavailable: from ({timeout.code})"
    assert Destination("orders").abandon(OperationTimeoutError("", entity="Orders")).startswith("destination")
    assert Destination("orders").abandon(None) == "destination unavailable: orders ()"


def test_a_batch_is_filled_to_the_byte():
    fits = 2 * (100 + BATCHED_MESSAGE_BYTES) + BATCH_ENVELOPE_BYTES
    made = destination(*map(message, (1, 2, 3)), limit_bytes=fits)
    assert [numbers(made.next_batch(10, never)), numbers(made.next_batch(10, never))] == [[1, 2], [3]]
    made = destination(*map(message, (1, 2)), limit_bytes=fits - 1)
    assert numbers(made.next_batch(10, never)) == [1]


def test_a_batch_is_never_larger_than_the_service_takes():
    half = MAX_BATCH_BYTES // 2
    made = destination(message(1, size=half), message(2, size=half), limit_bytes=100 * MAX_BATCH_BYTES)
    assert numbers(made.next_batch(10, never)) == [1]


def test_a_batch_holds_no_more_than_the_allowed_messages_and_counts_them():
    made = destination(*map(message, (1, 2, 3)))
    batch = made.next_batch(2, never)
    assert (numbers(batch), made.waiting_count) == ([1, 2], 1)
    assert [(item.stage, item.attempts) for item in batch.items] == [(Stage.SENDING, 1)] * 2
    assert made.next_batch(0, never) is None


def test_what_is_to_go_alone_goes_alone():
    alone = message(2)
    alone.alone = True
    made = destination(message(1), alone, message(3))
    assert [numbers(made.next_batch(10, never)) for _ in range(3)] == [[1], [2], [3]]


def test_where_sessions_may_not_be_mixed_a_batch_holds_those_of_a_kind():
    made = destination(message(1, partition_key="a"), message(2, partition_key="a"), message(3, partition_key="b"))
    made.mixed = False
    assert [numbers(made.next_batch(10, never)) for _ in range(2)] == [[1, 2], [3]]


def test_a_session_goes_on_only_when_its_batch_is_answered():
    made = destination(*(message(number, session="s") for number in (1, 2, 3)))
    made.sending = 1
    batch = made.next_batch(2, never)
    assert (numbers(batch), made.next_batch(2, never)) == ([1, 2], None)
    made.over(batch)
    assert (numbers(made.next_batch(2, never)), made.sending) == ([3], 0)


def test_a_session_that_found_no_room_waits_once_and_has_one_batch_on_its_way():
    made = destination(message(1), message(2, session="s", size=50_000), limit_bytes=50_100)
    assert numbers(made.next_batch(10, never)) == [1], "no room beside it"
    made.add(message(3, session="s"))
    assert [numbers(made.next_batch(10, never)), made.next_batch(10, never)] == [[2], None]


def test_a_blocked_session_lets_the_others_go():
    made = destination(message(1, session="a"), message(2, session="b"), message(3, session="a"))
    assert numbers(made.next_batch(10, lambda item: item.session_id == "a")) == [2]
    assert [item.received.sequence_number for item in made.lane(("orders", "a"))] == [1, 3]
    assert numbers(made.next_batch(10, never)) == [1, 3]


def test_what_comes_late_takes_its_place():
    made = destination(message(1, session="a"), message(4, session="a"), message(2, session="a"))
    assert [item.received.sequence_number for item in made.waiting()] == [1, 2, 4]
    failed = message(9)
    made.add(message(8))
    made.add(failed, front=True)
    assert [item.received.sequence_number for item in made.waiting()][:2] == [9, 8]


def test_a_message_that_is_taken_out_waits_no_more():
    first, second, loose = message(1, session="a"), message(2, session="a"), message(3)
    made = destination(first, second, loose)
    made.remove(first)
    made.remove(loose)
    assert (made.waiting(), made.waiting_count) == ([second], 1)


@pytest.mark.parametrize(
    ("first", "second", "before"),
    [
        (message(1), message(2), True),
        (message(2), message(1), False),
        (message(9, enqueued_at=1.0), message(1, source="backlog/1", enqueued_at=2.0), True),
        (message(1, enqueued_at=2.0), message(9, source="backlog/1", enqueued_at=2.0), True),
        (message(1, source="backlog/1", enqueued_at=2.0), message(9, enqueued_at=2.0), False),
        (message(1, enqueued_at=None), message(9, source="backlog/1"), False),
        (message(1), message(9, source="backlog/1", enqueued_at=None), False),
    ],
)
def test_the_order_within_a_queue_is_its_numbers_and_among_queues_the_time(first, second, before):
    assert comes_before(first, second) is before


def test_a_message_may_be_as_large_as_the_link_takes():
    made = destination(limit_bytes=100)
    assert not made.too_large(message(1, size=100))
    assert made.too_large(message(1, size=101))
    made.limit_bytes = None
    assert not made.too_large(message(1, size=101))


def test_a_transaction_out_of_a_partitioned_queue_has_one_key_and_passes_over_the_others():
    keyed = [(number, message((number % 3 + 1 << 48) + number, partition_key="abc"[number % 3])) for number in range(9)]
    made = Destination("orders", in_transactions=True)
    made.limit_bytes = 100_000
    for _, item in keyed:
        made.add(item)
    batches = [made.next_batch(100, never) for _ in range(4)]
    assert [[item.group for item in batch.items] for batch in batches[:3]] == [[key] * 3 for key in "abc"]
    assert [numbers(batch) for batch in batches[:3]] == [
        [item.received.sequence_number for number, item in keyed if number % 3 == place] for place in range(3)
    ]
    assert batches[3] is None


def test_a_transaction_out_of_an_ordinary_queue_mixes_keys():
    made = Destination("orders", in_transactions=True)
    made.limit_bytes = 100_000
    for number in range(4):
        made.add(message(number, partition_key=f"k{number}"))
    assert numbers(made.next_batch(100, never)) == [0, 1, 2, 3]
