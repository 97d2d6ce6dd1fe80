"""How many bytes an entity holds and may hold, kept by adding and subtracting."""

from sbpair.emulator import errors
from sbpair.emulator.errors import BrokerError


class Quota:
    """Bytes of all messages of an entity with its sub-queues (a topic: of all its subscriptions)."""

    def __init__(self, limit_megabytes: int) -> None:
        self.limit_bytes = limit_megabytes * 1024 * 1024
        self.used_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.limit_bytes

    def check(self, size_bytes: int, path: str) -> None:
        """Refuse what does not fit, in the words of the service."""
        if not self.has_room(size_bytes):
            raise BrokerError(
                errors.QUOTA,
                f"The maximum entity size has been reached or exceeded for '{path}'. Size of entity in bytes: "
                f"{self.used_bytes}, Max entity size in bytes: {self.limit_bytes}.",
            )
