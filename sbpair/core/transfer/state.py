"""The values of the pump's machine: messages in its hands, its bounds, what it is given and what it wants done."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sbpair.core.errors import Category, UsageError
from sbpair.core.message import Disposition, Received, value_class
from sbpair.service import session_key

# Lock expiries on the local clock, right even when the local clock is wrong.

DEFAULT_LOCK_SECONDS = 60.0
"""Lock duration of the documented backlog queues ("Paired Namespaces: Implementation Details and Cost")."""
LEAST_LOCK_SECONDS = 5.0
"""The shortest lock duration that the service lets a queue have."""


class LockClock:
    """Turns `locked until`, told in the broker's time, into a deadline on the local monotonic clock.

    A message that has just been handed out has its whole lock ahead of it. The freshest one seen therefore shows how
    far the two wall clocks are apart, which minutes of skew on a laptop or container would otherwise turn into
    "already expired" (never sent) or "still valid" (sent too late).

    Where nobody may ask for the queue's lock duration, the freshest lock is also all that is known of it: it counts as
    no longer than it says. A wall clock that is ahead makes it look shorter, and it is renewed more often; one that is
    behind makes it look longer, up to the documented duration.

    Args:
        lock_seconds: the queue's lock duration; None: not known.
    """

    def __init__(self, lock_seconds: float | None = None) -> None:
        self.lock_seconds = DEFAULT_LOCK_SECONDS if lock_seconds is None else lock_seconds
        self._known = lock_seconds is not None
        self._most_left: float | None = None

    def deadline(self, locked_until: float | None, *, now_utc: float, now: float) -> float:
        """Monotonic time at which the lock runs out. A lock without a stated end lasts its whole duration from now."""
        if locked_until is None:
            return now + self.lock_seconds
        left = locked_until - now_utc
        if self._most_left is None or left > self._most_left:
            self._most_left = left
            if not self._known and left > 0:
                self.lock_seconds = min(DEFAULT_LOCK_SECONDS, max(LEAST_LOCK_SECONDS, left))
        return now + min(self.lock_seconds, left + self.lock_seconds - self._most_left)


MAX_BATCH_BYTES = 1024 * 1024
"""Limit of a batch where single messages may be larger (Premium)."""
MAX_BATCH_MESSAGES = 1000
LaneKey = tuple[str, str]
"""Destination in lower case, the session's `service.session_key`: what has an order."""
Key = tuple[str, int, str | None, int]
"""Source, sequence number, message id, enqueued time in ms (a queue deleted and made again counts from 1 again)."""


def key_of(received: Received) -> Key:
    """What tells one stored message from every other, also across deliveries."""
    if (origin := received.origin) is not None:
        return origin.queue, origin.sequence_number, origin.message_id, origin.enqueued_at_ms
    enqueued = -1 if received.enqueued_at is None else round(received.enqueued_at * 1000)
    return received.source, received.sequence_number, received.message_id, enqueued


class Stage(Enum):
    WAITING = "waiting"
    SENDING = "sending"
    SETTLING = "settling"
    LEFT = "left"


