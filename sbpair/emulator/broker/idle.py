"""Auto-delete on idle: an entity nobody has used for long enough deletes itself.

Idle means no sends, receives, renewals or updates (the service's message-expiration page); an attached link counts as
use, since a receiver that waits is receiving.
"""

from typing import TYPE_CHECKING

from sbpair.emulator.clock import Timer

if TYPE_CHECKING:
    from sbpair.emulator.broker.entity import Entity


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
