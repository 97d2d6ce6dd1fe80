"""What is to become of one received message: sent to the primary, settled as it is, or left alone; and what its
destination will do with it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from sbpair.core.entities import QueueFacts, TopicFacts, capacity_bytes
from sbpair.core.errors import (
    ArgumentRefusedError,
    Category,
    EntityDisabledError,
    MessageError,
    MessageTooLargeError,
    QuotaExceededError,
    ServiceError,
)
from sbpair.core.message import PING_CONTENT_TYPE, Disposition, Received
from sbpair.core.names import Names, is_dead_letter_path
from sbpair.core.rewrite import TtlMode, as_usual, for_primary, is_ping
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.report import FILTERED_OUT
from sbpair.core.transfer.state import Finish, Forward, Leave, Verdict
from sbpair.service import EntityStatus, session_key

NOT_CONFIGURED = "not among the pair's entities: "
"""Beginning of the reason for which a message is left whose destination is not one of those allowed."""
OTHERS = "(others)"
MOST_NAME_CHARACTERS = 260
"""Of a dead-letter reason that a stranger has set, as long as the longest path of an entity."""
MOST_NAMES = 100
"""This many different names of somebody else's choice are counted one by one; the rest together."""
NO_REASON = "(no reason)"
UNREADABLE_PATH = "(unknown)"
_PING_BYTES = PING_CONTENT_TYPE.encode()
_is_dead_letter_path = lru_cache(maxsize=1024)(is_dead_letter_path)
"""Asked for each message, of few queues."""


class Judge(Protocol):
    """Says what is to become of a message."""

    def __call__(self, received: Received) -> Verdict: ...


class DeadLetterCauses:
    """Why messages had been dead-lettered, in no more names of strangers' choice than `MOST_NAMES`."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def name(self, summary: MessageSummary) -> str:
        """The name under which a message is counted."""
        reason = fault_of(summary)
        if len(self._names) < MOST_NAMES:
            self._names.add(reason)
        return reason if reason in self._names else OTHERS


def fault_of(summary: MessageSummary) -> str:
    """The reason for which a message was dead-lettered, no longer than a name may be."""
    return (summary.dead_letter_reason or NO_REASON)[:MOST_NAME_CHARACTERS]


class Classifier:
    """Judges messages by the options of one run.

    Args:
        now: the present moment in UTC epoch seconds.
        verbatim: keep the exact bytes (an archive) instead of restoring the message.
        destination: send everything there instead of to where it was to go; with `verbatim`, where an archive says that
            messages without a destination of their own go.
        wanted: only these; the others are left.
        only: the destinations that may be sent to, None for all; messages for others are left, and the reason names
            their destination.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        ttl: TtlMode = TtlMode.FULL,
        verbatim: bool = False,
        destination: str | None = None,
        wanted: MessageFilter = EVERYTHING,
        only: Collection[str] | None = None,
    ) -> None:
        self._now = now
        self._ttl = ttl
        self._verbatim = verbatim
        self._destination = destination
        self._wanted = None if wanted == EVERYTHING else wanted
        self._only = None if only is None else Names(only)
        self._refused: dict[str, str] = {}
        self._faults = DeadLetterCauses()

    def __call__(self, received: Received) -> Verdict:
        origin = received.origin
        from_dead_letter = _is_dead_letter_path(received.source if origin is None else origin.queue)
        looked_up = describe(received.payload) if self._wanted or self._verbatim or from_dead_letter else None
        if self._wanted and looked_up is not None and not self._wanted.wants(received, looked_up):
            return Leave(FILTERED_OUT)
        if self._verbatim and looked_up is not None:
            return Forward(received.payload, looked_up.destination or self._destination or UNREADABLE_PATH)
        try:
            verdict = self._for_primary(received, from_dead_letter)
        except MessageError as error:
            return Finish(Disposition.DEAD_LETTER, "dead-lettered", error.reason, error.description)
        if from_dead_letter and looked_up is not None and isinstance(verdict, Forward):
            return replace(verdict, fault=self._faults.name(looked_up))
        return verdict

    def _for_primary(self, received: Received, from_dead_letter: bool) -> Verdict:
        # Cheap test first: to look into every message twice would cost more than sending it.
        payload, head = received.payload, received.head
        within = (0, len(payload)) if head is None else head[1:3]
        if payload.find(_PING_BYTES, *within) >= 0 and is_ping(payload):
            return Finish(Disposition.COMPLETE, "ping")
        restored = None if head is None else as_usual(payload, head, from_dead_letter=from_dead_letter)
        if restored is None:
            restored = for_primary(
                payload,
                now=self._now(),
                enqueued_at=received.enqueued_at,
                ttl=self._ttl,
                from_dead_letter=from_dead_letter,
                decoded=received.decoded,
            )
        if self._only is not None and restored.destination not in self._only:
            return Leave(NOT_CONFIGURED + self._one_of_few(restored.destination))
        return Forward(
            restored.payload, self._destination or restored.destination, restored.session_id, restored.partition_key
        )

    def _one_of_few(self, destination: str) -> str:
        """The destination in its first spelling, as long as there are not too many of them."""
        name = destination.lower()
        if name not in self._refused and len(self._refused) >= MOST_NAMES:
            return OTHERS
        return self._refused.setdefault(name, destination)


# What a destination will do with messages, judged before anything is sent: the rules of a dry run.
#
# They are those of the pump (`core.transfer.delivery`): a destination that is missing, disabled, full or forbidden
# keeps its messages in the backlog; what no retry helps - a message without a session for a queue that requires
# sessions, or one larger than the link takes - is left too, or dead-lettered on request.

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


def taken(seen: DestinationSeen, wanted: Wanted) -> tuple[int, Mapping[str, int]]:
    """How many of these messages it would take, and how many it would not by the reason."""
    left, refused = wanted.messages, Counter[str]()
    for trouble in expected(seen, wanted):
        if isinstance(trouble, Stays):
            reason, number = trouble.code, left
        else:
            reason, number = trouble.reason, min(trouble.messages, left)
        refused[reason] += number
        left -= number
    return left, dict(+refused)


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
