"""An embedded namespace in an application's tests: entities, what lies in them, what was sent, time and faults.

    with EmbeddedNamespace() as servicebus:
        orders = servicebus.queue("orders", requires_session=True)
        application(servicebus.connection_string)
        orders.assert_sent(body={"number": 7}, session_id="anna")

With pytest the fixture `servicebus` is such a namespace, fresh for each test.
"""

import contextlib
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Timestamp
from sbpair.emulator.admin.fields import parse_duration
from sbpair.emulator.broker.messages import Message, MessageStateCode, as_mapping
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.namespace import Namespace, delete_all, expire_due
from sbpair.emulator.seed import MessageFields, only, payload, plant
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.emulator.thread import EmulatorThread
from sbpair.engine.clock import AdvancingClock
from sbpair.engine.errors import BrokerError, EmulatorError
from sbpair.engine.wire import Trace
from sbpair.service import Tier

T = TypeVar("T")

_DESCRIPTIONS: Final = {"queue": QueueDescription, "topic": TopicDescription, "subscription": SubscriptionDescription}
_SHOWN_MESSAGES: Final = 10
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as an application would read it. Times are aware datetimes in UTC.

    `body` is bytes; the object of a value section; or the list of the sequences of a sequence body.
    """

    body: Any
    message_id: Any = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: Any = None
    subject: str | None = None
    content_type: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Application properties."""
    scheduled_enqueue_time: datetime | None = None
    enqueued_time: datetime | None = None
    """None for a message as it was sent, before it had its place."""
    sequence_number: int = 0
    delivery_count: int = 0

    @property
    def text(self) -> str:
        return self.body.decode() if isinstance(self.body, bytes) else str(self.body)

    @property
    def dead_letter_reason(self) -> str | None:
        return self.properties.get("DeadLetterReason")

    def json(self) -> Any:
        return json.loads(self.text)


_EXPECTABLE: Final = (*(one.name for one in fields(StoredMessage)), "dead_letter_reason")


class _Entity:
    """What queues, topics and subscriptions have in common."""

    def __init__(self, owner: "EmbeddedNamespace", path: str) -> None:
        self._owner = owner
        self.path = path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def sent(self) -> list[StoredMessage]:
        """Everything the entity has taken in, oldest first, whatever has become of it. Duplicates that duplicate
        detection dropped are not among them."""
        return self._owner.call(lambda _: [stored_message(one) for one in self._owner.taken_in(self.path)])

    def assert_sent(self, *, count: int | None = None, **expected: Any) -> list[StoredMessage]:
        """That messages with these values have come here; all of them.

        `expected` names fields of `StoredMessage`. A `body` that is a text is compared as text, bytes as bytes, and
        anything else with the body's JSON value. Of `properties` those that are named must be there. `count` is how
        many such messages there must be; without it at least one.

        Raises:
            AssertionError: with every message that has come and what is different in it.
        """
        __tracebackhide__ = True
        return _matching(self.path, "was sent", "were sent", self.sent, expected, count)

    def assert_nothing_sent(self) -> None:
        """That no message has come here.

        Raises:
            AssertionError: with those that have.
        """
        __tracebackhide__ = True
        if found := self.sent:
            raise AssertionError("\n".join([f"{self.path}: {_counted(len(found), 'message was', 'messages were')} sent"
                                            f" where none was expected:", *_listed(found)]))  # fmt: skip


