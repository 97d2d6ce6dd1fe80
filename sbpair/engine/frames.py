"""Frames on the wire (AMQP 1.0 §2.3): cutting what comes in, putting together what goes out.

The outbox gathers everything one turn of the loop produces and gives it away as one piece. Settlements of neighbouring
deliveries with the same outcome become one disposition with a range, as long as nothing is written in between.
"""

from struct import Struct
from typing import Final

from sbpair.amqp.encoding import encode
from sbpair.amqp.types import Described
from sbpair.engine.performatives import ACCEPTED_BYTES, accepted

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
MIN_MAX_FRAME_SIZE: Final = 512

_HEADER = Struct(">IBBH")
_UINT = Struct(">BI")
_SMALL_UINTS: Final = (b"\x43", *(bytes((0x52, value)) for value in range(1, 256)))
_EMPTY_FRAME: Final = _HEADER.pack(8, 2, AMQP_FRAME, 0)
_ACCEPTED: Final = accepted()


class FramingError(ValueError):
    """The bytes are no frame this connection may carry (amqp:connection:framing-error)."""


def read_header(buffer: bytes, offset: int, max_size: int) -> tuple[int, int, int, int]:
    """Size, start of the body (relative), type and channel of the frame whose eight bytes begin at `offset`."""
    size, data_offset, kind, channel = _HEADER.unpack_from(buffer, offset)
    if not 8 <= data_offset * 4 <= size <= max_size:
        raise FramingError(f"a frame of {size} bytes with its body at word {data_offset} is not allowed")
    return size, data_offset * 4, kind, channel


def encode_uint(value: int) -> bytes:
    """The shortest form of an AMQP uint."""
    return _SMALL_UINTS[value] if value < 256 else _UINT.pack(0x70, value)


def transfer_head(
    handle: int, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool
) -> bytes:
    """The transfer performative that opens a delivery."""
    fields = b"".join(
        (
            encode_uint(handle),
            encode_uint(delivery_id),
            b"\xa0",
            bytes((len(tag),)),
            tag,
            encode_uint(message_format),
            b"\x41" if settled else b"\x42",
            b"\x41" if more else b"\x42",
        )
    )
    return _transfer(fields)


def transfer_continuation(handle: int, *, settled: bool, more: bool) -> bytes:
    """The transfer performative of a delivery's further frames; without delivery-id, which the first one gave."""
    flags = (b"\x41" if settled else b"\x42") + (b"\x41" if more else b"\x42")
    return _transfer(encode_uint(handle) + b"\x40\x40\x40" + flags)


def _transfer(first_six: bytes) -> bytes:
    """A transfer of eleven fields, the last five null: see `performatives.perform`."""
    return b"\x00\x53\x14\xc0" + bytes((len(first_six) + 6, 11)) + first_six + b"\x40\x40\x40\x40\x40"


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
        count = 6
        if len(fields) < 255:
            listed = b"\xc0" + bytes((len(fields) + 1, count))
        else:
            listed = b"\xd0" + (len(fields) + 4).to_bytes(4) + count.to_bytes(4)
        self.frame(self._channel, b"\x00\x53\x15" + listed + fields)
