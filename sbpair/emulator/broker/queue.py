"""A queue: messages come in here and are received here (or pass through, if it forwards)."""

from sbpair.emulator.broker.entity import EntityNamespace, MessageEntity, Quota
from sbpair.emulator.broker.intake import Intake
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.partitions import Numbering
from sbpair.emulator.entities import QueueDescription


class Queue(MessageEntity):
    """One queue. Public for administration: `path`, `description`, dates, `counts()`."""

    description: QueueDescription

    def __init__(self, namespace: EntityNamespace, path: str, description: QueueDescription) -> None:
        self.description = description
        numbering = Numbering(
            partitioned=description.enable_partitioning, by_message_id=description.requires_duplicate_detection
        )
        quota = Quota(description.max_size_in_megabytes)
        super().__init__(namespace, path, sessions=description.requires_session, quota=quota, numbering=numbering)
        self.intake = Intake(self, description, quota)
        self.watch_idle()

    def update(self, description: QueueDescription) -> None:
        """Replace the description; it acts at once."""
        old, self.description = self.description, description
        self.updated_at = self.namespace.clock.now()
        self.touch()
        self.intake.describe(description)
        self.apply_status(old.status)
        self.watch_idle()
        self.wake()

    def send(self, payload: bytes, message_format: int = 0) -> None:
        """Accept one transfer, a message or a batch, wholly or (BrokerError) not at all."""
        self.accept(self.intake.read(payload, message_format))

    def accept(self, messages: list[Message]) -> None:
        """Accept messages, all or none (BrokerError). They belong to the queue afterwards."""
        self.intake.check(messages)
        self.take(messages)

    def take(self, messages: list[Message]) -> None:
        """Take messages in that `intake.check` let through, at the commit of a transaction for one."""
        for message in self.intake.admit(messages):
            self.arrive(message)

    def schedule(self, messages: list[Message]) -> list[int]:
        """Accept messages that carry a scheduled time; their sequence numbers, 0 for a dropped ping or duplicate."""
        kept = self.intake.filter(messages)
        for message in kept:
            self.arrive(message)
        return [message.sequence_number for message in messages]

    def cancel_scheduled(self, numbers: list[int]) -> None:
        """Delete scheduled messages by number, all or none (BrokerError message-not-found)."""
        self.main.cancel_scheduled(numbers)
