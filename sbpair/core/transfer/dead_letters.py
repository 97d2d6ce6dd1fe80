"""The dead letters of an entity by their reasons."""

from collections import Counter
from dataclasses import dataclass, field

from sbpair.core.message import Received
from sbpair.core.serialization import Time, column, iso_time
from sbpair.core.summary import MessageSummary
from sbpair.core.transfer.verdict import MOST_NAMES, OTHERS, fault_of


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Dead letters with one reason."""

    reason: str = field(metadata=column("Reason"))
    messages: int = field(metadata=column("Messages", counts=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    newest: Time | None = field(metadata=column("Newest"))
    description: str | None = field(metadata=column("Description"))
    """Of the oldest message."""


@dataclass(frozen=True, slots=True)
class DeadLetterReasons:
    """All dead letters that match, the most frequent reason first, as `dlq list -o json` prints them."""

    namespace: str
    entity: str
    messages: int
    reasons: tuple[DeadLetterReason, ...]


class ReasonCounter:
    """Counts dead letters, which are added oldest first, by reason; beyond a bound of reasons under a common name."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._times: dict[str, tuple[float, float]] = {}
        self._descriptions: dict[str, str | None] = {}

    def add(self, received: Received, summary: MessageSummary) -> None:
        """Count this message."""
        reason = fault_of(summary)
        if reason not in self._numbers and len(self._numbers) >= MOST_NAMES:
            reason = OTHERS
        self._numbers[reason] += 1
        self._descriptions.setdefault(reason, summary.dead_letter_description)
        at = received.enqueued_at
        if at is not None:
            first, last = self._times.get(reason, (at, at))
            self._times[reason] = min(first, at), max(last, at)

    def reasons(self) -> tuple[DeadLetterReason, ...]:
        """All of them, the most frequent one first."""
        found = []
        for reason in sorted(self._numbers, key=lambda reason: (-self._numbers[reason], reason)):
            first, last = self._times.get(reason, (None, None))
            description = self._descriptions[reason]
            found.append(DeadLetterReason(reason, self._numbers[reason], iso_time(first), iso_time(last), description))
        return tuple(found)
