"""What became of the messages of a drain or syphon: one list of counters.

The fields of `DrainReport` are that list. Each says what it counts, of which moment in a message's life; the pump's
machine tells those moments to a `Tally`. Sums over several runs, the JSON and its schema, metrics and table rows are
all read off the fields' metadata, so a new counter is a new field here and nothing else.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from sbpair.core.errors import ServiceError
from sbpair.core.message import Disposition, value_class
from sbpair.core.serialization import AS_OBJECT, HIDDEN, INLINED, column, rounded
from sbpair.core.transfer.state import Item, Settle
from sbpair.core.words import merge_spellings


class CounterKind(StrEnum):
    """How a counter is added up over several runs."""

    COUNT = "count"
    BY_NAME = "by name"
    """(name, number) pairs, added up name by name."""
    LAST = "last"
    """Only the last run's is still so."""


class Moment(StrEnum):
    """What the machine tells a tally, with the value that counters look at."""

    ACCEPTED = "accepted"
    """An `Accepted`: their destination took the messages."""
    SETTLED = "settled"
    """A `Settled`: the broker confirmed them."""
    LOCK_LOST = "lock lost"
    """An `Item` whose lock ran out while it was held."""


@value_class
class Accepted:
    """Messages that were taken where they were sent, all at once."""

    items: Sequence[Item]
    destination: str


@value_class
class Settled:
    """This many messages that were settled like this one."""

    settle: Settle
    count: int = 1


def alike(settles: Iterable[Settle]) -> Iterator[Settled]:
    """Settlements that say the same, neighbours together: most often all."""
    first, count = None, 0
    for settle in settles:
        if (
            first is not None
            and settle.disposition is first.disposition
            and settle.outcome == first.outcome
            and settle.reason == first.reason
        ):
            count += 1
            continue
        if first is not None:
            yield Settled(first, count)
        first, count = settle, 1
    if first is not None:
        yield Settled(first, count)


def _one(happened: object) -> int:
    return 1


def _all(accepted: Accepted) -> int:
    return len(accepted.items)


def _count(
    what: str,
    on: Moment | None = None,
    of: Callable[[Any], int] = _one,
    *,
    metric: str,
    row: str = "",
    last: bool = False,
) -> Any:
    """A field with a number: the sum of `of` over all that happened of kind `on`; without that the run itself says it.

    `metric`: its name for monitoring, with the unit at its end. `row`: the words of its row in the table, which is left
    out where the number is 0; no row if there are none.
    """
    kind = CounterKind.LAST if last else CounterKind.COUNT
    said = {"kind": kind, "what": what, "on": on, "of": of, "metric": metric, "row": row, "number": True}
    return field(default=0, metadata=said)


def _by_name(what: str, on: Moment, of: Callable[[Any], Mapping[str, int]], *, row: str, entities: bool = False) -> Any:
    """A field with numbers by name: the sums of what `of` gives. An empty `row` is said by the command, which knows
    where the messages went. `entities`: the names are those of entities, which are compared without case."""
    meant = {"kind": CounterKind.BY_NAME, "what": what, "on": on, "of": of, "row": row, "entities": entities}
    return field(default=(), metadata={**AS_OBJECT, **meant})


def _payload_bytes(accepted: Accepted) -> int:
    return sum([len(item.payload) for item in accepted.items])


def _perhaps_twice(accepted: Accepted) -> int:
    return sum([item.attempts > 1 for item in accepted.items])


def _in_a_transaction(accepted: Accepted) -> int:
    return sum([item.completed for item in accepted.items])


def _settled_by(*dispositions: Disposition) -> Callable[[Settled], int]:
    return lambda settled: settled.count if settled.settle.disposition in dispositions else 0


def _completed_as(outcome: str) -> Callable[[Settled], int]:
    def count(settled: Settled) -> int:
        settle = settled.settle
        return settled.count if settle.disposition is Disposition.COMPLETE and settle.outcome == outcome else 0

    return count


def _reason(settled: Settled) -> Mapping[str, int]:
    settle = settled.settle
    return {settle.reason: settled.count} if settle.disposition is Disposition.DEAD_LETTER else {}


def _fault(accepted: Accepted) -> Mapping[str, int]:
    return Counter([item.fault for item in accepted.items if item.fault is not None])


def _destination(accepted: Accepted) -> Mapping[str, int]:
    return {accepted.destination: len(accepted.items)} if accepted.items else {}


Named = tuple[tuple[str, int], ...]
FILTERED_OUT = "filtered out"
"""The reason for which a message stays that nobody asked for."""
TOO_MANY_LEFT = "left"
"""What ended a run that left as many messages as it can keep locked: those behind them were not handed out to it."""
DEAD_LETTERED = "dead-lettered"
"""What a row says of messages that were dead-lettered in this run."""
UNDELIVERABLE = "undeliverable: "
"""Beginning of the reason for which a dead letter is left that no drain can send."""


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """A row of a table that says what became of messages."""

    what: str = field(metadata=column("Outcome"))
    where: str = field(metadata=column("Destination or reason"))
    messages: int | None = field(metadata=column("Messages", counts=True))
    """None: it is not known how many."""


