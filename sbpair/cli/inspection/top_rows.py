"""The rows that `sbpair top` shows of what was read, and the command that acts on each: no terminal, no I/O."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Literal

from sbpair.cli.inspection.exporter import Source, Watched
from sbpair.core.access import NamespaceAccess
from sbpair.core.durations import format_duration
from sbpair.core.entities import EntityKind
from sbpair.core.inspection.entity import Listed, ScrapedNamespace
from sbpair.core.inspection.status import REACHABLE, StatusReport
from sbpair.core.redact import printable
from sbpair.core.transfer.peeked import PeekedMessage
from sbpair.service import EntityStatus

Value = str | float | None


class Unit(StrEnum):
    """How the values of a column are shown."""

    NAME = "name"
    """A text that gets the room that the others leave, and is cut where that is too little."""
    TEXT = "text"
    COUNT = "count"
    RATE = "rate"
    AGE = "age"
    NUMBER = "number"
    """A name, such as a sequence number."""

    @property
    def side(self) -> Literal["left", "right"]:
        return "left" if self in (Unit.NAME, Unit.TEXT) else "right"


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at: a list of what there is, an entity's messages or dead letters, or one message."""

    kind: str
    access: NamespaceAccess | None = None
    """The namespace of the entity."""
    path: str = ""
    """Of the entity; of a pair its name."""
    dead_letter: bool = False
    number: int = 0

    @property
    def entity(self) -> str:
        """As commands take it."""
        return f"{self.access.label}:{self.path}" if self.access else self.path


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    values: tuple[Value, ...]
    command: tuple[str, ...]
    opens: Place
    stale: bool = False
    """Its source cannot be read: this is what it was."""
    alarming: bool = False

    @property
    def command_line(self) -> str:
        """What is shown is what is copied: without anything that a terminal obeys."""
        return printable(shlex.join(("sbpair", *self.command)))


PAIRS, QUEUES, ENTITIES, LETTERS = "pairs", "backlog queues", "entities", "dead letters"
MESSAGES, MESSAGE = "messages", "message"
_NAME, _TEXT, _COUNT, _RATE, _AGE = Unit.NAME, Unit.TEXT, Unit.COUNT, Unit.RATE, Unit.AGE
COLUMNS: Mapping[str, Mapping[str, Unit]] = {
    PAIRS: {
        "Pair": _NAME, "Primary": _TEXT, "Secondary": _TEXT, "Waiting": _COUNT, "Per s": _RATE, "Dead": _COUNT,
        "Oldest": _AGE,
    },
    QUEUES: {"Backlog queue": _NAME, "State": _TEXT, "Waiting": _COUNT, "Dead": _COUNT, "Oldest": _AGE},
    ENTITIES: {
        "Entity": _NAME, "Kind": _TEXT, "Active": _COUNT, "Per s": _RATE, "Dead": _COUNT, "Sched.": _COUNT,
        "Oldest": _AGE,
    },
    LETTERS: {"Entity": _NAME, "Cause": _TEXT, "Letters": _COUNT, "Per s": _RATE},
    MESSAGES: {
        "Number": Unit.NUMBER, "Age": _AGE, "Session": _TEXT, "Message id": _NAME, "State or reason": _TEXT,
        "Bytes": _COUNT,
    },
}  # fmt: skip
"""What each list shows: titles, and the units of what is below them."""
SORTED_BY = {PAIRS: 3, QUEUES: 2, ENTITIES: 2, LETTERS: 2}
"""Column by which a list is sorted first, the largest value before the others; any other list by its first column."""


