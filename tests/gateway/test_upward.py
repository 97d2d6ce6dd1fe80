"""Transfers and answers on their way, against the engine's own reading of them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.frames import Outbox, transfer_continuation, transfer_head
from sbpair.amqp.performatives import TRANSFER, Fields, accepted, perform, read_performative, released
from sbpair.amqp.types import AmqpDecodeError, Uint
from sbpair.engine.errors import rejected
from sbpair.gateway.upward import put_head, read_accepted, read_head

numbers = st.integers(0, 2**32 - 1)


@given(
    numbers, numbers, st.binary(max_size=32), st.sampled_from([0, 0x80013700]), st.booleans(), st.booleans(), numbers
)
def test_a_head_keeps_all_but_its_numbers(
    handle: int, number: int, tag: bytes, kind: int, settled: bool, more: bool, new: int
) -> None:
    body = transfer_head(handle, number, tag, kind, settled=settled, more=more) + b"payload"
    head = read_head(body)
    assert head is not None
    assert (head.handle, head.delivery_id, head.tag, head.message_format) == (handle, number, tag, kind)
    assert (head.settled, head.more, body[head.payload_start :]) == (settled, more, b"payload")
    _, before, _ = read_performative(body)
    _, after, _ = read_performative(put_head(head, new, new))
    assert after == [new, new, *before[2:]]


@given(numbers, st.booleans())
def test_a_continuation_has_no_number(handle: int, more: bool) -> None:
    head = read_head(transfer_continuation(handle, settled=False, more=more))
    assert head is not None
    assert (head.delivery_id, head.more) == (None, more)
    assert Fields(read_performative(put_head(head, 7, None))[1]).number(1) is None


@given(numbers, numbers)
def test_the_last_frame_of_a_message_may_have_a_handle_alone(handle: int, new: int) -> None:
    """go-amqp leaves out each null at the end of a list."""
    head = read_head(perform(TRANSFER, [Uint(handle)]) + b"payload")
    assert head is not None
    assert (head.handle, head.delivery_id, head.more) == (handle, None, False)
    _, after, _ = read_performative(put_head(head, new, None))
    assert after[:2] == [new, None] and not any(after[2:])


@given(st.binary(max_size=40))
def test_what_is_no_head_is_refused(noise: bytes) -> None:
    for start in (b"", b"\x00\x53\x14", b"\x00\x53\x14\xc0"):
        try:
            read_head(start + noise)
        except AmqpDecodeError:
            continue


@given(numbers, st.integers(0, 500), st.booleans())
def test_only_the_usual_answer_is_read_fast(first: int, more: int, receiver: bool) -> None:
    last = min(first + more, 2**32 - 1)
    for state in (accepted(), released(), rejected("amqp:internal-error", "no")):
        body = perform(0x15, [receiver, Uint(first), Uint(last), True, state])
        expected = (first, last) if receiver and state is accepted() else None
        assert read_accepted(body) == expected


def test_the_engines_own_answer_is_read_fast() -> None:
    outbox = Outbox()
    outbox.disposition(1, True, 5, accepted())
    outbox.disposition(1, True, 6, accepted())
    assert read_accepted(outbox.take()[8:]) == (5, 6)


@pytest.mark.parametrize("cut", range(3, 20))
def test_a_cut_head_is_no_head(cut: int) -> None:
    body = transfer_head(1, 70000, b"tag", 0, settled=False, more=False)[:cut]
    with contextlib.suppress(AmqpDecodeError):
        assert read_head(body) is None
