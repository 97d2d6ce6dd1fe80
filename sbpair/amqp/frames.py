"""Frames on the wire (AMQP 1.0 §2.3): cutting what comes in, putting together what goes out.

The outbox gathers everything one turn of the loop produces and gives it away as one piece. Settlements of neighbouring
deliveries with the same outcome become one disposition with a range, as long as nothing is written in between.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from struct import Struct
from typing import Final

from sbpair.amqp.decoding import Buffer
from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import ACCEPTED_BYTES, DISPOSITION, TRANSFER, accepted
from sbpair.amqp.types import AmqpDecodeError, Described

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
MIN_MAX_FRAME_SIZE: Final = 512

_HEADER = Struct(">IBBH")
_UINT = Struct(">BI")
_SMALL_UINTS: Final = (b"\x43", *(bytes((0x52, value)) for value in range(1, 256)))
_SIZES = Struct(">II")
_NULL: Final = b"\x40"
_MASK: Final = 0xFFFFFFFF
_PROTOCOL: Final = ord("A")
_MOST_FRAME_BYTES: Final = 1 << 24
"""Far above the 1 MiB that any of us lets its peer send."""
_EMPTY_FRAME: Final = _HEADER.pack(8, 2, AMQP_FRAME, 0)
_ACCEPTED: Final = accepted()


class FramingError(ValueError):
    """The bytes are no frame this connection may carry (amqp:connection:framing-error)."""


def read_header(buffer: bytes, offset: int, max_size: int) -> tuple[int, int, int, int]:
    """Size, start of the body (relative), type and channel of the frame whose eight bytes begin at `offset`."""
    size, data_offset, kind, channel = _HEADER.unpack_from(buffer, offset)
    if not 8 <= data_offset * 4 <= size <= max_size:
        raise FramingError(f"{buffer[offset : offset + 8]!r} does not begin a frame of at most {max_size:,} bytes")
    return size, data_offset * 4, kind, channel


def encode_uint(value: int) -> bytes:
    """The shortest form of an AMQP uint."""
    return _SMALL_UINTS[value] if value < 256 else _UINT.pack(0x70, value)


def listed(code: int, count: int, fields: bytes) -> bytes:
    """A performative of `count` encoded fields."""
    if len(fields) < 255:
        return b"\x00\x53%c\xc0%c%c%b" % (code, len(fields) + 1, count, fields)
    return b"\x00\x53%c\xd0%b%b" % (code, _SIZES.pack(len(fields) + 4, count), fields)


def transfer_head(
    handle: int, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool, state: bytes = _NULL
) -> bytes:
    """The transfer performative that opens a delivery. `state`: an encoded delivery state to go with it."""
    fields = b"%b%b\xa0%c%b%b%b%b\x40%b\x40\x40\x40" % (
        encode_uint(handle),
        encode_uint(delivery_id),
        len(tag),
        tag,
        encode_uint(message_format),
        b"\x41" if settled else b"\x42",
        b"\x41" if more else b"\x42",
        state,
    )
    return listed(TRANSFER, 11, fields)


def transfer_continuation(handle: int, *, settled: bool, more: bool) -> bytes:
    """The transfer performative of a delivery's further frames; without delivery-id, which the first one gave."""
    flags = (b"\x41" if settled else b"\x42") + (b"\x41" if more else b"\x42")
    return listed(TRANSFER, 11, encode_uint(handle) + b"\x40\x40\x40" + flags + b"\x40\x40\x40\x40\x40")


def transfers(
    handle: int,
    delivery_id: int,
    tag: bytes,
    message_format: int,
    payload: bytes,
    most_bytes: int,
    *,
    settled: bool,
    state: bytes = _NULL,
) -> Iterator[tuple[bytes, bytes]]:
    """A delivery as performatives with the payload behind each, of `most_bytes` at most together."""
    head = transfer_head(handle, delivery_id, tag, message_format, settled=settled, more=False, state=state)
    if len(head) + len(payload) <= most_bytes:
        yield head, payload
        return
    head = transfer_head(handle, delivery_id, tag, message_format, settled=settled, more=True, state=state)
    at, room = 0, most_bytes - len(head)
    while at + room < len(payload):
        yield head, payload[at : at + room]
        head = transfer_continuation(handle, settled=settled, more=True)
        at, room = at + room, most_bytes - len(head)
    yield transfer_continuation(handle, settled=settled, more=False), payload[at:]


def ids_between(known: Mapping[int, object], first: int, last: int | None) -> list[int]:
    """The known delivery-ids in the range of a disposition, in its order. They are serial numbers (RFC 1982), and the
    range is the peer's to choose: it may be huge."""
    if last is None or last == first:
        return [first] if first in known else []
    span = (last - first) & _MASK
    if span <= len(known):
        return [number for step in range(span + 1) if (number := (first + step) & _MASK) in known]
    return sorted((number for number in known if (number - first) & _MASK <= span), key=lambda n: (n - first) & _MASK)


