"""What a drill creates beside the live entities, the marks that prove whose it is, and what came of the drill.

Sample messages with sessions, TTLs, scheduled times and every awkward property type; and the proof of what arrived.

A fingerprint covers what has to arrive byte for byte: properties, application properties, body and footer as they are,
the header fields the application set, and its own annotations. What the broker adds is left out.
"""

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from statistics import median
from types import MappingProxyType
from typing import Any, Self

from sbpair.amqp import sections, types
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import HeaderField, PropertyField, Section
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, QueueFacts
from sbpair.core.inspection.diagnosis import Diagnosis, Verdict
from sbpair.core.inspection.snapshot import describe_counts
from sbpair.core.message import Received
from sbpair.core.names import backlog_queue_path, subscription_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side, backlog_settings
from sbpair.core.prices import Forecast, in_words
from sbpair.core.rewrite import BROKER_ANNOTATIONS
from sbpair.core.serialization import AS_TIME, HIDDEN, OMITTED_IF_NONE, column, iso_time, metric, published, rounded
from sbpair.core.words import counted, listed
from sbpair.service import MAX_ENTITY_PATH_CHARACTERS, EntityStatus, Tier

_APPLICATION_HEADER_FIELDS = (HeaderField.DURABLE, HeaderField.PRIORITY, HeaderField.TTL, HeaderField.FIRST_ACQUIRER)
_EXACT_SECTIONS = (
    Section.PROPERTIES,
    Section.APPLICATION_PROPERTIES,
    Section.DATA,
    Section.SEQUENCE,
    Section.VALUE,
    Section.FOOTER,
)


def sample(
    number: int,
    message_id: str,
    session: str | None,
    scheduled_at: float | None = None,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
    expires: bool = False,
) -> bytes:
    """A message that a careless relay would change: every kind of body, and property types that are seldom met.
    `scheduled_at`: UTC epoch seconds; `more`: further application properties; `expires`: it has a time to live in any
    case, as it must where an entity gives one to those that have none."""
    properties: dict[int, Any] = {
        PropertyField.MESSAGE_ID: message_id,
        PropertyField.SUBJECT: f"order {number}",
        PropertyField.CONTENT_TYPE: types.Symbol("application/json"),
    }
    if session is not None:
        properties[PropertyField.GROUP_ID] = session
    header: dict[int, Any] = {HeaderField.DURABLE: True}
    if expires or number % 5 == 2:
        header[HeaderField.TTL] = types.Uint(3_600_000 + number)
    annotations: dict[Any, Any] = {types.Symbol("x-opt-demo"): types.Long(number << 33)} if number % 4 == 1 else {}
    if scheduled_at is not None:
        annotations[types.Symbol("x-opt-scheduled-enqueue-time")] = types.Timestamp(round(scheduled_at * 1000))
    return sections.build(
        header=header,
        message_annotations=annotations or None,
        properties=properties,
        application_properties={**_awkward_properties(number), **more},
        footer={types.Symbol("demo-footer"): types.Ubyte(number % 256)} if number % 10 == 4 else None,
        **_body(number),
    )


def _awkward_properties(number: int) -> dict[Any, Any]:
    """Types that a careless relay loses: 64-bit integers, chars, decimals, described values, timestamps."""
    return {
        "number": types.Long(number + (1 << 40)),
        "small": types.Byte(number % 128 - 64),
        "price": types.Decimal128(number.to_bytes(16, "big")),
        "rate": types.Decimal64(number.to_bytes(8, "big")),
        "letter": types.Char(chr(0x4E00 + number % 500)),
        "due": types.Timestamp(1_790_000_000_000 + number),
        "span": types.Described(types.Symbol("com.microsoft:timespan"), types.Long(36_000_000_000 + number)),
        "id": uuid.UUID(int=number),
        "ratio": types.Float(number / 7),
        "name": f"Grüße №{number}",
        "flag": number % 2 == 0,
        "nothing": None,
    }


