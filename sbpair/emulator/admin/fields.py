"""The settings of entities under their three names: description field, XML element (ATOM) and JSON property (ARM).

One table per kind of entity serves both APIs in both directions, so that they cannot disagree. A setting left out, or
given as null, means its default: a PUT replaces the whole description.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sbpair import service
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import (
    CorrelationFilter,
    Counts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    target_path,
)
from sbpair.engine.errors import EntityError, bad_request
from sbpair.service import TICKS_PER_SECOND, EntityStatus

# Texts of the administration APIs: ISO 8601 durations and times, as .NET writes them.
#
# Both APIs carry time spans as ISO 8601 durations with .NET's resolution of 100 ns ("ticks"), and both write
# "never" as `TimeSpan.MaxValue`. A value above it is refused by the service; values a hair below it are what the
# official clients send back after reading "never" through floating point, so those mean "never" too.

MAX_TICKS = 2**63 - 1
NEVER_FROM_TICKS = MAX_TICKS - TICKS_PER_SECOND
"""Durations within one second of the maximum count as "never": clients lose up to 42 microseconds on a round trip."""

_MOST_CHARACTERS = 1000


def duration_ticks(text: str) -> int:
    """Ticks (100 ns) of an ISO 8601 duration of days, hours, minutes and seconds.

    Raises ValueError for anything else: years, months and weeks have no fixed or no documented length here.
    """
    text = text.strip()
    ticks = service.duration_ticks(text) if len(text) <= _MOST_CHARACTERS else None
    if ticks is None:
        raise ValueError(f"The string '{text[:_MOST_CHARACTERS]}' is not a valid TimeSpan value.")
    return ticks


def parse_duration(text: str) -> float | None:
    """Seconds of an ISO 8601 duration, None for "never" (`TimeSpan.MaxValue`); ValueError if it is out of range."""
    ticks = duration_ticks(text)
    if ticks > MAX_TICKS:
        raise ValueError(f"The string '{text}' is above the largest TimeSpan, {service.NEVER}.")
    if ticks < 0:
        raise ValueError(f"The string '{text}' is negative.")
    return None if ticks >= NEVER_FROM_TICKS else ticks / TICKS_PER_SECOND


def format_duration(seconds: float | None) -> str:
    """The ISO 8601 text of a duration as the service writes it; None is "never"."""
    return service.NEVER if seconds is None else service.duration_text(seconds)


NEVER = "0001-01-01T00:00:00Z"
"""The time of what has not happened."""


def format_time(epoch_seconds: float) -> str:
    """UTC time with seven decimals, as .NET's round-trip format writes it."""
    moment = datetime.fromtimestamp(epoch_seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}0Z"


def format_log_time(epoch_seconds: float) -> str:
    """UTC time to the second, as the `Timestamp:` of an error text carries it."""
    return f"{datetime.fromtimestamp(epoch_seconds, UTC):%Y-%m-%dT%H:%M:%S}"


Description = QueueDescription | TopicDescription | SubscriptionDescription
MAX_INT32 = 2**31 - 1


class Kind(StrEnum):
    """How a setting is written."""

    DURATION = "TimeSpan"
    INTEGER = "Int32"
    BOOLEAN = "Boolean"
    TEXT = "String"
    STATUS = "EntityStatus"
    ENTITY = "entity"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: its name in the description, the XML element and JSON property, and its kind."""

    attribute: str
    element: str
    kind: Kind

    @property
    def property(self) -> str:
        """The JSON name: the element's with a small first letter."""
        return self.element[0].lower() + self.element[1:]