class _Receivable(_Entity):
    """What one receives from: a queue or a subscription."""

    @property
    def messages(self) -> list[StoredMessage]:
        """Those that wait to be received, and those that somebody has locked; by sequence number."""
        return self._of(lambda entity: (one for one in entity.main.log if one.state is MessageStateCode.ACTIVE))

    @property
    def deferred(self) -> list[StoredMessage]:
        return self._of(lambda entity: (one for one in entity.main.log if one.state is MessageStateCode.DEFERRED))

    @property
    def scheduled(self) -> list[StoredMessage]:
        return self._of(lambda entity: (one for one in entity.main.log if one.state is MessageStateCode.SCHEDULED))

    @property
    def dead_letters(self) -> list[StoredMessage]:
        return self._of(lambda entity: iter(entity.dead_letters.log))

    def assert_dead_lettered(self, *, count: int | None = None, **expected: Any) -> list[StoredMessage]:
        """That there are such messages in the dead-letter queue; `expected` also takes `dead_letter_reason`.

        Raises:
            AssertionError: see `assert_sent`.
        """
        __tracebackhide__ = True
        return _matching(self.path, "is dead-lettered", "are dead-lettered", self.dead_letters, expected, count)

    def assert_empty(self) -> None:
        """That nothing is left: no message that waits, is locked, deferred, scheduled or dead-lettered.

        Raises:
            AssertionError: with all that is.
        """
        __tracebackhide__ = True
        places = {
            "messages": self.messages,
            "deferred": self.deferred,
            "scheduled": self.scheduled,
            "dead_letters": self.dead_letters,
        }
        lines = [line for name, found in places.items() if found for line in (f"{name}:", *_listed(found))]
        if lines:
            raise AssertionError("\n".join([f"{self.path} is not empty.", *lines]))

    def _of(self, chosen: Callable[[Queue | Subscription], Iterator[Message]]) -> list[StoredMessage]:
        return self._owner.call(lambda namespace: [stored_message(one) for one in chosen(self._entity(namespace))])

    def _entity(self, namespace: Namespace) -> Queue | Subscription:
        raise NotImplementedError


class _Sendable(_Entity):
    """What one sends to: a queue or a topic."""

    def send(self, body: bytes | str | Any = b"", **message: Unpack[MessageFields]) -> None:
        """Put a message in, as a client would send it. A body that is neither bytes nor text is sent as JSON.

        Raises:
            EmulatorError: the entity refuses it; the text is what a client would be told.
        """
        encoded = payload(body, **message)

        def send(namespace: Namespace) -> None:
            entity = namespace.find(self.path)
            if not isinstance(entity, Queue | Topic):
                raise EmulatorError(f"there is no {self.path!r} any more")
            try:
                entity.send(encoded)
            except BrokerError as error:
                raise EmulatorError(f"{self.path}: {error.description} ({error.condition})") from error

        self._owner.call(send)


class EmbeddedQueue(_Receivable, _Sendable):
    """A queue of an embedded namespace."""

    def _entity(self, namespace: Namespace) -> Queue:
        found = namespace.get_queue(self.path)
        if found is None:
            raise EmulatorError(f"there is no queue {self.path!r} any more")
        return found


class EmbeddedTopic(_Sendable):
    """A topic of an embedded namespace."""

    def subscription(self, name: str, *, sql: str | None = None, **settings: Any) -> "EmbeddedSubscription":
        """A subscription, made when it is named first; `sql` is its one rule, by default it takes every message.

        Raises:
            EmulatorError, SeedError, EntityError: see `EmbeddedNamespace.queue`.
        """
        rules = {} if sql is None else {"rules": {"rule": {"sql": sql}}}
        made = self._owner.make("subscription", f"{self.path}/Subscriptions/{name}", settings, **rules)
        return EmbeddedSubscription(self._owner, made, self.path, name)


class EmbeddedSubscription(_Receivable):
    """A subscription of a topic. `sent` is what its rules have let through."""

    def __init__(self, owner: "EmbeddedNamespace", path: str, topic: str, name: str) -> None:
        super().__init__(owner, path)
        self._topic, self.name = topic, name

    def _entity(self, namespace: Namespace) -> Subscription:
        found = namespace.get_subscription(self._topic, self.name)
        if found is None:
            raise EmulatorError(f"there is no subscription {self.path!r} any more")
        return found