@dataclass(frozen=True, slots=True)
class Left:
    """Messages that are still in the backlog, and why."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueFailure:
    """A queue that could not be emptied because it could not be read."""

    queue: str
    error: ServiceError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class LockedQueue:
    """A queue that was waited for: its next message was locked by another receiver, which was not overtaken."""

    queue: str
    until: float
    """When that lock ends at the latest, UTC epoch seconds, unless its holder renews it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What became of the messages. In a dry run: what would become of them."""

    forwarded: int = _count(
        "Messages accepted where they were sent in this run.", Moment.ACCEPTED, _all, metric="sbpair_forwarded_messages"
    )
    forwarded_bytes: int = _count(
        "Size of the messages accepted where they were sent in this run.",
        Moment.ACCEPTED,
        _payload_bytes,
        metric="sbpair_forwarded_bytes",
    )
    in_transactions: int = _count(
        "Of these, sent and completed in one transaction.",
        Moment.ACCEPTED,
        _in_a_transaction,
        metric="sbpair_moved_in_transactions_messages",
        row="moved in transactions",
    )
    sent_again: int = _count(
        "Of these, sent again after an unclear answer, with the same id: the first send may have arrived too.",
        Moment.ACCEPTED,
        _perhaps_twice,
        metric="sbpair_sent_again_messages",
        row="sent again after an unclear answer",
    )
    completed: int = _count(
        "Messages completed in their backlog queue after they were accepted.",
        Moment.SETTLED,
        _completed_as("forwarded"),
        metric="sbpair_completed_messages",
    )
    already_forwarded: int = _count(
        "Messages that an earlier attempt had sent; completed now without being sent again.",
        Moment.SETTLED,
        _completed_as("already-forwarded"),
        metric="sbpair_already_forwarded_messages",
        row="sent before, completed now",
    )
    uncompleted: int = _count(
        "Messages sent, but not confirmed as completed: they will be redelivered with the same id.",
        metric="sbpair_uncompleted_messages",
        last=True,
    )
    dead_lettered: int = _count(
        "Messages dead-lettered in this run.",
        Moment.SETTLED,
        _settled_by(Disposition.DEAD_LETTER),
        metric="sbpair_dead_lettered_messages",
    )
    released: int = _count(
        "Messages received and released again.",
        Moment.SETTLED,
        _settled_by(Disposition.RELEASE, Disposition.ABANDON, Disposition.DEFER),
        metric="sbpair_released_messages",
    )
    pings: int = _count(
        "Ping messages completed.",
        Moment.SETTLED,
        _completed_as("ping"),
        metric="sbpair_completed_ping_messages",
        row="ping messages completed",
    )
    purged: int = _count(
        "Messages deleted on request.",
        Moment.SETTLED,
        _completed_as("purged"),
        metric="sbpair_purged_messages",
        row="deleted",
    )
    session_states: int = _count(
        "Session states that were moved along with their sessions.",
        metric="sbpair_moved_session_states",
        row="session states moved",
    )
    filtered_out: int = _count(
        "Messages that the filter of this run leaves aside.",
        metric="sbpair_filtered_out_messages",
        row="filtered out",
        last=True,
    )
    locks_lost: int = _count(
        "Locks that ran out while a message was held.", Moment.LOCK_LOST, metric="sbpair_lost_locks"
    )
    per_destination: Named = _by_name(  # noqa: RUF009 - it is a field
        "Messages by where they were sent.", Moment.ACCEPTED, _destination, row="", entities=True
    )
    dead_letter_reasons: Named = _by_name(  # noqa: RUF009 - it is a field
        "Messages dead-lettered in this run, by reason.", Moment.SETTLED, _reason, row=DEAD_LETTERED
    )
    original_faults: Named = _by_name(  # noqa: RUF009 - it is a field
        "Of messages sent on from a dead-letter queue: why they had been there.",
        Moment.ACCEPTED,
        _fault,
        row="original dead-letter reason",
    )
    left: tuple[Left, ...] = field(default=(), metadata=AS_OBJECT)
    """What could not go, by reason; what a filter leaves aside was not asked for and is `filtered_out`."""
    failures: tuple[QueueFailure, ...] = ()
    confirmed_empty: bool = field(default=False, metadata=HIDDEN)
    """The part of the queues that it was asked about holds nothing: a browse and the counts, where they could be had,
    say so. Whether the whole backlog is empty is another question: `core.backlog`."""
    ended_by: str = "empty"
    """`empty` (nothing more to do), `idle` (nothing came for as long as was asked for), `stop`, `time`, `count`,
    `filter` (it cannot be evaluated for a message), `left` (see `TOO_MANY_LEFT`)."""
    broken_off: str | None = None
    """The error that ended the run after messages had moved."""
    archive: Path | None = None
    dry_run: bool = False
    locked: tuple[LockedQueue, ...] = ()
    """Queues whose next message another receiver had locked when the run ended."""
    unchecked: tuple[str, ...] = ()
    """Of a dry run: destinations of which nobody could say whether they are full or take sessions only."""
    seconds: float = field(default=0.0, metadata=rounded(3))

    @property
    def has_moved(self) -> bool:
        """Whether anything left its queue, or was sent."""
        gone = self.completed or self.already_forwarded or self.dead_lettered or self.pings or self.purged
        return bool(self.forwarded or gone)


def fields_of(kind: CounterKind) -> Iterator["dataclasses.Field[Any]"]:
    """Fields that are added up in this way."""
    return (one for one in dataclasses.fields(DrainReport) if one.metadata.get("kind", CounterKind.LAST) is kind)


def numbers() -> Iterator["dataclasses.Field[Any]"]:
    """All fields that are plain numbers of messages or bytes."""
    return (one for one in dataclasses.fields(DrainReport) if one.metadata.get("number"))


class Tally:
    """Counts what happens to the messages of one run. `beyond` counts too: what all runs of a service did so far."""

    def __init__(self, beyond: "Tally | None" = None) -> None:
        self._beyond = beyond
        noted = [one for one in dataclasses.fields(DrainReport) if one.metadata.get("on") is not None]
        self.numbers: dict[str, int] = {one.name: 0 for one in noted if one.metadata["kind"] is CounterKind.COUNT}
        self.names: dict[str, Counter[str]] = {
            one.name: Counter() for one in noted if one.metadata["kind"] is CounterKind.BY_NAME
        }

    def note(self, moment: Moment, *happened: Accepted | Settled | Item) -> None:
        """Every counter of that moment looks at what happened."""
        counts, names = _counting(moment)
        for event in happened:
            for name, number_of in counts:
                self.numbers[name] += number_of(event)
            for name, names_of in names:
                self.names[name].update(names_of(event))
        if self._beyond is not None:
            self._beyond.note(moment, *happened)

    def counted(self) -> dict[str, Any]:
        """All that was counted, as fields of a report."""
        by_name = fields_of(CounterKind.BY_NAME)
        named = {one.name: in_order(self.names[one.name], entities=one.metadata["entities"]) for one in by_name}
        return {**self.numbers, **named}


_Looks = tuple[tuple[str, Callable[[Any], Any]], ...]


@cache
def _counting(moment: Moment) -> tuple[_Looks, _Looks]:
    """The counters of a moment with what they look at: numbers, and numbers by name."""

    def of(kind: CounterKind) -> _Looks:
        return tuple((one.name, one.metadata["of"]) for one in fields_of(kind) if one.metadata["on"] is moment)

    return of(CounterKind.COUNT), of(CounterKind.BY_NAME)


def reasons(left: Mapping[str, int]) -> tuple[Left, ...]:
    """Why messages are left as a report has it."""
    return tuple(Left(reason, count) for reason, count in sorted(left.items()) if count and reason != FILTERED_OUT)


def in_order(names: Mapping[str, int], *, entities: bool = False) -> Named:
    """Numbers by name as a report has them. `entities`: one spelling of each stands for all."""
    return tuple(sorted((merge_spellings(names) if entities else names).items()))


def together(reports: Iterable[DrainReport], *, seconds: float) -> DrainReport:
    """Several runs as one: sums; what was left and could not be read is the last one's."""
    runs = list(reports)
    if not runs:
        return DrainReport(seconds=seconds, ended_by="stop")
    return dataclasses.replace(runs[-1], **_sums(runs), seconds=seconds, confirmed_empty=False, ended_by="stop")


