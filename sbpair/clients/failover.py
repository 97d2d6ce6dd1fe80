"""The failover of one client: its pairing on a loop of its own, opened at the first failure of the primary.

Nothing here is touched by a send that the primary accepts, but for one look at a state that says so.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from sbpair.clients.background import Background
from sbpair.core.errors import MessageError, ServiceError
from sbpair.core.events import Event, FailedBack, FailedOver
from sbpair.core.failover.coupling import Condition
from sbpair.core.failover.machine import ROUTES, Route, State
from sbpair.core.failover.sending import Budget, QueueStanding
from sbpair.core.pairing import Pair
from sbpair.ports import Messaging
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.failover.backlog import MESSAGE_AT_FAULT
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingState
from sbpair.runtime.failover.sender import FailoverSender, SendResult

T = TypeVar("T")

LOGGER = logging.getLogger("sbpair.clients")
CLOSE_SECONDS = 15.0

OnEvent = Callable[[Event], object]


class Failover:
    """What the senders of one client share."""

    def __init__(
        self,
        pair: Pair,
        *,
        primary: Callable[[], Messaging],
        secondary: Callable[[], Messaging],
        on_event: OnEvent | None = None,
        credentials: Sequence[Any] = (),
    ) -> None:
        self.pair = pair
        self._make = primary, secondary
        self._on_event = on_event
        self.credentials = credentials
        """Borrowed ones, which are told the application's event loop."""
        self._background = Background(f"failover of {pair.name}")
        self._pairing: PairedNamespaces | None = None
        self._lines: dict[str, Line] = {}
        self._lock = threading.Lock()
        _failovers.add(self)
        if pair.options.enable_syphon:
            self.call(self._opened())

    def line(self, entity: str) -> "Line":
        """What the senders of one entity share."""
        with self._lock:
            return self._lines.setdefault(entity.lower(), Line(self, entity))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any thread."""
        asked = self._background.submit(work)
        try:
            return asked.result()
        except BaseException:
            asked.cancel()
            raise

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any event loop."""
        import asyncio

        for credential in self.credentials:
            credential.loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(self._background.submit(work))

    async def sender(self, entity: str) -> FailoverSender:
        """On the loop: a sender of the pairing, opened now if need be."""
        return (await self._opened()).sender(entity)

    async def _opened(self) -> PairedNamespaces:
        if self._pairing is None:
            primary, secondary = (make() for make in self._make)
            self._pairing = await PairedNamespaces.open(
                self.pair, primary=primary, secondary=secondary, clock=SystemClock(), observer=self
            )
        return self._pairing

    def soon(self, callback: Callable[[], object]) -> None:
        self._background.call_soon(callback)

    def notify(self, event: Event) -> None:
        """Log what happened, count it where OpenTelemetry is installed, and tell the application."""
        from sbpair.clients.telemetry import record
        from sbpair.render.service import describe

        if (text := describe(event)) is not None:
            LOGGER.log(logging.WARNING if isinstance(event, FailedOver | FailedBack) else logging.INFO, "%s", text)
        record(event, self.pair.name)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            LOGGER.exception("The application's on_event failed on %s.", type(event).__name__)

    def state(self) -> PairingState:
        """Everything at this moment: entities, backlog queues, both sides."""
        if self._pairing is None:
            queues = tuple(QueueStanding(path, True) for path in self.pair.backlog_paths())
            return PairingState((), queues, Condition.OPEN, Condition.OPEN, 0, 0)
        return self.call(self._state())

    async def _state(self) -> PairingState:
        return (await self._opened()).state()

    def force(self, entity: str) -> None:
        """Divert the entity's messages until `fail_back`."""
        self.call(self._by_hand(entity, PairedNamespaces.force_failover))

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again."""
        self.call(self._by_hand(entity, PairedNamespaces.fail_back))

    async def _by_hand(self, entity: str, change: Callable[[PairedNamespaces, str], None]) -> None:
        change(await self._opened(), entity)
        await self.line(entity).watched()

    @property
    def holding(self) -> bool:
        """A session is held, so that its messages have to be looked for."""
        return self._pairing is not None and self._pairing.holds_sessions

    def close(self) -> None:
        """End pings, links and the thread. What is under way gets a moment to end."""
        pairing, self._pairing = self._pairing, None
        if self._background.running:
            if pairing is not None:
                try:
                    self._background.submit(pairing.close()).result(CLOSE_SECONDS)
                except TimeoutError:
                    LOGGER.warning("The pairing %s was not closed within %g s.", self.pair.name, CLOSE_SECONDS)
            self._background.stop()
        for line in self._lines.values():
            line.reset()

    def after_fork(self) -> None:
        """In a child process: begin anew; the parent keeps its links and goes on with its pings."""
        if self._pairing is not None:
            _OF_PARENTS.append(self._pairing)
        self._pairing = None
        self._lock = threading.Lock()
        self._background.after_fork()
        for line in self._lines.values():
            line.reset()


_failovers: "weakref.WeakSet[Failover]" = weakref.WeakSet()
_OF_PARENTS: list[object] = []
"""What a child process has from its parent and must not close."""


def _after_fork() -> None:
    for failover in tuple(_failovers):
        failover.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Line:
    """One entity, as this client's senders see it."""

    def __init__(self, failover: Failover, entity: str) -> None:
        self.failover = failover
        self.entity = entity
        self.last_error: Exception | None = None
        """What the SDK raised last about the primary."""
        self._watched: FailoverSender | None = None
        """Shows the entity's state, once there is one."""
        self.generation = 0

    def reset(self) -> None:
        """Begin anew, after a close or in a child process."""
        self._watched = self.last_error = None
        self.generation += 1

    @property
    def plain(self) -> bool:
        """There is nothing to do but to send to the primary."""
        return self._watched is None or (self._watched.state is State.HEALTHY and not self.failover.holding)

    @property
    def healthy(self) -> bool:
        """Sends go to the primary, and nobody waits to hear that one succeeded."""
        return self._watched is None or self._watched.state is State.HEALTHY

    @property
    def route(self) -> Route:
        return Route.PRIMARY if self._watched is None else ROUTES[self._watched.state]

    @property
    def ticket(self) -> int:
        return 0 if self._watched is None else self._watched.ticket

    def note_sent(self) -> None:
        if (watched := self._watched) is not None and watched.state is State.SUSPECT:
            self.failover.soon(watched.note_sent)

    async def watched(self) -> FailoverSender:
        """On the loop: from now on the entity's state shows."""
        if self._watched is None:
            self._watched = await self.failover.sender(self.entity)
        return self._watched


