"""Faults of a namespace: what goes wrong, where, when and how often.

A rule says what happens (`kind`), to which entities (`entity`, a shell pattern, case-insensitive, that must match the
whole path; the path without its `/$...` tail will do too), at which `operation`, and to which of the matching
operations: all, those after the first `after`, the `nth`, one in `every`, each with a `probability` (drawn from the
emulator's seed), at most `count`, beginning `at` and lasting `duration` seconds, both counted from when it was added.

Who asks:
 connect                        the port, for each new connection (entity "*")
 attach send receive settle     `Link.fault(...)`: the engine at attach, the broker at the rest
 management                     the broker, for each request to `<entity>/$management` (also through `Link.fault`)
 http                           the administration, once per request, with the path's entity
Delays, silence and darkness work on the wire and are never the answer of `check`; nor are partitions that are away,
which the broker asks for (`closed_partitions`).

Text form, as on the command line:  throttle:entity=orders,for=30s,after=3
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from sbpair.engine.clock import Clock, SystemClock, Timer
from sbpair.service import PARTITION_COUNT, short_duration_seconds


class FaultKind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    """New connections are refused."""
    DROP = "drop"
    """Connections are cut: those that exist, at once; with an operation, the connection that performs it."""
    DARK = "dark"
    """The namespace is gone: new connections are refused, existing ones cut."""
    SILENT = "silent"
    """Bytes are taken, nothing is answered; afterwards what is still connected is served."""
    DELAY = "delay"
    """A fixed round trip (`rtt`): half of it inwards, half of it outwards, order kept."""
    THROTTLE = "throttle"
    DETACH = "detach"
    """The link that performs the operation is detached; without an operation all matching links, at once."""
    FAIL = "fail"
    """The operation fails with `condition`."""
    LOSE_SETTLEMENT_REPLY = "lose-settlement-reply"
    """The settlement happens, its confirmation is not sent."""
    SETTLE_DELAY = "settle-delay"
    """The settlement happens, and its confirmation comes so much later (`rtt`). Two of them, the longer one first and
    with a probability, answer as the service was seen to: some after 20 ms, some after 100 ms."""
    EXPIRE_LOCKS = "expire-locks"
    """Message locks last `lock` (default: nothing) instead of the entity's lock duration."""
    QUOTA = "quota"
    UNAUTHORIZED = "unauthorized"
    DISABLED = "disabled"
    HTTP_STATUS = "http-status"
    """Administration answers with `status`."""
    LIST_GAP = "list-gap"
    """Administration leaves the first entry out of a page of a list."""
    PARTITION_DOWN = "partition-down"
    """One partition (`partition`) of partitioned entities is away; the others go on."""
    ZERO_COUNTS = "zero-counts"
    """Administration reports all message counts as 0."""


class Operation(StrEnum):
    """When it goes wrong."""

    CONNECT = "connect"
    ATTACH = "attach"
    SEND = "send"
    RECEIVE = "receive"
    SETTLE = "settle"
    MANAGEMENT = "management"
    HTTP = "http"
    ANY = "any"


_AMQP_OPERATIONS = frozenset(
    {Operation.ATTACH, Operation.SEND, Operation.RECEIVE, Operation.SETTLE, Operation.MANAGEMENT}
)
_LASTING = frozenset({FaultKind.DARK, FaultKind.SILENT, FaultKind.DELAY, FaultKind.PARTITION_DOWN})
_AT_ONCE = frozenset({FaultKind.DROP, FaultKind.DETACH})
_FAILING = frozenset({FaultKind.THROTTLE, FaultKind.FAIL, FaultKind.QUOTA, FaultKind.UNAUTHORIZED, FaultKind.DISABLED})
_LIST_KINDS = frozenset({FaultKind.LIST_GAP, FaultKind.ZERO_COUNTS, FaultKind.HTTP_STATUS})

_CONDITIONS = {
    FaultKind.THROTTLE: (
        "com.microsoft:server-busy",
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        "Please wait 4 seconds and try again.",
    ),
    FaultKind.DETACH: (
        "amqp:link:detach-forced",
        "The link was detached by the broker because of a transient condition.",
    ),
    FaultKind.FAIL: ("amqp:internal-error", "The service was unable to process the request; please retry."),
    FaultKind.QUOTA: (
        "amqp:resource-limit-exceeded",
        "The maximum entity size has been reached or exceeded for the entity.",
    ),
    FaultKind.UNAUTHORIZED: ("amqp:unauthorized-access", "Unauthorized access. The token does not allow this."),
    FaultKind.DISABLED: ("com.microsoft:entity-disabled", "Messaging entity is currently disabled."),
}

