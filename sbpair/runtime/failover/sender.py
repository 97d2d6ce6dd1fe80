"""The failover sender: the same call whether the message goes to the primary or to the backlog.

A message counts as sent only when a namespace accepted it, and the result says which one. An attempt whose answer was
lost may have stored the message: if the message is then stored elsewhere, or sent again, the result is marked
`uncertain`, and since the MessageId stays the same a duplicate can be recognised.
"""

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType

from sbpair.concurrency import Wait, map_concurrently, waiting, with_timeout
from sbpair.core.errors import (
    Category,
    InterruptedWorkError,
    MalformedMessageError,
    SbpairError,
    SendIncompleteError,
    ServiceError,
    UsageError,
)
from sbpair.core.failover.machine import BUSY_PAUSE_SECONDS, ROUTES, FailureVerdict, Route, State
from sbpair.core.failover.sending import (
    MIN_ATTEMPT_SECONDS,
    Budget,
    MessageKeys,
    check_partitioning,
    is_scheduled,
    keys_of,
    refuse_reserved,
)
from sbpair.core.retry import SDK, SENDER, UNREACHED_SECONDS
from sbpair.ports import MessageSender, Observer, RuntimeClock
from sbpair.runtime.failover.backlog import MESSAGE_AT_FAULT, BacklogQueues, StickyQueue, accepted_of, incomplete
from sbpair.runtime.failover.entity import MonitoredEntity
from sbpair.runtime.links import Links
from sbpair.service import session_key

# Sends under way: counted so that close can wait for them, interrupted when it has waited long enough.

UNWIND_SECONDS = 1.0
"""How long an interrupted send gets to unwind."""


class InFlightSends:
    """All sends of one pairing that have begun and not ended."""

    def __init__(self) -> None:
        self._active: set[InFlightSend] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._refusal: str | None = None

    def __len__(self) -> int:
        return len(self._active)

    def admit(self) -> "InFlightSend":
        """`async with in_flight.admit():` around one send.

        Raises:
            InterruptedWorkError: on entry once `refuse` was called, and on exit if the send was interrupted.
        """
        return InFlightSend(self)

    def refuse(self, why: str) -> None:
        """Let no new send begin. The first reason stands."""
        self._refusal = self._refusal or why

    async def drain(self, seconds: float) -> int:
        """Wait for the sends under way, interrupt those that take longer. Returns how many were interrupted."""
        if await self._wait(seconds):
            return 0
        return await self.interrupt()

    async def interrupt(self) -> int:
        """End every send under way now; each raises InterruptedWorkError."""
        active = tuple(self._active)
        for send in active:
            send.interrupt()
        await self._wait(UNWIND_SECONDS)
        return len(active)

    async def _wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def began(self, send: "InFlightSend") -> None:
        if self._refusal is not None:
            raise InterruptedWorkError(f"Nothing was sent: {self._refusal}")
        self._active.add(send)
        self._empty.clear()

    def ended(self, send: "InFlightSend") -> None:
        self._active.discard(send)
        if not self._active:
            self._empty.set()


class InFlightSend:
    """One send under way; see `InFlightSends.admit`."""

    __slots__ = ("_in_flight", "_scope")

    def __init__(self, in_flight: InFlightSends) -> None:
        self._in_flight = in_flight
        self._scope = asyncio.timeout(None)

    def interrupt(self) -> None:
        self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        self._in_flight.began(self)
        await self._scope.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._in_flight.ended(self)
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise InterruptedWorkError(
                "The pairing was closed while the message was being sent; it may have been stored or not."
            ) from None


DEFAULT_OVERLAP = 10
_NEVER = float("inf")

_Item = bytes | Sequence[bytes]
_Attempt = Callable[[MessageSender, Sequence[bytes], float], Awaitable[list[int]]]


class SentTo(StrEnum):
    PRIMARY = "primary"
    BACKLOG = "backlog"
    NAMESPACE = "namespace"
    """One that has no partner."""