class EmbeddedNamespace:
    """A Service Bus namespace of its own, in a process that others may share. Every method may be called from any
    thread, and from a coroutine: none waits for a client.

    Args:
        name: of the namespace; by default one that nobody else has.
        emulator: the running emulator to be part of; without one it has its own.
        trace: keep the last frames for `frames`.
        seed: decides which operations a fault with a probability hits; the same ones in every run without it, too.
        laws: which laws of the service are not kept strictly: `{"partitioned-batch-key": "lax"}`. `sbpair emulator
            --laws` lists them.
        tier: of the namespace.
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        name: str | None = None,
        *,
        emulator: EmulatorThread | None = None,
        trace: bool = False,
        seed: int | str | None = None,
        laws: Mapping[str, str] | None = None,
        tier: Tier | str = Tier.STANDARD,
    ) -> None:
        self._config = NamespaceConfig(name or f"servicebus-{next(self._numbers)}", Tier(tier), laws=laws or {})
        self.name = self._config.name
        self._own = emulator is None
        self._emulator = EmulatorThread([]) if emulator is None else emulator
        self._clock = AdvancingClock()
        self._trace = Trace() if trace else None
        self._seed = seed
        self._taken_in: dict[str, list[Message]] = {}
        self._open = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start to serve. Not needed in a `with` block or with the fixture."""
        if self._own:
            self._emulator.open()
        try:
            self._emulator.add(self._config, clock=self._clock, trace=self._trace, seed=self._seed)
        except BaseException:
            if self._own:
                self._emulator.close()
            raise
        self._open = True
        self.call(lambda namespace: namespace.witnesses.append(self._took_in))

    def close(self) -> None:
        """Cut the clients off and forget everything."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._emulator.remove(self.name)
            self._emulator.call(lambda _: self._clock.close())
            if self._own:
                self._emulator.close()

    # -- for the application

    @property
    def connection_string(self) -> str:
        """With the root key, for AMQP without TLS: what the Azure clients take as a development emulator's."""
        return self._emulator.connection_string(self.name)

    @property
    def endpoint(self) -> str:
        """`host:port`, for AMQP and AMQP over TLS, AMQP over WebSocket, and administration over HTTPS."""
        return self._emulator.endpoint(self.name)

    @property
    def ca_file(self) -> str:
        """The certificate (PEM file) that a client must trust to use TLS here."""
        return str(self._emulator.ca_path)

    # -- entities

    def queue(self, path: str, **settings: Any) -> EmbeddedQueue:
        """A queue, made when it is named first.

        `settings` are those of azure-servicebus' `create_queue` (`lock_duration=timedelta(seconds=5)`,
        `requires_session=True`, `max_delivery_count=3`); durations are timedeltas or ISO 8601 texts.

        Raises:
            EmulatorError: it exists with other settings. SeedError: a setting that there is not. EntityError: a value
                that the service would refuse.
        """
        return EmbeddedQueue(self, self.make("queue", path, settings))

    def topic(self, path: str, **settings: Any) -> EmbeddedTopic:
        """A topic, made when it is named first; see `queue`."""
        return EmbeddedTopic(self, self.make("topic", path, settings))

    def make(self, kind: str, path: str, settings: Mapping[str, Any], **more: Any) -> str:
        """Have an entity; its path. For `queue`, `topic` and `subscription`."""
        values = _values(kind, settings)

        def make(namespace: Namespace) -> None:
            existing = _existing(namespace, kind, path)
            if existing is None:
                plant(namespace, _seed(kind, path, {**values, **more}))
                return
            different = [
                name.removesuffix("_seconds")
                for name, value in values.items()
                if getattr(existing.description, name) != value
            ]
            if different:
                raise EmulatorError(f"{path} exists already, with another {', '.join(different)}")

        self.call(make)
        return path

    def reset(self) -> None:
        """Delete every entity and fault, and forget what was sent. Time that was moved on stays so."""

        def reset(namespace: Namespace) -> None:
            namespace.faults.clear()
            delete_all(namespace)
            self._taken_in.clear()

        self.call(reset)

    # -- time and trouble

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the namespace's time on, for time to live, scheduled messages, locks, duplicate detection and
        auto-delete on idle. What falls due on the way happens before this returns. Clients stay in real time."""
        ahead = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)

        def advance(namespace: Namespace) -> None:
            self._clock.advance(ahead.total_seconds())
            expire_due(namespace)  # a test has no later

        self.call(advance)

    def dark(self) -> contextlib.AbstractContextManager[None]:
        """While the block runs the namespace is gone: connections are cut, new ones refused."""
        return self.fault("dark")

    def throttle(self, entity: str = "*") -> contextlib.AbstractContextManager[None]:
        """While the block runs the namespace answers server-busy to what clients ask of these entities (a pattern)."""
        return self.fault(f"throttle:entity={entity}")

    def drop_settlements(self, entity: str = "*") -> contextlib.AbstractContextManager[None]:
        """While the block runs messages are settled, and the clients are not told."""
        return self.fault(f"lose-settlement-reply:entity={entity}")

    @contextlib.contextmanager
    def fault(self, text: str) -> Iterator[None]:
        """A fault while the block runs, in the words of `sbpair emulator fault add`.

        Raises:
            FaultError: there is no such fault.
        """
        fault_id = self.call(lambda namespace: namespace.faults.add(text))
        try:
            yield
        finally:
            self.call(lambda namespace: namespace.faults.remove(fault_id))

    def frames(self) -> list[str]:
        """The last frames of all connections, oldest first; empty without `trace`."""
        trace = self._trace
        return [] if trace is None else self._emulator.call(lambda _: [str(frame) for frame in trace.frames])

    # -- for the entities

    def call(self, function: Callable[[Namespace], T]) -> T:
        """Run a function of the namespace on the emulator's loop.

        Raises:
            EmulatorError: the namespace is not open.
        """
        if not self._open:
            raise EmulatorError(f"the namespace {self.name} is not open; use it in a `with` block")

        def run(emulator: Emulator) -> T:
            return function(emulator.namespace(self.name))

        return self._emulator.call(run)

    def taken_in(self, path: str) -> list[Message]:
        """What an entity has taken in; on the emulator's loop only."""
        return self._taken_in.get(path.lower(), [])

    def _took_in(self, path: str, messages: list[Message]) -> None:
        # Copies: dead-lettering and `properties to modify` change the broker's own.
        self._taken_in.setdefault(path.lower(), []).extend(one.copy() for one in messages)