_LOCK = Field("lock_duration_seconds", "LockDuration", Kind.DURATION)
_SIZE = Field("max_size_in_megabytes", "MaxSizeInMegabytes", Kind.INTEGER)
_DUPLICATES = Field("requires_duplicate_detection", "RequiresDuplicateDetection", Kind.BOOLEAN)
_WINDOW = Field("duplicate_detection_history_time_window_seconds", "DuplicateDetectionHistoryTimeWindow", Kind.DURATION)
_SESSION = Field("requires_session", "RequiresSession", Kind.BOOLEAN)
_TTL = Field("default_message_time_to_live_seconds", "DefaultMessageTimeToLive", Kind.DURATION)
_EXPIRED = Field("dead_lettering_on_message_expiration", "DeadLetteringOnMessageExpiration", Kind.BOOLEAN)
_FILTER_ERRORS = Field(
    "dead_lettering_on_filter_evaluation_exceptions", "DeadLetteringOnFilterEvaluationExceptions", Kind.BOOLEAN
)
_DELIVERIES = Field("max_delivery_count", "MaxDeliveryCount", Kind.INTEGER)
_BATCHED = Field("enable_batched_operations", "EnableBatchedOperations", Kind.BOOLEAN)
_STATUS = Field("status", "Status", Kind.STATUS)
_IDLE = Field("auto_delete_on_idle_seconds", "AutoDeleteOnIdle", Kind.DURATION)
_PARTITIONS = Field("enable_partitioning", "EnablePartitioning", Kind.BOOLEAN)
_EXPRESS = Field("enable_express", "EnableExpress", Kind.BOOLEAN)
_ORDERING = Field("support_ordering", "SupportOrdering", Kind.BOOLEAN)
_PREFILTER = Field("filtering_messages_before_publishing", "FilteringMessagesBeforePublishing", Kind.BOOLEAN)
_FORWARD = Field("forward_to", "ForwardTo", Kind.ENTITY)
_FORWARD_DEAD = Field("forward_dead_lettered_messages_to", "ForwardDeadLetteredMessagesTo", Kind.ENTITY)
_METADATA = Field("user_metadata", "UserMetadata", Kind.TEXT)
_MESSAGE_SIZE = Field("max_message_size_in_kilobytes", "MaxMessageSizeInKilobytes", Kind.INTEGER)

MAY_BE_NEVER = frozenset({_TTL, _IDLE})
"""Durations that may be "never"; for the others the largest TimeSpan is as wrong as any other value out of range."""

QUEUE_FIELDS = (
    _LOCK,
    _SIZE,
    _DUPLICATES,
    _SESSION,
    _TTL,
    _EXPIRED,
    _WINDOW,
    _DELIVERIES,
    _BATCHED,
    _STATUS,
    _IDLE,
    _PARTITIONS,
    _EXPRESS,
    _FORWARD,
    _METADATA,
    _FORWARD_DEAD,
    _MESSAGE_SIZE,
)
TOPIC_FIELDS = (
    _TTL,
    _SIZE,
    _DUPLICATES,
    _WINDOW,
    _BATCHED,
    _PREFILTER,
    _STATUS,
    _ORDERING,
    _IDLE,
    _PARTITIONS,
    _EXPRESS,
    _METADATA,
    _MESSAGE_SIZE,
)
SUBSCRIPTION_FIELDS = (
    _LOCK,
    _SESSION,
    _TTL,
    _EXPIRED,
    _FILTER_ERRORS,
    _DELIVERIES,
    _BATCHED,
    _STATUS,
    _FORWARD,
    _FORWARD_DEAD,
    _IDLE,
    _METADATA,
)


def fields_of(description: Description) -> tuple[Field, ...]:
    """The settings of a description's kind, in the order the service writes them."""
    if isinstance(description, QueueDescription):
        return QUEUE_FIELDS
    return TOPIC_FIELDS if isinstance(description, TopicDescription) else SUBSCRIPTION_FIELDS


def refused(field: Field, value: object, why: str = "") -> EntityError:
    """The service's answer to a value that does not fit its setting."""
    reason = f" {why}" if why else ""
    return bad_request(f"The value '{value}' of the property '{field.element}' is not valid.{reason}")


def setting_from_text(field: Field, text: str) -> object:
    """The value of a setting as XML carries it; EntityError 40000 if the text does not fit the kind."""
    readers: Mapping[Kind, Callable[[Field, str], object]] = {
        Kind.DURATION: _duration,
        Kind.INTEGER: _integer,
        Kind.BOOLEAN: _boolean,
        Kind.STATUS: _status,
        Kind.TEXT: lambda _field, given: given or None,
        Kind.ENTITY: lambda _field, given: given if target_path(given) else None,
    }
    return readers[field.kind](field, text)


