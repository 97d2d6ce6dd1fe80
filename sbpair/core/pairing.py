"""What a pair is and what should exist for it: options with their limits, the documented backlog queues.

Sources: "Paired Namespaces: Implementation Details and Cost" (paths, values of the queues), "Asynchronous Messaging
Patterns and High Availability" (options, defaults), the retired library's limits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from sbpair.core.access import NamespaceAccess
from sbpair.core.durations import parse_duration
from sbpair.core.errors import SameNamespaceError, UsageError
from sbpair.core.failover.machine import DOCUMENTED, POLICIES, Policy
from sbpair.core.names import backlog_queue_path
from sbpair.core.redact import quoted
from sbpair.core.words import did_you_mean
from sbpair.service import QueueSettings, Tier


class Side(StrEnum):
    """One namespace of a pair."""

    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def partner(self) -> "Side":
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


class Verify(StrEnum):
    """Whether a client tries beforehand what an outage will need."""

    WARN = "warn"
    """What is missing is logged and announced; the client works."""
    REQUIRE = "require"
    """The first call raises for what is missing."""
    OFF = "off"


MINUTE_SECONDS = 60.0
DEFAULT_VERIFY_INTERVAL_SECONDS = 60 * MINUTE_SECONDS
DEFAULT_BACKLOG_QUEUE_COUNT = 10
MAX_BACKLOG_QUEUE_COUNT = 10_000
"""As many queues as a namespace can have (Service Bus quotas)."""
MAX_FAILOVER_INTERVAL_SECONDS = 60 * MINUTE_SECONDS
MIN_PING_INTERVAL_SECONDS = 1.0
MAX_PING_INTERVAL_SECONDS = 30 * MINUTE_SECONDS
MAX_DELIVERY_COUNT = 2_147_483_647
BASIC_TIME_TO_LIVE_SECONDS = 14 * 86_400.0

DOCUMENTED_SETTINGS = QueueSettings(
    lock_duration_seconds=MINUTE_SECONDS,
    max_size_in_megabytes=5120,
    default_message_time_to_live_seconds=None,
    auto_delete_on_idle_seconds=None,
    dead_lettering_on_message_expiration=True,
    max_delivery_count=MAX_DELIVERY_COUNT,
    enable_batched_operations=True,
)
"""The values that "Paired Namespaces: Implementation Details and Cost" lists; everything else is the service's
default."""


@dataclass(frozen=True, slots=True)
class SendAvailabilityOptions:
    """Options of a pairing: the retired library's SendAvailabilityPairedNamespaceOptions ("Asynchronous Messaging
    Patterns and High Availability"), and two of ours. Durations in seconds.

    Raises:
        UsageError: a value outside its documented limits, or of another type.
    """

    backlog_queue_count: int = DEFAULT_BACKLOG_QUEUE_COUNT
    failover_interval_seconds: float = MINUTE_SECONDS
    """0 to 60 minutes; 0 = at the first failure, and the failing message itself is rerouted."""
    enable_syphon: bool = False
    """Bring the backlog back to the primary in this process. Senders leave it off, receivers turn it on."""
    ping_interval_seconds: float = MINUTE_SECONDS
    """1 second to 30 minutes."""
    policy: str = DOCUMENTED.name
    """Which errors start a failover: `documented` or `sdk`, see `failover_policy`."""
    hold_sessions: bool = False
    """Keep order within a session across failover and failback."""
    verify: str = "warn"
    """Whether a client tries beforehand what an outage will need: `warn`, `require` or `off`, see `Verify`."""
    verify_interval_seconds: float = DEFAULT_VERIFY_INTERVAL_SECONDS
    """How often it does so again; 0: once."""
    create_missing: bool = False
    """Create missing backlog queues beforehand, which takes the Manage right on the secondary."""

    @property
    def failover_policy(self) -> Policy:
        return POLICIES[self.policy]

    def __post_init__(self) -> None:
        count = self.backlog_queue_count
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_BACKLOG_QUEUE_COUNT:
            raise UsageError(
                f"The number of backlog queues is a whole number, 1 to {MAX_BACKLOG_QUEUE_COUNT:,}, "
                f"not {quoted(count)}."
            )
        if self.policy not in POLICIES:
            raise UsageError(f"The policy is {' or '.join(POLICIES)}, not {quoted(self.policy)}.")
        if self.verify not in list(Verify):
            raise UsageError(f"`verify` is {', '.join(Verify)}, not {quoted(self.verify)}.")
        for name in ("enable_syphon", "hold_sessions", "create_missing"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"`{name}` is true or false, not {quoted(value)}.")
        for name in ("failover_interval_seconds", "ping_interval_seconds", "verify_interval_seconds"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, int | float):
                raise UsageError(f"`{name}` is a number of seconds, not {quoted(value)}.")
        if not 0 <= self.failover_interval_seconds <= MAX_FAILOVER_INTERVAL_SECONDS:
            raise UsageError(f"The failover interval is 0 to 60 minutes, not {self.failover_interval_seconds:g} s.")
        if not MIN_PING_INTERVAL_SECONDS <= self.ping_interval_seconds <= MAX_PING_INTERVAL_SECONDS:
            raise UsageError(f"The ping interval is 1 second to 30 minutes, not {self.ping_interval_seconds:g} s.")
        if not 0 <= self.verify_interval_seconds < float("inf"):
            raise UsageError(f"`verify_interval` is 0 seconds or more, not {self.verify_interval_seconds:g} s.")


_FIELDS_OF_OPTIONS = {
    "backlog_queues" if each.name == "backlog_queue_count" else each.name.removesuffix("_seconds"): each.name
    for each in fields(SendAvailabilityOptions)
}
"""The names of the options in sbpair.yaml and as keywords, and the fields that hold them."""

PAIR_OPTIONS = {name: getattr(SendAvailabilityOptions(), field_name) for name, field_name in _FIELDS_OF_OPTIONS.items()}
"""The names of the options and their defaults."""


def pair_options(base: SendAvailabilityOptions | None = None, **options: Any) -> SendAvailabilityOptions:
    """The options of a pairing, by the names that they have in sbpair.yaml: `pair_options(failover_interval="30s")`.

    Args:
        base: what is not given is taken from here; by default the documented values.
        options: `backlog_queues`, `failover_interval`, `ping_interval`, `policy`, `hold_sessions`, `enable_syphon`,
            `verify` (`warn`, `require` or `off`), `verify_interval`, `create_missing`. Durations are seconds, or texts
            such as `30s` and `PT1M`.

    Raises:
        TypeError: another name.
        UsageError: a value outside its limits, or of another type.
    """
    refuse_unknown(options, PAIR_OPTIONS, "pair_options()")
    changes: dict[str, Any] = {}
    for name, value in options.items():
        field_name = _FIELDS_OF_OPTIONS[name]
        is_text = field_name.endswith("_seconds") and isinstance(value, str)
        changes[field_name] = parse_duration(value) if is_text else value
    return replace(base or SendAvailabilityOptions(), **changes)


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise for a keyword that would have no effect.

    Raises:
        TypeError: with the nearest known name, if one is near.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise TypeError(f"{where} has no argument {quoted(name)}. {did_you_mean(name, names)}".rstrip())


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its secondary namespace with the pairing's options, as configured.

    Raises:
        SameNamespaceError: primary and secondary are the same namespace.
    """

    name: str
    primary: NamespaceAccess
    secondary: NamespaceAccess
    options: SendAvailabilityOptions = field(default_factory=SendAvailabilityOptions)
    entities: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    """Shell patterns of queue paths that are never deleted."""
    environment: str | None = None

    def __post_init__(self) -> None:
        if self.primary.host == self.secondary.host:
            raise SameNamespaceError(
                f"Primary and secondary of pair {self.name!r} are the same namespace ({self.primary.host})."
            )

    def backlog_paths(self) -> tuple[str, ...]:
        """The backlog queues that should exist on the secondary, index 0 first."""
        return expected_backlog_paths(self.primary.label, self.options.backlog_queue_count)


