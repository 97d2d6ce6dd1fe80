"""Nouns and rules of the service that the embedded namespace applies and the rest of sbpair relies on, in one place."""

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Tier(StrEnum):
    """The three price tiers of a namespace, spelled as the administration APIs spell them."""

    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"


class EntityStatus(StrEnum):
    """Whether an entity takes and gives messages; the words of the administration APIs ("Suspend and reactivate
    messaging entities")."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"
    UNKNOWN = "Unknown"
    """None that can be set: one that the service is passing through, or that came later than this release."""

    @property
    def may_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def may_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


SETTABLE_STATUSES = tuple(status for status in EntityStatus if status is not EntityStatus.UNKNOWN)


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


CORRELATION_FIELDS = (
    *("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type"),
)
"""What a correlation filter compares beside application properties."""


# Limits ("Service Bus quotas and limits").

MAX_ENTITY_PATH_CHARACTERS = 260
PARTITION_COUNT = 16
"""Of a partitioned entity of a Basic or Standard namespace."""
_SMALL_SIZES = (1024, 2048, 3072, 4096, 5120)
ENTITY_SIZES_MEGABYTES = {
    Tier.BASIC: _SMALL_SIZES,
    Tier.STANDARD: _SMALL_SIZES,
    Tier.PREMIUM: (*_SMALL_SIZES, 10240, 20480, 40960, 81920),
}
"""What a queue or topic can be as large as."""
MAX_MESSAGE_KILOBYTES = {Tier.BASIC: 256, Tier.STANDARD: 256, Tier.PREMIUM: 102_400}
"""How large a message can be; on Premium as far as an entity may be set to."""
CREDITS_PER_MANAGEMENT_CALL = 10
"""Throttling credits of one create, read, update or delete; a namespace of tier Basic or Standard has 1,000 a second
("Throttling operations on Azure Service Bus")."""
PAGE_ENTITIES = 100
"""Of a listing, on the data plane and in the resource manager, whatever a client asks for."""


# Durations. The service and its clients carry them as .NET's TimeSpan: ISO 8601 with a resolution of 100 ns ("ticks").

NEVER = "P10675199DT2H48M5.4775807S"
"""TimeSpan.MaxValue, which the service writes for "never"."""
NEVER_DAYS = 10_675_199
TICKS_PER_SECOND = 10_000_000
NEVER_SECONDS = 2**63 / TICKS_PER_SECOND
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SHORT_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)


def _iso_pattern(units: str, fractional: str, flags: int) -> "re.Pattern[str]":
    """`units`: of the date, and behind the T; `fractional`: those that may have a fraction."""

    def part(unit: str) -> str:
        fraction = r"(?:\.\d+)?" if unit in fractional else ""
        return rf"(?:(?P<{unit}>\d+{fraction}){unit})?"

    date, clock = ("".join(map(part, letters)) for letters in (units.partition("T")[0], units.partition("T")[2]))
    return re.compile(rf"(?P<sign>-?)P{date}(?:T(?=[0-9]){clock})?", flags)


_SERVICE_DURATION = _iso_pattern("DTHMS", "S", re.ASCII)
_ANY_DURATION = _iso_pattern("wdThms", "wdhms", re.IGNORECASE | re.ASCII)


def duration_ticks(text: str, *, of_anyone: bool = False) -> int | None:
    """Ticks (100 ns) of an ISO 8601 duration; None if it is none.

    As the service reads it, days, hours, minutes and seconds, of which only seconds have a fraction: years and months
    have no fixed length. `of_anyone`: weeks, fractions of every unit and small letters as well, which other tools
    write.
    """
    match = (_ANY_DURATION if of_anyone else _SERVICE_DURATION).fullmatch(text)
    if match is None:
        return None
    ticks = [_unit_ticks(unit, value) for unit, value in match.groupdict().items() if value and unit != "sign"]
    return (-sum(ticks) if match["sign"] else sum(ticks)) if ticks else None


def _unit_ticks(unit: str, value: str) -> int:
    length = int(_UNIT_SECONDS[unit.lower()]) * TICKS_PER_SECOND
    return int(Decimal(value) * length) if "." in value else int(value) * length


def duration_text(seconds: float) -> str:
    """The ISO 8601 text of a duration as the service writes it: `PT1M`, `P14D`, `PT0S`; 90.5 is `PT1M30.5S`."""
    whole, ticks = divmod(round(seconds * TICKS_PER_SECOND), TICKS_PER_SECOND)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = "".join(f"{number}{unit}" for number, unit in ((hour, "H"), (minute, "M")) if number)
    if second or ticks or not (days or clock):
        fraction = f".{ticks:07d}".rstrip("0") if ticks else ""
        clock += f"{second}{fraction}S"
    return f"P{f'{days}D' if days else ''}{f'T{clock}' if clock else ''}"


def short_duration_seconds(text: str) -> float | None:
    """Seconds of `90s`, `1h30m`, `250ms`, `2d`, as people write durations; None if it is none."""
    position, total = 0, 0.0
    for match in _SHORT_PART.finditer(text):
        if match.start() != position:
            return None
        total += float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        position = match.end()
        while position < len(text) and text[position] == " ":
            position += 1
    return total if text and position == len(text) else None


def session_key(session_id: str) -> str:
    """What two spellings of one session have in common; for comparing, never for showing or sending.

    The service does not distinguish `Order-7` from `ORDER-7`, and may deliver a session under another spelling than the
    sender's after an upgrade or a failover. Source: the service's team in azure-sdk-for-java (pull request 48759) and
    in Azure/durabletask (pull request 1334), and azure-sdk-for-net's live test CancelingDoesNotLoseSessionMessages.

    Strength: stated for ids as such and shown with ASCII letters. How letters beyond ASCII compare is unknown. They
    fold here as well: sbpair then treats at worst two sessions as one, which costs concurrency, never order. The
    embedded namespace can be told to fold ASCII letters alone (`ascii_session_key`); the simulation runs with either.

    Not covered, because no source says how the service compares them: message ids (duplicate detection, too), partition
    keys, and session ids within rules of subscriptions. They are compared with case. Names of namespaces, entities,
    rules and application properties in filters are compared without; header names of HTTP as well.
    """
    return session_id.lower()


def ascii_session_key(session_id: str) -> str:
    """The other form that the service's comparison may have: letters beyond ASCII keep their case."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in session_id)


EMBEDDED_NAMES: dict[str, str] = {}
"""The embedded namespaces of this process: names by `host:port`, since a connection string of theirs tells the address
alone and the paths of backlog queues contain the name."""
