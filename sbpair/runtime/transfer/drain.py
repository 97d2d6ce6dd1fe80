"""One pass over the backlog: everything back to the primary, then a browse that nothing is left.

An empty receive is not an empty queue: messages may be locked elsewhere, an answer may have got lost, counts may read 0
while a namespace throttles. So when nothing comes any more the queues are browsed, what is found is explained message
by message, what has no explanation is tried again, and the counts of the administration are compared where they can be
had.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from sbpair.concurrency import Wait, cancel_on, waiting
from sbpair.core.entities import Counts, QueueFacts
from sbpair.core.errors import ServiceError
from sbpair.core.events import BacklogCounted
from sbpair.core.message import MessageState
from sbpair.core.names import ByName, subscription_of
from sbpair.core.retry import PATIENCE_SECONDS, UNREACHED_SECONDS
from sbpair.core.rewrite import TtlMode
from sbpair.core.transfer.conclusion import waits_for_locks, waits_for_more
from sbpair.core.transfer.custody import DEAD_LETTERED
from sbpair.core.transfer.filters import EVERYTHING, FilterError, MessageFilter
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.order import LOCK_GRACE_SECONDS, LockPatience
from sbpair.core.transfer.report import FILTERED_OUT, TOO_MANY_LEFT, DrainReport, LockedQueue, QueueFailure, reasons
from sbpair.core.transfer.state import DEFAULT_LOCK_SECONDS, Key, Limited, Limits, LockClock
from sbpair.core.transfer.verdict import Classifier, DestinationSeen, Judge
from sbpair.ports import MOST_MOVED_AT_ONCE, MessageMover, Messaging, NamespaceAdmin, Observer, RuntimeClock
from sbpair.runtime.browse import BrowsedMessages, survey
from sbpair.runtime.transfer.dry_run import DryRun, ask_destinations
from sbpair.runtime.transfer.ledger import Recorder
from sbpair.runtime.transfer.pump import Pump
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import ArchiveSink, NamespaceSink, Sink, TransactionSink

# What a drain is asked and what it answers, and the parts it is put together from.

DEFAULT_CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class ToPrimary:
    """Each message to where it was to go in the first place."""


@dataclass(frozen=True, slots=True)
class ToArchive:
    """Into a JSON Lines file in this directory."""

    directory: Path
    destination: str | None = None
    """Where the file says that messages without a destination of their own go."""


@dataclass(frozen=True, slots=True)
class ToQueue:
    """All of them, restored, to one queue of the namespace that is passed as `primary`."""

    queue: str


@dataclass(frozen=True, slots=True)
class TransferRequest(Limited):
    """What to move, where to, and how hard. Durations in seconds."""

    queues: tuple[str, ...]
    """Paths of backlog queues on the secondary."""
    dead_letter: bool = False
    """Empty their dead-letter queues instead: what can be delivered now goes back, the rest stays."""
    with_dead_letter: bool = False
    """Empty their dead-letter queues as well."""
    to: ToPrimary | ToArchive | ToQueue = field(default_factory=ToPrimary)
    wanted: MessageFilter = EVERYTHING
    only: tuple[str, ...] | None = None
    """The only destinations that are sent to; messages for others stay in the backlog. None: all."""
    max_messages: int | None = None
    for_seconds: float | None = None
    idle_seconds: float = 0.0
    """Once the queues are empty go on for so long, from the last message that came. Of a drain or a move; how long a
    syphon waits is `syphon`'s own."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """See `Limits.budget_per_second`."""
    concurrency: int = DEFAULT_CONCURRENCY
    """Batches on their way at the same time."""
    ttl: TtlMode = TtlMode.FULL
    dry_run: bool = False
    deferred: bool = False
    """Also what somebody has deferred: fetched by number once nothing else is left, so after all others of its session.
    A drain only."""
    active: bool = True
    """False: nothing but what is deferred, without receiving anything else. A move only."""
    scheduled: bool = False
    """Also what is scheduled, with its time. A move only."""
    leave_missing: bool = False
    """Messages for a destination that does not exist stay in the backlog; otherwise they are dead-lettered, as the
    retired library did. A drain only."""
    leave_refused: bool = False
    """The same for messages that their destination refuses as they are: too large, or without a session id. What
    follows in their sessions stays too."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long a destination or queue may fail before its messages are left."""
    unreached_seconds: float = UNREACHED_SECONDS
    """The same for one that has not worked since the beginning, if that is less."""
    lock_wait_seconds: float | None = None
    """How long to wait for messages that somebody else has locked; None: as long as the queue's lock lasts, after
    which a crashed process's locks are gone."""
    in_flight_messages: int = 2000
    in_flight_bytes: int = 64 * 1024 * 1024
    later_queues: bool = False
    """Also backlog queues of the same primary that are made later. A syphon only; a drain ends."""
    verb: str = "moved"
    """What it does with messages, as errors name it."""

    @property
    def undone(self) -> str:
        """How things stand before the first message."""
        return f"Nothing was {self.verb}."

    @property
    def none_readable(self) -> str:
        """The same, where that is why."""
        return f"No queue could be read; nothing was {self.verb}."

    @property
    def also(self) -> frozenset[MessageState]:
        """States besides active whose messages are asked for."""
        asked = ((MessageState.DEFERRED, self.deferred), (MessageState.SCHEDULED, self.scheduled))
        return frozenset(state for state, wanted in asked if wanted)

    @property
    def kinds(self) -> tuple[bool, ...]:
        """What is emptied of each queue: False for itself, True for its dead-letter queue."""
        return (False, True) if self.with_dead_letter else (self.dead_letter,)

    def expected(self, counts: Counts) -> int:
        """Messages of a queue that are asked for, of those the service counts."""
        return sum(counts.dead_letter if dead_letter else counts.active for dead_letter in self.kinds)


