"""A link as the broker sees it: attach, deliveries, credit, settlement. No frames here, no broker rules either.

Order of things: the service's `attach` returns a handler and calls `open` or `reject`, then or later. From `open` until
the end the handler is called; after `on_detach`, and after the broker's own `detach` or `reject`, it never is again.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from sbpair.amqp.decoding import decode_all
from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import COORDINATOR, Fields, code_of, composite_fields
from sbpair.amqp.types import Described, Symbol, Ulong
from sbpair.engine.auth import Rights, Signer, resource_path
from sbpair.engine.clock import Clock
from sbpair.engine.faults import FaultAction, FaultKind, Faults
from sbpair.engine.wire import Trace

if TYPE_CHECKING:
    from sbpair.engine.connection import Connection
    from sbpair.engine.session import Session

DEFAULT_CREDIT = 1000
CBS_ADDRESS = "$cbs"
DECLARE_SECONDS = 0.003
"""Until a declare is answered. Microsoft.Azure.Amqp 2.6 looks at a delivery's state after it has written the request:
an answer that comes sooner is lost to it, and the transaction with it (seen with NServiceBus and the service's distance
of nothing; never with 3 ms, about what the service itself takes at the least)."""
_SELECTORS = (Ulong(0x468C00000004), "apache.org:selector-filter:string")
"""How the clients of AMQP name a message selector: the registered number, or its symbol."""


class ConnectionCount(Protocol):
    """Who knows how many connections a namespace takes."""

    def connected(self, connection: str) -> bool: ...
    def disconnected(self, connection: str) -> None: ...


class NamespaceView(Protocol):
    """What the engine asks of a namespace."""

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def faults(self) -> Faults: ...
    @property
    def allow_entra(self) -> bool: ...
    @property
    def entra_rights(self) -> Mapping[str, Rights]: ...
    @property
    def key_watchers(self) -> "set[Callable[[], None]]": ...
    @property
    def trace(self) -> Trace | None: ...
    @property
    def throttling(self) -> ConnectionCount | None: ...
    @property
    def capabilities(self) -> Sequence[str]: ...
    def signers(self, path: str) -> Sequence[Signer]: ...
    def entity_exists(self, path: str) -> bool: ...


class LinkHandler:
    """What the broker does with one open link; a handler leaves out what cannot happen on its kind of link, or is
    nothing to it."""

    def on_transfer(self, delivery: "IncomingDelivery") -> Iterator[None] | None:
        """The client sent a whole message. What may take long comes back, to be gone through in slices of time."""

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        """The client says what became of a delivery; if not settled it waits for `Link.settle`."""

    def on_credit(self) -> None:
        """The client's credit or drain flag changed, or a full transport can take messages again."""

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        """The link is gone, and not by the broker's own call."""


class AttachService(Protocol):
    """Who answers for the addresses of a namespace."""

    def attach(self, link: "Link") -> LinkHandler:
        """Take a new link: call `link.open` or `link.reject`, now or later, and give its handler."""


@dataclass(slots=True, eq=False)
class IncomingDelivery:
    """One message from a client, its frames put together. `payload` is the sections' bytes as sent."""

    link: "Link"
    delivery_id: int
    payload: bytes
    message_format: int
    settled: bool
    tag: bytes = b""
    state: Described | None = None


class LinkState(Enum):
    """Where a link stands."""

    ATTACHING = "attaching"
    OPEN = "open"
    DETACHING = "detaching"
    """We have detached; the client's answer is awaited and everything else for this handle is stale."""
    GONE = "gone"


