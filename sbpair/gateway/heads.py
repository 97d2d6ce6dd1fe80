"""Transfers on their way through: the few fields that matter are read, handle and delivery-id are set again, and all
else stays as it is (AMQP 1.0 §2.7.5). The payload is never looked at here."""

from typing import Final, NamedTuple

from sbpair.amqp.decoding import skip
from sbpair.amqp.frames import encode_uint, listed, read_uint
from sbpair.amqp.performatives import TRANSFER
from sbpair.amqp.types import AmqpDecodeError

_TRANSFER: Final = b"\x00\x53\x14"
_NULL: Final = 0x40


class Head(NamedTuple):
    """A transfer as far as it concerns somebody on the way. `rest` are the fields from the delivery-tag on."""

    handle: int
    delivery_id: int | None
    tag: bytes
    message_format: int
    settled: bool
    more: bool
    aborted: bool
    in_transaction: bool
    fields: int
    rest: bytes
    payload_start: int


def read_head(body: bytes) -> Head | None:
    """The transfer that a frame's body begins with; None for one that is spelled in an unusual way.

    Raises:
        AmqpDecodeError: no transfer.
    """
    if body[:3] != _TRANSFER:
        return None
    try:
        return _read(body)
    except IndexError:
        raise AmqpDecodeError("the transfer ends in the middle of a field") from None


def _read(body: bytes) -> Head | None:
    if body[3] == 0xC0:
        end, count, at = 5 + body[4], body[5], 6
    elif body[3] == 0xD0:
        end, count, at = 8 + int.from_bytes(body[4:8]), int.from_bytes(body[8:12]), 12
    else:
        return None
    if end > len(body) or count < 1:
        return None
    handle, at = read_uint(body, at)
    # Clients that leave out nulls at the end of a list, as Go's does, give the last frame of a message a handle alone.
    delivery_id, at = read_uint(body, at) if count > 1 else (None, at)
    if handle is None:
        raise AmqpDecodeError("a transfer has a handle")
    rest = body[at:end]
    tag, message_format = b"", 0
    settled = more = aborted = in_transaction = False
    if count > 2:
        tag, at = _binary(body, at)
    if count > 3:
        found, at = read_uint(body, at)
        message_format = found or 0
    if count > 4:
        settled, at = _flag(body, at)
    if count > 5:
        more, at = _flag(body, at)
    if count > 7:
        at = skip(body, at)
        in_transaction = body[at] != _NULL
        at = skip(body, at)
    if count > 9:
        _, at = _flag(body, at)
        aborted, at = _flag(body, at)
    return Head(
        handle, delivery_id, tag, message_format, settled, more, aborted, in_transaction, max(count, 2), rest, end
    )


def put_head(head: Head, handle: int, delivery_id: int | None) -> bytes:
    """The same transfer with another handle and delivery-id."""
    number = b"\x40" if delivery_id is None else encode_uint(delivery_id)
    return listed(TRANSFER, head.fields, encode_uint(handle) + number + head.rest)


_DISPOSITION: Final = b"\x00\x53\x15\xc0"
_ACCEPTED: Final = (b"\x00\x53\x24\x45", b"\x00\x53\x24\xc0\x01\x00")


def read_accepted(body: bytes) -> tuple[int, int] | None:
    """First and last delivery-id of the usual answer: the receiver has accepted and settled. None for any other."""
    if body[:4] != _DISPOSITION or len(body) < 12 or body[6] != 0x41:
        return None
    try:
        first, at = read_uint(body, 7)
        last, at = read_uint(body, at)
    except IndexError:
        return None
    if first is None or body[at : at + 1] != b"\x41" or not body.startswith(_ACCEPTED, at + 1):
        return None
    return first, first if last is None else last


def _binary(body: bytes, at: int) -> tuple[bytes, int]:
    code = body[at]
    if code == 0xA0:
        end = at + 2 + body[at + 1]
        return body[at + 2 : end], end
    if code == 0xB0:
        end = at + 5 + int.from_bytes(body[at + 1 : at + 5])
        return body[at + 5 : end], end
    if code == _NULL:
        return b"", at + 1
    raise AmqpDecodeError(f"a delivery-tag is not of type {code:#x}")


def _flag(body: bytes, at: int) -> tuple[bool, int]:
    code = body[at]
    if code == 0x56:
        return body[at + 1] == 1, at + 2
    if code in (0x41, 0x42, _NULL):
        return code == 0x41, at + 1
    raise AmqpDecodeError(f"a flag of a transfer is not of type {code:#x}")