def make_sink(request: TransferRequest, primary: Messaging, clock: RuntimeClock) -> Sink:
    return make_archive(request.to, clock) if isinstance(request.to, ToArchive) else NamespaceSink(primary)


def make_archive(to: ToArchive, clock: RuntimeClock) -> ArchiveSink:
    """A new file in its folder."""
    return ArchiveSink(to.directory, clock.now().strftime("%Y%m%dT%H%M%SZ"))


def make_classifier(request: TransferRequest, clock: RuntimeClock) -> Classifier:
    return Classifier(
        now=lambda: clock.now().timestamp(),
        ttl=request.ttl,
        verbatim=isinstance(request.to, ToArchive),
        destination=_named_destination(request.to),
        wanted=request.wanted,
        only=request.only,
    )


def _named_destination(to: ToPrimary | ToArchive | ToQueue) -> str | None:
    match to:
        case ToQueue(queue):
            return queue
        case ToArchive(_, destination):
            return destination
        case _:
            return None


def make_limits(request: TransferRequest, *, patience_seconds: float | None, lock_wait_seconds: float | None) -> Limits:
    return Limits(
        in_flight_messages=request.in_flight_messages,
        in_flight_bytes=request.in_flight_bytes,
        sends=request.concurrency,
        rate_per_second=request.rate_per_second,
        budget_per_second=request.budget_per_second,
        total_messages=request.max_messages,
        patience_seconds=patience_seconds,
        unreached_seconds=request.unreached_seconds,
        lock_wait_seconds=lock_wait_seconds,
    )


def longest_lock(sources: Sequence[Source]) -> float:
    """The longest lock duration of the queues, in seconds."""
    return max((source.locks.lock_seconds for source in sources), default=DEFAULT_LOCK_SECONDS)


def make_sources(
    request: TransferRequest, secondary: Messaging, facts: Mapping[str, QueueFacts | None], *, wait_seconds: float
) -> list[Source]:
    """The sources of every queue, with its lock duration where it is known."""
    sources = []
    for path in request.queues:
        known = facts.get(path)
        lock_seconds = known.settings.lock_duration_seconds if known else None
        for dead_letter in request.kinds:
            receiver = secondary.receiver(path, dead_letter=dead_letter)
            sources.append(Source(path, receiver, LockClock(lock_seconds), wait_seconds=wait_seconds))
    return sources


