"""What a namespace says about itself and its entities: plain frozen values, the same from both control planes.

Durations are float seconds; None means "never" (TimeSpan.MaxValue). Times are UTC epoch seconds. Sizes of partitioned
entities are as configured, not multiplied by 16 (the adapters divide).
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Tier(StrEnum):
    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"


class EntityStatus(StrEnum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settable properties of a queue (QueueDescription); defaults are the service's own."""

    lock_duration_seconds: float = 60.0
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_seconds: float = 600.0
    requires_session: bool = False
    default_message_time_to_live_seconds: float | None = None
    auto_delete_on_idle_seconds: float | None = None
    dead_lettering_on_message_expiration: bool = False
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Message counts of a queue. The service counts deferred messages under `active`."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue as observed: settings, counts, size, times."""

    path: str
    settings: QueueSettings
    counts: Counts = Counts()
    size_in_bytes: int = 0
    created_at: float | None = None
    updated_at: float | None = None
    accessed_at: float | None = None
    authorization_rules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(rule name, rights) pairs; never keys."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    path: str
    status: EntityStatus = EntityStatus.ACTIVE
    enable_partitioning: bool = False
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_seconds: float = 600.0
    max_size_in_megabytes: int = 1024
    max_message_size_in_kilobytes: int | None = None
    size_in_bytes: int = 0
    subscription_count: int | None = None


@dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """The namespace itself. None means: this control plane cannot tell."""

    name: str
    host: str
    tier: Tier | None = None
    messaging_units: int | None = None
    location: str | None = None
    partitioned: bool | None = None
    alias: str | None = None
    geo_dr_role: str | None = None
    geo_dr_partner: str | None = None
    geo_replication_locations: tuple[str, ...] = ()
    local_auth_disabled: bool | None = None
    status: str | None = None
    service_time: float | None = None
    """The service's clock when it answered, for clock skew."""
    control_plane: str = "data-plane"
    extra: tuple[tuple[str, str], ...] = field(default=())
