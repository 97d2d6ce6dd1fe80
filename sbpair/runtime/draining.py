"""What a drain is asked and what it answers, and the parts it is put together from."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbpair.core.entities import QueueFacts
from sbpair.core.errors import AccessDeniedError, ServiceError
from sbpair.core.lanes import Key
from sbpair.core.locks import DEFAULT_LOCK_SECONDS, LockClock
from sbpair.core.moves import Limits
from sbpair.core.rewrite import TtlMode
from sbpair.core.settlement import Settlement
from sbpair.core.where import Where
from sbpair.ports import Clock, Messaging, NamespaceAdmin
from sbpair.runtime.classify import Classifier
from sbpair.runtime.mover import Source
from sbpair.runtime.outlets import ArchiveOutlet, NamespaceOutlet, Outlet

DEFAULT_CONCURRENCY = 8
DEFAULT_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ToPrimary:
    """Each message to where it was to go in the first place."""


@dataclass(frozen=True, slots=True)
class ToArchive:
    """Into a JSON Lines file in this directory."""

    directory: Path


@dataclass(frozen=True, slots=True)
class ToQueue:
    """All of them, restored, to one queue of the namespace that is passed as `primary`."""

    queue: str


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """What to move, where to, and how hard. Durations in seconds."""

    queues: tuple[str, ...]
    """Paths of backlog queues on the secondary."""
    dead_letter: bool = False
    """Empty their dead-letter queues instead: what can be delivered now goes home, the rest stays."""
    to: ToPrimary | ToArchive | ToQueue = field(default_factory=ToPrimary)
    path: str | None = None
    """Only messages to destinations that match this shell pattern (case does not matter)."""
    session: str | None = None
    where: Where | None = None
    max_messages: int | None = None
    for_seconds: float | None = None
    rate_per_second: float | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    """Batches on their way at the same time."""
    ttl: TtlMode = TtlMode.FULL
    dry_run: bool = False
    deferred: bool = False
    """Also what somebody has deferred: fetched by number once nothing else is left, so after all others of its session.
    A drain only."""
    patience_seconds: float = DEFAULT_PATIENCE_SECONDS
    """How long a destination or queue may fail before its messages are left."""
    lock_wait_seconds: float | None = None
    """How long to wait for messages that somebody else has locked; None: as long as the queue's lock lasts, after
    which a crashed process's locks are gone."""
    in_flight_messages: int = 2000
    in_flight_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Left:
    """Messages that are still in the backlog, and why."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueFailure:
    """A queue that could not be emptied because it could not be read."""

    queue: str
    error: ServiceError


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What became of the messages. In a dry run: what would become of them."""

    forwarded: int
    completed: int
    dead_lettered: int
    released: int
    pings: int
    left: tuple[Left, ...]
    per_destination: tuple[tuple[str, int], ...]
    seconds: float
    confirmed_empty: bool
    """Nothing is left anywhere, and a browse and the counts (where they could be had) say so."""
    forwarded_bytes: int = 0
    already_forwarded: int = 0
    """Sent by an earlier attempt; completed now without being sent again."""
    uncompleted: int = 0
    """Sent, but the completion was not confirmed: they come again when their locks run out."""
    locks_lost: int = 0
    dead_letter_reasons: tuple[tuple[str, int], ...] = ()
    original_faults: tuple[tuple[str, int], ...] = ()
    """Of messages sent home from a dead-letter queue: why they had been there."""
    failures: tuple[QueueFailure, ...] = ()
    ended_by: str = "empty"
    """`empty` (nothing more to do), `stop`, `time`, `count`."""
    archive: Path | None = None
    dry_run: bool = False


def make_outlet(request: DrainRequest, primary: Messaging, clock: Clock) -> Outlet:
    if isinstance(request.to, ToArchive):
        return ArchiveOutlet(request.to.directory, clock.now().strftime("%Y%m%dT%H%M%SZ"))
    return NamespaceOutlet(primary)


def make_classifier(request: DrainRequest, clock: Clock) -> Classifier:
    return Classifier(
        now=lambda: clock.now().timestamp(),
        ttl=request.ttl,
        from_dead_letter=request.dead_letter,
        verbatim=isinstance(request.to, ToArchive),
        destination=request.to.queue if isinstance(request.to, ToQueue) else None,
        path=request.path,
        session=request.session,
        where=request.where,
    )