def setting_from_json(field: Field, value: object) -> object:
    """The value of a setting as JSON carries it; EntityError 40000 if its type or text does not fit the kind."""
    wanted: type = {Kind.INTEGER: int, Kind.BOOLEAN: bool}.get(field.kind, str)
    if type(value) is not wanted:
        raise refused(field, value, f"A {field.kind} is expected.")
    if field.kind is Kind.INTEGER or field.kind is Kind.BOOLEAN:
        return setting_from_text(field, str(value).lower())
    return setting_from_text(field, str(value))


def setting_to_json(field: Field, value: object) -> object:
    """The JSON value of a setting; None where nothing is set."""
    if field.kind is Kind.DURATION:
        return format_duration(value if isinstance(value, float | int) else None)
    if field.kind is Kind.ENTITY and value is not None:
        return target_path(str(value))
    return str(value) if isinstance(value, EntityStatus) else value


def setting_to_text(field: Field, value: object, forward_base: str) -> str | None:
    """The XML text of a setting, None if the element is left out. `forward_base` goes before a forwarding target."""
    if field.kind is Kind.DURATION:
        return format_duration(value if isinstance(value, float | int) else None)
    if value is None:
        return None
    if field.kind is Kind.ENTITY:
        return str(value) if "://" in str(value) else f"{forward_base}{value}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(field: Field, text: str) -> float | None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise refused(field, text, str(error)) from error
    if seconds is None and field not in MAY_BE_NEVER:
        raise refused(field, text)
    return seconds


def _integer(field: Field, text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise refused(field, text) from error
    if not -MAX_INT32 - 1 <= value <= MAX_INT32:
        raise refused(field, text, "Value was either too large or too small for an Int32.")
    return value


def _boolean(field: Field, text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip()]
    except KeyError as error:
        raise refused(field, text) from error


def _status(field: Field, text: str) -> EntityStatus:
    for status in service.SETTABLE_STATUSES:
        if status.value.lower() == text.strip().lower():
            return status
    raise refused(field, text)


# What an entity is like right now, gathered once for both administration APIs.

NO_MESSAGES = Counts(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Dates (UTC epoch seconds) and counts of a queue, topic or subscription. Accessed: None until it is used.

    The last three describe a topic's subscriptions and their filters and are 0 elsewhere.
    """

    created_at: float
    updated_at: float
    accessed_at: float | None
    counts: Counts
    is_limited: bool = False
    """Whether a partition is away."""
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


def queue_runtime(queue: Queue, zero_counts: bool = False) -> Runtime:
    """A queue's facts; with `zero_counts` every count is 0, as a throttled service may report it."""
    counts = NO_MESSAGES if zero_counts else queue.counts()
    return Runtime(queue.created_at, queue.updated_at, queue.used_at, counts, _is_limited(queue))


def subscription_runtime(subscription: Subscription, zero_counts: bool = False) -> Runtime:
    """A subscription's facts."""
    counts = NO_MESSAGES if zero_counts else subscription.counts()
    limited = _is_limited(subscription)
    return Runtime(subscription.created_at, subscription.updated_at, subscription.used_at, counts, limited)


def _is_limited(entity: MessageEntity) -> bool:
    return entity.is_partitioned and bool(entity.closed_partitions)


def topic_runtime(topic: Topic, zero_counts: bool = False) -> Runtime:
    """A topic's facts. Its own messages are only the scheduled ones; the size is that of all its subscriptions."""
    filters = [rule.description.filter for one in topic.subscriptions.values() for rule in one.rules.values()]
    correlation_filters = sum(isinstance(one, CorrelationFilter) for one in filters)
    return Runtime(
        topic.created_at,
        topic.updated_at,
        topic.used_at,
        NO_MESSAGES if zero_counts else topic.counts(),
        topic.description.enable_partitioning and bool(topic.namespace.closed_partitions(topic.path)),
        subscription_count=len(topic.subscriptions),
        sql_filter_count=len(filters) - correlation_filters,
        correlation_filter_count=correlation_filters,
    )