Where = SentTo
"""Its name in 1.0."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """Everything was accepted: where it went."""

    where: SentTo
    """BACKLOG if any message was diverted."""
    queue: str | None = None
    """The (first) backlog queue; None on the primary."""
    uncertain: bool = False
    """An earlier attempt may have stored the message too."""
    messages: int = 1
    diverted: int = 0
    queues: tuple[str, ...] = ()
    sequence_numbers: tuple[int, ...] = ()
    """Of scheduled messages, for `cancel_scheduled`; empty when they were diverted, which cannot be cancelled."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One item of `send_all`: its position and either the result or the error."""

    position: int
    result: SendResult | None = None
    error: SbpairError | None = None


_current: ContextVar[Wait | None] = ContextVar("_current", default=None)
"""What a patient send has told of what it waits for."""


@dataclass(frozen=True, slots=True)
class _Unreached:
    """Neither side took a message for long enough to give up."""

    error: ServiceError
    until: float
    """Monotonic seconds; a message that comes before is not tried."""

    def again(self) -> ServiceError:
        """The error for a message that was not tried."""
        error = copy.copy(self.error)
        error.uncertain = False
        return error


class _Attempts:
    """Attempts on the primary, with the SDK's retries."""

    def __init__(self, failover: MonitoredEntity, links: Links, clock: RuntimeClock, retries: int) -> None:
        self._failover = failover
        self._links = links
        self._clock = clock
        self._retries = retries

    async def offer(self, payloads: Sequence[bytes], budget: Budget, attempt: _Attempt) -> list[int]:
        """One attempt on the primary, in the time that is its own."""
        seconds, entity = max(budget.for_primary(self._clock.monotonic()), MIN_ATTEMPT_SECONDS), self._failover.entity
        link = self._links.to(entity)
        if self._failover.rules.max_message_bytes is None:
            await self._ask_limit(link, seconds)
        offering = attempt(link, payloads, seconds)
        return await with_timeout(seconds, offering, what=f"Send to {entity}", entity=entity)

    async def _ask_limit(self, link: MessageSender, seconds: float) -> None:
        """Open the link before the first send on it, as it says how large a message may be: in an outage a larger one
        is refused at once. Nothing has been sent yet, so no failure is uncertain."""
        entity, rules = self._failover.entity, self._failover.rules
        try:
            opening = link.max_message_bytes()
            rules.max_message_bytes = await with_timeout(seconds, opening, what=f"Link to {entity}", entity=entity)
        except ServiceError as error:
            error.uncertain = False
            raise

    async def is_to_be_retried(self, error: ServiceError, failures: int, budget: Budget) -> bool:
        """Wait and say yes if the SDK would try this again: a hiccup is cured before the failover policy hears of it.

        A busy server is not: that has its own pause, the policy's.
        """
        if failures > self._retries or not error.retryable or error.category is Category.BUSY:
            return False
        pause = SDK.seconds(failures)
        if not budget.allows_pause(pause, budget.for_primary(self._clock.monotonic())):
            return False
        await self.pause(pause, error)
        return True

    async def pause(self, seconds: float, error: ServiceError) -> None:
        with waiting("") as wait:
            wait.error = error.message
            await self._clock.sleep(seconds)


