"""Descriptions of entities: what a client asks for and what it reads back. Values only, no behaviour.

Durations are float seconds; None stands for "never" (`TimeSpan.MaxValue`). Everything is frozen: an update builds a new
description (`dataclasses.replace`) and gives it to the namespace, which replaces the old one whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbpair.service import EntityStatus, QueueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A shared access key: `rights` out of Manage, Send, Listen; Manage implies the others and must list them."""

    name: str
    rights: frozenset[str]
    primary_key: str
    secondary_key: str
    created_time: str | None = None
    modified_time: str | None = None
    """As the client wrote them when it made the rule; the service adds nothing, as the Go client's live tests show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription(QueueSettings):
    """Settings of a queue with its keys. `max_size_in_megabytes` reads back times 16 on a partitioned queue, as the
    service reports it.

    `max_message_size_in_kilobytes` is None where the tier does not let it be set (Basic, Standard).
    """

    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """Settings of a topic; names and units as in `QueueDescription`."""

    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_seconds: float = 600.0
    default_message_time_to_live_seconds: float | None = None
    auto_delete_on_idle_seconds: float | None = None
    enable_batched_operations: bool = True
    enable_partitioning: bool = False
    enable_express: bool = False
    support_ordering: bool = True
    filtering_messages_before_publishing: bool = False
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """Settings of a subscription; names and units as in `QueueDescription`."""

    lock_duration_seconds: float = 60.0
    requires_session: bool = False
    default_message_time_to_live_seconds: float | None = None
    auto_delete_on_idle_seconds: float | None = None
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    # Set by the service for subscriptions a JMS client made; kept so that a description survives a round trip.
    client_affine: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sql:
    """`parameters` are the values behind `@name` in the expression; `compatibility_level` is always 20."""

    expression: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    compatibility_level: int = 20
    requires_preprocessing: bool = False


class SqlFilter(_Sql):
    """A condition that a message meets."""


class SqlAction(_Sql):
    """Statements (`SET x = …; REMOVE y`) applied to the copy a rule makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueFilter:
    """Matches every message; reads back as the SQL expression `1=1`."""

    expression: str = "1=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseFilter:
    """Matches no message; reads back as the SQL expression `1=0`."""

    expression: str = "1=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Matches when every given value equals the message's; None means "not compared". Empty filters are refused."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


RuleFilter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    """One rule of a subscription; a new subscription has the rule `$Default` with a `TrueFilter`."""

    filter: RuleFilter = field(default_factory=TrueFilter)
    action: SqlAction | None = None


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Numbers of messages by state. Deferred messages count as active, as the service counts them."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int
    transfer_dead_letter: int
    size_in_bytes: int

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


def target_path(target: str) -> str:
    """The entity's path out of a forwarding target, which may be a bare name or a URL of the namespace."""
    _, separator, rest = target.partition("://")
    path = rest.partition("/")[2] if separator else target
    return path.strip("/")


DEFAULT_RULE_NAME = "$Default"
ROOT_KEY_NAME = "RootManageSharedAccessKey"
