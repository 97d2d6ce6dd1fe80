"""A namespace on a clock that stands still, messages as clients send them, and receivers that are lists."""

from dataclasses import dataclass, field

import pytest

from sbpair.amqp.sections import PropertyField, Section, build, read, scan
from sbpair.amqp.sections import field as value_at
from sbpair.amqp.types import Symbol, Timestamp, Uint
from sbpair.emulator.broker.mailbox import Mailbox
from sbpair.emulator.broker.messages import BATCH_FORMAT, Message
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.sessions import Lock, MessageSession
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.namespace import Namespace
from sbpair.engine.budgets import Background
from sbpair.engine.clock import ManualClock
from sbpair.service import Tier


@dataclass(eq=False)
class Inbox:
    """A consumer that keeps what it gets."""

    credit: int = 1000
    settled: bool = False
    session_id: str | None = None
    got: list[tuple[Message, Lock | None]] = field(default_factory=list)
    detached: str | None = None

    def room(self) -> int:
        return self.credit - len(self.got)

    def admit(self, lock_seconds: float) -> float | None:
        return lock_seconds

    def hand(self, message: Message, lock: Lock | None) -> None:
        self.got.append((message, lock))

    def detach(self, condition: str, description: str) -> None:
        self.detached = condition

    def granted(self, session: MessageSession) -> None:
        self.session_id = session.id

    @property
    def texts(self) -> list[str]:
        return [text_of(message) for message, _ in self.got]

    @property
    def tokens(self):
        return [lock.token for _, lock in self.got if lock is not None]

    @property
    def token(self):
        return self.tokens[-1]


class Bench:
    """The namespace and short ways to use it."""

    def __init__(self, tier: Tier = Tier.STANDARD, premium_partitions: int = 1, laws=None) -> None:
        self.clock = ManualClock()
        self.namespace = Namespace(
            "bench", tier=tier, premium_partitions=premium_partitions, clock=self.clock, laws=laws
        )
        self.namespace.background = Background(lambda: 0.0)  # all its work is short, however slow the machine is

    def queue(self, path: str = "orders", **settings) -> Queue:
        return self.namespace.create_queue(path, QueueDescription(**settings))

    def message(
        self,
        body: str | bytes = "x",
        *,
        message_id=None,
        session=None,
        key=None,
        ttl=None,
        at=None,
        properties=None,
        content_type=None,
        **fields,
    ) -> bytes:
        annotations = {}
        if key is not None:
            annotations[Symbol("x-opt-partition-key")] = key
        if at is not None:
            annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(round(at * 1000))
        listed = {
            PropertyField.MESSAGE_ID: message_id,
            PropertyField.GROUP_ID: session,
            PropertyField.CONTENT_TYPE: None if content_type is None else Symbol(content_type),
            **{PropertyField[name.upper()]: value for name, value in fields.items()},
        }
        return build(
            header=None if ttl is None else [None, None, Uint(round(ttl * 1000))],
            message_annotations=annotations or None,
            properties=listed if any(value is not None for value in listed.values()) else None,
            application_properties=properties,
            data=body.encode() if isinstance(body, str) else body,
        )

    def send(self, entity: Queue | Topic, *bodies: str, **fields) -> None:
        for body in bodies:
            entity.send(self.message(body, **fields))

    def send_batch(self, entity: Queue | Topic, *payloads: bytes) -> None:
        entity.send(build(data=list(payloads)), BATCH_FORMAT)

    def receive(self, box: Queue | Subscription | Mailbox, count: int = 1000, *, settled: bool = False) -> Inbox:
        """A receiver with that much credit; it stays attached."""
        inbox = Inbox(credit=count, settled=settled)
        (box if isinstance(box, Mailbox) else box.main).want(inbox)
        return inbox

    def accept(self, entity: Queue | Subscription, session_id: str, count: int = 1000) -> Inbox:
        """A receiver of a named session."""
        inbox = Inbox(credit=count, session_id=session_id)
        entity.main.sessions.hold(session_id, inbox)
        entity.main.want(inbox)
        return inbox

    def peek(self, box: Queue | Subscription | Mailbox, since: int = 0, count: int = 250) -> list[Message]:
        return (box if isinstance(box, Mailbox) else box.main).peek(since, count, 1 << 20)


def text_of(message: Message) -> str:
    """The body of a message with one data section."""
    return read(message.payload, scan(message.payload), Section.DATA).decode()


@pytest.fixture
async def bench() -> Bench:
    return Bench()


@pytest.fixture
def make_bench():
    return Bench


@pytest.fixture
def make_inbox():
    return Inbox


@pytest.fixture
def text():
    return text_of


@pytest.fixture
def sections_of():
    """A rendered message as {section: decoded value}."""

    def split(payload: bytes) -> dict[Section, object]:
        spans = scan(payload)
        return {span.section: read(payload, spans, span.section) for span in spans}

    return split


@pytest.fixture
def property_of():
    """A field of a message's properties section."""

    def get(message: Message, index: PropertyField) -> object:
        return value_at(read(message.payload, scan(message.payload), Section.PROPERTIES), index)

    return get
