"""What the pump's machine is told and what it wants done: plain values. The machine is `core.settlement`."""

from collections import Counter
from dataclasses import dataclass, field

from sbpair.core.lanes import Batch, Item
from sbpair.core.message import Disposition, Received


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the pump. None means none."""

    in_flight_messages: int = 2000
    in_flight_bytes: int = 64 * 1024 * 1024
    sends: int = 8
    """Batches on their way at the same time."""
    rate_per_second: float | None = None
    total_messages: int | None = None
    patience_seconds: float | None = None
    """How long a destination may fail before its messages are left; None: for ever."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Send it home."""

    payload: bytes
    destination: str
    session_id: str | None = None
    partition_key: str | None = None


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


@dataclass(frozen=True, slots=True)
class Measure:
    """Ask the link to the destination for its message size limit."""

    destination: str


@dataclass(frozen=True, slots=True)
class Send:
    batch: Batch


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle this receipt. `outcome` is the ledger's word for it, empty if it says nothing about the message."""

    item: Item
    received: Received
    disposition: Disposition
    outcome: str = ""
    reason: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Renew:
    item: Item
    received: Received


@dataclass(frozen=True, slots=True)
class LookAgain:
    """A message of this source will be delivered again, even if the source seemed to be empty."""

    source: str


@dataclass(frozen=True, slots=True)
class PauseBegan:
    """`entity` empty: the whole namespace."""

    entity: str
    error_code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PauseEnded:
    entity: str


Action = Measure | Send | Settle | Renew | LookAgain | PauseBegan | PauseEnded


@dataclass(slots=True)
class Tally:
    """What has become of the messages so far."""

    forwarded: int = 0
    forwarded_bytes: int = 0
    completed: int = 0
    dead_lettered: int = 0
    released: int = 0
    pings: int = 0
    already_forwarded: int = 0
    """Came again after they had been forwarded, and were completed without being sent twice."""
    locks_lost: int = 0
    per_destination: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