def parts_together(parts: Sequence[DrainReport], *, seconds: float) -> DrainReport:
    """The parts of one run, each over messages of its own, as one: everything is added up. There are none if it
    was stopped before the first one began."""
    if not parts:
        return DrainReport(seconds=seconds, ended_by="stop")
    left: Counter[str] = Counter()
    for part in parts:
        left.update({one.reason: one.count for one in part.left})
    early = next((part for part in parts if part.ended_by != "empty"), parts[-1])
    return dataclasses.replace(
        early,
        **_sums(parts),
        uncompleted=sum(part.uncompleted for part in parts),
        filtered_out=sum(part.filtered_out for part in parts),
        left=reasons(left),
        failures=tuple(failure for part in parts for failure in part.failures),
        locked=tuple(one for part in parts for one in part.locked),
        confirmed_empty=all(part.confirmed_empty for part in parts),
        broken_off=next((part.broken_off for part in parts if part.broken_off is not None), None),
        seconds=seconds,
    )


def _sums(runs: Sequence[DrainReport]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        one.name: sum(getattr(run, one.name) for run in runs) for one in fields_of(CounterKind.COUNT)
    }
    for declared in fields_of(CounterKind.BY_NAME):
        count: Counter[str] = Counter()
        for run in runs:
            count.update(dict(getattr(run, declared.name)))
        totals[declared.name] = in_order(count, entities=declared.metadata["entities"])
    return totals