_STATUSES = {
    FaultKind.THROTTLE: 429,
    FaultKind.FAIL: 500,
    FaultKind.QUOTA: 403,
    FaultKind.UNAUTHORIZED: 401,
    FaultKind.DISABLED: 403,
    FaultKind.HTTP_STATUS: 503,
}


class FaultError(ValueError):
    """A fault that cannot be: unknown word, bad number, or a combination without meaning."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One thing that goes wrong. The module's docstring tells what the fields mean; None = not said."""

    kind: FaultKind
    entity: str = "*"
    operation: Operation = Operation.ANY
    after: int = 0
    nth: int | None = None
    every: int | None = None
    probability: float | None = None
    count: int | None = None
    at_seconds: float = 0.0
    duration_seconds: float | None = None
    round_trip_seconds: float | None = None
    lock_seconds: float | None = None
    condition: str | None = None
    description: str | None = None
    status: int | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def immediate(self) -> bool:
        """Whether it hits what exists at the moment it begins, instead of waiting for an operation."""
        return self.kind in _AT_ONCE and self.operation is Operation.ANY and not self.selective

    @property
    def selective(self) -> bool:
        """Whether it picks among the matching operations."""
        return bool(self.after or self.nth or self.every or self.probability is not None or self.count)

    @property
    def blanket_refusal(self) -> bool:
        """Whether it refuses each and every connection, as a namespace that is down does."""
        return self.kind is FaultKind.DARK or (self.kind is FaultKind.REFUSE and not self.selective)

    @property
    def counted(self) -> bool:
        """Whether it is known what it sees and hits. What lasts acts on the wire or on the listening socket: a client
        that the system refuses is seen by nobody here."""
        return self.kind not in _LASTING and not self.blanket_refusal

    def matches_entity(self, path: str) -> bool:
        if self.entity == "*":
            return True
        pattern, lowered = self.entity.lower(), path.lower()
        return fnmatchcase(lowered, pattern) or fnmatchcase(lowered.partition("/$")[0], pattern)

    def matches_operation(self, operation: Operation) -> bool:
        if self.kind in _LIST_KINDS:
            return operation is Operation.HTTP
        if self.operation is not Operation.ANY:
            return self.operation is operation
        match self.kind:
            case FaultKind.REFUSE:
                return operation is Operation.CONNECT
            case FaultKind.QUOTA:
                return operation is Operation.SEND
            case FaultKind.LOSE_SETTLEMENT_REPLY | FaultKind.SETTLE_DELAY:
                return operation is Operation.SETTLE
            case FaultKind.EXPIRE_LOCKS:
                return operation is Operation.RECEIVE
            case FaultKind.UNAUTHORIZED | FaultKind.DISABLED:
                return operation in (Operation.ATTACH, Operation.MANAGEMENT, Operation.SEND)
            case FaultKind.THROTTLE | FaultKind.FAIL:
                # Without a word about it: what a client asks for, not the delivery of messages to it.
                return operation in (Operation.SEND, Operation.SETTLE, Operation.MANAGEMENT)
            case _:
                return operation in _AMQP_OPERATIONS


@dataclass(frozen=True, slots=True)
class FaultAction:
    """What to do to one operation. `condition` is None where nothing is to be answered (cut, lost, shortened)."""

    kind: FaultKind
    rule_id: str
    condition: str | None
    description: str
    status: int
    """HTTP status for administration and management."""
    lock_seconds: float = 0.0
    delay_seconds: float = 0.0
    """How much later the operation is answered."""

    @property
    def fails(self) -> bool:
        """Whether the operation is to be answered with `condition` and `description`."""
        return self.kind in _FAILING

    @property
    def cuts(self) -> bool:
        """Whether link or connection is gone (`Link.fault` has seen to it); the operation is to be forgotten."""
        return self.kind in _AT_ONCE


@dataclass(slots=True)
class ActiveFault:
    """A rule in force, and what it has done so far."""

    id: str
    rule: FaultRule
    begins_at: float
    ends_at: float
    draw: Random = field(repr=False)
    seen: int = 0
    hits: int = 0
    timers: list[Timer] = field(default_factory=list, repr=False)

    def in_force(self, now: float) -> bool:
        limit = self.rule.count
        return self.begins_at <= now < self.ends_at and (limit is None or self.hits < limit)

    def strike(self) -> bool:
        """Count one matching operation; whether it is one to be hit."""
        self.seen += 1
        rule, position = self.rule, self.seen - self.rule.after
        hit = (
            position > 0
            and (rule.nth is None or position == rule.nth)
            and (rule.every is None or position % rule.every == 0)
            and (rule.probability is None or self.draw.random() < rule.probability)
        )
        self.hits += hit
        return hit


