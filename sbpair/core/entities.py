"""What a namespace says about itself and its entities: plain frozen values, the same from both control planes.

Durations are float seconds; None means "never" (TimeSpan.MaxValue). Times are UTC epoch seconds. Sizes of partitioned
entities are as configured, not multiplied by 16 (the adapters divide).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from sbpair.service import PARTITION_COUNT, EntityStatus, QueueSettings, Tier


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


def capacity_bytes(sized: QueueSettings | TopicFacts) -> int:
    """How much an entity may hold: a partitioned one has its size once per partition."""
    return sized.max_size_in_megabytes * 1024**2 * (PARTITION_COUNT if sized.enable_partitioning else 1)


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
    geo_replication_lag_seconds: int | None = None
    """How far the secondary region may be behind; 0: replication is synchronous."""
    local_auth_disabled: bool | None = None
    status: str | None = None
    service_time: float | None = None
    """The service's clock when it answered, for clock skew."""
    control_plane: str = "data-plane"
    extra: tuple[tuple[str, str], ...] = field(default=())

    @property
    def geo_replication(self) -> str | None:
        """Regions and mode of Geo-Replication; None without a second region."""
        if len(self.geo_replication_locations) < 2:
            return None
        lag = self.geo_replication_lag_seconds
        mode = "" if lag is None else f", asynchronous, up to {lag:,} s behind" if lag else ", synchronous"
        return ", ".join(self.geo_replication_locations) + mode


class EntityKind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True)
class EntitySettings(QueueSettings):
    """The settable properties of a queue, a topic or a subscription; `SETTINGS_OF` says which count for which kind, and
    the rest stays at its default."""

    support_ordering: bool = True
    dead_lettering_on_filter_evaluation_exceptions: bool = True


_OF_ALL = (
    "default_message_time_to_live_seconds",
    "auto_delete_on_idle_seconds",
    "enable_batched_operations",
    "status",
    "user_metadata",
)
_OF_RECEIVERS = (
    "lock_duration_seconds",
    "requires_session",
    "dead_lettering_on_message_expiration",
    "max_delivery_count",
    "forward_to",
    "forward_dead_lettered_messages_to",
)
_OF_SENDERS = (
    "max_size_in_megabytes",
    "requires_duplicate_detection",
    "duplicate_detection_history_time_window_seconds",
    "enable_partitioning",
    "enable_express",
    "max_message_size_in_kilobytes",
)
SETTINGS_OF: Mapping[EntityKind, tuple[str, ...]] = {
    EntityKind.QUEUE: (*_OF_SENDERS, *_OF_RECEIVERS, *_OF_ALL),
    EntityKind.TOPIC: (*_OF_SENDERS, "support_ordering", *_OF_ALL),
    EntityKind.SUBSCRIPTION: (*_OF_RECEIVERS, "dead_lettering_on_filter_evaluation_exceptions", *_OF_ALL),
}
"""Kind of entity -> the fields of `EntitySettings` that it has."""


Scalar = str | int | float | bool | datetime | timedelta
"""A value that a rule compares with, or a parameter of its SQL."""
Values = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """One rule of a subscription. A filter is SQL, or values that have to be equal (`sql` is None)."""

    name: str
    sql: str | None = "1=1"
    parameters: Values = ()
    correlation: Values = ()
    """Of the message's own properties, by the names of `CORRELATION_FIELDS`."""
    properties: Values = ()
    """Of its application properties."""
    action: str | None = None
    action_parameters: Values = ()


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A shared access rule of an entity: what a connection string made from it may do. Never its keys."""

    name: str
    rights: tuple[str, ...]
    """`Manage`, `Send`, `Listen`."""

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.rights)})"


@dataclass(frozen=True, slots=True)
class EntityFacts:
    """A queue, topic or subscription as observed. A topic's only messages are scheduled ones."""

    kind: EntityKind
    path: str
    """Of a subscription: `topic/Subscriptions/name`."""
    settings: EntitySettings
    counts: Counts = Counts()
    size_in_bytes: int = 0
    rules: tuple[RuleFacts, ...] = ()
    """Of a subscription, by name, where they were asked for."""
    access_rules: tuple[AccessRule, ...] = ()
    """Its own; those of the namespace are not among them."""
    accessed_at: float | None = None
    """When anybody last sent to it or received from it, UTC epoch seconds, as far as the service tells."""


def used_share(facts: QueueFacts | EntityFacts) -> float:
    """Used share of its size; 0 where that is not known: no service says so, a file may."""
    capacity = capacity_bytes(facts.settings)
    return facts.size_in_bytes / capacity if capacity > 0 else 0.0
