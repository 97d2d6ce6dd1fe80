"""What all entities share: a description, dates, links, status; and what queues and subscriptions share on top:
places for messages, dead-lettering, forwarding, counts.
"""

from typing import TYPE_CHECKING, Protocol

from sbpair.emulator.broker.forwarding import Transfers
from sbpair.emulator.broker.mailbox import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Mailbox
from sbpair.emulator.broker.messages import Message, MessageStateCode
from sbpair.emulator.broker.partitions import Numbering
from sbpair.emulator.entities import QueueDescription, StateCounts, SubscriptionDescription, TopicDescription
from sbpair.emulator.laws import Laws
from sbpair.engine import errors
from sbpair.engine.clock import Timer
from sbpair.engine.errors import BrokerError
from sbpair.service import EntityStatus

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

# How many bytes an entity holds and may hold, kept by adding and subtracting.


class Quota:
    """Bytes of all messages of an entity with its sub-queues (a topic: of all its subscriptions)."""

    def __init__(self, limit_megabytes: int, laws: Laws) -> None:
        self._refuses = laws.full_entity_refuses
        self.limit_bytes = limit_megabytes * 1024 * 1024
        self.used_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.limit_bytes or not self._refuses

    def check(self, size_bytes: int, path: str) -> None:
        """Refuse what does not fit, in the words of the service."""
        if not self.has_room(size_bytes):
            raise BrokerError(
                errors.QUOTA,
                f"The maximum entity size has been reached or exceeded for '{path}'. Size of entity in bytes: "
                f"{self.used_bytes}, Max entity size in bytes: {self.limit_bytes}.",
            )


# Auto-delete on idle: an entity nobody has used for long enough deletes itself.
#
# Idle means no sends, receives, renewals or updates (the service's message-expiration page); an attached link counts as
# use, since a receiver that waits is receiving.


class IdleWatch:
    """Waits for one entity; one timer, moved on when it strikes too early, so that use costs nothing."""

    def __init__(self, entity: "Entity") -> None:
        self._entity = entity
        self._timer: Timer | None = None
        self._seconds: float | None = None

    def start(self, seconds: float | None) -> None:
        """Watch with this idle time from now on; None: never delete."""
        self.stop()
        self._seconds = seconds
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._seconds is not None:
            clock = self._entity.namespace.clock
            due = self._entity.accessed_at + self._seconds
            # With links attached the entity is in use although nothing was noted.
            soonest = clock.now() + self._seconds if self._entity.links else due
            self._timer = clock.call_at(max(due, soonest), self._strike)

    def _strike(self) -> None:
        entity, seconds = self._entity, self._seconds
        self._timer = None
        if seconds is None:
            return
        if entity.links or entity.namespace.clock.now() < entity.accessed_at + seconds:
            self._arm()
        else:
            entity.namespace.expire_idle(entity)


_SUFFIXES = {MAIN: "", DEAD_LETTER: "/$deadletterqueue", TRANSFER_DEAD_LETTER: "/$Transfer/$deadletterqueue"}


class AttachedLink(Protocol):
    """A link of a client that is attached to an entity."""

    def detach(self, condition: str, description: str) -> None:
        """Close it from the broker's side."""


class Entity:
    """A queue, topic or subscription: dates (epoch seconds), attached links, auto-delete on idle.

    `used_at` is when somebody last sent, received or asked, None if nobody has; `accessed_at` also counts updates.
    """

    description: QueueDescription | TopicDescription | SubscriptionDescription
    numbering: Numbering

    def __init__(self, namespace: "Namespace", path: str) -> None:
        self.namespace = namespace
        self.path = path
        self.created_at = self.updated_at = self.accessed_at = namespace.clock.now()
        self.used_at: float | None = None
        self.links: dict[AttachedLink, None] = {}
        self._idle = IdleWatch(self)

    @property
    def top_path(self) -> str:
        """The queue's or topic's path, also of a subscription: what transactions know as an entity."""
        return self.path

    @property
    def is_partitioned(self) -> bool:
        return self.numbering.partitioned

    @property
    def closed_partitions(self) -> frozenset[int]:
        """Numbers of partitions that are away."""
        return self.namespace.faults.closed_partitions(self.path) if self.is_partitioned else frozenset()

    def touch(self) -> None:
        """The entity has been used; auto-delete on idle counts from here."""
        self.accessed_at = self.used_at = self.namespace.clock.now()

    def changed(self) -> None:
        """The entity has another description; auto-delete on idle counts from here, but nobody has used it."""
        self.updated_at = self.accessed_at = self.namespace.clock.now()

    def watch_idle(self) -> None:
        """Start (again) to wait for the entity to be idle long enough."""
        self._idle.start(self.description.auto_delete_on_idle_seconds)

    def detach_links(self, condition: str, description: str) -> None:
        """Close all links from our side."""
        for link in list(self.links):
            link.detach(condition, description)
        self.links.clear()

    def delete(self) -> None:
        """The entity is gone: close its links, stop its timers. Its owner has forgotten it already."""
        self._idle.stop()
        self.detach_links(
            errors.RESOURCE_DELETED, f"The messaging entity '{self.path}' has been deleted or does not exist."
        )


