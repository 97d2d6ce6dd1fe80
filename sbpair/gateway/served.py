"""Links that send, served by the failover machine while the primary is away, and the transactions of such links.

A message is confirmed when the primary or the backlog has it, and refused with the condition that the service would
give. Messages of one session go one after another; the others of a link begin in their order, some at a time.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.performatives import (
    DECLARE,
    DISCHARGE,
    Fields,
    accepted,
    code_of,
    declared,
    in_transaction,
    released,
    transaction_of,
)
from sbpair.amqp.sections import Section, read, read_span, scan
from sbpair.amqp.types import AmqpError, Described
from sbpair.azure.errors import WireError
from sbpair.core.errors import (
    Category,
    InterruptedWorkError,
    MessageError,
    OperationTimeoutError,
    SbpairError,
    ServiceError,
    UsageError,
)
from sbpair.core.failover.machine import ROUTES, Route, State
from sbpair.core.failover.sending import MIN_ATTEMPT_SECONDS, Budget, refuse_reserved
from sbpair.engine import errors
from sbpair.engine.errors import rejected
from sbpair.engine.link import IncomingDelivery, Link, LinkHandler
from sbpair.gateway.upward import Outstanding
from sbpair.runtime.failover.sender import session_of
from sbpair.version import __version__

if TYPE_CHECKING:
    from sbpair.gateway.server import House

CREDIT: Final = 100
OVERLAP: Final = 10
SMALLEST_LIMIT_BYTES: Final = 256 * 1024
"""Of a message, in the smaller tiers; where the primary's own limit is not known."""
MAX_TRANSACTION_BYTES: Final = 1024 * 1024
MAX_TRANSACTION_MESSAGES: Final = 100
"""As the service has it ("Service Bus quotas")."""
MAX_TRANSACTIONS: Final = 100
_CONDITIONS: Final = {
    Category.TIMEOUT: errors.TIMEOUT,
    Category.CONNECTION: errors.TIMEOUT,
    Category.DETACHED: errors.TIMEOUT,
    Category.INTERNAL: errors.INTERNAL_ERROR,
    Category.BUSY: errors.SERVER_BUSY,
    Category.DISABLED: errors.DISABLED,
    Category.QUOTA: errors.QUOTA,
    Category.UNAUTHORIZED: errors.UNAUTHORIZED,
    Category.NOT_FOUND: errors.NOT_FOUND,
    Category.TOO_LARGE: errors.SIZE_EXCEEDED,
    Category.ARGUMENT: errors.ARGUMENT_ERROR,
}