class Link:
    """One link of a client. `client_sends` tells the direction.

    `address` is the entity's path. `target_address` is the target as sent: where a client that receives wants its
    answers (`reply-to`).
    """

    __slots__ = (
        "_credit",
        "_properties",
        "_source",
        "_target",
        "address",
        "client_sends",
        "connection",
        "drain",
        "granted",
        "handle",
        "handler",
        "max_message_size",
        "name",
        "partial",
        "rcv_settle_mode",
        "received",
        "sent",
        "session",
        "snd_settle_mode",
        "state",
        "target_address",
    )

    def __init__(self, session: "Session", fields: Fields) -> None:
        self.session = session
        self.connection: Connection = session.connection
        self.name = fields.text(0) or ""
        self.handle = fields.required_number(1)
        self.client_sends = not fields.flag(2)
        self.snd_settle_mode = _or(fields.number(3), 2)
        self.rcv_settle_mode = _or(fields.number(4), 0)
        # Kept as bytes: decoded, a client's 64 KB of empty lists would take 4 MB for as long as the link lives.
        self._source = encode(fields.get(5))
        self._target = encode(fields.get(6))
        self._properties = encode(fields.mapping(13))
        self.target_address = _address(fields.get(6))
        self.address = resource_path(self.target_address if self.client_sends else _address(fields.get(5)))
        self.state = LinkState.ATTACHING
        self.handler: LinkHandler | None = None
        self.max_message_size: int | None = None
        self.drain = False
        self._credit = 0
        self.granted = 0
        self.received = _or(fields.number(9), 0)
        self.sent = 0
        self.partial: Any = None

    # -- what the client asked for

    @property
    def source(self) -> Any:
        """The source as sent, decoded each time; of a wrong type perhaps."""
        return decode_all(self._source)

    @property
    def target(self) -> Any:
        """The target as sent; see `source`."""
        return decode_all(self._target)

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the attach, decoded each time."""
        return {str(key): value for key, value in decode_all(self._properties).items()}

    @property
    def filters(self) -> dict[str, Any]:
        """The source's filters by name, each value without its descriptor (clients differ in giving one)."""
        given = Fields(composite_fields(self.source)).get(7)
        pairs = given.items() if isinstance(given, dict) else ()
        return {str(key): value.value if isinstance(value, Described) else value for key, value in pairs}

    @property
    def has_selector(self) -> bool:
        """Whether a filter of the source is a message selector of JMS, under whatever name."""
        given = Fields(composite_fields(self.source)).get(7)
        values = given.values() if isinstance(given, dict) else ()
        return any(isinstance(value, Described) and value.descriptor in _SELECTORS for value in values)

    @property
    def is_copying(self) -> bool:
        """Whether the client asks for copies (distribution-mode), as a queue browser of JMS does."""
        return bool(Fields(composite_fields(self.source)).get(6) == "copy")

    @property
    def retained_bytes(self) -> int:
        """What the client makes us keep for the link."""
        texts = len(self.name) + len(self.address) + len(self.target_address)
        return texts + len(self._source) + len(self._target) + len(self._properties)

    @property
    def is_coordinator(self) -> bool:
        """Whether the client wants transactions (AMQP 1.0 §4.5.1)."""
        return isinstance(self.target, Described) and code_of(self.target.descriptor) == COORDINATOR

    @property
    def is_cbs(self) -> bool:
        """Whether the address is the node for tokens; releases 2.x of the retired library say `$cbs/<32 digits>`."""
        return self.address.partition("/")[0].lower() == CBS_ADDRESS

    @property
    def is_dynamic(self) -> bool:
        """Whether the client asks for a node to be made for it."""
        terminus = self.target if self.client_sends else self.source
        index = 4
        return Fields(composite_fields(terminus)).get(index) is True

    @property
    def credit(self) -> int:
        """How many messages the client takes at present; 0 while its transport is full."""
        return 0 if self.session.blocked else self._credit

    def is_open(self) -> bool:
        return self.state is LinkState.OPEN

    # -- attach and detach

    def open(
        self,
        *,
        properties: Mapping[str, Any] | None = None,
        filter_replies: Mapping[str, Any] | None = None,
        max_message_size: int | None = None,
        credit: int = DEFAULT_CREDIT,
    ) -> None:
        """Accept the attach. `filter_replies` replaces the filters that are echoed; `credit` is for senders."""
        if self.state is not LinkState.ATTACHING:
            return
        self.state = LinkState.OPEN
        self.max_message_size = max_message_size
        self.session.write_attach(self, properties, filter_replies)
        if self.client_sends:
            self.granted = credit
            self._credit = credit
            self.session.write_flow(self)
        # A client may give its credit before the attach is answered, and does so once only: it has been kept, and
        # nobody will mention it again. The handler is not there yet where `open` is called while it is being made.
        elif self.handler is not None and (self.drain or self._credit > 0):
            self.handler.on_credit()

    def reject(self, condition: str, description: str) -> None:
        """Refuse the attach: an answer without a terminus, then a closing detach with the error."""
        if self.state is not LinkState.ATTACHING:
            return
        self.session.write_refusal(self)
        self._close(condition, description)

    def detach(self, condition: str | None = None, description: str | None = None) -> None:
        """Close the link from our side, whatever its state."""
        if self.state is LinkState.ATTACHING:
            self.reject(condition or "amqp:link:detach-forced", description or "The link was closed.")
        elif self.state is LinkState.OPEN:
            self._close(condition, description)

    def force_off(self, condition: str, description: str) -> None:
        """The engine's own detach (fault, expired token, oversized message): the handler is told."""
        handler, opened = self.handler, self.state in (LinkState.ATTACHING, LinkState.OPEN)
        self.detach(condition, description)
        if opened and handler is not None:
            handler.on_detach(True, False)

    # -- client sends

    def disposition(self, delivery: IncomingDelivery, state: Described) -> None:
        """Tell the client what became of its message; nothing happens if it was settled or the link is gone."""
        if self.state is LinkState.OPEN and not delivery.settled:
            delivery.settled = True
            self.session.write_disposition(True, delivery.delivery_id, state)

    def answer_declare(self, delivery: IncomingDelivery, state: Described) -> None:
        """Tell the client that its transaction has begun, in `DECLARE_SECONDS`."""
        asyncio.get_running_loop().call_later(DECLARE_SECONDS, self.disposition, delivery, state)

    # -- client receives

    def send(self, payload: bytes, tag: bytes, *, settled: bool, message_format: int = 0) -> int:
        """Deliver a message; uses up one credit. Gives the delivery-id."""
        self._credit -= 1
        self.sent += 1
        return self.session.send_transfer(self, payload, tag, settled, message_format)

    def settle(self, delivery_id: int, state: Described) -> None:
        """Confirm a settlement: a disposition of the sender's role, settled, with the same outcome."""
        if self.state is LinkState.OPEN:
            self.session.forget_delivery(delivery_id)
            self.session.write_disposition(False, delivery_id, state)

    def settle_for_now(self, delivery_id: int, state: Described) -> None:
        """Confirm an outcome within a transaction. It is provisional until the discharge (§4.4.3): the delivery stays
        unsettled at both ends, and `settle` follows the commit. A client forgets what is settled, and could do nothing
        with it after a rollback (azure-sdk-for-net, TransactionRollbackWorksAcrossClientsUsingSameConnection...)."""
        if self.state is LinkState.OPEN:
            self.session.write_disposition(False, delivery_id, state, settled=False)

    def drained(self) -> None:
        """Use up the credit that is left and say so: the client's drain is finished (§2.6.7)."""
        if self.state is not LinkState.OPEN:
            return
        # Unused credit is used up by counting it as deliveries that never were: only so do both ends have the same
        # delivery-count again, from which the client's next grant is reckoned.
        self.sent = (self.sent + max(self._credit, 0)) & 0xFFFFFFFF
        self._credit = 0
        self.session.write_flow(self)

    # -- faults

    def fault(self, operation: str) -> FaultAction | None:
        """What is to go wrong with an operation on this link now: see `FaultAction.fails` and `FaultAction.cuts`.

        Cuts are carried out here already.
        """
        action = self.connection.namespace.faults.check(operation, self.address)
        if action is None:
            return None
        if action.kind is FaultKind.DROP:
            self.connection.abort()
        elif action.kind is FaultKind.DETACH:
            self.force_off(action.condition or "amqp:link:detach-forced", action.description)
        return action

    # -- for the session

    def client_flow(self, delivery_count: int | None, credit: int | None, drain: bool) -> bool:
        """Take over what a receiving client says about its credit (§2.6.7). Whether there is anything to do."""
        # The client's credit counts from the last delivery it has seen. What is on its way to it is used up already:
        # credit = its delivery-count + its credit - ours. A client that has seen none gives no count.
        base = 0 if delivery_count is None else delivery_count
        before = self._credit
        if credit is not None:
            # The client's count is a serial number, its credit is not: 2^31 or more of it is a great deal, not a debt.
            self._credit = _serial_difference(base, self.sent) + credit
        self.drain = drain
        return drain or before != self._credit

    def open_credit(self) -> int:
        """The credit as it stands between the two ends, whatever the transport can take."""
        return max(self._credit, 0)

    def count_transfer(self) -> None:
        """A client that sends used one credit; when half is gone it gets all of it back."""
        # At half, not at none: the flow needs a way to the client, which sends on meanwhile. Each message its own flow
        # would double the frames. Below zero is no error here: who sends without credit is served all the same.
        self.received = (self.received + 1) & 0xFFFFFFFF
        self._credit -= 1
        if self._credit <= self.granted >> 1:
            self._credit = self.granted
            self.session.write_flow(self)

    def finish(self, closed: bool, connection_lost: bool) -> None:
        """The client's side is gone; the handler is told unless it had ended already."""
        # The handler hears of each end once: after our own detach (DETACHING) it has been told, or it was the one who
        # asked for it. The state changes first, since what it does now may come back to this link.
        handler, was = self.handler, self.state
        self.state = LinkState.GONE
        self.drop_partial()
        self.session.forget_link(self)
        if handler is not None and was in (LinkState.ATTACHING, LinkState.OPEN):
            handler.on_detach(closed, connection_lost)

    def _close(self, condition: str | None, description: str | None) -> None:
        # The handle stays taken until the client's answer: until then its frames may name it, and are stale. The
        # deliveries are forgotten at once, so that a settlement under way is not applied to a link that is closed.
        self.state = LinkState.DETACHING
        self.drop_partial()
        self.session.forget_deliveries(self)
        self.session.write_detach(self, condition, description)

    def drop_partial(self) -> None:
        """Whatever of an unfinished message has come is not needed any more."""
        partial, self.partial = self.partial, None
        if partial is not None:
            self.connection.budget.release(len(partial.payload))


def symbol_keys(given: Mapping[str, Any]) -> dict[Symbol, Any]:
    """The same map with keys that are symbols, as AMQP's own maps have."""
    return {Symbol(key): value for key, value in given.items()}


def _address(terminus: object) -> str:
    address = Fields(composite_fields(terminus)).get(0)
    return address if isinstance(address, str) else ""


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _serial_difference(left: int, right: int) -> int:
    """left - right in 32 bit serial arithmetic (RFC 1982), as a signed number."""
    difference = (left - right) & 0xFFFFFFFF
    return difference - 0x100000000 if difference & 0x80000000 else difference