def make_limits(request: DrainRequest, *, patience_seconds: float | None) -> Limits:
    return Limits(
        in_flight_messages=request.in_flight_messages,
        in_flight_bytes=request.in_flight_bytes,
        sends=request.concurrency,
        rate_per_second=request.rate_per_second,
        total_messages=request.max_messages,
        patience_seconds=patience_seconds,
    )


def make_sources(
    request: DrainRequest, secondary: Messaging, facts: Mapping[str, QueueFacts | None], *, wait_seconds: float
) -> list[Source]:
    """A source for every queue, with its lock duration where it is known."""
    sources = []
    for path in request.queues:
        known = facts.get(path)
        lock_seconds = known.settings.lock_duration_seconds if known else DEFAULT_LOCK_SECONDS
        receiver = secondary.receiver(path, dead_letter=request.dead_letter)
        sources.append(Source(path, receiver, LockClock(lock_seconds), wait_seconds=wait_seconds))
    return sources


async def facts_of(admin: NamespaceAdmin | None, paths: Sequence[str]) -> dict[str, QueueFacts | None]:
    """What the administration says about the queues, None for those that do not exist; empty without the right to ask.

    A queue about which nothing can be learnt just now is left out.
    """
    if admin is None:
        return {}
    answers = await asyncio.gather(*(admin.get_queue(path) for path in paths), return_exceptions=True)
    facts: dict[str, QueueFacts | None] = {}
    for path, answer in zip(paths, answers, strict=True):
        if isinstance(answer, AccessDeniedError):
            return {}
        if isinstance(answer, ServiceError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        facts[path] = answer
    return facts


async def facts_unless_stopped(
    admin: NamespaceAdmin | None, paths: Sequence[str], stop: asyncio.Event
) -> dict[str, QueueFacts | None]:
    """`facts_of`; nothing when `stop` came before an answer."""
    asking, stopped = asyncio.create_task(facts_of(admin, paths)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else {}
    finally:
        asking.cancel()
        stopped.cancel()


def make_report(
    machine: Settlement,
    classifier: Classifier,
    sources: Sequence[Source],
    *,
    left: Counter[str],
    sent_before: frozenset[Key],
    seconds: float,
    confirmed_empty: bool,
    ended_by: str,
    outlet: Outlet,
) -> DrainReport:
    """The machine's tally as a report. `sent_before`: what an earlier run had sent."""
    tally = machine.tally
    return DrainReport(
        forwarded=tally.forwarded,
        completed=tally.completed,
        dead_lettered=tally.dead_lettered,
        released=tally.released,
        pings=tally.pings,
        left=tuple(Left(reason, count) for reason, count in sorted(left.items())),
        per_destination=tuple(sorted(tally.per_destination.items())),
        seconds=seconds,
        confirmed_empty=confirmed_empty,
        forwarded_bytes=tally.forwarded_bytes,
        already_forwarded=tally.already_forwarded,
        uncompleted=len(machine.uncompleted - sent_before),
        locks_lost=tally.locks_lost,
        dead_letter_reasons=tuple(sorted(tally.finished.items())),
        original_faults=tuple(sorted(classifier.original_faults.items())),
        failures=failures_of(sources),
        ended_by=ended_by,
        archive=outlet.path if isinstance(outlet, ArchiveOutlet) else None,
    )


def failures_of(sources: Sequence[Source]) -> tuple[QueueFailure, ...]:
    return tuple(QueueFailure(source.path, source.failed) for source in sources if source.failed is not None)


def give_up_what_still_fails(sources: Sequence[Source]) -> None:
    """The time is up: a queue whose last receive failed counts as one that could not be read."""
    for source in sources:
        source.failed = source.failed or source.last_error


def raise_if_none_was_readable(sources: Sequence[Source]) -> None:
    """A run that could read nothing at all is an error, not a report."""
    errors = [source.failed for source in sources if source.failed is not None and not source.was_read]
    if errors and len(errors) == len(sources):
        raise errors[0].with_state("No queue could be read; nothing was moved.")
