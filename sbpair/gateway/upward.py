"""What the client of a session sends to the primary: its numbers there, the window, and what nobody there receives; and
the heads of transfers on their way.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbpair.amqp.decoding import skip
from sbpair.amqp.encoding import encode
from sbpair.amqp.frames import encode_uint, ids_between, listed, read_uint, transfers
from sbpair.amqp.performatives import TRANSFER, Fields, perform, read_performative, whole
from sbpair.amqp.types import AmqpDecodeError, Uint
from sbpair.core.errors import OperationTimeoutError
from sbpair.engine.connection import MAX_FRAME_SIZE
from sbpair.engine.link import IncomingDelivery
from sbpair.engine.session import WINDOW

if TYPE_CHECKING:
    from sbpair.gateway.door import DoorSession
    from sbpair.gateway.passed import PassedLink


_TRANSFER: Final = b"\x00\x53\x14"
_NULL: Final = 0x40


class TransferHead(NamedTuple):
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


def read_head(body: bytes) -> TransferHead | None:
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


def _read(body: bytes) -> TransferHead | None:
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
    return TransferHead(
        handle, delivery_id, tag, message_format, settled, more, aborted, in_transaction, max(count, 2), rest, end
    )


def put_head(head: TransferHead, handle: int, delivery_id: int | None) -> bytes:
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


REMEMBERED_BYTES: Final = 8 * 1024 * 1024
"""How much of what is unsettled is remembered, for a connection and for a message. What is more has to be sent again
by the client when the primary goes."""
WAITING_BYTES: Final = 1024 * 1024
"""What may wait for a window before no more is read of the other side."""
LATE_SECONDS: Final = 5.0
"""How long the primary may take for the answer to a message once the entity's sends go to the backlog."""
_MASK: Final = 0xFFFFFFFF


@dataclass(slots=True, eq=False)
class Outstanding:
    """A message on its way to the primary. `sent_at` is of the loop's clock."""

    delivery: IncomingDelivery
    passed: "PassedLink"
    sent_at: float
    ticket: int
    parts: list[bytes] | None = field(default_factory=list)
    """None: it is not remembered, being too much, in a transaction of the primary's, or a request."""
    size: int = 0
    whole: bool = False
    """Its last frame has come."""