class FailoverSender:
    """Sends to one queue or topic; made by `PairedNamespaces.sender`. Payloads are encoded AMQP messages."""

    def __init__(
        self,
        failover: MonitoredEntity,
        primary: Links,
        backlog: BacklogQueues,
        in_flight: InFlightSends,
        *,
        clock: RuntimeClock,
        observer: Observer,
        partitioned: bool | None,
        hold_sessions: bool,
        retries: int = 0,
    ) -> None:
        self._failover = failover
        self._observer = observer
        self._primary = primary
        self._backlog = backlog
        self._in_flight = in_flight
        self._clock = clock
        self._partitioned = bool(partitioned)
        if partitioned is not None:
            failover.rules.partitioned = partitioned
        self._hold_sessions = hold_sessions
        self._attempts = _Attempts(failover, primary, clock, retries)
        self._sticky = StickyQueue()
        self._closed = False
        self.answered = False
        """Either side has taken a message."""
        self._patient = _PatientSender(self, failover, clock)

    @property
    def entity(self) -> str:
        return self._failover.entity

    async def send(self, payloads: _Item, *, timeout_seconds: float | None = None) -> SendResult:
        """Send one message, or several as one batch.

        Args:
            timeout_seconds: for everything together, the SDK's retries and the backlog included; default 60. A
                partitioned entity gets at least 60 ("Partitioned queues and topics").

        Raises:
            ServiceError: not accepted; with `uncertain` set it may have been stored all the same.
            SendIncompleteError: only a part of the batch was accepted (the backlog splits a batch by session and size).
            MessageError: a message that could not be diverted.
            InterruptedWorkError: the sender or the pairing is closed.
        """

        async def attempt(link: MessageSender, batch: Sequence[bytes], seconds: float) -> list[int]:
            await link.send(batch, timeout_seconds=seconds)
            return []

        return await self._deliver(_as_batch(payloads), timeout_seconds, attempt)

    async def send_within(
        self, payloads: _Item, seconds: float, *, stop: asyncio.Event, scheduled: bool = False
    ) -> SendResult:
        """`send`, or `schedule`, tried again after errors that time may cure, such as those of the failover interval;
        all of it within `seconds`, a part of which is the backlog's. Once `stop` is set nothing is tried again.

        Raises as `send`.
        """
        now = self._clock.monotonic()
        budget = Budget.of(seconds, partitioned=False, now=now)
        return await self._patient.send(
            payloads, None, budget.for_primary(now), stop, until=now + seconds, scheduled=scheduled
        )

    async def schedule(self, payloads: _Item, *, timeout_seconds: float | None = None) -> SendResult:
        """Hand in messages that carry `x-opt-scheduled-enqueue-time`. In the backlog the time travels as a property.

        Raises:
            UsageError: a message without that annotation; otherwise as `send`.
        """

        async def attempt(link: MessageSender, batch: Sequence[bytes], seconds: float) -> list[int]:
            return await link.schedule(batch, timeout_seconds=seconds)

        batch = _as_batch(payloads)
        if not all(map(is_scheduled, batch)):
            raise UsageError("A message to schedule carries the annotation x-opt-scheduled-enqueue-time.")
        return await self._deliver(batch, timeout_seconds, attempt)

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_seconds: float | None = None) -> None:
        """Take back messages scheduled on the primary. Says nothing about the entity's health."""
        async with self._in_flight.admit():
            self._check_open()
            seconds = Budget.of(timeout_seconds, partitioned=False, now=self._clock.monotonic()).total_seconds
            link = self._primary.to(self.entity)
            cancelling = link.cancel_scheduled(sequence_numbers, timeout_seconds=seconds)
            await with_timeout(seconds, cancelling, what=f"Cancelling on {self.entity}", entity=self.entity)

    def send_all(
        self,
        payloads: Iterable[_Item] | AsyncIterable[_Item],
        *,
        overlap: int = DEFAULT_OVERLAP,
        timeout_seconds: float | None = None,
        retry_seconds: float = 0.0,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[Sent, None]:
        """Send many messages (or batches) with up to `overlap` sends under way, and await every result ("Message
        transfers, locks, and settlement").

        Yields one `Sent` per item, in the order given. Reads on only as fast as results are taken, so memory stays
        bounded. Messages of one session are sent one after another; sessionless ones may be stored in any order.

        `retry_seconds`: for so long an item is tried again after an error that time may cure, such as those of the
        failover interval. A result after such a try is `uncertain` if an earlier one may have stored the message.
        Once `stop` is set nothing is tried again. Nor is it after `UNREACHED_SECONDS` where neither side has ever taken
        a message; items that come within the same time after that share the error without a try.
        """

        async def one(position: int, item: _Item) -> Sent:
            try:
                return Sent(position, await self._patient.send(item, timeout_seconds, retry_seconds, stop))
            except SbpairError as error:
                return Sent(position, error=error)

        return map_concurrently(payloads, one, overlap=overlap, lane=session_of)

    # For a client that offers its messages to the primary by itself, and comes here with what the primary did not take.

    @property
    def state(self) -> State:
        """Where the entity stands; to be read from any thread."""
        return self._failover.state

    @property
    def ticket(self) -> int:
        """To be taken before an attempt and handed to `take_over` with its error."""
        return self._failover.ticket

    @property
    def max_message_bytes(self) -> int | None:
        """What the primary's link takes; None: not known yet."""
        return self._failover.rules.max_message_bytes

    def counts(self, error: ServiceError) -> bool:
        """A failure that the policy has to hear of, or that another try may cure; else it is the message's own."""
        return self._failover.worth_retrying(error)

    def note_limit(self, max_message_bytes: int) -> None:
        """The primary's link takes messages up to this size."""
        self._failover.rules.max_message_bytes = max_message_bytes

    def note_sent(self) -> None:
        """The primary accepted a message."""
        self.answered = True
        self._failover.sent()

    def holds(self, payloads: Sequence[bytes]) -> bool:
        """A session of these messages has to follow its older messages into the backlog."""
        return self._hold_sessions and any(self._is_held(keys_of(payload)) for payload in payloads)

    async def take_over(
        self, payloads: Sequence[bytes] | None, error: ServiceError, ticket: int, budget: Budget
    ) -> SendResult | None:
        """Do about a failed attempt on the primary what the policy says. None: it is to be tried again, now.

        `payloads`: None for what has no message, such as opening a link; then a rerouted attempt gives an empty result.

        Raises:
            ServiceError: `error` itself if its sender is to be told; otherwise as `send`.
        """
        if payloads is not None:
            self._failover.rules.refused(payloads, error)
        async with self._in_flight.admit():
            await self._after_failure(error, ticket, budget)
            if ROUTES[self._failover.state] is Route.BACKLOG:
                if payloads is None:
                    return SendResult(SentTo.BACKLOG, messages=0)
                return await self._divert(payloads, budget, uncertain=error.uncertain)
        return None

    async def divert(self, payloads: Sequence[bytes], budget: Budget) -> SendResult:
        """Put the messages into the backlog, as the entity's state says. Raises as `send`."""
        async with self._in_flight.admit():
            self._check_open()
            return await self._divert(payloads, budget, uncertain=False)

    async def close(self) -> None:
        """No more sends through this sender; the entity's link belongs to the pairing."""
        self._closed = True
        self.give_queue_back()

    def give_queue_back(self) -> None:
        """This sender's backlog queue is the next sender's; from any thread."""
        queue, self._sticky.queue = self._sticky.queue, None
        if queue is not None:
            self._failover.give_queue_back(queue)

    async def _deliver(self, payloads: Sequence[bytes], timeout_seconds: float | None, attempt: _Attempt) -> SendResult:
        async with self._in_flight.admit():
            self._check_open()
            for payload in payloads:
                refuse_reserved(payload, self.entity)
            budget = Budget.of(timeout_seconds, partitioned=self._partitioned, now=self._clock.monotonic())
            held = self._held(payloads)
            if not held:
                return await self._route(payloads, budget, attempt)
            return await self._deliver_held(payloads, held, budget, attempt)

    def _check_open(self) -> None:
        if self._closed:
            raise InterruptedWorkError("Nothing was sent: the sender is closed.")

    def _held(self, payloads: Sequence[bytes]) -> frozenset[int]:
        """Positions of the messages whose session has to follow its older messages into the backlog.

        Looks into the messages only where their keys matter: it would cost the healthy path more than all the rest.
        """
        if not self._partitioned and not self._hold_sessions:
            return frozenset()
        keys = [keys_of(payload) for payload in payloads]
        if self._partitioned:
            check_partitioning(keys, self.entity)
        return frozenset(position for position, key in enumerate(keys) if self._is_held(key))

    def _is_held(self, keys: MessageKeys) -> bool:
        return keys.session_id is not None and self._backlog.is_held(
            (self.entity.lower(), session_key(keys.session_id))
        )

    async def _deliver_held(
        self, payloads: Sequence[bytes], held: frozenset[int], budget: Budget, attempt: _Attempt
    ) -> SendResult:
        """The held sessions' messages to the backlog, the others where they would go anyway."""
        first = sorted(held)
        second = [position for position in range(len(payloads)) if position not in held]
        try:
            result = await self._divert([payloads[position] for position in first], budget, uncertain=False)
        except SendIncompleteError as error:
            error.accepted = tuple(first[position] for position in error.accepted)
            raise
        if not second:
            return result
        try:
            rest = await self._route([payloads[position] for position in second], budget, attempt)
        except (ServiceError, InterruptedWorkError) as error:
            accepted = first + [second[position] for position in accepted_of(error)]
            raise incomplete(accepted, len(payloads), error) from error
        return replace(
            result,
            uncertain=result.uncertain or rest.uncertain,
            messages=len(payloads),
            diverted=result.diverted + rest.diverted,
            queues=tuple(dict.fromkeys(result.queues + rest.queues)),
            sequence_numbers=rest.sequence_numbers,
        )

    async def _route(self, payloads: Sequence[bytes], budget: Budget, attempt: _Attempt) -> SendResult:
        """Do what the machine says until the messages are accepted or the answer is an error."""
        uncertain = False
        failures = 0
        while True:
            route = self._failover.route()
            if route is Route.NOWHERE:
                raise self._failover.refusal()
            if route is Route.BACKLOG:
                return await self._divert(payloads, budget, uncertain=uncertain)
            ticket = self._failover.ticket
            try:
                numbers = await self._attempts.offer(payloads, budget, attempt)
            except ServiceError as error:
                uncertain = error.uncertain = uncertain or error.uncertain
                failures += 1
                self._failover.rules.refused(payloads, error)
                if not await self._attempts.is_to_be_retried(error, failures, budget):
                    await self._after_failure(error, ticket, budget)
            else:
                self.answered = True
                self._failover.sent()
                return SendResult(
                    SentTo.PRIMARY, uncertain=uncertain, messages=len(payloads), sequence_numbers=tuple(numbers)
                )

    async def _after_failure(self, error: ServiceError, ticket: int, budget: Budget) -> None:
        """Raise the error, or return when the message is to be routed again."""
        if isinstance(error, SendIncompleteError):
            if isinstance(error.__cause__, ServiceError):
                self._failover.failed(error.__cause__, ticket, self._observer)
            raise error
        verdict = self._failover.failed(error, ticket, self._observer)
        if verdict is FailureVerdict.REROUTE:
            return
        left = budget.for_primary(self._clock.monotonic())
        if verdict is FailureVerdict.RAISE or not budget.allows_pause(BUSY_PAUSE_SECONDS, left):
            raise error
        await self._attempts.pause(BUSY_PAUSE_SECONDS, error)

    async def _divert(self, payloads: Sequence[bytes], budget: Budget, *, uncertain: bool) -> SendResult:
        self._failover.rules.check(payloads, self.entity)
        if keys_of(payloads[0]).session_id is not None:
            self._failover.expect_sessions()
        if self._sticky.queue is None:
            self._sticky.queue = self._failover.take_queue()
        if (wait := _current.get()) is not None:  # no longer the primary is waited for
            wait.tried, wait.error, wait.until = f"send to the backlog for {self.entity}", "", None
            wait.since = time.monotonic()
        try:
            diversion = await self._backlog.divert(self.entity, payloads, budget, self._note_diverted, self._sticky)
        except ServiceError as error:
            error.uncertain = error.uncertain or uncertain
            if (refusal := self._refusal_of_both(error)) is None:
                raise
            raise refusal from error
        self.answered = True
        return SendResult(
            SentTo.BACKLOG,
            queue=diversion.queues[0],
            uncertain=uncertain or diversion.uncertain,
            messages=len(payloads),
            diverted=len(payloads),
            queues=tuple(diversion.queues),
        )

    def _note_diverted(self, queue: str, messages: int) -> None:
        self._failover.diverted(queue, messages, self._observer)

    def _refusal_of_both(self, error: ServiceError) -> ServiceError | None:
        """What to raise when the backlog did not take a message either: why it does not go to the primary, which is
        what its sender has to know, with a note on the backlog. None: the backlog's error, as it is the message's own
        fault, or the primary has none (a forced failover)."""
        cause = self._failover.cause
        if cause is None or isinstance(error, SendIncompleteError) or error.category in MESSAGE_AT_FAULT:
            return None
        refusal = self._failover.refusal().with_state(f"The backlog did not take the message either: {error.message}")
        refusal.uncertain = error.uncertain
        return refusal


class _PatientSender:
    """Tries an item of `send_all` again for as long as its caller allows."""

    def __init__(self, sender: FailoverSender, failover: MonitoredEntity, clock: RuntimeClock) -> None:
        self._sender = sender
        self._failover = failover
        self._clock = clock
        self._unreached: _Unreached | None = None

    async def send(
        self,
        item: _Item,
        timeout_seconds: float | None,
        retry_seconds: float,
        stop: asyncio.Event | None,
        *,
        until: float = _NEVER,
        scheduled: bool = False,
    ) -> SendResult:
        """`FailoverSender.send`, again after errors that time may cure. `until` (monotonic seconds) ends each try.
        Raises as it does."""
        call = self._sender.schedule if scheduled else self._sender.send

        def attempt() -> Awaitable[SendResult]:
            left = until - self._clock.monotonic()
            return call(item, timeout_seconds=timeout_seconds if until == _NEVER else max(left, MIN_ATTEMPT_SECONDS))

        with waiting("") as wait:
            if retry_seconds:
                wait.afterwards = "tried again"
            began = self._clock.monotonic()
            if self._unreached is not None and not self._sender.answered and began < self._unreached.until:
                raise self._unreached.again()
            _current.set(wait)
            return await self._send_until(attempt, began, retry_seconds, stop)

    async def _send_until(
        self,
        attempt: Callable[[], Awaitable[SendResult]],
        began: float,
        retry_seconds: float,
        stop: asyncio.Event | None,
    ) -> SendResult:
        uncertain = False
        failures = 0
        deadline = began + retry_seconds
        while True:
            try:
                result = await attempt()
                return replace(result, uncertain=True) if uncertain else result
            except ServiceError as error:
                uncertain = error.uncertain = uncertain or error.uncertain
                failures += 1
                pause = SENDER.seconds(failures)
                stopped = stop is not None and stop.is_set()
                now = self._clock.monotonic()
                if stopped or not self._failover.worth_retrying(error) or now + pause > deadline:
                    raise
                diverts = ROUTES[self._failover.state] is Route.BACKLOG  # so the backlog has failed, too
                if diverts and not self._sender.answered and now - began >= UNREACHED_SECONDS:
                    self._unreached = _Unreached(error, now + UNREACHED_SECONDS)
                    raise
                self._note_wait(error, deadline)
            await self._clock.sleep(pause)

    def _note_wait(self, error: ServiceError, deadline: float) -> None:
        """What becomes of a message that the primary has not taken yet, and when."""
        wait = _current.get()
        if wait is None:
            return
        left, diverts_in = deadline - self._clock.monotonic(), self._failover.timer_seconds_left
        wait.afterwards = "given up"
        if diverts_in is not None and diverts_in < left:
            left, wait.afterwards = diverts_in, "sent to the backlog"
        wait.error, wait.until = error.message, time.monotonic() + left


def _as_batch(payloads: _Item) -> Sequence[bytes]:
    batch = [payloads] if isinstance(payloads, bytes) else payloads
    if not batch:
        raise UsageError("There is no message to send.")
    return batch


def session_of(item: _Item) -> str | None:
    """Session of a message, of a batch that of its first, as it is compared. What cannot be read has none: sending it
    will say so."""
    first = item if isinstance(item, bytes) else next(iter(item), None)
    try:
        session_id = None if first is None else keys_of(first).session_id
        return None if session_id is None else session_key(session_id)
    except MalformedMessageError:
        return None