def refusal(error: SbpairError) -> Described:
    """The outcome of a message that was not accepted, in the service's own condition."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, WireError) and cause.condition:
            return rejected(cause.condition, cause.description)
        cause = cause.__cause__
    if isinstance(error, ServiceError):
        return rejected(_CONDITIONS.get(error.category, errors.INTERNAL_ERROR), error.message)
    if isinstance(error, MessageError | UsageError):
        return rejected(errors.ARGUMENT_ERROR, error.message)
    return rejected(errors.TIMEOUT if isinstance(error, InterruptedWorkError) else errors.INTERNAL_ERROR, error.message)


def forgotten(address: str) -> ServiceError:
    """For a message that is unsettled, and not remembered."""
    error = OperationTimeoutError(
        "The primary went away before it answered, and the message is too large to be kept meanwhile: send it again",
        entity=address,
    )
    error.uncertain = True
    return error


class Sends:
    """What one link sends, as the failover machine sees it."""

    def __init__(self, house: "House", entity: str) -> None:
        self.entity = entity
        self.sender = house.sender(entity)
        self._house = house
        self._noted = False
        self._gone = asyncio.Event()
        self._slots = asyncio.Semaphore(OVERLAP)
        self._last: dict[str, asyncio.Task[None]] = {}

    @property
    def diverts(self) -> bool:
        """Whether the primary does not get messages just as they are now."""
        return ROUTES[self.sender.state] is Route.BACKLOG or self._house.holds_sessions

    @property
    def largest_bytes(self) -> int:
        """Of a message, as far as is known."""
        return self.sender.max_message_bytes or SMALLEST_LIMIT_BYTES

    def counts(self, error: ServiceError) -> bool:
        return self.sender.counts(error)

    def note_limit(self, max_message_bytes: int) -> None:
        self.sender.note_limit(max_message_bytes)

    def taken(self, message: Outstanding) -> None:
        """The primary has taken a message that passed."""
        if not self._noted or self.sender.state is not State.HEALTHY:
            self._noted = True
            self.sender.note_sent()
        self._told(message.sent_at, message.parts or (), message.delivery.message_format)

    async def opening_failed(self, error: ServiceError, *, refused: bool) -> bool:
        """The primary did not take the link: whether it is to be served here. `refused`: by the primary's own word, so
        that only a failover leads past it; else what is sent is tried again, there and then on the backlog."""
        budget = Budget.of(self._house.send_seconds, partitioned=False, now=self._house.now())
        try:
            return await self.sender.take_over(None, error, self.sender.ticket, budget) is not None
        except ServiceError:
            return not refused and self.sender.counts(error)

    def take(
        self,
        delivery: IncomingDelivery,
        error: ServiceError | None = None,
        ticket: int = 0,
        outcome: Described | None = None,
        since: float | None = None,
    ) -> None:
        """Send a whole message and settle it. `error`: the primary's; `outcome`: its words for the client; `since`:
        when it came (seconds of the loop's clock)."""
        delivery.link.connection.budget.hold(len(delivery.payload))
        began = self._house.now() if since is None else since
        try:
            messages = messages_of(delivery.payload, delivery.message_format)
        except AmqpError as failure:
            self._settle(delivery, rejected(errors.DECODE_ERROR, str(failure)))
            return

        async def send() -> int:
            if error is not None and (not error.retryable or error.category in (Category.BUSY, Category.TIMEOUT)):
                budget = Budget.of(self._house.send_seconds, partitioned=False, now=self._house.now())
                taken = await self.sender.take_over(messages, error, ticket, budget)
                if taken is not None:
                    return taken.diverted
            left = max(began + self._house.send_seconds - self._house.now(), MIN_ATTEMPT_SECONDS)
            return (await self.sender.send_within(messages, left, stop=self._gone)).diverted

        async def attempt() -> None:
            if self._gone.is_set() and not delivery.settled:
                self._settle(delivery, released())  # nobody hears it: the client sends this again on another link
                return
            payload, kind = (delivery.payload,), delivery.message_format
            try:
                diverted = await send()
            except SbpairError as failure:
                self._told(began, payload, kind, refused=failure)
                self._settle(delivery, outcome if outcome is not None and failure is error else refusal(failure))
            else:
                self._told(began, payload, kind, messages=len(messages), diverted=diverted)
                self._settle(delivery, accepted())

        self.in_turn(session_of(messages), attempt)

    async def send_now(self, messages: list[bytes]) -> None:
        """Send what a transaction has held. Raises SbpairError."""
        result = await self.sender.send_within(messages, self._house.send_seconds, stop=self._gone)
        self._told(self._house.now(), (), 0, messages=len(messages), diverted=result.diverted)

    async def schedule(self, messages: list[bytes]) -> list[int]:
        """Sequence numbers of messages that carry their time; none where they are in the backlog.

        Raises:
            SbpairError: not accepted.
        """
        began = self._house.now()
        seconds = self._house.send_seconds
        result = await self.sender.send_within(messages, seconds, stop=self._gone, scheduled=True)
        self._told(began, (), 0, messages=len(messages), diverted=result.diverted)
        return [] if result.diverted else list(result.sequence_numbers)

    def in_turn(self, session: str | None, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it after what the same session has sent before."""
        before = None if session is None else self._last.get(session)

        async def run() -> None:
            if before is not None:
                await asyncio.wait({before})
            async with self._slots:
                await work()
            if session is not None and self._last.get(session) is task:
                del self._last[session]

        task = self._house.spawn(run())
        if session is not None:
            self._last[session] = task

    def _told(
        self,
        began: float,
        payload: Sequence[bytes],
        message_format: int,
        *,
        messages: int = 1,
        diverted: int = 0,
        refused: SbpairError | None = None,
    ) -> None:
        """Count what became of a message or a batch, and tell its trace."""
        seconds = self._house.now() - began
        self._house.count(self.entity, messages, diverted, seconds, refused is not None)
        if self._house.spans.on and payload:
            self._house.spans.tell(self.entity, b"".join(payload), message_format, seconds, diverted > 0, refused)

    @staticmethod
    def _settle(delivery: IncomingDelivery, outcome: Described) -> None:
        delivery.link.connection.budget.release(len(delivery.payload))
        delivery.link.disposition(delivery, outcome)

    def close(self) -> None:
        """The link is gone; its backlog queue is the next one's, and nothing of it is tried again."""
        self._gone.set()
        self.sender.give_queue_back()


def messages_of(payload: bytes, message_format: int) -> list[bytes]:
    """The messages of a transfer: itself, or those of a batch.

    Raises:
        AmqpError: not what it should be.
    """
    spans = scan(payload)
    if message_format != BATCH_FORMAT:
        return [payload]
    found = [read_span(payload, span) for span in spans if span.section == Section.DATA]
    if not found:
        raise AmqpError("A batch must hold its messages in data sections.")
    return found


def go_on_with(link: Link) -> None:
    """Give credit on a link that the primary had."""
    link.granted = link._credit = CREDIT
    link.session.write_flow(link)


class ServedSender(LinkHandler):
    """A link that sends, and is answered here."""

    def __init__(self, link: Link, sends: Sends) -> None:
        self._link = link
        self._sends = sends

    def open(self) -> None:
        """Accept the attach in the place of the primary."""
        self._link.open(max_message_size=self._sends.largest_bytes, credit=CREDIT)

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        within = transaction_of(delivery.state)
        if within is None:
            self._sends.take(delivery)
            return
        found = HeldTransactions.of(self._link).get(within[0])
        if found is None:
            self._link.disposition(delivery, rejected("amqp:transaction:unknown-id", "The transaction is not open."))
        else:
            self._link.disposition(delivery, found.hold(self._sends, delivery))

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self._sends.close()


class HeldTransaction:
    """Messages that are sent at the commit, all of them to one queue or topic."""

    def __init__(self, number: bytes) -> None:
        self.number = number
        self.sends: Sends | None = None
        self.messages: list[bytes] = []
        self.held_bytes = 0
        self._refused: Described | None = None

    def hold(self, sends: Sends, delivery: IncomingDelivery) -> Described:
        """Keep a message until the commit; its provisional outcome."""
        try:
            if self.sends is not None and self.sends.entity.lower() != sends.entity.lower():
                raise UsageError("While the primary is away a transaction sends to one queue or topic only.")
            messages = messages_of(delivery.payload, delivery.message_format)
            for message in messages:
                refuse_reserved(message, sends.entity)
            size, budget = len(delivery.payload), delivery.link.connection.budget
            if len(self.messages) + len(messages) > MAX_TRANSACTION_MESSAGES:
                raise UsageError(f"Cannot send more than {MAX_TRANSACTION_MESSAGES} messages in a single transaction.")
            if self.held_bytes + size > MAX_TRANSACTION_BYTES:
                raise UsageError(f"While the primary is away a transaction has {MAX_TRANSACTION_BYTES} bytes at most.")
            if not budget.has_room(size):
                raise UsageError("The open transactions of this connection hold too many bytes.")
        except AmqpError as failure:
            self._refused = rejected(errors.DECODE_ERROR, str(failure))
        except SbpairError as failure:
            self._refused = refusal(failure)
        else:
            self.sends = sends
            self.messages += messages
            self.held_bytes += size
            budget.hold(size)
            return in_transaction(self.number, accepted())
        return in_transaction(self.number, self._refused)

    async def commit(self) -> Described:
        """Send what was held; the outcome of the discharge."""
        if self._refused is not None:
            return self._refused
        if self.sends is None:
            return accepted()
        try:
            await self.sends.send_now(self.messages)
        except SbpairError as failure:
            return rejected("amqp:transaction:rollback", failure.message)
        return accepted()


class HeldTransactions(LinkHandler):
    """The coordinator of one connection while the primary is away (AMQP 1.0 §4.5)."""

    def __init__(self, link: Link, house: "House") -> None:
        self._link = link
        self._house = house
        self._open: dict[bytes, HeldTransaction] = {}

    @staticmethod
    def of(link: Link) -> dict[object, HeldTransaction]:
        """The open transactions of the link's connection."""
        handlers = [other.handler for other in link.session.links.values()]
        return {
            key: one for found in handlers if isinstance(found, HeldTransactions) for key, one in found._open.items()
        }

    def open(self) -> None:
        self._link.open(max_message_size=1024, credit=CREDIT)

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        try:
            request = read(delivery.payload, scan(delivery.payload), Section.VALUE)
        except AmqpError as error:
            self._link.disposition(delivery, rejected(errors.DECODE_ERROR, str(error)))
            return
        code = code_of(request.descriptor) if isinstance(request, Described) else None
        if code == DECLARE and len(self._open) < MAX_TRANSACTIONS:
            number = uuid.uuid4().bytes
            self._open[number] = HeldTransaction(number)
            self._link.answer_declare(delivery, declared(number))
        elif code == DISCHARGE and isinstance(request.value, list):
            self._discharge(delivery, Fields(request.value))
        else:
            text = "The coordinator takes declare and discharge, of some transactions at a time."
            self._link.disposition(delivery, rejected(errors.NOT_ALLOWED, text))

    def _discharge(self, delivery: IncomingDelivery, fields: Fields) -> None:
        found = self._open.pop(fields.binary(0) or b"", None)
        if found is None:
            unknown = rejected("amqp:transaction:unknown-id", "The transaction is not open.")
            self._link.disposition(delivery, unknown)
        elif fields.flag(1):
            self._forget(found)
            self._link.disposition(delivery, accepted())
        else:

            async def commit() -> None:
                try:
                    outcome = await found.commit()
                finally:
                    self._forget(found)
                self._link.disposition(delivery, outcome)

            self._house.spawn(commit())

    def _forget(self, transaction: HeldTransaction) -> None:
        self._link.connection.budget.release(transaction.held_bytes)

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        for transaction in self._open.values():
            self._forget(transaction)
        self._open.clear()


# SendSpans of what a gateway has sent, for applications that trace: each joins the trace of its message.
#
# The context comes from the message, as the SDKs of Azure write it: `traceparent` (W3C Trace Context), or `Diagnostic-
# Id` of the same form. Messages pass unchanged, so a receiver sees the sender's own context. A batch links to the
# contexts of its messages. Nothing is configured here: `opentelemetry-instrument sbpair gateway ...` and the variables
# `OTEL_...` say where spans go. Without OpenTelemetry's API, or where nobody records, no message is looked at.


BATCH_FORMAT: Final = 0x80013700
_CONTEXT: Final = ("traceparent", "Diagnostic-Id")
_MOST_ITEMS: Final = 1000
_MOST_LINKS: Final = 128
"""As many links as a span has by default."""


class SendSpans:
    """The spans of one pair. `on`: somebody records them."""

    def __init__(self, pair: str) -> None:
        self.on = False
        self._pair = pair
        try:
            self._api: Any = import_module("opentelemetry.trace")
            self._reader: Any = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError:
            return
        self._tracer = self._api.get_tracer("sbpair", __version__)
        probe = self._tracer.start_span("probe")
        self.on = probe.get_span_context().is_valid

    def tell(
        self,
        entity: str,
        payload: bytes,
        message_format: int,
        seconds: float,
        diverted: bool,
        refused: SbpairError | None,
    ) -> None:
        """A send that has ended now, after `seconds`."""
        ended = time.time_ns()
        contexts = list(self._contexts(payload, message_format))
        attributes = {
            "messaging.system": "servicebus",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": entity,
            "sbpair.pair": self._pair,
            "sbpair.outcome": "refused" if refused is not None else "backlog" if diverted else "primary",
        }
        if refused is not None:
            attributes["error.type"] = refused.code if isinstance(refused, ServiceError) else refused.exit_name
        batch = message_format == BATCH_FORMAT
        parent = contexts[0] if contexts and not batch else None
        spans = [self._api.get_current_span(one).get_span_context() for one in contexts] if batch else []
        span = self._tracer.start_span(
            f"send {entity}",
            context=parent,
            kind=self._api.SpanKind.CLIENT,
            links=[self._api.Link(one) for one in spans],
            attributes=attributes,
            start_time=ended - int(seconds * 1e9),
        )
        if refused is not None:
            span.set_status(self._api.StatusCode.ERROR, refused.message)
        span.end(end_time=ended)

    def _contexts(self, payload: bytes, message_format: int) -> Iterator[Any]:
        """The contexts of the first messages that have one."""
        try:
            parts = [payload]
            if message_format == BATCH_FORMAT:
                parts = [read_span(payload, span) for span in scan(payload) if span.section == Section.DATA]
            for part in parts[:_MOST_LINKS]:
                about = read(part, scan(part), Section.APPLICATION_PROPERTIES, max_items=_MOST_ITEMS)
                found = [about[name] for name in _CONTEXT if name in about] if isinstance(about, dict) else []
                if found:
                    carrier = {"traceparent": str(found[0])}
                    yield self._reader.TraceContextTextMapPropagator().extract(carrier)
        except AmqpError:
            return  # what cannot be read is refused elsewhere
