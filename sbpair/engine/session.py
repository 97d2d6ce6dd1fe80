"""An AMQP session (§2.5): its links, the numbers of its transfers and deliveries, its windows."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.frames import ids_between, transfers
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    TRANSFER,
    Fields,
    perform,
    uint_or_none,
)
from sbpair.amqp.types import AmqpDecodeError, Described, Symbol, Ubyte, Uint, Ulong, Ushort
from sbpair.engine.budgets import MAX_HELD_BYTES
from sbpair.engine.errors import error, rejected
from sbpair.engine.link import IncomingDelivery, Link, LinkState, symbol_keys

if TYPE_CHECKING:
    from sbpair.engine.connection import Connection

WINDOW: Final = 0x7FFFFFFF
HANDLE_MAX: Final = 0xFFFF
_FIRST_TRANSFER: Final = 1
_MASK: Final = 0xFFFFFFFF


class SessionError(Exception):
    """The client broke a rule of its session, which ends with this condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


@dataclass(slots=True)
class _Partial:
    """A message whose last frame has not come yet."""

    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    state: Described | None
    size: int = 0
    payload: bytearray = field(default_factory=bytearray)


class Session:
    """One session. The client's channel and handles serve for our direction too: it opens all of them."""

    def __init__(self, connection: "Connection", channel: int, begin: Fields) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.transaction_group: Any = None
        """Set by what answers for addresses; None as long as the session has no link to the coordinator."""
        self._seen_handles: set[int] = set()
        self._unsettled: dict[int, Link] = {}
        self._next_incoming = begin.required_number(1)
        self._remote_window = begin.required_number(2)
        self._next_outgoing = _FIRST_TRANSFER
        self._next_delivery = 1
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._waiting_bytes = 0
        reply = [Ushort(channel), Uint(self._next_outgoing), Uint(WINDOW), Uint(WINDOW), Uint(HANDLE_MAX)]
        self._write(perform(BEGIN, reply))

    @property
    def blocked(self) -> bool:
        """Whether nothing more should be delivered now: the client's window or its transport is full."""
        return bool(self._waiting) or self.connection.write_paused

    # -- incoming

    def on_frame(self, code: int, values: list[Any], payload: bytes) -> Iterator[None] | None:
        """One frame of this session, END excepted. SessionError or AmqpDecodeError when it is wrong.

        What may take long comes back as an iterator, to be gone through in slices before the next frame.
        """
        fields = Fields(values)
        if code == TRANSFER:
            return self._on_transfer(fields, payload)
        if code == DISPOSITION:
            return self._on_disposition(fields)
        if code == FLOW:
            self._on_flow(fields)
        elif code == ATTACH:
            self._on_attach(fields)
        elif code == DETACH:
            self._on_detach(fields)
        return None

    def end(self, connection_lost: bool) -> None:
        """The session is over; so are its links."""
        links = list(self.links.values())
        self._unsettled.clear()  # else each of 5,000 links would look for its own among them
        self._waiting.clear()
        self.connection.budget.release(self._waiting_bytes)
        self._waiting_bytes = 0
        for link in links:
            link.finish(False, connection_lost)

    def end_with(self, failure: SessionError) -> None:
        """Our side ends the session because of the client's error."""
        self._write(perform(END, [error(failure.condition, str(failure))]))
        self.end(False)

    def _on_attach(self, fields: Fields) -> None:
        link = Link(self, fields)
        if link.handle > HANDLE_MAX:
            raise SessionError("amqp:connection:framing-error", f"handle {link.handle} is above {HANDLE_MAX}")
        old = self.links.get(link.handle)
        if old is not None and old.state is LinkState.DETACHING:
            # Clients may answer our closing detach by attaching again and closing (§2.6.6); the old link is done with.
            old.finish(True, False)
        elif old is not None:
            raise SessionError("amqp:session:handle-in-use", f"handle {link.handle} is in use")
        if self.connection.links_left <= 0:
            raise SessionError("amqp:resource-limit-exceeded", "the connection has as many links as it may have")
        if not self.connection.budget.hold(link.retained_bytes):
            return
        self.links[link.handle] = link
        self.connection.links_changed(+1)
        self._seen_handles.add(link.handle)
        self.connection.attach(link)

    def _on_detach(self, fields: Fields) -> None:
        link = self._link(fields.required_number(0))
        if link is None:
            return
        closed = fields.flag(1)
        if link.state is LinkState.ATTACHING:
            self.write_refusal(link)
        if link.state in (LinkState.ATTACHING, LinkState.OPEN):
            self._write(perform(DETACH, [Uint(link.handle), closed]))
        link.finish(closed, False)

    def _on_transfer(self, fields: Fields, payload: bytes) -> Iterator[None] | None:
        # Counted first, also for a transfer that is dropped below: the session's numbers count frames, not messages.
        self._next_incoming = (self._next_incoming + 1) & _MASK
        link = self._link(fields.required_number(0))
        if link is None or link.state is not LinkState.OPEN or not link.client_sends:
            return None
        partial: _Partial | None = link.partial
        if fields.flag(9):
            link.drop_partial()
            link.count_transfer()  # its sender counts it like any other (§2.7.5)
            return None
        more = fields.flag(5)
        if partial is None and not more:
            return self._message(link, self._begun_message(fields), payload, len(payload))
        if partial is None:
            partial = link.partial = self._begun_message(fields)
        partial.settled = partial.settled or fields.flag(4)
        partial.size += len(payload)
        if partial.size <= _limit(link):
            partial.payload += payload
            if not self.connection.budget.hold(len(payload)):
                return None
        if more:
            return None
        link.drop_partial()
        return self._message(link, partial, bytes(partial.payload), partial.size)

    def _message(self, link: Link, head: "_Partial", payload: bytes, size: int) -> Iterator[None] | None:
        link.count_transfer()
        delivery = IncomingDelivery(
            link, head.delivery_id, payload, head.message_format, head.settled, head.tag, head.state
        )
        if size > _limit(link):
            self._refuse_size(delivery, size)
        elif link.handler is not None:
            return link.handler.on_transfer(delivery)
        return None

    @staticmethod
    def _begun_message(fields: Fields) -> _Partial:
        state = fields.get(7)
        if state is not None and not isinstance(state, Described):
            raise AmqpDecodeError("a delivery state must be a described list")
        tag, message_format = fields.binary(2) or b"", fields.number(3) or 0
        return _Partial(fields.required_number(1), tag, message_format, fields.flag(4), state)

    @staticmethod
    def _refuse_size(delivery: IncomingDelivery, size: int) -> None:
        """Too large for the link. A client that does not wait for an outcome can only be told by a detach."""
        condition, link = "amqp:link:message-size-exceeded", delivery.link
        text = (
            f"The received message (delivery-id:{delivery.delivery_id}, size:{size} bytes) exceeds the limit "
            f"({_limit(link)} bytes) currently allowed on the link."
        )
        if delivery.settled:
            link.force_off(condition, text)
        else:
            link.disposition(delivery, rejected(condition, text))

    def _on_disposition(self, fields: Fields) -> Iterator[None] | None:
        if not fields.flag(0):
            return None  # a sender that settles its own transfers; ours is the last word there already
        first = fields.required_number(1)
        last = fields.number(2)
        state = fields.get(4)
        if state is not None and not isinstance(state, Described):
            raise AmqpDecodeError("a delivery state must be a described list")
        settled = fields.flag(3)
        if state is None and not settled:
            return None  # says nothing about any of them, and can be said about thousands of them thousands of times
        return self._settle(self._tracked(first, first if last is None else last), state, settled)

    def _settle(self, delivery_ids: list[int], state: Described | None, settled: bool) -> Iterator[None]:
        """Pass a disposition on for each delivery. 20,000 deliveries fit into the range of one frame of 30 bytes."""
        for delivery_id in delivery_ids:
            link = self._unsettled.pop(delivery_id, None) if settled else self._unsettled.get(delivery_id)
            if link is not None and link.handler is not None:
                link.handler.on_disposition(delivery_id, state, settled)
            yield

    def _tracked(self, first: int, last: int) -> list[int]:
        """The deliveries in the range that are unsettled; a range may be huge and come from anybody."""
        # They stand in the order in which they were sent: a range beyond the newest that does not come round to the
        # oldest again holds none of them.
        oldest = next(iter(self._unsettled), first)
        ahead = (first - oldest) & _MASK
        beyond = ahead >= (self._next_delivery - oldest) & _MASK and ahead + ((last - first) & _MASK) <= _MASK
        return [] if beyond else ids_between(self._unsettled, first, last)

    def _on_flow(self, fields: Fields) -> None:
        # Only the ids are serial numbers (§2.5.6); a window is a plain count, and .NET's is 4,294,967,295.
        base = fields.number(0)
        on_their_way = (self._next_outgoing - (_FIRST_TRANSFER if base is None else base)) & _MASK
        self._remote_window = fields.required_number(1) - on_their_way
        handle = fields.number(4)
        if self._waiting:
            self._write_waiting()
        link = None if handle is None else self._link(handle)
        if link is not None and link.state in (LinkState.ATTACHING, LinkState.OPEN) and not link.client_sends:
            changed = link.client_flow(fields.number(5), fields.number(6), fields.flag(8))
            # A client may give credit before its attach is answered, which can take a minute where it waits for a
            # session. It gives it once only: the link keeps it until it opens.
            if changed and link.handler is not None and link.is_open():
                link.handler.on_credit()
        if fields.flag(9):
            self.write_flow(link if link is not None and link.is_open() else None)

    def _link(self, handle: int) -> Link | None:
        link = self.links.get(handle)
        if link is None and handle not in self._seen_handles:
            raise SessionError("amqp:session:unattached-handle", f"handle {handle} is not attached")
        return link

    # -- outgoing, for links

    def write_attach(
        self, link: Link, properties: Mapping[str, Any] | None, filter_replies: Mapping[str, Any] | None
    ) -> None:
        source = link.source
        if filter_replies is not None and isinstance(source, Described):
            source = _with_filters(source, filter_replies)
        self._write(perform(ATTACH, self._attach_fields(link, source, link.target, properties)))

    def write_refusal(self, link: Link) -> None:
        """An attach without source and target: the sign of a refusal (§2.6.3), and go-amqp knows no other."""
        self._write(perform(ATTACH, self._attach_fields(link, None, None, None)))

    def write_detach(self, link: Link, condition: str | None, description: str | None) -> None:
        reason = None if condition is None else error(condition, description)
        self._write(perform(DETACH, [Uint(link.handle), True, reason]))

    def write_flow(self, link: Link | None) -> None:
        """The session's numbers and, with a link, its delivery-count and credit."""
        fields: list[Any] = [Uint(self._next_incoming), Uint(WINDOW), Uint(self._next_outgoing), Uint(WINDOW)]
        if link is not None:
            count = link.received if link.client_sends else link.sent
            credit = link.granted if link.client_sends else link.open_credit()
            fields += [Uint(link.handle), Uint(count), Uint(credit), None, link.drain or None]
        self._write(perform(FLOW, fields))

    def write_disposition(self, receiver: bool, delivery_id: int, state: Described, *, settled: bool = True) -> None:
        self.connection.outbox.disposition(self.channel, receiver, delivery_id, state, settled=settled)
        self.connection.schedule_flush()

    def send_transfer(self, link: Link, payload: bytes, tag: bytes, settled: bool, message_format: int) -> int:
        delivery_id = self._next_delivery
        self._next_delivery = (delivery_id + 1) & _MASK
        if not settled:
            self._unsettled[delivery_id] = link
        most = self.connection.remote_max_frame_size - 8
        for head, part in transfers(link.handle, delivery_id, tag, message_format, payload, most, settled=settled):
            self._write_transfer(head, part)
        return delivery_id

    def forget_delivery(self, delivery_id: int) -> None:
        self._unsettled.pop(delivery_id, None)

    def forget_deliveries(self, link: Link) -> None:
        """No disposition of this link's deliveries is to be heard any more."""
        if not link.client_sends and self._unsettled:
            self._unsettled = {number: other for number, other in self._unsettled.items() if other is not link}

    def forget_link(self, link: Link) -> None:
        self.forget_deliveries(link)
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
            self.connection.links_changed(-1)
            self.connection.budget.release(link.retained_bytes)

    def _write_transfer(self, head: bytes, payload: bytes) -> None:
        if self._remote_window <= 0:
            self._wait(head, payload)
            return
        self._remote_window -= 1
        self._next_outgoing = (self._next_outgoing + 1) & _MASK
        self.connection.outbox.frame(self.channel, head, payload)
        self.connection.schedule_flush()

    def _wait(self, head: bytes, payload: bytes) -> None:
        self._waiting.append((head, payload))
        self._waiting_bytes += len(payload)
        self.connection.budget.hold(len(payload))

    def _write_waiting(self) -> None:
        while self._waiting and self._remote_window > 0:
            head, payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            self.connection.budget.release(len(payload))
            self._write_transfer(head, payload)
        if not self._waiting:
            self.wake_links()

    def wake_links(self) -> None:
        """Deliveries may go on: the links that have credit are told."""
        for link in list(self.links.values()):
            if link.is_open() and not link.client_sends and link.credit > 0 and link.handler is not None:
                link.handler.on_credit()

    def _attach_fields(
        self, link: Link, source: Described | None, target: Described | None, properties: Mapping[str, Any] | None
    ) -> list[Any]:
        return [
            link.name,
            Uint(link.handle),
            link.client_sends,
            Ubyte(link.snd_settle_mode),
            Ubyte(link.rcv_settle_mode),
            source,
            target,
            None,
            None,
            None if link.client_sends else uint_or_none(link.sent),
            None if link.max_message_size is None else Ulong(link.max_message_size),
            None,
            None,
            None if properties is None else symbol_keys(properties),
        ]

    def _write(self, body: bytes) -> None:
        self.connection.outbox.frame(self.channel, body)
        self.connection.schedule_flush()


def _limit(link: Link) -> int:
    return link.max_message_size or MAX_HELD_BYTES


def _with_filters(source: Described, filters: Mapping[str, Any]) -> Described:
    fields = list(source.value)
    fields += [None] * (8 - len(fields))
    asked = fields[7] if isinstance(fields[7], dict) else {}
    fields[7] = {Symbol(key): _described_alike(asked.get(key), value) for key, value in filters.items()}
    return Described(source.descriptor, fields)


def _described_alike(asked: object, answer: object) -> object:
    """A filter's answer with the descriptor of the question, if it had one: Go reads no other, .NET and Python none."""
    return Described(asked.descriptor, answer) if isinstance(asked, Described) else answer
