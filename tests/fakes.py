"""Written fakes of the ports: namespaces in memory with queues, locks and faults, and a clock that jumps.

    @virtual_time
    async def test_something():
        clock = FakeClock()
        secondary = FakeNamespace("secondary", clock)
        queue = secondary.add_queue("contoso/x-servicebus-transfer/0")
        secondary.put(queue.path, payload)
        secondary.fail("receive", ServerBusyError("busy"), times=1)

`virtual_time` runs the test on an event loop whose time jumps to the next timer as soon as nothing else can run:
`asyncio.sleep(900)` and `asyncio.timeout(60)` cost nothing and happen in the right order. Not for tests with sockets.
"""

import asyncio
import fnmatch
import functools
import itertools
import selectors
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.amqp.types import Long, Symbol, Timestamp, Uint
from sbpair.concurrency import each_answered
from sbpair.core.entities import Counts, NamespaceFacts, QueueFacts, QueueSettings, Tier, TopicFacts
from sbpair.core.errors import (
    ConnectionLostError,
    EntityExistsError,
    EntityNotFoundError,
    LockLostError,
    MessageTooLargeError,
    OperationTimeoutError,
    ServiceError,
)
from sbpair.core.events import Event
from sbpair.core.message import PING_CONTENT_TYPE, Disposition, MessageState, Received
from sbpair.core.names import dead_letter_path

T = TypeVar("T")
E = TypeVar("E", bound=Event)

