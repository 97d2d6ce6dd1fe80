"""A replicated queue or subscription: what both sides should have, and how two observed ones differ from that ("Azure
Service Bus active/active with guaranteed order")."""

from collections.abc import Iterator
from dataclasses import dataclass

from sbpair.core.pairing import MAX_DELIVERY_COUNT
from sbpair.core.replication.ownership import DAY_SECONDS
from sbpair.service import EntityStatus, QueueSettings, Tier

LOCK_SECONDS = 60.0
IDLE_SESSION_REQUEST_SECONDS = 60.0
"""How long the service is asked to look for a session that waits. An idle consumer asks each side once in that time."""

REPLICATED_SETTINGS = QueueSettings(
    lock_duration_seconds=LOCK_SECONDS,
    requires_session=True,
    dead_lettering_on_message_expiration=True,
    max_delivery_count=MAX_DELIVERY_COUNT,
)
"""Sessions on. The journal counts attempts, so the broker must not: a copy that only waits is delivered often. No
duplicate detection: a message that comes twice is recognised by the journal, on both sides together."""


def replicated_settings(tier: Tier | None) -> QueueSettings | None:
    """Settings for both sides as the tier allows them; None where sessions are not to be had (Basic)."""
    return None if tier is Tier.BASIC else REPLICATED_SETTINGS


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a replicated queue that costs messages or order (`serious`), or may surprise."""

    side: str
    """`primary`, `secondary` or `both`."""
    message: str
    serious: bool


def problems(primary: QueueSettings | None, secondary: QueueSettings | None) -> Iterator[Problem]:
    """Of a queue by its settings on both sides; None: it does not exist there."""
    for side, settings in (("primary", primary), ("secondary", secondary)):
        if settings is None:
            yield Problem(side, "It does not exist on this side: every message has one copy only.", True)
        else:
            yield from _problems_of(side, settings)
    if primary is not None and secondary is not None and (unlike := list(_unlike(primary, secondary))):
        yield Problem("both", f"The two sides differ in {', '.join(unlike)}.", False)


def _problems_of(side: str, settings: QueueSettings) -> Iterator[Problem]:
    if not settings.requires_session:
        yield Problem(side, "Sessions are off: its messages have no order. They cannot be turned on later.", True)
    if settings.default_message_time_to_live_seconds is not None:
        yield Problem(side, "Messages expire: a session waits for ever for one that its other side never had.", True)
    if settings.auto_delete_on_idle_seconds is not None:
        yield Problem(side, "The queue deletes itself when it is idle, with what is in it.", True)
    if settings.requires_duplicate_detection:
        days = settings.duplicate_detection_history_time_window_seconds / DAY_SECONDS
        if days > 1:
            yield Problem(
                side,
                f"Duplicate detection drops what is sent twice for {days:g} days, longer than the journal remembers it "
                "by default: what follows such a message would wait for it. Consume with a --remember as long.",
                False,
            )
    if settings.max_delivery_count < REPLICATED_SETTINGS.max_delivery_count // 2:
        yield Problem(
            side, f"After {settings.max_delivery_count} deliveries a copy that only waits is dead-lettered.", True
        )
    if settings.status is not EntityStatus.ACTIVE:
        yield Problem(side, f"Its status is {settings.status}.", True)


_SAME = ("lock_duration_seconds", "max_size_in_megabytes", "enable_partitioning", "max_message_size_in_kilobytes")


def _unlike(primary: QueueSettings, secondary: QueueSettings) -> Iterator[str]:
    for name in _SAME:
        ours, theirs = getattr(primary, name), getattr(secondary, name)
        if ours != theirs:
            yield f"{name.replace('_', ' ')} ({ours} and {theirs})"
