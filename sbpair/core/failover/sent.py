"""The result of a send: where the messages went, and how many nobody took."""

from dataclasses import dataclass, field

from sbpair.core.serialization import HIDDEN, column


@dataclass(frozen=True, slots=True)
class SentPlace:
    """Messages that went to one place. `where`: primary, backlog, namespace or failed."""

    where: str = field(metadata=column("Where", colours=True))
    queue: str = field(metadata=column("Backlog queue"))
    messages: int = field(metadata=column("Messages", counts=True))


@dataclass(frozen=True, slots=True)
class SentMessages:
    """What became of the messages that were sent."""

    entity: str
    accepted: int
    diverted: int
    """Of the accepted ones, those in a backlog queue."""
    uncertain: int
    """Of the accepted ones, those that may be stored twice."""
    failed: int
    places: tuple[SentPlace, ...] = field(default=(), metadata=HIDDEN)

    def summary(self, namespace: str = "") -> str:
        """`497 accepted (10 diverted), 0 failed.` `namespace`: the only one that was sent to."""
        if namespace:
            return f"{self.accepted:,} accepted by {self.entity} on {namespace}, {self.failed:,} failed."
        return f"{self.accepted:,} accepted ({self.diverted:,} diverted), {self.failed:,} failed."

    def notes(self) -> list[str]:
        if not self.uncertain:
            return []
        return [f"{self.uncertain} may be stored twice, with the same MessageId: an answer was lost."]