EPOCH = 1_790_000_000.0
"""UTC epoch seconds at which every FakeClock starts."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: moves the loop's time forward instead."""

    def __init__(self) -> None:
        super().__init__()
        self.jump: Callable[[float], None] = lambda seconds: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing can run and no timer is set")
        if not ready and timeout:
            self.jump(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        super().__init__(selector)
        self._virtual_now = 0.0
        selector.jump = self._jump

    def _jump(self, seconds: float) -> None:
        self._virtual_now += seconds

    def time(self) -> float:
        return self._virtual_now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """At once, in this thread: a thread takes real time, in which the loop would jump ahead."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is what the future is for
            done.set_exception(error)
        return done


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an async test a plain one that runs in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run


class FakeClock:
    """The running loop's time; the wall clock starts at `EPOCH`, plus `skew_seconds`."""

    def __init__(self, *, skew_seconds: float = 0.0) -> None:
        self.skew_seconds = skew_seconds

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.fromtimestamp(EPOCH + self.monotonic() + self.skew_seconds, UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class RecordingObserver:
    """Keeps every event."""

    events: list[Event] = field(default_factory=list)

    def notify(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Fault:
    """Makes an operation fail: before it had its effect, or (`after`) once it had it and only the answer is lost."""

    operation: str
    error: ServiceError
    entity: str = "*"
    times: int | None = None
    after: bool = False
    skip: int = 0
    """Let this many matching calls through first."""

    def strikes(self, operation: str, entity: str, after: bool) -> bool:
        if self.after is not after or self.operation not in (operation, "*"):
            return False
        if not fnmatch.fnmatchcase(entity.lower(), self.entity.lower()) or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class Stored:
    """One message in a fake queue."""

    payload: bytes
    sequence_number: int
    enqueued_at: float
    message_id: str | None
    session_id: str | None
    partition_key: str | None
    scheduled_at: float | None = None
    delivery_count: int = 0
    state: MessageState = MessageState.ACTIVE
    lock: int | None = None
    locked_until: float = 0.0


UPDATE_SECONDS = 0.01
"""What an update of an entity takes, so that no two have the same time."""


@dataclass
class FakeQueue:
    """A queue (or a topic, which is a queue nobody reads) with its dead-letter sub-queue."""

    path: str
    settings: QueueSettings = field(default_factory=QueueSettings)
    is_topic: bool = False
    messages: dict[int, Stored] = field(default_factory=dict)
    """By sequence number, ascending."""
    dead_letters: "FakeQueue | None" = None
    seen_ids: set[str] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    created_at: float = EPOCH
    updates: int = 0

    @property
    def payloads(self) -> list[bytes]:
        """What is in the queue, oldest first, as it was sent."""
        return [stored.payload for stored in self.messages.values()]

    def counts(self) -> Counts:
        states = Counter(stored.state for stored in self.messages.values())
        return Counts(
            active=states[MessageState.ACTIVE] + states[MessageState.DEFERRED],
            scheduled=states[MessageState.SCHEDULED],
            dead_letter=len(self.dead_letters.messages) if self.dead_letters else 0,
        )

    def facts(self) -> QueueFacts:
        size = sum(len(stored.payload) for stored in self.messages.values())
        return QueueFacts(
            path=self.path,
            settings=self.settings,
            counts=self.counts(),
            size_in_bytes=size,
            created_at=self.created_at,
            updated_at=self.created_at + self.updates * UPDATE_SECONDS,
            accessed_at=self.created_at,
        )

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeProcessor:
    """Does one thing after another: whoever shares it waits for what the others have asked for."""

    def __init__(self, clock: FakeClock, **seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        """What an operation takes for each message, by its name; as much for one without."""
        self._free_at = 0.0

    async def spend(self, operation: str, messages: int) -> None:
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + self._seconds[operation] * max(1, messages)
        await asyncio.sleep(self._free_at - now)


class FakeNamespace:
    """One namespace: entities, messaging and administration over the same state, and the faults of both.

    Operations a fault can name: send, schedule, cancel, receive, receive_deferred, peek, settle, renew, limit (max
    message bytes), admin, and `*`. `calls` counts every operation that was tried, by (operation, entity).
    """

    def __init__(self, name: str, clock: FakeClock, *, tier: Tier = Tier.STANDARD) -> None:
        self.name = name
        self.host = f"{name}.servicebus.windows.net"
        self.clock = clock
        self.tier = tier
        self.entities: dict[str, FakeQueue] = {}
        self.faults: list[Fault] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self.sent_batches: list[tuple[str, int]] = []
        """(entity, messages) of every accepted send, in order."""
        self.delays: dict[str, float] = {}
        """Seconds that an operation takes, by its name."""
        self.processor: FakeProcessor | None = None
        """What receives, browses, settlements and sends take besides, one after another; None: nothing."""
        self.gives_nothing_until = 0.0
        """Seconds of the monotonic clock: before it every receive is in vain, whatever lies in the queue."""
        self.max_message_bytes = 256 * 1024
        self.hook: Callable[[str, str], Awaitable[None]] | None = None
        """Awaited before every operation with its name and entity: for tests that act at an exact moment."""
        self.closed_receivers: list[str] = []
        self._numbers = itertools.count(1)
        self._locks = itertools.count(1)

    # Set-up and inspection

    def add_queue(self, path: str, settings: QueueSettings | None = None, *, topic: bool = False) -> FakeQueue:
        queue = FakeQueue(path, settings or QueueSettings(), topic, dead_letters=FakeQueue(dead_letter_path(path)))
        self.entities[path.lower()] = queue
        return queue

    def put(self, path: str, *payloads: bytes) -> None:
        """Store messages without going through a sender."""
        queue = self.queue(path)
        for payload in payloads:
            self._store(queue, payload)
        queue.wake()

    def put_dead_letter(self, path: str, payload: bytes, reason: str, description: str = "") -> None:
        queue = self.queue(path)
        assert queue.dead_letters is not None
        self._store(queue.dead_letters, _with_dead_letter_reason(payload, reason, description))

    def queue(self, path: str) -> FakeQueue:
        """The entity, or its dead-letter sub-queue for `path/$deadletterqueue`."""
        base, _, suffix = path.partition("/$")
        queue = self.entities.get(base.lower())
        if queue is None:
            raise EntityNotFoundError(f"The messaging entity {path!r} could not be found.", entity=path)
        if not suffix:
            return queue
        assert queue.dead_letters is not None
        return queue.dead_letters

    def fail(
        self,
        operation: str,
        error: ServiceError,
        *,
        entity: str = "*",
        times: int | None = None,
        after: bool = False,
        skip: int = 0,
    ) -> Fault:
        """Add a fault; `entity` is a shell pattern. Returns it, for `heal`."""
        fault = Fault(operation, error, entity, times, after, skip)
        self.faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Remove one fault, or all of them."""
        self.faults = [other for other in self.faults if fault is not None and other is not fault]

    def go_dark(self) -> Fault:
        """The whole namespace is unreachable until `heal`."""
        return self.fail("*", ConnectionLostError(f"{self.host} cannot be reached."))

    def messaging(self) -> "FakeMessaging":
        return FakeMessaging(self)

    def admin(self) -> "FakeAdmin":
        return FakeAdmin(self)

    # What senders, receivers and the administration share

    async def begin(self, operation: str, entity: str) -> None:
        self.calls[operation, entity] += 1
        await asyncio.sleep(self.delays.get(operation, 0.0))
        if self.hook is not None:
            await self.hook(operation, entity)
        self._strike(operation, entity, after=False)

    async def spend(self, operation: str, messages: int) -> None:
        if self.processor is not None:
            await self.processor.spend(operation, messages)

    def end(self, operation: str, entity: str) -> None:
        self._strike(operation, entity, after=True)

    def _strike(self, operation: str, entity: str, *, after: bool) -> None:
        for fault in self.faults:
            if fault.strikes(operation, entity, after):
                raise fault.error

    def epoch(self) -> float:
        """The service's clock: never skewed."""
        return EPOCH + self.clock.monotonic()

    def accept(self, entity: str, payloads: Sequence[bytes]) -> None:
        """Store what a sender sent: all of it or nothing."""
        queue = self.queue(entity)
        if sum(map(len, payloads)) > self.max_message_bytes:
            raise MessageTooLargeError(f"The batch is larger than {self.max_message_bytes} bytes.", entity=entity)
        for payload in payloads:
            self._store(queue, payload)
        self.sent_batches.append((entity, len(payloads)))
        queue.wake()

    def _store(self, queue: FakeQueue, payload: bytes) -> Stored | None:
        facts = _facts(payload)
        if facts.content_type == PING_CONTENT_TYPE:
            return None
        if queue.settings.requires_duplicate_detection and facts.message_id is not None:
            if facts.message_id in queue.seen_ids:
                return None
            queue.seen_ids.add(facts.message_id)
        number = next(self._numbers)
        late = facts.scheduled_at is not None and facts.scheduled_at > self.epoch()
        queue.messages[number] = Stored(
            payload=payload,
            sequence_number=number,
            enqueued_at=self.epoch(),
            message_id=facts.message_id,
            session_id=facts.session_id,
            partition_key=facts.partition_key,
            scheduled_at=facts.scheduled_at,
            state=MessageState.SCHEDULED if late else MessageState.ACTIVE,
        )
        return queue.messages[number]

    def available(self, queue: FakeQueue, session_id: str | None, most: int) -> list[Stored]:
        """The first messages that may be handed out now."""
        now = self.epoch()
        found: list[Stored] = []
        for stored in queue.messages.values():
            if stored.lock is not None and stored.locked_until <= now:
                stored.lock = None
                stored.delivery_count += 1
            if (
                stored.state is MessageState.SCHEDULED
                and stored.scheduled_at is not None
                and stored.scheduled_at <= now
            ):
                stored.state = MessageState.ACTIVE
            fits = session_id is None or stored.session_id == session_id
            if stored.lock is None and stored.state is MessageState.ACTIVE and fits:
                found.append(stored)
                if len(found) == most:
                    break
        return found

    def lock(self, queue: FakeQueue, stored: Stored) -> Received:
        stored.lock = next(self._locks)
        stored.locked_until = self.epoch() + queue.settings.lock_duration_seconds
        return self.deliver(queue, stored, receipt=stored.lock)

    def deliver(self, queue: FakeQueue, stored: Stored, receipt: object = None) -> Received:
        return Received(
            payload=_with_broker_annotations(stored),
            sequence_number=stored.sequence_number,
            source=queue.path,
            message_id=stored.message_id,
            session_id=stored.session_id,
            partition_key=stored.partition_key,
            enqueued_at=stored.enqueued_at,
            locked_until=stored.locked_until if stored.lock is not None else None,
            delivery_count=stored.delivery_count,
            state=stored.state,
            receipt=receipt,
        )

    def locked(self, received: Received) -> tuple[FakeQueue, Stored]:
        queue = self.queue(received.source)
        stored = queue.messages.get(received.sequence_number)
        held = stored is not None and stored.lock == received.receipt and stored.locked_until > self.epoch()
        if stored is None or not held:
            raise LockLostError("The lock supplied is invalid.", entity=received.source)
        return queue, stored


class FakeMessaging:
    """`sbpair.ports.Messaging` over a `FakeNamespace`."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self.namespace = namespace
        self.closed = False
        self.killed = False

    def kill(self) -> None:
        """The process behind this client is gone: nothing it asks for happens any more."""
        self.killed = True

    async def begin(self, operation: str, entity: str) -> None:
        await self.namespace.begin(operation, entity)
        if self.killed:
            raise ConnectionLostError("This client was killed.", entity=entity)

    @property
    def host(self) -> str:
        return self.namespace.host

    def sender(self, entity: str) -> "FakeSender":
        return FakeSender(self, entity)

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> "FakeReceiver":
        return FakeReceiver(self, dead_letter_path(path) if dead_letter else path, session_id)

    async def close(self) -> None:
        self.closed = True


class FakeSender:
    """`sbpair.ports.MessageSender`."""

    def __init__(self, messaging: FakeMessaging, entity: str) -> None:
        self._messaging = messaging
        self._namespace = messaging.namespace
        self._entity = entity
        self.closed = False

    @property
    def entity(self) -> str:
        return self._entity

    async def max_message_bytes(self) -> int:
        await self._messaging.begin("limit", self._entity)
        self._namespace.queue(self._entity)
        return self._namespace.max_message_bytes

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        await self._within(timeout_seconds, self._messaging.begin("send", self._entity))
        await self._namespace.spend("send", len(payloads))
        self._namespace.accept(self._entity, payloads)
        self._namespace.end("send", self._entity)

    async def schedule(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> list[int]:
        await self._within(timeout_seconds, self._messaging.begin("schedule", self._entity))
        queue = self._namespace.queue(self._entity)
        before = set(queue.messages)
        self._namespace.accept(self._entity, payloads)
        self._namespace.end("schedule", self._entity)
        return [number for number in queue.messages if number not in before]

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_seconds: float) -> None:
        await self._within(timeout_seconds, self._messaging.begin("cancel", self._entity))
        queue = self._namespace.queue(self._entity)
        for number in sequence_numbers:
            if number not in queue.messages:
                raise EntityNotFoundError(f"No scheduled message {number}.", entity=self._entity)
            del queue.messages[number]

    async def _within(self, timeout_seconds: float, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await work
        except TimeoutError:
            raise OperationTimeoutError("No answer in time.", entity=self._entity) from None

    async def close(self) -> None:
        self.closed = True


class FakeReceiver:
    """`sbpair.ports.MessageReceiver`."""

    def __init__(self, messaging: FakeMessaging, path: str, session_id: str | None) -> None:
        self._messaging = messaging
        self._namespace = messaging.namespace
        self._path = path
        self._session_id = session_id

    @property
    def source(self) -> str:
        return self._path

    @property
    def session_id(self) -> str | None:
        return self._session_id

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        await self._messaging.begin("receive", self._path)
        until = self._namespace.clock.monotonic() + wait_seconds
        if until < self._namespace.gives_nothing_until:
            await self._namespace.clock.sleep(wait_seconds)
            return []
        while True:
            queue = self._namespace.queue(self._path)
            waiting = self._namespace.available(queue, self._session_id, max_messages)
            if waiting:
                found = [self._namespace.lock(queue, stored) for stored in waiting]
                await self._namespace.spend("receive", len(found))
                return found
            left = until - self._namespace.clock.monotonic()
            if left <= 0:
                return []
            await self._wait(queue, left)

    async def _wait(self, queue: FakeQueue, seconds: float) -> None:
        """Until something is put or released, a lock runs out, a schedule is due, or the time is up."""
        now = self._namespace.epoch()
        for stored in queue.messages.values():
            if stored.lock is not None:
                seconds = min(seconds, stored.locked_until - now)
            if stored.state is MessageState.SCHEDULED and stored.scheduled_at is not None:
                seconds = min(seconds, stored.scheduled_at - now)
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await queue.changed.wait()
        except TimeoutError:
            return

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[Received]:
        await self._messaging.begin("receive_deferred", self._path)
        queue = self._namespace.queue(self._path)
        found = [queue.messages[number] for number in sequence_numbers if number in queue.messages]
        return [self._namespace.lock(queue, stored) for stored in found if stored.state is MessageState.DEFERRED]

    async def peek(self, max_messages: int, *, from_sequence_number: int = 0) -> list[Received]:
        await self._messaging.begin("peek", self._path)
        queue = self._namespace.queue(self._path)
        wanted = (stored for number, stored in queue.messages.items() if number >= from_sequence_number)
        found = [
            replace(self._namespace.deliver(queue, stored), receipt=None)
            for stored in itertools.islice(wanted, max_messages)
        ]
        await self._namespace.spend("peek", len(found))
        return found

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        await self._messaging.begin("settle", self._path)
        await self._namespace.spend("settle", 1)
        queue, stored = self._namespace.locked(received)
        stored.lock = None
        if disposition in (Disposition.COMPLETE, Disposition.DEAD_LETTER):
            del queue.messages[stored.sequence_number]
        if disposition is Disposition.DEAD_LETTER:
            assert queue.dead_letters is not None, "a dead letter cannot be dead-lettered again"
            self._namespace.put_dead_letter(queue.path, stored.payload, reason, description)
        if disposition is Disposition.ABANDON:
            stored.delivery_count += 1
        if disposition is Disposition.DEFER:
            stored.state = MessageState.DEFERRED
        queue.wake()
        self._namespace.end("settle", self._path)

    def settle_all(
        self, received: Sequence[Received], disposition: Disposition
    ) -> AsyncGenerator[Sequence[tuple[Received, ServiceError | None]], None]:
        return each_answered(received, lambda one: self.settle(one, disposition))

    async def renew_lock(self, received: Received) -> float:
        await self._messaging.begin("renew", self._path)
        queue, stored = self._namespace.locked(received)
        stored.locked_until = self._namespace.epoch() + queue.settings.lock_duration_seconds
        return stored.locked_until

    async def renew_session(self) -> float:
        raise AssertionError("the fake locks no sessions")

    async def session_ids(self) -> list[str]:
        await self._messaging.begin("sessions", self._path)
        held = {stored.session_id for stored in self._namespace.queue(self._path).messages.values()}
        return sorted(one for one in held if one is not None)

    async def session_state(self) -> bytes | None:
        return None

    async def set_session_state(self, state: bytes | None) -> None:
        raise AssertionError("the fake keeps no session states")

    async def close(self) -> None:
        self._namespace.closed_receivers.append(self._path)


class FakeAdmin:
    """`sbpair.ports.NamespaceAdmin` over a `FakeNamespace`."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self._namespace = namespace
        self.closed = False

    @property
    def control_plane(self) -> str:
        return "data-plane"

    async def namespace(self) -> NamespaceFacts:
        await self._namespace.begin("admin", "$namespaceinfo")
        return NamespaceFacts(
            name=self._namespace.name,
            host=self._namespace.host,
            tier=self._namespace.tier,
            service_time=self._namespace.epoch(),
        )

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        await self._namespace.begin("admin", prefix)
        for path, queue in sorted(self._namespace.entities.items()):
            if not queue.is_topic and path.startswith(prefix.lower()):
                yield queue.facts()

    async def get_queue(self, path: str) -> QueueFacts | None:
        await self._namespace.begin("admin", path)
        queue = self._namespace.entities.get(path.lower())
        return queue.facts() if queue is not None and not queue.is_topic else None

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        await self._namespace.begin("admin", path)
        if path.lower() in self._namespace.entities:
            raise EntityExistsError(f"{path!r} exists already.", entity=path)
        created = self._namespace.add_queue(path, settings).facts()
        self._namespace.end("admin", path)
        return created

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        await self._namespace.begin("admin", path)
        queue = self._namespace.queue(path)
        queue.settings = settings
        queue.updates += 1
        return queue.facts()

    async def delete_queue(self, path: str) -> None:
        await self._namespace.begin("admin", path)
        self._namespace.queue(path)
        del self._namespace.entities[path.lower()]

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        await self._namespace.begin("admin", "$topics")
        for queue in list(self._namespace.entities.values()):
            if queue.is_topic:
                yield TopicFacts(queue.path)

    async def create_topic(self, path: str) -> TopicFacts:
        raise EntityExistsError(f"{path}: topics of this fake are made beforehand.", entity=path)

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        return await self.get_queue(f"{topic}/Subscriptions/{name}")

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        return await self.create_queue(f"{topic}/Subscriptions/{name}", settings)

    async def get_topic(self, path: str) -> TopicFacts | None:
        await self._namespace.begin("admin", path)
        queue = self._namespace.entities.get(path.lower())
        return TopicFacts(queue.path) if queue is not None and queue.is_topic else None

    async def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class _Facts:
    message_id: str | None
    session_id: str | None
    partition_key: str | None
    scheduled_at: float | None
    content_type: str | None


def _facts(payload: bytes) -> _Facts:
    spans = sections.scan(payload)
    properties = sections.read(payload, spans, Section.PROPERTIES) or []
    annotations = sections.read(payload, spans, Section.MESSAGE_ANNOTATIONS) or {}
    scheduled = annotations.get(Symbol("x-opt-scheduled-enqueue-time"))
    return _Facts(
        message_id=_text(sections.field(properties, PropertyField.MESSAGE_ID)),
        session_id=_text(sections.field(properties, PropertyField.GROUP_ID)),
        partition_key=_text(annotations.get(Symbol("x-opt-partition-key"))),
        scheduled_at=scheduled / 1000 if scheduled is not None else None,
        content_type=_text(sections.field(properties, PropertyField.CONTENT_TYPE)),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _map_edited(payload: bytes, section: Section, put: dict[object, object]) -> bytes:
    spans = sections.scan(payload)
    span = next((span for span in spans if span.section == section), None)
    value = payload[span.value_start : span.end] if span is not None else encode({})
    edited = sections.edit_map(value, (), put)
    return sections.edit(payload, {section: sections.section_bytes(section, edited)}, spans)


def _with_broker_annotations(stored: Stored) -> bytes:
    """The payload as the service delivers it: with its annotations and its delivery count in the header."""
    put: dict[object, object] = {
        Symbol("x-opt-sequence-number"): Long(stored.sequence_number),
        Symbol("x-opt-enqueued-time"): Timestamp(int(stored.enqueued_at * 1000)),
        Symbol("x-opt-locked-until"): Timestamp(int(stored.locked_until * 1000)),
    }
    annotated = _map_edited(stored.payload, Section.MESSAGE_ANNOTATIONS, put)
    spans = sections.scan(annotated)
    span = next((span for span in spans if span.section == Section.HEADER), None)
    header = annotated[span.value_start : span.end] if span is not None else encode([])
    counted = sections.edit_fields(header, {HeaderField.DELIVERY_COUNT: Uint(stored.delivery_count)})
    return sections.edit(annotated, {Section.HEADER: sections.section_bytes(Section.HEADER, counted)}, spans)


def _with_dead_letter_reason(payload: bytes, reason: str, description: str) -> bytes:
    put: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return _map_edited(payload, Section.APPLICATION_PROPERTIES, put)