@dataclass(slots=True, eq=False)
class Item:
    """One message in the pump's hands, with the newest receipt for it."""

    key: Key
    received: Received
    lock_until: float
    lock_seconds: float
    payload: bytes = b""
    destination: str = ""
    session_id: str | None = None
    lane: LaneKey | None = None
    """What it keeps its place in; None without a session."""
    partition_key: str | None = None
    fault: str | None = None
    """Why it had been dead-lettered before, if it was."""
    stage: Stage = Stage.WAITING
    left_because: str = ""
    size_bytes: int = 0
    attempts: int = 0
    """Sends that may have arrived, the last one included; what was refused for certain does not count."""
    renewing: bool = False
    alone: bool = False
    """To be sent in a transfer of its own."""
    completed: bool = False
    """It was completed together with its send, in one transaction."""
    counted: bool = False
    """Whether it counts towards the number of messages wanted."""
    releasing: bool = False
    comes_again: Callable[[], None] | None = None
    """Takes in the delivery that came before its release was confirmed."""

    @property
    def group(self) -> str | None:
        """What a partitioned entity wants to be the same all over a batch."""
        return self.session_id if self.session_id is not None else self.partition_key

    def margin(self) -> float:
        """How long before the lock's end it has to be renewed."""
        return min(15.0, self.lock_seconds / 3)


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that go out in one transfer."""

    destination: str
    items: tuple[Item, ...]


# What the machine (`core.transfer.machine`) is given and what it wants done.


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the pump. None means none."""

    in_flight_messages: int = 2000
    in_flight_bytes: int = 64 * 1024 * 1024
    batch_messages: int = MAX_BATCH_MESSAGES
    sends: int = 8
    """Batches on their way at the same time."""
    in_transactions: bool = False
    """Each batch is taken away where it lies in the transaction that sends it: of a partitioned entity it has one key,
    as a transaction works in one partition."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """Messages a second that the throttling credits left to others allow: in no second more than that."""
    total_messages: int | None = None
    patience_seconds: float | None = None
    """How long a destination may fail before its messages are left; None: for ever."""
    unreached_seconds: float = math.inf
    """The same, if that is less, for one that has not taken a message yet."""
    lock_wait_seconds: float | None = None
    """How long to wait behind messages that somebody else has locked and does not move; None: for ever."""
    shared: bool = True
    """Whether others may empty the same queues."""
    left_messages: int = 20_000
    """Messages kept in hand although nothing is done with them, so that they do not come round again."""
    no_use_waiting: frozenset[Category] = frozenset()
    """Errors after which a destination is abandoned at once, whatever the patience."""


_AT_LEAST_1 = ("concurrency", "processes", "in_flight_messages", "in_flight_bytes")
_ABOVE_0 = ("rate_per_second", "budget_per_second")


class Limited:
    """A request that checks those of its fields that are limits: with another one a run would not begin, or never end.

    Raises:
        UsageError: one lets nothing through.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in (*_AT_LEAST_1, *_ABOVE_0):
            value = getattr(self, name, None)
            if value is not None and not (value >= 1 if name in _AT_LEAST_1 else value > 0):
                raise UsageError(f"{name} is {'at least 1' if name in _AT_LEAST_1 else 'above 0'}, not {value}.")


@value_class
class Forward:
    """Send it to its destination."""

    payload: bytes
    destination: str
    session_id: str | None = None
    partition_key: str | None = None
    fault: str | None = None
    """Why it had been dead-lettered, if it was."""

    @property
    def lane(self) -> LaneKey | None:
        """What it keeps its place in; None without a session."""
        return None if self.session_id is None else (self.destination.lower(), session_key(self.session_id))


@dataclass(frozen=True, slots=True)
class Finish:
    """Settle it without sending: a ping, or something that never can be sent."""

    disposition: Disposition
    outcome: str
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """Keep hands off, but keep the lock until the end so that it does not come round again."""

    because: str


Verdict = Forward | Finish | Leave


def has_order(verdict: Verdict) -> bool:
    """Whether the message has a place in its session that it must keep."""
    return isinstance(verdict, Forward) and verdict.session_id is not None


@dataclass(frozen=True, slots=True)
class Measure:
    """Ask the link to the destination for its message size limit."""

    destination: str


@dataclass(frozen=True, slots=True)
class Send:
    batch: Batch


@value_class
class Settle:
    """Settle this receipt. `outcome` is the ledger's word for it, empty if it says nothing about the message."""

    item: Item
    received: Received
    disposition: Disposition
    outcome: str = ""
    reason: str = ""
    description: str = ""

    @property
    def completes_only(self) -> bool:
        """Whether it goes with others of its source in one answer."""
        return self.disposition is Disposition.COMPLETE

    @property
    def has_line(self) -> bool:
        """Whether the ledger has its line since it was sent, or needs none."""
        return self.outcome in ("", "forwarded")


@dataclass(frozen=True, slots=True)
class Renew:
    item: Item
    received: Received


@dataclass(frozen=True, slots=True)
class PollAgain:
    """A message of this source will be delivered again, even if the source seemed to be empty."""

    source: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Browse a page of this source from this number on; the answer goes to `Queues.sampled`."""

    source: str
    first: int


@dataclass(frozen=True, slots=True)
class LockMet:
    """The first message of this source is locked by somebody else, for so long at the most unless renewed."""

    source: str
    sequence_number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Followed:
    """Others lead in these sources, and move their heads by that many messages a second together."""

    sources: tuple[str, ...]
    messages_per_second: float


@dataclass(frozen=True, slots=True)
class PauseBegan:
    """`entity` empty: the whole namespace."""

    entity: str
    error_code: str
    seconds: float
    abandoned_in_seconds: float | None = None
    """When its messages are left if it goes on failing; None: never."""


@dataclass(frozen=True, slots=True)
class PauseEnded:
    entity: str


Action = Measure | Send | Settle | Renew | PollAgain | Sample | LockMet | Followed | PauseBegan | PauseEnded