def _body(number: int) -> dict[str, Any]:
    text = f'{{"order": {number}, "note": "é"}}'.encode()
    match number % 6:
        case 0 | 1:
            return {"data": text}
        case 2:
            return {"data": [text, b"\x00\xff" * 20]}
        case 3:
            return {"value": {"order": types.Ulong(number), "lines": [types.Uint(1), "two", None]}}
        case 4:
            return {"sequences": [[types.Int(number), "a"], [types.Symbol("b")]]}
        case _:
            return {"value": (None, False, "", types.Long(0))[number // 6 % 4]}


def fingerprint(payload: bytes) -> str:
    """SHA-256 of everything in a message that has to arrive as it was sent."""
    spans = sections.scan(payload)
    digest = hashlib.sha256()
    for span in spans:
        if span.section in _EXACT_SECTIONS:
            digest.update(payload[span.start : span.end])
    header = sections.read(payload, spans, Section.HEADER)
    digest.update(encode([sections.field(header, index) for index in _APPLICATION_HEADER_FIELDS]))
    annotations = sections.read(payload, spans, Section.MESSAGE_ANNOTATIONS) or {}
    session = sections.field(sections.read(payload, spans, Section.PROPERTIES), PropertyField.GROUP_ID)
    for key, value in sorted(annotations.items()):
        # A message with a session comes back with a partition key that says the same, as from the retired library.
        says_the_session = key == "x-opt-partition-key" and value == session
        if key not in BROKER_ANNOTATIONS and not says_the_session:
            digest.update(encode([key, value]))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Proof:
    """What arrived at one place, held against what was sent there."""

    place: str
    expected: int
    arrived: int
    missing: tuple[str, ...]
    doubled: tuple[str, ...]
    altered: tuple[str, ...]
    out_of_order: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.missing or self.doubled or self.altered or self.out_of_order) and self.expected == self.arrived


def compare(place: str, expected: dict[str, str], arrived: Sequence[Received]) -> Proof:
    ids = [str(one.message_id) for one in arrived]
    counted = Counter(ids)
    altered = {name for name, one in zip(ids, arrived, strict=True) if expected.get(name) != fingerprint(one.payload)}
    return Proof(
        place=place,
        expected=len(expected),
        arrived=len(arrived),
        missing=tuple(sorted(set(expected) - set(ids))),
        doubled=tuple(sorted(name for name, count in counted.items() if count > 1)),
        altered=tuple(sorted(altered)),
        out_of_order=tuple(_out_of_order(zip(ids, arrived, strict=True))),
    )


def _out_of_order(arrived: Iterable[tuple[str, Received]]) -> Iterable[str]:
    """Messages of a session that came after a later one; ids grow in the order of sending."""
    last: dict[str, str] = {}
    for name, message in arrived:
        if message.session_id is None:
            continue
        latest = last.get(message.session_id, "")
        if name < latest:
            yield name
        last[message.session_id] = max(name, latest)


DRILL = "sbpair-drill"
"""Begins the paths of all that a drill creates, and names the application property of its messages."""
IDLE_SECONDS = 3600.0
"""What a killed drill has left, the service deletes itself when nobody has used it for so long. Basic cannot."""
MOST_BACKLOG_QUEUES = 3
DEFAULT_MESSAGES = 60

# Marks. The name alone proves nothing: anybody can create an entity of any name.

_MARK = re.compile(rf"{DRILL} (?P<run>[0-9a-z-]{{1,40}}); if it is still here after (?P<until>[0-9T:.-]{{1,23}}Z), .*")


def label_of(run: str) -> str:
    """The first segment of the paths of a run; on the secondary it stands where the primary's name stands."""
    return f"{DRILL}-{run}"


def mark(run: str, until: float) -> str:
    """The UserMetadata of what a run creates. `until`: when it has ended for certain, UTC epoch seconds."""
    return f"{DRILL} {run}; if it is still here after {iso_time(until)}, the drill was killed: delete it."


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose an entity is."""

    run: str
    until: float

    @classmethod
    def of(cls, facts: EntityFacts | QueueFacts) -> Self | None:
        """None for everything that is not provably a drill's: its metadata and its path have to agree."""
        found = _MARK.fullmatch(facts.settings.user_metadata or "")
        if found is None or not facts.path.lower().startswith(f"{label_of(found['run'])}/"):
            return None
        try:
            return cls(found["run"], datetime.fromisoformat(found["until"]).timestamp())
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Shadow:
    """An entity that a drill creates."""

    side: Side = field(metadata=column("Side"))
    kind: EntityKind = field(metadata=column("Kind"))
    path: str = field(metadata=column("Created for the drill"))
    like: str = field(metadata=column("With the settings of"))
    """The live entity; of a backlog queue that is missing: the path that it should have."""
    settings: EntitySettings = field(metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """What a run creates, and how many messages it sends to each entity."""

    run: str
    entities: Mapping[str, tuple[Shadow, Shadow]]
    """Path of a live queue or topic -> its shadow, and what its messages are received from."""
    queues: tuple[Shadow, ...]
    messages: int

    @property
    def shadows(self) -> tuple[Shadow, ...]:
        """In the order of creation."""
        return (*dict.fromkeys(each for both in self.entities.values() for each in both), *self.queues)

    @property
    def forecast(self) -> Forecast:
        """Of the whole drill: both namespaces listed three times, shadows created, disabled, enabled, browsed, deleted;
        every message sent and received, half of them by way of the backlog."""
        number = len(self.entities)
        return Forecast(4 * len(self.shadows) + 6 * number + 8, number * (3 * self.messages + 3 * (self.messages // 2)))


def plan_drill(
    run: str,
    until: float,
    both: "LiveEntities",
    wanted: Sequence[EntityFacts],
    backlog: Sequence[str],
    tiers: Mapping[Side, Tier | None],
    messages: int,
) -> DrillPlan:
    """The shadows of a run for the `wanted` queues and topics, of `both` namespaces, and the `backlog` queues of the
    pair that should be there."""

    def shadow(side: Side, kind: EntityKind, path: str, like: str, settings: EntitySettings) -> Shadow:
        """Active, forwarding nothing, marked, and gone by itself when nobody uses it."""
        own = replace(
            settings,
            status=EntityStatus.ACTIVE,
            forward_to=None,
            forward_dead_lettered_messages_to=None,
            auto_delete_on_idle_seconds=None if tiers[side] is Tier.BASIC else IDLE_SECONDS,
            user_metadata=mark(run, until),
        )
        return Shadow(side, kind, path, like, own)

    label, entities = label_of(run), {}
    for index, facts in enumerate(wanted):
        path, settings = f"{label}/{facts.path}", facts.settings
        if len(path) > MAX_ENTITY_PATH_CHARACTERS:
            path = f"{label}/{index}"
        if tiers[Side.PRIMARY] is not Tier.BASIC:  # which has one time to live for all
            settings = replace(settings, default_message_time_to_live_seconds=None)
        made = below = shadow(Side.PRIMARY, facts.kind, path, facts.path, settings)
        if facts.kind is EntityKind.TOPIC:
            beginning = f"{facts.path.lower()}/subscriptions/"
            by_session = any(
                one.settings.requires_session and key.startswith(beginning) for (_, key), one in both.items()
            )
            kind, name = EntityKind.SUBSCRIPTION, subscription_path(path, "drill")
            below = shadow(Side.PRIMARY, kind, name, facts.path, EntitySettings(requires_session=by_session))
        entities[facts.path] = (made, below)
    documented = EntitySettings(**asdict(backlog_settings(tiers[Side.SECONDARY])))
    queues = []
    for index, like in enumerate(backlog[:MOST_BACKLOG_QUEUES]):
        found = both.get((Side.SECONDARY, like.lower()))
        path = backlog_queue_path(label, index)
        settings = documented if found is None else found.settings
        queues.append(shadow(Side.SECONDARY, EntityKind.QUEUE, path, like, settings))
    return DrillPlan(run, entities, tuple(queues), messages)


# What came of it.


class Reaction(StrEnum):
    """What senders experience in an outage."""

    DIVERTED = "diverted"
    WAITED = "waited"
    """The primary took everything, perhaps late; nothing was diverted."""
    REFUSED = "refused"
    """The application got errors."""


def _figure(title: str, name: str, digits: int = 2) -> Mapping[str, Any]:
    return {**rounded(digits), **column(title, counts=True), **metric(f"sbpair_drill_{name}")}


@dataclass(frozen=True, slots=True)
class DrilledEntity:
    """What became of the messages of one shadow, and how long it took. Seconds are None where it did not happen."""

    outage: str = field(metadata=column("Outage", spare=True))
    entity: str = field(metadata=column("Entity"))
    sent: int = field(metadata=column("Sent", counts=True, spare=True))
    diverted: int = field(metadata=column("Diverted", counts=True))
    failed: int = field(metadata=column("Failed", counts=True))
    """Sends that raised to the application."""
    divert_seconds: float | None = field(metadata=_figure("Divert s", "divert_seconds"))
    """From the outage to the first diverted message."""
    fail_back_seconds: float | None = field(metadata=_figure("Fail back s", "fail_back_seconds"))
    """From the end of the outage to the failback."""
    first_back_seconds: float | None = field(metadata=_figure("First back s", "first_back_seconds"))
    """From the start of the drain to the first message back."""
    back_per_second: float | None = field(metadata=_figure("Back/s", "back_messages_per_second", 1))
    """Messages, from the start of the drain to the last one back."""
    overtaken: int = field(metadata=column("Overtaken", counts=True, spare=True))
    """Messages of sessions that later ones, sent after the failback, overtook: `hold_sessions` is off."""
    expects: Reaction = field(metadata=column("Expected", spare=True))
    proof: Proof
    trouble: str = ""
    """The first error that the application got, or why something is missing."""

    verdict: str = field(init=False, metadata=column("Verdict", colours=True))
    """`proved`, or `failed`."""

    def __post_init__(self) -> None:
        reaction = Reaction.DIVERTED if self.diverted else Reaction.WAITED
        as_expected = (Reaction.REFUSED if self.failed else reaction) is self.expects
        object.__setattr__(self, "verdict", "proved" if self.proof.holds and as_expected else "failed")

    @property
    def sentence(self) -> str:
        proof = self.proof
        wrong = [
            f"{len(found):,} {name.replace('_', ' ')}"
            for name in ("missing", "doubled", "altered", "out_of_order")
            if (found := getattr(proof, name))
        ]
        wrong += [f"{self.overtaken:,} overtaken in their sessions"] if self.overtaken else []
        after = "" if self.divert_seconds is None else f" after {self.divert_seconds:.1f} s"
        return (
            f"{counted(self.diverted, 'message')} diverted{after}, {counted(self.failed, 'send')} failed; "
            f"{proof.arrived:,} of {proof.expected:,} accepted messages arrived, "
            f"{listed(wrong) or 'each once, unchanged, sessions in order'}. {self.trouble}"
        ).strip()


@dataclass(frozen=True, slots=True)
class DrillLine:
    """One entity of one drill, as a history keeps it. `at`: ISO 8601."""

    at: str = field(metadata=column("Earlier drill"))
    entity: str = field(metadata=column("Entity"))
    divert_seconds: float | None = field(metadata=column("Divert s", counts=True))
    fail_back_seconds: float | None = field(metadata=column("Fail back s", counts=True))
    first_back_seconds: float | None = field(metadata=column("First back s", counts=True))
    back_per_second: float | None = field(metadata=column("Back/s", counts=True))
    verdict: str = field(metadata=column("Verdict", colours=True))


LiveEntities = Mapping[tuple[Side, str], EntityFacts]
"""Entities by side and path in lower case."""
NOT_REMOVED, LIVE_COUNT, ORDER = "not removed", "live count", "session order"
"""Checks of a drill itself; its other findings are those of `doctor` and `audit`."""


def live_differences(before: LiveEntities, after: LiveEntities) -> Iterator[Diagnosis]:
    """Live entities whose counts are others after the drill than before: perhaps by the users' own traffic."""

    def said(facts: EntityFacts | None) -> str:
        return "not there" if facts is None else describe_counts(facts.counts)

    for key in sorted(before.keys() | after.keys()):
        there, now = before.get(key), after.get(key)
        if there is None or now is None or there.counts != now.counts:
            detail = f"{said(there)} before the drill, {said(now)} after it"
            yield Diagnosis(LIVE_COUNT, f"{key[0].value} {key[1]}", Verdict.SKIPPED, detail)


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill of a pair: what it did, measured and found."""

    pair: str
    at: float = field(metadata=AS_TIME)
    dry_run: bool
    created: tuple[Shadow, ...]
    live_entities: int
    """Of both namespaces, before the drill."""
    entities: tuple[DrilledEntity, ...] = ()
    findings: tuple[Diagnosis, ...] = ()
    """Rights and settings that would fail in earnest, counts that differ, what could not be removed."""
    forecast: Forecast | None = field(default=None, metadata=OMITTED_IF_NONE)
    cleaned: tuple[str, ...] = ()
    """What a drill that was killed had left, and was removed first."""
    earlier: tuple[DrillLine, ...] = ()
    stopped: bool = False
    plan: DrillPlan | None = field(default=None, metadata=HIDDEN)

    @published
    def proved(self) -> bool:
        """The messages of every entity came back once, unchanged and in order, and were diverted in the outage."""
        return bool(self.entities) and all(one.verdict == "proved" for one in self.entities)

    def _of(self, check: str) -> list[Diagnosis]:
        return [row for row in self.findings if row.check == check]

    @property
    def exit(self) -> Exit:
        if not self.proved and not self.dry_run:
            return Exit.FAILED
        if self._of(NOT_REMOVED):
            return Exit.PARTIAL
        found = any(row.result in (Verdict.WARNING, Verdict.ERROR) for row in self.findings)
        return Exit.FINDINGS if found or self.dry_run else Exit.OK

    def summary(self) -> str:
        if self.plan is not None and self.dry_run:
            return (
                f"{counted(len(self.created), 'entity', 'entities')} would be created beside the live ones, "
                f"{counted(self.plan.messages, 'message')} sent to each shadow of {listed(self.plan.entities)}, and "
                f"all of it removed: about {in_words(self.plan.forecast)}. Nothing was changed."
            )
        left, differ = len(self._of(NOT_REMOVED)), len(self._of(LIVE_COUNT))
        live = counted(self.live_entities, "live entity", "live entities")
        removed = "All that it created is removed."
        if left:
            removed = f"{counted(left, 'entity', 'entities')} of a drill could not be removed."
        if self.stopped:
            return f"The drill was stopped before its end. {removed}"
        counts = f"The counts of {live} are the same as before."
        if differ:
            counts = f"Of {live}, {differ:,} {'has' if differ == 1 else 'have'} other counts than before."
        order = "but messages of sessions were overtaken" if self._of(ORDER) else "sessions in order"
        proof = f"PROVED: each accepted message arrived once, unchanged, {order}."
        if not self.proved:
            failed = (f"{one.entity} ({one.outage})" for one in self.entities if one.verdict != "proved")
            proof = f"NOT PROVED: {listed(failed)}."
        wrong = [row for row in self.findings if row.check not in (NOT_REMOVED, LIVE_COUNT)]
        problems = f" {counted(len(wrong), 'thing')} would be wrong in earnest." if wrong else ""
        return f"{proof} {removed} {counts}{problems}"

    def notes(self) -> Iterator[str]:
        if self.cleaned:
            first = "Would be removed" if self.dry_run else "Removed"
            yield f"{first} first, left by a drill that was killed: {listed(self.cleaned)}."
        for drilled in self.entities:
            yield f"{drilled.entity} ({drilled.outage}): {drilled.sentence}"
            name, now = drilled.entity, drilled.divert_seconds
            times = [line.divert_seconds for line in self.earlier if line.entity == name and line.divert_seconds]
            if times and now is not None:
                usual = f"{median(times):.1f} s in {counted(len(times), 'earlier drill')}"
                yield f"{name}: diverted after {now:.1f} s; the median was {usual}."
        for row in self.findings:
            yield f"{row.check}, {row.subject}: {row.detail.rstrip('.')}. {row.next_step}".strip()