async def facts_of(admin: NamespaceAdmin | None, paths: Sequence[str]) -> dict[str, QueueFacts | None]:
    """What the administration says about the queues; without the right to ask, or an answer, nothing."""
    if admin is None or not paths:
        return {}
    try:
        listed = await listed_facts(admin, paths)
    except ServiceError:
        return {}
    # A listed absence is not an absence: what was not listed is not said to be missing.
    return dict(listed)


async def listed_facts(admin: NamespaceAdmin, paths: Sequence[str]) -> dict[str, QueueFacts]:
    """What one list says of the queues, by their paths as given; the ones it leaves out are left out.

    Raises:
        ServiceError: the namespace does not list its queues.
    """
    if len(paths) == 1:
        known = await entity_facts(admin, paths[0])
        return {} if known is None else {paths[0]: known}
    wanted = ByName((path, path) for path in paths)
    folders = {path.rpartition("/")[0] for path in paths}
    prefix = f"{folders.pop()}/" if len(folders) == 1 else ""
    found = [one async for one in admin.list_queues(prefix)]
    return {wanted[one.path]: one for one in found if one.path in wanted}


async def entity_facts(admin: NamespaceAdmin, path: str) -> QueueFacts | None:
    """What the administration says of one queue or, without counts, of a subscription; None if there is none.

    Raises:
        ServiceError: it does not tell.
    """
    subscription = subscription_of(path)
    return await (admin.get_queue(path) if subscription is None else admin.get_subscription(*subscription))


async def facts_until_stopped(
    admin: NamespaceAdmin | None, paths: Sequence[str], stop: asyncio.Event
) -> dict[str, QueueFacts | None]:
    """`facts_of`; nothing when `stop` came before an answer."""
    return await cancel_on(stop, facts_of(admin, paths)) or {}


def make_report(
    machine: Settlement,
    sources: Sequence[Source],
    *,
    left: Counter[str],
    sent_before: AbstractSet[Key],
    seconds: float,
    confirmed_empty: bool,
    ended_by: str,
    sink: Sink,
) -> DrainReport:
    """The machine's tally as a report. `sent_before`: what an earlier run had sent."""
    return DrainReport(
        **machine.tally.counted(),
        uncompleted=len(machine.custody.uncompleted - sent_before),
        left=reasons(left),
        filtered_out=left[FILTERED_OUT],
        failures=failures_of(sources),
        confirmed_empty=confirmed_empty,
        ended_by=ended_by,
        archive=sink.path if isinstance(sink, ArchiveSink) else None,
        seconds=seconds,
    )


def locked_queues(sources: Sequence[Source], machine: Settlement, clock: RuntimeClock) -> tuple[LockedQueue, ...]:
    """The queues that wait for another receiver's lock now."""
    locks, now_utc = machine.queues.foreign_locks(clock.monotonic()), clock.now().timestamp()
    paths = ByName((source.receiver.source, source.path) for source in sources)
    return tuple(LockedQueue(paths[queue], now_utc + seconds) for queue, seconds in sorted(locks.items()))


def failures_of(sources: Sequence[Source]) -> tuple[QueueFailure, ...]:
    return tuple(QueueFailure(source.path, source.failed) for source in sources if source.failed is not None)


def give_up_what_still_fails(sources: Sequence[Source]) -> None:
    """The time is up: a queue whose last receive failed counts as one that could not be read."""
    for source in sources:
        source.failed = source.failed or source.last_error


def raise_if_none_was_readable(request: TransferRequest, sources: Sequence[Source]) -> None:
    """A run that could read nothing at all is an error, not a report."""
    errors = [source.failed for source in sources if source.failed is not None and not source.was_read]
    if errors and len(errors) == len(sources):
        raise errors[0].with_state(request.none_readable)


IDLE_SECONDS = 1.0
"""How long a receive waits before a source counts as idle."""
MOST_IDLE_SECONDS = 2.0
ENOUGH_UNEXPLAINED = 1000
"""Messages of a queue that lie there although a receive brought none: after that many a browse need not go on to know
that the queue has to be asked again."""


