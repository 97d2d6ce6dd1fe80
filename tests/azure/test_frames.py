"""Our frames, read back by the SDK's decoder and by ours."""

import re
import struct

import pytest
from azure.servicebus._pyamqp._decode import decode_frame

from sbpair.amqp.decoding import decode, decode_all
from sbpair.amqp.encoding import encode
from sbpair.amqp.frames import FrameBuffer, FramingError, Outbox, ids_between, transfers
from sbpair.amqp.performatives import accepted, in_transaction, modified, released
from sbpair.amqp.types import Described, Symbol
from sbpair.azure import frames
from sbpair.azure.errors import WireError


def decoded(data: bytes) -> list[tuple[int, list[object]]]:
    return [decode_frame(body) for _, body in FrameBuffer().feed(data)]


def transfer(
    channel: int,
    payload: bytes,
    most_bytes: int = 1024,
    message_format: int = frames.MESSAGE_FORMAT,
    state: Described | None = None,
) -> bytes:
    """The frames of a delivery, of `most_bytes` at most."""
    outbox = Outbox()
    given = {"settled": False, "state": encode(state)}
    for head, part in transfers(1, 9, b"tag1", message_format, payload, most_bytes - 8, **given):  # type: ignore[arg-type]
        outbox.frame(channel, head, part)
    return outbox.take()


def test_a_small_message_is_one_transfer() -> None:
    data = transfer(3, b"payload", message_format=frames.BATCH_FORMAT)
    ((channel, body),) = FrameBuffer().feed(data)
    performative, fields = decode_frame(body)
    assert (channel, performative) == (3, 20)
    assert fields[:6] == [1, 9, b"tag1", frames.BATCH_FORMAT, False, False]
    assert bytes(fields[-1]) == b"payload"


@pytest.mark.parametrize("state", [None, in_transaction(b"16 bytes of an id")], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("beyond", [-400, 0, 1, 400, 5000])
def test_a_large_message_is_split_below_the_frame_limit(beyond: int, state: Described | None) -> None:
    room = 512 - len(transfer(0, b"", 512, state=state))
    payload, size = bytes(range(256)) * 30, room + beyond
    data = transfer(0, payload[:size], 512, state=state)
    pieces = decoded(data)
    count = len(pieces)
    assert (count > 1) is (beyond > 0)
    assert b"".join(bytes(fields[-1]) for _, fields in pieces) == payload[:size]
    assert [fields[5] for _, fields in pieces] == [True] * (count - 1) + [False]
    assert all(len(body) + 8 <= 512 for _, body in FrameBuffer().feed(data))


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (accepted(), "accepted"),
        (released(), "released"),
        (modified(), "modified"),
        (modified(undeliverable=True), "modified"),
        (frames.rejected("why", "because"), "rejected"),
        (frames.rejected("why", "b" * 5000), "rejected"),
    ],
)
def test_dispositions_say_which_and_what(outcome: Described, name: str) -> None:
    outbox = Outbox()
    outbox.disposition(0, True, 77, outcome, settled=False)
    ((performative, fields),) = decoded(outbox.take())
    assert performative == 21
    assert fields[:4] == [True, 77, None, False]
    assert list(fields[4]) == [name]  # type: ignore[call-overload]


@pytest.mark.parametrize(("count", "said"), [(1, None), (2, 78), (300, 376)])
def test_a_disposition_speaks_of_one_delivery_or_of_a_range(count: int, said: int | None) -> None:
    outbox = Outbox()
    for number in range(77, 77 + count):
        outbox.disposition(0, True, number, accepted())
    ((performative, fields),) = decoded(outbox.take())
    assert performative == 21
    assert fields[:4] == [True, 77, said, True]


def test_neighbours_with_one_outcome_are_settled_as_a_range() -> None:
    outbox = Outbox()
    for number in (3, 4, 5, 7, 8, 6, 6, 2**32 - 1, 0):
        outbox.disposition(0, True, number, accepted(), settled=False)
    for number, settled in ((1, False), (2, True), (3, True)):
        outbox.disposition(0, True, number, released(), settled=settled)
    joined = [(fields[1], fields[2]) for _, fields in decoded(outbox.take())]
    assert joined == [(3, 5), (7, 8), (6, None), (6, None), (2**32 - 1, None), (0, None), (1, None), (2, 3)]


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (5, None, [5]),
        (5, 5, [5]),
        (4, 4, []),
        (0, 9, [1, 5, 7]),
        (5, 2**31, [5, 7]),
        (2**32 - 2, 5, [2**32 - 1, 1, 5]),
        (6, 1, [7, 2**32 - 1, 1]),
    ],
)
def test_the_range_of_a_disposition_may_be_huge_and_come_round_to_nothing(
    first: int, last: int | None, found: list[int]
) -> None:
    assert ids_between(dict.fromkeys((1, 5, 7, 2**32 - 1)), first, last) == found


def test_a_dead_letter_outcome_names_reason_and_description() -> None:
    outcome = decode_all(encode(frames.rejected("why", "because")))
    assert isinstance(outcome, Described)
    condition, description, info = outcome.value[0].value
    assert condition == Symbol("com.microsoft:dead-letter")
    assert description == "because"
    assert info == {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "because"}


def test_frames_are_cut_out_of_any_chunks() -> None:
    one, two = transfer(1, b"x" * 100), transfer(2, b"y" * 10)
    stream = b"AMQP\x00\x01\x00\x00" + one + b"\x00\x00\x00\x08\x02\x00\x00\x00" + two
    whole = [(channel, bytes(body)) for channel, body in FrameBuffer().feed(stream)]
    assert [channel for channel, _ in whole] == [0, 1, 0, 2]
    assert whole[0][1].startswith(b"AMQP")
    assert whole[2][1] == b""
    buffer = FrameBuffer()
    pieces = [(channel, bytes(body)) for byte in stream for channel, body in buffer.feed(bytes((byte,)))]
    assert pieces == whole


@pytest.mark.parametrize(
    "head", [b"\x00\x00\x00\x07\x02\x00\x00\x00", b"\x00\x00\x00\x10\x01\x00\x00\x00", b"HTTP/1.1"]
)
def test_what_is_not_amqp_is_refused(head: bytes) -> None:
    with pytest.raises(FramingError, match=re.escape(f"{head!r} does not begin a frame")):
        list(FrameBuffer().feed(head))


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
    outcome, _ = decode(encode(frames.rejected("r" * 60_000, "d" * 60_000)))
    condition, description, info = outcome.value[0].value
    assert condition == frames.DEAD_LETTER_CONDITION
    assert (len(description), [len(text) for text in info.values()]) == (4096, [4096, 4096])