def shown(value: Value, unit: Unit) -> str:
    """A value as a cell. Names and texts are others': nothing in them drives the terminal."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if unit is Unit.AGE:
        return format_duration(round(value))
    if unit is Unit.NUMBER:
        return str(value)
    return f"{value:+,.1f}" if unit is Unit.RATE else f"{value:,.0f}"


def rows_of(watched: Watched, place: Place) -> Iterator[Row]:
    """What was read last, for a list that is kept fresh."""
    return {PAIRS: _pairs, QUEUES: _queues, ENTITIES: _entities, LETTERS: _letters}[place.kind](watched, place)


def _pairs(watched: Watched, place: Place) -> Iterator[Row]:
    for source in watched.sources:
        if source.kind is not StatusReport:
            continue
        found = source.latest
        opens = Place(QUEUES, path=source.name)
        command: tuple[str, ...] = ("status", source.name)
        if not isinstance(found, StatusReport):
            yield Row(source.name, (source.name, *[None] * 6), command, opens, stale=bool(source.trouble))
            continue
        backlog, sides = found.backlog, found.status.sides
        dark = [side for side in sides if side.state != REACHABLE]
        if dark:
            command = ("doctor", source.name)
        elif backlog.active:
            command = ("drain", source.name, "--dry-run")
        elif backlog.dead_letter:
            command = ("peek", source.name, "--dlq")
        values = (*(side.state for side in sides), backlog.active, found.rate_per_second or None, backlog.dead_letter)
        alarming = bool(dark or backlog.active or backlog.dead_letter)
        row = (source.name, *values, backlog.oldest_age_seconds)
        yield Row(source.name, row, command, opens, bool(source.trouble), alarming)


def _queues(watched: Watched, place: Place) -> Iterator[Row]:
    for source in watched.sources:
        found = source.latest
        if source.name != place.path or not isinstance(found, StatusReport):
            continue
        for queue in found.backlog.queues:
            at = queue.oldest_enqueued_at
            age = None if at is None else max(0.0, found.status.taken_at - at)
            values = (queue.queue, queue.state.value, queue.active, queue.dead_letter, age)
            dead = not queue.active and bool(queue.dead_letter)
            index = queue.queue.rpartition("/")[2]
            command = ("peek", source.name, "--queue", index, *(("--dlq",) if dead else ()))
            opens = Place(MESSAGES, None if source.pair is None else source.pair.secondary, queue.queue, dead)
            alarming = bool(queue.active or queue.dead_letter)
            yield Row(queue.queue, values, command, opens, bool(source.trouble), alarming)


def _scraped(watched: Watched) -> Iterator[tuple[Source[ScrapedNamespace], ScrapedNamespace, Listed, "_Rate"]]:
    """Each entity with its source, and with what tells how fast a number of it grows."""
    for source in watched.sources:
        if source.kind is ScrapedNamespace and isinstance(found := source.latest, ScrapedNamespace):
            before = source.before if isinstance(source.before, ScrapedNamespace) else None
            earlier = {} if before is None else {one.path: one for one in before.listed.entities}
            for entity in found.listed.entities:
                yield source, found, entity, _Rate(before, earlier.get(entity.path))


@dataclass(frozen=True, slots=True)
class _Rate:
    """An entity as it was read before."""

    before: ScrapedNamespace | None
    entity: Listed | None

    def of(self, found: ScrapedNamespace, now: int, number: Callable[[ScrapedNamespace, Listed], int]) -> float | None:
        """How much a second; None where that is not known, or nothing."""
        if self.before is None or self.entity is None or (seconds := found.taken_at - self.before.taken_at) <= 0:
            return None
        return (now - number(self.before, self.entity)) / seconds or None


def _entities(watched: Watched, place: Place) -> Iterator[Row]:
    for source, found, entity, rate in _scraped(watched):
        growth = rate.of(found, entity.active, lambda _, one: one.active)
        enabled = entity.status == EntityStatus.ACTIVE.value
        kind = ("sub" if entity.kind is EntityKind.SUBSCRIPTION else entity.kind.value) if enabled else entity.status
        age = found.oldest_age_seconds.get(entity.path)
        name = f"{source.name}:{entity.path}"
        values = (name, kind, entity.active, growth, entity.dead_letter, entity.scheduled, age)
        dead = not entity.active and bool(entity.dead_letter)
        opens = Place("" if entity.kind is EntityKind.TOPIC else MESSAGES, source.access, entity.path, dead)
        command = ("entity", "show") if not entity.active else ("entity", "peek")
        command = ("dlq", "list") if entity.dead_letter else command
        alarming = bool(entity.dead_letter) or not enabled
        yield Row(name, values, (*command, opens.entity), opens, bool(source.trouble), alarming)


def _letters(watched: Watched, place: Place) -> Iterator[Row]:
    for source, found, entity, rate in _scraped(watched):
        for cause, letters in found.causes(entity).items():
            growth = rate.of(found, letters, partial(_letters_of, cause))
            opens = Place(MESSAGES, source.access, entity.path, dead_letter=True)
            values = (f"{source.name}:{entity.path}", cause, letters, growth)
            key, command = f"{values[0]}\0{cause}", ("dlq", "list", opens.entity)
            yield Row(key, values, command, opens, bool(source.trouble), bool(growth))


def _letters_of(cause: str, scraped: ScrapedNamespace, entity: Listed) -> int:
    return scraped.causes(entity).get(cause, 0)


def message_rows(place: Place, messages: tuple[PeekedMessage, ...], now: float) -> Iterator[Row]:
    """The messages of an entity, as they were when it was opened."""
    for message in messages:
        at = None if message.enqueued_at is None else datetime.fromisoformat(message.enqueued_at).timestamp()
        values = (
            message.sequence_number,
            None if at is None else max(0.0, now - at),
            message.session_id,
            message.message_id,
            message.reason if place.dead_letter else message.state.value,
            message.size_bytes,
        )
        opens = replace(place, kind=MESSAGE, number=message.sequence_number)
        command = ("explain", place.entity, str(message.sequence_number), *(("--dlq",) if place.dead_letter else ()))
        yield Row(str(message.sequence_number), values, command, opens)


def message_text(message: PeekedMessage, *, with_body: bool) -> list[str]:
    """The facts of a message, a line each. What applications wrote into it is hidden until it is asked for."""
    facts = {
        "number": str(message.sequence_number),
        "state": message.state.value,
        "enqueued": message.enqueued_at,
        "message id": message.message_id,
        "session": message.session_id,
        "subject": message.subject,
        "destination": message.destination,
        "deliveries": str(message.delivery_count),
        "time to live": message.ttl_seconds and format_duration(message.ttl_seconds),
        "bytes": f"{message.size_bytes:,}",
        "reason": message.reason,
        "description": message.description,
    }
    lines = [f"{name:<13}{printable(str(value))}" for name, value in facts.items() if value]
    if not with_body:
        return [*lines, "", f"b shows the body and {len(message.application_properties)} application properties"]
    lines += [
        f"  {printable(name)} = {printable(str(value))}" for name, value in message.application_properties.items()
    ]
    return [*lines, "", *map(printable, (message.body or "(empty)").splitlines())]