def _existing(namespace: Namespace, kind: str, path: str) -> Queue | Topic | Subscription | None:
    if kind == "subscription":
        topic, _, name = path.partition("/Subscriptions/")
        return namespace.get_subscription(topic, name)
    return namespace.get_queue(path) if kind == "queue" else namespace.get_topic(path)


def _seed(kind: str, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "subscription":
        topic, _, name = path.partition("/Subscriptions/")
        return {"topics": {topic: {"subscriptions": {name: values}}}}
    return {f"{kind}s": {path: values}}


def _values(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the descriptions name them: durations in seconds."""
    known = {one.name for one in fields(_DESCRIPTIONS[kind])}
    # The official client's names, which are meant; a topic's and a subscription's own parts are asked for elsewhere.
    usual = tuple(name.removesuffix("_seconds") for name in known if name != "authorization_rules")
    only({name: None for name in settings if name not in known}, usual, kind)
    values = {}
    for name, value in settings.items():
        in_seconds = f"{name}_seconds"
        if name in known or in_seconds not in known:
            values[name] = value
        elif isinstance(value, timedelta):
            values[in_seconds] = value.total_seconds()
        else:
            values[in_seconds] = parse_duration(value) if isinstance(value, str) else value
    return values


def stored_message(message: Message) -> StoredMessage:
    """What an application would read of a broker's message."""
    payload = message.payload
    spans = sections.scan(payload)
    properties = sections.read(payload, spans, Section.PROPERTIES)
    head = message.head

    def of(index: PropertyField) -> Any:
        value = sections.field(properties, index)
        return _plain(value)

    return StoredMessage(
        body=_body(payload, spans),
        message_id=_plain(message.message_id),
        session_id=head.session_id,
        partition_key=head.partition_key,
        correlation_id=of(PropertyField.CORRELATION_ID),
        subject=of(PropertyField.SUBJECT),
        content_type=of(PropertyField.CONTENT_TYPE),
        to=of(PropertyField.TO),
        reply_to=of(PropertyField.REPLY_TO),
        reply_to_session_id=of(PropertyField.REPLY_TO_GROUP_ID),
        time_to_live=None if head.ttl_seconds is None else timedelta(seconds=head.ttl_seconds),
        properties={
            str(name): _plain(value)
            for name, value in as_mapping(sections.read(payload, spans, Section.APPLICATION_PROPERTIES)).items()
        },
        scheduled_enqueue_time=_when(head.scheduled_at),
        enqueued_time=_when(message.enqueued_at or None),
        sequence_number=message.sequence_number,
        delivery_count=message.delivery_count,
    )


def _plain(value: Any) -> Any:
    """A value of AMQP as Python has it: no Int, Symbol or Timestamp."""
    match value:
        case bool() | uuid.UUID():
            return value
        case Timestamp():
            return datetime.fromtimestamp(value / 1000, UTC)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {_plain(key): _plain(one) for key, one in value.items()}
    return value


def _body(payload: bytes, spans: tuple[sections.Span, ...]) -> Any:
    found = sections.body_sections(payload, spans)
    values = [sections.read_span(payload, span) for span in found]
    if not found:
        return b""
    if found[0].section is Section.DATA:
        return b"".join(values)
    return _plain(values[0] if found[0].section is Section.VALUE else values)


def _when(epoch_seconds: float | None) -> datetime | None:
    return None if epoch_seconds is None else datetime.fromtimestamp(epoch_seconds, UTC)


# Assertions.


def _matching(
    path: str, one: str, many: str, found: list[StoredMessage], expected: Mapping[str, Any], count: int | None
) -> list[StoredMessage]:
    __tracebackhide__ = True  # pytest shows the test's own line
    unknown = [name for name in expected if name not in _EXPECTABLE]
    if unknown:
        raise TypeError(f"a message has no {', '.join(unknown)}; it has {', '.join(_EXPECTABLE)}")
    differences = [_differences(message, expected) for message in found]
    matching = [message for message, different in zip(found, differences, strict=True) if not different]
    if len(matching) == count or (count is None and matching):
        return matching
    wanted = " with " + ", ".join(f"{name}={value!r}" for name, value in expected.items()) if expected else ""
    number = "at least one message" if count is None else _counted(count, "message", "messages")
    lines = [
        f"{path}: expected {number}{wanted}; there {_counted(len(matching), 'is', 'are', number_last=True)}.",
        f"{_counted(len(found), f'message {one}', f'messages {many}')}{':' if found else '.'}",
    ]
    for message, different in itertools.islice(zip(found, differences, strict=True), _SHOWN_MESSAGES):
        lines.append(f"  {_line(message)}{'' if different or not expected else '  (as expected)'}")
        lines += [f"    {line}" for line in different]
    if len(found) > _SHOWN_MESSAGES:
        lines.append(f"  and {len(found) - _SHOWN_MESSAGES} more")
    raise AssertionError("\n".join(lines))


def _differences(message: StoredMessage, expected: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, wanted in expected.items():
        if name == "properties":
            lines += [
                f"properties[{key!r}]: expected {value!r}, "
                + (f"is {_short(message.properties[key])}" if key in message.properties else "is missing")
                for key, value in wanted.items()
                if key not in message.properties or message.properties[key] != value
            ]
            continue
        present = _comparable_body(message, wanted) if name == "body" else getattr(message, name)
        if present != wanted:
            lines.append(f"{name}: expected {wanted!r}, is {_short(present)}")
    return lines


def _comparable_body(message: StoredMessage, wanted: Any) -> Any:
    """The body in the form in which `wanted` is given, as far as it has one."""
    if isinstance(wanted, bytes) or not isinstance(message.body, bytes):
        return message.body
    try:
        return message.text if isinstance(wanted, str) else message.json()
    except ValueError:
        return message.body


def _listed(found: list[StoredMessage]) -> list[str]:
    lines = [f"  {_line(message)}" for message in found[:_SHOWN_MESSAGES]]
    return lines + ([f"  and {len(found) - _SHOWN_MESSAGES} more"] if len(found) > _SHOWN_MESSAGES else [])


def _line(message: StoredMessage) -> str:
    said = {"body": message.body, "message_id": message.message_id, "session_id": message.session_id}
    said |= {"subject": message.subject, "properties": dict(message.properties)}
    return " ".join(f"{name}={_short(value)}" for name, value in said.items() if value or name == "body")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def _counted(number: int, one: str, many: str, *, number_last: bool = False) -> str:
    word = one if number == 1 else many
    shown = "no" if number == 0 else str(number)
    if number_last:
        return f"{word} {'none' if number == 0 else number}"
    return f"{shown} {word}"
