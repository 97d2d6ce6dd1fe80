"""The way in: a transfer becomes messages, or is refused as a whole before anything has changed."""

import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from sbpair.amqp.sections import PropertyField
from sbpair.emulator.broker.entity import Entity, Quota
from sbpair.emulator.broker.messages import BATCH_FORMAT, Message, parse, split_batch
from sbpair.emulator.broker.partitions import check_batch_keys, check_keys
from sbpair.emulator.entities import QueueDescription, TopicDescription
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

Identity = tuple[object, str | None]


class DuplicateHistory:
    """The ids of the last `window_seconds`."""

    def __init__(self, window_seconds: float, key_of: Callable[[Any], Any], *, by_partition_key: bool) -> None:
        self.window_seconds = window_seconds
        self._key_of = key_of
        self._by_partition_key = by_partition_key
        self._until: dict[Identity, float] = {}
        self._queue: deque[tuple[float, Identity]] = deque()

    def identity(self, message: Message) -> Identity | None:
        head = message.head
        if message.message_id is None:
            return None
        key = head.partition_key or head.session_id if self._by_partition_key else None
        return self._key_of(message.message_id), key

    def is_known(self, identity: Identity, now: float) -> bool:
        self._forget(now)
        return self._until.get(identity, now) > now

    def remember(self, identity: Identity, now: float) -> float:
        """Note an id; the instant until which it is known."""
        return self.restore(identity, now + self.window_seconds)

    def restore(self, identity: Identity, until: float) -> float:
        self._until[identity] = until
        self._queue.append((until, identity))
        return until

    def known(self) -> Iterator[tuple[Identity, float]]:
        return iter(self._until.items())

    def _forget(self, now: float) -> None:
        while self._queue and self._queue[0][0] <= now:
            _, identity = self._queue.popleft()
            if self._until.get(identity, now + 1) <= now:
                del self._until[identity]


class Intake:
    """The checks in front of a queue or topic."""

    def __init__(self, entity: Entity, description: QueueDescription | TopicDescription, quota: Quota) -> None:
        self._entity = entity
        self._laws = entity.namespace.laws
        self._quota = quota
        self.history: DuplicateHistory | None = None
        self.describe(description)

    def describe(self, description: QueueDescription | TopicDescription) -> None:
        """Take over a (new) description."""
        self._description = description
        self._quota.limit_bytes = description.max_size_in_megabytes * 1024 * 1024
        window = description.duplicate_detection_history_time_window_seconds
        if not description.requires_duplicate_detection:
            self.history = None
        elif self.history is None:
            by_key = description.enable_partitioning and self._laws.duplicate_has_same_key
            self.history = DuplicateHistory(window, self._laws.message_id_key, by_partition_key=by_key)
        else:
            self.history.window_seconds = window

    @property
    def max_message_bytes(self) -> int:
        """The largest single message (bytes of the whole AMQP message)."""
        kilobytes = self._description.max_message_size_in_kilobytes
        return kilobytes * 1024 if kilobytes else self._laws.max_message_bytes

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch."""
        return self._laws.max_batch_bytes

    def read(self, payload: bytes, message_format: int) -> list[Message]:
        """The messages of a transfer; BrokerError for sizes and for bytes that are no message."""
        return list(self.reading(payload, message_format))

    def reading(self, payload: bytes, message_format: int) -> Iterator[Message]:
        """The same, one message after the other: a batch may have 20,000 of them, which takes a second."""
        batched = message_format == BATCH_FORMAT
        limit = self.max_batch_bytes if batched else self.max_message_bytes
        if len(payload) > limit:
            raise BrokerError(
                errors.SIZE_EXCEEDED,
                f"The received {'batch' if batched else 'message'} of {len(payload)} bytes exceeds the limit of "
                f"{limit} bytes on the link.",
            )
        for one in split_batch(payload) if batched else (payload,):
            message = parse(one, self._laws)
            yield _identified(message, self._laws.max_id_characters) if self._laws.id_given else message

    def admit(self, messages: list[Message]) -> list[Message]:
        """Those that are to be stored of messages that may be: pings and duplicates are dropped here."""
        vanish = self._laws.pings_vanish
        kept = self._without_duplicates([message for message in messages if not (vanish and message.head.is_ping)])
        self._entity.touch()
        self._entity.namespace.took_in(self._entity.path, kept)
        return self._remembered(kept)

    def check(self, messages: list[Message]) -> None:
        """Refuse the lot (BrokerError) without changing anything."""
        self._check_status()
        for message in messages:
            self._check(message)
        self._quota.check(sum(len(message.payload) for message in messages), self._entity.path)

    def check_batch(self, messages: list[Message]) -> None:
        """Refuse messages (BrokerError) that may come, but not in one transfer."""
        if self._description.enable_partitioning:
            check_batch_keys(messages, self._laws, detecting=self.history is not None)

    def _check_status(self) -> None:
        status = self._description.status
        if not status.may_send:
            raise BrokerError(
                errors.DISABLED, f"Messaging entity '{self._entity.path}' is currently disabled ({status.value})."
            )

    def _check(self, message: Message) -> None:
        head, description = message.head, self._description
        if (
            isinstance(description, QueueDescription)
            and description.requires_session
            and head.session_id is None
            and self._laws.session_id_needed
        ):
            raise BrokerError(
                errors.NOT_ALLOWED,
                f"The SessionId was not set on a message, and it cannot be sent to the entity '{self._entity.path}'. "
                "Entities that have session support enabled can only receive messages that have the SessionId set.",
            )
        if self._laws.partition_key_is_session_id and description.enable_partitioning:
            check_keys(head)
        if description.enable_partitioning:
            self._entity.numbering.check_open(message, self._entity.closed_partitions)

    def _without_duplicates(self, messages: list[Message]) -> list[Message]:
        if self.history is None or not self._laws.duplicates_dropped:
            return messages
        now = self._entity.namespace.clock.now()
        seen: set[Identity] = set()
        kept = []
        for message in messages:
            identity = self.history.identity(message)
            if identity is None or not (identity in seen or self.history.is_known(identity, now)):
                kept.append(message)
                if identity is not None:
                    seen.add(identity)
        return kept

    def _remembered(self, messages: list[Message]) -> list[Message]:
        if self.history is None:
            return messages
        now = self._entity.namespace.clock.now()
        for message in messages:
            identity = self.history.identity(message)
            if identity is not None:
                until = self.history.remember(identity, now)
                self._entity.namespace.journal.put_duplicate(self._entity, identity, until)
        return messages


def _identified(message: Message, longest: int) -> Message:
    """The message with an id of the broker's if its sender gave none, as the service does."""
    if message.message_id is None:
        message.set_properties({PropertyField.MESSAGE_ID: uuid.uuid4().hex}, longest)
    return message


