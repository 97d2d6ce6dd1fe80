"""The failover of the clients: on one loop of the process's own, opened at the first failure of the primary.

Nothing here is touched by a send that the primary accepts, but for one look at a state that says so.
"""

import asyncio
import concurrent.futures
import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast

from azure.servicebus import exceptions

from sbpair.azure.wire import Feature, lacks, secrets_of
from sbpair.concurrency import abandon_after
from sbpair.core.errors import (
    AuthenticationFailedError,
    Category,
    IncompatibleSdkError,
    InterruptedWorkError,
    SbpairError,
    ServiceError,
)
from sbpair.core.events import (
    Diverted,
    Event,
    FailedBack,
    FailedOver,
    NotReady,
    PairingNoticed,
    SideFaulted,
    SideRestored,
)
from sbpair.core.failover.machine import ROUTES, Route, State
from sbpair.core.failover.sending import Budget, QueueStanding
from sbpair.core.inspection.diagnosis import Verification
from sbpair.core.names import ByName
from sbpair.core.pairing import Condition, Pair, Verify
from sbpair.core.words import with_hint
from sbpair.ports import Messaging, NamespaceAdmin, Observer
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.backlog import MESSAGE_AT_FAULT
from sbpair.runtime.failover.entity import MonitoredEntities, MonitoredEntity
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext, PairingState, ensure_backlog_queues
from sbpair.runtime.failover.sender import FailoverSender, SendResult
from sbpair.version import __version__

T = TypeVar("T")

LOGGER = logging.getLogger("sbpair.clients")
CLOSE_SECONDS = 15.0
CREATE_SECONDS = 20.0
"""A message may wait for that until it is diverted: much shorter than the time of a send."""
JOIN_SECONDS = 5.0
LOOP_NAME = "sbpair-failover"

OnEvent = Callable[[Event], object]

_WARNED = (FailedOver, FailedBack, NotReady, SideFaulted, SideRestored)


