"""The settings of entities under their three names: description field, XML element (ATOM) and JSON property (ARM).

The fields of a description serve both APIs in both directions, so that they cannot disagree. A setting left out, or
given as null, means its default: a PUT replaces the whole description.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import get_type_hints

from sbpair import service
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import (
    CorrelationFilter,
    QueueDescription,
    StateCounts,
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
RIGHTS = ("Manage", "Send", "Listen")
"""In the order in which the service writes them."""


class FieldKind(StrEnum):
    """How a setting is written."""

    DURATION = "TimeSpan"
    INTEGER = "Int32"
    BOOLEAN = "Boolean"
    TEXT = "String"
    STATUS = "EntityStatus"
    ENTITY = "entity"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: its name in the description, the XML element, and its kind."""

    attribute: str
    element: str
    kind: FieldKind
    may_be_never: bool
    """Of a duration; for the others the largest TimeSpan is as wrong as any other value out of range."""

    @property
    def property(self) -> str:
        """The JSON name."""
        return small(self.element)


def capitalized(name: str) -> str:
    """A name as .NET and the XML of the service spell it: `lock_duration` is `LockDuration`."""
    return "".join(word.capitalize() for word in name.split("_"))


def small(name: str) -> str:
    """The JSON name of an element: with a small first letter."""
    return name[0].lower() + name[1:]


_KINDS: Mapping[object, FieldKind] = {
    float: FieldKind.DURATION,
    float | None: FieldKind.DURATION,
    int: FieldKind.INTEGER,
    int | None: FieldKind.INTEGER,
    bool: FieldKind.BOOLEAN,
    EntityStatus: FieldKind.STATUS,
    str | None: FieldKind.TEXT,
}


def _fields(kind: type) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            capitalized(name.removesuffix("_seconds")),
            FieldKind.ENTITY if name.startswith("forward_") else _KINDS[hint],
            hint == float | None,
        )
        for name, hint in get_type_hints(kind).items()
        if hint in _KINDS
    )


FIELDS: Mapping[type, tuple[Field, ...]] = {
    kind: _fields(kind) for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}
"""The settings of each kind of entity, out of its description."""


def refused(field: Field, value: object, why: str = "") -> EntityError:
    """The service's answer to a value that does not fit its setting."""
    reason = f" {why}" if why else ""
    return bad_request(f"The value '{value}' of the property '{field.element}' is not valid.{reason}")


def setting_from_text(field: Field, text: str) -> object:
    """The value of a setting as XML carries it; EntityError 40000 if the text does not fit the kind."""
    readers: Mapping[FieldKind, Callable[[Field, str], object]] = {
        FieldKind.DURATION: _duration,
        FieldKind.INTEGER: _integer,
        FieldKind.BOOLEAN: _boolean,
        FieldKind.STATUS: _status,
        FieldKind.TEXT: lambda _field, given: given or None,
        FieldKind.ENTITY: lambda _field, given: given if target_path(given) else None,
    }
    return readers[field.kind](field, text)


def setting_from_json(field: Field, value: object) -> object:
    """The value of a setting as JSON carries it; EntityError 40000 if its type or text does not fit the kind."""
    wanted: type = {FieldKind.INTEGER: int, FieldKind.BOOLEAN: bool}.get(field.kind, str)
    if type(value) is not wanted:
        raise refused(field, value, f"A {field.kind} is expected.")
    if field.kind is FieldKind.INTEGER or field.kind is FieldKind.BOOLEAN:
        return setting_from_text(field, str(value).lower())
    return setting_from_text(field, str(value))


def setting_to_json(field: Field, value: object) -> object:
    """The JSON value of a setting; None where nothing is set."""
    if field.kind is FieldKind.DURATION:
        return format_duration(value if isinstance(value, float | int) else None)
    if field.kind is FieldKind.ENTITY and value is not None:
        return target_path(str(value))
    return str(value) if isinstance(value, EntityStatus) else value


def setting_to_text(field: Field, value: object, forward_base: str) -> str | None:
    """The XML text of a setting, None if the element is left out. `forward_base` goes before a forwarding target."""
    if field.kind is FieldKind.DURATION:
        return format_duration(value if isinstance(value, float | int) else None)
    if value is None:
        return None
    if field.kind is FieldKind.ENTITY:
        return str(value) if "://" in str(value) else f"{forward_base}{value}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(field: Field, text: str) -> float | None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise refused(field, text, str(error)) from error
    if seconds is None and not field.may_be_never:
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

NO_MESSAGES = StateCounts(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Dates (UTC epoch seconds) and counts of a queue, topic or subscription. Accessed: None until it is used.

    The last three describe a topic's subscriptions and their filters and are 0 elsewhere.
    """

    created_at: float
    updated_at: float
    accessed_at: float | None
    counts: StateCounts
    is_limited: bool = False
    """Whether a partition is away."""
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


def runtime_of(entity: Queue | Topic | Subscription, zero_counts: bool = False) -> Runtime:
    """An entity's facts; with `zero_counts` every count is 0, as a throttled service may report it. A topic's own
    messages are only the scheduled ones; its size is that of all its subscriptions."""
    counts = NO_MESSAGES if zero_counts else entity.counts()
    common = entity.created_at, entity.updated_at, entity.used_at, counts, bool(entity.closed_partitions)
    if not isinstance(entity, Topic):
        return Runtime(*common)
    filters = [rule.description.filter for one in entity.subscriptions.values() for rule in one.rules.values()]
    correlation_filters = sum(isinstance(one, CorrelationFilter) for one in filters)
    return Runtime(
        *common,
        subscription_count=len(entity.subscriptions),
        sql_filter_count=len(filters) - correlation_filters,
        correlation_filter_count=correlation_filters,
    )


def facts_of(description: Description, runtime: Runtime) -> dict[str, object]:
    """What both APIs say of an entity beside its settings and `counts_of`, by element."""
    facts: dict[str, object] = {
        "CreatedAt": format_time(runtime.created_at),
        "UpdatedAt": format_time(runtime.updated_at),
        "AccessedAt": NEVER if runtime.accessed_at is None else format_time(runtime.accessed_at),
    }
    if isinstance(description, TopicDescription):
        facts["SubscriptionCount"] = runtime.subscription_count
    else:
        facts["MessageCount"] = runtime.counts.total
    if not isinstance(description, SubscriptionDescription):
        facts["SizeInBytes"] = runtime.counts.size_in_bytes
    return facts


def counts_of(counts: StateCounts) -> dict[str, int]:
    names = (one.name for one in dataclasses.fields(counts) if one.name != "size_in_bytes")
    return {f"{capitalized(name)}MessageCount": getattr(counts, name) for name in names}