ActiveFaults = list[ActiveFault]
_NO_PARTITIONS: frozenset[int] = frozenset()


class Faults:
    """The faults of one namespace. `listen` is told whenever the rules in force have changed."""

    def __init__(self, clock: Clock | None = None, seed: int | str | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._seed = "emulator" if seed is None else str(seed)
        self._ids = itertools.count(1)
        self._active: dict[str, ActiveFault] = {}
        self._listeners: list[Callable[[ActiveFault | None], None]] = []

    def add(self, rule: FaultRule | str) -> str:
        """Put a rule (or its text form) in force; gives its id. Must be called on the emulator's loop."""
        parsed = self.parse(rule) if isinstance(rule, str) else rule
        fault_id, now = f"f{next(self._ids)}", self._clock.now()
        begins_at = now + parsed.at_seconds
        ends_at = float("inf") if parsed.duration_seconds is None else begins_at + parsed.duration_seconds
        # The generator decides which operations of a test fail, nothing that would have to be a secret.
        draw = Random(f"{self._seed}:{fault_id}")
        fault = ActiveFault(fault_id, parsed, begins_at, ends_at, draw)
        self._active[fault_id] = fault
        if begins_at > now:
            fault.timers.append(self._clock.call_at(begins_at, lambda: self._begun(fault)))
        else:
            self._begun(fault)
        return fault_id

    def remove(self, fault_id: str) -> bool:
        """Take a rule out of force; False when there is none of that id."""
        fault = self._active.pop(fault_id, None)
        if fault is None:
            return False
        for timer in fault.timers:
            timer.cancel()
        self._tell(None)
        return True

    def clear(self) -> None:
        """Take all rules out of force."""
        for fault_id in list(self._active):
            self.remove(fault_id)

    @property
    def active(self) -> bool:
        """Whether there is any rule at all."""
        return bool(self._active)

    def list(self) -> ActiveFaults:
        """All rules, oldest first, also those that wait for their time."""
        return list(self._active.values())

    @staticmethod
    def parse(text: str) -> FaultRule:
        """The rule of a text such as `throttle:entity=orders,for=30s,after=3`; FaultError when it is none."""

        return parse_text(text)

    def check(self, operation: str, entity: str, now: float | None = None) -> FaultAction | None:
        """What is to go wrong with this one operation on this entity (None: nothing). Counts the operation."""
        if not self._active:
            return None
        return self._decide(Operation(operation), entity, self._clock.now() if now is None else now)

    def listen(self, listener: Callable[[ActiveFault | None], None]) -> None:
        """Have `listener` called with a rule that begins, and with None when one has ended."""
        self._listeners.append(listener)

    def refusing(self) -> bool:
        """Whether every new connection is refused at present."""
        return any(fault.rule.blanket_refusal for fault in self._in_force())

    def silent(self, entities: Iterable[str] = ()) -> bool:
        """Whether a connection that has links to `entities` gets no answers at present."""
        return any(True for _ in self._on_wire(FaultKind.SILENT, entities))

    def round_trip_seconds(self, entities: Iterable[str] = ()) -> float:
        """The added round trip of a connection that has links to `entities`."""
        paths = tuple(entities)
        return max((rule.round_trip_seconds or 0.0 for rule in self._on_wire(FaultKind.DELAY, paths)), default=0.0)

    def closed_partitions(self, entity: str) -> frozenset[int]:
        """The partitions of an entity that are away at present."""
        if not self._active:
            return _NO_PARTITIONS
        rules = (fault.rule for fault in self._in_force())
        return frozenset(rule.partition for rule in rules if rule.partition is not None and rule.matches_entity(entity))

    def _decide(self, operation: Operation, entity: str, now: float) -> FaultAction | None:
        chosen: FaultAction | None = None
        for fault in self._active.values():
            rule = fault.rule
            if rule.kind in _LASTING or rule.immediate:
                continue
            if not (fault.in_force(now) and rule.matches_operation(operation) and rule.matches_entity(entity)):
                continue
            if fault.strike() and chosen is None:
                chosen = _action(fault)
        return chosen

    def _in_force(self) -> ActiveFaults:
        now = self._clock.now()
        return [fault for fault in self._active.values() if fault.in_force(now)]

    def _on_wire(self, kind: FaultKind, entities: Iterable[str]) -> Iterable[FaultRule]:
        paths = tuple(entities)
        for fault in self._in_force():
            rule = fault.rule
            if rule.kind is kind and (rule.entity == "*" or any(rule.matches_entity(path) for path in paths)):
                yield rule

    def _begun(self, fault: ActiveFault) -> None:
        if fault.ends_at != float("inf"):
            fault.timers.append(self._clock.call_at(fault.ends_at, lambda: self._ended(fault)))
        if fault.rule.immediate:
            fault.hits += 1
        self._tell(fault)

    def _ended(self, fault: ActiveFault) -> None:
        if self._active.get(fault.id) is fault:
            self.remove(fault.id)

    def _tell(self, fault: ActiveFault | None) -> None:
        for listener in tuple(self._listeners):
            listener(fault)


def _action(fault: ActiveFault) -> FaultAction:
    rule = fault.rule
    condition, description = _CONDITIONS.get(rule.kind, (None, ""))
    return FaultAction(
        kind=rule.kind,
        rule_id=fault.id,
        condition=rule.condition if condition is not None and rule.condition is not None else condition,
        description=description if rule.description is None else rule.description,
        status=_STATUSES.get(rule.kind, 500) if rule.status is None else rule.status,
        lock_seconds=rule.lock_seconds or 0.0,
        delay_seconds=rule.round_trip_seconds or 0.0,
    )


def _validate(rule: FaultRule) -> None:
    for name in ("nth", "every", "count"):
        value = getattr(rule, name)
        if value is not None and value < 1:
            raise FaultError(f"{name} must be 1 or more, not {value}")
    if rule.after < 0 or rule.at_seconds < 0:
        raise FaultError("after and at must not be negative")
    if rule.duration_seconds is not None and rule.duration_seconds <= 0:
        raise FaultError("for must be longer than nothing")
    if rule.probability is not None and not 0 <= rule.probability <= 1:
        raise FaultError(f"probability must lie between 0 and 1, not {rule.probability}")
    if rule.status is not None and not 100 <= rule.status <= 599:
        raise FaultError(f"status must be an HTTP status, not {rule.status}")
    _validate_combination(rule)


def _validate_combination(rule: FaultRule) -> None:
    if not rule.entity:
        raise FaultError("entity must not be empty")
    if (rule.kind in (FaultKind.DELAY, FaultKind.SETTLE_DELAY)) != (rule.round_trip_seconds is not None):
        raise FaultError("delay and settle-delay need rtt, and nothing else has it")
    if rule.kind is FaultKind.SETTLE_DELAY and rule.operation not in (Operation.ANY, Operation.SETTLE):
        raise FaultError("settle-delay is of settlements alone")
    if (rule.kind is FaultKind.PARTITION_DOWN) != (rule.partition is not None):
        raise FaultError("partition-down needs partition, and nothing else has it")
    if rule.partition is not None and not 0 <= rule.partition < PARTITION_COUNT:
        raise FaultError(f"partition must lie between 0 and {PARTITION_COUNT - 1}, not {rule.partition}")
    if rule.round_trip_seconds is not None and rule.round_trip_seconds < 0:
        raise FaultError("rtt must not be negative")
    if rule.lock_seconds is not None and rule.kind is not FaultKind.EXPIRE_LOCKS:
        raise FaultError("only expire-locks has lock")
    if rule.lock_seconds is not None and rule.lock_seconds < 0:
        raise FaultError("lock must not be negative")
    if rule.kind in _LASTING and (rule.selective or rule.operation is not Operation.ANY):
        raise FaultError(f"{rule.kind} lasts for a time; it cannot hit single operations")
    if rule.kind in (FaultKind.DARK, FaultKind.REFUSE) and rule.entity != "*":
        raise FaultError(f"{rule.kind} is about the whole namespace; it has no entity")
    if rule.condition is not None and rule.kind not in _CONDITIONS:
        raise FaultError(f"{rule.kind} has no condition")


# Fault rules as text (command line) and as JSON (control endpoint).

_BARE_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST_SECONDS = 10 * 365 * 86_400.0
_MOST_COUNTED = 2**63
_MOST_CHARACTERS = 80


def _text_of(value: object) -> str:
    """The text of a JSON value; too long is as good as wrong."""
    if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) > _MOST_COUNTED):
        return ""
    return str(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_NAME_CHARACTERS:
        raise FaultError(f"{_shown(value)} is not a text of up to {_MOST_NAME_CHARACTERS} characters")
    return value


_MOST_NAME_CHARACTERS = 1024


def _shown(value: object) -> str:
    """The value in a message, cut where it gets too long to be read."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "what is there"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _duration(value: object) -> float:
    """Seconds of `30`, `30s`, `250ms`, `1h30m`."""
    text = _text_of(value).strip()[:_MOST_CHARACTERS]
    found = float(text) if _BARE_NUMBER.fullmatch(text) else short_duration_seconds(text)
    seconds = math.inf if found is None else found
    if seconds > _MOST_SECONDS:
        raise FaultError(f"{_shown(value)} is not a duration such as 30s, 250ms or 2m")
    return seconds


def _whole(value: object) -> int:
    try:
        number = int(_text_of(value))
    except ValueError:
        raise FaultError(f"{_shown(value)} is not a whole number") from None
    if abs(number) > _MOST_COUNTED:
        raise FaultError(f"{_shown(value)} is more than is ever counted")
    return number


def _number(value: object) -> float:
    try:
        return float(_text_of(value))
    except ValueError:
        raise FaultError(f"{_shown(value)} is not a number") from None


def _operation(value: object) -> Operation:
    try:
        return Operation(str(value))
    except ValueError:
        raise FaultError(f"unknown operation {_shown(value)}; one of {', '.join(Operation)}") from None


_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "entity": ("entity", _name),
    "operation": ("operation", _operation),
    "after": ("after", _whole),
    "nth": ("nth", _whole),
    "every": ("every", _whole),
    "probability": ("probability", _number),
    "count": ("count", _whole),
    "at": ("at_seconds", _duration),
    "for": ("duration_seconds", _duration),
    "rtt": ("round_trip_seconds", _duration),
    "lock": ("lock_seconds", _duration),
    "condition": ("condition", _name),
    "description": ("description", _name),
    "status": ("status", _whole),
    "partition": ("partition", _whole),
}
"""The word of the text and JSON forms -> field and reader. Durations in JSON are seconds or such texts."""

_ALIASES = {"op": "operation", "p": "probability"}


def parse_text(text: str) -> FaultRule:
    """`kind[:key=value,...]` -> rule. A comma inside a value is written `\\,`."""
    kind, _, rest = text.strip().partition(":")
    fields: dict[str, object] = {"kind": kind}
    for part in filter(None, re.split(r"(?<!\\),", rest)):
        key, equals, value = part.partition("=")
        key = _ALIASES.get(key.strip(), key.strip())
        if not equals:
            raise FaultError(f"{_shown(part)} is not key=value")
        if key in fields:
            raise FaultError(f"{_shown(key)} is given twice")
        fields[key] = value.strip().replace("\\,", ",")
    return parse_json(fields)


def parse_json(fields: Mapping[str, object]) -> FaultRule:
    """A mapping with `kind` and the words of the text form -> rule; FaultError says what is wrong with it."""
    if not isinstance(fields, Mapping):
        raise FaultError("a fault is an object with a kind")
    values = dict(fields)
    kind = values.pop("kind", None)
    if kind not in list(FaultKind):
        raise FaultError(f"unknown fault {_shown(kind)}; one of {', '.join(FaultKind)}")
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in _KEYS:
            raise FaultError(f"unknown key {_shown(key)}; known are {', '.join(_KEYS)}")
        name, read = _KEYS[key]
        if value is not None:
            arguments[name] = read(value)
    return FaultRule(FaultKind(str(kind)), **arguments)


def rule_to_json(rule: FaultRule) -> dict[str, object]:
    """The mapping that `parse_json` takes back; only what was said."""
    default = {"entity": "*", "operation": Operation.ANY, "after": 0, "at_seconds": 0.0}
    said = {key: getattr(rule, name) for key, (name, _) in _KEYS.items() if getattr(rule, name) != default.get(name)}
    return {"kind": str(rule.kind), **{key: _plain(value) for key, value in said.items()}}


def rule_to_text(rule: FaultRule) -> str:
    """The text form that `parse_text` takes back."""
    fields = rule_to_json(rule)
    kind = str(fields.pop("kind"))
    pairs = ",".join(f"{key}={_text(key, value)}" for key, value in fields.items())
    return f"{kind}:{pairs}" if pairs else kind


def fault_to_json(fault: ActiveFault) -> dict[str, object]:
    """A rule in force with its id, its text and what it has seen and hit (None where that is not counted)."""
    ends_at = None if fault.ends_at == float("inf") else fault.ends_at
    return {
        "id": fault.id,
        "text": rule_to_text(fault.rule),
        "rule": rule_to_json(fault.rule),
        "begins_at": fault.begins_at,
        "ends_at": ends_at,
        "seen": fault.seen if fault.rule.counted else None,
        "hits": fault.hits if fault.rule.counted else None,
    }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Operation) else value


def _text(key: str, value: object) -> str:
    if _KEYS[key][1] is _duration:
        return f"{value:g}s" if float(str(value)) >= 1 else f"{float(str(value)) * 1000:g}ms"
    return str(value).replace(",", "\\,")
