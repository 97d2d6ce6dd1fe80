"""One place with messages: a queue's own, its dead letters, its transfer dead letters, or a subscription's.

Here messages wait, are handed to consumers in turns, locked, settled, deferred, scheduled, peeked and expired. What the
place means (where dead letters go, how long a lock is) the owning entity says. All operations take constant or
logarithmic time, whatever the number of messages.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sbpair.emulator.broker.messages import Message, MessageLog, MessageStateCode
from sbpair.emulator.broker.partitions import PARTITION_SHIFT, ReadyLine, check_open, partition_of
from sbpair.emulator.broker.sessions import DeliveryTarget, Lock, Locks, MessageSession, Sessions, Waiting
from sbpair.engine import errors
from sbpair.engine.clock import Timer
from sbpair.engine.errors import BrokerError
from sbpair.service import PARTITION_COUNT

if TYPE_CHECKING:
    from sbpair.emulator.broker.entity import MessageEntity

# Peeking: pages of messages by sequence number, without locks, in whatever state they are.
#
# An ordinary entity answers in the order of its numbers. A partitioned one answers each call with the messages of one
# partition only, the one "that answered first": asked from the very start (0 or less) the partitions take turns;
# asked from a number, the partition of that number answers, or if it has nothing more, the next one that has. So a page
# may be short although there is more, and the first page is not the oldest messages of the entity. A page also ends
# where its bytes would exceed what fits into one reply.


def page(
    log: MessageLog, since: int, count: int, max_bytes: int, *, turn: int | None = None, closed: Collection[int] = ()
) -> list[Message]:
    """Up to `count` messages of at most `max_bytes` together (but always one); `turn` only for partitioned entities."""
    if turn is not None and since <= 0:
        since = _answering_partition(log, turn, closed) << PARTITION_SHIFT
    chosen: list[Message] = []
    size = 0
    for message in log.since(since):
        if partition_of(message.sequence_number) in closed:
            continue
        size += len(message.payload)
        full = len(chosen) >= count or (chosen and size > max_bytes)
        if full or (turn is not None and chosen and _leaves_partition(chosen[0], message)):
            break
        chosen.append(message)
    return chosen


def _answering_partition(log: MessageLog, turn: int, closed: Collection[int]) -> int:
    """The partition whose turn it is, or the next one (round and round) that holds messages."""
    for step in range(PARTITION_COUNT):
        partition = (turn + step) % PARTITION_COUNT
        if partition in closed:
            continue
        first = next(log.since(partition << PARTITION_SHIFT), None)
        if first is not None and partition_of(first.sequence_number) == partition:
            return partition
    return 0


def _leaves_partition(first: Message, other: Message) -> bool:
    return partition_of(first.sequence_number) != partition_of(other.sequence_number)


DELIVERIES_PER_TURN = 50
"""This many messages are handed out in one turn of the event loop (some milliseconds); the next turn goes on."""
MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER = "main", "dead-letter", "transfer-dead-letter"


class Handout:
    """Who gets the waiting messages of a mailbox: consumers without a session in turns, one message each; the holder of
    a session all of that session's."""

    def __init__(self, box: "Mailbox") -> None:
        self.waiting = Waiting()
        self.ready = ReadyLine()
        self.pump_due = False
        self._box = box

    def line_up(self, message: Message, session: MessageSession | None) -> None:
        """A message waits (again), in its old place."""
        (session or self).ready.push(message.sequence_number)

    def notice(self, session: MessageSession | None) -> None:
        """A message waits: serve it, or say that its session is available."""
        if session is None or session.holder is not None:
            self.go_on(session)
        elif self._box.sessions is not None:
            self._box.sessions.noticed(session)

    def held_by(self, consumer: DeliveryTarget) -> MessageSession | None:
        """The session that a consumer holds."""
        session_id, sessions = getattr(consumer, "session_id", None), self._box.sessions
        session = None if sessions is None or session_id is None else sessions.get(session_id)
        return session if session is not None and session.holder is consumer else None

    def is_serving(self, consumer: DeliveryTarget) -> bool:
        """Whether more messages are on their way to a consumer, in a later turn of the loop."""
        return (self.held_by(consumer) or self).pump_due

    def first_of(self, session: MessageSession | None = None) -> int | None:
        """The first number in line whose message really waits; stale numbers are dropped."""
        line, closed = (session or self).ready, self._box.entity.closed_partitions
        while (number := line.peek(closed)) is not None:
            message = self._box.log.get(number)
            if message is not None and message.state is MessageStateCode.ACTIVE and not message.locked:
                return number
            line.pop()
        return None

    def go_on(self, session: MessageSession | None = None) -> None:
        """Give what waits, in the session or outside any, to whom it is for."""
        line, box = session or self, self._box
        if line.pump_due or not box.entity.may_receive or (session is None and not self.waiting):
            return
        box.expire_due()
        for _ in range(DELIVERIES_PER_TURN):
            number = self.first_of(session)
            consumer = None if number is None else self._next(session)
            if number is None or consumer is None:
                return
            if not self._serve(consumer, number, session):
                if session is not None:
                    return
                self.waiting.discard(consumer)
        line.pump_due = True
        box.clock.call_at(box.clock.now(), lambda: self._go_on_later(session))

    def _go_on_later(self, session: MessageSession | None) -> None:
        (session or self).pump_due = False
        self.go_on(session)

    def _next(self, session: MessageSession | None) -> DeliveryTarget | None:
        """Whose turn it is, with room for at least one message."""
        if session is None:
            return self.waiting.next()
        return session.holder if session.holder is not None and session.holder.room() > 0 else None

    def _serve(self, consumer: DeliveryTarget, number: int, session: MessageSession | None) -> bool:
        """Give the message with that number, the first of its line; False if the consumer turned it down."""
        box = self._box
        seconds = consumer.admit(box.entity.lock_seconds)
        if seconds is None:
            return False
        if session is not None and box.sessions is not None and seconds < box.entity.lock_seconds:
            box.sessions.shorten(session, seconds)
        (session or self).ready.pop()
        message = box.log.get(number)
        if message is None:
            return True
        box.entity.touch()
        if consumer.settled:
            box.remove(message)
            consumer.hand(message, None)
        else:
            consumer.hand(message, box.locks.issue(message, seconds, session))
        return True


