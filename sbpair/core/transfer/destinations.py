"""What a destination will do with messages, judged before anything is sent: the rules of a dry run.

They are those of the pump (`core.transfer.delivery`): a destination that is missing, disabled, full or forbidden keeps
its messages in the backlog; what no retry helps - a message without a session for a queue that requires sessions, or
one larger than the link takes - is left too, or dead-lettered on request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sbpair.core.entities import QueueFacts, TopicFacts, capacity_bytes
from sbpair.core.errors import (
    ArgumentRefusedError,
    Category,
    EntityDisabledError,
    MessageTooLargeError,
    QuotaExceededError,
    ServiceError,
)
from sbpair.service import EntityStatus, session_key

_CLOSED_TO_SENDERS = frozenset({EntityStatus.DISABLED, EntityStatus.SEND_DISABLED})


@dataclass(frozen=True, slots=True)
class DestinationSeen:
    """What was learnt about one destination. `limit_bytes` is None where no link could be opened (`error` says why)."""

    path: str
    limit_bytes: int | None = None
    error: ServiceError | None = None
    queue: QueueFacts | None = None
    topic: TopicFacts | None = None
    asked: bool = False
    """Whether the administration told about it; without that, full and session-only are not known."""


@dataclass(slots=True)
class Wanted:
    """The messages that are to go to one destination."""

    messages: int = 0
    size_bytes: int = 0
    without_session: int = 0
    large: list[int] = field(default_factory=list)
    """Sizes of those that a link may refuse."""
    sessions: dict[str, list[int]] = field(default_factory=dict)
    """Of sessions with such a message: the sizes from that message on, in order."""

    def add(self, size_bytes: int, session_id: str | None) -> None:
        self.messages += 1
        self.size_bytes += size_bytes
        self.without_session += session_id is None
        if size_bytes > LARGE_BYTES:
            self.large.append(size_bytes)
        lane = None if session_id is None else session_key(session_id)
        if lane is not None and (size_bytes > LARGE_BYTES or lane in self.sessions):
            self.sessions.setdefault(lane, []).append(size_bytes)

    def behind(self, limit_bytes: int) -> int:
        """Messages of size within the limit that follow one above it in their session."""
        number = 0
        for sizes in self.sessions.values():
            first = next((place for place, size in enumerate(sizes) if size > limit_bytes), len(sizes))
            number += sum(size <= limit_bytes for size in sizes[first:])
        return number


LARGE_BYTES = 128 * 1024
"""Every tier's links take messages up to this size and more."""


@dataclass(frozen=True, slots=True)
class Stays:
    """All messages for it stay in the backlog. `code`: the error a sender will get."""

    code: str


@dataclass(frozen=True, slots=True)
class Refused:
    """This many of them are refused as they are. `reason` is the dead-letter reason."""

    reason: str
    category: Category
    messages: int
    behind: int = 0
    """Others that follow them in their sessions, and stay where the refused ones stay."""


REFUSED_BY = "refused by "
WAITS_IN_SESSION = "behind a message of its session that was not sent"


def refused_by(path: str, category: Category) -> str:
    """The reason for which messages are left that this destination refuses."""
    kind = MessageTooLargeError if category is Category.TOO_LARGE else ArgumentRefusedError
    return f"{REFUSED_BY}{path} ({kind.code})"


def expected(seen: DestinationSeen, wanted: Wanted) -> Iterator[Stays | Refused]:
    """What will not go there; nothing if all of it will."""
    if seen.error is not None:
        yield Stays(seen.error.code)
    elif _closed(seen):
        yield Stays(EntityDisabledError.code)
    elif _full(seen):
        yield Stays(QuotaExceededError.code)
    else:
        yield from _refused(seen, wanted)


def missing(seen: DestinationSeen) -> bool:
    return seen.error is not None and seen.error.category is Category.NOT_FOUND


def _closed(seen: DestinationSeen) -> bool:
    status = seen.queue.settings.status if seen.queue else seen.topic.status if seen.topic else None
    return status in _CLOSED_TO_SENDERS


def _full(seen: DestinationSeen) -> bool:
    if seen.queue is not None:
        return seen.queue.size_in_bytes >= capacity_bytes(seen.queue.settings)
    return seen.topic is not None and seen.topic.size_in_bytes >= capacity_bytes(seen.topic)


def _refused(seen: DestinationSeen, wanted: Wanted) -> Iterator[Refused]:
    if seen.limit_bytes is not None and (too_large := _above(wanted.large, seen.limit_bytes)):
        yield Refused("MessageTooLarge", Category.TOO_LARGE, too_large, wanted.behind(seen.limit_bytes))
    if seen.queue is not None and seen.queue.settings.requires_session and wanted.without_session:
        yield Refused("ArgumentRefused", Category.ARGUMENT, wanted.without_session)


def _above(sizes: Sequence[int], limit_bytes: int) -> int:
    return sum(size > limit_bytes for size in sizes)