class MessageEntity(Entity):
    """An entity one receives from: a queue or a subscription."""

    description: QueueDescription | SubscriptionDescription

    def __init__(
        self, namespace: "Namespace", path: str, *, sessions: bool, quota: Quota, numbering: Numbering
    ) -> None:
        super().__init__(namespace, path)
        self.quota = quota
        self.numbering = numbering
        self.main = Mailbox(self, MAIN, sessions=sessions)
        self.dead_letters = Mailbox(self, DEAD_LETTER)
        self.transfer_dead_letters = Mailbox(self, TRANSFER_DEAD_LETTER)
        self.transfers = Transfers(self)

    # -- settings, as the mailboxes ask for them

    @property
    def status(self) -> EntityStatus:
        return self.description.status

    @property
    def may_receive(self) -> bool:
        return self.status.may_receive

    @property
    def lock_seconds(self) -> float:
        return self.description.lock_duration_seconds

    @property
    def max_delivery_count(self) -> int:
        return self.description.max_delivery_count

    @property
    def requires_session(self) -> bool:
        return self.description.requires_session

    @property
    def mailboxes(self) -> tuple[Mailbox, Mailbox, Mailbox]:
        return self.main, self.dead_letters, self.transfer_dead_letters

    def path_of(self, place: str) -> str:
        return self.path + _SUFFIXES[place]

    def mailbox(self, place: str) -> Mailbox:
        return next(box for box in self.mailboxes if box.place == place)

    def counts(self) -> StateCounts:
        """Numbers of messages by state, and the bytes of all of them."""
        return StateCounts(
            active=self.main.active_count,
            dead_letter=self.dead_letters.active_count,
            scheduled=self.main.scheduled_count,
            transfer=len(self.transfers),
            transfer_dead_letter=self.transfer_dead_letters.active_count,
            size_in_bytes=self.size_in_bytes,
        )

    @property
    def size_in_bytes(self) -> int:
        return self.quota.used_bytes

    # -- the way of a message through the entity

    def reserve(self, message: Message) -> int:
        """The next sequence number for a message."""
        return self.numbering.next(message, self.closed_partitions)

    def arrive(self, message: Message, reserved: int = 0, prepared: object = None) -> None:
        """A message that has been accepted: scheduled if its time lies ahead, else ready. `reserved` is the number
        that its sender was told when it was scheduled."""
        now = self.namespace.clock.now()
        if message.head.scheduled_at is not None and message.head.scheduled_at > now:
            message.sequence_number = reserved or self.reserve(message)
            message.enqueued_at = now
            message.state = MessageStateCode.SCHEDULED
            self.main.add(message)
        else:
            self.enqueue(message)

    def enqueue(self, message: Message) -> None:
        """Make a message ready here: number, time of arrival, time to live; or pass it on if the entity forwards."""
        message.sequence_number = self.reserve(message)
        message.enqueued_at = self.namespace.clock.now()
        message.expires_at = self._expiry(message)
        if self.description.forward_to:
            self.namespace.journal.put_numbers(self)
            self.transfers.send(message, self.description.forward_to)
        else:
            self.main.add(message)

    def _expiry(self, message: Message) -> float | None:
        """The entity's default caps the sender's own time to live."""
        own = message.head.ttl_seconds
        caps = own is None or self.namespace.laws.entity_ttl_is_the_longest
        wishes = (own, self.description.default_message_time_to_live_seconds if caps else None)
        known = [seconds for seconds in wishes if seconds is not None]
        return message.enqueued_at + min(known) if known else None

    def expired(self, box: Mailbox, message: Message) -> None:
        """A message's time to live is over."""
        if box.place == MAIN and self.description.dead_lettering_on_message_expiration:
            self.to_dead_letters(box, message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            box.remove(message)

    def to_dead_letters(self, box: Mailbox, message: Message, reason: object, text: object) -> None:
        """Move a message out of `box` to the dead letters."""
        box.take_out(message)
        self.dead_letter(message, reason, text)

    def dead_letter(self, message: Message, reason: object, text: object, *, place: str = DEAD_LETTER) -> None:
        """Put a message that is nowhere now into the dead letters (or on, if dead letters are forwarded).

        Reason and text become application properties with the AMQP type they have; None for one that is not given.
        """
        given = {"DeadLetterReason": reason, "DeadLetterErrorDescription": text}
        message.put_application_properties({name: value for name, value in given.items() if value is not None})
        message.dead_letter_source = self.path.lower()
        message.state = MessageStateCode.ACTIVE
        if self.namespace.laws.dead_letters_never_expire:
            message.expires_at = None
        target = self.description.forward_dead_lettered_messages_to
        if target and place == DEAD_LETTER:
            self.transfers.send(message, target)
        else:
            self.mailbox(place).add(message)

    def wake(self) -> None:
        """Settings have changed: serve who may be served now."""
        for box in self.mailboxes:
            box.handout.go_on()
        if self.description.forward_to:
            self.transfers.pull(self.main)

    def apply_status(self, old: EntityStatus) -> None:
        """A new status acts at once: links that may no longer work are closed."""
        if self.status is not old and self.status is not EntityStatus.ACTIVE:
            self.detach_links(
                errors.DISABLED, f"Messaging entity '{self.path}' is currently disabled ({self.status.value})."
            )

    def delete(self) -> None:
        super().delete()
        self.transfers.close()
        for box in self.mailboxes:
            box.close()
