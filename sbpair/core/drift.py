"""Where a queue differs from the documented backlog-queue settings, field by field, normalised.

Normalised means: a duration at or above TimeSpan.MaxValue in whole days is "never"; a partitioned queue read as 16
times its configured size is not different; a property that the tier does not let be set is not compared; a property
whose switch is off (the duplicate-detection window) is not compared. So there is no drift that nobody can fix.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sbpair.core.durations import NEVER_DAYS, format_duration
from sbpair.core.entities import QueueSettings, Tier
from sbpair.core.pairing import backlog_settings

PARTITIONS = 16
"""Partitions of a partitioned queue: a read reports the size of all of them together."""
_NEVER_SECONDS = NEVER_DAYS * 86_400.0


@dataclass(frozen=True, slots=True)
class Property:
    """How one settable property is compared and shown."""

    field: str
    label: str
    create_only: bool = False
    basic: bool = True
    """Whether tier Basic lets it be set."""
    show: Callable[[Any], str] = str


def _flag(value: bool) -> str:
    return "on" if value else "off"


def _size(value: int) -> str:
    return f"{value} MB"


def _text(value: str | None) -> str:
    return value or "none"


PROPERTIES = (
    Property("max_size_in_megabytes", "maximum size", show=_size),
    Property("max_delivery_count", "maximum delivery count"),
    Property("default_message_time_to_live_seconds", "default time to live", basic=False, show=format_duration),
    Property("auto_delete_on_idle_seconds", "auto-delete on idle", basic=False, show=format_duration),
    Property("lock_duration_seconds", "lock duration", show=format_duration),
    Property("dead_lettering_on_message_expiration", "dead-lettering on expiration", show=_flag),
    Property("enable_batched_operations", "batched operations", show=_flag),
    Property("forward_to", "forward to", show=_text),
    Property("forward_dead_lettered_messages_to", "forward dead letters to", show=_text),
    Property("requires_session", "sessions", create_only=True, show=_flag),
    Property("requires_duplicate_detection", "duplicate detection", create_only=True, show=_flag),
    Property("enable_express", "express", create_only=True, show=_flag),
)
PARTITIONING = Property("enable_partitioning", "partitioning", create_only=True, show=_flag)


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that is not as documented. `actual` and `wanted` are texts for people."""

    field: str
    label: str
    actual: str
    wanted: str
    create_only: bool

    def __str__(self) -> str:
        return f"{self.label} is {self.actual}, documented {self.wanted}"


def differences(actual: QueueSettings, tier: Tier | None, *, partitioned: bool | None = None) -> tuple[Difference, ...]:
    """Differences of a queue from the documented settings (seed 000) as `tier` allows them.

    `partitioned`: the wanted partitioning; None takes either, since the documents leave it to the service's default.
    """
    wanted = backlog_settings(tier, partitioned=bool(partitioned))
    found = normalised(actual, wanted)
    compared = PROPERTIES if partitioned is None else (*PROPERTIES, PARTITIONING)
    return tuple(
        Difference(one.field, one.label, one.show(value), one.show(target), one.create_only)
        for one in compared
        if (tier is not Tier.BASIC or one.basic)
        and (value := getattr(found, one.field)) != (target := getattr(wanted, one.field))
    )


def normalised(actual: QueueSettings, wanted: QueueSettings) -> QueueSettings:
    """`actual` in the spelling of `wanted`: "never" is None, sizes of partitioned queues are per partition."""
    size = actual.max_size_in_megabytes
    if actual.enable_partitioning and size == wanted.max_size_in_megabytes * PARTITIONS:
        size = wanted.max_size_in_megabytes
    return replace(
        actual,
        max_size_in_megabytes=size,
        default_message_time_to_live_seconds=_never(actual.default_message_time_to_live_seconds),
        auto_delete_on_idle_seconds=_never(actual.auto_delete_on_idle_seconds),
        lock_duration_seconds=round(actual.lock_duration_seconds, 3),
        forward_to=actual.forward_to or None,
        forward_dead_lettered_messages_to=actual.forward_dead_lettered_messages_to or None,
    )


def corrected(actual: QueueSettings, found: tuple[Difference, ...], tier: Tier | None) -> QueueSettings:
    """`actual` with the changeable ones of its differences set to the documented values; the rest stays untouched."""
    wanted = backlog_settings(tier)
    changes: dict[str, Any] = {one.field: getattr(wanted, one.field) for one in found if not one.create_only}
    return replace(actual, **changes)


def _never(seconds: float | None) -> float | None:
    return None if seconds is None or seconds >= _NEVER_SECONDS else seconds