class Mailbox:
    """A place of an entity; `place` is one of MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER."""

    def __init__(self, entity: "MessageEntity", place: str, *, sessions: bool = False) -> None:
        self.entity = entity
        self.place = place
        self.log = MessageLog()
        self.scheduled_count = 0
        self.clock, self._laws = entity.namespace.clock, entity.namespace.laws
        self.locks = Locks(self.clock, self._lock_expired)
        self.handout = Handout(self)
        self.sessions = None
        if sessions:
            self.sessions = Sessions(
                self.clock,
                lambda: entity.lock_seconds,
                lambda session: self.handout.first_of(session) is not None,
                self._session_lost,
                self._laws.session_key,
            )
        self._expiries: list[tuple[float, int]] = []
        self._activations: dict[int, Timer] = {}
        self._peeks = 0
        self.watchers: dict[Callable[[], None], None] = {}

    @property
    def path(self) -> str:
        return self.entity.path_of(self.place)

    @property
    def active_count(self) -> int:
        """Messages that are not scheduled: waiting, locked and deferred ones."""
        return len(self.log) - self.scheduled_count

    # -- putting in and taking out

    def add(self, message: Message) -> None:
        """Put a message in, in whatever state it is, and serve it to the receivers that wait."""
        self.place_quietly(message)
        self.entity.namespace.journal.put_message(self.entity, self.place, message)
        if message.state is MessageStateCode.ACTIVE:
            self.handout.notice(self.session_of(message))
        for watcher in list(self.watchers):
            watcher()

    def place_quietly(self, message: Message) -> None:
        """Put a message in without telling store or consumers: for `add` and for a restart."""
        self.log.add(message)
        self.entity.quota.used_bytes += len(message.payload)
        session = self.session_of(message)
        if session is not None:
            session.log.add(message)
        if message.state is MessageStateCode.SCHEDULED:
            self.scheduled_count += 1
            self._arrange(message)
        elif message.state is MessageStateCode.ACTIVE:
            self.handout.line_up(message, session)
            if message.expires_at is not None:
                heappush(self._expiries, (message.expires_at, message.sequence_number))

    def take_out(self, message: Message) -> None:
        """Remove a message from this place, to delete it or to put it elsewhere; the store is not told."""
        if not self.log.remove(message):
            return
        self.entity.quota.used_bytes -= len(message.payload)
        if message.state is MessageStateCode.SCHEDULED:
            self.scheduled_count -= 1
            self._activations.pop(message.sequence_number).cancel()
        if self.sessions is not None and message.head.session_id is not None:
            session = self.sessions.get(message.head.session_id)
            if session is not None:
                session.log.remove(message)
                self.sessions.discard_if_unneeded(session)

    def remove(self, message: Message) -> None:
        self.take_out(message)
        self.entity.namespace.journal.drop_message(message)

    def edit(self, message: Message, change: Callable[[], None]) -> None:
        """Change a message's stored bytes in place, keeping the size account right."""
        before = len(message.payload)
        change()
        self.entity.quota.used_bytes += len(message.payload) - before

    # -- handing out

    def want(self, consumer: DeliveryTarget) -> None:
        """A consumer has room: serve it now, or later when something arrives."""
        session = self.handout.held_by(consumer)
        if session is not None:
            self.handout.go_on(session)
        elif self.sessions is None:
            self.handout.waiting.add(consumer)
            self.handout.go_on()

    def leave(self, consumer: DeliveryTarget) -> None:
        """A consumer is gone. Its locks stay until they end; a session it held is free, messages back uncounted."""
        self.handout.waiting.discard(consumer)
        session = self.handout.held_by(consumer)
        if session is not None:
            self._end_session(session, counted=self._laws.left_session_counts)

    def free_all(self) -> None:
        """End all locks, uncounted: of a namespace that goes on in another region, where none is known."""
        for session in list(self.sessions or ()):
            if session.holder is not None:
                self._end_session(session, counted=False)
        for token in self.locks.tokens():
            self.release(token)

    # -- settling by lock token

    def complete(self, token: uuid.UUID) -> None:
        """Done: delete the message. This and the other settlements raise BrokerError message-lock-lost."""
        self.remove(self._unlock(token))

    def release(self, token: uuid.UUID) -> None:
        """Not processed, and no attempt was made: back to its old place, not counted."""
        self._back(self._unlock(token))

    def abandon(self, token: uuid.UUID, properties: Mapping[str, object] | None = None) -> None:
        """The attempt failed: back to its old place, counted; dead-lettered when it was the last allowed attempt."""
        message = self._unlock(token)
        self.edit(message, lambda: message.put_application_properties(properties or {}))
        if self._count_failure(message):
            self._back(message)

    def defer(self, token: uuid.UUID, properties: Mapping[str, object] | None = None) -> None:
        """Set aside: from now on to be received by sequence number only.

        It counts as a delivery, and the last one that is allowed dead-letters the message. Source: Azure/azure-service-
        bus issue 375 (with MaxDeliveryCount 1 a deferral dead-letters), and the vendor's test of 3.4.0,
        TopicClientPeekLockDeferTestCase. Strength: seen by users, confirmed as intended.
        """
        lock = self.check_lock(token)
        message = self._unlock(token)
        self.edit(message, lambda: message.put_application_properties(properties or {}))
        message.state, message.locked_until = MessageStateCode.DEFERRED, lock.until
        if not self._laws.deferral_counts or self._count_failure(message):
            self.entity.namespace.journal.put_message(self.entity, self.place, message)

    def dead_letter(
        self, token: uuid.UUID, reason: object, description: object, properties: Mapping[str, object] | None = None
    ) -> None:
        """Move to the dead letters with reason and description as application properties."""
        if self.place != MAIN and self._laws.dead_letter_stays:
            self.locks.require(token)
            raise BrokerError(errors.NOT_ALLOWED, "A dead-lettered message cannot be dead-lettered again.")
        message = self._unlock(token)
        self.edit(message, lambda: message.put_application_properties(properties or {}))
        self.entity.to_dead_letters(self, message, reason, description)

    def renew(self, token: uuid.UUID) -> float:
        """Start a message lock's time again; the new end in epoch seconds."""
        self.check_lock(token)
        self.entity.touch()
        return self.locks.renew(token, self.entity.lock_seconds)

    # -- by sequence number

    def peek(self, since: int, count: int, max_bytes: int, session_id: str | None = None) -> list[Message]:
        """Messages from a sequence number on, in any state, without locks; at least one if there is any.

        A partitioned entity answers with the messages of one partition (see `page`).
        """
        closed = self.entity.closed_partitions
        if session_id is not None and self.sessions is not None:
            session = self.sessions.get(session_id)
            return page(session.log, since, count, max_bytes, closed=closed) if session is not None else []
        self._peeks += 1
        turn = self._peeks if self.entity.is_partitioned and self._laws.peek_one_partition else None
        return page(self.log, since, count, max_bytes, turn=turn, closed=closed)

    def receive_deferred(
        self, numbers: Iterable[int], *, settled: bool, session_id: str | None = None
    ) -> list[tuple[Message, Lock | None]]:
        """Deferred messages by number, all or none: locked, or deleted when `settled`.

        Raises BrokerError message-not-found if one is not there, not deferred, locked, or of another session.
        """
        sessions = None if session_id is None else self.sessions
        session = sessions.require_held(session_id or "") if sessions is not None else None
        chosen = [self._deferred(number, session_id) for number in dict.fromkeys(numbers)]
        self.entity.touch()
        if settled:
            for message in chosen:
                self.remove(message)
            return [(message, None) for message in chosen]
        return [(message, self.locks.issue(message, self.entity.lock_seconds, session)) for message in chosen]

    def cancel_scheduled(self, numbers: Iterable[int]) -> None:
        """Delete scheduled messages, all or none. Raises BrokerError message-not-found."""
        for message in self.scheduled(numbers):
            self.remove(message)

    def scheduled(self, numbers: Iterable[int]) -> list[Message]:
        """The scheduled messages with these numbers, or BrokerError message-not-found."""
        chosen = []
        for number in dict.fromkeys(numbers):
            self._check_open(number)
            message = self.log.get(number)
            if message is None or message.state is not MessageStateCode.SCHEDULED:
                raise BrokerError(errors.MESSAGE_NOT_FOUND, f"There is no scheduled message with the number {number}.")
            chosen.append(message)
        return chosen

    # -- time

    def expire_due(self) -> None:
        """Drop or dead-letter waiting messages whose time is over; done when somebody receives, as the service does."""
        now = self.clock.now()
        while self._expiries and self._expiries[0][0] <= now:
            message = self.log.get(heappop(self._expiries)[1])
            if message is not None and _is_due(message, now):
                self.entity.expired(self, message)

    def close(self) -> None:
        """The entity is gone: no more timers, and nothing of it takes room in its topic."""
        self.locks.clear()
        self.entity.quota.used_bytes -= sum(len(message.payload) for message in self.log)
        self.log = MessageLog()
        for timer in self._activations.values():
            timer.cancel()
        for session in self.sessions or ():
            if session.timer is not None:
                session.timer.cancel()

    # -- partitions that are away

    def _check_open(self, sequence_number: int) -> None:
        check_open(partition_of(sequence_number), self.entity.closed_partitions)

    def check_session(self, session_id: str) -> None:
        """BrokerError when the partition of a session is away."""
        check_open(self.entity.numbering.of_key(session_id), self.entity.closed_partitions)

    def resume(self) -> None:
        """Serve what waits: partitions have come back."""
        self.handout.go_on()
        if self.sessions is not None:
            for session in list(self.sessions):
                self.handout.go_on(session)
            self.sessions.notice_all()
            self.sessions.match()

    # -- inside

    def session_of(self, message: Message) -> MessageSession | None:
        if self.sessions is None or message.head.session_id is None:
            return None
        return self.sessions.ensure(message.head.session_id)

    def check_lock(self, token: uuid.UUID) -> Lock:
        """The live lock behind a token. BrokerError message-lock-lost, or when its partition is away."""
        lock = self.locks.require(token)
        self._check_open(lock.message.sequence_number)
        return lock

    def _unlock(self, token: uuid.UUID) -> Message:
        lock = self.check_lock(token)
        self.locks.end(lock)
        self.entity.touch()
        return lock.message

    def _requeue(self, message: Message) -> None:
        """A message that was locked stands in its old place again (a deferred one stays deferred)."""
        if message.state is not MessageStateCode.ACTIVE:
            return
        self.handout.line_up(message, self.session_of(message))
        if message.expires_at is not None and message.expires_at <= self.clock.now():
            heappush(self._expiries, (message.expires_at, message.sequence_number))

    def _back(self, message: Message) -> None:
        self._requeue(message)
        if message.state is MessageStateCode.ACTIVE:
            self.handout.notice(self.session_of(message))

    def _count_failure(self, message: Message) -> bool:
        """Count it; False if that was the last allowed attempt and the message is dead-lettered. Dead letters keep the
        count with which they died, as a live test of the Go client shows."""
        if self.place != MAIN:
            return True
        message.delivery_count += 1
        if message.delivery_count >= self.entity.max_delivery_count and self._laws.last_delivery_dead_letters:
            self.entity.to_dead_letters(
                self,
                message,
                "MaxDeliveryCountExceeded",
                f"Message could not be consumed after {message.delivery_count} delivery attempts.",
            )
            return False
        self.entity.namespace.journal.put_message(self.entity, self.place, message)
        return True

    def _lock_expired(self, lock: Lock) -> None:
        if not self._laws.expired_lock_counts or self._count_failure(lock.message):
            self._back(lock.message)

    def _session_lost(self, session: MessageSession, holder: DeliveryTarget) -> None:
        """The session's lock ran out. Its messages are free at once; the holder is told a little later.

        A receiver that waits as long as the lock lasts ends by itself in that time, as it does at the service.
        """
        self._end_session(session, counted=self._laws.lost_session_counts)
        text = f"The lock of the session '{session.id}' has expired."
        self.clock.call_at(
            self.clock.now() + self._laws.session_detach_seconds, lambda: holder.detach(errors.SESSION_LOCK_LOST, text)
        )

    def _end_session(self, session: MessageSession, *, counted: bool) -> None:
        """Take the session from its holder. All its messages stand in line again before anybody else is served."""
        if self.sessions is None:
            return
        held = [lock.message for lock in list(session.locks.values()) if self.locks.end(lock)]
        self.sessions.vacate(session)
        for message in held:
            if not counted or self._count_failure(message):
                self._requeue(message)
        self.sessions.freed(session)

    def _deferred(self, number: int, session_id: str | None) -> Message:
        self._check_open(number)
        message = self.log.get(number)
        session = None if message is None else self.session_of(message)
        named = None if self.sessions is None or session_id is None else self.sessions.get(session_id)
        if message is None or message.state is not MessageStateCode.DEFERRED or message.locked or session is not named:
            raise BrokerError(
                errors.MESSAGE_NOT_FOUND, f"Failed to find a deferred message with the sequence number {number}."
            )
        return message

    def _arrange(self, message: Message) -> None:
        scheduled_at = message.head.scheduled_at or self.clock.now()
        self._activations[message.sequence_number] = self.clock.call_at(scheduled_at, lambda: self._activate(message))

    def _activate(self, message: Message) -> None:
        """A scheduled message's time has come: it enters the entity again, with a new number."""
        self.take_out(message)
        message.state = MessageStateCode.ACTIVE
        self.entity.enqueue(message)


def _is_due(message: Message, now: float) -> bool:
    return (
        message.state is MessageStateCode.ACTIVE
        and not message.locked
        and message.expires_at is not None
        and message.expires_at <= now
    )