def read_uint(body: Buffer, at: int) -> tuple[int | None, int]:
    """A uint, or null, and where it ends.

    Raises:
        AmqpDecodeError: it is of another type. IndexError: it is cut short.
    """
    code = body[at]
    if code == 0x52:
        return body[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x70:
        return int.from_bytes(body[at + 1 : at + 5]), at + 5
    if code == 0x40:
        return None, at + 1
    raise AmqpDecodeError(f"a number of a transfer is not of type {code:#x}")


_BINARY_8 = 0xA0
_TRANSFER_8 = b"\x00\x53\x14\xc0"
_FLAGS = tuple(map(bytes, product((0x40, 0x42), (0x40, 0x42), (0x40, 0x41, 0x42))))
_TRANSFER_FIELDS = {
    message_format + bytes(flags) + rest: 11 if rest else 6
    for message_format in (b"\x43", b"\x52\x00", b"\x70\x00\x00\x00\x00")
    for flags in product((0x40, 0x41, 0x42), (0x40, 0x42))
    for rest in (b"", *(b"\x40\x40" + flags for flags in _FLAGS))
}
"""How many fields a transfer has that goes on like this behind its tag: message format 0, settled or not, no more to
come, and no state, not resumed, not aborted, if that is said at all."""


def whole_transfer(body: memoryview) -> tuple[int, int, bytes, bytes] | None:
    """A frame's body as (handle, delivery id, tag, payload), if it is a transfer in the form in which brokers write
    most: all of one delivery in a frame. None for every other frame, and for what is cut short."""
    if body[:4] != _TRANSFER_8:
        return None
    try:
        end = 5 + body[4]
        handle, position = read_uint(body, 6)
        delivery_id, position = read_uint(body, position)
        if body[position] != _BINARY_8:
            return None
        tag_end = position + 2 + body[position + 1]
    except (IndexError, AmqpDecodeError):
        return None
    if (
        handle is None
        or delivery_id is None
        or end > len(body)
        or _TRANSFER_FIELDS.get(bytes(body[tag_end:end])) != body[5]
    ):
        return None
    return handle, delivery_id, bytes(body[position + 2 : tag_end]), bytes(body[end:])


class FrameBuffer:
    """Cuts what a peer writes into frames; keeps the incomplete rest."""

    def __init__(self, start: bytes = b"", *, most_bytes: int = _MOST_FRAME_BYTES) -> None:
        self._rest = start
        self._most_bytes = most_bytes

    def feed(self, chunk: bytes) -> Iterator[tuple[int, memoryview]]:
        """Whole frames now complete, as (channel, body); the body of an empty frame is empty, and a protocol header
        (§2.2), which is 8 bytes without a frame around them, is its own body.

        Raises:
            FramingError: a size that no frame can have: the stream is not AMQP.
        """
        data = self._rest + chunk if self._rest else chunk
        view, position, end = memoryview(data), 0, len(data)
        while end - position >= _HEADER.size:
            if data[position] == _PROTOCOL and data.startswith(b"AMQP", position):
                size, start, channel = _HEADER.size, 0, 0
            else:
                size, start, _, channel = read_header(data, position, self._most_bytes)
            if end - position < size:
                break
            yield channel, view[position + start : position + size]
            position += size
        self._rest = data[position:]


class Outbox:
    """Frames to be written, in order."""

    __slots__ = ("_channel", "_chunks", "_first", "_last", "_receiver", "_settled", "_state", "size_bytes")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size_bytes = 0
        self._state: bytes | None = None
        self._channel = self._first = self._last = 0
        self._receiver = self._settled = False

    def raw(self, data: bytes) -> None:
        """Bytes that are no frame: protocol headers."""
        self._close_range()
        self._chunks.append(data)
        self.size_bytes += len(data)

    def frame(self, channel: int, body: bytes, payload: bytes = b"", kind: int = AMQP_FRAME) -> None:
        if self._state is not None:
            self._close_range()
        chunks, size = self._chunks, 8 + len(body) + len(payload)
        self.size_bytes += size
        chunks.append(_HEADER.pack(size, 2, kind, channel))
        chunks.append(body)
        if payload:
            chunks.append(payload)

    def empty_frame(self) -> None:
        """A heartbeat (§2.4.5)."""
        self.raw(_EMPTY_FRAME)

    def disposition(
        self, channel: int, receiver: bool, delivery_id: int, state: Described, *, settled: bool = True
    ) -> None:
        """The state of one delivery, settled or provisional (§2.7.6), perhaps joined to the one before."""
        encoded = ACCEPTED_BYTES if state is _ACCEPTED else encode(state)
        if (
            self._state == encoded
            and delivery_id == self._last + 1
            and channel == self._channel
            and receiver == self._receiver
            and settled == self._settled
        ):
            self._last = delivery_id
            return
        self._close_range()
        self._state, self._channel, self._receiver, self._settled = encoded, channel, receiver, settled
        self._first = self._last = delivery_id

    def take(self) -> bytes:
        """Everything gathered so far."""
        self._close_range()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self.size_bytes = 0
        return data

    def _close_range(self) -> None:
        state = self._state
        if state is None:
            return
        self._state = None
        last = b"\x40" if self._first == self._last else encode_uint(self._last)
        role = b"\x41" if self._receiver else b"\x42"
        settled = b"\x41" if self._settled else b"\x42"
        fields = b"".join((role, encode_uint(self._first), last, settled, state, b"\x40"))
        self.frame(self._channel, listed(DISPOSITION, 6, fields))
