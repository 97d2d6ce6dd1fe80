"""The hand-written frames, read back by the SDK's decoder and by ours."""

import struct

import pytest
from azure.servicebus._pyamqp._decode import decode_frame

from sbpair.amqp.decoding import decode, decode_all
from sbpair.amqp.types import Described, Symbol
from sbpair.azure import frames
from sbpair.azure.errors import WireError


def decoded(data: bytes) -> list[tuple[int, list[object]]]:
    return [decode_frame(body) for _, body in frames.FrameBuffer().feed(data)]


def test_a_small_message_is_one_transfer() -> None:
    data, count = frames.transfer_frames(3, 1, 9, b"tag1", frames.BATCH_FORMAT, b"payload", 1024)
    assert count == 1
    ((channel, body),) = frames.FrameBuffer().feed(data)
    performative, fields = decode_frame(body)
    assert (channel, performative) == (3, 20)
    assert fields[:6] == [1, 9, b"tag1", frames.BATCH_FORMAT, False, False]
    assert bytes(fields[-1]) == b"payload"


@pytest.mark.parametrize("size", [447, 448, 449, 896, 5000])
def test_a_large_message_is_split_below_the_frame_limit(size: int) -> None:
    payload = bytes(range(256)) * 20
    data, count = frames.transfer_frames(0, 1, 9, b"tag1", 0, payload[:size], 512)
    pieces = decoded(data)
    assert len(pieces) == count
    assert b"".join(bytes(fields[-1]) for _, fields in pieces) == payload[:size]
    assert [fields[5] for _, fields in pieces] == [True] * (count - 1) + [False]
    assert all(len(body) + 8 <= 512 for _, body in frames.FrameBuffer().feed(data))


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (frames.ACCEPTED, "accepted"),
        (frames.RELEASED, "released"),
        (frames.MODIFIED_FAILED, "modified"),
        (frames.MODIFIED_UNDELIVERABLE, "modified"),
        (frames.rejected("why", "because"), "rejected"),
        (frames.rejected("why", "b" * 5000), "rejected"),
    ],
)
def test_dispositions_say_which_and_what(outcome: bytes, name: str) -> None:
    ((performative, fields),) = decoded(frames.disposition_frame(0, 77, outcome, settled=False))
    assert performative == 21
    assert fields[:4] == [True, 77, None, False]
    assert list(fields[4]) == [name]  # type: ignore[call-overload]


@pytest.mark.parametrize(("last", "said"), [(None, None), (77, None), (78, 78), (2**32 - 1, 2**32 - 1)])
def test_a_disposition_speaks_of_one_delivery_or_of_a_range(last: int | None, said: int | None) -> None:
    ((performative, fields),) = decoded(frames.disposition_frame(0, 77, frames.ACCEPTED, settled=True, last=last))
    assert performative == 21
    assert fields[:4] == [True, 77, said, True]


def test_a_dead_letter_outcome_names_reason_and_description() -> None:
    outcome = decode_all(frames.rejected("why", "because"))
    assert isinstance(outcome, Described)
    condition, description, info = outcome.value[0].value
    assert condition == Symbol("com.microsoft:dead-letter")
    assert description == "because"
    assert info == {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "because"}


def test_frames_are_cut_out_of_any_chunks() -> None:
    one, _ = frames.transfer_frames(1, 1, 1, b"t", 0, b"x" * 100, 1024)
    two, _ = frames.transfer_frames(2, 1, 2, b"t", 0, b"y" * 10, 1024)
    stream = b"AMQP\x00\x01\x00\x00" + one + b"\x00\x00\x00\x08\x02\x00\x00\x00" + two
    whole = [(channel, bytes(body)) for channel, body in frames.FrameBuffer().feed(stream)]
    assert [channel for channel, _ in whole] == [0, 1, 0, 2]
    assert whole[0][1].startswith(b"AMQP")
    assert whole[2][1] == b""
    buffer = frames.FrameBuffer()
    pieces = [(channel, bytes(body)) for byte in stream for channel, body in buffer.feed(bytes((byte,)))]
    assert pieces == whole


@pytest.mark.parametrize(
    "head", [b"\x00\x00\x00\x07\x02\x00\x00\x00", b"\x00\x00\x00\x10\x01\x00\x00\x00", b"HTTP/1.1"]
)
def test_what_is_not_amqp_is_refused(head: bytes) -> None:
    with pytest.raises(WireError, match="not AMQP"):
        frames.FrameBuffer().feed(head)


def a_large_list(*items: bytes) -> bytes:
    content = b"".join(items)
    return b"\xd0" + struct.pack(">II", len(content) + 4, len(items)) + content


@pytest.mark.parametrize(
    ("performative", "end"),
    [(b"\x00\x53\x14\x45", 4), (b"\x00\x53\x14\xc0\x02\x01\x40", 7), (b"\x00\x53\x14" + a_large_list(b"\x40"), 13)],
    ids=["no field", "short", "long"],
)
def test_a_performative_ends_where_the_payload_starts(performative: bytes, end: int) -> None:
    assert frames.performative_end(memoryview(performative + b"payload")) == end == len(performative)


NULLS = b"\xf0" + struct.pack(">IIB", 5, 65_536, 0x40)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\x00\x53\x14",
        b"\x00\x53\x14\xc0\x00",
        b"\x00\x53\x14\xc0\xff\xff",
        b"\x00\x53\x14\xd0\x00",
        b"\x00\x53\x14\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x80\x14\x45",
        b"\x01\x02\x03\x04\x05\x06\x07\x08",
        b"\x00\x53\x14" + a_large_list(b"\xff"),
        b"\x00\x53\x14" + a_large_list(NULLS, NULLS),
        b"\x00\x53\x14" + a_large_list(*[b"\x40"] * 70_000),
    ],
    ids=range(11),
)
def test_a_performative_that_would_unpack_to_much_or_to_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(WireError) as refused:
        frames.performative_end(memoryview(body))
    assert refused.value.condition == "amqp:connection:framing-error"


def test_dead_letter_texts_are_cut_to_what_the_service_keeps() -> None:
    outcome, _ = decode(frames.rejected("r" * 60_000, "d" * 60_000))
    condition, description, info = outcome.value[0].value
    assert condition == frames.DEAD_LETTER_CONDITION
    assert (len(description), [len(text) for text in info.values()]) == (4096, [4096, 4096])