class Upward:
    """One session's way to the primary."""

    def __init__(self, session: "DoorSession") -> None:
        self._session = session
        self._connection = session.connection
        self.outstanding: dict[int, Outstanding] = {}
        """By the primary's delivery-id."""
        self.sending: dict[int, tuple[int, Outstanding | None]] = {}
        """Messages of which not all has come, by the link's handle."""
        self.waiting_bytes = 0
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._transfers = self._deliveries = self._window = 0

    def begin_again(self) -> dict[int, tuple[int, Outstanding | None]]:
        """Nothing is on its way any more, and the primary counts from 0. Gives what was in the middle of a message."""
        self._connection.remembered_bytes -= sum(one.size for one in self.outstanding.values() if one.parts is not None)
        self.outstanding.clear()
        self._waiting.clear()
        self._waits(-self.waiting_bytes)
        self._transfers = self._deliveries = self._window = 0
        sending, self.sending = self.sending, {}
        return sending

    def numbers(self, seen: int) -> list[Any]:
        """The session's part of a flow; `seen` transfers have come of the primary."""
        return [Uint(seen), Uint(WINDOW), Uint(self._transfers), Uint(WINDOW)]

    def opened(self, window: int, seen: int) -> None:
        """The primary takes `window` transfers from the number `seen` on."""
        self._window = window - ((self._transfers - seen) & _MASK)
        while self._waiting and self._window > 0:
            head, payload = self._waiting.popleft()
            self._waits(-len(payload))
            self._write(head, payload)

    def _waits(self, more_bytes: int) -> None:
        self.waiting_bytes += more_bytes
        if more_bytes > 0:
            self._connection.budget.hold(more_bytes)
        else:
            self._connection.budget.release(-more_bytes)
        self._connection.consider_reading()

    # -- transfers of the client

    def take(self, passed: "PassedLink", head: TransferHead, payload: bytes) -> None:
        """A transfer goes on as it is, but for its numbers."""
        begun = self.sending.get(head.handle)
        number: int | None = None
        if begun is None:
            if head.delivery_id is None:
                raise AmqpDecodeError("the first transfer of a delivery has a delivery-id")
            number, one = self._begin(passed), None
            if not head.settled:
                delivery = IncomingDelivery(passed.link, head.delivery_id, b"", head.message_format, False, head.tag)
                one = self._await_answer(number, passed, delivery)
                if head.in_transaction or passed.is_request:
                    one.parts = None
        else:
            number, one = begun
        if one is not None and number in self.outstanding:  # it may be refused half-way
            self._remember(one, payload)
        if head.more and not head.aborted:
            self.sending[head.handle] = number, one
        else:
            self.sending.pop(head.handle, None)
            if one is not None:
                one.whole = True
            if head.aborted:
                self.settled(number)
        named = begun is None or head.delivery_id is not None
        self._write(put_head(head, head.handle, number if named else None), payload)

    def send_whole(self, passed: "PassedLink", delivery: IncomingDelivery) -> None:
        """A message whose transfers were unusually spelled: sent on as ours are."""
        number = self._count(passed)
        if not delivery.settled:
            one = self._await_answer(number, passed, delivery)
            one.whole = True
            if delivery.state is None and not passed.is_request:
                self._remember(one, delivery.payload)
            else:
                one.parts = None
        handle, wire, settled = passed.link.handle, self._connection.primary, delivery.settled
        most = (MAX_FRAME_SIZE if wire is None else min(wire.max_frame_bytes, MAX_FRAME_SIZE)) - 8
        numbers, state = (handle, number, delivery.tag, delivery.message_format), encode(delivery.state)
        for head, part in transfers(*numbers, delivery.payload, most, settled=settled, state=state):
            self._write(head, part)

    def _begin(self, passed: "PassedLink") -> int:
        link = passed.link
        link.received = (link.received + 1) & _MASK
        link._credit -= 1
        return self._count(passed)

    def _count(self, passed: "PassedLink") -> int:
        if passed.is_management:
            self._connection.asked[passed.link.address.lower()] += 1
        number = self._deliveries
        self._deliveries = (number + 1) & _MASK
        return number

    def _await_answer(self, number: int, passed: "PassedLink", delivery: IncomingDelivery) -> Outstanding:
        one = Outstanding(delivery, passed, self._connection.now(), passed.ticket)
        self.outstanding[number] = one
        self._connection.watch_answers()
        return one

    def _remember(self, message: Outstanding, payload: bytes) -> None:
        size = len(payload)
        if message.parts is None:
            return
        if self._connection.remembered_bytes + size > REMEMBERED_BYTES:
            self._connection.remembered_bytes -= message.size
            message.parts = None
            return
        message.parts.append(payload)
        message.size += size
        self._connection.remembered_bytes += size

    def _write(self, head: bytes, payload: bytes) -> None:
        if self._window <= 0:
            self._waiting.append((head, payload))
            self._waits(len(payload))
            return
        wire = self._connection.primary
        if wire is None:
            return
        for part_head, part in self._parts(head, payload, wire.max_frame_bytes - 8):
            self._window -= 1
            self._transfers = (self._transfers + 1) & _MASK
            wire.write(self._session.channel, part_head, part)

    @staticmethod
    def _parts(head: bytes, payload: bytes, most: int) -> Iterator[tuple[bytes, bytes]]:
        """A frame that has grown, or is longer than the primary takes, goes as several."""
        if len(head) + len(payload) <= most:
            yield head, payload
            return
        code, values, _ = read_performative(head)
        values = whole(code, values)
        last_more, room = values[5], most - len(head) - 16
        for at in range(0, len(payload), room):
            values[5] = True if at + room < len(payload) else last_more
            yield perform(code, values), payload[at : at + room]

    # -- answers of the primary

    def settled(self, number: int) -> Outstanding | None:
        """What is known of a message that the primary has answered; None if it was answered before."""
        one = self.outstanding.pop(number, None)
        if one is not None and one.parts is not None:
            self._connection.remembered_bytes -= one.size
        return one

    def among(self, first: int, last: int | None) -> list[Outstanding]:
        """The messages from the first number to the last that were unsettled, and are settled now."""
        found = ids_between(self.outstanding, first, last)
        return [one for number in found if (one := self.settled(number)) is not None]

    def answered(self, fields: Fields) -> None:
        """A disposition of the primary about messages of the client."""
        first, last = fields.required_number(1), fields.number(2)
        state = fields.get(4)
        if fields.flag(3) or state is not None:
            for one in self.among(first, last):
                one.passed.answered(one, state)

    def settled_of(self, passed: "PassedLink") -> list[Outstanding]:
        """What was unsettled of one link, and is settled now."""
        found = [number for number, one in self.outstanding.items() if one.passed is passed]
        return [one for number in found if (one := self.settled(number)) is not None]

    def give_up_silent(self, now: float) -> None:
        """What the primary has not answered for long is taken over."""
        for number, message in list(self.outstanding.items()):
            passed, quiet = message.passed, now - message.sent_at
            if passed.is_request or passed.sends is None or not message.whole:
                continue
            most = self._connection.house.answer_seconds
            if quiet > (min(LATE_SECONDS, most) if passed.sends.diverts else most):
                self.settled(number)
                text = f"The primary has not answered for {quiet:.0f} s"
                error = OperationTimeoutError(text, entity=passed.link.address)
                error.uncertain = True
                passed.send_here(message, error)