async def halt_in_time(halt: asyncio.Event, stop: asyncio.Event, seconds: float | None) -> None:
    """Set `halt` when asked to stop, or when the time is up, if there is a bound: both end a run alike."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    halt.set()


@dataclass(frozen=True, slots=True)
class DrainJob:
    """One drain: what it is to do, between which namespaces, and who is told of it. Not to be used twice: it holds the
    event that stops it.

    Args:
        secondary, primary: where messages come from and go to; both stay open.
        admin: the secondary's; None where there is none.
        ledger: what it has is completed without being sent again; gets a line for each message.
        stop: ends the drain within about 10 seconds once it is set: what is on its way is settled, what waits is
            released.
        primary_admin: asked by a dry run only, for what a link to a destination does not show.
        facts: what is known of the queues, by path, if they have just been listed.
        judge: decides what becomes of a message, in place of the request.
        undeliverable: as for `Settlement`.
        sources: read in place of the request's queues.
        mover: the receiver of the only source, if its messages are to go in transactions.
        sink: used in place of a new one, and left open.
        part: other drains of the same run empty other queues, so the report says what ended this one even where nothing
            had moved.
    """

    request: TransferRequest
    _: KW_ONLY
    secondary: Messaging
    primary: Messaging
    clock: RuntimeClock
    observer: Observer
    stop: asyncio.Event
    admin: NamespaceAdmin | None = None
    ledger: Recorder | None = None
    primary_admin: NamespaceAdmin | None = None
    facts: Mapping[str, QueueFacts | None] | None = None
    judge: Judge | None = None
    undeliverable: str | None = DEAD_LETTERED
    sources: Sequence[Source] | None = None
    mover: MessageMover | None = None
    sink: Sink | None = None
    part: bool = False


async def drain(job: DrainJob) -> DrainReport:
    """Bring the backlog back to the primary once.

    Raises:
        ServiceError: no queue at all could be read; the first one's error.
        FilterError: the filter cannot be evaluated for a message, and nothing had moved; otherwise the report says so.
        SbpairError: the ledger or archive cannot be written.
    """
    request, clock = job.request, job.clock
    facts = job.facts
    if facts is None:
        facts = await facts_until_stopped(job.admin, request.queues, job.stop)
    sources = job.sources or make_sources(request, job.secondary, facts, wait_seconds=IDLE_SECONDS)
    for path, known in facts.items():
        if known is not None and not request.wanted.is_set:  # how many of them match nobody has counted
            job.observer.notify(BacklogCounted(clock.now().timestamp(), path, request.expected(known.counts)))
    judge = job.judge or make_classifier(request, clock)
    if request.dry_run:
        return await _dry_run(job, judge, sources)
    sink: Sink
    if job.sink is not None:
        sink = job.sink
    elif job.mover is not None:
        sink = TransactionSink(job.mover, job.primary)
    else:
        sink = make_sink(request, job.primary, clock)
    try:
        return await _Run(job, judge, sources).carry_out(sink)
    finally:
        if job.sink is None:
            await sink.close()


async def _dry_run(job: DrainJob, judge: Judge, sources: Sequence[Source]) -> DrainReport:
    request, clock, stop = job.request, job.clock, job.stop
    began = clock.monotonic()
    run = DryRun(
        judge,
        also=request.also,
        asked=request.wanted,
        most=request.max_messages,
        dead_letter_missing=not request.leave_missing,
        dead_letter_refused=not request.leave_refused,
        sent_before=frozenset() if job.ledger is None else job.ledger.forwarded,
    )
    patience = min(request.patience_seconds, request.unreached_seconds)
    await cancel_on(stop, run.browse(sources, clock=clock, stop=stop, patience_seconds=patience))
    raise_if_none_was_readable(request, sources)
    seen: list[DestinationSeen] = []
    if not isinstance(request.to, ToArchive):
        paths = sorted(run.destinations)
        seen = await ask_destinations(paths, messaging=job.primary, admin=job.primary_admin, stop=stop)
    report = run.report(seen, seconds=clock.monotonic() - began, stopped=stop.is_set())
    archive = request.to.directory if isinstance(request.to, ToArchive) else None
    return replace(report, failures=failures_of(sources), archive=archive)


class _Run:
    """One drain."""

    def __init__(self, job: DrainJob, judge: Judge, sources: Sequence[Source]) -> None:
        self._job = job
        self._request = job.request
        self._sources = sources
        self._clock = job.clock
        self._classify = judge
        self._sent_before: AbstractSet[Key] = job.ledger.forwarded if job.ledger is not None else frozenset()
        self._began = job.clock.monotonic()
        self._found: dict[Source, BrowsedMessages] = {}
        self._fetched: set[tuple[Source, int]] = set()

    async def carry_out(self, sink: Sink) -> DrainReport:
        job, request = self._job, self._request
        machine = self._machine(in_transactions=isinstance(sink, TransactionSink))
        pump = Pump(
            self._sources,
            machine,
            self._classify,
            sink,
            clock=job.clock,
            observer=job.observer,
            ledger=job.ledger,
            endless=False,
            patience_seconds=request.patience_seconds,
            unreached_seconds=request.unreached_seconds,
        )
        halt = asyncio.Event()
        watch = asyncio.create_task(halt_in_time(halt, job.stop, request.for_seconds))
        pump.start()
        try:
            empty = await self._until_confirmed(pump, halt)
        finally:
            watch.cancel()
            left, too_many_left = Counter(machine.custody.left().values()), machine.left_full
            await pump.finish()
        broken = pump.fatal
        if broken is not None and not isinstance(broken, FilterError):
            raise broken
        if halt.is_set() and not job.stop.is_set():
            give_up_what_still_fails(self._sources)
        if not job.part:
            raise_if_none_was_readable(request, self._sources)
        left += self._left_in_queues(machine)
        if empty:
            left.clear()  # by this run; another one has taken it since
        report = make_report(
            machine,
            self._sources,
            left=left,
            sent_before=self._sent_before,
            seconds=self._clock.monotonic() - self._began,
            confirmed_empty=empty,
            ended_by="filter" if broken is not None else self._ended_by(halt, machine, too_many_left),
            sink=sink,
        )
        if job.ledger is not None:  # it may serve other parts of this run
            job.ledger.forwarded |= machine.custody.uncompleted
        report = replace(report, locked=locked_queues(self._sources, machine, self._clock))
        if broken is None:
            return report
        if not report.has_moved and not job.part:
            raise broken.with_state(request.undone)
        return replace(report, broken_off=broken.message)

    def _machine(self, *, in_transactions: bool) -> Settlement:
        request, longest = self._request, longest_lock(self._sources)
        lock_wait = request.lock_wait_seconds if request.lock_wait_seconds is not None else longest + LOCK_GRACE_SECONDS
        limits = make_limits(request, patience_seconds=request.patience_seconds, lock_wait_seconds=lock_wait)
        if in_transactions:
            limits = replace(limits, batch_messages=MOST_MOVED_AT_ONCE, in_transactions=True)
        return Settlement(
            limits,
            undeliverable=self._job.undeliverable,
            leave_missing=request.leave_missing,
            leave_refused=request.leave_refused,
            forwarded=self._sent_before,
        )

    def _left_in_queues(self, machine: Settlement) -> Counter[str]:
        """Why the messages are still there that a whole browse has shown, beyond those that were left on purpose."""
        left: Counter[str] = Counter()
        for source in self._sources:
            if (found := self._found.get(source)) is not None and found.whole:
                path = source.receiver.source
                locked = machine.queues.known_locked(path) if machine.queues.led_elsewhere(path) else None
                left += found.reasons(machine.custody.uncompleted, locked)
        return left

    def _ended_by(self, halt: asyncio.Event, machine: Settlement, too_many_left: bool) -> str:
        if self._job.stop.is_set():
            return "stop"
        if halt.is_set():
            return "time"
        return "count" if machine.total_reached else TOO_MANY_LEFT if too_many_left else "empty"

    async def _until_confirmed(self, pump: Pump, halt: asyncio.Event) -> bool:
        """Whether all sources were seen to hold nothing. Ends when all that is left is explained, or on `halt`."""
        with waiting("") as wait:
            return await self._explained(pump, halt, wait)

    async def _explained(self, pump: Pump, halt: asyncio.Event, wait: Wait) -> bool:
        patience = LockPatience(self._request.lock_wait_seconds, self._clock.monotonic())
        wait_seconds = IDLE_SECONDS
        while await pump.settle_down(halt):
            if pump.machine.total_reached or pump.machine.left_full:
                return False
            unexplained = await self._look_unless(halt, pump, enough=ENOUGH_UNEXPLAINED)
            if unexplained is None:
                return False
            whole = all(found.whole for found in self._found.values())
            if whole and await self._take_deferred(pump, halt):
                continue
            if not unexplained and (quiet := self._still_to_wait(pump.machine)) > 0:
                wait.detail = self._until_more_comes(pump.machine, waits_for_more(self._utc() + quiet))
                pump.poll_again(self._sources, wait_seconds=quiet)
                continue
            if not unexplained:
                return all(found.empty for found in self._found.values()) and len(self._found) == len(self._sources)
            now = self._clock.monotonic()
            stalled = pump.machine.queues.stalled
            hopeless = all(stalled(source.receiver.source, now) for source in self._sources if source in unexplained)
            if hopeless or patience.exhausted(unexplained, longest_lock(self._sources), now):
                if not whole:
                    await self._look_unless(halt, pump, enough=None)  # what is left is counted
                return False
            wait.detail = None  # where a browse ended early, not all that lies there need be locked
            if whole:
                locks_end = self._utc() + patience.since + longest_lock(self._sources) - now
                locked = {source.receiver.source: len(keys) for source, keys in unexplained.items()}
                wait.detail = self._until_more_comes(pump.machine, waits_for_locks(locked, locks_end))
            pump.poll_again(list(unexplained), wait_seconds=wait_seconds)
            wait_seconds = min(wait_seconds * 2, MOST_IDLE_SECONDS)
        return False

    def _until_more_comes(self, machine: Settlement, sentence: str) -> Callable[[], str]:
        """Says the sentence as long as nothing has come since."""
        before = machine.custody.last_arrival
        return lambda: sentence if machine.custody.last_arrival == before else ""

    def _utc(self) -> float:
        return self._clock.now().timestamp()

    def _still_to_wait(self, machine: Settlement) -> float:
        """Seconds until nothing has come for as long as was asked for."""
        since = max(machine.custody.last_arrival, self._began)
        return self._request.idle_seconds - (self._clock.monotonic() - since)

    async def _take_deferred(self, pump: Pump, halt: asyncio.Event) -> bool:
        """Fetch what is deferred, each message once, until `halt`; whether there was any."""
        if not self._request.deferred:
            return False
        wanted = {
            source: [number for number in found.deferred if (source, number) not in self._fetched]
            for source in self._sources
            if (found := self._found.get(source)) is not None
        }
        for source, numbers in wanted.items():
            self._fetched |= {(source, number) for number in numbers}
            # A run that is stopped now does not look again: what it counted before is so no longer.
            self._found[source].whole = not numbers
            await pump.take_deferred(source, numbers, halt)
        return any(wanted.values())

    async def _look_unless(
        self, halt: asyncio.Event, pump: Pump, *, enough: int | None
    ) -> dict[Source, frozenset[Key]] | None:
        """`_look`, given up on `halt`."""
        return await cancel_on(halt, self._look(pump, enough))

    async def _look(self, pump: Pump, enough: int | None) -> dict[Source, frozenset[Key]]:
        """Browse the sources that could be read; what has no explanation yet, by source. Not more than `enough` of
        each: where a service was slow for a moment, all of a large backlog still lies there."""
        readable = [source for source in self._sources if source.failed is None]
        explained = pump.machine.custody.left()
        patience = self._request.patience_seconds
        browsed = await asyncio.gather(
            *(
                survey(
                    source.receiver,
                    explained,
                    clock=self._clock,
                    patience_seconds=patience,
                    unreached_seconds=patience if source.was_read else self._request.unreached_seconds,
                    wanted=self._request.wanted,
                    enough=enough,
                )
                for source in readable
            ),
            return_exceptions=True,
        )
        facts = await facts_of(self._job.admin, list(dict.fromkeys(source.path for source in readable)))
        unexplained: dict[Source, frozenset[Key]] = {}
        for source, found in zip(readable, browsed, strict=True):
            if isinstance(found, ServiceError):
                source.failed = found
                continue
            if isinstance(found, BaseException):
                raise found
            known = facts.get(source.path)
            found.compare_with(None if known is None else source.counted(known.counts))
            self._found[source] = found
            if found.unexplained:
                unexplained[source] = found.unexplained
        return unexplained
