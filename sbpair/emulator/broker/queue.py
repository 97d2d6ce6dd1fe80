"""A queue: messages come in here and are received here (or pass through, if it forwards)."""

from typing import TYPE_CHECKING

from sbpair.emulator.broker.entity import MessageEntity, Quota
from sbpair.emulator.broker.intake import Accepting, Intake
from sbpair.emulator.broker.partitions import Numbering
from sbpair.emulator.entities import QueueDescription

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace


class Queue(MessageEntity, Accepting):
    """One queue. Public for administration: `path`, `description`, dates, `counts()`."""

    description: QueueDescription

    def __init__(self, namespace: "Namespace", path: str, description: QueueDescription) -> None:
        self.description = description
        numbering = Numbering(
            partitions=namespace.partition_count if description.enable_partitioning else 1,
            laws=namespace.laws,
            by_message_id=description.requires_duplicate_detection,
        )
        quota = Quota(description.max_size_in_megabytes, namespace.laws)
        super().__init__(namespace, path, sessions=description.requires_session, quota=quota, numbering=numbering)
        self.intake = Intake(self, description, quota)
        self.watch_idle()

    def update(self, description: QueueDescription) -> None:
        """Replace the description; it acts at once."""
        old, self.description = self.description, description
        self.changed()
        self.intake.describe(description)
        self.apply_status(old.status)
        self.watch_idle()
        self.wake()

    def cancel_scheduled(self, numbers: list[int]) -> None:
        self.main.cancel_scheduled(numbers)

    def check_scheduled(self, numbers: list[int]) -> None:
        self.main.scheduled(numbers)