def expected_backlog_paths(primary_label: str, count: int) -> tuple[str, ...]:
    """The documented paths, `{primary}/x-servicebus-transfer/0` to `count - 1`."""
    return tuple(backlog_queue_path(primary_label, index) for index in range(count))


def backlog_settings(tier: Tier | None, *, partitioned: bool = False) -> QueueSettings:
    """The documented settings as the tier allows them.

    Basic does not let time to live and auto-delete be set: its time to live is 14 days.
    """
    settings = replace(DOCUMENTED_SETTINGS, enable_partitioning=partitioned)
    if tier is Tier.BASIC:
        return replace(settings, default_message_time_to_live_seconds=BASIC_TIME_TO_LIVE_SECONDS)
    return settings


# The rule that ties the two namespaces' connections together in a process that runs the syphon ("Paired Namespaces:
# Implementation Details and Cost"). When one side is closed or faulted and the other is not, the other has five seconds
# to close; then it is faulted. (The retired code faulted it at once after a fault; the documents give five seconds in
# both cases, and so do we.) In a process without the syphon the sides live and die on their own.


PARTNER_GRACE_SECONDS = 5.0


class Condition(StrEnum):
    """How the connection to one side is."""

    UNKNOWN = "unknown"
    """Nothing was asked of it yet."""
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


class Coupling:
    """The machine: told what became of a side, it says which side is to be faulted and when."""

    def __init__(self, *, with_syphon: bool) -> None:
        self._with_syphon = with_syphon
        self._conditions = dict.fromkeys(Side, Condition.OPEN)
        self._deadline: float | None = None

    def condition(self, side: Side) -> Condition:
        return self._conditions[side]

    def next_deadline(self) -> float | None:
        """When `due` will name a side; None while nothing is pending."""
        return self._deadline

    def ended(self, side: Side, condition: Condition, now: float) -> None:
        """A side was closed or faulted. The first word on a side stands: what is closed cannot fault any more."""
        if condition is Condition.OPEN or self._conditions[side] is not Condition.OPEN:
            return
        self._conditions[side] = condition
        pending = self._with_syphon and self._conditions[side.partner] is Condition.OPEN
        self._deadline = now + PARTNER_GRACE_SECONDS if pending else None

    def due(self, now: float) -> Side | None:
        """The side to fault now: its partner ended five seconds ago and it is still open."""
        if self._deadline is None or now < self._deadline:
            return None
        return next(side for side in Side if self._conditions[side] is Condition.OPEN)