Prepared = Sequence[Any]
"""What a topic knows already of a message that arrives: what it offers to its subscriptions."""


class Accepting(Entity):
    """An entity that applications send to: a queue or a topic."""

    intake: Intake

    @property
    def takes_steps(self) -> bool:
        """Whether a single message may take so long that `accepting` is worth its own cost."""
        return False

    def reserve(self, message: Message) -> int:
        """The next sequence number for a message."""
        raise NotImplementedError

    def arrive(self, message: Message, reserved: int = 0, prepared: Prepared | None = None) -> None:
        """Take one message in that was let through; if it is scheduled, under the number that was reserved for it.
        `prepared` is what `preparing` has found out about it."""
        raise NotImplementedError

    def check_scheduled(self, numbers: list[int]) -> None:
        """BrokerError message-not-found unless all of these are scheduled messages."""
        raise NotImplementedError

    def cancel_scheduled(self, numbers: list[int]) -> None:
        """Delete scheduled messages by number, all or none (BrokerError message-not-found)."""
        raise NotImplementedError

    def send(self, payload: bytes, message_format: int = 0) -> None:
        """Accept one transfer, a message or a batch, wholly or (BrokerError) not at all."""
        self.accept(self.intake.read(payload, message_format))

    def accept(self, messages: list[Message]) -> None:
        """Accept messages, all or none (BrokerError). They belong to the entity afterwards."""
        self.intake.check(messages)
        self.intake.check_batch(messages)
        self.take(messages)

    def accepting(self, messages: list[Message], *, in_one_transfer: bool = True) -> Iterator[None]:
        """The same in steps. All are accepted or none (also where nobody asks for the next step once the first has
        arrived), but they may become visible bit by bit."""
        self.intake.check(messages)
        turn = None
        if in_one_transfer:
            self.intake.check_batch(messages)
            turn = self.numbering.new_turn()
        prepared = yield from self.preparing(messages, turn)
        if prepared:
            self.check_there()
            self.intake.check(messages)
        waiting = iter(self.intake.admit(messages))
        try:
            yield from self._arriving(waiting, turn, prepared)
        except GeneratorExit:
            self.namespace.background.do(self._arriving(waiting, turn, prepared))
            raise

    def preparing(
        self, messages: list[Message], turn: int | None = None
    ) -> Generator[None, None, Mapping[Message, Prepared]]:
        """What can be found out in steps before anything changes, for `arrive`. BrokerError where it refuses them."""
        yield from ()
        return {}

    def _arriving(
        self, messages: Iterator[Message], turn: int | None, prepared: Mapping[Message, Prepared]
    ) -> Iterator[None]:
        for message in messages:
            if not self._is_there:
                return
            self._arrive_with(turn, message, 0, prepared.get(message))
            yield

    @property
    def _is_there(self) -> bool:
        found: object = self.namespace.find(self.path)
        return found is self

    def check_there(self) -> None:
        """BrokerError resource-deleted when the entity has been deleted."""
        if not self._is_there:
            raise BrokerError(errors.RESOURCE_DELETED, f"The messaging entity '{self.path}' has been deleted.")

    def take(
        self,
        messages: list[Message],
        reserved: Mapping[Message, int] | None = None,
        prepared: Mapping[Message, Prepared] | None = None,
    ) -> None:
        """Take messages in that `intake.check` let through, at the commit of a transaction for one."""
        turn = self.numbering.new_turn()
        for message in self.intake.admit(messages):
            number = 0 if reserved is None else reserved[message]
            self._arrive_with(turn, message, number, None if prepared is None else prepared.get(message))

    def _arrive_with(
        self, turn: int | None, message: Message, reserved: int = 0, prepared: Prepared | None = None
    ) -> None:
        """Take in a message of a transfer, whose messages without a key go to one partition."""
        self.numbering.transfer_turn = turn
        try:
            self.arrive(message, reserved, prepared)
        finally:
            self.numbering.transfer_turn = None