class BackgroundLoop:
    """An event loop in a thread of its own, started when something is first asked of it, until nobody needs it. A
    daemon: it never keeps a process from ending.

    `idle`: nothing that was begun there goes on. Asked on the loop and from other threads.
    """

    def __init__(self, name: str, idle: Callable[[], bool]) -> None:
        self._name = name
        self._idle = idle
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._asked = 0

    @property
    def is_here(self) -> bool:
        """This is the loop's own thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start the coroutine there, from any thread but its own.

        Raises:
            RuntimeError: called from the loop's own thread, which would then wait for itself.
        """
        if self.is_here:
            work.close()
            raise RuntimeError("A callback of the client (on_event) must not send: it would wait for itself.")
        return self.begin(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, as of `submit`. A signal that interrupts the caller ends the work, at whatever moment
        it comes: also before there is a future to cancel."""
        tasks: list[asyncio.Task[Any]] = []
        interrupted = False

        async def unless_interrupted() -> T:
            tasks.append(cast("asyncio.Task[Any]", asyncio.current_task()))
            if interrupted:
                raise asyncio.CancelledError
            return await work

        try:
            return self.submit(unless_interrupted()).result()
        except BaseException:
            interrupted = True
            if not tasks:
                work.close()
            elif not tasks[0].done():
                tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start the coroutine there, from any thread; nobody of the loop's own may wait for it."""
        with self._lock:
            begun = asyncio.run_coroutine_threadsafe(work, self._started())
            self._asked += 1
        begun.add_done_callback(self._answered)
        return begun

    def _answered(self, _: object) -> None:
        with self._lock:
            self._asked -= 1
        self.rest()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
            self._loop = loop
        return self._loop

    def rest(self) -> None:
        """End the loop and its thread if nothing goes on there. What is asked afterwards starts new ones."""
        with self._lock:
            if self._loop is None or self._asked or not self._idle():
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._ending = self._thread
            self._loop = self._thread = None

    def join(self) -> None:
        """Wait for a thread that is ending, within a bound."""
        ending = self._ending
        if ending is not None and ending is not threading.current_thread():
            ending.join(JOIN_SECONDS)

    def after_fork(self) -> None:
        """In a child process: the thread is the parent's, and so is the loop, which must not even be closed here."""
        self._lock = threading.RLock()
        if self._loop is not None:
            _LOOPS_OF_PARENTS.append(self._loop)
        self._loop = self._thread = self._ending = None
        self._asked = 0


_LOOPS_OF_PARENTS: list[asyncio.AbstractEventLoop] = []
"""Kept so that they are never collected, which would close what they share with the parent."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class Process:
    """What the clients of one process share: the loop, and what is known of each pair's entities.

    Clients share that if they are for the same two namespaces, with the same options and the same key (or kind of
    credential). Connections are never shared: each client diverts with its own credentials.
    """

    def __init__(self) -> None:
        self.background = BackgroundLoop(LOOP_NAME, self._is_idle)
        self._pairings: set[PairedNamespaces] = set()
        self._entities: weakref.WeakValueDictionary[Hashable, MonitoredEntities] = weakref.WeakValueDictionary()
        self._remembered: dict[Hashable, MonitoredEntities] = {}
        self._lock = threading.RLock()

    def entities(self, pair: Pair, credential: Any) -> MonitoredEntities:
        """What is known of the pair's entities; nothing at first."""
        signs_with = hashlib.sha256(repr(secrets_of(credential)).encode()).digest()
        namespaces = pair.primary.host, pair.primary.label, pair.secondary.host
        key = (*namespaces, pair.options, signs_with)
        now = time.monotonic()
        with self._lock:
            for old, known in list(self._remembered.items()):
                if all(one.is_stale(now) for one in known.all()):
                    del self._remembered[old]
            if (entities := self._entities.get(key)) is None:
                entities = self._entities[key] = MonitoredEntities(
                    pair.options,
                    policy=pair.options.failover_policy,
                    clock=LoopClock(),
                    observer=EventLogger(pair.name),
                    shared=True,
                    on_rest=self.background.rest,
                )
            return entities

    def opened(self, pairing: PairedNamespaces) -> None:
        """On the loop: the pairing needs it until it is closed."""
        self._pairings.add(pairing)

    async def close(self, pairing: PairedNamespaces, entities: MonitoredEntities) -> None:
        """On the loop: close a pairing; what it knows of an outage is kept for the next."""
        try:
            await pairing.close()
        finally:
            self._pairings.discard(pairing)
            with self._lock:
                for key, one in self._entities.items():
                    if one is entities and not entities.empty:
                        self._remembered[key] = entities

    def _is_idle(self) -> bool:
        return not self._pairings and all(entities.resting for entities in list(self._entities.values()))

    def after_fork(self) -> None:
        """In a child process: begin again. What was the parent's must not be closed here, nor collected."""
        _OF_PARENTS.append((self._pairings, self._remembered, list(self._entities.values())))
        self._pairings, self._remembered = set(), {}
        self._entities = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self.background.after_fork()


class EventLogger:
    """Logs what happens, and counts it where OpenTelemetry is installed."""

    def __init__(self, pair: str) -> None:
        self._pair = pair

    def notify(self, event: Event) -> None:
        from sbpair.render.service import describe

        if (text := describe(event)) is not None:
            LOGGER.log(logging.WARNING if isinstance(event, _WARNED) else logging.INFO, "%s", text)
        record(event, self._pair)


class EventCallback:
    """Tells the application."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event

    def notify(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            LOGGER.exception("The application's on_event failed on %s.", type(event).__name__)


class _Both:
    """What concerns this client alone is told by it to both."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            observer.notify(event)


class Failover:
    """What the senders of one client share."""

    def __init__(
        self,
        pair: Pair,
        *,
        primary: Callable[[], Messaging],
        secondary: Callable[[], Messaging],
        credential: Any,
        make_admin: Callable[[], NamespaceAdmin],
        on_event: OnEvent | None = None,
        credentials: Sequence[Any] = (),
    ) -> None:
        """`credential`: the primary's, as the application gave it. `credentials`: borrowed ones, which are told the
        application's event loop."""
        self.pair = pair
        self._make = primary, secondary
        self._make_admin = make_admin
        self._callback = EventCallback(on_event)
        self._credential = credential
        self.credentials = credentials
        self._pairing: PairedNamespaces | None = None
        self._opening_on: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._lines: ByName[ClientEntity] = ByName()
        self._lock = threading.RLock()
        self.entities = PROCESS.entities(pair, credential)
        _failovers.add(self)
        self.unverified = pair.options.verify == Verify.REQUIRE
        """Nothing is sent before `required` has let it."""
        self._verifying = False
        self.used = False
        """Something has been asked of the loop since the last `close`: there may be something to close."""
        self.closed = False
        """The client was closed, and neither entered nor asked for a sender since: nothing opens the pairing again."""
        if pair.options.enable_syphon:
            self.call(self._opened())

    def line(self, entity: str) -> "ClientEntity":
        """What the senders of one entity share."""
        with self._lock:
            return self._lines.setdefault(entity, ClientEntity(self, entity))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any thread."""
        self.used = True
        return PROCESS.background.call(work)

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, from any event loop."""
        self.used = True
        for credential in self.credentials:
            credential.loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(PROCESS.background.submit(work))

    @property
    def is_open(self) -> bool:
        """It takes part in what the process finds out."""
        return self._pairing is not None

    async def sender(self, entity: str) -> FailoverSender:
        """On the loop: a sender of the pairing, opened now if need be."""
        return (await self._opened()).sender(entity)

    async def _opened(self) -> PairedNamespaces:
        async with self._opening():
            if self._pairing is None:
                observer = _Both(EventLogger(self.pair.name), self._callback)
                if self.pair.options.create_missing:
                    await self._create_missing(observer)
                primary, secondary = (make() for make in self._make)
                self._pairing = await PairedNamespaces.open(
                    self.pair,
                    PairingContext(
                        primary=primary,
                        secondary=secondary,
                        clock=LoopClock(),
                        observer=observer,
                        entities=self.entities,
                        shared_observer=self._callback,
                    ),
                )
                PROCESS.opened(self._pairing)
        return self._pairing

    def _opening(self) -> asyncio.Lock:
        """On the loop, which may be another one after a rest: only one opens."""
        loop = asyncio.get_running_loop()
        if self._opening_on is None or self._opening_on[0] is not loop:
            self._opening_on = loop, asyncio.Lock()
        return self._opening_on[1]

    async def _create_missing(self, observer: Observer) -> None:
        """Create missing backlog queues. What prevents that is announced: those that are there may be enough."""
        admin, clock = self._make_admin(), LoopClock()
        ensured = ensure_backlog_queues(self.pair, admin=admin, clock=clock, observer=observer, pause_seconds=1.0)
        try:
            await abandon_after(CREATE_SECONDS, ensured, what="Preparing the backlog queues")
        except SbpairError as error:
            message = with_hint(f"Missing backlog queues could not be created: {error.message}", error.hint)
            observer.notify(PairingNoticed(time.time(), "not-created", message))
        finally:
            await admin.close()

    def cannot_divert(self) -> bool:
        """The installed azure-servicebus has no place for the failover: its own senders are used, and that is said.

        Raises:
            IncompatibleSdkError: so it is, and the client was made with verify='require'.
        """
        if (lack := lacks(Feature.FAILOVER)) is None:
            return False
        if self.unverified:
            raise IncompatibleSdkError(lack)
        if not self._verifying:
            self._verifying = True
            _Both(EventLogger(self.pair.name), self._callback).notify(NotReady(time.time(), (lack,)))
        return True

    def begin_verifying(self) -> None:
        """See in the background, once per client, whether an outage would find what it needs."""
        options = self.pair.options
        if self._verifying or (options.verify == Verify.OFF and not options.create_missing):
            return
        self._verifying = self.used = True
        for credential in self.credentials:
            credential.loop = _running_loop() or credential.loop
        begun = PROCESS.background.begin(self._verify_from_now_on())
        begun.add_done_callback(_log_failure)

    async def _verify_from_now_on(self) -> None:
        pairing = await self._opened()
        if self.pair.options.verify != Verify.OFF:
            pairing.keep_verifying(self._entities_in_use)

    def is_ready(self) -> bool:
        """The last verification found that messages could be diverted. Without one it is begun."""
        if (found := self.verification) is None and not self.closed:
            self.begin_verifying()
        return found is not None and found.ready and lacks(Feature.FAILOVER) is None

    def _entities_in_use(self) -> list[str]:
        """Those of the pair, and those that a sender was made for."""
        with self._lock:
            return [*self.pair.entities, *(line.entity for line in self._lines.values())]

    async def verify(self, entities: Sequence[str] | None = None) -> Verification:
        """On the loop: see `PairedNamespaces.verify`; by default the entities in use."""
        pairing = await self._opened_by_hand()
        return await pairing.verify(self._entities_in_use() if entities is None else entities)

    async def required(self) -> None:
        """On the loop: let the first call go on, or raise.

        Raises:
            ServiceBusError: an outage would find nothing to divert to.
        """
        if not self.unverified:
            return
        if (found := self.verification) is None or not found.ready:
            found = await self.verify()
        if not found.ready:
            raise exceptions.ServiceBusError(
                message=f"Nothing was sent: an outage of the primary would lose messages, and the client was made with "
                f"verify='require'. {' '.join(found.problems)}"
            )
        self.unverified = False

    @property
    def verification(self) -> Verification | None:
        """The last one of this client."""
        return None if self._pairing is None else self._pairing.verification

    def state(self) -> PairingState:
        """Everything at this moment: entities, backlog queues, both sides."""
        if self._pairing is None and (self.closed or self.entities.empty):
            queues = tuple(QueueStanding(path, None) for path in self.pair.backlog_paths())
            primary = Condition.OPEN if self.entities.seen else Condition.UNKNOWN
            return PairingState((), queues, primary, Condition.UNKNOWN, 0, 0)
        return self.call(self._state())

    async def _state(self) -> PairingState:
        pairing = await self._opened()
        for entity in self.entities.all():
            if not entity.quiet:
                # A sender that asks takes part: what is told is what the pings find out now, not what was known once.
                pairing.sender(entity.entity)
        return pairing.state()

    def force(self, entity: str) -> None:
        """Divert the entity's messages until `fail_back`."""
        self.call(self._by_hand(entity, PairedNamespaces.force_failover))

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again."""
        self.call(self._by_hand(entity, PairedNamespaces.fail_back))

    async def _by_hand(self, entity: str, change: Callable[[PairedNamespaces, str], None]) -> None:
        change(await self._opened_by_hand(), entity)

    async def _opened_by_hand(self) -> PairedNamespaces:
        if self.closed:
            raise ValueError("The client is closed. Enter it again, or create a new one.")
        return await self._opened()

    @property
    def holding(self) -> bool:
        """A session is held, so that its messages have to be looked for."""
        return self._pairing is not None and self._pairing.holds_sessions

    def close(self, *, wait: bool = True) -> None:
        """End pings and links, those that are being opened too. What is under way gets a moment to end."""
        used, self.used, self.closed, self._verifying = self.used, False, True, False
        for line in self._lines.values():
            line.generation += 1
        if not used:
            return
        closing = PROCESS.background.begin(self._close())
        if not wait or PROCESS.background.is_here:
            return
        try:
            closing.result(CLOSE_SECONDS)
        except TimeoutError:
            LOGGER.warning("The pairing %s was not closed within %g s.", self.pair.name, CLOSE_SECONDS)
        PROCESS.background.rest()
        PROCESS.background.join()

    async def _close(self) -> None:
        async with self._opening():
            pairing, self._pairing = self._pairing, None
        if pairing is not None:
            await PROCESS.close(pairing, self.entities)

    def after_fork(self) -> None:
        """In a child process: begin again; the parent keeps its links and goes on with its pings."""
        self._pairing = None
        self._verifying = self.used = False
        self._lock = threading.RLock()
        self.entities = PROCESS.entities(self.pair, self._credential)
        for line in self._lines.values():
            line.generation += 1


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _log_failure(begun: "concurrent.futures.Future[None]") -> None:
    if not begun.cancelled() and (error := begun.exception()) is not None:
        LOGGER.error("What an outage would need could not be verified: %s", error)


PROCESS = Process()
_failovers: "weakref.WeakSet[Failover]" = weakref.WeakSet()
_OF_PARENTS: list[object] = []
"""What a child process has from its parent and must not close."""


def _after_fork() -> None:
    PROCESS.after_fork()
    for failover in tuple(_failovers):
        failover.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class ClientEntity:
    """One entity, as this client's senders see it."""

    def __init__(self, failover: Failover, entity: str) -> None:
        self.failover = failover
        self.entity = entity
        self._key = entity.lower()
        self.generation = 0
        """Grows when the client is closed, and in a child process."""

    @property
    def _known(self) -> MonitoredEntity | None:
        """What this process knows of the entity; None: nothing is wrong with it."""
        known = self.failover.entities.known(self._key)
        return None if known is None or known.is_stale(time.monotonic()) else known

    @property
    def plain_ticket(self) -> int | None:
        """The ticket of an attempt where there is nothing to do but to send to the primary; otherwise None."""
        if self.failover.unverified:
            return None
        known = self.failover.entities.known(self._key)
        if known is None:
            return 0
        return known.ticket if known.quiet and not self.failover.holding else None

    @property
    def has_to_join(self) -> bool:
        """Another client of the process has met an outage, and this one has to take part in it."""
        return not self.failover.is_open and (known := self._known) is not None and not known.quiet

    @property
    def route(self) -> Route:
        known = self._known
        return Route.PRIMARY if known is None else ROUTES[known.state]

    @property
    def ticket(self) -> int:
        known = self._known
        return 0 if known is None else known.ticket

    @property
    def primarys_error(self) -> Exception | None:
        """What the SDK raised of the primary when it failed over."""
        known = self._known
        error: BaseException | None = None if known is None else known.cause
        while error is not None and not isinstance(error, exceptions.ServiceBusError):
            error = error.__cause__
        return error

    def note_sent(self) -> None:
        """The primary accepted a message."""
        known = self._known
        if known is not None and (known.state is State.SUSPECT or known.refusal_of_primary is not None):
            PROCESS.background.begin(_tell_sent(known))


async def _tell_sent(known: MonitoredEntity) -> None:
    known.sent()


class SenderFailover:
    """One sender's part: it keeps its own backlog queue."""

    def __init__(self, line: ClientEntity) -> None:
        self.line = line
        self.max_message_bytes = 0
        """What the primary's link takes; 0: there has been none."""
        self._sender: FailoverSender | None = None
        self._generation = 0

    async def ready(self) -> FailoverSender:
        """On the loop."""
        if self._sender is None or self._generation != self.line.generation:
            self._sender = await self.line.failover.sender(self.line.entity)
            self._generation = self.line.generation
        if self.max_message_bytes:
            self._sender.note_limit(self.max_message_bytes)
        return self._sender

    async def divert(self, payloads: Sequence[bytes], budget: Budget) -> SendResult:
        return await (await self.ready()).divert(payloads, budget)

    async def take_over(
        self, payloads: Sequence[bytes] | None, error: ServiceError, ticket: int, budget: Budget
    ) -> SendResult | None:
        return await (await self.ready()).take_over(payloads, error, ticket, budget)

    async def holds(self, payloads: Sequence[bytes]) -> bool:
        return (await self.ready()).holds(payloads)

    def close(self) -> None:
        """The sender is closed: its backlog queue is free for the next one of the entity."""
        sender, self._sender = self._sender, None
        if sender is not None and self._generation == self.line.generation:
            sender.give_queue_back()


def budget_of(timeout: float | None, started: float | None = None) -> Budget:
    """The time of one call that began then, or begins now; 60 s if the application sets none."""
    return Budget.of(timeout, partitioned=False, now=time.monotonic() if started is None else started)


def sdk_error(error: SbpairError, primarys: Exception | None) -> Exception:
    """What the application is to see: `primarys`, the primary's own error as the SDK raised it, with a note on the
    backlog; or, for what is wrong with the message itself or its name, and for a client that was closed meanwhile, the
    SDK's class for that."""
    if primarys is None or not isinstance(error, ServiceError) or error.category in MESSAGE_AT_FAULT:
        return _in_sdk_words(error)
    raised = _again(primarys)
    raised.add_note(error.message)
    return raised


def _again(error: Exception) -> Exception:
    """The same error, to be raised once more: without the traceback and the notes of the first time."""
    raised = type(error).__new__(type(error), *error.args)
    raised.args = error.args
    raised.__dict__.update({name: value for name, value in error.__dict__.items() if name != "__notes__"})
    return raised


def _in_sdk_words(error: SbpairError) -> Exception:
    if isinstance(error, InterruptedWorkError):
        return exceptions.ServiceBusError(message=error.message)
    if not isinstance(error, ServiceError):
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
    return classes.get(error.category, exceptions.ServiceBusError)(message=error.message)


def record(event: Event, pair: str) -> None:
    """Add one event to the counters."""
    counters = _counters()
    if counters is None:
        return
    of_pair = {"sbpair.pair": pair, "messaging.system": "servicebus"}
    match event:
        case Diverted(entity=entity, messages=messages):
            counters["diverted"].add(messages, {**of_pair, "messaging.destination.name": entity})
        case FailedOver(entity=entity, cause=cause):
            attributes = {**of_pair, "messaging.destination.name": entity, "error.type": cause}
            counters["failovers"].add(1, attributes)
            _span(f"failover {entity}", attributes)
        case FailedBack(entity=entity, seconds_away=seconds):
            attributes = {**of_pair, "messaging.destination.name": entity}
            counters["away"].record(seconds, attributes)
            _span(f"failback {entity}", attributes)
        case SideFaulted(side=side, error_code=code):
            counters["faults"].add(1, {**of_pair, "sbpair.side": side, "error.type": code})
        case _:
            return


def _span(name: str, attributes: dict[str, Any]) -> None:
    trace: Any = import_module("opentelemetry.trace")
    trace.get_tracer("sbpair", __version__).start_span(name, attributes=attributes).end()


@lru_cache(maxsize=1)
def _counters() -> dict[str, Any] | None:
    try:
        metrics: Any = import_module("opentelemetry.metrics")
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair", __version__)
    return {
        "diverted": meter.create_counter("sbpair.messages.diverted", "{message}", "Messages put into the backlog"),
        "failovers": meter.create_counter("sbpair.failovers", "{failover}", "Entities that left their primary"),
        "faults": meter.create_counter("sbpair.side.faults", "{fault}", "Namespaces that refuse permanently"),
        "away": meter.create_histogram("sbpair.failover.duration", "s", "How long an entity was away"),
    }