class SenderFailover:
    """One sender's part: it keeps its own backlog queue."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._sender: FailoverSender | None = None
        self._generation = 0

    async def _ready(self) -> FailoverSender:
        await self.line.watched()
        if self._sender is None or self._generation != self.line.generation:
            self._sender = await self.line.failover.sender(self.line.entity)
            self._generation = self.line.generation
        return self._sender

    async def divert(self, payloads: Sequence[bytes], budget: Budget) -> SendResult:
        return await (await self._ready()).divert(payloads, budget)

    async def take_over(
        self, payloads: Sequence[bytes] | None, error: ServiceError, ticket: int, budget: Budget
    ) -> SendResult | None:
        return await (await self._ready()).take_over(payloads, error, ticket, budget)

    async def holds(self, payloads: Sequence[bytes]) -> bool:
        return (await self._ready()).holds(payloads)


def budget_of(timeout: float | None, started: float | None = None) -> Budget:
    """The time of one call that began then, or begins now; 60 s if the application sets none."""
    return Budget.of(timeout, partitioned=False, now=time.monotonic() if started is None else started)


def sdk_error(error: ServiceError | MessageError, line: Line) -> Exception:
    """What the application is to see: the primary's own error, as the SDK raised it, with a note on the backlog; or,
    for what is wrong with the message itself, the SDK's class for that."""
    own_fault = isinstance(error, MessageError) or error.category in MESSAGE_AT_FAULT
    if not own_fault and line.last_error is not None:
        raised = _again(line.last_error)
        raised.add_note(error.message)
        return raised
    return _in_sdk_words(error)


def _again(error: Exception) -> Exception:
    """The same error, to be raised once more: without the traceback and the notes of the first time."""
    raised = type(error).__new__(type(error), *error.args)
    raised.args = error.args
    raised.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    return raised


def _in_sdk_words(error: ServiceError | MessageError) -> Exception:
    from azure.servicebus import exceptions

    from sbpair.core.errors import AuthenticationFailedError, Category

    if isinstance(error, MessageError):
        return ValueError(error.message)
    classes: Mapping[Category, Callable[..., exceptions.ServiceBusError]] = {
        Category.TIMEOUT: exceptions.OperationTimeoutError,
        Category.CONNECTION: exceptions.ServiceBusConnectionError,
        Category.DETACHED: exceptions.ServiceBusConnectionError,
        Category.BUSY: exceptions.ServiceBusServerBusyError,
        Category.DISABLED: exceptions.MessagingEntityDisabledError,
        Category.QUOTA: exceptions.ServiceBusQuotaExceededError,
        Category.UNAUTHORIZED: exceptions.ServiceBusAuthorizationError,
        Category.NOT_FOUND: exceptions.MessagingEntityNotFoundError,
        Category.TOO_LARGE: exceptions.MessageSizeExceededError,
    }
    if isinstance(error, AuthenticationFailedError):
        return exceptions.ServiceBusAuthenticationError(message=error.message)
    kind = classes.get(error.category, exceptions.ServiceBusError)
    return kind(message=error.message)
